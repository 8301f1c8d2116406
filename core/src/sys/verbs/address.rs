//! The address of a port.

use std::fmt;
use std::net::Ipv6Addr;

/// By which address a port is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// The local identifier in a subnet of InfiniBand.
    Lid(u16),
    /// A global identifier.
    Gid([u8; 16]),
}

impl Address {
    /// Whether it is a global identifier.
    #[must_use]
    pub const fn is_gid(&self) -> bool {
        matches!(self, Self::Gid(_))
    }
    /// It as two words, which do not say which kind it is.
    #[must_use]
    pub fn words(&self) -> [u64; 2] {
        match self {
            Self::Lid(lid) => [u64::from(*lid), 0],
            Self::Gid(gid) => {
                let all = u128::from_le_bytes(*gid);
                [all as u64, (all >> 64) as u64]
            }
        }
    }
    /// The address of these words.
    #[must_use]
    pub fn of_words([low, high]: [u64; 2], is_gid: bool) -> Self {
        let all = u128::from(low) | u128::from(high) << 64;
        if is_gid { Self::Gid(all.to_le_bytes()) } else { Self::Lid(low as u16) }
    }
}

/// `lid 3`, or an address of IPv6 or IPv4.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lid(lid) => write!(f, "lid {lid}"),
            Self::Gid(gid) => {
                let address = Ipv6Addr::from(*gid);
                match address.to_ipv4_mapped() {
                    Some(v4) => v4.fmt(f),
                    None => address.fmt(f),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_words_and_reads_as_operators_write_it() {
        let gid = |text: &str| Address::Gid(text.parse::<Ipv6Addr>().unwrap().octets());
        let all =
            [(Address::Lid(3), "lid 3"), (gid("::ffff:10.0.0.2"), "10.0.0.2"), (gid("fe80::1"), "fe80::1")];
        for (address, text) in all {
            assert_eq!(Address::of_words(address.words(), address.is_gid()), address);
            assert_eq!(address.to_string(), text);
        }
    }
}
