//! The floor of the crate `ibverbs`: that of ccl, so that both have the same types.

pub use ccl_ibverbs_sys::*;
