//! The sockets of links: a row for each, in which the kernel's account of it is kept (TCP_INFO).
//!
//! Rows are made and given back with their link. The service thread asks the kernel once a second, through weak handles: who carries
//! data owns the descriptor, nothing is duplicated, and the data path is not involved. All of it happens under the recorder's lock of rows, so that
//! no account is written into a row that has become another socket's.

use std::net::{IpAddr, SocketAddr};
use std::sync::Weak;
use std::sync::atomic::{Ordering, fence};

use super::Recorder;
use super::layout::{RowState, Table, link_id, socket};
use super::mapping::Span;
use super::protocol::latch_write;
use super::writer::end;
use crate::clock;
use crate::sys::fds::Fd;
use crate::sys::tcp::{self, TcpInfo};

type Row = Span<{ socket::WORDS }>;

impl Recorder {
    /// Asks the kernel about each socket that has a row: once a second, by the service thread.
    pub fn sample_sockets(&self) {
        if self.is_stale() {
            return;
        }
        let rows = self.lock();
        for (at, watched) in &rows.watched {
            // One that is gone is about to give its row back.
            let Some(fd) = watched.upgrade() else { continue };
            if let Ok(info) = tcp::info(&*fd) {
                sample(&self.span(Table::Sockets, Some(*at)), &info);
            }
        }
    }

    /// Makes rows for the streams of the link whose row is `link`, and takes the first account of each. What is no TCP connection has
    /// none, and what finds no place is counted.
    pub(super) fn watch(&self, link: usize, streams: Vec<Weak<Fd>>) -> Vec<usize> {
        if self.is_stale() || streams.is_empty() {
            return Vec::new();
        }
        let id: Span<{ link_id::WORDS }> = self.span(Table::LinkIds, Some(link));
        let what = id[link_id::WHAT].load(Ordering::Relaxed);
        let peer = id[link_id::PEER].load(Ordering::Relaxed);
        let mut made = Vec::with_capacity(streams.len());
        let mut rows = self.lock();
        for (stream, watched) in (0..).zip(streams) {
            let about = watched.upgrade().and_then(|fd| Some((tcp::ends(&*fd)?, tcp::info(&*fd).ok()?)));
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
            sample(&row, &info);
            // Of the link's: direction, channel and communicator.
            let link = what & !0xffff_00ff;
            let family: u64 = if local.is_ipv4() { 4 } else { 6 };
            row[socket::WHAT].store(
                RowState::Live as u64 | link | (stream & 0xff) << 16 | family << 24,
                Ordering::Release,
            );
            rows.watched.insert(at, watched);
            made.push(at);
        }
        made
    }

    /// Gives the rows of a link's streams back; what they told last stays readable.
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

/// The addresses of both ends, of one family.
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

fn sample(row: &Row, info: &TcpInfo) {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let bytes = u32::from_le_bytes([info.state, info.retransmits, info.probes, info.backoff]);
    let mut fact = [0; socket::SAMPLE_WORDS];
    fact[socket::SAMPLE_RAW] = clock::raw().0;
    fact[socket::SAMPLE_STATE] = two(bytes, info.window);
    fact[socket::SAMPLE_RTT] = two(info.rtt_us, info.rtt_var_us);
    fact[socket::SAMPLE_SENT] = two(info.unacked, info.retransmits_total);
    fact[socket::SAMPLE_UNSENT] = u64::from(info.unsent_bytes);
    fact[socket::SAMPLE_HEARD] = two(info.since_data_ms, info.since_ack_ms);
    latch_write(&row[socket::LATCH], &row[socket::SAMPLE..], &fact);
}
