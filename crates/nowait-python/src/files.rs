//! Gathers of several files by one call, into one memory.
//!
//! The driver opens a bounded number of paths at a time, and closes each after its ranges are read.
//! So a list may name more files than a process may have open.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use futures_util::stream::{FuturesUnordered, StreamExt};
use nowait::{Error, ErrorKind, ErrorOp, Lent, Nowait};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::completions::Completions;
use crate::driver::{spawn, wait};
use crate::error::OrRaise;
use crate::file::{self, Source};
use crate::gather::{self, Incomplete};
use crate::gathered::{self, Plan};
use crate::memory::{Loan, release_pending};
use crate::ranges::{Extent, Ranges};

/// Maximum number of files that a call reads at a time, and of paths that it keeps open. Most
/// processes are limited to 1024 open files.
const FILES_MAX: usize = 128;

/// Ranges to read from one file.
struct Job {
    source: Source,
    extents: Vec<Extent>,
    memory: Loan,
}

/// Result of a job.
struct Read {
    path: PathBuf,
    extents: Vec<Extent>,
    incomplete: nowait::Result<Incomplete>,
}

/// Outcome of one try of a job.
enum Turn {
    Read(Read),
    /// The process, or the system, has too many files open.
    Shortage(Job, Error),
}

async fn read(job: Job) -> Turn {
    let Job { source, extents, memory } = job;
    let (file, is_own) = match source {
        Source::Open(file) => (file, false),
        Source::Path(path) => match nowait::File::open(&path).await {
            Ok(file) => (file, true),
            Err(error) if error.kind() == ErrorKind::TooManyFiles => {
                return Turn::Shortage(Job { source: Source::Path(path), extents, memory }, error);
            }
            Err(error) => return Turn::Read(Read { path, extents, incomplete: Err(error) }),
        },
    };
    let read = file.gather(&*extents).into_buffer(Lent::new(memory)).await;
    let incomplete = read.map_err(Error::from).map(|gathered| {
        let mut incomplete = Incomplete::default();
        incomplete.add(gathered.exceptions(), 0);
        incomplete
    });
    let path = file.path().to_owned();
    if is_own {
        // Wait for `close(2)`: the next file may need the descriptor. Errors do not matter after
        // reads.
        let _ = nowait::embed::blocking(Nowait::shared(), ErrorOp::Close, &path, move |_| file.close()).await;
    }
    Turn::Read(Read { path, extents, incomplete })
}

/// Reads all jobs, a bounded number at a time. A shortage of descriptors lowers the bound to the
/// number that was open.
async fn read_all(jobs: Vec<Job>) -> Vec<Read> {
    let (mut files_max, count) = (FILES_MAX, jobs.len());
    let mut waiting: VecDeque<(usize, Job)> = jobs.into_iter().enumerate().collect();
    let (mut running, mut ended) = (FuturesUnordered::new(), Vec::with_capacity(count));
    loop {
        while running.len() < files_max {
            let Some((index, job)) = waiting.pop_front() else { break };
            running.push(async move { (index, read(job).await) });
        }
        match running.next().await {
            None => break,
            Some((index, Turn::Read(read))) => ended.push((index, read)),
            Some((index, Turn::Shortage(Job { source: Source::Path(path), extents, .. }, error)))
                if running.is_empty() =>
            {
                ended.push((index, Read { path, extents, incomplete: Err(error) }));
            }
            Some((index, Turn::Shortage(job, _))) => {
                // Try again after another file is closed.
                files_max = running.len().max(1);
                waiting.push_front((index, job));
            }
        }
    }
    ended.sort_unstable_by_key(|(index, _)| *index);
    ended.into_iter().map(|(_, read)| read).collect()
}

/// Reads ranges of several files into one memory. Each item is a file, its offsets and its lengths.
#[pyfunction]
#[pyo3(signature = (requests, out, partial, completions = None, number = 0))]
pub(crate) fn start_files(
    requests: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    out: Option<&Bound<'_, PyAny>>,
    partial: bool,
    completions: Option<&Bound<'_, Completions>>,
    number: u64,
    py: Python<'_>,
) -> PyResult<Py<PyAny>> {
    // Duplicate each descriptor once, even if several requests name it.
    let mut opened: HashMap<usize, nowait::File> = HashMap::new();
    let mut parts = Vec::with_capacity(requests.len());
    let mut total = 0usize;
    for (file, offsets, lengths) in &requests {
        let key = file.as_ptr().addr();
        let source = match opened.get(&key) {
            Some(file) => Source::Open(file.clone()),
            None => file::to_open(file)?,
        };
        let ranges = match &source {
            Source::Open(file) => {
                opened.entry(key).or_insert_with(|| file.clone());
                Ranges::new(offsets, lengths, file.path())?
            }
            Source::Path(path) => Ranges::new(offsets, lengths, path)?,
        };
        total = total.saturating_add(ranges.total);
        parts.push((source, ranges));
    }
    let (memory, loan) = gather::memory(py, out, total)?;
    let bytes = gathered::flat(&memory, total)?;
    let loans = loan.split(parts.iter().map(|(_, ranges)| ranges.total));
    let (mut jobs, mut plans, mut at) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()), 0);
    for ((source, ranges), memory) in parts.into_iter().zip(loans) {
        plans.push((Plan::of(&ranges), gathered::part(&bytes, at, ranges.total)?.unbind()));
        at += ranges.total;
        jobs.push(Job { source, extents: ranges.extents, memory });
    }
    let finish = move |py: Python<'_>, read: Vec<Read>| {
        release_pending(py);
        let mut results = Vec::with_capacity(plans.len());
        for ((plan, own), Read { path, extents, incomplete }) in plans.into_iter().zip(read) {
            let short = gather::short(py, &path, &extents, incomplete.or_raise(py)?, partial)?;
            results.push(plan.finish(own.bind(py), short)?);
        }
        results.into_py_any(py)
    };
    let all = read_all(jobs);
    match completions {
        Some(completions) => {
            let to = completions.get().receiver(number);
            let running = spawn(async move {
                let read = all.await;
                to.put(move |py| finish(py, read));
            })?;
            running.into_py_any(py)
        }
        None => {
            let read = wait(py, all)?;
            finish(py, read)
        }
    }
}
