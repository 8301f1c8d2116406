//! A public address: rank 0 listens there, and every rank makes the same id for itself.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Place, means_this_host};
use crate::bootstrap::auth::Key;
use crate::bootstrap::id::{Address, UniqueId};
use crate::bootstrap::interfaces;
use crate::bootstrap::root_task::{RootHandle, serve_public};
use crate::config::Settings;
use crate::error::Result;

pub(super) fn meet(
    address: &Address,
    place: Place,
    key: Key,
    instance: u32,
    settings: &Settings,
) -> Result<(UniqueId, Option<RootHandle>)> {
    let mut root = address.resolve(settings)?;
    let bind = match address {
        Address::Literal(literal) => *literal,
        // What a name means differs from host to host, its own host's view of it most of all.
        Address::Name(..) if root.is_ipv4() => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), root.port()),
        Address::Name(..) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), root.port()),
    };
    if means_this_host(address, root.ip()) {
        root.set_ip(interfaces::choose(settings, None)?.ip);
    }
    let id = UniqueId { nranks: place.nranks, ..UniqueId::public(root, key, instance) };
    let held = match place.rank.0 {
        0 => Some(serve_public(&id, place.nranks, bind, settings)?),
        _ => None,
    };
    Ok((id, held))
}
