//! A file with one position for reads and writes.

use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::task::{Context, Poll, ready};

#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
use super::views::Reads;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
use super::views::{Seeks, Writes};
use super::{Caller, Reader, Step, Stream, Writer, wait};
#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::file::File;

/// File with one position for reads and writes, like `std::fs::File` and `tokio::fs::File`. It
/// implements `Read`, `BufRead`, `Write` and `Seek` for threads; the views `TokioIo` and `FuturesIo`
/// implement the traits for tasks. Prefer a [`Reader`] or a
/// [`Writer`] if one direction is enough.
///
/// A cursor reads ahead while it reads, and writes behind while it writes. All writes complete
/// before the next read or seek. Otherwise it behaves like a `Reader` and a `Writer`. On a file
/// opened for appending, the position counts the bytes written, not the offset in the file.
///
/// If a background write fails, the next call returns its error. Reads and seeks then work again.
/// Every later write, flush and sync fails with the same error, since accepted bytes are lost.
/// Write them again with a new cursor.
pub struct Cursor {
    file: File,
    side: Side,
    /// The failure of an earlier writer of this cursor.
    failed: Option<Error>,
    /// Begun by a task.
    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    seek: Option<SeekFrom>,
}

/// Direction of the last call.
enum Side {
    Read(Reader),
    Write(Writer),
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("path", &self.file.path())
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl Cursor {
    /// Makes a cursor at `offset` of `file`.
    pub fn new(file: &File, offset: u64) -> Cursor {
        Cursor {
            file: file.clone(),
            side: Side::Read(Reader::new(file, offset)),
            failed: None,
            #[cfg(any(feature = "tokio", feature = "futures-io"))]
            seek: None,
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        match &self.side {
            Side::Read(reader) => reader.position(),
            Side::Write(writer) => writer.position(),
        }
    }

    /// Makes all writes durable; see [`Writer::sync_data`].
    ///
    /// # Errors
    /// The first error of any write, or those of `fdatasync(2)`.
    pub fn sync_data(&mut self) -> Step<'_, Cursor, Result<()>> {
        // A sync that was dropped before its end does not cover later writes.
        self.writer().forget_sync();
        Step { stream: self, poll: |cursor, context, caller| cursor.writer().poll_sync(context, caller) }
    }

    /// Makes all writes durable, with all metadata; see [`Writer::sync_all`].
    ///
    /// # Errors
    /// The first error of any write, or those of `fsync(2)`.
    pub fn sync_all(&mut self) -> Step<'_, Cursor, Result<()>> {
        self.writer().forget_sync();
        Step { stream: self, poll: |cursor, context, caller| cursor.writer().poll_sync_all(context, caller) }
    }

    /// Sets the file's length after all writes; the position stays. See [`Writer::set_len`].
    ///
    /// # Errors
    /// The first error of any write, or those of `ftruncate(2)`.
    pub fn set_len(&mut self, length: u64) -> Step<'_, Cursor, Result<()>> {
        let writer = self.writer();
        writer.forget_sync();
        writer.length = length;
        Step { stream: self, poll: |cursor, context, caller| cursor.writer().poll_set_len(context, caller) }
    }

    /// Returns the reader, once all writes are complete.
    fn poll_reader(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<&mut Reader>> {
        self.forget_seek();
        if let Side::Write(writer) = &mut self.side {
            let finished = ready!(writer.poll_finish(context, caller));
            // A failed write does not prevent reads: the next read or seek does not fail again.
            self.side = Side::Read(Reader::new(&self.file, self.position()));
            match finished {
                Err(error) if self.failed.is_none() => {
                    self.failed = Some(error.clone());
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
        }
        match &mut self.side {
            Side::Read(reader) => Poll::Ready(Ok(reader)),
            Side::Write(_) => unreachable!("it was exchanged above"),
        }
    }

    /// Cancels a seek whose future was dropped, so that it is not carried out later.
    fn forget_seek(&mut self) {
        #[cfg(any(feature = "tokio", feature = "futures-io"))]
        {
            self.seek = None;
        }
        if let Side::Read(reader) = &mut self.side {
            reader.forget_seek();
        }
    }

    /// Returns the writer; drops what was read ahead.
    fn writer(&mut self) -> &mut Writer {
        self.forget_seek();
        if let Side::Read(reader) = &self.side {
            let mut writer = Writer::new(&self.file, reader.position());
            writer.failed = self.failed.clone();
            self.side = Side::Write(writer);
        }
        match &mut self.side {
            Side::Write(writer) => writer,
            Side::Read(_) => unreachable!("it was exchanged above"),
        }
    }

    fn poll_flushed(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        match &mut self.side {
            Side::Read(_) => Poll::Ready(self.failed.clone().map_or(Ok(()), Err)),
            Side::Write(writer) => writer.poll_finish(context, caller),
        }
    }
}

impl Stream for Cursor {
    fn file(&self) -> &File {
        &self.file
    }
}

/// Blocks until the reader may read.
fn reader(cursor: &mut Cursor) -> io::Result<&mut Reader> {
    cursor.forget_seek();
    if let Side::Write(_) = cursor.side {
        wait(cursor, |cursor, context, caller| cursor.poll_reader(context, caller).map_ok(drop))?;
    }
    match &mut cursor.side {
        Side::Read(reader) => Ok(reader),
        Side::Write(_) => unreachable!("it was exchanged above"),
    }
}

impl Read for Cursor {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        reader(self)?.read(out)
    }
}

impl BufRead for Cursor {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        reader(self)?.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        if let Side::Read(reader) = &mut self.side {
            reader.consume(n);
        }
    }
}

impl Write for Cursor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(wait(self, Cursor::poll_flushed)?)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        reader(self)?.seek(to)
    }
}

#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
impl Reads for Cursor {
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<&[u8]>> {
        ready!(self.poll_reader(context, Caller::Task))?.poll_bytes(context)
    }

    fn advance(&mut self, bytes: usize) {
        self.consume(bytes);
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>>> {
        ready!(self.poll_reader(context, Caller::Task))?.poll_chunk(context)
    }
}

#[cfg(any(feature = "tokio", feature = "futures-io"))]
impl Writes for Cursor {
    fn poll_accept(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.writer().poll_accept(context, bytes)
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_flushed(context, Caller::Task)
    }
}

#[cfg(any(feature = "tokio", feature = "futures-io"))]
impl Seeks for Cursor {
    fn start_seek(&mut self, to: SeekFrom) -> Result<()> {
        self.seek = Some(to);
        Ok(())
    }

    fn is_seeking(&self, to: SeekFrom) -> bool {
        matches!(&self.side, Side::Read(reader) if reader.is_seeking(to))
    }

    fn poll_sought(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let Some(to) = self.seek.take() else {
            // Nothing is to be done, unless the reader waits for the size.
            return match &mut self.side {
                Side::Read(reader) => reader.poll_sought(context),
                Side::Write(writer) => Poll::Ready(Ok(writer.position())),
            };
        };
        match self.poll_reader(context, Caller::Task) {
            Poll::Ready(reader) => reader?.start_seek(to)?,
            Poll::Pending => {
                self.seek = Some(to);
                return Poll::Pending;
            }
        }
        self.poll_sought(context)
    }
}
