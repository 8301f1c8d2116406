//! How the process ended, said by itself while it still can, and what the kernel's counters say of
//! its memory group. A process that is killed says nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{self, Ending, RowState, Table, header};
use super::state::Recorder;
use super::words::{halves, string, word};
use crate::snapshot::{End, Lacks, MemoryCount, ProcessFacts};
use crate::sys::cgroup::MemoryGroup;
use crate::sys::shortage;

/// How many seconds a process must live on after a panic for the panic not to be its end.
const SURVIVED: u64 = 5;

impl Recorder {
    /// Says how the process ends, unless that was said before.
    fn say(&self, end: Ending, upper: u64) {
        if !self.is_stale() {
            let word = end as u64 | upper << 32;
            let at = self.header(header::END);
            let _ = at.compare_exchange(Ending::Nothing as u64, word, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Says that a communicator was given up without `finish()`; `panics`: because its thread
    /// panics.
    pub fn gave_up(&self, panics: bool) {
        if panics {
            self.say(Ending::Panicked, 0);
        }
        self.gave_up.store(true, Ordering::Relaxed);
    }

    /// Says that this signal ends the process.
    pub fn ended_by_signal(&self, signal: u8) {
        self.say(Ending::Signalled, signal.into());
    }

    /// Says how the last communicator was left.
    pub(super) fn say_left(&self) {
        let gave_up = self.gave_up.load(Ordering::Relaxed);
        self.say(if gave_up { Ending::Exited } else { Ending::Finished }, 0);
    }

    /// The process exits: says so if a communicator is in use.
    pub(super) fn say_exit(&self) {
        let first = self.capacity.offset(Table::Comms) / 8;
        let comms = self.memory.words()[first..].chunks_exact(layout::comm::WORDS);
        let is_in_use = |row: &[AtomicU64]| {
            let word = |at: usize| row[at].load(Ordering::Acquire);
            word(layout::comm::STATE) as u8 == RowState::Live as u8 && word(layout::comm::RANK) >> 32 > 1
        };
        let without_row = self.header(header::WITHOUT_ROW).load(Ordering::Acquire) != 0;
        if without_row || comms.take(self.capacity.comms).any(is_in_use) {
            self.say(Ending::Exited, 0);
        }
    }

    /// Records the memory group of the process, and the kills that it has counted so far.
    pub fn set_memory_group(&self, group: &MemoryGroup) {
        let Some(kills) = group.oom_kills() else { return };
        self.header(header::CGROUP).store(self.string(&group.folder.to_string_lossy()), Ordering::Relaxed);
        self.header(header::CGROUP_INODE).store(group.inode, Ordering::Relaxed);
        self.header(header::OOM_LATEST).store(kills.saturating_add(1), Ordering::Relaxed);
        self.header(header::OOM_FIRST).store(kills.saturating_add(1), Ordering::Release);
    }

    /// Samples that count, and what the process lacks, and takes back a panic that it has survived:
    /// once a second, by the service thread.
    pub fn sample_process(&self, group: Option<&MemoryGroup>) {
        if self.is_stale() {
            return;
        }
        if let Some(kills) = group.and_then(MemoryGroup::oom_kills) {
            self.header(header::OOM_LATEST).store(kills.saturating_add(1), Ordering::Relaxed);
        }
        let lacks = shortage::of_process().map_or(0, |errno| Lacks::from(errno).number());
        self.header(header::LACKS).store(lacks.into(), Ordering::Relaxed);
        let at = self.header(header::END);
        let said = at.load(Ordering::Acquire);
        if said as u32 == Ending::Panicked as u32 {
            let since = (said >> 32) + 1;
            let next = if since < SURVIVED { Ending::Panicked as u64 | since << 32 } else { 0 };
            let _ = at.compare_exchange(said, next, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Says panics from now on, before what the program does about them. The program's own hook runs
/// after it.
pub(super) fn say_panics() {
    // A hook cannot be set in a panic.
    if std::thread::panicking() {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(recorder) = Recorder::of_process_now() {
            recorder.say(Ending::Panicked, 0);
        }
        before(panic);
    }));
}

/// What the header says of the process.
pub(super) fn facts(words: &[AtomicU64], alive: bool) -> (ProcessFacts, Option<MemoryCount>) {
    let at = |n: usize| word(words, n);
    let (said, upper) = halves(at(header::END));
    let is_told = at(header::VERSION) as u32 >= 9;
    let end = match u64::from(said) {
        n if n == Ending::Finished as u64 => End::Finished,
        n if n == Ending::Exited as u64 => End::Exited,
        n if n == Ending::Panicked as u64 => End::Panicked,
        n if n == Ending::Signalled as u64 => End::Signalled,
        n if n == Ending::Killed as u64 => End::Killed,
        0 if is_told && !alive => End::Killed,
        _ => End::Unknown,
    };
    let has_signal = end == End::Signalled || u64::from(said) == Ending::Killed as u64;
    let [first, latest] = [header::OOM_FIRST, header::OOM_LATEST].map(at);
    let lacks = u8::try_from(at(header::LACKS)).map_or(Lacks::Unknown, Lacks::numbered);
    let facts = ProcessFacts {
        end,
        signal: u8::try_from(upper).ok().filter(|signal| has_signal && (1..=64).contains(signal)),
        cgroup: string(words, at(header::CGROUP)),
        oom_kills: if first == 0 { 0 } else { latest.saturating_sub(first) },
        lacks: Some(lacks).filter(|lacks| *lacks != Lacks::Unknown),
        ..ProcessFacts::default()
    };
    let count = MemoryCount { inode: at(header::CGROUP_INODE), first: first.saturating_sub(1) };
    (facts, Some(count).filter(|_| first != 0))
}
