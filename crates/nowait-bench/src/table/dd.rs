//! The table `dd`: a whole file, read from its start to its end, copied or written, by block size
//! and depth.
//!
//! Every round takes the whole file. Sources are cold, verified. Output goes into a new file
//! without a name, as large as the test file, and ends with a sync. It starts empty, so that a
//! growing file's cost shows; only the direct ways by hand have its room allocated before they
//! write from memory.
//!
//! All ways of one block size take turns, at all their depths. A way without a depth runs once a
//! round, and its result stands beside each depth. The bytes of a way are compared once for each of
//! its cases, before it is timed.
//!
//! Timed rounds are checked by samples, after the clock has stopped: checksums of what a way read,
//! for a copy, too, and pages of what it wrote. Of what dd and cat read into nowhere in a timed
//! round no byte can be seen: a pipe, as in the verification, would be on the clock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid};
use super::new_file::{free_bytes, no_room, require_room};
use super::{Phase, Run, Table, chosen, names, usage};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::{self, TestFile};
use crate::measure::interleave::{Case, Stage, steps};
use crate::measure::meter::{Check, Sample};
use crate::measure::options::{Direction, Options};
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Buffer, Contents, Route, Stream};
use crate::report::figures::{mib, size_of};
use crate::report::notes::{Code, Note};
use crate::report::{Report, Row, fio, median};
use crate::sys::PAGE;
use crate::ways::{self, StreamWay, Written};

pub struct Dd {
    pub ways: &'static [&'static dyn StreamWay],
}

pub static DD: Dd = Dd { ways: ways::streamers() };

const BLOCKS: [usize; 6] = [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
const QUICK_BLOCKS: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 4, 16];
const QUICK_DEPTHS: [usize; 2] = [1, 16];
const QUICK_SIZE: u64 = 32 << 20;
/// Half an hour for all cases on a middling disk: every round takes the whole file.
const FULL_SIZE: u64 = 256 << 20;

/// Every direct request is a multiple of it.
pub const SECTOR: usize = 512;
/// The largest block, and the most that may be in flight.
pub const BLOCK_MAX: usize = 64 << 20;
const IN_FLIGHT_MAX: usize = 1 << 30;
/// Blocks of a new file that are looked at after a timed round, about: the disk has them within a
/// tenth of the time of a round.
const SAMPLED_BLOCKS: u64 = 64;
/// A share of the source's pages that does not matter.
const NEGLIGIBLE: u64 = 1000;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Processor time of the whole process, and of the command if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms_per_gib: Option<f64>,
    /// Pages of the source in the page cache after a round, the median; `None` without a source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_pages_cached: Option<f64>,
}

impl Figures {
    fn of(samples: &[Sample], cached_pages: &[u64]) -> Self {
        let pages: Vec<f64> = cached_pages.iter().map(|&pages| pages as f64).collect();
        Self {
            cpu_ms_per_gib: Some(cpu_ms_per_gib(samples)),
            source_pages_cached: (!pages.is_empty()).then(|| median(&pages)),
        }
    }
}

pub(super) fn cpu_ms_per_gib(samples: &[Sample]) -> f64 {
    let sum = |value: fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>();
    let gib = sum(|sample| sample.bytes as f64) / f64::from(1 << 30);
    sum(|sample| sample.usage.cpu_us()) / 1e3 / gib
}

fn cpu_cost(row: &Row) -> Option<f64> {
    row.figures::<Figures>().cpu_ms_per_gib
}

fn source_pages(row: &Row) -> Option<f64> {
    row.figures::<Figures>().source_pages_cached
}

impl Dd {
    fn directions(options: &Options) -> Vec<Direction> {
        let asked = |direction: &Direction| options.streams.is_empty() || options.streams.contains(direction);
        Direction::ALL.into_iter().filter(asked).collect()
    }

    fn blocks(options: &Options) -> Vec<usize> {
        options.or_usual(&options.blocks, &QUICK_BLOCKS, &BLOCKS)
    }

    fn depths(options: &Options) -> Vec<usize> {
        options.or_usual(&options.depths, &QUICK_DEPTHS, &DEPTHS)
    }

    /// Those that take part in any of these directions.
    fn suited(&self, directions: &[Direction]) -> Vec<&'static dyn StreamWay> {
        let suits = |way: &&dyn StreamWay| directions.iter().any(|&direction| way.suits(direction));
        self.ways.iter().copied().filter(suits).collect()
    }

    /// Those that can be used on this file's file system.
    fn usable(
        &self,
        directions: &[Direction],
        file: &TestFile,
        run: &mut Run<'_>,
    ) -> Result<Vec<&'static dyn StreamWay>> {
        let mut ways = run.usable_in(self.name(), &self.suited(directions));
        if allows_direct(file.path()).map_err(|error| Error::io("open with O_DIRECT", file.path(), &error))? {
            return Ok(ways);
        }
        let left_out: Vec<_> = ways.iter().filter(|way| way.direct()).map(|way| way.name()).collect();
        if !left_out.is_empty() {
            let left_out = left_out.join(", ");
            let text = format!("{}: {left_out} are left out: this file system refuses O_DIRECT", self.name());
            run.report.note(Code::DirectRefused, text);
        }
        ways.retain(|way| !way.direct());
        Ok(ways)
    }
}

impl Table for Dd {
    fn name(&self) -> &'static str {
        "dd"
    }

    fn about(&self) -> &'static str {
        "A whole file read, copied or written in order, by block size and depth, beside dd, cat and cp"
    }

    fn title(&self) -> &'static str {
        "dd: a whole file in order: read cold, copied or written, and synced; past the page cache or through it; MiB/s"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn compared(&self, row: &Row) -> f64 {
        mib(row.bytes_per_s)
    }

    fn ways(&self) -> Vec<&'static str> {
        names(self.ways)
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths", "--blocks", "--streams"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        let directions = Self::directions(options);
        if options.file.is_some() && directions.iter().any(|direction| direction.writes()) {
            return Err(usage("--file is only read; leave it out of dd, or say --streams read"));
        }
        let suited = self.suited(&directions);
        if chosen(&suited, options).is_empty() {
            let all = names(&suited).join(", ");
            return Err(usage(format!("none of --ways does this in the table {}; choose among {all}", self.name())));
        }
        let most = |numbers: Vec<usize>| numbers.into_iter().max().unwrap_or(0);
        if most(Self::blocks(options)) * most(Self::depths(options)) > IN_FLIGHT_MAX {
            let most = IN_FLIGHT_MAX >> 20;
            return Err(usage(format!(
                "the largest of --blocks times the largest of --depths is more than {most} MiB"
            )));
        }
        Ok(())
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(if options.quick { QUICK_SIZE } else { FULL_SIZE })
    }

    fn in_order(&self) -> bool {
        true
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::File {
            return Ok(());
        }
        let (file, dir, options, table) = (run.test_file()?, run.dir, run.options, self.name());
        let (directions, blocks, depths) = (Self::directions(options), Self::blocks(options), Self::depths(options));
        if directions.iter().any(|direction| direction.writes()) {
            let largest = blocks.iter().max().copied().unwrap_or(0) as u64;
            let free = free_bytes(&testfile::create_nameless(dir)?, dir)?;
            require_room(free, file.size().next_multiple_of(largest.max(1)), "--size", dir)?;
        }
        let ways = self.usable(&directions, file, run)?;
        let mut groups: Vec<Group<'_>> = Vec::new();
        for &direction in &directions {
            for &block in &blocks {
                let ways = ways.iter().copied().filter(|way| way.suits(direction));
                let all = ways.flat_map(|way| Contestant::all(way, direction, block, &depths));
                let contestants: Vec<Contestant> = all.collect();
                let cancel = run.cancel;
                groups.push(Group { table, direction, block, contestants, file, dir, options, cancel });
            }
        }
        run.progress.begin(table, groups.iter().map(|group| steps(group.ways(), options.rounds, false)).sum());
        for mut group in groups {
            group.require_direct_blocks()?;
            let name = format!("{} block={}", group.direction.name(), size_of(group.block));
            let ways: Vec<_> = group.contestants.iter().map(|one| one.way).collect();
            let timed = run.case(table, &name, &ways, &mut group)?;
            run.report.rows.extend(depths.iter().flat_map(|&depth| group.rows(&timed, depth)));
        }
        Ok(())
    }

    fn fio(&self, options: &Options, place: &fio::Place<'_>, jobs: &mut fio::Jobs) {
        for direction in Self::directions(options) {
            for block in Self::blocks(options) {
                for depth in Self::depths(options) {
                    jobs.stream(self.name(), &case(direction, block, depth), direction, block, depth, place);
                }
            }
        }
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Ways {
            name: "CPU ms per GiB",
            figure: cpu_cost,
            largest: ("source pages then cached", source_pages),
        }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            Column { name: "CPU ms/GiB", cell: |row| Some(format!("{:.0}", cpu_cost(row)?)) },
            Column { name: "source pages cached", cell: |row| Some(format!("{:.0}", source_pages(row)?)) },
        ];
        COLUMNS
    }

    /// Streams past the page cache that have left their source in it.
    fn traps(&self, report: &Report) -> Vec<Note> {
        let negligible = (report.environment.file_bytes / PAGE / NEGLIGIBLE) as f64;
        let direct = |name: &str| self.ways.iter().any(|way| way.name() == name && way.direct());
        let cached = |row: &&Row| {
            row.table == self.name() && direct(&row.way) && source_pages(row).is_some_and(|pages| pages > negligible)
        };
        let note = |row: &Row| {
            let (table, case, way, pages) = (&row.table, &row.case, &row.way, source_pages(row).unwrap_or(0.0));
            let text =
                format!("{table} {case}: {pages:.0} pages of the source were cached after a direct round of {way}");
            Note::new(Code::CachedUnderDirect, text)
        };
        report.rows.iter().find(cached).map(note).into_iter().collect()
    }
}

/// Returns whether the file can be opened past the page cache.
pub(crate) fn allows_direct(path: &Path) -> io::Result<bool> {
    match open_direct(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// `read block=16K depth=4`
fn case(direction: Direction, block: usize, depth: usize) -> String {
    format!("{} block={} depth={depth}", direction.name(), size_of(block))
}

/// The cases of one block size, measured together.
struct Group<'a> {
    table: &'a str,
    direction: Direction,
    block: usize,
    contestants: Vec<Contestant>,
    file: &'a TestFile,
    dir: &'a Path,
    options: &'a Options,
    cancel: &'a AtomicBool,
}

/// One way at one depth.
struct Contestant {
    way: &'static dyn StreamWay,
    depth: usize,
    case: String,
    /// Cached pages of the source after each timed round; none if there is no source.
    cached_pages: Vec<u64>,
}

impl Contestant {
    fn all(way: &'static dyn StreamWay, direction: Direction, block: usize, depths: &[usize]) -> Vec<Self> {
        let depths = if way.has_depth() { depths } else { &[1] };
        let one = |&depth| Self { way, depth, case: case(direction, block, depth), cached_pages: Vec::new() };
        depths.iter().map(one).collect()
    }
}

impl Case for Group<'_> {
    fn ways(&self) -> usize {
        self.contestants.len()
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let sample = self.stream(&self.contestants[way], stage == Stage::Verify)?;
        if self.direction.reads() && stage != Stage::Verify {
            self.contestants[way].cached_pages.push(self.file.cached_pages()?);
        }
        // Only now: of a user's file it reads pages.
        self.require_sampled(&self.contestants[way], sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let sample = self.stream(&self.contestants[way], stage == Stage::Verify)?;
        self.require_sampled(&self.contestants[way], sample)
    }
}

impl Group<'_> {
    fn rows(&self, timed: &[Vec<Sample>], depth: usize) -> Vec<Row> {
        let case = case(self.direction, self.block, depth);
        let here = self.contestants.iter().zip(timed).filter(|(one, _)| one.depth == depth || !one.way.has_depth());
        let row = |(one, samples): (&Contestant, &Vec<Sample>)| {
            Row::of(self.table, &case, one.way.name(), samples).with(Figures::of(samples, &one.cached_pages))
        };
        here.map(row).collect()
    }

    /// Disks whose own blocks are larger refuse small ones; better said once and at the start than
    /// by the first way.
    fn require_direct_blocks(&self) -> Result<()> {
        if !self.contestants.iter().any(|one| one.way.direct()) {
            return Ok(());
        }
        let mut buffer = Buffer::new(self.block);
        let read = open_direct(self.file.path()).and_then(|file| file.read_at(buffer.bytes(), 0));
        match read {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let text = format!(
                    "direct reads of {} bytes are refused in {}: {error}; use larger --blocks, such as 4K",
                    self.block,
                    self.dir.display()
                );
                Err(Error::new(ErrorKind::Usage, text))
            }
            Err(error) => Err(Error::io("read", self.file.path(), &error)),
            Ok(_) => Ok(()),
        }
    }

    fn turn<'b>(&'b self, contestant: &'b Contestant) -> Turn<'b> {
        Turn { way: contestant.way.name(), table: self.table, case: &contestant.case, cancel: self.cancel }
    }

    /// Gives the sample back if its checksums are those of the source, where there is one.
    fn require_sampled(&self, contestant: &Contestant, sample: Sample) -> Result<Sample> {
        if self.direction.reads() {
            self.turn(contestant).require_sampled(&sample, self.file)?;
        }
        Ok(sample)
    }

    /// One way, once; from a cold file, if it reads.
    fn stream(&self, contestant: &Contestant, verify: bool) -> Result<Sample> {
        let (&Contestant { way, depth, .. }, turn) = (contestant, self.turn(contestant));
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(self.file.size(), "--size", self.dir, &error.to_string())
            }
            _ => turn.failed(error),
        };
        let new = self.direction.writes().then(|| testfile::create_nameless(self.dir)).transpose()?;
        self.have_memory_at_hand(new.as_ref())?;
        // Also waits for what the round before has left to the journal.
        new.as_ref().map_or(Ok(()), File::sync_all).map_err(failed)?;
        if self.direction.reads() {
            self.file.make_cold()?;
        }

        let path = new.as_ref().map(|new| PathBuf::from(format!("/proc/self/fd/{}", new.as_raw_fd())));
        let mut buffer = Buffer::new(self.block * depth);
        let (from, contents) = (self.file.path(), Contents::new(self.options.seed));
        let route = match (path.as_deref(), self.direction) {
            (None, _) => Route::Read { from },
            (Some(to), Direction::Write) => Route::Write { contents, to },
            (Some(to), _) => Route::Copy { from, to },
        };
        if self.direction == Direction::Write {
            contents.prepare(buffer.bytes(), self.block);
        }
        let job = Stream { route, size: self.file.size(), block: self.block, depth, cancel: self.cancel };
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if verify && self.direction == Direction::Read { Some(&matches) } else { None };
        let outcome = alone(check, |round| way.stream(&job, buffer.bytes(), round));
        let (sample, ()) = turn.sample(outcome, failed)?;
        turn.require_right(&sample)?;
        turn.require("blocks", &sample, (job.blocks(), job.size))?;
        if let Some(new) = &new {
            if let Some(offset) = self.first_wrong(new, way, verify).map_err(failed)? {
                return Err(turn.failed(format!("what it wrote is wrong from byte {offset}")));
            }
            // Now, and not on the clock of whoever comes next.
            new.set_len(0).map_err(failed)?;
        }
        Ok(sample)
    }

    /// See [`TestFile::have_memory_at_hand`]; also for a hole as large as what is written.
    fn have_memory_at_hand(&self, new: Option<&File>) -> Result<()> {
        if self.direction.reads() {
            self.file.have_memory_at_hand()?;
        }
        let Some(new) = new.filter(|_| !self.file.takes_much_memory()) else { return Ok(()) };
        let failed = |error: io::Error| Error::io("prepare a new file in", self.dir, &error);
        new.set_len(self.file.size()).map_err(failed)?;
        let mut chunk = vec![0; 1 << 20];
        for offset in (0..self.file.size()).step_by(chunk.len()) {
            new.read_at(&mut chunk, offset).map_err(failed)?;
        }
        new.set_len(0).map_err(failed)
    }

    /// `None` if the new file is as long as it should be and has its bytes: `all` of them, or the
    /// last page of each of some blocks.
    fn first_wrong(&self, new: &File, way: &dyn StreamWay, all: bool) -> io::Result<Option<u64>> {
        let (size, wanted) = (new.metadata()?.len(), self.file.size());
        let (mut found, mut made) = (vec![0; self.block], vec![0; self.block]);
        let contents = (way.written() == Written::Contents).then(|| Contents::new(self.options.seed));
        if let Some(contents) = contents {
            contents.prepare(&mut made, self.block);
        }
        let end = size.min(wanted);
        let every = if all { 1 } else { (end / self.block as u64 / SAMPLED_BLOCKS).max(1) };
        for offset in (0..end).step_by(self.block * every as usize) {
            let len = self.block.min((end - offset) as usize);
            let part = if all { 0..len } else { len.saturating_sub(PAGE as usize)..len };
            let (found, start) = (&mut found[part.clone()], offset + part.start as u64);
            new.read_exact_at(found, start)?;
            if let Some(contents) = contents {
                contents.place(&mut made, offset);
            }
            let right = match self.direction {
                Direction::Write => *found == made[part],
                Direction::Read | Direction::Copy => self.file.matches(start, found),
            };
            if !right {
                return Ok(Some(offset));
            }
        }
        Ok((size != wanted).then(|| size.min(wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_direct_io_is_found_out() {
        assert!(!allows_direct(Path::new("/proc/self/status")).unwrap());
        assert!(allows_direct(Path::new("/nonexistent")).is_err());
    }
}
