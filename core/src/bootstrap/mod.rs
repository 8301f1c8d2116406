//! How ranks find each other.

pub mod auth;
mod frame;
pub mod greet;
pub mod id;
