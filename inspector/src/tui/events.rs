//! Events as text.

use ccl::clock::Scale;
use ccl::diagnose::duration;
use ccl::error::ErrorKind;
use ccl::event::Event;
use ccl::snapshot::Why;
use ccl::sys::verbs::AsyncEvent;
use ccl::sys::verbs::words::status_name;
use ccl::types::{Direction, Rank};

use super::scene::{bytes, channel};

/// An event in words; `None` if it does not interest a reader.
pub(crate) fn text(event: &Event, scale: &Scale) -> Option<String> {
    let all = |peer: &Option<Rank>| peer.map_or_else(|| "all".to_string(), |peer| format!("rank {peer}"));
    Some(match event {
        Event::PhaseEnded { phase, duration_ns } => format!("{phase} ended after {}", duration(*duration_ns)),
        Event::LinkUp { channel: id, peer, direction, transport, why } => {
            let (direction, transport) = (direction.name().to_lowercase(), transport.name().to_lowercase());
            let why =
                why.map(|why| format!(" ({})", Why::from(why).word().replace('_', " "))).unwrap_or_default();
            format!("link up: {} {direction} {} over {transport}{why}", channel(*id), all(peer))
        }
        Event::OpPlanned { kind, seq, algorithm, bytes: size, .. } => {
            format!("{kind} #{seq} planned: {}, {}", algorithm.name(), bytes(*size))
        }
        Event::OpCompleted { kind, seq, bytes: size, duration_ticks, algorithm, dtype, op, .. } => {
            let took = duration(scale.ns(*duration_ticks));
            let what = if kind.reduces() { format!(" {op} {dtype}") } else { String::new() };
            format!("{kind} #{seq} completed in {took}: {}{what}, {}", bytes(*size), algorithm.name())
        }
        Event::OpFailed { kind, seq, error, peer, .. } => {
            let why =
                ErrorKind::from_u8(*error).map_or_else(|| "unknown".to_string(), |kind| format!("{kind:?}"));
            let peer = peer.map(|peer| format!(", rank {peer}")).unwrap_or_default();
            format!("{kind} #{seq} FAILED: {why}{peer}")
        }
        Event::MessageSent { channel: id, peer, step, bytes: size, .. } => {
            format!("message {step} sent on {} to {}: {}", channel(*id), all(peer), bytes((*size).into()))
        }
        Event::MessageTaken { channel: id, peer, step, bytes: size, .. } => {
            format!("message {step} taken on {} from rank {peer}: {}", channel(*id), bytes((*size).into()))
        }
        Event::ProxyStepEntered { channel: id, peer, direction, step, state, .. } => {
            let way = if *direction == Direction::Send { "to" } else { "from" };
            format!("step {step} {way} rank {peer} on {}: {state}", channel(*id))
        }
        Event::WaitBegan { channel: id, peer, reason } => {
            format!("wait began on {} for rank {peer}: {reason}", channel(*id))
        }
        Event::WaitEnded { channel: id, peer, duration_ticks, .. } => {
            let whom = peer.map(|peer| format!(" for rank {peer}")).unwrap_or_default();
            let lasted = duration(scale.ns(*duration_ticks));
            format!("wait ended on {}{whom} after {lasted}", channel(*id))
        }
        Event::PeerLost { peer } => format!("rank {peer} LOST"),
        Event::MismatchFound { peer, seq } => format!("MISMATCH at #{seq} with rank {peer}"),
        Event::StallFound { standing, class, reason, culprit, since_ns } => {
            let standing = standing.word().to_uppercase();
            let whom = culprit.map(|rank| format!(" by rank {rank}")).unwrap_or_default();
            format!("{standing}{whom}: {class}, {reason}, for {}", duration(*since_ns))
        }
        Event::StallEnded { duration_ns } => format!("RECOVERED after {}", duration(*duration_ns)),
        Event::QueuePairChanged { channel: id, peer, direction, number, state } => {
            let way = if *direction == Direction::Send { "to" } else { "from" };
            format!("queue pair {number} {way} rank {peer} on {} is {state}", channel(*id))
        }
        Event::WorkFailed { channel: id, peer, direction, number, status, vendor } => {
            let way = if *direction == Direction::Send { "to" } else { "from" };
            let name = status_name(*status);
            format!(
                "queue pair {number} {way} rank {peer} on {} FAILED: {name} ({status}, vendor {vendor:#x})",
                channel(*id)
            )
        }
        Event::PortChanged { port, code, device } => {
            format!("device {device} port {port}: {}", AsyncEvent::name_of(*code))
        }
        Event::Aborted => "ABORTED".to_string(),
        // The anchor is recorded once a second for programs; the tag stands beside the operation.
        Event::ClockAnchored { .. } | Event::Tagged { .. } => return None,
        Event::Unknown { code } => format!("event {code}, of a later version"),
    })
}
