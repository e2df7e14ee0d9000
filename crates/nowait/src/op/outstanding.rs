//! The changes of one file that have begun and not ended: writes, and what cuts or reserves.
//!
//! **Order.** Two that overlap are made in the order in which they were submitted, also when the
//! future of the first was dropped. Each has a number and a [`Span`]; one whose span overlaps that
//! of an earlier number waits for it: a slot in the line before its engine (`core/throttle.rs`), a
//! thread that blocks in [`Outstanding::enter`]. A number waits for earlier ones only, so that
//! nothing waits in a circle.
//!
//! **Reports.** The kernel tells of a failed write-back once, to the first call on an open file
//! description that asks: `fsync(2)`, `sync_file_range(2)`, or a write with `RWF_DSYNC`
//! (`file_check_and_advance_wb_err` in mm/filemap.c, 4.13 to 7.2). Through the page cache these
//! calls are made one after the other (`op/file.rs` `queue`, the queue of syncs). Direct durable
//! writes need not be: their own bytes fail in their own answer. But while one is in the kernel a
//! sync could be told nothing and say that all is well, since the write was told. So no sync is
//! made beside a direct durable write ([`Outstanding::begin_sync`]).
//!
//! A wait here is for a completion, which needs no other thread's poll (`op/help.rs`).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::buf::{contained, lock};
use crate::op::help;

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

    pub(crate) fn new(start: u64, length: u64) -> Span {
        Span { start, end: start.saturating_add(length) }
    }

    pub(crate) fn overlaps(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// A line of slots that waits for its turn, as opposed to a thread.
pub(crate) trait Resume: Send + Sync {
    /// Looks again which slots may go on, since something has ended. Called with nothing locked.
    fn resume(self: Arc<Self>);
}

#[derive(Default)]
pub(crate) struct Outstanding {
    /// The number of changes, read without the lock.
    count: AtomicUsize,
    changes: Mutex<Changes>,
    /// Something has ended, or a sync has.
    ended: Condvar,
}

#[derive(Default)]
struct Changes {
    live: Vec<Change>,
    next: u64,
    /// Threads that wait for `ended`.
    threads: usize,
    /// Futures, each under an identity of its own, that wait for all numbers below theirs.
    wakers: Vec<(u64, u64, Waker)>,
    next_waker: u64,
    /// Direct durable writes that have begun.
    durable: usize,
    /// A sync is under way, or waits for those: no more of them begin.
    syncing: bool,
    /// The line in which something was found to be blocked.
    line: Option<Arc<dyn Resume>>,
}

struct Change {
    number: u64,
    span: Span,
}

impl Changes {
    fn is_behind(&self, number: u64, span: Span) -> bool {
        self.live.iter().any(|change| change.number < number && change.span.overlaps(span))
    }

    fn join(&mut self, span: Span) -> u64 {
        let number = self.next;
        self.next += 1;
        self.live.push(Change { number, span });
        number
    }

    /// Takes out those futures that wait for nothing that is live.
    fn satisfied(&mut self) -> Vec<Waker> {
        if self.wakers.is_empty() {
            return Vec::new();
        }
        let first = self.live.iter().map(|change| change.number).min().unwrap_or(u64::MAX);
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
    #[inline]
    pub(crate) fn overlaps(&self, span: Span) -> bool {
        self.count.load(Relaxed) > 0 && self.changes().is_behind(u64::MAX, span)
    }

    /// Numbers a change, which has begun.
    pub(crate) fn join(&self, span: Span) -> u64 {
        let mut changes = self.changes();
        self.count.store(changes.live.len() + 1, Relaxed);
        changes.join(span)
    }

    /// Lets a change go on to its engine, unless it must wait: for an earlier one, or, durable, for
    /// a sync. Then `line` is told when to look again.
    pub(crate) fn begin(&self, number: u64, span: Span, durable: bool, line: impl FnOnce() -> Arc<dyn Resume>) -> bool {
        let mut changes = self.changes();
        if changes.is_behind(number, span) || durable && changes.syncing {
            changes.line = Some(line());
            return false;
        }
        changes.durable += usize::from(durable);
        true
    }

    /// A change has ended, for good.
    pub(crate) fn leave(&self, number: u64, durable: bool) {
        let mut changes = self.changes();
        changes.live.retain(|change| change.number != number);
        self.count.store(changes.live.len(), Relaxed);
        changes.durable -= usize::from(durable);
        self.tell(changes);
    }

    /// Notifies waiters, with nothing locked, that something has ended.
    fn tell(&self, mut changes: MutexGuard<'_, Changes>) {
        let wakers = changes.satisfied();
        let line = changes.line.take();
        let threads = changes.threads > 0;
        drop(changes);
        if threads {
            self.ended.notify_all();
        }
        // A waker that panics harms nobody else.
        wakers.into_iter().for_each(|waker| contained(|| waker.wake()));
        if let Some(line) = line {
            line.resume();
        }
    }

    /// Waits until a change of `span` may be made on this thread. None, at no cost, where nothing
    /// is outstanding: it is not numbered then, since it is made before this thread can submit
    /// another.
    #[inline]
    pub(crate) fn enter(&self, span: Span) -> Option<Turn<'_>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.enter_slow(span)
    }

    #[cold]
    fn enter_slow(&self, span: Span) -> Option<Turn<'_>> {
        let number = {
            let mut changes = self.changes();
            if !changes.is_behind(u64::MAX, span) {
                return None;
            }
            let number = changes.join(span);
            self.count.store(changes.live.len(), Relaxed);
            number
        };
        let turn = Turn { outstanding: self, number };
        self.sleep_while(|changes| changes.is_behind(number, span));
        Some(turn)
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

    fn sleep_while(&self, mut must: impl FnMut(&Changes) -> bool) {
        let mut changes = self.changes();
        if !must(&changes) {
            return;
        }
        // Before it asks: whoever gives an engine a change from here on asks for help itself.
        changes.threads += 1;
        drop(changes);
        help::ask();
        changes = self.changes();
        while must(&changes) {
            changes = self.ended.wait(changes).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        changes.threads -= 1;
    }

    /// Whether a thread or future waits for a change to end.
    pub(crate) fn is_awaited(&self) -> bool {
        let changes = self.changes();
        changes.threads > 0 || changes.syncing || !changes.wakers.is_empty()
    }

    /// Waits until all that has begun by now has ended.
    pub(crate) fn settle(&self) {
        let below = self.changes().next;
        self.sleep_while(|changes| changes.live.iter().any(|change| change.number < below));
    }
}

/// A thread's turn to make a change.
pub(crate) struct Turn<'o> {
    outstanding: &'o Outstanding,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.outstanding.leave(self.number, false);
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
        let live = changes.live.iter().any(|change| change.number < below);
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
            help::ask();
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
