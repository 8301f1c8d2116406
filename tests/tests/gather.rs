//! From inside one host, whose namespaces and runtime folder are its own, the ranks of the other
//! host are gathered.

use ccl::clock;
use ccl::snapshot::{Snapshot, Source, State};
use ccl::types::Rank;
use ccl_tests::apart::{Apart, is_stopped, signal};
use ccl_tests::job::{Job, PATIENCE};
use ccl_tests::orders::{How, Orders};
use ccl_tests::programs::text;
use rustix::process::Signal;

/// A snapshot taken on a host, and the exit status.
fn seen(hosts: &Apart, host: usize, more: &[&str]) -> (Snapshot, Option<i32>) {
    let words: Vec<&str> = ["snapshot", "--json"].iter().chain(more).copied().collect();
    let output = hosts.inspect(host, &words);
    let snapshot = serde_json::from_slice(&output.stdout);
    (snapshot.unwrap_or_else(|e| panic!("{e}: {}", text(&output))), output.status.code())
}

/// The same, once `is` holds of it.
fn seen_when(hosts: &Apart, host: usize, is: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let end = clock::now().after(PATIENCE);
    loop {
        let (snapshot, _) = seen(hosts, host, &[]);
        if is(&snapshot) {
            return snapshot;
        }
        assert!(clock::now() < end, "{snapshot:#?}");
    }
}

fn sources(snapshot: &Snapshot) -> Vec<(u32, Source)> {
    snapshot.ranks.iter().map(|rank| (rank.rank.0, rank.source)).collect()
}

fn missing(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.missing.iter().map(|one| one.rank.0).collect()
}

/// The other host's files and processes cannot be reached from here.
fn assert_apart(hosts: &Apart) {
    for host in 0..2 {
        let files = hosts.on(host, &["sh", "-c", "ls /run/ccl-*/*.rec | wc -l"]);
        assert_eq!(text(&files).trim(), "2");
        let ranks = "for p in /proc/[0-9]*; do readlink $p/exe; done | grep -c /worker";
        assert_eq!(text(&hosts.on(host, &["sh", "-c", ranks])).trim(), "2");
    }
}

fn stop(job: &Job, rank: usize) {
    signal(job, rank, Signal::STOP);
    let end = clock::now().after(PATIENCE);
    while !is_stopped(job, rank) {
        assert!(clock::now() < end, "rank {rank} is not stopped");
    }
}

#[test]
fn ranks_of_a_host_that_cannot_be_reached_are_gathered() {
    let name = "ranks_of_a_host_that_cannot_be_reached_are_gathered";
    let Some(hosts) = Apart::for_test(name) else { return };
    let mut job = hosts.start(4, Orders::default());
    job.works().unwrap();
    assert_apart(&hosts);

    let (alone, status) = seen(&hosts, 0, &["--no-gather"]);
    assert_eq!((missing(&alone), status), (vec![2, 3], Some(13)));
    assert!(alone.missing.iter().all(|one| one.host == "b" && one.why.contains("not on this machine")));

    for host in 0..2 {
        let (all, status) = seen(&hosts, host, &[]);
        assert!(all.complete && status == Some(0), "{status:?} {all:#?}");
        let gathered: Vec<u32> = sources(&all)
            .into_iter()
            .filter(|(_, source)| *source == Source::Gather)
            .map(|(rank, _)| rank)
            .collect();
        let foreign = [vec![2, 3], vec![0, 1]];
        assert_eq!(gathered, foreign[host]);
        assert!(all.ranks.iter().all(|rank| rank.state == State::Running));
    }
    let said = text(&hosts.inspect(0, &["snapshot"]));
    assert!(said.contains("4 of 4 ranks read, from gather: ranks 2-3"), "{said}");
    // A dump has them too.
    for (more, status, left) in [(&[][..], 0, vec![]), (&["--no-gather"][..], 13, vec![2, 3])] {
        let file = format!("/run/{status}.tar.zst");
        let words: Vec<&str> = ["dump", "-o", &file].iter().chain(more).copied().collect();
        let made = hosts.inspect(0, &words);
        assert_eq!(made.status.code(), Some(status), "{}", text(&made));
        let opened = hosts.inspect(0, &["open", &file, "--json"]);
        let opened: Snapshot = serde_json::from_slice(&opened.stdout).unwrap();
        assert_eq!(missing(&opened), left);
        assert!(opened.ranks.iter().skip(2).all(|rank| rank.source == Source::Gather));
    }
}

#[test]
fn a_stopped_rank_of_the_other_host_is_named_also_if_it_is_the_leader() {
    let name = "a_stopped_rank_of_the_other_host_is_named_also_if_it_is_the_leader";
    // Rank 2 leads its host: rank 3 stands in for it. From host b, rank 0 leads the other one. The
    // last one is the leader of the host that is asked.
    for (victim, asked) in [(3, 0), (2, 0), (0, 1), (0, 0)] {
        let Some(hosts) = Apart::for_test(name) else { return };
        let mut job = hosts.start(4, Orders::default());
        job.works().unwrap();
        stop(&job, victim);
        let blocks = |snapshot: &Snapshot| {
            let blocked = snapshot.blocked_on.first();
            let culprits = blocked.map(|one| one.culprits.iter().map(|one| one.rank).collect::<Vec<_>>());
            culprits == Some(vec![Rank(victim as u32)])
                && blocked.is_some_and(|one| one.since_ns > 200_000_000)
        };
        let shown = seen_when(&hosts, asked, blocks);
        assert!(shown.complete, "{shown:#?}");
        let rank = &shown.ranks[victim];
        let source = if (victim >= 2) == (asked == 1) { Source::Mapping } else { Source::Gather };
        assert_eq!((rank.state, rank.source, rank.letter), (State::Stopped, source, Some('T')));
    }
}

#[test]
fn a_killed_leader_is_replaced_and_a_host_without_ranks_is_named() {
    let name = "a_killed_leader_is_replaced_and_a_host_without_ranks_is_named";
    let Some(hosts) = Apart::for_test(name) else { return };
    // All wait for a line before their second call: outside the library they keep their
    // communicator, whoever dies.
    let mut job = hosts.start(4, Orders { at: 2, how: How::Alone, ..Orders::default() });
    job.works().unwrap();
    let is_dead = |snapshot: &Snapshot, rank: u32| {
        snapshot.ranks.iter().any(|one| (one.rank, one.state) == (Rank(rank), State::Dead))
    };
    signal(&job, 2, Signal::KILL);
    let shown = seen_when(&hosts, 0, |snapshot| is_dead(snapshot, 2));
    assert_eq!(shown.ranks[2].source, Source::Gather);
    assert_eq!((shown.ranks[3].state, shown.ranks[3].source), (State::Running, Source::Gather));
    signal(&job, 3, Signal::KILL);
    let shown = seen_when(&hosts, 0, |snapshot| missing(snapshot) == [2, 3]);
    let why = "it could not be gathered: rank 2: nobody listens there any more; rank 3: nobody";
    assert!(shown.missing.iter().all(|one| one.host == "b" && one.why.contains(why)), "{:?}", shown.missing);
}
