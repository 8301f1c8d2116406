//! Trace and span ids: hashes of values that every rank knows by itself. So all ranks of a
//! collective compute the ids of the same trace, its root and each other's messages without any
//! communication. The hashed words are a fixed contract: a job may run two versions.

use ccl::types::{ChannelId, CommId, Direction, JobId, Phase, Rank};
use opentelemetry::trace::{SpanId, TraceId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The subject of one trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum About {
    /// The init of the communicator.
    Init,
    /// One collective, by its number.
    Collective(u64),
    /// One send and its receive: sender, receiver, and the number of the message between them.
    Pair(Rank, Rank, u64),
}

/// The role of a span in its trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Rank 0's part, with the parts of all others under it. For a pair: its send, which the
    /// receive names as its parent.
    Root,
    /// Another rank's part.
    Rank(Rank),
    /// A phase of init, on one rank.
    Phase(Rank, Phase),
    /// One end of one message.
    Message(End),
    /// A stall that the watchdog of a rank told at this time.
    Stall(Rank, u64),
}

/// One end of a message: the message has a number on a lane from one rank to another or to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    pub(super) channel: ChannelId,
    pub(super) writer: Rank,
    /// The lane's reader; `None` for all other ranks.
    pub(super) reader: Option<Rank>,
    /// The rank that has this end.
    pub(super) of: Rank,
    pub(super) direction: Direction,
    pub(super) number: u64,
}

/// The id of a trace on a communicator of a job.
pub(super) fn trace(job: JobId, comm: CommId, about: About) -> TraceId {
    let [class, a, b] = match about {
        About::Init => [0, 0, 0],
        About::Collective(seq) => [1, seq, 0],
        About::Pair(from, to, seq) => [2, seq, u64::from(from.0) | u64::from(to.0) << 32],
    };
    // An id of only zeros means that there is none.
    TraceId::from(xxh3_128(&bytes([job.0, comm.0, class, a, b])).max(1))
}

/// The id of a span of a trace.
pub(super) fn span(trace: TraceId, role: Role) -> SpanId {
    let rank = |rank: Rank| u64::from(rank.0);
    let [class, a, b, c, d] = match role {
        Role::Root => [0; 5],
        Role::Rank(of) => [1, rank(of), 0, 0, 0],
        Role::Phase(of, phase) => [2, rank(of), phase as u64, 0, 0],
        Role::Stall(of, told_ns) => [4, rank(of), told_ns, 0, 0],
        Role::Message(End { channel, writer, reader, of, direction, number }) => {
            let lane = u64::from(channel.0) | (direction as u64) << 16 | u64::from(reader.is_none()) << 24;
            let reader = reader.map_or(0, rank);
            [3, lane, rank(writer) | reader << 32, rank(of), number]
        }
    };
    let whole = u128::from_be_bytes(trace.to_bytes());
    SpanId::from(xxh3_64(&bytes([whole as u64, (whole >> 64) as u64, class, a, b, c, d])).max(1))
}

fn bytes<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const JOB: JobId = JobId(0x0123_4567_89ab_cdef);
    const COMM: CommId = CommId(0xfedc_ba98_7654_3210);

    fn end(of: u32, direction: Direction, reader: Option<u32>) -> Role {
        let (channel, writer) = (ChannelId(1), Rank(2));
        Role::Message(End { channel, writer, reader: reader.map(Rank), of: Rank(of), direction, number: 4 })
    }

    #[test]
    fn ids_are_the_published_ones() {
        let of = |about| trace(JOB, COMM, about).to_string();
        let collective = trace(JOB, COMM, About::Collective(7));
        let published = [
            of(About::Init),
            collective.to_string(),
            of(About::Pair(Rank(1), Rank(2), 7)),
            span(collective, Role::Root).to_string(),
            span(collective, Role::Rank(Rank(3))).to_string(),
            span(collective, Role::Phase(Rank(3), Phase::Ring)).to_string(),
            span(collective, end(2, Direction::Send, Some(5))).to_string(),
        ];
        assert_eq!(published, GOLDEN);
    }

    /// The ids that another implementation of the hash computes.
    const GOLDEN: [&str; 7] = [
        "af7413980ecda19cefec61873bca339d",
        "1ffb0a44ae9e2da75044192060b0a6e7",
        "3b56f76b4532aa16ecc279556c67b8c2",
        "d9dbe841cd89a75f",
        "18a8e0e24240ae13",
        "1a64f967cdefd640",
        "cf65c1559d1991a0",
    ];

    #[test]
    fn whatever_differs_has_another_id() {
        let abouts = [
            About::Init,
            About::Collective(0),
            About::Collective(7),
            About::Pair(Rank(1), Rank(2), 7),
            About::Pair(Rank(2), Rank(1), 7),
            About::Pair(Rank(1), Rank(2), 8),
        ];
        let traces = [(JOB, COMM), (JobId(1), COMM), (JOB, CommId(1))]
            .into_iter()
            .flat_map(|(job, comm)| abouts.map(|about| trace(job, comm, about).to_bytes()));
        assert_eq!(traces.collect::<BTreeSet<_>>().len(), 18);
        let trace = trace(JOB, COMM, About::Collective(7));
        let roles = [
            Role::Root,
            Role::Rank(Rank(0)),
            Role::Rank(Rank(1)),
            Role::Phase(Rank(0), Phase::CheckIn),
            Role::Phase(Rank(0), Phase::Ring),
            end(2, Direction::Send, Some(0)),
            // The same message to all: it has a separate lane.
            end(2, Direction::Send, None),
            end(0, Direction::Recv, None),
            end(1, Direction::Recv, None),
        ];
        let spans = roles.map(|role| span(trace, role).to_bytes());
        assert_eq!(spans.into_iter().collect::<BTreeSet<_>>().len(), roles.len());
    }
}
