//! Readings of several processes as one job.

use super::*;
use crate::diagnose::jobs;
use crate::snapshot::{Class, FailureSnapshot, InitSnapshot, OpSnapshot, OpState, Overflow};
use crate::types::JobId;

/// The largest of their jobs.
fn merged(given: &[Given], unreachable: &[Unreachable]) -> Snapshot {
    let jobs = jobs(given.iter().map(|one| &one.process));
    merge(given, &jobs.into_iter().next().unwrap_or_default(), unreachable)
}

fn comm(job: u64, rank: u32, world: u32, nranks: u32) -> CommSnapshot {
    CommSnapshot {
        id: CommId(1),
        job: JobId(job),
        rank: Rank(rank),
        world: Rank(world),
        nranks,
        ..CommSnapshot::default()
    }
}

fn process(pid: u32, comms: Vec<CommSnapshot>) -> Given {
    let process = ProcessSnapshot {
        pid,
        host: "a".into(),
        alive: true,
        path: format!("/{pid}.rec"),
        comms,
        ..ProcessSnapshot::default()
    };
    Given { process, source: Source::Mapping, letter: Some('S'), ended: false }
}

fn peer(world: u32, pid: u32) -> PeerSnapshot {
    PeerSnapshot {
        world: Rank(world),
        pid,
        host: "b".into(),
        recorder: format!("/{pid}.rec"),
        ..PeerSnapshot::default()
    }
}

#[test]
fn a_communicator_has_the_name_that_its_lowest_rank_gives_it() {
    let named = |rank: u32, name: &str| CommSnapshot { name: name.into(), ..comm(7, rank, rank, 3) };
    let given = [process(13, vec![named(2, "world")]), process(12, vec![named(1, "world/grown")])];
    let seen = merged(&given, &[]);
    assert!(seen.ranks.iter().all(|rank| rank.comms[0].name == "world/grown"), "{:?}", seen.ranks);
    assert!(seen.clone().narrow("world/grown").is_ok() && seen.clone().narrow("world").is_err());
}

#[test]
fn ranks_that_were_not_read_are_listed_with_the_reason() {
    let mut known = comm(7, 0, 0, 4);
    known.peers = vec![peer(2, 22), peer(3, 33)];
    // Two ranks of one process; one is also rank 0 of a split.
    let given = [process(11, vec![known, comm(7, 1, 1, 4), comm(7, 0, 1, 2)])];
    let tried = [Unreachable {
        recorder: "/22.rec".into(),
        why: "permission denied".into(),
        ..Unreachable::default()
    }];
    let job = merged(&given, &tried);
    assert_eq!(job.job, JobId(7));
    assert_eq!(job.ranks.iter().map(|r| (r.rank.0, r.comms.len())).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
    assert!(!job.complete);
    let why: Vec<_> = job.missing.iter().map(|m| (m.rank.0, m.pid, m.why.as_str())).collect();
    assert_eq!(why, [(2, 22, "permission denied"), (3, 33, "its recorder /33.rec was not read")]);
    assert!(job.ranks.iter().all(|rank| rank.comms.iter().all(|comm| comm.peers.is_empty())));
    let other = merged(&[process(11, vec![comm(8, 0, 0, 9)])], &[]);
    assert_eq!(other.missing.len(), 8);
    assert_eq!(other.missing[0].why, "no rank that was read says where it is");
    assert!(!merged(&[], &[]).complete);
}

#[test]
fn who_died_where_a_later_run_meets_is_no_rank_of_it() {
    let joins = |rank: u32, made_s: u64| {
        let mut one = process(70 + rank, vec![comm(7, rank, rank, 4)]);
        one.process.comms[0].init = Some(InitSnapshot::default());
        one.process.made_real_ns = made_s * 1_000_000_000;
        one
    };
    let mut dead = joins(3, 1);
    (dead.process.alive, dead.letter, dead.process.to_real_ns) = (false, None, 9_000_000_000);
    let read = |given: &[Given]| merged(given, &[]).ranks.iter().map(|rank| rank.rank.0).collect::<Vec<_>>();
    assert_eq!(read(&[joins(0, 20), joins(1, 21), dead.clone()]), [0, 1]);
    // Soon after it, they may be of the same run; not where its rank was started again.
    assert_eq!(read(&[joins(0, 10), joins(1, 11), dead.clone()]), [0, 1, 3]);
    let again = merged(&[joins(0, 10), joins(3, 11), dead.clone()], &[]);
    assert_eq!(again.ranks.iter().map(|rank| rank.state).collect::<Vec<_>>(), [State::Running; 2]);
    assert!(
        again.notes.iter().any(|note| note.starts_with("1 process that ended in an earlier")),
        "{again:?}"
    );
    let mut failed = Given { ended: true, ..dead.clone() };
    failed.process.left = true;
    assert_eq!(read(&[joins(0, 20), joins(1, 21), failed]), [0, 1]);
    // The later run has ended too.
    let [first, second] = [joins(0, 20), joins(1, 21)].map(|mut one| {
        (one.process.alive, one.letter, one.process.to_real_ns) = (false, None, 22_000_000_000);
        one
    });
    assert_eq!(read(&[first, second, dead.clone()]), [0, 1]);
    // One that lives has seen it; or none lives; or it had joined.
    assert_eq!(read(&[joins(0, 8), joins(1, 21), dead.clone()]), [0, 1, 3]);
    assert_eq!(read(&[dead.clone()]), [3]);
    dead.process.comms[0].init = None;
    assert_eq!(read(&[joins(0, 20), dead]), [0, 3]);
}

#[test]
fn a_job_that_got_another_id_while_it_was_read_has_that_id() {
    let job = Job { ids: BTreeSet::from([JobId(6), JobId(7)]), ..Job::from(JobId(6)) };
    let given = [process(9, vec![comm(7, 0, 0, 2)]), process(10, vec![comm(7, 1, 1, 2)])];
    let seen = merge(&given, &job, &[]);
    assert_eq!(seen.job, JobId(7));
    assert_eq!(seen.ranks.iter().map(|rank| rank.pid).collect::<Vec<_>>(), [9, 10]);
    assert_eq!(merge(&[], &job, &[]).job, JobId(6));
    let still = [process(11, vec![comm(6, 0, 0, 2)]), given[1].clone()];
    assert_eq!(merge(&still, &job, &[]).job, JobId(6));
}

#[test]
fn communicators_without_a_row_are_counted_aloud_once() {
    let notes = |counts: &[u64]| {
        let given = |(rank, count): (u32, &u64)| {
            let mut one = process(70 + rank, vec![comm(7, rank, rank, counts.len() as u32)]);
            let comms = Overflow { table: "Comms".into(), rows: 20 };
            (one.process.comms_without_row, one.process.overflow) = (*count, vec![comms]);
            one
        };
        let given: Vec<Given> = (0..).zip(counts).map(given).collect();
        let job = merged(&given, &[]);
        assert_eq!(job.is_all_seen(), counts.iter().all(|count| *count == 0));
        job.notes
    };
    let unseen = "no row in its recorder: what happens there is not seen";
    let of_each = format!("16 communicators of each process of ranks 0-2 have {unseen}");
    assert_eq!(notes(&[16, 16, 16]), [of_each]);
    let ended = "pid 70 on a: 20 rows of Comms found no place in its recorder and are not shown";
    let one = format!("1 communicator of pid 71 on a (rank 1) has {unseen}");
    assert_eq!(notes(&[0, 1]), [ended.into(), one]);
}

#[test]
fn a_job_that_went_on_after_a_death_is_judged_by_what_it_does_now() {
    let verdicts = |keeps: bool| {
        let mut dead = process(73, vec![comm(7, 3, 3, 4)]);
        (dead.process.alive, dead.letter) = (false, None);
        let survivor = |rank: u32| {
            let (error, blamed) = ("Peer".into(), Some(Rank(3)));
            let mut old = comm(7, rank, rank, 4);
            old.ended = !keeps;
            old.failure = Some(FailureSnapshot { error, blamed, ..FailureSnapshot::default() });
            let mut new = CommSnapshot { id: CommId(2), ..comm(7, rank, rank, 3) };
            let (called, state) = if rank == 2 { (4, OpState::Idle) } else { (5, OpState::Running) };
            (new.op.seq, new.op.called, new.op.state) = (called, called, state);
            (new.op.kind, new.op.age_ns) = ("Barrier".into(), 60_000_000_000);
            process(70 + rank, vec![old, new])
        };
        let given: Vec<Given> = (0..3).map(survivor).chain([dead]).collect();
        let mut job = merged(&given, &[]);
        job.judge(Some(&job.clone()), 30_000_000_000);
        (job.verdicts.iter().map(|one| one.class).collect::<Vec<_>>(), job.notes)
    };
    let went_on = "0000000000000001 failed (Peer, by rank 3); the ranks that were left went on in other \
                   communicators";
    assert_eq!(verdicts(false), (vec![Class::NotJoined], vec![went_on.into()]));
    assert_eq!(verdicts(true), (vec![Class::PeerDead, Class::NotJoined], Vec::new()));
}

#[test]
fn what_only_the_moments_of_reading_tell_is_not_said() {
    let blocked_on = |read_apart_ns: u64| {
        let mut given = [process(11, vec![comm(7, 0, 0, 2)]), process(12, vec![comm(7, 1, 1, 2)])];
        (given[0].process.from_real_ns, given[0].process.to_real_ns) = (1_000, 1_100);
        (given[1].process.from_real_ns, given[1].process.to_real_ns) =
            (1_000 + read_apart_ns, 1_100 + read_apart_ns);
        // Rank 1, read later, is in a call that rank 0 had not made when it was read.
        (given[0].process.comms[0].op.called, given[0].process.comms[0].op.seq) = (4, 4);
        let op = &mut given[1].process.comms[0].op;
        (op.state, op.called, op.seq, op.age_ns) = (OpState::Running, 5, 5, 10_000);
        merged(&given, &[]).blocked_on.iter().map(|one| one.missing.clone()).collect::<Vec<_>>()
    };
    assert_eq!(blocked_on(5_000), [vec![Rank(0)]]);
    assert!(blocked_on(20_000).is_empty());
}

#[test]
fn a_step_of_the_wall_clock_between_two_readings_hides_no_wait() {
    const HOUR: u64 = 3_600_000_000_000;
    let mut given = [process(11, vec![comm(7, 0, 0, 2)]), process(12, vec![comm(7, 1, 1, 2)])];
    for (one, (mono, real)) in given.iter_mut().zip([(1_000, 9 * HOUR), (2_000, 10 * HOUR)]) {
        (one.process.from_mono_ns, one.process.to_mono_ns) = (mono, mono + 100);
        (one.process.from_real_ns, one.process.to_real_ns) = (real, real + 100);
    }
    let op = &mut given[1].process.comms[0].op;
    (op.state, op.called, op.seq, op.age_ns) = (OpState::Running, 5, 5, 3_000_000_000);
    let blocked_on = merged(&given, &[]).blocked_on;
    assert_eq!(blocked_on.iter().map(|one| one.missing.clone()).collect::<Vec<_>>(), [vec![Rank(0)]]);
}

#[test]
fn what_those_did_who_were_ended_together_is_told_as_of_one_moment() {
    const MS: u64 = 1_000_000;
    let ages = |silent_ms: u64, change: &dyn Fn(&mut [Given])| {
        let mut given = [process(11, vec![comm(7, 0, 0, 2)]), process(12, vec![comm(7, 1, 1, 2)])];
        for (one, before_ms) in given.iter_mut().zip([silent_ms, 0]) {
            (one.process.alive, one.letter) = (false, None);
            one.process.to_mono_ns = (60_000 - before_ms) * MS;
            one.process.comms[0].op =
                OpSnapshot { kind: "Barrier".into(), age_ns: 3_400 * MS, ..OpSnapshot::default() };
        }
        change(&mut given);
        merged(&given, &[]).ranks.iter().map(|rank| rank.comms[0].op.age_ns / MS).collect::<Vec<_>>()
    };
    assert_eq!(ages(800, &|_| {}), [4_200, 3_400]);
    // It fell silent first: it may have ended before.
    assert_eq!(ages(1_500, &|_| {}), [3_400, 3_400]);
    // One process lives, or has failed, or is of another kernel, which has another clock.
    assert_eq!(ages(800, &|given| given[1].process.alive = true), [3_400, 3_400]);
    assert_eq!(ages(800, &|given| given[0].process.comms[0].op.state = OpState::Failed), [3_400, 3_400]);
    assert_eq!(ages(800, &|given| given[0].process.boot_id = "other".into()), [3_400, 3_400]);
}

#[test]
fn the_state_is_that_of_the_lock_then_of_the_letter() {
    let mut one = process(1, vec![]);
    let mut state = |alive, left, letter| {
        (one.process.alive, one.process.left, one.letter) = (alive, left, letter);
        one.state()
    };
    assert_eq!(state(true, false, None), State::Running);
    assert_eq!(state(true, false, Some('D')), State::Running);
    assert_eq!(state(true, false, Some('T')), State::Stopped);
    assert_eq!(state(true, false, Some('t')), State::Stopped);
    assert_eq!(state(true, false, Some('Z')), State::Dead);
    assert_eq!(state(true, true, Some('Z')), State::Exited);
    assert_eq!(state(false, false, Some('S')), State::Dead);
    // A recorder that was given back does not mean that its process ended.
    assert_eq!(state(false, true, None), State::Left);
    assert_eq!(state(false, true, Some('S')), State::Left);
    assert_eq!(state(false, true, Some('Z')), State::Exited);
    (one.ended, one.letter) = (true, None);
    assert_eq!(one.state(), State::Exited);
}

#[test]
fn of_two_recorders_of_a_rank_the_living_one_is_shown() {
    let mut old = process(1, vec![comm(7, 0, 0, 1)]);
    old.process.alive = false;
    old.process.made_real_ns = 9;
    let new = process(2, vec![comm(7, 0, 0, 1)]);
    for given in [[old.clone(), new.clone()], [new, old]] {
        let job = merged(&given, &[]);
        assert_eq!(job.ranks[0].pid, 2);
        assert_eq!(job.notes, ["rank 0 has two recorders: /2.rec of pid 2 is shown, /1.rec of pid 1 is not"]);
        assert!(job.complete);
    }
}
