//! Turns: how long a thread serves a task before others run there.
//!
//! An operation that is served inline is ready at its first poll. An executor sees a task that goes
//! on: it runs no other, and looks at neither its timers nor its reactor. So inline service is
//! charged by the time it takes, and after a turn of 5 µs the task that has just been served is
//! told to yield. The operation is done by then: its future keeps the result, wakes itself and is
//! pending once, on whatever executor. So operations of one task begin in the order of their polls.
//!
//! While a task has its turn, others wait whose operations have completed. So at the end of each
//! turn the thread submits what is staged in its ring, looks at the completions there, and wakes
//! those whom it finds. Looking costs no system call: the calls that served the task have let the
//! kernel post what it had.
//!
//! Operations, gathers, streams, batches of writes and a log's futures all take part. For futures
//! that serve data from memory of their own: [`copied`], and then [`ends`].

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::task::Context;

use crate::sys::fork_generation;

/// A turn, in nanoseconds: some five cached reads of 4 KiB. (Of 64 tasks on tokio that read 90 to
/// 99 % from the page cache beside a heartbeat, with turns of 20 µs its median lateness was about
/// 2 ms, with 10 µs 1.3, with 5 µs 1.0. Reads a second were the same:
/// docs/measurements/2026-11-23-mixed.)
const TURN_NS: u64 = 5_000;
/// Costs of a system call and of a poll beside copying, and bytes copied in a nanosecond, where
/// nobody looked at the clock. (Reads of 4 KiB from the page cache took 0.5 to
/// 1 µs on the machines measured.)
const CALL_NS: u64 = 400;
const POLL_NS: u64 = 50;
const BYTES_PER_NS: u64 = 8;

/// A queue that the threads which submit to it can serve on the way.
pub(crate) trait Notice: Send + Sync {
    /// Submits what is staged, and settles a bounded number of completions, unless another thread
    /// is at it.
    fn notice(&self);
}

thread_local! {
    /// Charged since the last turn, in nanoseconds.
    static CHARGED: Cell<u64> = const { Cell::new(0) };
    /// The queue that this thread submitted to last, and the process whose it is.
    static QUEUE: RefCell<Option<(u64, Weak<dyn Notice>)>> = const { RefCell::new(None) };
}

/// Whether a turn of this thread is over, and the task that polls is to yield: its future returns
/// `Pending`, and is woken already. A new turn begins.
///
/// Time is charged by this library's operations, and by [`copied`]. The tasks of a thread have their
/// turns together: one may yield for what others had. A waker that wakes nobody (`Waker::noop`,
/// `now_or_never`) is never told to yield: its future is polled once.
///
/// Ask where it makes no difference what others do first: after something was done whose order
/// counts, with the result kept for the next poll, and not before.
#[inline]
pub fn ends(context: &mut Context<'_>) -> bool {
    CHARGED.get() >= TURN_NS && end(context)
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
    // One that wakes nobody has no data.
    let yields = !context.waker().data().is_null();
    if yields {
        context.waker().wake_by_ref();
    }
    yields
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

/// Notes the queue that this thread submits to.
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
