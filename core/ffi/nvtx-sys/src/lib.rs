//! The part of NVTX that the crate `nvtx` needs, in Rust.
//!
//! This crate has the name, the version and the safe functions of the crates.io crate `nvtx-sys`,
//! and replaces it by `[patch.crates-io]`. The original compiles C and generates its bindings, for
//! which a machine needs libclang. This crate needs only a linker.
//!
//! A tool is found as NVTX finds it: `NVTX_INJECTION64_PATH` names a library, which is loaded at
//! the first call of any function and fills the slots that it wants. Without a tool a call costs
//! two loads and a branch. This crate does not have the CUDA part of nvtx, and does not support a
//! tool that is linked into the program.
//!
//! | part | contents |
//! |---|---|
//! | `lib` | the functions |
//! | [`ffi`] | the types that are passed to a tool, under their C names |
//! | `tool` | the slots, and the tool that fills them |

mod tool;
mod types;

use std::ffi::CStr;
use std::ptr;

use widestring::WideCStr;

use tool::slots;

/// The types that are passed to a tool, under their C names.
pub mod ffi {
    pub use crate::types::*;
}

/// The version of NVTX that this crate implements.
pub const NVTX_VERSION: i16 = 3;

/// The result of a push or pop when no tool tracks the ranges of threads.
const NO_PUSH_POP_TRACKING: i32 = -2;

/// Identifies a range of a process.
pub type RangeId = ffi::nvtxRangeId_t;
/// The attributes of a mark or a range.
pub type EventAttributes = ffi::nvtxEventAttributes_t;
/// The attributes of a resource: its identifier and its name.
pub type ResourceAttributes = ffi::nvtxResourceAttributes_t;
/// The attributes of a user-defined synchronization object: its name.
pub type SyncUserAttributes = ffi::nvtxSyncUserAttributes_t;
/// The identifier of a resource.
pub type ResourceAttributesIdentifier = ffi::nvtxResourceAttributes_v0_identifier_t;
/// The format of a colour.
pub type ColorType = ffi::nvtxColorType_t;
/// The format of a message.
pub type MessageType = ffi::nvtxMessageType_t;
/// A message.
pub type MessageValue = ffi::nvtxMessageValue_t;
/// The number type of a payload.
pub type PayloadType = ffi::nvtxPayloadType_t;
/// A payload.
pub type PayloadValue = ffi::nvtxEventAttributes_v2_payload_t;

/// Bytes of [`EventAttributes`].
pub const NVTX_EVENT_ATTRIBUTES_SIZE: usize = size_of::<EventAttributes>();
/// Bytes of [`ResourceAttributes`].
pub const NVTX_RESOURCE_ATTRIBUTES_SIZE: usize = size_of::<ResourceAttributes>();
/// Bytes of [`SyncUserAttributes`].
pub const NVTX_SYNC_USER_ATTRIBUTES_SIZE: usize = size_of::<SyncUserAttributes>();

/// The types of resources.
pub mod resource_type {
    const fn of(class: u32, index: u32) -> u32 {
        class << 16 | index
    }
    /// The type is not known.
    pub const UNKNOWN: u32 = 0;
    /// A resource that is identified by an address.
    pub const GENERIC_POINTER: u32 = of(1, 1);
    /// A resource that is identified by a number.
    pub const GENERIC_HANDLE: u32 = of(1, 2);
    /// A thread, by the thread id of the kernel.
    pub const GENERIC_THREAD_NATIVE: u32 = of(1, 3);
    /// A thread, by its `pthread_t`.
    pub const GENERIC_THREAD_POSIX: u32 = of(1, 4);
    /// A `pthread_mutex_t`.
    pub const PTHREAD_MUTEX: u32 = of(3, 1);
    /// A `pthread_cond_t`.
    pub const PTHREAD_CONDITION: u32 = of(3, 2);
    /// A `pthread_rwlock_t`.
    pub const PTHREAD_RWLOCK: u32 = of(3, 3);
    /// A `pthread_barrier_t`.
    pub const PTHREAD_BARRIER: u32 = of(3, 4);
    /// A `pthread_spinlock_t`.
    pub const PTHREAD_SPINLOCK: u32 = of(3, 5);
    /// A `pthread_once_t`.
    pub const PTHREAD_ONCE: u32 = of(3, 6);
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { handle: $inner }

        // SAFETY: the handle belongs to the tool and is never dereferenced here; a tool may be
        // called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    };
}

handle! {
    /// A domain, as its tool identifies it.
    DomainHandle(ffi::nvtxDomainHandle_t)
}
handle! {
    /// A named resource.
    ResourceHandle(ffi::nvtxResourceHandle_t)
}
handle! {
    /// A registered string.
    StringHandle(ffi::nvtxStringHandle_t)
}
handle! {
    /// A user-defined synchronization object.
    SyncUserHandle(ffi::nvtxSyncUser_t)
}

impl From<StringHandle> for ffi::nvtxStringHandle_t {
    fn from(string: StringHandle) -> Self {
        string.handle
    }
}

// --- without domains ---

/// Marks a point in time.
pub fn mark_ex(event: &EventAttributes) {
    if let Some(tool) = slots().core.mark_ex.get() {
        tool(event);
    }
}

/// Marks a point in time, with a message.
pub fn mark_ascii(message: &CStr) {
    if let Some(tool) = slots().core.mark_a.get() {
        tool(message.as_ptr());
    }
}

/// Marks a point in time, with a wide message.
pub fn mark_unicode(message: &WideCStr) {
    if let Some(tool) = slots().core.mark_w.get() {
        tool(message.as_ptr());
    }
}

/// Begins a range of the process.
#[must_use]
pub fn range_start_ex(event: &EventAttributes) -> RangeId {
    slots().core.range_start_ex.get().map_or(0, |tool| tool(event))
}

/// Begins a range of the process, with a message.
#[must_use]
pub fn range_start_ascii(message: &CStr) -> RangeId {
    slots().core.range_start_a.get().map_or(0, |tool| tool(message.as_ptr()))
}

/// Begins a range of the process, with a wide message.
#[must_use]
pub fn range_start_unicode(message: &WideCStr) -> RangeId {
    slots().core.range_start_w.get().map_or(0, |tool| tool(message.as_ptr()))
}

/// Ends a range of the process.
pub fn range_end(id: RangeId) {
    if let Some(tool) = slots().core.range_end.get() {
        tool(id);
    }
}

/// Begins a range of this thread; returns how many ranges enclose it.
pub fn range_push_ex(event: &EventAttributes) -> i32 {
    slots().core.range_push_ex.get().map_or(NO_PUSH_POP_TRACKING, |tool| tool(event))
}

/// Begins a range of this thread, with a message; returns how many ranges enclose it.
pub fn range_push_ascii(message: &CStr) -> i32 {
    slots().core.range_push_a.get().map_or(NO_PUSH_POP_TRACKING, |tool| tool(message.as_ptr()))
}

/// Begins a range of this thread, with a wide message; returns how many ranges enclose it.
pub fn range_push_unicode(message: &WideCStr) -> i32 {
    slots().core.range_push_w.get().map_or(NO_PUSH_POP_TRACKING, |tool| tool(message.as_ptr()))
}

/// Ends the range of this thread that began last; returns how many ranges enclosed it.
pub fn range_pop() -> i32 {
    slots().core.range_pop.get().map_or(NO_PUSH_POP_TRACKING, |tool| tool())
}

/// Names a category.
pub fn name_category_ascii(category: u32, name: &CStr) {
    if let Some(tool) = slots().core.name_category_a.get() {
        tool(category, name.as_ptr());
    }
}

/// Names a category, in wide characters.
pub fn name_category_unicode(category: u32, name: &WideCStr) {
    if let Some(tool) = slots().core.name_category_w.get() {
        tool(category, name.as_ptr());
    }
}

/// Names a thread.
pub fn name_os_thread_ascii(thread: u32, name: &CStr) {
    if let Some(tool) = slots().core.name_os_thread_a.get() {
        tool(thread, name.as_ptr());
    }
}

/// Names a thread, in wide characters.
pub fn name_os_thread_unicode(thread: u32, name: &WideCStr) {
    if let Some(tool) = slots().core.name_os_thread_w.get() {
        tool(thread, name.as_ptr());
    }
}

// --- with domains ---

/// Marks a point in time in a domain.
pub fn domain_mark_ex(domain: DomainHandle, event: &EventAttributes) {
    if let Some(tool) = slots().core2.mark_ex.get() {
        tool(domain.handle, event);
    }
}

/// Begins a range of the process in a domain.
#[must_use]
pub fn domain_range_start_ex(domain: DomainHandle, event: &EventAttributes) -> RangeId {
    slots().core2.range_start_ex.get().map_or(0, |tool| tool(domain.handle, event))
}

/// Ends a range of the process in a domain.
pub fn domain_range_end(domain: DomainHandle, id: RangeId) {
    if let Some(tool) = slots().core2.range_end.get() {
        tool(domain.handle, id);
    }
}

/// Begins a range of this thread; returns how many ranges of the domain enclose it.
pub fn domain_range_push_ex(domain: DomainHandle, event: &EventAttributes) -> i32 {
    slots().core2.range_push_ex.get().map_or(NO_PUSH_POP_TRACKING, |tool| tool(domain.handle, event))
}

/// Ends the range of this thread and domain that began last; returns how many enclosed it.
pub fn domain_range_pop(domain: DomainHandle) -> i32 {
    slots().core2.range_pop.get().map_or(NO_PUSH_POP_TRACKING, |tool| tool(domain.handle))
}

/// Names a resource.
#[must_use]
pub fn domain_resource_create(domain: DomainHandle, resource: ResourceAttributes) -> ResourceHandle {
    ResourceHandle {
        handle: slots()
            .core2
            .resource_create
            .get()
            .map_or(ptr::null_mut(), |tool| tool(domain.handle, &resource)),
    }
}

/// Releases the handle of a named resource.
pub fn domain_resource_destroy(resource: ResourceHandle) {
    if let Some(tool) = slots().core2.resource_destroy.get() {
        tool(resource.handle);
    }
}

/// Names a category of a domain.
pub fn domain_name_category_ascii(domain: DomainHandle, category: u32, name: &CStr) {
    if let Some(tool) = slots().core2.name_category_a.get() {
        tool(domain.handle, category, name.as_ptr());
    }
}

/// Names a category of a domain, in wide characters.
pub fn domain_name_category_unicode(domain: DomainHandle, category: u32, name: &WideCStr) {
    if let Some(tool) = slots().core2.name_category_w.get() {
        tool(domain.handle, category, name.as_ptr());
    }
}

/// Registers a string, so that later calls can refer to it by its handle.
#[must_use]
pub fn domain_register_string_ascii(domain: DomainHandle, string: &CStr) -> StringHandle {
    StringHandle {
        handle: slots()
            .core2
            .register_string_a
            .get()
            .map_or(ptr::null_mut(), |tool| tool(domain.handle, string.as_ptr())),
    }
}

/// Registers a wide string, so that later calls can refer to it by its handle.
#[must_use]
pub fn domain_register_string_unicode(domain: DomainHandle, string: &WideCStr) -> StringHandle {
    StringHandle {
        handle: slots()
            .core2
            .register_string_w
            .get()
            .map_or(ptr::null_mut(), |tool| tool(domain.handle, string.as_ptr())),
    }
}

/// Creates a domain.
#[must_use]
pub fn domain_create_ascii(name: &CStr) -> DomainHandle {
    DomainHandle { handle: slots().core2.create_a.get().map_or(ptr::null_mut(), |tool| tool(name.as_ptr())) }
}

/// Creates a domain with a wide name.
#[must_use]
pub fn domain_create_unicode(name: &WideCStr) -> DomainHandle {
    DomainHandle { handle: slots().core2.create_w.get().map_or(ptr::null_mut(), |tool| tool(name.as_ptr())) }
}

/// Destroys a domain.
pub fn domain_destroy(domain: DomainHandle) {
    if let Some(tool) = slots().core2.destroy.get() {
        tool(domain.handle);
    }
}

// --- user-defined synchronization ---

/// Creates a synchronization object.
#[must_use]
pub fn domain_syncuser_create(domain: DomainHandle, attributes: SyncUserAttributes) -> SyncUserHandle {
    SyncUserHandle {
        handle: slots().sync.create.get().map_or(ptr::null_mut(), |tool| tool(domain.handle, &attributes)),
    }
}

/// Destroys a synchronization object.
pub fn domain_syncuser_destroy(object: SyncUserHandle) {
    if let Some(tool) = slots().sync.destroy.get() {
        tool(object.handle);
    }
}

/// Reports that this thread begins to acquire the object.
pub fn domain_syncuser_acquire_start(object: SyncUserHandle) {
    if let Some(tool) = slots().sync.acquire_start.get() {
        tool(object.handle);
    }
}

/// Reports that this thread could not acquire the object.
pub fn domain_syncuser_acquire_failed(object: SyncUserHandle) {
    if let Some(tool) = slots().sync.acquire_failed.get() {
        tool(object.handle);
    }
}

/// Reports that this thread has acquired the object.
pub fn domain_syncuser_acquire_success(object: SyncUserHandle) {
    if let Some(tool) = slots().sync.acquire_success.get() {
        tool(object.handle);
    }
}

/// Reports that this thread releases the object.
pub fn domain_syncuser_acquire_releasing(object: SyncUserHandle) {
    if let Some(tool) = slots().sync.releasing.get() {
        tool(object.handle);
    }
}
