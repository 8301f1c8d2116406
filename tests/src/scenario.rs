//! Fault scenarios as data: files in `tests/scenarios` say what is injected and what must be
//! reported. The expected report follows from the injected fault and from the meaning of the
//! operations, never from the code under test.

use std::fmt;
use std::path::Path;

use ccl::CollKind;
use ccl::snapshot::{Source, State};
use serde::{Deserialize, Serialize};

use crate::job::Transport;

/// The fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing.
    Nothing,
    /// The victim sleeps instead of calling.
    Sleeps,
    /// The victim is stopped inside; the others call later.
    StoppedInside,
    /// The victim is killed before it calls, while the others are stopped inside; then all die.
    KilledBefore,
    /// The victim is killed inside, while the others are stopped before their call; then all die.
    KilledInside,
    /// The victim is killed while the others wait for it.
    Killed,
    /// The victim is stopped at any moment and continued a little later.
    Paused,
    /// The victim calls with another count.
    Count,
    /// The victim calls a different operation.
    Kind,
    /// The victim calls with another operator.
    Operator,
    /// The victim calls with another type.
    Datatype,
    /// The victim aborts.
    Aborts,
    /// The victim drops its communicator.
    Drops,
    /// The victim finishes while the others go on.
    Finishes,
    /// The lane from the victim to the next rank goes silent.
    LinkCut,
    /// The lane from the victim to the next rank ends.
    LinkEnd,
    /// One message from the victim to the next rank carries a wrong check.
    LinkCorrupt,
}

/// The injection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inject {
    /// The fault.
    pub fault: Fault,
    /// Whether the service threads of the processes are blocked.
    #[serde(default)]
    pub control_blocked: bool,
}

/// Where a scenario can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunsIn {
    /// In the simulator.
    Sim,
    /// On processes.
    Processes,
}

/// The result that can be reported of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// No rank blocks others, and nothing failed.
    Nobody,
    /// Ranks that have not called block others.
    Missing,
    /// Ranks inside the operation block others.
    Inside,
    /// Ranks wait, and no rank can be named as the cause.
    Link,
    /// A peer is gone.
    Peer,
    /// Ranks called different operations.
    Mismatch,
    /// A rank aborted.
    Aborted,
    /// Another failure.
    Other,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Ranks, by their part in a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The victim; for a link, its writer.
    Victim,
    /// All but the victim.
    Others,
    /// The reader of the link.
    Reader,
    /// The writer or the reader.
    Either,
}

/// What an error must name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// The operation.
    Op,
    /// The channel.
    Channel,
    /// The victim, as text.
    Victim,
}

/// The ranks that must be reported to block others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockedOn {
    /// The ranks that have not called.
    #[serde(default)]
    pub missing: Vec<Who>,
    /// The ranks inside that hold the others up.
    #[serde(default)]
    pub inside: Vec<Who>,
    /// The ranks that wait.
    pub by: Vec<Who>,
}

/// The states that the processes must have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct States {
    /// The victim's.
    pub victim: State,
    /// The others'.
    pub others: State,
}

/// How calls must fail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failing {
    /// The kind of error.
    pub kind: String,
    /// The rank that it names.
    #[serde(default)]
    pub peer: Option<Who>,
    /// What it names.
    pub names: Vec<Name>,
}

/// What must be reported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// In one word.
    pub class: Class,
    /// The ranks that block others.
    #[serde(default)]
    pub blocked_on: Option<BlockedOn>,
    /// The states of the processes.
    #[serde(default)]
    pub states: Option<States>,
    /// The source of the data.
    #[serde(default)]
    pub source: Option<Source>,
    /// How calls fail.
    #[serde(default)]
    pub error: Option<Failing>,
}

/// One file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// A description.
    pub about: String,
    /// What is injected.
    pub inject: Inject,
    /// Where it can run.
    #[serde(rename = "where")]
    pub places: Vec<RunsIn>,
    /// Numbers of ranks to draw from.
    pub ranks: Vec<u32>,
    /// Operations to draw from.
    pub collectives: Vec<CollKind>,
    /// Transports to draw from.
    ///
    /// In the simulator, `in_process` and `shm` are one host, the others are not.
    pub transports: Vec<Transport>,
    /// What must be reported.
    pub expect: Expect,
}

/// Every scenario, by name.
///
/// # Panics
/// If one cannot be read.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = std::fs::read_dir(&folder).expect("the folder of scenarios").flatten();
    let mut scenarios: Vec<Scenario> = entries
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json"))
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("a scenario can be read");
            let mut scenario: Scenario =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
            scenario.name = entry.path().file_stem().unwrap_or_default().to_string_lossy().replace('_', " ");
            scenario
        })
        .collect();
    scenarios.sort_by(|a, b| a.name.cmp(&b.name));
    scenarios
}

/// The scenarios that can run there.
#[must_use]
pub fn of(place: RunsIn) -> Vec<Scenario> {
    all().into_iter().filter(|scenario| scenario.places.contains(&place)).collect()
}
