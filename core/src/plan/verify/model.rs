//! An independent check of `verify` for tests: executes programs on numbers instead of symbols, in
//! any order of turns.

use std::collections::BTreeMap;

use super::goal::Goal;
use super::{Slots, Turn};
use crate::plan::{Action, Lane, LaneId, Operand, Readers, Step, Topology};
use crate::seed::Seed;
use crate::types::{ChannelId, CollKind, Rank};

/// The order in which programs take turns.
pub(super) enum Order<'a> {
    /// A random order, drawn from a seed.
    Seeded(u64),
    /// This rank takes a turn only when no other can continue.
    Last(Rank),
    /// These turns first, then a random order.
    Given(&'a [Turn]),
}

/// The content of memory that no step has written.
const GARBAGE: i64 = 0x5a5a_1234_5a5a_4321;

#[derive(Default)]
struct Queue {
    draft: Option<Vec<i64>>,
    published: Vec<Vec<i64>>,
    freed: BTreeMap<Rank, usize>,
}

struct Model<'a> {
    goal: &'a Goal<'a>,
    programs: &'a [Vec<Vec<Step>>],
    slots: Slots,
    in_place: bool,
    memories: Vec<Vec<i64>>,
    lanes: BTreeMap<Lane, Queue>,
    /// (rank, channel, next step).
    at: Vec<(Rank, u16, usize)>,
    /// Whether each rank has executed a step.
    began: Vec<Option<usize>>,
}

/// Executes the programs and returns the fault, if there is one. The request is a sum of `i64`.
pub(super) fn execute(
    goal: &Goal<'_>,
    programs: &[Vec<Vec<Step>>],
    slots: Slots,
    in_place: bool,
    order: Order<'_>,
) -> Result<(), String> {
    let n = goal.topology.nranks();
    let memories = (0..n).map(|r| memory(goal, Rank(r), in_place, &programs[r as usize])).collect();
    let at =
        (0..n).flat_map(|r| (0..programs[r as usize].len() as u16).map(move |c| (Rank(r), c, 0))).collect();
    let lanes = BTreeMap::new();
    let began = vec![None; n as usize];
    let mut model = Model { goal, programs, slots, in_place, memories, lanes, at, began };
    model.run(order)?;
    model.check()
}

/// Stands for the division of an average: what the step with all contributions stores.
const fn finished(sum: i64) -> i64 {
    sum.wrapping_mul(0x5851_f42d)
}

fn number(rank: Rank, at: u64) -> i64 {
    Seed(u64::from(rank.0) << 40 | at).bits() as i64
}

fn memory(goal: &Goal<'_>, rank: Rank, in_place: bool, programs: &[Vec<Step>]) -> Vec<i64> {
    let place = goal.place(rank, in_place);
    let mut memory = vec![GARBAGE; (place.len + goal.scratch(programs)) as usize];
    for at in 0..goal.sizes(rank).0 {
        memory[(place.input + at) as usize] = number(rank, at);
    }
    memory
}

impl Model<'_> {
    fn run(&mut self, order: Order<'_>) -> Result<(), String> {
        let (mut numbers, last, given) = match order {
            Order::Seeded(seed) => (Seed(seed), None, &[][..]),
            Order::Last(rank) => (Seed(1), Some(rank), &[][..]),
            Order::Given(turns) => (Seed(2), None, turns),
        };
        for turn in given {
            let program = self.at.iter().position(|&(r, c, _)| (r, c) == (turn.rank, turn.channel));
            let program = program.ok_or("no such program")?;
            if self.at[program].2 != turn.step as usize || !self.turn(program)? {
                return Err(format!("the schedule cannot be followed at {turn}"));
            }
        }
        loop {
            let mut open: Vec<usize> = (0..self.at.len()).filter(|&p| !self.ended(p)).collect();
            if open.is_empty() {
                return Ok(());
            }
            // A random order, except that the `last` rank comes after all others.
            let mut order = Vec::new();
            while !open.is_empty() {
                order.push(open.swap_remove(numbers.place(open.len())));
            }
            order.sort_by_key(|&p| Some(self.at[p].0) == last);
            let mut moved = false;
            for p in order {
                moved = self.turn(p)?;
                if moved {
                    break;
                }
            }
            if !moved {
                return Err("nobody can go on".to_owned());
            }
        }
    }

    fn ended(&self, p: usize) -> bool {
        let (rank, channel, at) = self.at[p];
        at >= self.programs[rank.index()][usize::from(channel)].len()
    }

    /// Executes the next step of a program, if it need not wait. Returns whether it did.
    fn turn(&mut self, p: usize) -> Result<bool, String> {
        let (rank, channel, at) = self.at[p];
        let step = &self.programs[rank.index()][usize::from(channel)][at];
        let name = |from, readers| Lane { from, id: LaneId { channel: ChannelId(channel), readers } };
        let words = |bytes: u64| (bytes / 8) as usize;
        let len = words(u64::from(step.len));
        for source in &step.sources {
            if let Operand::Recv { from, shared, at, .. } = *source {
                let lane = self
                    .lanes
                    .entry(name(from, readers(self.goal.topology, from, (rank, shared))))
                    .or_default();
                let freed = *lane.freed.entry(rank).or_default();
                let Some(message) = lane.published.get(freed) else { return Ok(false) };
                if !step.destinations.is_empty() && words(u64::from(at)) + len > message.len() {
                    return Err(format!("rank {rank} step {at}: too short a message"));
                }
            }
        }
        for destination in &step.destinations {
            if let Operand::Send { to, total, .. } = *destination {
                let lane = self.lanes.entry(name(rank, to)).or_default();
                let reads = |r: &Rank| name(rank, to).is_read_by(self.goal.topology, *r);
                let readers = (0..self.goal.topology.nranks()).map(Rank).filter(reads);
                let freed = readers.map(|r| lane.freed.get(&r).copied().unwrap_or(0));
                let (least, most) = (freed.min().unwrap_or(0), self.slots.terms(to).slots);
                match &lane.draft {
                    Some(draft) if draft.len() != words(u64::from(total)) => {
                        return Err(format!("rank {rank} step {at}: another message is being filled"));
                    }
                    None if lane.published.len() - least >= most as usize => return Ok(false),
                    _ => {}
                }
            }
        }
        self.move_words(rank, channel, step, len);
        self.at[p].2 += 1;
        self.began[rank.index()].get_or_insert(0);
        if self.at.iter().enumerate().all(|(q, a)| a.0 != rank || self.ended(q)) {
            let heard = self.goal.heard(rank);
            let silent = (0..self.began.len()).find(|&r| heard >> r & 1 == 1 && self.began[r].is_none());
            if let Some(silent) = silent {
                return Err(format!("rank {rank} ended before rank {silent} began"));
            }
        }
        Ok(true)
    }

    fn move_words(&mut self, rank: Rank, channel: u16, step: &Step, len: usize) {
        let name = |from, readers| Lane { from, id: LaneId { channel: ChannelId(channel), readers } };
        let place = self.goal.place(rank, self.in_place);
        let word = |bytes: u64| (bytes / 8) as usize;
        let mut sum = vec![0i64; len];
        for source in &step.sources {
            let (words, at): (&[i64], usize) = match *source {
                Operand::Input { at } => (&self.memories[rank.index()], place.input as usize + word(at)),
                Operand::Output { at } => (&self.memories[rank.index()], place.output as usize + word(at)),
                Operand::Scratch { at } => (&self.memories[rank.index()], place.scratch as usize + word(at)),
                Operand::Recv { from, shared, at, .. } => {
                    let lane = &self.lanes[&name(from, readers(self.goal.topology, from, (rank, shared)))];
                    (&lane.published[lane.freed[&rank]], word(u64::from(at)))
                }
                Operand::Send { .. } => unreachable!("a source"),
            };
            if !step.destinations.is_empty() {
                sum.iter_mut().zip(&words[at..at + len]).for_each(|(s, v)| *s = s.wrapping_add(*v));
            }
        }
        if step.action == Action::ReduceLast {
            sum.iter_mut().for_each(|sum| *sum = finished(*sum));
        }
        for destination in &step.destinations {
            match *destination {
                Operand::Output { at } => {
                    let at = place.output as usize + word(at);
                    self.memories[rank.index()][at..at + len].copy_from_slice(&sum);
                }
                Operand::Scratch { at } => {
                    let at = place.scratch as usize + word(at);
                    self.memories[rank.index()][at..at + len].copy_from_slice(&sum);
                }
                Operand::Send { to, at, total, last } => {
                    let lane = self.lanes.entry(name(rank, to)).or_default();
                    let draft = lane.draft.get_or_insert_with(|| vec![GARBAGE; word(u64::from(total))]);
                    let at = word(u64::from(at));
                    draft[at..at + len].copy_from_slice(&sum);
                    if last {
                        lane.published.extend(lane.draft.take());
                    }
                }
                Operand::Input { .. } | Operand::Recv { .. } => unreachable!("a destination"),
            }
        }
        for source in &step.sources {
            if let Operand::Recv { from, shared, last: true, .. } = *source {
                let lane = self
                    .lanes
                    .entry(name(from, readers(self.goal.topology, from, (rank, shared))))
                    .or_default();
                *lane.freed.entry(rank).or_default() += 1;
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let n = self.goal.topology.nranks();
        for (name, lane) in &self.lanes {
            let reads = |r: &Rank| name.is_read_by(self.goal.topology, *r);
            let freed = |r| lane.freed.get(&r).copied().unwrap_or(0);
            let all_freed = (0..n).map(Rank).filter(reads).all(|r| freed(r) == lane.published.len());
            if lane.draft.is_some() || !all_freed {
                return Err(format!("something is left in {name}"));
            }
        }
        for rank in (0..n).map(Rank) {
            let place = self.goal.place(rank, self.in_place);
            for at in 0..self.goal.sizes(rank).1 {
                let found = self.memories[rank.index()][(place.output + at) as usize];
                if found != self.wanted(rank, at) {
                    return Err(format!("rank {rank}: element {at} is wrong"));
                }
            }
        }
        Ok(())
    }

    /// The result that the request requires, computed from its definition.
    fn wanted(&self, rank: Rank, at: u64) -> i64 {
        let request = self.goal.request;
        let n = self.goal.topology.nranks();
        let sum = |at| {
            let sum = (0..n).fold(0i64, |s, r| s.wrapping_add(number(Rank(r), at)));
            if n > 1 { finished(sum) } else { sum }
        };
        match request.kind {
            CollKind::AllReduce | CollKind::Reduce => sum(at),
            CollKind::ReduceScatter => sum(u64::from(rank.0) * request.count + at),
            CollKind::AllGather | CollKind::Gather => {
                number(Rank((at / request.count) as u32), at % request.count)
            }
            CollKind::AllToAll => {
                let from = Rank((at / request.count) as u32);
                number(from, u64::from(rank.0) * request.count + at % request.count)
            }
            CollKind::Scatter => number(request.root, u64::from(rank.0) * request.count + at),
            CollKind::Broadcast => number(request.root, at),
            CollKind::Send | CollKind::Recv => number(self.goal.sender.unwrap_or_default(), at),
            CollKind::Barrier => unreachable!("no output"),
        }
    }
}

fn readers(topology: &Topology, from: Rank, (rank, shared): (Rank, bool)) -> Readers {
    if shared { Readers::Group(topology.group(from)) } else { Readers::One(rank) }
}
