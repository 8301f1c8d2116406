//! A job that is well: it calls in bursts, one rank pauses for long, and a stranger keeps the
//! processors busy. Nothing is told as a stall, by the watchdogs or by an inspector. The long size
//! lasts ten minutes.

use std::process::{Child, Command};
use std::time::Duration;

use ccl::clock;
use ccl::seed::Seed;
use ccl::snapshot::{Snapshot, Standing};
use ccl_tests::apart::Apart;
use ccl_tests::job::{Job, Line, PATIENCE, Worker};
use ccl_tests::programs::text;
use ccl_tests::size::is_long;

const RANKS: u32 = 8;

/// The bursts of a rank: the same calls on all, each after a pause of its own. One of them is long
/// on one rank.
fn steps(rank: u32, bursts: u64, pause_ms: u64) -> String {
    let mut drawn = Seed(20).part(u64::from(rank));
    let mut steps = String::from("barrier; ");
    for at in 0..bursts {
        let is_long = at == bursts / 2 && rank == 5;
        let ms = if is_long { pause_ms } else { drawn.below(600) };
        steps += &format!("sleep {ms}; loop 200 1000; loop 3 300000; ");
    }
    steps + "finish"
}

/// A process that keeps a processor busy until it is dropped.
struct Stranger(Child);

impl Stranger {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a stranger"))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Whether some rank has ended, or does so within a moment: all leave together.
fn ends(job: &Job) -> bool {
    let end = clock::now().after(Duration::from_secs(2));
    loop {
        if job.workers.iter().any(Worker::has_ended) {
            return true;
        }
        if clock::now() >= end {
            return false;
        }
        clock::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_job_that_is_well_is_never_told_as_stalled() {
    let Some(hosts) = Apart::for_test("a_job_that_is_well_is_never_told_as_stalled") else { return };
    let (bursts, pause_ms, stall_after) = if is_long() { (1000, 20_000, "30") } else { (12, 6_000, "9") };
    let mut setting = hosts.setting(RANKS);
    setting.variables.push(("CCL_STALL_AFTER".into(), stall_after.into()));
    setting.steps = (0..RANKS).map(|rank| steps(rank, bursts, pause_ms)).collect();
    let stranger = Stranger::start();
    let mut job = setting.start();
    // Until init has ended, the processes do not know that they are one job.
    job.workers.iter().for_each(|worker| worker.takes(1).expect("it begins"));
    let (mut looks, mut suspected) = (0, 0);
    let mut wrong = Vec::new();
    let end = clock::now().after(if is_long() { 40 * PATIENCE } else { 2 * PATIENCE });
    while !job.workers.iter().all(Worker::has_ended) {
        assert!(clock::now() < end, "the job does not end: {wrong:#?}");
        let output = hosts.inspect(looks % 2, &["snapshot", "--json"]);
        if let Ok(seen) = serde_json::from_slice::<Snapshot>(&output.stdout) {
            let stalled = seen.verdicts.iter().filter(|one| one.standing == Standing::Stalled);
            wrong.extend(stalled.map(|one| one.why.clone()));
            suspected += usize::from(!seen.verdicts.is_empty());
        } else if !(text(&output).contains("there is no job") && ends(&job)) {
            wrong.push(text(&output));
        }
        looks += 1;
    }
    drop(stranger);
    println!("looks {looks}, suspected {suspected}\ncases: healthy {bursts}");
    for worker in &mut job.workers {
        // It has been read to its end, too.
        match worker.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => wrong.push(format!("pid {}: {status}", worker.pid())),
            Err(why) => wrong.push(why),
        }
        let said = worker.complaints.lock().expect("nobody panics with it").clone();
        wrong.extend(said.lines().filter(|line| line.contains("STALLED")).map(String::from));
        let bad =
            worker.said().into_iter().filter(|line| matches!(line, Line::Error { .. } | Line::Note { .. }));
        wrong.extend(bad.map(|line| format!("{line:?}")));
    }
    assert!(wrong.is_empty() && suspected > 0, "{suspected}: {wrong:#?}");
}
