//! What an operation waits for where the kernel takes no more: its own lanes, once each.

use std::os::unix::net::UnixStream;

use super::*;
use crate::collective::{Numbering, Request};
use crate::event::Script;
use crate::memory::{View, ViewMut};
use crate::plan::{Plan, Topology, select};
use crate::recorder::{CommInfo, Recorder};
use crate::sys::fds::Fd;
use crate::transport::socket::link::Sender;
use crate::types::{CommId, Datatype, JobId, ReduceOp};

/// Rank 0 of 3, with a stream to each of the others, which read nothing.
fn alone() -> (Engine<Script>, Numbering, Vec<UnixStream>) {
    let topology = Arc::new(Topology::new(&[0, 1, 2], 1));
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "test", rank: Rank(0), nranks: 3, world: Rank(0) };
    let mut engine = Engine::new(Rank(0), topology, Recorder::heap().comm(info), Script::default());
    let why = TransportReason::OtherHost;
    let readers = [1, 2].map(|peer| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let link = Sender::new(vec![Fd::new(ours.into())], Rank(peer));
        engine.add_sender(ChannelId::P2P, Readers::One(Rank(peer)), SendLink::Socket(Box::new(link)), why);
        theirs
    });
    (engine, Numbering::default(), readers.into())
}

fn send(engine: &mut Engine<Script>, numbers: &mut Numbering, buffer: &[u8], peer: u32) -> OpId {
    let request = Request {
        kind: CollKind::Send,
        dtype: Datatype::U8,
        op: ReduceOp::Sum,
        root: Rank(peer),
        count: buffer.len() as u64,
    };
    let shape = select::select(&engine.topology, &request, None);
    let descriptor = numbers.describe(Rank(0), &request, 0);
    // SAFETY: the tests keep their buffers longer than their engines.
    let input = unsafe { View::new(buffer.as_ptr(), buffer.len()) };
    let plan = Plan::Generated { request, shape, me: Rank(0) };
    engine.submit(Op::new(request, plan, descriptor, input, ViewMut::EMPTY), Raw(0)).unwrap()
}

fn settle(engine: &mut Engine<Script>) {
    while engine.turn(&|| Raw(0)) == Progress::Advanced {}
}

#[test]
fn a_send_does_not_wait_for_what_another_peer_does_not_take() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let (mut engine, mut numbers, _readers) = alone();
    let stuck = send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    let free = send(&mut engine, &mut numbers, &small, 2);
    settle(&mut engine);
    assert!(engine.is_done(free) && !engine.is_done(stuck), "{:?}", engine.waits());
}

#[test]
fn a_send_waits_for_the_kernel_once() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    let wait = Wait {
        channel: ChannelId::P2P,
        peer: Rank(1),
        direction: Direction::Send,
        wide: false,
        reason: WaitReason::Kernel,
    };
    assert_eq!(engine.waits(), [wait]);
    engine.note_waits(Raw(0));
    let began = engine.events().0.iter().filter(|event| matches!(event, Event::WaitBegan { .. })).count();
    assert_eq!(began, 1);
}

#[test]
fn a_failure_ends_sends_in_the_order_of_their_calls() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    let calls = [2, 1, 2, 1].map(|peer| send(&mut engine, &mut numbers, &large, peer));
    settle(&mut engine);
    assert_eq!(engine.under_way(), Some((CollKind::Send, 1)));
    assert!(calls.iter().all(|id| !engine.is_done(*id)));
    engine.fail(Failure { cause: Cause::Link(LinkFault::Gone), op: None, peer: None, channel: None }, Raw(0));
    let ended = engine.events().0.iter().filter_map(|event| match event {
        Event::OpFailed { other, .. } => *other,
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [2, 1, 2, 1].map(Rank));
    assert!(engine.under_way().is_none() && calls.iter().all(|id| !engine.is_done(*id)));
}
