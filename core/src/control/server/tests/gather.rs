//! A question to other hosts, whose answer comes later.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use super::*;
use crate::bootstrap::auth::Key as JobKey;
use crate::control::gather::{HostTree, Member, Way};
use crate::failure::edge::Dialling;
use crate::transport::socket::listen::{Inbox, Listener, Scope};

/// Makes rank 0 of two hosts of this process; the other one has this listener.
fn member(recorder: &Arc<Recorder>, other: &TcpListener) -> Arc<Member> {
    let (job, comm, key) = (JobId(0x2a), CommId(0xc0), JobKey::from_secret("of this test"));
    let scope = Scope { job, key: key.clone(), comm, rank: Rank(0), nranks: 2, channels: 1 };
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let listener = Listener::open(here, scope, Inbox::default(), Arc::new(|| ())).unwrap();
    let listeners = vec![listener.address(), other.local_addr().unwrap()];
    let dialling = Dialling { job, comm, key, me: Rank(0), bind: None, listeners };
    let tree = HostTree::new(&[1, 2], Rank(0)).unwrap();
    Member::join(recorder, Way { tree, dialling, listener: Arc::new(listener) }, PATIENT).unwrap()
}

#[test]
fn what_other_hosts_know_comes_later_and_other_requests_are_served_meanwhile() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    nc.hear();
    let nothing = json!({"id": 1, "gather": {"rows": [], "lacks": [], "more": false}});
    assert_eq!(nc.ask(r#"{"request":"gather","id":1}"#), nothing);

    // The other host is there, and none of its ranks answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let member = member(&process.recorder, &silent);
    nc.say("{\"request\":\"gather\",\"id\":2}\n{\"request\":\"hello\",\"id\":3}\n");
    nc.say("{\"request\":\"gather\",\"id\":4}\n");
    let mut lines = Vec::new();
    loop {
        let line = nc.hear().unwrap();
        let is_last = line["id"] == 2 && line["gather"]["more"] == false;
        lines.push(line);
        if is_last {
            break;
        }
    }
    let of = |id: u64| lines.iter().filter(|line| line["id"] == id).collect::<Vec<_>>();
    let at = |id: u64| lines.iter().position(|line| line["id"] == id).unwrap();
    assert!(of(3)[0]["hello"].is_object() && at(3) + 1 < lines.len());
    assert_eq!(of(4)[0]["error"]["kind"], "busy");
    // Its own process, then why the other is missing.
    let field = |name: &str| {
        let parts = of(2).into_iter().flat_map(|line| line["gather"][name].as_array().unwrap());
        parts.cloned().collect::<Vec<Value>>()
    };
    let pids: Vec<Value> = field("rows").iter().map(|row| row["process"]["pid"].clone()).collect();
    assert_eq!(pids, [json!(std::process::id())]);
    let why = "rank 1 did not answer within 5 s";
    assert_eq!(field("lacks"), [json!({"comm": "00000000000000c0", "ranks": [1], "why": why})]);

    // A client that has heard enough does not wait for the other host.
    let told = process.client().gather(PATIENT, |rows| !rows.is_empty()).unwrap();
    assert_eq!((told.rows.len(), told.lacks.len(), told.more), (1, 0, true));

    // Who ends the communicator ends the answer.
    nc.say("{\"request\":\"gather\",\"id\":5}\n");
    while nc.hear().unwrap()["gather"]["rows"].as_array().is_none_or(Vec::is_empty) {}
    drop(member);
    let last = std::iter::from_fn(|| nc.hear()).find(|line| line["gather"]["more"] == false).unwrap();
    let why = last["gather"]["lacks"][0]["why"].as_str().unwrap_or_default();
    let whys = [
        "the process left its communicators meanwhile",
        "rank 1 did not answer before the communicator ended here",
    ];
    assert!(whys.contains(&why), "{last}");
}
