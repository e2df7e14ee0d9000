//! A file as the cache knows it: one for each inode, however often it is opened.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::counters::Counters;
use crate::fill::Fill;
use crate::pages::Pages;
use crate::spans::Spans;

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

/// State of a file at its last comparison, and its exclusive handles.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) stamp: Option<Stamp>,
    /// Shared by the exclusive handles. While one exists, an opening does not compare the file.
    pub(crate) writer: Weak<()>,
}

pub(crate) struct Inode {
    /// Unique in the process: the file system may reuse device and inode number for another file.
    pub(crate) number: u64,
    pub(crate) pages: Pages,
    /// Changed with the fills locked.
    pub(crate) size: AtomicU64,
    /// Locked while the file is compared, so that a thread that finds it unchanged finds no older page.
    pub(crate) known: Mutex<Known>,
    /// Reads in flight. While they are locked, no page of the file enters the directory. Pages may
    /// still leave it (eviction, smaller capacity).
    pub(crate) fills: Mutex<Fills>,
    /// Writes in flight. No other lock is taken under this one.
    pub(crate) writes: Mutex<Spans>,
    pub(crate) counters: Counters,
}

impl Inode {
    /// Sets the size. The fills are those of this inode.
    pub(crate) fn set_size(&self, fills: &mut Fills, size: u64) {
        self.size.store(size, Ordering::Relaxed);
        fills.resizes += 1;
    }
}

/// Reads in flight whose pages will enter the directory, by their first page. They do not overlap.
#[derive(Default)]
pub(crate) struct Fills {
    fills: BTreeMap<u64, Arc<Fill>>,
    /// Number of calls of `set_size`, also with an equal size.
    pub(crate) resizes: u64,
}

impl Fills {
    /// Returns the read of a page.
    pub(crate) fn of(&self, page: u64) -> Option<&Arc<Fill>> {
        self.fills.range(..=page).next_back().map(|(_, fill)| fill).filter(|fill| page < fill.pages().end)
    }

    /// Returns the first page of the next read beyond a page.
    pub(crate) fn next(&self, page: u64) -> Option<u64> {
        self.fills.range(page + 1..).next().map(|(first, _)| *first)
    }

    /// Adds a read; it overlaps no other read in the list.
    pub(crate) fn insert(&mut self, fill: &Arc<Fill>) {
        self.fills.insert(fill.pages().start, fill.clone());
    }

    /// Removes a read; `None` if its pages were invalidated.
    pub(crate) fn remove(&mut self, fill: &Fill) -> Option<Arc<Fill>> {
        let is_listed = self.fills.get(&fill.pages().start).is_some_and(|other| std::ptr::eq(&**other, fill));
        if is_listed { self.fills.remove(&fill.pages().start) } else { None }
    }

    /// Removes the reads that overlap a range: their pages are stale.
    pub(crate) fn take(&mut self, first: u64, end: u64) -> Vec<Arc<Fill>> {
        let mut taken = Vec::new();
        while let Some((start, fill)) = self.fills.range(..end).next_back() {
            if fill.pages().end <= first {
                break;
            }
            let start = *start;
            taken.extend(self.fills.remove(&start));
        }
        taken
    }
}
