//! A file that is read through a cache.

use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nowait::{Buf, Error, ErrorKind, ErrorOp, File, Result, WriteBuffer};

use crate::cache::{current, forked};
use crate::fill::{Fill, FrameList};
use crate::get::{Gather, Get};
use crate::inode::{Inode, Known};
use crate::lease::Lease;
use crate::pages::PAGES_MAX;
use crate::shared::{Core, Invalidated, Pin};
use crate::stats::Stats;
use crate::sync::lock;
use crate::word::{has_many_hits, is_plain, is_popular};
use crate::write::Write;

/// Changes that a file may undergo while it is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The file is complete and does not change. An opening drops its cached pages if the size or
    /// the times have changed, since the file system may have reused the inode number. (If a file is
    /// removed and another is created within one tick of the kernel's clock, a few milliseconds, both
    /// may have equal inode numbers and times.)
    Immutable,
    /// Other programs may change the file. An opening, and [`CachedFile::revalidate`], drop its
    /// cached pages if the size or the times have changed, or if the times were at most two seconds
    /// old at the last comparison: two changes may have equal times.
    Revalidate,
    /// Only handles of this cache with this access change the file, by
    /// [`CachedFile::write_all_at`]. While one of them exists, an opening does not compare size and
    /// times. [`CachedFile::revalidate`], and other openings, compare as with `Revalidate`.
    Exclusive,
}

/// File that is read through a [`PageCache`](crate::PageCache): see
/// [`PageCache::open`](crate::PageCache::open).
///
/// Each clone is a separate reader. Consecutive reads of one page by one reader count once, so a
/// scan that reads a page row by row does not make it look hot. Sequential reads trigger readahead.
pub struct CachedFile {
    pub(crate) core: Core,
    pub(crate) inode: Arc<Inode>,
    pub(crate) file: File,
    pub(crate) access: Access,
    /// Present if the access is exclusive.
    pub(crate) writer: Option<Arc<()>>,
    reader: Reader,
}

/// Access pattern of one handle, to detect sequential reads.
struct Reader {
    /// The page that was read last.
    last: AtomicU64,
    /// End of the pages that were read ahead.
    ahead: AtomicU64,
    /// Page whose access triggers the next readahead.
    mark: AtomicU64,
    /// Size of the last readahead in pages.
    window: AtomicU64,
}

/// No page.
const NONE: u64 = u64::MAX;

impl Default for Reader {
    fn default() -> Reader {
        Reader {
            last: AtomicU64::new(NONE),
            ahead: AtomicU64::new(0),
            mark: AtomicU64::new(NONE),
            window: AtomicU64::new(0),
        }
    }
}

/// Result of a claim on a page.
pub(crate) enum Claim {
    Cached(Pin),
    /// Another read of the page is in flight.
    Joined(Arc<Fill>),
    /// The caller must begin the read, with no lock held.
    Began(Arc<Fill>),
    /// Every frame is pinned.
    Full,
}

impl CachedFile {
    /// Opens a file that the cache knows, after a comparison.
    pub(crate) fn open(core: Core, inode: Arc<Inode>, file: File, access: Access) -> Result<CachedFile> {
        let mut file = CachedFile { core, inode, file, access, writer: None, reader: Reader::default() };
        let known = file.inode.clone();
        let mut known = lock(&known.known);
        let writer = known.writer.upgrade();
        let invalidated = if writer.is_none() { file.compare(&mut known)? } else { None };
        if access == Access::Exclusive {
            let writer = writer.unwrap_or_default();
            known.writer = Arc::downgrade(&writer);
            file.writer = Some(writer);
        }
        drop(known);
        invalidated.unwrap_or_default().finish(&file.core);
        Ok(file)
    }

    /// Returns a lease of the range if all of it is cached. A hit within one page makes no system
    /// call and takes no lock. Never waits for the device or for a frame. A longer range is copied.
    /// No readahead.
    ///
    /// `None` also if the range ends beyond the end of the file or is empty there, if memory for a copy
    /// cannot be allocated, and in a forked child.
    // Inlined, so that the lease is made in its place: moves of several words cost as much as the
    // atomics.
    #[inline(always)]
    pub fn try_get(&self, range: Range<u64>) -> Option<Lease> {
        let (page, start) = self.split(range.start);
        if self.core.is_forked() {
            return None;
        }
        let pin = self.pin(page)?;
        let end = (start as u64).checked_add(range.end.wrapping_sub(range.start))?;
        if end > pin.len() as u64 {
            return self.try_copy(pin, range);
        }
        Some(Lease::page(pin, start, end as usize - start))
    }

    /// Reads the range, and returns a lease of it. Await it, or block in [`Get::wait`].
    ///
    /// A page that is not cached is read once for all that wait for it, whichever file handle, task
    /// or thread they use. The read continues if the future is dropped. Adjacent pages are read
    /// together.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] if the range ends beyond the end of the file, and
    /// [`ErrorKind::InvalidInput`] if it ends before its start. Errors of the read, for every
    /// waiter; the page is not cached. If a read of several pages fails, each page is first read
    /// again alone. [`ErrorKind::Damaged`] if the [check](crate::Builder::check) refuses a page.
    /// [`ErrorKind::TimedOut`] if leases pin all frames for [`wait_max`](crate::Builder::wait_max).
    /// [`ErrorKind::OutOfMemory`] for memory of a copy. [`ErrorKind::Unsupported`] in a forked
    /// child.
    pub fn get(&self, range: Range<u64>) -> Get<'_> {
        Get::new(self, range)
    }

    /// Reads many ranges, in any order, into one buffer. Cached pages are copied. The others are
    /// read concurrently, adjacent pages together, with up to 64 reads in flight. The leases pin no
    /// page: lease `n` is range `n` of the buffer.
    ///
    /// # Errors
    /// The first error; see [`CachedFile::get`].
    pub fn gather(&self, ranges: &[Range<u64>]) -> Gather<'_> {
        Gather::new(self, ranges)
    }

    /// Writes the buffer at the offset, to the file and to the cached pages; returns the buffer. A
    /// write beyond the end extends the file.
    ///
    /// Every read by this cache that begins after completion returns the new bytes. A read that begins
    /// earlier may return old bytes, or a mix if it covers several pages or an uncached one. A gather does
    /// not read its pages at one moment: it may return the bytes of a later write without those of an
    /// earlier one. A lease keeps the old bytes. The bytes are durable after a sync of
    /// [`file`](CachedFile::file).
    ///
    /// If a future that was polled is dropped, the write continues. It waits for no lease and for no
    /// frame: if it can take no frame for a leased page, it drops the page. A page that the write
    /// covers whole enters the cache; a part of an uncached page does not. If two writes in flight
    /// touch the same page, all pages of both are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the access is not [`Access::Exclusive`]. Errors of the write,
    /// with the buffer: any part of the range may be written, and its pages are dropped.
    /// [`ErrorKind::Unsupported`] in a forked child.
    ///
    /// # Panics
    /// If the future was polled before a fork, and is polled again in the child: the parent's write
    /// owns the buffer.
    pub fn write_all_at<B: WriteBuffer + Deref<Target = [u8]>>(&self, buffer: B, offset: u64) -> Write<'_, B> {
        Write::new(self, buffer, offset)
    }

    /// Size of the file at the last comparison, updated by later writes through the cache.
    pub fn size(&self) -> u64 {
        self.inode.size.load(Ordering::Relaxed)
    }

    /// Returns the underlying file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Path of the underlying file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Drops the cached pages that contain bytes of the range. A later read gets them from the
    /// file; a lease keeps its bytes. A read that began before may return old bytes, but does not
    /// cache them.
    pub fn invalidate(&self, range: Range<u64>) {
        if range.start < range.end && !self.core.is_forked() {
            let (first, last) = (self.split(range.start).0, self.split(range.end - 1).0);
            self.core.invalidate(&self.inode, first, last + 1).finish(&self.core);
        }
    }

    /// Compares the file's size and times with those of the last comparison (`fstat(2)`, on this
    /// thread), and drops its cached pages if they differ; see [`Access`]. Returns true if it has
    /// dropped them. Call it after a change of the size that is not a write, such as
    /// [`File::set_len`]. It also drops the pages after a write through the cache, which changes the
    /// times.
    ///
    /// It misses writes through a shared map until the kernel updates the times. It also misses a
    /// page that was read during another program's `write(2)` of more than two seconds: the kernel
    /// sets the times before it copies the bytes.
    ///
    /// # Errors
    /// Those of `fstat(2)`. [`ErrorKind::Unsupported`] in a forked child.
    pub fn revalidate(&self) -> Result<bool> {
        if self.core.is_forked() {
            return Err(forked(&self.file));
        }
        let invalidated = self.compare(&mut lock(&self.inode.known))?;
        Ok(invalidated.map(|invalidated| invalidated.finish(&self.core)).is_some())
    }

    /// Compares the file with what is known of it. `Some` if its pages were dropped.
    fn compare(&self, known: &mut Known) -> Result<Option<Invalidated>> {
        lock(&self.inode.writes).mark_resized();
        let (now, mut fills) = current(&self.inode, &self.file)?;
        let before = known.stamp.replace(now);
        let may_tie = self.access != Access::Immutable;
        if before.is_some_and(|before| before.is_same(&now) && (before.is_settled || !may_tie)) {
            return Ok(None);
        }
        let mut invalidated = Invalidated::default();
        invalidated.range(&self.core, &self.inode, &mut fills, 0, PAGES_MAX);
        self.inode.set_size(&mut fills, now.size);
        Ok(Some(invalidated))
    }

    /// Returns the counters of the file, of all its handles. Looks at each frame of the cache.
    pub fn stats(&self) -> Stats {
        Stats::of_file(&self.core, &self.inode)
    }

    /// Returns the page of an offset, and the offset in the page.
    #[inline]
    pub(crate) fn split(&self, offset: u64) -> (u64, usize) {
        (offset >> self.core.page_shift, (offset & (self.core.page_bytes() as u64 - 1)) as usize)
    }

    /// Pins a cached page, and records the access.
    #[inline(always)]
    pub(crate) fn pin(&self, page: u64) -> Option<Pin> {
        let (pin, word) = self.core.pin(&self.inode, page)?;
        if !is_plain(word) {
            self.note_access(&pin, word, page);
        }
        Some(pin)
    }

    /// Continues to read ahead if these pages, which were found, include the mark.
    #[inline]
    pub(crate) fn found(&self, first: u64, end: u64) {
        let mark = self.reader.mark.load(Ordering::Relaxed);
        if mark >= first && mark < end {
            self.read_ahead(end);
        }
    }

    /// Raises the score of a page, unless this reader's previous read was of it. Moves hits from the
    /// state word to the counters before they overflow.
    #[cold]
    fn note_access(&self, pin: &Pin, word: u64, page: u64) {
        if has_many_hits(word) {
            self.inode.counters.hits.fetch_add(pin.record().word.take_hits(), Ordering::Relaxed);
        }
        if !is_popular(word) && self.reader.last.swap(page, Ordering::Relaxed) != page {
            pin.record().word.raise_score();
        }
    }

    /// Returns a copy of a range of several pages, whose first one is pinned, if all are cached.
    #[cold]
    fn try_copy(&self, first: Pin, range: Range<u64>) -> Option<Lease> {
        let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        if range.end > self.size() {
            return None;
        }
        let mut first = Some(first);
        let mut buffer = Buf::try_zeroed(length)?;
        let mut done = 0;
        while done < buffer.len() {
            let (page, start) = self.split(range.start + done as u64);
            let pin = first.take().or_else(|| self.pin(page))?;
            let bytes = pin.bytes().get(start..)?;
            let length = bytes.len().min(buffer.len() - done);
            if length == 0 {
                return None;
            }
            buffer[done..done + length].copy_from_slice(&bytes[..length]);
            done += length;
        }
        Some(Lease::copy(&Arc::new(buffer), 0..length))
    }

    /// Claims a page that was not found, and up to `wanted` pages from it on that are not cached either.
    /// `is_called` if the caller's turn in the line for frames has come.
    pub(crate) fn claim(&self, page: u64, wanted: u64, is_called: bool) -> Claim {
        // Dropped after the locks.
        let _stray;
        let mut fills = lock(&self.inode.fills);
        match self.core.pin_uncounted(&self.inode, page) {
            Some((pin, true)) => return Claim::Cached(pin),
            other => _stray = other,
        }
        if let Some(fill) = fills.of(page) {
            return Claim::Joined(fill.clone());
        }
        let mut frames = FrameList::new();
        let mut policy = lock(&self.core.policy);
        if is_called || !self.core.space.is_wanted() {
            let end = (page + wanted.max(1)).min(fills.next(page).unwrap_or(u64::MAX));
            for next in page..end {
                // The frame of a page in the directory may contain another page by now; the page is then
                // read later.
                if next > page && self.inode.pages.get(next).is_some() {
                    break;
                }
                frames.extend(policy.take(&self.core.frames, u32::MAX));
                if (frames.len() as u64) <= next - page {
                    break;
                }
            }
        }
        drop(policy);
        if frames.is_empty() {
            return Claim::Full;
        }
        let fill = Fill::new(&self.core, &self.inode, &self.file, page, frames);
        fills.insert(&fill);
        Claim::Began(fill)
    }

    /// Records a read of pages that were not cached, and reads ahead if the file is read in order.
    pub(crate) fn missed(&self, first: u64, end: u64) {
        let Reader { last, ahead, mark, window } = &self.reader;
        let before = last.swap(end - 1, Ordering::Relaxed);
        let follows = before == first || before.wrapping_add(1) == first || first == ahead.load(Ordering::Relaxed);
        if !follows || before == NONE {
            mark.store(NONE, Ordering::Relaxed);
            window.store(0, Ordering::Relaxed);
            return;
        }
        self.read_ahead(end);
    }

    /// Begins to read the pages after a sequential read.
    #[cold]
    fn read_ahead(&self, from: u64) {
        let Reader { ahead, mark, window, .. } = &self.reader;
        // Pages read ahead must not evict each other.
        let most = u64::from(lock(&self.core.policy).usable() / 8);
        let most = most.min((self.core.read_ahead_bytes_max as u64) >> self.core.page_shift);
        let pages = (window.load(Ordering::Relaxed) * 2).max(4).min(most);
        let begin = ahead.load(Ordering::Relaxed).clamp(from, from + pages);
        let end = (begin + pages).min(self.size().div_ceil(self.core.page_bytes() as u64)).min(PAGES_MAX);
        mark.store(NONE, Ordering::Relaxed);
        if begin >= end || pages == 0 {
            return;
        }
        window.store(pages, Ordering::Relaxed);
        let mut page = begin;
        while page < end {
            match self.claim(page, (end - page).min(self.fill_pages_max()), false) {
                Claim::Began(fill) => {
                    let end = fill.pages().end;
                    self.inode.counters.read_ahead.fetch_add(end - page, Ordering::Relaxed);
                    fill.mark_ahead();
                    fill.begin();
                    page = end;
                }
                Claim::Cached(_) | Claim::Joined(_) => page += 1,
                Claim::Full => break,
            }
        }
        ahead.store(page, Ordering::Relaxed);
        // The next begins when the first page of this one is read.
        mark.store(begin, Ordering::Relaxed);
    }

    /// Pages of one read: 256 KiB.
    pub(crate) fn fill_pages_max(&self) -> u64 {
        ((256 << 10) >> self.core.page_shift).max(1)
    }

    pub(crate) fn error(&self, kind: ErrorKind, range: &Range<u64>) -> Error {
        let length = range.end.saturating_sub(range.start);
        Error::new(ErrorOp::Read, kind).at(self.path()).with_range(range.start, length)
    }
}

/// Another reader of the same file.
impl Clone for CachedFile {
    fn clone(&self) -> CachedFile {
        CachedFile {
            core: self.core.clone(),
            inode: self.inode.clone(),
            file: self.file.clone(),
            access: self.access,
            writer: self.writer.clone(),
            reader: Reader::default(),
        }
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile").field("path", &self.path()).field("size", &self.size()).finish_non_exhaustive()
    }
}
