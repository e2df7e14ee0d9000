//! Seeded numbers: equal seeds produce equal files, offsets and records.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a seed from the clock, short enough to be typed again.
pub fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64 % 1_000_000)
}

/// SplitMix64: one addition and a mix per number. Any number can be computed without its
/// predecessors.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the generator after `skip` numbers.
    pub fn at(seed: u64, skip: u64) -> Self {
        Self { state: seed.wrapping_add(skip.wrapping_mul(STEP)) }
    }

    /// Returns the generator of one of a seed's sequences. No sequence continues another.
    pub fn of(seed: u64, sequence: u64) -> Self {
        Self::new(Self::at(seed, sequence).number())
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must not be 0. The bias, below 2⁻³² for the bounds
    /// used here, is irrelevant for offsets.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns the numbers `0..count` in random order (Fisher-Yates).
    pub fn permutation(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_can_start_anywhere() {
        let mut from_start = Random::new(7);
        for _ in 0..5 {
            from_start.number();
        }
        assert_eq!(from_start.number(), Random::at(7, 5).number());
    }

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut order = Random::new(1).permutation(1000);
        assert_ne!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..1000));
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| random.below(7) < 7));
    }
}
