//! A recorder's bytes as they were at one moment, to be carried elsewhere: what is read from them there is what was read here.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::reader::{From, Reader, check};
use crate::clock::{self, Anchor};
use crate::error::Result;

/// A copy of a recorder, and what cannot be read from the copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    /// Whether the process held its alive lock.
    pub alive: bool,
    /// When copying began, in nanoseconds since 1970.
    pub from_real_ns: u64,
    /// When it had ended, on the clocks of the machine: the ages of a living process count from it.
    pub at: Anchor,
}

impl Reader {
    /// Copies the recorder.
    ///
    /// # Errors
    /// `System` if the file cannot be read.
    pub fn take(&self) -> Result<Taken> {
        let (alive, from_real_ns) = (self.alive(), clock::real_ns());
        let bytes = match &self.from {
            From::Taken(taken, _) => return Ok((**taken).clone()),
            From::File(..) => self.bytes()?,
            From::Own(recorder) => {
                let words = recorder.memory.words().iter();
                words.flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect()
            }
        };
        Ok(Taken { bytes, alive, from_real_ns, at: clock::anchor() })
    }

    /// Reads a copy as if now were the moment at which it was made; `name` stands for it in errors.
    ///
    /// # Errors
    /// `Usage` if it is no recorder, or one that only a later version can read.
    pub fn of_taken(taken: Taken, name: impl Into<PathBuf>) -> Result<Self> {
        let reader = Self { from: From::Taken(Box::new(taken), name.into()) };
        let From::Taken(taken, name) = &reader.from else { return Ok(reader) };
        check(&taken.words(), name)?;
        Ok(reader)
    }
}

impl Taken {
    /// The words, as many as are whole.
    pub(super) fn words(&self) -> Vec<AtomicU64> {
        super::reader::words(&self.bytes)
    }
}
