//! How ranks find each other.

mod agreement;
pub mod auth;
mod dial;
pub mod driver;
pub mod fault;
mod frame;
pub mod greet;
pub mod handshake;
pub mod host;
pub mod id;
pub mod interfaces;
mod lobby;
mod machine;
mod member;
mod messages;
mod net;
mod notice;
mod p2p;
pub mod rendezvous;
mod ring;
mod root;
pub mod root_task;
#[cfg(test)]
mod sim_net;
#[cfg(test)]
mod sim_tests;
