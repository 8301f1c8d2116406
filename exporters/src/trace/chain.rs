//! Ways back: if messages go between two clocks one way only, as around a ring of hosts, the
//! messages that were forwarded through other clocks bound the other way.
//!
//! A message from `b` that was taken by `c`, and a message that `c` sent later, by its own clock,
//! and `a` took, together act as one message from `b` to `a`: it was taken after it was sent. The
//! delay at `c` makes the bound looser, not wrong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::align::TimedMessage;

/// The number of messages kept for one way at each clock on it: the fastest, one per interval of
/// time.
const KEPT: i64 = 4096;

/// When a message was sent and when it was taken, each by its own clock.
type Way = (i64, i64);

/// The messages of one pair of clocks in one direction, ordered by when they were sent.
struct Lane {
    ways: Vec<Way>,
    /// Per position, when the earliest taken of the messages from there on was taken.
    first_taken: Vec<i64>,
}

impl Lane {
    fn of(mut ways: Vec<Way>) -> Self {
        ways.sort_unstable();
        let mut first_taken: Vec<i64> = ways.iter().map(|(_, taken)| *taken).collect();
        for at in (1..first_taken.len()).rev() {
            first_taken[at - 1] = first_taken[at - 1].min(first_taken[at]);
        }
        Self { ways, first_taken }
    }

    /// When the first message was taken that was sent at that time or later.
    fn taken_after(&self, ns: i64) -> Option<i64> {
        self.first_taken.get(self.ways.partition_point(|(sent, _)| *sent < ns)).copied()
    }
}

/// The messages, and for each pair of clocks with messages one way only also the composed messages
/// back through other clocks.
pub(super) fn with_ways_back(messages: &[TimedMessage]) -> Vec<TimedMessage> {
    let mut lanes: BTreeMap<(usize, usize), Vec<Way>> = BTreeMap::new();
    for message in messages.iter().filter(|message| message.from != message.to) {
        let ways = lanes.entry((message.from, message.to)).or_default();
        ways.push((message.sent_ns, message.taken_ns));
    }
    let lanes: BTreeMap<_, _> = lanes.into_iter().map(|(pair, ways)| (pair, Lane::of(ways))).collect();
    let mut all = messages.to_vec();
    for (a, b) in lanes.keys().copied().filter(|(a, b)| !lanes.contains_key(&(*b, *a))) {
        let Some(path) = shortest(&lanes, b, a) else { continue };
        let mut hops = path.windows(2).filter_map(|hop| lanes.get(&(hop[0], hop[1])));
        let mut ways = hops.next().map_or_else(Vec::new, |lane| lane.ways.clone());
        for lane in hops {
            let on = |(sent, taken): Way| Some((sent, lane.taken_after(taken)?));
            ways = thinned(ways).into_iter().filter_map(on).collect();
        }
        let message = |(sent_ns, taken_ns)| TimedMessage { from: b, sent_ns, to: a, taken_ns };
        all.extend(ways.into_iter().map(message));
    }
    all
}

/// The clocks on the way with the fewest lanes.
fn shortest(lanes: &BTreeMap<(usize, usize), Lane>, from: usize, to: usize) -> Option<Vec<usize>> {
    let mut before = BTreeMap::from([(from, from)]);
    let mut next = VecDeque::from([from]);
    while let Some(at) = next.pop_front() {
        if at == to {
            let back = std::iter::successors(Some(to), |at| before.get(at).copied().filter(|_| *at != from));
            let mut path: Vec<usize> = back.collect();
            path.reverse();
            return Some(path);
        }
        let onwards: BTreeSet<usize> =
            lanes.range((at, 0)..=(at, usize::MAX)).map(|((_, to), _)| *to).collect();
        for on in onwards {
            before.entry(on).or_insert_with(|| {
                next.push_back(on);
                at
            });
        }
    }
    None
}

/// Of many ways the fastest of each interval of time.
fn thinned(ways: Vec<Way>) -> Vec<Way> {
    let sent = || ways.iter().map(|(sent, _)| *sent);
    let (Some(first), Some(last)) = (sent().min(), sent().max()) else { return ways };
    let width = (last.saturating_sub(first) / KEPT).max(1);
    let mut kept: BTreeMap<i64, Way> = BTreeMap::new();
    for (sent, taken) in ways {
        let best = kept.entry(sent.saturating_sub(first) / width).or_insert((sent, taken));
        if taken.saturating_sub(sent) < best.1.saturating_sub(best.0) {
            *best = (sent, taken);
        }
    }
    kept.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn message(from: usize, sent_ns: i64, to: usize, taken_ns: i64) -> TimedMessage {
        TimedMessage { from, sent_ns, to, taken_ns }
    }

    #[test]
    fn a_ring_of_one_direction_has_ways_back_through_the_others() {
        // Each clock is 1,000 ahead of the one before; a message that is late at clock 2 waits for
        // its next message.
        let messages = [
            message(0, 100, 1, 1_110),
            message(1, 1_120, 2, 2_130),
            message(2, 2_100, 0, 110),
            message(2, 2_150, 0, 160),
            message(2, 2_140, 0, 170),
        ];
        let all = with_ways_back(&messages);
        assert_eq!(all[..5], messages);
        let mut back = all[5..].to_vec();
        back.sort_by_key(|message| (message.from, message.sent_ns));
        // From 0 to 2 through 1, and from 1 to 0 through 2; from 2 to 1 nothing was forwarded in
        // time.
        assert_eq!(back, [message(0, 100, 2, 2_130), message(1, 1_120, 0, 160)]);
    }

    #[test]
    fn what_leads_nowhere_stays_as_it_is() {
        let messages = [message(0, 1, 1, 2), message(1, 3, 0, 4), message(2, 5, 0, 6)];
        assert_eq!(with_ways_back(&messages), messages);
    }

    #[test]
    fn long_ways_are_thinned_to_those_that_took_least() {
        let ways: Vec<Way> = (0..100_000).map(|n| (n, n + 50 + n % 7)).collect();
        let thin = thinned(ways);
        assert!(thin.len() as i64 <= 2 * KEPT, "{}", thin.len());
        assert!(thin.iter().all(|(sent, taken)| taken - sent <= 51));
    }
}
