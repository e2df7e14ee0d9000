//! Calls for names in open directories.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use super::data::descriptor_path;

/// Mode of a file until its owner, attributes and ACL are set: only its owner has access. The final
/// mode would not be safe before: with an ACL, the group bits are the ACL's mask, which may grant
/// more than the group has.
pub(crate) const STAGED: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates an unnamed file in a directory's file system. Its mode admits no other user, since only
/// those who may trace this process can open the file (`/proc/PID/fd`).
pub(crate) fn create_unnamed(directory: BorrowedFd<'_>, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, c".", flags, mode))
}

/// Creates a file; fails if the name exists.
pub(crate) fn create_new(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, STAGED))
}

/// Opens or creates a file, without following a link.
pub(crate) fn open_or_create(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, STAGED))
}

/// Opens an existing file, without following a link.
pub(crate) fn open_existing(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::empty()))
}

/// Opens an entry of any type and mode with `O_PATH`, without following a link, for [`set_mode`]
/// and `fstat(2)`.
pub(crate) fn open_place(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::empty()))
}

/// Sets the mode of an entry from [`open_place`] through `/proc`, since `fchmod(2)` refuses such a
/// descriptor.
pub(crate) fn set_mode(place: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    let path = descriptor_path(place);
    retry_on_intr(|| rustix::fs::chmod(&path, mode))
}

/// Links an unnamed file by its descriptor alone (`AT_EMPTY_PATH`).
pub(crate) fn link_descriptor(file: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::linkat(file, c"", directory, name, AtFlags::EMPTY_PATH))
}

/// Links an unnamed file through `/proc`.
pub(crate) fn link_by_proc(file: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let path = descriptor_path(file);
    retry_on_intr(|| rustix::fs::linkat(CWD, &path, directory, name, AtFlags::SYMLINK_FOLLOW))
}

/// Renames within a directory, and replaces an existing entry.
pub(crate) fn rename(directory: BorrowedFd<'_>, from: &CStr, to: &CStr) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::renameat(directory, from, directory, to))
}

/// Renames within a directory; fails if the name exists (`RENAME_NOREPLACE`).
pub(crate) fn rename_new(directory: BorrowedFd<'_>, from: &CStr, to: &CStr) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE))
}

/// Removes a name. A missing name is no error.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match retry_on_intr(|| rustix::fs::unlinkat(directory, name, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Makes the names in a directory durable. A descriptor with `O_PATH` cannot be synced, so the
/// directory is then opened again.
pub(crate) fn sync_directory(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    match retry_on_intr(|| rustix::fs::fsync(directory)) {
        Err(Errno::BADF) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let readable = retry_on_intr(|| rustix::fs::openat(directory, c".", flags, Mode::empty()))?;
            retry_on_intr(|| rustix::fs::fsync(&readable))
        }
        result => result,
    }
}
