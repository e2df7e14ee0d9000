//! Numbers that come as often as words do.

use nowait_bench::random::Random;

/// Ranks by a Zipf distribution: rank `i` (from 0) as often as `1 / (i + 1)^s`.
#[derive(Debug)]
pub(super) struct Zipf {
    /// Share of the ranks up to each.
    up_to: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(ranks: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut up_to: Vec<f64> = (1..=ranks)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        up_to.iter_mut().for_each(|share| *share /= sum);
        Self { up_to }
    }

    pub(super) fn rank(&self, random: &mut Random) -> u64 {
        const BITS: u32 = 53;
        let drawn = random.below(1 << BITS) as f64 / (1u64 << BITS) as f64;
        self.up_to.partition_point(|&share| share <= drawn).min(self.up_to.len().saturating_sub(1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_the_law_says() {
        let (zipf, mut random) = (Zipf::new(1000, 1.2), Random::new(5));
        let mut drawn = vec![0u32; 1000];
        for _ in 0..100_000 {
            drawn[zipf.rank(&mut random) as usize] += 1;
        }
        let whole: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-1.2)).sum();
        for rank in [1, 2, 10, 50] {
            let expected = 100_000.0 * f64::from(rank as u32).powf(-1.2) / whole;
            let seen = f64::from(drawn[rank - 1]);
            assert!((seen - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {seen}, not {expected}");
        }
        // All of them are drawn from.
        assert!(drawn[500..].iter().any(|&count| count > 0));
        assert_eq!(Zipf::new(1, 1.0).rank(&mut random), 0);
    }
}
