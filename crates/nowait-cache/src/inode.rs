//! A file as the cache knows it: one for each inode, however often it is opened.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::counters::Counters;
use crate::fill::Fill;
use crate::pages::Pages;
use crate::sync::lock;

/// Values by which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) modified: (i64, u64),
    pub(crate) changed: (i64, u64),
    /// True if the times were more than two seconds old. Younger times may stay equal across a
    /// change: the kernel sets them once per call, before it copies the bytes, from a clock with
    /// ticks of a few milliseconds.
    pub(crate) is_settled: bool,
}

impl Stamp {
    /// True if size and times are equal.
    pub(crate) fn is_same(&self, other: &Stamp) -> bool {
        Stamp { is_settled: other.is_settled, ..*self } == *other
    }
}

/// What is known of a file since the last comparison.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) stamp: Option<Stamp>,
    /// Shared by the handles that may write. While one exists, the file is not compared.
    pub(crate) writer: Weak<()>,
}

pub(crate) struct Inode {
    /// Unique in the process: the file system may reuse device and inode number for another file.
    pub(crate) number: u64,
    pub(crate) pages: Pages,
    pub(crate) size: AtomicU64,
    /// Locked while the file is compared, so that a thread that finds it unchanged finds no older page.
    pub(crate) known: Mutex<Known>,
    /// Reads in flight. While they are locked, no page of the file enters the directory. Pages may
    /// still leave it (eviction, smaller capacity).
    pub(crate) fills: Mutex<Fills>,
    /// Writes in flight. A lock of its own: no other lock is taken under it.
    pub(crate) writes: Mutex<Vec<Arc<Span>>>,
    pub(crate) counters: Counters,
}

/// Reads in flight whose pages will enter the directory, by their first page. They do not overlap.
#[derive(Default)]
pub(crate) struct Fills(BTreeMap<u64, Arc<Fill>>);

impl Fills {
    /// Returns the read of a page.
    pub(crate) fn of(&self, page: u64) -> Option<&Arc<Fill>> {
        self.0.range(..=page).next_back().map(|(_, fill)| fill).filter(|fill| page < fill.pages().end)
    }

    /// Returns the first page of the next read beyond a page.
    pub(crate) fn next(&self, page: u64) -> Option<u64> {
        self.0.range(page + 1..).next().map(|(first, _)| *first)
    }

    /// Adds a read of pages that no read has.
    pub(crate) fn insert(&mut self, fill: &Arc<Fill>) {
        self.0.insert(fill.pages().start, fill.clone());
    }

    /// Removes a read; `None` if its pages were invalidated.
    pub(crate) fn remove(&mut self, fill: &Fill) -> Option<Arc<Fill>> {
        let is_listed = self.0.get(&fill.pages().start).is_some_and(|other| std::ptr::eq(&**other, fill));
        if is_listed { self.0.remove(&fill.pages().start) } else { None }
    }

    /// Removes the reads that overlap a range: their pages are stale.
    pub(crate) fn take(&mut self, first: u64, end: u64) -> Vec<Arc<Fill>> {
        let mut taken = Vec::new();
        while let Some((start, fill)) = self.0.range(..end).next_back() {
            if fill.pages().end <= first {
                break;
            }
            let start = *start;
            taken.extend(self.0.remove(&start));
        }
        taken
    }
}

/// Range of a write in flight.
pub(crate) struct Span {
    pub(crate) bytes: Range<u64>,
    /// Another write in flight changes, or changed, one of its pages.
    pub(crate) is_overlapped: AtomicBool,
}

impl Inode {
    /// Records a write that is about to begin, and marks those that change a page together.
    pub(crate) fn begin_write(&self, span: &Arc<Span>, page_shift: u32) {
        let pages = |span: &Span| span.bytes.start >> page_shift..=span.bytes.end.saturating_sub(1) >> page_shift;
        let mut writes = lock(&self.writes);
        for other in writes.iter() {
            if pages(other).start() <= pages(span).end() && pages(span).start() <= pages(other).end() {
                other.is_overlapped.store(true, Ordering::Relaxed);
                span.is_overlapped.store(true, Ordering::Relaxed);
            }
        }
        writes.push(span.clone());
    }

    pub(crate) fn end_write(&self, span: &Arc<Span>) {
        lock(&self.writes).retain(|other| !Arc::ptr_eq(other, span));
    }
}
