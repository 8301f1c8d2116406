//! The waits of operations, mostly where the kernel takes no more bytes.

use std::os::unix::net::UnixStream;

use super::*;
use crate::collective::{Numbering, Request};
use crate::error::ErrorKind;
use crate::event::Script;
use crate::memory::{View, ViewMut};
use crate::plan::{Plan, Topology, select};
use crate::recorder::reader::Reader;
use crate::recorder::{CommInfo, Recorder};
use crate::snapshot::{QueuePairState, Waits};
use crate::sys::fds::Fd;
use crate::transport::LinkFault;
use crate::transport::socket::link::{Receiver, Sender};
use crate::types::{CommId, Datatype, JobId, ProxyState, ReduceOp, WaitReason};

mod ended;
mod several;

/// Rank 0 of 3, with a stream to each of the others, which read nothing.
fn alone() -> (Engine<Script>, Numbering, Vec<UnixStream>) {
    alone_in(&Recorder::heap())
}

/// The same, with its cells in this recorder.
fn alone_in(recorder: &Arc<Recorder>) -> (Engine<Script>, Numbering, Vec<UnixStream>) {
    alone_with(&Pool::new(8), recorder)
}

/// The same, with these slots.
fn alone_with(pool: &Arc<Pool>, recorder: &Arc<Recorder>) -> (Engine<Script>, Numbering, Vec<UnixStream>) {
    alone_on(Topology::new(&[0, 1, 2], 1), pool, recorder)
}

/// The same, on this topology.
fn alone_on(
    topology: Topology,
    pool: &Arc<Pool>,
    recorder: &Arc<Recorder>,
) -> (Engine<Script>, Numbering, Vec<UnixStream>) {
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "test", rank: Rank(0), nranks: 3, world: Rank(0) };
    let topology = Arc::new(topology);
    let mut engine = Engine::new(Rank(0), topology, Arc::clone(pool), recorder.comm(info), Script::default());
    let readers = [1, 2].map(|peer| link(&mut engine, ChannelId::P2P, peer, false));
    (engine, Numbering::default(), readers.into())
}

/// Adds a link to a peer, and returns its other end. The kernel takes nothing until that has been
/// read, if it `is_full`.
fn link(engine: &mut Engine<Script>, channel: ChannelId, peer: u32, is_full: bool) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while is_full && std::io::Write::write(&mut &ours, &[0; 4096]).is_ok() {}
    let link = Sender::new(vec![Arc::new(Fd::new(ours.into()))], Rank(peer));
    let (id, why) = (LaneId::pair(channel, Rank(peer)), TransportReason::OtherHost);
    engine.add_sender(id, SendLink::Socket(Box::new(link)), why);
    theirs
}

fn send(engine: &mut Engine<Script>, numbers: &mut Numbering, buffer: &[u8], peer: u32) -> OpId {
    begin(engine, numbers, (buffer, peer), None)
}

fn begin(
    engine: &mut Engine<Script>,
    numbers: &mut Numbering,
    (buffer, peer): (&[u8], u32),
    begun: Option<Begun>,
) -> OpId {
    let request = Request {
        kind: CollKind::Send,
        dtype: Datatype::U8,
        op: ReduceOp::Sum,
        root: Rank(peer),
        count: buffer.len() as u64,
        uneven: false,
    };
    let shape = select::select(&engine.topology, Rank(0), &request, None);
    let descriptor = numbers.describe(Rank(0), &request, 0);
    // SAFETY: the tests keep their buffers longer than their engines.
    let input = unsafe { View::new(buffer.as_ptr(), buffer.len()) };
    let plan = Plan::Generated { request, shape, me: Rank(0), terms: None };
    engine.submit(request.kind, || Op::new(plan, descriptor, input, ViewMut::EMPTY), begun, Raw(0)).unwrap()
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
fn a_part_of_a_message_that_arrives_is_an_advance() {
    use std::io::Write;
    let topology = Arc::new(Topology::new(&[0, 1], 1));
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "test", rank: Rank(0), nranks: 2, world: Rank(0) };
    let (pool, row) = (Pool::new(1), Recorder::heap().comm(info));
    let mut engine = Engine::new(Rank(0), topology, Arc::clone(&pool), row, Script::default());
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let link = Receiver::new(vec![Arc::new(Fd::new(ours.into()))], Rank(1));
    let lane = Lane { from: Rank(1), id: LaneId::pair(ChannelId(0), Rank(0)) };
    engine.add_receiver(lane, RecvLink::Socket(Box::new(link)), TransportReason::OtherHost);

    let mut output = [0_u8; 16];
    let request = Request {
        kind: CollKind::Broadcast,
        dtype: Datatype::U8,
        op: ReduceOp::Sum,
        root: Rank(1),
        count: 16,
        uneven: false,
    };
    let shape = select::select(&engine.topology, Rank(0), &request, None);
    let descriptor = Numbering::default().describe(Rank(0), &request, 0);
    // SAFETY: the buffer outlives the engine.
    let output = unsafe { ViewMut::new(output.as_mut_ptr(), output.len()) };
    let plan = Plan::Generated { request, shape, me: Rank(0), terms: None };
    engine.submit(request.kind, || Op::new(plan, descriptor, View::EMPTY, output), None, Raw(0)).unwrap();
    settle(&mut engine);
    let mut other = Claim::new(Arc::clone(&pool));
    assert!(!other.hold());
    // The first bytes of a header: no step can run, but the operation keeps its slot.
    theirs.write_all(&[0; 3]).unwrap();
    assert_eq!(engine.turn(&|| Raw(0)), Progress::Advanced);
    assert_eq!((engine.turn(&|| Raw(0)), other.hold()), (Progress::Blocked, true));
}

#[test]
fn a_send_runs_while_messages_of_the_one_before_are_on_their_way() {
    use std::io::Read;
    let (message, mut taken) = (vec![0; 4 << 10], [0; 16 << 10]);
    let (mut engine, mut numbers, mut readers) = alone();
    let sends: Vec<OpId> = (0..512).map(|_| send(&mut engine, &mut numbers, &message, 1)).collect();
    settle(&mut engine);
    let ended = sends.iter().filter(|send| engine.is_done(**send)).count();
    let sent = engine.events().0.iter().filter(|event| matches!(event, Event::MessageSent { .. })).count();
    assert!(ended < sends.len(), "the kernel takes all");
    assert_eq!(sent, ended + 2);
    readers[0].set_nonblocking(true).unwrap();
    while !engine.is_done(sends[511]) {
        while readers[0].read(&mut taken).is_ok_and(|n| n > 0) {}
        settle(&mut engine);
    }
    // Each has one message: what becomes of it is told as that of its own send.
    let steps = engine.events().0.iter().filter_map(|event| match event {
        Event::ProxyStepEntered { seq, step, .. } => Some(step.abs_diff(*seq)),
        _ => None,
    });
    let apart: Vec<u64> = steps.collect();
    assert!(apart.len() > sends.len() && apart.iter().all(|one| *one == apart[0]), "{apart:?}");
}

#[test]
fn a_send_that_runs_behind_another_one_waits_once_that_has_ended() {
    use std::io::Read;
    let (small, large, mut taken) = (vec![0; 4 << 10], vec![0; 8 << 20], [0; 16 << 10]);
    let (mut engine, mut numbers, mut readers) = alone();
    let mut next = || {
        let one = send(&mut engine, &mut numbers, &small, 1);
        settle(&mut engine);
        (!engine.is_done(one)).then_some(one)
    };
    let first = (0..512).find_map(|_| next()).expect("a send that the kernel does not take");
    let behind = send(&mut engine, &mut numbers, &large, 1);
    let waits = |engine: &mut Engine<Script>| {
        settle(engine);
        engine.waits().iter().map(|wait| (wait.op, wait.reason)).collect::<Vec<_>>()
    };
    assert_eq!(waits(&mut engine), [(first.number, WaitReason::Kernel)]);
    let sent = engine.events().0.iter().filter(|event| matches!(event, Event::MessageSent { .. })).count();
    assert!(sent as u64 > first.number, "the one behind it runs");
    readers[0].set_nonblocking(true).unwrap();
    while !engine.is_done(first) {
        assert!(readers[0].read(&mut taken).unwrap() > 0);
        settle(&mut engine);
    }
    assert_eq!(waits(&mut engine), [(behind.number, WaitReason::Kernel)]);
}

#[test]
fn a_send_waits_for_the_kernel_once() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    let wait = Wait {
        op: 1,
        step: engine.waits()[0].step,
        channel: ChannelId::P2P,
        peer: Rank(1),
        direction: Direction::Send,
        shared: false,
        reason: WaitReason::Kernel,
    };
    assert_eq!(engine.waits(), [wait]);
    engine.note_waits(Raw(0));
    let began = engine.events().0.iter().filter(|event| matches!(event, Event::WaitBegan { .. })).count();
    assert_eq!(began, 1);
}

/// The beginnings and ends of waits, with the rank each is blocked on.
fn waits_of(engine: &Engine<Script>) -> Vec<(&'static str, u32)> {
    let told = engine.events().0.iter().filter_map(|event| match event {
        Event::WaitBegan { peer, .. } => Some(("began", peer.0)),
        Event::WaitEnded { peer, .. } => Some(("ended", peer.unwrap().0)),
        _ => None,
    });
    told.collect()
}

#[test]
fn what_was_decided_replaces_what_was_found_here() {
    let (mut engine, ..) = alone();
    let failure = |cause| Failure { cause, op: None, peer: Some(Rank(1)), channel: None };
    engine.stop(failure(Cause::Link(LinkFault::Gone)));
    let told = failure(Cause::External(crate::error::Error::new(ErrorKind::Mismatch, "decided")));
    engine.fail(told.clone(), Raw(0));
    assert_eq!(engine.failure(), Some(&told));
}

#[test]
fn a_wait_goes_on_while_other_operations_move() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let (mut engine, mut numbers, _readers) = alone();
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    engine.note_waits(Raw(100));
    let free = send(&mut engine, &mut numbers, &small, 2);
    settle(&mut engine);
    assert!(engine.is_done(free));
    engine.note_waits(Raw(200));
    assert_eq!(waits_of(&engine), [("began", 1)]);
    let oldest = engine.noted.first().map(|(wait, since)| (wait.peer, *since));
    assert_eq!(oldest, Some((Rank(1), Raw(100))));
}

#[test]
fn what_the_look_before_a_sleep_finds_awaited_is_noted() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    engine.note_waits(Raw(100));
    send(&mut engine, &mut numbers, &large, 2);
    settle(&mut engine);
    assert_eq!(engine.turn_before_sleep(&|| Raw(200)), Progress::Blocked);
    let noted = engine.noted.iter().map(|(wait, since)| (wait.peer, *since));
    assert_eq!(noted.collect::<Vec<_>>(), [(Rank(1), Raw(100)), (Rank(2), Raw(200))]);
    assert_eq!(engine.waits_since(), Some(Raw(100)), "the oldest");
}

#[test]
fn a_wait_of_the_next_operation_is_another_one() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, mut readers) = alone();
    for _ in 0..2 {
        send(&mut engine, &mut numbers, &large, 1);
    }
    settle(&mut engine);
    engine.note_waits(Raw(100));
    // The first send is taken completely, the second is not.
    let mut rest = vec![0; 8 << 20];
    readers[0].set_nonblocking(true).unwrap();
    let mut taken = 0;
    while engine.waits()[0].op == 1 {
        taken += std::io::Read::read(&mut readers[0], &mut rest).unwrap_or(0);
        settle(&mut engine);
    }
    assert!(taken > 4 << 20);
    engine.note_waits(Raw(200));
    let told = waits_of(&engine);
    assert!(
        told.starts_with(&[("began", 1), ("ended", 1)]) && told.last() == Some(&("began", 1)),
        "{told:?}"
    );
    assert_eq!(engine.noted.iter().map(|(_, since)| *since).collect::<Vec<_>>(), [Raw(200)]);
}

#[test]
fn the_cell_tells_of_the_send_that_waits_while_others_come_and_go() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let recorder = Recorder::heap();
    let (mut engine, mut numbers, _readers) = alone_in(&recorder);
    let told = || recorder.reader().snapshot().unwrap().comms[0].p2p.clone().unwrap();
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    engine.note_waits(Raw(200));
    send(&mut engine, &mut numbers, &small, 2);
    assert_eq!((told().peer, told().wait.unwrap().peer), (Some(Rank(1)), Rank(1)));
    settle(&mut engine);
    assert_eq!((told().peer, told().seq), (Some(Rank(1)), 1));
}

#[test]
fn a_collective_stands_since_the_last_of_its_programs_began_to_wait() {
    let topology = Arc::new(Topology::new(&[0, 1, 2], 2));
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "test", rank: Rank(0), nranks: 3, world: Rank(0) };
    let row = Recorder::heap().comm(info);
    let mut engine = Engine::new(Rank(0), topology, Pool::new(8), row, Script::default());
    let request = Request {
        kind: CollKind::Broadcast,
        dtype: Datatype::U8,
        op: ReduceOp::Sum,
        root: Rank(1),
        count: 1 << 20,
        uneven: false,
    };
    let shape = select::select(&engine.topology, Rank(0), &request, None);
    let descriptor = Numbering::default().describe(Rank(0), &request, 0);
    let plan = Plan::Generated { request, shape, me: Rank(0), terms: None };
    engine
        .submit(request.kind, || Op::new(plan, descriptor, View::EMPTY, ViewMut::EMPTY), None, Raw(0))
        .unwrap();
    let wait = |channel| Wait {
        op: 1,
        step: 0,
        channel: ChannelId(channel),
        peer: Rank(2),
        direction: Direction::Recv,
        shared: false,
        reason: WaitReason::Peer,
    };
    engine.noted = vec![(wait(0), Raw(100)), (wait(1), Raw(200))];
    assert_eq!(engine.stands(), [Some((wait(1), Raw(200))), None]);
}

#[test]
fn operations_end_with_what_all_ranks_hold_to_be_the_cause() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    let call = send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    // Here a link has ended. A moment later it is known that a peer made another call.
    let failure = |cause| Failure { cause, op: None, peer: Some(Rank(1)), channel: None };
    engine.stop(failure(Cause::Link(LinkFault::Gone)));
    assert_eq!(engine.turn(&|| Raw(0)), Progress::Failed);
    assert!(engine.under_way().is_some() && !engine.is_done(call));
    let told = crate::Error::new(ErrorKind::Mismatch, "rank 1 called Recv");
    for _ in 0..2 {
        engine.fail(failure(Cause::External(told.clone())), Raw(0));
    }
    let errors = engine.events().0.iter().filter_map(|event| match event {
        Event::OpFailed { error, .. } => Some(*error),
        _ => None,
    });
    assert_eq!(errors.collect::<Vec<_>>(), [ErrorKind::Mismatch as u8]);
}

#[test]
fn a_failed_work_request_is_told_with_its_status_and_the_code_of_its_device() {
    let (mut engine, ..) = alone();
    let change = Change::Failed { number: 7, status: 12, vendor: 0x81 };
    let state = Change::State { number: 7, state: QueuePairState::Error };
    let changes = [state, change].map(|change| (ChannelId(3), Some(Rank(2)), Direction::Send, change));
    engine.queue_pairs_changed(changes.into_iter());
    let (channel, peer, direction) = (ChannelId(3), Rank(2), Direction::Send);
    let told = Event::WorkFailed { channel, peer, direction, number: 7, status: 12, vendor: 0x81 };
    let state = Event::QueuePairChanged { channel, peer, direction, number: 7, state: QueuePairState::Error };
    assert!(engine.events().0.ends_with(&[state, told]), "{:?}", engine.events().0);
}

/// The states of the steps of sends to a peer, in order.
fn states_to(engine: &Engine<Script>, to: u32) -> Vec<(u64, ProxyState)> {
    let told = engine.events().0.iter().filter_map(|event| match *event {
        Event::ProxyStepEntered { peer, step, state, .. } if peer.0 == to => Some((step, state)),
        _ => None,
    });
    told.collect()
}

#[test]
fn each_step_goes_through_its_states_once() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let (mut engine, mut numbers, _readers) = alone();
    send(&mut engine, &mut numbers, &small, 2);
    settle(&mut engine);
    let whole = [ProxyState::SendGPUWait, ProxyState::SendWait, ProxyState::Done];
    assert_eq!(states_to(&engine, 2), whole.map(|state| (1, state)));
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    // However often it is looked at.
    settle(&mut engine);
    let states = states_to(&engine, 1);
    let of = |step| states.iter().filter(move |(of, _)| *of == step).map(|(_, state)| *state);
    assert_eq!(of(1).collect::<Vec<_>>(), whole);
    let (last, state) = *states.last().unwrap();
    assert_eq!(state, ProxyState::SendPeerWait);
    assert_eq!(of(last).count(), 1);
    // Those before it are filled, and the kernel has not taken all of the first of them.
    assert_eq!(of(last - 1).collect::<Vec<_>>(), whole[..2]);
}

#[test]
fn a_full_pool_makes_an_operation_wait_and_its_cell_says_so() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let (pool, recorder) = (Pool::new(1), Recorder::heap());
    let (mut engine, mut numbers, _readers) = alone_with(&pool, &recorder);
    let mut other = Claim::new(Arc::clone(&pool));
    assert!(other.hold());
    let id = send(&mut engine, &mut numbers, &small, 1);
    settle(&mut engine);
    engine.note_waits(Raw(1));
    assert_eq!(engine.waits()[0].reason, WaitReason::Proxy);
    assert!(engine.is_short_of_slots() && states_to(&engine, 1).is_empty());
    let process = Reader::borrow(Arc::clone(&recorder)).snapshot().unwrap();
    let wait = process.comms[0].p2p.as_ref().and_then(|op| op.wait.as_ref()).unwrap();
    assert_eq!(wait.waits, Waits::Proxy);
    // Who holds the slot does not advance.
    other.give_way();
    settle(&mut engine);
    assert!(engine.is_done(id) && other.hold());
    other.end();

    // An operation that has looked goes on waiting for what it found without its slot, too.
    send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    engine.note_waits(Raw(2));
    let found = engine.waits().to_vec();
    assert_eq!(found[0].reason, WaitReason::Kernel);
    assert!(!other.hold());
    settle(&mut engine);
    assert!(other.hold());
    settle(&mut engine);
    engine.note_waits(Raw(3));
    assert_eq!(engine.waits(), found);
    assert_eq!(engine.waits_since(), Some(Raw(2)));
}
