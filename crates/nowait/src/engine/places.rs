//! Places in a queue to the kernel that all threads share, and the line before them.

use std::sync::{Arc, Condvar};
use std::time::Instant;

use super::pool;
use crate::op::{Backlog, Slot};

/// Places in a queue to the kernel, and the slots in line for one.
#[derive(Default)]
pub(super) struct Places {
    /// Taken places.
    pub(super) in_flight: u32,
    pub(super) backlog: Backlog,
    /// Counts completions.
    pub(super) ended: u64,
    /// Threads that wait for quiet.
    pub(super) draining: u32,
}

impl Places {
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.backlog.is_quiet()
    }

    /// Takes the next slot in line whose device is not full. If there is none and nothing is in
    /// flight, no completion would pass a place on. Then the slots that were passed over are
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

    /// Serves [`Lined::with_line`]. Others wait for quiet at `quiet`.
    pub(super) fn look<T>(&mut self, quiet: &Condvar, look: impl FnOnce(&mut Backlog, u64) -> T) -> T {
        let value = look(&mut self.backlog, self.ended);
        self.tell_if_quiet(quiet);
        value
    }
}

/// A queue to the kernel that all threads share, with a line before it.
pub(super) trait Lined {
    /// Looks at the line, and the number of operations that have ended. Notifies those that wait
    /// for quiet.
    fn with_line<T>(&self, look: impl FnOnce(&mut Backlog, u64) -> T) -> T;

    /// Discards slots that the line has shed. Called with nothing locked.
    fn discard(&self, shed: Vec<Arc<Slot>>) {
        if !shed.is_empty() {
            let count = shed.len();
            pool::discard(shed);
            self.with_line(|line, _| line.discarded(count));
        }
    }

    /// Hands the line on to the pool if no operation ends in the queue; false if the line is empty.
    fn relieve_line(&self) -> bool {
        let (stuck, shed, is_busy) = self.with_line(|line, ended| {
            let stuck = line.take_stuck(ended, Instant::now());
            (stuck, line.take_shed(), line.len() > 0)
        });
        self.discard(shed);
        if !stuck.is_empty() {
            let count = stuck.len();
            stuck.into_iter().for_each(pool::hand_on);
            self.with_line(|line, _| line.discarded(count));
        }
        is_busy
    }
}

#[cfg(test)]
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
        let mut places = Places::default();
        (0..100).for_each(|_| places.backlog.push(slot()));
        let mut under_way = Vec::new();
        while !file.device().is_full() {
            under_way.push(slot());
            assert_eq!(under_way.last().unwrap().begin(|_, _| Some(())), Some(()));
        }
        places.in_flight = 1;
        let (next, excess) = places.next();
        assert!(next.is_none() && excess.is_empty());
        assert_eq!(places.backlog.len(), 100, "a completion passes a place on");
        places.in_flight = 0;
        let (next, excess) = places.next();
        assert!(next.is_none());
        assert_eq!((excess.len(), places.backlog.len()), (100, 0));
        under_way.iter().for_each(|slot| drop(slot.finish(Err(rustix::io::Errno::IO), crate::stats::Count::Ring)));
    }
}
