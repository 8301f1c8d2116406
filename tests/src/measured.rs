//! Programs that are run to their end, with the time and memory they took.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use ccl::clock;

/// The output and the cost of a program.
#[derive(Debug)]
pub struct Measured {
    /// The exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// What it wrote: standard output, then standard error.
    pub text: String,
    /// How long it ran.
    pub took: Duration,
    /// The most memory that it had at once.
    pub peak_bytes: u64,
}

/// Runs a program to its end.
///
/// # Panics
/// If it cannot be started.
#[must_use]
#[expect(clippy::zombie_processes, reason = "it is waited for by wait4, which tells more")]
pub fn run(command: &mut Command) -> Measured {
    let began = clock::now();
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program starts");
    let mut errors = child.stderr.take().expect("piped");
    // Reads both at once: a full pipe would block the program.
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.read_to_end(&mut bytes);
        bytes
    });
    let mut bytes = Vec::new();
    let _ = child.stdout.take().expect("piped").read_to_end(&mut bytes);
    bytes.extend(errors.join().expect("reads"));
    let (mut status, pid) = (0, child.id().cast_signed());
    // SAFETY: a struct of integers, for which zero is a valid value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both point to places for results. The child is ours and is waited for only here.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) };
    assert_eq!(waited, pid, "{}", std::io::Error::last_os_error());
    Measured {
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        took: clock::now().since(began),
        peak_bytes: used.ru_maxrss.cast_unsigned() << 10,
    }
}
