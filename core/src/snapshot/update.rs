//! What changed between two readings of one recorder: the updates of a subscriber that has the
//! first reading.
//!
//! A row is a communicator and rank. Ages grow by themselves: a row in which nothing else changed
//! is not sent again, and the receiver of an update lets its ages grow by the time between the
//! readings. So a socket whose new sample is the same as before is not sent; a socket that received
//! something since is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    CommSnapshot, History, LinkSnapshot, OpSnapshot, OpState, ProcessSnapshot, QueuePairSnapshot,
    SocketSnapshot, Waits,
};
use crate::types::{ChannelId, CommId, Rank};

/// The precision of the times at which something was received from another host: the kernel counts
/// milliseconds, and is not asked at the exact time at which the clock is read.
const HEARD_WITHIN_NS: u64 = 500_000_000;

/// The rows that changed, and all other fields of a process.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Update {
    /// The later reading, with only those communicators that changed or are new.
    pub process: ProcessSnapshot,
    /// Communicator and rank of rows that no longer exist.
    pub removed: Vec<(CommId, Rank)>,
    /// The number of updates left out before this one because the subscriber had not taken earlier
    /// ones.
    pub skipped: u64,
}

impl ProcessSnapshot {
    /// What changed since an earlier reading of the same recorder.
    ///
    /// Since the default of this type, everything has changed.
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
        // Filtered before cloning: most rows have not changed.
        // Histories would be most of what is sent.
        let comms = self.comms.iter().filter(|comm| !is_known(comm)).cloned();
        let comms = comms.map(|comm| CommSnapshot { history: History::default(), ..comm }).collect();
        let process = Self { comms, ..self.but_comms() };
        Update { process, removed, skipped: 0 }
    }

    /// Becomes the later reading that an update describes.
    pub fn apply(&mut self, update: Update) {
        let Update { mut process, removed, .. } = update;
        let passed = process.passed_ns(self);
        let changed = std::mem::take(&mut process.comms);
        let mut comms = std::mem::take(&mut self.comms);
        let removed: BTreeSet<_> = removed.into_iter().collect();
        comms.retain(|comm| !removed.contains(&place(comm)));
        comms.iter_mut().for_each(|comm| grow(comm, passed));
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

    /// All fields except the rows.
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
            ports: self.ports.clone(),
            overflow: self.overflow.clone(),
            facts: self.facts.clone(),
            ..*self
        }
    }

    /// The time between an earlier reading and this one, on the monotonic clock if both have it.
    const fn passed_ns(&self, before: &Self) -> u64 {
        match (self.to_mono_ns, before.to_mono_ns) {
            (0, _) | (_, 0) => self.to_real_ns.saturating_sub(before.to_real_ns),
            (to, from) => to.saturating_sub(from),
        }
    }
}

/// Advances a row in which nothing changed to a later time.
pub(crate) fn grow(comm: &mut CommSnapshot, passed_ns: u64) {
    for age in ages(comm) {
        *age = age.saturating_add(passed_ns);
    }
    if let Some(init) = &mut comm.init {
        init.gives_up_ns = init.gives_up_ns.saturating_sub(passed_ns);
    }
}

/// The key of a row.
const fn place(comm: &CommSnapshot) -> (CommId, Rank) {
    (comm.id, comm.rank)
}

/// The index of each row by key; the first of several rows with the same key.
fn by_place(comms: &[CommSnapshot]) -> BTreeMap<(CommId, Rank), usize> {
    let mut places = BTreeMap::new();
    for (at, comm) in comms.iter().enumerate() {
        places.entry(place(comm)).or_insert(at);
    }
    places
}

/// Whether a socket of this row received something after the earlier reading, `passed_ns` ago.
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

/// A row without the values that grow by themselves.
fn ageless(comm: &CommSnapshot) -> CommSnapshot {
    let mut still = comm.clone();
    still.history = History::default();
    ages(&mut still).for_each(|age| *age = 0);
    still.links.iter_mut().for_each(|link| link.since_ns = 0);
    if let Some(init) = &mut still.init {
        init.gives_up_ns = 0;
    }
    still
}

/// All values in a row that grow by themselves.
fn ages(comm: &mut CommSnapshot) -> impl Iterator<Item = &mut u64> {
    // The waits of a failed operation have ended.
    let has_failed = |op: &OpSnapshot| op.state == OpState::Failed;
    let is_over = (has_failed(&comm.op), comm.p2p.as_ref().is_some_and(has_failed));
    let CommSnapshot { op, p2p, links, phase, driven_ns, failure, .. } = comm;
    let operations = std::iter::once(op).chain(p2p).filter(|op| !op.kind.is_empty());
    operations
        .flat_map(|OpSnapshot { age_ns, wait, .. }| {
            let waits = wait.as_mut().map(|wait| &mut wait.since_ns);
            std::iter::once(age_ns).chain(waits)
        })
        .chain(links.iter_mut().flat_map(
            move |LinkSnapshot { channel, waits, since_ns, sockets, queue_pairs, .. }| {
                let is_over = if *channel == ChannelId::P2P { is_over.1 } else { is_over.0 };
                let wait = (*waits != Waits::Nothing && !is_over).then_some(since_ns);
                let sockets = sockets.iter_mut().flat_map(
                    |SocketSnapshot { received_ns, heard_ns, age_ns, .. }| [received_ns, heard_ns, age_ns],
                );
                let pairs =
                    queue_pairs.iter_mut().flat_map(|QueuePairSnapshot { completed_ns, error, .. }| {
                        let failed = error.as_mut().map(|error| &mut error.ago_ns);
                        completed_ns.iter_mut().chain(failed)
                    });
                wait.into_iter().chain(sockets).chain(pairs)
            },
        ))
        .chain(phase.as_mut().map(|phase| &mut phase.duration_ns))
        .chain(failure.as_mut().map(|failure| &mut failure.age_ns))
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
            // One row changes, one is removed, one is new.
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
