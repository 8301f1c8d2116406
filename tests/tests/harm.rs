//! Harm at any message of any collective, on ranks of two hosts that wait at most 1 s: each rank
//! gets the right result, or an error that names the rank or the link. CI harms a few messages of
//! each kind, the long size all.
#![expect(clippy::print_stdout, reason = "a test that shows its figures")]

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ccl::clock;
use ccl::seed::Seed;
use ccl_tests::hosts::Hosts;
use ccl_tests::job::PATIENCE;
use ccl_tests::perf::{KINDS, Ranks};
use ccl_tests::programs::text;
use ccl_tests::relay::{Harm, Relays, Run};
use ccl_tests::size::is_long;
use rustix::process::{Pid, Signal, kill_process};

/// What happens when a message comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum What {
    Delay,
    Drop,
    Close,
    Flip,
    Stop,
    Kill,
}

impl What {
    const ALL: [Self; 6] = [Self::Delay, Self::Drop, Self::Close, Self::Flip, Self::Stop, Self::Kill];

    const fn harm(self) -> Harm {
        match self {
            Self::Delay => Harm::Delay(Duration::from_millis(30)),
            Self::Drop => Harm::Drop,
            Self::Close => Harm::Close,
            Self::Flip => Harm::Flip,
            Self::Stop | Self::Kill => Harm::Tell,
        }
    }
    /// Whether it is done to a rank, not to a message.
    const fn is_of_rank(self) -> bool {
        matches!(self, Self::Stop | Self::Kill)
    }
}

/// When it happens.
#[derive(Clone, Copy, Debug)]
enum When {
    /// As this message between hosts comes, counted from 1.
    Message(u64),
    /// So long after the start, on one host, where no message can be seen from outside.
    After(Duration),
}

/// One harm to the ranks of a job that makes calls of one kind.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: &'static str,
    nranks: u32,
    what: What,
    when: When,
    /// The rank that is stopped or killed.
    victim: u32,
    seed: u64,
}

/// Two hosts, with a relay between them.
struct Network {
    hosts: Hosts,
    relays: Relays,
}

impl Case {
    fn ranks<'a>(&self, network: &'a Network) -> Ranks<'a> {
        let Self { kind, nranks, .. } = *self;
        let root = if ["broadcast", "reduce", "gather", "scatter"].contains(&kind) { nranks - 1 } else { 0 };
        let line = format!("{kind} -d int32 -b 40000 -e 40000 -n 1 -w 0 -c 1 -r {root}");
        let variables = [("CCL_TIMEOUT", "1"), ("CCL_INIT_TIMEOUT", "3"), ("CCL_CHECKSUM", "1")];
        let variables = variables.map(|(name, value)| (name, value.to_string())).to_vec();
        let hosts = matches!(self.when, When::Message(_)).then_some(&network.hosts);
        Ranks { nranks, line, hosts, variables }
    }

    fn is_stopped(&self, rank: usize) -> bool {
        self.what == What::Stop && rank == self.victim as usize
    }

    /// How each rank ended, the number of messages that passed, and how long it took.
    fn carry_out(&self, network: &Network) -> Result<(Vec<Output>, u64, Duration), String> {
        let harm = match self.when {
            When::Message(at) => Some((at, self.what.harm())),
            When::After(_) => None,
        };
        let run = Run::new(harm, self.seed);
        network.relays.begin(&run);
        let began = clock::now();
        let mut job = self.ranks(network).start();
        let mut is_harmed = false;
        loop {
            let took = clock::now().since(began);
            let is_due = match self.when {
                When::Message(_) => run.is_told(),
                When::After(time) => took >= time,
            };
            if is_due && !is_harmed && self.what.is_of_rank() {
                is_harmed = true;
                let signal = if self.what == What::Stop { Signal::STOP } else { Signal::KILL };
                let _ = kill_process(Pid::from_child(&job.ranks[self.victim as usize]), signal);
                run.go_on();
            }
            let mut others = job.ranks.iter_mut().enumerate().filter(|(rank, _)| !self.is_stopped(*rank));
            if others.all(|(_, rank)| rank.try_wait().is_ok_and(|status| status.is_some())) {
                break;
            }
            if took >= PATIENCE {
                return Err("it hangs".into());
            }
            clock::sleep(Duration::from_millis(1));
        }
        let took = clock::now().since(began);
        for rank in &mut job.ranks {
            let _ = rank.kill();
        }
        Ok((job.end(), run.passed(), took))
    }

    /// In a word how it ended, or what is wrong.
    fn judge(&self, ended: &[Output]) -> Result<&'static str, String> {
        let said = |one: &Output| {
            text(one).lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
        };
        let all = || ended.iter().map(|one| format!("{}\n{}\n", one.status, said(one))).collect::<String>();
        let is_victim = |rank: usize| self.what.is_of_rank() && rank == self.victim as usize;
        let others = ended.iter().enumerate().filter(|(rank, _)| !is_victim(*rank));
        if others.clone().any(|(_, one)| text(one).contains("FAILED") || text(one).contains("panicked")) {
            return Err(all());
        }
        let mut failed = others.filter(|(_, one)| !one.status.success()).peekable();
        if failed.peek().is_none() {
            return Ok("right");
        }
        // An error begins with the rank that has it.
        let names_another = |rank: u32, text: &str| {
            let mut others = (0..self.nranks).filter(|other| *other != rank);
            others.any(|other| names_rank(text, other)) || text.contains("bootstrap root")
        };
        let error_of = |one: &Output| {
            let text = text(one);
            text.lines().find(|line| line.starts_with("error: ")).unwrap_or_default().to_string()
        };
        // Who comes when rank 0 has given up already can only name rank 0, which names the victim.
        let is_known_to_0 = !is_victim(0) && names_rank(&error_of(&ended[0]), self.victim);
        let is_late = |error: &str| error.contains("rank 0 did not offer an id") && is_known_to_0;
        let is_error = |(rank, one): (usize, &Output)| {
            let error = error_of(one);
            let is_named = match self.what {
                What::Stop | What::Kill => {
                    let is_root = self.victim == 0 && error.contains("bootstrap root");
                    names_rank(&error, self.victim) || is_root || is_late(&error)
                }
                What::Drop | What::Close | What::Flip => names_another(rank as u32, &error),
                What::Delay => false,
            };
            one.status.code() == Some(1) && is_named
        };
        if failed.all(is_error) { Ok("an error") } else { Err(all()) }
    }
}

/// Whether a text names this rank, alone or as one of several: "rank 3", "ranks 0-2, 5".
fn names_rank(text: &str, rank: u32) -> bool {
    let is_of_list = |next: char| next.is_ascii_digit() || ", -".contains(next);
    let lists = text.split("rank").skip(1).map(|rest| rest.trim_start_matches('s'));
    let lists = lists.map(|rest| rest.split(|next| !is_of_list(next)).next().unwrap_or_default());
    lists.flat_map(|list| list.split(',')).any(|run| {
        let (first, last) = run.trim().split_once('-').unwrap_or_else(|| (run.trim(), run.trim()));
        first.parse().is_ok_and(|first: u32| first <= rank)
            && last.parse().is_ok_and(|last: u32| rank <= last)
    })
}

#[test]
fn who_is_named_is_read_from_an_error() {
    let text = "comm world: rank 10: ranks 0-2, 5 and rank 7 are late";
    let named: Vec<u32> = (0..12).filter(|rank| names_rank(text, *rank)).collect();
    assert_eq!(named, [0, 1, 2, 5, 7, 10]);
}

/// The harms to a kind, of which a run without harm has so many messages between hosts, or takes
/// so long on one.
fn cases(plain: &Case, messages: u64, time: Duration, draw: &mut Seed) -> Vec<Case> {
    const MOMENTS: u32 = 40;
    let mut cases = Vec::new();
    let mut add = |what: What, when: When, draw: &mut Seed| {
        let (victim, seed) = (draw.below(plain.nranks.into()) as u32, draw.below(u64::MAX));
        cases.push(Case { what, when, victim, seed, ..*plain });
    };
    for what in What::ALL {
        let drawn = 1 + draw.below(messages);
        for at in if is_long() { 1..=messages } else { drawn..=drawn } {
            add(what, When::Message(at), draw);
        }
        let drawn = draw.below(MOMENTS.into()) as u32;
        for at in if is_long() { 0..=MOMENTS } else { drawn..=drawn } {
            if what.is_of_rank() {
                add(what, When::After(time * at / MOMENTS), draw);
            }
        }
    }
    cases
}

/// What has come of it so far.
#[derive(Default)]
struct Counted {
    ends: BTreeMap<(What, &'static str), u32>,
    wrong: Vec<String>,
}

/// All harms to a kind.
fn harm(kind: &'static str, seed: u64, network: &Network) -> Counted {
    let mut draw = Seed(seed);
    let nranks = 2 + draw.below(3) as u32;
    let plain = Case { kind, nranks, what: What::Delay, when: When::Message(0), victim: 0, seed: 0 };
    let mut counted = Counted::default();
    let (ended, messages, time) = match plain.carry_out(network) {
        Ok(plain) => plain,
        Err(why) => return Counted { wrong: vec![format!("{plain:?}: {why}")], ..counted },
    };
    if let Err(why) = plain.judge(&ended) {
        return Counted { wrong: vec![format!("{plain:?}\n{why}")], ..counted };
    }
    for case in cases(&plain, messages, time, &mut draw) {
        match case.carry_out(network).and_then(|(ended, ..)| case.judge(&ended)) {
            Ok(how) => *counted.ends.entry((case.what, how)).or_default() += 1,
            Err(why) => {
                // At once: the long size takes an hour.
                println!("wrong: {case:?}\n{why}");
                counted.wrong.push(format!("{case:?}\n{why}"));
            }
        }
    }
    println!("{kind}, {nranks} ranks, {messages} messages: {:?}", counted.ends);
    counted
}

/// Several kinds at a time, each on a network of its own: most of the time is spent waiting.
#[test]
fn harm_at_any_message_ends_in_a_right_result_or_a_true_error() {
    if Hosts::for_test("harm_at_any_message_ends_in_a_right_result_or_a_true_error").is_none() {
        return;
    }
    let at_once = if is_long() { KINDS.len() } else { 3 };
    let next = AtomicUsize::new(0);
    let work = || {
        let hosts = Hosts::new().expect("namespaces can be made");
        let network = Network { relays: Relays::between(&hosts), hosts };
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < KINDS.len());
        std::iter::from_fn(take).map(|at| harm(KINDS[at], at as u64, &network)).collect::<Vec<_>>()
    };
    let all: Vec<Counted> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let cases: u32 = all.iter().flat_map(|one| one.ends.values()).sum();
    let wrong: Vec<&String> = all.iter().flat_map(|one| &one.wrong).collect();
    println!("cases: harm {}", cases as usize + wrong.len());
    // A harm that never does any harm tests nothing.
    for what in What::ALL.into_iter().filter(|what| *what != What::Delay) {
        assert!(all.iter().any(|one| one.ends.contains_key(&(what, "an error"))), "{what:?} harmed nobody");
    }
    assert!(wrong.is_empty(), "{} are wrong: {wrong:#?}", wrong.len());
}
