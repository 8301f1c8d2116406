//! The last report of a rank of a script, in a few words, compared with what it must be.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::job::Line;
use crate::scripts::{Expected, Instance};

/// The fields in which two calls can differ; those that explain the others come first.
const FIELDS: [&str; 8] = ["kind", "dtype", "op", "root", "count", "calls", "seq", "plan"];

/// How a rank ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The rank.
    pub rank: u32,
    /// Everything that it printed.
    pub said: Vec<Line>,
    /// Its exit status as text; `None` if it was successful.
    pub status: Option<String>,
}

impl Ended {
    /// The error that ended it.
    #[must_use]
    pub fn error(&self) -> Option<&Line> {
        self.said.iter().find(|line| matches!(line, Line::Error { .. }))
    }

    fn text(&self) -> &str {
        match self.error() {
            Some(Line::Error { text, .. }) => text,
            _ => "",
        }
    }

    /// Its result in a few words.
    #[must_use]
    pub fn label(&self) -> String {
        let is_wrong = |line: &Line| matches!(line, Line::Note { text } if text.starts_with("wrong data"));
        match (self.error(), &self.status) {
            (Some(Line::Error { kind, text, .. }), _) => label(kind, text),
            _ if self.said.iter().any(is_wrong) => "wrong data".into(),
            (_, None) => "well".into(),
            (_, Some(status)) => status.clone(),
        }
    }

    /// The report of its forked child; one word if that is an expected one.
    fn child(&self) -> Option<String> {
        let said = self.said.iter().find_map(|line| match line {
            Line::Child { said } => Some(said),
            _ => None,
        })?;
        let is_refused = said.starts_with("Usage: ") && said.contains("forked") && !said.contains("status");
        Some(if is_refused { "refused".into() } else { said.clone() })
    }
}

/// An error in a few words.
#[must_use]
pub fn label(kind: &str, text: &str) -> String {
    match kind {
        "Mismatch" => {
            let differ = text.rsplit_once(" differ in ").map_or("", |(_, fields)| fields);
            let is_in = |field: &&&str| {
                differ.split([',', ';']).any(|one| one.trim().split(' ').next() == Some(**field))
            };
            let field = FIELDS.iter().find(is_in).copied().unwrap_or("what is not said");
            format!("mismatch of {field}")
        }
        "Peer" if text.contains("has called finish()") => "peer has finished".into(),
        "Peer" if text.contains("ended without leaving") => "peer died".into(),
        "Aborted" if text.contains("panicked") => "peer panicked".into(),
        kind => kind.to_lowercase(),
    }
}

/// The call of each rank according to the error.
#[must_use]
pub fn sides(text: &str) -> BTreeMap<u32, String> {
    let mut sides = BTreeMap::new();
    for part in text.split(';') {
        let Some((before, called)) = part.split_once(" called ") else { continue };
        let rank = before.rsplit("rank ").next().and_then(|rank| rank.trim().parse().ok());
        if let Some(rank) = rank {
            sides.insert(rank, called.trim().to_string());
        }
    }
    sides
}

/// The sentence that all ranks share: without each rank's place, and without advice.
#[must_use]
pub fn sentence(text: &str) -> String {
    let is_place = |part: &str| {
        let number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        part.starts_with("comm ")
            || part.starts_with("channel ")
            || part.strip_prefix("peer ").unwrap_or(part).strip_prefix("rank ").is_some_and(number)
            || part.split_once(" #").is_some_and(|(kind, seq)| !kind.contains(' ') && number(seq))
    };
    let mut rest = text;
    while let Some((part, behind)) = rest.split_once(": ")
        && is_place(part)
    {
        rest = behind;
    }
    let end = rest.find(" differ in ").map_or(0, |at| at + 1);
    rest[end..].find("; ").map_or(rest, |at| &rest[..end + at]).to_string()
}

/// What a rank must say, in a few words.
#[must_use]
pub fn wanted(expected: &Expected) -> String {
    match &expected.child {
        Some(child) => format!("{}, its child {child}", expected.says),
        None => expected.says.clone(),
    }
}

/// What a rank said, in a few words, and everything that is not as it must be.
#[must_use]
pub fn judge(instance: &Instance, expected: &Expected, ended: &Ended) -> (String, Vec<String>) {
    let (rank, text) = (ended.rank, ended.text());
    let mut said = ended.label();
    let mut wrong = Vec::new();
    if said != expected.says {
        let last = if text.is_empty() { format!("{:?}", ended.said) } else { text.to_string() };
        wrong.push(format!("rank {rank}: {said}, not {}: {last}", expected.says));
    }
    let named = instance.ranks(&expected.about);
    let is_named =
        |rank: &u32| text.contains(&format!("rank {rank} ")) || text.contains(&format!("rank {rank}:"));
    let peer = match ended.error() {
        Some(Line::Error { peer, .. }) => *peer,
        _ => None,
    };
    let mut is_about = named.is_empty() || named.iter().any(|one| peer == Some(*one) && is_named(one));
    let sides = sides(text);
    for (role, words) in &expected.sides {
        let called = |rank: &u32| {
            sides.get(rank).is_some_and(|called| words.iter().all(|word| called.contains(word.as_str())))
        };
        is_about &= instance.cast[role].iter().any(called);
    }
    if !is_about && said == expected.says {
        said.push_str(", of others");
        wrong.push(format!("rank {rank}: about {named:?}, {:?}: {text}", expected.sides));
    }
    let lacks = expected.contains.iter().filter(|word| !text.contains(word.as_str()));
    wrong.extend(lacks.map(|word| format!("rank {rank} does not say {word:?}: {text}")));
    let has = expected.never.iter().filter(|word| text.contains(word.as_str()));
    wrong.extend(has.map(|word| format!("rank {rank} says {word:?}: {text}")));
    if let Some(child) = &expected.child {
        let its = ended.child().unwrap_or_else(|| "there was none".into());
        if its != *child {
            wrong.push(format!("the child of rank {rank}: {its}, not {child}"));
        }
        let _ = write!(said, ", its child {its}");
    }
    for line in &ended.said {
        if let Line::Left { left_over } = line {
            wrong.extend(left_over.iter().map(|what| format!("rank {rank} has left {what}")));
        }
    }
    (said, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "comm world: rank 2: Broadcast #7: channel 0: peer rank 1: rank 0 called Broadcast #7 (count 4, F32, \
        root 0); rank 1 called Broadcast #7 (count 5, F32, root 1); rank 0 / rank 1 differ in root 0 / 1, count 4 / 5; make all \
        ranks call the same, in the same order";

    #[test]
    fn errors_are_told_apart() {
        assert_eq!(label("Mismatch", TEXT), "mismatch of root");
        assert_eq!(label("Mismatch", "what is this"), "mismatch of what is not said");
        assert_eq!(label("Peer", "rank 2 has called finish() after 4"), "peer has finished");
        assert_eq!(label("Peer", "the process of rank 2 ended without leaving the"), "peer died");
        assert_eq!(label("Timeout", "x"), "timeout");
    }

    #[test]
    fn a_mismatch_tells_both_sides_and_all_ranks_the_same_sentence() {
        let sides = sides(TEXT);
        assert_eq!(sides.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert!(sides[&0].contains("count 4") && sides[&1].contains("root 1"), "{sides:?}");
        let sentence = sentence(TEXT);
        assert!(sentence.starts_with("rank 0 called") && sentence.ends_with("count 4 / 5"), "{sentence}");
    }

    #[test]
    fn the_sentence_of_a_death_is_told_without_where_it_was_met() {
        let text = "comm world: rank 0: AllReduce #3: channel p2p: peer rank 1: the process of rank 1 ended; it was pid 3";
        assert_eq!(sentence(text), "the process of rank 1 ended");
    }
}
