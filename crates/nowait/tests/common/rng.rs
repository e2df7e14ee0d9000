//! SplitMix64, seeded by `NOWAIT_TEST_SEED` or always alike.

/// A generator whose whole state is one word.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The run's generator. Prints the seed, which the harness shows when the test fails.
    pub(crate) fn for_test() -> Rng {
        let seed = match std::env::var("NOWAIT_TEST_SEED") {
            Ok(text) => text.parse().expect("NOWAIT_TEST_SEED is a number"),
            Err(_) => 0x5eed,
        };
        eprintln!("NOWAIT_TEST_SEED={seed}");
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
