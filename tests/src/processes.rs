//! Runs instances of scenarios on processes, and inspects them from outside.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ccl::clock;
use ccl::snapshot::{OpState, Snapshot};
use rustix::process::Signal;

use crate::drawn::Drawn;
use crate::job::{Job, Line, PATIENCE, Setting, Transport, Worker};
use crate::programs::program;
use crate::scenario::{Class, Fault};

/// How long a wait must have lasted before it is inspected: longer than any thread spins.
const SETTLED: Duration = Duration::from_millis(20);

/// The JSON that `ccl-inspect` prints with these arguments.
///
/// # Errors
/// What it printed instead.
pub fn inspect(words: &[&str], folder: &Path) -> Result<Snapshot, String> {
    let output = Command::new(program("ccl-inspect"))
        .args(words)
        .env("CCL_RUNTIME_DIR", folder)
        .output()
        .map_err(|e| format!("ccl-inspect: {e}"))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("ccl-inspect {words:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
}

impl Job {
    /// The job as seen from one of its processes.
    ///
    /// # Errors
    /// Why it cannot be seen.
    pub fn seen_from(&self, worker: &Worker) -> Result<Snapshot, String> {
        inspect(&["snapshot", "--json", &worker.pid().to_string()], &self.runtime())
    }

    fn runtime(&self) -> std::path::PathBuf {
        self.recorders().parent().map(Path::to_path_buf).unwrap_or_default()
    }

    /// Waits until these ranks are inside an operation from `seq` on and stay there.
    fn settles(&self, ranks: &[ccl::Rank], seq: u64) -> Result<(), String> {
        let end = clock::now().after(PATIENCE);
        loop {
            let seen = self.seen_from(&self.workers[0]);
            let is_inside = |snapshot: &Snapshot| {
                ranks.iter().all(|rank| {
                    let mine = snapshot.ranks.iter().find(|r| r.rank == *rank);
                    mine.and_then(|rank| rank.comms.first()).is_some_and(|comm| {
                        let waited = Duration::from_nanos(comm.op.age_ns) >= SETTLED;
                        comm.op.state == OpState::Running && comm.op.seq >= seq && waited
                    })
                })
            };
            match seen {
                Ok(snapshot) if is_inside(&snapshot) => return Ok(()),
                seen if clock::now() >= end => return Err(format!("{ranks:?} do not wait: {seen:?}")),
                _ => clock::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// The result of an instance: the class that was reported, and what was wrong.
pub type Outcome = (Class, Vec<String>);

/// Runs an instance.
///
/// # Errors
/// Why it could not be run.
pub fn carry_out(drawn: &Drawn) -> Result<Outcome, String> {
    let mut setting = Setting::new(drawn.nranks, drawn.transport, drawn.orders());
    if drawn.scenario.inject.fault == Fault::StoppedInside {
        // The capacity of one stream is known; see `drawn::BIG`.
        setting.variables.push(("CCL_CHANNELS".into(), "1".into()));
        setting.variables.push(("CCL_SOCKET_STREAMS".into(), "1".into()));
    }
    let mut job = setting.start();
    job.works()?;
    match drawn.scenario.inject.fault {
        Fault::Nothing | Fault::Paused => finishes(drawn, &mut job),
        Fault::Sleeps => {
            sleeps(drawn, &job)?;
            Ok(looks(drawn, &job))
        }
        Fault::StoppedInside => {
            enters_alone(drawn, &job)?;
            let victim = &job.workers[drawn.victim as usize];
            victim.signal(Signal::STOP);
            victim.wait_stopped();
            for worker in &mut job.workers {
                worker.go();
            }
            job.settles(&others(drawn), 2 * drawn.at - 1)?;
            Ok(looks(drawn, &job))
        }
        Fault::KilledBefore => {
            sleeps(drawn, &job)?;
            all_die(drawn, &mut job)
        }
        Fault::KilledInside => {
            enters_alone(drawn, &job)?;
            all_die(drawn, &mut job)
        }
        Fault::Killed => {
            sleeps(drawn, &job)?;
            job.workers[drawn.victim as usize].signal(Signal::KILL);
            errors(drawn, &job, true)
        }
        Fault::Drops | Fault::Finishes => errors(drawn, &job, true),
        Fault::Count | Fault::Kind | Fault::Operator | Fault::Datatype | Fault::Aborts => {
            errors(drawn, &job, false)
        }
        Fault::LinkCut | Fault::LinkEnd | Fault::LinkCorrupt => {
            Err("links of processes cannot be cut from outside".into())
        }
    }
}

fn others(drawn: &Drawn) -> Vec<ccl::Rank> {
    drawn.ranks(crate::scenario::Who::Others)
}

/// Waits until the victim sleeps and the others wait.
fn sleeps(drawn: &Drawn, job: &Job) -> Result<(), String> {
    let victim = if drawn.transport == Transport::InProcess { 0 } else { drawn.victim as usize };
    job.workers[victim]
        .hear("that it sleeps", 1, |line| matches!(line, Line::Sleeps { .. }).then_some(()))?;
    job.settles(&others(drawn), 2 * drawn.at - 1)
}

/// Waits until the victim waits inside, and the others have not called.
fn enters_alone(drawn: &Drawn, job: &Job) -> Result<(), String> {
    for (_, worker) in job.others(drawn.victim) {
        worker.hear("that it holds", 1, |line| matches!(line, Line::Holds { .. }).then_some(()))?;
    }
    job.settles(&drawn.ranks(crate::scenario::Who::Victim), 2 * drawn.at - 1)
}

/// Inspects the job from every process.
fn looks(drawn: &Drawn, job: &Job) -> Outcome {
    let mut classes = Vec::new();
    let mut wrong = Vec::new();
    for worker in &job.workers {
        match job.seen_from(worker) {
            Err(why) => wrong.push(why),
            Ok(snapshot) => {
                let (class, problems) = drawn.judge(&snapshot);
                wrong.extend(problems.iter().map(|what| format!("from pid {}: {what}", worker.pid())));
                if !problems.is_empty() {
                    wrong.push(ccl::diagnose::render_text(&snapshot));
                }
                classes.push(class);
            }
        }
    }
    (worst(drawn, &classes), wrong)
}

/// The class that was reported; a wrong one takes precedence.
fn worst(drawn: &Drawn, classes: &[Class]) -> Class {
    let expected = drawn.scenario.expect.class;
    classes
        .iter()
        .copied()
        .find(|class| *class != expected)
        .or_else(|| classes.first().copied())
        .unwrap_or(Class::Other)
}

/// Stops the others, kills the victim, then all, and reads the files they left.
fn all_die(drawn: &Drawn, job: &mut Job) -> Result<Outcome, String> {
    for (_, worker) in job.others(drawn.victim) {
        worker.signal(Signal::STOP);
        worker.wait_stopped();
    }
    let victim = &mut job.workers[drawn.victim as usize];
    victim.signal(Signal::KILL);
    victim.wait()?;
    job.kill();
    let folder = job.recorders();
    let snapshot = inspect(&["open", "--json", &folder.to_string_lossy()], &folder)?;
    let (class, mut wrong) = drawn.judge(&snapshot);
    if !wrong.is_empty() {
        wrong.push(ccl::diagnose::render_text(&snapshot));
    }
    // A single file has no data of the other ranks, and the output says so.
    for name in job.files().into_iter().filter(|name| name.ends_with(".rec")) {
        let alone = inspect(&["open", "--json", &folder.join(&name).to_string_lossy()], &folder)?;
        let told: Vec<u32> = alone.ranks.iter().map(|rank| rank.rank.0).collect();
        let untold: Vec<u32> = alone.missing.iter().map(|rank| rank.rank.0).collect();
        let rest: Vec<u32> = (0..drawn.nranks).filter(|rank| !told.contains(rank)).collect();
        if alone.complete || told.len() != 1 || untold != rest {
            wrong.push(format!("{name} alone tells of {told:?} and lists {untold:?}"));
        }
        if alone.missing.iter().any(|rank| rank.why.is_empty()) {
            wrong.push(format!("{name} alone does not say why: {:?}", alone.missing));
        }
    }
    Ok((class, wrong))
}

/// Reads the errors of all ranks, or of all but the victim.
fn errors(drawn: &Drawn, job: &Job, but_victim: bool) -> Result<Outcome, String> {
    let Some(expect) = &drawn.scenario.expect.error else { return Err("no error is expected".into()) };
    let victim = if but_victim { Some(drawn.victim) } else { None };
    let is_error = |line: &Line| match line {
        Line::Error { rank, .. } if Some(*rank) != victim => Some(line.clone()),
        _ => None,
    };
    let mut heard = Vec::new();
    if drawn.transport == Transport::InProcess {
        let count = drawn.nranks as usize - usize::from(but_victim);
        heard = job.workers[0].hear("its errors", count, is_error)?;
    } else {
        for (rank, worker) in (0..).zip(&job.workers) {
            if Some(rank) != victim {
                heard.extend(worker.hear("its error", 1, is_error)?);
            }
        }
    }
    let judged: Vec<Outcome> = heard.iter().map(|line| drawn.judge_error(expect, line)).collect();
    let classes: Vec<Class> = judged.iter().map(|(class, _)| *class).collect();
    let mut wrong: Vec<String> = judged.into_iter().flat_map(|(_, wrong)| wrong).collect();
    if expect.kind == "Mismatch" {
        wrong.extend(heard.iter().filter_map(|line| one_side_only(drawn, line)));
    }
    Ok((worst(drawn, &classes), wrong))
}

/// A mismatch must show what the victim called and what another rank called.
fn one_side_only(drawn: &Drawn, line: &Line) -> Option<String> {
    let Line::Error { text, .. } = line else { return None };
    let called = |rank: u32| text.contains(&format!("rank {rank} called "));
    let both = called(drawn.victim) && (0..drawn.nranks).any(|rank| rank != drawn.victim && called(rank));
    (!both).then(|| format!("only one side is shown: {text}"))
}

/// Waits until all end well and leave nothing.
fn finishes(drawn: &Drawn, job: &mut Job) -> Result<Outcome, String> {
    if drawn.scenario.inject.fault == Fault::Paused {
        let victim = &job.workers[drawn.victim as usize];
        clock::sleep(Duration::from_micros(drawn.chance % 20_000));
        victim.signal(Signal::STOP);
        // Longer than the locks and the arbiter take.
        clock::sleep(Duration::from_millis(300));
        victim.signal(Signal::CONT);
    }
    let mut wrong = Vec::new();
    let mut class = Class::Nobody;
    for worker in &mut job.workers {
        let status = worker.wait()?;
        if !status.success() {
            class = Class::Other;
            wrong.push(format!("pid {} ended with {status}: {:?}", worker.pid(), worker.said()));
        }
        for line in worker.said() {
            if let Line::Left { left_over } = &line {
                wrong.extend(left_over.iter().map(|what| format!("pid {} left {what}", worker.pid())));
            }
        }
    }
    wrong.extend(job.files().into_iter().map(|name| format!("{name} is left")));
    Ok((class, wrong))
}
