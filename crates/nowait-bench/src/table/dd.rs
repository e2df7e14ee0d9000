//! The table `dd`: a whole file, read from its start to its end, copied or written, by block size and depth.
//!
//! Every round takes the whole file. What is read was verified to be cold. What is written goes into a new file without a name beside it,
//! as large as the test file, and ends with a sync. A copy begins with an empty file for all ways; so does what is written without being
//! read, but for the direct ways by hand, which find the room in their file allocated: what a growing file costs is to be seen. All ways of one block size take turns, at all their depths: those that know no depth once a round, and what they
//! gave stands beside each depth. A way's bytes are compared once for each of its cases, before it is timed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::{self, TestFile};
use crate::measure::meter::{Check, Round, Sample};
use crate::measure::run::Progress;
use crate::measure::work::{Buffer, Contents, Route, Stream};
use crate::report::notes::Code;
use crate::report::{Report, Row};
use crate::table::writes::{free_bytes, no_room, require_room};
use crate::ways::{StreamWay, Written};

pub const TABLE: &str = "dd";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Copy,
    Write,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Read, Self::Copy, Self::Write];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Copy => "copy",
            Self::Write => "write",
        }
    }

    pub fn reads(self) -> bool {
        self != Self::Write
    }

    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// Whether this way takes part.
    pub fn suits(self, way: &dyn StreamWay) -> bool {
        self.reads() || way.written() != Written::Nothing
    }
}

/// What to measure.
#[derive(Clone)]
pub struct Plan {
    pub ways: Vec<&'static dyn StreamWay>,
    pub kinds: Vec<Kind>,
    pub blocks: Vec<usize>,
    pub depths: Vec<usize>,
    pub rounds: usize,
    /// Of what is written without being read.
    pub seed: u64,
}

pub const BLOCKS: [usize; 6] = [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
pub const DEPTHS: [usize; 3] = [1, 4, 16];

/// What any direct I/O is a multiple of.
pub const SECTOR: usize = 512;
/// The largest block, and the most that may be in flight.
pub const BLOCK_MAX: usize = 64 << 20;
pub const IN_FLIGHT_MAX: usize = 1 << 30;

impl Plan {
    /// Measures with `file`, and writes as much into `dir`. What is complete is in `report`, even after an error or an interrupt.
    pub fn run(
        &self,
        file: &TestFile,
        dir: &Path,
        cancel: &AtomicBool,
        progress: &mut dyn Progress,
        report: &mut Report,
    ) -> Result<()> {
        if self.kinds.iter().any(|kind| kind.writes()) {
            let largest = self.blocks.iter().max().copied().unwrap_or(0) as u64;
            let free = free_bytes(&testfile::create_nameless(dir)?, dir)?;
            require_room(free, file.size().next_multiple_of(largest.max(1)), "--size", dir)?;
        }
        let mut ways = self.ways.clone();
        ways.retain(|way| match way.refused() {
            Some(why) => {
                report.note(Code::WayLeftOut, format!("{TABLE}: {} is left out: {why}", way.name()));
                false
            }
            None => true,
        });
        if !allows_direct(file.path()).map_err(|error| Error::io("open with O_DIRECT", file.path(), &error))? {
            let left_out: Vec<_> = ways.iter().filter(|way| way.direct()).map(|way| way.name()).collect();
            if !left_out.is_empty() {
                let left_out = left_out.join(", ");
                let text = format!("{TABLE}: {left_out} are left out: this file system refuses O_DIRECT");
                report.note(Code::DirectRefused, text);
            }
            ways.retain(|way| !way.direct());
        }
        let of_kind = |kind: Kind| ways.iter().copied().filter(move |&way| kind.suits(way));
        let turns = |way: &dyn StreamWay| if way.has_depth() { self.depths.len() } else { 1 };
        let turns: usize = self.kinds.iter().flat_map(|&kind| of_kind(kind)).map(turns).sum();
        progress.begin(TABLE, (self.blocks.len() * turns * (self.rounds + 1)) as u64);
        for &kind in &self.kinds {
            let ways: Vec<_> = of_kind(kind).collect();
            for &block in &self.blocks {
                progress.now(&format!("{} block={}", kind.name(), short(block)));
                let group = Group { plan: self, ways: &ways, kind, block, file, dir, cancel };
                report.rows.extend(group.measure(progress)?);
            }
        }
        Ok(())
    }
}

/// Whether the file can be opened past the page cache.
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

/// `512`, `16K`, `1M`
pub(crate) fn short(block: usize) -> String {
    match block {
        mib if mib % (1 << 20) == 0 => format!("{}M", mib >> 20),
        kib if kib % (1 << 10) == 0 => format!("{}K", kib >> 10),
        bytes => bytes.to_string(),
    }
}

/// `read block=16K depth=4`
pub(crate) fn case(kind: Kind, block: usize, depth: usize) -> String {
    format!("{} block={} depth={depth}", kind.name(), short(block))
}

/// The cases of one block size, measured together.
struct Group<'a> {
    plan: &'a Plan,
    ways: &'a [&'static dyn StreamWay],
    kind: Kind,
    block: usize,
    file: &'a TestFile,
    dir: &'a Path,
    cancel: &'a AtomicBool,
}

/// One way at one depth, and what it gave.
struct Contestant {
    way: &'static dyn StreamWay,
    depth: usize,
    samples: Vec<Sample>,
    /// Of the source, after each round; none if there is no source.
    cached_pages: Vec<u64>,
}

impl Group<'_> {
    fn measure(&self, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        self.require_direct_blocks()?;
        let mut contestants: Vec<Contestant> = self.ways.iter().flat_map(|&way| self.contestants(way)).collect();
        for contestant in &contestants {
            self.round(contestant, true)?;
            progress.step(1);
        }
        let count = contestants.len();
        for round in 0..self.plan.rounds {
            for turn in 0..count {
                let contestant = &mut contestants[(round + turn) % count];
                let sample = self.round(contestant, false)?;
                if self.kind.reads() {
                    contestant.cached_pages.push(self.file.cached_pages()?);
                }
                contestant.samples.push(sample);
                progress.step(1);
            }
        }
        let rows = self.plan.depths.iter().flat_map(|&depth| self.rows(&contestants, depth));
        Ok(rows.collect())
    }

    fn contestants(&self, way: &'static dyn StreamWay) -> impl Iterator<Item = Contestant> {
        let depths = if way.has_depth() { &self.plan.depths } else { &[1][..] };
        depths.iter().map(move |&depth| Contestant { way, depth, samples: Vec::new(), cached_pages: Vec::new() })
    }

    fn rows(&self, contestants: &[Contestant], depth: usize) -> impl Iterator<Item = Row> {
        let case = case(self.kind, self.block, depth);
        let here = contestants.iter().filter(move |one| one.depth == depth || !one.way.has_depth());
        here.map(move |one| {
            Row::of(TABLE, &case, one.way.name(), &one.samples).with_stream(&one.samples, &one.cached_pages)
        })
    }

    /// Disks whose own blocks are larger refuse small ones; better said once and at the start than by the first way.
    fn require_direct_blocks(&self) -> Result<()> {
        if !self.ways.iter().any(|way| way.direct()) {
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

    /// One way, once; from a cold file, if it reads.
    fn round(&self, contestant: &Contestant, verify: bool) -> Result<Sample> {
        let Contestant { way, depth, .. } = *contestant;
        let failed = |why: &str| {
            let (way, kind, block) = (way.name(), self.kind.name(), short(self.block));
            let text =
                format!("{way} failed in {TABLE} {kind} block={block} depth={depth}: {why}; leave it out with --ways");
            Error::new(ErrorKind::Other, text)
        };
        let io_failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(self.file.size(), "--size", self.dir, &error.to_string())
            }
            _ => failed(&error.to_string()),
        };
        let new = self.kind.writes().then(|| testfile::create_nameless(self.dir)).transpose()?;
        self.have_memory_at_hand(new.as_ref())?;
        // Also waits for what the round before has left to the journal.
        new.as_ref().map_or(Ok(()), File::sync_all).map_err(io_failed)?;
        if self.kind.reads() {
            self.file.make_cold()?;
        }

        let path = new.as_ref().map(|new| PathBuf::from(format!("/proc/self/fd/{}", new.as_raw_fd())));
        let mut buffer = Buffer::new(self.block * depth);
        let (from, contents) = (self.file.path(), Contents::new(self.plan.seed));
        let route = match (&path, self.kind) {
            (None, _) => Route::Read { from },
            (Some(to), Kind::Write) => Route::Write { contents, to },
            (Some(to), _) => Route::Copy { from, to },
        };
        if self.kind == Kind::Write {
            contents.prepare(buffer.bytes(), self.block);
        }
        let job = Stream { route, size: self.file.size(), block: self.block, depth, cancel: self.cancel };
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if verify && self.kind == Kind::Read { Some(&matches) } else { None };
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, check);
        let result = way.stream(&job, buffer.bytes(), &mut round);
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        result.map_err(io_failed)?;

        let sample = Sample::of(&[round]).ok_or_else(|| failed("it did not run its clock"))?;
        if let Some(offset) = sample.wrong {
            return Err(failed(&format!("it returned wrong bytes for offset {offset}")));
        }
        let (done, wanted) = ((sample.operations, sample.bytes), (job.blocks(), job.size));
        if done != wanted {
            return Err(failed(&format!("(blocks, bytes) are {done:?} instead of {wanted:?}")));
        }
        if let Some(new) = &new {
            let wrong = self.first_wrong(new, way, verify).map_err(io_failed)?;
            if let Some(offset) = wrong {
                return Err(failed(&format!("what it wrote is wrong from byte {offset}")));
            }
            // Now, and not on the clock of whoever comes next.
            new.set_len(0).map_err(io_failed)?;
        }
        Ok(sample)
    }

    /// See [`TestFile::have_memory_at_hand`]; also for a hole as large as what is written.
    fn have_memory_at_hand(&self, new: Option<&File>) -> Result<()> {
        if self.kind.reads() {
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

    /// `None` if the new file is as long as it should be, and has its bytes if they are asked for.
    fn first_wrong(&self, new: &File, way: &dyn StreamWay, bytes: bool) -> io::Result<Option<u64>> {
        let (size, wanted) = (new.metadata()?.len(), self.file.size());
        let (mut found, mut made) = (vec![0; self.block], vec![0; self.block]);
        let contents = (way.written() == Written::Contents).then(|| Contents::new(self.plan.seed));
        if let Some(contents) = contents {
            contents.prepare(&mut made, self.block);
        }
        let end = if bytes { size.min(wanted) } else { 0 };
        for offset in (0..end).step_by(self.block) {
            let found = &mut found[..self.block.min((end - offset) as usize)];
            new.read_exact_at(found, offset)?;
            if let Some(contents) = contents {
                contents.place(&mut made, offset);
            }
            let right = match self.kind {
                Kind::Write => *found == made[..found.len()],
                Kind::Read | Kind::Copy => self.file.matches(offset, found),
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
    fn block_sizes_are_short() {
        assert_eq!([512, 1536, 4096, 3 << 19, 1 << 20].map(short), ["512", "1536", "4K", "1536K", "1M"]);
    }

    #[test]
    fn a_file_system_without_direct_io_is_found_out() {
        assert!(!allows_direct(Path::new("/proc/self/status")).unwrap());
        assert!(allows_direct(Path::new("/nonexistent")).is_err());
    }
}
