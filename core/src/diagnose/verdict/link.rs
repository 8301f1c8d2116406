//! What the kernel's counters say of the network between a rank that waits and the rank it waits for.

use super::SUSPECT_NS;
use crate::diagnose::duration;
use crate::snapshot::{BlockedOn, Reason, Snapshot, SocketSnapshot, TcpState, WaitingLink};
use crate::types::Rank;

/// A stream that does not carry what it should.
pub(super) struct Bad<'a> {
    pub(super) reason: Reason,
    socket: &'a SocketSnapshot,
}

/// The worst stream between the rank that waits and the one it waits for: one on which an answer is
/// overdue, one that resends, or one that had something to send for half of a second and more,
/// while the receiver would have taken it. A wait is for a single message, which takes far less.
pub(super) fn bad<'a>(job: &'a Snapshot, one: &BlockedOn) -> Option<Bad<'a>> {
    let WaitingLink { rank, peer, .. } = *one.link.as_ref()?;
    let of = |at: Rank, to: Rank| {
        let rows = job.ranks.iter().flat_map(|rank| &rank.comms);
        let rows = rows.filter(move |row| (row.id, row.rank) == (one.comm, at));
        let links = rows.flat_map(|row| &row.links).filter(move |link| link.peer == Some(to));
        links.flat_map(|link| &link.sockets)
    };
    let is_silent = |socket: &SocketSnapshot| {
        socket.unanswered() > 0 || (socket.state == TcpState::SynSent && socket.age_ns >= SUSPECT_NS)
    };
    let tests: [(Reason, &dyn Fn(&SocketSnapshot) -> bool); 3] = [
        (Reason::Unreachable, &is_silent),
        (Reason::Lossy, &|socket| socket.resent > 0),
        (Reason::Throttled, &|socket| socket.is_held_up()),
    ];
    tests.into_iter().find_map(|(reason, is)| {
        let socket = of(rank, peer).chain(of(peer, rank)).find(|socket| is(socket))?;
        Some(Bad { reason, socket })
    })
}

impl Bad<'_> {
    /// What was seen.
    pub(super) fn evidence(&self) -> String {
        let SocketSnapshot { local, remote, state, busy_pct, rwnd_pct, resent, unsent_bytes, .. } =
            self.socket;
        match self.reason {
            Reason::Unreachable => format!(
                "the stream {local} to {remote} is {state}, {} tries unanswered, nothing heard for {}",
                self.socket.unanswered(),
                duration(self.socket.heard_ns)
            ),
            _ => format!(
                "the stream {local} to {remote} had something to send in {busy_pct} % of a second, was held up by the \
                 receiver in {rwnd_pct} %, resent {resent} segments, and has {unsent_bytes} bytes unsent"
            ),
        }
    }
}
