use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use super::*;
use crate::bootstrap::BootstrapRest;
use crate::bootstrap::auth::Key;
use crate::bootstrap::fault::Fault;
use crate::bootstrap::frame::{Frames, frame};
use crate::error::ErrorKind;
use crate::failure::gossip::{Attempt, Share, Trouble};
use crate::failure::lines::posts_of;
use crate::transport::socket::listen::{Inbox, Listener, Scope};
use crate::types::{ChannelId, CommId, JobId};

struct Silent;

impl Owner for Silent {
    fn late(&self, _: Ns) {}
    fn called(&self) -> Vec<Descriptor> {
        Vec::new()
    }
    fn finished(&self, _: Rank, _: &Tally) {}
    fn asked(&self, _: Rank, _: &Descriptor) {}
    fn decided(&self, _: &Decision) {}
    fn heard(&self, _: News) {}
}

const JOB: JobId = JobId(0x2a);

fn key() -> Key {
    Key::from_secret("of this test")
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The gossip of rank 0, with these data listeners and streams of the ring.
fn start(comm: u64, listeners: Vec<SocketAddr>, ring: [Option<RingStream>; 2]) -> Arc<GossipTask> {
    start_with(comm, listeners, ring, Vec::new())
}

/// The same; to or from these ranks such a stream has ended.
fn start_with(
    comm: u64,
    listeners: Vec<SocketAddr>,
    ring: [Option<RingStream>; 2],
    ended: Vec<Rank>,
) -> Arc<GossipTask> {
    start_on(comm, listeners, ring, ended, Arc::default())
}

/// The same; streams of other ranks arrive there.
fn start_on(
    comm: u64,
    listeners: Vec<SocketAddr>,
    ring: [Option<RingStream>; 2],
    ended: Vec<Rank>,
    arrivals: Arc<Arrivals>,
) -> Arc<GossipTask> {
    let (comm, me, nranks) = (CommId(comm), Rank(0), listeners.len() as u32);
    let dialling = Dialling { job: JOB, comm, key: key(), me, bind: None, listeners };
    let post = Post::open(comm, me).unwrap();
    let mending = Some((dialling, arrivals));
    let ways = Ways { locals: Vec::new(), post, ring, ended, mending };
    let service = Service::get().unwrap();
    GossipTask::start(&service, Gossip::new(me, nranks), me, ways, Box::new(Silent)).unwrap()
}

/// What it decides within that time.
fn decided(task: &GossipTask, limit: Duration) -> Option<(Trouble, Rank)> {
    let end = clock::now().after(limit);
    loop {
        if let Some(decision) = task.lock().gossip.decision() {
            return Some((decision.trouble, decision.about));
        }
        if clock::now() >= end {
            return None;
        }
        clock::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_ring_is_closed_past_several_ranks_that_went_without_a_word() {
    let there = TcpListener::bind(here(0)).unwrap();
    // Where ranks 1 and 2 were, nobody listens any more.
    let listeners = vec![here(3), here(1), here(2), there.local_addr().unwrap()];
    let task = start(0xc0, listeners, [None, None]);
    let (tell, told) = mpsc::channel();
    let accepts = std::thread::spawn(move || tell.send(there.accept().is_ok()));

    let attempt = Attempt { nth: 0, without: vec![Rank(1), Rank(2)] };
    let share = Share { rank: Rank(0), attempt, round: 0, block: Vec::new() };
    let mut left = Duration::ZERO;
    let lacks = task.share(share, false, &mut left, &mut |_| ());
    assert!(matches!(lacks, Err(Unshared::Without(ranks)) if ranks == [Rank(3)]));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    accepts.join().unwrap().unwrap();
}

#[test]
fn the_longest_line_is_written() {
    // Two quotation marks and the end of the line.
    let text = "x".repeat(LINE_MAX - 3);
    assert_eq!(written(&text).map(|line| line.len()), Some(LINE_MAX));
}

/// A listener of a process that is busy: its kernel connects.
fn busy() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(here(0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A stream of the ring to or from a rank that has left the bootstrap, and its other end.
fn stream_of(peer: Rank) -> (RingStream, std::net::TcpStream) {
    let (door, address) = busy();
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let fd = Fd::from(std::os::fd::OwnedFd::from(stream));
    let rest = BootstrapRest::new(Frames::new(64), true);
    (RingStream { fd, rest, peer, unsent: Vec::new() }, door.accept().unwrap().0)
}

// In these, rank 1 is the next one and lives: of rank 2, the previous one, only its stream tells.

#[test]
fn a_rank_whose_stream_ended_has_died_only_if_nobody_listens_there_any_more() {
    for (comm, is_reset) in [(0xc1, true), (0xc6, false)] {
        let ((_next, next), (there, address)) = (busy(), busy());
        let (ring, theirs) = stream_of(Rank(2));
        let task = start(comm, vec![here(1), next, address], [None, Some(ring)]);
        if is_reset {
            socket2::SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(theirs);
        assert_eq!(decided(&task, Duration::from_millis(300)), None);
        drop(there);
        assert_eq!(decided(&task, Duration::from_secs(20)), Some((Trouble::Died, Rank(2))));
    }
}

#[test]
fn a_rank_whose_stream_ends_after_a_decision_is_gone_for_those_who_go_on() {
    let (_next, next) = busy();
    let (ring, theirs) = stream_of(Rank(2));
    let task = start(0xc8, vec![here(1), next, here(2)], [None, Some(ring)]);
    let aborted = Report::new(Trouble::Aborted, Rank(0), Rank(0), "given up");
    assert!(task.report(aborted, Duration::from_secs(20)).is_some());
    drop(theirs);
    let end = clock::now().after(Duration::from_secs(20));
    while task.gone() != [Rank(2)] && clock::now() < end {
        clock::sleep(Duration::from_millis(5));
    }
    assert_eq!(task.gone(), [Rank(2)]);
}

#[test]
fn a_rank_whose_connections_are_accepted_and_closed_for_long_has_died() {
    for (comm, tries, expect) in [(0xc7, usize::MAX, Some((Trouble::Died, Rank(2)))), (0xc9, 1, None)] {
        let ((_next, next), (there, address)) = (busy(), busy());
        // Something accepts for a process that is gone; or the first try only is closed.
        let accepts = std::thread::spawn(move || {
            there.incoming().take(tries).for_each(drop);
            there
        });
        let task = start_with(comm, vec![here(1), next, address], [None, None], vec![Rank(2)]);
        assert_eq!(decided(&task, Duration::from_secs(1)), None);
        let limit = Duration::from_secs(if expect.is_some() { 20 } else { 2 });
        assert_eq!(decided(&task, limit), expect);
        drop(accepts);
    }
}

/// A listener whose kernel lets nobody in, and the streams that fill it.
fn full() -> (TcpListener, Vec<std::net::TcpStream>) {
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&here(0).into()).unwrap();
    full.listen(0).unwrap();
    let full = TcpListener::from(full);
    let others = (0..3).map(|_| connecting(&full)).collect();
    clock::sleep(Duration::from_millis(50));
    (full, others)
}

/// A stream to a listener, which may never be connected: it gives up after some seconds.
fn connecting(listener: &TcpListener) -> std::net::TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.set_tcp_user_timeout(Some(Duration::from_secs(2))).unwrap();
    let _ = socket.connect(&listener.local_addr().unwrap().into());
    socket.into()
}

/// A stream from rank 1 whose host answers nothing, and what its listener needs.
fn unanswered() -> (RingStream, TcpListener, Vec<std::net::TcpStream>) {
    let (listener, others) = full();
    let fd = Fd::from(std::os::fd::OwnedFd::from(connecting(&listener)));
    let rest = BootstrapRest::new(Frames::new(64), true);
    (RingStream { fd, rest, peer: Rank(1), unsent: Vec::new() }, listener, others)
}

#[test]
fn a_next_rank_that_refuses_connections_has_died_only_after_its_farewell_may_have_come() {
    let began = clock::now();
    let task = start(0xd2, vec![here(1), here(2)], [None, None]);
    assert_eq!(decided(&task, Duration::from_secs(20)), Some((Trouble::Died, Rank(1))));
    assert!(clock::now().since(began) >= Duration::from_millis(500));
}

#[test]
fn a_rank_that_lets_nobody_in_for_long_is_tried_again() {
    let (there, _others) = full();
    let listeners = vec![here(1), there.local_addr().unwrap()];
    let dialling = Dialling { job: JOB, comm: CommId(0xd3), key: key(), me: Rank(0), bind: None, listeners };
    let mut now = clock::now();
    let mut edge = dialling.probe(Rank(1), now);
    // Longer than an attempt may take; a time in which nobody looked would not count.
    for _ in 0..400 {
        now = now.after(Duration::from_millis(200));
        assert!(edge.turn(now).is_ok_and(|stream| stream.is_none()));
    }
    assert!(edge.wake() > now, "the attempt is a new one");
}

#[test]
fn only_processes_with_ranks_of_the_communicator_tell_it_something() {
    let (_next, next) = busy();
    let task = start(0xd4, vec![here(1), next], [None, None]);
    let decision = |about| {
        let (trouble, by, text) = (Trouble::Aborted, Rank(1), "told to".to_string());
        GossipMessage::Decision(Decision { trouble, by, about: Rank(about), other: None, text })
    };
    let [post] = &posts_of(CommId(0xd4))[..] else { panic!("one post") };
    // Of another process of this host, and of this one. They are taken in this order.
    post.put(Some(77), decision(0));
    post.put(None, decision(1));
    assert_eq!(decided(&task, Duration::from_secs(20)), Some((Trouble::Aborted, Rank(1))));
}

#[test]
fn a_stream_that_gets_no_answer_counts_unless_a_later_one_to_that_rank_is_open() {
    let ((_next, next), arrivals) = (busy(), Arc::<Arrivals>::default());
    let ((silent, _held, _others), (also, _held_too, _others_too)) = (unanswered(), unanswered());
    let (later, _theirs) = stream_of(Rank(1));
    let lives = start_on(0xcc, vec![here(1), next], [None, Some(silent)], Vec::new(), Arc::clone(&arrivals));
    arrivals.put((Rank(1), ChannelId(0), later.fd));
    let alone = start(0xcd, vec![here(1), next], [None, Some(also)]);
    assert_eq!(decided(&alone, Duration::from_secs(20)), Some((Trouble::Unreachable, Rank(1))));
    let text = alone.lock().gossip.decision().map(|decision| decision.text.clone());
    let expect = "the host of rank 1 does not answer: it is down, or the network is cut";
    assert_eq!(text.as_deref(), Some(expect));
    assert_eq!(decided(&lives, Duration::from_secs(1)), None);
}

#[test]
fn a_rank_whose_ring_is_cut_as_it_leaves_connects_for_its_farewell() {
    let (comm, inbox) = (CommId(0xce), Inbox::default());
    let scope = Scope { job: JOB, key: key(), comm, rank: Rank(1), nranks: 2, channels: 1 };
    let there = Listener::alone(here(0), scope, inbox, Arc::new(|| ())).unwrap();
    let (ring, theirs) = stream_of(Rank(1));
    let task = start(comm.0, vec![here(1), there.address()], [Some(ring), None]);
    let finish = GossipMessage::Finish { rank: Rank(1), tally: Tally::default() };
    task.lock().gossip.received(None, finish, clock::now());
    assert!(matches!(task.finish(Tally::default(), Vec::new(), Duration::from_secs(20)), Finished::All));
    // Where all have finished, the ring is not closed again. Rank 1 is asked only whether it lives.
    drop(theirs);
    let end = clock::now().after(Duration::from_secs(20));
    let arrived = || {
        let mut arrived = there.edges().take();
        while arrived.is_empty() && clock::now() < end {
            clock::sleep(Duration::from_millis(1));
            arrived = there.edges().take();
        }
        arrived.remove(0).2
    };
    drop(arrived());
    task.leave(Duration::from_secs(20));
    // All that rank 0 has said arrives before the end of its stream.
    let mut line = Line::new(arrived());
    drop(task);
    let mut messages = Vec::new();
    while line.is_open() && clock::now() < end {
        line.read(|heard| {
            if let Heard::Text(text) = heard {
                messages.push(serde_json::from_slice::<GossipMessage>(text).unwrap());
            }
        });
        clock::sleep(Duration::from_millis(1));
    }
    assert!(messages.contains(&GossipMessage::Farewell { rank: Rank(0) }), "{messages:?}");
}

#[test]
fn a_rank_whose_neighbours_have_left_leaves_at_once() {
    let (streams, mut theirs): (Vec<_>, Vec<_>) =
        [1, 3].map(|rank| stream_of(Rank(rank))).into_iter().unzip();
    let ring = <[RingStream; 2]>::try_from(streams).unwrap_or_else(|_| unreachable!()).map(Some);
    // Rank 2 has left too, which nobody has told.
    let task = start(0xcf, (1..5).map(here).collect(), ring);
    for (rank, stream) in [1, 3].into_iter().zip(&mut theirs) {
        stream.write_all(&written(&GossipMessage::Farewell { rank: Rank(rank) }).unwrap()).unwrap();
    }
    let end = clock::now().after(Duration::from_secs(20));
    while task.gone().len() < 2 && clock::now() < end {
        clock::sleep(Duration::from_millis(1));
    }
    drop(theirs);
    let began = clock::now();
    task.leave(Duration::from_secs(60));
    assert!(clock::now().since(began) < Duration::from_secs(30), "it waited for nothing");
}

#[test]
fn a_rank_that_connects_is_told_what_is_known() {
    let ((_next, next), arrivals) = (busy(), Arc::<Arrivals>::default());
    let task = start_on(0xd0, vec![here(1), next, here(2)], [None, None], Vec::new(), Arc::clone(&arrivals));
    let tally = Tally { calls: 3, ..Tally::default() };
    let finish = GossipMessage::Finish { rank: Rank(1), tally };
    task.lock().gossip.received(Some(Side::Next), finish.clone(), clock::now());
    let (stream, mut theirs) = stream_of(Rank(2));
    arrivals.put((Rank(2), ChannelId(0), stream.fd));
    let expect = [&b"\n"[..], &written(&finish).unwrap()].concat();
    let mut told = vec![0; expect.len()];
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    theirs.read_exact(&mut told).unwrap();
    assert_eq!(String::from_utf8_lossy(&told), String::from_utf8_lossy(&expect));
}

#[test]
fn only_in_the_last_round_what_others_know_is_awaited_though_a_rank_is_gone() {
    let task = start(0xd1, vec![here(1), here(2), here(3)], [None, None]);
    task.lock().gossip.lost(Rank(2), clock::now());
    let attempt = Attempt { nth: 0, without: Vec::new() };
    for (round, is_last) in [(0, false), (1, true)] {
        let mut left = Duration::from_secs(20);
        let share = Share { rank: Rank(0), attempt: attempt.clone(), round, block: Vec::new() };
        let lacks = task.share(share, is_last, &mut left, &mut |_| ());
        assert!(matches!(lacks, Err(Unshared::Grew)));
        let waited = Duration::from_secs(20) - left;
        assert_eq!(waited >= Duration::from_millis(300), is_last, "{waited:?}");
    }
}

/// A stream to rank 1, which has not left the bootstrap, and its end.
fn behind() -> (RingStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let rest = BootstrapRest::new(Frames::new(64), false);
    let fd = Fd::from(std::os::fd::OwnedFd::from(ours));
    (RingStream { fd, rest, peer: Rank(1), unsent: b"last".to_vec() }, theirs)
}

#[test]
fn what_a_neighbour_tells_that_fails_in_the_bootstrap_is_its_report() {
    let waits = |kind, rank| Fault::new(kind, &[Rank(rank)], format!("it waits for rank {rank}"));
    // A rank that does not exist is not to blame.
    for (comm, kind, waits_for, expect) in [
        (0xc2, ErrorKind::Timeout, 2, (Trouble::TimedOut, Rank(2))),
        (0xc3, ErrorKind::Timeout, 9, (Trouble::TimedOut, Rank(1))),
        (0xd5, ErrorKind::Mismatch, 2, (Trouble::Aborted, Rank(2))),
    ] {
        let (ring, mut theirs) = behind();
        let task = start(comm, vec![here(1), here(2), here(3)], [Some(ring), None]);
        theirs.write_all(&frame(2, &waits(kind, waits_for).encode())).unwrap();
        assert_eq!(decided(&task, Duration::from_secs(20)), Some(expect));
        let text = task.lock().gossip.decision().map(|decision| decision.text.clone());
        let expect =
            format!("rank 0 heard that rank 1 failed in its initialization: it waits for rank {waits_for}");
        assert_eq!(text, Some(expect));
    }
}

#[test]
fn where_no_ring_is_needed_its_streams_end_when_the_neighbour_has_left_the_bootstrap() {
    for (comm, fails) in [(0xc4, false), (0xc5, true)] {
        let (ring, mut theirs) = behind();
        let post = Post::open(CommId(comm), Rank(0)).unwrap();
        let (ring, ended) = ([Some(ring), None], Vec::new());
        let ways = Ways { locals: Vec::new(), post, ring, ended, mending: None };
        let service = Service::get().unwrap();
        let gossip = Gossip::new(Rank(0), 2);
        let task = GossipTask::start(&service, gossip, Rank(0), ways, Box::new(Silent)).unwrap();
        let mut last = [0; 4];
        theirs.read_exact(&mut last).unwrap();
        assert_eq!(&last, b"last");
        // It is read on, and not closed.
        theirs.write_all(&frame(5, &1u32.to_le_bytes())).unwrap();
        theirs.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(theirs.read(&mut last).is_err(), "still open");
        theirs.set_read_timeout(None).unwrap();
        let lost = Fault::new(ErrorKind::Peer, &[], "it lost its way");
        theirs.write_all(&if fails { frame(2, &lost.encode()) } else { frame(3, &[]) }).unwrap();
        assert_eq!(theirs.read(&mut last).unwrap(), 0, "the end");
        let limit = Duration::from_secs(if fails { 20 } else { 0 });
        assert_eq!(decided(&task, limit), fails.then_some((Trouble::LinkFailed, Rank(1))));
    }
}

#[test]
fn a_stream_of_the_ring_that_ends_without_a_word_is_a_death() {
    let (ring, theirs) = behind();
    let task = start(0xd6, vec![here(1), here(2)], [Some(ring), None]);
    drop(theirs);
    assert_eq!(decided(&task, Duration::from_secs(20)), Some((Trouble::Died, Rank(1))));
}
