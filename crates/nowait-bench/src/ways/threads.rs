//! Native threads, each in a blocking `pread`: `depth` of them taking offsets off one counter. For a gather, a
//! standing pool (rayon's) that takes records off one list.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rayon::ThreadPool;

use super::Way;
use crate::meter::{Round, Tally};
use crate::work::{Batch, Gather, Reads};

/// As many as the depth at which the common comparison of 2020 was made.
const GATHER_THREADS: usize = 32;

pub struct Threads;

impl Way for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let ready = Barrier::new(job.depth + 1);
        let complete = Barrier::new(job.depth + 1);
        thread::scope(|scope| {
            let workers: Vec<_> = buffer
                .chunks_mut(job.block)
                .take(job.depth)
                .map(|block| {
                    let mut tally = round.new_tally();
                    let (next, ready, complete) = (&next, &ready, &complete);
                    scope.spawn(move || {
                        ready.wait();
                        let result = read_until_done(job, next, block, &mut tally);
                        complete.wait();
                        result.map(|()| tally)
                    })
                })
                .collect();
            round.start();
            ready.wait();
            complete.wait();
            round.stop();
            for worker in workers {
                round.tally.merge(&worker.join().expect("a worker does not panic")?);
            }
            Ok(())
        })
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let threads = GATHER_THREADS.min(job.records());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(io::Error::other)?;
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

fn read_until_done(job: &Reads<'_>, next: &AtomicUsize, block: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
    while let Some(offset) = job.offset(next.fetch_add(1, Ordering::Relaxed)) {
        let block = &mut block[..job.len_at(offset)];
        let started = Instant::now();
        job.target.file.read_exact_at(block, offset)?;
        tally.read(offset, block, started, Instant::now());
    }
    Ok(())
}

fn gather_one(pool: &ThreadPool, file: &File, batch: Batch<'_>, output: &mut [u8]) -> io::Result<()> {
    let pieces = Mutex::new(batch.pieces(output));
    let failure = Mutex::new(None);
    let take = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    pool.scope(|scope| {
        for _ in 0..pool.current_num_threads().min(batch.ranges.len()) {
            scope.spawn(|_| {
                while let Some((offset, piece)) = take() {
                    if let Err(error) = file.read_exact_at(piece, offset) {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
