//! Page caches, files that are read through them, and leases.
//!
//! A lease lives in the caller's struct, so a cached read needs neither memory nor a slot of a
//! table.
//!
//! `unsafe` here: entry points, their callers' pointers, and leases in the opaque words of a struct.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::time::Duration;

use nowait::Lent;
use nowait_cache::{Access, CachedFile, PageCache, Stats};

use crate::border::{self, Growing, answer, attempt, count, fill, many, status};
use crate::failure::{Failure, Result};
use crate::file::{BlockingLoan, FILES, FileHandle};
use crate::handle::{HandleKind, Table};

/// Handle of a page cache; 0 means none.
pub type CacheHandle = u64;

/// Handle of a file that is read through a cache; 0 means none.
pub type CachedHandle = u64;

/// The file is complete and does not change.
pub const NOWAIT_CACHE_IMMUTABLE: u32 = 0;
/// Other programs may change the file; see nowait_cached_revalidate.
pub const NOWAIT_CACHE_REVALIDATE: u32 = 1;
/// Only handles with this access change the file, by nowait_cached_write. While one of them is open,
/// nowait_cache_open does not compare the size and the times of the file.
pub const NOWAIT_CACHE_EXCLUSIVE: u32 = 2;

static CACHES: Table<PageCache> = Table::new(HandleKind::Cache);
static CACHED: Table<CachedFile> = Table::new(HandleKind::Cached);

/// Options of a cache. Zero the struct, set `size`, then set the members that differ from the
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheOptions {
    /// sizeof(struct nowait_cache_options).
    pub size: usize,
    /// Maximum number of bytes of all pages. The address space is reserved at once; the kernel
    /// assigns memory as pages are read. 0: 64 MiB.
    pub capacity_bytes: u64,
    /// Bytes of a page: a power of two, 4 KiB to 1 MiB. A page is read and evicted whole, and only
    /// a range within one page is leased without a copy. 0: 16 KiB.
    pub page_bytes: u64,
    /// Maximum time that a read waits while leases pin all pages. 0: 10 s.
    pub wait_max_ns: u64,
    /// Maximum number of bytes read ahead of a sequential reader. Less than a page: no readahead.
    /// 0: 256 KiB.
    pub read_ahead_bytes_max: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CacheOptions {
    const FIRST_BYTES: usize = size_of::<CacheOptions>();
}

/// Statistics of a cache: counters since it was created, and the current numbers of cached and of
/// pinned pages. Each counts pages unless its description says otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheStats {
    /// sizeof(struct nowait_cache_counters).
    pub size: usize,
    /// Pages that were found in the cache.
    pub hits: u64,
    /// Pages whose read was in flight already.
    pub joins: u64,
    /// Pages for which a read was begun.
    pub misses: u64,
    /// Pages of ranges that bypassed the cache: longer than half of its capacity at creation.
    pub uncached: u64,
    /// Pages read ahead.
    pub read_ahead: u64,
    /// Pages read ahead that were evicted before a read used them.
    pub read_ahead_unused: u64,
    /// Reads begun, each of one or more adjacent pages.
    pub reads: u64,
    /// Bytes that reads returned.
    pub read_bytes: u64,
    /// Calls of nowait_cached_write that succeeded.
    pub writes: u64,
    /// Bytes written by these calls.
    pub written_bytes: u64,
    /// Reads that failed.
    pub failures: u64,
    /// Pages evicted, for other pages or by a smaller capacity.
    pub evictions: u64,
    /// Pages in the cache now.
    pub cached: u64,
    /// Pages that leases or reads in progress pin now.
    pub pinned: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CacheStats {
    const FIRST_BYTES: usize = size_of::<CacheStats>();
}

/// Bytes of a file that neither change nor move until nowait_unpin. The layout is fixed. All zeros
/// means no lease.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Address of the bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub length: usize,
    /// For the library only.
    pub opaque: [u64; 2],
}

/// The value in the opaque words of a [`Lease`]; `None` is all zeros.
type Held = Option<nowait_cache::Lease>;

const NO_LEASE: Lease = Lease { data: ptr::null(), length: 0, opaque: [0; 2] };

const _: () = {
    assert!(size_of::<Held>() <= size_of::<[u64; 2]>() && align_of::<Held>() <= align_of::<[u64; 2]>());
    assert!(size_of::<Lease>() == 2 * size_of::<usize>() + 16);
    // SAFETY: the words are as large and as aligned as the value, which has no bits that are
    // invalid with a null pointer: its only niche.
    assert!(unsafe { &*ptr::from_ref(&NO_LEASE.opaque).cast::<Held>() }.is_none());
};

/// Creates a page cache in the memory of the process. `options` may be NULL. Threads: any.
///
/// A read of a cached page makes no system call, and copies nothing. A missing page is read once
/// for all threads that wait for it. The cache is for programs that read small ranges of the same
/// pages often.
///
/// Returns 0, or a negative errno: -EINVAL for a page size that is not allowed, and for a capacity
/// of less than one page; -ENOMEM.
///
/// # Safety
/// `options` is NULL or points to as many bytes as its size says; `cache` to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_cache_create(options: *const CacheOptions, cache: *mut CacheHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (options, cache) = unsafe { (border::options(options, "options")?, answer(cache, "cache")?) };
        cache.write(CACHES.insert(built(&options)?)?);
        Ok(())
    })
}

fn built(options: &CacheOptions) -> Result<PageCache> {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut builder = PageCache::builder();
    if options.capacity_bytes > 0 {
        builder = builder.capacity_bytes(options.capacity_bytes);
    }
    if options.page_bytes > 0 {
        builder = builder.page_bytes(bytes(options.page_bytes));
    }
    if options.wait_max_ns > 0 {
        builder = builder.wait_max(Duration::from_nanos(options.wait_max_ns));
    }
    if options.read_ahead_bytes_max > 0 {
        builder = builder.read_ahead_bytes_max(bytes(options.read_ahead_bytes_max));
    }
    Ok(builder.build()?)
}

/// Closes the handle of a cache. Its memory is freed when its cached files are closed and its
/// leases are unpinned. Returns 0 or -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cache_close(cache: CacheHandle) -> c_int {
    status(|| CACHES.close(cache).map(drop))
}

/// Sets the capacity of a cache in bytes, at most that of its options. A smaller capacity evicts
/// pages and frees their memory; the memory of a leased page is freed after its nowait_unpin. The
/// call takes time in proportion to the number of pages.
///
/// Returns the new capacity: whole pages, at least one; or a negative errno. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cache_set_capacity(cache: CacheHandle, capacity_bytes: u64) -> i64 {
    count(|| Ok(CACHES.get_own(cache)?.set_capacity_bytes(capacity_bytes) as usize))
}

/// Stores the counters of a cache in `stats`. The call looks at each page of the capacity. Returns 0,
/// or a negative errno. Threads: any.
///
/// # Safety
/// `stats` points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_cache_stats(cache: CacheHandle, stats: *mut CacheStats) -> c_int {
    status(|| {
        let counted = CACHES.get_own(cache)?.stats();
        // SAFETY: the caller's promise.
        unsafe { fill(stats, &CacheStats::from(counted), "stats") }
    })
}

/// Opens a file for reads through a cache. `access` is one of NOWAIT_CACHE_... Open `file` with
/// O_DIRECT, so that the kernel does not cache the same pages. Close `file` after the cached file:
/// without it, reads of missing pages fail with -EBADF.
///
/// All handles of one file share its pages, under any path. Unless a NOWAIT_CACHE_EXCLUSIVE handle
/// is open, the call compares the size and the times of the file with those of the last comparison.
/// It drops the cached pages as nowait_cached_revalidate does. The cache does not notice later
/// changes, except those by nowait_cached_write: see nowait_cached_invalidate.
///
/// Each handle is a separate reader: consecutive reads of one page count once, and sequential reads
/// start readahead. Open a handle for each scan. Many threads that share a handle slow each other
/// down; give each its own.
///
/// Returns 0, or a negative errno: -EBADF; -EACCES if the file was not opened for reading;
/// -EOPNOTSUPP for a device; -EINVAL for an unknown access, and for NOWAIT_CACHE_EXCLUSIVE with
/// O_APPEND; those of fstat(2). Threads: any.
///
/// # Safety
/// `cached` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_cache_open(
    cache: CacheHandle,
    file: FileHandle,
    access: u32,
    cached: *mut CachedHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let cached = unsafe { answer(cached, "cached") }?;
        let access = match access {
            NOWAIT_CACHE_IMMUTABLE => Access::Immutable,
            NOWAIT_CACHE_REVALIDATE => Access::Revalidate,
            NOWAIT_CACHE_EXCLUSIVE => Access::Exclusive,
            other => {
                return Err(Failure::new(libc::EINVAL, format!("access is {other}; give a NOWAIT_CACHE_...")));
            }
        };
        let opened = CACHES.get_own(cache)?.open(&*FILES.get(file)?, access)?;
        cached.write(CACHED.insert(opened)?);
        Ok(())
    })
}

/// Closes a cached file. Its pages stay in the cache, and its leases stay valid. Returns 0 or
/// -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cached_close(cached: CachedHandle) -> c_int {
    status(|| CACHED.close(cached).map(drop))
}

/// Writes `length` bytes at `offset`, to the file and to its cached pages. Blocks until the write is
/// complete. Later reads return the new bytes; concurrent reads may return old ones. Leases keep their
/// bytes. A write beyond the end extends the file. The bytes are durable after a sync of the file.
///
/// A write waits for no lease. If two writes in flight touch the same page, the cache drops all pages
/// of both; the next read of such a page reads the file.
///
/// Returns `length`, or a negative errno: -EINVAL without NOWAIT_CACHE_EXCLUSIVE; -EBADF; those of
/// pwrite(2): any part of the range may have been written; its pages are dropped. Threads: any.
///
/// # Safety
/// `buffer` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_cached_write(
    cached: CachedHandle,
    buffer: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let data: &[u8] = unsafe { many(buffer.cast(), length, "buffer") }?;
        let cached = CACHED.get_own(cached)?;
        let loan = BlockingLoan::default();
        // SAFETY: the caller's memory stays in place until the token is dropped: the loan outlives
        // it. Writes only read it.
        let memory = unsafe { Lent::from_raw(NonNull::from(data).cast(), data.len(), loan.token()) };
        cached.write_all_at(memory, offset).wait().map_err(|error| error.error)?;
        Ok(data.len())
    })
}

/// Drops the cached pages that contain bytes of a range, which may exceed the file. Call it after a
/// write by other means than nowait_cached_write; later reads return the new bytes. After a
/// change of the size, call nowait_cached_revalidate instead. Leases keep their bytes. Returns 0, or
/// a negative errno. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cached_invalidate(cached: CachedHandle, offset: u64, length: u64) -> c_int {
    status(|| {
        CACHED.get_own(cached)?.invalidate(offset..offset.saturating_add(length));
        Ok(())
    })
}

/// Compares the size and the times of the file with those of the last comparison (fstat(2)), and
/// drops its cached pages if they differ. With NOWAIT_CACHE_REVALIDATE, it also drops them if the
/// times were at most two seconds old at the last comparison.
///
/// Returns 1 if it dropped the pages, 0 if not, or a negative errno. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cached_revalidate(cached: CachedHandle) -> c_int {
    count(|| Ok(CACHED.get_own(cached)?.revalidate()?.into())) as c_int
}

/// Reads `length` bytes at `offset` through the cache, waits for them, and stores a lease in
/// `lease`. The bytes stay valid until nowait_unpin, also after the cached file and the cache are
/// closed.
///
/// A range within one page pins the page: the cache cannot reuse it. Unpin soon, or copy the bytes;
/// do not hold a lease while waiting for another page of a small cache. Any other range is copied
/// into memory that belongs to the lease. The call overwrites the struct: unpin a previous lease in
/// it first. After an error the struct is all zeros.
///
/// Returns 0, or a negative errno: -ENODATA if the range ends beyond the end of the file, as last
/// compared or written; -ETIMEDOUT if leases pin all pages for options.wait_max_ns; -ENOMEM;
/// -EOVERFLOW; -EBADF; those of pread(2). Threads: any.
///
/// # Safety
/// `lease` points to a lease, whose previous contents are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_cache_read(
    cached: CachedHandle,
    offset: u64,
    length: usize,
    lease: *mut Lease,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let lease = unsafe { LeasePlace::new(lease) }?;
        let cached = CACHED.get_own(cached)?;
        lease.write(cached.get(range(offset, length)?).wait()?);
        Ok(())
    })
}

/// Reads like nowait_cache_read if all of the range is cached. The call makes no system call, never
/// waits, and starts no read.
///
/// Returns 0, or a negative errno. Returns -EAGAIN, without a message, if a page is not cached, if
/// the range ends beyond the end of the file, or if there is no memory for a copy. Then call
/// nowait_cache_read, which reads the range or returns the error. Threads: any.
///
/// # Safety
/// As nowait_cache_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_cache_try_read(
    cached: CachedHandle,
    offset: u64,
    length: usize,
    lease: *mut Lease,
) -> c_int {
    attempt(|| {
        // SAFETY: the caller's promise.
        let lease = unsafe { LeasePlace::new(lease) }?;
        let cached = CACHED.get_own(cached)?;
        Ok(cached.try_get(range(offset, length)?).map(|found| {
            lease.write(found);
            0
        }))
    }) as c_int
}

/// Ends a lease, and zeroes the struct. A second call with the same struct has no effect. The struct
/// may be moved, but unpin only one copy of it. The library cannot detect a second copy: unpinning it
/// releases a page that is in use, or frees a buffer twice.
///
/// Returns 0 or -EFAULT. Threads: any, one at a time for each lease.
///
/// # Safety
/// `lease` is NULL or points to zeros or to a lease that was not unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_unpin(lease: *mut Lease) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { answer(lease, "lease") }?.as_mut_ptr();
        // SAFETY: the words are zero or from `LeasePlace::write`, and are zeroed before they could
        // be taken over again.
        let held = unsafe { (&raw const (*place).opaque).cast::<Held>().read() };
        // SAFETY: the caller's promise.
        unsafe { place.write(NO_LEASE) };
        drop(held);
        Ok(())
    })
}

/// Struct of a caller that receives a lease.
struct LeasePlace(*mut Lease);

impl LeasePlace {
    /// Zeroes the struct, so that it is no lease if the call fails.
    ///
    /// # Safety
    /// As [`answer`]; nothing else uses the struct while the result exists.
    #[inline]
    unsafe fn new(lease: *mut Lease) -> Result<LeasePlace> {
        // SAFETY: the caller's promise.
        unsafe { answer(lease, "lease") }?.write(NO_LEASE);
        Ok(LeasePlace(lease))
    }

    #[inline]
    fn write(self, lease: nowait_cache::Lease) {
        let bytes: &[u8] = &lease;
        let (data, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: valid for writes, as `new` was promised. The value fits into the words, and is
        // written in place: a copy as numbers would lose the provenance of its pointer.
        unsafe {
            (*self.0).data = data;
            (*self.0).length = length;
            (&raw mut (*self.0).opaque).cast::<Held>().write(Some(lease));
        }
    }
}

#[inline]
fn range(offset: u64, length: usize) -> Result<Range<u64>> {
    match offset.checked_add(length as u64) {
        Some(end) => Ok(offset..end),
        None => Err(Failure::new(libc::EOVERFLOW, format!("{length} bytes at {offset} end beyond UINT64_MAX"))),
    }
}

impl From<Stats> for CacheStats {
    fn from(stats: Stats) -> CacheStats {
        CacheStats {
            size: size_of::<CacheStats>(),
            hits: stats.hits,
            joins: stats.joins,
            misses: stats.misses,
            uncached: stats.uncached,
            read_ahead: stats.read_ahead,
            read_ahead_unused: stats.read_ahead_unused,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            writes: stats.writes,
            written_bytes: stats.written_bytes,
            failures: stats.failures,
            evictions: stats.evictions,
            cached: stats.cached,
            pinned: stats.pinned,
        }
    }
}
