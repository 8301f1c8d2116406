//! The crates.io crate `ibverbs`, unmodified, on our floor: it says what is absent.

use std::io;

use ccl_ibverbs_sys::{ibv_wc, is_available, why_unavailable};

#[test]
fn the_crate_has_the_types_of_our_floor() {
    // It would not compile if the crate stood on another floor.
    let same: fn(ibverbs::ibv_wc) -> ibv_wc = |completion| completion;
    assert!(!same(ibverbs::ibv_wc::default()).is_valid());
}

#[test]
fn without_library_or_devices_it_says_an_error_or_that_there_are_none() {
    let devices = ibverbs::devices();
    let error = devices.as_ref().err().and_then(io::Error::raw_os_error);
    if let Some(why) = why_unavailable() {
        assert!(!is_available() && why.contains("libibverbs.so.1"), "{why}");
        assert_eq!(error, Some(libc::ENOSYS), "{:?}", devices.err());
        return;
    }
    // The library says an error itself, or has a list, which is empty on a machine without devices.
    match &devices {
        Ok(list) => assert!(list.iter().all(|device| device.name().is_some())),
        Err(said) => assert!(error.is_some_and(|error| error > 0), "{said}"),
    }
}
