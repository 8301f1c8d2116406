//! A message from a port to itself, through the crate `ibverbs`: whether device, driver and address
//! work at all. Not what carries messages of ranks, which is the transport `ib`.
//!
//! That crate asserts what it expects, and its destructors panic where the kernel refuses. So the
//! caller catches panics, and what was made is destroyed here only after the message has arrived:
//! otherwise it is left to the end of the process. Then a device that does not answer cannot write
//! to memory that was given back, and no panic follows another one, which would end the process.

use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use ibverbs::{ibv_qp_type, ibv_wc};

/// The bytes of the message.
pub const BYTES: usize = 64;
/// The only port that the crate uses.
pub const PORT: u8 = 1;

/// Numbers of the two work requests.
const SENT: u64 = 1;
const ARRIVED: u64 = 2;
/// 67 ms until a packet is sent again: on a busy machine software cards take their time.
const TIMEOUT: u8 = 14;

/// Why no message went from a port to itself.
#[derive(Debug)]
pub enum SelfTestError {
    /// The crate cannot name this address: its table has no empty entries, unlike the port's.
    Unnameable(u32),
    /// The kernel or the device refuses a step.
    Refused {
        /// The step.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A work request failed, with this status: `enum ibv_wc_status` of verbs.h.
    Failed(u32),
    /// Not all work requests have ended in time.
    Late,
    /// Other bytes arrived than were sent.
    Differs,
}

/// Sends a message from port 1 of a device to itself, over two queue pairs, and compares what
/// arrives; returns how long it took from posting to the last completion.
///
/// `gid` is the index of the port's address, where packets need one. Waits for completions until
/// `limit` is over by the clock `now`, and for the kernel as long as that takes.
///
/// # Errors
/// The step that failed.
///
/// # Panics
/// Where the crate's assertions fail.
pub fn send_to_itself(
    device: &str,
    gid: Option<u32>,
    (limit, now): (Duration, fn() -> Duration),
) -> Result<Duration, SelfTestError> {
    let refused = |step| move |source| SelfTestError::Refused { step, source };
    let list = ibverbs::devices().map_err(refused("listing the devices"))?;
    let is_it = |one: &ibverbs::Device<'_>| one.name().is_some_and(|name| name.to_string_lossy() == device);
    let found = list.iter().find(is_it).ok_or_else(|| io::ErrorKind::NotFound.into());
    let opened = found.and_then(|device| device.open()).map_err(refused("opening the device"))?;
    let context = ManuallyDrop::new(opened);
    if let Some(index) = gid {
        let entry = usize::try_from(index).ok().and_then(|at| context.gid_table().get(at));
        if entry.is_none_or(|entry| (entry.gid_index, entry.port_num) != (index, PORT.into())) {
            return Err(SelfTestError::Unnameable(index));
        }
    }
    let queue = context.create_cq(4, 0).map_err(refused("making a completion queue"))?;
    let queue = ManuallyDrop::new(queue);
    let domain = ManuallyDrop::new(context.alloc_pd().map_err(refused("making a protection domain"))?);
    let memory =
        || domain.allocate::<u8>(BYTES).map(ManuallyDrop::new).map_err(refused("registering memory"));
    let (mut outgoing, mut incoming) = (memory()?, memory()?);
    let pair = || {
        let mut builder = domain.create_qp(&queue, &queue, ibv_qp_type::IBV_QPT_RC);
        builder.set_timeout(TIMEOUT);
        if let Some(index) = gid {
            builder.set_gid_index(index);
        }
        builder.build().map(ManuallyDrop::new).map_err(refused("making a queue pair"))
    };
    let (one, other) = (pair()?, pair()?);
    let (to_one, to_other) = (one.endpoint(), other.endpoint());
    let connected = |pair, to| {
        let prepared: ibverbs::PreparedQueuePair<'_> = ManuallyDrop::into_inner(pair);
        prepared.handshake(to).map(ManuallyDrop::new).map_err(refused("connecting a queue pair"))
    };
    let mut one = connected(one, to_other)?;
    let mut other = connected(other, to_one)?;

    outgoing.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 ^ 0xa5);
    let begin = now();
    // SAFETY: the memory is not touched until the request has ended, and given back only then.
    unsafe { other.post_receive(&mut incoming, .., ARRIVED) }.map_err(refused("posting a receive"))?;
    // SAFETY: as above.
    unsafe { one.post_send(&mut outgoing, .., SENT) }.map_err(refused("posting a send"))?;
    complete(&queue, (limit, now))?;
    let took = now().saturating_sub(begin);
    if outgoing[..] != incoming[..] {
        return Err(SelfTestError::Differs);
    }

    drop(ManuallyDrop::into_inner(one));
    drop(ManuallyDrop::into_inner(other));
    drop(ManuallyDrop::into_inner(outgoing));
    drop(ManuallyDrop::into_inner(incoming));
    drop(ManuallyDrop::into_inner(domain));
    drop(ManuallyDrop::into_inner(queue));
    drop(ManuallyDrop::into_inner(context));
    Ok(took)
}

/// Waits until both work requests have ended.
fn complete(
    queue: &ibverbs::CompletionQueue<'_>,
    (limit, now): (Duration, fn() -> Duration),
) -> Result<(), SelfTestError> {
    let end = now() + limit;
    let mut completions = [ibv_wc::default(); 4];
    let mut missing = vec![SENT, ARRIVED];
    while !missing.is_empty() {
        let polled = queue.poll(&mut completions);
        let polled =
            polled.map_err(|source| SelfTestError::Refused { step: "polling for completions", source })?;
        for completion in polled {
            if let Some((status, _)) = completion.error() {
                return Err(SelfTestError::Failed(status));
            }
            missing.retain(|id| *id != completion.wr_id());
        }
        if !missing.is_empty() && now() > end {
            return Err(SelfTestError::Late);
        }
        // The software card works in threads of the kernel.
        std::thread::yield_now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let tried = send_to_itself("no such device", None, (Duration::ZERO, || Duration::ZERO));
        assert!(matches!(tried, Err(SelfTestError::Refused { .. })), "{tried:?}");
    }
}
