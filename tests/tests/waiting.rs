//! Ranks that wait: the load on the machine, and the time they record as waiting.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::clock;
use ccl_tests::job::{Job, Line, Setting, Transport};
use ccl_tests::orders::{How, Orders};
use rustix::process::Signal;

/// One job at a time: the ranks of another one would take the caches from those that are measured.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The orders of a job whose rank `victim` does something else in its second iteration.
fn orders(victim: u32, how: How) -> Orders {
    Orders { calls: 2, at: 2, victim, how, ..Orders::default() }
}

fn start(setting: &Setting) -> Job {
    let mut job = setting.start();
    job.works().expect("the job works");
    job
}

/// How often the threads of a process have gone to sleep, and the nanoseconds they have run.
fn slept_and_ran(pid: u32) -> (u64, u64) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let read = |thread: &Path, name| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
    threads.map(|thread| thread.path()).fold((0, 0), |(slept, ran), thread| {
        let status = read(&thread, "status");
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let schedstat = read(&thread, "schedstat");
        let running = schedstat.split(' ').next();
        (slept + sleeps.map_or(0, number), ran + running.map_or(0, number))
    })
}

#[test]
fn eight_ranks_on_two_processors_that_wait_for_a_late_one_leave_them_to_others() {
    const WINDOW: Duration = Duration::from_secs(1);
    const WINDOWS: usize = 5;
    let _alone = alone();
    for transport in [Transport::Shm, Transport::Socket] {
        let mut setting = Setting::new(8, transport, orders(3, How::Sleep));
        let bound = ["taskset", "-c", "0,1"].map(String::from).to_vec();
        setting.wrap = vec![bound; 8];
        // Rank 0 would look at the job for all of them: that is no cost of waiting.
        setting.variables.push(("CCL_ON_STALL".into(), "off".into()));
        let job = start(&setting);
        job.workers[3]
            .hear("that it sleeps", 1, |line| matches!(line, Line::Sleeps { .. }).then_some(()))
            .unwrap();
        // They were busy a moment ago: after this time all are asleep.
        clock::sleep(Duration::from_secs(1));
        let read = || job.workers.iter().map(|worker| slept_and_ran(worker.pid())).collect::<Vec<_>>();
        let window = |_| {
            let (before, began) = (read(), clock::now());
            clock::sleep(WINDOW);
            let (after, waited) = (read(), clock::now().since(began).as_secs_f64());
            let used = |(before, after): (&(u64, u64), &(u64, u64))| {
                ((after.0 - before.0) as f64 / waited, (after.1 - before.1) as f64 / 1e6 / waited)
            };
            before.iter().zip(&after).map(used).collect()
        };
        let windows: Vec<Vec<(f64, f64)>> = (0..WINDOWS).map(window).collect();
        // The kernel counts what a host takes from a virtual machine as time of whoever runs: a
        // moment of that is in some windows, what a rank uses is in all.
        let least = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            let in_all =
                |rank: usize| windows.iter().map(|window| of(&window[rank])).fold(f64::MAX, f64::min);
            (0..job.workers.len()).map(in_all).collect()
        };
        let (sleeps, ms) = (least(|used| used.0), least(|used| used.1));
        println!("{transport:?}: in a second: {sleeps:.0?} times asleep, {ms:.2?} ms of processor time");
        assert!(sleeps.iter().all(|times| *times <= 9.0), "{transport:?}: {windows:.2?}");
        // 10 ms in 10 s.
        assert!(ms.iter().all(|ms| *ms <= 1.0), "{transport:?}: at most 1.0 ms: {windows:.2?}");
    }
}

#[test]
fn ranks_that_were_stopped_for_longer_than_the_timeout_go_on() {
    let _alone = alone();
    for transport in [Transport::Shm, Transport::Socket, Transport::Mixed] {
        // All ranks except rank 0 are late in the second iteration: rank 0 waits, and so do the
        // ranks that block it.
        let mut setting = Setting::new(4, transport, orders(0, How::Alone));
        setting.variables.push(("CCL_TIMEOUT".into(), "3".into()));
        let mut job = start(&setting);
        for worker in &job.workers[1..] {
            worker.hear("that it holds", 1, |line| matches!(line, Line::Holds { .. }).then_some(())).unwrap();
        }
        let enters = |line: &Line| matches!(line, Line::Enters { .. }).then_some(());
        job.workers[0].hear("that it enters", 1, enters).unwrap();
        clock::sleep(Duration::from_millis(200));
        job.workers.iter().for_each(|worker| worker.signal(Signal::STOP));
        job.workers.iter().for_each(|worker| worker.wait_stopped());
        clock::sleep(Duration::from_secs(4));
        job.workers.iter().for_each(|worker| worker.signal(Signal::CONT));
        // Long enough for the first to read its clock.
        clock::sleep(Duration::from_millis(300));
        job.workers[1..].iter_mut().for_each(|worker| worker.go());
        for (rank, worker) in job.workers.iter_mut().enumerate() {
            let status = worker.wait().unwrap();
            assert!(status.success(), "{transport:?}: rank {rank}: {:?}", worker.said());
        }
    }
}
