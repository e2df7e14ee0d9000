//! Writers that are tokio tasks, or futures of one thread: each appends a record, awaits it, and
//! appends the next. No thread waits for a record.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use nowait_log::Log;
use tokio::runtime::Runtime;

use super::batch;
use super::commit::Places;
use crate::measure::meter::Round;
use crate::measure::pace::Arrivals;
use crate::measure::work::{Commits, Records};
use crate::ways::runtime::Seen;

/// Number of workers, as described for the table `log-tokio`.
pub(super) const TOKIO_WORKERS: usize = 2;

/// A log to which a task commits records; a commit returns the record's place.
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

/// Runs the writers of `job` as tasks of a runtime, or as futures of this thread.
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
