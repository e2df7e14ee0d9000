//! The lock of a log's directory: only one process at a time writes a log.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{LOCK, LogDir};
use crate::os;
use nowait::{ErrorKind, ErrorOp, File, OpenOptions, Result, TryLockError, embed};

/// The lock of the directory. Dropping it releases the lock, even if a child process has copies of
/// the descriptors.
///
/// It consists of two locks. One is on the file `lock`, which every version of this library takes.
/// The other is on the directory, so that it survives the removal of `lock`. A simulated directory
/// has neither.
pub(crate) struct DirLock {
    file: File,
    dir: LogDir,
    /// Windows cannot lock a directory. There, `lock` cannot be removed while this exists.
    _name: Option<os::HeldName>,
}

impl DirLock {
    pub(crate) fn take(dir: &LogDir) -> Result<DirLock> {
        // Held before `lock` is opened, so that both are the same file.
        let path = dir.path.join(LOCK);
        let name = dir.descriptor().map(|_| os::hold_name(&path)).transpose();
        let name = name.map_err(|error| os::system_error(ErrorOp::Open, &error, &path))?;
        let mut options = OpenOptions::new();
        let file = match dir.open_file(options.read(true).write(true), LOCK) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                dir.make_file(options.create(true), LOCK, dir.file_mode())?
            }
            file => file?,
        };
        let lock = DirLock { file, dir: dir.clone(), _name: name };
        if lock.is_held() {
            take(dir, || match lock.file.try_lock() {
                Ok(()) => Ok(true),
                Err(TryLockError::WouldBlock) => Ok(false),
                Err(TryLockError::Error(error)) => Err(error),
            })??;
        }
        if let Some(open) = dir.descriptor() {
            // Not every file system can lock a directory: over NFS, flock(2) is a byte-range lock,
            // which needs a file open for writing (fs/nfs/file.c, nfs_flock). The lock of the file
            // suffices there.
            let _ = take(dir, || os::lock_dir(open))?;
        }
        Ok(lock)
    }

    /// False on a simulator.
    pub(crate) fn is_held(&self) -> bool {
        self.file.descriptor().is_some()
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing the descriptor releases the lock only if no copy of the descriptor exists.
        self.dir.descriptor().into_iter().for_each(os::unlock_dir);
        let _ = self.file.unlock();
    }
}

/// Takes one lock by `lock`, which returns false while another open holds it. The inner error is that of
/// `lock`, such as that of a file system without such locks.
fn take<E>(dir: &LogDir, lock: impl Fn() -> std::result::Result<bool, E>) -> Result<std::result::Result<(), E>> {
    // The descriptors of a killed process stay open briefly, while the kernel tears down its rings.
    const TRIES: u32 = 6;
    const BETWEEN: Duration = Duration::from_millis(50);
    for last in (0..TRIES).rev() {
        match lock() {
            Ok(true) => return Ok(Ok(())),
            Ok(false) if last > 0 => std::thread::sleep(BETWEEN),
            Ok(false) => break,
            Err(error) => return Ok(Err(error)),
        }
    }
    let error = os::error(ErrorOp::Open, ErrorKind::Locked, &dir.path);
    Err(error.with_advice("the log is open for writing, in this or another process; close it there first"))
}

/// A share of the lock, for a thread that may outlive the log. A forked child never releases it:
/// only the parent may.
#[derive(Clone)]
pub(crate) struct LentLock {
    lock: Option<Arc<DirLock>>,
    generation: u64,
}

impl LentLock {
    pub(crate) fn new(lock: Arc<DirLock>) -> LentLock {
        LentLock { lock: Some(lock), generation: embed::fork_generation() }
    }

    /// Returns a share of the lock; None if the log has ended and released the directory.
    pub(crate) fn of(lock: &Weak<DirLock>) -> Option<LentLock> {
        lock.upgrade().map(LentLock::new)
    }
}

impl Drop for LentLock {
    fn drop(&mut self) {
        if embed::fork_generation() != self.generation {
            std::mem::forget(self.lock.take());
        }
    }
}
