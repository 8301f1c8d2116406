//! Files of spans that reach their size limit.

use ccl::event::{Event, Subscriber as _};
use ccl::recorder::{CommInfo, Recorder};
use ccl::types::{CollKind, CommId, JobId, Rank};
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::trace::part::Part;
use crate::trace::{Merged, merge};

/// Writes `count` spans, with `bound` bytes for the files, inside a span that is entered first and
/// left last; returns the sizes of the files and their merged trace.
fn written(count: u64, bound: u64) -> (Vec<u64>, Merged, Vec<Value>) {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::heap());
    let (layer, App { who, guard, .. }) = layer_to(folder.path(), bound).unwrap();
    let about =
        CommInfo { id: CommId(5), job: JobId(7), name: "dp", rank: Rank(0), nranks: 1, world: Rank(0) };
    let row = recorder.comm(about);
    let (kind, seq, error, peer, bytes, duration_ticks, other) = (CollKind::Barrier, 1, 0, None, 0, 1, None);
    row.events().take(Event::OpFailed { kind, seq, error, peer, bytes, duration_ticks, other });
    let part = Part::own(recorder.reader(), folder.path(), who).unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        let _epoch = tracing::info_span!("epoch").entered();
        for step in 0..count {
            let _step = tracing::info_span!("step", step, ph = "M").entered();
        }
    });
    drop(guard);
    part.finish().unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().flatten();
    let spans = files.filter(|file| file.file_name().to_string_lossy().starts_with("app-"));
    let mut sizes = Vec::new();
    for file in spans {
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_array(), "each is a whole trace");
        sizes.push(text.len() as u64);
    }
    let to = folder.path().join("all.json");
    let merged = merge(folder.path(), &to, None).unwrap();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(to).unwrap()).unwrap();
    (sizes, merged, trace["traceEvents"].as_array().unwrap().clone())
}

fn count(events: &[Value], phase: &str, name: &str) -> u64 {
    events.iter().filter(|event| event["ph"] == phase && event["name"] == name).count() as u64
}

#[test]
fn spans_keep_the_newest_and_what_was_dropped_is_lost() {
    const STEPS: u64 = 2_000;
    let (sizes, merged, events) = written(STEPS, 64 << 10);
    assert!(sizes.len() == 2 && sizes.iter().sum::<u64>() < 66 << 10, "{sizes:?}");
    assert!(merged.dropped > 1_000 && merged.lost == merged.dropped, "{merged:?}");
    assert!(merged.notes.is_empty(), "{merged:?}");
    let of = |phase, name| count(&events, phase, name);
    assert_eq!((of("B", "epoch"), of("E", "epoch")), (0, 0), "an end without a beginning");
    assert_eq!(of("B", "step"), of("E", "step"));
    // All beginnings and ends: the end of the epoch was kept, and the end of a step may have been.
    let half = 1 + 2 * STEPS + 1 - merged.dropped - 2 * of("E", "step");
    assert!((1..=2).contains(&half), "{half} {merged:?}");
    let last = events.iter().rfind(|event| event["ph"] == "B").unwrap();
    assert_eq!(last["args"]["step"], (STEPS - 1).to_string());
    assert!(of("M", "thread_name") > 0, "the thread is named anew");
}

#[test]
fn few_spans_are_all_there() {
    let (sizes, merged, events) = written(20, 64 << 10);
    assert_eq!((sizes.len(), merged.lost, merged.dropped), (1, 0, 0), "{merged:?}");
    let of = |phase, name| count(&events, phase, name);
    assert_eq!((of("B", "epoch"), of("E", "epoch"), of("B", "step"), of("E", "step")), (1, 1, 20, 20));
}

#[test]
fn a_forked_child_writes_nothing_into_its_parents_trace() {
    let count = |is_child: bool| {
        let folder = tempfile::tempdir().unwrap();
        let (mut layer, App { path, guard, .. }) = layer_to(folder.path(), 1 << 20).unwrap();
        layer.of += u32::from(is_child);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _step = tracing::info_span!("step").entered();
            tracing::info!("an event");
        });
        drop(guard);
        std::fs::read_to_string(path).unwrap().lines().filter(|line| line.contains("tests.rs")).count()
    };
    assert_eq!((count(false), count(true)), (3, 0));
}

#[test]
fn a_name_with_a_line_break_stays_in_one_json_text() {
    let folder = tempfile::tempdir().unwrap();
    let who = Who { host: "two\nlines".into(), pid: 7, begun_ns: 1 };
    let (tell, told) = mpsc::channel();
    let mut spans = Spans::to(folder.path(), 64 << 10, &who, told).unwrap();
    let header = AppHeader { who, ..AppHeader::default() };
    tell.send(header.clone()).unwrap();
    spans.write_all(b"[\n{\"ph\":\"i\",\"name\":\"step\"}\n]\n").unwrap();
    spans.flush().unwrap();
    let text = std::fs::read_to_string(&spans.path).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    assert_eq!((serde_json::from_value(events[0]["args"].clone()).ok(), events.len()), (Some(header), 2));
}
