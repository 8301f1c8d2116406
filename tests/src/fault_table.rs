//! The fault table: one fault, or two at once, in a job on two hosts that see nothing of each
//! other, what either of them says of it, and what the files say after everything was killed.

mod fault;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::seed::Seed;
use ccl::snapshot::{Class, Snapshot, Standing, Verdict};

pub use fault::{ALL, Fault};

use crate::apart::{Apart, kill_all};
use crate::cgroup::Cgroup;
use crate::job::{Job, PATIENCE, Worker};
use crate::processes::inspect;
use crate::programs::text;

/// Ranks of a job, half of them on each host.
pub const RANKS: u32 = 8;

/// `CCL_STALL_AFTER` of the jobs.
const STALL_AFTER: &str = "2";

/// When a fault should be told: five seconds after that.
const DUE: Duration = Duration::from_secs(7);

/// Some operations on a network that is not throttled.
const USUAL: Duration = Duration::from_secs(4);

/// The step that every rank takes last before the fault: all are at work.
const AT_WORK: usize = 2;

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
    /// The clock of the other host, as a step.
    skew: String,
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
    /// What was wrong when it was due, if it came later.
    pub late: Option<Vec<String>>,
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
        // Of what travels through the network, the host that sends sees it.
        let is_seen_there = matches!(fault, Fault::Throttled | Fault::Lossy);
        let asked = if is_seen_there { 1 } else { drawn.place(2) };
        Self::drawn(vec![(fault, victim)], asked, &mut drawn)
    }

    /// A job with two faults of two ranks; all else is drawn.
    #[must_use]
    pub fn two(seed: u64) -> Self {
        let mut drawn = Seed(seed).part(99);
        let one = drawn.place(fault::TOGETHER.len());
        let other = (one + 1 + drawn.place(fault::TOGETHER.len() - 1)) % fault::TOGETHER.len();
        let first = drawn.below(u64::from(RANKS)) as u32;
        let second = (first + 1 + drawn.below(u64::from(RANKS - 1)) as u32) % RANKS;
        let faults = vec![(fault::TOGETHER[one], first), (fault::TOGETHER[other], second)];
        let asked = drawn.place(2);
        Self::drawn(faults, asked, &mut drawn)
    }

    fn drawn(faults: Vec<(Fault, u32)>, asked: usize, drawn: &mut Seed) -> Self {
        let way = if drawn.below(2) == 0 { "ahead" } else { "behind" };
        let skew = format!("{way} {} {}", drawn.below(2001), drawn.below(201));
        Self { faults, asked, delay: Duration::from_millis(drawn.below(300)), skew }
    }

    /// Runs it on these hosts, which are not used again.
    ///
    /// # Errors
    /// A rank did not begin, a control group cannot be made, or the inspector printed no snapshot.
    pub fn carry_out(&self, hosts: &Apart) -> Result<Told, String> {
        let groups = self.groups()?;
        let job = self.start(hosts, &groups);
        let at_work: &[Worker] = if self.has(Fault::NeverJoins) { &[] } else { &job.workers };
        at_work.iter().try_for_each(|worker| worker.takes(AT_WORK))?;
        // How long operations take usually must be known before they take longer.
        clock::sleep(if self.has(Fault::Throttled) { self.delay + USUAL } else { self.delay });
        let began = clock::now();
        for ((fault, victim), group) in self.faults.iter().zip(&groups) {
            fault.strike(hosts, &job, *victim, group.as_ref());
        }
        let mut told = self.watch(hosts, began)?;
        if told.wrong.is_empty() {
            told.wrong.extend(self.unheard(hosts)?);
        }
        // Waits count up to the last sign of life, a second ago at most, and must have lasted for
        // one; and a death that comes together with the others' may be part of the same end.
        clock::sleep(Duration::from_secs(2));
        kill_all(&job);
        let lasted = clock::now().since(began);
        if told.wrong.is_empty() {
            // What is frozen dies when it is thawed, with its group.
            drop(groups);
            clock::sleep(Duration::from_millis(200));
            let wrong = self.wrong_in_files(hosts, lasted)?;
            told.wrong = wrong.into_iter().map(|why| format!("in files: {why}")).collect();
        }
        Ok(told)
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.iter().any(|(one, _)| *one == fault)
    }

    /// The control group of each victim.
    fn groups(&self) -> Result<Vec<Option<Cgroup>>, String> {
        let group = |(fault, victim): &(Fault, u32)| {
            let Some(controller) = fault.controller() else { return Ok(None) };
            let made = Cgroup::new(controller, &format!("{fault}{victim}"));
            made.map(Some).ok_or_else(|| format!("{self}: no group of {controller}"))
        };
        self.faults.iter().map(group).collect()
    }

    fn start(&self, hosts: &Apart, groups: &[Option<Cgroup>]) -> Job {
        let mut setting = hosts.setting(RANKS);
        setting.variables.push(("CCL_STALL_AFTER".into(), STALL_AFTER.into()));
        setting.steps = (0..RANKS).map(|rank| self.steps(rank)).collect();
        for ((fault, victim), group) in self.faults.iter().zip(groups) {
            setting.wrap[*victim as usize].extend(fault.wrap(group.as_ref()));
        }
        setting.start()
    }

    fn steps(&self, rank: u32) -> String {
        // Of two faults the first one says what all call.
        let its = self.faults.iter().find(|(_, victim)| *victim == rank);
        let (fault, victim) = *its.unwrap_or(&self.faults[0]);
        let skew = if host_of(rank) == self.asked { "" } else { &self.skew };
        format!("stay; barrier; {}; hold; {skew}", fault.steps(rank, victim))
    }

    /// Looks until what is said is right, or wrong for good.
    fn watch(&self, hosts: &Apart, began: Ns) -> Result<Told, String> {
        let end = began.after(PATIENCE);
        let mut late = None;
        loop {
            let verdicts = self.look(hosts)?.verdicts;
            let told = Told { took: clock::now().since(began), ..self.judge(&verdicts, Some(self.asked)) };
            if told.is_final || clock::now() >= end {
                return Ok(Told { late, ..told });
            }
            if told.took > DUE {
                late.get_or_insert(told.wrong);
            }
            clock::sleep(Duration::from_millis(100));
        }
    }

    fn look(&self, hosts: &Apart) -> Result<Snapshot, String> {
        // What the other host answers would come when the operations fail.
        let more: &[&str] = if self.has(Fault::Cut) { &["--no-gather"] } else { &[] };
        let words: Vec<&str> = ["snapshot", "--json"].iter().chain(more).copied().collect();
        let output = hosts.inspect(self.asked, &words);
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{self}: {e}: {}", text(&output)))
    }

    /// Waits until a watchdog has told what files cannot show of a process; what nobody told.
    fn unheard(&self, hosts: &Apart) -> Result<Option<String>, String> {
        let is_local =
            |(fault, _): &&(Fault, u32)| fault.class() == Class::StuckLocal && !fault.is_suspicion();
        let Some((fault, _)) = self.faults.iter().find(is_local) else { return Ok(None) };
        let end = clock::now().after(PATIENCE);
        loop {
            let job = self.look(hosts)?;
            let mut told = job.ranks.iter().filter_map(|rank| rank.facts.stall.as_ref());
            // Of two troubles the watchdogs tell the first one.
            let is_it = |class| self.faults.len() > 1 || class == Class::StuckLocal;
            if told.any(|told| told.standing == Standing::Stalled && is_it(told.class)) {
                return Ok(None);
            }
            if clock::now() >= end {
                return Ok(Some(format!("{self}: no watchdog told of {fault}")));
            }
            clock::sleep(Duration::from_millis(100));
        }
    }

    /// What is wrong with what the files of both hosts say, copied elsewhere: all of them, and
    /// without one and with a part of another one.
    fn wrong_in_files(&self, hosts: &Apart, lasted: Duration) -> Result<Vec<String>, String> {
        let failed = |e: std::io::Error| format!("{self}: {e}");
        let folder = tempfile::tempdir().map_err(failed)?;
        for host in 0..2 {
            copy(&hosts.files(host), folder.path()).map_err(failed)?;
        }
        let words = ["open", "--json", &folder.path().to_string_lossy()];
        let open = || inspect(&words, folder.path()).map_err(|e| format!("{self}: {e}"));
        let whole = open()?;
        // What moves, but badly, is seen while it moves; and nobody measures the clocks of two
        // kernels any more.
        let moves = |fault| matches!(fault, Fault::Throttled | Fault::Lossy | Fault::Late);
        let is_seen = !self.faults.iter().any(|(fault, _)| moves(*fault));
        let mut wrong = match is_seen {
            true => self.judge(&whole.verdicts, None).wrong,
            false => self.stalls_of_others(&whole.verdicts, None),
        };
        let since = whole.verdicts.first().map(|first| Duration::from_nanos(first.since_ns));
        if let Some(since) = since.filter(|since| *since > lasted + Duration::from_secs(1)) {
            wrong.push(format!("{self}: since {since:.1?}, after {lasted:.1?}"));
        }
        let mut rest: Vec<_> = whole.ranks.iter().map(|rank| (rank.rank, rank.recorder.clone())).collect();
        rest.retain(|(rank, _)| self.faults.iter().all(|(_, victim)| rank.0 != *victim));
        // Ranks that wait in init for one that never joins do not know each other.
        let [(gone, path), (cut, part), ..] = &rest[..] else { return Ok(wrong) };
        let name = |path: &str| folder.path().join(Path::new(path).file_name().unwrap_or_default());
        std::fs::remove_file(name(path)).map_err(failed)?;
        let half = std::fs::OpenOptions::new().write(true).open(name(part)).map_err(failed)?;
        half.set_len(100_000).map_err(failed)?;
        let partly = open()?;
        let lacks: Vec<_> = partly.missing.iter().map(|missing| missing.rank).collect();
        let file = name(part).display().to_string();
        let is_told = partly.notes.iter().any(|note| note.contains(&file) && note.contains("truncated"));
        if partly.complete || !lacks.contains(gone) || !(lacks.contains(cut) || is_told) {
            wrong.push(format!("{self}: without {gone} and {cut}: lacks {lacks:?}: {:?}", partly.notes));
        }
        // On a busy machine some rank calls last.
        let others = partly.verdicts.iter().filter(|one| is_seen && one.class != Class::Slow);
        let others = others.filter(|one| self.accuses_others(one, None));
        wrong.extend(others.map(|one| format!("{self}: without {gone} and {cut}: {}", one.why)));
        Ok(wrong)
    }

    /// What the verdicts say of each fault, where this host is asked, or none.
    ///
    /// Of a single fault the first verdict that calls it a stall is it. Of several each has one, in
    /// any order; one for which nobody waits is only a suspicion. None may call others a stall.
    fn judge(&self, verdicts: &[Verdict], asked: Option<usize>) -> Told {
        let first = verdicts.iter().find(|one| one.standing == Standing::Stalled);
        let (said, wrong, took) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut told = Told { said, wrong, took, late: None, is_final: true };
        for (fault, victim) in &self.faults {
            let is_any = self.faults.len() > 1 || fault.is_suspicion();
            let denied = |one: &Verdict| fault.denies(*victim, asked, one, is_any);
            let right = verdicts.iter().find(|one| denied(one).is_none());
            let Some(one) = right.filter(|_| is_any).or(first) else {
                told.said.push((*fault, "nothing".into()));
                told.wrong.push(format!("{self}: nothing was said of {fault}: {:?}", whys(verdicts)));
                told.is_final = false;
                continue;
            };
            told.said.push((*fault, one.class.to_string()));
            let why = denied(one);
            told.wrong.extend(why.iter().map(|why| format!("{self}: {why}")));
            told.is_final &= why.is_none();
        }
        // Of two troubles the watchdogs told the first one, and files have no other word for it.
        if asked.is_none() && told.wrong.len() < self.faults.len() {
            told.wrong.clear();
        }
        let others = self.stalls_of_others(verdicts, asked);
        // Those that start late have not joined either, at first.
        told.is_final |= !others.is_empty() && !self.has(Fault::NeverJoins);
        told.wrong.extend(others);
        told
    }

    /// The verdicts that call ranks without a part in any fault a stall.
    fn stalls_of_others(&self, verdicts: &[Verdict], asked: Option<usize>) -> Vec<String> {
        let stalls = verdicts.iter().filter(|one| one.standing == Standing::Stalled);
        let others = stalls.filter(|one| self.accuses_others(one, asked));
        others.map(|one| format!("{self}: accuses others: {}", one.why)).collect()
    }

    /// Whether a verdict blames a rank that has no part in any fault: more may be known later, but
    /// nobody else may be blamed before.
    fn accuses_others(&self, verdict: &Verdict, asked: Option<usize>) -> bool {
        let due = |rank| {
            let mut of = self.faults.iter().map(|(fault, victim)| fault.culprits(*victim, asked));
            of.any(|culprits| culprits.contains(&rank))
        };
        // Where operations went on until all were killed, the first to die is told in files.
        let went_on = self.faults.iter().all(|(fault, _)| fault.is_suspicion());
        let is_end = went_on && asked.is_none() && verdict.class == Class::PeerDead;
        verdict.class != Class::Unread && !is_end && verdict.culprits.iter().any(|one| !due(one.rank.0))
    }
}

fn whys(verdicts: &[Verdict]) -> Vec<&str> {
    verdicts.iter().map(|one| one.why.as_str()).collect()
}

/// Copies the recorders of a folder, and what lies beside them.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |(fault, victim): &(Fault, u32)| match fault.is_of_network() {
            true => fault.to_string(),
            false => format!("{fault} of rank {victim}"),
        };
        let all: Vec<String> = self.faults.iter().map(of).collect();
        write!(f, "{}, host {} asked, other {}", all.join(" and "), self.asked, self.skew)
    }
}
