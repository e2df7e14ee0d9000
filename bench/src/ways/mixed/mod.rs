//! Tasks that share a runtime, tokio or `nowait::block_on`. Each way has its own open file
//! ([`Handle`]) and runtime. The tasks, a heartbeat and the neighbour are the same for all ways. A
//! thread wakes the heartbeat and the neighbour's writes, as an arriving request would.
//!
//! * `plain`: `pread(2)` inside the task, on the worker. It is the cheapest call for cached pages,
//!   but a cold read blocks all tasks of the worker. The call awaits nothing, so the task yields
//!   after each (`tokio::task::yield_now`), as tokio advises.
//! * `tokio`: a closure on tokio's blocking threads for each read, as in `tokio::fs`.
//! * `ring`: a ring for each worker ([`ring`]).
//! * `nowait`, `nowait-tokio`: the library as its users call it, `file.read_at(…).await` in a loop.
//!   Under `block_on` there are as many threads as workers, each with a part of the tasks and a
//!   heartbeat; the first thread also runs the neighbour.

mod ring;

use std::convert::Infallible;
use std::fs::File;
use std::future::{Future, pending};
use std::io;
use std::iter;
use std::mem;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::nowait::{Buf, Nowait};
use futures_util::future::{Either, join_all, select};
use nowait_log::Log;
use tokio::task::{JoinSet, yield_now};

use self::ring::Queued;
use crate::measure::meter::{Latencies, Round, latencies};
use crate::measure::mixed::{
    BEAT, BLOCK, Heart, Mixed, Mixture, Neighbour, Planned, RECORD, Seen, WRITES_A_BEAT, WRITTEN_BLOCKS,
};
use crate::measure::pace::{Arrivals, Pace};
use crate::ways::drive::{Handle, Operation};
use crate::ways::nowait::{Library, Session};
use crate::ways::plain::one;
use crate::ways::runtime::with_workers;
use crate::ways::threads::at_once;
use crate::ways::tokio::Closures;
use crate::ways::{Does, MixedWay, Way};

/// Method by which tasks read.
pub(in crate::ways) enum Tasks {
    Plain,
    SpawnBlocking,
    Ring,
    BlockOn,
    Tokio,
}

pub(in crate::ways) static PLAIN: Way = Way::new(
    "plain",
    "pread inside the task: blocks tokio's worker until the device completes it",
    &[Does::Mixed(&Tasks::Plain)],
)
.hue(0);

impl MixedWay for Tasks {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        let file = Arc::new(job.target.file.try_clone()?);
        match self {
            Self::Plain => on_tokio(&PlainCalls(file), |file, _| Ok(PlainCalls(file)), job, round),
            Self::Ring => on_tokio(&Queued(file), |file, _| Ok(Queued(file)), job, round),
            Self::SpawnBlocking => {
                let closures = |file| Closures([file].into());
                on_tokio(&closures(file), |file, _| Ok(closures(file)), job, round)
            }
            Self::BlockOn | Self::Tokio => {
                let library = |session: &Session| Library([session.file.clone()].into());
                let session = Session::reading(Nowait::shared(), job.target)?;
                let other = |_, path: &Path| Ok(library(&Session::writing(Nowait::shared(), path)?));
                let told = match self {
                    Self::Tokio => on_tokio(&library(&session), other, job, round)?,
                    _ => in_block_on(&library(&session), other, job, round)?,
                };
                // The share covers all operations of the shared instance, including the
                // neighbour's.
                session.report(round);
                Ok(told)
            }
        }
    }
}

#[derive(Clone)]
struct PlainCalls(Arc<File>);

impl Handle for PlainCalls {
    async fn one(&self, operation: Operation, mut buffer: Buf) -> io::Result<Buf> {
        one(&self.0, operation, &mut buffer[..operation.len])?;
        Ok(buffer)
    }

    async fn give_way(&self) {
        yield_now().await;
    }
}

/// Runs all tasks of a round on tokio's multi-thread runtime, with the job's number of workers. The
/// calling thread only waits.
fn on_tokio<H: Handle>(
    file: &H,
    open: impl FnOnce(Arc<File>, &Path) -> io::Result<H>,
    job: &Mixed<'_>,
    round: &mut Round<'_>,
) -> io::Result<Mixture> {
    let runtime = with_workers(job.workers);
    let (tasks, others) = (tasks(file, job, round), Others::new(Other::of(job, open)?));
    let mut running = JoinSet::new();
    round.start();
    others.begin();
    running.spawn_on(others.clone().heartbeat(), runtime.handle());
    running.spawn_on(others.clone().work(), runtime.handle());
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    let ended_beside = pin!(running.join_next());
    let first = runtime.block_on(select(join_all(tasks), ended_beside));
    let ended = others.stop();
    round.stop();
    let (late, beside) = others.end(ended);
    let seen: io::Result<_> = match first {
        Either::Left((seen, _)) => seen.into_iter().map(|joined| joined.map_err(io::Error::other)?).collect(),
        Either::Right((Some(Ok(Err(failed))), _)) => Err(failed),
        Either::Right(_) => Err(io::Error::other("a task beside the reads panicked")),
    };
    Ok(Mixture::tell(job, seen?, late, beside, &mut round.tally))
}

/// Runs all tasks of a round on one thread per worker, each in `nowait::block_on`.
fn in_block_on<H: Handle>(
    file: &H,
    open: impl FnOnce(Arc<File>, &Path) -> io::Result<H>,
    job: &Mixed<'_>,
    round: &mut Round<'_>,
) -> io::Result<Mixture> {
    let threads = job.workers.min(job.plan.tasks.len());
    let mut other = Other::of(job, open)?;
    let next = || (Vec::new(), Others::new(mem::replace(&mut other, Other::Nobody)));
    let mut shares: Vec<(Vec<_>, Others<H>)> = iter::repeat_with(next).take(threads).collect();
    for (number, task) in tasks(file, job, round).into_iter().enumerate() {
        shares[number % threads].0.push(async move { io::Result::Ok((number, task.await?)) });
    }
    let shares = Mutex::new(shares);
    let take = || locked(&shares).pop().ok_or_else(|| io::Error::other("there is a share for each thread"));
    let told = at_once(
        threads,
        1,
        &mut vec![0; threads],
        round,
        || Ok(Some(take()?)),
        |share, _, _| {
            let (tasks, others) = share.take().expect("a thread works once");
            others.begin();
            let (heartbeat, work) = (pin!(others.clone().heartbeat()), pin!(others.clone().work()));
            match nowait::block_on(select(select(heartbeat, work), join_all(tasks))) {
                Either::Right((seen, _)) => {
                    let (late, beside) = others.end(others.stop());
                    let seen: io::Result<Vec<_>> = seen.into_iter().collect();
                    Ok((seen?, late, beside))
                }
                Either::Left((Either::Left((failed, _)) | Either::Right((failed, _)), _)) => match failed? {},
            }
        },
    )?;
    let (mut seen, mut late, mut beside) = (Vec::new(), latencies(), 0);
    for (of_thread, late_of_thread, count) in told {
        seen.extend(of_thread);
        late += late_of_thread;
        beside += count;
    }
    seen.sort_by_key(|(number, _)| *number);
    let seen = seen.into_iter().map(|(_, seen)| seen).collect();
    Ok(Mixture::tell(job, seen, late, beside, &mut round.tally))
}

/// The neighbour, ready to run.
#[derive(Clone)]
enum Other<H> {
    Nobody,
    Writer(H, Arrivals),
    Log(Log),
}

impl<H: Handle> Other<H> {
    fn of(job: &Mixed<'_>, open: impl FnOnce(Arc<File>, &Path) -> io::Result<H>) -> io::Result<Self> {
        Ok(match job.beside {
            Neighbour::Nobody => Self::Nobody,
            Neighbour::Writer { file, path } => Self::Writer(open(file.clone(), path)?, beats()),
            Neighbour::Log(log) => Self::Log(log.clone()),
        })
    }
}

/// Returns arrivals at the interval of the heartbeat. The first is now. A late one does not delay
/// the others.
fn beats() -> Arrivals {
    Arrivals::new(Some(&Pace::Every(BEAT)), usize::MAX)
}

/// Heartbeat and neighbour, which run until dropped, and their figures.
#[derive(Clone)]
struct Others<H> {
    beats: Arrivals,
    heart: Arc<Mutex<Heart>>,
    other: Other<H>,
    count: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl<H: Handle> Others<H> {
    fn new(other: Other<H>) -> Self {
        let heart = Arc::new(Mutex::new(Heart::new(Instant::now())));
        Self { beats: beats(), heart, other, count: Arc::default(), stopped: Arc::default() }
    }

    /// The first beat is due after an interval.
    fn begin(&self) {
        *locked(&self.heart) = Heart::new(self.beats.begin());
    }

    async fn heartbeat(self) -> io::Result<Infallible> {
        self.beats.next().await;
        loop {
            self.beats.next().await;
            if self.stopped.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
            locked(&self.heart).beat();
        }
    }

    /// Runs the neighbour, and counts writes or records. Delayed writes are made up later.
    async fn work(self) -> io::Result<Infallible> {
        match self.other {
            Other::Nobody => pending().await,
            Other::Writer(to, beats) => {
                let (mut buffer, mut count) = (touched(), 0);
                loop {
                    beats.next().await;
                    for _ in 0..WRITES_A_BEAT {
                        buffer = to.write(buffer, count % WRITTEN_BLOCKS * BLOCK as u64).await?;
                        count += 1;
                        self.count.store(count, Ordering::Relaxed);
                        to.give_way().await;
                    }
                }
            }
            Other::Log(log) => loop {
                log.append(&[0xa5; RECORD]).await?.await?;
                self.count.fetch_add(1, Ordering::Relaxed);
            },
        }
    }

    /// Stops the heartbeat; returns the time.
    fn stop(&self) -> Instant {
        self.stopped.store(true, Ordering::Relaxed);
        Instant::now()
    }

    /// Returns the delays of the beats until `ended`, and the number of writes or records.
    fn end(&self, ended: Instant) -> (Latencies, u64) {
        let heart = mem::replace(&mut *locked(&self.heart), Heart::new(ended));
        (heart.end(ended), self.count.load(Ordering::Relaxed))
    }
}

fn locked<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

fn touched() -> Buf {
    let mut buffer = Buf::zeroed(BLOCK);
    buffer.fill(0xa5);
    buffer
}

/// Runs one task: its reads, one after the other.
async fn task(file: impl Handle, mut buffer: Buf, reads: Arc<[Planned]>, mut seen: Seen) -> io::Result<Seen> {
    for read in reads.iter() {
        let (offset, started) = (read.offset(), Instant::now());
        buffer = file.read(buffer, offset).await?;
        seen.add(offset, &buffer, started);
        file.give_way().await;
    }
    Ok(seen)
}

/// Makes all tasks of a round, in the order of the plan.
fn tasks<H: Handle>(
    file: &H,
    job: &Mixed<'_>,
    round: &Round<'_>,
) -> Vec<impl Future<Output = io::Result<Seen>> + Send + use<H>> {
    let of = |reads: &Arc<[Planned]>| {
        let seen = Seen::new(reads, job.marks, &round.tally);
        task(file.clone(), touched(), reads.clone(), seen)
    };
    job.plan.tasks.iter().map(of).collect()
}
