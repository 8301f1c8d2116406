//! Lanes over TCP, between hosts.
//!
//! A lane is set up by its writer, who connects `streams` connections (`connect`) to the reader's data listener
//! (`listen`). Once the reader has them all, it says so by one byte on each. From then on nothing travels that way: message
//! m goes whole on stream `m % streams`, after a header of 64 bytes (`link`), and the kernel's window is the flow control.
//!
//! A host that answers no more is found after [`SILENCE`]. At the reader, who sends nothing, by keep-alive, and by
//! TCP_USER_TIMEOUT should even its one byte stay unanswered. At the writer TCP_USER_TIMEOUT would be wrong: it also ends a
//! connection whose peer answers but takes nothing (a closed window), which is a rank that is late or stopped, and that is no
//! fault of the link. There keep-alive serves while all is acknowledged, else the kernel's account of unanswered sends.

pub mod connect;
pub mod link;
pub mod listen;
pub mod shortage;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};

use socket2::{SockRef, TcpKeepalive};

use crate::sys::fds::Fd;

/// The most streams of a lane.
pub const MAX_STREAMS: u32 = 8;
/// What a reader says on each stream of a lane it has completely.
const CONFIRMED: [u8; 1] = [0x06];

/// After this much silence the host on the other side counts as gone.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Sets up a fresh connection: no delay of small messages, and the end of a silent host is noticed after [`SILENCE`].
/// Buffer sizes are left to the kernel, which grows them with the connection's bandwidth and delay.
pub(crate) fn tune(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    // 4 s of silence, then 3 questions, 2 s apart.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(4))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)
}

/// A connection while it is being set up: what the handshake reads and writes. It does not block.
#[derive(Debug)]
pub(crate) struct Stream(pub(crate) Fd);

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
