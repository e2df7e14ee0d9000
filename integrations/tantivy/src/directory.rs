//! The directory: names of files, whole files, locks.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nowait::fs::AtomicOptions;
use nowait::{Nowait, OpenOptions};
use nowait_cache::PageCache;
use rustix::fs::FlockOperation;
use tantivy::directory::error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError};
use tantivy::directory::{Directory, DirectoryLock, FileHandle, Lock, WatchCallback, WatchHandle, WritePtr};

use super::read::{IndexFile, Reads};
use super::watch::{META_NAME, Watch};
use super::write::Output;

/// Directory of an index, whose files are read and written through an instance of [`nowait`].
/// Clones share their state.
#[derive(Clone)]
pub struct NowaitDirectory(Arc<Inner>);

struct Inner {
    nowait: Nowait,
    root: PathBuf,
    reads: Reads,
    /// Files in use. The readers of one file share its descriptor, and what `nowait` learned about
    /// reading it.
    files: Mutex<HashMap<PathBuf, Weak<IndexFile>>>,
    watch: Watch,
}

impl NowaitDirectory {
    /// Opens an existing directory, on the instance that the process shares.
    ///
    /// # Errors
    /// As [`NowaitDirectory::open_in`].
    pub fn open(path: impl AsRef<Path>) -> Result<NowaitDirectory, OpenDirectoryError> {
        NowaitDirectory::open_in(Nowait::shared(), path)
    }

    /// Opens an existing directory, on the given instance.
    ///
    /// # Errors
    /// [`OpenDirectoryError::DoesNotExist`], [`OpenDirectoryError::NotADirectory`], and those of
    /// `realpath(3)`.
    pub fn open_in(nowait: &Nowait, path: impl AsRef<Path>) -> Result<NowaitDirectory, OpenDirectoryError> {
        NowaitDirectory::open_to_read(nowait, path.as_ref(), Reads::Mapped)
    }

    /// Opens an existing directory, on the given instance, without maps: each read copies. If a
    /// read fails, or if its range is in a part of the file that another process cut off, it
    /// returns an error instead of raising SIGBUS.
    ///
    /// # Errors
    /// As [`NowaitDirectory::open_in`].
    pub fn open_copying(nowait: &Nowait, path: impl AsRef<Path>) -> Result<NowaitDirectory, OpenDirectoryError> {
        NowaitDirectory::open_to_read(nowait, path.as_ref(), Reads::Copied)
    }

    /// Opens an existing directory, on the given instance, whose files are read through a page
    /// cache with direct I/O. A cached range within one page is not copied.
    ///
    /// tantivy keeps some ranges for as long as a searcher exists. Each directory lets them pin at
    /// most a quarter of the cache, and copies further ranges, so up to three directories can share a
    /// cache. If all pages stay pinned for [`wait_max`](nowait_cache::Builder::wait_max), a read
    /// copies from the file. If more directories or other leases share the cache, set `wait_max` to a
    /// few milliseconds.
    ///
    /// # Errors
    /// As [`NowaitDirectory::open_in`].
    pub fn open_cached(
        nowait: &Nowait,
        path: impl AsRef<Path>,
        cache: &PageCache,
    ) -> Result<NowaitDirectory, OpenDirectoryError> {
        NowaitDirectory::open_to_read(nowait, path.as_ref(), Reads::cached(cache))
    }

    fn open_to_read(nowait: &Nowait, path: &Path, reads: Reads) -> Result<NowaitDirectory, OpenDirectoryError> {
        let found = (|| {
            let root = nowait.fs().canonicalize(path).wait()?;
            let is_dir = nowait.fs().metadata(&root).wait()?.is_dir();
            Ok((root, is_dir))
        })();
        match found.map_err(|error: nowait::Error| io::Error::from(error)) {
            Ok((root, true)) => {
                let watch = Watch::new(nowait, &root);
                let files = Mutex::default();
                Ok(NowaitDirectory(Arc::new(Inner { nowait: nowait.clone(), root, reads, files, watch })))
            }
            Ok((_, false)) => Err(OpenDirectoryError::NotADirectory(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(OpenDirectoryError::DoesNotExist(path.to_owned()))
            }
            Err(error) => Err(OpenDirectoryError::wrap_io_error(error, path.to_owned())),
        }
    }

    /// Returns the absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.0.root
    }

    fn full_path(&self, path: &Path) -> PathBuf {
        self.0.root.join(path)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<PathBuf, Weak<IndexFile>>> {
        self.0.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for NowaitDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NowaitDirectory").field(&self.0.root).finish()
    }
}

impl Directory for NowaitDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        // Locked until the insertion, so that it cannot undo a concurrent deletion.
        let mut files = self.files();
        if let Some(file) = files.get(path).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = IndexFile::open(&self.0.nowait, &self.full_path(path), &self.0.reads);
        let file = Arc::new(file.map_err(|error| read_error(error, path))?);
        files.retain(|_, file| file.strong_count() > 0);
        files.insert(path.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.0.nowait.fs().remove_file(self.full_path(path)).wait().map_err(|error| match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::NotFound => DeleteError::FileDoesNotExist(path.to_owned()),
            error => DeleteError::IoError { io_error: Arc::new(error), filepath: path.to_owned() },
        })?;
        self.files().remove(path);
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.0.nowait.fs().exists(self.full_path(path)).wait().map_err(|error| read_error(error.into(), path))
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let full_path = self.full_path(path);
        let opened = OpenOptions::new().write(true).create_new(true).open_in(&self.0.nowait, full_path).wait();
        let file = opened.map_err(|error| match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::AlreadyExists => OpenWriteError::FileAlreadyExists(path.to_owned()),
            error => OpenWriteError::wrap_io_error(error, path.to_owned()),
        })?;
        // Another process may have deleted an earlier file of this name, which is still in the
        // table.
        self.files().remove(path);
        Ok(BufWriter::new(Box::new(Output::new(&file))))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.0.nowait.fs().read(self.full_path(path)).wait().map_err(|error| read_error(error.into(), path))
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let mut options = AtomicOptions::new();
        // Only a commit must be durable on return. A sync of the directory at other writes would be
        // costly: tantivy writes the list of managed files at each new file.
        options.sync_directory(path == Path::new(META_NAME));
        let written = options.write_in(&self.0.nowait, self.full_path(path), data.to_vec()).wait();
        self.files().remove(path);
        if path == Path::new(META_NAME) {
            self.0.watch.check();
        }
        Ok(written?)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(self.0.nowait.fs().sync_dir(&self.0.root).wait()?)
    }

    /// Locks the lock's file by `flock(2)`, as `MmapDirectory` does. Unlocking does not remove the
    /// file.
    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        // No data passes through this file, and nowait has no call that waits for a lock.
        let mut options = std::fs::OpenOptions::new();
        let opened = options.write(true).create(true).truncate(false).open(self.full_path(&lock.filepath));
        let file = opened.map_err(LockError::wrap_io_error)?;
        let how = match lock.is_blocking {
            true => FlockOperation::LockExclusive,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, how)) {
            // The lock ends when the file is closed.
            Ok(()) => Ok(DirectoryLock::from(Box::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::LockBusy),
            Err(errno) => Err(LockError::wrap_io_error(errno.into())),
        }
    }

    /// Invokes the callback at once for commits through this directory, and within half a second
    /// for those by other processes.
    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        Ok(self.0.watch.subscribe(callback)?)
    }
}

fn read_error(error: io::Error, path: &Path) -> OpenReadError {
    match error.kind() {
        io::ErrorKind::NotFound => OpenReadError::FileDoesNotExist(path.to_owned()),
        _ => OpenReadError::wrap_io_error(error, path.to_owned()),
    }
}
