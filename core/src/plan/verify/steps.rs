//! The rules for each single step, independent of all other steps.

use super::goal::{Buffers, Goal};
use super::{Fault, SCRATCH_MOST, Slots, Turn};
use crate::plan::{Action, GroupId, Operand, Readers, Step};
use crate::types::Rank;

/// Checks all steps of all programs.
pub(super) fn check(
    goal: &Goal<'_>,
    programs: &[Vec<Vec<Step>>],
    slots: Slots,
    in_place: bool,
) -> Result<(), Fault> {
    for (rank, channels) in (0..).map(Rank).zip(programs) {
        let rules = Rules { goal, slots, rank, place: goal.place(rank, in_place) };
        for (channel, program) in (0..).zip(channels) {
            for (index, step) in (0..).zip(program) {
                let refuse = |why| Fault::Malformed(Turn { rank, channel, step: index }, why);
                rules.check(step, channel).map_err(refuse)?;
            }
        }
    }
    Ok(())
}

struct Rules<'a> {
    goal: &'a Goal<'a>,
    slots: Slots,
    rank: Rank,
    place: Buffers,
}

impl Rules<'_> {
    fn check(&self, step: &Step, channel: u16) -> Result<(), String> {
        if !step.destinations.is_empty() {
            if step.sources.is_empty() {
                return Err("destinations without a source".to_owned());
            }
            if step.action == Action::Copy && step.sources.len() > 1 {
                return Err(format!("a copy of {} sources", step.sources.len()));
            }
        }
        let len = u64::from(step.len);
        self.whole("length", len)?;
        for source in &step.sources {
            if matches!(source, Operand::Send { .. }) {
                return Err("a message being filled as a source".to_owned());
            }
        }
        for destination in &step.destinations {
            if matches!(destination, Operand::Input { .. } | Operand::Recv { .. }) {
                return Err("the input or a received message as a destination".to_owned());
            }
        }
        for operand in step.sources.iter().chain(&step.destinations) {
            self.operand(operand, len, channel)?;
        }
        for lanes in [&step.sources[..], &step.destinations[..]] {
            for (i, a) in lanes.iter().enumerate() {
                if lanes[..i].iter().any(|b| same_lane(a, b)) {
                    return Err("one lane twice in a step".to_owned());
                }
            }
        }
        self.overlaps(step)
    }

    fn whole(&self, what: &str, bytes: u64) -> Result<(), String> {
        if bytes.is_multiple_of(self.goal.size()) {
            return Ok(());
        }
        Err(format!("{what} {bytes} is no whole number of elements"))
    }

    fn operand(&self, operand: &Operand, len: u64, channel: u16) -> Result<(), String> {
        let n = self.goal.topology.nranks();
        let (input, output) = self.goal.sizes(self.rank);
        let inside = |at: u64, bytes: u64, what: &str| {
            self.whole("offset", at)?;
            if at.checked_add(len).is_none_or(|end| end > bytes) {
                return Err(format!("{at}+{len} is outside {what} of {bytes} bytes"));
            }
            Ok(())
        };
        let peer = |rank: Rank| {
            if rank.0 < n && rank != self.rank { Ok(()) } else { Err(format!("rank {rank} is no peer")) }
        };
        let topology = self.goal.topology;
        let own_group = topology.group(self.rank);
        let shared = |group: GroupId| {
            if channel != 0 || group != own_group {
                return Err("a shared lane, which exist on channel 0 and inside a group only".to_owned());
            }
            Ok(())
        };
        match *operand {
            Operand::Input { at } => inside(at, input * self.goal.size(), "an input"),
            Operand::Output { at } => inside(at, output * self.goal.size(), "an output"),
            Operand::Scratch { at } => inside(at, SCRATCH_MOST, "scratch memory"),
            Operand::Recv { from, shared: is_shared, at, .. } => {
                peer(from)?;
                let readers = if is_shared { Readers::Group(own_group) } else { Readers::One(self.rank) };
                if is_shared {
                    shared(topology.group(from))?;
                }
                inside(u64::from(at), u64::from(self.slots.terms(readers).slot_bytes), "a slot")
            }
            Operand::Send { to, at, total, .. } => {
                match to {
                    Readers::One(to) => peer(to)?,
                    Readers::Group(group) => shared(group)?,
                }
                let slot = self.slots.terms(to).slot_bytes;
                if total > slot {
                    return Err(format!("a message of {total} bytes in a slot of {slot}"));
                }
                inside(u64::from(at), u64::from(total), "a message")
            }
        }
    }

    /// In the caller's memory, the ranges that a step stores to and the other ranges that it
    /// accesses must be identical or disjoint.
    fn overlaps(&self, step: &Step) -> Result<(), String> {
        let (size, len) = (self.goal.size(), u64::from(step.len));
        let place = |operand: &Operand| match *operand {
            Operand::Input { at } => Some(self.place.input * size + at),
            Operand::Output { at } => Some(self.place.output * size + at),
            Operand::Scratch { at } => Some(self.place.scratch * size + at),
            Operand::Recv { .. } | Operand::Send { .. } => None,
        };
        for (i, stored) in step.destinations.iter().enumerate() {
            let Some(a) = place(stored) else { continue };
            let others = step.destinations[..i].iter().filter_map(place);
            if others.chain(step.sources.iter().filter_map(place)).any(|b| a != b && a.abs_diff(b) < len) {
                return Err("memory that partly overlaps what the step stores to".to_owned());
            }
        }
        Ok(())
    }
}

fn same_lane(a: &Operand, b: &Operand) -> bool {
    match (a, b) {
        (Operand::Recv { from: a, shared: v, .. }, Operand::Recv { from: b, shared: w, .. }) => {
            (a, v) == (b, w)
        }
        (Operand::Send { to: a, .. }, Operand::Send { to: b, .. }) => a == b,
        _ => false,
    }
}
