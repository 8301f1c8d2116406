//! Runs programs on symbols, over bounded lanes.

use std::collections::{BTreeMap, VecDeque};

use super::goal::{Buffers, Goal, Value};
use super::{Fault, Rejection, Slots, StuckOn, Turn};
use crate::plan::{Action, Lane, LaneId, Operand, Readers, Step, Topology};
use crate::types::{ChannelId, Rank};

/// Runs the programs until all have ended, and checks the final state.
pub(super) fn run(
    goal: &Goal<'_>,
    programs: &[Vec<Vec<Step>>],
    slots: Slots,
    in_place: bool,
) -> Result<(), Rejection> {
    let mut machine = Machine::new(goal, programs, slots, in_place);
    let result = machine.run().and_then(|()| machine.check_end());
    result.map_err(|fault| Rejection { in_place, fault, schedule: machine.schedule })
}

struct Machine<'a> {
    goal: &'a Goal<'a>,
    slots: Slots,
    programs: Vec<Program<'a>>,
    memories: Vec<Memory>,
    lanes: BTreeMap<Lane, Queue>,
    schedule: Vec<Turn>,
}

struct Program<'a> {
    rank: Rank,
    channel: u16,
    steps: &'a [Step],
    at: usize,
    /// The ranks that this program has received from, directly or through others.
    ///
    /// They are kept per program, not per rank, because the content of a message must not depend on
    /// the order of turns.
    heard: u64,
}

/// No step has stored here (as the index of a turn), no channel has read here (as a channel).
const NONE: u32 = u32::MAX;
const NO_CHANNEL: u16 = u16::MAX;
/// Several channels have read here.
const SEVERAL: u16 = u16::MAX - 1;

struct Memory {
    place: Buffers,
    values: Vec<Value>,
    /// The turn that stored an element, and the channel that read it.
    ///
    /// Steps of the same channel may access the same memory.
    stored: Vec<u32>,
    read: Vec<u16>,
}

struct QueuedMessage {
    values: Vec<Value>,
    heard: u64,
}

struct Queue {
    /// The message being filled.
    draft: Option<Vec<Value>>,
    /// Messages that not all readers have freed.
    queue: VecDeque<QueuedMessage>,
    /// Messages that all readers have freed.
    gone: u64,
    /// Messages that each reader has freed, by rank; `u64::MAX` for ranks that do not read the
    /// lane.
    freed: Vec<u64>,
}

impl Program<'_> {
    fn turn(&self) -> Turn {
        Turn { rank: self.rank, channel: self.channel, step: self.at as u32 }
    }
    /// The lane of an operand, if it is a message.
    fn lane(&self, operand: &Operand, topology: &Topology) -> Option<Lane> {
        let (from, readers) = match *operand {
            Operand::Recv { from, shared: true, .. } => (from, Readers::Group(topology.group(from))),
            Operand::Recv { from, shared: false, .. } => (from, Readers::One(self.rank)),
            Operand::Send { to, .. } => (self.rank, to),
            Operand::Input { .. } | Operand::Output { .. } | Operand::Scratch { .. } => return None,
        };
        Some(Lane { from, id: LaneId { channel: ChannelId(self.channel), readers } })
    }
}

impl Queue {
    fn new(lane: Lane, topology: &Topology) -> Self {
        let freed = |rank| if lane.is_read_by(topology, rank) { 0 } else { u64::MAX };
        let freed = (0..topology.nranks()).map(Rank).map(freed).collect();
        Self { draft: None, queue: VecDeque::new(), gone: 0, freed }
    }
    fn head(&self, reader: Rank) -> Option<&QueuedMessage> {
        self.queue.get((self.freed[reader.index()] - self.gone) as usize)
    }
    fn free(&mut self, reader: Rank) {
        self.freed[reader.index()] += 1;
        let (_, least) = self.slowest();
        self.queue.drain(..(least - self.gone) as usize);
        self.gone = least;
    }
    /// The reader that has freed the fewest messages, and their number.
    fn slowest(&self) -> (Rank, u64) {
        let least = (0..).map(Rank).zip(self.freed.iter().copied()).min_by_key(|&(_, freed)| freed);
        least.unwrap_or_default()
    }
}

impl<'a> Machine<'a> {
    fn new(goal: &'a Goal<'a>, programs: &'a [Vec<Vec<Step>>], slots: Slots, in_place: bool) -> Self {
        let ranks = || (0..goal.topology.nranks()).map(Rank);
        let memories =
            ranks().map(|rank| Memory::new(goal, rank, in_place, &programs[rank.index()])).collect();
        let programs = ranks()
            .zip(programs)
            .flat_map(|(rank, channels)| {
                (0..).zip(channels).map(move |(channel, steps)| Program {
                    rank,
                    channel,
                    steps,
                    at: 0,
                    heard: 1 << rank.0,
                })
            })
            .collect();
        Self { goal, slots, programs, memories, lanes: BTreeMap::new(), schedule: Vec::new() }
    }

    fn run(&mut self) -> Result<(), Fault> {
        loop {
            let before = self.schedule.len();
            let mut waits = Vec::new();
            for p in 0..self.programs.len() {
                while self.programs[p].at < self.programs[p].steps.len() {
                    if let Some(wait) = self.execute(p)? {
                        waits.push((self.programs[p].turn(), wait));
                        break;
                    }
                }
            }
            if waits.is_empty() {
                return Ok(());
            }
            if self.schedule.len() == before {
                return Err(Fault::Stuck(waits));
            }
        }
    }

    fn lane(&mut self, name: Lane) -> &mut Queue {
        let topology = self.goal.topology;
        self.lanes.entry(name).or_insert_with(|| Queue::new(name, topology))
    }

    /// Executes the next step of a program, or changes nothing and returns why it must wait.
    fn execute(&mut self, p: usize) -> Result<Option<StuckOn>, Fault> {
        let program = &self.programs[p];
        let (turn, step) = (program.turn(), &program.steps[program.at]);
        if let Some(wait) = self.ready(p, step)? {
            return Ok(Some(wait));
        }
        let count = step.len as usize / self.goal.size() as usize;
        if !step.destinations.is_empty() && count > 0 {
            let sum = self.read(turn, p, step, count)?;
            self.store(turn, p, step, &sum)?;
        }
        // Readers learn what the writer knew: sources count before destinations are published.
        for source in &step.sources {
            if let (Some(name), &Operand::Recv { last, .. }) =
                (self.programs[p].lane(source, self.goal.topology), source)
            {
                let heard = self.lane(name).head(turn.rank).map_or(0, |message| message.heard);
                self.programs[p].heard |= heard;
                if last {
                    self.lane(name).free(turn.rank);
                }
            }
        }
        let heard = self.programs[p].heard;
        for destination in &step.destinations {
            if let (Some(name), Operand::Send { last: true, .. }) =
                (self.programs[p].lane(destination, self.goal.topology), destination)
            {
                let lane = self.lane(name);
                let values = lane.draft.take().unwrap_or_default();
                lane.queue.push_back(QueuedMessage { values, heard });
            }
        }
        self.programs[p].at += 1;
        self.schedule.push(turn);
        Ok(None)
    }

    /// Returns why a step must wait, if it must. Otherwise the messages that it fills now exist.
    fn ready(&mut self, p: usize, step: &Step) -> Result<Option<StuckOn>, Fault> {
        let (turn, size, slots) = (self.programs[p].turn(), self.goal.size(), self.slots);
        for source in &step.sources {
            let (Some(name), &Operand::Recv { at, .. }) =
                (self.programs[p].lane(source, self.goal.topology), source)
            else {
                continue;
            };
            let Some(message) = self.lane(name).head(turn.rank) else {
                return Ok(Some(StuckOn::Message(name)));
            };
            let bytes = message.values.len() as u64 * size;
            if !step.destinations.is_empty() && u64::from(at) + u64::from(step.len) > bytes {
                let why = format!("bytes {at}+{} of a message of {bytes}", step.len);
                return Err(Fault::Disagrees(turn, name, why));
            }
        }
        let name = |d: &Operand| self.programs[p].lane(d, self.goal.topology);
        let messages: Vec<_> = (step.destinations.iter())
            .filter_map(|d| match *d {
                Operand::Send { total, to, .. } => Some((name(d)?, total, to)),
                _ => None,
            })
            .collect();
        for &(name, total, to) in &messages {
            let lane = self.lane(name);
            if let Some(draft) = &lane.draft {
                let bytes = draft.len() as u64 * size;
                if bytes != u64::from(total) {
                    let why = format!("a message of {bytes} bytes is filled as one of {total}");
                    return Err(Fault::Disagrees(turn, name, why));
                }
            } else {
                let most = slots.terms(to).slots;
                if lane.queue.len() >= most as usize {
                    return Ok(Some(StuckOn::Slot(name, lane.slowest().0)));
                }
            }
        }
        for (name, total, _) in messages {
            let count = (u64::from(total) / size) as usize;
            self.lane(name).draft.get_or_insert_with(|| vec![Value::UNWRITTEN; count]);
        }
        Ok(None)
    }

    /// The sources of a step, reduced in order.
    fn read(&mut self, turn: Turn, p: usize, step: &Step, count: usize) -> Result<Vec<Value>, Fault> {
        let size = self.goal.size();
        let mut sum: Option<Vec<Value>> = None;
        for source in &step.sources {
            let lane = self.programs[p].lane(source, self.goal.topology);
            let memory = &mut self.memories[turn.rank.index()];
            let values = match (*source, lane) {
                (Operand::Input { at }, _) => {
                    let from = memory.place.input + at / size;
                    memory.read(turn, from as usize, count, &self.schedule)?
                }
                (Operand::Output { at }, _) => {
                    let from = memory.place.output + at / size;
                    memory.read(turn, from as usize, count, &self.schedule)?
                }
                (Operand::Scratch { at }, _) => {
                    let from = memory.place.scratch + at / size;
                    memory.read(turn, from as usize, count, &self.schedule)?
                }
                (Operand::Recv { at, .. }, Some(name)) => {
                    let from = (u64::from(at) / size) as usize;
                    let head = self.lanes.get(&name).and_then(|lane| lane.head(turn.rank));
                    &head.map_or(&[][..], |message| &message.values)[from..from + count]
                }
                (Operand::Recv { .. } | Operand::Send { .. }, _) => continue,
            };
            match &mut sum {
                None => sum = Some(values.to_vec()),
                Some(sum) => sum.iter_mut().zip(values).for_each(|(s, v)| *s = s.plus(*v)),
            }
        }
        let mut sum = sum.unwrap_or_default();
        if step.action == Action::ReduceLast {
            sum.iter_mut().for_each(|value| *value = value.last(self.goal.everyone()));
        }
        Ok(sum)
    }

    fn store(&mut self, turn: Turn, p: usize, step: &Step, values: &[Value]) -> Result<(), Fault> {
        let size = self.goal.size();
        for destination in &step.destinations {
            let lane = self.programs[p].lane(destination, self.goal.topology);
            match (*destination, lane) {
                (Operand::Output { at }, _) => {
                    let memory = &mut self.memories[turn.rank.index()];
                    let from = memory.place.output + at / size;
                    memory.store(turn, from as usize, values, &self.schedule)?;
                }
                (Operand::Scratch { at }, _) => {
                    let memory = &mut self.memories[turn.rank.index()];
                    let from = memory.place.scratch + at / size;
                    memory.store(turn, from as usize, values, &self.schedule)?;
                }
                (Operand::Send { at, .. }, Some(name)) => {
                    let from = (u64::from(at) / size) as usize;
                    if let Some(draft) = &mut self.lane(name).draft {
                        draft[from..from + values.len()].copy_from_slice(values);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the final state: lanes are empty, outputs are correct, and every rank has received
    /// from all ranks that it must wait for.
    fn check_end(&self) -> Result<(), Fault> {
        for (&name, lane) in &self.lanes {
            if lane.draft.is_some() {
                return Err(Fault::Unpublished(name));
            }
            if !lane.queue.is_empty() {
                return Err(Fault::LeftOver(name, lane.queue.len() as u64));
            }
        }
        for (rank, memory) in (0..).map(Rank).zip(&self.memories) {
            let (_, count) = self.goal.sizes(rank);
            for element in 0..count {
                let at = (memory.place.output + element) as usize;
                let (found, wanted) = (memory.values[at], self.goal.wanted(rank, element));
                if found != wanted {
                    let stored = self.schedule.get(memory.stored[at] as usize).copied();
                    return Err(Fault::Wrong { rank, element, found, wanted, stored });
                }
            }
            let own = self.programs.iter().filter(|p| p.rank == rank);
            let heard = own.fold(1 << rank.0, |heard, p| heard | p.heard);
            let missing = self.goal.heard(rank) & !heard;
            if missing != 0 {
                return Err(Fault::Unaware(rank, Rank(missing.trailing_zeros())));
            }
        }
        Ok(())
    }
}

impl Memory {
    fn new(goal: &Goal<'_>, rank: Rank, in_place: bool, programs: &[Vec<Step>]) -> Self {
        let place = goal.place(rank, in_place);
        let len = (place.len + goal.scratch(programs)) as usize;
        let mut values = vec![Value::UNWRITTEN; len];
        let (input, _) = goal.sizes(rank);
        for (at, value) in (0..input).zip(&mut values[place.input as usize..]) {
            *value = goal.given(rank, at);
        }
        Self { place, values, stored: vec![NONE; len], read: vec![NO_CHANNEL; len] }
    }

    fn read(&mut self, turn: Turn, from: usize, count: usize, done: &[Turn]) -> Result<&[Value], Fault> {
        for at in from..from + count {
            if let Some(&by) = done.get(self.stored[at] as usize)
                && by.channel != turn.channel
            {
                return Err(Fault::Shared(turn, by));
            }
            let read = &mut self.read[at];
            *read = if *read == NO_CHANNEL || *read == turn.channel { turn.channel } else { SEVERAL };
        }
        Ok(&self.values[from..from + count])
    }

    fn store(&mut self, turn: Turn, from: usize, values: &[Value], done: &[Turn]) -> Result<(), Fault> {
        for (at, &value) in (from..).zip(values) {
            if let Some(&by) = done.get(self.stored[at] as usize)
                && by.channel != turn.channel
            {
                return Err(Fault::Shared(turn, by));
            }
            let read = self.read[at];
            if read != NO_CHANNEL && read != turn.channel {
                // If several channels have read, any other one is reported; its step is not known.
                let channel = if read == SEVERAL { u16::from(turn.channel == 0) } else { read };
                return Err(Fault::Shared(turn, Turn { rank: turn.rank, channel, step: 0 }));
            }
            self.values[at] = value;
            self.stored[at] = done.len() as u32;
        }
        Ok(())
    }
}
