//! The content of a bundle, schema `ccl.dump/1`: a public promise, fields are added and never
//! changed.

use ccl::clock::{Anchor, Ns, Raw};
use ccl::diagnose::Unreachable;
use ccl::snapshot::ProcessFacts;
use ccl::types::JobId;
use serde::{Deserialize, Serialize};

/// The schema of [`Manifest`].
pub(crate) const SCHEMA: &str = "ccl.dump/1";
/// The name of the file that is a [`Manifest`]: the first one.
pub(super) const NAME: &str = "manifest.json";
/// The name of the snapshot at the moment of the dump, schema `ccl.snapshot/2`.
pub(super) const SNAPSHOT: &str = "snapshot.json";
/// The name of the file of the processes that other hosts told of, a line of JSON each; absent if
/// there are none. Their times are those of the dump's host.
pub(super) const GATHERED: &str = "gathered.jsonl";
/// The name of the file that describes the machine.
pub(super) const MACHINE: &str = "machine.json";

/// The content of a bundle, and what could not be read.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// The version of the ccl-inspect that made it.
    pub(crate) inspector: String,
    /// The job.
    pub(crate) job: JobId,
    /// The host on which it was made.
    pub(crate) host: String,
    /// When, in nanoseconds since 1970.
    pub(crate) taken_real_ns: u64,
    /// The recorders, each a file.
    pub(crate) recorders: Vec<Recorder>,
    /// Ranks of the job that are known and are not in the bundle.
    pub(crate) unreachable: Vec<Absent>,
    /// Other items that could not be read.
    pub(crate) refused: Vec<Refused>,
}

/// One recorder, and the facts that are only known at the moment of the dump.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recorder {
    /// Its file in the bundle.
    pub(crate) file: String,
    /// The bundle's file with the kernel's view of its process; empty if none was visible.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) process: String,
    /// Its process, as seen from where the dump was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    /// Where its file was.
    pub(crate) path: String,
    /// Whether its process was alive.
    pub(crate) alive: bool,
    /// The state letter of its process in /proc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) letter: Option<char>,
    /// Whether /proc showed that its process had ended.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) ended: bool,
    /// What its process did, and how it ended. Absent if nothing is known.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) facts: ProcessFacts,
    /// When copying began, in nanoseconds since 1970.
    pub(crate) from_real_ns: u64,
    /// When copying ended, in nanoseconds since 1970; the moment that ages count from.
    pub(crate) real_ns: u64,
    /// The same on CLOCK_MONOTONIC.
    pub(crate) mono_ns: u64,
    /// The same on the processor's counter.
    pub(crate) raw: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

fn is_default(facts: &ProcessFacts) -> bool {
    *facts == ProcessFacts::default()
}

/// A rank's process that is known and was not read.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Absent {
    /// Its host.
    pub(crate) host: String,
    /// Its pid, as it sees it.
    pub(crate) pid: u32,
    /// The path of its recorder.
    pub(crate) recorder: String,
    /// The reason.
    pub(crate) why: String,
}

/// Something that could not be read.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Refused {
    /// The item.
    pub(crate) what: String,
    /// The reason.
    pub(crate) why: String,
}

impl Recorder {
    /// The moment of the copy.
    pub(super) const fn at(&self) -> Anchor {
        Anchor { raw: Raw(self.raw), mono: Ns(self.mono_ns), real_ns: self.real_ns }
    }
}

impl From<Unreachable> for Absent {
    fn from(one: Unreachable) -> Self {
        Self { host: one.host, pid: one.pid, recorder: one.recorder, why: one.why }
    }
}

impl From<Absent> for Unreachable {
    fn from(one: Absent) -> Self {
        Self { host: one.host, pid: one.pid, recorder: one.recorder, why: one.why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema as it was published. It may gain fields, but never lose or change one.
    const PUBLISHED: &str = r#"{"schema":"ccl.dump/1","inspector":"0.1.0","job":"000000000000010b","host":"a",
        "taken_real_ns":5,"recorders":[{"file":"recorders/0.rec","process":"processes/0.json","pid":71,"path":"/run/71.rec",
        "alive":true,"letter":"T","from_real_ns":1,"real_ns":2,"mono_ns":3,"raw":4}],
        "unreachable":[{"host":"b","pid":7,"recorder":"/7.rec","why":"gone"}],"refused":[{"what":"stacks","why":"not root"}]}"#;

    #[test]
    fn the_manifest_is_the_published_one() {
        let manifest: Manifest = serde_json::from_str(PUBLISHED).unwrap();
        assert_eq!((manifest.recorders[0].letter, manifest.recorders[0].at().mono), (Some('T'), Ns(3)));
        let written = serde_json::to_value(&manifest).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(PUBLISHED).unwrap());
        assert!(serde_json::from_str::<Manifest>(r#"{"later":1}"#).is_ok());
    }
}
