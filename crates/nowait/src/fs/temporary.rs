//! A file with a temporary name, which replaces another when it is complete.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::core::instance::Nowait;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{File, OpenOptions};
use crate::sys::fork_generation;

/// Creates a file of its own in a path's directory.
pub(crate) async fn create_beside(nowait: &Nowait, path: &Path) -> Result<(File, Temporary)> {
    const TRIES: u32 = 8;
    for last in (0..TRIES).rev() {
        let (directory, temporary) = beside(path)?;
        match OpenOptions::new().write(true).create_new(true).open_in(nowait, &temporary).await {
            Ok(file) => {
                return Ok((
                    file,
                    Temporary {
                        nowait: nowait.clone(),
                        path: Some(temporary),
                        directory,
                        generation: fork_generation(),
                    },
                ));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && last > 0 => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last try returns")
}

/// The name of a file that is to replace another. Dropped, it is removed, by a thread of the pool.
pub(crate) struct Temporary {
    nowait: Nowait,
    /// None once it is gone.
    path: Option<PathBuf>,
    directory: PathBuf,
    /// Fork generation of the process that made it: a forked child must not remove it.
    generation: u64,
}

impl Temporary {
    /// Makes `file`, which was `written`, durable, and gives it the name `path`, durably. After an
    /// error the file is gone, unless it has the name already.
    pub(crate) async fn replace(mut self, file: File, path: &Path, written: Result<()>) -> Result<()> {
        let nowait = self.nowait.clone();
        let temporary = self.path.clone().unwrap_or_default();
        let renamed = async {
            written?;
            file.sync_all().await?;
            file.close()?;
            nowait.rename(&temporary, path).await
        };
        let renamed = renamed.await;
        self.path = None;
        match renamed {
            Ok(()) => nowait.sync_dir(&self.directory).await,
            Err(error) => {
                let _ = nowait.remove_file(&temporary).submit().finish_on_drop().await;
                Err(error)
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.generation == fork_generation()) {
            self.nowait.remove_file(path).submit().detach();
        }
    }
}

/// Bytes of the final name that the temporary one has.
const NAME_BYTES_MAX: usize = 200;

/// A path's directory, and a name in it that nothing else uses.
fn beside(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let Some(name) = path.file_name() else {
        let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(&Arc::from(path));
        return Err(error.with_detail("the path names no file"));
    };
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut temporary = OsString::from(".");
    // The whole has to be a name, of 255 bytes at most.
    let bytes = name.as_bytes();
    temporary.push(OsStr::from_bytes(&bytes[..bytes.len().min(NAME_BYTES_MAX)]));
    // Each hasher has random keys. Processes in containers may have the same id, and a directory in
    // common.
    let random = RandomState::new().build_hasher().finish();
    temporary.push(format!(".{random:016x}.tmp"));
    let temporary = directory.join(temporary);
    Ok((directory, temporary))
}
