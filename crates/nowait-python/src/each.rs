//! Gathers that deliver each range as it completes, in any order.
//!
//! The driver fills one buffer, and adds the index of each complete range to a list. The consumer
//! takes ranges from the list. It blocks for the next range, or its loop's completion queue wakes
//! it. Bytes are not copied: the consumer accesses a complete range while others are still being
//! read.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nowait::{Error, Lent};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::completions::{Completions, RESULTS_MAX, Receiver};
use crate::driver::{Running, spawn};
use crate::error::exception;
use crate::file;
use crate::gather;
use crate::gathered::{Gathered, Plan};
use crate::memory::release_pending;
use crate::ranges::Ranges;

/// Interval at which a blocking consumer checks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Complete ranges that the consumer has not taken yet.
#[derive(Default)]
struct Backlog {
    /// Index of each range, and number of bytes read.
    arrived: VecDeque<(usize, usize)>,
    failed: Option<Error>,
    /// True after the last result.
    has_ended: bool,
    /// Receiver of the loop whose consumer waits.
    waiting: Option<Receiver>,
}

#[derive(Default)]
struct ArrivalQueue {
    state: Mutex<Backlog>,
    more: Condvar,
}

impl ArrivalQueue {
    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the consumer.
    fn change(&self, change: impl FnOnce(&mut Backlog)) {
        let mut state = self.lock();
        change(&mut state);
        let waiting = state.waiting.take();
        drop(state);
        self.more.notify_one();
        if let Some(waiting) = waiting {
            waiting.put(|py| py.None().into_py_any(py));
        }
    }
}

/// Records the end of the task, also after a panic or a cancellation.
struct EndsArrivals(Arc<ArrivalQueue>);

impl Drop for EndsArrivals {
    fn drop(&mut self) {
        self.0.change(|state| state.has_ended = true);
    }
}

/// A gather in progress: see `nowait.gather_each`.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Arrivals {
    shared: Arc<ArrivalQueue>,
    running: Running,
}

#[pymethods]
impl Arrivals {
    /// Waits for more ranges: index and bytes read of each; empty after the last range.
    fn wait(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize)>> {
        loop {
            let has_more = py.detach(|| {
                let state = self.shared.lock();
                let is_idle = |state: &mut Backlog| state.arrived.is_empty() && !state.has_ended;
                let waited = self.shared.more.wait_timeout_while(state, LOOK, is_idle);
                !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
            });
            if has_more {
                return self.take(py, usize::MAX);
            }
            py.check_signals()?;
        }
    }

    /// Waits until all ranges are complete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        while !self.wait(py)?.is_empty() {}
        Ok(())
    }

    /// Takes complete ranges, up to the number that a loop takes at a time; `None` if the consumer
    /// must wait for completion `number`.
    fn poll(
        &self,
        py: Python<'_>,
        completions: &Bound<'_, Completions>,
        number: u64,
    ) -> PyResult<Option<Vec<(usize, usize)>>> {
        let mut state = self.shared.lock();
        if state.arrived.is_empty() && !state.has_ended {
            state.waiting = Some(completions.get().receiver(number));
            return Ok(None);
        }
        drop(state);
        self.take(py, RESULTS_MAX).map(Some)
    }

    /// Cancels the remaining ranges.
    fn cancel(&self) {
        self.running.cancel();
    }
}

impl Arrivals {
    fn take(&self, py: Python<'_>, most: usize) -> PyResult<Vec<(usize, usize)>> {
        let mut state = self.shared.lock();
        let count = state.arrived.len().min(most);
        let arrived: Vec<(usize, usize)> = state.arrived.drain(..count).collect();
        // Deliver ranges that completed before the failure first.
        let failed = if arrived.is_empty() { state.failed.clone() } else { None };
        drop(state);
        release_pending(py);
        failed.map_or(Ok(arrived), |error| Err(exception(py, &error)))
    }
}

/// Begins to read ranges of a file. Also returns all ranges; the caller may access those that are
/// complete.
#[pyfunction]
#[pyo3(signature = (file, offsets, lengths, out, partial))]
pub(crate) fn start_each(
    file: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    partial: bool,
) -> PyResult<(Arrivals, Py<Gathered>)> {
    let py = file.py();
    let opened = file::source(file)?;
    let ranges = Ranges::new(offsets, lengths, opened.path())?;
    let (memory, loan) = gather::memory(py, out, ranges.total)?;
    let rows = Plan::of(&ranges).finish(&memory, Vec::new())?;
    let shared = Arc::new(ArrivalQueue::default());
    let end = EndsArrivals(shared.clone());
    let running = spawn(async move {
        let shared = end.0.clone();
        let extents = ranges.extents;
        let arrives = |index: usize, result: Result<&[u8], &Error>| {
            let (_, length) = extents[index];
            shared.change(|state| match result {
                Ok(bytes) if bytes.len() == length || partial => state.arrived.push_back((index, bytes.len())),
                Ok(bytes) => {
                    let failed = || gather::too_short(opened.path(), index, extents[index], bytes.len());
                    state.failed.get_or_insert_with(failed);
                }
                Err(error) => {
                    state.failed.get_or_insert_with(|| error.clone());
                }
            });
        };
        let result = opened.gather(&*extents).into_buffer(Lent::new(loan)).each(arrives).await;
        if let Err(error) = result {
            shared.change(|state| {
                state.failed.get_or_insert(error);
            });
        }
        drop(end);
    })?;
    Ok((Arrivals { shared, running }, rows))
}
