//! Locks, and calls of a user's code, which are made with none held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use crate::sys::calling_back;

/// Runs code of a user (a waker, a callback, a buffer's destructor) on a thread that works for
/// others as well. Its panic ends here: the panic hook has reported it. The payload is leaked,
/// since its destructor could panic again. No other callback runs inside it.
pub(crate) fn contained(users: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(|| calling_back(false, users))).unwrap_or_else(std::mem::forget);
}

/// Locks, also after an earlier holder's panic: every critical section of this crate leaves its
/// data whole at each step at which it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    locking();
    #[cfg(nowait_count)]
    match mutex.try_lock() {
        Ok(guard) => return guard,
        Err(_) => count::add_contended(),
    }
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Called before a lock is taken in any other way, so that a counted build (`make locks`) counts
/// it. Nothing in any other build.
#[inline]
pub(crate) fn locking() {
    #[cfg(nowait_count)]
    count::add();
}

/// Orders the submissions of a queue before its completions for a race detector (`make tsan`), which does not see
/// the kernel. Empty in any other build.
#[derive(Default)]
pub(crate) struct KernelOrder {
    #[cfg(nowait_tsan)]
    entries: std::sync::atomic::AtomicU64,
}

impl KernelOrder {
    #[inline]
    pub(crate) fn submit(&self) {
        #[cfg(nowait_tsan)]
        self.entries.fetch_add(1, std::sync::atomic::Ordering::Release);
    }

    #[inline]
    pub(crate) fn complete(&self) {
        #[cfg(nowait_tsan)]
        self.entries.load(std::sync::atomic::Ordering::Acquire);
    }
}

/// Counts what operations cost where many threads make them: `tests/contract/locks.rs`.
#[cfg(nowait_count)]
pub(crate) mod count {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    static ALL: AtomicU64 = AtomicU64::new(0);
    static CONTENDED: AtomicU64 = AtomicU64::new(0);
    thread_local!(static OWN: Cell<u64> = const { Cell::new(0) });

    pub(super) fn add() {
        ALL.fetch_add(1, Relaxed);
        let _ = OWN.try_with(|own| own.set(own.get() + 1));
    }

    pub(super) fn add_contended() {
        CONTENDED.fetch_add(1, Relaxed);
    }

    /// Returns the number of locks that another thread held when this library tried to take them.
    /// Locks taken through `locking` are not counted.
    pub fn contended_locks() -> u64 {
        CONTENDED.load(Relaxed)
    }

    /// Returns the number of locks taken by this thread, and by all threads.
    pub fn locks() -> (u64, u64) {
        (OWN.get(), ALL.load(Relaxed))
    }
}

/// Locks and atomics of slots and of what gives them their turn, exchanged when the hand-over is
/// checked in every order of its steps (`make loom`).
pub(crate) mod loomed {
    #[cfg(not(nowait_loom))]
    pub(crate) use std::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize},
    };

    #[cfg(nowait_loom)]
    pub(crate) use loom::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize},
    };

    #[cfg(not(nowait_loom))]
    pub(crate) use crate::sync::lock;

    #[cfg(nowait_loom)]
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
