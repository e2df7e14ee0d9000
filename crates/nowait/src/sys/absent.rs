//! Functions that only Linux can serve, for other systems. Each answers like a kernel or a file system
//! without the feature.

use std::io;
use std::path::Path;

use super::{At, BorrowedFd, Errno, OFlags, OwnedFd, QueueLimits, size};

/// Writes have no flags.
pub(crate) fn refuses_write_flags(_: BorrowedFd<'_>) -> bool {
    true
}

pub(crate) fn are_write_flags_refused() -> bool {
    true
}

/// No flag of a write appends.
pub(crate) fn honours_append_flag(_: BorrowedFd<'_>) -> bool {
    false
}

/// Refused: no open is known not to sleep.
pub(crate) fn open_cached(_: At<'_>, _: &Path, _: OFlags) -> Result<OwnedFd, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Returns the size. It may ask a server: no call promises not to.
pub(crate) fn known_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    size(fd)
}

/// False: no call reports whether a range is cached.
pub(crate) fn is_cached(_: BorrowedFd<'_>, _: u64, _: usize) -> bool {
    false
}

/// False: `mincore(2)` of macOS was not tested, and Windows has no such call.
pub(crate) fn tells_cached_pages(_: BorrowedFd<'_>) -> bool {
    false
}

/// No errno stands for broken memory.
pub(crate) fn is_memory_broken(_: Errno) -> bool {
    false
}

/// The queues of devices are not known.
pub(crate) fn has_queue(_: u64) -> bool {
    false
}

pub(crate) fn queue_limits(_: u64) -> io::Result<QueueLimits> {
    Ok(QueueLimits { held_requests: None, request_bytes: None })
}

/// Refuses direct I/O, with the errno of a file system without it. `F_NOCACHE` of macOS may still use
/// cached pages; `FILE_FLAG_NO_BUFFERING` of Windows cannot be set on an open handle.
pub(crate) fn make_direct(_: BorrowedFd<'_>) -> Result<(), Errno> {
    Err(Errno::INVAL)
}

pub(crate) fn is_direct(_: BorrowedFd<'_>) -> bool {
    false
}

pub(crate) fn set_direct(_: BorrowedFd<'_>, _: bool) {}

pub(crate) fn direct_alignment(_: BorrowedFd<'_>) -> Option<(u32, u32)> {
    None
}

/// Returns the number of processors that this thread may use. Windows counts those of its group, at most
/// 64, whatever the process's affinity.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Does nothing: threads inherit no affinity or policy that must change.
pub(crate) fn inherit_from_process() {}
