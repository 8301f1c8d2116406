//! The handwritten digits: 1,797 images of 8 x 8 pixels (see `data/README.md` for their source).

use ccl::seed::Seed;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// The number of classes: 0 to 9.
pub const CLASSES: usize = 10;
/// The number of training images. The others are held out to test the result.
pub const TRAINING: usize = 1_440;

/// One image.
#[derive(Clone, PartialEq, Debug)]
pub struct Digit {
    /// Its line in the file, which is its displayed name.
    pub id: usize,
    /// Brightness, 0 to 1.
    pub pixels: [f64; PIXELS],
    /// The digit that it shows.
    pub label: u8,
}

/// All images, divided by the seed: the training images, then those held out.
#[must_use]
pub fn load(seed: u64) -> (Vec<Digit>, Vec<Digit>) {
    let text = include_str!("../data/digits.txt");
    let mut all: Vec<Digit> = text.lines().enumerate().map(|(id, line)| parse(id, line)).collect();
    Seed(seed).shuffle(&mut all);
    let held_out = all.split_off(TRAINING);
    (all, held_out)
}

/// The file is part of the program, so a bad line is a bug.
fn parse(id: usize, line: &str) -> Digit {
    let line = line.as_bytes();
    assert!(line.len() == PIXELS + 2 && line[PIXELS] == b' ', "line {id} of digits.txt");
    let mut pixels = [0.0; PIXELS];
    for (to, &byte) in pixels.iter_mut().zip(line) {
        let level = (byte as char).to_digit(17).expect("a pixel is one of 0 to g");
        *to = f64::from(level) / 16.0;
    }
    Digit { id, pixels, label: line[PIXELS + 1] - b'0' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_images_are_there_once_and_the_parting_depends_on_the_seed_only() {
        let (training, held_out) = load(1);
        assert_eq!((training.len(), held_out.len()), (1_440, 357));
        let mut ids: Vec<usize> = training.iter().chain(&held_out).map(|d| d.id).collect();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(0..1_797));
        assert_eq!(load(1), (training.clone(), held_out));
        assert_ne!(load(2).0, training);
        let mut of_each = [0; CLASSES];
        training.iter().for_each(|d| of_each[usize::from(d.label)] += 1);
        assert!(of_each.iter().all(|&n| n > 100), "{of_each:?}");
    }
}
