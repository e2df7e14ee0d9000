//! The tables that write: growing a file, and what a thread that writes keeps others waiting for.
//!
//! Every round writes a new file, in 4 KiB blocks from its start on, through the page cache. The file has no name, is synced while
//! it is empty, and its pages are given up after the round, outside of the clock: so no round has the last one's dirty data
//! to suffer from. A way's bytes are read back and compared once for each case, before it is timed.
//!
//! A round of the table of writes is `bytes` long, or what the way writes in a second if that is less. A round of the table of
//! stalls is as long as it takes to go far beyond the kernel's limit of dirty data.
//!
//! One case of the table of stalls is another: its rounds overwrite a file that is twice as large as the page cache may be, at random
//! places, each block as often as any other. Before each round the file is synced, and none of it is cached.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use rustix::fs::fstatvfs;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::dirty_limit::{self, Lowered};
use crate::machine::environment::Environment;
use crate::machine::memory_limit::Limited;
use crate::machine::mounts::{Kind, Mount};
use crate::machine::testfile::{self, TestFile};
use crate::measure::meter::{Round, Sample};
use crate::measure::run::Progress;
use crate::measure::work::{Buffer, Contents, Writes};
use crate::random::Random;
use crate::report::notes::Code;
use crate::report::{Report, Row};
use crate::ways::WriteWay;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// A file grows, by depth and file system.
    Writes,
    /// The gaps of a thread that writes and has other work, too.
    Stall,
}

impl Table {
    pub const ALL: [Self; 2] = [Self::Writes, Self::Stall];

    pub fn name(self) -> &'static str {
        match self {
            Self::Writes => "writes",
            Self::Stall => "stall",
        }
    }
}

/// What to measure.
#[derive(Clone)]
pub struct Plan {
    pub tables: Vec<Table>,
    pub writers: Vec<&'static dyn WriteWay>,
    pub stallers: Vec<&'static dyn WriteWay>,
    pub overwriters: Vec<&'static dyn WriteWay>,
    pub depths: Vec<usize>,
    pub rounds: usize,
    /// The most that a round of the table of writes writes.
    pub bytes: u64,
    /// What a round of the table of stalls writes; else four times the limit of dirty data, within bounds.
    pub stall_bytes: Option<u64>,
    /// Also overwrite, in a memory cgroup that allows so many bytes.
    pub memory_limit: Option<u64>,
    /// Also on file systems of our own, where they can be mounted.
    pub own_file_systems: bool,
    /// Lower the system's limit of dirty data for the table of stalls, where that is allowed.
    pub lower_dirty_limit: bool,
    pub seed: u64,
}

pub const DEPTHS: [usize; 4] = [1, 4, 16, 64];
pub const BLOCK: usize = 4 << 10;

/// How many blocks are verified, and tell a way's speed.
const VERIFIED: u64 = 1024;
const LONGEST_ROUND_S: f64 = 1.0;
const STALL_DEPTH: usize = 16;
/// How often a round of overwriting writes each block.
const OVERWRITES: usize = 4;
const STALL_BYTES_MAX: u64 = 2 << 30;
const LOWERED_LIMIT: u64 = 128 << 20;
const LOWERED_BACKGROUND: u64 = 64 << 20;

/// Where to write.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The directory that the user gave.
    Given,
    Own(Kind),
}

impl Plan {
    /// Measures in `dir` and on what can be mounted. What is complete is in `report`, even after an error or an interrupt.
    pub fn run(&self, dir: &Path, cancel: &AtomicBool, progress: &mut dyn Progress, report: &mut Report) -> Result<()> {
        // Says at once if the directory is of no use.
        let probe = testfile::create_nameless(dir)?;
        let free = free_bytes(&probe, dir)?;
        drop(probe);
        // First of all: the library looks for its memory cgroup once, when it first writes.
        if let Some(limit) = self.memory_limit.filter(|_| self.tables.contains(&Table::Stall)) {
            self.overwrite(limit, free, dir, cancel, progress, report)?;
        }
        let own: &[Kind] = if self.own_file_systems { &Kind::ALL } else { &[] };
        for &table in &self.tables {
            match table {
                Table::Writes => {
                    require_room(free, self.bytes, "--size", dir)?;
                    let places = [Place::Given].into_iter().chain(own.iter().copied().map(Place::Own));
                    let ways = usable(&self.writers, report);
                    let bytes = self.bytes;
                    let cases = Cases { plan: self, table, ways, depths: &self.depths, bytes, dir, cancel };
                    cases.measure(places.collect(), progress, report)?;
                }
                Table::Stall if self.stallers.is_empty() => {}
                Table::Stall => {
                    let _lowered = self.lowered(report);
                    let bytes = self.stall_bytes.unwrap_or_else(|| usual_stall_bytes(free));
                    require_room(free, bytes, "--stall-size", dir)?;
                    report.environment.dirty_limit_bytes = dirty_limit::bytes();
                    report.environment.stall_bytes = Some(bytes);
                    report.note(Code::StallSize, stall_note(bytes));
                    // Where writers are put to sleep by a disk.
                    let own = own.iter().copied().filter(|kind| matches!(kind, Kind::Ext4 | Kind::Xfs));
                    let places = [Place::Given].into_iter().chain(own.map(Place::Own));
                    let ways = usable(&self.stallers, report);
                    let depths = &[STALL_DEPTH];
                    let cases = Cases { plan: self, table, ways, depths, bytes, dir, cancel };
                    cases.measure(places.collect(), progress, report)?;
                }
            }
        }
        Ok(())
    }

    fn overwrite(
        &self,
        limit: u64,
        free: u64,
        dir: &Path,
        cancel: &AtomicBool,
        progress: &mut dyn Progress,
        report: &mut Report,
    ) -> Result<()> {
        let ways = usable(&self.overwriters, report);
        if ways.is_empty() {
            return Ok(());
        }
        let (table, bytes) = (Table::Stall, 2 * limit);
        let name = format!("overwrite memory={}M", limit >> 20);
        require_room(free, bytes, "--stall-size", dir)?;
        progress.begin("making the file to overwrite", bytes);
        let file = TestFile::make(dir, bytes, self.seed, cancel, |bytes| progress.step(bytes))?;
        let cold = match file.make_cold() {
            Err(error) if error.kind() == ErrorKind::NotCold => Err(error.to_string()),
            other => Ok(other?),
        };
        let _limited = match cold.and_then(|()| Limited::new(limit)) {
            Ok(limited) => limited,
            Err(why) => {
                report.note(Code::CaseLeftOut, format!("stall: {name} is left out: {why}"));
                return Ok(());
            }
        };
        let size = bytes >> 20;
        let text = format!("stall: {name} wrote at random into a file of {size} MiB that was not cached");
        report.note(Code::OverwriteSize, text);
        progress.begin(table.name(), (ways.len() * (self.rounds + 1)) as u64);
        progress.now(&name);
        let mut random = Random::new(self.seed);
        let order: Vec<u64> = (0..OVERWRITES).flat_map(|_| random.permutation(bytes / BLOCK as u64)).collect();
        let bytes = bytes * OVERWRITES as u64;
        let cases = Cases { plan: self, table, ways, depths: &[STALL_DEPTH], bytes, dir, cancel };
        let ground = Ground::Old { file: &file, order: &order };
        let case = Case { cases: &cases, name, ground, own: false, depth: STALL_DEPTH };
        report.rows.extend(case.measure(progress)?);
        Ok(())
    }

    fn lowered(&self, report: &mut Report) -> Option<Lowered> {
        if !self.lower_dirty_limit {
            return None;
        }
        let lowered = Lowered::new(LOWERED_LIMIT, LOWERED_BACKGROUND);
        let note = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => "stall: another run has lowered the limit of dirty data".to_owned(),
            _ => format!("stall: the limit of dirty data could not be lowered: {error}"),
        };
        lowered.map_err(|error| report.note(Code::LimitNotLowered, note(error))).ok()
    }
}

fn stall_note(bytes: u64) -> String {
    let limit = dirty_limit::bytes().map_or("?".to_owned(), |limit| (limit >> 20).to_string());
    format!(
        "stall: each round wrote {} MiB; the kernel made writers wait from {limit} MiB of dirty data on",
        bytes >> 20
    )
}

fn usual_stall_bytes(free: u64) -> u64 {
    let wanted = dirty_limit::bytes().map_or(STALL_BYTES_MAX, |limit| limit.saturating_mul(4));
    (wanted.min(STALL_BYTES_MAX).min(free / 3) / BLOCK as u64).max(1) * BLOCK as u64
}

fn usable(ways: &[&'static dyn WriteWay], report: &mut Report) -> Vec<&'static dyn WriteWay> {
    ways.iter().filter(|way| report.takes(way.name(), way.refused())).copied().collect()
}

pub(crate) fn free_bytes(file: &File, dir: &Path) -> Result<u64> {
    let about = fstatvfs(file).map_err(|error| Error::io("statvfs", dir, &error.into()))?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

pub(crate) fn require_room(free: u64, bytes: u64, option: &str, dir: &Path) -> Result<()> {
    if bytes <= free {
        return Ok(());
    }
    let why = format!("{} MiB are free", free >> 20);
    Err(no_room(bytes, option, dir, &why))
}

pub(crate) fn no_room(bytes: u64, option: &str, dir: &Path, why: &str) -> Error {
    let text = format!(
        "no room to write {} MiB in {}: {why}; use a smaller {option} or another --dir",
        bytes >> 20,
        dir.display()
    );
    Error::new(ErrorKind::NoRoom, text)
}

/// The cases of one table.
struct Cases<'a> {
    plan: &'a Plan,
    table: Table,
    ways: Vec<&'static dyn WriteWay>,
    depths: &'a [usize],
    bytes: u64,
    dir: &'a Path,
    cancel: &'a AtomicBool,
}

impl Cases<'_> {
    /// One file system after the other, so that there is never more than one of ours.
    fn measure(&self, places: Vec<Place>, progress: &mut dyn Progress, report: &mut Report) -> Result<()> {
        let steps = (self.depths.len() * self.ways.len() * (self.plan.rounds + 1)) as u64;
        progress.begin(self.table.name(), steps * places.len() as u64);
        for place in places {
            let (name, mount) = match place {
                Place::Given => {
                    let filesystem = Environment::of(self.dir).filesystem;
                    (format!("dir={}", filesystem.as_deref().unwrap_or("unknown")), None)
                }
                Place::Own(kind) => {
                    progress.now(&format!("making {}", kind.name()));
                    match Mount::new(kind, self.dir, self.bytes) {
                        Ok(mount) => (format!("fs={}", kind.name()), Some(mount)),
                        Err(_) if self.cancel.load(Ordering::Relaxed) => return Err(Error::interrupted()),
                        Err(why) => {
                            let text = format!("{}: {} is left out: {why}", self.table.name(), kind.name());
                            report.note(Code::FileSystemLeftOut, text);
                            progress.step(steps);
                            continue;
                        }
                    }
                }
            };
            let folder = mount.as_ref().map_or(self.dir, Mount::folder);
            for &depth in self.depths {
                let name = match self.table {
                    Table::Writes => format!("{name} depth={depth}"),
                    Table::Stall => name.clone(),
                };
                progress.now(&name);
                let case = Case { cases: self, name, ground: Ground::New(folder), own: mount.is_some(), depth };
                report.rows.extend(case.measure(progress)?);
            }
        }
        Ok(())
    }
}

/// One case, ready to be measured.
struct Case<'a> {
    cases: &'a Cases<'a>,
    name: String,
    ground: Ground<'a>,
    own: bool,
    depth: usize,
}

/// What a round writes into.
#[derive(Clone, Copy)]
enum Ground<'a> {
    /// A new file in this folder.
    New(&'a Path),
    /// A file that is there and not cached, block by block in this order.
    Old { file: &'a TestFile, order: &'a [u64] },
}

impl Case<'_> {
    fn measure(&self, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        let ways = &self.cases.ways;
        let all = self.cases.bytes / BLOCK as u64;
        let mut blocks = Vec::new();
        for (number, way) in (1..).zip(ways) {
            // Other bytes for each, so that none finds those of the one before.
            let contents = Contents::new(self.cases.plan.seed.wrapping_add(number));
            let speed = self.round(*way, all.min(VERIFIED), contents, true)?.per_second();
            // What is timed is as long for a slow way as for a fast one, within the size.
            let in_time = (speed * LONGEST_ROUND_S) as u64;
            blocks.push(if self.cases.table == Table::Writes { all.min(in_time.max(VERIFIED)) } else { all });
            progress.step(1);
        }
        let contents = Contents::new(self.cases.plan.seed);
        let mut samples = vec![Vec::new(); ways.len()];
        for round in 0..self.cases.plan.rounds {
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                samples[which].push(self.round(ways[which], blocks[which], contents, false)?);
                progress.step(1);
            }
        }
        let table = self.cases.table;
        let row = |(way, samples): (&&dyn WriteWay, &Vec<Sample>)| {
            let row = Row::of(table.name(), &self.name, way.name(), samples);
            if table == Table::Stall { row.with_stalls(samples) } else { row }
        };
        Ok(ways.iter().zip(&samples).map(row).collect())
    }

    /// One way, once.
    fn round(&self, way: &dyn WriteWay, blocks: u64, contents: Contents, verify: bool) -> Result<Sample> {
        let failed = |what: &str, why: &str| {
            let (table, way) = (self.cases.table.name(), way.name());
            let text = format!("{way} failed in {table} {}: {what}{why}; leave it out with --ways", self.name);
            Error::new(ErrorKind::Other, text)
        };
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
        let cancel = self.cases.cancel;
        let depth = self.depth;
        let job = Writes { file: &file, path: &path, block: BLOCK, depth, blocks, order, contents, cancel };
        let mut buffer = Buffer::new(BLOCK * self.depth);
        contents.prepare(buffer.bytes(), BLOCK);

        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, None);
        let result = way.writes(&job, buffer.bytes(), &mut round);
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        result.map_err(|error| match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => self.io("write", &error, blocks),
            _ => failed("", &error.to_string()),
        })?;
        let sample = Sample::of(&[round]).ok_or_else(|| failed("it did not run its clock", ""))?;
        let written = (sample.operations, sample.bytes);
        // A round of stalls may end early.
        let fewest = if self.cases.table == Table::Stall { 1 } else { blocks };
        if !(fewest..=blocks).contains(&written.0) || written.1 != written.0 * BLOCK as u64 {
            return Err(failed("(writes, bytes) are ", &format!("{written:?} instead of {blocks} blocks")));
        }
        if verify {
            let wrong = match self.ground {
                Ground::New(_) => first_wrong(&file, contents, written.0),
                Ground::Old { file, order } => first_wrong_of(file, contents, &order[..written.0 as usize]),
            };
            let wrong = wrong.map_err(|error| self.io("read back", &error, blocks))?;
            if let Some(offset) = wrong {
                return Err(failed("the file is wrong from byte ", &offset.to_string()));
            }
        }
        if let Ground::New(_) = self.ground {
            // Now, and not on the clock of whoever comes next.
            file.set_len(0).map_err(|error| self.io("truncate", &error, blocks))?;
        }
        Ok(sample)
    }

    fn io(&self, operation: &str, error: &std::io::Error, blocks: u64) -> Error {
        let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        if full && !self.own {
            let option = if self.cases.table == Table::Stall { "--stall-size" } else { "--size" };
            return no_room(blocks * BLOCK as u64, option, self.cases.dir, &error.to_string());
        }
        let text = format!("{operation} in {} on {}: {error}; use another --dir", self.cases.dir.display(), self.name);
        Error::new(ErrorKind::Other, text)
    }
}

/// Compares with the plainest reader there is. `None` if the file has these blocks and no byte more.
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

/// Of a file that was made as it is, and overwritten where `order` says: the first block that is neither.
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
