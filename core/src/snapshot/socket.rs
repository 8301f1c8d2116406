//! One TCP stream of a link, as the kernel accounts for it (TCP_INFO), sampled once a second.

use serde::{Deserialize, Serialize};

use super::words::words;

words! {
    /// The state of a TCP connection, as everybody calls it.
    TcpState {
        /// It carries data both ways.
        Established = "ESTABLISHED",
        /// It asked for a connection.
        SynSent = "SYN_SENT",
        /// It was asked for a connection.
        SynReceived = "SYN_RECV",
        /// This end has closed, the other has not confirmed it.
        FinWait1 = "FIN_WAIT1",
        /// This end has closed.
        FinWait2 = "FIN_WAIT2",
        /// Both have closed; late segments are awaited.
        TimeWait = "TIME_WAIT",
        /// It is no more.
        Closed = "CLOSE",
        /// The other end has closed.
        CloseWait = "CLOSE_WAIT",
        /// Both have closed, the other has not confirmed it.
        LastAck = "LAST_ACK",
        /// It listens.
        Listen = "LISTEN",
        /// Both closed at once.
        Closing = "CLOSING",
    }
}

impl TcpState {
    /// The state that Linux gives this number.
    #[must_use]
    pub const fn of_kernel(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Closed,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => Self::Unknown,
        }
    }
}

/// A TCP stream of a link.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketSnapshot {
    /// Its number among the streams of its link, from 0.
    pub stream: u32,
    /// The address of this end, with its port; empty if unknown.
    pub local: String,
    /// The address of the other end, likewise.
    pub remote: String,
    /// Its state.
    pub state: TcpState,
    /// The smoothed round trip, in microseconds.
    pub rtt_us: u32,
    /// Its variation, in microseconds.
    pub rtt_var_us: u32,
    /// The congestion window, in segments.
    pub window: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Bytes that wait in the kernel to be sent.
    pub unsent_bytes: u32,
    /// Segments sent again since the connection began.
    pub retransmits: u32,
    /// How often in a row the oldest of them timed out and was sent again, without an answer.
    pub timeouts: u8,
    /// Questions in a row without an answer: of the kernel, whether the other end is there, or takes data again.
    pub probes: u8,
    /// How often the pause before the next of either was doubled.
    pub backoff: u8,
    /// How long ago data came; if none ever did, since the connection was made.
    pub received_ns: u64,
    /// How long ago anything came: data, or an acknowledgement.
    pub heard_ns: u64,
    /// How long ago the kernel was asked. A subscriber is not told again what has not changed: to it, how long ago this was so first.
    pub age_ns: u64,
}

impl SocketSnapshot {
    /// How often in a row the other host has not answered; 0 if nothing says that it should have. One question may be on its way.
    #[must_use]
    pub const fn unanswered(&self) -> u8 {
        if self.timeouts > 0 || self.probes > 1 {
            if self.timeouts > self.probes { self.timeouts } else { self.probes }
        } else {
            0
        }
    }
}
