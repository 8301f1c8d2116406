//! The workspace's programs as they were built beside the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where the program `name` of this workspace lies.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    built(&folder().join(name))
}

/// Where the C library `name` of this workspace lies, on which some crate depends.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn library(name: &str) -> PathBuf {
    built(&folder().join("deps").join(format!("lib{name}.so")))
}

/// Tests lie in target/PROFILE/deps, programs above them.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it lies");
    let folder = test.parent().expect("a program lies in a folder");
    if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf()
}

fn built(path: &Path) -> PathBuf {
    assert!(path.is_file(), "{} is not there: `make test` builds it", path.display());
    path.to_path_buf()
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
