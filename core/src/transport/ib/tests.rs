//! Lanes over real queue pairs. They run where there is a device; `tests/tests/verbs.rs` starts
//! them in a virtual machine that has two.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::accept::{Acceptor, Incoming, Owner};
use super::link::{MAX_PAIRS, RECEIVES, Receiver, Sender, next};
use super::port::Port;
use super::setup::{Role, Terms, Unconnected, kind, writer};
use super::talk::{Heard, Talk};
use super::testing;
use crate::clock;
use crate::collective::Descriptor;
use crate::config::Key;
use crate::memory::Region;
use crate::plan::WIRE_SLOT_BYTES;
use crate::recorder::reader::Reader;
use crate::recorder::{CommInfo, Recorder};
use crate::reduce::Store;
use crate::seed::Seed;
use crate::snapshot::{SetUp, Waits};
use crate::sys::fds::Fd;
use crate::transport::LinkFault;
use crate::transport::shm::link as bytes;
use crate::transport::socket::arrivals::Arrivals;
use crate::types::{ChannelId, CommId, Direction, JobId, Rank, TransportKind, TransportReason};

/// The ports and terms with these settings, or says that the test was skipped.
fn terms(test: &str, with: &[(Key, &str)]) -> Option<(Vec<Port>, Terms)> {
    let terms = testing::terms(with);
    if terms.is_none() {
        println!("skipped: {test}: needs a device for queue pairs");
    }
    terms
}

/// The lane with these settings, likewise.
fn lane(test: &str, with: &[(Key, &str)]) -> Option<(Sender, Receiver)> {
    terms(test, with).and_then(|_| testing::lane(with))
}

fn content(number: u64, len: usize) -> Vec<u8> {
    let mut seed = Seed(number);
    (0..len).map(|_| seed.bits() as u8).collect()
}

/// Sends message `number` if there is room.
fn send(sender: &mut Sender, number: u64, len: usize) -> Result<bool, LinkFault> {
    let Some(slot) = sender.reserve(len as u32)? else { return Ok(false) };
    bytes::store(slot, &content(number, len));
    sender.publish(check_of(number));
    Ok(true)
}

/// The check of message `number`: three in a row are of one call, and five calls in a row alike.
const fn check_of(number: u64) -> u64 {
    let call = number / 3;
    (call / 5 * 1_000_003).wrapping_add(call.wrapping_mul(Descriptor::STEP))
}

/// The next message, within two seconds.
fn take(sender: &mut Sender, receiver: &mut Receiver) -> Result<(u64, Vec<u8>), LinkFault> {
    let deadline = clock::now().after(Duration::from_secs(2));
    loop {
        let _ = sender.pump();
        if let Some(message) = receiver.peek()? {
            let taken = (message.check, bytes::load(&message));
            receiver.release();
            return Ok(taken);
        }
        assert!(clock::now() < deadline, "no message: {sender:?} {receiver:?}");
        clock::sleep(Duration::from_micros(50));
    }
}

/// Sends many messages of random lengths, as far ahead as there is room.
fn stream(test: &str, with: &[(Key, &str)], count: u64) {
    let Some((mut sender, mut receiver)) = lane(test, with) else { return };
    let mut seed = Seed(count);
    let lens: Vec<usize> = (0..count)
        .map(|_| match seed.below(4) {
            0 => 0,
            1 => seed.place(200),
            2 => WIRE_SLOT_BYTES as usize,
            _ => seed.place(WIRE_SLOT_BYTES as usize),
        })
        .collect();
    let mut sent = 0;
    for (number, len) in (0..).zip(&lens) {
        while sent < count && send(&mut sender, sent, lens[sent as usize]).unwrap() {
            sent += 1;
        }
        assert_eq!(
            take(&mut sender, &mut receiver).unwrap(),
            (check_of(number), content(number, *len)),
            "{number}"
        );
    }
    let deadline = clock::now().after(Duration::from_secs(2));
    while sender.done() + 1 < count {
        sender.pump().unwrap();
        receiver.pump().unwrap();
        assert!(clock::now() < deadline, "{sender:?}");
    }
    assert_eq!((sender.posted(), sender.moved(), receiver.done()), (count, count, count));
}

#[test]
fn messages_of_all_lengths_arrive_over_one_queue_pair() {
    stream("messages_of_all_lengths_arrive_over_one_queue_pair", &[], 200);
}

#[test]
fn messages_are_split_over_several_queue_pairs() {
    for pairs in ["2", "3", "8"] {
        let with = [(Key::IbQpsPerConnection, pairs)];
        stream("messages_are_split_over_several_queue_pairs", &with, 100);
    }
}

#[test]
fn large_messages_are_followed_by_their_number_where_packets_overtake() {
    for pairs in ["1", "4"] {
        let with = [(Key::IbAdaptiveRouting, "1"), (Key::IbQpsPerConnection, pairs)];
        stream("large_messages_are_followed_by_their_number_where_packets_overtake", &with, 100);
    }
}

/// Sends what lies in a region to another region; what was in neither slot nor copied.
fn regions(sender: &mut Sender, receiver: &mut Receiver, size: usize) -> (u64, u64) {
    const COUNT: usize = 50;
    let mut from = Region::new(content(7, COUNT * size));
    let mut to = Region::new(vec![0_u8; COUNT * size]);
    let (ours, theirs) = (from.view_mut(), to.view_mut());
    let first = sender.posted();
    sender.lend(first, (ours, size), &from.lendable().unwrap());
    receiver.lend(first, (theirs, size), &to.lendable().unwrap());
    let (mut sent, mut taken, mut in_place) = (0, 0, (0, 0));
    let deadline = clock::now().after(Duration::from_secs(10));
    while taken < COUNT {
        let slot = if sent < COUNT { sender.reserve(size as u32).unwrap() } else { None };
        if let Some(slot) = slot {
            let part = ours.part(sent * size, size);
            in_place.0 += u64::from(std::ptr::eq(slot.as_ptr(), part.as_ptr()));
            crate::reduce::copy(slot, part.read(), Store::Plain);
            sender.publish(99);
            sent += 1;
        }
        let _ = sender.pump().unwrap();
        if let Some(message) = receiver.peek().unwrap() {
            let part = theirs.part(taken * size, size);
            assert_eq!((message.check, message.data.len()), (99, size));
            in_place.1 += u64::from(std::ptr::eq(message.data.as_ptr(), part.as_ptr()));
            crate::reduce::copy(part, message.data, Store::Plain);
            receiver.release();
            taken += 1;
        }
        assert!(clock::now() < deadline, "{sender:?} {receiver:?}");
    }
    while sender.moved() < sender.posted() {
        sender.pump().unwrap();
        assert!(clock::now() < deadline, "{sender:?}");
    }
    assert!(from[..] == to[..], "the bytes are others");
    in_place
}

#[test]
fn only_a_call_unlike_the_one_before_needs_a_header() {
    let Some((mut sender, mut receiver)) = lane("only_a_call_unlike_the_one_before_needs_a_header", &[])
    else {
        return;
    };
    let mut arrived = 0;
    for (check, header) in [(7, 64), (7, 0), (next(7), 0), (next(7), 0), (next(next(7)), 0), (7, 64)] {
        let slot = sender.reserve(100).unwrap().unwrap();
        bytes::store(slot, &[1; 100]);
        sender.publish(check);
        assert_eq!(take(&mut sender, &mut receiver).unwrap(), (check, vec![1; 100]));
        let before =
            std::mem::replace(&mut arrived, receiver.half.end.counts[0].bytes.load(Ordering::Relaxed));
        assert_eq!(arrived - before, 100 + header, "{check}");
    }
}

#[test]
fn messages_between_regions_need_no_slots() {
    let name = "messages_between_regions_need_no_slots";
    for with in [&[][..], &[(Key::IbQpsPerConnection, "3")], &[(Key::IbAdaptiveRouting, "1")]] {
        let Some((mut sender, mut receiver)) = lane(name, with) else { return };
        // Plans cut evenly: messages are seldom of the largest size.
        for size in [WIRE_SLOT_BYTES as usize, 32320, WIRE_SLOT_BYTES as usize, 16448] {
            // Those that share a page with other memory, and those that the writer was told to put
            // into slots before the receive was called, are copied.
            let (sent, taken) = regions(&mut sender, &mut receiver, size);
            // Behind the last three or four of the smallest there is no room for a longest one.
            assert!((45..=50).contains(&sent) && (35..=45).contains(&taken), "{size}: {sent} {taken}");
            // In slots again, with another check.
            assert!(send(&mut sender, 5, 1000).unwrap());
            assert_eq!(take(&mut sender, &mut receiver).unwrap(), (check_of(5), content(5, 1000)));
        }
    }
}

/// Both ends' faults, within ten seconds of a message that is sent.
fn faults(sender: &mut Sender, receiver: &mut Receiver) -> (String, String) {
    let _ = send(sender, 0, 1000);
    let deadline = clock::now().after(Duration::from_secs(10));
    let mut found = (None, None);
    while (found.0.is_none() || found.1.is_none()) && clock::now() < deadline {
        found.0 = sender.pump().err().map(|fault| fault.to_string());
        found.1 = receiver.pump().err().map(|fault| fault.to_string());
        clock::sleep(Duration::from_millis(1));
    }
    (found.0.unwrap_or_default(), found.1.unwrap_or_default())
}

#[test]
fn a_message_that_comes_twice_is_told_and_not_believed() {
    for pairs in ["1", "2"] {
        let with = [(Key::IbQpsPerConnection, pairs)];
        let name = "a_message_that_comes_twice_is_told_and_not_believed";
        let Some((mut sender, mut receiver)) = lane(name, &with) else { return };
        assert!(send(&mut sender, 0, 100).unwrap());
        let deadline = clock::now().after(Duration::from_secs(5));
        while receiver.peek().unwrap().is_none() {
            assert!(clock::now() < deadline, "{receiver:?}");
        }
        sender.repeat();
        while receiver.arrived() < 2 {
            receiver.pump().unwrap();
            assert!(clock::now() < deadline, "{receiver:?}");
        }
        receiver.release();
        assert!(matches!(receiver.peek(), Err(LinkFault::Corrupt(_))), "{receiver:?}");
    }
}

const IMPATIENT: [(Key, &str); 2] = [(Key::IbTimeout, "12"), (Key::IbRetryCount, "3")];

#[test]
fn a_failed_queue_pair_is_told_with_both_ends_and_the_cause() {
    let name = "a_failed_queue_pair_is_told_with_both_ends_and_the_cause";
    let Some((mut sender, mut receiver)) = lane(name, &IMPATIENT) else { return };
    receiver.fail();
    let said = faults(&mut sender, &mut receiver);
    let ours = ["RETRY_EXC_ERR (12", "queue pair", " to ", "now ERR", "did not answer"];
    check(&said, &ours, &["WR_FLUSH_ERR (5", "failed before"]);
    // A fault is final.
    assert!(sender.reserve(1).is_err() && receiver.peek().is_err());

    let (mut sender, mut receiver) = testing::lane(&IMPATIENT).unwrap();
    sender.fail();
    let _ = send(&mut sender, 0, 10);
    let deadline = clock::now().after(Duration::from_secs(5));
    while sender.pump().is_ok() && clock::now() < deadline {}
    assert!(sender.pump().unwrap_err().to_string().contains("WR_FLUSH_ERR"));
    drop(sender);
    // The reader's device hears nothing more; the connection says that the writer has gone.
    let ended = (0..1000).find_map(|_| receiver.pump().err());
    assert_eq!(ended, Some(LinkFault::Gone));
}

#[test]
fn what_one_lane_does_not_survive_another_one_does() {
    let name = "what_one_lane_does_not_survive_another_one_does";
    let Some((mut sender, mut receiver)) = lane(name, &IMPATIENT) else { return };
    let (mut other, mut reader) = testing::lane(&[]).unwrap();
    receiver.fail();
    assert!(faults(&mut sender, &mut receiver).0.contains("RETRY_EXC_ERR"));
    for number in 0..20 {
        assert!(send(&mut other, number, 5000).unwrap());
        assert_eq!(take(&mut other, &mut reader).unwrap(), (check_of(number), content(number, 5000)));
    }
}

/// What both ends say, in that order, must have these parts.
fn check((ours, theirs): &(String, String), of_writer: &[&str], of_reader: &[&str]) {
    for (text, parts) in [(ours, of_writer), (theirs, of_reader)] {
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn a_reader_without_receives_is_told_as_one_that_does_not_run() {
    let name = "a_reader_without_receives_is_told_as_one_that_does_not_run";
    let Some((mut sender, mut receiver)) = lane(name, &IMPATIENT) else { return };
    let deadline = clock::now().after(Duration::from_secs(10));
    let mut sent = 0;
    // As many messages arrive as there are receives; the writer's device gives up the next one.
    let fault = loop {
        match send(&mut sender, sent, 100) {
            Ok(true) => sent += 1,
            Ok(false) => {}
            Err(fault) => break fault.to_string(),
        }
        if let Err(fault) = sender.pump() {
            break fault.to_string();
        }
        if receiver.peek().unwrap().is_some() {
            receiver.release_unready();
        }
        assert!(clock::now() < deadline, "{sent} sent: {sender:?} {receiver:?}");
    };
    assert_eq!(receiver.done(), u64::from(RECEIVES));
    let said = (fault, String::new());
    let parts =
        ["a write ended with RNR_RETRY_EXC_ERR (13", "queue pair", " to ", "now ERR", "no receive posted"];
    check(&said, &parts, &[]);
}

#[test]
fn a_wrong_key_is_told_as_refused_access() {
    let name = "a_wrong_key_is_told_as_refused_access";
    let Some((mut sender, mut receiver)) = lane(name, &IMPATIENT) else { return };
    sender.forget_key();
    let said = faults(&mut sender, &mut receiver);
    let ours = ["a write ended with REM_ACCESS_ERR (10", "queue pair", " to ", "now ERR", "address or key"];
    // A device ends the reader's receive with this status, or flushes it.
    check(&said, &ours, &["a receive ended with ", "_ERR (", "queue pair", " to ", "now ERR"]);
}

#[test]
fn a_reader_that_is_killed_while_the_writer_connects_is_told() {
    let name = "a_reader_that_is_killed_while_the_writer_connects_is_told";
    // A process that was killed closes the connection, a host that was switched off does not.
    for has_host in [true, false] {
        // The device must not give up before the end of the connection is seen.
        let with = if has_host { &[][..] } else { &IMPATIENT };
        let Some(terms) = terms(name, with) else { return };
        let [ours, theirs] = testing::ends(&terms);
        let (offer, answer) = (ours.told(0), theirs.told(0));
        // The reader's queue pairs are up, and gone before those of the writer are.
        drop(theirs.connect(&offer, Rank(0)).unwrap());
        let ours = ours.connect(&answer, Rank(1)).unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        let _held = (!has_host).then_some(b);
        let mut sender = writer(ours, testing::line(a));
        let _ = send(&mut sender, 0, 1000);
        let deadline = clock::now().after(Duration::from_secs(10));
        let fault = loop {
            assert!(clock::now() < deadline, "{sender:?}");
            if let Err(fault) = sender.pump() {
                break fault;
            }
        };
        let parts =
            ["a write ended with RETRY_EXC_ERR (12", "queue pair", " to ", "now ERR", "did not answer"];
        if has_host {
            assert_eq!(fault, LinkFault::Gone);
        } else {
            check(&(fault.to_string(), String::new()), &parts, &[]);
        }
    }
}

#[test]
fn a_writer_that_is_killed_before_it_is_ready_leaves_nothing_at_the_reader() {
    let name = "a_writer_that_is_killed_before_it_is_ready_leaves_nothing_at_the_reader";
    let Some((ports, terms)) = terms(name, &[]) else { return };
    let (arrivals, incoming) = (Arc::new(Arrivals::default()), Arc::new(Incoming::default()));
    let (port, memory) = (ports[0].clone(), testing::owner(1));
    let owner = Owner { memory, ports: vec![port.clone()], terms: terms.clone(), channels: 1 };
    let acceptor = Acceptor::start(&arrivals, owner, Arc::clone(&incoming), Arc::new(|| ())).unwrap();
    // A call needs the lane: its cell shows how far the set-up is.
    let recorder = Recorder::heap();
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "test", rank: Rank(1), nranks: 2, world: Rank(1) };
    let row = recorder.comm(info);
    let chosen = (TransportKind::Verbs, TransportReason::OtherHost);
    let cell = || row.link(ChannelId::P2P, Some(Rank(0)), Direction::Recv, chosen);
    (0..2).for_each(|_| acceptor.expect(ChannelId::P2P, Rank(0), cell));
    let links = || Reader::borrow(Arc::clone(&recorder)).snapshot().unwrap().comms.remove(0).links;
    let shows = |state: SetUp| {
        let links = links();
        links.len() == 1 && (links[0].set_up, links[0].waits) == (Some(state), Waits::Nothing)
    };
    assert!(shows(SetUp::Accept));
    let ours =
        Unconnected::make(&ports[..1], None, &testing::owner(0), (Role::Writer, &terms), ChannelId::P2P)
            .unwrap();
    // All that belongs to a lane holds its device.
    let before = Arc::strong_count(&port.hca);
    let until = |what: &str, mut is_so: Box<dyn FnMut() -> bool + '_>| {
        let deadline = clock::now().after(Duration::from_secs(10));
        while !is_so() {
            assert!(clock::now() < deadline, "{what}");
            clock::sleep(Duration::from_millis(1));
        }
    };
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    let mut talk = Talk::new(Arc::new(Fd::new(a.into())));
    arrivals.put((Rank(0), ChannelId::P2P, Fd::new(b.into())));
    until("a connection is seen", Box::new(|| shows(SetUp::Recv)));
    talk.say(ours.told(ChannelId::P2P.0).encode(kind::OFFER));
    until("an answer", Box::new(|| matches!(talk.hear(), Heard::Message(kind::ANSWER, _))));
    assert!(Arc::strong_count(&port.hca) > before, "the reader has queue pairs");
    until("its answer is seen", Box::new(|| shows(SetUp::Connecting)));
    drop(talk);
    until("they are gone", Box::new(|| Arc::strong_count(&port.hca) == before));
    until("another connection is awaited", Box::new(|| shows(SetUp::Accept)));
    assert!(incoming.take().is_empty() && links().len() == 1);
    incoming.close();
    assert!(links().is_empty(), "no call needs it any more");
}

#[test]
fn a_full_completion_queue_refuses_a_lane_and_the_others_go_on() {
    let name = "a_full_completion_queue_refuses_a_lane_and_the_others_go_on";
    let Some((mut sender, mut receiver)) = lane(name, &[]) else { return };
    let (ports, terms) = testing::terms(&[]).unwrap();
    let owner = testing::owner(0);
    let make =
        || Unconnected::make(&ports[..1], Some(MAX_PAIRS), &owner, (Role::Writer, &terms), ChannelId::P2P);
    let mut made = Vec::new();
    let refused = loop {
        match make() {
            Ok(end) => made.push(end),
            Err(e) => break e.with_hint(),
        }
        assert!(made.len() < 1_000, "the queue never ends");
    };
    let place = format!("making a queue pair on {} port {}", ports[0].hca.name(), ports[0].number);
    for part in [&place, "has no room for another queue pair", "CCL_IB_QPS_PER_CONNECTION=1"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    for number in 0..20 {
        assert!(send(&mut sender, number, 5000).unwrap());
        assert_eq!(take(&mut sender, &mut receiver).unwrap(), (check_of(number), content(number, 5000)));
    }
    made.pop();
    make().unwrap();
}
