//! Objects as files: everything that does not depend on a release of `object_store`.
//!
//! Futures of `nowait` make all calls that may block. Opens, reads and writes are futures of files;
//! changes of names are one call of [`embed::blocking`] for each request.

mod change;
mod read;
mod stage;
mod system;
mod upload;
mod walk;

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use nowait::{Error, ErrorKind, ErrorOp, Nowait, Result, embed};

pub(crate) use self::stage::is_staged;
pub(crate) use self::system::key;
pub(crate) use self::upload::Upload;
pub(crate) use self::walk::list;
use crate::options::Options;

/// A directory of objects.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) root: PathBuf,
    options: Options,
    /// Devices that have refused to clone a file.
    no_clones: Mutex<Vec<u64>>,
}

impl Files {
    pub(crate) fn new(root: PathBuf, options: Options) -> Files {
        Files { root, options, no_clones: Mutex::default() }
    }

    /// Returns the path of an object or a prefix.
    ///
    /// # Errors
    /// Why the system would read another path from it.
    pub(crate) fn path_of(&self, location: &str) -> std::result::Result<PathBuf, &'static str> {
        system::below(&self.root, location)
    }

    fn nowait(&self) -> &Nowait {
        &self.options.nowait
    }

    /// Makes a call that may block. If the future is dropped, the call is completed or never begun.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: ErrorOp,
        path: &Path,
        call: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        embed::blocking(self.nowait(), operation, path, call).await?
    }

    fn may_clone(&self, device: u64) -> bool {
        !self.no_clones.lock().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    fn cannot_clone(&self, device: u64) {
        let mut devices = self.no_clones.lock().unwrap_or_else(PoisonError::into_inner);
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
}

/// Size, time and identity of an object.
#[derive(Clone, Debug)]
pub(crate) struct Stat {
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
    inode: u64,
    /// Size as `stat(2)` reports it. Files in /proc report zero, whatever they contain.
    reported_size: u64,
    /// Not a device, which has no end.
    is_regular: bool,
}

impl Stat {
    fn of(metadata: &Metadata) -> Stat {
        // Never an error on Linux.
        let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
        Stat {
            size: metadata.len(),
            modified,
            inode: system::inode(metadata),
            reported_size: metadata.len(),
            is_regular: metadata.is_file(),
        }
    }

    /// The ETag of `LocalFileSystem`, without quotes: inode, time in microseconds, and size.
    pub(crate) fn etag(&self) -> String {
        let modified_us = self.modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        format!("{:x}-{modified_us:x}-{:x}", self.inode, self.reported_size)
    }
}

/// Returns the error of a call of std.
fn failed(operation: ErrorOp, path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| match error.raw_os_error() {
        Some(errno) => Error::from_raw_os_error(operation, errno).at(path),
        // An error of `nowait`, or one without a code.
        None => match error.downcast::<Error>() {
            Ok(error) => error.at(path),
            Err(error) => Error::new(operation, ErrorKind::Other).at(path).with_detail(error.to_string()),
        },
    }
}

/// Returns the error for a directory in place of an object.
fn is_a_directory(path: &Path) -> Error {
    Error::new(ErrorOp::Open, ErrorKind::IsADirectory).at(path)
}
