//! A job of many communicators, as one: a grid of ranks in which one rank deviates in one group,
//! both drawn. The groups are parts of one communicator, or made from ids. Every tool names that
//! process and that communicator, asked from any process, from the files of the dead, and from a
//! dump.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ccl::clock;
use ccl::seed::Seed;
use ccl::snapshot::{BlockedOn, Snapshot};
use ccl::types::{CommId, Rank};
use ccl_tests::job::PATIENCE;
use ccl_tests::matrix::Matrix;
use ccl_tests::processes::inspect;
use ccl_tests::programs::program;
use rustix::process::{Pid, Signal, kill_process};

const RANKS: u32 = 8;

/// What is drawn.
#[derive(Clone, Debug)]
struct Drawn {
    /// Whether each group has an id of its own, and there is no communicator of all; otherwise the
    /// groups are parts of that one.
    ids: bool,
    /// Emulated hosts.
    hosts: u32,
    victim: u32,
    group: &'static str,
    how: &'static str,
    at: u64,
}

impl Drawn {
    fn of(seed: u64) -> Self {
        let mut random = Seed(seed);
        let ids = seed % 2 == 1;
        let groups: &[_] =
            if ids { &["tensor", "data", "pipeline"] } else { &["tensor", "data", "pipeline", "world"] };
        let group = groups[random.below(groups.len() as u64) as usize];
        let ways = ["absent", "stopped", "killed", "count", "elsewhere", "root"];
        // A pipeline has no root.
        let ways = if group == "pipeline" { &ways[..5] } else { &ways[..] };
        let how = ways[random.below(ways.len() as u64) as usize];
        // In the first steps nothing tells in which order a program uses its communicators.
        let at = if group == "world" { 8 } else { 5 + random.below(4) };
        let (hosts, victim) = (1 + seed as u32 / 2 % 2, random.below(u64::from(RANKS)) as u32);
        Self { ids, hosts, victim, group, how, at }
    }

    /// What is to be said: the class, and the communicator.
    fn expected(&self) -> String {
        let class = match self.how {
            "killed" => "died",
            "count" | "root" => "differs",
            _ => "waits",
        };
        format!("{class} {}", self.group)
    }
}

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
            command.args(["--group", drawn.group, "--how", drawn.how]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
            command.env("CCL_HOSTID", format!("host{}", rank * drawn.hosts / RANKS));
            command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id")).env("CCL_TIMEOUT", "120");
            command.env("CCL_RUNTIME_DIR", folder.path()).env("CCL_DEBUG", "NONE");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let ranks = (0..RANKS).map(start).collect();
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

/// The ranks of the job that these ranks of a communicator are.
fn ranks_of(job: &Snapshot, comm: CommId, ranks: &[Rank]) -> BTreeSet<Rank> {
    job.job_ranks(comm, ranks).into_iter().collect()
}

/// The ranks that wait for the first culprit, directly or behind others.
fn waiting(job: &Snapshot, one: &BlockedOn) -> BTreeSet<Rank> {
    let behind = one.behind.iter().flat_map(|behind| ranks_of(job, behind.comm, &behind.by));
    ranks_of(job, one.comm, &one.by).into_iter().chain(behind).collect()
}

/// What a snapshot says first: the class and the communicator, and the ranks named.
fn said(job: &Snapshot) -> (String, BTreeSet<Rank>) {
    if let Some(one) = job.failures.first() {
        let class = if one.error == "Mismatch" { "differs" } else { "died" };
        // Of two ranks that call different things none is to blame: both are shown.
        let culprits: BTreeSet<Rank> = one.culprits.iter().map(|culprit| culprit.rank).collect();
        let both = if culprits.is_empty() { ranks_of(job, one.comm, &one.ranks) } else { culprits };
        return (format!("{class} {}", one.name), both);
    }
    let Some(one) = job.said().next() else { return ("nothing".into(), BTreeSet::new()) };
    (format!("waits {}", one.name), one.culprits.iter().map(|culprit| culprit.rank).collect())
}

/// Checks what a snapshot says; gives the sentence on what is wrong.
fn check(drawn: &Drawn, from: &str, job: &Snapshot, wrong: &mut Vec<String>, matrix: &mut Matrix) {
    let (said, named) = said(job);
    matrix.add(drawn.expected(), &said);
    let mut expect = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{drawn:?} from {from}: {what}"));
        }
    };
    expect(said == drawn.expected(), format!("said {said:?}: {}", ccl::diagnose::render_answer(job)));
    let victim = Rank(drawn.victim);
    let is_pair = drawn.expected().starts_with("differs") && drawn.group != "world";
    let is_right = if is_pair { named.contains(&victim) } else { named == BTreeSet::from([victim]) };
    expect(is_right, format!("named {named:?}"));
    let numbers: Vec<u32> = job.ranks.iter().map(|rank| rank.rank.0).collect();
    expect(
        numbers == (0..RANKS).collect::<Vec<_>>(),
        format!("ranks {numbers:?}, missing {:?}", job.missing),
    );
    if let Some(first) = job.failures.first() {
        let others = &job.failures[1..];
        expect(first.follows.is_none(), "the first failure follows another".into());
        expect(others.iter().all(|one| one.follows.is_some()), format!("several causes: {others:?}"));
    } else if let Some(one) = job.said().next() {
        let others: BTreeSet<Rank> = (0..RANKS).map(Rank).filter(|rank| *rank != victim).collect();
        let mut waiting = waiting(job, one);
        waiting.remove(&victim);
        expect(waiting == others, format!("waiting are {waiting:?}"));
        expect(job.said().count() == 1, "several are said to block the others".into());
    }
}

/// Runs one case; adds what is wrong.
fn carry_out(drawn: &Drawn, wrong: &mut Vec<String>, matrix: &mut Matrix) {
    let mut grid = Grid::start(drawn);
    let folder = grid.folder.path().to_path_buf();
    let path = folder.to_str().unwrap().to_string();
    let dump = folder.join("job.tar.zst").to_str().unwrap().to_string();
    if drawn.expected().starts_with("waits") {
        // Asked until nothing moves any more.
        let end = clock::now().after(PATIENCE);
        loop {
            let seen = inspect(&["snapshot", "--json", &grid.ranks[0].id().to_string()], &folder);
            let stands = |job: &Snapshot| {
                job.said()
                    .next()
                    .is_some_and(|one| one.since_ns > 300_000_000 && waiting(job, one).len() >= 7)
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
    let seeds = if ccl::config::environment("TEST_SIZE").as_deref() == Some("long") { 0..40 } else { 0..10 };
    let (mut wrong, mut matrices) = (Vec::new(), [Matrix::default(), Matrix::default()]);
    for seed in seeds.clone() {
        let drawn = Drawn::of(seed);
        carry_out(&drawn, &mut wrong, &mut matrices[usize::from(drawn.ids)]);
    }
    let [parts, ids] = matrices;
    println!("groups made by split:\n{parts}\n\ngroups made from ids:\n{ids}\ncases: grid {}", seeds.end);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
