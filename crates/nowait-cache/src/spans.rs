//! Listed in flight of a file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Range of a write in flight.
pub(crate) struct Span {
    pub(crate) bytes: Range<u64>,
    pages: Range<u64>,
    /// Its pages may have changed in another way: by another write, before an invalidation.
    is_overlapped: AtomicBool,
    /// The size may have changed in another way, before a comparison.
    is_resized: AtomicBool,
}

impl Span {
    /// True if the pages of the write are to be dropped at its end.
    pub(crate) fn is_overlapped(&self) -> bool {
        self.is_overlapped.load(Ordering::Relaxed)
    }

    /// True if the end of the write does not tell the size.
    pub(crate) fn is_resized(&self) -> bool {
        self.is_resized.load(Ordering::Relaxed)
    }
}

/// A write in flight, and its place among them.
pub(crate) struct Listed {
    key: (u64, u64),
    pub(crate) span: Arc<Span>,
}

/// By first page and a number. The marks are set before the inode's fills are locked for the change
/// that they are about, and read under that lock: so a write sees them, or ends before the change.
#[derive(Default)]
pub(crate) struct Spans {
    spans: BTreeMap<(u64, u64), Arc<Span>>,
    next: u64,
    /// At least the pages of the longest one.
    longest: u64,
}

impl Spans {
    /// Adds a write that is about to begin, and marks those that change a page together.
    pub(crate) fn begin(&mut self, bytes: Range<u64>, page_shift: u32) -> Listed {
        let pages = bytes.start >> page_shift..bytes.end.div_ceil(1 << page_shift);
        let is_overlapped = AtomicBool::new(self.mark(pages.clone()) > 0);
        let span = Arc::new(Span { bytes, pages, is_overlapped, is_resized: AtomicBool::new(false) });
        if self.spans.is_empty() {
            self.longest = 0;
        }
        self.longest = self.longest.max(span.pages.end - span.pages.start);
        self.next += 1;
        let key = (span.pages.start, self.next);
        self.spans.insert(key, span.clone());
        Listed { key, span }
    }

    pub(crate) fn end(&mut self, listed: &Listed) {
        self.spans.remove(&listed.key);
    }

    /// Marks the writes of these pages as overlapped; returns their number.
    pub(crate) fn mark(&mut self, pages: Range<u64>) -> usize {
        let from = pages.start.saturating_sub(self.longest);
        let spans = self.spans.range((from, 0)..(pages.end, 0)).map(|(_, span)| span);
        let overlapped = spans.filter(|span| span.pages.end > pages.start);
        overlapped.inspect(|span| span.is_overlapped.store(true, Ordering::Relaxed)).count()
    }

    /// Marks all writes: pages and size may have changed.
    pub(crate) fn mark_resized(&mut self) {
        for span in self.spans.values() {
            span.is_overlapped.store(true, Ordering::Relaxed);
            span.is_resized.store(true, Ordering::Relaxed);
        }
    }
}
