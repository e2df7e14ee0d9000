//! Sequential reads of a segment, with read-ahead. In recovery, they continue after unreadable
//! pages.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};

use crate::format::PAGE;
use crate::os;
use nowait::{Buf, Error, ErrorOp, File, Moved, Result, Started};

/// Size of one read of a segment.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Least size of a reader's first read: enough for a reader at the end of the log.
const STEP_BYTES: usize = 64 << 10;

/// Part of a log's file that the device cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// Byte range, in whole pages.
    pub bytes: Range<u64>,
    /// The kernel's error.
    pub what: String,
}

/// A forward-moving window of a segment's bytes.
pub(crate) struct Window {
    file: File,
    buffer: Buf,
    /// Offset of the first byte of `buffer`.
    start: u64,
    /// Bytes of `buffer` that have been read.
    filled: usize,
    /// Size of one read.
    pub(crate) piece: usize,
    /// Reads in flight of the next pieces, each with its offset. The mutex is never locked: it only
    /// makes the receiver `Sync`, as a reader must be.
    ahead: VecDeque<(u64, Mutex<mpsc::Receiver<Moved<Buf>>>)>,
    pub(crate) ahead_max: usize,
    pub(crate) bytes_read: u64,
    /// Read in flight of a non-blocking reader: its offset and length.
    reading: Option<(u64, usize, Started<Moved<Buf>>)>,
    /// Size of a reader's next read: doubled by each read that continues the previous one.
    step: usize,
    /// End of the file, if a read has met it.
    end: Option<u64>,
    /// Offset after which only requested bytes are read.
    pub(crate) limit: u64,
    /// Pages that the device could not read, which read as zeros. If `None`, an unreadable page is
    /// an error.
    unreadable: Option<Vec<Unreadable>>,
}

impl Window {
    /// A window that continues after unreadable pages, for recovery.
    pub(crate) fn past_errors(file: File) -> Window {
        let mut window = Window::new(file);
        window.unreadable = Some(Vec::new());
        window
    }

    pub(crate) fn new(file: File) -> Window {
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
            reading: None,
            step: STEP_BYTES,
            end: None,
            limit: u64::MAX,
        }
    }

    /// Reads single pages.
    pub(crate) fn by_page(mut self) -> Window {
        self.piece = PAGE;
        self
    }

    /// Returns `length` bytes at `offset`, or fewer at the end of the file.
    pub(crate) fn at(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        if !self.has(offset, length) {
            let (piece, reads_ahead) = (self.piece, self.ahead_max > 0);
            let alone = length.next_multiple_of(PAGE).max(piece);
            self.keep_from(offset, |kept| match reads_ahead {
                false => alone,
                // Room for whole pieces after the kept bytes.
                true => kept + length.next_multiple_of(piece),
            })?;
            self.collect_ahead()?;
            if self.filled < length {
                // The buffer may be larger than this read.
                let end = if reads_ahead { self.buffer.len() } else { alone };
                let part = self.filled..end.min(self.filled + self.wanted(length));
                let (n, asked) = (self.fill(part.clone())?, part.len());
                self.add(n, asked);
            }
            self.read_ahead();
        }
        // After the end of the file, the window may be elsewhere.
        let from = offset.checked_sub(self.start).map_or(self.filled, |from| (from as usize).min(self.filled));
        Ok(&self.buffer[from..self.filled.min(from + length)])
    }

    /// Moves the window to `offset`, and keeps bytes that are already in memory, which may be most
    /// of a large block. `wanted` returns the buffer size for that number of kept bytes.
    fn keep_from(&mut self, offset: u64, wanted: impl FnOnce(usize) -> usize) -> Result<()> {
        let kept = match offset.checked_sub(self.start) {
            Some(from) if from < self.filled as u64 => {
                self.buffer.copy_within(from as usize..self.filled, 0);
                self.filled - from as usize
            }
            _ => 0,
        };
        (self.start, self.filled) = (offset, kept);
        self.make_room(wanted(kept))
    }

    /// Enlarges the buffer to at least `bytes`.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if self.buffer.len() < bytes {
            let mut larger = self.new_buffer(bytes)?;
            larger[..self.filled].copy_from_slice(&self.buffer[..self.filled]);
            self.buffer = larger;
        }
        Ok(())
    }

    /// Size of the next read for a request of `length` bytes from the start of the window. The read
    /// fills the room after the bytes in memory.
    fn wanted(&self, length: usize) -> usize {
        let room = self.buffer.len() - self.filled;
        let asked = length.next_multiple_of(PAGE).saturating_sub(self.filled);
        let below = self.limit.saturating_sub(self.start + self.filled as u64);
        room.min(asked.max(usize::try_from(below).unwrap_or(usize::MAX)))
    }

    fn new_buffer(&self, bytes: usize) -> Result<Buf> {
        Buf::uncleared(bytes).ok_or_else(|| os::no_memory(ErrorOp::Read, self.file.path()))
    }

    /// Adds `n` bytes to the window. Fewer than `asked` mean the end of the file.
    fn add(&mut self, n: usize, asked: usize) {
        self.filled += n;
        self.bytes_read += n as u64;
        if n < asked {
            self.end = Some(self.start + self.filled as u64);
        }
    }

    /// Reads into a part of the buffer; returns the number of bytes, fewer at the end of the file.
    fn fill(&mut self, part: Range<usize>) -> Result<usize> {
        let offset = self.start + part.start as u64;
        let error = match self.file.read_into(&mut self.buffer[part.clone()], offset) {
            Err(error) if self.unreadable.is_some() && os::is_of_the_place(&error) => error,
            answer => return answer,
        };
        if part.len() > PAGE {
            let half = (part.len() / 2).next_multiple_of(PAGE);
            let n = self.fill(part.start..part.start + half)?;
            return if n < half { Ok(n) } else { Ok(n + self.fill(part.start + half..part.end)?) };
        }
        self.skip(part.clone(), &error);
        Ok(part.len())
    }

    /// Clears and records a page that the device cannot read.
    fn skip(&mut self, part: Range<usize>, error: &Error) {
        let offset = self.start + part.start as u64;
        let end = self.start + part.end as u64;
        self.buffer[part].fill(0);
        let unreadable = self.unreadable.get_or_insert_default();
        // A page may be read more than once.
        if !unreadable.iter().any(|known| known.bytes.contains(&offset)) {
            match unreadable.last_mut().filter(|last| last.bytes.end == offset) {
                Some(last) => last.bytes.end = end,
                None => {
                    let path = self.file.path().into();
                    unreadable.push(Unreadable { path, bytes: offset..end, what: error.to_string() });
                }
            }
        }
    }

    /// True if [`Window::at`] would find these bytes, or the end of the file, in memory.
    pub(crate) fn has(&self, offset: u64, length: usize) -> bool {
        let end = self.end.map_or(offset + length as u64, |end| end.min(offset + length as u64));
        offset >= end || (self.start <= offset && end <= self.start + self.filled as u64)
    }

    /// Sets the size of a reader's next read, for a reader that needs `bytes`.
    pub(crate) fn read_first(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(PIECE_BYTES);
        self.step = bytes.max(STEP_BYTES).min(self.piece);
    }

    /// Size of a reader's next read.
    fn next_step(&mut self) -> usize {
        let next = (self.step * 2).min(self.piece).max(PAGE);
        std::mem::replace(&mut self.step, next)
    }

    /// Reads bytes that the window lacks, for a reader.
    pub(crate) fn read(&mut self, offset: u64, length: usize) -> Result<()> {
        let step = self.next_step();
        let piece = std::mem::replace(&mut self.piece, step);
        let read = self.at(offset, length).map(drop);
        self.piece = piece;
        read
    }

    /// Reads some of the bytes that the window lacks, without blocking the thread.
    pub(crate) fn poll_read(&mut self, offset: u64, length: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.keep_from(offset, |kept| kept)?;
        let at = self.start + self.filled as u64;
        let (bytes, mut read) = match self.reading.take() {
            Some((begun, bytes, read)) if begun == at => (bytes, read),
            _ => {
                let lacking = length.next_multiple_of(PAGE).saturating_sub(self.filled);
                let below = usize::try_from(self.limit.saturating_sub(at)).unwrap_or(usize::MAX);
                let bytes = lacking.max(self.step.min(below));
                (bytes, self.file.read_at(self.new_buffer(bytes)?, at).start())
            }
        };
        let answer = match Pin::new(&mut read).poll(context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                self.reading = Some((at, bytes, read));
                return Poll::Pending;
            }
        };
        let part = self.filled..self.filled + bytes;
        let n = match answer {
            Ok((n, buffer)) => {
                if part.start == 0 {
                    self.buffer = buffer;
                } else {
                    self.make_room(part.end)?;
                    self.buffer[part.start..part.start + n].copy_from_slice(&buffer[..n]);
                }
                self.next_step();
                n
            }
            Err(failed) if self.unreadable.is_some() && os::is_of_the_place(&failed.error) => {
                // From here on page by page, until a page can be read.
                self.step = PAGE;
                if bytes > PAGE {
                    return Poll::Ready(Ok(()));
                }
                self.make_room(part.end)?;
                self.skip(part, &failed.error);
                bytes
            }
            Err(failed) => return Poll::Ready(Err(failed.error)),
        };
        self.add(n, bytes);
        self.begin_next();
        Poll::Ready(Ok(()))
    }

    /// Begins the next read of a non-blocking reader that reads the whole segment, so that the
    /// device works while the reader does.
    fn begin_next(&mut self) {
        let at = self.start + self.filled as u64;
        if self.step == PIECE_BYTES && self.end.is_none() && at + (PIECE_BYTES as u64) <= self.limit {
            let Some(buffer) = Buf::uncleared(PIECE_BYTES) else { return };
            self.reading = Some((at, PIECE_BYTES, self.file.read_at(buffer, at).start()));
        }
    }

    /// True if a page of `range` could not be read.
    pub(crate) fn is_unreadable(&self, range: Range<u64>) -> bool {
        let touches = |known: &Unreadable| known.bytes.start < range.end && range.start < known.bytes.end;
        self.unreadable.iter().flatten().any(touches)
    }

    pub(crate) fn take_unreadable(&mut self) -> Vec<Unreadable> {
        self.unreadable.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Appends pieces from read-ahead, as long as they continue the window and fit.
    fn collect_ahead(&mut self) -> Result<()> {
        while self.buffer.len() - self.filled >= self.piece {
            let Some((offset, read)) = self.ahead.pop_front() else { break };
            if offset != self.start + self.filled as u64 {
                // The caller has moved to another place.
                self.ahead.clear();
                break;
            }
            // In a forked child the operation never ends, and the callback is dropped without a
            // call.
            let Ok(read) = read.into_inner().unwrap_or_else(PoisonError::into_inner).recv() else { break };
            let (n, bytes) = match read {
                // The caller reads again, page by page.
                Err(failed) if self.unreadable.is_some() && os::is_of_the_place(&failed.error) => {
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

    /// Keeps reads of the next pieces in flight.
    fn read_ahead(&mut self) {
        // A manual simulator completes nothing without a request.
        let depth = if self.file.descriptor().is_some() { self.ahead_max } else { 0 };
        while self.ahead.len() < depth {
            let end = self.start + self.filled as u64;
            let offset = self.ahead.back().map_or(end, |(offset, _)| offset + self.piece as u64);
            let Some(buffer) = Buf::uncleared(self.piece) else { return };
            let (send, receive) = mpsc::sync_channel(1);
            // A callback, since this thread does not drive its own ring until it needs the bytes.
            // The receiver was dropped if the window has moved to another place.
            self.file.read_at(buffer, offset).on_complete(move |read| drop(send.send(read)));
            self.ahead.push_back((offset, Mutex::new(receive)));
        }
    }

    /// Drops the bytes in memory, which may be outdated.
    pub(crate) fn forget(&mut self) {
        (self.filled, self.reading, self.step, self.end) = (0, None, STEP_BYTES, None);
        self.unreadable.iter_mut().for_each(Vec::clear);
        self.ahead.clear();
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !os::RENAMES_OPEN_DIRS {
            // Reads in flight keep the file open, and so the name of a backup's directory.
            for (_, read) in self.ahead.drain(..) {
                let _ = read.into_inner().unwrap_or_else(PoisonError::into_inner).recv();
            }
        }
    }
}
