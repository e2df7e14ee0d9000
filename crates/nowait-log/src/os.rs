//! Errors of the log's own, and its locks.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use nowait::{Error, ErrorKind, ErrorOp};
use rustix::io::Errno;

/// An error of the log's own.
pub(crate) fn error(operation: ErrorOp, kind: ErrorKind, path: &Path) -> Error {
    Error::new(operation, kind).at(&Arc::from(path))
}

/// An error of the system, from its errno.
pub(crate) fn system_error(operation: ErrorOp, errno: Errno, path: &Path) -> Error {
    Error::from_raw_os_error(operation, errno.raw_os_error()).at(&Arc::from(path))
}

/// The error of a thread that cannot be started.
pub(crate) fn thread_error(operation: ErrorOp, error: &std::io::Error, path: &Path, text: &str) -> Error {
    let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
    system_error(operation, errno, path).with_detail(text)
}

/// The end of a future that is polled after it was ready.
#[cold]
pub(crate) fn polled_too_often() -> ! {
    panic!("a future was polled after it was ready")
}

/// Locks, whatever happened to an earlier holder: every critical section of the log leaves its data
/// whole at each step at which it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
