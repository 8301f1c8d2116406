//! From the states of steps to the classic profile.

use std::path::Path;

use ccl::error::ErrorKind;
use ccl::event::Event;
use ccl::types::{ChannelId, Direction, Phase, ProxyState, Rank};
use serde_json::{Value, json};

use super::{MOST_STEPS, OPS, Profile, Profiles, nanos};
use crate::trace::tests::{lines, part};
use crate::trace::{check_profile_name, merge_profiled};

fn entered(
    (channel, peer, direction): (ChannelId, u32, Direction),
    seq: u64,
    step: u64,
    state: ProxyState,
) -> Event {
    Event::ProxyStepEntered { channel, peer: Rank(peer), direction, seq, step, state }
}

/// The events of a file.
fn read(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Writes the parts of two ranks with messages over the network; the trace begins at 300.
fn two_ranks(folder: &Path) {
    let (to, pair) = ((ChannelId(2), 1, Direction::Send), (ChannelId::P2P, 1, Direction::Recv));
    let sender = [
        (1_000, entered(to, 7, 1, ProxyState::SendGPUWait)),
        (1_250, entered(to, 7, 1, ProxyState::SendWait)),
        (1_300, entered(to, 7, 2, ProxyState::SendPeerWait)),
        (1_400, entered(pair, 3, 9, ProxyState::RecvWait)),
        (2_001, entered(to, 7, 1, ProxyState::Done)),
        (3_000, entered(to, 7, 2, ProxyState::SendGPUWait)),
        // Their beginnings were not recorded.
        (3_100, entered(to, 6, 40, ProxyState::Done)),
    ];
    let from = (ChannelId(2), 0, Direction::Recv);
    let receiver = [
        // From 300 on.
        (400, Event::PhaseEnded { phase: Phase::ALL[0], duration_ns: 100 }),
        (500, entered(from, 7, 1, ProxyState::RecvWait)),
        (2_500, entered(from, 7, 1, ProxyState::RecvGPUWait)),
        (2_600, entered(from, 7, 1, ProxyState::Done)),
    ];
    part(folder, 0, "one", &lines(0, 0, &sender));
    part(folder, 1, "one", &lines(1, 0, &receiver));
}

/// Name, phase, id and time of events.
fn told(events: &[Value]) -> Vec<(&str, &str, u64, i64)> {
    events
        .iter()
        .map(|event| {
            let (name, phase) = (event["name"].as_str().unwrap(), event["ph"].as_str().unwrap());
            (name, phase, event["id"].as_u64().unwrap(), nanos(&event["ts"]))
        })
        .collect()
}

#[test]
fn the_classic_profile_is_written_with_the_times_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    two_ranks(folder.path());
    let (trace, net) = (folder.path().join("out.trace"), folder.path().join("net.profile"));
    let (_, profiles) = merge_profiled(folder.path(), &trace, None, &net).unwrap();
    let paths = [0, 1].map(|rank| folder.path().join(format!("net-{rank}.profile")));
    assert_eq!((profiles.files.as_slice(), profiles.steps, profiles.left_out), (&paths[..], 4, 0));

    let [ours, theirs] = paths.map(|path| read(&path));
    assert_eq!(
        told(&ours),
        [
            ("Send-1-1", "b", 0, 700),
            ("GPUWait", "b", 0, 700),
            ("GPUWait", "e", 0, 950),
            ("SendWait", "b", 0, 950),
            ("SendWait", "e", 0, 1_701),
            ("Send-1-1", "e", 0, 1_701),
            ("Send-1-2", "b", 1, 1_000),
            ("BufferWait", "b", 1, 1_000),
            ("BufferWait", "e", 1, 2_700),
            ("GPUWait", "b", 1, 2_700),
            ("Recv-1-9", "b", 2, 1_100),
            ("RecvWait", "b", 2, 1_100),
        ]
    );
    assert_eq!(
        told(&theirs),
        [
            ("Recv-0-1", "b", 0, 200),
            ("RecvWait", "b", 0, 200),
            ("RecvWait", "e", 0, 2_200),
            ("GPUWait", "b", 0, 2_200),
            ("GPUWait", "e", 0, 2_300),
            ("Recv-0-1", "e", 0, 2_300),
        ]
    );
    let (first, last) = (&ours[0], &ours[10]);
    assert_eq!((&first["cat"], &first["pid"], &first["tid"]), (&json!("NET"), &json!(2), &json!(1)));
    assert_eq!(first["args"], json!({"opCount": 7, "proxyOpIndex": 0}));
    assert_eq!((&last["pid"], &last["args"]), (&json!(65535), &json!({"opCount": 3, "proxyOpIndex": 1})));

    // Each time of the profile is that of a state in the trace.
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let states = |rank: u64| {
        let all = trace["traceEvents"].as_array().unwrap().iter();
        let of = all.filter(move |event| event["cat"] == super::CATEGORY && event["pid"] == rank);
        of.map(|event| nanos(&event["ts"])).collect::<Vec<_>>()
    };
    for (rank, events) in [ours, theirs].iter().enumerate() {
        let drawn = states(rank as u64);
        assert!(events.iter().all(|event| drawn.contains(&nanos(&event["ts"]))), "rank {rank}");
    }
}

/// A state of a message to rank 1 on channel 0, as a line of a trace.
fn line(comm: u64, seq: u64, step: u64, state: &str, ns: u64) -> Value {
    let id = format!("{comm:016x}");
    let args = json!({"step": step, "seq": seq, "peer": 1, "channel": 0, "direction": "Send", "comm": "a", "comm_id": id});
    json!({"cat": super::CATEGORY, "name": state, "ts": ns as f64 / 1000.0, "args": args})
}

/// The profile of rank 0 that has these lines, and its events.
fn of_lines(lines: impl IntoIterator<Item = Value>) -> (Profiles, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = Profile::beside(&folder.path().join("net.json"));
    lines.into_iter().for_each(|line| profile.take(0, &line));
    profile.end(0);
    let written = profile.finish().unwrap();
    let events = written.files.first().map(|file| read(file)).unwrap_or_default();
    (written, events)
}

#[test]
fn a_file_has_a_bounded_number_of_steps_and_what_it_lacks_is_counted() {
    let steps = 0..MOST_STEPS as u64 + 3;
    let (written, _) =
        of_lines(steps.flat_map(|step| ["SendGPUWait", "Done"].map(|state| line(1, 1, step, state, 9))));
    assert_eq!((written.steps, written.left_out), (MOST_STEPS as u64, 3));
    let (written, _) = of_lines([line(1, 1, 1, "Done", 9)]);
    assert_eq!(written, Profiles::default(), "no step has its beginning in the trace");
}

#[test]
fn a_step_has_each_state_once_and_the_operation_of_its_last_state() {
    let states = ["SendPeerWait", "SendGPUWait", "SendPeerWait", "SendGPUWait", "SendWait", "Done"];
    let early = |state: &str| u64::from(state != "Done");
    let (_, events) = of_lines(states.map(|state| line(1, 7 - early(state), 1, state, 9)));
    let told: Vec<_> =
        events.iter().map(|event| (event["name"].as_str().unwrap(), event["ph"].as_str().unwrap())).collect();
    let pairs = ["BufferWait", "GPUWait", "SendWait"].map(|name| [(name, "b"), (name, "e")]).concat();
    assert_eq!(told, [vec![("Send-1-1", "b")], pairs, vec![("Send-1-1", "e")]].concat());
    assert_eq!(events[0]["args"], json!({"opCount": 7, "proxyOpIndex": 1}));
}

#[test]
fn communicators_of_one_name_have_links_and_operations_of_their_own() {
    // The first one has failed; the second one counts anew.
    let (written, events) = of_lines([
        line(1, 1, 1, "SendGPUWait", 10),
        line(2, 1, 1, "SendGPUWait", 20),
        line(2, 1, 1, "SendWait", 30),
        line(2, 1, 1, "Done", 40),
    ]);
    assert_eq!(written.steps, 2);
    let begins = events.iter().filter(|event| event["name"] == "Send-1-1" && event["ph"] == "b");
    let begins: Vec<_> = begins.map(|event| (&event["id"], &event["args"]["proxyOpIndex"])).collect();
    assert_eq!(begins, [(&json!(0), &json!(0)), (&json!(1), &json!(1))]);
    assert!(events.iter().all(|event| event["id"] != 0 || event["ph"] == "b"), "the first one has no end");
}

#[test]
fn numbers_of_operations_are_used_again_the_oldest_first() {
    let (_, events) = of_lines((0..OPS as u64 + 2).map(|seq| line(1, seq, seq, "SendWait", 9)));
    let begins = events.iter().filter(|event| !event["args"].is_null());
    let numbers: Vec<u64> = begins.map(|event| event["args"]["proxyOpIndex"].as_u64().unwrap()).collect();
    assert_eq!(numbers[..2], [0, 1]);
    assert_eq!(numbers[OPS - 1..], [OPS as u64 - 1, 0, 1]);
}

#[test]
fn a_rank_with_two_parts_has_one_profile() {
    let folder = tempfile::tempdir().unwrap();
    let to = (ChannelId(2), 1, Direction::Send);
    let waits = |raw, step| lines(0, 0, &[(raw, entered(to, 7, step, ProxyState::SendGPUWait))]);
    part(folder.path(), 0, "one", &waits(1_000, 1));
    std::fs::rename(folder.path().join("ccl-h-70.json"), folder.path().join("ccl-h-69.json")).unwrap();
    part(folder.path(), 0, "one", &waits(2_000, 2));
    let net = folder.path().join("net.json");
    let (merged, profiles) =
        merge_profiled(folder.path(), &folder.path().join("t.trace"), None, &net).unwrap();
    assert_eq!(
        (merged.parts, profiles.files, profiles.steps),
        (2, vec![net.with_file_name("net-0.json")], 2)
    );
}

#[test]
fn no_profile_takes_the_name_of_the_trace_or_of_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let state = entered((ChannelId(2), 1, Direction::Send), 7, 1, ProxyState::SendWait);
    part(folder.path(), 0, "one", &lines(0, 0, &[(1_000, state)]));
    let count = || std::fs::read_dir(folder.path()).unwrap().count();
    let check = |trace: &str, profile: &str, expect: Option<[&str; 2]>| {
        let told = merge_profiled(folder.path(), &at(trace), None, &at(profile));
        let Some(expect) = expect else {
            assert_eq!(told.unwrap().1.files.len(), 1, "{trace} {profile}");
            return;
        };
        let why = told.unwrap_err();
        assert_eq!(why.kind, ErrorKind::Usage);
        assert!(expect.iter().all(|name| why.to_string().contains(name)), "{why}");
        assert_eq!(count(), 1, "nothing is written");
    };
    // Of any rank, one of the job or not.
    check("t-0.trace", "t.trace", Some(["t.trace: ", "t-0.trace"]));
    check("t-512.trace", "t.trace", Some(["t.trace: ", "t-512.trace"]));
    check("t-0.trace", "t.unfinished", Some(["t.unfinished: ", "t-0.unfinished"]));
    check("t.trace", "ccl.json", Some(["ccl-0.json", "the name of a part"]));
    check("t.trace", "app-x.json", Some(["app-x-0.json", "the name of a part"]));
    check("t.trace", "net.json.gz", Some(["net.json.gz", "not compressed"]));
    check("t-x.trace", "t.trace", None);
    check("t-00.trace", "t.trace", None);
    check("t.trace", "t.trace", None);
    assert!(check_profile_name(Path::new("t-0.trace"), &at("t.trace")).is_ok(), "of another folder");
    assert!(check_profile_name(Path::new("t-0.trace"), Path::new("./t.trace")).is_err());
}

#[test]
fn what_cannot_be_written_as_a_whole_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = Profile::beside(&folder.path().join("net.json"));
    for rank in 0..3 {
        profile.take(rank, &line(1, 1, 1, "SendWait", 9));
    }
    profile.end(0);
    assert!(folder.path().join("net-0.json").exists());
    std::fs::create_dir(folder.path().join("net-1.json")).unwrap();
    (1..3).for_each(|rank| profile.end(rank));
    let why = profile.finish().unwrap_err();
    assert!(why.to_string().contains("net-1.json"), "{why}");
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["net-1.json"], "the folder that was there");
}
