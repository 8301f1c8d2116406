//! Two network namespaces joined by a veth pair, each with its `CCL_HOSTID`: two hosts on one kernel. Ranks reduce across, and a death on one
//! is told on the other.

use std::process::{Command, Stdio};

use ccl_tests::deaths::Death;
use ccl_tests::job::{Job, Line, Setting, Transport};
use ccl_tests::orders::Orders;

/// The namespaces, gone when dropped.
struct Hosts {
    names: [String; 2],
}

fn ip(words: &str) -> bool {
    let command = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

impl Hosts {
    /// `None` where this is not allowed, or there is no `ip`.
    fn new() -> Option<Self> {
        let me = std::process::id();
        let hosts = Self { names: ["a", "b"].map(|which| format!("ccl-{me}-{which}")) };
        let [a, b] = &hosts.names;
        let (left, right) = (format!("ca{me}"), format!("cb{me}"));
        let words = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {left} netns {a} type veth peer name {right} netns {b}"),
            format!("-n {a} addr add 10.231.7.1/24 dev {left}"),
            format!("-n {b} addr add 10.231.7.2/24 dev {right}"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set {left} up"),
            format!("-n {b} link set {right} up"),
        ];
        words.iter().all(|words| ip(words)).then_some(hosts)
    }

    /// Four ranks, two on each host.
    fn start(&self, orders: Orders) -> Job {
        let mut setting = Setting::new(4, Transport::Mixed, orders);
        setting.address = "10.231.7.1".into();
        let enter = |rank: usize| ["ip", "netns", "exec", &self.names[rank / 2]].map(String::from).to_vec();
        setting.wrap = (0..4).map(enter).collect();
        setting.start()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn ranks_of_two_namespaces_reduce_and_tell_deaths_across() {
    let Some(hosts) = Hosts::new() else {
        println!("SKIPPED: no network namespaces can be made here (it needs root and the program ip)");
        return;
    };
    let mut job = hosts.start(Orders { calls: 50, count: 100_000, ..Orders::default() });
    job.works().unwrap();
    for worker in &mut job.workers {
        let status = worker.wait().unwrap();
        assert!(status.success(), "{status}: {:?}\n{}", worker.said(), worker.complaints.lock().unwrap());
        let nothing = Line::Left { left_over: Vec::new() };
        assert!(worker.said().contains(&nothing), "{:?}", worker.said());
    }
    assert_eq!(job.files(), Vec::<String>::new());
    let mut wrong = Vec::new();
    for victim in 0..4 {
        let death = Death {
            seed: u64::from(victim),
            nranks: 4,
            transport: Transport::Mixed,
            victim,
            with: None,
            has_child: false,
        };
        let mut job = hosts.start(Orders { stay: true, retry: true, ..Orders::default() });
        job.works().unwrap();
        let shown = death.kill_and_look(&mut job).unwrap();
        println!("{death}: {:?}", shown.latencies);
        wrong.extend(shown.wrong.iter().map(|what| format!("{death}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
