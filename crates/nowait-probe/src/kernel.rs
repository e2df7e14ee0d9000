//! Calls that neither std nor rustix contains, for facts about a page, this thread and a
//! tracepoint.
//!
//! `unsafe` here: `mincore(2)` on a mapping that is never touched, `getrusage(2)`,
//! `perf_event_open(2)` and its `ioctl(2)`.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(super) const PAGE: usize = nowait::BUF_ALIGNMENT;

/// True if the page of a file at `offset`, a multiple of a page, is in the page cache. Always true if
/// the caller neither owns the file nor may write it (`can_do_mincore`, mm/mincore.c, 5.2).
pub(super) fn page_is_cached(file: BorrowedFd<'_>, offset: u64) -> Result<bool, Errno> {
    let mut resident = 0u8;
    // SAFETY: the new mapping is known only here, never accessed, and unmapped before the end of
    // the block; `resident` has the one byte that its one page needs.
    let status = unsafe {
        let map = mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, file, offset)?;
        let status = libc::mincore(map, PAGE, &mut resident);
        let answer = if status == 0 { Ok(()) } else { Err(last_errno()) };
        munmap(map, PAGE)?;
        answer
    };
    status.map(|()| resident & 1 != 0)
}

/// Returns the number of times this thread slept (`ru_nvcsw`, `getrusage(2)`).
pub(super) fn sleeps() -> u64 {
    // SAFETY: all fields of `rusage` are integers, for which zero bytes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: getrusage fills only the given struct. With this constant it cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw as u64
}

/// Counts the times that a thread passes a tracepoint.
#[derive(Debug)]
pub(super) struct Passes(OwnedFd);

/// `struct perf_event_attr` of linux/perf_event.h in its first form (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

/// `PERF_TYPE_TRACEPOINT`, `PERF_FLAG_FD_CLOEXEC` of linux/perf_event.h.
const TRACEPOINT: u32 = 2;
const CLOEXEC: u64 = 8;
/// `PERF_EVENT_IOC_SET_FILTER`, `_IOW('$', 6, char *)`, of linux/perf_event.h. On MIPS, PowerPC and
/// SPARC, where the direction has three bits, the number differs, and the kernel refuses this one.
const SET_FILTER: u64 = 0x4000_2406 | (size_of::<usize>() as u64) << 16;

impl Passes {
    /// Begins to count for the thread with this number; zero means the calling thread. A filter
    /// excludes passes that it does not accept (Documentation/trace/events.rst). Needs CAP_PERFMON,
    /// or a low `kernel.perf_event_paranoid`.
    pub(super) fn count(tracepoint: u64, thread: i32, filter: Option<&str>) -> Result<Passes, Errno> {
        let size = size_of::<Attributes>() as u32;
        let attributes = Attributes { kind: TRACEPOINT, size, config: tracepoint, ..Attributes::default() };
        // SAFETY: the kernel reads as many bytes of the struct as its size field states.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attributes, thread, -1, -1, CLOEXEC) };
        let passes = match i32::try_from(fd) {
            // SAFETY: a new descriptor that no other code has.
            Ok(fd) if fd >= 0 => Passes(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => return Err(last_errno()),
        };
        if let Some(filter) = filter {
            let filter = CString::new(filter).map_err(|_| Errno::INVAL)?;
            // SAFETY: the kernel reads the string up to its zero byte.
            match unsafe { libc::ioctl(passes.0.as_raw_fd(), SET_FILTER as _, filter.as_ptr()) } {
                0 => {}
                _ => return Err(last_errno()),
            }
        }
        Ok(passes)
    }

    /// Returns the count so far.
    pub(super) fn so_far(&self) -> Result<u64, Errno> {
        let mut count = [0; 8];
        match rustix::io::read(self.0.as_fd(), &mut count)? {
            8 => Ok(u64::from_ne_bytes(count)),
            _ => Err(Errno::IO),
        }
    }
}

/// Returns the errno of a libc call that has just failed.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
