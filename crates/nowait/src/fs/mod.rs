//! Names, directories and whole files: the functions of `std::fs`, and functions that make changes
//! durable.
//!
//! Each function uses the instance that the process shares; [`Nowait::fs`] returns the same
//! functions for any instance. All of them block in the kernel, so a future runs on a pool thread,
//! never on its executor's.

mod dir;
mod temporary;

use std::ffi::OsString;
use std::fmt;
use std::fs::{FileType, Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sys::advice::{NAME_IN_USE, NO_RENAME_NEW};
use crate::sys::{self, CopyOutcome, Errno};

pub use self::dir::Dir;
pub use self::temporary::AtomicOptions;
pub(crate) use self::temporary::{Temporary, create_beside};
use crate::buf::WriteBuffer;
use crate::core::instance::Nowait;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{File, OpenOptions};
use crate::op::{Call, Done, Owned, PathAt, Request};
use crate::operation::{Operation, Steps};
use crate::started::{Answer, Conclude, called};

/// Entry of a directory; see [`read_dir`].
#[derive(Clone)]
pub struct DirEntry {
    nowait: Nowait,
    path: PathBuf,
    file_type: FileType,
}

impl DirEntry {
    /// Returns the path of the directory joined with the entry's name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name in the directory.
    pub fn file_name(&self) -> &std::ffi::OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the type: file, directory, symbolic link or other. A link is not followed.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Returns size, times, type and permissions, through the instance that listed the directory.
    /// Does not follow a symbolic link ([`symlink_metadata`]).
    ///
    /// # Errors
    /// Those of [`symlink_metadata`]: the entry may have been removed since.
    pub fn metadata(&self) -> Operation<'_, Result<Metadata>> {
        self.nowait.fs().symlink_metadata(&self.path)
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirEntry").field("path", &self.path).field("file_type", &self.file_type).finish()
    }
}

/// Functions of an instance that work on names, directories and whole files: those of `std::fs`,
/// and functions that make changes durable. See [`Nowait::fs`].
///
/// A copyable reference: a future borrows the instance, not the `Fs`.
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("config");
/// let nowait = nowait::Nowait::builder().build()?;
/// nowait.fs().write_atomic(&path, "depth = 32\n").wait()?;
/// assert_eq!(nowait.fs().read_to_string(&path).wait()?, "depth = 32\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fs<'n>(&'n Nowait);

impl Nowait {
    /// Returns the functions of [`nowait::fs`](self) on this instance.
    pub fn fs(&self) -> Fs<'_> {
        Fs(self)
    }
}

/// Declares methods of [`Fs`], and for each a function of this module on the shared instance. An
/// operation borrows the instance; steps own it.
macro_rules! functions {
    (Operation $instance:lifetime $output:ty) => { Operation<$instance, $output> };
    (Steps $instance:lifetime $output:ty) => { Steps<$output> };
    ($($(#[$docs:meta])* fn $name:ident($fs:ident, $($input:ident: $type:ty),*) -> $future:ident<$output:ty> $body:block)*) => {
        impl<'n> Fs<'n> {
            $($(#[$docs])* pub fn $name($fs, $($input: $type),*) -> functions!($future 'n $output) $body)*
        }

        $($(#[$docs])* pub fn $name($($input: $type),*) -> functions!($future 'static $output) {
            Nowait::shared().fs().$name($($input),*)
        })*
    };
}

functions! {
    /// Renames a file or directory; replaces a file of the new name (`rename(2)`). The rename is
    /// atomic for other processes. It is durable after [`sync_dir`] of both directories.
    ///
    /// # Errors
    /// Those of `rename(2)`.
    fn rename(self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<Result<()>> {
        let request = Request::Rename { from: from.as_ref().into(), to: to.as_ref().into(), replace: true };
        named(self.0, request)
    }

    /// Renames a file or directory; fails if the new name exists (`renameat2(2)`,
    /// `RENAME_NOREPLACE`).
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]; those of `renameat2(2)`.
    fn rename_new(self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<Result<()>> {
        let request = Request::Rename { from: from.as_ref().into(), to: to.as_ref().into(), replace: false };
        named(self.0, request)
    }

    /// Removes a name of a file (`unlink(2)`). The file is deleted once it has no name and no open
    /// descriptor.
    ///
    /// # Errors
    /// Those of `unlink(2)`.
    fn remove_file(self, path: impl AsRef<Path>) -> Operation<Result<()>> {
        named(self.0, Request::Remove(path.as_ref().into()))
    }

    /// Creates a directory (`mkdir(2)`), with mode 0o777 less the umask. It is durable after
    /// [`sync_dir`] of its parent.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`], also if a file has the name; those of `mkdir(2)`.
    fn create_dir(self, path: impl AsRef<Path>) -> Operation<Result<()>> {
        named(self.0, Request::CreateDir(path.as_ref().into()))
    }

    /// Returns the names of all entries in a directory, sorted, without `.` and `..`. Names that
    /// are created, renamed or removed meanwhile may or may not be included (`readdir(3)`).
    ///
    /// # Errors
    /// Those of `opendir(3)` and `readdir(3)`.
    fn read_dir_names(self, path: impl AsRef<Path>) -> Operation<Result<Vec<OsString>>> {
        Operation::new(self.0.0.target(), Request::List(path.as_ref().into()), listed)
    }

    /// Makes the creations, renames and removals in a directory durable (`fsync(2)`, NOTES).
    ///
    /// # Errors
    /// Those of `open(2)` and `fsync(2)`.
    fn sync_dir(self, path: impl AsRef<Path>) -> Operation<Result<()>> {
        named(self.0, Request::SyncDir(path.as_ref().into()))
    }

    /// Returns size, times, type and permissions of a file or directory; follows symbolic links
    /// (`statx(2)`).
    ///
    /// # Errors
    /// Those of [`std::fs::metadata`]. [`ErrorKind::Unsupported`] on a simulator.
    fn metadata(self, path: impl AsRef<Path>) -> Operation<Result<Metadata>> {
        call(self.0, ErrorOp::Metadata, path.as_ref(), |path| std::fs::metadata(path))
    }

    /// Returns metadata as [`metadata`] does, but does not follow a symbolic link.
    ///
    /// # Errors
    /// Those of [`std::fs::symlink_metadata`]. [`ErrorKind::Unsupported`] on a simulator.
    fn symlink_metadata(self, path: impl AsRef<Path>) -> Operation<Result<Metadata>> {
        call(self.0, ErrorOp::Metadata, path.as_ref(), |path| std::fs::symlink_metadata(path))
    }

    /// Returns whether the path exists; false for a broken symbolic link.
    ///
    /// # Errors
    /// Those of [`std::fs::exists`]. [`ErrorKind::Unsupported`] on a simulator.
    fn exists(self, path: impl AsRef<Path>) -> Operation<Result<bool>> {
        call(self.0, ErrorOp::Metadata, path.as_ref(), |path| std::fs::exists(path))
    }

    /// Sets the permissions of a file or directory (`chmod(2)`).
    ///
    /// # Errors
    /// Those of [`std::fs::set_permissions`]. [`ErrorKind::Unsupported`] on a simulator.
    fn set_permissions(self, path: impl AsRef<Path>, permissions: Permissions) -> Operation<Result<()>> {
        call(self.0, ErrorOp::SetPermissions, path.as_ref(), move |path| {
            std::fs::set_permissions(path, permissions.clone())
        })
    }

    /// Returns the entries of a directory with their types, sorted by name, without `.` and `..`
    /// (`readdir(3)`).
    ///
    /// # Errors
    /// Those of [`std::fs::read_dir`]. [`ErrorKind::Unsupported`] on a simulator.
    fn read_dir(self, path: impl AsRef<Path>) -> Operation<Result<Vec<DirEntry>>> {
        let call = Call::new(ErrorOp::List, path.as_ref(), |path, _| entries(path));
        Operation::new(self.0.0.target(), Request::Call(Box::new(call)), with_instance)
    }

    /// Creates a directory and its missing parents. Succeeds if the directory exists.
    ///
    /// # Errors
    /// Those of [`std::fs::create_dir_all`]. [`ErrorKind::Unsupported`] on a simulator.
    fn create_dir_all(self, path: impl AsRef<Path>) -> Operation<Result<()>> {
        call(self.0, ErrorOp::CreateDir, path.as_ref(), |path| std::fs::create_dir_all(path))
    }

    /// Removes an empty directory (`rmdir(2)`).
    ///
    /// # Errors
    /// Those of [`std::fs::remove_dir`]. [`ErrorKind::Unsupported`] on a simulator.
    fn remove_dir(self, path: impl AsRef<Path>) -> Operation<Result<()>> {
        call(self.0, ErrorOp::Remove, path.as_ref(), |path| std::fs::remove_dir(path))
    }

    /// Removes a directory and its contents. Symbolic links are removed, not followed.
    ///
    /// # Errors
    /// Those of [`std::fs::remove_dir_all`]. [`ErrorKind::Unsupported`] on a simulator.
    fn remove_dir_all(self, path: impl AsRef<Path>) -> Operation<Result<()>> {
        call(self.0, ErrorOp::Remove, path.as_ref(), |path| std::fs::remove_dir_all(path))
    }

    /// Creates a hard link to a file, on the same file system (`link(2)`).
    ///
    /// # Errors
    /// Those of [`std::fs::hard_link`]. [`ErrorKind::Unsupported`] on a simulator.
    fn hard_link(self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<Result<()>> {
        let link = |from: &Path, to: &Path| std::fs::hard_link(from, to);
        on_two(self.0, ErrorOp::Link, from.as_ref(), to.as_ref(), link, called)
    }

    /// Creates a symbolic link `to` whose target is `from` (`symlink(2)`).
    ///
    /// # Errors
    /// Those of `symlink(2)`. [`ErrorKind::Unsupported`] on a simulator.
    fn symlink(self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<Result<()>> {
        let link = |from: &Path, to: &Path| sys::symlink(from, to);
        on_two(self.0, ErrorOp::Link, from.as_ref(), to.as_ref(), link, called)
    }

    /// Returns the target of a symbolic link (`readlink(2)`).
    ///
    /// # Errors
    /// Those of [`std::fs::read_link`]. [`ErrorKind::Unsupported`] on a simulator.
    fn read_link(self, path: impl AsRef<Path>) -> Operation<Result<PathBuf>> {
        call(self.0, ErrorOp::ReadLink, path.as_ref(), |path| std::fs::read_link(path))
    }

    /// Returns the absolute path without symbolic links, `.` and `..` (`realpath(3)`).
    ///
    /// # Errors
    /// Those of [`std::fs::canonicalize`]. [`ErrorKind::Unsupported`] on a simulator.
    fn canonicalize(self, path: impl AsRef<Path>) -> Operation<Result<PathBuf>> {
        call(self.0, ErrorOp::Canonicalize, path.as_ref(), |path| std::fs::canonicalize(path))
    }

    /// Copies a file with its permissions, and returns the number of bytes. The kernel copies the
    /// data, or shares the blocks if the file system can (`copy_file_range(2)`). An existing file
    /// is truncated first. Nothing is durable yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if both names refer to one file, which stays unchanged, or if
    /// `from` is a device, FIFO or socket. [`ErrorKind::IsADirectory`] for a directory. Those of
    /// `open(2)` and `copy_file_range(2)`. [`ErrorKind::Unsupported`] on a simulator.
    fn copy(self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<Result<u64>> {
        on_two(self.0, ErrorOp::Copy, from.as_ref(), to.as_ref(), sys::copy_file, copied)
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// As [`OpenOptions::open_in`] and [`File::read_at`].
    fn read(self, path: impl AsRef<Path>) -> Steps<Result<Vec<u8>>> {
        let (nowait, path) = (self.0.clone(), path.as_ref().to_path_buf());
        Steps::new(async move {
            let file = OpenOptions::new().read(true).open_in(&nowait, path).await?;
            // A hint, for which no server is asked.
            let length = match file.target().known_size() {
                Some(size) => size,
                None => file.size().await?,
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            read_whole(&file, length).await
        })
    }

    /// Reads a whole file as text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if it is not UTF-8; else as [`read`].
    fn read_to_string(self, path: impl AsRef<Path>) -> Steps<Result<String>> {
        let (nowait, path) = (self.0.clone(), path.as_ref().to_path_buf());
        Steps::new(async move {
            String::from_utf8(nowait.fs().read(&path).await?).map_err(|text| {
                let valid = text.utf8_error().valid_up_to();
                let error = Error::new(ErrorOp::Read, ErrorKind::InvalidData).at(&path);
                error.with_detail(format!("only the first {valid} bytes are UTF-8"))
            })
        })
    }

    /// Creates or truncates a file, and writes `data` as its contents. Nothing is durable yet; see
    /// [`write_atomic`].
    ///
    /// # Errors
    /// As [`OpenOptions::open_in`] and [`File::write_all_at`].
    fn write(self, path: impl AsRef<Path>, data: impl WriteBuffer) -> Steps<Result<()>> {
        let (nowait, path) = (self.0.clone(), path.as_ref().to_path_buf());
        Steps::new(async move {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open_in(&nowait, path).await?;
            file.write_all_at(data, 0).await?;
            file.close().map(drop)
        })
    }

    /// Replaces the contents of a file, or creates the file. Readers see either the old or the new
    /// contents, even after a crash. The new contents are durable on completion.
    ///
    /// The data is written to a file with a temporary name in the same directory, synced, and
    /// renamed; then the directory is synced. The new file has the mode 0o666 less the umask. A
    /// symbolic link is replaced by the file. [`AtomicOptions`] can keep mode and owner, or omit
    /// the syncs.
    ///
    /// # Errors
    /// Those of the steps; all of them name `path`. If a step before the final sync of the directory
    /// fails, the old contents are untouched, and the temporary file is removed. The same holds if
    /// the future is dropped early. A crash, or a drop while the file is created, may leave the
    /// temporary file. Its name begins with a dot and ends in `.tmp`.
    fn write_atomic(self, path: impl AsRef<Path>, data: impl WriteBuffer) -> Steps<Result<()>> {
        AtomicOptions::new().write_in(self.0, path, data)
    }
}

/// Calls `function` with a path, on a thread that may wait.
fn call<'n, T: Send + Sync + 'static>(
    nowait: &'n Nowait,
    operation: ErrorOp,
    path: &Path,
    function: impl Fn(&Path) -> io::Result<T> + Send + Sync + 'static,
) -> Operation<'n, Result<T>> {
    let call = Call::new(operation, path, move |path, _| function(path));
    Operation::new(nowait.0.target(), Request::Call(Box::new(call)), called)
}

/// As [`call`], with two paths. `conclude` converts the answer.
fn on_two<'n, T: Send + Sync + 'static, A>(
    nowait: &'n Nowait,
    operation: ErrorOp,
    from: &Path,
    to: &Path,
    function: impl Fn(&Path, &Path) -> io::Result<T> + Send + Sync + 'static,
    conclude: Conclude<Result<A>>,
) -> Operation<'n, Result<A>> {
    let second = to.to_path_buf();
    let mut call = Call::new(operation, from, move |from, _| function(from, &second));
    call.to = Some(to.to_path_buf());
    Operation::new(nowait.0.target(), Request::Call(Box::new(call)), conclude)
}

/// Concludes a copy.
fn copied(answer: Answer<'_>) -> Result<u64> {
    let (from, to) = match &*answer.request {
        Request::Call(call) => (Arc::from(&*call.path), call.to.clone().unwrap_or_default()),
        request => unreachable!("a call is answered with itself, not {request:?}"),
    };
    match called(answer)? {
        CopyOutcome::Bytes(bytes) => Ok(bytes),
        CopyOutcome::Refused(why) => {
            let error = Error::new(ErrorOp::Copy, ErrorKind::InvalidInput).at(&from);
            Err(error.with_advice(format!("to {}: {why}", to.display())))
        }
    }
}

/// Names and types in a directory, sorted by name.
fn entries(path: &Path) -> io::Result<Vec<(PathBuf, FileType)>> {
    let entry = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.path(), entry.file_type()?))
    };
    let mut entries: Vec<_> = std::fs::read_dir(path)?.map(entry).collect::<io::Result<_>>()?;
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

/// Converts a list of entries, on the caller's thread. A pool thread must not hold a reference to
/// the instance, since dropping the last one waits for the pool's threads.
fn with_instance(answer: Answer<'_>) -> Result<Vec<DirEntry>> {
    let nowait = Nowait(answer.on.instance.clone());
    let entries: Vec<(PathBuf, FileType)> = called(answer)?;
    let entry = |(path, file_type)| DirEntry { nowait: nowait.clone(), path, file_type };
    Ok(entries.into_iter().map(entry).collect())
}

/// Reads a file from its start to its end, which may lie elsewhere than `length` by now, or (in
/// /proc) always has.
async fn read_whole(file: &File, length: usize) -> Result<Vec<u8>> {
    /// Minimum bytes of the first request. A file in /proc may report a size of zero, and return
    /// its contents only to one read at offset 0 (`proc_dointvec`, kernel/sysctl.c).
    const FIRST_BYTES_MIN: usize = 4 << 10;
    /// Bytes of each further request, when the end is not where it was said to be.
    const MORE_BYTES: usize = 64 << 10;
    let mut contents = Vec::new();
    // One byte more than there should be: a read that comes short of it has met the end.
    let mut wanted = length.saturating_add(1).max(FIRST_BYTES_MIN);
    loop {
        let mut room = Vec::new();
        room.try_reserve_exact(wanted).map_err(|_| file.open.error(ErrorOp::Read, Errno::NOMEM))?;
        let (n, piece) = file.read_at(room, contents.len() as u64).await?;
        if contents.is_empty() {
            contents = piece;
        } else {
            contents.extend_from_slice(&piece);
        }
        if n < wanted {
            // Callers keep many small files in memory.
            if contents.len() < FIRST_BYTES_MIN {
                contents.shrink_to_fit();
            }
            return Ok(contents);
        }
        wanted = MORE_BYTES;
    }
}

fn named(nowait: &Nowait, request: Request) -> Operation<'_, Result<()>> {
    Operation::new(nowait.0.target(), request, concluded)
}

/// Concludes an operation on names.
fn concluded(Answer { outcome, request, .. }: Answer<'_>) -> Result<()> {
    outcome.map(drop).map_err(|errno| {
        let error = |name, path: &PathAt| Error::from_errno(name, errno).at(path.display());
        match request {
            Request::Rename { from, to, .. } => {
                let error = error(ErrorOp::Rename, from);
                let to = to.display();
                match sys::named(errno) {
                    Errno::BUSY => error.with_advice(format!("to {}: {NAME_IN_USE}", to.display())),
                    Errno::OPNOTSUPP => error.with_advice(format!("to {}: {NO_RENAME_NEW}", to.display())),
                    _ => error.with_detail(format!("to {}", to.display())),
                }
            }
            Request::Remove(path) if sys::named(errno) == Errno::BUSY => {
                error(ErrorOp::Remove, path).with_advice(NAME_IN_USE)
            }
            Request::Remove(path) => error(ErrorOp::Remove, path),
            Request::SyncDir(path) => error(ErrorOp::Sync, path),
            Request::CreateDir(path) => Error::from_errno(ErrorOp::CreateDir, errno).at(path),
            other => unreachable!("no operation on names: {other:?}"),
        }
    })
}

fn listed(Answer { outcome, request, .. }: Answer<'_>) -> Result<Vec<OsString>> {
    match (outcome, &*request) {
        (Ok(Done::Owned(owned)), _) => match *owned {
            Owned::Names(names) => Ok(names),
            other => unreachable!("a directory's list is not {other:?}"),
        },
        (Err(errno), Request::List(path)) => Err(Error::from_errno(ErrorOp::List, errno).at(path.display())),
        (outcome, request) => unreachable!("{request:?} is not answered with {outcome:?}"),
    }
}
