//! Memory transport: links between ranks of one host, in the same process or in different ones.
//!
//! Every rank has one [`memory::RankMemory`]; its peers map it once ([`connect`]), or find it in
//! [`local`] if they live in the same process. [`link`] moves messages through it, `carrier` makes
//! the links, `sleep` is how a driver sleeps on it.

pub(crate) mod carrier;
pub mod connect;
mod door;
pub mod link;
pub mod local;
pub mod memory;
pub(crate) mod sleep;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
