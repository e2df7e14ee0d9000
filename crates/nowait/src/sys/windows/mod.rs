//! Windows. Files are opened for overlapped I/O, so that several threads can read and write a file at
//! once. Each call waits for its own event.
//!
//! `unsafe` here: calls of the Windows API.

pub(crate) mod advice;
mod code;
mod names;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString, c_void};
use std::fs::{File, Metadata};
use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::io::{AsHandle, AsRawHandle, FromRawHandle};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null, null_mut};
use std::time::Instant;

pub(crate) use std::os::windows::io::{BorrowedHandle as BorrowedFd, OwnedHandle as OwnedFd};

use windows_sys::Wdk::Storage::FileSystem as wdk;
use windows_sys::Win32::Foundation::{
    ERROR_HANDLE_EOF, ERROR_IO_PENDING, ERROR_NOT_LOCKED, HANDLE, RtlNtStatusToDosError, STATUS_PENDING,
};
use windows_sys::Win32::Storage::FileSystem as win;
use windows_sys::Win32::System::IO::{GetOverlappedResult, IO_STATUS_BLOCK, OVERLAPPED};
use windows_sys::Win32::System::Threading::CreateEventW;

pub(crate) use self::code::{Errno, Mode, OFlags};
pub(crate) use self::names::{
    At, CWD, below, check, copy_file, create_dir, kept_path, list, open, open_dir, remove, rename, reopen, symlink,
    sync_dir,
};
use super::{Advice, Allocate, FileLock, MemoryAdvice, TRANSFER_MAX, WaitMode, WriteFlags, WriteOnce};

/// Borrows the handle of a file.
pub(crate) trait AsFd {
    fn as_fd(&self) -> BorrowedFd<'_>;
}

impl<T: AsHandle> AsFd for T {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.as_handle()
    }
}

/// Memory of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoVec {
    pub(crate) iov_base: *mut c_void,
    pub(crate) iov_len: usize,
}

/// Direct I/O is refused (`make_direct`).
pub(crate) const DIRECT: OFlags = OFlags::empty();
pub(crate) const NOATIME: OFlags = OFlags::empty();
pub(crate) const DSYNC: OFlags = OFlags::DSYNC;
pub(crate) const OPEN_FLAGS_KEPT: OFlags = OFlags::DSYNC;
/// Flags that an append needs although its handle may only append: none.
pub(crate) const O_APPEND_NEEDS: WriteFlags = WriteFlags::NONE;

/// Makes a call, which no signal interrupts.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    call()
}

/// The error of a call that has just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Returns the error of a call that returned zero.
fn checked(result: i32) -> Result<(), Errno> {
    if result == 0 { Err(last_errno()) } else { Ok(()) }
}

fn raw(fd: BorrowedFd<'_>) -> HANDLE {
    fd.as_raw_handle()
}

thread_local! {
    /// Signalled when this thread's call ends.
    static EVENT: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Makes an overlapped call at an offset, and waits for its end. Returns the number of bytes.
fn overlapped(fd: BorrowedFd<'_>, offset: u64, call: impl FnOnce(&mut OVERLAPPED) -> i32) -> Result<usize, Errno> {
    let event = EVENT.try_with(|event| event.borrow_mut().take()).ok().flatten();
    let event = match event {
        Some(event) => event,
        None => {
            // SAFETY: no memory is passed. A handle that was returned is owned by nothing else.
            unsafe {
                let event = CreateEventW(null(), 1, 0, null());
                if event.is_null() {
                    return Err(last_errno());
                }
                OwnedFd::from_raw_handle(event)
            }
        }
    };
    let mut state = OVERLAPPED::default();
    // If the lowest bit of the event is set, a completion port of the handle does not receive `state`
    // (`GetQueuedCompletionStatus`): its reader expects only requests of its own.
    state.hEvent = event.as_raw_handle().map_addr(|address| address | 1);
    state.Anonymous.Anonymous.Offset = offset as u32;
    state.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    let begun = match checked(call(&mut state)) {
        Err(errno) if errno.raw_os_error() == ERROR_IO_PENDING as i32 => Ok(()),
        result => result,
    };
    let mut moved = 0;
    // SAFETY: the state of the call above, in place until that call ends: this one waits for the end.
    let result = begun.and_then(|()| checked(unsafe { GetOverlappedResult(raw(fd), &state, &mut moved, 1) }));
    // SAFETY: `state` is this call's.
    if begun.is_ok() && unsafe { (&raw const state.Internal).read_volatile() } == STATUS_PENDING as usize {
        // The wait failed: the kernel would write to `state` and to the buffer after the return.
        std::process::abort();
    }
    let _ = EVENT.try_with(|kept| *kept.borrow_mut() = Some(event));
    match result {
        Ok(()) => Ok(moved as usize),
        Err(errno) if errno.raw_os_error() == ERROR_HANDLE_EOF as i32 => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// Reads at `offset` into `segments`, in order. Refuses `WaitMode::Never`: Windows has no non-blocking
/// read of a file.
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
    if wait == WaitMode::Never {
        return Err(Errno::OPNOTSUPP);
    }
    in_turn(segments, |segment, done| {
        let length = segment.iov_len.min(TRANSFER_MAX) as u32;
        overlapped(fd, offset + done as u64, |state| {
            // SAFETY: the caller vouches for the memory until `overlapped` returns.
            unsafe { win::ReadFile(raw(fd), segment.iov_base.cast(), length, null_mut(), state) }
        })
    })
    .map_err(|errno| denied(fd, errno, OFlags::WRONLY))
}

/// Replaces ACCESS by BADF, the POSIX error, if the handle was opened only for the other access, `only`.
fn denied(fd: BorrowedFd<'_>, errno: Errno, only: OFlags) -> Errno {
    match errno {
        Errno::ACCESS if flags(fd).is_ok_and(|flags| flags & OFlags::RWMODE == only) => Errno::BADF,
        errno => errno,
    }
}

/// Writes `segments` at `offset`, one after the other, or at the end of a file that was opened to append.
///
/// # Safety
/// Each segment is initialised memory that nothing writes to meanwhile.
pub(crate) unsafe fn write_at(
    fd: BorrowedFd<'_>,
    segments: &[IoVec],
    offset: u64,
    write_flags: WriteFlags,
    wait: WaitMode,
) -> Result<usize, Errno> {
    let served = WriteFlags::DURABLE.with(WriteFlags::APPEND);
    if wait == WaitMode::Never || !served.contains(write_flags) {
        return Err(Errno::OPNOTSUPP);
    }
    if write_flags.contains(WriteFlags::APPEND) {
        let flags = flags(fd)?;
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return Err(Errno::BADF);
        }
        if !flags.contains(OFlags::APPEND) {
            return Err(Errno::NOSYS);
        }
    }
    // An append is one call, so that appends of other handles do not split it.
    let mut whole = Vec::<u8>::new();
    let joined;
    let segments = if write_flags.contains(WriteFlags::APPEND) && segments.len() > 1 {
        // The caller appends the rest by another call.
        let length =
            segments.iter().fold(0, |all: usize, segment| all.saturating_add(segment.iov_len)).min(TRANSFER_MAX);
        whole.try_reserve_exact(length).map_err(|_| Errno::NOMEM)?;
        for segment in segments {
            let n = segment.iov_len.min(length - whole.len());
            // SAFETY: the caller vouches for the memory.
            whole.extend_from_slice(unsafe { std::slice::from_raw_parts(segment.iov_base.cast(), n) });
        }
        joined = [IoVec { iov_base: whole.as_mut_ptr().cast(), iov_len: whole.len() }];
        &joined
    } else {
        segments
    };
    let n = in_turn(segments, |segment, done| {
        let length = segment.iov_len.min(TRANSFER_MAX) as u32;
        overlapped(fd, offset.saturating_add(done as u64), |state| {
            // SAFETY: the caller vouches for the memory until `overlapped` returns.
            unsafe { win::WriteFile(raw(fd), segment.iov_base.cast(), length, null_mut(), state) }
        })
    })
    .map_err(|errno| denied(fd, errno, OFlags::RDONLY))?;
    if write_flags.contains(WriteFlags::DURABLE) {
        // Also if the handle writes through: some devices keep such a write in their cache.
        sync(fd, true)?;
    }
    Ok(n)
}

/// Transfers segments in order, and stops at a short one. Drops an error after the first bytes: the
/// caller's next call returns it again.
fn in_turn(
    segments: &[IoVec],
    mut transfer: impl FnMut(&IoVec, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    for segment in segments {
        let asked = segment.iov_len.min(TRANSFER_MAX);
        let n = match transfer(segment, done) {
            Ok(n) => n,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        };
        done += n;
        if n < asked || asked < segment.iov_len {
            break;
        }
    }
    Ok(done)
}

/// Returns how a file was opened: its access, and whether writes append or are durable.
pub(crate) fn flags(fd: BorrowedFd<'_>) -> Result<OFlags, Errno> {
    let access = query(fd, wdk::FileAccessInformation)?;
    let mode = query(fd, wdk::FileModeInformation).unwrap_or(0);
    let (reads, writes) = (access & win::FILE_READ_DATA != 0, access & win::FILE_WRITE_DATA != 0);
    let appends = !writes && access & win::FILE_APPEND_DATA != 0;
    let mut flags = match (reads, writes || appends) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    if appends {
        flags = flags | OFlags::APPEND;
    }
    if mode & wdk::FILE_WRITE_THROUGH != 0 {
        flags = flags | OFlags::DSYNC;
    }
    Ok(flags)
}

/// Queries 32 bits of information about a handle.
fn query(fd: BorrowedFd<'_>, class: wdk::FILE_INFORMATION_CLASS) -> Result<u32, Errno> {
    let (mut status, mut value) = (IO_STATUS_BLOCK::default(), 0_u32);
    // SAFETY: both are this call's, and the classes used here are of 32 bits.
    let result = unsafe { wdk::NtQueryInformationFile(raw(fd), &mut status, (&raw mut value).cast(), 4, class) };
    if result < 0 {
        // SAFETY: no memory is passed.
        return Err(Errno::from_raw_os_error(unsafe { RtlNtStatusToDosError(result) } as i32));
    }
    Ok(value)
}

/// Makes a file durable (`FlushFileBuffers`), and flushes the device's cache. The call needs a handle
/// that may write: if this one may only read, opens the file again. PERM or AGAIN if that is refused: nothing
/// was tried, so that no data is lost.
pub(crate) fn sync(fd: BorrowedFd<'_>, _data_only: bool) -> Result<(), Errno> {
    match flush(fd) {
        Err(Errno::ACCESS) if flags(fd).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDONLY) => {
            let opened = names::reopen(fd, OFlags::empty()).map_err(|errno| match errno {
                Errno::ACCESS => Errno::PERM,
                Errno::BUSY => Errno::AGAIN,
                errno => errno,
            })?;
            flush(opened.as_fd())
        }
        result => result,
    }
}

fn flush(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    checked(unsafe { win::FlushFileBuffers(raw(fd)) })
}

/// Flushes the whole file.
pub(crate) fn sync_range(fd: BorrowedFd<'_>, _offset: u64, _length: u64) -> Result<(), Errno> {
    sync(fd, true)
}

pub(crate) fn set_len(fd: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
    let set = to_std(fd).set_len(length);
    set.map_err(|error| denied(fd, Errno::from_io_error(&error).unwrap_or(Errno::INVAL), OFlags::RDONLY))
}

/// Extends the file; the file system allocates the space. Refuses other modes. Not atomic: it cuts off a
/// concurrent write through another open that extends the file beyond the range.
pub(crate) fn allocate(fd: BorrowedFd<'_>, how: Allocate, offset: u64, length: u64) -> Result<(), Errno> {
    if how != Allocate::Reserve {
        return Err(Errno::OPNOTSUPP);
    }
    let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::FBIG)?;
    match length {
        0 => Err(Errno::INVAL),
        _ if end <= size(fd)? => Ok(()),
        _ => set_len(fd, end),
    }
}

pub(crate) fn advise(_: BorrowedFd<'_>, _: u64, _: u64, _: Advice) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Byte that is locked instead of the file, within the range that std locks. No file is that long, so the
/// lock excludes no reads and writes.
const LOCKED_BYTE: u64 = i64::MAX as u64 - 1;

/// Sets the lock of a file. AGAIN if another handle holds a conflicting lock.
pub(crate) fn lock_file(fd: BorrowedFd<'_>, lock: FileLock) -> Result<(), Errno> {
    let unlock = || {
        overlapped(fd, LOCKED_BYTE, |state| {
            // SAFETY: `overlapped` keeps the state until the call ends.
            unsafe { win::UnlockFileEx(raw(fd), 0, 1, 0, state) }
        })
    };
    // `LockFileEx` does not convert a lock: it adds one, which may conflict with the held one. So release
    // that first. If the new lock is refused, none is held.
    let unlocked = unlock();
    let exclusive = match lock {
        FileLock::Unlocked if unlocked.is_err_and(|errno| errno.raw_os_error() != ERROR_NOT_LOCKED as i32) => {
            return unlocked.map(drop);
        }
        FileLock::Unlocked => return Ok(()),
        FileLock::Shared => 0,
        FileLock::Exclusive => win::LOCKFILE_EXCLUSIVE_LOCK,
    };
    let flags = win::LOCKFILE_FAIL_IMMEDIATELY | exclusive;
    let locked = overlapped(fd, LOCKED_BYTE, |state| {
        // SAFETY: `overlapped` keeps the state until the call ends.
        unsafe { win::LockFileEx(raw(fd), flags, 0, 1, 0, state) }
    });
    locked.map(drop)
}

/// Refused: range locks of Windows also exclude reads and writes, and cannot be released in part.
pub(crate) fn lock_range(_: BorrowedFd<'_>, _: FileLock, _: u64, _: u64) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

pub(crate) fn is_range_locked(_: BorrowedFd<'_>, _: FileLock, _: u64, _: u64) -> Result<bool, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// The size in bytes.
pub(crate) fn size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut size = 0;
    // SAFETY: `size` is this call's.
    checked(unsafe { win::GetFileSizeEx(raw(fd), &mut size) })?;
    Ok(size.max(0) as u64)
}

pub(crate) fn size_limit() -> Option<u64> {
    None
}

pub(crate) fn below_size_limit(_: u64) -> Option<u64> {
    None
}

/// There is no fork.
#[inline]
pub fn fork_generation() -> u64 {
    0
}

/// Closes a handle; reports no errors.
pub(crate) fn close(fd: OwnedFd) -> Result<(), Errno> {
    drop(fd);
    Ok(())
}

/// There are no signals.
pub(super) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    start()
}

/// Returns the monotonic time in nanoseconds since the first call; never zero.
pub(crate) fn tick_ns() -> u64 {
    static BEGAN: WriteOnce<Instant> = WriteOnce::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// False even for volumes and disks, of which `size` fails.
pub(crate) fn is_block_device(_: BorrowedFd<'_>) -> bool {
    false
}

/// Returns the serial number of the volume that a file lies on; no number for a pipe or a console.
pub(crate) fn device_of(fd: BorrowedFd<'_>) -> Option<(Option<u64>, u64)> {
    // SAFETY: no memory is passed.
    if unsafe { win::GetFileType(raw(fd)) } != win::FILE_TYPE_DISK {
        return Some((None, 0));
    }
    Some((Some(information(fd).ok()?.dwVolumeSerialNumber.into()), 0))
}

fn information(fd: BorrowedFd<'_>) -> Result<win::BY_HANDLE_FILE_INFORMATION, Errno> {
    let mut information = win::BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: `information` is this call's.
    checked(unsafe { win::GetFileInformationByHandle(raw(fd), &mut information) })?;
    Ok(information)
}

/// Returns std's file on a borrowed handle, for one call of std. It does not close the handle.
pub(crate) fn to_std(fd: BorrowedFd<'_>) -> ManuallyDrop<File> {
    // SAFETY: the handle is open while `fd` is borrowed, which is longer than the caller's one call, and is
    // never closed here.
    ManuallyDrop::new(unsafe { File::from_raw_handle(fd.as_raw_handle()) })
}

/// Opens the file again for std if the handle is overlapped, since such a handle has no position. The lock
/// of the old handle is lost. Returns None if std can use the handle.
pub(crate) fn file_for_std(fd: BorrowedFd<'_>) -> Result<Option<File>, Errno> {
    const SYNCHRONOUS: u32 = wdk::FILE_SYNCHRONOUS_IO_ALERT | wdk::FILE_SYNCHRONOUS_IO_NONALERT;
    if query(fd, wdk::FileModeInformation)? & SYNCHRONOUS != 0 {
        return Ok(None);
    }
    names::reopen_for_std(fd).map(Some)
}

/// Sets the permissions of a file to those of another. There is no mode, and the owner stays.
pub(crate) fn set_mode_and_owner(fd: BorrowedFd<'_>, other: &Metadata) -> io::Result<()> {
    to_std(fd).set_permissions(other.permissions())
}

pub(crate) fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    one.as_raw_handle() == other.as_raw_handle()
}

/// Path of an open file; empty if unknown.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    final_path(fd).unwrap_or_default()
}

/// Path of an open file or directory. Fails on some file system drivers.
fn final_path(fd: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let mut path = vec![0_u16; 512];
    loop {
        let length = path.len() as u32;
        // SAFETY: `path` is this call's, and has that length.
        let needed = unsafe { win::GetFinalPathNameByHandleW(raw(fd), path.as_mut_ptr(), length, 0) };
        if needed == 0 {
            return Err(last_errno());
        }
        if needed < length {
            return Ok(PathBuf::from(OsString::from_wide(&path[..needed as usize])));
        }
        path.resize(needed as usize + 1, 0);
    }
}

/// Whether a path contains a zero, which the system cannot accept.
pub(crate) fn has_zero(path: &Path) -> bool {
    path.as_os_str().encode_wide().any(|unit| unit == 0)
}

/// Whether a name is that of a stream of a file (`name:stream`).
pub(crate) fn names_a_stream(name: &OsStr) -> bool {
    name.encode_wide().any(|unit| unit == u16::from(b':'))
}

/// Returns the start of a name, of at most this many units of 16 bits.
pub(crate) fn start_of_name(name: &OsStr, units_max: usize) -> OsString {
    let units: Vec<u16> = name.encode_wide().take(units_max).collect();
    OsString::from_wide(&units)
}

/// Replaces an error by its synonym that has a name.
pub(crate) fn named(errno: Errno) -> Errno {
    errno.named()
}

pub(crate) fn is_over_quota(errno: Errno) -> bool {
    errno == Errno::DQUOT
}

/// Returns the reason why there is no queue to the kernel.
pub(crate) fn why_refused(_: Errno, _is_ring: bool) -> &'static str {
    "not in this system"
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    4096
}

/// Buffers come from the allocator; `VirtualAlloc` is not used.
pub(crate) const MAPS_BUFFERS: bool = false;

pub(crate) fn map_zeros(_: usize) -> Result<NonNull<u8>, Errno> {
    Err(Errno::NOSYS)
}

/// Maps of files are refused.
pub(crate) fn map_file(_: BorrowedFd<'_>, _: u64, _: usize, _: bool, _: bool) -> Result<NonNull<u8>, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Refused: there is no mapped memory to unmap.
///
/// # Safety
/// Nothing uses it any more.
pub(crate) unsafe fn unmap(_: NonNull<u8>, _: usize) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

/// Refused: there is no mapped memory.
///
/// # Safety
/// The memory is mapped.
pub(crate) unsafe fn advise_memory(_: *mut u8, _: usize, _: MemoryAdvice) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

/// Refused: there are no maps whose pages could be cached.
///
/// # Safety
/// The memory is mapped.
pub(crate) unsafe fn look_up_pages(_: *mut u8, _: usize, _: &mut [u8]) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

/// Refused: there are no maps to copy from.
///
/// # Safety
/// The sources are mapped.
pub(crate) unsafe fn copy_bytes(_: &[IoVec], _: &mut [u8]) -> Result<usize, Errno> {
    Err(Errno::NOSYS)
}
