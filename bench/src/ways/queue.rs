//! Shared by all queues to the kernel (a ring, libaio): who owns a buffer while the kernel uses it,
//! and the loops that keep a queue busy.
//!
//! A [`Flight`] takes a buffer by value when an operation is submitted and gives it back when it is
//! complete, so nobody can touch it in between; and a flight does not end before all its operations
//! have.

use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::process;
use std::slice;
use std::time::Instant;

use super::drive::{Job, Kind, Operation};
use crate::measure::meter::{Round, Tally};
use crate::measure::pace::{Schedule, sleep_until};
use crate::measure::work::{Batch, Gather, Gathers, Writes};

/// A queue to the kernel. Its files are fixed when it is made.
pub(in crate::ways) trait Queue {
    /// The most operations in flight.
    fn capacity(&self) -> usize;

    /// Queues an operation, `done` bytes of which have been moved; it may be submitted at once or
    /// with the next [`Queue::turn`]. There is room: at most [`Queue::capacity`] are in flight. An
    /// error means that the kernel does not know of it and never will. `path` is that of a whole
    /// file, and lives as long as the queue.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `at` can be read and written, and nobody else touches them, until
    /// [`Queue::next`] has returned `tag`. So can those of `path`.
    unsafe fn push(&mut self, tag: u32, request: Request<'_>) -> io::Result<()>;

    /// Submits what is queued and waits for at least `wait` completions. A signal may end the
    /// waiting early.
    fn turn(&mut self, wait: usize) -> io::Result<()>;

    /// Submits what is queued and waits for a completion, until then at most. A signal may end the
    /// waiting early. A queue that cannot waits for the completion.
    fn turn_until(&mut self, _: Instant) -> io::Result<()> {
        self.turn(1)
    }

    /// The next completion that is already there: its tag and the number of bytes.
    fn next(&mut self) -> Option<(u32, io::Result<usize>)>;
}

/// A request to a queue.
#[derive(Clone, Copy)]
pub(in crate::ways) struct Request<'p> {
    pub kind: Kind,
    pub file: usize,
    pub at: *mut u8,
    pub len: usize,
    pub offset: u64,
    pub path: Option<&'p CStr>,
}

/// A queue and its list of operations, kept from one flight to the next.
pub(in crate::ways) struct Desk<Q> {
    queue: Q,
    transfers: Vec<Transfer>,
    free: Vec<u32>,
}

/// One operation, from its start until all its bytes have been moved.
#[derive(Clone, Copy)]
struct Transfer {
    operation: Operation,
    at: *mut u8,
    /// The whole buffer. All of it is asked for, since a direct read takes whole blocks only; it is
    /// complete with the operation's bytes, which are fewer at the end of the file.
    len: usize,
    have: usize,
    started: Instant,
}

impl<Q: Queue> Desk<Q> {
    pub(in crate::ways) fn new(queue: Q) -> Self {
        let free = (0..queue.capacity() as u32).rev().collect();
        let (operation, started) = (Operation::read(0, 0), Instant::now());
        let nothing = Transfer { operation, at: [].as_mut_ptr(), len: 0, have: 0, started };
        Self { transfers: vec![nothing; queue.capacity()], queue, free }
    }

    /// `paths`: of whole files, by their numbers.
    fn flight<'b>(&mut self, paths: &'b [CString]) -> Flight<'_, 'b, Q> {
        Flight { desk: self, in_flight: 0, paths, buffers: PhantomData }
    }

    /// Keeps all blocks of the buffer in flight, each as soon as it is due.
    pub(in crate::ways) fn drive(
        &mut self,
        job: &Job<'_>,
        paths: &[CString],
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> io::Result<()> {
        let block = buffer.len() / job.depth;
        let mut idle: Vec<&mut [u8]> = buffer.chunks_mut(block).take(job.depth).collect();
        let (mut flight, mut index) = (self.flight(paths), 0);
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

    /// One operation, submitted and waited for.
    pub(in crate::ways) fn one(&mut self, operation: Operation, paths: &[CString], block: &mut [u8]) -> io::Result<()> {
        let mut flight = self.flight(paths);
        flight.start(operation, block, Instant::now())?;
        loop {
            flight.turn(1)?;
            if flight.next()?.is_some() {
                return Ok(());
            }
        }
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
        let mut flight = self.flight(&[]);
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
        let mut flight = self.flight(&[]);
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
        let mut flight = self.flight(&[]);
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
                    flight.start(Operation::read(offset, job.block), piece, due)?;
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

/// Operations in flight, each with its buffer, which it owns for `'b`.
struct Flight<'q, 'b, Q: Queue> {
    desk: &'q mut Desk<Q>,
    in_flight: usize,
    paths: &'b [CString],
    buffers: PhantomData<&'b mut [u8]>,
}

/// An operation that is complete, and its buffer.
struct Complete<'b> {
    operation: Operation,
    buffer: &'b mut [u8],
    /// Bytes that were moved.
    len: usize,
    started: Instant,
}

impl<'b, Q: Queue> Flight<'_, 'b, Q> {
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

    /// Asks for the part of an operation that is still missing.
    fn push(&mut self, tag: u32) -> io::Result<()> {
        let Transfer { operation, at, len, have, .. } = self.desk.transfers[tag as usize];
        let Operation { kind, file, offset, .. } = operation;
        let path = if kind == Kind::Whole { Some(&*self.paths[file]) } else { None };
        let (len, offset) = (len - have, offset + have as u64);
        // SAFETY: `at` points to the bytes of a buffer that `start` took by value for `'b` and that
        // `next` gives back only after the queue returned the tag; paths are borrowed for `'b`. This
        // flight lives no longer than `'b`, and its `drop` waits for all tags. Flights are not
        // leaked: they are locals of this file.
        let pushed = unsafe { self.desk.queue.push(tag, Request { kind, file, at: at.add(have), len, offset, path }) };
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

    /// The next complete operation. One that stopped half-way (half of it was cached, or a signal
    /// came) is sent on, unless it is durable.
    fn next(&mut self) -> io::Result<Option<Complete<'b>>> {
        while let Some((tag, result)) = self.desk.queue.next() {
            let transfer = &mut self.desk.transfers[tag as usize];
            let (kind, want) = (transfer.operation.kind, transfer.operation.len);
            match result {
                Ok(count) if count > 0 || want == 0 => transfer.have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    self.land(tag);
                    let nothing =
                        if kind == Kind::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
                    return Err(failed.err().unwrap_or(nothing.into()));
                }
            }
            let Transfer { operation, at, len, have, started } = *transfer;
            if have < want && (kind != Kind::DurableWrite || have == 0) {
                self.push(tag)?;
                continue;
            }
            self.land(tag);
            if have < want {
                return Err(io::ErrorKind::WriteZero.into());
            }
            if kind == Kind::Whole && have == len {
                return Err(io::Error::other("the file is longer than it was to be"));
            }
            // SAFETY: these are the pointer and the length of the `&'b mut [u8]` that `start` took.
            // The kernel is done with it, and the operation has ended, so the buffer is given back
            // only once.
            let buffer = unsafe { slice::from_raw_parts_mut(at, len) };
            return Ok(Some(Complete { operation, buffer, len: have, started }));
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
