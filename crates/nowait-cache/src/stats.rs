//! Counters of a cache and of a file.

use std::sync::atomic::Ordering;

use crate::counters::Counters;
use crate::inode::Inode;
use crate::shared::Shared;
use crate::sync::lock;
use crate::word::Word;

/// Counters since the cache was made. Each counts pages unless its description says otherwise.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that were found in the cache.
    pub hits: u64,
    /// Pages whose read was in flight already.
    pub joins: u64,
    /// Pages for which a read was begun.
    pub misses: u64,
    /// Pages of ranges that bypassed the cache: longer than half of the capacity, or beyond 2^36 pages.
    pub uncached: u64,
    /// Pages read ahead.
    pub read_ahead: u64,
    /// Pages read ahead that were evicted before a read used them.
    pub read_ahead_unused: u64,
    /// Reads that were begun, each of one or more adjacent pages.
    pub reads: u64,
    /// Bytes that reads returned.
    pub read_bytes: u64,
    /// Writes through the cache that succeeded.
    pub writes: u64,
    /// Bytes written by them.
    pub written_bytes: u64,
    /// Reads that failed, or whose page the check refused.
    pub failures: u64,
    /// Pages evicted, for other pages or by a smaller capacity. Zero in the counters of a file.
    pub evictions: u64,
    /// Pages in the cache.
    pub cached: u64,
    /// Pages that are leased, or in a read that its thread or a waiting task has not let go yet.
    /// The counters of a file count only its pages, and so show whose leases pin the cache.
    pub pinned: u64,
}

impl Stats {
    pub(crate) fn of(shared: &Shared) -> Stats {
        if shared.is_forked() {
            // A thread that does not exist here may hold the locks.
            return Stats::default();
        }
        let guard = lock(&shared.inodes);
        let mut stats = guard.left;
        guard.known.values().for_each(|inode| stats.add(&inode.counters));
        drop(guard);
        let words = || (0..shared.frames.len()).map(|frame| shared.frames.word(frame));
        stats.hits += words().map(Word::hits).sum::<u64>();
        let policy = lock(&shared.policy);
        (stats.evictions, stats.cached) = (policy.evictions, u64::from(policy.cached()));
        drop(policy);
        stats.pinned = words().filter(|word| word.is_pinned()).count() as u64;
        stats
    }

    pub(crate) fn of_file(shared: &Shared, inode: &Inode) -> Stats {
        let mut stats = Stats::default();
        stats.add(&inode.counters);
        for record in shared.frames.records().iter().filter(|record| record.is_of(inode.number)) {
            stats.hits += record.word.hits();
            stats.cached += u64::from(record.word.is_cached());
            stats.pinned += u64::from(record.word.is_pinned());
        }
        stats
    }

    pub(crate) fn add(&mut self, counters: &Counters) {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        self.hits += load(&counters.hits);
        self.joins += load(&counters.joins);
        self.misses += load(&counters.misses);
        self.uncached += load(&counters.uncached);
        self.read_ahead += load(&counters.read_ahead);
        self.read_ahead_unused += load(&counters.read_ahead_unused);
        self.reads += load(&counters.fills);
        self.read_bytes += load(&counters.filled_bytes);
        self.writes += load(&counters.writes);
        self.written_bytes += load(&counters.written_bytes);
        self.failures += load(&counters.failures);
    }
}
