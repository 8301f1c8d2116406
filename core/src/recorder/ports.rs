//! The ports of the devices that are open in the process: one row each, which only the service
//! thread writes.
//!
//! A row exists from the first sample of the port, or the first event about it, until a sample
//! leaves it out.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::decode::Clock;
use super::layout::{RowState, Table, port};
use super::mapping::Span;
use super::queue_pairs::MAX_NAME;
use super::slot_pool::SlotPools;
use super::state::{Recorder, end};
use super::words::{TableRows, state, string_within, word};
use crate::clock::Raw;
use crate::snapshot::bounds::MAX_PORTS;
use crate::snapshot::{PortEvent, PortLayer, PortSnapshot, PortStanding};
use crate::sys::verbs::{Address, AsyncEvent};

type Row = Span<{ port::WORDS }>;

/// What a device counts: see [`port::COUNTS`].
pub type PortCounts = [Option<u64>; port::COUNTS_COUNT];

/// A port, as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSample {
    /// The name of its device.
    pub device: String,
    /// Its number.
    pub port: u8,
    /// The address that is used.
    pub address: Address,
    /// What its packets travel on.
    pub layer: PortLayer,
    /// Its state.
    pub state: PortStanding,
    /// Megabits a second.
    pub speed_mbps: u64,
    /// What its device counts.
    pub counts: PortCounts,
}

impl Recorder {
    /// Stores a sample of each port that is in use. Rows of others end.
    pub fn sample_ports(&self, samples: &[PortSample], at: Raw) {
        if self.is_stale() {
            return;
        }
        // The names are stored before the rows are locked.
        let names: Vec<u64> = samples.iter().map(|one| self.string(&one.device)).collect();
        let mut rows = self.lock();
        let is_used = |(device, number): &(String, u8)| {
            samples.iter().any(|one| (&one.device, one.port) == (device, *number))
        };
        let SlotPools { known_ports, ports, .. } = &mut *rows;
        known_ports.retain(|key, at| {
            if !is_used(key) {
                end(&self.span::<{ port::WORDS }>(Table::Ports, Some(*at))[port::WHAT]);
                ports.give(*at);
            }
            is_used(key)
        });
        for (one, name) in samples.iter().zip(names) {
            if let Some(row) = self.port_row(&mut rows, (&one.device, one.port), name) {
                store(&row, one, at);
            }
        }
    }

    /// Stores what a device reported of a port.
    pub fn port_event(&self, device: &str, number: u8, code: u32, at: Raw) {
        if self.is_stale() {
            return;
        }
        let name = self.string(device);
        let mut rows = self.lock();
        if let Some(row) = self.port_row(&mut rows, (device, number), name) {
            row[port::EVENT_AT].store(at.0, Ordering::Relaxed);
            row[port::EVENT].store(u64::from(code) + 1, Ordering::Release);
        }
    }

    /// The row of a port, which is taken if it has none.
    fn port_row(&self, rows: &mut SlotPools, (device, number): (&str, u8), name: u64) -> Option<Row> {
        let key = (device.to_string(), number);
        if let Some(at) = rows.known_ports.get(&key) {
            return Some(self.span(Table::Ports, Some(*at)));
        }
        let Some(at) = rows.ports.take() else {
            self.overflow(Table::Ports);
            return None;
        };
        let row: Row = self.span(Table::Ports, Some(at));
        row[port::WHAT].store(RowState::Free as u64, Ordering::Relaxed);
        fence(Ordering::Release);
        row.iter().skip(1).for_each(|word| word.store(0, Ordering::Relaxed));
        row[port::DEVICE].store(name, Ordering::Relaxed);
        let what = RowState::Live as u64 | u64::from(number) << 8;
        row[port::WHAT].store(what, Ordering::Release);
        rows.known_ports.insert(key, at);
        Some(row)
    }
}

fn store(row: &Row, one: &PortSample, at: Raw) {
    let put = |at: usize, value: u64| row[at].store(value, Ordering::Relaxed);
    let [low, high] = one.address.words();
    put(port::ADDRESS, low);
    put(port::ADDRESS + 1, high);
    put(port::STATE, u64::from(one.state.number()));
    put(port::SPEED, one.speed_mbps);
    for (nth, count) in one.counts.iter().enumerate() {
        put(port::COUNTS + nth, count.map_or(0, |count| count.saturating_add(1)));
    }
    put(port::SAMPLED_AT, at.0);
    let what = RowState::Live as u64
        | u64::from(one.port) << 8
        | u64::from(one.layer.number()) << 16
        | u64::from(one.address.is_gid()) << 24;
    row[port::WHAT].store(what, Ordering::Release);
}

/// The ports that a recorder tells of, in the order of their names. Those of a process that has
/// left are those that it used last.
pub(super) fn ports(words: &[AtomicU64], clock: &Clock) -> Vec<PortSnapshot> {
    let mut found: Vec<PortSnapshot> = Vec::new();
    for row in TableRows::of(words, Table::Ports).iter().take(MAX_PORTS) {
        let at = |n: usize| word(row, n);
        let what = at(port::WHAT);
        if state(what) != Some(RowState::Live) {
            continue;
        }
        let event = at(port::EVENT).checked_sub(1).map(|code| PortEvent {
            code: code as u32,
            name: AsyncEvent::name_of(code as u32).into(),
            ago_ns: clock.age_ns(at(port::EVENT_AT)),
        });
        let count = |nth: usize| at(port::COUNTS + nth).checked_sub(1);
        let address = [at(port::ADDRESS), at(port::ADDRESS + 1)];
        let one = PortSnapshot {
            device: string_within(words, at(port::DEVICE), MAX_NAME),
            port: (what >> 8) as u8,
            state: PortStanding::numbered(at(port::STATE) as u8),
            layer: PortLayer::numbered((what >> 16) as u8),
            address: Address::of_words(address, what >> 24 & 1 != 0).to_string(),
            speed_mbps: at(port::SPEED),
            event,
            retries: count(0),
            lost: count(1),
            not_ready: count(2),
            given_up: count(3),
            age_ns: clock.age_ns(at(port::SAMPLED_AT)),
        };
        // A row that changed hands meanwhile is left out this time.
        if at(port::WHAT) as u16 == what as u16 {
            found.push(one);
        }
    }
    found.sort_by(|a, b| (&a.device, a.port).cmp(&(&b.device, b.port)));
    found
}
