//! A question of a client that is answered later, in parts: gathering across hosts. The client may
//! ask other things meanwhile.

use std::collections::VecDeque;

use super::gather::{Gathered, GatheredRow, Gathering, Lack, Piece, Ticket};
use super::wire::Answer;
use crate::error::Result;

/// The most memory of the rows of one part, about. A row alone may be larger.
const PART: usize = 1 << 20;
/// The most statements of one part on what is missing.
const LACKS: usize = 256;

/// A question that is being answered.
#[derive(Debug)]
pub(super) struct Asking {
    /// The id of the request.
    id: u64,
    /// `None`: this process has nobody to ask.
    ticket: Option<Ticket>,
    rows: VecDeque<Box<GatheredRow>>,
    lacks: VecDeque<Lack>,
    is_done: bool,
}

impl Asking {
    /// Asks; `call` is called when there is more to send.
    ///
    /// # Errors
    /// `System` if the question cannot be asked.
    pub(super) fn begin(id: u64, call: impl Fn() + Send + 'static) -> Result<Self> {
        let ticket = Gathering::known().map(|known| known.ask(call)).transpose()?;
        let is_done = ticket.is_none();
        Ok(Self { id, ticket, rows: VecDeque::new(), lacks: VecDeque::new(), is_done })
    }

    /// The next part of the answer; `None` while there is none.
    pub(super) fn part(&mut self) -> Option<Answer> {
        for piece in self.ticket.iter().flat_map(Ticket::take) {
            match piece {
                Piece::Row(row) => self.rows.push_back(row),
                Piece::Lack(lack) => self.lacks.push_back(lack),
                Piece::Done => self.is_done = true,
            }
        }
        if self.rows.is_empty() && self.lacks.is_empty() && !self.is_done {
            return None;
        }
        let mut part = Gathered::default();
        let mut bytes = 0;
        while let Some(mut row) = self.rows.pop_front() {
            bytes += row.process.weight();
            if bytes > PART && !part.rows.is_empty() {
                self.rows.push_front(row);
                break;
            }
            part.rows.push(*row);
        }
        part.lacks.extend(self.lacks.drain(..LACKS.min(self.lacks.len())));
        part.more = !(self.is_done && self.rows.is_empty() && self.lacks.is_empty());
        Some(Answer { id: self.id, gather: Some(Box::new(part)), ..Answer::default() })
    }
}
