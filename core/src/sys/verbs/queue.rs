//! Completion queues, the channels that they are heard on, and queue pairs.

use std::io;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ccl_ibverbs_sys as ffi;
use ffi::ibv_qp_attr_mask as mask;

use super::device::{check, made};
use super::{Completion, Context, Depth, Domain, Local, Path, Patience, Piece, QpState, Region, Write};
use crate::sys::fds::{Lent, borrow, forked};

/// How many completions are taken at once.
pub const BATCH: usize = 16;
/// How many writes are posted at once.
const CHAIN: usize = 3;

/// Where a completion queue says that there is something in it.
#[derive(Debug)]
pub struct Channel {
    lent: Lent,
    raw: NonNull<ffi::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: all functions of libibverbs may be called by any thread, also at the same time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Makes one, whose descriptor does not block.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let raw = made(unsafe { ffi::ibv_create_comp_channel(context.raw()) })?;
        // SAFETY: a channel has its descriptor for as long as it lives.
        let fd = unsafe { raw.as_ref().fd };
        let made = Self { lent: Lent::new(fd), raw, context: Arc::clone(context) };
        let flags = rustix::fs::fcntl_getfl(borrow(fd))?;
        rustix::fs::fcntl_setfl(borrow(fd), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Arc::new(made))
    }

    /// The descriptor that is readable when a queue of it has something.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.raw.as_ref().fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.lent.end();
        // SAFETY: it was made once, and its queues are gone: they keep it alive.
        let _ = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<ffi::ibv_cq>,
    channel: Arc<Channel>,
}

// SAFETY: as of `Channel`.
unsafe impl Send for Cq {}
// SAFETY: as of `Channel`.
unsafe impl Sync for Cq {}

impl Cq {
    /// Makes a queue of at least so many entries.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(channel: &Arc<Channel>, entries: u32) -> io::Result<Arc<Self>> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let (context, on) = (channel.context.raw(), channel.raw.as_ptr());
        // SAFETY: device and channel live, and there is at least one completion vector.
        let raw = made(unsafe { ffi::ibv_create_cq(context, entries, null_mut(), on, 0) })?;
        Ok(Arc::new(Self { raw, channel: Arc::clone(channel) }))
    }

    /// Takes what has completed, [`BATCH`] at most.
    ///
    /// # Errors
    /// The queue has failed.
    #[inline]
    pub fn poll(&self, take: &mut dyn FnMut(Completion)) -> io::Result<usize> {
        let mut found = [ffi::ibv_wc::default(); BATCH];
        // SAFETY: the queue lives, and there is space for so many.
        let count = unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), BATCH as i32, found.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("the completion queue failed"))?;
        for one in &found[..count.min(BATCH)] {
            take(Completion {
                id: one.wr_id,
                status: one.status,
                vendor: one.vendor_err,
                immediate: one.imm_data().map(u32::from_be),
                bytes: one.byte_len,
                queue_pair: one.qp_num,
            });
        }
        Ok(count)
    }

    /// Makes the channel readable at the next completion.
    ///
    /// # Errors
    /// The device refuses.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        check(unsafe { ffi::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Takes an event of the channel, which must have no other queue; whether there was one.
    #[must_use]
    pub fn heard(&self) -> bool {
        let (mut queue, mut of) = (null_mut(), null_mut());
        let channel = self.channel.raw.as_ptr();
        // SAFETY: the channel lives and does not block, and both results may be written.
        if unsafe { ffi::ibv_get_cq_event(channel, &raw mut queue, &raw mut of) } != 0 {
            return false;
        }
        // SAFETY: one event of this queue was taken.
        unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        true
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !forked() {
            // SAFETY: it was made once, and its queue pairs are gone: they keep it alive. All
            // events that were taken are acknowledged.
            let _ = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
        }
    }
}

/// A queue pair of the reliable connected kind.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<ffi::ibv_qp>,
    /// Its memory.
    region: Arc<Region>,
    inline: usize,
    _cq: Arc<Cq>,
    _domain: Arc<Domain>,
}

// SAFETY: as of `Channel`.
unsafe impl Send for Qp {}
// SAFETY: as of `Channel`.
unsafe impl Sync for Qp {}

impl Qp {
    /// Makes a queue pair whose work completes in `cq` and uses memory of this region.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(domain: &Arc<Domain>, cq: &Arc<Cq>, depth: Depth, region: Arc<Region>) -> io::Result<Self> {
        let raw = [Self::INLINE, 0].map(|inline| {
            let cq = cq.raw.as_ptr();
            let qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
            let mut wanted =
                ffi::ibv_qp_init_attr { send_cq: cq, recv_cq: cq, qp_type, ..Default::default() };
            wanted.cap.max_send_wr = depth.sends;
            wanted.cap.max_recv_wr = depth.receives;
            wanted.cap.max_send_sge = 2;
            wanted.cap.max_recv_sge = 1;
            wanted.cap.max_inline_data = inline as u32;
            (wanted, inline)
        });
        let mut failed = None;
        for (mut wanted, inline) in raw {
            // SAFETY: domain and queue live, and are of one device.
            match made(unsafe { ffi::ibv_create_qp(domain.raw(), &raw mut wanted) }) {
                Ok(raw) => {
                    let (_cq, _domain) = (Arc::clone(cq), Arc::clone(domain));
                    return Ok(Self { raw, region, inline, _cq, _domain });
                }
                // A device that takes nothing inline refuses.
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        Err(failed.unwrap_or_else(io::Error::last_os_error))
    }

    /// Writes up to so many bytes travel with their work request, where the device can do that.
    const INLINE: usize = 64;

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { self.raw.as_ref().qp_num }
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, which: mask) -> io::Result<()> {
        // SAFETY: the queue pair lives, and the attributes may be read.
        check(unsafe {
            ffi::ibv_modify_qp(self.raw.as_ptr(), std::ptr::from_mut(attributes), which.0 as i32)
        })
    }

    /// Gives it a port.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn to_init(&self, local: Local) -> io::Result<()> {
        let access =
            ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: local.pkey,
            port_num: local.port,
            qp_access_flags: access.0,
            ..Default::default()
        };
        let which =
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, which)
    }

    /// Connects it to its other end, so that it can receive. The kernel may resolve an address.
    ///
    /// # Errors
    /// The kernel refuses: ETIMEDOUT if nobody has that address.
    pub fn to_ready_to_receive(&self, path: &Path) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: path.mtu,
            dest_qp_num: path.queue_pair,
            rq_psn: path.first_packet,
            max_dest_rd_atomic: 1,
            // 0.64 ms until a side without a posted receive is asked again, as NCCL has it.
            min_rnr_timer: 12,
            ..Default::default()
        };
        attributes.ah_attr.dlid = path.lid;
        attributes.ah_attr.sl = path.service_level;
        attributes.ah_attr.port_num = path.port;
        if let Some(gid) = path.gid {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid = ffi::ibv_gid { raw: gid };
            attributes.ah_attr.grh.sgid_index = path.gid_index;
            attributes.ah_attr.grh.hop_limit = 255;
            attributes.ah_attr.grh.traffic_class = path.traffic_class;
        }
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, which)
    }

    /// Lets it send, beginning with a packet of this number.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn to_ready_to_send(&self, first_packet: u32, patience: Patience) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: first_packet,
            timeout: patience.timeout,
            retry_cnt: patience.retries,
            rnr_retry: patience.unready_retries,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, which)
    }

    /// Makes it fail: what is posted ends at once.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn to_error(&self) -> io::Result<()> {
        let qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let mut attributes = ffi::ibv_qp_attr { qp_state, ..Default::default() };
        self.modify(&mut attributes, mask::IBV_QP_STATE)
    }

    /// Its state, as the kernel has it.
    #[must_use]
    pub fn state(&self) -> QpState {
        let mut attributes = ffi::ibv_qp_attr::default();
        let mut made_with = ffi::ibv_qp_init_attr::default();
        let which = mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair lives, and both results may be written.
        let asked =
            unsafe { ffi::ibv_query_qp(self.raw.as_ptr(), &raw mut attributes, which, &raw mut made_with) };
        match (asked, attributes.qp_state) {
            (0, 0) => QpState::Reset,
            (0, 1) => QpState::Init,
            (0, 2) => QpState::ReadyToReceive,
            (0, 3) => QpState::ReadyToSend,
            (0, 4) => QpState::Drained,
            (0, 5) => QpState::SendError,
            (0, 6) => QpState::Error,
            _ => QpState::Unknown,
        }
    }

    /// Posts writes, at most [`CHAIN`], in one go.
    ///
    /// # Errors
    /// ENOMEM: there is no room in the send queue.
    #[inline]
    pub fn write(&self, writes: &[Write<'_>]) -> io::Result<()> {
        let mut entries = [[ffi::ibv_sge::default(); 2]; CHAIN];
        let mut requests = [ffi::ibv_send_wr::default(); CHAIN];
        let mut next = null_mut();
        for at in (0..writes.len()).rev() {
            let (write, entries, request) = (&writes[at], &mut entries[at], &mut requests[at]);
            let own = (write.own.len > 0).then(|| entry(&self.region, write.own));
            let lent = write.lent.filter(|(_, piece)| piece.len > 0);
            let all = own.into_iter().chain(lent.map(|(region, piece)| entry(region, piece)));
            let count = entries.iter_mut().zip(all).map(|(entry, made)| *entry = made).count();
            request.wr_id = write.id;
            (request.sg_list, request.num_sge) = (entries.as_mut_ptr(), count as i32);
            request.opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            if let Some(number) = write.immediate {
                request.opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                request.__bindgen_anon_1.imm_data = number.to_be();
            }
            request.wr.rdma.remote_addr = write.to;
            request.wr.rdma.rkey = write.key;
            let mut flags = ffi::ibv_send_flags(0);
            if write.signaled {
                flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED;
            }
            if (1..=self.inline).contains(&write.bytes()) {
                flags |= ffi::ibv_send_flags::IBV_SEND_INLINE;
            }
            request.send_flags = flags.0;
            request.next = std::mem::replace(&mut next, std::ptr::from_mut(request));
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair lives. Requests and entries are read during the call only. The
        // device reads the bytes for as long as their region lives, which is at most as long as
        // they are valid. What keeps them copes with that.
        check(unsafe { ffi::ibv_post_send(self.raw.as_ptr(), next, &raw mut bad) })
    }

    /// Posts a receive for a message that brings a number and no bytes for it to keep.
    ///
    /// # Errors
    /// ENOMEM: there is no room in the receive queue.
    #[inline]
    pub fn receive(&self, id: u64) -> io::Result<()> {
        let mut request = ffi::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut bad = null_mut();
        // SAFETY: the queue pair lives, and the request is read during the call only.
        check(unsafe { ffi::ibv_post_recv(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }
}

/// The entry of a piece of a region. Panics if it is not inside.
fn entry(region: &Region, piece: Piece) -> ffi::ibv_sge {
    let is_inside = piece.at <= region.len() && piece.len <= region.len() - piece.at;
    assert!(is_inside, "{piece:?} of a region of {} bytes", region.len());
    let length = u32::try_from(piece.len).expect("a message is shorter than 4 GiB");
    ffi::ibv_sge { addr: region.base().as_ptr() as u64 + piece.at as u64, length, lkey: region.local_key() }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !forked() {
            // SAFETY: it was made once. From then on the device does not touch its memory.
            let _ = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
        }
    }
}
