//! A communicator of one rank: the input is copied to the output, and no messages are sent.

use super::{Operand, Step};
use crate::collective::{Blocks, CallTerms, Request};
use crate::types::Rank;

/// The most bytes of one copy: fits the length field of a step, in whole elements.
const MOST: u64 = 1 << 30;

/// The number of steps; 0 if there is nothing to copy.
pub(super) fn len(call: (&Request, Option<&CallTerms>)) -> u64 {
    bytes(call).div_ceil(MOST)
}

/// Step `index`.
pub(super) fn step(call: (&Request, Option<&CallTerms>), index: u64) -> Step {
    let at = index * MOST;
    let len = (bytes(call) - at).min(MOST) as u32;
    Step::copy(len, Operand::Input { at }, &[Operand::Output { at }])
}

fn bytes((request, terms): (&Request, Option<&CallTerms>)) -> u64 {
    Blocks::of(request, terms).len(Rank(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CollKind, Datatype, ReduceOp};

    #[test]
    fn the_steps_copy_all_bytes_in_whole_elements() {
        let (kind, op, root) = (CollKind::AllReduce, ReduceOp::Sum, Rank(0));
        for (dtype, count) in [
            (Datatype::U8, 0),
            (Datatype::U8, 1 << 30),
            (Datatype::U8, (1 << 30) + 1),
            (Datatype::U8, 5 << 30),
            (Datatype::F64, (1 << 30) - 1),
        ] {
            let request = Request { kind, dtype, op, root, count, uneven: false };
            let mut done = 0;
            for index in 0..len((&request, None)) {
                let step = step((&request, None), index);
                assert_eq!(step.sources[..], [Operand::Input { at: done }]);
                assert_eq!(step.destinations[..], [Operand::Output { at: done }]);
                assert!(step.len > 0 && (step.len as usize).is_multiple_of(dtype.size()));
                done += u64::from(step.len);
            }
            assert_eq!(done, count * dtype.size() as u64);
        }
    }
}
