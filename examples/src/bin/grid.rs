//! Ranks in a grid of tensor, data and pipeline parallel groups, as a large model is trained: every
//! rank is in a communicator of each kind, and in one of all. At a step that only the caller knows,
//! one rank deviates in one of its groups:
//! `ccl-inspect run -n 8 -- grid --victim 5 --group data --at 4 --how absent`.
#![expect(clippy::print_stdout, reason = "a program that prints what its victim does")]

use std::process::ExitCode;
use std::time::Duration;

use ccl::{Communicator, Config, Rank, ReduceOp, clock};
use ccl_examples::grid::{Group, Groups, Shape};
use clap::{Parser, ValueEnum};
use rustix::process::{Signal, getpid, kill_process};

#[derive(Parser, Debug)]
struct Arguments {
    /// Ranks of a tensor parallel group.
    #[arg(long, default_value_t = 2)]
    tensor: u32,
    /// Ranks of a data parallel group.
    #[arg(long, default_value_t = 2)]
    data: u32,
    /// Ranks of a pipeline.
    #[arg(long, default_value_t = 2)]
    pipeline: u32,
    /// Make each group from a unique id of its own, then end the communicator of all ranks. Without
    /// this the groups are parts of that one.
    #[arg(long)]
    ids: bool,
    /// The rank that deviates; none if there is no such rank.
    #[arg(long, default_value_t = u32::MAX, hide_default_value = true)]
    victim: u32,
    /// In which of its groups.
    #[arg(long, value_enum, default_value = "data")]
    group: Group,
    /// At which step, from 1.
    #[arg(long, default_value_t = 1)]
    at: u64,
    /// How it deviates.
    #[arg(long, value_enum, default_value = "absent")]
    how: How,
    /// The number of steps; 0: until it is ended from outside.
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Elements of the tensors.
    #[arg(long, default_value_t = 4096)]
    count: usize,
    /// Milliseconds each rank works at a step.
    #[arg(long, default_value_t = 1)]
    work_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum How {
    /// It sleeps outside ccl instead of making the call.
    Absent,
    /// It is stopped before the call, as by SIGSTOP.
    Stopped,
    /// It is killed before the call.
    Killed,
    /// It makes the call with one element more.
    Count,
    /// It broadcasts from another root; a pipeline has none.
    Root,
    /// It waits for a message in another of its groups that nobody sends.
    Elsewhere,
    /// It works for a second instead of making the call, and goes on; it makes none in this group
    /// any more.
    Forget,
    /// It and the ranks of another of its groups call there for ever.
    Busy,
}

fn signal(signal: Signal) -> std::io::Result<()> {
    Ok(kill_process(getpid(), signal)?)
}

/// One rank's part of the work.
struct Worker<'a> {
    arguments: &'a Arguments,
    groups: Groups,
    shape: Shape,
    rank: u32,
}

impl Worker<'_> {
    /// Another of the rank's groups.
    fn other_than(&self, group: Group) -> &Communicator {
        self.groups.of(if group == Group::Data { Group::Tensor } else { Group::Data })
    }

    /// Whether this rank makes no calls in this group any more.
    fn has_forgotten(&self, step: u64, group: Group) -> bool {
        let Arguments { victim, at, how, group: drawn, .. } = *self.arguments;
        how == How::Forget && (self.rank, group) == (victim, drawn) && step >= at
    }

    /// Whether this rank is in the group in which the victim and all others are busy.
    fn is_busy(&self, step: u64, group: Group) -> bool {
        let Arguments { victim, at, how, group: drawn, .. } = *self.arguments;
        let other = if drawn == Group::Data { Group::Tensor } else { Group::Data };
        let busy = || self.shape.members(other, victim).contains(&self.rank);
        how == How::Busy && (step, group) == (at, drawn) && victim < self.shape.nranks() && busy()
    }

    /// Does at this step what the victim does before its call in this group, if this rank is it;
    /// returns how the call itself deviates.
    fn deviates(&self, step: u64, group: Group) -> Result<Option<How>, Box<dyn std::error::Error>> {
        let Arguments { victim, at, how, group: drawn, .. } = *self.arguments;
        if self.is_busy(step, group) {
            println!("rank {} is busy in another group than {group} at step {at}", self.rank);
            let mut values = vec![1f32; self.arguments.count];
            loop {
                self.other_than(group).all_reduce_in_place(&mut values, ReduceOp::Max)?;
            }
        }
        if (self.rank, step, group) != (victim, at, drawn) {
            return Ok(None);
        }
        println!("rank {victim} deviates at step {at} in {group}: {how:?}");
        match how {
            How::Absent => clock::sleep(Duration::from_secs(3600)),
            How::Stopped => signal(Signal::STOP)?,
            How::Killed => signal(Signal::KILL)?,
            How::Elsewhere => {
                let other = self.other_than(group);
                other.recv(&mut [0f32], Rank((other.rank().0 + 1) % other.nranks()))?;
            }
            How::Forget => clock::sleep(Duration::from_secs(1)),
            How::Count | How::Root => return Ok(Some(how)),
            How::Busy => {}
        }
        Ok(None)
    }

    /// Hands activations on from stage to stage, and gradients back.
    fn pass(&self, step: u64) -> Result<(), Box<dyn std::error::Error>> {
        let more = usize::from(self.deviates(step, Group::Pipeline)? == Some(How::Count));
        if self.has_forgotten(step, Group::Pipeline) {
            return Ok(());
        }
        let mut values = vec![1f32; self.arguments.count + more];
        let stages = self.groups.of(Group::Pipeline);
        let (me, last) = (stages.rank().0, stages.nranks() - 1);
        if me > 0 {
            stages.recv(&mut values, Rank(me - 1))?;
        }
        if me < last {
            stages.send(&values, Rank(me + 1))?;
            stages.recv(&mut values, Rank(me + 1))?;
        }
        if me > 0 {
            stages.send(&values, Rank(me - 1))?;
        }
        Ok(())
    }

    /// The first rank of a group hands out a factor, and all add up what they have.
    fn add(&self, group: Group, step: u64) -> Result<(), Box<dyn std::error::Error>> {
        let how = self.deviates(step, group)?;
        if self.has_forgotten(step, group) {
            return Ok(());
        }
        let comm = self.groups.of(group);
        let root = if how == Some(How::Root) { comm.nranks() - 1 } else { 0 };
        let mut factor = [if comm.rank().0 == root { step as f32 } else { 0.0 }];
        comm.broadcast(&mut factor, Rank(root))?;
        let count = self.arguments.count + usize::from(how == Some(How::Count));
        let mut values = vec![factor[0] * (comm.rank().0 + 1) as f32; count];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        let ranks = comm.nranks();
        let expect = (step as u32 * (ranks * (ranks + 1) / 2)) as f32;
        if let Some(wrong) = values.iter().find(|value| **value != expect) {
            return Err(format!("step {step}: {group} got {wrong} where {expect} was due").into());
        }
        Ok(())
    }

    fn run(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let Arguments { steps, work_ms, .. } = *self.arguments;
        let mut step = 0;
        while steps == 0 || step < steps {
            step += 1;
            self.groups.tag(&format!("step {step}"));
            clock::sleep(Duration::from_millis(work_ms));
            self.add(Group::Tensor, step)?;
            self.pass(step)?;
            self.add(Group::Data, step)?;
            // The loss of all.
            if self.groups.has(Group::World) && step % 4 == 0 {
                self.add(Group::World, step)?;
            }
        }
        Ok(step)
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let shape = Shape { tensor: arguments.tensor, data: arguments.data, pipeline: arguments.pipeline };
    let world = Communicator::from_env_with(Config { name: "world".into(), ..Config::default() })?;
    let rank = world.rank().0;
    println!("rank {rank} is process {}: {}", std::process::id(), shape.position(rank));
    let groups = Groups::make(world, shape, arguments.ids)?;
    let worker = Worker { arguments, groups, shape, rank };
    let steps = worker.run()?;
    println!("rank {rank}: {steps} steps");
    Ok(worker.groups.finish()?)
}

fn main() -> ExitCode {
    ccl_exporters::init_from_env();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ccl_examples::complain(error.as_ref());
            ExitCode::FAILURE
        }
    }
}
