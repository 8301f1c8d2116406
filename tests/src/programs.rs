//! The workspace's programs as they were built beside the tests.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Where the program `name` of this workspace lies.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it lies");
    let folder = test.parent().expect("a program lies in a folder");
    // Tests lie in target/PROFILE/deps, programs above them.
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not there: `make test` builds it", path.display());
    path
}

/// `ccl-inspect run ARGUMENTS`, to be told more, in a runtime folder of its own.
#[must_use]
pub fn launcher(runtime: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("ccl-inspect"));
    command.arg("run").args(arguments).env("CCL_RUNTIME_DIR", runtime).stdin(Stdio::null());
    command
}

/// What a program wrote: standard output, then standard error.
#[must_use]
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
