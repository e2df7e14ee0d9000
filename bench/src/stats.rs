//! The statistics of the benchmark: intervals of the ratio of two ways, from their rounds.
//!
//! All intervals are Student's t on logarithms of speeds, where half and double have the same
//! distance from 1. Rounds of one run are paired: in round `i` both ways met the same state of a
//! shared disk, so their ratio varies less than either speed. Rounds of two runs are not paired
//! ([`Ratio::of_runs`], Welch).
//!
//! The two error rates of the verdict differ. A slower way is reported as equally fast in at most
//! one case of 40. If all ways are equally fast, one run in 1000 reports any of them as slower,
//! over all cases. `cargo test --release --lib stats -- --ignored --nocapture`, in bench/,
//! simulates both.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A way is reported as level with another if the interval of its ratio lies above this. So a way
/// that is slower than this is reported as level in one run of 40, for any number of rounds.
pub const LEVEL: f64 = 0.95;
/// Minimum number of rounds: two do not show a spread.
const ROUNDS_MIN: usize = 3;
/// Share of runs in which the truth lies beyond one end of the interval.
pub const OUTSIDE: f64 = 0.025;
/// Share of runs, with all their comparisons, that report any equally fast way as slower.
const ALARM: f64 = 0.001;
/// Number of standard errors from which a correlation of neighbours counts, and the maximum that is
/// used. A lower number costs power for independent values; a higher one causes false alarms for
/// correlated values (simulated).
const CHANCE: f64 = 1.0;
const CORRELATION_MAX: f64 = 0.9;
/// Intervals within this factor of 1 are formatted in per cent.
const CLOSE: f64 = 1.5;

/// The ratio of two speeds: the log of its geometric mean, the standard error, and the degrees of
/// freedom of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub log: f64,
    pub error: f64,
    pub freedom: f64,
}

/// Conclusion about a way from its ratio to another. If there are several, the last in this order
/// applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The way is at least as fast as the other.
    Level,
    /// The rounds scatter too much, or there are too few.
    CannotTell,
    /// The way is slower than the other.
    Behind,
}

impl Ratio {
    /// Returns the ratio of `ours` to `other`, whose rounds are paired by index. None if there are
    /// too few rounds, different numbers of rounds, or a round without a speed.
    pub fn of_rounds(ours: &[f64], other: &[f64]) -> Option<Ratio> {
        if ours.len() != other.len() {
            return None;
        }
        Self::of_logs(&ours.iter().zip(other).map(|(ours, other)| (ours / other).ln()).collect::<Vec<_>>())
    }

    /// Returns the ratio of speeds of two runs. Their rounds are independent of each other (Welch),
    /// but may be correlated with the preceding round. None as above.
    pub fn of_runs(ours: &[f64], other: &[f64]) -> Option<Ratio> {
        let of = |speeds: &[f64]| Self::in_turn(&speeds.iter().map(|speed| speed.ln()).collect::<Vec<_>>());
        Some(of(ours)?.over(&of(other)?))
    }

    /// Returns the mean of logs. None if there are too few, or one is not finite.
    pub fn of_logs(logs: &[f64]) -> Option<Ratio> {
        if logs.len() < ROUNDS_MIN || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let (n, log) = (logs.len() as f64, mean(logs));
        let squares: f64 = logs.iter().map(|value| (value - log).powi(2)).sum();
        Some(Ratio { log, error: (squares / (n - 1.0) / n).sqrt(), freedom: n - 1.0 })
    }

    /// As [`Ratio::of_logs`], for values that were measured one after the other. If successive
    /// values are correlated, n of them count as fewer independent ones: the variance grows by
    /// (1 + r) / (1 - r), where r is their correlation (AR(1) process).
    pub fn in_turn(logs: &[f64]) -> Option<Ratio> {
        let r = correlation(logs);
        Self::of_logs(logs).map(|mean| Ratio { error: mean.error * ((1.0 + r) / (1.0 - r)).sqrt(), ..mean })
    }

    /// Returns the ratio of two independent ratios (Welch and Satterthwaite).
    pub fn over(&self, other: &Ratio) -> Ratio {
        let error = self.error.hypot(other.error);
        let part = |of: &Ratio| of.error.powi(4) / of.freedom;
        let freedom = if error > 0.0 { error.powi(4) / (part(self) + part(other)) } else { self.freedom };
        Ratio { log: self.log - other.log, error, freedom }
    }

    /// Returns the distance from the log beyond which the truth lies, on one side, in the share
    /// `outside` of runs.
    pub fn reach(&self, outside: f64) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error * student(outside, self.freedom) }
    }

    pub fn middle(&self) -> f64 {
        self.log.exp()
    }

    /// Returns the lower end: the truth lies below it in one run of 40.
    pub fn low(&self) -> f64 {
        (self.log - self.reach(OUTSIDE)).exp()
    }

    /// Returns the upper end: the truth lies above it in one run of 40.
    pub fn high(&self) -> f64 {
        (self.log + self.reach(OUTSIDE)).exp()
    }

    /// Returns the conclusion. More rounds narrow the interval, and so permit more conclusions;
    /// they never make a slower way level.
    ///
    /// `comparisons` is the number of all comparisons in the run. Among many equally fast ways,
    /// some seem slower, so the condition for "behind" becomes stricter with that number
    /// (Bonferroni). "Level" needs no such correction: a way is level only if it is level with each
    /// of the others.
    ///
    /// `control` is the [distance] of a way from itself in the same rounds. Smaller differences are
    /// not reported: a large control permits "level" only if the lead is larger still.
    pub fn finding(&self, comparisons: usize, control: f64) -> Finding {
        let low = self.low();
        if low >= LEVEL && (1.0 / control >= LEVEL || low >= control) {
            Finding::Level
        } else if self.is_below(ALARM / comparisons.max(1) as f64) && self.middle() * control < 1.0 {
            Finding::Behind
        } else {
            Finding::CannotTell
        }
    }

    /// Returns whether the ratio is below 1. For equal ways, this is true in the share `alarm` of
    /// runs.
    pub fn is_below(&self, alarm: f64) -> bool {
        self.log + self.reach(alarm) < 0.0
    }

    /// Returns whether the ratio is above 1, likewise.
    pub fn is_above(&self, alarm: f64) -> bool {
        self.log - self.reach(alarm) > 0.0
    }

    /// Returns the interval in words: "3.9–4.4 × pread", "within 10 % of
    /// pread", "12–18 % slower than pread".
    pub fn words(&self, other: &str) -> String {
        let (low, high) = (self.low(), self.high());
        let percent = |ratio: f64| format!("{:.0}", (ratio - 1.0).abs() * 100.0);
        let from_to = |a: String, b: String| if a == b { a } else { format!("{a}–{b}") };
        match () {
            () if low < 1.0 / CLOSE || high > CLOSE => format!("{} × {other}", range(low, high)),
            () if high < 1.0 => format!("{} % slower than {other}", from_to(percent(high), percent(low))),
            () if low > 1.0 => format!("{} % faster than {other}", from_to(percent(low), percent(high))),
            () => format!("within {:.0} % of {other}", ((1.0 - low).max(high - 1.0) * 100.0).ceil().max(1.0)),
        }
    }
}

/// Formats as `3.9–4.4`.
pub fn range(low: f64, high: f64) -> String {
    let figure = |ratio: f64| match ratio {
        small if small < 1.995 => format!("{small:.2}"),
        middle if middle < 9.95 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    };
    let (low, high) = (figure(low), figure(high));
    if low == high { low } else { format!("{low}–{high}") }
}

/// Returns the distance of two ways as a ratio of at least 1, regardless of which one is faster.
/// None as for [`Ratio::of_rounds`].
pub fn distance(ours: &[f64], other: &[f64]) -> Option<f64> {
    Some(Ratio::of_rounds(ours, other)?.log.abs().exp())
}

/// Returns the middle value, or the mean of the two in the middle; 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (odd, middle) if odd % 2 == 1 => sorted[middle],
        (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns minimum and maximum, as shares of `middle`.
pub fn spread(values: &[f64], middle: f64) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    (least / middle, most / middle)
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the correlation of neighbours; 0 if it is small enough to be chance.
fn correlation(values: &[f64]) -> f64 {
    let (n, middle) = (values.len() as f64, mean(values));
    let apart: Vec<f64> = values.iter().map(|value| value - middle).collect();
    let squares: f64 = apart.iter().map(|value| value * value).sum();
    if n < 5.0 || squares == 0.0 {
        return 0.0;
    }
    let found = apart.iter().zip(&apart[1..]).map(|(one, next)| one * next).sum::<f64>() / squares;
    // For independent values, the standard error is about 1 / sqrt(n). The estimate is too low by
    // (1 + 4 r) / n (Kendall).
    if found < CHANCE / n.sqrt() { 0.0 } else { ((found * n + 1.0) / (n - 4.0)).min(CORRELATION_MAX) }
}

/// Returns the value above which Student's t lies with probability `above`.
fn student(above: f64, freedom: f64) -> f64 {
    let t = StudentsT::new(0.0, 1.0, freedom).expect("freedom is positive: no ratio has fewer than three rounds");
    -t.inverse_cdf(above)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::random::Random;
    use crate::report::Report;

    /// Returns a number between 0 and 1.
    fn unit(random: &mut Random) -> f64 {
        (random.below(1 << 53) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Draws a standard normal variable (Box and Muller).
    fn normal(random: &mut Random) -> f64 {
        (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos()
    }

    /// Draws logs of a way's rounds, whose true mean is 0.
    type Scatter<'a> = &'a dyn Fn(&mut Random, usize) -> Vec<f64>;

    fn gauss(noise: f64) -> impl Fn(&mut Random, usize) -> Vec<f64> {
        move |random, rounds| (0..rounds).map(|_| noise * normal(random)).collect()
    }

    /// One round in five is slower, by 30 % on average: a skewed distribution, as on a shared disk.
    fn skewed(random: &mut Random, rounds: usize) -> Vec<f64> {
        let slow = |random: &mut Random| if random.below(5) == 0 { 0.3 * unit(random).ln() } else { 0.0 };
        (0..rounds).map(|_| 0.05 * normal(random) + slow(random) + 0.06).collect()
    }

    /// Rounds correlated with the preceding one (AR(1)).
    fn in_moods(noise: f64, correlation: f64) -> impl Fn(&mut Random, usize) -> Vec<f64> {
        move |random, rounds| {
            let mut last = normal(random);
            let mut next = || {
                last = correlation * last + (1.0 - correlation * correlation).sqrt() * normal(random);
                noise * last
            };
            (0..rounds).map(|_| next()).collect()
        }
    }

    /// Pairs of successive rounds from docs/measurements, which have real tails and correlation:
    /// logs of ratios of two ways, minus their mean, divided by their deviation.
    fn recorded() -> (Vec<[f64; 2]>, Vec<f64>) {
        let (mut pairs, mut deviations) = (Vec::new(), Vec::new());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/measurements");
        for page in fs::read_dir(folder).unwrap().filter_map(|page| fs::read_dir(page.unwrap().path()).ok()) {
            for file in
                page.map(|file| file.unwrap().path()).filter(|file| file.extension().is_some_and(|e| e == "json"))
            {
                let Ok(report) = serde_json::from_str::<Report>(&fs::read_to_string(file).unwrap()) else { continue };
                for (_, rows) in report.tables().into_iter().flat_map(|table| report.cases(table)) {
                    for (one, other) in rows.iter().zip(rows.iter().skip(1)).filter(|(one, _)| one.rounds.len() >= 5) {
                        let Some(ratio) = Ratio::of_rounds(&one.rounds, &other.rounds) else { continue };
                        let n = one.rounds.len() as f64;
                        // The mean of few rounds hides part of their scatter.
                        let (deviation, wider) = (ratio.error * n.sqrt(), (n / (n - 1.0)).sqrt());
                        let apart = |(one, other): (&f64, &f64)| ((one / other).ln() - ratio.log) / deviation * wider;
                        let logs: Vec<f64> = one.rounds.iter().zip(&other.rounds).map(apart).collect();
                        if deviation > 0.0 {
                            pairs.extend(logs.windows(2).map(|pair| [pair[0], pair[1]]));
                            deviations.push(deviation);
                        }
                    }
                }
            }
        }
        (pairs, deviations)
    }

    /// Returns the shares of runs that report a way as level and as behind. Its speed is `truth`
    /// times that of the others. One of the others is measured twice.
    fn found(
        [of_ours, of_others]: [Scatter; 2],
        truth: f64,
        rounds: usize,
        comparisons: usize,
        runs: usize,
    ) -> (f64, f64) {
        let mut random = Random::new(7);
        let (mut level, mut behind) = (0, 0);
        for _ in 0..runs {
            let speeds = |logs: Vec<f64>| -> Vec<f64> { logs.into_iter().map(f64::exp).collect() };
            let mut draw = |scatter: Scatter| speeds(scatter(&mut random, rounds));
            let others: Vec<Vec<f64>> = (0..comparisons).map(|_| draw(of_others)).collect();
            let control = distance(&draw(of_others), &others[0]).unwrap();
            let ours: Vec<f64> = draw(of_ours).iter().map(|speed| speed * truth).collect();
            let of = |other: &Vec<f64>| Ratio::of_rounds(&ours, other).unwrap().finding(comparisons, control);
            // A way is level if it is level with each of the others.
            match others.iter().map(of).max().unwrap() {
                Finding::Level => level += 1,
                Finding::Behind => behind += 1,
                Finding::CannotTell => {}
            }
        }
        (f64::from(level) / runs as f64, f64::from(behind) / runs as f64)
    }

    /// Returns the share of comparisons of two runs that report any of `rows` equal rows as better
    /// or worse.
    fn changed(scatter: Scatter, rounds: usize, rows: usize, runs: usize) -> f64 {
        let (mut random, alarm) = (Random::new(11), OUTSIDE / rows as f64);
        let mut run = || scatter(&mut random, rounds).into_iter().map(f64::exp).collect::<Vec<_>>();
        let mut is_changed = || {
            let ratio = Ratio::of_runs(&run(), &run()).unwrap();
            ratio.is_below(alarm) || ratio.is_above(alarm)
        };
        let changed = (0..runs).filter(|_| (0..rows).any(|_| is_changed())).count();
        changed as f64 / runs as f64
    }

    /// The promises of the verdict, for runs of one comparison and of 36. They do not hold for a
    /// way that alone has rare slow rounds: rounds without one overestimate its speed.
    #[test]
    #[ignore = "half a minute, in a release build"]
    fn promises() {
        let (pairs, deviations) = recorded();
        assert!(pairs.len() > 1000, "{} pairs of recorded rounds", pairs.len());
        let as_recorded = |random: &mut Random, rounds: usize| -> Vec<f64> {
            let deviation = deviations[random.below(deviations.len() as u64) as usize] / 2f64.sqrt();
            let mut logs = Vec::new();
            while logs.len() < rounds {
                logs.extend(pairs[random.below(pairs.len() as u64) as usize].map(|log| log * deviation));
            }
            logs.truncate(rounds);
            logs
        };
        let (calm, noisy, moody) = (gauss(0.05), gauss(0.15), in_moods(0.1, 0.2));
        let scatters: [(&str, [Scatter; 2], bool); 7] = [
            ("normal 5 %", [&calm; 2], true),
            ("normal 15 %", [&noisy; 2], true),
            ("skewed", [&skewed; 2], true),
            ("correlated 0.2", [&moody; 2], true),
            ("as recorded", [&as_recorded; 2], true),
            ("ours skewed", [&skewed, &calm], false),
            ("others skewed", [&calm, &skewed], false),
        ];
        println!("scatter          rounds comparisons  5 % slower called level  level called behind  called changed");
        for (name, scatter, promised) in scatters {
            for rounds in [3, 5, 7, 15, 41] {
                for comparisons in [1, 36] {
                    let runs = 200_000 / comparisons / rounds;
                    let (level, _) = found(scatter, LEVEL, rounds, comparisons, runs);
                    let (_, behind) = found(scatter, 1.0, rounds, comparisons, runs);
                    let changed = changed(scatter[1], rounds, comparisons, runs);
                    println!("{name:16} {rounds:6} {comparisons:11} {level:24.4} {behind:20.4} {changed:14.4}");
                    assert!(!promised || level <= 0.05 && behind <= 0.01, "{name}: {level} {behind}");
                    // Rounds of two runs are not paired, so a common correlation does not cancel.
                    let most = if name == "correlated 0.2" { 0.16 } else { 0.06 };
                    assert!(changed <= most, "{name}: {changed}");
                }
            }
        }
    }

    #[test]
    fn rounds_are_paired() {
        // The disk is ten times slower in one round, for both ways.
        let ours = [100.0, 10.0, 101.0, 99.0, 100.0];
        let other = [200.0, 20.2, 200.0, 202.0, 198.0];
        let ratio = Ratio::of_rounds(&ours, &other).unwrap();
        assert!((ratio.middle() - 0.5).abs() < 0.01 && ratio.low() > 0.48 && ratio.high() < 0.53, "{ratio:?}");
        assert_eq!(ratio.finding(1, 1.0), Finding::Behind);
        let itself = Ratio::of_rounds(&ours, &ours).unwrap();
        assert_eq!(itself.finding(1, 1.0), Finding::Level);
        // The control differs by more, so the difference is not reported.
        assert_eq!(ratio.finding(1, 2.1), Finding::CannotTell);
        assert_eq!(itself.finding(1, 1.06), Finding::CannotTell);
        assert_eq!(Ratio::of_rounds(&ours[..2], &other[..2]), None);
        assert_eq!(Ratio::of_rounds(&ours, &other[..4]), None);
        assert_eq!(Ratio::of_rounds(&ours, &[1.0, 0.0, 1.0, 1.0, 1.0]), None);
        // Rounds of two runs are not paired, so this one round makes the result uncertain.
        let runs = Ratio::of_runs(&ours, &other).unwrap();
        assert!((runs.log - ratio.log).abs() < 1e-12 && runs.low() < 0.2 && runs.high() > 1.0, "{runs:?}");
    }

    /// Symptom: an interval of 1.17 to 1.32 was "cannot tell" with a control of 1.06. Cause: a control
    /// above 1 / LEVEL excluded "level", however fast the way was. A lead above the control is level.
    #[test]
    fn a_lead_that_exceeds_the_control_is_level() {
        let ratio = Ratio { log: 1.24_f64.ln(), error: 0.02, freedom: 4.0 };
        assert!(ratio.low() > 1.16 && ratio.low() < 1.18, "{}", ratio.low());
        assert_eq!(ratio.finding(36, 1.06), Finding::Level);
        assert_eq!(ratio.finding(36, 1.16), Finding::Level);
        assert_eq!(ratio.finding(36, 1.18), Finding::CannotTell);
    }

    #[test]
    fn more_rounds_decide() {
        let finding = |rounds| Ratio::of_logs(&[-0.2, -0.05, -0.15].repeat(rounds)).unwrap().finding(36, 1.0);
        assert_eq!((finding(1), finding(10)), (Finding::CannotTell, Finding::Behind));
    }

    /// The examples of a textbook: Student's table, and Welch's degrees of freedom.
    #[test]
    fn quantiles() {
        for (above, freedom, exact) in [
            (0.025, 1.0, 12.7062),
            (0.025, 4.0, 2.7764),
            (0.025, 100.0, 1.9840),
            (0.005, 14.0, 2.9768),
            (0.0005, 4.0, 8.6103),
        ] {
            assert!((student(above, freedom) - exact).abs() < 1e-3, "{above} {freedom}: {}", student(above, freedom));
        }
        // In the far tail, as for few rounds in a run of many cases. For 2 degrees of freedom, t
        // has a closed form.
        let (above, t): (f64, f64) = (1e-6, student(1e-6, 2.0));
        assert!(((0.5 - t / (2.0 * (2.0 + t * t).sqrt())) / above - 1.0).abs() < 1e-3, "{t}");
        let of = |error, freedom| Ratio { log: 0.0, error, freedom };
        let apart = of(3.0, 4.0).over(&of(4.0, 9.0));
        assert_eq!(apart.error, 5.0);
        assert!((apart.freedom - 625.0 / (81.0 / 4.0 + 256.0 / 9.0)).abs() < 1e-9);
    }

    #[test]
    fn words_tell_the_interval() {
        let of = |low: f64, high: f64| {
            let (log, half) = ((low * high).sqrt().ln(), (high / low).sqrt().ln());
            Ratio { log, error: half / student(OUTSIDE, 4.0), freedom: 4.0 }.words("pread")
        };
        assert_eq!(of(3.9, 4.4), "3.9–4.4 × pread");
        assert_eq!(of(0.92, 1.04), "within 8 % of pread");
        assert_eq!(of(0.82, 0.88), "12–18 % slower than pread");
        assert_eq!(of(1.07, 1.12), "7–12 % faster than pread");
        assert_eq!(of(0.4, 2.6), "0.40–2.6 × pread");
        assert_eq!(of(12.3, 18.4), "12–18 × pread");
        assert_eq!(of(1.0, 1.0), "within 1 % of pread");
    }

    #[test]
    fn neighbours_that_are_alike_widen_the_error() {
        let drift = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07];
        let (plain, in_turn) = (Ratio::of_logs(&drift).unwrap(), Ratio::in_turn(&drift).unwrap());
        assert!(plain.log == in_turn.log && in_turn.error > 2.0 * plain.error);
        for values in [[0.01, -0.01].repeat(8), vec![0.0; 8], vec![0.1, 0.2, 0.3]] {
            assert_eq!(Ratio::in_turn(&values), Ratio::of_logs(&values));
        }
        let mut random = Random::new(3);
        for given in [0.0, 0.8] {
            let scatter = in_moods(1.0, given);
            let found: Vec<f64> = (0..200).map(|_| correlation(&scatter(&mut random, 40))).collect();
            assert!((mean(&found) - given).abs() < 0.1, "{given}: {}", mean(&found));
        }
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(spread(&[90.0, 100.0, 120.0], 100.0), (0.9, 1.2));
    }
}
