//! Why a bootstrap failed, in a form that is sent to other ranks: all waiting ranks get the same
//! text, which names the same ranks.

use super::frame::{Fields, put, put_bytes};
use super::lobby::EQUAL_SECRETS;
use crate::error::{Error, ErrorKind};
use crate::text::harmless;
use crate::types::{Rank, runs};

/// The reason, and the ranks that caused it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kind, which says what a caller can do about it.
    pub kind: ErrorKind,
    /// The ranks that are missing or at fault; empty if that is not known.
    pub culprits: Vec<Rank>,
    /// The reason, in one sentence.
    pub text: String,
}

const MAX_CULPRITS: usize = 64;
const MAX_TEXT: usize = 2048;
const KINDS: [ErrorKind; 7] = [
    ErrorKind::Usage,
    ErrorKind::Unavailable,
    ErrorKind::Peer,
    ErrorKind::Mismatch,
    ErrorKind::Timeout,
    ErrorKind::Aborted,
    ErrorKind::System,
];

impl Fault {
    pub(crate) fn new(kind: ErrorKind, culprits: &[Rank], text: impl Into<String>) -> Self {
        Self { kind, culprits: culprits.to_vec(), text: text.into() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let kind = KINDS.iter().position(|kind| *kind == self.kind).expect("KINDS has all of them");
        put(&mut out, kind as u8);
        let culprits = &self.culprits[..self.culprits.len().min(MAX_CULPRITS)];
        put(&mut out, culprits.len() as u32);
        culprits.iter().for_each(|rank| put(&mut out, rank.0));
        put_bytes(&mut out, harmless(&self.text, MAX_TEXT).as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let kind = *KINDS.get(usize::from(fields.u8()?))?;
        let count = fields.u32()? as usize;
        if count > MAX_CULPRITS {
            return None;
        }
        let culprits = (0..count).map(|_| fields.u32().map(Rank)).collect::<Option<_>>()?;
        let text = harmless(&fields.text()?, MAX_TEXT).into_owned();
        Some(Self { kind, culprits, text })
    }

    /// The next step for the user, where the text does not say it.
    fn next(&self) -> String {
        let who = name_ranks(&self.culprits);
        match (self.kind, self.culprits.as_slice()) {
            // The ranks have started, but the others rejected them. The text says why.
            (ErrorKind::Timeout, _) if self.text.contains(EQUAL_SECRETS) => String::new(),
            (ErrorKind::Timeout, []) => "CCL_INIT_TIMEOUT sets how long ranks wait".to_string(),
            (ErrorKind::Timeout, [_]) => format!(
                "see whether {who} has started and reaches the others; CCL_INIT_TIMEOUT sets how long ranks wait"
            ),
            (ErrorKind::Timeout, _) => format!(
                "see whether {who} have started and reach the others; CCL_INIT_TIMEOUT sets how long ranks wait"
            ),
            (ErrorKind::Peer, []) => "rank 0 holds the root: see what it says".to_string(),
            (ErrorKind::Peer, _) => format!("see what {who} said last"),
            _ => String::new(),
        }
    }

    /// Converts the fault to an error of the crate, at `rank`.
    #[must_use]
    pub fn into_error(self, rank: Rank) -> Error {
        // The hint says nothing new to the culprit itself.
        let next = if self.culprits == [rank] { String::new() } else { self.next() };
        let mut error = Error::new(self.kind, self.text).hint(next);
        error.at.rank = Some(rank);
        error.at.peer = self.culprits.first().copied().filter(|peer| *peer != rank);
        error
    }
}

/// Formats ranks for people: "rank 3", "ranks 3, 5-9 and 2 more".
#[must_use]
pub fn name_ranks(ranks: &[Rank]) -> String {
    const SHOWN: usize = 8;
    let runs = runs(ranks);
    let rest: u32 = runs.iter().skip(SHOWN).map(|(first, last)| last - first + 1).sum();
    let shown: Vec<String> = runs
        .iter()
        .take(SHOWN)
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{} {}{more}", if ranks.len() == 1 { "rank" } else { "ranks" }, shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ranks: &[u32], expect: &str) {
        let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
        assert_eq!(name_ranks(&ranks), expect);
    }

    #[test]
    fn ranks_read_well() {
        check(&[37], "rank 37");
        check(&[3, 5, 6, 7], "ranks 3, 5-7");
        check(&[1, 3, 5, 7, 9, 11, 13, 15, 17, 18], "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2 more");
    }

    #[test]
    fn a_fault_of_a_peer_that_wants_to_steer_the_terminal_is_made_harmless() {
        let said = "it went away\nccl: all is well\u{1b}[2J\u{202e}";
        let mut bytes = Fault::new(ErrorKind::Peer, &[], "").encode();
        bytes.truncate(bytes.len() - 4);
        put_bytes(&mut bytes, said.as_bytes());
        let error = Fault::decode(&bytes).unwrap().into_error(Rank(0));
        assert_eq!(error.what, "it went away\\nccl: all is well\\u{1b}[2J\\u{202e}");
        let mut bytes = Fault::new(ErrorKind::Peer, &[], "").encode();
        bytes.truncate(bytes.len() - 4);
        put_bytes(&mut bytes, "\n".repeat(7000).as_bytes());
        assert!(Fault::decode(&bytes).unwrap().text.len() <= MAX_TEXT);
    }

    #[test]
    fn where_secrets_differ_nobody_is_sent_to_look_whether_a_rank_has_started() {
        let hint =
            |text: &str| Fault::new(ErrorKind::Timeout, &[Rank(1)], text).into_error(Rank(0)).to_string();
        assert!(hint("1/2 in").contains("see whether rank 1 has started"));
        let said = hint(&format!("1/2 in; 5 connections came without proof: {EQUAL_SECRETS}"));
        assert!(said.ends_with(EQUAL_SECRETS), "{said}");
    }

    #[test]
    fn faults_travel_and_bad_ones_are_refused() {
        for kind in KINDS {
            let fault = Fault::new(kind, &[Rank(4), Rank(9)], "it went away");
            assert_eq!(Fault::decode(&fault.encode()), Some(fault));
        }
        let long = Fault::new(ErrorKind::Peer, &[], "é".repeat(3000));
        let cut = Fault::decode(&long.encode()).unwrap().text;
        assert!(cut.len() <= MAX_TEXT && cut.ends_with("é..."), "{cut}");
        assert_eq!(Fault::decode(&[9, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Fault::decode(&[0, 255, 255, 255, 255]), None);
    }
}
