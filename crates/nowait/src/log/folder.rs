//! A log's directory: names, and segments as files; everything that the log asks of the outside, but for the writes of blocks.
//!
//! Everything here blocks the thread.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Waker;

use rustix::io::Errno;

use super::format::{BlockHeader, HeaderPage, LogId, PAGE, SegmentHeader, seed};
use crate::buf::{Buf, Memory};
use crate::engine::owned;
use crate::error::{Error, ErrorKind, Operation as Name, Result};
use crate::file::{DirectIo, File, OpenOptions};
use crate::fs::Dir;
use crate::op::{Notify, Request, Slot, Transfer};
use crate::start::Nowait;
use crate::write::Allocate;

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
    /// A name that is not the log's.
    pub(super) other: Option<OsString>,
}

fn segment_name(number: u64) -> String {
    format!("{number:0DIGITS$}{SEGMENT_END}")
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_END)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| plain && *number > 0)
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
        let mut contents = Contents { numbers: Vec::new(), has_control: false, other: None };
        for name in self.dir.list()? {
            match name.to_str() {
                Some(CONTROL) => contents.has_control = true,
                Some(name) if segment_number(name).is_some() => contents.numbers.extend(segment_number(name)),
                // The last is of mke2fs(8), in the root of each file system.
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
        let name = segment_name(number);
        self.dir.rename(&name, &format!("{name}{DAMAGED_END}"), false)
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
        Error::new(Name::Recover, ErrorKind::Damaged).at(&path).range(offset, length).detail(what)
    }
}

/// Whether the file takes reads and writes past the page cache. (A simulated one has none.)
pub(super) fn is_direct(file: &File) -> bool {
    file.descriptor().is_none() || matches!(file.direct(), DirectIo::Granted { .. })
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
    ahead: VecDeque<(u64, Arc<Slot>)>,
    ahead_max: usize,
    pub(super) bytes_read: u64,
}

impl Window {
    pub(super) fn new(file: File) -> Window {
        Window {
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
                let no_memory = || Error::from_errno(Name::Read, Errno::NOMEM).at(&self.file.0.path);
                let mut larger = Buf::uncleared(wanted).ok_or_else(no_memory)?;
                larger[..kept].copy_from_slice(&self.buffer[..kept]);
                self.buffer = larger;
            }
            (self.start, self.filled) = (offset, kept);
            self.collect_ahead()?;
            if self.filled < length {
                let n = self.file.read_into(&mut self.buffer[self.filled..], offset + self.filled as u64)?;
                self.filled += n;
                self.bytes_read += n as u64;
            }
            self.read_ahead();
        }
        let from = (offset - self.start) as usize;
        Ok(&self.buffer[from..self.filled.min(from + length)])
    }

    /// Takes what was read ahead, as long as it goes on where the bytes that are there end, and there is room.
    fn collect_ahead(&mut self) -> Result<()> {
        while self.buffer.len() - self.filled >= self.piece {
            let Some((offset, slot)) = self.ahead.pop_front() else { break };
            if offset != self.start + self.filled as u64 {
                // Somebody looks elsewhere.
                slot.abandon();
                self.forget_ahead();
                break;
            }
            let (outcome, mut request) = owned::drive(poll_fn(|context| slot.poll(context)));
            let failed = |errno| self.file.0.error(Name::Read, errno).range(offset, self.piece as u64);
            outcome.map_err(failed)?;
            if let Request::Read(transfer) = &mut request {
                let n = transfer.done();
                if let Memory::Buf(bytes) = transfer.take_memory() {
                    self.buffer[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
                    self.filled += n;
                    self.bytes_read += n as u64;
                }
            }
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
            let request = Request::Read(Transfer::new(Memory::Buf(buffer), offset));
            // This thread does not sleep in its own queue until the bytes are asked for.
            let submit = || self.file.0.target().submit(request, Notify::Waker(Waker::noop().clone()));
            self.ahead.push_back((offset, owned::elsewhere(submit)));
        }
    }

    fn forget_ahead(&mut self) {
        self.ahead.drain(..).for_each(|(_, slot)| slot.abandon());
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
        self.forget_ahead();
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.forget_ahead();
    }
}

/// What blocks prove by being whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    /// The highest, and where its block is.
    pub(super) watermark: u64,
    pub(super) offset: u64,
    /// One of them is not the first of the segment.
    pub(super) beyond_first: bool,
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
    /// The first page of a file that bears a segment's name.
    pub(super) fn header(file: File, log_id: &LogId, number: u64) -> Result<(HeaderPage, Window)> {
        let mut window = Window::new(file);
        window.piece = PAGE;
        let page = SegmentHeader::decode(window.at(0, PAGE)?, log_id, number);
        Ok((page, window))
    }

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

    /// What whole blocks from here on prove, wherever they lie, of epochs from `epoch_min` on.
    pub(super) fn proof_behind(&mut self, epoch_min: u64) -> Result<Option<Proof>> {
        let mut found: Option<Proof> = None;
        let mut offset = self.offset.max(PAGE as u64);
        while offset < self.bytes {
            let page = self.window.at(offset, PAGE)?;
            if page.len() < PAGE {
                break;
            }
            let Some(header) = BlockHeader::peek(page, offset).filter(|header| header.epoch >= epoch_min) else {
                offset += PAGE as u64;
                continue;
            };
            let seed = seed(&self.log_id, self.number, header.epoch);
            match self.whole(offset, header.epoch, seed)? {
                Some(header) => {
                    let beyond_first = offset > PAGE as u64 || found.is_some_and(|found| found.beyond_first);
                    let best = found.filter(|found| found.watermark >= header.watermark);
                    let best = best.unwrap_or(Proof { watermark: header.watermark, offset, beyond_first });
                    found = Some(Proof { beyond_first, ..best });
                    offset += header.padded_bytes() as u64;
                }
                None => offset += PAGE as u64,
            }
        }
        Ok(found)
    }

    /// The page where the next block is looked for.
    pub(super) fn page(&mut self) -> Result<&[u8]> {
        self.window.at(self.offset, PAGE)
    }

    /// Reads the next block, to be found by [`Blocks::next`], without blocking the thread.
    pub(super) async fn load(&mut self) -> Result<()> {
        self.window.forget();
        self.window.load(self.offset, PAGE).await?;
        let offset = self.offset;
        if let Some(header) = BlockHeader::peek(self.page()?, offset) {
            if self.bytes.saturating_sub(self.offset) >= header.padded_bytes() as u64 {
                self.window.load(self.offset, header.padded_bytes()).await?;
            }
        }
        Ok(())
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.window.bytes_read
    }

    pub(super) fn forget(&mut self) {
        self.window.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_segments() {
        assert_eq!(segment_name(7), "00000000000000000007.seg");
        for number in [1, 7, u64::MAX] {
            assert_eq!(segment_number(&segment_name(number)), Some(number));
        }
        for other in
            ["7.seg", "00000000000000000000.seg", "+0000000000000000007.seg", "00000000000000000007.seg.damaged"]
        {
            assert_eq!(segment_number(other), None);
        }
    }
}
