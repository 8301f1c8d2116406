//! The counts, at every boundary of the queue.

use std::sync::Arc;

use ccl::types::{CommId, JobId, Rank};
use opentelemetry_sdk::Resource;

use super::*;
use crate::otel::fact::{Emitter, Owner, What};

const BATCH: usize = 512;
const MOST_QUEUED: usize = 1 << 16;

/// `count` facts of an emitter.
pub(in crate::otel) fn facts(emitter: u64, count: usize) -> Vec<Fact> {
    let emitter =
        Arc::new(Emitter { number: emitter, resource: Resource::builder_empty().build(), program: None });
    let owner = Owner { job: JobId(1), comm: CommId(1), name: "c".into(), rank: Rank(0), nranks: 1, emitter };
    let fact = Fact { owner: Arc::new(owner), what: What::Init, from_ns: 1, to_ns: 2, tag: None };
    vec![fact; count]
}

/// Closes the queue without any waiting.
fn closed(queue: &Queue) {
    queue.close(clock::now());
}

#[test]
fn what_finds_no_room_is_dropped_and_counted() {
    let queue = Queue::default();
    queue.push(facts(1, MOST_QUEUED - 1));
    assert_eq!(queue.counts().dropped, 0);
    queue.push(facts(1, 3));
    assert_eq!((queue.counts().made, queue.counts().dropped), (MOST_QUEUED as u64 + 2, 2));
    // A batch that was taken frees space.
    assert_eq!(queue.take().map(|batch| batch.len()), Some(BATCH));
    queue.push(facts(1, BATCH));
    assert_eq!(queue.counts().dropped, 2);
    queue.push(facts(1, 1));
    assert_eq!(queue.counts().dropped, 3);
}

#[test]
fn batches_are_of_one_emitter_and_all_get_their_turn() {
    let queue = Queue::default();
    queue.push(facts(1, BATCH + 1));
    queue.push(facts(2, 5));
    queue.push(facts(3, BATCH));
    closed(&queue);
    let taken = std::iter::from_fn(|| {
        let batch = queue.take()?;
        queue.settle(Fate::Delivered { rejected: 0 });
        let number = batch[0].owner.emitter.number;
        assert!(batch.iter().all(|fact| fact.owner.emitter.number == number));
        Some((number, batch.len()))
    });
    assert_eq!(taken.collect::<Vec<_>>(), [(1, BATCH), (2, 5), (3, BATCH), (1, 1)]);
    assert_eq!(queue.counts().made, queue.counts().delivered);
}

#[test]
fn whatever_becomes_of_batches_the_account_adds_up() {
    let queue = Queue::default();
    queue.push(facts(1, 4 * BATCH));
    let fates =
        [Fate::Delivered { rejected: 0 }, Fate::Delivered { rejected: 3 }, Fate::Dropped, Fate::Unknown];
    for fate in fates {
        assert!(queue.take().is_some());
        queue.settle(fate);
    }
    // A collector that rejects more spans than it was sent rejected all of them.
    queue.push(facts(1, BATCH));
    assert!(queue.take().is_some());
    queue.settle(Fate::Delivered { rejected: u64::MAX });
    queue.lost(7);
    let (batch, counts) = (BATCH as u64, queue.counts());
    assert_eq!(
        counts,
        Counts { made: 5 * batch, delivered: 2 * batch - 3, dropped: 2 * batch + 3, unknown: batch, lost: 7 }
    );
    assert_eq!(counts.made, counts.delivered + counts.dropped + counts.unknown);
    assert!(!counts.is_complete());
    assert_eq!(
        Counts { made: 9, delivered: 5, dropped: 3, unknown: 1, lost: 2 }.to_string(),
        "9 spans made, 5 delivered, 3 dropped, 1 unknown; 2 events lost"
    );
}

#[test]
fn closed_it_takes_nothing_and_gives_what_it_has() {
    let queue = Queue::default();
    queue.push(facts(1, 2));
    closed(&queue);
    queue.push(facts(1, 1));
    assert_eq!(queue.take().map(|batch| batch.len()), Some(2));
    queue.settle(Fate::Delivered { rejected: 0 });
    assert!(queue.take().is_none());
    assert_eq!((queue.counts().delivered, queue.counts().dropped), (2, 1));
}

#[test]
fn what_a_sender_leaves_behind_is_dropped_and_in_doubt() {
    let queue = Queue::default();
    queue.push(facts(1, BATCH + 10));
    assert!(queue.take().is_some());
    let counts = queue.await_end(Duration::ZERO);
    assert_eq!((counts.dropped, counts.unknown), (10, BATCH as u64));
    // A later outcome changes nothing.
    queue.settle(Fate::Delivered { rejected: 0 });
    assert_eq!(queue.counts(), counts);
}

#[test]
fn how_many_wait_and_how_many_go_at_once_is_what_was_said() {
    let batch = Batch { delay: Duration::ZERO, queue: 5, most: 3 };
    let queue = Queue::new(batch);
    queue.push(facts(1, 7));
    assert_eq!((queue.counts().made, queue.counts().dropped), (7, 2));
    let sizes: Vec<_> = (0..2).map(|_| queue.take().map_or(0, |batch| batch.len())).collect();
    assert_eq!(sizes, [3, 2]);
    // A smaller batch waits for more, but only for the delay.
    let queue = Queue::new(Batch { delay: Duration::from_millis(300), ..batch });
    let began = clock::now();
    queue.push(facts(1, 2));
    assert_eq!(queue.take().map(|batch| batch.len()), Some(2));
    assert!(clock::now().since(began) >= Duration::from_millis(300));
}
