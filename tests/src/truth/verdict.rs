//! Verdicts: parsed from the text, taken from the JSON, and judged by what was drawn.

use ccl::snapshot::{Snapshot, Standing};

use super::claim::Claim;
use super::draw::{Class, Differ, Draw};
use super::judge::View;
use super::words::holes;

/// The claims of a line about verdicts; `None` if it is none.
pub(super) fn line(line: &str) -> Option<Vec<Claim>> {
    if line.starts_with("  seen: ") || line.starts_with("  next: ") {
        return Some(Vec::new());
    }
    let is = |pattern, is_stalled| {
        let parts = holes(pattern, line)?;
        Some(vec![Claim::Verdict { class: parts[0].into(), reason: None, is_stalled, culprits: None }])
    };
    is("STALLED {} ({}, {}): {}", true).or_else(|| is("SUSPECT {} ({}, {}): {}", false))
}

/// The verdicts of the JSON, as claims.
pub(super) fn claims(snapshot: &Snapshot) -> impl Iterator<Item = Claim> + '_ {
    snapshot.verdicts.iter().map(|verdict| Claim::Verdict {
        class: verdict.class.to_string(),
        reason: Some(verdict.reason.to_string()),
        is_stalled: verdict.standing == Standing::Stalled,
        culprits: Some(verdict.culprits.iter().map(|culprit| culprit.rank.0).collect()),
    })
}

/// Whether a verdict on a run follows from what was drawn.
pub(super) fn judge(
    draw: &Draw,
    view: View,
    (class, reason): (&str, Option<&str>),
    culprits: Option<&[u32]>,
) -> Result<(), String> {
    let (classes, reasons): (&[&str], &[&str]) = match draw.class {
        // What is left of all ranks was killed, and nothing else was wrong.
        Class::Healthy | Class::Straggler if view == View::Files && class == "PEER_DEAD" => {
            return Ok(());
        }
        Class::Healthy => (&[], &[]),
        Class::Straggler => (&["SLOW"], &["late"]),
        Class::Hang | Class::Chain | Class::FirstContact | Class::AllDead => {
            (&["NOT_JOINED"], &["in user code"])
        }
        // In files it is known only by its silence, if that was long enough.
        Class::Stopped if view == View::Files => {
            (&["STUCK_LOCAL", "NOT_JOINED"], &["stopped", "inside", "in user code"])
        }
        Class::Stopped => (&["STUCK_LOCAL"], &["stopped"]),
        Class::Killed => (&["PEER_DEAD"], &["killed"]),
        Class::Left => (&["PEER_DEAD", "ABORTED"], &["exited", "panicked", "aborts", "killed"]),
        // Ranks that have gone on no longer show what they called.
        Class::Mismatch(differ) => (
            &["MISMATCH"],
            match differ {
                Differ::Kind | Differ::Order => &["kind", "calls"],
                Differ::Count | Differ::Pair => &["count", "calls"],
                Differ::Type => &["dtype", "calls"],
                Differ::Operator => &["op", "calls"],
                Differ::Root => &["root", "calls"],
                Differ::More => &["finished", "calls"],
            },
        ),
        Class::NeverJoined => (&["NOT_JOINED"], &["never joined"]),
    };
    if !classes.contains(&class) {
        return Err(format!("the verdict is one of {classes:?}"));
    }
    if let Some(reason) = reason.filter(|reason| !reasons.is_empty() && !reasons.contains(reason)) {
        return Err(format!("the reason is one of {reasons:?}, not {reason}"));
    }
    match culprits {
        Some(those) if those.iter().any(|rank| !draw.culprits.contains(rank)) => {
            Err(format!("to blame are {:?}, not {those:?}", draw.culprits))
        }
        _ => Ok(()),
    }
}
