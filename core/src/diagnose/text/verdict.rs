//! Verdicts as text: what is wrong, what was seen, what to do next.

use std::fmt::Write as _;

use crate::snapshot::{Next, Snapshot, Standing, Verdict};
use crate::text::harmless;

use super::MAX_LINE;

/// The most lines of evidence of a verdict.
const MAX_EVIDENCE: usize = 6;
/// The most commands of a verdict.
const MAX_NEXT: usize = 4;

/// The verdicts, a few lines each; nothing if there is none.
#[must_use]
pub fn render_verdicts(job: &Snapshot) -> String {
    let mut out = String::new();
    for verdict in &job.verdicts {
        let _ = writeln!(out, "{}", harmless(&render_verdict(verdict), MAX_LINE));
        for line in verdict.evidence.iter().take(MAX_EVIDENCE) {
            let _ = writeln!(out, "  seen: {}", harmless(line, MAX_LINE));
        }
        for next in verdict.next.iter().take(MAX_NEXT) {
            let _ = writeln!(out, "  next: {}", harmless(&render_next(next), MAX_LINE));
        }
    }
    out
}

/// `STALLED STUCK_LOCAL (machine, certain): rank 3 (pid 71 on a) is stopped; ranks 0-2 wait ...`
#[must_use]
pub fn render_verdict(verdict: &Verdict) -> String {
    let standing = match verdict.standing {
        Standing::Stalled => "STALLED",
        Standing::Suspect | Standing::Unknown => "SUSPECT",
    };
    format!("{standing} {} ({}, {}): {}", verdict.class, verdict.side, verdict.confidence, verdict.why)
}

/// `kill -CONT 71   # on a: lets it go on`, so that it can be pasted as a whole.
#[must_use]
pub fn render_next(next: &Next) -> String {
    let place = if next.host.is_empty() { String::new() } else { format!("on {}: ", next.host) };
    format!("{}   # {place}{}", next.command, next.what)
}
