//! A part that reaches its size limit.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccl::clock::{Ns, Raw};
use ccl::event::{Event, Subscriber};
use ccl::recorder::{CommInfo, CommRow, Recorder};
use ccl::types::{Algorithm, CollKind, CommId, Datatype, Phase, Rank, ReduceOp};
use serde_json::Value;

use super::*;
use crate::trace::merge;

#[test]
fn a_part_keeps_the_newest_and_counts_what_it_dropped() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::heap());
    let job = JobId(7);
    let about = CommInfo { id: CommId(5), job, name: "dp", rank: Rank(0), nranks: 1, world: Rank(0) };
    let row = recorder.comm(about);
    let mut ring = row.events();
    let mut part = Part::own(recorder.reader(), folder.path(), Who::of_this_process()).unwrap();
    part.bound = 64 << 10;
    let count = 2_000;
    for seq in 1..=count {
        ring.take(Event::OpCompleted {
            kind: CollKind::AllReduce,
            dtype: Datatype::F32,
            op: ReduceOp::Sum,
            algorithm: Algorithm::Direct,
            seq,
            bytes: 8,
            duration_ticks: 1,
            other: None,
        });
        if seq % 20 == 0 {
            part.drain().unwrap();
        }
    }
    part.finish().unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().flatten();
    let sizes: Vec<u64> = files.map(|file| file.metadata().unwrap().len()).collect();
    // The last write may exceed the limit.
    assert!(sizes.len() == 2 && sizes.iter().sum::<u64>() < 80 << 10, "{sizes:?}");
    let to = folder.path().join("all.json");
    let merged = merge(folder.path(), &to, None).unwrap();
    assert_eq!((merged.parts, merged.unfinished), (1, 0), "{merged:?}");
    assert!(merged.dropped > 1_000 && merged.lost == merged.dropped, "{merged:?}");
    assert_eq!(merged.slices + merged.dropped, count, "{merged:?}");
    let trace = std::fs::read_to_string(to).unwrap();
    assert!(trace.contains("AllReduce #2000") && !trace.contains("AllReduce #1\""), "the newest are kept");
    assert!(trace.contains("\"process_name\"") && trace.contains("dp: collectives"), "all is named anew");
}

/// A communicator whose init takes long: its phase is drawn under its first ids, and ends under the
/// ids that were agreed upon.
fn made_late(recorder: &Arc<Recorder>, part: &mut Part, id: CommId) -> CommRow {
    let (name, rank) = ("dp", Rank(2));
    let early = CommInfo { id: CommId(id.0 - 1), job: JobId(0xe), name, rank, nranks: 3, world: rank };
    let mut row = recorder.comm(early);
    row.phase_began(Phase::Rendezvous, Raw(1));
    look(part);
    row.phase(Phase::Rendezvous, Ns(7));
    row.set_identity(id, JobId(0xb));
    look(part);
    row.events().take(Event::PhaseEnded { phase: Phase::Rendezvous, duration_ns: 7 });
    look(part);
    row
}

/// One turn of the writer, with a look at the operations under way.
fn look(part: &mut Part) {
    part.sampled_ns = 0;
    part.drain().unwrap();
}

/// The merged trace of a part of one job: the numbers of its ranks, and the lines of the phase,
/// each with whether its end was recorded.
fn phases(folder: &Path) -> (BTreeSet<u64>, Vec<String>) {
    let to = folder.join("all.json");
    let merged = merge(folder, &to, None).unwrap();
    assert_eq!(merge(folder, &to, Some(JobId(0xb))).unwrap(), merged);
    let trace: Value = serde_json::from_slice(&std::fs::read(to).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let numbers = events.iter().filter_map(|event| event["pid"].as_u64()).collect();
    let phases = events.iter().filter(|event| event["name"] == "Rendezvous");
    let phases = phases.map(|event| {
        let recorded = event["args"]["end_not_recorded"].is_null();
        format!("{} {recorded}", event["ph"].as_str().unwrap())
    });
    (numbers, phases.collect())
}

#[test]
fn a_phase_drawn_before_the_job_had_its_name_is_of_that_job() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::heap());
    let mut part = Part::own(recorder.reader(), folder.path(), Who::of_this_process()).unwrap();
    let _row = made_late(&recorder, &mut part, CommId(0x20));
    part.finish().unwrap();
    let expect = ["B true", "E true"].map(String::from).to_vec();
    assert_eq!(phases(folder.path()), (BTreeSet::from([2]), expect));
}

#[test]
fn a_job_is_one_where_a_later_communicator_of_it_is_made_late() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::heap());
    let mut part = Part::own(recorder.reader(), folder.path(), Who::of_this_process()).unwrap();
    let rank = Rank(2);
    let about = CommInfo { id: CommId(0x10), job: JobId(0xb), name: "world", rank, nranks: 3, world: rank };
    let first = recorder.comm(about);
    first.events().take(Event::PeerLost { peer: Rank(0) });
    part.drain().unwrap();
    let _row = made_late(&recorder, &mut part, CommId(0x20));
    part.finish().unwrap();
    let expect = ["B true", "E true"].map(String::from).to_vec();
    assert_eq!(phases(folder.path()), (BTreeSet::from([2]), expect));
}
