//! A log's directory: names, and segments as files; everything that the log asks of the outside, but for the writes of blocks.
//!
//! Everything here blocks the thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Waker;

use rustix::io::Errno;

use super::format::{BlockHeader, HeaderPage, LogId, PAGE, SegmentHeader, seed};
use crate::buf::{Buf, Memory};
use crate::engine::owned;
use crate::error::{Error, ErrorKind, Operation as Name, Result};
use crate::file::{DirectIo, File, OpenOptions};
use crate::fs;
use crate::op::{Notify, Request, Slot, Transfer};
use crate::start::Nowait;
use crate::write::Allocate;

pub(super) const CONTROL: &str = "control";
pub(super) const LOCK: &str = "lock";
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

#[derive(Clone)]
pub(super) struct Folder {
    pub(super) instance: Nowait,
    pub(super) path: Arc<Path>,
}

fn segment_name(number: u64) -> String {
    format!("{number:0DIGITS$}{SEGMENT_END}")
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_END)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| plain && *number > 0)
}

impl Folder {
    pub(super) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn segment_path(&self, number: u64) -> PathBuf {
        self.join(segment_name(number))
    }

    /// Numbers of the segments, in order; and whether there is anything of a log at all.
    pub(super) fn segments(&self) -> Result<(Vec<u64>, bool)> {
        let names = fs::list_in(&self.instance, &self.path).wait()?;
        let has_control = names.iter().any(|name| name == CONTROL);
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name.to_str()?)).collect();
        numbers.sort_unstable();
        let any = has_control || !numbers.is_empty();
        Ok((numbers, any))
    }

    /// Removes what a preparation or a replacement left that was cut off.
    pub(super) fn clean(&self) -> Result<()> {
        for name in fs::list_in(&self.instance, &self.path).wait()? {
            if name.to_str().is_some_and(|name| name.ends_with(TEMPORARY_END)) {
                fs::remove_file_in(&self.instance, self.join(name)).wait()?;
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, number: u64, write: bool, direct: bool) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(write).direct(direct).open_in(&self.instance, self.segment_path(number)).wait()
    }

    pub(super) fn sync(&self) -> Result<()> {
        fs::sync_dir_in(&self.instance, &self.path).wait()
    }

    pub(super) fn remove(&self, number: u64) -> Result<()> {
        fs::remove_file_in(&self.instance, self.segment_path(number)).wait()
    }

    /// Gives a segment that is not needed any more the number of one to come.
    pub(super) fn renumber(&self, from: u64, to: u64) -> Result<()> {
        fs::rename_new_in(&self.instance, self.segment_path(from), self.segment_path(to)).wait()
    }

    pub(super) fn put_aside(&self, number: u64) -> Result<()> {
        let mut name = segment_name(number);
        name.push_str(DAMAGED_END);
        fs::rename_new_in(&self.instance, self.segment_path(number), self.join(name)).wait()
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
        let temporary = self.join(format!("prepare-{number}{TEMPORARY_END}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).direct(direct);
        let made = (|| {
            let file = options.open_in(&self.instance, &temporary).wait()?;
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
            fs::rename_new_in(&self.instance, &temporary, self.segment_path(number)).wait()?;
            self.sync()?;
            self.open(number, true, direct)
        })();
        if made.is_err() {
            let _ = fs::remove_file_in(&self.instance, &temporary).wait();
        }
        made
    }

    pub(super) fn damage(&self, number: u64, offset: u64, length: u64, what: impl Into<String>) -> Error {
        let path: Arc<Path> = Arc::from(self.segment_path(number));
        Error::new(Name::Recover, ErrorKind::Damaged).at(&path).range(offset, length).detail(what)
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
