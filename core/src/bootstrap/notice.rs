//! What making a communicator says to people, on standard error, as far as `CCL_DEBUG` lets it.

use crate::config::{Key, Settings};
use crate::text::harmless;

/// The longest that is said at once.
const MAX_TEXT: usize = 8 << 10;

/// How much somebody must want to know to hear something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// What is probably wrong.
    Warn,
    /// What is going on.
    Info,
}

/// Whether `settings` let this be said.
pub(crate) fn wanted(settings: &Settings, level: Level) -> bool {
    match settings.text(Key::Log) {
        "INFO" | "TRACE" => true,
        "WARN" => level == Level::Warn,
        _ => false,
    }
}

/// Says it, if `settings` let it.
pub(crate) fn say(settings: &Settings, level: Level, text: &str) {
    if wanted(settings, level) {
        eprintln!("ccl: {}", harmless(text, MAX_TEXT));
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
        assert!(wanted(&settings, Level::Info));
    }
}
