//! From snapshots to answers. Pure: no I/O, no clock, no environment, no global.

pub mod awaited;
