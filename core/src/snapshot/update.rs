//! What changed between two readings of one recorder: what a subscriber is sent, who has the first of them.
//!
//! Rows are those of communicators and ranks. Ages grow by themselves: a row in which nothing else changed is not sent again, and
//! whoever applies the update lets its ages grow by the time between the readings. So a socket that was sampled again, and is as it was, is not
//! sent; one that was heard from since is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{CommSnapshot, LinkSnapshot, OpSnapshot, ProcessSnapshot, SocketSnapshot, Waits};
use crate::types::{CommId, Rank};

/// How exactly the moments are known at which something was heard from another host: the kernel counts milliseconds, and is not asked at the very
/// moment that the clock is.
const HEARD_WITHIN_NS: u64 = 500_000_000;

/// The rows that changed, and all else a process says of itself.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Update {
    /// The later reading; of its communicators those that changed, or are new.
    pub process: ProcessSnapshot,
    /// Communicator and rank of rows that are no more.
    pub removed: Vec<(CommId, Rank)>,
    /// Updates that were left out before this one, because the subscriber had not taken those before.
    pub skipped: u64,
}

impl ProcessSnapshot {
    /// What changed since an earlier reading of the same recorder; with the default of this type, all of it.
    #[must_use]
    pub fn since(&self, before: &Self) -> Update {
        let known = by_place(&before.comms);
        let is_known = |comm: &CommSnapshot| {
            known.get(&place(comm)).map(|at| &before.comms[*at]).is_some_and(|known| {
                ageless(known) == ageless(comm) && !is_heard(known, comm, self.passed_ns(before))
            })
        };
        let now = by_place(&self.comms);
        let removed = before.comms.iter().map(place).filter(|place| !now.contains_key(place)).collect();
        // Not all of it first: most rows have not changed.
        let comms = self.comms.iter().filter(|comm| !is_known(comm)).cloned().collect();
        let process = Self { comms, ..self.but_comms() };
        Update { process, removed, skipped: 0 }
    }

    /// Becomes the later reading that an update tells of.
    pub fn apply(&mut self, update: Update) {
        let Update { mut process, removed, .. } = update;
        let passed = process.passed_ns(self);
        let changed = std::mem::take(&mut process.comms);
        let mut comms = std::mem::take(&mut self.comms);
        let removed: BTreeSet<_> = removed.into_iter().collect();
        comms.retain(|comm| !removed.contains(&place(comm)));
        for comm in &mut comms {
            for age in ages(comm) {
                *age = age.saturating_add(passed);
            }
        }
        let mut known = by_place(&comms);
        for row in changed {
            let at = *known.entry(place(&row)).or_insert(comms.len());
            match comms.get_mut(at) {
                Some(comm) => *comm = row,
                None => comms.push(row),
            }
        }
        *self = Self { comms, ..process };
    }

    /// All but the rows.
    fn but_comms(&self) -> Self {
        Self {
            schema: self.schema.clone(),
            host: self.host.clone(),
            host_id: self.host_id.clone(),
            boot_id: self.boot_id.clone(),
            library: self.library.clone(),
            path: self.path.clone(),
            control: self.control.clone(),
            settings: self.settings.clone(),
            comms: Vec::new(),
            rings: self.rings.clone(),
            overflow: self.overflow.clone(),
            ..*self
        }
    }

    /// The time between an earlier reading and this one.
    const fn passed_ns(&self, before: &Self) -> u64 {
        self.to_real_ns.saturating_sub(before.to_real_ns)
    }
}

/// What a row is known by.
const fn place(comm: &CommSnapshot) -> (CommId, Rank) {
    (comm.id, comm.rank)
}

/// Where each row stands; the first, of several that are known by the same.
fn by_place(comms: &[CommSnapshot]) -> BTreeMap<(CommId, Rank), usize> {
    let mut places = BTreeMap::new();
    for (at, comm) in comms.iter().enumerate() {
        places.entry(place(comm)).or_insert(at);
    }
    places
}

/// Whether a socket of this row was heard from after it was read before, so long ago.
fn is_heard(before: &CommSnapshot, now: &CommSnapshot, passed_ns: u64) -> bool {
    let later =
        |before: u64, now: u64| now.saturating_add(HEARD_WITHIN_NS) < before.saturating_add(passed_ns);
    sockets(before).zip(sockets(now)).any(|(before, now)| {
        later(before.heard_ns, now.heard_ns) || later(before.received_ns, now.received_ns)
    })
}

fn sockets(comm: &CommSnapshot) -> impl Iterator<Item = &SocketSnapshot> {
    comm.links.iter().flat_map(|link| &link.sockets)
}

/// A row without what grows by itself.
fn ageless(comm: &CommSnapshot) -> CommSnapshot {
    let mut still = comm.clone();
    ages(&mut still).for_each(|age| *age = 0);
    still
}

/// All that grows by itself in a row.
fn ages(comm: &mut CommSnapshot) -> impl Iterator<Item = &mut u64> {
    let CommSnapshot { op, p2p, links, phase, driven_ns, .. } = comm;
    let operations = std::iter::once(op).chain(p2p).filter(|op| !op.kind.is_empty());
    operations
        .map(|OpSnapshot { age_ns, .. }| age_ns)
        .chain(links.iter_mut().flat_map(|LinkSnapshot { waits, since_ns, sockets, .. }| {
            let wait = (*waits != Waits::Nothing).then_some(since_ns);
            wait.into_iter().chain(sockets.iter_mut().flat_map(
                |SocketSnapshot { received_ns, heard_ns, age_ns, .. }| [received_ns, heard_ns, age_ns],
            ))
        }))
        .chain(phase.as_mut().map(|phase| &mut phase.duration_ns))
        .chain(driven_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::LinkSnapshot;

    fn row(id: u64, seq: u64, age_ns: u64, since_ns: u64) -> CommSnapshot {
        let op = OpSnapshot { kind: "AllReduce".into(), seq, age_ns, ..OpSnapshot::default() };
        let waits = if since_ns > 0 { Waits::Peer } else { Waits::Nothing };
        let links = vec![LinkSnapshot { waits, since_ns, ..LinkSnapshot::default() }];
        CommSnapshot { id: CommId(id), op, links, driven_ns: Some(age_ns), ..CommSnapshot::default() }
    }

    fn reading(to_real_ns: u64, heartbeat_ns: u64, comms: &[CommSnapshot]) -> ProcessSnapshot {
        ProcessSnapshot {
            pid: 71,
            to_real_ns,
            heartbeat_ns,
            comms: comms.to_vec(),
            ..ProcessSnapshot::default()
        }
    }

    #[test]
    fn updates_carry_what_changed_and_lead_from_one_reading_to_the_next() {
        let readings = [
            reading(1_000, 10, &[row(1, 7, 5, 3), row(2, 1, 1, 0)]),
            // Only older.
            reading(1_100, 110, &[row(1, 7, 105, 103), row(2, 1, 101, 0)]),
            // One moves, one leaves, one comes.
            reading(1_200, 20, &[row(1, 8, 2, 0), row(3, 1, 1, 0)]),
        ];
        let mut known = ProcessSnapshot::default();
        let mut sent = Vec::new();
        for (before, now) in std::iter::once(&ProcessSnapshot::default()).chain(&readings).zip(&readings) {
            let update = now.since(before);
            sent.push((update.process.comms.len(), update.removed.len()));
            known.apply(update);
            assert_eq!(&known, now);
        }
        assert_eq!(sent, [(2, 0), (0, 0), (2, 1)]);
    }

    #[test]
    fn a_socket_is_sent_when_it_changed_or_was_heard_from() {
        const SECOND: u64 = 1_000_000_000;
        let socket = |seconds: u64, heard: u64, timeouts: u8| {
            let socket = SocketSnapshot {
                timeouts,
                heard_ns: heard * SECOND,
                received_ns: (100 + seconds) * SECOND,
                age_ns: seconds % 2 * SECOND,
                ..SocketSnapshot::default()
            };
            let link = LinkSnapshot { sockets: vec![socket], ..LinkSnapshot::default() };
            let comm = CommSnapshot { id: CommId(1), links: vec![link], ..CommSnapshot::default() };
            reading(seconds * SECOND, 0, &[comm])
        };
        let check = |before: &ProcessSnapshot, now: &ProcessSnapshot, sent: usize| {
            let update = now.since(before);
            assert_eq!(update.process.comms.len(), sent);
            let mut known = before.clone();
            known.apply(update);
            let heard = |reading: &ProcessSnapshot| reading.comms[0].links[0].sockets[0].heard_ns;
            assert_eq!(heard(&known), heard(now));
        };
        // Silent for two seconds, sampled twice.
        check(&socket(10, 3, 0), &socket(12, 5, 0), 0);
        // An answer came a second ago.
        check(&socket(10, 3, 0), &socket(12, 1, 0), 1);
        // Silent, and another timeout.
        check(&socket(10, 3, 1), &socket(12, 5, 2), 1);
    }
}
