//! One TCP stream of a link with the kernel's counters (TCP_INFO), sampled once a second.

use serde::{Deserialize, Serialize};

use super::words::words;

words! {
    /// The state of a TCP connection, by its usual name.
    TcpState {
        /// It carries data both ways.
        Established = "ESTABLISHED",
        /// It requested a connection.
        SynSent = "SYN_SENT",
        /// It received a connection request.
        SynReceived = "SYN_RECV",
        /// This end has closed; the other has not confirmed it.
        FinWait1 = "FIN_WAIT1",
        /// This end has closed.
        FinWait2 = "FIN_WAIT2",
        /// Both ends have closed; late segments may still arrive.
        TimeWait = "TIME_WAIT",
        /// It no longer exists.
        Closed = "CLOSE",
        /// The other end has closed.
        CloseWait = "CLOSE_WAIT",
        /// Both ends have closed; the other has not confirmed it.
        LastAck = "LAST_ACK",
        /// It listens.
        Listen = "LISTEN",
        /// Both ends closed at once.
        Closing = "CLOSING",
    }
}

impl TcpState {
    /// The state with this number in Linux.
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
    /// The address of the other end, with its port; empty if unknown.
    pub remote: String,
    /// Its state.
    pub state: TcpState,
    /// The smoothed round trip, in microseconds.
    pub rtt_us: u32,
    /// The variation of the round trip, in microseconds.
    pub rtt_var_us: u32,
    /// The congestion window, in segments.
    pub window: u32,
    /// Segments sent but not acknowledged.
    pub unacked: u32,
    /// Bytes in the kernel that are not yet sent.
    pub unsent_bytes: u32,
    /// Of the second before the sample, the percentage in which there was something to send.
    pub busy_pct: u8,
    /// The percentage in which the receiver's window held it up.
    pub rwnd_pct: u8,
    /// Segments resent in that second.
    pub resent: u16,
    /// Segments resent since the connection began.
    pub retransmits: u32,
    /// Timeouts in a row of the oldest unacknowledged segment, each with a resend and no answer.
    pub timeouts: u8,
    /// Probes in a row without an answer: the kernel asks whether the other end exists, or takes
    /// data again.
    pub probes: u8,
    /// How often the pause before the next resend or probe was doubled.
    pub backoff: u8,
    /// How long ago data came; if none ever did, since the connection was made. While it is being
    /// connected, this and `heard_ns` are as `age_ns`.
    pub received_ns: u64,
    /// How long ago anything came: data, or an acknowledgement.
    pub heard_ns: u64,
    /// How long ago the kernel was asked. A subscriber gets only changed samples: for it, how long
    /// ago this sample was first seen.
    pub age_ns: u64,
}

impl SocketSnapshot {
    /// Whether the network held the connection up for at least half of the second before the
    /// sample: it had something to send, and the receiver would have taken it.
    #[must_use]
    pub const fn is_held_up(&self) -> bool {
        self.busy_pct.saturating_sub(self.rwnd_pct) >= 50
    }

    /// Unanswered tries in a row of the other host; 0 if no answer is overdue.
    ///
    /// One probe may be on its way.
    #[must_use]
    pub const fn unanswered(&self) -> u8 {
        if self.timeouts > 0 || self.probes > 1 {
            if self.timeouts > self.probes { self.timeouts } else { self.probes }
        } else {
            0
        }
    }
}
