//! The sum of many readings of a running job: how often each rank was late, and how many bytes each
//! transport moved.
//!
//! In one reading a rank is late if it blocks others, or is outside any operation while others are
//! inside one. A running job moves on while its ranks are read one after the other, so a single
//! reading may err; many do not.
//!
//! It reads the JSON of `ccl-inspect snapshot --json` (`ccl.snapshot/2`), as any user's program
//! would.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The sum of readings.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Readings {
    /// The number of readings that were snapshots.
    pub taken: u64,
    /// The most bytes that one reading showed as moved over shared memory.
    pub shm: u64,
    /// The most bytes that one reading showed as moved over sockets.
    pub socket: u64,
    late: BTreeMap<u64, u64>,
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The ranks that are late in this reading.
fn late(snapshot: &Value) -> BTreeSet<u64> {
    let blocked_on = list(snapshot, "blocked_on");
    let named = blocked_on.iter().flat_map(|one| list(one, "missing").iter().chain(list(one, "inside")));
    let mut late: BTreeSet<u64> = named.filter_map(Value::as_u64).collect();
    let state = |rank: &Value| rank["comms"][0]["op"]["state"].as_str().map(str::to_owned);
    let ranks = list(snapshot, "ranks");
    if ranks.iter().any(|rank| state(rank).as_deref() == Some("running")) {
        let outside = ranks.iter().filter(|rank| state(rank).as_deref() == Some("idle"));
        late.extend(outside.filter_map(|rank| rank["rank"].as_u64()));
    }
    late
}

impl Readings {
    /// Adds one snapshot. Other input is ignored.
    pub fn add(&mut self, json: &[u8]) {
        let Ok(snapshot) = serde_json::from_slice::<Value>(json) else { return };
        if snapshot["schema"] != "ccl.snapshot/2" {
            return;
        }
        self.taken += 1;
        for rank in late(&snapshot) {
            *self.late.entry(rank).or_default() += 1;
        }
        let comms = list(&snapshot, "ranks").iter().flat_map(|rank| list(rank, "comms"));
        let (mut shm, mut socket) = (0, 0);
        for link in comms.flat_map(|comm| list(comm, "links")) {
            let bytes = link["bytes"].as_u64().unwrap_or(0);
            match link["transport"].as_str() {
                Some("shm") => shm += bytes,
                Some("socket") => socket += bytes,
                _ => {}
            }
        }
        self.shm = self.shm.max(shm);
        self.socket = self.socket.max(socket);
    }

    /// The rank that was late in most readings, and in how many.
    #[must_use]
    pub fn slowest(&self) -> Option<(u64, u64)> {
        self.late.iter().max_by_key(|(_, times)| **times).map(|(rank, times)| (*rank, *times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_add_up() {
        let snapshot = |missing: &str, shm: u64| {
            format!(
                r#"{{"schema":"ccl.snapshot/2","ranks":[{{"comms":[{{"links":[
                    {{"transport":"shm","bytes":{shm}}},{{"transport":"socket","bytes":7}},{{"transport":"shm","bytes":1}}]}}]}}],
                    "blocked_on":[{{"missing":[{missing}],"inside":[1]}}]}}"#
            )
        };
        let mut readings = Readings::default();
        readings.add(b"not a snapshot");
        readings.add(br#"{"schema":"another/1"}"#);
        assert_eq!((readings.taken, readings.slowest()), (0, None));
        readings.add(snapshot("3", 10).as_bytes());
        readings.add(snapshot("3,2", 20).as_bytes());
        readings.add(snapshot("3", 5).as_bytes());
        readings.add(br#"{"schema":"ccl.snapshot/2","blocked_on":[{"missing":[3]}]}"#);
        assert_eq!((readings.taken, readings.shm, readings.socket), (4, 21, 7));
        assert_eq!(readings.slowest(), Some((3, 4)));
    }

    #[test]
    fn whoever_is_outside_while_others_are_inside_is_late() {
        let rank = |rank: usize, state: &str| {
            format!(r#"{{"rank":{rank},"comms":[{{"op":{{"state":"{state}"}}}}]}}"#)
        };
        let check = |states: [&str; 3], expect: &[u64]| {
            let ranks: Vec<String> = states.iter().enumerate().map(|(n, state)| rank(n, state)).collect();
            let snapshot = serde_json::from_str(&format!(r#"{{"ranks":[{}]}}"#, ranks.join(","))).unwrap();
            assert_eq!(late(&snapshot).into_iter().collect::<Vec<_>>(), expect);
        };
        check(["running", "idle", "running"], &[1]);
        check(["idle", "idle", "idle"], &[]);
        check(["running", "running", "running"], &[]);
    }
}
