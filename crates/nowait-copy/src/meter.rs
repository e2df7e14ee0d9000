//! Counters of a copy, its cancel flag, and its limits on rate and dirty pages, shared by its
//! threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::report::Progress;

/// Interval at which a wait for the rate limit checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// Counters, cancel flag and limits. Reading them makes no system call.
#[derive(Debug)]
pub(crate) struct Meter {
    bytes: AtomicU64,
    files: AtomicU64,
    bytes_found: AtomicU64,
    files_found: AtomicU64,
    is_walked: AtomicBool,
    is_cancelled: AtomicBool,
    cancel_flag: Option<Arc<AtomicBool>>,
    began: Instant,
    rate: Option<Rate>,
    dirty_bytes_max: Option<u64>,
    /// Bytes written through the page cache since the last write-back that this copy waited for.
    dirty_bytes: AtomicU64,
}

impl Meter {
    pub(crate) fn new(options: &Options) -> Self {
        let rate = |bytes_per_second| Rate { bytes_per_second, next: Mutex::new(Instant::now()) };
        Meter {
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes_found: AtomicU64::new(0),
            files_found: AtomicU64::new(0),
            is_walked: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            cancel_flag: options.cancel_flag.clone(),
            began: Instant::now(),
            rate: options.bytes_per_second_max.map(|bytes| rate(bytes.max(1))),
            dirty_bytes_max: options.dirty_bytes_max,
            dirty_bytes: AtomicU64::new(0),
        }
    }

    /// Ends the copy: each thread stops before its next block.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Relaxed) || self.cancel_flag.as_ref().is_some_and(|flag| flag.load(Relaxed))
    }

    /// Waits until the rate limit admits `bytes`; false if the copy is cancelled.
    pub(crate) fn admit(&self, bytes: u64) -> bool {
        let Some(rate) = &self.rate else { return !self.is_cancelled() };
        let start = rate.reserve(bytes, Instant::now());
        loop {
            if self.is_cancelled() {
                return false;
            }
            match start.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return true,
                left => std::thread::sleep(left.min(LOOK)),
            }
        }
    }

    pub(crate) fn limits_rate(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns a block length of at most `block`, short enough for an even rate under the limit.
    pub(crate) fn block(&self, block: u64) -> u64 {
        const EVEN: u64 = 20;
        match &self.rate {
            // Whole pages, as direct I/O needs them.
            Some(rate) => (rate.bytes_per_second / EVEN).next_multiple_of(4096).clamp(4096, block.max(4096)),
            None => block,
        }
    }

    /// Counts bytes written to the target.
    pub(crate) fn copied(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts bytes that another way will copy again.
    pub(crate) fn uncopied(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Counts a finished file.
    pub(crate) fn file_done(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    /// Counts a file to copy.
    pub(crate) fn found(&self, bytes: u64) {
        self.bytes_found.fetch_add(bytes, Relaxed);
        self.files_found.fetch_add(1, Relaxed);
    }

    /// Marks the numbers found as totals.
    pub(crate) fn walked(&self) {
        self.is_walked.store(true, Relaxed);
    }

    /// Counts bytes written to the page cache; returns true if some must be written back now. The
    /// threshold is half of the limit, since bytes in write-back count, too.
    pub(crate) fn dirtied(&self, bytes: u64) -> bool {
        let Some(max) = self.dirty_bytes_max else { return false };
        self.dirty_bytes.fetch_add(bytes, Relaxed) + bytes > max / 2
    }

    pub(crate) fn limits_dirty(&self) -> bool {
        self.dirty_bytes_max.is_some()
    }

    /// True if less than half of all dirty bytes belong to a file with `own_bytes` dirty.
    pub(crate) fn is_mostly_of_others(&self, own_bytes: u64) -> bool {
        own_bytes < self.dirty_bytes.load(Relaxed) / 2
    }

    /// Counts bytes that were written back.
    pub(crate) fn cleaned(&self, bytes: u64) {
        // Saturating: a sync of the file system may have counted these bytes already.
        let _ = self.dirty_bytes.fetch_update(Relaxed, Relaxed, |dirty| Some(dirty.saturating_sub(bytes)));
    }

    /// Counts all bytes as written back.
    pub(crate) fn all_cleaned(&self) {
        self.dirty_bytes.store(0, Relaxed);
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            bytes: self.bytes.load(Relaxed),
            files: self.files.load(Relaxed),
            bytes_found: self.bytes_found.load(Relaxed),
            files_found: self.files_found.load(Relaxed),
            is_walked: self.is_walked.load(Relaxed),
            elapsed: self.began.elapsed(),
        }
    }
}

/// A limit on bytes per second, for all threads together.
#[derive(Debug)]
struct Rate {
    bytes_per_second: u64,
    /// Time at which the bytes admitted so far are within the rate.
    next: Mutex<Instant>,
}

impl Rate {
    /// Returns the time at which `bytes` may be written: when earlier bytes are within the rate.
    fn reserve(&self, bytes: u64, now: Instant) -> Instant {
        let mut next = lock(&self.next);
        // Idle time does not allow a burst later.
        let start = (*next).max(now);
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        *next = start + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX / 4));
        start
    }
}

/// Locks, and ignores poisoning: the data under these locks are consistent at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_by_all_threads_together() {
        let now = Instant::now();
        let rate = Rate { bytes_per_second: 1000, next: Mutex::new(now) };
        assert_eq!(rate.reserve(500, now), now);
        assert_eq!(rate.reserve(500, now), now + Duration::from_millis(500));
        assert_eq!(rate.reserve(1, now), now + Duration::from_secs(1));
        let later = now + Duration::from_secs(60);
        assert_eq!(rate.reserve(1000, later), later, "the time without work is not saved up");
        assert_eq!(rate.reserve(1, later), later + Duration::from_secs(1));
    }

    #[test]
    fn a_cancelled_copy_does_not_wait_for_its_rate() {
        let meter = Meter::new(&Options::new().bytes_per_second_max(Some(1)));
        assert!(meter.admit(1 << 40), "the first block need not wait");
        meter.cancel();
        assert!(!meter.admit(1));
    }

    #[test]
    fn blocks_are_short_where_the_rate_is_low() {
        let block = |rate| Meter::new(&Options::new().bytes_per_second_max(rate)).block(1 << 20);
        assert_eq!((block(None), block(Some(1)), block(Some(1 << 40))), (1 << 20, 4096, 1 << 20));
        assert_eq!(block(Some(1_000_000)) % 4096, 0);
    }

    #[test]
    fn dirty_bytes_are_written_back_at_half_of_their_limit() {
        let meter = Meter::new(&Options::new().dirty_bytes_max(Some(1000)));
        assert!(!meter.dirtied(500));
        assert!(meter.dirtied(1));
        meter.cleaned(501);
        assert!(!meter.dirtied(500));
        assert!(!Meter::new(&Options::new()).dirtied(u64::MAX));
    }
}
