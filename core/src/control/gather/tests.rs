//! Many processes on many hosts, with a network and clocks of this test: silent ranks, dead ones,
//! late answers, peers that lie; and lines that hold anything.

mod hostile;
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use super::answer::Lack;
use super::ask::{HARD, WHOLE};
use crate::seed::Seed;
use crate::types::Rank;
use world::{Answer, State, World};

/// The ranks that an answer has rows of, and how many rows it has.
fn ranks(answer: &Answer) -> (BTreeSet<u32>, usize) {
    (answer.rows.iter().map(|row| row.process.pid).collect(), answer.rows.len())
}

fn lacking(answer: &Answer) -> BTreeSet<u32> {
    answer.lacks.iter().flat_map(|lack: &Lack| &lack.ranks).map(|rank| rank.0).collect()
}

/// Every row's clock is right within its error.
fn assert_clocks(world: &World, asker: usize, answer: &Answer) {
    for row in &answer.rows {
        let of = row.process.pid as usize;
        let clock = row.clock.unwrap_or_default();
        let is = world.skew_ns(of) - world.skew_ns(asker);
        let off = is.abs_diff(clock.offset_ns);
        assert!(off <= clock.error_ns, "rank {of}: {is} is not {clock:?}");
        let is_here = world.host(of) == world.host(asker);
        assert_eq!(row.clock.is_none(), is_here);
    }
}

#[test]
fn from_any_rank_every_process_is_told_once_and_soon() {
    for (nhosts, each) in [(2, 1), (2, 2), (3, 4), (8, 2), (9, 1), (10, 2), (32, 1), (64, 2)] {
        for seed in 0..8 {
            let mut draw = Seed(seed);
            let mut world = World::new(nhosts, each, seed);
            let asker = draw.place(nhosts * each);
            let answer = world.gather(asker);
            let all: BTreeSet<u32> = (0..(nhosts * each) as u32).collect();
            assert_eq!(ranks(&answer), (all, nhosts * each), "{nhosts} {each} {seed}: {:?}", answer.lacks);
            assert_eq!(answer.lacks, []);
            assert!(answer.took < Duration::from_millis(200), "{:?}", answer.took);
            assert_clocks(&world, asker, &answer);
            // Half of each round trip of at most 2 ms, and there are four edges at most on a way.
            let errors = answer.rows.iter().filter_map(|row| row.clock).map(|clock| clock.error_ns);
            assert!(errors.max().unwrap_or(0) < 5_000_000);
            // Nothing is left of it, and a second question is answered as well.
            assert_eq!(world.gather(asker).rows.len(), nhosts * each);
            assert!(world.is_quiet());
        }
    }
}

#[test]
fn a_leader_keeps_nine_edges_at_most_and_others_none() {
    for nhosts in [2, 9, 64] {
        let world = World::new(nhosts, 2, 1);
        for process in 0..nhosts * 2 {
            let expect = if process % 2 == 0 { 1..=9 } else { 0..=0 };
            assert!(expect.contains(&world.edges(process)), "{process}: {}", world.edges(process));
        }
    }
}

/// Whom the ranks that are left must tell of: a host of which one of the first four ranks answers.
fn expected(world: &World, asker: usize) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut told, mut missing) = (BTreeSet::new(), BTreeSet::new());
    for host in 0..world.nhosts() {
        let ranks = world.ranks_of(host);
        let answers = ranks.iter().take(4).any(|rank| world.state(*rank) == State::Runs);
        let is_own = world.host(asker) == host;
        let into = if answers || is_own { &mut told } else { &mut missing };
        into.extend(ranks.iter().map(|rank| *rank as u32));
    }
    (told, missing)
}

#[test]
fn silent_and_dead_ranks_hide_no_other_host() {
    let mut bypassed = 0;
    for seed in 0..300 {
        let mut draw = Seed(seed).part(7);
        let (nhosts, each) = (2 + draw.place(30), 1 + draw.place(4));
        let mut world = World::new(nhosts, each, seed);
        let asker = draw.place(nhosts * each);
        let bad = draw.place(nhosts * each / 2 + 1);
        for _ in 0..bad {
            let victim = draw.place(nhosts * each);
            if victim != asker {
                let state = draw.one_of(&[State::Stopped, State::Dead]);
                world.set(victim, state);
            }
        }
        let (told, missing) = expected(&world, asker);
        let answer = world.gather(asker);
        let what = format!("seed {seed}: {nhosts} x {each} from {asker}");
        assert_eq!(ranks(&answer), (told.clone(), told.len()), "{what}: {:?}", answer.lacks);
        assert_eq!(lacking(&answer), missing, "{what}: {:?}", answer.lacks);
        assert!(answer.lacks.iter().all(|lack| !lack.why.is_empty()), "{what}: {:?}", answer.lacks);
        assert!(answer.took <= WHOLE, "{what}: {:?}", answer.took);
        bypassed += usize::from(!missing.is_empty());
    }
    assert!(bypassed > 50, "{bypassed} of 300 lost a host");
}

#[test]
fn a_silent_leader_is_replaced_after_a_second_and_a_silent_host_given_up_after_five() {
    let check = |stopped: &[usize], dead: &[usize], about: Duration, missing: &[u32], whys: &[&str]| {
        let mut world = World::new(3, 2, 5);
        stopped.iter().for_each(|rank| world.set(*rank, State::Stopped));
        dead.iter().for_each(|rank| world.set(*rank, State::Dead));
        let answer = world.gather(0);
        assert_eq!(lacking(&answer), missing.iter().copied().collect(), "{:?}", answer.lacks);
        assert_eq!(answer.rows.len(), 6 - missing.len());
        let longest = about + Duration::from_millis(200);
        assert!((about..longest).contains(&answer.took), "{:?} {:?}", answer.took, answer.lacks);
        let said: Vec<&str> = answer.lacks.iter().map(|lack| lack.why.as_str()).collect();
        assert_eq!(said, whys);
    };
    let second = Duration::from_secs(1);
    check(&[], &[], Duration::ZERO, &[], &[]);
    check(&[2], &[], second, &[], &[]);
    check(&[3], &[], Duration::ZERO, &[], &[]);
    check(&[2], &[4], second, &[], &[]);
    check(&[], &[2, 4], Duration::ZERO, &[], &[]);
    let both = "rank 2 did not answer within 5 s; rank 3 did not answer within 5 s";
    check(&[2, 3], &[], HARD, &[2, 3], &[both]);
    let refused = "rank 4: the connection ended; rank 5: nobody listens";
    check(&[], &[4, 5], Duration::ZERO, &[4, 5], &[refused]);
    let mixed = "rank 4: the connection ended; rank 5 did not answer within 5 s";
    check(&[5], &[4], HARD, &[4, 5], &[mixed]);
}

#[test]
fn a_rank_that_is_heard_but_reads_its_host_for_long_is_joined_by_the_next_after_a_second() {
    let slowly = Duration::from_secs(10);
    let check = |nhosts: usize, slow: &[usize], told: Duration, done: Duration| {
        let mut world = World::new(nhosts, 2, 5);
        slow.iter().for_each(|rank| world.reads_for(*rank, slowly));
        let answer = world.gather(0);
        assert_eq!((ranks(&answer).0.len(), answer.rows.len()), (nhosts * 2, nhosts * 2), "{slow:?}");
        assert_eq!(answer.lacks, []);
        for (expect, is) in [(told, answer.told), (done, answer.took)] {
            assert!((expect..expect + Duration::from_millis(200)).contains(&is), "{slow:?}: {is:?}");
        }
        assert!(world.is_quiet());
    };
    let second = Duration::from_secs(1);
    check(2, &[2], second, slowly);
    check(2, &[3], Duration::ZERO, Duration::ZERO);
    check(2, &[2, 3], slowly, slowly + second);
    // Hosts behind it are told by it.
    check(10, &[2], second, slowly);
    check(10, &[18, 2], second, slowly);
}

#[test]
fn late_ranks_tell_nothing_twice() {
    for seed in 0..100 {
        let mut draw = Seed(seed).part(3);
        let mut world = World::new(12, 2, seed);
        // Those that stop go on while they are replaced, or after.
        for _ in 0..4 {
            let victim = 1 + draw.place(23);
            world.set(victim, State::Stopped);
            world.resume(victim, Duration::from_millis(draw.below(8000)));
        }
        let answer = world.gather(0);
        let (told, rows) = ranks(&answer);
        assert_eq!(told.len(), rows, "seed {seed}");
        let lacking = lacking(&answer);
        let all: BTreeSet<u32> = (0..24).collect();
        assert_eq!(told.union(&lacking).copied().collect::<BTreeSet<_>>(), all, "seed {seed}");
        assert_clocks(&world, 0, &answer);
        // Once all go on, all are told.
        world.run(Duration::from_secs(30));
        assert_eq!(world.gather(0).rows.len(), 24, "seed {seed}");
        assert!(world.is_quiet(), "seed {seed}");
    }
}

#[test]
fn a_rank_that_dies_while_it_answers_is_replaced() {
    for seed in 0..100 {
        let mut draw = Seed(seed).part(9);
        let mut world = World::new(10, 2, seed);
        let victim = 2 * (1 + draw.place(9));
        world.kill(victim, Duration::from_micros(draw.below(8000)));
        let answer = world.gather(0);
        assert_eq!(ranks(&answer).1, 20, "seed {seed} rank {victim}: {:?}", answer.lacks);
        assert!(answer.took < Duration::from_millis(300), "seed {seed}: {:?}", answer.took);
    }
}

#[test]
fn no_more_questions_are_answered_at_once_than_a_process_can_hold() {
    let mut world = World::new(2, 1, 1);
    world.set(1, State::Stopped);
    let taken: Vec<bool> = (0..6).map(|_| world.begins(0).is_some()).collect();
    assert_eq!(taken, [true, true, true, true, false, false]);
    // The other host holds as many, and says so of more.
    let mut world = World::new(3, 1, 1);
    let waves: Vec<u64> = [0, 0, 0, 2, 2].into_iter().filter_map(|asker| world.begins(asker)).collect();
    world.run(WHOLE);
    let answers: Vec<Answer> = waves.iter().map(|wave| world.answer(*wave)).collect();
    assert_eq!(answers.len(), 5);
    for answer in &answers {
        let busy = answer.lacks.iter().filter(|lack| lack.why.contains("answers too many questions"));
        assert_eq!(answer.rows.len() + busy.map(|lack| lack.ranks.len()).sum::<usize>(), 3, "{answer:?}");
    }
}

#[test]
fn peers_that_lie_change_nothing_of_what_others_tell() {
    for seed in 0..100 {
        let mut draw = Seed(seed).part(4);
        let (nhosts, each) = (2 + draw.place(20), 1 + draw.place(2));
        let mut world = World::new(nhosts, each, seed);
        let liar = each + draw.place(nhosts * each - each);
        world.lies(liar);
        let answer = world.gather(0);
        let rows: Vec<_> = answer.rows.iter().filter(|row| row.process.start_ticks == 0).collect();
        let told: BTreeSet<u32> = rows.iter().map(|row| row.process.pid).collect();
        let all: BTreeSet<u32> = (0..(nhosts * each) as u32).collect();
        assert_eq!((told, rows.len()), (all, nhosts * each), "seed {seed} {liar}");
        // Of the lies those of the asker's own host and those that are too large are dropped.
        let lies: Vec<_> = answer.rows.iter().filter(|row| row.process.start_ticks != 0).collect();
        assert!(lies.iter().all(|row| row.process.boot_id != "host 0"), "seed {seed}");
        assert!(lies.iter().all(|row| row.process.comms.len() < 1000), "seed {seed}");
        let whos: BTreeSet<_> = lies.iter().map(|row| row.process.pid).collect();
        assert_eq!(whos.len(), lies.len(), "seed {seed}: one lie told twice");
        assert!(answer.took < Duration::from_millis(300), "{:?}", answer.took);
        assert!(answer.lacks.iter().all(|lack| lack.ranks.iter().all(|rank| *rank < Rank(1 << 20))));
    }
}
