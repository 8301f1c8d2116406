//! What was expected against what was said, counted.

use std::collections::BTreeMap;
use std::fmt;

use crate::scenario::Class;

/// A confusion matrix: expected class x reported class.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Matrix {
    counts: BTreeMap<(Class, Class), u32>,
}

impl Matrix {
    /// Counts one.
    pub fn add(&mut self, expected: Class, reported: Class) {
        *self.counts.entry((expected, reported)).or_default() += 1;
    }
    /// How many were counted.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.counts.values().sum()
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut classes: Vec<Class> = self.counts.keys().flat_map(|(a, b)| [*a, *b]).collect();
        classes.sort_unstable();
        classes.dedup();
        let name = |class: &Class| format!("{class:?}");
        write!(f, "{:<20}", "expected \\ said")?;
        for class in &classes {
            write!(f, " {:>10}", name(class))?;
        }
        for expected in &classes {
            write!(f, "\n{:<20}", name(expected))?;
            for reported in &classes {
                let count = self.counts.get(&(*expected, *reported)).copied().unwrap_or(0);
                write!(f, " {count:>10}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
