//! System calls of a queue: they submit staged entries, and wait for completions. The last thread to
//! leave a ring that refuses to be entered gives it up.
//!
//! `unsafe` here: entries that the kernel never takes are slots again.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::sys::Errno;

use super::announced::FIRST_MAX;
use super::{BELL, DEAD, Queue, Reap};
use crate::engine::kernel;
use crate::engine::pool;
use crate::op::{STUCK, Slot};

impl Queue {
    /// Submits staged entries, by the flusher, whose thread has nothing else to run.
    #[cfg(feature = "tokio")]
    pub(in crate::engine) fn flush(&self) {
        self.line().held = 0;
        self.enter();
    }

    /// Submits staged entries, whichever thread staged them.
    pub(in crate::engine) fn enter(&self) {
        // A separate statement, so that the lock is released at its end.
        let staged = std::mem::take(&mut self.line().staged);
        self.submit_entries(staged);
        // A read that needed no device is complete by now, and its future wakes at once.
        self.reap(Reap::IfNobodyDoes);
    }

    /// Submits what is staged, if anything is. Reaps no completions.
    pub(in crate::engine) fn submit_staged(&self) {
        // A separate statement, so that the lock is released at its end.
        let staged = std::mem::take(&mut self.line().staged);
        if staged > 0 {
            self.submit_entries(staged);
        }
    }

    /// Submits what is staged, and sleeps until `want` operations have ended, or something in line
    /// may not wait longer. For its thread. False if nothing is in flight.
    pub(in crate::engine) fn wait(&self, want: usize) -> bool {
        let mut line = self.line();
        if line.in_flight == 0 {
            return false;
        }
        let is_staged = std::mem::take(&mut line.staged) > 0;
        line.held = 0;
        // Slots in line must not wait for operations that never end, and announced ones not for
        // their first.
        let patience = match (line.announced.has_others(), line.backlog.len()) {
            (true, _) => Some(FIRST_MAX),
            (false, 1..) => Some(STUCK),
            (false, 0) => None,
        };
        let has_uncollected = line.announced.has_uncollected();
        drop(line);
        let result = match has_uncollected {
            true if !is_staged => Ok(0),
            true => self.enter_kernel(0, None),
            false => self.enter_kernel(want, patience),
        };
        if result.is_err_and(|error| kernel::is_lasting(&error)) {
            // The kernel's operations are lost with the ring. Do not spin on it.
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Submits `staged` entries, as far as no other thread does.
    pub(super) fn submit_entries(&self, staged: u32) {
        let mut left = staged as usize;
        loop {
            match self.enter_kernel(0, None) {
                // The kernel stopped on the way, or another thread submitted some.
                Ok(taken @ 1..) if taken < left => left -= taken,
                // Interrupted, or short of memory or of room for completions (others reap those):
                // try again.
                Err(error) if !kernel::is_lasting(&error) => std::thread::yield_now(),
                _ => return,
            }
        }
    }

    /// Makes one system call. The last thread to leave a ring that refuses to be entered gives it up:
    /// the refusal may be a filter of one thread only, and two must not own an entry.
    fn enter_kernel(&self, want: usize, patience: Option<Duration>) -> std::io::Result<usize> {
        let result = match self.entered.fetch_add(1, SeqCst) & DEAD {
            0 => self.kernel.enter(want, patience),
            _ => Err(Errno::BADF.into()),
        };
        if result.as_ref().is_err_and(kernel::is_lasting) {
            self.entered.fetch_or(DEAD, SeqCst);
        }
        if self.entered.fetch_sub(1, SeqCst) == DEAD | 1 {
            self.give_up();
        }
        result
    }

    /// Hands on every slot that the kernel has not taken, after the last thread has left the ring.
    /// Later slots are handed on, too.
    #[cold]
    fn give_up(&self) {
        let mut line = self.line();
        line.dead = true;
        let mut slots: Vec<Arc<Slot>> = Vec::new();
        // SAFETY: `line` is the lock of this submission queue.
        let untaken = unsafe { self.kernel.take_untaken(&mut line.untaken) };
        for share in untaken.into_iter().filter(|share| *share != BELL) {
            line.in_flight -= 1;
            // SAFETY: the share was made in `push`, and the kernel never gets the entry.
            slots.push(unsafe { Arc::from_raw(share as *const Slot) });
        }
        for slot in line.announced.take() {
            line.in_flight -= 1;
            slots.push(slot);
        }
        slots.extend(std::iter::from_fn(|| line.backlog.pop()));
        let shed = line.backlog.take_shed();
        line.staged = 0;
        line.tell_if_quiet(&self.quiet);
        drop(line);
        self.discard(shed);
        slots.into_iter().for_each(pool::hand_on);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::Mutex;

    use super::*;
    use crate::engine::kernel::{Kernel, Untaken};
    use crate::op::fixture::{file_of_fd, read_of};
    use crate::op::watcher::NoticedBy;
    use crate::stats::Count;
    use crate::sync::lock;

    /// A kernel that takes one entry a call, and ends it at once.
    struct OneByOne {
        descriptor: std::fs::File,
        staged: Mutex<VecDeque<u64>>,
        ended: Mutex<Vec<u64>>,
    }

    impl AsFd for OneByOne {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.descriptor.as_fd()
        }
    }

    impl Kernel for OneByOne {
        fn depth(&self) -> u32 {
            8
        }

        fn is_ours(&self) -> bool {
            true
        }

        fn count(&self) -> Count {
            Count::Ring
        }

        fn looks_freely(&self) -> bool {
            true
        }

        unsafe fn stage(&self, slot: &Arc<Slot>, _: &mut Untaken) -> bool {
            lock(&self.staged).push_back(Arc::as_ptr(slot) as u64);
            true
        }

        fn enter(&self, _want: usize, _patience: Option<Duration>) -> std::io::Result<usize> {
            let taken = lock(&self.staged).pop_front();
            lock(&self.ended).extend(taken);
            Ok(usize::from(taken.is_some()))
        }

        unsafe fn collect(&self, max: usize, each: &mut dyn FnMut(u64, Result<usize, Errno>)) -> usize {
            let mut ended = lock(&self.ended);
            let some = ended.len().min(max);
            ended.drain(..some).map(|user_data| each(user_data, Ok(0))).count()
        }
    }

    /// Symptom: entries that the kernel did not take, for lack of memory, stayed staged until another
    /// operation was submitted.
    #[test]
    fn entries_that_the_kernel_leaves_are_submitted_again() {
        let descriptor = std::fs::File::open("/dev/null").unwrap();
        let kernel = OneByOne { descriptor, staged: Mutex::default(), ended: Mutex::default() };
        let queue = Queue::over(Box::new(kernel), NoticedBy::Thread, 0).unwrap();
        let file = file_of_fd(std::fs::File::open("/dev/zero").unwrap());
        let slots: Vec<_> = (0..5).map(|_| read_of(&file)).collect();
        let mut line = queue.line();
        for slot in &slots {
            line.in_flight += 1;
            assert!(queue.push(&mut line, slot.clone()).is_ok());
        }
        drop(line);
        queue.submit_staged();
        queue.reap(Reap::Surely);
        assert_eq!(slots.iter().filter(|slot| slot.take().is_some()).count(), 5);
        assert_eq!(queue.in_flight(), 0);
    }
}
