//! The selectors: evidence in, route out. Pure: no I/O, no clock, no allocation. The same rules
//! serve reads, writes, opens, rings and helper threads.
//!
//! Each open file has its own selectors; opens have one per instance. The first read is tried
//! inline. After that, the file's own operations decide. There are two kinds of inline call:
//!
//! * An **attempt** (`RWF_NOWAIT`): the kernel promises not to wait for the device. A failure is a
//!   miss, or a false hit that waited for the device. A false hit arises because the attempt makes
//!   the kernel begin to read pages that are not cached (`filemap_get_pages` in mm/filemap.c, 5.10
//!   to 6.18). If the device finishes before the attempt looks again, the attempt returns the data,
//!   and the caller has waited for the device. Only the clock reveals this, so a hit that took
//!   longer than a copy counts as a failure. (On a virtio disk whose doorbell took 30 µs, four in
//!   five reads of a cold file were false hits, and the disk never had more than one read in flight.)
//! * A **budgeted** call: a plain call that is expected to be cheap. It is used if the file never
//!   accepts `RWF_NOWAIT` (tmpfs, overlayfs, FUSE), where io_uring would hand every operation to a
//!   kernel worker. A failure is a call over the stall budget.
//!
//! After a failure, budgeted calls are skipped for a while, twice as long after each further
//! failure. The next success ends this. Attempts are skipped by the share of them that hit, not by
//! failures in a row: in a file of which a part is cached, hits and misses alternate. A cold scan
//! makes one useless attempt in [`SKIP_MAX`] operations, and a file that becomes cached is noticed
//! within as many.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

/// Route by which an operation is served.
#[cfg_attr(not(feature = "forced-routes"), expect(unreachable_pub))]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// On the caller's thread.
    #[cfg_attr(not(any(test, feature = "forced-routes")), expect(dead_code))]
    Inline,
    /// io_uring.
    Ring,
    /// A pool thread.
    Pool,
}

/// The limits of an instance; set once by its builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Only calls that the kernel promises not to block may run inline: non-blocking reads.
    pub(crate) strict: bool,
    /// A plain inline call may take this long, and a nanosecond more for each byte that it copies.
    pub(crate) budget_ns: u64,
    /// Every operation takes this route.
    pub(crate) forced: Option<Route>,
    /// An operation in a future copies at most this much inline: beyond it, the copy alone would
    /// hold up the executor.
    pub(crate) inline_bytes_max: usize,
}

impl Policy {
    /// A plain call of `len` bytes took longer than it may.
    #[inline]
    fn is_stall(&self, len: usize, elapsed_ns: u64) -> bool {
        elapsed_ns > self.budget_ns.saturating_add(len as u64)
    }
}

/// The choice for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Try it inline with `RWF_NOWAIT`; the rest goes by the slow route.
    Attempt,
    /// Run the plain call inline and report how long it took.
    Budgeted,
    /// Take the slow route at once.
    Slow,
}

/// Attempts at reads are skipped if fewer than one in eight hits; the fewer hit, the more are
/// skipped. A miss does not block, and costs a sixth of a queued read. The newest attempt has a
/// weight of one eighth in the share of misses. (When misses in a row decided, with skips twice as
/// long each time, only a fifth of the reads of a half-cached file were served inline.)
const HIT_MIN: u32 = MISSED_ALL / 8;
const MISSED_ALL: u32 = 1 << 16;
const MISSED_WEIGHT: u32 = 8;
/// Attempts at writes that miss in a row before they are skipped, and turns in which no write joined
/// another.
const MISSES_BORNE: u32 = 2;
/// Stalls that are tolerated: none. One call over budget sends the following ones away.
const STALLS_BORNE: u32 = 0;
/// Direct reads or writes in a row that only a kernel worker could make, before rings are skipped:
/// as many as may be in flight. A cause that makes one of them wait also affects those beside it.
const PUNTS_BORNE: u32 = 256;
/// The longest run of operations that are not tried inline, or by a ring.
const SKIP_MAX: u32 = 256;

/// A cached read takes no longer than this, and a nanosecond for each byte.
const HIT_NS_MAX: u64 = 4_000;
/// Hits in a row after which only one attempt in as many is timed: the clock costs a twentieth of a
/// small cached read.
const PROVEN: u32 = 16;

/// Hits in a row after which a blocking caller makes plain calls without an attempt: they cost a
/// twentieth less. With one cold read in a thousand, waiting for it at once is no worse than
/// queueing it.
const TRUST: u32 = 1024;
/// A few plain calls in trust that took longer than this, and a nanosecond for each byte, end it.
const TRUST_BUDGET_NS: u64 = 20_000;

/// Larger reads are not announced: the kernel would read only their beginning ahead (128 KiB where
/// the device does not say more).
const ANNOUNCED_BYTES_MAX: usize = 128 << 10;

/// Leaves out inline calls after a streak of failures.
#[derive(Debug, Default)]
struct Backoff {
    /// Failures in a row.
    streak: AtomicU32,
    /// Operations still to be left out. Threads race on it benignly: a lost update shifts the next
    /// try by one.
    skip: AtomicU32,
}

impl Backoff {
    #[inline]
    fn allows(&self) -> bool {
        match self.skip.load(Relaxed) {
            0 => true,
            left => {
                self.skip.store(left - 1, Relaxed);
                false
            }
        }
    }

    #[inline]
    fn good(&self) {
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
            self.skip.store(0, Relaxed);
        }
    }

    /// Records a call, a failure if it took too long. Returns whether it did.
    #[inline]
    fn judge(&self, took_too_long: bool) -> bool {
        if took_too_long {
            self.bad(STALLS_BORNE)
        } else {
            self.good()
        }
        took_too_long
    }

    fn leave_out(&self, operations: u32) {
        self.skip.store(operations, Relaxed);
    }

    fn bad(&self, borne: u32) {
        let streak = self.streak.load(Relaxed).saturating_add(1);
        self.streak.store(streak, Relaxed);
        if streak > borne {
            self.skip.store((1 << (streak - borne).min(16)).min(SKIP_MAX), Relaxed);
        }
    }
}

/// The selector of direct reads, or writes, of one file by a ring.
///
/// A ring is asked not to wait. Where it would have to, as for blocks that a file gains, or for any
/// write of btrfs with copy-on-write, a thread of the pool does it. io_uring's own workers are few
/// for each thread, and a device that does not answer takes them all; and on some file systems they
/// take turns.
#[derive(Debug, Default)]
pub(crate) struct Rings(Backoff);

impl Rings {
    /// Whether a ring is to be tried.
    #[inline]
    pub(crate) fn allows(&self) -> bool {
        self.0.allows()
    }

    /// Records that a ring served one, or could not without waiting.
    #[inline]
    pub(crate) fn rang(&self, served: bool) {
        if served { self.0.good() } else { self.0.bad(PUNTS_BORNE) }
    }
}

const NOWAIT_UNKNOWN: u8 = 0;
const NOWAIT_ACCEPTED: u8 = 1;
const NOWAIT_REFUSED: u8 = 2;

/// The selector of reads of one open file.
#[derive(Debug, Default)]
pub(crate) struct ReadSelector {
    nowait: AtomicU8,
    inline: Backoff,
    announcements: Backoff,
    pub(crate) rings: Rings,
    /// The share of attempts that missed, of [`MISSED_ALL`]; the newest weigh most.
    missed: AtomicU32,
    /// Attempts that hit in a row, up to [`TRUST`].
    hits: AtomicU32,
}

impl ReadSelector {
    /// Chooses for a read of `len` bytes.
    #[inline]
    pub(crate) fn choose(&self, policy: &Policy, len: usize) -> Choice {
        match policy.forced {
            None if len > policy.inline_bytes_max => Choice::Slow,
            None => match self.nowait.load(Relaxed) {
                NOWAIT_REFUSED if policy.strict || !self.inline.allows() => Choice::Slow,
                NOWAIT_REFUSED => Choice::Budgeted,
                _ if self.inline.allows() => Choice::Attempt,
                _ => Choice::Slow,
            },
            Some(Route::Inline) if self.nowait.load(Relaxed) == NOWAIT_REFUSED => Choice::Budgeted,
            Some(Route::Inline) => Choice::Attempt,
            Some(_) => Choice::Slow,
        }
    }

    /// Returns the slow route of this file. Not a ring where reads have no non-blocking form, since
    /// a kernel worker would make them, at several times a pool's cost; nor for large reads, which
    /// a ring copies on the submitter's thread if cached.
    #[inline]
    pub(crate) fn slow_route(&self, policy: &Policy, len: usize) -> Route {
        match policy.forced {
            Some(Route::Ring) => Route::Ring,
            Some(Route::Pool) => Route::Pool,
            _ if self.nowait.load(Relaxed) == NOWAIT_REFUSED || len > policy.inline_bytes_max => Route::Pool,
            _ => Route::Ring,
        }
    }

    /// Whether an attempt should be timed, if it is its thread's `number`th.
    #[inline]
    pub(crate) fn is_timed(&self, number: u32) -> bool {
        number % PROVEN == 0 || self.hits.load(Relaxed) < PROVEN
    }

    /// Records an attempt that moved `bytes`, in `elapsed_ns` if it was timed.
    #[inline]
    pub(crate) fn attempt_hit(&self, bytes: usize, elapsed_ns: Option<u64>) {
        self.attempt_accepted();
        if elapsed_ns.is_some_and(|elapsed| elapsed > HIT_NS_MAX.saturating_add(bytes as u64)) {
            return self.attempt_missed();
        }
        // The common case writes nothing, so that threads do not contend for the cache line.
        let hits = self.hits.load(Relaxed);
        if hits < TRUST {
            self.hits.store(hits + 1, Relaxed);
            let missed = self.missed.load(Relaxed);
            self.missed.store(missed - missed / MISSED_WEIGHT, Relaxed);
            self.inline.good();
        }
    }

    /// Records that an attempt was answered with bytes, or with EAGAIN.
    #[inline]
    pub(crate) fn attempt_accepted(&self) {
        if self.nowait.load(Relaxed) == NOWAIT_UNKNOWN {
            self.nowait.store(NOWAIT_ACCEPTED, Relaxed);
        }
    }

    /// Records an attempt that found nothing cached, or an error that the slow route will report.
    pub(crate) fn attempt_missed(&self) {
        self.hits.store(0, Relaxed);
        let missed = self.missed.load(Relaxed);
        let missed = missed + (MISSED_ALL - missed) / MISSED_WEIGHT;
        self.missed.store(missed, Relaxed);
        self.inline.leave_out((HIT_MIN / (MISSED_ALL - missed)).min(SKIP_MAX));
    }

    /// Whether a caller that blocks may trust reads to be cached. Its calls are to be timed.
    pub(crate) fn trusts(&self, policy: &Policy) -> bool {
        self.hits.load(Relaxed) >= TRUST && policy.forced.is_none()
    }

    /// Records plain calls in trust, which moved `bytes` in `elapsed_ns`. False if that was too
    /// long, which ends the trust.
    pub(crate) fn keeps_trust(&self, bytes: usize, elapsed_ns: u64) -> bool {
        let keeps = elapsed_ns <= TRUST_BUDGET_NS.saturating_add(bytes as u64);
        if !keeps {
            self.hits.store(0, Relaxed);
        }
        keeps
    }

    /// The file does not accept `RWF_NOWAIT` (`EOPNOTSUPP`); remembered for good.
    pub(crate) fn attempt_refused(&self) {
        self.nowait.store(NOWAIT_REFUSED, Relaxed);
    }

    /// A budgeted call of `len` bytes took `elapsed_ns`. True when that was over the budget.
    #[inline]
    pub(crate) fn budgeted(&self, policy: &Policy, len: usize, elapsed_ns: u64) -> bool {
        self.inline.judge(policy.is_stall(len, elapsed_ns))
    }

    /// The kernel may be told of a read of `len` bytes before a thread waits for it. A call that is
    /// not meant to wait, but may: for the blocks that say where the data is, or for a place in the
    /// device's queue.
    pub(crate) fn may_announce(&self, policy: &Policy, len: usize) -> bool {
        let cached = self.nowait.load(Relaxed) == NOWAIT_ACCEPTED;
        cached && len <= ANNOUNCED_BYTES_MAX && !policy.strict && policy.forced.is_none() && self.announcements.allows()
    }

    /// Telling the kernel took `elapsed_ns`. True when that was over the budget.
    pub(crate) fn announced(&self, policy: &Policy, elapsed_ns: u64) -> bool {
        self.announcements.judge(policy.is_stall(0, elapsed_ns))
    }

    /// Whether the file accepts `RWF_NOWAIT`: `None` until one attempt has shown it.
    pub(crate) fn nowait_accepted(&self) -> Option<bool> {
        match self.nowait.load(Relaxed) {
            NOWAIT_UNKNOWN => None,
            answer => Some(answer == NOWAIT_ACCEPTED),
        }
    }
}

/// The selector of writes to one open file.
///
/// The kernel writes through the page cache without waiting where it can (`RWF_NOWAIT`: xfs, btrfs
/// without copy-on-write). ext4, tmpfs and overlayfs cannot, and btrfs with copy-on-write always
/// answers "not now". There a plain call is made, if the caller expects it to be cheap.
#[derive(Debug, Default)]
pub(crate) struct WriteSelector {
    nowait: AtomicU8,
    attempts: Backoff,
    plain: Backoff,
    together: Backoff,
    /// Small writes that were polled outside of `block_on`, up to a bound.
    polled: AtomicU32,
    pub(crate) rings: Rings,
}

impl WriteSelector {
    /// Chooses for a write of `len` bytes. `attempts` tells whether half of it may be written
    /// first, `is_cheap` whether a plain call should not block.
    #[inline]
    pub(crate) fn choose(
        &self,
        policy: &Policy,
        len: usize,
        attempts: bool,
        is_cheap: impl FnOnce() -> bool,
    ) -> Choice {
        let attempts = attempts && self.nowait.load(Relaxed) != NOWAIT_REFUSED;
        match policy.forced {
            // Even a non-blocking attempt waits while the file system is frozen.
            None if policy.strict || len > policy.inline_bytes_max => Choice::Slow,
            None if attempts && self.attempts.allows() => Choice::Attempt,
            None => self.instead(policy, is_cheap),
            Some(Route::Inline) if attempts => Choice::Attempt,
            Some(Route::Inline) => Choice::Budgeted,
            Some(_) => Choice::Slow,
        }
    }

    /// Chooses where no attempt is made, or one was answered with "not now". (xfs answers so once
    /// each clock tick, when the file's times are to be changed; a plain call takes some
    /// microseconds for that.)
    #[inline]
    pub(crate) fn instead(&self, policy: &Policy, is_cheap: impl FnOnce() -> bool) -> Choice {
        let plain = policy.forced.is_none() && self.plain.allows() && is_cheap();
        if plain { Choice::Budgeted } else { Choice::Slow }
    }

    /// Returns true if a write should wait for writes of other tasks that may be adjacent. The wait
    /// is free if the thread `drives` one future. On other executors, a file's first writes do not
    /// wait.
    #[inline]
    pub(crate) fn combines(&self, policy: &Policy, drives: bool) -> bool {
        policy.forced.is_none() && (drives || self.has_many()) && self.together.allows()
    }

    fn has_many(&self) -> bool {
        const SINGLE_FIRST: u32 = 64;
        let polled = self.polled.load(Relaxed);
        if polled < SINGLE_FIRST {
            // Two threads may count at the same time and add one: the bound is not exact.
            self.polled.store(polled + 1, Relaxed);
        }
        polled == SINGLE_FIRST
    }

    /// Records the number of writes that were left together, and of the calls that made them.
    ///
    /// On most executors a task that yields wakes another thread, which costs about five calls. The
    /// yield is free if the thread `drives` one future.
    pub(crate) fn combined(&self, writes: usize, calls: usize, drives: bool) {
        if writes > if drives { calls } else { 5 * calls } {
            self.together.good()
        } else {
            self.together.bad(MISSES_BORNE)
        }
    }

    /// Records an attempt that moved bytes.
    #[inline]
    pub(crate) fn attempt_hit(&self) {
        self.attempts.good();
    }

    /// Records an attempt that was answered with "not now".
    pub(crate) fn attempt_missed(&self) {
        self.attempts.bad(MISSES_BORNE);
    }

    /// The file does not accept `RWF_NOWAIT` for writes; remembered for good.
    pub(crate) fn attempt_refused(&self) {
        self.nowait.store(NOWAIT_REFUSED, Relaxed);
    }

    /// A plain call of `len` bytes took `elapsed_ns`. True when that was over the budget.
    #[inline]
    pub(crate) fn budgeted(&self, policy: &Policy, len: usize, elapsed_ns: u64) -> bool {
        self.plain.judge(policy.is_stall(len, elapsed_ns))
    }
}

/// The selector of opens on the caller's thread: one for each instance, since a file that is not
/// open has none.
///
/// An open for reading is tried if the kernel has the name in its cache and the file system asks no
/// server (`sys::open_cached`). Only the clock detects other waits, such as a fanotify listener. A
/// name that is not cached is not a failure: it costs one or two microseconds, and does not predict
/// the next open.
#[derive(Debug, Default)]
pub(crate) struct OpenSelector {
    refused: AtomicBool,
    inline: Backoff,
}

impl OpenSelector {
    /// Whether to try an open that only reads.
    pub(crate) fn allows(&self, policy: &Policy) -> bool {
        !policy.strict && policy.forced.is_none() && !self.refused.load(Relaxed) && self.inline.allows()
    }

    /// Records that the kernel cannot be asked so; remembered for good.
    pub(crate) fn refused(&self) {
        self.refused.store(true, Relaxed);
    }

    /// An attempt took `elapsed_ns`. True when that was over the budget.
    pub(crate) fn tried(&self, policy: &Policy, elapsed_ns: u64) -> bool {
        self.inline.judge(policy.is_stall(0, elapsed_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { strict: false, budget_ns: 100_000, forced: None, inline_bytes_max: 1 << 20 };

    /// Runs `n` reads of a file of which `cached(i)` tells the state; returns the attempts made.
    fn scan(selector: &ReadSelector, n: usize, cached: impl Fn(usize) -> bool) -> usize {
        let mut attempts = 0;
        for i in 0..n {
            if selector.choose(&POLICY, 4096) == Choice::Attempt {
                attempts += 1;
                if cached(i) { selector.attempt_hit(4096, Some(1_000)) } else { selector.attempt_missed() }
            }
        }
        attempts
    }

    #[test]
    fn opens_are_left_out_after_a_stall_and_for_good_once_refused() {
        let opens = OpenSelector::default();
        assert!(opens.allows(&POLICY) && !opens.tried(&POLICY, 100_000));
        assert!(opens.allows(&POLICY) && opens.tried(&POLICY, 100_001));
        assert!(!opens.allows(&POLICY) && !opens.allows(&POLICY) && opens.allows(&POLICY));
        assert!(!opens.allows(&Policy { strict: true, ..POLICY }));
        assert!(!opens.allows(&Policy { forced: Some(Route::Inline), ..POLICY }));
        opens.refused();
        assert!((0..1000).all(|_| !opens.allows(&POLICY)));
    }

    #[test]
    fn a_ring_that_cannot_write_is_left_out_and_one_that_mostly_can_is_not() {
        let tries = |rings: &Rings, served: fn(usize) -> bool| {
            let tried = (0..5000).filter(|&number| {
                rings.allows() && {
                    rings.rang(served(number));
                    true
                }
            });
            tried.count()
        };
        assert_eq!(tries(&Rings::default(), |number| number % 256 == 0), 5000);
        let rings = Rings::default();
        let never = tries(&rings, |_| false);
        assert!((256..300).contains(&never), "{never}");
        assert!(tries(&rings, |_| true) >= 5000 - SKIP_MAX as usize);
    }

    #[test]
    fn cached_file_is_always_tried_inline() {
        assert_eq!(scan(&ReadSelector::default(), 1000, |_| true), 1000);
    }

    #[test]
    fn cold_scan_stops_trying_and_notices_when_the_file_becomes_cached() {
        let selector = ReadSelector::default();
        let attempts = scan(&selector, 10_000, |_| false);
        assert!(attempts < 10_000 / SKIP_MAX as usize + 70, "{attempts} attempts");
        let attempts = scan(&selector, 1000, |_| true);
        assert!(attempts >= 1000 - SKIP_MAX as usize, "{attempts} attempts");
    }

    #[test]
    fn half_cached_file_is_tried_nearly_always_and_one_third_mostly() {
        let random = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let attempts = scan(&ReadSelector::default(), 10_000, |i| random(i) % 2 == 0);
        assert!(attempts > 9000, "{attempts} attempts");
        let attempts = scan(&ReadSelector::default(), 10_000, |i| random(i) % 3 == 0);
        assert!(attempts > 9000, "{attempts} attempts");
    }

    #[test]
    fn hits_that_the_device_served_count_as_misses() {
        let selector = ReadSelector::default();
        let mut attempts = 0;
        for number in 0..10_000 {
            if selector.choose(&POLICY, 4096) == Choice::Attempt {
                attempts += 1;
                selector.attempt_hit(4096, selector.is_timed(number).then_some(30_000));
            }
        }
        assert!(attempts < 10_000 / SKIP_MAX as usize + 70, "{attempts} attempts");
    }

    #[test]
    fn a_file_that_turns_cold_after_many_hits_is_noticed_though_few_attempts_are_timed() {
        let selector = ReadSelector::default();
        (0..10_000).for_each(|_| selector.attempt_hit(4096, None));
        let timed = (0..10_000).filter(|&number| selector.is_timed(number)).count();
        assert_eq!(timed, 10_000 / PROVEN as usize);
        let mut slow = 0;
        for number in 0..10_000 {
            if selector.choose(&POLICY, 4096) == Choice::Attempt {
                slow += 1;
                selector.attempt_hit(4096, selector.is_timed(number).then_some(30_000));
            }
        }
        assert!(slow < 2 * PROVEN as usize + 10_000 / SKIP_MAX as usize + 70, "{slow} on the caller's time");
    }

    #[test]
    fn trust_takes_a_long_streak_and_ends_with_one_slow_call_or_miss() {
        let selector = ReadSelector::default();
        let hit = |times: u32| (0..times).for_each(|_| selector.attempt_hit(4096, None));
        hit(TRUST - 1);
        assert!(!selector.trusts(&POLICY));
        hit(1);
        assert!(selector.trusts(&POLICY) && selector.keeps_trust(4096, 1_000));
        assert!(!selector.keeps_trust(4096, 80_000) && !selector.trusts(&POLICY));
        hit(TRUST);
        assert!(selector.trusts(&POLICY));
        selector.attempt_missed();
        assert!(!selector.trusts(&POLICY));
    }

    #[test]
    fn refused_nowait_means_budgeted_calls_and_the_pool_and_strict_forbids_the_former() {
        let selector = ReadSelector::default();
        assert_eq!(selector.slow_route(&POLICY, 4096), Route::Ring);
        selector.attempt_refused();
        assert_eq!(selector.choose(&POLICY, 4096), Choice::Budgeted);
        assert_eq!(selector.slow_route(&POLICY, 4096), Route::Pool);
        assert_eq!(selector.choose(&Policy { strict: true, ..POLICY }, 4096), Choice::Slow);
        assert_eq!(selector.nowait_accepted(), Some(false));
    }

    #[test]
    fn stalls_send_what_follows_away_for_a_while_and_one_good_call_ends_that() {
        let selector = ReadSelector::default();
        selector.attempt_refused();
        assert_eq!(selector.choose(&POLICY, 4096), Choice::Budgeted);
        assert!(selector.budgeted(&POLICY, 4096, 10_000_000));
        assert_eq!(selector.choose(&POLICY, 4096), Choice::Slow);
        assert_eq!(selector.choose(&POLICY, 4096), Choice::Slow);
        assert_eq!(selector.choose(&POLICY, 4096), Choice::Budgeted);
        assert!(!selector.budgeted(&POLICY, 4096, 1_000));
        assert_eq!(selector.choose(&POLICY, 4096), Choice::Budgeted);
    }

    #[test]
    fn writes_are_attempts_where_they_are_accepted_and_plain_calls_where_those_are_cheap() {
        let writes = WriteSelector::default();
        let choose = |cheap| writes.choose(&POLICY, 4096, true, || cheap);
        let strict = || writes.choose(&Policy { strict: true, ..POLICY }, 4096, true, || true);
        assert_eq!((choose(true), choose(false), strict()), (Choice::Attempt, Choice::Attempt, Choice::Slow));
        writes.attempt_refused();
        assert_eq!((choose(true), choose(false)), (Choice::Budgeted, Choice::Slow));
        assert_eq!(strict(), Choice::Slow);
        assert!(writes.budgeted(&POLICY, 4096, 10_000_000));
        assert_eq!((choose(true), choose(true), choose(true)), (Choice::Slow, Choice::Slow, Choice::Budgeted));
    }

    #[test]
    fn an_attempt_that_is_always_put_off_gives_way_to_plain_calls() {
        let writes = WriteSelector::default();
        let mut attempts = 0;
        for _ in 0..10_000 {
            if writes.choose(&POLICY, 4096, true, || true) == Choice::Attempt {
                attempts += 1;
                writes.attempt_missed();
            }
        }
        assert!(attempts < 10_000 / SKIP_MAX as usize + 12, "{attempts} attempts");
    }

    #[test]
    fn appends_are_never_attempts_and_large_writes_of_any_kind_never_inline() {
        let writes = WriteSelector::default();
        let forced = Policy { forced: Some(Route::Inline), ..POLICY };
        assert_eq!(writes.choose(&POLICY, 4096, false, || true), Choice::Budgeted);
        assert_eq!(writes.choose(&forced, 4096, false, || true), Choice::Budgeted);
        for attempts in [false, true] {
            assert_eq!(writes.choose(&POLICY, 2 << 20, attempts, || true), Choice::Slow);
        }
    }

    #[test]
    fn large_reads_and_forced_routes() {
        let selector = ReadSelector::default();
        assert_eq!(selector.choose(&POLICY, 2 << 20), Choice::Slow);
        assert_eq!(selector.slow_route(&POLICY, 2 << 20), Route::Pool);
        let forced = |route| Policy { forced: Some(route), ..POLICY };
        assert_eq!(selector.choose(&forced(Route::Ring), 1), Choice::Slow);
        assert_eq!(selector.slow_route(&forced(Route::Ring), 2 << 20), Route::Ring);
        assert_eq!(selector.choose(&forced(Route::Inline), 2 << 20), Choice::Attempt);
    }
}
