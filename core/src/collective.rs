//! A request as data: the call, the sizes that follow from it, and the 32 bytes that show whether
//! two ranks made the same call.

mod history;
mod terms;

pub use terms::{Blocks, CallTerms, OwnedTerms};

use std::collections::BTreeMap;

use history::History;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::types::{CollKind, Datatype, Rank, ReduceOp};

/// One call, before it is decided how to execute it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which operation it is.
    pub kind: CollKind,
    /// The element type.
    pub dtype: Datatype,
    /// How elements are combined; `Sum` if the operation combines nothing.
    pub op: ReduceOp,
    /// The root of broadcast, reduce, gather and scatter, the peer of send and receive; otherwise
    /// rank 0.
    pub root: Rank,
    /// The number of elements: of the whole buffer for all-reduce, broadcast, reduce, send and
    /// receive; of one rank's block for the others (the convention of `nccl.h`). If the blocks
    /// differ, of all together; 0 for an all-to-all, whose ranks need not know all counts.
    pub count: u64,
    /// Whether the blocks differ.
    pub uneven: bool,
}

/// The bytes that one rank reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes read from the caller's input.
    pub input: u64,
    /// Bytes written to the caller's output.
    pub output: u64,
}

impl Request {
    /// A barrier: a request of no bytes.
    #[must_use]
    pub const fn barrier() -> Self {
        Self {
            kind: CollKind::Barrier,
            dtype: Datatype::U8,
            op: ReduceOp::Sum,
            root: Rank(0),
            count: 0,
            uneven: false,
        }
    }

    /// The bytes of `count` elements.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }

    /// The bytes that `me`, one of `nranks`, reads and writes if the blocks are equal.
    #[must_use]
    pub fn sizes(&self, nranks: u32, me: Rank) -> Sizes {
        let bytes = self.bytes();
        let all = bytes * u64::from(nranks);
        let at_root = |n| if self.root == me { n } else { 0 };
        match self.kind {
            CollKind::AllReduce => Sizes { input: bytes, output: bytes },
            CollKind::AllGather => Sizes { input: bytes, output: all },
            CollKind::ReduceScatter => Sizes { input: all, output: bytes },
            CollKind::AllToAll => Sizes { input: all, output: all },
            CollKind::Gather => Sizes { input: bytes, output: at_root(all) },
            CollKind::Scatter => Sizes { input: at_root(all), output: bytes },
            CollKind::Broadcast => Sizes { input: at_root(bytes), output: bytes },
            CollKind::Reduce => Sizes { input: bytes, output: at_root(bytes) },
            CollKind::Barrier => Sizes { input: 0, output: 0 },
            CollKind::Send => Sizes { input: bytes, output: 0 },
            CollKind::Recv => Sizes { input: 0, output: bytes },
        }
    }

    /// Refuses a request that no plan could execute.
    ///
    /// # Errors
    /// `Usage` if the root is not a rank, or if the bytes of all ranks together overflow 63 bits.
    pub fn check(&self, nranks: u32) -> Result<()> {
        if self.root.0 >= nranks {
            let what = if self.kind.is_p2p() { "peer" } else { "root" };
            return Err(Error::new(
                ErrorKind::Usage,
                format!("{what} {} is not one of {nranks} ranks", self.root),
            )
            .hint(format!("pass a {what} below the communicator's size")));
        }
        let all =
            self.count.checked_mul(self.dtype.size() as u64).and_then(|b| b.checked_mul(u64::from(nranks)));
        if all.is_none_or(|b| b > i64::MAX as u64) {
            return Err(Error::new(ErrorKind::Usage, format!("{} elements are too many", self.count))
                .hint("make several calls of fewer elements"));
        }
        Ok(())
    }
}

/// What must be equal on all ranks of a collective (or on both of a pair), in 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// The operation. A receive is described as the send that it matches.
    pub kind: CollKind,
    /// The element type.
    pub dtype: Datatype,
    /// How elements are combined.
    pub op: ReduceOp,
    /// The root; for a pair, the sender.
    pub root: Rank,
    /// The number of elements.
    pub count: u64,
    /// The collective or point-to-point sequence number of the call.
    pub seq: u64,
    /// The hash of everything that the plan was made from.
    pub plan: u64,
    /// Whether the blocks of the ranks differ.
    pub uneven: bool,
}

/// By how much the messages of pairs with a count of 1 and of 0 differ: odd, so that it has an
/// inverse. (2^64 divided by the square root of 2.)
const PAIR: u64 = 0xb504_f333_f9de_6485;
/// More elements than a pair of ranks exchanges. What another call left would pass for a count with
/// a probability of 2^-24.
const MOST_PAIRED: u64 = 1 << 40;

/// The number that gives 1 if it is multiplied by an odd one.
const fn inverse(odd: u64) -> u64 {
    // Newton's method: each turn doubles the bits that are right, of which the first three are.
    let mut found = odd;
    let mut bits = 3;
    while bits < 64 {
        found = found.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(found)));
        bits *= 2;
    }
    found
}

/// A call of which all-gathers are parts. They carry it as an operator, which those of a program
/// never do, so that each is a mismatch with any other call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartOf {
    /// `split()`.
    Split,
    /// `invite()`.
    Invite,
}

impl PartOf {
    /// The request of such an all-gather of `count` elements.
    #[must_use]
    pub const fn gathers(self, dtype: Datatype, count: u64) -> Request {
        let op = match self {
            Self::Split => ReduceOp::Max,
            Self::Invite => ReduceOp::Min,
        };
        Request { kind: CollKind::AllGather, dtype, op, root: Rank(0), count, uneven: false }
    }
}

impl Descriptor {
    /// The name of the call: `AllGather`, or `split()` for a part of that.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self.kind, self.op) {
            (CollKind::AllGather, ReduceOp::Max) => "split()",
            (CollKind::AllGather, ReduceOp::Min) => "invite()",
            (kind, _) => kind.name(),
        }
    }

    /// Whether it is a part of a call of another name.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.name() != self.kind.name()
    }

    /// The bytes of `count` elements.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }

    /// The 32 bytes, little-endian.
    #[must_use]
    pub fn encode(&self) -> [u64; 4] {
        let first = u64::from(self.kind as u8)
            | u64::from(self.dtype as u8) << 8
            | u64::from(self.op as u8) << 16
            | u64::from(self.uneven) << 24
            | u64::from(self.root.0) << 32;
        [first, self.count, self.seq, self.plan]
    }

    /// Decodes the 32 bytes; `None` if a field has a value that this version does not know.
    #[must_use]
    pub fn decode(words: [u64; 4]) -> Option<Self> {
        let [first, count, seq, plan] = words;
        Some(Self {
            kind: CollKind::from_u8(first as u8)?,
            dtype: Datatype::from_u8((first >> 8) as u8)?,
            op: ReduceOp::from_u8((first >> 16) as u8)?,
            root: Rank((first >> 32) as u32),
            count,
            seq,
            plan,
            uneven: [false, true].get((first >> 24) as u8 as usize).copied()?,
        })
    }

    /// The 64 bits that every message carries and every receiver compares. Of the next call like
    /// this one they are [`STEP`](Self::STEP) more.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let [first, count, _, plan] = self.encode();
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip([first, count, 0, plan]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&bytes).wrapping_add(self.seq.wrapping_mul(Self::STEP))
    }

    /// By how much the hashes of calls differ that are alike and follow each other: a number whose
    /// small multiples are far apart in all bits, 2^64 divided by the golden ratio.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// What a message between two ranks of an uneven all-to-all carries: the `check` of its call,
    /// made to tell the elements that this pair of ranks exchanges.
    #[must_use]
    pub const fn paired(check: u64, count: u64) -> u64 {
        check.wrapping_add(count.wrapping_mul(PAIR))
    }

    /// The elements that the other rank has for this pair, if what came is of the same call.
    #[must_use]
    pub const fn unpaired(check: u64, came: u64) -> Option<u64> {
        let count = came.wrapping_sub(check).wrapping_mul(inverse(PAIR));
        if count < MOST_PAIRED { Some(count) } else { None }
    }

    /// The fields in which two descriptors differ, for people: `count 4 / 8, op Sum / Max`.
    #[must_use]
    pub fn differences(&self, other: &Self) -> String {
        let (own, its) = (self.name(), other.name());
        // The library chooses type and operator of a part of a call, not the program.
        if own != its && (self.is_part() || other.is_part()) {
            return format!("kind {own} / {its}");
        }
        let mut found = Vec::new();
        let mut compare = |name: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{name} {a} / {b}"));
            }
        };
        compare("kind", own.to_string(), its.to_string());
        compare("dtype", self.dtype.to_string(), other.dtype.to_string());
        if (self.kind, other.kind) != (CollKind::AllGather, CollKind::AllGather) {
            compare("op", self.op.to_string(), other.op.to_string());
        }
        compare("root", self.root.to_string(), other.root.to_string());
        let blocks = |uneven| if uneven { "uneven" } else { "equal" }.to_string();
        compare("blocks", blocks(self.uneven), blocks(other.uneven));
        if self.uneven == other.uneven {
            compare("count", self.count.to_string(), other.count.to_string());
        }
        compare("seq", self.seq.to_string(), other.seq.to_string());
        // `plan` follows from the other fields, unless the ranks are configured differently, or the
        // counts of their blocks are shared out differently.
        if found.is_empty() && self.plan != other.plan {
            let what = if self.uneven { "counts of ranks" } else { "plan" };
            found.push(format!("{what} {:016x} / {:016x}", self.plan, other.plan));
        }
        found.join(", ")
    }
}

/// Numbers and describes the calls of one rank of a communicator.
///
/// Collectives have one sequence. Sends and receives have one per peer and direction, so that both
/// sides of a pair count alike.
#[derive(Clone, Default, Debug)]
pub struct Numbering {
    last: u64,
    /// The hash of all collectives, in their order.
    hash: u64,
    pairs: BTreeMap<(CollKind, Rank), Pair>,
    history: History,
}

/// All calls of one rank.
///
/// The rank sends it when it finishes, and it must match the tallies of the other ranks.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// The number of collectives.
    pub calls: u64,
    /// The hash of all collectives, in their order.
    pub hash: u64,
    /// The sends, by receiver.
    pub sent: Vec<(Rank, Pair)>,
    /// The receives, by sender.
    pub received: Vec<(Rank, Pair)>,
}

/// The calls of one pair in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// The number of calls.
    pub calls: u64,
    /// The number of elements of the last call.
    pub count: u64,
    /// The element type of the last call.
    pub dtype: Datatype,
}

impl Tally {
    /// The sends to a rank; `None` if there were none.
    #[must_use]
    pub fn sent(&self, to: Rank) -> Option<Pair> {
        self.sent.iter().find(|(rank, _)| *rank == to).map(|(_, sent)| *sent)
    }
    /// The receives from a rank; `None` if there were none.
    #[must_use]
    pub fn received(&self, from: Rank) -> Option<Pair> {
        self.received.iter().find(|(rank, _)| *rank == from).map(|(_, received)| *received)
    }
}

impl Numbering {
    /// The number that the next collective gets.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.last + 1
    }

    /// Counts a call of `me` and describes it, with the hash of that; `plan` is the hash of what
    /// its plan was made from.
    #[inline(always)]
    pub fn describe(&mut self, me: Rank, request: &Request, plan: u64) -> (Descriptor, u64) {
        let Request { kind, dtype, op, root, count, uneven } = *request;
        if kind.is_p2p() {
            let (root, seq) = self.next_of_pair(me, request);
            let kind = CollKind::Send;
            let call = Descriptor { kind, dtype, op, root, count, seq, plan, uneven };
            return (call, call.hash());
        }
        self.last += 1;
        let call = Descriptor { kind, dtype, op, root, count, seq: self.last, plan, uneven };
        let check = self.history.add(&call);
        self.hash = (self.hash ^ check).rotate_left(23).wrapping_mul(Descriptor::STEP);
        (call, check)
    }

    /// Counts a send or a receive; returns the sender and its number among those of the pair.
    fn next_of_pair(&mut self, me: Rank, request: &Request) -> (Rank, u64) {
        let Request { kind, root: peer, count, dtype, .. } = *request;
        let pair = self.pairs.entry((kind, peer)).or_insert(Pair { calls: 0, count, dtype });
        *pair = Pair { calls: pair.calls + 1, count, dtype };
        (if kind == CollKind::Send { me } else { peer }, pair.calls)
    }

    /// The collective with this number; `None` if it was not called yet, or too long ago.
    #[must_use]
    pub fn collective(&self, seq: u64) -> Option<Descriptor> {
        self.history.at(seq)
    }

    /// All calls so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let of = |kind| self.pairs.iter().filter(move |((its, _), _)| *its == kind);
        Tally {
            calls: self.last,
            hash: self.hash,
            sent: of(CollKind::Send).map(|((_, peer), pair)| (*peer, *pair)).collect(),
            received: of(CollKind::Recv).map(|((_, peer), pair)| (*peer, *pair)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_its_words_and_each_field_changes_the_hash() {
        let base = Descriptor {
            kind: CollKind::Reduce,
            dtype: Datatype::I64,
            op: ReduceOp::Max,
            root: Rank(3),
            count: 77,
            seq: 9,
            plan: 0xfeed,
            uneven: false,
        };
        assert_eq!(Descriptor::decode(base.encode()), Some(base));
        for other in [
            Descriptor { kind: CollKind::AllReduce, ..base },
            Descriptor { dtype: Datatype::F64, ..base },
            Descriptor { op: ReduceOp::Min, ..base },
            Descriptor { root: Rank(2), ..base },
            Descriptor { count: 78, ..base },
            Descriptor { seq: 10, ..base },
            Descriptor { plan: 1, ..base },
            Descriptor { uneven: true, ..base },
        ] {
            assert_ne!(base.hash(), other.hash());
            assert!(base.differences(&other).contains(" / "), "{}", base.differences(&other));
        }
        let next = Descriptor { seq: 10, ..base };
        assert_eq!(next.hash(), base.hash().wrapping_add(Descriptor::STEP));
        assert_eq!(Descriptor::decode([200, 0, 0, 0]), None);
        // The program called split(), not the all-gather that carries it out.
        let Request { kind, dtype, op, .. } = PartOf::Split.gathers(Datatype::I64, 4);
        let split = Descriptor { kind, dtype, op, ..base };
        assert_eq!(split.differences(&base), "kind split() / Reduce");
        let gather = Descriptor { op: ReduceOp::Sum, ..split };
        assert_eq!(gather.differences(&split), "kind AllGather / split()");
    }

    #[test]
    fn a_message_of_a_pair_tells_its_count() {
        for (check, count) in [(0, 0), (7, 1), (u64::MAX, 12_345), (1 << 63, MOST_PAIRED - 1)] {
            assert_eq!(Descriptor::unpaired(check, Descriptor::paired(check, count)), Some(count));
        }
        assert_eq!(Descriptor::unpaired(1, 2), None);
    }

    #[test]
    fn collectives_count_together_and_pairs_by_peer_and_direction() {
        let call = |kind, peer| Request { kind, root: Rank(peer), ..Request::barrier() };
        let mut mine = Numbering::default();
        let mut seen = |kind, peer| {
            let (Descriptor { kind, root, seq, .. }, _) = mine.describe(Rank(1), &call(kind, peer), 0);
            (kind, root.0, seq)
        };
        assert_eq!(seen(CollKind::AllReduce, 0), (CollKind::AllReduce, 0, 1));
        assert_eq!(seen(CollKind::Send, 2), (CollKind::Send, 1, 1));
        assert_eq!(seen(CollKind::Recv, 2), (CollKind::Send, 2, 1));
        assert_eq!(seen(CollKind::Send, 3), (CollKind::Send, 1, 1));
        assert_eq!(seen(CollKind::Send, 2), (CollKind::Send, 1, 2));
        assert_eq!(seen(CollKind::Broadcast, 2), (CollKind::Broadcast, 2, 2));
    }

    #[test]
    fn a_tally_tells_what_was_called_and_in_which_order() {
        let call = |kind, root, count| Request { kind, root: Rank(root), count, ..Request::barrier() };
        let tally = |calls: &[Request]| {
            let mut mine = Numbering::default();
            for call in calls {
                let (descriptor, check) = mine.describe(Rank(1), call, 0);
                assert_eq!(check, descriptor.hash());
            }
            mine.tally()
        };
        let (one, other) = (call(CollKind::Broadcast, 0, 4), call(CollKind::Broadcast, 1, 4));
        assert_eq!(tally(&[one, other]), tally(&[one, call(CollKind::Send, 2, 9), other]).without_pairs());
        assert_ne!(tally(&[one, other]).hash, tally(&[other, one]).hash);
        assert_ne!(tally(&[one]).hash, tally(&[other]).hash);
        let pairs =
            tally(&[call(CollKind::Send, 2, 9), call(CollKind::Recv, 0, 5), call(CollKind::Send, 2, 3)]);
        assert_eq!(pairs.sent(Rank(2)), Some(Pair { calls: 2, count: 3, dtype: Datatype::U8 }));
        assert_eq!(pairs.received(Rank(0)), Some(Pair { calls: 1, count: 5, dtype: Datatype::U8 }));
        assert_eq!((pairs.sent(Rank(0)), pairs.received(Rank(2))), (None, None));
    }

    impl Tally {
        fn without_pairs(self) -> Self {
            Self { sent: Vec::new(), received: Vec::new(), ..self }
        }
    }

    #[test]
    fn sizes_follow_the_convention_of_nccl() {
        let request = |kind| Request {
            kind,
            dtype: Datatype::F32,
            op: ReduceOp::Sum,
            root: Rank(1),
            count: 5,
            uneven: false,
        };
        assert_eq!(request(CollKind::AllGather).sizes(3, Rank(0)), Sizes { input: 20, output: 60 });
        assert_eq!(request(CollKind::ReduceScatter).sizes(3, Rank(0)), Sizes { input: 60, output: 20 });
        assert_eq!(request(CollKind::Reduce).sizes(3, Rank(0)), Sizes { input: 20, output: 0 });
        assert_eq!(request(CollKind::Reduce).sizes(3, Rank(1)), Sizes { input: 20, output: 20 });
        assert!(Request { root: Rank(3), ..request(CollKind::Reduce) }.check(3).is_err());
        assert!(Request { count: u64::MAX / 8, ..request(CollKind::Reduce) }.check(3).is_err());
    }
}
