//! Unchanged programs that only get the path of an NVTX tool: the tool sees one range per call and
//! phase, at the right place and time.

#![expect(clippy::print_stdout, reason = "how near they were")]

use std::collections::BTreeSet;

use ccl::types::Phase;
use ccl_tests::nvtx::{self, BYTES, CALLS, LOOSE_BYTES, LOOSE_ROUNDS, ROUNDS, Range, Seen, Span};

/// How far half of the ranges may be from the recorder's times: the two readings are next to each
/// other in the code.
const NEAR_NS: u64 = 5_000;
/// How far 95 % may be: the first use of a tool's code and memory is slow.
const FAR_NS: u64 = 100_000;

/// The differences between the times of ranges and of a recorder.
///
/// `has_end` says whether both end at the same time.
fn distances<'a>(
    pairs: impl Iterator<Item = (&'a Range, &'a Span)>,
    has_end: impl Fn(&Span) -> bool,
) -> Vec<u64> {
    let mut distances = Vec::new();
    for (range, span) in pairs {
        distances.push(range.began_ns.abs_diff(span.began_ns));
        if has_end(span) {
            distances.push(range.ended_ns.abs_diff(span.ended_ns));
        }
    }
    distances
}

/// Asserts that they are near; prints how near.
fn assert_near(what: &str, mut distances: Vec<u64>) {
    distances.sort_unstable();
    let at = |share: f64| distances[((distances.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: of {} half within {} ns, 95 % within {} ns, all within {} ns",
        distances.len(),
        at(0.5),
        at(0.95),
        at(1.0)
    );
    assert!(at(0.5) <= NEAR_NS, "{what}: half are not within {NEAR_NS} ns");
    assert!(at(0.95) <= FAR_NS, "{what}: 95 % are not within {FAR_NS} ns");
}

/// Pairs ranges and spans: one range per call and phase, in the same order and of the same size.
///
/// The last range is that of leaving, which the recorder keeps elsewhere.
fn pair_up(seen: &Seen) -> impl Iterator<Item = (&Range, &Span)> {
    let of_range = |range: &Range| (range.name.clone(), range.says.clone(), range.payload);
    let of_span = |span: &Span| (span.name.clone(), span.says.clone(), span.bytes);
    let Some((last, ranges)) = seen.ranges.split_last() else { panic!("no ranges") };
    assert_eq!((&*last.name, last.payload), ("finish", None));
    let ranges: Vec<_> = ranges.iter().map(of_range).collect();
    let spans: Vec<_> = seen.spans.iter().map(of_span).collect();
    assert_eq!(ranges, spans);
    assert!(seen.ranges.iter().all(|range| range.domain == "CCL"), "{:?}", seen.ranges);
    let phases: Vec<String> = Phase::INIT.iter().map(|phase| format!("init {phase}")).collect();
    let begun: Vec<&String> = seen.ranges.iter().take(phases.len()).map(|range| &range.name).collect();
    assert_eq!(begun, phases.iter().collect::<Vec<_>>());
    seen.ranges.iter().zip(&seen.spans)
}

#[test]
fn hello_as_it_is_has_a_range_per_phase_and_one_for_its_all_reduce() {
    let mut off = Vec::new();
    for (rank, seen) in nvtx::run("hello", 4, 1).iter().enumerate() {
        let hello = format!("hello from rank {rank} of 4: the sum is 10");
        assert!(seen.text.contains(&hello), "{}", seen.text);
        assert_eq!(seen.ranges.len(), Phase::INIT.len() + 2);
        assert_eq!(seen.threads, ["ccl-service"]);
        assert!(seen.ranges.iter().all(|range| range.thread == seen.pid), "{:?}", seen.ranges);
        let call = &seen.ranges[Phase::INIT.len()];
        assert_eq!((call.name.as_str(), call.payload), ("AllReduce", Some(4_000)));
        off.extend(distances(pair_up(seen), |_| true));
    }
    assert_near("hello", off);
}

#[test]
fn every_kind_of_call_has_its_range() {
    let (mut off, mut begins) = (Vec::new(), Vec::new());
    for seen in nvtx::run("ranges", 4, CALLS) {
        let threads: BTreeSet<&str> = seen.threads.iter().map(String::as_str).collect();
        assert_eq!(threads, BTreeSet::from(["ccl-progress", "ccl-service"]));
        let count = |bytes: usize| seen.ranges.iter().filter(|r| r.payload == Some(bytes as u64)).count();
        // The barriers have no bytes, including the one of another thread.
        assert_eq!(count(BYTES), ROUNDS * 6);
        assert_eq!(count(0), ROUNDS + 1);
        assert_eq!(count(LOOSE_BYTES), LOOSE_ROUNDS * 3);
        let elsewhere: Vec<&Range> = seen.ranges.iter().filter(|range| range.thread != seen.pid).collect();
        assert!(matches!(elsewhere[..], [Range { name, .. }] if name == "Barrier"), "{elsewhere:?}");
        let is_loose = |span: &Span| span.bytes == Some(LOOSE_BYTES as u64);
        off.extend(distances(pair_up(&seen).filter(|(_, span)| !is_loose(span)), |_| true));
        begins.extend(distances(pair_up(&seen).filter(|(_, span)| is_loose(span)), |_| false));
        // The two ranges of a group are nested.
        let groups = seen.ranges.windows(2).filter(|two| two[0].name == "Send" && two[1].name == "Recv");
        let nested = groups.filter(|two| two[1].ended_ns <= two[0].ended_ns).count();
        assert_eq!(nested, LOOSE_ROUNDS);
    }
    println!("cases: ranges {}", off.len() + begins.len());
    assert_near("calls", off);
    assert_near("calls of groups and asynchronous ones: begins", begins);
}
