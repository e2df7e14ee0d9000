//! Ownership of buffers while a ring uses them, and the loops that keep a ring busy.
//!
//! A [`Flight`] takes a buffer by value at submission and returns it at completion, so no other
//! code can access it meanwhile. A flight does not end before all its operations have completed.

use std::ffi::CString;
use std::io;
use std::marker::PhantomData;
use std::process;
use std::slice;
use std::time::Instant;

use super::drive::{Job, Kind, Operation, RoundPlan};
use super::ring::{Request, Uring};
use crate::measure::meter::{Round, Tally};
use crate::measure::pace::sleep_until;
use crate::measure::work::{Batch, Gather, Writes};

/// A ring and its list of operations, kept from one flight to the next.
pub(in crate::ways) struct Desk {
    ring: Uring,
    transfers: Vec<Transfer>,
    free: Vec<u32>,
}

/// An operation, from its start until all its bytes have been transferred.
#[derive(Clone, Copy)]
struct Transfer {
    operation: Operation,
    at: *mut u8,
    /// Length of the buffer, all of which is requested, since a direct read covers whole blocks.
    /// The operation is complete with its own bytes, which are fewer at the end of the file.
    len: usize,
    have: usize,
    started: Instant,
}

impl Desk {
    pub(in crate::ways) fn new(ring: Uring) -> Self {
        let free = (0..ring.capacity() as u32).rev().collect();
        let (operation, started) = (Operation::read(0, 0), Instant::now());
        let nothing = Transfer { operation, at: [].as_mut_ptr(), len: 0, have: 0, started };
        Self { transfers: vec![nothing; ring.capacity()], ring, free }
    }

    /// Begins a flight. `plan` is that of gathers; `paths` are those of whole files, by their
    /// numbers.
    fn flight<'b>(&mut self, plan: Option<&'b RoundPlan>, paths: &'b [CString]) -> Flight<'_, 'b> {
        Flight { desk: self, in_flight: 0, plan, paths, buffers: PhantomData }
    }

    /// Keeps all blocks of the buffer in flight, each from its scheduled start.
    pub(in crate::ways) fn drive(
        &mut self,
        job: &Job<'_>,
        paths: &[CString],
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let block = buffer.len() / job.depth;
        let mut idle: Vec<&mut [u8]> = buffer.chunks_mut(block).take(job.depth).collect();
        let (mut flight, mut index) = (self.flight(Some(&job.plan), paths), 0);
        round.start();
        let schedule = job.schedule();
        loop {
            let mut waiting = None;
            while let Some(block) = idle.pop() {
                let due = schedule.due(index);
                let early = due.filter(|due| Instant::now() < *due);
                let Some(operation) = job.get(index).filter(|_| early.is_none()) else {
                    waiting = early.filter(|_| job.get(index).is_some());
                    idle.push(block);
                    break;
                };
                job.make(operation, block);
                flight.start(operation, block, due.unwrap_or_else(Instant::now))?;
                index += 1;
            }
            if !flight.wait(waiting)? {
                break;
            }
            let now = Instant::now();
            while let Some(done) = flight.next()? {
                let bytes = &done.buffer[..done.len];
                job.tell(done.operation, bytes, (done.started, now), &mut round.tally);
                idle.push(done.buffer);
            }
        }
        round.stop();
        Ok(())
    }

    /// Submits one operation and waits for it.
    pub(in crate::ways) fn one(&mut self, operation: Operation, paths: &[CString], block: &mut [u8]) -> io::Result<()> {
        let mut flight = self.flight(None, paths);
        flight.start(operation, block, Instant::now())?;
        loop {
            flight.turn(1)?;
            if flight.next()?.is_some() {
                return Ok(());
            }
        }
    }

    /// Writes without waiting: harvests completions, submits as many writes as fit, and then calls
    /// `others`, which returns whether to continue.
    pub(in crate::ways) fn writes_beside(
        &mut self,
        job: &Writes<'_>,
        buffer: &mut [u8],
        round: &mut Round<'_>,
        mut others: impl FnMut(&mut Tally<'_>) -> bool,
    ) -> io::Result<()> {
        let mut idle: Vec<&mut [u8]> = buffer.chunks_mut(job.block).take(job.depth).collect();
        let mut offsets = job.each_offset();
        let mut flight = self.flight(None, &[]);
        round.start();
        let mut more = others(&mut round.tally);
        loop {
            while more && !idle.is_empty() {
                let Some(offset) = offsets.next() else { break };
                let Some(block) = idle.pop() else { break };
                job.contents.place(block, offset);
                flight.start(Operation::write(offset, job.block), block, Instant::now())?;
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
        let mut flight = self.flight(None, &[]);
        loop {
            while left > 0 && flight.has_room() {
                let Some((offset, piece)) = pieces.next() else { break };
                let operation = Operation::read(offset, piece.len());
                flight.start(operation, piece, started)?;
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

/// Operations in flight, each of which owns its buffer for `'b`.
struct Flight<'q, 'b> {
    desk: &'q mut Desk,
    in_flight: usize,
    plan: Option<&'b RoundPlan>,
    paths: &'b [CString],
    buffers: PhantomData<&'b mut [u8]>,
}

/// A complete operation, and its buffer.
struct Complete<'b> {
    operation: Operation,
    buffer: &'b mut [u8],
    /// Number of transferred bytes.
    len: usize,
    started: Instant,
}

impl<'b> Flight<'_, 'b> {
    fn has_room(&self) -> bool {
        !self.desk.free.is_empty()
    }

    /// Starts an operation, whose latency counts from `started`. There must be room.
    fn start(&mut self, operation: Operation, buffer: &'b mut [u8], started: Instant) -> io::Result<()> {
        assert!(operation.len <= buffer.len());
        let tag = self.desk.free.pop().expect("there is room");
        let (at, len) = (buffer.as_mut_ptr(), buffer.len());
        self.desk.transfers[tag as usize] = Transfer { operation, at, len, have: 0, started };
        self.in_flight += 1;
        self.push(tag)
    }

    /// Submits the remaining part of an operation.
    fn push(&mut self, tag: u32) -> io::Result<()> {
        let Transfer { operation, at, len, have, .. } = self.desk.transfers[tag as usize];
        let Operation { kind, file, offset, .. } = operation;
        let path = if kind == Kind::Whole { Some(&*self.paths[file]) } else { None };
        let extents = self.plan.map_or(&[][..], |plan| plan.extents(operation));
        let (len, offset) = (len - have, offset + have as u64);
        // SAFETY: a part of that buffer, as below.
        let at = unsafe { at.add(have) };
        let request = Request { kind, file, at, len, offset, path, extents };
        // SAFETY: `at` points to the bytes of a buffer that `start` took by value for `'b`. `next`
        // returns the buffer only after the ring returned the tag. Paths are borrowed for `'b`.
        // This flight does not outlive `'b`, and its `drop` waits for all tags. Flights are never
        // leaked, since they are locals of this file.
        let pushed = unsafe { self.desk.ring.push(tag, request) };
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
        self.desk.ring.turn(wait)
    }

    /// Waits for a completion, at most until `due`. False if there is nothing to wait for.
    fn wait(&mut self, due: Option<Instant>) -> io::Result<bool> {
        match (self.in_flight, due) {
            (0, None) => return Ok(false),
            (0, Some(due)) => sleep_until(due),
            (_, None) => self.turn(1)?,
            (_, Some(due)) => self.desk.ring.turn_until(due)?,
        }
        Ok(true)
    }

    /// Returns the next complete operation. Resubmits the rest of a partial one (partly cached, or
    /// interrupted by a signal), unless it is durable or a gather.
    fn next(&mut self) -> io::Result<Option<Complete<'b>>> {
        while let Some((tag, result)) = self.desk.ring.next() {
            let transfer = &mut self.desk.transfers[tag as usize];
            let (kind, want) = (transfer.operation.kind, transfer.operation.len);
            let reads = matches!(kind, Kind::Read | Kind::Gather);
            let nothing = if reads { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
            match result {
                Ok(count) if count > 0 || want == 0 => transfer.have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    self.land(tag);
                    return Err(failed.err().unwrap_or(nothing.into()));
                }
            }
            let Transfer { operation, at, len, have, started } = *transfer;
            if have < want && (matches!(kind, Kind::Read | Kind::Write) || have == 0) {
                self.push(tag)?;
                continue;
            }
            self.land(tag);
            if have < want {
                return Err(nothing.into());
            }
            if kind == Kind::Whole && have == len {
                return Err(io::Error::other("the file is longer than it was to be"));
            }
            // SAFETY: pointer and length are those of the `&'b mut [u8]` that `start` took. The
            // kernel no longer uses the memory. The operation has ended, so the buffer is returned
            // only once.
            let buffer = unsafe { slice::from_raw_parts_mut(at, len) };
            return Ok(Some(Complete { operation, buffer, len: have, started }));
        }
        Ok(None)
    }
}

impl Drop for Flight<'_, '_> {
    /// After an error, waits for the remaining operations, because the kernel still uses the
    /// buffers.
    fn drop(&mut self) {
        loop {
            while let Some((tag, _)) = self.desk.ring.next() {
                self.land(tag);
            }
            if self.in_flight == 0 {
                return;
            }
            if self.desk.ring.turn(1).is_err() {
                // The buffers belong to the caller, so they cannot be leaked. Returning would be
                // unsound.
                process::abort();
            }
        }
    }
}
