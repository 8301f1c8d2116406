//! Opens a bundle on any machine; its recorders are shown as they were at the moment of the dump.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;

use ccl::control::gather::GatheredRow;
use ccl::diagnose::{Given, Unreachable};
use ccl::recorder::Capture;
use ccl::snapshot::Source;
use ccl::types::JobId;

use super::kernel::{Machine, Process};
use super::manifest::{self, Manifest};
use super::{bundle, given, read};
use crate::discover::{Findings, Found, door};
use crate::words;

/// The most recorders of a bundle; one host has no more processes of a job.
const MAX_RECORDERS: usize = 1 << 12;

/// The content of a bundle.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Its recorders.
    pub(crate) findings: Findings,
    /// Processes of which other hosts told.
    pub(crate) gathered: Vec<Given>,
    /// The job of which it was made.
    pub(crate) job: JobId,
    /// The ranks that could not be read when it was made.
    pub(crate) unreachable: Vec<Unreachable>,
    /// Further notes.
    pub(crate) notes: Vec<String>,
}

/// Opens a bundle.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn open(path: &Path) -> Result<Opened, String> {
    let refuse = |why: String| format!("{} is no dump of ccl-inspect: {why}", path.display());
    let named = door::named(path).map_err(|e| e.to_string())?;
    let file = named.open().map_err(|e| refuse(e.to_string()))?;
    let mut opened = read_bundle(BufReader::new(file), path).map_err(refuse)?;
    opened.notes.extend(door::of_another(path, named.owner()));
    Ok(opened)
}

/// Reads a bundle, one file after the other; only the decoded content of each is kept.
fn read_bundle(packed: impl Read, path: &Path) -> Result<Opened, String> {
    let mut reading = Reading {
        path,
        manifest: None,
        machine: Machine::default(),
        read: BTreeMap::new(),
        gathered: Vec::new(),
        killed: 0,
    };
    bundle::unpack(packed, |name, bytes| reading.take(name, bytes))?;
    reading.end()
}

struct Reading<'a> {
    path: &'a Path,
    manifest: Option<Manifest>,
    machine: Machine,
    /// The recorders read so far, by their index in the manifest.
    read: BTreeMap<usize, Result<Found, String>>,
    gathered: Vec<Given>,
    /// The largest number of killed processes that a control group of the job reports.
    killed: u64,
}

impl Reading<'_> {
    fn take(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        let Some(manifest) = &self.manifest else {
            if name != manifest::NAME {
                return Err(format!("it begins with {name:?}, not with {}", manifest::NAME));
            }
            let manifest: Manifest = json(name, &bytes)?;
            if manifest.schema != manifest::SCHEMA {
                let (is, reads) = (manifest.schema, manifest::SCHEMA);
                return Err(format!(
                    "it has schema {is:?}, this ccl-inspect reads {reads}; use the one that made it"
                ));
            }
            if manifest.recorders.len() > MAX_RECORDERS {
                return Err(format!("it says that it holds {} recorders", manifest.recorders.len()));
            }
            self.manifest = Some(manifest);
            return Ok(());
        };
        if name == manifest::MACHINE {
            self.machine = json(name, &bytes)?;
        } else if name == manifest::GATHERED {
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            self.gathered = lines.take(MAX_RECORDERS).map(gathered).collect::<Result<_, _>>()?;
        } else if let Some(at) = manifest.recorders.iter().position(|one| one.file == name) {
            let one = &manifest.recorders[at];
            let taken = Capture { bytes, alive: one.alive, from_real_ns: one.from_real_ns, at: one.at() };
            let found = read(taken, name).map(|process| {
                Found::of_dump(given(one, process, Source::File), one.pid, self.path.join(name))
            });
            self.read.entry(at).or_insert(found);
        } else if manifest.recorders.iter().any(|one| one.process == name) {
            let process: Process = json(name, &bytes)?;
            self.killed = process.memory_events.get("oom_kill").copied().unwrap_or(0).max(self.killed);
        }
        // Files that a later version adds are ignored.
        Ok(())
    }

    fn end(self) -> Result<Opened, String> {
        let manifest = self.manifest.ok_or("it is empty")?;
        let mut findings = Findings::default();
        for (at, found) in self.read {
            match found {
                Ok(found) => findings.found.push(found),
                Err(why) => findings.refused.push((self.path.join(&manifest.recorders[at].file), why)),
            }
        }
        let when = words::utc(manifest.taken_real_ns);
        let mut notes = vec![format!(
            "this was so on {} at {when}; dumped by ccl-inspect {}",
            manifest.host, manifest.inspector
        )];
        let lost = manifest.recorders.len() - findings.found.len() - findings.refused.len();
        if lost > 0 {
            notes.push(format!("{lost} recorders of which the manifest tells are not in the bundle"));
        }
        notes.extend(findings.refused.iter().map(|(file, why)| format!("{}: {why}", file.display())));
        match (self.killed, self.machine.oom_kill.unwrap_or(0)) {
            (0, 0) => {}
            (0, killed) => notes.push(format!(
                "the kernel of {} had killed {killed} processes for want of memory since it was booted",
                manifest.host
            )),
            (killed, _) => notes.push(format!(
                "the kernel of {} had killed {killed} processes of a rank's control group for want of memory",
                manifest.host
            )),
        }
        notes
            .extend(manifest.refused.iter().map(|one| format!("not in the dump: {}: {}", one.what, one.why)));
        let unreachable = manifest.unreachable.into_iter().map(Into::into).collect();
        Ok(Opened { findings, gathered: self.gathered, job: manifest.job, unreachable, notes })
    }
}

/// A process of which another host told.
fn gathered(line: &[u8]) -> Result<Given, String> {
    let what = || format!("{} in it has a line that no process tells", manifest::GATHERED);
    let GatheredRow { process, letter, ended, .. } = GatheredRow::of_line(line).ok_or_else(what)?;
    Ok(Given { process, source: Source::Gather, letter, ended })
}

fn json<T: serde::de::DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("{name} in it cannot be understood: {e}"))
}

#[cfg(test)]
mod tests {
    use ccl::clock;
    use ccl::config::Settings;
    use ccl::diagnose::{merge, render_text};
    use ccl::recorder::{CommInfo, Reader, Recorder};
    use ccl::snapshot::State;
    use ccl::types::{CommId, Rank};
    use proptest::prelude::*;

    use super::super::sparse::Sparse;
    use super::super::{Recorder as Listed, to_json};
    use super::*;

    type Files = Vec<(String, Vec<u8>)>;

    /// A bundle of this process's own recorder, as if the process had been stopped.
    fn files() -> Files {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.set(ccl::config::Key::RuntimeDir, folder.path().to_str().unwrap()).unwrap();
        let recorder = Recorder::for_process(&settings).unwrap();
        let row = recorder.comm(CommInfo {
            id: CommId(5),
            job: JobId(7),
            name: "dp",
            rank: Rank(0),
            nranks: 2,
            world: Rank(0),
        });
        let taken = Reader::of_process().unwrap().capture().unwrap();
        drop(row);
        let listed = Listed {
            file: "recorders/0.rec".into(),
            process: "processes/0.json".into(),
            pid: Some(71),
            alive: true,
            letter: Some('T'),
            from_real_ns: taken.from_real_ns,
            real_ns: taken.at.real_ns,
            mono_ns: taken.at.mono.0,
            raw: taken.at.raw.0,
            ..Listed::default()
        };
        let manifest = Manifest {
            schema: manifest::SCHEMA.into(),
            job: JobId(7),
            host: "h".into(),
            taken_real_ns: clock::real_ns(),
            recorders: vec![listed],
            ..Manifest::default()
        };
        vec![
            (manifest::NAME.into(), to_json(&manifest).unwrap()),
            (
                manifest::MACHINE.into(),
                to_json(&Machine { oom_kill: Some(3), ..Machine::default() }).unwrap(),
            ),
            ("processes/0.json".into(), to_json(&Process::default()).unwrap()),
            ("recorders/0.rec".into(), taken.bytes),
        ]
    }

    fn opened(files: &[(String, Vec<u8>)]) -> Result<Opened, String> {
        let files: Vec<_> = files.iter().map(|(name, bytes)| (name.clone(), Sparse::of(bytes))).collect();
        let packed = bundle::pack(&files, 0).unwrap();
        read_bundle(packed.as_slice(), Path::new("b.tar.zst"))
    }

    #[test]
    fn the_state_at_the_moment_of_the_dump_is_honoured() {
        let opened = opened(&files()).unwrap();
        let [found] = opened.findings.found.as_slice() else { panic!("{opened:?}") };
        assert_eq!((found.given.state(), found.given.source), (State::Stopped, Source::File));
        assert_eq!((found.process, opened.job), (Some(71), JobId(7)));
        assert!(
            opened.notes.iter().any(|note| note.contains("had killed 3 processes")),
            "{:?}",
            opened.notes
        );
    }

    #[test]
    fn what_is_wrong_within_is_said() {
        let check = |change: &dyn Fn(&mut Files), says: &str| {
            let mut files = files();
            change(&mut files);
            let why = opened(&files).unwrap_err();
            assert!(why.contains(says), "{why}");
        };
        check(&|files| files.clear(), "it is empty");
        check(&|files| files.swap(0, 1), "it begins with \"machine.json\", not with manifest.json");
        check(&|files| files[0].1 = b"{".to_vec(), "manifest.json in it cannot be understood");
        check(&|files| files[0].1 = b"{}".to_vec(), "it has schema \"\", this ccl-inspect reads ccl.dump/1");
        check(&|files| files[1].1.clear(), "machine.json in it cannot be understood");
        let mut files = files();
        files[3].1.truncate(100);
        let told = opened(&files).unwrap();
        assert!(told.findings.found.is_empty());
        assert!(
            told.notes.iter().any(|note| note.contains("is no recorder: it has 96 bytes")),
            "{:?}",
            told.notes
        );
        files.pop();
        let told = opened(&files).unwrap();
        assert!(told.notes.iter().any(|note| note.starts_with("1 recorders of which")), "{:?}", told.notes);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn whatever_the_files_hold_nothing_panics(
            changes in proptest::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..40),
        ) {
            let mut files = files();
            for (file, at, byte) in changes {
                let bytes = &mut files[file].1;
                // In a recorder the first pages lead to all others.
                let most = if file == 3 { 8192 } else { bytes.len() };
                let at = at.index(most);
                bytes[at] = byte;
            }
            if let Ok(opened) = opened(&files) {
                let given: Vec<_> = opened.findings.found.into_iter().map(|one| one.given).collect();
                let job = merge(&given, &opened.job.into(), &opened.unreachable);
                prop_assert!(!render_text(&job).is_empty());
            }
        }
    }
}
