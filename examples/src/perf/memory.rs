//! Buffers for calls: some have guards before and behind them, which no call may write.

use ccl::Region;

use super::datum::Datum;

/// The bits of a guard, and of an output before the call: each byte is the same.
const UNWRITTEN: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Bytes of a guard, and of a cache line.
const LINE: usize = 64;

/// A buffer of a call, inside the memory that it lies in.
#[derive(Debug)]
pub(super) struct Buffer<T: Datum> {
    memory: Region<T>,
    at: usize,
    len: usize,
}

/// What an element is before a call writes it.
pub(super) fn unwritten<T: Datum>() -> T {
    T::from_bits(UNWRITTEN)
}

impl<T: Datum> Buffer<T> {
    /// `len` elements between guards, `shift` elements behind the beginning of a cache line.
    pub(super) fn guarded(len: usize, shift: usize) -> Self {
        let line = LINE / size_of::<T>();
        let memory = vec![unwritten::<T>(); len + shift + 3 * line];
        let at = line + memory[line..].as_ptr().align_offset(LINE).min(line) + shift;
        Self { memory: memory.into(), at, len }
    }

    /// `len` elements without guards, for calls that own the whole memory.
    pub(super) fn bare(len: usize) -> Self {
        Self { memory: vec![unwritten(); len].into(), at: 0, len }
    }

    /// The elements.
    pub(super) fn data(&self) -> &[T] {
        &self.memory[self.at..self.at + self.len]
    }

    /// The elements, to be changed.
    pub(super) fn data_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.at..self.at + self.len]
    }

    /// The number of elements of the guards that were written.
    pub(super) fn damage(&self) -> u64 {
        let around = self.memory[..self.at].iter().chain(&self.memory[self.at + self.len..]);
        around.filter(|guard| guard.bits() != unwritten::<T>().bits()).count() as u64
    }

    /// Hands its memory to a call, until it is given back.
    pub(super) fn lend(&mut self) -> Region<T> {
        std::mem::replace(&mut self.memory, Region::new(Vec::new()))
    }

    /// Has its memory again.
    pub(super) fn take_back(&mut self, memory: Region<T>) {
        self.memory = memory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_lie_on_both_sides() {
        for shift in [0, 1, 3, 70] {
            let mut buffer = Buffer::<f64>::guarded(5, shift);
            assert_eq!(buffer.data().as_ptr().align_offset(LINE), (LINE / 8 - shift % 8) % 8);
            assert!(buffer.at >= 8 && buffer.memory.len() - buffer.at - 5 >= 8);
            buffer.data_mut().fill(1.0);
            assert_eq!(buffer.damage(), 0);
            let (before, behind) = (buffer.at - 1, buffer.at + 5);
            (buffer.memory[before], buffer.memory[behind]) = (1.0, 1.0);
            assert_eq!(buffer.damage(), 2);
        }
        let mut bare = Buffer::<u8>::bare(3);
        let memory = bare.lend();
        bare.take_back(memory);
        assert_eq!((bare.data().len(), bare.damage()), (3, 0));
    }
}
