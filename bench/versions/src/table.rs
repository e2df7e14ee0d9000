//! Lines of the table, and rows of the report.

use std::fmt;

use nowait_bench::measure::meter::{Latencies, latencies};
use nowait_bench::report::{Cpu, Latency, Row};
use nowait_bench::stats::median;
use serde::Serialize;

use crate::cases::Case;
use crate::turn::Turn;

pub(crate) const NAME_WIDTH: usize = 24;
/// `speed` and `CPU`: of an operation, as ratios of `tree` to `base`.
pub(crate) const HEAD: &str = "\
case                     speed, tree : base  CPU, tree : base      base ops/s  tree ops/s  late µs, p50/p99: base, tree";

/// Figures of a case: of `base`, then of `tree`, in order of the rounds.
pub(crate) struct Figures<'a> {
    case: &'a Case,
    pub(crate) turns: [Vec<Turn>; 2],
}

/// Ratios of the rounds, `tree` to `base`.
#[derive(Serialize)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl Ratio {
    fn of(ratios: &[f64]) -> Ratio {
        Ratio {
            median: median(ratios),
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(0.0, f64::max),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} ({:.2}–{:.2})", self.median, self.least, self.most))
    }
}

impl<'a> Figures<'a> {
    pub(crate) fn new(case: &'a Case) -> Self {
        Self { case, turns: [Vec::new(), Vec::new()] }
    }

    fn ratio(&self, figure: fn(&Turn) -> f64) -> Ratio {
        let [base, tree] = &self.turns;
        Ratio::of(&base.iter().zip(tree).map(|(base, tree)| figure(tree) / figure(base)).collect::<Vec<_>>())
    }

    /// Rows of both versions for the report. That of `tree` contains the ratios.
    pub(crate) fn rows(&self) -> [Row; 2] {
        #[derive(Serialize)]
        struct Ratios {
            speed_of_base: Ratio,
            cpu_of_base: Ratio,
        }
        let ratios = Ratios { speed_of_base: self.ratio(Turn::per_second), cpu_of_base: self.ratio(Turn::cpu_us) };
        let [base, tree] = ["base", "tree"];
        [self.row(base, &self.turns[0]), self.row(tree, &self.turns[1]).with(ratios)]
    }

    fn row(&self, version: &str, turns: &[Turn]) -> Row {
        #[derive(Serialize)]
        struct Own {
            cpu_us_rounds: Vec<f64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            late_ns: Option<Latency>,
        }
        let all = |figure: fn(&Turn) -> f64| turns.iter().map(figure).collect::<Vec<_>>();
        let (rounds, cpu_us_rounds, late) = (all(Turn::per_second), all(Turn::cpu_us), late(turns));
        let ops_per_s = median(&rounds);
        Row {
            table: "versions".to_owned(),
            case: self.case.name.clone(),
            way: version.to_owned(),
            ops_per_s,
            bytes_per_s: ops_per_s * self.case.operation_bytes() as f64,
            cpu_us_per_op: Cpu { total: median(&cpu_us_rounds), ..Cpu::default() },
            context_switches_per_op: median(&all(|turn| turn.usage.switches / turn.operations as f64)),
            rounds,
            ..Row::default()
        }
        .with(Own { cpu_us_rounds, late_ns: (!late.is_empty()).then(|| Latency::of(&late)) })
    }
}

impl fmt::Display for Figures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speeds = self.turns.each_ref().map(|turns| median(&turns.iter().map(Turn::per_second).collect::<Vec<_>>()));
        let (name, speed, cpu) = (&self.case.name, self.ratio(Turn::per_second), self.ratio(Turn::cpu_us));
        write!(f, "{name:<NAME_WIDTH$} {speed:<19} {cpu:<19} {:>12.0} {:>11.0}", speeds[0], speeds[1])?;
        if self.case.is_mixed() {
            let delay = |turns: &[Turn]| {
                let late = late(turns);
                format!("{}/{}", late.value_at_quantile(0.5) / 1000, late.value_at_quantile(0.99) / 1000)
            };
            write!(f, "  {}, {}", delay(&self.turns[0]), delay(&self.turns[1]))?;
        }
        Ok(())
    }
}

fn late(turns: &[Turn]) -> Latencies {
    let mut all = latencies();
    turns.iter().for_each(|turn| all += &turn.late);
    all
}
