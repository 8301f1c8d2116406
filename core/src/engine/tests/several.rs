//! Collectives beside sends, sends beside each other, and calls that were begun.

use super::*;

/// Has rank 0 scatter 16 bytes to each of the others over new links. The kernel takes none of those
/// to rank 1 until its other end, the first of those returned, has been read.
fn scatter(
    engine: &mut Engine<Script>,
    numbers: &mut Numbering,
    output: &mut [u8; 16],
) -> (OpId, Vec<UnixStream>) {
    let others = [1, 2].map(|peer| link(engine, ChannelId(0), peer, peer == 1));
    let (kind, dtype, op) = (CollKind::Scatter, Datatype::U8, ReduceOp::Sum);
    let request = Request { kind, dtype, op, root: Rank(0), count: 16, uneven: false };
    let shape = select::select(&engine.topology, Rank(0), &request, None);
    let descriptor = numbers.describe(Rank(0), &request, 0);
    let input: &'static [u8] = &[7; 48];
    // SAFETY: it is never freed.
    let input = unsafe { View::new(input.as_ptr(), input.len()) };
    // SAFETY: the tests keep it longer than their engines.
    let output = unsafe { ViewMut::new(output.as_mut_ptr(), output.len()) };
    let plan = Plan::Generated { request, shape, me: Rank(0), terms: None };
    let id = engine.submit(kind, || Op::new(plan, descriptor, input, output), None, Raw(0)).unwrap();
    settle(engine);
    (id, others.into())
}

/// Has a broadcast from rank 1 begin, for which no link is made.
fn begin_broadcast(engine: &mut Engine<Script>, numbers: &mut Numbering, attended: &WaitedFor) {
    let (kind, dtype, op) = (CollKind::Broadcast, Datatype::U8, ReduceOp::Sum);
    let request = Request { kind, dtype, op, root: Rank(1), count: 1 << 20, uneven: false };
    let shape = select::select(&engine.topology, Rank(0), &request, None);
    let descriptor = numbers.describe(Rank(0), &request, 0);
    let plan = Plan::Generated { request, shape, me: Rank(0), terms: None };
    let make = || Op::new(plan, descriptor, View::EMPTY, ViewMut::EMPTY);
    engine.submit(kind, make, Some(begun_for(attended)), Raw(0)).unwrap();
    settle(engine);
}

fn begun_for(attended: &WaitedFor) -> Begun {
    Begun { ticket: Ticket::new(0), attended: attended.clone(), lendable: None }
}

fn gone() -> Failure {
    Failure { cause: Cause::Link(LinkFault::Gone), op: None, peer: None, channel: None }
}

/// Reads a stream until the engine has ended an operation.
fn read_until(engine: &mut Engine<Script>, stream: &mut UnixStream, ended: OpId) {
    let mut rest = vec![0; 1 << 20];
    stream.set_nonblocking(true).unwrap();
    for _ in 0..100_000 {
        if engine.is_done(ended) {
            return;
        }
        let _ = std::io::Read::read(stream, &mut rest);
        settle(engine);
    }
    panic!("it does not end: {:?}", engine.waits());
}

#[test]
fn a_collective_has_not_ended_while_bytes_of_one_of_its_links_are_still_here() {
    let mut output = [0; 16];
    let (mut engine, mut numbers, _readers) = alone();
    let (id, mut others) = scatter(&mut engine, &mut numbers, &mut output);
    assert!(!engine.is_done(id));
    std::io::Read::read_exact(&mut others[1], &mut [0; 16]).unwrap();
    read_until(&mut engine, &mut others[0], id);
}

#[test]
fn a_collective_ends_while_a_send_to_one_of_its_ranks_stands() {
    let mut output = [0; 16];
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    let stuck = send(&mut engine, &mut numbers, &large, 1);
    settle(&mut engine);
    let (id, mut others) = scatter(&mut engine, &mut numbers, &mut output);
    read_until(&mut engine, &mut others[0], id);
    assert!(!engine.is_done(stuck));
}

#[test]
fn a_send_takes_the_link_for_sends_and_none_of_a_channel() {
    let small = [7; 16];
    // One host, so that there are more channels than groups: links have a place by channel.
    let topology = Topology::new(&[0, 0, 0], 2);
    let (mut engine, mut numbers, mut readers) = alone_on(topology, &Pool::new(8), &Recorder::heap());
    readers.truncate(1);
    readers.extend([0, 1].map(|channel| link(&mut engine, ChannelId(channel), 1, false)));
    let id = send(&mut engine, &mut numbers, &small, 1);
    settle(&mut engine);
    assert!(engine.is_done(id));
    let has_message = |stream: &UnixStream| {
        stream.set_nonblocking(true).unwrap();
        std::io::Read::read(&mut &*stream, &mut [0; 64]).is_ok()
    };
    assert_eq!(readers.iter().map(has_message).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn an_operation_gives_its_slot_back_where_nobody_turns_it_and_where_it_has_failed() {
    let mut output = [0; 16];
    let large = vec![0; 8 << 20];
    for (fails, is_send) in [(false, false), (false, true), (true, false), (true, true)] {
        let pool = Pool::new(1);
        let (mut engine, mut numbers, _readers) = alone_with(&pool, &Recorder::heap());
        let mut others = Vec::new();
        if is_send {
            send(&mut engine, &mut numbers, &large, 1);
            settle(&mut engine);
        } else {
            others = scatter(&mut engine, &mut numbers, &mut output).1;
        }
        assert!(engine.claims().any(|(_, claim)| claim.holds()));
        if fails {
            engine.stop(gone())
        } else {
            engine.rest()
        }
        assert!(Claim::new(pool).hold(), "{fails} {is_send}");
        drop(others);
    }
}

#[test]
fn a_wait_counts_from_when_somebody_waits() {
    let large = vec![0; 8 << 20];
    for at in [0, 1] {
        let (mut engine, mut numbers, _readers) = alone();
        let attended = WaitedFor::default();
        if at == 0 {
            begin_broadcast(&mut engine, &mut numbers, &attended);
        } else {
            begin(&mut engine, &mut numbers, (&large, 1), Some(begun_for(&attended)));
            settle(&mut engine);
        }
        let told = |engine: &Engine<Script>| {
            engine.waits_to_tell()[at].map(|(_, wait)| (wait.attention, wait.since))
        };
        engine.note_waits(Raw(200));
        assert_eq!(told(&engine), Some((Attention::Nobody, Raw(200))));
        attended.set(Attention::Thread);
        engine.note_waits(Raw(900));
        assert_eq!(told(&engine), Some((Attention::Thread, Raw(900))));
        engine.note_waits(Raw(1900));
        assert_eq!(told(&engine), Some((Attention::Thread, Raw(900))));
        // Nobody waits for a call that was polled and then dropped.
        for who in [Attention::Task, Attention::Nobody] {
            attended.set(who);
            engine.note_waits(Raw(2900));
            assert_eq!(told(&engine).map(|(attention, _)| attention), Some(who));
        }
    }
}

#[test]
fn who_waits_for_a_send_behind_another_one_waits_for_both() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let told = |engine: &mut Engine<Script>| {
        settle(engine);
        engine.note_waits(Raw(100));
        engine.waits_to_tell()[1].map(|(_, wait)| wait.attention)
    };
    // A call that waits, behind one that was begun.
    let (mut engine, mut numbers, _readers) = alone();
    begin(&mut engine, &mut numbers, (&large, 1), Some(begun_for(&WaitedFor::default())));
    assert_eq!(told(&mut engine), Some(Attention::Nobody));
    send(&mut engine, &mut numbers, &small, 1);
    assert_eq!(told(&mut engine), Some(Attention::Thread));
    // Either of two that were begun.
    for waited in [0, 1] {
        let (mut engine, mut numbers, _readers) = alone();
        let both = [WaitedFor::default(), WaitedFor::default()];
        both[waited].set(Attention::Thread);
        for one in &both {
            begin(&mut engine, &mut numbers, (&large, 1), Some(begun_for(one)));
        }
        assert_eq!(told(&mut engine), Some(Attention::Thread), "{waited}");
    }
}

#[test]
fn of_several_sends_the_one_that_somebody_waits_for_is_told_also_when_they_fail() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    let recorder = Recorder::heap();
    let (mut engine, mut numbers, _readers) = alone_in(&recorder);
    send(&mut engine, &mut numbers, &small, 2);
    settle(&mut engine);
    begin(&mut engine, &mut numbers, (&large, 1), Some(begun_for(&WaitedFor::default())));
    send(&mut engine, &mut numbers, &large, 2);
    settle(&mut engine);
    engine.note_waits(Raw(100));
    let ops = engine.waits().iter().map(|wait| (wait.peer, engine.op_of(wait)));
    let expect = [(Rank(1), 1), (Rank(2), 2)].map(|(peer, seq)| (peer, Some((CollKind::Send, seq))));
    assert_eq!(ops.collect::<Vec<_>>(), expect);
    engine.fail(gone(), Raw(0));
    let told = recorder.reader().snapshot().unwrap().comms[0].p2p.clone().unwrap();
    assert_eq!((told.peer, told.seq), (Some(Rank(2)), 2));
}

#[test]
fn a_failure_ends_sends_in_the_order_of_their_calls() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, _readers) = alone();
    let calls = [2, 1, 2, 1].map(|peer| send(&mut engine, &mut numbers, &large, peer));
    settle(&mut engine);
    assert_eq!(engine.under_way(), Some((CollKind::Send, 1)));
    assert!(calls.iter().all(|id| !engine.is_done(*id)));
    engine.fail(gone(), Raw(0));
    let ended = engine.events().0.iter().filter_map(|event| match event {
        Event::OpFailed { other, .. } => *other,
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [2, 1, 2, 1].map(Rank));
    assert!(engine.under_way().is_none() && calls.iter().all(|id| !engine.is_done(*id)));
}

#[test]
fn of_sends_to_several_ranks_the_one_that_was_called_first_is_under_way() {
    let large = vec![0; 8 << 20];
    let (mut engine, mut numbers, mut readers) = alone();
    // The second one to rank 1 is the last call of all.
    let [first, ..] = [1, 2, 1].map(|peer| send(&mut engine, &mut numbers, &large, peer));
    settle(&mut engine);
    read_until(&mut engine, &mut readers[0], first);
    assert_eq!(engine.under_way(), Some((CollKind::Send, 1)));
}

#[test]
fn a_failure_leaves_evidence_also_between_two_calls() {
    let (large, small) = (vec![0; 8 << 20], [0; 16]);
    for is_in_call in [false, true] {
        let recorder = Recorder::heap();
        let (mut engine, mut numbers, _readers) = alone_in(&recorder);
        send(&mut engine, &mut numbers, &small, 2);
        settle(&mut engine);
        if is_in_call {
            send(&mut engine, &mut numbers, &large, 1);
            settle(&mut engine);
        }
        engine.fail(gone(), Raw(0));
        assert_eq!(recorder.reader().snapshot().unwrap().failed, 1, "{is_in_call}");
    }
}
