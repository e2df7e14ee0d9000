//! Marks: places of blocks within segments, from which readers begin.
//!
//! Commits and readers leave marks. A mark is a hint: a reader verifies the block there as any
//! other, and begins at the segment's start if it is not the expected one. So marks need no care
//! when either end of the log is cut: no later segment of an open log gets the same number.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::os::lock;

/// Bytes of a segment between two marks, as long as there are less than [`MARKS_MAX`].
pub(crate) const MARK_SPACING: u64 = 32 << 10;
/// Maximum number of marks, of 24 bytes each. If there are more, every second one is removed, and
/// the spacing doubles.
const MARKS_MAX: usize = 32 << 10;

/// Place of a block in its segment, and its first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockPlace {
    pub(crate) segment: u64,
    pub(crate) lsn: u64,
    pub(crate) offset: u64,
}

pub(crate) struct Marks {
    spacing: AtomicU64,
    /// In order.
    marks: Mutex<Vec<BlockPlace>>,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { spacing: AtomicU64::new(MARK_SPACING), marks: Mutex::default() }
    }
}

impl Marks {
    /// Marks a block that ends at `end`, if it contains a multiple of the spacing. `first_lsn` is
    /// the first record of the log. Does not wait for another thread.
    pub(crate) fn add(&self, block: BlockPlace, end: u64, first_lsn: u64) {
        if block.offset.next_multiple_of(self.spacing.load(Ordering::Relaxed)) >= end {
            return;
        }
        let Ok(mut marks) = self.marks.try_lock() else { return };
        let Err(at) = marks.binary_search(&block) else { return };
        marks.insert(at, block);
        if marks.len() > MARKS_MAX {
            marks.retain(|mark| mark.lsn >= first_lsn);
        }
        if marks.len() > MARKS_MAX {
            let mut is_kept = false;
            marks.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.spacing.fetch_add(self.spacing.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the last mark of the segment at or before record `lsn`, and the number of bytes to the
    /// next mark, 0 if there is none.
    pub(crate) fn find(&self, segment: u64, lsn: u64) -> Option<(BlockPlace, u64)> {
        let marks = lock(&self.marks);
        let next = marks.partition_point(|mark| (mark.segment, mark.lsn) <= (segment, lsn));
        let is_here = |mark: &&BlockPlace| mark.segment == segment;
        let mark = marks[..next].last().filter(is_here)?;
        let next = marks.get(next).filter(is_here);
        Some((*mark, next.map_or(0, |next| next.offset.saturating_sub(mark.offset))))
    }
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use super::*;

    fn at(segment: u64, lsn: u64, offset: u64) -> BlockPlace {
        BlockPlace { segment, lsn, offset }
    }

    #[test]
    fn the_last_mark_before_a_record_is_found() {
        let marks = Marks::default();
        for (segment, lsn) in [(4, 60), (2, 10), (2, 40), (2, 20), (2, 20)] {
            let offset = lsn * MARK_SPACING - 4096;
            marks.add(at(segment, lsn, offset), offset + 8192, 1);
        }
        // Contains no multiple of the spacing.
        marks.add(at(2, 30, 4096), 8192, 1);
        let found = |segment, lsn| marks.find(segment, lsn).map(|(mark, _)| mark.lsn);
        assert_eq!(
            [9, 10, 19, 20, 39, 41].map(|lsn| found(2, lsn)),
            [None, Some(10), Some(10), Some(20), Some(20), Some(40)]
        );
        assert_eq!(
            [(3, 50), (4, 50), (4, 60), (1, 60)].map(|(segment, lsn)| found(segment, lsn)),
            [None, None, Some(60), None]
        );
        assert_eq!(marks.find(2, 25).unwrap().1, 20 * MARK_SPACING);
        assert_eq!(marks.find(2, 45).unwrap().1, 0);
    }

    #[test]
    fn marks_are_bounded() {
        let marks = Marks::default();
        let (count, removed) = (5 * MARKS_MAX as u64, 1000);
        for lsn in 1..=count {
            let first = if lsn < 2 * removed { 1 } else { removed };
            marks.add(at(1, lsn, lsn * MARK_SPACING), lsn * MARK_SPACING + 4096, first);
        }
        let (kept, spacing) = (lock(&marks.marks), marks.spacing.load(Ordering::Relaxed));
        assert!(kept.len() <= MARKS_MAX && kept.len() > MARKS_MAX / 4, "{}", kept.len());
        assert!(kept.is_sorted() && kept[0].lsn >= removed);
        assert!(kept.windows(2).all(|pair| pair[1].offset - pair[0].offset <= spacing), "{spacing}");
    }
}
