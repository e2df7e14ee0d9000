//! The ways of the table `stall`: one thread writes, and also has other work, a heartbeat.
//!
//! The latencies are the gaps in which the heartbeat could not run. For a way that blocks, each
//! call is a gap. With other ways the heartbeat runs between any two polls, or turns of the ring,
//! and wakes itself at once. So the thread never sleeps, and a gap is time that the way used. A
//! writer yields after each write, so that several writes in a row do not count as one gap.

use std::cell::{Cell, RefCell};
use std::future::{self, Future};
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use nowait::{Buf, Nowait};

use super::drive::Handle;
use super::nowait::{Library, Session};
use super::ring::desk;
use super::tokio::Closures;
use super::{Does, Way, WriteWay};
use crate::measure::meter::{Round, Tally};
use crate::measure::work::Writes;

/// Maximum duration of a round, which bounds the time on a slow disk.
pub(crate) const LONGEST_ROUND: Duration = Duration::from_secs(20);

pub(crate) struct Blocking;
pub(crate) struct Tokio;
pub(crate) struct ChainedWrites;
pub(crate) struct Futures {
    pub strict: bool,
}

pub(crate) static NOWAIT_STRICT: Way = Way::new(
    "nowait-strict",
    "this library with strict(true): only non-blocking attempts on the caller's thread",
    &[Does::Stalls(&Futures { strict: true })],
);

impl WriteWay for Blocking {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let block = &mut buffer[..job.block];
        round.start();
        let mut heart = Heartbeat::new();
        for offset in job.each_offset() {
            job.contents.place(block, offset);
            job.file.write_all_at(block, offset)?;
            round.tally.wrote(job.block);
            if !heart.beat(&mut round.tally) {
                break;
            }
        }
        round.stop();
        Ok(())
    }
}

impl WriteWay for ChainedWrites {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let mut desk = desk(job.file, job.depth)?;
        let mut heart = None;
        desk.writes_beside(job, buffer, round, |tally| heart.get_or_insert_with(Heartbeat::new).beat(tally))
    }
}

impl WriteWay for Tokio {
    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        beside_a_heartbeat(job, round, &Closures([job.file.clone()].into()), |all| runtime.block_on(all))
    }
}

impl WriteWay for Futures {
    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let strict = self.strict.then(|| Nowait::builder().strict(true).build()).transpose()?;
        let session = Session::writing(strict.as_ref().unwrap_or(Nowait::shared()), job.path)?;
        let file = Library([session.file.clone()].into());
        beside_a_heartbeat(job, round, &file, |all| nowait::block_on(all))?;
        session.report(round);
        Ok(())
    }
}

/// Joins `job.depth` writers and a heartbeat in one future, for `run`.
fn beside_a_heartbeat(
    job: &Writes<'_>,
    round: &mut Round<'_>,
    file: &impl Handle,
    run: impl FnOnce(std::pin::Pin<&mut dyn Future<Output = io::Result<()>>>) -> io::Result<()>,
) -> io::Result<()> {
    let (next, goes_on) = (Cell::new(0), Cell::new(true));
    let tally = RefCell::new(round.new_tally());
    let writer = |_| {
        let (next, goes_on, tally) = (&next, &goes_on, &tally);
        let mut buffer = Buf::zeroed(job.block);
        job.contents.prepare(&mut buffer, job.block);
        async move {
            while goes_on.get() {
                let Some(offset) = job.offset(next.replace(next.get() + 1)) else { break };
                job.contents.place(&mut buffer, offset);
                buffer = file.write(buffer, offset).await?;
                tally.borrow_mut().wrote(job.block);
                give_way().await;
            }
            io::Result::Ok(())
        }
    };
    let mut writers: FuturesUnordered<_> = (0..job.depth).map(writer).collect();
    round.start();
    let mut heart = Heartbeat::new();
    let all = future::poll_fn(|context: &mut Context<'_>| {
        let polled = writers.poll_next_unpin(context);
        goes_on.set(heart.beat(&mut tally.borrow_mut()) && goes_on.get());
        match polled {
            Poll::Ready(None) => return Poll::Ready(Ok(())),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
            Poll::Ready(Some(Ok(()))) | Poll::Pending => context.waker().wake_by_ref(),
        }
        Poll::Pending
    });
    let result = run(pin!(all).as_mut());
    round.stop();
    round.tally.merge(&tally.borrow());
    result
}

async fn give_way() {
    let mut given = false;
    future::poll_fn(|context| {
        if given {
            return Poll::Ready(());
        }
        given = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct Heartbeat {
    began: Instant,
    last: Instant,
}

impl Heartbeat {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, last: now }
    }

    /// Records the gap since the last beat. False after [`LONGEST_ROUND`].
    #[inline]
    fn beat(&mut self, tally: &mut Tally<'_>) -> bool {
        let now = Instant::now();
        tally.gap(self.last, now);
        self.last = now;
        now - self.began < LONGEST_ROUND
    }
}
