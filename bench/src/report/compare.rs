//! Comparison of two ways by their rounds.
//!
//! Rounds are paired: in round `i` both ways met the same mood of a shared disk, so that their
//! ratio says more than either speed. The interval of the ratio is a bootstrap over the rounds. For
//! few rounds it is widened as Student's t is (the expanded percentile interval of Hesterberg,
//! "What Teachers Should Know About the Bootstrap", 2015): the plain one is too narrow there. Since
//! no bootstrap reaches beyond the rounds, Student's own interval holds where it is wider.
//!
//! The two ends are not alike. A way that is slower is called level in one case of 40 at most. Of
//! runs whose ways are all level, with all their cases, one in 1000 calls any of them slower.

use crate::random::Random;

/// A way is called level with another if the interval of its ratio lies above this. So a way that
/// is slower than that is called level in one run of 40, however many rounds there are.
pub const LEVEL: f64 = 0.95;
/// Resamples: enough for the lower end. The upper one is Student's where it is farther out.
const RESAMPLES: usize = 2000;
/// Two rounds say nothing of a spread.
const ROUNDS_MIN: usize = 3;
/// Share of runs in which the truth lies below the interval.
const BELOW: f64 = 0.025;
/// Share of runs in which the truth lies above the interval of any comparison of the run.
const ABOVE: f64 = 0.001;

/// The ratio of two ways' speeds: the geometric mean of the rounds' ratios, and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub middle: f64,
    pub low: f64,
    pub high: f64,
}

/// Conclusion about a way from its ratio to another. In order: of several, the last decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// At least level with the other.
    Level,
    /// The rounds scatter too much, or are too few.
    CannotTell,
    /// Slower than the other.
    Behind,
}

impl Ratio {
    /// The ratio of `ours` to `other`, of one round each at the same index. None if there are too
    /// few, or not as many of both.
    ///
    /// `comparisons`: the number of those of the run. Of many ways that are level, in many cases,
    /// some seem slower, so that the upper end is the farther out the more there are (Bonferroni).
    /// The lower end needs no such care: a way is level if it is with each of the others.
    pub fn of_rounds(ours: &[f64], other: &[f64], comparisons: usize) -> Option<Ratio> {
        let logs = logs(ours, other)?;
        let rounds = logs.len();
        // The same figures give the same interval.
        let mut random = Random::new(rounds as u64);
        let mut means: Vec<f64> = (0..RESAMPLES)
            .map(|_| (0..rounds).map(|_| logs[random.below(rounds as u64) as usize]).sum::<f64>() / rounds as f64)
            .collect();
        means.sort_by(f64::total_cmp);
        let middle = mean(&logs);
        let square = logs.iter().map(|log| (log - middle).powi(2)).sum::<f64>() / (rounds - 1) as f64;
        let error = (square / rounds as f64).sqrt();
        let place = |outside: f64| (widened(outside, rounds) * RESAMPLES as f64) as usize;
        let reach = |outside: f64| error * student(outside, rounds - 1);
        let above = ABOVE / comparisons.max(1) as f64;
        Some(Ratio {
            middle: middle.exp(),
            low: means[place(BELOW)].min(middle - reach(BELOW)).exp(),
            high: means[RESAMPLES - 1 - place(above)].max(middle + reach(above)).exp(),
        })
    }

    /// More rounds narrow the interval, and so decide more; they never make a slower way level.
    ///
    /// `control`: the [distance] of a way from itself in the same rounds.
    /// Differences that are no larger are not told.
    pub fn finding(&self, control: f64) -> Finding {
        match self {
            Ratio { low, .. } if *low >= LEVEL && 1.0 / control >= LEVEL => Finding::Level,
            Ratio { high, middle, .. } if *high < 1.0 && middle * control < 1.0 => Finding::Behind,
            _ => Finding::CannotTell,
        }
    }
}

/// How far the ratio of two ways is from 1, whichever is the quicker, as a ratio of at least 1. None
/// as for [`Ratio::of_rounds`].
pub fn distance(ours: &[f64], other: &[f64]) -> Option<f64> {
    Some(mean(&logs(ours, other)?).abs().exp())
}

/// Logs of the rounds' ratios.
fn logs(ours: &[f64], other: &[f64]) -> Option<Vec<f64>> {
    if ours.len() != other.len() || ours.len() < ROUNDS_MIN {
        return None;
    }
    let logs: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| (ours / other).ln()).collect();
    logs.iter().all(|log| log.is_finite()).then_some(logs)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Share of resamples to leave out at an end, so that the truth lies beyond it in `outside` of all
/// runs.
fn widened(outside: f64, rounds: usize) -> f64 {
    let n = rounds as f64;
    normal_below(-(n / (n - 1.0)).sqrt() * student(outside, rounds - 1))
}

/// Value above which Student's t lies with probability `above`.
fn student(above: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    while high - low > 1e-6 * high {
        let middle = (low + high) / 2.0;
        if (1.0 - student_within(middle, freedom)) / 2.0 > above { low = middle } else { high = middle }
    }
    high
}

/// Probability that Student's t lies within `t` of zero (Abramowitz and Stegun 26.7.3, 26.7.4).
fn student_within(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, square) = (angle.sin(), angle.cos().powi(2));
    let is_odd = freedom % 2 == 1;
    // Each term is the one before times cos² (k - 1) / k.
    let (mut term, mut sum) = if is_odd { (angle.cos(), 0.0) } else { (1.0, 0.0) };
    let mut k = if is_odd { 1 } else { 0 };
    while k + 2 <= freedom {
        sum += term;
        k += 2;
        term *= square * (k - 1) as f64 / k as f64;
    }
    if is_odd { (angle + sine * sum) / std::f64::consts::FRAC_PI_2 } else { sine * sum }
}

/// Probability that a standard normal variable is below `x` (Abramowitz and Stegun 26.2.17; within
/// 1e-7).
fn normal_below(x: f64) -> f64 {
    const B: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let tail = B.iter().rev().fold(0.0, |sum, b| (sum + b) * t) * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standard normal variable (Box and Muller).
    fn normal(random: &mut Random) -> f64 {
        let unit = |random: &mut Random| (random.below(1 << 53) as f64 + 0.5) / (1u64 << 53) as f64;
        (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos()
    }

    /// Share of runs that find a way level, and behind, whose true ratio is `truth`. In each the
    /// other way is measured twice.
    fn found(truth: f64, noise: f64, rounds: usize, runs: usize) -> (f64, f64) {
        let mut random = Random::new(7);
        let (mut level, mut behind) = (0, 0);
        for _ in 0..runs {
            let mut speeds =
                |speed: f64| -> Vec<f64> { (0..rounds).map(|_| speed * (noise * normal(&mut random)).exp()).collect() };
            let (ours, other, again) = (speeds(truth), speeds(1.0), speeds(1.0));
            let control = distance(&again, &other).unwrap();
            match Ratio::of_rounds(&ours, &other, 1).unwrap().finding(control) {
                Finding::Level => level += 1,
                Finding::Behind => behind += 1,
                Finding::CannotTell => {}
            }
        }
        (f64::from(level) / runs as f64, f64::from(behind) / runs as f64)
    }

    /// The promise of the verdict: of ways that are 5 % slower, or more, one in 20 at most is
    /// called level, with few rounds and with many, on a calm disk and on a noisy one.
    #[test]
    fn who_is_slower_is_not_called_level() {
        for noise in [0.05, 0.15] {
            for (rounds, runs) in [(5, 300), (15, 60), (101, 10)] {
                for truth in [0.95, 0.8] {
                    let (level, _) = found(truth, noise, rounds, runs);
                    assert!(level <= 0.05, "{level} of a true {truth} at noise {noise} in {rounds} rounds");
                }
                let (_, behind) = found(1.0, noise, rounds, runs);
                // Of so few runs, one more than the share may be among them.
                assert!(
                    behind <= ABOVE + 1.0 / runs as f64,
                    "{behind} behind that are level, at noise {noise} in {rounds} rounds"
                );
            }
        }
    }

    /// More rounds make a verdict stronger.
    #[test]
    fn rounds_decide() {
        let by_rounds = |truth| [(5, 100), (15, 40), (101, 20)].map(|(rounds, runs)| found(truth, 0.05, rounds, runs));
        let levels = by_rounds(1.0).map(|(level, _)| level);
        assert!(levels.is_sorted() && levels[2] > 0.95, "{levels:?}");
        let losses = by_rounds(0.9).map(|(_, behind)| behind);
        assert!(losses.is_sorted() && losses[1] > 0.9, "{losses:?}");
    }

    #[test]
    fn rounds_are_paired() {
        // A disk that is ten times slower in one round is so for both.
        let ours = [100.0, 10.0, 101.0, 99.0, 100.0];
        let other = [200.0, 20.2, 200.0, 202.0, 198.0];
        let ratio = Ratio::of_rounds(&ours, &other, 1).unwrap();
        assert!((ratio.middle - 0.5).abs() < 0.01 && ratio.low > 0.48 && ratio.high < 0.53, "{ratio:?}");
        assert_eq!(ratio.finding(1.0), Finding::Behind);
        assert_eq!(Ratio::of_rounds(&ours, &ours, 1).unwrap().finding(1.0), Finding::Level);
        // A way that differs from itself by more says nothing of such a difference.
        assert_eq!(ratio.finding(2.1), Finding::CannotTell);
        assert_eq!(Ratio::of_rounds(&ours, &ours, 1).unwrap().finding(1.06), Finding::CannotTell);
        assert_eq!(Ratio::of_rounds(&ours[..2], &other[..2], 1), None);
        assert_eq!(Ratio::of_rounds(&ours, &other[..4], 1), None);
        assert_eq!(Ratio::of_rounds(&ours, &[1.0, 0.0, 1.0, 1.0, 1.0], 1), None);
    }

    #[test]
    fn quantiles() {
        let tables = [
            (0.025, [(1, 12.706), (2, 4.303), (4, 2.776), (5, 2.571), (14, 2.145), (100, 1.984)]),
            (0.005, [(1, 63.657), (2, 9.925), (4, 4.604), (5, 4.032), (14, 2.977), (100, 2.626)]),
        ];
        for (above, table) in tables {
            for (freedom, exact) in table {
                let found = student(above, freedom);
                assert!((found - exact).abs() < 0.001, "{above}, {freedom}: {found}");
            }
        }
        for (x, exact) in [(0.0, 0.5), (-1.959_964, 0.025), (-3.1, 0.000_968), (1.0, 0.841_345)] {
            assert!((normal_below(x) - exact).abs() < 1e-5, "{x}: {}", normal_below(x));
        }
    }
}
