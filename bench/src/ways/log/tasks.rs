//! Writers that are tasks of a tokio runtime with two workers: each appends its record, awaits it,
//! and makes the next. No thread waits for a record.
//!
//! `nowait-tokio`: the log's own futures. `thread-batch-tokio`, `thread-batch-direct-tokio`: the
//! thread that writes for all ([`super::batch`]) tells each task by a oneshot channel.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use nowait_log::Log;
use tokio::runtime::Runtime;

use super::batch::{self, written};
use super::commit::{BLOCK, Places, find};
use super::durable;
use crate::measure::meter::Round;
use crate::measure::pace::Arrivals;
use crate::measure::work::{Commits, Records};
use crate::ways::runtime::{Seen, runtime, two_workers};
use crate::ways::{Does, LogWay, Way};

pub(crate) struct ThreadBatch {
    direct: bool,
}

pub(crate) static THREAD_BATCH_TOKIO: Way = Way::new(
    "thread-batch-tokio",
    "thread-batch, its writers tasks of tokio that it tells by oneshot channels",
    &[Does::TaskCommits(&ThreadBatch { direct: false })],
)
.hue(1);

pub(crate) static THREAD_BATCH_DIRECT_TOKIO: Way = Way::new(
    "thread-batch-direct-tokio",
    "thread-batch-tokio, with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
    &[Does::TaskCommits(&ThreadBatch { direct: true })],
)
.hue(2);

pub(crate) struct Tickets;

/// A log that a task commits to; says where the record is.
pub(super) trait Commit: Clone + Send + 'static {
    fn commit(&self, record: &[u8]) -> impl Future<Output = io::Result<u64>> + Send;
}

impl Commit for Arc<batch::Log> {
    async fn commit(&self, record: &[u8]) -> io::Result<u64> {
        self.commit_by_channel(record).await
    }
}

impl Commit for Log {
    async fn commit(&self, record: &[u8]) -> io::Result<u64> {
        Ok(self.append(record).await?.await?)
    }
}

/// Runs the writers of `job` as tasks of a runtime, or else as futures of this thread.
pub(super) fn by_tasks(
    job: &Commits<'_>,
    round: &mut Round<'_>,
    log: &impl Commit,
    runtime: Option<&'static Runtime>,
) -> io::Result<Places> {
    let (records, size, commits) = (job.records, job.size, job.commits);
    let arrivals = job.pace.map(|pace| Arrivals::new(Some(pace), commits as usize));
    let task = |writer| {
        let (log, arrivals, mut seen) = (log.clone(), arrivals.clone(), Seen::new(&round.tally));
        async move {
            let (mut record, mut places) = (vec![0; size], Vec::with_capacity(commits as usize));
            for sequence in 0..commits {
                let (number, due) = match &arrivals {
                    None => (Records::number(writer, sequence), None),
                    Some(arrivals) => {
                        let Some((index, due)) = arrivals.next().await else { break };
                        (Records::number(0, index as u64), Some(due))
                    }
                };
                records.make(&mut record, number);
                let started = due.unwrap_or_else(Instant::now);
                places.push((number, log.commit(&record).await?));
                seen.committed(size, started);
            }
            io::Result::Ok((seen, places))
        }
    };
    let tasks: Vec<_> = (0..job.writers).map(task).collect();
    round.start();
    let told: Vec<io::Result<(Seen, Places)>> = match runtime {
        None => nowait::block_on(join_all(tasks)),
        Some(runtime) => {
            let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
            let told = runtime.block_on(join_all(tasks)).into_iter();
            told.map(|joined| joined.map_err(io::Error::other)?).collect()
        }
    };
    round.stop();
    let mut all = Vec::new();
    for told in told {
        let (seen, places) = told?;
        seen.tell(&mut round.tally);
        all.extend(places);
    }
    Ok(all)
}

impl LogWay for ThreadBatch {
    fn direct(&self) -> bool {
        self.direct
    }

    fn room(&self, size: usize) -> usize {
        if self.direct { size.next_multiple_of(BLOCK) } else { size }
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let log = Arc::new(batch::Log::new(job.writers * job.size, self.direct));
        let (places, end) = written(job, &log, || by_tasks(job, round, &log, Some(two_workers())))?;
        find(job, round, &places)?;
        Ok(Some(end))
    }
}

impl LogWay for Tickets {
    /// It finds out by itself.
    fn direct(&self) -> bool {
        false
    }

    /// It makes files of its own.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        // Records that arrive are taken on the runtime that other tables have.
        let runtime = if job.pace.is_some() { runtime() } else { two_workers() };
        let options = durable::USUAL.options_for(job)?;
        durable::logged(job, round, &options, |log, round| by_tasks(job, round, log, Some(runtime)))
    }
}
