//! The workspace's programs, built beside the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The path of the program `name` of this workspace.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    built(&folder().join(name))
}

/// The path of the C library `name` of this workspace, which a crate depends on.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn library(name: &str) -> PathBuf {
    built(&folder().join("deps").join(format!("lib{name}.so")))
}

/// Tests lie in target/PROFILE/deps, programs one level above.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it lies");
    let folder = test.parent().expect("a program lies in a folder");
    if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf()
}

fn built(path: &Path) -> PathBuf {
    assert!(path.is_file(), "{} is not there: `make test` builds it", path.display());
    path.to_path_buf()
}

/// A command `ccl-inspect run ARGUMENTS` with its own runtime folder, to be extended.
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
