//! Replaces `FileBackend` in redb's tests.

#[path = "../record_test.rs"]
mod record_test;

use std::fs::File;
use std::io;
use std::ops::Bound;

use self::record_test::record_test;
use super::nowait_backend::NowaitBackend;
use crate::{BackendError, DatabaseError, StorageBackend};

#[derive(Debug)]
pub struct FileBackend(NowaitBackend);

impl FileBackend {
    pub fn new(file: File) -> Result<Self, DatabaseError> {
        Ok(Self::from_file(file))
    }

    pub(crate) fn from_file(file: File) -> Self {
        record_test();
        FileBackend(NowaitBackend::new(nowait::File::try_from(file).unwrap()).unwrap())
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}

/// Fails if a database is not written and read through nowait.
#[test]
fn nowait_serves_a_database() {
    let before = nowait::Nowait::shared().stats().ended();
    let file = crate::create_tempfile();
    let table: crate::TableDefinition<u64, u64> = crate::TableDefinition::new("table");
    let write = crate::Database::create(file.path()).unwrap().begin_write().unwrap();
    write.open_table(table).unwrap().insert(1, 2).unwrap();
    write.commit().unwrap();
    let operations = nowait::Nowait::shared().stats().ended() - before;
    assert!(operations > 10, "only {operations} operations");
}
