//! A file's data: shared, copied by the kernel, read and written past the page cache, its holes.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, IoSlice, IoSliceMut, ReadWriteFlags, retry_on_intr};

/// `RWF_DONTCACHE` of Linux 6.14, which rustix does not name yet.
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

/// Reads once; zero at the end. `uncached` leaves no page in the cache that was not there.
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

/// Returns the data from `offset` on that is nearest, up to `size`; none where only a hole is left.
/// A file system that knows no holes says that all of it is data.
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

/// Makes a range a hole; the length stays.
pub(crate) fn punch(fd: BorrowedFd<'_>, range: &Range<u64>) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| rustix::fs::fallocate(fd, flags, range.start, range.end - range.start))
}

/// Whether most of a file seems to be in the page cache: a byte here and there is read without
/// waiting. Where that cannot be asked, it is not known to be.
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
    // Advice only.
    let _ = rustix::fs::fadvise(fd, offset, None, Advice::DontNeed);
}

/// Opens a file again, with other flags, although it has no name or a new one.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::open(descriptor_path(fd), flags | OFlags::CLOEXEC, Mode::empty()))
}

/// The path of an open file, for as long as it is open.
pub(crate) fn descriptor_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}
