//! What the watchdog needs of a recorder: which operations have been under way for long, and the
//! words where it says what it told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::decode::Clock;
use super::layout::{self, RowState, Table, comm, header, op, watch};
use super::protocol::latch_write;
use super::state::Recorder;
use super::words::{fact, halves};
use crate::clock;
use crate::snapshot::{Class, Reason, StallTold, Standing};
use crate::text::harmless;
use crate::types::{BlameHash, CommId, Phase, Rank};

/// The most bytes of the text that are read.
const MAX_TEXT: usize = watch::TEXT_WORDS * 8;

impl Recorder {
    /// The communicators in use with an operation that somebody waits for, or `finish()`, under way
    /// for `least` or longer, this process's rank in each, and for how long. It costs a few loads
    /// for each communicator.
    pub fn under_way(&self, least: Duration) -> Vec<(CommId, Rank, Duration)> {
        // In ticks: what the scale is wrong by grows with the time that it spans.
        let (now, scale) = (clock::raw(), clock::scale());
        let first = self.capacity.offset(Table::Comms) / 8;
        let rows = self.memory.words()[first..].chunks_exact(comm::WORDS).take(self.capacity.comms);
        let of_row = |row: &[AtomicU64]| {
            let at = |at: usize| row[at].load(Ordering::Acquire);
            if at(comm::STATE) as u8 != RowState::Live as u8 || at(comm::FAILED) != 0 {
                return None;
            }
            let of_cell = |cell: usize| {
                let is_under_way = at(cell + op::COMPLETED) < at(cell + op::CALLED);
                let is_left_alone = (at(cell + op::WAITS) >> 8) & op::UNATTENDED != 0;
                if !is_under_way || is_left_alone || at(cell + op::FAILED) != 0 {
                    return None;
                }
                let fact: [u64; op::FACT_WORDS] = fact(row, cell + op::LATCH, cell + op::FACT)?;
                Some(Duration::from_nanos(scale.ns(now.0.saturating_sub(fact[op::FACT_SINCE]))))
            };
            let finishes = (at(comm::PHASE) == Phase::Finish as u64 + 1).then(|| at(comm::PHASE_SINCE));
            let finishes = finishes.map(|since| Duration::from_nanos(scale.ns(now.0.saturating_sub(since))));
            let longest = [comm::COLL, comm::P2P].into_iter().filter_map(of_cell).chain(finishes).max()?;
            let (rank, _) = halves(at(comm::RANK));
            (longest >= least).then(|| (CommId(at(comm::ID)), Rank(rank), longest))
        };
        rows.filter_map(of_row).collect()
    }

    /// How many operations and communicators have failed here.
    pub fn failures(&self) -> u64 {
        self.header(header::FAILED).load(Ordering::Relaxed)
    }

    /// Says what the watchdog told or heard; `None`: that no stall stands any more.
    pub fn tell_stall(&self, told: Option<&StallTold>) {
        if self.is_stale() {
            return;
        }
        let mut fact = [0; watch::WORDS];
        if let Some(StallTold { standing, class, reason, by, is_own, key, text, .. }) = told {
            let numbers = [standing.number(), class.number(), reason.number(), u8::from(*is_own)];
            fact[watch::WHAT] = u64::from(u32::from_le_bytes(numbers));
            fact[watch::BY] = by.map_or(0, |rank| u64::from(rank.0) + 1);
            fact[watch::AT] = clock::raw().0;
            fact[watch::KEY] = key.0;
            fact[watch::TEXT..].copy_from_slice(&layout::encode_text::<{ watch::TEXT_WORDS }>(text));
        }
        let words = self.memory.words();
        latch_write(&words[watch::LATCH], &words[watch::TOLD..], &fact);
    }
}

/// What was told last, as long as it stands.
pub(super) fn told(words: &[AtomicU64], clock: &Clock) -> Option<StallTold> {
    let told: [u64; watch::WORDS] = fact(words, watch::LATCH, watch::TOLD)?;
    let [standing, class, reason, is_own] = (told[watch::WHAT] as u32).to_le_bytes();
    let text = layout::decode_text(&told[watch::TEXT..]);
    (standing != 0).then(|| StallTold {
        standing: Standing::numbered(standing),
        class: Class::numbered(class),
        reason: Reason::numbered(reason),
        by: (told[watch::BY] as u32).checked_sub(1).map(Rank),
        is_own: is_own != 0,
        ago_ns: clock.age_ns(told[watch::AT]),
        key: BlameHash(told[watch::KEY]),
        text: harmless(&text, MAX_TEXT).into_owned(),
    })
}
