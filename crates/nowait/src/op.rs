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

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use rustix::fs::{Advice, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use self::sync::{Mutex, MutexGuard, lock};
use crate::buf::{Buf, Memory, Segments};
use crate::direct::{Alignment, Direct, Directness, Plan};
use crate::mapping::{Fault, Mapping, Missing};
use crate::select::{ReadSelector, WriteSelector};
use crate::stats::{Count, Counters};
use crate::sys::{PerProcess, WriteFlags};

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
    /// What every write asks for. Opened with `O_SYNC` or `O_DSYNC`: to wait for the device, and so to tell of failed write-backs. For
    /// direct I/O and with `O_APPEND`: to append, for the kernel ignores the offset, which then says nothing of blocks.
    write_flags: WriteFlags,
    /// Where the file was last known to end.
    pub(crate) end: AtomicU64,
    /// Where the last write ended, whose page is cached.
    pub(crate) written_to: AtomicU64,
    /// The errno of a write-back that failed, until somebody acknowledges it. The kernel tells it once to each descriptor, and
    /// takes the pages for clean from then on (`fsync(2)`, NOTES): a second sync that succeeds proves nothing.
    sync_failure: AtomicI32,
    pub(crate) counters: Arc<Counters>,
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
        if flags.contains(OFlags::APPEND) && direct.is_some() {
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
            end: AtomicU64::new(END_UNKNOWN),
            written_to: AtomicU64::new(END_UNKNOWN),
            sync_failure: AtomicI32::new(0),
            counters,
        }
    }

    /// What every write to this file asks for.
    pub(crate) fn write_flags(&self) -> WriteFlags {
        self.write_flags
    }

    /// Whether nobody knows, after an error, how much of a write with these flags has moved: it went to the device.
    pub(crate) fn reaches_the_device(&self, flags: WriteFlags) -> bool {
        self.direct.is_some() || flags.contains(WriteFlags::DURABLE)
    }

    /// Makes data durable by `sync`, unless an earlier write-back failed; remembers when this one does.
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

    /// The bytes of writes that are on their way: with an engine, or about to be.
    #[inline]
    pub(crate) fn on_their_way(&self) -> u64 {
        self.lanes().under_way.load(Relaxed)
    }

    /// Throttle, which is the only one to change it, under its lock. `alone`: nothing may come beside it.
    pub(crate) fn set_on_their_way(&self, bytes: u64, alone: bool) {
        self.lanes().under_way.store(bytes, Relaxed);
        self.lanes().alone.store(alone, Relaxed);
    }

    /// What is on its way has the file to itself.
    pub(crate) fn is_written_alone(&self) -> bool {
        self.lanes().alone.load(Relaxed)
    }

    /// Nobody knows any more where the file ends.
    pub(crate) fn forget_end(&self) {
        self.end.store(END_UNKNOWN, Relaxed);
    }

    fn failure(&self) -> Option<Errno> {
        let errno = self.sync_failure.load(SeqCst);
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    pub(crate) fn lanes(&self) -> &Arc<Lanes> {
        self.lanes.get(Arc::default)
    }

    /// Whether the kernel tells of an earlier failed write-back in the answer to `request`, and to nobody after that.
    fn learns_of_failures(&self, request: &Request) -> bool {
        match request {
            Request::Sync { .. } | Request::SyncRange { .. } => true,
            Request::Write(_, flags) => flags.contains(WriteFlags::DURABLE),
            _ => false,
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
    /// A ring is to say so (EAGAIN) first where only a kernel worker can write these bytes.
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
}

impl Notify {
    /// A waker that panics does so on a thread that works for many: it has been reported by the panic hook, and must not take
    /// the completions of others with it.
    fn tell(self) {
        let told = catch_unwind(AssertUnwindSafe(|| match self {
            Notify::Waker(waker) => waker.wake(),
            Notify::Batch(batch, number) => batch.add(number),
        }));
        // Dropping what was thrown could panic again.
        told.unwrap_or_else(std::mem::forget);
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
    pub(crate) slots: VecDeque<Arc<Slot>>,
    /// A thread is at it, or called.
    pub(crate) busy: bool,
}

/// What threads that write have in common, of one file and in one process.
#[derive(Default)]
pub(crate) struct Lanes {
    lanes: [Lane; 2],
    /// Bytes of writes on their way, and whether these are of one that nothing may be beside; changed under the throttle's lock.
    under_way: AtomicU64,
    alone: AtomicBool,
}

impl Lanes {
    pub(crate) fn of(&self, kind: LaneKind) -> &Lane {
        &self.lanes[kind as usize]
    }
}

impl Lane {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }

    /// Begins the work of the line itself. False when somebody is at it.
    pub(crate) fn enter(&self) -> bool {
        !std::mem::replace(&mut self.lock().busy, true)
    }

    /// Whoever entered is done. True when others have come, for whom a thread must be called.
    pub(crate) fn leave(&self) -> bool {
        let mut waiting = self.lock();
        waiting.busy = !waiting.slots.is_empty();
        waiting.busy
    }

    /// Puts a slot in line. True when a thread must be called.
    pub(crate) fn join(&self, slot: Arc<Slot>) -> bool {
        let mut waiting = self.lock();
        waiting.slots.push_back(slot);
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

    /// The line of its file that `request` stands in.
    pub(crate) fn lane(&self, request: &Request) -> Option<(Arc<Lanes>, LaneKind)> {
        let Owner::File(file) = self else { return None };
        let kind = match request {
            Request::Write(..) if file.direct.is_some() => return None,
            // Two that learn of failed write-backs must not be under way at a time: one would be told what the other should say.
            _ if file.learns_of_failures(request) => LaneKind::Syncs,
            Request::Write(..) => LaneKind::Writes,
            _ => return None,
        };
        Some((file.lanes().clone(), kind))
    }

    /// Makes the file's data durable by `sync`: see [`OpenFile::synced`].
    pub(crate) fn synced(&self, sync: impl FnOnce() -> Outcome) -> Outcome {
        match self {
            Owner::File(file) => file.synced(sync),
            Owner::Nobody(_) => sync(),
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
}

/// A request and what keeps its descriptor open.
pub(crate) struct Work {
    pub(crate) request: Request,
    pub(crate) owner: Owner,
}

struct Inner {
    stage: Stage,
    /// The engine's until the slot is finished, then the future's. It stays where it is: an engine may have told the kernel.
    request: Option<Request>,
    /// Absent once the slot is finished, so that nothing keeps the file open for a future that is never polled; and while an engine
    /// has taken the work out.
    owner: Option<Owner>,
    /// Dropped when the slot is finished or discarded: a permit.
    held: Option<Box<dyn Send>>,
}

impl Inner {
    /// The file, if this is the answer to an attempt of a ring; it is none any more.
    fn attempted(&mut self) -> Option<&OpenFile> {
        match (&mut self.request, &self.owner) {
            (Some(Request::Write(transfer, _)), Some(Owner::File(file))) => {
                std::mem::take(&mut transfer.attempt).then_some(&**file)
            }
            _ => None,
        }
    }
}

impl Slot {
    pub(crate) fn new(request: Request, owner: Owner, notify: Notify) -> Arc<Slot> {
        owner.counters().add(Count::Submitted);
        let inner = Inner { stage: Stage::Waiting(notify), request: Some(request), owner: Some(owner), held: None };
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

    /// Engine: a ring has refused it. True if that is because it was not to wait (`Transfer::attempt`): it is to be given to the ring
    /// again, and may wait then.
    pub(crate) fn refused(&self, errno: Errno) -> bool {
        let mut inner = lock(&self.0);
        let waited_for = matches!(inner.stage, Stage::Waiting(_));
        let attempted = inner.attempted();
        let punted = matches!(errno, Errno::AGAIN | Errno::OPNOTSUPP);
        if let (Some(file), true) = (attempted, punted) {
            file.writes.rang(false);
            return waited_for;
        }
        false
    }

    /// Engine: looks at the work, to encode it. The lock is uncontended but for the moment in which a future is dropped or
    /// changes its waker.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Request, &Owner) -> T) -> Option<T> {
        let inner = lock(&self.0);
        Some(look(inner.request.as_ref()?, inner.owner.as_ref()?))
    }

    /// Engine: takes the work out, to do it without holding the lock. None when it was abandoned, which ends it.
    pub(crate) fn take_work(&self) -> Option<Work> {
        let mut inner = lock(&self.0);
        let owner = inner.owner.take()?;
        let work = Work { request: inner.request.take()?, owner };
        if !matches!(inner.stage, Stage::Abandoned) {
            return Some(work);
        }
        let held = inner.held.take();
        drop(inner);
        drop(held);
        work.owner.counters().add(Count::Cancelled);
        None
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

    /// Engine: an abandoned slot was taken off a queue before the kernel had it. Frees what it holds.
    pub(crate) fn discard(&self) {
        drop(self.take_work());
    }

    /// Engine: takes a transfer's result into account, and finishes the slot unless the rest of it must be asked for. True
    /// when it must.
    pub(crate) fn complete(&self, result: Result<usize, Errno>, served: Count) -> bool {
        let mut inner = lock(&self.0);
        if let (Some(file), Ok(_)) = (inner.attempted(), result) {
            file.writes.rang(true);
        }
        let step = match &mut inner.request {
            Some(Request::Read(transfer) | Request::Write(transfer, _)) => step(transfer, result),
            _ => Step::Finish(result.map(drop)),
        };
        match (step, &inner.stage) {
            (Step::Again, Stage::Waiting(_)) => return true,
            (Step::Again, _) => finish(inner, Ok(Done::Nothing), served),
            (Step::Finish(end), _) => finish(inner, end.map(|()| Done::Nothing), served),
        }
        false
    }

    /// Engine: it is through with the slot, and counts it as `served`. Tells whoever waits, after the lock is released.
    pub(crate) fn finish(&self, outcome: Outcome, served: Count) {
        finish(lock(&self.0), outcome, served);
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
                drop(inner);
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
        let mut inner = lock(&self.0);
        if let Stage::Waiting(_) = inner.stage {
            let old = std::mem::replace(&mut inner.stage, Stage::Abandoned);
            drop(inner);
            drop(old);
        }
    }
}

fn finish(mut inner: MutexGuard<'_, Inner>, outcome: Outcome, served: Count) {
    let Some(owner) = inner.owner.take() else {
        debug_assert!(false, "a slot finishes once, and with its work put back");
        return;
    };
    if let (Owner::File(file), Some(request)) = (&owner, &inner.request) {
        file.heed(request, &outcome);
    }
    let held = inner.held.take();
    match std::mem::replace(&mut inner.stage, Stage::Taken) {
        Stage::Waiting(notify) => {
            // Counted before anybody can see the result, so that the counters never lag behind a caller's knowledge.
            owner.counters().add(if outcome.is_ok() { served } else { Count::Failed });
            inner.stage = Stage::Finished(outcome);
            drop(inner);
            // First the file is let go: who is told may want to find it closed.
            drop(owner);
            drop(held);
            notify.tell();
        }
        Stage::Abandoned | Stage::Finished(_) | Stage::Taken => {
            let request = inner.request.take();
            drop(inner);
            drop(request);
            drop(held);
            owner.counters().add(Count::Cancelled);
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
        drop(finished);
        drop(old);
        Poll::Pending
    }
}

/// Slots that wait for a place in a full queue, first come first served. Abandoned ones are let go when they are met, and
/// often enough that they never outnumber those still wanted by more than a constant factor.
#[derive(Default)]
pub(crate) struct Backlog {
    /// And whether each was announced.
    slots: std::collections::VecDeque<(Arc<Slot>, bool)>,
    announced: usize,
    sweep_at: usize,
}

impl Backlog {
    pub(crate) fn push(&mut self, slot: Arc<Slot>) {
        if self.slots.len() >= self.sweep_at.max(64) {
            self.slots.retain(|(slot, announced)| {
                let keep = !slot.is_unwanted();
                if !keep {
                    slot.discard();
                    self.announced -= usize::from(*announced);
                }
                keep
            });
            self.sweep_at = self.slots.len() * 2;
        }
        let announced = slot.is_announced();
        self.announced += usize::from(announced);
        self.slots.push_back((slot, announced));
    }

    /// Puts back what was just taken out.
    pub(crate) fn push_front(&mut self, slot: Arc<Slot>) {
        let announced = slot.is_announced();
        self.announced += usize::from(announced);
        self.slots.push_front((slot, announced));
    }

    /// The next one that somebody still waits for.
    pub(crate) fn pop(&mut self) -> Option<Arc<Slot>> {
        while let Some((slot, announced)) = self.slots.pop_front() {
            self.announced -= usize::from(announced);
            if !slot.is_unwanted() {
                return Some(slot);
            }
            slot.discard();
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
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
            let thread = loom::thread::spawn(move || engine.finish(Ok(Done::Nothing), Count::Ring));
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
                    engine.finish(Ok(Done::Nothing), Count::Pool);
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
                loom::thread::spawn(move || slot.finish(Ok(Done::Nothing), Count::Ring))
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
        slot.finish(Ok(Done::Nothing), Count::Ring);
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        assert!(slot.poll(&mut Context::from_waker(&first_waker)).is_ready());
        assert_eq!(counters.snapshot().ring, 1);
    }

    #[test]
    fn abandoned_slot_counts_as_cancelled_and_frees_its_buffer_at_the_completion() {
        let (slot, counters) = slot();
        slot.abandon();
        assert!(slot.with(|_, _| ()).is_some(), "the kernel may still write: the buffer stays");
        slot.finish(Ok(Done::Nothing), Count::Ring);
        assert!(slot.with(|_, _| ()).is_none());
        let stats = counters.snapshot();
        assert_eq!((stats.cancelled, stats.ring), (1, 0));
    }

    #[test]
    fn completion_and_abandonment_race_to_exactly_one_end() {
        for _ in 0..200 {
            let (slot, counters) = slot();
            let engine = slot.clone();
            let thread = std::thread::spawn(move || engine.finish(Ok(Done::Nothing), Count::Pool));
            slot.abandon();
            thread.join().unwrap();
            let stats = counters.snapshot();
            assert_eq!(stats.pool + stats.cancelled, 1);
        }
    }

    #[test]
    fn backlog_is_first_come_first_served_and_sheds_the_abandoned() {
        let mut backlog = Backlog::default();
        let slots: Vec<_> = (0..1000).map(|_| slot().0).collect();
        for (i, slot) in slots.iter().enumerate() {
            backlog.push(slot.clone());
            if i % 10 != 0 {
                slot.abandon();
            }
        }
        assert!(backlog.slots.len() < 400, "{} kept", backlog.slots.len());
        for expected in slots.iter().step_by(10) {
            assert!(Arc::ptr_eq(expected, &backlog.pop().unwrap()));
        }
        assert!(backlog.pop().is_none());
    }
}
