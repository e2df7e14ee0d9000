//! Names in the file system: opening, listing, renaming. Names relative to an open directory are resolved
//! from its present path.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{OpenOptionsExt, symlink_dir, symlink_file};
use std::os::windows::io::FromRawHandle;
use std::path::{Component, Path, PathBuf, Prefix};
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use windows_sys::Win32::Foundation::{GENERIC_READ, INVALID_HANDLE_VALUE, NTSTATUS, STATUS_DELETE_PENDING};
use windows_sys::Win32::Storage::FileSystem as win;

use super::{
    AsFd, BorrowedFd, Errno, Mode, OFlags, OwnedFd, checked, final_path, flags, flush, information, last_errno, raw,
    to_std,
};
use crate::sys::CopyOutcome;

/// Start of a relative name: an open directory with the absolute path that it was opened by, or the working
/// directory.
#[derive(Clone, Copy)]
pub(crate) struct At<'d>(Option<(BorrowedFd<'d>, Option<&'d Path>)>);

/// Stands for the working directory.
pub(crate) const CWD: At<'static> = At(None);

/// Stands for an open directory, of which this path was kept.
pub(crate) fn below<'d>(dir: BorrowedFd<'d>, kept_path: Option<&'d Path>) -> At<'d> {
    At(Some((dir, kept_path)))
}

/// Returns the path to keep of a directory that is opened by this path.
pub(crate) fn kept_path(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

/// Every other handle may read, write, rename and remove the file, as on POSIX.
const SHARED: u32 = win::FILE_SHARE_READ | win::FILE_SHARE_WRITE | win::FILE_SHARE_DELETE;

fn errno(error: io::Error) -> Errno {
    // Without a code, the error is std's own, for a path that contains a zero.
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

#[link(name = "ntdll", kind = "raw-dylib")]
unsafe extern "system" {
    /// The status behind `GetLastError`. windows-sys lacks it.
    fn RtlGetLastNtStatus() -> NTSTATUS;
}

/// Whether the call that has just failed with ACCESS named a removed file, whose name stays until its last
/// handle is closed (SMB, FAT, ReFS).
fn is_removed() -> bool {
    // SAFETY: no memory is passed.
    unsafe { RtlGetLastNtStatus() == STATUS_DELETE_PENDING }
}

/// Repeats a change of the name `path` while a program has the file open: scanners do for some milliseconds.
/// Sleeps up to 0.4 s. Does not repeat what a directory or the read-only attribute refuses.
fn patiently(path: &Path, mut change: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    const PAUSE_MAX: Duration = Duration::from_millis(192);
    let is_barred =
        || std::fs::symlink_metadata(path).is_ok_and(|about| about.is_dir() || about.permissions().readonly());
    let mut pause = Duration::from_millis(3);
    loop {
        match change() {
            Err(Errno::ACCESS | Errno::BUSY | Errno::AGAIN) if pause <= PAUSE_MAX && !is_barred() => {
                thread::sleep(pause);
                pause *= 2;
            }
            result => return result,
        }
    }
}

/// Resolves `path` from the directory `at`. Some drivers do not tell a directory's present path, nor does a
/// volume without a drive letter: the kept path counts there if it still leads to the directory. Otherwise fails:
/// `path` alone could lead to another file.
fn at(at: At<'_>, path: &Path) -> Result<PathBuf, Errno> {
    let At(Some((dir, kept))) = at else { return Ok(path.to_path_buf()) };
    let identity = |dir: BorrowedFd<'_>| {
        let of = information(dir)?;
        Ok((of.dwVolumeSerialNumber, of.nFileIndexHigh, of.nFileIndexLow))
    };
    match (final_path(dir), kept) {
        (Ok(present), _) => Ok(present.join(path)),
        (Err(_), Some(kept)) if identity(directory(kept, win::FILE_READ_ATTRIBUTES)?.as_fd())? == identity(dir)? => {
            Ok(kept.join(path))
        }
        (Err(errno), _) => Err(errno),
    }
}

/// Returns a path for a call of Windows, as std does: verbatim (`\\?\`) if it exceeds `MAX_PATH`.
fn wide(path: &Path) -> Result<Vec<u16>, Errno> {
    const PLAIN_MAX: usize = 247;
    let path = std::path::absolute(path).map_err(errno)?;
    let mut units: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    let prefix = match path.components().next() {
        Some(Component::Prefix(prefix)) if units.len() > PLAIN_MAX => Some(prefix.kind()),
        _ => None,
    };
    match prefix {
        Some(Prefix::Disk(_)) => drop(units.splice(..0, r"\\?\".encode_utf16())),
        Some(Prefix::UNC(..)) => drop(units.splice(..2, r"\\?\UNC\".encode_utf16())),
        _ => {}
    }
    Ok(units)
}

/// Opens a directory, to list it, make its names durable, and resolve others from it.
pub(crate) fn open_dir(dir: At<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    directory(&at(dir, path)?, GENERIC_READ)
}

fn directory(path: &Path, access: u32) -> Result<OwnedFd, Errno> {
    let mut options = OpenOptions::new();
    options.access_mode(access).share_mode(SHARED).custom_flags(win::FILE_FLAG_BACKUP_SEMANTICS);
    let file = options.open(path).map_err(errno)?;
    match file.metadata().map_err(errno)?.is_dir() {
        true => Ok(file.into()),
        false => Err(Errno::NOTDIR),
    }
}

/// Makes the names in a directory durable (`FlushFileBuffers`). Does nothing where directories cannot be
/// flushed: SMB servers and RAM disks refuse that.
pub(crate) fn sync_dir(dir: At<'_>, path: &Path) -> Result<(), Errno> {
    let path = at(dir, path)?;
    // The flush needs a handle that may create files or directories, whichever the user may.
    let open = |access| directory(&path, win::SYNCHRONIZE | win::FILE_READ_ATTRIBUTES | access);
    let opened = match open(win::FILE_ADD_FILE) {
        Err(Errno::ACCESS) => open(win::FILE_ADD_SUBDIRECTORY)?,
        opened => opened?,
    };
    match flush(opened.as_fd()).map_err(Errno::named) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        flushed => flushed,
    }
}

/// Returns the names in a directory, sorted.
pub(crate) fn list(dir: At<'_>, path: &Path) -> Result<Vec<OsString>, Errno> {
    let path = at(dir, path)?;
    // `FindFirstFileW` returns different errors for a path below a file.
    let not_listed = |error| if path.is_file() { Errno::NOTDIR } else { errno(error) };
    let names = std::fs::read_dir(&path).map_err(not_listed)?;
    let names: io::Result<Vec<_>> = names.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names.map_err(errno)?;
    names.sort_unstable();
    Ok(names)
}

/// Renames. Without `replace`, fails if the new name exists (`MoveFileExW`).
pub(crate) fn rename(from: (At<'_>, &Path), to: (At<'_>, &Path), replace: bool) -> Result<(), Errno> {
    let (from, to) = (at(from.0, from.1)?, at(to.0, to.1)?);
    if replace {
        let renamed = patiently(&to, || std::fs::rename(&from, &to).map_err(errno));
        return renamed.map_err(|errno| match errno {
            Errno::ACCESS if to.is_dir() && !from.is_dir() => Errno::ISDIR,
            errno => errno,
        });
    }
    let names = (wide(&from)?, wide(&to)?);
    patiently(&to, || {
        // SAFETY: both end with a zero.
        checked(unsafe { win::MoveFileExW(names.0.as_ptr(), names.1.as_ptr(), 0) })
    })
}

/// Opens `path` for overlapped I/O, and makes sure that it is a file with positions to read at.
pub(crate) fn open(dir: At<'_>, path: &Path, flags: OFlags, _mode: Mode) -> Result<OwnedFd, Errno> {
    let path = at(dir, path)?;
    let mut options = OpenOptions::new();
    let access = flags & OFlags::RWMODE;
    options.read(access != OFlags::WRONLY);
    if access != OFlags::RDONLY {
        if flags.contains(OFlags::APPEND) {
            options.append(true)
        } else {
            options.write(true)
        };
    }
    options.truncate(flags.contains(OFlags::TRUNC));
    options.create(flags.contains(OFlags::CREATE)).create_new(flags.contains(OFlags::EXCL));
    let through = if flags.contains(OFlags::DSYNC) { win::FILE_FLAG_WRITE_THROUGH } else { 0 };
    options.share_mode(SHARED).custom_flags(win::FILE_FLAG_OVERLAPPED | through);
    let file = options.open(&path).map_err(errno).map_err(|errno| match errno {
        Errno::ACCESS if is_removed() && flags.contains(OFlags::CREATE) => Errno::BUSY,
        Errno::ACCESS if is_removed() => Errno::NOENT,
        Errno::ACCESS if path.is_dir() => Errno::ISDIR,
        errno => errno,
    })?;
    let fd = OwnedFd::from(file);
    // It is not a directory: those need `FILE_FLAG_BACKUP_SEMANTICS`.
    check_type(&fd)?;
    Ok(fd)
}

/// Makes sure that a handle is that of a file.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), Errno> {
    check_type(fd)?;
    match to_std(fd.as_fd()).metadata().map_err(errno)?.is_dir() {
        true => Err(Errno::ISDIR),
        false => Ok(()),
    }
}

/// Makes sure that a handle is not that of a device or pipe.
fn check_type(fd: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    match unsafe { win::GetFileType(raw(fd.as_fd())) } {
        win::FILE_TYPE_DISK => Ok(()),
        _ => Err(Errno::SPIPE),
    }
}

/// Opens the file of a handle again, for writing only.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let data = if flags.contains(OFlags::APPEND) { 0 } else { win::FILE_WRITE_DATA };
    let access = win::FILE_GENERIC_WRITE & !win::FILE_WRITE_DATA | data;
    let through = if flags.contains(OFlags::DSYNC) { win::FILE_FLAG_WRITE_THROUGH } else { 0 };
    open_again(fd, access, win::FILE_FLAG_OVERLAPPED | through)
}

/// Opens the file of a handle again, as std does: not overlapped.
pub(super) fn reopen_for_std(fd: BorrowedFd<'_>) -> Result<File, Errno> {
    let flags = flags(fd)?;
    let reads = if flags & OFlags::RWMODE == OFlags::WRONLY { 0 } else { win::FILE_GENERIC_READ };
    let writes = match (flags & OFlags::RWMODE == OFlags::RDONLY, flags.contains(OFlags::APPEND)) {
        (true, _) => 0,
        (false, true) => win::FILE_GENERIC_WRITE & !win::FILE_WRITE_DATA,
        (false, false) => win::FILE_GENERIC_WRITE,
    };
    let through = if flags.contains(OFlags::DSYNC) { win::FILE_FLAG_WRITE_THROUGH } else { 0 };
    open_again(fd, reads | writes, through).map(File::from)
}

fn open_again(fd: BorrowedFd<'_>, access: u32, flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: no memory is passed. A handle that was returned is owned by nothing else.
    unsafe {
        let handle = win::ReOpenFile(raw(fd), access, SHARED, flags);
        if handle == INVALID_HANDLE_VALUE || handle == null_mut() {
            return Err(last_errno());
        }
        Ok(OwnedFd::from_raw_handle(handle))
    }
}

/// Creates a directory.
pub(crate) fn create_dir(path: &Path) -> Result<(), Errno> {
    std::fs::create_dir(path).map_err(errno)
}

/// Removes a file, resolved from `dir`; also one that may only be read, as on POSIX.
pub(crate) fn remove(dir: At<'_>, path: &Path) -> Result<(), Errno> {
    let path = at(dir, path)?;
    let removed = patiently(&path, || {
        std::fs::remove_file(&path).map_err(errno).or_else(|errno| match errno {
            Errno::ACCESS if is_removed() => Err(Errno::NOENT),
            errno => remove_read_only(&path).ok_or(errno),
        })
    });
    removed.map_err(|errno| match errno {
        Errno::ACCESS if path.is_dir() => Errno::ISDIR,
        errno => errno,
    })
}

/// Removes a file in spite of its attribute. None if it has none, or cannot be removed.
fn remove_read_only(path: &Path) -> Option<()> {
    let permissions = std::fs::symlink_metadata(path).ok().filter(|about| !about.is_dir())?.permissions();
    if !permissions.readonly() {
        return None;
    }
    let mut writable = permissions.clone();
    writable.set_readonly(false);
    std::fs::set_permissions(path, writable).ok()?;
    let removed = std::fs::remove_file(path);
    if removed.is_err() {
        let _ = std::fs::set_permissions(path, permissions);
    }
    removed.ok()
}

/// Creates a symbolic link: to a directory if the target is one now, else to a file.
pub(crate) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    let place = link.parent().map_or_else(|| target.to_path_buf(), |parent| parent.join(target));
    if place.is_dir() { symlink_dir(target, link) } else { symlink_file(target, link) }
}

/// Copies contents, attributes and streams of the regular file `from` (`CopyFileExW`). Blocks.
pub(crate) fn copy_file(from: &Path, to: &Path) -> io::Result<CopyOutcome> {
    if !std::fs::metadata(from)?.is_file() {
        return Ok(CopyOutcome::Refused("the source is not a regular file; name a regular file"));
    }
    if let (Ok(one), Ok(other)) = (from.canonicalize(), to.canonicalize()) {
        if one == other {
            let why = "source and target are one file, which is unchanged; name another target";
            return Ok(CopyOutcome::Refused(why));
        }
    }
    std::fs::copy(from, to).map(CopyOutcome::Bytes)
}
