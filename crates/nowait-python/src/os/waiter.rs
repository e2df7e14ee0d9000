//! Systems without eventfd: a thread of Python waits for the bell, and calls the loop
//! (`nowait/_loops.py`). That works with any loop: the one that asyncio uses on Windows watches no
//! descriptors.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// Object whose `wait` returns when the bell rings.
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

/// Wakes a loop; stays rung until it is cleared.
pub(crate) struct Bell(Arc<Shared>);

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell(Arc::default()))
    }

    /// Any thread may call it. It waits for no thread of Python: the lock is held for some
    /// instructions only.
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
    /// Waits until results are available, and returns true; returns false after the last result, or
    /// after `stop`.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let is_idle = |state: &mut State| !state.is_rung && !state.has_ended;
            let waited = self.0.changed.wait_while(self.0.lock(), is_idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            state.is_rung = false;
            !state.has_ended
        })
    }

    /// Ends `wait`, also later calls.
    fn stop(&self) {
        self.0.change(|state| state.has_ended = true);
    }
}
