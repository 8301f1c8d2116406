//! Who is busy while the others wait for it, however seldom it calls last.
//!
//! A rank that is not given the processor, or is stopped again and again, is held up inside of
//! operations as often as between them, and its delays are few and long: it calls last in a few of
//! thousands, of which a few are kept. But each operation that is kept tells how long its rank had
//! waited in all operations up to it. So of the time between two of them it is known how much a
//! rank did not wait for others: it worked, or could not go on.
//!
//! A rank is busy if that is twice as much as of any other rank, and more by a quarter of the time.
//! Pauses make none: the two stretches that tell the most against it are left out. Nothing is said
//! where operations have a root, which works by nature while the others wait, nor of time that may
//! have passed in waits elsewhere: in sends and receives, or in other communicators.

use super::{Busy, Compared, LEAST_OPS, is_rooted};
use crate::diagnose::is_pair;
use crate::snapshot::KindTotals;

/// The time must be at least this long: less is a moment of a machine that does other work.
const LEAST_NS: u64 = 1_000_000_000;
/// The fewest stretches of time that are left to judge by.
const LEAST_STRETCHES: usize = 8;
/// So many stretches may be pauses.
const PAUSES: usize = 2;
/// How many times as long as any other it must be busy.
const TIMES: u64 = 2;
/// Of the time, by how many parts it must be more.
const PART: u64 = 4;

/// The rank that is busy while the others wait for it, in these operations; `None` if none is.
pub(super) fn busy(compared: &[Compared<'_>], seqs: &[u64]) -> Option<(usize, Busy)> {
    let ops = seqs.last()?.saturating_sub(*seqs.first()?);
    if ops < LEAST_OPS || compared.iter().any(|one| is_rooted(one) || !is_told(one, seqs)) {
        return None;
    }
    let spent: Vec<Vec<(u64, u64)>> = compared.iter().map(|one| spent(one, seqs)).collect();
    let sum = |of: &mut dyn Iterator<Item = u64>| of.fold(0, u64::saturating_add);
    let at = (0..spent.len()).max_by_key(|at| sum(&mut spent[*at].iter().map(|(_, own)| *own)))?;
    let others = || spent.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, spent)| spent);
    let more = |stretch: usize| {
        let most = others().map(|spent| spent[stretch].1).max().unwrap_or(0);
        spent[at][stretch].1.saturating_sub(most)
    };
    let mut stretches: Vec<usize> = (0..spent[at].len()).collect();
    stretches.sort_by_key(|stretch| std::cmp::Reverse(more(*stretch)));
    let rest = stretches.get(PAUSES..).filter(|rest| rest.len() >= LEAST_STRETCHES)?;
    let own = |spent: &Vec<(u64, u64)>| sum(&mut rest.iter().map(|stretch| spent[*stretch].1));
    let busy = Busy {
        span_ns: sum(&mut rest.iter().map(|stretch| spent[at][*stretch].0)),
        own_ns: own(&spent[at]).saturating_sub(elsewhere_ns(&compared[at])),
        others_ns: others().map(own).max()?,
    };
    let more_ns = busy.own_ns.saturating_sub(busy.others_ns);
    let is_it = busy.span_ns >= LEAST_NS
        && busy.own_ns >= busy.others_ns.saturating_mul(TIMES)
        && more_ns.saturating_mul(PART) >= busy.span_ns;
    is_it.then_some((at, busy))
}

/// Between each two of these operations, the time from end to end, and how much of it a rank did
/// not wait.
fn spent(one: &Compared<'_>, seqs: &[u64]) -> Vec<(u64, u64)> {
    let between = |(before, seq): (&u64, &u64)| {
        let (from, to) = (one.op(*before), one.op(*seq));
        let span_ns = to.ended_ns.saturating_sub(from.ended_ns);
        let waited_ns = to.waited_so_far_ns.saturating_sub(from.waited_so_far_ns);
        (span_ns, span_ns.saturating_sub(waited_ns))
    };
    seqs.iter().zip(seqs.iter().skip(1)).map(between).collect()
}

/// Whether a rank kept for how long it had waited: older recorders do not.
fn is_told(one: &Compared<'_>, seqs: &[u64]) -> bool {
    let has_waited = one.comm.history.kinds.iter().any(|kind| !is_pair(&kind.kind) && kind.waited_ns > 0);
    !has_waited || seqs.last().is_some_and(|last| one.op(*last).waited_so_far_ns > 0)
}

/// For how long a rank has waited elsewhere than in collectives of this communicator, at any time.
fn elsewhere_ns(one: &Compared<'_>) -> u64 {
    let rows = one.rank.comms.iter().map(|row| (row.id != one.comm.id, row));
    let kinds = rows.flat_map(|(is_other, row)| row.history.kinds.iter().map(move |kind| (is_other, kind)));
    let waits = kinds.filter(|(is_other, kind)| *is_other || is_pair(&kind.kind));
    waits.fold(0, |sum, (_, KindTotals { waited_ns, .. })| sum.saturating_add(*waited_ns))
}
