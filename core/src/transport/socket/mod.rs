//! (stub)
pub mod link;
