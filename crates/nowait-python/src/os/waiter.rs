//! Systems without eventfd: a thread of Python waits for the bell, and wakes the loop
//! (`nowait/_waiter.py`). This works with any loop; asyncio's default one on Windows watches no
//! descriptors.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// Object whose `wait` returns once the bell rings.
pub(crate) type Notifier = Waiter;

#[derive(Default)]
struct State {
    is_rung: bool,
    /// True after the bell was dropped, or the waiter stopped.
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// Wakes a loop; stays rung until `clear`, or until a wait ends.
pub(crate) struct Bell(Arc<Shared>);

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell(Arc::default()))
    }

    /// Any thread may call it. It never waits for a thread of Python: the lock is held only for a few
    /// instructions.
    pub(crate) fn ring(&self) {
        self.0.change(|state| state.is_rung = true);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().is_rung = false;
    }

    pub(crate) fn notifier(&self) -> Notifier {
        Waiter(self.0.clone())
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.change(|state| state.has_ended = true);
    }
}

/// Waits for completions of a loop, on a thread other than the loop's.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Waiter(Arc<Shared>);

#[pymethods]
impl Waiter {
    /// Waits, and returns true when results are available; returns false after `stop`, or when the queue
    /// is freed.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let is_idle = |state: &mut State| !state.is_rung && !state.has_ended;
            let waited = self.0.changed.wait_while(self.0.lock(), is_idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            state.is_rung = false;
            !state.has_ended
        })
    }

    /// Ends this and later calls of `wait`.
    fn stop(&self) {
        self.0.change(|state| state.has_ended = true);
    }
}
