//! What is true with the library and without, and without devices.

use std::ffi::c_int;
use std::io;
use std::ptr;

use super::*;

// Functions that no version of the library has.
verbs! {
    fn ibv_absent_status() -> c_int;
    fn ibv_absent_size(entries: *mut ibv_gid_entry, max_entries: usize) -> isize;
    fn ibv_absent_object(pd: *mut ibv_pd) -> *mut ibv_mr;
    fn ibv_absent_text(number: u32) -> *const std::os::raw::c_char;
    fn ibv_absent_identifier() -> u64;
    fn ibv_absent_nothing();
}

/// What a call returns, and the error that it leaves.
fn call<T>(function: impl FnOnce() -> T) -> (T, Option<i32>) {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() = 0 };
    let result = function();
    (result, io::Error::last_os_error().raw_os_error())
}

#[test]
fn absent_functions_fail_as_their_type_says() {
    const SAID: Option<i32> = Some(libc::ENOSYS);
    // SAFETY: the functions are absent, so that no call reaches C; they have no contract.
    unsafe {
        assert_eq!(call(|| ibv_absent_status()), (libc::ENOSYS, SAID));
        assert_eq!(call(|| ibv_absent_size(ptr::null_mut(), 0)), (-(libc::ENOSYS as isize), SAID));
        assert_eq!(call(|| ibv_absent_object(ptr::null_mut())), (ptr::null_mut(), SAID));
        assert_eq!(call(|| ibv_absent_text(1)), (ptr::null(), SAID));
        assert_eq!(call(|| ibv_absent_identifier()), (0, SAID));
        assert_eq!(call(|| ibv_absent_nothing()), ((), SAID));
    }
}

#[test]
fn functions_that_return_no_error_number_say_what_theirs_do() {
    for name in [
        c"ibv_get_async_event",
        c"ibv_get_cq_event",
        c"ibv_get_device_index",
        c"ibv_query_gid",
        c"ibv_query_pkey",
    ] {
        assert_eq!(library::absent::<c_int>(name), -1, "{name:?}");
    }
    assert_eq!(library::absent::<c_int>(c"ibv_query_qp_data_in_order"), 0);
    assert_eq!(library::absent::<c_int>(c"ibv_dereg_mr"), libc::ENOSYS);
}

#[test]
fn the_reason_is_there_if_the_library_is_not() {
    assert_eq!(is_available(), why_unavailable().is_none());
    if let Some(why) = why_unavailable() {
        assert!(why.contains("libibverbs.so.1"), "{why}");
        // SAFETY: the number may be written.
        let (list, error) = call(|| unsafe { ibv_get_device_list(&mut 0) });
        assert_eq!((list, error), (ptr::null_mut(), Some(libc::ENOSYS)));
    } else {
        let mut count = -1;
        // SAFETY: the number may be written; the list is freed once, if there is one.
        unsafe {
            let (list, error) = call(|| ibv_get_device_list(&mut count));
            if list.is_null() {
                assert!(error.is_some_and(|error| error != 0), "it says why");
            } else {
                assert!(count >= 0, "{count}");
                ibv_free_device_list(list);
            }
        }
    }
}

/// Tables of functions as a provider would fill them.
mod provider {
    use super::*;

    pub(super) unsafe extern "C" fn poll_cq(_: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
        assert_eq!(entries, 2);
        // SAFETY: the test below gives an array of two.
        unsafe { (*wc).wr_id = 7 };
        1
    }

    pub(super) unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, solicited_only: c_int) -> c_int {
        solicited_only
    }

    pub(super) unsafe extern "C" fn post_send(
        _: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the test below gives a place for it.
        unsafe { *bad_wr = wr };
        libc::ENOMEM
    }
}

#[test]
fn the_data_path_goes_through_the_table_of_the_context() {
    // Fields that are pointers and tables: zeros are null and empty.
    let mut context = ibv_context::default();
    context.ops.poll_cq = Some(provider::poll_cq);
    context.ops.req_notify_cq = Some(provider::req_notify_cq);
    context.ops.post_send = Some(provider::post_send);
    let context = &raw mut context;
    let mut cq = ibv_cq { context, ..Default::default() };
    let mut qp = ibv_qp { context, ..Default::default() };
    let mut completions = [ibv_wc::default(); 2];
    let (mut send, mut bad_send) = (ibv_send_wr::default(), ptr::null_mut());
    let (mut receive, mut bad_receive) = (ibv_recv_wr::default(), ptr::null_mut());
    // SAFETY: the functions above use only what lives here.
    unsafe {
        assert_eq!(ibv_poll_cq(&mut cq, 2, completions.as_mut_ptr()), 1);
        assert_eq!(completions[0].wr_id(), 7);
        assert_eq!(ibv_req_notify_cq(&mut cq, 1), 1);
        assert_eq!(ibv_post_send(&mut qp, &mut send, &mut bad_send), libc::ENOMEM);
        assert_eq!(bad_send, &raw mut send);
        let (result, error) = call(|| ibv_post_recv(&mut qp, &mut receive, &mut bad_receive));
        assert_eq!((result, error), (libc::ENOSYS, Some(libc::ENOSYS)));
        (*context).ops.poll_cq = None;
        assert_eq!(ibv_poll_cq(&mut cq, 2, completions.as_mut_ptr()), -libc::ENOSYS);
    }
}

#[test]
fn a_completion_says_whether_it_is_one() {
    let unfilled = ibv_wc::default();
    assert!(!unfilled.is_valid());
    assert_eq!(unfilled.error(), Some((ibv_wc_status::IBV_WC_GENERAL_ERR, 0)));
    assert_eq!(unfilled.imm_data(), None);

    let mut received = ibv_wc {
        wr_id: 3,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode: ibv_wc_opcode::IBV_WC_RECV,
        byte_len: 64,
        imm_data: 9,
        ..Default::default()
    };
    assert!(received.is_valid());
    assert_eq!((received.wr_id(), received.len(), received.error()), (3, 64, None));
    assert_eq!(received.opcode(), ibv_wc_opcode::IBV_WC_RECV);
    assert_eq!(received.imm_data(), None, "it does not say that it has one");
    received.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM;
    assert_eq!(received.imm_data(), Some(9));
    received.status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(received.imm_data(), None);
}
