//! The filter language of `/`: words and `key=value`, all of which must match. Example:
//! `state=stopped`, `rank=0-3,7 AllReduce`.

use super::listing::{Column, Row};

/// The keys, and the values they are compared with.
pub(crate) const KEYS: &[&str] = &["state", "rank", "host", "comm", "op"];

/// The condition under which a row is shown.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Filter {
    text: String,
    terms: Vec<Term>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Term {
    /// The row contains this word.
    Word(String),
    /// This field of the row contains the text.
    Field(&'static str, String),
    /// The row is about one of these ranks.
    Ranks(Vec<(u32, u32)>),
}

impl Filter {
    /// Reads a typed filter.
    ///
    /// # Errors
    /// What is wrong with it, and the correct form.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let terms = text.split_whitespace().map(term).collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_string(), terms })
    }

    /// The filter as it was typed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a table with these columns shows the row.
    ///
    /// A key is compared with the text of its column and with the row's further fields of that
    /// name.
    pub(crate) fn takes(&self, row: &Row, columns: &[Column]) -> bool {
        self.terms.iter().all(|term| match term {
            Term::Word(word) => {
                row.cells.iter().any(|cell| has(&cell.text, word))
                    || row.fields.iter().any(|(_, value)| has(value, word))
            }
            Term::Field(key, value) => {
                let shown = columns.iter().zip(&row.cells).filter(|(column, _)| column.key == *key);
                row.fields.iter().any(|(name, text)| name == key && has(text, value))
                    || shown.into_iter().any(|(_, cell)| has(&cell.text, value))
            }
            Term::Ranks(ranges) => {
                row.ranks.iter().any(|rank| ranges.iter().any(|(low, high)| (low..=high).contains(&rank)))
            }
        })
    }
}

fn has(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(part)
}

fn term(word: &str) -> Result<Term, String> {
    let word = word.to_lowercase();
    let Some((key, value)) = word.split_once('=') else { return Ok(Term::Word(word)) };
    match KEYS.iter().find(|known| **known == key) {
        Some(&"rank") => ranges(value)
            .map(Term::Ranks)
            .ok_or_else(|| format!("rank={value}: a rank, or several like 0-3,7")),
        Some(known) => Ok(Term::Field(known, value.to_string())),
        None => Err(format!("{key}= is no key; the keys are {}", KEYS.join("= ") + "=")),
    }
}

fn ranges(text: &str) -> Option<Vec<(u32, u32)>> {
    let range = |part: &str| match part.split_once('-') {
        Some((low, high)) => Some((low.parse().ok()?, high.parse().ok()?)),
        None => part.parse().ok().map(|one| (one, one)),
    };
    text.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::super::listing::Cell;
    use super::*;

    fn check(filter: &str, expect: bool) {
        let row = Row {
            cells: vec![Cell::text("* BLOCKING, AllReduce #5")],
            fields: vec![("state", "stopped".into()), ("host", "Node7".into()), ("comm", "world".into())],
            ranks: vec![2],
            ..Row::default()
        };
        let columns = [Column::new("state").key("state")];
        assert_eq!(Filter::parse(filter).unwrap().takes(&row, &columns), expect, "{filter}");
    }

    #[test]
    fn all_terms_must_match() {
        check("", true);
        check("allreduce", true);
        check("allreduce #5", true);
        check("broadcast", false);
        check("state=stop host=node", true);
        check("state=stop host=other", false);
        check("state=BLOCKING", true);
        check("state=waits", false);
        check("NODE7", true);
        check("comm=node", false);
        check("op=world", false);
    }

    #[test]
    fn ranks_are_numbers() {
        check("rank=2", true);
        check("rank=12", false);
        check("rank=0-1,2", true);
        check("rank=3-9", false);
        let wrong = |text: &str| Filter::parse(text).unwrap_err();
        assert_eq!(wrong("rank=x"), "rank=x: a rank, or several like 0-3,7");
        assert_eq!(wrong("pid=3"), "pid= is no key; the keys are state= rank= host= comm= op=");
    }
}
