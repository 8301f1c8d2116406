//! From the states of steps to the classic profile.

use ccl::event::Event;
use ccl::types::{ChannelId, Direction, ProxyState, Rank};
use serde_json::{Value, json};

use super::{MOST_STEPS, Profile};
use crate::trace::merge_profiled;
use crate::trace::tests::{lines, part};

fn entered(
    (channel, peer, direction): (ChannelId, u32, Direction),
    seq: u64,
    step: u64,
    state: ProxyState,
) -> Event {
    Event::ProxyStepEntered { channel, peer: Rank(peer), direction, seq, step, state }
}

/// The events of a file, without the empty one at its end.
fn read(path: &std::path::Path) -> Vec<Value> {
    let all: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (last, events) = all.split_last().unwrap();
    assert_eq!(*last, json!({}));
    events.to_vec()
}

#[test]
fn the_classic_profile_is_written_with_the_times_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
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
        (500, entered(from, 7, 1, ProxyState::RecvWait)),
        (2_500, entered(from, 7, 1, ProxyState::RecvGPUWait)),
        (2_600, entered(from, 7, 1, ProxyState::Done)),
    ];
    part(folder.path(), 0, "one", &lines(0, 0, &sender));
    part(folder.path(), 1, "one", &lines(1, 0, &receiver));
    let (trace, net) = (folder.path().join("out.trace"), folder.path().join("net.profile"));
    let (_, profiles) = merge_profiled(folder.path(), &trace, None, &net).unwrap();
    let paths = [0, 1].map(|rank| folder.path().join(format!("net-{rank}.profile")));
    assert_eq!((profiles.files.as_slice(), profiles.steps, profiles.left_out), (&paths[..], 4, 0));

    let [ours, theirs] = paths.map(|path| read(&path));
    let told = |event: &Value| {
        let name = event["name"].as_str().unwrap().to_string();
        (name, event["ph"].as_str().unwrap().to_string(), event["id"].as_u64().unwrap(), nanos(&event["ts"]))
    };
    let expect = |list: &[(&str, &str, u64, i64)]| {
        let own =
            |&(name, phase, id, at): &(&str, &str, u64, i64)| (name.to_string(), phase.to_string(), id, at);
        list.iter().map(own).collect::<Vec<_>>()
    };
    assert_eq!(
        ours.iter().map(told).collect::<Vec<_>>(),
        expect(&[
            ("Send-1-1", "b", 0, 500),
            ("GPUWait", "b", 0, 500),
            ("GPUWait", "e", 0, 750),
            ("SendWait", "b", 0, 750),
            ("SendWait", "e", 0, 1_501),
            ("Send-1-1", "e", 0, 1_501),
            ("Send-1-2", "b", 1, 800),
            ("BufferWait", "b", 1, 800),
            ("BufferWait", "e", 1, 2_500),
            ("GPUWait", "b", 1, 2_500),
            ("Recv-1-9", "b", 2, 900),
            ("RecvWait", "b", 2, 900),
        ])
    );
    assert_eq!(
        theirs.iter().map(told).collect::<Vec<_>>(),
        expect(&[
            ("Recv-0-1", "b", 0, 0),
            ("RecvWait", "b", 0, 0),
            ("RecvWait", "e", 0, 2_000),
            ("GPUWait", "b", 0, 2_000),
            ("GPUWait", "e", 0, 2_100),
            ("Recv-0-1", "e", 0, 2_100),
        ])
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
    let zero = [0, 1].into_iter().flat_map(states).min().unwrap();
    for (rank, events) in [ours, theirs].iter().enumerate() {
        let drawn = states(rank as u64);
        assert!(events.iter().all(|event| drawn.contains(&(nanos(&event["ts"]) + zero))), "rank {rank}");
    }
}

fn nanos(value: &Value) -> i64 {
    super::nanos(value)
}

#[test]
fn a_file_has_a_bounded_number_of_steps_and_what_it_lacks_is_counted() {
    let mut profile = Profile::default();
    for step in 0..MOST_STEPS as u64 + 3 {
        let args = json!({"step": step, "seq": 1, "peer": 1, "channel": 0, "direction": "Send", "comm": "a"});
        for name in ["SendGPUWait", "Done"] {
            profile.take(0, &json!({"cat": super::CATEGORY, "name": name, "ts": 1.0, "args": args}));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let written = profile.write(&folder.path().join("net.json")).unwrap();
    assert_eq!((written.steps, written.left_out), (MOST_STEPS as u64, 3));
}
