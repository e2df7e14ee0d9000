//! Mapped memory: map, advise, look up, unmap.
//!
//! `unsafe` here: `mmap(2)`, `munmap(2)`, `madvise(2)`, `mincore(2)`, `msync(2)`.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use super::{advice_to_kernel, last_errno, retry};
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

/// True after a shared map for writing was requested, of any file. Its changes may outlive the map.
static HAS_CHANGED_FILES: AtomicBool = AtomicBool::new(false);

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
    if is_shared && is_writable {
        HAS_CHANGED_FILES.store(true, Ordering::Relaxed);
    }
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

/// Writes back what maps changed, if the process has made a shared map for writing: `fsync(2)` of HFS+ only writes
/// what calls wrote. Does nothing for a descriptor that cannot be mapped for reading.
#[cfg_attr(not(any(target_os = "macos", test)), expect(dead_code))]
pub(super) fn write_back_maps(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    if !HAS_CHANGED_FILES.load(Ordering::Relaxed) {
        return Ok(());
    }
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size <= 0 {
        return Ok(());
    }
    let length = usize::try_from(stat.st_size).map_err(|_| Errno::NOMEM)?;
    let start = match map_file(fd, 0, length, false, true) {
        Err(Errno::ACCESS | Errno::NODEV | Errno::INVAL) => return Ok(()),
        mapped => mapped?,
    };
    // SAFETY: the call changes no bytes of the map, which is made above.
    let written = retry(|| unsafe { rustix::mm::msync(start.as_ptr().cast(), length, MsyncFlags::SYNC) });
    // SAFETY: nothing else knows the map.
    unsafe { unmap(start, length) }?;
    written
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    /// Symptom: on HFS+ of macOS, a sync left what a map had changed in memory. The write-back before each sync
    /// must refuse no file that can be synced.
    #[test]
    fn what_maps_changed_is_written_back_through_any_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![0; 2 * page_bytes() + 1]).unwrap();
        let both = File::options().read(true).write(true).open(&path).unwrap();
        let length = 2 * page_bytes() + 1;
        let map = map_file(both.as_fd(), 0, length, true, true).unwrap();
        // SAFETY: inside the map, which nothing else uses.
        unsafe { map.write(1) };
        let empty = File::create(dir.path().join("empty")).unwrap();
        let readable = File::open(&path).unwrap();
        let writable = File::options().write(true).open(&path).unwrap();
        for file in [&both, &readable, &writable, &empty, &File::open(dir.path()).unwrap()] {
            assert_eq!(write_back_maps(file.as_fd()), Ok(()), "{file:?}");
        }
        // SAFETY: nothing uses the map any more.
        unsafe { unmap(map, length) }.unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[0], 1);
    }
}
