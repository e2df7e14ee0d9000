//! Locks of files, and of ranges of them.

use std::ffi::c_int;

use nowait::RangeLock;

use crate::border::{count, status};
use crate::failure::{Failure, Result};
use crate::file::{FILES, FileHandle};

/// Any number of opens may have the lock at a time. Of a range: the file has to be open for reading.
pub const NOWAIT_LOCK_SHARED: u32 = 1;
/// One open alone may have the lock. Of a range: the file has to be open for writing.
pub const NOWAIT_LOCK_EXCLUSIVE: u32 = 2;

/// Tries to lock the whole file (flock(2)). `kind` is one of NOWAIT_LOCK_...; a lock of this open
/// changes its kind, and if another open is in the way it may be lost by that.
///
/// The lock belongs to this open of the file. It excludes other opens, in this process or another, that
/// ask for it too; neither their reads and writes nor locks of ranges. Duplicates of the descriptor
/// and forked children share it: each may unlock it, and it ends when the last of them is closed. So
/// a child that lives on keeps it.
///
/// Returns 1 if it is locked now; 0 if another open is in the way: try again after a while; or a
/// negative errno: -EINVAL if `kind` is not known; -EBADF; -ENOLCK. Threads: any. It does not wait for
/// the lock; on a network file system it asks the server.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_try_lock(file: FileHandle, kind: u32) -> c_int {
    count(|| {
        let kind = lock(kind)?;
        let file = FILES.get(file)?;
        let is_locked = match kind {
            RangeLock::Shared => file.try_lock_shared(),
            RangeLock::Exclusive => file.try_lock(),
        };
        Ok(is_locked?.into())
    }) as c_int
}

/// Unlocks the whole file, for all who share this open. Returns 0, also if it was not locked, or a
/// negative errno. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_unlock(file: FileHandle) -> c_int {
    status(|| Ok(FILES.get(file)?.unlock()?))
}

/// Tries to lock `length` bytes from `offset` on; a length of 0 means all from there on, however far
/// the file grows. The bytes need not exist. `kind` is one of NOWAIT_LOCK_...; what this open has
/// locked already changes its kind, without a moment in between, or, where another open is in the
/// way, stays as it is.
///
/// The lock belongs to this open of the file (F_OFD_SETLK, fcntl(2)). It excludes other opens, in this
/// process or another, and record locks by F_SETLK, those of this process too; neither reads and
/// writes nor nowait_file_try_lock. Threads that use this handle share it, as do duplicates of the
/// descriptor and forked children: each may unlock it, and it ends when the last of them is closed.
/// The close of another open of the file leaves it. (Record locks end at the close of any: do not set
/// any by the descriptor of nowait_file_descriptor, since the library may have a second one.)
///
/// Returns 1 if it is locked now; 0 if another open is in the way: try again after a while; or a
/// negative errno: -EINVAL if `kind` is not known; -EACCES if the file is not open for what the kind
/// needs; -EOVERFLOW beyond INT64_MAX; -ENOLCK; -EBADF. Threads: any. It does not wait for the lock; on
/// a network file system it asks the server.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_try_lock_range(file: FileHandle, kind: u32, offset: u64, length: u64) -> c_int {
    count(|| {
        let kind = lock(kind)?;
        Ok(FILES.get(file)?.try_lock_range(kind, offset, length)?.into())
    }) as c_int
}

/// Unlocks `length` bytes from `offset` on, for all who share this open; a length of 0 means all from
/// there on. What is left of a longer lock on either side stays locked. Returns 0, also if nothing was
/// locked, or a negative errno: -EOVERFLOW beyond INT64_MAX; -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_unlock_range(file: FileHandle, offset: u64, length: u64) -> c_int {
    status(|| Ok(FILES.get(file)?.unlock_range(offset, length)?))
}

/// Whether another open has a lock that nowait_file_try_lock_range would meet: 1 or 0, or a negative
/// errno, as of that, except -EACCES. It takes no lock, and does not see those of this open. Threads:
/// any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_is_range_locked(file: FileHandle, kind: u32, offset: u64, length: u64) -> c_int {
    count(|| {
        let kind = lock(kind)?;
        Ok(FILES.get(file)?.is_range_locked(kind, offset, length)?.into())
    }) as c_int
}

fn lock(kind: u32) -> Result<RangeLock> {
    match kind {
        NOWAIT_LOCK_SHARED => Ok(RangeLock::Shared),
        NOWAIT_LOCK_EXCLUSIVE => Ok(RangeLock::Exclusive),
        _ => {
            Err(Failure::new(libc::EINVAL, format!("kind is {kind}; give NOWAIT_LOCK_SHARED or NOWAIT_LOCK_EXCLUSIVE")))
        }
    }
}
