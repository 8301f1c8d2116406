//! Scenarios with the steps of every rank: files in `tests/scenarios/scripts`.
//!
//! Each file gives the steps of the ranks by their roles, the actions on the processes meanwhile,
//! and what every rank must report at the end. As in [`crate::scenario`], the expected report
//! follows from the meaning of the operations, never from the code under test.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ccl::seed::Seed;
use serde::{Deserialize, Serialize};

use crate::steps::Steps;

/// What the ranks must report at the end.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// In a few words: `well`, `mismatch of root`, `peer died` ... ([`crate::said::label`]).
    ///
    /// With `anything` it is not checked.
    pub says: String,
    /// The roles of the ranks that an error names.
    #[serde(default)]
    pub about: Vec<String>,
    /// For a mismatch, both sides: by role, the words in the reported call.
    #[serde(default)]
    pub sides: BTreeMap<String, Vec<String>>,
    /// Texts that the report contains.
    #[serde(default)]
    pub contains: Vec<String>,
    /// Texts that the report does not contain.
    #[serde(default)]
    pub never: Vec<String>,
    /// The report of its forked child: `nothing`, or `refused`.
    #[serde(default)]
    pub child: Option<String>,
}

/// An alternative that may be drawn for a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Alternative {
    /// `{name}`.
    Word(String),
    /// `{name.part}`.
    Parts(BTreeMap<String, String>),
}

/// One file.
///
/// In steps, commands and expectations `{a}` is the rank that plays the role `a`, and `{x}` or
/// `{x.y}` the alternative that was drawn for `x`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// A description.
    pub about: String,
    /// Numbers of ranks to draw from.
    pub ranks: Vec<u32>,
    /// Roles that are played by one rank each; all other ranks play `rest`.
    pub roles: Vec<String>,
    /// Further draws: one alternative of each list.
    #[serde(default)]
    pub draw: BTreeMap<String, Vec<Alternative>>,
    /// Settings, by role, `rest` or `all`.
    #[serde(default)]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The steps, by role. `!` marks the step whose time matters.
    pub steps: BTreeMap<String, String>,
    /// The actions on the processes, in order, one rank of a role after another.
    ///
    /// `await ROLE` (is at its marked step), `holds ROLE` (has reached its hold), `go ROLE`
    /// (continues from there), `ended ROLE`, `kill ROLE`, `stop ROLE`, `cont ROLE`, `pause
    /// MILLISECONDS`.
    #[serde(default)]
    pub conduct: Vec<String>,
    /// What must be reported, by role, `rest` or `all`.
    pub expect: BTreeMap<String, Expected>,
    /// The time limit, from when it could be known.
    #[serde(default = "usual_limit")]
    pub within_ms: u64,
}

/// Well below the timeout that all of them have, and long enough for a busy machine.
const fn usual_limit() -> u64 {
    10_000
}

/// How the ranks reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// Processes of one host.
    SharedMemory,
    /// Sockets between all.
    Sockets,
    /// Half of them in one network namespace, half in another: memory inside, sockets between.
    Namespaces,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SharedMemory, Self::Sockets, Self::Namespaces];
}

/// Every script, by name.
///
/// # Panics
/// If one cannot be read.
#[must_use]
pub fn all() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/scripts");
    let entries = std::fs::read_dir(&folder).expect("the folder of scripts").flatten();
    let mut scripts: Vec<Script> = entries
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json"))
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("a script can be read");
            let mut script: Script =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
            script.name = entry.path().file_stem().unwrap_or_default().to_string_lossy().replace('_', " ");
            script
        })
        .collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts
}

/// A script with all choices drawn from a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// The script.
    pub script: Script,
    /// The seed.
    pub seed: u64,
    /// How the ranks reach each other.
    pub network: Network,
    /// Number of ranks.
    pub nranks: u32,
    /// The ranks of each role, in a drawn order.
    ///
    /// Also has `rest`, `all`, and `but a`, which is all ranks except those that play `a`.
    pub cast: BTreeMap<String, Vec<u32>>,
    /// The replacements for the names in braces.
    words: BTreeMap<String, String>,
    /// A number for all other choices.
    pub chance: u64,
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}: {} ranks, {:?}", self.script.name, self.seed, self.nranks, self.network)?;
        self.words.iter().try_for_each(|(name, word)| write!(f, ", {name} = {word}"))
    }
}

impl Instance {
    /// Draws an instance.
    #[must_use]
    pub fn new(script: &Script, network: Network, seed: u64) -> Self {
        // Every script draws its own numbers, on every network.
        let name = format!("{}{network:?}", script.name);
        let mut drawn =
            Seed(name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())));
        let nranks = drawn.one_of(&script.ranks);
        let mut order: Vec<u32> = (0..nranks).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, drawn.below(at as u64 + 1) as usize);
        }
        let (mut cast, mut words) = (BTreeMap::new(), BTreeMap::new());
        for (role, rank) in script.roles.iter().zip(&order) {
            cast.insert(role.clone(), vec![*rank]);
            words.insert(role.clone(), rank.to_string());
        }
        cast.insert("rest".into(), order.split_off(script.roles.len().min(order.len())));
        let all: Vec<u32> = cast.values().flatten().copied().collect();
        for role in &script.roles {
            let others = all.iter().copied().filter(|rank| cast[role] != [*rank]).collect();
            cast.insert(format!("but {role}"), others);
        }
        cast.insert("all".into(), all);
        for (name, alternatives) in &script.draw {
            match drawn.one_of(alternatives) {
                Alternative::Word(word) => drop(words.insert(name.clone(), word)),
                Alternative::Parts(parts) => {
                    words.extend(parts.into_iter().map(|(part, word)| (format!("{name}.{part}"), word)));
                }
            }
        }
        Self { script: script.clone(), seed, network, nranks, cast, words, chance: drawn.bits() }
    }

    /// `text` with the names in braces replaced by what was drawn.
    #[must_use]
    pub fn fill(&self, text: &str) -> String {
        // The drawn text may itself name roles.
        let once = |text: String| {
            self.words.iter().fold(text, |text, (name, word)| text.replace(&format!("{{{name}}}"), word))
        };
        once(once(text.to_string()))
    }

    /// The entry of `by_role` for a rank: the entry of its role, else the entry of `all`.
    #[must_use]
    pub fn of<'a, T>(&self, by_role: &'a BTreeMap<String, T>, rank: u32) -> Option<&'a T> {
        let role = self.script.roles.iter().find(|role| self.cast[*role] == [rank]);
        let role = role.map_or("rest", String::as_str);
        by_role.get(role).or_else(|| by_role.get("all"))
    }

    /// The ranks that play one of these roles.
    #[must_use]
    pub fn ranks<'a>(&self, roles: impl IntoIterator<Item = &'a String>) -> Vec<u32> {
        roles.into_iter().filter_map(|role| self.cast.get(role)).flatten().copied().collect()
    }

    /// The steps of each rank, as text and parsed.
    ///
    /// # Errors
    /// The step that is not understood.
    pub fn steps(&self) -> Result<Vec<(String, Steps)>, String> {
        let steps = |rank| {
            let words = self.of(&self.script.steps, rank).map(|text| self.fill(text));
            let words = words.ok_or_else(|| format!("rank {rank} has no steps"))?;
            Steps::parse(&words).map(|steps| (words, steps))
        };
        (0..self.nranks).map(steps).collect()
    }

    /// What a rank must report.
    ///
    /// # Errors
    /// The script does not say.
    pub fn expected(&self, rank: u32) -> Result<Expected, String> {
        let expected = self.of(&self.script.expect, rank);
        let mut expected = expected.ok_or_else(|| format!("nothing is expected of rank {rank}"))?.clone();
        let fill = |texts: &mut Vec<String>| texts.iter_mut().for_each(|text| *text = self.fill(text));
        expected.says = self.fill(&expected.says);
        fill(&mut expected.about);
        fill(&mut expected.contains);
        fill(&mut expected.never);
        expected.sides.values_mut().for_each(fill);
        expected.child = expected.child.map(|child| self.fill(&child));
        Ok(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_can_be_drawn_and_says_what_every_rank_does_and_must_say() {
        let scripts = all();
        assert!(!scripts.is_empty());
        for script in &scripts {
            for seed in 1..21 {
                let instance = Instance::new(script, Network::Sockets, seed);
                let steps = instance.steps().unwrap_or_else(|why| panic!("{instance}: {why}"));
                for rank in 0..instance.nranks {
                    let expected = instance.expected(rank).unwrap_or_else(|why| panic!("{instance}: {why}"));
                    let text = format!("{expected:?}{}", steps[rank as usize].0);
                    assert!(
                        !text.contains("{{") && !steps[rank as usize].0.contains('{'),
                        "{instance}: {text}"
                    );
                    for role in expected.about.iter().chain(expected.sides.keys()) {
                        assert!(instance.cast.contains_key(role), "{instance}: {role} is no role");
                    }
                }
            }
        }
    }

    #[test]
    fn drawn_words_stand_for_their_names_and_roles_in_them_for_ranks() {
        let text = r#"{"about": "", "ranks": [3], "roles": ["a"], "steps": {"a": "{x.do}; finish", "rest": "finish"},
            "draw": {"x": [{"do": "send {a} 4"}], "y": ["7"]}, "expect": {"all": {"says": "well"}}}"#;
        let script: Script = serde_json::from_str(text).unwrap();
        let instance = Instance::new(&script, Network::Sockets, 1);
        let a = instance.cast["a"][0];
        assert_eq!(instance.steps().unwrap()[a as usize].0, format!("send {a} 4; finish"));
        assert_eq!(instance.fill("{y}{a}"), format!("7{a}"));
        let sizes = ["a", "rest", "but a", "all"].map(|role| instance.cast[role].len());
        assert_eq!(sizes, [1, 2, 2, 3]);
    }
}
