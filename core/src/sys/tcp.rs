//! The kernel's account of a TCP connection (TCP_INFO).

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockRef;

/// What the kernel knows about a connection. Later fields of its structure are not read; an older kernel gives zeros.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TcpInfo {
    /// The kernel's number of the state: 1 is ESTABLISHED.
    pub state: u8,
    /// Retransmissions of the oldest unacknowledged segment, in a row.
    pub retransmits: u8,
    /// Questions after a closed window without an answer, in a row.
    pub probes: u8,
    /// How often the pause before the next of either was doubled.
    pub backoff: u8,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Milliseconds since data came.
    pub since_data_ms: u32,
    /// Milliseconds since the last acknowledgement came.
    pub since_ack_ms: u32,
    /// Smoothed round trip, in microseconds.
    pub rtt_us: u32,
    /// Its variation, in microseconds.
    pub rtt_var_us: u32,
    /// The congestion window, in segments.
    pub window: u32,
    /// Segments sent again since the connection began.
    pub retransmits_total: u32,
    /// Bytes that wait in the kernel to be sent.
    pub unsent_bytes: u32,
}

impl TcpInfo {
    /// Whether the other host has not answered several sends in a row. A host that answers with a closed window has
    /// answered; one unanswered question is no proof, because it may be under way.
    #[must_use]
    pub const fn unanswered(&self) -> bool {
        self.retransmits >= 2 || self.probes >= 2
    }

    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        Self {
            state: bytes[0],
            retransmits: bytes[2],
            probes: bytes[3],
            backoff: bytes[4],
            unacked: word(24),
            since_data_ms: word(52),
            since_ack_ms: word(56),
            rtt_us: word(68),
            rtt_var_us: word(72),
            window: word(80),
            retransmits_total: word(100),
            unsent_bytes: word(144),
        }
    }
}

/// The kernel's account of this connection.
///
/// # Errors
/// What getsockopt says, for instance of a socket that is no TCP connection.
pub fn info(socket: &impl AsFd) -> std::io::Result<TcpInfo> {
    let mut bytes = [0u8; 148];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which are there, and the new length.
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
pub(crate) fn ends(socket: &impl AsFd) -> Option<(SocketAddr, SocketAddr)> {
    let socket = SockRef::from(socket);
    let (local, remote) = (socket.local_addr().ok()?, socket.peer_addr().ok()?);
    Some((local.as_socket()?, remote.as_socket()?))
}

/// Moves this thread into a fresh network namespace, which ends with it; whether that is allowed.
#[cfg(test)]
pub(crate) fn own_network() -> bool {
    // SAFETY: unshare(2) takes no memory, and this namespace can be a thread's own.
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
        let theirs = ends(&back).unwrap();
        assert_eq!(ends(&out), Some((theirs.1, theirs.0)));
        assert_eq!((theirs.0, ends(&listener)), (listener.local_addr().unwrap(), None));
        assert!(!info.unanswered());
        assert!(super::info(&listener).is_ok());
        let (pair, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(super::info(&pair).is_err());
        assert_eq!(ends(&pair), None);
    }
}
