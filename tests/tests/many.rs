//! What many communicators of the processes of one host cost: nothing that a process has once.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and prints what it measured")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ccl_tests::processes::inspect;
use ccl_tests::programs::program;
use ccl_tests::size::is_long;
use serde_json::Value;

const RANKS: u32 = 8;
const COMMUNICATORS: u64 = 64;
/// Memory of one more communicator in each process: of one that is not used, and of one that was
/// used once.
const UNUSED_KIB: u64 = 16;
const USED_KIB: u64 = 256;

/// The ranks of a job of `many`, each a process.
fn start(words: &[&str], folder: &Path, name: &str) -> Vec<Child> {
    let start = |rank: u32| {
        let mut command = Command::new(program("many"));
        command.args(words).env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
        command.env("CCL_RENDEZVOUS_FILE", folder.join(name)).env("CCL_TIMEOUT", "120");
        command.env("CCL_RUNTIME_DIR", folder).env("CCL_DEBUG", "NONE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    };
    (0..RANKS).map(start).collect()
}

/// What is left in the folders of the recorders.
fn left(folder: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder).unwrap().flatten();
    let files = folders.filter_map(|entry| std::fs::read_dir(entry.path()).ok()).flatten().flatten();
    files.map(|entry| entry.path()).collect()
}

/// What the ranks print, by rank; `way` is how the communicators are made.
fn run(way: &str, cycles: u32) -> Vec<Vec<Value>> {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let words = [way, &COMMUNICATORS.to_string(), &cycles.to_string()];
    let ranks = start(&words, folder.path(), "id");
    let said = ranks.into_iter().map(|rank| {
        let output = rank.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    });
    let said = said.collect();
    assert_eq!(left(folder.path()), Vec::<PathBuf>::new());
    said
}

#[test]
fn one_more_communicator_takes_a_little_memory_and_nothing_else() {
    let cycles = if is_long() { 1000 } else { 100 };
    check("split", cycles);
    check("ids", cycles);
}

fn check(way: &str, cycles: u32) {
    let said = run(way, cycles);
    let mut sums = [0; 3];
    for lines in &said {
        let at = |what: &str| &lines.iter().find(|line| line["at"] == what).unwrap()["holds"];
        for once in ["fds", "sockets", "threads"] {
            for point in ["made", "used", "finished", "cycle 10", "the last cycle"] {
                assert_eq!(at(point)[once], at("warm")[once], "{once} {point}: {lines:?}");
            }
        }
        assert_eq!(at("the last cycle")["maps"], at("cycle 10")["maps"], "{lines:?}");
        for (sum, point) in sums.iter_mut().zip(["warm", "made", "used"]) {
            *sum += at(point)["pss_kib"].as_u64().unwrap();
        }
        // Each communicator: its own end and start of an operation, and the splits of the world.
        let events = lines.iter().find_map(|line| line["events"].as_u64()).unwrap();
        assert!(events >= COMMUNICATORS, "{events} events");
    }
    let each = |from: u64, to: u64| (to - from.min(to)) / (COMMUNICATORS * u64::from(RANKS));
    let (unused, used) = (each(sums[0], sums[1]), each(sums[1], sums[2]));
    println!(
        "{way}: {COMMUNICATORS} communicators of {RANKS} processes: {unused} KiB each, {used} KiB more when used once"
    );
    println!("cases: many communicators by {way} {cycles}");
    assert!(unused <= UNUSED_KIB && unused + used <= USED_KIB, "{unused} KiB, {used} KiB");
}

#[test]
fn communicators_come_and_go_beside_readers_that_see_their_own_job_whole() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let count = if is_long() { "2000" } else { "200" };
    let mut jobs = ["1", "2"].map(|seed| start(&["churn", count, seed], folder.path(), seed));
    let pids = jobs.each_ref().map(|job| job.iter().map(Child::id).collect::<BTreeSet<_>>());
    let (mut seen, mut wrong) = ([0; 2], Vec::new());
    let runs = |job: &mut Vec<Child>| job.iter_mut().any(|rank| rank.try_wait().unwrap().is_none());
    while jobs.iter_mut().any(runs) {
        for (at, own) in pids.iter().enumerate() {
            let Some(pid) = own.first() else { continue };
            // The job may not have begun, or may just be over.
            let Ok(job) = inspect(&["snapshot", "--json", &pid.to_string()], folder.path()) else { continue };
            seen[at] += usize::from(job.complete);
            let others: Vec<u32> =
                job.ranks.iter().map(|rank| rank.pid).filter(|pid| !own.contains(pid)).collect();
            if !others.is_empty() || job.ranks.len() > RANKS as usize || !job.failures.is_empty() {
                wrong.push(format!("{others:?} {} ranks {:?}", job.ranks.len(), job.failures));
            }
        }
    }
    for mut rank in jobs.into_iter().flatten() {
        assert!(rank.wait().unwrap().success());
    }
    println!("cases: readers beside communicators that come and go {}", seen[0] + seen[1]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
    assert_eq!(left(folder.path()), Vec::<PathBuf>::new());
}
