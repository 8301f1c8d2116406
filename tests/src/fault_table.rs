//! The fault table: one fault, or two at once, in a job on two hosts that see nothing of each
//! other, and what either of them says of it.

use std::fmt;
use std::time::Duration;

use ccl::clock;
use ccl::seed::Seed;
use ccl::snapshot::{Class, Reason, Side, Snapshot, Standing, Verdict};
use rustix::process::Signal;

use crate::apart::{Apart, signal};
use crate::job::{Job, PATIENCE, Worker};
use crate::programs::text;

/// Ranks of a job, half of them on each host.
pub const RANKS: u32 = 8;

/// `CCL_STALL_AFTER` of the jobs.
const STALL_AFTER: &str = "2";

/// The step that every rank takes last before the fault: all are at work.
const AT_WORK: usize = 2;

/// What goes wrong with one rank, the victim, or with the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is stopped while it calls one collective after another.
    StoppedInside,
    /// It is stopped in user code.
    StoppedOutside,
    /// It is killed.
    Killed,
    /// It ends without leaving the communicator.
    Exits,
    /// It panics.
    Panics,
    /// It does not call what the others call.
    CallsNothing,
    /// It never starts.
    NeverJoins,
    /// It calls another operation.
    Kind,
    /// It calls with another element type.
    Dtype,
    /// It calls with another operator.
    Operator,
    /// It calls with another root.
    Root,
    /// It calls with another number of elements.
    Count,
    /// It finishes while the others call.
    Finishes,
    /// It and the next rank receive from each other.
    Circle,
    /// The network between the hosts is cut.
    Cut,
}

/// What must be said of a fault.
struct Due {
    class: Class,
    reason: Reason,
    side: Side,
    /// A part of one of the next commands.
    next: &'static str,
}

impl Fault {
    /// The class that is due.
    #[must_use]
    pub fn class(self) -> Class {
        self.due().class
    }

    /// The table.
    pub const ALL: [Self; 15] = [
        Self::StoppedInside,
        Self::StoppedOutside,
        Self::Killed,
        Self::Exits,
        Self::Panics,
        Self::CallsNothing,
        Self::NeverJoins,
        Self::Kind,
        Self::Dtype,
        Self::Operator,
        Self::Root,
        Self::Count,
        Self::Finishes,
        Self::Circle,
        Self::Cut,
    ];

    fn due(self) -> Due {
        let due = |class, reason, side, next| Due { class, reason, side, next };
        let called = |reason| due(Class::Mismatch, reason, Side::Application, "ccl-inspect explain ");
        match self {
            Self::StoppedInside | Self::StoppedOutside => {
                due(Class::StuckLocal, Reason::Stopped, Side::Machine, "kill -CONT ")
            }
            Self::Killed => due(Class::PeerDead, Reason::Killed, Side::Machine, "journalctl -k "),
            Self::Exits => due(Class::PeerDead, Reason::Exited, Side::Application, "ccl-inspect dump "),
            Self::Panics => due(Class::PeerDead, Reason::Panicked, Side::Application, "ccl-inspect dump "),
            Self::CallsNothing => {
                due(Class::NotJoined, Reason::UserCode, Side::Application, "ccl-inspect stack ")
            }
            Self::NeverJoins => {
                due(Class::NotJoined, Reason::NeverJoined, Side::Application, "ccl-inspect ps")
            }
            Self::Kind => called(Reason::Kind),
            Self::Dtype => called(Reason::Dtype),
            Self::Operator => called(Reason::Operator),
            Self::Root => called(Reason::Root),
            Self::Count => called(Reason::Count),
            Self::Finishes => called(Reason::Finished),
            Self::Circle => due(Class::Deadlock, Reason::Cycle, Side::Application, "ccl-inspect stack "),
            Self::Cut => due(Class::Link, Reason::Unreachable, Side::Network, "ss -tino"),
        }
    }

    /// The steps of a rank from the fault on.
    fn steps(self, rank: u32, victim: u32) -> String {
        let is_victim = rank == victim;
        let or = |its: &str, others: &str| String::from(if is_victim { its } else { others });
        match self {
            Self::StoppedInside | Self::Killed | Self::Cut => "loop 1000000000 1000".into(),
            Self::StoppedOutside => or("sleep 600000", "all_reduce 1000"),
            Self::Exits => or("exit", "all_reduce 1000"),
            Self::Panics => or("panic", "all_reduce 1000"),
            Self::CallsNothing => or("sleep 600000", "all_reduce 1000"),
            Self::NeverJoins => "finish".into(),
            Self::Kind => or("barrier", "all_reduce 1000"),
            Self::Dtype => or("integers 1000", "all_reduce 1000"),
            Self::Operator => or("max 1000", "all_reduce 1000"),
            Self::Root => or("broadcast 1 1000", "broadcast 0 1000"),
            Self::Count => or("all_reduce 1001", "all_reduce 1000"),
            Self::Finishes => or("finish; hold", "all_reduce 1000"),
            Self::Circle => match () {
                () if is_victim => format!("recv {} 10", next(victim)),
                () if rank == next(victim) => format!("recv {victim} 10"),
                () => "hold".into(),
            },
        }
    }

    /// Does to the victim or the network what no step of a rank does.
    fn strike(self, hosts: &Apart, job: &Job, victim: u32) {
        match self {
            Self::StoppedInside | Self::StoppedOutside => signal(job, victim as usize, Signal::STOP),
            Self::Killed => signal(job, victim as usize, Signal::KILL),
            Self::Cut => hosts.network.mute(),
            _ => {}
        }
    }

    /// The ranks to blame, if this host is asked.
    fn culprits(self, victim: u32, asked: usize) -> Vec<u32> {
        match self {
            Self::Circle => {
                let mut both = vec![victim, next(victim)];
                both.sort_unstable();
                both
            }
            // Whom it cannot reach.
            Self::Cut => (0..RANKS).filter(|rank| host_of(*rank) != asked).collect(),
            _ => vec![victim],
        }
    }

    /// Why a verdict is not what is due; `None` if it is.
    fn denies(self, victim: u32, asked: usize, verdict: &Verdict) -> Option<String> {
        let Due { class, reason, side, next } = self.due();
        let due = (class, reason, side);
        let said = (verdict.class, verdict.reason, verdict.side);
        let blamed: Vec<u32> = verdict.culprits.iter().map(|one| one.rank.0).collect();
        let culprits = self.culprits(victim, asked);
        let is_blamed = match self {
            // Those whose messages it lacks.
            Self::Cut => !blamed.is_empty() && blamed.iter().all(|rank| culprits.contains(rank)),
            _ => blamed == culprits,
        };
        match () {
            () if said != due => Some(format!("{said:?} instead of {due:?}: {}", verdict.why)),
            () if !is_blamed => Some(format!("blames {blamed:?}, not {culprits:?}: {}", verdict.why)),
            () if !verdict.next.iter().any(|one| one.command.contains(next)) => {
                Some(format!("no {next:?} in {:?}", verdict.next))
            }
            () => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

const fn next(rank: u32) -> u32 {
    (rank + 1) % RANKS
}

const fn host_of(rank: u32) -> usize {
    (rank >= RANKS / 2) as usize
}

/// One job with its faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Round {
    /// The faults and their victims.
    pub faults: Vec<(Fault, u32)>,
    /// The host that is asked.
    pub asked: usize,
    delay: Duration,
}

/// What was said of a job: the first that was right, or the last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The class that was said of each fault.
    pub said: Vec<(Fault, String)>,
    /// What is not as it must be.
    pub wrong: Vec<String>,
    /// How long after the fault.
    pub took: Duration,
    /// Whether it is right, or wrong for good.
    is_final: bool,
}

impl Round {
    /// A job with this fault; all else is drawn.
    #[must_use]
    pub fn of(fault: Fault, seed: u64) -> Self {
        let mut drawn = Seed(seed).part(fault as u64);
        // The root of the bootstrap is waited for in another way.
        let first = u32::from(fault == Fault::NeverJoins);
        let victim = first + drawn.below(u64::from(RANKS - first)) as u32;
        let (asked, delay) = (drawn.place(2), Duration::from_millis(drawn.below(300)));
        Self { faults: vec![(fault, victim)], asked, delay }
    }

    /// A job with a rank that calls nothing and another one that is stopped while it waits for it.
    #[must_use]
    pub fn two(seed: u64) -> Self {
        let mut drawn = Seed(seed).part(99);
        let late = drawn.below(u64::from(RANKS)) as u32;
        let stopped = (late + 1 + drawn.below(u64::from(RANKS - 1)) as u32) % RANKS;
        let faults = vec![(Fault::CallsNothing, late), (Fault::StoppedInside, stopped)];
        Self { faults, asked: drawn.place(2), delay: Duration::from_millis(drawn.below(300)) }
    }

    /// Runs it on these hosts, which are not used again.
    ///
    /// # Errors
    /// A rank did not begin, or the inspector printed no snapshot.
    pub fn carry_out(&self, hosts: &Apart) -> Result<Told, String> {
        let job = self.start(hosts);
        let is_joining = self.faults.iter().any(|(fault, _)| *fault == Fault::NeverJoins);
        let at_work: &[Worker] = if is_joining { &[] } else { &job.workers };
        at_work.iter().try_for_each(|worker| worker.takes(AT_WORK))?;
        clock::sleep(self.delay);
        let began = clock::now();
        self.faults.iter().for_each(|(fault, victim)| fault.strike(hosts, &job, *victim));
        let end = began.after(PATIENCE);
        loop {
            let verdicts = self.look(hosts)?.verdicts;
            let told = Told { took: clock::now().since(began), ..self.judge(&verdicts) };
            if told.is_final || clock::now() >= end {
                return Ok(told);
            }
            clock::sleep(Duration::from_millis(100));
        }
    }

    fn start(&self, hosts: &Apart) -> Job {
        let mut setting = hosts.setting(RANKS);
        setting.variables.push(("CCL_STALL_AFTER".into(), STALL_AFTER.into()));
        setting.steps = (0..RANKS).map(|rank| self.steps(rank)).collect();
        for (_, victim) in self.faults.iter().filter(|(fault, _)| *fault == Fault::NeverJoins) {
            let sleeps = ["sh", "-c", "exec sleep 600"].map(String::from);
            setting.wrap[*victim as usize].extend(sleeps);
        }
        setting.start()
    }

    fn steps(&self, rank: u32) -> String {
        // Of two faults the first one says what all call.
        let (fault, victim) = self.faults[0];
        format!("stay; barrier; {}; hold", fault.steps(rank, victim))
    }

    fn look(&self, hosts: &Apart) -> Result<Snapshot, String> {
        // What the other host answers would come when the operations fail.
        let is_cut = self.faults.iter().any(|(fault, _)| *fault == Fault::Cut);
        let more: &[&str] = if is_cut { &["--no-gather"] } else { &[] };
        let words: Vec<&str> = ["snapshot", "--json"].iter().chain(more).copied().collect();
        let output = hosts.inspect(self.asked, &words);
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{self}: {e}: {}", text(&output)))
    }

    /// What the verdicts say of each fault.
    ///
    /// Of a single fault the first verdict that calls it a stall is it. Of several each has one, in
    /// any order; one for which nobody waits is only a suspicion.
    fn judge(&self, verdicts: &[Verdict]) -> Told {
        let first = verdicts.iter().find(|one| one.standing == Standing::Stalled);
        let mut told = Told { said: Vec::new(), wrong: Vec::new(), took: Duration::ZERO, is_final: true };
        for (fault, victim) in &self.faults {
            let denied = |one: &Verdict| fault.denies(*victim, self.asked, one);
            let right = verdicts.iter().find(|one| denied(one).is_none());
            let Some(one) = right.filter(|_| self.faults.len() > 1).or(first) else {
                told.said.push((*fault, "nothing".into()));
                told.wrong.push(format!("{self}: nothing was said"));
                told.is_final = false;
                continue;
            };
            told.said.push((*fault, one.class.to_string()));
            let why = denied(one);
            told.wrong.extend(why.iter().map(|why| format!("{self}: {why}")));
            told.is_final &= why.is_none() || self.accuses_others(one);
        }
        told
    }

    /// Whether a verdict blames a rank that has no part in any fault: more may be known later, but
    /// nobody else may be blamed before.
    fn accuses_others(&self, verdict: &Verdict) -> bool {
        let due = |rank| {
            let mut of = self.faults.iter().map(|(fault, victim)| fault.culprits(*victim, self.asked));
            of.any(|culprits| culprits.contains(&rank))
        };
        verdict.class != Class::Unread && verdict.culprits.iter().any(|one| !due(one.rank.0))
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> =
            self.faults.iter().map(|(fault, victim)| format!("{fault} of rank {victim}")).collect();
        write!(f, "{}, host {} asked", all.join(" and "), self.asked)
    }
}
