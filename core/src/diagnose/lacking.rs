//! The next missing call of ranks on which others are blocked in a later collective: where sockets
//! buffer, ranks run ahead until a buffer is full.

use std::collections::BTreeMap;

use super::call_name;
use crate::diagnose::is_pair;
use crate::snapshot::{BlockedOn, CommSnapshot, OpState, RankSnapshot, Snapshot};
use crate::types::Rank;

/// Ranks that lack the same collective.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Lacking {
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// The first collective that they have not completed.
    pub seq: u64,
    /// The collective they are inside of, `Reduce #9`; `None` if they have not called it, so its
    /// kind is unknown.
    pub inside: Option<String>,
    /// The collective they completed last, `Reduce #8`; `None` if they are inside one, or there was
    /// none.
    pub left: Option<String>,
    /// How long ago the first of them began or completed it; `None` if one of them is gone.
    pub since_ns: Option<u64>,
}

impl Snapshot {
    /// The call that each missing rank of `one` lacks, the earliest first.
    ///
    /// Empty if they all lack the very call that the others wait in.
    #[must_use]
    pub fn lacking<'a>(&'a self, one: &BlockedOn) -> Vec<Lacking> {
        let mut found: BTreeMap<(u64, bool), Lacking> = BTreeMap::new();
        if is_pair(&one.op) {
            return Vec::new();
        }
        for rank in &one.missing {
            let is_it = |row: &&CommSnapshot| (row.id, row.rank) == (one.comm, *rank);
            let row = |process: &'a RankSnapshot| {
                Some((process, process.comms.iter().filter(is_it).min_by_key(|row| row.ended)?))
            };
            let rows = self.ranks.iter().filter_map(row);
            let Some((process, row)) = rows.min_by_key(|(_, row)| row.ended) else { continue };
            let op = &row.op;
            let is_unread = op.state == OpState::Unknown && op.seq > 0;
            let is_inside = op.state == OpState::Running || is_unread;
            let seq = if is_inside { op.seq } else { row.last_called() + 1 };
            let group = found.entry((seq, is_inside)).or_default();
            let name = match is_unread {
                true => Some(format!("#{}", op.seq)),
                false => Some(call_name(&op.kind, op.seq)).filter(|_| !op.kind.is_empty()),
            };
            let since_ns = match (group.ranks.is_empty(), group.since_ns) {
                _ if process.is_gone() => None,
                (true, _) => Some(op.age_ns),
                (false, since_ns) => since_ns.map(|since_ns| since_ns.max(op.age_ns)),
            };
            (group.seq, group.since_ns) = (seq, since_ns);
            (group.inside, group.left) = if is_inside { (name, None) } else { (None, name) };
            group.ranks.push(*rank);
        }
        let is_earlier = found.keys().any(|(seq, _)| *seq < one.seq);
        if is_earlier { found.into_values().collect() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{OpSnapshot, State};
    use crate::types::CommId;

    fn rank(at: u32, state: OpState, seq: u64, age_ns: u64) -> RankSnapshot {
        let op =
            OpSnapshot { kind: "Reduce".into(), seq, called: seq, state, age_ns, ..OpSnapshot::default() };
        let comm = CommSnapshot { id: CommId(1), rank: Rank(at), op, ..CommSnapshot::default() };
        RankSnapshot { rank: Rank(at), state: State::Running, comms: vec![comm], ..RankSnapshot::default() }
    }

    fn check(ranks: &[RankSnapshot], expect: &[Lacking]) {
        let missing = ranks.iter().map(|rank| rank.rank).collect();
        let one = BlockedOn { comm: CommId(1), seq: 495, missing, ..BlockedOn::default() };
        let job = Snapshot { ranks: ranks.to_vec(), ..Snapshot::default() };
        assert_eq!(job.lacking(&one), expect);
    }

    #[test]
    fn who_lacks_an_earlier_call_lacks_that_one_first() {
        use OpState::{Idle, Running};
        let lacks = |ranks: &[u32], seq, since_ns| {
            let ranks = ranks.iter().copied().map(Rank).collect();
            Lacking { ranks, seq, since_ns, ..Lacking::default() }
        };
        let left = |ranks: &[u32], seq, since_ns| {
            let left = Some(format!("Reduce #{}", seq - 1));
            Lacking { left, ..lacks(ranks, seq, since_ns) }
        };
        check(&[rank(0, Idle, 494, 5), rank(1, Idle, 494, 7)], &[]);
        check(
            &[rank(0, Idle, 8, 5), rank(1, Idle, 494, 7), rank(2, Idle, 8, 6)],
            &[left(&[0, 2], 9, Some(6)), left(&[1], 495, Some(7))],
        );
        // A rank stopped inside an earlier collective, and a rank that is gone.
        let mut gone = rank(1, Idle, 8, 6);
        gone.state = State::Dead;
        let inside = Lacking { inside: Some("Reduce #9".into()), ..lacks(&[0], 9, Some(5)) };
        check(&[rank(0, Running, 9, 5), gone], &[left(&[1], 9, None), inside]);
        // It has called none.
        let mut none = rank(0, Idle, 0, 5);
        none.comms[0].op.kind.clear();
        check(&[none], &[lacks(&[0], 1, Some(5))]);
    }
}
