//! Windows, without POSIX permissions. Directories have no locks, so only the file `lock` is locked, and its
//! name is held while the log is open.

use std::fs::{File as StdFile, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::BorrowedHandle;
use std::path::Path;
use std::time::Duration;

use nowait::{Error, ErrorKind, File};

/// A directory that is open.
pub(crate) type OpenDir<'d> = BorrowedHandle<'d>;

/// Keeps a file from being removed or renamed.
pub(crate) struct HeldName(#[allow(dead_code)] StdFile);

/// Holds the name of a file by a handle that does not share its removal. Creates the file if it is missing.
pub(crate) fn hold_name(path: &Path) -> io::Result<HeldName> {
    const FILE_SHARE_READ_WRITE: u32 = 3;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).share_mode(FILE_SHARE_READ_WRITE);
    options.open(path).map(HeldName)
}

pub(crate) fn lock_dir(_: OpenDir<'_>) -> io::Result<bool> {
    Ok(true)
}

pub(crate) fn unlock_dir(_: OpenDir<'_>) {}

pub(crate) fn mode_of_dir(_: OpenDir<'_>) -> Option<u32> {
    None
}

pub(crate) fn mode_at(_: OpenDir<'_>, _: &str) -> Option<u32> {
    None
}

pub(crate) fn set_mode_of_dir(_: OpenDir<'_>, _: u32) -> io::Result<()> {
    Ok(())
}

pub(crate) fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

pub(crate) fn copy_mode(_: &File, _: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) fn has_no_modes(_: &io::Error) -> bool {
    true
}

/// Zero: the device is unknown, so old strategies are measured again.
pub(crate) fn device_of(_: OpenDir<'_>) -> u64 {
    0
}

/// Removes an empty directory: Windows renames no directory onto another. Refuses links.
pub(crate) fn make_way(dir: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(dir)?.is_symlink() {
        true => Err(io::ErrorKind::Unsupported.into()),
        false => std::fs::remove_dir(dir),
    }
}

/// Whether the path leads to a directory, which may be another one: its identity is unknown.
pub(crate) fn is_at(_: OpenDir<'_>, path: &Path) -> io::Result<Option<bool>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        about => Ok(Some(about?.is_dir())),
    }
}

pub(crate) fn copy_by_kernel(_: &File, _: &File, _: u64) -> u64 {
    0
}

/// Whether the directory above the log's cannot be synced by this user. Who may create nothing there has made
/// no name there either: another user made the log's directory.
pub(crate) fn is_of_another_user(error: &Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// Whether a directory can be renamed while its files are open.
pub(crate) const RENAMES_OPEN_DIRS: bool = false;

/// Whether the pages of a file can be dropped from the page cache.
pub(crate) const DROPS_PAGES: bool = false;

/// Longest step of a file's time of change (FAT).
pub(crate) const FILE_TIME_TICK: Duration = Duration::from_secs(2);

/// Returns whether an error is due to the place on the device, not to the request.
pub(crate) fn is_of_the_place(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::TimedOut)
}
