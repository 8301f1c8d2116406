//! Rings of threads: whose the events are, in which order they come, and which are lost.

use std::sync::mpsc;

use proptest::prelude::*;

use super::layout::RING_SLOTS;
use super::reader::{Cursor, Reading};
use super::*;

fn number(seq: u64) -> Event {
    Event::OpPlanned { kind: CollKind::Send, seq, algorithm: Algorithm::Pair, bytes: 1, outline: None }
}

fn seq_of(recorded: &Recorded) -> u64 {
    match recorded.event {
        Event::OpPlanned { seq, .. } => seq,
        other => panic!("{other:?}"),
    }
}

/// A communicator that records everything.
fn comm(recorder: &Arc<Recorder>, id: u64) -> (CommRow, Events) {
    let row = recorder.comm(CommInfo { id: CommId(id), ..INFO });
    row.set_level(2);
    let events = row.events();
    (row, events)
}

fn owner(id: u64) -> Option<Owner> {
    Some((CommId(id), INFO.rank))
}

fn told(readings: &[Reading]) -> Vec<(Option<Owner>, Vec<u64>, u64)> {
    readings.iter().map(|one| (one.owner, one.events.iter().map(seq_of).collect(), one.lost)).collect()
}

#[test]
fn events_are_read_once_with_their_owner_and_losses_are_counted() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let (mut engine, mut service) = (row.events(), recorder.events());
    engine.take(number(0));
    assert_eq!(engine.recorded(), 0, "steps are not kept at level 1");
    row.set_level(2);
    engine.take(number(1));
    std::thread::scope(|scope| {
        scope.spawn(|| service.take(Event::Aborted));
    });
    let reader = recorder.reader();
    let mut cursor = Cursor::default();
    let mut look = || reader.events(&mut cursor).unwrap();
    let first = look();
    assert_eq!((first[0].owner, first[0].events[0].event), (None, Event::Aborted));
    assert_eq!(told(&first[1..]), [(owner(0xc0), vec![1], 0)]);
    assert_eq!(look(), []);
    // Every quarter of the ring holds a mark.
    let slots = RING_SLOTS[0] as u64;
    (0..slots + 5).for_each(|seq| engine.take(number(seq)));
    let found = look();
    let (read, lost) = (found[0].events.len() as u64, found[0].lost);
    assert_eq!((found.len(), found[0].owner, found[0].is_torn), (1, owner(0xc0), true));
    assert_eq!((read + lost, seq_of(found[0].events.last().unwrap())), (slots + 5, slots + 4));
    assert!((slots - 5..slots).contains(&read), "{read} read, {lost} lost");
    engine.take(number(49));
    assert_eq!(told(&look()), [(owner(0xc0), vec![49], 0)]);
    let process = read_of(&recorder);
    assert_eq!(process.rings[0].written - process.rings[0].overwritten, slots);
    assert_eq!(process.rings[0].thread, crate::sys::thread());
}

fn read_of(recorder: &Arc<Recorder>) -> ProcessSnapshot {
    recorder.reader().snapshot().unwrap()
}

#[test]
fn one_ring_holds_the_events_of_all_communicators_of_a_thread() {
    let recorder = Recorder::heap();
    // More than there are rings.
    let mut comms: Vec<_> = (1..=40).map(|id| comm(&recorder, id)).collect();
    for seq in 0..20 {
        comms.iter_mut().for_each(|(_, events)| events.take(number(seq)));
    }
    let readings = recorder.reader().events(&mut Cursor::default()).unwrap();
    let expected: Vec<_> = (1..=40).map(|id| (owner(id), (0..20).collect::<Vec<_>>(), 0)).collect();
    assert_eq!(told(&readings), expected);
    let process = read_of(&recorder);
    assert_eq!((process.rings.len(), process.overflow.len()), (1, 0));
}

#[test]
fn a_communicator_that_threads_drive_in_turn_keeps_its_order() {
    let recorder = Recorder::heap();
    let (_row, events) = comm(&recorder, 1);
    let events = Mutex::new((events, 0));
    let rounds = 20_000;
    let (mut cursor, reader) = (Cursor::default(), recorder.reader());
    let (mut next, mut lost) = (0, 0);
    std::thread::scope(|scope| {
        let drive = || {
            while let (events, seq @ 0..20_000) = &mut *events.lock().unwrap() {
                events.take(number(*seq));
                *seq += 1;
            }
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(drive)).collect();
        loop {
            let are_done = threads.iter().all(|thread| thread.is_finished());
            let readings = reader.events(&mut cursor).unwrap();
            lost += readings.iter().map(|reading| reading.lost).sum::<u64>();
            // After a ring has lost events, the owner of its next ones may be unknown: they are in
            // a reading of their own.
            let before = next;
            for reading in readings {
                let mut due = before;
                for seq in reading.events.iter().map(seq_of) {
                    assert!(seq == due || (seq > due && lost > 0), "{seq} after {due}, {lost} lost");
                    due = seq + 1;
                }
                next = next.max(due);
            }
            if are_done {
                break;
            }
        }
    });
    assert_eq!(next, rounds);
}

#[test]
fn a_ring_goes_from_thread_to_thread_and_its_old_events_keep_their_owner() {
    let recorder = Recorder::heap();
    let ((row, mut first), (_other, mut second)) = (comm(&recorder, 1), comm(&recorder, 2));
    let (mut cursor, reader) = (Cursor::default(), recorder.reader());
    std::thread::scope(|scope| {
        scope.spawn(|| first.take(number(1))).join().unwrap();
        scope.spawn(|| second.take(number(2))).join().unwrap();
    });
    let process = read_of(&recorder);
    assert_eq!((process.rings.len(), process.rings[0].written), (1, 4), "two marks and two events");
    drop((first, row));
    assert_eq!(told(&reader.events(&mut cursor).unwrap()), [(owner(1), vec![1], 0), (owner(2), vec![2], 0)]);
}

#[test]
fn threads_without_a_ring_are_counted() {
    let recorder = Recorder::heap();
    let rings = RING_SLOTS.len();
    let (done, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (ready, all) = mpsc::channel();
    std::thread::scope(|scope| {
        for id in 0..rings as u64 + 2 {
            let ready = ready.clone();
            let (recorder, wait) = (&recorder, &wait);
            scope.spawn(move || {
                let (row, mut events) = comm(recorder, id + 1);
                events.take(number(id));
                ready.send(()).unwrap();
                // Until the sender is gone.
                let _ = wait.lock().unwrap().recv();
                drop(row);
            });
        }
        (0..rings + 2).for_each(|_| all.recv().unwrap());
        let process = read_of(&recorder);
        assert_eq!(process.rings.len(), rings);
        assert_eq!(process.overflow, [snapshot::Overflow { table: "Rings".into(), rows: 2 }]);
        drop(done);
    });
}

#[test]
fn a_thread_without_a_ring_is_heard_once_one_is_free_and_readers_know_what_they_lack() {
    let recorder = Recorder::heap();
    let (_row, mut events) = comm(&recorder, 1);
    let (mut cursor, reader) = (Cursor::default(), recorder.reader());
    let taken: Vec<_> = (0..RING_SLOTS.len()).map(|_| recorder.take_ring(false).unwrap().0).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..255).for_each(|seq| events.take(number(seq)));
            let readings = reader.events(&mut cursor).unwrap();
            assert_eq!((readings.len(), readings[0].owner, readings[0].lost), (1, None, 255));
            assert!(reader.events(&mut cursor).unwrap().is_empty(), "told once");
            recorder.lock().rings[taken[0]].is_taken = false;
            (255..300).for_each(|seq| events.take(number(seq)));
            assert_eq!(told(&reader.events(&mut cursor).unwrap()), [(owner(1), (255..300).collect(), 0)]);
        });
    });
}

#[test]
fn a_recorder_before_layout_7_has_a_ring_per_communicator() {
    let recorder = Recorder::heap();
    let (_row, mut events) = comm(&recorder, 1);
    (0..9).for_each(|seq| events.take(number(seq)));
    // The first slot has a mark, as those recorders had not: events 1 to 9 remain.
    let first = Capacity::FULL.offset(Table::Rings) / 8;
    let about = &recorder.memory.words()[first..];
    for (at, value) in [(layout::ring::COMM, 7), (layout::ring::RANK, 3), (layout::ring::START, 4)] {
        about[at].store(value, Ordering::Relaxed);
    }
    let slots = Capacity::FULL.offset(Table::Slots) / 8;
    recorder.memory.words()[slots].store(0, Ordering::Relaxed);
    let readings = recorder.reader().events(&mut Cursor::default()).unwrap();
    assert_eq!(
        told(&readings),
        [(None, vec![0, 1, 2], 0), (Some((CommId(7), Rank(3))), (3..9).collect(), 1)]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever is recorded by whom and whenever it is read: each event comes once, in order and
    /// with its owner, or is counted as lost.
    #[test]
    fn every_event_comes_with_its_owner_or_is_lost(
        runs in proptest::collection::vec((0..5usize, 1..3000u64, any::<bool>()), 1..40),
    ) {
        let recorder = Recorder::heap();
        let mut comms: Vec<_> = (1..=5).map(|id| comm(&recorder, id)).collect();
        let (mut cursor, reader) = (Cursor::default(), recorder.reader());
        let (mut written, mut read, mut lost) = ([0u64; 5], [0u64; 5], 0);
        // Whether the next event of an owner may come after a gap.
        let (mut torn, mut missing) = ([true; 5], 0);
        let mut look = |is_last: bool, written: &[u64; 5]| {
            for reading in reader.events(&mut cursor).unwrap() {
                lost += reading.lost;
                let Some((comm, _)) = reading.owner else {
                    prop_assert!(reading.events.is_empty());
                    continue;
                };
                let at = comm.0 as usize - 1;
                let missed = reading.events.first().map_or(0, |event| seq_of(event) - read[at]);
                torn[at] |= reading.is_torn;
                prop_assert!(missed == 0 || torn[at]);
                torn[at] &= reading.events.is_empty();
                (missing, read[at]) = (missing + missed, read[at] + missed);
                for event in &reading.events {
                    prop_assert_eq!(seq_of(event), read[at]);
                    read[at] += 1;
                }
            }
            prop_assert!(missing <= lost);
            let all = |numbers: &[u64; 5]| numbers.iter().sum::<u64>();
            // Each that was not read is counted.
            prop_assert!(!is_last || all(&read) - missing + lost == all(written), "{:?} of {:?}", read, written);
            Ok(())
        };
        for (at, count, is_read) in runs {
            for _ in 0..count {
                comms[at].1.take(number(written[at]));
                written[at] += 1;
            }
            if is_read {
                look(false, &written)?;
            }
        }
        look(true, &written)?;
    }
}
