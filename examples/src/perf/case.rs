//! One way to call of one row of the table, measured and checked.

use ccl::{Communicator, ReduceOp, Result, clock};

use super::caller::{Caller, Placement};
use super::datum::Datum;
use super::entries::{Entry, Origin};
use super::expected::{Expected, reduction};
use super::inputs::{Family, Inputs};
use super::memory::unwritten;
use super::operations::{Operation, Operations};
use super::options::Options;

/// What was measured and found, the same on all ranks.
pub(super) struct Measured {
    /// Nanoseconds of one operation, the mean of all ranks.
    pub(super) ns: f64,
    /// Wrong elements of all ranks; `None` if nothing was checked.
    pub(super) wrong: Option<u64>,
}

/// What is measured: an entry with one type, operator, size and placement.
pub(super) struct Case<'a, T: Datum> {
    comm: &'a Communicator,
    options: &'a Options,
    entry: &'a Entry<T>,
    placement: Placement,
    operation: Operation<T>,
}

impl<'a, T: Datum> Case<'a, T> {
    /// The case of a caller; `None` if there is no such call.
    pub(super) fn new(
        comm: &'a Communicator,
        options: &'a Options,
        entry: &'a Entry<T>,
        placement: Placement,
        caller: Caller,
    ) -> Option<Self> {
        let operation = Operation::new(entry, placement, caller, options.unalign.into())?;
        Some(Self { comm, options, entry, placement, operation })
    }

    /// Measures, then checks. `plant` is a fault to be planted by the root, and is cleared when it
    /// is.
    pub(super) fn run(&self, plant: &mut bool) -> Result<Measured> {
        let Options { agg_iters, persistent, .. } = *self.options;
        let mut operations = self.operation.times(self.comm, agg_iters, persistent > 0)?;
        let ns = self.time(&mut operations)?;
        let mut wrong = None;
        for iteration in 0..self.options.check {
            // So that one checked iteration of each placement has both families as well.
            let family = self.options.family(iteration + u64::from(self.placement == Placement::InPlace));
            let found = self.check(&mut operations, family, iteration, plant)?;
            wrong = Some(wrong.unwrap_or(0) + found);
        }
        let wrong = wrong.map(|wrong| self.total(wrong)).transpose()?;
        Ok(Measured { ns, wrong })
    }

    /// Nanoseconds of one operation: the mean of all iterations and ranks.
    fn time(&self, operations: &mut Operations<T>) -> Result<f64> {
        self.fill(operations, Family::Exact, 0);
        for _ in 0..self.options.warmup_iters {
            self.operation.run(self.comm, operations)?;
        }
        let iterations = self.options.timed();
        self.comm.barrier()?;
        let begin = clock::now();
        for _ in 0..iterations {
            self.operation.run(self.comm, operations)?;
        }
        let took_ns = clock::now().since(begin).as_nanos() as f64;
        let mut sum_ns = [took_ns / (iterations as f64 * self.options.agg_iters as f64)];
        self.comm.all_reduce_in_place(&mut sum_ns, ReduceOp::Sum)?;
        Ok(sum_ns[0] / f64::from(self.operation.caller.nranks))
    }

    /// Carries out one iteration with fresh inputs; returns what is wrong on this rank.
    fn check(
        &self,
        operations: &mut Operations<T>,
        family: Family,
        iteration: u64,
        plant: &mut bool,
    ) -> Result<u64> {
        self.fill(operations, family, iteration);
        self.operation.run(self.comm, operations)?;
        if *plant && self.operation.caller.is_root() {
            *plant = !self.plant(operations);
        }
        let mut wrong = 0;
        for (at, memory) in (0..).zip(operations.memory()) {
            let inputs = self.inputs(at, family, iteration);
            for (index, found) in self.operation.map.elements(memory).iter().enumerate() {
                wrong += u64::from(!self.after(&inputs, index).admits(*found));
            }
        }
        Ok(wrong)
    }

    /// The inputs of one of the operations, which are others for each one.
    fn inputs(&self, operation: u64, family: Family, iteration: u64) -> Inputs<T> {
        let Caller { nranks, op, .. } = self.operation.caller;
        let op = Some(op).filter(|_| self.entry.kind.reduces());
        Inputs::new(family, op, nranks, self.options.seed, iteration * self.options.agg_iters + operation)
    }

    fn fill(&self, operations: &mut Operations<T>, family: Family, iteration: u64) {
        for (at, memory) in (0..).zip(operations.memory()) {
            let inputs = self.inputs(at, family, iteration);
            for (index, to) in self.operation.map.elements(memory).iter_mut().enumerate() {
                *to = self.before(&inputs, index);
            }
        }
    }

    /// What is in the memory before the call.
    fn before(&self, inputs: &Inputs<T>, index: usize) -> T {
        let input = &self.operation.map.input;
        if !input.contains(&index) {
            return unwritten();
        }
        inputs.datum(self.operation.caller.rank, (index - input.start) as u64)
    }

    /// What must be in it after the call.
    fn after(&self, inputs: &Inputs<T>, index: usize) -> Expected {
        let kept = || Expected::Bits(self.before(inputs, index).bits());
        let output = &self.operation.map.output;
        if !output.contains(&index) {
            return kept();
        }
        match (self.entry.origin)(&self.operation.caller, index - output.start) {
            Origin::Reduced(index) => reduction(inputs, self.operation.caller.op, index as u64),
            Origin::Copied(rank, index) => Expected::Bits(inputs.datum(rank, index as u64).bits()),
            Origin::Kept => kept(),
        }
    }

    /// Flips a bit of the first result; returns whether there is one.
    fn plant(&self, operations: &mut Operations<T>) -> bool {
        let map = &self.operation.map;
        let result = |memory: &mut [T]| {
            let results = &mut map.elements(memory)[map.output.clone()];
            let middle = results.len() / 2;
            let element = results.get_mut(middle)?;
            // The highest bit below the sign: no rounding explains it.
            *element = T::from_bits(element.bits() ^ 1 << (8 * size_of::<T>() - 2));
            Some(())
        };
        operations.memory().into_iter().find_map(result).is_some()
    }

    /// The sum over all ranks.
    fn total(&self, wrong: u64) -> Result<u64> {
        let mut sum = [wrong];
        self.comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        Ok(sum[0])
    }
}
