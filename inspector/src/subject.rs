//! What a verb is asked about: a job of this kernel, or what one has left in files or a dump.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use ccl::config::Settings;
use ccl::diagnose::{Given, Job, Unreachable, merge};
use ccl::snapshot::Snapshot;

use crate::choose::{choose, find};
use crate::discover::{self, Findings, Found};
use crate::target::Target;
use crate::{attach, dump, exit};

/// The argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// A job, by one of its processes or by its id.
    Target(Target),
    /// A recorder file, a folder of them, or a dump.
    Path(PathBuf),
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::Target).or_else(|why: String| {
            let is_there = Path::new(text).symlink_metadata().is_ok();
            is_there.then(|| Self::Path(text.into())).ok_or_else(|| format!("{why}, nor is it a file"))
        })
    }
}

/// The job, and the processes of which it was read.
///
/// # Errors
/// The exit status and why there is none.
pub(crate) fn read(
    subject: Option<&Subject>,
    settings: &Settings,
) -> Result<(Snapshot, Vec<Found>), (u8, String)> {
    let path = match subject {
        Some(Subject::Path(path)) => path,
        Some(Subject::Target(target)) => return living(Some(*target), settings),
        None => return living(None, settings),
    };
    if dump::is_bundle(path) {
        let dump = dump::open(path).map_err(|why| (exit::ERROR, why))?;
        let job = choose(&dump.findings, Some(Target::Job(dump.job)))?;
        return Ok(merged(dump.findings, &job, &dump.unreachable, dump.notes));
    }
    let findings = discover::at(path).map_err(|why| (exit::ERROR, why))?;
    let job = choose(&findings, None)?;
    let why = format!("only {} was opened, and it is not there", path.display());
    let unreachable = discover::only_these(&findings, &job, &why);
    Ok(merged(findings, &job, &unreachable, Vec::new()))
}

fn living(target: Option<Target>, settings: &Settings) -> Result<(Snapshot, Vec<Found>), (u8, String)> {
    let (mut findings, job) = find(settings, target)?;
    let unreachable = discover::follow_peers(&mut findings, &job);
    let notes = attach::ask_all(findings.found.iter_mut().filter(|one| one.is_of(&job)));
    Ok(merged(findings, &job, &unreachable, notes))
}

fn merged(
    findings: Findings,
    job: &Job,
    unreachable: &[Unreachable],
    notes: Vec<String>,
) -> (Snapshot, Vec<Found>) {
    let found: Vec<Found> = findings.found.into_iter().filter(|one| one.is_of(job)).collect();
    let given: Vec<Given> = found.iter().map(|one| one.given.clone()).collect();
    let mut snapshot = merge(&given, job, unreachable);
    snapshot.notes.extend(notes);
    (snapshot, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_told_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(path.parse(), Ok(Subject::Path(path.into())));
        assert_eq!("71".parse(), Ok(Subject::Target(Target::Process(71))));
        let why = format!("{path}/none").parse::<Subject>().unwrap_err();
        assert!(why.contains("neither a pid") && why.ends_with("nor is it a file"), "{why}");
    }
}
