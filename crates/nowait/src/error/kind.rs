//! Kinds of errors and names of operations; the one table from errno to kind.

use std::fmt;

use crate::sys::{Errno, advice, named};

/// Kind of a failure, for programs to match on. An errno maps to std's kind, or to a more specific
/// one. For example, ENXIO of an open is [`NotSeekable`](ErrorKind::NotSeekable), EBADF is
/// [`Closed`](ErrorKind::Closed), EDQUOT is [`NoSpace`](ErrorKind::NoSpace), and EOVERFLOW is
/// [`InvalidRange`](ErrorKind::InvalidRange).
///
/// # Kinds for crates built on this one
/// `nowait-log`, `nowait-probe` and the language bindings return this crate's [`Error`](crate::Error), too. So a
/// function that reads files and appends to a log has one error type, and a binding converts errors
/// at one place. Five kinds are of use to any store of records, and this crate never returns them:
/// [`NoSuchRecord`](ErrorKind::NoSuchRecord), [`Locked`](ErrorKind::Locked),
/// [`Damaged`](ErrorKind::Damaged), [`Indeterminate`](ErrorKind::Indeterminate) and
/// [`Poisoned`](ErrorKind::Poisoned). The crate that returns one adds the advice
/// ([`Error::with_advice`](crate::Error::with_advice)) and names its operation ([`ErrorOp::Other`]).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such file or directory.
    NotFound,
    /// Permissions or a security policy forbid the operation.
    PermissionDenied,
    /// The file system is mounted for reading only.
    ReadOnlyFilesystem,
    /// The path is a directory.
    IsADirectory,
    /// A component of the path is not a directory.
    NotADirectory,
    /// The directory is not empty.
    DirectoryNotEmpty,
    /// The path contains too many symbolic links.
    FilesystemLoop,
    /// A name is too long.
    InvalidFilename,
    /// The paths are on different file systems.
    CrossesDevices,
    /// The file has the maximum number of links.
    TooManyLinks,
    /// The file or device is in use.
    ResourceBusy,
    /// The file is a program that is running.
    ExecutableFileBusy,
    /// Taking the lock would deadlock.
    Deadlock,
    /// The file no longer exists on the server (NFS).
    StaleNetworkFileHandle,
    /// The device or server did not respond in time.
    TimedOut,
    /// A signal interrupted the call.
    Interrupted,
    /// The file has no offsets: a FIFO, a socket, a terminal.
    NotSeekable,
    /// The range ends beyond `i64::MAX`.
    InvalidRange,
    /// The output buffer is smaller than the request.
    BufferTooSmall,
    /// The file ended before an exact read was complete.
    UnexpectedEof,
    /// The file was closed before the operation began.
    Closed,
    /// The device or the file system reported an I/O error.
    Io,
    /// Out of memory, or of locked memory.
    OutOfMemory,
    /// Too many open files, in the process or in the system.
    TooManyFiles,
    /// The file, file system or kernel cannot do this.
    Unsupported,
    /// A parameter is wrong.
    InvalidInput,
    /// The contents are not valid UTF-8.
    InvalidData,
    /// The engine requested by name is not available here.
    EngineUnavailable,
    /// The file exists already.
    AlreadyExists,
    /// The device or the quota is full.
    NoSpace,
    /// The file would exceed the size limit of the process or of the file system. At the process's
    /// limit (`RLIMIT_FSIZE`, `setrlimit(2)`) the kernel also sends SIGXFSZ, which ends a process
    /// that neither ignores nor handles it. Like std, the library does not change this: to get the
    /// error, set SIGXFSZ to `SIG_IGN`.
    FileTooLarge,
    /// An earlier write-back failed and was not acknowledged: see
    /// `File::acknowledge_sync_failure`.
    SyncFailed,
    /// The operation would have to wait.
    WouldBlock,
    /// The store has no such record: it was removed, or is not written yet.
    NoSuchRecord,
    /// Another process or handle has the store open for writing.
    Locked,
    /// Data that was durable is missing, or differs from what was written.
    Damaged,
    /// The write was in flight when another failed: it may be on disk, or not.
    Indeterminate,
    /// An earlier write failed; the store accepts nothing more.
    Poisoned,
    /// The file system accepted fewer bytes than were passed, without an error.
    WriteZero,
    /// Anything else; see [`Error::raw_os_error`](crate::Error::raw_os_error).
    Other,
}

/// Operation that failed; see [`Error::operation`](crate::Error::operation).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorOp {
    /// Opening a file.
    Open,
    /// A read at a position, vectored or not.
    Read,
    /// One of the ranges of a gather.
    Gather,
    /// Reading the size.
    Size,
    /// Advice to the page cache.
    Advise,
    /// Mapping a file into memory.
    Map,
    /// Bringing pages of a map into memory.
    Populate,
    /// Closing the descriptor.
    Close,
    /// Setting up an instance.
    Build,
    /// A write at a position or at the end, vectored or not.
    Write,
    /// Making data, or data and attributes, durable.
    Sync,
    /// Changing the length.
    SetLen,
    /// Reserving, punching or zeroing space.
    Allocate,
    /// Renaming.
    Rename,
    /// Removing a name.
    Remove,
    /// Listing a directory.
    List,
    /// Creating a directory.
    CreateDir,
    /// Reading size, times, type and permissions.
    Metadata,
    /// Changing permissions.
    SetPermissions,
    /// Changing times.
    SetTimes,
    /// Locking or unlocking.
    Lock,
    /// Creating a hard link or a symbolic link.
    Link,
    /// Reading a symbolic link.
    ReadLink,
    /// Resolving a path.
    Canonicalize,
    /// Copying a file.
    Copy,
    /// Operation of a crate built on this one. The text is a verb before a path, such as "append
    /// to".
    Other(&'static str),
}

impl fmt::Display for ErrorOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorOp::Open => "open",
            ErrorOp::Read => "read",
            ErrorOp::Gather => "gather",
            ErrorOp::Size => "size",
            ErrorOp::Advise => "advise",
            ErrorOp::Map => "map",
            ErrorOp::Populate => "populate",
            ErrorOp::Close => "close",
            ErrorOp::Build => "build",
            ErrorOp::Write => "write",
            ErrorOp::Sync => "sync",
            ErrorOp::SetLen => "set length of",
            ErrorOp::Allocate => "allocate in",
            ErrorOp::Rename => "rename",
            ErrorOp::Remove => "remove",
            ErrorOp::List => "list",
            ErrorOp::CreateDir => "create directory",
            ErrorOp::Metadata => "read metadata of",
            ErrorOp::SetPermissions => "set permissions of",
            ErrorOp::SetTimes => "set times of",
            ErrorOp::Lock => "lock",
            ErrorOp::Link => "link",
            ErrorOp::ReadLink => "read link",
            ErrorOp::Canonicalize => "resolve",
            ErrorOp::Copy => "copy",
            ErrorOp::Other(operation) => operation,
        })
    }
}

/// The one table from errno to kind. Errno values not named here are [`ErrorKind::Other`].
pub(super) fn kind_of(operation: ErrorOp, errno: Errno) -> ErrorKind {
    match named(errno) {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::ACCESS | Errno::PERM => ErrorKind::PermissionDenied,
        Errno::ROFS => ErrorKind::ReadOnlyFilesystem,
        Errno::ISDIR => ErrorKind::IsADirectory,
        Errno::NOTDIR => ErrorKind::NotADirectory,
        Errno::NOTEMPTY => ErrorKind::DirectoryNotEmpty,
        Errno::LOOP => ErrorKind::FilesystemLoop,
        Errno::NAMETOOLONG => ErrorKind::InvalidFilename,
        Errno::XDEV => ErrorKind::CrossesDevices,
        Errno::MLINK => ErrorKind::TooManyLinks,
        Errno::BUSY => ErrorKind::ResourceBusy,
        Errno::TXTBSY => ErrorKind::ExecutableFileBusy,
        Errno::DEADLK => ErrorKind::Deadlock,
        Errno::STALE => ErrorKind::StaleNetworkFileHandle,
        Errno::TIMEDOUT => ErrorKind::TimedOut,
        Errno::INTR => ErrorKind::Interrupted,
        // macOS reports ENXIO if the device is gone. An open of a socket or a FIFO returns it, too.
        Errno::NXIO if matches!(operation, ErrorOp::Read | ErrorOp::Gather | ErrorOp::Write | ErrorOp::Sync) => {
            ErrorKind::Io
        }
        Errno::SPIPE | Errno::NXIO => ErrorKind::NotSeekable,
        Errno::OVERFLOW => ErrorKind::InvalidRange,
        Errno::BADF => ErrorKind::Closed,
        Errno::IO => ErrorKind::Io,
        Errno::NOMEM | Errno::NOBUFS => ErrorKind::OutOfMemory,
        Errno::MFILE | Errno::NFILE => ErrorKind::TooManyFiles,
        Errno::OPNOTSUPP | Errno::NOSYS => ErrorKind::Unsupported,
        Errno::INVAL => ErrorKind::InvalidInput,
        Errno::EXIST => ErrorKind::AlreadyExists,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::NoSpace,
        Errno::FBIG => ErrorKind::FileTooLarge,
        Errno::AGAIN => ErrorKind::WouldBlock,
        _ => ErrorKind::Other,
    }
}

impl ErrorKind {
    /// Meaning in words, and what to do next.
    pub(super) fn advice(self) -> (&'static str, Option<&'static str>) {
        match self {
            ErrorKind::NotFound => ("no such file or directory", Some("check the path")),
            ErrorKind::PermissionDenied => {
                ("permission denied", Some("check the permissions of the file and its directories"))
            }
            ErrorKind::ReadOnlyFilesystem => {
                ("the file system is read-only", Some("write elsewhere, or mount it for writing"))
            }
            ErrorKind::IsADirectory => ("it is a directory", Some("name a file")),
            ErrorKind::NotADirectory => ("a component of the path is not a directory", Some("check the path")),
            ErrorKind::DirectoryNotEmpty => ("the directory is not empty", Some("remove its contents first")),
            ErrorKind::FilesystemLoop => {
                ("too many symbolic links", Some("check the targets of the links in the path"))
            }
            ErrorKind::InvalidFilename => {
                ("a name is too long, or has a forbidden character", Some("choose a shorter one, or other characters"))
            }
            ErrorKind::CrossesDevices => ("it is on another file system", Some("copy it and remove the original")),
            ErrorKind::TooManyLinks => ("it has too many links", Some("copy it")),
            ErrorKind::ResourceBusy => ("it is in use", Some(advice::IN_USE)),
            ErrorKind::ExecutableFileBusy => {
                ("it is a running program", Some("end the program, or write a new file and rename it"))
            }
            ErrorKind::Deadlock => ("the call would deadlock", None),
            ErrorKind::StaleNetworkFileHandle => ("the server has replaced or removed the file", Some("open it again")),
            ErrorKind::TimedOut => ("the time limit was exceeded", Some(advice::TIMED_OUT)),
            ErrorKind::Interrupted => ("interrupted by a signal", Some("try again")),
            ErrorKind::NotSeekable => ("it does not support offsets", Some("name a regular file or a block device")),
            ErrorKind::InvalidRange => {
                ("the range ends beyond the largest file offset, 2^63 - 1", Some("check offset and length"))
            }
            ErrorKind::BufferTooSmall => {
                ("the output buffer is too small", Some("pass a buffer that holds the sum of all lengths"))
            }
            ErrorKind::UnexpectedEof => {
                ("the file ends first", Some("check offset and length, or use `read_at`, which may be short"))
            }
            ErrorKind::Closed => ("the file is closed", Some("open it again")),
            ErrorKind::Io => ("the device reported an error", Some(advice::IO)),
            ErrorKind::OutOfMemory => ("out of memory", Some("request less at a time")),
            ErrorKind::TooManyFiles => ("too many open files", Some(advice::TOO_MANY_FILES)),
            ErrorKind::Unsupported => ("not supported here", None),
            ErrorKind::InvalidInput => ("a parameter is not valid", None),
            ErrorKind::InvalidData => ("the contents are not UTF-8 text", Some("read them as bytes")),
            ErrorKind::EngineUnavailable => ("this engine is not available here", Some("choose Engine::Auto")),
            ErrorKind::AlreadyExists => ("it already exists", Some("choose another name, or open the existing file")),
            ErrorKind::NoSpace => {
                ("no space is left", Some("free space or raise the quota, then write the rest again"))
            }
            ErrorKind::FileTooLarge => ("the file would be too large", Some(advice::FILE_TOO_LARGE)),
            ErrorKind::SyncFailed => (
                "a write-back failed, and its data may be lost",
                Some("write it again, then call acknowledge_sync_failure"),
            ),
            ErrorKind::NoSuchRecord => ("there is no such record", Some("choose a record that exists")),
            ErrorKind::Locked => ("it is locked", Some("close it there first")),
            ErrorKind::Damaged => ("durable data cannot be read", Some("restore it from a copy")),
            ErrorKind::Indeterminate => ("the write may be on disk, or not", Some("open it again and check")),
            ErrorKind::Poisoned => ("an earlier write failed", Some("open it again")),
            ErrorKind::WouldBlock => ("the call would block", Some("await it, or try again later")),
            ErrorKind::WriteZero => {
                ("the file system accepted no more bytes and returned no error", Some("write the rest again"))
            }
            ErrorKind::Other => ("it failed", None),
        }
    }
}
