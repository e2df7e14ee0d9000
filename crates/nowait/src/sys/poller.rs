//! A thread's sleep until another thread rings, on systems without a queue to the kernel.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::{BorrowedFd, Errno};

/// Bell of a queue to the kernel; never made.
pub(crate) enum WakeEvent {}

impl WakeEvent {
    pub(crate) fn new() -> Result<WakeEvent, Errno> {
        Err(Errno::NOSYS)
    }

    pub(crate) fn ring(&self) {
        match *self {}
    }

    pub(crate) fn clear(&self) {
        match *self {}
    }
}

impl super::AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        match *self {}
    }
}

/// A thread's bell. No descriptor can be watched.
#[derive(Default)]
pub(crate) struct Poller {
    is_rung: Mutex<bool>,
    rings: Condvar,
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, Errno> {
        Ok(Poller::default())
    }

    pub(crate) fn add(&self, _descriptor: BorrowedFd<'_>, _number: u64) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    pub(crate) fn remove(&self, _descriptor: BorrowedFd<'_>) {}

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_rung.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes the thread.
    pub(crate) fn ring(&self) {
        *self.lock() = true;
        self.rings.notify_one();
    }

    /// Sleeps until the bell rings, or for `timeout`. If the bell was rung, clears it and returns true.
    pub(crate) fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<u64>) -> bool {
        ready.clear();
        let rung = self.lock();
        let is_quiet = |is_rung: &mut bool| !*is_rung;
        let mut rung = match timeout {
            Some(timeout) => {
                self.rings.wait_timeout_while(rung, timeout, is_quiet).unwrap_or_else(|error| error.into_inner()).0
            }
            None => self.rings.wait_while(rung, is_quiet).unwrap_or_else(|error| error.into_inner()),
        };
        std::mem::take(&mut rung)
    }
}
