//! Operations that wait for a rank of another host before there is a link to it: the rank that
//! blocks others is reported from the start.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use ccl::clock;
use ccl::snapshot::{BlockedOn, LinkSnapshot, Snapshot, State, TcpState, Transport as Carried, Waits};
use ccl_tests::hosts::Hosts;
use ccl_tests::job::{Job, Line, PATIENCE, Setting, Transport};
use ccl_tests::orders::Orders;
use rustix::process::Signal;

/// How long a wait must have lasted before it is inspected.
const SETTLED: Duration = Duration::from_millis(200);

fn start(steps: &[&str]) -> Job {
    let mut setting = Setting::new(steps.len() as u32, Transport::Socket, Orders::default());
    setting.steps = steps.iter().map(ToString::to_string).collect();
    joined(&setting)
}

/// Starts a job and returns when all ranks have joined: each takes a step.
fn joined(setting: &Setting) -> Job {
    let job = setting.start();
    for at in 0..setting.steps.len() {
        takes(&job, at, 0);
    }
    job
}

/// Waits until a rank takes this step.
fn takes(job: &Job, rank: usize, step: usize) {
    let is_it = |line: &Line| matches!(line, Line::Step { at, .. } if *at == step).then_some(());
    job.workers[rank].hear("that it takes a step", 1, is_it).unwrap();
}

/// The only wait of the job, as soon as it has lasted.
fn blocked_on(job: &Job) -> (Snapshot, BlockedOn) {
    let end = clock::now().after(PATIENCE);
    loop {
        let seen = job.seen_from(&job.workers[0]);
        let settled = |one: &&BlockedOn| Duration::from_nanos(one.since_ns) >= SETTLED;
        if let Ok(snapshot) = &seen
            && let [one] = &snapshot.blocked_on[..]
            && settled(&one)
        {
            return (snapshot.clone(), one.clone());
        }
        assert!(clock::now() < end, "nobody waits: {seen:#?}");
        clock::sleep(Duration::from_millis(20));
    }
}

/// What the operation of rank 0 waits for, and for which rank.
fn wait_of_0(snapshot: &Snapshot) -> (Waits, u32) {
    let comm = &snapshot.ranks[0].comms[0];
    let wait = comm.p2p.as_ref().and_then(|p2p| p2p.wait.as_ref()).or(comm.op.wait.as_ref()).unwrap();
    (wait.waits, wait.peer.0)
}

#[test]
fn a_receive_from_a_rank_that_never_sent() {
    let job = start(&["recv 2 4", "hold", "hold"]);
    let (seen, one) = blocked_on(&job);
    let (missing, by): (Vec<_>, Vec<_>) = (one.missing.iter().collect(), one.by.iter().collect());
    assert_eq!((one.op.as_str(), missing, by), ("Recv", vec![&ccl::Rank(2)], vec![&ccl::Rank(0)]), "{one:?}");
    assert_eq!(wait_of_0(&seen), (Waits::Connect, 2));
    assert!(seen.ranks[0].comms[0].links.is_empty(), "{seen:?}");
}

#[test]
fn a_send_to_a_rank_that_is_stopped() {
    let mut job = start(&["hold; send 1 4", "hold"]);
    job.workers[1].signal(Signal::STOP);
    job.workers[1].wait_stopped();
    job.workers[0].go();
    let (seen, one) = blocked_on(&job);
    let holders: Vec<_> = one.missing.iter().chain(&one.inside).collect();
    assert_eq!((one.op.as_str(), holders), ("Send", vec![&ccl::Rank(1)]), "{one:?}");
    assert_eq!(wait_of_0(&seen), (Waits::Connect, 1));
    assert_eq!(seen.ranks[1].state, State::Stopped);
}

#[test]
fn a_collective_that_a_rank_is_stopped_before() {
    let mut job = start(&["hold; all_reduce 100000", "hold; all_reduce 100000", "hold; all_reduce 100000"]);
    job.workers[2].signal(Signal::STOP);
    job.workers[2].wait_stopped();
    job.workers[0].go();
    job.workers[1].go();
    let (_, one) = blocked_on(&job);
    assert_eq!((one.op.as_str(), &one.missing[..]), ("AllReduce", &[ccl::Rank(2)][..]), "{one:?}");
}

/// The link of rank 0 to rank 2, as soon as a snapshot shows one that satisfies the condition.
fn link_to_2(job: &Job, is_it: impl Fn(&LinkSnapshot) -> bool) -> (Snapshot, LinkSnapshot) {
    let end = clock::now().after(PATIENCE);
    loop {
        let seen = job.seen_from(&job.workers[0]);
        if let Ok(snapshot) = &seen {
            let links = snapshot.ranks.iter().flat_map(|rank| &rank.comms[0].links);
            let mut to_2 = links.filter(|link| link.peer == Some(ccl::Rank(2)) && is_it(link));
            if let Some(link) = to_2.next().cloned() {
                return (snapshot.clone(), link);
            }
        }
        assert!(clock::now() < end, "no such link: {seen:#?}");
        clock::sleep(Duration::from_millis(20));
    }
}

#[test]
fn while_a_rank_connects_to_a_host_that_does_not_answer_its_other_operations_go_on() {
    let name = "while_a_rank_connects_to_a_host_that_does_not_answer_its_other_operations_go_on";
    let Some(hosts) = Hosts::for_test(name) else { return };
    let mut setting = hosts.setting(4, Orders::default());
    let steps = ["hold; begin 1 5000000; send 2 4", "hold; send 0 5000000; hold", "hold", "hold"];
    setting.steps = steps.map(String::from).to_vec();
    let mut job = joined(&setting);
    hosts.mute();
    job.workers[0].go();
    // Until the kernel has asked again, without an answer.
    let is_unanswered = |link: &LinkSnapshot| link.sockets.iter().any(|socket| socket.unanswered() > 0);
    let (_, link) = link_to_2(&job, is_unanswered);
    assert_eq!((link.waits, link.transport, link.done), (Waits::Connect, Carried::Socket, 0), "{link:?}");
    for socket in &link.sockets {
        assert!(socket.state == TcpState::SynSent && socket.remote.starts_with("10.231.7.2:"), "{socket:?}");
        assert!(socket.heard_ns <= socket.age_ns, "{socket:?}");
    }
    // Rank 0 takes 20 MB from rank 1 meanwhile.
    job.workers[1].go();
    takes(&job, 1, 2);
    let (seen, link) = link_to_2(&job, |link| link.waits == Waits::Connect);
    let said = ccl::diagnose::render_text(&seen);
    let line = format!("  rank 0 is connecting to rank 2 at {} on channel ", link.sockets[0].remote);
    assert!(said.contains(&line) && said.contains("(socket, SYN_SENT) for "), "{said}");
    assert!(said.contains(" unanswered\n"), "{said}");
}
