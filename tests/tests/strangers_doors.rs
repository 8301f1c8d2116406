//! Jobs of one host beside hostile processes: another user of the machine, a rank that lies, a
//! process that truncates files. And jobs whose ranks cannot share memory, or have low limits.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ccl::clock;
use ccl::snapshot::{Transport as Carrier, Why};
use ccl_tests::hosts::Hosts;
use ccl_tests::job::{Job, Line, PATIENCE, Setting, Transport};
use ccl_tests::orders::{How, Orders};
use ccl_tests::other_user::OtherUser;

/// Allows one test at a time to have namespaces: their names contain the pid of this process.
static TURN: Mutex<()> = Mutex::new(());

/// A job that ends well after a few calls.
fn short() -> Orders {
    Orders { calls: 20, ..Orders::default() }
}

/// Waits until all workers have ended well; gives the standard error of each.
fn end_well(job: &mut Job) -> Vec<String> {
    let mut complaints = Vec::new();
    for worker in &mut job.workers {
        let status = worker.wait().unwrap();
        let complaint = worker.complaints.lock().unwrap().clone();
        assert!(status.success(), "{status}: {:?}\n{complaint}", worker.said());
        complaints.push(complaint);
    }
    complaints
}

/// The first error that a worker reports.
fn error_of(job: &Job, rank: usize) -> String {
    let error = |line: &Line| match line {
        Line::Error { text, .. } => Some(text.clone()),
        _ => None,
    };
    job.workers[rank].hear("an error", 1, error).unwrap().remove(0)
}

/// The carrier of each link of a rank, and why it was chosen, by peer.
fn carriers(job: &Job, rank: u32) -> Vec<(u32, Carrier, Why)> {
    let seen = job.seen_from(&job.workers[rank as usize]).unwrap();
    let own = seen.ranks.iter().find(|one| one.rank.0 == rank).unwrap();
    let links = own.comms.iter().flat_map(|comm| &comm.links);
    let mut all: Vec<_> =
        links.map(|link| (link.peer.map_or(u32::MAX, |peer| peer.0), link.transport, link.why)).collect();
    all.sort_by_key(|(peer, ..)| *peer);
    all.dedup();
    all
}

/// A rank of another user, which knows the secret, claims that a file of the victim is its socket.
#[test]
fn a_rank_that_lies_about_its_door_removes_nothing() {
    let Some(other) = OtherUser::for_test("a_rank_that_lies_about_its_door_removes_nothing") else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let file = folder.path().join("precious");
    let linked = folder.path().join("precious.link");
    let dead = folder.path().join("dead.link");
    std::fs::write(&file, "precious").unwrap();
    std::fs::write(&linked, "precious").unwrap();
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    for claimed in [&file, &linked, &dead] {
        let mut setting = Setting::new(2, Transport::Shm, short());
        setting.variables.push(("STRANGER".into(), "intrude".into()));
        setting.variables.push(("STRANGER_PATH".into(), claimed.display().to_string()));
        setting.wrap = vec![Vec::new(), other.words("stranger")];
        let job = setting.start();
        let intruded = |line: &Line| (*line == Line::Note { text: "intruded".into() }).then_some(());
        job.workers[1].hear("that it intruded", 1, intruded).unwrap();
        assert!(claimed.symlink_metadata().is_ok(), "{} is gone", claimed.display());
        let ready = |line: &Line| matches!(line, Line::Ready { .. }).then_some(());
        job.workers[0].hear("that it is ready", 1, ready).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&linked).unwrap(), "precious");
}

/// Another user watches for socket names, fills their queues, and takes those it can guess.
#[test]
fn another_user_who_crowds_doors_stalls_no_job() {
    const NAME: &str = "another_user_who_crowds_doors_stalls_no_job";
    let Some(other) = OtherUser::for_test(NAME) else { return };
    // In a network namespace of its own, so that it does not disturb jobs of other tests.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(hosts) = Hosts::for_test(NAME) else { return };
    let words = [hosts.on(0), other.words("stranger")].concat();
    let mut crowd = Command::new(&words[0]);
    let crowd = crowd.args(&words[1..]).args(["stranger", "crowd"]);
    let mut crowd = crowd.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(crowd.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "crowds");
    for _ in 0..8 {
        let mut setting = Setting::new(4, Transport::Shm, short());
        setting.wrap = vec![hosts.on(0); 4];
        // This rank opens its socket late.
        setting.wrap[3].extend(["nice", "-n", "19"].map(String::from));
        let mut job = setting.start();
        let complaints = end_well(&mut job);
        assert!(!complaints.concat().contains("share no memory"), "{complaints:?}");
        assert_eq!(job.files(), Vec::<String>::new());
    }
    drop(crowd.stdin.take());
    println!("{}", said.next().unwrap().unwrap());
    assert!(crowd.wait().unwrap().success());
}

#[test]
fn ranks_of_two_users_use_sockets_and_say_why() {
    let Some(other) = OtherUser::for_test("ranks_of_two_users_use_sockets_and_say_why") else { return };
    let orders = Orders { calls: 20, at: 10, victim: 0, how: How::Alone, ..Orders::default() };
    let mut setting = Setting::new(3, Transport::Shm, orders);
    setting.wrap = vec![Vec::new(), other.words("worker"), Vec::new()];
    let mut job = setting.start();
    job.works().unwrap();
    let expect = [(1, Carrier::Socket, Why::NoSharedMemory), (2, Carrier::Shm, Why::SameHost)];
    let seen = carriers(&job, 0);
    assert!(!seen.is_empty() && seen.iter().all(|one| expect.contains(one)), "{seen:?}");
    assert!(seen.contains(&expect[0]), "{seen:?}");
    job.workers.iter_mut().for_each(|worker| worker.go());
    let complaints = end_well(&mut job);
    let told = "ranks 0 and 1 (and 1 more pairs) are on one host but share no memory, and use sockets";
    assert_eq!(complaints.iter().filter(|text| text.contains(told)).count(), 1, "{complaints:?}");
    // A rank that insists on shared memory is told why there is none.
    let mut setting = Setting::new(2, Transport::Shm, short());
    setting.wrap = vec![Vec::new(), other.words("worker")];
    setting.variables.push(("CCL_TRANSPORT".into(), "shm".into()));
    let job = setting.start();
    let said = error_of(&job, 0);
    assert!(
        said.contains("CCL_TRANSPORT=shm does not reach it") && said.contains("run as one user"),
        "{said}"
    );
}

#[test]
fn containers_without_a_common_folder_use_sockets_and_say_why() {
    const NAME: &str = "containers_without_a_common_folder_use_sockets_and_say_why";
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(hosts) = Hosts::for_test(NAME) else { return };
    let orders = Orders { calls: 20, at: 10, victim: 0, how: How::Alone, ..Orders::default() };
    let mut job = hosts.start_containers(4, orders);
    job.works().unwrap();
    // Within one network namespace, an abstract name leads to the other rank.
    let expect = [(1, Carrier::Shm, Why::SameHost), (3, Carrier::Socket, Why::NoSharedMemory)];
    assert_eq!(carriers(&job, 0), expect);
    job.workers.iter_mut().for_each(|worker| worker.go());
    let complaints = end_well(&mut job);
    let told = "ranks 0 and 2 (and 3 more pairs) are on one host but share no memory, and use sockets";
    assert_eq!(complaints.iter().filter(|text| text.contains(told)).count(), 1, "{complaints:?}");
}

#[test]
fn a_recorder_that_is_truncated_is_lost_and_the_job_goes_on() {
    let orders = Orders { calls: 50, at: 10, victim: 0, how: How::Alone, ..Orders::default() };
    let mut job = Setting::new(2, Transport::Shm, orders).start();
    job.works().unwrap();
    let holds = |line: &Line| matches!(line, Line::Holds { .. }).then_some(());
    job.workers[1].hear("that it holds", 1, holds).unwrap();
    let recorders = job.files().into_iter().filter(|name| name.ends_with(".rec"));
    let truncated = recorders.map(|name| {
        let path = job.recorders().join(name);
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    });
    assert_eq!(truncated.count(), 2);
    // The service thread writes the clocks into it once a second, and an inspector asks.
    let end = clock::now().after(PATIENCE);
    let lost = |job: &Job| {
        let lost = |text: &str| text.matches("recorder lost").count();
        job.workers.iter().map(|worker| lost(&worker.complaints.lock().unwrap())).collect::<Vec<_>>()
    };
    while lost(&job) != [1, 1] && clock::now() < end {
        let _ = job.seen_from(&job.workers[0]);
        clock::sleep(Duration::from_millis(20));
    }
    job.workers.iter_mut().for_each(|worker| worker.go());
    end_well(&mut job);
    assert_eq!(lost(&job), [1, 1]);
}

/// The errors of the ranks of a job started behind this line of a shell.
///
/// Each is the rank's own error, or that of another rank.
fn limited(nranks: u32, line: &str) -> Vec<String> {
    let mut setting = Setting::new(nranks, Transport::Shm, short());
    let script = format!("{line}; exec \"$@\"");
    let words = ["sh", "-c", &script, "sh"].map(String::from).to_vec();
    setting.wrap = vec![words; nranks as usize];
    let job = setting.start();
    (0..nranks as usize).map(|rank| error_of(&job, rank)).collect()
}

#[test]
fn limits_of_a_process_are_named_with_what_raises_them() {
    let said = limited(2, "ulimit -f 100");
    assert!(said.iter().all(|text| text.contains("may make files of")), "{said:?}");
    assert!(said.iter().any(|text| text.contains("ulimit -f")), "{said:?}");
    for descriptors in [22, 23] {
        let said = limited(4, &format!("ulimit -n {descriptors}"));
        assert!(said.iter().any(|text| text.contains("limit on open files is reached")), "{said:?}");
        assert!(said.iter().any(|text| text.contains("ulimit -n")), "{descriptors}: {said:?}");
    }
}
