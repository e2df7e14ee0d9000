//! Writes in flight of a file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Range of a write in flight.
pub(crate) struct Span {
    pub(crate) bytes: Range<u64>,
    pages: Range<u64>,
    /// Set if another write or an invalidation touches a page of this write: at its completion, the
    /// write drops its pages.
    must_drop_pages: AtomicBool,
    /// Set by a comparison: the end of the write may not be the end of the file.
    must_stat_size: AtomicBool,
}

impl Span {
    /// True if the pages of the write are to be dropped at its end.
    pub(crate) fn must_drop_pages(&self) -> bool {
        self.must_drop_pages.load(Ordering::Relaxed)
    }

    /// True if the size must be read with `fstat(2)` when the write completes.
    pub(crate) fn must_stat_size(&self) -> bool {
        self.must_stat_size.load(Ordering::Relaxed)
    }
}

/// Entry of a write in [`Spans`].
pub(crate) struct Listed {
    key: (u64, u64),
    pub(crate) span: Arc<Span>,
}

/// Writes in flight, keyed by first page and a sequence number.
///
/// A thread that drops pages sets the marks, then locks the inode's fills. A write reads its marks
/// under that lock: it sees them, or it has updated the page before the pages are dropped.
#[derive(Default)]
pub(crate) struct Spans {
    spans: BTreeMap<(u64, u64), Arc<Span>>,
    next: u64,
    /// Upper bound of the length of a listed write, in pages.
    pages_max: u64,
}

impl Spans {
    /// Adds a write that is about to begin, and marks those that change a page together.
    pub(crate) fn begin(&mut self, bytes: Range<u64>, page_shift: u32) -> Listed {
        let pages = bytes.start >> page_shift..bytes.end.div_ceil(1 << page_shift);
        let must_drop_pages = AtomicBool::new(self.mark(pages.clone()) > 0);
        let span = Arc::new(Span { bytes, pages, must_drop_pages, must_stat_size: AtomicBool::new(false) });
        if self.spans.is_empty() {
            self.pages_max = 0;
        }
        self.pages_max = self.pages_max.max(span.pages.end - span.pages.start);
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
        let overlapping = self.overlapping(&pages);
        overlapping.inspect(|span| span.must_drop_pages.store(true, Ordering::Relaxed)).count()
    }

    /// True if a write in flight touches one of these pages.
    pub(crate) fn touches(&self, pages: &Range<u64>) -> bool {
        self.overlapping(pages).next().is_some()
    }

    fn overlapping(&self, pages: &Range<u64>) -> impl Iterator<Item = &Arc<Span>> {
        let (start, end) = (pages.start, pages.end);
        let from = start.saturating_sub(self.pages_max);
        self.spans.range((from, 0)..(end.max(from), 0)).map(|(_, span)| span).filter(move |span| span.pages.end > start)
    }

    /// Marks all writes: pages and size may have changed.
    pub(crate) fn mark_resized(&mut self) {
        for span in self.spans.values() {
            span.must_drop_pages.store(true, Ordering::Relaxed);
            span.must_stat_size.store(true, Ordering::Relaxed);
        }
    }
}
