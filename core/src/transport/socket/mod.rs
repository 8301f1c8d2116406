//! Lanes over TCP, between hosts.
//!
//! A lane is set up by its writer, who connects `streams` connections to the reader's data listener (`connect`). Message m
//! goes whole on stream `m % streams`, after a header of 64 bytes (`link`). Nothing ever travels the other way: the
//! kernel's window is the flow control, and a byte from the reader is a breach of the protocol.
//!
//! TCP_USER_TIMEOUT is not used: it also ends a connection whose peer answers but takes nothing (a closed window), which is a
//! rank that is late or stopped, and that is no fault of the link. A host that answers no more is found by keep-alive
//! where nothing is unacknowledged (always so at the reader), and by the kernel's account of unanswered sends at the writer.

pub mod connect;
pub mod link;

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// After this much silence the host on the other side counts as gone.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Sets up a fresh connection: no delay of small messages, and the end of a silent host is noticed after [`SILENCE`].
/// Buffer sizes are left to the kernel, which grows them with the connection's bandwidth and delay.
pub(crate) fn tune(socket: &impl std::os::fd::AsFd) -> std::io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    // 4 s of silence, then 3 questions, 2 s apart.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(4))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)
}
