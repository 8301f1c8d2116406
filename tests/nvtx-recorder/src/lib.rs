//! A library that NVTX loads in place of a profiler, by `NVTX_INJECTION64_PATH`.
//!
//! It records every domain, registered string and range of a thread, each with the thread id and
//! the time, in the file that [`FILE`] names, with the process id appended to the name.
//!
//! The file is a table of records in memory shared with the reader: nothing is lost if the process
//! is killed, and nothing is allocated, locked or written by a system call while ranges are timed.
//! Records that come when the table is full are counted, and not kept.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The variable that names the file: `/tmp/of` becomes `/tmp/of.4711`.
pub const FILE: &str = "NVTX_RECORDER_FILE";
const FILE_C: &CStr = c"NVTX_RECORDER_FILE";

/// Records in a file, after a first one whose time field is their number.
pub const CAPACITY: usize = 16_384;

/// The kind of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// A domain was created; the text is its name.
    Domain,
    /// A string was registered; the text is the string.
    String,
    /// A range began.
    Push,
    /// The last range of this thread and domain ended.
    Pop,
    /// A thread was named; `string` is its id, the text its name.
    Thread,
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The kind.
    pub what: What,
    /// The thread, by the kernel's id.
    pub thread: u32,
    /// The time, on the monotonic clock.
    pub at_ns: u64,
    /// The domain.
    pub domain: u64,
    /// The registered string.
    pub string: u64,
    /// The kind of payload, by NVTX's number.
    pub payload_type: u32,
    /// The payload.
    pub payload: u64,
    /// The text.
    pub text: String,
}

const TEXT: usize = 80;

#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    what: u32,
    thread: u32,
    at_ns: u64,
    domain: u64,
    string: u64,
    payload: u64,
    payload_type: u32,
    len: u32,
    text: [u8; TEXT],
}

const BYTES: usize = size_of::<Raw>();

/// Reads the records of a file.
///
/// # Errors
/// The number of records that did not fit, if there are any.
pub fn read(file: &[u8]) -> Result<Vec<Record>, u64> {
    let number = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let small = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let count = number(8);
    if count > CAPACITY as u64 {
        return Err(count - CAPACITY as u64);
    }
    let record = |at: usize| Record {
        what: match small(at) {
            1 => What::Domain,
            2 => What::String,
            3 => What::Push,
            4 => What::Pop,
            _ => What::Thread,
        },
        thread: small(at + 4),
        at_ns: number(at + 8),
        domain: number(at + 16),
        string: number(at + 24),
        payload: number(at + 32),
        payload_type: small(at + 40),
        text: String::from_utf8_lossy(&file[at + 48..][..small(at + 44) as usize]).into_owned(),
    };
    Ok((1..=count as usize).map(|n| record(n * BYTES)).collect())
}

static TABLE: AtomicPtr<Raw> = AtomicPtr::new(ptr::null_mut());
static HANDLES: AtomicU64 = AtomicU64::new(0);

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Creates the file and maps it, with all pages touched, so that no range waits for a page.
fn open() -> Option<*mut Raw> {
    // SAFETY: the path is written into a buffer that is long enough, or refused; the file is as
    // long as the mapped part of it, and the mapping stays.
    unsafe {
        let prefix = libc::getenv(FILE_C.as_ptr());
        if prefix.is_null() {
            return None;
        }
        let mut path = [0 as c_char; 4096];
        let len = libc::snprintf(path.as_mut_ptr(), path.len(), c"%s.%d".as_ptr(), prefix, libc::getpid());
        if len as usize >= path.len() {
            return None;
        }
        let file =
            libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC, 0o600);
        let bytes = (CAPACITY + 1) * BYTES;
        if file < 0 || libc::ftruncate(file, bytes as libc::off_t) != 0 {
            return None;
        }
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let table = libc::mmap(ptr::null_mut(), bytes, access, kind, file, 0);
        libc::close(file);
        (table != libc::MAP_FAILED).then_some(table.cast())
    }
}

/// The kernel's id of this thread, asked for once.
///
/// A system call would take longer than the timed range.
fn thread() -> u32 {
    thread_local!(static THREAD: Cell<u32> = const { Cell::new(0) });
    // SAFETY: it takes nothing and cannot fail.
    let ask = || unsafe { libc::gettid() } as u32;
    THREAD.with(|known| {
        if known.get() == 0 {
            known.set(ask());
        }
        known.get()
    })
}

fn keep(mut record: Raw) {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: the table is mapped permanently before any slot is filled; its first record is
    // touched as an atomic only, and each of the others only by the call that drew its number.
    unsafe {
        let count = AtomicU64::from_ptr(&raw mut (*table).at_ns);
        let number = count.fetch_add(1, Ordering::AcqRel) as usize + 1;
        if number <= CAPACITY {
            record.thread = thread();
            table.add(number).write(record);
        }
    }
}

const NOTHING: Raw = Raw {
    what: 0,
    thread: 0,
    at_ns: 0,
    domain: 0,
    string: 0,
    payload: 0,
    payload_type: 0,
    len: 0,
    text: [0; TEXT],
};

fn with_text(mut record: Raw, text: *const c_char) -> Raw {
    // SAFETY: NVTX is given C strings.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    let len = text.len().min(TEXT);
    record.text[..len].copy_from_slice(&text[..len]);
    Raw { len: len as u32, ..record }
}

fn handle() -> u64 {
    HANDLES.fetch_add(1, Ordering::Relaxed) + 1
}

extern "C" fn create(name: *const c_char) -> u64 {
    let domain = handle();
    keep(with_text(Raw { what: 1, at_ns: now_ns(), domain, ..NOTHING }, name));
    domain
}

extern "C" fn register(domain: u64, text: *const c_char) -> u64 {
    let string = handle();
    keep(with_text(Raw { what: 2, at_ns: now_ns(), domain, string, ..NOTHING }, text));
    string
}

/// The attributes of an event, as NVTX's header lays them out.
#[repr(C)]
struct Event {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: u64,
}

/// The message is a C string.
const ASCII: i32 = 1;
/// The message is a registered string.
const REGISTERED: i32 = 3;

extern "C" fn name_thread(thread: u32, name: *const c_char) {
    keep(with_text(Raw { what: 5, at_ns: now_ns(), string: thread.into(), ..NOTHING }, name));
}

extern "C" fn push(domain: u64, event: &Event) -> c_int {
    let at_ns = now_ns();
    let string = if event.message_type == REGISTERED { event.message } else { 0 };
    let payload_type = event.payload_type as u32;
    let mut record = Raw { what: 3, at_ns, domain, string, payload: event.payload, payload_type, ..NOTHING };
    if event.message_type == ASCII {
        record = with_text(record, event.message as *const c_char);
    }
    keep(record);
    0
}

extern "C" fn pop(domain: u64) -> c_int {
    keep(Raw { what: 4, at_ns: now_ns(), domain, ..NOTHING });
    0
}

#[repr(C)]
struct Callbacks {
    size: usize,
    module_table: extern "C" fn(c_uint, *mut *const *mut *const c_void, *mut c_uint) -> c_int,
}

/// NVTX calls this when it has loaded this library; the result 0 means that it is not wanted.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjectionNvtx2(export_table: extern "C" fn(u32) -> *const c_void) -> c_int {
    let Some(table) = open() else { return 0 };
    TABLE.store(table, Ordering::Release);
    let slots = [
        (1, 14, name_thread as *const c_void),
        (5, 4, push as *const c_void),
        (5, 5, pop as *const c_void),
        (5, 10, register as *const c_void),
        (5, 12, create as *const c_void),
    ];
    // SAFETY: table 1 of NVTX is this; module 1 has the functions without a domain, module 5 those
    // of domains, and their slots stand at their callback ids.
    unsafe {
        let callbacks = export_table(1).cast::<Callbacks>();
        for (module, id, function) in slots {
            let (mut table, mut count) = (ptr::null(), 0);
            if callbacks.is_null() || ((*callbacks).module_table)(module, &raw mut table, &raw mut count) == 0
            {
                return 0;
            }
            if id >= count as usize {
                return 0;
            }
            **table.add(id) = function;
        }
    }
    1
}
