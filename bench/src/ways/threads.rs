//! Native threads with plain calls: `depth` threads take operations from one counter.
//!
//! For a gather, the calling thread and a permanent pool (rayon's) each read a share of the batch:
//! no record needs its own lock, task or allocation. A batch of one record is a plain read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock, PoisonError, RwLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use rayon::ThreadPool;

use super::drive::{Drive, Job, work};
use super::plain::call;
use super::{Does, Way};
use crate::measure::meter::{Round, Tally};
use crate::measure::work::{Batch, Gather};

/// Number of threads of a gather, which equals the depth of the common comparison of 2020.
pub(super) const GATHER_THREADS: usize = 32;
pub(crate) struct Threads;

pub(crate) static THREADS: Way = Way::new(
    "threads",
    "as many native threads as the depth, with plain calls; 32 threads share a gather, in load one thread reads it",
    &[
        Does::Reads(&Threads),
        Does::Gathers(&Threads),
        Does::DirectReads(&Threads),
        Does::Scans(&Threads),
        Does::LoadReads(&Threads),
        Does::LoadGathers(&Threads),
        Does::Writes(&Threads),
        Does::Files(&Threads),
    ],
)
.hue(1);

impl Drive for Threads {
    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let (next, schedule) = (AtomicUsize::new(0), OnceLock::new());
        let take = || next.fetch_add(1, Ordering::Relaxed);
        let run = |(): &mut (), block: &mut [u8], tally: &mut Tally<'_>| {
            let schedule = schedule.get_or_init(|| job.schedule());
            work(job, schedule, take, block, tally, |operation, block| call(&job.plan, operation, block))
        };
        let done = match job.block {
            // Whole files need no block of the buffer.
            0 => at_once(
                job.depth,
                1,
                &mut vec![0; job.depth],
                round,
                || Ok(()),
                |own, _, tally| run(own, &mut [], tally),
            ),
            block => at_once(job.depth, block, buffer, round, || Ok(()), run),
        };
        done.map(drop)
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

/// Runs `work` on `depth` threads, each with its own block and the result of `prepare`, which runs
/// on each thread before the clock starts. Returns all results.
pub(super) fn at_once<P, T: Send>(
    depth: usize,
    block: usize,
    buffer: &mut [u8],
    round: &mut Round<'_>,
    prepare: impl Fn() -> io::Result<P> + Sync,
    work: impl Fn(&mut P, &mut [u8], &mut Tally<'_>) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    // Barrier of the threads; none if a thread could not be started, since the others would wait
    // for it.
    let gate = RwLock::new(None);
    thread::scope(|scope| {
        let mut is_set = gate.write().unwrap_or_else(PoisonError::into_inner);
        let start = |block| {
            let mut tally = round.new_tally();
            let (prepare, work, gate) = (&prepare, &work, &gate);
            thread::Builder::new().spawn_scoped(scope, move || {
                let gate = gate.read().unwrap_or_else(PoisonError::into_inner);
                let Some(gate) = &*gate else { return Err(io::ErrorKind::WouldBlock.into()) };
                // Three meetings: all threads are prepared, they begin, and they are done.
                let mut meetings = Meetings::new(gate, 3);
                let prepared = prepare();
                meetings.attend();
                meetings.attend();
                let given = prepared.and_then(|mut own| work(&mut own, block, &mut tally));
                meetings.attend();
                given.map(|given| (tally, given))
            })
        };
        let workers: io::Result<Vec<_>> = buffer.chunks_mut(block).take(depth).map(start).collect();
        *is_set = workers.is_ok().then(|| Barrier::new(depth + 1));
        drop(is_set);
        let workers = workers.map_err(|error| io::Error::new(error.kind(), format!("start a thread: {error}")))?;
        let met = gate.read().unwrap_or_else(PoisonError::into_inner);
        let meet = || met.iter().for_each(|gate| _ = gate.wait());
        meet();
        round.start();
        meet();
        meet();
        round.stop();
        let tell = |outcome: io::Result<(Tally<'_>, T)>| {
            let (tally, given) = outcome?;
            round.tally.merge(&tally);
            Ok(given)
        };
        joined(workers).into_iter().map(tell).collect()
    })
}

/// Meetings of a thread with the others at a barrier. A thread that panics still attends its
/// remaining meetings: otherwise the others would never return.
pub(super) struct Meetings<'a> {
    gate: &'a Barrier,
    left: u32,
}

impl<'a> Meetings<'a> {
    pub(super) fn new(gate: &'a Barrier, all: u32) -> Self {
        Self { gate, left: all }
    }

    pub(super) fn attend(&mut self) {
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

/// Joins all threads, also after an error: a scope panics if an unjoined thread has panicked.
/// Returns the panic of a thread as an error.
pub(super) fn joined<T>(threads: Vec<ScopedJoinHandle<'_, io::Result<T>>>) -> Vec<io::Result<T>> {
    let panicked = |_| Err(io::Error::other("a thread of it panicked"));
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
}

fn gather_one(pool: &ThreadPool, file: &File, batch: Batch<'_>, output: &mut [u8]) -> io::Result<()> {
    let failure = OnceLock::new();
    let read = |share: Batch<'_>, output: &mut [u8]| {
        let all = share.pieces(output).try_for_each(|(offset, piece)| file.read_exact_at(piece, offset));
        // Only one error is kept.
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
            at_once(
                3,
                1,
                &mut [0; 3],
                round,
                || Ok(()),
                |(), _, _| {
                    assert!(begun.fetch_add(1, Ordering::Relaxed) > 0, "the first panics");
                    Ok(())
                },
            )
        });
        assert_eq!(outcome.err().map(|error| error.to_string()).as_deref(), Some("a thread of it panicked"));
        assert_eq!(begun.into_inner(), 3);
    }
}
