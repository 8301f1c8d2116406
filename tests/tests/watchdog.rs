//! The watchdog tells of a stall by itself: once for the whole job, in words that name the culprit
//! and what to do, in every recorder and in a file; it tells when the stall is over; and nothing of
//! a pause.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::PipeWriter;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ccl::clock;
use ccl::snapshot::{Class, RankSnapshot, Reason, Snapshot, StallTold, Standing};
use ccl::types::Rank;
use ccl_tests::apart::{Apart, signal};
use ccl_tests::job::until;
use ccl_tests::orders::Orders;
use ccl_tests::programs::{program, text};
use rustix::process::{Pid, Signal, kill_process};

/// A job whose ranks write to a file each; killed when dropped.
struct Ranks {
    folder: tempfile::TempDir,
    all: Vec<Child>,
}

impl Ranks {
    fn start(steps: &[&str], settings: &[(&str, &str)]) -> Self {
        Self::start_with(steps, settings, None)
    }

    /// The same; rank 0 has this as its standard error.
    fn start_with(steps: &[&str], settings: &[(&str, &str)], first: Option<PipeWriter>) -> Self {
        Self::start_as(|| Command::new(program("steps")), steps, settings, first)
    }

    fn start_as(
        make: impl Fn() -> Command,
        steps: &[&str],
        settings: &[(&str, &str)],
        first: Option<PipeWriter>,
    ) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let start = |(rank, steps): (usize, &&str)| {
            let mut command = make();
            command.arg(steps).env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
            command.envs(settings.iter().copied());
            command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id")).env("CCL_TIMEOUT", "60");
            command.env("CCL_RUNTIME_DIR", folder.path());
            let said = std::fs::File::create(folder.path().join(format!("said.{rank}"))).unwrap();
            let errors = first.as_ref().filter(|_| rank == 0).map(|pipe| pipe.try_clone().unwrap());
            let errors = errors.map_or_else(|| said.try_clone().unwrap().into(), Stdio::from);
            // `hold` waits for a line.
            command.stdin(Stdio::piped()).stdout(said).stderr(errors).spawn().unwrap()
        };
        let all = steps.iter().enumerate().map(start).collect();
        Self { folder, all }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.all[rank]), signal).unwrap();
    }

    /// The lines of all ranks with this word.
    fn said(&self, word: &str) -> Vec<String> {
        let of = |rank| std::fs::read_to_string(self.folder.path().join(format!("said.{rank}"))).unwrap();
        let all: Vec<String> = (0..self.all.len()).map(of).collect();
        all.iter().flat_map(|one| one.lines()).filter(|line| line.contains(word)).map(Into::into).collect()
    }

    fn seen(&self, from: usize) -> Snapshot {
        let output = self.inspect(&["snapshot", &self.all[from].id().to_string(), "--json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn inspect(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(arguments).env("CCL_RUNTIME_DIR", self.folder.path()).output().unwrap()
    }

    fn saved(&self) -> Vec<PathBuf> {
        let folder = std::fs::read_dir(self.folder.path().join(ccl_folder())).unwrap();
        let paths = folder.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().ends_with(".stall.json")).collect()
    }
}

fn ccl_folder() -> String {
    format!("ccl-{}", rustix::process::geteuid().as_raw())
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.all {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

const FOREVER: &str = "barrier; loop 1000000000 100; finish";

#[test]
fn a_rank_that_a_debugger_holds_is_the_one_that_is_stopped() {
    if Command::new("gdb").arg("--version").output().is_err() {
        return println!("skipped: a_rank_that_a_debugger_holds_is_the_one_that_is_stopped: needs gdb");
    }
    let settings = [("CCL_STALL_AFTER", "2"), ("CCL_TRANSPORT", "socket")];
    let job = Ranks::start(&[FOREVER; 4], &settings);
    until("the first operations", || (!job.said("job ").is_empty()).then_some(()));
    let pid = job.all[2].id().to_string();
    let mut debugger = Command::new("gdb");
    debugger.args(["-nx", "-readnever", "-batch", "-p", &pid, "-ex", "shell sleep 600"]);
    debugger.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut debugger = debugger.spawn().unwrap();
    let told = until("the stall", || job.said("STALLED").pop());
    let group = Pid::from_child(&debugger);
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    debugger.wait().unwrap();
    assert!(told.contains("STUCK_LOCAL") && told.contains(&format!("rank 2 (pid {pid} on ")), "{told}");
    assert!(told.contains(" is stopped") && told.contains("TracerPid"), "{told}");
}

#[test]
fn one_process_tells_a_stall_for_all_and_when_it_is_over() {
    let job = Ranks::start(&[FOREVER; 4], &[("CCL_STALL_AFTER", "30")]);
    until("the first operations", || (!job.said("job ").is_empty()).then_some(()));
    job.signal(0, Signal::STOP);
    let told = until("the stall", || job.said("STALLED").pop());
    let pid = job.all[0].id();
    let start = format!("ccl: STALLED STUCK_LOCAL (machine, certain): rank 0 (pid {pid} on ");
    assert!(
        told.starts_with(&start) && told.contains(" is stopped; ranks 1-3 wait for it in AllReduce #"),
        "{told}"
    );
    assert!(told.contains(&format!("; next: kill -CONT {pid}")), "{told}");
    // In the recorder of each rank that can record, told by the lowest that waits.
    until("the word in each recorder", || {
        let seen = job.seen(3);
        let told: Vec<_> = seen.ranks.iter().filter_map(|rank| rank.facts.stall.as_ref()).collect();
        let is_it = |told: &&&StallTold| {
            let what = (told.standing, told.class, told.reason, told.by);
            what == (Standing::Stalled, Class::StuckLocal, Reason::Stopped, Some(Rank(1)))
        };
        (told.iter().filter(is_it).count() == 3 && told.iter().filter(|one| one.is_own).count() == 1)
            .then_some(())
    });
    // The file says the same.
    let [saved] = &job.saved()[..] else { panic!("{:?}", job.saved()) };
    assert!(told.ends_with(&format!("ccl-inspect open {}", saved.display())), "{told}");
    let output = job.inspect(&["open", saved.to_str().unwrap()]);
    assert!(text(&output).starts_with(start.trim_start_matches("ccl: ")), "{}", text(&output));
    assert_eq!(output.status.code(), Some(10));
    assert_eq!(job.said("RECOVERED"), Vec::<String>::new());
    job.signal(0, Signal::CONT);
    let over = until("the end of the stall", || job.said("RECOVERED").pop());
    assert!(over.starts_with("ccl: RECOVERED after ") && over.contains(" is stopped; "), "{over}");
    until("that no recorder tells it any more", || {
        job.seen(3).ranks.iter().all(|rank| rank.facts.stall.is_none()).then_some(())
    });
    assert_eq!((job.said("STALLED").len(), job.said("RECOVERED").len()), (1, 1));
}

#[test]
fn what_waits_is_aborted_with_the_verdict_if_that_is_asked_for() {
    let mut job = Ranks::start(&[FOREVER; 4], &[("CCL_ON_STALL", "abort")]);
    until("the first operations", || (!job.said("job ").is_empty()).then_some(()));
    job.signal(2, Signal::STOP);
    for rank in [0, 1, 3] {
        job.all[rank].wait().unwrap();
    }
    let errors = job.said("CCL_ON_STALL=abort: ");
    assert_eq!(errors.len(), 3, "{errors:?}");
    let pid = job.all[2].id();
    let why = format!("CCL_ON_STALL=abort: rank 2 (pid {pid} on ");
    assert!(errors.iter().all(|error| error.contains(&why)), "{errors:?}");
    assert_eq!(job.said("ccl: STALLED").len(), 1);
}

#[test]
fn a_pause_is_recorded_and_not_told_and_a_watchdog_that_is_off_says_nothing() {
    let pauses = "barrier; sleep 4000; barrier; hold";
    let others = "barrier; barrier; hold";
    let job = Ranks::start(&[others, pauses, others, others], &[]);
    let suspects = until("the suspicion", || {
        let seen = job.seen(0);
        let told = seen.ranks.iter().filter_map(|rank| rank.facts.stall.clone());
        let told: Vec<_> = told.filter(|told| told.standing == Standing::Suspect).collect();
        (told.len() == 4).then_some(told)
    });
    assert!(
        suspects.iter().all(|one| (one.class, one.by) == (Class::NotJoined, Some(Rank(0)))),
        "{suspects:?}"
    );
    until("its end", || job.seen(0).ranks.iter().all(|rank| rank.facts.stall.is_none()).then_some(()));
    assert_eq!((job.said("STALLED"), job.said("RECOVERED")), (Vec::new(), Vec::new()));
    drop(job);
    let job = Ranks::start(&[FOREVER; 4], &[("CCL_ON_STALL", "off")]);
    until("the first operations", || (!job.said("job ").is_empty()).then_some(()));
    job.signal(3, Signal::STOP);
    let stalls = |seen: &Snapshot| seen.verdicts.iter().any(|one| one.standing == Standing::Stalled);
    until("that an inspector sees it", || stalls(&job.seen(0)).then_some(()));
    clock::sleep(std::time::Duration::from_secs(2));
    assert_eq!(job.said("STALLED"), Vec::<String>::new());
    assert!(job.seen(0).ranks.iter().all(|rank| rank.facts.stall.is_none()));
}

#[test]
fn a_stall_is_told_once_for_ranks_of_two_hosts_and_recorded_on_both() {
    let name = "a_stall_is_told_once_for_ranks_of_two_hosts_and_recorded_on_both";
    let Some(hosts) = Apart::for_test(name) else { return };
    let mut job = hosts.start(4, Orders::default());
    job.works().unwrap();
    let said = |word: &str| {
        let all = job.workers.iter().map(|one| one.complaints.lock().unwrap().clone());
        let all: Vec<String> = all.collect();
        let lines = all.iter().flat_map(|one| one.lines()).filter(|line| line.contains(word));
        lines.map(String::from).collect::<Vec<_>>()
    };
    signal(&job, 3, Signal::STOP);
    let told = until("the stall", || said("STALLED").pop());
    assert!(told.contains("STUCK_LOCAL (machine, certain): rank 3 (pid "), "{told}");
    assert!(told.contains(" on host1) is stopped"), "{told}");
    for host in 0..2 {
        until("the word in each recorder", || {
            let output = hosts.inspect(host, &["snapshot", "--json"]);
            let seen: Snapshot = serde_json::from_slice(&output.stdout).unwrap();
            let told = seen.ranks.iter().filter_map(|rank| rank.facts.stall.as_ref());
            let is_it = |told: &&StallTold| {
                (told.standing, told.reason, told.by) == (Standing::Stalled, Reason::Stopped, Some(Rank(0)))
            };
            (told.filter(is_it).count() == 3).then_some(())
        });
    }
    signal(&job, 3, Signal::CONT);
    until("the end of the stall", || said("RECOVERED").pop());
    assert_eq!((said("STALLED").len(), said("RECOVERED").len()), (1, 1));
}

#[test]
fn ranks_whose_recorders_have_no_name_see_each_other() {
    let name = "ranks_whose_recorders_have_no_name_see_each_other";
    // Each rank finds its folder full.
    let full = |program: &str| {
        let mut command = Command::new("unshare");
        let script = "full=$CCL_RUNTIME_DIR/full && mkdir -p \"$full\" && export CCL_RUNTIME_DIR=$full && \
                      mount -t tmpfs -o size=16k none \"$full\" && exec \"$0\" \"$@\"";
        command.args(["--mount", "sh", "-c", script, program]);
        command
    };
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let probe = full("true").env("CCL_RUNTIME_DIR", folder.path()).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: {name}: needs root's mount namespaces");
        return;
    }
    let steps = program("steps").to_string_lossy().into_owned();
    let job = Ranks::start_as(|| full(&steps), &[FOREVER; 4], &[], None);
    until("the first operations", || (!job.said("job ").is_empty()).then_some(()));
    assert!(!job.said("the recorder is /proc/").is_empty());
    job.signal(2, Signal::STOP);
    let told = until("the stall", || job.said("STALLED").pop());
    let pid = job.all[2].id();
    let start = format!("ccl: STALLED STUCK_LOCAL (machine, certain): rank 2 (pid {pid} on ");
    assert!(told.starts_with(&start) && told.contains(" is stopped; ranks 0-1,3 wait for it in "), "{told}");
}

/// Writes to a pipe that nobody reads until it takes no more.
fn fill(pipe: &PipeWriter) {
    let flags = rustix::fs::fcntl_getfl(pipe).unwrap();
    rustix::fs::fcntl_setfl(pipe, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(pipe, b"#").is_ok() {}
    rustix::fs::fcntl_setfl(pipe, flags).unwrap();
}

#[test]
fn where_standard_error_blocks_the_job_goes_on_and_sees_a_death() {
    let (_reads, pipe) = std::io::pipe().unwrap();
    let mut job = Ranks::start_with(&[FOREVER; 4], &[], Some(pipe.try_clone().unwrap()));
    let is_up = |seen: &Snapshot| {
        let works = |rank: &&RankSnapshot| rank.comms.iter().any(|comm| comm.op.completed > 1);
        seen.ranks.iter().filter(works).count() == 4
    };
    let look = |job: &Ranks, is_so: &dyn Fn(&Snapshot) -> bool| {
        let output = job.inspect(&["snapshot", &job.all[3].id().to_string(), "--json"]);
        serde_json::from_slice(&output.stdout).is_ok_and(|seen| is_so(&seen)).then_some(())
    };
    until("the first operations", || look(&job, &is_up));
    fill(&pipe);
    // Rank 0 is the one that tells.
    job.signal(2, Signal::STOP);
    let told = |seen: &Snapshot| seen.ranks.iter().filter(|rank| rank.facts.stall.is_some()).count();
    until("the stall in the recorders", || look(&job, &|seen| told(seen) == 3));
    job.signal(2, Signal::CONT);
    until("its end", || look(&job, &|seen| told(seen) == 0));
    // The line that blocks holds up no file.
    job.signal(1, Signal::STOP);
    until("the state of the next stall", || {
        let saved = std::fs::read(job.saved().pop()?).ok()?;
        let saved: Snapshot = serde_json::from_slice(&saved).ok()?;
        (saved.verdicts.first()?.culprits.first()?.rank == Rank(1)).then_some(())
    });
    job.signal(1, Signal::CONT);
    until("its end, too", || look(&job, &|seen| told(seen) == 0));
    job.all[3].kill().unwrap();
    for rank in 0..4 {
        until("the end of each rank", || job.all[rank].try_wait().unwrap());
    }
    let errors = job.said("ended without leaving the communicator");
    assert_eq!(errors.len(), 3, "{errors:?}");
}
