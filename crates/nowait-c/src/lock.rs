//! Locks of files, and of ranges of them.

use std::ffi::c_int;

use nowait::{RangeLock, TryLockError};

use crate::border::{count, status};
use crate::failure::{Failure, Result};
use crate::file::{FILES, FileHandle};

/// Shared lock: several opens may hold it at a time. For a range, the file must be open for
/// reading.
pub const NOWAIT_LOCK_SHARED: u32 = 1;
/// Exclusive lock: only one open may hold it. For a range, the file must be open for writing.
pub const NOWAIT_LOCK_EXCLUSIVE: u32 = 2;

/// Tries to lock the whole file (flock(2)). `kind` is one of NOWAIT_LOCK_... If this open has a
/// lock of the other kind, the call converts it. A conversion that fails because of another open
/// may lose the lock.
///
/// The lock belongs to this open of the file. It excludes whole-file locks through other opens, in
/// this process or another. It does not exclude reads, writes and locks of ranges. Duplicates of
/// the descriptor and forked children share it: each may unlock it, and it ends when the last of
/// them is closed. So a child that outlives its parent keeps it.
///
/// Returns 1 if the file is locked now; 0 if another open holds a conflicting lock: try again
/// later; or a negative errno: -EINVAL for an unknown `kind`; -EBADF; -ENOLCK. Threads: any. The
/// call does not wait for the lock; on a network file system it asks the server.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_try_lock(file: FileHandle, kind: u32) -> c_int {
    count(|| {
        let kind = lock(kind)?;
        let file = FILES.get(file)?;
        taken(match kind {
            RangeLock::Shared => file.try_lock_shared(),
            RangeLock::Exclusive => file.try_lock(),
        })
    }) as c_int
}

/// Unlocks the whole file, for all descriptors and processes that share this open. Returns 0, also
/// if it was not locked, or a negative errno. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_unlock(file: FileHandle) -> c_int {
    status(|| Ok(FILES.get(file)?.unlock()?))
}

/// Tries to lock `length` bytes from `offset` on; a length of 0 means everything from there on,
/// however far the file grows. The bytes need not exist. `kind` is one of NOWAIT_LOCK_... If this
/// open has already locked some of the bytes, the call converts their lock without unlocking them.
/// If another open holds a conflicting lock, existing locks stay unchanged.
///
/// The lock belongs to this open of the file (F_OFD_SETLK, fcntl(2)). It excludes locks through
/// other opens, in this process or another, and record locks by F_SETLK, including those of this
/// process. It does not exclude reads, writes and nowait_file_try_lock. Threads that use this
/// handle, duplicates of the descriptor and forked children share the lock. Each may unlock it, and
/// it ends when the last of them is closed. Closing another open of the file does not release it.
/// (Record locks end when any descriptor of the file is closed. Do not set any through
/// nowait_file_descriptor, since the library may close a second descriptor.)
///
/// Returns 1 if the range is locked now; 0 if another open holds a conflicting lock: try again
/// later; or a negative errno: -EINVAL for an unknown `kind`; -EACCES if the file is not open for
/// reading (shared) or writing (exclusive); -EOVERFLOW beyond INT64_MAX; -ENOLCK; -EBADF. Threads:
/// any. The call does not wait for the lock; on a network file system it asks the server.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_try_lock_range(file: FileHandle, kind: u32, offset: u64, length: u64) -> c_int {
    count(|| {
        let kind = lock(kind)?;
        taken(FILES.get(file)?.try_lock_range(kind, offset, length))
    }) as c_int
}

/// Unlocks `length` bytes from `offset` on, for all descriptors and processes that share this open;
/// a length of 0 means everything from there on. The parts of a longer lock outside the range stay
/// locked. Returns 0, also if nothing was locked, or a negative errno: -EOVERFLOW beyond INT64_MAX;
/// -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_unlock_range(file: FileHandle, offset: u64, length: u64) -> c_int {
    status(|| Ok(FILES.get(file)?.unlock_range(offset, length)?))
}

/// Returns 1 if a lock of another open would make nowait_file_try_lock_range fail, 0 if not; or a
/// negative errno of that call, except -EACCES. The call takes no lock, and ignores locks of this
/// open. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_is_range_locked(file: FileHandle, kind: u32, offset: u64, length: u64) -> c_int {
    count(|| {
        let kind = lock(kind)?;
        Ok(FILES.get(file)?.is_range_locked(kind, offset, length)?.into())
    }) as c_int
}

/// Returns 1 if the lock was taken, and 0 if another open holds a conflicting lock.
fn taken(lock: std::result::Result<(), TryLockError>) -> Result<usize> {
    match lock {
        Ok(()) => Ok(1),
        Err(TryLockError::WouldBlock) => Ok(0),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
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
