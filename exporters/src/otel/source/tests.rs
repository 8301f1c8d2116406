//! Recorders while they are written: the spans made from them, and the events counted as lost.

use ccl::clock;
use ccl::event::{Event, Subscriber};
use ccl::recorder::layout::RING_SLOTS;
use ccl::recorder::{CommInfo, CommRow, Events, Recorder};
use ccl::types::{Algorithm, CollKind, Datatype, ReduceOp};

use super::*;
use crate::otel::Endpoint;

/// An exporter without a collector: only its counts matter.
fn exporter() -> Exporter {
    Exporter::start(&Endpoint::at("http://127.0.0.1:1").unwrap()).unwrap()
}

fn comm(recorder: &Arc<Recorder>, id: u64) -> (CommRow, Events) {
    comm_of(recorder, 7, id)
}

fn comm_of(recorder: &Arc<Recorder>, job: u64, id: u64) -> (CommRow, Events) {
    let (id, job) = (CommId(id), JobId(job));
    let row = recorder.comm(CommInfo { id, job, name: "dp", rank: Rank(1), nranks: 4, world: Rank(1) });
    let ring = row.events();
    (row, ring)
}

/// The slots of a thread's ring, and the events that it holds: a quarter of it has one mark.
const SLOTS: u64 = RING_SLOTS[0] as u64;
const HELD: u64 = SLOTS - 4;

fn operations(ring: &mut Events, count: u64) {
    for seq in 1..=count {
        ring.take(Event::OpCompleted {
            kind: CollKind::Barrier,
            dtype: Datatype::U8,
            op: ReduceOp::Sum,
            algorithm: Algorithm::OneShot,
            seq,
            bytes: 0,
            duration_ticks: 1,
            other: None,
        });
    }
}

/// Spans made and events lost so far.
fn account(exporter: &Exporter) -> (u64, u64) {
    (exporter.counts().made, exporter.counts().lost)
}

#[test]
fn every_event_becomes_a_span_once_or_is_lost_and_counted() {
    let (recorder, exporter) = (Recorder::heap(), exporter());
    let mut source = Source::own(recorder.reader());
    source.look(&exporter).unwrap();
    let (row, mut ring) = comm(&recorder, 5);
    operations(&mut ring, 3);
    source.look(&exporter).unwrap();
    source.look(&exporter).unwrap();
    assert_eq!(account(&exporter), (3, 0));
    // More events than there are slots: the oldest are gone.
    operations(&mut ring, SLOTS + 2);
    source.look(&exporter).unwrap();
    assert_eq!(account(&exporter), (3 + HELD, 2 + SLOTS - HELD));
    // Its owner has left, and the ring goes on with another.
    operations(&mut ring, 1);
    drop((ring, row));
    source.look(&exporter).unwrap();
    assert_eq!(account(&exporter).0, 4 + HELD);
    let (_other, mut ring) = comm(&recorder, 6);
    operations(&mut ring, 1);
    // The process's own events do not count as missed.
    let mut service = recorder.events();
    service.take(Event::ClockAnchored { raw: 1, mono_ns: 1, real_ns: 1 });
    source.look(&exporter).unwrap();
    assert_eq!(account(&exporter), (5 + HELD, 2 + SLOTS - HELD));
    assert_eq!(exporter.finish(clock::now()).counts.made, 5 + HELD);
}

#[test]
fn what_was_overwritten_before_the_first_look_from_outside_is_no_loss() {
    let (recorder, exporter) = (Recorder::heap(), exporter());
    let (_row, mut ring) = comm(&recorder, 5);
    operations(&mut ring, SLOTS + 9);
    let mut source = Source::attached(recorder.reader(), "program");
    source.look(&exporter).unwrap();
    let overwritten = 9 + SLOTS - HELD;
    assert_eq!((account(&exporter), source.overwritten()), ((HELD, 0), overwritten));
    operations(&mut ring, SLOTS + 1);
    source.look(&exporter).unwrap();
    assert_eq!((account(&exporter), source.overwritten()), ((2 * HELD, 1 + SLOTS - HELD), overwritten));
}

#[test]
fn the_end_of_a_recorder_is_read_when_nobody_else_has_it() {
    let (recorder, exporter) = (Recorder::heap(), exporter());
    let source = Source::own(recorder.reader());
    let (row, mut ring) = comm(&recorder, 5);
    let source = source.unless_alone(&exporter).unwrap();
    operations(&mut ring, 2);
    drop((row, ring, recorder));
    assert!(source.unless_alone(&exporter).is_none());
    assert_eq!(account(&exporter), (2, 0));
}
