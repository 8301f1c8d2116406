//! The bootstrap on a simulated network: root, ranks and strangers in one process. A seed
//! determines the whole run.

use std::net::SocketAddr;
use std::time::Duration;

use super::auth::{Hello, Key, Nonce, PROTOCOL, Purpose};
use super::door::Door;
use super::fault::Fault;
use super::handshake::Handshake;
use super::id::UniqueId;
use super::machine::{Io, Machine, StreamId};
use super::member::Member;
use super::messages::Introduction;
use super::root::{Outcome, Root};
use super::sim_net::{Net, Node, Weather, chance, fill};
use crate::clock::Ns;
use crate::error::ErrorKind;
use crate::seed::Seed;
use crate::types::Rank;

const DEADLINE: Duration = Duration::from_secs(5);

/// The program of a rank: join; gather; send to a later rank and receive from an earlier one;
/// barrier; hand the ring over.
struct Program {
    member: Member,
    rank: u32,
    nranks: u32,
    /// One for the whole bootstrap.
    deadline: Ns,
    step: u32,
    result: Option<Result<(), Fault>>,
    heard: Vec<String>,
}

/// A client that connects and sends bytes that are no valid handshake.
struct Stranger {
    target: SocketAddr,
    says: Vec<u8>,
    then_leaves: bool,
    begun: bool,
    answer: Vec<u8>,
}

enum Actor {
    Root(Box<Door>),
    Rank(Box<Program>),
    Stranger(Stranger),
}

impl Program {
    fn new(id: &UniqueId, rank: u32, nranks: u32, now: Ns) -> Self {
        Self::with(id, rank, nranks, now, &[("CCL_ALGO", "ring")])
    }
    fn with(id: &UniqueId, rank: u32, nranks: u32, now: Ns, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string())).collect();
        let introduction =
            Introduction { contact: address(rank), settings, own: format!("own {rank}").into_bytes() };
        let deadline = now.after(DEADLINE);
        let member = Member::new(id.clone(), Rank(rank), nranks, introduction, now, deadline);
        Self { member, rank, nranks, deadline, step: 0, result: None, heard: Vec::new() }
    }

    fn block(rank: u32, round: u32) -> Vec<u8> {
        vec![(rank * 7 + round) as u8; (rank as usize * 13 + round as usize) % 40]
    }

    /// Goes one step further if the current one is complete; returns whether it did.
    fn step(&mut self, io: &mut Io<'_>) -> bool {
        let (n, deadline) = (self.nranks, self.deadline);
        let to = (self.rank + 1 + n / 3) % n;
        let from = (self.rank + 2 * n - 1 - n / 3) % n;
        let member = &mut self.member;
        match self.step {
            // In a large job, the rounds of joining and leaving are enough.
            0 if member.has_joined() && n > 100 => {
                self.step = 5;
                member.begin_round(&[], deadline, io);
            }
            0 if member.has_joined() => {
                let seen: Vec<&[u8]> = member.peers().iter().map(|peer| peer.own.as_slice()).collect();
                let expect: Vec<Vec<u8>> = (0..n).map(|r| format!("own {r}").into_bytes()).collect();
                assert_eq!(seen, expect);
                member.begin_round(&Self::block(self.rank, 1), deadline, io);
            }
            1 => {
                let Some(blocks) = member.end_round() else { return false };
                let expect: Vec<Vec<u8>> = (0..n).map(|r| Self::block(r, 1)).collect();
                assert_eq!(blocks, expect);
                member.begin_send(Rank(to), 8, b"second", deadline, io);
            }
            2 if member.end_send() => member.begin_send(Rank(to), 7, &[to as u8; 100], deadline, io),
            3 if member.end_send() => member.begin_receive(Rank(from), 7, deadline),
            4 => {
                let Some(bytes) = member.end_receive() else { return false };
                assert_eq!(bytes, [self.rank as u8; 100]);
                member.begin_receive(Rank(from), 8, deadline);
            }
            5 => {
                let Some(bytes) = member.end_receive() else { return false };
                assert_eq!(bytes, b"second");
                member.begin_round(&[], deadline, io);
            }
            6 => {
                if member.end_round().is_none() {
                    return false;
                }
                member.begin_end(deadline, io);
            }
            7 => {
                let Some(streams) = member.end(io) else { return false };
                assert_eq!(streams.len(), 2);
                streams.iter().for_each(|(stream, _)| io.close(*stream));
                self.result = Some(Ok(()));
            }
            _ => return false,
        }
        self.step += 1;
        true
    }
}

macro_rules! each {
    ($self:ident, $one:ident => $call:expr) => {
        match $self {
            Actor::Root($one) => $call,
            Actor::Rank(program) => {
                let $one = &mut program.member;
                $call
            }
            Actor::Stranger($one) => $call,
        }
    };
}

impl Machine for Actor {
    fn accepted(&mut self, stream: StreamId, from: SocketAddr, io: &mut Io<'_>) {
        each!(self, one => one.accepted(stream, from, io));
    }
    fn connected(&mut self, stream: StreamId, io: &mut Io<'_>) {
        each!(self, one => one.connected(stream, io));
    }
    fn bytes(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>) {
        each!(self, one => one.bytes(stream, bytes, io));
    }
    fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>) {
        each!(self, one => one.closed(stream, why, io));
    }
    fn turn(&mut self, io: &mut Io<'_>) {
        each!(self, one => one.turn(io));
    }
    fn wake(&self) -> Option<Ns> {
        match self {
            Self::Root(root) => root.wake(),
            Self::Rank(program) if program.result.is_some() => None,
            Self::Rank(program) => program.member.wake(),
            Self::Stranger(_) => None,
        }
    }
}

impl Node for Actor {
    fn advance(&mut self, io: &mut Io<'_>) {
        let Self::Rank(program) = self else { return };
        program.heard.extend(program.member.hear());
        while program.result.is_none() {
            if let Some(fault) = program.member.fault() {
                program.result = Some(Err(fault.clone()));
            } else if !program.step(io) {
                break;
            }
        }
    }
}

impl Machine for Stranger {
    fn accepted(&mut self, _: StreamId, _: SocketAddr, _: &mut Io<'_>) {}
    fn connected(&mut self, stream: StreamId, io: &mut Io<'_>) {
        io.send(stream, self.says.clone());
        if self.then_leaves {
            io.close(stream);
        }
    }
    fn bytes(&mut self, _: StreamId, bytes: &[u8], _: &mut Io<'_>) {
        self.answer.extend(bytes);
    }
    fn closed(&mut self, _: StreamId, _: &str, _: &mut Io<'_>) {}
    fn turn(&mut self, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.begun, true) {
            io.connect(self.target);
        }
    }
    fn wake(&self) -> Option<Ns> {
        None
    }
}

fn address(rank: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, (rank >> 8) as u8, rank as u8], 4000))
}
fn root_address() -> SocketAddr {
    SocketAddr::from(([10, 9, 9, 9], 5000))
}
fn stranger_address(at: usize) -> SocketAddr {
    SocketAddr::from(([6, 6, 6, at as u8], 6666))
}
fn id() -> UniqueId {
    UniqueId { magic: 77, root: root_address(), nranks: 0, key: Key([5; 32]), instance: 0, stretches: false }
}

/// A job in the network: node 0 is the root, node r + 1 is rank r.
struct Job {
    net: Net<Actor>,
    nranks: u32,
}

impl Job {
    fn new(seed: u64, weather: Weather, nranks: u32, present: impl Fn(u32) -> bool) -> Self {
        let mut job = Self::empty(seed, weather, nranks);
        let mut random = Seed(seed ^ 0xabc);
        for rank in 0..nranks {
            let after = Duration::from_micros(random.below(50_000));
            let program = Program::new(&id(), rank, nranks, job.net.now.after(after));
            let target = if present(rank) { address(rank) } else { stranger_address(200) };
            let actor = if present(rank) {
                Actor::Rank(Box::new(program))
            } else {
                Actor::Stranger(stranger(target, b"", false))
            };
            job.net.add(actor, target, after);
        }
        job
    }

    fn empty(seed: u64, weather: Weather, nranks: u32) -> Self {
        let mut net = Net::new(seed, weather);
        let id = id();
        let root = Root::new(id.key.clone(), id.asked(), id.comm(), id.magic, 0);
        let mut door = Door::default();
        door.add(root);
        net.add(Actor::Root(Box::new(door)), root_address(), Duration::ZERO);
        Self { net, nranks }
    }

    fn add(&mut self, rank: u32, program: Program, after: Duration) -> usize {
        self.net.add(Actor::Rank(Box::new(program)), address(rank), after)
    }

    /// Adds strangers of every kind, which connect to the listeners of root and ranks.
    fn annoy(&mut self, random: &mut Seed, count: usize) {
        for at in 0..count {
            let target = if chance(random, 400) {
                root_address()
            } else {
                address(random.below(u64::from(self.nranks)) as u32)
            };
            let mut noise = vec![0; random.below(300) as usize];
            fill(random, &mut noise);
            let hello = Hello::new(Purpose::Ring, id().job(), id().comm(), Rank(0), Rank(1));
            let mut wrong_key = Handshake::connect(Key([6; 32]), hello, Nonce([1; 32]));
            let begun = wrong_key.feed(&[], &|_, _| None).unwrap().to_send;
            let (says, leaves): (&[u8], bool) = match random.below(6) {
                0 => (&noise, false),
                1 => (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", false),
                2 => (b"", true),
                3 => (b"", false),
                4 => (&begun[..random.below(84) as usize], false),
                _ => (&begun, chance(random, 500)),
            };
            let after = Duration::from_micros(random.below(80_000));
            self.net.add(Actor::Stranger(stranger(target, says, leaves)), stranger_address(at), after);
        }
    }

    fn program(&self, rank: u32) -> &Program {
        self.program_at(rank as usize + 1)
    }
    fn program_at(&self, at: usize) -> &Program {
        match self.net.node(at) {
            Actor::Rank(program) => program,
            _ => panic!("node {at} is no rank"),
        }
    }
    fn outcome(&self) -> Option<&Outcome> {
        match self.net.node(0) {
            Actor::Root(door) => door.root(id().comm()).unwrap().outcome(),
            _ => panic!("node 0 is the root"),
        }
    }

    /// Runs to the end and a while longer, so that all streams that must be closed are.
    fn run(&mut self) {
        let until = self.net.now.after(DEADLINE * 4);
        self.net.run(until, |_| false);
    }

    fn fault(&self, rank: u32) -> &Fault {
        match &self.program(rank).result {
            Some(Err(fault)) => fault,
            other => panic!("rank {rank} ended with {other:?} at step {}", self.program(rank).step),
        }
    }

    fn ends(&self) -> String {
        let end = |rank| {
            format!("rank {rank} at step {}: {:?}", self.program(rank).step, self.program(rank).result)
        };
        (0..self.nranks).map(end).collect::<Vec<_>>().join("\n")
    }

    fn all_well(&self, why: &str) {
        for rank in 0..self.nranks {
            let program = self.program(rank);
            assert_eq!(program.result, Some(Ok(())), "rank {rank} at step {} ({why})", program.step);
            assert_eq!(self.net.open_streams(rank as usize + 1), 0, "streams of rank {rank} ({why})");
        }
        assert_eq!(self.outcome(), Some(&Outcome::Complete), "{why}");
    }
}

fn stranger(target: SocketAddr, says: &[u8], then_leaves: bool) -> Stranger {
    Stranger { target, says: says.to_vec(), then_leaves, begun: false, answer: Vec::new() }
}

fn weather(random: &mut Seed, resets: u64) -> Weather {
    Weather {
        latency: Duration::from_micros(1 + random.below(10_000)),
        cuts: chance(random, 500),
        resets,
        reset_within: Duration::from_millis(1 + random.below(200)),
    }
}

#[test]
fn ranks_of_any_number_join_gather_send_and_leave() {
    for nranks in 2..=16 {
        let mut job = Job::new(u64::from(nranks), Weather::FINE, nranks, |_| true);
        job.run();
        job.all_well(&format!("{nranks} ranks"));
    }
}

#[test]
fn a_seed_is_a_whole_run() {
    let run = |seed| {
        let mut random = Seed(seed);
        let mut job = Job::new(seed, weather(&mut random, 50), 7, |_| true);
        job.annoy(&mut random, 5);
        job.run();
        job.net.history
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// Delays, cut pieces, resets, deaths, stalls and strangers, at 2 to 16 ranks: no rank hangs, no
/// rank gets a false error, and no stranger is admitted. If one rank stalls, all others leave the
/// bootstrap or none does.
#[test]
fn a_thousand_seeds_of_bad_weather() {
    let (mut well, mut failed) = (0, 0);
    for seed in 0..1000 {
        let mut random = Seed(seed);
        let nranks = 2 + random.below(15) as u32;
        let kind = seed % 4;
        let why = format!("seed {seed}, {nranks} ranks, kind {kind}");
        let mut job = Job::new(seed, weather(&mut random, if kind == 1 { 60 } else { 0 }), nranks, |_| true);
        let strangers = random.below(6) as usize;
        job.annoy(&mut random, strangers);
        let victim = random.below(u64::from(nranks)) as u32;
        let moment = Duration::from_micros(random.below(400_000));
        match kind {
            2 => job.net.kill(victim as usize + 1, moment),
            3 => job.net.stall(victim as usize + 1, moment),
            _ => {}
        }
        job.run();
        if kind == 0 {
            job.all_well(&why);
        }
        if kind == 3 {
            let others = (0..nranks).filter(|rank| *rank != victim);
            let done: Vec<bool> =
                others.map(|rank| matches!(job.program(rank).result, Some(Ok(())))).collect();
            assert!(done.iter().all(|one| *one == done[0]), "all leave or none ({why}): {done:?}");
        }
        for rank in (0..nranks).filter(|rank| kind < 2 || *rank != victim) {
            let program = job.program(rank);
            match &program.result {
                None => panic!("rank {rank} hangs at step {} ({why})", program.step),
                Some(Ok(())) => well += 1,
                Some(Err(fault)) => {
                    failed += 1;
                    let blamed: Vec<u32> = fault.culprits.iter().map(|culprit| culprit.0).collect();
                    match kind {
                        1 => {
                            let touched = |rank: &u32| {
                                let node = *rank as usize + 1;
                                job.net.resets.iter().any(|(a, b)| *a == node || *b == node)
                            };
                            assert!(blamed.iter().all(touched), "{fault:?}, {:?} ({why})", job.net.resets);
                        }
                        _ => assert_eq!(blamed, [victim], "rank {rank}: {fault:?} ({why}); {}", job.ends()),
                    }
                }
            }
            assert_eq!(job.net.open_streams(rank as usize + 1), 0, "streams of rank {rank} ({why})");
        }
    }
    assert!(well > 1000 && failed > 1000, "{well} well, {failed} failed: the weather must do both");
}

/// Strangers that ask for the ring of this very job, and prove nothing, come faster than a
/// neighbour can authenticate. A rank whose door closes its neighbour's connection is not declared
/// dead.
#[test]
fn a_rank_that_a_crowded_door_pushed_out_comes_again() {
    for seed in 0..100 {
        let mut random = Seed(seed);
        let mut job = Job::new(seed, weather(&mut random, 0), 5, |_| true);
        let hello = Hello::new(Purpose::Ring, id().job(), id().comm(), Rank(9), Rank(1));
        let asks = Handshake::connect(Key([6; 32]), hello, Nonce([1; 32])).feed(&[], &|_, _| None);
        let asks = asks.unwrap().to_send;
        for at in 0..500 {
            let target = address(random.below(5) as u32);
            let after = Duration::from_micros(random.below(150_000));
            job.net.add(Actor::Stranger(stranger(target, &asks, false)), stranger_address(at % 200), after);
        }
        job.net.seats = 8;
        job.run();
        job.all_well(&format!("seed {seed}"));
    }
}

/// More ranks connect at one moment than the root has room for, and its door closes connections of
/// ranks that were about to authenticate.
#[test]
fn a_rank_that_the_roots_crowded_door_pushed_out_comes_again() {
    for seed in 0..50 {
        let mut random = Seed(seed);
        let mut job = Job::empty(seed, weather(&mut random, 0), 40);
        for rank in 0..40 {
            let program = Program::new(&id(), rank, 40, job.net.now);
            job.add(rank, program, Duration::ZERO);
        }
        job.net.seats = 4;
        job.run();
        job.all_well(&format!("seed {seed}"));
    }
}

#[test]
fn a_missing_rank_is_named_while_waiting_and_at_the_deadline() {
    let mut job = Job::new(1, Weather::FINE, 6, |rank| rank != 4);
    job.run();
    for rank in [0, 1, 2, 3, 5] {
        let fault = job.fault(rank);
        assert_eq!((fault.kind, fault.culprits.as_slice()), (ErrorKind::Timeout, &[Rank(4)][..]));
        assert!(fault.text.contains("5/6 in, waiting for rank 4"), "{}", fault.text);
        let heard = &job.program(rank).heard;
        assert!(
            heard.len() >= 4 && heard.iter().all(|text| text == "5/6 in, waiting for rank 4"),
            "{heard:?}"
        );
    }
}

#[test]
fn without_a_root_the_error_says_where_it_was_looked_for() {
    let mut job = Job::new(1, Weather::FINE, 2, |_| true);
    job.net.kill(0, Duration::ZERO);
    job.run();
    let fault = job.fault(1);
    assert!(
        fault.text.contains("10.9.9.9:5000") && fault.text.contains("connection refused"),
        "{}",
        fault.text
    );
}

#[test]
fn a_duplicate_rank_and_another_world_size_are_told_and_survived() {
    let mut job = Job::new(1, Weather::FINE, 3, |_| true);
    let now = job.net.now;
    let late = Duration::from_millis(60);
    let twin = job.net.add(
        Actor::Rank(Box::new(Program::new(&id(), 1, 3, now))),
        stranger_address(1),
        Duration::from_millis(1),
    );
    let other = job.net.add(Actor::Rank(Box::new(Program::new(&id(), 2, 8, now))), stranger_address(2), late);
    job.run();
    // Which of the two processes with rank 1 comes first is random. The second is refused; if the
    // first is the real rank 1, the job goes on.
    let twins = [&job.program(1).result, &job.program_at(twin).result];
    let refused = twins.iter().filter(|result| {
        matches!(result, Some(Err(fault)) if fault.kind == ErrorKind::Usage && fault.text.contains("rank 1 checked in twice"))
    });
    assert_eq!(refused.count(), 1, "{twins:?}");
    match &job.program_at(other).result {
        Some(Err(fault)) => assert!(
            fault.kind == ErrorKind::Mismatch && fault.text.contains("has 8 ranks, the root knows of 3"),
            "{fault:?}"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_strangers_and_doubles_did_is_in_the_error_of_those_who_wait() {
    let mut job = Job::new(1, Weather::FINE, 3, |rank| rank != 2);
    let now = job.net.now;
    let late = Duration::from_millis(100);
    // Rank 2 was started as rank 1 by mistake, and another process speaks another protocol version.
    job.net.add(Actor::Rank(Box::new(Program::new(&id(), 1, 3, now))), stranger_address(1), late);
    let newer = Hello {
        version: PROTOCOL + 1,
        count: 3,
        ..Hello::new(Purpose::Root, id().asked(), id().comm(), Rank(2), Rank(0))
    };
    let says = Handshake::connect(id().key, newer, Nonce([3; 32])).feed(&[], &|_, _| None).unwrap().to_send;
    let newer =
        job.net.add(Actor::Stranger(stranger(root_address(), &says, false)), stranger_address(2), late);
    job.run();
    let text = &job.fault(0).text;
    assert!(text.contains("waiting for rank 2") && text.contains("rank 1 checked in twice"), "{text}");
    let versions = format!("protocol version {}, this process speaks version {PROTOCOL}", PROTOCOL + 1);
    assert!(text.contains(&versions), "{text}");
    let Actor::Stranger(newer) = job.net.node(newer) else { panic!() };
    assert!(!newer.answer.is_empty(), "it is told our version");
}

#[test]
fn differing_settings_fail_on_all_ranks_with_one_text() {
    let mut job = Job::empty(1, Weather::FINE, 4);
    for rank in 0..4 {
        let algo = if rank == 2 { "direct" } else { "ring" };
        let program = Program::with(&id(), rank, 4, job.net.now, &[("CCL_ALGO", algo)]);
        job.add(rank, program, Duration::ZERO);
    }
    job.run();
    for rank in 0..4 {
        let fault = job.fault(rank);
        assert_eq!(fault.kind, ErrorKind::Mismatch);
        assert_eq!(
            fault.text,
            "CCL_ALGO must be equal on all ranks: rank 0 has \"ring\", rank 2 has \"direct\""
        );
    }
}

#[test]
fn a_wrong_secret_is_said_to_the_one_who_has_it() {
    let mut job = Job::empty(1, Weather::FINE, 2);
    let wrong = UniqueId { key: Key([6; 32]), ..id() };
    let now = job.net.now;
    let rank = job.add(1, Program::new(&wrong, 1, 2, now), Duration::ZERO);
    job.run();
    match &job.program_at(rank).result {
        Some(Err(fault)) => {
            assert!(fault.text.contains("10.9.9.9:5000: it does not know the secret"), "{fault:?}");
            assert!(fault.text.contains("CCL_JOB_SECRET must be equal"), "{fault:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_came_without_the_secret_is_said_to_those_who_wait_and_what_to_look_at() {
    let mut job = Job::empty(1, Weather::FINE, 2);
    let wrong = UniqueId { key: Key([6; 32]), ..id() };
    let now = job.net.now;
    job.add(0, Program::new(&id(), 0, 2, now), Duration::ZERO);
    job.add(1, Program::new(&wrong, 1, 2, now), Duration::from_millis(10));
    for at in 0..6 {
        let scan = stranger(root_address(), b"GET / HTTP/1.1\r\n\r\n", false);
        job.net.add(Actor::Stranger(scan), stranger_address(9), Duration::from_millis(50 + at));
    }
    job.run();
    let fault = job.fault(0);
    let expect = "1/2 in, waiting for rank 1; 7 connections came without proof of this job's secret, from 6.6.6.9 (it does \
                  not speak ccl: it said \"GET / HT\") 6 times, 10.0.0.1, which calls itself rank 1 \
                  (it has another CCL_JOB_SECRET than this process, or one of the two has none): see that CCL_JOB_SECRET is \
                  equal on all ranks, or unset on all";
    assert!(fault.text.contains(expect), "{}", fault.text);
    let error = fault.clone().into_error(Rank(0)).to_string();
    // Rank 1 was started and reached the root: a hint to check that would contradict the text.
    assert!(error.ends_with("equal on all ranks, or unset on all"), "{error}");
}

/// The number of ranks of a large job, through the same code.
#[test]
fn a_thousand_and_twenty_four_ranks() {
    let mut job = Job::new(1, Weather::FINE, 1024, |_| true);
    job.run();
    job.all_well("1024 ranks");
}
