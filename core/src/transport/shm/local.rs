//! A list of the ranks of this process: several ranks in one process find each other's memory.
//!
//! The list owns no memory and makes no decisions. A rank that ends disappears from it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::memory::{Identity, RankMemory};
use crate::types::JobId;

type Entry = (JobId, Weak<RankMemory>);

fn ranks() -> MutexGuard<'static, Vec<Entry>> {
    static RANKS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
    // A panic elsewhere cannot leave the list half-written: each change is one push or one retain.
    RANKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a rank to the list. It disappears when its memory is dropped.
pub fn enter(job: JobId, memory: &Arc<RankMemory>) {
    let mut ranks = ranks();
    ranks.retain(|(_, memory)| memory.strong_count() > 0);
    ranks.push((job, Arc::downgrade(memory)));
}

/// The memory of a rank, if the rank lives in this process.
#[must_use]
pub fn find(job: JobId, identity: Identity) -> Option<Arc<RankMemory>> {
    // The upgraded references leave the lock before they are dropped: no memory may be dropped
    // while the list is locked.
    let found: Vec<_> =
        ranks().iter().filter(|(of, _)| *of == job).filter_map(|(_, memory)| memory.upgrade()).collect();
    found.into_iter().find(|memory| memory.identity() == identity)
}

#[cfg(test)]
mod tests {
    use super::super::memory::Layout;
    use super::*;
    use crate::types::{CommId, Rank};

    #[test]
    fn a_rank_is_found_while_it_lives() {
        let job = JobId(0xa11);
        let id = |rank| Identity { comm: CommId(3), rank: Rank(rank) };
        let memory = RankMemory::private(id(1), Layout::new(2, 1).unwrap()).unwrap();
        enter(job, &memory);
        assert!(Arc::ptr_eq(&find(job, id(1)).unwrap(), &memory));
        assert!(find(job, id(0)).is_none());
        assert!(find(JobId(0xa12), id(1)).is_none());
        drop(memory);
        assert!(find(job, id(1)).is_none());
    }
}
