//! Faults of jobs with several communicators: ranks in a grid of tensor, data and pipeline groups,
//! one of which deviates in one of its groups. Files in `tests/scenarios/groups` say how, and what
//! must be reported. What they leave open is drawn from a seed.

mod judge;
mod simulated;

use std::fmt;
use std::path::Path;

use ccl::seed::Seed;
use serde::{Deserialize, Serialize};

use crate::scenario::RunsIn;

pub use judge::waiting;
pub use simulated::carry_out as simulate;

/// The kinds of groups that divide the ranks, in the order of the grid.
const KINDS: [&str; 3] = ["tensor", "data", "pipeline"];

/// How the victim deviates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Not at all.
    Nothing,
    /// It does not make the call.
    Absent,
    /// It is stopped before the call.
    Stopped,
    /// It is killed before the call.
    Killed,
    /// It makes the call with one element more.
    Count,
    /// It broadcasts from another root.
    Root,
    /// It waits for a message in another of its groups that nobody sends.
    Elsewhere,
    /// It works for a while instead of making the call, and goes on without the group.
    Forget,
    /// It and the ranks of another of its groups call there for ever.
    Busy,
    /// Its lane to the next rank of the group goes silent.
    LinkCut,
}

/// What must be reported of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// Nothing of any group.
    Nothing,
    /// Its ranks wait for the victim, and all others behind them.
    Waits,
    /// Its ranks wait, and nobody is named.
    Link,
    /// The victim died.
    Died,
    /// The victim's call differs.
    Differs,
}

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Waits => "waits",
            Self::Link => "link",
            Self::Died => "died",
            Self::Differs => "differs",
        })
    }
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
    /// How the victim deviates.
    pub how: How,
    /// Where it can run.
    #[serde(rename = "where")]
    pub places: Vec<RunsIn>,
    /// Groups to draw from.
    pub groups: Vec<String>,
    /// What must be reported.
    pub expect: Says,
}

/// The scenarios that can run there, by name.
///
/// # Panics
/// If one cannot be read.
#[must_use]
pub fn of(place: RunsIn) -> Vec<Scenario> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/groups");
    let entries = std::fs::read_dir(&folder).expect("the folder of scenarios").flatten();
    let mut scenarios: Vec<Scenario> = entries
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("a scenario can be read");
            let mut scenario: Scenario =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
            scenario.name = entry.path().file_stem().unwrap_or_default().to_string_lossy().replace('_', " ");
            scenario
        })
        .filter(|scenario| scenario.places.contains(&place))
        .collect();
    scenarios.sort_by(|a, b| a.name.cmp(&b.name));
    scenarios
}

/// A drawn instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// The scenario.
    pub scenario: Scenario,
    /// The seed.
    pub seed: u64,
    /// How many ranks the groups of each kind have.
    pub shape: [u32; 3],
    /// Whether each group has an id of its own, and there is no communicator of all; otherwise the
    /// groups are parts of that one.
    pub ids: bool,
    /// Emulated hosts.
    pub hosts: u32,
    /// The rank that deviates.
    pub victim: u32,
    /// In which of its groups.
    pub group: String,
    /// At which step, from 1.
    pub at: u64,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = if self.ids { "from ids" } else { "by split" };
        write!(
            f,
            "{}, seed {}: {:?} on {} hosts, groups {made}, rank {} in {}, step {}",
            self.scenario.name, self.seed, self.shape, self.hosts, self.victim, self.group, self.at
        )
    }
}

impl Drawn {
    /// Draws an instance. Its ranks are a grid of `shape`, or of a drawn one.
    ///
    /// Seeds in a row take turns in how groups are made and in the number of hosts.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64, shape: Option<[u32; 3]>) -> Self {
        let name =
            scenario.name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut drawn = Seed(name);
        let shape = shape.unwrap_or_else(|| [(); 3].map(|()| 2 + drawn.below(2) as u32));
        let is_of_world = scenario.groups.iter().all(|group| group == "world");
        let ids = seed % 2 == 1 && !is_of_world;
        // A job whose groups are made from ids has no communicator of all ranks.
        let groups: Vec<&String> = scenario.groups.iter().filter(|group| !ids || *group != "world").collect();
        let group = groups.get(drawn.below(groups.len() as u64) as usize).map_or("world", |group| group);
        Self {
            seed,
            shape,
            ids,
            hosts: 1 + (seed / 2 % 2) as u32,
            victim: drawn.below(u64::from(shape.iter().product::<u32>())) as u32,
            // In the first steps nothing tells in which order a program uses its communicators.
            at: if group == "world" { 8 } else { 5 + drawn.below(4) },
            group: group.to_string(),
            scenario: scenario.clone(),
        }
    }

    /// The ranks that deviate.
    #[must_use]
    pub fn culprits(&self) -> Vec<u32> {
        let other = if self.group == "data" { "tensor" } else { "data" };
        let is_busy = self.scenario.how == How::Busy;
        if is_busy { self.members(other, self.victim) } else { vec![self.victim] }
    }

    /// The number of ranks.
    #[must_use]
    pub fn nranks(&self) -> u32 {
        self.shape.iter().product()
    }

    /// The emulated host of a rank.
    #[must_use]
    pub fn host(&self, rank: u32) -> u32 {
        rank * self.hosts / self.nranks()
    }

    /// The ranks of a rank's group of one kind, in order.
    #[must_use]
    pub fn members(&self, group: &str, rank: u32) -> Vec<u32> {
        let [tensor, data, _] = self.shape;
        let place = |rank: u32| [rank % tensor, rank / tensor % data, rank / tensor / data];
        let own = place(rank);
        let is_member = |other: &u32| {
            let axes = KINDS.iter().zip(place(*other)).zip(own);
            group == "world" || axes.into_iter().all(|((kind, its), own)| *kind == group || its == own)
        };
        (0..self.nranks()).filter(is_member).collect()
    }

    /// What must be said, in a few words.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.scenario.expect {
            Says::Nothing => "nothing".into(),
            says => format!("{says} {}", self.group),
        }
    }
}
