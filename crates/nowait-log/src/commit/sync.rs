//! Locks, atomics and the sleep of a commit, exchanged when the hand-over is checked in every order
//! of its steps (`make loom`).

#[cfg(not(nowait_log_loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(nowait_log_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(not(nowait_log_loom))]
pub(crate) use crate::os::lock;

#[cfg(nowait_log_loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A word to sleep on.
#[cfg(not(nowait_log_loom))]
pub(crate) struct Word(pub(crate) AtomicU32);

#[cfg(not(nowait_log_loom))]
impl Word {
    pub(crate) fn new(value: u32) -> Word {
        Word(AtomicU32::new(value))
    }

    /// Sleeps while the word is `value`. May return early.
    pub(crate) fn sleep_while(&self, value: u32) {
        // Woken, interrupted, or too late to sleep: the caller looks again.
        let _ = rustix::thread::futex::wait(&self.0, rustix::thread::futex::Flags::PRIVATE, value, None);
    }

    pub(crate) fn wake(&self, threads: u32) {
        // Fails only for a bad address, which a reference is not.
        let _ = rustix::thread::futex::wake(&self.0, rustix::thread::futex::Flags::PRIVATE, threads);
    }
}

#[cfg(nowait_log_loom)]
pub(crate) struct Word(pub(crate) AtomicU32, Mutex<()>, Condvar);

#[cfg(nowait_log_loom)]
impl Word {
    pub(crate) fn new(value: u32) -> Word {
        Word(AtomicU32::new(value), Mutex::new(()), Condvar::new())
    }

    pub(crate) fn sleep_while(&self, value: u32) {
        let guard = lock(&self.1);
        if self.0.load(Ordering::Acquire) == value {
            drop(self.2.wait(guard));
        }
    }

    pub(crate) fn wake(&self, threads: u32) {
        let _guard = lock(&self.1);
        if threads == 1 { self.2.notify_one() } else { self.2.notify_all() }
    }
}
