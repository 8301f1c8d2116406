//! Harm at any message of any collective, on ranks of two hosts that wait at most 1 s: each rank
//! gets the right result, or an error that names the rank or the link. CI harms a few messages of
//! each kind, the long size all.
#![expect(clippy::print_stdout, reason = "a test that shows its figures")]

use std::collections::BTreeMap;
use std::process::Output;
use std::time::Duration;

use ccl::clock;
use ccl::config::environment;
use ccl::seed::Seed;
use ccl_tests::hosts::Hosts;
use ccl_tests::job::PATIENCE;
use ccl_tests::perf::Ranks;
use ccl_tests::programs::text;
use ccl_tests::relay::{Harm, Relays, Run};
use rustix::process::{Pid, Signal, kill_process};

const KINDS: [&str; 12] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send_recv",
    "alltoall",
    "gather",
    "scatter",
    "all_gatherv",
    "reduce_scatterv",
    "alltoallv",
];

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
}

/// One harm.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: &'static str,
    nranks: u32,
    what: What,
    at: u64,
    /// The rank that is stopped or killed.
    victim: u32,
    seed: u64,
}

impl Case {
    fn ranks(self, hosts: &Hosts) -> Ranks<'_> {
        let Self { kind, nranks, .. } = self;
        let root = if ["broadcast", "reduce", "gather", "scatter"].contains(&kind) { nranks - 1 } else { 0 };
        let line = format!("{kind} -d int32 -b 40000 -e 40000 -n 1 -w 0 -c 1 -r {root}");
        let variables = [("CCL_TIMEOUT", "1"), ("CCL_INIT_TIMEOUT", "3"), ("CCL_CHECKSUM", "1")];
        let variables = variables.map(|(name, value)| (name, value.to_string())).to_vec();
        Ranks { nranks, line, hosts: Some(hosts), variables }
    }

    /// How each rank ended, and the number of messages that passed.
    fn carry_out(self, hosts: &Hosts, relays: &Relays, harm: Option<Harm>) -> (Vec<Output>, u64) {
        let run = Run::new(harm.map(|harm| (self.at, harm)), self.seed);
        relays.begin(&run);
        let mut job = self.ranks(hosts).start();
        let end = clock::now().after(PATIENCE);
        let is_victim = |rank: usize| matches!(self.what, What::Stop) && rank == self.victim as usize;
        loop {
            if run.is_told() {
                let victim = &job.ranks[self.victim as usize];
                let signal = if self.what == What::Stop { Signal::STOP } else { Signal::KILL };
                let _ = kill_process(Pid::from_child(victim), signal);
                run.go_on();
            }
            let mut others = job.ranks.iter_mut().enumerate().filter(|(rank, _)| !is_victim(*rank));
            if others.all(|(_, rank)| rank.try_wait().is_ok_and(|status| status.is_some())) {
                break;
            }
            if clock::now() >= end {
                println!("{self:?}: it hangs");
                break;
            }
            clock::sleep(Duration::from_millis(2));
        }
        for rank in &mut job.ranks {
            let _ = rank.kill();
        }
        let passed = run.passed();
        (job.end(), passed)
    }

    /// In a word how it ended, or what is wrong.
    fn judge(self, ended: &[Output]) -> Result<&'static str, String> {
        let all = || ended.iter().map(|one| format!("{}\n{}", one.status, text(one))).collect::<String>();
        let is_victim =
            |rank: usize| matches!(self.what, What::Stop | What::Kill) && rank == self.victim as usize;
        let others: Vec<&Output> =
            ended.iter().enumerate().filter(|(rank, _)| !is_victim(*rank)).map(|(_, one)| one).collect();
        let is_right = |one: &&Output| one.status.success();
        if others.iter().any(|one| text(one).contains("FAILED") || text(one).contains("panicked")) {
            return Err(all());
        }
        if others.iter().all(is_right) {
            return Ok("right");
        }
        if self.what == What::Delay {
            return Err(all());
        }
        for one in others.iter().filter(|one| !is_right(one)) {
            let text = text(one);
            let error = text.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
            let names = match self.what {
                What::Stop | What::Kill => {
                    error.contains(&format!("rank {}", self.victim))
                        || self.victim == 0 && error.contains("the bootstrap root")
                }
                What::Delay | What::Drop | What::Close | What::Flip => error.contains("rank "),
            };
            if one.status.code() != Some(1) || !names {
                return Err(all());
            }
        }
        Ok("an error")
    }
}

/// The cases of a kind: those of the long size harm each message.
fn cases(kind: &'static str, messages: u64, nranks: u32, draw: &mut Seed) -> Vec<Case> {
    let is_long = environment("TEST_SIZE").is_some_and(|size| size == "long");
    let mut cases = Vec::new();
    for what in What::ALL {
        let places: Vec<u64> = if is_long {
            (1..=messages).collect()
        } else {
            vec![1 + draw.below(messages), 1 + draw.below(messages)]
        };
        for at in places {
            let (victim, seed) = (draw.below(nranks.into()) as u32, draw.below(u64::MAX));
            cases.push(Case { kind, nranks, what, at, victim, seed });
        }
    }
    cases
}

#[test]
fn harm_at_any_message_ends_in_a_right_result_or_a_true_error() {
    let Some(hosts) = Hosts::for_test("harm_at_any_message_ends_in_a_right_result_or_a_true_error") else {
        return;
    };
    let relays = Relays::between(&hosts);
    let mut draw = Seed(1);
    let mut counted: BTreeMap<(What, &str), u32> = BTreeMap::new();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let nranks = 2 + draw.below(3) as u32;
        let plain = Case { kind, nranks, what: What::Delay, at: 0, victim: 0, seed: 0 };
        let (ended, messages) = plain.carry_out(&hosts, &relays, None);
        assert_eq!(plain.judge(&ended), Ok("right"));
        for case in cases(kind, messages, nranks, &mut draw) {
            let (ended, _) = case.carry_out(&hosts, &relays, Some(case.what.harm()));
            match case.judge(&ended) {
                Ok(how) => *counted.entry((case.what, how)).or_default() += 1,
                Err(why) => wrong.push(format!("{case:?}\n{why}")),
            }
        }
    }
    for ((what, how), times) in &counted {
        println!("{what:?}: {times} times {how}");
    }
    println!("cases: harm {}", counted.values().sum::<u32>() + wrong.len() as u32);
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
