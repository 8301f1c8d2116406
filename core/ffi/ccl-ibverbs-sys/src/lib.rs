//! libibverbs, found at run time.
//!
//! This crate has the types and functions of `infiniband/verbs.h` under their C names, as the
//! crates.io crate `ibverbs-sys` has them, but links nothing: the library is loaded when the first
//! function is called, and each function is looked up at its own first call. It builds with a
//! linker only, and a program that uses it starts on every machine.
//!
//! If the library or a function is missing, a call fails as the function itself would: it sets
//! `errno` to `ENOSYS` and returns null, or the error of its kind (see
//! [Functions](self#functions)). [`is_available`] says whether there is a library, and
//! [`why_unavailable`] why there is none. A library without devices is available;
//! `ibv_get_device_list` says whether there are devices.
//!
//! | part | contents |
//! |---|---|
//! | `bindings` | the types and the exported functions, generated from verbs.h by `regenerate` |
//! | `completion` | [`ibv_wc`], by hand: with the methods that the crate `ibverbs` needs |
//! | `inline` | functions that verbs.h defines itself, which no library exports |
//! | `library` | the library and its functions; results of functions that are absent |
//!
//! Not here: the extended interface (`ibv_qp_ex`, `ibv_cq_ex`), flow steering, memory windows,
//! experimental and provider-specific functions.
//!
//! # Functions
//!
//! The result of a missing function depends on its type:
//!
//! | type | result |
//! |---|---|
//! | pointer | null |
//! | `c_int` | `ENOSYS`, as of functions that return an error number |
//! | `isize` | `-ENOSYS` |
//! | an identifier or a state | 0 |
//!
//! `ibv_get_cq_event`, `ibv_get_async_event`, `ibv_get_device_index`, `ibv_query_gid` and
//! `ibv_query_pkey` return -1, as in C. `ibv_query_qp_data_in_order` returns 0: no order is
//! promised.
//!
//! Most C enums are type aliases with constants beside them. Those with a module of their own, like
//! [`ibv_qp_state`], are used as `ibv_qp_state::IBV_QPS_RTS` and have the type
//! `ibv_qp_state::Type`; sets of flags, like [`ibv_access_flags`], are tuple structs with `|` and
//! `&`.

#[macro_use]
mod library;

// Generated code has the names of C, no documentation, and its own format.
#[allow(non_camel_case_types, non_upper_case_globals, missing_docs, missing_debug_implementations)]
#[allow(clippy::all, clippy::use_self)]
#[rustfmt::skip]
mod bindings;
mod completion;
mod inline;

#[cfg(test)]
mod tests;

pub use bindings::*;
pub use completion::ibv_wc;
pub use inline::{
    ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_query_gid_ex, ibv_query_gid_table,
    ibv_req_notify_cq,
};
pub use library::{is_available, why_unavailable};
