//! The user's tag as events, and which tag an operation had. An event has no room for a text, so a
//! tag comes in pieces.

use std::collections::VecDeque;

use super::Event;
use crate::clock::Raw;

/// Bytes of text in one event.
pub const PIECE: usize = 40;
/// The longest tag that is recorded, in bytes.
pub const MOST: usize = 88;
/// How many changes of the tag are remembered: operations that were called before the oldest have
/// none.
const REMEMBERED: usize = 256;

/// The pieces of a tag in order: the number of each, the length of the whole, and its text.
pub(crate) fn pieces(tag: &str) -> impl Iterator<Item = (u8, u8, [u8; PIECE])> {
    let mut end = tag.len().min(MOST);
    while !tag.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = &tag.as_bytes()[..end];
    // An empty tag is one piece, too: it takes the last one back.
    (0..end.div_ceil(PIECE).max(1)).map(move |number| {
        let rest = &bytes[number * PIECE..];
        let some = &rest[..rest.len().min(PIECE)];
        let mut text = [0; PIECE];
        text[..some.len()].copy_from_slice(some);
        (number as u8, end as u8, text)
    })
}

/// Which tag one rank of a communicator had when, as its events tell. What is not known for certain
/// is not told.
#[derive(Clone, Default, Debug)]
pub struct Tags {
    /// The changes, oldest first.
    changes: VecDeque<(Raw, Option<String>)>,
    /// The text of the tag whose pieces are arriving.
    arriving: Vec<u8>,
    /// When the last event happened that was taken.
    last: Raw,
}

impl Tags {
    /// Takes the next event of the rank, of whatever kind, which happened at `at`.
    pub fn take(&mut self, at: Raw, event: &Event) {
        self.last = self.last.max(at);
        let Event::Tagged { piece, len, text } = event else { return };
        let (piece, len) = (usize::from(*piece), usize::from(*len).min(MOST));
        if piece == 0 {
            self.arriving.clear();
        }
        if self.arriving.len() != piece * PIECE {
            // A piece before it was lost.
            self.arriving.clear();
            return self.change(at, None);
        }
        self.arriving.extend_from_slice(&text[..len.saturating_sub(piece * PIECE).min(PIECE)]);
        if self.arriving.len() == len {
            let text = String::from_utf8_lossy(&self.arriving).into_owned();
            self.change(at, Some(text));
        }
    }

    /// Events between the last one and the next are lost: there may have been a tag among them.
    pub fn lost(&mut self) {
        self.arriving.clear();
        self.change(Raw(self.last.0.saturating_add(1)), None);
    }

    /// The tag was this one some time before `at`, and no event since then says otherwise.
    pub fn stood(&mut self, at: Raw, tag: &str) {
        if self.changes.is_empty() {
            self.change(at, Some(tag.into()));
        }
    }

    /// The tag of what was called at that moment; `None`: it had none, or nobody knows.
    #[must_use]
    pub fn of(&self, called: Raw) -> Option<&str> {
        let (_, tag) = self.changes.iter().rev().find(|(at, _)| *at <= called)?;
        tag.as_deref().filter(|tag| !tag.is_empty())
    }

    fn change(&mut self, at: Raw, to: Option<String>) {
        // What was read of the tag itself is older than any event that is read after it.
        while self.changes.back().is_some_and(|(last, _)| *last >= at) {
            self.changes.pop_back();
        }
        self.changes.push_back((at, to));
        if self.changes.len() > REMEMBERED {
            self.changes.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(tag: &str) -> impl Iterator<Item = Event> {
        pieces(tag).map(|(piece, len, text)| Event::Tagged { piece, len, text })
    }

    fn tagged(tags: &mut Tags, at: u64, tag: &str) {
        events(tag).for_each(|event| tags.take(Raw(at), &event));
    }

    #[test]
    fn an_operation_has_the_tag_that_stood_when_it_was_called() {
        let mut tags = Tags::default();
        tagged(&mut tags, 10, "step 1");
        tagged(&mut tags, 20, "step 2");
        tagged(&mut tags, 30, "");
        let of = |at| tags.of(Raw(at));
        assert_eq!(
            [of(9), of(10), of(19), of(20), of(30)],
            [None, Some("step 1"), Some("step 1"), Some("step 2"), None]
        );
    }

    #[test]
    fn a_long_tag_comes_whole_or_not_at_all() {
        let long = format!("{}ä and what is cut", "x".repeat(87));
        assert_eq!(events(&long).count(), 3);
        let mut tags = Tags::default();
        tagged(&mut tags, 10, &long);
        assert_eq!(tags.of(Raw(10)), Some(&*"x".repeat(87)));
        // The second of three pieces was overwritten.
        let pieces: Vec<Event> = events(&"y".repeat(88)).collect();
        tags.take(Raw(20), &pieces[0]);
        tags.take(Raw(20), &pieces[2]);
        assert_eq!((tags.of(Raw(15)), tags.of(Raw(25))), (Some(&*"x".repeat(87)), None));
    }

    #[test]
    fn what_is_not_certain_is_not_told() {
        let mut tags = Tags::default();
        tagged(&mut tags, 10, "known");
        tags.take(Raw(40), &Event::Aborted);
        tags.lost();
        assert_eq!((tags.of(Raw(40)), tags.of(Raw(50))), (Some("known"), None));
        tagged(&mut tags, 60, "known again");
        assert_eq!((tags.of(Raw(59)), tags.of(Raw(60))), (None, Some("known again")));
        // It was read between two events; the later one tells when it changed.
        let mut tags = Tags::default();
        tags.stood(Raw(100), "either");
        assert_eq!((tags.of(Raw(99)), tags.of(Raw(100))), (None, Some("either")));
        tagged(&mut tags, 95, "new");
        assert_eq!((tags.of(Raw(94)), tags.of(Raw(100))), (None, Some("new")));
    }

    #[test]
    fn changes_cost_no_more_than_are_remembered() {
        let mut tags = Tags::default();
        (0..10_000).for_each(|n| tagged(&mut tags, n, &format!("step {n}")));
        assert_eq!(tags.changes.len(), REMEMBERED);
        assert_eq!((tags.of(Raw(1)), tags.of(Raw(9_999))), (None, Some("step 9999")));
    }
}
