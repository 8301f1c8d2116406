//! A recorder of this process: its memory, which slots of its tables are taken, and what can be
//! said of it as a whole.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layout::{self, Capacity, RowState, Table, header};
use super::mapping::Memory;
use super::place::{Place, STALL};
use super::protocol;
use super::slot_pool::SlotPools;
use crate::clock::{self, Anchor};
use crate::config::{Key, Settings};
use crate::sys;
use crate::types::{CommId, JobId};

/// The recorder of a process, or one of its own in private memory.
#[derive(Debug)]
pub struct Recorder {
    pub(super) memory: Arc<Memory>,
    pub(super) capacity: Capacity,
    pub(super) rows: Mutex<SlotPools>,
    pub(super) place: Option<Place>,
    pub(super) notes: Vec<String>,
    pub(super) left: AtomicBool,
    /// Whether a communicator was given up without `finish()`.
    pub(super) gave_up: AtomicBool,
    /// Whether an init failed, and none has succeeded since.
    pub(super) has_failed_init: AtomicBool,
    pub(super) generation: u32,
    /// The level it was made with; the one in force may be a client's wish.
    pub(super) made_level: u8,
}

impl Recorder {
    /// Where others find it; `None` for private memory.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.place.as_ref().map(Place::path)
    }
    /// The path beside the file with another extension, as for the control socket:
    /// `beside("sock")`. `None` where no folder could be used.
    #[must_use]
    pub fn beside(&self, extension: &str) -> Option<PathBuf> {
        self.place.as_ref()?.beside(extension)
    }
    /// What should be said aloud once: places that were refused, a disk instead of memory, smaller
    /// rings.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
    /// The level of what has no level of its own, and of communicators to come.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.header(header::LEVEL).load(Ordering::Relaxed) as u8
    }
    /// Changes the level of everything, or of one communicator; whether there is such a one.
    pub fn set_level(&self, comm: Option<CommId>, level: u8) -> bool {
        let words = self.memory.words();
        let first = self.capacity.offset(Table::Comms) / 8;
        let mut found = comm.is_none();
        for row in words[first..].chunks_exact(layout::comm::WORDS).take(self.capacity.comms) {
            let live = row[layout::comm::STATE].load(Ordering::Acquire) as u8 == layout::RowState::Live as u8;
            if live && comm.is_none_or(|id| row[layout::comm::ID].load(Ordering::Relaxed) == id.0) {
                row[layout::comm::LEVEL].store(u64::from(level), Ordering::Relaxed);
                found = true;
            }
        }
        if comm.is_none() {
            self.header(header::LEVEL).store(u64::from(level), Ordering::Relaxed);
        }
        found
    }

    /// Reads all clocks together and keeps the reading: once a second, by the service thread.
    pub fn anchor(&self) -> Anchor {
        let anchor = clock::anchor();
        if self.is_stale() {
            return anchor;
        }
        // The lock makes this the one writer of the latch.
        let _rows = self.lock();
        let fact: [u64; header::ANCHOR_WORDS] = [anchor.raw.0, anchor.mono.0, anchor.real_ns];
        let words = self.memory.words();
        protocol::latch_write(&words[header::ANCHOR_LATCH], &words[header::ANCHOR..], &fact);
        anchor
    }

    /// Whether it must stay as evidence: an operation or an init failed, or an operation is under
    /// way.
    #[must_use]
    pub fn is_evidence(&self) -> bool {
        self.has_failed_init.load(Ordering::Relaxed) || self.has_failed_or_works()
    }

    /// Says that the process has a communicator: inits that failed before are of no interest.
    pub fn has_joined(&self) {
        self.has_failed_init.store(false, Ordering::Relaxed);
    }

    /// Whether an operation failed or is under way.
    fn has_failed_or_works(&self) -> bool {
        let under_way = |row: &[AtomicU64], cell: usize| {
            let word = |at: usize| row[cell + at].load(Ordering::Acquire);
            word(layout::op::COMPLETED) < word(layout::op::CALLED)
        };
        let first = self.capacity.offset(Table::Comms) / 8;
        let comms = self.memory.words()[first..].chunks_exact(layout::comm::WORDS);
        self.header(header::FAILED).load(Ordering::Acquire) != 0
            || comms
                .take(self.capacity.comms)
                .any(|row| under_way(row, layout::comm::COLL) || under_way(row, layout::comm::P2P))
    }

    /// Whether a communicator with other ranks was neither given back nor has failed.
    ///
    /// Of a communicator without a row nothing else is known.
    pub(super) fn is_in_a_job(&self) -> bool {
        if self.header(header::WITHOUT_ROW).load(Ordering::Acquire) != 0 {
            return true;
        }
        let first = self.capacity.offset(Table::Comms) / 8;
        let mut comms =
            self.memory.words()[first..].chunks_exact(layout::comm::WORDS).take(self.capacity.comms);
        comms.any(|row| {
            let word = |at: usize| row[at].load(Ordering::Acquire);
            let live = word(layout::comm::STATE) as u8 == layout::RowState::Live as u8;
            live && word(layout::comm::RANK) >> 32 > 1 && word(layout::comm::FAILED) == 0
        })
    }

    /// Says that the process has left in good order, and unlinks the file unless it is evidence.
    /// The next [`Self::for_process`] makes a new one. Runs by itself when the last owner lets go
    /// and when the process exits.
    pub fn leave(&self) {
        if self.is_stale() || self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        self.say_left();
        self.header(header::LEFT).store(1, Ordering::Release);
        if let Some(place) = self.place.as_ref().filter(|_| !self.is_evidence()) {
            place.unlink();
            // A job that ended well needs no state of a stall.
            if let Some(stall) = place.beside(STALL) {
                let _ = std::fs::remove_file(stall);
            }
        } else if let (Some(place), false) = (&self.place, self.has_failed_or_works()) {
            place.keep_failed_init();
        }
    }

    pub(super) fn header(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SlotPools> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a copy in a forked child, whose locks another thread of the parent may hold.
    pub(super) fn is_stale(&self) -> bool {
        sys::generation() != self.generation
    }

    /// Names the process's first job, or names it anew where it was known as `before`.
    pub(super) fn note_job(&self, before: JobId, job: JobId) {
        let named = self.header(header::JOB);
        let _ = named.compare_exchange(before.0, job.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The level that settings ask for.
pub(super) fn level_of(settings: &Settings) -> u8 {
    if settings.number(Key::Observe) == 1 { settings.number(Key::Level) as u8 } else { 0 }
}

/// The generation of a row that is taken again, from its first word.
pub(super) fn next_generation(state: &AtomicU64) -> u32 {
    ((state.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1)
}

/// Marks a row as given back: its low byte is the state.
pub(super) fn end(state: &AtomicU64) {
    let word = state.load(Ordering::Relaxed);
    state.store(word & !0xff | RowState::Ended as u64, Ordering::Release);
}
