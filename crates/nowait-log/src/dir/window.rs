//! Reads of a segment in order, with read-ahead; for recovery also past pages that the device
//! cannot read.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc;

use rustix::io::Errno;

use crate::format::PAGE;
use crate::os;
use nowait::{Buf, Error, ErrorOp, File, Moved, Result};

/// Bytes of one read of a segment.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Bytes of one read for a reader that follows the end of the log.
const LOAD_BYTES: usize = 64 << 10;

/// Part of a file that the device cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// Byte range, in whole pages.
    pub bytes: Range<u64>,
    /// The kernel's error.
    pub what: String,
}

/// A window of a segment's bytes that moves forward.
pub(crate) struct Window {
    file: File,
    buffer: Buf,
    /// Offset of the first byte of `buffer`.
    start: u64,
    /// Bytes of `buffer` that have been read.
    filled: usize,
    /// Bytes of one read.
    pub(crate) piece: usize,
    /// Reads in flight of the pieces that follow, each with its offset.
    ahead: VecDeque<(u64, mpsc::Receiver<Moved<Buf>>)>,
    pub(crate) ahead_max: usize,
    pub(crate) bytes_read: u64,
    /// Pages that the device could not read; they read as zeros. None: a page that cannot be read
    /// is an error.
    unreadable: Option<Vec<Unreadable>>,
}

/// True for errors about the place that is read, not the request (`blk_errors` of block/blk-core.c;
/// checksums of btrfs and xfs).
fn is_of_the_place(error: &Error) -> bool {
    const ERRNOS: [Errno; 7] =
        [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN, Errno::TIMEDOUT];
    error.raw_os_error().is_some_and(|errno| ERRNOS.iter().any(|known| known.raw_os_error() == errno))
}

impl Window {
    /// A window that continues behind pages that cannot be read, for recovery.
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
        }
    }

    /// Reads single pages.
    pub(crate) fn by_page(mut self) -> Window {
        self.piece = PAGE;
        self
    }

    /// Returns `length` bytes at `offset`, or as many as the file has there.
    pub(crate) fn at(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        let there = self.start..self.start + self.filled as u64;
        if !(there.contains(&offset) && offset + length as u64 <= there.end) {
            // Keep bytes that are here already: they may be most of a large block.
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
                let no_memory = || os::system_error(ErrorOp::Read, Errno::NOMEM, self.file.path());
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

    /// Reads into a part of the buffer; returns how many bytes the file has there.
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
        Ok(part.len())
    }

    /// True if a page of `range` could not be read.
    pub(crate) fn is_unreadable(&self, range: Range<u64>) -> bool {
        let touches = |known: &Unreadable| known.bytes.start < range.end && range.start < known.bytes.end;
        self.unreadable.iter().flatten().any(touches)
    }

    pub(crate) fn take_unreadable(&mut self) -> Vec<Unreadable> {
        self.unreadable.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Appends pieces that were read ahead, while they continue the window and fit.
    fn collect_ahead(&mut self) -> Result<()> {
        while self.buffer.len() - self.filled >= self.piece {
            let Some((offset, read)) = self.ahead.pop_front() else { break };
            if offset != self.start + self.filled as u64 {
                // The caller has moved elsewhere.
                self.ahead.clear();
                break;
            }
            // The callback is gone without a call where its operation never ends: in a forked
            // child.
            let Ok(read) = read.recv() else { break };
            let (n, bytes) = match read {
                // Read again below, page by page.
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

    /// Keeps reads of the next pieces in flight.
    fn read_ahead(&mut self) {
        // A manual simulator completes nothing until it is told to.
        let depth = if self.file.descriptor().is_some() { self.ahead_max } else { 0 };
        while self.ahead.len() < depth {
            let end = self.start + self.filled as u64;
            let offset = self.ahead.back().map_or(end, |(offset, _)| offset + self.piece as u64);
            let Some(buffer) = Buf::uncleared(self.piece) else { return };
            let (send, receive) = mpsc::sync_channel(1);
            // With a callback, since this thread does not drive its own ring until it needs the
            // bytes. The receiver is gone if the window has moved elsewhere.
            self.file.read_at(buffer, offset).on_complete(move |read| drop(send.send(read)));
            self.ahead.push_back((offset, receive));
        }
    }

    /// Reads ahead of [`Window::at`] without blocking the thread.
    pub(crate) async fn load(&mut self, offset: u64, length: usize) -> Result<()> {
        let there = self.start..self.start + self.filled as u64;
        if !(there.contains(&offset) && offset + length as u64 <= there.end) {
            let buffer = Buf::zeroed(length.next_multiple_of(PAGE).max(LOAD_BYTES));
            let (n, buffer) = self.file.read_at(buffer, offset).await?;
            (self.buffer, self.start, self.filled) = (buffer, offset, n);
            self.bytes_read += n as u64;
        }
        Ok(())
    }

    /// Drops what was read, since it may have been written since.
    pub(crate) fn forget(&mut self) {
        self.filled = 0;
        self.unreadable.iter_mut().for_each(Vec::clear);
        self.ahead.clear();
    }
}
