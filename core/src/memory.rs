//! Memory that links may read and write: views of callers' buffers and of staging slots, and
//! buffers that asynchronous operations own.
//!
//! A view is an address and a length. Creating one from raw memory is unsafe: the caller promises
//! that the memory stays valid, and that no other code accesses it in a conflicting way, until the
//! operation that received the view has ended. All code that passes views on is safe code.
//!
//! A large region can also be *lent* to links whose device reads and writes memory by itself. It is
//! registered with the device when such a link first uses it, stays so for later operations, and is
//! so no more when the region is dropped. A peer that has been told where to write could do so at
//! any time between: the ranks of a job trust each other that far.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::sys::shared::Mapping;
use crate::sys::verbs::{Domain, Region as Registered};

/// Bytes that an operation may read.
#[derive(Clone, Copy, Debug)]
pub struct View {
    ptr: *const u8,
    len: usize,
}

/// Bytes that an operation may read and write.
#[derive(Clone, Copy, Debug)]
pub struct ViewMut {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a view is an address. The promise made at its creation holds for every thread that drives
// the operation, and the engine's lock hands the view from one driver to the next.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Send for ViewMut {}

impl View {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::NonNull::dangling().as_ptr(), len: 0 };

    /// `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They stay readable, and only the operation itself writes them, until the operation that
    /// received this view ends.
    #[must_use]
    pub const unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len }
    }
    /// The address of the first byte.
    #[must_use]
    pub const fn as_ptr(self) -> *const u8 {
        self.ptr
    }
    /// The number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }
    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
    /// The part `at..at + len`. Panics if it is not inside the view.
    #[must_use]
    pub fn part(self, at: usize, len: usize) -> Self {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of {} bytes", self.len);
        // SAFETY: inside the allocation, by the assertion and the promise of `new`.
        Self { ptr: unsafe { self.ptr.add(at) }, len }
    }
}

impl ViewMut {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::NonNull::dangling().as_ptr(), len: 0 };

    /// `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They stay readable and writable, and no other code accesses them, until the operation that
    /// received this view ends.
    #[must_use]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }
    /// The address of the first byte.
    #[must_use]
    pub const fn as_ptr(self) -> *mut u8 {
        self.ptr
    }
    /// The number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }
    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
    /// The part `at..at + len`. Panics if it is not inside the view.
    #[must_use]
    pub fn part(self, at: usize, len: usize) -> Self {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of {} bytes", self.len);
        // SAFETY: inside the allocation, by the assertion and the promise of `new`.
        Self { ptr: unsafe { self.ptr.add(at) }, len }
    }
    /// The same bytes, for reading.
    #[must_use]
    pub const fn read(self) -> View {
        View { ptr: self.ptr, len: self.len }
    }
}

/// A value of the caller's that an operation reads until it ends.
#[derive(Debug)]
pub struct Borrowed<T: ?Sized>(NonNull<T>);

impl<T: ?Sized> Copy for Borrowed<T> {}
impl<T: ?Sized> Clone for Borrowed<T> {
    fn clone(&self) -> Self {
        *self
    }
}
// SAFETY: it gives shared access only, and the promise made at its creation holds for every thread.
unsafe impl<T: Sync + ?Sized> Send for Borrowed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync + ?Sized> Sync for Borrowed<T> {}

impl<T: ?Sized> Borrowed<T> {
    /// Borrows a value.
    ///
    /// # Safety
    /// It stays valid, and nobody changes it, until the operation that received this has ended.
    #[must_use]
    pub unsafe fn new(value: &T) -> Self {
        Self(NonNull::from(value))
    }
}

impl<T: ?Sized> std::ops::Deref for Borrowed<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the promise of `new`.
        unsafe { self.0.as_ref() }
    }
}

/// An element of a typed call: maps a Rust type to its [`Datatype`](crate::Datatype). Sealed.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The datatype of `Self`.
    const DTYPE: crate::types::Datatype;
}

mod sealed {
    pub trait Sealed {
        /// As a factor of a pre-multiplied sum: its bits; of fewer bits than 32, those of the
        /// same value as an `f32`.
        fn factor(self) -> u64;
    }
}

/// An element as the factor of a pre-multiplied sum.
pub(crate) fn factor<T: Element>(element: T) -> u64 {
    element.factor()
}

macro_rules! element {
    ($($t:ty => $d:ident, |$x:ident| $factor:expr;)+) => {$(
        impl sealed::Sealed for $t {
            fn factor(self) -> u64 {
                let $x = self;
                $factor
            }
        }
        impl Element for $t {
            const DTYPE: crate::types::Datatype = crate::types::Datatype::$d;
        }
    )+};
}
element! {
    i8 => I8, |x| x as u64;
    i32 => I32, |x| x as u64;
    i64 => I64, |x| x as u64;
    u8 => U8, |x| u64::from(x);
    u32 => U32, |x| u64::from(x);
    u64 => U64, |x| x;
    f32 => F32, |x| u64::from(x.to_bits());
    f64 => F64, |x| x.to_bits();
    half::f16 => F16, |x| u64::from(x.to_f32().to_bits());
    half::bf16 => BF16, |x| u64::from(x.to_f32().to_bits());
    float8::F8E4M3 => F8E4M3, |x| u64::from(x.to_f32().to_bits());
    float8::F8E5M2 => F8E5M2, |x| u64::from(x.to_f32().to_bits());
}

/// A value of the caller's, for an operation that ends before the borrow does.
pub(crate) fn borrowed<T: ?Sized>(value: &T) -> Borrowed<T> {
    // SAFETY: as of `view_of`: the blocking calls of `comm` hold the borrow until the operation has
    // ended. An asynchronous or prepared call keeps the value in a box that it and its operations
    // share (`collective::terms`); the simulator's cluster keeps it longer than its engines.
    unsafe { Borrowed::new(value) }
}

/// Folds the bytes of a view, in parts that are copied first: other processes may write them, so no
/// reference to them is made.
pub(crate) fn fold<A>(bytes: View, first: A, mut next: impl FnMut(A, &[u8]) -> A) -> A {
    let mut part = [0_u8; 4096];
    (0..bytes.len()).step_by(part.len()).fold(first, |so_far, at| {
        let len = part.len().min(bytes.len() - at);
        let from = bytes.part(at, len);
        // SAFETY: `len` bytes at both; the part is this function's own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), part.as_mut_ptr(), len) };
        next(so_far, &part[..len])
    })
}

/// A view of a slice, for an operation that ends before the borrow does.
pub(crate) fn view_of<T: Element>(slice: &[T]) -> View {
    // SAFETY: only `comm` uses this for operations. Its blocking calls and groups hold the borrow
    // until the operation has ended, or until its engine is poisoned and detached from the buffer;
    // calls that own their buffers, prepared ones too, make views anew of what they own.
    unsafe { View::new(slice.as_ptr().cast(), std::mem::size_of_val(slice)) }
}

/// A writable view of a slice, for an operation that ends before the borrow does.
pub(crate) fn view_of_mut<T: Element>(slice: &mut [T]) -> ViewMut {
    // SAFETY: the borrow is unique. The blocking calls hold it as in `view_of`. An asynchronous
    // call keeps the region in a place that it shares with the driver. No code reads that place,
    // and it is not freed, until the operation has ended.
    unsafe { ViewMut::new(slice.as_mut_ptr().cast(), std::mem::size_of_val(slice)) }
}

/// A buffer that an asynchronous operation owns while it runs.
///
/// A large one is registered with devices for queue pairs when it is first sent or received over
/// them, until it is dropped. On kernels that do not copy such memory at a fork, before 5.12, a
/// forked child must not touch it.
///
/// It is moved in at the call and returned at completion. A leaked handle leaks its region too, so
/// no link ever writes to freed memory.
#[derive(Debug)]
pub struct Region<T: Element> {
    /// Dropped first: from then on no device uses the memory.
    lent: Option<Lent>,
    memory: Memory<T>,
}

/// What a region owns.
enum Memory<T> {
    Vector(Vec<T>),
    /// Memory of somebody else, and what keeps it valid.
    Foreign {
        ptr: *mut T,
        len: usize,
        _keep_alive: Box<dyn Send>,
    },
}

// SAFETY: foreign memory is nobody else's while the region lives, by the promise of
// `Region::foreign`, and what keeps it valid may go to another thread.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: a shared region gives shared access only.
unsafe impl<T: Sync> Sync for Memory<T> {}

impl<T> std::fmt::Debug for Memory<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, len) = match self {
            Self::Vector(data) => ("Vector", data.len()),
            Self::Foreign { len, .. } => ("Foreign", *len),
        };
        write!(f, "{kind}({len})")
    }
}

impl<T: Element> Region<T> {
    /// Wraps a vector.
    #[must_use]
    pub const fn new(data: Vec<T>) -> Self {
        Self { lent: None, memory: Memory::Vector(data) }
    }
    /// `len` zeros in pages of their own. A device reads and writes all of them in place; of a
    /// vector it does so only with the pages that lie in it as a whole, and the rest is copied.
    ///
    /// # Errors
    /// `System` if there is no memory left.
    pub fn zeroed(len: usize) -> crate::error::Result<Self> {
        if len == 0 {
            return Ok(Self::new(Vec::new()));
        }
        let bytes = len.saturating_mul(std::mem::size_of::<T>());
        let pages = Mapping::private(bytes)?;
        // SAFETY: the mapping has so many bytes, is page-aligned and nobody else's, and lives as
        // long as the region. Zero bytes are a value of each type of elements.
        Ok(unsafe { Self::foreign(pages.base().as_ptr().cast(), len, pages) })
    }
    /// `len` elements at `ptr`, of memory that is not Rust's: a mapping, or a buffer of another
    /// language. `keep_alive` is dropped with the region, in any thread.
    ///
    /// # Safety
    /// Until `keep_alive` is dropped, the memory stays valid, `ptr` is aligned, the elements are
    /// initialized, and nobody else reads or writes them.
    #[must_use]
    pub unsafe fn foreign(ptr: *mut T, len: usize, keep_alive: impl Send + 'static) -> Self {
        Self { lent: None, memory: Memory::Foreign { ptr, len, _keep_alive: Box::new(keep_alive) } }
    }
    /// Gives the vector back; a copy of foreign memory.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<T> {
        self.lent = None;
        match self.memory {
            Memory::Vector(data) => data,
            Memory::Foreign { .. } => self.to_vec(),
        }
    }
    /// It, for links that lend it to devices; `None` if it is too small for that. The caller keeps
    /// the region as for [`view_mut`](Self::view_mut).
    pub(crate) fn lendable(&mut self) -> Option<Arc<Lendable>> {
        let view = self.view_mut();
        if view.len() < LEND_FROM {
            return None;
        }
        let lent = self.lent.get_or_insert_with(|| Lent(Arc::new(Lendable::new(view))));
        Some(Arc::clone(&lent.0))
    }
    /// All of it, for an operation. The caller keeps the region where it is, and does not access it
    /// before the operation has ended.
    pub(crate) fn view_mut(&mut self) -> ViewMut {
        match &mut self.memory {
            Memory::Vector(data) => view_of_mut(data),
            // SAFETY: valid and exclusive, by the promise of `foreign`; the region is kept until
            // the operation has ended.
            Memory::Foreign { ptr, len, .. } => unsafe {
                ViewMut::new(ptr.cast(), *len * std::mem::size_of::<T>())
            },
        }
    }
}

/// The bytes from which a region is lent to devices: less is copied as fast.
const LEND_FROM: usize = 64 << 10;

/// A region's memory, for links that lend it to devices: the pages that lie in it as a whole, since
/// other memory in the same page would change its owner when the process forks.
#[derive(Debug)]
pub(crate) struct Lendable {
    bytes: ViewMut,
    /// With each device that has been asked; `None` once the region is gone.
    registered: Mutex<Option<Vec<Registered>>>,
}

// SAFETY: an address, which only devices use, and operations as of `ViewMut`.
unsafe impl Sync for Lendable {}

/// A region's hold on what it has lent.
#[derive(Debug)]
struct Lent(Arc<Lendable>);

impl Drop for Lent {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have held the lock.
        if !crate::sys::forked() {
            *self.0.registered() = None;
        }
    }
}

impl Lendable {
    /// The memory of a region, which drops its [`Lent`] before that memory.
    fn new(region: ViewMut) -> Self {
        let page = rustix::param::page_size();
        let before = region.as_ptr().align_offset(page).min(region.len());
        let len = (region.len() - before) / page * page;
        Self { bytes: region.part(before, len), registered: Mutex::new(Some(Vec::new())) }
    }

    fn registered(&self) -> std::sync::MutexGuard<'_, Option<Vec<Registered>>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same bytes, to be written by a device, if they lie in what is lent.
    pub(crate) fn part(&self, bytes: View) -> Option<ViewMut> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        let is_inside = at <= self.bytes.len() && bytes.len() <= self.bytes.len() - at;
        is_inside.then(|| self.bytes.part(at, bytes.len()))
    }

    /// Registers it with a device, unless it is.
    ///
    /// # Errors
    /// The kernel refuses, or the region is gone.
    pub(crate) fn register(&self, domain: &Arc<Domain>, relaxed: bool) -> std::io::Result<()> {
        let mut registered = self.registered();
        let regions = registered.as_mut().ok_or(std::io::ErrorKind::NotFound)?;
        if regions.iter().any(|region| Arc::ptr_eq(region.domain(), domain)) {
            return Ok(());
        }
        // A device that was closed and opened again has another domain: the former one is kept open
        // by nothing else.
        regions.retain(|region| region.domain().context().name() != domain.context().name());
        let base = NonNull::new(self.bytes.as_ptr()).ok_or(std::io::ErrorKind::NotFound)?;
        // SAFETY: the region drops its `Lent` before the memory, which drops these under the lock.
        // Who accesses the memory meanwhile is told of peers by the description of this module.
        let made = unsafe { Registered::register_foreign(domain, (base, self.bytes.len()), relaxed) };
        regions.push(made?);
        Ok(())
    }

    /// Does something with its registration with a device, which stays for so long.
    pub(crate) fn with<R>(&self, domain: &Arc<Domain>, act: impl FnOnce(&Registered) -> R) -> Option<R> {
        let registered = self.registered();
        registered.as_ref()?.iter().find(|region| Arc::ptr_eq(region.domain(), domain)).map(act)
    }
}

impl<T: Element> From<Vec<T>> for Region<T> {
    fn from(data: Vec<T>) -> Self {
        Self::new(data)
    }
}

impl<T: Element> std::ops::Deref for Region<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Vector(data) => data,
            // SAFETY: valid, aligned, initialized and not written by anybody else, by the promise
            // of `foreign`.
            Memory::Foreign { ptr, len, .. } => unsafe { std::slice::from_raw_parts(*ptr, *len) },
        }
    }
}

impl<T: Element> std::ops::DerefMut for Region<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Vector(data) => data,
            // SAFETY: valid, aligned, initialized and accessed by nobody else, by the promise of
            // `Region::foreign`, and borrowed as the region is.
            Memory::Foreign { ptr, len, .. } => unsafe { std::slice::from_raw_parts_mut(*ptr, *len) },
        }
    }
}

/// A slot in private memory, for links that stage messages on the heap.
///
/// The views it returns are addresses into it. Its link must keep it, unmoved in memory, for as
/// long as an engine may use them: until the engine's next `publish` or `release` on that link. A
/// boxed slice does not move with its owner.
#[derive(Debug)]
pub(crate) struct Slot(Box<[u8]>);

impl Slot {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes].into())
    }
    pub(crate) fn view(&self, len: usize) -> View {
        // SAFETY: inside the box. The link that owns it keeps it while the engine holds the view
        // (see above), and overwrites it only after the engine has freed the message.
        unsafe { View::new(self.0[..len].as_ptr(), len) }
    }
    pub(crate) fn view_mut(&mut self, len: usize) -> ViewMut {
        // SAFETY: as in `view`; the link does not access it until the engine has published it.
        unsafe { ViewMut::new(self.0[..len].as_mut_ptr(), len) }
    }
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_foreign_memory_keeps_it_alive() {
        let memory = Arc::new(std::sync::Mutex::new(vec![1_i32, 2, 3]));
        let at = memory.lock().unwrap().as_mut_ptr();
        // SAFETY: the vector lives as long as its `Arc`, and is not accessed meanwhile.
        let mut region = unsafe { Region::foreign(at, 3, Arc::clone(&memory)) };
        assert_eq!(region.view_mut().len(), 12);
        assert_eq!(region[..], [1, 2, 3]);
        assert_eq!(
            (format!("{region:?}"), Arc::strong_count(&memory)),
            ("Region { lent: None, memory: Foreign(3) }".into(), 2)
        );
        assert_eq!(region.into_vec(), [1, 2, 3]);
        assert_eq!(Arc::strong_count(&memory), 1);
        let own = Region::new(vec![7_u8; 2]);
        assert_eq!((own.len(), own.into_vec()), (2, vec![7, 7]));
    }

    #[test]
    fn zeros_in_pages_of_their_own_are_lent_whole() {
        let mut region = Region::<f32>::zeroed(LEND_FROM / 4).unwrap();
        assert!(region.len() == LEND_FROM / 4 && region.iter().all(|value| *value == 0.0));
        let all = region.view_mut().read();
        assert!(region.lendable().unwrap().part(all).is_some());
        region[7] = 1.5;
        assert_eq!(region.into_vec()[7], 1.5);
        assert_eq!(Region::<i64>::zeroed(0).unwrap().len(), 0);
        assert!(Region::<f64>::zeroed(usize::MAX).is_err());
    }

    #[test]
    fn a_large_region_lends_its_whole_pages() {
        let page = rustix::param::page_size();
        let mut region = Region::new(vec![0_u8; LEND_FROM + 3 * page]);
        let (first, all) = (region.as_ptr() as usize, region.view_mut());
        let lent = region.lendable().unwrap();
        let whole = first.next_multiple_of(page) - first;
        assert!(
            lent.part(all.read().part(whole, LEND_FROM))
                .is_some_and(|part| { part.as_ptr() as usize == first + whole && part.len() == LEND_FROM })
        );
        assert!(lent.part(all.read()).is_none() || whole == 0);
        assert!(lent.part(all.read().part(LEND_FROM + 2 * page, page)).is_none() || whole == 0);
        assert!(lent.part(View::EMPTY).is_none());
        drop(region);
        assert!(lent.registered().is_none());
        assert!(Region::new(vec![0_u8; LEND_FROM - 1]).lendable().is_none());
    }
}
