//! What the inspector shows of the sockets between hosts: their ends, and a network that loses
//! messages.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use ccl::clock;
use ccl::diagnose::render_text;
use ccl::snapshot::{Direction, LinkSnapshot, Snapshot, SocketSnapshot, TcpState, Transport, Why};
use ccl_tests::hosts::Hosts;
use ccl_tests::job::{self, Job, Line, PATIENCE, Setting, until};
use ccl_tests::orders::{How, Orders};
use ccl_tests::programs::{program, text};

/// The links of all ranks, each with its rank.
fn links(snapshot: &Snapshot) -> impl Iterator<Item = (u32, &LinkSnapshot)> {
    let comms = snapshot.ranks.iter().flat_map(|rank| &rank.comms);
    comms.flat_map(|comm| comm.links.iter().map(|link| (comm.rank.0, link)))
}

/// A job that stands still in its third call, where its last rank sleeps.
///
/// Its calls are large enough to use every channel: a rank accepts an unused link only at its next
/// look, which a sleeping rank does not take.
fn still(nranks: u32, transport: job::Transport) -> (Job, Snapshot) {
    let orders = Orders { at: 3, count: 1 << 20, victim: nranks - 1, how: How::Sleep, ..Orders::default() };
    let mut job = Setting::new(nranks, transport, orders).start();
    job.works().unwrap();
    let sleeps = |line: &Line| matches!(line, Line::Sleeps { .. }).then_some(());
    job.workers.last().unwrap().hear("that it sleeps", 1, sleeps).unwrap();
    let seen = job.seen_from(&job.workers[0]).unwrap();
    assert!(seen.complete, "{seen:?}");
    (job, seen)
}

#[test]
fn links_between_hosts_show_both_ends_of_their_sockets() {
    let (_job, seen) = still(4, job::Transport::Mixed);
    let mut ends: BTreeMap<_, Vec<&SocketSnapshot>> = BTreeMap::new();
    let mut shm = 0;
    for (rank, link) in links(&seen) {
        let peer = link.peer.unwrap().0;
        if rank / 2 == peer / 2 {
            assert_eq!((link.transport, link.why, link.sockets.len()), (Transport::Shm, Why::SameHost, 0));
            shm += 1;
            continue;
        }
        assert_eq!((link.transport, link.why), (Transport::Socket, Why::OtherHost));
        assert_eq!(link.sockets.iter().map(|socket| socket.stream).collect::<Vec<_>>(), [0, 1]);
        let (from, to) = if link.direction == Direction::Send { (rank, peer) } else { (peer, rank) };
        for socket in &link.sockets {
            assert_eq!(socket.state, TcpState::Established, "{socket:?}");
            assert!(socket.rtt_us > 0 && socket.window > 0, "{socket:?}");
            assert!(socket.age_ns <= socket.heard_ns && socket.heard_ns <= socket.received_ns, "{socket:?}");
            ends.entry((link.channel, from, to, socket.stream)).or_default().push(socket);
        }
    }
    // Two routes across and two within the hosts, on two channels of two streams.
    assert_eq!((ends.len(), shm), (8, 8), "{:?}", ends.keys());
    for (stream, ends) in ends {
        let [one, other] = ends[..] else { panic!("{stream:?} has {} ends", ends.len()) };
        assert_eq!((&one.local, &one.remote), (&other.remote, &other.local), "{stream:?}");
        assert_ne!(one.local, one.remote);
    }
}

#[test]
fn the_active_list_of_the_proxy_names_what_each_link_waits_for() {
    let (job, _) = still(2, job::Transport::Socket);
    let runtime = job.recorders().parent().unwrap().to_path_buf();
    let pid = job.workers[0].pid().to_string();
    let call = format!("rank 0 (pid {pid} on ");
    // Rank 1 sleeps, and has nothing under way.
    until("a list with the wait", || {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(["snapshot", "--proxy", &pid]).env("CCL_RUNTIME_DIR", &runtime);
        let list = text(&command.output().unwrap());
        let is_whole = list.starts_with(&call)
            && list.contains(" world: AllReduce #")
            && list.contains("\n  channel 0 send to rank 1 (socket): posted ")
            && list.contains("\n  channel 0 recv from rank 1 (socket): posted ")
            && list.contains(", RecvWait for ")
            && !list.contains("rank 1 (pid");
        is_whole.then_some(())
    });
}

#[test]
fn a_forced_transport_is_the_reason_it_is() {
    let (_job, seen) = still(2, job::Transport::Socket);
    let all: Vec<_> = links(&seen).map(|(_, link)| (link.transport, link.why, link.sockets.len())).collect();
    assert_eq!(all, [(Transport::Socket, Why::Forced, 2); 8]);
}

#[test]
fn what_a_host_sends_in_vain_shows_beside_the_rank_that_waits() {
    let Some(hosts) = Hosts::for_test("what_a_host_sends_in_vain_shows_beside_the_rank_that_waits") else {
        return;
    };
    // Rank 0 calls; rank 1, on the other host, calls when it is continued.
    let orders = Orders { at: 2, big: 1 << 20, victim: 0, how: How::Alone, ..Orders::default() };
    let mut job = hosts.start(2, orders);
    job.works().unwrap();
    let holds = |line: &Line| matches!(line, Line::Holds { .. }).then_some(());
    job.workers[1].hear("that it holds", 1, holds).unwrap();
    let look = |job: &Job| {
        let seen = job.seen_from(&job.workers[0]).unwrap();
        let sent = links(&seen).filter(|(rank, link)| *rank == 1 && link.direction == Direction::Send);
        let sockets: Vec<SocketSnapshot> = sent.flat_map(|(_, link)| link.sockets.clone()).collect();
        assert!(seen.ranks.iter().all(|rank| rank.failed == 0), "gone before it was seen: {seen:?}");
        (sockets, render_text(&seen))
    };
    let (before, text) = look(&job);
    assert_eq!(
        before.iter().map(|socket| (socket.timeouts, socket.backoff)).collect::<Vec<_>>(),
        [(0, 0); 4]
    );
    assert!(!text.contains("unanswered"), "{text}");
    hosts.mute();
    job.workers[1].go();
    let end = clock::now().after(PATIENCE);
    let until = |is_seen: &dyn Fn(&SocketSnapshot) -> bool| loop {
        let (sockets, text) = look(&job);
        if let Some(socket) = sockets.iter().find(|socket| is_seen(socket)) {
            return (socket.clone(), text);
        }
        assert!(clock::now() < end, "not seen: {sockets:?}\n{text}");
        clock::sleep(Duration::from_millis(50));
    };
    let (first, _) = until(&|now| now.timeouts > 0);
    let (later, text) = until(&|now| now.local == first.local && now.timeouts > first.timeouts);
    assert!(later.backoff > first.backoff && later.retransmits > first.retransmits, "{first:?} {later:?}");
    assert!(later.heard_ns > first.heard_ns && later.unacked > 0, "{first:?} {later:?}");
    assert_eq!(later.state, TcpState::Established);
    let waits = |line: &&str| line.contains(" rank 0 channel ") && line.contains("waits for rank 1 (peer)");
    let clause =
        |line: &str| line.contains("; at rank 1: ") && line.contains(" unanswered, nothing heard for ");
    assert!(text.lines().filter(waits).any(clause), "{text}");
}
