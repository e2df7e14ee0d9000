//! Operations in flight.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use turso_core::{Completion, CompletionError};

/// Result of an operation: the number of bytes transferred.
pub(super) type Moved = Result<usize, CompletionError>;

/// The operations of a [`NowaitIo`](super::NowaitIo).
#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    /// Signalled when an operation has ended.
    changed: Condvar,
}

/// Operations of a file that are in flight. Changed with the state locked.
pub(super) type OfFile = Arc<AtomicUsize>;

#[derive(Default)]
struct State {
    in_flight: usize,
    /// Number of the operation that ended last, 0 if none has ended.
    ended: u64,
    /// Completions of ended operations. Dropping one may drop the last reference to a file, which may
    /// block. So threads of the program drop them, never the library's thread that called them.
    called: Vec<Completion>,
}

/// Number of the last ended operation of all instances.
static ENDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// `State::ended` when this thread last returned from `step`. No two instances have the same value
    /// but 0, so one variable serves all: a thread that alternates between instances may return too
    /// early, but misses no operation that has ended.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread is calling a completion.
    static IN_COMPLETION: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is inside a completion, where it must not block.
pub(super) fn in_completion() -> bool {
    IN_COMPLETION.get()
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, mut waits: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.state(), |state| waits(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation as in flight. Pass its result to [`Operation::end`].
    pub(super) fn begin(self: &Arc<Self>, of_file: &OfFile, completion: &Completion) -> Operation {
        self.drop_called();
        self.state().in_flight += 1;
        of_file.fetch_add(1, Ordering::Relaxed);
        Operation { all: self.clone(), of_file: of_file.clone(), completion: Some(completion.clone()) }
    }

    /// If operations are in flight, blocks until one has ended since this thread's last call.
    pub(super) fn step(&self) {
        SEEN.set(self.wait_while(|state| state.in_flight > 0 && state.ended == SEEN.get()).ended);
        self.drop_called();
    }

    /// Blocks until no operation of a file is in flight.
    pub(super) fn settle(&self, of_file: &OfFile) {
        drop(self.wait_while(|_| of_file.load(Ordering::Relaxed) > 0));
        self.drop_called();
    }

    /// Drops the completions of ended operations.
    pub(super) fn drop_called(&self) {
        if !in_completion() {
            let called = mem::take(&mut self.state().called);
            // The state is unlocked here: dropping a completion may drop a file, which locks the state.
            drop(called);
        }
    }
}

/// An operation in flight.
pub(super) struct Operation {
    all: Arc<InFlight>,
    of_file: OfFile,
    /// `None` only during the drop.
    completion: Option<Completion>,
}

impl Operation {
    /// Calls the completion with the result, on a thread of the library.
    pub(super) fn end(self, moved: Moved) {
        IN_COMPLETION.set(true);
        if let Some(completion) = &self.completion {
            call(completion, moved);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let completion = self.completion.take();
        if let Some(panicked) = completion.as_ref().filter(|completion| !completion.finished()) {
            // The completion panicked or was never called: its waiter would hang otherwise.
            panicked.abort();
        }
        IN_COMPLETION.set(false);
        let mut state = self.all.state();
        state.in_flight -= 1;
        state.ended = ENDED.fetch_add(1, Ordering::Relaxed) + 1;
        state.called.extend(completion);
        self.of_file.fetch_sub(1, Ordering::Relaxed);
        drop(state);
        self.all.changed.notify_all();
    }
}

/// Calls a completion.
pub(super) fn call(completion: &Completion, moved: Moved) {
    match moved {
        // turso moves less than 2 GiB at a time.
        Ok(bytes) => completion.complete(i32::try_from(bytes).unwrap_or(i32::MAX)),
        Err(error) => completion.error(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn step_after_a_step_of_another_instance_misses_no_operation() {
        let begin = |all: &Arc<InFlight>| all.begin(&OfFile::default(), &Completion::new_sync(|_| {}));
        let (sender, returned) = mpsc::channel();
        thread::spawn(move || {
            let (one, other) = (Arc::default(), Arc::default());
            begin(&one).end(Ok(0));
            one.step();
            begin(&other).end(Ok(0));
            let _in_flight = begin(&other);
            other.step();
            sender.send(()).unwrap();
        });
        returned.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
