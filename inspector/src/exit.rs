//! The exit statuses (a public promise) and the printing of output.

use std::io::Write;

use ccl::snapshot::Snapshot;
use ccl::text::is_harmful;

/// It answered, and no verdict stands that is more than a suspicion.
pub(crate) const OK: u8 = 0;
/// Something failed.
pub(crate) const ERROR: u8 = 1;
/// The arguments are wrong.
pub(crate) const USAGE: u8 = 2;
/// A verdict says that the job is stalled or has failed; for `check`, also one that says SLOW.
pub(crate) const STALL: u8 = 10;
/// Ranks called different operations.
pub(crate) const MISMATCH: u8 = 11;
/// Some of the events did not get into the trace or export; for `check`, events or rows of a
/// recorder were lost.
pub(crate) const LOSSES: u8 = 12;
/// Not all ranks of the job could be read, or not to their end; for `stragglers`, also a file
/// without the history of calls.
pub(crate) const INCOMPLETE: u8 = 13;

/// The text about them in `--help`.
pub(crate) const HELP: &str = "\
Exit status: 0 answered and none of the others, 1 error, 2 usage, 10 stall (a verdict says STALLED: an operation failed, a process is dead, stopped, starved or out of descriptors, ranks wait in a circle, \
a link does not answer, or a rank has been awaited for as long as CCL_STALL_AFTER; `check`: also a verdict that says SLOW), 11 mismatch (ranks called different things), \
12 losses (not all that happened got into a trace or export; `check --fail-on drop`: events or rows of a recorder were lost), \
13 incomplete (not all ranks could be read; `stragglers`: also a file without the history of calls). Of several the one is given that says most: 11, else 10, else 12, else 13. `run` gives the worst status of its ranks.";

/// The exit status of a look at a job.
pub(crate) fn status(job: &Snapshot) -> u8 {
    match () {
        () if job.is_mismatch() => MISMATCH,
        () if job.has_stalled() => STALL,
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
    use ccl::snapshot::{Class, Standing, Verdict};

    use super::*;

    #[test]
    fn the_status_says_what_says_most_and_suspicions_say_nothing() {
        let check = |verdicts: &[(Class, Standing)], complete, expect| {
            let verdict = |(class, standing): &(Class, Standing)| Verdict {
                class: *class,
                standing: *standing,
                ..Verdict::default()
            };
            let verdicts = verdicts.iter().map(verdict).collect();
            assert_eq!(status(&Snapshot { complete, verdicts, ..Snapshot::default() }), expect);
        };
        check(&[], true, OK);
        check(&[], false, INCOMPLETE);
        check(&[(Class::NotJoined, Standing::Suspect)], true, OK);
        check(&[(Class::NotJoined, Standing::Suspect)], false, INCOMPLETE);
        check(&[(Class::NotJoined, Standing::Stalled)], false, STALL);
        check(&[(Class::PeerDead, Standing::Stalled), (Class::Mismatch, Standing::Stalled)], false, MISMATCH);
    }

    #[test]
    fn text_of_others_steers_no_terminal() {
        assert_eq!(super::harmless("a\u{1b}[2Jb\nc\u{9b}d\r"), "a\u{fffd}[2Jb\nc\u{fffd}d\u{fffd}");
        assert_eq!(super::harmless("a\u{202e}b\u{2066}\n"), "a\u{fffd}b\u{fffd}\n");
    }
}
