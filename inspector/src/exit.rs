//! The exit statuses, a public promise; and the way out for what is printed.

use std::io::Write;

/// All is well and was seen whole.
pub(crate) const OK: u8 = 0;
/// Something failed.
pub(crate) const ERROR: u8 = 1;
/// What was typed means nothing.
pub(crate) const USAGE: u8 = 2;
/// Something that happened did not get to where it was to go.
pub(crate) const LOSSES: u8 = 12;
/// Not all ranks of the job could be read.
pub(crate) const INCOMPLETE: u8 = 13;

/// What `--help` says of them.
pub(crate) const HELP: &str = "\
Exit status: 0 ok, 1 error, 2 usage, 12 losses (not all that happened was exported), 13 incomplete (not all ranks could be \
read); 10 stall and 11 mismatch are reserved for verdicts. `run` gives the worst status of its ranks.";

/// Prints text.
///
/// # Errors
/// The exit status and why it was not printed; a reader that has gone away wants no more, which is no error.
pub(crate) fn say(text: &str) -> Result<(), (u8, String)> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err((ERROR, format!("writing the answer: {e}")))
        }
        _ => Ok(()),
    }
}
