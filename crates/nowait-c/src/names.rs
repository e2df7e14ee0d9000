//! Names: renames, removals, directories, and atomic replacement of files.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use nowait::{Lent, Nowait, Operation};

use crate::border::{self, many, status};
use crate::failure::{Failure, Result};
use crate::file::BlockingLoan;
use crate::instance::{InstanceHandle, with_instance};

/// The new names are durable when the call returns: it syncs the directories.
pub const NOWAIT_NAME_DURABLE: u32 = 1;
/// nowait_rename replaces nothing: -EEXIST if the new name exists.
pub const NOWAIT_RENAME_NEW: u32 = 2;

/// nowait_sync_dir syncs the parent directory of `path`.
pub const NOWAIT_SYNC_PARENT: u32 = 2;

/// Renames a file or directory to `to`. Replaces a file, or an empty directory, of that name
/// (rename(2)). At any time `to` refers to the old entry or the new one. `flags` is a bitwise OR of
/// NOWAIT_NAME_DURABLE and NOWAIT_RENAME_NEW, or 0; `instance` may be 0.
///
/// The new name is durable after a nowait_sync_dir of both directories, or with NOWAIT_NAME_DURABLE
/// when the call ends. This does not make the contents durable: call nowait_sync before.
///
/// Returns 0, or a negative errno: those of rename(2), such as -ENOENT, -EEXIST, -EACCES, and
/// -EXDEV between file systems; -EINVAL for unknown flags. If the error message names a sync, the
/// rename took place, but a crash may undo it. Threads: any, also in a forked child.
///
/// # Safety
/// `from` and `to` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_rename(
    instance: InstanceHandle,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { NameChange::rename(instance, from, to, flags) }?.wait())
}

/// Removes the name of a file, or of anything but a directory (unlink(2)). The file continues to
/// exist while it is open or has other names. `flags` is 0 or NOWAIT_NAME_DURABLE; `instance` may
/// be 0.
///
/// Returns 0, or a negative errno: those of unlink(2), such as -ENOENT and -EISDIR, and those of
/// nowait_rename. The call may take long for a large file. Threads: any.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_remove_file(instance: InstanceHandle, path: *const c_char, flags: u32) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { NameChange::one(NameOp::RemoveFile, instance, path, flags) }?.wait())
}

/// Creates a directory, with the permissions 0777 less the umask (mkdir(2)). `flags` is 0 or
/// NOWAIT_NAME_DURABLE; `instance` may be 0.
///
/// Returns 0, or a negative errno: those of mkdir(2), such as -EEXIST, or -ENOENT if the parent is
/// missing, and those of nowait_rename. Threads: any.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_create_dir(instance: InstanceHandle, path: *const c_char, flags: u32) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { NameChange::one(NameOp::CreateDir, instance, path, flags) }?.wait())
}

/// Removes an empty directory (rmdir(2)). `flags` is 0 or NOWAIT_NAME_DURABLE; `instance` may be 0.
///
/// Returns 0, or a negative errno: those of rmdir(2), such as -ENOTEMPTY, -ENOENT and -ENOTDIR, and
/// those of nowait_rename. Threads: any.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_remove_dir(instance: InstanceHandle, path: *const c_char, flags: u32) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { NameChange::one(NameOp::RemoveDir, instance, path, flags) }?.wait())
}

/// Makes creations, renames and removals in the directory `path` durable. If `flags` is
/// NOWAIT_SYNC_PARENT, the directory is the parent of `path`: use it with "data/table", for
/// instance, after nowait_file_open created that file. Otherwise `flags` is
/// 0. The call covers neither the files' contents nor names in directories below. `instance` may be
/// 0.
///
/// Returns 0, or a negative errno: those of open(2) and fsync(2); -ENOTDIR; -EINVAL for unknown
/// flags. Threads: any, also in a forked child.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_sync_dir(instance: InstanceHandle, path: *const c_char, flags: u32) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { NameChange::sync_dir(instance, path, flags) }?.wait())
}

/// Replaces the contents of a file by `length` bytes, or creates the file. Readers see all of the
/// old contents or all of the new, even after a crash. The new contents are durable when the call
/// returns. `flags` is 0; `instance` may be 0. (NOWAIT_WRITE_ATOMIC concerns one write within a
/// file.)
///
/// The bytes go to a file with a temporary name in the same directory. The file is synced and
/// renamed; then the directory is synced. The result is a new file with the permissions 0666 less
/// the umask. It has no other names, and replaces a symbolic link itself.
///
/// Returns 0, or the negative errno of the step that failed; the message names the step. If a step
/// before the sync of the directory fails, the old file is unchanged, and the temporary file is
/// removed. (A crash leaves the temporary file, whose name begins with a dot and ends in ".tmp".)
/// -EINVAL if `flags` is not 0, or the path names no file. Threads: any, also in a forked child. If
/// several calls replace one file, the last rename determines the contents.
///
/// # Safety
/// `path` is a string; `length` bytes at `buffer` are valid for reads, and nothing changes them during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_write_atomic(
    instance: InstanceHandle,
    path: *const c_char,
    buffer: *const c_void,
    length: usize,
    flags: u32,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let whole = unsafe { Whole::new(instance, path, (buffer, length), flags) }?;
        let loan = BlockingLoan::default();
        nowait::block_on(whole.run(loan.token())).map(drop)
    })
}

/// A change of names that has not started yet.
pub(crate) struct NameChange {
    nowait: Nowait,
    op: NameOp,
    path: PathBuf,
    /// The new name of a rename.
    to: PathBuf,
    /// Directories to sync after the change.
    synced: Vec<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameOp {
    Rename { replace: bool },
    RemoveFile,
    CreateDir,
    RemoveDir,
    SyncDir,
}

impl NameChange {
    /// # Safety
    /// As nowait_rename.
    pub(crate) unsafe fn rename(
        instance: InstanceHandle,
        from: *const c_char,
        to: *const c_char,
        flags: u32,
    ) -> Result<NameChange> {
        // SAFETY: the caller's promise.
        let (path, to) = unsafe { (border::path(from, "from")?, border::path(to, "to")?) };
        let known = "NOWAIT_NAME_DURABLE, NOWAIT_RENAME_NEW or 0";
        let flags = known_flags(flags, NOWAIT_NAME_DURABLE | NOWAIT_RENAME_NEW, known)?;
        let mut synced = Vec::new();
        if flags & NOWAIT_NAME_DURABLE != 0 {
            // The directory of the new name first: a crash between the syncs then leaves both names
            // instead of neither.
            synced.push(directory_of(to));
            if directory_of(path) != directory_of(to) {
                synced.push(directory_of(path));
            }
        }
        let op = NameOp::Rename { replace: flags & NOWAIT_RENAME_NEW == 0 };
        let nowait = with_instance(instance, |nowait| Ok(nowait.clone()))?;
        Ok(NameChange { nowait, op, path: path.into(), to: to.into(), synced })
    }

    /// # Safety
    /// As nowait_remove_file.
    pub(crate) unsafe fn one(
        op: NameOp,
        instance: InstanceHandle,
        path: *const c_char,
        flags: u32,
    ) -> Result<NameChange> {
        // SAFETY: the caller's promise.
        let path = unsafe { border::path(path, "path") }?;
        let flags = known_flags(flags, NOWAIT_NAME_DURABLE, "NOWAIT_NAME_DURABLE or 0")?;
        let synced = if flags == 0 { Vec::new() } else { vec![directory_of(path)] };
        let nowait = with_instance(instance, |nowait| Ok(nowait.clone()))?;
        Ok(NameChange { nowait, op, path: path.into(), to: PathBuf::new(), synced })
    }

    /// # Safety
    /// As nowait_sync_dir.
    pub(crate) unsafe fn sync_dir(instance: InstanceHandle, path: *const c_char, flags: u32) -> Result<NameChange> {
        // SAFETY: the caller's promise.
        let path = unsafe { border::path(path, "path") }?;
        let path = match known_flags(flags, NOWAIT_SYNC_PARENT, "NOWAIT_SYNC_PARENT or 0")? {
            0 => path.into(),
            _ => directory_of(path),
        };
        let nowait = with_instance(instance, |nowait| Ok(nowait.clone()))?;
        Ok(NameChange { nowait, op: NameOp::SyncDir, path, to: PathBuf::new(), synced: Vec::new() })
    }

    fn operation(&self) -> Operation<'_, nowait::Result<()>> {
        match self.op {
            NameOp::Rename { replace: true } => self.nowait.fs().rename(&self.path, &self.to),
            NameOp::Rename { replace: false } => self.nowait.fs().rename_new(&self.path, &self.to),
            NameOp::RemoveFile => self.nowait.fs().remove_file(&self.path),
            NameOp::CreateDir => self.nowait.fs().create_dir(&self.path),
            NameOp::RemoveDir => self.nowait.fs().remove_dir(&self.path),
            NameOp::SyncDir => self.nowait.fs().sync_dir(&self.path),
        }
    }

    /// Performs the change on this thread.
    fn wait(self) -> Result<()> {
        self.operation().wait()?;
        for directory in &self.synced {
            self.nowait.fs().sync_dir(directory).wait()?;
        }
        Ok(())
    }

    /// Performs the change on threads of the library.
    pub(crate) async fn run(self) -> Result<u64> {
        self.operation().await?;
        for directory in &self.synced {
            self.nowait.fs().sync_dir(directory).await?;
        }
        Ok(0)
    }
}

/// An atomic replacement of a file that has not started yet.
pub(crate) struct Whole {
    nowait: Nowait,
    path: PathBuf,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the caller lends the memory to the thread that runs the replacement.
unsafe impl Send for Whole {}

impl Whole {
    /// # Safety
    /// As nowait_write_atomic, until the token of its run is dropped.
    pub(crate) unsafe fn new(
        instance: InstanceHandle,
        path: *const c_char,
        (buffer, length): (*const c_void, usize),
        flags: u32,
    ) -> Result<Whole> {
        // SAFETY: the caller's promise.
        let (path, bytes) = unsafe { (border::path(path, "path")?, many::<u8>(buffer.cast(), length, "buffer")?) };
        known_flags(flags, 0, "0")?;
        let nowait = with_instance(instance, |nowait| Ok(nowait.clone()))?;
        Ok(Whole { nowait, path: path.into(), start: NonNull::from(bytes).cast(), length })
    }

    /// Runs the replacement. The token is dropped when the caller's memory is released.
    pub(crate) async fn run(self, token: impl Send + 'static) -> Result<u64> {
        // SAFETY: the promise of `new`.
        let memory = unsafe { Lent::from_raw(self.start, self.length, token) };
        Ok(self.nowait.fs().write_atomic(&self.path, memory).await.map(|()| 0)?)
    }
}

/// Returns the parent directory of a path.
fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        Some(_) => PathBuf::from("."),
        // The root or an empty path, for which the kernel returns the error.
        None => path.into(),
    }
}

fn known_flags(flags: u32, known: u32, names: &str) -> Result<u32> {
    match flags & !known {
        0 => Ok(flags),
        _ => Err(Failure::new(libc::EINVAL, format!("flags are {flags:#x}; give {names}"))),
    }
}
