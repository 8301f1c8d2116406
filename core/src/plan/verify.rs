//! Proves that a set of programs is correct, by executing it with symbols instead of bytes.
//!
//! The symbol of an element states which element of the request it is and which ranks have
//! contributed to it. `verify` runs the programs of all ranks over lanes with as many slots as the
//! links have, once out of place and once in place. Then it checks that every element of every
//! output is what the request asks for: every contribution is in it, exactly once.
//!
//! **One schedule proves all.** A program of one channel is a sequential process. It waits for one
//! thing after another; it cannot test whether a message has arrived, only wait for it. Lanes are
//! first-in first-out queues with one writer, and the free slots of a bounded lane are such a queue
//! in the other direction. That is a Kahn network: the messages on every lane, and so the point at
//! which each program ends or is stuck forever, do not depend on the order in which programs take
//! turns. The only thing outside that theory is memory that several channels of a rank share.
//! Therefore a step is refused if it accesses memory that another channel's program stores to, and
//! nothing depends on the order. Here, programs take turns until each is stuck.
//!
//! The proof also shows that each send meets its receive (no message is left in a lane, none is
//! partly filled), that lengths agree, that messages fit their slots, and that nothing waits
//! forever. Every rank has received, directly or through others, from all ranks that the request
//! requires it to wait for, which is the only purpose of a barrier or of a call without elements.
//!
//! A rejection states the fault and gives the turns that lead to it. Executed in that order, the
//! programs fail in the same way.

mod goal;
mod machine;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod mutate;
mod steps;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod uneven_tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{GroupId, Lane, LaneId, LaneTerms, Operand, Readers, Step, Topology, Verified, WIRE_SLOT_BYTES};
use crate::collective::Request;
use crate::types::{ChannelId, Rank};

use goal::Goal;
pub use goal::Value;

/// The most ranks that `verify` can tell apart in one symbol.
pub const RANKS_MOST: u32 = 64;
/// The most elements of all ranks' memory together. It bounds the memory that `verify` uses.
pub const ELEMENTS_MOST: u64 = 1 << 24;

/// The most bytes of scratch memory of a rank.
pub const SCRATCH_MOST: u64 = 16 << 20;

/// The terms of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// Of a pair lane.
    pub pair: LaneTerms,
    /// Of a shared lane.
    pub shared: LaneTerms,
}

impl Default for Slots {
    fn default() -> Self {
        let pair = LaneId::pair(ChannelId(0), Rank(0)).terms();
        let pair = LaneTerms { slot_bytes: WIRE_SLOT_BYTES, ..pair };
        Self { pair, shared: LaneId::shared(GroupId(0)).terms() }
    }
}

impl Slots {
    /// The terms of a lane with these readers.
    const fn terms(self, readers: Readers) -> LaneTerms {
        match readers {
            Readers::One(_) => self.pair,
            Readers::Group(_) => self.shared,
        }
    }
}

/// One step of one program: executed, or in a fault the step that could not be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// The rank of the program.
    pub rank: Rank,
    /// The channel of the program.
    pub channel: u16,
    /// The index of the step.
    pub step: u32,
}

/// What a program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StuckOn {
    /// A message of this lane.
    Message(Lane),
    /// A free slot in this lane, which this rank has yet to give back.
    Slot(Lane, Rank),
}

/// The fault that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The programs cannot be verified, or are not a set of programs for this request.
    Unsuitable(String),
    /// A step breaks a rule that holds for every step.
    Malformed(Turn, String),
    /// A fill or a read does not agree with the message.
    Disagrees(Turn, Lane, String),
    /// A step touches memory that the program of another channel stores to (or reads, if it
    /// stores).
    Shared(Turn, Turn),
    /// No program can continue.
    Stuck(Vec<(Turn, StuckOn)>),
    /// These many messages were published and never freed.
    LeftOver(Lane, u64),
    /// A message was begun and never published.
    Unpublished(Lane),
    /// An element of an output is not what was asked for.
    Wrong {
        /// The rank of the output.
        rank: Rank,
        /// The index of the element.
        element: u64,
        /// The value that was found.
        found: Value,
        /// The value that was requested.
        wanted: Value,
        /// The step that stored it.
        stored: Option<Turn>,
    },
    /// The first rank ends without having received from the second, directly or through others,
    /// though it must wait for it.
    Unaware(Rank, Rank),
}

/// Why a set of programs was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// Whether it fails with the output in place of the input (and not out of place).
    pub in_place: bool,
    /// The fault.
    pub fault: Fault,
    /// The turns that lead to it, in order: every step that was executed, of all programs.
    pub schedule: Vec<Turn>,
}

/// Verifies the programs of all ranks, `programs[rank][channel]`, for a collective request.
///
/// # Errors
/// The fault of the programs, with the schedule that shows it.
pub fn verify(
    topology: &Topology,
    request: &Request,
    programs: &[Vec<Vec<Step>>],
    slots: Slots,
) -> Result<Vec<Verified>, Rejection> {
    check(&Goal { topology, request, sender: None, counts: &[] }, programs, slots)?;
    Ok(programs.iter().map(|p| Verified::new(*request, p.clone())).collect())
}

/// Bytes of scratch memory that programs of one rank use.
pub(super) fn scratch(programs: &[Vec<Step>]) -> u64 {
    let ends = programs.iter().flatten().flat_map(|step| {
        let operands = step.sources.iter().chain(&step.destinations);
        operands.filter_map(|operand| match *operand {
            Operand::Scratch { at } => at.checked_add(u64::from(step.len)),
            _ => None,
        })
    });
    ends.max().unwrap_or(0)
}

fn check(goal: &Goal<'_>, programs: &[Vec<Vec<Step>>], slots: Slots) -> Result<(), Rejection> {
    let refuse = |fault| Rejection { in_place: false, fault, schedule: Vec::new() };
    goal.suits(programs).map_err(|why| refuse(Fault::Unsuitable(why)))?;
    for in_place in [false, true] {
        steps::check(goal, programs, slots, in_place).map_err(|fault| Rejection {
            in_place,
            fault,
            schedule: Vec::new(),
        })?;
        machine::run(goal, programs, slots, in_place)?;
    }
    Ok(())
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} channel {} step {}", self.rank, self.channel, self.step)
    }
}

impl fmt::Display for StuckOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(lane) => write!(f, "a message on {lane}"),
            Self::Slot(lane, by) => write!(f, "a free slot on {lane}, held up by rank {by}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsuitable(why) => f.write_str(why),
            Self::Malformed(turn, why) => write!(f, "{turn}: {why}"),
            Self::Disagrees(turn, lane, why) => write!(f, "{turn}, {lane}: {why}"),
            Self::Shared(turn, other) => {
                write!(
                    f,
                    "{turn} touches memory that {other} of another channel touches, and one of them stores"
                )
            }
            Self::Stuck(waits) => {
                write!(f, "nobody can go on")?;
                waits.iter().try_for_each(|(turn, wait)| write!(f, "\n  {turn} waits for {wait}"))
            }
            Self::LeftOver(lane, n) => write!(f, "{n} messages were never freed on {lane}"),
            Self::Unpublished(lane) => write!(f, "a message was begun and never published on {lane}"),
            Self::Wrong { rank, element, found, wanted, stored } => {
                write!(f, "element {element} of the output of rank {rank} is {found}, not {wanted}; ")?;
                match stored {
                    Some(turn) => write!(f, "stored by {turn}"),
                    None => f.write_str("nothing was stored there"),
                }
            }
            Self::Unaware(rank, of) => write!(f, "rank {rank} ends without having heard of rank {of}"),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.in_place { "in place" } else { "out of place" }, self.fault)?;
        write!(f, "\nschedule ({} turns, as rank.channel:steps):", self.schedule.len())?;
        let run = |a: &Turn, b: &Turn| (a.rank, a.channel) == (b.rank, b.channel);
        for turns in self.schedule.chunk_by(run) {
            let (first, last) = (turns[0], turns[turns.len() - 1]);
            write!(f, " {}.{}:{}", first.rank, first.channel, first.step)?;
            if last.step > first.step {
                write!(f, "-{}", last.step)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Rejection {}
