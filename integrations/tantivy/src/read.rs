//! Readers of an index's files.
//!
//! `unsafe` here: maps of files that do not change, and `StableDeref` for buffers, maps and leases.

use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use nowait::map::Map;
use nowait::{BUF_ALIGNMENT, Buf, ErrorKind, File, Nowait, OpenOptions};
use nowait_cache::{Access, CachedFile, Lease, PageCache};
use stable_deref_trait::StableDeref;
use tantivy::HasLen;
use tantivy::directory::{FileHandle, OwnedBytes};

/// How a directory reads files.
pub(super) enum Reads {
    /// A blocking read returns a slice of a map.
    Mapped,
    /// Each read copies.
    Copied,
    Cached {
        cache: PageCache,
        leases: Arc<AtomicUsize>,
    },
}

impl Reads {
    pub(super) fn cached(cache: &PageCache) -> Reads {
        Reads::Cached { cache: cache.clone(), leases: Arc::default() }
    }
}

/// A complete, immutable file.
#[derive(Debug)]
pub(super) struct IndexFile {
    file: File,
    length: usize,
    source: Source,
}

/// Source of blocking reads. Asynchronous reads of a mapped file copy instead.
#[derive(Debug)]
enum Source {
    Map(OwnedBytes),
    /// Copies with `pread`; the fallback if the file cannot be mapped or cached.
    File,
    Cache(Cached),
}

#[derive(Debug)]
struct Cached {
    file: CachedFile,
    cache: PageCache,
    /// Leases of the directory that pin pages, or are about to.
    leases: Arc<AtomicUsize>,
}

impl IndexFile {
    pub(super) fn open(nowait: &Nowait, path: &Path, reads: &Reads) -> io::Result<IndexFile> {
        let open = |is_direct| OpenOptions::new().read(true).direct(is_direct).open_in(nowait, path).wait();
        let (mut file, mut source) = (None, Source::File);
        if let Reads::Cached { cache, leases } = reads {
            let direct = open(true)?;
            if let Ok(cached) = cache.open(&direct, Access::Immutable) {
                source = Source::Cache(Cached { file: cached, cache: cache.clone(), leases: leases.clone() });
                file = Some(direct);
            }
        }
        let file = file.map_or_else(|| open(false), Ok)?;
        let length = usize::try_from(file.size().wait()?).map_err(io::Error::other)?;
        if let Reads::Mapped = reads {
            // SAFETY: tantivy writes a file once, and opens it for reading only when it is complete.
            // All processes use the index through tantivy.
            if let Ok(map) = unsafe { Map::new(&file, ..length as u64) } {
                source = Source::Map(OwnedBytes::new(Kept(map)));
            }
        }
        Ok(IndexFile { file, length, source })
    }

    /// Returns the length of a range. Fails if the range is not within the file.
    fn length_of(&self, range: &Range<usize>) -> io::Result<usize> {
        match range.end.checked_sub(range.start) {
            Some(length) if range.end <= self.length => Ok(length),
            _ => {
                let text = format!("{}: no range {range:?} in {} bytes", self.file.path().display(), self.length);
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
        }
    }
}

impl HasLen for IndexFile {
    fn len(&self) -> usize {
        self.length
    }
}

// A `Buf` is reused, so it is not zeroed or faulted in at each read. But it takes whole pages, so
// ranges shorter than a page are read into a `Vec`.
#[async_trait]
impl FileHandle for IndexFile {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let (length, offset) = (self.length_of(&range)?, range.start as u64);
        if length == 0 {
            return Ok(OwnedBytes::empty());
        }
        let kept = match &self.source {
            Source::Map(map) => Some(map.slice(range)),
            Source::Cache(cached) => cached.read(offset..offset + length as u64)?,
            Source::File => None,
        };
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        if length < BUF_ALIGNMENT {
            let mut bytes = vec![0; length];
            self.file.read_exact_into(&mut bytes, offset)?;
            return Ok(OwnedBytes::new(bytes));
        }
        Ok(OwnedBytes::new(Kept(self.file.read_range(offset, length).wait()?)))
    }

    /// Does not use the map: a page fault would block the executor's thread.
    async fn read_bytes_async(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let (length, offset) = (self.length_of(&range)?, range.start as u64);
        if length == 0 {
            return Ok(OwnedBytes::empty());
        }
        let kept = match &self.source {
            Source::Cache(cached) => cached.read_async(offset..offset + length as u64).await?,
            Source::Map(_) | Source::File => None,
        };
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        if length < BUF_ALIGNMENT {
            return Ok(OwnedBytes::new(self.file.read_exact_at(vec![0; length], offset).await?));
        }
        Ok(OwnedBytes::new(Kept(self.file.read_range(offset, length).await?)))
    }
}

impl Cached {
    /// Returns the bytes of a range; `None` if it must be read from the file.
    fn read(&self, range: Range<u64>) -> io::Result<Option<OwnedBytes>> {
        match self.reserve() {
            Some(reserved) => kept(self.file.get(range).wait(), Some(reserved)),
            None => kept(self.file.gather(slice::from_ref(&range)).wait().map(only), None),
        }
    }

    async fn read_async(&self, range: Range<u64>) -> io::Result<Option<OwnedBytes>> {
        match self.reserve() {
            Some(reserved) => kept(self.file.get(range).await, Some(reserved)),
            None => kept(self.file.gather(slice::from_ref(&range)).await.map(only), None),
        }
    }

    /// Reserves a lease. Returns `None` if the directory already holds as many leases as a quarter of
    /// the cache's pages: tantivy keeps them for as long as a searcher exists, and other reads need
    /// frames.
    fn reserve(&self) -> Option<Reserved> {
        let leases_max = self.cache.capacity_bytes() / self.cache.page_bytes() as u64 / 4;
        let before = self.leases.fetch_add(1, Ordering::Relaxed);
        let reserved = Reserved(self.leases.clone());
        ((before as u64) < leases_max).then_some(reserved)
    }
}

/// Returns the bytes of a lease; `None` if the range must be read from the file.
fn kept(read: nowait::Result<Lease>, reserved: Option<Reserved>) -> io::Result<Option<OwnedBytes>> {
    match (read, reserved) {
        (Ok(lease), Some(reserved)) if !lease.is_copy() => {
            Ok(Some(OwnedBytes::new(Kept(Pinned { lease, _reserved: reserved }))))
        }
        // A copy pins nothing.
        (Ok(lease), _) => Ok(Some(OwnedBytes::new(lease))),
        // All pages are pinned, or this is a forked child.
        (Err(error), _) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unsupported) => Ok(None),
        (Err(error), _) => Err(error.into()),
    }
}

/// The lease of a gather of one range.
fn only(mut leases: Vec<Lease>) -> Lease {
    leases.remove(0)
}

/// Reservation of one lease; dropping it decrements the count.
struct Reserved(Arc<AtomicUsize>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A lease and its reservation.
struct Pinned {
    lease: Lease,
    _reserved: Reserved,
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.lease
    }
}

/// A buffer, a map or a lease whose slices tantivy may keep.
struct Kept<T>(T);

impl<T: Deref<Target = [u8]>> Deref for Kept<T> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: a `Buf` owns its memory, which stays in place when the `Buf` moves, and `Kept` only reads
// it.
unsafe impl StableDeref for Kept<Buf> {}
// SAFETY: as for `Buf`.
unsafe impl StableDeref for Kept<Map> {}
// SAFETY: its bytes are those of the lease, which the bound checks.
unsafe impl StableDeref for Kept<Pinned> where Lease: StableDeref {}
