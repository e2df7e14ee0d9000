//! The rest of `std::fs::File`: metadata, permissions, times, locks, and conversions from and to
//! descriptors. Also locks of ranges, which std lacks.
//!

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::File;
use crate::core::instance::Nowait;
#[cfg(feature = "sim")]
use crate::engine::sim::Stat;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::op::{Call, Handle, Request};
use crate::operation::Operation;
use crate::started::called;
use crate::sys::{self, AsFd, BorrowedFd, Errno, FileLock};

/// Kind of a range's lock; see [`File::try_lock_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeLock {
    /// Several opens may hold it at a time. The file has to be open for reading.
    Shared,
    /// Only one open may hold it. The file has to be open for writing.
    Exclusive,
}

/// Reason why a lock was not taken: `std::fs::TryLockError` (Rust 1.89) with this crate's
/// [`Error`].
#[derive(Clone)]
pub enum TryLockError {
    /// The call failed.
    Error(Error),
    /// Another open of the file has a conflicting lock.
    WouldBlock,
}

impl fmt::Display for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryLockError::Error(error) => error.fmt(f),
            TryLockError::WouldBlock => write!(f, "{}: {CONFLICT}", ErrorOp::Lock),
        }
    }
}

const CONFLICT: &str = "another open of the file has a conflicting lock; try again later";

/// Formats as [`Display`](fmt::Display): `unwrap` and a failing `main` print this text.
impl fmt::Debug for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for TryLockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TryLockError::Error(error) => error.source(),
            TryLockError::WouldBlock => None,
        }
    }
}

/// Makes an error of the kind [`WouldBlock`](ErrorKind::WouldBlock) if another open has a
/// conflicting lock.
impl From<TryLockError> for Error {
    fn from(error: TryLockError) -> Error {
        match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => Error::new(ErrorOp::Lock, ErrorKind::WouldBlock).with_advice(CONFLICT),
        }
    }
}

impl From<TryLockError> for io::Error {
    fn from(error: TryLockError) -> io::Error {
        Error::from(error).into()
    }
}

impl File {
    /// Returns size, times, type and permissions (`statx(2)`).
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`,
    /// [`ErrorKind::Unsupported`] on a simulator, and those of
    /// `statx(2)`.
    pub fn metadata(&self) -> Operation<'_, Result<fs::Metadata>> {
        self.call(ErrorOp::Metadata, |fd| sys::to_std(fd).metadata())
    }

    /// Returns the state of a simulated file; `None` for a file with a descriptor. Takes no part in the
    /// simulation: it needs no [`Sim::step`](crate::sim::Sim::step), and no fault affects it.
    #[cfg(feature = "sim")]
    pub fn simulated(&self) -> Option<Stat> {
        self.instance.sim()?.stat(&self.open.handle)
    }

    /// Sets the permissions (`fchmod(2)`).
    ///
    /// # Errors
    /// Like [`File::metadata`], but those of `fchmod(2)`.
    pub fn set_permissions(&self, permissions: fs::Permissions) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetPermissions, move |fd| sys::to_std(fd).set_permissions(permissions.clone()))
    }

    /// Sets the times of the last access and modification (`futimens(2)`).
    ///
    /// # Errors
    /// Like [`File::metadata`], but those of `futimens(2)`.
    pub fn set_times(&self, times: fs::FileTimes) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetTimes, move |fd| sys::to_std(fd).set_times(times))
    }

    /// Sets mode, owner and group to those of another file.
    pub(crate) fn set_mode_and_owner(&self, other: fs::Metadata) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetPermissions, move |fd| sys::set_mode_and_owner(fd, &other))
    }

    /// Tries to take the file's exclusive lock. The lock excludes other opens of the file, in any
    /// process (`flock(2)`). Clones share it. [`unlock`](File::unlock)
    /// releases it, and so does the drop of the last clone.
    ///
    /// Does not wait for the lock. The call itself, `flock(2)`, blocks this thread; on a network
    /// file system it contacts the server. The library has no call that waits for the lock. If its
    /// future were dropped, a later grant could not be told apart from a clone's lock. Retry at
    /// intervals.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another open has a lock. [`TryLockError::Error`] with the kind
    /// [`Closed`](ErrorKind::Closed) after `close`, [`Unsupported`](ErrorKind::Unsupported) on a
    /// simulator, and those of `flock(2)`.
    pub fn try_lock(&self) -> std::result::Result<(), TryLockError> {
        self.try_flock(FileLock::Exclusive)
    }

    /// Tries to take a shared lock, which several opens may have at a time. Otherwise as
    /// [`File::try_lock`].
    ///
    /// # Errors
    /// As [`File::try_lock`]; [`TryLockError::WouldBlock`] if another open has the exclusive lock.
    pub fn try_lock_shared(&self) -> std::result::Result<(), TryLockError> {
        self.try_flock(FileLock::Shared)
    }

    /// Releases the lock, if it is held.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, [`ErrorKind::Unsupported`] on a simulator, and those of
    /// `flock(2)`.
    pub fn unlock(&self) -> Result<()> {
        self.flock(FileLock::Unlocked).map_err(|errno| self.open.error(ErrorOp::Lock, errno))
    }

    fn try_flock(&self, lock: FileLock) -> std::result::Result<(), TryLockError> {
        self.flock(lock).map_err(|errno| match errno {
            Errno::AGAIN => TryLockError::WouldBlock,
            errno => TryLockError::Error(self.open.error(ErrorOp::Lock, errno)),
        })
    }

    fn flock(&self, lock: FileLock) -> std::result::Result<(), Errno> {
        self.open.check(0, 0)?;
        let fd = self.descriptor().ok_or(Errno::OPNOTSUPP)?;
        sys::lock_file(fd, lock)
    }

    /// Tries to lock `length` bytes from `offset`. A length of zero means everything from `offset`
    /// on, however far the file grows. The bytes need not exist. If this open already has a lock on
    /// part of the range, the call converts that lock without unlocking it.
    ///
    /// The lock belongs to an *open file description* (`F_OFD_SETLK`, Linux 3.15):
    ///
    /// * It excludes locks through other opens of the file, in this process or another, and record
    ///   locks by `fcntl(2)`, including those of this process. It does not exclude reads and
    ///   writes, nor, except on macOS, [`try_lock`](File::try_lock).
    /// * Clones of this file, duplicates of its descriptor and forked children share the lock: each
    ///   may unlock it. The lock ends with [`unlock_range`](File::unlock_range), or when the last
    ///   of these is closed. Unlike a record lock, it survives the close of another open of the
    ///   file.
    ///
    /// The call never waits for the lock, and like [`try_lock`](File::try_lock) has no variant that
    /// waits.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another open has a conflicting lock, which leaves this open's
    /// locks unchanged. [`TryLockError::Error`] with:
    ///
    /// * [`ErrorKind::PermissionDenied`] if the file is not open for reading (shared lock) or writing
    ///   (exclusive lock);
    /// * [`ErrorKind::InvalidRange`] beyond `i64::MAX`;
    /// * [`ErrorKind::Closed`] after `close`;
    /// * [`ErrorKind::Unsupported`] on a simulator;
    /// * those of `fcntl(2)`: `ENOLCK` if the system has no lock left, or the file system has no
    ///   locks.
    pub fn try_lock_range(&self, kind: RangeLock, offset: u64, length: u64) -> std::result::Result<(), TryLockError> {
        let locked = self.of_range(offset, length, |fd| sys::lock_range(fd, kind.into(), offset, length));
        locked.map_err(|errno| match errno {
            // fcntl(2) documents both errnos for a conflict.
            Errno::AGAIN | Errno::ACCESS => TryLockError::WouldBlock,
            errno => TryLockError::Error(self.lock_error(errno, offset, length)),
        })
    }

    /// Unlocks `length` bytes from `offset`; a length of zero means everything from there on. The
    /// bytes need not be locked. The parts of a longer lock outside the range stay locked.
    ///
    /// # Errors
    /// The errors of [`File::try_lock_range`], except those of access.
    pub fn unlock_range(&self, offset: u64, length: u64) -> Result<()> {
        let unlocked = self.of_range(offset, length, |fd| sys::lock_range(fd, FileLock::Unlocked, offset, length));
        unlocked.map_err(|errno| self.lock_error(errno, offset, length))
    }

    /// Returns whether a lock of another open would make [`File::try_lock_range`] fail. It takes no
    /// lock, and ignores locks of this open. The answer may be outdated when the call returns.
    ///
    /// # Errors
    /// The errors of [`File::try_lock_range`]; but the file may be open for reading or writing.
    pub fn is_range_locked(&self, kind: RangeLock, offset: u64, length: u64) -> Result<bool> {
        let locked = self.of_range(offset, length, |fd| sys::is_range_locked(fd, kind.into(), offset, length));
        locked.map_err(|errno| self.lock_error(errno, offset, length))
    }

    fn of_range<T>(
        &self,
        offset: u64,
        length: u64,
        call: impl FnOnce(BorrowedFd<'_>) -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        self.open.check(offset, usize::try_from(length).unwrap_or(usize::MAX))?;
        call(self.descriptor().ok_or(Errno::OPNOTSUPP)?)
    }

    fn lock_error(&self, errno: Errno, offset: u64, length: u64) -> Error {
        self.open.error(ErrorOp::Lock, errno).with_range(offset, length)
    }

    fn call<T: Send + Sync + 'static>(
        &self,
        operation: ErrorOp,
        function: impl Fn(BorrowedFd<'_>) -> io::Result<T> + Send + Sync + 'static,
    ) -> Operation<'_, Result<T>> {
        let call = move |_: &Path, fd: Option<BorrowedFd<'_>>| function(fd.ok_or(Errno::BADF)?);
        self.simple(Request::Call(Box::new(Call::new(operation, self.path(), call))), called)
    }

    /// Converts into std's file, if nothing else uses it: no clone, map, stream or operation.
    /// Abandoned operations count, too ([`Nowait::drain`] waits for them).
    ///
    /// # Errors
    /// Returns the file if it is in use or simulated. Also returns the file if a failed sync was
    /// not [acknowledged](File::acknowledge_sync_failure), since std's file would not report that
    /// failure.
    pub fn into_std(self) -> std::result::Result<fs::File, File> {
        if self.open.has_failed() {
            return Err(self);
        }
        let Some(Ok(other)) = self.descriptor().map(sys::file_for_std) else { return Err(self) };
        let File { open, instance } = self;
        match Arc::try_unwrap(open).map(|open| open.handle) {
            Ok(Handle::Descriptor(fd)) => Ok(other.unwrap_or_else(|| fs::File::from(fd))),
            Ok(Handle::Simulated { .. }) => unreachable!("it has a descriptor"),
            Err(open) => Err(File { open, instance }),
        }
    }
}

impl From<RangeLock> for FileLock {
    fn from(kind: RangeLock) -> FileLock {
        match kind {
            RangeLock::Shared => FileLock::Shared,
            RangeLock::Exclusive => FileLock::Exclusive,
        }
    }
}

/// Takes over an open file on the shared instance; see [`File::from_std`]. Errors contain its path
/// from `/proc/self/fd`.
impl TryFrom<fs::File> for File {
    type Error = Error;

    fn try_from(file: fs::File) -> Result<File> {
        let path = sys::path_of(file.as_fd());
        File::from_std(Nowait::shared(), file, path)
    }
}

/// Returns the descriptor, as [`File::descriptor`].
///
/// # Panics
/// For a simulated file, which has no descriptor.
#[cfg(unix)]
impl std::os::fd::AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().expect("a file of a simulator has no descriptor; ask File::descriptor")
    }
}

/// As [`AsFd`](std::os::fd::AsFd). The number is valid while the file is open. Do not close it.
///
/// # Panics
/// For a simulated file, which has no descriptor.
#[cfg(unix)]
impl std::os::fd::AsRawFd for File {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}

/// Returns the handle, as [`File::descriptor`].
///
/// # Panics
/// For a simulated file, which has no handle.
#[cfg(windows)]
impl std::os::windows::io::AsHandle for File {
    fn as_handle(&self) -> BorrowedFd<'_> {
        self.descriptor().expect("a file of a simulator has no handle; ask File::descriptor")
    }
}

/// As [`AsHandle`](std::os::windows::io::AsHandle). The handle is valid while the file is open. Do not
/// close it.
///
/// # Panics
/// For a simulated file, which has no handle.
#[cfg(windows)]
impl std::os::windows::io::AsRawHandle for File {
    fn as_raw_handle(&self) -> std::os::windows::io::RawHandle {
        std::os::windows::io::AsHandle::as_handle(self).as_raw_handle()
    }
}
