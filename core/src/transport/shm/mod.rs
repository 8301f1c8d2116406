//! Memory transport: links between ranks of one host, in the same process or in different ones.
//!
//! Every rank has one [`memory::RankMemory`], a part of the memory of its process ([`arena`]); its
//! peers map it, or find it in [`local`] if they live in the same process. [`connect`] is how
//! processes meet, [`peer`] what each knows of the others. [`link`] moves messages, `carrier` makes
//! the links, `sleep` and `bell` are how a driver sleeps.

pub mod arena;
pub mod bell;
pub(crate) mod carrier;
pub mod connect;
mod door;
pub mod link;
pub mod local;
pub mod memory;
pub mod peer;
pub(crate) mod sleep;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
