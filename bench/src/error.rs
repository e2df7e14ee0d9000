//! Errors, sorted by what the user can do about them. Each message names the operation, the path
//! and the next step.

use std::fmt;
use std::io;
use std::path::Path;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The options contradict each other.
    Usage,
    /// The disk or the quota has no room for the test file or the writes.
    NoRoom,
    /// No file can be created in this directory, or the given file may not be read.
    NotWritable,
    /// The given file cannot be measured: it is missing, a directory, or too small. Or the given
    /// directory is missing, or not a directory.
    BadFile,
    /// Pages stay in the page cache, so no read would be cold.
    NotCold,
    /// No case was measured, although none failed.
    NothingMeasured,
    /// A run is worse than the earlier run.
    Worse,
    /// The user interrupted the run.
    Interrupted,
    Other,
}

impl ErrorKind {
    /// Returns the kind for a file that could not be created or written.
    pub(crate) fn of_write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoRoom,
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::BadFile,
            _ => Self::NotWritable,
        }
    }

    /// Returns the exit code of the command.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Other => 1,
            Self::Usage => 2,
            Self::NoRoom => 3,
            Self::NotWritable => 4,
            Self::BadFile => 5,
            Self::NotCold | Self::NothingMeasured => 6,
            Self::Worse => 12,
            Self::Interrupted => 130,
        }
    }
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "interrupted; nothing was left behind")
    }

    /// Makes the error of an unexpected failure of a system call on `path`.
    pub fn io(operation: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(ErrorKind::Other, format!("{operation} {}: {error}", path.display()))
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
