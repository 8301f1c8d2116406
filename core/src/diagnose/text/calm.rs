//! The answer where nothing is wrong, as far as is known.

use std::collections::BTreeMap;

use super::{duration, plural};
use crate::snapshot::{LinkSnapshot, Snapshot};
use crate::types::Rank;

/// For how long a link waits, of those that wait long.
fn longest_wait(job: &Snapshot) -> Option<u64> {
    let rows = job.ranks.iter().filter(|rank| !rank.is_gone()).flat_map(|rank| &rank.comms);
    let rows = rows.filter(|row| !row.ended && !row.has_failed());
    rows.flat_map(|row| &row.links).filter_map(LinkSnapshot::long_wait_ns).max()
}

/// The answer if there is nothing to report.
pub(super) fn calm(job: &Snapshot) -> String {
    // The ranks in init, by phase.
    let mut in_init: BTreeMap<&str, Vec<Rank>> = BTreeMap::new();
    let all_gone = job.is_over();
    for rank in job.ranks.iter().filter(|rank| all_gone || !rank.is_gone()) {
        let mut makes = rank.comms.iter().filter(|comm| comm.init.is_some() && !comm.ended);
        if let Some(phase) = makes.find_map(|comm| comm.phase.as_ref()) {
            in_init.entry(phase.phase.as_str()).or_default().push(rank.rank);
        }
    }
    if all_gone && !in_init.is_empty() {
        let were = |(phase, ranks): (&&str, &Vec<Rank>)| {
            format!(
                "{} in init ({phase}) when {} ended",
                plural(ranks, "was", "were"),
                if ranks.len() == 1 { "it" } else { "they" }
            )
        };
        return in_init.iter().map(were).collect::<Vec<_>>().join("\n");
    }
    let is_in_init = || !in_init.is_empty();
    let has_unseen = job.complete && !job.is_all_seen();
    let is_running = !all_gone && !is_in_init() && !job.blocked_on.is_empty();
    if let Some(ns) = longest_wait(job).filter(|_| is_running) {
        let longest = duration(ns);
        return format!("running: links wait for up to {longest}, and nobody is known to hold them up");
    }
    match (job.blocked_on.is_empty(), job.complete) {
        _ if all_gone => "nobody waited",
        _ if is_in_init() && !job.verdicts.is_empty() => "",
        _ if is_in_init() => "init is under way, and nobody is known to be missing",
        (true, _) if has_unseen => "nobody waits in the communicators that were read",
        (false, _) if has_unseen => {
            "running: nobody has waited for 100 ms in the communicators that were read"
        }
        (true, true) => "nobody waits",
        (true, false) => "nobody that was read waits",
        (false, true) => "running: nobody has waited for 100 ms",
        (false, false) => "running: nobody that was read has waited for 100 ms",
    }
    .into()
}
