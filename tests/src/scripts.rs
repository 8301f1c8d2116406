//! Scenarios that say what every rank does: files in `tests/scenarios/scripts`. Each gives the
//! steps of the ranks by their roles, what is done to the processes meanwhile, and what every rank
//! must say in the end. As in [`crate::scenario`], what must be said follows from what the
//! operations mean; nobody asked the code that is tested.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ccl::seed::Seed;
use serde::{Deserialize, Serialize};

use crate::steps::Steps;

/// What the ranks must say in the end.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// In a few words: `well`, `mismatch of root`, `peer died` ... ([`crate::said::label`]).
    /// `anything`: it is not asked.
    pub says: String,
    /// The roles of whom an error names.
    #[serde(default)]
    pub about: Vec<String>,
    /// Of a mismatch both sides: by role, the words in what it is said to have called.
    #[serde(default)]
    pub sides: BTreeMap<String, Vec<String>>,
    /// What the text says.
    #[serde(default)]
    pub contains: Vec<String>,
    /// What the text does not say.
    #[serde(default)]
    pub never: Vec<String>,
    /// What its forked child says: `nothing`, or `refused`.
    #[serde(default)]
    pub child: Option<String>,
}

/// What may be drawn for a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Alternative {
    /// `{name}`.
    Word(String),
    /// `{name.part}`.
    Parts(BTreeMap<String, String>),
}

/// One file. In steps, commands and expectations `{a}` is the rank that plays the role `a`, and
/// `{x}` or `{x.y}` what was drawn for `x`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// For people.
    pub about: String,
    /// How many ranks, to draw from.
    pub ranks: Vec<u32>,
    /// Roles that one rank each plays; all other ranks play `rest`.
    pub roles: Vec<String>,
    /// What else is drawn: one alternative of each list.
    #[serde(default)]
    pub draw: BTreeMap<String, Vec<Alternative>>,
    /// Settings, by role, `rest` or `all`.
    #[serde(default)]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The steps, by role. `!` marks the one at which it matters when it is taken.
    pub steps: BTreeMap<String, String>,
    /// What is done to the processes, in order, one rank of a role after another: `await ROLE` (at
    /// its marked step), `holds ROLE` (is where it holds), `go ROLE` (on from there), `ended ROLE`,
    /// `kill ROLE`, `stop ROLE`, `cont ROLE`, `pause MILLISECONDS`.
    #[serde(default)]
    pub conduct: Vec<String>,
    /// What must be said, by role, `rest` or `all`.
    pub expect: BTreeMap<String, Expected>,
    /// How soon, from when it could be known.
    #[serde(default = "usual_limit")]
    pub within_ms: u64,
}

/// Well below the time-out that all of them have, and long enough for a busy machine.
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

/// A script with everything drawn from a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// Of what.
    pub script: Script,
    /// From what.
    pub seed: u64,
    /// How the ranks reach each other.
    pub network: Network,
    /// How many there are.
    pub nranks: u32,
    /// Who plays which role, in a drawn order. `rest`, `all`, and `but a`, which is all but who
    /// plays `a`, are among them.
    pub cast: BTreeMap<String, Vec<u32>>,
    /// What stands for the names in braces.
    words: BTreeMap<String, String>,
    /// For what else is left to chance.
    pub chance: u64,
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}: {} ranks, {:?}", self.script.name, self.seed, self.nranks, self.network)?;
        self.words.iter().try_for_each(|(name, word)| write!(f, ", {name} = {word}"))
    }
}

impl Instance {
    /// Draws one.
    #[must_use]
    pub fn new(script: &Script, network: Network, seed: u64) -> Self {
        // Every script draws its own, on every network.
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

    /// `text` with what was drawn in place of the names in braces.
    #[must_use]
    pub fn fill(&self, text: &str) -> String {
        // What was drawn may name roles in turn.
        let once = |text: String| {
            self.words.iter().fold(text, |text, (name, word)| text.replace(&format!("{{{name}}}"), word))
        };
        once(once(text.to_string()))
    }

    /// What `by_role` holds for a rank: its role's, else that of all.
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

    /// The steps of each rank, as words and read.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn steps(&self) -> Result<Vec<(String, Steps)>, String> {
        let steps = |rank| {
            let words = self.of(&self.script.steps, rank).map(|text| self.fill(text));
            let words = words.ok_or_else(|| format!("rank {rank} has no steps"))?;
            Steps::parse(&words).map(|steps| (words, steps))
        };
        (0..self.nranks).map(steps).collect()
    }

    /// What a rank must say.
    ///
    /// # Errors
    /// Nobody says what.
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
