//! The memory of a call: its buffers, and between them guards that no call may write.

use std::ops::Range;

use ccl::{Error, ErrorKind, Region, Result};

use super::datum::Datum;

/// The bits of a guard, and of an output before the call: each byte is the same.
const UNWRITTEN: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Bytes of a guard, and of a cache line.
const LINE: usize = 64;

/// What an element is before a call writes it.
pub(super) fn unwritten<T: Datum>() -> T {
    T::from_bits(UNWRITTEN)
}

/// Where the buffers of a call lie in its memory, in elements from the beginning of a cache line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MemoryMap {
    line: usize,
    /// The one buffer, or the input.
    first: Range<usize>,
    /// The output, if there are two buffers.
    second: Range<usize>,
    /// What is read.
    pub(super) input: Range<usize>,
    /// What is written.
    pub(super) output: Range<usize>,
}

impl MemoryMap {
    /// Of an input and an output of so many elements, in a buffer each. These begin `shift`
    /// elements behind the beginning of a cache line.
    pub(super) fn two<T: Datum>([input, output]: [usize; 2], shift: usize) -> Self {
        let line = LINE / size_of::<T>();
        let first = line + shift..line + shift + input;
        let start = (first.end + line).next_multiple_of(line) + shift;
        let second = start..start + output;
        Self { line, input: first.clone(), output: second.clone(), first, second }
    }

    /// The same in one buffer, which is as long as the longer of them. The other one begins at
    /// `own`.
    pub(super) fn one<T: Datum>([input, output]: [usize; 2], own: usize, shift: usize) -> Self {
        let line = LINE / size_of::<T>();
        let start = line + shift;
        let first = start..start + input.max(output);
        let part = |len| {
            if len == first.len() || len == 0 { start..start + len } else { start + own..start + own + len }
        };
        Self { line, input: part(input), output: part(output), second: first.end..first.end, first }
    }

    /// Memory for it, with nothing written.
    ///
    /// # Errors
    /// `System`: there is not so much.
    pub(super) fn allocate<T: Datum>(&self) -> Result<Region<T>> {
        let len = self.len() + self.line;
        let mut memory = Vec::new();
        memory.try_reserve_exact(len).map_err(|_| {
            let what =
                format!("there is no memory for buffers of {} bytes", len.saturating_mul(size_of::<T>()));
            Error::new(ErrorKind::System, what).hint("give a smaller -e, -m or -t")
        })?;
        memory.resize(len, unwritten::<T>());
        Ok(memory.into())
    }

    /// Elements, with a guard at each end.
    const fn len(&self) -> usize {
        self.second.end + self.line
    }

    /// What the positions are counted in: the memory from the beginning of a cache line on.
    pub(super) fn elements<'a, T: Datum>(&self, memory: &'a mut [T]) -> &'a mut [T] {
        let at = memory.as_ptr().align_offset(LINE).min(self.line);
        &mut memory[at..at + self.len()]
    }

    /// The one buffer.
    pub(super) fn buffer<'a, T: Datum>(&self, memory: &'a mut [T]) -> &'a mut [T] {
        &mut self.elements(memory)[self.first.clone()]
    }

    /// Input and output.
    pub(super) fn buffers<'a, T: Datum>(&self, memory: &'a mut [T]) -> (&'a [T], &'a mut [T]) {
        let (input, output) = self.elements(memory).split_at_mut(self.second.start);
        (&input[self.first.clone()], &mut output[..self.second.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_lie_around_each_buffer() {
        for shift in [0, 1, 3, 70] {
            let map = MemoryMap::two::<f64>([5, 9], shift);
            let mut memory = map.allocate::<f64>().unwrap();
            let (input, output) = map.buffers(&mut memory);
            assert_eq!((input.len(), output.len()), (5, 9));
            for buffer in [input, &*output] {
                assert_eq!(buffer.as_ptr().align_offset(LINE), (LINE / 8 - shift % 8) % 8);
            }
            output.fill(1.0);
            let elements = map.elements(&mut memory);
            let written = |range: Range<usize>| elements[range].iter().filter(|x| **x == 1.0).count();
            assert!(map.input.start >= 8 && map.output.start >= map.input.end + 8);
            assert_eq!((written(0..map.output.start), written(map.output.clone())), (0, 9));
            assert_eq!((written(map.output.end..elements.len()), elements.len() - map.output.end), (0, 8));
        }
    }

    #[test]
    fn buffers_for_which_there_is_no_memory_are_refused() {
        let map = MemoryMap::two::<f64>([1 << 59, 1 << 59], 0);
        let error = map.allocate::<f64>().unwrap_err();
        assert!(error.kind == ErrorKind::System && error.hint.contains("smaller -e"), "{error}");
    }

    #[test]
    fn in_one_buffer_the_own_block_is_a_part() {
        let check = |sizes, own, expect: [Range<usize>; 2]| {
            let map = MemoryMap::one::<u8>(sizes, own, 1);
            assert_eq!([map.input.clone(), map.output.clone()], expect);
            let mut memory = map.allocate::<u8>().unwrap();
            assert_eq!(map.buffer(&mut memory).len(), sizes[0].max(sizes[1]));
        };
        check([4, 12], 8, [73..77, 65..77]);
        check([12, 4], 4, [65..77, 69..73]);
        check([6, 6], 3, [65..71, 65..71]);
        check([6, 0], 12, [65..71, 65..65]);
    }
}
