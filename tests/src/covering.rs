//! Covering arrays: few rows of settings among which each pair of settings occurs.
//!
//! A *factor* is a setting; its *levels* are numbered. Rows are drawn one after another. Each
//! takes, factor by factor in a drawn order, the level that brings the most pairs that no row has
//! yet.

use std::collections::BTreeSet;

use ccl::seed::Seed;

/// A row: the level of each factor.
pub type Row = Vec<usize>;

/// A pair of levels: of the first factor and of the second one.
type Pair = ((usize, usize), (usize, usize));

/// Rows that have all pairs of levels, of factors with so many levels.
#[must_use]
pub fn rows(levels: &[usize], seed: u64) -> Vec<Row> {
    let mut open: BTreeSet<Pair> = BTreeSet::new();
    for (a, of_a) in levels.iter().enumerate() {
        for (b, of_b) in levels.iter().enumerate().skip(a + 1) {
            open.extend((0..*of_a).flat_map(|x| (0..*of_b).map(move |y| ((a, x), (b, y)))));
        }
    }
    let mut draw = Seed(seed);
    let mut rows = Vec::new();
    // Each row brings a pair that no row has yet.
    while let Some(&((a, x), (b, y))) = open.first() {
        let mut row: Vec<Option<usize>> = vec![None; levels.len()];
        (row[a], row[b]) = (Some(x), Some(y));
        let mut order: Vec<usize> = (0..levels.len()).filter(|factor| row[*factor].is_none()).collect();
        draw.shuffle(&mut order);
        for factor in order {
            let mut candidates: Vec<usize> = (0..levels[factor]).collect();
            draw.shuffle(&mut candidates);
            let brings =
                |level: &usize| pairs_with(&row, (factor, *level)).filter(|pair| open.contains(pair)).count();
            row[factor] = candidates.into_iter().max_by_key(brings);
        }
        let row: Row = row.into_iter().flatten().collect();
        for (factor, level) in row.iter().enumerate() {
            let whole: Vec<Option<usize>> = row[..factor].iter().map(|level| Some(*level)).collect();
            for pair in pairs_with(&whole, (factor, *level)) {
                open.remove(&pair);
            }
        }
        rows.push(row);
    }
    rows
}

/// The pairs of a level with the levels that a row has.
fn pairs_with(row: &[Option<usize>], at: (usize, usize)) -> impl Iterator<Item = Pair> {
    let others = row.iter().enumerate().filter_map(|(factor, level)| Some((factor, (*level)?)));
    others
        .filter(move |other| other.0 != at.0)
        .map(move |other| if other.0 < at.0 { (other, at) } else { (at, other) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_in_a_row() {
        let levels = [12, 12, 6, 9, 3, 2];
        let rows = rows(&levels, 7);
        assert!(rows.len() < 200, "{} rows", rows.len());
        for (a, of_a) in levels.iter().enumerate() {
            for (b, of_b) in levels.iter().enumerate().skip(a + 1) {
                for (x, y) in (0..*of_a).flat_map(|x| (0..*of_b).map(move |y| (x, y))) {
                    assert!(rows.iter().any(|row| (row[a], row[b]) == (x, y)), "{a}:{x} {b}:{y}");
                }
            }
        }
    }
}
