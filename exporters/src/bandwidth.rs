//! The bandwidth of an operation, as nccl-tests defines it: its algorithm bandwidth is bytes over
//! time; its bus bandwidth is what a link between ranks had to carry, so that operations and
//! numbers of ranks can be compared with the hardware.

use ccl::types::CollKind;

/// The bytes that count: of all ranks together if each has its own block. `bytes` is the size of
/// the request, as in events; where blocks differ, that of a mean block.
#[must_use]
pub const fn size(kind: CollKind, ranks: u32, bytes: u64) -> u64 {
    if kind.has_blocks() { bytes.saturating_mul(ranks as u64) } else { bytes }
}

/// Algorithm bandwidth in GB/s (bytes per nanosecond); `None` if no bytes were moved, or in no
/// time.
#[must_use]
pub fn algbw(kind: CollKind, ranks: u32, bytes: u64, ns: u64) -> Option<f64> {
    let size = size(kind, ranks, bytes);
    (size > 0 && ns > 0).then(|| size as f64 / ns as f64)
}

/// Bus bandwidth in GB/s; `None` as for [`algbw`].
#[must_use]
pub fn busbw(kind: CollKind, ranks: u32, bytes: u64, ns: u64) -> Option<f64> {
    Some(algbw(kind, ranks, bytes, ns)? * factor(kind, ranks))
}

/// How often each byte crosses a link.
fn factor(kind: CollKind, ranks: u32) -> f64 {
    let n = f64::from(ranks.max(1));
    match kind {
        CollKind::AllReduce => 2.0 * (n - 1.0) / n,
        _ if kind.has_blocks() => (n - 1.0) / n,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        // 4 ranks, 1,000 bytes of the request, 500 ns.
        let check = |kind, alg: f64, bus: f64| {
            let got = (algbw(kind, 4, 1_000, 500).unwrap(), busbw(kind, 4, 1_000, 500).unwrap());
            assert!((got.0 - alg).abs() < 1e-9 && (got.1 - bus).abs() < 1e-9, "{kind}: {got:?}");
        };
        check(CollKind::AllReduce, 2.0, 3.0);
        // The request has the size of one rank's block, of which there are four.
        for kind in [
            CollKind::AllGather,
            CollKind::ReduceScatter,
            CollKind::AllToAll,
            CollKind::Gather,
            CollKind::Scatter,
        ] {
            check(kind, 8.0, 6.0);
        }
        for kind in [CollKind::Broadcast, CollKind::Reduce, CollKind::Send, CollKind::Recv] {
            check(kind, 2.0, 2.0);
        }
    }

    #[test]
    fn what_moves_nothing_has_no_bandwidth() {
        assert_eq!(algbw(CollKind::Barrier, 4, 0, 500), None);
        assert_eq!(busbw(CollKind::AllReduce, 4, 8, 0), None);
        // A single rank has no link.
        assert_eq!(busbw(CollKind::AllReduce, 1, 8, 8), Some(0.0));
        assert_eq!(size(CollKind::AllGather, u32::MAX, u64::MAX), u64::MAX);
    }
}
