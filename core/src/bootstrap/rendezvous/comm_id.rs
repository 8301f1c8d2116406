//! A public address: rank 0 listens there, and every rank computes the same id.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::{Assignment, means_this_host};
use crate::bootstrap::auth::{Handshake, Hello, Nonce, Purpose};
use crate::bootstrap::greet::run_connector;
use crate::bootstrap::id::{Address, UniqueId, job_secret};
use crate::bootstrap::interfaces;
use crate::bootstrap::launch::Origin;
use crate::bootstrap::messages::ToRoot;
use crate::bootstrap::root::CLAIM;
use crate::bootstrap::root_task::{RootHandle, serve_public};
use crate::clock;
use crate::config::Settings;
use crate::error::Result;
use crate::types::Rank;

/// How long the rank 0 of another job may take to learn of this one.
const CLAIM_WITHIN: Duration = Duration::from_secs(2);

pub(super) fn meet(
    address: &Address,
    place: Assignment,
    instance: u32,
    origin: Origin,
    settings: &Settings,
) -> Result<(UniqueId, Option<RootHandle>)> {
    let mut root = address.resolve(settings)?;
    let bind = match address {
        Address::Literal(literal) => *literal,
        // A name may resolve differently on each host, most of all on the host that it names, so
        // rank 0 listens at all addresses.
        Address::Name(..) if root.is_ipv4() => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), root.port()),
        Address::Name(..) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), root.port()),
    };
    if means_this_host(address, root.ip()) {
        root.set_ip(interfaces::choose(settings, None)?.ip);
    }
    let id = UniqueId { nranks: place.nranks, ..UniqueId::public(root, &job_secret(settings)?, instance) };
    let held = match place.rank.0 {
        0 => Some(serve_public(&id, place.nranks, bind, origin, settings).inspect_err(|error| {
            if error.is_in_use() {
                claim(&id, origin);
            }
        })?),
        _ => None,
    };
    Ok((id, held))
}

/// Tells the rank 0 that holds the address that another rank 0 exists, so that it does not admit
/// ranks of this job as its own. If this fails, something other than a rank 0 holds the address.
pub(super) fn claim(id: &UniqueId, origin: Origin) {
    let deadline = clock::now().after(CLAIM_WITHIN);
    let Ok(mut stream) = TcpStream::connect_timeout(&id.root, CLAIM_WITHIN) else { return };
    let hello = Hello {
        count: id.nranks,
        index: CLAIM,
        ..Hello::new(Purpose::Root, id.asked(), id.comm(), Rank(0), Rank(0))
    };
    let Ok(nonce) = Nonce::draw() else { return };
    let handshake = if id.stretches {
        Handshake::connect_stretching(id.key.clone(), hello, nonce)
    } else {
        Handshake::connect(id.key.clone(), hello, nonce)
    };
    if run_connector(&mut stream, handshake, deadline).is_err() {
        return;
    }
    let left = deadline.since(clock::now()).max(Duration::from_millis(1));
    let mut say = || {
        stream.set_read_timeout(Some(left))?;
        stream.write_all(&ToRoot::CheckIn(id.root, origin).encode())?;
        // Two bytes show that the message was read: the one that lets this process in, and the
        // first one of the answer, whatever the answer is.
        stream.read_exact(&mut [0; 2])
    };
    let _ = say();
}
