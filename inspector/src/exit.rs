//! The exit statuses, a public promise.

/// Something failed.
pub(crate) const ERROR: u8 = 1;
/// What was typed means nothing.
pub(crate) const USAGE: u8 = 2;

/// What `--help` says of them.
pub(crate) const HELP: &str = "\
Exit status: 0 ok, 1 error, 2 usage, 10 stall, 11 mismatch, 12 losses, 13 incomplete; run gives its ranks' worst.";
