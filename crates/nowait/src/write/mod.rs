//! Writes, syncs, and other changes of a file.
//!
//! A write is done when its bytes are in the page cache (or, with `O_DIRECT`, at the device): any
//! read sees them. It is durable after a later [`File::sync_data`] or [`File::sync_all`], or once
//! it completes as a [`durable`](Write::durable) write.

mod many;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::buf::{Buf, Erased, WriteBuffer, WriteBuffers};
use crate::core::combine;
use crate::engine::local;
use crate::error::{BufferError, BufferResult, Error, ErrorKind, ErrorOp, Moved, Result, Written};
use crate::file::File;
use crate::op::outstanding::Settling;
use crate::op::{Change, OpenFile, Outcome, Request, Transfer};
use crate::operation::{Operation, Write};
use crate::started::{Answer, Conclude, Started};
use crate::stats::Count;
use crate::sys::{self, Errno, WriteFlags};

pub use many::WriteMany;

pub use crate::sys::Allocate;

impl File {
    /// Writes `buffer` at `offset`; returns the number of bytes written and the buffer. A short
    /// write means that the file system is full or a limit is reached; the next write returns that
    /// error.
    ///
    /// When polled, a write runs on the polling thread if it should not block. It uses `RWF_NOWAIT`
    /// if the file accepts it. Otherwise it uses a plain call if the write covers whole or cached
    /// pages and the kernel is not about to throttle writers. All other writes go to a pool thread.
    ///
    /// Overlapping writes of one file, through any clone, are made in the order of their start. The
    /// second write waits for the first, even if the future of the first was dropped. Appends are
    /// made in order, too. A future begins with its first poll, a blocking write with its call.
    ///
    /// A future may leave a small write (at most 64 KiB, buffered, without options) in the file's
    /// queue at its first poll. The next poll of such a write of the file makes all of them, merged
    /// with their neighbours. The write keeps its place in the order above. Under
    /// [`block_on`](crate::block_on) a file's first writes are left, too; on other executors 64
    /// small writes of the open file precede. Where merging saves few calls, writes are not left
    /// for a while. If none of these futures is polled again, a pool thread makes their writes,
    /// usually within 0.1 s.
    ///
    /// On a file opened for appending the kernel ignores the offset, and each write is an append,
    /// as by [`File::append`].
    ///
    /// If the future is dropped early, the write may have written nothing, its first pages or
    /// everything, and may still be in flight. The library never leaves a page half old and half
    /// new. [`File::settled`] waits until such a write has ended.
    ///
    /// # Errors
    /// The error contains the buffer; [`Error::bytes_written`] returns how much is in the file.
    ///
    /// * [`ErrorKind::NoSpace`] and [`ErrorKind::FileTooLarge`];
    /// * [`ErrorKind::InvalidRange`] beyond `i64::MAX`;
    /// * [`ErrorKind::Closed`] after `close`;
    /// * those of `pwritev2(2)`.
    pub fn write_at<B: WriteBuffer>(&self, buffer: B, offset: u64) -> Write<'_, Moved<B>> {
        let transfer = Transfer::new(buffer.into_memory().0, offset);
        self.write(transfer, WriteFlags::NONE, |answer| wrote(answer, Short::Allowed, B::from_memory))
    }

    /// Writes all of `buffer` at `offset` and returns it; otherwise as [`File::write_at`].
    ///
    /// # Errors
    /// As [`File::write_at`]; a short write is also an error.
    pub fn write_all_at<B: WriteBuffer>(&self, buffer: B, offset: u64) -> Write<'_, BufferResult<B>> {
        self.write(Transfer::new(buffer.into_memory().0, offset), WriteFlags::NONE, wrote_all::<B>)
    }

    /// Writes several buffers, one after the other, at `offset`; otherwise as [`File::write_at`].
    /// [`WriteBuffers`] lists the accepted types.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_vectored_at<B: WriteBuffers>(&self, buffers: B, offset: u64) -> Write<'_, Moved<B>> {
        let transfer = Transfer::new(buffers.into_memory().0, offset);
        self.write(transfer, WriteFlags::NONE, |answer| wrote(answer, Short::Allowed, B::from_memory))
    }

    /// Appends all of `buffer` at the file's end at the time of the write (`RWF_APPEND`, Linux
    /// 4.16). Each append is one system call, and no other append, from any process, interleaves
    /// with it. If the file system writes an append in two parts (a full disk, more than 2 GiB),
    /// other appends may come between the parts.
    ///
    /// overlayfs of older kernels ignores `RWF_APPEND` and would overwrite the file. On file
    /// systems that are not known to honour `RWF_APPEND`, appends use a second descriptor with
    /// `O_APPEND`. The first append opens it through `/proc`; on macOS, by the file's path, so that a file
    /// without a name cannot be appended to. Files opened with
    /// [`OpenOptions::append`](crate::OpenOptions::append) need no second descriptor.
    ///
    /// # Errors
    /// As [`File::write_all_at`]. [`ErrorKind::Unsupported`] for a block device, or if the second
    /// descriptor cannot be opened; nothing is written then. Open the file with `append(true)`
    /// instead.
    pub fn append<B: WriteBuffer>(&self, buffer: B) -> Write<'_, BufferResult<B>> {
        self.write(Transfer::new(buffer.into_memory().0, 0), WriteFlags::APPEND, wrote_all::<B>)
    }

    fn write<T>(&self, transfer: Transfer, flags: WriteFlags, conclude: Conclude<T>) -> Write<'_, T> {
        let checked = self.open.check(transfer.position(), transfer.left());
        let request = Request::Write(transfer, flags.with(self.open.write_flags()));
        Write::new(Operation::checked(self.target(), checked, request, conclude))
    }

    /// Begins to write all of `buffer`, unless the write would have to queue. It runs inline, or on
    /// a pool thread if the bytes in flight are below their bounds. Returns a write that is in
    /// flight or complete. If dropped, the write completes in the background.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`], with the buffer, if the write would have to queue.
    pub fn try_write_at<B: WriteBuffer>(
        &self,
        buffer: B,
        offset: u64,
    ) -> std::result::Result<Started<BufferResult<B>>, BufferError<B>> {
        // Writes that were left in the file's queue precede this one.
        combine::make(&self.target());
        let memory = buffer.into_memory().0;
        let length = memory.len();
        let engines = self.instance.engines();
        let open = &self.open;
        let flags = open.write_flags();
        let change = Change {
            span: open.span(offset, length, flags),
            bytes: length as u64,
            alone: open.writes_alone(offset, length, flags),
            durable: false,
        };
        if !engines.throttle.has_room(open, change) {
            let error = self.open.error(ErrorOp::Write, Errno::AGAIN).with_range(offset, length as u64);
            let buffer = B::from_memory(Erased(memory));
            return Err(BufferError { error: error.written(Written::First(0)), buffer });
        }
        let write = self.write(Transfer::new(memory, offset), WriteFlags::NONE, wrote_all::<B>);
        Ok(write.start().finish_on_drop())
    }

    /// Writes many buffers, each at its offset, as one batch. A buffer that continues the previous
    /// one in the list is merged with it into one write. Where buffers overlap, the last one wins.
    ///
    /// # Errors
    /// All writes are tried. Returns the error of the first failed write in the list, with its
    /// index and all buffers.
    pub fn write_many<B: WriteBuffer>(&self, writes: Vec<(u64, B)>) -> WriteMany<'_, B> {
        WriteMany::new(self, writes)
    }

    /// Blocks until `data` is written at `offset`; returns the number of bytes, fewer if the file
    /// system accepted no more.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_from(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.write_blocking(data, offset, Short::Allowed)
    }

    /// Blocks until all of `data` is written.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn write_all_from(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_blocking(data, offset, Short::Error).map(drop)
    }

    /// Writes `data` at `offset` on this thread, if that should not block. Returns the number of
    /// bytes. Returns `None` if the write may block, and for direct I/O; use [`File::write_at`]
    /// then. Even if it returns `None`, some of the bytes may have been written.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn try_write_from(&self, data: &[u8], offset: u64) -> Option<Result<usize>> {
        let (n, outcome) = match self.open.check(offset, data.len()) {
            Ok(()) => self.target().try_write_slice(data, offset)?,
            Err(errno) => {
                self.instance.counters.add(Count::FailedAtOnce);
                (0, Err(errno))
            }
        };
        Some(written(&self.open, offset, data.len(), n, self.open.write_flags(), outcome, Short::Allowed))
    }

    fn write_blocking(&self, data: &[u8], offset: u64, short: Short) -> Result<usize> {
        if let Some(mut copy) = local::has_in_flight().then(|| Buf::uncleared(data.len())).flatten() {
            copy.copy_from_slice(data);
            return match short {
                Short::Allowed => self.write_at(copy, offset).wait().map(|(written, _)| written),
                Short::Error => self.write_all_at(copy, offset).wait().map(|_| data.len()),
            }
            .map_err(Error::from);
        }
        let (n, outcome) = match self.open.check(offset, data.len()) {
            Ok(()) => self.target().write_blocking(data, offset),
            Err(errno) => (0, Err(errno)),
        };
        self.instance.counters.add(if outcome.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
        written(&self.open, offset, data.len(), n, self.open.write_flags(), outcome, short)
    }

    /// Truncates the file to `length` bytes, or extends it with a hole.
    ///
    /// # Errors
    /// Those of `ftruncate(2)`.
    pub fn set_len(&self, length: u64) -> Operation<'_, Result<()>> {
        self.change(Request::SetLen(length))
    }

    /// Reserves, frees or zeroes a range without writing data.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the file system does not support it; those of `fallocate(2)`.
    pub fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Operation<'_, Result<()>> {
        self.change(Request::Allocate { how, offset, length })
    }

    /// Reserves space ahead of a stream's direct writes: the file grows, until
    /// [`File::give_back`].
    pub(crate) fn reserve_ahead(&self, offset: u64, length: u64) -> Operation<'_, Result<()>> {
        self.change(Request::ReserveAhead { offset, length })
    }

    /// Cuts off the space that [`File::reserve_ahead`] has added.
    pub(crate) fn give_back(&self) -> Operation<'_, Result<()>> {
        self.change(Request::GiveBack)
    }

    /// Makes every write that completed before the call durable, with the metadata needed to read
    /// it back, including the size (`fdatasync(2)`). It does not cover the name of a new file: see
    /// [`fs::sync_dir`](crate::fs::sync_dir).
    ///
    /// A future never syncs on its executor's thread. While a sync of the file is in flight, all
    /// further syncs share the next system call.
    ///
    /// # Errors
    /// [`ErrorKind::SyncFailed`] if a write-back failed: written data may be lost although reads
    /// still return it. From then on every sync of this file, through any clone, fails until
    /// [`acknowledge_sync_failure`](File::acknowledge_sync_failure). The kernel itself reports the
    /// failure only once, and marks the pages clean.
    pub fn sync_data(&self) -> Operation<'_, Result<()>> {
        self.change(Request::Sync { data_only: true })
    }

    /// As [`File::sync_data`], with all attributes, such as times (`fsync(2)`).
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub fn sync_all(&self) -> Operation<'_, Result<()>> {
        self.change(Request::Sync { data_only: false })
    }

    /// Writes back the dirty pages of a range, and waits for their completion
    /// (`sync_file_range(2)`). A length of zero means to the end of the file. The call bounds dirty
    /// memory, but makes nothing durable: it flushes neither the device's cache nor the metadata of
    /// new blocks.
    ///
    /// # Errors
    /// Those of `sync_file_range(2)`.
    pub fn sync_range(&self, offset: u64, length: u64) -> Operation<'_, Result<()>> {
        self.change(Request::SyncRange { offset, length })
    }

    /// Waits until every write, truncation and reservation of this file that is now in flight has
    /// ended. The wait covers all clones and threads, and operations whose future was dropped.
    /// Await it, or [`wait`](Settled::wait) for it. The wait begins no operation, reports no error,
    /// and makes nothing durable. Dropping it has no effect.
    ///
    /// Use it before another program reads the file, or before a rename or close. A write to the
    /// same range needs no such wait: the library orders overlapping writes.
    pub fn settled(&self) -> Settled<'_> {
        Settled { file: self, settling: Settling::default() }
    }

    /// Acknowledges a failed write-back, so that syncs may succeed again. Before the call, rewrite
    /// or give up everything written since the last successful sync. Returns the failure, if any.
    ///
    /// The failure stays until this call, even if no operation has returned it. For example, if a
    /// sync that [durable writes](Write::durable) share fails, the library repeats these writes, and
    /// they may return success.
    pub fn acknowledge_sync_failure(&self) -> Option<Error> {
        let errno = self.open.acknowledge_failure()?;
        Some(self.open.error(ErrorOp::Sync, errno))
    }

    fn change(&self, request: Request) -> Operation<'_, Result<()>> {
        let (_, offset, length) = change_of(&request);
        let fits =
            usize::try_from(length).map_err(|_| Errno::OVERFLOW).and_then(|length| self.open.check(offset, length));
        Operation::checked(self.target(), fits, request, changed)
    }
}

/// Whether a short write is a success.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Short {
    Allowed,
    Error,
}

/// Result of a write, for its caller and for what is known of the file.
#[inline]
fn written(
    file: &OpenFile,
    offset: u64,
    length: usize,
    n: usize,
    flags: WriteFlags,
    outcome: Outcome,
    short: Short,
) -> Result<usize> {
    if n > 0 && !flags.contains(WriteFlags::APPEND) {
        file.wrote_to(offset + n as u64);
    }
    let errno = outcome.err();
    // An error after all bytes were transferred means that they did not reach the device.
    let is_short = n > 0 && n < length;
    if (errno.is_none() && n == length) || (short == Short::Allowed && (errno.is_none() || is_short)) {
        return Ok(n);
    }
    let error = write_error(file, errno, flags).with_range(offset, length as u64);
    Err(error.written(how_much(file, n, flags, errno)))
}

/// Returns how much a failed write may have written. Through the page cache, errors other than those
/// of the device occur before any byte is written. If the write waits for the device, only some early errors do.
fn how_much(file: &OpenFile, n: usize, flags: WriteFlags, errno: Option<Errno>) -> Written {
    let waits = file.reaches_the_device(flags);
    // These errors occur before any byte is written.
    let early = |errno| matches!(errno, Errno::INVAL | Errno::BADF | Errno::OVERFLOW | Errno::FBIG | Errno::OPNOTSUPP);
    let of_device = |errno| matches!(sys::named(errno), Errno::IO | Errno::NXIO);
    let knows = errno.is_none_or(|errno| !of_device(errno) && (!waits || early(errno)));
    if knows { Written::First(n as u64) } else { Written::AtLeast(n as u64) }
}

#[cold]
fn write_error(file: &OpenFile, errno: Option<Errno>, flags: WriteFlags) -> Error {
    match errno {
        None => Error::new(ErrorOp::Write, ErrorKind::WriteZero).at_shared(&file.path),
        Some(errno) => {
            let error = file.error(ErrorOp::Write, errno);
            let asked = [
                (
                    WriteFlags::UNCACHED,
                    "RWF_DONTCACHE (Linux 6.14) is not known to this file system or kernel; write without uncached()",
                ),
                (
                    WriteFlags::ATOMIC,
                    "RWF_ATOMIC (Linux 6.11) takes O_DIRECT, a size and a place as statx(2) says; or write without atomic()",
                ),
            ];
            match asked.iter().find(|(flag, _)| flags.contains(*flag)) {
                Some((_, why)) if matches!(errno, Errno::OPNOTSUPP | Errno::INVAL) => {
                    error.of_kind(ErrorKind::Unsupported).with_detail(*why)
                }
                _ if flags.contains(WriteFlags::APPEND) && errno == Errno::OPNOTSUPP => {
                    error.with_advice(cannot_append(file))
                }
                _ => error,
            }
        }
    }
}

/// Why the second descriptor that an append needed could not be had, and what to do.
fn cannot_append(file: &OpenFile) -> &'static str {
    match file.handle.descriptor() {
        Ok(fd) if sys::is_block_device(fd) => "a block device has no end to append to; write at an offset",
        _ => sys::advice::NO_APPEND,
    }
}

/// Returns the bytes that were taken, and the buffer that `back` makes of the memory.
#[inline]
fn wrote<B>(Answer { on, outcome, request }: Answer<'_>, short: Short, back: fn(Erased) -> B) -> Moved<B> {
    let Request::Write(transfer, flags) = request else {
        unreachable!("a write is answered with its transfer, not {request:?}")
    };
    let (offset, length) = transfer.asked();
    let result = written(on.open(), offset, length, transfer.done(), *flags, outcome, short);
    let buffer = back(Erased(transfer.take_memory()));
    match result {
        Ok(n) => Ok((n, buffer)),
        Err(error) => Err(BufferError { error, buffer }),
    }
}

#[inline]
fn wrote_all<B: WriteBuffer>(answer: Answer<'_>) -> BufferResult<B> {
    wrote(answer, Short::Error, B::from_memory).map(|(_, buffer)| buffer)
}

/// Operation and range of a change without data, for its error.
fn change_of(request: &Request) -> (ErrorOp, u64, u64) {
    match request {
        Request::SetLen(length) => (ErrorOp::SetLen, 0, *length),
        Request::Allocate { offset, length, .. } | Request::ReserveAhead { offset, length } => {
            (ErrorOp::Allocate, *offset, *length)
        }
        Request::GiveBack => (ErrorOp::SetLen, 0, 0),
        Request::SyncRange { offset, length } => (ErrorOp::Sync, *offset, *length),
        _ => (ErrorOp::Sync, 0, 0),
    }
}

fn changed(Answer { on, outcome, request }: Answer<'_>) -> Result<()> {
    let Err(errno) = outcome else { return Ok(()) };
    let file = on.open();
    let (name, offset, length) = change_of(request);
    let error = match request {
        Request::Sync { .. } if file.has_failed() => file.error(name, errno).of_kind(ErrorKind::SyncFailed),
        _ => file.error(name, errno),
    };
    Err(if length > 0 { error.with_range(offset, length) } else { error })
}

/// Future of [`File::settled`].
#[must_use = "it does nothing until it is awaited, or `wait` is called"]
pub struct Settled<'f> {
    file: &'f File,
    settling: Settling,
}

impl Settled<'_> {
    /// Blocks until all operations have ended.
    pub fn wait(self) {
        self.file.open.outstanding().settle();
    }
}

impl Future for Settled<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let file = self.file;
        self.settling.poll(file.open.outstanding(), context)
    }
}

impl fmt::Debug for Settled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled").field("path", &self.file.open.path).finish_non_exhaustive()
    }
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        self.settling.forget(self.file.open.outstanding());
    }
}
