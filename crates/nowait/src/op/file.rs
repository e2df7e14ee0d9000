//! An open file as the engines know it: its selectors, the order of its changes, and the errors of
//! its write-back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use super::device::Device;
use super::leftovers::Leftovers;
use super::outstanding::{Change, Outstanding, Span, Syncing};
use super::queue::{FileQueues, QueueKind, Room};
use super::request::{Handle, Outcome, Request};
use super::slot::Slot;
use super::transfer::Transfer;
use crate::buf::Direction;
use crate::core::policy::{ReadSelector, Rings, WriteSelector};
use crate::direct::{Alignment, Direct, Directness};
use crate::error::{Error, ErrorKind, ErrorOp};
use crate::stats::{Count, Counters};
use crate::sys::{self, AsFd, BorrowedFd, Errno, OFlags, PerProcess, WriteFlags, WriteOnce};

/// The pools of an instance, for requests that no other engine can serve. Called with no lock held.
pub(crate) trait Fallback: Send + Sync {
    /// Takes a slot that a queue to the kernel cannot serve, and finishes it, as an engine does.
    fn take(&self, slot: Arc<Slot>);

    /// Drops leftovers of a file of this device, on a thread that may wait.
    fn let_go(&self, device: u64, leftovers: Leftovers);
}

/// An open file, as its users and the engines share it.
pub(crate) struct OpenFile {
    pub(crate) handle: Handle,
    /// The path by which it was opened; for errors.
    pub(crate) path: Arc<Path>,
    /// `File::close` was called.
    closed: AtomicBool,
    /// Reads and writes go past the page cache.
    pub(crate) direct: Option<Direct>,
    /// Direct I/O was asked for, but the file has none.
    direct_refused: bool,
    pub(crate) reads: ReadSelector,
    pub(crate) writes: WriteSelector,
    /// Writes and syncs that a thread will make. A thread at work there has a share of this, and
    /// none of the file.
    queues: PerProcess<Arc<FileQueues>>,
    /// Flags of every write. After an open with `O_SYNC` or `O_DSYNC`, writes wait for the device,
    /// and so report failed write-backs. After an open with `O_APPEND`, writes append. The kernel
    /// then ignores the offset, so it does not determine blocks, neighbours or the end. A partial
    /// attempt would let another record come between.
    write_flags: WriteFlags,
    /// Chosen by the first append, and again once `pwritev2(2)` is refused, whose flag makes a
    /// descriptor append.
    appenders: [WriteOnce<Appender>; 2],
    /// Last known end of the file.
    pub(crate) end: AtomicU64,
    /// End of the last write, whose page is cached.
    pub(crate) written_to: AtomicU64,
    /// The errno of a failed write-back, until it is acknowledged. The kernel reports it once to
    /// each descriptor, and takes the pages for clean from then on (`fsync(2)`, NOTES): a second
    /// sync that succeeds proves nothing.
    sync_failure: AtomicI32,
    /// Bytes of writes that are not durable, submitted since the last sync began. A hint, and not
    /// counted beyond [`UNSYNCED_BYTES_MAX`].
    unsynced_bytes: AtomicU64,
    pub(super) begun: OperationCount,
    device: WriteOnce<Arc<Device>>,
    pub(crate) counters: Arc<Counters>,
    /// No share of the instance, which may be dropped while slots are with an engine.
    pub(super) fallback: Arc<dyn Fallback>,
}

/// Counts a file's operations in queues to the kernel, and on threads. No share of the file.
pub(super) type OperationCount = Arc<AtomicU64>;

/// One operation, as [`OperationCount`] counts it.
pub(super) const IN_QUEUE: u64 = 1;
pub(super) const ON_THREAD: u64 = 1 << 32;

pub(crate) fn in_queues(begun: u64) -> u32 {
    begun as u32
}

pub(crate) fn on_threads(begun: u64) -> u32 {
    (begun >> 32) as u32
}

/// Bytes of other writes that a durable write may make durable with itself: some milliseconds of a
/// device.
const UNSYNCED_BYTES_MAX: u64 = 1 << 20;

/// The end of a file whose size was not looked at.
pub(crate) const END_UNKNOWN: u64 = u64::MAX;

impl OpenFile {
    pub(crate) fn new(
        handle: Handle,
        path: Arc<Path>,
        directness: Directness,
        counters: Arc<Counters>,
        fallback: Arc<dyn Fallback>,
    ) -> OpenFile {
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
        if flags.intersects(sys::DSYNC) {
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
            path,
            closed: AtomicBool::new(false),
            reads,
            writes: WriteSelector::default(),
            queues: PerProcess::new(),
            appenders: Default::default(),
            end: AtomicU64::new(END_UNKNOWN),
            written_to: AtomicU64::new(END_UNKNOWN),
            sync_failure: AtomicI32::new(0),
            unsynced_bytes: AtomicU64::new(0),
            begun: OperationCount::default(),
            device: WriteOnce::new(),
            counters,
            fallback,
        }
    }

    /// Operations that begin from now on fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Returns EBADF once the file was closed, and EOVERFLOW for bytes that no file can contain.
    #[inline]
    pub(crate) fn check(&self, offset: u64, length: usize) -> Result<(), Errno> {
        if self.closed.load(Relaxed) {
            return Err(Errno::BADF);
        }
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) { Err(Errno::OVERFLOW) } else { Ok(()) }
    }

    /// Makes an error of an operation on this file.
    pub(crate) fn error(&self, operation: ErrorOp, errno: Errno) -> Error {
        let error = Error::from_errno(operation, errno).at_shared(&self.path);
        match self.handle.descriptor().and_then(sys::flags) {
            // The descriptor is sound, so that EBADF has another meaning.
            // (ftruncate(2) says EINVAL for a descriptor that is for reading only.)
            Ok(flags)
                if (errno == Errno::BADF || (errno == Errno::INVAL && operation == ErrorOp::SetLen))
                    && !self.closed.load(Relaxed) =>
            {
                let needed = match flags & OFlags::RWMODE {
                    OFlags::WRONLY => "reading",
                    OFlags::RDONLY => "writing",
                    _ => return error,
                };
                let error = Error::new(operation, ErrorKind::PermissionDenied).at_shared(&self.path);
                error.with_advice(format!("the file was not opened for {needed}; open it for {needed} as well"))
            }
            _ => error,
        }
    }

    /// Drops a share of the file, on a thread that others rely on. The last share is closed
    /// elsewhere: `close(2)` may block.
    pub(crate) fn let_go(self: Arc<OpenFile>) {
        if let Some(open) = Arc::into_inner(self) {
            Leftovers::from(open).let_go();
        }
    }

    /// Returns whether reads and writes bypass the page cache now.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| !direct.is_refused())
    }

    /// Returns whether the file was found to have no direct I/O, at its open or later.
    pub(crate) fn refuses_direct(&self) -> bool {
        self.direct_refused || self.direct.as_ref().is_some_and(Direct::is_refused)
    }

    /// Returns the device that the file lies on.
    #[inline]
    pub(crate) fn device(&self) -> &Arc<Device> {
        #[cold]
        fn find(file: &OpenFile) -> &Arc<Device> {
            file.device.get_or_init(|| Device::of(&file.handle))
        }
        self.device.get().unwrap_or_else(|| find(self))
    }

    /// Has a thread of the device's pool measure the device's queue, if that is due. Call this with no
    /// lock held.
    #[inline]
    pub(crate) fn measure_device(&self) {
        let device = self.device();
        if let Some(measurement) = device.measurement() {
            let measurement: Box<dyn Send> = Box::new(measurement);
            self.fallback.let_go(device.number, measurement.into());
        }
    }

    /// Returns the handle for a request.
    #[inline]
    pub(crate) fn handle_for(&self, request: &Request) -> Result<&Handle, Errno> {
        match (request, &self.handle) {
            (Request::Write(_, flags), Handle::Descriptor(own)) if flags.contains(WriteFlags::APPEND) => {
                Ok(self.other_appender(own.as_fd())?.unwrap_or(&self.handle))
            }
            _ => Ok(&self.handle),
        }
    }

    /// Returns the descriptor for appends through the page cache; `cached` is one of this file.
    pub(crate) fn descriptor_to_append<'f>(&'f self, cached: BorrowedFd<'f>) -> Result<BorrowedFd<'f>, Errno> {
        self.other_appender(cached)?.map_or(Ok(cached), Handle::descriptor)
    }

    /// Returns the second handle for appends, where the file's own descriptors might overwrite.
    /// EOPNOTSUPP if there is no way to append: nothing may be written then.
    fn other_appender(&self, own: BorrowedFd<'_>) -> Result<Option<&Handle>, Errno> {
        let decided = self.appender();
        let appender = match decided.get() {
            Some(appender) => appender,
            None => {
                let found = Appender::find(own)?;
                decided.get_or_init(|| found)
            }
        };
        match appender {
            Appender::Own => Ok(None),
            Appender::Other(handle) => Ok(Some(handle)),
        }
    }

    fn appender(&self) -> &WriteOnce<Appender> {
        &self.appenders[usize::from(sys::are_write_flags_refused())]
    }

    /// True if the descriptor refused an append because `pwritev2(2)` is refused by now, so that the
    /// append needs another one.
    pub(crate) fn needs_other_appender(answer: Errno, flags: WriteFlags) -> bool {
        answer == Errno::NOSYS && flags.contains(WriteFlags::APPEND) && sys::are_write_flags_refused()
    }

    /// Acts as on a file system that may ignore `RWF_APPEND`; false if that was found out before.
    #[cfg(test)]
    pub(crate) fn distrust_append_flag(&self) -> bool {
        let other = self.handle.descriptor().and_then(Appender::reopen);
        other.is_ok_and(|other| self.appender().set(other).is_ok())
    }

    /// Flags of every write to this file.
    pub(crate) fn write_flags(&self) -> WriteFlags {
        self.write_flags
    }

    /// True if a write with these flags goes to the device, so that its error does not show how many
    /// bytes were written.
    pub(crate) fn reaches_the_device(&self, flags: WriteFlags) -> bool {
        self.direct.is_some() || flags.contains(WriteFlags::DURABLE)
    }

    /// Makes data durable by `sync`, unless an earlier write-back failed; remembers when this one
    /// does. The caller has claimed the queue of syncs, and `begin_sync`ed.
    pub(crate) fn synced(&self, sync: impl FnOnce() -> Outcome) -> Outcome {
        if let Some(errno) = self.failure() {
            return Err(errno);
        }
        // A write that was submitted, but not made yet, makes pages dirty later. These are few.
        self.unsynced_bytes.store(0, Relaxed);
        let outcome = sync();
        if let Err(errno) = outcome {
            self.note_failure(errno);
        }
        outcome
    }

    /// True if a sync of the file would write little else than its durable writes, as far as is
    /// known, and is needed to make them durable.
    pub(crate) fn has_only_durable_writes(&self) -> bool {
        self.unsynced_bytes.load(Relaxed) < UNSYNCED_BYTES_MAX
            && !self.write_flags.contains(WriteFlags::DURABLE)
            && !self.has_failed()
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

    /// True if a write excludes all other writes of the file: a part of it goes through the page
    /// cache, which the others bypass.
    pub(crate) fn writes_alone(&self, offset: u64, length: usize, flags: WriteFlags) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| flags.contains(WriteFlags::APPEND) || !direct.alignment().suits_place(offset, length))
    }

    /// The changes of this file that have begun and not ended.
    pub(crate) fn outstanding(&self) -> &Outstanding {
        self.queues().outstanding()
    }

    /// The bytes that a write of `length` bytes changes. Each write that is submitted calls this.
    pub(crate) fn span(&self, offset: u64, length: usize, flags: WriteFlags) -> Span {
        let flags = self.write_flags.with(flags);
        if !flags.contains(WriteFlags::DURABLE) && self.unsynced_bytes.load(Relaxed) < UNSYNCED_BYTES_MAX {
            self.unsynced_bytes.fetch_add(length as u64, Relaxed);
        }
        if flags.contains(WriteFlags::APPEND) { Span::END } else { Span::new(offset, length as u64) }
    }

    /// Describes a request that changes the file's bytes, for its turn; none for other requests.
    pub(crate) fn change(&self, request: &Request) -> Option<Change> {
        Some(match request {
            Request::Write(transfer, flags) => Change {
                span: self.span(transfer.position(), transfer.left(), *flags),
                bytes: transfer.left() as u64,
                alone: self.direct.is_some() && self.writes_alone(transfer.position(), transfer.left(), *flags),
                durable: self.direct.is_some() && flags.contains(WriteFlags::DURABLE),
            },
            // The bytes that are cut off, or that a longer file gains.
            Request::SetLen(length) => Change::of(Span { start: *length, end: u64::MAX }),
            Request::Allocate { offset, length, .. } => Change::of(Span::new(*offset, *length)),
            // Overlaps every change of the file's length.
            Request::ReserveAhead { offset, .. } => Change::of(Span { start: *offset, end: u64::MAX }),
            // Overlaps every write: each may move the file's true end.
            Request::GiveBack => Change::of(Span { start: 0, end: u64::MAX }),
            _ => return None,
        })
    }

    /// Claims the kernel's report of failed write-backs for a call that may take it, beside the
    /// queue of syncs: no direct durable write is under way meanwhile.
    pub(crate) fn begin_sync(&self, sleep: impl FnOnce(&dyn Fn())) -> Option<Syncing<'_>> {
        self.direct.is_some().then(|| self.outstanding().begin_sync(sleep))
    }

    /// The bytes of writes that are on their way: with an engine, or about to be.
    #[inline]
    pub(crate) fn on_their_way(&self) -> u64 {
        self.outstanding().on_their_way().bytes
    }

    /// Forgets where the file ends.
    pub(crate) fn forget_end(&self) {
        self.end.store(END_UNKNOWN, Relaxed);
    }

    /// The selector of direct I/O by rings.
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

    pub(crate) fn queues(&self) -> &Arc<FileQueues> {
        self.queues.get(Arc::default)
    }

    /// Whether the answer to `request` may take the kernel's one report of an earlier failed
    /// write-back.
    pub(crate) fn learns_of_failures(&self, request: &Request) -> bool {
        match request {
            Request::Sync { .. } | Request::SyncRange { .. } => true,
            Request::Write(_, flags) => flags.contains(WriteFlags::DURABLE),
            _ => false,
        }
    }

    /// The queue in which a request has its turn.
    pub(crate) fn queue(&self, request: &Request) -> Option<QueueKind> {
        match request {
            Request::Write(..) if self.direct.is_some() => None,
            // If two such requests ran at a time, one could consume the report that the other should
            // return.
            _ if self.learns_of_failures(request) => Some(QueueKind::Syncs),
            Request::Write(..) => Some(QueueKind::Writes),
            _ => None,
        }
    }

    /// Records lost data and the file's length from an answer, whether or not a caller waits for
    /// it. Call this before the change's turn ends. (Attempts need no call: they report no error,
    /// and never bypass the page cache.)
    pub(crate) fn note_answer(&self, request: &Request, outcome: &Outcome) {
        self.record_writeback_error(request, outcome);
        match request {
            Request::SetLen(length) if outcome.is_ok() => self.end.store(*length, Relaxed),
            Request::Allocate { .. } | Request::ReserveAhead { .. } | Request::GiveBack => self.forget_end(),
            _ => {}
        }
        let Some(Direct { ahead, .. }) = &self.direct else { return };
        match request {
            Request::Write(transfer, flags) if transfer.done() > 0 && !flags.contains(WriteFlags::APPEND) => {
                let (offset, _) = transfer.asked();
                ahead.reaches(offset + transfer.done() as u64);
            }
            Request::Allocate { offset, length, .. } if outcome.is_ok() => ahead.reaches(offset + length),
            Request::SetLen(_) if outcome.is_ok() => ahead.forget(),
            _ => {}
        }
    }

    /// Records lost data that an answer reports. (For syncs [`OpenFile::synced`] does that, once:
    /// many may share the answer, and it may be acknowledged before the last of them has got it.)
    fn record_writeback_error(&self, request: &Request, outcome: &Outcome) {
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

    /// Notes that a write ended at `end`.
    #[inline]
    pub(crate) fn wrote_to(&self, end: u64) {
        self.written_to.store(end, Relaxed);
        // An unknown end is the largest number, and stays.
        if self.end.load(Relaxed) < end {
            self.end.fetch_max(end, Relaxed);
        }
    }

    /// Records an errno that reports lost data, permanently and for all clones.
    pub(crate) fn note_failure(&self, errno: Errno) {
        if !tells_nothing(errno) {
            let _ = self.sync_failure.compare_exchange(0, errno.raw_os_error(), SeqCst, SeqCst);
        }
    }
}

/// A change's bytes on their way; given back when it is finished. No share of the file: the permit
/// outlives the slot's own, and `File::close` would find the file in use.
pub(crate) struct Permit {
    queues: Arc<FileQueues>,
    change: Change,
    /// In the order of the file's changes.
    number: u64,
}

impl Permit {
    /// Keeps what a change has of the room that `room` gives: the same one for each change of a
    /// file.
    pub(crate) fn new(
        queues: Arc<FileQueues>,
        change: Change,
        number: u64,
        room: impl FnOnce() -> Arc<dyn Room>,
    ) -> Permit {
        queues.room_or(room);
        Permit { queues, change, number }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(room) = self.queues.room() else { return };
        if room.give_back(&self.queues, &self.change, self.number) {
            room.clone().resume();
        }
    }
}

/// Whether an error shows that nothing was tried. All others count as lost data: file systems pass
/// on the device's errors (ENODATA, ETIMEDOUT, EREMOTEIO, …), and a durable write's ENOSPC may be
/// that of an earlier one.
fn tells_nothing(errno: Errno) -> bool {
    matches!(
        sys::named(errno),
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

/// The descriptor that appends to a file.
enum Appender {
    /// The file's own: it was opened with `O_APPEND`, or its file system honours `RWF_APPEND`.
    Own,
    /// Another of the same file, opened with `O_APPEND`.
    Other(Handle),
}

impl Appender {
    fn find(own: BorrowedFd<'_>) -> Result<Appender, Errno> {
        if sys::is_block_device(own) {
            // A block device does not grow, and uses the offset with any flags.
            return Err(Errno::OPNOTSUPP);
        }
        let flags = sys::flags(own)?;
        // A read-only descriptor cannot append; the write itself fails.
        let trusted = flags.contains(OFlags::APPEND) || flags & OFlags::RWMODE == OFlags::RDONLY;
        if trusted || (sys::honours_append_flag(own) && !sys::refuses_write_flags(own)) {
            return Ok(Appender::Own);
        }
        Appender::reopen(own).map_err(|errno| match errno {
            // These errors are temporary.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => errno,
            // No /proc, or permissions that would not let the file be opened once more.
            _ => Errno::OPNOTSUPP,
        })
    }

    fn reopen(own: BorrowedFd<'_>) -> Result<Appender, Errno> {
        let flags = sys::flags(own)? & sys::OPEN_FLAGS_KEPT | OFlags::APPEND;
        sys::reopen(own, flags).map(|fd| Appender::Other(Handle::Descriptor(fd)))
    }
}
