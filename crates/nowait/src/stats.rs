//! Counters: where every operation went.
//!
//! An operation that begins and ends in one call is counted once, by the way that served it. One
//! that is handed to an engine is counted when it is submitted and again when it ends. The law that
//! a test holds: `started = inline + blocking + ring + aio + pool + cancelled + failed`, once
//! nothing is in flight.
//!
//! Counters are kept per group of threads and summed when read, so that threads reading cached data
//! do not share a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Snapshot of an instance's counters. A counter counts operations unless its name contains another
/// unit.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations that were started. A gather counts each request it makes, not each range.
    pub started: u64,
    /// Operations served on the caller's thread without waiting: a cached read, or a plain call
    /// within the stall budget.
    pub inline: u64,
    /// Operations served by a plain system call of a blocking caller (`.wait()`, `read_into`).
    pub blocking: u64,
    /// Operations completed by io_uring.
    pub ring: u64,
    /// Reads that were announced by `POSIX_FADV_WILLNEED` while a ring served another read of the
    /// file. They also count in `ring`.
    pub announced: u64,
    /// Operations completed by libaio.
    pub aio: u64,
    /// Operations completed by a pool thread.
    pub pool: u64,
    /// Operations abandoned by the caller before they completed.
    pub cancelled: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Non-blocking attempts (`RWF_NOWAIT`).
    pub attempts: u64,
    /// Attempts that found nothing cached.
    pub misses: u64,
    /// Attempts that transferred only a part; the rest took a slower route.
    pub short_attempts: u64,
    /// Plain inline calls that took longer than the stall budget.
    pub stalls: u64,
    /// Operations that had to wait for a place in a full queue.
    pub queued: u64,
    /// Writes and syncs that shared a system call with others.
    pub joined: u64,
    /// Writes that had to wait because too many bytes were in flight.
    pub throttled: u64,
    /// Bytes that direct reads transferred beyond the requested range, to read whole blocks.
    pub widened_bytes: u64,
    /// Requests that a ring or libaio handed to the pool. The kernel did not support such a
    /// request, would have blocked, or cancelled it when the submitting thread ended.
    pub handed_on: u64,
}

impl Stats {
    /// Returns the operations that have ended, by any route. Equals `started` when nothing is in
    /// flight.
    pub fn ended(&self) -> u64 {
        self.inline + self.blocking + self.ring + self.aio + self.pool + self.cancelled + self.failed
    }
}

/// Names of the counters, in the order of their cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Handed to an engine.
    Submitted,
    /// Served inline by an attempt, which counts as one.
    InlineAttempt,
    /// Served inline by a plain call.
    InlineCall,
    /// Served inline after it was submitted: with others, or alone where others were expected.
    InlineTogether,
    /// An attempt that served all of these.
    AttemptTogether,
    Blocking,
    Ring,
    Announced,
    Aio,
    Pool,
    Cancelled,
    /// Ended in an error after it was submitted.
    Failed,
    /// Ended in an error without having been submitted.
    FailedAtOnce,
    Misses,
    ShortAttempts,
    Stalls,
    Queued,
    HandedOn,
    Joined,
    Throttled,
    WidenedBytes,
}

const CELLS: usize = Count::WidenedBytes as usize + 1;
/// As many as threads write at once on a large machine: 16 KiB an instance. On two processors, 1, 2
/// and 64 groups serve cached reads equally fast (docs/measurements/2026-11-27-road). Fewer under
/// loom, whose threads have small stacks.
const GROUPS: usize = if cfg!(nowait_loom) { 16 } else { 64 };

/// Two lines of 64 bytes: neighbouring lines are fetched in pairs on x86-64.
#[repr(align(128))]
struct Group([AtomicU64; CELLS]);

pub(crate) struct Counters([Group; GROUPS]);

impl Default for Counters {
    fn default() -> Counters {
        Counters([const { Group([const { AtomicU64::new(0) }; CELLS]) }; GROUPS])
    }
}

impl Counters {
    #[inline]
    pub(crate) fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    #[inline]
    pub(crate) fn add_many(&self, count: Count, n: u64) {
        self.0[thread_number() % GROUPS].0[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let sum =
            |count: Count| -> u64 { self.0.iter().map(|group| group.0[count as usize].load(Ordering::Relaxed)).sum() };
        let at_once = sum(Count::InlineAttempt) + sum(Count::InlineCall);
        let (blocking, failed_at_once) = (sum(Count::Blocking), sum(Count::FailedAtOnce));
        Stats {
            started: sum(Count::Submitted) + at_once + blocking + failed_at_once,
            inline: at_once + sum(Count::InlineTogether),
            blocking,
            ring: sum(Count::Ring),
            announced: sum(Count::Announced),
            aio: sum(Count::Aio),
            pool: sum(Count::Pool),
            cancelled: sum(Count::Cancelled),
            failed: sum(Count::Failed) + failed_at_once,
            attempts: [Count::InlineAttempt, Count::AttemptTogether, Count::Misses, Count::ShortAttempts]
                .map(sum)
                .iter()
                .sum(),
            misses: sum(Count::Misses),
            short_attempts: sum(Count::ShortAttempts),
            stalls: sum(Count::Stalls),
            queued: sum(Count::Queued),
            handed_on: sum(Count::HandedOn),
            joined: sum(Count::Joined),
            throttled: sum(Count::Throttled),
            widened_bytes: sum(Count::WidenedBytes),
        }
    }
}

/// A small number for this thread, given out in order of first use.
#[inline]
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    // A thread that is being torn down has no number left; any will do.
    NUMBER
        .try_with(|number| {
            if number.get() == usize::MAX {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_many_threads_are_summed() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..100).for_each(|_| counters.add(Count::InlineAttempt)));
            }
        });
        counters.add(Count::Failed);
        let stats = counters.snapshot();
        assert_eq!((stats.inline, stats.failed, stats.ended()), (2000, 1, 2001));
    }
}
