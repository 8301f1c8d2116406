//! Queue pairs, on the devices of a virtual machine; and programs on a machine that has none.

use std::process::Command;

use ccl_tests::programs::{program, text};
use ccl_tests::vm::{ROWS, boot};

/// One boot for all checks: it takes seconds, and each check prints a row.
#[test]
fn queue_pairs_hold_what_the_transport_promises() {
    let Some(output) = boot() else {
        return println!(
            "skipped: queue_pairs_hold_what_the_transport_promises: needs Debian's packages of the emulator"
        );
    };
    let text = text(&output);
    let rows: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("row ")).collect();
    rows.iter().for_each(|row| println!("{row}"));
    for (name, _) in ROWS {
        let row = rows.iter().find(|row| row.split(' ').next() == Some(name));
        let is_fine = row.is_some_and(|row| row.starts_with(&format!("{name} ok ")));
        assert!(is_fine, "{name}: {}\n{text}", row.unwrap_or(&"it did not run"));
    }
    assert!(output.status.success(), "{text}");
    println!("cases: queue-pairs {}", rows.len());
}

/// Nothing else must be there where a program starts.
#[test]
fn programs_start_where_there_is_no_library_of_devices() {
    const ALLOWED: &[&str] = &["libc.so.6", "libm.so.6", "libgcc_s.so.1", "linux-vdso.so.1"];
    for name in ["ccl-inspect", "train_digits", "hello"] {
        let output = Command::new("ldd").arg(program(name)).output().expect("ldd");
        assert!(output.status.success(), "{}", text(&output));
        let listed = text(&output);
        let others: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| !ALLOWED.contains(name) && !name.contains("ld-linux"))
            .collect();
        assert!(listed.contains("libc.so.6") && others.is_empty(), "{name}: {listed}");
    }
}
