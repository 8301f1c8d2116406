//! Words of a row of `Ports`: a port of a device that is open. From layout 12 on.
//!
//! The service thread writes it: what an event says at once, the rest once a second.

/// The identity of the port. Stored last.
///
/// [`super::RowState`] | its number << 8 | number of its
/// [`PortLayer`](crate::snapshot::PortLayer) << 16 | whether its address is a GID << 24.
pub const WHAT: usize = 0;
/// Reference of the name of its device.
pub const DEVICE: usize = 1;
/// The address by which it is reached, two words: the bytes of the GID, or the LID.
pub const ADDRESS: usize = 2;
/// Its state: a number of [`PortStanding`](crate::snapshot::PortStanding); 0: not known.
pub const STATE: usize = 4;
/// Megabits a second.
pub const SPEED: usize = 5;
/// The code of the last event of the device about it, `enum ibv_event_type` of verbs.h, plus 1; 0:
/// there was none. Stored after [`EVENT_AT`].
pub const EVENT: usize = 6;
/// Raw time when that was read.
pub const EVENT_AT: usize = 7;
/// Raw time when the rest was sampled.
pub const SAMPLED_AT: usize = 8;
/// The first of [`COUNTS_COUNT`] counts of the device, each plus 1; 0: the device has none.
///
/// In this order: packets that were sent anew because no acknowledgement came in time; answers that
/// a packet was missing; answers that the other side had no receive posted; requests that were
/// given up after all tries.
pub const COUNTS: usize = 9;
/// The number of counts.
pub const COUNTS_COUNT: usize = 4;
/// Words of a row.
pub const WORDS: usize = 16;
