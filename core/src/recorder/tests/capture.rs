//! Captures.

use super::*;

#[test]
fn a_copy_tells_what_was_told_when_it_was_made() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    row.called(&descriptor(CollKind::AllReduce, 7), None, ago(500));
    let capture = recorder.reader().capture().unwrap();
    row.completed(&descriptor(CollKind::AllReduce, 7), Times::between(ago(5), clock::raw()));
    let there = Reader::of_capture(capture.clone(), "a.rec").unwrap();
    let seen = there.snapshot().unwrap();
    assert_eq!((seen.comms[0].op.state, seen.comms[0].op.seq), (OpState::Running, 7));
    assert!(seen.comms[0].op.age_ns >= 400_000_000, "{}", seen.comms[0].op.age_ns);
    assert_eq!((seen.alive, seen.to_real_ns), (true, capture.at.real_ns));
    assert_eq!(there.snapshot().unwrap(), seen, "time stands still in it");
    assert_eq!((there.capture().unwrap(), there.path()), (capture, Some(Path::new("a.rec"))));
    assert!(there.alive() && there.histograms().unwrap().is_empty());
    assert_eq!(there.events(&mut reader::Cursor::default()).unwrap(), []);
    assert_eq!(read(&recorder).comms[0].op.state, OpState::Idle);
}

#[test]
fn a_copy_of_a_dead_recorder_tells_what_its_file_tells() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    row.called(&descriptor(CollKind::Barrier, 3), None, ago(50));
    std::fs::write(&path, recorder.reader().capture().unwrap().bytes).unwrap();
    let file = Reader::open(&path).unwrap();
    let capture = file.capture().unwrap();
    assert!(!capture.alive);
    let (here, there) =
        (file.snapshot().unwrap(), Reader::of_capture(capture, "b.rec").unwrap().snapshot().unwrap());
    assert_eq!((&there.comms, there.to_real_ns), (&here.comms, here.to_real_ns));
    assert!(there.comms[0].consistent && there.comms[0].op.seq == 3);
}

#[test]
fn what_is_no_recorder_is_no_copy_of_one() {
    let capture = Capture { bytes: b"garbage".to_vec(), alive: true, from_real_ns: 0, at: clock::anchor() };
    let error = Reader::of_capture(capture, "a.rec").unwrap_err().to_string();
    assert!(error.contains("a.rec is no recorder: it has 0 bytes"), "{error}");
}
