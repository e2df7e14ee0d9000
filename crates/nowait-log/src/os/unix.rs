//! Linux and macOS.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use nowait::{Error, File};
use rustix::fs::{AtFlags, FlockOperation, Mode, Stat, fchmod, fstat, statat};
use rustix::io::Errno;

/// A directory that is open.
pub(crate) type OpenDir<'d> = BorrowedFd<'d>;

const MODE_BITS: u32 = 0o7777;

// These fields have other types on macOS.
#[allow(clippy::unnecessary_cast)]
fn mode(about: &Stat) -> u32 {
    about.st_mode as u32 & MODE_BITS
}

/// Nothing: the lock of the directory survives the removal of a name.
pub(crate) struct HeldName;

pub(crate) fn hold_name(_: &Path) -> io::Result<HeldName> {
    Ok(HeldName)
}

/// Locks a directory; false if another open holds the lock.
pub(crate) fn lock_dir(dir: OpenDir<'_>) -> io::Result<bool> {
    match rustix::io::retry_on_intr(|| rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => Ok(locked.map(|()| true)?),
    }
}

pub(crate) fn unlock_dir(dir: OpenDir<'_>) {
    let _ = rustix::fs::flock(dir, FlockOperation::Unlock);
}

/// Permissions of an open directory.
pub(crate) fn mode_of_dir(dir: OpenDir<'_>) -> Option<u32> {
    fstat(dir).ok().as_ref().map(mode)
}

/// Permissions of a file in a directory.
pub(crate) fn mode_at(dir: OpenDir<'_>, name: &str) -> Option<u32> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().as_ref().map(mode)
}

pub(crate) fn set_mode_of_dir(dir: OpenDir<'_>, mode: u32) -> io::Result<()> {
    Ok(fchmod(dir, Mode::from_raw_mode(mode as _))?)
}

/// Sets the permissions of a file if they differ. Does nothing for a simulated file.
pub(crate) fn set_mode(file: &File, wanted: u32) -> io::Result<()> {
    let Some(here) = file.descriptor() else { return Ok(()) };
    if mode(&fstat(here)?) == wanted { Ok(()) } else { set_mode_of_dir(here, wanted) }
}

/// Copies the permissions of a file to another.
pub(crate) fn copy_mode(from: &File, to: &File) -> io::Result<()> {
    let (Some(here), Some(there)) = (from.descriptor(), to.descriptor()) else { return Ok(()) };
    set_mode_of_dir(there, mode(&fstat(here)?))
}

/// Whether an error means that a file system has no permissions.
pub(crate) fn has_no_modes(error: &io::Error) -> bool {
    Errno::from_io_error(error)
        .is_some_and(|errno| [Errno::PERM, Errno::OPNOTSUPP, Errno::NOTSUP, Errno::NOSYS].contains(&errno))
}

/// Device of an open directory; 0 if it is not known.
#[allow(clippy::unnecessary_cast)]
pub(crate) fn device_of(dir: OpenDir<'_>) -> u64 {
    fstat(dir).map_or(0, |stat| stat.st_dev as u64)
}

/// Does nothing: a rename replaces an empty directory.
pub(crate) fn make_way(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Whether an open directory is at this path. `None` if the path leads nowhere.
pub(crate) fn is_at(dir: OpenDir<'_>, path: &Path) -> io::Result<Option<bool>> {
    let here = fstat(dir)?;
    match rustix::fs::stat(path) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        there => Ok(Some(there.map(|there| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))?)),
    }
}

/// Copies the first `end` bytes by `copy_file_range(2)`. Returns the number of bytes copied, which is smaller
/// if the call fails or does not serve these files. Reads and writes of the rest return any error again.
#[cfg(target_os = "linux")]
pub(crate) fn copy_by_kernel(from: &File, to: &File, end: u64) -> u64 {
    let (Some(here), Some(there)) = (from.descriptor(), to.descriptor()) else { return 0 };
    let mut at = 0;
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut read_at, mut write_at) = (at, at);
        match rustix::fs::copy_file_range(here, Some(&mut read_at), there, Some(&mut write_at), left) {
            Ok(n) if n > 0 => at += n as u64,
            Err(Errno::INTR) => {}
            _ => break,
        }
    }
    at
}

/// The kernel copies nothing.
#[cfg(not(target_os = "linux"))]
pub(crate) fn copy_by_kernel(_: &File, _: &File, _: u64) -> u64 {
    0
}

/// EDEVERR, which has no name in rustix.
#[cfg(not(target_os = "linux"))]
const DEVICE_ERROR: Errno = Errno::from_raw_os_error(83);

/// Whether the directory above the log's cannot be synced by this user. A sync needs no right to write.
pub(crate) fn is_of_another_user(_: &Error) -> bool {
    false
}

/// Whether a directory can be renamed while its files are open.
pub(crate) const RENAMES_OPEN_DIRS: bool = true;

/// Whether the pages of a file can be dropped from the page cache (`Advice::DontNeed`).
pub(crate) const DROPS_PAGES: bool = cfg!(target_os = "linux");

/// Longest step of a file's time of change (FAT; HFS+ has 1 s). On Linux, taken for zero: steps are a few
/// milliseconds on the file systems of most logs.
pub(crate) const FILE_TIME_TICK: Duration = Duration::from_secs(if cfg!(target_os = "linux") { 0 } else { 2 });

/// Returns whether an error is due to the place on the device, not to the request (`blk_errors` of
/// block/blk-core.c; checksums of btrfs and xfs). Not ENXIO, by which macOS reports that the device is gone.
pub(crate) fn is_of_the_place(error: &Error) -> bool {
    #[cfg(target_os = "linux")]
    const ERRNOS: [Errno; 7] =
        [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN, Errno::TIMEDOUT];
    #[cfg(not(target_os = "linux"))]
    const ERRNOS: [Errno; 4] = [Errno::IO, Errno::BADMSG, Errno::TIMEDOUT, DEVICE_ERROR];
    error.raw_os_error().is_some_and(|errno| ERRNOS.iter().any(|known| known.raw_os_error() == errno))
}
