//! `nowait` itself, in the two forms in which it is used: by a caller that blocks, and on tokio.
//!
//! `nowait`: depth 1 is the blocking read; more in flight is `block_on` over as many loops as the depth; a gather is
//! `gather_into`. `nowait-tokio`: as many tasks as the depth on a multi-thread runtime with a worker per processor.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nowait::{Advice, File, Nowait, OpenOptions, Stats};

use super::Way;
use crate::meter::{Round, Tally};
use crate::work::{Gather, Reads, Target};

pub struct Blocking;

pub struct Tokio;

impl Way for Blocking {
    fn name(&self) -> &'static str {
        "nowait"
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::new(job.target)?;
        if job.depth == 1 {
            round.start();
            for offset in job.each_offset() {
                let block = &mut buffer[..job.len_at(offset)];
                let started = Instant::now();
                session.file.read_exact_into(block, offset)?;
                round.tally.read(offset, block, started, Instant::now());
            }
            round.stop();
        } else {
            in_flight(&session.file, job, round)?;
        }
        session.report(round);
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::new(job.target)?;
        let ranges = extents(job);
        round.start();
        for (batch, ranges) in job.each_batch().zip(&ranges) {
            let started = Instant::now();
            in_full(&session.file.gather_into(ranges, output)?)?;
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        session.report(round);
        Ok(())
    }
}

/// Keeps `job.depth` reads in flight from this thread.
fn in_flight(file: &File, job: &Reads<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let buffers: Vec<Vec<u8>> = (0..job.depth).map(|_| vec![0xa5; job.block]).collect();
    round.start();
    let tally = RefCell::new(&mut round.tally);
    let loops = buffers.into_iter().map(|mut buffer| {
        let (next, tally) = (&next, &tally);
        async move {
            while let Some(offset) = job.offset(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let length;
                (length, buffer) = file.read_at(buffer, offset).await?;
                if length != job.len_at(offset) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                tally.borrow_mut().read(offset, &buffer[..length], started, Instant::now());
            }
            Ok(())
        }
    });
    let result: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
    round.stop();
    result.map(drop)
}

impl Way for Tokio {
    fn name(&self) -> &'static str {
        "nowait-tokio"
    }

    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::new(job.target)?;
        let next = Arc::new(AtomicUsize::new(0));
        let offsets: Arc<[(u64, usize)]> = job.offsets.iter().map(|&offset| (offset, job.len_at(offset))).collect();
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, next, offsets) = (session.file.clone(), next.clone(), offsets.clone());
                let mut buffer = vec![0xa5; job.block];
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some(&(offset, expected)) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let started = Instant::now();
                        let length;
                        (length, buffer) = file.read_at(buffer, offset).await?;
                        if length != expected {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                        seen.add(offset, &buffer[..length], started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        round.start();
        let tasks: Vec<_> = tasks.into_iter().map(|task| runtime().spawn(task)).collect();
        let seen = finish(tasks);
        round.stop();
        seen?.into_iter().for_each(|seen| seen.tell(&mut round.tally));
        session.report(round);
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::new(job.target)?;
        let ranges = extents(job);
        let (file, mut buffer) = (session.file.clone(), vec![0xa5; output.len()]);
        let keep = round.tally.verifies();
        let task = async move {
            let mut seen = Vec::with_capacity(ranges.len());
            for ranges in &ranges {
                let started = Instant::now();
                let gathered = file.gather(ranges).into_buffer(buffer).await?;
                in_full(gathered.exceptions())?;
                buffer = gathered.into_buffer();
                seen.push((started, Instant::now(), keep.then(|| buffer.clone())));
            }
            io::Result::Ok(seen)
        };
        round.start();
        let seen = finish(vec![runtime().spawn(task)]);
        round.stop();
        for (batch, (started, now, bytes)) in job.each_batch().zip(seen?.into_iter().flatten()) {
            round.tally.batch(batch, bytes.as_deref().unwrap_or(output), started, now);
        }
        session.report(round);
        Ok(())
    }
}

/// No range failed, and the file did not end before one did.
fn in_full(exceptions: &nowait::Exceptions) -> io::Result<()> {
    exceptions.errors().first().cloned().map_or(Ok(()), Err)?;
    if exceptions.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn finish<T>(tasks: Vec<tokio::task::JoinHandle<io::Result<T>>>) -> io::Result<Vec<T>> {
    let all = futures_util::future::join_all(tasks);
    runtime().block_on(all).into_iter().map(|joined| joined.map_err(io::Error::other)?).collect()
}

/// What one task saw. A task outlives the round's borrow, and so do its own figures; bytes that are to be verified are kept until
/// the clock has stopped.
struct Seen {
    tally: Tally<'static>,
    kept: Option<Vec<(u64, Vec<u8>)>>,
}

impl Seen {
    fn new(round: &Tally<'_>) -> Seen {
        Seen { tally: Tally::new(None), kept: round.verifies().then(Vec::new) }
    }

    #[inline]
    fn add(&mut self, offset: u64, bytes: &[u8], started: Instant) {
        self.tally.read(offset, bytes, started, Instant::now());
        if let Some(kept) = &mut self.kept {
            kept.push((offset, bytes.to_vec()));
        }
    }

    fn tell(self, round: &mut Tally<'_>) {
        round.merge(&self.tally);
        for (offset, bytes) in self.kept.into_iter().flatten() {
            round.verify(offset, &bytes);
        }
    }
}

fn extents(job: &Gather<'_>) -> Vec<Vec<(u64, usize)>> {
    let extents =
        |batch: crate::work::Batch<'_>| batch.ranges.iter().map(|range| (range.offset, range.len as usize)).collect();
    job.each_batch().map(extents).collect()
}

fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().enable_io().build().expect("a runtime starts where threads do")
    })
}

/// One round's file and what was counted before it. The instance is the process's: several callers of one round share it.
struct Session {
    file: File,
    before: Stats,
}

impl Session {
    fn new(target: Target<'_>) -> io::Result<Session> {
        let file = OpenOptions::new().read(true).open(target.path).wait()?;
        file.advise(0, 0, Advice::Random).wait()?;
        Ok(Session { file, before: Nowait::shared().stats() })
    }

    /// A blocking read is a system call on the caller's thread whether it waits or not: it tells nothing.
    fn report(&self, round: &mut Round<'_>) {
        let now = Nowait::shared().stats();
        let inline = now.inline - self.before.inline;
        let queued = (now.ring + now.pool + now.failed) - (self.before.ring + self.before.pool + self.before.failed);
        if inline + queued > 0 {
            round.set_inline_fraction(inline as f64 / (inline + queued) as f64);
        }
    }
}
