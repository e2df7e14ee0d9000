//! The thread that blocks: it submits and waits in one system call of the thread's ring.
//!
//! [`drive`] polls a future on the caller's thread and stages its submissions in this thread's own
//! ring (COOP_TASKRUN). When nothing is left to poll, one `io_uring_enter` submits the staged
//! entries and waits for the first completion. Many operations in flight cost no more than in a
//! hand-written loop.
//!
//! The ring is made on first use and kept for the thread. Any thread may call the wakers. A thread
//! that sleeps in its ring is woken by an eventfd that the ring polls; a parked thread is unparked;
//! a thread that is awake checks a flag.
//!
//! A thread that computes, or blocks elsewhere, does not serve its ring. If others wait for an
//! operation there, a watcher serves the ring instead (`op/watcher`). It also ends what is
//! left when `drive` returns or the thread ends: operations that were abandoned, or whose futures
//! moved to another thread.
//!
//! `bell.rs` wakes a thread; `own.rs` shares its ring with a watcher; this file drives futures.

mod bell;
mod own;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use self::bell::{Bell, DriveWaker, KeptWaker, PARKED};
use self::own::{Own, OwnRing};
use crate::op::watcher;
use crate::op::{OpenFile, Slot};
use crate::sys::PerProcess;
use crate::turn;

struct Local {
    /// `drive` calls under way on this thread.
    depth: Cell<u32>,
    own: RefCell<OwnRing>,
    /// A slot was staged since the last `drive` ended.
    staged: Cell<bool>,
    bell: PerProcess<Arc<Bell>>,
    kept: PerProcess<Cell<Option<KeptWaker>>>,
    /// Its submissions go to queues that complete without its polls.
    elsewhere: Cell<bool>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            depth: Cell::new(0),
            own: RefCell::new(OwnRing::New),
            staged: Cell::new(false),
            bell: PerProcess::new(),
            kept: PerProcess::new(),
            elsewhere: Cell::new(false),
        }
    };
    /// Operations may be in flight in the thread's ring. Each plain call looks here: without a
    /// destructor, that is one load.
    static MAY_HAVE_IN_FLIGHT: Cell<bool> = const { Cell::new(false) };
}

impl Drop for Local {
    fn drop(&mut self) {
        if let OwnRing::Ready(own) = std::mem::replace(self.own.get_mut(), OwnRing::Refused(None)) {
            if own.is_ours() {
                own.leave();
            } else {
                // The parent's.
                std::mem::forget(own);
            }
        }
    }
}

/// This thread's ring, if it has one.
fn own() -> Option<Arc<Own>> {
    LOCAL.try_with(|local| local.own.borrow().get().cloned()).ok().flatten()
}

/// Stages a slot in this thread's ring; returns it if the thread drives nothing, or cannot have one.
pub(crate) fn stage(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    let make = |local: &Local| {
        let bell = || local.bell.get(Bell::new).clone();
        let own = (local.depth.get() > 0).then(|| local.own.borrow_mut().make(bell).cloned()).flatten();
        if own.is_some() {
            local.staged.set(true);
            MAY_HAVE_IN_FLIGHT.set(true);
        }
        own
    };
    match LOCAL.try_with(make).ok().flatten() {
        Some(own) => own.stage(slot),
        None => Err(slot),
    }
}

/// Whether a buffered read of `file` that is announced to the kernel now, and staged then, is
/// collected from this thread's ring without a separate entry.
pub(crate) fn takes_announced(file: &Arc<OpenFile>) -> bool {
    is_driving() && own().is_some_and(|own| own.takes_announced(Arc::as_ptr(file).addr()))
}

/// Runs a future to its end on this thread; see the module's text.
pub(crate) fn drive<F: Future>(future: F) -> F::Output {
    // A tokio task may have used up its budget, and tokio wakes those it turned away when the task
    // ends: after us.
    #[cfg(feature = "tokio")]
    let future = tokio::task::coop::unconstrained(future);
    let _driving = Driving::new();
    let new = |local: &Local| KeptWaker::new(local.bell.get(Bell::new).clone());
    let kept = LOCAL.try_with(|local| local.kept.get(Cell::default).take().unwrap_or_else(|| new(local)));
    let kept = kept.unwrap_or_else(|_| KeptWaker::new(Bell::new()));
    // The future is gone afterwards: operations it leaves behind are not wanted any more.
    let output = poll_to_end(future, &kept);
    let _ = LOCAL.try_with(|local| {
        // Not one of the parent, in a child that the future forked.
        let is_own = Arc::ptr_eq(&kept.notice.bell, local.bell.get(Bell::new));
        local.kept.get(Cell::default).set(kept.renew().filter(|_| is_own));
    });
    output
}

#[inline(always)]
fn poll_to_end<F: Future>(future: F, KeptWaker { notice, waker }: &KeptWaker) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        turn(notice);
        notice.forget();
    }
}

/// Whether this thread drives a future.
pub(crate) fn is_driving() -> bool {
    LOCAL.try_with(|local| local.depth.get() > 0).unwrap_or(false)
}

/// Runs `something` as if this thread drove nothing and worked for no runtime. Its submissions go
/// to queues that complete independently of this thread.
pub(crate) fn elsewhere<T>(something: impl FnOnce() -> T) -> T {
    driving_nothing(true, something)
}

/// Runs `something` as if this thread drove nothing.
pub(super) fn undriven<T>(something: impl FnOnce() -> T) -> T {
    driving_nothing(false, something)
}

fn driving_nothing<T>(elsewhere: bool, something: impl FnOnce() -> T) -> T {
    struct Back(u32, bool);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = LOCAL.try_with(|local| (local.depth.set(self.0), local.elsewhere.set(self.1)));
        }
    }
    let before = LOCAL.try_with(|local| (local.depth.replace(0), local.elsewhere.replace(elsewhere)));
    let _back = before.map(|(depth, elsewhere)| Back(depth, elsewhere)).ok();
    something()
}

/// Whether this thread's submissions bypass its runtime's rings, and those of a loop.
pub(crate) fn is_elsewhere() -> bool {
    LOCAL.try_with(|local| local.elsewhere.get()).unwrap_or(true)
}

/// Marks this thread as driving while it lives, also if the future panics.
struct Driving {
    /// Noted by the drive of an outer future, and put back at the end.
    outer: Option<turn::NoticeOwn>,
}

impl Driving {
    fn new() -> Driving {
        let _ = LOCAL.try_with(|local| local.depth.set(local.depth.get() + 1));
        Driving { outer: turn::drives(Some(notice_own)) }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let last = LOCAL.try_with(|local| local.depth.get() == 1).unwrap_or(false);
        if last {
            if LOCAL.try_with(|local| local.staged.take()).unwrap_or(false) {
                own().into_iter().for_each(Own::leave_to_watcher);
            }
            // What the thread has waited for is no task's turn.
            turn::begin();
        }
        let _ = LOCAL.try_with(|local| local.depth.set(local.depth.get() - 1));
        turn::drives(self.outer);
    }
}

/// Submits what is staged in this thread's ring, and settles completions there, without waiting:
/// between two turns of what its future polls.
fn notice_own() {
    own().iter().for_each(|own| own.look());
}

/// Waits, after a pending poll, until something may have changed.
fn turn(notice: &DriveWaker) {
    if own().is_some_and(|own| own.sleep(notice)) {
        return;
    }
    while notice.falls_asleep(PARKED) {
        let alone = watcher::when_alone();
        match alone {
            Some(after) => std::thread::park_timeout(after),
            None => std::thread::park(),
        }
        notice.bell.awake();
        if alone.is_some() {
            watcher::ask();
        }
    }
}

/// Waits until nothing is in flight in this thread's ring, abandoned operations included.
pub(crate) fn drain() {
    while own().is_some_and(|own| own.drain()) {}
}

/// Whether operations are in flight in this thread's ring. They complete as this thread enters the
/// kernel or sleeps there interruptibly. A plain call of this thread may sleep uninterruptibly, for
/// a device that does not answer: the pool makes it, while this thread waits in its ring.
#[inline]
pub(crate) fn has_in_flight() -> bool {
    #[cold]
    fn ask_ring() -> bool {
        let has = own().is_some_and(|own| own.has_in_flight());
        MAY_HAVE_IN_FLIGHT.set(has);
        has
    }
    MAY_HAVE_IN_FLIGHT.get() && ask_ring()
}
