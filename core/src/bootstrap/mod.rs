//! How ranks find each other.

mod agreement;
pub mod auth;
mod dial;
pub mod fault;
mod frame;
pub mod greet;
pub mod handshake;
pub mod id;
mod lobby;
mod machine;
mod member;
mod messages;
mod p2p;
mod ring;
mod root;
#[cfg(test)]
mod sim_net;
#[cfg(test)]
mod sim_tests;
