//! Memory: links between ranks of one host, of one process or of several.
//!
//! Every rank has one [`memory::RankMemory`]; its peers map it once ([`connect`]), or find it in [`local`] if they live in the
//! same process. [`link`] moves messages through it, [`wait`] sleeps on it.

pub mod connect;
mod door;
pub mod link;
pub mod local;
pub mod memory;
pub mod wait;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
