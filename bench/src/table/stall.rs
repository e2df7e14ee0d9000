//! The table `stall`: how long a thread keeps its other work waiting while it writes far beyond the
//! kernel's limit of dirty data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, LONGEST, Line, P50, P99, P999, PageGrid, cpu, every};
use super::new_file::{BLOCK, Cases, Rules, free_bytes, require_room};
use super::{Phase, Run, Table, chosen, names, require_ways, usage, writes};
use crate::error::Result;
use crate::machine::dirty_limit::{self, Lowered};
use crate::machine::testfile;
use crate::measure::meter::Sample;
use crate::measure::options::Options;
use crate::report::figures::mib;
use crate::report::notes::Code;
use crate::report::{Latency, Report, Row};
use crate::ways::{self, OURS, Roster, WAYS};

pub struct Stall {
    pub ways: Roster,
}

pub static STALL: Stall = Stall { ways: WAYS };

const DEPTH: usize = 16;
const BYTES_MAX: u64 = 2 << 30;
const QUICK_BYTES: u64 = 64 << 20;
const LOWERED_LIMIT: u64 = 128 << 20;
const LOWERED_BACKGROUND: u64 = 64 << 20;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The share of the time that lay in gaps of more than a millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_fraction: Option<f64>,
}

impl Figures {
    fn of(samples: &[Sample]) -> Self {
        let sum: f64 = samples.iter().map(|sample| sample.stalled_fraction).sum();
        Self { stalled_fraction: Some(sum / samples.len().max(1) as f64) }
    }
}

const STALLED: Column = Column {
    name: "in gaps > 1 ms",
    cell: |row| Some(format!("{:.0} %", row.figures::<Figures>().stalled_fraction? * 100.0)),
};

const COLUMNS: &[Column] = &[
    Column { name: "MiB/s", cell: |row| Some(format!("{:.0}", mib(row.bytes_per_s))) },
    P50,
    P99,
    P999,
    LONGEST,
    STALLED,
    Column { name: "CPU µs/op", cell: cpu },
];

fn ms(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    Some(format!("{:.3}", of(&row.latency_ns.unwrap_or_default()) as f64 / 1e6))
}

const ON_PAGE: PageGrid = PageGrid {
    name: "stall gaps",
    caption: "How long the other work of the thread that writes had to wait at a time.",
    columns: &[
        Column { name: "MiB/s", cell: |row| Some(format!("{:.0}", mib(row.bytes_per_s))) },
        Column { name: "p50 ms", cell: |row| ms(row, |all| all.p50) },
        Column { name: "p99 ms", cell: |row| ms(row, |all| all.p99) },
        Column { name: "p99.9 ms", cell: |row| ms(row, |all| all.p999) },
        Column { name: "longest ms", cell: |row| ms(row, |all| all.max) },
        Column { name: "time in gaps > 1 ms", cell: |row| Some((STALLED.cell)(row).unwrap_or_else(|| "?".to_owned())) },
        Column { name: "CPU µs each", cell: cpu },
    ],
};

fn lowered(report: &mut Report) -> Option<Lowered> {
    let lowered = Lowered::new(LOWERED_LIMIT, LOWERED_BACKGROUND);
    let note = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock => "stall: another run has lowered the limit of dirty data".to_owned(),
        _ => format!("stall: the limit of dirty data could not be lowered: {error}"),
    };
    lowered.map_err(|error| report.note(Code::LimitNotLowered, note(error))).ok()
}

fn size_note(bytes: u64) -> String {
    let limit = dirty_limit::bytes().map_or("?".to_owned(), |limit| (limit >> 20).to_string());
    format!(
        "stall: each round wrote {} MiB; the kernel made writers wait from {limit} MiB of dirty data on",
        bytes >> 20
    )
}

fn usual_bytes(free: u64) -> u64 {
    let wanted = dirty_limit::bytes().map_or(BYTES_MAX, |limit| limit.saturating_mul(4));
    (wanted.min(BYTES_MAX).min(free / 3) / BLOCK as u64).max(1) * BLOCK as u64
}

impl Table for Stall {
    fn name(&self) -> &'static str {
        "stall"
    }

    fn about(&self) -> &'static str {
        "Stalls of a thread's other work while it writes beyond the dirty limit"
    }

    fn title(&self) -> &'static str {
        "stall: writes beyond the limit of dirty data, beside other work; per s"
    }

    fn unit(&self) -> &'static str {
        "per s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::stallers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--stall-size"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file is only read; leave it out for the tables that write, or name others"));
        }
        require_ways(self.name(), &ways::stallers(self.ways), options)
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((writes::bytes(options), "a new one for each round, without a name"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        vec![chosen(&ways::stallers(self.ways), options).len()]
    }

    /// Far beyond the limit of dirty data the disk sets the pace.
    fn round_time(&self, options: &Options) -> Duration {
        Duration::from_secs(if options.quick { 1 } else { 5 })
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Directory || chosen(&ways::stallers(self.ways), run.options).is_empty() {
            return Ok(());
        }
        let free = free_bytes(&testfile::create_nameless(run.dir)?, run.dir)?;
        let _lowered = if run.options.lower_dirty_limit { lowered(run.report) } else { None };
        let asked = run.options.stall_size.or(run.options.quick.then_some(QUICK_BYTES));
        let bytes = asked.unwrap_or_else(|| usual_bytes(free));
        require_room(free, bytes, "--stall-size", run.dir)?;
        run.report.environment.dirty_limit_bytes = dirty_limit::bytes();
        run.report.environment.stall_bytes = Some(bytes);
        run.report.note(Code::StallSize, size_note(bytes));
        let finish = |row: Row, samples: &[Sample]| row.with(Figures::of(samples));
        let rules = Rules { table: self.name(), option: "--stall-size", in_time: false, finish };
        let ways = run.usable(&ways::stallers(self.ways));
        Cases { rules, ways: &ways, depths: &[DEPTH], by_depth: false, bytes }.measure(run)
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "gaps", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn on_page(&self) -> Option<&'static PageGrid> {
        Some(&ON_PAGE)
    }

    fn figures(&self) -> &'static [Column] {
        &[STALLED]
    }

    fn latency(&self) -> &'static str {
        "The gaps"
    }

    /// Covers runs in which the kernel had a reason to put the writer to sleep: more was written
    /// than may be dirty. (Records of earlier versions also have cases of overwriting in a cgroup.)
    fn findings(&self, report: &Report) -> Vec<String> {
        let environment = &report.environment;
        let beyond =
            environment.stall_bytes.zip(environment.dirty_limit_bytes).is_some_and(|(bytes, limit)| bytes > limit);
        let longest = |row: &&Row| row.latency_ns.map_or(0, |latency| latency.max);
        let sentence = |(case, rows): (&str, Vec<&Row>)| {
            let worst = rows.iter().max_by_key(|row| longest(row))?;
            let least = rows.iter().min_by_key(|row| longest(row))?;
            let ms = |row: &&Row| format!("{:.1} ms", longest(row) as f64 / 1e6);
            let ours = rows.iter().find(|row| row.way == OURS && row.way != least.way && row.way != worst.way);
            let ours = ours.map_or_else(String::new, |row| format!(", by {OURS} {}", ms(row)));
            (worst.way != least.way).then(|| {
                let (worst_ms, least_ms) = (ms(worst), ms(least));
                let (worst, least) = (&worst.way, &least.way);
                format!(
                    "stall: a thread that writes by {worst} keeps its other work waiting for up to {worst_ms}, by {least} \
                     {least_ms}{ours} ({case})."
                )
            })
        };
        let cases = report.cases(self.name()).into_iter();
        cases.filter(|(case, _)| beyond || case.starts_with("overwrite ")).filter_map(sentence).collect()
    }
}
