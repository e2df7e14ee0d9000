//! The table `log-pipelined`: threads that have several records in flight, each thread waiting for
//! its oldest. A way that does not pipeline has a thread for each record in flight, so that as many
//! are under way.
//!
//! The table `log-tokio`: tasks of tokio on two workers, each of which awaits its record, beside as
//! many threads.

use std::time::Duration;

use super::commits::Commit;
use super::{COLUMNS, FILE_BYTES, FILE_MAX, place, usable, wants};
use crate::error::Result;
use crate::measure::options::{Logged, Options};
use crate::report::figures::size_of;
use crate::table::columns::{Column, Grid, Line, every};
use crate::table::{Phase, Run, Table, chosen, names};
use crate::ways::{self, LogWay, Part, Roster, WAYS};

pub struct Pipelined {
    pub ways: Roster,
}

pub struct Tasks {
    pub ways: Roster,
}

pub static PIPELINED: Pipelined = Pipelined { ways: WAYS };
pub static TASKS: Tasks = Tasks { ways: WAYS };

const THREADS: [usize; 3] = [1, 2, 8];
const QUICK_THREADS: [usize; 1] = [2];
const IN_FLIGHT: [usize; 3] = [1, 8, 32];
const QUICK_IN_FLIGHT: [usize; 1] = [32];
const TASK_COUNTS: [usize; 2] = [64, 256];
const QUICK_TASK_COUNTS: [usize; 1] = [64];
const SIZES: [usize; 1] = [128];

const GRIDS: &[Grid] = &[Grid::Rows { name: "a commit", line: Line::UnderCase, has: every, columns: COLUMNS }];

/// A case's name, records under way of all writers, those of a writer, and the size of each.
type Shape = (String, usize, usize, usize);

fn measure(
    (table, logged, limits): (&'static str, Logged, &'static str),
    ways: &[Part<dyn LogWay>],
    shapes: Vec<Shape>,
    phase: Phase,
    run: &mut Run<'_>,
) -> Result<()> {
    if phase != Phase::Directory || !wants(run.options, logged) {
        return Ok(());
    }
    let (free, direct) = place(run)?;
    let ways = usable(table, ways, direct, run);
    if ways.is_empty() {
        return Ok(());
    }
    for (name, slots, in_flight, size) in shapes {
        // With one in flight, they are the same as those without.
        let is_twin = |way: &Part<dyn LogWay>| {
            let stem = ["-pipelined", "-threads"].iter().find_map(|end| way.name().strip_suffix(end));
            in_flight == 1 && ways.iter().any(|other| Some(other.name()) == stem)
        };
        let here: Vec<_> = ways.iter().copied().filter(|way| !is_twin(way)).collect();
        Commit::new((table, name), here, (slots, in_flight, size), limits, free, run).measure(run)?;
    }
    Ok(())
}

impl Pipelined {
    fn shapes(options: &Options) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for threads in options.or_usual(&options.writers, &QUICK_THREADS, &THREADS) {
            for in_flight in options.or_usual(&options.in_flight, &QUICK_IN_FLIGHT, &IN_FLIGHT) {
                for size in options.or_usual(&options.sizes, &SIZES, &SIZES) {
                    let name = format!("threads={threads} in-flight={in_flight} size={}", size_of(size));
                    shapes.push((name, threads * in_flight, in_flight, size));
                }
            }
        }
        shapes
    }
}

impl Table for Pipelined {
    fn name(&self) -> &'static str {
        Logged::Pipelined.table()
    }

    fn asked_as(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends: threads with several records in flight"
    }

    fn title(&self) -> &'static str {
        "log-pipelined: threads with several records in flight, each waiting for its oldest, commits/s"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::pipeliners(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--writers", "--in-flight", "--sizes", "--logs"]
    }

    fn writes_into(&self, _: &Options) -> Option<(u64, &'static str)> {
        Some((FILE_MAX, "at most; a new one for each round, filled with zeros, without a name"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        let cases = if wants(options, Logged::Pipelined) { Self::shapes(options).len() } else { 0 };
        vec![chosen(&ways::pipeliners(self.ways), options).len(); cases]
    }

    fn round_time(&self, options: &Options) -> Duration {
        options.commit_time
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let shapes = Self::shapes(run.options);
        let what = (self.name(), Logged::Pipelined, "--writers, --in-flight or --sizes");
        measure(what, &ways::pipeliners(self.ways), shapes, phase, run)
    }

    fn columns(&self) -> &'static [Grid] {
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[FILE_BYTES]
    }
}

impl Tasks {
    fn shapes(options: &Options) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for tasks in options.or_usual(&options.tasks, &QUICK_TASK_COUNTS, &TASK_COUNTS) {
            for size in options.or_usual(&options.sizes, &SIZES, &SIZES) {
                shapes.push((format!("tasks={tasks} size={}", size_of(size)), tasks, 1, size));
            }
        }
        shapes
    }
}

impl Table for Tasks {
    fn name(&self) -> &'static str {
        Logged::Tokio.table()
    }

    fn asked_as(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends: tasks of tokio on two workers"
    }

    fn title(&self) -> &'static str {
        "log-tokio: tasks of tokio on two workers, each awaiting its record, beside as many threads, commits/s"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::task_loggers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--tasks", "--sizes", "--logs"]
    }

    fn writes_into(&self, _: &Options) -> Option<(u64, &'static str)> {
        Some((FILE_MAX, "at most; a new one for each round, filled with zeros, without a name"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        let cases = if wants(options, Logged::Tokio) { Self::shapes(options).len() } else { 0 };
        vec![chosen(&ways::task_loggers(self.ways), options).len(); cases]
    }

    fn round_time(&self, options: &Options) -> Duration {
        options.commit_time
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let shapes = Self::shapes(run.options);
        let what = (self.name(), Logged::Tokio, "--tasks or --sizes");
        measure(what, &ways::task_loggers(self.ways), shapes, phase, run)
    }

    fn columns(&self) -> &'static [Grid] {
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[FILE_BYTES]
    }
}
