//! Selects the algorithm, the number of channels and the chunk size of a request.
//!
//! It is integer arithmetic on values that all ranks know, so all ranks decide the same.

use super::direct::MOST_TO_ROOT;
use super::layout::LINE;
use super::{MAX_SOURCES, PAIR_SLOT_BYTES, SHARED_SLOT_BYTES, Shape, Topology, WIRE_SLOT_BYTES};
use crate::collective::Request;
use crate::types::{Algorithm, CollKind, Rank};

/// The most bytes of the one-shot algorithm. Above, reducing only a slice per rank is faster.
pub const ONE_SHOT_BYTES_MOST: u64 = 2048;
/// The most bytes of a message of the one-shot algorithm; it matters only where that is forced.
const ONE_SHOT_CHUNK: u32 = 16 << 10;
/// The most ranks of a direct plan. With more, a slice could be shorter than an element.
const DIRECT_RANKS_MOST: u32 = 1024;
/// The number of messages that data is cut into where some ranks write while others read.
///
/// While one message is read, the next is filled. The messages do not become shorter than the least
/// chunk. Where all ranks write and then all read, there is nothing to overlap.
const MESSAGES_WANTED: u64 = 2;
/// The least chunk of a direct plan. Below, a message costs more than overlapping gains.
const DIRECT_CHUNK_LEAST: u64 = 16 << 10;
/// The least chunk of a chain or a pair, whose messages cost less.
const CHAIN_CHUNK_LEAST: u64 = 4 << 10;
/// The least number of bytes per channel.
const CHANNEL_BYTES_LEAST: u64 = 16 << 10;

/// The decisions about the `request` of rank `me`, equal on all ranks that take part.
///
/// `forced` is followed where possible. An algorithm that needs one host falls back to the ring. An
/// algorithm that cannot carry the request is replaced by the nearest one that can.
#[must_use]
pub fn select(topology: &Topology, me: Rank, request: &Request, forced: Option<Algorithm>) -> Shape {
    let algorithm = algorithm(topology, request, forced);
    let (n, bytes) = (u64::from(topology.nranks()), request.bytes());
    let (channels, chunk) = match algorithm {
        Algorithm::OneShot => (1, ONE_SHOT_CHUNK),
        Algorithm::Direct => (1, direct_chunk(request.kind, n, bytes)),
        Algorithm::Ring => ring(topology, request.kind, n, bytes),
        Algorithm::Pair if topology.group(me) != topology.group(request.root) => {
            (1, chunk(bytes, 1, CHAIN_CHUNK_LEAST, WIRE_SLOT_BYTES))
        }
        // Ranks that do not know each other's counts choose the same.
        Algorithm::Pairwise if request.uneven => (1, PAIR_SLOT_BYTES),
        Algorithm::Pair | Algorithm::Tree | Algorithm::Pairwise => {
            (1, chunk(bytes, MESSAGES_WANTED, CHAIN_CHUNK_LEAST, PAIR_SLOT_BYTES))
        }
    };
    Shape { algorithm, channels, chunk }
}

#[inline]
fn algorithm(topology: &Topology, request: &Request, forced: Option<Algorithm>) -> Algorithm {
    if request.kind.is_p2p() {
        return Algorithm::Pair;
    }
    if matches!(request.kind, CollKind::AllToAll | CollKind::Gather | CollKind::Scatter) {
        return Algorithm::Pairwise;
    }
    let n = topology.nranks();
    let one_shot = topology.one_host()
        && n <= MAX_SOURCES as u32
        && matches!(request.kind, CollKind::AllReduce | CollKind::Barrier);
    let direct = topology.one_host()
        && n <= if request.kind == CollKind::Reduce { MOST_TO_ROOT } else { DIRECT_RANKS_MOST };
    let fits = request.bytes() <= ONE_SHOT_BYTES_MOST;
    match forced {
        Some(Algorithm::Ring) => Algorithm::Ring,
        Some(Algorithm::Tree) if request.kind == CollKind::AllReduce => Algorithm::Tree,
        Some(Algorithm::OneShot) if one_shot => Algorithm::OneShot,
        Some(Algorithm::Direct) if direct => Algorithm::Direct,
        _ if one_shot && fits => Algorithm::OneShot,
        _ if direct => Algorithm::Direct,
        _ => Algorithm::Ring,
    }
}

/// A chunk that cuts `bytes` into `messages` messages, within bounds and in whole cache lines.
fn chunk(bytes: u64, messages: u64, least: u64, most: u32) -> u32 {
    (bytes / messages).clamp(least, u64::from(most)).next_multiple_of(LINE) as u32
}

fn direct_chunk(kind: CollKind, n: u64, bytes: u64) -> u32 {
    // Bytes that one rank publishes for the others to read.
    let (published, messages) = match kind {
        CollKind::AllReduce | CollKind::Reduce => (bytes / n * (n - 1), 1),
        CollKind::ReduceScatter => (bytes * (n - 1), 1),
        CollKind::AllGather => (bytes, 1),
        _ => (bytes, MESSAGES_WANTED),
    };
    chunk(published, messages, DIRECT_CHUNK_LEAST, SHARED_SLOT_BYTES)
}

fn ring(topology: &Topology, kind: CollKind, n: u64, bytes: u64) -> (u16, u32) {
    // Bytes that one rank sends in one turn of the ring.
    let chunk_bytes = if kind == CollKind::AllReduce { bytes / n } else { bytes };
    let channels = (chunk_bytes / CHANNEL_BYTES_LEAST).clamp(1, u64::from(topology.channels())) as u16;
    let chain = matches!(kind, CollKind::Broadcast | CollKind::Reduce);
    // In a chain every rank waits for one message of each rank before it. The longer the chain is,
    // the more and shorter messages are used.
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
        Request { kind, dtype: Datatype::F32, op: ReduceOp::Sum, root: Rank(0), count, uneven: false }
    }

    #[test]
    fn size_and_topology_choose() {
        let one = Topology::new(&[1; 4], 2);
        let many = Topology::new(&[1; 12], 2);
        let two = Topology::new(&[1, 1, 2, 2], 2);
        let check = |t: &Topology, kind, count, forced, expect| {
            let shape = select(t, Rank(1), &request(kind, count), forced);
            assert_eq!(shape.algorithm, expect, "{kind} {count} {forced:?}");
            assert!(shape.chunk.is_multiple_of(64) && shape.chunk > 0 && shape.channels >= 1);
            let most = match shape.algorithm {
                Algorithm::Ring | Algorithm::Pair | Algorithm::Tree | Algorithm::Pairwise => PAIR_SLOT_BYTES,
                Algorithm::Direct | Algorithm::OneShot => SHARED_SLOT_BYTES,
            };
            assert!(shape.chunk <= most);
        };
        use Algorithm::{Direct, OneShot, Pair, Pairwise, Ring, Tree};
        check(&one, CollKind::AllReduce, 512, None, OneShot);
        check(&one, CollKind::AllReduce, 513, None, Direct);
        check(&one, CollKind::AllReduce, 513, Some(OneShot), OneShot);
        check(&one, CollKind::AllReduce, 1 << 40, None, Direct);
        check(&one, CollKind::AllReduce, 4, Some(Direct), Direct);
        check(&one, CollKind::AllReduce, 4, Some(Ring), Ring);
        check(&one, CollKind::AllReduce, 4, Some(Pair), OneShot);
        check(&one, CollKind::Barrier, 0, None, OneShot);
        check(&one, CollKind::AllGather, 1, Some(OneShot), Direct);
        check(&one, CollKind::Reduce, 1, None, Direct);
        check(&many, CollKind::AllReduce, 1, None, Direct);
        check(&many, CollKind::Reduce, 1, Some(Direct), Ring);
        check(&two, CollKind::AllReduce, 1, Some(Direct), Ring);
        check(&two, CollKind::Barrier, 0, Some(OneShot), Ring);
        check(&two, CollKind::AllReduce, 1 << 20, Some(Tree), Tree);
        check(&one, CollKind::AllReduce, 1, Some(Tree), Tree);
        check(&two, CollKind::Barrier, 0, Some(Tree), Ring);
        check(&two, CollKind::Send, 5, Some(Ring), Pair);
        check(&one, CollKind::AllToAll, 5, Some(Direct), Pairwise);
        check(&two, CollKind::Gather, 5, None, Pairwise);
        check(&two, CollKind::Scatter, 5, Some(Ring), Pairwise);
    }

    #[test]
    fn only_between_hosts_a_pair_fills_the_longest_slots() {
        let two = Topology::new(&[1, 1, 2], 2);
        let chunk = |me, root, count| {
            let send = Request { root: Rank(root), ..request(CollKind::Send, count) };
            let recv = Request { kind: CollKind::Recv, root: Rank(me), ..send };
            let [ours, theirs] = [(me, send), (root, recv)].map(|(me, it)| select(&two, Rank(me), &it, None));
            assert_eq!(ours, theirs);
            ours.chunk
        };
        assert_eq!([chunk(0, 1, 16 << 10), chunk(0, 2, 16 << 10)], [PAIR_SLOT_BYTES, WIRE_SLOT_BYTES]);
        assert_eq!([chunk(0, 1, 1 << 20), chunk(2, 1, 1 << 20)], [PAIR_SLOT_BYTES, WIRE_SLOT_BYTES]);
        assert_eq!([chunk(0, 1, 4 << 10), chunk(0, 2, 4 << 10)], [8 << 10, 16 << 10]);
    }

    #[test]
    fn little_data_keeps_to_one_channel() {
        let two = Topology::new(&[1, 2], 4);
        assert_eq!(select(&two, Rank(0), &request(CollKind::AllReduce, 1), None).channels, 1);
        assert_eq!(select(&two, Rank(0), &request(CollKind::AllReduce, 1 << 20), None).channels, 4);
    }
}
