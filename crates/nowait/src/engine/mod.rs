//! The only seam to the outside: an engine is asked to try now, to run here, or to take a slot and
//! finish it later.
//!
//! Everything above the seam runs unchanged on the kernel and on the simulator. Engines do not know
//! each other, with two exceptions. A queue to the kernel hands to the pool what it cannot serve.
//! The shared engine stages slots in a thread's own queue while that thread drives a future.
//!
//! `unsafe` here: transfers on memory that the caller lends for the call.

mod kernel;
mod known;
pub(crate) mod local;
pub(crate) mod loop_ring;
pub(crate) mod pool;
mod queue;
mod queues;
pub(crate) mod shared;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "tokio")]
#[cfg_attr(windows, path = "tokio_absent.rs")]
mod tokio;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::buf::Direction;
use crate::direct::{self, Directness};
use crate::op::watcher;
use crate::op::{
    Done, Handle, NextStep, OpenFile, Outcome, Owned, Owner, PathAt, QueueKind, Request, Slot, Transfer, step,
};
use crate::sync::lock;
use crate::sys::{self, AsFd, BorrowedFd, CWD, Errno, IoVec, Mode, OFlags, OwnedFd, WaitMode, WriteFlags};

pub(crate) trait Engine: Send + Sync {
    /// Makes one attempt at a transfer on this thread. With `WaitMode::Never` it does not sleep, and
    /// any answer but bytes means "not now": the slow route distinguishes errors and the end of
    /// file.
    fn try_now(&self, handle: &Handle, request: &mut Request, wait: WaitMode) -> Result<usize, Errno> {
        let (transfer, result) = transfer_once(handle.descriptor()?, request, wait).ok_or(Errno::INVAL)?;
        let n = result?;
        transfer.advance(n);
        Ok(n)
    }

    /// Opens a file for reading on this thread, if that should not sleep. Any error means "not now";
    /// EOPNOTSUPP, never.
    fn open_now(&self, path: &PathAt, flags: OFlags) -> Outcome {
        opened(sys::open_cached(path.dir(), &path.path, flags)?)
    }

    /// Runs a request to its end on this thread, waiting as long as it takes.
    fn run(&self, handle: Option<&Handle>, request: &mut Request) -> Outcome {
        run(handle, request)
    }

    /// As [`Engine::run`], on an open file, which may have direct I/O.
    fn run_on(&self, file: &OpenFile, request: &mut Request) -> Outcome {
        match &file.direct {
            Some(direct) => direct::run(file, direct, request, |request| run(Some(&file.handle), request)),
            None => timed(file, request, |request| {
                run_buffered(file, request, |handle, request| self.run(Some(handle), request))
            }),
        }
    }

    /// Takes a slot and finishes it, now or later, on any thread. Never waits for the operation. If
    /// its queue is full, the slot waits in line. A completion passes its place to the next slot;
    /// no poll is needed.
    fn submit(&self, slot: Arc<Slot>);

    /// As [`Engine::submit`], for a request that belongs to no queue of its file. A callback that
    /// returns next calls this, so that its own thread may run the request.
    fn submit_last(&self, slot: Arc<Slot>) {
        self.submit(slot);
    }

    /// Whether a buffered read of `file` that is announced to the kernel now, and submitted then, is
    /// collected without a separate thread or entry.
    fn takes_announced(&self, _file: &Arc<OpenFile>) -> bool {
        false
    }

    /// Leaves a file's queue, which this thread claimed and worked in, to those that have come
    /// since.
    fn resume(&self, file: &OpenFile, kind: QueueKind) {
        file.queues().of(kind).leave();
    }

    /// Waits until nothing that was submitted is in flight or in line.
    fn drain(&self);

    /// Lets the reactor of this thread's tokio runtime notice completions.
    #[cfg(feature = "tokio")]
    fn attach_tokio(&self) -> crate::error::Result<()> {
        Ok(())
    }

    /// Whether a watcher, and not the reactor, notices completions of a tokio runtime.
    #[cfg(feature = "tokio")]
    fn has_unattached_runtime(&self) -> bool {
        false
    }

    /// Whether the kernel refuses its queues for the moment. Tries again, if that is due.
    fn is_refused(&self) -> bool {
        false
    }
}

/// Why the kernel refused a queue: the size that was tried last, and the errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueRefusal {
    pub(crate) errno: Errno,
    pub(crate) entries: u32,
}

impl QueueRefusal {
    /// Whether a later try may succeed: descriptors, memory or the like are short.
    pub(crate) fn passes(&self) -> bool {
        matches!(self.errno, Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM)
    }
}

/// Spaces the tries to make what was refused for want of descriptors, memory or threads.
#[derive(Debug, Default)]
pub(crate) struct Retry(Mutex<Option<Instant>>);

impl Retry {
    /// How soon a try follows one that failed.
    pub(crate) const AGAIN: Duration = watcher::RETRY;

    /// Tries, unless a try has failed a moment ago.
    fn when_due<T>(&self, make: impl FnOnce() -> Option<T>) -> Option<T> {
        let is_due = |until: &Instant| Instant::now() >= *until;
        if !lock(&self.0).as_ref().is_none_or(is_due) {
            return None;
        }
        let made = make();
        *lock(&self.0) = made.is_none().then(|| Instant::now() + Retry::AGAIN);
        made
    }
}

/// One attempt at filling a borrowed slice; see [`Engine::try_now`].
pub(crate) fn read_now(
    engine: &dyn Engine,
    handle: &Handle,
    slice: &mut [u8],
    offset: u64,
    wait: WaitMode,
) -> Result<usize, Errno> {
    if let Handle::Descriptor(fd) = handle {
        // As every engine of the kernel does, without the cost of a request.
        let segment = IoVec { iov_base: slice.as_mut_ptr().cast(), iov_len: slice.len() };
        // SAFETY: the segment is `slice`, borrowed for the call.
        return unsafe { sys::read_at(fd.as_fd(), &[segment], offset, wait) };
    }
    // SAFETY: an engine has the transfer for the call only, by reference, and `slice` is borrowed
    // longer.
    let mut request = Request::Read(unsafe { Transfer::lent(slice, offset) });
    engine.try_now(handle, &mut request, wait)
}

/// Fills a borrowed slice, waiting as long as it takes; fewer bytes than asked for mean the end of
/// the file.
pub(crate) fn read_blocking(
    engine: &dyn Engine,
    file: &OpenFile,
    slice: &mut [u8],
    offset: u64,
) -> Result<usize, Errno> {
    let mut n = 0;
    if file.direct.is_none() {
        // Usually one call reads all of it. A request is made for the rest only.
        match read_now(engine, &file.handle, slice, offset, WaitMode::Allowed) {
            Ok(all) if all == slice.len() => return Ok(all),
            answer => n = answer.unwrap_or(0),
        }
    }
    // SAFETY: as in `read_now`.
    let mut transfer = unsafe { Transfer::lent(slice, offset) };
    transfer.advance(n);
    let mut request = Request::Read(transfer);
    engine.run_on(file, &mut request)?;
    match request {
        Request::Read(transfer) => Ok(transfer.done()),
        _ => Ok(0),
    }
}

/// Writes a borrowed slice by `run`, which waits as long as it takes. Returns how much was written,
/// and why no more.
pub(crate) fn write_blocking(
    file: &OpenFile,
    slice: &[u8],
    offset: u64,
    flags: WriteFlags,
    run: impl FnOnce(&mut Request) -> Outcome,
) -> (usize, Outcome) {
    let mut n = 0;
    // `flags` are those of every write to the file. If they say APPEND, it was opened with
    // `O_APPEND`.
    let plain = if flags == WriteFlags::APPEND { sys::O_APPEND_NEEDS } else { WriteFlags::NONE };
    if let (Handle::Descriptor(fd), WriteFlags::NONE | WriteFlags::APPEND, None) = (&file.handle, flags, &file.direct) {
        // As in `read_blocking`. With other flags the kernel may report earlier failures, which
        // `run` records.
        let segment = IoVec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() };
        // SAFETY: the segment is `slice`, borrowed for the call.
        match unsafe { sys::write_at(fd.as_fd(), &[segment], offset, plain, WaitMode::Allowed) } {
            Ok(all) if all == slice.len() => return (all, Ok(Done::Nothing)),
            Ok(moved) => n = moved,
            Err(errno) => return (0, Err(errno)),
        }
    }
    lend_out(slice, offset, flags, n, run)
}

/// Calls `run` with a request that writes a borrowed slice, of which `moved` bytes were written
/// before. Returns how much was written, and what `run` returned.
pub(crate) fn lend_out<T>(
    slice: &[u8],
    offset: u64,
    flags: WriteFlags,
    moved: usize,
    run: impl FnOnce(&mut Request) -> T,
) -> (usize, T) {
    // SAFETY: `run` has the transfer for the call only, by reference, and `slice` is borrowed
    // longer; a write only reads it.
    let mut transfer = unsafe { Transfer::lent_out(slice, offset) };
    transfer.advance(moved);
    let mut request = Request::Write(transfer, flags);
    let result = run(&mut request);
    match request {
        Request::Write(transfer, _) => (transfer.done(), result),
        _ => (0, result),
    }
}

/// Makes one call with `flags` for several writes, each of which continues the one before it.
pub(crate) fn write_coalesced<'r>(
    handle: Option<&Handle>,
    writes: impl Iterator<Item = &'r Request>,
    flags: WriteFlags,
) -> Result<usize, Errno> {
    let fd = handle.ok_or(Errno::BADF)?.descriptor()?;
    let mut segments = Vec::new();
    let mut offset = None;
    for write in writes {
        if let Request::Write(transfer, _) = write {
            offset.get_or_insert(transfer.position());
            segments.extend_from_slice(transfer.segments());
        }
    }
    let offset = offset.ok_or(Errno::INVAL)?;
    // SAFETY: the requests are borrowed for the call, and the memory of a transfer is not written
    // to (see `Transfer`).
    unsafe { sys::write_at(fd, &segments, offset, flags, WaitMode::Allowed) }
}

/// Makes one call for the writes of several adjacent slots; none (EAGAIN) if one of them was
/// abandoned. Call this after the writes have entered the order of their file's changes. So a write
/// that was abandoned before is never made, and a write that is made is registered.
pub(crate) fn write_slots<'s>(
    handle: &Handle,
    slots: impl ExactSizeIterator<Item = &'s Slot>,
    offset: u64,
    wait: WaitMode,
) -> Result<usize, Errno> {
    let mut segments = Vec::with_capacity(slots.len());
    for slot in slots {
        let add = |request: &Request| {
            if let Request::Write(transfer, _) = request {
                segments.extend_from_slice(transfer.segments());
            }
        };
        slot.with_wanted(add).ok_or(Errno::AGAIN)?;
    }
    // SAFETY: the segments' memory belongs to the slots until they are finished, which only we may
    // do, and the memory of a transfer is not written to (see `Transfer`).
    unsafe { sys::write_at(handle.descriptor()?, &segments, offset, WriteFlags::NONE, wait) }
}

/// Makes one call, if the request is a transfer.
#[inline(always)]
fn transfer_once<'r>(
    fd: BorrowedFd<'_>,
    request: &'r mut Request,
    wait: WaitMode,
) -> Option<(&'r mut Transfer, Result<usize, Errno>)> {
    match request {
        Request::Read(transfer) => {
            // SAFETY: a transfer's segments are writable and used by one party at a time, now by us
            // (see `Transfer`).
            let result = unsafe { sys::read_at(fd, transfer.segments(), transfer.position(), wait) };
            Some((transfer, result))
        }
        Request::Write(transfer, flags) => {
            // SAFETY: as above; they are only read.
            let result = unsafe { sys::write_at(fd, transfer.segments(), transfer.position(), *flags, wait) };
            Some((transfer, result))
        }
        _ => None,
    }
}

/// Runs a request of a file without direct I/O, by the handle that suits it.
fn run_buffered(file: &OpenFile, request: &mut Request, run: impl Fn(&Handle, &mut Request) -> Outcome) -> Outcome {
    let outcome = run(file.handle_for(request)?, request);
    match (&outcome, &request) {
        (Err(errno), Request::Write(_, flags)) if OpenFile::needs_other_appender(*errno, *flags) => {
            run(file.handle_for(request)?, request)
        }
        _ => outcome,
    }
}

/// Runs a request that may wait. Its time is evidence for its device, where there is none yet.
#[inline(always)]
fn timed(file: &OpenFile, request: &mut Request, run: impl FnOnce(&mut Request) -> Outcome) -> Outcome {
    let direction = match request {
        Request::Read(_) => Direction::Read,
        Request::Write(..) => Direction::Write,
        _ => return run(request),
    };
    if file.device().answers(direction) { run(request) } else { time(file, direction, request, run) }
}

#[cold]
fn time(
    file: &OpenFile,
    direction: Direction,
    request: &mut Request,
    run: impl FnOnce(&mut Request) -> Outcome,
) -> Outcome {
    let bytes = match request {
        Request::Read(transfer) | Request::Write(transfer, _) => transfer.left(),
        _ => 0,
    };
    let begun = Instant::now();
    let outcome = run(request);
    if outcome.is_ok() && bytes > 0 {
        file.device().answered(direction, bytes, begun.elapsed().as_nanos() as u64);
    }
    outcome
}

/// Runs a slot's request on a thread of the pool.
pub(crate) fn run_for(owner: &Owner, request: &mut Request) -> Outcome {
    match owner {
        Owner::File(file) => match &file.direct {
            Some(direct) => direct::run(file, direct, request, |request| run(Some(&file.handle), request)),
            None => timed(file, request, |request| {
                run_buffered(file, request, |handle, request| run(Some(handle), request))
            }),
        },
        Owner::Nobody(..) => run(None, request),
    }
}

/// Plain system calls, as the pool's threads make them.
pub(crate) fn run(handle: Option<&Handle>, request: &mut Request) -> Outcome {
    let fd = match handle {
        Some(handle) => Some(handle.descriptor()?),
        None => None,
    };
    let fd = || fd.ok_or(Errno::BADF);
    match request {
        Request::Read(transfer) | Request::Write(transfer, _) if transfer.left() == 0 => Ok(Done::Nothing),
        Request::Read(_) | Request::Write(..) => loop {
            let Some((transfer, result)) = transfer_once(fd()?, request, WaitMode::Allowed) else {
                return Err(Errno::INVAL);
            };
            if let NextStep::Finish(end) = step(transfer, result) {
                return end.map(|()| Done::Nothing);
            }
        },
        Request::Sync { data_only } => {
            // Not repeated when it is interrupted or fails: the kernel reports a failed write-back
            // once.
            sys::sync(fd()?, *data_only).map(|()| Done::Nothing)
        }
        Request::SyncRange { offset, length } => sys::sync_range(fd()?, *offset, *length).map(|()| Done::Nothing),
        Request::SetLen(length) => sys::set_len(fd()?, *length).map(|()| Done::Nothing),
        Request::Allocate { how, offset, length } => {
            sys::allocate(fd()?, *how, *offset, *length).map(|()| Done::Nothing)
        }
        // Only files with direct I/O have these (`direct/run.rs`).
        Request::ReserveAhead { .. } | Request::GiveBack => Err(Errno::OPNOTSUPP),
        Request::Rename { from, to, replace } => {
            sys::rename((from.dir(), &from.path), (to.dir(), &to.path), *replace).map(|()| Done::Nothing)
        }
        Request::SyncDir(at) => sys::sync_dir(at.dir(), &at.path).map(|()| Done::Nothing),
        Request::OpenDir(path) => {
            let fd = sys::open_dir(CWD, path)?;
            Ok(Owned::Opened(Handle::Descriptor(fd), Directness::NotAsked).into())
        }
        // Less the umask.
        Request::CreateDir(path) => sys::create_dir(path).map(|()| Done::Nothing),
        Request::List(at) => sys::list(at.dir(), &at.path).map(|names| Owned::Names(names).into()),
        Request::Remove(at) => sys::remove(at.dir(), &at.path).map(|()| Done::Nothing),
        Request::Open { path, flags, mode, direct: false } => opened(sys::open(path.dir(), &path.path, *flags, *mode)?),
        Request::Open { path, flags, mode, direct: true } => open_direct(path, *flags, *mode),
        Request::Size => sys::size(fd()?).map(Done::Size),
        Request::Advise { offset, length, advice } => {
            sys::advise(fd()?, *offset, *length, *advice).map(|()| Done::Nothing)
        }
        Request::Call(call) => call.make(fd().ok()),
        Request::Fault { mapping, fault } => mapping.fault(fd()?, fault).map(|missing| Owned::Faulted(missing).into()),
        Request::Close(handle) => {
            // The descriptor is gone whatever close(2) says: EINTR and EIO are not retried
            // (close(2), NOTES).
            match std::mem::replace(handle, Handle::Simulated { file: usize::MAX, flags: OFlags::empty() }) {
                Handle::Descriptor(fd) => sys::close(fd).map(|()| Done::Nothing),
                Handle::Simulated { .. } => Ok(Done::Nothing),
            }
        }
    }
}

/// Returns the outcome of an open.
fn opened(fd: OwnedFd) -> Outcome {
    let directness = direct::examine(fd.as_fd());
    Ok(Owned::Opened(Handle::Descriptor(fd), directness).into())
}

/// Opens a file for direct I/O if its file system has it, else for the page cache.
///
/// `open(2)` fails if the file system has no direct I/O; `fcntl(2)` does not ask the layers of an
/// overlay. A new file is created without `O_DIRECT`: an open that fails because of the flag has
/// created the file already (`do_open`, fs/namei.c).
fn open_direct(path: &PathAt, flags: OFlags, mode: Mode) -> Outcome {
    let open = |flags| sys::open(path.dir(), &path.path, flags, mode);
    let tried = match flags.contains(OFlags::EXCL) {
        true => Err(Errno::EXIST),
        // The system has no such flag.
        false if sys::DIRECT == OFlags::empty() => Err(Errno::INVAL),
        false => open((flags - OFlags::CREATE) | sys::DIRECT),
    };
    let fd = match tried {
        Ok(fd) => return opened(fd),
        // Any other error than that of `O_DIRECT` is the next open's, too.
        Err(_) => open(flags)?,
    };
    if matches!(tried, Err(Errno::INVAL)) || sys::make_direct(fd.as_fd()).is_err() {
        return Ok(Owned::Opened(Handle::Descriptor(fd), Directness::Refused).into());
    }
    opened(fd)
}
