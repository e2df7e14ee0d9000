//! The thread `nowait-driver`. It polls started operations of several steps to completion, and runs
//! callbacks for threads that may not run them.
//!
//! An operation of one step needs no polling: the thread that reaps its completion finishes it. An
//! operation of several steps (a gather, a replacement of a file) is a future, and a task of the
//! driver. A queue contains the woken tasks. The driver polls them in turn, as one future of
//! [`local::drive`]: their reads share its ring, and one system call submits them and waits.
//!
//! A callback runs on the thread that notices its completion only if that is a thread of the library
//! ([`calls_back`]). A caller may notice others' completions, or its own at once, inside a submission
//! or a poll: there it hands callbacks to this thread. Many of them cost one wake-up.
//!
//! The first job of a process starts the thread, which then stays. A forked child starts its own,
//! and neither polls nor drops its parent's tasks. A task's future is polled and dropped, its waiter
//! woken and its callback called with no lock held. A panic in any of these ends only that task.

use std::any::Any;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::{forget, replace};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::engine::{local, pool};
use crate::op::{Callback, Held, Leftovers, Outcome, Request};
use crate::sync::{contained, lock};
use crate::sys::{PerProcess, calls_back, fork_generation, spawn_service};

static DRIVER: PerProcess<Driver> = PerProcess::new();

#[derive(Default)]
struct Driver {
    /// Whether the thread runs. Locked while it is started: all who need the lock need the thread.
    runs: Mutex<bool>,
    ready: Mutex<Ready>,
}

/// Tasks that were woken and callbacks to be called, and the waker of the thread.
#[derive(Default)]
struct Ready {
    jobs: VecDeque<Job>,
    thread: Option<Waker>,
}

enum Job {
    Poll(Arc<dyn Runnable>),
    Call(Box<dyn FnOnce() + Send>),
}

trait Runnable: Send + Sync {
    fn run(self: Arc<Self>);
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Ended<T> = Result<T, Box<dyn Any + Send>>;
type Receive<T> = Box<dyn FnOnce(T) + Send>;

struct DriverTask<T> {
    /// True while the task is in the driver's queue.
    is_ready: AtomicBool,
    /// Lets go of its future early.
    let_go: fn(BoxFuture<T>),
    /// Passes a result to a callback that came late.
    pass_late: fn(Ended<T>, Receive<T>),
    fork_generation: u64,
    state: Mutex<DriverState<T>>,
}

struct DriverState<T> {
    work: DriverStage<T>,
    end: End<T>,
    /// The clock of the runtime that started it, until it ends.
    clock: Option<Held>,
}

enum DriverStage<T> {
    Waiting(BoxFuture<T>),
    /// The driver polls it.
    Polled,
    /// It has ended, or was given up.
    Over,
}

/// Fate of the result.
enum End<T> {
    /// The handle takes it, and has left this waker.
    Taken(Option<Waker>),
    Passed(Receive<T>),
    Dropped,
    /// It is here, or the payload of the task's panic.
    Here(Ended<T>),
    /// The handle has it.
    Gone,
}

/// Handle of a task; a future of its result. Dropped, it gives the task up.
pub(crate) struct Driven<T> {
    task: Arc<DriverTask<T>>,
    finishes: bool,
}

/// Hands a future to the driver. Returns the future if no thread can be started.
pub(crate) fn start<F>(future: F) -> Result<Driven<F::Output>, (io::Error, F)>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let task = begin(future, End::Taken(None)).map_err(|(error, future, _)| (error, future))?;
    Ok(Driven { task, finishes: false })
}

/// Hands a future to the driver, which calls `callback` with the result. If no thread can be
/// started, this one does both.
pub(crate) fn call_back<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
    callback: impl FnOnce(T) + Send + 'static,
) {
    if let Err((_, future, End::Passed(callback))) = begin(future, End::Passed(Box::new(callback))) {
        callback(local::drive(future));
    }
}

/// Makes a callback of a slot. The thread that ends the operation runs it, if that thread may; else
/// the driver does, or, if no thread can be started, that thread after all.
pub(crate) fn called_back(callback: impl FnOnce(Outcome, Request) + Send + 'static) -> Callback {
    Box::new(|outcome, request| call(move || callback(outcome, request)))
}

/// Runs a user's callback here if this thread may, else on the driver.
fn call(callback: impl FnOnce() + Send + 'static) {
    if calls_back() {
        return contained(callback);
    }
    let clock = Held::here();
    let driver = DRIVER.get(Driver::default);
    match driver.start() {
        Ok(()) => driver.push(Job::Call(Box::new(move || {
            let _followed = clock.follow();
            callback();
        }))),
        Err(_) => contained(callback),
    }
}

fn begin<T, F>(future: F, end: End<T>) -> Result<Arc<DriverTask<T>>, (io::Error, F, End<T>)>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    if let Err(error) = DRIVER.get(Driver::default).start() {
        return Err((error, future, end));
    }
    let task = DriverTask::new(DriverStage::Waiting(Box::pin(future)), end, |work| {
        // It may close a file, unmap memory, or run a user's destructor.
        let steps: Box<dyn Send> = Box::new(work);
        pool::of_process().let_go(Leftovers::from(steps));
    });
    task.clone().wake();
    Ok(task)
}

impl Driver {
    /// Starts the thread, unless it runs.
    fn start(&'static self) -> io::Result<()> {
        let mut runs = lock(&self.runs);
        if !*runs {
            spawn_service("nowait-driver", || local::drive(poll_fn(|context| self.turn(context))))?;
            *runs = true;
        }
        Ok(())
    }

    fn push(&self, job: Job) {
        let mut ready = lock(&self.ready);
        ready.jobs.push_back(job);
        let thread = ready.thread.clone();
        drop(ready);
        if let Some(thread) = thread {
            thread.wake();
        }
    }

    /// Does the jobs that are ready now. Those that come meanwhile have the next turn: the thread
    /// submits and reaps in between.
    fn turn(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut ready = lock(&self.ready);
        if ready.thread.is_none() {
            ready.thread = Some(context.waker().clone());
        }
        let jobs = std::mem::take(&mut ready.jobs);
        drop(ready);
        for job in jobs {
            match job {
                Job::Poll(task) => contained(|| task.run()),
                Job::Call(call) => contained(call),
            }
        }
        // A job that has come since has woken this future, too.
        Poll::Pending
    }
}

impl<T: Send + 'static> Wake for DriverTask<T> {
    fn wake(self: Arc<Self>) {
        if self.fork_generation != fork_generation() {
            // The parent's.
            forget(self);
        } else if !self.is_ready.swap(true, SeqCst) {
            DRIVER.get(Driver::default).push(Job::Poll(self));
        }
    }
}

impl<T: Send + 'static> Runnable for DriverTask<T> {
    fn run(self: Arc<Self>) {
        // Before the poll: a wake-up during it makes it ready again.
        self.is_ready.store(false, SeqCst);
        let mut state = lock(&self.state);
        let mut work = match replace(&mut state.work, DriverStage::Polled) {
            DriverStage::Waiting(work) => work,
            // Woken by what it left behind.
            other => return state.work = other,
        };
        drop(state);
        let waker = Waker::from(self.clone());
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&waker))));
        let result = match polled {
            Ok(Poll::Pending) => {
                let mut state = lock(&self.state);
                if let DriverStage::Polled = state.work {
                    state.work = DriverStage::Waiting(work);
                    return;
                }
                // Its handle was dropped meanwhile.
                drop(state);
                return (self.let_go)(work);
            }
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        // It refers to a file, which may be closed once the result is seen.
        contained(|| drop(work));
        self.end(result);
    }
}

impl<T: Send + 'static> DriverTask<T> {
    fn new(work: DriverStage<T>, end: End<T>, let_go: fn(BoxFuture<T>)) -> Arc<DriverTask<T>> {
        let clock = if let DriverStage::Waiting(_) = work { Some(Held::here()) } else { None };
        let state = Mutex::new(DriverState { work, end, clock });
        let pass_late = |result, callback| call(move || pass(result, callback));
        let (is_ready, fork_generation) = (AtomicBool::new(false), fork_generation());
        Arc::new(DriverTask { is_ready, let_go, pass_late, fork_generation, state })
    }

    fn end(&self, result: Ended<T>) {
        let mut state = lock(&self.state);
        state.work = DriverStage::Over;
        let clock = state.clock.take();
        match replace(&mut state.end, End::Gone) {
            End::Taken(waker) => {
                state.end = End::Here(result);
                drop(state);
                waker.into_iter().for_each(Waker::wake);
            }
            End::Passed(callback) => {
                drop(state);
                let _followed = clock.as_ref().map(Held::follow);
                pass(result, callback);
            }
            End::Dropped | End::Here(_) | End::Gone => {
                drop(state);
                // It may hold a file, or a buffer with a user's destructor.
                let result: Box<dyn Send> = Box::new(result);
                pool::of_process().let_go(Leftovers::from(result));
            }
        }
    }
}

/// Calls back with a result. The panic hook has reported a panic of the operation itself.
fn pass<T>(result: Ended<T>, callback: impl FnOnce(T)) {
    match result {
        Ok(output) => callback(output),
        Err(panic) => forget(panic),
    }
}

impl<T: Send + 'static> Driven<T> {
    /// Makes the handle of an operation that has ended already.
    pub(crate) fn ended(output: T) -> Driven<T> {
        Driven { task: DriverTask::new(DriverStage::Over, End::Here(Ok(output)), drop), finishes: false }
    }
}

impl<T> Driven<T> {
    /// Lets the task run to its end even if the handle is dropped.
    pub(crate) fn finish_on_drop(&mut self) {
        self.finishes = true;
    }

    /// A forked child has this handle of its parent's task: the parent's driver may hold the lock.
    fn is_parents(&self) -> bool {
        self.task.fork_generation != fork_generation()
    }

    /// Has the driver call `callback` with the result.
    pub(crate) fn on_complete(self, callback: impl FnOnce(T) + Send + 'static) {
        if self.is_parents() {
            return;
        }
        let mut state = lock(&self.task.state);
        match replace(&mut state.end, End::Gone) {
            End::Here(result) => {
                drop(state);
                (self.task.pass_late)(result, Box::new(callback));
            }
            old => {
                state.end = End::Passed(Box::new(callback));
                drop(state);
                drop(old);
            }
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        if self.is_parents() {
            return Poll::Pending;
        }
        // A waker's clone and drop may run anything: not under the lock.
        let waker = context.waker().clone();
        let mut state = lock(&self.task.state);
        match replace(&mut state.end, End::Gone) {
            End::Here(result) => {
                drop(state);
                Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic)))
            }
            End::Taken(old) => {
                state.end = End::Taken(Some(waker));
                drop(state);
                drop(old);
                Poll::Pending
            }
            End::Passed(_) | End::Dropped | End::Gone => panic!("a future was polled after it was ready"),
        }
    }
}

impl<T> Drop for Driven<T> {
    fn drop(&mut self) {
        if self.is_parents() {
            return forget(self.task.clone());
        }
        let mut state = lock(&self.task.state);
        let (work, end, clock) = match &state.end {
            // Called back.
            End::Passed(_) => return,
            End::Taken(_) if self.finishes => (DriverStage::Over, replace(&mut state.end, End::Dropped), None),
            _ => {
                let work = replace(&mut state.work, DriverStage::Over);
                (work, replace(&mut state.end, End::Gone), state.clock.take())
            }
        };
        drop(state);
        // Requests that the kernel has keep their memory.
        if let DriverStage::Waiting(work) = work {
            (self.task.let_go)(work);
        }
        drop((end, clock));
    }
}
