//! The data that views are given: a snapshot with its surroundings, and the queries that all views
//! make. Pure.

use std::collections::BTreeSet;

use ccl::diagnose::{Severity, comms_named, is_pair, severity};
use ccl::recorder::reader::Histogram;
use ccl::snapshot::{BlockedOn, CommSnapshot, Failure, OpSnapshot, OpState, RankSnapshot, Snapshot, State};
use ccl::types::{ChannelId, CommId, Rank};

use super::history::Rates;
use super::listing::{About, Cell, Look};
use super::log::Log;
use super::palette::Role;
use crate::words;

pub(crate) use ccl::diagnose::comm_name as name;

/// The input of a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    /// The job.
    pub(crate) job: &'a Snapshot,
    /// The communicator that the user chose.
    pub(crate) comm: Option<CommId>,
    /// The communicators to which the screens are narrowed; `None`: all are shown.
    pub(crate) only: Option<&'a BTreeSet<CommId>>,
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

/// The communicators to which the screens are narrowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Only {
    /// Their name, or the id of one.
    pub(crate) name: String,
    /// Those that the job has, or had when it last had one.
    pub(crate) comms: BTreeSet<CommId>,
}

impl Only {
    /// Those of this name or id, once they have been looked for.
    pub(crate) const fn named(name: String) -> Self {
        Self { name, comms: BTreeSet::new() }
    }

    /// Looks for them in the job.
    pub(crate) fn look(&mut self, job: &Snapshot) {
        if let Ok(comms) = comms_named(job.ranks.iter().flat_map(|rank| &rank.comms), &self.name) {
            self.comms = comms;
        }
    }
}

/// A rank's part of a communicator, and the place of both in the snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) rank: &'a RankSnapshot,
    pub(crate) comm: &'a CommSnapshot,
    pub(crate) at: (usize, usize),
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
    /// The members of the communicators to show, and, if all are, one entry for each rank without
    /// any.
    pub(crate) fn members(&self) -> impl Iterator<Item = (usize, &'a RankSnapshot, Option<Member<'a>>)> {
        let only = self.only;
        self.all_members().filter(move |(_, _, member)| {
            only.is_none_or(|only| member.is_some_and(|member| only.contains(&member.comm.id)))
        })
    }

    /// Whether a communicator is shown.
    pub(crate) fn shows(&self, comm: CommId) -> bool {
        self.only.is_none_or(|only| only.contains(&comm))
    }

    /// The communicators of the job, shown or not.
    pub(crate) fn all_comms(&self) -> BTreeSet<CommId> {
        self.all_members().filter_map(|(_, _, member)| Some(member?.comm.id)).collect()
    }

    /// Whether the job has several communicators.
    pub(crate) fn has_several(&self) -> bool {
        let mut ids = self.all_members().filter_map(|(_, _, member)| Some(member?.comm.id));
        let first = ids.next();
        ids.any(|id| Some(id) != first)
    }

    /// Whether the job has queue pairs.
    pub(crate) fn has_queue_pairs(&self) -> bool {
        let mut rows = self.job.ranks.iter().flat_map(|rank| &rank.comms);
        rows.any(|row| row.links.iter().any(|link| !link.queue_pairs.is_empty()))
    }

    /// The members of all communicators, and one entry for each rank without any.
    ///
    /// A communicator is shown if it has not ended, if it ended by a failure, or if its rank left
    /// in good order.
    fn all_members(&self) -> impl Iterator<Item = (usize, &'a RankSnapshot, Option<Member<'a>>)> {
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
        let mut seen = BTreeSet::new();
        let all = self.members().filter_map(|(_, _, member)| Some(member?.comm.id));
        all.filter(|id| seen.insert(*id)).collect()
    }

    /// Whether a number in the communicator and in the job differ for one of these ranks.
    pub(crate) fn are_renumbered<'b>(mut members: impl Iterator<Item = Member<'b>>) -> bool {
        members.any(|member| member.comm.rank != member.rank.rank)
    }

    /// The communicator in focus.
    ///
    /// The one that the user chose, else one in which a rank blocks others, else the first.
    pub(crate) fn focus(&self) -> Option<CommId> {
        let comms = self.comms();
        let asked = self.comm.filter(|comm| comms.contains(comm));
        let failed = self.job.failures.iter().map(|one| one.comm);
        let mut stuck = failed.chain(self.job.said().map(|one| one.comm));
        let stuck = || stuck.find(|comm| comms.contains(comm));
        asked.or_else(stuck).or_else(|| comms.first().copied())
    }

    /// The ranks of this communicator that block others, for waits long enough to be reported.
    pub(crate) fn blocking_in(&self, comm: CommId) -> impl Iterator<Item = &'a BlockedOn> + use<'a> {
        self.job.said().filter(move |one| one.comm == comm)
    }

    /// The meaning of a wait of this length in an operation of this `p99_ns`, 0 if not known; a
    /// short wait has none.
    pub(crate) const fn role_of_wait(&self, since_ns: u64, p99_ns: u64) -> Role {
        match severity(since_ns, p99_ns, self.stall_ns) {
            Severity::Normal => Role::Plain,
            Severity::Suspect => Role::Waits,
            Severity::Stalled => Role::Bad,
        }
    }

    /// The meaning of this member blocking others; `Plain` also if it does not.
    pub(crate) fn role_of_blocking(&self, member: &Member<'_>) -> Role {
        let found = self.blocking_in(member.comm.id).find(|one| one.is_held_by(member.comm.rank));
        match (member.rank.state, found) {
            _ if self.is_blamed(member) => Role::Bad,
            (_, None) => Role::Plain,
            (State::Dead, _) => Role::Bad,
            (_, Some(one)) => self.role_of_wait(one.since_ns, one.p99_ns),
        }
    }

    /// Whether this member blocks others or is to blame for a failure.
    pub(crate) fn blocks_others(&self, member: &Member<'_>) -> bool {
        self.job.blocks_others(member.comm.id, member.comm.rank)
    }

    /// Whether this member is to blame for a failure.
    pub(crate) fn is_blamed(&self, member: &Member<'_>) -> bool {
        self.job.is_blamed(member.comm.id, member.comm.rank)
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
            let pair = is_pair(&one.op).then(|| ends().collect());
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
        let pair = is_pair(kind).then(|| {
            let of_pair = |member: &Member<'_>| {
                let op = member.comm.p2p.as_ref()?;
                let is_it = (&op.kind, op.seq, op.state) == (kind, *seq, OpState::Failed);
                is_it.then(|| [Some(member.comm.rank), op.peer].into_iter().flatten().collect())
            };
            self.of_comm(comm).iter().find_map(of_pair).unwrap_or_default()
        });
        Some(Focused { kind: kind.clone(), seq: *seq, pair })
    }

    /// The state of a process.
    pub(crate) fn state(&self, rank: &RankSnapshot) -> Cell {
        let g = &self.look.glyphs;
        let (glyph, word, role) = match rank.state {
            State::Running => (g.running, "running", Role::Good),
            State::Stopped => (g.stopped, "STOPPED", Role::Waits),
            State::Dead => (g.dead, "DEAD", Role::Bad),
            State::Exited if rank.has_failed() => (g.dead, "exited, failed", Role::Bad),
            State::Exited => (g.exited, "exited", Role::Dim),
            State::Left if rank.has_failed() => (g.dead, "left, failed", Role::Bad),
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
            _ if member.comm.finishes() => (g.waits, "ends".into(), calm(self.role_of_wait(phase_ns, 0))),
            _ if member.comm.phase.is_some() => {
                (g.waits, "starts".into(), calm(self.role_of_wait(phase_ns, 0)))
            }
            OpState::Running => match member.comm.long_wait() {
                Some((since_ns, _)) => {
                    (g.waits, "waits".into(), calm(self.role_of_wait(since_ns, op.p99_ns)))
                }
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
            About::Communicator(id) => pretty(super::views::communicators::json(self, *id).as_ref()),
            About::Durations(at) => pretty(super::views::latency::json(self, *at).as_ref()),
        }
    }
}

/// The meaning of a wait for the rank that waits: it is never a culprit, however long it waits.
pub(crate) const fn calm(role: Role) -> Role {
    if matches!(role, Role::Bad) { Role::Waits } else { role }
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
