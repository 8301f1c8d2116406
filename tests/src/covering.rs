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

/// A row of which some levels are not drawn yet.
pub type Begun = Vec<Option<usize>>;

/// Rows that have all pairs of levels, of factors with so many levels, as far as they `fit`: a row
/// that does not fit is not drawn, and does not come to fit if more of its levels are.
#[must_use]
pub fn rows(levels: &[usize], fit: impl Fn(&Begun) -> bool, seed: u64) -> Vec<Row> {
    let mut open: BTreeSet<Pair> = BTreeSet::new();
    for (a, of_a) in levels.iter().enumerate() {
        for (b, of_b) in levels.iter().enumerate().skip(a + 1) {
            open.extend((0..*of_a).flat_map(|x| (0..*of_b).map(move |y| ((a, x), (b, y)))));
        }
    }
    let with = |row: &Begun, (factor, level): (usize, usize)| {
        let mut row = row.clone();
        row[factor] = Some(level);
        row
    };
    let nothing: Begun = vec![None; levels.len()];
    open.retain(|(one, other)| fit(&with(&with(&nothing, *one), *other)));
    let mut draw = Seed(seed);
    let mut rows = Vec::new();
    // Each row brings a pair that no row has yet.
    while let Some(&((a, x), (b, y))) = open.first() {
        let mut row = with(&with(&nothing, (a, x)), (b, y));
        let mut order: Vec<usize> = (0..levels.len()).filter(|factor| row[*factor].is_none()).collect();
        draw.shuffle(&mut order);
        for factor in order {
            let fits = |level: &usize| fit(&with(&row, (factor, *level)));
            let mut candidates: Vec<usize> = (0..levels[factor]).filter(fits).collect();
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
        // The last level of the first factor goes with the first one of the third.
        let fit = |row: &Begun| row[0] != Some(11) || row[2].is_none_or(|level| level == 0);
        let rows = rows(&levels, fit, 7);
        assert!(rows.len() < 200, "{} rows", rows.len());
        for (a, of_a) in levels.iter().enumerate() {
            for (b, of_b) in levels.iter().enumerate().skip(a + 1) {
                for (x, y) in (0..*of_a).flat_map(|x| (0..*of_b).map(move |y| (x, y))) {
                    let mut pair: Begun = vec![None; levels.len()];
                    (pair[a], pair[b]) = (Some(x), Some(y));
                    let is_there = rows.iter().any(|row| (row[a], row[b]) == (x, y));
                    assert_eq!(is_there, fit(&pair), "{a}:{x} {b}:{y}");
                }
            }
        }
    }
}
