//! Events become tracks: one process per rank; in it a track for the making of each communicator, its collectives, its sends and
//! receives, its waits, and one per channel and direction for the messages.
//!
//! A process may hold ranks of several jobs; each gets a number of its own, and a line says whose it is: see [`RANK`].
//!
//! Every slice of a track begins where the one before it ended, or later: an importer drops slices that overlap. The slice of a
//! message ends when it was sent or taken; it began when its operation did, or with the message before it. Arrows bind to the
//! slice around their time, so each of their ends lies in the last nanosecond of its slice.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use ccl::clock::Scale;
use ccl::event::Event;
use ccl::recorder::Recorded;
use ccl::snapshot::ProcessSnapshot;
use ccl::types::{ChannelId, CollKind, CommId, Direction, JobId, Rank};

/// The name of the line that says which rank of which job the lines of a number (`pid` in the format) are of.
pub(super) const RANK: &str = "ccl_rank";

/// Which track of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Bootstrap(CommId),
    Collectives(CommId),
    Pairs(CommId, CollKindOrd),
    Waits(CommId, ChannelId),
    Messages { comm: CommId, channel: ChannelId, wide: bool, direction: DirectionOrd },
}

/// Send before receive.
type DirectionOrd = u8;
/// The number of a kind.
type CollKindOrd = u8;

/// A track, and when its last slice ended.
#[derive(Clone, Copy, Debug)]
struct Track {
    tid: u32,
    end_ns: i64,
}

/// A communicator on a rank.
#[derive(Clone, Debug)]
struct Member {
    job: JobId,
    nranks: u32,
    /// What it is called among those of its rank.
    name: String,
    /// The number of its rank in this part.
    pid: u32,
}

/// What is under way on one rank of one communicator.
#[derive(Default, Debug)]
struct Engine {
    /// Collectives that were called and have not ended: number and time.
    called: VecDeque<(u64, i64)>,
    /// When the last one ended.
    ended_ns: i64,
}

/// Makes lines of events. The lines are those of the Chrome trace format, one event each, without what lies between them.
#[derive(Default, Debug)]
pub(super) struct Tracks {
    members: BTreeMap<(CommId, Rank), Member>,
    tracks: BTreeMap<(u32, Key), Track>,
    engines: BTreeMap<(CommId, Rank), Engine>,
    /// The ranks by job, with their numbers.
    ranks: BTreeMap<(JobId, Rank), u32>,
    /// How many tracks each number has.
    counts: BTreeMap<u32, u32>,
    lines: Vec<String>,
    /// Arrows to all of a host that were begun since the lines were taken.
    wide_arrows: usize,
}

/// The most arrows to all of a host in one look. A full recorder's messages to sixteen ranks have fewer; how many ranks there are is
/// the word of a file.
const WIDE_ARROWS: usize = 1 << 18;

impl Tracks {
    /// Takes note of the owner of a ring, a communicator and the rank in it, as soon as it has recorded something: from then on its job has its name.
    pub(super) fn learn(&mut self, process: &ProcessSnapshot, owner: (CommId, Rank)) {
        let Some(comm) = process.comms.iter().find(|comm| (comm.id, comm.rank) == owner) else { return };
        let pid = self.pid(process, comm.job, comm.world);
        let mut name = if comm.name.is_empty() { comm.id.to_string() } else { comm.name.clone() };
        if self.members.values().any(|other| other.pid == pid && other.name == name) {
            name = format!("{name} ({})", comm.id);
        }
        let member = Member { job: comm.job, nranks: comm.nranks, name, pid };
        self.members.insert(owner, member);
    }

    /// The job of the owner of a ring; `None`: it is time to [`learn`](Self::learn) it.
    #[must_use]
    pub(super) fn job_of(&self, owner: (CommId, Rank)) -> Option<JobId> {
        self.members.get(&owner).map(|member| member.job)
    }

    /// Whether there is anything to count.
    #[must_use]
    pub(super) fn knows_any(&self) -> bool {
        !self.members.is_empty()
    }

    /// The number of a rank: its own, unless that of another job has it. Named at its first use.
    fn pid(&mut self, process: &ProcessSnapshot, job: JobId, world: Rank) -> u32 {
        if let Some(pid) = self.ranks.get(&(job, world)) {
            return *pid;
        }
        let pid = (world.0..=u32::MAX).find(|pid| !self.counts.contains_key(pid)).unwrap_or(world.0);
        self.counts.insert(pid, 0);
        self.ranks.insert((job, world), pid);
        let host = if process.host_id.is_empty() { &process.host } else { &process.host_id };
        let name = quoted(&format!("rank {world} (host {host}, pid {})", process.pid));
        self.lines.push(meta(pid, 0, RANK, &format!(r#""job":"{job}","rank":{world}"#)));
        self.lines.push(meta(pid, 0, "process_name", &format!(r#""name":{name}"#)));
        self.lines.push(meta(pid, 0, "process_sort_index", &format!(r#""sort_index":{world}"#)));
        pid
    }

    /// The lines so far.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.wide_arrows = 0;
        std::mem::take(&mut self.lines)
    }

    /// Takes one event of a rank; nothing becomes of one whose communicator is not known.
    pub(super) fn take(&mut self, owner: (CommId, Rank), recorded: &Recorded, scale: &Scale) {
        let Some(member) = self.members.get(&owner).cloned() else { return };
        let at = scale.mono(recorded.raw).0 as i64;
        let (comm, me) = owner;
        let place = Place { comm, me, member: &member, at };
        match recorded.event {
            Event::PhaseEnded { phase, duration_ns } => {
                let args = format!("\"comm\":{}", quoted(&member.name));
                self.slice(
                    &place,
                    Key::Bootstrap(comm),
                    &phase.to_string(),
                    at - duration_ns as i64,
                    at,
                    &args,
                );
            }
            Event::OpPlanned { kind, seq, .. } if !kind.is_p2p() => {
                self.engine(owner).called.push_back((seq, at));
            }
            Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, duration_ticks, .. } => {
                let called = at - scale.ns(duration_ticks) as i64;
                let args = format!(
                    "\"seq\":{seq},\"bytes\":{bytes},\"dtype\":\"{dtype}\",\"op\":\"{op}\",\"algorithm\":\"{algorithm}\",\
                     \"called_ns_before\":{}",
                    at - called
                );
                self.operation(&place, kind, seq, called, &args);
            }
            Event::OpFailed { kind, seq, peer, .. } => {
                let peer = peer.map_or(-1, |peer| i64::from(peer.0));
                let called =
                    self.engine(owner).called.iter().find(|(n, _)| *n == seq).map_or(at, |(_, t)| *t);
                self.operation(
                    &place,
                    kind,
                    seq,
                    called,
                    &format!("\"seq\":{seq},\"failed\":true,\"peer\":{peer}"),
                );
            }
            Event::MessageSent { channel, peer, step, bytes } => {
                let to = peer.map_or_else(|| "all".into(), |peer| peer.to_string());
                let args = self.message_args(owner, channel, step, bytes);
                let key =
                    Key::Messages { comm, channel, wide: peer.is_none(), direction: Direction::Send as u8 };
                let from = self.engine_since(owner, channel, at);
                let (tid, end) = self.slice(&place, key, &format!("to {to}"), from, at, &args);
                let readers: Vec<Rank> = match peer {
                    Some(peer) => vec![peer],
                    None => {
                        let room = WIDE_ARROWS.saturating_sub(self.wide_arrows);
                        (0..member.nranks).map(Rank).filter(|rank| *rank != me).take(room).collect()
                    }
                };
                self.wide_arrows += if peer.is_none() { readers.len() } else { 0 };
                for to in readers {
                    let id = arrow(comm, me, to, channel, peer.is_none(), step);
                    self.arrow(&place, "s", tid, end, id);
                }
            }
            Event::MessageTaken { channel, peer, wide, step, bytes } => {
                let args = self.message_args(owner, channel, step, bytes);
                let key = Key::Messages { comm, channel, wide, direction: Direction::Recv as u8 };
                let from = self.engine_since(owner, channel, at);
                let (tid, end) = self.slice(&place, key, &format!("from {peer}"), from, at, &args);
                self.arrow(&place, "f", tid, end, arrow(comm, peer, me, channel, wide, step));
            }
            Event::WaitBegan { .. } => {}
            Event::WaitEnded { channel, duration_ticks } => {
                let began = at - scale.ns(duration_ticks) as i64;
                self.slice(&place, Key::Waits(comm, channel), "waits", began, at, "");
            }
            Event::LinkUp { channel, peer, direction, transport, why } => {
                let peer = peer.map_or_else(|| "all".into(), |peer| peer.to_string());
                let why = why.map(|why| format!(", {why}")).unwrap_or_default();
                let what = format!("link {direction} {peer} channel {channel} by {transport}{why}");
                self.instant(&place, &what);
            }
            Event::PeerLost { peer } => self.instant(&place, &format!("rank {peer} lost")),
            Event::MismatchFound { peer, seq } => {
                self.instant(&place, &format!("rank {peer} called something else at #{seq}"));
            }
            Event::Aborted => self.instant(&place, "aborted"),
            Event::OpPlanned { .. } | Event::ClockAnchored { .. } | Event::Unknown { .. } => {}
        }
    }

    /// A sample of what a rank has sent and received and how many collectives it has completed.
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
            let (ts, completed) = (micros(mono_ns), comm.op.completed);
            // A counter is known by its name: there is one of each name in a rank.
            let (bytes, collectives) =
                (quoted(&format!("bytes of {name}")), quoted(&format!("collectives of {name}")));
            self.lines.push(format!(
                r#"{{"ph":"C","pid":{pid},"tid":0,"ts":{ts},"name":{bytes},"args":{{"sent":{sent},"received":{received}}}}}"#
            ));
            self.lines.push(format!(
                r#"{{"ph":"C","pid":{pid},"tid":0,"ts":{ts},"name":{collectives},"args":{{"completed":{completed}}}}}"#
            ));
        }
    }

    fn engine(&mut self, owner: (CommId, Rank)) -> &mut Engine {
        self.engines.entry(owner).or_default()
    }

    /// Since when the collective under way is, or else the last one has ended. Pairs run beside it, and what was called before the
    /// recording began is not known: then a message has no beginning but its end.
    fn engine_since(&mut self, owner: (CommId, Rank), channel: ChannelId, at: i64) -> i64 {
        let engine = self.engine(owner);
        let called = engine.called.front().map_or(0, |(_, at)| *at);
        let since = called.max(engine.ended_ns);
        if channel == ChannelId::P2P || since == 0 { at } else { since }
    }

    fn message_args(&mut self, owner: (CommId, Rank), channel: ChannelId, step: u64, bytes: u32) -> String {
        let mut args = format!("\"step\":{step},\"bytes\":{bytes}");
        let seq =
            self.engine(owner).called.front().filter(|_| channel != ChannelId::P2P).map(|(seq, _)| *seq);
        if let Some(seq) = seq {
            // Writing to a string does not fail.
            let _ = write!(args, ",\"seq\":{seq}");
        }
        args
    }

    fn operation(&mut self, place: &Place<'_>, kind: CollKind, seq: u64, called: i64, args: &str) {
        let (comm, at) = (place.comm, place.at);
        if kind.is_p2p() {
            self.slice(place, Key::Pairs(comm, kind as u8), &format!("{kind} #{seq}"), called, at, args);
            return;
        }
        let engine = self.engine((comm, place.me));
        let from = called.max(engine.ended_ns);
        engine.called.retain(|(called, _)| *called > seq);
        engine.ended_ns = at;
        self.slice(place, Key::Collectives(comm), &format!("{kind} #{seq}"), from, at, args);
    }

    /// Writes one slice, behind those its track has; its track and its last nanosecond.
    fn slice(
        &mut self,
        place: &Place<'_>,
        key: Key,
        name: &str,
        from: i64,
        to: i64,
        args: &str,
    ) -> (u32, i64) {
        let tid = self.tid(place, key);
        let track = self.tracks.get_mut(&(place.member.pid, key)).expect("made by tid");
        // At least a nanosecond, which ends with the event.
        let end = (to + 1).max(track.end_ns + 1);
        let begin = from.min(end - 1).max(track.end_ns);
        track.end_ns = end;
        let (pid, ts, dur, name) = (place.member.pid, micros(begin), micros(end - begin), quoted(name));
        self.lines.push(format!(
            r#"{{"ph":"X","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"name":{name},"cat":"ccl","args":{{{args}}}}}"#
        ));
        (tid, end - 1)
    }

    fn arrow(&mut self, place: &Place<'_>, phase: &str, tid: u32, at: i64, id: u64) {
        let (pid, ts) = (place.member.pid, micros(at));
        let binds = if phase == "f" { r#","bp":"e""# } else { "" };
        self.lines.push(format!(
            r#"{{"ph":"{phase}","pid":{pid},"tid":{tid},"ts":{ts},"name":"message","cat":"ccl","id":"{id:016x}"{binds}}}"#
        ));
    }

    fn instant(&mut self, place: &Place<'_>, name: &str) {
        let tid = self.tid(place, Key::Bootstrap(place.comm));
        let (pid, ts, name) = (place.member.pid, micros(place.at), quoted(name));
        self.lines.push(format!(
            r#"{{"ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{ts},"name":{name},"cat":"ccl"}}"#
        ));
    }

    /// The number of a track, named at its first use.
    fn tid(&mut self, place: &Place<'_>, key: Key) -> u32 {
        let pid = place.member.pid;
        if let Some(track) = self.tracks.get(&(pid, key)) {
            return track.tid;
        }
        let count = self.counts.entry(pid).or_default();
        *count += 1;
        let tid = *count;
        self.tracks.insert((pid, key), Track { tid, end_ns: 0 });
        let comm = &place.member.name;
        let name = match key {
            Key::Bootstrap(_) => format!("{comm}: making"),
            Key::Collectives(_) => format!("{comm}: collectives"),
            Key::Pairs(_, kind) => {
                let what = CollKind::from_u8(kind).map_or_else(String::new, |kind| kind.to_string());
                format!("{comm}: {what}")
            }
            Key::Waits(_, channel) => format!("{comm}: waits on channel {channel}"),
            Key::Messages { channel, wide, direction, .. } => {
                let way = if direction == Direction::Send as u8 { "send" } else { "receive" };
                let wide = if wide { " (wide)" } else { "" };
                format!("{comm}: {way}, channel {channel}{wide}")
            }
        };
        self.lines.push(meta(pid, tid, "thread_name", &format!(r#""name":{}"#, quoted(&name))));
        let order = match key {
            Key::Bootstrap(_) => 1,
            Key::Collectives(_) => 2,
            Key::Pairs(..) => 3,
            Key::Messages { .. } => 4,
            Key::Waits(..) => 5,
        };
        self.lines.push(meta(
            pid,
            tid,
            "thread_sort_index",
            &format!(r#""sort_index":{}"#, order * 1000 + tid),
        ));
        tid
    }
}

/// Where and when an event happened.
struct Place<'a> {
    comm: CommId,
    me: Rank,
    member: &'a Member,
    at: i64,
}

/// The name of the arrow of one message, equal on both ranks.
fn arrow(comm: CommId, from: Rank, to: Rank, channel: ChannelId, wide: bool, step: u64) -> u64 {
    let mut bytes = [0; 27];
    bytes[..8].copy_from_slice(&comm.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&from.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&to.0.to_le_bytes());
    bytes[16..18].copy_from_slice(&channel.0.to_le_bytes());
    bytes[18] = u8::from(wide);
    bytes[19..27].copy_from_slice(&step.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

fn meta(pid: u32, tid: u32, name: &str, args: &str) -> String {
    format!(r#"{{"ph":"M","pid":{pid},"tid":{tid},"name":"{name}","args":{{{args}}}}}"#)
}

/// A string of JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Nanoseconds as microseconds with three decimals, as the format wants them: exact, where a float would round.
pub(super) fn micros(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:03}", ns / 1000, ns % 1000)
}
