//! The network between a rank that waits and the awaited one: what the kernel's counters of streams
//! and the work requests of queue pairs say of it.

use std::collections::BTreeSet;

use super::process;
use crate::diagnose::standing::SUSPECT_NS;
use crate::diagnose::{call_name, comm_name, duration, ranks_text};
use crate::snapshot::{
    BlockedOn, Class, CommSnapshot, Confidence, Culprit, Direction, LinkSnapshot, OpState, QueuePairSnapshot,
    RankSnapshot, Reason, Side, Snapshot, SocketSnapshot, Standing, State, TcpState, Verdict, WaitingLink,
    WorkFailure,
};
use crate::sys::verbs::words::cause;
use crate::types::{CommId, Rank};

/// How many times as long as half of its kind and size an operation must take to be overdue.
const MANY: u64 = 4;
/// How many times as long as any before, where it has not been called often.
const MANY_OF_FEW: u64 = 8;
/// The status of work requests that failed because one before them had: `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;
/// A host that is silent for this long does not answer; sooner, what is resent may get through.
const SILENT_NS: u64 = 2_000_000_000;

/// A stream or queue pair that does not carry what it should.
pub(super) struct Bad<'a> {
    pub(super) reason: Reason,
    /// The ranks of the communicator at its ends: that whose it is, and the other.
    pub(super) ends: (Rank, Rank),
    way: Way<'a>,
}

enum Way<'a> {
    Stream(&'a SocketSnapshot),
    /// And for how long what it was to write has stood.
    QueuePair(&'a QueuePairSnapshot, u64),
}

/// The worst stream or queue pair between the rank that waits and the one it waits for; where all
/// wait for each other, of all of the communicator. A stream is bad on which an answer is overdue,
/// that resends, or that had something to send for half of a second and more, while the receiver
/// would have taken it: a wait is for a single message, which takes far less. A queue pair is bad
/// that has failed, or on which work stands.
pub(super) fn bad<'a>(job: &'a Snapshot, one: &BlockedOn) -> Option<Bad<'a>> {
    let link = one.link.as_ref().map(|link| (link.rank, link.peer));
    let is_between = |rank: Rank, peer: Rank| {
        let is_it = link.is_some_and(|(a, b)| (a, b) == (rank, peer) || (b, a) == (rank, peer));
        is_it || (one.culprits.is_empty() && one.unseen.is_empty())
    };
    let rows = job.ranks.iter().flat_map(|rank| rank.comms.iter().map(move |row| (rank, row)));
    let mut found = Vec::new();
    for (rank, row) in rows.filter(|(_, row)| row.id == one.comm) {
        // A rank sees completions only while it waits in a call and can run.
        let sees = row.operation().state == OpState::Running && process::condition(job, rank).is_none();
        let links = row.links.iter().filter_map(|link| Some((link.peer?, link)));
        for (peer, link) in links.filter(|(peer, _)| is_between(row.rank, *peer)) {
            let ends = (row.rank, peer);
            let streams = link
                .sockets
                .iter()
                .filter_map(|socket| Some(Bad { reason: fault(socket)?, ends, way: Way::Stream(socket) }));
            let pairs = link.queue_pairs.iter().filter(|_| sees).filter_map(|pair| {
                let waited_ns = one.since_ns.min(row.operation().age_ns);
                let way = Way::QueuePair(pair, stands_ns(link, pair, waited_ns)?);
                Some(Bad { reason: Reason::Unreachable, ends, way })
            });
            found.extend(streams.chain(pairs));
        }
    }
    // A stream that loses much is also held up by that.
    found.into_iter().min_by_key(|bad| match bad.reason {
        Reason::Unreachable => 0,
        Reason::Lossy => 1,
        _ => 2,
    })
}

/// All are inside an operation, and one of the lanes between them is not up.
pub(super) fn not_set_up(
    job: &Snapshot,
    one: &BlockedOn,
    link: &WaitingLink,
    (op, is_past): (&str, bool),
) -> String {
    let [rank, peer] = [link.rank, link.peer].map(|rank| job.job_rank(one.comm, rank));
    let [from, to] = if link.direction == Direction::Recv { [peer, rank] } else { [rank, peer] };
    let (are, wait, is) = if is_past { ("were", "waited", "was") } else { ("are", "wait", "is") };
    let channel = link.channel;
    format!(
        "all ranks {are} inside {op} and {wait} for each other: the lane from rank {from} to rank {to} on channel {channel} {is} not set up"
    )
}

/// For how long a queue pair has failed, or what it was to write stands, where its rank has waited
/// for so long. The other side's device answers whatever its process does.
fn stands_ns(link: &LinkSnapshot, pair: &QueuePairSnapshot, waited_ns: u64) -> Option<u64> {
    if let Some(error) = &pair.error {
        return (error.status != FLUSHED).then_some(error.ago_ns);
    }
    let stands_ns = pair.completed_ns.unwrap_or(u64::MAX).min(waited_ns);
    (is_owed(link, pair) && stands_ns >= SUSPECT_NS).then_some(stands_ns)
}

/// Whether messages that were written are unanswered. Of what a reader writes nobody awaits the
/// answer, and nobody looks for it until the lane is used again.
fn is_owed(link: &LinkSnapshot, pair: &QueuePairSnapshot) -> bool {
    link.direction == Direction::Send && link.moved < link.posted && pair.outstanding() > 0
}

/// The queue pairs of a communicator that failed, the first first, and then those on which work
/// stood when the communicator failed so long ago; each with its rank and the rank on its other
/// side. Those that failed because others had are left out.
pub(super) fn bad_pairs(
    job: &Snapshot,
    comm: CommId,
    since_ns: u64,
) -> Vec<(Rank, Rank, &QueuePairSnapshot)> {
    // Whether it only stood, and since when.
    let bad = |link: &LinkSnapshot, pair: &QueuePairSnapshot| match &pair.error {
        Some(error) => (error.status != FLUSHED).then_some((false, error.ago_ns)),
        None => {
            let completed_ns = pair.completed_ns.unwrap_or(u64::MAX);
            let stood = is_owed(link, pair) && completed_ns >= since_ns.saturating_add(SUSPECT_NS);
            stood.then_some((true, completed_ns))
        }
    };
    let mut found = Vec::new();
    for row in job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| row.id == comm) {
        for (peer, link) in row.links.iter().filter_map(|link| Some((link.peer?, link))) {
            let pairs = link.queue_pairs.iter();
            found.extend(pairs.filter_map(|pair| Some((bad(link, pair)?, (row.rank, peer, pair)))));
        }
    }
    found.sort_by_key(|((stood, since), _)| (*stood, std::cmp::Reverse(*since)));
    found.into_iter().map(|(_, one)| one).collect()
}

/// The communicators of which an operation moves, but has taken far longer than usual, while a
/// stream is held up by the network.
pub(super) fn slow(job: &Snapshot, known: &[CommId]) -> Vec<Verdict> {
    let comms = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| !known.contains(&row.id));
    let comms: BTreeSet<CommId> = comms.filter(|row| is_overdue(job, row)).map(|row| row.id).collect();
    comms.into_iter().filter_map(|comm| of_comm(job, comm)).collect()
}

/// Whether the operation under way has taken many times as long as it takes usually: then those
/// before may have been held up, too. Not if most of that was a wait for ranks that have not called
/// it.
fn is_overdue(job: &Snapshot, row: &CommSnapshot) -> bool {
    let is_it = |one: &&BlockedOn| (one.comm, &one.op, one.seq) == (row.id, &row.op.kind, row.op.seq);
    let mut absent = job.blocked_on.iter().filter(is_it).filter(|one| !one.missing.is_empty());
    if absent.any(|one| one.since_ns >= row.op.age_ns / 2) {
        return false;
    }
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
    let row =
        job.ranks.iter().flat_map(|rank| &rank.comms).find(|row| row.id == comm && is_overdue(job, row))?;
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
    /// The rank whose device does not answer a queue pair. Of a stream either end may be silent.
    pub(super) const fn silent(&self) -> Option<Rank> {
        match self.way {
            Way::Stream(_) => None,
            Way::QueuePair(..) => Some(self.ends.1),
        }
    }
    /// A sentence on a queue pair whose writes are not answered; `None` for others.
    pub(super) fn text(&self, job: &Snapshot, comm: CommId) -> Option<String> {
        let Way::QueuePair(QueuePairSnapshot { device, port, peer_address, error: None, .. }, _) = self.way
        else {
            return None;
        };
        let [rank, peer] = [self.ends.0, self.ends.1].map(|rank| job.job_rank(comm, rank));
        Some(format!(
            "nothing that rank {rank} writes from {device} port {port} to rank {peer} ({peer_address}) is answered: port, \
             cable or switch, or its host"
        ))
    }

    /// What was seen.
    pub(super) fn evidence(&self) -> String {
        let socket = match self.way {
            Way::Stream(socket) => socket,
            Way::QueuePair(pair, since_ns) => return of_pair(pair, since_ns),
        };
        let SocketSnapshot { local, remote, state, busy_pct, rwnd_pct, resent, unsent_bytes, .. } = socket;
        match self.reason {
            Reason::Unreachable => format!(
                "the stream {local} to {remote} is {state}, {} tries unanswered, nothing heard for {}",
                socket.unanswered(),
                duration(socket.heard_ns)
            ),
            _ => format!(
                "the stream {local} to {remote} had something to send in {busy_pct} % of a second, was held up by the \
                 receiver in {rwnd_pct} %, resent {resent} segments, and has {unsent_bytes} bytes unsent"
            ),
        }
    }
}

/// `queue pair 17 on rxe0 port 1 (10.89.0.1) to 18 (10.89.0.2) is RTS, 2 of 9 writes unanswered for
/// 4 s`.
pub(super) fn of_pair(pair: &QueuePairSnapshot, since_ns: u64) -> String {
    let QueuePairSnapshot { state, posted, error, .. } = pair;
    match error {
        Some(error) => failure(pair, error),
        None => {
            let (open, since) = (pair.outstanding(), duration(since_ns));
            format!("{} is {state}, {open} of {posted} writes unanswered for {since}", pair.ends())
        }
    }
}

/// Why a queue pair failed.
fn failure(pair: &QueuePairSnapshot, error: &WorkFailure) -> String {
    let WorkFailure { status, name, ago_ns, .. } = error;
    let ago = duration(*ago_ns);
    format!("{} failed {ago} ago with {name} ({status}): {}", pair.ends(), cause(*status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_is_not_set_up_is_named_by_who_writes_it() {
        let text = |direction| {
            let link = WaitingLink { rank: Rank(3), peer: Rank(1), direction, ..WaitingLink::default() };
            not_set_up(&Snapshot::default(), &BlockedOn::default(), &link, ("AllReduce #1 of dp", false))
        };
        let all = "all ranks are inside AllReduce #1 of dp and wait for each other: the lane from";
        assert_eq!(text(Direction::Recv), format!("{all} rank 1 to rank 3 on channel 0 is not set up"));
        assert_eq!(text(Direction::Send), format!("{all} rank 3 to rank 1 on channel 0 is not set up"));
    }
}
