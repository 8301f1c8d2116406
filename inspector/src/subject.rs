//! What a verb is asked about: a job of this kernel, or what one has left in files or a dump.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::look::{self, Looked};
use crate::target::Target;

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

/// What is seen of it: of the only job there is, if none is named.
///
/// # Errors
/// The exit status and why there is nothing to show.
pub(crate) fn look(
    subject: Option<&Subject>,
    comm: Option<&str>,
    gathers: bool,
) -> Result<Looked, (u8, String)> {
    match subject {
        Some(Subject::Path(path)) => look::then(path, None, comm),
        Some(Subject::Target(target)) => look::now(Some(*target), comm, gathers),
        None => look::now(None, comm, gathers),
    }
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
