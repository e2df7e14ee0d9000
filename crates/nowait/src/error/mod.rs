//! One error for all operations: the operation, its path and bytes, the cause, and the next step.
//!
//! The kind is for programs, the text for people; the errno is kept. An operation that took a
//! buffer returns it inside [`BufferError`], so that a failed read costs no allocation.

mod kind;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::sys::{Errno, is_over_quota};

use self::kind::kind_of;
pub use self::kind::{ErrorKind, ErrorOp};

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Error of this crate. It is one pointer wide and cheap to clone. It converts into a
/// [`std::io::Error`] of the nearest kind, which contains this error ([`Error::inside`]).
#[derive(Clone)]
pub struct Error(Arc<ErrorParts>);

#[derive(Clone)]
struct ErrorParts {
    kind: ErrorKind,
    cause: Option<Cause>,
    operation: ErrorOp,
    path: Option<Arc<Path>>,
    range: Option<(u64, u64)>,
    index: Option<usize>,
    written: Option<Written>,
    detail: Option<String>,
    /// The detail says what to do next.
    explained: bool,
}

/// Error of the kernel; it contains an errno.
struct Cause(io::Error);

impl Clone for Cause {
    fn clone(&self) -> Self {
        Cause(io::Error::from_raw_os_error(self.0.raw_os_error().unwrap_or_default()))
    }
}

impl Error {
    /// Makes an error, for crates built on this one, such as a log or a language binding.
    /// [`at`](Error::at) adds the path, [`with_range`](Error::with_range) adds offset and length,
    /// and [`with_detail`](Error::with_detail) adds any other detail.
    pub fn new(operation: ErrorOp, kind: ErrorKind) -> Self {
        Error(Arc::new(ErrorParts {
            kind,
            cause: None,
            operation,
            path: None,
            range: None,
            index: None,
            written: None,
            detail: None,
            explained: false,
        }))
    }

    /// Makes an error from the errno of a failed system call, with the errno's kind.
    pub fn from_raw_os_error(operation: ErrorOp, code: i32) -> Self {
        Self::from_errno(operation, Errno::from_raw_os_error(code))
    }

    pub(crate) fn from_errno(operation: ErrorOp, errno: Errno) -> Self {
        let mut error = Self::new(operation, kind_of(operation, errno));
        error.inner().cause = Some(Cause(errno.into()));
        error
    }

    fn inner(&mut self) -> &mut ErrorParts {
        Arc::make_mut(&mut self.0)
    }

    /// Adds the path.
    pub fn at(self, path: impl AsRef<Path>) -> Self {
        self.at_shared(&Arc::from(path.as_ref()))
    }

    /// Adds the path, without a copy.
    pub(crate) fn at_shared(mut self, path: &Arc<Path>) -> Self {
        self.inner().path = Some(path.clone());
        self
    }

    /// Adds the requested offset and length, in bytes.
    pub fn with_range(mut self, offset: u64, length: u64) -> Self {
        self.inner().range = Some((offset, length));
        self
    }

    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.inner().kind = kind;
        self
    }

    /// Adds the index in the caller's list: see [`range_index`](Error::range_index).
    pub fn with_index(mut self, index: usize) -> Self {
        self.inner().index = Some(index);
        self
    }

    pub(crate) fn written(mut self, written: Written) -> Self {
        self.inner().written = Some(written);
        self
    }

    /// Adds a detail; replaces an earlier one.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.inner().detail = Some(detail.into());
        self
    }

    /// Adds a detail that says what to do next; replaces the kind's advice.
    pub fn with_advice(mut self, detail: impl Into<String>) -> Self {
        self.inner().explained = true;
        self.with_detail(detail)
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the errno, if the kernel reported one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.cause.as_ref()?.0.raw_os_error()
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> ErrorOp {
        self.0.operation
    }

    /// Returns the path by which the file was opened, if known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns the offset in bytes, for operations that have one.
    pub fn offset(&self) -> Option<u64> {
        self.0.range.map(|(offset, _)| offset)
    }

    /// Returns the requested length in bytes, for operations that have one.
    pub fn length(&self) -> Option<u64> {
        self.0.range.map(|(_, length)| length)
    }

    /// Returns the part of a failed write that is in the file; `None` for other operations.
    pub fn bytes_written(&self) -> Option<Written> {
        self.0.written
    }

    /// Returns the error of this crate that an `io::Error` contains, if any. That error holds
    /// details that the `io::Error` lacks, such as errno and range.
    pub fn inside(error: &io::Error) -> Option<&Error> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns the index of a gather's range, or of a write in a batch, in the caller's list.
    pub fn range_index(&self) -> Option<usize> {
        self.0.index
    }
}

/// Extent of a failed write that is in the file: in the page cache, not necessarily durable.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Exactly this many of the first bytes. Zero means that the file is unchanged.
    First(u64),
    /// At least this many of the first bytes; any of the others may be in the file, too.
    AtLeast(u64),
}

impl Written {
    /// Returns how many of the first bytes are certainly in the file.
    pub fn at_least(self) -> u64 {
        match self {
            Written::First(bytes) | Written::AtLeast(bytes) => bytes,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        write!(f, "{}", inner.operation)?;
        if let Some(index) = inner.index {
            write!(f, " range {index}")?;
        }
        if let Some(path) = &inner.path {
            if path.as_os_str().is_empty() { f.write_str(" \"\"") } else { write!(f, " {}", path.display()) }?;
        }
        if let Some((offset, length)) = inner.range {
            write!(f, " (offset {offset}, length {length})")?;
        }
        let (words, next) = inner.kind.advice();
        match (&inner.cause, self.raw_os_error()) {
            (Some(cause), _) if inner.kind == ErrorKind::Other => write!(f, ": {}", cause.0)?,
            (_, Some(errno)) => write!(f, ": {words} (os error {errno})")?,
            (_, None) => write!(f, ": {words}")?,
        }
        if let Some(detail) = &inner.detail {
            write!(f, ": {detail}")?;
        }
        match inner.written {
            Some(Written::First(0)) if inner.index.is_some() => f.write_str("; nothing of this range was written")?,
            Some(Written::First(0)) => f.write_str("; nothing was written")?,
            Some(Written::First(n)) => write!(f, "; the first {n} bytes were written")?,
            Some(Written::AtLeast(n)) => write!(f, "; at least {n} bytes were written")?,
            None => {}
        }
        match next.filter(|_| !inner.explained) {
            Some(next) => write!(f, "; {next}"),
            None => Ok(()),
        }
    }
}

/// Formats as [`Display`](fmt::Display): `unwrap` and a failing `main` print this text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    /// The kernel's error, if it reported one: an `io::Error` with the errno.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(|cause| &cause.0 as _)
    }
}

impl From<&Error> for Error {
    /// Clones a shared error: with it, `?` passes on the error of a range of a gather.
    fn from(error: &Error) -> Error {
        error.clone()
    }
}

/// Makes an `io::Error` of the nearest kind. It contains the error, with operation, path, range and
/// advice; [`Error::inside`] and `io::Error::downcast` return it. An `io::Error` holds either an
/// errno or an error, so its `raw_os_error` is `None`. Call [`Error::raw_os_error`] of the
/// contained error.
///
/// ```
/// use std::io::{self, Read};
///
/// fn first_byte(path: &str) -> io::Result<u8> {
///     let file = nowait::File::open(path).wait()?;
///     let mut byte = [0];
///     nowait::stream::Reader::new(&file, 0).read_exact(&mut byte)?;
///     Ok(byte[0])
/// }
///
/// let error = first_byte("/no/such/file").unwrap_err();
/// assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// assert!(error.to_string().contains("/no/such/file"));
/// let inside = nowait::Error::inside(&error).unwrap();
/// assert_eq!((inside.operation(), inside.raw_os_error()), (nowait::ErrorOp::Open, Some(2)));
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind() {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::ReadOnlyFilesystem => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
            ErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
            ErrorKind::DirectoryNotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::CrossesDevices => io::ErrorKind::CrossesDevices,
            ErrorKind::TooManyLinks => io::ErrorKind::TooManyLinks,
            ErrorKind::ResourceBusy | ErrorKind::Locked => io::ErrorKind::ResourceBusy,
            ErrorKind::ExecutableFileBusy => io::ErrorKind::ExecutableFileBusy,
            ErrorKind::Deadlock => io::ErrorKind::Deadlock,
            ErrorKind::StaleNetworkFileHandle => io::ErrorKind::StaleNetworkFileHandle,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::Interrupted => io::ErrorKind::Interrupted,
            ErrorKind::NotSeekable => io::ErrorKind::NotSeekable,
            ErrorKind::InvalidRange | ErrorKind::BufferTooSmall | ErrorKind::InvalidInput => {
                io::ErrorKind::InvalidInput
            }
            ErrorKind::UnexpectedEof => io::ErrorKind::UnexpectedEof,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::Unsupported | ErrorKind::EngineUnavailable => io::ErrorKind::Unsupported,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::NoSpace
                if error.raw_os_error().is_some_and(|code| is_over_quota(Errno::from_raw_os_error(code))) =>
            {
                io::ErrorKind::QuotaExceeded
            }
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::FileTooLarge => io::ErrorKind::FileTooLarge,
            ErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            ErrorKind::WriteZero => io::ErrorKind::WriteZero,
            ErrorKind::InvalidData | ErrorKind::Damaged => io::ErrorKind::InvalidData,
            ErrorKind::FilesystemLoop
            | ErrorKind::InvalidFilename
            | ErrorKind::Closed
            | ErrorKind::Io
            | ErrorKind::TooManyFiles
            | ErrorKind::SyncFailed
            | ErrorKind::NoSuchRecord
            | ErrorKind::Indeterminate
            | ErrorKind::Poisoned
            | ErrorKind::Other => match error.raw_os_error() {
                // The kind may have no stable name (before 1.87, or at all).
                Some(errno) => io::Error::from_raw_os_error(errno).kind(),
                None => io::ErrorKind::Other,
            },
        };
        io::Error::new(kind, error)
    }
}

/// Result of an operation that returns its buffer; the error contains the buffer, too.
pub type BufferResult<B> = std::result::Result<B, BufferError<B>>;

/// Result of a read or write: the number of bytes transferred, and the buffer. The error contains
/// the buffer, too.
pub type Moved<B> = std::result::Result<(usize, B), BufferError<B>>;

/// An [`Error`] together with the operation's buffer. `?` converts it into [`Error`] or
/// `io::Error`.
#[non_exhaustive]
pub struct BufferError<B> {
    /// The error.
    pub error: Error,
    /// The buffer, unchanged in length; its contents are unspecified.
    pub buffer: B,
}

impl<B> BufferError<B> {
    /// Returns the error of an operation that owned the buffer.
    pub fn new(error: Error, buffer: B) -> BufferError<B> {
        BufferError { error, buffer }
    }
}

/// Omits the buffer's contents.
impl<B> fmt::Debug for BufferError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for BufferError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for BufferError<B> {
    /// The error's own: this one says the same as the error.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<B> From<BufferError<B>> for Error {
    fn from(error: BufferError<B>) -> Error {
        error.error
    }
}

impl<B> From<BufferError<B>> for io::Error {
    fn from(error: BufferError<B>) -> io::Error {
        error.error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_operation_path_range_and_next_step() {
        let path = Path::new("/data/big");
        let error = Error::from_errno(ErrorOp::Gather, Errno::IO).at(path).with_range(4096, 512).with_index(7);
        let text = error.to_string();
        for part in ["gather range 7", "/data/big", "offset 4096", "length 512", "os error 5", "kernel log"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        assert_eq!(error.raw_os_error(), Some(5));
        assert_eq!(error.range_index(), Some(7));
    }

    /// Symptom: EROFS was "permission denied", and what std calls ENOTDIR, EBUSY or EXDEV was
    /// "other"; an `io::Error` made of an error had no errno. Each errno has std's kind, or another
    /// for a reason.
    #[test]
    fn errnos_are_what_std_makes_of_them() {
        // Names, since std's include some that are not stable.
        let name = |kind: &dyn fmt::Debug| format!("{kind:?}");
        let (full, sockets) = ("what to do is the same", "no operation of a file ends so");
        let finer = "std has no name for it";
        let differ = [
            (5, "Io", "Uncategorized", finer),
            (6, "Io", "Uncategorized", "the device is gone"),
            (7, "Other", "ArgumentListTooLong", sockets),
            (9, "Closed", "Uncategorized", finer),
            (23, "TooManyFiles", "Uncategorized", finer),
            (24, "TooManyFiles", "Uncategorized", finer),
            (28, "NoSpace", "StorageFull", "the name"),
            (32, "Other", "BrokenPipe", sockets),
            (75, "InvalidRange", "Uncategorized", finer),
            (98, "Other", "AddrInUse", sockets),
            (99, "Other", "AddrNotAvailable", sockets),
            (100, "Other", "NetworkDown", sockets),
            (101, "Other", "NetworkUnreachable", sockets),
            (103, "Other", "ConnectionAborted", sockets),
            (104, "Other", "ConnectionReset", sockets),
            (105, "OutOfMemory", "Uncategorized", finer),
            (107, "Other", "NotConnected", sockets),
            (111, "Other", "ConnectionRefused", sockets),
            (113, "Other", "HostUnreachable", sockets),
            (115, "Other", "InProgress", sockets),
            (122, "NoSpace", "QuotaExceeded", full),
        ];
        for errno in 1..=133 {
            let error = Error::from_errno(ErrorOp::Write, Errno::from_raw_os_error(errno));
            let (ours, std) = (name(&error.kind()), name(&io::Error::from_raw_os_error(errno).kind()));
            // Std of Rust 1.85 has no kind for EOPNOTSUPP.
            let std = if errno == 95 { "Unsupported".to_owned() } else { std };
            match differ.iter().find(|(number, ..)| *number == errno) {
                Some((_, left, right, why)) => {
                    assert_eq!((&*ours, &*std), (*left, *right), "errno {errno} is another kind since {why}");
                }
                None => assert_eq!(ours, if std == "Uncategorized" { "Other" } else { &std }, "errno {errno}"),
            }
            // The nearest kind, where std has no name for the errno.
            let right = match errno {
                75 => "InvalidInput",
                105 => "OutOfMemory",
                _ => &std,
            };
            let converted = io::Error::from(error);
            assert_eq!(name(&converted.kind()), right, "errno {errno}");
            assert_eq!(Error::inside(&converted).and_then(Error::raw_os_error), Some(errno));
        }
        // An open of a socket, or of a FIFO for writing, returns it.
        assert_eq!(Error::from_raw_os_error(ErrorOp::Open, 6).kind(), ErrorKind::NotSeekable);
    }

    /// Symptom: an `io::Error` kept only the errno, without the path: "No such file or directory
    /// (os error 2)".
    #[test]
    fn an_io_error_says_all_that_the_error_said() {
        let path = Path::new("/data/big");
        let error = Error::from_errno(ErrorOp::Write, Errno::NOSPC).at(path).with_range(4096, 512);
        for converted in
            [io::Error::from(error.clone()), io::Error::from(BufferError { error: error.clone(), buffer: vec![0] })]
        {
            assert_eq!((converted.kind(), converted.to_string()), (io::ErrorKind::StorageFull, error.to_string()));
            let inside = Error::inside(&converted).unwrap();
            assert_eq!((inside.path(), inside.offset(), inside.raw_os_error()), (Some(path), Some(4096), Some(28)));
            assert_eq!(converted.downcast::<Error>().unwrap().kind(), ErrorKind::NoSpace);
        }
        assert!(Error::inside(&io::Error::from_raw_os_error(2)).is_none());
        assert!(Error::inside(&io::Error::other("else")).is_none());
    }

    /// Symptom: the source was an error of another crate, of a type that this one does not export.
    #[test]
    fn the_source_is_the_errno_as_std_has_it() {
        let error = Error::from_errno(ErrorOp::Read, Errno::IO);
        for error in [&error.clone().at("/data/big") as &dyn std::error::Error, &BufferError { error, buffer: [0] }] {
            let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            assert_eq!(source.and_then(io::Error::raw_os_error), Some(5));
        }
        assert!(std::error::Error::source(&Error::new(ErrorOp::Read, ErrorKind::UnexpectedEof)).is_none());
    }

    #[test]
    fn a_crate_built_on_this_one_names_its_operation() {
        let error = Error::new(ErrorOp::Other("append to"), ErrorKind::Poisoned).at("/data/log");
        assert_eq!(error.to_string(), "append to /data/log: an earlier write failed; open it again");
    }

    #[test]
    fn an_error_without_an_errno_is_kept_inside_an_io_error() {
        let path = Path::new("/data/big");
        let error = Error::new(ErrorOp::Read, ErrorKind::PermissionDenied).at(path);
        let converted = io::Error::from(error.clone());
        assert_eq!((converted.kind(), converted.raw_os_error()), (io::ErrorKind::PermissionDenied, None));
        let inside = converted.get_ref().and_then(|inside| inside.downcast_ref::<Error>());
        assert_eq!(inside.and_then(Error::path), Some(path));
    }

    #[test]
    fn converts_into_io_error_and_keeps_the_buffer_until_then() {
        let error = BufferError { error: Error::new(ErrorOp::Read, ErrorKind::UnexpectedEof), buffer: vec![1u8, 2] };
        assert_eq!(error.buffer.len(), 2);
        let error: io::Error = error.into();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
