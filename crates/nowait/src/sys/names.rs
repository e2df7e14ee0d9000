//! Names in the file system: opening, listing, renaming.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::{may_refuse_the_call, retry};

/// Opens a directory, to list it, make its names durable, and resolve others from it. `path` is
/// resolved from `at`.
pub(crate) fn open_dir(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(at, path, flags, Mode::empty()))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(at: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    rustix::fs::fsync(open_dir(at, path)?)
}

/// The names in a directory, sorted, but for those of itself and of what it is in.
pub(crate) fn list(at: BorrowedFd<'_>, path: &Path) -> Result<Vec<OsString>, Errno> {
    let list = || -> Result<Vec<OsString>, Errno> {
        // Opened for this alone: the position of a descriptor belongs to all who use it.
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
    let refusal = match rename(from, to) {
        // A call that is not refused fails with ENOENT for an empty name.
        Err(errno)
            if errno == Errno::INVAL
                || may_refuse_the_call(errno)
                    && rename((from.0, Path::new("")), (to.0, Path::new(""))).is_err_and(may_refuse_the_call) =>
        {
            errno
        }
        result => return result,
    };
    match retry(|| rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())) {
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
/// `O_NONBLOCK` keeps the open of a FIFO from waiting for a writer; it is taken back afterwards,
/// since io_uring up to about 5.14 answers EAGAIN instead of handing a request to a worker when a
/// descriptor has it (`io_uring/rw.c`).
pub(crate) fn open(at: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = match retry(|| rustix::fs::openat(at, path, flags | OFlags::NONBLOCK, mode)) {
        // Somebody holds a lease on the file and is given time to let go (`fcntl(2)`, F_SETLEASE):
        // worth waiting for, if it is a file.
        Err(Errno::AGAIN) => {
            let place = retry(|| rustix::fs::openat(at, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))?;
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

/// Opens a regular file for reading, if its name is in the kernel's cache of names and the open of
/// its file system is known not to wait for others. Else EAGAIN; EOPNOTSUPP where the kernel cannot
/// be asked so (`RESOLVE_CACHED`: Linux 5.12, `openat2(2)`; `STATX_MNT_ID_UNIQUE`: Linux 6.8,
/// `statx(2)`), or a filter forbids it.
///
/// The walk alone is made first: `O_PATH` calls no open of a file system or device, which may do
/// anything.
pub(crate) fn open_cached(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let walk = |path: &CStr, flags| {
        retry(|| rustix::fs::openat2(at, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED))
    };
    let open = |path: &CStr| {
        let place = walk(path, OFlags::PATH).map_err(|errno| match errno {
            Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM => Errno::OPNOTSUPP,
            _ => Errno::AGAIN,
        })?;
        let (is_file, mount) = file_and_mount(place.as_fd())?;
        if !is_file || !opens_at_once(mount) {
            return Err(Errno::AGAIN);
        }
        let fd = walk(path, flags | OFlags::NOCTTY | OFlags::NONBLOCK).map_err(|_| Errno::AGAIN)?;
        check(&fd).map_err(|_| Errno::AGAIN)?;
        Ok(fd)
    };
    path.into_with_c_str(|path| Ok(open(path))).unwrap_or(Err(Errno::AGAIN))
}

/// Asks `statx(2)` for the number of a mount that no later mount gets (linux/stat.h; not in rustix).
pub(crate) const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Returns whether this is a regular file, and the number of its mount, which is not reused until
/// the system restarts. EOPNOTSUPP if the kernel has no such numbers.
fn file_and_mount(fd: BorrowedFd<'_>) -> Result<(bool, u64), Errno> {
    // Uses the cached inode; without this flag the kernel would ask a server.
    let asks = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, "", asks, StatxFlags::TYPE | MNT_ID_UNIQUE).map_err(|_| Errno::OPNOTSUPP)?;
    if stat.stx_mask & MNT_ID_UNIQUE.bits() == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok((FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile, stat.stx_mnt_id))
}

/// Mounts that files were opened in, and whether their file systems open without asking others.
/// Number and answer in one word, so that neither is read without the other. (A device's number
/// would not do: the next file system without a device may get it.)
static MOUNTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Beside the number of a mount, which is counted up from 2^32: its opens do not wait.
const OPENS_AT_ONCE: u64 = 1 << 63;

fn place_of(mount: u64) -> &'static AtomicU64 {
    &MOUNTS[mount as usize % MOUNTS.len()]
}

fn opens_at_once(mount: u64) -> bool {
    place_of(mount).load(Ordering::Relaxed) == mount | OPENS_AT_ONCE
}

/// Remembers whether the file system that `fd` is open in opens files without waiting for others.
/// Asks once: a server may be asked in turn.
///
/// Not FUSE, NFS, CIFS, 9p, Ceph: they report each open to a server. Nor overlayfs, a layer of
/// which may be one of those. Those are listed whose open and close of a file for reading were
/// looked at.
fn learn_of(fd: BorrowedFd<'_>) {
    /// ext2 to ext4, xfs, btrfs, tmpfs, ramfs (linux/magic.h).
    const AT_ONCE: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x8584_58f6];
    let Ok((_, mount)) = file_and_mount(fd) else { return };
    let known = place_of(mount);
    if known.load(Ordering::Relaxed) & !OPENS_AT_ONCE != mount {
        let at_once = rustix::fs::fstatfs(fd).is_ok_and(|system| AT_ONCE.contains(&(system.f_type as u64)));
        let answer = if at_once { OPENS_AT_ONCE } else { 0 };
        known.store(mount | answer, Ordering::Relaxed);
    }
}

/// Opens the file of a descriptor once more, for writing only. `/proc` leads to it also when it has
/// no name any more.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    // The thread's own: descriptors need not be shared by all threads (unshare(2), CLONE_FILES).
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    retry(|| rustix::fs::open(&*path, OFlags::WRONLY | OFlags::CLOEXEC | flags, Mode::empty()))
}

/// Makes sure that a descriptor has positions to read at, and takes `O_NONBLOCK` from it.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), Errno> {
    let status = rustix::fs::fcntl_getfl(fd)?;
    if status.contains(OFlags::PATH) {
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
        // fs/anon_inodes.c), which let themselves be sought in, and a read of which may wait for
        // ever.
        _ => return Err(Errno::SPIPE),
    }
    if status.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(fd, status - OFlags::NONBLOCK)?;
    }
    Ok(())
}
