//! Writes of 4 KiB through the page cache: the work of the tables `writes` and `stall`.
//!
//! A round writes a new file, from its start on. The file has no name, is synced while it is empty,
//! and its pages are given up after the round, outside of the clock, so that no round suffers from
//! the last one's dirty data. Or a round overwrites a file, at random places; before it the file is
//! synced, and none of it is cached. A way's bytes are read back and compared once for each case.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::fstatvfs;

use super::reading::Finish;
use super::{Run, rows};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::environment::Environment;
use crate::machine::mounts::{Kind, Mount};
use crate::machine::testfile::{self, TestFile};
use crate::measure::interleave::{self, Stage, steps};
use crate::measure::meter::Sample;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Buffer, Contents, Writes};
use crate::random::Random;
use crate::report::Row;
use crate::report::figures::whole_size_of;
use crate::report::notes::Code;
use crate::ways::WriteWay;

pub const BLOCK: usize = 4 << 10;

/// Blocks that are verified, and tell a way's speed.
const VERIFIED: u64 = 1024;
const LONGEST_ROUND_S: f64 = 1.0;
/// Blocks of a timed round that are compared.
const SAMPLED: u64 = 8;

/// Destination of writes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The directory that the user gave.
    Given,
    Own(Kind),
}

/// Rules by which a table writes.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub table: &'static str,
    /// The option by which the user asks for less.
    pub option: &'static str,
    /// A slow way's round ends after about a second. Otherwise all ways write as much, unless they
    /// end a round early.
    pub in_time: bool,
    pub finish: Finish,
}

/// Cases with the same ways on one place after the other, so that there is never more than one file
/// system of ours.
pub(super) struct Cases<'a> {
    pub rules: Rules,
    pub ways: &'a [&'static dyn WriteWay],
    pub depths: &'a [usize],
    /// The depth is a part of a case's name.
    pub by_depth: bool,
    /// The most that a round writes.
    pub bytes: u64,
}

impl Cases<'_> {
    pub(super) fn measure(&self, places: Vec<Place>, run: &mut Run<'_>) -> Result<()> {
        let table = self.rules.table;
        let of_depth = |&depth: &usize| steps(self.ways(depth).len(), run.options.rounds, false);
        let steps = self.depths.iter().map(of_depth).sum::<u64>();
        run.progress.begin(table, steps * places.len() as u64);
        for place in places {
            let (name, mount) = match place {
                Place::Given => {
                    let filesystem = Environment::of(run.dir).filesystem;
                    (format!("dir={}", filesystem.as_deref().unwrap_or("unknown")), None)
                }
                Place::Own(kind) => {
                    run.progress.now(&format!("making {}", kind.name()));
                    match Mount::new(kind, run.dir, self.bytes) {
                        Ok(mount) => (format!("fs={}", kind.name()), Some(mount)),
                        Err(_) if run.cancel.load(Ordering::Relaxed) => return Err(Error::interrupted()),
                        Err(why) => {
                            let text = format!("{table}: {} is left out: {why}", kind.name());
                            run.report.note(Code::FileSystemLeftOut, text);
                            run.progress.step(steps);
                            continue;
                        }
                    }
                }
            };
            let ground = Ground::New(mount.as_ref().map_or(run.dir, Mount::folder));
            for &depth in self.depths {
                let name = if self.by_depth { format!("{name} depth={depth}") } else { name.clone() };
                self.case(name, ground, mount.is_some(), depth, run)?;
            }
        }
        Ok(())
    }

    fn ways(&self, depth: usize) -> Vec<&'static dyn WriteWay> {
        self.ways.iter().copied().filter(|way| way.fewest_in_flight() <= depth).collect()
    }

    pub(super) fn case(
        &self,
        name: String,
        ground: Ground<'_>,
        own: bool,
        depth: usize,
        run: &mut Run<'_>,
    ) -> Result<()> {
        let (dir, cancel, seed) = (run.dir, run.cancel, run.options.seed);
        let (rules, ways, all) = (self.rules, &self.ways(depth)[..], self.bytes / BLOCK as u64);
        if ways.is_empty() {
            return Ok(());
        }
        let blocks = vec![all.min(VERIFIED); ways.len()];
        let mut bench = Bench { rules, ways, name, ground, own, depth, all, blocks, dir, cancel, seed, turns: 0 };
        let name = bench.name.clone();
        let timed = run.case(rules.table, &name, ways, &mut bench)?;
        let finish = |(row, samples): (Row, &Vec<Sample>)| (rules.finish)(row, samples);
        run.report.rows.extend(rows(rules.table, &name, ways, &timed).into_iter().zip(&timed).map(finish));
        Ok(())
    }
}

/// The file that a round writes into.
#[derive(Clone, Copy)]
pub(super) enum Ground<'a> {
    /// A new file in this folder.
    New(&'a Path),
    /// A file that is there and not cached, block by block in this order.
    Old { file: &'a TestFile, order: &'a [u64] },
}

/// One case, ready to be measured.
struct Bench<'a> {
    rules: Rules,
    ways: &'a [&'static dyn WriteWay],
    name: String,
    ground: Ground<'a>,
    /// The file is on a file system of ours.
    own: bool,
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
    fn write(&self, way: &dyn WriteWay, blocks: u64, contents: Contents, verify: bool) -> Result<Sample> {
        let turn = Turn { way: way.name(), table: self.rules.table, case: &self.name, cancel: self.cancel };
        let (file, order) = match self.ground {
            Ground::New(folder) => (testfile::create_nameless(folder)?, None),
            Ground::Old { file, order } => {
                let opened = OpenOptions::new().read(true).write(true).open(file.path());
                (opened.map_err(|error| self.io("open", &error, blocks))?, Some(order))
            }
        };
        let file = Arc::new(file);
        // Also waits for what the round before has left to the journal.
        file.sync_all().map_err(|error| self.io("fsync before the round", &error, blocks))?;
        if let Ground::Old { file, .. } = self.ground {
            file.make_cold()?;
        }
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let (depth, cancel) = (self.depth, self.cancel);
        let job = Writes { file: &file, path: &path, block: BLOCK, depth, blocks, order, contents, cancel };
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
        let wrong = match self.ground {
            Ground::New(_) if verify => first_wrong(&file, contents, written.0),
            Ground::Old { file, order } if verify => first_wrong_of(file, contents, &order[..written.0 as usize]),
            _ => self.sampled_wrong(&file, contents, order, written.0),
        };
        let wrong = wrong.map_err(|error| self.io("read back", &error, blocks))?;
        if let Some(offset) = wrong {
            return Err(turn.failed(format!("the file is wrong from byte {offset}")));
        }
        if let Ground::New(_) = self.ground {
            // Now, and not on the clock of whoever comes next.
            file.set_len(0).map_err(|error| self.io("truncate", &error, blocks))?;
        }
        Ok(sample)
    }

    /// Compares the file's size, if it is a new one, and some of the blocks that this turn has
    /// written; the last one, too.
    fn sampled_wrong(
        &self,
        file: &File,
        contents: Contents,
        order: Option<&[u64]>,
        blocks: u64,
    ) -> std::io::Result<Option<u64>> {
        let (size, wanted) = (file.metadata()?.len(), blocks * BLOCK as u64);
        if order.is_none() && size != wanted {
            return Ok(Some(size.min(wanted)));
        }
        let mut random = Random::of(self.seed, self.turns);
        let mut block = vec![0; BLOCK];
        for number in (0..SAMPLED).map(|_| random.below(blocks)).chain([blocks - 1]) {
            let offset = order.map_or(number, |order| order[number as usize]) * BLOCK as u64;
            file.read_exact_at(&mut block, offset)?;
            if block != block_at(contents, offset) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    fn io(&self, operation: &str, error: &std::io::Error, blocks: u64) -> Error {
        let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        if full && !self.own {
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

/// Returns the first block that is neither as it was made nor, where `order` says so, as it was
/// overwritten.
fn first_wrong_of(file: &TestFile, contents: Contents, order: &[u64]) -> std::io::Result<Option<u64>> {
    let mut expected = vec![0; BLOCK];
    contents.prepare(&mut expected, BLOCK);
    let mut found = vec![0; BLOCK];
    let written: HashSet<u64> = order.iter().copied().collect();
    for number in 0..file.size() / BLOCK as u64 {
        let offset = number * BLOCK as u64;
        contents.place(&mut expected, offset);
        file.open().read_exact_at(&mut found, offset)?;
        let right = if written.contains(&number) { found == expected } else { file.matches(offset, &found) };
        if !right {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}
