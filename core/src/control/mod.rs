//! What runs beside the data path: the service thread, the inspector's socket, news between ranks.

pub(crate) mod attendance;
pub(crate) mod courier;
pub(crate) mod edge;
mod lease;
mod line;
pub mod news;
pub mod server;
pub mod service;
mod session;
mod share;
pub mod wire;
