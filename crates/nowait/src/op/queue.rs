//! Queues of one file in which operations are made one after the other, by whichever thread has
//! claimed the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::Thread;

use super::left::Left;
use super::outstanding::{Change, Outstanding, Resume};
use super::slot::Slot;
use crate::sync::loomed::{Mutex, MutexGuard, lock};
use crate::sys::{WriteOnce, tick_ns};

/// Per-file queue, drained by one thread at a time: the kernel would make others wait for the
/// file's lock.
#[derive(Default)]
pub(crate) struct FileQueue {
    waiting: Mutex<Waiting>,
    /// Length and begin of the owner's call. Both are hints: no order depends on them.
    call_bytes: AtomicU64,
    call_began_ns: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) waiters: VecDeque<Waiter>,
    /// A thread owns the queue, or was called to drain it. Otherwise all waiters are left writes.
    pub(crate) busy: bool,
    pub(super) left: Left,
}

/// A waiter in a queue.
pub(crate) enum Waiter {
    Slot(Arc<Slot>),
    /// A thread that does its own work. The thread that takes the waiter hands the queue over.
    Thread(Arc<Parked>),
}

impl Waiter {
    pub(crate) fn into_slot(self) -> Option<Arc<Slot>> {
        match self {
            Waiter::Slot(slot) => Some(slot),
            Waiter::Thread(_) => None,
        }
    }
}

/// A thread that waits in a queue.
pub(crate) struct Parked {
    owns: AtomicBool,
    thread: Thread,
}

impl Parked {
    /// Hands the queue to the thread.
    pub(crate) fn hand_over(&self) {
        self.owns.store(true, SeqCst);
        self.thread.unpark();
    }
}

/// Bound on the bytes in flight of all files of an instance.
pub(crate) trait Room: Resume {
    /// Returns the bytes of a finished change to the bound. Returns true if other changes may wait
    /// for it. Call this with no lock held.
    fn give_back(&self, queues: &FileQueues, change: &Change, number: u64) -> bool;
}

/// The queues of one file in one process.
#[derive(Default)]
pub(crate) struct FileQueues {
    queues: [FileQueue; 2],
    outstanding: Outstanding,
    /// Bound of the file's instance, kept here once for all permits: counting its shares, each write
    /// would write to a line that all threads share.
    room: WriteOnce<Arc<dyn Room>>,
}

impl FileQueues {
    pub(crate) fn outstanding(&self) -> &Outstanding {
        &self.outstanding
    }

    pub(crate) fn of(&self, kind: QueueKind) -> &FileQueue {
        &self.queues[kind as usize]
    }

    /// The room that bounds this file's writes; `make` gives it the first time.
    pub(super) fn room_or(&self, make: impl FnOnce() -> Arc<dyn Room>) -> &Arc<dyn Room> {
        self.room.get_or_init(make)
    }

    pub(super) fn room(&self) -> Option<&Arc<dyn Room>> {
        self.room.get()
    }
}

impl FileQueue {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Runs the owner's call of `bytes` bytes.
    pub(crate) fn call<T>(&self, bytes: u64, call: impl FnOnce() -> T) -> T {
        self.call_began_ns.store(tick_ns(), Relaxed);
        self.call_bytes.store(bytes, Relaxed);
        let result = call();
        self.call_bytes.store(0, Relaxed);
        result
    }

    /// Whether the owner makes a call that holds the file's lock for long: more than some tens of
    /// microseconds.
    pub(crate) fn is_in_long_call(&self) -> bool {
        const SHORT_BYTES_MAX: u64 = 64 << 10;
        /// A longer call waits for a device or a processor. The clock's ticks take some
        /// milliseconds.
        const SHORT_NS_MAX: u64 = 10_000_000;
        let bytes = self.call_bytes.load(Relaxed);
        let lasts_ns = || tick_ns().saturating_sub(self.call_began_ns.load(Relaxed));
        bytes > SHORT_BYTES_MAX || (bytes > 0 && lasts_ns() > SHORT_NS_MAX)
    }

    /// Claims the queue for this thread; false if another owns it.
    pub(crate) fn enter(&self) -> bool {
        !std::mem::replace(&mut self.lock().busy, true)
    }

    /// Claims the queue for this thread, which sleeps until those before it are done.
    pub(crate) fn enter_in_turn(&self) {
        let mut waiting = self.lock();
        if !std::mem::replace(&mut waiting.busy, true) {
            return;
        }
        let parked = Arc::new(Parked { owns: AtomicBool::new(false), thread: std::thread::current() });
        waiting.waiters.push_back(Waiter::Thread(parked.clone()));
        drop(waiting);
        while !parked.owns.load(SeqCst) {
            std::thread::park();
        }
    }

    /// Gives the queue up. True if a thread must be called for the waiters; a waiting thread that
    /// is next owns it already.
    pub(crate) fn leave(&self) -> bool {
        let mut waiting = self.lock();
        match waiting.waiters.pop_front() {
            Some(Waiter::Thread(next)) => {
                drop(waiting);
                next.hand_over();
                false
            }
            Some(waiter) => {
                waiting.waiters.push_front(waiter);
                true
            }
            None => {
                waiting.busy = false;
                false
            }
        }
    }

    /// Queues a slot; true if a thread must be called.
    pub(crate) fn join(&self, slot: Arc<Slot>) -> bool {
        let mut waiting = self.lock();
        waiting.waiters.push_back(Waiter::Slot(slot));
        !std::mem::replace(&mut waiting.busy, true)
    }
}

/// The queues of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Writes,
    Syncs,
}
