//! The two ends of a lane over non-blocking TCP streams.
//!
//! ```text
//!   header, little-endian: magic u64 | number u64 | check u64 | len u32 | 36 zeros; `len` bytes
//! ```
//!
//! *Sender.* Message m lies in slot `m % PAIR_SLOTS`, with its header before its payload, until its
//! last byte is in the kernel. `moved` counts the messages that are completely in the kernel, in
//! order. A slot is free again once its message is below `moved`.
//!
//! *Receiver.* Each stream reads ahead into a small *stash*: headers, and small messages as a
//! whole. One call reads a large payload into its slot and the bytes after it into the stash. So a
//! message costs one system call, whether it is large or small. A stream stops reading while the
//! slot of its next message is not free. Then the kernel's buffers fill up, and the writer has to
//! stop.

use std::alloc::Layout;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::memory::{View, ViewMut};
use crate::plan::{PAIR_SLOTS, WIRE_SLOT_BYTES};
use crate::reactor::Interest;
use crate::sys::fds::Fd;
use crate::sys::tcp;
use crate::transport::{LinkFault, Message};
use crate::types::{Rank, TransportKind};

const HEADER: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"ccl.msg1");
const SLOTS: usize = PAIR_SLOTS as usize;
const STRIDE: usize = HEADER + WIRE_SLOT_BYTES as usize;
/// The bytes that a stream reads ahead: a header and a message of 4 KiB.
const STASH: usize = HEADER + 4096;
/// The writer checks the kernel's state of the connection once per this many refusals.
const REFUSALS_PER_LOOK: u32 = 16;

/// The slots of a lane: `PAIR_SLOTS` times a header and `WIRE_SLOT_BYTES`, allocated once.
#[derive(Debug)]
struct Slots {
    base: NonNull<u8>,
}

// SAFETY: only this value owns the allocation. Views of it must keep the contract of `View::new`.
unsafe impl Send for Slots {}

impl Slots {
    const LAYOUT: Layout = match Layout::from_size_align(SLOTS * STRIDE, 64) {
        Ok(layout) => layout,
        Err(_) => panic!("a size of a few hundred KiB fits"),
    };

    fn new() -> Self {
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(Self::LAYOUT) };
        Self { base }
    }
    fn at(&self, message: u64, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= STRIDE, "{range:?} of a slot of {STRIDE}");
        // SAFETY: the remainder and the assertion keep slot and range inside the allocation.
        unsafe { self.base.as_ptr().add((message % SLOTS as u64) as usize * STRIDE + range.start) }
    }
    fn bytes(&self, message: u64, range: Range<usize>) -> &[u8] {
        // SAFETY: inside the allocation and initialised (zeroed at first). Slices reach only slots
        // that the kernel reads or fills (published, or not yet complete). Views reach only slots
        // that the engine uses (reserved, or complete). So they never share bytes.
        unsafe { std::slice::from_raw_parts(self.at(message, &range), range.len()) }
    }
    fn bytes_mut(&mut self, message: u64, range: Range<usize>) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` excludes other slices.
        unsafe { std::slice::from_raw_parts_mut(self.at(message, &range), range.len()) }
    }
    /// The payload of a slot that belongs to the engine until `publish`.
    fn fill(&mut self, message: u64, len: usize) -> ViewMut {
        // SAFETY: nothing here touches a reserved slot's payload before `publish`.
        unsafe { ViewMut::new(self.at(message, &(HEADER..HEADER + len)), len) }
    }
    /// The payload of a slot that belongs to the engine until `release`.
    fn read(&self, message: u64, len: usize) -> View {
        // SAFETY: nothing here touches a complete message's slot before `release`.
        unsafe { View::new(self.at(message, &(HEADER..HEADER + len)), len) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::LAYOUT) }
    }
}

/// The fault of the link that an error of the kernel means.
fn fault_of(errno: Errno) -> LinkFault {
    match errno {
        Errno::CONNRESET
        | Errno::PIPE
        | Errno::TIMEDOUT
        | Errno::CONNABORTED
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::NETDOWN => LinkFault::Gone,
        other => LinkFault::System(std::io::Error::from(other).to_string()),
    }
}

#[derive(Debug)]
struct OutStream {
    fd: Arc<Fd>,
    /// The message whose bytes are sent next, and how many of its bytes have been sent.
    next: u64,
    gone: usize,
    /// The kernel's refusals in a row, and the age of the reader's last answer at the first.
    refusals: u32,
    since_ack_ms: u32,
}

/// The writing end of a lane.
#[derive(Debug)]
pub struct Sender {
    streams: Vec<OutStream>,
    slots: Slots,
    lens: [u32; SLOTS],
    reader: Rank,
    reserved: Option<u32>,
    posted: u64,
    moved: u64,
    fault: Option<LinkFault>,
}

impl Sender {
    /// The lane to `reader` over these connected, non-blocking streams, in order.
    #[must_use]
    pub fn new(streams: Vec<Arc<Fd>>, reader: Rank) -> Self {
        assert!(!streams.is_empty(), "a lane has a stream");
        let stream = |(next, fd)| OutStream { fd, next, gone: 0, refusals: 0, since_ack_ms: 0 };
        Self {
            streams: (0..).zip(streams).map(stream).collect(),
            slots: Slots::new(),
            lens: [0; SLOTS],
            reader,
            reserved: None,
            posted: 0,
            moved: 0,
            fault: None,
        }
    }

    pub(crate) fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        assert!(total <= WIRE_SLOT_BYTES, "a message of {total} bytes");
        if self.is_full() {
            self.pump()?;
        } else if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.is_full() {
            return Ok(None);
        }
        self.reserved = Some(total);
        Ok(Some(self.slots.fill(self.posted, total as usize)))
    }

    pub(crate) fn publish(&mut self, check: u64) {
        let len = self.reserved.take().expect("published what was reserved");
        let number = self.posted;
        let header = self.slots.bytes_mut(number, 0..HEADER);
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&number.to_le_bytes());
        header[16..24].copy_from_slice(&check.to_le_bytes());
        header[24..28].copy_from_slice(&len.to_le_bytes());
        self.lens[(number % SLOTS as u64) as usize] = len;
        self.posted += 1;
        // The message goes straight to the kernel, unless the kernel refused earlier bytes of the
        // stream. A fault is reported by the next call that can report it.
        let stream = (number % self.streams.len() as u64) as usize;
        if self.fault.is_none() && self.streams[stream].next == number {
            let _ = self.flush(stream);
        }
    }

    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        let mut any = false;
        for stream in 0..self.streams.len() {
            if let Some(fault) = &self.fault {
                return Err(fault.clone());
            }
            if self.streams[stream].next < self.posted {
                any |= self.flush(stream)?;
            }
        }
        Ok(any)
    }

    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }
    /// The same as `moved`: the reader's `done` does not travel back. The kernel delivers the bytes
    /// that it has taken, or reports a fault.
    pub(crate) const fn done(&self) -> u64 {
        self.moved
    }
    pub(crate) const fn slowest(&self) -> Rank {
        self.reader
    }
    #[expect(clippy::unused_self, reason = "the seam asks the link")]
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Socket
    }

    /// The descriptors to poll while the kernel is full: for room to write and the reader's end.
    pub fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        let blocked = self.streams.iter().filter(|stream| stream.next < self.posted);
        blocked.map(|stream| Interest { fd: stream.fd.as_raw_fd(), read: true, write: true })
    }
    pub(crate) fn sockets(&self) -> Vec<Weak<Fd>> {
        self.streams.iter().map(|stream| Arc::downgrade(&stream.fd)).collect()
    }

    const fn is_full(&self) -> bool {
        self.posted >= self.moved + SLOTS as u64
    }

    /// Gives the kernel as much of one stream's queue as it takes; whether it took anything.
    fn flush(&mut self, index: usize) -> Result<bool, LinkFault> {
        let pace = self.streams.len() as u64;
        let stream = &mut self.streams[index];
        let mut any = false;
        while stream.next < self.posted {
            let mut parts: ArrayVec<IoSlice<'_>, SLOTS> = ArrayVec::new();
            let mut offered = 0;
            let mut from = stream.gone;
            for message in (stream.next..self.posted).step_by(pace as usize) {
                let end = HEADER + self.lens[(message % SLOTS as u64) as usize] as usize;
                parts.push(IoSlice::new(self.slots.bytes(message, from..end)));
                offered += end - from;
                from = 0;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&stream.fd, &parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(taken) => {
                    any |= taken > 0;
                    stream.refusals = 0;
                    stream.gone += taken;
                    while stream.next < self.posted {
                        let end = HEADER + self.lens[(stream.next % SLOTS as u64) as usize] as usize;
                        if stream.gone < end {
                            break;
                        }
                        stream.gone -= end;
                        stream.next += pace;
                    }
                    if taken < offered {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if let Some(fault) = stream.refused() {
                        self.fault = Some(fault.clone());
                        return Err(fault);
                    }
                    break;
                }
                Err(errno) => {
                    let fault = fault_of(errno);
                    self.fault = Some(fault.clone());
                    return Err(fault);
                }
            }
        }
        // The `next` of a stream whose queue is empty lies beyond `posted`.
        let oldest = self.streams.iter().map(|stream| stream.next).min().unwrap_or(0);
        self.moved = oldest.min(self.posted);
        Ok(any)
    }
}

impl OutStream {
    /// Handles a full kernel buffer: returns a fault if the reader has left, has sent something, or
    /// has been silent for too long.
    fn refused(&mut self) -> Option<LinkFault> {
        let mut byte = [0];
        match rustix::net::recv(&self.fd, &mut byte, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Some(LinkFault::Gone),
            Ok(_) => return Some(LinkFault::Corrupt("the reader of a lane sent something".into())),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Some(fault_of(errno)),
        }
        self.refusals += 1;
        if self.refusals % REFUSALS_PER_LOOK != 1 {
            return None;
        }
        // The link has no clock, but the kernel has one. A connection of Unix sockets (in tests)
        // has no TCP_INFO.
        let info = tcp::info(&self.fd).ok()?;
        if self.refusals == 1 {
            self.since_ack_ms = info.since_ack_ms;
        }
        let silence_ms = info.since_ack_ms.saturating_sub(self.since_ack_ms);
        (info.unanswered() && u128::from(silence_ms) >= super::SILENCE.as_millis()).then_some(LinkFault::Gone)
    }
}

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
struct Body {
    check: u64,
    len: usize,
    filled: usize,
}

#[derive(Debug)]
struct InStream {
    fd: Arc<Fd>,
    /// The message whose bytes come next. If there is a body, its header has been read.
    next: u64,
    body: Option<Body>,
    stash: Box<[u8]>,
    /// Bytes in the stash; 0 while a body is incomplete.
    stashed: usize,
    end: Option<LinkFault>,
}

/// The reading end of a lane.
#[derive(Debug)]
pub struct Receiver {
    streams: Vec<InStream>,
    slots: Slots,
    /// Check and length of the complete message in each slot.
    ready: [Option<(u64, usize)>; SLOTS],
    writer: Rank,
    moved: u64,
    done: u64,
    fault: Option<LinkFault>,
}

impl Receiver {
    /// The lane from `writer` over these connected, non-blocking streams, in order.
    #[must_use]
    pub fn new(streams: Vec<Arc<Fd>>, writer: Rank) -> Self {
        assert!(!streams.is_empty(), "a lane has a stream");
        let stream = |(next, fd)| InStream {
            fd,
            next,
            body: None,
            stash: vec![0; STASH].into_boxed_slice(),
            stashed: 0,
            end: None,
        };
        Self {
            streams: (0..).zip(streams).map(stream).collect(),
            slots: Slots::new(),
            ready: [None; SLOTS],
            writer,
            moved: 0,
            done: 0,
            fault: None,
        }
    }

    /// The oldest complete message. All complete messages come before a fault that follows them.
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        if self.oldest().is_none() {
            self.check_fault()?;
            // Reads only this message's stream: the bytes of the others can stay in the kernel.
            self.read((self.done % self.streams.len() as u64) as usize, Some(self.done));
            self.count();
            self.check_fault()?;
        }
        let data = |(check, len)| Message { check, data: self.slots.read(self.done, len) };
        Ok(self.oldest().map(data))
    }

    pub(crate) fn release(&mut self) {
        let freed = self.ready[(self.done % SLOTS as u64) as usize].take();
        assert!(freed.is_some(), "released what was peeked");
        self.done += 1;
    }

    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        let mut any = false;
        for stream in 0..self.streams.len() {
            any |= self.read(stream, None);
        }
        self.count();
        self.check_fault()?;
        Ok(any)
    }

    pub(crate) const fn posted(&self) -> u64 {
        self.done + SLOTS as u64
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
    /// The rank at the other end.
    #[must_use]
    pub const fn writer(&self) -> Rank {
        self.writer
    }
    #[expect(clippy::unused_self, reason = "the seam asks the link")]
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Socket
    }

    /// The descriptors to poll while no message is ready: streams with room for their next message.
    pub fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        let open = self.streams.iter().filter(|s| s.end.is_none() && s.next < self.posted());
        open.map(|stream| Interest { fd: stream.fd.as_raw_fd(), read: true, write: false })
    }
    pub(crate) fn sockets(&self) -> Vec<Weak<Fd>> {
        self.streams.iter().map(|stream| Arc::downgrade(&stream.fd)).collect()
    }

    fn oldest(&self) -> Option<(u64, usize)> {
        self.ready[(self.done % SLOTS as u64) as usize]
    }
    fn count(&mut self) {
        while self.moved < self.posted() && self.ready[(self.moved % SLOTS as u64) as usize].is_some() {
            self.moved += 1;
        }
    }
    /// Returns a fault once it is due: a violation of the protocol at once, the end of a stream
    /// only when the next message should come from that stream.
    fn check_fault(&mut self) -> Result<(), LinkFault> {
        if self.fault.is_none() && self.oldest().is_none() {
            let next = &self.streams[(self.done % self.streams.len() as u64) as usize];
            let breach = |s: &&InStream| matches!(s.end, Some(LinkFault::Corrupt(_)));
            self.fault = self.streams.iter().find(breach).unwrap_or(next).end.clone();
        }
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Reads one stream until the kernel has no more bytes, there is no free slot, or message
    /// `until` is complete. Returns whether any bytes came.
    fn read(&mut self, index: usize, until: Option<u64>) -> bool {
        let (bound, pace) = (self.posted(), self.streams.len() as u64);
        let stream = &mut self.streams[index];
        let mut any = false;
        while stream.end.is_none() && stream.next < bound && until.is_none_or(|last| stream.next <= last) {
            match stream.body {
                None if stream.stashed >= HEADER => stream.begin(&mut self.slots),
                None => match stream.receive(None) {
                    Some(read) => any |= read,
                    None => break,
                },
                Some(body) if body.filled == body.len => {
                    self.ready[(stream.next % SLOTS as u64) as usize] = Some((body.check, body.len));
                    stream.next += pace;
                    stream.body = None;
                }
                Some(body) => {
                    let rest = HEADER + body.filled..HEADER + body.len;
                    match stream.receive(Some(self.slots.bytes_mut(stream.next, rest))) {
                        Some(read) => any |= read,
                        None => break,
                    }
                }
            }
        }
        any
    }
}

impl InStream {
    /// Reads into `rest` of the body, if given, and then into the stash. `None`: the kernel has
    /// nothing now; otherwise whether bytes came (none come at the end).
    fn receive(&mut self, rest: Option<&mut [u8]>) -> Option<bool> {
        let wanted = rest.as_ref().map_or(0, |rest| rest.len());
        let mut parts: ArrayVec<IoSliceMut<'_>, 2> = rest.into_iter().map(IoSliceMut::new).collect();
        parts.push(IoSliceMut::new(&mut self.stash[self.stashed..]));
        match rustix::io::readv(&self.fd, &mut parts) {
            Ok(0) => {
                self.end = Some(LinkFault::Gone);
                Some(false)
            }
            Ok(read) => {
                if let Some(body) = &mut self.body {
                    body.filled += read.min(wanted);
                }
                self.stashed += read.saturating_sub(wanted);
                Some(true)
            }
            Err(Errno::INTR) => Some(false),
            Err(Errno::AGAIN) => None,
            Err(errno) => {
                self.end = Some(fault_of(errno));
                Some(false)
            }
        }
    }

    /// Takes the header at the front of the stash, and as much of the body as has arrived.
    fn begin(&mut self, slots: &mut Slots) {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| self.stash[at + i]));
        let (magic, number, check, len) = (word(0), word(8), word(16), word(24));
        // The upper half of this word is reserved and zero, so a longer number is caught here too.
        let what = if magic != MAGIC {
            Some(format!("a header begins with {magic:#018x}"))
        } else if number != self.next {
            Some(format!("message {number} stands where {} is due", self.next))
        } else if len > u64::from(WIRE_SLOT_BYTES) {
            Some(format!("message {number} claims {len:#x} bytes of at most {WIRE_SLOT_BYTES:#x}"))
        } else if self.stash[32..HEADER].iter().any(|&byte| byte != 0) {
            Some(format!("message {number} has reserved bytes set"))
        } else {
            None
        };
        if let Some(what) = what {
            self.end = Some(LinkFault::Corrupt(what));
            return;
        }
        let len = len as usize;
        let filled = len.min(self.stashed - HEADER);
        slots
            .bytes_mut(self.next, HEADER..HEADER + filled)
            .copy_from_slice(&self.stash[HEADER..HEADER + filled]);
        self.stash.copy_within(HEADER + filled..self.stashed, 0);
        self.stashed -= HEADER + filled;
        self.body = Some(Body { check, len, filled });
    }
}

#[cfg(test)]
pub(crate) mod test_bytes {
    use super::{View, ViewMut};

    /// Fills a reserved slot.
    pub(crate) fn fill(view: ViewMut, bytes: &[u8]) {
        assert_eq!(view.len(), bytes.len());
        // SAFETY: tests call it between `reserve` and `publish`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), view.as_ptr(), bytes.len()) }
    }

    /// The bytes of a complete message.
    pub(crate) fn bytes_of(view: View) -> Vec<u8> {
        // SAFETY: tests call it between `peek` and `release`.
        unsafe { std::slice::from_raw_parts(view.as_ptr(), view.len()) }.to_vec()
    }
}

#[cfg(test)]
mod tests;
