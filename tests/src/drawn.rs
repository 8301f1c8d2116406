//! One instance of a scenario: everything that is left open is drawn from a seed. And the result
//! that the instance must have.

use std::fmt;

use ccl::snapshot::Snapshot;
use ccl::{CollKind, Rank};

use crate::job::{Line, Transport};
use crate::orders::{How, Orders};
use crate::scenario::{Class, Failing, Fault, Name, Scenario, Who};
use ccl::seed::Seed;

/// Elements of a usual call: a direct algorithm on one host, and within what links can hold.
const COUNT: usize = 1000;
/// Elements that neither links nor the kernel can hold: 16 MiB over one stream.
const BIG: usize = 4 << 20;

/// A drawn instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// The scenario.
    pub scenario: Scenario,
    /// The seed.
    pub seed: u64,
    /// Number of ranks.
    pub nranks: u32,
    /// How the ranks reach each other.
    pub transport: Transport,
    /// The operation.
    pub kind: CollKind,
    /// Its root.
    pub root: u32,
    /// The rank that goes wrong.
    pub victim: u32,
    /// The iteration of the fault, at least 3.
    ///
    /// The first one connects the links, and no rank may fail before all have reported that.
    pub at: u64,
    /// A number for all other choices.
    pub chance: u64,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, seed {}: {} ranks over {:?}, {} of root {}, iteration {}, victim {}",
            self.scenario.name,
            self.seed,
            self.nranks,
            self.transport,
            self.kind,
            self.root,
            self.at,
            self.victim
        )
    }
}

impl Drawn {
    /// Draws an instance.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        // Every scenario draws its own numbers.
        let name =
            scenario.name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut drawn = Seed(name);
        let nranks = drawn.one_of(&scenario.ranks);
        Self {
            seed,
            nranks,
            transport: drawn.one_of(&scenario.transports),
            kind: drawn.one_of(&scenario.collectives),
            root: drawn.below(u64::from(nranks)) as u32,
            victim: drawn.below(u64::from(nranks)) as u32,
            at: 3 + drawn.below(7),
            chance: drawn.bits(),
            scenario: scenario.clone(),
        }
    }

    /// The orders of its workers.
    #[must_use]
    pub fn orders(&self) -> Orders {
        let fault = self.scenario.inject.fault;
        let how = match fault {
            Fault::Nothing | Fault::Paused | Fault::LinkCut | Fault::LinkEnd | Fault::LinkCorrupt => {
                How::Well
            }
            Fault::Sleeps | Fault::KilledBefore | Fault::Killed => How::Sleep,
            Fault::StoppedInside | Fault::KilledInside => How::Alone,
            Fault::Count => How::Count,
            Fault::Kind => How::Kind,
            Fault::Operator => How::Operator,
            Fault::Datatype => How::Datatype,
            Fault::Aborts => How::Abort,
            Fault::Drops => How::Drop,
            Fault::Finishes => How::Finish,
        };
        let calls = match fault {
            Fault::Nothing => 20,
            Fault::Paused => 2000,
            _ => u64::MAX,
        };
        Orders {
            calls,
            kind: self.kind,
            root: self.root,
            count: COUNT,
            at: self.at,
            big: if fault == Fault::StoppedInside { BIG } else { COUNT },
            victim: self.victim,
            how,
            block: self.scenario.inject.control_blocked,
            ..Orders::default()
        }
    }

    /// The ranks that play this part.
    #[must_use]
    pub fn ranks(&self, who: Who) -> Vec<Rank> {
        let next = (self.victim + 1) % self.nranks;
        let all = 0..self.nranks;
        let ranks: Vec<u32> = match who {
            Who::Victim => vec![self.victim],
            Who::Others => all.filter(|rank| *rank != self.victim).collect(),
            Who::Reader => vec![next],
            Who::Either => vec![self.victim, next],
        };
        ranks.into_iter().map(Rank).collect()
    }

    fn ranks_of(&self, who: &[Who]) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = who.iter().flat_map(|who| self.ranks(*who)).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Sequence numbers of the operations that may be the first in which a rank waits.
    ///
    /// The drawn one, if a rank in it needs the absent rank; if that depends on how data travels,
    /// also the barrier after it.
    #[must_use]
    pub fn seqs(&self) -> Vec<u64> {
        let (first, behind) = (2 * self.at - 1, 2 * self.at);
        let is_root = self.root == self.victim;
        let needed = match (self.scenario.inject.fault, self.kind) {
            (Fault::StoppedInside, _) => true,
            // The victim is alone: does it need another rank?
            (Fault::KilledInside, CollKind::Broadcast | CollKind::Scatter) => !is_root,
            (Fault::KilledInside, CollKind::Reduce | CollKind::Gather) => is_root,
            // The victim is absent: does another rank need it?
            (_, CollKind::Broadcast | CollKind::Scatter) => is_root,
            (_, CollKind::Reduce | CollKind::Gather) => !is_root,
            _ => true,
        };
        if needed { vec![first] } else { vec![first, behind] }
    }

    /// The verdict of a snapshot in one word, and everything in it that is not as it must be.
    #[must_use]
    pub fn judge(&self, snapshot: &Snapshot) -> (Class, Vec<String>) {
        let mut wrong = Vec::new();
        let class = class_of(snapshot);
        if !snapshot.complete {
            wrong.push(format!("incomplete: {:?}", snapshot.missing));
        }
        if let Some(states) = &self.scenario.expect.states {
            for rank in &snapshot.ranks {
                let expect = if rank.rank.0 == self.victim { states.victim } else { states.others };
                if rank.state != expect {
                    wrong.push(format!("rank {} is {}, not {expect}", rank.rank, rank.state));
                }
            }
        }
        if let Some(source) = self.scenario.expect.source {
            let other = snapshot.ranks.iter().filter(|rank| rank.source != source);
            wrong.extend(other.map(|rank| format!("rank {} comes from {}", rank.rank, rank.source)));
        }
        match (&self.scenario.expect.blocked_on, snapshot.blocked_on.first()) {
            (None, None) => {}
            (None, Some(one)) => wrong.push(format!("somebody blocks others: {one:?}")),
            (Some(_), None) => wrong.push("nobody blocks others".into()),
            (Some(expect), Some(one)) => {
                let mut compare = |what: &str, found: &[Rank], expect: Vec<Rank>| {
                    if found != expect {
                        wrong.push(format!("{what} {found:?}, not {expect:?}"));
                    }
                };
                compare("missing", &one.missing, self.ranks_of(&expect.missing));
                compare("inside", &one.inside, self.ranks_of(&expect.inside));
                if expect.by == [Who::Reader] {
                    // Which other ranks wait depends on how far they came.
                    let reader = self.ranks(Who::Reader);
                    compare(
                        "by",
                        &one.by.iter().copied().filter(|r| reader.contains(r)).collect::<Vec<_>>(),
                        reader,
                    );
                } else {
                    compare("by", &one.by, self.ranks_of(&expect.by));
                }
                if !self.seqs().contains(&one.seq) {
                    wrong.push(format!("{} #{}, not one of {:?}", one.op, one.seq, self.seqs()));
                }
                if snapshot.blocked_on.len() > 1 {
                    wrong.push(format!("and more: {:?}", &snapshot.blocked_on[1..]));
                }
            }
        }
        (class, wrong)
    }

    /// An error in one word, and everything in it that is not as it must be.
    #[must_use]
    pub fn judge_error(&self, expect: &Failing, line: &Line) -> (Class, Vec<String>) {
        let Line::Error { rank, kind, text, op, peer, channel, .. } = line else {
            return (Class::Other, vec![format!("no error: {line:?}")]);
        };
        let mut wrong = Vec::new();
        if *kind != expect.kind {
            wrong.push(format!("rank {rank}: {kind}, not {}: {text}", expect.kind));
        }
        if let Some(who) = expect.peer {
            let about = self.ranks(who);
            // The rank that caused the error names no peer as the cause; no rank is its own peer.
            let is_right = match *peer {
                _ if about == [Rank(*rank)] => *peer != Some(*rank),
                Some(peer) => about.contains(&Rank(peer)),
                None => false,
            };
            if !is_right {
                wrong.push(format!("rank {rank}: it is about {peer:?}: {text}"));
            }
        }
        for name in &expect.names {
            let is_named = match name {
                Name::Op => {
                    // A rank that was still in the barrier before has not reached the drawn
                    // operation yet.
                    let seqs = 2 * self.at - 2..=2 * self.at;
                    let seq = op.as_ref().and_then(|op| op.rsplit('#').next()?.parse::<u64>().ok());
                    seq.is_some_and(|seq| seqs.contains(&seq))
                        && op.as_ref().is_some_and(|op| text.contains(op.as_str()))
                }
                Name::Channel => channel
                    .is_some_and(|channel| text.contains(&format!("channel {}", ccl::ChannelId(channel)))),
                Name::Victim => text.contains(&format!("rank {}", self.victim)),
            };
            if !is_named {
                wrong.push(format!("rank {rank}: {name:?} is not named: {text}"));
            }
        }
        (class_of_error(kind), wrong)
    }
}

/// A kind of error, as a class.
#[must_use]
pub fn class_of_error(kind: &str) -> Class {
    match kind {
        "Peer" => Class::Peer,
        "Mismatch" => Class::Mismatch,
        "Aborted" => Class::Aborted,
        _ => Class::Other,
    }
}

/// The verdict of a snapshot in one word.
#[must_use]
pub fn class_of(snapshot: &Snapshot) -> Class {
    match snapshot.blocked_on.first() {
        None => Class::Nobody,
        Some(one) if !one.missing.is_empty() => Class::Missing,
        Some(one) if !one.inside.is_empty() => Class::Inside,
        Some(_) => Class::Link,
    }
}
