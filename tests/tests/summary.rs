//! The summary of scripts/test from the output and the leftovers of tests: it runs with a fake
//! cargo that only prints what a test gives it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use ccl::config::environment;
use ccl_tests::other_user::UID;
use ccl_tests::programs::text;

const PASSED: &str = "     Running unittests src/lib.rs (target/debug/deps/ccl-0123456789abcdef)\n\
                      test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

fn script(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("its mode");
}

/// Runs scripts/test behind `words`, where the fake tests print `prints` and run `does`.
fn run(words: &[&str], prints: &str, does: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder of temporary files");
    // In a folder where any user may execute it.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/test");
    let original = std::fs::read_to_string(original).expect("scripts/test");
    script(&folder.path().join("scripts/test"), &original);
    let cargo = format!("#!/bin/sh\n[ \"$1\" = test ] || exit 0\ncat <<'EOF'\n{prints}\nEOF\n{does}\n");
    script(&folder.path().join("bin/cargo"), &cargo);
    let path =
        format!("{}:{}", folder.path().join("bin").display(), environment("PATH").expect("PATH is set"));
    let mut command = Command::new("env");
    command
        .args(words)
        .arg(folder.path().join("scripts/test"))
        .env("PATH", path)
        .env("TMPDIR", "/tmp")
        .env("HOME", folder.path());
    command.current_dir("/").output().expect("env starts")
}

#[test]
fn tests_that_pass_are_counted() {
    let output = run(&[], PASSED, "");
    let said = text(&output);
    assert!(output.status.success() && said.contains("\n3 passed, 0 failed, 0 skipped\n"), "{said}");
    assert!(!run(&[], "", "").status.success(), "no test ran");
    assert!(!run(&[], PASSED, "exit 101").status.success(), "cargo failed");
    let ignored = PASSED.replace("0 ignored", "1 ignored");
    assert!(!run(&[], &ignored, "").status.success(), "one is ignored");
}

#[test]
fn a_skipped_test_is_named_with_its_reason_and_has_not_passed() {
    let nobody = [format!("--reuid={UID}"), format!("--regid={UID}")];
    let nobody = ["setpriv", &nobody[0], &nobody[1], "--clear-groups"];
    let words = if rustix::process::geteuid().is_root() { &nobody[..] } else { &[] };
    let output = run(words, &format!("skipped: the_one: needs root, to be another\n{PASSED}"), "");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\n       skipped the_one: needs root, to be another\n"), "{said}");
    assert!(said.contains("\n2 passed, 0 failed, 1 skipped\n"), "{said}");
}

#[test]
fn what_this_machine_could_run_must_not_be_skipped() {
    let check = |reason: &str, expect: &str| {
        let output = run(&[], &format!("{}\n{PASSED}", ["skipped", "the_one", reason].join(": ")), "");
        let said = text(&output);
        assert!(!output.status.success() && said.contains(expect), "{said}");
    };
    check("needs /dev/shm", "skipped WITHOUT CAUSE, this machine has that: the_one: needs /dev/shm\n");
    check(
        "needs a miracle",
        "skipped for a reason that scripts/test does not know: the_one: needs a miracle\n",
    );
    check("no such luck", "skipped for a reason that scripts/test does not know: the_one: no such luck\n");
}

#[test]
fn nothing_may_be_left_behind() {
    // A job beside the tests has the pid of a running process; the other pid belongs to no process.
    let beside = format!("mkdir $HOME/ccl-job-{}", std::process::id());
    for (does, is_well) in [
        (beside.as_str(), true),
        ("mkdir $HOME/ccl-0 && : >$HOME/ccl-0/99999999-1-1.rec", false),
        ("mktemp -d", false),
        ("mkdir ${CCL_RUNTIME_DIR:?}/ccl-0", false),
    ] {
        let output = run(&[], PASSED, does);
        let said = text(&output);
        assert_eq!(
            (output.status.success(), said.contains("left behind /")),
            (is_well, !is_well),
            "{does}: {said}"
        );
    }
}
