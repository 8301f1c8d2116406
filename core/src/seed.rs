//! Random numbers from a seed. They are the same on every machine, so that a run can be replayed.

/// A sequence of numbers: SplitMix64 (Steele, Lea, Flood 2014).
///
/// Good enough for delays, faults and the weights of an example; not for secrets.
#[derive(Clone, Debug)]
pub struct Seed(pub u64);

impl Seed {
    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`; 0 if `n` is 0. The bias of the remainder is `n` in 2^64.
    pub const fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }
    /// An index into a sequence of `len` items.
    pub const fn place(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
    /// A number in `-1.0..1.0`.
    pub const fn signed_unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
    /// One of `items`, which must not be empty.
    pub fn one_of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.place(items.len())].clone()
    }
    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.place(last + 1));
        }
    }
    /// An independent seed for part `n`.
    #[must_use]
    pub const fn part(&self, n: u64) -> Self {
        let mut seed = Self(self.0 ^ n.wrapping_mul(0xd1b5_4a32_d192_ed03));
        seed.bits();
        seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_on_every_machine() {
        let mut seed = Seed(1);
        assert_eq!([seed.bits(), seed.bits()], [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        let mut order: Vec<u32> = (0..8).collect();
        Seed(7).shuffle(&mut order);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!((0..1000).all(|_| seed.signed_unit().abs() <= 1.0));
        assert_eq!((seed.below(0), seed.place(1)), (0, 0));
        assert_ne!(seed.part(1).bits(), seed.part(2).bits());
    }
}
