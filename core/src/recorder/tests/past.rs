//! What is kept of operations that have ended.

use super::*;
use crate::snapshot::History;

/// Calls and completes a collective that waited for half of its time.
fn run(row: &CommRow, kind: CollKind, seq: u64, called: u64) {
    row.called(&descriptor(kind, seq), None, Raw(called));
    let times = Times { waited_ticks: 2_000, ..Times::between(Raw(called), Raw(called + 4_000)) };
    row.completed(&descriptor(kind, seq), times);
}

fn history(recorder: &Arc<Recorder>) -> History {
    read(recorder).comms[0].history.clone()
}

/// Whether two durations are equal, except for the rounding of the scale.
fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= 2 + b / 100
}

#[test]
fn the_latest_operations_are_kept_with_their_times_and_all_are_summed() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    assert!(history(&recorder).is_empty());
    let first = clock::raw().0;
    (1..=20).for_each(|seq| run(&row, CollKind::AllReduce, seq, first + seq * 10_000));
    run(&row, CollKind::Barrier, 21, first + 210_000);
    let seen = history(&recorder);
    let seqs: Vec<u64> = seen.ops.iter().map(|op| op.seq).collect();
    assert_eq!(seqs, [4, 6, 8, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21]);
    let ns = |ticks: u64| clock::scale().ns(ticks);
    for op in &seen.ops {
        assert!(near(op.ended_ns - op.called_ns, ns(4_000)) && near(op.waited_ns, ns(2_000)), "{op:?}");
        assert!(near(op.called_ns - seen.ops[0].called_ns, ns((op.seq - 4) * 10_000)), "{op:?}");
    }
    let [sums, barrier] = seen.kinds.as_slice() else { panic!("{:?}", seen.kinds) };
    assert_eq!((sums.kind.as_str(), sums.operations, barrier.operations), ("AllReduce", 20, 1));
    assert!(near(sums.inside_ns, ns(80_000)) && near(sums.waited_ns, ns(40_000)), "{sums:?}");
    // The first call has no operation before it.
    assert!(near(sums.outside_ns, ns(19 * 6_000)) && near(barrier.outside_ns, ns(6_000)), "{sums:?}");
    let json = serde_json::to_string(&seen).unwrap();
    assert_eq!(serde_json::from_str::<History>(&json).unwrap(), seen);
}

#[test]
fn an_operation_has_what_a_hundred_of_its_kind_and_size_took() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let p99_ns = || read(&recorder).comms[0].op.p99_ns;
    (1..=99).for_each(|seq| run(&row, CollKind::AllReduce, seq, seq * 10_000));
    assert_eq!(p99_ns(), 0);
    run(&row, CollKind::AllReduce, 100, 1_000_000);
    let took_ns = clock::scale().ns(4_000);
    assert!((took_ns + 1..=2 * took_ns.max(256)).contains(&p99_ns()), "{} {took_ns}", p99_ns());
    // It is that of the operation under way.
    row.called(&descriptor(CollKind::AllReduce, 101), None, Raw(1_010_000));
    assert!(p99_ns() > 0);
    let small = Descriptor { count: 1, ..descriptor(CollKind::AllReduce, 101) };
    row.started(&small, None, Raw(1_010_000));
    assert_eq!(p99_ns(), 0);
    row.started(&descriptor(CollKind::Broadcast, 102), None, Raw(1_010_000));
    assert_eq!(p99_ns(), 0);
}

#[test]
fn nothing_is_kept_at_level_0_nor_for_the_row_of_another_communicator() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    row.set_level(0);
    run(&row, CollKind::AllReduce, 1, 1_000);
    assert!(history(&recorder).is_empty());
    row.set_level(1);
    run(&row, CollKind::AllReduce, 2, 9_000);
    assert_eq!(history(&recorder).ops.len(), 1);
    drop(row);
    assert_eq!(history(&recorder).ops.len(), 1, "an ended communicator's history stays readable");
    // All rows of histories are used once, and then this one again.
    let count = Capacity::FULL.comms as u64;
    let rows: Vec<_> = (1..=count).map(|n| recorder.comm(CommInfo { id: CommId(n), ..INFO })).collect();
    rows.iter().for_each(|row| run(row, CollKind::Barrier, 3, 20_000));
    let process = read(&recorder);
    assert!(process.overflow.is_empty(), "{:?}", process.overflow);
    for comm in &process.comms {
        assert_eq!(comm.history.ops.iter().map(|op| op.seq).collect::<Vec<_>>(), [3], "{}", comm.id);
    }
    // One without a row records to private memory.
    let private = recorder.comm(CommInfo { id: CommId(99), ..INFO });
    run(&private, CollKind::AllReduce, 1, 1_000);
}

#[test]
fn subscribers_get_no_histories() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let before = read(&recorder);
    run(&row, CollKind::AllReduce, 1, 1_000);
    let now = read(&recorder);
    let update = now.since(&before);
    assert_eq!(update.process.comms.len(), 1);
    assert!(update.process.comms[0].history.is_empty() && !now.comms[0].history.is_empty());
}
