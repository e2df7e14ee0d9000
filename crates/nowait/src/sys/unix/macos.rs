//! macOS: its equivalents of Linux's calls. Calls without an equivalent are refused.
//!
//! `unsafe` here: `fcntl(2)` calls that rustix lacks.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::{IoVec, retry, size};
use crate::sys::{Advice, Allocate, MemoryAdvice, WriteFlags};

/// No flag of `open(2)`. `F_NOCACHE` is not `O_DIRECT`: it may still use cached pages.
pub(crate) const DIRECT: OFlags = OFlags::empty();
/// No flag: reads may change the file's times.
pub(crate) const NOATIME: OFlags = OFlags::empty();
/// A flag that no descriptor has.
pub(super) const PATH: OFlags = OFlags::from_bits_retain(1 << 31);
/// With one of these, each write waits for the device, but leaves data in its cache (`vn_write`, XNU).
pub(crate) const DSYNC: OFlags = OFlags::SYNC.union(OFlags::from_bits_retain(libc::O_DSYNC as u32));
/// A write to a descriptor with [`DSYNC`] does not flush the device's cache.
pub(super) const SYNCED_WRITES_FLUSH: bool = false;
/// Flags that are kept when a file is opened again.
pub(crate) const OPEN_FLAGS_KEPT: OFlags = DSYNC;

/// Refused: no read is known not to sleep.
pub(super) fn read_now(_: BorrowedFd<'_>, _: &mut [IoSliceMut<'_>], _: u64) -> Result<usize, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Returns whether an errno means that a call does not exist.
pub(super) fn may_refuse_the_call(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::NOTSUP | Errno::OPNOTSUPP)
}

/// Writes have no flags.
pub(super) use super::write_without_flags as write_slices;

/// Flags that an append needs although its descriptor has `O_APPEND`: `pwrite(2)` ignores `O_APPEND` (`vn_write`, XNU).
pub(crate) const O_APPEND_NEEDS: WriteFlags = WriteFlags::APPEND;

/// Appends through a descriptor with `O_APPEND`. Moves its position.
pub(super) fn append(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    rustix::io::writev(fd, slices)
}

/// Makes a file durable (`F_FULLFSYNC`, fcntl(2)): `fsync(2)` alone leaves data in the device's cache.
/// If the file system refuses the command, as network and read-only file systems may, only calls `fsync(2)`.
pub(crate) fn sync(fd: BorrowedFd<'_>, _data_only: bool) -> Result<(), Errno> {
    super::memory::write_back_maps(fd)?;
    match rustix::fs::fcntl_fullfsync(fd) {
        Err(Errno::NOTSUP | Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::ROFS) => rustix::fs::fsync(fd),
        result => result,
    }
}

/// Reserves space (`F_PREALLOCATE`) behind the end, and extends the file. Refuses other modes. Not
/// atomic: it cuts off a concurrent write through another open that extends the file beyond the range.
pub(crate) fn allocate(fd: BorrowedFd<'_>, how: Allocate, offset: u64, length: u64) -> Result<(), Errno> {
    if how != Allocate::Reserve {
        return Err(Errno::OPNOTSUPP);
    }
    let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::FBIG)?;
    let before = size(fd)?;
    if length == 0 {
        return Err(Errno::INVAL);
    }
    if end <= before {
        // The command adds space only behind the end.
        return Ok(());
    }
    let mut store = libc::fstore_t {
        fst_flags: libc::F_ALLOCATEALL,
        fst_posmode: libc::F_PEOFPOSMODE,
        fst_offset: 0,
        fst_length: (end - before) as libc::off_t,
        fst_bytesalloc: 0,
    };
    retry(|| {
        // SAFETY: `store` is this call's, of the type that the command takes.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_PREALLOCATE, &raw mut store) } {
            -1 => Err(super::last_errno()),
            _ => Ok(()),
        }
    })?;
    if size(fd)? < end { retry(|| rustix::fs::ftruncate(fd, end)) } else { Ok(()) }
}

/// Starts reading (`F_RDADVISE`), at most 2 GiB of the range. Refuses other advice.
pub(crate) fn advise(fd: BorrowedFd<'_>, offset: u64, length: u64, advice: Advice) -> Result<(), Errno> {
    if advice != Advice::WillNeed {
        return Err(Errno::OPNOTSUPP);
    }
    let length = if length == 0 { size(fd)?.saturating_sub(offset) } else { length };
    let count = libc::c_int::try_from(length).unwrap_or(libc::c_int::MAX);
    let range = libc::radvisory { ra_offset: offset as libc::off_t, ra_count: count };
    let advised = retry(|| {
        // SAFETY: `range` is this call's, of the type that the command takes.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_RDADVISE, &raw const range) } {
            -1 => Err(super::last_errno()),
            _ => Ok(()),
        }
    });
    // HFS+ refuses a range that begins at the end of the file or behind it.
    if advised == Err(Errno::FBIG) { Ok(()) } else { advised }
}

/// Writes the whole file back (`fsync(2)`), which does not flush the device's cache.
pub(crate) fn sync_range(fd: BorrowedFd<'_>, _offset: u64, _length: u64) -> Result<(), Errno> {
    retry(|| rustix::fs::fsync(fd))
}

/// Whether an open file is a block device.
pub(crate) fn is_block_device(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
}

/// Refused: the size of a device has no portable call.
pub(super) fn device_size(_: BorrowedFd<'_>) -> Result<u64, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Returns the monotonic time in nanoseconds; never zero.
pub(crate) fn tick_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

pub(super) fn learn_of(_: BorrowedFd<'_>) {}

/// Opens a file again, for writing only, by its present path. Fails if the path leads to another file.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = rustix::fs::getpath(fd)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | flags;
    let other = retry(|| rustix::fs::open(&*path, flags, Mode::empty()))?;
    let [own, found] = [rustix::fs::fstat(fd)?, rustix::fs::fstat(&other)?];
    if (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino) { Ok(other) } else { Err(Errno::NOENT) }
}

/// Path of an open file, for errors.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    let path = rustix::fs::getpath(fd).unwrap_or_default();
    PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes()))
}

/// Returns the device that a file lies on. There are no numbers of mounts.
pub(crate) fn device_of(fd: BorrowedFd<'_>) -> Option<(Option<u64>, u64)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let number = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => Some(stat.st_dev as u64),
        FileType::BlockDevice => Some(stat.st_rdev as u64),
        _ => None,
    };
    Some((number, 0))
}

/// The advice of `madvise(2)`.
pub(super) fn advice_to_kernel(advice: MemoryAdvice) -> Option<rustix::mm::Advice> {
    use rustix::mm::Advice;
    Some(match advice {
        MemoryAdvice::Normal => Advice::Normal,
        MemoryAdvice::Random => Advice::Random,
        MemoryAdvice::Sequential => Advice::Sequential,
        MemoryAdvice::WillNeed => Advice::WillNeed,
        MemoryAdvice::HugePages | MemoryAdvice::Populate | MemoryAdvice::Discard => return None,
    })
}

/// Refused: no call that copies from a map returns an error beyond the end of the file.
///
/// # Safety
/// None.
pub(crate) unsafe fn copy_bytes(_: &[IoVec], _: &mut [u8]) -> Result<usize, Errno> {
    Err(Errno::NOSYS)
}

/// Refused: no call copies a range.
pub(crate) fn copy_range(_: BorrowedFd<'_>, _: BorrowedFd<'_>, _: usize) -> Result<usize, Errno> {
    Err(Errno::NOSYS)
}

/// Replaces an errno without a name by the one that means the same.
pub(crate) fn named(errno: Errno) -> Errno {
    match errno.raw_os_error() {
        libc::ENOTSUP => Errno::OPNOTSUPP,
        libc::EDEVERR | libc::EPWROFF => Errno::IO,
        _ => errno,
    }
}
