//! A crate outside the workspace, where there is gcc and Rust and nothing else, uses ccl by its path.

use std::path::{Path, PathBuf};
use std::process::Command;

use ccl::config::environment;
use ccl_tests::programs::text;

/// All that a user's machine needs to have: Rust, and what gcc brings.
const TOOLS: &[&str] = &["cargo", "rustc", "gcc", "cc", "ld", "as", "ar"];

fn find(tool: &str) -> PathBuf {
    let path = environment("PATH").expect("PATH is set");
    let found = path.split(':').map(|folder| Path::new(folder).join(tool)).find(|at| at.is_file());
    found.unwrap_or_else(|| panic!("{tool} is not in PATH"))
}

#[test]
fn a_fresh_crate_says_hello() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository");
    let fresh = tempfile::tempdir().expect("a folder of temporary files");
    let write = |name: &str, text: &str| {
        let path = fresh.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write(
        "Cargo.toml",
        &format!(
            "[package]\nname = \"fresh\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
             ccl = {{ package = \"ccl-core\", path = {:?} }}\n",
            repository.join("core")
        ),
    );
    let hello = std::fs::read_to_string(repository.join("examples/src/bin/hello.rs")).expect("hello.rs");
    let kept: Vec<&str> = hello.lines().filter(|line| !line.contains("ccl_exporters")).collect();
    assert_eq!(kept.len() + 1, hello.lines().count(), "hello has one line for the exporters");
    write("src/main.rs", &kept.join("\n"));
    // The versions that the workspace was tested with, which are on this machine.
    std::fs::copy(repository.join("Cargo.lock"), fresh.path().join("Cargo.lock")).expect("Cargo.lock");

    let tools = fresh.path().join("tools");
    std::fs::create_dir(&tools).expect("a folder");
    for tool in TOOLS {
        std::os::unix::fs::symlink(find(tool), tools.join(tool)).expect("a link");
    }
    let build = || {
        let mut cargo = Command::new(tools.join("cargo"));
        // Kept between runs, so that only the first builds everything.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fresh_crate");
        cargo.current_dir(fresh.path()).env_clear().env("PATH", &tools).env("CARGO_TARGET_DIR", target);
        for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
            cargo.envs(environment(name).map(|value| (name, value)));
        }
        cargo
    };
    let run = build().args(["run", "--offline"]).output().expect("cargo starts");
    assert!(run.status.success(), "{}", text(&run));
    assert!(text(&run).contains("hello from rank 0 of 1: the sum is 1"), "{}", text(&run));
}
