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

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::rc::Rc;
use std::sync::Arc;

use super::columns::{CPU, Column, Grid, own_short};
use super::{Bench, Case, Run, Table, Work, open_for_random};
use crate::error::{Error, Result};
use crate::machine::load::Transfers;
use crate::machine::space::require_room;
use crate::machine::testfile::TestFile;
use crate::measure::meter::{Figure, Sample};
use crate::measure::options::Options;
use crate::measure::progress::Plan;
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::{Access, Buffer, Contents, ReadsAndWrites};
use crate::report::figures::micro;
use crate::ways::{self, Part, ReadWriteWay};

pub static READWRITE: Table = Table {
    name: "readwrite",
    about: "Random reads of one file beside durable writes to it, 70 to 30, direct and buffered",
    title: "readwrite: 70 % random reads and 30 % durable writes of 4 KiB, of one file; operations/s",
    takes: &["--depths"],
    writes_into: |options| {
        Some((size(options), "made for this run, random data, written and synced; then written to at random"))
    },
    cases: |options| {
        let shared = Rc::default();
        let mut cases = Vec::new();
        for (direct, name) in [(true, "direct"), (false, "buffered")] {
            for depth in options.or_usual(&options.depths, &[1, 16], &[1, 16, 64]) {
                let written = Rc::clone(&shared);
                let open = move |ways, run: &mut Run<'_>| Mixed::open(ways, direct, depth, written, run);
                let (ways, work) = (ways::readwriters(options.roster), Work::For(options.commit_time));
                cases.push(Case::new(format!("{name} depth={depth}"), ways, work, open).in_directory());
            }
        }
        cases
    },
    grids: &[Grid {
        name: "each",
        is_detail: false,
        columns: &[
            Column { name: "reads/s", cell: |row| own_short(row, "reads_per_s") },
            Column { name: "read p50 µs", cell: |row| Some(micro(row.own_latency("read_latency_ns")?.p50)) },
            Column { name: "read p99 µs", cell: |row| Some(micro(row.own_latency("read_latency_ns")?.p99)) },
            Column { name: "writes/s", cell: |row| own_short(row, "durable_writes_per_s") },
            Column { name: "write p50 µs", cell: |row| Some(micro(row.own_latency("write_latency_ns")?.p50)) },
            Column { name: "write p99 µs", cell: |row| Some(micro(row.own_latency("write_latency_ns")?.p99)) },
            CPU,
        ],
    }],
    latency: "Latency of reads and writes together",
    ..Table::USUAL
};

const BLOCK: usize = 4 << 10;
/// Writes of a hundred operations.
const WRITES: u64 = 30;
/// Written blocks that are read back after a timed round.
const SAMPLED: usize = 64;

fn size(options: &Options) -> u64 {
    let size = options.size.unwrap_or(if options.quick { 32 << 20 } else { 512 << 20 });
    size / BLOCK as u64 * BLOCK as u64
}

/// The file, and which turn wrote each of its blocks.
struct Written {
    file: TestFile,
    seed: u64,
    turns: u64,
    by: HashMap<u64, u64>,
}

impl Written {
    fn make(run: &mut Run<'_>) -> Result<Self> {
        let (size, dir, seed) = (size(run.options), &run.options.dir, run.options.seed);
        require_room(size, "--size", dir)?;
        let course = &mut *run.course;
        course.begin("making the file", Plan::writing_s(size), size);
        let file = TestFile::make(dir, size, seed, run.cancel, |bytes| course.step(bytes))?;
        Ok(Self { file, seed, turns: 0, by: HashMap::new() })
    }

    /// The bytes that a turn writes: other ones for each.
    fn contents(&self, turn: u64) -> Contents {
        Contents::new(self.seed.wrapping_add(turn))
    }

    /// Compares a block with what is to be there.
    fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(&turn) = self.by.get(&offset) else { return self.file.matches(offset, bytes) };
        self.contents(turn).block_at(BLOCK, offset) == bytes
    }

    /// CRC-32C of a block that is to be there.
    fn checksum(&self, offset: u64) -> Result<u32> {
        let Some(&turn) = self.by.get(&offset) else { return self.file.checksum(offset, BLOCK) };
        Ok(crc32c::crc32c(&self.contents(turn).block_at(BLOCK, offset)))
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
struct Mixed {
    ways: Vec<Part<dyn ReadWriteWay>>,
    direct: bool,
    depth: usize,
    written: Rc<RefCell<Option<Written>>>,
    accesses: Arc<[Access]>,
}

impl Mixed {
    fn open(
        ways: Vec<Part<dyn ReadWriteWay>>,
        direct: bool,
        depth: usize,
        written: Rc<RefCell<Option<Written>>>,
        run: &mut Run<'_>,
    ) -> Result<Option<Self>> {
        let mut made = written.borrow_mut();
        if made.is_none() {
            *made = Some(Written::make(run)?);
        }
        let path = made.as_ref().map(|made| made.file.path().to_owned()).unwrap_or_default();
        drop(made);
        let possible = !direct || run.takes_direct(&path, "readwrite: its direct cases are")?;
        Ok(possible.then(|| Self { ways, direct, depth, written, accesses: Arc::default() }))
    }
}

impl Bench for Mixed {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let mut random = stage.random(place.options.seed);
        let blocks = size(place.options) / BLOCK as u64;
        let count = operations.max(2 * self.depth);
        let places: Vec<u64> = match stage {
            // Each block once.
            Stage::Verify => random.permutation(blocks).into_iter().take(count).collect(),
            _ => (0..count).map(|_| random.below(blocks)).collect(),
        };
        let access = |place| Access { offset: place * BLOCK as u64, writes: random.below(100) < WRITES };
        self.accesses = places.into_iter().map(access).collect();
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let mut written = self.written.borrow_mut();
        let written = written.as_mut().ok_or_else(|| turn.failed("there is no file"))?;
        written.file.make_cold()?;
        let (way, path) = (self.ways[turn.index], written.file.path());
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        let file = Arc::new(open_for_random(OpenOptions::new().read(true).write(true).custom_flags(flags), path)?);
        written.turns += 1;
        let (number, contents) = (written.turns, written.contents(written.turns));
        let (direct, depth, accesses, cancel) = (self.direct, self.depth, &self.accesses, turn.cancel);
        let job = ReadsAndWrites { file: &file, path, direct, block: BLOCK, depth, accesses, contents, cancel };
        let matches = |offset: u64, bytes: &[u8]| written.matches(offset, bytes);
        let mut buffer = Buffer::new(BLOCK * depth);
        let before = Transfers::under(&file);
        let outcome = alone(turn.check(&matches), |round| way.read_write(&job, buffer.bytes(), round));
        let after = Transfers::under(&file);
        let count = accesses.len() as u64;
        let (mut sample, apart) = turn.complete("operations", (count, count * BLOCK as u64), outcome)?;
        let writes: Vec<u64> = accesses.iter().filter(|access| access.writes).map(|access| access.offset).collect();
        let told = (apart.reads.len(), apart.writes.len());
        let wanted = (count - writes.len() as u64, writes.len() as u64);
        if told != wanted {
            return Err(turn.failed(format!("(reads, writes) are {told:?} instead of {wanted:?}")));
        }
        // Two writes of one block may have been one of the device.
        let blocks = writes.iter().collect::<HashSet<_>>().len();
        written.by.extend(writes.iter().map(|&offset| (offset, number)));
        // Of a block that was written meanwhile a read has the one or the other.
        let lasting = sample.sampled.iter().filter(|sampled| written.by.get(&sampled.offset) != Some(&number));
        turn.require_checksums(lasting, |offset, _| written.checksum(offset))?;
        let wrong = if turn.verifies() {
            let (block, last) = (BLOCK as u64, written.file.size() - BLOCK as u64);
            let beside = |&at: &u64| [at.saturating_sub(block), at, (at + block).min(last)].into_iter();
            written.first_wrong(writes.iter().flat_map(beside))?
        } else {
            written.first_wrong(writes.into_iter().take(SAMPLED))?
        };
        if let Some(offset) = wrong {
            return Err(turn.failed(format!("the file is wrong at {offset} after its writes")));
        }
        turn.require_on_device((blocks * BLOCK) as u64, before, after)?;
        sample.tell("reads_per_s", Figure::Ratio(told.0 as f64, sample.seconds));
        sample.tell("durable_writes_per_s", Figure::Ratio(told.1 as f64, sample.seconds));
        sample.tell("read_latency_ns", Figure::Latency(apart.reads));
        sample.tell("write_latency_ns", Figure::Latency(apart.writes));
        Ok(sample)
    }
}
