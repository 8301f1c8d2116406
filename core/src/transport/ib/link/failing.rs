//! Faults of queue pairs that a test asks for, of both ends of a lane.

use super::{CLEAR, HAS_HEADER, Half, Ordering, Receiver, SLOTS, Sender};

impl Half {
    fn fail(&self) {
        self.strands.iter().for_each(|strand| strand.pair.qp.to_error().unwrap());
    }
}
impl Sender {
    /// Makes its queue pairs fail.
    pub(crate) fn fail(&self) {
        self.half.fail();
    }
    /// Writes its last message, of 100 bytes, once more.
    pub(crate) fn repeat(&mut self) {
        self.posted -= 1;
        self.write(HAS_HEADER, 100).unwrap();
        self.posted += 1;
    }
    /// Makes it write the next messages with another key than the reader's.
    pub(crate) fn forget_key(&self) {
        for slot in 0..SLOTS {
            self.half.word(slot * CLEAR + 16).fetch_xor(0xff, Ordering::Relaxed);
        }
    }
}
impl Receiver {
    /// How many parts of the first message have arrived.
    pub(crate) fn arrived(&self) -> u32 {
        self.half.end.parts[0].load(Ordering::Acquire)
    }
    /// Makes its queue pairs fail.
    pub(crate) fn fail(&self) {
        self.half.fail();
    }
    /// Releases the oldest message, but posts no receive for those that follow.
    pub(crate) fn release_unready(&mut self) {
        assert!(self.ready.take().is_some(), "released what was peeked");
        let slot = self.done as usize % SLOTS;
        self.half.end.parts[slot].store(0, Ordering::Relaxed);
        self.half.end.bytes[slot].store(0, Ordering::Relaxed);
        self.done += 1;
        self.fault = self.clear().err();
    }
}
