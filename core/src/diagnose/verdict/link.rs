//! What the kernel's counters say of the network between a rank that waits and the awaited one.

use std::collections::BTreeSet;

use super::process;
use crate::diagnose::standing::SUSPECT_NS;
use crate::diagnose::{call_name, comm_name, duration, ranks_text};
use crate::snapshot::{
    BlockedOn, Class, CommSnapshot, Confidence, Culprit, OpState, RankSnapshot, Reason, Side, Snapshot,
    SocketSnapshot, Standing, State, TcpState, Verdict,
};
use crate::types::{CommId, Rank};

/// How many times as long as half of its kind and size an operation must take to be overdue.
const MANY: u64 = 4;
/// How many times as long as any before, where it has not been called often.
const MANY_OF_FEW: u64 = 8;
/// A host that is silent for this long does not answer; sooner, what is resent may get through.
const SILENT_NS: u64 = 2_000_000_000;

/// A stream that does not carry what it should.
pub(super) struct Bad<'a> {
    pub(super) reason: Reason,
    /// The ranks of the communicator at its ends: that whose socket it is, and the other.
    pub(super) ends: (Rank, Rank),
    socket: &'a SocketSnapshot,
}

/// The worst stream between the rank that waits and the one it waits for; where all wait for each
/// other, of all streams of the communicator. A stream is bad on which an answer is overdue, that
/// resends, or that had something to send for half of a second and more, while the receiver would
/// have taken it: a wait is for a single message, which takes far less.
pub(super) fn bad<'a>(job: &'a Snapshot, one: &BlockedOn) -> Option<Bad<'a>> {
    let link = one.link.as_ref().map(|link| (link.rank, link.peer));
    let is_between = |rank: Rank, peer: Rank| {
        let is_it = link.is_some_and(|(a, b)| (a, b) == (rank, peer) || (b, a) == (rank, peer));
        is_it || (one.culprits.is_empty() && one.unseen.is_empty())
    };
    let rows = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| row.id == one.comm);
    let links = rows.flat_map(|row| row.links.iter().filter_map(|link| Some((row.rank, link.peer?, link))));
    let links = links.filter(|(rank, peer, _)| is_between(*rank, *peer));
    let sockets =
        links.flat_map(|(rank, peer, link)| link.sockets.iter().map(move |socket| (rank, peer, socket)));
    let bad = sockets.filter_map(|(rank, peer, socket)| {
        fault(socket).map(|reason| Bad { reason, ends: (rank, peer), socket })
    });
    // A stream that loses much is also held up by that.
    bad.min_by_key(|bad| match bad.reason {
        Reason::Unreachable => 0,
        Reason::Lossy => 1,
        _ => 2,
    })
}

/// The communicators of which an operation moves, but has taken far longer than usual, while a
/// stream is held up by the network.
pub(super) fn slow(job: &Snapshot, known: &[CommId]) -> Vec<Verdict> {
    let comms = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| !known.contains(&row.id));
    let comms: BTreeSet<CommId> = comms.filter(|row| is_overdue(row)).map(|row| row.id).collect();
    comms.into_iter().filter_map(|comm| of_comm(job, comm)).collect()
}

/// Whether the operation under way has taken many times as long as it takes usually: then those
/// before may have been held up, too.
fn is_overdue(row: &CommSnapshot) -> bool {
    let lasted = row.history.ops.iter().map(|op| op.ended_ns.saturating_sub(op.called_ns)).max();
    let due_ns = match row.op.p50_ns {
        0 => lasted.map(|longest| longest.saturating_mul(MANY_OF_FEW)),
        usual_ns => Some(usual_ns.saturating_mul(MANY)),
    };
    let is_running = !row.ended && row.op.state == OpState::Running;
    is_running && due_ns.is_some_and(|due_ns| row.op.age_ns >= due_ns.max(SUSPECT_NS))
}

fn of_comm(job: &Snapshot, comm: CommId) -> Option<Verdict> {
    let of_rank = |rank: &RankSnapshot| rank.comms.iter().any(|row| row.id == comm);
    let is_running = |rank: &RankSnapshot| rank.state == State::Running;
    if !job.ranks.iter().filter(|rank| of_rank(rank)).all(is_running) {
        return None;
    }
    let one = BlockedOn { comm, ..BlockedOn::default() };
    let bad = bad(job, &one).filter(|bad| bad.reason != Reason::Unreachable)?;
    let row = job.ranks.iter().flat_map(|rank| &rank.comms).find(|row| row.id == comm && is_overdue(row))?;
    let ends = job.job_ranks(comm, &[bad.ends.0, bad.ends.1]);
    let culprits: Vec<Culprit> =
        ends.iter().filter_map(|rank| process::of(job, *rank)).map(process::culprit).collect();
    let does = if bad.reason == Reason::Lossy { "loses what is sent" } else { "carries less than is sent" };
    let (op, since_ns) = (call_name(&row.op.kind, row.op.seq), row.op.age_ns);
    let why = format!(
        "the network between {} {does}; {op} of {} moves, and has taken {} so far",
        ranks_text(&ends),
        comm_name(&row.name, comm),
        duration(since_ns)
    );
    Some(Verdict {
        class: Class::Link,
        standing: Standing::Suspect,
        reason: bad.reason,
        victims: job.ranks.iter().filter(|rank| of_rank(rank)).map(|rank| rank.rank).collect(),
        comm,
        name: row.name.clone(),
        op: row.op.kind.clone(),
        seq: row.op.seq,
        since_ns,
        side: Side::Network,
        confidence: Confidence::Probable,
        why,
        evidence: vec![bad.evidence()],
        culprits,
        ..Verdict::default()
    })
}

fn fault(socket: &SocketSnapshot) -> Option<Reason> {
    let is_refused = socket.state == TcpState::SynSent && socket.age_ns >= SUSPECT_NS;
    match () {
        () if is_refused => Some(Reason::Unreachable),
        // An answer is overdue: it may be lost, as others may.
        () if socket.unanswered() > 0 => (socket.heard_ns >= SILENT_NS).then_some(Reason::Unreachable),
        () if socket.resent > 0 => Some(Reason::Lossy),
        () if socket.is_held_up() => Some(Reason::Throttled),
        () => None,
    }
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
