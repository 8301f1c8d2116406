//! Queue pairs of links, and the ports of the devices that they are on.

use serde::{Deserialize, Serialize};

use super::words::words;
use crate::sys::verbs::{LinkLayer, QpState};
use crate::types;

// Recorders and events hold the numbers of these words: a new word goes to the end.
words! {
    /// The state of a queue pair, as verbs.h writes it.
    QueuePairState {
        /// It was made, or made anew.
        Reset = "RESET",
        /// It has a port; receives can be posted.
        Init = "INIT",
        /// It knows its other end and can receive.
        ReadyToReceive = "RTR",
        /// It can send.
        ReadyToSend = "RTS",
        /// Its send queue is being drained.
        Drained = "SQD",
        /// Its send queue has failed.
        SendError = "SQE",
        /// It has failed: what is posted ends at once.
        Error = "ERR",
    }
}
words! {
    /// The state of a port.
    PortStanding {
        /// It has no link.
        Down = "down",
        /// It has a link, and waits for a subnet manager.
        Init = "init",
        /// It is configured, and carries no data yet.
        Armed = "armed",
        /// It can be used.
        Active = "active",
        /// It can be used, and its link has failed a moment ago.
        Deferred = "active, deferred",
    }
}
words! {
    /// What the packets of a port travel on.
    PortLayer {
        /// InfiniBand.
        InfiniBand = "IB",
        /// Ethernet.
        Ethernet = "RoCE",
    }
}
words! {
    /// How far the set-up of a link over queue pairs is, with the names of NCCL.
    SetUp {
        /// It has not begun, or begins anew.
        Start = "Start",
        /// This side connects to the other one.
        Connect = "Connect",
        /// It waits for the other side to connect.
        Accept = "Accept",
        /// It has told the other side what it has, and waits for the answer.
        Send = "Send",
        /// It waits for what the other side has.
        Recv = "Recv",
        /// Its queue pairs know their other ends; the other side is told, or has to say so.
        Connecting = "Connecting",
        /// It is up.
        Connected = "Connected",
    }
}

impl From<QpState> for QueuePairState {
    fn from(state: QpState) -> Self {
        match state {
            QpState::Reset => Self::Reset,
            QpState::Init => Self::Init,
            QpState::ReadyToReceive => Self::ReadyToReceive,
            QpState::ReadyToSend => Self::ReadyToSend,
            QpState::Drained => Self::Drained,
            QpState::SendError => Self::SendError,
            QpState::Error => Self::Error,
            QpState::Unknown => Self::Unknown,
        }
    }
}

impl From<LinkLayer> for PortLayer {
    fn from(layer: LinkLayer) -> Self {
        match layer {
            LinkLayer::InfiniBand => Self::InfiniBand,
            LinkLayer::Ethernet => Self::Ethernet,
            LinkLayer::Other => Self::Unknown,
        }
    }
}

impl From<types::SetupState> for SetUp {
    fn from(state: types::SetupState) -> Self {
        match state {
            types::SetupState::Start => Self::Start,
            types::SetupState::Connect => Self::Connect,
            types::SetupState::Accept => Self::Accept,
            types::SetupState::Send => Self::Send,
            types::SetupState::Recv => Self::Recv,
            types::SetupState::Connecting => Self::Connecting,
            types::SetupState::Connected => Self::Connected,
        }
    }
}

/// A queue pair of a link.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePairSnapshot {
    /// Its number among the queue pairs of its link, from 0.
    pub nth: u32,
    /// The name of its device.
    pub device: String,
    /// The port of the device.
    pub port: u8,
    /// Its number, which the device gave it.
    pub number: u32,
    /// The address of the port: of IPv4 or IPv6, or `lid 3`.
    pub address: String,
    /// The port of the queue pair that it is connected to.
    pub peer_port: u8,
    /// The number of that one.
    pub peer_number: u32,
    /// The address of that one's port.
    pub peer_address: String,
    /// Its state, when the link came up or since it has failed.
    pub state: QueuePairState,
    /// The writes that were posted: of a sender messages or parts of them, of a receiver notices
    /// that slots are free.
    pub posted: u64,
    /// How many of them have completed: the other side's device has acknowledged them.
    pub completed: u64,
    /// Of a sender, the messages that its receiver has room for. Of a receiver, the messages that
    /// it has freed and not yet told its sender of.
    pub credits: u64,
    /// The bytes that it was told to write, or that have arrived on it.
    pub bytes: u64,
    /// How long ago this side saw that something had completed on it, a message that arrived
    /// included; absent if nothing has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_ns: Option<u64>,
    /// The first work request that failed; absent if none has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<WorkFailure>,
}

impl QueuePairSnapshot {
    /// It and the one it is connected to: `queue pair 17 on rxe0 port 1 (10.89.0.1) to 18
    /// (10.89.0.2)`.
    #[must_use]
    pub fn ends(&self) -> String {
        let Self { number, device, port, address, peer_number, peer_address, .. } = self;
        format!("queue pair {number} on {device} port {port} ({address}) to {peer_number} ({peer_address})")
    }
    /// The writes that have not completed.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.posted.saturating_sub(self.completed)
    }
}

/// Why a work request of a queue pair failed.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkFailure {
    /// The status: `enum ibv_wc_status` of verbs.h.
    pub status: u32,
    /// Its name, without the prefix: `RETRY_EXC_ERR`.
    pub name: String,
    /// The device's own code.
    pub vendor: u32,
    /// How long ago it was seen.
    pub ago_ns: u64,
}

/// A port of a device that a process has open. Its counts are those of the device, whoever uses it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PortSnapshot {
    /// The name of its device.
    pub device: String,
    /// Its number, from 1.
    pub port: u8,
    /// Its state.
    pub state: PortStanding,
    /// What its packets travel on.
    pub layer: PortLayer,
    /// The address that is used: of IPv4 or IPv6, or `lid 3`.
    pub address: String,
    /// Its speed in megabits a second.
    pub speed_mbps: u64,
    /// What the device last reported of it without being asked; absent if it has reported nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<PortEvent>,
    /// Packets of the device that were sent anew because no acknowledgement had come in time;
    /// absent if it does not count them, as the next three.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Answers to the device that a packet was missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Answers to the device that the other side had no receive posted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<u64>,
    /// Requests of the device that were given up after all tries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up: Option<u64>,
    /// How long ago the state and the counts were read.
    pub age_ns: u64,
}

/// What a device reported without being asked.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PortEvent {
    /// Its code: `enum ibv_event_type` of verbs.h.
    pub code: u32,
    /// Its name, without the prefix: `PORT_ERR`.
    pub name: String,
    /// How long ago it was read.
    pub ago_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_numbers_that_the_kernel_and_recorders_use() {
        assert_eq!(PortStanding::numbered(4), PortStanding::Active);
        assert_eq!(QueuePairState::from(QpState::Error).number(), 7);
        for state in types::SetupState::ALL {
            assert_eq!(SetUp::from(*state), SetUp::numbered(*state as u8 + 1));
            assert_eq!(SetUp::from(*state).word(), state.name());
        }
    }
}
