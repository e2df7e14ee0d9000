//! Mapped memory: map, advise, look up, unmap.
//!
//! `unsafe` here: `mmap(2)`, `munmap(2)`, `madvise(2)`, `mincore(2)`.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{advice_to_kernel, last_errno};
use crate::sys::MemoryAdvice;

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Large buffers are mappings, so that parts of them can be returned to the system.
pub(crate) const MAPS_BUFFERS: bool = true;

/// Maps new memory of zeros.
pub(crate) fn map_zeros(bytes: usize) -> Result<NonNull<u8>, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is requested, so nothing is replaced.
    let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) }?;
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Maps a part of a file, from the start of a page. Writes to a shared map go to the file.
pub(crate) fn map_file(
    fd: BorrowedFd<'_>,
    offset: u64,
    length: usize,
    is_writable: bool,
    is_shared: bool,
) -> Result<NonNull<u8>, Errno> {
    let access = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let flags = if is_shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    // SAFETY: the kernel chooses a free address, so nothing is replaced.
    let start = unsafe { rustix::mm::mmap(null_mut(), length, access, flags, fd, offset) }?;
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Unmaps memory.
///
/// # Safety
/// Nothing uses it any more.
pub(crate) unsafe fn unmap(start: NonNull<u8>, length: usize) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe { rustix::mm::munmap(start.as_ptr().cast(), length) }
}

/// Advises the kernel about mapped memory. ENOSYS if the system lacks the advice.
///
/// # Safety
/// The memory is mapped. Nothing needs bytes that are to be discarded.
pub(crate) unsafe fn advise_memory(start: *mut u8, length: usize, advice: MemoryAdvice) -> Result<(), Errno> {
    let advice = advice_to_kernel(advice).ok_or(Errno::NOSYS)?;
    // SAFETY: as the caller promises.
    unsafe { rustix::mm::madvise(start.cast(), length, advice) }
}

/// Sets the lowest bit of a page's byte in `told` if the page is in the page cache.
///
/// # Safety
/// The memory is mapped, and `told` has a byte for each page.
pub(crate) unsafe fn look_up_pages(start: *mut u8, length: usize, told: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    match unsafe { libc::mincore(start.cast(), length, told.as_mut_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
