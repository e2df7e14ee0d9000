//! One thread that drives operations of several steps: gathers, changes of names, and atomic
//! replacements. The first such operation of a process starts it, and it never ends. Each operation
//! is a future, so that none waits for another.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nowait::embed::PerProcess;

use crate::failure::{Failure, Result};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The way to the driver.
static DRIVER: PerProcess<Mutex<Option<UnboundedSender<Task>>>> = PerProcess::new();

/// A task of the driver; a future of its result. Dropped, the task is given up.
pub(super) struct Driven {
    result: oneshot::Receiver<Result<u64>>,
    task: AbortHandle,
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Future for Driven {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        self.result.poll_unpin(context).map(|sent| {
            let panicked = |_| Failure::new(libc::ENOTRECOVERABLE, "defect in the library: an operation panicked");
            sent.map_err(panicked)?
        })
    }
}

/// Has the driver run a future to its end.
pub(super) fn drive(future: impl Future<Output = Result<u64>> + Send + 'static) -> Result<Driven> {
    let (sender, result) = oneshot::channel();
    let (task, abort) = abortable(async move {
        // Refused only if no caller waits.
        _ = sender.send(future.await);
    });
    // Sent with nothing locked: that wakes the driver.
    let sent = to_driver()?.unbounded_send(Box::pin(task.map(drop)));
    sent.map_err(|_| {
        Failure::new(libc::ENOTRECOVERABLE, "the thread that drives operations of several steps has ended")
    })?;
    Ok(Driven { result, task: abort })
}

/// The way to the driver of this process, which is started if there is none.
fn to_driver() -> Result<UnboundedSender<Task>> {
    let mut driver = DRIVER.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    match &*driver {
        Some(to_it) => Ok(to_it.clone()),
        None => Ok(driver.insert(start()?).clone()),
    }
}

fn start() -> Result<UnboundedSender<Task>> {
    let (sender, receiver) = unbounded();
    let run = move || nowait::block_on(run_all(receiver));
    let started = std::thread::Builder::new().name("nowait-driver".to_owned()).spawn(run);
    started.map(|_| sender).map_err(|error| {
        let text = format!("submit: no thread can be started: {error}; raise the limit (ulimit -u)");
        Failure::new(error.raw_os_error().unwrap_or(libc::EAGAIN), text)
    })
}

/// Polls all tasks, and takes new ones in between, until no more can come.
async fn run_all(mut new: UnboundedReceiver<Task>) {
    let mut tasks = FuturesUnordered::new();
    let mut is_open = true;
    std::future::poll_fn(|context| {
        loop {
            while is_open {
                match new.poll_next_unpin(context) {
                    // A panic affects only this task: its waiter gets an error.
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
