//! Fault scenarios as data: files in `tests/scenarios` say what is injected and what must be said. What must be said follows from
//! what is injected and from what the operations mean; nobody asked the code that is tested.

use std::fmt;
use std::path::Path;

use ccl::CollKind;
use ccl::snapshot::{Source, State};
use serde::{Deserialize, Serialize};

use crate::job::Transport;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing.
    Nothing,
    /// The victim sleeps instead of calling.
    Sleeps,
    /// The victim is stopped inside; the others come later.
    StoppedInside,
    /// The victim is killed before it calls, while the others are stopped inside; then all are killed.
    KilledBefore,
    /// The victim is killed inside, while the others are stopped before they call; then all are killed.
    KilledInside,
    /// The victim is killed while the others wait for it.
    Killed,
    /// The victim is stopped at any moment and continued a little later.
    Paused,
    /// The victim calls with another count.
    Count,
    /// The victim calls something else.
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

/// What is injected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inject {
    /// What.
    pub fault: Fault,
    /// Whether nothing can be asked of the processes' service threads.
    #[serde(default)]
    pub control_blocked: bool,
}

/// Where it can be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the simulator.
    Sim,
    /// On processes.
    Processes,
}

/// What can be said of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Nobody is awaited, and nothing failed.
    Nobody,
    /// Ranks that have not called are awaited.
    Missing,
    /// Ranks inside are awaited.
    Inside,
    /// Ranks wait, for nobody who could be named.
    Link,
    /// A peer is gone.
    Peer,
    /// Ranks called different things.
    Mismatch,
    /// A rank aborted.
    Aborted,
    /// Something else went wrong.
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
    /// The victim; of a link its writer.
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
    /// The victim, in words.
    Victim,
}

/// Who must be awaited.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Awaited {
    /// Those who have not called.
    #[serde(default)]
    pub missing: Vec<Who>,
    /// Those inside who hold the others up.
    #[serde(default)]
    pub inside: Vec<Who>,
    /// Those who wait.
    pub by: Vec<Who>,
}

/// How the processes must be seen.
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
    /// Whom it is about.
    #[serde(default)]
    pub peer: Option<Who>,
    /// What it names.
    pub names: Vec<Name>,
}

/// What must be said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// In one word.
    pub class: Class,
    /// Who is awaited.
    #[serde(default)]
    pub awaited: Option<Awaited>,
    /// How the processes are.
    #[serde(default)]
    pub states: Option<States>,
    /// Where it comes from.
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
    /// For people.
    pub about: String,
    /// What is injected.
    pub inject: Inject,
    /// Where.
    #[serde(rename = "where")]
    pub places: Vec<Place>,
    /// How many ranks, to draw from.
    pub ranks: Vec<u32>,
    /// What is called, to draw from.
    pub collectives: Vec<CollKind>,
    /// How the ranks reach each other, to draw from. In the simulator `direct` and `shm` are one host, the others are not.
    pub transports: Vec<Transport>,
    /// What must be said.
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

/// Those that can be carried out there.
#[must_use]
pub fn of(place: Place) -> Vec<Scenario> {
    all().into_iter().filter(|scenario| scenario.places.contains(&place)).collect()
}
