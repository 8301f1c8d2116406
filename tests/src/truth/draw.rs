//! What is drawn: the steps of each rank, the actions on the processes, and the ranks to blame.

use std::fmt;

use ccl::seed::Seed;

use crate::scripts::Network;

/// The fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Nothing.
    Healthy,
    /// One rank is 5 to 100 ms late, again and again.
    Straggler,
    /// One or two ranks do not call the operation in which the others wait.
    Hang,
    /// A rank waits for a rank that waits for a rank that does not call.
    Chain,
    /// A rank is stopped, outside or inside an operation.
    Stopped,
    /// A rank is killed, outside or inside an operation.
    Killed,
    /// A rank ends, or frees the communicator, without leaving.
    Left,
    /// A rank calls a different operation than the others.
    Mismatch(Differ),
    /// A rank is never started.
    NeverJoined,
    /// The first operation of the job waits for a rank that does not call.
    FirstContact,
    /// A rank does not call, then all are killed.
    AllDead,
}

/// The difference between calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Differ {
    /// Another collective.
    Kind,
    /// One more element.
    Count,
    /// Another element type.
    Type,
    /// Another operator.
    Operator,
    /// Another root.
    Root,
    /// Two collectives in the opposite order.
    Order,
    /// A receive of more elements than are sent.
    Pair,
    /// One more collective, while the others finish.
    More,
}

/// One round of runs: the seed of a draw decides its class.
pub const CLASSES: [Class; 20] = [
    Class::Healthy,
    Class::Hang,
    Class::Mismatch(Differ::Kind),
    Class::Stopped,
    Class::Mismatch(Differ::Count),
    Class::Killed,
    Class::Straggler,
    Class::Mismatch(Differ::Type),
    Class::NeverJoined,
    Class::Left,
    Class::Mismatch(Differ::Operator),
    Class::FirstContact,
    Class::Mismatch(Differ::Root),
    Class::AllDead,
    Class::Chain,
    Class::Mismatch(Differ::Order),
    Class::Stopped,
    Class::Mismatch(Differ::Pair),
    Class::Killed,
    Class::Mismatch(Differ::More),
];

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Healthy => "healthy",
            Self::Straggler => "straggler",
            Self::Hang => "hang",
            Self::Chain => "chain",
            Self::Stopped => "stop",
            Self::Killed => "kill",
            Self::Left => "exit without leaving",
            Self::Mismatch(Differ::Kind) => "mismatch: kind",
            Self::Mismatch(Differ::Count) => "mismatch: count",
            Self::Mismatch(Differ::Type) => "mismatch: type",
            Self::Mismatch(Differ::Operator) => "mismatch: operator",
            Self::Mismatch(Differ::Root) => "mismatch: root",
            Self::Mismatch(Differ::Order) => "mismatch: order",
            Self::Mismatch(Differ::Pair) => "mismatch: pair",
            Self::Mismatch(Differ::More) => "mismatch: one more",
            Self::NeverJoined => "never joined",
            Self::FirstContact => "first contact",
            Self::AllDead => "all dead",
        })
    }
}

/// An action on the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Wait until this rank takes this step.
    Reaches(u32, usize),
    /// `kill -STOP`.
    Stop(u32),
    /// `kill -9`.
    Kill(u32),
    /// It continues from where it holds.
    Go(u32),
    /// Wait until it reports that a call failed, or has ended.
    Fails(u32),
    /// Wait until nothing has happened for a while.
    Settle,
    /// Wait this many milliseconds.
    Pause(u64),
}

/// One drawn run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draw {
    /// The seed.
    pub seed: u64,
    /// The fault.
    pub class: Class,
    /// How the ranks reach each other.
    pub network: Network,
    /// Number of ranks.
    pub nranks: u32,
    /// The ranks to blame.
    pub culprits: Vec<u32>,
    /// For a mismatch: the other rank of the pair, which differs from the culprit only.
    pub partners: Vec<u32>,
    /// The steps of each rank; empty for a rank that is never started.
    pub steps: Vec<String>,
    /// The actions, in order.
    pub acts: Vec<Act>,
    /// Whether ranks live on after an error.
    pub stays: bool,
    /// How often a working job is inspected while it answers.
    pub looks: usize,
    /// Whether another process on the machine is busy.
    pub is_beside: bool,
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, class, network, nranks, culprits, .. } = self;
        let beside = if self.is_beside { ", beside a busy process" } else { "" };
        write!(f, "seed {seed}: {class}, {nranks} ranks, {network:?}, culprits {culprits:?}{beside}")
    }
}

/// How often a working job is inspected.
pub const LOOKS: usize = 4;
/// The number of calls of a healthy or late rank: they take longer than the inspections.
const CALLS: usize = 3_600;

impl Draw {
    /// Draws a run; without namespaces available, none are drawn.
    #[must_use]
    pub fn new(seed: u64, has_namespaces: bool) -> Self {
        Self::of(CLASSES[(seed % CLASSES.len() as u64) as usize], seed, has_namespaces)
    }

    /// Draws a run of this class.
    #[must_use]
    pub fn of(class: Class, seed: u64, has_namespaces: bool) -> Self {
        let mut drawn = Seed(seed.wrapping_mul(0x1_0001).wrapping_add(7));
        let mut network = drawn.one_of(&Network::ALL);
        if class == Class::FirstContact && network == Network::SharedMemory {
            network = drawn.one_of(&[Network::Sockets, Network::Namespaces]);
        }
        if network == Network::Namespaces && !has_namespaces {
            network = Network::Sockets;
        }
        let nranks = drawn.one_of(&[2, 3, 4, 5, 6, 8]);
        let culprit = drawn.below(nranks.into()) as u32;
        let mut plan = Plan {
            nranks,
            culprit,
            common: Vec::new(),
            own: vec![Vec::new(); nranks as usize],
            culprits: vec![culprit],
            partners: Vec::new(),
            acts: Vec::new(),
            drawn,
        };
        let stays = plan.drawn.below(2) == 0;
        plan.common.push("block".into());
        if stays {
            plan.common.push("stay".into());
        }
        if plan.drawn.below(3) == 0 {
            plan.common.push("tag".into());
        }
        if class != Class::FirstContact {
            for _ in 0..1 + plan.drawn.below(4) {
                let warm_up = plan.collective();
                plan.common.push(warm_up);
            }
        }
        plan.of_class(class);
        let Plan { common, own, culprits, partners, acts, .. } = plan;
        let is_absent = |rank: u32| class == Class::NeverJoined && rank == culprit;
        let words = |(rank, own): (u32, Vec<String>)| match is_absent(rank) {
            true => String::new(),
            false => common.iter().cloned().chain(own).collect::<Vec<_>>().join("; "),
        };
        let steps = (0..).zip(own).map(words).collect();
        // The number of a step counts the common steps.
        let acts = acts.into_iter().map(|act| match act {
            Act::Reaches(rank, at) => Act::Reaches(rank, at + common.len()),
            other => other,
        });
        let is_beside = class == Class::Healthy && seed / CLASSES.len() as u64 % 2 == 1;
        let acts = acts.collect();
        Self { seed, class, network, nranks, culprits, partners, steps, acts, stays, looks: LOOKS, is_beside }
    }

    /// A healthy job that is inspected often; every second one beside a busy process.
    #[must_use]
    pub fn healthy(seed: u64, looks: usize, has_namespaces: bool) -> Self {
        let is_beside = seed % 2 == 1;
        Self { looks, is_beside, ..Self::of(Class::Healthy, seed, has_namespaces) }
    }
}

/// A draw in progress.
struct Plan {
    drawn: Seed,
    nranks: u32,
    culprit: u32,
    /// The first steps of all ranks.
    common: Vec<String>,
    /// The steps that follow, per rank.
    own: Vec<Vec<String>>,
    culprits: Vec<u32>,
    partners: Vec<u32>,
    acts: Vec<Act>,
}

impl Plan {
    fn count(&mut self) -> u64 {
        self.drawn.one_of(&[1, 10, 1_000, 30_000, 300_000])
    }

    fn root(&mut self) -> u32 {
        self.drawn.below(self.nranks.into()) as u32
    }

    /// Draws a collective.
    fn collective(&mut self) -> String {
        let (count, root) = (self.count(), self.root());
        match self.drawn.below(7) {
            0 => format!("all_gather {count}"),
            1 => format!("reduce_scatter {count}"),
            2 => format!("broadcast {root} {count}"),
            3 => format!("reduce {root} {count}"),
            4 => "barrier".into(),
            _ => format!("all_reduce {count}"),
        }
    }

    fn is_culprit(&self, rank: u32) -> bool {
        self.culprits.contains(&rank)
    }

    fn others(&self) -> Vec<u32> {
        (0..self.nranks).filter(|rank| !self.is_culprit(*rank)).collect()
    }

    /// Draws a rank other than the culprit.
    fn other(&mut self) -> u32 {
        let others = self.others();
        self.drawn.one_of(&others)
    }

    /// Adds steps of the culprits, and of the others.
    fn take(&mut self, culprits: &[&str], others: &[&str]) {
        for rank in 0..self.nranks {
            let steps = if self.is_culprit(rank) { culprits } else { others };
            self.own[rank as usize].extend(steps.iter().map(ToString::to_string));
        }
    }

    /// Waits until the culprits are at this step, and the others at that.
    fn reach(&mut self, culprits: usize, others: usize) {
        let at = |rank| if self.is_culprit(rank) { culprits } else { others };
        let all: Vec<Act> = (0..self.nranks).map(|rank| Act::Reaches(rank, at(rank))).collect();
        self.acts.extend(all);
    }

    fn fail(&mut self) {
        self.acts.extend(self.others().into_iter().map(Act::Fails));
    }

    /// All ranks fail, except dead ones.
    fn all_fail(&mut self) {
        self.acts.extend((0..self.nranks).map(Act::Fails));
    }

    /// All wait in an all-reduce after the first operation, if that did not need the culprit.
    fn hang(&mut self) {
        let first = self.collective();
        self.take(&["hold", &first, "all_reduce 1000"], &[&first, "all_reduce 1000", "finish"]);
        self.reach(0, 0);
    }

    fn of_class(&mut self, class: Class) {
        match class {
            Class::Healthy => {
                self.culprits.clear();
                let calls: Vec<String> = (0..7).map(|_| self.collective()).collect();
                for at in 0..CALLS {
                    let work: &[&str] = if at % 4 == 0 { &["sleep 10"] } else { &[] };
                    self.take(&[], work);
                    self.take(&[], &[&calls[at % calls.len()]]);
                }
                self.take(&[], &["hold"]);
                self.reach(0, 1);
            }
            Class::Straggler => {
                let call = format!("all_reduce {}", self.count());
                let late = format!("sleep {}", 5 + self.drawn.below(96));
                for _ in 0..CALLS / 2 {
                    self.take(&[&late, &call], &[&call]);
                }
                self.reach(2, 1);
            }
            Class::Hang | Class::AllDead => {
                if self.nranks > 3 && self.drawn.below(3) == 0 {
                    let other = self.other();
                    self.culprits.push(other);
                    self.culprits.sort_unstable();
                }
                self.hang();
                self.acts.push(Act::Settle);
            }
            Class::FirstContact => {
                if self.drawn.below(2) == 0 {
                    self.hang();
                } else {
                    let (culprit, other) = (self.culprit, self.other());
                    for rank in 0..self.nranks {
                        let own = &mut self.own[rank as usize];
                        if rank == culprit {
                            own.extend(["hold".into(), format!("send {other} 4")]);
                        } else if rank == other {
                            own.push(format!("recv {culprit} 4"));
                        } else {
                            own.push("hold".into());
                        }
                    }
                    self.reach(0, 0);
                }
                self.acts.push(Act::Settle);
            }
            Class::Chain => self.chain(),
            Class::Stopped => {
                if self.drawn.below(2) == 0 {
                    self.hang();
                    self.acts.push(Act::Stop(self.culprit));
                } else {
                    self.inside(Act::Stop(self.culprit));
                }
                // A sign of life comes once a second: before that, the first silent rank is not
                // known.
                self.acts.extend([Act::Settle, Act::Pause(1_500)]);
            }
            Class::Killed => {
                if self.drawn.below(2) == 0 {
                    self.hang();
                    self.acts.extend([Act::Settle, Act::Kill(self.culprit)]);
                } else {
                    self.inside(Act::Kill(self.culprit));
                }
                self.fail();
                self.acts.push(Act::Settle);
            }
            Class::Left => {
                let call = self.collective();
                let end = self.drawn.one_of(&["exit", "drop; hold", "panic"]);
                self.take(&["hold", end], &[&call, "all_reduce 1000", "finish"]);
                self.reach(0, 0);
                self.acts.extend([Act::Settle, Act::Go(self.culprit)]);
                self.fail();
                self.acts.push(Act::Settle);
            }
            Class::Mismatch(differ) => {
                self.mismatch(differ);
                self.all_fail();
                self.acts.push(Act::Settle);
            }
            Class::NeverJoined => {
                let call = self.collective();
                self.take(&[], &[&call]);
                // The bootstrap root reports every second, and ranks report its absence after
                // three.
                self.acts.extend([Act::Settle, Act::Pause(4_000)]);
            }
        }
    }

    /// The culprit calls alone, and waits inside or returns.
    ///
    /// Then comes `what`, and then the others call.
    fn inside(&mut self, what: Act) {
        let call = self.collective();
        self.take(&[&call, "all_reduce 1000", "hold"], &["hold", &call, "all_reduce 1000", "finish"]);
        self.reach(0, 0);
        self.acts.extend([Act::Settle, what]);
        self.acts.extend(self.others().into_iter().map(Act::Go));
    }

    fn chain(&mut self) {
        let end = self.culprit;
        let middle = self.other();
        let ends: Vec<u32> = self.others().into_iter().filter(|rank| *rank != middle).collect();
        let first = (!ends.is_empty()).then(|| self.drawn.one_of(&ends));
        for rank in 0..self.nranks {
            let own = &mut self.own[rank as usize];
            if rank == end {
                own.extend(["hold".into(), format!("send {middle} 9")]);
            } else if rank == middle {
                own.push(format!("recv {end} 9"));
                own.extend(first.map(|first| format!("send {first} 5")));
            } else if Some(rank) == first {
                own.push(format!("recv {middle} 5"));
            }
            own.push("barrier".into());
        }
        self.reach(0, 0);
        self.acts.push(Act::Settle);
    }

    fn mismatch(&mut self, differ: Differ) {
        let (count, root) = (self.count(), self.root());
        let reduce = format!("all_reduce {count}");
        let then = ["all_reduce 1000", "finish"];
        let (culprit, others) = match differ {
            Differ::Kind => (format!("all_gather {count}"), reduce),
            Differ::Count => (format!("all_reduce {}", count + 1), reduce),
            Differ::Type => (format!("integers {count}"), reduce),
            Differ::Operator => (format!("max {count}"), reduce),
            Differ::Root => {
                let kind = self.drawn.one_of(&["broadcast", "reduce"]);
                let other = (root + 1) % self.nranks;
                (format!("{kind} {other} {count}"), format!("{kind} {root} {count}"))
            }
            Differ::Order => (format!("all_gather 10; {reduce}"), format!("{reduce}; all_gather 10")),
            Differ::More => (format!("{reduce}; barrier"), reduce),
            Differ::Pair => {
                let other = self.other();
                let (from, to) =
                    if self.drawn.below(2) == 0 { (self.culprit, other) } else { (other, self.culprit) };
                self.partners = vec![other];
                for rank in 0..self.nranks {
                    let own = &mut self.own[rank as usize];
                    if rank == from {
                        own.push(format!("send {to} {count}"));
                    } else if rank == to {
                        own.push(format!("recv {from} {}", count + 2));
                    }
                    own.push("barrier".into());
                }
                return;
            }
        };
        let then: &[&str] = if differ == Differ::More { &["finish"] } else { &then };
        let with = |call: String| -> Vec<String> {
            let calls = call.split("; ").map(String::from).collect::<Vec<_>>();
            calls.into_iter().chain(then.iter().map(ToString::to_string)).collect()
        };
        let (culprit, others) = (with(culprit), with(others));
        let words = |steps: &[String]| steps.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        self.take(&[&words(&culprit)], &[&words(&others)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Steps;

    #[test]
    fn what_is_drawn_makes_sense_and_is_drawn_again_alike() {
        for seed in 0..400 {
            let draw = Draw::new(seed, true);
            assert_eq!(draw, Draw::new(seed, true));
            assert_eq!(draw.steps.len(), draw.nranks as usize);
            for (rank, words) in (0..).zip(&draw.steps) {
                let steps = Steps::parse(words).expect("steps");
                assert_eq!(steps.all.is_empty(), draw.class == Class::NeverJoined && draw.culprits == [rank]);
                let taken =
                    |act: &Act| matches!(act, Act::Reaches(of, at) if *of == rank && *at >= steps.all.len());
                assert!(!draw.acts.iter().any(taken), "{draw}");
            }
            assert_eq!(draw.culprits.is_empty(), draw.class == Class::Healthy);
            assert_ne!(Draw::new(seed, false).network, Network::Namespaces);
        }
    }
}
