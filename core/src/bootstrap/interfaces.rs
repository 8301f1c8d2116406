//! Selects the address of this host that other ranks should use.

use std::net::IpAddr;

use crate::config::{Key, Settings};
use crate::error::{Error, ErrorKind, Result};

/// One address of one interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The name of the interface.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// The number of leading bits of the address that identify its subnet.
    pub prefix: u8,
}

impl Interface {
    fn holds(&self, other: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 32),
            IpAddr::V6(v6) => (u128::from(v6), 128),
        };
        let ((ours, width), (theirs, other_width)) = (bits(self.ip), bits(other));
        let kept = u32::from(self.prefix).min(width);
        let mask = if kept == 0 { 0 } else { u128::MAX << (128 - kept) };
        width == other_width && (ours & mask) == (theirs & mask)
    }

    /// The preference of this address; lower is better.
    fn class(&self, near: Option<IpAddr>) -> u8 {
        if self.name.starts_with("ib") {
            0
        } else if near.is_some_and(|near| self.holds(near)) {
            1
        } else if self.ip.is_loopback() {
            4
        } else if self.name.starts_with("docker") {
            3
        } else {
            2
        }
    }
}

/// Selects usable addresses, the best first.
///
/// `filter` is a comma-separated list of name prefixes. A leading `^` excludes these names; a
/// leading `=` (of the list or of one name) requires the exact name. InfiniBand names go first,
/// then the subnet of `near`, then all others except docker and loopback, which go last.
#[must_use]
pub fn select(all: &[Interface], filter: &str, family: &str, near: Option<IpAddr>) -> Vec<Interface> {
    let (filter, excludes) = filter.strip_prefix('^').map_or((filter, false), |rest| (rest, true));
    let (filter, all_exact) = filter.strip_prefix('=').map_or((filter, false), |rest| (rest, true));
    let named = |name: &str| {
        filter.split(',').map(str::trim).filter(|wanted| !wanted.is_empty()).any(|wanted| {
            let exact = all_exact || wanted.starts_with('=');
            let wanted = wanted.trim_start_matches('=');
            if exact { name == wanted } else { name.starts_with(wanted) }
        })
    };
    let wanted = |one: &&Interface| {
        let of_family = match family {
            "AF_INET" => one.ip.is_ipv4(),
            "AF_INET6" => one.ip.is_ipv6(),
            _ => true,
        };
        // A link-local address is useless without the interface that it belongs to.
        let usable = match one.ip {
            IpAddr::V4(v4) => !v4.is_unspecified(),
            IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_unicast_link_local(),
        };
        of_family && usable && (filter.is_empty() || named(&one.name) != excludes)
    };
    let mut found: Vec<Interface> = all.iter().filter(wanted).cloned().collect();
    let like_near = |ip: IpAddr| near.is_none_or(|near| near.is_ipv4()) == ip.is_ipv4();
    // The sort is stable: addresses of equal rank stay in the system's order.
    found.sort_by_key(|one| (one.class(near), !like_near(one.ip)));
    found
}

/// The addresses of this host.
///
/// # Errors
/// `System` if the kernel does not provide them.
pub fn list() -> Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs().map_err(|e| Error::system("listing the network interfaces", e))?;
    let convert = |one: if_addrs::Interface| {
        let prefix = match &one.addr {
            if_addrs::IfAddr::V4(v4) => v4.prefixlen,
            if_addrs::IfAddr::V6(v6) => v6.prefixlen,
        };
        Interface { ip: one.ip(), name: one.name, prefix }
    };
    Ok(found.into_iter().map(convert).collect())
}

/// The best address that `settings` allow, near `near` if it is given.
///
/// # Errors
/// `Unavailable` if there is no such address; the text lists the addresses of this host.
pub fn choose(settings: &Settings, near: Option<IpAddr>) -> Result<Interface> {
    let all = list()?;
    let (filter, family) = (settings.text(Key::Interface), settings.text(Key::Family));
    select(&all, filter, family, near).into_iter().next().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|one| format!("{} {}", one.name, one.ip)).collect();
        let there =
            if names.is_empty() { "none is up".into() } else { format!("there are: {}", names.join(", ")) };
        let what = format!(
            "no network interface fits CCL_SOCKET_IFNAME=\"{filter}\" CCL_SOCKET_FAMILY=\"{family}\"; {there}"
        );
        Error::new(ErrorKind::Unavailable, what).hint("change these settings, or bring an interface up")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<Interface> {
        let one =
            |name: &str, ip: &str, prefix| Interface { name: name.into(), ip: ip.parse().unwrap(), prefix };
        vec![
            one("lo", "127.0.0.1", 8),
            one("docker0", "172.17.0.1", 16),
            one("eth0", "10.0.0.5", 24),
            one("eth0", "fe80::1", 64),
            one("eth0", "fd00::5", 64),
            one("eth10", "10.0.1.5", 24),
            one("ib0", "192.168.7.5", 24),
        ]
    }

    fn check(filter: &str, family: &str, near: &str, expect: &[&str]) {
        let found = select(&host(), filter, family, near.parse().ok());
        let seen: Vec<String> = found.iter().map(|one| one.ip.to_string()).collect();
        assert_eq!(seen, expect, "filter {filter:?} family {family:?} near {near:?}");
    }

    #[test]
    fn infiniband_then_the_subnet_then_the_rest_then_docker_and_loopback() {
        check("", "AF_INET", "", &["192.168.7.5", "10.0.0.5", "10.0.1.5", "172.17.0.1", "127.0.0.1"]);
        check("", "AF_INET", "10.0.1.9", &["192.168.7.5", "10.0.1.5", "10.0.0.5", "172.17.0.1", "127.0.0.1"]);
        check("^ib", "AF_INET", "127.0.0.1", &["127.0.0.1", "10.0.0.5", "10.0.1.5", "172.17.0.1"]);
        check("", "AF_INET6", "", &["fd00::5"]);
        check("eth0", "", "fd00::9", &["fd00::5", "10.0.0.5"]);
    }

    #[test]
    fn prefixes_exact_names_and_exclusions() {
        check("eth", "AF_INET", "", &["10.0.0.5", "10.0.1.5"]);
        check("eth1", "AF_INET", "", &["10.0.1.5"]);
        check("=eth1", "AF_INET", "", &[]);
        check("=eth10", "AF_INET", "", &["10.0.1.5"]);
        check("=lo,=eth0", "AF_INET", "", &["10.0.0.5", "127.0.0.1"]);
        check("^docker,lo,ib", "AF_INET", "", &["10.0.0.5", "10.0.1.5"]);
        check("^=eth0", "AF_INET", "", &["192.168.7.5", "10.0.1.5", "172.17.0.1", "127.0.0.1"]);
        check(" lo , docker ", "", "", &["172.17.0.1", "127.0.0.1"]);
    }

    #[test]
    fn this_host_has_an_address_and_a_wrong_name_says_which_there_are() {
        let mut settings = Settings::default();
        let near = "127.0.0.1".parse().ok();
        assert_eq!(choose(&settings, near).unwrap().ip, "127.0.0.1".parse::<IpAddr>().unwrap());
        settings.set(Key::Interface, "no-such").unwrap();
        let error = choose(&settings, None).unwrap_err();
        assert!(error.what.contains("lo 127.0.0.1"), "{error}");
    }
}
