//! The rest of `std::fs::File`: metadata, permissions, times, locks, and descriptors that come and go.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::File;
use crate::core::instance::Nowait;
use crate::direct;
use crate::engine::local;
use crate::error::{Error, ErrorOp, Result};
use crate::op::{Call, Handle, Request};
use crate::operation::{Operation, called};
use crate::sys;

impl File {
    /// Returns size, times, type and permissions (`statx(2)`).
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after `close`, [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulator, and what `statx(2)` reports.
    pub fn metadata(&self) -> Operation<'_, Result<fs::Metadata>> {
        self.call(ErrorOp::Metadata, |fd| to_std(fd)?.metadata())
    }

    /// Sets the permissions (`fchmod(2)`).
    ///
    /// # Errors
    /// As [`File::metadata`], of `fchmod(2)`.
    pub fn set_permissions(&self, permissions: fs::Permissions) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetPermissions, |fd| to_std(fd)?.set_permissions(permissions))
    }

    /// Sets the times of the last access and change (`futimens(2)`).
    ///
    /// # Errors
    /// As [`File::metadata`], of `futimens(2)`.
    pub fn set_times(&self, times: fs::FileTimes) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetTimes, move |fd| to_std(fd)?.set_times(times))
    }

    /// Waits for the file's exclusive lock: nobody else who asks has it, here or in another process (`flock(2)`).
    ///
    /// The lock belongs to this open of the file: its clones and [`try_clone`](File::try_clone)s have it too. It ends with
    /// [`unlock`](File::unlock), or with the last of them. A future that is dropped gives up the lock that it still gets.
    ///
    /// # Errors
    /// As [`File::metadata`], of `flock(2)`.
    pub fn lock(&self) -> Operation<'_, Result<()>> {
        self.locked(FlockOperation::LockExclusive)
    }

    /// Waits for a shared lock: others may have one too, and nobody an exclusive one. Else as [`File::lock`].
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn lock_shared(&self) -> Operation<'_, Result<()>> {
        self.locked(FlockOperation::LockShared)
    }

    /// Takes the file's exclusive lock unless another has one; returns whether it did. Else as [`File::lock`].
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn try_lock(&self) -> Operation<'_, Result<bool>> {
        self.try_locked(FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes a shared lock unless another has the exclusive one; returns whether it did. Else as [`File::lock`].
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn try_lock_shared(&self) -> Operation<'_, Result<bool>> {
        self.try_locked(FlockOperation::NonBlockingLockShared)
    }

    /// Gives up the lock, if there is one.
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn unlock(&self) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::Lock, |fd| Ok(rustix::fs::flock(fd, FlockOperation::Unlock)?))
    }

    fn locked(&self, operation: FlockOperation) -> Operation<'_, Result<()>> {
        let call = self.to_call(ErrorOp::Lock, move |fd| Held::lock(fd, operation));
        self.simple(call, |answer| called::<Held>(answer).map(Held::keep))
    }

    fn try_locked(&self, operation: FlockOperation) -> Operation<'_, Result<bool>> {
        let call = self.to_call(ErrorOp::Lock, move |fd| match Held::lock(fd, operation) {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        });
        self.simple(call, |answer| Ok(called::<Option<Held>>(answer)?.map(Held::keep).is_some()))
    }

    fn call<T: Send + 'static>(
        &self,
        operation: ErrorOp,
        function: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> Operation<'_, Result<T>> {
        self.simple(self.to_call(operation, function), called)
    }

    fn to_call<T: Send + 'static>(
        &self,
        operation: ErrorOp,
        function: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> Request {
        let call = |_: &Path, fd: Option<BorrowedFd<'_>>| function(fd.ok_or(Errno::BADF)?);
        Request::Call(Box::new(Call::new(operation, self.path(), call)))
    }

    /// Duplicates the descriptor (`F_DUPFD_CLOEXEC`, `fcntl(2)`): a file that is closed by itself, with the same position,
    /// lock and flags. Never waits. For a share of this file there is [`Clone`], which costs no descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after `close`, [`ErrorKind::TooManyFiles`](crate::ErrorKind::TooManyFiles), [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulator.
    pub fn try_clone(&self) -> Result<File> {
        let error = |errno| self.0.error(ErrorOp::Duplicate, errno);
        self.0.check(0, 0).map_err(error)?;
        let fd = self.descriptor().ok_or(Errno::OPNOTSUPP).map_err(error)?;
        let fd = sys::retry(|| rustix::io::fcntl_dupfd_cloexec(fd, 0)).map_err(error)?;
        let directness = direct::look(fd.as_fd());
        Ok(File::new(Handle::Descriptor(fd), directness, self.0.path.clone(), self.0.instance.clone()))
    }

    /// Gives the descriptor back as std's file, if nothing else uses this one: no clone, map or stream, and no operation,
    /// also none whose future was dropped ([`Nowait::drain`] waits for those).
    ///
    /// # Errors
    /// The file, if it is in use or of a simulator.
    pub fn into_std(self) -> std::result::Result<fs::File, File> {
        if self.descriptor().is_none() {
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

/// Takes over an open file on the instance that the process shares; see [`File::from_std`]. Errors name the path that
/// `/proc/self/fd` has for it.
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

/// A lock that nobody has been told of. Dropped, it is given up.
struct Held(Option<OwnedFd>);

impl Held {
    fn lock(fd: BorrowedFd<'_>, operation: FlockOperation) -> io::Result<Held> {
        // Before the lock, since it can fail.
        let own = fd.try_clone_to_owned()?;
        sys::retry(|| rustix::fs::flock(fd, operation))?;
        Ok(Held(Some(own)))
    }

    /// The lock is the file's from now on.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(fd) = &self.0 {
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
    }
}

/// A file of std's on a descriptor of its own, for what std does by one call.
fn to_std(fd: BorrowedFd<'_>) -> io::Result<fs::File> {
    fd.try_clone_to_owned().map(fs::File::from)
}
