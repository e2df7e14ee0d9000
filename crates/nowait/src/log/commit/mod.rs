//! Group commit without a thread for it: whoever waits, and finds room among the writes in flight, writes what is pending.
//!
//! An append copies its records into the open block and does nothing else. A thread that waits for its record takes the
//! oldest block, if fewer writes are in flight than may be, and waits for the device in the call that submits; meanwhile others fill the
//! next block. It finishes everybody in its block, and has one of those who wait for the next one take over. Futures and
//! callbacks have nobody who sits in a system call for them: there a write is submitted, and the engine's completion carries it on.
//!
//! A block has its place in a segment from the moment when it is opened, so that no record that was given an LSN can find
//! the disk full. Blocks may become durable in any order; acknowledged is what has everything before it.

mod calls;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;

use super::dir::Folder;
use super::format::{
    self, BLOCK_HEADER_BYTES, BlockHeader, Control, End, FRAME_BYTES, PAGE, SegmentHeader, block_bytes,
};
use super::maintenance::Preparer;
use super::recover::Segment;
use super::stats::{Numbers, Powers};
use super::{Durability, Submitter};
use crate::buf::lock;
use crate::engine::sim::Sim;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::File;
use crate::sys;
use crate::{Buf, BufferResult, Write};
use calls::{Call, Callback, Calls};

/// What a block holds at most, unless one batch is larger.
const BLOCK_PAYLOAD_MAX: usize = (256 << 10) - BLOCK_HEADER_BYTES;

/// So many records at a time are many.
const CROWD: u32 = 16;

pub(super) struct Shared {
    pub(super) folder: Folder,
    pub(super) control: Control,
    pub(super) limits: Limits,
    core: Mutex<Core>,
    durable: AtomicU64,
    /// Where the keeper sleeps.
    pub(super) work: Condvar,
    /// Where appends wait for room.
    pub(super) room: Condvar,
    pub(super) woken: Powers,
    /// Held by whoever changes names in the directory; before the core.
    pub(super) names: Names,
    pub(super) calls: Calls,
    /// Who prepares a segment where there is no keeper.
    pub(super) preparer: Mutex<Preparer>,
    pub(super) clock: Clock,
    /// The keeper's thread, which must not wait for itself.
    pub(super) keeper: OnceLock<std::thread::ThreadId>,
    /// The process that opened the log; a child of it has no keeper, and must not write.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes that are appended and not durable.
    pub(super) pending_bytes_max: u64,
    /// Room that only appends from the reserve may take when no more can be had.
    pub(super) reserve_bytes: u64,
    pub(super) depth: usize,
    /// A thread of the log's own prepares segments.
    pub(super) has_keeper: bool,
}

/// A segment that is written, or will be.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) number: u64,
    pub(super) file: File,
}

pub(super) struct Core {
    pub(super) next_lsn: u64,
    pub(super) epoch: u64,
    /// The block that appends go to.
    open: Option<Block>,
    /// Closed, oldest first.
    ready: VecDeque<Block>,
    in_flight: VecDeque<Flight>,
    next_flight: u64,
    /// Segments that the log has left, to be closed with nothing locked.
    left: Vec<Live>,
    /// LSN of the last record that was submitted.
    submitted: u64,
    pending_bytes: u64,
    /// Where the next block is opened.
    pub(super) current: Live,
    offset: u64,
    /// Those that are read, the current one last. Its end is not kept up.
    pub(super) segments: Vec<Segment>,
    pub(super) spares: VecDeque<Live>,
    /// Why no more can be had.
    pub(super) no_spare: Option<Error>,
    pub(super) no_spare_since: Option<Instant>,
    /// Cut off from the log, not removed yet; oldest first.
    pub(super) retired: Vec<u64>,
    pub(super) number_max: u64,
    pub(super) poison: Option<Poison>,
    /// Epochs that began with a cut of the end, and the last record that was left.
    pub(super) cuts: Vec<(u64, u64)>,
    /// The highest watermark that a block in the segments carries, once that is durable.
    stamped: u64,
    /// When a record was appended, or a write was done, last.
    pub(super) last_active: Instant,
    pub(super) keeper_sleeps: bool,
    pub(super) closing: bool,
    /// Closing, with nobody left who would come for what is pending.
    is_dropped: bool,
    /// Threads in `room`.
    pub(super) appends_wait: u32,
    /// Somebody is about to write, with what has come by then.
    is_gathering: bool,
    /// Records of the block that ended last, and of the one that was open then.
    crowd: u32,
    watchers: Vec<(u64, Waker)>,
    /// Those who wait for room to append.
    pub(super) rooms: Vec<Waker>,
    pub(super) numbers: Numbers,
}

#[derive(Clone)]
pub(super) struct Poison {
    error: Error,
    /// What was submitted, and may be there after all.
    submitted: u64,
}

/// Records that become durable together.
struct Block {
    live: Live,
    /// The block is the first of its segment.
    header: Option<SegmentHeader>,
    /// Place in the segment: of the header if there is one.
    offset: u64,
    buffer: Buf,
    payload: usize,
    first_lsn: u64,
    records: u32,
    /// It goes to the disk although it holds no record.
    stamps: bool,
    /// Nothing follows: it leaves when all before it is durable, so that its watermark speaks of all.
    last: bool,
    /// And says that the log was closed.
    closed: bool,
    group: Arc<Group>,
    opened: Instant,
}

impl Block {
    /// Where the block begins in the buffer.
    fn base(&self) -> usize {
        if self.header.is_some() { PAGE } else { 0 }
    }

    fn bytes(&self) -> usize {
        self.base() + block_bytes(self.payload)
    }

    /// It goes to the disk.
    fn is_wanted(&self) -> bool {
        self.records > 0 || self.stamps
    }

    fn last_lsn(&self) -> u64 {
        (self.first_lsn + u64::from(self.records)).saturating_sub(1)
    }

    fn fits(&self, payload: usize, end: u64) -> bool {
        let all = self.payload + payload;
        (all <= BLOCK_PAYLOAD_MAX || self.payload == 0) && self.offset + (self.base() + block_bytes(all)) as u64 <= end
    }

    /// None when there is no memory.
    fn put(&mut self, record: &[u8]) -> Option<()> {
        let at = self.base() + BLOCK_HEADER_BYTES + self.payload;
        let end = at + FRAME_BYTES + record.len();
        self.make_room(end)?;
        format::put_record(&mut self.buffer[at..end], record);
        self.payload += FRAME_BYTES + record.len();
        self.records += 1;
        Some(())
    }

    fn make_room(&mut self, bytes: usize) -> Option<()> {
        if bytes > self.buffer.len() {
            let mut larger = Buf::uncleared(bytes.next_power_of_two().max(PAGE))?;
            let used = self.base() + BLOCK_HEADER_BYTES + self.payload;
            let used = used.min(self.buffer.len());
            larger[..used].copy_from_slice(&self.buffer[..used]);
            self.buffer = larger;
        }
        Some(())
    }
}

/// A block on its way.
struct Flight {
    id: u64,
    last_lsn: u64,
    watermark: u64,
    bytes: u64,
    /// It carries a segment's header.
    is_first: bool,
    group: Arc<Group>,
    done: bool,
    /// No thread waits for it.
    carried: bool,
    records: u32,
    payload: usize,
    opened: Instant,
    submitted: Instant,
}

/// What a flight's block says, to be sealed and written with nothing locked.
struct Takeoff {
    id: u64,
    block: Block,
    epoch: u64,
    watermark: u64,
    /// Dropped with the rest.
    _left: Vec<Live>,
}

/// A block as it is to be written.
struct Sealed {
    live: Live,
    buffer: Buf,
    offset: u64,
}

/// Those who wait for one block.
pub(super) struct Group {
    state: AtomicU32,
    /// Threads that sleep, and have not been told to lead. Changes with the core locked.
    sleepers: AtomicU32,
    /// When it was through.
    ended: OnceLock<Instant>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    wakers: Vec<Option<Waker>>,
    callbacks: Vec<(u64, Callback)>,
}

const PENDING: u32 = 0;
/// One of those who sleep shall write the next block.
const LEAD: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;

impl Group {
    fn new(state: u32) -> Arc<Group> {
        Arc::new(Group {
            state: AtomicU32::new(state),
            sleepers: AtomicU32::new(0),
            ended: OnceLock::new(),
            waiting: Mutex::default(),
        })
    }

    /// Somebody waits who cannot write the block himself.
    fn has_idle_waiters(&self) -> bool {
        let waiting = lock(&self.waiting);
        !waiting.callbacks.is_empty() || waiting.wakers.iter().any(Option::is_some)
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) >= DONE
    }

    /// Wakes the threads that wait; gives who else does.
    fn end(&self, state: u32) -> Waiting {
        // A group ends once.
        let _ = self.ended.set(Instant::now());
        let waiting = {
            let mut waiting = lock(&self.waiting);
            self.state.store(state, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        // Cannot fail but for a bad address, which a reference has not.
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, u32::MAX >> 1);
        waiting
    }
}

/// What is to be done, with nothing locked, when writes have ended.
#[derive(Default)]
struct Ended {
    lead: Option<Arc<Group>>,
    carry: bool,
    done: Vec<Flight>,
    failed: Vec<Flight>,
    /// Failed before they left.
    unwritten: Vec<Block>,
    watchers: Vec<Waker>,
}

/// The time by which a log decides what is due: the system's, or that of the simulator that it runs on.
pub(super) enum Clock {
    System,
    Simulated(Sim),
}

impl Clock {
    pub(super) fn now(&self) -> Instant {
        match self {
            Clock::System => Instant::now(),
            Clock::Simulated(sim) => sim.now(),
        }
    }

    pub(super) fn since(&self, then: Instant) -> Duration {
        self.now().saturating_duration_since(then)
    }
}

/// A lock that knows which thread holds it.
#[derive(Default)]
pub(super) struct Names {
    lock: Mutex<()>,
    holder: AtomicUsize,
}

pub(super) struct NamesGuard<'a> {
    names: &'a Names,
    _guard: MutexGuard<'a, ()>,
}

impl Names {
    /// None when this thread holds it already.
    pub(super) fn lock(&self) -> Option<NamesGuard<'_>> {
        if self.is_mine() {
            return None;
        }
        let guard = lock(&self.lock);
        self.holder.store(this_thread(), Ordering::Relaxed);
        Some(NamesGuard { names: self, _guard: guard })
    }

    /// Only this thread writes its own mark, so that the answer holds.
    pub(super) fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }
}

impl Drop for NamesGuard<'_> {
    fn drop(&mut self) {
        self.names.holder.store(0, Ordering::Relaxed);
    }
}

/// An address that no other thread has while this one lives.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Where an append goes.
enum Spot {
    OpenBlock,
    /// A block is opened behind those that are there.
    NewBlock,
    /// The log goes on in the next segment.
    NextSegment,
}

/// Why an append has to wait, or cannot be.
pub(super) enum NoRoom {
    /// So many bytes wait to become durable that more must not.
    Budget,
    /// The next segment is being prepared.
    NoSpare,
    Refused(Error),
}

impl NoRoom {
    /// For those who cannot wait for room, in a segment that has just begun.
    pub(super) fn into_error(self, shared: &Shared) -> Error {
        match self {
            NoRoom::Refused(error) => error,
            NoRoom::Budget | NoRoom::NoSpare => {
                shared.error(ErrorOp::Append, ErrorKind::NoSpace, "the segment has no room")
            }
        }
    }
}

impl Shared {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        folder: Folder,
        control: Control,
        limits: Limits,
        epoch: u64,
        current: Live,
        segments: Vec<Segment>,
        number_max: u64,
    ) -> Shared {
        let last_lsn = segments.last().map_or(0, |segment| segment.header.previous.lsn);
        let clock = folder.instance.0.sim().map_or(Clock::System, |sim| Clock::Simulated(sim.clone()));
        let core = Core {
            next_lsn: last_lsn + 1,
            epoch,
            open: None,
            ready: VecDeque::new(),
            in_flight: VecDeque::new(),
            next_flight: 0,
            left: Vec::new(),
            submitted: last_lsn,
            pending_bytes: 0,
            current,
            // The first block carries the header.
            offset: 0,
            segments,
            spares: VecDeque::new(),
            no_spare: None,
            no_spare_since: None,
            retired: Vec::new(),
            number_max,
            poison: None,
            cuts: Vec::new(),
            stamped: last_lsn,
            last_active: clock.now(),
            keeper_sleeps: false,
            closing: false,
            is_dropped: false,
            appends_wait: 0,
            is_gathering: false,
            crowd: 0,
            watchers: Vec::new(),
            rooms: Vec::new(),
            numbers: Numbers::default(),
        };
        Shared {
            folder,
            control,
            limits,
            core: Mutex::new(core),
            durable: AtomicU64::new(last_lsn),
            work: Condvar::new(),
            room: Condvar::new(),
            woken: Powers::default(),
            names: Names::default(),
            calls: Calls::new(),
            preparer: Mutex::default(),
            clock,
            keeper: OnceLock::new(),
            generation: sys::fork_generation(),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn is_forked(&self) -> bool {
        sys::fork_generation() != self.generation
    }

    pub(super) fn error(&self, name: ErrorOp, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(name, kind).at(&self.folder.path).explained(text)
    }

    pub(super) fn forked(&self) -> Error {
        let text = "the log was opened before the fork, and belongs to the parent; open another one in the child";
        self.error(ErrorOp::Append, ErrorKind::InvalidInput, text)
    }

    /// What becomes of a record that was not acknowledged.
    fn failure(&self, poison: &Poison, lsn: u64) -> Error {
        let (kind, text) = if lsn <= poison.submitted {
            let text = format!(
                "record {lsn} was on its way when a write of the log failed: it may be there, or not; open the log anew"
            );
            (ErrorKind::Indeterminate, text)
        } else {
            let text = format!("record {lsn} was not written, since a write of the log had failed; open the log anew");
            (ErrorKind::Poisoned, text)
        };
        self.error(ErrorOp::Append, kind, format!("{text} ({})", poison.error))
    }

    pub(super) fn poisoned(&self, core: &Core) -> Option<Error> {
        let poison = core.poison.as_ref()?;
        let text = format!("a write of the log failed: nothing more is taken; open the log anew ({})", poison.error);
        Some(self.error(ErrorOp::Append, ErrorKind::Poisoned, text))
    }

    // Appending.

    /// Takes records as one batch; gives the LSN of the last, and those who wait for it.
    pub(super) fn append(
        &self,
        records: &[&[u8]],
        from_reserve: bool,
    ) -> std::result::Result<(u64, Arc<Group>), NoRoom> {
        if self.is_forked() {
            return Err(NoRoom::Refused(self.forked()));
        }
        let payload = self.payload_of(records).map_err(NoRoom::Refused)?;
        let mut core = self.core();
        let core = &mut *core;
        self.admits(core, payload)?;
        self.make_room(core, payload, from_reserve)?;
        let Some(block) = core.open.as_mut() else { return Err(NoRoom::NoSpare) };
        let (had, had_records) = (block.payload, block.records);
        for record in records {
            if block.put(record).is_none() {
                (block.payload, block.records) = (had, had_records);
                let error = Error::from_errno(ErrorOp::Append, Errno::NOMEM).at(&self.folder.path);
                return Err(NoRoom::Refused(error));
            }
        }
        core.next_lsn += records.len() as u64;
        core.pending_bytes += payload as u64;
        core.last_active = block.opened;
        let (lsn, group) = (core.next_lsn - 1, block.group.clone());
        core.wake_keeper(&self.work);
        Ok((lsn, group))
    }

    /// Whether so much more may be appended, wherever it goes.
    #[inline]
    fn admits(&self, core: &Core, payload: usize) -> std::result::Result<(), NoRoom> {
        if let Some(error) = self.poisoned(core) {
            return Err(NoRoom::Refused(error));
        }
        if core.closing {
            let error = self.error(ErrorOp::Append, ErrorKind::Closed, "the log was closed; open it anew");
            return Err(NoRoom::Refused(error));
        }
        match core.pending_bytes > 0 && core.pending_bytes + payload as u64 > self.limits.pending_bytes_max {
            true => Err(NoRoom::Budget),
            false => Ok(()),
        }
    }

    /// Whether an append of so much would go through now; changes nothing.
    pub(super) fn has_room(&self, core: &Core, payload: usize) -> std::result::Result<(), NoRoom> {
        self.admits(core, payload)?;
        self.find_room(core, payload, false).map(drop)
    }

    fn payload_of(&self, records: &[&[u8]]) -> Result<usize> {
        let payload: usize = records.iter().map(|record| FRAME_BYTES + record.len()).sum();
        if records.is_empty() {
            return Err(self.error(ErrorOp::Append, ErrorKind::InvalidInput, "a batch has at least one record"));
        }
        self.check_payload(payload).map(|()| payload)
    }

    /// Refuses what never fits: beside the header, and the page that is kept for the last stamp.
    pub(super) fn check_payload(&self, payload: usize) -> Result<()> {
        let most = self.control.segment_bytes as usize - 2 * PAGE;
        if block_bytes(payload) > most || payload > u32::MAX as usize / 2 {
            let text = format!(
                "{payload} bytes do not fit into a segment of {} bytes; append less at a time, or make the log with larger segments",
                self.control.segment_bytes
            );
            return Err(self.error(ErrorOp::Append, ErrorKind::InvalidInput, text));
        }
        Ok(())
    }

    /// Sees to it that the open block takes so much.
    #[inline]
    fn make_room(&self, core: &mut Core, payload: usize, from_reserve: bool) -> std::result::Result<(), NoRoom> {
        match self.find_room(core, payload, from_reserve) {
            Ok(Spot::OpenBlock) => return Ok(()),
            Ok(Spot::NewBlock) => core.close_block(),
            Ok(Spot::NextSegment) => {
                core.close_block();
                self.rotate(core);
            }
            Err(no_room) => {
                if matches!(no_room, NoRoom::NoSpare) && core.spares.is_empty() {
                    core.numbers.spares_missed += 1;
                }
                return Err(no_room);
            }
        }
        core.open_block(self.clock.now());
        Ok(())
    }

    /// Where so much can go; changes nothing.
    #[inline]
    fn find_room(&self, core: &Core, payload: usize, from_reserve: bool) -> std::result::Result<Spot, NoRoom> {
        // The last page of a segment is kept for the stamp that closes the log: it must not need another segment, which may not be had.
        let end = if core.closing { self.control.segment_bytes } else { self.usable_end() };
        if !from_reserve && self.limits.reserve_bytes > 0 {
            let left = core.room_left(self.usable_end());
            if left < self.limits.reserve_bytes.saturating_add(block_bytes(payload) as u64) {
                // What is not known to be the last is not known to be the reserve: the keeper finds out.
                return Err(self.no_spare(core, left, ", of which what is reserved is not for this append"));
            }
        }
        if core.open.as_ref().is_some_and(|block| block.fits(payload, end)) {
            return Ok(Spot::OpenBlock);
        }
        if core.offset_behind_open() + block_bytes(payload) as u64 <= end {
            return Ok(Spot::NewBlock);
        }
        match core.spares.is_empty() {
            true => Err(self.no_spare(core, core.room_left(self.usable_end()), ", too few")),
            false => Ok(Spot::NextSegment),
        }
    }

    /// Behind the last byte of a segment that is for records.
    pub(super) fn usable_end(&self) -> u64 {
        self.control.segment_bytes - PAGE as u64
    }

    #[cold]
    fn no_spare(&self, core: &Core, left: u64, what: &str) -> NoRoom {
        let Some(error) = &core.no_spare else { return NoRoom::NoSpare };
        if !self.limits.has_keeper && self.may_try_again(core) {
            // Nobody else does.
            return NoRoom::NoSpare;
        }
        let text = format!(
            "no segment can be prepared, and {left} bytes of those that are there are left{what}; \
             make space, such as by truncate_prefix ({error})"
        );
        NoRoom::Refused(self.error(ErrorOp::Append, ErrorKind::NoSpace, text))
    }

    /// Goes on in the next segment.
    fn rotate(&self, core: &mut Core) {
        let Some(next) = core.spares.pop_front() else { return };
        let (end, last_lsn) = (core.offset, core.next_lsn - 1);
        if let Some(current) = core.segments.last_mut() {
            (current.end, current.last_lsn) = (end, last_lsn);
        }
        let previous = End { segment: core.current.number, offset: end, lsn: last_lsn, lost_from: 0 };
        core.go_on(&self.control, next, previous);
        core.numbers.rotations += 1;
        core.wake_keeper(&self.work);
    }

    /// Waits until the next segment is ready, or cannot be had. Not for a thread that holds the names.
    pub(super) fn wait_for_spare(self: &Arc<Self>) {
        if !self.limits.has_keeper || self.keeper.get() == Some(&std::thread::current().id()) {
            super::maintenance::make_spare(self);
            return;
        }
        let mut core = self.core();
        core.wake_keeper(&self.work);
        self.work.notify_one();
        core.appends_wait += 1;
        while self.wants_spare(&core) && core.no_spare.is_none() && core.poison.is_none() && !core.closing {
            core = self.room.wait(core).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        core.appends_wait -= 1;
    }

    // Writing.

    /// One more write may be on its way. Of many records one alone: a second write costs as much processor time again, and those who share
    /// it would have shared the next.
    fn may_take_off(&self, core: &Core) -> bool {
        let depth = if core.crowd >= CROWD { 1 } else { self.limits.depth };
        // Nothing leaves beside a segment's header: so the one before it is durable, the chain can be followed, and blocks prove that
        // there was a header.
        core.poison.is_none()
            && core.in_flight.len() < depth
            && !core.in_flight.iter().any(|flight| flight.is_first)
            && (core.in_flight.is_empty() || !core.ready.front().is_some_and(|block| block.last))
    }

    /// The oldest block that is not on its way, if it may be now.
    fn take_off(&self, core: &mut Core, carried: bool) -> Option<Takeoff> {
        if !self.may_take_off(core) || self.is_forked() {
            return None;
        }
        if core.ready.is_empty() {
            core.close_block();
        }
        let block = core.ready.pop_front()?;
        let is_first = block.header.is_some();
        // Whoever was to write it may find it gone, and never come back for the flag.
        core.is_gathering = false;
        let id = core.next_flight;
        core.next_flight += 1;
        core.numbers.took_off(core.in_flight.len() + 1);
        core.submitted = block.last_lsn();
        let watermark = self.durable();
        core.in_flight.push_back(Flight {
            id,
            last_lsn: block.last_lsn(),
            watermark,
            bytes: block.bytes() as u64,
            is_first,
            group: block.group.clone(),
            done: false,
            carried,
            records: block.records,
            payload: block.payload,
            opened: block.opened,
            submitted: self.clock.now(),
        });
        let left = std::mem::take(&mut core.left);
        Some(Takeoff { id, block, epoch: core.epoch, watermark, _left: left })
    }

    /// The write of a block, header and checksum in place.
    fn seal(&self, takeoff: Takeoff) -> Sealed {
        let Takeoff { mut block, epoch, watermark, .. } = takeoff;
        let (base, bytes) = (block.base(), block.bytes());
        let segment = block.header.map(|header| SegmentHeader { watermark, ..header });
        if let Some(segment) = segment {
            segment.encode(&mut block.buffer[..PAGE]);
        }
        let header = BlockHeader {
            epoch,
            offset: block.offset + base as u64,
            first_lsn: block.first_lsn,
            watermark,
            length: block.payload as u32,
            records: block.records,
            closed: block.closed,
        };
        block.buffer[base + BLOCK_HEADER_BYTES + block.payload..bytes].fill(0);
        let seed = format::seed(&self.control.log_id, block.live.number, epoch);
        header.seal(&mut block.buffer[base..bytes], seed);
        if let (Some(segment), 0) = (segment, block.payload) {
            segment.put_copy(&mut block.buffer[base..bytes]);
        }
        block.buffer.truncate(bytes);
        Sealed { live: block.live, buffer: block.buffer, offset: block.offset }
    }

    fn write<'s>(&self, sealed: &'s mut Sealed) -> Write<'s, BufferResult<Buf>> {
        let write = sealed.live.file.write_all_at(std::mem::take(&mut sealed.buffer), sealed.offset);
        match self.durability() {
            Durability::Write => write.durable(),
            Durability::WriteAndSync => write,
        }
    }

    fn durability(&self) -> Durability {
        // The kernel tells of a failed write-back once: through the page cache a sync that succeeds proves nothing beside another.
        if self.control.direct { Durability::of(self.control.sync) } else { Durability::WriteAndSync }
    }

    /// Waits until those of `group` are through, and works for it.
    ///
    /// Those whom the write before has just woken are likely to append again. So a thread that may write lets others run first, once,
    /// when there were several: a write of all costs what a write of one does, and whoever comes too late waits for two.
    pub(super) fn wait(self: &Arc<Self>, lsn: u64, group: &Group) -> Result<u64> {
        let mut has_gathered = false;
        loop {
            match group.state.load(Ordering::Acquire) {
                DONE => {
                    self.woken.record(group.ended.get().map_or(Duration::ZERO, Instant::elapsed));
                    return Ok(lsn);
                }
                FAILED => return Err(self.why(lsn)),
                _ if self.is_forked() => return Err(self.forked()),
                _ => {}
            }
            let takeoff = {
                let mut core = self.core();
                if group.is_over() {
                    continue;
                }
                if group.state.compare_exchange(LEAD, PENDING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    core.is_gathering = false;
                }
                if core.crowd > 1 && !has_gathered && !core.is_gathering && self.may_take_off(&core) {
                    core.is_gathering = true;
                    drop(core);
                    std::thread::yield_now();
                    has_gathered = true;
                    core = self.core();
                    core.is_gathering = false;
                    if group.is_over() {
                        // Others may have gone to sleep because of us.
                        let mut ended = Ended::default();
                        self.choose_leader(&mut core, &mut ended);
                        drop(core);
                        self.finish(ended);
                        continue;
                    }
                }
                let takeoff = if core.is_gathering { None } else { self.take_off(&mut core, false) };
                if takeoff.is_none() {
                    // With the core locked, as those look who end a write.
                    group.sleepers.fetch_add(1, Ordering::Relaxed);
                    if core.in_flight.iter().any(|flight| flight.carried) {
                        // The runtime that should notice its completion may be blocked by us.
                        drop(core);
                        self.watch_all();
                    }
                }
                takeoff
            };
            match takeoff {
                Some(takeoff) => self.write_here(takeoff),
                // Woken, interrupted, or too late to sleep: look again.
                None => drop(futex::wait(&group.state, futex::Flags::PRIVATE, PENDING, None)),
            }
        }
    }

    fn why(&self, lsn: u64) -> Error {
        match &self.core().poison {
            Some(poison) => self.failure(poison, lsn),
            None => self.error(ErrorOp::Append, ErrorKind::Indeterminate, format!("record {lsn} was cut off")),
        }
    }

    /// Writes a block on this thread, and ends it.
    fn write_here(self: &Arc<Self>, takeoff: Takeoff) {
        let id = takeoff.id;
        let mut sealed = self.seal(takeoff);
        let write = self.write(&mut sealed);
        let written = match Submitter::of(self.control.caller) {
            Submitter::Ring if self.folder.instance.has_ring() => write.submit().wait(),
            Submitter::Ring | Submitter::Call => write.wait(),
        };
        let mut result = written.map(drop).map_err(|failed| failed.error);
        if result.is_ok() && self.durability() == Durability::WriteAndSync {
            result = sealed.live.file.sync_data().wait();
        }
        self.ended(id, result);
    }

    /// Has the engine write a block, and whoever completes it carry on.
    fn write_elsewhere(self: &Arc<Self>, takeoff: Takeoff) {
        let id = takeoff.id;
        let mut sealed = self.seal(takeoff);
        let (shared, live) = (self.clone(), sealed.live.clone());
        self.write(&mut sealed).on_complete(move |written| match written {
            Ok(_) if shared.durability() == Durability::WriteAndSync => {
                let sync = live.file.sync_data();
                sync.on_complete(move |synced| shared.ended(id, synced));
            }
            written => shared.ended(id, written.map(drop).map_err(|failed| failed.error)),
        });
    }

    /// A block is durable, or will never be.
    fn ended(self: &Arc<Self>, id: u64, result: Result<()>) {
        let mut ended = Ended::default();
        let now = self.clock.now();
        let mut core = self.core();
        {
            let core = &mut *core;
            core.last_active = now;
            let Some(flight) = core.in_flight.iter_mut().find(|flight| flight.id == id) else { return };
            flight.done = true;
            match result {
                Ok(()) => {
                    let queued = flight.submitted.saturating_duration_since(flight.opened);
                    let written = now.saturating_duration_since(flight.submitted);
                    core.numbers.landed(queued, written, flight.records, flight.payload, flight.bytes);
                    self.advance(core, &mut ended);
                }
                Err(error) => {
                    core.poison = Some(Poison { error, submitted: core.submitted });
                    ended.failed.extend(core.in_flight.drain(..));
                    ended.unwritten.extend(core.ready.drain(..).chain(core.open.take()));
                    core.pending_bytes = 0;
                    ended.watchers.extend(core.watchers.drain(..).map(|(_, waker)| waker));
                }
            }
            ended.watchers.append(&mut core.rooms);
            self.choose_leader(core, &mut ended);
        }
        if core.appends_wait > 0 {
            self.room.notify_all();
        }
        drop(core);
        self.finish(ended);
    }

    /// What is durable with everything before it.
    fn advance(&self, core: &mut Core, ended: &mut Ended) {
        let mut durable = self.durable();
        while core.in_flight.front().is_some_and(|flight| flight.done) {
            let Some(flight) = core.in_flight.pop_front() else { break };
            durable = durable.max(flight.last_lsn);
            core.crowd = flight.records + core.open.as_ref().map_or(0, |block| block.records);
            core.stamped = core.stamped.max(flight.watermark);
            core.pending_bytes = core.pending_bytes.saturating_sub(flight.payload as u64);
            ended.done.push(flight);
        }
        self.durable.store(durable, Ordering::Release);
        let mut index = 0;
        while index < core.watchers.len() {
            match core.watchers[index].0 <= durable {
                true => ended.watchers.push(core.watchers.swap_remove(index).1),
                false => index += 1,
            }
        }
    }

    /// Somebody who waits for what is pending shall write it.
    fn choose_leader(&self, core: &mut Core, ended: &mut Ended) {
        if !self.may_take_off(core) {
            return;
        }
        let pending = || core.ready.iter().chain(&core.open).filter(|block| block.is_wanted());
        if let Some(block) = pending().find(|block| block.group.sleepers.load(Ordering::Relaxed) > 0) {
            let group = &block.group;
            if group.state.compare_exchange(PENDING, LEAD, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                group.sleepers.fetch_sub(1, Ordering::Relaxed);
                core.is_gathering = true;
                ended.lead = Some(group.clone());
            }
            return;
        }
        let any = core.is_dropped || !core.watchers.is_empty() || !core.rooms.is_empty();
        ended.carry = pending().any(|block| any || block.group.has_idle_waiters());
    }

    fn finish(self: &Arc<Self>, ended: Ended) {
        let Ended { lead, carry, done, failed, unwritten, watchers } = ended;
        if carry {
            self.carry_all();
        }
        let done: Vec<Waiting> = done.into_iter().map(|flight| flight.group.end(DONE)).collect();
        let failed = failed.into_iter().map(|flight| flight.group.end(FAILED));
        let failed: Vec<Waiting> = failed.chain(unwritten.into_iter().map(|block| block.group.end(FAILED))).collect();
        // The last of the threads: those who were woken before may append until it runs.
        if let Some(group) = lead {
            let _ = futex::wake(&group.state, futex::Flags::PRIVATE, 1);
        }
        done.into_iter().for_each(|waiting| self.tell(waiting, Ok));
        failed.into_iter().for_each(|waiting| self.tell(waiting, |lsn| Err(self.why(lsn))));
        self.wake_all(watchers);
    }

    /// Tells those who wait and do not sleep. Nothing is locked.
    fn tell(&self, waiting: Waiting, answer: impl Fn(u64) -> Result<u64>) {
        self.wake_all(waiting.wakers.into_iter().flatten());
        if !waiting.callbacks.is_empty() {
            let calls = waiting.callbacks.into_iter();
            self.calls.add(calls.map(|(lsn, callback)| Call::Durable(callback, answer(lsn))));
            self.serve_calls();
        }
    }

    /// Wakes, with nothing locked: where this thread holds the names, another one does it.
    pub(super) fn wake_all(&self, wakers: impl IntoIterator<Item = Waker>) {
        let mut wakers = wakers.into_iter().peekable();
        if wakers.peek().is_some() && self.names.is_mine() {
            self.calls.add(wakers.map(Call::Wake));
            self.serve_calls();
        } else {
            wakers.for_each(calls::wake);
        }
    }

    /// Has calls made, by another thread. (Where none can be started: here, or when this thread has let go of the names.)
    pub(super) fn serve_calls(&self) {
        self.calls.serve(!self.names.is_mine());
    }

    /// Submits what may be submitted, for those who do not write themselves.
    pub(super) fn carry_all(self: &Arc<Self>) {
        loop {
            let takeoff = self.take_off(&mut self.core(), true);
            match takeoff {
                Some(takeoff) => self.write_elsewhere(takeoff),
                None => return,
            }
        }
    }

    /// Writes what is pending on this thread, until nothing is left to take. False when there was nothing from the start.
    pub(super) fn write_all_here(self: &Arc<Self>) -> bool {
        let mut any = false;
        loop {
            let takeoff = self.take_off(&mut self.core(), false);
            match takeoff {
                Some(takeoff) => self.write_here(takeoff),
                None => return any,
            }
            any = true;
        }
    }

    /// Registers `waker` for those of `group`, in the place that it had; false when they are through.
    pub(super) fn register(&self, group: &Group, place: &mut Option<usize>, waker: &Waker) -> bool {
        // A waker's clone may run anything: not under a lock.
        let waker = waker.clone();
        let mut waiting = lock(&group.waiting);
        if group.is_over() {
            return false;
        }
        let place = *place.get_or_insert_with(|| {
            waiting.wakers.push(None);
            waiting.wakers.len() - 1
        });
        let old = waiting.wakers[place].replace(waker);
        drop(waiting);
        drop(old);
        true
    }

    /// A future that waited is dropped.
    pub(super) fn unregister(&self, group: &Group, place: usize) {
        let old = lock(&group.waiting).wakers.get_mut(place).and_then(Option::take);
        drop(old);
    }

    /// Has `callback` called when those of `group` are through.
    pub(super) fn call_back(self: &Arc<Self>, lsn: u64, group: &Group, callback: Callback) {
        if self.is_forked() {
            // The thread that calls is the parent's.
            return callback(Err(self.forked()));
        }
        {
            let mut waiting = lock(&group.waiting);
            if !group.is_over() {
                waiting.callbacks.push((lsn, callback));
                drop(waiting);
                return self.carry_all();
            }
        }
        self.calls.add([Call::Durable(callback, self.answer(lsn, group))]);
        self.serve_calls();
    }

    /// Of a group that is through.
    pub(super) fn answer(&self, lsn: u64, group: &Group) -> Result<u64> {
        match group.state.load(Ordering::Acquire) {
            FAILED => Err(self.why(lsn)),
            _ => Ok(lsn),
        }
    }

    /// Wakes `waker` when `lsn` is durable, or the log fails. False when it is so already.
    pub(super) fn watch(&self, lsn: u64, waker: &Waker) -> Result<bool> {
        if self.is_forked() {
            return Err(self.forked());
        }
        let waker = waker.clone();
        let mut core = self.core();
        if self.durable() >= lsn {
            return Ok(false);
        }
        if let Some(poison) = core.poison.clone() {
            return Err(self.failure(&poison, lsn));
        }
        if core.closing && lsn >= core.next_lsn {
            return Err(self.error(
                ErrorOp::Append,
                ErrorKind::Closed,
                format!("the log was closed before record {lsn}"),
            ));
        }
        match core.watchers.iter_mut().find(|(known, old)| *known == lsn && old.will_wake(&waker)) {
            Some(_) => {}
            None => core.watchers.push((lsn, waker)),
        }
        Ok(true)
    }

    /// A block without records, which carries the watermark; durable when this returns.
    pub(super) fn stamp(self: &Arc<Self>) -> std::result::Result<(), NoRoom> {
        let mut core = self.core();
        // One that fails here fails for good; `ended` would never come to a block that is added afterwards.
        if let Some(error) = self.poisoned(&core) {
            return Err(NoRoom::Refused(error));
        }
        if core.closing {
            let error =
                self.error(ErrorOp::Append, ErrorKind::Closed, "the log was closed, and its last stamp is on its way");
            return Err(NoRoom::Refused(error));
        }
        let group = self.begin_stamp(&mut core)?;
        drop(core);
        self.wait(0, &group).map(drop).map_err(NoRoom::Refused)
    }

    /// Puts a stamp behind what is pending; gives those who wait for it. The log has not failed.
    pub(super) fn begin_stamp(&self, core: &mut Core) -> std::result::Result<Arc<Group>, NoRoom> {
        self.put_stamp(core, false, false)
    }

    fn put_stamp(&self, core: &mut Core, last: bool, closed: bool) -> std::result::Result<Arc<Group>, NoRoom> {
        core.close_block();
        self.make_room(core, 0, true)?;
        let Some(block) = core.open.as_mut() else { return Err(NoRoom::NoSpare) };
        if block.make_room(block.bytes()).is_none() {
            return Err(NoRoom::Refused(Error::from_errno(ErrorOp::Append, Errno::NOMEM).at(&self.folder.path)));
        }
        (block.stamps, block.last, block.closed) = (true, last, closed);
        let group = block.group.clone();
        core.close_block();
        Ok(group)
    }

    /// From here on nothing is taken, and a last stamp goes behind what is pending: those who wait for it, and for all. `closed`: it says
    /// that the log was closed. None when the log is closing already, or needs no stamp.
    pub(super) fn begin_closing(&self, closed: bool) -> Option<Result<Arc<Group>>> {
        let mut core = self.core();
        if std::mem::replace(&mut core.closing, true) {
            return None;
        }
        core.is_dropped = !closed;
        let next_lsn = core.next_lsn;
        let stamp = match self.poisoned(&core) {
            Some(error) => Some(Err(error)),
            None if closed || core.lacks_stamp(next_lsn - 1) => Some(
                // There is always room for it.
                self.put_stamp(&mut core, true, closed).map_err(|no_room| no_room.into_error(self)),
            ),
            None => None,
        };
        // What they wait for will not come.
        let (never, other) = std::mem::take(&mut core.watchers).into_iter().partition(|(lsn, _)| *lsn >= next_lsn);
        core.watchers = other;
        let rooms = std::mem::take(&mut core.rooms);
        core.keeper_sleeps = false;
        drop(core);
        self.work.notify_all();
        self.room.notify_all();
        let never: Vec<(u64, Waker)> = never;
        self.wake_all(never.into_iter().map(|(_, waker)| waker).chain(rooms));
        stamp
    }

    /// Somebody's runtime may be held up; another thread notices the completions, too.
    pub(super) fn watch_all(&self) {
        self.folder.instance.0.engines().ring.watch_all();
    }
}

impl Core {
    /// What appends can still take, in pages of blocks, if segments are used up to `end`.
    pub(super) fn room_left(&self, end: u64) -> u64 {
        let used = self.offset_behind_open().max(PAGE as u64);
        end.saturating_sub(used) + self.spares.len() as u64 * (end - PAGE as u64)
    }

    /// Where the next block goes if the open one is closed.
    fn offset_behind_open(&self) -> u64 {
        let open = self.open.as_ref().filter(|block| block.is_wanted());
        open.map_or(self.offset, |block| block.offset + block.bytes() as u64)
    }

    fn open_block(&mut self, now: Instant) {
        let header = self.segments.last().filter(|_| self.offset == 0).map(|segment| segment.header);
        self.open = Some(Block {
            live: self.current.clone(),
            header,
            offset: self.offset,
            buffer: Buf::default(),
            payload: 0,
            first_lsn: self.next_lsn,
            records: 0,
            stamps: false,
            last: false,
            closed: false,
            group: Group::new(PENDING),
            opened: now,
        });
    }

    /// What was opened and holds nothing goes away again.
    fn close_block(&mut self) {
        let Some(block) = self.open.take().filter(Block::is_wanted) else { return };
        self.offset = block.offset + block.bytes() as u64;
        self.ready.push_back(block);
    }

    /// A write that no thread waits for has been on its way for long: whoever should notice its end may be held up.
    pub(super) fn has_old_flight(&self, now: Instant, age: Duration) -> bool {
        let is_old = |flight: &Flight| now.saturating_duration_since(flight.submitted) > age;
        self.in_flight.iter().any(|flight| flight.carried && is_old(flight))
    }

    /// Nothing is pending.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && !self.has_pending()
    }

    /// How many of the segments, from the oldest on, have a header on stable storage. The log must keep one of these: it is found from
    /// the header of its newest segment, and numbers go on from what that says.
    pub(super) fn standing(&self) -> usize {
        let in_flight = self.in_flight.iter().filter(|flight| flight.is_first).count();
        let ready = self.ready.iter().filter(|block| block.header.is_some()).count();
        let current = usize::from(self.offset == 0);
        self.segments.len().saturating_sub(in_flight + ready + current)
    }

    /// Something waits to be written.
    pub(super) fn has_pending(&self) -> bool {
        !self.ready.is_empty() || self.open.as_ref().is_some_and(|block| block.records > 0)
    }

    /// A stamp would tell more than the segments do, once `durable` is what is durable.
    pub(super) fn lacks_stamp(&self, durable: u64) -> bool {
        self.stamped < durable
    }

    /// Those who wait for a record that is not durable; None if it is, or was never appended.
    pub(super) fn group_of(&self, lsn: u64) -> Option<Arc<Group>> {
        let holds = |block: &&Block| block.records > 0;
        let flying = self.in_flight.iter().filter(|flight| flight.last_lsn >= lsn).map(|flight| &flight.group);
        let waiting = self
            .ready
            .iter()
            .chain(&self.open)
            .filter(holds)
            .filter(|block| block.last_lsn() >= lsn)
            .map(|block| &block.group);
        flying.chain(waiting).next().cloned()
    }

    /// Makes `next` the segment that is written: behind `previous`, which its header names.
    fn go_on(&mut self, control: &Control, next: Live, previous: End) {
        let header = SegmentHeader {
            log_id: control.log_id,
            number: next.number,
            epoch: self.epoch,
            bytes: control.segment_bytes,
            // Of the moment when it is written.
            watermark: 0,
            previous,
        };
        self.segments.push(Segment { header, end: u64::MAX, last_lsn: u64::MAX });
        self.left.push(std::mem::replace(&mut self.current, next));
        self.offset = 0;
    }

    /// Goes on behind `place`, in a new segment of a new epoch. Nothing is pending, and there is a spare.
    /// Gives the segments that are cut off, which say something until the new one stands.
    pub(super) fn cut(&mut self, shared: &Shared, place: End) -> Vec<u64> {
        let Some(next) = self.spares.pop_front() else { return Vec::new() };
        let mut cut_off = Vec::new();
        while self.segments.len() > 1
            && self.segments.last().is_some_and(|segment| segment.header.number > place.segment)
        {
            cut_off.extend(self.segments.pop().map(|segment| segment.header.number));
        }
        if let Some(last) = self.segments.last_mut() {
            (last.end, last.last_lsn) = (place.offset, place.last_there());
        }
        self.epoch += 1;
        self.go_on(&shared.control, next, place);
        self.next_lsn = place.lsn + 1;
        (self.submitted, self.stamped) = (place.lsn, place.lsn);
        self.cuts.push((self.epoch, place.lsn));
        shared.durable.store(place.lsn, Ordering::Release);
        cut_off.reverse();
        cut_off
    }

    pub(super) fn wake_keeper(&mut self, work: &Condvar) {
        if self.keeper_sleeps {
            self.keeper_sleeps = false;
            work.notify_one();
        }
    }
}
