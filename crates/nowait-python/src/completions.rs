//! What an event loop hears of: operations that have ended, behind an eventfd that the loop watches.
//!
//! One queue serves all operations of a loop. Threads that notice completions put the results there,
//! and make the eventfd readable if the queue was empty. They need no Python: results become objects
//! when the loop takes them.

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use nowait::Started;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::release_pending;

/// Makes the result of an operation, on a thread that has Python.
type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// Operations that have ended. A loop watches `fileno()`, and calls `drain()` when it is readable.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Completions(Arc<Queue>);

struct Queue {
    readable: OwnedFd,
    /// The number that the caller gave each, and its result.
    ended: Mutex<Vec<(u64, Finish)>>,
}

/// Where an operation puts its result. Keeps the queue, not the loop.
#[derive(Clone)]
pub(crate) struct Receiver {
    queue: Arc<Queue>,
    number: u64,
}

impl Receiver {
    /// Puts a result into the queue. Called by any thread; waits for nothing.
    pub(crate) fn put(self, finish: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) {
        let mut ended = self.queue.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = ended.is_empty();
        ended.push((self.number, Box::new(finish)));
        drop(ended);
        if was_empty {
            // Full is readable, too.
            let _ = rustix::io::write(&self.queue.readable, &1u64.to_ne_bytes());
        }
    }
}

/// How an operation goes on: it has ended, or its result will be in the queue.
pub(crate) type Begun = PyResult<(bool, Option<Py<PyAny>>)>;

/// Passes an operation's result on: at once if it has ended, else through the queue.
pub(crate) fn deliver<T: Send + 'static>(
    py: Python<'_>,
    mut started: Started<T>,
    to: Receiver,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Begun {
    match Pin::new(&mut started).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => {
            let value = finish(py, result);
            release_pending(py);
            Ok((true, Some(value?)))
        }
        Poll::Pending => {
            started.on_complete(move |result| to.put(move |py| finish(py, result)));
            Ok((false, None))
        }
    }
}

impl Completions {
    pub(crate) fn receiver(&self, number: u64) -> Receiver {
        Receiver { queue: self.0.clone(), number }
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Completions> {
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PyOSError::new_err((errno.raw_os_error(), "no eventfd for completions")))?;
        Ok(Completions(Arc::new(Queue { readable, ended: Mutex::default() })))
    }

    fn fileno(&self) -> i32 {
        self.0.readable.as_raw_fd()
    }

    /// Takes what has ended: number, whether it succeeded, and the result or the exception.
    fn drain(&self, py: Python<'_>) -> Vec<(u64, bool, Py<PyAny>)> {
        // First: what is put from here on makes it readable again.
        let _ = rustix::io::read(&self.0.readable, &mut [0u8; 8]);
        let ended = std::mem::take(&mut *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner));
        let results = ended.into_iter().map(|(number, finish)| match finish(py) {
            Ok(value) => (number, true, value),
            Err(error) => (number, false, error.into_value(py).into_any()),
        });
        let results = results.collect();
        release_pending(py);
        results
    }
}
