//! The table `log`: many writers, each of which makes a small record, waits until it is on stable
//! storage, and makes the next.
//!
//! Every round has a new file without a name, as long as the way may need it, filled with zeros and
//! synced before the clock runs. So no way pays for room, nor for a file that grows. What a way
//! makes ready itself before the clock runs is shown apart ("prepared"): for `nowait` it is the
//! calibration of a new log, its first segment, as large as the round needs up to 256 MiB, and the
//! next. All ways of a case make as many commits a
//! round as the middling way makes in the time of a round.
//!
//! A way's records are found and compared once for each case, before it is timed, and some of them
//! after each timed round. In all rounds the device must have written as many bytes as the records
//! have, where it counts.
//!
//! Asked for as `log`, too, each a table of its own by its work ([`Logged`]): [`pipelined`]
//! appends, and appends from tasks.

mod commits;
pub mod pipelined;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, LONGEST, Line, P50, P99, P999, cpu, every, prepared};
use super::new_file::free_bytes;
use super::{Phase, Run, TABLES, Table, chosen, names, usage};
use crate::error::{Error, Result};
use crate::machine::testfile::{self, allows_direct};
use crate::measure::meter::Sample;
use crate::measure::options::{Logged, Options};
use crate::report::figures::size_of;
use crate::report::notes::Code;
use crate::sys::path_of;
use crate::ways::{self, LogWay, Part, Roster, WAYS};
use commits::Commit;
pub(super) use commits::fill;

pub struct Log {
    pub ways: Roster,
}

pub static LOG: Log = Log { ways: WAYS };

pub const WRITERS: [usize; 3] = [1, 8, 64];
const QUICK_WRITERS: [usize; 2] = [1, 64];
const SIZES: [usize; 3] = [128, 256, 4096];
const QUICK_SIZES: [usize; 2] = [128, 4096];

/// The largest record.
pub const SIZE_MAX: usize = 1 << 20;

/// The largest file of a round.
pub const FILE_MAX: u64 = 1 << 30;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes of the file for each logged byte, with what fills up blocks; `None` for a way that
    /// does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes_per_byte: Option<f64>,
}

impl Figures {
    /// `file_bytes`: how far the file was used, over all rounds.
    fn of(samples: &[Sample], file_bytes: Option<u64>) -> Self {
        let logged: u64 = samples.iter().map(|sample| sample.bytes).sum();
        Self { file_bytes_per_byte: file_bytes.map(|bytes| bytes as f64 / logged.max(1) as f64) }
    }
}

const FILE_BYTES: Column = Column {
    name: "file bytes/byte",
    cell: |row| Some(format!("{:.2}", row.figures::<Figures>().file_bytes_per_byte?)),
};

const COLUMNS: &[Column] = &[
    P50,
    P99,
    P999,
    LONGEST,
    Column { name: "CPU µs", cell: cpu },
    Column { name: "switches", cell: |row| Some(format!("{:.2}", row.context_switches_per_op)) },
    FILE_BYTES,
    Column { name: "prepared ms", cell: prepared },
];

impl Log {
    fn writers(options: &Options) -> Vec<usize> {
        options.or_usual(&options.writers, &QUICK_WRITERS, &WRITERS)
    }

    fn sizes(options: &Options) -> Vec<usize> {
        options.or_usual(&options.sizes, &QUICK_SIZES, &SIZES)
    }
}

/// Tables that are asked for as `log` and that these options want.
pub(super) fn wants(options: &Options, logged: Logged) -> bool {
    match (&options.logs[..], options.quick) {
        ([], true) => logged == Logged::Threads,
        ([], false) => true,
        (asked, _) => asked.contains(&logged),
    }
}

/// A place for logs: free bytes of its file system, and whether it takes `O_DIRECT`.
fn place(run: &Run<'_>) -> Result<(u64, bool)> {
    let probe = testfile::create_nameless(run.dir)?;
    let direct =
        allows_direct(&path_of(&probe)).map_err(|error| Error::io("open with O_DIRECT in", run.dir, &error))?;
    Ok((free_bytes(&probe, run.dir)?, direct))
}

/// Those of `ways` that can be used in this directory.
fn usable(table: &str, ways: &[Part<dyn LogWay>], direct: bool, run: &mut Run<'_>) -> Vec<Part<dyn LogWay>> {
    let mut ways = run.usable_in(table, ways);
    ways.retain(|way| {
        let refused = way.direct() && !direct;
        if refused {
            let text = format!("{table}: {} is left out: this file system refuses O_DIRECT", way.name());
            run.report.note(Code::DirectRefused, text);
        }
        !refused
    });
    ways
}

impl Table for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends: writers that wait until their record is on stable storage, by number and record size"
    }

    fn title(&self) -> &'static str {
        "log: writers that append a record and wait until it is on stable storage, commits/s"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::loggers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--writers", "--sizes", "--logs"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file is only read; leave it out of log"));
        }
        let one = Self::writers(options).contains(&1);
        let here = wants(options, Logged::Threads)
            && chosen(&ways::loggers(self.ways), options).iter().any(|way| !way.alone() || one);
        let others = Logged::ALL.into_iter().filter(|logged| *logged != Logged::Threads && wants(options, *logged));
        let others = others.filter_map(|logged| TABLES.iter().find(|table| table.name() == logged.table()));
        if !here && !others.into_iter().any(|table| table.ways().iter().any(|way| options.chooses(way))) {
            let (table, all) = (self.name(), names(&ways::loggers(self.ways)).join(", "));
            return Err(usage(format!(
                "none of --ways is in the table {table} with these --writers; choose among {all}"
            )));
        }
        Ok(())
    }

    fn writes_into(&self, _: &Options) -> Option<(u64, &'static str)> {
        Some((FILE_MAX, "at most; a new one for each round, filled with zeros, without a name"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        if !wants(options, Logged::Threads) {
            return Vec::new();
        }
        let ways = chosen(&ways::loggers(self.ways), options);
        let of = |writers| ways.iter().filter(|way| writers == 1 || !way.alone()).count();
        Self::writers(options).into_iter().flat_map(|writers| vec![of(writers); Self::sizes(options).len()]).collect()
    }

    fn round_time(&self, options: &Options) -> Duration {
        options.commit_time
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let (options, table) = (run.options, self.name());
        if phase != Phase::Directory || !wants(options, Logged::Threads) {
            return Ok(());
        }
        let (free, direct) = place(run)?;
        let (writers, sizes) = (Self::writers(options), Self::sizes(options));
        let ways = usable(table, &ways::loggers(self.ways), direct, run);
        if writers.iter().any(|&writers| writers > 1) {
            for way in ways.iter().filter(|way| way.alone()) {
                let text = format!("{table}: {} is only measured with one writer", way.name());
                run.report.note(Code::OneWriter, text);
            }
        }
        let mut cases = Vec::new();
        for &writers in &writers {
            let ways: Vec<_> = ways.iter().copied().filter(|way| writers == 1 || !way.alone()).collect();
            for &size in &sizes {
                let name = format!("writers={writers} size={}", size_of(size));
                let (ways, limits) = (ways.clone(), "--writers or --sizes");
                cases.push(Commit::new((table, name), ways, (writers, 1, size), limits, free, run));
            }
        }
        cases.into_iter().try_for_each(|case| case.measure(run))
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a commit", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[FILE_BYTES]
    }
}
