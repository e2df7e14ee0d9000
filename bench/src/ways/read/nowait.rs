//! `nowait` itself, in the two forms in which it is used: by a caller that blocks, and on tokio;
//! and by libaio, as where io_uring is refused.
//!
//! `nowait`: depth 1 is the blocking call; more in flight is `block_on` over as many loops as the
//! depth; a gather is `gather_into`. `nowait-tokio`: as many tasks as the depth on a multi-thread
//! runtime with a worker per processor. A lone future is in [`super::awaits`].
//!
//! Calls, sizes and the instance are those of the guide's pages: the shared instance with nothing
//! set, tokio attached once, pages in a `Buf`, which is what the library hands out. Where there is a
//! choice it is the one that the page recommends for the case: a plain call for one read by a
//! thread that blocks, `gather` for many records. Rounds share the instance, as a program's reads
//! do; the first of its operations is told apart.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nowait::{Buf, Engine, File, Nowait, OpenOptions, Stats};

use crate::measure::meter::Round;
use crate::measure::pace::Arrivals;
use crate::measure::work::{Batch, Gather, Range, Reads, Target, Writes};
use crate::ways::runtime::{Blocks, Seen, run_on_the_clock};
use crate::ways::{
    Does, ON_TOKIO, OURS, ReadWay, Way, WriteWay, copy,
    log::{arriving, durable, tasks},
    mixed, ranges,
    write::heartbeat,
};

pub(crate) struct Blocking;

/// `block_on` at every depth, on an instance with libaio and without a ring.
pub(crate) struct Aio;

pub(crate) struct Tokio;

pub(crate) static NOWAIT: Way = Way::new(
    OURS,
    "this library: its log, grown to what a round needs; in copy, nowait copy; in ranges, tasks on tokio; else \
     blocking at depth 1, block_on with more in flight",
    &[
        Does::Reads(&Blocking),
        Does::Gathers(&Blocking),
        Does::DirectReads(&Blocking),
        Does::Scans(&Blocking),
        Does::LoadReads(&Blocking),
        Does::LoadGathers(&Blocking),
        Does::Writes(&Blocking),
        Does::LoadAppends(&durable::USUAL),
        Does::Stalls(&heartbeat::Futures { strict: false }),
        Does::ReadsAndWrites(&Blocking),
        Does::Files(&Blocking),
        Does::Ranges(&ranges::LIBRARY),
        Does::Copies(&copy::command::Nowait),
        Does::Mixed(&mixed::nowait::BlockOn),
        Does::Commits(&durable::USUAL),
        Does::Pipelines(&durable::USUAL),
    ],
);

pub(crate) static NOWAIT_TOKIO: Way = Way::new(
    ON_TOKIO,
    "this library, on tokio's multi-thread runtime",
    &[
        Does::Reads(&Tokio),
        Does::Gathers(&Tokio),
        Does::DirectReads(&Tokio),
        Does::Scans(&Tokio),
        Does::LoadReads(&Tokio),
        Does::LoadGathers(&Tokio),
        Does::Writes(&Tokio),
        Does::LoadAppends(&arriving::Tasks),
        Does::ReadsAndWrites(&Tokio),
        Does::Files(&Tokio),
        Does::Mixed(&mixed::nowait::OnTokio),
        Does::TaskCommits(&tasks::Tickets),
    ],
);

pub(crate) static NOWAIT_AIO: Way = Way::new(
    "nowait-aio",
    "this library by libaio, as where io_uring is refused: block_on at every depth",
    &[Does::DirectReads(&Aio)],
)
.refused(|| Aio::instance().err().map(|error| error.to_string()));

impl ReadWay for Blocking {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        if job.depth == 1 {
            round.start();
            let schedule = job.schedule();
            for (index, offset) in job.each_offset().enumerate() {
                let block = &mut buffer[..job.len_at(offset)];
                let started = schedule.wait(index);
                session.file.read_exact_into(block, offset)?;
                round.tally.block(offset, block, started, Instant::now());
            }
            round.stop();
        } else {
            in_flight(&session.file, job, round)?;
        }
        session.report(round);
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        gather_into(&Session::reading(Nowait::shared(), job.target)?, job, output, round)
    }
}

fn gather_into(session: &Session, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
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

impl Aio {
    fn instance() -> io::Result<&'static Nowait> {
        static INSTANCE: OnceLock<nowait::Result<Nowait>> = OnceLock::new();
        let instance = INSTANCE.get_or_init(|| Nowait::builder().engine(Engine::Aio).build());
        instance.as_ref().map_err(|error| error.clone().into())
    }
}

impl ReadWay for Aio {
    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Aio::instance()?, job.target)?;
        in_flight(&session.file, job, round)?;
        session.report(round);
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        gather_into(&Session::reading(Aio::instance()?, job.target)?, job, output, round)
    }
}

/// Page-aligned, and touched.
pub(super) fn buffer(length: usize) -> Buf {
    let mut buffer = Buf::zeroed(length);
    buffer.fill(0xa5);
    buffer
}

/// Times of a first read, of which the warm engine of a round shows nothing.
pub(crate) struct FirstRead {
    pub instance: Duration,
    pub open: Duration,
    pub first: Duration,
    pub second: Duration,
}

/// Two awaited reads, at both ends of the file, by a thread, an instance and an open file that did
/// no other.
pub(crate) fn first_read(target: Target<'_>, block: usize) -> io::Result<FirstRead> {
    let read = || {
        let began = Instant::now();
        let instance = Nowait::builder().build()?;
        let built = Instant::now();
        let session = Session::reading(&instance, target)?;
        let opened = Instant::now();
        let last = (target.size - 1) / block as u64 * block as u64;
        let (first, second) = nowait::block_on(async {
            let (_, buffer) = session.file.read_at(buffer(block), 0).await?;
            let first = Instant::now();
            session.file.read_at(buffer, last).await?;
            io::Result::Ok((first, Instant::now()))
        })?;
        let (instance, open) = (built - began, opened - built);
        Ok(FirstRead { instance, open, first: first - opened, second: second - first })
    };
    thread::scope(|scope| scope.spawn(read).join()).unwrap_or_else(|_| Err(io::Error::other("the read panicked")))
}

/// Keeps `job.depth` reads in flight from this thread.
fn in_flight(file: &File, job: &Reads<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let arrivals = Arrivals::new(job.pace, job.offsets.len());
    let buffers: Vec<Buf> = (0..job.depth).map(|_| buffer(job.block)).collect();
    round.start();
    let tally = RefCell::new(&mut round.tally);
    let loops = buffers.into_iter().map(|mut buffer| {
        let (arrivals, tally) = (&arrivals, &tally);
        async move {
            while let Some((index, started)) = arrivals.next().await {
                let Some(offset) = job.offset(index) else { break };
                let length;
                (length, buffer) = file.read_at(buffer, offset).await?;
                if length != job.len_at(offset) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                tally.borrow_mut().block(offset, &buffer[..length], started, Instant::now());
            }
            Ok(())
        }
    });
    let result: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
    round.stop();
    result.map(drop)
}

impl ReadWay for Tokio {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let arrivals = Arrivals::new(job.pace, job.offsets.len());
        let offsets: Arc<[(u64, usize)]> = job.offsets.iter().map(|&offset| (offset, job.len_at(offset))).collect();
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, arrivals, offsets) = (session.file.clone(), arrivals.clone(), offsets.clone());
                let mut buffer = buffer(job.block);
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some((index, started)) = arrivals.next().await {
                        let (offset, expected) = offsets[index];
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
        run_on_the_clock(tasks, round)?;
        session.report(round);
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let batches: Vec<Box<[Range]>> = job.each_batch().map(|batch| batch.ranges.into()).collect();
        let (file, mut buffer) = (session.file.clone(), vec![0xa5; output.len()]);
        let (extents, mut seen) = (extents(job), Seen::new(&round.tally));
        let task = async move {
            for (extents, ranges) in extents.iter().zip(&batches) {
                let started = Instant::now();
                let gathered = file.gather(extents).into_buffer(buffer).await?;
                in_full(gathered.exceptions())?;
                buffer = gathered.into_buffer();
                seen.add_batch(ranges, &buffer, started);
            }
            io::Result::Ok(seen)
        };
        run_on_the_clock(vec![task], round)?;
        session.report(round);
        Ok(())
    }
}

/// No range failed, and the file did not end before one did.
pub(super) fn in_full(exceptions: &nowait::Exceptions) -> io::Result<()> {
    exceptions.errors().first().cloned().map_or(Ok(()), Err)?;
    if exceptions.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn extents(job: &Gather<'_>) -> Vec<Vec<(u64, usize)>> {
    let extents = |batch: Batch<'_>| batch.ranges.iter().map(|range| (range.offset, range.len as usize)).collect();
    job.each_batch().map(extents).collect()
}

impl WriteWay for Blocking {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::writing(Nowait::shared(), job.path)?;
        if job.depth == 1 {
            let block = &mut buffer[..job.block];
            round.start();
            for offset in job.each_offset() {
                job.contents.place(block, offset);
                let started = Instant::now();
                session.file.write_all_from(block, offset)?;
                round.tally.block(offset, block, started, Instant::now());
            }
            round.stop();
        } else {
            writes_in_flight(&session.file, job, round)?;
        }
        session.report(round);
        Ok(())
    }
}

/// Keeps `job.depth` writes in flight from this thread.
fn writes_in_flight(file: &File, job: &Writes<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let buffers = job.buffers();
    round.start();
    let tally = RefCell::new(&mut round.tally);
    let loops = buffers.into_iter().map(|mut buffer| {
        let (next, tally) = (&next, &tally);
        async move {
            while let Some(offset) = job.offset(next.fetch_add(1, Ordering::Relaxed)) {
                job.contents.place(&mut buffer, offset);
                let started = Instant::now();
                buffer = file.write_all_at(buffer, offset).await?;
                tally.borrow_mut().block(offset, &buffer, started, Instant::now());
            }
            Ok(())
        }
    });
    let result: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
    round.stop();
    result.map(drop)
}

impl WriteWay for Tokio {
    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::writing(Nowait::shared(), job.path)?;
        let blocks = Blocks::of(job);
        let tasks: Vec<_> = job
            .buffers()
            .into_iter()
            .map(|mut buffer| {
                let (file, blocks) = (session.file.clone(), blocks.clone());
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some(offset) = blocks.next(&mut buffer) {
                        let started = Instant::now();
                        buffer = file.write_all_at(buffer, offset).await?;
                        seen.add(offset, &buffer, started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        run_on_the_clock(tasks, round)?;
        session.report(round);
        Ok(())
    }
}

/// One round's file and what was counted before it. The instance outlives the round: several
/// callers of one may share it.
pub(in crate::ways) struct Session {
    pub(in crate::ways) file: File,
    instance: Nowait,
    before: Stats,
}

impl Session {
    /// Through the page cache on the open file that the other ways have: there are file systems
    /// (FUSE) where to open a file again empties its cache. Past it on one of its own, as users
    /// open it: what the library finds out then it does not find out later.
    pub(in crate::ways) fn reading(instance: &Nowait, target: Target<'_>) -> io::Result<Session> {
        if target.direct {
            let options = OpenOptions::new().read(true).direct(true).clone();
            return Ok(Session::of(instance, options.open_in(instance, target.path).wait()?));
        }
        Ok(Session::of(instance, File::from_std(instance, target.file.try_clone()?, target.path)?))
    }

    pub(in crate::ways) fn writing(instance: &Nowait, path: &Path) -> io::Result<Session> {
        Ok(Session::of(instance, OpenOptions::new().write(true).open_in(instance, path).wait()?))
    }

    fn of(instance: &Nowait, file: File) -> Session {
        Session { file, instance: instance.clone(), before: instance.stats() }
    }

    /// A blocking call is a system call on the caller's thread whether it waits or not: it tells
    /// nothing.
    pub(in crate::ways) fn report(&self, round: &mut Round<'_>) {
        let now = self.instance.stats();
        let inline = now.inline - self.before.inline;
        let queued = |stats: &Stats| stats.ring + stats.aio + stats.pool + stats.failed;
        let queued = queued(&now) - queued(&self.before);
        if inline + queued > 0 {
            round.set_inline_fraction(inline as f64 / (inline + queued) as f64);
        }
    }
}
