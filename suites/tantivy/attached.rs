//! Replaces `RamDirectory` and `MmapDirectory` in tantivy's tests.

#[path = "../record_test.rs"]
mod record_test;

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use tempfile::TempDir;

use self::record_test::record_test;
use super::error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError};
use super::nowait_directory::NowaitDirectory;
use super::{Directory, DirectoryLock, FileHandle, Lock, WatchCallback, WatchHandle, WritePtr};

/// A directory on nowait, in a temporary folder unless it was opened by its path.
#[derive(Clone, Debug)]
pub struct Attached {
    // Dropped before its folder.
    directory: NowaitDirectory,
    _folder: Option<Arc<TempDir>>,
}

impl Default for Attached {
    fn default() -> Self {
        Attached::create()
    }
}

impl Attached {
    pub fn create() -> Attached {
        Attached::create_from_tempdir().unwrap()
    }

    pub fn create_from_tempdir() -> Result<Attached, OpenDirectoryError> {
        let folder = TempDir::new().map_err(|error| OpenDirectoryError::FailedToCreateTempDir(Arc::new(error)))?;
        let attached = Attached::open(folder.path())?;
        Ok(Attached { _folder: Some(Arc::new(folder)), ..attached })
    }

    pub fn open(path: impl AsRef<Path>) -> Result<Attached, OpenDirectoryError> {
        record_test();
        Ok(Attached { directory: NowaitDirectory::open(path)?, _folder: None })
    }

    pub fn total_mem_usage(&self) -> usize {
        let sizes = fs::read_dir(self.directory.path()).unwrap();
        sizes.map(|entry| entry.unwrap().metadata().map_or(0, |metadata| metadata.len() as usize)).sum()
    }
}

impl Directory for Attached {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.directory.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.directory.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.directory.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.directory.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.directory.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.directory.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.directory.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> crate::Result<WatchHandle> {
        self.directory.watch(callback)
    }
}

/// Fails if an index is not written and read through nowait.
#[test]
fn nowait_serves_an_index() {
    let before = nowait::Nowait::shared().stats().ended();
    let mut schema = crate::schema::Schema::builder();
    let text = schema.add_text_field("text", crate::schema::TEXT);
    let index = crate::Index::create_in_ram(schema.build());
    let mut writer: crate::IndexWriter = index.writer_for_tests().unwrap();
    writer.add_document(crate::doc!(text => "a")).unwrap();
    writer.commit().unwrap();
    assert_eq!(index.reader().unwrap().searcher().num_docs(), 1);
    let operations = nowait::Nowait::shared().stats().ended() - before;
    assert!(operations > 50, "only {operations} operations");
}
