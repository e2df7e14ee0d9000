//! Runs gathers, copies and logs, which consist of several operations, as tasks of the library's
//! driver.
//!
//! A task is a future that the thread `nowait-driver` polls. No task blocks this thread: a gather
//! that waits for a device does not delay another one.

use std::future::Future;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use nowait::{Started, embed};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Interval at which a waiting caller checks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// A task of the driver. It continues after this handle is dropped.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Running(Mutex<Option<Started<()>>>);

impl Running {
    fn take(&self) -> Option<Started<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Running {
    /// Cancels the task. Requests that the kernel has begun continue, and keep their memory until
    /// they end.
    pub(crate) fn cancel(&self) {
        drop(self.take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.take().into_iter().for_each(Started::detach);
    }
}

/// Returns the exception for a thread that could not be started.
pub(crate) fn no_thread(error: &std::io::Error) -> PyErr {
    PyRuntimeError::new_err(format!("no thread can be started: {error}; raise the limit (ulimit -u)"))
}

/// Runs a future to completion on the driver.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> PyResult<Running> {
    match embed::start(future) {
        Ok(started) => Ok(Running(Mutex::new(Some(started)))),
        Err(error) => Err(no_thread(&error)),
    }
}

/// Runs a future on the driver, and waits for its result. If a signal handler raises, the future is
/// cancelled.
pub(crate) fn wait<T: Send + 'static>(py: Python<'_>, future: impl Future<Output = T> + Send + 'static) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    let running = spawn(async move {
        // Fails only if the caller no longer waits.
        let _ = sender.send(future.await);
    })?;
    let receiver = Mutex::new(receiver);
    loop {
        let received = py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK));
        match received {
            Ok(result) => return Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a task of nowait has panicked"));
            }
        }
        if let Err(raised) = py.check_signals() {
            running.cancel();
            return Err(raised);
        }
    }
}
