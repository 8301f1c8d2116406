//! Memory that links may read and write: views of callers' buffers and of staging slots, and buffers that
//! asynchronous operations own.
//!
//! A view is an address and a length. Making one from raw memory is the unsafe act: whoever makes it promises
//! that the memory stays valid, and that nobody else touches it in a conflicting way, until the operation
//! that got it has ended. Everything that carries views about is safe code.

/// Bytes an operation may read.
#[derive(Clone, Copy, Debug)]
pub struct View {
    ptr: *const u8,
    len: usize,
}

/// Bytes an operation may read and write.
#[derive(Clone, Copy, Debug)]
pub struct ViewMut {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a view is an address; the promise made at its creation holds for whichever thread drives the
// operation, and an engine's lock hands it from one driver to the next.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Send for ViewMut {}

impl View {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::NonNull::dangling().as_ptr(), len: 0 };

    /// `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They stay readable, and nobody writes them but the operation itself, until the operation given this view ends.
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
    /// The part `at..at + len`. Panics if that is not inside.
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
    /// They stay readable and writable, and nobody else touches them, until the operation given this view ends.
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
    /// The part `at..at + len`. Panics if that is not inside.
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

/// An element of a typed call: maps a Rust type to its [`Datatype`](crate::Datatype). Sealed.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The datatype of `Self`.
    const DTYPE: crate::types::Datatype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($t:ty => $d:ident),+) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: crate::types::Datatype = crate::types::Datatype::$d;
        }
    )+};
}
element!(f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8);

/// A view of a slice, for an operation that ends before the borrow does.
pub(crate) fn view_of<T: Element>(slice: &[T]) -> View {
    // SAFETY: only the blocking calls of `comm` use this; they hold the borrow until the operation has ended or
    // its engine is poisoned and detached from the buffer.
    unsafe { View::new(slice.as_ptr().cast(), std::mem::size_of_val(slice)) }
}

/// A writable view of a slice, for an operation that ends before the borrow does.
pub(crate) fn view_of_mut<T: Element>(slice: &mut [T]) -> ViewMut {
    // SAFETY: the borrow is unique. The blocking calls hold it as in `view_of`; an asynchronous call keeps the region in a place that
    // it shares with the driver, which nobody looks into and which is not freed until the operation has ended.
    unsafe { ViewMut::new(slice.as_mut_ptr().cast(), std::mem::size_of_val(slice)) }
}

/// A buffer an asynchronous operation owns while it runs: moved in at the call, handed back at completion.
/// A handle that is leaked leaks its region too, so no link ever writes freed memory.
#[derive(Debug)]
pub struct Region<T: Element> {
    data: Vec<T>,
}

impl<T: Element> Region<T> {
    /// Takes a vector in.
    #[must_use]
    pub const fn new(data: Vec<T>) -> Self {
        Self { data }
    }
    /// Gives the vector back.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.data
    }
    /// All of it, for an operation. Whoever asks keeps the region where it is and leaves it alone until that has ended.
    pub(crate) fn view_mut(&mut self) -> ViewMut {
        view_of_mut(&mut self.data)
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
        &self.data
    }
}

/// A slot in private memory, for links that stage messages on the heap.
///
/// The views it hands out are addresses into it: its link must keep it, unmoved in memory, for as long as an engine may use
/// them, which is until the engine's next `publish` or `release` on that link. A boxed slice does not move with its owner.
#[derive(Debug)]
pub(crate) struct Slot(Box<[u8]>);

impl Slot {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes].into())
    }
    pub(crate) fn view(&self, len: usize) -> View {
        // SAFETY: inside the box; the link that owns it keeps it while the engine holds the view (see above), and only
        // overwrites it after the engine has freed the message.
        unsafe { View::new(self.0[..len].as_ptr(), len) }
    }
    pub(crate) fn view_mut(&mut self, len: usize) -> ViewMut {
        // SAFETY: as in `view`; the link does not touch it until the engine has published it.
        unsafe { ViewMut::new(self.0[..len].as_mut_ptr(), len) }
    }
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
