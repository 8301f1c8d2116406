//! A work completion.
//!
//! It is written by hand because the crate `ibverbs` calls methods of it, which a generated type
//! has not.

use crate::{ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

/// A work completion, as `ibv_poll_cq` fills it.
///
/// When [`status`](Self::status) says that the work failed, only `wr_id`, `status`, `vendor_err`
/// and `qp_num` are valid.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wc {
    /// What the work request was posted with.
    pub wr_id: u64,
    /// Whether the work succeeded, or why not.
    pub status: ibv_wc_status::Type,
    /// What was done.
    pub opcode: ibv_wc_opcode::Type,
    /// The device's own code of the error.
    pub vendor_err: u32,
    /// How many bytes were transferred; of a receive and of what reads.
    pub byte_len: u32,
    /// The immediate data in network order, or the remote key that was invalidated: `wc_flags` says
    /// which. See [`imm_data`](Self::imm_data).
    pub imm_data: u32,
    /// The queue pair on this side.
    pub qp_num: u32,
    /// The queue pair on the other side; of a datagram.
    pub src_qp: u32,
    /// Which parts are valid.
    pub wc_flags: ibv_wc_flags,
    /// The index of the partition key; of a queue pair for management.
    pub pkey_index: u16,
    /// The other side's local identifier; of a datagram.
    pub slid: u16,
    /// The service level; of a datagram.
    pub sl: u8,
    /// The bits of the path; of a datagram that is not multicast.
    pub dlid_path_bits: u8,
}

const _: () = {
    assert!(size_of::<ibv_wc>() == 48 && align_of::<ibv_wc>() == 8, "ibv_wc has the size of C's");
    assert!(std::mem::offset_of!(ibv_wc, status) == 8, "ibv_wc has C's layout");
    assert!(std::mem::offset_of!(ibv_wc, imm_data) == 24, "ibv_wc has C's layout");
    assert!(std::mem::offset_of!(ibv_wc, wc_flags) == 36, "ibv_wc has C's layout");
    assert!(std::mem::offset_of!(ibv_wc, pkey_index) == 40, "ibv_wc has C's layout");
    assert!(std::mem::offset_of!(ibv_wc, dlid_path_bits) == 45, "ibv_wc has C's layout");
};

#[expect(clippy::len_without_is_empty, reason = "the crate `ibverbs` knows these names")]
impl ibv_wc {
    /// What the work request was posted with.
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// How many bytes were transferred; of a receive and of what reads.
    #[must_use]
    pub fn len(&self) -> usize {
        // A `u32` fits where there is a libibverbs.
        self.byte_len as usize
    }

    /// Whether the work succeeded.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.status == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// The status and the device's own code, if the work failed.
    #[must_use]
    pub fn error(&self) -> Option<(ibv_wc_status::Type, u32)> {
        (!self.is_valid()).then_some((self.status, self.vendor_err))
    }

    /// What was done.
    #[must_use]
    pub fn opcode(&self) -> ibv_wc_opcode::Type {
        self.opcode
    }

    /// The immediate data in network order, if the work succeeded and came with some.
    #[must_use]
    pub fn imm_data(&self) -> Option<u32> {
        let has_any = (self.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM).0 != 0;
        (self.is_valid() && has_any).then_some(self.imm_data)
    }
}

impl Default for ibv_wc {
    /// One that no poll has filled: it says that it failed.
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: ibv_wc_status::IBV_WC_GENERAL_ERR,
            opcode: ibv_wc_opcode::IBV_WC_LOCAL_INV,
            vendor_err: 0,
            byte_len: 0,
            imm_data: 0,
            qp_num: 0,
            src_qp: 0,
            wc_flags: ibv_wc_flags(0),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}
