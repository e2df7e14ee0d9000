//! Writers that are tasks of a tokio runtime with two workers: each appends its record, awaits it,
//! and makes the next. No thread waits for a record.
//!
//! `nowait-tokio`: the log's own futures. `thread-batch-tokio`, `thread-batch-direct-tokio`: the
//! thread that writes for all ([`super::batch`]) tells each task by a oneshot channel.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use nowait_log::Log;

use super::batch::{self, written};
use super::commit::{BLOCK, find};
use super::durable::{self, open};
use crate::measure::meter::Round;
use crate::measure::work::{Commits, Records};
use crate::ways::runtime::{Seen, two_workers};
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
trait Commit: Clone + Send + 'static {
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

/// Runs the writers of `job` as tasks. Gives the places of each writer's records.
fn by_tasks(job: &Commits<'_>, round: &mut Round<'_>, log: &impl Commit) -> io::Result<Vec<Vec<u64>>> {
    let (records, size, commits) = (job.records, job.size, job.commits);
    let tasks: Vec<_> = (0..job.writers)
        .map(|writer| {
            let (log, mut seen) = (log.clone(), Seen::new(&round.tally));
            async move {
                let (mut record, mut places) = (vec![0; size], Vec::with_capacity(commits as usize));
                for sequence in 0..commits {
                    records.make(&mut record, Records::number(writer, sequence));
                    let started = Instant::now();
                    places.push(log.commit(&record).await?);
                    seen.committed(size, started);
                }
                io::Result::Ok((seen, places))
            }
        })
        .collect();
    let runtime = two_workers();
    round.start();
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    let told = runtime.block_on(futures_util::future::join_all(tasks));
    round.stop();
    let mut places = Vec::with_capacity(job.writers);
    for joined in told {
        let (seen, of_writer) = joined.map_err(io::Error::other)??;
        seen.tell(&mut round.tally);
        places.push(of_writer);
    }
    Ok(places)
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
        let (places, end) = written(job, &log, || by_tasks(job, round, &log))?;
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
        let (_folder, log) = open(job.folder, &durable::USUAL.options_for(job)?)?;
        let lsns = by_tasks(job, round, &log)?;
        let bytes = log.stats().written_bytes;
        durable::find(job, round, &log, &lsns)?;
        log.close().wait()?;
        Ok(Some(bytes))
    }
}
