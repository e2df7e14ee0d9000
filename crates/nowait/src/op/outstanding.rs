//! The changes of one file that have begun and not ended: writes, and what cuts or reserves.
//!
//! **Order.** Two that overlap are made in the order in which they were submitted, also when the
//! future of the first was dropped. Each has a number and a [`Span`]; one whose span overlaps that
//! of an earlier number waits for it: a slot in the line before its engine (`core/throttle.rs`), a
//! thread that blocks in [`Outstanding::enter`]. A number waits only for earlier ones, so no cycle
//! can form. Changes that have begun never overlap. They are sorted by position: a span overlaps
//! one of them only if it overlaps the last one that begins before the span's end.
//!
//! **Whole.** Every change that the kernel has is registered here, whichever thread makes the call.
//! A change that a thread makes itself is registered as its [`Turn`]. If the call completes only a
//! part, the rest goes to an engine under the same number ([`Turn::hand_on`]), so that no other
//! change comes between the two.
//!
//! **Bytes.** Those of writes on their way are counted here, under the same lock. The throttle
//! bounds them.
//!
//! **Reports.** The kernel reports a failed write-back once, to the first of these calls on an open
//! file description: `fsync(2)`, `sync_file_range(2)`, or a write with `RWF_DSYNC`
//! (`file_check_and_advance_wb_err` in mm/filemap.c, 4.13 to 7.2). Through the page cache these
//! calls are made one after the other (`op/file.rs` `queue`, the queue of syncs). Direct durable
//! writes may run at the same time: each reports failures of its own bytes (docs/guide/limits.md names
//! an exception). But such a write could
//! consume the report, and a concurrent sync would then succeed. So no sync runs beside a direct
//! durable write ([`Outstanding::begin_sync`]).
//!
//! A wait here is for a completion, which needs no other thread's poll (`op/watcher`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use super::watcher;
use crate::sync::contained;
use crate::sync::loomed::{Condvar, Mutex, MutexGuard, lock};

/// The bytes of a file that an operation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    /// The end of the file, wherever it is: appends are made in order. No offset lies there
    /// (`i64::MAX` is the last).
    pub(crate) const END: Span = Span { start: i64::MAX as u64, end: u64::MAX };

    /// Makes a span of at least one byte, so that spans that do not overlap start at different
    /// offsets.
    pub(crate) fn new(start: u64, length: u64) -> Span {
        Span { start, end: start.saturating_add(length.max(1)) }
    }

    pub(crate) fn overlaps(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A request that changes a file's bytes, as those see it that give it its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) span: Span,
    pub(crate) bytes: u64,
    /// Excludes all other writes.
    pub(crate) alone: bool,
    /// Excludes syncs: a direct write that waits for the device.
    pub(crate) durable: bool,
}

impl Change {
    pub(super) fn of(span: Span) -> Change {
        Change { span, bytes: 0, alone: false, durable: false }
    }
}

/// A line of slots that waits for its turn, as opposed to a thread.
pub(crate) trait Resume: Send + Sync {
    /// Checks again which slots may proceed, after a change has ended. Called with no lock held.
    fn resume(self: Arc<Self>);
}

/// The writes of a file that are on their way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnTheirWay {
    pub(crate) bytes: u64,
    /// One of them excludes all others.
    pub(crate) alone: bool,
}

#[derive(Default)]
pub(crate) struct Outstanding {
    /// [`OnTheirWay`]: written under the lock, and read without the lock.
    bytes: AtomicU64,
    alone: AtomicBool,
    changes: Mutex<Changes>,
    /// Notified when a change or a sync has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Changes {
    /// Changes that have gone on, by position.
    begun: VecDeque<Live>,
    /// Waiting changes, ordered by number and then by position.
    waiting: VecDeque<Live>,
    next: u64,
    /// A thread is submitting a change that waited in a line. Later changes that need not wait must
    /// not overtake it.
    giving: bool,
    /// Threads that wait for `ended`.
    threads: usize,
    /// Futures that wait for all numbers below theirs, each with a unique identity.
    wakers: Vec<(u64, u64, Waker)>,
    next_waker: u64,
    /// Direct durable writes that have begun.
    durable: usize,
    /// A sync is under way, or waits for direct durable writes: no more of these begin.
    syncing: bool,
    /// A line that contains a blocked change.
    line: Option<Arc<dyn Resume>>,
}

#[derive(Clone, Copy)]
struct Live {
    number: u64,
    span: Span,
}

impl Live {
    fn key(self) -> (u64, u64) {
        (self.number, self.span.start)
    }
}

impl Changes {
    /// True if a change overlaps one with a lower number. A begun change that overlaps it always has
    /// a lower number, since a later one would wait.
    #[inline]
    fn is_behind(&self, number: u64, span: Span) -> bool {
        let is_alone = self.begun.is_empty() && self.waiting.is_empty();
        !is_alone && self.is_behind_some(number, span)
    }

    fn is_behind_some(&self, number: u64, span: Span) -> bool {
        let overlaps_begun = || {
            let before_end = self.begun.partition_point(|live| live.span.start < span.end);
            before_end > 0 && self.begun[before_end - 1].span.end > span.start
        };
        // Most changes go on where the last one ends.
        let is_behind_all = self.begun.back().is_none_or(|last| last.span.end <= span.start);
        let mut earlier = self.waiting.iter().take_while(|live| live.number < number);
        !is_behind_all && overlaps_begun() || earlier.any(|live| live.span.overlaps(span))
    }

    /// Whether a change has to wait: for one with a lower number, or for a sync.
    fn must_wait(&self, number: u64, change: &Change) -> bool {
        self.is_behind(number, change.span) || change.durable && self.syncing
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn join(&mut self, span: Span) -> Live {
        let live = Live { number: self.number(), span };
        self.waiting.push_back(live);
        live
    }

    /// Puts a change back among the waiting changes.
    fn step_back(&mut self, live: Live) {
        let at = self.waiting.partition_point(|other| other.key() < live.key());
        self.waiting.insert(at, live);
    }

    #[inline]
    fn go_on(&mut self, live: Live) {
        if self.begun.back().is_none_or(|last| last.span.start < live.span.start) {
            return self.begun.push_back(live);
        }
        let at = self.begun.partition_point(|other| other.span.start < live.span.start);
        self.begun.insert(at, live);
    }

    /// Takes out a change that waits.
    fn stop_waiting(&mut self, live: Live) {
        if let Ok(at) = self.waiting.binary_search_by_key(&live.key(), |other| other.key()) {
            self.waiting.remove(at);
        }
    }

    /// Takes out a change that has gone on.
    #[inline]
    fn end(&mut self, live: Live) {
        if self.begun.back().is_some_and(|last| last.span.start == live.span.start) {
            self.begun.pop_back();
        } else if let Ok(at) = self.begun.binary_search_by_key(&live.span.start, |other| other.span.start) {
            self.begun.remove(at);
        }
    }

    fn is_awaited(&self) -> bool {
        self.threads > 0 || self.syncing || !self.wakers.is_empty()
    }

    fn lowest(&self) -> Option<u64> {
        let begun = self.begun.iter().map(|live| live.number).min();
        begun.into_iter().chain(self.waiting.front().map(|live| live.number)).min()
    }

    /// Whether a number below this one is outstanding.
    fn is_any_below(&self, number: u64) -> bool {
        self.lowest().is_some_and(|lowest| lowest < number)
    }

    /// Takes out those futures that wait for nothing that is live.
    fn satisfied(&mut self) -> Vec<Waker> {
        let first = self.lowest().unwrap_or(u64::MAX);
        let ready: Vec<_>;
        (ready, self.wakers) = std::mem::take(&mut self.wakers).into_iter().partition(|(_, below, _)| *below <= first);
        ready.into_iter().map(|(_, _, waker)| waker).collect()
    }
}

impl Outstanding {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        lock(&self.changes)
    }

    /// Whether a change of `span` that begins now would overtake another.
    pub(crate) fn overlaps(&self, span: Span) -> bool {
        self.changes().is_behind(u64::MAX, span)
    }

    /// The writes on their way. Exact under the lock only, as [`Outstanding::begin`] asks for it.
    #[inline]
    pub(crate) fn on_their_way(&self) -> OnTheirWay {
        OnTheirWay { bytes: self.bytes.load(Relaxed), alone: self.alone.load(Relaxed) }
    }

    fn set_on_their_way(&self, now: OnTheirWay) {
        self.bytes.store(now.bytes, Relaxed);
        self.alone.store(now.alone, Relaxed);
    }

    /// Numbers a change, and lets it go on at once: unless it would have to wait for another or for
    /// a sync, or `fits` says no, which is asked last.
    pub(crate) fn begin_now(&self, change: &Change, fits: impl FnOnce(OnTheirWay) -> bool) -> Option<u64> {
        let mut changes = self.changes();
        if changes.giving || changes.must_wait(u64::MAX, change) || !fits(self.on_their_way()) {
            return None;
        }
        let number = changes.number();
        self.go_on(&mut changes, number, change);
        Some(number)
    }

    /// Numbers a change that waits in a line.
    pub(crate) fn join(&self, span: Span) -> u64 {
        self.changes().join(span).number
    }

    /// Begins the change of a line, as [`Outstanding::begin_now`] does; no other change of the file
    /// begins until [`Outstanding::given`]. If the change must wait for another or for a sync,
    /// `line` is called when to check again.
    pub(crate) fn begin(
        &self,
        number: u64,
        change: &Change,
        fits: impl FnOnce(OnTheirWay) -> bool,
        line: impl FnOnce() -> Arc<dyn Resume>,
    ) -> bool {
        let mut changes = self.changes();
        // The thread that gives one looks at the line afterwards.
        if changes.giving {
            return false;
        }
        if changes.must_wait(number, change) {
            changes.line = Some(line());
            return false;
        }
        if !fits(self.on_their_way()) {
            return false;
        }
        changes.giving = true;
        changes.stop_waiting(Live { number, span: change.span });
        self.go_on(&mut changes, number, change);
        true
    }

    fn go_on(&self, changes: &mut Changes, number: u64, change: &Change) {
        changes.go_on(Live { number, span: change.span });
        changes.durable += usize::from(change.durable);
        let OnTheirWay { bytes, alone } = self.on_their_way();
        self.set_on_their_way(OnTheirWay { bytes: bytes + change.bytes, alone: alone || change.alone });
    }

    /// A change that waited in a line is with its engine; as [`Outstanding::is_awaited`].
    pub(crate) fn given(&self) -> bool {
        let mut changes = self.changes();
        changes.giving = false;
        changes.is_awaited()
    }

    /// Whether a thread or future waits for a change to end.
    pub(crate) fn is_awaited(&self) -> bool {
        self.changes().is_awaited()
    }

    /// A change that had gone on has ended, for good.
    pub(crate) fn end(&self, number: u64, change: &Change) {
        let mut changes = self.changes();
        changes.end(Live { number, span: change.span });
        changes.durable -= usize::from(change.durable);
        let OnTheirWay { bytes, alone } = self.on_their_way();
        self.set_on_their_way(OnTheirWay { bytes: bytes - change.bytes, alone: alone && !change.alone });
        self.tell(changes);
    }

    /// A change that waited in a line is not made.
    pub(crate) fn give_up(&self, number: u64, span: Span) {
        let mut changes = self.changes();
        changes.stop_waiting(Live { number, span });
        self.tell(changes);
    }

    /// Notifies waiters, with nothing locked, that something has ended.
    #[inline]
    fn tell(&self, changes: MutexGuard<'_, Changes>) {
        if changes.threads > 0 || !changes.wakers.is_empty() || changes.line.is_some() {
            self.tell_all(changes);
        }
    }

    fn tell_all(&self, mut changes: MutexGuard<'_, Changes>) {
        let wakers = changes.satisfied();
        let line = changes.line.take();
        let threads = changes.threads > 0;
        drop(changes);
        if threads {
            self.ended.notify_all();
        }
        // A waker that panics affects no other operation.
        wakers.into_iter().for_each(|waker| contained(|| waker.wake()));
        if let Some(line) = line {
            line.resume();
        }
    }

    /// Begins a change that this thread makes; none if it would have to wait for another change.
    #[inline]
    pub(crate) fn try_enter(&self, span: Span) -> Option<Turn<'_>> {
        self.go_on_here(&mut self.changes(), span)
    }

    /// Waits until a change that this thread makes may begin, and begins it.
    #[inline]
    pub(crate) fn enter(&self, span: Span) -> Turn<'_> {
        let mut changes = self.changes();
        match self.go_on_here(&mut changes, span) {
            Some(turn) => turn,
            None => {
                let live = changes.join(span);
                drop(changes);
                self.enter_later(live)
            }
        }
    }

    fn go_on_here(&self, changes: &mut Changes, span: Span) -> Option<Turn<'_>> {
        if changes.is_behind(u64::MAX, span) {
            return None;
        }
        let live = Live { number: changes.number(), span };
        changes.go_on(live);
        Some(Turn { outstanding: self, live })
    }

    #[cold]
    fn enter_later(&self, live: Live) -> Turn<'_> {
        self.sleep_while(|changes| {
            if changes.is_behind(live.number, live.span) {
                return true;
            }
            changes.stop_waiting(live);
            changes.go_on(live);
            false
        });
        Turn { outstanding: self, live }
    }

    /// Begins a sync, or another call that may take the kernel's report: waits until no direct
    /// durable write is in the kernel, and holds back those that come. If it has to wait, `sleep`
    /// is given the wait, to call it.
    pub(crate) fn begin_sync(&self, sleep: impl FnOnce(&dyn Fn())) -> Syncing<'_> {
        let mut changes = self.changes();
        changes.syncing = true;
        let waits = changes.durable > 0;
        drop(changes);
        let syncing = Syncing(self);
        if waits {
            sleep(&|| self.sleep_while(|changes| changes.durable > 0));
        }
        syncing
    }

    /// Sleeps until `must` says no, which is the last that it is asked.
    fn sleep_while(&self, mut must: impl FnMut(&mut Changes) -> bool) {
        let mut changes = self.changes();
        if !must(&mut changes) {
            return;
        }
        // Before it asks for help: threads that submit a change from here on ask for help
        // themselves.
        changes.threads += 1;
        let mut ask_again = None;
        while must(&mut changes) {
            let Some(after) = ask_again else {
                drop(changes);
                ask_again = Some(watcher::ask());
                changes = self.changes();
                continue;
            };
            let (woken, timeout) =
                self.ended.wait_timeout(changes, after).unwrap_or_else(|poisoned| poisoned.into_inner());
            changes = woken;
            ask_again = ask_again.filter(|_| !timeout.timed_out());
        }
        changes.threads -= 1;
    }

    /// Waits until all that has begun by now has ended.
    pub(crate) fn settle(&self) {
        let below = self.changes().next;
        self.sleep_while(|changes| changes.is_any_below(below));
    }
}

/// A thread's turn to make a change. Drop ends the turn.
#[must_use = "the change is outstanding while this lives"]
pub(crate) struct Turn<'o> {
    outstanding: &'o Outstanding,
    /// The change. Its span is empty after all of it was handed on.
    live: Live,
}

impl Turn<'_> {
    /// Leaves `span`, a part of this change, to an engine. It waits in line from now on, under the
    /// number that this returns. Bytes before `span` have been written; bytes behind it remain in
    /// this turn. Call this without any lock held.
    pub(crate) fn hand_on(&mut self, span: Span) -> u64 {
        let Live { number, span: whole } = self.live;
        debug_assert!(whole.start <= span.start && span.end <= whole.end, "{span:?} of {whole:?}");
        let mut changes = self.outstanding.changes();
        changes.end(self.live);
        changes.step_back(Live { number, span });
        self.live.span.start = span.end;
        if !self.live.span.is_empty() {
            changes.go_on(self.live);
        }
        self.outstanding.tell(changes);
        number
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.live.span.is_empty() {
            let mut changes = self.outstanding.changes();
            changes.end(self.live);
            self.outstanding.tell(changes);
        }
    }
}

/// A sync is under way while this lives.
pub(crate) struct Syncing<'o>(&'o Outstanding);

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        let mut changes = self.0.changes();
        changes.syncing = false;
        self.0.tell(changes);
    }
}

/// A wait for all that had begun at its first poll.
#[derive(Default)]
pub(crate) struct Settling {
    /// Everything below this number; and under which identity its waker lies there.
    asked: Option<(u64, u64)>,
}

impl Settling {
    pub(crate) fn poll(&mut self, outstanding: &Outstanding, context: &Context<'_>) -> Poll<()> {
        // A waker's clone and drop may run anything: not under the lock.
        let waker = context.waker().clone();
        let mut changes = outstanding.changes();
        let first = self.asked.is_none();
        let (below, identity) = *self.asked.get_or_insert_with(|| {
            changes.next_waker += 1;
            (changes.next, changes.next_waker)
        });
        let live = changes.is_any_below(below);
        let place = changes.wakers.iter().position(|(known, _, _)| *known == identity);
        let old = match (place, live) {
            (Some(place), true) => Some(std::mem::replace(&mut changes.wakers[place].2, waker)),
            (None, true) => {
                changes.wakers.push((identity, below, waker));
                None
            }
            (Some(place), false) => Some(changes.wakers.swap_remove(place).2),
            (None, false) => None,
        };
        drop(changes);
        drop(old);
        if !live {
            return Poll::Ready(());
        }
        if first {
            watcher::ask();
        }
        Poll::Pending
    }

    /// Forgets the waker: the wait is over.
    pub(crate) fn forget(&mut self, outstanding: &Outstanding) {
        let Some((_, identity)) = self.asked.take() else { return };
        let mut changes = outstanding.changes();
        let place = changes.wakers.iter().position(|(known, _, _)| *known == identity);
        let old = place.map(|place| changes.wakers.swap_remove(place));
        drop(changes);
        drop(old);
    }
}
