//! Common parts of the ways on tokio: the runtime, and the figures of a task.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use crate::measure::meter::{Round, Tally};
use crate::measure::work::{Batch, Range};

/// Returns the runtime with a worker per processor.
pub fn runtime() -> &'static Runtime {
    static WORKERS: OnceLock<usize> = OnceLock::new();
    with_workers(*WORKERS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get)))
}

/// Returns the runtime with this number of workers, which all ways and rounds share. So its lazy
/// initialization is over when the clock starts. An unused runtime sleeps.
pub(in crate::ways) fn with_workers(workers: usize) -> &'static Runtime {
    static RUNTIMES: Mutex<BTreeMap<usize, &'static Runtime>> = Mutex::new(BTreeMap::new());
    let start = || {
        let runtime = Builder::new_multi_thread().worker_threads(workers).enable_io().build();
        let runtime: &'static Runtime = Box::leak(Box::new(runtime.expect("a runtime starts where threads do")));
        let _entered = runtime.enter();
        // If tokio's reactor cannot serve the library, a thread of the library does.
        let _ = nowait::Nowait::shared().attach_tokio();
        runtime
    };
    RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner).entry(workers).or_insert_with(start)
}

pub fn finish<T>(tasks: Vec<tokio::task::JoinHandle<io::Result<T>>>) -> io::Result<Vec<T>> {
    let all = futures_util::future::join_all(tasks);
    runtime().block_on(all).into_iter().map(|joined| joined.map_err(io::Error::other)?).collect()
}

/// Makes a call on a blocking thread of the runtime.
pub(in crate::ways) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?
}

/// Runs the tasks of a round on the clock, and then reports their figures.
pub fn run_on_the_clock<T>(tasks: Vec<T>, round: &mut Round<'_>) -> io::Result<()>
where
    T: Future<Output = io::Result<Seen>> + Send + 'static,
{
    round.start();
    let tasks = tasks.into_iter().map(|task| runtime().spawn(task)).collect();
    let seen = finish(tasks);
    round.stop();
    seen?.into_iter().for_each(|seen| seen.tell(&mut round.tally));
    Ok(())
}

/// Figures of one task, which owns them, since it may outlive the borrow of the round. Bytes for
/// verification are kept until the clock has stopped.
#[derive(Debug)]
pub struct Seen {
    tally: Tally<'static>,
    kept: Option<Vec<(u64, Vec<u8>)>>,
}

impl Seen {
    pub fn new(round: &Tally<'_>) -> Seen {
        Seen { tally: Tally::new(None), kept: round.verifies().then(Vec::new) }
    }

    #[inline]
    pub fn add(&mut self, offset: u64, bytes: &[u8], started: Instant) {
        self.tally.block(offset, bytes, started, Instant::now());
        if let Some(kept) = &mut self.kept {
            kept.push((offset, bytes.to_vec()));
        }
    }

    /// Adds a batch, whose records are in order at the start of `output`.
    pub fn add_batch(&mut self, ranges: &[Range], output: &[u8], started: Instant) {
        let bytes = ranges.iter().map(|range| range.len as usize).sum();
        self.tally.batch(Batch { ranges, bytes }, output, started, Instant::now());
        let Some(kept) = &mut self.kept else { return };
        let mut rest = output;
        for range in ranges {
            let (record, after) = rest.split_at(range.len as usize);
            kept.push((range.offset, record.to_vec()));
            rest = after;
        }
    }

    /// Records that the task learned of a durable record.
    #[inline]
    pub fn committed(&mut self, bytes: usize, started: Instant) {
        self.tally.committed(bytes, started, Instant::now());
    }

    pub fn tell(self, round: &mut Tally<'_>) {
        round.merge(&self.tally);
        for (offset, bytes) in self.kept.into_iter().flatten() {
            round.verify(offset, &bytes);
        }
    }
}
