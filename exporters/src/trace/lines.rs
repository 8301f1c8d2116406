//! Lines of the Chrome trace format, one event each, and the tracks they lie on.
//!
//! Every slice of a track begins where the one before it ended, or later: an importer drops slices
//! that overlap. An operation under way is a slice with separate lines for its beginning (`B`) and
//! its end (`E`): so it is shown, open-ended, wherever the lines end.

use std::collections::BTreeMap;

use ccl::types::{ChannelId, CollKind, CommId, Direction, Rank};

use super::open::AGAIN;
use super::profile::CATEGORY;
use super::standing::OpenWait;

/// Identifies a track of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    Bootstrap(CommId),
    Collectives(CommId),
    Pairs(CommId, CollKindOrd),
    Waits(CommId, OpenWait),
    Messages { comm: CommId, channel: ChannelId, shared: bool, direction: DirectionOrd },
    NetworkSteps { comm: CommId, channel: ChannelId, peer: Rank, direction: DirectionOrd },
}

impl Key {
    const fn comm(self) -> CommId {
        match self {
            Self::Bootstrap(comm)
            | Self::Collectives(comm)
            | Self::Pairs(comm, _)
            | Self::Waits(comm, _)
            | Self::Messages { comm, .. }
            | Self::NetworkSteps { comm, .. } => comm,
        }
    }

    /// The same track of another communicator.
    const fn of(self, comm: CommId) -> Self {
        match self {
            Self::Bootstrap(_) => Self::Bootstrap(comm),
            Self::Collectives(_) => Self::Collectives(comm),
            Self::Pairs(_, kind) => Self::Pairs(comm, kind),
            Self::Waits(_, wait) => Self::Waits(comm, wait),
            Self::Messages { channel, shared, direction, .. } => {
                Self::Messages { comm, channel, shared, direction }
            }
            Self::NetworkSteps { channel, peer, direction, .. } => {
                Self::NetworkSteps { comm, channel, peer, direction }
            }
        }
    }
}

/// Send before receive.
type DirectionOrd = u8;
/// The number of a kind.
type CollKindOrd = u8;

/// Identifies a slice of a track: the number of an operation and the other rank of a pair, or the
/// number of a phase.
pub(super) type Id = (u64, Option<Rank>);

/// A track.
#[derive(Clone, Debug)]
struct Track {
    /// The number of its rank when it was made: its lines stay together.
    pid: u32,
    tid: u32,
    /// When its last slice ended, or the one under way began.
    end_ns: i64,
    /// The slices under way, in the order in which they began: there may be several sends or
    /// receives.
    open: Vec<Open>,
}

/// A slice under way.
#[derive(Clone, Debug)]
struct Open {
    id: Id,
    name: String,
    since_ns: i64,
    /// The line of its beginning, for another file.
    again: String,
    /// The number of looks since it was last found, including the present one.
    missed: u32,
}

/// A slice that is not found this many times in a row has ended without an event: a recorded end
/// event comes before the second time.
const MISSED: u32 = 2;
/// The most that the beginnings of the same slice may differ between two looks.
const SAME_NS: u64 = 10_000_000;

/// A communicator on a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommLine<'a> {
    pub(super) comm: CommId,
    /// The number of the rank in this part.
    pub(super) pid: u32,
    /// The name of the communicator among those of its rank.
    pub(super) name: &'a str,
}

/// One slice, from its first to its last nanosecond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'a> {
    pub(super) id: Id,
    pub(super) name: &'a str,
    pub(super) from: i64,
    pub(super) to: i64,
    /// Its arguments: the inside of a JSON object.
    pub(super) args: &'a str,
}

/// The lines so far, and the tracks of all ranks.
#[derive(Default, Debug)]
pub(super) struct Lines {
    tracks: BTreeMap<(u32, Key), Track>,
    /// The number of tracks of each rank number.
    counts: BTreeMap<u32, u32>,
    lines: Vec<String>,
    /// The lines that name ranks and tracks: the last of each kind.
    named: BTreeMap<(u32, u32, &'static str), String>,
}

impl Lines {
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// The lowest number from `wanted` on that no rank has.
    pub(super) fn new_rank(&mut self, wanted: u32) -> u32 {
        let pid = (wanted..=u32::MAX).find(|pid| !self.counts.contains_key(pid)).unwrap_or(wanted);
        self.counts.insert(pid, 0);
        pid
    }

    /// Writes a slice after the slices of its track, or ends it if it was under way; returns its
    /// track and its last nanosecond.
    pub(super) fn slice(&mut self, place: CommLine<'_>, key: Key, slice: Slice<'_>) -> (u32, i64) {
        let Slice { id, name, from, to, args } = slice;
        let tid = self.tid(place, key);
        let track = self.tracks.get_mut(&(place.pid, key)).expect("made by tid");
        // At least one nanosecond long, ending with the event.
        let end = (to + 1).max(track.end_ns + 1);
        let pid = track.pid;
        let line = if let Some(at) = track.open.iter().position(|open| open.id == id) {
            ended(pid, tid, end, &track.open.remove(at).name, args)
        } else {
            let begin = from.min(end - 1).max(track.end_ns);
            let (ts, dur, name) = (micros(begin), micros(end - begin), quoted(name));
            format!(
                r#"{{"ph":"X","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"name":{name},"cat":"ccl","args":{{{args}}}}}"#
            )
        };
        track.end_ns = end;
        self.lines.push(line);
        (tid, end - 1)
    }

    /// Begins a slice that is under way, unless it was begun before.
    pub(super) fn open(&mut self, place: CommLine<'_>, key: Key, id: Id, name: &str, from: i64, args: &str) {
        let tid = self.tid(place, key);
        let track = self.tracks.get_mut(&(place.pid, key)).expect("made by tid");
        let is_it = |open: &&mut Open| open.id == id && open.since_ns.abs_diff(from) <= SAME_NS;
        if let Some(open) = track.open.iter_mut().find(is_it) {
            open.missed = 0;
            return;
        }
        let begin = from.max(track.end_ns);
        track.end_ns = begin;
        let (pid, ts, quoted) = (track.pid, micros(begin), quoted(name));
        let line = |category: &str| {
            format!(
                r#"{{"ph":"B","pid":{pid},"tid":{tid},"ts":{ts},"name":{quoted},"cat":"{category}","args":{{{args}}}}}"#
            )
        };
        let (name, again) = (name.to_string(), line(AGAIN));
        track.open.push(Open { id, name, since_ns: from, again, missed: 0 });
        self.lines.push(line("ccl"));
    }

    /// Ends the slices of a communicator at `at` that were repeatedly not found, since their real
    /// ends were not recorded. A track for which `stays` is true is skipped.
    pub(super) fn settle(&mut self, place: CommLine<'_>, at: i64, stays: impl Fn(Key) -> bool) {
        self.close(place, at, |key, open| {
            open.missed += u32::from(!stays(key));
            open.missed > MISSED
        });
    }

    /// Ends all slices of a communicator at `at`: their real ends were lost.
    pub(super) fn close_all(&mut self, place: CommLine<'_>, at: i64) {
        self.close(place, at, |_, _| true);
    }

    fn close(&mut self, place: CommLine<'_>, at: i64, ends: impl Fn(Key, &mut Open) -> bool) {
        let pid = place.pid;
        for ((of, key), track) in &mut self.tracks {
            if *of != pid || key.comm() != place.comm {
                continue;
            }
            // The slice that began last ends first.
            for at_place in (0..track.open.len()).rev() {
                if ends(*key, &mut track.open[at_place]) {
                    track.end_ns = (track.end_ns + 1).max(at);
                    let name = track.open.remove(at_place).name;
                    self.lines.push(ended(
                        track.pid,
                        track.tid,
                        track.end_ns,
                        &name,
                        r#""end_not_recorded":true"#,
                    ));
                }
            }
        }
    }

    /// Writes one end of an arrow, which binds to the slice around it.
    pub(super) fn arrow(&mut self, pid: u32, phase: &str, tid: u32, at: i64, id: u64) {
        let ts = micros(at);
        let binds = if phase == "f" { r#","bp":"e""# } else { "" };
        self.lines.push(format!(
            r#"{{"ph":"{phase}","pid":{pid},"tid":{tid},"ts":{ts},"name":"message","cat":"ccl","id":"{id:016x}"{binds}}}"#
        ));
    }

    /// A network step entered a state, which is the name. Steps of a link overlap, so the states
    /// are moments: a step is in one until its next.
    pub(super) fn state(&mut self, place: CommLine<'_>, key: Key, state: &str, at: i64, args: &str) {
        let tid = self.tid(place, key);
        let (pid, ts) = (place.pid, micros(at));
        self.lines.push(format!(
            r#"{{"ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{ts},"name":"{state}","cat":"{CATEGORY}","args":{{{args}}}}}"#
        ));
    }

    pub(super) fn instant(&mut self, place: CommLine<'_>, name: &str, at: i64) {
        let tid = self.tid(place, Key::Bootstrap(place.comm));
        let (pid, ts, name) = (place.pid, micros(at), quoted(name));
        self.lines.push(format!(
            r#"{{"ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{ts},"name":{name},"cat":"ccl"}}"#
        ));
    }

    pub(super) fn counter(&mut self, pid: u32, name: &str, at: i64, args: &str) {
        let (ts, name) = (micros(at), quoted(name));
        self.lines
            .push(format!(r#"{{"ph":"C","pid":{pid},"tid":0,"ts":{ts},"name":{name},"args":{{{args}}}}}"#));
    }

    pub(super) fn meta(&mut self, pid: u32, tid: u32, name: &'static str, args: &str) {
        let line = format!(r#"{{"ph":"M","pid":{pid},"tid":{tid},"name":"{name}","args":{{{args}}}}}"#);
        self.named.insert((pid, tid, name), line.clone());
        self.lines.push(line);
    }

    /// The lines that make another file of the part readable by itself: the names of all ranks and
    /// tracks, and the slices under way.
    pub(super) fn again(&self) -> impl Iterator<Item = &String> {
        let open = self.tracks.values().flat_map(|track| track.open.iter().map(|open| &open.again));
        self.named.values().chain(open)
    }

    /// Moves the tracks of a communicator to another id, and possibly to another rank number.
    pub(super) fn rename(&mut self, before: (u32, CommId), (pid, comm): (u32, CommId)) {
        let is_of_it = |(of, key): &(u32, Key)| (*of, key.comm()) == before;
        let keys: Vec<_> = self.tracks.keys().filter(|key| is_of_it(key)).copied().collect();
        for key in keys {
            if let Some(track) = self.tracks.remove(&key) {
                self.tracks.insert((pid, key.1.of(comm)), track);
            }
        }
    }

    /// The number of a track, named at its first use.
    fn tid(&mut self, place: CommLine<'_>, key: Key) -> u32 {
        let CommLine { pid, name: comm, .. } = place;
        if let Some(track) = self.tracks.get(&(pid, key)) {
            return track.tid;
        }
        let count = self.counts.entry(pid).or_default();
        *count += 1;
        let tid = *count;
        self.tracks.insert((pid, key), Track { pid, tid, end_ns: 0, open: Vec::new() });
        let (order, name) = match key {
            Key::Bootstrap(_) => (1, format!("{comm}: init")),
            Key::Collectives(_) => (2, format!("{comm}: collectives")),
            Key::Pairs(_, kind) => {
                let what = CollKind::from_u8(kind).map_or_else(String::new, |kind| kind.to_string());
                (3, format!("{comm}: {what}"))
            }
            Key::Waits(_, wait) => {
                (5, format!("{comm}: {} ({}), channel {}", wait.name(), wait.reason, wait.channel))
            }
            Key::Messages { channel, shared, direction, .. } => {
                let way = if direction == Direction::Send as u8 { "send" } else { "receive" };
                let shared = if shared { " (shared)" } else { "" };
                (4, format!("{comm}: {way}, channel {channel}{shared}"))
            }
            Key::NetworkSteps { channel, peer, direction, .. } => {
                let way = if direction == Direction::Send as u8 { "to" } else { "from" };
                (6, format!("{comm}: proxy {way} {peer}, channel {channel}"))
            }
        };
        self.meta(pid, tid, "thread_name", &format!(r#""name":{}"#, quoted(&name)));
        self.meta(pid, tid, "thread_sort_index", &format!(r#""sort_index":{}"#, order * 1000 + tid));
        tid
    }
}

/// The end of a slice that was under way.
fn ended(pid: u32, tid: u32, at: i64, name: &str, args: &str) -> String {
    let (ts, name) = (micros(at), quoted(name));
    format!(r#"{{"ph":"E","pid":{pid},"tid":{tid},"ts":{ts},"name":{name},"cat":"ccl","args":{{{args}}}}}"#)
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Nanoseconds as microseconds with three decimals, as the format wants them: exact, where a float
/// would round.
pub(super) fn micros(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:03}", ns / 1000, ns % 1000)
}
