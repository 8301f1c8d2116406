//! What the kernel refuses a rank that needs a connection: descriptors, or memory.
//!
//! It may come back, when others close what they have open; so nobody gives up for it. It is said
//! once on standard error, and again with the error of an operation that ends meanwhile.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

use crate::sys::process::{is_own_limit, lacks};
use crate::types::Rank;

/// What a rank lacked at its last try to connect or accept.
#[derive(Default, Debug)]
pub struct Shortage {
    /// The kernel's number of the refusal; 0: it lacks nothing.
    errno: AtomicI32,
    was_said: AtomicBool,
}

impl Shortage {
    /// The kernel refused this.
    pub(super) fn begins(&self, errno: Errno) {
        if is_own_limit(errno) {
            self.errno.store(errno.raw_os_error(), Ordering::Relaxed);
        }
    }

    /// The kernel gave what was needed.
    pub(super) fn ends(&self) {
        if self.errno.load(Ordering::Relaxed) != 0 {
            self.errno.store(0, Ordering::Relaxed);
        }
    }

    /// What `me` lacks now, if anything: a sentence, and what to do.
    #[must_use]
    pub fn of(&self, me: Rank) -> Option<(String, &'static str)> {
        let errno = self.errno.load(Ordering::Relaxed);
        let (what, hint) = (errno != 0).then(|| lacks(Errno::from_raw_os_error(errno)))?;
        Some((format!("rank {me} has {what}"), hint))
    }

    /// The same, once.
    #[must_use]
    pub fn to_say(&self, me: Rank) -> Option<(String, &'static str)> {
        self.of(me).filter(|_| !self.was_said.swap(true, Ordering::Relaxed))
    }
}
