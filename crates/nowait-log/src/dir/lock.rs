//! The lock of a log's directory: one process at a time writes a log.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{LOCK, LogDir};
use crate::os;
use nowait::{ErrorKind, ErrorOp, File, OpenOptions, Result, embed};

/// The lock of the directory, released on drop: also while a child of the process has copies of the
/// descriptors.
///
/// Two locks: that of the file `lock`, which every version of this library takes, and that of the
/// directory itself, which also holds after `lock` was removed. A simulated directory has none.
pub(crate) struct DirLock {
    file: File,
    dir: LogDir,
}

impl DirLock {
    pub(crate) fn take(dir: &LogDir) -> Result<DirLock> {
        let mut options = OpenOptions::new();
        let file = match dir.open_file(options.read(true).write(true), LOCK) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                dir.make_file(options.create(true), LOCK, dir.file_mode())?
            }
            file => file?,
        };
        let lock = DirLock { file, dir: dir.clone() };
        if let Some(fd) = lock.file.descriptor() {
            flock(fd, dir)?.map_err(|errno| os::system_error(ErrorOp::Open, errno, lock.file.path()))?;
        }
        if let Some(fd) = dir.descriptor() {
            // A directory cannot be locked everywhere: over NFS flock(2) is a byte-range lock,
            // which needs a file that is open for writing (fs/nfs/file.c, nfs_flock). The other
            // lock suffices there.
            let _ = flock(fd, dir)?;
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
        for fd in [self.dir.descriptor(), self.file.descriptor()].into_iter().flatten() {
            // Closing the descriptor would do, unless there is a copy of it.
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
    }
}

/// Takes one lock. The inner result is the kernel's answer where it has no such lock.
fn flock(fd: BorrowedFd<'_>, dir: &LogDir) -> Result<std::result::Result<(), Errno>> {
    // The descriptors of a killed process live on for a moment, while the kernel tears its rings
    // down.
    const TRIES: u32 = 6;
    const BETWEEN: Duration = Duration::from_millis(50);
    for last in (0..TRIES).rev() {
        match rustix::io::retry_on_intr(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) if last > 0 => std::thread::sleep(BETWEEN),
            Err(Errno::WOULDBLOCK) => break,
            answer => return Ok(answer),
        }
    }
    let error = os::error(ErrorOp::Open, ErrorKind::Locked, &dir.path);
    Err(error.with_advice("the log is open for writing, in this or another process; close it there first"))
}

/// A share of the lock, for a thread that outlives the log. A forked child leaves it as it is: only
/// the parent may release it.
#[derive(Clone)]
pub(crate) struct LentLock {
    lock: Option<Arc<DirLock>>,
    generation: u64,
}

impl LentLock {
    pub(crate) fn new(lock: Arc<DirLock>) -> LentLock {
        LentLock { lock: Some(lock), generation: embed::fork_generation() }
    }

    /// A share of a lock that others hold; None if the log has ended, and the directory is not its
    /// own any more.
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
