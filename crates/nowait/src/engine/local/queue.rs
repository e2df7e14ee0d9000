//! The queue of one thread: the table of slots that the kernel has, the line before a full queue,
//! and when entries are submitted. [`Queue`] is the kernel's side of it: a ring, or a context of
//! libaio.
//!
//! `unsafe` here: pushing entries, whose memory the slots in the table keep alive.

mod announced;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::bell::Bell;
use crate::engine::announced::Announced;
use crate::engine::pool;
use crate::op::{Backlog, PLACES_MIN, Profile, Slot};
use crate::stats::Count;

/// User data of a queue's own poll of the bell. Slots have their place in the table.
pub(super) const BELL: u64 = u64::MAX;

/// A slot that the kernel has finished with, and its result.
pub(super) type Completion = (Arc<Slot>, Result<usize, Errno>);

/// A queue to the kernel that one thread at a time submits to and reaps.
pub(super) trait Queue: Sized + Send + 'static {
    type Entry;
    /// The counter of operations that complete here.
    const SERVED: Count;
    /// The first of many entries leave early; see `engine/local/mod.rs`.
    const LEAVES_EARLY: bool;

    /// Sets a queue up; none if the kernel refuses, or it cannot poll a bell.
    fn set_up(bell: &OwnedFd) -> Option<Self>;
    /// Whether this process made it; false in a child.
    fn is_ours(&self) -> bool;
    /// Operations that it takes at a time.
    fn depth(&self) -> u32;
    /// A descriptor that is readable after a completion, if there is one.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
    /// Encodes a slot's request; none if the pool is the better choice.
    fn encode(&self, slot: &Arc<Slot>) -> Option<Self::Entry>;
    fn poll(bell: BorrowedFd<'_>) -> Self::Entry;

    /// Stages an entry; false if the staged ones must be submitted first.
    ///
    /// # Safety
    /// The entry's memory and descriptor stay valid until its completion, or until it is taken
    /// back.
    unsafe fn push(&mut self, entry: &Self::Entry, user_data: u64) -> bool;
    /// Submits staged entries without waiting; false if the kernel cannot be entered again.
    fn submit(&mut self) -> bool;
    /// Submits staged entries and waits for `want` completions, at most `patience`, perhaps for
    /// fewer. False as above.
    fn wait(&mut self, want: usize, patience: Option<Duration>) -> bool;
    /// Passes all available completions to `each`.
    fn reap(&mut self, each: impl FnMut(u64, Result<usize, Errno>));
    /// Takes back entries that the kernel has not taken and never will.
    fn take_back(&mut self) -> VecDeque<u64>;
}

pub(super) struct Owned<Q: Queue> {
    pub(super) queue: Q,
    /// Slots in the kernel, by user data. These shares keep memory and descriptors alive until the
    /// completions.
    slots: Vec<Option<Arc<Slot>>>,
    free: Vec<u32>,
    pub(super) backlog: Backlog,
    /// Entries staged since the last submission.
    pub(super) staged: usize,
    /// How many entries may be staged before a submission; see `engine/local/mod.rs`.
    submit_at: usize,
    /// The kernel refuses every further call.
    pub(super) dead: bool,
    /// Counts the thread's visits.
    pub(super) turns: u64,
    /// Counts completions.
    ended: u64,
    /// By their places.
    announced: Announced<u32>,
    pub(super) bell: Arc<Bell>,
    pub(super) bell_polled: bool,
    /// Slots to hand on to their pools once nothing is locked.
    for_pool: Vec<Arc<Slot>>,
    /// Kept between turns for its capacity.
    pub(super) completions: Vec<Completion>,
}

/// Slots that have left a queue. Handing on and discarding may run users' code: with nothing
/// borrowed.
pub(super) struct Leaving {
    for_pool: Vec<Arc<Slot>>,
    shed: Vec<Arc<Slot>>,
}

impl Leaving {
    pub(super) fn go(self) {
        self.for_pool.into_iter().for_each(pool::hand_on);
        pool::discard(self.shed);
    }
}

impl<Q: Queue> Owned<Q> {
    pub(super) fn new(bell: Arc<Bell>) -> Option<Owned<Q>> {
        let queue = Q::set_up(bell.descriptor()?)?;
        let depth = queue.depth();
        Some(Owned {
            queue,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: Backlog::default(),
            staged: 0,
            submit_at: 1,
            dead: false,
            turns: 1,
            ended: 0,
            announced: Announced::default(),
            bell,
            bell_polled: false,
            for_pool: Vec::new(),
            completions: Vec::with_capacity(depth as usize),
        })
    }

    /// Takes the slots that leave the queue; [`Leaving::go`] is called with nothing locked.
    pub(super) fn take_leaving(&mut self) -> Option<Leaving> {
        if self.for_pool.is_empty() && !self.backlog.has_shed() {
            return None;
        }
        let shed = self.backlog.take_shed();
        self.backlog.discarded(shed.len());
        Some(Leaving { for_pool: std::mem::take(&mut self.for_pool), shed })
    }

    pub(super) fn accept(&mut self, slot: Arc<Slot>) {
        if self.dead {
            self.for_pool.push(slot);
        } else if self.free.is_empty() && slot.is_below(PLACES_MIN) {
            // The operations in all these places may never end.
            self.for_pool.push(slot);
        } else if self.free.is_empty() {
            slot.count(Count::Queued);
            self.backlog.push(slot);
        } else {
            self.push(slot);
        }
    }

    /// Gives a slot one of the free places and stages its entry.
    fn push(&mut self, slot: Arc<Slot>) {
        let Some(entry) = self.queue.encode(&slot) else { return self.for_pool.push(slot) };
        let Some(place) = self.free.pop() else { return self.backlog.push(slot) };
        // Only now that one more follows: the last entries of a turn are left to the call that
        // waits.
        if Q::LEAVES_EARLY && self.staged >= self.submit_at {
            self.submit();
        }
        if self.dead {
            self.free.push(place);
            return self.for_pool.push(slot);
        }
        let Profile { is_long, buffered_read } = slot.profile();
        self.slots[place as usize] = Some(slot);
        let user_data = u64::from(place);
        if buffered_read.is_some_and(|(file, is_announced)| self.announced.takes(user_data, file, is_announced)) {
            return self.announced.add(place);
        }
        self.push_entry(&entry, user_data);
        if is_long && self.staged > 0 {
            self.submit();
        }
    }

    fn push_entry(&mut self, entry: &Q::Entry, user_data: u64) {
        // The bell's entry is one more than there are places. The queue is flushed when it is full.
        // SAFETY: the entry's memory belongs to a slot that stays in `slots` until its completion
        // (the bell's entry has none), and its descriptor to the slot's handle.
        while !unsafe { self.queue.push(entry, user_data) } {
            self.submit();
            if self.dead {
                return self.hand_on(user_data);
            }
        }
        self.staged += 1;
    }

    /// Hands on a slot that the kernel never gets.
    fn hand_on(&mut self, user_data: u64) {
        if let Some(slot) = self.slots.get_mut(user_data as usize).and_then(Option::take) {
            self.free.push(user_data as u32);
            self.for_pool.push(slot);
        }
    }

    /// Hands on every slot that the kernel has not taken, now that it refuses further calls. Later
    /// ones follow.
    fn give_up(&mut self) {
        self.dead = true;
        for user_data in self.queue.take_back() {
            self.hand_on(user_data);
        }
        for place in self.announced.take() {
            self.hand_on(u64::from(place));
        }
        while let Some(slot) = self.backlog.pop() {
            self.for_pool.push(slot);
        }
    }

    /// Submits staged entries without waiting. Those that a failed call leaves go with the next
    /// one.
    pub(super) fn submit(&mut self) {
        if !self.queue.submit() {
            return self.give_up();
        }
        self.staged = 0;
        self.submit_at = (self.submit_at * 2 + 1).min(self.slots.len());
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.in_flight() > 0 || self.backlog.len() > 0
    }

    /// Gives free places to slots in line, which came before whatever the woken futures will
    /// submit.
    pub(super) fn fill(&mut self) {
        while !self.free.is_empty() {
            let Some(slot) = self.backlog.pop() else { break };
            self.push(slot);
        }
    }

    /// Hands the line on to the pool if no operation ends here.
    pub(super) fn relieve_line(&mut self) {
        if self.backlog.len() > 0 {
            let stuck = self.backlog.take_stuck(self.ended, Instant::now());
            self.backlog.discarded(stuck.len());
            self.for_pool.extend(stuck);
        }
    }

    pub(super) fn poll_bell(&mut self) {
        if !self.bell_polled {
            if let Some(fd) = self.bell.descriptor() {
                let entry = Q::poll(fd.as_fd());
                self.push_entry(&entry, BELL);
                self.bell_polled = true;
            }
        }
    }

    /// Submits staged entries, waits for `want` completions, and moves all available ones into
    /// `completions`.
    pub(super) fn enter(&mut self, want: usize, patience: Option<Duration>) {
        self.turns += 1;
        match self.has_uncollected() {
            true if self.staged == 0 => {}
            true => self.wait(0, None),
            false => self.wait(want, patience),
        }
        self.reap(true);
    }

    /// Moves available completions into `completions`, without a system call.
    pub(super) fn look(&mut self) {
        self.turns += 1;
        self.reap(true);
    }

    /// A helper's visit, which waits for nothing.
    pub(super) fn help(&mut self) {
        self.enter_announced();
        self.wait(0, None);
        self.reap(false);
    }

    fn wait(&mut self, want: usize, patience: Option<Duration>) {
        self.staged = 0;
        self.submit_at = 1;
        if !self.queue.wait(want, patience) {
            self.give_up();
            // The kernel's operations are lost with the queue. Do not spin on it.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn reap(&mut self, is_owner: bool) {
        let Owned { queue, slots, free, completions, bell, bell_polled, ended, announced, .. } = self;
        queue.reap(|user_data, result| {
            if user_data == BELL {
                *bell_polled = false;
                // Not by a helper: the thread may be about to read it, for another queue.
                if is_owner {
                    bell.clear();
                }
            } else if let Some(slot) = slots.get_mut(user_data as usize).and_then(Option::take) {
                free.push(user_data as u32);
                *ended += 1;
                completions.push((slot, result));
                announced.ended(user_data);
            }
        });
        self.collect_announced();
    }
}

impl<Q: Queue> Drop for Owned<Q> {
    /// Runs with nothing in flight, or in a child, on its copy.
    fn drop(&mut self) {
        // Memory that the kernel still has must stay allocated for good.
        self.slots.drain(..).flatten().for_each(std::mem::forget);
        if !self.queue.is_ours() {
            // These belong to the parent, and hold its locks.
            std::mem::forget(std::mem::take(&mut self.backlog));
            std::mem::forget(std::mem::take(&mut self.for_pool));
            std::mem::forget(std::mem::take(&mut self.completions));
        }
    }
}
