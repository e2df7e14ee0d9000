//! Turns: the time for which a thread serves one task before others run there.
//!
//! An operation that is served inline is ready at its first poll. A task with many such operations
//! never yields, so its executor runs no other task and polls neither timers nor reactor. Therefore
//! inline service is charged by the time it takes. At the end of a turn the operation that was just
//! served makes its task yield, on any executor. Its future keeps the result, wakes itself and is
//! pending once. So operations of one task begin in the order of their polls.
//!
//! During a turn, completions of other tasks may arrive. At the end of each turn the thread submits
//! the requests staged in its ring, reaps completions and wakes their tasks. Reaping needs no
//! system call: the kernel posted the completions during the calls that served the task. An
//! executor runs woken tasks after all tasks that were ready before. So a task that has yielded is
//! pending again until the woken tasks have run.
//!
//! On tokio, a task yields only once a round while another worker of its runtime is idle: an idle
//! worker would already have taken a waiting task. Yielding is expensive there. A task that wakes
//! itself, or calls tokio's `yield_now`, makes its worker wake another worker, which finds no other
//! task and may take this one. A lone task that yields each turn reaches 0.4 of `pread`'s speed at
//! four times the processor time; with one yield a round it reaches 0.75 at 1.5 times. The yield
//! at the end of a round serves the task's own timers, and a task that it woke, which other workers
//! do not take ("LIFO slot", `schedule_local` in tokio 1.54).
//!
//! A task whose timer has expired waits for all ready tasks. So turns are shorter if more tasks
//! yield.
//!
//! Operations, gathers, streams, batches of writes and a log's futures take part. A future of
//! another crate that serves data from memory takes part by calling [`copied`], and then [`ends`].

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::task::Context;

use crate::sys::fork_generation;

/// The longest turn.
const TURN_MAX_NS: u64 = 5_000;
/// The shortest turn: about three cached reads of 4 KiB, so that most reads of a task do not wait
/// for other tasks.
const TURN_MIN_NS: u64 = 2_500;
/// A round of turns, of up to 64 tasks. (On tokio with 64 tasks whose reads are 90 to 99 % cached,
/// fixed turns of 5 µs delay cold reads by 0.6 to 1 ms at p99.)
const ROUND_NS: u64 = 160_000;
/// Most further yields of a task with one result: completions may arrive faster than tasks run.
const PER_RESULT_MAX: u8 = 16;
/// Most further yields to woken tasks, since a woken task may run on another thread, or never.
const PER_WAKE_MAX: u32 = 128;
/// Assumed costs of a system call and of a poll, without copying, and bytes copied in a nanosecond.
/// They apply where the clock was not read. (Reads of 4 KiB from the page cache took 0.5 to 1 µs on
/// the machines measured.)
const CALL_NS: u64 = 400;
const POLL_NS: u64 = 50;
const BYTES_PER_NS: u64 = 8;

/// A queue that its submitting threads can serve at the end of a turn.
pub(crate) trait Notice: Send + Sync {
    /// Submits staged entries and settles a bounded number of completions, unless another thread
    /// does so already.
    fn notice(&self);
}

/// Serves the queues of a thread that drives a future, as [`Notice::notice`] does.
pub(crate) type NoticeOwn = fn();

thread_local! {
    /// Time charged to the current turn, in nanoseconds.
    static CHARGED: Cell<u64> = const { Cell::new(0) };
    /// Current length of a turn, in nanoseconds.
    static TURN: Cell<u64> = const { Cell::new(TURN_MAX_NS) };
    static ROUND: Cell<Round> = const { Cell::new(Round::NEW) };
    /// The queue that this thread submitted to last, and the fork generation that owns it.
    static QUEUE: RefCell<Option<(u64, Weak<dyn Notice>)>> = const { RefCell::new(None) };
    /// Set by a thread that drives a future.
    static OWN: Cell<Option<NoticeOwn>> = const { Cell::new(None) };
    /// Number of operations whose tasks were woken here and have not run yet, and of yields to them
    /// that remain.
    static WOKEN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Counts the yielding tasks of a thread: the yields of others between two yields of a marked task.
#[derive(Clone, Copy)]
struct Round {
    /// Address of the marked task's waker data, unique while the task lives; zero at first.
    marked: usize,
    others: u64,
}

impl Round {
    /// Starts a new count after this many turns: the marked task may have ended.
    const OTHERS_MAX: u64 = ROUND_NS / TURN_MIN_NS;
    const NEW: Round = Round { marked: 0, others: 0 };

    /// Records a yield of a task. Returns the new length of turns at the end of a count.
    fn yields(&mut self, task: usize) -> Option<u64> {
        if self.marked == 0 {
            self.marked = task;
            return None;
        }
        if task != self.marked && self.others < Round::OTHERS_MAX {
            self.others += 1;
            return None;
        }
        let others = std::mem::take(&mut self.others);
        self.marked = task;
        Some((ROUND_NS / (others + 1)).clamp(TURN_MIN_NS, TURN_MAX_NS))
    }
}

/// Returns true if this thread's turn is over. The calling future must then return `Pending`; its
/// waker was already called. A new turn begins.
///
/// This library's operations and [`copied`] charge time. All tasks of a thread share its turns: one
/// task may yield because of time that others used. Returns false for a waker without effect
/// (`Waker::noop`, `now_or_never`), whose future is polled only once.
///
/// Call it after the work, with the result kept for the next poll. If you call it before the work,
/// other tasks run first, which may reorder the work.
#[inline]
pub fn ends(context: &mut Context<'_>) -> bool {
    CHARGED.get() >= TURN.get() && end(context)
}

#[cold]
fn end(context: &mut Context<'_>) -> bool {
    begin();
    // A forked child touches no queue of its parent.
    let own = |known: &(u64, Weak<dyn Notice>)| if known.0 == fork_generation() { known.1.upgrade() } else { None };
    let queue = QUEUE.try_with(|known| known.borrow().as_ref().and_then(own)).ok().flatten();
    // With nothing borrowed: wakers may do anything.
    if let Some(queue) = queue {
        queue.notice();
    }
    if let Some(notice) = OWN.get() {
        notice();
    }
    let waker = context.waker();
    // A waker without effect has no data.
    let task = waker.data().addr();
    if task == 0 {
        return false;
    }
    let mut round = ROUND.get();
    if let Some(turn_ns) = round.yields(task) {
        TURN.set(turn_ns);
    }
    ROUND.set(round);
    if !waits_for_woken() {
        #[cfg(feature = "tokio")]
        if tokio::spares(waker) {
            return false;
        }
    }
    waker.wake_by_ref();
    true
}

/// Returns true if a task should yield to woken ones. Another thread may run woken tasks, so their
/// number may be wrong, and the yields to them are bounded.
fn waits_for_woken() -> bool {
    let (woken, left) = WOKEN.get();
    if woken == 0 {
        return false;
    }
    WOKEN.set(if left == 0 { (0, 0) } else { (woken, left - 1) });
    left > 0
}

/// Returns true on a tokio worker while another worker of its runtime is idle.
pub(crate) fn another_worker_is_idle() -> bool {
    #[cfg(feature = "tokio")]
    return tokio::another_worker_is_idle();
    #[cfg(not(feature = "tokio"))]
    return false;
}

/// Checks whether other workers of a task's runtime are idle.
#[cfg(feature = "tokio")]
mod tokio {
    use std::cell::Cell;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::runtime::{Handle, worker_index};
    use tokio::task::LocalSet;

    use super::{ROUND_NS, TURN};
    use crate::sys::WriteOnce;

    thread_local! {
        /// Total length of the turns since the last yield, in nanoseconds.
        static SPARED: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns true if the task of this waker need not yield now.
    pub(super) fn spares(waker: &Waker) -> bool {
        let spared = SPARED.get() + TURN.get();
        let spares = spared <= ROUND_NS && is_of_a_task(waker) && another_worker_is_idle();
        SPARED.set(if spares { spared } else { 0 });
        spares
    }

    /// Returns false for a future polled by an executor or a combinator within a task: sibling
    /// futures may be ready.
    fn is_of_a_task(waker: &Waker) -> bool {
        /// Address of the vtable that the wakers of all tasks share; zero if it is unknown.
        static OF_TASKS: WriteOnce<usize> = WriteOnce::new();
        let address = |waker: &Waker| std::ptr::from_ref(waker.vtable()).addr();
        let of_tasks = OF_TASKS.get_or_init(|| {
            // A `LocalSet` runs a task without a runtime.
            let tasks = LocalSet::new();
            let task = tasks.spawn_local(poll_fn(move |context| Poll::Ready(address(context.waker()))));
            let mut context = Context::from_waker(Waker::noop());
            let _ = pin!(tasks).poll(&mut context);
            match pin!(task).poll(&mut context) {
                Poll::Ready(Ok(address)) => address,
                _ => 0,
            }
        });
        address(waker) == *of_tasks
    }

    pub(super) fn another_worker_is_idle() -> bool {
        let (Some(own), Ok(handle)) = (worker_index(), Handle::try_current()) else { return false };
        let metrics = handle.metrics();
        // The count is odd while the worker is parked.
        (0..metrics.num_workers()).any(|worker| worker != own && metrics.worker_park_unpark_count(worker) % 2 == 1)
    }
}

/// Returns true if a task that has yielded must, when polled again, yield once more to tasks whose
/// operations have completed. `before` counts these further yields for the pending result.
#[inline]
pub(crate) fn gives_way(context: &mut Context<'_>, before: &mut u8) -> bool {
    WOKEN.get().0 > 0 && give_way(context, before)
}

#[cold]
fn give_way(context: &mut Context<'_>, before: &mut u8) -> bool {
    // A waker without effect has no data: this may be the last poll.
    if *before == PER_RESULT_MAX || context.waker().data().is_null() || !waits_for_woken() {
        return false;
    }
    *before += 1;
    context.waker().wake_by_ref();
    true
}

/// Returns a function that returns true once this thread was charged the longest turn since. It
/// bounds the inline service of a call that is not a poll.
pub(crate) fn of_call() -> impl FnMut() -> bool {
    let before = CHARGED.get();
    move || CHARGED.get().saturating_sub(before) >= TURN_MAX_NS
}

/// Records operations whose tasks are woken now.
pub(crate) fn wakes(operations: usize) {
    if operations > 0 {
        WOKEN.set((WOKEN.get().0.saturating_add(operations as u32), PER_WAKE_MAX));
    }
}

/// Records that a woken task runs, and takes the results of its operations.
#[inline]
pub(crate) fn runs(operations: usize) {
    let (woken, left) = WOKEN.get();
    WOKEN.set((woken.saturating_sub(operations as u32), left));
}

/// Charges a poll that copied `bytes` in memory.
#[inline]
pub fn copied(bytes: usize) {
    charge(POLL_NS + bytes as u64 / BYTES_PER_NS);
}

/// Charges a system call that moved `bytes` without waiting.
#[inline]
pub(crate) fn called(bytes: usize) {
    served(bytes, None);
}

/// Charges a system call that moved `bytes` without waiting, in `elapsed_ns` if it was timed.
#[inline]
pub(crate) fn served(bytes: usize, elapsed_ns: Option<u64>) {
    charge(elapsed_ns.unwrap_or(CALL_NS + bytes as u64 / BYTES_PER_NS));
}

/// Charges `ns` nanoseconds on this thread.
#[inline]
pub(crate) fn charge(ns: u64) {
    CHARGED.set(CHARGED.get() + ns);
}

/// Begins a new turn on this thread.
pub(crate) fn begin() {
    CHARGED.set(0);
}

/// Sets the function that serves this thread's own queues while it drives a future, or clears it.
/// Returns the previous one.
pub(crate) fn drives(notice: Option<NoticeOwn>) -> Option<NoticeOwn> {
    OWN.replace(notice)
}

/// Remembers the queue that this thread submits to.
pub(crate) fn submits_to<N: Notice + 'static>(queue: &Arc<N>) {
    let _ = QUEUE.try_with(|known| {
        let is_known = |known: &(u64, Weak<dyn Notice>)| {
            known.0 == fork_generation() && std::ptr::addr_eq(known.1.as_ptr(), Arc::as_ptr(queue))
        };
        if !known.borrow().as_ref().is_some_and(is_known) {
            let queue: Arc<dyn Notice> = queue.clone();
            *known.borrow_mut() = Some((fork_generation(), Arc::downgrade(&queue)));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Returns the length of turns after `rounds` rounds of `tasks` tasks.
    fn turns_of(tasks: usize, rounds: usize) -> u64 {
        let mut round = Round::NEW;
        (0..rounds).flat_map(|_| 1..=tasks).filter_map(|task| round.yields(task)).last().unwrap()
    }

    #[test]
    fn a_round_takes_as_long_whatever_the_number_of_tasks() {
        assert_eq!(turns_of(1, 2), TURN_MAX_NS);
        assert_eq!(turns_of(40, 10), ROUND_NS / 40);
        assert_eq!(turns_of(64, 10), TURN_MIN_NS);
        assert_eq!(turns_of(1000, 10), TURN_MIN_NS);
    }

    #[test]
    fn tasks_that_have_yielded_give_way_until_the_woken_ran() {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut gives_way = |before: &mut u8| super::gives_way(&mut context, before);
        assert!(!gives_way(&mut 0));
        wakes(2);
        // Symptom: `now_or_never` lost the result of an operation that had yielded before.
        assert!(!super::gives_way(&mut Context::from_waker(Waker::noop()), &mut 0));
        assert!(gives_way(&mut 0));
        runs(1);
        assert!(gives_way(&mut 0));
        runs(1);
        assert!(!gives_way(&mut 0));
        // A task does not wait forever for tasks that never run, with one result or with many.
        wakes(1);
        let mut before = 0;
        assert_eq!((0..100).filter(|_| gives_way(&mut before)).count(), usize::from(PER_RESULT_MAX));
        assert!((0..1000).filter(|_| gives_way(&mut 0)).count() <= PER_WAKE_MAX as usize);
        assert!(!gives_way(&mut 0));
    }

    #[test]
    fn turns_end_in_vain_for_woken_tasks_only_so_often() {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        wakes(1);
        for _ in 0..=PER_WAKE_MAX {
            charge(TURN_MAX_NS);
            assert!(ends(&mut context));
        }
        // Symptom: beside an idle worker, gathers of a task yielded at each turn from then on.
        assert_eq!(WOKEN.get(), (0, 0));
    }

    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn a_task_that_has_ended_is_not_waited_for() {
        let mut round = Round::NEW;
        let mut turn_ns = 0;
        for task in (1..=200).chain((0..10_000).map(|i| i % 2 + 300)) {
            turn_ns = round.yields(task).unwrap_or(turn_ns);
        }
        assert_eq!(turn_ns, TURN_MAX_NS);
    }
}
