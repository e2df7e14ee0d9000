//! Locks, atomics and futexes of a commit. `make loom` replaces them to check the hand-over in
//! every order of its steps.

use std::time::Duration;

#[cfg(all(target_os = "linux", not(nowait_log_loom)))]
use rustix::{fs::Timespec, thread::futex};

#[cfg(not(nowait_log_loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(nowait_log_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(not(nowait_log_loom))]
pub(crate) use crate::os::lock;

#[cfg(nowait_log_loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(nowait_log_loom)]
thread_local! {
    static YIELDS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Number of calls of [`yield_now`] in the models of this thread, in all orders together.
#[cfg(nowait_log_loom)]
pub(crate) fn yields() -> u32 {
    YIELDS.get()
}

#[cfg(nowait_log_loom)]
pub(crate) fn yield_now() {
    YIELDS.set(YIELDS.get() + 1);
    loom::thread::yield_now();
}

/// A futex word.
#[cfg(all(target_os = "linux", not(nowait_log_loom)))]
pub(crate) struct Word(pub(crate) AtomicU32);

#[cfg(all(target_os = "linux", not(nowait_log_loom)))]
impl Word {
    pub(crate) fn new(value: u32) -> Word {
        Word(AtomicU32::new(value))
    }

    /// Sleeps while the word is `value`, `time` at most. May return early.
    pub(crate) fn sleep_while(&self, value: u32, time: Option<Duration>) {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // The thread was woken or interrupted, or the word has changed: the caller checks again.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, time.as_ref());
    }

    pub(crate) fn wake(&self, threads: u32) {
        // Fails only for a bad address, which a reference is not.
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, threads);
    }
}

/// Replaces the futex word where there is no futex.
#[cfg(any(not(target_os = "linux"), nowait_log_loom))]
pub(crate) struct Word(pub(crate) AtomicU32, Mutex<()>, Condvar);

#[cfg(any(not(target_os = "linux"), nowait_log_loom))]
impl Word {
    pub(crate) fn new(value: u32) -> Word {
        Word(AtomicU32::new(value), Mutex::new(()), Condvar::new())
    }

    /// Sleeps while the word is `value`, `time` at most. May return early. No time passes under `make
    /// loom`, so every sleeper must be woken.
    pub(crate) fn sleep_while(&self, value: u32, time: Option<Duration>) {
        let guard = lock(&self.1);
        if self.0.load(Ordering::Acquire) == value {
            match time.filter(|_| cfg!(not(nowait_log_loom))) {
                Some(time) => drop(self.2.wait_timeout(guard, time)),
                None => drop(self.2.wait(guard)),
            }
        }
    }

    pub(crate) fn wake(&self, threads: u32) {
        let _guard = lock(&self.1);
        if threads == 1 { self.2.notify_one() } else { self.2.notify_all() }
    }
}
