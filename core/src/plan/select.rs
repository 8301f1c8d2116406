//! Which algorithm, how many channels, which chunk: integer arithmetic on what all ranks know, so that all decide the same.

use super::direct::MOST_TO_ROOT;
use super::layout::LINE;
use super::{MAX_SOURCES, PAIR_SLOT_BYTES, Shape, Topology, WIDE_SLOT_BYTES};
use crate::collective::Request;
use crate::types::{Algorithm, CollKind};

/// The most bytes everyone reads from everyone: above, it pays that each rank reduces only its slice.
pub const EXCHANGE_BYTES_MOST: u64 = 2048;
/// The most bytes of a message of an exchange that was asked for.
const EXCHANGE_CHUNK: u32 = 16 << 10;
/// The most ranks of a direct plan: with more, a slice of a message could be shorter than an element.
const DIRECT_RANKS_MOST: u32 = 1024;
/// Messages that data is cut into where some write while others read, if they do not become shorter than the least chunk:
/// while one is read, the next is filled. Where all ranks write and then all read there is nothing to overlap.
const MESSAGES_WANTED: u64 = 2;
/// The least chunk of a direct plan: below, the cost of a message outweighs what overlapping saves.
const DIRECT_CHUNK_LEAST: u64 = 16 << 10;
/// The least chunk of a chain or a pair, whose messages cost less.
const CHAIN_CHUNK_LEAST: u64 = 4 << 10;
/// The least share of a channel.
const CHANNEL_BYTES_LEAST: u64 = 16 << 10;

/// What all ranks decide about `request`. `forced` is followed where it can be: what needs one host falls back to the
/// ring, what cannot carry the request to the nearest that can.
#[must_use]
pub fn select(topology: &Topology, request: &Request, forced: Option<Algorithm>) -> Shape {
    let algorithm = algorithm(topology, request, forced);
    let (n, bytes) = (u64::from(topology.nranks()), request.bytes());
    let (channels, chunk) = match algorithm {
        Algorithm::Exchange => (1, EXCHANGE_CHUNK),
        Algorithm::Direct => (1, direct_chunk(request.kind, n, bytes)),
        Algorithm::Ring => ring(topology, request.kind, n, bytes),
        Algorithm::Pair => (1, chunk(bytes, MESSAGES_WANTED, CHAIN_CHUNK_LEAST, PAIR_SLOT_BYTES)),
    };
    Shape { algorithm, channels, chunk }
}

#[inline]
fn algorithm(topology: &Topology, request: &Request, forced: Option<Algorithm>) -> Algorithm {
    if request.kind.is_p2p() {
        return Algorithm::Pair;
    }
    let n = topology.nranks();
    let exchanges = topology.one_host
        && n <= MAX_SOURCES as u32
        && matches!(request.kind, CollKind::AllReduce | CollKind::Barrier);
    let direct = topology.one_host
        && n <= if request.kind == CollKind::Reduce { MOST_TO_ROOT } else { DIRECT_RANKS_MOST };
    let fits = request.bytes() <= EXCHANGE_BYTES_MOST;
    match forced {
        Some(Algorithm::Ring) => Algorithm::Ring,
        Some(Algorithm::Exchange) if exchanges => Algorithm::Exchange,
        Some(Algorithm::Direct) if direct => Algorithm::Direct,
        _ if exchanges && fits => Algorithm::Exchange,
        _ if direct => Algorithm::Direct,
        _ => Algorithm::Ring,
    }
}

/// A chunk that cuts `bytes` into the messages wanted, within bounds: whole cache lines.
fn chunk(bytes: u64, messages: u64, least: u64, most: u32) -> u32 {
    (bytes / messages).clamp(least, u64::from(most)).next_multiple_of(LINE) as u32
}

fn direct_chunk(kind: CollKind, n: u64, bytes: u64) -> u32 {
    // What one rank publishes for the others to read.
    let (published, messages) = match kind {
        CollKind::AllReduce | CollKind::Reduce => (bytes / n * (n - 1), 1),
        CollKind::ReduceScatter => (bytes * (n - 1), 1),
        CollKind::AllGather => (bytes, 1),
        _ => (bytes, MESSAGES_WANTED),
    };
    chunk(published, messages, DIRECT_CHUNK_LEAST, WIDE_SLOT_BYTES)
}

fn ring(topology: &Topology, kind: CollKind, n: u64, bytes: u64) -> (u16, u32) {
    // What one rank sends in one turn of the ring.
    let chunk_bytes = if kind == CollKind::AllReduce { bytes / n } else { bytes };
    let channels = (chunk_bytes / CHANNEL_BYTES_LEAST).clamp(1, u64::from(topology.channels)) as u16;
    let chain = matches!(kind, CollKind::Broadcast | CollKind::Reduce);
    // In a chain every rank waits for one message of each rank before it: more, shorter messages the longer it is.
    let chunk = if chain {
        chunk(bytes / u64::from(channels) / n, MESSAGES_WANTED, CHAIN_CHUNK_LEAST, PAIR_SLOT_BYTES)
    } else {
        PAIR_SLOT_BYTES
    };
    (channels, chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Datatype, Rank, ReduceOp};

    fn request(kind: CollKind, count: u64) -> Request {
        Request { kind, dtype: Datatype::F32, op: ReduceOp::Sum, root: Rank(0), count }
    }

    #[test]
    fn size_and_topology_choose() {
        let one = Topology::new(&[1; 4], 2);
        let many = Topology::new(&[1; 12], 2);
        let two = Topology::new(&[1, 1, 2, 2], 2);
        let check = |t: &Topology, kind, count, forced, expect| {
            let shape = select(t, &request(kind, count), forced);
            assert_eq!(shape.algorithm, expect, "{kind} {count} {forced:?}");
            assert!(shape.chunk.is_multiple_of(64) && shape.chunk > 0 && shape.channels >= 1);
            let most = match shape.algorithm {
                Algorithm::Ring | Algorithm::Pair => PAIR_SLOT_BYTES,
                Algorithm::Direct | Algorithm::Exchange => WIDE_SLOT_BYTES,
            };
            assert!(shape.chunk <= most);
        };
        use Algorithm::{Direct, Exchange, Pair, Ring};
        check(&one, CollKind::AllReduce, 512, None, Exchange);
        check(&one, CollKind::AllReduce, 513, None, Direct);
        check(&one, CollKind::AllReduce, 513, Some(Exchange), Exchange);
        check(&one, CollKind::AllReduce, 1 << 40, None, Direct);
        check(&one, CollKind::AllReduce, 4, Some(Direct), Direct);
        check(&one, CollKind::AllReduce, 4, Some(Ring), Ring);
        check(&one, CollKind::AllReduce, 4, Some(Pair), Exchange);
        check(&one, CollKind::Barrier, 0, None, Exchange);
        check(&one, CollKind::AllGather, 1, Some(Exchange), Direct);
        check(&one, CollKind::Reduce, 1, None, Direct);
        check(&many, CollKind::AllReduce, 1, None, Direct);
        check(&many, CollKind::Reduce, 1, Some(Direct), Ring);
        check(&two, CollKind::AllReduce, 1, Some(Direct), Ring);
        check(&two, CollKind::Barrier, 0, Some(Exchange), Ring);
        check(&two, CollKind::Send, 5, Some(Ring), Pair);
    }

    #[test]
    fn little_data_keeps_to_one_channel() {
        let two = Topology::new(&[1, 2], 4);
        assert_eq!(select(&two, &request(CollKind::AllReduce, 1), None).channels, 1);
        assert_eq!(select(&two, &request(CollKind::AllReduce, 1 << 20), None).channels, 4);
    }
}
