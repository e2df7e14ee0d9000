//! Linux and macOS. Calls go through rustix, which enters Linux directly: libc's wrappers are
//! cancellation points and cost a tenth of a cached read.
//!
//! `unsafe` here: reads into and writes from raw segments, locks of ranges, `close(2)` with its
//! result, signal masks, and the fork handler.

pub(crate) mod advice;
mod copy;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
mod memory;
mod names;

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(crate) use libc::iovec as IoVec;
use rustix::fs::{AtFlags, FileType, FlockOperation};
pub(crate) use rustix::fs::{CWD, Mode, OFlags};
pub(crate) use rustix::io::Errno;

pub(crate) use self::copy::copy_file;
#[cfg(target_os = "linux")]
pub(crate) use self::linux::*;
#[cfg(target_os = "macos")]
pub(crate) use self::macos::*;
pub(crate) use self::memory::{MAPS_BUFFERS, advise_memory, look_up_pages, map_file, map_zeros, page_bytes, unmap};
pub(crate) use self::names::{check, list, open, open_dir, rename, sync_dir};
use super::{FileLock, SEGMENTS_MAX, TRANSFER_MAX, WaitMode, WriteFlags, WriteOnce};

/// Reads at `offset` into `segments`.
///
/// # Safety
/// Each segment is initialised memory that may be written to, and that nothing else reads or writes
/// meanwhile.
pub(crate) unsafe fn read_at(
    fd: BorrowedFd<'_>,
    segments: &[IoVec],
    offset: u64,
    wait: WaitMode,
) -> Result<usize, Errno> {
    if let [one] = segments {
        let length = one.iov_len.min(TRANSFER_MAX);
        // An empty segment may have no address.
        let start = std::ptr::NonNull::new(one.iov_base.cast()).unwrap_or(std::ptr::NonNull::dangling());
        // SAFETY: the caller vouches for the memory.
        let slice = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) };
        return match wait {
            WaitMode::Allowed => retry(|| rustix::io::pread(fd, &mut *slice, offset)),
            WaitMode::Never => read_now(fd, &mut [IoSliceMut::new(slice)], offset),
        };
    }
    let slice = |segment: IoVec| {
        // SAFETY: the caller vouches for the memory; the segments of a list are not empty, and do
        // not overlap.
        IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(segment.iov_base.cast(), segment.iov_len) })
    };
    let mut slices: Vec<_> = of_one_call(segments, TRANSFER_MAX).map(slice).collect();
    match wait {
        WaitMode::Allowed => retry(|| rustix::io::preadv(fd, &mut slices, offset)),
        WaitMode::Never => read_now(fd, &mut slices, offset),
    }
}

/// Writes `segments` at `offset`, or at the end of the file with the flag to append. If
/// `pwritev2(2)` is refused, other calls do the same: see [`write_without_flags`].
///
/// # Safety
/// Each segment is initialised memory that nothing writes to meanwhile.
pub(crate) unsafe fn write_at(
    fd: BorrowedFd<'_>,
    segments: &[IoVec],
    offset: u64,
    flags: WriteFlags,
    wait: WaitMode,
) -> Result<usize, Errno> {
    let slice = |segment: &IoVec| -> &[u8] {
        let start = std::ptr::NonNull::new(segment.iov_base.cast()).unwrap_or(std::ptr::NonNull::dangling());
        // SAFETY: the caller vouches for the memory. An empty segment may have no address.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), segment.iov_len.min(TRANSFER_MAX)) }
    };
    let flags = if wait == WaitMode::Never { flags.with(WriteFlags::NOWAIT) } else { flags };
    match segments {
        [one] if flags == WriteFlags::NONE => retry(|| rustix::io::pwrite(fd, slice(one), offset)),
        [one] => write_slices(fd, &[IoSlice::new(slice(one))], offset, flags),
        many => {
            let slices: Vec<_> = of_one_call(many, TRANSFER_MAX).map(|segment| IoSlice::new(slice(&segment))).collect();
            if flags == WriteFlags::NONE {
                return retry(|| rustix::io::pwritev(fd, &slices, offset));
            }
            write_slices(fd, &slices, offset, flags)
        }
    }
}

/// Returns what one call takes of a list: at most this many bytes. Linux stops there itself; macOS refuses a list
/// of more than `i32::MAX` bytes (readv(2), EINVAL).
fn of_one_call(segments: &[IoVec], bytes_max: usize) -> impl Iterator<Item = IoVec> + '_ {
    let mut left = bytes_max;
    segments.iter().take(SEGMENTS_MAX).map_while(move |segment| {
        let iov_len = segment.iov_len.min(left);
        let is_over = left == 0;
        left -= iov_len;
        (!is_over).then_some(IoVec { iov_len, ..*segment })
    })
}

/// Emulates the flags of `pwritev2(2)` by other calls. Returns EOPNOTSUPP if no other call can, and
/// ENOSYS for an append through a descriptor without `O_APPEND`: it needs another descriptor.
fn write_without_flags(
    fd: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    offset: u64,
    flags: WriteFlags,
) -> Result<usize, Errno> {
    let served = WriteFlags::DURABLE.with(WriteFlags::APPEND);
    if !served.contains(flags) {
        return Err(Errno::OPNOTSUPP);
    }
    let of_file = rustix::fs::fcntl_getfl(fd)?;
    let appends = flags.contains(WriteFlags::APPEND);
    if appends && !of_file.contains(OFlags::APPEND) {
        // No other descriptor is opened for a read-only one: the write fails.
        let is_read_only = of_file & OFlags::RWMODE == OFlags::RDONLY;
        return Err(if is_read_only { Errno::BADF } else { Errno::NOSYS });
    }
    let n = retry(|| if appends { append(fd, slices) } else { rustix::io::pwritev(fd, slices, offset) })?;
    let is_synced = SYNCED_WRITES_FLUSH && of_file.intersects(DSYNC);
    if flags.contains(WriteFlags::DURABLE) && !is_synced {
        // An interrupted sync has reported no error. EINTR would make the caller write the bytes
        // again.
        retry(|| sync(fd, true))?;
    }
    Ok(n)
}

/// Creates a symbolic link.
pub(crate) use std::os::unix::fs::symlink;

/// Repeats `call` while it is interrupted by a signal.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => continue,
            result => return result,
        }
    }
}

/// Returns the status flags of a descriptor (`F_GETFL`).
pub(crate) fn flags(fd: BorrowedFd<'_>) -> Result<OFlags, Errno> {
    rustix::fs::fcntl_getfl(fd)
}

/// Sets the length of a file.
pub(crate) fn set_len(fd: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
    retry(|| rustix::fs::ftruncate(fd, length))
}

/// Creates a directory, with all permissions less the umask.
pub(crate) fn create_dir(path: &Path) -> Result<(), Errno> {
    retry(|| rustix::fs::mkdir(path, Mode::from_raw_mode(0o777)))
}

/// Start of a relative name: a directory's descriptor, or [`CWD`].
pub(crate) type At<'d> = BorrowedFd<'d>;

/// Names are resolved from the descriptor alone.
pub(crate) fn below<'d>(dir: BorrowedFd<'d>, _: Option<&Path>) -> At<'d> {
    dir
}

/// No path is kept of an open directory.
pub(crate) fn kept_path(_: &Path) -> Option<PathBuf> {
    None
}

/// Removes a name, resolved from `at`, unless it is that of a directory.
pub(crate) fn remove(at: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    retry(|| rustix::fs::unlinkat(at, path, AtFlags::empty()))
}

/// Sets the lock of a file (`flock(2)`). EAGAIN if another open holds a conflicting lock.
pub(crate) fn lock_file(fd: BorrowedFd<'_>, lock: FileLock) -> Result<(), Errno> {
    let operation = match lock {
        FileLock::Shared => FlockOperation::NonBlockingLockShared,
        FileLock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        FileLock::Unlocked => FlockOperation::Unlock,
    };
    retry(|| rustix::fs::flock(fd, operation))
}

/// Sets the lock of a range. The lock belongs to the open file (`F_OFD_SETLK`, Linux 3.15). EAGAIN if
/// another open holds a conflicting lock.
pub(crate) fn lock_range(fd: BorrowedFd<'_>, kind: FileLock, offset: u64, length: u64) -> Result<(), Errno> {
    let mut range = range_of(kind, offset, length);
    retry(|| {
        // SAFETY: `range` is this call's, of the type that the command takes.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    })
}

/// Returns whether another open has a lock that conflicts with [`lock_range`] (`F_OFD_GETLK`).
pub(crate) fn is_range_locked(fd: BorrowedFd<'_>, kind: FileLock, offset: u64, length: u64) -> Result<bool, Errno> {
    let mut range = range_of(kind, offset, length);
    retry(|| {
        // SAFETY: `range` is this call's, of the type that the command takes and answers with.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) } {
            0 => Ok(range.l_type != libc::F_UNLCK as libc::c_short),
            _ => Err(last_errno()),
        }
    })
}

fn range_of(kind: FileLock, offset: u64, length: u64) -> libc::flock {
    let kind = match kind {
        FileLock::Shared => libc::F_RDLCK,
        FileLock::Exclusive => libc::F_WRLCK,
        FileLock::Unlocked => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset as libc::off_t,
        l_len: length as libc::off_t,
        // `F_OFD_*` require zero.
        l_pid: 0,
    }
}

/// The errno of a call through libc that has just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Returns the size in bytes of a file or block device.
pub(crate) fn size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return device_size(fd);
    }
    Ok(stat.st_size.max(0) as u64)
}

/// The limit on sizes of files (`RLIMIT_FSIZE`), if there is one.
pub(crate) fn size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Sets mode, owner and group of a file to those of another.
pub(crate) fn set_mode_and_owner(fd: BorrowedFd<'_>, other: &Metadata) -> io::Result<()> {
    let own = to_std(fd).metadata()?;
    let changed = |own: u32, other: u32| (own != other).then_some(other);
    let (owner, group) = (changed(own.uid(), other.uid()), changed(own.gid(), other.gid()));
    if owner.is_some() || group.is_some() {
        fchown(fd, owner, group)?;
    }
    // Last, since a change of owner clears bits of the mode (chown(2)).
    to_std(fd).set_permissions(other.permissions())
}

/// Returns std's file on a borrowed descriptor, for one call of std. It does not close the
/// descriptor: closing any descriptor of a file releases the process's record locks on it (fcntl(2)).
pub(crate) fn to_std(fd: BorrowedFd<'_>) -> ManuallyDrop<File> {
    // SAFETY: the descriptor is open while `fd` is borrowed, which is longer than the caller's one
    // call, and is never closed here.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) })
}

/// Returns None: std can use the descriptor.
pub(crate) fn file_for_std(_: BorrowedFd<'_>) -> Result<Option<File>, Errno> {
    Ok(None)
}

/// Whether both are the same descriptor.
pub(crate) fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    one.as_raw_fd() == other.as_raw_fd()
}

/// Whether a path contains a zero byte, which the system cannot accept.
pub(crate) fn has_zero(path: &Path) -> bool {
    path.as_os_str().as_bytes().contains(&0)
}

/// Whether a name is that of a part of a file: never.
pub(crate) fn names_a_stream(_: &OsStr) -> bool {
    false
}

/// Returns the start of a name, of at most this many bytes. It ends with a whole character: macOS takes only
/// names of UTF-8.
pub(crate) fn start_of_name(name: &OsStr, bytes_max: usize) -> &OsStr {
    let bytes = name.as_bytes();
    let mut end = bytes.len().min(bytes_max);
    while bytes.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) && end > 0 {
        end -= 1;
    }
    OsStr::from_bytes(&bytes[..end])
}

/// Whether an errno reports that a quota is used up.
pub(crate) fn is_over_quota(errno: Errno) -> bool {
    errno == Errno::DQUOT
}

/// Returns the reason why the kernel refuses a queue.
pub(crate) fn why_refused(errno: Errno, is_ring: bool) -> &'static str {
    match (errno, is_ring) {
        (Errno::PERM | Errno::ACCESS, true) => "forbidden, by a seccomp filter or the sysctl kernel.io_uring_disabled",
        (Errno::PERM | Errno::ACCESS, false) => "forbidden, by a seccomp filter",
        (Errno::NOSYS, _) if cfg!(not(target_os = "linux")) => "not in this system",
        (Errno::NOSYS, _) => "not in this kernel, or hidden by a seccomp filter",
        (Errno::NOMEM, true) => "locked memory is short (ulimit -l), even for the smallest ring",
        (Errno::NOMEM, false) => "memory is short",
        (Errno::MFILE | Errno::NFILE, _) => "too many open files (ulimit -n)",
        (Errno::AGAIN, false) => "all that the sysctl fs.aio-max-nr allows is in use (fs.aio-nr says how much)",
        _ => "refused by the kernel",
    }
}

/// Returns the bytes between `offset` and the limit on file sizes, where the kernel cuts a write
/// that crosses it. None if there is no limit behind `offset`: a write at or beyond the limit fails
/// with EFBIG.
pub(crate) fn below_size_limit(offset: u64) -> Option<u64> {
    size_limit()?.checked_sub(offset).filter(|room| *room > 0)
}

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Returns a number that each fork since the first call increases, at the cost of two loads. An
/// object made under another number, such as a ring, a thread or a held lock, belongs to a parent
/// process and must not be used. A raw `clone(2)`, without libc's fork, is not counted.
#[inline]
pub fn fork_generation() -> u64 {
    static REGISTERED: WriteOnce<()> = WriteOnce::new();
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // Threads that call this first at the same time each register the handler: none waits for
    // another, which a child would not have.
    REGISTERED.get_or_init(|| {
        // SAFETY: the handler only adds to an atomic, which is async-signal-safe, and lives as long
        // as the program.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// Closes a descriptor, and returns the kernel's error, such as a deferred write error. EINTR counts
/// as closed.
pub(crate) fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: `into_raw_fd` gives the descriptor up, so that it is closed once, here.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => match last_errno() {
            Errno::INTR => Ok(()),
            errno => Err(errno),
        },
    }
}

/// Runs `start` with signals blocked. A thread that it starts inherits the mask, and so never takes a
/// signal.
pub(super) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    const RAISED: [i32; 6] = [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];
    let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` initialises the set that the next calls use; all pointers are to locals.
    let is_blocked = unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        RAISED.iter().for_each(|signal| _ = libc::sigdelset(blocked.as_mut_ptr(), *signal));
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = start();
    if is_blocked {
        // SAFETY: the call that succeeded has initialised `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: macOS refused reads and writes of many buffers that had 2 GiB or more.
    #[test]
    fn a_call_takes_the_first_bytes_of_a_list() {
        let mut bytes = [0_u8; 9];
        let segments: Vec<_> =
            bytes.chunks_mut(3).map(|part| IoVec { iov_base: part.as_mut_ptr().cast(), iov_len: 3 }).collect();
        for (bytes_max, lengths) in [(9, &[3, 3, 3][..]), (99, &[3, 3, 3]), (7, &[3, 3, 1]), (6, &[3, 3]), (2, &[2])] {
            assert!(of_one_call(&segments, bytes_max).map(|segment| segment.iov_len).eq(lengths.iter().copied()));
        }
        let many = [segments[0]; SEGMENTS_MAX + 1];
        assert_eq!(of_one_call(&many, TRANSFER_MAX).count(), SEGMENTS_MAX);
    }

    /// Symptom: macOS created no temporary file for a long name, which was cut within a character.
    #[test]
    fn the_start_of_a_name_is_whole_characters() {
        for (name, bytes_max, start) in [
            ("abc", 2, "ab"),
            ("abc", 9, "abc"),
            ("日本", 6, "日本"),
            ("日本", 5, "日"),
            ("日本", 3, "日"),
            ("é", 1, ""),
        ] {
            assert_eq!(start_of_name(OsStr::new(name), bytes_max), start);
        }
        let other = OsStr::from_bytes(&[0x80; 9]);
        assert!(start_of_name(other, 4).is_empty() && start_of_name(other, 9) == other);
    }
}
