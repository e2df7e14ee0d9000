//! Sequential reads with read-ahead.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::sys::Errno;

#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
use super::views::Reads;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
use super::views::Seeks;
use super::{Caller, Step, Stream, wait};
use crate::buf::{BUF_ALIGNMENT, Buf};
use crate::error::{Error, ErrorOp, Moved, Result};
use crate::file::File;
use crate::started::Started;
use crate::turn;

/// Bytes of one request. Larger requests gained nothing on the disks measured, and delay the first
/// byte.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Default limits of bytes read ahead, by direct I/O and through the page cache, where the kernel
/// reads ahead, too: one request is served while another waits. (On a virtio disk four and more
/// large requests at a time were slower than two.)
const DIRECT_AHEAD_BYTES_MAX: usize = 2 << 20;
const CACHED_AHEAD_BYTES_MAX: usize = 512 << 10;
/// Less at first where the end of the range is unknown, since many readers want little.
const AHEAD_BYTES_FIRST: usize = 64 << 10;
/// Bytes of one call through the page cache, where the kernel reads ahead.
const CACHED_BYTES: usize = 128 << 10;
/// No file has a byte at this offset, nor beyond.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Returns the read-ahead of a reader's first request: as a rule, a range is read to its end.
fn window_first(to: u64, window_max: usize) -> usize {
    if to == OFFSET_MAX { AHEAD_BYTES_FIRST.min(window_max) } else { window_max }
}

/// Sequential reader with read-ahead; see the [module's text](super).
///
/// Because of the read-ahead, concurrent changes of the file may be missed. At the end of the file
/// it returns nothing; if the file grows later, the next call continues.
///
/// It implements `Read`, `BufRead` and `Seek` for threads, which block. For tasks see
/// [`chunk`](Reader::chunk), and the views that implement the traits of tokio (`TokioIo`) and
/// futures-io (`FuturesIo`), and `futures_core::Stream` (`Chunks`).
pub struct Reader {
    file: File,
    /// End of the range; the file may end before. [`OFFSET_MAX`] for a whole file.
    to: u64,
    /// Bytes that were read; the caller has had those before `used`.
    chunk: Buf,
    used: usize,
    /// Offset of the first byte after `chunk`.
    position: u64,
    /// Offset of the next request.
    next: u64,
    ahead: VecDeque<ReadAhead>,
    ahead_bytes: usize,
    /// How many may be.
    window: usize,
    window_max: usize,
    /// Size of the file when last asked.
    end: u64,
    /// A task's seek from the end, waiting for the size.
    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    seeking: Option<(i64, Started<Result<u64>>)>,
}

struct ReadAhead {
    length: usize,
    read: Started<Moved<Buf>>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.file.path())
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Makes a reader of `file` from `offset` on. A read or seek beyond `i64::MAX` fails with
    /// [`ErrorKind::InvalidRange`](crate::ErrorKind::InvalidRange).
    pub fn new(file: &File, offset: u64) -> Reader {
        Reader::range(file, offset..u64::MAX)
    }

    /// Makes a reader of a range of `file`; the end of the range counts as the end of the file.
    /// Positions are offsets in the file.
    pub fn range(file: &File, range: Range<u64>) -> Reader {
        let Range { start: offset, end: to } = range;
        let to = to.min(OFFSET_MAX);
        let window_max = if file.open.direct.is_some() { DIRECT_AHEAD_BYTES_MAX } else { CACHED_AHEAD_BYTES_MAX };
        Reader {
            file: file.clone(),
            to,
            chunk: Buf::default(),
            used: 0,
            position: offset,
            next: offset,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            window: window_first(to, window_max),
            window_max,
            end: 0,
            #[cfg(any(feature = "tokio", feature = "futures-io"))]
            seeking: None,
        }
    }

    /// Limits read-ahead to `bytes`, rounded down to a multiple of 4096, but at least 4096.
    pub fn ahead_bytes_max(mut self, bytes: usize) -> Reader {
        // Requests of whole blocks.
        self.window_max = (bytes - bytes % BUF_ALIGNMENT).max(BUF_ALIGNMENT);
        self.window = self.window.min(self.window_max);
        self
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position - self.unused() as u64
    }

    /// Returns the bytes of the next request without a copy, or `None` at the end of the file.
    ///
    /// # Errors
    /// Those of a read. The next call retries at the same offset.
    pub fn chunk(&mut self) -> Step<'_, Reader, Result<Option<Buf>>> {
        Step {
            stream: self,
            poll: |reader, context, caller| {
                ready!(reader.poll_fill(context, caller))?;
                Poll::Ready(Ok(reader.take_chunk()))
            },
        }
    }

    fn take_chunk(&mut self) -> Option<Buf> {
        let mut chunk = std::mem::take(&mut self.chunk);
        let used = std::mem::take(&mut self.used);
        if used > 0 {
            // Somebody has had its beginning.
            let rest = chunk.len() - used;
            chunk.copy_within(used.., 0);
            chunk.truncate(rest);
        }
        (!chunk.is_empty()).then_some(chunk)
    }

    /// Cancels a seek whose future was dropped.
    pub(super) fn forget_seek(&mut self) {
        #[cfg(any(feature = "tokio", feature = "futures-io"))]
        {
            self.seeking = None;
        }
    }

    fn unused(&self) -> usize {
        self.chunk.len() - self.used
    }

    /// Continues at another offset.
    fn go_to(&mut self, offset: u64) {
        let back = self.position.checked_sub(offset).and_then(|back| usize::try_from(back).ok());
        match back.filter(|back| *back <= self.chunk.len()) {
            Some(back) => self.used = self.chunk.len() - back,
            None => {
                (self.chunk, self.used) = (Buf::default(), 0);
                self.position = offset;
                self.forget_ahead();
            }
        }
    }

    /// Drops what was read ahead.
    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.ahead_bytes = 0;
        self.next = self.position;
        self.window = window_first(self.to, self.window_max);
    }

    /// Returns the length of the next request.
    ///
    /// The kernel takes a read for part of a stream where more bytes before it are cached than it asks
    /// for, and reads up to `read_ahead_kb` beyond it (`page_cache_sync_ra` in Linux's mm/readahead.c).
    /// So through the page cache a request is as long as those before it together, and a range that
    /// fits into the window is read from the device without what follows it.
    fn request_bytes(&self) -> usize {
        let length = match self.file.open.direct {
            Some(_) => self.window / 2,
            None => self.ahead_bytes.clamp(self.window / 4, self.window / 2),
        };
        length.next_multiple_of(BUF_ALIGNMENT).min(REQUEST_BYTES_MAX)
    }

    /// Ensures that bytes are there, unless the file has ended.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        if caller == Caller::Task && turn::ends(context) {
            return Poll::Pending;
        }
        if self.unused() > 0 {
            return Poll::Ready(Ok(()));
        }
        if self.position > OFFSET_MAX {
            return Poll::Ready(Err(self.error(Errno::OVERFLOW, 0)));
        }
        if self.is_past_range(self.position) {
            return Poll::Ready(Ok(()));
        }
        if self.file.open.direct.is_none() && caller == Caller::Thread && self.ahead.is_empty() {
            return Poll::Ready(self.read_cached());
        }
        self.read_ahead(caller)?;
        let Some(first) = self.ahead.front_mut() else { return Poll::Ready(Ok(())) };
        let read = ready!(Pin::new(&mut first.read).poll(context));
        let length = first.length;
        self.ahead.pop_front();
        self.ahead_bytes -= length;
        let (done, mut chunk) = read.map_err(|failed| {
            self.forget_ahead();
            failed.error
        })?;
        self.window = (self.window * 2).min(self.window_max);
        chunk.truncate(done);
        (self.chunk, self.used) = (chunk, 0);
        self.position += done as u64;
        if done < length {
            // The file ends here, or ended when this was read.
            self.forget_ahead();
        } else if caller == Caller::Thread {
            // The device works on while the caller does.
            self.read_ahead(caller)?;
        }
        Poll::Ready(Ok(()))
    }

    /// By one plain call.
    fn read_cached(&mut self) -> Result<()> {
        let length = self.within(self.position, CACHED_BYTES - (self.position % BUF_ALIGNMENT as u64) as usize);
        let mut chunk = self.buffer(length)?;
        let done = self.file.read_into(&mut chunk, self.position)?;
        chunk.truncate(done);
        (self.chunk, self.used) = (chunk, 0);
        self.position += done as u64;
        self.next = self.position;
        Ok(())
    }

    /// Submits requests until the window is full or the file ends. A task first tries to read on its
    /// thread: what is cached need not be read ahead, and where attempts are refused, that is
    /// learned.
    fn read_ahead(&mut self, caller: Caller) -> Result<()> {
        if self.next >= self.end && self.ahead.is_empty() {
            // The size is only a hint: the read at the next position follows in any case, and returns
            // the error.
            if let Some(size) = self.file.target().known_size() {
                self.end = size;
            }
        }
        let wanted = |reader: &Reader| match reader.ahead.is_empty() {
            true => !reader.is_past_range(reader.next),
            false => {
                reader.ahead_bytes < reader.window && reader.next < reader.end && !reader.is_past_range(reader.next)
            }
        };
        while wanted(self) {
            let request = self.request_bytes();
            // To a round place, so that what follows is of whole blocks.
            let length = self.within(self.next, request - (self.next % BUF_ALIGNMENT as u64) as usize);
            self.file.open.check(self.next, length).map_err(|errno| self.error(errno, length))?;
            let buffer = self.buffer(length)?;
            let read = self.file.read_at(buffer, self.next);
            let read = match caller {
                Caller::Task if self.ahead.is_empty() => read.start(),
                _ => caller.submit(|| read.submit()),
            };
            let is_there = read.is_ended();
            self.ahead.push_back(ReadAhead { length, read });
            self.ahead_bytes += length;
            self.next += length as u64;
            if is_there {
                break;
            }
        }
        Ok(())
    }

    /// Clamps `length` bytes from `offset` to the range.
    fn within(&self, offset: u64, length: usize) -> usize {
        usize::try_from(self.to.saturating_sub(offset)).map_or(length, |left| left.min(length))
    }

    fn is_past_range(&self, place: u64) -> bool {
        place >= self.to
    }

    /// Returns the end of the range in a file of `size` bytes.
    fn end_of(&self, size: u64) -> u64 {
        self.to.min(size)
    }

    fn buffer(&self, length: usize) -> Result<Buf> {
        Buf::uncleared(length).ok_or_else(|| self.error(Errno::NOMEM, length))
    }

    fn error(&self, errno: Errno, length: usize) -> Error {
        self.file.open.error(ErrorOp::Read, errno).with_range(self.position, length as u64)
    }

    fn wait_fill(&mut self) -> io::Result<()> {
        if self.unused() == 0 {
            wait(self, Reader::poll_fill)?;
        }
        Ok(())
    }

    /// Copies the bytes that are there.
    fn give(&mut self, out: &mut [u8]) -> usize {
        let n = self.unused().min(out.len());
        out[..n].copy_from_slice(&self.chunk[self.used..self.used + n]);
        self.used += n;
        turn::copied(n);
        n
    }
}

impl Stream for Reader {
    fn file(&self) -> &File {
        &self.file
    }
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        if self.unused() == 0 && self.ahead.is_empty() && self.file.open.direct.is_none() && out.len() >= CACHED_BYTES {
            // Straight to where it is wanted.
            let length = self.within(self.position, out.len());
            let n = self.file.read_into(&mut out[..length], self.position)?;
            (self.chunk, self.used) = (Buf::default(), 0);
            self.position += n as u64;
            self.next = self.position;
            return Ok(n);
        }
        self.wait_fill()?;
        Ok(self.give(out))
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.wait_fill()?;
        Ok(&self.chunk[self.used..])
    }

    fn consume(&mut self, n: usize) {
        self.used = (self.used + n).min(self.chunk.len());
    }
}

/// Counts [`SeekFrom::End`] from the end of the range or of the file, whichever is first.
impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position().checked_add_signed(by),
            SeekFrom::End(by) => self.end_of(self.file.size().wait()?).checked_add_signed(by),
        };
        Ok(self.seek_to(place)?)
    }
}

impl Reader {
    fn seek_to(&mut self, place: Option<u64>) -> Result<u64> {
        let place = place.ok_or_else(|| self.error(Errno::INVAL, 0).with_detail("a seek before the file's start"))?;
        if place > OFFSET_MAX {
            return Err(self.error(Errno::OVERFLOW, 0).with_range(place, 0));
        }
        #[cfg(any(feature = "tokio", feature = "futures-io"))]
        {
            self.seeking = None;
        }
        self.go_to(place);
        Ok(place)
    }
}

#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
impl Reads for Reader {
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<&[u8]>> {
        ready!(self.poll_fill(context, Caller::Task))?;
        Poll::Ready(Ok(&self.chunk[self.used..]))
    }

    fn advance(&mut self, bytes: usize) {
        self.consume(bytes);
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>>> {
        ready!(self.poll_fill(context, Caller::Task))?;
        Poll::Ready(Ok(self.take_chunk()))
    }
}

#[cfg(any(feature = "tokio", feature = "futures-io"))]
impl Seeks for Reader {
    fn start_seek(&mut self, to: SeekFrom) -> Result<()> {
        match to {
            SeekFrom::Start(offset) => self.seek_to(Some(offset))?,
            SeekFrom::Current(by) => self.seek_to(self.position().checked_add_signed(by))?,
            SeekFrom::End(by) => {
                self.seeking = Some((by, self.file.size().start()));
                return Ok(());
            }
        };
        Ok(())
    }

    fn is_seeking(&self, to: SeekFrom) -> bool {
        self.seeking.as_ref().is_some_and(|(by, _)| to == SeekFrom::End(*by))
    }

    fn poll_sought(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let Some((by, size)) = &mut self.seeking else { return Poll::Ready(Ok(self.position())) };
        let by = *by;
        let size = ready!(Pin::new(size).poll(context));
        self.seeking = None;
        Poll::Ready(size.and_then(|size| self.seek_to(self.end_of(size).checked_add_signed(by))))
    }
}
