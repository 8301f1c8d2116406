//! Tests of lanes over real TCP connections, with strangers that connect to the port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::connect::{Connecting, Target};
use super::link::test_bytes::{bytes_of, fill};
use super::link::{Receiver, Sender};
use super::listen::{Inbox, Listener, Scope};
use crate::bootstrap::auth::{Hello, Key, Purpose, connect_blocking};
use crate::clock::{self, Ns};
use crate::error::ErrorKind;
use crate::sys::tcp::{self, own_network};
use crate::transport::LinkFault;
use crate::types::{ChannelId, CommId, JobId, Rank};

const LOOPBACK: &str = "127.0.0.1:0";

fn scope() -> Scope {
    Scope { job: JobId(1), key: Key([7; 32]), comm: CommId(2), rank: Rank(1), nranks: 4, channels: 2 }
}

fn hello(channel: u16, from: u32) -> Hello {
    let mut hello = Hello::new(Purpose::Data, JobId(1), CommId(2), Rank(from), Rank(1));
    hello.channel = ChannelId(channel);
    hello
}

fn target(address: SocketAddr, streams: u32) -> Target {
    Target { address, bind: None, key: Key([7; 32]), hello: hello(0, 0), streams }
}

fn soon() -> Ns {
    clock::now().after(Duration::from_secs(10))
}

struct Reader {
    listener: Listener,
    inbox: Inbox,
    woken: Arc<AtomicU64>,
}

impl Reader {
    fn open(address: &str) -> Self {
        let (inbox, woken) = (Inbox::default(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&woken);
        let wake = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let address = address.parse().unwrap();
        // A child that another test is forking may still hold a port that was freed.
        let listener =
            until(|| Listener::alone(address, scope(), Arc::clone(&inbox), Arc::clone(&wake) as _).ok());
        Self { listener, inbox, woken }
    }
    fn address(&self) -> SocketAddr {
        self.listener.address()
    }
    fn lane(&self) -> (ChannelId, Rank, Receiver) {
        until(|| self.inbox.lock().unwrap().pop())
    }
    fn strangers(&self) -> u64 {
        self.listener.counts().strangers.load(Ordering::SeqCst)
    }
}

/// Polls until `look` returns something, for at most 10 s.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = soon();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock::now() < deadline, "it did not happen");
        clock::sleep(Duration::from_millis(1));
    }
}

fn go(target: Target) -> crate::Result<Sender> {
    go_for(target, Duration::from_secs(10))
}

/// Turns a lane until it is up, or cannot come up.
fn go_for(target: Target, limit: Duration) -> crate::Result<Sender> {
    let mut connecting = Connecting::new(target, clock::now(), limit);
    loop {
        if let Some(sender) = connecting.turn(clock::now())? {
            return Ok(sender);
        }
        clock::sleep(Duration::from_millis(1));
    }
}

/// Sends messages of many sizes. Both ends are in this thread.
fn exchange(sender: &mut Sender, receiver: &mut Receiver) {
    for len in [0u32, 8, 40, 1000, 4096, 32768, 1, 32768, 32768, 32768, 32768, 3] {
        let view = until(|| sender.reserve(len).unwrap());
        let bytes: Vec<u8> = (0..len).map(|i| (i ^ len) as u8).collect();
        fill(view, &bytes);
        sender.publish(u64::from(len));
        let message = until(|| {
            sender.pump().unwrap();
            receiver.peek().unwrap()
        });
        assert_eq!((message.check, bytes_of(message.data)), (u64::from(len), bytes));
        receiver.release();
    }
}

#[test]
fn a_lane_comes_up_carries_and_ends() {
    for streams in [1, 2, 8] {
        let reader = Reader::open(LOOPBACK);
        let mut sender = go(target(reader.address(), streams)).unwrap();
        let (channel, from, mut receiver) = reader.lane();
        assert_eq!((channel, from, receiver.writer()), (ChannelId(0), Rank(0), Rank(0)));
        assert_eq!(reader.woken.load(Ordering::SeqCst), 1);
        exchange(&mut sender, &mut receiver);
        // The sockets of both ends can be inspected stream by stream, without being kept open.
        let sockets: Vec<_> = sender.sockets().into_iter().zip(receiver.sockets()).collect();
        assert_eq!(sockets.len(), streams as usize);
        for (ours, theirs) in &sockets {
            let (ours, theirs) = (ours.upgrade().unwrap(), theirs.upgrade().unwrap());
            let (local, remote) = tcp::ends(&*ours, None).unwrap();
            assert_eq!(tcp::ends(&*theirs, None), Some((remote, local)));
            assert_eq!(tcp::info(&*ours).unwrap().retransmits_total, 0);
        }
        drop(sender);
        assert!(sockets.iter().all(|(ours, _)| ours.upgrade().is_none()));
        assert_eq!(until(|| receiver.peek().err()), LinkFault::Gone);
        assert_eq!(reader.strangers(), 0);
    }
}

#[test]
fn many_lanes_come_up_at_once() {
    let reader = Reader::open(LOOPBACK);
    let address = reader.address();
    let writers: Vec<_> = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (ChannelId::P2P.0, 0)]
        .into_iter()
        .map(|(channel, from)| {
            let target = Target { hello: hello(channel, from), ..target(address, 3) };
            std::thread::spawn(move || go(target).unwrap())
        })
        .collect();
    let _senders: Vec<Sender> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    until(|| (reader.inbox.lock().unwrap().len() == 6).then_some(()));
    let mut lanes: Vec<_> = reader.inbox.lock().unwrap().iter().map(|(c, r, _)| (c.0, r.0)).collect();
    lanes.sort_unstable();
    assert_eq!(lanes, [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (u16::MAX, 0)]);
}

#[test]
fn the_writer_may_come_before_the_reader_listens() {
    let address = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let writer = std::thread::spawn(move || go(target(address, 2)));
    clock::sleep(Duration::from_millis(50));
    let reader = Reader::open(&address.to_string());
    writer.join().unwrap().unwrap();
    reader.lane();
}

#[test]
fn nobody_there_is_named_at_the_deadline() {
    // The port is bound, so that no other process gets it, but it is not listening.
    let port = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    port.bind(&LOOPBACK.parse::<SocketAddr>().unwrap().into()).unwrap();
    let address = port.local_addr().unwrap().as_socket().unwrap();
    let error = go_for(target(address, 2), Duration::from_millis(60)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    let said = error.to_string();
    let expect = format!(
        "comm 0000000000000002: rank 0: channel 0: peer rank 1: connecting stream 1 of 2 to {address} until the \
         deadline: Connection refused"
    );
    assert!(said.starts_with(&expect), "{said}");
}

#[test]
fn a_listener_that_never_answers_is_named_at_the_deadline() {
    let mute = TcpListener::bind(LOOPBACK).unwrap();
    let address = mute.local_addr().unwrap();
    let error = go_for(target(address, 1), Duration::from_millis(60)).unwrap_err();
    assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(Rank(1))));
}

#[test]
fn the_deadline_waits_for_a_rank_that_was_stopped() {
    let reader = Reader::open(LOOPBACK);
    // Before its first turn, as if by a signal.
    let began = clock::now();
    let mut connecting = Connecting::new(target(reader.address(), 1), began, Duration::from_secs(1));
    let late = || clock::now().after(Duration::from_secs(2));
    until(|| connecting.turn(late()).unwrap());
    reader.lane();
}

#[test]
fn another_secret_or_communicator_ends_the_lane_at_once() {
    let reader = Reader::open(LOOPBACK);
    let check = |target: Target, expect: &str| {
        let began = clock::now();
        let error = go(target).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
        assert_eq!((error.at.peer, error.at.channel), (Some(Rank(1)), Some(ChannelId(0))));
        assert!(clock::now().since(began) < Duration::from_secs(5));
    };
    let good = target(reader.address(), 1);
    check(Target { key: Key([8; 32]), ..good.clone() }, "secret");
    let mut other = good.clone();
    other.hello.comm = CommId(3);
    check(other, "does not know this job or communicator");
    let mut newer = good.clone();
    newer.hello.version += 1;
    check(newer, "version");
    until(|| (reader.strangers() == 3).then_some(()));
    go(good).unwrap();
    reader.lane();
}

#[test]
fn who_says_something_else_is_no_reader() {
    let web = TcpListener::bind(LOOPBACK).unwrap();
    let address = web.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 256]);
    });
    let error = go(target(address, 1)).unwrap_err();
    assert!(error.to_string().contains("does not speak ccl"), "{error}");
    server.join().unwrap();
}

/// The bytes that a writer sends in a handshake, as an eavesdropper could have recorded them.
fn recording() -> Vec<u8> {
    let reader = Reader::open(LOOPBACK);
    let relay = TcpListener::bind(LOOPBACK).unwrap();
    let address = relay.local_addr().unwrap();
    let to = reader.address();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let relay = std::thread::spawn(move || {
        let (mut near, _) = relay.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut near_back, mut far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let back = std::thread::spawn(move || std::io::copy(&mut far_back, &mut near_back));
        let mut bytes = [0; 256];
        while let Ok(count @ 1..) = near.read(&mut bytes) {
            hears.lock().unwrap().extend(&bytes[..count]);
            far.write_all(&bytes[..count]).unwrap();
        }
        far.shutdown(std::net::Shutdown::Both).unwrap();
        drop(back.join().unwrap());
    });
    let sender = go(target(address, 1)).unwrap();
    reader.lane();
    drop(sender);
    relay.join().unwrap();
    heard.lock().unwrap().clone()
}

#[test]
fn strangers_are_counted_and_disturb_nobody() {
    let said = recording();
    assert!(said.len() > 100);
    let reader = Reader::open(LOOPBACK);
    let visit = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(reader.address()).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    // More half-open connections than the listener keeps: it drops the oldest.
    let _silent: Vec<TcpStream> = (0..100).map(|_| visit(b"")).collect();
    let _partial = visit(&said[..20]);
    until(|| (reader.strangers() >= 37).then_some(()));
    let before = reader.strangers();
    // A scanner, garbage, a recorded handshake, and a process that knows the key but connects to
    // the wrong listener.
    drop(visit(b""));
    let mut garbage = visit(b"GET / HTTP/1.1\r\n\r\n");
    let mut replay = visit(&said);
    let mut lost = TcpStream::connect(reader.address()).unwrap();
    let wrong = Hello { purpose: Purpose::Control, ..hello(0, 0) };
    connect_blocking(&mut lost, &Key([7; 32]), wrong, soon()).unwrap();
    until(|| (reader.strangers() >= before + 4).then_some(()));
    // The listener sends at most a farewell to a process that does not speak ccl.
    assert!(garbage.read(&mut [0; 8]).map_or(true, |count| count == 0));
    assert!(lost.read(&mut [0; 8]).map_or(true, |count| count == 0));
    let mut answer = Vec::new();
    let _ = replay.read_to_end(&mut answer);
    assert!(answer.len() < 200, "a challenge and a farewell at most");
    let mut sender = go(target(reader.address(), 2)).unwrap();
    let (.., mut receiver) = reader.lane();
    exchange(&mut sender, &mut receiver);
    assert_eq!(reader.inbox.lock().unwrap().len(), 0);
}

#[test]
fn a_hello_out_of_bounds_gets_no_lane_though_it_is_proven() {
    let reader = Reader::open(LOOPBACK);
    let good = Hello { index: 0, count: 2, ..hello(0, 0) };
    let bad = [
        Hello { from: Rank(4), ..good },
        Hello { from: Rank(1), ..good },
        Hello { to: Rank(0), ..good },
        Hello { channel: ChannelId(2), ..good },
        Hello { index: 2, ..good },
        Hello { count: 9, ..good },
        Hello { count: 0, ..good },
        Hello { index: u32::MAX, count: u32::MAX, ..good },
    ];
    for (at, hello) in bad.into_iter().enumerate() {
        let mut stream = TcpStream::connect(reader.address()).unwrap();
        connect_blocking(&mut stream, &Key([7; 32]), hello, soon()).unwrap();
        assert!(stream.read(&mut [0; 8]).map_or(true, |count| count == 0), "{hello:?}");
        until(|| (reader.strangers() == at as u64 + 1).then_some(()));
    }
}

#[test]
fn a_writer_that_dies_half_way_leaves_nothing_and_its_successor_gets_the_lane() {
    let reader = Reader::open(LOOPBACK);
    let prove = |hello: Hello| {
        let mut stream = TcpStream::connect(reader.address()).unwrap();
        connect_blocking(&mut stream, &Key([7; 32]), hello, soon()).unwrap();
        stream
    };
    let first = prove(Hello { index: 0, count: 2, ..hello(0, 0) });
    drop(first);
    // A stream that sends data too early is dropped too.
    let mut early = prove(Hello { index: 1, count: 2, ..hello(0, 0) });
    early.write_all(b"data").unwrap();
    assert!(early.read(&mut [0; 8]).map_or(true, |count| count == 0));
    let mut sender = go(target(reader.address(), 2)).unwrap();
    let (.., mut receiver) = reader.lane();
    exchange(&mut sender, &mut receiver);
    // The lane is there: nobody gets it a second time.
    let error = go_for(target(reader.address(), 2), Duration::from_millis(100)).unwrap_err();
    assert!(error.to_string().contains("it closed the connection"), "{error}");
    assert!(reader.inbox.lock().unwrap().is_empty());
}

#[test]
fn a_closed_listener_closes_its_port_and_what_it_gathered() {
    let reader = Reader::open(LOOPBACK);
    let address = reader.address();
    let mut stream = TcpStream::connect(address).unwrap();
    let half = Hello { index: 0, count: 2, ..hello(0, 0) };
    connect_blocking(&mut stream, &Key([7; 32]), half, soon()).unwrap();
    drop(reader);
    assert!(stream.read(&mut [0; 8]).map_or(true, |count| count == 0));
    until(|| TcpStream::connect(address).err());
}

#[test]
fn the_machine_says_what_it_waits_for() {
    let mute = TcpListener::bind(LOOPBACK).unwrap();
    let now = clock::now();
    let mut connecting = Connecting::new(target(mute.local_addr().unwrap(), 3), now, Duration::from_secs(9));
    assert_eq!(connecting.wake(), Ns(0));
    assert!(connecting.turn(now).unwrap().is_none());
    assert_eq!(connecting.fds().count(), 3);
    assert_eq!(connecting.wake(), now.after(Duration::from_secs(9)));
    drop(mute);
    until(|| {
        assert!(connecting.turn(now).unwrap().is_none());
        (connecting.fds().count() == 0).then_some(())
    });
    assert!(connecting.wake() > now && connecting.wake() < now.after(Duration::from_secs(1)));
}

#[test]
fn only_a_connection_that_is_closed_soon_counts_as_ended() {
    let door = TcpListener::bind(LOOPBACK).unwrap();
    for (late, counts) in [(Duration::from_millis(1), true), (Duration::from_millis(600), false)] {
        let now = clock::now();
        let mut connecting =
            Connecting::new(target(door.local_addr().unwrap(), 1), now, Duration::from_secs(9));
        assert!(connecting.turn(now).unwrap().is_none());
        drop(door.accept().unwrap());
        let closed = now.after(late);
        until(|| {
            assert!(connecting.turn(closed).unwrap().is_none());
            (connecting.fds().count() == 0).then_some(())
        });
        assert_eq!(connecting.ended_since(), counts.then_some(closed));
        assert_eq!(connecting.unanswered_since(), None);
    }
}

/// Runs `ip` in this thread's network namespace.
fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn two_network_namespaces_joined_by_a_veth_pair_are_two_hosts() {
    let (near, far) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let here = own_network() && Command::new("ip").arg("-V").output().is_ok();
        near.send(here.then(rustix::thread::gettid)).unwrap();
        if !here {
            return;
        }
        until(|| {
            Command::new("ip")
                .args(["link", "show", "ccl-b"])
                .output()
                .unwrap()
                .status
                .success()
                .then_some(())
        });
        ip("addr add 10.77.0.2/24 dev ccl-b");
        ip("link set ccl-b up");
        let reader = Reader::open("10.77.0.2:0");
        tell.send(reader.address()).unwrap();
        let (.., mut receiver) = reader.lane();
        let mut taken = 0;
        let end = until(|| match receiver.peek() {
            Ok(Some(_)) => {
                receiver.release();
                taken += 1;
                None
            }
            Ok(None) => None,
            Err(end) => Some(end),
        });
        assert_eq!((end, taken), (LinkFault::Gone, 100));
    });
    let Some(there) = far.recv().unwrap() else {
        return println!(
            "skipped: two_network_namespaces_joined_by_a_veth_pair_are_two_hosts: needs root's network namespaces"
        );
    };
    let writer = std::thread::spawn(move || {
        assert!(own_network());
        ip(&format!("link add ccl-a type veth peer name ccl-b netns {}", there.as_raw_nonzero()));
        ip("addr add 10.77.0.1/24 dev ccl-a");
        ip("link set ccl-a up");
        let address = told.recv().unwrap();
        let bind = Some("10.77.0.1:0".parse().unwrap());
        let mut sender = go(Target { bind, ..target(address, 2) }).unwrap();
        for message in 0..100 {
            until(|| sender.reserve(32768).unwrap());
            sender.publish(message);
        }
        until(|| {
            sender.pump().unwrap();
            (sender.moved() == 100).then_some(())
        });
    });
    writer.join().unwrap();
    other.join().unwrap();
}
