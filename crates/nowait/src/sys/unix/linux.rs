//! Linux only.
//!
//! `unsafe` here: a block device's size, `cachestat(2)`, `sync_file_range(2)`, scheduling policies.

mod device;
mod poller;

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::ioctl;
use rustix::path::Arg;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::device::*;
pub(crate) use self::poller::{Poller, WakeEvent};
use super::{IoVec, check, last_errno, retry, write_without_flags};
use crate::sys::{Advice, Allocate, MemoryAdvice, WriteFlags};

/// I/O bypasses the page cache.
pub(crate) const DIRECT: OFlags = OFlags::DIRECT;
/// Reads do not change the file's times.
pub(crate) const NOATIME: OFlags = OFlags::NOATIME;
/// Opens a name without opening its file.
pub(super) const PATH: OFlags = OFlags::PATH;
/// Each write is durable. A part of `O_SYNC`; rustix's `DSYNC` stands for all of `O_SYNC`.
pub(crate) const DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC as u32);
/// A write to a descriptor with [`DSYNC`] flushes the device's cache.
pub(super) const SYNCED_WRITES_FLUSH: bool = true;
/// Flags that are kept when a file is opened again.
pub(crate) const OPEN_FLAGS_KEPT: OFlags = OFlags::SYNC.union(OFlags::DSYNC).union(OFlags::NOATIME);

/// Reads what is cached, without sleeping (`RWF_NOWAIT`). EOPNOTSUPP if the call is refused.
pub(super) fn read_now(fd: BorrowedFd<'_>, slices: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize, Errno> {
    attempt(|| rustix::io::preadv2(fd, slices, offset, ReadWriteFlags::NOWAIT))
}

/// Makes a non-blocking attempt. Returns EOPNOTSUPP if the call is refused, as for a file without
/// non-blocking reads.
fn attempt(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    retry(&mut call).map_err(|errno| if may_refuse_the_call(errno) { Errno::OPNOTSUPP } else { errno })
}

/// Returns whether an errno may come from a kernel without the call, or from a filter
/// (`seccomp(2)`). EPERM may also be an error of the file.
pub(super) fn may_refuse_the_call(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

pub(super) fn write_slices(
    fd: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    offset: u64,
    flags: WriteFlags,
) -> Result<usize, Errno> {
    if !are_write_flags_refused() {
        match retry(|| rustix::io::pwritev2(fd, slices, offset, ReadWriteFlags::from_bits_retain(flags.bits()))) {
            Err(errno) if may_refuse_the_call(errno) && refuses_write_flags(fd) => {}
            result => return result,
        }
    }
    write_without_flags(fd, slices, offset, flags)
}

/// Flags that an append needs although its descriptor has `O_APPEND`: none, `pwrite(2)` appends (BUGS).
pub(crate) const O_APPEND_NEEDS: WriteFlags = WriteFlags::NONE;

/// Appends through a descriptor with `O_APPEND`. Keeps its position.
pub(super) fn append(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    rustix::io::pwritev(fd, slices, 0)
}

/// True after `pwritev2(2)` was refused for any file. A filter cannot be removed, so this is final.
static WRITE_FLAGS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Returns whether `pwritev2(2)` is refused for any file. Tries it with a write of zero bytes.
pub(crate) fn refuses_write_flags(fd: BorrowedFd<'_>) -> bool {
    if !are_write_flags_refused() {
        let nothing = rustix::io::pwritev2(fd, &[], 0, ReadWriteFlags::DSYNC);
        if nothing.is_err_and(may_refuse_the_call) {
            WRITE_FLAGS_REFUSED.store(true, Ordering::Relaxed);
        }
    }
    are_write_flags_refused()
}

/// Returns whether `pwritev2(2)` was found to be refused for any file. This is final.
#[inline]
pub(crate) fn are_write_flags_refused() -> bool {
    WRITE_FLAGS_REFUSED.load(Ordering::Relaxed)
}

/// Makes the data durable, and the metadata needed to find it, or all metadata. Not repeated when it is
/// interrupted or fails: the kernel reports a failed write-back once.
pub(crate) fn sync(fd: BorrowedFd<'_>, data_only: bool) -> Result<(), Errno> {
    if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }
}

/// Changes the space of a range (`fallocate(2)`). Returns EOPNOTSUPP if the call is refused. EPERM
/// means that the file is append-only or sealed.
pub(crate) fn allocate(fd: BorrowedFd<'_>, how: Allocate, offset: u64, length: u64) -> Result<(), Errno> {
    let mode = match how {
        Allocate::Reserve => FallocateFlags::empty(),
        Allocate::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
        Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Allocate::Zero => FallocateFlags::ZERO_RANGE,
    };
    let allocate = |length| retry(|| rustix::fs::fallocate(fd, mode, offset, length));
    match allocate(length) {
        // A call that is not refused fails with EINVAL for a length of zero.
        Err(errno) if may_refuse_the_call(errno) && allocate(0).is_err_and(may_refuse_the_call) => {
            Err(Errno::OPNOTSUPP)
        }
        result => result,
    }
}

/// Advises the page cache (`posix_fadvise(2)`). Returns EOPNOTSUPP if the call is refused.
pub(crate) fn advise(fd: BorrowedFd<'_>, offset: u64, length: u64, advice: Advice) -> Result<(), Errno> {
    let advice = match advice {
        Advice::Normal => rustix::fs::Advice::Normal,
        Advice::Random => rustix::fs::Advice::Random,
        Advice::Sequential => rustix::fs::Advice::Sequential,
        Advice::WillNeed => rustix::fs::Advice::WillNeed,
        Advice::DontNeed => rustix::fs::Advice::DontNeed,
        Advice::NoReuse => rustix::fs::Advice::NoReuse,
    };
    let advised = retry(|| rustix::fs::fadvise(fd, offset, std::num::NonZeroU64::new(length), advice));
    advised.map_err(|errno| if may_refuse_the_call(errno) { Errno::OPNOTSUPP } else { errno })
}

/// Whether `cachestat(2)` (Linux 6.5) reports all pages of a range as cached. False if the call fails.
pub(crate) fn is_cached(fd: BorrowedFd<'_>, offset: u64, length: usize) -> bool {
    /// On all architectures.
    const CACHESTAT: libc::c_long = 451;
    let page = rustix::param::page_size() as u64;
    let range = [offset, length as u64];
    // Pages that are cached, dirty, being written back, evicted, and evicted lately.
    let mut pages = [0u64; 5];
    // SAFETY: two structures of 64-bit numbers, of which the kernel reads the first and writes the
    // second.
    let result = unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
    result == 0 && pages[0] >= (offset + length as u64).div_ceil(page) - offset / page
}

/// Starts write-back of a range and waits for it: `sync_file_range(2)`. If the call is refused, the
/// whole file is written back.
pub(crate) fn sync_range(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // A range that would end beyond the last offset ends with the file.
    let ends = offset.checked_add(length).is_some_and(|end| i64::try_from(end).is_ok());
    let length = if ends { length } else { 0 };
    retry(|| {
        // SAFETY: no memory is passed.
        match unsafe { libc::sync_file_range(fd.as_raw_fd(), offset as i64, length as i64, flags) } {
            0 => Ok(()),
            _ => match last_errno() {
                errno if may_refuse_the_call(errno) => rustix::fs::fdatasync(fd),
                errno => Err(errno),
            },
        }
    })
}

/// Whether an open file is a block device. Answered by the descriptor, not by the file system that
/// its name is in.
pub(crate) fn is_block_device(fd: BorrowedFd<'_>) -> bool {
    // As the kernel knows it: `fstat(2)` may ask a server.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let mode = match rustix::fs::statx(fd, "", flags, StatxFlags::TYPE) {
        Ok(stat) => Ok(stat.stx_mode.into()),
        Err(_) => rustix::fs::fstat(fd).map(|stat| stat.st_mode),
    };
    mode.is_ok_and(|mode| FileType::from_raw_mode(mode) == FileType::BlockDevice)
}

/// Returns whether the file system is known to honour `RWF_APPEND`.
///
/// Both `RWF_APPEND` and `O_APPEND` become `IOCB_APPEND`, but a file system that stacks on another
/// hands only the latter down with the open file. overlayfs drops the flag (`ovl_iocb_to_rwf`,
/// fs/overlayfs/file.c; seen on 5.10 and 6.1) and overwrites the file from the given offset. A
/// trial on the file would do that damage, and another file for a trial is not always available.
/// So only the listed file systems are trusted, which write themselves (`generic_write_checks`,
/// mm/filemap.c and fs/read_write.c).
pub(crate) fn honours_append_flag(fd: BorrowedFd<'_>) -> bool {
    /// ext2 to ext4, xfs, btrfs, f2fs, tmpfs, ramfs (linux/magic.h).
    const HONOUR: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(fd).is_ok_and(|system| HONOUR.contains(&(system.f_type as u64)))
}

/// The size in bytes of a block device.
pub(super) fn device_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    // SAFETY: `BLKGETSIZE64` of linux/fs.h writes a u64, as the getter says. (Seeking would move a
    // position that others may share.)
    unsafe {
        let getter = ioctl::Getter::<{ ioctl::opcode::read::<u64>(0x12, 114) }, u64>::new();
        ioctl::ioctl(fd, getter)
    }
}

/// Returns the size of a file or block device as the kernel knows it, without asking a server.
pub(crate) fn known_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, "", flags, StatxFlags::TYPE | StatxFlags::SIZE)?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::BlockDevice => device_size(fd),
        _ => Ok(stat.stx_size),
    }
}

/// Returns the monotonic time of the last clock tick, in nanoseconds; never zero. It is up to some
/// milliseconds old, and costs a fifth of the exact time.
pub(crate) fn tick_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

/// Returns the number of processors that this thread may use. Reading its cgroup's share costs a dozen
/// system calls, so the number is kept until the size of the affinity mask changes.
pub(crate) fn processors() -> usize {
    /// Size of the affinity mask, and the answer, 32 bits each.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let allowed = sched_getaffinity(None).map_or(0, |processors| u64::from(processors.count()));
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 && known >> 32 == allowed {
        return (known & u64::from(u32::MAX)) as usize;
    }
    let found = std::thread::available_parallelism().map_or(1, |n| n.get());
    KNOWN.store(allowed << 32 | found as u64, Ordering::Relaxed);
    found
}

/// Gives this new thread the main thread's affinity, and its policy unless that is a real-time one.
pub(crate) fn inherit_from_process() {
    let process = rustix::process::getpid();
    if let (Ok(own), Ok(all)) = (sched_getaffinity(None), sched_getaffinity(Some(process))) {
        if own != all {
            let _ = sched_setaffinity(None, &all);
        }
    }
    // By number: musl refuses its wrappers.
    // SAFETY: the call takes no pointer.
    let policy = |of: i32| unsafe { libc::syscall(libc::SYS_sched_getscheduler, of) };
    let (own, all) = (policy(0), policy(process.as_raw_nonzero().get()));
    let [other, batch, idle] = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(libc::c_long::from);
    let wanted = if all == batch || all == idle { all } else { other };
    if own != wanted {
        let priority: libc::c_int = 0;
        // SAFETY: the kernel reads a `struct sched_param`, which is one int (uapi/linux/sched/types.h).
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, wanted, &raw const priority) };
    }
}

/// Opens a regular file for reading, if its name is in the kernel's cache of names and the open of
/// its file system is known not to wait for others. Otherwise EAGAIN; EOPNOTSUPP if the kernel lacks
/// a flag (`RESOLVE_CACHED`: Linux 5.12, `openat2(2)`; `STATX_MNT_ID_UNIQUE`: Linux 6.8, `statx(2)`),
/// or a filter forbids the call.
///
/// First only walks the path: with `O_PATH`, the kernel does not call the open of a file system or
/// device, which may do anything.
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
/// Number and answer share a word, so that neither is read without the other. (A device's number
/// does not suffice: the next file system without a device may get it.)
static MOUNTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Flag beside the number of a mount, which counts up from 2^32: opens do not wait.
const OPENS_AT_ONCE: u64 = 1 << 63;

fn place_of(mount: u64) -> &'static AtomicU64 {
    &MOUNTS[mount as usize % MOUNTS.len()]
}

fn opens_at_once(mount: u64) -> bool {
    place_of(mount).load(Ordering::Relaxed) == mount | OPENS_AT_ONCE
}

/// Remembers whether the file system that `fd` is open in opens files without waiting for others.
/// Asks once per mount, since the question may reach a server.
///
/// Lists only file systems whose code for open and close, for reading, was examined. Not FUSE, NFS,
/// CIFS, 9p and Ceph, which report each open to a server, nor overlayfs, which may have such a layer.
pub(super) fn learn_of(fd: BorrowedFd<'_>) {
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

/// Opens the file of a descriptor again, for writing only. `/proc` leads to it even if its name was
/// removed.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    // `thread-self`, since threads may have separate descriptors (unshare(2), CLONE_FILES).
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    retry(|| rustix::fs::open(&*path, OFlags::WRONLY | OFlags::CLOEXEC | flags, Mode::empty()))
}

/// Path of an open file, for errors.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| link.into())
}

/// The advice of `madvise(2)`.
pub(super) fn advice_to_kernel(advice: MemoryAdvice) -> Option<rustix::mm::Advice> {
    use rustix::mm::Advice;
    Some(match advice {
        MemoryAdvice::Normal => Advice::Normal,
        MemoryAdvice::Random => Advice::Random,
        MemoryAdvice::Sequential => Advice::Sequential,
        MemoryAdvice::WillNeed => Advice::WillNeed,
        MemoryAdvice::HugePages => Advice::LinuxHugepage,
        // Linux 5.14.
        MemoryAdvice::Populate => Advice::LinuxPopulateRead,
        MemoryAdvice::Discard => Advice::LinuxDontNeed,
    })
}

/// Has the kernel copy the bytes of `sources` to the start of `target` (`process_vm_writev(2)`):
/// EFAULT beyond the end of a mapped file. Unlike `process_vm_readv(2)`, it treats many small pieces as
/// a plain copy.
///
/// # Safety
/// The sources are mapped, and nothing writes to them.
pub(crate) unsafe fn copy_bytes(sources: &[IoVec], target: &mut [u8]) -> Result<usize, Errno> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let copied = IoVec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    // SAFETY: as the caller promises; the kernel writes within `target`, which is borrowed for the call.
    let n = unsafe { libc::process_vm_writev(own, sources.as_ptr(), sources.len() as _, &copied, 1, 0) };
    usize::try_from(n).map_err(|_| last_errno())
}

/// Whether `mincore(2)` reports which pages are cached. If the caller neither owns the file nor may write to
/// it, the call reports every page as cached (`can_do_mincore`, mm/mincore.c, 5.2).
pub(crate) fn tells_cached_pages(fd: BorrowedFd<'_>) -> bool {
    use rustix::fs::{Access, CWD};
    let own = rustix::process::geteuid();
    let is_own = rustix::fs::fstat(fd).is_ok_and(|stat| own.is_root() || stat.st_uid == own.as_raw());
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    is_own || rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Copies from the position of one file to that of another; returns the number of bytes
/// (`copy_file_range(2)`).
pub(crate) fn copy_range(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes_max: usize) -> Result<usize, Errno> {
    rustix::fs::copy_file_range(from, None, to, None, bytes_max)
}

/// Whether an errno reports broken memory.
pub(crate) fn is_memory_broken(errno: Errno) -> bool {
    errno == Errno::HWPOISON
}

/// Returns the errno: each has a name.
pub(crate) fn named(errno: Errno) -> Errno {
    errno
}
