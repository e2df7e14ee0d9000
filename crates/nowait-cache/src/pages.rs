//! Directory of a file: the frame of each of its cached pages.
//!
//! Leaves of 256 frame numbers, allocated when a page is first cached (1 KiB). The leaves of the size
//! that a file had when it was opened first are in one table: a lookup is two loads, without a hash or
//! a lock. Pages beyond, of a file that grew or is large, are found through buckets of chunks of 64
//! leaves; each bucket is twice as large as the one before. Leaves are freed with the directory, so
//! readers need no epochs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const LEAF: u64 = 256;
const LEAVES: u64 = 64;
/// Pages of a chunk.
const CHUNK: u64 = LEAVES * LEAF;
const BUCKETS: usize = 22;
/// Leaves of the table, at most: 16 GiB with pages of 4 KiB.
const TABLE_MAX: u64 = 1 << 14;
/// Pages from this one on are not cached: a bucket for them would be large. With pages of 4 KiB,
/// 256 TiB.
pub(crate) const PAGES_MAX: u64 = ((1 << BUCKETS) - 1) * CHUNK;

type Leaf = Box<[AtomicU32]>;
type Chunk = Box<[OnceLock<Leaf>]>;

pub(crate) struct Pages {
    table: Box<[OnceLock<Leaf>]>,
    /// Bucket `n` contains the chunks `2^n - 1` to `2^(n+1) - 2`.
    buckets: [OnceLock<Box<[OnceLock<Chunk>]>>; BUCKETS],
}

/// Bucket of a chunk, and its place there.
#[inline]
fn place(chunk: u64) -> (usize, usize) {
    let bucket = (chunk + 1).ilog2();
    (bucket as usize, (chunk + 1 - (1 << bucket)) as usize)
}

fn empty<T>(length: u64) -> Box<[OnceLock<T>]> {
    (0..length).map(|_| OnceLock::new()).collect()
}

impl Pages {
    /// For a file of this number of pages, which may grow.
    pub(crate) fn new(pages: u64) -> Pages {
        let buckets = [const { OnceLock::new() }; BUCKETS];
        Pages { table: empty(pages.div_ceil(LEAF).min(TABLE_MAX)), buckets }
    }

    #[inline(always)]
    fn leaf(&self, page: u64) -> Option<&Leaf> {
        match self.table.get((page / LEAF) as usize) {
            Some(leaf) => leaf.get(),
            None => self.far_leaf(page),
        }
    }

    #[cold]
    fn far_leaf(&self, page: u64) -> Option<&Leaf> {
        let (bucket, place) = place(page / CHUNK);
        let chunk = self.buckets.get(bucket)?.get()?.get(place)?.get()?;
        chunk.get((page / LEAF % LEAVES) as usize)?.get()
    }

    #[inline]
    fn entry(&self, page: u64) -> Option<&AtomicU32> {
        self.leaf(page)?.get((page % LEAF) as usize)
    }

    /// Returns the frame of a page. The frame may contain another page by now: see `Record::contains`.
    #[inline]
    pub(crate) fn get(&self, page: u64) -> Option<u32> {
        // Relaxed: the frame's state word orders its contents.
        self.entry(page)?.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sets the frame of a page below [`PAGES_MAX`].
    pub(crate) fn set(&self, page: u64, frame: u32) {
        let leaf = self.table.get((page / LEAF) as usize).unwrap_or_else(|| {
            let (bucket, place) = place(page / CHUNK);
            let chunks = self.buckets[bucket].get_or_init(|| empty(1 << bucket));
            let leaves = chunks[place].get_or_init(|| empty(LEAVES));
            &leaves[(page / LEAF % LEAVES) as usize]
        });
        let leaf = leaf.get_or_init(|| (0..LEAF).map(|_| AtomicU32::new(0)).collect());
        leaf[(page % LEAF) as usize].store(frame + 1, Ordering::Relaxed);
    }

    /// Removes a page if it is in this frame.
    pub(crate) fn clear(&self, page: u64, frame: u32) {
        if let Some(entry) = self.entry(page) {
            let _ = entry.compare_exchange(frame + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the first page in the range that has a frame, with the frame.
    pub(crate) fn next(&self, mut from: u64, end: u64) -> Option<(u64, u32)> {
        let end = end.min(PAGES_MAX);
        while from < end {
            let (bucket, place) = place(from / CHUNK);
            if from / LEAF >= self.table.len() as u64 {
                let Some(chunks) = self.buckets[bucket].get() else {
                    // The first chunk of the next bucket.
                    from = ((1 << (bucket + 1)) - 1) * CHUNK;
                    continue;
                };
                if chunks[place].get().is_none() {
                    from = (from / CHUNK + 1) * CHUNK;
                    continue;
                }
            }
            let leaf_end = (from / LEAF + 1) * LEAF;
            if let Some(leaf) = self.leaf(from) {
                for page in from..leaf_end.min(end) {
                    if let Some(frame) = leaf[(page % LEAF) as usize].load(Ordering::Relaxed).checked_sub(1) {
                        return Some((page, frame));
                    }
                }
            }
            from = leaf_end;
        }
        None
    }
}

#[cfg(all(test, not(nowait_cache_loom)))]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_where_they_were_set() {
        [0, 1, 1025, 1 << 20, u64::MAX / 4096].into_iter().for_each(found_where_set);
    }

    fn found_where_set(pages: u64) {
        let pages = Pages::new(pages);
        let numbers = [0, 1, 1023, 1024, 3071, 3072, 1 << 20, (1 << 28) + 7, PAGES_MAX - 1];
        assert!(numbers.iter().all(|page| pages.get(*page).is_none()));
        assert_eq!(pages.get(u64::MAX), None);
        for (frame, page) in numbers.iter().enumerate() {
            pages.set(*page, frame as u32);
        }
        for (frame, page) in numbers.iter().enumerate() {
            assert_eq!(pages.get(*page), Some(frame as u32));
        }
        assert_eq!(pages.next(2, u64::MAX), Some((1023, 2)));
        assert_eq!(pages.next(3073, u64::MAX), Some((1 << 20, 6)));
        assert_eq!(pages.next(3073, 1 << 20), None);
        assert_eq!(pages.next((1 << 28) + 8, u64::MAX), Some((PAGES_MAX - 1, 8)));
        pages.clear(1023, 9);
        assert_eq!(pages.get(1023), Some(2), "another frame's");
        pages.clear(1023, 2);
        assert_eq!(pages.next(2, 1025), Some((1024, 3)));
    }
}
