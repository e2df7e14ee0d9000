//! Calls that block for the device. They run on the thread that waits for them, or on a new thread
//! if awaited.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use super::os::{self, lock, polled_too_often};
use nowait::{Error, ErrorKind, ErrorOp, Result, block_on, embed};

/// Long-running call of a log that has not started yet. [`wait`](Blocking::wait) runs it on this
/// thread. If awaited, it runs on a new thread, regardless of the executor.
///
/// The thread does not belong to the instance's pool: the call waits for operations of that
/// instance, and pool threads that wait for each other would deadlock.
///
/// If dropped before its first poll, it only releases its handle of the log. If dropped later, the
/// call runs to completion, and its result is dropped.
#[must_use = "a call does nothing until it is awaited, or `wait` is called"]
pub struct Blocking<T> {
    state: Phase<T>,
    operation: ErrorOp,
    path: Arc<Path>,
}

type LongCall<T> = Box<dyn FnOnce() -> Result<T> + Send + Sync>;

enum Phase<T> {
    New(LongCall<T>),
    UnderWay { answer: Arc<Mutex<Answer<T>>>, fork_generation: u64 },
    Spent,
}

struct Answer<T> {
    result: Option<thread::Result<Result<T>>>,
    waker: Waker,
}

impl<T: Send + 'static> Blocking<T> {
    pub(super) fn new(
        operation: ErrorOp,
        path: &Arc<Path>,
        call: impl FnOnce() -> Result<T> + Send + Sync + 'static,
    ) -> Blocking<T> {
        Blocking { state: Phase::New(Box::new(call)), operation, path: path.clone() }
    }

    /// Runs the call on this thread.
    ///
    /// # Errors
    /// Those of the call.
    pub fn wait(mut self) -> Result<T> {
        match std::mem::replace(&mut self.state, Phase::Spent) {
            Phase::New(call) => call(),
            state => {
                self.state = state;
                block_on(self)
            }
        }
    }

    fn start(&self, call: LongCall<T>, waker: Waker) -> Result<Phase<T>> {
        let answer = Arc::new(Mutex::new(Answer { result: None, waker }));
        let for_thread = answer.clone();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(call));
            let mut answer = lock(&for_thread);
            answer.result = Some(result);
            let waker = std::mem::replace(&mut answer.waker, Waker::noop().clone());
            drop(answer);
            waker.wake();
        };
        embed::spawn("nowait-log-call", run).map_err(|error| {
            os::thread_error(self.operation, &error, &self.path, "no thread can be started for a call of a log")
        })?;
        Ok(Phase::UnderWay { answer, fork_generation: embed::fork_generation() })
    }

    fn forked(&self) -> Error {
        os::error(self.operation, ErrorKind::InvalidInput, &self.path).with_advice(
            "the call was started before the fork and belongs to the parent; start another one in the child",
        )
    }
}

impl<T: Send + 'static> Future for Blocking<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        // Cloning or dropping a waker runs user code, so the lock is not held.
        let mut waker = context.waker().clone();
        match std::mem::replace(&mut self.state, Phase::Spent) {
            Phase::New(call) => {
                self.state = self.start(call, waker)?;
                Poll::Pending
            }
            Phase::UnderWay { fork_generation, .. } if fork_generation != embed::fork_generation() => {
                Poll::Ready(Err(self.forked()))
            }
            Phase::UnderWay { answer, fork_generation } => {
                let result = {
                    let mut answer = lock(&answer);
                    std::mem::swap(&mut answer.waker, &mut waker);
                    answer.result.take()
                };
                match result {
                    Some(Ok(result)) => Poll::Ready(result),
                    Some(Err(panic)) => resume_unwind(panic),
                    None => {
                        self.state = Phase::UnderWay { answer, fork_generation };
                        Poll::Pending
                    }
                }
            }
            Phase::Spent => polled_too_often(),
        }
    }
}

impl<T> Unpin for Blocking<T> {}

impl<T> std::fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocking").field("operation", &self.operation).field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn call<T: Send + 'static>(call: impl FnOnce() -> T + Send + Sync + 'static) -> Blocking<T> {
        Blocking::new(ErrorOp::Open, &Arc::from(Path::new("here")), move || Ok(call()))
    }

    #[test]
    fn waited_for_it_runs_here_and_awaited_elsewhere() {
        let here = || thread::current().id();
        assert_eq!(call(here).wait().unwrap(), here());
        assert_ne!(block_on(call(here)).unwrap(), here());
    }

    /// A call that is dropped while it runs still completes; one that was never polled does
    /// nothing.
    #[test]
    fn dropped_calls() {
        let (told, hear) = mpsc::channel();
        drop(call({
            let told = told.clone();
            move || told.send("not polled")
        }));
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let mut begun = call(move || {
            lock(&wait).recv().unwrap();
            told.send("dropped under way")
        });
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut begun).poll(&mut context).is_pending());
        drop(begun);
        go.send(()).unwrap();
        assert_eq!(hear.iter().collect::<Vec<_>>(), ["dropped under way"]);
    }

    /// Polled once, then waited for, on another thread.
    #[test]
    fn a_call_that_began_is_waited_for() {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let mut begun = call(move || lock(&wait).recv().unwrap());
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut begun).poll(&mut context).is_pending());
        let waits = thread::spawn(|| begun.wait());
        go.send(()).unwrap();
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn a_panic_reaches_who_awaits() {
        let panicked = catch_unwind(|| block_on(call(|| panic!("of the call"))));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"of the call"));
    }
}
