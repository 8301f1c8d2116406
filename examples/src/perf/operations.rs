//! The operations of one iteration, each with memory of its own: called together, or prepared once.

use ccl::{Collective, Communicator, Prepared, Region, Result};

use super::caller::{Caller, Placement};
use super::datum::Datum;
use super::entries::{Calls, Entry, OneBuffer, TwoBuffers};
use super::memory::MemoryMap;

/// How the calls of an operation are made of its memory.
enum Maker<T: Datum> {
    Two(TwoBuffers<T>),
    One(OneBuffer<T>),
}

/// What all operations of a row have in common.
pub(super) struct Operation<T: Datum> {
    maker: Maker<T>,
    /// Who calls.
    pub(super) caller: Caller,
    /// Where its buffers lie.
    pub(super) map: MemoryMap,
}

/// The operations of an iteration.
pub(super) enum Operations<T: Datum> {
    /// Each iteration calls them anew.
    Called(Vec<Region<T>>),
    /// Each iteration carries them out once more.
    Prepared(Vec<Prepared<T>>),
}

impl<T: Datum> Operation<T> {
    /// The operation of an entry, with buffers that are shifted by so many elements; `None` if
    /// there is no such call.
    pub(super) fn new(entry: &Entry<T>, placement: Placement, caller: Caller, shift: usize) -> Option<Self> {
        let input = entry.input.elements(&caller, &caller.sent);
        let output = entry.output.elements(&caller, &caller.received);
        let (maker, map) = match placement {
            Placement::OutOfPlace => (Maker::Two(entry.two?), MemoryMap::two::<T>([input, output], shift)),
            Placement::InPlace => {
                let own = caller.sent.start(caller.rank);
                (Maker::One(entry.one?), MemoryMap::one::<T>([input, output], own, shift))
            }
        };
        Some(Self { maker, caller, map })
    }

    /// So many of it, each prepared if that is asked for.
    ///
    /// # Errors
    /// As [`Communicator::prepare`]; `System`: there is too little memory.
    pub(super) fn times(
        &self,
        comm: &Communicator,
        operations: u64,
        is_prepared: bool,
    ) -> Result<Operations<T>> {
        let memory = (0..operations).map(|_| self.map.allocate());
        if !is_prepared {
            return Ok(Operations::Called(memory.collect::<Result<_>>()?));
        }
        let prepared = memory.map(|memory| comm.prepare(memory?, |memory| self.call(memory)));
        Ok(Operations::Prepared(prepared.collect::<Result<_>>()?))
    }

    fn calls<'a, 'c>(&'c self, memory: &'a mut [T]) -> Calls<'a, 'c> {
        match self.maker {
            Maker::Two(calls) => {
                let (input, output) = self.map.buffers(memory);
                calls(&self.caller, input, output)
            }
            Maker::One(call) => [Some(call(&self.caller, self.map.buffer(memory))), None],
        }
    }

    /// Of an operation that is one call, that.
    fn call<'a, 'c>(&'c self, memory: &'a mut [T]) -> Collective<'a, 'c> {
        let [Some(call), None] = self.calls(memory) else { unreachable!("pairs are not prepared") };
        call
    }

    /// Carries all out, and returns when all have ended: several calls are a group.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub(super) fn run(&self, comm: &Communicator, operations: &mut Operations<T>) -> Result<()> {
        match operations {
            Operations::Called(memory) => {
                let mut calls = memory.iter_mut().flat_map(|memory| self.calls(memory)).flatten();
                match (calls.next(), calls.next()) {
                    (Some(only), None) => comm.run(only),
                    (first, second) => {
                        let mut group = comm.group();
                        first.into_iter().chain(second).chain(calls).for_each(|call| {
                            group.add(call);
                        });
                        group.run()
                    }
                }
            }
            Operations::Prepared(prepared) => {
                if let [one] = &mut prepared[..] {
                    return one.run();
                }
                prepared.iter_mut().try_for_each(Prepared::start)?;
                prepared.iter_mut().try_for_each(Prepared::wait)
            }
        }
    }
}

impl<T: Datum> Operations<T> {
    /// The memory of each.
    pub(super) fn memory(&mut self) -> Vec<&mut [T]> {
        match self {
            Self::Called(memory) => memory.iter_mut().map(|memory| &mut memory[..]).collect(),
            Self::Prepared(prepared) => prepared.iter_mut().map(Prepared::buffer).collect(),
        }
    }
}
