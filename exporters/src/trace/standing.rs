//! Operations, waits and phases of init under way, which no event has ended. They come from the
//! recorder's cells, however long ago they began and whatever its rings have overwritten.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl::clock::{Raw, Scale};
use ccl::snapshot::{CommSnapshot, OpSnapshot, OpState, OpWait, PhaseSnapshot, ProcessSnapshot, Waits};
use ccl::types::{ChannelId, CollKind, Phase, Rank};

use super::args::Args;
use super::lines::{Id, Key};
use super::tracks::Tracks;

/// An operation under way for this long is drawn before it ends, so that it is in the trace if the
/// writer is killed.
const LONG: Duration = Duration::from_millis(100);

/// A time of a process by its own clock, and which operations under way are drawn then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now<'a> {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) mono_ns: i64,
    pub(super) scale: &'a Scale,
    /// Draws everything, as the trace ends here; otherwise only what has been under way for long.
    pub(super) is_end: bool,
}

impl Now<'_> {
    fn is_drawn(&self, age_ns: u64) -> bool {
        self.is_end || age_ns >= LONG.as_nanos() as u64
    }

    fn since(&self, age_ns: u64) -> i64 {
        self.mono_ns.saturating_sub(i64::try_from(age_ns).unwrap_or(i64::MAX))
    }
}

impl Tracks {
    /// Draws the operations under way in a process that were not drawn yet. `process` was read
    /// after the events that were taken.
    pub(super) fn stand(&mut self, process: &ProcessSnapshot, now: Now<'_>) {
        for comm in process.comms.iter().filter(|comm| !comm.ended) {
            let owner = (comm.id, comm.rank);
            let phase = comm.phase.as_ref().filter(|phase| now.is_drawn(phase.duration_ns));
            let is_known = self.member(comm).is_some_and(|member| !member.is_early || member.job == comm.job);
            if (phase.is_some() && !is_known) || self.is_renamed(comm) {
                // It has recorded nothing yet: its members have not joined, or only just now.
                self.learn_early(process, owner);
            }
            if let Some(phase) = phase {
                self.phase_stands(comm, phase, now);
            }
            for op in [Some(&comm.op), comm.p2p.as_ref()].into_iter().flatten() {
                self.operation_stands(comm, op, now);
            }
            self.waits_stand(comm, now);
            if let Some(member) = self.member(comm) {
                // Of several sends or receives the cell shows only the last one called.
                let pairs_run = comm.p2p.as_ref().is_some_and(|op| op.state == OpState::Running);
                let stays = |key| pairs_run && matches!(key, Key::Pairs(..));
                self.lines.settle(member.place(comm.id), now.mono_ns, stays);
            }
        }
    }

    fn phase_stands(&mut self, comm: &CommSnapshot, phase: &PhaseSnapshot, now: Now<'_>) {
        let known = Phase::ALL.iter().find(|known| known.to_string() == phase.phase);
        let (Some(member), Some(known)) = (self.member(comm), known) else { return };
        let args = Args::default().text("comm", &member.name);
        let since = now.since(phase.duration_ns);
        let id = (*known as u64, None);
        self.lines.open(
            member.place(comm.id),
            Key::Bootstrap(comm.id),
            id,
            &phase.phase,
            since,
            args.as_str(),
        );
    }

    fn operation_stands(&mut self, comm: &CommSnapshot, op: &OpSnapshot, now: Now<'_>) {
        let kind = CollKind::ALL.iter().find(|kind| kind.to_string() == op.kind);
        let (Some(member), Some(kind), Some(raw)) = (self.member(comm), kind.copied(), op.since_raw) else {
            return;
        };
        let (owner, peer) = ((comm.id, comm.rank), op.peer.filter(|_| kind.is_p2p()));
        let assembly = &self.engine(owner).assembly;
        if op.state != OpState::Running || !now.is_drawn(op.age_ns) || assembly.has_ended(kind, peer, op.seq)
        {
            return;
        }
        let other = if kind.is_p2p() { peer } else { Some(op.root) };
        // Operations before it in the queue ended when it began to move.
        let began = if kind.is_p2p() { Raw(raw) } else { Raw(raw).max(assembly.last_end()) };
        let since = now.scale.mono(began).0 as i64;
        let args = Args::operation(kind, op.seq, member.nranks, other, assembly.tag(Raw(raw)))
            .number("bytes", op.bytes)
            .text("dtype", &op.dtype)
            .maybe(kind.reduces().then_some(&op.op), |args, op| args.text("op", op))
            .text("comm", &member.name);
        let key = if kind.is_p2p() { Key::Pairs(comm.id, kind as u8) } else { Key::Collectives(comm.id) };
        let name = format!("{kind} #{}", op.seq);
        self.lines.open(member.place(comm.id), key, (op.seq, peer), &name, since, args.as_str());
    }

    fn waits_stand(&mut self, comm: &CommSnapshot, now: Now<'_>) {
        let Some(member) = self.member(comm) else { return };
        let of_links = comm.links.iter().map(|link| {
            let peer = link.waits_for.or(link.peer);
            (OpenWait { channel: link.channel, peer, reason: link.waits }, link.since_ns)
        });
        let operations = [Some(&comm.op), comm.p2p.as_ref()];
        let of_operations = operations.into_iter().flatten().filter_map(|op| op.wait.as_ref()).map(|wait| {
            let OpWait { waits: reason, peer, channel, since_ns, .. } = *wait;
            (OpenWait { channel, peer: Some(peer), reason }, since_ns)
        });
        // An operation may wait without a link.
        let waits: BTreeMap<OpenWait, u64> = of_operations.chain(of_links).collect();
        for (wait, since_ns) in waits {
            if matches!(wait.reason, Waits::Nothing | Waits::Unknown) {
                continue;
            }
            // The event of its beginning is more precise.
            let noted = self.engine((comm.id, comm.rank)).waits.get(&wait).copied();
            let since = noted.unwrap_or_else(|| now.since(since_ns));
            if now.is_drawn(now.mono_ns.saturating_sub(since).max(0).unsigned_abs()) {
                let args = wait.args().text("comm", &member.name);
                let key = Key::Waits(comm.id, wait);
                self.lines.open(member.place(comm.id), key, OpenWait::ID, &wait.name(), since, args.as_str());
            }
        }
    }
}

/// A wait of a driver: for one reason and one rank on one channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OpenWait {
    pub(super) channel: ChannelId,
    /// The rank it waits for; `None` if it was not recorded.
    pub(super) peer: Option<Rank>,
    /// The reason.
    pub(super) reason: Waits,
}

impl OpenWait {
    /// Each wait has its own track, so its slices are told apart only by their order.
    pub(super) const ID: Id = (0, None);

    pub(super) fn name(&self) -> String {
        match self.on() {
            _ if self.reason == Waits::Proxy => "waits for a slot of the proxy".into(),
            Some(peer) => format!("waits for rank {peer}"),
            None => "waits".into(),
        }
    }

    pub(super) fn args(&self) -> Args {
        let reason = (!matches!(self.reason, Waits::Nothing | Waits::Unknown)).then_some(self.reason);
        Args::default()
            .maybe(self.on(), |args, peer| args.ranks("waits_for", &[peer]))
            .maybe(reason, |args, reason| args.text("reason", reason.word()))
    }

    /// The rank it waits for. Who waits for a slot of the proxy waits for none.
    fn on(&self) -> Option<Rank> {
        self.peer.filter(|_| self.reason != Waits::Proxy)
    }
}
