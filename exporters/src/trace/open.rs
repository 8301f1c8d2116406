//! The slices of a part that are under way at its end: those with a line for the beginning and no
//! line for the end. The waits of such an operation are found from its open wait slices.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::files::nanos;

/// The category of slices that were under way when a file of a part was begun: the file before has
/// their beginnings, too.
pub(super) const AGAIN: &str = "ccl.again";

/// Identifies a line that begins or ends a slice: its rank's number, its track, its time.
type At = (u64, u64, i64);

/// A slice that has begun.
#[derive(Clone, Debug)]
struct Begun {
    at: At,
    name: String,
    comm: String,
    waits_for: Vec<u64>,
}

/// The slices under way in a part, gathered line by line.
#[derive(Default, Debug)]
pub(super) struct Standing {
    begun: BTreeMap<(u64, u64), Vec<Begun>>,
    /// Per operation that never ends, the ranks it waits for.
    waits_for: BTreeMap<At, BTreeSet<u64>>,
    /// Beginnings that were written [`AGAIN`] though the file before has them, and ends whose
    /// beginnings were dropped with an older file.
    skipped: BTreeSet<(bool, At)>,
}

impl Standing {
    /// Takes a line.
    pub(super) fn take(&mut self, event: &Value) {
        let phase = event["ph"].as_str();
        if !matches!(phase, Some("B" | "E")) {
            return;
        }
        let at = at(event);
        let name = event["name"].as_str().unwrap_or_default();
        let track = self.begun.entry((at.0, at.1)).or_default();
        let same = track.iter().rposition(|begun| begun.name == name);
        match (phase, same) {
            (Some("B"), Some(same)) if event["cat"] == AGAIN && track[same].at == at => {
                self.skipped.insert((false, at));
            }
            (Some("B"), _) => {
                let comm = event["args"]["comm"].as_str().unwrap_or_default().to_string();
                let ranks = event["args"]["waits_for"].as_array().into_iter().flatten();
                let waits_for = ranks.filter_map(Value::as_u64).collect();
                track.push(Begun { at, name: name.to_string(), comm, waits_for });
            }
            (_, Some(same)) => drop(track.remove(same)),
            (_, None) => drop(self.skipped.insert((true, at))),
        }
    }

    /// All lines were taken: returns the number of slices under way.
    pub(super) fn finish(&mut self) -> u64 {
        let begun = std::mem::take(&mut self.begun);
        let open = || begun.values().flatten();
        let mut waited: BTreeMap<(u64, &str), BTreeSet<u64>> = BTreeMap::new();
        for wait in open() {
            waited.entry((wait.at.0, &wait.comm)).or_default().extend(&wait.waits_for);
        }
        for operation in open().filter(|begun| begun.waits_for.is_empty()) {
            let ranks = waited.get(&(operation.at.0, operation.comm.as_str()));
            if let Some(ranks) = ranks.filter(|ranks| !ranks.is_empty()) {
                self.waits_for.insert(operation.at, ranks.clone());
            }
        }
        open().count() as u64
    }

    /// Whether a line is to be left out.
    pub(super) fn skips(&self, event: &Value) -> bool {
        let is_end = event["ph"] == "E";
        (is_end || event["cat"] == AGAIN) && self.skipped.contains(&(is_end, at(event)))
    }

    /// The ranks that an operation waits for at the end, if the line begins one.
    pub(super) fn waits_for(&self, event: &Value) -> Option<&BTreeSet<u64>> {
        self.waits_for.get(&at(event)).filter(|_| event["ph"] == "B")
    }
}

fn at(event: &Value) -> At {
    let number = |name: &str| event[name].as_u64().unwrap_or_default();
    (number("pid"), number("tid"), nanos(&event["ts"]))
}
