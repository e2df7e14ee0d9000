//! Callbacks of a log, one after the other, on the log's thread for them.
//!
//! A callback is the user's code: it may block, panic, or use the log. The thread that completes a
//! commit (in `wait`, a watcher, maintenance) only adds the callback to a queue. The thread that
//! runs callbacks starts with the first one, and ends after some seconds without one.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::Duration;

use crate::event::{Event, Observer};
use crate::os::lock;
use crate::sealed::{BlockHook, SealedBlock};
use nowait::{Result, embed};

/// Time that the thread waits for another callback.
const IDLE_MAX: Duration = Duration::from_secs(5);

pub(crate) type Callback = Box<dyn FnOnce(Result<u64>) + Send>;

pub(crate) enum Call {
    Durable(Callback, Result<u64>),
    Event(Observer, Event),
    Block(BlockHook, SealedBlock),
    /// A waker that must not run on the thread that completed its record.
    Wake(Waker),
}

impl Call {
    /// Runs the call, and contains a panic.
    fn run(self) {
        // Dropping the payload of a panic runs user code, and may panic again.
        catch_unwind(AssertUnwindSafe(|| match self {
            Call::Durable(callback, answer) => callback(answer),
            Call::Event(observer, event) => (observer.0)(&event),
            Call::Block(hook, block) => (hook.0)(&block),
            Call::Wake(waker) => waker.wake(),
        }))
        .unwrap_or_else(std::mem::forget);
    }
}

/// Wakes a task, and contains a panic.
pub(crate) fn wake(waker: Waker) {
    Call::Wake(waker).run();
}

pub(crate) struct Calls(Arc<Runner>);

struct Runner {
    thread: &'static str,
    state: Mutex<Backlog>,
    work: Condvar,
}

/// Calls that the thread has not run yet.
#[derive(Default)]
struct Backlog {
    calls: VecDeque<Call>,
    /// A thread serves the queue, until it finds it empty.
    is_served: bool,
    /// The log was dropped: the thread does not wait for more calls.
    is_over: bool,
}

thread_local! {
    /// The queue whose calls this thread runs, by its address; 0 if none.
    static SERVES: Cell<usize> = const { Cell::new(0) };
}

impl Calls {
    /// Makes a queue whose thread has this name.
    pub(crate) fn new(thread: &'static str) -> Calls {
        Calls(Arc::new(Runner { thread, state: Mutex::default(), work: Condvar::new() }))
    }

    /// Adds calls to the queue. The caller holds no lock.
    pub(crate) fn add(&self, calls: impl IntoIterator<Item = Call>) {
        let mut state = lock(&self.0.state);
        state.calls.extend(calls);
        if state.is_served {
            drop(state);
            self.0.work.notify_one();
        }
    }

    /// Starts a thread for the queue if it needs one. If none can be started and `may_run_here` is
    /// set, this thread serves the queue, so that no call is lost.
    pub(crate) fn serve(&self, may_run_here: bool) {
        let mut state = lock(&self.0.state);
        if state.is_served || state.calls.is_empty() {
            return;
        }
        state.is_served = true;
        drop(state);
        let queue = self.0.clone();
        let started = embed::spawn(self.0.thread, move || queue.run(IDLE_MAX));
        match started {
            Ok(_) => {}
            Err(_) if may_run_here => self.0.run(Duration::ZERO),
            Err(_) => lock(&self.0.state).is_served = false,
        }
    }

    /// True on a thread that runs a callback of this log.
    pub(crate) fn is_here(&self) -> bool {
        SERVES.get() == self.0.address()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.work.notify_one();
    }
}

impl Runner {
    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Runs calls until the queue has been empty for `idle_max`.
    fn run(self: &Arc<Self>, idle_max: Duration) {
        let before = SERVES.replace(self.address());
        let mut state = lock(&self.state);
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                call.run();
                state = lock(&self.state);
                continue;
            }
            let idle = |state: &mut Backlog| state.calls.is_empty() && !state.is_over;
            let waited = self.work.wait_timeout_while(state, idle_max, idle);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            if state.calls.is_empty() {
                break;
            }
        }
        state.is_served = false;
        drop(state);
        SERVES.set(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn panics_are_contained_and_the_thread_ends_with_the_log() {
        let calls = Calls::new("test");
        let (told, hear) = mpsc::channel();
        for number in 0..6 {
            let told = told.clone();
            let callback = move |answer: Result<u64>| {
                if number % 2 == 0 {
                    std::panic::panic_any(Bomb);
                }
                told.send(answer.unwrap()).unwrap();
            };
            calls.add([Call::Durable(Box::new(callback), Ok(number))]);
            calls.serve(true);
        }
        assert_eq!(hear.iter().take(3).collect::<Vec<_>>(), [1, 3, 5]);
        let queue = Arc::downgrade(&calls.0);
        drop(calls);
        while queue.upgrade().is_some() {
            std::thread::yield_now();
        }
    }

    /// Panic payload that panics when it is dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, again");
        }
    }

    #[test]
    fn a_callback_knows_its_log() {
        let (calls, other) = (Arc::new(Calls::new("test")), Calls::new("test"));
        let (told, hear) = mpsc::channel();
        let mine = calls.clone();
        calls.add([Call::Durable(Box::new(move |_| told.send((mine.is_here(), other.is_here())).unwrap()), Ok(1))]);
        assert!(!calls.is_here());
        // The state in which a failed start of a thread leaves the queue.
        lock(&calls.0.state).is_served = true;
        calls.0.run(Duration::ZERO);
        assert_eq!(hear.recv().unwrap(), (true, false));
        assert!(!calls.is_here());
    }
}
