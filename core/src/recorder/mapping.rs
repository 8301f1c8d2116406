//! The memory of a recorder: 64-bit atomic words on the heap or in a shared mapping, and spans of
//! it.
//!
//! Other processes may map the same words, so nothing here is ever a plain reference to bytes.

use std::alloc::Layout;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use rustix::mm::{MapFlags, ProtFlags};

use crate::sys::shared::Mapping;

/// Bytes from which private memory is mapped rather than allocated.
const LARGE: usize = 64 << 10;

/// Zeroed words at a fixed address for as long as this value lives.
pub(crate) struct Memory {
    base: NonNull<AtomicU64>,
    words: usize,
    kind: Kind,
}

enum Kind {
    Heap(Layout),
    Anonymous,
    /// Held for its drop, which unmaps.
    Shared(#[expect(dead_code, reason = "held for its drop")] Mapping),
}

// SAFETY: all access goes through atomics; the last owner's drop frees the range.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Private memory.
    ///
    /// Large blocks cost pages only where they are written: a simulation has a thousand of them.
    pub(crate) fn heap(bytes: usize) -> Self {
        if bytes >= LARGE && !cfg!(miri) {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the kernel chooses a free range, so no memory in use is replaced.
            let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
            if let Some(base) = base.ok().and_then(NonNull::new) {
                return Self { base: base.cast(), words: bytes / 8, kind: Kind::Anonymous };
            }
        }
        let layout = Layout::from_size_align(bytes.next_multiple_of(64).max(64), 64).expect("a sane size");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Self { base: base.cast(), words: layout.size() / 8, kind: Kind::Heap(layout) }
    }

    /// A writable shared mapping of a file's zeroed bytes.
    ///
    /// In a forked child private zeros replace it, so that handles copied into the child write
    /// nothing to the parent's recorder. Pages that the file loses (it is truncated, or its disk
    /// fails) are replaced by private zeros too, when they are touched: a recorder must not end its
    /// process.
    pub(crate) fn shared(mapping: Mapping) -> Self {
        detach::watch(mapping.base().as_ptr() as usize, mapping.len());
        Self { base: mapping.base().cast(), words: mapping.len() / 8, kind: Kind::Shared(mapping) }
    }

    /// All words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is the start of `words` aligned, initialised (zeroed) words, which live as
        // long as `self`. Other threads and processes may store to them meanwhile, which atomics
        // allow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// `N` words from the byte `at`.
    pub(crate) fn span<const N: usize>(self: &Arc<Self>, at: usize) -> Span<N> {
        let words: &[AtomicU64; N] = self.words()[at / 8..][..N].try_into().expect("exactly N");
        Span { first: NonNull::from(words), memory: Arc::clone(self) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.kind {
            // SAFETY: allocated with this layout, and no span is left, since each holds an `Arc` of
            // this.
            Kind::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr().cast(), layout) },
            Kind::Anonymous => {
                // SAFETY: `heap` mapped exactly this range, and no span is left.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * 8) };
            }
            Kind::Shared(_) => detach::forget(self.base.as_ptr() as usize),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} words)", self.words)
    }
}

/// Memory for a row that no reader sees.
pub(super) fn private<const N: usize>() -> Span<N> {
    Arc::new(Memory::heap(N * 8)).span(0)
}

/// `N` words of a memory, which it keeps alive. A load or store through it needs no bounds check.
#[derive(Clone)]
pub(crate) struct Span<const N: usize> {
    first: NonNull<[AtomicU64; N]>,
    memory: Arc<Memory>,
}

// SAFETY: atomics of a memory that the span keeps alive.
unsafe impl<const N: usize> Send for Span<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Span<N> {}

impl<const N: usize> Span<N> {
    /// `M` of its words, from the word `at`.
    pub(crate) fn part<const M: usize>(&self, at: usize) -> Span<M> {
        let words: &[AtomicU64; M] = self[at..][..M].try_into().expect("exactly M");
        Span { first: NonNull::from(words), memory: Arc::clone(&self.memory) }
    }
}

impl<const N: usize> Deref for Span<N> {
    type Target = [AtomicU64; N];
    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: made from a reference into `memory`, which lives as long as `self` and gives out
        // only atomics.
        unsafe { self.first.as_ref() }
    }
}

impl<const N: usize> fmt::Debug for Span<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({N} words)")
    }
}

/// Replaces shared mappings by private zeros: all of them in forked children, and lost pages.
mod detach {
    use std::ffi::c_void;
    use std::sync::atomic::AtomicBool;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::{AtomicUsize, Once, Ordering};
    use crate::sys::faults::{self, Mender};
    use crate::sys::handlers::{self, Handler};

    /// Base and length of each mapping; a base of 0 is free. One recorder lives at a time, or two
    /// for the moment in which one follows another.
    static SHARED: [[AtomicUsize; 2]; 4] = [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; 4];
    /// Whether the loss of pages was reported.
    static SAID: AtomicBool = AtomicBool::new(false);

    pub(super) fn watch(base: usize, len: usize) {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            handlers::in_forked_children::<InChildren>();
            faults::mend_faults::<LostPages>();
        });
        for [slot, length] in &SHARED {
            if slot.compare_exchange(0, base, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                length.store(len, Ordering::Relaxed);
                return;
            }
        }
    }

    pub(super) fn forget(base: usize) {
        for [slot, length] in &SHARED {
            if slot.load(Ordering::Relaxed) == base {
                length.store(0, Ordering::Relaxed);
                slot.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Begin and end of each mapping.
    fn ranges() -> impl Iterator<Item = (usize, usize)> {
        let load = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        let range = move |[slot, length]: &[AtomicUsize; 2]| (load(slot), load(slot) + load(length));
        SHARED.iter().map(range).filter(|(begin, end)| *begin != 0 && begin != end)
    }

    /// Replaces the range by private zeros, which atomics may use as before; false if that fails.
    ///
    /// # Safety
    /// The range must be part of a mapping of a `Memory`, which keeps it reserved.
    unsafe fn put_zeros(base: usize, len: usize) -> bool {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::FIXED | MapFlags::PRIVATE;
        // SAFETY: the caller's contract.
        unsafe { mmap_anonymous(base as *mut c_void, len, prot, flags) }.is_ok()
    }

    struct InChildren;

    impl Handler for InChildren {
        fn run() {
            for (begin, end) in ranges() {
                // SAFETY: the parent's `Memory` was copied into this child. If the kernel refuses,
                // the shared pages stay.
                unsafe { put_zeros(begin, end - begin) };
            }
        }
    }

    struct LostPages;

    impl Mender for LostPages {
        fn mend(page: usize, bytes: usize) -> bool {
            let is_ours = ranges().any(|(begin, end)| (begin..end).contains(&page));
            // SAFETY: the thread that touched the page holds its `Memory`; mappings begin and end
            // with pages.
            let is_mended = is_ours && unsafe { put_zeros(page, bytes) };
            if is_mended && !SAID.swap(true, Ordering::Relaxed) {
                faults::say(
                    "ccl: recorder lost: its file was truncated, or its disk failed; the job goes on, and what it does \
                     is no longer recorded\n",
                );
            }
            is_mended
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_parts_and_outlive_the_handle_they_came_from() {
        let memory = Arc::new(Memory::heap(4096));
        let span = memory.span::<4>(64);
        span[3].store(7, Ordering::Relaxed);
        assert_eq!(memory.words()[8 + 3].load(Ordering::Relaxed), 7);
        drop(memory);
        assert_eq!(span.clone()[3].load(Ordering::Relaxed), 7);
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_span_beyond_the_end_is_a_bug() {
        let _ = Arc::new(Memory::heap(64)).span::<4>(48);
    }

    #[cfg(not(miri))]
    #[test]
    #[cfg_attr(miri, ignore = "no mmap of files under miri")]
    fn a_forked_child_writes_nothing_of_its_parents() {
        use crate::sys::shared::Access;
        let file = rustix::fs::memfd_create("ccl-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let memory = Memory::shared(Mapping::new(&file, 8192, Access::ReadWrite).unwrap());
        memory.words()[5].store(1, Ordering::Relaxed);
        let status = crate::sys::process::in_fork(|| {
            let fresh = memory.words()[5].load(Ordering::Relaxed) == 0;
            memory.words()[5].store(2, Ordering::Relaxed);
            i32::from(!fresh)
        });
        assert_eq!(status, Some(0));
        assert_eq!(memory.words()[5].load(Ordering::Relaxed), 1);
    }
}
