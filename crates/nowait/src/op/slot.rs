//! An operation while an engine has it.
//!
//! # The life of a slot
//!
//! An operation that is served inline never has a slot. Any other is moved, with its buffer and a
//! share of the file, into a slot that two parties share: the future, and the engine. From then on
//! the caller owns no memory to which the kernel may write. So safety needs no destructor: a future
//! may be dropped, or leaked.
//!
//! 1. **Waiting**: the engine has it (queued, or given to the kernel). The future has left a waker.
//! 2. **Finished**: the slot contains outcome and buffer, and no longer keeps the file open.
//! 3. **Taken**: the future has taken outcome and buffer.
//!
//! A future dropped in *Waiting* makes the slot **Abandoned**: the thread that takes it off a queue
//! discards it. If the kernel already has the request, the slot is freed at the completion. If the
//! future is leaked instead, the slot's memory stays allocated.
//!
//! A short transfer stays in *Waiting*: the engine passes each result to [`Slot::complete`], which
//! returns whether the rest must go to the kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use crate::sys::Errno;

use super::batch::Batch;
use super::clock::Held;
use super::device::OnDevice;
use super::file::{Fallback, IN_QUEUE, ON_THREAD, OpenFile, Permit, in_queues};
use super::leftovers::{Leftovers, Unwanted, let_go};
use super::owner::{Owner, Work};
use super::request::{Done, Outcome, Request};
use super::transfer::{NextStep, step};
use super::watcher;
use crate::buf::Direction;
use crate::stats::{Count, thread_number};
use crate::sync::contained;
use crate::sync::loomed::{Mutex, MutexGuard, lock};

/// Called once, by the thread that ends the operation, with no lock held. It does not panic, and runs
/// a user's code only where that thread may ([`crate::sys::calls_back`]).
pub(crate) type Callback = Box<dyn FnOnce(Outcome, Request) + Send>;

/// The party to notify when a slot is finished.
pub(crate) enum Notify {
    Waker(Waker),
    /// The batch that it belongs to, and its number there.
    Batch(Arc<Batch>, usize),
    /// Called with the outcome, which is then not stored in the slot.
    Call(Callback),
    /// No future is left: the operation runs for its effect only.
    Nobody,
}

impl Notify {
    fn tell(self) {
        contained(|| match self {
            Notify::Waker(waker) => waker.wake(),
            Notify::Batch(batch, number) => batch.add(number),
            Notify::Call(_) | Notify::Nobody => {}
        });
    }
}

enum Stage {
    Waiting(Notify),
    Abandoned,
    Finished(Outcome),
    Taken,
}

/// An operation while an engine has it; see the module's text.
pub(crate) struct Slot(Mutex<SlotInner>);

struct SlotInner {
    stage: Stage,
    /// The thread that submitted, whose own queue may have it.
    thread: usize,
    /// Belongs to the engine until the slot is finished, then to the future. It is not moved: the
    /// kernel may have its address.
    request: Option<Request>,
    /// Absent once the slot is finished, so that nothing keeps the file open for a future that is
    /// never polled; and while an engine has taken the work out.
    owner: Option<Owner>,
    /// Weight with which it counts as begun, from when a thread or the kernel takes it until it
    /// ends.
    begun: u64,
    /// Whether it counts as under way on its device: since it began, or was announced.
    on_device: Option<OnDevice>,
    /// Dropped when the slot is finished or discarded.
    held: Option<Permit>,
    /// Dropped when the waiting party has been notified.
    clock: Option<Held>,
}

impl SlotInner {
    /// Counts it on its device, if the device sees it.
    fn enters_device(&mut self) {
        let Some(Owner::File(file)) = &self.owner else { return };
        let direct_bytes = match &self.request {
            Some(Request::Read(transfer) | Request::Write(transfer, _)) if file.is_direct() => transfer.left(),
            Some(Request::Read(_)) => 0,
            _ => return,
        };
        if self.on_device.is_none() {
            self.on_device = Some(file.device().begins(direct_bytes));
        }
    }

    /// Records whether a ring served a non-blocking attempt.
    fn rang(&self, served: bool) {
        let (direction, transfer) = match &self.request {
            Some(Request::Read(transfer)) => (Direction::Read, transfer),
            Some(Request::Write(transfer, _)) => (Direction::Write, transfer),
            _ => return,
        };
        if let (true, Some(Owner::File(file))) = (transfer.attempt, &self.owner) {
            file.rings(direction).rang(served);
        }
    }
}

/// Properties that decide when a slot's entry is submitted.
#[derive(Default)]
pub(crate) struct Profile {
    /// The transfer is long, so its entry is submitted at once, with all staged ones. The system
    /// call costs little in comparison, and its task may compute for long next.
    pub(crate) is_long: bool,
    /// The address of the file of a buffered read, and whether it was announced to the kernel
    /// (`Transfer::announced`).
    pub(crate) buffered_read: Option<(usize, bool)>,
    /// Its device is full.
    pub(crate) is_excess: bool,
}

impl Slot {
    pub(crate) fn new(request: Request, owner: Owner, notify: Notify) -> Arc<Slot> {
        Slot::with_permit(request, owner, notify, None)
    }

    /// Makes one that keeps a permit until it is finished or discarded.
    pub(crate) fn with_permit(request: Request, owner: Owner, notify: Notify, held: Option<Permit>) -> Arc<Slot> {
        owner.counters().add(Count::Submitted);
        let mut inner = SlotInner {
            stage: Stage::Waiting(notify),
            thread: thread_number(),
            request: Some(request),
            owner: Some(owner),
            begun: 0,
            on_device: None,
            held,
            clock: Some(Held::here()),
        };
        if matches!(&inner.request, Some(Request::Read(transfer)) if transfer.announced) {
            inner.enters_device();
        }
        Arc::new(Slot(Mutex::new(inner)))
    }

    /// Keeps a permit until the slot is finished or discarded.
    pub(crate) fn hold(&self, held: Permit) {
        let mut inner = lock(&self.0);
        if inner.owner.is_some() {
            inner.held = Some(held);
            return;
        }
        // The operation has ended meanwhile.
        drop(inner);
        drop(held);
    }

    /// Engine: counts something about a slot that it has.
    pub(crate) fn count(&self, count: Count) {
        if let Some(owner) = &lock(&self.0).owner {
            owner.counters().add(count);
        }
    }

    /// Engine: gives it up, to be handed on. Returns the pools that take it; none if it has ended.
    pub(crate) fn hand_on(&self) -> Option<Arc<dyn Fallback>> {
        let inner = &mut *lock(&self.0);
        let owner = inner.owner.as_ref()?;
        owner.counters().add(Count::HandedOn);
        Some(match owner {
            Owner::File(file) => {
                file.begun.fetch_sub(std::mem::take(&mut inner.begun), Relaxed);
                inner.on_device = None;
                file.fallback.clone()
            }
            Owner::Nobody(_, pools) => pools.clone(),
        })
    }

    /// Engine: a ring has refused it.
    pub(crate) fn refused(&self, errno: Errno) {
        if matches!(errno, Errno::AGAIN | Errno::OPNOTSUPP) {
            lock(&self.0).rang(false);
        }
    }

    /// Engine: looks at the work. The lock is uncontended but for the moment in which a future is
    /// dropped or changes its waker.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Request, &Owner) -> T) -> Option<T> {
        let inner = lock(&self.0);
        Some(look(inner.request.as_ref()?, inner.owner.as_ref()?))
    }

    /// As [`Slot::with`]; none if the slot was abandoned.
    pub(crate) fn with_wanted<T>(&self, look: impl FnOnce(&Request) -> T) -> Option<T> {
        let inner = lock(&self.0);
        if matches!(inner.stage, Stage::Abandoned) {
            return None;
        }
        inner.request.as_ref().map(look)
    }

    /// Passes the left writes of its file to the pool.
    pub(crate) fn hand_over_left(&self) {
        let queues = self.with(|_, owner| owner.file().map(|file| file.queues().clone())).flatten();
        queues.iter().for_each(|queues| queues.hand_over_left());
    }

    /// Engine: takes the work out, to do it without holding the lock. None if it was abandoned:
    /// that ends it here, so the thread must be one that may wait.
    pub(crate) fn take_work(&self) -> Option<Work> {
        let mut inner = lock(&self.0);
        if matches!(inner.stage, Stage::Abandoned) {
            drop(inner);
            drop(self.discard());
            return None;
        }
        begin(&mut inner, ON_THREAD);
        Some(Work { owner: inner.owner.take()?, request: inner.request.take()? })
    }

    /// Engine: begins it, and encodes it for the kernel by `look`. None: the slot is to be handed
    /// on.
    pub(crate) fn begin<T>(&self, look: impl FnOnce(&Request, &Owner) -> Option<T>) -> Option<T> {
        let mut inner = lock(&self.0);
        begin(&mut inner, IN_QUEUE);
        look(inner.request.as_ref()?, inner.owner.as_ref()?)
    }

    /// Whether its file has fewer than `busy` operations in queues to the kernel.
    pub(crate) fn is_below(&self, busy: u32) -> bool {
        let is_below = |file: &Arc<OpenFile>| in_queues(file.begun.load(Relaxed)) < busy;
        self.with(|_, owner| owner.file().is_none_or(is_below)) == Some(true)
    }

    /// Engine: returns the properties that decide when its entry is submitted.
    pub(crate) fn profile(&self) -> Profile {
        let look = |request: &Request, owner: &Owner| Profile {
            is_long: match request {
                Request::Read(transfer) | Request::Write(transfer, _) => transfer.is_long(),
                _ => false,
            },
            buffered_read: match (request, owner) {
                (Request::Read(transfer), Owner::File(file)) if file.direct.is_none() => {
                    Some((Arc::as_ptr(file).addr(), transfer.announced))
                }
                _ => None,
            },
            is_excess: owner.file().is_some_and(|file| file.device().is_full()),
        };
        self.with(look).unwrap_or_default()
    }

    /// Engine: puts back what `take_work` gave.
    pub(crate) fn put_back(&self, work: Work) {
        let mut inner = lock(&self.0);
        (inner.request, inner.owner) = (Some(work.request), Some(work.owner));
    }

    /// Engine: whether it is a read that was announced to the kernel (`Transfer::announced`).
    pub(crate) fn is_announced(&self) -> bool {
        self.with(|request, _| matches!(request, Request::Read(transfer) if transfer.announced)) == Some(true)
    }

    /// Whether its future was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(lock(&self.0).stage, Stage::Abandoned)
    }

    /// Returns whether its future was dropped and nothing waits for its end. A slot with a permit
    /// is never unwanted: returning the permit admits others, which no engine does under its lock.
    pub(crate) fn is_unwanted(&self) -> bool {
        let inner = lock(&self.0);
        matches!(inner.stage, Stage::Abandoned) && inner.held.is_none()
    }

    /// Engine: ends an abandoned slot that was taken off a queue before the kernel had it.
    pub(crate) fn discard(&self) -> Leftovers {
        let inner = lock(&self.0);
        match (&inner.stage, &inner.owner) {
            (Stage::Abandoned, Some(_)) => finish(inner, Err(Errno::CANCELED), Count::Failed),
            _ => Leftovers::default(),
        }
    }

    /// Engine: takes a transfer's result into account, and finishes the slot. None if the rest of
    /// it must go to the kernel.
    pub(crate) fn complete(&self, result: Result<usize, Errno>, served: Count) -> Option<Leftovers> {
        let mut inner = lock(&self.0);
        if result.is_ok() {
            inner.rang(true);
        }
        let step = match &mut inner.request {
            Some(Request::Read(transfer) | Request::Write(transfer, _)) => step(transfer, result),
            _ => NextStep::Finish(result.map(drop)),
        };
        match (step, &inner.stage) {
            (NextStep::Again, Stage::Waiting(_)) => None,
            (NextStep::Again, _) => Some(finish(inner, Ok(Done::Nothing), served)),
            (NextStep::Finish(end), _) => Some(finish(inner, end.map(|()| Done::Nothing), served)),
        }
    }

    /// Engine: finishes the slot, counted as `served`. Notifies its party after the lock is
    /// released.
    pub(crate) fn finish(&self, outcome: Outcome, served: Count) -> Leftovers {
        finish(lock(&self.0), outcome, served)
    }

    /// Future: the outcome and the request once it is finished; until then leaves the waker.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<(Outcome, Request)> {
        let mut inner = lock(&self.0);
        if let Stage::Waiting(notify) = &inner.stage {
            if matches!(notify, Notify::Waker(waker) if waker.will_wake(context.waker())) {
                return Poll::Pending;
            }
            // A waker's clone and drop may run anything: not under the lock.
            drop(inner);
            let new = Notify::Waker(context.waker().clone());
            inner = lock(&self.0);
            if let Stage::Waiting(notify) = &mut inner.stage {
                let old = std::mem::replace(notify, new);
                let has_moved = std::mem::replace(&mut inner.thread, thread_number()) != thread_number();
                drop(inner);
                if has_moved {
                    watcher::ask();
                }
                drop(old);
                return Poll::Pending;
            }
        }
        match &mut inner.stage {
            Stage::Waiting(_) => Poll::Pending,
            _ => match take(&mut inner) {
                Some(taken) => Poll::Ready(taken),
                None => unreachable!("a slot is not polled after its result was taken"),
            },
        }
    }

    /// The outcome and the request, once it is finished.
    pub(crate) fn take(&self) -> Option<(Outcome, Request)> {
        take(&mut lock(&self.0))
    }

    /// Future: gives it up for a callback, which is called here if it is finished already.
    pub(crate) fn call_back(&self, call: Callback) {
        let mut inner = lock(&self.0);
        if let Stage::Waiting(notify) = &mut inner.stage {
            let old = std::mem::replace(notify, Notify::Call(call));
            drop(inner);
            // The thread whose own queue may have it has no reason to look there.
            watcher::ask();
            // A waker's drop may run anything.
            drop(old);
            return;
        }
        let taken = take(&mut inner);
        drop(inner);
        if let Some((outcome, request)) = taken {
            call(outcome, request);
        }
    }

    /// Future: gives it up. A hint only: the kernel finishes what it has.
    pub(crate) fn abandon(&self) {
        self.leave(Stage::Abandoned);
    }

    /// Future: gives up the result. The operation ends all the same.
    pub(crate) fn detach(&self) {
        self.leave(Stage::Waiting(Notify::Nobody));
    }

    fn leave(&self, stage: Stage) {
        let mut inner = lock(&self.0);
        match inner.stage {
            Stage::Waiting(_) => {
                let old = std::mem::replace(&mut inner.stage, stage);
                drop(inner);
                drop(old);
            }
            Stage::Abandoned | Stage::Taken => {}
            // Dropped here, by the caller's thread, and not by the engine, whose share may be the
            // last.
            Stage::Finished(_) => {
                let taken = take(&mut inner);
                drop(inner);
                drop(taken);
            }
        }
    }
}

impl Drop for Slot {
    /// Normally nothing is left. A slot that its engine drops unfinished, at its own end, has a
    /// buffer and a waker.
    fn drop(&mut self) {
        let inner = self.0.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if inner.request.is_some() {
            inner.request.take().into_iter().for_each(let_go);
        }
        if matches!(inner.stage, Stage::Waiting(_)) {
            let stage = std::mem::replace(&mut inner.stage, Stage::Taken);
            contained(|| drop(stage));
        }
    }
}

fn begin(inner: &mut SlotInner, counts: u64) {
    if let (0, Some(Owner::File(file))) = (inner.begun, &inner.owner) {
        file.begun.fetch_add(counts, Relaxed);
        inner.begun = counts;
        inner.enters_device();
    }
}

fn finish(mut inner: MutexGuard<'_, SlotInner>, outcome: Outcome, served: Count) -> Leftovers {
    let Some(owner) = inner.owner.take() else {
        debug_assert!(false, "a slot finishes once, and with its work put back");
        return Leftovers::default();
    };
    if let (Owner::File(file), 1..) = (&owner, inner.begun) {
        file.begun.fetch_sub(inner.begun, Relaxed);
    }
    inner.on_device = None;
    if let (Owner::File(file), Some(request)) = (&owner, &inner.request) {
        file.note_answer(request, &outcome);
    }
    let held = inner.held.take();
    let clock = inner.clock.take();
    let stage = std::mem::replace(&mut inner.stage, Stage::Taken);
    // Counted before the result can be seen, so that the counters never lag behind a caller's
    // knowledge.
    owner.counters().add(match &stage {
        Stage::Waiting(_) if outcome.is_ok() => served,
        Stage::Waiting(_) => Count::Failed,
        Stage::Abandoned | Stage::Finished(_) | Stage::Taken => Count::Cancelled,
    });
    let is_wanted = matches!(&stage, Stage::Waiting(notify) if !matches!(notify, Notify::Nobody));
    let home = (!is_wanted).then(|| owner.home());
    // The file is released first, too, so that `File::close` after the last result closes it.
    let file = owner.give_up();
    match stage {
        Stage::Waiting(Notify::Call(call)) => {
            let request = inner.request.take();
            drop(inner);
            drop(held);
            if let Some(request) = request {
                let _followed = clock.as_ref().map(Held::follow);
                call(outcome, request);
            }
            Leftovers { file, unwanted: None, home }
        }
        Stage::Waiting(notify) if !matches!(notify, Notify::Nobody) => {
            inner.stage = Stage::Finished(outcome);
            drop(inner);
            drop(held);
            notify.tell();
            Leftovers { file, unwanted: None, home }
        }
        _ => {
            let request = inner.request.take();
            drop(inner);
            drop(held);
            Leftovers { file, unwanted: request.map(|request| Box::new(Unwanted::Answer(request, outcome))), home }
        }
    }
}

fn take(inner: &mut SlotInner) -> Option<(Outcome, Request)> {
    if !matches!(inner.stage, Stage::Finished(_)) {
        return None;
    }
    match (std::mem::replace(&mut inner.stage, Stage::Taken), inner.request.take()) {
        (Stage::Finished(outcome), Some(request)) => Some((outcome, request)),
        _ => None,
    }
}

/// Every order in which an engine and a future can meet over a slot.
#[cfg(all(test, nowait_loom))]
mod loom_tests {
    use super::*;
    use crate::op::fixture::{Wakes, slot};
    use std::sync::atomic::Ordering;

    #[test]
    fn no_wake_up_is_lost_while_the_waker_changes() {
        loom::model(|| {
            let (first, second) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
            let (slot, _) = slot(Notify::Waker(Waker::from(first.clone())));
            let engine = slot.clone();
            let thread = loom::thread::spawn(move || drop(engine.finish(Ok(Done::Nothing), Count::Ring)));
            let ready = slot.poll(&mut Context::from_waker(&Waker::from(second.clone()))).is_ready();
            thread.join().unwrap();
            let woken = second.0.load(Ordering::SeqCst);
            assert!(ready || woken == 1, "neither an answer nor a wake-up");
            if !ready {
                assert!(slot.poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }
        });
    }

    #[test]
    fn abandonment_and_completion_end_in_one_of_them() {
        loom::model(|| {
            let (slot, counters) = slot(Notify::Waker(Waker::noop().clone()));
            let engine = slot.clone();
            let thread = loom::thread::spawn(move || {
                // A pool also takes the work out, serves it without the lock, and puts it back.
                if let Some(work) = engine.take_work() {
                    engine.put_back(work);
                    drop(engine.finish(Ok(Done::Nothing), Count::Pool));
                }
            });
            slot.abandon();
            thread.join().unwrap();
            let stats = counters.snapshot();
            assert_eq!(stats.pool + stats.cancelled, 1, "{stats:?}");
            assert!(slot.with(|_, _| ()).is_none(), "the buffer is with the engine no longer");
        });
    }
}

#[cfg(all(test, not(nowait_loom)))]
mod tests {
    use super::*;
    use crate::op::fixture::{Wakes, file_and_slot, idle_slot as slot};
    use std::sync::atomic::Ordering::{self, SeqCst};
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn waker_is_told_once_and_the_last_one_counts() {
        let (slot, counters) = slot();
        let (first, second) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        let (first_waker, second_waker) = (Waker::from(first.clone()), Waker::from(second.clone()));
        assert!(slot.poll(&mut Context::from_waker(&first_waker)).is_pending());
        assert!(slot.poll(&mut Context::from_waker(&second_waker)).is_pending());
        assert!(slot.poll(&mut Context::from_waker(&second_waker)).is_pending());
        drop(slot.finish(Ok(Done::Nothing), Count::Ring));
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        assert!(slot.poll(&mut Context::from_waker(&first_waker)).is_ready());
        assert_eq!(counters.snapshot().ring, 1);
    }

    #[test]
    fn abandoned_slot_counts_as_cancelled_and_frees_its_buffer_at_the_completion() {
        let (slot, counters) = slot();
        slot.abandon();
        assert!(slot.with(|_, _| ()).is_some(), "the kernel may still write: the buffer stays");
        drop(slot.finish(Ok(Done::Nothing), Count::Ring));
        assert!(slot.with(|_, _| ()).is_none());
        let stats = counters.snapshot();
        assert_eq!((stats.cancelled, stats.ring), (1, 0));
    }

    #[test]
    fn completion_and_abandonment_race_to_exactly_one_end() {
        // Miri interprets a round in seconds.
        for _ in 0..if cfg!(miri) { 20 } else { 200 } {
            let (slot, counters) = slot();
            let engine = slot.clone();
            let thread = std::thread::spawn(move || drop(engine.finish(Ok(Done::Nothing), Count::Pool)));
            slot.abandon();
            thread.join().unwrap();
            let stats = counters.snapshot();
            assert_eq!(stats.pool + stats.cancelled, 1);
        }
    }

    #[test]
    fn whoever_sees_the_result_has_the_only_share_of_the_file() {
        let rounds: Vec<_> =
            (0..if cfg!(miri) { 20 } else { 1500 }).map(|_| (file_and_slot(), AtomicBool::new(false))).collect();
        let shares_seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // Two, so that one is awake while the slot's lock is given to the other.
            for _ in 0..2 {
                scope.spawn(|| {
                    for ((file, slot, _), seen) in &rounds {
                        while !seen.load(SeqCst) {
                            if slot.take().is_some() {
                                shares_seen.fetch_max(Arc::strong_count(file) as u64, SeqCst);
                                seen.store(true, SeqCst);
                            }
                        }
                    }
                });
            }
            for ((_, slot, _), seen) in &rounds {
                drop(slot.finish(Ok(Done::Nothing), Count::Ring));
                while !seen.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(shares_seen.into_inner(), 1, "`File::close` closes");
    }

    #[test]
    fn the_last_share_of_a_file_is_left_over() {
        for abandons in [false, true] {
            let (file, slot, counters) = file_and_slot();
            drop(file);
            if abandons {
                slot.abandon();
            }
            let leftovers = slot.finish(Ok(Done::Nothing), Count::Ring);
            assert!(leftovers.file.is_some() && leftovers.may_wait(), "it is closed by whoever drops that");
            assert_eq!(leftovers.unwanted.is_some(), abandons);
            assert_eq!(counters.snapshot().ended(), 1);
        }
        let (file, slot, _) = file_and_slot();
        assert!(!slot.finish(Ok(Done::Nothing), Count::Ring).may_wait());
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn a_detached_operation_ends_for_its_effect() {
        for finishes_first in [false, true] {
            let (slot, counters) = slot();
            if !finishes_first {
                slot.detach();
            }
            let leftovers = slot.finish(Ok(Done::Nothing), Count::Ring);
            assert_eq!(leftovers.unwanted.is_some(), !finishes_first);
            slot.detach();
            assert!(slot.take().is_none());
            assert_eq!(counters.snapshot().ring, 1);
        }
    }
}
