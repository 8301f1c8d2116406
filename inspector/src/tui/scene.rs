//! The data that views are given: a snapshot with its surroundings, and the queries that all views
//! make. Pure.

use std::collections::BTreeSet;

use ccl::diagnose::{call_name, duration, ranks_text};
use ccl::recorder::reader::Histogram;
use ccl::snapshot::{
    BlockedOn, CommSnapshot, Failure, LinkSnapshot, OpSnapshot, OpState, RankSnapshot, Snapshot, State,
};
use ccl::types::{ChannelId, CommId, Rank};

use super::history::Rates;
use super::listing::{About, Cell, Look};
use super::log::Log;
use super::palette::Role;
use crate::words;

pub(crate) use ccl::diagnose::comm_name as name;

/// Shorter waits are not reported: every healthy job has many of them.
const SAID_NS: u64 = 100_000_000;
/// Shorter waits have no colour: they come from a checkpoint, a first contact or a busy machine.
const STANDS_NS: u64 = 1_000_000_000;

/// The input of a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    /// The job.
    pub(crate) job: &'a Snapshot,
    /// The communicator that the user chose.
    pub(crate) comm: Option<CommId>,
    /// The length from which a wait is called a stall.
    pub(crate) stall_ns: u64,
    /// The durations of operations so far; `None` if they were not read then.
    pub(crate) histograms: Option<&'a [Histogram]>,
    /// The rates of all ranks.
    pub(crate) rates: &'a Rates,
    /// The log.
    pub(crate) log: &'a Log,
    /// The moment that is shown, in nanoseconds since 1970; later log lines are not shown yet.
    pub(crate) until_ns: u64,
    /// Colours and glyphs.
    pub(crate) look: Look,
}

/// A rank's part of a communicator, and the place of both in the snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) rank: &'a RankSnapshot,
    pub(crate) comm: &'a CommSnapshot,
    pub(crate) at: (usize, usize),
}

/// The failure, or the ranks that block others, in words that fit on a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Headline {
    /// Whether it is a failure: then `who` is to blame, or empty if that is not known.
    pub(crate) failed: bool,
    /// `rank 2`
    pub(crate) who: String,
    /// `stopped`; empty if it runs.
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
    /// The meaning of a wait of this length.
    pub(crate) role: Role,
    /// The number of further failures or waits.
    pub(crate) more: usize,
}

/// The operation that a screen shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Focused {
    /// `AllReduce`
    pub(crate) kind: String,
    /// The number of the call: among all collectives, or among those between two ranks.
    pub(crate) seq: u64,
    /// The two ranks of a send or receive; `None` for a collective, which concerns every rank.
    pub(crate) pair: Option<BTreeSet<Rank>>,
}

impl Focused {
    /// A rank's state of it; `None` if it does not concern the rank.
    pub(crate) fn of<'a>(&self, comm: &'a CommSnapshot) -> Option<&'a OpSnapshot> {
        match &self.pair {
            None => Some(&comm.op),
            Some(pair) => comm.p2p.as_ref().filter(|_| pair.contains(&comm.rank)),
        }
    }
}

impl<'a> Scene<'a> {
    /// The members of the communicators to show, and one entry for each rank without any.
    ///
    /// A communicator is shown if it has not ended, if it ended by a failure, or if its rank left
    /// in good order.
    pub(crate) fn members(&self) -> impl Iterator<Item = (usize, &'a RankSnapshot, Option<Member<'a>>)> {
        self.job.ranks.iter().enumerate().flat_map(|(at, rank)| {
            let comms = rank.comms.iter().enumerate();
            let is_last = matches!(rank.state, State::Exited | State::Left);
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

    /// The communicator in focus.
    ///
    /// The one that the user chose, else one in which a rank blocks others, else the first.
    pub(crate) fn focus(&self) -> Option<CommId> {
        let comms = self.comms();
        let asked = self.comm.filter(|comm| comms.contains(comm));
        let failed = self.job.failures.iter().map(|one| one.comm);
        let mut stuck = failed.chain(self.blocked_on().map(|one| one.comm));
        let stuck = || stuck.find(|comm| comms.contains(comm));
        asked.or_else(stuck).or_else(|| comms.first().copied())
    }

    /// The ranks that block others, for waits long enough to be reported.
    pub(crate) fn blocked_on(&self) -> impl Iterator<Item = &'a BlockedOn> + use<'a> {
        blocked_on(self.job)
    }

    /// The same in this communicator.
    pub(crate) fn blocking_in(&self, comm: CommId) -> impl Iterator<Item = &'a BlockedOn> + use<'a> {
        self.blocked_on().filter(move |one| one.comm == comm)
    }

    /// The meaning of a wait of this length; a short wait has none.
    pub(crate) const fn role_of_wait(&self, since_ns: u64) -> Role {
        if since_ns >= self.stall_ns {
            Role::Bad
        } else if since_ns >= STANDS_NS {
            Role::Waits
        } else {
            Role::Plain
        }
    }

    /// The meaning of this member blocking others; `Plain` also if it does not.
    pub(crate) fn role_of_blocking(&self, member: &Member<'_>) -> Role {
        let rank = &member.comm.rank;
        let mut those = self.blocking_in(member.comm.id);
        let found = those.find(|one| one.missing.contains(rank) || one.inside.contains(rank));
        match (member.rank.state, found) {
            _ if self.is_blamed(member) => Role::Bad,
            (_, None) => Role::Plain,
            (State::Dead, _) => Role::Bad,
            (_, Some(one)) => self.role_of_wait(one.since_ns),
        }
    }

    /// Whether this member blocks others or is to blame for a failure.
    pub(crate) fn blocks_others(&self, member: &Member<'_>) -> bool {
        let rank = &member.comm.rank;
        self.blocking_in(member.comm.id).any(|one| one.missing.contains(rank) || one.inside.contains(rank))
            || self.is_blamed(member)
    }

    /// Whether this member is to blame for a failure.
    pub(crate) fn is_blamed(&self, member: &Member<'_>) -> bool {
        let CommSnapshot { id, rank, .. } = member.comm;
        self.job.failures.iter().any(|failure| failure.comm == *id && failure.blamed.contains(rank))
    }

    /// The operation in focus of a communicator.
    ///
    /// One that failed or in which a rank blocks others, else a send or receive if only those are
    /// under way, else the collective that was called last.
    pub(crate) fn operation(&self, comm: CommId) -> Option<Focused> {
        if let Some(failed) = self.failed_in(comm) {
            return Some(failed);
        }
        if let Some(one) = self.blocking_in(comm).next() {
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

    /// The failed operation of a communicator that the first line names.
    fn failed_in(&self, comm: CommId) -> Option<Focused> {
        let Failure { op: kind, seq, .. } =
            self.job.failures.iter().find(|failure| failure.comm == comm && !failure.op.is_empty())?;
        let pair = matches!(kind.as_str(), "Send" | "Recv").then(|| {
            let of_pair = |member: &Member<'_>| {
                let op = member.comm.p2p.as_ref()?;
                let is_it = (&op.kind, op.seq, op.state) == (kind, *seq, OpState::Failed);
                is_it.then(|| [Some(member.comm.rank), op.peer].into_iter().flatten().collect())
            };
            self.of_comm(comm).iter().find_map(of_pair).unwrap_or_default()
        });
        Some(Focused { kind: kind.clone(), seq: *seq, pair })
    }

    /// The failure or the ranks that block others.
    pub(crate) fn verdict(&self) -> Option<Headline> {
        if let Some(failure) = self.job.failures.first() {
            return Some(self.failed(failure));
        }
        let one = self.blocked_on().next()?;
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
        // A rank that lacks an earlier call than the one the others wait in is blamed for that
        // earlier call.
        let lacking = self.job.lacking(one).into_iter().next();
        let (ranks, how) = match &lacking {
            Some(lacks) if lacks.inside.is_some() => (&lacks.ranks, "holds it up"),
            Some(lacks) => (&lacks.ranks, how),
            None => (ranks, how),
        };
        let state = self.state_of(one.comm, ranks);
        let op =
            lacking.as_ref().map(|lacks| lacks.inside.clone().unwrap_or_else(|| format!("#{}", lacks.seq)));
        Some(Headline {
            failed: false,
            who: ranks_text(ranks),
            state,
            op: op.unwrap_or_else(|| call_name(&one.op, one.seq)),
            comm: name(&one.name, one.comm),
            how,
            since: duration(one.since_ns),
            by: ranks_text(&one.by),
            role: if state == "DEAD" { Role::Bad } else { self.role_of_wait(one.since_ns) },
            more: self.blocked_on().count() - 1,
        })
    }

    /// The failure, and the ranks that are to blame.
    fn failed(&self, failure: &Failure) -> Headline {
        let how = match failure.error.as_str() {
            "Mismatch" => "mismatch",
            "Peer" => "peer gone",
            "Timeout" => "time-out",
            "Aborted" => "aborted",
            _ => "failed",
        };
        let is_known = !failure.blamed.is_empty();
        Headline {
            failed: true,
            who: if is_known { ranks_text(&failure.blamed) } else { String::new() },
            state: self.state_of(failure.comm, &failure.blamed),
            op: if failure.op.is_empty() {
                String::new()
            } else {
                format!("{} #{}", failure.op, failure.seq)
            },
            comm: name(&failure.name, failure.comm),
            how,
            since: duration(failure.since_ns),
            by: ranks_text(&failure.ranks),
            role: Role::Bad,
            more: self.job.failures.len() - 1,
        }
    }

    /// The state of a single rank's process, if it is worth a word.
    fn state_of(&self, comm: CommId, ranks: &[Rank]) -> &'static str {
        let [rank] = ranks else { return "" };
        let member = self.of_comm(comm).into_iter().find(|member| member.comm.rank == *rank);
        match member.map(|member| member.rank.state) {
            Some(State::Stopped) => "STOPPED",
            Some(State::Dead) => "DEAD",
            Some(State::Exited) => "exited",
            Some(State::Left) => "left",
            Some(State::Running | State::Unknown) | None => "",
        }
    }

    /// The state of a process.
    pub(crate) fn state(&self, rank: &RankSnapshot) -> Cell {
        let g = &self.look.glyphs;
        let (glyph, word, role) = match rank.state {
            State::Running => (g.running, "running", Role::Good),
            State::Stopped => (g.stopped, "STOPPED", Role::Waits),
            State::Dead => (g.dead, "DEAD", Role::Bad),
            State::Exited if has_failed(rank) => (g.dead, "exited, failed", Role::Bad),
            State::Exited => (g.exited, "exited", Role::Dim),
            State::Left if has_failed(rank) => (g.dead, "left, failed", Role::Bad),
            State::Left => (g.exited, "left", Role::Dim),
            State::Unknown => ('?', "unknown", Role::Dim),
        };
        Cell::text(format!("{glyph} {word}")).role(role)
    }

    /// What a member does.
    pub(crate) fn standing(&self, member: &Member<'_>) -> Cell {
        let g = &self.look.glyphs;
        let op = member.comm.operation();
        let phase_ns = member.comm.phase.as_ref().map_or(0, |phase| phase.duration_ns);
        let (glyph, word, role) = match op.state {
            OpState::Failed if !self.blocks_others(member) => {
                (g.dead, format!("failed: {}", op.error), Role::Bad)
            }
            _ if self.is_blamed(member) => (g.dead, "TO BLAME".into(), Role::Bad),
            _ if self.blocks_others(member) => {
                (g.blocked_on, "BLOCKING".into(), self.role_of_blocking(member))
            }
            _ if member.comm.finishes() => (g.waits, "ends".into(), calm(self.role_of_wait(phase_ns))),
            _ if member.comm.phase.is_some() => (g.waits, "starts".into(), calm(self.role_of_wait(phase_ns))),
            OpState::Running => match wait_of(member.comm) {
                Some((since_ns, _)) => (g.waits, "waits".into(), calm(self.role_of_wait(since_ns))),
                None => (g.running, "works".into(), Role::Good),
            },
            OpState::Idle | OpState::Failed | OpState::Unknown => {
                (g.idle, "in user code".into(), Role::Plain)
            }
        };
        Cell::text(format!("{glyph} {word}")).role(role)
    }

    /// The item of a row, as JSON on several lines.
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

/// How long a link has waited, if the wait is long enough to be reported.
pub(crate) fn waits_ns(link: &LinkSnapshot) -> Option<u64> {
    Some(link.since_ns).filter(|since_ns| link.is_waiting() && *since_ns >= SAID_NS)
}

/// How long a member has waited and for which rank, if the wait is long enough to be reported.
///
/// The operation decides first: it may wait before a link exists.
pub(crate) fn wait_of(comm: &CommSnapshot) -> Option<(u64, Option<Rank>)> {
    let of_operation = comm.operation().wait.as_ref().filter(|wait| wait.since_ns >= SAID_NS);
    of_operation.map(|wait| (wait.since_ns, Some(wait.peer))).or_else(|| {
        let link = comm.longest_wait()?;
        Some((waits_ns(link)?, link.waits_for.or(link.peer)))
    })
}

/// The meaning of a wait for the rank that waits: it is never a culprit, however long it waits.
pub(crate) const fn calm(role: Role) -> Role {
    if matches!(role, Role::Bad) { Role::Waits } else { role }
}

/// Whether an operation of this rank has failed.
pub(crate) fn has_failed(rank: &RankSnapshot) -> bool {
    let failed = |comm: &CommSnapshot| {
        comm.op.state == OpState::Failed || comm.p2p.as_ref().is_some_and(|op| op.state == OpState::Failed)
    };
    rank.comms.iter().any(failed)
}

/// The ranks that block others: for long enough to be reported, or because they are gone.
pub(crate) fn blocked_on(job: &Snapshot) -> impl Iterator<Item = &BlockedOn> {
    let is_gone = |one: &BlockedOn| {
        let gone = job.ranks.iter().filter(|rank| rank.is_gone());
        let mut comms = gone.flat_map(|rank| &rank.comms).filter(|comm| comm.id == one.comm);
        comms.any(|comm| one.missing.contains(&comm.rank) || one.inside.contains(&comm.rank))
    };
    job.blocked_on.iter().filter(move |one| one.is_long() || is_gone(one))
}

/// The JSON of `snapshot --json`, on several lines.
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

/// The name of a host for display; emulated hosts share a host name.
pub(crate) fn host(rank: &RankSnapshot) -> String {
    match rank.host_id.as_str() {
        "" => rank.host.clone(),
        id => format!("{}/{id}", rank.host),
    }
}

/// The name of a channel for display.
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
