//! Words of the header about stalls: what the watchdog of this process told, or heard from that of
//! another one, last. From layout 10 on.

/// The latch of it.
pub const LATCH: usize = 256;
/// Two copies of it.
pub const TOLD: usize = 257;
/// In a copy: the number of the standing (0: no stall stands) | of the class << 8 | of the reason
/// << 16 | 1 << 24 where this process told it.
pub const WHAT: usize = 0;
/// In a copy: the rank in the job of the process that told it, plus 1.
pub const BY: usize = 1;
/// In a copy: raw time when it was told or heard.
pub const AT: usize = 2;
/// In a copy: a hash of who is to blame. Where all is equal, the same is told.
pub const KEY: usize = 3;
/// In a copy: what is wrong, as text.
pub const TEXT: usize = 4;
/// Words of the text.
pub const TEXT_WORDS: usize = 32;
/// Words of one copy.
pub const WORDS: usize = TEXT + TEXT_WORDS;
