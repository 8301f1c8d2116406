//! InfiniBand verbs as values that free themselves: a device, its ports, registered memory,
//! completion queues and queue pairs.
//!
//! A value keeps alive what it was made from, so the order in which values are dropped does not
//! matter. Nothing here waits, except for changes of a queue pair's state, for which the kernel may
//! resolve an address.
//!
//! Memory that is registered belongs to the device as well, until its region is dropped. That of
//! queue pairs is a [`Mapping`], which is accessed through atomics and raw pointers only; other
//! memory is registered by an unsafe function, which says what its caller promises.
//!
//! A forked child has copies of these values. They give nothing back there, because the device's
//! objects are the parent's.
//!
//! Without the feature `verbs` there are no devices (`absent`), and no other difference.
//!
//! [`Mapping`]: crate::sys::shared::Mapping

#[cfg(not(feature = "verbs"))]
mod absent;
mod address;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod queue;
#[cfg(feature = "ibverbs")]
pub mod self_test;
pub mod words;

pub use address::Address;

#[cfg(not(feature = "verbs"))]
pub use absent::{BATCH, Channel, Context, Cq, Domain, Qp, Region, names, open};
#[cfg(feature = "verbs")]
pub use device::{Context, Domain, Region, names, open};
#[cfg(feature = "verbs")]
pub use queue::{BATCH, Channel, Cq, Qp};

/// The most work requests, completion queue entries and so on of a device.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The version of its firmware.
    pub firmware: String,
    /// Its number, which is the same for all its ports.
    pub guid: u64,
    /// The number of its ports, which are counted from 1.
    pub ports: u8,
    /// The most queue pairs.
    pub queue_pairs: u32,
    /// The most work requests of a queue.
    pub requests: u32,
    /// The most entries of a completion queue.
    pub completions: u32,
    /// The most registered regions.
    pub regions: u32,
}

/// What the packets of a port travel on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Something else.
    Other,
}

impl LinkLayer {
    /// Its name, as NCCL writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "IB",
            Self::Ethernet => "RoCE",
            Self::Other => "other",
        }
    }
}

/// A port, as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortState {
    /// Its state: [`PortState::ACTIVE`] if it can be used.
    pub state: u32,
    /// What its packets travel on.
    pub link_layer: LinkLayer,
    /// The local identifier that a subnet manager gave it; 0 with Ethernet.
    pub lid: u16,
    /// The code of the largest packet: 1 is 256 bytes, each next one twice that.
    pub mtu: u32,
    /// The code of a lane's speed.
    pub speed: u32,
    /// The code of the number of lanes.
    pub width: u32,
    /// The number of its addresses.
    pub gids: u32,
}

impl PortState {
    /// The state of a port that can be used.
    pub const ACTIVE: u32 = 4;

    /// Whether it can be used.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.state == Self::ACTIVE
    }

    /// The name of its state.
    #[must_use]
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            0 => "no change",
            1 => "down",
            2 => "init",
            3 => "armed",
            4 => "active",
            5 => "active, deferred",
            _ => "unknown",
        }
    }

    /// The bytes of its largest packet.
    #[must_use]
    pub const fn mtu_bytes(&self) -> u32 {
        128 << if self.mtu < 6 { self.mtu } else { 5 }
    }

    /// Its megabits a second: the speed of a lane times the number of lanes.
    #[must_use]
    pub const fn speed_mbps(&self) -> u64 {
        let lane = match self.speed {
            1 => 2_500,
            2 => 5_000,
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            256 => 200_000,
            _ => 0,
        };
        lane * self.lanes()
    }

    /// The number of its lanes.
    #[must_use]
    pub const fn lanes(&self) -> u64 {
        match self.width {
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 1,
        }
    }
}

/// What a device reports without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// Its code, `enum ibv_event_type` of verbs.h.
    pub code: u32,
    /// What it is about.
    pub about: About,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// The device.
    Device,
    /// A port of it.
    Port(u8),
    /// A queue pair of it, by its number.
    QueuePair(u32),
    /// A queue of it that has no number.
    Queue,
}

impl AsyncEvent {
    /// The code of the event that a completion queue has overflowed or broken.
    pub const QUEUE_ERROR: u32 = 0;
    /// The code of the event that a device can be used no more.
    pub const DEVICE_FATAL: u32 = 8;
    /// The code of the event that a port can be used no more.
    pub const PORT_ERROR: u32 = 10;

    /// The name that verbs.h gives it, without the prefix.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::name_of(self.code)
    }

    /// The name of this code.
    #[must_use]
    pub const fn name_of(code: u32) -> &'static str {
        const NAMES: [&str; 20] = [
            "CQ_ERR",
            "QP_FATAL",
            "QP_REQ_ERR",
            "QP_ACCESS_ERR",
            "COMM_EST",
            "SQ_DRAINED",
            "PATH_MIG",
            "PATH_MIG_ERR",
            "DEVICE_FATAL",
            "PORT_ACTIVE",
            "PORT_ERR",
            "LID_CHANGE",
            "PKEY_CHANGE",
            "SM_CHANGE",
            "SRQ_ERR",
            "SRQ_LIMIT_REACHED",
            "QP_LAST_WQE_REACHED",
            "CLIENT_REREGISTER",
            "GID_CHANGE",
            "WQ_FATAL",
        ];
        if (code as usize) < NAMES.len() { NAMES[code as usize] } else { "unknown" }
    }
}

/// A work request that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The number that it was posted with.
    pub id: u64,
    /// 0, or why it failed: `enum ibv_wc_status` of verbs.h.
    pub status: u32,
    /// The device's own code of the failure.
    pub vendor: u32,
    /// The number that the other side sent with a message that arrived.
    pub immediate: Option<u32>,
    /// The bytes that arrived.
    pub bytes: u32,
    /// The queue pair, by its number.
    pub queue_pair: u32,
}

/// How many work requests a queue pair can have under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth {
    /// Sends and writes.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
}

/// Where a queue pair begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// The port of its device.
    pub port: u8,
    /// The index of the partition key.
    pub pkey: u16,
}

/// The other end of a queue pair, and the terms on which packets travel to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The port on this side.
    pub port: u8,
    /// The index of this side's address.
    pub gid_index: u8,
    /// The other side's address; `None`: its local identifier is enough.
    pub gid: Option<[u8; 16]>,
    /// The other side's local identifier.
    pub lid: u16,
    /// The other queue pair's number.
    pub queue_pair: u32,
    /// The number of the first packet that it sends.
    pub first_packet: u32,
    /// The code of the largest packet that both sides can take.
    pub mtu: u32,
    /// The traffic class.
    pub traffic_class: u8,
    /// The service level.
    pub service_level: u8,
}

/// How patient a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A packet is sent again after 4.096 us times two to this power.
    pub timeout: u8,
    /// How often. The software card takes 7 as "for ever".
    pub retries: u8,
    /// How often while the other side has no receive posted; 7 is "for ever".
    pub unready_retries: u8,
}

/// The state of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum QpState {
    /// It was made, or made anew.
    Reset,
    /// It has a port; receives can be posted.
    Init,
    /// It knows its other end and can receive.
    ReadyToReceive,
    /// It can send.
    ReadyToSend,
    /// Its send queue is being drained.
    Drained,
    /// Its send queue has failed.
    SendError,
    /// It has failed: work requests that are posted end at once.
    Error,
    /// Not known.
    Unknown,
}

impl QpState {
    /// Its name, as verbs.h writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Drained => "SQD",
            Self::SendError => "SQE",
            Self::Error => "ERR",
            Self::Unknown => "unknown",
        }
    }
}

impl Write<'_> {
    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.own.len + self.lent.map_or(0, |(_, piece)| piece.len)
    }
}

/// Bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Piece {
    /// The first byte, counted from the region's.
    pub at: usize,
    /// How many.
    pub len: usize,
}

/// A write into the memory of the other side.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The number that its completion has.
    pub id: u64,
    /// What is written: bytes of the queue pair's region.
    pub own: Piece,
    /// And after them bytes of another one of its domain.
    pub lent: Option<(&'a Region, Piece)>,
    /// Where to: an address of the other side.
    pub to: u64,
    /// The key of the region there.
    pub key: u32,
    /// A number that completes a receive of the other side.
    pub immediate: Option<u32>,
    /// Whether its success is a completion; its failure always is one.
    pub signaled: bool,
}
