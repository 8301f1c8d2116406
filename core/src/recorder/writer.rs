//! The writers' handles: a communicator's row, its links, ring buffers and peers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::cells::{self, LinkCell, OpWait};
use super::history::History;
use super::layout::{self, RowState, Table, comm, durations, header, link, link_id, op, peer};
use super::mapping::{Span, private};
use super::protocol::latch_write;
use super::ring::Events;
use super::slot_pool::{Pool, SlotPools};
use super::state::{Recorder, end, level_of, next_generation};
use super::words::MOST_OF_A_FAILURE;
use crate::clock::{Ns, Raw};
use crate::collective::Descriptor;
use crate::config::Settings;
use crate::types::{
    ChannelId, CollKind, CommId, Direction, JobId, Outline, Phase, Rank, TransportKind, TransportReason,
};

/// The communicator that a row describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommInfo<'a> {
    /// The communicator's id, equal on all ranks.
    pub id: CommId,
    /// The public job id.
    pub job: JobId,
    /// The name shown to users.
    pub name: &'a str,
    /// This rank.
    pub rank: Rank,
    /// The number of ranks.
    pub nranks: u32,
    /// This rank's number in the root communicator: the one that init made, of which this one is or
    /// descends.
    pub world: Rank,
}

/// A member of a communicator, and where its recorder and control socket are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer<'a> {
    /// The member's rank.
    pub rank: Rank,
    /// Its number in the root communicator.
    pub world: Rank,
    /// Its host.
    pub host: &'a str,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// The path of its recorder; empty if it has none.
    pub recorder: &'a str,
    /// The path of its control socket; empty if it has none.
    pub control: &'a str,
}

/// The row of one communicator and rank.
///
/// The op cells have one writer, the thread that holds the engine's lock. The other words may be
/// written from any thread.
pub struct CommRow {
    pub(super) recorder: Arc<Recorder>,
    words: Span<{ comm::WORDS }>,
    /// The durations of each kind of operation, from its first completion on.
    durations: [OnceLock<Durations>; CollKind::ALL.len()],
    /// When operations were called and ended, from the first completion on.
    pub(super) history: OnceLock<History>,
    /// The row in the table; `None` for private memory.
    pub(super) row: Option<usize>,
    pub(super) generation: u32,
    pub(super) me: Rank,
    id: CommId,
    /// Nanoseconds per tick, 32.32 fixed point.
    ns_per_tick: u64,
    /// The peer rows of the members. Its lock also guards words that are rarely written.
    peers: Mutex<Vec<usize>>,
}

/// The durations of one kind of operation, and their row; `None` for private memory.
pub(super) struct Durations {
    pub(super) words: Span<{ durations::WORDS }>,
    row: Option<usize>,
}

impl Recorder {
    /// Takes a row for a communicator.
    #[must_use]
    pub fn comm(self: &Arc<Self>, info: CommInfo<'_>) -> CommRow {
        let row = self.take(|rows| rows.comms.take());
        if row.is_none() && !self.is_stale() {
            self.header(header::WITHOUT_ROW).fetch_add(1, Ordering::Relaxed);
        }
        self.note_job(JobId(0), info.job);
        let words: Span<{ comm::WORDS }> = self.span(Table::Comms, row);
        let put = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        let generation = next_generation(&words[comm::STATE]);
        words[comm::STATE].store(RowState::Free as u64, Ordering::Relaxed);
        // A reader that sees a word of the new tenant also sees that the row was taken: readers
        // check the state again after they have read the row.
        std::sync::atomic::fence(Ordering::Release);
        // Words that are zero are not written: untouched pages cost no memory.
        for word in words.iter().skip(1) {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
        put(comm::ID, info.id.0);
        put(comm::JOB, info.job.0);
        put(comm::RANK, u64::from(info.rank.0) | u64::from(info.nranks) << 32);
        put(comm::WORLD, u64::from(info.world.0));
        put(comm::LEVEL, u64::from(self.level()));
        put(comm::MADE, crate::clock::raw().0);
        for (n, word) in layout::encode_text::<{ comm::NAME_WORDS }>(info.name).into_iter().enumerate() {
            put(comm::NAME + n, word);
        }
        let live = RowState::Live as u64 | u64::from(generation) << 32;
        words[comm::STATE].store(live, Ordering::Release);
        CommRow {
            recorder: Arc::clone(self),
            words,
            durations: Default::default(),
            history: OnceLock::new(),
            row,
            generation,
            me: info.rank,
            id: info.id,
            ns_per_tick: self.header(header::NS_PER_TICK).load(Ordering::Relaxed),
            peers: Mutex::default(),
        }
    }

    /// Takes a row, if one is free. In a forked child there is none: it records to private memory.
    pub(super) fn take<T>(&self, choose: impl FnOnce(&mut SlotPools) -> Option<T>) -> Option<T> {
        if self.is_stale() { None } else { choose(&mut self.lock()) }
    }

    pub(super) fn link_ended(&self, at: usize) {
        if !self.is_stale() {
            end(&self.span::<{ link_id::WORDS }>(Table::LinkIds, Some(at))[link_id::WHAT]);
            self.lock().links.give(at);
        }
    }

    /// The row of a table, or private memory of the same size, which is counted as overflow.
    pub(super) fn span<const N: usize>(&self, table: Table, row: Option<usize>) -> Span<N> {
        match row {
            Some(row) => self.memory.span(self.capacity.offset(table) + row * N * 8),
            None => {
                self.overflow(table);
                private()
            }
        }
    }

    pub(super) fn overflow(&self, table: Table) {
        self.header(header::overflow(table)).fetch_add(1, Ordering::Relaxed);
    }

    /// Stores a communicator's failure message and returns its reference.
    ///
    /// The reference is 0 once failure messages have used up their share: a program that fails
    /// again and again must not take the space for its peers' paths.
    fn failure_text(&self, text: &str) -> u64 {
        let end = text.len().min(MOST_OF_A_FAILURE);
        let end = (0..=end).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let text = &text[..end];
        let is_room = !self.is_stale() && {
            let mut rows = self.lock();
            rows.failure_bytes += text.len();
            rows.failure_bytes <= self.capacity.strings / 4
        };
        if is_room { self.string(text) } else { 0 }
    }

    /// The reference of a string, which is stored if it is new; 0 for an empty string, or if no
    /// space is left.
    pub(super) fn string(&self, text: &str) -> u64 {
        if text.is_empty() || self.is_stale() {
            return 0;
        }
        let mut rows = self.lock();
        if let Some(reference) = rows.strings.get(text) {
            return *reference;
        }
        let (at, end) = (rows.string_bytes, rows.string_bytes + text.len().next_multiple_of(8));
        if end > self.capacity.strings {
            drop(rows);
            self.overflow(Table::Strings);
            return 0;
        }
        let first = (self.capacity.offset(Table::Strings) + at) / 8;
        for (word, bytes) in self.memory.words()[first..].iter().zip(text.as_bytes().chunks(8)) {
            let mut full = [0; 8];
            full[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(full), Ordering::Relaxed);
        }
        rows.string_bytes = end;
        let reference = at as u64 | (text.len() as u64) << 32;
        rows.strings.insert(text.to_string(), reference);
        reference
    }
}

impl CommRow {
    /// Records that a collective was called. If no other is under way, it is under way now.
    ///
    /// `outline` says how it is shared out.
    #[inline]
    pub fn called(&self, descriptor: &Descriptor, outline: Option<Outline>, at: Raw) {
        let cell = self.cell(comm::COLL);
        if cell[op::CALLED].load(Ordering::Relaxed) == cell[op::COMPLETED].load(Ordering::Relaxed) {
            cells::op_fact(cell, descriptor, outline, None, at);
            cell[op::STARTED].store(descriptor.seq, Ordering::Relaxed);
        }
        cell[op::CALLED].store(descriptor.seq, Ordering::Release);
    }
    /// Records that a collective is under way that was called while another one was.
    #[inline]
    pub fn started(&self, descriptor: &Descriptor, outline: Option<Outline>, at: Raw) {
        let cell = self.cell(comm::COLL);
        cells::op_fact(cell, descriptor, outline, None, at);
        cell[op::STARTED].store(descriptor.seq, Ordering::Release);
    }
    /// Records that a collective failed; `error` is the number of its `ErrorKind`.
    ///
    /// The recorder stays as evidence.
    pub fn failed(&self, descriptor: &Descriptor, error: u8, at: Raw) {
        cells::op_failed(self.cell(comm::COLL), descriptor.seq, error, at);
        self.recorder.header(header::FAILED).fetch_add(1, Ordering::Release);
    }

    /// Records that the communicator ended by a failure.
    ///
    /// The record holds the error class, the blamed rank if all ranks agree on one, and the message
    /// that all ranks fail with.
    pub fn ended_by(&self, error: u8, blamed: Option<Rank>, text: &str, at: Raw) {
        let text = self.recorder.failure_text(text);
        self.words[comm::FAILED_TEXT].store(text, Ordering::Relaxed);
        self.words[comm::FAILED_AT].store(at.0, Ordering::Relaxed);
        // The local operation may have failed only because another rank's failure closed a
        // connection. The call returns the error that all ranks agreed on, so the cells get that
        // error.
        for cell in [comm::COLL, comm::P2P].map(|at| self.cell(at)) {
            if cell[op::FAILED].load(Ordering::Relaxed) != 0 {
                cell[op::ERROR].store(u64::from(error) + 1, Ordering::Release);
            }
        }
        let blamed = blamed.map_or(0, |rank| u64::from(rank.0) + 1);
        self.words[comm::FAILED].store((u64::from(error) + 1) | blamed << 32, Ordering::Release);
    }

    /// Records that init failed, as [`Self::ended_by`] does. The recorder stays as evidence until
    /// an init of this process succeeds, or begins in a new recorder.
    pub fn never_made(&self, error: u8, blamed: Option<Rank>, text: &str, at: Raw) {
        self.recorder.has_failed_init.store(true, Ordering::Relaxed);
        self.ended_by(error, blamed, text, at);
    }

    /// Records that the communicator failed between two operations. The recorder stays as evidence.
    pub fn broken(&self) {
        self.recorder.header(header::FAILED).fetch_add(1, Ordering::Release);
    }

    /// Records that a send or receive was called.
    ///
    /// `peer` is the rank on the other side. The descriptor's root is the sender.
    #[inline]
    pub fn p2p_called(&self, descriptor: &Descriptor, outline: Option<Outline>, peer: Rank, at: Raw) {
        let cell = self.cell(comm::P2P);
        cells::op_fact(cell, descriptor, outline, Some(peer), at);
        let called = cell[op::CALLED].load(Ordering::Relaxed) + 1;
        cell[op::STARTED].store(called, Ordering::Relaxed);
        cell[op::CALLED].store(called, Ordering::Release);
    }
    /// Records that a send or receive failed; `error` is the number of its `ErrorKind`.
    pub fn p2p_failed(&self, descriptor: &Descriptor, error: u8, at: Raw) {
        cells::op_failed(self.cell(comm::P2P), descriptor.seq, error, at);
        self.recorder.header(header::FAILED).fetch_add(1, Ordering::Release);
    }

    /// Selects the send or receive that is shown, of several under way: one that waits.
    pub fn p2p_under_way(&self, descriptor: &Descriptor, outline: Option<Outline>, peer: Rank, since: Raw) {
        cells::op_fact(self.cell(comm::P2P), descriptor, outline, Some(peer), since);
    }

    /// Records the wait of the collective under way; `None` if it does not wait.
    pub fn waits(&self, wait: Option<OpWait>) {
        cells::op_waits(self.cell(comm::COLL), wait);
    }
    /// Records the longest wait of the sends and receives under way; `None` if none waits.
    pub fn p2p_waits(&self, wait: Option<OpWait>) {
        cells::op_waits(self.cell(comm::P2P), wait);
    }

    /// The durations of one kind.
    #[inline]
    pub(super) fn durations(&self, kind: CollKind) -> &Durations {
        self.durations[kind as usize].get_or_init(|| self.durations_of(kind))
    }

    /// Ticks as nanoseconds.
    #[inline]
    pub(super) fn ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
    }

    #[cold]
    fn durations_of(&self, kind: CollKind) -> Durations {
        let (words, row) = self.take_row(Table::Durations, |rows| &mut rows.durations, kind as u64);
        Durations { words, row }
    }

    /// Takes a row of a table that belongs to this communicator; `kind` stands in its first word.
    pub(super) fn take_row<const N: usize>(
        &self,
        table: Table,
        pool: fn(&mut SlotPools) -> &mut Pool,
        kind: u64,
    ) -> (Span<N>, Option<usize>) {
        let recorder = &self.recorder;
        // Readers could not tell whose it is.
        let Some(row) = self.row else { return (private(), None) };
        let at = recorder.take(|rows| pool(rows).take());
        let words: Span<N> = recorder.span(table, at);
        words[0].store(RowState::Free as u64, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        for word in words.iter().skip(1).filter(|word| word.load(Ordering::Relaxed) != 0) {
            word.store(0, Ordering::Relaxed);
        }
        if at.is_some() {
            let what = RowState::Live as u64 | kind << 8 | (row as u64) << 16;
            words[0].store(what | u64::from(self.generation) << 32, Ordering::Release);
        }
        (words, at)
    }

    #[inline]
    pub(super) fn cell(&self, at: usize) -> &[AtomicU64] {
        &self.words[at..at + op::WORDS]
    }

    /// Records the user's note on where the program is; at most 88 bytes are kept.
    ///
    /// It is shown beside the operation.
    pub fn tag(&self, text: &str) {
        if self.recorder.is_stale() {
            return;
        }
        let tag: [u64; comm::TAG_WORDS] = layout::encode_text(text);
        // The lock makes this thread the only writer of the latch.
        let _one = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        latch_write(&self.words[comm::TAG_LATCH], &self.words[comm::TAG..], &tag);
    }

    /// Records when init gives up; `None` once init is over.
    pub fn init_until(&self, until: Option<Ns>) {
        self.words[comm::INIT_UNTIL].store(until.map_or(0, |until| until.0), Ordering::Release);
    }
    /// Records, on the root, how many ranks have not checked in.
    ///
    /// `runs` holds the lowest of them as ranges of first and last rank.
    pub fn absent(&self, count: u32, runs: &[(u32, u32)]) {
        let run = |at: usize| {
            runs.get(at).map_or(0, |(first, last)| u64::from(first & 0xffff) | u64::from(last - first) << 16)
        };
        self.words[comm::ABSENT].store(0, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        self.words[comm::ABSENT_MORE].store(run(1) | run(2) << 32, Ordering::Relaxed);
        self.words[comm::ABSENT]
            .store((u64::from(count) + 1) & 0xffff_ffff | run(0) << 32, Ordering::Release);
    }

    /// Records that a phase of init began.
    pub fn phase_began(&self, phase: Phase, at: Raw) {
        self.words[comm::PHASE_SINCE].store(at.0, Ordering::Relaxed);
        self.words[comm::PHASE].store(phase as u64 + 1, Ordering::Release);
    }
    /// Records that a phase ended after `duration`.
    pub fn phase(&self, phase: Phase, duration: Ns) {
        self.words[comm::PHASES + phase as usize].store(duration.0.saturating_add(1), Ordering::Relaxed);
        self.words[comm::PHASE].store(0, Ordering::Release);
    }
    /// Records a sign of life of the driver: before it sleeps and when it wakes.
    #[inline]
    pub fn driven(&self, at: Raw) {
        self.words[comm::DRIVEN].store(at.0, Ordering::Relaxed);
    }

    /// The current level of detail.
    #[inline]
    #[must_use]
    pub fn level(&self) -> u8 {
        self.words[comm::LEVEL].load(Ordering::Relaxed) as u8
    }
    /// Changes the level of detail.
    pub fn set_level(&self, level: u8) {
        self.words[comm::LEVEL].store(u64::from(level), Ordering::Relaxed);
    }
    /// Starts with the level of the communicator's settings.
    ///
    /// If that is the process's level, the row keeps its level, which a client may already have
    /// changed.
    pub fn begin_level(&self, settings: &Settings) {
        let level = level_of(settings);
        if level != self.recorder.made_level {
            self.set_level(level);
        }
    }
    /// Renames communicator and job where the row was made before the bootstrap agreed on them.
    pub fn set_identity(&mut self, id: CommId, job: JobId) {
        self.id = id;
        self.words[comm::ID].store(id.0, Ordering::Relaxed);
        let before = self.words[comm::JOB].swap(job.0, Ordering::AcqRel);
        self.recorder.note_job(JobId(before), job);
    }
    /// The recorder that the row belongs to.
    #[must_use]
    pub const fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Records the members and where they can be read, in place of an earlier list.
    pub fn peers(&self, peers: &[Peer<'_>]) {
        let recorder = &self.recorder;
        let Some(row) = self.row.filter(|_| !recorder.is_stale()) else { return };
        let mut mine = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.peers_ended(&mut mine);
        for member in peers {
            let at = recorder.take(|rows| rows.peers.take());
            let Some(at) = at else {
                recorder.overflow(Table::Peers);
                continue;
            };
            let words: Span<{ peer::WORDS }> = recorder.span(Table::Peers, Some(at));
            let put = |n: usize, value: u64| words[n].store(value, Ordering::Relaxed);
            put(peer::STATE, RowState::Free as u64);
            std::sync::atomic::fence(Ordering::Release);
            put(peer::RANK, u64::from(member.rank.0) | u64::from(member.pid) << 32);
            put(peer::HOST, recorder.string(member.host));
            put(peer::RECORDER, recorder.string(member.recorder));
            put(peer::CONTROL, recorder.string(member.control));
            put(peer::WORLD, u64::from(member.world.0));
            put(peer::GROUP, 0);
            let state = RowState::Live as u64 | (row as u64) << 16 | u64::from(self.generation) << 32;
            words[peer::STATE].store(state, Ordering::Release);
            mine.push(at);
        }
    }

    /// Records the group of each member of that list.
    pub fn groups(&self, group: impl Fn(Rank) -> u16) {
        if self.recorder.is_stale() {
            return;
        }
        for at in &*self.peers.lock().unwrap_or_else(PoisonError::into_inner) {
            let words: Span<{ peer::WORDS }> = self.recorder.span(Table::Peers, Some(*at));
            let rank = Rank(words[peer::RANK].load(Ordering::Relaxed) as u32);
            words[peer::GROUP].store(u64::from(group(rank)) + 1, Ordering::Relaxed);
        }
    }

    /// Takes the cell of a link, with its transport and the reason for that transport.
    ///
    /// `to` is `None` if the link reaches all other ranks.
    #[must_use]
    pub fn link(
        &self,
        channel: ChannelId,
        to: Option<Rank>,
        direction: Direction,
        chosen: (TransportKind, TransportReason),
    ) -> LinkCell {
        self.take_link(channel, (to, false), direction, chosen)
    }

    /// The same of a link on which this rank reads a shared lane.
    #[must_use]
    pub fn shared_reader(
        &self,
        channel: ChannelId,
        from: Rank,
        chosen: (TransportKind, TransportReason),
    ) -> LinkCell {
        self.take_link(channel, (Some(from), true), Direction::Recv, chosen)
    }

    fn take_link(
        &self,
        channel: ChannelId,
        (to, reads_shared): (Option<Rank>, bool),
        direction: Direction,
        (transport, why): (TransportKind, TransportReason),
    ) -> LinkCell {
        let recorder = &self.recorder;
        // A link of a row in private memory could not be found by readers, so it is private too.
        let Some(row) = self.row else { return LinkCell::new(private(), None) };
        let at = recorder.take(|rows| rows.links.take()).map(|at| (row, at));
        let words: Span<{ link::WORDS }> = recorder.span(Table::Links, at.map(|(_, at)| at));
        let Some((row, at)) = at else { return LinkCell::new(words, None) };
        let id: Span<{ link_id::WORDS }> = recorder.span(Table::LinkIds, Some(at));
        id[link_id::WHAT].store(RowState::Free as u64, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        for word in words.iter() {
            word.store(0, Ordering::Relaxed);
        }
        let peer = to.map_or(0, |rank| u64::from(rank.0)) | u64::from(self.generation) << 32;
        id[link_id::PEER].store(peer, Ordering::Relaxed);
        id[link_id::WHY].store(why as u64, Ordering::Relaxed);
        let what = RowState::Live as u64
            | (direction as u64) << 8
            | (transport as u64) << 16
            | u64::from(to.is_some()) << 24
            | u64::from(reads_shared) << 25
            | u64::from(channel.0) << 32
            | (row as u64) << 48;
        id[link_id::WHAT].store(what, Ordering::Release);
        LinkCell::new(words, Some((Arc::clone(recorder), at)))
    }

    /// Records the events of this communicator on this rank. Their level is the communicator's.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(Arc::clone(&self.recorder), Some((self.id, self.me)), self.words.part(comm::LEVEL))
    }
}

impl Recorder {
    fn peers_ended(&self, rows: &mut Vec<usize>) {
        let mut pool = self.lock();
        for at in rows.drain(..) {
            end(&self.span::<{ peer::WORDS }>(Table::Peers, Some(at))[peer::STATE]);
            pool.peers.give(at);
        }
    }
}

impl Drop for CommRow {
    fn drop(&mut self) {
        let recorder = &self.recorder;
        if recorder.is_stale() {
            return;
        }
        end(&self.words[comm::STATE]);
        // Peer rows stay readable as long as this row does: they are given back with it, and their
        // slots are reused last.
        let mut mine = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = recorder.lock();
        for at in mine.drain(..) {
            rows.peers.give(at);
        }
        for at in self.durations.iter().filter_map(|durations| durations.get()?.row) {
            rows.durations.give(at);
        }
        if let Some(at) = self.history.get().and_then(|history| history.row) {
            rows.histories.give(at);
        }
        match self.row {
            Some(at) => rows.comms.give(at),
            None => _ = recorder.header(header::WITHOUT_ROW).fetch_sub(1, Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for CommRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommRow({}, rank {}, row {:?})", self.id, self.me, self.row)
    }
}
