//! Shared by all queues of reads or writes (a ring, libaio): who owns a buffer while the kernel
//! uses it.
//!
//! A [`Flight`] takes a buffer by value when a transfer is submitted and gives it back when it is
//! complete, so nobody can touch it in between; and a flight does not end before all its transfers
//! have.

use std::io;
use std::marker::PhantomData;
use std::process;
use std::slice;
use std::time::Instant;

use crate::measure::meter::{Round, Tally};
use crate::measure::pace::{Schedule, sleep_until};
use crate::measure::work::{Batch, Gather, Gathers, Reads, Writes};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ways) enum Direction {
    Read,
    Write,
}

/// A queue to the kernel. Its file is fixed when it is made.
pub(in crate::ways) trait Queue {
    /// The most transfers in flight.
    fn capacity(&self) -> usize;

    /// Queues a transfer; it may be submitted at once or with the next [`Queue::turn`]. There is
    /// room: at most [`Queue::capacity`] are in flight. An error means that the kernel does not
    /// know of it and never will.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `at` can be read and written, and nobody else touches them, until
    /// [`Queue::next`] has returned `tag`.
    unsafe fn push(&mut self, tag: u32, direction: Direction, at: *mut u8, len: usize, offset: u64) -> io::Result<()>;

    /// Submits what is queued and waits for at least `wait` completions. A signal may end the
    /// waiting early.
    fn turn(&mut self, wait: usize) -> io::Result<()>;

    /// The next completion that is already there: its tag and the number of bytes.
    fn next(&mut self) -> Option<(u32, io::Result<usize>)>;
}

/// A queue that can wait for a completion or for a moment, whichever is first.
pub(in crate::ways) trait PacedQueue: Queue {
    /// Submits what is queued and waits for a completion, until then at most. A signal may end the
    /// waiting early.
    fn turn_until(&mut self, due: Instant) -> io::Result<()>;
}

/// A queue and its list of transfers, kept from one flight to the next.
pub(in crate::ways) struct Desk<Q> {
    queue: Q,
    transfers: Vec<Transfer>,
    free: Vec<u32>,
}

/// One read or write, from its start until all its bytes have been moved.
#[derive(Clone, Copy)]
struct Transfer {
    direction: Direction,
    at: *mut u8,
    /// The whole buffer. All of it is asked for, since a direct read takes whole blocks only; it is
    /// complete with the first `want` bytes, which are fewer at the end of the file.
    len: usize,
    want: usize,
    have: usize,
    offset: u64,
    started: Instant,
}

impl<Q: Queue> Desk<Q> {
    pub(in crate::ways) fn new(queue: Q) -> Self {
        let free = (0..queue.capacity() as u32).rev().collect();
        let (direction, started) = (Direction::Read, Instant::now());
        let nothing = Transfer { direction, at: [].as_mut_ptr(), len: 0, want: 0, have: 0, offset: 0, started };
        Self { transfers: vec![nothing; queue.capacity()], queue, free }
    }

    fn flight<'b>(&mut self) -> Flight<'_, 'b, Q> {
        Flight { desk: self, in_flight: 0, buffers: PhantomData }
    }

    pub(in crate::ways) fn reads(
        &mut self,
        job: &Reads<'_>,
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let mut offsets = job.each_offset();
        let next = |_: &mut [u8]| offsets.next().map(|offset| (offset, job.len_at(offset)));
        self.blocks(Direction::Read, buffer.chunks_mut(job.block).take(job.depth).collect(), next, round)
    }

    pub(in crate::ways) fn writes(
        &mut self,
        job: &Writes<'_>,
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let mut offsets = job.each_offset();
        let next = |block: &mut [u8]| {
            let offset = offsets.next()?;
            job.contents.place(block, offset);
            Some((offset, block.len()))
        };
        self.blocks(Direction::Write, buffer.chunks_mut(job.block).take(job.depth).collect(), next, round)
    }

    /// Keeps all of `idle` in flight. `next` prepares a block, if it is to be written, and says
    /// where it goes and how much of it.
    fn blocks(
        &mut self,
        direction: Direction,
        mut idle: Vec<&mut [u8]>,
        mut next: impl FnMut(&mut [u8]) -> Option<(u64, usize)>,
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let mut flight = self.flight();
        round.start();
        loop {
            while let Some(block) = idle.pop() {
                let Some((offset, len)) = next(block) else { break };
                flight.start(direction, block, len, offset, Instant::now())?;
            }
            if flight.in_flight == 0 {
                break;
            }
            flight.turn(1)?;
            flight.harvest(round, &mut idle)?;
        }
        round.stop();
        Ok(())
    }

    /// Writes without ever waiting: what is complete is harvested, what there is room for is
    /// submitted, and then it is the turn of `others`, which say whether to go on.
    pub(in crate::ways) fn writes_beside(
        &mut self,
        job: &Writes<'_>,
        buffer: &mut [u8],
        round: &mut Round<'_>,
        mut others: impl FnMut(&mut Tally<'_>) -> bool,
    ) -> io::Result<()> {
        let mut idle: Vec<&mut [u8]> = buffer.chunks_mut(job.block).take(job.depth).collect();
        let mut offsets = job.each_offset();
        let mut flight = self.flight();
        round.start();
        let mut more = others(&mut round.tally);
        loop {
            while more && !idle.is_empty() {
                let Some(offset) = offsets.next() else { break };
                let Some(block) = idle.pop() else { break };
                job.contents.place(block, offset);
                flight.start(Direction::Write, block, job.block, offset, Instant::now())?;
            }
            if flight.in_flight == 0 {
                break;
            }
            flight.turn(0)?;
            while let Some(done) = flight.next()? {
                round.tally.wrote(done.len);
                idle.push(done.buffer);
            }
            more &= others(&mut round.tally);
        }
        round.stop();
        Ok(())
    }

    pub(in crate::ways) fn gather(
        &mut self,
        job: &Gather<'_>,
        output: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        round.start();
        for batch in job.each_batch() {
            let started = Instant::now();
            self.gather_one(batch, output, started)?;
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        Ok(())
    }

    fn gather_one(&mut self, batch: Batch<'_>, output: &mut [u8], started: Instant) -> io::Result<()> {
        let mut left = batch.ranges.len();
        let mut pieces = batch.pieces(output);
        let mut flight = self.flight();
        loop {
            while left > 0 && flight.has_room() {
                let Some((offset, piece)) = pieces.next() else { break };
                let len = piece.len();
                flight.start(Direction::Read, piece, len, offset, started)?;
                left -= 1;
            }
            match (flight.in_flight, left) {
                (0, _) => return Ok(()),
                (all, 0) => flight.turn(all)?,
                _ => flight.turn(1)?,
            }
            while flight.next()?.is_some() {}
        }
    }
}

impl<Q: PacedQueue> Desk<Q> {
    /// Begins each read when it is due, or as soon after that as one of `job.depth` is free.
    pub(in crate::ways) fn paced_reads(
        &mut self,
        job: &Reads<'_>,
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let mut idle: Vec<&mut [u8]> = buffer.chunks_mut(job.block).take(job.depth).collect();
        let mut flight = self.flight();
        round.start();
        let schedule = job.schedule();
        let mut index = 0;
        loop {
            // The next read and its moment, if there is one and a buffer for it.
            let waiting = loop {
                let next = job.offset(index).filter(|_| !idle.is_empty()).zip(schedule.due(index));
                let Some((offset, due)) = next.filter(|(_, due)| Instant::now() >= *due) else { break next };
                let Some(block) = idle.pop() else { break None };
                flight.start(Direction::Read, block, job.len_at(offset), offset, due)?;
                index += 1;
            };
            if !flight.wait(waiting.map(|(_, due)| due))? {
                break;
            }
            flight.harvest(round, &mut idle)?;
        }
        round.stop();
        Ok(())
    }
}

impl<Q: PacedQueue> Desk<Q> {
    /// Begins each gather when it arrives, all its records together, or as soon after that as one of
    /// `job.depth` is through.
    pub(in crate::ways) fn paced_gathers(
        &mut self,
        job: &Gathers<'_>,
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let (start, records) = (buffer.as_ptr() as usize, job.records);
        // A slot has a piece for each record of a gather. A piece that is away is in flight.
        let pieces = buffer.chunks_mut(job.block).take(job.depth * records);
        let mut pieces: Vec<Option<&mut [u8]>> = pieces.map(Some).collect();
        let mut idle: Vec<usize> = (0..job.depth).collect();
        // Of each slot: its gather, when that arrived, and its records in flight.
        let mut slots: Vec<(&[u64], Instant, usize)> = vec![(&[], Instant::now(), 0); job.depth];
        let mut flight = self.flight();
        round.start();
        let schedule = Schedule::new(Some(job.pace));
        let mut index = 0;
        loop {
            let waiting = loop {
                let next = job.gather(index).filter(|_| !idle.is_empty()).zip(schedule.due(index));
                let Some((offsets, due)) = next.filter(|(_, due)| Instant::now() >= *due) else { break next };
                let Some(slot) = idle.pop() else { break None };
                slots[slot] = (offsets, due, offsets.len());
                for (piece, &offset) in pieces[slot * records..].iter_mut().zip(offsets) {
                    let piece =
                        piece.take().ok_or_else(|| io::Error::other("a record of an idle slot is in flight"))?;
                    flight.start(Direction::Read, piece, job.block, offset, due)?;
                }
                index += 1;
            };
            if !flight.wait(waiting.map(|(_, due)| due))? {
                break;
            }
            let now = Instant::now();
            while let Some(done) = flight.next()? {
                let place = (done.buffer.as_ptr() as usize - start) / job.block;
                pieces[place] = Some(done.buffer);
                let slot = place / records;
                let (offsets, due, left) = &mut slots[slot];
                *left -= 1;
                if *left == 0 {
                    let all = pieces[slot * records..].iter().take(records).flatten().map(|piece| &**piece);
                    round.tally.gathered(offsets, all, job.output_len(), (*due, now));
                    idle.push(slot);
                }
            }
        }
        round.stop();
        Ok(())
    }
}

/// Transfers in flight, each with its buffer, which it owns for `'b`.
struct Flight<'q, 'b, Q: Queue> {
    desk: &'q mut Desk<Q>,
    in_flight: usize,
    buffers: PhantomData<&'b mut [u8]>,
}

/// A transfer that is complete, and its buffer.
struct Complete<'b> {
    buffer: &'b mut [u8],
    /// Bytes moved so far.
    len: usize,
    offset: u64,
    started: Instant,
}

impl<Q: PacedQueue> Flight<'_, '_, Q> {
    /// Waits for a completion or for this moment, whichever is first. False if there is nothing to
    /// wait for.
    fn wait(&mut self, due: Option<Instant>) -> io::Result<bool> {
        match (self.in_flight, due) {
            (0, None) => return Ok(false),
            (0, Some(due)) => sleep_until(due),
            (_, None) => self.turn(1)?,
            (_, Some(due)) => self.desk.queue.turn_until(due)?,
        }
        Ok(true)
    }
}

impl<'b, Q: Queue> Flight<'_, 'b, Q> {
    fn has_room(&self) -> bool {
        !self.desk.free.is_empty()
    }

    /// Starts a transfer of `want` bytes, whose latency counts from `started`. There must be room.
    fn start(
        &mut self,
        direction: Direction,
        buffer: &'b mut [u8],
        want: usize,
        offset: u64,
        started: Instant,
    ) -> io::Result<()> {
        assert!(want <= buffer.len());
        let tag = self.desk.free.pop().expect("there is room");
        self.desk.transfers[tag as usize] =
            Transfer { direction, at: buffer.as_mut_ptr(), len: buffer.len(), want, have: 0, offset, started };
        self.in_flight += 1;
        self.push(tag)
    }

    /// Asks for the part of a transfer that is still missing.
    fn push(&mut self, tag: u32) -> io::Result<()> {
        let Transfer { direction, at, len, have, offset, .. } = self.desk.transfers[tag as usize];
        // SAFETY: `at` points to the `len` bytes of a buffer that `start` took by value for `'b`
        // and that `next` gives back only after the queue returned the tag. This flight lives no
        // longer than `'b`, and its `drop` waits for all tags. Flights are not leaked: they are
        // locals of this file.
        let pushed = unsafe { self.desk.queue.push(tag, direction, at.add(have), len - have, offset + have as u64) };
        if pushed.is_err() {
            self.land(tag);
        }
        pushed
    }

    fn land(&mut self, tag: u32) {
        self.desk.free.push(tag);
        self.in_flight -= 1;
    }

    fn turn(&mut self, wait: usize) -> io::Result<()> {
        self.desk.queue.turn(wait)
    }

    /// Tells of what is complete, and gives its buffers back.
    fn harvest(&mut self, round: &mut Round<'_>, idle: &mut Vec<&'b mut [u8]>) -> io::Result<()> {
        let now = Instant::now();
        while let Some(done) = self.next()? {
            round.tally.block(done.offset, &done.buffer[..done.len], done.started, now);
            idle.push(done.buffer);
        }
        Ok(())
    }

    /// The next complete transfer. One that stopped half-way (half of it was cached, or a signal
    /// came) is sent on.
    fn next(&mut self) -> io::Result<Option<Complete<'b>>> {
        while let Some((tag, result)) = self.desk.queue.next() {
            let transfer = &mut self.desk.transfers[tag as usize];
            let direction = transfer.direction;
            match result {
                Ok(count) if count > 0 || transfer.want == 0 => transfer.have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    self.land(tag);
                    let nothing = match direction {
                        Direction::Read => io::ErrorKind::UnexpectedEof,
                        Direction::Write => io::ErrorKind::WriteZero,
                    };
                    return Err(failed.err().unwrap_or(nothing.into()));
                }
            }
            let Transfer { at, len, want, have, offset, started, .. } = *transfer;
            if have < want {
                self.push(tag)?;
                continue;
            }
            self.land(tag);
            // SAFETY: these are the pointer and the length of the `&'b mut [u8]` that `start` took.
            // The kernel is done with it, and the transfer has ended, so the buffer is given back
            // only once.
            let buffer = unsafe { slice::from_raw_parts_mut(at, len) };
            return Ok(Some(Complete { buffer, len: have, offset, started }));
        }
        Ok(None)
    }
}

impl<Q: Queue> Drop for Flight<'_, '_, Q> {
    /// After an error: waits for the rest, whatever becomes of it, because the kernel still uses
    /// the buffers.
    fn drop(&mut self) {
        loop {
            while let Some((tag, _)) = self.desk.queue.next() {
                self.land(tag);
            }
            if self.in_flight == 0 {
                return;
            }
            if self.desk.queue.turn(1).is_err() {
                // The buffers are the caller's: they cannot be leaked, and to return would be
                // unsound.
                process::abort();
            }
        }
    }
}
