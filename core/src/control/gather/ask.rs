//! A question under way: the hosts and ranks that are asked, and what is known of them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::message::{MAX_WITHOUT, WaveMessage};
use super::tree::HostTree;
use crate::clock::Ns;
use crate::snapshot::{ClockOffset, ProcessSnapshot};
use crate::types::{CommId, Rank};

/// How long a rank may tell nothing of its host before another one of it is asked.
pub(super) const SOFT: Duration = Duration::from_secs(1);
/// How long the ranks of a host may be silent before they are given up.
pub(super) const HARD: Duration = Duration::from_secs(5);
/// How often a process says that it still answers.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// The longest time for a whole answer: several levels of the tree may have to be given up.
pub(super) const WHOLE: Duration = Duration::from_secs(20);

/// A connection, up or being made. Numbers are never reused.
pub(super) type EdgeId = u64;
/// A rank of a communicator in this process.
pub(super) type Seat = (CommId, Rank);

/// A process among all processes of a job.
pub(super) type Who = (String, u64, u32, u64);

pub(super) fn who(process: &ProcessSnapshot) -> Who {
    (process.boot_id.clone(), process.pid_namespace, process.pid, process.made_real_ns)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Dialling,
    Asked,
    /// It answers.
    Heard(ClockOffset),
    Done,
    Failed,
}

/// One rank that is asked.
#[derive(Debug)]
pub(super) struct Try {
    pub(super) edge: EdgeId,
    pub(super) peer: Rank,
    pub(super) since: Ns,
    /// When it was last heard.
    pub(super) last: Ns,
    pub(super) sent_ns: u64,
    /// Whether the connection was made for this question.
    pub(super) is_own: bool,
    pub(super) stage: Stage,
    /// Whether it has told of a process of its host.
    pub(super) has_told: bool,
}

/// One host that is asked.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) seat: Seat,
    pub(super) host: usize,
    pub(super) since: Ns,
    pub(super) tries: Vec<Try>,
    /// No further rank of it may be asked.
    pub(super) none_left: bool,
    /// The hosts behind it are asked from here.
    pub(super) is_bypassed: bool,
    /// Why the ranks that were tried did not answer.
    pub(super) why: Vec<String>,
    pub(super) is_over: bool,
}

#[derive(Debug)]
pub(super) struct Wave {
    /// Who asked; `None`: somebody here.
    pub(super) from: Option<EdgeId>,
    /// What is repeated to it.
    pub(super) heard: Option<WaveMessage>,
    /// The communicator of `from`, and leaders of it that are not to be asked.
    pub(super) without: Option<(CommId, Vec<Rank>)>,
    pub(super) asks: Vec<Ask>,
    pub(super) is_reading: bool,
    pub(super) told: BTreeSet<Who>,
    pub(super) bytes: usize,
    pub(super) lacks: usize,
    pub(super) is_full: bool,
    pub(super) until: Ns,
    pub(super) beat: Ns,
}

impl Ask {
    /// Of a host that is to be asked.
    pub(super) const fn of(seat: Seat, host: usize, now: Ns) -> Self {
        Self {
            seat,
            host,
            since: now,
            tries: Vec::new(),
            none_left: false,
            is_bypassed: false,
            why: Vec::new(),
            is_over: false,
        }
    }

    /// Whether a rank answers, or will if it goes on as it has begun.
    pub(super) fn is_heard(&self) -> bool {
        self.tries.iter().any(|one| matches!(one.stage, Stage::Heard(_)))
    }

    /// Whether a rank has told of its host, so that no other one is to be asked. One that is not
    /// given the processor says for long that it answers, before it has read its host.
    pub(super) fn is_told(&self) -> bool {
        let tells = |one: &Try| one.has_told && matches!(one.stage, Stage::Heard(_));
        self.tries.iter().any(|one| one.stage == Stage::Done || tells(one))
    }

    /// Whether the rank that was asked last has had its time, so that another one is to be asked.
    pub(super) fn is_silent(&self, now: Ns) -> bool {
        let is_silent = |one: &Try| one.stage == Stage::Failed || now.since(one.since) >= SOFT;
        self.tries.last().is_none_or(is_silent)
    }

    /// A rank that began to answer and is silent now does not count any more.
    pub(super) fn drop_silent(&mut self, now: Ns) {
        for one in &mut self.tries {
            if matches!(one.stage, Stage::Heard(_)) && now.since(one.last) >= HARD {
                one.stage = Stage::Failed;
                self.why.push(format!("rank {} began to answer and then fell silent", one.peer));
            }
        }
    }

    /// Nobody waits for this host any more; its ranks that have not failed `did_not`.
    pub(super) fn give_up(&mut self, did_not: &str) {
        let silent = self.tries.iter().filter(|one| !matches!(one.stage, Stage::Failed | Stage::Done));
        self.why.extend(silent.map(|one| format!("rank {} {did_not}", one.peer)));
        self.is_over = true;
    }
}

impl Wave {
    /// Without anything to be done yet.
    pub(super) const fn beginning(now: Ns) -> Self {
        Self {
            from: None,
            heard: None,
            without: None,
            asks: Vec::new(),
            is_reading: false,
            told: BTreeSet::new(),
            bytes: 0,
            lacks: 0,
            is_full: false,
            until: now,
            beat: now.after(BEAT),
        }
    }

    /// The edges that it uses.
    pub(super) fn edges(&self) -> impl Iterator<Item = EdgeId> + '_ {
        let tries = self.asks.iter().filter(|ask| !ask.is_over).flat_map(|ask| &ask.tries);
        tries.map(|one| one.edge).chain(self.from)
    }

    /// When something of it may be due.
    pub(super) fn due(&self) -> impl Iterator<Item = Ns> + '_ {
        let asks = self.asks.iter().filter(|ask| !ask.is_over);
        let of_ask = |ask: &Ask| {
            let last = ask.tries.last().filter(|_| !ask.none_left && !ask.is_told());
            let soft = last.map(|one| one.since.after(SOFT));
            let heard = ask.tries.iter().filter(|one| matches!(one.stage, Stage::Heard(_)));
            let heard = heard.map(|one| one.last.after(HARD)).min();
            let hard = heard.is_none().then(|| ask.since.after(HARD));
            [soft, hard, heard].into_iter().flatten().min()
        };
        asks.filter_map(of_ask).chain(self.from.map(|_| self.beat)).chain([self.until])
    }

    /// The leaders of this communicator that are not to be asked, as who asked has said.
    pub(super) fn without(&self, comm: CommId) -> &[Rank] {
        self.without.as_ref().filter(|(of, _)| *of == comm).map_or(&[], |(_, ranks)| ranks)
    }

    /// The question, as it is passed on over a communicator. The hosts that are bypassed need not
    /// be asked by others.
    pub(super) fn question(&self, wave: u64, tree: Option<&HostTree>, seat: Seat, now: Ns) -> WaveMessage {
        let bypassed = self.asks.iter().filter(|ask| ask.is_bypassed && ask.seat == seat);
        let leaders = bypassed.filter_map(|ask| tree?.ranks(ask.host).first()).copied();
        let all: BTreeSet<Rank> = leaders.chain(self.without(seat.0).iter().copied()).collect();
        let left_ms = self.until.since(now).as_millis() as u64;
        let without = all.into_iter().take(MAX_WITHOUT).collect();
        WaveMessage::Ask { wave, sent_ns: now.0, left_ms, without }
    }
}
