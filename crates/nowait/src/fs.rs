//! Names: renaming and removing files, making and listing directories, making names durable, and replacing a file as a whole.
//!
//! Everything here blocks in the kernel, and is done by a thread of the pool, never by an executor's.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::buf::WriteBuffer;
use crate::core::instance::Nowait;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{File, OpenOptions};
use crate::op::{Done, Handle, OpenDir, PathAt, Request};
use crate::operation::{Answer, On, Operation};

/// Renames a file or directory, replacing a file that has the new name. All or nothing for whoever looks; durable after
/// [`sync_dir`] of the directories (`rename(2)`).
///
/// # Errors
/// What `rename(2)` reports.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'static, Result<()>> {
    rename_in(Nowait::shared(), from, to)
}

/// As [`rename`], on an instance.
///
/// # Errors
/// As [`rename`].
pub fn rename_in(nowait: &Nowait, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'_, Result<()>> {
    let request = Request::Rename { from: from.as_ref().into(), to: to.as_ref().into(), replace: true };
    named(nowait, request)
}

/// Renames a file or directory, unless something has the new name already (`RENAME_NOREPLACE`, `renameat2(2)`).
///
/// # Errors
/// [`ErrorKind::AlreadyExists`]; what else `renameat2(2)` reports.
pub fn rename_new(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'static, Result<()>> {
    rename_new_in(Nowait::shared(), from, to)
}

/// As [`rename_new`], on an instance.
///
/// # Errors
/// As [`rename_new`].
pub fn rename_new_in(nowait: &Nowait, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'_, Result<()>> {
    let request = Request::Rename { from: from.as_ref().into(), to: to.as_ref().into(), replace: false };
    named(nowait, request)
}

/// Removes a name of a file; the file goes with its last name and the last handle (`unlink(2)`).
///
/// # Errors
/// What `unlink(2)` reports.
pub fn remove_file(path: impl AsRef<Path>) -> Operation<'static, Result<()>> {
    remove_file_in(Nowait::shared(), path)
}

/// As [`remove_file`], on an instance.
///
/// # Errors
/// As [`remove_file`].
pub fn remove_file_in(nowait: &Nowait, path: impl AsRef<Path>) -> Operation<'_, Result<()>> {
    named(nowait, Request::Remove(path.as_ref().into()))
}

/// Makes a directory (`mkdir(2)`), with mode 0o777 less the umask. Durable after [`sync_dir`] of the one that it is in.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`], also where a file has the name; what else `mkdir(2)` reports.
pub fn create_dir(path: impl AsRef<Path>) -> Operation<'static, Result<()>> {
    create_dir_in(Nowait::shared(), path)
}

/// As [`create_dir`], on an instance.
///
/// # Errors
/// As [`create_dir`].
pub fn create_dir_in(nowait: &Nowait, path: impl AsRef<Path>) -> Operation<'_, Result<()>> {
    named(nowait, Request::CreateDir(path.as_ref().into()))
}

/// Gives the names in a directory, sorted: of files, directories and whatever else is there, but not `.` and `..`. What is created,
/// renamed or removed meanwhile may be among them or not (`readdir(3)`).
///
/// # Errors
/// What `opendir(3)` and `readdir(3)` report.
pub fn list(path: impl AsRef<Path>) -> Operation<'static, Result<Vec<OsString>>> {
    list_in(Nowait::shared(), path)
}

/// As [`list`], on an instance.
///
/// # Errors
/// As [`list`].
pub fn list_in(nowait: &Nowait, path: impl AsRef<Path>) -> Operation<'_, Result<Vec<OsString>>> {
    Operation::new(On::Paths(&nowait.0), Request::List(path.as_ref().into()), listed)
}

/// Makes the names in a directory durable: those of files that were created, renamed and removed there (`fsync(2)`, NOTES).
///
/// # Errors
/// What `open(2)` and `fsync(2)` report.
pub fn sync_dir(path: impl AsRef<Path>) -> Operation<'static, Result<()>> {
    sync_dir_in(Nowait::shared(), path)
}

/// As [`sync_dir`], on an instance.
///
/// # Errors
/// As [`sync_dir`].
pub fn sync_dir_in(nowait: &Nowait, path: impl AsRef<Path>) -> Operation<'_, Result<()>> {
    named(nowait, Request::SyncDir(path.as_ref().into()))
}

/// Replaces the contents of a file, or creates it: whoever opens it, also after a crash, finds the old contents or the
/// new, whole. Durable when this is ready.
///
/// The data is written to a file with a temporary name in the same directory, synced, and renamed; then the directory is synced. The
/// new file has the mode of a new one (0o666 less the umask), and is not a link if the old one was.
///
/// # Errors
/// Those of the steps. Unless the last one failed, the old contents are untouched and the temporary file is gone. (A future that is
/// dropped half-way leaves it there, as a crash does: a name that begins with a dot and ends in `.tmp`.)
pub async fn write_atomic<B: WriteBuffer>(path: impl AsRef<Path>, data: B) -> Result<()> {
    write_atomic_in(Nowait::shared(), path, data).await
}

/// As [`write_atomic`], on an instance.
///
/// # Errors
/// As [`write_atomic`].
pub async fn write_atomic_in<B: WriteBuffer>(nowait: &Nowait, path: impl AsRef<Path>, data: B) -> Result<()> {
    let path = path.as_ref();
    let (directory, file, temporary) = create_beside(nowait, path).await?;
    let done = async {
        file.write_all_at(data, 0).await?;
        file.sync_all().await?;
        file.close()?;
        rename_in(nowait, &temporary, path).await
    };
    if let Err(error) = done.await {
        let _ = remove_file_in(nowait, &temporary).await;
        return Err(error);
    }
    sync_dir_in(nowait, directory).await
}

/// Creates a file of its own in a path's directory.
async fn create_beside(nowait: &Nowait, path: &Path) -> Result<(PathBuf, File, PathBuf)> {
    const TRIES: u32 = 8;
    for last in (0..TRIES).rev() {
        let (directory, temporary) = beside(path)?;
        match OpenOptions::new().write(true).create_new(true).open_in(nowait, &temporary).await {
            Ok(file) => return Ok((directory, file, temporary)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && last > 0 => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last try returns")
}

/// A path's directory, and a name in it that nothing else uses.
fn beside(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let Some(name) = path.file_name() else {
        let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(&Arc::from(path));
        return Err(error.detail("the path names no file"));
    };
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    // Each hasher has random keys. Processes in containers may have the same id, and a directory in common.
    let random = RandomState::new().build_hasher().finish();
    temporary.push(format!(".{random:016x}.tmp"));
    let temporary = directory.join(temporary);
    Ok((directory, temporary))
}

fn named(nowait: &Nowait, request: Request) -> Operation<'_, Result<()>> {
    Operation::new(On::Paths(&nowait.0), request, concluded)
}

/// Concludes an operation on names.
fn concluded(Answer { outcome, request, .. }: Answer<'_>) -> Result<()> {
    outcome.map(drop).map_err(|errno| {
        let error = |name, path: &PathAt| Error::from_errno(name, errno).at(&Arc::from(path.display()));
        match request {
            Request::Rename { from, to, .. } => {
                error(ErrorOp::Rename, from).detail(format!("to {}", to.path.display()))
            }
            Request::Remove(path) => error(ErrorOp::Remove, path),
            Request::SyncDir(path) => error(ErrorOp::Sync, path),
            Request::CreateDir(path) => Error::from_errno(ErrorOp::CreateDir, errno).at(&Arc::from(&**path)),
            other => unreachable!("no operation on names: {other:?}"),
        }
    })
}

fn listed(Answer { outcome, request, .. }: Answer<'_>) -> Result<Vec<OsString>> {
    match (outcome, &*request) {
        (Ok(Done::Names(names)), _) => Ok(names),
        (Err(errno), Request::List(path)) => {
            Err(Error::from_errno(ErrorOp::List, errno).at(&Arc::from(path.display())))
        }
        (outcome, request) => unreachable!("{request:?} is not answered with {outcome:?}"),
    }
}

/// A directory that is held open. Names are resolved from it, whatever becomes of its own name and of the process's working directory.
///
/// Everything here blocks the thread. On a simulator, where nothing is moved, it is its path.
#[derive(Clone)]
pub(crate) struct Dir {
    nowait: Nowait,
    open: Option<Arc<OpenDir>>,
    /// What it was called when it was opened; for errors.
    pub(crate) path: Arc<Path>,
}

impl Dir {
    pub(crate) fn open(nowait: &Nowait, path: &Path) -> Result<Dir> {
        let handle = Operation::new(On::Paths(&nowait.0), Request::OpenDir(path.into()), dir_opened).wait()?;
        let path: Arc<Path> = Arc::from(path);
        let open = match handle {
            Handle::Descriptor(fd) => Some(Arc::new(OpenDir { fd, path: path.clone() })),
            Handle::Simulated { .. } => None,
        };
        Ok(Dir { nowait: nowait.clone(), open, path })
    }

    /// The descriptor; None on a simulator.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref().map(|open| open.fd.as_fd())
    }

    /// What errors call the file `name`.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn at(&self, name: &str) -> PathAt {
        match &self.open {
            Some(open) => PathAt { dir: Some(open.clone()), path: name.into() },
            None => PathAt { dir: None, path: self.join(name) },
        }
    }

    fn named(&self, request: Request) -> Result<()> {
        named(&self.nowait, request).wait()
    }

    pub(crate) fn open_file(&self, options: &OpenOptions, name: &str) -> Result<File> {
        options.open_at(&self.nowait, self.at(name)).wait()
    }

    /// Renames a file; `replace`: also in place of one that has the new name.
    pub(crate) fn rename(&self, from: &str, to: &str, replace: bool) -> Result<()> {
        self.named(Request::Rename { from: self.at(from), to: self.at(to), replace })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.named(Request::Remove(self.at(name)))
    }

    pub(crate) fn list(&self) -> Result<Vec<OsString>> {
        Operation::new(On::Paths(&self.nowait.0), Request::List(self.at(".")), listed).wait()
    }

    /// Makes the names in it durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.named(Request::SyncDir(self.at(".")))
    }

    /// Makes its own name durable.
    pub(crate) fn sync_parent(&self) -> Result<()> {
        let parent = match (&self.open, self.path.parent()) {
            (Some(_), _) => self.at(".."),
            (None, Some(parent)) => PathAt::from(parent),
            (None, None) => return Ok(()),
        };
        self.named(Request::SyncDir(parent))
    }
}

fn dir_opened(Answer { outcome, request, .. }: Answer<'_>) -> Result<Handle> {
    match (outcome, &*request) {
        (Ok(Done::Opened(handle, _)), _) => Ok(handle),
        (Err(errno), Request::OpenDir(path)) => Err(Error::from_errno(ErrorOp::Open, errno).at(&Arc::from(&**path))),
        (outcome, request) => unreachable!("{request:?} is not answered with {outcome:?}"),
    }
}
