//! Sequential writes with write-behind.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Caller, Step, Stream, wait};
use crate::buf::{BUF_ALIGNMENT, Buf, Erased, Memory, WriteBuffer};
use crate::error::{BufferResult, Error, ErrorOp, Result};
use crate::file::File;
use crate::op::Transfer;
use crate::started::Started;
use crate::sys::{Errno, WriteFlags, fork_generation};
use crate::turn;

/// Sizes of a writer's requests.
#[derive(Clone, Copy)]
struct Sizes {
    /// Size of one request.
    request_bytes: usize,
    /// Maximum size of all requests in flight.
    behind_bytes_max: usize,
}

/// Through the page cache.
const PLAIN: Sizes = Sizes { request_bytes: 512 << 10, behind_bytes_max: 4 << 20 };
/// With direct I/O. A device that writes 2 GiB a second does half as much in 2 ms, which a thread
/// that shares its processor may be late by.
const DIRECT: Sizes = Sizes { request_bytes: 1 << 20, behind_bytes_max: 8 << 20 };

/// Space reserved at a time behind the end of a file, at first and at most; each time four times as
/// much. A reservation waits for all direct writes of the file, and new ones for it
/// (`inode_dio_wait` in fs/ext4/extents.c and fs/xfs/xfs_file.c, 6.12), so that the device idles:
/// few of them.
const RESERVED_BYTES_FIRST: u64 = 16 << 20;
const RESERVED_BYTES_MAX: u64 = 256 << 20;
const RESERVED_GROWTH: u64 = 4;
/// Reserved when no more than this is left.
const RESERVED_AHEAD_BYTES: u64 = 4 << 20;

/// Through the page cache fewer bytes are collected per request.
const PLAIN_BYTES_MIN: usize = 64 << 10;

/// Sequential writer with write-behind; see the [module's text](super).
///
/// With direct I/O, the writer extends a growing file ahead of its writes, since the kernel
/// serialises extending writes. So other readers, and readers after a crash, may see zeros after
/// the written bytes. [`finish`](Writer::finish), [`sync_data`](Writer::sync_data) and a flush
/// restore the true length. After a drop, it is restored when the writes have ended
/// ([`File::settled`]). The true length is the end of all writes through this [`File`] and its
/// clones. Nothing else, such as another process, may extend the file meanwhile.
///
/// A later call returns the error of a write in the background; every call after that fails, too.
/// Nothing is durable before `sync_data`.
///
/// End a writer with [`finish`](Writer::finish), `sync_data` or a flush; `std::io::copy` does not
/// flush. A drop without one of these calls loses errors. If a thread used the writer last
/// (`std::io::Write` or `.wait()`), the drop blocks until everything is written, like std's
/// `BufWriter`. If a task used it last, the drop does not block: the accepted bytes are written in
/// the background, and are lost if the process ends before.
pub struct Writer {
    file: File,
    /// Its first `filled` bytes were written by the caller and not submitted yet.
    buffer: Buf,
    filled: usize,
    /// Offset of the buffer's first byte.
    position: u64,
    behind: VecDeque<Behind>,
    behind_bytes: usize,
    /// End of the file, reserved space included; none if it was not read yet.
    reserved: Option<u64>,
    reserve_next: u64,
    reserving: Option<(u64, Started<Result<()>>)>,
    /// True if space was reserved ahead and has to be given back.
    is_ahead: bool,
    giving_back: Option<Started<Result<()>>>,
    /// A sync or change of length in flight, submitted after all writes.
    syncing: Option<Started<Result<()>>>,
    /// The argument of `set_len`.
    pub(super) length: u64,
    pub(super) failed: Option<Error>,
    /// Caller that used it last.
    caller: Caller,
    /// It may be dropped with its bytes: its file is not wanted then.
    pub(super) is_disposable: bool,
    /// Fork generation of the process that writes: a forked child must not.
    generation: u64,
}

struct Behind {
    length: usize,
    write: Started<BufferResult<Erased>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("path", &self.file.path())
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Makes a writer to `file` from `offset` on.
    pub fn new(file: &File, offset: u64) -> Writer {
        Writer {
            file: file.clone(),
            buffer: Buf::default(),
            filled: 0,
            position: offset,
            behind: VecDeque::new(),
            behind_bytes: 0,
            reserved: None,
            reserve_next: RESERVED_BYTES_FIRST,
            reserving: None,
            is_ahead: false,
            giving_back: None,
            syncing: None,
            length: 0,
            failed: None,
            caller: Caller::Task,
            is_disposable: false,
            generation: fork_generation(),
        }
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position.saturating_add(self.filled as u64)
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes a buffer of any type that [`File::write_at`] takes, such as a [`Buf`], a `Vec<u8>` or
    /// `bytes::Bytes`. The buffer is not copied if its offset is a multiple of 4096, or if it has
    /// at least 64 KiB and uses the page cache. The future is ready when the buffer is accepted,
    /// not when it is written. If the future is dropped early, a first part of the buffer may have
    /// been accepted.
    ///
    /// # Errors
    /// The error of an earlier write, if one failed.
    pub fn put<B: WriteBuffer>(&mut self, buffer: B) -> Put<'_> {
        Put { writer: self, rest: Some(Transfer::new(buffer.into_memory().0, 0)) }
    }

    /// Writes a copy of `bytes`, like `write_all` of std, tokio or futures, with this crate's
    /// error. If the future is dropped early, a first part of the bytes may have been accepted.
    ///
    /// # Errors
    /// The error of an earlier write, if one failed.
    pub fn put_slice<'w>(&'w mut self, bytes: &'w [u8]) -> PutSlice<'w> {
        PutSlice { writer: self, bytes }
    }

    /// Waits until everything is written, and sets the file's length. Makes nothing durable.
    ///
    /// # Errors
    /// The first error of any write.
    pub fn finish(&mut self) -> Step<'_, Writer, Result<()>> {
        Step { stream: self, poll: Writer::poll_finish }
    }

    /// Calls [`finish`](Writer::finish), then [`File::sync_data`].
    ///
    /// # Errors
    /// The first error of any write, or those of `fdatasync(2)`.
    pub fn sync_data(&mut self) -> Step<'_, Writer, Result<()>> {
        // A sync that was dropped before its end does not cover later writes.
        self.forget_sync();
        Step { stream: self, poll: Writer::poll_sync }
    }

    /// Calls [`finish`](Writer::finish), then [`File::sync_all`].
    ///
    /// # Errors
    /// The first error of any write, or those of `fsync(2)`.
    pub fn sync_all(&mut self) -> Step<'_, Writer, Result<()>> {
        self.forget_sync();
        Step { stream: self, poll: Writer::poll_sync_all }
    }

    /// Calls [`finish`](Writer::finish), then [`File::set_len`]. The position is unchanged: if it
    /// is beyond the new end, the next write leaves a hole before it.
    ///
    /// # Errors
    /// The first error of any write, or those of `ftruncate(2)`.
    pub fn set_len(&mut self, length: u64) -> Step<'_, Writer, Result<()>> {
        self.forget_sync();
        self.length = length;
        Step { stream: self, poll: Writer::poll_set_len }
    }

    fn sizes(&self) -> Sizes {
        if self.file.open.direct.is_some() { DIRECT } else { PLAIN }
    }

    pub(super) fn forget_sync(&mut self) {
        self.syncing = None;
    }

    pub(super) fn poll_sync(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        self.poll_then(context, caller, |writer| writer.file.sync_data().submit())
    }

    pub(super) fn poll_sync_all(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        self.poll_then(context, caller, |writer| writer.file.sync_all().submit())
    }

    pub(super) fn poll_set_len(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        self.poll_then(context, caller, |writer| {
            // Read the size again next time: if dropped half-way, the length may be set or not.
            writer.reserved = None;
            writer.file.set_len(writer.length).submit()
        })
    }

    /// Finishes, then runs the operation that `begin` submits.
    fn poll_then(
        &mut self,
        context: &mut Context<'_>,
        caller: Caller,
        begin: fn(&mut Writer) -> Started<Result<()>>,
    ) -> Poll<Result<()>> {
        if self.syncing.is_none() {
            ready!(self.poll_finish(context, caller))?;
            self.syncing = Some(caller.submit(|| begin(self)));
        }
        let Some(begun) = &mut self.syncing else { return Poll::Ready(Ok(())) };
        let ended = ready!(Pin::new(begun).poll(context));
        self.syncing = None;
        Poll::Ready(ended)
    }

    pub(super) fn poll_finish(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        if self.filled > 0 && self.failed.is_none() {
            // Failures are reported below, once the file has its length again.
            let _ = ready!(self.poll_send(context, caller));
        }
        let _ = ready!(self.poll_room(context, 0));
        if std::mem::take(&mut self.is_ahead) {
            let giving_back = caller.submit(|| self.file.give_back().submit());
            // The order of the file's changes puts this after a reservation in flight.
            (self.reserved, self.reserving) = (None, None);
            self.giving_back = Some(giving_back.finish_on_drop());
        }
        ready!(self.poll_given_back(context));
        Poll::Ready(self.failed.clone().map_or(Ok(()), Err))
    }

    /// Waits until space is given back. The end of the file is not known before, so accept no
    /// bytes.
    fn poll_given_back(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(giving_back) = &mut self.giving_back {
            let given_back = ready!(Pin::new(giving_back).poll(context));
            self.giving_back = None;
            if let Err(error) = given_back {
                self.fail(error);
            }
        }
        Poll::Ready(())
    }

    fn fail(&mut self, error: Error) -> Error {
        self.failed.get_or_insert(error).clone()
    }

    /// Reaps completed writes until no more than `bytes` are in flight.
    fn poll_room(&mut self, context: &mut Context<'_>, bytes: usize) -> Poll<Result<()>> {
        while let Some(first) = self.behind.front_mut() {
            let written = match Pin::new(&mut first.write).poll(context) {
                Poll::Ready(written) => written,
                Poll::Pending if self.behind_bytes <= bytes => break,
                Poll::Pending => return Poll::Pending,
            };
            self.behind_bytes -= first.length;
            self.behind.pop_front();
            let _ = self.written(written);
        }
        Poll::Ready(self.failed.clone().map_or(Ok(()), Err))
    }

    /// Records the result of a write.
    fn written(&mut self, written: BufferResult<Erased>) -> Result<()> {
        written.map(drop).map_err(|failed| self.fail(failed.error))
    }

    /// Submits the buffer when there is room.
    fn poll_send(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        ready!(self.poll_prepared(context, caller, self.filled))?;
        let buffer = self.take_filled();
        Poll::Ready(self.send(Memory::Buf(buffer), caller))
    }

    /// Takes the buffered bytes that are not submitted yet.
    fn take_filled(&mut self) -> Buf {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.truncate(std::mem::take(&mut self.filled));
        buffer
    }

    /// Waits until another `length` bytes may be submitted.
    fn poll_prepared(&mut self, context: &mut Context<'_>, caller: Caller, length: usize) -> Poll<Result<()>> {
        let Sizes { request_bytes, behind_bytes_max } = self.sizes();
        ready!(self.poll_room(context, behind_bytes_max - request_bytes))?;
        if let Err(errno) = self.file.open.check(self.position, length) {
            let error = self.file.open.error(ErrorOp::Write, errno).with_range(self.position, length as u64);
            return Poll::Ready(Err(self.fail(error)));
        }
        let appends = self.file.open.write_flags().contains(WriteFlags::APPEND);
        // Appends would go behind the reserved room.
        if self.file.open.direct.is_some() && !appends {
            ready!(self.poll_reserved(context, self.position + length as u64, caller));
        }
        Poll::Ready(Ok(()))
    }

    /// Submits a write for which [`poll_prepared`](Writer::poll_prepared) was ready.
    fn send(&mut self, memory: Memory, caller: Caller) -> Result<()> {
        let (offset, length) = (self.position, memory.len());
        self.position += length as u64;
        let write = self.file.write_all_at(Erased(memory), offset);
        let write = match caller {
            // A caller that waits is served by the plain call.
            Caller::Thread if self.file.open.direct.is_none() && self.behind.is_empty() => {
                let written = write.wait();
                return self.written(written);
            }
            Caller::Thread => caller.submit(|| write.submit()),
            Caller::Task if self.behind.is_empty() => write.start(),
            Caller::Task => write.submit(),
        };
        self.behind.push_back(Behind { length, write: write.finish_on_drop() });
        self.behind_bytes += length;
        Ok(())
    }

    /// Reserves the file's space up to `end`, and soon beyond. A failure is ignored: the write will
    /// report it.
    fn poll_reserved(&mut self, context: &mut Context<'_>, end: u64, caller: Caller) -> Poll<()> {
        let size = || self.file.target().known_size().unwrap_or(u64::MAX);
        let mut reserved_to = self.reserved.unwrap_or_else(size);
        loop {
            self.reserved = Some(reserved_to);
            if let Some((to, reserving)) = &mut self.reserving {
                let to = *to;
                match Pin::new(reserving).poll(context) {
                    Poll::Pending if end <= reserved_to => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(reserved) => {
                        reserved_to = to;
                        self.reserved = Some(to);
                        if reserved.is_err() {
                            // No further request: the file system has no space, or does not support it.
                            self.reserve_next = 0;
                        }
                    }
                }
                self.reserving = None;
            }
            let ahead = end.saturating_add(RESERVED_AHEAD_BYTES);
            // Within the file as it was nothing is to be reserved.
            if self.reserve_next == 0 || ahead <= reserved_to || (end <= reserved_to && !self.is_ahead) {
                return Poll::Ready(());
            }
            let from = reserved_to.max(self.position);
            let length = self.reserve_next.max(end.saturating_sub(from));
            self.reserve_next = (self.reserve_next * RESERVED_GROWTH).min(RESERVED_BYTES_MAX);
            self.is_ahead = true;
            let reserving = caller.submit(|| self.file.reserve_ahead(from, length).submit());
            self.reserving = Some((from + length, reserving.finish_on_drop()));
        }
    }

    /// Copies as much as there is room for.
    pub(super) fn poll_take(&mut self, context: &mut Context<'_>, bytes: &[u8], caller: Caller) -> Poll<Result<usize>> {
        ready!(self.poll_space(context, caller))?;
        let n = bytes.len().min(self.buffer.len() - self.filled);
        self.buffer[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
        self.filled += n;
        turn::copied(n);
        Poll::Ready(Ok(n))
    }

    /// Waits until the buffer has room.
    fn poll_space(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        self.caller = caller;
        if caller == Caller::Task && turn::ends(context) {
            return Poll::Pending;
        }
        ready!(self.poll_given_back(context));
        if let Some(error) = &self.failed {
            return Poll::Ready(Err(error.clone()));
        }
        if self.filled == self.buffer.len() {
            if self.filled > 0 {
                ready!(self.poll_send(context, caller))?;
            }
            // To a round place, so that what follows is of whole blocks.
            let length = self.sizes().request_bytes - (self.position % BUF_ALIGNMENT as u64) as usize;
            let Some(buffer) = Buf::uncleared(length) else {
                return Poll::Ready(Err(self.file.open.error(ErrorOp::Write, Errno::NOMEM)));
            };
            self.buffer = buffer;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_put(&mut self, context: &mut Context<'_>, rest: &mut Option<Transfer>, caller: Caller) -> Poll<Result<()>> {
        self.caller = caller;
        ready!(self.poll_given_back(context));
        if let Some(error) = &self.failed {
            return Poll::Ready(Err(error.clone()));
        }
        let Some(transfer) = rest else { return Poll::Ready(Ok(())) };
        let length = transfer.left();
        let is_plain = self.file.open.direct.is_none();
        let is_whole = transfer.done() == 0
            && (self.position() % BUF_ALIGNMENT as u64 == 0 || (is_plain && length >= PLAIN_BYTES_MIN));
        if is_whole && length > 0 {
            if self.filled > 0 {
                ready!(self.poll_send(context, caller))?;
            }
            ready!(self.poll_prepared(context, caller, length))?;
            let memory = transfer.take_memory();
            *rest = None;
            return Poll::Ready(self.send(memory, caller));
        }
        while transfer.left() > 0 {
            ready!(self.poll_space(context, caller))?;
            let n = transfer.copy_to(&mut self.buffer[self.filled..]);
            transfer.advance(n);
            self.filled += n;
            turn::copied(n);
        }
        *rest = None;
        Poll::Ready(Ok(()))
    }
}

/// Future of [`Writer::put`]: await it, or [`wait`](Put::wait) for it.
#[must_use = "nothing is written until the future is awaited, or `wait` is called"]
pub struct Put<'w> {
    writer: &'w mut Writer,
    /// Bytes of the buffer that are not accepted yet.
    rest: Option<Transfer>,
}

impl Put<'_> {
    /// Blocks until the buffer is accepted.
    ///
    /// # Errors
    /// The error of an earlier write, if one failed.
    pub fn wait(mut self) -> Result<()> {
        wait(&mut self, |put, context, caller| put.writer.poll_put(context, &mut put.rest, caller))
    }
}

impl fmt::Debug for Put<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes_left = self.rest.as_ref().map_or(0, Transfer::left);
        f.debug_struct("Put").field("writer", &self.writer).field("bytes_left", &bytes_left).finish()
    }
}

impl Future for Put<'_> {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Put { writer, rest } = &mut *self;
        writer.poll_put(context, rest, Caller::Task)
    }
}

/// Future of [`Writer::put_slice`]: await it, or [`wait`](PutSlice::wait) for it.
#[must_use = "nothing is written until the future is awaited, or `wait` is called"]
pub struct PutSlice<'w> {
    writer: &'w mut Writer,
    bytes: &'w [u8],
}

impl PutSlice<'_> {
    /// Blocks until the bytes are accepted.
    ///
    /// # Errors
    /// The error of an earlier write, if one failed.
    pub fn wait(mut self) -> Result<()> {
        wait(&mut self, PutSlice::poll_all)
    }

    fn poll_all(&mut self, context: &mut Context<'_>, caller: Caller) -> Poll<Result<()>> {
        while !self.bytes.is_empty() {
            let n = ready!(self.writer.poll_take(context, self.bytes, caller))?;
            self.bytes = &self.bytes[n..];
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for PutSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutSlice").field("writer", &self.writer).field("bytes_left", &self.bytes.len()).finish()
    }
}

impl Future for PutSlice<'_> {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_all(context, Caller::Task)
    }
}

impl Stream for PutSlice<'_> {
    fn file(&self) -> &File {
        &self.writer.file
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.generation != fork_generation() {
            return;
        }
        if self.caller == Caller::Thread && self.failed.is_none() && !self.is_disposable {
            // The process may end next.
            let _ = self.finish().wait();
        }
        if self.failed.is_none() && self.filled > 0 && self.file.open.check(self.position, self.filled).is_ok() {
            let buffer = self.take_filled();
            // Submit to a shared queue: this thread may exit before the write completes.
            Caller::Thread.submit(|| self.file.write_all_at(buffer, self.position).submit()).detach();
        }
        if self.is_ahead {
            // The order of the file's changes puts this after all writes in flight.
            Caller::Thread.submit(|| self.file.give_back().submit()).detach();
        }
    }
}

impl Stream for Writer {
    fn file(&self) -> &File {
        &self.file
    }
}

impl Stream for Put<'_> {
    fn file(&self) -> &File {
        &self.writer.file
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.caller = Caller::Thread;
        let is_plain = self.file.open.direct.is_none() && self.behind.is_empty() && self.failed.is_none();
        if is_plain && self.filled == 0 && bytes.len() >= PLAIN_BYTES_MIN {
            // Written from the caller's memory, through the page cache.
            if let Err(error) = self.file.write_all_from(bytes, self.position) {
                return Err(self.fail(error).into());
            }
            self.position += bytes.len() as u64;
            return Ok(bytes.len());
        }
        if self.filled < self.buffer.len() && self.failed.is_none() {
            // The usual case.
            let n = bytes.len().min(self.buffer.len() - self.filled);
            self.buffer[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            return Ok(n);
        }
        let n =
            wait(&mut self.put_slice(bytes), |put, context, caller| put.writer.poll_take(context, put.bytes, caller))?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.finish().wait()?)
    }
}

#[cfg(any(feature = "tokio", feature = "futures-io"))]
impl super::views::Writes for Writer {
    fn poll_accept(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.poll_take(context, bytes, Caller::Task)
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_finish(context, Caller::Task)
    }
}
