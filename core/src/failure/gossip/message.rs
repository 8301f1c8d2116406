//! The messages that ranks send each other: plain data with bounds.

use serde::{Deserialize, Serialize};

use super::news::News;
use super::share::Share;
use crate::collective::{Descriptor, Tally};
use crate::error::ErrorKind;
use crate::text::{harmless, printable};
use crate::types::{ChannelId, CollKind, Rank};

/// The most bytes of a text between ranks; longer texts are cut where they are created.
const TEXT_MAX: usize = 2000;
/// The longest message, as JSON.
///
/// Text grows to twice its length at most, and a report holds 16 calls of fewer than 200 bytes
/// each. A tally takes fewer than 220 bytes per peer, a share fewer than 30 for each rank that it
/// leaves out: with 8,000 ranks they still fit.
pub const MESSAGE_MAX: usize = 2 << 20;

/// The kind of problem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Trouble {
    /// A process ended without a farewell.
    Died,
    /// A host does not answer any more: it is down, or the network is cut. Its processes may live.
    Unreachable,
    /// Ranks called different things.
    Mismatch,
    /// A rank aborted the communicator.
    Aborted,
    /// A rank's operation passed its deadline.
    TimedOut,
    /// A link failed although its peer lives.
    LinkFailed,
}

impl Trouble {
    /// The kind of error that it becomes.
    #[must_use]
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::Died | Self::Unreachable | Self::LinkFailed => ErrorKind::Peer,
            Self::Mismatch => ErrorKind::Mismatch,
            Self::Aborted => ErrorKind::Aborted,
            Self::TimedOut => ErrorKind::Timeout,
        }
    }
}

/// A problem that one rank found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The kind of problem.
    pub trouble: Trouble,
    /// The rank that found it.
    pub from: Rank,
    /// The rank that it is about.
    pub about: Rank,
    /// The operation that the finder was in.
    pub op: Option<(CollKind, u64)>,
    /// The channel on which it was found.
    pub channel: Option<ChannelId>,
    /// The problem in one sentence.
    #[serde(deserialize_with = "printable")]
    pub text: String,
    /// What the other side of a mismatch needs to find the difference; `None` if none is needed.
    pub open: Option<Open>,
}

/// The finder's side of a mismatch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Open {
    /// The call that the finder was in.
    pub ours: Option<Descriptor>,
    /// The hash of the call to which the message it found belongs.
    pub theirs: Option<u64>,
    /// The finder's calls, the latest first.
    pub calls: Vec<Descriptor>,
}

impl Report {
    /// A report whose text is complete.
    pub fn new(trouble: Trouble, from: Rank, about: Rank, text: impl Into<String>) -> Self {
        Self { trouble, from, about, op: None, channel: None, text: text.into(), open: None }
    }
}

/// The error with which all ranks fail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// The kind of problem.
    pub trouble: Trouble,
    /// The rank that decided.
    pub by: Rank,
    /// The rank to blame.
    pub about: Rank,
    /// Of a mismatch, the rank whose call differs from that rank's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<Rank>,
    /// One sentence, the same on all ranks.
    #[serde(deserialize_with = "printable")]
    pub text: String,
}

/// One of the two ways round the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Towards the next rank.
    Next,
    /// Towards the previous rank.
    Previous,
}

/// Where a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To a neighbour on the ring.
    Ring(Side),
    /// To all peers of this host, past ranks that have left or forward it slowly.
    Local,
}

/// A message between ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GossipMessage {
    /// A rank has called `finish()`, and waits for the others to do so.
    Finish {
        /// The rank.
        rank: Rank,
        /// All its calls.
        tally: Tally,
    },
    /// A rank closes its streams: it needs no other rank any more.
    Farewell {
        /// The rank.
        rank: Rank,
    },
    /// A rank has waited for another one in a collective, and asks whether both made the same call.
    Called {
        /// The rank that waits.
        from: Rank,
        /// The rank that it is blocked on.
        to: Rank,
        /// The call of the waiting rank.
        call: Descriptor,
        /// How many ranks may still forward it; it must not circle for ever if both have left.
        hops: u32,
    },
    /// A problem was found.
    Report(Report),
    /// A decision was made.
    Decision(Decision),
    /// A rank goes on without those that are gone.
    Share(Share),
    /// A watchdog tells of a stall.
    News(News),
}

impl Decision {
    /// The rank to blame, if it is certain: the rank that died or aborted.
    ///
    /// A mismatch has two sides, as has a network that is cut. A rank that blocks others when a
    /// deadline passes, or at the other end of a failed link, may be a victim too.
    #[must_use]
    pub const fn blamed(&self) -> Option<Rank> {
        match self.trouble {
            Trouble::Died | Trouble::Aborted => Some(self.about),
            Trouble::Unreachable | Trouble::Mismatch | Trouble::TimedOut | Trouble::LinkFailed => None,
        }
    }
}

impl GossipMessage {
    /// Whether all ranks that it names exist.
    pub(super) fn is_of(&self, nranks: usize) -> bool {
        let is_rank = |rank: &Rank| rank.index() < nranks;
        match self {
            Self::Finish { rank, .. } | Self::Farewell { rank } => is_rank(rank),
            Self::Called { from, to, .. } => is_rank(from) && is_rank(to),
            Self::Report(report) => is_rank(&report.from) && is_rank(&report.about),
            Self::Decision(decision) => is_rank(&decision.about) && decision.other.iter().all(is_rank),
            Self::News(_) => true,
            Self::Share(share) => is_rank(&share.rank) && share.attempt.without.iter().all(is_rank),
        }
    }
}

/// The text as it is sent: harmless to print, and cut to the bound, which the text then says.
#[must_use]
pub fn bounded(text: &str) -> String {
    let bytes = text.len();
    let text = harmless(text, usize::MAX);
    if text.len() <= TEXT_MAX {
        return text.into_owned();
    }
    let note = format!(" ... (cut, {bytes} bytes in all)");
    let at = (0..=TEXT_MAX - note.len()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{note}", &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Pair;
    use crate::types::Datatype;

    #[test]
    fn a_long_sentence_is_cut_at_a_character_and_says_so() {
        assert_eq!(bounded("short\n"), "short\\n");
        for long in ["x".repeat(40_000), "\u{20ac}".repeat(20_000), "\u{1}".repeat(40_000)] {
            let cut = bounded(&long);
            assert!(cut.len() <= TEXT_MAX && cut.ends_with(&format!("{} bytes in all)", long.len())));
            assert_eq!(bounded(&cut), cut);
            let report = Report::new(Trouble::Aborted, Rank(0), Rank(0), cut);
            assert!(serde_json::to_vec(&GossipMessage::Report(report)).unwrap().len() < MESSAGE_MAX);
        }
    }

    #[test]
    fn the_tally_of_very_many_peers_fits_a_message() {
        let most = Pair { calls: u64::MAX, count: u64::MAX, dtype: Datatype::F32 };
        let sent: Vec<_> = (0..8000).map(|rank| (Rank(rank), most)).collect();
        let received = sent.clone();
        let tally = Tally { calls: u64::MAX, hash: u64::MAX, sent, received };
        let text = serde_json::to_vec(&GossipMessage::Finish { rank: Rank(1), tally }).unwrap();
        assert!(text.len() < MESSAGE_MAX, "{} bytes", text.len());
    }
}
