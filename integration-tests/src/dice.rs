//! Chance that can be repeated.

/// xorshift: the same seed rolls the same.
pub struct Dice(u64);

impl Dice {
    /// Dice of this seed, any but 0.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.max(1))
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}
