//! The state of a TCP connection as the kernel reports it (TCP_INFO).

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockRef;

/// What the kernel reports about a connection. Later fields of the kernel's structure are not read.
/// An older kernel leaves the fields that it does not know at zero.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TcpInfo {
    /// The kernel's number for the state: 1 is ESTABLISHED.
    pub state: u8,
    /// Retransmissions of the oldest unacknowledged segment, in a row.
    pub retransmits: u8,
    /// Window probes in a row (sent after the peer closed its window) that had no answer.
    pub probes: u8,
    /// How often the pause before the next retransmission or probe was doubled.
    pub backoff: u8,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Milliseconds since data came; 0 while it is being connected.
    pub since_data_ms: u32,
    /// Milliseconds since the last acknowledgement came; 0 while it is being connected.
    pub since_ack_ms: u32,
    /// Smoothed round trip, in microseconds.
    pub rtt_us: u32,
    /// The variation of the round trip, in microseconds.
    pub rtt_var_us: u32,
    /// The congestion window, in segments.
    pub window: u32,
    /// Segments sent again since the connection began.
    pub retransmits_total: u32,
    /// Bytes that wait in the kernel to be sent.
    pub unsent_bytes: u32,
    /// How long the connection had something to send, since it began, in microseconds.
    pub busy_us: u64,
    /// How much of that time the receiver's window held it up, in microseconds.
    pub rwnd_us: u64,
}

/// The kernel's number of the state of a socket whose request nobody has answered.
const SYN_SENT: u8 = 2;

impl TcpInfo {
    /// Whether the other host has not answered several sends in a row. A host that answers with a
    /// closed window has answered. A single unanswered send proves nothing, because its answer may
    /// be on the way.
    #[must_use]
    pub const fn unanswered(&self) -> bool {
        self.retransmits >= 2 || self.probes >= 2
    }

    fn parse(bytes: &[u8]) -> Self {
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        // The kernel counts from its own start while nothing has come yet.
        let heard = |at: usize| if bytes[0] == SYN_SENT { 0 } else { word(at) };
        Self {
            state: bytes[0],
            retransmits: bytes[2],
            probes: bytes[3],
            backoff: bytes[4],
            unacked: word(24),
            since_data_ms: heard(52),
            since_ack_ms: heard(56),
            rtt_us: word(68),
            rtt_var_us: word(72),
            window: word(80),
            retransmits_total: word(100),
            unsent_bytes: word(144),
            busy_us: long(168),
            rwnd_us: long(176),
        }
    }
}

/// The state of this connection as the kernel reports it.
///
/// # Errors
/// The error of getsockopt, for instance if the socket is not a TCP connection.
pub fn info(socket: &impl AsFd) -> std::io::Result<TcpInfo> {
    let mut bytes = [0u8; 184];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes the new length, and at most `len` bytes into a buffer of that size.
    let refused = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if refused != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(TcpInfo::parse(&bytes))
}

/// The addresses of this end and the other of a connection over IP; `None` of anything else.
///
/// `to` is the other end of a socket that is still being connected.
pub(crate) fn ends(socket: &impl AsFd, to: Option<SocketAddr>) -> Option<(SocketAddr, SocketAddr)> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr().ok()?.as_socket()?;
    let remote = socket.peer_addr().ok().and_then(|remote| remote.as_socket());
    Some((local, remote.or(to)?))
}

/// Moves this thread into a new network namespace of its own; `false` if that is not permitted.
#[cfg(test)]
pub(crate) fn own_network() -> bool {
    // SAFETY: unshare(2) touches no memory, and a network namespace can belong to a single thread.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_on_loopback_has_a_round_trip_and_no_retransmission() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut back, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut out, b"x").unwrap();
        std::io::Read::read_exact(&mut back, &mut [0]).unwrap();
        let info = info(&out).unwrap();
        assert!(info.rtt_us > 0 && info.rtt_us < 1_000_000, "{info:?}");
        assert_eq!((info.retransmits, info.probes, info.retransmits_total), (0, 0, 0));
        assert_eq!((info.state, info.backoff, info.unsent_bytes), (1, 0, 0));
        assert!(info.window > 0, "{info:?}");
        // A receiver that does not read holds the sender up.
        out.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut out, &[0; 1 << 16]).is_ok() {}
        std::thread::sleep(std::time::Duration::from_millis(50));
        let full = super::info(&out).unwrap();
        assert!(full.busy_us >= 40_000 && full.rwnd_us >= 30_000, "{full:?}");
        let theirs = ends(&back, None).unwrap();
        assert_eq!(ends(&out, None), Some((theirs.1, theirs.0)));
        assert_eq!((theirs.0, ends(&listener, None)), (listener.local_addr().unwrap(), None));
        assert!(!info.unanswered());
        assert!(super::info(&listener).is_ok());
        let (pair, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(super::info(&pair).is_err());
        assert_eq!(ends(&pair, None), None);
    }
}
