//! Group commit as data: the block that takes an append, the block to write next, the last durable
//! record, and the next writer.
//!
//! Every transition is a function of [`Pipeline`]. No function performs I/O, takes a lock or reads
//! a clock: the time is an argument. `F` is a segment's file, which the state keeps and never uses.
//!
//! A block gets its place in a segment when it is opened, so that no record with an LSN can meet a
//! full disk. Blocks may become durable in any order. A record is acknowledged when it and all
//! earlier records are durable.

#[cfg(test)]
pub(crate) mod fixture;
mod in_flight;
mod rescue;
mod rules;
mod segments;
#[cfg(all(test, not(nowait_log_loom)))]
mod tests;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::block::{Block, Incoming, Live};
use super::group::{Fate, Group};
use crate::dir::Segment;
use crate::format::block_bytes;
use crate::stats::Numbers;
use nowait::Result;

pub(crate) use in_flight::{
    Completed, Ending, InFlight, Poison, Rescue, Rewrite, Rewritten, SpareFailure, Submission, Successor,
};
pub(crate) use rescue::LOOKOUTS;
use rules::usable_end;
pub(crate) use rules::{NoRoom, Refusal, Rules};
use segments::Upkeep;
pub(crate) use segments::{Retired, Start};
use writer::Gathers;
pub(crate) use writer::{Writer, WriterTurn};

/// `Pipeline::crowd` from which blocks are written one at a time. With two in flight, each contains
/// half the records. Relative to one thread that writes for all, 8 threads reached 0.79 of the
/// commits with two in flight, and 0.91 to 0.98 with this limit (6.18, virtio, ext4).
const CROWD: u32 = 4;

/// Time for which a thread that gathers appends, or was woken to write, keeps others from writing.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// Time after which a failed preparation of a segment is repeated.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// Time without activity after which records without a waiter are written, and a watermark block
/// after the last one.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Place of the next append.
enum Spot {
    OpenBlock,
    /// A new block after the others.
    NewBlock,
    /// A new block in the next segment.
    NextSegment,
}

/// Blocks of a log from append to durable, without files and threads.
pub(crate) struct Pipeline<F> {
    rules: Rules,
    pub(crate) next_lsn: u64,
    pub(crate) epoch: u64,
    /// The block that takes appends.
    open: Option<Block<F>>,
    /// Closed blocks, oldest first.
    ready: VecDeque<Block<F>>,
    in_flight: VecDeque<InFlight<F>>,
    next_id: u64,
    /// Files of segments that the log has left, to be closed with no lock held.
    left: Vec<F>,
    /// LSN of the last record that was submitted.
    submitted: u64,
    /// LSN up to which all records are durable.
    pub(crate) durable: u64,
    pending_bytes: u64,
    /// Segment in which the next block is opened.
    current: Live<F>,
    /// Offset of the next block in `current`.
    offset: u64,
    /// Segments for readers, the current one last. The end of the current one is not updated.
    pub(crate) segments: Vec<Segment>,
    pub(crate) spares: VecDeque<Live<F>>,
    pub(crate) spare_failure: Option<SpareFailure>,
    /// Segments that are no longer part of the log, but whose files exist, oldest first.
    pub(crate) retired: Vec<Retired>,
    pub(crate) upkeep: Upkeep,
    pub(crate) poison: Option<Poison>,
    /// Epochs that began with a cut of the log's end, each with the last kept record.
    pub(crate) cuts: Vec<(u64, u64)>,
    /// Highest watermark in a durable block.
    watermark: u64,
    /// Time of the last append or completed write.
    pub(crate) last_active: Instant,
    pub(crate) maintenance_sleeps: bool,
    pub(crate) is_closing: bool,
    /// The log is closing, and no caller waits for pending records.
    is_dropped: bool,
    /// Threads that sleep until the next segment is ready.
    pub(crate) appends_wait: u32,
    /// Time since which a thread that is about to write lets others append first.
    pub(crate) gathering: Option<Instant>,
    /// Ends of writes that some waiters may not have learned of, each with the time after which
    /// another thread notifies them.
    ending: VecDeque<(Instant, Arc<Ending>)>,
    /// Time of the slowest recent write.
    slowest: Duration,
    /// Records in the last completed block, and in the block that was open then.
    pub(crate) crowd: u32,
    /// Threads, futures and callbacks that waited for these blocks.
    pub(crate) waiters: u32,
    /// Those of them that are futures and callbacks.
    tasks: u32,
    /// The log's own thread that writes for many waiters.
    writer: Writer,
    gathers: Gathers,
    /// Size of the last completed block: the next one is expected to be as large.
    last_bytes: usize,
    /// Wakers for LSNs, appended or not.
    watchers: Vec<(u64, Waker)>,
    /// Wakers for room to append.
    pub(crate) room_wakers: Vec<Waker>,
    pub(crate) numbers: Numbers,
}

impl<F: Clone> Pipeline<F> {
    pub(crate) fn new(rules: Rules, start: Start<F>) -> Pipeline<F> {
        let Start { epoch, current, segments, recorded, epochs, ages, now } = start;
        let upkeep = Upkeep::new(current.number, recorded, epochs, ages, now);
        let last_lsn = segments.last().map_or(0, |segment| segment.header.previous.lsn);
        Pipeline {
            rules,
            next_lsn: last_lsn + 1,
            epoch,
            open: None,
            ready: VecDeque::new(),
            in_flight: VecDeque::new(),
            next_id: 0,
            left: Vec::new(),
            submitted: last_lsn,
            durable: last_lsn,
            pending_bytes: 0,
            current,
            // The first block carries the header.
            offset: 0,
            segments,
            spares: VecDeque::new(),
            spare_failure: None,
            retired: Vec::new(),
            upkeep,
            poison: None,
            cuts: Vec::new(),
            watermark: last_lsn,
            last_active: now,
            maintenance_sleeps: false,
            is_closing: false,
            is_dropped: false,
            appends_wait: 0,
            gathering: None,
            ending: VecDeque::new(),
            slowest: Duration::ZERO,
            crowd: 0,
            waiters: 0,
            tasks: 0,
            writer: Writer::Absent,
            gathers: Gathers::default(),
            last_bytes: 0,
            watchers: Vec::new(),
            room_wakers: Vec::new(),
            numbers: Numbers::default(),
        }
    }

    // Appending.

    /// Adds records of `payload` bytes, frames included, as one batch. Returns the LSN of the last
    /// record, and the group of its block.
    pub(crate) fn append(
        &mut self,
        records: &mut Incoming<'_>,
        payload: usize,
        from_reserve: bool,
        now: impl Fn() -> Instant,
    ) -> std::result::Result<(u64, Arc<Group>), NoRoom<Refusal>> {
        self.admit(payload)?;
        self.make_room(payload, from_reserve, now)?;
        let Some(block) = self.open.as_mut() else { return Err(NoRoom::NoSpare) };
        if block.put(records).is_none() {
            return Err(NoRoom::Refused(Refusal::NoMemory));
        }
        self.next_lsn += records.records() as u64;
        self.pending_bytes += payload as u64;
        self.last_active = block.opened;
        Ok((self.next_lsn - 1, block.group.clone()))
    }

    /// Decides whether `payload` more bytes may be appended, in any block.
    #[inline]
    fn admit(&self, payload: usize) -> std::result::Result<(), NoRoom<Refusal>> {
        self.check_open().map_err(NoRoom::Refused)?;
        match self.pending_bytes > 0 && self.pending_bytes + payload as u64 > self.rules.pending_bytes_max {
            true => Err(NoRoom::Budget),
            false => Ok(()),
        }
    }

    /// Refuses a log that has failed or is closing.
    #[inline]
    pub(crate) fn check_open(&self) -> std::result::Result<(), Refusal> {
        if let Some(poison) = &self.poison {
            return Err(Refusal::Poisoned(poison.error.clone()));
        }
        if self.is_closing { Err(Refusal::Closed) } else { Ok(()) }
    }

    /// True if a thread or a task waits for room.
    pub(crate) fn room_is_wanted(&self) -> bool {
        self.appends_wait > 0 || !self.room_wakers.is_empty()
    }

    /// Decides whether an append of `payload` bytes would succeed now.
    pub(crate) fn has_room(
        &mut self,
        payload: usize,
        from_reserve: bool,
        now: impl Fn() -> Instant,
    ) -> std::result::Result<(), NoRoom<Refusal>> {
        self.admit(payload)?;
        let found = self.find_room(payload, from_reserve, now).map(drop);
        if matches!(found, Err(NoRoom::NoSpare)) {
            self.want_segment_for(payload);
        }
        found
    }

    /// Provides an open block with room for `payload` bytes.
    #[inline]
    fn make_room(
        &mut self,
        payload: usize,
        from_reserve: bool,
        now: impl Fn() -> Instant,
    ) -> std::result::Result<(), NoRoom<Refusal>> {
        match self.find_room(payload, from_reserve, &now) {
            Ok(Spot::OpenBlock) => return Ok(()),
            Ok(Spot::NewBlock) => self.close_block(),
            Ok(Spot::NextSegment) => {
                self.close_block();
                self.rotate(now());
            }
            Err(no_room) => {
                if matches!(no_room, NoRoom::NoSpare) {
                    if !self.has_spare_for(payload) {
                        self.numbers.spares_missed += 1;
                        self.upkeep.was_missed = true;
                    }
                    self.want_segment_for(payload);
                }
                return Err(no_room);
            }
        }
        self.open_block(now());
        Ok(())
    }

    #[inline]
    fn find_room(
        &self,
        payload: usize,
        from_reserve: bool,
        now: impl Fn() -> Instant,
    ) -> std::result::Result<Spot, NoRoom<Refusal>> {
        let bytes = self.current.bytes;
        let end = if self.is_closing { bytes } else { usable_end(bytes) };
        if !from_reserve && self.rules.reserve_bytes > 0 {
            let left = self.room_left();
            if left < self.rules.reserve_bytes.saturating_add(block_bytes(payload) as u64) {
                // The reserve can be used only after the preparation of another segment was tried.
                return Err(self.no_spare(left, true, now));
            }
        }
        if self.open.as_ref().is_some_and(|block| block.fits(payload, end)) {
            return Ok(Spot::OpenBlock);
        }
        if self.offset_behind_open() + block_bytes(payload) as u64 <= end {
            return Ok(Spot::NewBlock);
        }
        match self.has_spare_for(payload) {
            true => Ok(Spot::NextSegment),
            false => Err(self.no_spare(self.room_left(), false, now)),
        }
    }

    /// Returns the offset of the next block, once the open one is closed.
    fn offset_behind_open(&self) -> u64 {
        let open = self.open.as_ref().filter(|block| block.is_wanted());
        open.map_or(self.offset, |block| block.offset + block.bytes() as u64)
    }

    fn open_block(&mut self, now: Instant) {
        let header = self.segments.last().filter(|_| self.offset == 0).map(|segment| segment.header);
        let block = Block::new(self.current.clone(), header, self.offset, self.next_lsn, self.last_bytes, now);
        if self.is_writer_active() && self.has_many() {
            block.group.serve();
        }
        self.open = Some(block);
    }

    /// Closes the open block; drops it if it is empty.
    fn close_block(&mut self) {
        let Some(block) = self.open.take().filter(Block::is_wanted) else { return };
        self.offset = block.offset + block.bytes() as u64;
        self.ready.push_back(block);
    }

    // Writing.

    /// True if a block may be submitted now.
    pub(crate) fn may_submit(&self) -> bool {
        // With many records, blocks are written one at a time: a second write costs as much
        // processor time as the first, and its records could have shared the next write.
        let depth = if self.crowd >= CROWD { 1 } else { self.rules.depth };
        // No block is submitted while a segment's header is in flight. So when a header is
        // submitted, the previous header is durable and the chain can be followed; and later blocks
        // prove that the header existed.
        self.poison.is_none()
            && self.in_flight.len() < depth
            && !self.in_flight.iter().any(|block| block.is_first)
            && (self.in_flight.is_empty() || !self.ready.front().is_some_and(|block| block.is_last))
            // After a cut, only a segment's first block may leave before the control file names the
            // epoch. Otherwise recovery could mistake acknowledged records for records that were
            // cut off.
            && (!self.upkeep.is_unnamed || self.ready.front().is_some_and(|block| block.header.is_some()))
    }

    /// Submits the oldest block, if one may be submitted now. `is_carried`: no thread waits for it
    /// in a system call.
    pub(crate) fn submit(&mut self, is_carried: bool, now: impl Fn() -> Instant) -> Option<Submission<F>> {
        if !self.may_submit() {
            return None;
        }
        if self.ready.is_empty() {
            self.close_block();
        }
        let block = self.ready.pop_front()?;
        // A thread that gathers finds its block submitted.
        self.gathering = None;
        let id = self.next_id;
        let submitted = now();
        let due = submitted + self.patience();
        self.next_id += 1;
        self.numbers.submitted(self.in_flight.len() + 1);
        self.submitted = block.last_lsn();
        let watermark = self.durable;
        self.in_flight.push_back(InFlight {
            id,
            live: block.live.clone(),
            offset: block.offset,
            first_lsn: block.first_lsn,
            last_lsn: block.last_lsn(),
            epoch: self.epoch,
            watermark,
            bytes: block.bytes() as u64,
            is_first: block.header.is_some(),
            group: block.group.clone(),
            is_completed: false,
            is_carried,
            records: block.records,
            payload: block.payload,
            opened: block.opened,
            submitted,
            rewrites: 0,
            due,
        });
        let left = std::mem::take(&mut self.left);
        Some(Submission { id, block, epoch: self.epoch, watermark, _left: left })
    }

    /// True while a thread gathers and others must not write. Limited in time, since that thread
    /// may be stalled.
    pub(crate) fn is_gathering(&self, now: impl Fn() -> Instant) -> bool {
        self.gathering.is_some_and(|since| now().saturating_duration_since(since) < GATHER_MAX)
    }

    /// Records that were appended and not submitted.
    pub(crate) fn unsubmitted(&self) -> u32 {
        self.ready.iter().chain(&self.open).map(|block| block.records).sum()
    }

    /// Completes a write: advances the durable LSN or poisons the log, then chooses the next
    /// writer. `rewritten` is set if this thread wrote the block again.
    ///
    /// Only the first success counts. A failure always counts: if another thread's write made the
    /// block durable, a later failed write may have damaged it.
    pub(crate) fn complete(
        &mut self,
        id: u64,
        result: Result<()>,
        rewritten: Option<Rewritten<F>>,
        now: Instant,
    ) -> Completed<F> {
        self.last_active = now;
        if rewritten.is_some() {
            self.writer_was_rescued();
        }
        self.ending.retain(|(_, ending)| !ending.is_over());
        let (mut blocks, mut unwritten, mut wakers) = (Vec::new(), Vec::new(), Vec::new());
        let mut groups = Vec::new();
        let mut is_first_failure = false;
        match result {
            Ok(()) => {
                let known = self.in_flight.iter_mut().find(|block| block.id == id && !block.is_completed);
                if let Some(block) = known {
                    block.is_completed = true;
                    let queued = block.submitted.saturating_duration_since(block.opened);
                    let written = now.saturating_duration_since(block.submitted);
                    self.numbers.completed(queued, written, block.records, block.payload, block.bytes);
                    let (number, is_held_up) = (block.live.number, block.rewrites > 0 && rewritten.is_none());
                    if !is_held_up {
                        self.gathers.wrote(written);
                        let began = rewritten.as_ref().map(|rewritten| rewritten.began);
                        self.learn(began.map_or(written, |began| now.saturating_duration_since(began)));
                    }
                    if let Some(Rewritten { file, .. }) = rewritten {
                        self.numbers.rescues += 1;
                        self.exchange_file(number, file);
                    }
                    self.advance(&mut blocks, &mut wakers);
                    groups.extend(blocks.iter().map(|block| (block.group.clone(), Fate::Durable)));
                }
            }
            Err(error) => {
                is_first_failure = self.poison.is_none();
                if is_first_failure {
                    self.poison = Some(Poison { error, submitted: self.submitted });
                }
                blocks.extend(self.in_flight.drain(..));
                unwritten.extend(self.ready.drain(..).chain(self.open.take()));
                let failed = blocks.iter().map(|block| &block.group).chain(unwritten.iter().map(|block| &block.group));
                groups.extend(failed.map(|group| (group.clone(), Fate::Failed)));
                self.pending_bytes = 0;
                wakers.extend(self.watchers.drain(..).map(|(_, waker)| waker));
            }
        }
        wakers.append(&mut self.room_wakers);
        let ending = Arc::new(Ending::new(groups, wakers, self.choose_next(now)));
        self.ending.push_back((now + self.patience(), ending.clone()));
        Completed { ending, blocks, unwritten, is_first_failure }
    }

    /// Acknowledges blocks up to the first one that is not durable.
    fn advance(&mut self, durable: &mut Vec<InFlight<F>>, wakers: &mut Vec<Waker>) {
        while self.in_flight.front().is_some_and(|block| block.is_completed) {
            let Some(block) = self.in_flight.pop_front() else { break };
            self.durable = self.durable.max(block.last_lsn);
            self.last_bytes = block.bytes as usize;
            self.waiters = block.group.waiters() + self.open.as_ref().map_or(0, |open| open.group.waiters());
            self.tasks = block.group.idle_waiters() + self.open.as_ref().map_or(0, |open| open.group.idle_waiters());
            self.crowd = block.records + self.open.as_ref().map_or(0, |open| open.records);
            self.watermark = self.watermark.max(block.watermark);
            self.pending_bytes = self.pending_bytes.saturating_sub(block.payload as u64);
            durable.push(block);
        }
        let mut index = 0;
        while index < self.watchers.len() {
            match self.watchers[index].0 <= self.durable {
                true => wakers.push(self.watchers.swap_remove(index).1),
                false => index += 1,
            }
        }
    }

    /// Blocks that wait to be submitted, oldest first.
    fn pending(&self) -> impl Iterator<Item = &Block<F>> {
        self.ready.iter().chain(&self.open).filter(|block| block.is_wanted())
    }

    /// Chooses the next writer of pending blocks.
    pub(crate) fn choose_next(&mut self, now: Instant) -> Successor {
        if !self.may_submit() || self.is_writer_active() {
            return Successor::Nobody;
        }
        if self.is_left_to_writer() {
            // Its sleepers are not counted.
            return self.engage_writer(now).unwrap_or(Successor::Carry);
        }
        let with_sleepers = self.pending().map(|block| &block.group).find(|group| group.has_sleepers()).cloned();
        if let Some(group) = with_sleepers {
            if let Some(writer) = self.engage_writer(now) {
                return writer;
            }
            if !group.appoint() {
                return Successor::Nobody;
            }
            self.gathering = Some(now);
            return Successor::Leader(group);
        }
        let any = self.is_dropped || !self.watchers.is_empty() || !self.room_wakers.is_empty();
        let is_awaited = self.pending().any(|block| any || block.group.has_idle_waiters());
        match is_awaited {
            true => self.engage_writer(now).unwrap_or(Successor::Carry),
            false => Successor::Nobody,
        }
    }

    /// True if a write without a waiting thread has been in flight for longer than `age`: the
    /// thread or task that should notice its completion may be blocked.
    pub(crate) fn has_old_in_flight(&self, now: Instant, age: Duration) -> bool {
        let is_old = |block: &InFlight<F>| now.saturating_duration_since(block.submitted) > age;
        self.in_flight.iter().any(|block| block.is_carried && is_old(block))
    }

    /// True if a write is in flight that no thread waits for in a system call.
    pub(crate) fn has_carried(&self) -> bool {
        self.in_flight.iter().any(|block| block.is_carried)
    }

    /// True if the log was inactive for [`TICK`].
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_active) >= TICK
    }

    /// True if nothing is pending or in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && !self.has_pending()
    }

    /// True if a block waits to be submitted.
    pub(crate) fn has_pending(&self) -> bool {
        !self.ready.is_empty() || self.open.as_ref().is_some_and(|block| block.records > 0)
    }

    /// Returns the group that waits for `lsn`; None if the record is durable or was never appended.
    pub(crate) fn group_of(&self, lsn: u64) -> Option<Arc<Group>> {
        let in_flight = self.in_flight.iter().filter(|block| block.last_lsn >= lsn).map(|block| &block.group);
        let pending = self.ready.iter().chain(&self.open).filter(|block| block.records > 0 && block.last_lsn() >= lsn);
        in_flight.chain(pending.map(|block| &block.group)).next().cloned()
    }

    /// LSN of the first record, or of the next one if the log has none.
    pub(crate) fn first_lsn(&self) -> u64 {
        self.segments.first().map_or(1, |segment| segment.header.first_lsn())
    }

    /// End of the durable blocks in segment `number`; readers read nothing after it.
    pub(crate) fn durable_end(&self, number: u64) -> Option<u64> {
        let in_flight = self.in_flight.front().map(|block| (block.live.number, block.offset));
        let ready = self.ready.front().map(|block| (block.live.number, block.offset));
        let open = self.open.as_ref().map(|block| (block.live.number, block.offset));
        // Blocks lie in the order of their records.
        let first = in_flight.or(ready).or(open).unwrap_or((self.current.number, self.offset));
        if first.0 == number {
            return Some(first.1);
        }
        let here = self.segments.iter().find(|segment| segment.header.number == number);
        here.map(|segment| segment.end)
    }

    // Watermarks, and the end.

    /// True if the segments contain no watermark for `durable`, so that a watermark block is
    /// needed.
    pub(crate) fn lacks_watermark(&self, durable: u64) -> bool {
        self.watermark < durable
    }

    /// Adds a watermark block after the pending blocks; returns its group. The log must not have
    /// failed.
    pub(crate) fn put_watermark(
        &mut self,
        is_last: bool,
        is_closed: bool,
        now: impl Fn() -> Instant,
    ) -> std::result::Result<Arc<Group>, NoRoom<Refusal>> {
        self.close_block();
        self.make_room(0, true, now)?;
        let Some(block) = self.open.as_mut() else { return Err(NoRoom::NoSpare) };
        if block.make_watermark(is_last, is_closed).is_none() {
            return Err(NoRoom::Refused(Refusal::NoMemory));
        }
        let group = block.group.clone();
        self.close_block();
        Ok(group)
    }

    /// Refuses appends from now on; false if the log was already closing. `is_dropped`: no caller
    /// waits for pending records.
    pub(crate) fn begin_closing(&mut self, is_dropped: bool) -> bool {
        if std::mem::replace(&mut self.is_closing, true) {
            return false;
        }
        self.is_dropped = is_dropped;
        true
    }

    // Wakers, which are cloned and dropped with no lock held.

    /// Adds a waker for `lsn`; returns it if an equal one is registered.
    pub(crate) fn watch(&mut self, lsn: u64, waker: Waker) -> Option<Waker> {
        if self.watchers.iter().any(|(known, old)| *known == lsn && old.will_wake(&waker)) {
            return Some(waker);
        }
        self.watchers.push((lsn, waker));
        None
    }

    /// Takes the wakers for records that will not be appended, since the log is closing.
    pub(crate) fn take_watchers_in_vain(&mut self) -> Vec<Waker> {
        let next_lsn = self.next_lsn;
        let (in_vain, other): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.watchers).into_iter().partition(|(lsn, _)| *lsn >= next_lsn);
        self.watchers = other;
        in_vain.into_iter().map(|(_, waker)| waker).collect()
    }

    /// Marks the maintenance thread as awake. Returns true if the caller must wake it: it sleeps,
    /// or the next segment is needed at once.
    pub(crate) fn wake_maintenance(&mut self) -> bool {
        std::mem::replace(&mut self.maintenance_sleeps, false) | std::mem::take(&mut self.upkeep.has_news)
    }
}
