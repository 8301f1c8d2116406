//! The memory of one rank: what it shows to its local peers, and the lanes that it writes.
//!
//! ```text
//!   | identity | a spare line | sleeping | its latest calls | acks: one line per lane it READS |
//!   | headers: shared lane, pair lanes | data: shared lane, pair lanes |
//! ```
//!
//! A message lies in the memory of its writer, and readers look at the slot's header there. A
//! reader writes its progress into its own memory (its *ack line* of the lane). The writer reads
//! that line when it has run out of slots. So every line has one writer, except `sleeping`, which
//! is cleared by any thread that wakes the rank.
//!
//! The position of everything is a pure function of the number of ranks and channels. The file is
//! sparse: an unused lane costs nothing. Zeroed memory is an empty lane. Nothing that a peer wrote
//! is trusted before it is checked: identity and length when the memory is mapped, headers and acks
//! at each look.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::sleep;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{LaneId, LaneTerms, PAIR_SLOT_BYTES, PAIR_SLOTS, Readers, SHARED_SLOT_BYTES, SHARED_SLOTS};
use crate::sys::fds::{Doorbell, Fd};
use crate::sys::shared::{self, Access, Mapping, Owner};
use crate::types::{ChannelId, CommId, Rank, TransportKind};

const MAGIC: u64 = u64::from_le_bytes(*b"cclRANK\x01");
/// Must be raised when anything below changes its position or its meaning.
const VERSION: u64 = 2;
/// The sizes of slots, which peers must agree on.
const SLOTS: u64 = (SHARED_SLOTS as u64) << 56
    | (PAIR_SLOTS as u64) << 48
    | (SHARED_SLOT_BYTES as u64 / 64) << 24
    | (PAIR_SLOT_BYTES as u64 / 64);

const LINE: usize = 64;
const PAGE: usize = 4096;

const AT_MAGIC: usize = 0;
const AT_IDENTITY: usize = 8;
const AT_SLEEPING: usize = 2 * LINE;
const AT_LATCH: usize = 3 * LINE;
const AT_DESCRIPTOR: usize = 3 * LINE + 8;
const AT_ACKS: usize = 12 * LINE;

/// The number of descriptors that are kept. There are more of them than a lane has slots, so a rank
/// that runs ahead until its lanes are full still shows the calls in which other ranks wait. The
/// oldest one may be in the process of being overwritten.
pub const CALLS: u64 = 16;
/// The descriptors that can be read: the oldest may be being overwritten.
pub(super) const CALLS_KEPT: u64 = CALLS - 1;
const _: () = assert!(AT_DESCRIPTOR + 32 * CALLS as usize <= AT_ACKS && CALLS > SHARED_SLOTS as u64 + 1);

/// The position of a lane in its writer's memory, in bytes from the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneAt {
    /// The header lines, one per slot.
    pub headers: usize,
    /// The data of slot 0; the others follow.
    pub data: usize,
    /// The number and the size of its slots.
    pub terms: LaneTerms,
}

/// The position of everything in the memory of any rank of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    nranks: usize,
    channels: usize,
    shared_headers: usize,
    pair_headers: usize,
    shared_data: usize,
    pair_data: usize,
    size: usize,
}

impl Layout {
    /// The layout for `nranks` ranks, with `channels` channels for collectives and one more for
    /// send and receive.
    ///
    /// # Errors
    /// `Usage` if the layout does not fit into half of the address space.
    pub fn new(nranks: u32, channels: u16) -> Result<Self> {
        Self::checked(nranks as usize, usize::from(channels)).ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("{nranks} ranks with {channels} channels need more shared memory than can be mapped"),
            )
        })
    }

    fn checked(nranks: usize, channels: usize) -> Option<Self> {
        let pairs = nranks.checked_mul(channels.checked_add(1)?)?;
        let acks = nranks.checked_mul(channels.checked_add(2)?)?.checked_mul(LINE)?;
        let shared_headers = AT_ACKS.checked_add(acks)?;
        let pair_headers = shared_headers.checked_add(SHARED_SLOTS as usize * LINE)?;
        let headers_end = pair_headers.checked_add(pairs.checked_mul(PAIR_SLOTS as usize * LINE)?)?;
        let shared_data = headers_end.checked_next_multiple_of(PAGE)?;
        let pair_data = shared_data.checked_add(SHARED_SLOTS as usize * SHARED_SLOT_BYTES as usize)?;
        let pair_bytes = PAIR_SLOTS as usize * PAIR_SLOT_BYTES as usize;
        let size = pair_data.checked_add(pairs.checked_mul(pair_bytes)?)?;
        (size <= isize::MAX as usize / 2).then_some(Self {
            nranks,
            channels,
            shared_headers,
            pair_headers,
            shared_data,
            pair_data,
            size,
        })
    }

    /// The size of the memory in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The index of a pair lane among the lanes to one peer. Panics if there is no such channel.
    fn channel(&self, channel: ChannelId) -> usize {
        let at = if channel == ChannelId::P2P { self.channels } else { usize::from(channel.0) };
        assert!(at < self.channels || channel == ChannelId::P2P, "channel {channel} of {}", self.channels);
        at
    }

    /// The position of a lane in its writer's memory. Panics if there is no such rank or channel.
    #[must_use]
    pub fn lane(&self, lane: LaneId) -> LaneAt {
        let terms = lane.terms();
        match lane.readers {
            Readers::Group(_) => LaneAt { headers: self.shared_headers, data: self.shared_data, terms },
            Readers::One(to) => {
                assert!(to.index() < self.nranks, "rank {to} of {}", self.nranks);
                let pair = to.index() * (self.channels + 1) + self.channel(lane.channel);
                LaneAt {
                    headers: self.pair_headers + pair * terms.slots as usize * LINE,
                    data: self.pair_data + pair * terms.slots as usize * terms.slot_bytes as usize,
                    terms,
                }
            }
        }
    }

    /// The position at which a reader acknowledges the messages of a lane of `from`. Panics if
    /// there is no such rank or channel.
    #[must_use]
    pub fn ack(&self, from: Rank, lane: LaneId) -> usize {
        assert!(from.index() < self.nranks, "rank {from} of {}", self.nranks);
        let at = match lane.readers {
            Readers::Group(_) => 0,
            Readers::One(_) => 1 + self.channel(lane.channel),
        };
        AT_ACKS + (from.index() * (self.channels + 2) + at) * LINE
    }
}

/// The communicator and the rank to which a memory belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The communicator.
    pub comm: CommId,
    /// The rank.
    pub rank: Rank,
}

/// The memory of one rank: this process's own, or a peer's.
pub struct RankMemory {
    identity: Identity,
    layout: Layout,
    mapping: Mapping,
    /// The only descriptor of the file. No other descriptor of an own file may ever be opened in
    /// this process, because closing it would release the alive lock.
    memfd: Option<Fd>,
    doorbell: Option<Doorbell>,
    transport: TransportKind,
}

impl fmt::Debug for RankMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankMemory({} rank {}, {})", self.identity.comm, self.identity.rank, self.transport)
    }
}

impl RankMemory {
    /// Creates this rank's memory as a file that peers in other processes can map, and takes its
    /// alive lock. `bell`: whether the rank will ever sleep on sockets too, and so needs a
    /// doorbell.
    ///
    /// # Errors
    /// `System` if the kernel refuses.
    pub fn shared(identity: Identity, layout: Layout, bell: bool) -> Result<Arc<Self>> {
        let fd =
            shared::sealed_memfd(&format!("ccl-{}-{}", identity.comm, identity.rank), layout.size as u64)?;
        let fd = Fd::new(fd);
        let mapping = Mapping::new(&fd, layout.size, Access::ReadWrite)?;
        shared::lock_alive(&fd)?;
        Self::own(identity, layout, mapping, Some(fd), bell)
    }

    /// Creates memory without a file, which no other process can map.
    #[cfg(test)]
    pub fn private(identity: Identity, layout: Layout, bell: bool) -> Result<Arc<Self>> {
        Self::own(identity, layout, Mapping::private(layout.size)?, None, bell)
    }

    fn own(
        identity: Identity,
        layout: Layout,
        mapping: Mapping,
        memfd: Option<Fd>,
        bell: bool,
    ) -> Result<Arc<Self>> {
        let doorbell = if bell { Some(Doorbell::new()?) } else { None };
        let made = Self { identity, layout, mapping, memfd, doorbell, transport: TransportKind::InProcess };
        for (at, word) in made.identity_words().into_iter().enumerate() {
            made.mapping.u64_at(AT_IDENTITY + 8 * at).store(word, Ordering::Relaxed);
        }
        made.mapping.u64_at(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(Arc::new(made))
    }

    /// Maps the memory that a peer sent, if it is what this rank expects.
    ///
    /// # Errors
    /// `Usage` with a description of what is wrong with the memory; `System` if the kernel refuses.
    pub fn of_peer(
        identity: Identity,
        layout: Layout,
        memfd: OwnedFd,
        doorbell: Option<OwnedFd>,
    ) -> Result<Arc<Self>> {
        shared::check_sealed(&memfd, layout.size as u64).map_err(|e| e.with_peer(identity.rank))?;
        let mapping = Mapping::new(&memfd, layout.size, Access::ReadWrite)?;
        let doorbell = doorbell.map(Doorbell::received).transpose()?;
        let memfd = Some(Fd::new(memfd));
        let made = Self { identity, layout, mapping, memfd, doorbell, transport: TransportKind::Shm };
        let magic = made.mapping.u64_at(AT_MAGIC).load(Ordering::Acquire);
        let found: [u64; 6] =
            std::array::from_fn(|at| made.mapping.u64_at(AT_IDENTITY + 8 * at).load(Ordering::Relaxed));
        if magic != MAGIC || found != made.identity_words() {
            let what = format!(
                "a peer's memory says {magic:x} {found:x?}, not {MAGIC:x} {:x?}",
                made.identity_words()
            );
            return Err(Error::new(ErrorKind::Usage, what)
                .with_peer(identity.rank)
                .hint("run the same version of ccl with the same settings on all ranks"));
        }
        Ok(Arc::new(made))
    }

    fn identity_words(&self) -> [u64; 6] {
        [
            VERSION,
            self.identity.comm.0,
            u64::from(self.identity.rank.0),
            self.layout.nranks as u64,
            self.layout.channels as u64,
            SLOTS,
        ]
    }

    /// The communicator and the rank to which the memory belongs.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }
    /// The positions of everything in it.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }
    /// `Shm` if it was mapped from another process, else `InProcess`.
    #[must_use]
    pub const fn transport(&self) -> TransportKind {
        self.transport
    }
    /// The descriptor to send to a peer in another process. It must be sent as it is: if a
    /// duplicate were made and closed, the alive lock would be lost.
    #[must_use]
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }
    /// The doorbell that wakes the rank while it sleeps on sockets too.
    #[must_use]
    pub const fn doorbell(&self) -> Option<&Doorbell> {
        self.doorbell.as_ref()
    }

    /// Publishes the call that this rank works on now. The descriptors of earlier calls stay for a
    /// while. Only the rank's driver writes here.
    pub fn set_descriptor(&self, words: [u64; 4]) {
        let latch = self.mapping.u64_at(AT_LATCH);
        let next = latch.load(Ordering::Relaxed).wrapping_add(1);
        // The oldest descriptor is overwritten while the latch points to the newest. The fence
        // keeps these stores after the latch's last store, so a reader that sees any of them also
        // sees that the latch has moved.
        fence(Ordering::Release);
        for (at, word) in words.into_iter().enumerate() {
            self.copy(next, at).store(word, Ordering::Relaxed);
        }
        latch.store(next, Ordering::Release);
    }
    /// The descriptor published `back` calls before the latest one. `None` if there is none, if it
    /// has been overwritten, or if new ones are published faster than they can be read.
    #[must_use]
    pub fn descriptor(&self, back: u64) -> Option<[u64; 4]> {
        let latch = self.mapping.u64_at(AT_LATCH);
        for _ in 0..100 {
            let now = latch.load(Ordering::Acquire);
            let wanted = now.checked_sub(back).filter(|wanted| *wanted > 0)?;
            let words = std::array::from_fn(|at| self.copy(wanted, at).load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            // The descriptor after the latch's may be being written now.
            let oldest = latch.load(Ordering::Relaxed).saturating_add(2).saturating_sub(CALLS);
            if wanted >= oldest {
                return Some(words);
            }
        }
        None
    }
    /// The descriptors that the rank published and that are still kept, the latest first.
    pub fn calls(&self) -> impl Iterator<Item = [u64; 4]> + '_ {
        (0..CALLS_KEPT).map_while(|back| self.descriptor(back))
    }
    fn copy(&self, latch: u64, at: usize) -> &AtomicU64 {
        self.mapping.u64_at(AT_DESCRIPTOR + 32 * (latch % CALLS) as usize + 8 * at)
    }

    /// The word that says whether the rank's driver sleeps, and how.
    pub(crate) fn sleeping(&self) -> &AtomicU32 {
        self.mapping.u32_at(AT_SLEEPING)
    }
    /// Wakes the rank's driver if it sleeps. What the driver shall find must be stored before.
    pub fn wake_if_asleep(&self) {
        match sleep::look(self.sleeping()) {
            sleep::ON_WORD => crate::sys::futex::wake_one(self.sleeping()),
            sleep::ON_SOCKETS => {
                if let Some(bell) = &self.doorbell {
                    bell.notify();
                }
            }
            _ => {}
        }
    }

    /// Whether the rank's process is gone: its alive lock is free. Own memory is never dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        match (&self.memfd, self.transport) {
            (Some(fd), TransportKind::Shm) => shared::owner(fd).is_ok_and(|owner| owner == Owner::None),
            _ => false,
        }
    }

    #[cfg(test)]
    pub(super) const fn mapping(&self) -> &Mapping {
        &self.mapping
    }
    /// The first byte, for links. They keep the `Arc` as long as they use addresses in the memory.
    pub(super) const fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::GroupId;

    fn id(rank: u32) -> Identity {
        Identity { comm: CommId(7), rank: Rank(rank) }
    }

    #[test]
    fn nothing_overlaps_in_a_layout() {
        for (nranks, channels) in [(1, 1), (2, 2), (5, 3), (9, 16)] {
            let layout = Layout::new(nranks, channels).unwrap();
            let channel_ids = || (0..channels).map(ChannelId).chain([ChannelId::P2P]);
            let mut ranges = vec![(0, AT_ACKS)];
            let mut lane = |id: LaneId| {
                let at = layout.lane(id);
                assert!(
                    at.terms.slots.is_power_of_two()
                        && at.headers.is_multiple_of(64)
                        && at.data.is_multiple_of(4096)
                );
                ranges.push((at.headers, at.headers + at.terms.slots as usize * 64));
                ranges.push((at.data, at.data + (at.terms.slots * at.terms.slot_bytes) as usize));
            };
            let shared = LaneId::shared(GroupId(0));
            lane(shared);
            for (rank, channel) in (0..nranks).flat_map(|r| channel_ids().map(move |c| (Rank(r), c))) {
                lane(LaneId { readers: Readers::One(rank), channel });
            }
            for from in (0..nranks).map(Rank) {
                let ack = layout.ack(from, shared);
                ranges.push((ack, ack + 64));
                for channel in channel_ids() {
                    let ack = layout.ack(from, LaneId { readers: Readers::One(Rank(0)), channel });
                    ranges.push((ack, ack + 64));
                }
            }
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "{nranks} ranks, {channels} channels");
            assert_eq!(ranges.last().unwrap().1, layout.size());
        }
    }

    #[test]
    fn a_layout_that_cannot_be_mapped_is_refused() {
        assert_eq!(Layout::new(u32::MAX, u16::MAX).unwrap_err().kind, ErrorKind::Usage);
        assert!(Layout::checked(usize::MAX, 1).is_none());
        assert!(Layout::new(4096, 16).is_ok());
    }

    #[test]
    fn a_descriptor_is_read_whole_while_it_changes() {
        let memory = RankMemory::private(id(0), Layout::new(2, 1).unwrap(), false).unwrap();
        assert_eq!(memory.descriptor(0), None);
        let rounds = if cfg!(miri) { 50 } else { 50_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=rounds).for_each(|n| memory.set_descriptor([n; 4])));
            let mut last = 0;
            while last < rounds {
                if let Some(words) = memory.descriptor(0) {
                    assert!(words.iter().all(|&w| w == words[0] && w >= last), "{words:?}");
                    last = words[0];
                }
                // Older descriptors, too, are either read whole or not at all.
                let older = memory.descriptor(CALLS / 2);
                assert!(older.is_none_or(|words| words.iter().all(|&w| w == words[0])), "{older:?}");
                std::thread::yield_now();
            }
        });
        for back in 0..CALLS - 1 {
            assert_eq!(memory.descriptor(back), Some([rounds - back; 4]));
        }
        assert_eq!(memory.descriptor(CALLS - 1), None, "the next is written there");
    }

    #[test]
    fn a_rank_of_few_calls_tells_no_more() {
        let memory = RankMemory::private(id(0), Layout::new(2, 1).unwrap(), false).unwrap();
        memory.set_descriptor([3; 4]);
        assert_eq!((memory.descriptor(0), memory.descriptor(1)), (Some([3; 4]), None));
    }

    #[cfg(not(miri))]
    mod processes {
        use super::*;
        use crate::sys::process;

        fn received(fd: BorrowedFd<'_>) -> OwnedFd {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap()
        }

        #[test]
        fn a_peers_memory_must_be_the_one_expected() {
            let layout = Layout::new(3, 2).unwrap();
            let memory = RankMemory::shared(id(1), layout, true).unwrap();
            let map = |identity, layout| {
                let bell = received(memory.doorbell().unwrap().as_fd());
                RankMemory::of_peer(identity, layout, received(memory.memfd().unwrap()), Some(bell))
            };
            let peer = map(id(1), layout).unwrap();
            assert_eq!(peer.transport(), TransportKind::Shm);
            memory.set_descriptor([9; 4]);
            assert_eq!(peer.descriptor(0), Some([9; 4]));
            let refused = |identity, layout| map(identity, layout).unwrap_err();
            assert!(refused(id(2), layout).to_string().contains("memory says"));
            assert!(
                refused(Identity { comm: CommId(8), ..id(1) }, layout).to_string().contains("memory says")
            );
            assert!(refused(id(1), Layout::new(4, 2).unwrap()).to_string().contains("bytes"));
            memory.mapping.u64_at(AT_IDENTITY).store(VERSION + 1, Ordering::Relaxed);
            assert!(refused(id(1), layout).to_string().contains("same version"));
        }

        #[test]
        fn a_sparse_memory_costs_what_is_touched() {
            let layout = Layout::new(1024, 16).unwrap();
            let memory = RankMemory::shared(id(0), layout, false).unwrap();
            let stat = rustix::fs::fstat(memory.memfd().unwrap()).unwrap();
            assert!(stat.st_size > 1 << 30 && stat.st_blocks * 512 <= 8192, "{} blocks", stat.st_blocks);
        }

        #[test]
        fn a_killed_rank_is_dead_although_its_forked_child_lives() {
            let layout = Layout::new(2, 1).unwrap();
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let (hold, release) = rustix::pipe::pipe().unwrap();
            let linger = || rustix::io::read(&hold, &mut [0; 1]).map_or(1, |_| 0);
            let pid = process::fork(|| {
                let memory = RankMemory::shared(id(1), layout, false).unwrap();
                // The descriptor is sent twice, as if to two peers. The lock must survive that.
                for _ in 0..2 {
                    crate::sys::unix::send_with(&theirs, b"x", &[memory.memfd().unwrap()]).unwrap();
                }
                process::fork(linger);
                linger()
            });
            let mut fds = Vec::new();
            while fds.len() < 2 {
                let _ = crate::sys::unix::recv_with(&ours, &mut [0; 1], &mut fds);
                std::thread::yield_now();
            }
            let peers: Vec<_> =
                fds.into_iter().map(|fd| RankMemory::of_peer(id(1), layout, fd, None).unwrap()).collect();
            assert!(!peers[0].is_dead());
            process::kill(pid);
            assert_eq!(process::wait(pid), None);
            assert!(peers[0].is_dead() && peers[1].is_dead());
            rustix::io::write(&release, b"x").unwrap();
        }
    }
}
