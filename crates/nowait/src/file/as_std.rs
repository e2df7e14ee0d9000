//! The rest of `std::fs::File`: metadata, permissions, times, locks, and descriptors that come and
//! go.
//!
//! `unsafe` here: a descriptor lent to std for one call.

use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::File;
use crate::core::instance::Nowait;
use crate::engine::local;
use crate::error::{Error, ErrorOp, Result};
use crate::op::{Call, Handle, Request};
use crate::operation::{Operation, called};
use crate::sys;

impl File {
    /// Returns size, times, type and permissions (`statx(2)`).
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after `close`,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulator, and those of
    /// `statx(2)`.
    pub fn metadata(&self) -> Operation<'_, Result<fs::Metadata>> {
        self.call(ErrorOp::Metadata, |fd| to_std(fd).metadata())
    }

    /// Sets the permissions (`fchmod(2)`).
    ///
    /// # Errors
    /// As [`File::metadata`], of `fchmod(2)`.
    pub fn set_permissions(&self, permissions: fs::Permissions) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetPermissions, |fd| to_std(fd).set_permissions(permissions))
    }

    /// Sets the times of the last access and change (`futimens(2)`).
    ///
    /// # Errors
    /// As [`File::metadata`], of `futimens(2)`.
    pub fn set_times(&self, times: fs::FileTimes) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetTimes, move |fd| to_std(fd).set_times(times))
    }

    /// Tries to take the file's exclusive lock; returns whether it did. The lock excludes other
    /// opens of the file, in any process (`flock(2)`). Clones share it. It ends with
    /// [`unlock`](File::unlock), or when the last clone is gone.
    ///
    /// Does not wait for the lock. The call itself, `flock(2)`, blocks this thread; on a network
    /// file system it asks the server. There is no form that waits: if its future were dropped, a
    /// lock granted later could not be told from one that another clone holds. Try again after a
    /// while.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after `close`,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulator, and those of
    /// `flock(2)`.
    pub fn try_lock(&self) -> Result<bool> {
        self.flock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Tries to take a shared lock; returns whether it did. Otherwise as [`File::try_lock`].
    ///
    /// # Errors
    /// As [`File::try_lock`].
    pub fn try_lock_shared(&self) -> Result<bool> {
        self.flock(FlockOperation::NonBlockingLockShared)
    }

    /// Releases the lock, if it is held.
    ///
    /// # Errors
    /// As [`File::try_lock`].
    pub fn unlock(&self) -> Result<()> {
        self.flock(FlockOperation::Unlock).map(drop)
    }

    fn flock(&self, operation: FlockOperation) -> Result<bool> {
        let error = |errno| self.0.error(ErrorOp::Lock, errno);
        self.0.check(0, 0).map_err(error)?;
        let fd = self.descriptor().ok_or(Errno::OPNOTSUPP).map_err(error)?;
        match sys::retry(|| rustix::fs::flock(fd, operation)) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(error(errno)),
        }
    }

    fn call<T: Send + 'static>(
        &self,
        operation: ErrorOp,
        function: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> Operation<'_, Result<T>> {
        let call = |_: &Path, fd: Option<BorrowedFd<'_>>| function(fd.ok_or(Errno::BADF)?);
        self.simple(Request::Call(Box::new(Call::new(operation, self.path(), call))), called)
    }

    /// Turns the file into std's, if nothing else uses it: no clone, map or stream, and no
    /// operation, abandoned ones included ([`Nowait::drain`] waits for those).
    ///
    /// # Errors
    /// The file, if it is in use or of a simulator, or if a failed sync of it has not been
    /// [acknowledged](File::acknowledge_sync_failure): std's file would not know of that.
    pub fn into_std(self) -> std::result::Result<fs::File, File> {
        if self.descriptor().is_none() || self.0.open.has_failed() {
            return Err(self);
        }
        local::flush();
        let mut opened = Arc::try_unwrap(self.0).map_err(File)?;
        if Arc::get_mut(&mut opened.open).is_none() {
            return Err(File(Arc::new(opened)));
        }
        match Arc::into_inner(opened.open).map(|open| open.handle) {
            Some(Handle::Descriptor(fd)) => Ok(fs::File::from(fd)),
            _ => unreachable!("it has a descriptor, and nothing else has a share"),
        }
    }
}

/// Takes over an open file on the shared instance; see [`File::from_std`]. Errors name its path by
/// `/proc/self/fd`.
impl TryFrom<fs::File> for File {
    type Error = Error;

    fn try_from(file: fs::File) -> Result<File> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = fs::read_link(&link).unwrap_or_else(|_| link.into());
        File::from_std(Nowait::shared(), file, path)
    }
}

/// The descriptor, as [`File::descriptor`].
///
/// # Panics
/// For a file of a simulator, which has none.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().expect("a file of a simulator has no descriptor; ask File::descriptor")
    }
}

/// Std's file on a descriptor that is open elsewhere, for what std does by one call. It is not
/// closed: closing any descriptor of a file gives up the process's record locks on it (fcntl(2)).
fn to_std(fd: BorrowedFd<'_>) -> ManuallyDrop<fs::File> {
    // SAFETY: the descriptor is open while `fd` is borrowed, which is longer than the caller's one
    // call, and is never closed here.
    ManuallyDrop::new(unsafe { fs::File::from_raw_fd(fd.as_raw_fd()) })
}
