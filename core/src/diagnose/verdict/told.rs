//! What the watchdogs of a job told before all its processes ended: they saw what files do not
//! show, such as that a process was stopped.

use super::key_of;
use crate::snapshot::{Class, RankSnapshot, Reason, Standing};

/// What kept a process from going on when all processes of its job ended, if a watchdog told so.
///
/// Only a stall that still stood then is kept in a recorder. It names its culprits by a hash, so
/// this finds the one that is alone to blame.
pub(in crate::diagnose) fn of(job: &[RankSnapshot], rank: &RankSnapshot) -> Option<Reason> {
    let key = key_of([rank.rank]);
    let mut stalls = job.iter().filter_map(|rank| rank.facts.stall.as_ref());
    let told = stalls
        .find(|told| (told.key, told.class, told.standing) == (key, Class::StuckLocal, Standing::Stalled));
    told.map(|told| told.reason)
}
