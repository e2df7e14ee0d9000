//! Own threads: for what io_uring would only hand to a worker of its own, and for everything where io_uring is refused.
//!
//! A queue under one lock, and threads that come with work, up to a limit, and go when they have been idle for a while. Threads
//! hold the queue alive, so that dropping an engine waits for nobody.
//!
//! An operation that waits for a device wants a thread of its own. A read that was announced to the kernel is under way
//! before any thread takes it, so that one thread collects several: fewer threads sleep and wake for the same depth at the device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::{Engine, run};
use crate::buf::lock;
use crate::op::{Backlog, Slot};
use crate::select::Path;
use crate::stats::Count;
use crate::sys::PerProcess;

/// As many threads as a device usefully has reads in flight; they exist only while there is work for them.
pub(crate) const THREADS_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    quiet: Condvar,
    threads_max: usize,
}

/// The work of one thread, and the parts of it that an operation is.
const THREAD: usize = 8;
const ANNOUNCED: usize = 1;

#[derive(Default)]
struct State {
    queue: Backlog,
    /// What is running, in parts of a thread.
    load: usize,
    threads: usize,
    /// Threads asleep that nobody has called.
    idle: usize,
    /// Calls that no thread has answered yet.
    calls: usize,
    running: usize,
    closing: bool,
}

impl State {
    /// Threads that what is running and in line keeps busy.
    fn wanted(&self) -> usize {
        let announced = self.queue.announced();
        let line = (self.queue.len() - announced) * THREAD + announced * ANNOUNCED;
        (self.load + line).div_ceil(THREAD)
    }
}

impl Pool {
    pub(crate) fn new(threads_max: usize) -> Pool {
        Pool(Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            quiet: Condvar::new(),
            threads_max: threads_max.max(1),
        }))
    }
}

impl Engine for Pool {
    fn submit(&self, slot: Arc<Slot>) {
        let shared = &self.0;
        let mut state = lock(&shared.state);
        state.queue.push(slot);
        if state.wanted() <= state.threads - state.idle {
            // Somebody who is at work, or called, comes to it.
        } else if state.idle > 0 {
            state.idle -= 1;
            state.calls += 1;
            drop(state);
            shared.work.notify_one();
        } else if state.threads < shared.threads_max {
            state.threads += 1;
            drop(state);
            spawn(shared);
        }
    }

    fn drain(&self) {
        let mut state = lock(&self.0.state);
        while state.running > 0 || state.queue.len() > 0 {
            state = wait(&self.0.quiet, state);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.0.state).closing = true;
        self.0.work.notify_all();
    }
}

fn wait<'a>(condvar: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condvar.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts a thread; where the system refuses (a limit on threads), the work is done by the threads there are, or, when
/// there is none, here and now: late is better than never.
fn spawn(shared: &Arc<Shared>) {
    let for_thread = shared.clone();
    let started = std::thread::Builder::new().name("nowait-pool".into()).spawn(move || serve(&for_thread));
    if started.is_err() {
        let mut state = lock(&shared.state);
        state.threads -= 1;
        if state.threads == 0 {
            drop(serve_queue(shared, state));
        }
    }
}

fn serve(shared: &Shared) {
    let mut state = lock(&shared.state);
    loop {
        state = serve_queue(shared, state);
        if state.closing {
            break;
        }
        state.idle += 1;
        let called = |state: &mut State| state.calls == 0 && !state.closing;
        let (after, timeout) =
            shared.work.wait_timeout_while(state, IDLE_MAX, called).unwrap_or_else(|poisoned| poisoned.into_inner());
        state = after;
        if state.calls > 0 {
            state.calls -= 1;
        } else {
            state.idle -= 1;
            if timeout.timed_out() {
                break;
            }
        }
    }
    state.threads -= 1;
}

/// Runs what is queued until nothing is.
fn serve_queue<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    while let Some(slot) = state.queue.pop() {
        let weight = if slot.is_announced() { ANNOUNCED } else { THREAD };
        state.running += 1;
        state.load += weight;
        drop(state);
        if let Some(mut work) = slot.take_work() {
            let outcome = run(work.owner.handle(), &mut work.request);
            slot.put_back(work);
            slot.finish(outcome, Path::Pool);
        }
        drop(slot);
        state = lock(&shared.state);
        state.running -= 1;
        state.load -= weight;
    }
    if state.running == 0 {
        shared.quiet.notify_all();
    }
    state
}

/// The process's common pool.
fn common() -> &'static Pool {
    static COMMON: PerProcess<Pool> = PerProcess::new();
    COMMON.get(|| Pool::new(THREADS_MAX))
}

/// Hands a slot to the common pool: for rings, which hand on what they cannot do themselves.
pub(crate) fn hand_on(slot: Arc<Slot>) {
    slot.count(Count::HandedOn);
    common().submit(slot);
}

/// Waits until nothing that was handed on is under way, by whichever ring.
pub(crate) fn drain_handed_on() {
    common().drain();
}
