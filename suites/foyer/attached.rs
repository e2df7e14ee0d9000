//! An I/O engine of foyer on nowait. Compiled as a module of foyer-storage, which keeps the types of
//! its trait `IoEngine` private.

#[path = "../record_test.rs"]
mod record_test;

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use foyer_common::error::{Error, Result};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use nowait::{BufferResult, File, Lent, Nowait};

use self::record_test::record_test;
use crate::io::bytes::{IoB, IoBuf, IoBufMut};
use crate::io::device::{Partition, RawFile};
use crate::io::engine::{IoEngine, IoEngineBuildContext, IoEngineConfig, IoHandle};
#[cfg(test)]
use crate::io::{
    bytes::IoSliceMut,
    device::{DeviceBuilder, file::FileDeviceBuilder},
};

/// Stands for `PsyncIoEngineConfig` in foyer's tests.
#[derive(Debug, Default)]
pub struct NowaitIoEngineConfig {}

impl NowaitIoEngineConfig {
    pub fn new() -> Self {
        Self::default()
    }
}

impl From<NowaitIoEngineConfig> for Box<dyn IoEngineConfig> {
    fn from(config: NowaitIoEngineConfig) -> Self {
        config.boxed()
    }
}

impl IoEngineConfig for NowaitIoEngineConfig {
    fn build(self: Box<Self>, _: IoEngineBuildContext) -> BoxFuture<'static, Result<Arc<dyn IoEngine>>> {
        record_test();
        async { Ok(Arc::new(NowaitIoEngine::default()) as Arc<dyn IoEngine>) }.boxed()
    }
}

#[derive(Debug, Default)]
pub struct NowaitIoEngine {
    /// A duplicate of each descriptor that was used, so that an operation may outlive the device.
    files: Mutex<HashMap<Key, File>>,
}

/// A descriptor, and the file that it was of: a closed one's number is used again.
type Key = (i32, u64, u64);

impl NowaitIoEngine {
    fn file(&self, raw: &RawFile) -> io::Result<File> {
        // SAFETY: the partition owns the descriptor, and is borrowed during this call.
        let duplicate = unsafe { BorrowedFd::borrow_raw(raw.0) }.try_clone_to_owned();
        let file = fs::File::from(duplicate?);
        let metadata = file.metadata()?;
        let mut files = self.files.lock().unwrap();
        let key = (raw.0, metadata.dev(), metadata.ino());
        if let Some(file) = files.get(&key) {
            return Ok(file.clone());
        }
        let file = File::from_std(Nowait::shared(), file, "foyer")?;
        files.insert(key, file.clone());
        Ok(file)
    }
}

/// Lends a buffer to an operation, and takes it back from its result. If the future is dropped before,
/// the operation keeps the buffer until the kernel is done.
async fn transfer<B, F>(
    file: io::Result<File>,
    buffer: Box<B>,
    operation: impl FnOnce(File, Lent) -> F,
) -> (Box<B>, Result<()>)
where
    B: IoB + ?Sized,
    F: Future<Output = BufferResult<Lent>>,
{
    let file = match file {
        Ok(file) => file,
        Err(error) => return (buffer, Err(Error::io_error(error))),
    };
    let (start, length) = buffer.as_raw_parts();
    let buffer = Arc::new(buffer);
    // SAFETY: the bytes stay at their address until the last clone is dropped, and foyer, which gave up
    // the buffer, changes none of them meanwhile.
    let lent = unsafe { Lent::from_raw(NonNull::new(start).unwrap(), length, buffer.clone()) };
    let result = operation(file, lent).await;
    let result = result.map(drop).map_err(|failed| Error::io_error(failed.error.into()));
    (Arc::into_inner(buffer).expect("the operation has ended"), result)
}

impl IoEngine for NowaitIoEngine {
    fn read(&self, buffer: Box<dyn IoBufMut>, partition: &dyn Partition, offset: u64) -> IoHandle {
        let (raw, offset) = partition.translate(offset);
        let file = self.file(&raw);
        let read = async move {
            let read = |file: File, lent| async move { file.read_exact_at(lent, offset).await };
            let (buffer, result) = transfer(file, buffer, read).await;
            (buffer.into_iob(), result)
        };
        read.boxed().into()
    }

    fn write(&self, buffer: Box<dyn IoBuf>, partition: &dyn Partition, offset: u64) -> IoHandle {
        let (raw, offset) = partition.translate(offset);
        let file = self.file(&raw);
        let write = async move {
            let write = |file: File, lent| async move { file.write_all_at(lent, offset).await };
            let (buffer, result) = transfer(file, buffer, write).await;
            (buffer.into_iob(), result)
        };
        write.boxed().into()
    }
}

/// Fails if the engine does not write and read through nowait.
#[test]
fn nowait_serves_an_engine() {
    let before = Nowait::shared().stats().ended();
    let dir = tempfile::tempdir().unwrap();
    let device = FileDeviceBuilder::new(dir.path().join("device")).with_capacity(1 << 20).build().unwrap();
    let partition = device.create_partition(1 << 20).unwrap();
    let engine = NowaitIoEngine::default();
    let page = || {
        let mut page = Box::new(IoSliceMut::new(8192));
        page.fill(7);
        page
    };
    let (_, written) = nowait::block_on(engine.write(page(), &*partition, 4096));
    written.unwrap();
    let (_, read) = nowait::block_on(engine.read(page(), &*partition, 4096));
    read.unwrap();
    assert_eq!(Nowait::shared().stats().ended() - before, 2);
}
