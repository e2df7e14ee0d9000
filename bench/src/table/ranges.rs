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
use std::time::Duration;

use super::columns::{Column, Grid, own, own_mib};
use super::{Bench, Case, Run, Table, Work};
use crate::error::{Error, Result};
use crate::measure::meter::{Figure, Sample};
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::{Range, Ranges as Job, Target};
use crate::random::Random;
use crate::report::figures::mib;
use crate::sys;
use crate::ways::{self, Part, RangeWay};

pub static RANGES: Table = Table {
    name: "ranges",
    about: "20,000 ranges of one large cold file into memory of their own, from tasks on tokio, as a Parquet file is read",
    title: "ranges: column chunks of a cold file, each into memory of its own, from tasks on tokio; MiB/s",
    unit: "MiB/s",
    compared: |row| mib(row.bytes_per_s),
    takes: &["--tasks"],
    file_size: |options| Some(if options.quick { QUICK_SIZE } else { FULL_SIZE }),
    cases: |options| {
        let case = |tasks: usize| {
            let open = move |ways, run: &mut Run<'_>| Reading::open(ways, tasks, run).map(Some);
            let guess = Duration::from_secs(if options.quick { 1 } else { 4 });
            let work = Work::Exactly(usize::MAX, guess);
            Case::new(format!("tasks={tasks}"), ways::rangers(options.roster), work, open)
        };
        options.or_usual(&options.tasks, &[32], &[32]).into_iter().map(case).collect()
    },
    grids: &[Grid {
        name: "all ranges",
        is_detail: false,
        columns: &[
            Column { name: "s", cell: |row| own(row, "seconds", 2) },
            Column { name: "peak MiB", cell: |row| own_mib(row, "peak_memory_bytes") },
            Column { name: "read MiB", cell: |row| own_mib(row, "storage_bytes") },
            Column { name: "asked MiB", cell: |row| own_mib(row, "asked_bytes") },
            Column {
                name: "CPU s",
                cell: |row| {
                    let operations = row.ops_per_s * row.figure("seconds")?;
                    Some(format!("{:.2}", row.cpu_us_per_op.total * operations / 1e6))
                },
            },
        ],
    }],
    latency: "Latency of a range",
    ..Table::USUAL
};

const FULL_SIZE: u64 = 4 << 30;
const QUICK_SIZE: u64 = 256 << 20;

/// Row groups, and bytes of one: fewer groups of a file that is small.
const GROUPS: u64 = 5000;
const GROUP_BYTES_MIN: u64 = 256 << 10;
/// Column chunks of a row group, in per cent of it.
const COLUMNS: [u64; 16] = [4, 9, 7, 1, 3, 14, 2, 2, 1, 1, 6, 6, 6, 2, 3, 33];
/// Numbers of the columns that are read.
const READ: [usize; 4] = [0, 10, 13, 15];

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

/// One case, ready to be measured.
struct Reading {
    ways: Vec<Part<dyn RangeWay>>,
    tasks: usize,
    direct: bool,
    all: Arc<[Range]>,
    /// Those of this round.
    ranges: Arc<[Range]>,
}

impl Reading {
    fn open(ways: Vec<Part<dyn RangeWay>>, tasks: usize, run: &mut Run<'_>) -> Result<Self> {
        let file = run.place().file()?;
        let direct = run.takes_direct(file.path(), "ranges: its direct ways are")?;
        let all: Arc<[Range]> = chunks(file.size(), run.options.seed).into();
        Ok(Self { ways, tasks, direct, ranges: all.clone(), all })
    }
}

impl Bench for Reading {
    fn takes(&self, index: usize) -> bool {
        self.direct || !self.ways[index].direct()
    }

    /// All of them, or so many of all parts of the file.
    fn prepare(&mut self, _: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        self.ranges = self.all.clone();
        if stage == Stage::Verify {
            let every = self.all.len().div_ceil(operations);
            self.ranges = self.all.iter().copied().step_by(every).chain(self.all.last().copied()).collect();
        }
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (way, file) = (self.ways[turn.index], turn.file()?);
        if !way.direct() {
            file.have_memory_at_hand()?;
        }
        file.make_cold()?;
        let (path, size) = (file.path(), file.size());
        // With the readahead that a user's file has.
        let opened = File::open(path).map_err(|error| Error::io("open", path, &error))?;
        let target = Target { file: &opened, path, size, direct: way.direct() };
        let job = Job { target, ranges: &self.ranges, tasks: self.tasks };
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let counts = sys::forget_peak_memory().is_ok();
        let before = sys::read_bytes("self");
        let outcome = alone(turn.check(&matches), |round| way.ranges(&job, round));
        // Before bytes of a user's file are read to compare them.
        let storage_bytes = before.zip(sys::read_bytes("self")).map(|(before, now)| now - before);
        let peak_memory_bytes = sys::peak_memory().filter(|_| counts);
        let (mut sample, ()) = turn.complete("ranges", job.totals(), outcome)?;
        turn.require_sampled(&sample, file)?;
        sample.tell("seconds", Figure::median(sample.seconds));
        sample.tell("asked_bytes", Figure::median(sample.bytes as f64));
        // Mapped pages of the file are in it.
        if let Some(bytes) = peak_memory_bytes {
            sample.tell("peak_memory_bytes", Figure::median(bytes as f64));
        }
        // What the process had read from storage, whoever in it asked.
        if let Some(bytes) = storage_bytes {
            sample.tell("storage_bytes", Figure::median(bytes as f64));
        }
        Ok(sample)
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
