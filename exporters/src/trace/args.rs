//! The arguments of a slice: facts about an operation besides its name and times.

use std::fmt::Write;

use ccl::types::{ChannelId, CollKind, Direction, Rank};

use super::lines::quoted;
use crate::bandwidth;

/// Fields of a slice, as the inside of a JSON object.
#[derive(Clone, Default, Debug)]
pub(super) struct Args(String);

impl Args {
    pub(super) fn text(mut self, name: &str, value: &str) -> Self {
        self.put(name, &quoted(value));
        self
    }

    pub(super) fn number(mut self, name: &str, value: u64) -> Self {
        self.put(name, &value.to_string());
        self
    }

    /// Adds a list of ranks, unless it is empty.
    pub(super) fn ranks(mut self, name: &str, ranks: &[Rank]) -> Self {
        let list: Vec<String> = ranks.iter().map(Rank::to_string).collect();
        if !list.is_empty() {
            self.put(name, &format!("[{}]", list.join(",")));
        }
        self
    }

    pub(super) fn flag(mut self, name: &str) -> Self {
        self.put(name, "true");
        self
    }

    /// Adds a field if it has a value.
    pub(super) fn maybe<T>(self, value: Option<T>, add: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => add(self, value),
            None => self,
        }
    }

    /// The arguments of every operation: its number, the number of ranks, the other rank of a pair
    /// or the root if there is one, and the tag.
    pub(super) fn operation(
        kind: CollKind,
        seq: u64,
        ranks: u32,
        other: Option<Rank>,
        tag: Option<&str>,
    ) -> Self {
        let other_is = if kind.has_root() { "root" } else { "peer" };
        let other = other.filter(|_| kind.has_root() || kind.is_p2p());
        Self::default()
            .number("seq", seq)
            .maybe((!kind.is_p2p()).then_some(ranks), |args, ranks| args.number("ranks", ranks.into()))
            .maybe(other, |args, other| args.number(other_is, other.0.into()))
            .maybe(tag, |args, tag| args.text("tag", tag))
    }

    /// The arguments of a network step, but for its communicator.
    pub(super) fn network_step(
        channel: ChannelId,
        peer: Rank,
        direction: Direction,
        (seq, step): (u64, u64),
    ) -> Self {
        Self::default()
            .number("step", step)
            .number("seq", seq)
            .number("peer", peer.0.into())
            .number("channel", channel.0.into())
            .text("direction", direction.name())
    }

    /// Adds its bandwidths, in GB/s as nccl-tests counts them.
    pub(super) fn bandwidths(mut self, kind: CollKind, ranks: u32, bytes: u64, ns: u64) -> Self {
        let known = [
            ("algbw_GBps", bandwidth::algbw(kind, ranks, bytes, ns)),
            ("busbw_GBps", bandwidth::busbw(kind, ranks, bytes, ns)),
        ];
        for (name, value) in known {
            if let Some(value) = value {
                self.put(name, &format!("{value:.6}"));
            }
        }
        self
    }

    /// Adds a field whose value is JSON already.
    fn put(&mut self, name: &str, value: &str) {
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(self.0, "{comma}\"{name}\":{value}");
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_says_what_it_has_and_nothing_else() {
        let check = |args: Args, expect: &str| assert_eq!(args.as_str(), expect);
        let root = Some(Rank(2));
        check(
            Args::operation(CollKind::Broadcast, 7, 4, root, Some("step \"1\"")),
            r#""seq":7,"ranks":4,"root":2,"tag":"step \"1\"""#,
        );
        // Written by a version that did not record the root.
        check(Args::operation(CollKind::Reduce, 7, 4, None, None), r#""seq":7,"ranks":4"#);
        check(Args::operation(CollKind::AllReduce, 7, 4, root, None), r#""seq":7,"ranks":4"#);
        check(Args::operation(CollKind::Send, 7, 4, root, None), r#""seq":7,"peer":2"#);
        check(
            Args::default().bandwidths(CollKind::AllReduce, 4, 1_000, 500),
            r#""algbw_GBps":2.000000,"busbw_GBps":3.000000"#,
        );
        check(Args::default().bandwidths(CollKind::Barrier, 4, 0, 500), "");
    }
}
