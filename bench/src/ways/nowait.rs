//! `nowait` as programs use it: by a blocking caller, by futures of one thread, on tokio, and
//! through libaio, as if io_uring were refused.
//!
//! * `nowait`: at depth 1 the blocking call; at higher depths `block_on` over as many loops as the
//!   depth; for a gather `gather_into`.
//! * `nowait-tokio`: as many tasks as the depth, on a multi-thread runtime with a worker per
//!   processor.
//! * `nowait-await`: one future that awaits one read after the other, as most tasks do; single
//!   reads only.
//! * `nowait-young`: a new log.
//!
//! Calls, sizes and the instance are those of the guide: the shared instance with default settings,
//! tokio attached once, pages in a `Buf` of the library. If there is a choice, it is the guide's
//! recommendation: a plain call for one read by a blocking thread, `gather` for many records.
//! Rounds share the instance, as the reads of a program do; its first operation is reported
//! separately.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nowait::{Buf, Engine, File, Nowait, OpenOptions, Stats};

use super::drive::{
    Drive, FileOpening, Handle, Job, Kind, Operation, RoundPlan, in_block_on, in_turn, on_tokio, touched,
};
use super::log::durable::Durable;
use super::runtime::{Seen, run_on_the_clock};
use super::{Does, ON_TOKIO, OURS, Way, mixed, stall};
use crate::measure::meter::Round;
use crate::measure::work::{Batch, Gather, Range, Target};

/// Kind of calls of the library.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Calls {
    Blocking,
    /// One future at a time.
    Await,
    /// `block_on` at every depth, on an instance with libaio and without a ring.
    Aio,
    Tokio,
}

pub(crate) static NOWAIT: Way = Way::new(
    OURS,
    "this library: blocking calls at depth 1, block_on with more in flight; its log with segments of a round's size",
    &[
        Does::Reads(&Calls::Blocking),
        Does::Gathers(&Calls::Blocking),
        Does::DirectReads(&Calls::Blocking),
        Does::Scans(&Calls::Blocking),
        Does::LoadReads(&Calls::Blocking),
        Does::LoadGathers(&Calls::Blocking),
        Does::Writes(&Calls::Blocking),
        Does::LoadAppends(&Durable::Threads),
        Does::Stalls(&stall::Futures { strict: false }),
        Does::Files(&Calls::Blocking),
        Does::Mixed(&mixed::Tasks::BlockOn),
        Does::Commits(&Durable::Threads),
        Does::Pipelines(&Durable::Threads),
        Does::Misses(&Calls::Blocking),
    ],
);

pub(crate) static NOWAIT_TOKIO: Way = Way::new(
    ON_TOKIO,
    "this library, on tokio's multi-thread runtime",
    &[
        Does::Reads(&Calls::Tokio),
        Does::Gathers(&Calls::Tokio),
        Does::DirectReads(&Calls::Tokio),
        Does::Scans(&Calls::Tokio),
        Does::LoadReads(&Calls::Tokio),
        Does::LoadGathers(&Calls::Tokio),
        Does::Writes(&Calls::Tokio),
        Does::LoadAppends(&Durable::Tokio),
        Does::Files(&Calls::Tokio),
        Does::Mixed(&mixed::Tasks::Tokio),
        Does::TaskCommits(&Durable::Tokio),
    ],
);

pub(crate) static NOWAIT_YOUNG: Way = Way::new(
    "nowait-young",
    "nowait-log with default options from its first record on, while it fills its segments with zeros",
    &[Does::Commits(&Durable::Young)],
);

pub(crate) static NOWAIT_AIO: Way = Way::new(
    "nowait-aio",
    "this library through libaio, its engine for direct I/O where io_uring is refused; block_on at every depth",
    &[Does::DirectReads(&Calls::Aio)],
)
.refused(|| aio().err().map(|error| error.to_string()));

pub(crate) static NOWAIT_AWAIT: Way = Way::new(
    "nowait-await",
    "this library: one future under block_on that awaits one read after the other",
    &[Does::Reads(&Calls::Await), Does::DirectReads(&Calls::Await)],
);

/// Open files of the library.
#[derive(Clone)]
pub(super) struct Library(pub(super) Arc<[File]>);

impl Handle for Library {
    async fn one(&self, operation: Operation, buffer: Buf) -> io::Result<Buf> {
        let (file, offset) = (&self.0[operation.file], operation.offset);
        match operation.kind {
            Kind::Read => {
                let (length, buffer) = file.read_at(buffer, offset).await?;
                if length == operation.len { Ok(buffer) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }
            Kind::Write => Ok(file.write_all_at(buffer, offset).await?),
            Kind::DurableWrite | Kind::Whole | Kind::Gather => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    async fn gather(&self, extents: &[(u64, usize)], buffer: Buf) -> io::Result<Buf> {
        let gathered = self.0[0].gather(extents).into_buffer(buffer).await?;
        in_full(gathered.exceptions())?;
        Ok(gathered.into_buffer())
    }

    async fn whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(nowait::fs::read(path).await?)
    }
}

impl Drive for Calls {
    fn one_at_a_time(&self) -> bool {
        *self == Self::Await
    }

    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::plan(if *self == Self::Aio { aio()? } else { Nowait::shared() }, &job.plan)?;
        let files = &session.file.0;
        match self {
            Self::Tokio => on_tokio(&session.file, job, round)?,
            Self::Await => one_by_one(&files[0], job, round)?,
            // An arriving gather is a future that the thread waits for.
            Self::Blocking if job.depth == 1 && job.records() == 0 => {
                in_turn(job, buffer, round, |operation, block| {
                    match operation.kind {
                        Kind::Read => files[operation.file].read_exact_into(block, operation.offset)?,
                        Kind::Write => files[operation.file].write_all_from(block, operation.offset)?,
                        Kind::Whole => return Ok(Some(nowait::fs::read(job.path(operation)).wait()?)),
                        Kind::DurableWrite | Kind::Gather => return Err(io::ErrorKind::Unsupported.into()),
                    }
                    Ok(None)
                })?;
            }
            _ => in_block_on(&session.file, job, round)?,
        }
        session.report(round);
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        match self {
            Self::Tokio => gather_in_a_task(&session, job, output.len(), round)?,
            _ => gather_into(&session, job, output, round)?,
        }
        session.report(round);
        Ok(())
    }
}

/// Awaits reads one by one. The general loop over operations would add a tenth to the time of a
/// cached read.
fn one_by_one(file: &File, job: &Job<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let mut buffer = job.buffer();
    round.start();
    let tally = &mut round.tally;
    let done = nowait::block_on(async {
        for operation in (0..).map_while(|index| job.get(index)) {
            let started = Instant::now();
            let length;
            (length, buffer) = file.read_at(buffer, operation.offset).await?;
            if length != operation.len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            job.tell(operation, &buffer[..length], (started, Instant::now()), tally);
        }
        Ok(())
    });
    round.stop();
    done
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
    Ok(())
}

fn gather_in_a_task(session: &Session, job: &Gather<'_>, len: usize, round: &mut Round<'_>) -> io::Result<()> {
    let batches: Vec<Box<[Range]>> = job.each_batch().map(|batch| batch.ranges.into()).collect();
    let (file, mut buffer) = (session.file.clone(), touched(len));
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
    run_on_the_clock(vec![task], round)
}

fn aio() -> io::Result<&'static Nowait> {
    static INSTANCE: OnceLock<nowait::Result<Nowait>> = OnceLock::new();
    let instance = INSTANCE.get_or_init(|| Nowait::builder().engine(Engine::Aio).build());
    instance.as_ref().map_err(|error| error.clone().into())
}

/// Returns an error unless all ranges are complete.
pub(super) fn in_full(exceptions: &nowait::Exceptions) -> io::Result<()> {
    exceptions.errors().first().cloned().map_or(Ok(()), Err)?;
    if exceptions.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn extents(job: &Gather<'_>) -> Vec<Vec<(u64, usize)>> {
    let extents = |batch: Batch<'_>| batch.ranges.iter().map(|range| (range.offset, range.len as usize)).collect();
    job.each_batch().map(extents).collect()
}

/// A round's file, and the counters before the round. The instance outlives the round, since
/// several callers may share it.
pub(super) struct Session<F = File> {
    pub(super) file: F,
    instance: Nowait,
    before: Stats,
}

impl Session {
    /// Through the page cache, uses the open file of the other ways: on some file systems (FUSE),
    /// another open drops the file's cached pages. With direct I/O, opens the file as users do, so
    /// that the library examines it before the clock starts.
    pub(super) fn reading(instance: &Nowait, target: Target<'_>) -> io::Result<Self> {
        if target.direct {
            let options = OpenOptions::new().read(true).direct(true).clone();
            return Ok(Self::of(instance, options.open_in(instance, target.path).wait()?));
        }
        Ok(Self::of(instance, File::from_std(instance, target.file.try_clone()?, target.path)?))
    }

    pub(super) fn writing(instance: &Nowait, path: &Path) -> io::Result<Self> {
        Ok(Self::of(instance, OpenOptions::new().write(true).open_in(instance, path).wait()?))
    }
}

impl Session<Library> {
    /// Opens the files of a plan as a user does.
    fn plan(instance: &Nowait, plan: &RoundPlan) -> io::Result<Self> {
        let file = match plan.open() {
            FileOpening::Nothing => Vec::new(),
            FileOpening::ByName { path, reads, writes } => {
                let options = OpenOptions::new().read(reads).write(writes).direct(plan.direct).clone();
                vec![options.open_in(instance, path).wait()?]
            }
            FileOpening::AsGiven => {
                let open = |file: &Arc<fs::File>| Ok(File::from_std(instance, file.try_clone()?, "of the table")?);
                plan.files.iter().map(open).collect::<io::Result<_>>()?
            }
        };
        Ok(Session::of(instance, Library(file.into())))
    }
}

impl<F> Session<F> {
    fn of(instance: &Nowait, file: F) -> Self {
        Self { file, instance: instance.clone(), before: instance.stats() }
    }

    /// Reports the inline share. Blocking calls are excluded, since they are plain calls whether
    /// they wait or not.
    pub(super) fn report(&self, round: &mut Round<'_>) {
        let now = self.instance.stats();
        let inline = now.inline - self.before.inline;
        let queued = |stats: &Stats| stats.ring + stats.aio + stats.pool + stats.failed;
        let queued = queued(&now) - queued(&self.before);
        if inline + queued > 0 {
            round.set_inline_fraction(inline as f64 / (inline + queued) as f64);
        }
    }
}
