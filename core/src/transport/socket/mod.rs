//! Lanes over TCP, between hosts.
//!
//! The writer of a lane sets it up: it opens `streams` connections (`connect`) to the reader's data
//! listener (`listen`). Once the reader has them all, it sends one byte on each. After that the
//! reader sends nothing more. Message m travels whole on stream `m % streams`, after a header of 64
//! bytes (`link`). The kernel's window is the flow control. `carrier` holds the lanes that are
//! being connected.
//!
//! A host that no longer answers is noticed after [`SILENCE`]. The reader sends no data, so it
//! relies on keep-alive, and on TCP_USER_TIMEOUT in case its one byte stays unacknowledged. At the
//! writer TCP_USER_TIMEOUT would be wrong: it would also end a connection whose peer answers but
//! takes no data (a closed window). Such a peer is a rank that is late or stopped, which is not a
//! fault of the link. So the writer relies on keep-alive while all data is acknowledged, and
//! otherwise on the kernel's counts of unanswered sends.

pub(crate) mod arrivals;
pub(crate) mod carrier;
pub mod connect;
pub mod link;
pub mod listen;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};

use socket2::{SockRef, TcpKeepalive};

use crate::sys::fds::Fd;

/// The most streams that a lane can have.
pub const MAX_STREAMS: u32 = 8;
/// The byte that a reader sends on each stream once it has all streams of the lane.
const CONFIRMED: [u8; 1] = [0x06];

/// After this much silence the other host counts as gone.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Configures a new connection: small messages are not delayed, and a silent host is noticed after
/// [`SILENCE`]. The kernel chooses the buffer sizes and grows them with the connection's bandwidth
/// and delay.
pub(crate) fn tune(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    // 4 s of silence, then 6 probes, 1 s apart: the second without an answer is told.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(4))
        .with_interval(Duration::from_secs(1))
        .with_retries(6);
    socket.set_tcp_keepalive(&keepalive)
}

/// A connection that is being set up, as the handshake reads and writes it. It does not block.
#[derive(Debug)]
pub(crate) struct Stream(pub(crate) Arc<Fd>);

impl io::Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (_, count) = rustix::net::recv(&self.0, bytes, RecvFlags::DONTWAIT)?;
        Ok(count)
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
