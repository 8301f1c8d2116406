//! The library and its functions, each found when it is first needed.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The name under which every distribution installs the library.
const SONAME: &CStr = c"libibverbs.so.1";

/// The loaded library. It is never unloaded: functions of it are kept.
struct Library(NonNull<c_void>);

// SAFETY: the handle is only passed to `dlsym`, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Whether libibverbs can be loaded. Loads it.
///
/// There may be no device all the same: `ibv_get_device_list` says so.
#[must_use]
pub fn is_available() -> bool {
    library().is_ok()
}

/// Why libibverbs cannot be loaded, in the words of the dynamic linker; `None` if it is loaded.
/// Loads it.
#[must_use]
pub fn why_unavailable() -> Option<&'static str> {
    library().err()
}

fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(SONAME)).as_ref().map_err(String::as_str)
}

fn load(name: &CStr) -> Result<Library, String> {
    // SAFETY: the name is a C string. The initializers of the library that has it do not depend on
    // the state of the program: it registers handlers for fork, and reads variables of its own.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).map(Library).ok_or_else(|| {
        // SAFETY: dlerror has no precondition; its text belongs to this thread until the thread
        // calls the dynamic linker again, and is copied before that.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return format!("{}: the dynamic linker does not say why", name.to_string_lossy());
        }
        // SAFETY: a result of dlerror that is not null is a C string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    })
}

/// The function of this name, which `slot` keeps once it was found.
#[inline]
pub(crate) fn find(slot: &AtomicPtr<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
    NonNull::new(slot.load(Ordering::Acquire)).or_else(|| look_up(slot, name))
}

#[cold]
fn look_up(slot: &AtomicPtr<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
    let library = library().ok()?;
    // SAFETY: the handle is that of a library that is never unloaded, and the name is a C string.
    // Of several versions of a function dlsym takes the default one, as a linker does.
    let function = unsafe { libc::dlsym(library.0.as_ptr(), name.as_ptr()) };
    slot.store(function, Ordering::Release);
    NonNull::new(function)
}

/// A slot that is still empty.
pub(crate) const fn empty() -> AtomicPtr<c_void> {
    AtomicPtr::new(ptr::null_mut())
}

/// The C string of a text that ends with a zero.
pub(crate) const fn c_string(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name ends with its only zero"),
    }
}

/// The result of calling a missing function, which also sets `errno` to ENOSYS.
#[cold]
pub(crate) fn absent<T: Absent>(function: &CStr) -> T {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::of(function)
}

/// The results that functions of libibverbs have.
pub(crate) trait Absent {
    /// The result that says that `function` could not be carried out.
    fn of(function: &CStr) -> Self;
}

impl Absent for c_int {
    fn of(function: &CStr) -> Self {
        match function.to_bytes() {
            // These say -1 and set errno.
            b"ibv_get_async_event"
            | b"ibv_get_cq_event"
            | b"ibv_get_device_index"
            | b"ibv_query_gid"
            | b"ibv_query_pkey" => -1,
            // This one says what is in order: nothing.
            b"ibv_query_qp_data_in_order" => 0,
            // The others return an error number.
            _ => libc::ENOSYS,
        }
    }
}

impl Absent for isize {
    fn of(_: &CStr) -> Self {
        // `c_int` is never wider than `isize` where there is a libibverbs.
        -(libc::ENOSYS as Self)
    }
}

impl Absent for u32 {
    fn of(_: &CStr) -> Self {
        0
    }
}

impl Absent for u64 {
    fn of(_: &CStr) -> Self {
        0
    }
}

impl<T> Absent for *const T {
    fn of(_: &CStr) -> Self {
        ptr::null()
    }
}

impl<T> Absent for *mut T {
    fn of(_: &CStr) -> Self {
        ptr::null_mut()
    }
}

impl Absent for () {
    fn of(_: &CStr) -> Self {}
}

/// Functions of libibverbs, as an `extern` block declares them, and called like these.
macro_rules! verbs {
    ($($visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of libibverbs.")]
        ///
        /// # Safety
        /// As its page of the manual says, and verbs.h: pointers are valid and of live objects.
        $visibility unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            const NAME: &::std::ffi::CStr = $crate::library::c_string(concat!(stringify!($name), "\0"));
            static FOUND: ::std::sync::atomic::AtomicPtr<::std::ffi::c_void> = $crate::library::empty();
            let Some(function) = $crate::library::find(&FOUND, NAME) else {
                return $crate::library::absent(NAME);
            };
            // SAFETY: a pointer to a function has the size of one to data where there is a dlsym,
            // and verbs.h declares the function of this name with this type.
            let function = unsafe {
                ::std::mem::transmute::<
                    ::std::ptr::NonNull<::std::ffi::c_void>,
                    unsafe extern "C" fn($($type),*) $(-> $result)?,
                >(function)
            };
            // SAFETY: the caller keeps the contract of this very function.
            unsafe { function($($argument),*) }
        }
    )* };
}
