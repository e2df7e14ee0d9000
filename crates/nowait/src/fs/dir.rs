//! A directory that is held open.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::{listed, named};
use crate::core::instance::Nowait;
use crate::error::{Error, ErrorOp, Result};
use crate::file::{File, OpenOptions};
use crate::op::{Done, Handle, OpenDir, Owned, PathAt, Request};
use crate::operation::Operation;
use crate::started::Answer;
use crate::sys::{self, AsFd, BorrowedFd};

/// Open directory. Names are resolved from its descriptor (`openat(2)`), even if it is renamed or
/// the working directory changes. Clones share the descriptor. On a simulator it is only a path.
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let temporary = tempfile::tempdir().unwrap();
/// # let (path, other) = (temporary.path().join("one"), temporary.path().join("two"));
/// # std::fs::create_dir(&path).unwrap();
/// let dir = nowait::fs::Dir::open(&path).wait()?;
/// nowait::fs::rename(&path, &other).wait()?;
/// dir.open_file(nowait::OpenOptions::new().write(true).create(true), "table.dat").wait()?;
/// dir.sync().wait()?;
/// assert_eq!(dir.read_names().wait()?, ["table.dat"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Dir {
    nowait: Nowait,
    open: Option<Arc<OpenDir>>,
    path: Arc<Path>,
}

impl Dir {
    /// Opens a directory on the instance that the process shares.
    ///
    /// # Errors
    /// As [`Dir::open_in`].
    pub fn open(path: impl AsRef<Path>) -> Operation<'static, Result<Dir>> {
        Dir::open_in(Nowait::shared(), path)
    }

    /// Opens a directory on the given instance.
    ///
    /// # Errors
    /// Those of `open(2)`; [`ErrorKind::NotADirectory`](crate::ErrorKind::NotADirectory) for
    /// anything else.
    pub fn open_in(nowait: &Nowait, path: impl AsRef<Path>) -> Operation<'_, Result<Dir>> {
        Operation::new(nowait.0.target(), Request::OpenDir(path.as_ref().into()), dir_opened)
    }

    /// Returns the path by which it was opened. In errors, the paths of its files begin with it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor; `None` on a simulator.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref().map(|open| open.fd.as_fd())
    }

    fn at(&self, name: impl AsRef<Path>) -> PathAt {
        match &self.open {
            Some(open) => PathAt { dir: Some(open.clone()), path: name.as_ref().into() },
            None => PathAt { dir: None, path: self.path.join(name) },
        }
    }

    /// Opens a file in this directory; see [`OpenOptions::open_in`].
    ///
    /// # Errors
    /// As [`OpenOptions::open_in`].
    pub fn open_file(&self, options: &OpenOptions, name: impl AsRef<Path>) -> Operation<'_, Result<File>> {
        options.open_at(&self.nowait, self.at(name))
    }

    /// Renames within this directory; see [`rename`](super::rename).
    ///
    /// # Errors
    /// As [`rename`](super::rename).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'_, Result<()>> {
        named(&self.nowait, Request::Rename { from: self.at(from), to: self.at(to), replace: true })
    }

    /// Renames within this directory, without replacing; see [`rename_new`](super::rename_new).
    ///
    /// # Errors
    /// As [`rename_new`](super::rename_new).
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'_, Result<()>> {
        named(&self.nowait, Request::Rename { from: self.at(from), to: self.at(to), replace: false })
    }

    /// Removes a file from this directory; see [`remove_file`](super::remove_file).
    ///
    /// # Errors
    /// As [`remove_file`](super::remove_file).
    pub fn remove_file(&self, name: impl AsRef<Path>) -> Operation<'_, Result<()>> {
        named(&self.nowait, Request::Remove(self.at(name)))
    }

    /// Returns the names in this directory; see [`read_dir_names`](super::read_dir_names).
    ///
    /// # Errors
    /// As [`read_dir_names`](super::read_dir_names).
    pub fn read_names(&self) -> Operation<'_, Result<Vec<OsString>>> {
        Operation::new(self.nowait.0.target(), Request::List(self.at(".")), listed)
    }

    /// Makes the names in this directory durable; see [`sync_dir`](super::sync_dir).
    ///
    /// # Errors
    /// As [`sync_dir`](super::sync_dir).
    pub fn sync(&self) -> Operation<'_, Result<()>> {
        named(&self.nowait, Request::SyncDir(self.at(".")))
    }

    /// Makes this directory's own name durable, even after a rename, by syncing its parent.
    ///
    /// # Errors
    /// As [`sync_dir`](super::sync_dir).
    pub fn sync_parent(&self) -> Operation<'_, Result<()>> {
        let parent = match &self.open {
            Some(_) => self.at(".."),
            None => PathAt::from(self.path.parent().unwrap_or(&self.path)),
        };
        named(&self.nowait, Request::SyncDir(parent))
    }
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dir").field("path", &self.path).finish_non_exhaustive()
    }
}

fn dir_opened(Answer { on, outcome, request }: Answer<'_>) -> Result<Dir> {
    let Request::OpenDir(path) = request else { unreachable!("an open is answered with itself, not {request:?}") };
    let path: Arc<Path> = Arc::from(&**path);
    let owned = match outcome {
        Ok(Done::Owned(owned)) => *owned,
        Ok(other) => unreachable!("a directory is answered with a handle, not {other:?}"),
        Err(errno) => return Err(Error::from_errno(ErrorOp::Open, errno).at(&path)),
    };
    let open = match owned {
        Owned::Opened(Handle::Descriptor(fd), _) => {
            let kept_path = sys::kept_path(&path);
            Some(Arc::new(OpenDir { fd, path: path.clone(), kept_path }))
        }
        Owned::Opened(Handle::Simulated { .. }, _) => None,
        other => unreachable!("a directory is answered with a handle, not {other:?}"),
    };
    Ok(Dir { nowait: Nowait(on.instance.clone()), open, path })
}
