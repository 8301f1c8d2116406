//! One row of the table: a collective with one type, operator and size, measured and checked.

use std::ops::Range;

use ccl::{Communicator, ReduceOp, Result, clock};

use super::buffers::{Buffer, unwritten};
use super::collectives::{BeginInPlace, BeginOutOfPlace, Caller, Collective, InPlace, Origin, OutOfPlace};
use super::datum::Datum;
use super::expected::{Expected, reduction};
use super::inputs::{Family, Inputs};
use super::options::Options;

/// Whether a call has one buffer for input and output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placement {
    OutOfPlace,
    InPlace,
}

/// The call to make.
enum Call<T: Datum> {
    TwoBuffers(OutOfPlace<T>),
    OneBuffer(InPlace<T>),
    BeginTwo(BeginOutOfPlace<T>),
    BeginOne(BeginInPlace<T>),
}

/// What a buffer is to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Input,
    Output,
    Both,
}

/// Which part of a buffer is input, and which output.
struct Layout {
    len: usize,
    input: Range<usize>,
    output: Range<usize>,
}

/// What was measured and found, the same on all ranks.
pub(super) struct Measured {
    /// Nanoseconds of one operation, the mean of all ranks.
    pub(super) ns: f64,
    /// Wrong elements of all ranks; `None` if nothing was checked.
    pub(super) wrong: Option<u64>,
}

/// What one row is made of.
pub(super) struct Case<'a, T: Datum> {
    pub(super) comm: &'a Communicator,
    pub(super) options: &'a Options,
    pub(super) collective: &'a Collective<T>,
    pub(super) caller: Caller,
}

impl<T: Datum> Case<'_, T> {
    /// Measures, then checks; `None` if there is no such call. `plant` is a fault to be planted by
    /// the root, and is cleared when it is.
    pub(super) fn run(&self, placement: Placement, plant: &mut bool) -> Result<Option<Measured>> {
        let Some(call) = self.call_for(placement) else { return Ok(None) };
        let mut buffers = self.buffers(&call);
        let ns = self.time(&call, &mut buffers)?;
        let mut wrong = None;
        for (nth, iteration) in self.options.checked().enumerate() {
            // So that one checked iteration has both families as well.
            let family = self.options.family(nth as u64 + u64::from(placement == Placement::InPlace));
            let found = self.check(&call, &mut buffers, family, iteration, plant)?;
            wrong = Some(wrong.unwrap_or(0) + found);
        }
        let wrong = wrong.map(|wrong| self.total(wrong)).transpose()?;
        Ok(Some(Measured { ns, wrong }))
    }

    fn call_for(&self, placement: Placement) -> Option<Call<T>> {
        let collective = self.collective;
        match (placement, self.options.agg_iters) {
            (Placement::OutOfPlace, 1) => collective.out_of_place.map(Call::TwoBuffers),
            (Placement::InPlace, 1) => collective.in_place.map(Call::OneBuffer),
            (Placement::OutOfPlace, _) => collective.begin_out_of_place.map(Call::BeginTwo),
            (Placement::InPlace, _) => collective.begin_in_place.map(Call::BeginOne),
        }
    }

    /// The buffers of all operations of one iteration, and what they are.
    fn buffers(&self, call: &Call<T>) -> Vec<(Role, Buffer<T>)> {
        let guarded = |role| (role, Buffer::guarded(self.layout(role).len, self.options.unalign.into()));
        let bare = |role| (role, Buffer::bare(self.layout(role).len));
        let operations = 0..self.options.agg_iters;
        match call {
            Call::TwoBuffers(_) => vec![guarded(Role::Input), guarded(Role::Output)],
            Call::OneBuffer(_) => vec![guarded(Role::Both)],
            Call::BeginTwo(_) => operations.flat_map(|_| [bare(Role::Input), bare(Role::Output)]).collect(),
            Call::BeginOne(_) => operations.map(|_| bare(Role::Both)).collect(),
        }
    }

    fn layout(&self, role: Role) -> Layout {
        let input = self.collective.input.elements(&self.caller);
        let output = self.collective.output.elements(&self.caller);
        // In one buffer, a single block is the rank's own of all blocks.
        let own = self.caller.rank as usize * self.caller.count;
        let inside = |part, whole| if part < whole { own..own + part } else { 0..part };
        match role {
            Role::Input => Layout { len: input, input: 0..input, output: 0..0 },
            Role::Output => Layout { len: output, input: 0..0, output: 0..output },
            Role::Both => {
                Layout { len: input.max(output), input: inside(input, output), output: inside(output, input) }
            }
        }
    }

    /// Makes all calls of one iteration, and waits for them.
    fn make(&self, call: &Call<T>, buffers: &mut [(Role, Buffer<T>)]) -> Result<()> {
        let (comm, caller) = (self.comm, &self.caller);
        let mut pending = Vec::new();
        match call {
            Call::TwoBuffers(call) => {
                let (input, output) = buffers.split_at_mut(1);
                return call(comm, input[0].1.data(), output[0].1.data_mut(), caller);
            }
            Call::OneBuffer(call) => return call(comm, buffers[0].1.data_mut(), caller),
            Call::BeginTwo(begin) => {
                for pair in buffers.chunks_exact_mut(2) {
                    let lent = [pair[0].1.lend(), pair[1].1.lend()];
                    pending.extend(begin(comm, lent, caller)?);
                }
            }
            Call::BeginOne(begin) => {
                for (_, buffer) in &mut *buffers {
                    pending.push(begin(comm, buffer.lend(), caller)?);
                }
            }
        }
        for ((_, buffer), pending) in buffers.iter_mut().zip(pending) {
            buffer.take_back(pending.wait()?);
        }
        Ok(())
    }

    /// Nanoseconds of one operation: the mean of all iterations and ranks.
    fn time(&self, call: &Call<T>, buffers: &mut [(Role, Buffer<T>)]) -> Result<f64> {
        self.fill(buffers, Family::Exact, 0);
        for _ in 0..self.options.warmup_iters {
            self.make(call, buffers)?;
        }
        self.comm.barrier()?;
        let begin = clock::now();
        for _ in 0..self.options.iters {
            self.make(call, buffers)?;
        }
        let took_ns = clock::now().since(begin).as_nanos() as f64;
        let mut sum_ns = [took_ns / (self.options.iters * self.options.agg_iters) as f64];
        self.comm.all_reduce_in_place(&mut sum_ns, ReduceOp::Sum)?;
        Ok(sum_ns[0] / f64::from(self.caller.nranks))
    }

    /// Makes the calls of one iteration with fresh inputs; returns what is wrong on this rank.
    fn check(
        &self,
        call: &Call<T>,
        buffers: &mut [(Role, Buffer<T>)],
        family: Family,
        iteration: u64,
        plant: &mut bool,
    ) -> Result<u64> {
        self.fill(buffers, family, iteration);
        self.make(call, buffers)?;
        if *plant && self.caller.rank == self.caller.root {
            *plant = !self.plant(buffers);
        }
        let wrong = buffers.iter().enumerate().map(|(at, (role, buffer))| {
            let (inputs, layout) = (self.inputs(at, buffers.len(), family, iteration), self.layout(*role));
            let right = |(index, found): (usize, &T)| self.after(&layout, &inputs, index).admits(*found);
            let wrong = buffer.data().iter().enumerate().filter(|element| !right(*element)).count();
            wrong as u64 + buffer.damage()
        });
        Ok(wrong.sum())
    }

    /// The inputs of the operation that a buffer belongs to, others for each one in flight.
    fn inputs(&self, buffer: usize, buffers: usize, family: Family, iteration: u64) -> Inputs<T> {
        let Caller { nranks, op, .. } = self.caller;
        let operation = buffer as u64 * self.options.agg_iters / buffers as u64;
        let op = Some(op).filter(|_| self.collective.kind.reduces());
        Inputs::new(family, op, nranks, self.options.seed, iteration * self.options.agg_iters + operation)
    }

    fn fill(&self, buffers: &mut [(Role, Buffer<T>)], family: Family, iteration: u64) {
        let all = buffers.len();
        for (at, (role, buffer)) in buffers.iter_mut().enumerate() {
            let (inputs, layout) = (self.inputs(at, all, family, iteration), self.layout(*role));
            let before = |(index, to): (usize, &mut T)| *to = self.before(&layout, &inputs, index);
            buffer.data_mut().iter_mut().enumerate().for_each(before);
        }
    }

    /// What is in a buffer before the call.
    fn before(&self, layout: &Layout, inputs: &Inputs<T>, index: usize) -> T {
        if !layout.input.contains(&index) {
            return unwritten();
        }
        inputs.datum(self.caller.rank, (index - layout.input.start) as u64)
    }

    /// What must be in it after the call.
    fn after(&self, layout: &Layout, inputs: &Inputs<T>, index: usize) -> Expected {
        let kept = || Expected::Bits(self.before(layout, inputs, index).bits());
        if !layout.output.contains(&index) {
            return kept();
        }
        match (self.collective.origin)(&self.caller, index - layout.output.start) {
            Origin::Reduced(index) => reduction(inputs, self.caller.op, index as u64),
            Origin::Copied(rank, index) => Expected::Bits(inputs.datum(rank, index as u64).bits()),
            Origin::Kept => kept(),
        }
    }

    /// Flips a bit of the first result; returns whether there is one.
    fn plant(&self, buffers: &mut [(Role, Buffer<T>)]) -> bool {
        let result = |(role, buffer): &'_ mut (Role, Buffer<T>)| {
            let output = self.layout(*role).output;
            let middle = output.len() / 2;
            let element = buffer.data_mut()[output].get_mut(middle)?;
            // The highest bit below the sign: no rounding explains it.
            *element = T::from_bits(element.bits() ^ 1 << (8 * size_of::<T>() - 2));
            Some(())
        };
        buffers.iter_mut().find_map(result).is_some()
    }

    /// The sum over all ranks.
    fn total(&self, wrong: u64) -> Result<u64> {
        let mut sum = [wrong];
        self.comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        Ok(sum[0])
    }
}
