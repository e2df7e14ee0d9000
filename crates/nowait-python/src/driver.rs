//! A thread that drives gathers, copies and logs, which consist of several operations.
//!
//! Each is a future, and none blocks this thread: a gather that waits for a device does not delay
//! another one. The first future in each process starts the thread, which then stays.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError, mpsc};
use std::task::Poll;
use std::time::Duration;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Interval at which a waiting caller checks for signals.
const LOOK: Duration = Duration::from_millis(100);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The driver's process, and the channel to the driver.
static DRIVER: Mutex<Option<(u64, UnboundedSender<Task>)>> = Mutex::new(None);

/// A task of the driver. It continues after this handle is dropped.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Running(AbortHandle);

#[pymethods]
impl Running {
    /// Cancels the task. Requests that the kernel has begun continue, and keep their memory until
    /// they end.
    pub(crate) fn cancel(&self) {
        self.0.abort();
    }
}

/// Runs a future to completion on the driver.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> PyResult<Running> {
    let (abort, registration) = AbortHandle::new_pair();
    let task: Task = Box::pin(Abortable::new(future, registration).map(drop));
    let here = nowait::embed::fork_generation();
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let sender = match driver.take().filter(|(process, _)| *process == here) {
        Some((_, sender)) => sender,
        None => start()?,
    };
    let sent = sender.unbounded_send(task);
    *driver = Some((here, sender));
    sent.map_err(|_| PyRuntimeError::new_err("nowait's driver thread has ended"))?;
    Ok(Running(abort))
}

/// Runs a future on the driver, and waits for its result. If a signal handler raises, the future is
/// cancelled.
pub(crate) fn wait<T: Send + 'static>(py: Python<'_>, future: impl Future<Output = T> + Send + 'static) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    let running = spawn(async move {
        // Refused only if no caller waits.
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

fn start() -> PyResult<UnboundedSender<Task>> {
    let (sender, receiver) = unbounded();
    let run = move || nowait::block_on(drive(receiver));
    match std::thread::Builder::new().name("nowait-python".to_owned()).spawn(run) {
        Ok(_) => Ok(sender),
        Err(error) => Err(PyRuntimeError::new_err(format!("no thread can be started: {error}"))),
    }
}

/// Polls all tasks, and accepts new ones in between, until the channel closes.
async fn drive(mut new: UnboundedReceiver<Task>) {
    let mut tasks = FuturesUnordered::new();
    let mut is_open = true;
    std::future::poll_fn(|context| {
        loop {
            while is_open {
                match new.poll_next_unpin(context) {
                    // A panic of a task ends only that task; the hook has reported it.
                    Poll::Ready(Some(task)) => tasks.push(AssertUnwindSafe(task).catch_unwind().map(drop)),
                    Poll::Ready(None) => is_open = false,
                    Poll::Pending => break,
                }
            }
            match tasks.poll_next_unpin(context) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) if !is_open => return Poll::Ready(()),
                _ => return Poll::Pending,
            }
        }
    })
    .await;
}
