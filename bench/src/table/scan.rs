//! The table `scan`: blocks in ascending order through the page cache, with the kernel's readahead,
//! by block size, depth and stride.
//!
//! Compared is the time from a cold file to the last block in a buffer of the caller's: all ways
//! read the same blocks of the same file, in the same order. The file is opened anew for each
//! round, as usual (without `POSIX_FADV_RANDOM`), since an open file remembers how it was read
//! before. A stride of 4 reads every fourth block. Readahead may bring in the others, too: how much
//! each way read is a figure of its row. `nowait-stream` has a place in the file, and is in the cases
//! of every block at depth 1. Checksums of blocks of each timed round are compared with
//! the file.

use std::fs::File;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, Line, P50, P99, cpu, every};
use super::reading::file_size;
use super::{Phase, Run, Table, chosen, names, operations_in, require_ways, rows};
use crate::error::{Error, Result};
use crate::machine::testfile::TestFile;
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Sample};
use crate::measure::options::Options;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Buffer, Reads, Target};
use crate::random::Random;
use crate::report::figures::{mib, size_of};
use crate::report::{Row, median};
use crate::sys::PAGE;
use crate::ways::{self, Part, ReadWay, Roster, WAYS};

pub struct Scan {
    pub ways: Roster,
}

pub static SCAN: Scan = Scan { ways: WAYS };

/// Blocks are multiples of it, and no larger than this.
pub const SECTOR: usize = 512;
pub const BLOCK_MAX: usize = 64 << 20;

const BLOCKS: [usize; 3] = [4 << 10, 16 << 10, 128 << 10];
const QUICK_BLOCKS: [usize; 2] = [4 << 10, 128 << 10];
const DEPTHS: [usize; 2] = [1, 8];
/// Every fourth block, beside every one.
const STRIDE: u64 = 4;

/// Blocks that are verified, and that tell a way's speed, unless they are more than this.
const VERIFIED: usize = 256;
const WARM_UP_BYTES: usize = 8 << 20;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Pages in the page cache after a round for each page of the blocks, the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_read_per_page: Option<f64>,
}

const COLUMNS: &[Column] = &[
    P50,
    P99,
    Column { name: "CPU µs", cell: cpu },
    Column { name: "csw", cell: |row| Some(format!("{:.2}", row.context_switches_per_op)) },
    PAGES_READ,
];

const PAGES_READ: Column =
    Column { name: "read/asked", cell: |row| Some(format!("{:.2}", row.figures::<Figures>().pages_read_per_page?)) };

/// The blocks of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub block: usize,
    pub depth: usize,
    pub stride: u64,
}

impl Shape {
    fn name(self) -> String {
        let stride = if self.stride == 1 { String::new() } else { format!("stride={} ", self.stride) };
        format!("{stride}block={} depth={}", size_of(self.block), self.depth)
    }

    /// Those of `ways` that take part.
    fn suited(self, ways: &[Part<dyn ReadWay>]) -> Vec<Part<dyn ReadWay>> {
        let in_order = self.stride == 1 && self.depth == 1;
        ways.iter().copied().filter(|way| in_order || !way.keeps_a_place()).collect()
    }

    /// Blocks of the file that are asked for.
    fn places(self, size: u64) -> u64 {
        size.div_ceil(self.block as u64).div_ceil(self.stride)
    }
}

impl Scan {
    pub fn shapes(options: &Options) -> Vec<Shape> {
        let blocks = options.or_usual(&options.blocks, &QUICK_BLOCKS, &BLOCKS);
        let depths = options.or_usual(&options.depths, &DEPTHS, &DEPTHS);
        let mut shapes = Vec::new();
        for stride in [1, STRIDE] {
            // Strides are for one in flight in a quick run.
            for &depth in depths.iter().take(if options.quick && stride > 1 { 1 } else { usize::MAX }) {
                shapes.extend(blocks.iter().map(|&block| Shape { block, depth, stride }));
            }
        }
        shapes
    }
}

impl Table for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn about(&self) -> &'static str {
        "A cold file in order, or every fourth block, with the kernel's readahead"
    }

    fn title(&self) -> &'static str {
        "scan: cold blocks in ascending order, or every fourth, through the page cache with readahead; MiB/s"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn compared(&self, row: &Row) -> f64 {
        mib(row.bytes_per_s)
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::scanners(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths", "--blocks"]
    }

    fn toured(&self) -> bool {
        false
    }

    fn check(&self, options: &Options) -> Result<()> {
        require_ways(self.name(), &ways::scanners(self.ways), options)
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(file_size(options))
    }

    fn in_order(&self) -> bool {
        true
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        let ways = chosen(&ways::scanners(self.ways), options);
        Self::shapes(options).into_iter().map(|shape| shape.suited(&ways).len()).collect()
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::File {
            return Ok(());
        }
        let (file, options, cancel, table) = (run.test_file()?, run.options, run.cancel, self.name());
        let ways = run.usable_in(table, &ways::scanners(self.ways));
        let shapes = Self::shapes(options);
        let cases = shapes.into_iter().map(|shape| (shape, shape.suited(&ways)));
        // None are left where the only way that was chosen takes part in few cases.
        let cases: Vec<_> = cases.filter(|(_, ways)| !ways.is_empty()).collect();
        for (shape, ways) in &cases {
            let (shape, ways, name) = (*shape, &ways[..], shape.name());
            let (offsets, pages_read) = (Vec::new(), vec![Vec::new(); ways.len()]);
            let mut bench =
                Bench { table, ways, name, shape, file, options, cancel, blocks: VERIFIED, offsets, pages_read };
            let timed = run.case(table, &bench.name.clone(), ways, &mut bench)?;
            let figures = bench.pages_read.iter().map(|pages| Figures { pages_read_per_page: Some(median(pages)) });
            let rows = rows(table, &bench.name, ways, &timed).into_iter().zip(figures);
            run.report.rows.extend(rows.map(|(row, figures)| row.with(figures)));
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a block", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[PAGES_READ]
    }
}

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    ways: &'a [Part<dyn ReadWay>],
    name: String,
    shape: Shape,
    file: &'a TestFile,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Blocks of a timed round.
    blocks: usize,
    offsets: Vec<u64>,
    /// After each timed round of each way, the pages in the page cache for each one asked for.
    pages_read: Vec<Vec<f64>>,
}

impl interleave::Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn prepare(&mut self, stage: Stage) {
        let blocks = match stage {
            Stage::Verify => VERIFIED,
            Stage::WarmUp => WARM_UP_BYTES / self.shape.block,
            Stage::Timed(_) => self.blocks,
        };
        self.offsets = self.in_order(stage.random(self.options.seed), blocks.max(2 * self.shape.depth));
        // Where a read may be shorter than a block.
        if stage == Stage::Verify {
            let tail = (self.file.size() - 1) / self.shape.block as u64 * self.shape.block as u64;
            self.offsets.retain(|&offset| offset != tail);
            self.offsets.push(tail);
        }
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.file.make_cold()?;
        let sample = self.turn(self.ways[way], stage == Stage::Verify)?;
        if let Stage::Timed(_) = stage {
            let asked = sample.bytes.div_ceil(PAGE);
            self.pages_read[way].push(self.file.cached_pages()? as f64 / asked as f64);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.file.make_cold()?;
        self.turn(self.ways[way], stage == Stage::Verify)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if stage == Stage::WarmUp {
            self.blocks = operations_in(self.options.round_time, samples);
        }
    }
}

impl Bench<'_> {
    /// As many blocks as there are, from a place of the seed's choice on.
    fn in_order(&self, mut random: Random, blocks: usize) -> Vec<u64> {
        let Shape { block, stride, .. } = self.shape;
        let places = self.shape.places(self.file.size());
        let blocks = places.min(blocks as u64);
        let first = random.below(places - blocks + 1);
        (first..first + blocks).map(|place| place * stride * block as u64).collect()
    }

    /// One way, once.
    fn turn(&self, way: Part<dyn ReadWay>, verify: bool) -> Result<Sample> {
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let (path, size) = (self.file.path(), self.file.size());
        let opened = File::open(path).map_err(|error| Error::io("open", path, &error))?;
        let target = Target { file: &opened, path, size, direct: false };
        let Shape { block, depth, .. } = self.shape;
        let job = Reads { target, block, depth, offsets: &self.offsets, pace: None, cancel: self.cancel };
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if verify { Some(&matches) } else { None };
        let mut buffer = Buffer::new(block * depth);
        let outcome = alone(check, |round| way.reads(&job, buffer.bytes(), round));
        let (sample, ()) = turn.complete("reads", job.totals(), outcome)?;
        turn.require_sampled(&sample, self.file)?;
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_a_quick_run_fewer() {
        let shapes = |quick| Scan::shapes(&Options::new(quick, 1));
        let mut names: Vec<String> = shapes(false).into_iter().map(Shape::name).collect();
        assert!(names.contains(&"stride=4 block=16K depth=8".to_owned()), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!((names.len(), shapes(true).len()), (12, 6));
    }

    #[test]
    fn a_reader_with_a_place_takes_part_where_blocks_follow_each_other_one_at_a_time() {
        let ways = |stride, depth| Shape { block: 4096, depth, stride }.suited(&ways::scanners(WAYS));
        let has = |stride, depth| names(&ways(stride, depth)).contains(&"nowait-stream");
        assert_eq!([has(1, 1), has(1, 8), has(4, 1), has(4, 8)], [true, false, false, false]);
        assert_eq!((ways(1, 1).len(), ways(4, 1).len() + 1), (SCAN.ways().len(), SCAN.ways().len()));
    }

    #[test]
    fn a_stride_covers_the_file_to_its_last_place() {
        let shape = Shape { block: 4096, depth: 1, stride: 4 };
        assert_eq!([1, 4096 * 4, 4096 * 4 + 1, 4096 * 8].map(|size| shape.places(size)), [1, 1, 2, 2]);
    }
}
