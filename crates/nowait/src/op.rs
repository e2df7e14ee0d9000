//! An operation: what is asked ([`Request`]), on what ([`Handle`]), and its life while an engine has it ([`Slot`]).
//!
//! # The life of a slot
//!
//! An operation that is served inline never has a slot. One that is not is moved, with its buffer and a clone of the file's
//! handle, into a slot that two parties share: the future, and the engine. Nothing the kernel may write to belongs to the
//! caller from then on, so that no destructor is needed for safety: a future may be dropped, or leaked.
//!
//! 1. **Waiting**: the engine has it (queued, or given to the kernel). The future has left word whom to notify.
//! 2. **Finished**: the engine is through with it, for good; outcome and buffer lie in the slot, the file's handle is let go.
//! 3. **Taken**: the future has taken outcome and buffer.
//!
//! A future dropped in *Waiting* makes the slot **Abandoned**: whoever takes it off a queue discards it; if the kernel
//! has it already, it stays as it is until the completion, and then frees itself. A future leaked in *Waiting* is the same, but for
//! memory that stays allocated.
//!
//! A short transfer goes round again inside *Waiting*: the engine tells [`Slot::complete`] each result, and
//! gives the rest back to the kernel when told so.
//!
//! `unsafe` here: sending raw segments between threads, filling them, and requests over memory that the caller lends.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use self::sync::{Mutex, MutexGuard, lock};
pub(crate) use crate::buf::contained;
use crate::buf::{Buf, Memory, Segments};
use crate::direct::{Alignment, Direct, Directness, Plan};
use crate::help;
use crate::mapping::{Fault, Mapping, Missing};
use crate::outstanding::{Outstanding, Span, Syncing};
use crate::select::{ReadSelector, Rings, WriteSelector};
use crate::stats::{Count, Counters, thread_number};
use crate::sys::{self, PerProcess, WriteFlags};

/// The locks of slots, exchanged when the hand-over is checked in every order of its steps (`make loom`).
mod sync {
    #[cfg(not(nowait_loom))]
    pub(super) use std::sync::{Mutex, MutexGuard};

    #[cfg(nowait_loom)]
    pub(super) use loom::sync::{Mutex, MutexGuard};

    #[cfg(not(nowait_loom))]
    pub(super) use crate::buf::lock;

    #[cfg(nowait_loom)]
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// An open file as an engine knows it, and where its operations are counted.
pub(crate) struct OpenFile {
    pub(crate) handle: Handle,
    /// Reads and writes go past the page cache.
    pub(crate) direct: Option<Direct>,
    /// They should, but the file has no direct I/O.
    pub(crate) direct_refused: bool,
    pub(crate) reads: ReadSelector,
    pub(crate) writes: WriteSelector,
    /// Writes and syncs that a thread will do. A thread that works there has a share of this, and none of the file.
    lanes: PerProcess<Arc<Lanes>>,
    /// What every write asks for. Opened with `O_SYNC` or `O_DSYNC`: to wait for the device, and so to tell of failed
    /// write-backs. Opened with `O_APPEND`: to append. The kernel ignores the offset, which then says nothing of
    /// blocks, neighbours or the end, and half a record by an attempt would let another come between.
    write_flags: WriteFlags,
    /// Decided by the first append.
    appender: OnceLock<Appender>,
    /// Where the file was last known to end.
    pub(crate) end: AtomicU64,
    /// Where the last write ended, whose page is cached.
    pub(crate) written_to: AtomicU64,
    /// The errno of a write-back that failed, until somebody acknowledges it. The kernel tells it once to each descriptor, and
    /// takes the pages for clean from then on (`fsync(2)`, NOTES): a second sync that succeeds proves nothing.
    sync_failure: AtomicI32,
    begun: Begun,
    pub(crate) counters: Arc<Counters>,
}

/// How many operations of a file queues to the kernel have, and how many threads. No share of the file.
type Begun = Arc<AtomicU64>;

/// What an operation counts for in [`Begun`].
const IN_QUEUE: u64 = 1;
const ON_THREAD: u64 = 1 << 32;

pub(crate) fn in_queues(begun: u64) -> u32 {
    begun as u32
}

pub(crate) fn on_threads(begun: u64) -> u32 {
    (begun >> 32) as u32
}

/// The end of a file that nobody has asked for.
pub(crate) const END_UNKNOWN: u64 = u64::MAX;

impl OpenFile {
    pub(crate) fn new(handle: Handle, directness: Directness, counters: Arc<Counters>) -> OpenFile {
        let flags = handle.flags();
        let reads = ReadSelector::default();
        let direct_refused = matches!(directness, Directness::Refused);
        let direct = match directness {
            Directness::Granted { direct, only_waits } => {
                if only_waits {
                    reads.attempt_refused();
                }
                Some(direct)
            }
            Directness::NotAsked | Directness::Refused => None,
        };
        let mut write_flags = WriteFlags::NONE;
        // A part of `O_SYNC`. Not rustix's name for it, which means all of that.
        if flags.bits() & libc::O_DSYNC as u32 != 0 {
            write_flags = write_flags.with(WriteFlags::DURABLE);
        }
        // Block devices ignore `O_APPEND`: the offset counts (`blkdev_write_iter`, block/fops.c).
        let is_device = || handle.descriptor().is_ok_and(sys::is_block_device);
        if flags.contains(OFlags::APPEND) && !is_device() {
            write_flags = write_flags.with(WriteFlags::APPEND);
        }
        OpenFile {
            direct,
            direct_refused,
            write_flags,
            handle,
            reads,
            writes: WriteSelector::default(),
            lanes: PerProcess::new(),
            appender: OnceLock::new(),
            end: AtomicU64::new(END_UNKNOWN),
            written_to: AtomicU64::new(END_UNKNOWN),
            sync_failure: AtomicI32::new(0),
            begun: Begun::default(),
            counters,
        }
    }

    /// The handle that a request is made by.
    #[inline]
    pub(crate) fn handle_for(&self, request: &Request) -> Result<&Handle, Errno> {
        match (request, &self.handle) {
            (Request::Write(_, flags), Handle::Descriptor(own)) if flags.contains(WriteFlags::APPEND) => {
                Ok(self.other_appender(own.as_fd())?.unwrap_or(&self.handle))
            }
            _ => Ok(&self.handle),
        }
    }

    /// The descriptor that appends through the page cache are made by; `cached` is one of this file.
    pub(crate) fn descriptor_to_append<'f>(&'f self, cached: BorrowedFd<'f>) -> Result<BorrowedFd<'f>, Errno> {
        self.other_appender(cached)?.map_or(Ok(cached), Handle::descriptor)
    }

    /// The second handle that appends are made by, where the file's own descriptors might overwrite. EOPNOTSUPP where
    /// there is no way to append: nothing may be written then.
    fn other_appender(&self, own: BorrowedFd<'_>) -> Result<Option<&Handle>, Errno> {
        let appender = match self.appender.get() {
            Some(appender) => appender,
            None => {
                let found = Appender::find(own)?;
                self.appender.get_or_init(|| found)
            }
        };
        match appender {
            Appender::Own => Ok(None),
            Appender::Other(handle) => Ok(Some(handle)),
        }
    }

    /// As on a file system that may ignore `RWF_APPEND`. False when that was found out before.
    #[cfg(test)]
    pub(crate) fn distrust_append_flag(&self) -> bool {
        let other = self.handle.descriptor().and_then(Appender::reopen);
        other.is_ok_and(|other| self.appender.set(other).is_ok())
    }

    /// What every write to this file asks for.
    pub(crate) fn write_flags(&self) -> WriteFlags {
        self.write_flags
    }

    /// Whether nobody knows, after an error, how much of a write with these flags has moved: it went to the device.
    pub(crate) fn reaches_the_device(&self, flags: WriteFlags) -> bool {
        self.direct.is_some() || flags.contains(WriteFlags::DURABLE)
    }

    /// Makes data durable by `sync`, unless an earlier write-back failed; remembers when this one does. The caller has
    /// claimed the lane of syncs, and `begin_sync`ed.
    pub(crate) fn synced(&self, sync: impl FnOnce() -> Outcome) -> Outcome {
        if let Some(errno) = self.failure() {
            return Err(errno);
        }
        let outcome = sync();
        if let Err(errno) = outcome {
            self.note_failure(errno);
        }
        outcome
    }

    /// Makes a read or write ready for direct I/O; see [`Transfer::align`].
    pub(crate) fn align(
        &self,
        alignment: Alignment,
        transfer: &mut Transfer,
        direction: Direction,
    ) -> Result<(), Errno> {
        let more = transfer.align(alignment, direction)?;
        if more > 0 {
            self.counters.add_many(Count::WidenedBytes, more as u64);
        }
        Ok(())
    }

    /// Whether a write has to have the file to itself: part of it goes through the page cache past which others go.
    pub(crate) fn writes_alone(&self, offset: u64, length: usize, flags: WriteFlags) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| flags.contains(WriteFlags::APPEND) || !direct.alignment().suits_place(offset, length))
    }

    /// The changes of this file that have begun and not ended.
    pub(crate) fn outstanding(&self) -> &Outstanding {
        self.lanes().outstanding()
    }

    /// The bytes that a write of `length` bytes changes.
    pub(crate) fn span(&self, offset: u64, length: usize, flags: WriteFlags) -> Span {
        if self.write_flags.with(flags).contains(WriteFlags::APPEND) {
            Span::END
        } else {
            Span::new(offset, length as u64)
        }
    }

    /// What must be known of a request that changes the file's bytes, to have its turn; None for others.
    pub(crate) fn change(&self, request: &Request) -> Option<Change> {
        Some(match request {
            Request::Write(transfer, flags) => Change {
                span: self.span(transfer.position(), transfer.left(), *flags),
                bytes: transfer.left() as u64,
                alone: self.direct.is_some() && self.writes_alone(transfer.position(), transfer.left(), *flags),
                durable: self.direct.is_some() && flags.contains(WriteFlags::DURABLE),
            },
            // What is cut off, and what a longer file gains.
            Request::SetLen(length) => Change::of(Span { start: *length, end: u64::MAX }),
            Request::Allocate { offset, length, .. } => Change::of(Span::new(*offset, *length)),
            _ => return None,
        })
    }

    /// Claims the kernel's report of failed write-backs for a call that may take it, beside the lane of syncs: no direct
    /// durable write is under way meanwhile.
    pub(crate) fn begin_sync(&self, sleep: impl FnOnce(&dyn Fn())) -> Option<Syncing<'_>> {
        self.direct.is_some().then(|| self.outstanding().begin_sync(sleep))
    }

    /// The bytes of writes that are on their way: with an engine, or about to be.
    #[inline]
    pub(crate) fn on_their_way(&self) -> u64 {
        self.lanes().on_their_way()
    }

    /// What is on its way has the file to itself.
    pub(crate) fn is_written_alone(&self) -> bool {
        self.lanes().is_written_alone()
    }

    /// Nobody knows any more where the file ends.
    pub(crate) fn forget_end(&self) {
        self.end.store(END_UNKNOWN, Relaxed);
    }

    /// What is known about direct I/O by rings.
    #[inline]
    pub(crate) fn rings(&self, direction: Direction) -> &Rings {
        match direction {
            Direction::Read => &self.reads.rings,
            Direction::Write => &self.writes.rings,
        }
    }

    fn failure(&self) -> Option<Errno> {
        let errno = self.sync_failure.load(SeqCst);
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    pub(crate) fn lanes(&self) -> &Arc<Lanes> {
        self.lanes.get(Arc::default)
    }

    /// Whether the kernel tells of an earlier failed write-back in the answer to `request`, and to nobody after that.
    pub(crate) fn learns_of_failures(&self, request: &Request) -> bool {
        match request {
            Request::Sync { .. } | Request::SyncRange { .. } => true,
            Request::Write(_, flags) => flags.contains(WriteFlags::DURABLE),
            _ => false,
        }
    }

    /// The lane in which a request has its turn.
    pub(crate) fn lane(&self, request: &Request) -> Option<LaneKind> {
        match request {
            Request::Write(..) if self.direct.is_some() => None,
            // Of two that learn of failed write-backs at a time, one could be told what the other should say.
            _ if self.learns_of_failures(request) => Some(LaneKind::Syncs),
            Request::Write(..) => Some(LaneKind::Writes),
            _ => None,
        }
    }

    /// Takes note of what an answer tells of lost data. (Of a sync's, [`OpenFile::synced`] does, once: many may share it, and it may be
    /// acknowledged before the last of them has heard.)
    pub(crate) fn heed(&self, request: &Request, outcome: &Outcome) {
        if let Err(errno) = outcome {
            if self.learns_of_failures(request) && !matches!(request, Request::Sync { .. }) {
                self.note_failure(*errno);
            }
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    pub(crate) fn acknowledge_failure(&self) -> Option<Errno> {
        let errno = self.sync_failure.swap(0, SeqCst);
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    /// Takes note that a write ended at `end`.
    #[inline]
    pub(crate) fn wrote_to(&self, end: u64) {
        self.written_to.store(end, Relaxed);
        // Not when it is unknown, which is the largest number.
        if self.end.load(Relaxed) < end {
            self.end.fetch_max(end, Relaxed);
        }
    }

    /// Remembers an errno that tells of lost data, for all clones and for all time.
    pub(crate) fn note_failure(&self, errno: Errno) {
        if !tells_nothing(errno) {
            let _ = self.sync_failure.compare_exchange(0, errno.raw_os_error(), SeqCst, SeqCst);
        }
    }
}

/// A request that changes a file's bytes, for those who give it its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) span: Span,
    pub(crate) bytes: u64,
    /// Nothing may be written beside it.
    pub(crate) alone: bool,
    /// No sync may be made beside it: a direct write that waits for the device.
    pub(crate) durable: bool,
}

impl Change {
    fn of(span: Span) -> Change {
        Change { span, bytes: 0, alone: false, durable: false }
    }
}

/// Errors that show that nothing was tried. All others count as lost data: file systems pass on what the device said (ENODATA,
/// ETIMEDOUT, EREMOTEIO, …), and a durable write's ENOSPC may be that of an earlier one.
fn tells_nothing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::BADF
            | Errno::INVAL
            | Errno::INTR
            | Errno::AGAIN
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::SPIPE
            | Errno::ROFS
            | Errno::FBIG
            | Errno::FAULT
            | Errno::PERM
            | Errno::CANCELED
    )
}

/// By which descriptor records are appended to a file.
enum Appender {
    /// The file's own: it was opened with `O_APPEND`, or its file system honours `RWF_APPEND`.
    Own,
    /// Another of the same file, opened with `O_APPEND`.
    Other(Handle),
}

impl Appender {
    fn find(own: BorrowedFd<'_>) -> Result<Appender, Errno> {
        if sys::is_block_device(own) {
            // Its end does not move, and it takes the offset for what it says, whatever the flags.
            return Err(Errno::OPNOTSUPP);
        }
        let flags = rustix::fs::fcntl_getfl(own)?;
        // A descriptor for reading only cannot append; the write itself says so.
        let trusted = flags.contains(OFlags::APPEND) || flags & OFlags::RWMODE == OFlags::RDONLY;
        if trusted || sys::honours_append_flag(own) {
            return Ok(Appender::Own);
        }
        Appender::reopen(own).map_err(|errno| match errno {
            // Those pass.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => errno,
            // No /proc, or permissions that would not let the file be opened once more.
            _ => Errno::OPNOTSUPP,
        })
    }

    fn reopen(own: BorrowedFd<'_>) -> Result<Appender, Errno> {
        let kept = OFlags::SYNC | OFlags::DSYNC | OFlags::NOATIME;
        let flags = rustix::fs::fcntl_getfl(own)? & kept | OFlags::APPEND;
        sys::reopen(own, flags).map(|fd| Appender::Other(Handle::Descriptor(fd)))
    }
}

/// What an engine knows a file by.
#[derive(Debug)]
pub(crate) enum Handle {
    Descriptor(OwnedFd),
    /// A place in a simulator's list of files, and what the file was opened with.
    Simulated {
        file: usize,
        flags: OFlags,
    },
}

impl Handle {
    /// The descriptor; EBADF for a simulated file, which only its simulator can serve.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>, Errno> {
        match self {
            Handle::Descriptor(fd) => Ok(fd.as_fd()),
            Handle::Simulated { .. } => Err(Errno::BADF),
        }
    }

    /// What it was opened with, as far as that can be asked for.
    fn flags(&self) -> OFlags {
        match self {
            Handle::Descriptor(fd) => rustix::fs::fcntl_getfl(fd).unwrap_or(OFlags::empty()),
            Handle::Simulated { flags, .. } => *flags,
        }
    }
}

/// Bytes on their way between a file and memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    memory: Memory,
    segments: Segments,
    /// Where in the file the next byte is.
    position: u64,
    left: usize,
    done: usize,
    /// The kernel was told that these bytes will be needed, and has begun to read them.
    pub(crate) announced: bool,
    /// A ring is to say so (EAGAIN) where it would have a kernel worker wait for these bytes.
    pub(crate) attempt: bool,
    /// Made ready for direct I/O in blocks of so many bytes; else zero.
    block: u32,
    /// It moves whole blocks, some of them in memory of ours: position, segments and counts are those of the blocks until it ends.
    edges: Option<Box<Edges>>,
}

/// What direct I/O moves in place of what was asked for: first block or blocks, the caller's memory, last block.
#[derive(Debug)]
struct Edges {
    direction: Direction,
    first: Option<Buf>,
    middle: usize,
    last: Option<Buf>,
    /// Bytes of the first block before the first that was asked for.
    skip: usize,
    /// What was asked for, and moved before.
    asked: usize,
    before: usize,
    segments: Segments,
}

// SAFETY: the segments point into `memory`, which is owned and `Send`, or into a slice that is borrowed as long as the
// transfer is used (`lent`). A transfer is used by one party at a time: its future before submission, then its engine.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Fills `memory` from `offset`, or writes it there.
    #[inline]
    pub(crate) fn new(mut memory: Memory, offset: u64) -> Transfer {
        let mut segments = Segments::none();
        memory.segments(&mut segments);
        let left = segments.len();
        Transfer {
            memory,
            segments,
            position: offset,
            left,
            done: 0,
            announced: false,
            attempt: false,
            block: 0,
            edges: None,
        }
    }

    /// Fills a borrowed slice.
    ///
    /// # Safety
    /// The transfer is not used after the borrow of `slice` has ended; so it is not given to a slot.
    pub(crate) unsafe fn lent(slice: &mut [u8], offset: u64) -> Transfer {
        let segments = Segments::one(slice.as_mut_ptr(), slice.len());
        Transfer { segments, left: slice.len(), ..Transfer::new(Memory::None, offset) }
    }

    /// Writes a borrowed slice.
    ///
    /// # Safety
    /// As for [`Transfer::lent`]; and it is only written from.
    pub(crate) unsafe fn lent_out(slice: &[u8], offset: u64) -> Transfer {
        let segments = Segments::one(slice.as_ptr().cast_mut(), slice.len());
        Transfer { segments, left: slice.len(), ..Transfer::new(Memory::None, offset) }
    }

    /// One that no memory could be had for.
    pub(crate) fn void(offset: u64, length: usize) -> Transfer {
        Transfer { left: length, ..Transfer::new(Memory::None, offset) }
    }

    #[inline]
    pub(crate) fn segments(&self) -> &[libc::iovec] {
        self.segments.rest()
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes still to come.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Bytes that have arrived.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Takes note of `n` bytes that have arrived.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        // A kernel that reports more than it was asked for must not lead us past the buffer.
        let n = n.min(self.left);
        self.segments.advance(n);
        self.position += n as u64;
        self.left -= n;
        self.done += n;
    }

    /// Copies the first bytes of `bytes` to where they belong, as a kernel would; returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.left);
        let mut rest = &bytes[..n];
        for segment in self.segments.rest() {
            let (now, later) = rest.split_at(rest.len().min(segment.iov_len));
            // SAFETY: a segment is writable memory of its length that nobody else uses (see `Transfer`), and `now` is
            // borrowed from elsewhere, so that they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), segment.iov_base.cast(), now.len()) };
            rest = later;
        }
        n
    }

    /// Copies the next bytes to `out`, as a kernel would take them; returns how many.
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in self.segments.rest() {
            let length = (out.len() - done).min(segment.iov_len);
            if length > 0 {
                // SAFETY: a segment is initialised memory of its length that nobody writes to meanwhile (see `Transfer`).
                let bytes = unsafe { std::slice::from_raw_parts(segment.iov_base.cast(), length) };
                out[done..done + length].copy_from_slice(bytes);
            }
            done += length;
        }
        done
    }

    /// The next `n` bytes.
    pub(crate) fn first(&self, n: usize) -> Vec<libc::iovec> {
        self.segments.first(n)
    }

    /// Whether a write is of whole blocks, or has been made ready.
    pub(crate) fn is_ready_for(&self, alignment: Alignment) -> bool {
        self.block != 0 || alignment.suits_place(self.position, self.left)
    }

    /// Makes it ready for direct I/O: whole blocks, to or from memory that lies as the device needs it. A write has to be of whole
    /// blocks already. Gives the bytes that it moves beyond what was asked for.
    pub(crate) fn align(&mut self, alignment: Alignment, direction: Direction) -> Result<usize, Errno> {
        if self.block != 0 || self.left == 0 {
            return Ok(0);
        }
        if alignment.suits(self.position, self.segments()) {
            self.block = alignment.offset;
            return Ok(0);
        }
        if direction == Direction::Write && !alignment.suits_place(self.position, self.left) {
            // Whole blocks of it would bring back what lies beside it, or anything.
            return Err(Errno::INVAL);
        }
        let address = match self.segments() {
            [one] if direction == Direction::Read => Some(one.iov_base as usize),
            _ => None,
        };
        let plan = Plan::new(alignment, self.position, self.left, address).ok_or(Errno::OVERFLOW)?;
        let memory = |length: usize| (length > 0).then(|| Buf::uncleared(length).ok_or(Errno::NOMEM)).transpose();
        let (mut first, mut last) = (memory(plan.first)?, memory(plan.last)?);
        if direction == Direction::Write {
            first.as_deref_mut().map(|first| self.copy_to(first));
        }
        let skip = (self.position - plan.start) as usize;
        let mut blocks = Segments::none();
        let mut push = |buf: &mut Option<Buf>| buf.as_mut().map(|buf| blocks.push(buf.as_mut_ptr(), buf.len()));
        push(&mut first);
        if plan.middle > 0 {
            let moved = plan.first - skip;
            let from = address.map_or(std::ptr::null_mut(), |_| self.segments()[0].iov_base.cast::<u8>());
            blocks.push(from.wrapping_add(moved), plan.middle);
        }
        let mut push = |buf: &mut Option<Buf>| buf.as_mut().map(|buf| blocks.push(buf.as_mut_ptr(), buf.len()));
        push(&mut last);
        let segments = std::mem::replace(&mut self.segments, blocks);
        let (asked, before) = (self.left, self.done);
        self.edges =
            Some(Box::new(Edges { direction, first, middle: plan.middle, last, skip, asked, before, segments }));
        self.block = alignment.offset;
        self.position = plan.start;
        self.left = self.segments.len();
        self.done = 0;
        // Less, at the largest place that a file can have.
        Ok(self.left.saturating_sub(asked))
    }

    /// It ends, or is to be made ready anew: what was moved of the blocks goes to where it was asked for.
    fn settle(&mut self) {
        self.block = 0;
        let Some(edges) = self.edges.take() else { return };
        let Edges { direction, first, middle, last, skip, asked, before, segments } = *edges;
        let done = self.done.saturating_sub(skip).min(asked);
        self.position = self.position - self.done as u64 + skip as u64;
        self.segments = segments;
        (self.left, self.done) = (asked, before);
        if direction == Direction::Write {
            return self.advance(done);
        }
        let first = first.as_deref().unwrap_or_default();
        let (n, rest) = (first.len().saturating_sub(skip).min(done), last.as_deref().unwrap_or_default());
        self.fill(&first[skip.min(first.len())..][..n]);
        self.advance(n);
        let n = middle.min(done - n);
        self.advance(n);
        let n = done - (self.done - before);
        self.fill(&rest[..n]);
        self.advance(n);
    }

    /// Nothing more may come after a result that ends inside a block: the end of the file.
    fn ends_in_a_block(&self) -> bool {
        self.block != 0 && self.position % u64::from(self.block) != 0
    }

    /// The place of the first byte, and how many bytes were asked for.
    #[inline]
    pub(crate) fn asked(&self) -> (u64, usize) {
        (self.position - self.done as u64, self.done + self.left)
    }

    /// Gives the memory back. The segments point to where it was: this ends the transfer's use.
    #[inline]
    pub(crate) fn take_memory(&mut self) -> Memory {
        self.segments = Segments::none();
        std::mem::replace(&mut self.memory, Memory::None)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Everything that can be asked of an engine.
#[derive(Debug)]
pub(crate) enum Request {
    Read(Transfer),
    Write(Transfer, WriteFlags),
    /// Makes what was written durable: the data and what is needed to find it, or the attributes also.
    Sync {
        data_only: bool,
    },
    /// Writes a range back, and waits for that; durable it is not.
    SyncRange {
        offset: u64,
        length: u64,
    },
    SetLen(u64),
    Allocate {
        mode: FallocateFlags,
        offset: u64,
        length: u64,
    },
    Rename {
        from: PathAt,
        to: PathAt,
        replace: bool,
    },
    Remove(PathAt),
    SyncDir(PathAt),
    CreateDir(PathBuf),
    /// Opens a directory, to be held.
    OpenDir(PathBuf),
    List(PathAt),
    Open {
        path: PathAt,
        flags: OFlags,
        mode: Mode,
        /// Past the page cache, where the file can.
        direct: bool,
    },
    Size,
    Advise {
        offset: u64,
        length: u64,
        advice: Advice,
    },
    /// Brings pages of a map in.
    Fault {
        mapping: Arc<Mapping>,
        fault: Fault,
    },
    Close(Handle),
}

/// A path, resolved from a directory that is held open, or else as the kernel resolves any.
#[derive(Clone, Debug)]
pub(crate) struct PathAt {
    pub(crate) dir: Option<Arc<OwnedFd>>,
    pub(crate) path: PathBuf,
}

impl PathAt {
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, |dir| dir.as_fd())
    }
}

impl From<&Path> for PathAt {
    fn from(path: &Path) -> PathAt {
        PathAt { dir: None, path: path.into() }
    }
}

/// What an engine answers. How much was read is in the request's transfer.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Opened(Handle, Directness),
    Size(u64),
    Names(Vec<OsString>),
    /// Which pages of a map are not in the page cache, if that was asked.
    Faulted(Option<Missing>),
}

pub(crate) type Outcome = Result<Done, Errno>;

/// What an engine is to do with a slot after a result for it arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Give the rest to the kernel.
    Again,
    /// Call `finish`.
    Finish(Result<(), Errno>),
}

/// Takes one transfer result (a byte count or an errno) into account. Short transfers and interruptions are dealt with
/// here and nowhere else: only a result of zero bytes, from a call that was allowed to wait, is the end of the file. (Of direct I/O also
/// one that ends inside a block.)
pub(crate) fn step(transfer: &mut Transfer, result: Result<usize, Errno>) -> Step {
    let end = match result {
        Ok(0) => Ok(()),
        Ok(n) => {
            transfer.advance(n);
            if transfer.left() > 0 && !transfer.ends_in_a_block() {
                return Step::Again;
            }
            Ok(())
        }
        Err(Errno::INTR) => return Step::Again,
        Err(errno) => Err(errno),
    };
    transfer.settle();
    Step::Finish(end)
}

/// Whom to tell that a slot is finished.
pub(crate) enum Notify {
    Waker(Waker),
    /// One of many: its number is put on the batch's list.
    Batch(Arc<Batch>, usize),
    /// No future is left: the operation is to end for its effect only.
    Nobody,
}

impl Notify {
    fn tell(self) {
        contained(|| match self {
            Notify::Waker(waker) => waker.wake(),
            Notify::Batch(batch, number) => batch.add(number),
            Notify::Nobody => {}
        });
    }
}

/// What an operation leaves at its end: the last share of its file, and a buffer or a result that
/// no future takes. Dropping it may wait (`close(2)`, `munmap(2)`, a user's destructor), so no
/// engine drops it under a lock, nor on a thread that notices completions (`pool::let_go`). A
/// destructor that panics is contained.
#[must_use]
#[derive(Default)]
pub(crate) struct Leftovers {
    file: Option<Box<OpenFile>>,
    unwanted: Option<Box<(Request, Outcome)>>,
}

impl Leftovers {
    /// Whether dropping it may take long.
    pub(crate) fn may_wait(&self) -> bool {
        /// To unmap so much takes tens of microseconds.
        const MEMORY_BYTES_MAX: usize = 256 << 10;
        let waits = |(request, outcome): &(Request, Outcome)| match request {
            Request::Read(Transfer { memory, .. }) | Request::Write(Transfer { memory, .. }, _) => {
                memory.runs_code_of_users() || memory.len() > MEMORY_BYTES_MAX
            }
            Request::Fault { .. } | Request::Close(_) => true,
            _ => matches!(outcome, Ok(Done::Opened(..))),
        };
        self.file.is_some() || self.unwanted.as_deref().is_some_and(waits)
    }
}

impl Drop for Leftovers {
    #[inline]
    fn drop(&mut self) {
        if self.unwanted.is_some() {
            self.unwanted.take().into_iter().for_each(|unwanted| let_go(unwanted.0));
        }
    }
}

/// Drops a request. Each buffer by itself: a second panic on the way out of the first would end the
/// process.
fn let_go(request: Request) {
    let (Request::Read(mut transfer) | Request::Write(mut transfer, _)) = request else { return };
    match transfer.take_memory() {
        Memory::Many(buffers) => buffers.into_iter().for_each(|buffer| contained(|| drop(buffer))),
        buffer => contained(|| drop(buffer)),
    }
}

enum Stage {
    Waiting(Notify),
    Abandoned,
    Finished(Outcome),
    Taken,
}

/// See the module's text.
pub(crate) struct Slot(Mutex<Inner>);

/// Operations on one file of which a thread does one at a time: the kernel would make others wait for the file's lock.
#[derive(Default)]
pub(crate) struct Lane(Mutex<Waiting>);

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) seats: VecDeque<Seat>,
    /// A thread owns the lane, or was called.
    pub(crate) busy: bool,
}

/// Who waits for a lane.
pub(crate) enum Seat {
    Slot(Arc<Slot>),
    /// A thread that will do its work itself. Whoever takes the seat hands the lane over.
    Thread(Arc<Parked>),
}

impl Seat {
    pub(crate) fn into_slot(self) -> Option<Arc<Slot>> {
        match self {
            Seat::Slot(slot) => Some(slot),
            Seat::Thread(_) => None,
        }
    }
}

/// A thread that waits in a lane.
pub(crate) struct Parked {
    owns: AtomicBool,
    thread: Thread,
}

impl Parked {
    /// Hands the lane to the thread.
    pub(crate) fn hand_over(&self) {
        self.owns.store(true, SeqCst);
        self.thread.unpark();
    }
}

/// What threads that write have in common, of one file and in one process.
#[derive(Default)]
pub(crate) struct Lanes {
    lanes: [Lane; 2],
    /// Bytes of writes on their way, and whether these are of one that nothing may be beside; changed under the throttle's lock.
    under_way: AtomicU64,
    alone: AtomicBool,
    outstanding: Outstanding,
}

impl Lanes {
    pub(crate) fn outstanding(&self) -> &Outstanding {
        &self.outstanding
    }

    /// What is on its way has the file to itself.
    pub(crate) fn is_written_alone(&self) -> bool {
        self.alone.load(Relaxed)
    }

    pub(crate) fn of(&self, kind: LaneKind) -> &Lane {
        &self.lanes[kind as usize]
    }

    #[inline]
    pub(crate) fn on_their_way(&self) -> u64 {
        self.under_way.load(Relaxed)
    }

    /// Throttle, which is the only one to change it, under its lock. `alone`: nothing may come beside it.
    pub(crate) fn set_on_their_way(&self, bytes: u64, alone: bool) {
        self.under_way.store(bytes, Relaxed);
        self.alone.store(alone, Relaxed);
    }
}

impl Lane {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }

    /// Claims the lane for this thread; false if another owns it.
    pub(crate) fn enter(&self) -> bool {
        !std::mem::replace(&mut self.lock().busy, true)
    }

    /// Claims the lane for this thread, which sleeps until those before it are done.
    pub(crate) fn enter_in_turn(&self) {
        let mut waiting = self.lock();
        if !std::mem::replace(&mut waiting.busy, true) {
            return;
        }
        let parked = Arc::new(Parked { owns: AtomicBool::new(false), thread: std::thread::current() });
        waiting.seats.push_back(Seat::Thread(parked.clone()));
        drop(waiting);
        while !parked.owns.load(SeqCst) {
            std::thread::park();
        }
    }

    /// Gives the lane up. True when a thread must be called for those who wait: a thread that is next owns it already.
    pub(crate) fn leave(&self) -> bool {
        let mut waiting = self.lock();
        match waiting.seats.pop_front() {
            Some(Seat::Thread(next)) => {
                drop(waiting);
                next.hand_over();
                false
            }
            Some(seat) => {
                waiting.seats.push_front(seat);
                true
            }
            None => {
                waiting.busy = false;
                false
            }
        }
    }

    /// Queues a slot. True when a thread must be called.
    pub(crate) fn join(&self, slot: Arc<Slot>) -> bool {
        let mut waiting = self.lock();
        waiting.seats.push_back(Seat::Slot(slot));
        !std::mem::replace(&mut waiting.busy, true)
    }
}

/// Which line of its file a request stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneKind {
    Writes,
    Syncs,
}

/// What a slot belongs to: a file that it keeps open, or, for an open, nothing yet.
pub(crate) enum Owner {
    File(Arc<OpenFile>),
    Nobody(Arc<Counters>),
}

impl Owner {
    pub(crate) fn handle(&self) -> Option<&Handle> {
        match self {
            Owner::File(file) => Some(&file.handle),
            Owner::Nobody(_) => None,
        }
    }

    pub(crate) fn file(&self) -> Option<&Arc<OpenFile>> {
        match self {
            Owner::File(file) => Some(file),
            Owner::Nobody(_) => None,
        }
    }

    /// How many operations of its file are under way; of those without a file, none is held against another.
    fn begun(&self) -> Begun {
        match self {
            Owner::File(file) => file.begun.clone(),
            Owner::Nobody(_) => {
                static NOBODY: OnceLock<Begun> = OnceLock::new();
                NOBODY.get_or_init(Begun::default).clone()
            }
        }
    }

    /// The line of its file that `request` stands in.
    pub(crate) fn lane(&self, request: &Request) -> Option<(Arc<Lanes>, LaneKind)> {
        let file = self.file()?;
        let kind = file.lane(request)?;
        Some((file.lanes().clone(), kind))
    }

    /// Makes the file's data durable by `sync`: see [`OpenFile::synced`].
    pub(crate) fn synced(&self, sync: impl FnOnce() -> Outcome) -> Outcome {
        match self {
            Owner::File(file) => file.synced(sync),
            Owner::Nobody(_) => sync(),
        }
    }

    /// See [`OpenFile::begin_sync`].
    pub(crate) fn begin_sync(&self, sleep: impl FnOnce(&dyn Fn())) -> Option<Syncing<'_>> {
        match self {
            Owner::File(file) => file.begin_sync(sleep),
            Owner::Nobody(_) => None,
        }
    }

    pub(crate) fn count(&self, count: Count) {
        self.counters().add(count);
    }

    fn counters(&self) -> &Counters {
        match self {
            Owner::File(file) => &file.counters,
            Owner::Nobody(counters) => counters,
        }
    }

    /// Gives up its share of the file; the file, if that was the last one. Closes nothing.
    fn give_up(self) -> Option<Box<OpenFile>> {
        match self {
            Owner::File(file) => Arc::into_inner(file).map(Box::new),
            Owner::Nobody(_) => None,
        }
    }
}

/// A request and what keeps its descriptor open.
pub(crate) struct Work {
    pub(crate) request: Request,
    pub(crate) owner: Owner,
}

struct Inner {
    stage: Stage,
    /// The thread that submitted, in whose own queue it may be.
    thread: usize,
    /// The engine's until the slot is finished, then the future's. It stays where it is: an engine may have told the kernel.
    request: Option<Request>,
    /// Absent once the slot is finished, so that nothing keeps the file open for a future that is never polled; and while an engine
    /// has taken the work out.
    owner: Option<Owner>,
    /// A thread or the kernel has it, or had it: it counts as begun, for so much, until it ends.
    begun: u64,
    /// Dropped when the slot is finished or discarded: a permit.
    held: Option<Box<dyn Send>>,
}

impl Inner {
    /// Takes note whether a ring could do what it was to do without waiting.
    fn rang(&self, served: bool) {
        let (direction, transfer) = match &self.request {
            Some(Request::Read(transfer)) => (Direction::Read, transfer),
            Some(Request::Write(transfer, _)) => (Direction::Write, transfer),
            _ => return,
        };
        if let (true, Some(Owner::File(file))) = (transfer.attempt, &self.owner) {
            file.rings(direction).rang(served);
        }
    }
}

impl Slot {
    pub(crate) fn new(request: Request, owner: Owner, notify: Notify) -> Arc<Slot> {
        owner.counters().add(Count::Submitted);
        let inner = Inner {
            stage: Stage::Waiting(notify),
            thread: thread_number(),
            request: Some(request),
            owner: Some(owner),
            begun: 0,
            held: None,
        };
        Arc::new(Slot(Mutex::new(inner)))
    }

    /// Keeps something until the slot is finished or discarded.
    pub(crate) fn hold(&self, held: Box<dyn Send>) {
        let mut inner = lock(&self.0);
        if inner.owner.is_some() {
            inner.held = Some(held);
            return;
        }
        // It has ended meanwhile.
        drop(inner);
        drop(held);
    }

    /// Engine: counts something about a slot that it has.
    pub(crate) fn count(&self, count: Count) {
        if let Some(owner) = &lock(&self.0).owner {
            owner.counters().add(count);
        }
    }

    /// Engine: it goes to another engine, and is under way no longer.
    pub(crate) fn hand_on(&self) {
        let inner = &mut *lock(&self.0);
        if let Some(owner) = &inner.owner {
            owner.counters().add(Count::HandedOn);
            if let Owner::File(file) = owner {
                file.begun.fetch_sub(std::mem::take(&mut inner.begun), Relaxed);
            }
        }
    }

    /// Engine: a ring has refused it.
    pub(crate) fn refused(&self, errno: Errno) {
        if matches!(errno, Errno::AGAIN | Errno::OPNOTSUPP) {
            lock(&self.0).rang(false);
        }
    }

    /// Engine: looks at the work. The lock is uncontended but for the moment in which a future is dropped or
    /// changes its waker.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Request, &Owner) -> T) -> Option<T> {
        let inner = lock(&self.0);
        Some(look(inner.request.as_ref()?, inner.owner.as_ref()?))
    }

    /// Engine: takes the work out, to do it without holding the lock. None when it was abandoned:
    /// that ends it, here, so the thread is one that may wait.
    pub(crate) fn take_work(&self) -> Option<Work> {
        let mut inner = lock(&self.0);
        if matches!(inner.stage, Stage::Abandoned) {
            drop(inner);
            drop(self.discard());
            return None;
        }
        begin(&mut inner, ON_THREAD);
        Some(Work { owner: inner.owner.take()?, request: inner.request.take()? })
    }

    /// Engine: the kernel is to have it. Looks at the work, to encode it; if that gives nothing, the slot is to be handed on.
    pub(crate) fn begin<T>(&self, look: impl FnOnce(&Request, &Owner) -> Option<T>) -> Option<T> {
        let mut inner = lock(&self.0);
        begin(&mut inner, IN_QUEUE);
        look(inner.request.as_ref()?, inner.owner.as_ref()?)
    }

    /// Its file has fewer operations in queues to the kernel.
    pub(crate) fn is_below(&self, busy: u32) -> bool {
        let is_below = |file: &Arc<OpenFile>| in_queues(file.begun.load(Relaxed)) < busy;
        self.with(|_, owner| owner.file().is_none_or(is_below)) == Some(true)
    }

    /// Engine: puts back what `take_work` gave.
    pub(crate) fn put_back(&self, work: Work) {
        let mut inner = lock(&self.0);
        (inner.request, inner.owner) = (Some(work.request), Some(work.owner));
    }

    /// Engine: a read that the kernel was told of (`Transfer::announced`).
    pub(crate) fn is_announced(&self) -> bool {
        self.with(|request, _| matches!(request, Request::Read(transfer) if transfer.announced)) == Some(true)
    }

    /// Nobody waits for it any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(lock(&self.0).stage, Stage::Abandoned)
    }

    /// Nobody waits for it any more, for its end neither. A permit that is given back lets others in, which is not to be done
    /// under an engine's lock: what has one goes the whole way.
    pub(crate) fn is_unwanted(&self) -> bool {
        let inner = lock(&self.0);
        matches!(inner.stage, Stage::Abandoned) && inner.held.is_none()
    }

    /// Engine: ends an abandoned slot that was taken off a queue before the kernel had it.
    pub(crate) fn discard(&self) -> Leftovers {
        let inner = lock(&self.0);
        match (&inner.stage, &inner.owner) {
            (Stage::Abandoned, Some(_)) => finish(inner, Err(Errno::CANCELED), Count::Failed),
            _ => Leftovers::default(),
        }
    }

    /// Engine: takes a transfer's result into account, and finishes the slot. None when the rest of
    /// it must be asked for.
    pub(crate) fn complete(&self, result: Result<usize, Errno>, served: Count) -> Option<Leftovers> {
        let mut inner = lock(&self.0);
        if result.is_ok() {
            inner.rang(true);
        }
        let step = match &mut inner.request {
            Some(Request::Read(transfer) | Request::Write(transfer, _)) => step(transfer, result),
            _ => Step::Finish(result.map(drop)),
        };
        match (step, &inner.stage) {
            (Step::Again, Stage::Waiting(_)) => None,
            (Step::Again, _) => Some(finish(inner, Ok(Done::Nothing), served)),
            (Step::Finish(end), _) => Some(finish(inner, end.map(|()| Done::Nothing), served)),
        }
    }

    /// Engine: it is through with the slot, and counts it as `served`. Tells whoever waits, after the lock is released.
    pub(crate) fn finish(&self, outcome: Outcome, served: Count) -> Leftovers {
        finish(lock(&self.0), outcome, served)
    }

    /// Future: the outcome and the request if it is finished; else `waker` is told when it is.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<(Outcome, Request)> {
        let mut inner = lock(&self.0);
        if let Stage::Waiting(notify) = &inner.stage {
            if matches!(notify, Notify::Waker(waker) if waker.will_wake(context.waker())) {
                return Poll::Pending;
            }
            // A waker's clone and drop may run anything: not under the lock.
            drop(inner);
            let new = Notify::Waker(context.waker().clone());
            inner = lock(&self.0);
            if let Stage::Waiting(notify) = &mut inner.stage {
                let old = std::mem::replace(notify, new);
                let has_moved = std::mem::replace(&mut inner.thread, thread_number()) != thread_number();
                drop(inner);
                if has_moved {
                    help::ask();
                }
                drop(old);
                return Poll::Pending;
            }
        }
        match &mut inner.stage {
            Stage::Waiting(_) => Poll::Pending,
            _ => match take(&mut inner) {
                Some(taken) => Poll::Ready(taken),
                None => unreachable!("a slot is not polled after its result was taken"),
            },
        }
    }

    /// The outcome and the request, once it is finished.
    pub(crate) fn take(&self) -> Option<(Outcome, Request)> {
        take(&mut lock(&self.0))
    }

    /// Future: nobody will ask for the result. A hint only: what the kernel has it keeps until it is done.
    pub(crate) fn abandon(&self) {
        self.leave(Stage::Abandoned);
    }

    /// Future: nobody will ask for the result, and the operation is to end all the same.
    pub(crate) fn detach(&self) {
        self.leave(Stage::Waiting(Notify::Nobody));
    }

    fn leave(&self, stage: Stage) {
        let mut inner = lock(&self.0);
        match inner.stage {
            Stage::Waiting(_) => {
                let old = std::mem::replace(&mut inner.stage, stage);
                drop(inner);
                drop(old);
            }
            Stage::Abandoned | Stage::Taken => {}
            // Dropped here, by its caller's thread, and not by the engine whose share may be the last.
            Stage::Finished(_) => {
                let taken = take(&mut inner);
                drop(inner);
                drop(taken);
            }
        }
    }
}

impl Drop for Slot {
    /// Normally nothing is left. A slot that its engine drops unfinished, since it is torn down, has
    /// a buffer and a waker.
    fn drop(&mut self) {
        let inner = self.0.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if inner.request.is_some() {
            inner.request.take().into_iter().for_each(let_go);
        }
        if matches!(inner.stage, Stage::Waiting(_)) {
            let stage = std::mem::replace(&mut inner.stage, Stage::Taken);
            contained(|| drop(stage));
        }
    }
}

fn begin(inner: &mut Inner, counts: u64) {
    if let (0, Some(Owner::File(file))) = (inner.begun, &inner.owner) {
        file.begun.fetch_add(counts, Relaxed);
        inner.begun = counts;
    }
}

fn finish(mut inner: MutexGuard<'_, Inner>, outcome: Outcome, served: Count) -> Leftovers {
    let Some(owner) = inner.owner.take() else {
        debug_assert!(false, "a slot finishes once, and with its work put back");
        return Leftovers::default();
    };
    if let (Owner::File(file), 1..) = (&owner, inner.begun) {
        file.begun.fetch_sub(inner.begun, Relaxed);
    }
    if let (Owner::File(file), Some(request)) = (&owner, &inner.request) {
        file.heed(request, &outcome);
    }
    let held = inner.held.take();
    let stage = std::mem::replace(&mut inner.stage, Stage::Taken);
    // Counted before anybody can see the result, so that the counters never lag behind a caller's knowledge.
    owner.counters().add(match &stage {
        Stage::Waiting(_) if outcome.is_ok() => served,
        Stage::Waiting(_) => Count::Failed,
        Stage::Abandoned | Stage::Finished(_) | Stage::Taken => Count::Cancelled,
    });
    // The share of the file is given up before, too: `File::close` after the last result closes.
    let file = owner.give_up();
    match stage {
        Stage::Waiting(notify) if !matches!(notify, Notify::Nobody) => {
            inner.stage = Stage::Finished(outcome);
            drop(inner);
            drop(held);
            notify.tell();
            Leftovers { file, unwanted: None }
        }
        _ => {
            let request = inner.request.take();
            drop(inner);
            drop(held);
            Leftovers { file, unwanted: request.map(|request| Box::new((request, outcome))) }
        }
    }
}

fn take(inner: &mut Inner) -> Option<(Outcome, Request)> {
    if !matches!(inner.stage, Stage::Finished(_)) {
        return None;
    }
    match (std::mem::replace(&mut inner.stage, Stage::Taken), inner.request.take()) {
        (Stage::Finished(outcome), Some(request)) => Some((outcome, request)),
        _ => None,
    }
}

/// The common list of operations that belong together: their numbers, in the order in which they finish.
#[derive(Default)]
pub(crate) struct Batch(Mutex<Finished>);

#[derive(Default)]
struct Finished {
    numbers: Vec<usize>,
    waker: Option<Waker>,
    /// The thread that polled last, in whose own queue some may be.
    thread: Option<usize>,
}

impl Batch {
    fn add(&self, number: usize) {
        let mut finished = lock(&self.0);
        finished.numbers.push(number);
        let waker = finished.waker.take();
        drop(finished);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves the numbers that have finished since the last call into `numbers`; if there are none, leaves word whom to wake.
    pub(crate) fn poll(&self, context: &mut Context<'_>, numbers: &mut Vec<usize>) -> Poll<()> {
        // A waker's clone and drop may run anything: not under the lock.
        let waker = context.waker().clone();
        let mut finished = lock(&self.0);
        if !finished.numbers.is_empty() {
            std::mem::swap(&mut finished.numbers, numbers);
            drop(finished);
            return Poll::Ready(());
        }
        let old = finished.waker.replace(waker);
        let thread = thread_number();
        let has_moved = finished.thread.replace(thread).is_some_and(|before| before != thread);
        drop(finished);
        if has_moved {
            // A task that goes on on another worker is still its runtime's.
            let is_same = old.as_ref().is_some_and(|old| old.will_wake(context.waker()));
            help::ask_of(if is_same { help::Of::Threads } else { help::Of::All });
        }
        drop(old);
        Poll::Pending
    }
}

/// Where a queue to the kernel is full, possibly of what never ends, the pool does what is of files with fewer operations under
/// way. Others wait for a place, which their own completions give on.
pub(crate) const PLACES_MIN: u32 = 64;

/// Where the pool's threads all hang, other threads do what is of files with fewer operations under way.
pub(crate) const SHARE: u32 = 8;

/// Slots that wait for a place in a full queue: first come first served within a file, and of the files those first that have the
/// fewest operations under way, so that none takes all places. Abandoned ones are shed when they are met, and often enough
/// that they never outnumber those still wanted by more than a constant factor.
///
/// What is shed is the engine's to discard ([`Backlog::take_shed`]) once nothing is locked: that may
/// run a user's destructor, and close a file.
#[derive(Default)]
pub(crate) struct Backlog {
    files: HashMap<usize, Queued, BuildHasherDefault<AddressHasher>>,
    /// Whose turn it is.
    turns: VecDeque<usize>,
    length: usize,
    announced: usize,
    sweep_at: usize,
    shed: Vec<Arc<Slot>>,
    /// Shed, taken, and not discarded yet.
    leaving: usize,
    /// How many had ended in the queue when somebody last found more than before, and when that was.
    seen: Option<(u64, Instant)>,
}

/// When a queue with a line before it, or a pool with work in line, has come to the end of nothing for so long, what it has hangs: on a device
/// or server that does not answer.
pub(crate) const STUCK: Duration = Duration::from_secs(1);

/// Hashes addresses, which nobody chooses who would like them to collide.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // The golden ratio's bits; the lowest bits of addresses are zero.
        self.0 = (self.0 ^ (address as u64 >> 4)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The slots of one file, or of none.
struct Queued {
    begun: Begun,
    /// And whether each was announced.
    slots: VecDeque<(Arc<Slot>, bool)>,
}

/// How many files are looked at for the one whose turn it is.
const TURNS_MAX: usize = 16;

impl Backlog {
    pub(crate) fn push(&mut self, slot: Arc<Slot>) {
        if self.length >= self.sweep_at.max(64) {
            self.sweep();
        }
        self.put(slot, false);
    }

    /// Puts back what was just taken out.
    pub(crate) fn push_front(&mut self, slot: Arc<Slot>) {
        self.put(slot, true);
    }

    fn put(&mut self, slot: Arc<Slot>, first: bool) {
        let announced = slot.is_announced();
        let begun = slot.with(|_, owner| owner.begun()).unwrap_or_default();
        let key = Arc::as_ptr(&begun).addr();
        self.announced += usize::from(announced);
        self.length += 1;
        let queued = self.files.entry(key).or_insert_with(|| {
            if first {
                self.turns.push_front(key);
            } else {
                self.turns.push_back(key);
            }
            Queued { begun, slots: VecDeque::new() }
        });
        if first {
            queued.slots.push_front((slot, announced));
        } else {
            queued.slots.push_back((slot, announced));
        }
    }

    fn sweep(&mut self) {
        let Backlog { files, turns, length, announced, shed, .. } = self;
        for queued in files.values_mut() {
            queued.slots.retain(|(slot, was_announced)| {
                let keep = !slot.is_unwanted();
                if !keep {
                    shed.push(slot.clone());
                    *announced -= usize::from(*was_announced);
                    *length -= 1;
                }
                keep
            });
        }
        files.retain(|_, queued| !queued.slots.is_empty());
        turns.retain(|key| files.contains_key(key));
        self.sweep_at = self.length * 2;
    }

    /// The next one that is still waited for.
    pub(crate) fn pop(&mut self) -> Option<Arc<Slot>> {
        self.pop_below(u32::MAX, |begun| in_queues(begun) + on_threads(begun))
    }

    /// The same of files that have fewer operations under way than `busy_max`, by a count that `of` takes out of what has begun.
    pub(crate) fn pop_below(&mut self, busy_max: u32, of: impl Fn(u64) -> u32) -> Option<Arc<Slot>> {
        loop {
            let busy = |key: &usize| self.files.get(key).map_or(u32::MAX, |queued| of(queued.begun.load(Relaxed)));
            let turn = if busy_max == u32::MAX && self.turns.len() <= 1 {
                0
            } else {
                let looked_at = if busy_max == u32::MAX { TURNS_MAX } else { usize::MAX };
                let turns = self.turns.iter().take(looked_at).map(busy).enumerate();
                let free = turns.filter(|(_, busy)| *busy < busy_max || busy_max == u32::MAX);
                free.min_by_key(|(_, busy)| *busy)?.0
            };
            let key = *self.turns.get(turn)?;
            let queued = self.files.get_mut(&key)?;
            let next = queued.slots.pop_front();
            if queued.slots.is_empty() {
                self.files.remove(&key);
                self.turns.remove(turn);
            } else if self.turns.len() > 1 {
                self.turns.remove(turn);
                self.turns.push_back(key);
            }
            let Some((slot, announced)) = next else { continue };
            self.length -= 1;
            self.announced -= usize::from(announced);
            if !slot.is_unwanted() {
                return Some(slot);
            }
            self.shed.push(slot);
        }
    }

    /// All that is in line, for the pool, if the queue has come to the end of nothing for long; so far it has of `ended`. Whoever takes it
    /// says so when the pool has it ([`Backlog::discarded`]).
    pub(crate) fn take_stuck(&mut self, ended: u64, now: Instant) -> Vec<Arc<Slot>> {
        match self.seen {
            _ if self.length == 0 => self.seen = None,
            Some((before, since)) if before == ended => {
                if now.saturating_duration_since(since) >= STUCK {
                    self.seen = None;
                    let stuck: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
                    self.leaving += stuck.len();
                    return stuck;
                }
            }
            _ => self.seen = Some((ended, now)),
        }
        Vec::new()
    }

    pub(crate) fn has_shed(&self) -> bool {
        !self.shed.is_empty()
    }

    /// What was shed. Whoever takes it discards it, with nothing locked, and says so
    /// ([`Backlog::discarded`]).
    pub(crate) fn take_shed(&mut self) -> Vec<Arc<Slot>> {
        self.leaving += self.shed.len();
        std::mem::take(&mut self.shed)
    }

    pub(crate) fn discarded(&mut self, count: usize) {
        self.leaving -= count;
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Nothing is in line, and nothing that was is still to be discarded.
    pub(crate) fn is_quiet(&self) -> bool {
        self.length == 0 && self.shed.is_empty() && self.leaving == 0
    }

    /// How many of them were announced to the kernel.
    pub(crate) fn announced(&self) -> usize {
        self.announced
    }
}

#[cfg(test)]
mod fixture {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    pub(super) struct Wakes(pub(super) AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// A file, and a slot with a read of it.
    #[cfg(not(nowait_loom))]
    pub(super) fn file_and_slot() -> (Arc<OpenFile>, Arc<Slot>, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let handle = Handle::Simulated { file: 0, flags: OFlags::empty() };
        let file = Arc::new(OpenFile::new(handle, Directness::NotAsked, counters.clone()));
        let request = Request::Read(Transfer::new(Memory::Vec(vec![0; 8]), 0));
        let slot = Slot::new(request, Owner::File(file.clone()), Notify::Waker(Waker::noop().clone()));
        (file, slot, counters)
    }

    /// A slot with a read of eight bytes.
    pub(super) fn slot(notify: Notify) -> (Arc<Slot>, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let request = Request::Read(Transfer::new(Memory::Vec(vec![0; 8]), 0));
        (Slot::new(request, Owner::Nobody(counters.clone()), notify), counters)
    }
}

/// Every order in which an engine and a future can meet over a slot.
#[cfg(all(test, nowait_loom))]
mod loom_tests {
    use super::fixture::{Wakes, slot};
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn no_wake_up_is_lost_while_the_waker_changes() {
        loom::model(|| {
            let (first, second) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
            let (slot, _) = slot(Notify::Waker(Waker::from(first.clone())));
            let engine = slot.clone();
            let thread = loom::thread::spawn(move || drop(engine.finish(Ok(Done::Nothing), Count::Ring)));
            let ready = slot.poll(&mut Context::from_waker(&Waker::from(second.clone()))).is_ready();
            thread.join().unwrap();
            let woken = second.0.load(Ordering::SeqCst);
            assert!(ready || woken == 1, "neither an answer nor a wake-up");
            if !ready {
                assert!(slot.poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }
        });
    }

    #[test]
    fn abandonment_and_completion_end_in_one_of_them() {
        loom::model(|| {
            let (slot, counters) = slot(Notify::Waker(Waker::noop().clone()));
            let engine = slot.clone();
            let thread = loom::thread::spawn(move || {
                // As a pool does: taken out, worked on without the lock, put back.
                if let Some(work) = engine.take_work() {
                    engine.put_back(work);
                    drop(engine.finish(Ok(Done::Nothing), Count::Pool));
                }
            });
            slot.abandon();
            thread.join().unwrap();
            let stats = counters.snapshot();
            assert_eq!(stats.pool + stats.cancelled, 1, "{stats:?}");
            assert!(slot.with(|_, _| ()).is_none(), "the buffer is with the engine no longer");
        });
    }

    #[test]
    fn a_batch_tells_of_each_number_once() {
        loom::model(|| {
            let batch = Arc::new(Batch::default());
            let threads = [0, 1].map(|number| {
                let (slot, _) = slot(Notify::Batch(batch.clone(), number));
                loom::thread::spawn(move || drop(slot.finish(Ok(Done::Nothing), Count::Ring)))
            });
            let mut seen = Vec::new();
            loom::future::block_on(std::future::poll_fn(|context| {
                let mut numbers = Vec::new();
                while seen.len() < 2 {
                    std::task::ready!(batch.poll(context, &mut numbers));
                    seen.append(&mut numbers);
                }
                Poll::Ready(())
            }));
            for thread in threads {
                thread.join().unwrap();
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 1]);
        });
    }
}

#[cfg(all(test, not(nowait_loom)))]
mod tests {
    use super::fixture::Wakes;
    use super::*;
    use std::sync::atomic::Ordering;

    fn slot() -> (Arc<Slot>, Arc<Counters>) {
        fixture::slot(Notify::Waker(Waker::noop().clone()))
    }

    #[test]
    fn short_results_go_round_and_only_zero_ends_early() {
        let mut transfer = Transfer::new(Memory::Vec(vec![0; 8]), 0);
        assert_eq!(step(&mut transfer, Ok(3)), Step::Again);
        assert_eq!(step(&mut transfer, Err(Errno::INTR)), Step::Again);
        assert_eq!(step(&mut transfer, Ok(4)), Step::Again);
        assert_eq!(step(&mut transfer, Ok(0)), Step::Finish(Ok(())));
        assert_eq!((transfer.done(), transfer.left(), transfer.position()), (7, 1, 7));
        assert_eq!(step(&mut transfer, Ok(100)), Step::Finish(Ok(())), "more than asked for stays inside the buffer");
    }

    #[test]
    fn waker_is_told_once_and_the_last_one_counts() {
        let (slot, counters) = slot();
        let (first, second) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        let (first_waker, second_waker) = (Waker::from(first.clone()), Waker::from(second.clone()));
        assert!(slot.poll(&mut Context::from_waker(&first_waker)).is_pending());
        assert!(slot.poll(&mut Context::from_waker(&second_waker)).is_pending());
        assert!(slot.poll(&mut Context::from_waker(&second_waker)).is_pending());
        drop(slot.finish(Ok(Done::Nothing), Count::Ring));
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        assert!(slot.poll(&mut Context::from_waker(&first_waker)).is_ready());
        assert_eq!(counters.snapshot().ring, 1);
    }

    #[test]
    fn abandoned_slot_counts_as_cancelled_and_frees_its_buffer_at_the_completion() {
        let (slot, counters) = slot();
        slot.abandon();
        assert!(slot.with(|_, _| ()).is_some(), "the kernel may still write: the buffer stays");
        drop(slot.finish(Ok(Done::Nothing), Count::Ring));
        assert!(slot.with(|_, _| ()).is_none());
        let stats = counters.snapshot();
        assert_eq!((stats.cancelled, stats.ring), (1, 0));
    }

    #[test]
    fn completion_and_abandonment_race_to_exactly_one_end() {
        for _ in 0..200 {
            let (slot, counters) = slot();
            let engine = slot.clone();
            let thread = std::thread::spawn(move || drop(engine.finish(Ok(Done::Nothing), Count::Pool)));
            slot.abandon();
            thread.join().unwrap();
            let stats = counters.snapshot();
            assert_eq!(stats.pool + stats.cancelled, 1);
        }
    }

    #[test]
    fn backlog_is_first_come_first_served_and_sheds_the_abandoned() {
        let mut backlog = Backlog::default();
        let slots: Vec<_> = (0..1000).map(|_| slot()).collect();
        let mut shed = Vec::new();
        for (i, (slot, _)) in slots.iter().enumerate() {
            backlog.push(slot.clone());
            shed.append(&mut backlog.take_shed());
            if i % 10 != 0 {
                slot.abandon();
            }
        }
        assert!(backlog.len() < 400, "{} kept", backlog.len());
        for (expected, _) in slots.iter().step_by(10) {
            assert!(Arc::ptr_eq(expected, &backlog.pop().unwrap()));
        }
        assert!(backlog.pop().is_none());
        shed.append(&mut backlog.take_shed());
        assert_eq!(shed.len(), 900);
        // They end when whoever took them discards them, with nothing locked.
        assert!(slots.iter().all(|(_, counters)| counters.snapshot().ended() == 0));
        assert!(!backlog.is_quiet());
        shed.iter().for_each(|slot| drop(slot.discard()));
        backlog.discarded(shed.len());
        assert!(backlog.is_quiet());
        assert_eq!(slots.iter().filter(|(_, counters)| counters.snapshot().cancelled == 1).count(), 900);
    }

    #[test]
    fn what_is_in_line_leaves_a_queue_that_hangs_and_no_other() {
        let mut backlog = Backlog::default();
        let now = Instant::now();
        let just_before = now + STUCK - Duration::from_millis(1);
        backlog.push(slot().0);
        assert_eq!(backlog.take_stuck(7, now).len(), 0);
        assert_eq!(backlog.take_stuck(7, just_before).len(), 0);
        // One has ended.
        assert_eq!(backlog.take_stuck(8, now + STUCK).len(), 0);
        backlog.push(slot().0);
        assert_eq!(backlog.take_stuck(8, now + 2 * STUCK).len(), 2);
        // What comes later has its time.
        assert_eq!(backlog.take_stuck(8, now + 3 * STUCK).len(), 0);
        backlog.push(slot().0);
        assert_eq!(backlog.take_stuck(8, now + 4 * STUCK).len(), 0);
        assert_eq!(backlog.take_stuck(8, now + 5 * STUCK).len(), 1);
    }

    #[test]
    fn whoever_sees_the_result_has_the_only_share_of_the_file() {
        let rounds: Vec<_> = (0..1500).map(|_| (fixture::file_and_slot(), AtomicBool::new(false))).collect();
        let shares_seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // Two, so that one is awake while the slot's lock is given to the other.
            for _ in 0..2 {
                scope.spawn(|| {
                    for ((file, slot, _), seen) in &rounds {
                        while !seen.load(SeqCst) {
                            if slot.take().is_some() {
                                shares_seen.fetch_max(Arc::strong_count(file) as u64, SeqCst);
                                seen.store(true, SeqCst);
                            }
                        }
                    }
                });
            }
            for ((_, slot, _), seen) in &rounds {
                drop(slot.finish(Ok(Done::Nothing), Count::Ring));
                while !seen.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(shares_seen.into_inner(), 1, "`File::close` closes");
    }

    #[test]
    fn the_last_share_of_a_file_is_left_over() {
        for abandons in [false, true] {
            let (file, slot, counters) = fixture::file_and_slot();
            drop(file);
            if abandons {
                slot.abandon();
            }
            let leftovers = slot.finish(Ok(Done::Nothing), Count::Ring);
            assert!(leftovers.file.is_some() && leftovers.may_wait(), "it is closed by whoever drops that");
            assert_eq!(leftovers.unwanted.is_some(), abandons);
            assert_eq!(counters.snapshot().ended(), 1);
        }
        let (file, slot, _) = fixture::file_and_slot();
        assert!(!slot.finish(Ok(Done::Nothing), Count::Ring).may_wait());
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn a_detached_operation_ends_for_its_effect() {
        for finishes_first in [false, true] {
            let (slot, counters) = slot();
            if !finishes_first {
                slot.detach();
            }
            let leftovers = slot.finish(Ok(Done::Nothing), Count::Ring);
            assert_eq!(leftovers.unwanted.is_some(), !finishes_first);
            slot.detach();
            assert!(slot.take().is_none());
            assert_eq!(counters.snapshot().ring, 1);
        }
    }
}
