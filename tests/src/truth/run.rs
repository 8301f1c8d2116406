//! Runs draws, inspects the jobs from outside, and builds the matrix of the results.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::snapshot::{Snapshot, Source};
use rustix::process::Signal;

use super::claim::Claim;
use super::draw::{Act, Class, Draw, LOOKS};
use super::judge::{Scene, View};
use super::timeline::Timeline;
use super::{json, text};
use crate::blocked::block_all;
use crate::hosts::Hosts;
use crate::job::{Job, Line, Setting, Transport, Worker};
use crate::orders::Orders;
use crate::programs::program;
use crate::scripts::Network;

/// How long nothing must have happened: longer than any step of a healthy rank takes.
const SETTLED: Duration = Duration::from_millis(700);
/// How long the report of a failure may take on a busy machine.
const TOLD: Duration = Duration::from_secs(15);

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Shown {
    /// How it was inspected, and the result in a few words.
    pub said: Vec<(View, &'static str)>,
    /// The number of judged statements.
    pub judged: usize,
    /// Statements that were false, unknown or missing, with the text.
    pub wrong: Vec<String>,
}

/// A process that keeps a processor busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Self, String> {
        Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .map(Self)
            .map_err(|e| format!("sh: {e}"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// The output of an inspector, with its times.
struct Look {
    view: View,
    from: Ns,
    to: Ns,
    words: String,
    text: String,
    json: bool,
    status: Option<i32>,
    is_moving: bool,
}

struct Runner<'a> {
    draw: &'a Draw,
    job: Job,
    started: Ns,
    stopped: BTreeMap<u32, Ns>,
    killed: BTreeMap<u32, Ns>,
    /// When each process was seen to have ended.
    gone: BTreeMap<u32, Ns>,
    stuck: Option<Ns>,
    looks: Vec<Look>,
}

/// Runs a draw.
///
/// # Errors
/// Why it could not be run.
pub fn carry_out(draw: &Draw, hosts: Option<&Hosts>) -> Result<Shown, String> {
    let mut setting = match (draw.network, hosts) {
        (Network::Namespaces, Some(hosts)) => hosts.setting(draw.nranks, Orders::default()),
        (Network::Namespaces, None) => return Err("there are no namespaces".into()),
        (Network::SharedMemory, _) => Setting::new(draw.nranks, Transport::Shm, Orders::default()),
        (Network::Sockets, _) => Setting::new(draw.nranks, Transport::Socket, Orders::default()),
    };
    setting.steps = draw.steps.clone();
    setting.wrap.resize(draw.nranks as usize, Vec::new());
    for (wrap, _) in setting.wrap.iter_mut().zip(&draw.steps).filter(|(_, steps)| steps.is_empty()) {
        // Another program takes the place of the process.
        *wrap = ["sh", "-c", "exec sleep 600", "sh"].map(String::from).to_vec();
    }
    let _busy = draw.is_beside.then(Busy::start).transpose()?;
    let started = clock::now();
    let (stopped, killed, gone) = Default::default();
    let job = setting.start();
    let mut run = Runner { draw, job, started, stopped, killed, gone, stuck: None, looks: Vec::new() };
    run.conduct()?;
    let quiet = run.is_quiet().then(|| run.last());
    run.look_at_all()?;
    Ok(run.judge(quiet))
}

impl Runner<'_> {
    /// The workers of the ranks that were started.
    fn workers(&self) -> impl Iterator<Item = (u32, &Worker)> {
        let all = (0..).zip(&self.job.workers).zip(&self.draw.steps);
        all.filter(|(_, steps)| !steps.is_empty()).map(|(worker, _)| worker)
    }

    fn conduct(&mut self) -> Result<(), String> {
        for act in &self.draw.acts {
            match *act {
                Act::Reaches(rank, step) => self.job.workers[rank as usize].takes(step)?,
                Act::Stop(rank) => {
                    let worker = &self.job.workers[rank as usize];
                    worker.signal(Signal::STOP);
                    worker.wait_stopped();
                    self.stopped.insert(rank, clock::now());
                }
                Act::Kill(rank) => {
                    self.killed.insert(rank, clock::now());
                    self.job.workers[rank as usize].signal(Signal::KILL);
                }
                Act::Go(rank) => self.job.workers[rank as usize].go(),
                Act::Fails(rank) => self.fails(rank),
                Act::Settle => self.settle()?,
                Act::Pause(ms) => clock::sleep(Duration::from_millis(ms)),
            }
        }
        Ok(())
    }

    /// Waits for an error, which need not come.
    fn fails(&self, rank: u32) {
        let worker = &self.job.workers[rank as usize];
        let is_over = |line: &Line| matches!(line, Line::Error { .. } | Line::Left { .. });
        let end = clock::now().after(TOLD);
        while !worker.said().iter().any(is_over) && !worker.has_ended() && clock::now() < end {
            clock::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until nothing has happened for a while.
    fn settle(&mut self) -> Result<(), String> {
        let state = |run: &Self| {
            let ended = run.workers().filter(|(_, worker)| worker.has_ended()).count();
            (run.workers().map(|(_, worker)| worker.said().len()).sum::<usize>(), ended)
        };
        let end = clock::now().after(crate::job::PATIENCE);
        let (mut before, mut since) = (state(self), clock::now());
        while clock::now().since(since) < SETTLED {
            if clock::now() >= end {
                return Err("it does not settle".into());
            }
            clock::sleep(Duration::from_millis(10));
            self.note_ends();
            let now = state(self);
            if now != before {
                (before, since) = (now, clock::now());
            }
        }
        Ok(())
    }

    fn note_ends(&mut self) {
        let ended: Vec<u32> =
            self.workers().filter(|(_, worker)| worker.has_ended()).map(|(rank, _)| rank).collect();
        for rank in ended {
            self.gone.entry(rank).or_insert_with(clock::now);
        }
    }

    fn is_quiet(&self) -> bool {
        !matches!(self.draw.class, Class::Healthy | Class::Straggler)
    }

    /// The time of the last event.
    fn last(&self) -> Ns {
        let of = |(rank, worker): (u32, &Worker)| Timeline::of(worker, &self.draw.steps[rank as usize]).last;
        let said = self.workers().map(of);
        let done = self.stopped.values().chain(self.killed.values()).chain(self.gone.values()).copied();
        said.chain(done).max().unwrap_or(self.started)
    }

    /// Inspects the job in all ways.
    fn look_at_all(&mut self) -> Result<(), String> {
        let is_moving = !self.is_quiet();
        let looks = if is_moving { LOOKS } else { 1 };
        if self.draw.class != Class::AllDead {
            for _ in 0..if is_moving { self.draw.looks } else { 1 } {
                self.look(View::Live)?;
            }
            // Before the communicator exists, no rank reaches the step that blocks its service
            // thread.
            if self.draw.class != Class::NeverJoined {
                self.block()?;
                for _ in 0..looks {
                    self.look(View::Mapping)?;
                }
            }
        }
        self.note_ends();
        // The rank that is killed last must not see the others die.
        for worker in &self.job.workers {
            worker.signal(Signal::STOP);
            worker.wait_stopped();
        }
        let now = clock::now();
        for (rank, _) in (0..).zip(&self.job.workers) {
            if !self.gone.contains_key(&rank) {
                self.killed.entry(rank).or_insert(now);
            }
        }
        self.job.kill();
        let now = clock::now();
        for rank in 0..self.draw.nranks {
            self.gone.entry(rank).or_insert(now);
        }
        self.look(View::Files)
    }

    /// Blocks the service threads, and waits until none answers.
    fn block(&mut self) -> Result<(), String> {
        let runtime = self.runtime();
        block_all(&runtime);
        self.stuck = Some(clock::now());
        let end = clock::now().after(TOLD);
        let Some(pid) = self.pid() else { return Ok(()) };
        let answers = |snapshot: &Snapshot| snapshot.ranks.iter().any(|rank| rank.source == Source::Socket);
        while crate::processes::inspect(&["snapshot", "--json", &pid], &runtime)
            .is_ok_and(|one| answers(&one))
        {
            if clock::now() > end {
                return Err("the service threads answer although they are blocked".into());
            }
            clock::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn runtime(&self) -> std::path::PathBuf {
        self.job.recorders().parent().map(Path::to_path_buf).unwrap_or_default()
    }

    /// The pid of a process to ask, preferably a running one.
    fn pid(&self) -> Option<String> {
        let runs =
            |(rank, _): &(u32, &Worker)| !self.gone.contains_key(rank) && !self.stopped.contains_key(rank);
        let mut those: Vec<u32> = self.workers().filter(runs).map(|(_, worker)| worker.pid()).collect();
        if those.is_empty() {
            those = self.workers().map(|(_, worker)| worker.pid()).collect();
        }
        let at = self.draw.seed as usize % those.len().max(1);
        those.get(at).map(ToString::to_string)
    }

    /// Inspects the job as text and as JSON.
    fn look(&mut self, view: View) -> Result<(), String> {
        let runtime = self.runtime();
        let folder = runtime.to_string_lossy().into_owned();
        let pid = self.pid().unwrap_or_default();
        for json in [false, true] {
            let mut words = match view {
                View::Files => vec!["open", &folder],
                View::Live | View::Mapping => vec!["snapshot", &pid],
            };
            words.extend(json.then_some("--json"));
            let from = clock::now();
            let output = Command::new(program("ccl-inspect"))
                .args(&words)
                .env("CCL_RUNTIME_DIR", &runtime)
                .env("CCL_STALL_AFTER", if self.stalls_early() { "0.5" } else { "30" })
                .output()
                .map_err(|e| format!("ccl-inspect: {e}"))?;
            self.note_ends();
            self.looks.push(Look {
                view,
                from,
                to: clock::now(),
                words: words.join(" "),
                text: String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr),
                json,
                status: output.status.code(),
                is_moving: !self.is_quiet(),
            });
        }
        Ok(())
    }

    /// Whether the settled job counts as a stall for the inspector.
    fn stalls_early(&self) -> bool {
        self.draw.seed % 2 == 1
    }

    /// The correct exit statuses.
    fn statuses(&self, view: View) -> &'static [i32] {
        let is_early = self.stalls_early();
        match self.draw.class {
            Class::Mismatch(_) => &[11],
            Class::NeverJoined if !is_early => &[13],
            // Its processes were killed, unless it had ended.
            Class::Healthy | Class::Straggler if view == View::Files => &[0, 10],
            Class::Healthy | Class::Straggler => &[0],
            Class::Killed | Class::Left => &[10],
            _ if is_early => &[10],
            // It is a stall from a second on.
            Class::Stopped => &[0, 10],
            _ => &[0],
        }
    }

    fn timelines(&self) -> Vec<Timeline> {
        let of = |(rank, worker): (u32, &Worker)| {
            let mut line = Timeline::of(worker, &self.draw.steps[rank as usize]);
            line.stopped = self.stopped.get(&rank).copied();
            line.gone = self.killed.get(&rank).or_else(|| self.gone.get(&rank)).copied();
            // A rank that reports that it has left ended well, or with its error.
            let has_left = worker.said().iter().any(|line| matches!(line, Line::Left { .. }));
            line.is_lost = self.killed.contains_key(&rank) || !has_left;
            line
        };
        (0..).zip(&self.job.workers).map(of).collect()
    }

    fn judge(&self, quiet: Option<Ns>) -> Shown {
        let lines = self.timelines();
        let pids: Vec<u32> = self.job.workers.iter().map(Worker::pid).collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut shown = Shown::default();
        for look in &self.looks {
            let scene = Scene {
                draw: self.draw,
                lines: &lines,
                pids: &pids,
                host: &host,
                view: look.view,
                from: look.from,
                to: look.to,
                started: self.started,
                stuck: self.stuck,
                real_ns: clock::real_ns() - clock::now().0,
                quiet,
            };
            judge_look(look, &scene, self.statuses(look.view), &mut shown);
        }
        if !shown.wrong.is_empty() {
            let lines = (0..).zip(&lines).map(|(rank, line): (u32, _)| format!("  rank {rank}: {line}\n"));
            let errors = self.workers().flat_map(|(_, worker)| worker.said());
            let errors = errors.filter_map(|line| match line {
                Line::Error { text, .. } => Some(format!("  {text}\n")),
                _ => None,
            });
            shown.wrong.push(format!(
                "what is true:\n{}{}",
                lines.collect::<String>(),
                errors.collect::<String>()
            ));
        }
        shown
    }
}

fn judge_look(look: &Look, scene: &Scene<'_>, statuses: &[i32], shown: &mut Shown) {
    let (claims, unknown) = match look.json {
        true => match serde_json::from_str::<Snapshot>(&look.text) {
            Ok(snapshot) => (json::claims(&snapshot), Vec::new()),
            Err(e) => (Vec::new(), vec![format!("{e}: {}", look.text)]),
        },
        false => text::claims(&look.text),
    };
    let mut wrong: Vec<String> =
        unknown.into_iter().map(|line| format!("unknown statement: {line}")).collect();
    for claim in &claims {
        shown.judged += 1;
        let worth = if look.json { Ok(()) } else { Scene::is_worth_saying(claim) };
        if let Err(why) = scene.judge(claim).and(worth) {
            wrong.push(format!("FALSE: {claim:?}: {why}"));
        }
    }
    if !look.status.is_some_and(|status| statuses.contains(&status)) {
        wrong.push(format!("the exit status is {:?}, not one of {statuses:?}", look.status));
    }
    let (label, lacks) = label(scene.draw, &claims, look);
    wrong.extend(lacks.map(String::from));
    shown.said.push((look.view, if wrong.is_empty() { label } else { "FALSE" }));
    if !wrong.is_empty() {
        let text = if look.json { "" } else { &look.text };
        let what = wrong.join("\n  ");
        shown
            .wrong
            .push(format!("{}: {:?}: ccl-inspect {}:\n  {what}\n{text}", scene.draw, look.view, look.words));
    }
}

/// The result in a few words, and what is missing.
fn label(draw: &Draw, claims: &[Claim], look: &Look) -> (&'static str, Option<&'static str>) {
    let named: Vec<u32> = claims.iter().flat_map(Scene::named).copied().collect();
    let says_who = !named.is_empty();
    if look.is_moving {
        // It was judged true: a rank waited for longer than in a healthy job.
        return (if says_who { "stood for 100 ms" } else { "nobody" }, None);
    }
    if draw.culprits.iter().all(|rank| named.contains(rank)) {
        return ("named", None);
    }
    let called: Vec<u32> = claims
        .iter()
        .filter_map(|claim| match claim {
            Claim::Called { ranks, .. } => Some(ranks.as_slice()),
            Claim::Finishes { rank, .. } => Some(std::slice::from_ref(rank)),
            _ => None,
        })
        .flatten()
        .copied()
        .collect();
    let is_told = |rank: &u32| called.contains(rank);
    if matches!(draw.class, Class::Mismatch(_))
        && draw.culprits.iter().all(is_told)
        && (0..draw.nranks).any(|rank| !draw.culprits.contains(&rank) && is_told(&rank))
    {
        return ("both sides", None);
    }
    (if says_who { "another" } else { "nobody" }, Some("LACKS: the culprit is not named"))
}

/// Runs all draws, a few at a time; gives the matrix as text, and all errors.
#[must_use]
pub fn carry_out_all(draws: &[Draw], hosts: Option<&Hosts>) -> (String, Vec<String>) {
    let begun = clock::now();
    let (mut counts, mut wrong, mut judged): (BTreeMap<_, u32>, _, _) = (BTreeMap::new(), Vec::new(), 0);
    for (draw, shown) in draws.iter().zip(carry_out_each(draws, hosts)) {
        match shown {
            Ok(shown) => {
                judged += shown.judged;
                shown.said.into_iter().for_each(|(view, said)| {
                    *counts.entry((draw.class, view, said)).or_default() += 1;
                });
                wrong.extend(shown.wrong);
            }
            Err(why) => wrong.push(format!("{draw}: {why}")),
        }
    }
    let mut text = format!("{:<22}", "drawn");
    let mut columns: Vec<(View, &str)> = counts.keys().map(|(_, view, said)| (*view, *said)).collect();
    columns.sort_unstable();
    columns.dedup();
    let titles: Vec<String> = columns.iter().map(|(view, said)| format!("{view:?}: {said}")).collect();
    titles.iter().for_each(|title| text.push_str(&format!("  {title}")));
    let mut classes: Vec<Class> = counts.keys().map(|(class, ..)| *class).collect();
    classes.dedup();
    for class in classes {
        let _ = write!(text, "\n{class:<22}");
        for ((view, said), title) in columns.iter().zip(&titles) {
            let count = counts.get(&(class, *view, *said)).map_or_else(String::new, ToString::to_string);
            let _ = write!(text, "  {count:>wide$}", wide = title.len());
        }
    }
    let took = clock::now().since(begun);
    let _ =
        write!(text, "\n{} runs, {judged} statements judged in {took:?}, {} wrong", draws.len(), wrong.len());
    (text, wrong)
}

fn carry_out_each(draws: &[Draw], hosts: Option<&Hosts>) -> Vec<Result<Shown, String>> {
    const AT_ONCE: usize = 3;
    let next = AtomicUsize::new(0);
    let take = || {
        let mut shown = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(draw) = draws.get(at) else { return shown };
            shown.push((at, carry_out(draw, hosts)));
        }
    };
    let mut shown: Vec<(usize, Result<Shown, String>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    shown.sort_by_key(|(at, _)| *at);
    shown.into_iter().map(|(_, shown)| shown).collect()
}
