//! Writes of 4 KiB through the page cache: the work of the tables `writes` and `stall`.
//!
//! A round writes a new file, from its start on. The file has no name, is synced while it is empty,
//! and its pages are given up after the round, outside of the clock, so that no round suffers from
//! the last one's dirty data. A way's bytes are read back and compared once for each case.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::fstatvfs;

use super::{Run, rows};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::environment::Environment;
use crate::machine::testfile;
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::Sample;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Buffer, Contents, Writes};
use crate::random::Random;
use crate::report::Row;
use crate::report::figures::whole_size_of;
use crate::ways::{Part, WriteWay};

pub const BLOCK: usize = 4 << 10;

/// Blocks that are verified, and tell a way's speed.
const VERIFIED: u64 = 1024;
const LONGEST_ROUND_S: f64 = 1.0;
/// Blocks of a timed round that are compared.
const SAMPLED: u64 = 8;

/// Rules by which a table writes.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub table: &'static str,
    /// The option by which the user asks for less.
    pub option: &'static str,
    /// A slow way's round ends after about a second. Otherwise all ways write as much, unless they
    /// end a round early.
    pub in_time: bool,
    /// Adds the figures of the table's own to a row.
    pub finish: fn(Row, &[Sample]) -> Row,
}

/// Cases with the same ways.
pub(super) struct Cases<'a> {
    pub rules: Rules,
    pub ways: &'a [Part<dyn WriteWay>],
    pub depths: &'a [usize],
    /// The depth is a part of a case's name.
    pub by_depth: bool,
    /// The most that a round writes.
    pub bytes: u64,
}

impl Cases<'_> {
    pub(super) fn measure(&self, run: &mut Run<'_>) -> Result<()> {
        let filesystem = Environment::of(run.dir).filesystem;
        let name = format!("dir={}", filesystem.as_deref().unwrap_or("unknown"));
        for &depth in self.depths {
            let name = if self.by_depth { format!("{name} depth={depth}") } else { name.clone() };
            self.case(name, depth, run)?;
        }
        Ok(())
    }

    fn ways(&self, depth: usize) -> Vec<Part<dyn WriteWay>> {
        self.ways.iter().copied().filter(|way| way.fewest_in_flight() <= depth).collect()
    }

    fn case(&self, name: String, depth: usize, run: &mut Run<'_>) -> Result<()> {
        let (dir, cancel, seed) = (run.dir, run.cancel, run.options.seed);
        let (rules, ways, all) = (self.rules, &self.ways(depth)[..], self.bytes / BLOCK as u64);
        if ways.is_empty() {
            return Ok(());
        }
        let blocks = vec![all.min(VERIFIED); ways.len()];
        let mut bench = Bench { rules, ways, name, depth, all, blocks, dir, cancel, seed, turns: 0 };
        let name = bench.name.clone();
        let timed = run.case(rules.table, &name, ways, &mut bench)?;
        let finish = |(row, samples): (Row, &Vec<Sample>)| (rules.finish)(row, samples);
        run.report.rows.extend(rows(rules.table, &name, ways, &timed).into_iter().zip(&timed).map(finish));
        Ok(())
    }
}

/// One case, ready to be measured.
struct Bench<'a> {
    rules: Rules,
    ways: &'a [Part<dyn WriteWay>],
    name: String,
    depth: usize,
    /// Blocks of a full round.
    all: u64,
    /// Blocks of each way's next round.
    blocks: Vec<u64>,
    dir: &'a Path,
    cancel: &'a AtomicBool,
    seed: u64,
    turns: u64,
}

impl interleave::Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        // Other bytes for each turn, so that none finds those of the one before.
        self.turns += 1;
        let contents = Contents::new(self.seed.wrapping_add(self.turns));
        self.write(self.ways[way], self.blocks[way], contents, stage == Stage::Verify)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if stage != Stage::Verify {
            return;
        }
        // The timed rounds of a slow way are as long as those of a fast one, within the size.
        let in_time = |sample: &Sample| self.all.min(((sample.per_second() * LONGEST_ROUND_S) as u64).max(VERIFIED));
        let blocks = |sample| if self.rules.in_time { in_time(sample) } else { self.all };
        self.blocks = samples.iter().map(blocks).collect();
    }
}

impl Bench<'_> {
    /// One way, once.
    fn write(&self, way: Part<dyn WriteWay>, blocks: u64, contents: Contents, verify: bool) -> Result<Sample> {
        let turn = Turn { way: way.name(), table: self.rules.table, case: &self.name, cancel: self.cancel };
        let file = Arc::new(testfile::create_nameless(self.dir)?);
        // Also waits for what the round before has left to the journal.
        file.sync_all().map_err(|error| self.io("fsync before the round", &error, blocks))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let (depth, cancel) = (self.depth, self.cancel);
        let job = Writes { file: &file, path: &path, block: BLOCK, depth, blocks, contents, cancel };
        let mut buffer = Buffer::new(BLOCK * depth);
        contents.prepare(buffer.bytes(), BLOCK);

        let outcome = alone(None, |round| way.writes(&job, buffer.bytes(), round));
        let (sample, ()) = turn.sample(outcome, |error| match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => self.io("write", &error, blocks),
            _ => turn.failed(error),
        })?;
        let written = (sample.operations, sample.bytes);
        let fewest = if self.rules.in_time { blocks } else { 1 };
        if !(fewest..=blocks).contains(&written.0) || written.1 != written.0 * BLOCK as u64 {
            return Err(turn.failed(format!("(writes, bytes) are {written:?} instead of {blocks} blocks")));
        }
        let wrong = match verify {
            true => first_wrong(&file, contents, written.0),
            false => self.sampled_wrong(&file, contents, written.0),
        };
        let wrong = wrong.map_err(|error| self.io("read back", &error, blocks))?;
        if let Some(offset) = wrong {
            return Err(turn.failed(format!("the file is wrong from byte {offset}")));
        }
        // Now, and not on the clock of whoever comes next.
        file.set_len(0).map_err(|error| self.io("truncate", &error, blocks))?;
        Ok(sample)
    }

    /// Compares the file's size, and some of the blocks that this turn has written; the last one, too.
    fn sampled_wrong(&self, file: &File, contents: Contents, blocks: u64) -> std::io::Result<Option<u64>> {
        let (size, wanted) = (file.metadata()?.len(), blocks * BLOCK as u64);
        if size != wanted {
            return Ok(Some(size.min(wanted)));
        }
        let mut random = Random::of(self.seed, self.turns);
        let mut block = vec![0; BLOCK];
        for number in (0..SAMPLED).map(|_| random.below(blocks)).chain([blocks - 1]) {
            let offset = number * BLOCK as u64;
            file.read_exact_at(&mut block, offset)?;
            if block != block_at(contents, offset) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    fn io(&self, operation: &str, error: &std::io::Error, blocks: u64) -> Error {
        let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        if full {
            return no_room(blocks * BLOCK as u64, self.rules.option, self.dir, &error.to_string());
        }
        let text = format!("{operation} in {} on {}: {error}; use another --dir", self.dir.display(), self.name);
        Error::new(ErrorKind::Other, text)
    }
}

pub(super) fn free_bytes(file: &File, dir: &Path) -> Result<u64> {
    let about = fstatvfs(file).map_err(|error| Error::io("statvfs", dir, &error.into()))?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

pub(super) fn require_room(free: u64, bytes: u64, option: &str, dir: &Path) -> Result<()> {
    if bytes <= free {
        return Ok(());
    }
    let why = format!("{} are free", whole_size_of(free));
    Err(no_room(bytes, option, dir, &why))
}

pub(super) fn no_room(bytes: u64, option: &str, dir: &Path, why: &str) -> Error {
    let text = format!(
        "no room to write {} in {}: {why}; use a smaller {option} or another --dir",
        whole_size_of(bytes),
        dir.display()
    );
    Error::new(ErrorKind::NoRoom, text)
}

/// Compares with the plainest reader there is. `None` if the file has these blocks and no byte
/// more.
pub fn first_wrong(file: &File, contents: Contents, blocks: u64) -> std::io::Result<Option<u64>> {
    let mut expected = vec![0; BLOCK];
    contents.prepare(&mut expected, BLOCK);
    let mut found = vec![0; BLOCK];
    let (size, wanted) = (file.metadata()?.len(), blocks * BLOCK as u64);
    for offset in (0..size.min(wanted)).step_by(BLOCK) {
        contents.place(&mut expected, offset);
        let read = file.read_at(&mut found, offset)?;
        if found[..read] != expected {
            return Ok(Some(offset));
        }
    }
    Ok((size != wanted).then(|| size.min(wanted)))
}

fn block_at(contents: Contents, offset: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    contents.prepare(&mut block, BLOCK);
    contents.place(&mut block, offset);
    block
}
