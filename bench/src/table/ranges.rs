//! The table `ranges`: 20,000 byte ranges of one large file, each into memory of its own, from 32
//! tasks on tokio. The case of tokio-rs/tokio#8367: how an engine reads columns of a Parquet file.
//!
//! The file is taken for row groups of 16 column chunks, of sizes as different as those of a table of
//! orders. Four columns are read, which have 45 % of the bytes, row group by row group. Nothing is
//! aligned, and nothing in the file is Parquet: no way knows more than offsets and lengths.
//!
//! The file is cold at the start of each round. Besides speed it is told what the process had in
//! memory at most, which has a map's pages in it, and what storage was asked for. The page cache that
//! nobody has mapped is in neither.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, Line, every};
use super::{Phase, Run, Table, chosen, names, require_ways, rows};
use crate::error::{Error, Result};
use crate::machine::testfile::{TestFile, allows_direct};
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Sample};
use crate::measure::options::Options;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Range, Ranges as Job, Target};
use crate::random::Random;
use crate::report::figures::mib;
use crate::report::notes::Code;
use crate::report::{Row, median};
use crate::sys;
use crate::ways::{self, Part, RangeWay, Roster, WAYS};

pub struct Ranges {
    pub ways: Roster,
}

pub static RANGES: Ranges = Ranges { ways: WAYS };

const FULL_SIZE: u64 = 4 << 30;
const QUICK_SIZE: u64 = 256 << 20;
const TASKS: [usize; 1] = [32];

/// Row groups, and bytes of one: fewer groups of a file that is small.
const GROUPS: u64 = 5000;
const GROUP_BYTES_MIN: u64 = 256 << 10;
/// Column chunks of a row group, in per cent of it.
const COLUMNS: [u64; 16] = [4, 9, 7, 1, 3, 14, 2, 2, 1, 1, 6, 6, 6, 2, 3, 33];
/// Numbers of the columns that are read.
const READ: [usize; 4] = [0, 10, 13, 15];

/// Ranges that are verified: of all parts of the file.
const VERIFIED: usize = 256;

/// Figures of this table's rows, each the median of the rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The process's largest resident set, with mapped pages of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<f64>,
    /// What the process had read from storage, whoever in it asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_bytes: Option<f64>,
}

fn figures(row: &Row) -> Figures {
    row.figures()
}

fn as_mib(bytes: Option<f64>) -> Option<String> {
    Some(format!("{:.0}", mib(bytes?)))
}

const SECONDS: Column = Column { name: "s", cell: |row| Some(format!("{:.2}", figures(row).seconds?)) };
const PEAK: Column = Column { name: "peak MiB", cell: |row| as_mib(figures(row).peak_memory_bytes) };
const STORAGE: Column = Column { name: "read MiB", cell: |row| as_mib(figures(row).storage_bytes) };
const ASKED: Column = Column { name: "asked MiB", cell: |row| as_mib(figures(row).asked_bytes) };
const CPU: Column = Column {
    name: "CPU s",
    cell: |row| Some(format!("{:.2}", row.cpu_us_per_op.total * row.ops_per_s * figures(row).seconds? / 1e6)),
};

/// The chunks that are read of a file of this size, in the order of a scan.
pub fn chunks(size: u64, seed: u64) -> Vec<Range> {
    let groups = (size / GROUP_BYTES_MIN).clamp(1, GROUPS);
    let mut random = Random::new(seed);
    let mut ranges = Vec::with_capacity(groups as usize * READ.len());
    for group in 0..groups {
        let (start, end) = (size * group / groups, size * (group + 1) / groups);
        // Between three and five quarters of a column's share.
        let weights = COLUMNS.map(|share| share * (768 + random.below(513)));
        let all: u64 = weights.iter().sum();
        let mut before = 0;
        for (column, weight) in weights.into_iter().enumerate() {
            let place = |part: u64| start + ((end - start) as u128 * part as u128 / all as u128) as u64;
            let (from, to) = (place(before), place(before + weight));
            before += weight;
            if READ.contains(&column) {
                ranges.push(Range { offset: from, len: (to - from) as u32 });
            }
        }
    }
    ranges
}

impl Ranges {
    fn cases(options: &Options) -> Vec<usize> {
        options.or_usual(&options.tasks, &TASKS, &TASKS)
    }

    /// Ways that the file system allows.
    fn usable(&self, file: &TestFile, run: &mut Run<'_>) -> Result<Vec<Part<dyn RangeWay>>> {
        let mut ways = run.usable_in(self.name(), &ways::rangers(self.ways));
        if !allows_direct(file.path()).map_err(|error| Error::io("open with O_DIRECT", file.path(), &error))? {
            let text = format!("{}: its direct ways are left out: this file system refuses O_DIRECT", self.name());
            run.report.note(Code::DirectRefused, text);
            ways.retain(|way| !way.direct());
        }
        Ok(ways)
    }
}

impl Table for Ranges {
    fn name(&self) -> &'static str {
        "ranges"
    }

    fn about(&self) -> &'static str {
        "20,000 ranges of one large cold file into memory of their own, from tasks on tokio, as a Parquet file is read"
    }

    fn title(&self) -> &'static str {
        "ranges: column chunks of a cold file, each into memory of its own, from tasks on tokio; MiB/s"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn compared(&self, row: &Row) -> f64 {
        mib(row.bytes_per_s)
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::rangers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--tasks"]
    }

    fn toured(&self) -> bool {
        false
    }

    fn check(&self, options: &Options) -> Result<()> {
        require_ways(self.name(), &ways::rangers(self.ways), options)
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(if options.quick { QUICK_SIZE } else { FULL_SIZE })
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        vec![chosen(&ways::rangers(self.ways), options).len(); Self::cases(options).len()]
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::File {
            return Ok(());
        }
        let (file, options, cancel, table) = (run.test_file()?, run.options, run.cancel, self.name());
        let ways = &self.usable(file, run)?[..];
        if ways.is_empty() {
            return Ok(());
        }
        let all: Arc<[Range]> = chunks(file.size(), options.seed).into();
        let cases = Self::cases(options);
        for tasks in cases {
            let name = format!("tasks={tasks}");
            let (ranges, used) = (all.clone(), vec![Vec::new(); ways.len()]);
            let mut bench = Bench { table, ways, name, tasks, file, cancel, all: &all, ranges, used };
            let timed = run.case(table, &bench.name.clone(), ways, &mut bench)?;
            let rows = rows(table, &bench.name, ways, &timed).into_iter().zip(&timed).zip(&bench.used);
            let rows: Vec<Row> = rows.map(|((row, samples), used)| row.with(summed(samples, used))).collect();
            run.report.rows.extend(rows);
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const COLUMNS: &[Column] = &[SECONDS, PEAK, STORAGE, ASKED, CPU];
        const GRIDS: &[Grid] =
            &[Grid::Rows { name: "all ranges", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[SECONDS, PEAK, STORAGE]
    }

    fn latency(&self) -> &'static str {
        "Latency of a range"
    }
}

/// What a round took besides time. `None` where the kernel does not tell.
#[derive(Debug, Clone, Copy)]
struct Used {
    peak_memory_bytes: Option<u64>,
    storage_bytes: Option<u64>,
}

fn summed(samples: &[Sample], used: &[Used]) -> Figures {
    let of = |value: fn(&Used) -> Option<u64>| {
        let all: Option<Vec<f64>> = used.iter().map(|used| value(used).map(|bytes| bytes as f64)).collect();
        all.map(|all| median(&all))
    };
    let seconds: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
    Figures {
        seconds: Some(median(&seconds)),
        peak_memory_bytes: of(|used| used.peak_memory_bytes),
        storage_bytes: of(|used| used.storage_bytes),
        asked_bytes: samples.first().map(|sample| sample.bytes as f64),
    }
}

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    ways: &'a [Part<dyn RangeWay>],
    name: String,
    tasks: usize,
    file: &'a TestFile,
    cancel: &'a AtomicBool,
    all: &'a Arc<[Range]>,
    /// Those of this round.
    ranges: Arc<[Range]>,
    /// Of each timed round of each way.
    used: Vec<Vec<Used>>,
}

impl interleave::Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn prepare(&mut self, stage: Stage) {
        self.ranges = match stage {
            Stage::Verify => {
                let last = self.all.len() - 1;
                let every = self.all.len().div_ceil(VERIFIED);
                self.all.iter().copied().step_by(every).chain([self.all[last]]).collect()
            }
            _ => self.all.clone(),
        };
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (sample, used) = self.turn(self.ways[way], stage)?;
        if let Stage::Timed(_) = stage {
            self.used[way].push(used);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        Ok(self.turn(self.ways[way], stage)?.0)
    }
}

impl Bench<'_> {
    /// One way, once.
    fn turn(&self, way: Part<dyn RangeWay>, stage: Stage) -> Result<(Sample, Used)> {
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        if !way.direct() {
            self.file.have_memory_at_hand()?;
        }
        self.file.make_cold()?;
        let (path, size) = (self.file.path(), self.file.size());
        // With the readahead that a user's file has.
        let opened = File::open(path).map_err(|error| Error::io("open", path, &error))?;
        let target = Target { file: &opened, path, size, direct: way.direct() };
        let job = Job { target, ranges: &self.ranges, tasks: self.tasks };
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if stage == Stage::Verify { Some(&matches) } else { None };
        let counts = sys::forget_peak_memory().is_ok();
        let before = sys::read_bytes("self");
        let outcome = alone(check, |round| way.ranges(&job, round));
        // Before bytes of a user's file are read to compare them.
        let storage_bytes = before.zip(sys::read_bytes("self")).map(|(before, now)| now - before);
        let used = Used { peak_memory_bytes: sys::peak_memory().filter(|_| counts), storage_bytes };
        let (sample, ()) = turn.complete("ranges", job.totals(), outcome)?;
        turn.require_sampled(&sample, self.file)?;
        Ok((sample, used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_in_the_file_apart_and_of_many_sizes() {
        for (size, count) in [(1 << 20, 16), (QUICK_SIZE, 4096), (FULL_SIZE, 20_000), ((1 << 34) + 12_345, 20_000)] {
            let ranges = chunks(size, 7);
            assert_eq!(ranges.len(), count, "{size}");
            let mut end = 0;
            for range in &ranges {
                assert!(range.offset >= end && range.len > 0, "{range:?}");
                end = range.offset + u64::from(range.len);
            }
            assert!(end <= size && end > size - size / 50, "{size}: {end}");
            let all: u64 = ranges.iter().map(|range| u64::from(range.len)).sum();
            let share = all as f64 / size as f64;
            assert!((0.42..0.48).contains(&share), "{size}: {share}");
            let lengths = || ranges.iter().map(|range| range.len);
            assert!(lengths().max() > lengths().min().map(|least| 10 * least), "{size}");
        }
        assert_ne!(chunks(FULL_SIZE, 1), chunks(FULL_SIZE, 2));
    }
}
