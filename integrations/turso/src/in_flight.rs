//! Operations in flight, and the completions that `step` calls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use turso_core::{Completion, CompletionError};

/// Result of an operation: bytes that were moved.
pub(super) type Moved = Result<usize, CompletionError>;

/// The operations of a [`NowaitIo`](super::NowaitIo).
#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    /// Signalled when an operation ends, and when its completion was called.
    changed: Condvar,
}

/// Operations of a file that are in flight. Changed with the state locked.
pub(super) type OfFile = Arc<AtomicUsize>;

#[derive(Default)]
struct State {
    in_flight: usize,
    /// Operations that have ended, whose completions are still to be called.
    ended: VecDeque<(Completion, Moved)>,
    /// Number of completions that were called.
    called: u64,
}

thread_local! {
    /// `State::called` when this thread last returned from `step`. Only a difference counts, so one
    /// value serves all instances: a thread that changes between two may return once without need.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation as in flight. Pass its result to [`Operation::end`].
    pub(super) fn begin(self: &Arc<Self>, of_file: &OfFile, completion: Completion) -> Operation {
        self.state().in_flight += 1;
        of_file.fetch_add(1, Ordering::Relaxed);
        Operation { all: self.clone(), of_file: of_file.clone(), completion }
    }

    /// Blocks until no operation of a file is in flight.
    pub(super) fn settle(&self, of_file: &OfFile) {
        let mut state = self.state();
        while of_file.load(Ordering::Relaxed) > 0 {
            state = self.wait(state);
        }
    }

    /// Calls the completions of all operations that have ended. If there is none, and operations are
    /// in flight, first blocks until one has ended.
    pub(super) fn step(&self) {
        let mut state = self.state();
        // Returns also if another thread has called a completion since: it may be the caller's.
        while state.ended.is_empty() && state.in_flight > 0 && state.called == SEEN.get() {
            state = self.wait(state);
        }
        while let Some((completion, moved)) = state.ended.pop_front() {
            // The completion may begin operations.
            drop(state);
            call(&completion, moved);
            state = self.state();
            state.called += 1;
            self.changed.notify_all();
        }
        SEEN.set(state.called);
    }
}

/// An operation in flight.
pub(super) struct Operation {
    all: Arc<InFlight>,
    of_file: OfFile,
    completion: Completion,
}

impl Operation {
    /// Leaves the result to [`InFlight::step`].
    pub(super) fn end(self, moved: Moved) {
        // A task that awaits the completion calls `step`, which waits for the following. In this order
        // the thread never has the last reference to a completion, and so not to a file.
        self.completion.wake_progress();
        let mut state = self.all.state();
        state.in_flight -= 1;
        self.of_file.fetch_sub(1, Ordering::Relaxed);
        state.ended.push_back((self.completion, moved));
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
