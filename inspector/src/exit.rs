//! The exit statuses, a public promise; and the way out for what is printed.

use std::io::Write;

use ccl::text::is_harmful;

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
Exit status: 0 ok, 1 error, 2 usage, 12 losses (not all that happened got into a trace or export), 13 incomplete (not all ranks could be \
read); 10 stall and 11 mismatch are reserved for verdicts. `run` gives the worst status of its ranks.";

/// Text without what would steer a terminal or show other words than it has: names and tags come from other programs, a dump from
/// anywhere. Its lines are ours: what could forge one was made harmless where it was read.
pub(crate) fn harmless(text: &str) -> String {
    text.replace(|c: char| is_harmful(c) && c != '\n', "\u{fffd}")
}

/// Prints text, or JSON, without what would steer a terminal.
///
/// # Errors
/// The exit status and why it was not printed; a reader that has gone away wants no more, which is no error.
pub(crate) fn say(text: &str) -> Result<(), (u8, String)> {
    say_more(text).map(|_| ())
}

/// Prints text of which more may follow; whether somebody still reads.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_more(text: &str) -> Result<bool, (u8, String)> {
    write(&harmless(text))
}

/// Prints what this program itself has made, as it is: scripts and pages have tabs.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_own(text: &str) -> Result<(), (u8, String)> {
    write(text).map(|_| ())
}

fn write(text: &str) -> Result<bool, (u8, String)> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err((ERROR, format!("writing the answer: {e}"))),
        Ok(()) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_of_others_steers_no_terminal() {
        assert_eq!(super::harmless("a\u{1b}[2Jb\nc\u{9b}d\r"), "a\u{fffd}[2Jb\nc\u{fffd}d\u{fffd}");
        assert_eq!(super::harmless("a\u{202e}b\u{2066}\n"), "a\u{fffd}b\u{fffd}\n");
    }
}
