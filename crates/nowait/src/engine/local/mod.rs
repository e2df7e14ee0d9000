//! The queue of a thread that blocks: submit and wait in one system call, no other thread, no lock.
//!
//! [`drive`] polls a future on the caller's thread and stages its submissions in this thread's own
//! ring (COOP_TASKRUN). When nothing is left to poll, one `io_uring_enter` submits the staged
//! entries and waits for the first completion. Many operations in flight cost no more than in a
//! hand-written loop.
//!
//! Some entries leave before that call. The kernel holds a submission of many back ("plugged",
//! `io_submit_state_start` in io_uring/io_uring.c, 6.18) until its last entry is prepared; a device
//! that completes its reads in one interrupt idles meanwhile. So after each wait the first entry
//! leaves alone, and each later submission carries twice as many and one more: the device works on
//! one while the next is prepared, with few calls and doorbells. On a virtio disk this was level
//! with submissions in pairs, for a tenth less processor time at depth 32 and 128. It was a quarter
//! faster than a single submission at depth 16 and 32.
//!
//! Of many buffered reads of one file the ring has one; the others are announced to the kernel and
//! collected when that one has ended (`queue/announced.rs`).
//!
//! A request of 64 KiB and more leaves at once: one task may compute for long before the root future
//! is pending.
//!
//! Where io_uring is refused, direct I/O goes to a context of libaio instead: one `io_submit` for
//! all staged entries, and `io_getevents` to wait. No entry leaves early there: that cost an eighth
//! more processor time at depth 32, and lost more often than it won.
//!
//! A queue is made on first use and kept for the thread. Wakers may be called from any thread: one
//! that sleeps in its queue is woken by an eventfd which the queue polls, a parked one is unparked,
//! one that is awake finds a flag. A thread can sleep in one queue only: while it has operations in
//! one, the other leaves new ones to the shared engines.
//!
//! A thread that computes, or blocks elsewhere, does not serve its queue. If others wait for an
//! operation there, a helper serves the queue instead (`op/help.rs`). The helper also ends what is
//! left when `drive` returns or the thread ends: operations that were abandoned, or whose futures
//! moved to another thread. Hence the lock around the queue.
//!
//! The rooms, each using those before it: `bell.rs` wakes a thread; `queue.rs` is its queue over
//! the kernel's, which is a ring (`ring.rs`) or a context (`context.rs`); `desk.rs` shares the
//! queue with a helper; this file drives futures with them.

mod bell;
mod context;
mod desk;
mod queue;
mod ring;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use self::bell::{Bell, IN_QUEUE, Kept, Notice, PARKED};
use self::context::OwnContext;
use self::desk::State;
use self::queue::{Owned, Queue};
use self::ring::OwnRing;
use crate::op::help::{self, Helped};
use crate::op::{OpenFile, Slot};
use crate::sys::PerProcess;
use crate::turn;

struct Local {
    /// `drive` calls under way on this thread.
    depth: Cell<u32>,
    ring: RefCell<State<OwnRing>>,
    aio: RefCell<State<OwnContext>>,
    /// A slot was staged since the last `drive` ended.
    staged: Cell<bool>,
    bell: PerProcess<Arc<Bell>>,
    kept: PerProcess<Cell<Option<Kept>>>,
    /// Its submissions go to queues that complete without its polls.
    elsewhere: Cell<bool>,
    /// Called before the thread sleeps, or blocks elsewhere.
    due: Cell<Option<fn()>>,
}

thread_local!(static LOCAL: Local = const {
    Local {
        depth: Cell::new(0),
        ring: RefCell::new(State::New),
        aio: RefCell::new(State::New),
        staged: Cell::new(false),
        bell: PerProcess::new(),
        kept: PerProcess::new(),
        elsewhere: Cell::new(false),
        due: Cell::new(None),
    }
});

/// The queues of a thread, one of each kind.
trait Mine: Queue {
    /// This thread's queue of this kind.
    fn mine(local: &Local) -> &RefCell<State<Self>>;
    /// There is nothing in this thread's queue of the other kind.
    fn is_alone(local: &Local) -> bool;
}

impl Mine for OwnRing {
    fn mine(local: &Local) -> &RefCell<State<Self>> {
        &local.ring
    }

    fn is_alone(local: &Local) -> bool {
        local.aio.borrow().is_idle()
    }
}

impl Mine for OwnContext {
    fn mine(local: &Local) -> &RefCell<State<Self>> {
        &local.aio
    }

    fn is_alone(local: &Local) -> bool {
        local.ring.borrow().is_idle()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        fn leave<Q: Queue>(state: &mut State<Q>) {
            if let State::Ready(desk) = std::mem::replace(state, State::Refused) {
                if desk.is_ours() {
                    desk.leave();
                } else {
                    // The parent's.
                    std::mem::forget(desk);
                }
            }
        }
        leave(self.ring.get_mut());
        leave(self.aio.get_mut());
    }
}

/// Stages a slot in this thread's ring; returns it if the thread drives none.
pub(crate) fn stage(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    stage_in::<OwnRing>(slot)
}

/// Stages a slot in this thread's context of libaio; returns it if the thread drives none.
pub(crate) fn stage_direct(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    stage_in::<OwnContext>(slot)
}

fn stage_in<Q: Mine>(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    let mut slot = Some(slot);
    let _ = LOCAL.try_with(|local| {
        if local.depth.get() > 0 && Q::is_alone(local) {
            if let Some(mut owned) = Q::mine(local).borrow_mut().make(&local.bell).filter(|owned| !owned.dead) {
                owned.turns += 1;
                local.staged.set(true);
                slot.take().into_iter().for_each(|slot| owned.accept(slot));
                help::watch();
            }
        }
    });
    slot.map_or(Ok(()), Err)
}

/// Whether a buffered read of `file` that is announced to the kernel now, and staged then, is
/// collected from this thread's ring without an entry of its own.
pub(crate) fn takes_announced(file: &Arc<OpenFile>) -> bool {
    let takes = |local: &Local| {
        local.depth.get() > 0
            && OwnRing::mine(local)
                .try_borrow()
                .is_ok_and(|state| state.get().is_some_and(|mut owned| owned.takes_announced(Arc::as_ptr(file).addr())))
    };
    LOCAL.try_with(takes).unwrap_or(false)
}

/// Runs a future to its end on this thread; see the module's text.
pub(crate) fn drive<F: Future>(future: F) -> F::Output {
    // A tokio task may have used up its budget, and tokio wakes those it turned away when the task
    // ends: after us.
    #[cfg(feature = "tokio")]
    let future = tokio::task::coop::unconstrained(future);
    let _driving = Driving::new();
    let new = |local: &Local| Kept::new(local.bell.get(Bell::new).clone());
    let kept = LOCAL.try_with(|local| local.kept.get(Cell::default).take().unwrap_or_else(|| new(local)));
    let kept = kept.unwrap_or_else(|_| Kept::new(Bell::new()));
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
fn poll_to_end<F: Future>(future: F, Kept { notice, waker }: &Kept) -> F::Output {
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

/// Runs `something` as if this thread drove nothing and worked for no runtime: submissions go to
/// queues that complete them whatever this thread does.
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

/// Calls `work` once, before this thread, which drives a future, sleeps or blocks elsewhere. There
/// is one kind of such work.
pub(crate) fn before_sleep(work: fn()) {
    let _ = LOCAL.try_with(|local| local.due.set(Some(work)));
}

/// Does deferred work. Staged entries are submitted first: the device works on them meanwhile.
pub(crate) fn do_what_is_due() {
    let Some(work) = LOCAL.try_with(|local| local.due.take()).unwrap_or(None) else { return };
    submit_own::<OwnRing>(|owned| owned.staged > 0);
    submit_own::<OwnContext>(|owned| owned.staged > 0);
    work();
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
            do_what_is_due();
            if LOCAL.try_with(|local| local.staged.take()).unwrap_or(false) {
                leave_to_helper::<OwnRing>();
                leave_to_helper::<OwnContext>();
            }
            // What the thread has waited for is no task's turn.
            turn::begin();
        }
        let _ = LOCAL.try_with(|local| local.depth.set(local.depth.get() - 1));
        turn::drives(self.outer);
    }
}

/// Submits what is staged in this thread's queues, and settles completions there, without waiting:
/// between two turns of what its future polls.
fn notice_own() {
    fn notice<Q: Mine>() {
        visit::<Q>(|owned| {
            if owned.in_flight() == 0 {
                return false;
            }
            if owned.staged > 0 {
                owned.submit();
            }
            owned.look();
            !owned.completions.is_empty()
        });
    }
    notice::<OwnRing>();
    notice::<OwnContext>();
}

/// Has a helper end the operations left in this thread's queue.
fn leave_to_helper<Q: Mine>() {
    let _ = LOCAL.try_with(|local| {
        let state = Q::mine(local).borrow();
        if let Some(owned) = state.get().filter(|owned| owned.is_busy()) {
            // The claim's drop tells the helper.
            owned.desk.want();
        }
    });
}

/// Waits, after a pending poll, until something may have changed.
fn turn(notice: &Notice) {
    do_what_is_due();
    if sleep_in::<OwnRing>(notice) || sleep_in::<OwnContext>(notice) {
        return;
    }
    while notice.falls_asleep(PARKED) {
        let alone = help::when_alone();
        match alone {
            Some(after) => std::thread::park_timeout(after),
            None => std::thread::park(),
        }
        notice.bell.awake();
        if alone.is_some() {
            help::ask();
        }
    }
}

/// Waits in this thread's queue until something may have changed; false if it has nothing in
/// flight.
fn sleep_in<Q: Mine>(notice: &Notice) -> bool {
    enter::<Q>(|owned| {
        (owned.in_flight() > 0).then(|| {
            owned.poll_bell();
            if notice.falls_asleep(IN_QUEUE) { 1 } else { 0 }
        })
    })
}

/// Waits until nothing is in flight in this thread's queues, abandoned operations included.
pub(crate) fn drain() {
    do_what_is_due();
    while enter::<OwnRing>(|owned| (owned.in_flight() > 0).then_some(1))
        || enter::<OwnContext>(|owned| (owned.in_flight() > 0).then_some(1))
    {}
}

/// Submits all staged entries of this thread without waiting, before it blocks in another call.
#[inline]
pub(crate) fn flush() {
    #[cold]
    fn flush_now() {
        do_what_is_due();
        submit_own::<OwnRing>(|_| true);
        submit_own::<OwnContext>(|_| true);
    }
    // Most threads drive no future: they have staged and deferred nothing.
    if LOCAL.try_with(|local| local.depth.get() > 0 || local.due.get().is_some()).unwrap_or(false) {
        flush_now();
    }
}

fn submit_own<Q: Mine>(needs: impl FnOnce(&Owned<Q>) -> bool) {
    let _ = LOCAL.try_with(|local| {
        if local.depth.get() > 0 {
            if let Ok(state) = Q::mine(local).try_borrow() {
                if let Some(mut owned) = state.get().filter(|owned| needs(owned)) {
                    owned.submit();
                }
            }
        }
    });
}

/// Enters this thread's queue, if there is one and `want` gives a number of completions to wait
/// for; then settles completions.
fn enter<Q: Mine>(want: impl FnOnce(&mut Owned<Q>) -> Option<usize>) -> bool {
    visit::<Q>(|owned| {
        let Some(want) = want(owned) else { return false };
        let patience = owned.patience();
        owned.enter(want, patience);
        true
    })
}

/// Looks at this thread's queue, if there is one; if `look` says so, settles completions. Wakers run
/// with nothing borrowed: they may do anything, including this.
fn visit<Q: Mine>(look: impl FnOnce(&mut Owned<Q>) -> bool) -> bool {
    LOCAL
        .try_with(|local| {
            let (desk, mut completions) = {
                let state = Q::mine(local).borrow();
                let State::Ready(desk) = &*state else { return false };
                let Some(mut owned) = state.get() else { return false };
                if !look(&mut owned) {
                    return false;
                }
                owned.relieve_line();
                owned.bell.awake();
                owned.fill();
                (desk.clone(), desk.take_completions(&mut owned))
            };
            turn::wakes(completions.len());
            desk.settle(&mut completions, |again| desk.claim().accept(again));
            let mut owned = desk.claim();
            if owned.completions.capacity() == 0 {
                owned.completions = completions;
            }
            true
        })
        .unwrap_or(false)
}
