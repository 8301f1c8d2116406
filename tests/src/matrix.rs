//! Counts of expected results against actual results.

use std::collections::BTreeMap;
use std::fmt;

/// A confusion matrix: the expected and the actual result, each in a few words.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Matrix {
    counts: BTreeMap<(String, String), u32>,
}

impl Matrix {
    /// Counts one result.
    pub fn add(&mut self, expected: impl ToString, said: impl ToString) {
        *self.counts.entry((expected.to_string(), said.to_string())).or_default() += 1;
    }
    /// The number of results.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.counts.values().sum()
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&String> = self.counts.keys().flat_map(|(a, b)| [a, b]).collect();
        names.sort_unstable();
        names.dedup();
        let wide = names.iter().map(|name| name.len()).max().unwrap_or(0).max(16);
        write!(f, "{:<wide$}", "expected \\ said")?;
        for name in &names {
            write!(f, " {name:>10}")?;
        }
        for expected in &names {
            write!(f, "\n{expected:<wide$}")?;
            for said in &names {
                let count = self.counts.get(&((*expected).clone(), (*said).clone())).copied().unwrap_or(0);
                write!(f, " {count:>columns$}", columns = said.len().max(10))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Class;

    #[test]
    fn a_matrix_has_a_row_and_a_column_for_each_class() {
        let mut matrix = Matrix::default();
        matrix.add(Class::Missing, Class::Missing);
        matrix.add(Class::Missing, Class::Nobody);
        let text = matrix.to_string();
        assert_eq!(text.lines().count(), 3);
        let is_row = |line: &str| line.starts_with("Missing ") && line.matches(" 1").count() == 2;
        assert!(text.lines().any(is_row), "{text}");
        assert_eq!(matrix.total(), 2);
    }
}
