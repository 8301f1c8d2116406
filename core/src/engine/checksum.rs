//! Checksums of messages (`CCL_CHECKSUM=1`): what a message carries tells its bytes too.
//!
//! The CRC32C of a message changes the upper half of the check that it carries. A receiver that
//! finds another check takes the CRC of what has arrived out again: if the rest is the check of its
//! call, or its lower half is, bytes have changed on the way. Otherwise the peer has called
//! something else.

use crate::memory::View;
use crate::transport::LinkFault;

/// The check of a message with these bytes.
pub(super) fn with_checksum(check: u64, bytes: View) -> u64 {
    check ^ u64::from(crc(bytes)) << 32
}

/// The check of the call that a message with these bytes is of, if they are what was sent.
///
/// # Errors
/// The lower half of the check is right: the bytes have changed.
pub(super) fn without_checksum(came: u64, bytes: View, due: u64) -> Result<u64, LinkFault> {
    let arrived = crc(bytes);
    let check = came ^ u64::from(arrived) << 32;
    if check == due || check as u32 != due as u32 {
        return Ok(check);
    }
    let sent = (came ^ due) >> 32;
    Err(LinkFault::Changed(format!(
        "{} bytes with CRC32C {sent:08x} were sent, and arrived with {arrived:08x}",
        bytes.len()
    )))
}

/// The CRC32C of the bytes of a view.
fn crc(bytes: View) -> u32 {
    crate::memory::fold(bytes, 0, crc32c::crc32c_append)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::view_of;

    #[test]
    fn changed_bytes_are_told_from_another_call() {
        for len in [0, 1, 7, 5_000] {
            let mut bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (due, other) = (0x1234_5678_9abc_def0, 0x1234_5678_9abc_def1);
            let came = with_checksum(due, view_of(&bytes));
            let sent = crc32c::crc32c(&bytes);
            assert_eq!(without_checksum(came, view_of(&bytes), due), Ok(due));
            // The peer has called something else.
            assert_eq!(without_checksum(came, view_of(&bytes), other), Ok(due));
            if let Some(byte) = bytes.last_mut() {
                *byte ^= 4;
                let changed = without_checksum(came, view_of(&bytes), due).unwrap_err().to_string();
                let arrived = crc32c::crc32c(&bytes);
                let expect =
                    format!("{len} bytes with CRC32C {sent:08x} were sent, and arrived with {arrived:08x}");
                assert!(changed.contains(&expect), "{changed}");
            }
        }
    }
}
