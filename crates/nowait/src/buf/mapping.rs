//! A file's bytes in the address space: mapped, faulted in, taken away.
//!
//! Nothing here touches mapped memory by an instruction of ours: where the file has ended that
//! raises SIGBUS. The kernel touches it for us and answers with an errno.
//!
//! `unsafe` here: `mmap(2)`, `munmap(2)`, `madvise(2)`, `mincore(2)`, `process_vm_writev(2)`, and
//! the bytes as a slice.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use crate::buf::Buf;
use crate::sys::{self, BorrowedFd, Errno, IoVec, MemoryAdvice, SEGMENTS_MAX, WaitMode};

/// The access to a mapping, and who sees writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Writes stay in this map.
    Private,
    /// Writes go to the file.
    Shared,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    /// At the start of a page. Dangling when nothing is mapped.
    start: NonNull<u8>,
    length: usize,
    /// The kernel does not know `MADV_POPULATE_READ`.
    populate_refused: AtomicBool,
}

// SAFETY: an address and a length that never change; what the methods do with them is the kernel's
// to order.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

pub(crate) fn page_bytes() -> usize {
    sys::page_bytes()
}

/// How pages are brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// `MADV_POPULATE_READ` (Linux 5.14, `madvise(2)`); where it is not known, as below.
    Populate,
    /// Reads into memory that is thrown away, and a look at each page.
    Read,
}

/// A task on a mapping, for a thread that may sleep.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) ranges: Vec<Range<usize>>,
    pub(crate) place: Place,
    pub(crate) how: How,
    /// The ranges are scattered: some are announced to the device before each is waited for.
    pub(crate) scattered: bool,
    /// Not before.
    pub(crate) begin: Option<Instant>,
    /// Brings nothing in; finds which of these pages are not cached.
    pub(crate) survey: bool,
    /// A range that was asked for and is not in the map, so that nothing is brought in.
    pub(crate) beyond: Option<Range<usize>>,
}

/// Where a map lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Offset of the mapping's first byte in the file.
    pub(crate) file_offset: u64,
    /// Offset of the map's first byte in the mapping, which begins at a page.
    pub(crate) lead: usize,
    /// Bytes of the map.
    pub(crate) length: usize,
}

impl Place {
    /// Returns the offset of the map's first byte in the file.
    pub(crate) fn offset(self) -> u64 {
        self.file_offset + self.lead as u64
    }
}

/// Number of scattered ranges to announce ahead: as many as a device has in flight. If all were
/// announced at once, the thread would wait for places in its queue.
const ANNOUNCED_AHEAD: usize = 128;

impl Mapping {
    /// Maps `length` bytes from `offset`, which is at the start of a page.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, length: usize, access: Access) -> Result<Mapping, Errno> {
        if length == 0 {
            return Ok(Mapping { start: NonNull::dangling(), length, populate_refused: AtomicBool::new(false) });
        }
        let start = sys::map_file(fd, offset, length, access != Access::Read, access == Access::Shared)?;
        Ok(Mapping { start, length, populate_refused: AtomicBool::new(false) })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// # Safety
    /// While the slice exists, nothing changes the bytes.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is there as long as `self`; the caller vouches for the bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// # Safety
    /// While the slice exists, nothing else accesses the bytes, and they are writable.
    #[allow(clippy::mut_from_ref)] // The caller vouches for exclusive access.
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Whole pages around `range`, as far as there are.
    fn pages(&self, range: &Range<usize>) -> (*mut u8, usize) {
        let page = page_bytes();
        let start = range.start.min(self.length) / page * page;
        let end = range.end.clamp(start, self.length);
        (self.start.as_ptr().wrapping_add(start), end - start)
    }

    /// Advice that changes no bytes.
    pub(crate) fn advise(&self, range: &Range<usize>, advice: MemoryAdvice) -> Result<(), Errno> {
        let (start, length) = self.pages(range);
        if length == 0 {
            return Ok(());
        }
        // SAFETY: pages of this mapping, and none of the advice used here (see the callers) takes
        // bytes away.
        sys::retry(|| unsafe { sys::advise_memory(start, length, advice) })
    }

    /// Finds the pages of `range` that are not in the page cache; all of them, if the kernel does
    /// not tell.
    pub(crate) fn missing(&self, fd: BorrowedFd<'_>, range: &Range<usize>) -> Missing {
        const PIECE_PAGES: usize = 64 << 10;
        let page = page_bytes();
        let (start, length) = self.pages(range);
        let first = range.start.min(self.length) / page;
        let mut missing = Missing { first, pages: vec![u64::MAX; length.div_ceil(page).div_ceil(64)] };
        if !sys::tells_cached_pages(fd) {
            return missing;
        }
        let mut told = vec![0u8; PIECE_PAGES.min(length.div_ceil(page))];
        for piece in (0..length).step_by(PIECE_PAGES * page) {
            let piece_length = (length - piece).min(PIECE_PAGES * page);
            // SAFETY: pages of this mapping, and a byte for each of them.
            if unsafe { sys::look_up_pages(start.wrapping_add(piece), piece_length, &mut told) }.is_err() {
                continue;
            }
            for (number, told) in told[..piece_length.div_ceil(page)].iter().enumerate() {
                let number = piece / page + number;
                if told & 1 != 0 {
                    missing.pages[number / 64] &= !(1 << (number % 64));
                }
            }
        }
        missing
    }

    /// Brings pages into the page cache and the page table, waiting as long as it takes.
    pub(crate) fn fault(&self, fd: BorrowedFd<'_>, fault: &Fault) -> Result<Option<Missing>, Errno> {
        if fault.survey {
            return Ok(fault.ranges.first().map(|range| self.missing(fd, range)));
        }
        if let Some(wait) = fault.begin.map(|begin| begin.saturating_duration_since(Instant::now())) {
            std::thread::sleep(wait);
        }
        let mut announced = fault.ranges.iter();
        let mut announce = |count| {
            for range in announced.by_ref().take(count) {
                // Advice: its effect is seen below.
                let _ = self.advise(range, MemoryAdvice::WillNeed);
            }
        };
        if fault.scattered {
            announce(ANNOUNCED_AHEAD);
        }
        for range in &fault.ranges {
            if fault.scattered {
                announce(1);
            }
            self.bring_in(fd, range, fault)?;
        }
        Ok(None)
    }

    fn bring_in(&self, fd: BorrowedFd<'_>, range: &Range<usize>, fault: &Fault) -> Result<(), Errno> {
        if fault.how == How::Populate && !self.populate_refused.load(Relaxed) {
            match self.advise(range, MemoryAdvice::Populate) {
                // The kernel does not know the advice, or a filter refuses the call.
                Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => self.populate_refused.store(true, Relaxed),
                done => return done,
            }
        }
        self.read_past(fd, range, fault.place.file_offset)?;
        match self.look_at(range) {
            // The pages are cached, which is most of it.
            Err(Errno::NOSYS | Errno::PERM) => Ok(()),
            done => done,
        }
    }

    /// Reads the file under `range`, and throws the bytes away.
    fn read_past(&self, fd: BorrowedFd<'_>, range: &Range<usize>, file_offset: u64) -> Result<(), Errno> {
        const PIECE_BYTES: usize = 256 << 10;
        let mut buffer = Buf::uncleared(PIECE_BYTES).ok_or(Errno::NOMEM)?;
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(buffer.len());
            let segment = IoVec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length as _ };
            // SAFETY: a part of `buffer`, which is borrowed for the call.
            match unsafe { sys::read_at(fd, &[segment], file_offset + at as u64, WaitMode::Allowed) }? {
                0 => return Err(Errno::FAULT),
                n => at += n,
            }
        }
        Ok(())
    }

    /// Has the kernel copy a byte out of each page: EFAULT where the file has ended.
    fn look_at(&self, range: &Range<usize>) -> Result<(), Errno> {
        let (start, length) = self.pages(range);
        let page = page_bytes();
        let mut bytes = [0u8; SEGMENTS_MAX];
        for first in (0..length).step_by(page * SEGMENTS_MAX) {
            let looks: Vec<IoVec> = (first..length)
                .step_by(page)
                .take(SEGMENTS_MAX)
                .map(|at| IoVec { iov_base: start.wrapping_add(at).cast(), iov_len: 1 })
                .collect();
            // SAFETY: `bytes` has room for a byte from each page, and the pages are only read, by
            // the kernel.
            match unsafe { sys::copy_bytes(&looks, &mut bytes) } {
                Ok(n) if n == looks.len() => {}
                Ok(_) => return Err(Errno::FAULT),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Pages that were not in the page cache at a look.
#[derive(Debug)]
pub(crate) struct Missing {
    /// Number of the first page.
    first: usize,
    /// A bit for each.
    pages: Vec<u64>,
}

impl Missing {
    /// None of `range`, which begins at a page.
    pub(crate) fn none(range: &Range<usize>) -> Missing {
        let page = page_bytes();
        Missing { first: range.start / page, pages: vec![0; range.len().div_ceil(page).div_ceil(64)] }
    }

    /// Takes over what a look at a part has found, which begins at a multiple of 64 pages.
    pub(crate) fn put(&mut self, part: &Missing) {
        let at = part.first.saturating_sub(self.first) / 64;
        self.pages.iter_mut().skip(at).zip(&part.pages).for_each(|(all, part)| *all = *part);
    }

    #[cfg(test)]
    pub(crate) fn mark(&mut self, number: usize) {
        let at = number - self.first;
        self.pages[at / 64] |= 1 << (at % 64);
    }

    /// Bytes of `range`, which begins at a page.
    pub(crate) fn bytes(&self, range: &Range<usize>) -> u64 {
        let page = page_bytes();
        let pages = range.start / page..range.end.div_ceil(page);
        let is_missing = |number: &usize| {
            let at = number.wrapping_sub(self.first);
            self.pages.get(at / 64).is_none_or(|bits| bits & (1 << (at % 64)) != 0)
        };
        (pages.filter(is_missing).count() * page) as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: made by `new`, and no address in it is left: slices borrow from the mapping.
            // munmap(2) fails only for arguments that were never mapped.
            let _ = unsafe { sys::unmap(self.start, self.length) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn file(bytes: usize) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; bytes]).unwrap();
        file
    }

    fn fault(range: Range<usize>, how: How) -> Fault {
        Fault {
            ranges: vec![range],
            place: Place::default(),
            how,
            scattered: false,
            begin: None,
            survey: false,
            beyond: None,
        }
    }

    #[test]
    fn each_way_brings_pages_in_and_reports_the_end_of_the_file() {
        for how in [How::Populate, How::Read] {
            let page = page_bytes();
            let file = file(10 * page + 5);
            let mapping = Mapping::new(file.as_fd(), 0, 10 * page + 5, Access::Read).unwrap();
            mapping.fault(file.as_fd(), &fault(0..10 * page + 5, how)).unwrap();
            let all = 0..mapping.length();
            assert_eq!(mapping.missing(file.as_fd(), &all).bytes(&all), 0);
            file.set_len(2 * page as u64).unwrap();
            mapping.fault(file.as_fd(), &fault(0..2 * page, how)).unwrap();
            assert_eq!(
                mapping.fault(file.as_fd(), &fault(0..mapping.length(), how)).map(drop),
                Err(Errno::FAULT),
                "{how:?}"
            );
            assert_eq!(mapping.look_at(&(page..4 * page)), Err(Errno::FAULT));
        }
    }

    #[test]
    fn nothing_mapped_is_nothing_to_bring_in() {
        let file = file(0);
        let mapping = Mapping::new(file.as_fd(), 0, 0, Access::Read).unwrap();
        assert_eq!(mapping.fault(file.as_fd(), &fault(0..0, How::Populate)).map(drop), Ok(()));
        assert_eq!(mapping.missing(file.as_fd(), &(0..0)).bytes(&(0..0)), 0);
    }
}
