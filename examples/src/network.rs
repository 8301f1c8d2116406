//! A perceptron with one hidden layer: 64 pixels, 32 tanh units, 10 classes; softmax and
//! cross-entropy; gradient descent with momentum. All in f64, in a fixed order, so that equal
//! gradients give equal bits.

use crate::digits::{CLASSES, Digit, PIXELS};
use ccl::seed::Seed;

/// Units of the hidden layer.
pub const HIDDEN: usize = 32;
/// Weights and biases of both layers.
pub const PARAMETERS: usize = HIDDEN * PIXELS + HIDDEN + CLASSES * HIDDEN + CLASSES;

/// The parameters in one row: weights and biases of the hidden layer, then of the last layer.
#[derive(Clone, PartialEq, Debug)]
pub struct Network {
    parameters: Vec<f64>,
}

/// The four parts of a row of parameters or of their gradient.
fn parts(row: &[f64]) -> [&[f64]; 4] {
    let (w1, rest) = row.split_at(HIDDEN * PIXELS);
    let (b1, rest) = rest.split_at(HIDDEN);
    let (w2, b2) = rest.split_at(CLASSES * HIDDEN);
    [w1, b1, w2, b2]
}

fn parts_mut(row: &mut [f64]) -> [&mut [f64]; 4] {
    let (w1, rest) = row.split_at_mut(HIDDEN * PIXELS);
    let (b1, rest) = rest.split_at_mut(HIDDEN);
    let (w2, b2) = rest.split_at_mut(CLASSES * HIDDEN);
    [w1, b1, w2, b2]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl Network {
    /// A network with random weights, equal for equal seeds.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut seed = Seed(seed);
        let mut parameters = vec![0.0; PARAMETERS];
        let [w1, _, w2, _] = parts_mut(&mut parameters);
        for (weights, inputs) in [(w1, PIXELS), (w2, HIDDEN)] {
            let width = (3.0 / inputs as f64).sqrt();
            weights.iter_mut().for_each(|w| *w = width * seed.signed_unit());
        }
        Self { parameters }
    }

    /// The activations of the hidden layer, and the probability of each class.
    fn forward(&self, pixels: &[f64; PIXELS]) -> ([f64; HIDDEN], [f64; CLASSES]) {
        let [w1, b1, w2, b2] = parts(&self.parameters);
        let hidden: [f64; HIDDEN] =
            std::array::from_fn(|h| (dot(&w1[h * PIXELS..][..PIXELS], pixels) + b1[h]).tanh());
        let logits: [f64; CLASSES] =
            std::array::from_fn(|c| dot(&w2[c * HIDDEN..][..HIDDEN], &hidden) + b2[c]);
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers = logits.map(|z| (z - largest).exp());
        let sum: f64 = powers.iter().sum();
        (hidden, powers.map(|p| p / sum))
    }

    /// Adds the gradient of the loss over `images` to `gradient`, and returns that loss.
    ///
    /// Both are sums, not means.
    pub fn add_gradient<'a>(&self, images: impl IntoIterator<Item = &'a Digit>, gradient: &mut [f64]) -> f64 {
        let w2 = parts(&self.parameters)[2];
        let [dw1, db1, dw2, db2] = parts_mut(gradient);
        let mut loss = 0.0;
        for image in images {
            let label = usize::from(image.label);
            let (hidden, mut slope) = self.forward(&image.pixels);
            loss -= slope[label].max(f64::MIN_POSITIVE).ln();
            slope[label] -= 1.0;
            for (c, &s) in slope.iter().enumerate() {
                db2[c] += s;
                dw2[c * HIDDEN..][..HIDDEN].iter_mut().zip(&hidden).for_each(|(d, a)| *d += s * a);
            }
            for (h, &a) in hidden.iter().enumerate() {
                let above: f64 = slope.iter().enumerate().map(|(c, s)| s * w2[c * HIDDEN + h]).sum();
                let s = above * (1.0 - a * a);
                db1[h] += s;
                dw1[h * PIXELS..][..PIXELS].iter_mut().zip(&image.pixels).for_each(|(d, x)| *d += s * x);
            }
        }
        loss
    }

    /// The share of `images` whose most probable class is the right one.
    #[must_use]
    pub fn accuracy(&self, images: &[Digit]) -> f64 {
        let right = images.iter().filter(|image| {
            let (_, probability) = self.forward(&image.pixels);
            let best = (0..CLASSES).max_by(|&a, &b| probability[a].total_cmp(&probability[b]));
            best == Some(usize::from(image.label))
        });
        right.count() as f64 / images.len() as f64
    }

    /// A number that almost certainly differs if a single bit of the parameters does (FNV-1a over
    /// 64-bit words).
    #[must_use]
    pub fn fingerprint(&self) -> i64 {
        let start = 0xcbf2_9ce4_8422_2325_u64;
        let mix =
            |hash: u64, p: &f64| (hash ^ p.to_bits()).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        self.parameters.iter().fold(start, mix).cast_signed()
    }
}

/// Gradient descent with momentum.
#[derive(Clone, Debug)]
pub struct Descent {
    rate: f64,
    momentum: f64,
    velocity: Vec<f64>,
}

impl Descent {
    /// Descends at `rate`, keeping `momentum` of the last step.
    #[must_use]
    pub fn new(rate: f64, momentum: f64) -> Self {
        Self { rate, momentum, velocity: vec![0.0; PARAMETERS] }
    }
    /// One step down `scale` x `gradient`.
    pub fn step(&mut self, network: &mut Network, gradient: &[f64], scale: f64) {
        for ((p, v), g) in network.parameters.iter_mut().zip(&mut self.velocity).zip(gradient) {
            *v = self.momentum * *v + g * scale;
            *p -= self.rate * *v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let (training, _) = digits::load(3);
        let images = &training[..5];
        let network = Network::new(11);
        let mut gradient = vec![0.0; PARAMETERS];
        let loss = network.add_gradient(images, &mut gradient);
        let mut unused = vec![0.0; PARAMETERS];
        // One parameter of each part, none of them at a border.
        for at in [700, HIDDEN * PIXELS + 5, HIDDEN * PIXELS + HIDDEN + 77, PARAMETERS - 4] {
            let mut moved = network.clone();
            moved.parameters[at] += 1e-6;
            let slope = (moved.add_gradient(images, &mut unused) - loss) / 1e-6;
            assert!((slope - gradient[at]).abs() < 1e-4, "parameter {at}: {slope} against {}", gradient[at]);
        }
    }

    #[test]
    fn one_bit_of_one_parameter_changes_the_fingerprint() {
        let network = Network::new(11);
        assert_eq!(network.fingerprint(), Network::new(11).fingerprint());
        for at in [0, 1_000, PARAMETERS - 1] {
            let mut other = network.clone();
            other.parameters[at] = f64::from_bits(other.parameters[at].to_bits() ^ 1);
            assert_ne!(other.fingerprint(), network.fingerprint());
        }
    }
}
