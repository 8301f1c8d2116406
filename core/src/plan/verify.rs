//! The proof that a set of programs is right: they are executed with symbols instead of bytes.
//!
//! The symbol of an element says which element of the request it is and which ranks have contributed to it. `verify` runs the
//! programs of all ranks over lanes with as many slots as the links have, once out of place and once in place, and then asks of every
//! element of every output whether it is what the request promises: every contribution in it, exactly once.
//!
//! **One schedule proves all.** A program of one channel is a sequential process; it waits for one thing after another and cannot ask
//! whether something is there, only wait for it. Lanes are first-in first-out queues with one writer, and the free slots of
//! a bounded lane are such a queue in the other direction. That is a Kahn network: the messages on every lane,
//! and so the point at which each program ends or is stuck for ever, are the same whatever the order in which programs take turns. The one
//! thing outside of that theory is memory that several channels of a rank share; so a step is refused if it touches what another
//! channel's program stores to, and then there is nothing left for an order to change. Here, programs take turns until each is stuck.
//!
//! Also shown: each send meets its receive (nothing is left in a lane, nothing half filled), lengths agree, messages fit their slots,
//! nothing waits for ever, and whoever must have heard of other ranks has (which is all that a barrier, or a call without elements, is for).
//!
//! A rejection says what is wrong, and gives the turns that lead there. Executed in that order they fail in the same way.

mod goal;
mod machine;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod mutate;
mod steps;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{PAIR_SLOT_BYTES, PAIR_SLOTS, Readers, Step, Topology, Verified, WIDE_SLOT_BYTES, WIDE_SLOTS};
use crate::collective::Request;
use crate::types::Rank;

use goal::Goal;
pub use goal::Value;

/// The most ranks `verify` can tell apart in one symbol.
pub const RANKS_MOST: u32 = 64;
/// The most elements of all ranks' memory together: what `verify` may spend memory on.
pub const ELEMENTS_MOST: u64 = 1 << 24;

/// The capacities of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// Slots of a pair lane.
    pub pair: u32,
    /// Bytes of each.
    pub pair_bytes: u32,
    /// Slots of a wide lane.
    pub wide: u32,
    /// Bytes of each.
    pub wide_bytes: u32,
}

impl Default for Slots {
    fn default() -> Self {
        Self { pair: PAIR_SLOTS, pair_bytes: PAIR_SLOT_BYTES, wide: WIDE_SLOTS, wide_bytes: WIDE_SLOT_BYTES }
    }
}

/// One step executed (or, in a fault, meant) by one program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// Whose.
    pub rank: Rank,
    /// Which program.
    pub channel: u16,
    /// Which step.
    pub step: u32,
}

/// A lane, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LaneName {
    /// Its channel.
    pub channel: u16,
    /// Its writer.
    pub from: Rank,
    /// Its readers.
    pub to: Readers,
}

/// What a program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// A message of this lane.
    Message(LaneName),
    /// A free slot in this lane, which this rank has yet to give back.
    Slot(LaneName, Rank),
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// This cannot be verified, or is not a set of programs for this request.
    Unsuitable(String),
    /// A step breaks a rule that holds for every step.
    Malformed(Turn, String),
    /// A fill or a read does not agree with the message.
    Disagrees(Turn, LaneName, String),
    /// A step touches memory that the program of another channel stores to (or reads, if it stores).
    Shared(Turn, Turn),
    /// Nobody can go on.
    Stuck(Vec<(Turn, Wait)>),
    /// These many messages were published and never freed.
    LeftOver(LaneName, u64),
    /// A message was begun and never published.
    Unpublished(LaneName),
    /// An element of an output is not what was asked for.
    Wrong {
        /// Whose output.
        rank: Rank,
        /// Which element.
        element: u64,
        /// What it is.
        found: Value,
        /// What it must be.
        wanted: Value,
        /// Who stored it.
        stored: Option<Turn>,
    },
    /// A rank ends without having heard of one that it must wait for.
    Unaware(Rank, Rank),
}

/// Why a set of programs was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// Whether it fails where the output is in the place of the input. If so, it does not fail out of place.
    pub in_place: bool,
    /// What is wrong.
    pub fault: Fault,
    /// The turns that lead there, in order: every step that was executed, of all programs.
    pub schedule: Vec<Turn>,
}

/// Verifies the programs of all ranks, `programs[rank][channel]`, for a collective request.
///
/// # Errors
/// What is wrong with them, with the schedule that shows it.
pub fn verify(
    topology: &Topology,
    request: &Request,
    programs: &[Vec<Vec<Step>>],
    slots: Slots,
) -> Result<Vec<Verified>, Rejection> {
    check(&Goal { topology, request, sender: None }, programs, slots)?;
    Ok(programs.iter().map(|p| Verified(p.clone())).collect())
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

impl fmt::Display for LaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Readers::One(to) => write!(f, "lane {}->{to} of channel {}", self.from, self.channel),
            Readers::All => write!(f, "lane {}->all of channel {}", self.from, self.channel),
        }
    }
}

impl fmt::Display for Wait {
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
