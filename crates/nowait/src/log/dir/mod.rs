//! A log's directory: names, and segments as files; everything that the log asks of the outside, but for the writes of blocks.
//!
//! Everything here blocks the thread.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::format::{
    BlockHeader, Control, End, LogId, NUMBER_MAX, PAGE, SegmentHeader, begin_checksum, checksum, checksum_beside, seed,
};
use crate::core::instance::Nowait;
use crate::engine::local;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{DirectIo, File, OpenOptions};
use crate::fs::Dir;
use crate::write::Allocate;
use crate::{Buf, Moved, Started};

pub(super) const CONTROL: &str = "control";
pub(super) const CONTROL_TEMPORARY: &str = "control.tmp";
pub(super) const CALIBRATION: &str = "calibrate.tmp";
pub(super) const LOCK: &str = "lock";
const PREPARED: &str = "prepare-";
const TEMPORARY_END: &str = ".tmp";
const DAMAGED_END: &str = ".damaged";
const SEGMENT_END: &str = ".seg";
const DIGITS: usize = 20;

/// Bytes of one read of a segment.
const PIECE_BYTES: usize = 1 << 20;
/// Reads in flight beside the one that is looked at, so that the disk works while blocks are checked.
const AHEAD: usize = 2;
/// Of one read for somebody who follows the end.
const LOAD_BYTES: usize = 64 << 10;
/// Of one write of zeros: small, for commits that come in between.
const ZEROS_BYTES: usize = 256 << 10;

/// The directory is held open from beginning to end: a log stays where it is when its directory is renamed, or the process goes to another.
#[derive(Clone)]
pub(super) struct Folder {
    pub(super) instance: Nowait,
    /// What it was called when it was opened; for errors.
    pub(super) path: Arc<Path>,
    dir: Dir,
}

/// What a directory holds, by the names in it.
pub(super) struct Contents {
    /// Of segments, in order.
    pub(super) numbers: Vec<u64>,
    pub(super) has_control: bool,
    /// What salvages took out, by name.
    pub(super) aside: Vec<String>,
    /// A name that is not the log's.
    pub(super) other: Option<OsString>,
}

fn segment_name(number: u64) -> String {
    format!("{number:0DIGITS$}{SEGMENT_END}")
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_END)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| plain && (1..=NUMBER_MAX).contains(number))
}

/// The number of the segment that a salvage put aside under this name, once, or for the second time or more often.
pub(super) fn aside_number(name: &str) -> Option<u64> {
    let name = name.strip_suffix(DAMAGED_END)?;
    let end = name.find(SEGMENT_END)? + SEGMENT_END.len();
    segment_number(&name[..end])
}

/// What a preparation or a replacement leaves that was cut off, and nothing else.
fn is_leftover(name: &str) -> bool {
    let number = || name.strip_prefix(PREPARED)?.strip_suffix(TEMPORARY_END)?.parse::<u64>().ok();
    name == CONTROL_TEMPORARY || name == CALIBRATION || number().is_some_and(|number| prepared_name(number) == name)
}

fn prepared_name(number: u64) -> String {
    format!("{PREPARED}{number}{TEMPORARY_END}")
}

impl Folder {
    pub(super) fn open_dir(instance: &Nowait, path: &Path) -> Result<Folder> {
        let dir = Dir::open(instance, path)?;
        Ok(Folder { instance: instance.clone(), path: dir.path.clone(), dir })
    }

    /// The directory's descriptor; None on a simulator.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.dir.descriptor()
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn segment_path(&self, number: u64) -> PathBuf {
        self.join(&segment_name(number))
    }

    pub(super) fn contents(&self) -> Result<Contents> {
        let mut contents = Contents { numbers: Vec::new(), has_control: false, aside: Vec::new(), other: None };
        for name in self.dir.list()? {
            match name.to_str() {
                Some(CONTROL) => contents.has_control = true,
                Some(name) if segment_number(name).is_some() => contents.numbers.extend(segment_number(name)),
                // The last is of mke2fs(8), in the root of each file system.
                Some(name) if aside_number(name).is_some() => contents.aside.push(name.to_owned()),
                Some(name) if is_leftover(name) || name == LOCK || name == "lost+found" => {}
                _ => contents.other = contents.other.or(Some(name)),
            }
        }
        Ok(contents)
    }

    /// Removes what a preparation or a replacement left that was cut off.
    pub(super) fn clean(&self) -> Result<()> {
        for name in self.dir.list()? {
            if let Some(name) = name.to_str().filter(|name| is_leftover(name)) {
                self.dir.remove(name)?;
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, number: u64, write: bool, direct: bool) -> Result<File> {
        self.open_file(OpenOptions::new().read(true).write(write).direct(direct), &segment_name(number))
    }

    pub(super) fn open_file(&self, options: &OpenOptions, name: &str) -> Result<File> {
        self.dir.open_file(options, name)
    }

    pub(super) fn remove_file(&self, name: &str) -> Result<()> {
        self.dir.remove(name)
    }

    /// Makes the control file that was written under another name the one that counts, durably.
    pub(super) fn replace_control(&self) -> Result<()> {
        self.dir.rename(CONTROL_TEMPORARY, CONTROL, true)?;
        self.sync()
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.dir.sync()
    }

    pub(super) fn sync_parent(&self) -> Result<()> {
        self.dir.sync_parent()
    }

    pub(super) fn remove(&self, number: u64) -> Result<()> {
        self.dir.remove(&segment_name(number))
    }

    /// Gives a segment that is not needed any more the number of one to come.
    pub(super) fn renumber(&self, from: u64, to: u64) -> Result<()> {
        self.dir.rename(&segment_name(from), &segment_name(to), false)
    }

    pub(super) fn put_aside(&self, number: u64) -> Result<()> {
        self.name_aside(&segment_name(number), number)
    }

    /// Gives a file a name under which nothing is looked at again. One segment may be put aside several times.
    fn name_aside(&self, from: &str, number: u64) -> Result<()> {
        let name = segment_name(number);
        let mut aside = format!("{name}{DAMAGED_END}");
        for again in 2..=u32::MAX {
            match self.dir.rename(from, &aside, false) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    aside = format!("{name}.{again}{DAMAGED_END}")
                }
                other => return other,
            }
        }
        Err(Error::new(ErrorOp::Rename, ErrorKind::AlreadyExists).at(&Arc::from(self.join(&name))))
    }

    /// Puts a copy of a segment aside, durably but for its name. What cannot be read is zeros in it, and zeros take no room.
    pub(super) fn copy_aside(&self, number: u64, bytes: u64, direct: bool) -> Result<()> {
        let temporary = prepared_name(number);
        let made = (|| {
            let mut window = Window::past_errors(self.open(number, false, direct)?);
            let copy = self.open_file(OpenOptions::new().write(true).create(true).truncate(true), &temporary)?;
            copy.set_len(bytes).wait()?;
            let mut at = 0;
            while at < bytes {
                let page = window.at(at, PAGE)?;
                if page.is_empty() {
                    break;
                }
                if page.iter().any(|byte| *byte != 0) {
                    copy.write_all_from(page, at)?;
                }
                at += page.len() as u64;
            }
            copy.sync_all().wait()?;
            drop(copy);
            self.name_aside(&temporary, number)
        })();
        if made.is_err() {
            let _ = self.dir.remove(&temporary);
        }
        made
    }

    /// Makes a segment of zeros that are written, not only reserved: a write into space that is only reserved has the file system note
    /// that it is written now, and wait for its journal. `pause` is called after each piece,
    /// and may end it.
    pub(super) fn prepare(
        &self,
        number: u64,
        bytes: u64,
        direct: bool,
        mut pause: impl FnMut() -> Result<()>,
    ) -> Result<File> {
        // Of its own: whoever prepares another must not write zeros over this one, once it is used.
        let temporary = prepared_name(number);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).direct(direct);
        let made = (|| {
            let file = self.open_file(&options, &temporary)?;
            match file.allocate(Allocate::Reserve, 0, bytes).wait() {
                Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error),
                _ => {}
            }
            let zeros = Buf::zeroed(ZEROS_BYTES.min(bytes as usize));
            let mut at = 0;
            while at < bytes {
                let length = (bytes - at).min(zeros.len() as u64);
                file.write_all_from(&zeros[..length as usize], at)?;
                at += length;
                pause()?;
            }
            file.sync_all().wait()?;
            drop(file);
            self.dir.rename(&temporary, &segment_name(number), false)?;
            self.sync()?;
            self.open(number, true, direct)
        })();
        if made.is_err() {
            let _ = self.dir.remove(&temporary);
        }
        made
    }

    pub(super) fn damage(&self, number: u64, offset: u64, length: u64, what: impl Into<String>) -> Error {
        let path: Arc<Path> = Arc::from(self.segment_path(number));
        Error::new(ErrorOp::Recover, ErrorKind::Damaged).at(&path).range(offset, length).detail(what)
    }
}

/// Whether the file takes reads and writes past the page cache. (A simulated one does, unless it says that it does not.)
pub(super) fn is_direct(file: &File) -> bool {
    match file.direct() {
        DirectIo::Granted { .. } => true,
        DirectIo::NotAsked => file.descriptor().is_none(),
        DirectIo::Refused => false,
    }
}

/// A part of a file that the device cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// Bytes of it, in whole pages.
    pub bytes: Range<u64>,
    /// What the kernel says.
    pub what: String,
}

/// Reads a segment in order.
pub(super) struct Window {
    file: File,
    buffer: Buf,
    /// Place of its first byte, and how much is there.
    start: u64,
    filled: usize,
    /// What is read at a time.
    piece: usize,
    /// The pieces that follow what is there, under way, and how many there may be.
    ahead: VecDeque<(u64, Started<Moved<Buf>>)>,
    ahead_max: usize,
    pub(super) bytes_read: u64,
    /// What the device cannot read is zeros, and noted here. None: it is an error.
    unreadable: Option<Vec<Unreadable>>,
}

/// Errors that tell of the place that is read, not of the request (`blk_errors` of block/blk-core.c; checksums of btrfs and xfs).
fn is_of_the_place(error: &Error) -> bool {
    const ERRNOS: [Errno; 7] =
        [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN, Errno::TIMEDOUT];
    error.raw_os_error().is_some_and(|errno| ERRNOS.iter().any(|known| known.raw_os_error() == errno))
}

impl Window {
    /// For recovery, which goes on behind what cannot be read, page by page.
    pub(super) fn past_errors(file: File) -> Window {
        let mut window = Window::new(file);
        window.unreadable = Some(Vec::new());
        window
    }

    pub(super) fn new(file: File) -> Window {
        Window {
            unreadable: None,
            file,
            buffer: Buf::default(),
            start: 0,
            filled: 0,
            piece: PIECE_BYTES,
            ahead: VecDeque::new(),
            ahead_max: 0,
            bytes_read: 0,
        }
    }

    /// For a look at single pages.
    pub(super) fn by_page(mut self) -> Window {
        self.piece = PAGE;
        self
    }

    /// `length` bytes at `offset`, or as many as the file has there.
    pub(super) fn at(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        let there = self.start..self.start + self.filled as u64;
        if !(there.contains(&offset) && offset + length as u64 <= there.end) {
            // What is there already is not read again, for it may be much of a large block.
            let kept = if there.contains(&offset) {
                let from = (offset - self.start) as usize;
                self.buffer.copy_within(from..self.filled, 0);
                self.filled - from
            } else {
                0
            };
            let wanted = match self.ahead_max {
                0 => length.next_multiple_of(PAGE).max(self.piece),
                // Room for whole pieces behind what is kept.
                _ => kept + length.next_multiple_of(self.piece),
            };
            if self.buffer.len() < wanted {
                let no_memory = || Error::from_errno(ErrorOp::Read, Errno::NOMEM).at(&self.file.0.path);
                let mut larger = Buf::uncleared(wanted).ok_or_else(no_memory)?;
                larger[..kept].copy_from_slice(&self.buffer[..kept]);
                self.buffer = larger;
            }
            (self.start, self.filled) = (offset, kept);
            self.collect_ahead()?;
            if self.filled < length {
                let n = self.fill(self.filled..self.buffer.len())?;
                self.filled += n;
                self.bytes_read += n as u64;
            }
            self.read_ahead();
        }
        let from = (offset - self.start) as usize;
        Ok(&self.buffer[from..self.filled.min(from + length)])
    }

    /// Reads into a part of the buffer; gives how much the file has there.
    fn fill(&mut self, part: Range<usize>) -> Result<usize> {
        let offset = self.start + part.start as u64;
        let error = match self.file.read_into(&mut self.buffer[part.clone()], offset) {
            Err(error) if self.unreadable.is_some() && is_of_the_place(&error) => error,
            answer => return answer,
        };
        if part.len() > PAGE {
            let half = (part.len() / 2).next_multiple_of(PAGE);
            let n = self.fill(part.start..part.start + half)?;
            return if n < half { Ok(n) } else { Ok(n + self.fill(part.start + half..part.end)?) };
        }
        self.buffer[part.clone()].fill(0);
        let end = offset + part.len() as u64;
        let unreadable = self.unreadable.get_or_insert_default();
        // It may be looked at again.
        if !unreadable.iter().any(|known| known.bytes.contains(&offset)) {
            match unreadable.last_mut().filter(|last| last.bytes.end == offset) {
                Some(last) => last.bytes.end = end,
                None => {
                    let path = self.file.path().into();
                    unreadable.push(Unreadable { path, bytes: offset..end, what: error.to_string() });
                }
            }
        }
        Ok(part.len())
    }

    /// What of a range could not be read so far.
    fn is_unreadable(&self, range: Range<u64>) -> bool {
        let touches = |known: &Unreadable| known.bytes.start < range.end && range.start < known.bytes.end;
        self.unreadable.iter().flatten().any(touches)
    }

    pub(super) fn take_unreadable(&mut self) -> Vec<Unreadable> {
        self.unreadable.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes what was read ahead, as long as it goes on where the bytes that are there end, and there is room.
    fn collect_ahead(&mut self) -> Result<()> {
        while self.buffer.len() - self.filled >= self.piece {
            let Some((offset, read)) = self.ahead.pop_front() else { break };
            if offset != self.start + self.filled as u64 {
                // Somebody looks elsewhere.
                self.ahead.clear();
                break;
            }
            let (n, bytes) = match read.wait() {
                // It is read again, page by page.
                Err(failed) if self.unreadable.is_some() && is_of_the_place(&failed.error) => {
                    self.ahead.clear();
                    break;
                }
                read => read?,
            };
            self.buffer[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            self.bytes_read += n as u64;
        }
        Ok(())
    }

    /// Keeps reads of the next pieces under way.
    fn read_ahead(&mut self) {
        // A simulated disk goes on when it is told to.
        let depth = if self.file.descriptor().is_some() { self.ahead_max } else { 0 };
        while self.ahead.len() < depth {
            let end = self.start + self.filled as u64;
            let offset = self.ahead.back().map_or(end, |(offset, _)| offset + self.piece as u64);
            let Some(buffer) = Buf::uncleared(self.piece) else { return };
            // This thread does not sleep in its own queue until the bytes are asked for.
            let read = local::elsewhere(|| self.file.read_at(buffer, offset).submit());
            self.ahead.push_back((offset, read));
        }
    }

    /// As [`Window::at`], without blocking the thread: `at` finds the bytes there.
    pub(super) async fn load(&mut self, offset: u64, length: usize) -> Result<()> {
        let there = self.start..self.start + self.filled as u64;
        if !(there.contains(&offset) && offset + length as u64 <= there.end) {
            let buffer = Buf::zeroed(length.next_multiple_of(PAGE).max(LOAD_BYTES));
            let (n, buffer) = self.file.read_at(buffer, offset).await?;
            (self.buffer, self.start, self.filled) = (buffer, offset, n);
            self.bytes_read += n as u64;
        }
        Ok(())
    }

    /// What was read of what may have been written since is read again.
    pub(super) fn forget(&mut self) {
        self.filled = 0;
        self.unreadable.iter_mut().for_each(Vec::clear);
        self.ahead.clear();
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.ahead.clear();
    }
}

/// Whole blocks behind a place where none goes on.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// The highest watermark of one of them, and where that is.
    pub(super) proof: Option<(u64, u64)>,
    /// One of them is not the first of the segment.
    pub(super) beyond_first: bool,
    /// Their records, by place.
    pub(super) runs: Vec<Run>,
}

/// Blocks of which each goes on where the one before ends, in place and in LSN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) segment: u64,
    /// The name of the file, where that is not the segment's.
    pub(super) aside: Option<Arc<str>>,
    pub(super) epoch: u64,
    pub(super) bytes: Range<u64>,
    pub(super) lsns: Range<u64>,
}

impl Behind {
    /// In order of place.
    fn add(&mut self, segment: u64, header: &BlockHeader) {
        let (start, end) = (header.offset, header.offset + header.padded_bytes() as u64);
        if self.proof.is_none_or(|(watermark, _)| watermark < header.watermark) {
            self.proof = Some((header.watermark, start));
        }
        self.beyond_first |= start > PAGE as u64;
        let lsns = header.first_lsn..header.first_lsn + u64::from(header.records);
        let goes_on =
            |run: &&mut Run| run.bytes.end == start && run.lsns.end == lsns.start && run.epoch == header.epoch;
        match self.runs.last_mut().filter(goes_on) {
            Some(run) => (run.bytes.end, run.lsns.end) = (end, lsns.end),
            None if header.records == 0 => {}
            None => self.runs.push(Run { segment, aside: None, epoch: header.epoch, bytes: start..end, lsns }),
        }
    }
}

/// What may be a block: its header says so, and where it would end has not been reached.
struct Candidate {
    header: BlockHeader,
    /// The checksum so far, and what it must be in the end.
    crc: u32,
    sum: u32,
    /// What the checksum of all pages was behind the first one of the block.
    then: u32,
    is_whole: Option<bool>,
}

/// A segment's blocks.
pub(super) struct Blocks {
    window: Window,
    pub(super) number: u64,
    log_id: LogId,
    epoch: u64,
    seed: u32,
    /// Size of the segment.
    bytes: u64,
    /// Where the next block is looked for, and the record that it begins with.
    pub(super) offset: u64,
    pub(super) next_lsn: u64,
}

impl Blocks {
    pub(super) fn new(mut window: Window, header: &SegmentHeader) -> Blocks {
        window.piece = PIECE_BYTES.min(header.bytes as usize).max(PAGE);
        Blocks {
            window,
            number: header.number,
            log_id: header.log_id,
            epoch: header.epoch,
            seed: seed(&header.log_id, header.number, header.epoch),
            bytes: header.bytes,
            offset: PAGE as u64,
            next_lsn: header.first_lsn(),
        }
    }

    /// Those of a run.
    pub(super) fn of_run(window: Window, control: &Control, run: &Run) -> Blocks {
        let Control { log_id, segment_bytes: bytes, .. } = *control;
        let previous = End { lsn: run.lsns.start - 1, ..End::default() };
        let (number, epoch) = (run.segment, run.epoch);
        let mut blocks = Blocks::new(window, &SegmentHeader { log_id, number, epoch, bytes, watermark: 0, previous });
        blocks.offset = run.bytes.start;
        blocks
    }

    /// For somebody who will look at all of them.
    pub(super) fn reading_ahead(mut self) -> Blocks {
        self.window.ahead_max = AHEAD;
        self
    }

    /// The block that goes on where the last one ended; None if there is no whole one.
    pub(super) fn next(&mut self) -> Result<Option<(BlockHeader, &[u8])>> {
        let (offset, lsn, epoch) = (self.offset, self.next_lsn, self.epoch);
        let goes_on = |header: &BlockHeader| header.epoch == epoch && header.first_lsn == lsn;
        let Some(header) = self.whole(offset, epoch, self.seed)?.filter(goes_on) else { return Ok(None) };
        self.offset += header.padded_bytes() as u64;
        self.next_lsn += u64::from(header.records);
        Ok(Some((header, self.window.at(offset, header.padded_bytes())?)))
    }

    fn whole(&mut self, offset: u64, epoch: u64, seed: u32) -> Result<Option<BlockHeader>> {
        let Some(header) = BlockHeader::peek(self.window.at(offset, PAGE)?, offset) else { return Ok(None) };
        let length = header.padded_bytes();
        if header.epoch != epoch || self.bytes.saturating_sub(offset) < length as u64 {
            return Ok(None);
        }
        Ok(header.is_whole(self.window.at(offset, length)?, seed).then_some(header))
    }

    /// Finds the whole blocks that lie behind the place where the next one is looked for, of those whose header `may_be` of them. Goes over
    /// each byte a bounded number of times, whatever the bytes: what says that it is a block may be of any length, and may overlap others.
    pub(super) fn behind(&mut self, may_be: impl Fn(&BlockHeader) -> bool) -> Result<Behind> {
        let mut found = Behind::default();
        // In order of place, from number `first` on; those that are decided go at the front.
        let mut candidates: VecDeque<Candidate> = VecDeque::new();
        let mut first = 0;
        let mut ends: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        // Of all pages since there was a candidate.
        let mut running = 0;
        // What lies in a whole block is none.
        let mut inside_until = 0;
        let mut offset = self.offset.max(PAGE as u64);
        while offset < self.bytes {
            let page = self.window.at(offset, PAGE)?;
            if page.len() < PAGE {
                break;
            }
            let next = offset + PAGE as u64;
            while let Some(&Reverse((end, number))) = ends.peek().filter(|Reverse((end, _))| *end <= next) {
                ends.pop();
                let Some(candidate) = number.checked_sub(first).and_then(|at| candidates.get_mut(at as usize)) else {
                    continue;
                };
                let middle = offset - (candidate.header.offset + PAGE as u64);
                let crc = checksum_beside(candidate.crc, candidate.then, running, middle);
                candidate.is_whole = Some(checksum(crc, &page[..(end - offset) as usize]) == candidate.sum);
            }
            let header = BlockHeader::peek(page, offset).filter(|header| {
                let fits = self.bytes - offset >= header.padded_bytes() as u64;
                fits && may_be(header)
            });
            if let Some(header) = header.filter(|_| offset >= inside_until) {
                let in_page = (header.end().min(next) - offset) as usize;
                let (crc, sum) = begin_checksum(&page[..in_page], seed(&self.log_id, self.number, header.epoch));
                let is_whole = (header.end() <= next).then_some(crc == sum);
                if is_whole.is_none() {
                    ends.push(Reverse((header.end(), first + candidates.len() as u64)));
                }
                candidates.push_back(Candidate { header, crc, sum, then: checksum(running, page), is_whole });
            }
            running = if candidates.is_empty() { 0 } else { checksum(running, page) };
            first += commit(&mut candidates, false, self.number, &mut inside_until, &mut found);
            offset = next;
        }
        commit(&mut candidates, true, self.number, &mut inside_until, &mut found);
        Ok(found)
    }

    /// Something of the block that is looked for next cannot be read.
    pub(super) fn is_unreadable(&mut self) -> Result<bool> {
        let offset = self.offset;
        let length =
            BlockHeader::peek(self.window.at(offset, PAGE)?, offset).map_or(PAGE, |header| header.padded_bytes());
        let end = offset.saturating_add(length as u64).min(self.bytes);
        Ok(offset < end && self.window.is_unreadable(offset..end))
    }

    /// Why the block that is looked for next is not whole, if it is for an error of the device.
    pub(super) fn read_error(&mut self) -> Option<Error> {
        match self.is_unreadable() {
            Err(error) => return Some(error),
            Ok(false) => return None,
            Ok(true) => {}
        }
        let Unreadable { path, bytes, what } = self.take_unreadable().pop()?;
        let error = Error::new(ErrorOp::Read, ErrorKind::Io).at(&Arc::from(path));
        Some(error.range(bytes.start, bytes.end - bytes.start).detail(what))
    }

    /// A block of this segment was begun where none is whole. What the file held before it was used again has lower LSNs, or another
    /// epoch.
    pub(super) fn is_begun(&mut self) -> Result<bool> {
        let (offset, epoch, lsn) = (self.offset, self.epoch, self.next_lsn);
        let header = BlockHeader::peek(self.window.at(offset, PAGE)?, offset);
        Ok(header.is_some_and(|header| header.epoch == epoch && header.first_lsn == lsn))
    }

    pub(super) fn take_unreadable(&mut self) -> Vec<Unreadable> {
        self.window.take_unreadable()
    }

    /// Reads the next block, to be found by [`Blocks::next`], without blocking the thread.
    pub(super) async fn load(&mut self) -> Result<()> {
        self.window.forget();
        self.window.load(self.offset, PAGE).await?;
        let offset = self.offset;
        if let Some(header) = BlockHeader::peek(self.window.at(offset, PAGE)?, offset) {
            if self.bytes.saturating_sub(self.offset) >= header.padded_bytes() as u64 {
                self.window.load(self.offset, header.padded_bytes()).await?;
            }
        }
        Ok(())
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.window.bytes_read
    }

    pub(super) fn forget(&mut self) {
        self.window.forget();
    }
}

/// Takes what is decided from the front, and all of it at the end, where what has not ended is not whole; gives how many.
fn commit(
    candidates: &mut VecDeque<Candidate>,
    at_end: bool,
    segment: u64,
    inside_until: &mut u64,
    found: &mut Behind,
) -> u64 {
    let mut taken = 0;
    while let Some(candidate) = candidates.pop_front() {
        let offset = candidate.header.offset;
        if !at_end && candidate.is_whole.is_none() && offset >= *inside_until {
            candidates.push_front(candidate);
            break;
        }
        taken += 1;
        if candidate.is_whole == Some(true) && offset >= *inside_until {
            *inside_until = offset + candidate.header.padded_bytes() as u64;
            found.add(segment, &candidate.header);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_segments() {
        assert_eq!(aside_number("00000000000000000007.seg.damaged"), Some(7));
        assert_eq!(aside_number("00000000000000000007.seg.2.damaged"), Some(7));
        assert_eq!(aside_number("notes.damaged"), None);
        assert_eq!(segment_name(7), "00000000000000000007.seg");
        for number in [1, 7, NUMBER_MAX] {
            assert_eq!(segment_number(&segment_name(number)), Some(number));
        }
        for other in [
            "7.seg",
            "18446744073709551615.seg",
            "00000000000000000000.seg",
            "+0000000000000000007.seg",
            "00000000000000000007.seg.damaged",
        ] {
            assert_eq!(segment_number(other), None);
        }
    }
}
