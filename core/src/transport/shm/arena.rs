//! What this process shares with the processes of its host, whatever the number of communicators:
//! one memfd, of which each rank of a communicator has a part, its alive lock, and one doorbell.
//!
//! A peer maps the parts of the communicators that it is in. A part is given back when its
//! communicator ends. Only a part of a communicator that all ranks have finished is used again, and
//! only for one of the same size: a peer that is late may still wake the rank that was there, and
//! then wakes the one that is there.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::bell::Bell;
use crate::error::Result;
use crate::sys;
use crate::sys::fds::Fd;
use crate::sys::shared;

/// The memory and the doorbell of this process.
#[derive(Debug)]
pub struct Arena {
    /// The only descriptor of the file. No other descriptor of it may ever be opened in this
    /// process, because closing it would release the alive lock.
    memfd: Fd,
    bell: Bell,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// The length of the file.
    len: u64,
    /// Where parts of each length are free.
    free: BTreeMap<u64, Vec<u64>>,
}

/// A part of the arena, given back when dropped. Nothing maps it then.
#[derive(Debug)]
pub(super) struct Part {
    arena: Arc<Arena>,
    at: u64,
    len: u64,
    /// Whether no peer uses it any more.
    is_finished: AtomicBool,
}

impl Arena {
    /// A new one. A process has one, and tests have several.
    ///
    /// # Errors
    /// `System` if the kernel refuses.
    pub fn new() -> Result<Arc<Self>> {
        let memfd = Fd::new(shared::growing_memfd("ccl-arena")?);
        shared::lock_alive(&memfd)?;
        Ok(Arc::new(Self { memfd, bell: Bell::new()?, parts: Mutex::default() }))
    }

    /// The arena of this process, which lives as long as something uses it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_process() -> Result<Arc<Self>> {
        static ARENA: Mutex<Weak<Arena>> = Mutex::new(Weak::new());
        sys::not_forked()?;
        let mut arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = arena.upgrade() {
            return Ok(made);
        }
        let made = Self::new()?;
        *arena = Arc::downgrade(&made);
        Ok(made)
    }

    /// The descriptor to send to a peer. It must be sent as it is: if a duplicate were made and
    /// closed, the alive lock would be lost.
    #[must_use]
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// The doorbell.
    #[must_use]
    pub const fn bell(&self) -> &Bell {
        &self.bell
    }

    /// A part of at least `len` zero bytes, which can be mapped.
    pub(super) fn part(self: &Arc<Self>, len: u64) -> Result<Part> {
        let len = len.next_multiple_of(rustix::param::page_size() as u64);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match parts.free.get_mut(&len).and_then(Vec::pop) {
            Some(at) => at,
            None => {
                let at = parts.len;
                shared::grow(&self.memfd, at + len)?;
                parts.len = at + len;
                at
            }
        };
        Ok(Part { arena: Arc::clone(self), at, len, is_finished: AtomicBool::new(false) })
    }
}

impl Part {
    pub(super) const fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
    /// Where it begins in the arena.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }
    /// No peer uses it any more.
    pub(super) fn finished(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.arena.memfd.is_stale() {
            // A copy in a forked child: the memory is the parent's.
            return;
        }
        shared::give_back(&self.arena.memfd, self.at, self.len);
        if self.is_finished.load(Ordering::Relaxed) {
            let mut parts = self.arena.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.free.entry(self.len).or_default().push(self.at);
        }
    }
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_used_again_only_once_all_ranks_have_finished() {
        let arena = Arena::new().unwrap();
        let (first, second) = (arena.part(8192).unwrap(), arena.part(4096).unwrap());
        assert_eq!((first.at(), second.at()), (0, 8192));
        second.finished();
        drop((first, second));
        assert_eq!(arena.part(8192).unwrap().at(), 12288, "a peer may still use the first");
        assert_eq!(arena.part(4096).unwrap().at(), 8192);
    }
}
