//! Devices, their ports, and registered memory.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

use ccl_ibverbs_sys as ffi;

use super::{About, AsyncEvent, Limits, LinkLayer, PortState};
use crate::sys::fds::{Lent, borrow, forked};
use crate::sys::shared::Mapping;

/// The error of a function that returns an error number, negated or not.
pub(super) fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// What a function made that returns null and sets `errno` if it fails.
pub(super) fn made<T>(result: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(result).ok_or_else(io::Error::last_os_error)
}

/// Where a kernel with RDMA shows its devices to libibverbs.
const OF_KERNEL: &str = "/sys/class/infiniband_verbs";

/// The devices that there are; the text says why there are none.
struct List {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<Self, String> {
        if let Some(why) = ffi::why_unavailable() {
            return Err(format!("libibverbs cannot be loaded: {why}"));
        }
        ask_for_fork_safety();
        let mut count = 0;
        // SAFETY: `count` may be written.
        let first = made(unsafe { ffi::ibv_get_device_list(&raw mut count) });
        let first = first.map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSYS) if Path::new(OF_KERNEL).exists() => {
                "libibverbs cannot list devices: it lacks ibv_get_device_list".to_string()
            }
            Some(libc::ENOSYS) => {
                format!(
                    "the kernel has no RDMA: its module ib_uverbs is not loaded ({OF_KERNEL} is not there)"
                )
            }
            _ => format!("the devices cannot be listed: {e}"),
        })?;
        Ok(Self { first, count: count.max(0) as usize })
    }

    fn devices(&self) -> impl Iterator<Item = (String, *mut ffi::ibv_device)> + '_ {
        (0..self.count).filter_map(|at| {
            // SAFETY: the list has `count` entries, and is freed when `self` is dropped.
            let device = unsafe { *self.first.as_ptr().add(at) };
            // SAFETY: an entry of the list is a device.
            let name = unsafe { ffi::ibv_get_device_name(device) };
            if name.is_null() {
                return None;
            }
            // SAFETY: the name of a device is a C string that lives as long as the device.
            let name = unsafe { CStr::from_ptr(name) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once. Devices that are open
        // live on.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) }
    }
}

/// Asks that registered memory stays the parent's when a process forks, once and before anything is
/// registered.
fn ask_for_fork_safety() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // Kernels of today copy such pages for the child; an old one that cannot may refuse.
        // SAFETY: it has no precondition but that nothing is registered yet.
        let _ = unsafe { ffi::ibv_fork_init() };
    });
}

/// The names of the devices.
///
/// # Errors
/// Why there can be none: in words, for people.
pub fn names() -> Result<Vec<String>, String> {
    let list = List::get()?;
    Ok(list.devices().map(|(name, _)| name).collect())
}

/// Opens the device of this name.
///
/// # Errors
/// There is none of that name, or the kernel refuses.
pub fn open(name: &str) -> io::Result<Context> {
    let list = List::get().map_err(io::Error::other)?;
    let found = list.devices().find(|(known, _)| known == name);
    let (name, device) = found.ok_or(io::ErrorKind::NotFound)?;
    // SAFETY: the device is an entry of the list, which is freed after this.
    let raw = made(unsafe { ffi::ibv_open_device(device) })?;
    // SAFETY: an open device has its two descriptors for as long as it is open.
    let fds = unsafe { [raw.as_ref().cmd_fd, raw.as_ref().async_fd] };
    let context = Context { lent: fds.map(Lent::new), raw, name };
    let events = borrow(context.events());
    let flags = rustix::fs::fcntl_getfl(events)?;
    rustix::fs::fcntl_setfl(events, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(context)
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    /// Dropped last of what a drop does: the descriptors are the library's.
    lent: [Lent; 2],
    raw: NonNull<ffi::ibv_context>,
    name: String,
}

// SAFETY: all functions of libibverbs may be called by any thread, also at the same time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) const fn raw(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    /// Its name, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor that is readable when there are events for [`event`](Self::event).
    #[must_use]
    pub fn events(&self) -> RawFd {
        // SAFETY: the device is open.
        unsafe { self.raw.as_ref().async_fd }
    }

    /// The limits of the device.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn limits(&self) -> io::Result<Limits> {
        let mut found = ffi::ibv_device_attr::default();
        // SAFETY: the device is open and `found` may be written.
        check(unsafe { ffi::ibv_query_device(self.raw(), &raw mut found) })?;
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let firmware: Vec<u8> =
            found.fw_ver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        Ok(Limits {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            guid: u64::from_be(found.node_guid),
            ports: found.phys_port_cnt,
            queue_pairs: count(found.max_qp),
            requests: count(found.max_qp_wr),
            completions: count(found.max_cqe),
            regions: count(found.max_mr),
        })
    }

    /// A port, as it is now.
    ///
    /// # Errors
    /// There is none of that number, or the kernel refuses.
    pub fn port(&self, port: u8) -> io::Result<PortState> {
        let mut found = ffi::ibv_port_attr::default();
        // SAFETY: the device is open, and the function writes a part of `found`: the type that it
        // is declared with is `ibv_port_attr` without its last fields.
        check(unsafe { ffi::ibv_query_port(self.raw(), port, (&raw mut found).cast()) })?;
        Ok(PortState {
            state: found.state,
            link_layer: match found.link_layer {
                // Not said: InfiniBand.
                0 | 1 => LinkLayer::InfiniBand,
                2 => LinkLayer::Ethernet,
                _ => LinkLayer::Other,
            },
            lid: found.lid,
            mtu: found.active_mtu,
            speed: found.active_speed.into(),
            width: found.active_width.into(),
            gids: u32::try_from(found.gid_tbl_len).unwrap_or(0),
        })
    }

    /// An address of a port; `None` if the entry is empty.
    #[must_use]
    pub fn gid(&self, port: u8, index: u32) -> Option<[u8; 16]> {
        let mut found = ffi::ibv_gid::default();
        let index = i32::try_from(index).ok()?;
        // SAFETY: the device is open and `found` may be written.
        check(unsafe { ffi::ibv_query_gid(self.raw(), port, index, &raw mut found) }).ok()?;
        // SAFETY: all bytes of this union of numbers are set.
        let raw = unsafe { found.raw };
        (raw != [0; 16]).then_some(raw)
    }

    /// The next event of the device, if there is one.
    pub fn event(&self) -> Option<AsyncEvent> {
        let mut found = ffi::ibv_async_event::default();
        // SAFETY: the device is open, its descriptor does not block, and `found` may be written.
        check(unsafe { ffi::ibv_get_async_event(self.raw(), &raw mut found) }).ok()?;
        let code = found.event_type;
        let about = match code {
            1..=7 | 16 => {
                // SAFETY: these events are about a queue pair, which cannot be destroyed before
                // the event is acknowledged.
                About::QueuePair(unsafe { (*found.element.qp).qp_num })
            }
            // SAFETY: these are about a port.
            9..=13 | 17 | 18 => About::Port(u8::try_from(unsafe { found.element.port_num }).unwrap_or(0)),
            8 => About::Device,
            _ => About::Queue,
        };
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { ffi::ibv_ack_async_event(&raw mut found) };
        Some(AsyncEvent { code, about })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.lent.iter_mut().for_each(Lent::end);
        // SAFETY: it was opened once, and whatever was made of it is gone: that keeps it alive.
        let _ = unsafe { ffi::ibv_close_device(self.raw()) };
    }
}

/// What a device's regions and queue pairs have in common.
#[derive(Debug)]
pub struct Domain {
    raw: NonNull<ffi::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Domain {}
// SAFETY: as of `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    /// Makes one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let raw = made(unsafe { ffi::ibv_alloc_pd(context.raw()) })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) const fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    /// The device.
    #[must_use]
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !forked() {
            // SAFETY: it was made once, and what was made of it is gone: that keeps it alive.
            let _ = unsafe { ffi::ibv_dealloc_pd(self.raw()) };
        }
    }
}

/// Memory that a device may read and write, and peers through it.
#[derive(Debug)]
pub struct Region {
    raw: NonNull<ffi::ibv_mr>,
    /// The device may read and write here until the region is gone.
    base: NonNull<u8>,
    len: usize,
    /// What keeps it valid, unless the one who registered it does.
    memory: Option<Arc<Mapping>>,
    domain: Arc<Domain>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Region {}
// SAFETY: as of `Context`.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory, for whoever has its key. With `relaxed` the device may write its bytes in
    /// any order before it reports that they are there.
    ///
    /// # Errors
    /// The kernel refuses; ENOMEM usually means that RLIMIT_MEMLOCK is too low.
    pub fn register(domain: &Arc<Domain>, memory: &Arc<Mapping>, relaxed: bool) -> io::Result<Arc<Self>> {
        let (base, len) = (memory.base(), memory.len());
        // SAFETY: the range is a mapping, which the region keeps, and which is accessed through
        // atomics and raw pointers only.
        let mut made = unsafe { Self::register_foreign(domain, (base, len), relaxed) }?;
        made.memory = Some(Arc::clone(memory));
        Ok(Arc::new(made))
    }

    /// Registers memory that somebody else keeps: so many bytes at an address.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// Until the region is dropped, the memory is valid. Code that accesses it meanwhile copes with
    /// whoever has the key.
    pub unsafe fn register_foreign(
        domain: &Arc<Domain>,
        (base, len): (NonNull<u8>, usize),
        relaxed: bool,
    ) -> io::Result<Self> {
        use ffi::ibv_access_flags as flags;
        let access = flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_WRITE;
        let at = base.as_ptr();
        // SAFETY: valid memory, by the promise of the caller. From the end of `drop` on, the device
        // does not access it, even if work requests name it that have not ended.
        let raw = unsafe {
            if relaxed {
                // A device that cannot do it ignores this flag, but only in this call.
                let access = access | flags::IBV_ACCESS_RELAXED_ORDERING;
                ffi::ibv_reg_mr_iova2(domain.raw(), at.cast(), len, at as u64, access.0)
            } else {
                ffi::ibv_reg_mr(domain.raw(), at.cast(), len, access.0 as i32)
            }
        };
        Ok(Self { raw: made(raw)?, base, len, memory: None, domain: Arc::clone(domain) })
    }

    /// The key by which a peer names it.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { self.raw.as_ref().rkey }
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The domain in which it is registered.
    #[must_use]
    pub const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Its first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if forked() {
            // A forked child may lack the memory: something else may be mapped in its place, which
            // must not be unmapped.
            std::mem::forget(self.memory.clone());
            return;
        }
        // SAFETY: it was registered once. The kernel refuses only while memory windows are bound to
        // it, which nothing here makes.
        let _ = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
    }
}
