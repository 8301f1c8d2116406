//! Functions that verbs.h defines itself.
//!
//! Those of the data path call the device's provider through the context, without the library in
//! between. A provider fills every entry of that table; one that is empty all the same is answered
//! as a call of a missing function is.

use std::ffi::c_int;

use crate::library::absent;
use crate::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_context, ibv_cq, ibv_gid_entry, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_srq, ibv_wc,
};

/// Takes up to `num_entries` completions from the queue; returns how many, or a negative number.
///
/// # Safety
/// `cq` is a completion queue that nobody destroys meanwhile, and there is space for `num_entries`
/// completions behind `wc`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue points to its context, which lives as long; nobody writes to `ops` after
    // the device was opened.
    let poll_cq = unsafe { (*(*cq).context).ops.poll_cq };
    match poll_cq {
        // SAFETY: the function belongs to the provider of this queue, and the caller keeps its
        // contract.
        Some(poll_cq) => unsafe { poll_cq(cq, num_entries, wc) },
        None => -absent::<c_int>(c"ibv_poll_cq"),
    }
}

/// Asks for an event on the queue's channel at the next completion; returns 0 or an error number.
/// With `solicited_only` not 0, only at one that the sender marked, or that failed.
///
/// # Safety
/// `cq` is a completion queue that nobody destroys meanwhile.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live queue points to its context, which lives as long; nobody writes to `ops` after
    // the device was opened.
    let req_notify_cq = unsafe { (*(*cq).context).ops.req_notify_cq };
    match req_notify_cq {
        // SAFETY: the function belongs to the provider of this queue, which is live.
        Some(req_notify_cq) => unsafe { req_notify_cq(cq, solicited_only) },
        None => absent(c"ibv_req_notify_cq"),
    }
}

/// Posts a list of work requests to the send queue; returns 0 or an error number, and then in
/// `bad_wr` the first that was not posted.
///
/// # Safety
/// `qp` is a queue pair that nobody destroys meanwhile. `wr` is a list of requests with valid
/// entries, and `bad_wr` may be written. The memory that the requests name stays registered, and
/// nobody else uses it, until each is completed; of inline data only until this call returns.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a live queue pair points to its context, which lives as long; nobody writes to `ops`
    // after the device was opened.
    let post_send = unsafe { (*(*qp).context).ops.post_send };
    match post_send {
        // SAFETY: the function belongs to the provider of this queue pair, and the caller keeps its
        // contract.
        Some(post_send) => unsafe { post_send(qp, wr, bad_wr) },
        None => absent(c"ibv_post_send"),
    }
}

/// Posts a list of work requests to the receive queue; returns 0 or an error number, and then in
/// `bad_wr` the first that was not posted.
///
/// # Safety
/// `qp` is a queue pair that nobody destroys meanwhile. `wr` is a list of requests with valid
/// entries, and `bad_wr` may be written. The memory that the requests name stays registered, and
/// nobody else uses it, until each is completed.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a live queue pair points to its context, which lives as long; nobody writes to `ops`
    // after the device was opened.
    let post_recv = unsafe { (*(*qp).context).ops.post_recv };
    match post_recv {
        // SAFETY: the function belongs to the provider of this queue pair, and the caller keeps its
        // contract.
        Some(post_recv) => unsafe { post_recv(qp, wr, bad_wr) },
        None => absent(c"ibv_post_recv"),
    }
}

/// Posts a list of work requests to a shared receive queue; returns 0 or an error number, and then
/// in `bad_wr` the first that was not posted.
///
/// # Safety
/// `srq` is a shared receive queue that nobody destroys meanwhile; for the rest as of
/// [`ibv_post_recv`].
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue points to its context, which lives as long; nobody writes to `ops` after
    // the device was opened.
    let post_srq_recv = unsafe { (*(*srq).context).ops.post_srq_recv };
    match post_srq_recv {
        // SAFETY: the function belongs to the provider of this queue, and the caller keeps its
        // contract.
        Some(post_srq_recv) => unsafe { post_srq_recv(srq, wr, bad_wr) },
        None => absent(c"ibv_post_srq_recv"),
    }
}

/// One entry of a port's table of addresses; returns 0 or an error number. `flags` is 0.
///
/// # Safety
/// `context` is of an open device, and `entry` may be written.
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the size is that of what `entry` points to; the caller keeps the rest of the
    // contract.
    unsafe { _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>()) }
}

/// The addresses of all ports of a device; returns how many, or an error number that is negated.
/// `flags` is 0.
///
/// # Safety
/// `context` is of an open device, and there is space for `max_entries` behind `entries`.
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: the size is that of what `entries` points to; the caller keeps the rest of the
    // contract.
    unsafe { _ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
}
