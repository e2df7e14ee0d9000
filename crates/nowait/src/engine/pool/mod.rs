//! Pools of threads: they serve requests for which io_uring would use a kernel worker, and all
//! requests if io_uring is refused.
//!
//! A pool is a queue under one lock. Its threads start on demand, up to a limit, and end when idle.
//! They keep the queue alive, so that dropping an engine does not block.
//!
//! A device or server that does not answer occupies threads. If work waits and nothing has ended
//! for a second, more threads start, for files with few operations under way. So a file that hangs
//! stops no other file. If no thread can be started, the pool tries again at intervals.
//!
//! An operation that waits for a device occupies a thread. An announced read is in progress before
//! a thread takes it, so one thread collects several: fewer threads sleep and wake for the same
//! depth at the device.
//!
//! One thread at a time makes the buffered writes and syncs of a file, in order: others would only
//! wait for the file's lock in the kernel. Adjacent writes become one call. Syncs that are
//! requested during a sync share the next one.
//!
//! Leftovers of ended operations are dropped here, which may take long and may panic: closing a
//! file, unmapping, users' destructors.
//!
//! An instance has a pool for each device ([`Pools`]): a device that hangs or is slow occupies no
//! thread of another device's pool.

mod file_queue;
mod handoff;
mod pools;
mod threads;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

pub(crate) use self::handoff::{discard, hand_on, settle};
pub(crate) use self::pools::{Pools, of_process};
pub(crate) use self::threads::is_own_thread;
use self::threads::{call, takes_next, wait};
use super::Engine;
use crate::op::{Backlog, FileQueues, Leftovers, OpenFile, QueueKind, SHARE, Slot, on_threads};
use crate::sync::lock;

/// As many threads as a device usefully has reads in flight; they exist only while there is work
/// for them.
pub(crate) const THREADS_MAX: usize = 64;

/// The threads of one device in an instance.
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Wakes the thread that stands by.
    relief: Condvar,
    quiet: Condvar,
    threads_max: usize,
}

/// The work of one thread, and an announced read's share of it.
const THREAD: usize = 8;
const ANNOUNCED: usize = 1;

/// One of a file's queues.
type FileQueueRef = (Arc<FileQueues>, QueueKind);

#[derive(Default)]
struct State {
    queue: Backlog,
    /// Per-file queues with pending work and no thread draining them.
    file_queues: VecDeque<FileQueueRef>,
    /// Leftovers of ended operations, to be dropped.
    leftovers: VecDeque<Leftovers>,
    letting_go: usize,
    /// Most threads that drop leftovers at a time: a server that does not answer a `close(2)`
    /// occupies at most these.
    letting_go_max: usize,
    /// The queue has its turn before the next file's.
    queue_first: bool,
    /// The running work, in parts of a thread.
    load: usize,
    threads: usize,
    /// Sleeping threads that were not called.
    idle: usize,
    /// Calls that no thread has answered yet.
    calls: usize,
    running: usize,
    /// Counts turns that threads other than reliefs have ended.
    ended: u64,
    /// A thread stands by, and watches whether anything ends while work waits.
    stands_by: bool,
    /// The thread that stands by has found that nothing ends.
    stuck: bool,
    reliefs: usize,
    closing: bool,
}

impl State {
    /// Threads that running and waiting work keeps busy.
    fn wanted(&self) -> usize {
        let announced = self.queue.announced();
        let leftovers = self.leftovers.len().min(self.letting_go_max - self.letting_go);
        let whole = self.file_queues.len() + self.queue.len() - announced + leftovers;
        let waiting = whole * THREAD + announced * ANNOUNCED;
        (self.load + waiting).div_ceil(THREAD)
    }

    fn has_work(&self) -> bool {
        self.queue.len() > 0 || !self.file_queues.is_empty() || self.lets_go()
    }

    /// There are leftovers, and not too many threads drop some.
    fn lets_go(&self) -> bool {
        !self.leftovers.is_empty() && self.letting_go < self.letting_go_max
    }

    fn nothing_waits(&self) -> bool {
        self.queue.len() == 0 && self.file_queues.is_empty() && self.leftovers.is_empty()
    }

    fn is_quiet(&self) -> bool {
        self.running == 0 && self.queue.is_quiet() && self.file_queues.is_empty() && self.leftovers.is_empty()
    }

    /// Takes work that a relief may do while the other threads hang.
    fn next_for_relief(&mut self) -> (Option<Arc<Slot>>, Option<FileQueueRef>) {
        // No thread is at work for a file whose queue is here.
        match self.file_queues.pop_front() {
            Some(file_queue) => (None, Some(file_queue)),
            None => (self.queue.pop_below(SHARE, on_threads), None),
        }
    }

    /// Notes that work has begun which takes `weight` of a thread.
    fn begins(&mut self, weight: usize) {
        self.running += 1;
        self.load += weight;
    }

    fn ends(&mut self, weight: usize) {
        self.running -= 1;
        self.load -= weight;
    }
}

impl Pool {
    pub(crate) fn new(threads_max: usize) -> Pool {
        let threads_max = threads_max.max(1);
        let state = State { letting_go_max: threads_max.div_ceil(2), ..State::default() };
        Pool(Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            relief: Condvar::new(),
            quiet: Condvar::new(),
            threads_max,
        }))
    }
}

impl Engine for Pool {
    fn submit(&self, slot: Arc<Slot>) {
        match slot.with(|request, owner| owner.queue(request)).flatten() {
            Some((file_queues, kind)) => {
                if file_queues.of(kind).join(slot) {
                    self.add(|state| state.file_queues.push_back((file_queues, kind)));
                }
            }
            None => self.add(|state| state.queue.push(slot)),
        }
    }

    fn submit_last(&self, slot: Arc<Slot>) {
        let mut state = lock(&self.0.state);
        if takes_next(&self.0) && state.nothing_waits() {
            // No other thread is called: this one takes it next.
            return state.queue.push(slot);
        }
        drop(state);
        self.submit(slot);
    }

    fn resume(&self, file: &OpenFile, kind: QueueKind) {
        let file_queues = file.queues();
        if file_queues.of(kind).leave() {
            self.add(|state| state.file_queues.push_back((file_queues.clone(), kind)));
        }
    }

    fn drain(&self) {
        let mut state = lock(&self.0.state);
        while !state.is_quiet() {
            state = wait(&self.0.quiet, state);
        }
    }
}

impl Pool {
    /// Drops leftovers on one of its threads.
    pub(crate) fn let_go(&self, leftovers: Leftovers) {
        self.add(|state| state.leftovers.push_back(leftovers));
    }

    fn is_idle(&self) -> bool {
        lock(&self.0.state).is_quiet()
    }

    /// Adds work, and calls a thread for it.
    fn add(&self, add: impl FnOnce(&mut State)) {
        let shared = &self.0;
        let mut state = lock(&shared.state);
        add(&mut state);
        let shed = state.queue.take_shed();
        if !shed.is_empty() {
            drop(state);
            let count = shed.len();
            discard(shed);
            state = lock(&shared.state);
            state.queue.discarded(count);
        }
        call(shared, state);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.0.state).closing = true;
        self.0.work.notify_all();
        self.0.relief.notify_all();
    }
}
