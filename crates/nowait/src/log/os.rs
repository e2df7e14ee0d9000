//! The seam: every item that the log takes from inside the crate. The rest of `log/` uses the
//! crate's public interface alone. Each item here names what would have to be public for the log to
//! be a crate of its own.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::io::Errno;

use crate::sim::Sim;
use crate::{Buf, Error, ErrorKind, ErrorOp, Nowait};

/// A directory that is held open; names are resolved from it. To become public: `fs::Dir`, as it
/// is.
pub(super) use crate::fs::Dir;

/// Number of forks between the first process and this one; differs in a child from what it was in
/// the parent. To become public: a cheap check for a fork. (`std::process::id` is a system call,
/// which an append cannot afford.)
pub(super) fn fork_generation() -> u64 {
    crate::sys::fork_generation()
}

/// Has a thread of the instance notice completions, whatever the calling thread blocks on. For
/// those who wait for an operation that another thread, or a task of a runtime, has submitted. To
/// become public: a method of `Nowait`.
pub(super) fn watch_all(instance: &Nowait) {
    instance.0.engines().ring.watch_all();
}

/// A buffer of `length` bytes with arbitrary contents; None without memory. To become public: a
/// fallible constructor of `Buf` that neither clears nor panics.
pub(super) fn buffer(length: usize) -> Option<Buf> {
    Buf::uncleared(length)
}

/// The clock by which a log decides what is due: the system's, or that of the simulator it runs on.
/// To become public: `Nowait::now`.
pub(super) enum Clock {
    System,
    Simulated(Sim),
}

impl Clock {
    pub(super) fn of(instance: &Nowait) -> Clock {
        instance.0.sim().map_or(Clock::System, |sim| Clock::Simulated(sim.clone()))
    }

    pub(super) fn now(&self) -> Instant {
        match self {
            Clock::System => Instant::now(),
            Clock::Simulated(sim) => sim.now(),
        }
    }
}

/// An error of the log's own. To become public: constructors of `Error`, and the methods of
/// [`Describe`].
pub(super) fn error(operation: ErrorOp, kind: ErrorKind, path: &Path) -> Error {
    Error::new(operation, kind).at(&Arc::from(path))
}

/// An error of the system, from its errno.
pub(super) fn system_error(operation: ErrorOp, errno: Errno, path: &Path) -> Error {
    Error::from_errno(operation, errno).at(&Arc::from(path))
}

/// The error of a thread that cannot be started.
pub(super) fn thread_error(operation: ErrorOp, error: &std::io::Error, path: &Path, text: &str) -> Error {
    let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
    system_error(operation, errno, path).with_detail(text)
}

/// Details of an error beyond its kind, operation and path.
pub(super) trait Describe: Sized {
    /// The bytes of the file that it is about.
    fn with_range(self, offset: u64, length: u64) -> Self;
    /// A text beside the kind's advice.
    fn with_detail(self, text: impl Into<String>) -> Self;
    /// A text that says what to do next, in place of the kind's advice.
    fn with_advice(self, text: impl Into<String>) -> Self;
}

impl Describe for Error {
    fn with_range(self, offset: u64, length: u64) -> Self {
        self.range(offset, length)
    }

    fn with_detail(self, text: impl Into<String>) -> Self {
        self.detail(text)
    }

    fn with_advice(self, text: impl Into<String>) -> Self {
        self.explained(text)
    }
}

/// Locks, whatever happened to an earlier holder: every critical section of the log leaves its data
/// whole at each step at which it can panic. (The log's own.)
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
