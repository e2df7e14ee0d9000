//! Counters of a file. Hits are counted in the state words of its frames, and added here when a page
//! leaves its frame.

use std::sync::atomic::AtomicU64;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) joins: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) uncached: AtomicU64,
    pub(crate) fills: AtomicU64,
    pub(crate) filled_bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
    pub(crate) read_ahead_unused: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}
