//! System calls that std lacks, in and out in Rust's terms. EINTR of plain calls is dealt with here
//! and nowhere else (of an engine's completions: in `op::step`).
//!
//! `unsafe` here: reads into and writes from raw segments, a block device's size, locks of ranges,
//! `close(2)` with its result, signal masks, scheduling policies, and the fork handler. Calls go
//! through rustix, which enters the kernel directly: libc's wrappers are cancellation points and
//! cost a tenth of a cached read.

mod names;
mod once;

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use rustix::fs::{Advice, AtFlags, FallocateFlags, FileType, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::ioctl;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::names::{MNT_ID_UNIQUE, check, list, open, open_cached, open_dir, rename, reopen, sync_dir};
pub use self::once::PerProcess;
pub(crate) use self::once::WriteOnce;

/// The most that one read or write moves: `MAX_RW_COUNT` (`read(2)`, NOTES). Longer requests come
/// back short.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// The most segments that one vectored call takes: `UIO_MAXIOV` (`readv(2)`).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// How a read may behave when the data is not in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitMode {
    /// Sleep until the device answers.
    Allowed,
    /// `RWF_NOWAIT` (Linux 4.14, `preadv2(2)`): answer EAGAIN, or what is cached, instead of
    /// sleeping.
    Never,
}

/// Reads at `offset` into `segments`.
///
/// # Safety
/// Each segment is initialised memory that may be written to, and that nothing else reads or writes
/// meanwhile.
pub(crate) unsafe fn read_at(
    fd: BorrowedFd<'_>,
    segments: &[libc::iovec],
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
            WaitMode::Never => {
                attempt(|| rustix::io::preadv2(fd, &mut [IoSliceMut::new(slice)], offset, ReadWriteFlags::NOWAIT))
            }
        };
    }
    let slice = |segment: &libc::iovec| {
        // SAFETY: the caller vouches for the memory; the segments of a list are not empty, and do
        // not overlap.
        IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(segment.iov_base.cast(), segment.iov_len) })
    };
    let mut slices: Vec<_> = segments.iter().take(SEGMENTS_MAX).map(slice).collect();
    match wait {
        WaitMode::Allowed => retry(|| rustix::io::preadv(fd, &mut slices, offset)),
        WaitMode::Never => attempt(|| rustix::io::preadv2(fd, &mut slices, offset, ReadWriteFlags::NOWAIT)),
    }
}

/// Makes a non-blocking attempt. Returns EOPNOTSUPP if the call is refused, as for a file without
/// non-blocking reads.
fn attempt(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    retry(&mut call).map_err(|errno| if may_refuse_the_call(errno) { Errno::OPNOTSUPP } else { errno })
}

/// Returns whether an errno may come from a kernel without the call, or from a filter
/// (`seccomp(2)`). EPERM may also be an error of the file.
fn may_refuse_the_call(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

/// Flags of a write: `RWF_DSYNC`, `RWF_NOWAIT`, `RWF_APPEND`, `RWF_DONTCACHE`, `RWF_ATOMIC`
/// (`pwritev2(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriteFlags(u32);

impl WriteFlags {
    pub(crate) const NONE: WriteFlags = WriteFlags(0);
    /// Linux 4.7.
    pub(crate) const DURABLE: WriteFlags = WriteFlags(libc::RWF_DSYNC as u32);
    /// Linux 4.13. For rings; of a plain call, `WaitMode` says it.
    pub(crate) const NOWAIT: WriteFlags = WriteFlags(libc::RWF_NOWAIT as u32);
    /// Linux 4.16.
    pub(crate) const APPEND: WriteFlags = WriteFlags(libc::RWF_APPEND as u32);
    /// Linux 6.14; not in every libc yet.
    pub(crate) const UNCACHED: WriteFlags = WriteFlags(0x80);
    /// Linux 6.11; not in every libc yet.
    pub(crate) const ATOMIC: WriteFlags = WriteFlags(0x40);

    pub(crate) fn with(self, other: WriteFlags) -> WriteFlags {
        WriteFlags(self.0 | other.0)
    }

    pub(crate) fn contains(self, other: WriteFlags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

/// Writes `segments` at `offset`, or at the end of the file with the flag to append. If
/// `pwritev2(2)` is refused, other calls do the same: see [`write_without_flags`].
///
/// # Safety
/// Each segment is initialised memory that nothing writes to meanwhile.
pub(crate) unsafe fn write_at(
    fd: BorrowedFd<'_>,
    segments: &[libc::iovec],
    offset: u64,
    flags: WriteFlags,
    wait: WaitMode,
) -> Result<usize, Errno> {
    let slice = |segment: &libc::iovec| -> &[u8] {
        let start = std::ptr::NonNull::new(segment.iov_base.cast()).unwrap_or(std::ptr::NonNull::dangling());
        // SAFETY: the caller vouches for the memory. An empty segment may have no address.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), segment.iov_len.min(TRANSFER_MAX)) }
    };
    let mut bits = ReadWriteFlags::from_bits_retain(flags.bits());
    if wait == WaitMode::Never {
        bits |= ReadWriteFlags::NOWAIT;
    }
    match segments {
        [one] if bits.is_empty() => retry(|| rustix::io::pwrite(fd, slice(one), offset)),
        [one] => write_slices(fd, &[IoSlice::new(slice(one))], offset, bits),
        many => {
            let slices: Vec<_> = many.iter().take(SEGMENTS_MAX).map(|segment| IoSlice::new(slice(segment))).collect();
            write_slices(fd, &slices, offset, bits)
        }
    }
}

fn write_slices(
    fd: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    if flags.is_empty() {
        // `pwritev2` is of 4.6; without flags it is not needed.
        return retry(|| rustix::io::pwritev(fd, slices, offset));
    }
    if !are_write_flags_refused() {
        match retry(|| rustix::io::pwritev2(fd, slices, offset, flags)) {
            Err(errno) if may_refuse_the_call(errno) && refuses_write_flags(fd) => {}
            result => return result,
        }
    }
    write_without_flags(fd, slices, offset, flags)
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

/// Emulates the flags of `pwritev2(2)` by other calls. Returns EOPNOTSUPP if no other call can, and
/// ENOSYS for an append through a descriptor without `O_APPEND`: it needs another descriptor.
fn write_without_flags(
    fd: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let served = ReadWriteFlags::DSYNC | ReadWriteFlags::APPEND;
    if !(flags - served).is_empty() {
        return Err(Errno::OPNOTSUPP);
    }
    let of_file = rustix::fs::fcntl_getfl(fd)?;
    // The kernel ignores the offset then (pwrite(2), BUGS).
    if flags.contains(ReadWriteFlags::APPEND) && !of_file.contains(OFlags::APPEND) {
        return Err(Errno::NOSYS);
    }
    let n = retry(|| rustix::io::pwritev(fd, slices, offset))?;
    if flags.contains(ReadWriteFlags::DSYNC) && of_file.bits() & libc::O_DSYNC as u32 == 0 {
        // An interrupted one has reported nothing. An error of `Errno::INTR` would have the bytes
        // written again.
        retry(|| rustix::fs::fdatasync(fd))?;
    }
    Ok(n)
}

/// Changes the space of a range (`fallocate(2)`). Returns EOPNOTSUPP if the call is refused. EPERM
/// means that the file is append-only or sealed.
pub(crate) fn allocate(fd: BorrowedFd<'_>, mode: FallocateFlags, offset: u64, length: u64) -> Result<(), Errno> {
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
    let advised = retry(|| rustix::fs::fadvise(fd, offset, std::num::NonZeroU64::new(length), advice));
    advised.map_err(|errno| if may_refuse_the_call(errno) { Errno::OPNOTSUPP } else { errno })
}

/// Whether all pages of a range are cached, as `cachestat(2)` says (Linux 6.5). False if it says
/// nothing.
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

/// Sets the lock of a range to `kind` (`F_RDLCK`, `F_WRLCK`, `F_UNLCK`). The lock belongs to the
/// open file (`F_OFD_SETLK`, Linux 3.15). EAGAIN if another open holds a conflicting lock.
pub(crate) fn lock_range(fd: BorrowedFd<'_>, kind: i32, offset: u64, length: u64) -> Result<(), Errno> {
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
pub(crate) fn is_range_locked(fd: BorrowedFd<'_>, kind: i32, offset: u64, length: u64) -> Result<bool, Errno> {
    let mut range = range_of(kind, offset, length);
    retry(|| {
        // SAFETY: `range` is this call's, of the type that the command takes and answers with.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) } {
            0 => Ok(i32::from(range.l_type) != libc::F_UNLCK),
            _ => Err(last_errno()),
        }
    })
}

fn range_of(kind: i32, offset: u64, length: u64) -> libc::flock {
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

/// Has reads and writes go past the page cache from now on, if the file can (EINVAL where not).
pub(crate) fn make_direct(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::DIRECT)
}

/// Returns a number that sysfs states of a block device's queue. The queue of a partition is that of
/// its disk. As for [`if_present`].
pub(crate) fn queue_attribute(device: &str, attribute: &str) -> std::io::Result<Option<u32>> {
    for queue in ["queue", "../queue"] {
        if let Some(text) = if_present(std::fs::read_to_string(format!("{device}/{queue}/{attribute}")))? {
            return Ok(text.trim().parse().ok());
        }
    }
    Ok(None)
}

/// Returns `None` for an entry that is absent or hidden. An error reports a shortage, which may pass.
pub(crate) fn if_present<T>(answer: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match answer {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
            Err(error)
        }
        answer => Ok(answer.ok()),
    }
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
/// trial on the file would do that damage, and another file to try it on cannot be had everywhere.
/// So those are listed that write themselves (`generic_write_checks`, mm/filemap.c and
/// fs/read_write.c); others are not trusted.
pub(crate) fn honours_append_flag(fd: BorrowedFd<'_>) -> bool {
    /// ext2 to ext4, xfs, btrfs, f2fs, tmpfs, ramfs (linux/magic.h).
    const HONOUR: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(fd).is_ok_and(|system| HONOUR.contains(&(system.f_type as u64)))
}

/// The size in bytes: of a file by `fstat(2)`, of a block device by its end.
pub(crate) fn size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        // SAFETY: `BLKGETSIZE64` of linux/fs.h writes a u64, as the getter says. (Seeking would
        // move a position that others may share.)
        return unsafe {
            let getter = ioctl::Getter::<{ ioctl::opcode::read::<u64>(0x12, 114) }, u64>::new();
            ioctl::ioctl(fd, getter)
        };
    }
    Ok(stat.st_size.max(0) as u64)
}

/// Returns the size as the kernel knows it, without a question to a server; of a block device, its
/// end.
pub(crate) fn known_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, "", flags, StatxFlags::TYPE | StatxFlags::SIZE)?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::BlockDevice => size(fd),
        _ => Ok(stat.stx_size),
    }
}

/// The limit on sizes of files (`RLIMIT_FSIZE`), if there is one.
pub(crate) fn size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Returns the bytes between `offset` and the limit on file sizes, where the kernel cuts a write
/// that crosses it. None if there is no limit behind `offset`: a write at or beyond the limit fails
/// with EFBIG.
pub(crate) fn below_size_limit(offset: u64) -> Option<u64> {
    size_limit()?.checked_sub(offset).filter(|room| *room > 0)
}

/// Repeats `call` while it is interrupted by a signal.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => continue,
            result => return result,
        }
    }
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

/// Returns the monotonic time of the last clock tick, in nanoseconds; never zero. It is up to some
/// milliseconds old, and costs a fifth of the exact time.
pub(crate) fn tick_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

/// How many processors this thread may use. Its cgroup's share of them is remembered, which costs a
/// dozen system calls to look at, until there is another number that it may run on.
pub(crate) fn processors() -> usize {
    /// The number that it may run on, and the answer, 32 bits each.
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

/// Closes a descriptor and says what the kernel said of it (a deferred write error, say). EINTR
/// counts as closed.
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

/// Starts a thread for a crate that embeds this library, as the library starts its own threads. The
/// thread serves others, so it inherits only the memory of the thread that happens to start it:
///
/// * Signals that the system or another process sends are blocked. The program's own threads receive
///   them, and no call of the thread is interrupted. Signals that an instruction raises, such as
///   SIGSEGV, stay unblocked: the kernel ends the process if such a signal is blocked.
/// * Its CPU affinity is that of the process's main thread at the time.
/// * Its scheduling policy is that of the main thread, or `SCHED_OTHER` if the main thread is a
///   real-time thread (`sched(7)`).
///
/// A refusal by the system of the last two is ignored.
///
/// ```
/// let thread = nowait::embed::spawn("worker", || std::thread::current().name().map(str::to_owned))?;
/// assert_eq!(thread.join().unwrap().as_deref(), Some("worker"));
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
/// Those of starting a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let run = || {
        inherit_from_process();
        run()
    };
    with_signals_blocked(|| Builder::new().name(name.to_owned()).spawn(run))
}

/// Starts a thread that may borrow, as [`spawn`].
///
/// # Errors
/// Those of starting a thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    let run = || {
        inherit_from_process();
        run()
    };
    with_signals_blocked(|| Builder::new().name(name.to_owned()).spawn_scoped(scope, run))
}

/// Starts a thread of this crate, which notices completions, as [`spawn`].
pub(crate) fn spawn_service(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    spawn(name, || calling_back(true, run)).map(drop)
}

/// Runs `start`, a thread of which inherits the mask: it takes no signal before it could block it.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
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

/// Gives this new thread the affinity of the main thread, and its policy unless that is a real-time one.
fn inherit_from_process() {
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

thread_local!(static CALLS_BACK: Cell<bool> = const { Cell::new(false) });

/// Whether this thread may run a callback now: it notices completions, and is in no code of a user.
#[inline]
pub(crate) fn calls_back() -> bool {
    CALLS_BACK.get()
}

/// Runs `run` with another answer of [`calls_back`].
#[inline]
pub(crate) fn calling_back<T>(calls_back: bool, run: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            CALLS_BACK.set(self.0);
        }
    }
    let _before = Before(CALLS_BACK.replace(calls_back));
    run()
}
