//! Rows of queue pairs and ports, from their writers to the snapshot, and rows with wrong values.

use std::net::Ipv6Addr;

use super::*;
use crate::snapshot::{LinkSnapshot, PortLayer, PortStanding, QueuePairSnapshot, QueuePairState, SetUp};
use crate::sys::verbs::Address;
use crate::types::SetupState;
use layout::{RowState, port, queue_pair};

const VERBS: (TransportKind, TransportReason) = (TransportKind::Verbs, TransportReason::OtherHost);

fn gid(text: &str) -> Address {
    Address::Gid(text.parse::<Ipv6Addr>().unwrap().octets())
}

fn pair(number: u32) -> QueuePair<'static> {
    QueuePair {
        device: "rxe0",
        own: QueuePairEnd { port: 1, number, address: gid("::ffff:10.89.0.1") },
        other: QueuePairEnd { port: 2, number: 0x00ff_fff0, address: Address::Lid(7) },
    }
}

fn link_to(row: &CommRow, peer: u32) -> LinkCell {
    row.link(ChannelId(1), Some(Rank(peer)), Direction::Send, VERBS)
}

fn pairs(recorder: &Arc<Recorder>, link: usize) -> Vec<QueuePairSnapshot> {
    read(recorder).comms[0].links[link].queue_pairs.clone()
}

#[test]
fn a_queue_pair_is_seen_until_its_link_ends() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let link = link_to(&row, 3);
    let cells = [1, 0].map(|nth| link.queue_pair(nth, &pair(17 + u32::from(nth))));
    let [first, second] = &pairs(&recorder, 0)[..] else { panic!("two queue pairs") };
    assert_eq!((first.nth, first.number, second.nth, second.number), (0, 17, 1, 18));
    assert_eq!((first.device.as_str(), first.port, first.peer_port), ("rxe0", 1, 2));
    assert_eq!((first.address.as_str(), first.peer_address.as_str()), ("10.89.0.1", "lid 7"));
    assert_eq!((first.peer_number, first.state), (0x00ff_fff0, QueuePairState::Unknown));
    assert_eq!((first.completed_ns, first.error.as_ref()), (None, None));
    let cell = &cells[1];
    cell.state(QueuePairState::ReadyToSend);
    (0..3).for_each(|_| cell.posted(100));
    cell.completed(2, ago(50));
    cell.credits(5);
    let seen = pairs(&recorder, 0).remove(0);
    assert_eq!(
        (seen.state, seen.posted, seen.completed, seen.outstanding()),
        (QueuePairState::ReadyToSend, 3, 2, 1)
    );
    assert_eq!((seen.bytes, seen.credits), (300, 5));
    assert!(seen.completed_ns.is_some_and(|ns| ns >= 50_000_000), "{seen:?}");
    cell.state(QueuePairState::Error);
    cell.failed(12, 0x81, ago(30));
    let error = pairs(&recorder, 0).remove(0).error.unwrap();
    assert_eq!((error.status, error.name.as_str(), error.vendor), (12, "RETRY_EXC_ERR", 0x81));
    assert!(error.ago_ns >= 30_000_000);
    // What the next one finds in the row is nothing of it.
    drop((link, cells));
    assert_eq!(read(&recorder).comms[0].links.len(), 0);
    // The last state of an ended communicator stays.
    let link = link_to(&row, 3);
    let cell = link.queue_pair(0, &pair(20));
    cell.posted(9);
    drop((cell, link, row));
    let links = read(&recorder).comms.remove(0).links;
    let last = links.iter().flat_map(|link| &link.queue_pairs).find(|pair| pair.number == 20);
    assert_eq!(last.map(|pair| (pair.posted, pair.bytes)), Some((1, 9)));
}

#[test]
fn rows_come_back_clean_and_what_finds_none_is_counted() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let link = link_to(&row, 3);
    let count = Capacity::FULL.queue_pairs;
    for _ in 0..=count {
        let cell = link.queue_pair(0, &pair(17));
        cell.failed(12, 0, Raw(1));
        cell.posted(7);
    }
    let many: Vec<_> = (0..count).map(|_| link.queue_pair(0, &pair(18))).collect();
    assert_eq!(read(&recorder).overflow, []);
    let seen = pairs(&recorder, 0);
    assert_eq!(seen.len(), many.len());
    assert!(seen.iter().all(|one| (one.posted, one.bytes, one.error.is_none()) == (0, 0, true)));
    let unseen = link.queue_pair(0, &pair(19));
    unseen.posted(1);
    let overflow = snapshot::Overflow { table: "QueuePairs".into(), rows: 1 };
    assert_eq!((read(&recorder).overflow, pairs(&recorder, 0).len()), (vec![overflow], count));
}

#[test]
fn the_set_up_of_a_link_is_seen_whether_an_operation_waits_for_it_or_not() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let link = link_to(&row, 3);
    let seen = || read(&recorder).comms[0].links[0].clone();
    link.waits(WaitReason::Connect, Rank(3), ago(20));
    assert_eq!((seen().waits, seen().set_up), (Waits::Connect, None));
    link.sets_up(SetupState::Send);
    assert_eq!((seen().waits, seen().set_up), (Waits::Connect, Some(SetUp::Send)));
    assert!(seen().waits_for == Some(Rank(3)) && seen().since_ns >= 20_000_000);
    link.moves();
    assert_eq!((seen().waits, seen().set_up), (Waits::Nothing, None));
    link.sets_up(SetupState::Accept);
    assert_eq!((seen().waits, seen().set_up, seen().since_ns), (Waits::Nothing, Some(SetUp::Accept), 0));
    link.moves();
    let _pair = link.queue_pair(0, &pair(7));
    assert_eq!(seen().set_up, Some(SetUp::Connected));
}

/// The links of a recorder with one queue pair, whose row was changed.
fn changed(change: impl FnOnce(&[AtomicU64])) -> Vec<LinkSnapshot> {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let link = link_to(&row, 3);
    let _cell = link.queue_pair(0, &pair(17));
    let first = Capacity::FULL.offset(Table::QueuePairs) / 8;
    change(&recorder.memory.words()[first..][..queue_pair::WORDS]);
    read(&recorder).comms.remove(0).links
}

#[test]
fn a_row_that_lies_is_not_believed() {
    let check = |name: &str, expect: usize, at: usize, clear: u64, bits: u64| {
        let links = changed(|row| {
            let word = row[at].load(Ordering::Relaxed);
            row[at].store(word & !clear | bits, Ordering::Relaxed);
        });
        assert_eq!((links.len(), links[0].queue_pairs.len()), (1, expect), "{name}");
    };
    check("as it was", 1, queue_pair::WHAT, 0, 0);
    check("free", 0, queue_pair::WHAT, 0xff, RowState::Free as u64);
    check("of another way", 0, queue_pair::WHAT, 0xff00, 1 << 8);
    check("of no way", 0, queue_pair::WHAT, 0xff00, 9 << 8);
    check("of another channel", 0, queue_pair::WHAT, 0xffff << 32, 4 << 32);
    check("of no communicator", 0, queue_pair::WHAT, 0xffff << 48, 0xffff << 48);
    check("of a communicator before", 0, queue_pair::PEER, u64::MAX << 32, 9 << 32);
    // Any values decode to some queue pair.
    let links = changed(|row| row[2..].iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed)));
    let seen = &links[0].queue_pairs[0];
    assert_eq!((seen.state, seen.device.as_str(), seen.port), (QueuePairState::Unknown, "", 255));
    assert_eq!((seen.outstanding(), seen.error.as_ref().unwrap().name.as_str()), (0, "unknown"));
}

fn sample(device: &str, number: u8) -> PortSample {
    PortSample {
        device: device.into(),
        port: number,
        address: gid("fe80::1"),
        layer: PortLayer::Ethernet,
        state: PortStanding::Active,
        speed_mbps: 2500,
        counts: [Some(4), None, Some(0), None],
    }
}

#[test]
fn a_port_is_seen_with_what_its_device_reports_and_counts() {
    let recorder = Recorder::heap();
    assert_eq!(read(&recorder).ports, []);
    recorder.sample_ports(&[sample("rxe1", 1), sample("rxe0", 2)], ago(40));
    recorder.port_event("rxe1", 1, 10, ago(30));
    let [first, second] = &read(&recorder).ports[..] else { panic!("two ports") };
    assert_eq!((first.device.as_str(), first.port, second.device.as_str()), ("rxe0", 2, "rxe1"));
    assert_eq!(
        (second.state, second.layer, second.speed_mbps),
        (PortStanding::Active, PortLayer::Ethernet, 2500)
    );
    assert_eq!((second.address.as_str(), first.event.as_ref()), ("fe80::1", None));
    assert_eq!(
        (second.retries, second.lost, second.not_ready, second.given_up),
        (Some(4), None, Some(0), None)
    );
    let event = second.event.as_ref().unwrap();
    assert_eq!((event.code, event.name.as_str()), (10, "PORT_ERR"));
    assert!(event.ago_ns >= 30_000_000 && second.age_ns >= 40_000_000);
    // A later sample leaves the event. A port that is no longer used is not shown.
    recorder.sample_ports(&[PortSample { state: PortStanding::Down, ..sample("rxe1", 1) }], ago(0));
    let [only] = &read(&recorder).ports[..] else { panic!("one port") };
    assert_eq!((only.state, only.event.as_ref().map(|event| event.code)), (PortStanding::Down, Some(10)));
    // Its row is another's, without the event.
    let more: Vec<_> = (0..Capacity::FULL.ports as u8).map(|at| sample("mlx5_0", at + 1)).collect();
    recorder.sample_ports(&more, ago(0));
    let process = read(&recorder);
    assert!(process.ports.len() == more.len() && process.overflow.is_empty());
    assert!(process.ports.iter().all(|port| port.event.is_none()));
    recorder.port_event("mlx5_9", 1, 9, ago(0));
    let overflow = snapshot::Overflow { table: "Ports".into(), rows: 1 };
    assert_eq!(read(&recorder).overflow, [overflow]);
    let at = Capacity::FULL.offset(Table::Ports) / 8;
    recorder.memory.words()[at + port::WHAT].store(77, Ordering::Relaxed);
    assert_eq!(read(&recorder).ports.len(), more.len() - 1);
}
