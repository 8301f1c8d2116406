//! Samples of links' sockets, from the kernel to the snapshot, and rows with wrong values.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use super::*;
use crate::snapshot::{LinkSnapshot, SocketSnapshot, TcpState};
use crate::sys::fds::Fd;
use layout::{RowState, socket};

const SOCKET: (TransportKind, TransportReason) = (TransportKind::Socket, TransportReason::OtherHost);

/// Both ends of a connection that has carried one byte each way.
pub(super) fn connection(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut near, &mut far];
        ends[from].write_all(b"x").unwrap();
        ends[to].read_exact(&mut [0]).unwrap();
    }
    (near, far)
}

pub(super) fn shared(stream: impl Into<std::os::fd::OwnedFd>) -> Arc<Fd> {
    Arc::new(Fd::new(stream.into()))
}

pub(super) fn link_to(row: &CommRow, peer: u32, streams: &[Arc<Fd>]) -> LinkCell {
    let link = row.link(ChannelId(1), Some(Rank(peer)), Direction::Send, SOCKET);
    link.watching(streams.iter().map(Arc::downgrade).collect())
}

fn sockets(recorder: &Arc<Recorder>, link: usize) -> Vec<SocketSnapshot> {
    read(recorder).comms[0].links[link].sockets.clone()
}

#[test]
fn each_stream_is_seen_with_its_ends_until_the_link_ends() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let (near, far) = connection("127.0.0.1:0");
    let (_unix, other) = UnixStream::pair().unwrap();
    let (local, remote) = (near.local_addr().unwrap(), far.local_addr().unwrap());
    let streams = [shared(other), shared(near)];
    let shm = row.link(ChannelId(0), Some(Rank(2)), Direction::Send, SHM);
    let cell = link_to(&row, 3, &streams);
    let [none, link] = &read(&recorder).comms[0].links[..] else { panic!("two links") };
    assert_eq!((none.sockets.len(), link.why), (0, Why::OtherHost));
    // A stream that is not a TCP connection has no row. The other has a sample before the service
    // thread takes its first.
    let [first] = &link.sockets[..] else { panic!("{link:?}") };
    assert_eq!((first.stream, first.state, first.retransmits), (1, TcpState::Established, 0));
    assert_eq!((&first.local, &first.remote), (&local.to_string(), &remote.to_string()));
    assert!(first.rtt_us > 0 && first.window > 0, "{first:?}");
    assert!(first.heard_ns >= first.age_ns && first.received_ns >= first.heard_ns, "{first:?}");
    // A later sample has later values.
    drop(far);
    clock::sleep(std::time::Duration::from_millis(20));
    assert!(sockets(&recorder, 1)[0].age_ns > 15_000_000);
    recorder.sample_sockets();
    let later = sockets(&recorder, 1).remove(0);
    assert_eq!(later.state, TcpState::CloseWait);
    assert!(later.age_ns < first.age_ns + 20_000_000 && later.received_ns > 15_000_000, "{later:?}");
    // Only the link keeps the stream open.
    assert!(streams.iter().all(|stream| Arc::strong_count(stream) == 1));
    drop(cell);
    recorder.sample_sockets();
    assert_eq!(read(&recorder).comms[0].links.len(), 1);
    // The last samples of an ended communicator stay.
    drop((shm, row));
    assert_eq!(sockets(&recorder, 1).len(), 1);
}

#[test]
fn rows_come_back_and_what_finds_none_is_counted() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let (near, far) = connection("[::1]:0");
    let local = near.local_addr().unwrap();
    let streams = [shared(near), shared(far)];
    let count = Capacity::FULL.sockets;
    // Twice as many links as there are rows, one after the other, need no more than two rows at a
    // time.
    for _ in 0..count {
        drop(link_to(&row, 3, &streams));
    }
    assert_eq!(read(&recorder).overflow, []);
    let many: Vec<_> = (0..count as u32 / 2).map(|peer| link_to(&row, peer, &streams)).collect();
    assert_eq!(read(&recorder).overflow, []);
    let more = link_to(&row, 7_000, &streams);
    more.set(3, 2, 1);
    let process = read(&recorder);
    assert_eq!(process.overflow, [snapshot::Overflow { table: "Sockets".into(), rows: 2 }]);
    let links = &process.comms[0].links;
    assert!(links[..many.len()].iter().all(|link| link.sockets.len() == 2));
    assert_eq!(links[5].sockets[0].local, local.to_string());
    let last = &links[many.len()];
    assert_eq!((last.peer, last.posted, last.sockets.len()), (Some(Rank(7_000)), 3, 0));
}

#[test]
fn a_forked_child_touches_nothing() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let (near, _far) = connection("127.0.0.1:0");
    let streams = [shared(near)];
    let mut cell = Some(link_to(&row, 3, &streams));
    // Another thread of the parent holds the lock during the fork: in the child it is never freed.
    let lock = recorder.lock();
    let status = crate::sys::process::in_fork(|| {
        recorder.sample_sockets();
        drop(cell.take());
        let unseen = link_to(&row, 2, &streams);
        drop(unseen);
        0
    });
    drop(lock);
    assert_eq!(status, Some(0));
    recorder.sample_sockets();
    assert_eq!(sockets(&recorder, 0)[0].state, TcpState::Established);
}

/// The links of a recorder with one socket, whose row was changed.
fn changed(change: impl FnOnce(&[AtomicU64])) -> Vec<LinkSnapshot> {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let (near, _far) = connection("127.0.0.1:0");
    let streams = [shared(near)];
    let _cell = link_to(&row, 3, &streams);
    let first = Capacity::FULL.offset(Table::Sockets) / 8;
    change(&recorder.memory.words()[first..][..2 * socket::WORDS]);
    read(&recorder).comms.remove(0).links
}

#[test]
fn a_row_that_lies_is_not_believed() {
    let check = |name: &str, expect: usize, change: &dyn Fn(&[AtomicU64])| {
        let links = changed(change);
        assert_eq!((links.len(), links[0].sockets.len()), (1, expect), "{name}");
    };
    let set = |row: &[AtomicU64], at: usize, clear: u64, bits: u64| {
        let word = row[at].load(Ordering::Relaxed);
        row[at].store(word & !clear | bits, Ordering::Relaxed);
    };
    check("as it was", 1, &|_| ());
    check("free", 0, &|row| set(row, socket::WHAT, 0xff, RowState::Free as u64));
    check("of no state", 0, &|row| set(row, socket::WHAT, 0xff, 77));
    check("of another way", 0, &|row| set(row, socket::WHAT, 0xff00, 1 << 8));
    check("of no way", 0, &|row| set(row, socket::WHAT, 0xff00, 9 << 8));
    check("of another channel", 0, &|row| set(row, socket::WHAT, 0xffff << 32, 4 << 32));
    check("of no communicator", 0, &|row| set(row, socket::WHAT, 0xffff << 48, 0xffff << 48));
    check("of a communicator before", 0, &|row| set(row, socket::PEER, u64::MAX << 32, 9 << 32));
    check("of another peer", 0, &|row| set(row, socket::PEER, 0xffff_ffff, 2));
    check("twice", 2, &|row| {
        for at in 0..socket::WORDS {
            row[socket::WORDS + at].store(row[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    });
    // Any values decode to some sample.
    let links = changed(|row: &[AtomicU64]| {
        set(row, socket::WHAT, 0xff << 24, 5 << 24);
        for word in &row[socket::PORTS..socket::WORDS] {
            word.store(u64::MAX, Ordering::Relaxed);
        }
    });
    let seen = &links[0].sockets[0];
    assert_eq!((seen.state, seen.local.as_str(), seen.timeouts), (TcpState::Unknown, "", 255));
    assert_eq!((seen.rtt_us, seen.retransmits, seen.unsent_bytes), (u32::MAX, u32::MAX, u32::MAX));
}
