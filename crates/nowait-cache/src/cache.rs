//! A cache and its settings.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use nowait::{Error, ErrorKind, ErrorOp, File, Result};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

use crate::arena::Arena;
use crate::file::{Access, CachedFile};
use crate::frame::Frames;
use crate::inode::{Fills, Inode, Stamp};
use crate::pages::Pages;
use crate::shared::{Check, Core, Owner, Shared};
use crate::stats::Stats;
use crate::sync::lock;

const PAGE_MIN: usize = 4 << 10;
const PAGE_MAX: usize = 1 << 20;

/// Page cache for files, in bounded memory. Clones share it.
///
/// The cache stays in memory while a file handle exists, and its frames while a lease exists. See
/// the crate's page for an example.
#[derive(Clone)]
pub struct PageCache {
    core: Core,
}

/// Settings of a [`PageCache`]; see [`PageCache::builder`].
pub struct Builder {
    capacity_bytes: u64,
    page_bytes: usize,
    wait_max: Duration,
    read_ahead_bytes_max: usize,
    check: Option<Check>,
}

impl PageCache {
    /// Returns settings: 64 MiB in pages of 16 KiB, waits of up to 10 s, 256 KiB read ahead.
    pub fn builder() -> Builder {
        Builder {
            capacity_bytes: 64 << 20,
            page_bytes: 16 << 10,
            wait_max: Duration::from_secs(10),
            read_ahead_bytes_max: 256 << 10,
            check: None,
        }
    }

    /// Returns a handle that reads the file through the cache.
    ///
    /// All handles of one inode share its pages, under any path. The pages stay cached after the
    /// last handle is dropped. The call compares size, mtime and ctime (`fstat(2)`) with those of
    /// the last comparison, and drops the cached pages as [`Access`] says.
    /// It makes a few system calls on the calling thread; on local file systems they do not block on
    /// the device.
    ///
    /// Device and inode name a file also if another file system was mounted in the place of the
    /// first: then the comparison alone tells its files from the old ones. Make another cache after
    /// that.
    ///
    /// The cache does not notice when the file changes later: see [`CachedFile::revalidate`]. Open
    /// files with [`direct`](nowait::OpenOptions::direct) I/O, so that the kernel does not cache
    /// the same pages.
    ///
    /// # Errors
    /// Those of `fstat(2)`. [`ErrorKind::Unsupported`] for a file of a simulator (unless the feature
    /// `sim` is enabled), for a device, and in a forked child. [`ErrorKind::PermissionDenied`] for a file
    /// that was not opened for reading. [`ErrorKind::InvalidInput`] for exclusive access to a file
    /// that was opened for appending.
    pub fn open(&self, file: &File, access: Access) -> Result<CachedFile> {
        if self.core.is_forked() {
            return Err(forked(file));
        }
        let (identity, now) = stamp(file)?;
        check_mode(file, access)?;
        let mut guard = lock(&self.core.inodes);
        let inodes = &mut *guard;
        // Dropped without the lock.
        let unused = if inodes.known.contains_key(&identity) { Vec::new() } else { inodes.take_unused() };
        let inode = inodes
            .known
            .entry(identity)
            .or_insert_with(|| {
                static NUMBERS: AtomicU64 = AtomicU64::new(1);
                Arc::new(Inode {
                    number: NUMBERS.fetch_add(1, Ordering::Relaxed),
                    pages: Pages::new(now.size.div_ceil(self.core.page_bytes() as u64)),
                    size: AtomicU64::new(0),
                    known: Mutex::default(),
                    fills: Mutex::default(),
                    writes: Mutex::default(),
                    counters: Default::default(),
                })
            })
            .clone();
        drop(guard);
        drop(unused);
        CachedFile::open(self.core.clone(), inode, file.clone(), access)
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.core.page_bytes()
    }

    /// Bytes that the cached pages may have; zero in a forked child.
    pub fn capacity_bytes(&self) -> u64 {
        if self.core.is_forked() {
            return 0;
        }
        u64::from(lock(&self.core.policy).usable()) << self.core.page_shift
    }

    /// Sets the capacity, up to that of the [`Builder`]. A smaller one evicts pages, and returns
    /// their memory to the system at once; the memory of pages that are leased follows when their
    /// leases are dropped. Returns the new capacity: whole pages, at least one. It takes a time in
    /// proportion to the pages, up to a second for millions of them.
    pub fn set_capacity_bytes(&self, bytes: u64) -> u64 {
        let frames = (bytes >> self.core.page_shift).clamp(1, u64::from(self.core.frames.len())) as u32;
        if self.core.is_forked() {
            return self.capacity_bytes();
        }
        let mut policy = lock(&self.core.policy);
        let before = policy.usable();
        let given_up = policy.set_usable(frames, &self.core.frames);
        drop(policy);
        self.core.discard(&given_up);
        (before..frames).for_each(|_| self.core.space.next().wake());
        u64::from(frames) << self.core.page_shift
    }

    /// Returns the counters. Looks at each frame.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.core)
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache").field("capacity_bytes", &self.capacity_bytes()).finish_non_exhaustive()
    }
}

/// Age in seconds that a file's times must exceed before equal times mean equal contents.
const SETTLED_S: i64 = 2;

pub(crate) fn forked(file: &File) -> Error {
    let error = Error::new(ErrorOp::Read, ErrorKind::Unsupported).at(file.path());
    error.with_advice("a forked child cannot use the cache of its parent; make one in the child")
}

/// Descriptor of a file that can be cached.
fn descriptor(file: &File) -> Result<BorrowedFd<'_>> {
    file.descriptor().ok_or_else(|| unsupported(file, "the cache needs a file with a descriptor"))
}

fn unsupported(file: &File, advice: &str) -> Error {
    Error::new(ErrorOp::Metadata, ErrorKind::Unsupported).at(file.path()).with_advice(advice)
}

fn system_error(file: &File, errno: Errno) -> Error {
    Error::from_raw_os_error(ErrorOp::Metadata, errno.raw_os_error()).at(file.path())
}

fn open_flags(file: &File) -> Result<OFlags> {
    #[cfg(feature = "sim")]
    if let Some(stat) = file.simulated() {
        return Ok(OFlags::from_bits_retain(stat.flags as _));
    }
    fcntl_getfl(descriptor(file)?).map_err(|errno| system_error(file, errno))
}

/// Refuses a file that was not opened for reading, and one that would append what is written.
fn check_mode(file: &File, access: Access) -> Result<()> {
    let flags = open_flags(file)?;
    if flags & OFlags::RWMODE == OFlags::WRONLY {
        let error = Error::new(ErrorOp::Read, ErrorKind::PermissionDenied).at(file.path());
        return Err(error.with_advice("open the file for reading"));
    }
    if access == Access::Exclusive && flags.contains(OFlags::APPEND) {
        let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(file.path());
        return Err(error.with_advice("open the file without `append`: each write would go to its end"));
    }
    Ok(())
}

/// Returns the values of a file, and its fills locked: the size was not set since `fstat(2)`.
pub(crate) fn current<'i>(inode: &'i Inode, file: &File) -> Result<(Stamp, MutexGuard<'i, Fills>)> {
    loop {
        let resizes = lock(&inode.fills).resizes;
        let (_, now) = stamp(file)?;
        let fills = lock(&inode.fills);
        if fills.resizes == resizes {
            return Ok((now, fills));
        }
    }
}

/// Returns the file's device and inode, and the size and times that show changes.
#[allow(clippy::unnecessary_cast)]
fn stamp(file: &File) -> Result<((u64, u64), Stamp)> {
    #[cfg(feature = "sim")]
    if let Some(stat) = file.simulated() {
        // Each change raises the version, so equal versions mean equal contents, without a settling time.
        let changed = (0, stat.version);
        let stamp = Stamp { size: stat.size, modified: changed, changed, is_settled: true };
        // The complement keeps disk numbers apart from `st_dev`.
        return Ok(((!stat.disk, stat.inode), stamp));
    }
    let stat = fstat(descriptor(file)?).map_err(|errno| system_error(file, errno))?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(unsupported(file, "the cache is for regular files"));
    }
    let [modified, changed] =
        [(stat.st_mtime as i64, stat.st_mtime_nsec as u64), (stat.st_ctime as i64, stat.st_ctime_nsec as u64)];
    // Times in the future (the clock was set back) do not count as settled.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    let is_settled = modified.0.max(changed.0) < now - SETTLED_S;
    let stamp = Stamp { size: stat.st_size as u64, modified, changed, is_settled };
    Ok(((stat.st_dev as u64, stat.st_ino as u64), stamp))
}

impl Builder {
    /// Sets the maximum bytes of all pages. The memory is reserved at once; the kernel assigns it
    /// as pages are read. Metadata needs another 90 bytes for each page of the capacity, 4 KiB for
    /// each file that was opened, and 1 KiB for each group of 256 pages with a cached page so far.
    /// The metadata of files with neither handles nor pages is freed when further files are opened,
    /// from 64 files on.
    pub fn capacity_bytes(mut self, bytes: u64) -> Builder {
        self.capacity_bytes = bytes;
        self
    }

    /// Sets the bytes of a page: a power of two, 4 KiB to 1 MiB. A page is read and evicted whole,
    /// and only a range within one page is leased without a copy.
    pub fn page_bytes(mut self, bytes: usize) -> Builder {
        self.page_bytes = bytes;
        self
    }

    /// Sets how long a read waits for a frame while leases pin all of them; a year at most.
    pub fn wait_max(mut self, time: Duration) -> Builder {
        // So that a deadline is a time that can be represented.
        self.wait_max = time.min(Duration::from_secs(365 * 24 * 3600));
        self
    }

    /// Sets the maximum readahead in bytes, within an eighth of the capacity; zero disables readahead.
    pub fn read_ahead_bytes_max(mut self, bytes: usize) -> Builder {
        self.read_ahead_bytes_max = bytes;
        self
    }

    /// Sets a check that runs once on each page after its read. `check` gets the path of the file,
    /// the offset and the bytes; the last page of a file may be shorter. If it refuses a page, all
    /// reads of the page fail with [`ErrorKind::Damaged`] and its text, and the page is not cached.
    ///
    /// It runs on the thread that notices the completion, with no lock held, and must not block. A
    /// panic counts as a refusal. If a write through the cache touches the page during its read, a
    /// refused page is read again.
    pub fn check(
        mut self,
        check: impl Fn(&Path, u64, &[u8]) -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> Builder {
        self.check = Some(Box::new(check));
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a page size that is not allowed, and for a capacity of less
    /// than one page, or of 2^32 - 1 pages or more. [`ErrorKind::OutOfMemory`] if the system
    /// refuses the memory.
    pub fn build(self) -> Result<PageCache> {
        let refused = |advice: &str| Err(Error::new(ErrorOp::Build, ErrorKind::InvalidInput).with_advice(advice));
        let page = self.page_bytes;
        if !page.is_power_of_two() || !(PAGE_MIN..=PAGE_MAX).contains(&page) {
            return refused("page_bytes must be a power of two from 4 KiB to 1 MiB");
        }
        let frames = match u32::try_from(self.capacity_bytes / page as u64) {
            Ok(0) => return refused("capacity_bytes is less than one page; the unit is a byte"),
            Ok(u32::MAX) | Err(_) => {
                return refused("capacity_bytes must be less than 2^32 - 1 pages; use larger pages");
            }
            Ok(frames) => frames,
        };
        let arena = Arena::new(frames, page).map_err(|errno| {
            let error = Error::from_raw_os_error(ErrorOp::Build, errno.raw_os_error());
            match errno {
                Errno::NOMEM => error.with_advice("the system refuses this much memory; use a smaller capacity_bytes"),
                _ => error,
            }
        })?;
        let read_ahead = self.read_ahead_bytes_max;
        let shared = Frames::new(arena)
            .and_then(|frames| Shared::new(frames, page.ilog2(), self.wait_max, read_ahead, self.check));
        let short = || {
            Error::new(ErrorOp::Build, ErrorKind::OutOfMemory)
                .with_advice("no memory for the metadata of the pages; use larger pages, or a smaller capacity_bytes")
        };
        Ok(PageCache { core: Owner::new(shared.ok_or_else(short)?) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("capacity_bytes", &self.capacity_bytes)
            .field("page_bytes", &self.page_bytes)
            .finish_non_exhaustive()
    }
}
