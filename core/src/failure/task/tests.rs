use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;

use super::*;
use crate::bootstrap::Tail;
use crate::bootstrap::auth::Key;
use crate::bootstrap::fault::Fault;
use crate::bootstrap::frame::{Frames, frame};
use crate::error::ErrorKind;
use crate::failure::gossip::{Attempt, Trouble};
use crate::types::{CommId, JobId};

struct Silent;

impl Owner for Silent {
    fn called(&self) -> Vec<Descriptor> {
        Vec::new()
    }
    fn finished(&self, _: Rank, _: &Tally) {}
    fn asked(&self, _: Rank, _: &Descriptor) {}
    fn decided(&self, _: &Decision) {}
    fn heard(&self, _: News) {}
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The gossip of rank 0, with these data listeners and streams of the ring.
fn start(comm: u64, listeners: Vec<SocketAddr>, ring: [Option<RingStream>; 2]) -> Arc<GossipTask> {
    let (job, comm, me, nranks) = (JobId(0x2a), CommId(comm), Rank(0), listeners.len() as u32);
    let dialling = Dialling { job, comm, key: Key::from_secret("of this test"), me, bind: None, listeners };
    let post = Post::open(comm, me).unwrap();
    let ways = Ways { locals: Vec::new(), post, ring, mending: Some((dialling, Arc::default())) };
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

#[test]
fn a_rank_whose_stream_was_reset_has_died_only_if_nobody_listens_there_any_more() {
    let door = TcpListener::bind(here(0)).unwrap();
    // The kernel connects; the process is busy.
    let there = TcpListener::bind(here(0)).unwrap();
    let stream = std::net::TcpStream::connect(door.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (theirs, _) = door.accept().unwrap();
    let ring = RingStream {
        fd: Fd::from(std::os::fd::OwnedFd::from(stream)),
        tail: Tail::new(Frames::new(64), true),
        peer: Rank(1),
    };
    let task = start(0xc1, vec![here(1), there.local_addr().unwrap()], [None, Some(ring)]);
    socket2::SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).unwrap();
    drop(theirs);
    assert_eq!(decided(&task, Duration::from_millis(300)), None);
    drop(there);
    assert_eq!(decided(&task, Duration::from_secs(20)), Some((Trouble::Died, Rank(1))));
}

#[test]
fn what_a_neighbour_tells_that_fails_in_the_bootstrap_is_its_report() {
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let tail = Tail::new(Frames::new(64), false);
    let ring = RingStream { fd: Fd::from(std::os::fd::OwnedFd::from(ours)), tail, peer: Rank(1) };
    let task = start(0xc2, vec![here(1), here(2), here(3)], [Some(ring), None]);
    let waits = Fault::new(ErrorKind::Timeout, &[Rank(2)], "it waits for rank 2");
    theirs.write_all(&frame(2, &waits.encode())).unwrap();
    assert_eq!(decided(&task, Duration::from_secs(20)), Some((Trouble::TimedOut, Rank(2))));
    let text = task.lock().gossip.decision().map(|decision| decision.text.clone());
    assert_eq!(text.as_deref(), Some("rank 1 failed in its initialization: it waits for rank 2"));
}
