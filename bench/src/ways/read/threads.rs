//! Native threads, each in a blocking `pread` or `pwrite`: `depth` of them taking offsets off one
//! counter. For a gather, the calling thread and a standing pool (rayon's), a share of the batch for
//! each: no record costs a lock, a task or memory of its own. A batch of one record is a plain read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use rayon::ThreadPool;

use crate::measure::meter::{Round, Tally};
use crate::measure::pace::Schedule;
use crate::measure::work::{Batch, Gather, Reads, Writes};
use crate::ways::{Does, ReadWay, Way, WriteWay, readwrite};

/// Threads of a gather: as many as the depth at which the common comparison of 2020 was made.
pub(super) const GATHER_THREADS: usize = 32;

pub(crate) struct Threads;

pub(crate) static THREADS: Way = Way::new(
    "threads",
    "as many native threads as the depth, each in plain calls; a gather by 32, a share for each, in load by one",
    &[
        Does::Reads(&Threads),
        Does::Gathers(&Threads),
        Does::DirectReads(&Threads),
        Does::Scans(&Threads),
        Does::LoadReads(&Threads),
        Does::LoadGathers(&Threads),
        Does::Writes(&Threads),
        Does::Files(&Threads),
        Does::ReadsAndWrites(&readwrite::threads::FDATASYNC),
    ],
)
.hue(1);

impl ReadWay for Threads {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let schedule = OnceLock::new();
        at_once(job.depth, job.block, buffer, round, |block, tally| {
            read_until_done(job, schedule.get_or_init(|| job.schedule()), &next, block, tally)
        })
        .map(drop)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let others = GATHER_THREADS.min(job.records()).saturating_sub(1).max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(others).build().map_err(io::Error::other)?;
        round.start();
        for batch in job.each_batch() {
            let started = Instant::now();
            gather_one(&pool, job.target.file, batch, output)?;
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

impl WriteWay for Threads {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let next = AtomicU64::new(0);
        let work = |block: &mut [u8], tally: &mut Tally<'_>| write_until_done(job, &next, block, tally);
        at_once(job.depth, job.block, buffer, round, work).map(drop)
    }
}

/// Runs `work` on `depth` threads, each with a block of its own. They are there before the clock
/// runs. Gives what each has given.
pub(in crate::ways) fn at_once<T: Send>(
    depth: usize,
    block: usize,
    buffer: &mut [u8],
    round: &mut Round<'_>,
    work: impl Fn(&mut [u8], &mut Tally<'_>) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let gate = Barrier::new(depth + 1);
    thread::scope(|scope| {
        let workers: Vec<_> = buffer
            .chunks_mut(block)
            .take(depth)
            .map(|block| {
                let mut tally = round.new_tally();
                let (work, gate) = (&work, &gate);
                scope.spawn(move || {
                    // They begin; they are done.
                    let mut meetings = Meetings::new(gate, 2);
                    meetings.attend();
                    let result = work(block, &mut tally);
                    meetings.attend();
                    result.map(|given| (tally, given))
                })
            })
            .collect();
        round.start();
        gate.wait();
        gate.wait();
        round.stop();
        let mut all = Vec::with_capacity(depth);
        for outcome in joined(workers) {
            let (tally, given) = outcome?;
            round.tally.merge(&tally);
            all.push(given);
        }
        Ok(all)
    })
}

/// A thread's meetings with the others at a barrier. One that panics keeps those that it has left:
/// else the others would wait for ever.
pub(in crate::ways) struct Meetings<'a> {
    gate: &'a Barrier,
    left: u32,
}

impl<'a> Meetings<'a> {
    pub(in crate::ways) fn new(gate: &'a Barrier, all: u32) -> Self {
        Self { gate, left: all }
    }

    pub(in crate::ways) fn attend(&mut self) {
        self.left -= 1;
        self.gate.wait();
    }
}

impl Drop for Meetings<'_> {
    fn drop(&mut self) {
        while self.left > 0 {
            self.attend();
        }
    }
}

/// Waits for all threads, also after an error: a scope panics with a thread that nobody has joined.
/// The panic of a thread is an error.
pub(in crate::ways) fn joined<T>(threads: Vec<ScopedJoinHandle<'_, io::Result<T>>>) -> Vec<io::Result<T>> {
    let panicked = |_| Err(io::Error::other("a thread of it panicked"));
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
}

fn write_until_done(job: &Writes<'_>, next: &AtomicU64, block: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
    while let Some(offset) = job.offset(next.fetch_add(1, Ordering::Relaxed)) {
        job.contents.place(block, offset);
        let started = Instant::now();
        job.file.write_all_at(block, offset)?;
        tally.block(offset, block, started, Instant::now());
    }
    Ok(())
}

fn read_until_done(
    job: &Reads<'_>,
    schedule: &Schedule,
    next: &AtomicUsize,
    block: &mut [u8],
    tally: &mut Tally<'_>,
) -> io::Result<()> {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(offset) = job.offset(index) else { return Ok(()) };
        let block = &mut block[..job.len_at(offset)];
        let started = schedule.wait(index);
        job.target.file.read_exact_at(block, offset)?;
        tally.block(offset, block, started, Instant::now());
    }
}

fn gather_one(pool: &ThreadPool, file: &File, batch: Batch<'_>, output: &mut [u8]) -> io::Result<()> {
    let failure = OnceLock::new();
    let read = |share: Batch<'_>, output: &mut [u8]| {
        let all = share.pieces(output).try_for_each(|(offset, piece)| file.read_exact_at(piece, offset));
        // One error is enough.
        all.unwrap_or_else(|error| drop(failure.set(error)));
    };
    pool.in_place_scope(|scope| {
        let mut shares = batch.shares(GATHER_THREADS);
        let Some(own) = shares.next() else { return };
        let (own_output, mut rest) = output.split_at_mut(own.bytes);
        for share in shares {
            let (output, after) = rest.split_at_mut(share.bytes);
            rest = after;
            let read = &read;
            scope.spawn(move |_| read(share, output));
        }
        read(own, own_output);
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::turn::alone;

    #[test]
    fn a_worker_that_panics_is_an_error_and_holds_nobody_up() {
        let begun = AtomicUsize::new(0);
        let outcome = alone(None, |round| {
            at_once(3, 1, &mut [0; 3], round, |_, _| {
                assert!(begun.fetch_add(1, Ordering::Relaxed) > 0, "the first panics");
                Ok(())
            })
        });
        assert_eq!(outcome.err().map(|error| error.to_string()).as_deref(), Some("a thread of it panicked"));
        assert_eq!(begun.into_inner(), 3);
    }
}
