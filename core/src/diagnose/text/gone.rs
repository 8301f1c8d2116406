//! When ranks that have ended or left were last seen.

use std::fmt::Write as _;

use super::{MAX_LINE, duration, state};
use crate::diagnose::silent_first;
use crate::snapshot::{RankSnapshot, Snapshot, State};
use crate::text::{harmless, utc};

/// The most lines about processes that are gone.
const MAX_GONE: usize = 8;

/// `; rank 3 fell silent first, at least 2.0 s before the others`; empty if none did.
fn silent_first_text(ranks: &[RankSnapshot]) -> String {
    let text = |(at, before_ns): (usize, u64)| {
        let (rank, before) = (ranks[at].rank, duration(before_ns));
        format!("; rank {rank} fell silent first, at least {before} before the others")
    };
    silent_first(ranks).map(text).unwrap_or_default()
}

/// When ranks that are gone were last seen alive; nothing if there are none. Lines end with a
/// newline.
#[must_use]
pub fn render_gone(job: &Snapshot) -> String {
    let mut out = String::new();
    let known = |rank: &&RankSnapshot| rank.is_gone() && rank.to_real_ns > 0;
    let mut gone: Vec<&RankSnapshot> = job.ranks.iter().filter(known).collect();
    gone.sort_by_key(|rank| (rank.to_real_ns, rank.rank));
    let Some(last) = gone.last() else { return out };
    if gone.len() < job.ranks.len() {
        for rank in gone.iter().take(MAX_GONE) {
            let RankSnapshot { rank: number, pid, host, .. } = rank;
            let (state, when) = (state(rank).to_lowercase(), utc(rank.to_real_ns));
            // A recorder that was given back shows nothing more about its process.
            let last = match (rank.state, rank.lives_on()) {
                (_, true) => "and its process lives: it was last seen in the job at",
                (State::Left, _) => "it was last seen in the job at",
                _ => "its last sign of life was at",
            };
            let stop = if rank.lives_on() { "," } else { ":" };
            let line = format!("rank {number} (pid {pid} on {host}) {state}{stop} {last} {when}");
            let _ = writeln!(out, "{}", harmless(&line, MAX_LINE));
        }
        return out;
    }
    let is_left = |rank: &&RankSnapshot| rank.state == State::Left;
    let _ = writeln!(
        out,
        "{}: the last sign of life is of rank {}, at {}{}",
        match gone.iter().any(is_left) {
            true => "all ranks that were read have left or ended",
            false => "no rank that was read lives",
        },
        last.rank,
        utc(last.to_real_ns),
        silent_first_text(&job.ranks)
    );
    out
}
