//! Ranks of two hosts reduce across, and a death on one host is reported on the other.

use ccl_tests::deaths::Death;
use ccl_tests::hosts::Hosts;
use ccl_tests::job::{Line, Transport};
use ccl_tests::orders::Orders;

#[test]
fn ranks_of_two_namespaces_reduce_and_tell_deaths_across() {
    let Some(hosts) = Hosts::for_test("ranks_of_two_namespaces_reduce_and_tell_deaths_across") else {
        return;
    };
    let mut job = hosts.start(4, Orders { calls: 50, count: 100_000, ..Orders::default() });
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
        let mut job = hosts.start(4, Orders { stay: true, retry: true, ..Orders::default() });
        job.works().unwrap();
        let shown = death.kill_and_look(&mut job).unwrap();
        println!("{death}: {:?}", shown.latencies);
        wrong.extend(shown.wrong.iter().map(|what| format!("{death}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sums go up a tree across both hosts, and the result comes down to each host's group.
#[test]
fn seven_ranks_of_two_namespaces_reduce_by_a_tree_and_name_a_killed_one() {
    let name = "seven_ranks_of_two_namespaces_reduce_by_a_tree_and_name_a_killed_one";
    let Some(hosts) = Hosts::for_test(name) else { return };
    let start = |orders: Orders| {
        let mut setting = hosts.setting(7, orders);
        setting.variables.push(("CCL_ALGO".into(), "tree".into()));
        setting.start()
    };
    let mut job = start(Orders { calls: 20, count: 100_000, ..Orders::default() });
    job.works().unwrap();
    for worker in &mut job.workers {
        let status = worker.wait().unwrap();
        assert!(status.success(), "{status}: {:?}\n{}", worker.said(), worker.complaints.lock().unwrap());
    }
    let mut wrong = Vec::new();
    // The root, an inner rank, the leader of the second host, a leaf.
    for victim in [0, 1, 3, 6] {
        let death = Death {
            seed: u64::from(victim),
            nranks: 7,
            transport: Transport::Mixed,
            victim,
            with: None,
            has_child: false,
        };
        let mut job = start(Orders { stay: true, retry: true, ..Orders::default() });
        job.works().unwrap();
        let shown = death.kill_and_look(&mut job).unwrap();
        println!("{death}: {:?}", shown.latencies);
        wrong.extend(shown.wrong.iter().map(|what| format!("{death}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
