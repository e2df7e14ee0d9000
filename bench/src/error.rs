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
    /// The disk (or the quota) has no room for the test file, or for what is to be written.
    NoRoom,
    /// No file can be made in this directory, or the file given may not be read.
    NotWritable,
    /// The file given cannot be measured: missing, a directory, too small. Or the directory is
    /// missing, or is none.
    BadFile,
    /// Pages stay in the page cache, so nothing may be called cold.
    NotCold,
    /// A run is worse than the one that it is compared with.
    Worse,
    /// The user asked to stop.
    Interrupted,
    Other,
}

impl ErrorKind {
    /// Error of a file that could not be made or written.
    pub(crate) fn of_write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoRoom,
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::BadFile,
            _ => Self::NotWritable,
        }
    }

    /// Exit code of a command that measures.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Other => 1,
            Self::Usage => 2,
            Self::NoRoom => 3,
            Self::NotWritable => 4,
            Self::BadFile => 5,
            Self::NotCold => 6,
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

    /// An unexpected failure of a system call on `path`.
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
