//! The places of a queue, and the slots that wait for one.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, MutexGuard};
use std::time::{Duration, Instant};

use super::announced::Announced;
use super::{Queue, Reap};
use crate::engine::kernel::Untaken;
use crate::engine::pool;
use crate::op::{Backlog, Slot};
use crate::sync::lock;

/// Places of a queue, and the slots that wait for one. Its lock also guards the submission queue.
#[derive(Default)]
pub(super) struct Line {
    /// Number of taken places, by slots in the kernel and staged slots.
    pub(super) in_flight: u32,
    pub(super) backlog: Backlog,
    /// Number of completions.
    pub(super) ended: u64,
    /// Number of threads that wait until no operation is in flight or in line.
    pub(super) draining: u32,
    /// Entries staged since the last submission.
    pub(super) staged: u32,
    /// Number of staged entries up to which an entry waits for more. It grows with each submission
    /// since the owner last submitted.
    pub(super) held: u32,
    /// User data of entries that the kernel may not have taken; each is a reference to a slot.
    pub(super) untaken: Untaken,
    /// Reads of a file: the first has an entry while there are others.
    pub(super) announced: Announced<Arc<Slot>>,
    /// Time of the last wake-up of futures, until one of them submits.
    pub(super) woke: Option<Instant>,
    /// The last woken future took long to submit, because it computes.
    pub(super) is_slow: bool,
    /// Number of successive reaps by threads that submit; a reap that the owner needs resets it.
    pub(super) picked: u32,
    /// The kernel refuses every further call.
    pub(super) dead: bool,
    /// Value of `ended` at the last glance, if an operation was in flight then.
    pub(super) glanced_at: Option<u64>,
}

impl Line {
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.backlog.is_quiet()
    }

    /// Takes the next slot in line whose device is not full. Without such a slot, and with nothing
    /// in flight, no completion would free a place. Then all slots that were passed over are
    /// returned, for the pool.
    pub(super) fn next(&mut self) -> (Option<Arc<Slot>>, Vec<Arc<Slot>>) {
        /// Most slots that are passed over while others are in flight.
        const EXCESS_MAX: usize = 16;
        let mut excess = Vec::new();
        let mut next = None;
        while self.in_flight == 0 || excess.len() < EXCESS_MAX {
            match self.backlog.pop() {
                Some(slot) if slot.profile().is_excess => excess.push(slot),
                found => {
                    next = found;
                    break;
                }
            }
        }
        if self.in_flight == 0 && next.is_none() {
            return (None, excess);
        }
        excess.into_iter().rev().for_each(|slot| self.backlog.push_front(slot));
        (next, Vec::new())
    }

    /// Notifies the threads that wait for quiet at `quiet`, if there are any. (std's `notify_all`
    /// makes a system call even without waiters.)
    pub(super) fn tell_if_quiet(&self, quiet: &Condvar) {
        if self.draining > 0 && self.is_quiet() {
            quiet.notify_all();
        }
    }

    /// Records the submission of all staged entries. Returns their number.
    pub(super) fn leaves(&mut self, depth: u32) -> u32 {
        self.held = (self.held * 2 + 2).min(depth);
        std::mem::take(&mut self.staged)
    }
}

impl Queue {
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// Discards slots that the line has shed. Called with nothing locked.
    pub(super) fn discard(&self, shed: Vec<Arc<Slot>>) {
        if !shed.is_empty() {
            let count = shed.len();
            pool::discard(shed);
            self.discarded(count);
        }
    }

    fn discarded(&self, count: usize) {
        let mut line = self.line();
        line.backlog.discarded(count);
        line.tell_if_quiet(&self.quiet);
    }

    /// Passes the line to the pool if no operation of the queue ends. Returns false if the line is
    /// empty.
    pub(in crate::engine) fn relieve_line(&self) -> bool {
        let mut line = self.line();
        let ended = line.ended;
        let stuck = line.backlog.take_stuck(ended, Instant::now());
        let (shed, is_busy) = (line.backlog.take_shed(), line.backlog.len() > 0);
        line.tell_if_quiet(&self.quiet);
        drop(line);
        self.discard(shed);
        if !stuck.is_empty() {
            let count = stuck.len();
            stuck.into_iter().for_each(pool::hand_on);
            self.discarded(count);
        }
        is_busy
    }

    /// Hands the line on if no operation ends here; for the thread that owns the ring.
    pub(in crate::engine) fn relieve_own_line(&self) {
        if self.has_line.load(Relaxed) && !self.relieve_line() {
            self.has_line.store(false, Relaxed);
        }
    }

    pub(in crate::engine) fn drain(&self) {
        // This thread reaps at intervals: the runtime that owns the queue may not be driven now.
        const LOOK_AGAIN: Duration = Duration::from_millis(10);
        // Each of the others would wait for such a look at the one before.
        self.enter_announced();
        self.enter();
        let mut line = self.line();
        line.draining += 1;
        while !line.is_quiet() {
            let (after, timeout) =
                self.quiet.wait_timeout(line, LOOK_AGAIN).unwrap_or_else(|poisoned| poisoned.into_inner());
            line = after;
            if timeout.timed_out() {
                drop(line);
                self.enter_announced();
                self.reap(Reap::Surely);
                line = self.line();
            }
        }
        line.draining -= 1;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::op::fixture::{file_of_fd, read_of};

    /// Symptom: but for the first few, a line before a full device waited for a second, with nothing
    /// in flight.
    #[test]
    fn a_line_before_a_full_device_leaves_as_a_whole_when_nothing_is_in_flight() {
        // No other test reads files of its device.
        let file = file_of_fd(rustix::fs::memfd_create("line", MemfdFlags::CLOEXEC).unwrap());
        let slot = || read_of(&file);
        let mut line = Line::default();
        (0..100).for_each(|_| line.backlog.push(slot()));
        let mut under_way = Vec::new();
        while !file.device().is_full() {
            under_way.push(slot());
            assert_eq!(under_way.last().unwrap().begin(|_, _| Some(())), Some(()));
        }
        line.in_flight = 1;
        let (next, excess) = line.next();
        assert!(next.is_none() && excess.is_empty());
        assert_eq!(line.backlog.len(), 100, "a completion passes a place on");
        line.in_flight = 0;
        let (next, excess) = line.next();
        assert!(next.is_none());
        assert_eq!((excess.len(), line.backlog.len()), (100, 0));
        under_way.iter().for_each(|slot| drop(slot.finish(Err(crate::sys::Errno::IO), crate::stats::Count::Ring)));
    }
}
