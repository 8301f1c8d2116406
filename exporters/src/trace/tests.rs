//! From events to a merged trace.

use std::path::Path;

use ccl::clock::{Anchor, Ns, Raw, Scale};
use ccl::event::Event;
use ccl::recorder::Recorded;
use ccl::snapshot::{CommSnapshot, LinkSnapshot, OpSnapshot, OpState, ProcessSnapshot, Waits};
use ccl::types::{
    Algorithm, ChannelId, CollKind, CommId, Datatype, Direction, JobId, Phase, Rank, ReduceOp, TransportKind,
    TransportReason, WaitReason,
};
use serde_json::Value;

use super::app::AppHeader;
use super::merge::{Merged, merge};
use super::part::{Footer, Header, SCHEMA};
use super::standing::Now;
use super::tracks::Tracks;
use super::who::Who;

const COMM: CommId = CommId(0xc0);
/// A communicator of another job, with the same name and the same ranks.
const OTHER: CommId = CommId(0xd0);
const JOBS: [JobId; 2] = [JobId(0xa), JobId(0xb)];

/// A scale in which a raw tick is a nanosecond of a clock that shows `offset` more.
fn scale(offset: u64) -> Scale {
    let anchor = |raw: u64| Anchor { raw: Raw(raw), mono: Ns(raw + offset), real_ns: 0 };
    Scale::between(anchor(0), anchor(10_000_000_000), 1.0)
}

fn process(rank: u32) -> ProcessSnapshot {
    let comm = CommSnapshot {
        id: COMM,
        job: JOBS[0],
        name: "dp \"x\"".into(),
        rank: Rank(rank),
        nranks: 3,
        world: Rank(rank),
        ..CommSnapshot::default()
    };
    ProcessSnapshot { pid: 70 + rank, host: "h".into(), comms: vec![comm], ..ProcessSnapshot::default() }
}

/// The lines of one rank.
pub(super) fn lines(rank: u32, offset: u64, events: &[(u64, Event)]) -> Vec<String> {
    let mut tracks = Tracks::default();
    tracks.learn(&process(rank), (COMM, Rank(rank)));
    for (raw, event) in events {
        let recorded = Recorded { raw: Raw(*raw), event: *event };
        tracks.take((COMM, Rank(rank)), &recorded, &scale(offset));
    }
    tracks.take_lines()
}

pub(super) fn part(folder: &Path, rank: u32, boot: &str, lines: &[String]) {
    let header = format!(
        r#"{{"ph":"M","pid":0,"tid":0,"name":"ccl_trace","args":{{"schema":"ccl.trace/1","pid":{},"boot_id":"{boot}"}}}}"#,
        70 + rank
    );
    let text = format!("[\n{header},\n{}", lines.join(",\n"));
    std::fs::write(folder.join(format!("ccl-h-{}.json", 70 + rank)), text).unwrap();
}

fn merged(folder: &Path) -> (Merged, Vec<Value>) {
    let to = folder.join("out.trace");
    let merged = merge(folder, &to, None).unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(to).unwrap()).unwrap();
    (merged, trace["traceEvents"].as_array().unwrap().clone())
}

/// The lines of a process that is also `other` of two ranks of a communicator with an id of its
/// own: one message of each.
fn lines_of_two_ids(rank: u32, other: u32, event: [Event; 2]) -> Vec<String> {
    let mut process = process(rank);
    let (own, world) = (Rank(other), Rank(other));
    let other =
        CommSnapshot { id: OTHER, job: JOBS[1], rank: own, world, nranks: 2, ..process.comms[0].clone() };
    process.comms.push(other);
    let mut tracks = Tracks::default();
    for ((comm, rank), event) in [(COMM, Rank(rank)), (OTHER, own)].into_iter().zip(event) {
        tracks.learn(&process, (comm, rank));
        tracks.take((comm, rank), &Recorded { raw: Raw(1_000), event }, &scale(0));
    }
    tracks.take_lines()
}

const fn planned(seq: u64) -> Event {
    Event::OpPlanned { kind: CollKind::AllReduce, seq, algorithm: Algorithm::Direct, bytes: 8, outline: None }
}

const fn completed(seq: u64, duration_ticks: u64) -> Event {
    Event::OpCompleted {
        kind: CollKind::AllReduce,
        dtype: Datatype::F32,
        op: ReduceOp::Sum,
        algorithm: Algorithm::Direct,
        seq,
        bytes: 8,
        duration_ticks,
        other: None,
    }
}

const fn sent(peer: Option<Rank>, step: u64) -> Event {
    Event::MessageSent { channel: ChannelId(0), peer, seq: 0, step, bytes: 8 }
}

const fn taken(peer: u32, shared: bool, step: u64) -> Event {
    Event::MessageTaken { channel: ChannelId(0), peer: Rank(peer), shared, seq: 0, step, bytes: 8 }
}

#[test]
fn a_rank_has_a_track_for_each_thing_and_no_slices_overlap() {
    let link = Event::LinkUp {
        channel: ChannelId(0),
        peer: None,
        direction: Direction::Send,
        transport: TransportKind::Shm,
        why: Some(TransportReason::SameHost),
    };
    let text = lines(
        1,
        0,
        &[
            (9_000, Event::PhaseEnded { phase: Phase::Ring, duration_ns: 4_000 }),
            (9_500, link),
            (10_000, planned(1)),
            (10_100, planned(2)),
            (11_000, sent(None, 1)),
            (11_000, sent(None, 2)),
            (12_000, taken(0, true, 1)),
            (12_500, completed(1, 2_500)),
            (13_000, completed(2, 2_900)),
        ],
    );
    let events: Vec<Value> = text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tracks: Vec<_> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        tracks,
        [
            "dp \"x\": init",
            "dp \"x\": send, channel 0 (shared)",
            "dp \"x\": receive, channel 0 (shared)",
            "dp \"x\": collectives"
        ]
    );
    let slices: Vec<_> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let at = |name: &str| (event[name].as_f64().unwrap() * 1000.0).round() as i64;
            (event["name"].as_str().unwrap(), at("ts"), at("dur"))
        })
        .collect();
    assert_eq!(
        slices,
        [
            ("Ring", 5_000, 4_001),
            ("to all", 10_000, 1_001),
            ("to all", 11_001, 1),
            ("from 0", 10_000, 2_001),
            ("AllReduce #1", 10_000, 2_501),
            ("AllReduce #2", 12_501, 500),
        ]
    );
    // One arrow begins for each reader of each shared message.
    assert_eq!(events.iter().filter(|event| event["ph"] == "s").count(), 4);
}

#[test]
fn arrows_join_what_both_ranks_saw_and_halves_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    part(
        folder.path(),
        0,
        "k",
        &lines(0, 0, &[(1_000, sent(Some(Rank(1)), 1)), (2_000, sent(Some(Rank(1)), 2))]),
    );
    let mut cut = lines(1, 0, &[(1_500, taken(0, false, 1)), (9_000, taken(0, false, 7))]);
    cut.push(r#"{"ph":"X","pid":1,"ti"#.into());
    part(folder.path(), 1, "k", &cut);
    let (merged, events) = merged(folder.path());
    assert_eq!((merged.parts, merged.unfinished, merged.slices), (2, 2, 4));
    assert_eq!((merged.arrows, merged.only_sent, merged.only_taken), (1, 1, 1));
    assert_eq!((merged.error_ns, merged.backwards_ns), (Some(1_000), 0));
    let halves: Vec<_> = events.iter().filter(|event| event["name"] == "message").collect();
    assert_eq!(halves.len(), 2);
    assert_eq!(
        (&halves[0]["ph"], &halves[1]["ph"], &halves[1]["bp"]),
        (&"s".into(), &"f".into(), &"e".into())
    );
    assert_eq!(halves[0]["id"], halves[1]["id"]);
}

#[test]
fn clocks_that_messages_contradict_are_corrected() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 1's clock is 5 ms ahead; a message takes 300 ns.
    let mine: Vec<_> = (1..100)
        .flat_map(|n| [(n * 10_000, sent(Some(Rank(1)), n)), (n * 10_000 + 1_300, taken(1, false, n))])
        .collect();
    let theirs: Vec<_> = (1..100)
        .flat_map(|n| [(n * 10_000 + 300, taken(0, false, n)), (n * 10_000 + 1_000, sent(Some(Rank(0)), n))])
        .collect();
    part(folder.path(), 0, "k", &lines(0, 0, &mine));
    part(folder.path(), 1, "k", &lines(1, 5_000_000, &theirs));
    let (merged, _) = merged(folder.path());
    assert_eq!((merged.arrows, merged.backwards_ns), (198, 0));
    assert!((100..600).contains(&merged.error_ns.unwrap()), "{merged:?}");
}

#[test]
fn a_folder_without_parts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = merge(folder.path(), &folder.path().join("x.trace"), None).unwrap_err();
    assert!(error.to_string().contains("holds no part of a trace"), "{error}");
    assert!(error.to_string().contains("CCL_TRACE="), "{error}");
}

#[test]
fn a_file_that_is_no_part_is_left_out_and_no_clock_is_its() {
    let folder = tempfile::tempdir().unwrap();
    part(folder.path(), 0, "k", &lines(0, 0, &[(1_000, sent(Some(Rank(1)), 1))]));
    part(folder.path(), 1, "k", &lines(1, 0, &[(1_500, taken(0, false, 1))]));
    // Two files that are not parts, with halves of arrows, sorted before and after all parts, and
    // one part of a later version.
    let strange = lines(2, 0, &[(1_000, sent(Some(Rank(1)), 9)), (1_500, taken(1, false, 9))]).join(",\n");
    for name in ["ccl-a.json", "ccl-z.json"] {
        std::fs::write(folder.path().join(name), format!("[\n{strange}")).unwrap();
    }
    let later = r#"{"ph":"M","pid":0,"tid":0,"name":"ccl_trace","args":{"schema":"ccl.trace/99","pid":1}}"#;
    std::fs::write(folder.path().join("ccl-y.json"), format!("[\n{later},\n{strange}")).unwrap();
    // And a file that cannot be read at all.
    std::fs::create_dir(folder.path().join("ccl-folder.json")).unwrap();
    let (merged, _) = merged(folder.path());
    assert_eq!((merged.parts, merged.arrows, merged.only_sent, merged.only_taken), (2, 1, 0, 0));
    assert_eq!(merged.notes.len(), 4, "{merged:?}");
    assert!(merged.notes[0].contains("ccl-a.json does not begin as a part"), "{merged:?}");
}

#[test]
fn a_trace_is_not_written_where_it_would_be_taken_for_a_part() {
    let folder = tempfile::tempdir().unwrap();
    part(folder.path(), 0, "k", &lines(0, 0, &[(1_000, sent(None, 1))]));
    for name in ["ccl-all.json", "app-1.json"] {
        let error = merge(folder.path(), &folder.path().join(name), None).unwrap_err();
        assert!(error.to_string().contains("the name of a part"), "{error}");
        assert!(!folder.path().join(name).exists());
    }
    merge(folder.path(), &folder.path().join("all.json"), None).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    merge(folder.path(), &elsewhere.path().join("ccl-all.json"), None).unwrap();
}

#[test]
fn a_line_that_was_cut_inside_a_character_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    part(folder.path(), 0, "k", &lines(0, 0, &[(1_000, sent(None, 1))]));
    let file = folder.path().join("ccl-h-70.json");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.extend(b",\n{\"ph\":\"X\",\"name\":\"\xc3");
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(merged(folder.path()).0.slices, 1);
}

#[test]
fn the_communicators_of_a_process_lie_in_its_rank_whatever_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    part(folder.path(), 0, "k", &lines(0, 0, &[(1_000, sent(Some(Rank(1)), 5))]));
    // Ranks 1 and 2 are ranks 0 and 1 of the other communicator.
    part(folder.path(), 1, "k", &lines_of_two_ids(1, 0, [sent(Some(Rank(2)), 1), sent(Some(Rank(1)), 1)]));
    part(folder.path(), 2, "k", &lines_of_two_ids(2, 1, [taken(1, false, 1), taken(0, false, 1)]));
    // A part without a rank is ignored if others have ranks.
    part(folder.path(), 3, "k", &[]);
    let to = folder.path().join("out.trace");
    for job in [None, Some(JOBS[0]), Some(JOBS[1])] {
        let merged = merge(folder.path(), &to, job).unwrap();
        assert_eq!((merged.parts, merged.arrows, merged.only_sent), (3, 2, 1), "{job:?}");
        let trace: Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names = events.iter().filter(|event| event["name"] == "process_name");
        let names: Vec<_> =
            names.map(|event| (event["pid"].as_u64().unwrap(), &event["args"]["name"])).collect();
        assert_eq!(names.len(), 3);
        for (at, (pid, name)) in names.into_iter().enumerate() {
            assert_eq!(pid, at as u64);
            assert!(name.as_str().unwrap().starts_with(&format!("rank {at} ")), "{name}");
        }
        // Each communicator has its own tracks.
        let slices = events.iter().filter(|event| event["ph"] == "X");
        let tracks: Vec<_> =
            slices.map(|one| (one["pid"].as_u64().unwrap(), one["tid"].as_u64().unwrap())).collect();
        let distinct: std::collections::BTreeSet<_> = tracks.iter().collect();
        assert_eq!((tracks.len(), distinct.len()), (5, 5), "{tracks:?}");
    }
}

#[test]
fn of_a_folder_with_several_jobs_one_has_to_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let of_job = |rank: u32, job: u64| -> Vec<String> {
        let lines = lines(rank, 0, &[(1_000, sent(None, 1))]);
        lines.iter().map(|line| line.replace("000a\"", &format!("000{job:x}\""))).collect()
    };
    part(folder.path(), 0, "k", &of_job(0, 10));
    part(folder.path(), 1, "k", &of_job(1, 10));
    part(folder.path(), 5, "k", &of_job(0, 14));
    let to = folder.path().join("out.trace");
    let error = merge(folder.path(), &to, None).unwrap_err().to_string();
    assert!(error.contains("several jobs"), "{error}");
    assert!(error.contains("000a  processes: 2") && error.contains("000e  processes: 1"), "{error}");
    let error = merge(folder.path(), &to, Some(JobId(0xc))).unwrap_err().to_string();
    assert!(error.contains("no part of job 000000000000000c"), "{error}");
    assert!(!to.exists());
    for (job, parts) in [(10, 2), (14, 1)] {
        let merged = merge(folder.path(), &to, Some(JobId(job))).unwrap();
        assert_eq!((merged.parts, merged.slices), (parts, parts as u64), "{job}");
    }
}

#[test]
fn losses_and_messages_are_of_the_job_that_is_merged() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = lines_of_two_ids(0, 0, [sent(Some(Rank(1)), 1); 2]);
    // A job that the process had left before.
    let gone = JobId(0xe);
    let footer = Footer {
        lost: [(JOBS[0], 5), (gone, 3)].into(),
        lost_of_unknown: 0,
        taken: [(JOBS[0], 100), (JOBS[1], 7), (gone, 9)].into(),
    };
    let args = serde_json::to_string(&footer).unwrap();
    all.push(format!(r#"{{"ph":"M","pid":0,"tid":0,"name":"ccl_trace_end","args":{args}}}"#));
    part(folder.path(), 0, "k", &all);
    for job in JOBS {
        let merged = merge(folder.path(), &folder.path().join("out.trace"), Some(job)).unwrap();
        assert_eq!((merged.lost, merged.taken), (5, 107), "{job}");
    }
}

#[test]
fn spans_of_a_program_lie_in_the_rank_of_their_process_though_hosts_and_pids_repeat() {
    let folder = tempfile::tempdir().unwrap();
    // Two containers with the same host name, whose programs have the same pid.
    for rank in [0, 1] {
        let who = Who { host: "h".into(), pid: 1, begun_ns: 1_000 + u64::from(rank) };
        let header = Header { schema: SCHEMA.into(), who: who.clone(), ..Header::default() };
        let args = serde_json::to_string(&header).unwrap();
        let first = format!(r#"{{"ph":"M","pid":0,"tid":0,"name":"ccl_trace","args":{args}}}"#);
        let rest = lines(rank, 0, &[(1_000, sent(None, 1))]).join(",\n");
        std::fs::write(folder.path().join(who.file_name("ccl")), format!("[\n{first},\n{rest}")).unwrap();
        let args = serde_json::to_string(&AppHeader { who: who.clone(), ..AppHeader::default() }).unwrap();
        let first = format!(r#"{{"ph":"M","pid":1,"tid":0,"name":"ccl_app","args":{args}}}"#);
        let span = format!(r#"{{"ph":"X","pid":1,"tid":3,"ts":1,"dur":1,"name":"step of {rank}"}}"#);
        std::fs::write(folder.path().join(who.file_name("app")), format!("[\n{first},\n{span}\n]")).unwrap();
    }
    let (merged, events) = merged(folder.path());
    assert_eq!((merged.parts, merged.slices), (2, 4), "{merged:?}");
    for rank in [0, 1] {
        let name = format!("step of {rank}");
        let spans: Vec<_> = events.iter().filter(|event| event["name"] == *name).collect();
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0]["pid"], rank);
    }
}

/// A process whose rank 1 is inside an operation that waits and never ends.
fn hung(kind: CollKind, since: u64, wait: Option<u32>) -> ProcessSnapshot {
    let mut process = process(1);
    process.comms[0].op = OpSnapshot {
        kind: kind.to_string(),
        seq: 5,
        state: OpState::Running,
        age_ns: 2_000_000_000 - since,
        root: Rank(2),
        op: "Sum".into(),
        since_raw: Some(since),
        ..OpSnapshot::default()
    };
    process.comms[0].links = wait
        .map(|peer| LinkSnapshot {
            waits: Waits::Peer,
            waits_for: Some(Rank(peer)),
            since_ns: 1_000_000_000,
            ..LinkSnapshot::default()
        })
        .into_iter()
        .collect();
    process
}

/// Looks at a process two seconds after the beginning of its clock.
fn look(tracks: &mut Tracks, process: &ProcessSnapshot, is_end: bool) {
    tracks.learn(process, (COMM, Rank(1)));
    tracks.stand(process, Now { mono_ns: 2_000_000_000, scale: &scale(0), is_end });
}

fn of_phase(lines: &[String], phases: &[&str]) -> Vec<Value> {
    let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| phases.contains(&event["ph"].as_str().unwrap())).collect()
}

#[test]
fn what_is_under_way_is_open_ended_and_says_whom_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut tracks = Tracks::default();
    for is_end in [false, false, true] {
        // It is drawn once, however often it is looked at.
        look(&mut tracks, &hung(CollKind::Reduce, 1_000, Some(0)), is_end);
    }
    part(folder.path(), 1, "k", &tracks.take_lines());
    let (merged, events) = merged(folder.path());
    assert_eq!((merged.slices, merged.open), (0, 2), "{merged:?}");
    let open: Vec<&Value> = events.iter().filter(|event| event["ph"] == "B").collect();
    assert_eq!((&open[0]["name"], &open[1]["name"]), (&"Reduce #5".into(), &"waits for rank 0".into()));
    assert_eq!(open[0]["args"]["root"], 2);
    assert_eq!(open[0]["args"]["waits_for"], serde_json::json!([0]));
    assert_eq!((&open[1]["args"]["reason"], &open[1]["ts"]), (&"peer".into(), &serde_json::json!(999_999.0)));
}

#[test]
fn what_was_drawn_under_way_ends_by_its_event_or_by_not_being_found_again() {
    let mut tracks = Tracks::default();
    look(&mut tracks, &hung(CollKind::AllReduce, 1_000, Some(0)), false);
    let owner = (COMM, Rank(1));
    let (channel, peer) = (ChannelId(0), Some(Rank(0)));
    let waited = Event::WaitEnded { channel, peer, reason: WaitReason::Peer, duration_ticks: 1_000_000_100 };
    let events = [
        (2_000_000_100, waited),
        (2_000_000_200, completed(5, 1_999_999_200)),
        (2_000_000_300, completed(6, 50)),
    ];
    for (raw, event) in events {
        tracks.take(owner, &Recorded { raw: Raw(raw), event }, &scale(0));
    }
    let lines = tracks.take_lines();
    let ends = of_phase(&lines, &["E", "X"]);
    let word = |event: &'_ Value, name: &str| event[name].as_str().unwrap_or_default().to_string();
    let seen: Vec<_> = ends.iter().map(|event| (word(event, "ph"), word(event, "name"))).collect();
    let seen: Vec<_> = seen.iter().map(|(phase, name)| (phase.as_str(), name.as_str())).collect();
    assert_eq!(seen, [("E", "waits for rank 0"), ("E", "AllReduce #5"), ("X", "AllReduce #6")]);
    assert!(ends[1]["args"]["busbw_GBps"].is_number() && ends[1]["args"]["algorithm"] == "Direct");
    // A reading from before these events draws nothing again.
    look(&mut tracks, &hung(CollKind::AllReduce, 1_000, None), true);
    assert_eq!(of_phase(&tracks.take_lines(), &["B"]), Vec::<Value>::new());
    // For a rank that records no events, only the readings show its progress.
    let mut tracks = Tracks::default();
    look(&mut tracks, &hung(CollKind::AllReduce, 1_000, None), false);
    let (one, two) = (process(1), process(1));
    look(&mut tracks, &one, false);
    assert_eq!(of_phase(&tracks.take_lines(), &["E"]).len(), 0);
    look(&mut tracks, &two, false);
    let ends = of_phase(&tracks.take_lines(), &["E"]);
    assert_eq!((ends.len(), &ends[0]["args"]["end_not_recorded"]), (1, &true.into()));
}

#[test]
fn what_began_just_now_is_drawn_at_the_end_only() {
    let mut tracks = Tracks::default();
    let process = hung(CollKind::AllReduce, 1_999_999_000, None);
    look(&mut tracks, &process, false);
    assert_eq!(of_phase(&tracks.take_lines(), &["B"]).len(), 0);
    look(&mut tracks, &process, true);
    assert_eq!(of_phase(&tracks.take_lines(), &["B"]).len(), 1);
}

#[test]
fn a_wait_says_for_whom_and_what_for() {
    let (channel, reason) = (ChannelId(0), WaitReason::Credit);
    let began = |peer| Event::WaitBegan { channel, peer: Rank(peer), reason };
    let ended = |peer| Event::WaitEnded { channel, peer, reason, duration_ticks: 1_000 };
    let text = lines(
        1,
        0,
        &[
            (1_000, began(0)),
            (1_000, began(2)),
            (2_000, ended(Some(Rank(0)))),
            (2_000, ended(Some(Rank(2)))),
            (9_000, ended(None)),
        ],
    );
    let slices = of_phase(&text, &["X"]);
    let names: Vec<_> = slices.iter().map(|slice| slice["name"].as_str().unwrap()).collect();
    // Waits for two ranks lie side by side; an older version did not record the rank.
    assert_eq!(names, ["waits for rank 0", "waits for rank 2", "waits"]);
    assert!(slices.iter().all(|slice| slice["dur"] == serde_json::json!(1.001)), "{slices:?}");
    assert_eq!(slices[1]["args"], serde_json::json!({"waits_for": [2], "reason": "credit"}));
}

#[test]
fn ranks_without_a_part_are_named() {
    let folder = tempfile::tempdir().unwrap();
    part(folder.path(), 1, "k", &lines(1, 0, &[(1_000, sent(None, 1))]));
    assert_eq!(merged(folder.path()).0.missing, [(0, 0), (2, 2)]);
}

#[test]
fn a_trace_whose_name_says_so_is_compressed() {
    let folder = tempfile::tempdir().unwrap();
    part(folder.path(), 1, "k", &lines(1, 0, &[(1_000, sent(None, 1))]));
    let to = folder.path().join("t.json.gz");
    merge(folder.path(), &to, None).unwrap();
    let mut text = String::new();
    let file = std::fs::File::open(&to).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 1);
}

#[test]
fn two_communicators_of_one_name_have_counters_of_their_own() {
    let mut process = process(1);
    let twin = CommSnapshot { id: OTHER, ..process.comms[0].clone() };
    process.comms.push(twin);
    let mut tracks = Tracks::default();
    process.comms.iter().for_each(|comm| tracks.learn(&process, (comm.id, comm.rank)));
    tracks.counters(&process, 1_000);
    let lines = tracks.take_lines();
    let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let counters = events.filter(|event| event["ph"] == "C").map(|event| event["name"].to_string());
    let names: std::collections::BTreeSet<_> = counters.collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn kernels_that_no_message_relates_lie_by_the_time_of_day_and_say_unknown() {
    let folder = tempfile::tempdir().unwrap();
    // Two hosts that booted a million seconds apart, both after 2006.
    for (rank, real_less_mono_ns) in [(0, 1_795_000_000_000_000_000), (1, 1_796_000_000_000_000_000)] {
        let who = Who { pid: rank, ..Who::default() };
        let (schema, boot_id) = (SCHEMA.into(), format!("k{rank}"));
        let header = Header { schema, who: who.clone(), boot_id, real_less_mono_ns, ..Header::default() };
        let args = serde_json::to_string(&header).unwrap();
        let first = format!(r#"{{"ph":"M","pid":0,"tid":0,"name":"ccl_trace","args":{args}}}"#);
        // By the time of day, both at the same time.
        let raw = if rank == 0 { 1_000_000_000_000_000 + 5_000 } else { 5_000 };
        let rest = lines(rank, 0, &[(raw, completed(1, 0))]).join(",\n");
        std::fs::write(folder.path().join(who.file_name("ccl")), format!("[\n{first},\n{rest}")).unwrap();
    }
    let (merged, events) = merged(folder.path());
    assert_eq!(merged.error_ns, None);
    let times: Vec<_> =
        events.iter().filter(|event| event["ph"] == "X").map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(times.len() == 2 && times.iter().all(|ts| *ts < 1.0), "{times:?}");
    let labels: Vec<_> = events.iter().filter_map(|event| event["args"]["labels"].as_str()).collect();
    assert_eq!(labels, ["clock +- 0.000 us", "clock error unknown"]);
}

/// The values of one argument in the slices of these lines, in their order.
fn said(lines: &[String], what: &str) -> Vec<Value> {
    of_phase(lines, &["X"]).iter().map(|slice| slice["args"][what].clone()).collect()
}

#[test]
fn a_completed_operation_says_its_root_and_what_it_reduces_by_if_it_has_one() {
    let ends = |kind, other| {
        let Event::OpCompleted { dtype, op, algorithm, .. } = completed(1, 50) else { unreachable!() };
        Event::OpCompleted { kind, dtype, op, algorithm, seq: 1, bytes: 8, duration_ticks: 50, other }
    };
    let check = |kind, expect: Value| {
        let lines = lines(1, 0, &[(1_000, ends(kind, Some(Rank(2))))]);
        let of = ["root", "peer", "op", "ranks"].map(|what| said(&lines, what)[0].clone());
        assert_eq!(Value::from(of.to_vec()), expect, "{kind}");
    };
    check(CollKind::Broadcast, serde_json::json!([2, null, null, 3]));
    check(CollKind::Reduce, serde_json::json!([2, null, "Sum", 3]));
    check(CollKind::AllGather, serde_json::json!([null, null, null, 3]));
    check(CollKind::Send, serde_json::json!([null, 2, null, null]));
}

#[test]
fn a_tag_is_told_where_it_is_certain_and_nowhere_else() {
    let (owner, mut process) = ((COMM, Rank(1)), process(1));
    process.comms[0].op.tag = "step 1".into();
    let mut tracks = Tracks::default();
    tracks.learn(&process, owner);
    // It was set before the trace began: the recorder's cell has it.
    tracks.tagged(&process, Raw(500));
    let take = |tracks: &mut Tracks, raw: u64, event: Event| {
        tracks.take(owner, &Recorded { raw: Raw(raw), event }, &scale(0));
    };
    take(&mut tracks, 1_000, completed(1, 50));
    // Another tag may have been among the lost events.
    tracks.lost(owner, 2_000);
    take(&mut tracks, 3_000, completed(2, 50));
    let mut text = [0; 40];
    text[..6].copy_from_slice(b"step 3");
    take(&mut tracks, 4_000, Event::Tagged { piece: 0, len: 6, text });
    take(&mut tracks, 5_000, completed(3, 50));
    let tags = said(&tracks.take_lines(), "tag");
    assert_eq!(tags, [serde_json::json!("step 1"), Value::Null, serde_json::json!("step 3")]);
}
