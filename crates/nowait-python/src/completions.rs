//! Completion queue of an event loop, with a bell that wakes the loop.
//!
//! One queue serves all operations of a loop. Threads that notice completions add the results, and
//! ring the bell (`os/`) if the queue was empty. They need no Python thread state: the loop converts
//! results to objects when it takes them.
//!
//! Counts bound the work on the loop's thread at a time: results taken ([`RESULTS_MAX`]), and
//! operations that end when they are started ([`Completions::charge`]). Timers and other
//! descriptors of the loop are served in between.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use nowait::Started;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::memory::release_pending;
use crate::os::{Bell, Notifier};

/// Maximum number of results that a loop takes at a time. Each wakes a task, which may submit its
/// next read, in about 20 µs. (With 64, a heartbeat beside 64 tasks that read cold data was 2 to 6
/// ms late.)
pub(crate) const RESULTS_MAX: usize = 16;
/// Number of operations that may end at once before the task yields, and bytes that count as one
/// operation: about 50 µs.
const TURN: u32 = 32;
const BYTES_OF_ONE: usize = 8 << 10;

/// Makes the result of an operation, on a thread attached to Python.
type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// Queue of completed operations. A loop calls `drain()` when the `notifier()` says that results are
/// available.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Completions {
    queue: Arc<Queue>,
    /// Operations that ended at once since the last yield.
    charged: AtomicU32,
}

struct Queue {
    bell: Bell,
    /// Number of each operation, chosen by the caller, and its result.
    ended: Mutex<VecDeque<(u64, Finish)>>,
}

/// Destination of an operation's result. Keeps the queue alive, but not the loop.
#[derive(Clone)]
pub(crate) struct Receiver {
    queue: Arc<Queue>,
    number: u64,
}

impl Receiver {
    /// Adds a result to the queue. Any thread may call it; it never blocks.
    pub(crate) fn put(self, finish: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) {
        let mut ended = self.queue.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = ended.is_empty();
        ended.push_back((self.number, Box::new(finish)));
        drop(ended);
        if was_empty {
            self.queue.bell.ring();
        }
    }
}

/// State of a started operation: its result, and whether the task must yield now; `None` if the
/// result will arrive in the queue.
pub(crate) type Begun = PyResult<Option<(Py<PyAny>, bool)>>;

/// Delivers an operation's result: at once if it has ended, otherwise through the queue. If it has
/// ended, it has copied `bytes` bytes.
pub(crate) fn deliver<T: Send + 'static>(
    (completions, number): (&Bound<'_, Completions>, u64),
    (mut started, bytes): (Started<T>, usize),
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Begun {
    let (py, completions) = (completions.py(), completions.get());
    match Pin::new(&mut started).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => {
            let value = finish(py, result);
            release_pending(py);
            Ok(Some((value?, completions.charge(bytes))))
        }
        Poll::Pending => {
            let to = completions.receiver(number);
            started.on_complete(move |result| to.put(move |py| finish(py, result)));
            Ok(None)
        }
    }
}

impl Completions {
    pub(crate) fn receiver(&self, number: u64) -> Receiver {
        Receiver { queue: self.queue.clone(), number }
    }

    /// Counts an operation that ended at once; returns true if the task must yield.
    pub(crate) fn charge(&self, bytes: usize) -> bool {
        // Only the loop's thread uses the counter.
        let ones = u32::try_from(bytes / BYTES_OF_ONE).unwrap_or(TURN).saturating_add(1);
        let charged = self.charged.load(Ordering::Relaxed).saturating_add(ones);
        let is_over = charged >= TURN;
        self.charged.store(if is_over { 0 } else { charged }, Ordering::Relaxed);
        is_over
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Completions> {
        let bell =
            Bell::new().map_err(|error| PyOSError::new_err((error.raw_os_error(), "no eventfd for completions")))?;
        let queue = Arc::new(Queue { bell, ended: Mutex::default() });
        Ok(Completions { queue, charged: AtomicU32::new(0) })
    }

    /// Object by which a loop learns of results: a descriptor to watch, or a `Waiter`.
    fn notifier(&self) -> Notifier {
        self.queue.bell.notifier()
    }

    /// Takes completed operations: number, success, and result or exception. If more remain, the
    /// bell rings again.
    fn drain(&self, py: Python<'_>) -> Vec<(u64, bool, Py<PyAny>)> {
        // Clear first: a later result for the empty queue rings again.
        self.queue.bell.clear();
        let mut ended = self.queue.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ended.len().min(RESULTS_MAX);
        let taken: Vec<(u64, Finish)> = ended.drain(..count).collect();
        if !ended.is_empty() {
            self.queue.bell.ring();
        }
        drop(ended);
        let results = taken.into_iter().map(|(number, finish)| match finish(py) {
            Ok(value) => (number, true, value),
            Err(error) => (number, false, error.into_value(py).into_any()),
        });
        let results = results.collect();
        release_pending(py);
        results
    }
}
