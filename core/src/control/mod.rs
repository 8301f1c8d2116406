//! The control socket beside the recorder's file, to which inspectors attach, and its protocol.
//! Gathering across hosts and the watchdog stand here too: they read a job as an inspector does.
//!
//! | module | what it holds |
//! |---|---|
//! | `wire` | the messages, and the inspector's side |
//! | `server` | the socket, and what each request does |
//! | `session` | one client: lines in, lines out, both bounded |
//! | `share` | the processor time that all clients together may take |
//! | `lease` | levels that clients raised for as long as they stay |
//! | `asking` | a question of a client that is answered later, in parts |
//! | `gather` | the state of ranks on hosts that an inspector cannot reach |
//! | `watchdog` | tells of stalls by itself, once for the whole job |

mod asking;
pub mod gather;
mod lease;
pub mod server;
mod session;
mod share;
pub(crate) mod watchdog;
pub mod wire;
