//! The table `whole`: every block of the file once, cold, in random order. It is asked for as
//! `reads`.

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, Line, P50, P99};
use super::reading::{Case, PAGE_BLOCK, Readers, State, Work, file_size, paced};
use super::{Phase, Run, Table};
use crate::error::Result;
use crate::measure::meter::Sample;
use crate::measure::options::Options;
use crate::report::{Row, fio};

pub struct Whole(pub Readers);

pub static WHOLE: Whole = Whole(Readers::ALL);

const DEPTH: usize = 32;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_s: Option<Times>,
}

/// Means over the rounds, as `time` prints them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub real: f64,
    pub user: f64,
    pub system: f64,
}

impl Figures {
    pub fn of(samples: &[Sample]) -> Self {
        let mean = |value: fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>() / samples.len().max(1) as f64;
        let times = Times {
            real: mean(|sample| sample.seconds),
            user: mean(|sample| sample.usage.user_us / 1e6),
            system: mean(|sample| sample.usage.system_us / 1e6),
        };
        Self { times_s: Some(times) }
    }
}

fn times(row: &Row) -> Option<Times> {
    row.figures::<Figures>().times_s
}

const COLUMNS: &[Column] = &[
    Column { name: "real s", cell: |row| Some(format!("{:.2}", times(row)?.real)) },
    Column { name: "user s", cell: |row| Some(format!("{:.2}", times(row)?.user)) },
    Column { name: "sys s", cell: |row| Some(format!("{:.2}", times(row)?.system)) },
    Column {
        name: "CPU %",
        cell: |row| {
            let times = times(row)?;
            Some(format!("{:.0}", (times.user + times.system) / times.real * 100.0))
        },
    },
    Column {
        name: "switches",
        cell: |row| {
            let operations = row.rounds.iter().sum::<f64>() / row.rounds.len() as f64 * times(row)?.real;
            Some(format!("{:.0}", row.context_switches_per_op * operations))
        },
    },
    Column { name: "switches/op", cell: |row| Some(format!("{:.2}", row.context_switches_per_op)) },
    P50,
    P99,
];

impl Whole {
    pub fn cases(options: &Options) -> Vec<Case> {
        let whole = Case {
            name: format!("depth={DEPTH}"),
            state: State::Cold,
            work: Work::WholeFile { block: PAGE_BLOCK, depth: DEPTH },
        };
        paced(vec![whole], options)
    }
}

impl Table for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }

    fn asked_as(&self) -> &'static str {
        "reads"
    }

    fn about(&self) -> &'static str {
        "The whole file once, cold, in random order"
    }

    fn title(&self) -> &'static str {
        "whole: every 4 KiB of the file once, cold, in random order, operations/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        self.0.names(&Self::cases(&Options::new(false, 0)))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--direct", "--rate"]
    }

    fn usual(&self) -> bool {
        true
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(file_size(options))
    }

    fn timed_rounds(&self, options: &Options) -> usize {
        self.0.timed_rounds(options, &Self::cases(options))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let finish = |row: Row, samples: &[Sample]| row.with(Figures::of(samples));
        match phase {
            Phase::File => self.0.measure(self, &Self::cases(run.options), run, finish),
            _ => Ok(()),
        }
    }

    fn fio(&self, options: &Options, place: &fio::Place<'_>, jobs: &mut fio::Jobs) {
        Readers::fio(self.name(), options, &Self::cases(options), place, jobs);
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] =
            &[Grid::Rows { name: "way", line: Line::Plain, has: |row| times(row).is_some(), columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        COLUMNS.split_at(3).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn times_are_means_over_the_rounds() {
        let samples = [sample(1.0, 100), sample(2.0, 100), sample(0.5, 100)];
        let row = Row::of("whole", "depth=32", "pread", &samples).with(Figures::of(&samples));
        assert_eq!(times(&row).unwrap().system, 0.0003);
    }
}
