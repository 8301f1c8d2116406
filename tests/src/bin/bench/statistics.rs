//! Medians, quartiles, and the confidence in a mean of ratios.

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// `median [least .. most]`
pub(crate) fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:8.3} [{least:.3} .. {most:.3}]", median(values.to_vec()))
}

/// `median [first quartile .. last]`: for differences far smaller than the error of single rounds.
pub(crate) fn middle(values: &[f64]) -> String {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values[(values.len() - 1) * part / 4];
    format!("{:8.3} [quartiles {:.3} .. {:.3}]", at(2), at(1), at(3))
}

pub(crate) fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "BROKEN" }
}

/// Ratios of pairs, by their size.
///
/// A class is their geometric mean, in which every size has the same weight.
#[derive(Default)]
pub(crate) struct Class {
    /// Logarithms.
    sizes: Vec<Vec<f64>>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

impl Class {
    /// Adds the ratios of a size; gives them as text.
    pub(crate) fn add(&mut self, ratios: Vec<f64>) -> String {
        let size: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let text = format!("ratio {:.3} {}", mean(&size).exp(), spread(&ratios).trim_start());
        self.sizes.push(size);
        text
    }
    /// The geometric mean over all sizes and pairs.
    pub(crate) fn mean(&self) -> f64 {
        mean(&self.sizes.iter().map(|size| mean(size)).collect::<Vec<_>>()).exp()
    }
    /// The largest geometric mean of a size.
    pub(crate) fn largest(&self) -> f64 {
        self.sizes.iter().map(|size| mean(size).exp()).fold(0.0, f64::max)
    }
    /// The upper bound of the mean with 95 % confidence, by Student's distribution for fixed sizes.
    ///
    /// Infinite with fewer than two pairs.
    pub(crate) fn upper_bound(&self) -> f64 {
        let freedom: usize = self.sizes.iter().map(|size| size.len().saturating_sub(1)).sum();
        if freedom == 0 {
            return f64::INFINITY;
        }
        let squares = |size: &[f64]| size.iter().map(|value| (value - mean(size)).powi(2)).sum::<f64>();
        let variance_of_mean =
            |size: &Vec<f64>| squares(size) / (size.len() as f64 - 1.0).max(1.0) / size.len() as f64;
        let error = self.sizes.iter().map(variance_of_mean).sum::<f64>().sqrt() / self.sizes.len() as f64;
        self.mean() * (student(freedom as f64) * error).exp()
    }
}

/// The 95 % quantile of Student's distribution, by its series around the normal one's.
fn student(freedom: f64) -> f64 {
    let z = 1.644_854_f64;
    let term = |of: [f64; 4], below: f64| {
        of.iter().zip([1, 3, 5, 7]).map(|(factor, power)| factor * z.powi(power)).sum::<f64>() / below
    };
    z + term([1.0, 1.0, 0.0, 0.0], 4.0 * freedom)
        + term([3.0, 16.0, 5.0, 0.0], 96.0 * freedom.powi(2))
        + term([-15.0, 17.0, 19.0, 3.0], 384.0 * freedom.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_says_how_sure_a_mean_is() {
        // From tables: 2.132 for 4, 1.697 for 30 degrees of freedom.
        assert!((student(4.0) - 2.132).abs() < 0.01 && (student(30.0) - 1.697).abs() < 0.001);
        let mut class = Class::default();
        class.add(vec![1.0, 1.0, 1.0]);
        class.add(vec![4.0, 4.0, 4.0]);
        // Sizes differ, pairs do not.
        assert!((class.mean() - 2.0).abs() < 1e-9 && (class.upper_bound() - 2.0).abs() < 1e-9);
        assert!((class.largest() - 4.0).abs() < 1e-9);
        let mut class = Class::default();
        class.add(vec![1.0, 1.21]);
        assert!(class.upper_bound() > 1.5, "two pairs say little: {}", class.upper_bound());
        let mut class = Class::default();
        class.add(vec![1.0]);
        assert_eq!(class.upper_bound(), f64::INFINITY);
    }
}
