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
//! at each look. It is a part of the memory of its process ([`arena`](super::arena)).

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::arena::{Arena, Part};
use super::bell::Bell;
use super::peer::PeerProcess;
use super::sleep;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{LaneId, LaneTerms, PAIR_SLOT_BYTES, PAIR_SLOTS, Readers, SHARED_SLOT_BYTES, SHARED_SLOTS};
use crate::sys::shared::{self, Access, Mapping};
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
pub(crate) const CALLS_KEPT: u64 = CALLS - 1;
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
        let size = pair_data.checked_add(pairs.checked_mul(pair_bytes)?)?.checked_next_multiple_of(PAGE)?;
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
    // Dropped before the part that it maps.
    mapping: Mapping,
    home: Home,
}

/// Whose memory it is a part of.
enum Home {
    /// Of this process's.
    Own(Part),
    /// Of this process's, mapped once more.
    Again(Arc<RankMemory>),
    /// Of a peer process's.
    Peer(Arc<PeerProcess>),
    /// Of nobody's else.
    #[cfg(test)]
    Private,
}

impl fmt::Debug for RankMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankMemory({} rank {}, {})", self.identity.comm, self.identity.rank, self.transport())
    }
}

impl RankMemory {
    /// Takes a part of `arena` for this rank, which peers in other processes can map.
    ///
    /// # Errors
    /// `System` if the kernel refuses.
    pub fn shared(identity: Identity, layout: Layout, arena: &Arc<Arena>) -> Result<Arc<Self>> {
        let part = arena.part(layout.size as u64)?;
        let mapping = Mapping::part(arena.memfd(), part.at(), layout.size, Access::ReadWrite)?;
        Ok(Self::own(identity, layout, mapping, Home::Own(part)))
    }

    /// Creates memory that no other process can map.
    #[cfg(test)]
    pub fn private(identity: Identity, layout: Layout) -> Result<Arc<Self>> {
        Ok(Self::own(identity, layout, Mapping::private(layout.size)?, Home::Private))
    }

    fn own(identity: Identity, layout: Layout, mapping: Mapping, home: Home) -> Arc<Self> {
        let made = Self { identity, layout, mapping, home };
        for (at, word) in made.identity_words().into_iter().enumerate() {
            made.mapping.u64_at(AT_IDENTITY + 8 * at).store(word, Ordering::Relaxed);
        }
        made.mapping.u64_at(AT_MAGIC).store(MAGIC, Ordering::Release);
        Arc::new(made)
    }

    /// Maps the memory of a rank of another process, which begins at byte `at` of that process's,
    /// if it is what this rank expects.
    ///
    /// # Errors
    /// `Usage` with a description of what is wrong with the memory; `System` if the kernel refuses.
    pub fn of_peer(
        identity: Identity,
        layout: Layout,
        peer: &Arc<PeerProcess>,
        at: u64,
    ) -> Result<Arc<Self>> {
        let refuse = |what: String| {
            Error::new(ErrorKind::Usage, what)
                .with_peer(identity.rank)
                .hint("run the same version of ccl with the same settings on all ranks")
        };
        let end = at.checked_add(layout.size as u64).filter(|_| at.is_multiple_of(PAGE as u64));
        let end = end.ok_or_else(|| refuse(format!("a peer's memory begins at byte {at}")))?;
        shared::check_sealed(peer.memfd(), end).map_err(|e| e.with_peer(identity.rank))?;
        let mapping = Mapping::part(peer.memfd(), at, layout.size, Access::ReadWrite)?;
        let made = Self { identity, layout, mapping, home: Home::Peer(Arc::clone(peer)) };
        let magic = made.mapping.u64_at(AT_MAGIC).load(Ordering::Acquire);
        let found: [u64; 6] =
            std::array::from_fn(|at| made.mapping.u64_at(AT_IDENTITY + 8 * at).load(Ordering::Relaxed));
        // All zero: the rank has given it back. It has failed while this one was still in init, and
        // this one hears why as soon as its failure gossip runs.
        let is_given_back = found == [0; 6];
        if !is_given_back && (magic != MAGIC || found != made.identity_words()) {
            let expected = made.identity_words();
            return Err(refuse(format!(
                "a peer's memory says {magic:x} {found:x?}, not {MAGIC:x} {expected:x?}"
            )));
        }
        Ok(Arc::new(made))
    }

    /// Maps the memory of a rank of this process once more, as if it were another's.
    ///
    /// # Errors
    /// `System` if the kernel refuses.
    pub fn again(of: &Arc<Self>) -> Result<Arc<Self>> {
        let Home::Own(part) = &of.home else { return Ok(Arc::clone(of)) };
        let mapping = Mapping::part(part.arena().memfd(), part.at(), of.layout.size, Access::ReadWrite)?;
        let home = Home::Again(Arc::clone(of));
        Ok(Arc::new(Self { identity: of.identity, layout: of.layout, mapping, home }))
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
    /// `InProcess` if it is this process's own, mapped once; else `Shm`.
    #[must_use]
    pub const fn transport(&self) -> TransportKind {
        match self.home {
            Home::Again(_) | Home::Peer(_) => TransportKind::Shm,
            _ => TransportKind::InProcess,
        }
    }
    /// Where own memory begins in the memory of this process.
    #[must_use]
    pub fn at(&self) -> Option<u64> {
        match &self.home {
            Home::Own(part) => Some(part.at()),
            _ => None,
        }
    }
    /// The process of a peer in another one.
    #[must_use]
    pub const fn peer(&self) -> Option<&Arc<PeerProcess>> {
        match &self.home {
            Home::Peer(peer) => Some(peer),
            _ => None,
        }
    }
    /// All ranks have finished: none uses this own memory any more.
    pub fn finished(&self) {
        if let Home::Own(part) = &self.home {
            part.finished();
        }
    }
    /// The doorbell that wakes own drivers that sleep on descriptors.
    pub(crate) fn bell(&self) -> Option<&Bell> {
        match &self.home {
            Home::Own(part) => Some(part.arena().bell()),
            _ => None,
        }
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
            sleep::ON_SOCKETS => self.ring(),
            _ => {}
        }
    }
    fn ring(&self) {
        match &self.home {
            Home::Own(part) => part.arena().bell().doorbell().notify(),
            Home::Peer(peer) => peer.doorbell().notify(),
            Home::Again(own) => own.ring(),
            #[cfg(test)]
            Home::Private => {}
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
            assert_eq!(ranges.last().unwrap().1.next_multiple_of(PAGE), layout.size());
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
        let memory = RankMemory::private(id(0), Layout::new(2, 1).unwrap()).unwrap();
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
        let memory = RankMemory::private(id(0), Layout::new(2, 1).unwrap()).unwrap();
        memory.set_descriptor([3; 4]);
        assert_eq!((memory.descriptor(0), memory.descriptor(1)), (Some([3; 4]), None));
    }

    #[cfg(not(any(miri, loom)))]
    mod processes {
        use std::os::fd::{BorrowedFd, OwnedFd};

        use super::*;
        use crate::sys::process;

        fn received(fd: BorrowedFd<'_>) -> OwnedFd {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap()
        }

        #[test]
        fn a_peers_memory_must_be_the_one_expected() {
            let layout = Layout::new(3, 2).unwrap();
            let arena = Arena::new().unwrap();
            let first = RankMemory::shared(id(0), layout, &arena).unwrap();
            let memory = RankMemory::shared(id(1), layout, &arena).unwrap();
            assert_eq!((first.at(), memory.at()), (Some(0), Some(layout.size() as u64)));
            let process = PeerProcess::with(received(arena.memfd()));
            let map_at = |identity, layout, at| RankMemory::of_peer(identity, layout, &process, at);
            let map = |identity, layout: Layout| map_at(identity, layout, memory.at().unwrap());
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
            for at in [1, 64, u64::MAX - 4095] {
                let said = map_at(id(1), layout, at).unwrap_err().to_string();
                assert!(said.contains(&format!("begins at byte {at}")), "{said}");
            }
            assert!(map_at(id(1), layout, 1 << 60).unwrap_err().to_string().contains("bytes, not"));
            memory.mapping.u64_at(AT_IDENTITY).store(VERSION + 1, Ordering::Relaxed);
            assert!(refused(id(1), layout).to_string().contains("same version"));
            let at = memory.at().unwrap();
            drop((peer, memory));
            let peer = map_at(id(1), layout, at).unwrap();
            assert_eq!(peer.descriptor(0), None, "a rank that has left had the same memory");
        }

        #[test]
        fn a_sparse_memory_costs_what_is_touched() {
            let layout = Layout::new(1024, 16).unwrap();
            let arena = Arena::new().unwrap();
            let memory = RankMemory::shared(id(0), layout, &arena).unwrap();
            let blocks = || rustix::fs::fstat(arena.memfd()).unwrap().st_blocks;
            assert!(layout.size() > 1 << 30 && blocks() * 512 <= 8192, "{} blocks", blocks());
            drop(memory);
            assert_eq!(blocks(), 0);
        }

        #[test]
        fn a_killed_rank_is_dead_although_its_forked_child_lives() {
            let layout = Layout::new(2, 1).unwrap();
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let (hold, release) = rustix::pipe::pipe().unwrap();
            let linger = || rustix::io::read(&hold, &mut [0; 1]).map_or(1, |_| 0);
            let pid = process::fork(|| {
                let arena = Arena::new().unwrap();
                let _memory = RankMemory::shared(id(1), layout, &arena).unwrap();
                // The descriptor is sent twice, as if to two peers. The lock must survive that.
                for _ in 0..2 {
                    crate::sys::unix::send_with(&theirs, b"x", &[arena.memfd()]).unwrap();
                }
                process::fork(linger);
                linger()
            });
            let mut fds = Vec::new();
            while fds.len() < 2 {
                let _ = crate::sys::unix::recv_with(&ours, &mut [0; 1], &mut fds);
                std::thread::yield_now();
            }
            let peers: Vec<_> = fds.into_iter().map(PeerProcess::with).collect();
            assert!(peers.iter().all(|peer| RankMemory::of_peer(id(1), layout, peer, 0).is_ok()));
            assert!(!peers[0].is_unlocked());
            process::kill(pid);
            assert_eq!(process::wait(pid), None);
            assert!(peers[0].is_unlocked() && peers[1].is_unlocked());
            rustix::io::write(&release, b"x").unwrap();
        }
    }
}
