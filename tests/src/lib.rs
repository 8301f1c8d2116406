//! What the whole-system tests share.
//!
//! | room | what it holds |
//! |---|---|
//! | [`programs`] | the workspace's programs, started as processes of their own |

pub mod programs;
