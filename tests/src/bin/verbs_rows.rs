//! Checks of queue pairs (`ccl_tests::vm`): `verbs_rows [ROW...]`, all if none is named.
//!
//! It needs the machine that `scripts/verbs-vm` boots, as whose root it runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if ccl_tests::vm::run_rows(&words) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
