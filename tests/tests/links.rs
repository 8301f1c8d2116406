//! Networks that are cut, throttled or lossy are told as such, from either side; and a host that
//! does not answer is no dead process.

#![expect(clippy::print_stdout, reason = "the tests print how long it took until they were told")]

use ccl::clock;
use ccl::snapshot::{Class, Reason, Side, Snapshot, Standing, Verdict};
use ccl_tests::apart::Apart;
use ccl_tests::job::{Job, Line, PATIENCE};
use ccl_tests::orders::Orders;
use ccl_tests::programs::text;

/// 2 ranks on each of 2 hosts, at work; each message between hosts has 512 KiB.
fn start(name: &str) -> Option<(Apart, Job)> {
    let hosts = Apart::for_test(name)?;
    let orders = Orders { count: 1 << 20, ..Orders::default() };
    let mut job = hosts.start(4, orders);
    job.works().expect("the job works");
    Some((hosts, job))
}

fn seen(hosts: &Apart, host: usize, more: &[&str]) -> Snapshot {
    let words: Vec<&str> = ["snapshot", "--json"].iter().chain(more).copied().collect();
    let output = hosts.inspect(host, &words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)))
}

/// The first verdict that calls it a stall, as a host sees it.
fn told(hosts: &Apart, host: usize, more: &[&str]) -> Verdict {
    let (began, end) = (clock::now(), clock::now().after(PATIENCE));
    loop {
        let job = seen(hosts, host, more);
        if let Some(verdict) = job.verdicts.first().filter(|one| one.standing == Standing::Stalled) {
            println!("host {host}: after {:?}: {} {}", clock::now().since(began), verdict.class, verdict.why);
            return verdict.clone();
        }
        assert!(clock::now() < end, "nothing was told: {job:#?}");
        clock::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_network_that_is_cut_is_told_and_nobody_is_called_dead() {
    let Some((hosts, job)) = start("a_network_that_is_cut_is_told_and_nobody_is_called_dead") else { return };
    hosts.network.mute();
    // Each host names the ranks of the other one, which it cannot reach. It does not ask there: the
    // answer would come when the operations fail.
    let check = |host: usize| {
        let verdict = told(&hosts, host, &["--no-gather"]);
        let what = (verdict.class, verdict.reason, verdict.side);
        assert_eq!(what, (Class::Link, Reason::Unreachable, Side::Network), "{verdict:#?}");
        let other: Vec<u32> = verdict.culprits.iter().map(|one| one.rank.0).collect();
        assert!(!other.is_empty() && other.iter().all(|rank| (*rank < 2) == (host == 1)), "{verdict:#?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check(1));
        check(0);
    });
    // The operations fail once the kernels have given up, and the errors say the same.
    for worker in &job.workers {
        let error = |line: &Line| match line {
            Line::Error { text, .. } => Some(text.clone()),
            _ => None,
        };
        let error = worker.hear("an error", 1, error).expect("an error").remove(0);
        assert!(error.contains("does not answer") || error.contains("the link between"), "{error}");
        assert!(!error.contains("ended without leaving"), "{error}");
    }
    for host in 0..2 {
        let output = hosts.inspect(host, &["open", "/run", "--json"]);
        let job: Snapshot =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)));
        let verdict = &job.verdicts[0];
        assert_eq!((verdict.class, verdict.reason), (Class::Link, Reason::Unreachable), "{verdict:#?}");
    }
}

/// Waits until a host sees this of the network. What it sees before is at worst another fault of
/// the network: a stream that resends may seem silent, and one that is held up may seem to lose.
fn sees(hosts: &Apart, host: usize, reason: Reason) {
    let end = clock::now().after(PATIENCE);
    loop {
        let job = seen(hosts, host, &[]);
        let mut stalls = job.verdicts.iter().filter(|one| one.standing == Standing::Stalled);
        assert!(stalls.all(|one| one.class == Class::Link), "{:#?}", job.verdicts);
        let mut links = job.verdicts.iter().filter(|one| one.class == Class::Link);
        if let Some(verdict) = links.find(|one| one.reason == reason) {
            return println!("{}: {}", verdict.standing, verdict.why);
        }
        assert!(clock::now() < end, "nothing was told: {job:#?}");
        clock::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_network_that_is_throttled_is_told() {
    let Some((hosts, _job)) = start("a_network_that_is_throttled_is_told") else { return };
    hosts.network.throttle("1mbit");
    // The host that sends sees it; what the other one asks travels over the same network.
    sees(&hosts, 1, Reason::Throttled);
}

#[test]
fn a_network_that_loses_packets_is_told() {
    let Some((hosts, _job)) = start("a_network_that_loses_packets_is_told") else { return };
    hosts.network.lose(25);
    sees(&hosts, 1, Reason::Lossy);
}
