//! The ports that a rank can use: which there are, which of them are admitted, and by which address
//! each is reached.

use std::net::Ipv6Addr;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::hca::Hca;
use crate::config::{Key, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::verbs::{self, Address, Limits, LinkLayer, PortState};

/// An address of a port, and the kind of packets that carry it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub address: [u8; 16],
    /// Whether it is of RoCE version 2: packets are UDP, and can be routed.
    pub is_v2: bool,
}

impl Gid {
    /// The address as text.
    #[must_use]
    pub fn text(&self) -> String {
        Address::Gid(self.address).to_string()
    }
}

/// A port of a device, and whether ccl uses it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The name of the device.
    pub device: String,
    /// Its limits.
    pub limits: Limits,
    /// The number of the port.
    pub port: u8,
    /// Its state.
    pub state: PortState,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// The address that is used; none with InfiniBand, where the local identifier is enough.
    pub gid: Option<Gid>,
    /// Where its device is in the PCI tree, if it is there.
    pub pci: Option<String>,
    /// Why it is not used; empty if it is.
    pub unused: String,
}

/// A port that a rank uses.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) hca: Arc<Hca>,
    pub(crate) number: u8,
    pub(crate) state: PortState,
    pub(crate) gid: Option<Gid>,
    /// Whether the kernel does the work of its device.
    is_software: bool,
}

/// What a rank tells the others of its ports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Reachable {
    /// What its packets travel on. Those of one kind reach each other.
    pub(crate) link_layer: String,
}

/// The ports of a rank, or why it has none.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) used: Vec<Port>,
    /// Why there are none, if there are none.
    pub(crate) why_none: String,
}

impl Ports {
    /// The ports that these settings admit, with their devices open.
    ///
    /// # Errors
    /// `Usage` if a setting cannot be read.
    pub(crate) fn of(settings: &Settings) -> Result<Self> {
        let none = |why: String| Ok(Self { used: Vec::new(), why_none: why });
        if settings.number(Key::IbDisable) == 1 {
            return none("CCL_IB_DISABLE=1".into());
        }
        if !matches!(settings.text(Key::Transport), "" | "verbs") {
            // Nobody asked for them.
            return none(String::new());
        }
        let found = match scan(settings)? {
            Ok(found) => found,
            Err(why) => return none(why),
        };
        let mut used: Vec<Port> = Vec::new();
        let names: Vec<String> = found.iter().map(|one| format!("{}:{}", one.device, one.port)).collect();
        let mut why_none =
            format!("CCL_IB_HCA={} admits none of {}", settings.text(Key::IbHca), names.join(", "));
        for Found { device, port, state, gid, unused, .. } in found {
            // Ports of one lane must reach the ports of the other side.
            let is_other = used.first().is_some_and(|first| first.state.link_layer != state.link_layer);
            if unused == EXCLUDED || is_other {
                continue;
            }
            if !unused.is_empty() {
                why_none = format!("{device} port {port}: {unused}");
                continue;
            }
            match Hca::get(&device) {
                Ok(hca) => {
                    hca.watched().add(&hca, settings, port, gid);
                    let is_software = is_software(&device);
                    used.push(Port { hca, number: port, state, gid, is_software });
                }
                Err(e) => why_none = e.with_hint(),
            }
        }
        if !used.is_empty() {
            why_none.clear();
        }
        Ok(Self { used, why_none })
    }

    /// Whether the processors of this host do the work of a device.
    pub(crate) fn are_software(&self) -> bool {
        self.used.iter().any(|port| port.is_software)
    }

    /// What the others are told.
    pub(crate) fn reachable(&self) -> Option<Reachable> {
        let link_layer = self.used.first()?.state.link_layer.name().to_string();
        Some(Reachable { link_layer })
    }
}

/// Why a port is not used that the settings exclude.
const EXCLUDED: &str = "CCL_IB_HCA excludes it";
/// Why a port is not used over which nothing can be addressed.
const NO_ADDRESS: &str = "it has no address of RoCE version 2";
/// Why a port is not used that has not the address that was asked for.
pub const MISNAMED: &str = "CCL_IB_GID_INDEX names none of its addresses";

/// All ports of all devices, in the order of their names; the inner error says why there are none.
///
/// # Errors
/// `Usage` if a setting cannot be read.
pub fn scan(settings: &Settings) -> Result<std::result::Result<Vec<Found>, String>> {
    let filter = Filter::parse(settings.text(Key::IbHca))?;
    let wanted = settings.given(Key::IbGidIndex).map(gid_index).transpose()?;
    let mut names = match verbs::names() {
        Ok(names) => names,
        Err(why) => return Ok(Err(why)),
    };
    if names.is_empty() {
        let why = "libibverbs finds no device".to_string();
        let unlisted = of_kernel();
        return Ok(Err(match unlisted.is_empty() {
            true => why,
            false => format!("{why}, but the kernel has {}", unlisted.join(", ")),
        }));
    }
    names.sort();
    let mut found = Vec::new();
    let mut refused = Vec::new();
    for name in names {
        let opened = verbs::open(&name).and_then(|context| Ok((context.limits()?, context)));
        let (limits, context) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                refused.push(format!("{name} cannot be opened: {e}"));
                continue;
            }
        };
        for number in 1..=limits.ports {
            let Ok(state) = context.port(number) else { continue };
            let gids = gids(&context, number, state.gids);
            let gid = choose(&gids, state.link_layer, wanted);
            let mut unused = unused(&filter, (&name, number), &state, gid.is_some());
            if unused == NO_ADDRESS && wanted.is_some() {
                unused = MISNAMED.into();
            }
            let (device, limits) = (name.clone(), limits.clone());
            let pci = pci_of(&name);
            found.push(Found { device, limits, port: number, state, gids, gid, pci, unused });
        }
    }
    if found.is_empty() { Ok(Err(refused.join("; "))) } else { Ok(Ok(found)) }
}

fn gid_index(text: &str) -> Result<u8> {
    text.parse().map_err(|_| {
        Error::new(ErrorKind::Usage, format!("CCL_IB_GID_INDEX={text} is not valid"))
            .hint("it takes a number from 0 to 255")
    })
}

/// Why a port is not used; empty if it is.
fn unused(filter: &Filter, (device, port): (&str, u8), state: &PortState, has_gid: bool) -> String {
    if !filter.admits(device, port) {
        return EXCLUDED.into();
    }
    if !state.is_active() {
        return format!("its state is {}", state.state_name());
    }
    match state.link_layer {
        LinkLayer::Ethernet if !has_gid => NO_ADDRESS.into(),
        LinkLayer::InfiniBand if state.lid == 0 => "no subnet manager has given it a local identifier".into(),
        LinkLayer::Other => "its link is neither InfiniBand nor Ethernet".into(),
        LinkLayer::InfiniBand | LinkLayer::Ethernet => String::new(),
    }
}

/// The addresses of a port.
fn gids(context: &verbs::Context, port: u8, count: u32) -> Vec<Gid> {
    let entry = |index: u8| {
        let address = context.gid(port, index.into())?;
        // What libibverbs tells of it depends on its version; this file is as old as RoCE v2.
        let path = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", context.name());
        let kind = std::fs::read_to_string(path).unwrap_or_default();
        Some(Gid { index, address, is_v2: kind.trim() == "RoCE v2" })
    };
    (0..count.min(256) as u16).filter_map(|index| entry(u8::try_from(index).ok()?)).collect()
}

/// The address to use: with Ethernet one of RoCE version 2, of IPv4 if there is one, else one that
/// can be routed, else the first. With InfiniBand none: the local identifier is enough in a subnet.
fn choose(gids: &[Gid], link_layer: LinkLayer, wanted: Option<u8>) -> Option<Gid> {
    if let Some(wanted) = wanted {
        return gids.iter().find(|gid| gid.index == wanted).copied();
    }
    if link_layer != LinkLayer::Ethernet {
        return None;
    }
    let rank = |gid: &Gid| {
        let address = Ipv6Addr::from(gid.address);
        if address.to_ipv4_mapped().is_some() { 0 } else { 1 + u32::from(address.is_unicast_link_local()) }
    };
    gids.iter().filter(|gid| gid.is_v2).min_by_key(|gid| (rank(gid), gid.index)).copied()
}

/// The PCI address of a device; `None` of one that is software.
fn pci_of(device: &str) -> Option<String> {
    let path = std::fs::canonicalize(format!("/sys/class/infiniband/{device}/device")).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Whether the kernel does the work of a device: Linux's `rdma_rxe` names the network interface
/// below, and may have that one's PCI address.
fn is_software(device: &str) -> bool {
    Path::new(DEVICES).join(device).join("parent").exists() || pci_of(device).is_none()
}

/// Where the kernel shows its devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The devices of the kernel, by name. libibverbs lists only those that it has a provider for and
/// whose file is in `/dev/infiniband`.
#[must_use]
pub fn of_kernel() -> Vec<String> {
    let entries = std::fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, is_v2: bool) -> Gid {
        let address: Ipv6Addr = address.parse().unwrap();
        Gid { index, address: address.octets(), is_v2 }
    }

    #[test]
    fn the_address_is_one_of_roce_v2_that_reaches_furthest() {
        let all = [
            gid(0, "fe80::1", false),
            gid(1, "fe80::1", true),
            gid(2, "::ffff:10.0.0.1", false),
            gid(3, "::ffff:10.0.0.1", true),
            gid(4, "2001:db8::1", true),
        ];
        let check = |gids: &[Gid], layer, wanted, expect: Option<u8>| {
            assert_eq!(choose(gids, layer, wanted).map(|gid| gid.index), expect, "{gids:?} {wanted:?}");
        };
        check(&all, LinkLayer::Ethernet, None, Some(3));
        check(&all[..2], LinkLayer::Ethernet, None, Some(1));
        check(&[all[1], all[4]], LinkLayer::Ethernet, None, Some(4));
        check(&all[..1], LinkLayer::Ethernet, None, None);
        check(&all, LinkLayer::Ethernet, Some(0), Some(0));
        check(&all, LinkLayer::Ethernet, Some(9), None);
        check(&all, LinkLayer::InfiniBand, None, None);
        assert_eq!((all[3].text(), all[4].text()), ("10.0.0.1".into(), "2001:db8::1".into()));
    }

    #[test]
    fn a_port_that_is_not_used_says_why() {
        let state = PortState {
            state: PortState::ACTIVE,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            mtu: 5,
            speed: 32,
            width: 2,
            gids: 2,
        };
        assert_eq!((state.speed_mbps(), state.mtu_bytes()), (100_000, 4096));
        let check = |filter: &str, state: PortState, has_gid, expect: &str| {
            let filter = Filter::parse(filter).unwrap();
            assert_eq!(unused(&filter, ("rxe0", 1), &state, has_gid), expect);
        };
        check("", state, true, "");
        check("^rxe", state, true, "CCL_IB_HCA excludes it");
        check("", PortState { state: 1, ..state }, true, "its state is down");
        check("", state, false, "it has no address of RoCE version 2");
        let infiniband = PortState { link_layer: LinkLayer::InfiniBand, ..state };
        check("", infiniband, false, "no subnet manager has given it a local identifier");
        check("", PortState { lid: 4, ..infiniband }, false, "");
    }
}
