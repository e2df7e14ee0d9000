//! The table `log-tail`: writers alone, and beside a reader that follows the end of the log. What
//! the writers lose is the ratio of the two; the reader's lag counts from when a writer learned
//! that its record is durable.
//!
//! The table `log-retention`: a log that keeps a third of what a round logs, and gives up its
//! oldest segments meanwhile, from a state in which it is as full as it stays. Written bytes are
//! those of the process, zeros of segments to come included; those of the device are anybody's, and
//! have those of the file system's own. *device/byte* is all that the device writes for a byte of a
//! record; *device/file byte* is what of that is not the log's own blocks and padding: 1.2 at most
//! is the aim.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::{FILE_MAX, fill, wants};
use crate::error::{Error, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile;
use crate::measure::interleave::{self, Stage, steps};
use crate::measure::meter::{Check, Latencies, Sample, latencies};
use crate::measure::options::{Logged, Options};
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Commits, Records};
use crate::report::figures::{micro, size_of};
use crate::report::{Latency, Row};
use crate::sys;
use crate::table::columns::{Column, Grid, LONGEST, Line, P50, P99, P999, cpu, every};
use crate::table::new_file::{free_bytes, no_room, require_room};
use crate::table::{Phase, Run, Table, names};
use crate::ways::{self, RETAINED, Seen, SteadyWay};

pub struct Tail {
    pub ways: &'static [&'static dyn SteadyWay],
}

pub struct Retention {
    pub ways: &'static [&'static dyn SteadyWay],
}

pub static TAIL: Tail = Tail { ways: ways::tailers() };
pub static RETENTION: Retention = Retention { ways: ways::retainers() };

const WRITERS: [usize; 1] = [8];
const SIZES: [usize; 2] = [128, 4096];
const QUICK_SIZES: [usize; 1] = [128];
const RETENTION_SIZES: [usize; 1] = [4096];
/// Bytes of the records that a log keeps in the table of retention.
const KEPT_BYTES: u64 = 64 << 20;
const QUICK_KEPT_BYTES: u64 = 4 << 20;
/// Commits that are verified, and from whose speed the length of a round of `log-tail` follows.
const VERIFIED: u64 = 256;

/// Figures of these tables' rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Bytes of the file for each logged byte, with what fills up blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes_per_byte: Option<f64>,
    /// Bytes that the process had storage read, for each logged byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_byte: Option<f64>,
    /// Bytes that the process had storage write, for each byte of the log's blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_bytes_per_file_byte: Option<f64>,
    /// Bytes that the device wrote, for each byte of the log's blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes_per_file_byte: Option<f64>,
    /// Bytes that the device wrote, for each logged byte: what fills up blocks included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes_per_byte: Option<f64>,
    /// The reader's lag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ns: Option<Latency>,
    /// Commits next to a change of segments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation_ns: Option<Latency>,
}

fn ratio(value: Option<f64>) -> Option<String> {
    Some(format!("{:.2}", value?))
}

const FILE_BYTES: Column =
    Column { name: "file bytes/byte", cell: |row| ratio(row.figures::<Figures>().file_bytes_per_byte) };
const READ: Column = Column { name: "read/byte", cell: |row| ratio(row.figures::<Figures>().read_bytes_per_byte) };
const WRITTEN: Column =
    Column { name: "written/file byte", cell: |row| ratio(row.figures::<Figures>().written_bytes_per_file_byte) };
const DEVICE: Column =
    Column { name: "device/file byte", cell: |row| ratio(row.figures::<Figures>().device_bytes_per_file_byte) };
const DEVICE_PER_BYTE: Column =
    Column { name: "device/byte", cell: |row| ratio(row.figures::<Figures>().device_bytes_per_byte) };
const LAG_P50: Column = Column { name: "lag p50 µs", cell: |row| Some(micro(row.figures::<Figures>().lag_ns?.p50)) };
const LAG_P99: Column = Column { name: "lag p99 µs", cell: |row| Some(micro(row.figures::<Figures>().lag_ns?.p99)) };
const ROTATION_P99: Column =
    Column { name: "rotation p99 µs", cell: |row| Some(micro(row.figures::<Figures>().rotation_ns?.p99)) };
const CPU: Column = Column { name: "CPU µs", cell: cpu };

/// Sums over all timed rounds of a way.
struct Sum {
    logged: u64,
    file: u64,
    read: Option<u64>,
    written: Option<u64>,
    device: Option<u64>,
    lag: Latencies,
    rotation: Latencies,
}

impl Sum {
    fn new() -> Self {
        let (read, written, device) = (Some(0), Some(0), Some(0));
        Self { logged: 0, file: 0, read, written, device, lag: latencies(), rotation: latencies() }
    }

    fn add(&mut self, logged: u64, seen: &Seen) {
        let sum = |sum: Option<u64>, more: Option<u64>| Some(sum? + more?);
        self.logged += logged;
        self.file += seen.file_bytes;
        self.read = sum(self.read, seen.read_bytes);
        self.written = sum(self.written, seen.written_bytes);
        self.device = sum(self.device, seen.device_bytes);
        self.lag += &seen.lag;
        self.rotation += &seen.rotation;
    }

    fn figures(&self) -> Figures {
        let per = |bytes: Option<u64>, all: u64| Some(bytes? as f64 / all.max(1) as f64);
        let of = |all: &Latencies| (!all.is_empty()).then(|| Latency::of(all));
        Figures {
            file_bytes_per_byte: per(Some(self.file), self.logged),
            read_bytes_per_byte: per(self.read, self.logged),
            written_bytes_per_file_byte: per(self.written, self.file),
            device_bytes_per_file_byte: per(self.device, self.file),
            device_bytes_per_byte: per(self.device, self.logged),
            lag_ns: of(&self.lag),
            rotation_ns: of(&self.rotation),
        }
    }
}

/// One case, ready to be measured.
struct Case<'a> {
    table: &'static str,
    name: String,
    ways: Vec<&'static dyn SteadyWay>,
    writers: usize,
    size: usize,
    dir: &'a Path,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Commits of each writer in a timed round, where they do not follow from the ways' speed.
    wanted: Option<u64>,
    commits: u64,
    sums: Vec<Sum>,
}

impl interleave::Case for Case<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (sample, seen) = self.turn(way, stage)?;
        if let Stage::Timed(_) = stage {
            self.sums[way].add(sample.bytes, &seen);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        Ok(self.turn(way, stage)?.0)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if stage == Stage::Verify {
            let slowest = samples.iter().map(Sample::per_second).fold(f64::INFINITY, f64::min);
            let all = slowest * self.options.commit_time.as_secs_f64();
            let most = FILE_MAX / (self.writers * self.size.max(4096)) as u64;
            self.commits = self.wanted.unwrap_or((all as u64 / self.writers as u64).min(most)).max(1);
        }
    }
}

impl<'a> Case<'a> {
    fn turn(&self, way: usize, stage: Stage) -> Result<(Sample, Seen)> {
        let way = self.ways[way];
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let (writers, size, commits, cancel) = (self.writers, self.size, self.commits, self.cancel);
        let all = commits * writers as u64;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(all * size as u64, "--writers or --sizes", self.dir, &error.to_string())
            }
            _ => turn.failed(error),
        };
        if turn.interrupted() {
            return Err(Error::interrupted());
        }
        let mut file = testfile::create_nameless(self.dir)?;
        // Only to tell the device by; one with nothing in it has none on some file systems.
        fill(&mut file, 4096, cancel).map_err(failed)?;
        let (path, records) = (sys::path_of(&file), Records::new(self.options.seed));
        let (folder, in_flight) = (self.dir, 1);
        let job = Commits { file: &file, path: &path, folder, writers, in_flight, size, commits, records, cancel };
        let holds = |number: u64, record: &[u8]| records.holds(number, record);
        let check: Option<&Check<'_>> = if stage == Stage::Verify { Some(&holds) } else { None };
        let before = Transfers::under(&file);
        let outcome = alone(check, |round| way.steady(&job, round));
        let after = Transfers::under(&file);
        let (sample, seen) = turn.sample(outcome, failed)?;
        turn.require("commits", &sample, (all, all * size as u64))?;
        if let Some(number) = sample.wrong {
            return Err(turn.failed(format!("record {number} is not where it should be")));
        }
        for found in &sample.sampled {
            if found.len != size || found.crc != records.checksum(size, found.offset) {
                return Err(turn.failed(format!("record {} is not where it should be", found.offset)));
            }
        }
        turn.require_on_device(sample.bytes, before, after)?;
        Ok((sample, seen))
    }
}

/// Measures a case for each number of writers and each size.
fn measure(
    (table, logged): (&'static str, Logged),
    ways: &'static [&'static dyn SteadyWay],
    sizes: Vec<usize>,
    kept: Option<u64>,
    phase: Phase,
    run: &mut Run<'_>,
) -> Result<()> {
    let (options, dir, cancel) = (run.options, run.dir, run.cancel);
    if phase != Phase::Directory || !wants(options, logged) {
        return Ok(());
    }
    let ways = run.usable_in(table, ways);
    if ways.is_empty() {
        return Ok(());
    }
    let probe = testfile::create_nameless(dir)?;
    require_room(free_bytes(&probe, dir)?, kept.unwrap_or(0) * 3 / 2, "--sizes", dir)?;
    let writers = options.or_usual(&options.writers, &WRITERS, &WRITERS);
    run.progress.begin(table, (writers.len() * sizes.len()) as u64 * steps(ways.len(), options.rounds, false));
    for &writers in &writers {
        for &size in &sizes {
            let name = format!("writers={writers} size={}", size_of(size));
            let wanted = kept.map(|kept| RETAINED * kept / (size * writers) as u64);
            let (commits, sums) = ((VERIFIED / writers as u64).max(1), ways.iter().map(|_| Sum::new()).collect());
            let (ways, progress) = (ways.clone(), name.clone());
            let mut case =
                Case { table, name, ways: ways.clone(), writers, size, dir, options, cancel, wanted, commits, sums };
            let timed = run.case(table, &progress, &ways, &mut case)?;
            let rows = ways.iter().zip(&timed).zip(&case.sums);
            run.report.rows.extend(
                rows.map(|((way, samples), sum)| Row::of(table, &progress, way.name(), samples).with(sum.figures())),
            );
        }
    }
    Ok(())
}

impl Table for Tail {
    fn name(&self) -> &'static str {
        Logged::Tail.table()
    }

    fn asked_as(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends beside a reader that follows the end of the log"
    }

    fn title(&self) -> &'static str {
        "log-tail: writers that wait for each record, alone and beside a reader that follows, commits/s"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(self.ways)
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--writers", "--sizes", "--logs"]
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let sizes = run.options.or_usual(&run.options.sizes, &QUICK_SIZES, &SIZES);
        measure((self.name(), Logged::Tail), self.ways, sizes, None, phase, run)
    }

    fn columns(&self) -> &'static [Grid] {
        const COLUMNS: &[Column] = &[P50, P99, P999, LONGEST, CPU, FILE_BYTES, READ, LAG_P50, LAG_P99];
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a commit", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[FILE_BYTES, READ, LAG_P50, LAG_P99]
    }
}

impl Table for Retention {
    fn name(&self) -> &'static str {
        Logged::Retention.table()
    }

    fn asked_as(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends to a log whose oldest segments are given up meanwhile"
    }

    fn title(&self) -> &'static str {
        "log-retention: writers of a log that keeps a third of what a round logs, commits/s"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(self.ways)
    }

    fn ranked(&self) -> bool {
        false
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--writers", "--sizes", "--logs"]
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let sizes = run.options.or_usual(&run.options.sizes, &RETENTION_SIZES, &RETENTION_SIZES);
        let kept = if run.options.quick { QUICK_KEPT_BYTES } else { KEPT_BYTES };
        measure((self.name(), Logged::Retention), self.ways, sizes, Some(kept), phase, run)
    }

    fn columns(&self) -> &'static [Grid] {
        const COLUMNS: &[Column] =
            &[P50, P99, P999, LONGEST, ROTATION_P99, CPU, FILE_BYTES, WRITTEN, DEVICE, DEVICE_PER_BYTE];
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a commit", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[FILE_BYTES, WRITTEN, DEVICE, DEVICE_PER_BYTE, ROTATION_P99]
    }
}
