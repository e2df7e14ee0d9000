//! Errors that the log makes, its locks, and what it needs of the operating system.

#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

use std::fmt::Display;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use nowait::{Error, ErrorKind, ErrorOp};

pub(crate) use self::system::*;

/// Value of [`Error::operation`] for an append, and for other changes of an open log.
pub const APPEND: ErrorOp = ErrorOp::Other("append to");

/// Value of [`Error::operation`] for recovery, also when a log is followed or inspected.
pub const RECOVER: ErrorOp = ErrorOp::Other("recover");

/// Makes an error of the log.
pub(crate) fn error(operation: ErrorOp, kind: ErrorKind, path: &Path) -> Error {
    Error::new(operation, kind).at(path)
}

/// Error for durable bytes that are missing or differ.
pub(crate) fn damaged(path: &Path, offset: u64, length: u64, what: impl Display) -> Error {
    error(RECOVER, ErrorKind::Damaged, path).with_range(offset, length).with_advice(format!(
        "{what}; restore the log from a copy, or open it with salvage, which drops the damaged record and all later ones"
    ))
}

/// Makes an error from a system error.
pub(crate) fn system_error(operation: ErrorOp, error: &std::io::Error, path: &Path) -> Error {
    match error.raw_os_error() {
        Some(code) => Error::from_raw_os_error(operation, code).at(path),
        None => Error::new(operation, ErrorKind::Other).at(path).with_detail(error.to_string()),
    }
}

/// Makes the error of a thread that cannot be started.
pub(crate) fn thread_error(operation: ErrorOp, error: &std::io::Error, path: &Path, text: &str) -> Error {
    let error = match error.raw_os_error() {
        Some(_) => system_error(operation, error, path),
        None => Error::new(operation, ErrorKind::WouldBlock).at(path),
    };
    error.with_detail(text)
}

/// Makes the error of memory that cannot be allocated.
pub(crate) fn no_memory(operation: ErrorOp, path: &Path) -> Error {
    error(operation, ErrorKind::OutOfMemory, path)
}

/// Panics for a future that is polled after it was ready.
#[cold]
pub(crate) fn polled_too_often() -> ! {
    panic!("a future was polled after it was ready")
}

/// Locks, and ignores poisoning: in every critical section of the log, the data are consistent
/// wherever it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
