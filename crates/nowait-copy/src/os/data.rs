//! Calls for a file's data: sharing blocks, copies by the kernel, uncached reads and writes, and
//! holes.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, IoSlice, IoSliceMut, ReadWriteFlags, retry_on_intr};

/// `RWF_DONTCACHE` of Linux 6.14, which rustix lacks.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// True if an errno shows that the two file systems, or the kernel, never support the call.
pub(crate) fn is_refused_for_good(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV)
}

/// True if an errno shows that the call does not work with these files. Other errors, such as EIO or
/// a full disk, would stop any other method, too.
pub(crate) fn is_refused(errno: Errno) -> bool {
    is_refused_for_good(errno)
        || matches!(errno, Errno::INVAL | Errno::PERM | Errno::BADF | Errno::TXTBSY | Errno::NOMEM | Errno::ACCESS)
}

/// Shares all blocks of `source` with `target` (`FICLONE`).
pub(crate) fn clone(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::ioctl_ficlone(target, source))
}

/// Copies a range in the kernel; returns the number of bytes, zero at the end of the source.
pub(crate) fn copy_range(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Result<usize, Errno> {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(1 << 30);
    retry_on_intr(|| {
        let (mut from, mut to) = (offset, offset);
        rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length)
    })
}

/// Makes one read call, which returns zero at the end of the file. With `uncached`, the call leaves
/// no new pages in the page cache.
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64, uncached: bool) -> Result<usize, Errno> {
    if uncached {
        let mut buffers = [IoSliceMut::new(buffer)];
        return retry_on_intr(|| rustix::io::preadv2(fd, &mut buffers, offset, DONTCACHE));
    }
    retry_on_intr(|| rustix::io::pread(fd, &mut *buffer, offset))
}

/// Writes all of `bytes`. An error contains the number of bytes written before.
pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8], offset: u64, uncached: bool) -> Result<(), (Errno, usize)> {
    let mut done = 0;
    while done < bytes.len() {
        let (rest, at) = (&bytes[done..], offset + done as u64);
        let written = if uncached {
            retry_on_intr(|| rustix::io::pwritev2(fd, &[IoSlice::new(rest)], at, DONTCACHE))
        } else {
            retry_on_intr(|| rustix::io::pwrite(fd, rest, at))
        };
        match written {
            // No file system does this; retrying might never end.
            Ok(0) => return Err((Errno::NOSPC, done)),
            Ok(n) => done += n,
            Err(errno) => return Err((errno, done)),
        }
    }
    Ok(())
}

/// Returns the next range with data from `offset` on, up to `size`; none if only a hole remains. A
/// file system without holes reports all of the file as data.
pub(crate) fn next_data(fd: BorrowedFd<'_>, offset: u64, size: u64) -> Result<Option<Range<u64>>, Errno> {
    let start = match rustix::fs::seek(fd, SeekFrom::Data(offset)) {
        Ok(start) if start < size => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(offset..size)),
        Err(errno) => return Err(errno),
    };
    let end = match rustix::fs::seek(fd, SeekFrom::Hole(start)) {
        Ok(end) => end.min(size),
        // The file was truncated meanwhile.
        Err(Errno::NXIO) => size,
        Err(errno) => return Err(errno),
    };
    Ok((end > start).then_some(start..end))
}

/// Reserves a range; the file grows to its end.
pub(crate) fn allocate(fd: BorrowedFd<'_>, range: &Range<u64>) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), range.start, range.end - range.start))
}

/// Punches a hole, and keeps the length.
pub(crate) fn punch(fd: BorrowedFd<'_>, range: &Range<u64>) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| rustix::fs::fallocate(fd, flags, range.start, range.end - range.start))
}

/// Estimates by non-blocking reads of single bytes whether most of a file is in the page cache.
/// Returns false if the file system refuses such reads.
pub(crate) fn is_cached(fd: BorrowedFd<'_>, size: u64) -> bool {
    const SAMPLES_MAX: u64 = 8;
    const APART: u64 = 1 << 20;
    // A miss starts read-ahead. With this advice it reads one page, which contains no other sample.
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::Random);
    let samples = (size / APART).clamp(1, SAMPLES_MAX);
    let cached = |sample: &u64| {
        let mut byte = [0];
        let mut buffers = [IoSliceMut::new(&mut byte)];
        let offset = size / samples * sample;
        retry_on_intr(|| rustix::io::preadv2(fd, &mut buffers, offset, ReadWriteFlags::NOWAIT)) == Ok(1)
    };
    let hits = (0..samples).filter(cached).count() as u64;
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::Normal);
    hits > samples / 2
}

/// Drops the clean pages of a file from the page cache, from an offset on.
pub(crate) fn drop_pages_from(fd: BorrowedFd<'_>, offset: u64) {
    // A failure is ignored, since this is advice.
    let _ = rustix::fs::fadvise(fd, offset, None, Advice::DontNeed);
}

/// Opens a file again with other flags, even if it was renamed or has no name.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::open(descriptor_path(fd), flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Returns a path that refers to an open file as long as it is open.
pub(crate) fn descriptor_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}
