//! A job of many communicators, as one: a grid of ranks in which one rank deviates in one group,
//! both drawn. The groups are parts of one communicator, or made from ids. Every tool names that
//! process and that communicator, asked from any process, from the files of the dead, and from a
//! dump.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use ccl::clock;
use ccl::seed::Seed;
use ccl::snapshot::Snapshot;
use ccl_tests::groups::{Drawn, Says, of, simulate, waiting};
use ccl_tests::job::PATIENCE;
use ccl_tests::matrix::Matrix;
use ccl_tests::processes::inspect;
use ccl_tests::programs::program;
use ccl_tests::scenario::RunsIn;
use ccl_tests::size::is_long;
use rustix::process::{Pid, Signal, kill_process};

/// How long the others must have waited before a job is asked for what it says: longer than a rank
/// that forgets a call works before it goes on.
const LASTED_NS: u64 = 1_300_000_000;

/// The processes of a job; killed when dropped.
struct Grid {
    folder: tempfile::TempDir,
    ranks: Vec<Child>,
}

impl Grid {
    fn start(drawn: &Drawn) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let start = |rank: u32| {
            let mut command = Command::new(program("grid"));
            command.args(["--steps", "0", "--work-ms", "2", "--count", "64"]);
            command.args(drawn.ids.then_some("--ids"));
            command.args(["--victim", &drawn.victim.to_string(), "--at", &drawn.at.to_string()]);
            command.args([
                "--group",
                &drawn.group,
                "--how",
                &format!("{:?}", drawn.scenario.how).to_lowercase(),
            ]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", drawn.nranks().to_string());
            command.env("CCL_HOSTID", format!("host{}", drawn.host(rank)));
            command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id")).env("CCL_TIMEOUT", "120");
            command.env("CCL_RUNTIME_DIR", folder.path()).env("CCL_DEBUG", "NONE");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let ranks = (0..drawn.nranks()).map(start).collect();
        Self { folder, ranks }
    }

    /// Kills all at once: none sees another die.
    fn kill(&mut self) {
        for rank in &self.ranks {
            let _ = kill_process(Pid::from_child(rank), Signal::STOP);
        }
        for rank in &mut self.ranks {
            let _ = rank.kill();
        }
        for rank in &mut self.ranks {
            let _ = rank.wait();
        }
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Checks what a snapshot says; gives the sentence on what is wrong.
fn check(drawn: &Drawn, from: &str, job: &Snapshot, wrong: &mut Vec<String>, matrix: &mut Matrix) {
    let (said, problems) = drawn.judge(job);
    matrix.add(drawn.expected(), said);
    wrong.extend(problems.iter().map(|what| format!("{drawn} from {from}: {what}")));
}

/// Runs one case; adds what is wrong.
fn carry_out(drawn: &Drawn, wrong: &mut Vec<String>, matrix: &mut Matrix) {
    let mut grid = Grid::start(drawn);
    let folder = grid.folder.path().to_path_buf();
    let path = folder.to_str().unwrap().to_string();
    let dump = folder.join("job.tar.zst").to_str().unwrap().to_string();
    if drawn.scenario.expect == Says::Waits {
        // Asked until nothing moves any more.
        let end = clock::now().after(PATIENCE);
        loop {
            let seen = inspect(&["snapshot", "--json", &grid.ranks[0].id().to_string()], &folder);
            let stands = |job: &Snapshot| {
                let wait = drawn.nranks() as usize - drawn.culprits().len();
                job.said()
                    .next()
                    .is_some_and(|one| one.since_ns > LASTED_NS && waiting(job, one).len() >= wait)
            };
            if seen.as_ref().is_ok_and(stands) || clock::now() >= end {
                break;
            }
            clock::sleep(std::time::Duration::from_millis(50));
        }
        for rank in &grid.ranks {
            let pid = rank.id().to_string();
            match inspect(&["snapshot", "--json", &pid], &folder) {
                Ok(job) => check(drawn, &format!("pid {pid}"), &job, wrong, matrix),
                Err(why) => wrong.push(format!("{drawn:?}: {why}")),
            }
        }
        let made = Command::new(program("ccl-inspect"))
            .args(["dump", &grid.ranks[1].id().to_string(), "-o", &dump])
            .env("CCL_RUNTIME_DIR", &folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", ccl_tests::programs::text(&made));
        let elsewhere = Path::new("/nonexistent");
        match inspect(&["open", "--json", &dump], elsewhere) {
            Ok(job) => check(drawn, "a dump", &job, wrong, matrix),
            Err(why) => wrong.push(format!("{drawn:?}: {why}")),
        }
        grid.kill();
    } else {
        // They end by themselves: each fails in turn.
        for rank in &mut grid.ranks {
            rank.wait().unwrap();
        }
    }
    match inspect(&["open", "--json", &path], &folder) {
        Ok(job) => check(drawn, "files", &job, wrong, matrix),
        Err(why) => wrong.push(format!("{drawn:?}: {why}")),
    }
}

#[test]
fn a_rank_that_deviates_in_one_of_its_groups_is_named_with_that_group() {
    let scenarios = of(RunsIn::Processes);
    let seeds = if is_long() { 0..80 } else { 0..10 };
    let (mut wrong, mut matrices) = (Vec::new(), [Matrix::default(), Matrix::default()]);
    for seed in seeds.clone() {
        let drawn = Drawn::new(&Seed(seed).one_of(&scenarios), seed, Some([2; 3]));
        carry_out(&drawn, &mut wrong, &mut matrices[usize::from(drawn.ids)]);
    }
    let [parts, ids] = matrices;
    println!("groups made by split:\n{parts}\n\ngroups made from ids:\n{ids}\ncases: grid {}", seeds.end);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn in_the_simulator() {
    let (mut wrong, mut matrices) = (Vec::new(), [Matrix::default(), Matrix::default()]);
    let scenarios = of(RunsIn::Sim);
    for scenario in &scenarios {
        for seed in 0..100 {
            let drawn = Drawn::new(scenario, seed, None);
            match simulate(&drawn) {
                Ok((said, problems)) => {
                    matrices[usize::from(drawn.ids)].add(drawn.expected(), said);
                    wrong.extend(problems.iter().map(|what| format!("{drawn}: {what}")));
                }
                Err(why) => wrong.push(format!("{drawn}: {why}")),
            }
        }
    }
    let [parts, ids] = matrices;
    println!("groups made by split:\n{parts}\n\ngroups made from ids:\n{ids}");
    println!("cases: grid-sim {}", 100 * scenarios.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
