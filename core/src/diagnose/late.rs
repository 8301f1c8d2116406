//! Who is late: from the times at which the ranks of a communicator called its collectives.
//!
//! All ranks keep the times of the same operations. In each, the rank that called last is the one
//! that the others waited for; how long those waits were the others know themselves. So the times
//! inside say nothing about who is late (they are longest on the victims), and nothing is inferred
//! from the neighbours of a ring.
//!
//! A *straggler* was last in four of five of at least ten recent operations, and cost the others a
//! tenth of their time. Of many ranks that share few processors each is late at times: there one
//! that was last three times as often as ranks are on the mean, and cost three times as much as any
//! other, is a straggler too. One pause is one operation, so it never makes one; nor do
//! operations that took much longer than most, as while a debugger looked at a process.
//!
//! Of an operation with a root, ranks come out at different times by nature: the root of a gather
//! ends last, since the others only send, and then calls the next one last. There a rank is late
//! only by as much as it spends between its operations more than others do.
//!
//! Who is not last that often, but busy for most of the time while the others wait for it, is a
//! straggler too (`late/busy.rs`).

mod busy;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::diagnose::is_pair;
use crate::snapshot::{ClockOffset, CommSnapshot, KindTotals, PastOp, RankSnapshot, Snapshot};
use crate::types::{CommId, Rank};

/// Operations before this moment do not count where there are enough later ones.
const WINDOW_NS: u64 = 10_000_000_000;
/// As many operations count even if they are older.
const WINDOW_OPS: usize = 16;
/// A straggler is found in no fewer operations.
const LEAST_OPS: u64 = 10;
/// From so many ranks and operations on, costs may decide where a rank was last less often: among
/// fewer, chance would decide.
const COSTS_DECIDE: (u64, u64) = (4, 16);
/// Operations that take so many times as long as half of them are pauses, and cost nothing.
const PAUSE: u64 = 10;
/// Twice what an anchor's readings are apart, and what its conversion adds: times of two processes
/// of a kernel that differ by less are equal.
const SAME_KERNEL_ERROR_NS: u64 = 5_000;
/// If at least one in this many operations has a root, a rank's call time depends on when its
/// previous operation ended. Fewer operations with a root cannot make one rank a straggler.
const ROOTED: u64 = 4;
/// The kinds of which no rank ends before the last rank has called.
const SYNCHRONIZING: [&str; 5] = ["AllReduce", "AllGather", "ReduceScatter", "Barrier", "AllToAll"];

/// The lateness of the ranks of one communicator, over its recent operations.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Lateness {
    /// The communicator.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The number of its ranks.
    pub nranks: u32,
    /// The number of operations that are compared: recent ones that all compared ranks kept.
    pub ops: u64,
    /// The number of the first call among them.
    pub first_seq: u64,
    /// The number of the last call among them.
    pub last_seq: u64,
    /// The mean time from the end of one operation to the end of the next.
    pub op_ns: u64,
    /// Lateness below this is not told apart from none: the clocks are not better.
    pub error_ns: u64,
    /// The ranks that are compared, in order.
    pub ranks: Vec<RankLateness>,
    /// The rank that is late again and again at the cost of the others; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler: Option<Rank>,
    /// For how long the straggler was busy while the others waited; absent if it was last often
    /// enough to be one by that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
    /// Why not all ranks, or none, are compared; absent if all are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub incomplete: String,
}

/// The lateness of one rank.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RankLateness {
    /// The rank in the communicator.
    pub rank: Rank,
    /// The rank in the job.
    pub job_rank: Rank,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// In how many of the operations it was the last to call.
    pub last: u64,
    /// Half of the calls were later than the first rank's call by at most this.
    pub late_p50_ns: u64,
    /// Of 100 calls, 95 were.
    pub late_p95_ns: u64,
    /// What an operation cost the others, on the mean, because this rank called last: how long
    /// they had waited when it called; of operations with a root, only as far as this rank had
    /// spent more time between its operations than another.
    pub cost_ns: u64,
    /// By how many times operations take longer because of that; 1.0 is the best.
    pub score: f64,
    /// The time outside of operations and in them without waiting, of all operations so far.
    pub self_ns: u64,
    /// The time for which it waited for other ranks, in all operations so far.
    pub waited_ns: u64,
}

/// For how long a straggler was busy while others waited for it, but for its longest pauses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Busy {
    /// The time that is judged.
    pub span_ns: u64,
    /// For how long of it the straggler did not wait for other ranks.
    pub own_ns: u64,
    /// The same of the rank of the others that waited least.
    pub others_ns: u64,
}

impl Lateness {
    /// The straggler's line.
    #[must_use]
    pub fn straggler(&self) -> Option<&RankLateness> {
        self.straggler.and_then(|straggler| self.ranks.iter().find(|one| one.rank == straggler))
    }
}

/// The clock of the kernel on which most ranks of a job live, and of ranks that were gathered,
/// whose times were moved to that clock; `None` for ranks of other kernels.
pub fn kernel_clock(job: &Snapshot) -> impl Fn(&RankSnapshot) -> Option<ClockOffset> + use<> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in job.ranks.iter().filter(|rank| rank.clock_error_ns.is_none()) {
        *counts.entry(&rank.boot_id).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(boot, _)| boot.to_string());
    move |rank| {
        let is_same = most.as_ref() == Some(&rank.boot_id);
        let error_ns = rank.clock_error_ns.or_else(|| is_same.then_some(0))?;
        Some(ClockOffset { offset_ns: 0, error_ns: error_ns.saturating_add(SAME_KERNEL_ERROR_NS) })
    }
}

/// The lateness in each communicator of a job in which an operation has ended, the largest first.
///
/// `clock` says how a rank's clock differs from the others'; ranks without an answer are not
/// compared. [`kernel_clock`] is the answer where nothing was measured.
#[must_use]
pub fn lateness(job: &Snapshot, clock: impl Fn(&RankSnapshot) -> Option<ClockOffset>) -> Vec<Lateness> {
    let mut found: Vec<Lateness> =
        members(job).into_values().map(|members| of_comm(&members, &clock)).collect();
    found.retain(|one| one.last_seq > 0 || !one.incomplete.is_empty());
    found.sort_by_key(|one| (std::cmp::Reverse(one.nranks), one.name.clone(), one.comm));
    found
}

/// The rows of one communicator by rank, with their processes.
pub(super) type Members<'a> = BTreeMap<Rank, (&'a RankSnapshot, &'a CommSnapshot)>;

/// The rows of each communicator.
pub(super) fn members(job: &Snapshot) -> BTreeMap<CommId, Members<'_>> {
    let mut comms: BTreeMap<CommId, Members<'_>> = BTreeMap::new();
    for rank in &job.ranks {
        for comm in &rank.comms {
            let members = comms.entry(comm.id).or_default();
            // Two rows of one rank: the row that has ended is the older one.
            if members.get(&comm.rank).is_none_or(|(_, before)| before.ended && !comm.ended) {
                members.insert(comm.rank, (rank, comm));
            }
        }
    }
    comms
}

/// The operations of a rank that is compared, by number, on the common clock.
struct Compared<'a> {
    rank: &'a RankSnapshot,
    comm: &'a CommSnapshot,
    ops: BTreeMap<u64, PastOp>,
    error_ns: u64,
}

impl<'a> Compared<'a> {
    fn of(
        (rank, comm): (&'a RankSnapshot, &'a CommSnapshot),
        clock: &impl Fn(&RankSnapshot) -> Option<ClockOffset>,
    ) -> Option<Self> {
        let ClockOffset { offset_ns, error_ns } = clock(rank)?;
        let here = |ns: u64| ns.saturating_add_signed(offset_ns.saturating_neg());
        let moved = |op: &PastOp| {
            let (called_ns, ended_ns) = (here(op.called_ns), here(op.ended_ns));
            (op.seq, PastOp { called_ns, ended_ns, ..*op })
        };
        let ops: BTreeMap<u64, PastOp> = comm.history.ops.iter().map(moved).collect();
        (!ops.is_empty()).then_some(Self { rank, comm, ops, error_ns })
    }

    fn op(&self, seq: u64) -> PastOp {
        self.ops.get(&seq).copied().unwrap_or_default()
    }
}

fn of_comm(members: &Members<'_>, clock: &impl Fn(&RankSnapshot) -> Option<ClockOffset>) -> Lateness {
    let compared: Vec<Compared<'_>> =
        members.values().filter_map(|member| Compared::of(*member, clock)).collect();
    let Some(first) = compared.first() else { return Lateness::default() };
    let mut largest: Vec<u64> = compared.iter().map(|one| one.error_ns).collect();
    largest.sort_unstable_by_key(|error| std::cmp::Reverse(*error));
    let mut late = Lateness {
        comm: first.comm.id,
        name: first.comm.name.clone(),
        nranks: first.comm.nranks,
        error_ns: largest.iter().take(2).fold(0, |sum, error| sum.saturating_add(*error)),
        incomplete: incomplete(members, &compared, clock),
        ..Lateness::default()
    };
    let mut seqs: BTreeSet<u64> = first.ops.keys().copied().collect();
    seqs.retain(|seq| compared.iter().all(|one| one.ops.contains_key(seq)));
    if compared.len() < 2 || seqs.is_empty() {
        return late;
    }
    if contradicts(&compared, &seqs, late.error_ns) {
        late.incomplete = "the clocks of its processes differ by more than is known".into();
        return late;
    }
    judge(&mut late, &compared, &seqs.into_iter().collect::<Vec<_>>());
    late
}

/// Why not all ranks are compared; empty if all are.
fn incomplete(
    members: &Members<'_>,
    compared: &[Compared<'_>],
    clock: &impl Fn(&RankSnapshot) -> Option<ClockOffset>,
) -> String {
    let nranks = members.values().map(|(_, comm)| comm.nranks).max().unwrap_or(0) as usize;
    let clockless = members.values().filter(|(rank, _)| clock(rank).is_none()).count();
    let mut why = Vec::new();
    let mut say = |count: usize, what: &str| {
        if count > 0 {
            why.push(format!("{count} of {nranks} ranks {what}"));
        }
    };
    say(nranks.saturating_sub(members.len()), "were not read");
    say(clockless, "have a clock that is not known here");
    say(members.len().saturating_sub(clockless + compared.len()), "kept no operation");
    why.join(", ")
}

/// Whether a rank ended an operation before another had called it, which no operation allows that
/// synchronizes the ranks.
fn contradicts(compared: &[Compared<'_>], seqs: &BTreeSet<u64>, error_ns: u64) -> bool {
    let kinds = || compared.iter().flat_map(|one| &one.comm.history.kinds);
    let synchronizes = kinds().all(|kind| {
        let is_pair = is_pair(&kind.kind);
        is_pair || SYNCHRONIZING.contains(&kind.kind.as_str())
    });
    synchronizes
        && seqs.iter().any(|seq| {
            let ops = || compared.iter().map(|one| one.op(*seq));
            let ended = ops().map(|op| op.ended_ns).min().unwrap_or(0);
            ops().any(|op| op.called_ns > ended.saturating_add(error_ns))
        })
}

/// The first of the operations that count.
fn window(compared: &[Compared<'_>], seqs: &[u64]) -> usize {
    let ended = |seq: u64| compared.iter().map(|one| one.op(seq).ended_ns).max().unwrap_or(0);
    let last = seqs.last().map_or(0, |seq| ended(*seq));
    let recent = seqs.partition_point(|seq| ended(*seq) < last.saturating_sub(WINDOW_NS));
    recent.min(seqs.len().saturating_sub(WINDOW_OPS))
}

/// Compares the ranks over these operations, which all of them kept.
fn judge(late: &mut Lateness, compared: &[Compared<'_>], seqs: &[u64]) {
    let from = window(compared, seqs);
    let mut lates: Vec<Vec<u64>> = vec![Vec::new(); compared.len()];
    let (mut lasts, mut costs) = (vec![0_u64; compared.len()], vec![Costs::default(); compared.len()]);
    let (mut cycles, mut timed) = (0_u64, 0_u64);
    let pause_ns = pause_ns(compared, &seqs[from.saturating_sub(1)..]);
    let more_ns = more_between_ns(compared, &seqs[from..]);
    for (at, seq) in seqs.iter().enumerate().skip(from) {
        let ops: Vec<PastOp> = compared.iter().map(|one| one.op(*seq)).collect();
        let first_ns = ops.iter().map(|op| op.called_ns).min().unwrap_or(0);
        for (op, lates) in ops.iter().zip(&mut lates) {
            let late_ns = op.called_ns - first_ns;
            lates.push(if late_ns < late.error_ns { 0 } else { late_ns });
        }
        let before = at.checked_sub(1).and_then(|at| seqs.get(at));
        // Between operations that are not kept next to each other, others may have been shorter.
        let own_ns = ops.iter().map(|op| op.ended_ns).max().unwrap_or(0).saturating_sub(first_ns);
        let cycle = before.map(|before| cycle_ns(compared, *before, *seq).max(own_ns));
        let cycle = cycle.filter(|cycle| *cycle <= pause_ns);
        if let Some(cycle) = cycle {
            (cycles, timed) = (cycles.saturating_add(cycle), timed + 1);
        }
        if let Some(last) = last_of(&ops, late.error_ns) {
            lasts[last] += 1;
            let cost = cost_ns(&ops, last, late.incomplete.is_empty());
            let cost = more_ns.as_ref().map_or(cost, |more| cost.min(more[last]));
            costs[last].add(cycle.map_or(0, |cycle| cost.min(cycle)));
        }
    }
    late.ops = (seqs.len() - from) as u64;
    (late.first_seq, late.last_seq) = (seqs[from], seqs[seqs.len() - 1]);
    late.op_ns = cycles / timed.max(1);
    for (at, one) in compared.iter().enumerate() {
        lates[at].sort_unstable();
        let of_hundred = |share: usize| lates[at][(lates[at].len() * share).div_ceil(100).max(1) - 1];
        let cost = costs[at].all;
        let rest = cycles.saturating_sub(cost).max(1);
        let sums = &one.comm.history.kinds;
        let sum =
            |of: fn(&KindTotals) -> u64| sums.iter().fold(0_u64, |sum, kind| sum.saturating_add(of(kind)));
        let waited_ns = sum(|kind| kind.waited_ns);
        let all_ns = sum(|kind| kind.inside_ns).saturating_add(sum(|kind| kind.outside_ns));
        late.ranks.push(RankLateness {
            rank: one.comm.rank,
            job_rank: one.rank.rank,
            pid: one.rank.pid,
            host: one.rank.host.clone(),
            last: lasts[at],
            late_p50_ns: of_hundred(50),
            late_p95_ns: of_hundred(95),
            cost_ns: cost / timed.max(1),
            score: 1.0 + cost as f64 / rest as f64,
            self_ns: all_ns.saturating_sub(waited_ns),
            waited_ns,
        });
    }
    let straggler = straggler(late.ops, cycles, &lasts, &costs);
    let busy = busy::busy(compared, &seqs[from..]);
    let busy = busy.filter(|_| straggler.is_none() && late.incomplete.is_empty());
    late.straggler = straggler.or_else(|| busy.map(|(at, _)| at)).map(|at| compared[at].comm.rank);
    late.busy = busy.map(|(_, busy)| busy);
}

/// What operations cost the others because one rank called last.
#[derive(Clone, Copy, Default)]
struct Costs {
    all: u64,
    /// That of the operation that cost the most.
    largest: u64,
}

impl Costs {
    fn add(&mut self, cost: u64) {
        self.all = self.all.saturating_add(cost);
        self.largest = self.largest.max(cost);
    }

    /// The costs but for those of one pause.
    fn steady(&self) -> u64 {
        self.all - self.largest
    }
}

/// The one that is late again and again at the cost of the others, in so many operations that took
/// `cycles` nanoseconds: by rank, in how many it was the last, and what that cost.
fn straggler(ops: u64, cycles: u64, lasts: &[u64], costs: &[Costs]) -> Option<usize> {
    let at = (0..costs.len()).max_by_key(|at| lasts[*at])?;
    let is_felt = |cost: u64| cost > 0 && u128::from(cost) * 10 >= u128::from(cycles);
    let is_last = lasts[at] * 5 >= ops * 4 && is_felt(costs[at].all);
    let nranks = costs.len() as u64;
    let others = costs.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, cost)| cost.all);
    let next = others.max().unwrap_or(0);
    let stands_out = (nranks >= COSTS_DECIDE.0 && ops >= COSTS_DECIDE.1)
        && (lasts[at] * nranks >= ops * 3 && lasts[at] * 5 >= ops * 2)
        && is_felt(costs[at].steady())
        && u128::from(costs[at].steady()) >= 3 * u128::from(next);
    (ops >= LEAST_OPS && (is_last || stands_out)).then_some(at)
}

/// From how long an operation on it was a pause.
fn pause_ns(compared: &[Compared<'_>], seqs: &[u64]) -> u64 {
    let pairs = seqs.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?)));
    let mut cycles: Vec<u64> = pairs.map(|(before, seq)| cycle_ns(compared, before, seq)).collect();
    cycles.sort_unstable();
    cycles.get(cycles.len() / 2).map_or(u64::MAX, |half| half.saturating_mul(PAUSE))
}

/// The mean time from the end of one operation to the end of the next, between these two.
fn cycle_ns(compared: &[Compared<'_>], before: u64, seq: u64) -> u64 {
    let ended = |seq: u64| compared.iter().map(|one| one.op(seq).ended_ns).max().unwrap_or(0);
    ended(seq).saturating_sub(ended(before)) / (seq - before).max(1)
}

/// By rank, how much longer it is between two operations than the rank that is there for the
/// shortest time; half of the times are longer. `None` where that does not matter, as all ranks
/// come out of an operation together.
///
/// Each is a time of one clock. Only operations that are kept next to each other tell it.
fn more_between_ns(compared: &[Compared<'_>], seqs: &[u64]) -> Option<Vec<u64>> {
    let between = |one: &Compared<'_>| {
        let pairs = seqs.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?)));
        let pairs = pairs.filter(|(before, seq)| seq - before == 1);
        let time = |(before, seq)| one.op(seq).called_ns.saturating_sub(one.op(before).ended_ns);
        let mut times: Vec<u64> = pairs.map(time).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    };
    if !compared.iter().any(is_rooted) {
        return None;
    }
    let between: Vec<u64> = compared.iter().map(between).collect();
    let least = between.iter().min().copied().unwrap_or(0);
    Some(between.into_iter().map(|ns| ns - least).collect())
}

/// Whether many of the collectives of a rank had a root.
fn is_rooted(one: &Compared<'_>) -> bool {
    let kinds = || one.comm.history.kinds.iter().filter(|kind| !is_pair(&kind.kind));
    let sum = |sum: u64, kind: &KindTotals| sum.saturating_add(kind.operations);
    let all = kinds().fold(0, sum);
    let rooted = kinds().filter(|kind| !SYNCHRONIZING.contains(&kind.kind.as_str())).fold(0, sum);
    rooted > 0 && rooted.saturating_mul(ROOTED) >= all
}

/// The one that called last, if that can be told.
fn last_of(ops: &[PastOp], error_ns: u64) -> Option<usize> {
    let last = (0..ops.len()).max_by_key(|at| ops[*at].called_ns)?;
    let first_ns = ops.iter().map(|op| op.called_ns).min()?;
    (ops[last].called_ns - first_ns >= error_ns.max(1)).then_some(last)
}

/// How long the others, on the mean, had waited when the last one called.
///
/// Who did not wait was not held up. Of a communicator of which not all ranks are compared, another
/// one may have called still later: then the last of those compared has waited itself.
fn cost_ns(ops: &[PastOp], last: usize, is_complete: bool) -> u64 {
    let called_ns = ops[last].called_ns;
    let others = ops.iter().enumerate().filter(|(at, _)| *at != last);
    let lost = |(_, op): (usize, &PastOp)| (called_ns - op.called_ns).min(op.waited_ns);
    let sum = others.map(lost).fold(0_u64, u64::saturating_add);
    let mean = sum / (ops.len() as u64 - 1).max(1);
    if is_complete { mean } else { mean.saturating_sub(ops[last].waited_ns) }
}

#[cfg(test)]
mod tests;
