//! The messages of a communicator on standard error, as `CCL_DEBUG` allows.
//!
//! With WARN, one line per job and remarks on settings that are probably mistakes; with INFO, how
//! each rank was made and what it uses; with TRACE, each phase and call too.

use std::collections::BTreeMap;

use super::phases::Phases;
use super::state::Inner;
use crate::collective::Request;
use crate::config::{self, Key, Settings};
use crate::diagnose::ranks_text;
use crate::notice::{self, Level};
use crate::plan::Shape;
use crate::types::{CollKind, Rank};

/// Reports once per process settings that are probably mistakes, as a warning on one rank of each
/// host.
pub(super) fn remarks(settings: &Settings, rank: Option<Rank>) {
    let number = |name| config::environment(name).and_then(|text| text.parse().ok());
    let here = number("LOCAL_RANK").or_else(|| rank.map(|rank| rank.0)).or_else(|| number("RANK"));
    let level = if here.unwrap_or(0) == 0 { Level::Warn } else { Level::Info };
    for remark in settings.take_remarks() {
        notice::say(settings, level, remark);
    }
}

/// Reports that the communicator is made.
pub(super) fn made(inner: &Inner, settings: &Settings, phases: &Phases) {
    if notice::wanted(settings, Level::Info) {
        let Inner { name, rank, nranks, forced, .. } = inner;
        let algorithm = match forced {
            Some(algorithm) => format!("{algorithm} where it can carry a call (CCL_ALGO)"),
            None => "the fastest for each call".to_string(),
        };
        notice::print(&format!(
            "rank {rank} of {nranks} of {name}: process {} on {}, ccl {}, made in {}",
            std::process::id(),
            rustix::system::uname().nodename().to_string_lossy(),
            env!("CARGO_PKG_VERSION"),
            phases.took()
        ));
        notice::print(&format!("rank {rank} of {name}: {}; algorithm: {algorithm}", reaches(inner)));
    }
}

/// How each peer is reached: `reaches ranks 1-3 by Shm (same_host), rank 4 by Socket (other_host)`.
fn reaches(inner: &Inner) -> String {
    let mut ways: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for (peer, way) in inner.driver().map(|driver| driver.links.ways()).unwrap_or_default() {
        ways.entry(way).or_default().push(peer);
    }
    let ways: Vec<_> = ways.iter().map(|(way, peers)| format!("{} by {way}", ranks_text(peers))).collect();
    if ways.is_empty() { "is alone".into() } else { format!("reaches {}", ways.join(", ")) }
}

/// Reports that an operation is called.
pub(super) fn call(inner: &Inner, request: &Request, seq: u64, shape: &Shape) {
    let Inner { name, rank, .. } = inner;
    let Request { kind, dtype, op, root, count, uneven } = request;
    let what = match kind {
        CollKind::AllToAll if *uneven => format!(" of {dtype}, counts of its own"),
        CollKind::Barrier => String::new(),
        CollKind::AllReduce | CollKind::ReduceScatter => format!(" of {count} {dtype} ({op})"),
        CollKind::Reduce => format!(" of {count} {dtype} ({op}) to root {root}"),
        CollKind::Broadcast => format!(" of {count} {dtype} from root {root}"),
        CollKind::Send => format!(" of {count} {dtype} to rank {root}"),
        CollKind::Recv => format!(" of {count} {dtype} from rank {root}"),
        CollKind::AllGather | CollKind::AllToAll => format!(" of {count} {dtype}"),
        CollKind::Gather => format!(" of {count} {dtype} to root {root}"),
        CollKind::Scatter => format!(" of {count} {dtype} from root {root}"),
    };
    let (bytes, algorithm) = (request.bytes(), shape.algorithm);
    notice::print(&format!("rank {rank} of {name} calls {kind} #{seq}{what}, {bytes} bytes, by {algorithm}"));
}

/// The line that rank 0 prints once per process: the job, how its ranks reach each other, and how
/// to inspect it.
pub(super) fn announce(inner: &Inner, settings: &Settings) {
    if settings.text(Key::Log) == "NONE" {
        return;
    }
    let transports = inner.driver().map(|driver| driver.links.transports()).unwrap_or_default();
    let recorder = inner.recorder_path().map_or_else(|| "none".into(), |path| path.display().to_string());
    let changed = settings.changed();
    let changed = if changed.is_empty() { String::new() } else { format!(", settings {changed}") };
    let look = match (inner.recorder_path(), settings.number(Key::Observe)) {
        (Some(_), _) => format!("look with: ccl-inspect attach {}", std::process::id()),
        (None, 0) => "nobody can look at it (CCL_OBSERVE=0)".to_string(),
        (None, _) => "nobody can look at it, as it has no recorder".to_string(),
    };
    notice::line(&format!(
        "ccl {}: job {} comm {} has {} rank{}, transports {transports}, recorder {recorder}{changed}; {look}",
        env!("CARGO_PKG_VERSION"),
        inner.job,
        inner.name,
        inner.nranks,
        if inner.nranks == 1 { "" } else { "s" },
    ));
}
