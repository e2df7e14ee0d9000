//! A file of a database: data through nowait, locks as turso's own.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nowait::{Lent, Nowait};
use rustix::fs::FlockOperation;
use turso_core::io::FileSyncType;
use turso_core::{Buffer, Completion, CompletionError, File, LimboError, io_error};

use super::in_flight::{InFlight, Moved, OfFile, Operation, call, in_completion};

/// File of a [`NowaitIo`](super::NowaitIo).
pub(super) struct NowaitFile {
    nowait: Nowait,
    /// `None` only during the drop.
    file: Option<nowait::File>,
    /// Directory of the file, if this process may have created the file. A process that created it before
    /// may have been killed before it synced the directory.
    dir: Option<PathBuf>,
    /// Whether the directory was synced.
    is_named: Arc<AtomicBool>,
    all: Arc<InFlight>,
    in_flight: OfFile,
    /// Whether each call blocks until its operation has ended.
    blocks: bool,
}

/// A buffer of turso. An operation keeps it until the kernel is done, even if turso abandons the operation.
struct Shared(Arc<Buffer>);

impl AsMut<[u8]> for Shared {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice()
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

fn failed(error: impl Into<io::Error>, operation: &'static str) -> CompletionError {
    CompletionError::IOError(error.into().kind(), operation)
}

impl NowaitFile {
    pub(super) fn new(
        nowait: &Nowait,
        file: nowait::File,
        dir: Option<PathBuf>,
        all: Arc<InFlight>,
        blocks: bool,
    ) -> NowaitFile {
        let (is_named, in_flight) = (Arc::default(), Arc::default());
        NowaitFile { nowait: nowait.clone(), file: Some(file), dir, is_named, all, in_flight, blocks }
    }

    fn file(&self) -> &nowait::File {
        self.file.as_ref().expect("not dropped")
    }

    fn begin(&self, completion: &Completion) -> Operation {
        self.all.begin(&self.in_flight, completion)
    }

    /// Locks or unlocks the file for this process, as turso's own files do.
    fn lock(&self, operation: FlockOperation) -> io::Result<()> {
        let descriptor = self.file().descriptor().ok_or(io::ErrorKind::Unsupported)?;
        Ok(rustix::fs::fcntl_lock(descriptor, operation)?)
    }
}

/// Converts the result of an operation without bytes.
fn without_bytes(ended: nowait::Result<()>, name: &'static str) -> Moved {
    ended.map(|()| 0).map_err(|error| failed(error, name))
}

impl fmt::Debug for NowaitFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NowaitFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl File for NowaitFile {
    fn lock_file(&self, exclusive: bool) -> Result<(), LimboError> {
        let operation = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        self.lock(operation).map_err(|error| {
            let path = self.file().path().display();
            LimboError::LockingError(match error.kind() {
                io::ErrorKind::WouldBlock => {
                    format!("Failed locking file '{path}'. File is locked by another process")
                }
                _ => format!("Failed locking file '{path}', {error}"),
            })
        })
    }

    fn unlock_file(&self) -> Result<(), LimboError> {
        let unlocked = self.lock(FlockOperation::NonBlockingUnlock);
        unlocked.map_err(|error| LimboError::LockingError(format!("Failed to release file lock: {error}")))
    }

    fn pread(&self, pos: u64, c: Completion) -> Result<Completion, LimboError> {
        let buffer = c.as_read().buf_arc();
        let now = match self.blocks {
            true => Some(self.file().read_into(buffer.as_mut_slice(), pos)),
            // Only for cached data. An error here is dropped: the operation below reports its own.
            false => self.file().try_read_into(buffer.as_mut_slice(), pos).filter(|read| read.is_ok()),
        };
        match now {
            Some(read) => call(&c, read.map_err(|error| failed(error, "pread"))),
            None => {
                let operation = self.begin(&c);
                self.file().read_at(Lent::new(Shared(buffer)), pos).on_complete(move |read| {
                    // Drops the buffer before the completion is called.
                    operation.end(read.map(|(bytes, _)| bytes).map_err(|error| failed(error, "pread")));
                });
            }
        }
        Ok(c)
    }

    fn pwrite(&self, pos: u64, buffer: Arc<Buffer>, c: Completion) -> Result<Completion, LimboError> {
        self.pwritev(pos, vec![buffer], c)
    }

    fn pwritev(&self, pos: u64, buffers: Vec<Arc<Buffer>>, c: Completion) -> Result<Completion, LimboError> {
        let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let moved = move |written: nowait::Moved<Vec<Bytes>>| -> Moved {
            match written {
                Ok((bytes, _)) if bytes == length => Ok(bytes),
                Ok(_) => Err(CompletionError::ShortWrite),
                Err(error) => Err(failed(error, "pwrite")),
            }
        };
        let buffers: Vec<_> = buffers.into_iter().map(|buffer| Bytes::from_owner(Shared(buffer))).collect();
        let write = self.file().write_vectored_at(buffers, pos);
        if self.blocks {
            call(&c, moved(write.wait()));
            return Ok(c);
        }
        let mut write = write.start();
        // Ready if the write was not expected to block.
        match Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(written) => call(&c, moved(written)),
            Poll::Pending => {
                let operation = self.begin(&c);
                write.on_complete(move |written| operation.end(moved(written)));
            }
        }
        Ok(c)
    }

    fn sync(&self, c: Completion, _: FileSyncType) -> Result<Completion, LimboError> {
        let dir = self.dir.as_ref().filter(|_| !self.is_named.load(Ordering::Acquire));
        let names = dir.map(|dir| self.nowait.fs().sync_dir(dir));
        let (file, is_named) = (self.file().clone(), self.is_named.clone());
        let named = move |synced: &nowait::Result<()>| is_named.store(synced.is_ok(), Ordering::Release);
        if self.blocks {
            let synced = names.map_or(Ok(()), |names| {
                let synced = names.wait();
                named(&synced);
                synced
            });
            let synced = synced.and_then(|()| file.sync_data().wait());
            call(&c, without_bytes(synced, "sync"));
            return Ok(c);
        }
        let operation = self.begin(&c);
        let ends = move |synced| operation.end(without_bytes(synced, "sync"));
        match names {
            None => file.sync_data().on_complete(ends),
            Some(names) => names.on_complete(move |synced| {
                named(&synced);
                match synced {
                    Ok(()) => {
                        let sync = file.sync_data().submit();
                        // The drop of `NowaitFile` closes the descriptor, and may come after this operation
                        // has ended.
                        drop(file);
                        sync.on_complete(ends);
                    }
                    Err(error) => ends(Err(error)),
                }
            }),
        }
        Ok(c)
    }

    fn size(&self) -> Result<u64, LimboError> {
        self.file().size().wait().map_err(|error| io_error(error.into(), "size"))
    }

    fn truncate(&self, len: u64, c: Completion) -> Result<Completion, LimboError> {
        let cut = self.file().set_len(len);
        if self.blocks {
            call(&c, without_bytes(cut.wait(), "truncate"));
            return Ok(c);
        }
        let operation = self.begin(&c);
        cut.on_complete(move |cut| operation.end(without_bytes(cut, "truncate")));
        Ok(c)
    }
}

impl Drop for NowaitFile {
    fn drop(&mut self) {
        // Fails only if nothing was locked.
        let _ = self.unlock_file();
        // Closing any descriptor of a file releases all record locks that the process holds on the file. So
        // close this descriptor here: later, the file may be open and locked again.
        if !in_completion() {
            self.all.settle(&self.in_flight);
        }
        if let Some(file) = self.file.take() {
            // Even a failed close releases the descriptor.
            let _ = file.close();
        }
    }
}
