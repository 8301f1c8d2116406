//! The sockets of links: one row each, with the kernel's counters (TCP_INFO).
//!
//! Rows are taken and given back with their link. The service thread asks the kernel once a second,
//! through weak handles: the link owns the descriptor, nothing is duplicated, and the data path is
//! not involved. All of it happens under the recorder's lock of rows, so that no sample is written
//! into a row that has become another socket's.

use std::net::{IpAddr, SocketAddr};
use std::sync::Weak;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::layout::{RowState, Table, link_id, socket};
use super::mapping::Span;
use super::protocol::latch_write;
use super::slot_pool::Watched;
use super::state::{Recorder, end};
use crate::clock;
use crate::sys::fds::Fd;
use crate::sys::tcp::{self, TcpInfo};

type Row = Span<{ socket::WORDS }>;

impl Recorder {
    /// Samples each socket that has a row. The service thread calls it once a second.
    pub fn sample_sockets(&self) {
        if self.is_stale() {
            return;
        }
        let mut rows = self.lock();
        for (at, watched) in &mut rows.watched {
            // The link of a closed socket is about to give its row back.
            let Some(fd) = watched.fd.upgrade() else { continue };
            if let Ok(info) = tcp::info(&*fd) {
                let now = clock::now();
                let (before, then) = std::mem::replace(&mut watched.before, (info, now));
                sample(&self.span(Table::Sockets, Some(*at)), &info, recent(&before, &info, now.since(then)));
            }
        }
    }

    /// Takes rows for the streams of the link whose row is `link`, and a first sample of each.
    ///
    /// A stream that is not a TCP connection gets no row; streams that find no free row are
    /// counted. `remote` is the other end of those that are not connected yet.
    pub(super) fn watch(
        &self,
        link: usize,
        streams: Vec<Weak<Fd>>,
        remote: Option<SocketAddr>,
    ) -> Vec<usize> {
        if self.is_stale() || streams.is_empty() {
            return Vec::new();
        }
        let id: Span<{ link_id::WORDS }> = self.span(Table::LinkIds, Some(link));
        let what = id[link_id::WHAT].load(Ordering::Relaxed);
        let peer = id[link_id::PEER].load(Ordering::Relaxed);
        let mut made = Vec::with_capacity(streams.len());
        let mut rows = self.lock();
        for (stream, watched) in (0..).zip(streams) {
            let about =
                watched.upgrade().and_then(|fd| Some((tcp::ends(&*fd, remote)?, tcp::info(&*fd).ok()?)));
            let Some(((local, remote), info)) = about else { continue };
            let Some(at) = rows.sockets.take() else {
                self.overflow(Table::Sockets);
                continue;
            };
            let row: Row = self.span(Table::Sockets, Some(at));
            row[socket::WHAT].store(RowState::Free as u64, Ordering::Relaxed);
            fence(Ordering::Release);
            row[socket::PEER].store(peer, Ordering::Relaxed);
            describe(&row, local, remote);
            sample(&row, &info, 0);
            // Direction, channel and communicator are those of the link's word.
            let link = what & !0xffff_00ff;
            let family: u64 = if local.is_ipv4() { 4 } else { 6 };
            row[socket::WHAT].store(
                RowState::Live as u64 | link | (stream & 0xff) << 16 | family << 24,
                Ordering::Release,
            );
            rows.watched.insert(at, Watched { fd: watched, before: (info, clock::now()) });
            made.push(at);
        }
        made
    }

    /// Gives the rows of a link's streams back; their last samples stay readable.
    pub(super) fn watched_no_more(&self, made: &[usize]) {
        if self.is_stale() || made.is_empty() {
            return;
        }
        let mut rows = self.lock();
        for at in made {
            let row: Row = self.span(Table::Sockets, Some(*at));
            end(&row[socket::WHAT]);
            rows.watched.remove(at);
            rows.sockets.give(*at);
        }
    }
}

/// Stores the addresses of both ends, which are of one family.
fn describe(row: &Row, local: SocketAddr, remote: SocketAddr) {
    let ports = u64::from(local.port()) | u64::from(remote.port()) << 16;
    row[socket::PORTS].store(ports, Ordering::Relaxed);
    for (at, address) in [(socket::LOCAL, local), (socket::REMOTE, remote)] {
        let mut bytes = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        for (word, half) in row[at..at + 2].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(std::array::from_fn(|n| half[n])), Ordering::Relaxed);
        }
    }
}

/// What happened between two samples: percent of the time in which there was something to send |
/// percent in which the receiver's window held it up << 8 | segments resent << 16.
fn recent(before: &TcpInfo, info: &TcpInfo, apart: Duration) -> u32 {
    let apart_us = u64::try_from(apart.as_micros()).unwrap_or(u64::MAX).max(1);
    let percent = |before: u64, now: u64| {
        let share = now.saturating_sub(before).saturating_mul(100) / apart_us;
        share.min(100) as u32
    };
    let resent = info.retransmits_total.saturating_sub(before.retransmits_total).min(0xffff);
    percent(before.busy_us, info.busy_us) | percent(before.rwnd_us, info.rwnd_us) << 8 | resent << 16
}

fn sample(row: &Row, info: &TcpInfo, recent: u32) {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let bytes = u32::from_le_bytes([info.state, info.retransmits, info.probes, info.backoff]);
    let mut fact = [0; socket::SAMPLE_WORDS];
    fact[socket::SAMPLE_RAW] = clock::raw().0;
    fact[socket::SAMPLE_STATE] = two(bytes, info.window);
    fact[socket::SAMPLE_RTT] = two(info.rtt_us, info.rtt_var_us);
    fact[socket::SAMPLE_SENT] = two(info.unacked, info.retransmits_total);
    fact[socket::SAMPLE_UNSENT] = two(info.unsent_bytes, recent);
    fact[socket::SAMPLE_HEARD] = two(info.since_data_ms, info.since_ack_ms);
    latch_write(&row[socket::LATCH], &row[socket::SAMPLE..], &fact);
}
