//! Messages for people on standard error, as far as `CCL_DEBUG` allows them.

use std::os::fd::AsFd as _;

use rustix::io::Errno;

use crate::config::{Key, Settings};
use crate::text::harmless;

/// The longest text of one message, in bytes.
const MAX_TEXT: usize = 8 << 10;

/// The importance of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// Something is probably wrong.
    Warn,
    /// How a communicator was initialized, and what it uses.
    Info,
    /// Each phase of init and each call.
    Trace,
}

/// Whether `settings` allow messages of this level.
pub(crate) fn wanted(settings: &Settings, level: Level) -> bool {
    match settings.text(Key::Log) {
        "TRACE" => true,
        "INFO" => level <= Level::Info,
        "WARN" => level == Level::Warn,
        _ => false,
    }
}

/// Prints the text, if `settings` allow the level.
pub(crate) fn say(settings: &Settings, level: Level, text: &str) {
    if wanted(settings, level) {
        print(text);
    }
}

/// Prints a warning, if `settings` allow it. Also used by the crates that are built on this one.
pub fn warn(settings: &Settings, text: &str) {
    say(settings, Level::Warn, text);
}

/// Prints the text without checking the settings.
pub(crate) fn print(text: &str) {
    line(&format!("ccl: {}", harmless(text, MAX_TEXT)));
}

/// Writes the line with one call, because several processes may share a terminal.
///
/// It takes no lock: where a terminal or a pipe blocks one thread, the others go on.
pub(crate) fn line(text: &str) {
    let line = format!("{text}\n");
    let error = std::io::stderr();
    let mut left = line.as_bytes();
    while !left.is_empty() {
        match rustix::io::write(error.as_fd(), left) {
            Ok(count) if count > 0 => left = &left[count..],
            Err(Errno::INTR) => {}
            // A job continues when standard error can no longer be written.
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_heard_by_default_and_silence_is_silence() {
        let mut settings = Settings::default();
        assert!(wanted(&settings, Level::Warn) && !wanted(&settings, Level::Info));
        settings.set(Key::Log, "NONE").unwrap();
        assert!(!wanted(&settings, Level::Warn));
        settings.set(Key::Log, "INFO").unwrap();
        assert!(wanted(&settings, Level::Info) && !wanted(&settings, Level::Trace));
        settings.set(Key::Log, "TRACE").unwrap();
        assert!(wanted(&settings, Level::Trace));
    }
}
