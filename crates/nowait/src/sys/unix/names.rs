//! Names in the file system: opening, listing, renaming.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;

use super::retry;
use super::{PATH, learn_of, may_refuse_the_call, named, sync};

/// Opens a directory, to list it, make its names durable, and resolve others from it. `path` is
/// resolved from `at`.
pub(crate) fn open_dir(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(at, path, flags, Mode::empty()))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(at: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    sync(open_dir(at, path)?.as_fd(), false)
}

/// Returns the names in a directory, sorted, without `.` and `..`.
pub(crate) fn list(at: BorrowedFd<'_>, path: &Path) -> Result<Vec<OsString>, Errno> {
    let list = || -> Result<Vec<OsString>, Errno> {
        // A separate descriptor, since all users of a descriptor share its position.
        let names = rustix::fs::Dir::new(open_dir(at, path)?)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
        let names = names.filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")));
        names.map(|name| name.map(OsString::from_vec)).collect()
    };
    let mut names = retry(list)?;
    names.sort_unstable();
    Ok(names)
}

/// Renames. Without `replace`, fails if the new name exists (`renameat2(2)`). If the call is
/// refused, or the file system lacks the flag, a link and a removal do the same, except for
/// directories. Both names then exist for a moment, and after a crash at that moment. EOPNOTSUPP if
/// neither way works.
pub(crate) fn rename(from: (BorrowedFd<'_>, &Path), to: (BorrowedFd<'_>, &Path), replace: bool) -> Result<(), Errno> {
    if replace {
        return retry(|| rustix::fs::renameat(from.0, from.1, to.0, to.1));
    }
    let rename = |from: (BorrowedFd<'_>, &Path), to: (BorrowedFd<'_>, &Path)| {
        retry(|| rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE))
    };
    // macOS returns ENOTSUP, which is EOPNOTSUPP on Linux.
    let lacks_the_flag = |errno| errno == Errno::INVAL || cfg!(target_os = "macos") && errno == Errno::NOTSUP;
    let refusal = match rename(from, to) {
        // A call that is not refused fails with ENOENT for an empty name.
        Err(errno)
            if lacks_the_flag(errno)
                || may_refuse_the_call(errno)
                    && rename((from.0, Path::new("")), (to.0, Path::new(""))).is_err_and(may_refuse_the_call) =>
        {
            errno
        }
        result => return result,
    };
    match retry(|| rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())).map_err(named) {
        Ok(()) => {}
        // EINVAL means that the file system lacks the flag, or that the rename is invalid.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) if refusal == Errno::INVAL => return Err(refusal),
        // The source is a directory, or links are forbidden.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => return Err(Errno::OPNOTSUPP),
        Err(errno) => return Err(errno),
    }
    let removed = retry(|| rustix::fs::unlinkat(from.0, from.1, AtFlags::empty()));
    if removed.is_err() {
        let _ = retry(|| rustix::fs::unlinkat(to.0, to.1, AtFlags::empty()));
    }
    removed
}

/// Opens `path`, resolved from `at`, and makes sure that it has positions to read at: not a
/// directory, FIFO, socket or terminal.
///
/// `O_NONBLOCK` keeps the open of a FIFO from waiting for a writer. It is cleared afterwards: for a
/// descriptor with the flag, io_uring up to about 5.14 returns EAGAIN instead of handing a request to
/// a worker (`io_uring/rw.c`).
pub(crate) fn open(at: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = match retry(|| rustix::fs::openat(at, path, flags | OFlags::NONBLOCK, mode)) {
        // Another process holds a lease on the file, and has time to release it (`fcntl(2)`,
        // F_SETLEASE). Wait, if this is a regular file.
        Err(Errno::AGAIN) => {
            let place = retry(|| rustix::fs::openat(at, path, PATH | OFlags::CLOEXEC, Mode::empty()))?;
            match FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) {
                FileType::RegularFile => retry(|| rustix::fs::openat(at, path, flags, mode))?,
                _ => return Err(Errno::AGAIN),
            }
        }
        opened => opened?,
    };
    check(&fd)?;
    learn_of(fd.as_fd());
    Ok(fd)
}

/// Makes sure that a descriptor has positions to read at, and clears `O_NONBLOCK`.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), Errno> {
    let status = rustix::fs::fcntl_getfl(fd)?;
    if status.contains(PATH) {
        // Such a descriptor only names a file, and permits no I/O.
        return Err(Errno::BADF);
    }
    match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) {
        FileType::RegularFile | FileType::BlockDevice => {}
        FileType::Directory => return Err(Errno::ISDIR),
        FileType::CharacterDevice => {
            rustix::fs::seek(fd, SeekFrom::Current(0))?;
        }
        // A pipe or a socket; or of no type: an eventfd, a timer, an epoll (anon_inode_getfile,
        // fs/anon_inodes.c). These permit seeks, and a read may never return.
        _ => return Err(Errno::SPIPE),
    }
    if status.contains(OFlags::NONBLOCK) {
        match rustix::fs::fcntl_setfl(fd, status - OFlags::NONBLOCK) {
            // XNU has cleared the flag, and then told the device, which does not know the command (FIONBIO).
            Err(Errno::NOTTY) => {}
            cleared => cleared?,
        }
    }
    Ok(())
}
