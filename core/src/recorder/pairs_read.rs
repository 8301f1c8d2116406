//! The rows of queue pairs, as a reader finds them.

use std::sync::atomic::AtomicU64;

use super::decode::{Clock, Comms, of_row};
use super::layout::{Table, queue_pair};
use super::queue_pairs::MAX_NAME;
use super::words::{TableRows, halves, state, string_within, word};
use crate::snapshot::bounds::MAX_CELLS;
use crate::snapshot::{QueuePairSnapshot, QueuePairState, SetUp, WorkFailure};
use crate::sys::verbs::Address;
use crate::sys::verbs::words::status_name;
use crate::types::{ChannelId, Direction, Rank};

/// Adds the queue pairs to the links.
pub(super) fn queue_pairs(words: &[AtomicU64], clock: &Clock, comms: &mut Comms) {
    for row in TableRows::of(words, Table::QueuePairs).iter().take(MAX_CELLS) {
        let what = word(row, queue_pair::WHAT);
        let (to, generation) = halves(word(row, queue_pair::PEER));
        let (Some(_), Some(comm)) = (state(what), of_row(comms, what, generation)) else { continue };
        let Some(direction) = Direction::from_u8((what >> 8) as u8) else { continue };
        let place = (ChannelId((what >> 32) as u16), direction.into(), Some(Rank(to)));
        let link = comm.links.binary_search_by_key(&place, |link| (link.channel, link.direction, link.peer));
        let Some(link) = link.ok().and_then(|at| comm.links.get_mut(at)) else { continue };
        let seen = one(words, row, what, clock);
        if word(row, queue_pair::WHAT) == what && word(row, queue_pair::PEER) >> 32 == u64::from(generation) {
            link.queue_pairs.push(seen);
        }
    }
    for (_, comm) in comms.iter_mut().flatten() {
        for link in &mut comm.links {
            link.queue_pairs.sort_by_key(|pair| pair.nth);
            if !link.queue_pairs.is_empty() && link.set_up.is_none() && !comm.ended {
                link.set_up = Some(SetUp::Connected);
            }
        }
    }
}

fn one(words: &[AtomicU64], row: &[AtomicU64], what: u64, clock: &Clock) -> QueuePairSnapshot {
    let at = |n: usize| word(row, n);
    // Read in this order, the second is at least as large as the first; a copy may not have been
    // made in it.
    let completed = at(queue_pair::COMPLETED);
    let posted = at(queue_pair::POSTED).max(completed);
    let (status, vendor) = halves(at(queue_pair::ERROR));
    let error = (status != 0).then(|| WorkFailure {
        status,
        name: status_name(status).into(),
        vendor,
        ago_ns: clock.age_ns(at(queue_pair::ERROR_AT)),
    });
    let (own, other) = halves(at(queue_pair::NUMBERS));
    let address =
        |first: usize, is_gid: bool| Address::of_words([at(first), at(first + 1)], is_gid).to_string();
    let completed_at = Some(at(queue_pair::COMPLETED_AT)).filter(|raw| *raw != 0);
    QueuePairSnapshot {
        nth: u32::from((what >> 16) as u8),
        device: string_within(words, at(queue_pair::DEVICE), MAX_NAME),
        port: (own >> 24) as u8,
        number: own & 0x00ff_ffff,
        address: address(queue_pair::OWN, what >> 24 & 1 != 0),
        peer_port: (other >> 24) as u8,
        peer_number: other & 0x00ff_ffff,
        peer_address: address(queue_pair::OTHER, what >> 25 & 1 != 0),
        state: QueuePairState::numbered(at(queue_pair::STATE) as u8),
        posted,
        completed,
        credits: at(queue_pair::CREDITS),
        bytes: at(queue_pair::BYTES),
        completed_ns: completed_at.map(|raw| clock.age_ns(raw)),
        error,
    }
}
