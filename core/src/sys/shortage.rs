//! Resources that a rank needs for a connection but the kernel refuses: descriptors, or memory.
//!
//! The resource may become available when other connections or files are closed, so a rank keeps
//! trying. The shortage is reported once on standard error, and again with the error of an
//! operation that ends in the meantime.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

use super::process::{is_own_limit, lacks};
use crate::types::Rank;

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
        if is_own_limit(errno) {
            self.errno.store(errno.raw_os_error(), Ordering::Relaxed);
        }
    }

    /// The kernel gave what was needed.
    pub(crate) fn ends(&self) {
        if self.errno.load(Ordering::Relaxed) != 0 {
            self.errno.store(0, Ordering::Relaxed);
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
