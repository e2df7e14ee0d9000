//! Readers of an index's files.
//!
//! `unsafe` here: maps of files that do not change, and `StableDeref` for buffers and maps.

use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use async_trait::async_trait;
use nowait::map::Map;
use nowait::{BUF_ALIGNMENT, Buf, File, Nowait, OpenOptions};
use stable_deref_trait::StableDeref;
use tantivy::HasLen;
use tantivy::directory::{FileHandle, OwnedBytes};

/// A complete, immutable file.
#[derive(Debug)]
pub(super) struct IndexFile {
    file: File,
    length: usize,
    /// Map of the file. `None` if reads copy, or if the file cannot be mapped.
    mapped: Option<OwnedBytes>,
}

impl IndexFile {
    pub(super) fn open(nowait: &Nowait, path: &Path, maps: bool) -> io::Result<IndexFile> {
        let file = OpenOptions::new().read(true).open_in(nowait, path).wait()?;
        let length = usize::try_from(file.size().wait()?).map_err(io::Error::other)?;
        // SAFETY: tantivy writes a file once, and opens it for reading only when it is complete.
        // All processes use the index through tantivy.
        let map = maps.then(|| unsafe { Map::new(&file, ..length as u64) });
        let mapped = map.and_then(Result::ok).map(|map| OwnedBytes::new(Kept(map)));
        Ok(IndexFile { file, length, mapped })
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
        let offset = range.start as u64;
        match (self.length_of(&range)?, &self.mapped) {
            (0, _) => Ok(OwnedBytes::empty()),
            (_, Some(mapped)) => Ok(mapped.slice(range)),
            (length, None) if length < BUF_ALIGNMENT => {
                let mut bytes = vec![0; length];
                self.file.read_exact_into(&mut bytes, offset)?;
                Ok(OwnedBytes::new(bytes))
            }
            (length, None) => Ok(OwnedBytes::new(Kept(self.file.read_range(offset, length).wait()?))),
        }
    }

    /// Always copies: an uncached page of a map would block the thread that touches it.
    async fn read_bytes_async(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let offset = range.start as u64;
        match self.length_of(&range)? {
            0 => Ok(OwnedBytes::empty()),
            length if length < BUF_ALIGNMENT => {
                Ok(OwnedBytes::new(self.file.read_exact_at(vec![0; length], offset).await?))
            }
            length => Ok(OwnedBytes::new(Kept(self.file.read_range(offset, length).await?))),
        }
    }
}

/// A buffer or a map whose slices tantivy may keep.
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
