//! What ranks tell each other: plain data, and the bounds that it keeps.

use serde::{Deserialize, Serialize};

use crate::collective::{Descriptor, Tally};
use crate::error::ErrorKind;
use crate::text::{harmless, printable};
use crate::types::{ChannelId, CollKind, Rank};

/// The most bytes of a sentence that goes from rank to rank; what is longer is cut where it begins
/// its way.
const TEXT_MAX: usize = 2000;
/// The longest message, as JSON. A sentence grows to twice its length at most, a report holds
/// 16 calls of fewer than 200 bytes each, and a tally fewer than 220 bytes per peer: of 8,000 peers
/// it still fits.
pub const MESSAGE_MAX: usize = 2 << 20;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Trouble {
    /// A process ended without a farewell.
    Died,
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
    /// The kind of error it becomes.
    #[must_use]
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::Died | Self::LinkFailed => ErrorKind::Peer,
            Self::Mismatch => ErrorKind::Mismatch,
            Self::Aborted => ErrorKind::Aborted,
            Self::TimedOut => ErrorKind::Timeout,
        }
    }
}

/// What one rank found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What is wrong.
    pub trouble: Trouble,
    /// Who found it.
    pub from: Rank,
    /// Whom it is about.
    pub about: Rank,
    /// The operation the finder was in.
    pub op: Option<(CollKind, u64)>,
    /// The channel it was found on.
    pub channel: Option<ChannelId>,
    /// One sentence.
    #[serde(deserialize_with = "printable")]
    pub text: String,
    /// What the other side of a mismatch needs to tell where the two differ; `None` where `text`
    /// says all.
    pub open: Option<Open>,
}

/// One side of a mismatch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Open {
    /// The call the finder was in.
    pub ours: Option<Descriptor>,
    /// The hash of the call that the message it found belongs to.
    pub theirs: Option<u64>,
    /// What the finder has called, the latest first.
    pub calls: Vec<Descriptor>,
}

impl Report {
    /// A report that says all there is to say.
    pub fn new(trouble: Trouble, from: Rank, about: Rank, text: impl Into<String>) -> Self {
        Self { trouble, from, about, op: None, channel: None, text: text.into(), open: None }
    }
}

/// What all ranks fail with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// What is wrong.
    pub trouble: Trouble,
    /// Who decided.
    pub by: Rank,
    /// Who is to blame.
    pub about: Rank,
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

/// Whither a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To a neighbour on the ring.
    Ring(Side),
    /// To all peers of this host: past ranks that left, or are slow to pass it on.
    Local,
}

/// What goes from rank to rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A rank has called `finish()`, and waits for the others to do so.
    Finish {
        /// Which.
        rank: Rank,
        /// What it has called in all.
        tally: Tally,
    },
    /// A rank closes its streams: it needs nobody any more.
    Farewell {
        /// Which.
        rank: Rank,
    },
    /// A rank has waited for another in a collective, and asks whether that calls the same.
    Called {
        /// Who waits.
        from: Rank,
        /// Who is awaited.
        to: Rank,
        /// What the waiting rank called.
        call: Descriptor,
        /// How many ranks may still pass it on: it must not go round for ever where both have left.
        hops: u32,
    },
    /// Something was found.
    Report(Report),
    /// It was decided.
    Verdict(Verdict),
}

impl Message {
    /// Whether all ranks it names exist.
    pub(super) fn is_of(&self, nranks: usize) -> bool {
        let is_rank = |rank: &Rank| rank.index() < nranks;
        match self {
            Self::Finish { rank, .. } | Self::Farewell { rank } => is_rank(rank),
            Self::Called { from, to, .. } => is_rank(from) && is_rank(to),
            Self::Report(report) => is_rank(&report.from) && is_rank(&report.about),
            Self::Verdict(verdict) => is_rank(&verdict.about),
        }
    }
}

/// A sentence as it is told: as its readers will print it, and short enough; one that was cut says so.
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
            assert!(serde_json::to_vec(&Message::Report(report)).unwrap().len() < MESSAGE_MAX);
        }
    }

    #[test]
    fn the_tally_of_very_many_peers_fits_a_message() {
        let most = Pair { calls: u64::MAX, count: u64::MAX, dtype: Datatype::F32 };
        let sent: Vec<_> = (0..8000).map(|rank| (Rank(rank), most)).collect();
        let received = sent.clone();
        let tally = Tally { calls: u64::MAX, hash: u64::MAX, sent, received };
        let text = serde_json::to_vec(&Message::Finish { rank: Rank(1), tally }).unwrap();
        assert!(text.len() < MESSAGE_MAX, "{} bytes", text.len());
    }
}
