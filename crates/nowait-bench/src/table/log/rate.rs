//! The table `log-rate`: records that arrive at a rate that every way keeps: 25, 50 and 75 % of the
//! closed-loop maximum of the slowest.
//!
//! Arrivals are those of the table [`load`](crate::table::load), a Poisson process, the same for
//! all ways of a round. Latency counts from the arrival, so that a record that waits behind a slow
//! one is slow, too. The maximum is what a way does when all records have arrived at once.

use std::time::Duration;

use super::{place, wants};
use crate::error::Result;
use crate::measure::interleave::steps;
use crate::measure::options::{Logged, Options};
use crate::measure::pace::{ExactTimers, Pace};
use crate::measure::turn::Turn;
use crate::report::Report;
use crate::report::median;
use crate::table::columns::{Column, Grid, Line, every};
use crate::table::load::{Arrived, Bench, COLUMNS, Figures, OFFERED, SHARE, append};
use crate::table::{Phase, Run, Table, by_p99, names, rows};
use crate::ways::{self, AppendWay};

pub struct Rate {
    pub ways: &'static [&'static dyn AppendWay],
}

pub static RATE: Rate = Rate { ways: ways::rate_appenders() };

/// Rates, as shares of the maximum.
const PERCENTS: [u32; 3] = [25, 50, 75];
/// Records by which the maximum is found: the first few tell how many there are to be.
const FIRST: usize = 2048;
const MOST: usize = 1 << 18;
/// Rounds of the maximum.
const MAXIMUM_ROUNDS: usize = 3;
const LIMITS: &str = "--logs";

impl Rate {
    /// Records a second of a way that always has some to append.
    fn maximum(&self, way: &'static dyn AppendWay, run: &Run<'_>) -> Result<f64> {
        let turn = Turn { way: way.name(), table: self.name(), case: "maximum", cancel: run.cancel };
        let seed = run.options.seed;
        let speed = |count: usize| {
            let pace = Pace::At(vec![Duration::ZERO; count].into());
            let arrived = Arrived { pace, count, seed, verify: false };
            Ok(append(way, &turn, &arrived, (run.dir, seed), LIMITS)?.per_second())
        };
        let count = (speed(FIRST)? * run.options.commit_time.as_secs_f64()) as usize;
        let speeds: Vec<f64> = (0..MAXIMUM_ROUNDS).map(|_| speed(count.clamp(FIRST, MOST))).collect::<Result<_>>()?;
        Ok(median(&speeds))
    }
}

impl Table for Rate {
    fn name(&self) -> &'static str {
        Logged::Rate.table()
    }

    fn asked_as(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends that arrive at a rate below the maximum"
    }

    fn title(&self) -> &'static str {
        "log-rate: records that arrive by chance (Poisson), at a share of the slowest way's maximum; achieved/s"
    }

    fn ranked(&self) -> bool {
        false
    }

    fn ways(&self) -> Vec<&'static str> {
        names(self.ways)
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--logs"]
    }

    fn writes_into(&self, _: &Options) -> Option<(u64, &'static str)> {
        Some(((MOST * 4096) as u64, "at most; a new one for each round, filled with zeros, without a name"))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let (options, cancel, dir, table) = (run.options, run.cancel, run.dir, self.name());
        if phase != Phase::Directory || !wants(options, Logged::Rate) {
            return Ok(());
        }
        let _exact = ExactTimers::set()?;
        let (_, direct) = place(run)?;
        let mut ways = run.usable_in(table, self.ways);
        ways.retain(|way| direct || !way.direct());
        if ways.is_empty() {
            return Ok(());
        }
        run.progress.begin(table, PERCENTS.len() as u64 * steps(ways.len(), options.rounds, false));
        run.progress.now(&format!("{table}: the maximum of each way"));
        let maxima: Vec<f64> = ways.iter().map(|&way| self.maximum(way, run)).collect::<Result<_>>()?;
        let lowest = maxima.iter().copied().fold(f64::INFINITY, f64::min);
        let seed = options.seed;
        let work = |way: &'static dyn AppendWay, turn: &Turn<'_>, round: &Arrived| {
            append(way, turn, round, (dir, seed), LIMITS)
        };
        for percent in PERCENTS {
            let (name, rate) = (format!("percent={percent}"), lowest * f64::from(percent) / 100.0);
            let count = ((rate * options.load_time.as_secs_f64()) as usize).clamp(1, MOST);
            let seed = seed.wrapping_add(u64::from(percent) << 24);
            let (case_name, of_case) = (name.as_str(), &ways[..]);
            let mut case =
                Bench { table, name: case_name, ways: of_case, rate, count, seed, cancel, work: &work, arrived: None };
            let timed = run.case(table, case_name, of_case, &mut case)?;
            let offered = Figures { offered_per_s: Some(rate) };
            let of_rate = rows(table, case_name, of_case, &timed).into_iter().map(|row| row.with(offered));
            run.report.rows.extend(of_rate);
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] =
            &[Grid::Rows { name: "from arrival", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[OFFERED, SHARE]
    }

    fn latency(&self) -> &'static str {
        "Latency from arrival"
    }

    fn findings(&self, report: &Report) -> Vec<String> {
        let say = |(case, rows): (&str, Vec<&crate::report::Row>)| {
            format!("{} {case}: p99 from arrival is {}.", self.name(), by_p99(&rows))
        };
        report.cases(self.name()).into_iter().map(say).collect()
    }
}
