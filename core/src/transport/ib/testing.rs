//! Lanes over real queue pairs, for tests on a machine that has devices.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::line::Line;
use super::link::{Receiver, Sender};
use super::port::{Port, Ports};
use super::setup::{Role, Terms, Unconnected, writer};
use crate::config::{Key, Settings};
use crate::sys::fds::Fd;
use crate::transport::shm::arena::Arena;
use crate::transport::shm::memory::{Identity, Layout, RankMemory};
use crate::types::{ChannelId, CommId, Rank};

/// The ports that these settings admit, and the terms of lanes; `None` if there is no port.
pub(super) fn terms(with: &[(Key, &str)]) -> Option<(Vec<Port>, Terms)> {
    let mut settings = Settings::default();
    with.iter().for_each(|(key, value)| settings.set(*key, value).unwrap());
    let ports = Ports::of(&settings).unwrap();
    if ports.used.is_empty() {
        assert!(!ports.why_none.is_empty());
        return None;
    }
    Some((ports.used, Terms::of(&settings)))
}

/// The memory of a rank.
pub(super) fn owner(rank: u32) -> Arc<RankMemory> {
    let identity = Identity { comm: CommId(1), rank: Rank(rank) };
    RankMemory::shared(identity, Layout::new(2, 1).unwrap(), &Arena::new().unwrap()).unwrap()
}

/// One end of the connection over which a lane was set up.
pub(super) fn line(stream: UnixStream) -> Line {
    Line::new(Arc::new(Fd::new(stream.into())))
}

/// The writing end of a lane from rank 0 on the first port, and the reading end at rank 1 on the
/// last one, neither of them connected.
pub(super) fn ends((ports, terms): &(Vec<Port>, Terms)) -> [Unconnected; 2] {
    [(ports.first(), 0, Role::Writer), (ports.last(), 1, Role::Reader)].map(|(port, rank, role)| {
        Unconnected::make(
            port.map_or(&[], std::slice::from_ref),
            None,
            &owner(rank),
            (role, terms),
            ChannelId::P2P,
        )
        .unwrap()
    })
}

/// A lane from rank 0 to rank 1, with these settings; `None` if there is no port.
pub(crate) fn lane(with: &[(Key, &str)]) -> Option<(Sender, Receiver)> {
    let [ours, theirs] = ends(&terms(with)?);
    let (offer, answer) = (ours.told(ChannelId::P2P.0), theirs.told(ChannelId::P2P.0));
    let theirs = theirs.connect(&offer, Rank(0)).unwrap();
    let ours = ours.connect(&answer, Rank(1)).unwrap();
    let (a, b) = UnixStream::pair().unwrap();
    Some((writer(ours, line(a)), Receiver::new(theirs, line(b))))
}
