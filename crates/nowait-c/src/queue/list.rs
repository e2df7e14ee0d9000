//! A queue's operations, the list of those that may have ended, and the descriptor that is readable
//! while the list has entries.
//!
//! The reaping thread notices the ring's completions; the queue's descriptor covers the ring's.
//! Other threads list the operations that they complete, and set an event.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};

use nowait::embed::LoopRing;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::operation::{Awaited, QueuedOperation};
use crate::failure::{Failure, Result};

/// The operations of a queue.
pub(super) struct CompletionQueue {
    operations: Mutex<Operations>,
    /// Readable while operations are listed and no thread reaps.
    event: OwnedFd,
    /// Ring for reads, and an epoll of its descriptor and the event; None if io_uring is refused.
    ring: Option<(LoopRing, OwnedFd)>,
}

#[derive(Default)]
struct Operations {
    /// Operations that may have ended.
    listed: VecDeque<Arc<QueuedOperation>>,
    /// All operations, one per slot.
    slots: Vec<OperationSlot>,
    vacant: Vec<u32>,
    is_closed: bool,
    /// Number of threads that reap now.
    reaping: u32,
    /// True if the event is set.
    is_set: bool,
}

#[derive(Default)]
struct OperationSlot {
    generation: u32,
    operation: Option<Arc<QueuedOperation>>,
}

impl Operations {
    fn check_open(&self) -> Result<()> {
        match self.is_closed {
            true => Err(Failure::new(libc::EBADF, "the queue was closed")),
            false => Ok(()),
        }
    }
}

impl OperationSlot {
    fn is_of(&self, number: u64) -> bool {
        u64::from(self.generation) == number >> 32
    }
}

impl CompletionQueue {
    pub(super) fn new() -> Result<Arc<CompletionQueue>> {
        let no_descriptor = |errno: Errno| {
            let text = format!("a queue needs descriptors: {errno}; raise the limit (ulimit -n)");
            Failure::new(errno.raw_os_error(), text)
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_descriptor)?;
        let ring = match LoopRing::new() {
            Ok(ring) => {
                let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(no_descriptor)?;
                let (data, readable) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                epoll::add(&both, &event, data, readable).map_err(no_descriptor)?;
                epoll::add(&both, &ring, data, readable).map_err(no_descriptor)?;
                Some((ring, both))
            }
            Err(_) => None,
        };
        Ok(Arc::new(CompletionQueue { operations: Mutex::default(), event, ring }))
    }

    /// Returns the descriptor, which is readable when there may be completions.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.as_ref().map_or(&self.event, |(_, both)| both).as_fd()
    }

    /// Calls `start`, which starts operations. One system call submits those for a ring.
    pub(super) fn batch<T>(&self, start: impl FnOnce() -> T) -> T {
        match &self.ring {
            Some((ring, _)) => ring.submit(start),
            None => start(),
        }
    }

    /// Calls `start`, which starts `count` operations, as `batch` does.
    pub(super) fn batch_many<T>(&self, count: usize, start: impl FnOnce() -> T) -> T {
        match &self.ring {
            Some((ring, _)) if count > 1 => ring.submit_many(start),
            _ => self.batch(start),
        }
    }

    fn operations(&self) -> MutexGuard<'_, Operations> {
        self.operations.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes an operation, which stays in the queue until its completion is reaped.
    pub(super) fn open(self: &Arc<Self>, user: usize) -> Result<Opened> {
        let operations = &mut *self.operations();
        operations.check_open()?;
        let slot = match operations.vacant.pop() {
            Some(slot) => slot,
            None => {
                let Ok(slot) = u32::try_from(operations.slots.len()) else {
                    return Err(Failure::new(libc::EAGAIN, "the queue has 4294967296 operations; reap some"));
                };
                operations.slots.push(OperationSlot::default());
                slot
            }
        };
        let at = &mut operations.slots[slot as usize];
        // The generation is never 0, so no number is 0.
        at.generation = at.generation.checked_add(1).unwrap_or(1);
        let operation = QueuedOperation::new(self, u64::from(at.generation) << 32 | u64::from(slot), user);
        at.operation = Some(operation.clone());
        Ok(Opened(Some(operation)))
    }

    /// Finds an operation whose completion was not reaped.
    pub(super) fn find(&self, number: u64) -> Option<Arc<QueuedOperation>> {
        let operations = self.operations();
        let slot = operations.slots.get(number as u32 as usize).filter(|slot| slot.is_of(number));
        slot.and_then(|slot| slot.operation.clone())
    }

    /// Returns the number of operations whose completion was not reaped.
    pub(super) fn len(&self) -> usize {
        let operations = self.operations();
        operations.slots.len() - operations.vacant.len()
    }

    /// Fails if the queue is closed.
    pub(super) fn check_open(&self) -> Result<()> {
        self.operations().check_open()
    }

    /// Closes the queue, if it has no operations. Threads that sleep on the descriptor wake up.
    pub(super) fn close(&self) -> Result<()> {
        let mut operations = self.operations();
        match operations.slots.len() - operations.vacant.len() {
            0 => {
                operations.is_closed = true;
                self.set(&mut operations);
                Ok(())
            }
            left => {
                let text = format!(
                    "{left} operations of the queue were not reaped; reap them first, or cancel and then reap them"
                );
                Err(Failure::new(libc::EBUSY, text))
            }
        }
    }

    /// Lists an operation that may have ended.
    pub(super) fn add(operation: Arc<QueuedOperation>) {
        if operation.is_listed.swap(true, SeqCst) {
            return;
        }
        let queue = operation.queue.clone();
        let mut operations = queue.operations();
        operations.listed.push_back(operation);
        queue.tell(&mut operations);
    }

    /// Passes up to `room` completions to `take`; returns their number.
    pub(super) fn reap(&self, room: usize, mut take: impl FnMut(usize, &QueuedOperation, Result<u64>)) -> usize {
        let _reaping = Reaping::new(self);
        if let Some((ring, _)) = &self.ring {
            ring.notice();
        }
        let mut taken = 0;
        while taken < room {
            let Some(operation) = self.next() else { break };
            let Some(result) = operation.take() else { continue };
            self.vacate(operation.number);
            take(taken, &operation, result);
            taken += 1;
        }
        taken
    }

    fn next(&self) -> Option<Arc<QueuedOperation>> {
        let operation = self.operations().listed.pop_front()?;
        // Cleared before the operation is polled, so that a wake-up from now on lists it again. A
        // swap, not a store: a wake-up that found the operation listed then happens before the
        // poll.
        operation.is_listed.swap(false, SeqCst);
        Some(operation)
    }

    fn vacate(&self, number: u64) {
        let operations = &mut *self.operations();
        let slot = number as u32;
        let at = operations.slots.get_mut(slot as usize).filter(|at| at.is_of(number));
        if at.and_then(|at| at.operation.take()).is_some() {
            operations.vacant.push(slot);
        }
    }

    /// Sets the event if operations are listed and no thread reaps. A reaping thread takes them, or
    /// calls this when it leaves.
    fn tell(&self, operations: &mut Operations) {
        if operations.reaping == 0 && !operations.listed.is_empty() {
            self.set(operations);
        }
    }

    fn set(&self, operations: &mut Operations) {
        if !std::mem::replace(&mut operations.is_set, true) {
            // An eventfd counts to 2^64 - 2, so this write never blocks.
            _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.event, &1_u64.to_ne_bytes()));
        }
    }
}

/// An operation that has not begun. Dropping it removes it from the queue.
pub(super) struct Opened(Option<Arc<QueuedOperation>>);

impl Opened {
    pub(super) fn operation(&self) -> &Arc<QueuedOperation> {
        match &self.0 {
            Some(operation) => operation,
            None => unreachable!("it is taken by `begin` alone"),
        }
    }

    /// Begins to wait for `work`. A completion will follow.
    pub(super) fn begin(mut self, work: Awaited) {
        if let Some(operation) = self.0.take() {
            operation.begin(work);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(operation) = self.0.take() {
            operation.queue.vacate(operation.number);
        }
    }
}

/// A reaping thread. When it leaves, also by a panic, it announces the entries that it leaves in
/// the list.
struct Reaping<'q>(&'q CompletionQueue);

impl Reaping<'_> {
    fn new(queue: &CompletionQueue) -> Reaping<'_> {
        let operations = &mut *queue.operations();
        operations.reaping += 1;
        // The event of a closed queue stays set, so that every waiter wakes.
        if !operations.is_closed && std::mem::take(&mut operations.is_set) {
            let answer = rustix::io::retry_on_intr(|| rustix::io::read(&queue.event, &mut [0; 8]));
            debug_assert_eq!(answer, Ok(8));
        }
        Reaping(queue)
    }
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        let mut operations = self.0.operations();
        operations.reaping -= 1;
        self.0.tell(&mut operations);
    }
}
