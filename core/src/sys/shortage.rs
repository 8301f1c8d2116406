//! Resources that a rank needs for a connection but the kernel refuses: descriptors, or memory.
//!
//! The resource may become available when other connections or files are closed, so a rank keeps
//! trying. The shortage is reported once on standard error, and again with the error of an
//! operation that ends in the meantime.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

use super::process::{is_own_limit, lacks};
use crate::types::Rank;

/// How many shortages this process has now. For a moment it may count an end before its beginning.
static COUNT: AtomicI32 = AtomicI32::new(0);
/// The error number of the last one.
static LAST: AtomicI32 = AtomicI32::new(0);

/// The error number of a shortage that this process has now, if it has one.
#[must_use]
pub fn of_process() -> Option<Errno> {
    let last = LAST.load(Ordering::Relaxed);
    (COUNT.load(Ordering::Relaxed) > 0 && last > 0).then(|| Errno::from_raw_os_error(last))
}

/// The resource that a rank lacked at its last try to connect or accept.
#[derive(Default, Debug)]
pub struct Shortage {
    /// The error number of the refusal; 0 if nothing is lacking.
    errno: AtomicI32,
    was_said: AtomicBool,
}

impl Shortage {
    /// The kernel refused this.
    pub(crate) fn begins(&self, errno: Errno) {
        if !is_own_limit(errno) {
            return;
        }
        let errno = errno.raw_os_error();
        if self.errno.swap(errno, Ordering::Relaxed) == 0 {
            LAST.store(errno, Ordering::Relaxed);
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The kernel gave what was needed.
    pub(crate) fn ends(&self) {
        let lacked = || self.errno.load(Ordering::Relaxed) != 0;
        if lacked() && self.errno.swap(0, Ordering::Relaxed) != 0 {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The resource that `me` lacks now, if any: a sentence, and a hint.
    #[must_use]
    pub fn of(&self, me: Rank) -> Option<(String, &'static str)> {
        let errno = self.errno.load(Ordering::Relaxed);
        let (what, hint) = (errno != 0).then(|| lacks(Errno::from_raw_os_error(errno)))?;
        Some((format!("rank {me} has {what}"), hint))
    }

    /// The same as [`of`](Self::of), but only once.
    #[must_use]
    pub fn to_say(&self, me: Rank) -> Option<(String, &'static str)> {
        self.of(me).filter(|_| !self.was_said.swap(true, Ordering::Relaxed))
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        self.ends();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lacks_what_one_of_its_ranks_lacks() {
        let (one, other) = (Shortage::default(), Shortage::default());
        one.begins(Errno::CONNREFUSED);
        assert_eq!(one.of(Rank(1)), None, "that is not this process's own limit");
        one.begins(Errno::NOMEM);
        one.begins(Errno::MFILE);
        other.begins(Errno::MFILE);
        one.ends();
        assert!(one.of(Rank(1)).is_none() && of_process().is_some());
        assert!(other.of(Rank(2)).unwrap().0.starts_with("rank 2 has no file descriptor left"));
    }
}
