//! The tool: the environment names its library, the first call of any function loads it, and it
//! gets one slot for each function to fill.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::types::{
    Wide, nvtxDomainHandle_t as Domain, nvtxEventAttributes_t as Event, nvtxRangeId_t as RangeId,
    nvtxResourceAttributes_t as ResourceAttributes, nvtxResourceHandle_t as Resource,
    nvtxStringHandle_t as Registered, nvtxSyncUser_t as SyncUser, nvtxSyncUserAttributes_t as SyncAttributes,
};

/// A slot where a tool stores a function of type `F`, a pointer to an `extern "C"` function. Null
/// if the tool does not provide the function.
#[repr(transparent)]
pub(crate) struct Slot<F>(AtomicPtr<c_void>, PhantomData<F>);

type Text = *const c_char;
type WideText = *const Wide;

/// Declares a module of NVTX: one slot per function, in the order of the callback ids, which count
/// from 1.
macro_rules! module {
    ($(#[$doc:meta])* $module:ident { $($slot:ident: fn($($argument:ty),*) $(-> $answer:ty)?,)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $module { $(pub(crate) $slot: Slot<extern "C" fn($($argument),*) $(-> $answer)?>,)+ }

        impl $module {
            const fn empty() -> Self {
                Self { $($slot: Slot::empty(),)+ }
            }
        }
    };
}

module! {
    /// Without domains.
    Core {
        mark_ex: fn(&Event),
        mark_a: fn(Text),
        mark_w: fn(WideText),
        range_start_ex: fn(&Event) -> RangeId,
        range_start_a: fn(Text) -> RangeId,
        range_start_w: fn(WideText) -> RangeId,
        range_end: fn(RangeId),
        range_push_ex: fn(&Event) -> c_int,
        range_push_a: fn(Text) -> c_int,
        range_push_w: fn(WideText) -> c_int,
        range_pop: fn() -> c_int,
        name_category_a: fn(u32, Text),
        name_category_w: fn(u32, WideText),
        name_os_thread_a: fn(u32, Text),
        name_os_thread_w: fn(u32, WideText),
    }
}
module! {
    /// With domains.
    Core2 {
        mark_ex: fn(Domain, &Event),
        range_start_ex: fn(Domain, &Event) -> RangeId,
        range_end: fn(Domain, RangeId),
        range_push_ex: fn(Domain, &Event) -> c_int,
        range_pop: fn(Domain) -> c_int,
        resource_create: fn(Domain, &ResourceAttributes) -> Resource,
        resource_destroy: fn(Resource),
        name_category_a: fn(Domain, u32, Text),
        name_category_w: fn(Domain, u32, WideText),
        register_string_a: fn(Domain, Text) -> Registered,
        register_string_w: fn(Domain, WideText) -> Registered,
        create_a: fn(Text) -> Domain,
        create_w: fn(WideText) -> Domain,
        destroy: fn(Domain),
        initialize: fn(*const c_void),
    }
}
module! {
    /// User-defined synchronization.
    Syncs {
        create: fn(Domain, &SyncAttributes) -> SyncUser,
        destroy: fn(SyncUser),
        acquire_start: fn(SyncUser),
        acquire_failed: fn(SyncUser),
        acquire_success: fn(SyncUser),
        releasing: fn(SyncUser),
    }
}

/// All slots. Modules that this crate does not call exist for tools that fill all modules.
#[repr(C)]
pub(crate) struct Slots {
    pub(crate) core: Core,
    cuda: [Slot<extern "C" fn()>; 8],
    opencl: [Slot<extern "C" fn()>; 14],
    cudart: [Slot<extern "C" fn()>; 6],
    pub(crate) core2: Core2,
    pub(crate) sync: Syncs,
}

const ALL: usize = size_of::<Slots>() / size_of::<AtomicPtr<c_void>>();

static SLOTS: Slots = Slots {
    core: Core::empty(),
    cuda: [const { Slot::empty() }; 8],
    opencl: [const { Slot::empty() }; 14],
    cudart: [const { Slot::empty() }; 6],
    core2: Core2::empty(),
    sync: Syncs::empty(),
};

/// The addresses of a module's slots, indexed by callback id, with null at both ends.
type Table<const N: usize> = [Option<&'static AtomicPtr<c_void>>; N];

static TABLES: (Table<17>, Table<10>, Table<16>, Table<8>, Table<17>, Table<8>) = {
    let all = all();
    let (core, rest) = all.split_at(15);
    let (cuda, rest) = rest.split_at(8);
    let (opencl, rest) = rest.split_at(14);
    let (cudart, rest) = rest.split_at(6);
    let (core2, sync) = rest.split_at(15);
    (table(core), table(cuda), table(opencl), table(cudart), table(core2), table(sync))
};

const fn all() -> &'static [AtomicPtr<c_void>; ALL] {
    // SAFETY: `Slots` is `repr(C)` and consists only of slots, which are `repr(transparent)`.
    unsafe { &*(&raw const SLOTS).cast() }
}

const fn table<const N: usize>(slots: &'static [AtomicPtr<c_void>]) -> Table<N> {
    assert!(slots.len() + 2 == N, "null at both ends");
    let mut table = [None; N];
    let mut at = 0;
    while at < slots.len() {
        table[at + 1] = Some(&slots[at]);
        at += 1;
    }
    table
}

static ATTACHED: Once = Once::new();

/// The slots, filled by the tool if there is one.
#[inline]
pub(crate) fn slots() -> &'static Slots {
    if !ATTACHED.is_completed() {
        ATTACHED.call_once(attach);
    }
    &SLOTS
}

impl<F: Copy> Slot<F> {
    const fn empty() -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a pointer to a function") };
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// The function that the tool stored, if it did.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let function = self.0.load(Ordering::Acquire);
        if function.is_null() {
            return None;
        }
        // SAFETY: F is a pointer to a function, as the assertion in `empty` and the declarations of
        // the slots ensure. The tool fills a slot with a function of the type that NVTX's headers
        // give it, which is F. The tool reads the memory behind its arguments only during the call.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&function) })
    }
}

/// The variable that names the tool's library; the tool sets it before it starts the program.
const VARIABLE: &CStr =
    if cfg!(target_pointer_width = "64") { c"NVTX_INJECTION64_PATH" } else { c"NVTX_INJECTION32_PATH" };

type GetTable = extern "C" fn(u32) -> *const c_void;

/// Loads the tool and lets it fill the slots. If any step fails, all slots stay empty.
fn attach() {
    // SAFETY: the variable's text is read only while the library is being loaded; a program that
    // changes its environment meanwhile violates the contract of `set_var`.
    unsafe {
        let path = libc::getenv(VARIABLE.as_ptr());
        if path.is_null() {
            return;
        }
        let library = libc::dlopen(path, libc::RTLD_LAZY);
        if library.is_null() {
            return;
        }
        let entry = libc::dlsym(library, c"InitializeInjectionNvtx2".as_ptr());
        // SAFETY: NVTX gives the function of this name this type; a null pointer becomes `None`.
        let entry: Option<extern "C" fn(GetTable) -> c_int> = std::mem::transmute(entry);
        if entry.is_none_or(|entry| entry(export_table) == 0) {
            for slot in all() {
                slot.store(ptr::null_mut(), Ordering::Release);
            }
            libc::dlclose(library);
        }
    }
}

#[repr(C)]
struct Callbacks {
    size: usize,
    module_table: extern "C" fn(c_uint, *mut *const c_void, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module_table };
static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: crate::NVTX_VERSION as u32,
    reserved: 0,
    set_tool_version,
};

/// Returns the table that a tool asks for first, or null if there is no table with this id.
extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

/// Takes the version of a tool. It has no effect.
extern "C" fn set_tool_version(_: u32) {}

/// Stores the address of a module's table, and the number of its slots plus one for the leading
/// null. Returns 0 if the module does not exist.
extern "C" fn module_table(module: c_uint, table: *mut *const c_void, count: *mut c_uint) -> c_int {
    fn about<const N: usize>(table: &'static Table<N>) -> (*const c_void, c_uint) {
        (ptr::from_ref(table).cast(), N as c_uint - 1)
    }
    let (core, cuda, opencl, cudart, core2, sync) = &TABLES;
    let (found, counted) = match module {
        1 => about(core),
        2 => about(cuda),
        3 => about(opencl),
        4 => about(cudart),
        5 => about(core2),
        6 => about(sync),
        _ => return 0,
    };
    // SAFETY: each pointer is null or points to a place for the result.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = found;
        }
        if let Some(count) = count.as_mut() {
            *count = counted;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(number: c_uint) -> (*const *mut *mut c_void, c_uint) {
        let (mut table, mut count) = (ptr::null(), 0);
        assert_eq!(module_table(number, &mut table, &mut count), 1);
        (table.cast(), count)
    }

    #[test]
    fn each_module_has_as_many_slots_as_nvtx_says() {
        let counts = [16, 9, 15, 7, 16, 7];
        for (number, expect) in (1..).zip(counts) {
            let (table, count) = module(number);
            assert_eq!(count, expect, "module {number}");
            // SAFETY: a table has one entry more than the count says.
            let entries = unsafe { std::slice::from_raw_parts(table, count as usize + 1) };
            assert!(entries[0].is_null() && entries[count as usize].is_null());
            assert!(entries[1..count as usize].iter().all(|slot| !slot.is_null()));
        }
        assert_eq!(module_table(0, ptr::null_mut(), ptr::null_mut()), 0);
        assert_eq!(module_table(7, ptr::null_mut(), ptr::null_mut()), 0);
        assert_eq!(module_table(6, ptr::null_mut(), ptr::null_mut()), 1);
    }

    #[test]
    fn callback_ids_lead_to_the_slots_of_their_names() {
        let at = |number: c_uint, id: usize| {
            // SAFETY: the id is valid for that module.
            unsafe { *module(number).0.add(id) }.cast_const().cast::<c_void>()
        };
        let address = |slot: *const c_void| slot;
        assert_eq!(at(1, 1), address((&raw const SLOTS.core.mark_ex).cast()));
        assert_eq!(at(1, 11), address((&raw const SLOTS.core.range_pop).cast()));
        assert_eq!(at(1, 15), address((&raw const SLOTS.core.name_os_thread_w).cast()));
        assert_eq!(at(5, 4), address((&raw const SLOTS.core2.range_push_ex).cast()));
        assert_eq!(at(5, 5), address((&raw const SLOTS.core2.range_pop).cast()));
        assert_eq!(at(5, 12), address((&raw const SLOTS.core2.create_a).cast()));
        assert_eq!(at(6, 6), address((&raw const SLOTS.sync.releasing).cast()));
    }

    #[test]
    fn tables_are_had_by_their_numbers() {
        // SAFETY: table 1 is a `Callbacks`.
        let callbacks = unsafe { &*export_table(1).cast::<Callbacks>() };
        assert_eq!(callbacks.size, 2 * size_of::<usize>());
        // SAFETY: table 3 is a `VersionInfo`.
        let version = unsafe { &*export_table(3).cast::<VersionInfo>() };
        assert_eq!((version.size, version.version, version.reserved), (size_of::<VersionInfo>(), 3, 0));
        (version.set_tool_version)(7);
        assert!(export_table(0).is_null() && export_table(2).is_null() && export_table(4).is_null());
    }
}
