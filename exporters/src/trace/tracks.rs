//! Tracks made from events: one process per rank. It has a track for the init of each communicator,
//! its collectives, its sends and receives and its waits, one per channel and direction for the
//! messages, and one per network link for the states of its steps.
//!
//! A process may hold several ranks. Each gets a number, and a line says which rank of which job it
//! is: see [`RANK`]. A rank has a job id for each unique id that its communicators were made from.
//!
//! The slice of a message ends when the message was sent or taken. It began when its operation did,
//! or with the message before it. Arrows bind to the slice around their time, so each of their ends
//! lies in the last nanosecond of its slice. Slices that no event has ended are drawn by
//! [`stand`](Tracks::stand).

use std::collections::BTreeMap;

use ccl::clock::{Raw, Scale};
use ccl::error::ErrorKind;
use ccl::event::Event;
use ccl::event::assembly::{Assembly, Item, MessageEnd, Operation, Outcome};
use ccl::recorder::Recorded;
use ccl::snapshot::{CommSnapshot, ProcessSnapshot, Waits};
use ccl::sys::verbs::AsyncEvent;
use ccl::sys::verbs::words::status_name;
use ccl::types::{ChannelId, CommId, Direction, JobId, Rank};

use super::args::Args;
use super::lines::{CommLine, Key, Lines, Slice, quoted};
use super::standing::OpenWait;

/// The name of the line that says which rank of which job a number (`pid` in the format) stands
/// for, and how many ranks that job has; under `also`, of which further jobs.
pub(super) const RANK: &str = "ccl_rank";

/// A communicator on a rank.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) job: JobId,
    pub(super) nranks: u32,
    /// Its name among the communicators of its rank.
    pub(super) name: String,
    /// The number of its rank in this part.
    pid: u32,
    /// It had recorded nothing when it was first seen, so its job may not have its final id yet.
    pub(super) is_early: bool,
    /// The row it was read from.
    row: Row,
}

/// A rank of this process, and the number that stands for it.
#[derive(Debug)]
struct NumberedRank {
    pid: u32,
    /// Its job, its rank there, and the number of that job's ranks; a line for each id.
    of: Vec<(JobId, Rank, u32)>,
}

/// The row of a recorder, and its generation. Init gives a communicator and its job other ids in
/// the same row.
type Row = Option<(u32, u32)>;

impl Member {
    pub(super) fn place(&self, comm: CommId) -> CommLine<'_> {
        CommLine { comm, pid: self.pid, name: &self.name }
    }
}

/// The operations and waits of one rank of one communicator.
#[derive(Default, Debug)]
pub(super) struct Engine {
    pub(super) assembly: Assembly,
    /// Waits that have begun, and when.
    pub(super) waits: BTreeMap<OpenWait, i64>,
}

/// Makes lines from events. The lines are those of the Chrome trace format, one event each, without
/// separators.
#[derive(Default, Debug)]
pub(super) struct Tracks {
    members: BTreeMap<(CommId, Rank), Member>,
    engines: BTreeMap<(CommId, Rank), Engine>,
    /// Communicators that were seen early, by row: the ids they had, and the number of their rank.
    early: BTreeMap<(u32, u32), (CommId, JobId, u32)>,
    ranks: Vec<NumberedRank>,
    pub(super) lines: Lines,
    /// The arrows to all ranks of a host that were begun since the lines were last taken.
    shared_arrows: usize,
}

/// The most arrows to all ranks of a host in one drain. The messages of a full recorder to sixteen
/// ranks need fewer. The number of ranks comes from a file, so it is not trusted.
const SHARED_ARROWS: usize = 1 << 18;

impl Tracks {
    /// Registers the owner of a ring, a communicator and the rank in it, once it has recorded
    /// something: from then on its job has its final id.
    pub(super) fn learn(&mut self, process: &ProcessSnapshot, owner: (CommId, Rank)) {
        self.meet(process, owner, false);
    }

    /// Registers a communicator on a rank that has recorded nothing yet.
    pub(super) fn learn_early(&mut self, process: &ProcessSnapshot, owner: (CommId, Rank)) {
        self.meet(process, owner, true);
    }

    fn meet(&mut self, process: &ProcessSnapshot, owner: (CommId, Rank), is_early: bool) {
        let Some(comm) = process.comms.iter().find(|comm| (comm.id, comm.rank) == owner) else { return };
        let pid = self.pid(process, comm);
        self.rename(comm, pid, is_early);
        let mut name = ccl::diagnose::comm_name(&comm.name, comm.id);
        let is_taken =
            |(of, other): (&(CommId, Rank), &Member)| *of != owner && other.pid == pid && other.name == name;
        if self.members.iter().any(is_taken) {
            name = format!("{name} ({})", comm.id);
        }
        let member = Member { job: comm.job, nranks: comm.nranks, name, pid, is_early, row: comm.row };
        self.members.insert(owner, member);
    }

    /// The job of the owner of a ring; `None` if the owner must be passed to [`learn`](Self::learn)
    /// first.
    #[must_use]
    pub(super) fn job_of(&self, owner: (CommId, Rank)) -> Option<JobId> {
        self.members.get(&owner).filter(|member| !member.is_early).map(|member| member.job)
    }

    pub(super) fn member(&self, comm: &CommSnapshot) -> Option<Member> {
        self.members.get(&(comm.id, comm.rank)).filter(|member| member.row == comm.row).cloned()
    }

    /// Whether a communicator that was seen early has other ids since.
    pub(super) fn is_renamed(&self, comm: &CommSnapshot) -> bool {
        let early = comm.row.and_then(|row| self.early.get(&row));
        early.is_some_and(|(id, ..)| *id != comm.id)
    }

    /// Moves the tracks of a communicator from the id that it had when it was seen early to its
    /// present id.
    fn rename(&mut self, comm: &CommSnapshot, pid: u32, is_early: bool) {
        let Some(row) = comm.row else { return };
        let now = (comm.id, comm.job, pid);
        let before = if is_early { self.early.insert(row, now) } else { self.early.remove(&row) };
        let Some((id, _, before)) = before.filter(|(id, _, at)| (*id, *at) != (comm.id, pid)) else { return };
        let old = (id, comm.rank);
        if self.members.get(&old).is_some_and(|member| member.row == comm.row) {
            self.members.remove(&old);
            if let Some(engine) = self.engines.remove(&old) {
                self.engines.entry((comm.id, comm.rank)).or_insert(engine);
            }
        }
        self.lines.rename((before, id), (pid, comm.id));
    }

    /// The number of a rank: its rank in the first job in which it is met, unless another rank of
    /// this process has that number. Named at its first use.
    fn pid(&mut self, process: &ProcessSnapshot, comm: &CommSnapshot) -> u32 {
        let CommSnapshot { job, world, nranks, .. } = *comm;
        let early = comm.row.and_then(|row| self.early.get(&row)).copied();
        if let Some((_, before, at)) = early.filter(|(_, before, _)| *before != job) {
            // Its job has got another id.
            let renamed = self.ranks.iter_mut().filter(|rank| rank.pid == at);
            renamed.for_each(|rank| rank.of.retain(|(of, ..)| *of != before));
        }
        let is_known =
            |rank: &NumberedRank| rank.of.iter().any(|(of, number, _)| (*of, *number) == (job, world));
        let known = self.ranks.iter().position(is_known);
        let known =
            known.or_else(|| self.ranks.iter().position(|rank| Some(rank.pid) == early.map(|(.., at)| at)));
        // The ranks of this process in another job are these ranks, in order.
        let next = || self.ranks.iter().position(|rank| rank.of.iter().all(|(of, ..)| *of != job));
        let at = known.or_else(next);
        let is_new = at.is_none();
        let at = at.unwrap_or_else(|| {
            let pid = self.lines.new_rank(world.0);
            self.ranks.push(NumberedRank { pid, of: Vec::new() });
            self.ranks.len() - 1
        });
        let pid = self.ranks[at].pid;
        self.tell_rank(at, (job, world, nranks));
        if let Some((.., before)) = early.filter(|(.., before)| *before != pid) {
            // Its rank already had a number; both stand for the same rank.
            if let Some(before) = self.ranks.iter().position(|rank| rank.pid == before) {
                self.tell_rank(before, (job, world, nranks));
            }
        }
        if is_new {
            let host = if process.host_id.is_empty() { &process.host } else { &process.host_id };
            let name = quoted(&format!("rank {world} (host {host}, pid {})", process.pid));
            self.lines.meta(pid, 0, "process_name", &format!(r#""name":{name}"#));
            self.lines.meta(pid, 0, "process_sort_index", &format!(r#""sort_index":{world}"#));
        }
        pid
    }

    /// Tells of which rank in which jobs a number is. The last of these lines is right: a job gets
    /// its final id, and the number of its ranks is that of its largest communicator.
    fn tell_rank(&mut self, at: usize, (job, world, nranks): (JobId, Rank, u32)) {
        let NumberedRank { pid, of } = &mut self.ranks[at];
        match of.iter_mut().find(|(known, ..)| *known == job) {
            Some(known) => *known = (job, world, nranks.max(known.2)),
            None => of.push((job, world, nranks)),
        }
        let text = |&(job, world, nranks): &(JobId, Rank, u32)| {
            format!(r#""job":"{job}","rank":{world},"ranks":{nranks}"#)
        };
        let mut all = of.iter().map(text);
        let mut told = all.next().unwrap_or_default();
        let also: Vec<String> = all.map(|one| format!("{{{one}}}")).collect();
        if !also.is_empty() {
            told += &format!(r#","also":[{}]"#, also.join(","));
        }
        self.lines.meta(*pid, 0, RANK, &told);
    }

    /// Takes the lines so far.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.shared_arrows = 0;
        self.lines.take()
    }

    /// Registers an event from before the trace, which is not drawn.
    pub(super) fn remember(&mut self, owner: (CommId, Rank), recorded: &Recorded) {
        self.engine(owner).assembly.take(recorded.raw, &recorded.event);
    }

    /// Registers the tags that were set before `at`, if no event shows them.
    pub(super) fn tagged(&mut self, process: &ProcessSnapshot, at: Raw) {
        for comm in &process.comms {
            self.engine((comm.id, comm.rank)).assembly.tagged(at, &comm.op.tag);
        }
    }

    /// Events of a rank were overwritten before they were read: what was under way may have ended,
    /// by `at`.
    pub(super) fn lost(&mut self, owner: (CommId, Rank), at: i64) {
        let engine = self.engine(owner);
        engine.assembly.lost();
        engine.waits.clear();
        if let Some(member) = self.members.get(&owner) {
            self.lines.close_all(member.place(owner.0), at);
        }
    }

    /// Takes one event of a rank; an event of an unknown communicator is ignored.
    pub(super) fn take(&mut self, owner: (CommId, Rank), recorded: &Recorded, scale: &Scale) {
        let Some(member) = self.members.get(&owner).cloned() else { return };
        let at = scale.mono(recorded.raw).0 as i64;
        let (comm, _) = owner;
        let place = member.place(comm);
        match self.engine(owner).assembly.take(recorded.raw, &recorded.event) {
            Item::Message { message, seq, since, .. } => {
                let since = since.map_or(at, |since| scale.mono(since).0 as i64);
                self.message(owner, &member, (&message, seq), (since, at));
            }
            Item::Ended(operation, _) => self.operation(owner, &member, &operation, scale),
            Item::Other => {}
        }
        match recorded.event {
            Event::PhaseEnded { phase, duration_ns } => {
                let args = Args::default().text("comm", &member.name);
                let (name, from) = (phase.to_string(), at - duration_ns as i64);
                let slice =
                    Slice { id: (phase as u64, None), name: &name, from, to: at, args: args.as_str() };
                self.lines.slice(place, Key::Bootstrap(comm), slice);
            }
            Event::ProxyStepEntered { channel, peer, direction, seq, step, state } => {
                let key = Key::NetworkSteps { comm, channel, peer, direction: direction as u8 };
                let args = Args::network_step(channel, peer, direction, (seq, step))
                    .text("comm", &member.name)
                    .text("comm_id", &comm.to_string());
                self.lines.state(place, key, state.name(), at, args.as_str());
            }
            Event::WaitBegan { channel, peer, reason } => {
                let wait = OpenWait { channel, peer: Some(peer), reason: Waits::from(reason) };
                self.engine(owner).waits.insert(wait, at);
            }
            Event::WaitEnded { channel, peer, reason, duration_ticks } => {
                let wait = OpenWait { channel, peer, reason: Waits::from(reason) };
                self.engine(owner).waits.remove(&wait);
                let from = at - scale.ns(duration_ticks) as i64;
                let (name, args) = (wait.name(), wait.args());
                let slice = Slice { id: OpenWait::ID, name: &name, from, to: at, args: args.as_str() };
                self.lines.slice(place, Key::Waits(comm, wait), slice);
            }
            Event::LinkUp { channel, peer, direction, transport, why } => {
                let peer = peer.map_or_else(|| "all".into(), |peer| peer.to_string());
                let why = why.map(|why| format!(", {why}")).unwrap_or_default();
                let what = format!("link {direction} {peer} channel {channel} by {transport}{why}");
                self.lines.instant(place, &what, at);
            }
            Event::PeerLost { peer } => self.lines.instant(place, &format!("rank {peer} lost"), at),
            Event::MismatchFound { peer, seq } => {
                self.lines.instant(place, &format!("rank {peer} called something else at #{seq}"), at);
            }
            Event::StallFound { standing, class, reason, culprit, .. } => {
                let whom = culprit.map(|rank| format!(", rank {rank}")).unwrap_or_default();
                self.lines.instant(place, &format!("{standing}: {class}{whom}, {reason}"), at);
            }
            Event::StallEnded { .. } => self.lines.instant(place, "recovered", at),
            Event::QueuePairChanged { channel, peer, direction, number, state } => {
                let what = format!("queue pair {number} {direction} {peer} channel {channel}: {state}");
                self.lines.instant(place, &what, at);
            }
            Event::WorkFailed { channel, peer, direction, number, status, .. } => {
                let name = status_name(status);
                let what = format!("queue pair {number} {direction} {peer} channel {channel} failed: {name}");
                self.lines.instant(place, &what, at);
            }
            Event::PortChanged { port, code, device } => {
                let what = format!("device {device} port {port}: {}", AsyncEvent::name_of(code));
                self.lines.instant(place, &what, at);
            }
            Event::Aborted => self.lines.instant(place, "aborted", at),
            Event::OpPlanned { .. }
            | Event::OpCompleted { .. }
            | Event::OpFailed { .. }
            | Event::MessageSent { .. }
            | Event::MessageTaken { .. }
            | Event::ClockAnchored { .. }
            | Event::Tagged { .. }
            | Event::Unknown { .. } => {}
        }
    }

    /// Samples the bytes that a rank has sent and received and the collectives it has completed.
    pub(super) fn counters(&mut self, process: &ProcessSnapshot, mono_ns: i64) {
        for comm in process.comms.iter().filter(|comm| !comm.ended) {
            let Some(Member { pid, name, .. }) = self.members.get(&(comm.id, comm.rank)) else { continue };
            let bytes = |way: ccl::snapshot::Direction| {
                comm.links
                    .iter()
                    .filter(|link| link.direction == way)
                    .fold(0_u64, |sum, link| sum.saturating_add(link.bytes))
            };
            let (sent, received) =
                (bytes(ccl::snapshot::Direction::Send), bytes(ccl::snapshot::Direction::Recv));
            // A counter is identified by its name, which must be unique in a rank.
            let args = Args::default().number("sent", sent).number("received", received);
            self.lines.counter(*pid, &format!("bytes of {name}"), mono_ns, args.as_str());
            let args = Args::default().number("completed", comm.op.completed);
            self.lines.counter(*pid, &format!("collectives of {name}"), mono_ns, args.as_str());
        }
    }

    pub(super) fn engine(&mut self, owner: (CommId, Rank)) -> &mut Engine {
        self.engines.entry(owner).or_default()
    }

    /// Draws a message, from the beginning of its operation or, if that is not known, as short as
    /// can be; and its arrows.
    fn message(
        &mut self,
        (comm, me): (CommId, Rank),
        member: &Member,
        (message, seq): (&MessageEnd, Option<u64>),
        (from, to): (i64, i64),
    ) {
        let MessageEnd { channel, direction, peer, shared, number: step, bytes, .. } = *message;
        let place = member.place(comm);
        let key = Key::Messages { comm, channel, shared, direction: direction as u8 };
        let args = Args::default()
            .number("step", step)
            .number("bytes", bytes.into())
            .maybe(seq, |args, seq| args.number("seq", seq));
        let other = peer.map_or_else(|| "all".into(), |peer| peer.to_string());
        let name = match direction {
            Direction::Send => format!("to {other}"),
            Direction::Recv => format!("from {other}"),
        };
        let slice = Slice { id: (step, None), name: &name, from, to, args: args.as_str() };
        let (tid, end) = self.lines.slice(place, key, slice);
        if direction == Direction::Recv {
            let id = arrow(comm, peer.unwrap_or(me), me, channel, shared, step);
            return self.lines.arrow(place.pid, "f", tid, end, id);
        }
        let readers: Vec<Rank> = match peer {
            Some(peer) => vec![peer],
            None => {
                let room = SHARED_ARROWS.saturating_sub(self.shared_arrows);
                (0..member.nranks).map(Rank).filter(|rank| *rank != me).take(room).collect()
            }
        };
        self.shared_arrows += if shared { readers.len() } else { 0 };
        for to in readers {
            let id = arrow(comm, me, to, channel, shared, step);
            self.lines.arrow(place.pid, "s", tid, end, id);
        }
    }

    fn operation(&mut self, owner: (CommId, Rank), member: &Member, operation: &Operation, scale: &Scale) {
        let Operation { kind, seq, other, bytes, called, began, ended, .. } = *operation;
        let took = scale.ns(operation.ticks());
        let tag = self.engines.get(&owner).and_then(|engine| engine.assembly.tag(called));
        let args = Args::operation(kind, seq, member.nranks, other, tag).number("bytes", bytes);
        let args = match operation.outcome {
            Outcome::Completed { dtype, op, algorithm } => args
                .text("dtype", &dtype.to_string())
                .maybe(kind.reduces().then_some(op), |args, op| args.text("op", &op.to_string()))
                .text("algorithm", &algorithm.to_string())
                .number("called_ns_before", took)
                .bandwidths(kind, member.nranks, bytes, took),
            Outcome::Failed { error, blamed } => args
                .flag("failed")
                .maybe(ErrorKind::from_u8(error), |args, why| args.text("error", &format!("{why:?}")))
                .maybe(blamed, |args, peer| args.number("failed_by", peer.0.into())),
        };
        let place = member.place(owner.0);
        let to = scale.mono(ended).0 as i64;
        let (key, from, id) = if kind.is_p2p() {
            (Key::Pairs(place.comm, kind as u8), to - took as i64, (seq, other))
        } else {
            let before = scale.mono(began).0 as i64;
            (Key::Collectives(place.comm), before.max(to - took as i64), (seq, None))
        };
        let name = format!("{kind} #{seq}");
        self.lines.slice(place, key, Slice { id, name: &name, from, to, args: args.as_str() });
    }
}

/// The id of the arrow of one message, equal on both ranks.
fn arrow(comm: CommId, from: Rank, to: Rank, channel: ChannelId, shared: bool, step: u64) -> u64 {
    let mut bytes = [0; 27];
    bytes[..8].copy_from_slice(&comm.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&from.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&to.0.to_le_bytes());
    bytes[16..18].copy_from_slice(&channel.0.to_le_bytes());
    bytes[18] = u8::from(shared);
    bytes[19..27].copy_from_slice(&step.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
