//! Locks, what loom replaces to check the state word and the queue for frames (`make loom`), and calls
//! of user code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

#[cfg(not(nowait_cache_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(nowait_cache_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

/// Locks, and ignores poisoning: in every critical section of the crate, the data are consistent
/// wherever it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs code of a user (a waker, a check) on a thread that works for others as well. Its panic ends
/// here: the panic hook has reported it. The payload is leaked, since its destructor could panic.
pub(crate) fn contained<T>(users: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(users)).map_err(std::mem::forget).ok()
}

/// Locks of the queue for frames.
pub(crate) mod loomed {
    #[cfg(not(nowait_cache_loom))]
    pub(crate) use std::sync::{Condvar, Mutex};

    #[cfg(nowait_cache_loom)]
    pub(crate) use loom::sync::{Condvar, Mutex};

    #[cfg(not(nowait_cache_loom))]
    pub(crate) use super::lock;

    #[cfg(nowait_cache_loom)]
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
