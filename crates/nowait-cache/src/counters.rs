//! Counters of hits, per thread, so that the first seven threads share no cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads with a cell of their own; further threads share the last cell.
const OWN: usize = 7;

#[derive(Default)]
#[repr(align(64))]
struct Hits(AtomicU64);

#[derive(Default)]
pub(crate) struct Counters {
    hits: [Hits; OWN + 1],
    pub(crate) joins: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) uncached: AtomicU64,
    pub(crate) fills: AtomicU64,
    pub(crate) filled_bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Number of this thread among those that have read a cache.
#[inline]
fn thread_number() -> usize {
    match NUMBER.get() {
        usize::MAX => first_number(),
        number => number,
    }
}

#[cold]
fn first_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed).min(OWN);
    NUMBER.set(number);
    number
}

impl Counters {
    /// Counts pages that were found.
    #[inline]
    pub(crate) fn hit(&self, pages: u64) {
        let number = thread_number();
        let Hits(cell) = &self.hits[number];
        if number < OWN {
            // Only this thread writes the cell.
            cell.store(cell.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
        } else {
            cell.fetch_add(pages, Ordering::Relaxed);
        }
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.iter().map(|hits| hits.0.load(Ordering::Relaxed)).sum()
    }
}
