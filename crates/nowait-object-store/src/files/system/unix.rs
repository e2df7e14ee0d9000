//! Linux and macOS.

use std::borrow::Cow;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Number of a file in its file system, for ETags.
pub(in crate::files) fn inode(metadata: &Metadata) -> u64 {
    metadata.ino()
}

/// Number of the file system of a file.
pub(in crate::files) fn device(metadata: &Metadata) -> u64 {
    metadata.dev()
}

/// Whether the file has other names.
pub(in crate::files) fn has_links(metadata: &Metadata) -> bool {
    metadata.nlink() > 1
}

/// When contents, name or metadata of a file last changed.
pub(in crate::files) fn changed(metadata: &Metadata) -> SystemTime {
    UNIX_EPOCH + Duration::new(metadata.ctime().max(0) as u64, metadata.ctime_nsec() as u32)
}

/// Opens a file for reading, without waiting for the other end of a FIFO.
pub(in crate::files) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Shares the blocks of a file with a new one.
#[cfg(target_os = "linux")]
pub(in crate::files) fn share_blocks(to: &File, from: &File) -> io::Result<()> {
    Ok(rustix::fs::ioctl_ficlone(to, from)?)
}

/// Refused: macOS shares blocks only with a new name. Copies are hard links.
#[cfg(not(target_os = "linux"))]
pub(in crate::files) fn share_blocks(_: &File, _: &File) -> io::Result<()> {
    Err(Errno::OPNOTSUPP.into())
}

/// Renames; replaces a file of the new name.
pub(in crate::files) use std::fs::rename;

/// Renames; fails if the new name exists.
pub(in crate::files) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system lacks the flag (NFS, some FUSE file systems).
        Err(errno)
            if matches!(errno, Errno::INVAL | Errno::NOSYS) || errno == Errno::OPNOTSUPP || errno == Errno::NOTSUP =>
        {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

/// Removes a file.
pub(in crate::files) use std::fs::remove_file;

/// Removes a staged file that nothing has changed for long. Returns whether it was removed.
pub(in crate::files) fn remove_leftover(path: &Path, _: impl Fn(&Metadata) -> bool) -> io::Result<bool> {
    remove_file(path).map(|()| true)
}

/// Whether a rename failed because the new name exists.
pub(in crate::files) fn is_in_the_way(error: &io::Error, _to: &Path) -> bool {
    matches!(error.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::AlreadyExists)
}

/// Makes a file or directory durable. On macOS, std's call is only `F_FULLFSYNC`, which a file system may refuse:
/// then calls `fsync(2)`, as `nowait` does.
pub(in crate::files) fn sync(file: &File) -> io::Result<()> {
    const REFUSALS: [Errno; 5] = [Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOTTY, Errno::INVAL, Errno::ROFS];
    match file.sync_all() {
        Err(error)
            if cfg!(target_os = "macos")
                && Errno::from_io_error(&error).is_some_and(|errno| REFUSALS.contains(&errno)) =>
        {
            Ok(rustix::fs::fsync(file)?)
        }
        synced => synced,
    }
}

/// Makes the names in a directory durable.
pub(in crate::files) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir).and_then(|dir| sync(&dir))
}

/// Makes a file durable that was written by another descriptor.
pub(in crate::files) fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path).and_then(|file| sync(&file))
}

/// Copies may be hard links: a new link updates [`changed`].
pub(in crate::files) const LINKS_COPIES: bool = true;

/// Whether both paths lead to one directory.
pub(in crate::files) fn is_one_dir(one: &Path, other: &Path) -> io::Result<bool> {
    let identity = |path: &Path| fs::metadata(path).map(|dir| (dir.dev(), dir.ino()));
    Ok(identity(one)? == identity(other)?)
}

/// Returns the path of a location, which has no `.` and `..`. There is always one.
pub(in crate::files) fn below(root: &Path, location: &str) -> Result<PathBuf, &'static str> {
    Ok(root.join(location))
}

/// The name of an object whose file has this path below the root.
pub(crate) fn key(path: &Path) -> Cow<'_, [u8]> {
    Cow::Borrowed(path.as_os_str().as_bytes())
}

/// Sets the mode for a new file, less the umask.
pub(in crate::files) fn set_mode(options: &mut OpenOptions, mode: u32) {
    options.mode(mode);
}
