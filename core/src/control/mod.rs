//! The control socket beside the recorder's file, to which inspectors attach, and its protocol.

mod asking;
pub mod gather;
mod lease;
pub mod server;
mod session;
mod share;
pub(crate) mod watchdog;
pub mod wire;
