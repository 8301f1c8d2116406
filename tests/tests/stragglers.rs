//! A drawn rank calls late: the inspector names it from the living job and from the files after
//! everything was killed. Without such a rank, and after one pause, it names none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl::diagnose::Lateness;
use ccl::seed::Seed;
use ccl::types::Rank;
use ccl_tests::job::PATIENCE;
use ccl_tests::programs::{program, text};
use ccl_tests::size::is_long;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// So many operations must be compared before an answer counts.
const LEAST: u64 = 16;
/// So many where ranks that share a processor are late by nearly as much at times.
const LEAST_BY_LITTLE: u64 = 24;

/// A job of `straggler`; killed when dropped.
struct Job {
    folder: tempfile::TempDir,
    ranks: Vec<Child>,
    least: u64,
}

/// What is drawn.
#[derive(Debug)]
struct Draw {
    nranks: u32,
    victim: Option<u32>,
    late_ms: u64,
    algorithm: &'static str,
    call: &'static str,
    count: u64,
}

impl Draw {
    fn of(seed: u64) -> Self {
        let mut seed = Seed(seed);
        let nranks = 2 + seed.below(7) as u32;
        // One-shot, direct and a ring.
        let (algorithm, count) = seed.one_of(&[("", 64), ("", 1 << 16), ("ring", 4096)]);
        Self {
            nranks,
            victim: Some(seed.below(u64::from(nranks)) as u32),
            late_ms: seed.one_of(&[5, 20, 100]),
            algorithm,
            call: seed.one_of(&["all-reduce", "all-reduce", "all-gather", "barrier"]),
            count,
        }
    }
}

impl Job {
    fn start(draw: &Draw) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let start = |rank: u32| {
            let mut command = Command::new(program("straggler"));
            command.args(["--calls", "1000000", "--call", draw.call, "--count", &draw.count.to_string()]);
            // In the environment, where no list of processes shows it.
            if let Some(victim) = draw.victim {
                command.env("EXAMPLE_STRAGGLER", format!("{victim}:{}", draw.late_ms));
            }
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", draw.nranks.to_string());
            command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id")).env("CCL_TIMEOUT", "60");
            command.env("CCL_RUNTIME_DIR", folder.path()).env("CCL_DEBUG", "NONE");
            command.env("CCL_ALGO", draw.algorithm);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let ranks = (0..draw.nranks).map(start).collect();
        let least = if draw.late_ms < 20 { LEAST_BY_LITTLE } else { LEAST };
        Self { folder, ranks, least }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.ranks[rank]), signal).unwrap();
    }

    fn kill(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
        }
        for rank in &mut self.ranks {
            let _ = rank.wait();
        }
    }

    fn inspect(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(arguments).env("CCL_RUNTIME_DIR", self.folder.path()).output().unwrap()
    }

    /// The lateness that the living job tells, or its files.
    fn late(&self, living: bool) -> Option<Lateness> {
        let subject = if living { self.ranks[0].id().to_string() } else { self.path() };
        let output = self.inspect(&["stragglers", &subject, "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).ok()?;
        serde_json::from_value(told["comms"].get(0)?.clone()).ok()
    }

    fn path(&self) -> String {
        self.folder.path().to_str().unwrap().to_string()
    }

    /// Waits until the living job has called beyond `seq` on all ranks, and enough is compared.
    fn after(&self, seq: u64) -> Lateness {
        let end = clock::now().after(PATIENCE);
        let is_enough = |late: &Lateness| {
            late.ops >= self.least && late.last_seq > seq && late.ranks.len() == self.ranks.len()
        };
        loop {
            if let Some(late) = self.late(true).filter(is_enough) {
                return late;
            }
            assert!(clock::now() < end, "{}", text(&self.inspect(&["stragglers", &self.path()])));
            clock::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn the_drawn_rank_is_named_from_the_living_job_and_from_its_files() {
    let mut told = String::new();
    for seed in 1..=if is_long() { 20 } else { 3 } {
        let draw = Draw::of(seed);
        let mut job = Job::start(&draw);
        let late = job.after(0);
        let victim = draw.victim.map(Rank);
        assert_eq!(late.straggler, victim, "{draw:?}: {late:#?}");
        let rank = late.straggler().unwrap();
        // A sleep takes no less than was asked for; the clock's error is below a tenth of it.
        assert!(rank.late_p50_ns >= draw.late_ms * 900_000, "{draw:?}: {rank:?}");
        assert!(rank.score > 1.1 && rank.pid == job.ranks[rank.rank.0 as usize].id(), "{rank:?}");
        job.kill();
        let left = job.late(false).unwrap();
        assert_eq!(left.straggler, victim, "{draw:?} from files: {left:#?}");
        assert!(left.last_seq >= late.last_seq);
        told += &format!("{draw:?}: {} operations, p50 {} us\n", late.ops, rank.late_p50_ns / 1000);
        if seed == 1 {
            explained(&job, &left);
        }
    }
    eprintln!("{told}");
}

/// The last operation that all kept: the straggler called last in it, and the others waited for it.
fn explained(job: &Job, late: &Lateness) {
    let path = job.path();
    let said = text(&job.inspect(&["stragglers", &path]));
    let victim = late.straggler.unwrap();
    assert!(said.starts_with(&format!("SLOW rank {victim} (pid ")), "{said}");
    let seq = late.last_seq.to_string();
    let output = job.inspect(&["explain", &path, "--op", &seq, "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let operation = &told["operation"];
    assert_eq!(operation["seq"], late.last_seq, "{told}");
    assert!(!operation["kind"].as_str().unwrap().is_empty(), "{told}");
    assert!(!operation["algorithm"].as_str().unwrap().is_empty(), "{told}");
    let ranks = operation["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), late.nranks as usize);
    let called = |rank: &Value| rank["called_ns"].as_u64().unwrap();
    let last = ranks.iter().max_by_key(|rank| called(rank)).unwrap();
    assert_eq!(last["rank"], victim.0, "{told}");
    for other in ranks.iter().filter(|rank| rank["rank"] != victim.0) {
        let waited = other["waited_ns"].as_u64().unwrap();
        // A rank that is kept from the processor between its call and its wait has waited for less.
        assert!(2 * waited >= called(last) - called(other), "{told}");
        assert!(other["ended_ns"].as_u64() >= last["called_ns"].as_u64(), "{told}");
    }
    let path = operation["path"].as_str().unwrap();
    assert!(path.starts_with(&format!("rank {victim} called last, ")), "{path}");
}

#[test]
fn nobody_is_named_in_a_job_without_one_nor_after_one_pause() {
    let draw = Draw { victim: None, nranks: 4, ..Draw::of(1) };
    let mut job = Job::start(&draw);
    let mut seq = 0;
    for _ in 0..3 {
        let late = job.after(seq);
        assert_eq!(late.straggler, None, "{late:#?}");
        seq = late.last_seq;
    }
    // The fault itself: it stands still for two seconds.
    job.signal(2, Signal::STOP);
    clock::sleep(Duration::from_secs(2));
    job.signal(2, Signal::CONT);
    let late = job.after(seq);
    assert_eq!(late.straggler, None, "{late:#?}");
    job.kill();
    let left = job.late(false).unwrap();
    assert_eq!(left.straggler, None, "{left:#?}");
    assert!(text(&job.inspect(&["stragglers", &job.path()])).starts_with("no straggler"));
}
