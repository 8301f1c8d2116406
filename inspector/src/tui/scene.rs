//! What views see: a snapshot and what belongs to it, and the questions they all ask of it. Pure.

use std::collections::BTreeSet;

use ccl::recorder::reader::Histogram;
use ccl::snapshot::{
    Awaited, CommSnapshot, OpSnapshot, OpState, RankSnapshot, Snapshot, State, duration, ranks_text,
};
use ccl::types::{ChannelId, CommId, Rank};

use super::history::Rates;
use super::listing::{About, Cell, Look};
use super::log::Log;
use super::palette::Role;
use crate::words;

pub(crate) use ccl::snapshot::comm_name as name;

/// A wait that stands this long is shown as what it is: somebody is missing. Shorter ones belong to every healthy job.
const STANDS_NS: u64 = 1_000_000_000;

/// What a view is a function of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    /// The job.
    pub(crate) job: &'a Snapshot,
    /// The communicator that was asked for.
    pub(crate) comm: Option<CommId>,
    /// The durations of operations so far; `None`: they were not read then.
    pub(crate) histograms: Option<&'a [Histogram]>,
    /// How fast everybody is.
    pub(crate) rates: &'a Rates,
    /// What happened.
    pub(crate) log: &'a Log,
    /// The moment that all this is of, in nanoseconds since 1970: what was said later is not to be seen yet.
    pub(crate) until_ns: u64,
    /// How everything looks.
    pub(crate) look: Look,
}

/// A rank's part of a communicator, and where both stand in the snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) rank: &'a RankSnapshot,
    pub(crate) comm: &'a CommSnapshot,
    pub(crate) at: (usize, usize),
}

/// Who is awaited, in words that fit on a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    /// `rank 2`
    pub(crate) who: String,
    /// `stopped`; empty: it runs.
    pub(crate) state: &'static str,
    /// `AllReduce #5`
    pub(crate) op: String,
    /// `world`
    pub(crate) comm: String,
    /// `not called`
    pub(crate) how: &'static str,
    /// `12.4 s`
    pub(crate) since: String,
    /// `ranks 0-1,3`
    pub(crate) by: String,
    /// Whether it stands, or is what every job does all the time.
    pub(crate) stands: bool,
    /// How many more there are.
    pub(crate) more: usize,
}

/// An operation that a screen is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Focused {
    /// `AllReduce`
    pub(crate) kind: String,
    /// Which call of it: of all collectives, or of those between two ranks.
    pub(crate) seq: u64,
    /// The ranks that a send or receive is between; `None`: it is a collective, which is everybody's.
    pub(crate) pair: Option<BTreeSet<Rank>>,
}

impl Focused {
    /// What a rank tells of it; `None`: it is none of its business.
    pub(crate) fn of<'a>(&self, comm: &'a CommSnapshot) -> Option<&'a OpSnapshot> {
        match &self.pair {
            None => Some(&comm.op),
            Some(pair) => comm.p2p.as_ref().filter(|_| pair.contains(&comm.rank)),
        }
    }
}

impl<'a> Scene<'a> {
    /// Every member of every communicator that has not ended, or ended by a failure, or by its rank's leaving in good order; and one
    /// for each rank without any.
    pub(crate) fn members(&self) -> impl Iterator<Item = (usize, &'a RankSnapshot, Option<Member<'a>>)> {
        self.job.ranks.iter().enumerate().flat_map(|(at, rank)| {
            let comms = rank.comms.iter().enumerate();
            let is_last = rank.state == State::Exited;
            let shown =
                comms.filter(move |(_, comm)| !comm.ended || comm.op.state == OpState::Failed || is_last);
            let mut members: Vec<_> =
                shown.map(|(nth, comm)| (at, rank, Some(Member { rank, comm, at: (at, nth) }))).collect();
            if members.is_empty() {
                members.push((at, rank, None));
            }
            members
        })
    }

    /// The members of one communicator, by their ranks in it.
    pub(crate) fn of_comm(&self, id: CommId) -> Vec<Member<'a>> {
        let all = self.members().filter_map(|(_, _, member)| member);
        let mut members: Vec<_> = all.filter(|member| member.comm.id == id).collect();
        members.sort_by_key(|member| member.comm.rank);
        members
    }

    /// The communicators, in the order of their first member.
    pub(crate) fn comms(&self) -> Vec<CommId> {
        let mut comms = Vec::new();
        for member in self.members().filter_map(|(_, _, member)| member) {
            if !comms.contains(&member.comm.id) {
                comms.push(member.comm.id);
            }
        }
        comms
    }

    /// The communicator in focus: the one asked for, else that in which somebody is awaited, else the first.
    pub(crate) fn focus(&self) -> Option<CommId> {
        let comms = self.comms();
        let asked = self.comm.filter(|comm| comms.contains(comm));
        let stuck = || self.job.awaited.iter().map(|one| one.comm).find(|comm| comms.contains(comm));
        asked.or_else(stuck).or_else(|| comms.first().copied())
    }

    /// Where somebody is awaited in this communicator.
    pub(crate) fn awaited_in(&self, comm: CommId) -> impl Iterator<Item = &'a Awaited> {
        self.job.awaited.iter().filter(move |one| one.comm == comm)
    }

    /// Whether this member is awaited.
    pub(crate) fn is_awaited(&self, member: &Member<'_>) -> bool {
        let rank = &member.comm.rank;
        self.awaited_in(member.comm.id).any(|one| one.missing.contains(rank) || one.inside.contains(rank))
    }

    /// The operation in focus of a communicator: that in which somebody is awaited, else a send or receive if only such are under way,
    /// else the collective that anybody called last.
    pub(crate) fn operation(&self, comm: CommId) -> Option<Focused> {
        if let Some(one) = self.awaited_in(comm).next() {
            let ends = || [&one.by, &one.missing, &one.inside, &one.unseen].into_iter().flatten().copied();
            let pair = matches!(one.op.as_str(), "Send" | "Recv").then(|| ends().collect());
            return Some(Focused { kind: one.op.clone(), seq: one.seq, pair });
        }
        let members = self.of_comm(comm);
        let collectives = members.iter().map(|member| &member.comm.op).filter(|op| !op.kind.is_empty());
        let last = collectives.max_by_key(|op| op.seq);
        let is_under_way = members.iter().any(|member| member.comm.op.state != OpState::Idle);
        let is_pair = |op: &&OpSnapshot| last.is_none() || !is_under_way && op.state != OpState::Idle;
        let mut pairs =
            members.iter().filter_map(|member| Some((member.comm.rank, member.comm.p2p.as_ref()?)));
        match pairs.find(|(_, op)| is_pair(op)) {
            Some((rank, op)) => {
                let pair = Some([Some(rank), op.peer].into_iter().flatten().collect());
                Some(Focused { kind: op.kind.clone(), seq: op.seq, pair })
            }
            None => last.map(|op| Focused { kind: op.kind.clone(), seq: op.seq, pair: None }),
        }
    }

    /// Who is awaited.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let one = self.job.awaited.first()?;
        let (ranks, how) = match (one.missing.as_slice(), one.inside.as_slice()) {
            ([], []) if one.unseen.is_empty() => (&one.by, "all wait for each other"),
            ([], []) => (&one.unseen, "could not be read"),
            ([], _) => (&one.inside, "holds it up"),
            (_, _) => match one.op.as_str() {
                "Send" => (&one.missing, "no Recv called"),
                "Recv" => (&one.missing, "no Send called"),
                _ => (&one.missing, "not called"),
            },
        };
        let member =
            |rank: &Rank| self.of_comm(one.comm).into_iter().find(|member| member.comm.rank == *rank);
        let state = match ranks.first().and_then(member).map(|member| member.rank.state) {
            Some(State::Stopped) => "STOPPED",
            Some(State::Dead) => "DEAD",
            Some(State::Exited) => "exited",
            Some(State::Running | State::Unknown) | None => "",
        };
        let state = if ranks.len() == 1 { state } else { "" };
        Some(Verdict {
            who: ranks_text(ranks),
            state,
            op: format!("{} #{}", one.op, one.seq),
            comm: name(&one.name, one.comm),
            how,
            since: duration(one.since_ns),
            by: ranks_text(&one.by),
            stands: one.since_ns >= STANDS_NS || !state.is_empty(),
            more: self.job.awaited.len() - 1,
        })
    }

    /// How a process is.
    pub(crate) fn state(&self, rank: &RankSnapshot) -> Cell {
        let g = &self.look.glyphs;
        let (glyph, word, role) = match rank.state {
            State::Running => (g.running, "running", Role::Good),
            State::Stopped => (g.stopped, "STOPPED", Role::Bad),
            State::Dead => (g.dead, "DEAD", Role::Bad),
            State::Exited => (g.exited, "exited", Role::Dim),
            State::Unknown => ('?', "unknown", Role::Dim),
        };
        Cell::text(format!("{glyph} {word}")).role(role)
    }

    /// What a member does.
    pub(crate) fn standing(&self, member: &Member<'_>) -> Cell {
        let g = &self.look.glyphs;
        let op = member.comm.operation();
        let (glyph, word, role) = match op.state {
            OpState::Failed if !self.is_awaited(member) => {
                (g.dead, format!("failed: {}", op.error), Role::Bad)
            }
            _ if self.is_awaited(member) => (g.awaited, "AWAITED".into(), Role::Bad),
            _ if member.comm.finishes() => (g.waits, "ends".into(), Role::Waits),
            _ if member.comm.phase.is_some() => (g.waits, "starts".into(), Role::Waits),
            OpState::Running if member.comm.longest_wait().is_some() => {
                (g.waits, "waits".into(), Role::Waits)
            }
            OpState::Running => (g.running, "works".into(), Role::Good),
            OpState::Idle | OpState::Failed | OpState::Unknown => (g.idle, "idle".into(), Role::Plain),
        };
        Cell::text(format!("{glyph} {word}")).role(role)
    }

    /// What a row is about, as JSON on several lines.
    pub(crate) fn json(&self, about: &About) -> Option<String> {
        let rank = |at: &usize| self.job.ranks.get(*at);
        let comm = |at: &usize, nth: &usize| rank(at).and_then(|rank| rank.comms.get(*nth));
        match about {
            About::Itself => None,
            About::Missing(at) => pretty(self.job.missing.get(*at)),
            About::Rank(at) => pretty(rank(at)),
            About::Comm(at, nth) => pretty(comm(at, nth)),
            About::Link(at, nth, link) => pretty(comm(at, nth).and_then(|comm| comm.links.get(*link))),
            About::Line(number) => pretty(self.log.entries().find(|entry| entry.number == *number)),
            About::Durations(at) => pretty(super::views::latency::json(self, *at).as_ref()),
        }
    }
}

/// As it stands in `snapshot --json`, on several lines.
fn pretty<T: serde::Serialize>(value: Option<&T>) -> Option<String> {
    serde_json::to_string_pretty(value?).ok()
}

/// `AllReduce #5`
pub(crate) fn operation_text(comm: &CommSnapshot) -> String {
    match (&comm.phase, comm.operation()) {
        (Some(_), _) if comm.finishes() => "in finish()".into(),
        (Some(phase), _) => format!("start: {}", phase.phase),
        (None, op) if op.kind.is_empty() => "-".into(),
        (None, op) => format!("{} #{}", op.kind, op.seq),
    }
}

/// A host, for people: emulated ones share a name.
pub(crate) fn host(rank: &RankSnapshot) -> String {
    match rank.host_id.as_str() {
        "" => rank.host.clone(),
        id => format!("{}/{id}", rank.host),
    }
}

/// A channel, for people.
pub(crate) fn channel(channel: ChannelId) -> String {
    match channel {
        ChannelId::P2P => "p2p".into(),
        ChannelId(number) => format!("ch{number}"),
    }
}

/// Bytes with three digits and a unit.
pub(crate) fn bytes(bytes: u64) -> String {
    words::bytes(bytes as f64)
}

/// The fields that a rank's row can be filtered by.
pub(crate) fn fields(rank: &RankSnapshot, comm: Option<&CommSnapshot>) -> Vec<(&'static str, String)> {
    let mut fields = vec![("state", rank.state.to_string()), ("host", host(rank))];
    if let Some(comm) = comm {
        fields.push(("comm", name(&comm.name, comm.id)));
        fields.push(("op", operation_text(comm)));
        fields.push(("state", comm.operation().state.to_string()));
    }
    fields
}
