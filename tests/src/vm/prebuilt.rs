//! The tests of the transport itself, in the programs that `cargo test` has built.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Checked, must};
use crate::programs::{program, text};

/// The newest program of tests of this name that has this test.
fn newest(name: &str, test: &str) -> Result<PathBuf, String> {
    let folder = program("verbs_rows").with_file_name("deps");
    let is_one = |path: &Path| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let hash = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
        hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| is_one(&entry.path()))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    let has_test = |path: &PathBuf| {
        let listed = Command::new(path).arg("--list").output();
        listed.is_ok_and(|output| text(&output).contains(test))
    };
    let mut newest = found.into_iter().rev().map(|(_, path)| path);
    newest.find(has_test).ok_or_else(|| format!("no {name}-* has {test}: `make test` builds it"))
}

/// Runs tests one after another. Each must run, and none may be skipped.
fn run_tests(program: &Path, filters: &[&str]) -> Checked {
    let output = Command::new(program)
        .args(["--test-threads", "1", "--show-output"])
        .args(filters)
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let text = text(&output);
    let skipped: Vec<&str> = text.lines().filter(|line| line.starts_with("skipped")).collect();
    must(skipped.is_empty(), || format!("{skipped:?}"))?;
    must(output.status.success(), || text.clone())?;
    let ended = text.lines().find(|line| line.starts_with("test result: ok")).unwrap_or_default();
    must(!ended.is_empty() && !ended.contains(" 0 passed"), || text.clone())?;
    let cases: Vec<&str> = text.lines().filter(|line| line.starts_with("cases")).collect();
    Ok(format!("{ended} {}", cases.join(", ")))
}

/// The conformance suite, plain and in `faulty`, and the transport's own tests.
///
/// # Errors
/// A test failed or did not run.
pub fn units() -> Checked {
    let program = newest("ccl", "transport::ib::tests")?;
    run_tests(&program, &["transport::ib", "transport::conformance"])
}

/// The reference results.
///
/// # Errors
/// A result was wrong, or none was tried.
pub fn reference() -> Checked {
    let program = newest("reference", "ring_over_queue_pairs")?;
    let said = run_tests(&program, &["ring_over_queue_pairs"])?;
    must(said.contains("cases: reference-verbs"), || said.clone())?;
    Ok(said)
}
