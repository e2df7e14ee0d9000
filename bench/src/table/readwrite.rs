//! The table `readwrite`: random reads of one file beside durable writes to it, 70 to 30, past the
//! page cache and through it.
//!
//! Compared are the same reads and writes of 4 KiB, in the same order, so many of either in flight
//! together. The promise is the same: when a write is complete its bytes are on stable storage
//! (`RWF_DSYNC`, or a write and an `fdatasync`). The file is written in full before, and cold at
//! the start of each round, so that through the page cache most reads miss, and those of pages that
//! were just written hit.
//!
//! While a way is verified no block is both read and written: each byte read is compared, and what
//! was written is read back from the disk, with the blocks beside it. After timed rounds a sample
//! of the written blocks is.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, Line, cpu, every};
use super::new_file::{free_bytes, require_room};
use super::{Phase, Run, Table, chosen, names, require_ways, rows, usage};
use crate::error::{Error, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile::{self, TestFile, allows_direct};
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Apart, Check, Sample};
use crate::measure::options::Options;
use crate::measure::progress::Plan;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Access, Buffer, Contents, ReadsAndWrites};
use crate::report::figures::{micro, short};
use crate::report::notes::Code;
use crate::report::{Latency, Row, median};
use crate::ways::{self, Part, ReadWriteWay, Roster, WAYS};

pub struct ReadWrite {
    pub ways: Roster,
}

pub static READWRITE: ReadWrite = ReadWrite { ways: WAYS };

const BLOCK: usize = 4 << 10;
const DEPTHS: [usize; 3] = [1, 16, 64];
const QUICK_DEPTHS: [usize; 2] = [1, 16];
const FULL_SIZE: u64 = 512 << 20;
const QUICK_SIZE: u64 = 32 << 20;
/// Writes of a hundred operations.
const WRITES: u64 = 30;

/// Operations that are verified. They tell the length of the warm-up, a share of a round, which
/// tells that of the timed ones.
const VERIFIED: usize = 256;
const WARM_UP: f64 = 0.2;
/// The slowest way's round may take this many times as long as it should.
const SLOWEST: f64 = 4.0;
/// Written blocks that are read back after a timed round.
const SAMPLED: usize = 64;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_writes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency_ns: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency_ns: Option<Latency>,
}

impl Figures {
    fn of(row: &Row, apart: &Apart) -> Self {
        let (reads, writes) = (apart.reads.len() as f64, apart.writes.len() as f64);
        let each = row.ops_per_s / (reads + writes).max(1.0);
        Self {
            reads_per_s: Some(reads * each),
            durable_writes_per_s: Some(writes * each),
            read_latency_ns: Some(Latency::of(&apart.reads)),
            write_latency_ns: Some(Latency::of(&apart.writes)),
        }
    }
}

fn figures(row: &Row) -> Figures {
    row.figures()
}

const RATES: [Column; 2] = [
    Column { name: "reads/s", cell: |row| Some(short(figures(row).reads_per_s?)) },
    Column { name: "writes/s", cell: |row| Some(short(figures(row).durable_writes_per_s?)) },
];

const COLUMNS: &[Column] = &[
    RATES[0],
    Column { name: "read p50 µs", cell: |row| Some(micro(figures(row).read_latency_ns?.p50)) },
    Column { name: "read p99 µs", cell: |row| Some(micro(figures(row).read_latency_ns?.p99)) },
    RATES[1],
    Column { name: "write p50 µs", cell: |row| Some(micro(figures(row).write_latency_ns?.p50)) },
    Column { name: "write p99 µs", cell: |row| Some(micro(figures(row).write_latency_ns?.p99)) },
    Column { name: "CPU µs", cell: cpu },
];

impl ReadWrite {
    fn depths(options: &Options) -> Vec<usize> {
        options.or_usual(&options.depths, &QUICK_DEPTHS, &DEPTHS)
    }

    fn size(options: &Options) -> u64 {
        let size = options.size.unwrap_or(if options.quick { QUICK_SIZE } else { FULL_SIZE });
        size / BLOCK as u64 * BLOCK as u64
    }
}

impl Table for ReadWrite {
    fn name(&self) -> &'static str {
        "readwrite"
    }

    fn about(&self) -> &'static str {
        "Random reads of one file beside durable writes to it, 70 to 30, direct and buffered"
    }

    fn title(&self) -> &'static str {
        "readwrite: 70 % random reads and 30 % durable writes of 4 KiB, of one file; operations/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::readwriters(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths"]
    }

    fn toured(&self) -> bool {
        false
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file is only read; leave it out of readwrite"));
        }
        require_ways(self.name(), &ways::readwriters(self.ways), options)
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((Self::size(options), "made for this run, random data, written and synced; then written to at random"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        vec![chosen(&ways::readwriters(self.ways), options).len(); 2 * Self::depths(options).len()]
    }

    fn round_time(&self, options: &Options) -> Duration {
        options.commit_time
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Directory {
            return Ok(());
        }
        let (dir, options, cancel, table) = (run.dir, run.options, run.cancel, self.name());
        let size = Self::size(options);
        require_room(free_bytes(&testfile::create_nameless(dir)?, dir)?, size, "--size", dir)?;
        run.course.begin("making the file", Plan::writing_s(size), size);
        let file = TestFile::make(dir, size, options.seed, cancel, |bytes| run.course.step(bytes))?;
        let ways = run.usable_in(table, &ways::readwriters(self.ways));
        let direct = allows_direct(file.path()).map_err(|error| Error::io("open", file.path(), &error))?;
        if !direct {
            let text = format!("{table}: its direct cases are left out: this file system refuses O_DIRECT");
            run.report.note(Code::DirectRefused, text);
        }
        let depths = Self::depths(options);
        let kinds: &[bool] = if direct { &[true, false] } else { &[false] };
        let mut written = Written { file: &file, seed: options.seed, turns: 0, by: HashMap::new() };
        for &direct in kinds {
            for &depth in &depths {
                let name = format!("{} depth={depth}", if direct { "direct" } else { "buffered" });
                let (ways, accesses) = (&ways[..], Arc::default());
                let apart = ways.iter().map(|_| Apart::default()).collect();
                let written = &mut written;
                let mut bench = Bench {
                    table,
                    ways,
                    name,
                    direct,
                    depth,
                    options,
                    cancel,
                    count: VERIFIED,
                    accesses,
                    written,
                    apart,
                };
                let timed = run.case(table, &bench.name.clone(), ways, &mut bench)?;
                run.report.rows.extend(bench.rows(&timed));
            }
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "each", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &RATES
    }

    fn latency(&self) -> &'static str {
        "Latency of reads and writes together"
    }
}

/// The file, and which turn wrote each of its blocks.
struct Written<'a> {
    file: &'a TestFile,
    seed: u64,
    turns: u64,
    by: HashMap<u64, u64>,
}

impl Written<'_> {
    /// The bytes that a turn writes: other ones for each.
    fn contents(&self, turn: u64) -> Contents {
        Contents::new(self.seed.wrapping_add(turn))
    }

    /// Compares a block with what is to be there.
    fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(&turn) = self.by.get(&offset) else { return self.file.matches(offset, bytes) };
        self.block(turn, offset) == bytes
    }

    /// CRC-32C of a block that is to be there.
    fn checksum(&self, offset: u64) -> Result<u32> {
        let Some(&turn) = self.by.get(&offset) else { return self.file.checksum(offset, BLOCK) };
        Ok(crc32c::crc32c(&self.block(turn, offset)))
    }

    /// The block that a turn writes here.
    fn block(&self, turn: u64, offset: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        let contents = self.contents(turn);
        contents.prepare(&mut block, BLOCK);
        contents.place(&mut block, offset);
        block
    }

    /// The first of these blocks that is not on the disk as it is to be.
    fn first_wrong(&self, offsets: impl Iterator<Item = u64>) -> Result<Option<u64>> {
        self.file.make_cold()?;
        let mut block = vec![0; BLOCK];
        for offset in offsets {
            let read = self.file.through_the_cache().read_exact_at(&mut block, offset);
            read.map_err(|error| Error::io("read back", self.file.path(), &error))?;
            if !self.matches(offset, &block) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }
}

/// One case, ready to be measured.
struct Bench<'a, 'f> {
    table: &'a str,
    ways: &'a [Part<dyn ReadWriteWay>],
    name: String,
    direct: bool,
    depth: usize,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Operations of the next round.
    count: usize,
    accesses: Arc<[Access]>,
    written: &'a mut Written<'f>,
    /// Latencies of each way's timed rounds.
    apart: Vec<Apart>,
}

impl interleave::Case for Bench<'_, '_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn prepare(&mut self, stage: Stage) {
        let mut random = stage.random(self.options.seed);
        let blocks = self.written.file.size() / BLOCK as u64;
        let count = self.count.max(2 * self.depth);
        let places: Vec<u64> = match stage {
            // Each block once.
            Stage::Verify => random.permutation(blocks).into_iter().take(count).collect(),
            _ => (0..count).map(|_| random.below(blocks)).collect(),
        };
        let access = |place| Access { offset: place * BLOCK as u64, writes: random.below(100) < WRITES };
        self.accesses = places.into_iter().map(access).collect();
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.written.file.make_cold()?;
        let (sample, apart) = self.turn(self.ways[way], stage)?;
        if let Stage::Timed(_) = stage {
            self.apart[way].merge(&apart);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.written.file.make_cold()?;
        Ok(self.turn(self.ways[way], stage)?.0)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        let share = match stage {
            Stage::Verify => WARM_UP,
            Stage::WarmUp => 1.0,
            Stage::Timed(_) => return,
        };
        let speeds: Vec<f64> = samples.iter().map(Sample::per_second).collect();
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let all = median(&speeds).min(slowest * SLOWEST) * self.options.commit_time.as_secs_f64() * share;
        self.count = (all as usize).max(VERIFIED / 4);
    }
}

impl Bench<'_, '_> {
    fn rows(&self, timed: &[Vec<Sample>]) -> Vec<Row> {
        let rows = rows(self.table, &self.name, self.ways, timed);
        let with_figures = |(row, apart): (Row, &Apart)| {
            let figures = Figures::of(&row, apart);
            row.with(figures)
        };
        rows.into_iter().zip(&self.apart).map(with_figures).collect()
    }

    /// One way, once.
    fn turn(&mut self, way: Part<dyn ReadWriteWay>, stage: Stage) -> Result<(Sample, Apart)> {
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let file = Arc::new(self.opened()?);
        self.written.turns += 1;
        let contents = self.written.contents(self.written.turns);
        let job = ReadsAndWrites {
            file: &file,
            path: self.written.file.path(),
            direct: self.direct,
            block: BLOCK,
            depth: self.depth,
            accesses: &self.accesses,
            contents,
            cancel: self.cancel,
        };
        let verify = stage == Stage::Verify;
        let matches = |offset: u64, bytes: &[u8]| self.written.matches(offset, bytes);
        let check: Option<&Check<'_>> = if verify { Some(&matches) } else { None };
        let mut buffer = Buffer::new(BLOCK * self.depth);
        let before = Transfers::under(&file);
        let outcome = alone(check, |round| way.read_write(&job, buffer.bytes(), round));
        let after = Transfers::under(&file);
        let count = self.accesses.len() as u64;
        let (sample, apart) = turn.complete("operations", (count, count * BLOCK as u64), outcome)?;
        let writes: Vec<u64> =
            self.accesses.iter().filter(|access| access.writes).map(|access| access.offset).collect();
        let told = (apart.reads.len(), apart.writes.len());
        let wanted = (count - writes.len() as u64, writes.len() as u64);
        if told != wanted {
            return Err(turn.failed(format!("(reads, writes) are {told:?} instead of {wanted:?}")));
        }
        // Two writes of one block may have been one of the device.
        let blocks = writes.iter().collect::<HashSet<_>>().len();
        let number = self.written.turns;
        self.written.by.extend(writes.iter().map(|&offset| (offset, number)));
        // Of a block that was written meanwhile a read has the one or the other.
        let lasting = sample.sampled.iter().filter(|sampled| self.written.by.get(&sampled.offset) != Some(&number));
        turn.require_checksums(lasting, |offset, _| self.written.checksum(offset))?;
        let wrong = if verify {
            let last = self.written.file.size() - BLOCK as u64;
            let beside = |&offset: &u64| {
                [offset.saturating_sub(BLOCK as u64), offset, (offset + BLOCK as u64).min(last)].into_iter()
            };
            self.written.first_wrong(writes.iter().flat_map(beside))?
        } else {
            self.written.first_wrong(writes.into_iter().take(SAMPLED))?
        };
        match wrong {
            Some(offset) => Err(turn.failed(format!("the file is wrong at {offset} after its writes"))),
            None => turn.require_on_device((blocks * BLOCK) as u64, before, after).map(|()| (sample, apart)),
        }
    }

    fn opened(&self) -> Result<File> {
        let path = self.written.file.path();
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| Error::io("open", path, &error))?;
        // Without readahead, as all random reads here.
        crate::sys::expect_random(&file).map_err(|error| Error::io("fadvise RANDOM on", path, &error))?;
        Ok(file)
    }
}
