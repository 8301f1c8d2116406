//! Checks that need devices for queue pairs: they run in a virtual machine that has two.
//!
//! The program `verbs_rows` runs there. It prints a line `row NAME ok ...` or `row NAME FAILED ...`
//! for each check, which the test that booted the machine reads.
//!
//! | module | what it checks |
//! |---|---|
//! | [`prebuilt`] | the tests of the transport, in the programs that `cargo test` has built |
//! | [`hosts`] | jobs on two hosts: over which transport, and after how many packets |
//! | [`faults`] | one fault of each kind between the devices, and what is said of it |

pub mod faults;
pub mod hosts;
pub mod prebuilt;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ccl::clock;

use crate::job::{Setting, Transport};
use crate::orders::Orders;
use crate::programs::program;

/// What the runner ends with if its packages cannot be fetched.
const NO_PACKAGES: i32 = 77;
/// How long the machine may run, in seconds. It needs a third of that if nothing else runs.
const LIMIT: &str = "540";

/// How a check ended: what it measured, or what is wrong.
pub type Checked = Result<String, String>;

/// A check.
pub type Check = fn() -> Checked;

/// The checks in the order in which they run. The last ones take the devices away.
pub const ROWS: &[(&str, Check)] = &[
    ("units", prebuilt::units),
    ("reference", prebuilt::reference),
    ("hosts", hosts::over_queue_pairs),
    ("little_locked_memory", hosts::little_locked_memory),
    ("packets", hosts::packets),
    ("merged_devices", hosts::merged_devices),
    ("data_dropped", faults::data_dropped),
    ("data_dropped_for_seconds", faults::data_dropped_for_seconds),
    ("acknowledgements_dropped", faults::acknowledgements_dropped),
    ("little_loss", faults::little_loss),
    ("much_loss", faults::much_loss),
    ("peer_link_down", faults::peer_link_down),
    ("own_link_down", faults::own_link_down),
    ("no_device", hosts::without_device),
    ("no_library", hosts::without_library),
];

/// Runs the checks whose names begin with one of these words, or all, and prints their rows. Gives
/// whether all were fine.
#[must_use]
#[expect(clippy::print_stdout, reason = "what is read outside the machine")]
pub fn run_rows(words: &[String]) -> bool {
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.starts_with(word.as_str()));
    let mut is_fine = true;
    for (name, check) in ROWS.iter().filter(|(name, _)| is_wanted(name)) {
        let began = clock::now();
        let checked = std::panic::catch_unwind(check).unwrap_or_else(|_| Err("it panicked".into()));
        let (word, text) = match checked {
            Ok(text) => ("ok", text),
            Err(text) => ("FAILED", text),
        };
        let took = clock::now().since(began).as_secs_f64();
        println!("row {name} {word} {took:.1} s: {}", text.replace('\n', " | "));
        is_fine &= word == "ok";
    }
    is_fine
}

/// Boots the machine and runs all checks in it. `None` if its packages cannot be fetched.
///
/// # Panics
/// If the runner does not start.
#[must_use]
pub fn boot() -> Option<Output> {
    let rows = program("verbs_rows");
    let folder = rows.parent().expect("it lies in a folder");
    // Of this machine's temporary folder the machine sees nothing; the programs may lie there.
    let output = Command::new(repository().join("scripts/verbs-vm"))
        .args(["-t", LIMIT, "-d"])
        .args([folder, Path::new("--"), &rows])
        .output()
        .expect("the runner starts");
    (output.status.code() != Some(NO_PACKAGES)).then_some(output)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
}

/// Ranks that take these steps, the first half of them on one host of the machine and the others on
/// the other one, each host with a device of its own.
fn setting(steps: Vec<String>) -> Setting {
    let nranks = steps.len() as u32;
    let mut setting = Setting::new(nranks, Transport::Mixed, Orders::default());
    let host = |rank: u32| rank * 2 / nranks;
    let enter = |rank| vec!["ip".into(), "netns".into(), "exec".into(), format!("h{}", host(rank))];
    let name = |rank| ("CCL_HOSTID".into(), format!("h{}", host(rank)));
    let device = |rank| ("CCL_IB_HCA".into(), format!("rxe{}", host(rank)));
    setting.wrap = (0..nranks).map(enter).collect();
    setting.own_variables = (0..nranks).map(|rank| vec![name(rank), device(rank)]).collect();
    // A secret in words is stretched, which takes the emulated processor seconds.
    setting.has_file = true;
    setting.steps = steps;
    setting
}

/// Runs a command, which must end well; gives what it printed.
fn run(words: &str) -> Result<String, String> {
    let mut split = words.split_whitespace();
    let output = Command::new(split.next().unwrap_or_default()).args(split).output();
    let output = output.map_err(|e| format!("{words}: {e}"))?;
    let text = crate::programs::text(&output);
    if output.status.success() { Ok(text) } else { Err(format!("{words}: {}: {text}", output.status)) }
}

/// A wrong circumstance, as an error.
fn must(is_so: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(what()) }
}
