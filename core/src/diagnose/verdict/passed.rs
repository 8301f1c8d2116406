//! Ranks that wait in an operation for a message of a rank that has completed its call of that
//! number.
//!
//! A rank completes an operation only once it has published all its messages. So either a message
//! is still under way, or none is owed: by the counters of both ends all that were published have
//! come. Then the two have called different things under that number.

use super::named;
use crate::diagnose::{FINISH, call_name, comm_name, is_pair, ranks_text};
use crate::snapshot::{
    BlockedOn, CommSnapshot, Culprit, Direction, LinkSnapshot, OpState, RankSnapshot, Snapshot, Waits,
};
use crate::types::{ChannelId, Rank};

/// The longest such wait of an operation. Its ranks are those of the communicator.
pub(super) struct Passed<'a> {
    rank: Rank,
    peer: Rank,
    link: &'a LinkSnapshot,
    /// Whether the peer may have published a message that has not come.
    pub(super) is_owed: bool,
}

impl<'a> Passed<'a> {
    pub(super) fn of(job: &'a Snapshot, one: &BlockedOn) -> Option<Self> {
        if is_pair(&one.op) || one.op == FINISH {
            return None;
        }
        let waiting = |link: &&LinkSnapshot| {
            let is_collective = link.channel != ChannelId::P2P && link.direction == Direction::Recv;
            is_collective && link.waits == Waits::Peer
        };
        let inside = rows(job, one).filter(|(_, row)| is_inside(row, one));
        let waits = inside.flat_map(|(_, row)| row.links.iter().map(move |link| (row.rank, link)));
        let (rank, peer, link) = waits
            .filter(|(_, link)| waiting(link))
            .filter_map(|(rank, link)| Some((rank, link.waits_for.or(link.peer)?, link)))
            .max_by_key(|(.., link)| link.since_ns)?;
        let (process, row) = rows(job, one).find(|(_, row)| row.rank == peer && is_past(row, one))?;
        let leads_there = |its: &&LinkSnapshot| {
            (its.channel, its.direction) == (link.channel, Direction::Send)
                && its.peer.is_none_or(|to| to == rank)
        };
        // Of a lane that was never used there is no link.
        let published = row.links.iter().filter(leads_there).map(|its| its.posted).max();
        let is_owed = match published {
            Some(published) => published != link.moved,
            None => link.moved > 0 || process.overflow > 0,
        };
        Some(Self { rank, peer, link, is_owed })
    }

    /// Those that called something else than most did: the ranks that are inside or those that went
    /// on, whichever are fewer, if that is known of all.
    pub(super) fn culprits(&self, job: &Snapshot, one: &BlockedOn) -> Vec<Culprit> {
        let of = |is: fn(&CommSnapshot, &BlockedOn) -> bool| -> Vec<Culprit> {
            let those = rows(job, one).filter(|(_, row)| is(row, one));
            those.map(|(process, _)| super::process::culprit(process)).collect()
        };
        let nranks = rows(job, one).map(|(_, row)| row.nranks as usize).max().unwrap_or(0);
        let [inside, past] = [of(is_inside), of(is_past)];
        match inside.len() + past.len() == nranks {
            true if inside.len() < past.len() => inside,
            true if past.len() < inside.len() => past,
            _ => Vec::new(),
        }
    }

    /// Ranks called different things, and why that follows.
    pub(super) fn text(&self, job: &Snapshot, one: &BlockedOn, culprits: &[Culprit]) -> String {
        let (seq, comm) = (one.seq, comm_name(&one.name, one.comm));
        let who = match culprits.is_empty() {
            true => format!("ranks called different things as #{seq} of {comm}"),
            false => format!("{} called something else than the others as #{seq} of {comm}", named(culprits)),
        };
        let [rank, peer] = self.ends(job, one);
        let op = call_name(&one.op, seq);
        format!(
            "{who}: rank {rank} waits in {op} for rank {peer}, which has completed its call #{seq} and owes it no message"
        )
    }

    /// What the counters say.
    pub(super) fn evidence(&self, job: &Snapshot, one: &BlockedOn) -> String {
        let ([rank, peer], LinkSnapshot { channel, moved, .. }) = (self.ends(job, one), self.link);
        format!(
            "rank {peer}: {moved} messages published for rank {rank} on channel {channel}, and all have come"
        )
    }

    fn ends(&self, job: &Snapshot, one: &BlockedOn) -> [Rank; 2] {
        [self.rank, self.peer].map(|rank| job.job_rank(one.comm, rank))
    }
}

/// The sentence on a message that is on its way or lost, where not all ranks are inside of the
/// operation; `None` if they are.
pub(super) fn lost(job: &Snapshot, one: &BlockedOn, (op, is_past): (&str, bool)) -> Option<String> {
    if is_pair(&one.op) || one.op == FINISH {
        return None;
    }
    let inside: Vec<Rank> =
        rows(job, one).filter(|(_, row)| is_inside(row, one)).map(|(_, row)| row.rank).collect();
    if inside.is_empty() || one.by.iter().all(|rank| inside.contains(rank)) {
        return None;
    }
    let is = match (is_past, inside.len()) {
        (false, 1) => "is",
        (false, _) => "are",
        (true, 1) => "was",
        (true, _) => "were",
    };
    let wait = match (is_past, inside.len()) {
        (true, _) => "waited",
        (false, 1) => "waits",
        (false, _) => "wait",
    };
    let who = ranks_text(&job.job_ranks(one.comm, &inside));
    let what = if is_past { "a message was lost" } else { "a message is on its way or lost" };
    Some(match Passed::of(job, one) {
        Some(passed) => {
            let [rank, peer] = passed.ends(job, one);
            let waits = if is_past { "waited" } else { "waits" };
            format!(
                "{who} {is} inside {op}, and rank {rank} {waits} for rank {peer}, which has completed it: {what}"
            )
        }
        None => format!("{who} {is} inside {op} and {wait} there: {what}"),
    })
}

fn rows<'a>(
    job: &'a Snapshot,
    one: &BlockedOn,
) -> impl Iterator<Item = (&'a RankSnapshot, &'a CommSnapshot)> + use<'a> {
    let comm = one.comm;
    let rows = job.ranks.iter().flat_map(|rank| rank.comms.iter().map(move |row| (rank, row)));
    rows.filter(move |(_, row)| row.id == comm && !row.ended)
}

/// Whether a rank is inside the operation, and not of a later one.
fn is_inside(row: &CommSnapshot, one: &BlockedOn) -> bool {
    row.op.seq == one.seq && row.op.state != OpState::Idle
}

/// Whether a rank has completed its call of that number.
fn is_past(row: &CommSnapshot, one: &BlockedOn) -> bool {
    row.op.completed >= one.seq && one.seq > 0
}
