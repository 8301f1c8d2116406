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
use crate::types::{CommId, Rank};

/// A lane from rank 0 on the first port to rank 1 on the last one, with these settings; `None` if
/// there is no port.
pub(crate) fn lane(with: &[(Key, &str)]) -> Option<(Sender, Receiver)> {
    let mut settings = Settings::default();
    with.iter().for_each(|(key, value)| settings.set(*key, value).unwrap());
    let ports = Ports::of(&settings).unwrap();
    if ports.used.is_empty() {
        assert!(!ports.why_none.is_empty());
        return None;
    }
    let owner = |rank| {
        let identity = Identity { comm: CommId(1), rank: Rank(rank) };
        RankMemory::shared(identity, Layout::new(2, 1).unwrap(), &Arena::new().unwrap()).unwrap()
    };
    let terms = Terms::of(&settings);
    let make = |port: &Port, rank, role| {
        Unconnected::make(std::slice::from_ref(port), None, &owner(rank), (role, &terms)).unwrap()
    };
    let ours = make(&ports.used[0], 0, Role::Writer);
    let theirs = make(ports.used.last().unwrap(), 1, Role::Reader);
    let (offer, answer) = (ours.told(0), theirs.told(0));
    let theirs = theirs.connect(&offer, Rank(0)).unwrap();
    let ours = ours.connect(&answer, Rank(1)).unwrap();
    let (a, b) = UnixStream::pair().unwrap();
    let line = |stream: UnixStream| Line::new(Arc::new(Fd::new(stream.into())));
    Some((writer(ours, line(a)), Receiver::new(theirs, line(b))))
}
