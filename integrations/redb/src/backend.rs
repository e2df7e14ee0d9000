//! The backend: data through nowait, locks by redb.

use std::io;
use std::ops::Bound;
use std::path::Path;

use nowait::{ErrorKind, File, Nowait, OpenOptions};
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// Database file that is read, written and synced through [`nowait`].
#[derive(Debug)]
pub struct NowaitBackend {
    file: File,
    /// redb's own backend, on a duplicate of the descriptor, which shares the locks. Only redb's
    /// code knows which locks exclude which versions of redb. `None` for a simulated file, which
    /// has no locks.
    locks: Option<FileBackend>,
}

impl NowaitBackend {
    /// Opens a file, and creates it if it does not exist, on the instance that the process shares.
    ///
    /// # Errors
    /// As [`NowaitBackend::create_in`].
    pub fn create(path: impl AsRef<Path>) -> io::Result<NowaitBackend> {
        NowaitBackend::create_in(Nowait::shared(), path)
    }

    /// Opens a file, and creates it if it does not exist, on the given instance. Makes the name of
    /// an empty file durable, so that a crash cannot lose the file and its commits.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open_in`], [`canonicalize`](nowait::fs::canonicalize),
    /// [`sync_dir`](nowait::fs::sync_dir) and [`NowaitBackend::new`].
    pub fn create_in(nowait: &Nowait, path: impl AsRef<Path>) -> io::Result<NowaitBackend> {
        let path = path.as_ref();
        let file = OpenOptions::new().read(true).write(true).create(true).open_in(nowait, path).wait()?;
        if file.size().wait()? == 0 {
            // The path may be a symbolic link to a file in another directory.
            let target = match nowait.fs().canonicalize(path).wait() {
                // A simulated disk has no links.
                Err(error) if error.kind() == ErrorKind::Unsupported => path.to_owned(),
                target => target?,
            };
            let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            nowait.fs().sync_dir(parent.unwrap_or(Path::new("."))).wait()?;
        }
        NowaitBackend::new(file)
    }

    /// Opens an existing file for [`open_read_only_with_backend`], on the instance that the process
    /// shares.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open_in`] and [`NowaitBackend::new`].
    ///
    /// [`open_read_only_with_backend`]: redb::Builder::open_read_only_with_backend
    pub fn open_read_only(path: impl AsRef<Path>) -> io::Result<NowaitBackend> {
        NowaitBackend::new(File::open(path).wait()?)
    }

    /// Uses an open file, of any instance. All clones of the file share the database's locks.
    ///
    /// # Errors
    /// [`nowait::ErrorKind::Closed`] if the file is closed, and those of `dup(2)`.
    pub fn new(file: File) -> io::Result<NowaitBackend> {
        let locks = match file.descriptor() {
            Some(descriptor) => {
                let duplicate = std::fs::File::from(descriptor.try_clone_to_owned()?);
                Some(FileBackend::new(duplicate).map_err(io::Error::other)?)
            }
            None => None,
        };
        Ok(NowaitBackend { file, locks })
    }

    fn locks(&self) -> Result<&FileBackend, BackendError> {
        self.locks.as_ref().ok_or(BackendError::Unsupported)
    }
}

impl StorageBackend for NowaitBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.size().wait()?)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Ok(self.file.read_exact_into(out, offset)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(self.file.set_len(len).wait()?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.file.sync_data().wait()?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.file.write_all_from(data, offset)?)
    }

    fn close(&self) -> io::Result<()> {
        self.locks.as_ref().map_or(Ok(()), StorageBackend::close)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks()?.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks()?.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks()?.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks()?.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks()?.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks()?.query_lock_range(start, end)
    }
}
