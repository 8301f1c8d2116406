//! The exit statuses (a public promise) and the printing of output.

use std::io::Write;

use ccl::config::{Key, Settings};
use ccl::snapshot::Snapshot;
use ccl::text::is_harmful;

/// It answered, no rank has waited for `CCL_STALL_AFTER`, and the ranks agree.
///
/// Whether the job has failed or died is in the output.
pub(crate) const OK: u8 = 0;
/// Something failed.
pub(crate) const ERROR: u8 = 1;
/// The arguments are wrong.
pub(crate) const USAGE: u8 = 2;
/// A rank has waited for `CCL_STALL_AFTER` or longer.
pub(crate) const STALL: u8 = 10;
/// Ranks called different operations.
pub(crate) const MISMATCH: u8 = 11;
/// Some of the events did not get into the trace or export.
pub(crate) const LOSSES: u8 = 12;
/// Not all ranks of the job could be read, or not to their end.
pub(crate) const INCOMPLETE: u8 = 13;

/// The text about them in `--help`.
pub(crate) const HELP: &str = "\
Exit status: 0 answered and none of the others (whether the job has failed or died is in the text and the JSON: failures, state), 1 error, 2 usage, 10 stall (a rank has waited for as long as CCL_STALL_AFTER), 11 mismatch (ranks called different things), \
12 losses (not all that happened got into a trace or export), 13 incomplete (not all ranks could be read). Of 10, 11 and 13 the one is given that \
says most: 11, else 10, else 13. `run` gives the worst status of its ranks.";

/// The exit status of a look at a job.
pub(crate) fn status(job: &Snapshot, settings: &Settings) -> u8 {
    let stall_ns = settings.duration(Key::StallAfter).as_nanos() as u64;
    match () {
        () if job.is_mismatch() => MISMATCH,
        () if job.has_stalled(stall_ns) => STALL,
        () if !job.complete => INCOMPLETE,
        () => OK,
    }
}

/// Text without characters that would control a terminal or disguise other characters.
///
/// Names and tags come from other programs, and a dump from anywhere. Line ends are kept, because
/// only this program makes them: those in foreign text were replaced when it was read.
pub(crate) fn harmless(text: &str) -> String {
    text.replace(|c: char| is_harmful(c) && c != '\n', "\u{fffd}")
}

/// Prints text or JSON without characters that would control a terminal.
///
/// # Errors
/// The exit status and why it was not printed. A reader that has closed the pipe is not an error.
pub(crate) fn say(text: &str) -> Result<(), (u8, String)> {
    say_more(text).map(|_| ())
}

/// Prints text of which more may follow; gives whether there is still a reader.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_more(text: &str) -> Result<bool, (u8, String)> {
    write(&harmless(text))
}

/// Prints text of this program's own as it is: scripts and manual pages contain tabs.
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
    use ccl::snapshot::{BlockedOn, Failure, NotJoined};

    use super::*;

    #[test]
    fn the_status_says_what_says_most_and_a_stall_from_its_time_on() {
        const SECOND: u64 = 1_000_000_000;
        let mut settings = Settings::default();
        let check = |job: &Snapshot, settings: &Settings, expect| assert_eq!(status(job, settings), expect);
        let whole = Snapshot { complete: true, ..Snapshot::default() };
        check(&whole, &settings, OK);
        check(&Snapshot::default(), &settings, INCOMPLETE);
        let waits = |since_ns| vec![BlockedOn { since_ns, ..BlockedOn::default() }];
        let stalls = Snapshot { blocked_on: waits(30 * SECOND), ..Snapshot::default() };
        check(&stalls, &settings, STALL);
        let short = Snapshot { blocked_on: waits(30 * SECOND - 1), ..whole.clone() };
        check(&short, &settings, OK);
        settings.set(Key::StallAfter, "2.5").unwrap();
        check(&short, &settings, STALL);
        let joins = NotJoined { since_ns: 3 * SECOND, ..NotJoined::default() };
        check(&Snapshot { not_joined: vec![joins], ..Snapshot::default() }, &settings, STALL);
        let failure =
            |error: &str, lasted_ns| vec![Failure { error: error.into(), lasted_ns, ..Failure::default() }];
        check(&Snapshot { failures: failure("Timeout", 3 * SECOND), ..whole.clone() }, &settings, STALL);
        check(&Snapshot { failures: failure("Peer", 3 * SECOND), ..whole }, &settings, OK);
        check(&Snapshot { failures: failure("Mismatch", 0), ..stalls }, &settings, MISMATCH);
    }

    #[test]
    fn text_of_others_steers_no_terminal() {
        assert_eq!(super::harmless("a\u{1b}[2Jb\nc\u{9b}d\r"), "a\u{fffd}[2Jb\nc\u{fffd}d\u{fffd}");
        assert_eq!(super::harmless("a\u{202e}b\u{2066}\n"), "a\u{fffd}b\u{fffd}\n");
    }
}
