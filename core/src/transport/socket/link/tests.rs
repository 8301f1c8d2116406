use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::test_bytes::{bytes_of, fill};
use super::*;

fn pair() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    for end in [&a, &b] {
        end.set_nonblocking(true).unwrap();
        // The smallest buffer that the kernel allows, so that it refuses soon.
        socket2::SockRef::from(end).set_send_buffer_size(4096).unwrap();
    }
    (a, b)
}

/// A network between the two ends that carries as many bytes as the test tells it to.
struct Wire {
    ends: Vec<(UnixStream, UnixStream)>,
    carried: Vec<VecDeque<u8>>,
}

impl Wire {
    fn new(streams: usize) -> (Sender, Self, Receiver) {
        let mut wire = Self { ends: Vec::new(), carried: vec![VecDeque::new(); streams] };
        let (mut out, mut back) = (Vec::new(), Vec::new());
        for _ in 0..streams {
            let (sender, near) = pair();
            let (far, receiver) = pair();
            out.push(Arc::new(Fd::new(sender.into())));
            back.push(Arc::new(Fd::new(receiver.into())));
            wire.ends.push((near, far));
        }
        (Sender::new(out, Rank(1)), wire, Receiver::new(back, Rank(0)))
    }
    fn carry(&mut self, stream: usize, most: usize) {
        let (near, far) = &mut self.ends[stream];
        let mut buffer = vec![0; most];
        if let Ok(n) = near.read(&mut buffer) {
            self.carried[stream].extend(&buffer[..n]);
        }
        let most = most.min(self.carried[stream].len());
        let bytes: Vec<u8> = self.carried[stream].iter().copied().take(most).collect();
        if let Ok(n) = far.write(&bytes) {
            self.carried[stream].drain(..n);
        }
    }
}

fn content(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number.wrapping_mul(31) as usize + i * 7 + i / 251) as u8).collect()
}

/// Closes the stream for both ends, even if a child that another test is forking holds a copy of
/// the descriptor.
fn leave(stream: &UnixStream) {
    stream.shutdown(std::net::Shutdown::Both).unwrap();
}

fn send(sender: &mut Sender, check: u64, bytes: &[u8]) -> bool {
    let Some(view) = sender.reserve(bytes.len() as u32).unwrap() else { return false };
    fill(view, bytes);
    sender.publish(check);
    true
}

/// Takes one message, if one has arrived, and compares it with the oldest one in flight.
fn take(receiver: &mut Receiver, flight: &mut VecDeque<Vec<u8>>) -> Result<bool, LinkFault> {
    let number = receiver.done();
    let Some(message) = receiver.peek()? else { return Ok(false) };
    assert_eq!(message.check, number ^ 0xABCD);
    assert_eq!(bytes_of(message.data), flight.pop_front().expect("it was sent"), "message {number}");
    assert!(receiver.moved() > number);
    receiver.release();
    Ok(true)
}

#[derive(Clone, Debug)]
enum Act {
    Send(usize),
    PumpOut,
    Carry(usize, usize),
    PumpIn,
    Take,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len = prop_oneof![0..200usize, 4000..4300usize, 0..=WIRE_SLOT_BYTES as usize];
    let act = prop_oneof![
        3 => len.prop_map(Act::Send),
        1 => Just(Act::PumpOut),
        6 => (0..8usize, prop_oneof![1..100usize, 1..50_000usize]).prop_map(|(s, n)| Act::Carry(s, n)),
        1 => Just(Act::PumpIn),
        3 => Just(Act::Take),
    ];
    proptest::collection::vec(act, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// At whatever pace the network carries the streams, the reader gets all messages that were
    /// sent, in order, before the end.
    #[test]
    fn a_lane_is_a_queue(streams in 1..=8usize, acts in acts()) {
        let (mut sender, mut wire, mut receiver) = Wire::new(streams);
        let mut flight: VecDeque<Vec<u8>> = VecDeque::new();
        for act in acts {
            match act {
                Act::Send(len) => {
                    let number = sender.posted();
                    let bytes = content(number, len);
                    if send(&mut sender, number ^ 0xABCD, &bytes) {
                        flight.push_back(bytes);
                    }
                }
                Act::PumpOut => {
                    sender.pump().unwrap();
                }
                Act::Carry(stream, most) => wire.carry(stream % streams, most),
                Act::PumpIn => {
                    receiver.pump().unwrap();
                }
                Act::Take => {
                    take(&mut receiver, &mut flight).unwrap();
                }
            }
            prop_assert!(sender.posted() >= sender.moved() && sender.posted() - sender.moved() <= PAIR_SLOTS.into());
            prop_assert!(receiver.posted() >= receiver.moved() && receiver.moved() >= receiver.done());
            prop_assert_eq!(sender.posted() - receiver.done(), flight.len() as u64);
            prop_assert_eq!(sender.moved() < sender.posted(), sender.fds().count() > 0);
        }
        for _ in 0..10_000 {
            sender.pump().unwrap();
            (0..streams).for_each(|stream| wire.carry(stream, 100_000));
            while take(&mut receiver, &mut flight).unwrap() {}
            if flight.is_empty() {
                break;
            }
        }
        prop_assert!(flight.is_empty());
        wire.ends.iter().for_each(|(_, far)| leave(far));
        prop_assert_eq!(take(&mut receiver, &mut flight), Err(LinkFault::Gone));
        prop_assert_eq!(receiver.pump(), Err(LinkFault::Gone));
    }
}

fn header(magic: u64, number: u64, check: u64, len: u32) -> Vec<u8> {
    let mut bytes = [magic.to_le_bytes(), number.to_le_bytes(), check.to_le_bytes()].concat();
    bytes.extend(len.to_le_bytes());
    bytes.resize(HEADER, 0);
    bytes
}

/// A lane of `streams` streams in which the test acts as the writer.
fn raw(streams: usize) -> (Vec<UnixStream>, Receiver) {
    let (writers, readers): (Vec<_>, Vec<_>) = (0..streams)
        .map(|_| {
            let (a, b) = UnixStream::pair().unwrap();
            b.set_nonblocking(true).unwrap();
            (a, Arc::new(Fd::new(b.into())))
        })
        .unzip();
    (writers, Receiver::new(readers, Rank(0)))
}

#[test]
fn a_hostile_header_is_a_named_fault_and_final() {
    let check = |bytes: &[u8], expect: &str| {
        let (mut writers, mut receiver) = raw(1);
        writers[0].write_all(bytes).unwrap();
        let fault = receiver.peek().unwrap_err();
        let LinkFault::Corrupt(what) = &fault else { panic!("{fault:?}") };
        assert!(what.contains(expect), "{what}");
        writers[0].write_all(&header(MAGIC, 0, 0, 0)).unwrap();
        assert_eq!(receiver.peek().unwrap_err(), fault);
        assert_eq!(receiver.pump().unwrap_err(), fault);
        assert_eq!(receiver.fds().count(), 0);
    };
    check(&header(0x2E31_5054_5448, 0, 0, 0), "begins with 0x00002e3150545448");
    check(&header(MAGIC, 1, 0, 0), "message 1 stands where 0 is due");
    check(&header(MAGIC, u64::MAX, 0, 0), "stands where 0 is due");
    check(&header(MAGIC, 0, 0, WIRE_SLOT_BYTES + 1), "claims 0x10001 bytes");
    check(&header(MAGIC, 0, 0, u32::MAX), "claims 0xffffffff bytes");
    let mut bytes = header(MAGIC, 0, 0, 0);
    bytes[63] = 1;
    check(&bytes, "reserved bytes");
    bytes = header(MAGIC, 0, 0, 0);
    bytes[30] = 1;
    check(&bytes, "claims 0x1000000000000 bytes");
}

#[test]
fn what_came_whole_is_delivered_before_the_end() {
    let mut bytes = header(MAGIC, 0, 7, 3);
    bytes.extend(b"abc");
    bytes.extend(header(MAGIC, 1, 8, 5000));
    bytes.extend(vec![1; 4999]);
    // The cuts are in a header, in a body, and between messages.
    for cut in [0, 1, 63, 64, 66, 67, 68, 130, 131, 132, 4200, bytes.len()] {
        let (mut writers, mut receiver) = raw(1);
        writers[0].write_all(&bytes[..cut]).unwrap();
        leave(&writers[0]);
        if cut >= 67 {
            receiver.pump().unwrap();
            let message = receiver.peek().unwrap().unwrap();
            assert_eq!((message.check, bytes_of(message.data).as_slice()), (7, b"abc".as_slice()));
            assert_eq!((receiver.posted(), receiver.moved(), receiver.done()), (4, 1, 0));
            receiver.release();
        }
        assert_eq!(receiver.peek().unwrap_err(), LinkFault::Gone, "cut at {cut}");
        assert_eq!(receiver.peek().unwrap_err(), LinkFault::Gone);
    }
}

#[test]
fn streams_may_overtake_each_other() {
    let (mut writers, mut receiver) = raw(3);
    for number in [2u64, 1] {
        writers[number as usize].write_all(&header(MAGIC, number, number, 0)).unwrap();
        assert!(receiver.pump().unwrap());
        assert!(receiver.peek().unwrap().is_none());
        assert_eq!(receiver.moved(), 0);
    }
    // The end of a stream is not a fault while an earlier message is due on another stream.
    leave(&writers[1]);
    assert!(receiver.pump().is_ok() && receiver.peek().unwrap().is_none());
    writers[0].write_all(&header(MAGIC, 0, 0, 0)).unwrap();
    for number in 0..3 {
        assert_eq!(receiver.peek().unwrap().unwrap().check, number);
        assert_eq!(receiver.moved(), 3);
        receiver.release();
    }
    writers[0].write_all(&header(MAGIC, 3, 3, 0)).unwrap();
    assert_eq!(receiver.peek().unwrap().unwrap().check, 3);
    receiver.release();
    assert_eq!(receiver.peek().unwrap_err(), LinkFault::Gone);
}

#[test]
fn a_breach_on_one_stream_is_told_though_another_is_awaited() {
    let (mut writers, mut receiver) = raw(2);
    writers[1].write_all(&header(MAGIC, 3, 0, 0)).unwrap();
    assert!(matches!(receiver.pump(), Err(LinkFault::Corrupt(_))));
}

#[test]
fn a_reader_that_stops_reading_stops_the_writer_and_a_reader_that_leaves_ends_it() {
    let (mut sender, wire, _receiver) = Wire::new(2);
    let bytes = content(0, WIRE_SLOT_BYTES as usize);
    while send(&mut sender, 0, &bytes) {}
    assert!((sender.moved() < sender.posted()));
    assert_eq!(sender.posted() - sender.moved(), u64::from(PAIR_SLOTS));
    assert_eq!(sender.slowest(), Rank(1));
    let interests: Vec<Interest> = sender.fds().collect();
    assert!(!interests.is_empty() && interests.iter().all(|i| i.read && i.write));
    assert_eq!(sender.pump(), Ok(false));
    wire.ends.iter().for_each(|(near, _)| leave(near));
    assert_eq!(sender.pump(), Err(LinkFault::Gone));
    assert_eq!(sender.reserve(0).unwrap_err(), LinkFault::Gone);
}

#[test]
fn a_reader_that_half_closes_or_talks_is_noticed_while_blocked() {
    let check = |act: fn(&mut UnixStream), expect: LinkFault| {
        let (a, mut b) = pair();
        let mut sender = Sender::new(vec![Arc::new(Fd::new(a.into()))], Rank(1));
        while send(&mut sender, 0, &[0; 4096]) {}
        act(&mut b);
        assert_eq!(sender.pump(), Err(expect.clone()));
        assert_eq!(sender.pump(), Err(expect));
    };
    check(|b| b.shutdown(std::net::Shutdown::Write).unwrap(), LinkFault::Gone);
    check(|b| b.write_all(b"hi").unwrap(), LinkFault::Corrupt("the reader of a lane sent something".into()));
}

#[test]
fn publishing_to_a_reader_that_left_is_told_by_the_next_call() {
    let (a, b) = pair();
    let mut sender = Sender::new(vec![Arc::new(Fd::new(a.into()))], Rank(1));
    leave(&b);
    assert!(send(&mut sender, 0, b"x"));
    assert_eq!(sender.reserve(1).unwrap_err(), LinkFault::Gone);
}
