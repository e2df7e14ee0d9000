//! Operations in flight.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use turso_core::{Completion, CompletionError};

/// Result of an operation: bytes that were moved.
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
    /// Number of operations that have ended.
    ended: u64,
    /// Their completions. The last reference to one may be the last one to a file, whose drop may
    /// block: so a thread of the program drops them, not the thread that called them.
    called: Vec<Completion>,
}

thread_local! {
    /// `State::ended` when this thread last returned from `step`. Only a difference counts, so one
    /// value serves all instances: a thread that changes between two may return once without need.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread of the library calls a completion.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread calls a completion, so that it must not block.
pub(super) fn calls() -> bool {
    CALLS.get()
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

    /// Drops the completions that were called.
    pub(super) fn drop_called(&self) {
        if !calls() {
            let called = mem::take(&mut self.state().called);
            // Not locked any more: a file that is dropped with them locks the state.
            drop(called);
        }
    }
}

/// An operation in flight.
pub(super) struct Operation {
    all: Arc<InFlight>,
    of_file: OfFile,
    /// Until the drop.
    completion: Option<Completion>,
}

impl Operation {
    /// Calls the completion with the result, on a thread of the library.
    pub(super) fn end(self, moved: Moved) {
        CALLS.set(true);
        if let Some(completion) = &self.completion {
            call(completion, moved);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let completion = self.completion.take();
        if let Some(panicked) = completion.as_ref().filter(|completion| !completion.finished()) {
            // Else its caller would wait for ever.
            panicked.abort();
        }
        CALLS.set(false);
        let mut state = self.all.state();
        state.in_flight -= 1;
        state.ended += 1;
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
