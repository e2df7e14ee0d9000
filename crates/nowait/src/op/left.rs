//! Small writes that tasks left in their file's queue. The next poll of one of these tasks makes
//! all of them (`core/combine.rs`). Each has its place in the order of the file's changes.

use std::sync::{Arc, Mutex};

use super::queue::{FileQueues, QueueKind, Waiter, Waiting};
use super::request::Request;
use super::slot::Slot;
use super::watcher::{self, Glance, Note, NoticedBy, Watched};
use crate::sync::lock;
use crate::sys::{PerProcess, WriteFlags};

/// Limits of the writes, and of their bytes, that are left in one queue.
const LEFT_MAX: usize = 256;
const LEFT_BYTES_MAX: usize = 256 << 10;

/// The party that makes a write which was left in a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftTo {
    /// Its own task at the next poll, unless another task is polled earlier.
    Itself,
    /// A task that left an earlier write, or the owner of the queue.
    Another,
    /// This thread at once: a limit is reached, or no watcher runs.
    Now,
}

/// A write that was left in a queue.
pub(crate) struct LeftWrite {
    pub(crate) slot: Arc<Slot>,
    pub(crate) offset: u64,
    pub(crate) length: usize,
}

/// Notes of a queue on the writes that were left there.
#[derive(Default)]
pub(super) struct Left {
    /// Bytes left since the queue was last empty.
    bytes: usize,
    /// Number of times that a task claimed the queue to make left writes.
    claims: u64,
    /// Whether a watcher glances at the file.
    is_watched: bool,
}

impl FileQueues {
    /// Leaves a write of `length` bytes.
    pub(crate) fn leave_write(self: &Arc<Self>, slot: Arc<Slot>, length: usize) -> LeftTo {
        let mut waiting = self.of(QueueKind::Writes).lock();
        let is_first = waiting.waiters.is_empty();
        waiting.left.bytes = length + if is_first { 0 } else { waiting.left.bytes };
        waiting.waiters.push_back(Waiter::Slot(slot));
        let is_full = waiting.waiters.len() >= LEFT_MAX || waiting.left.bytes >= LEFT_BYTES_MAX;
        let left_to = match waiting.busy {
            true => LeftTo::Another,
            false if is_full => LeftTo::Now,
            false if is_first => LeftTo::Itself,
            false => LeftTo::Another,
        };
        let is_watched = std::mem::replace(&mut waiting.left.is_watched, true);
        drop(waiting);
        if !is_watched {
            lock(&Watching::of_process().files).push((self.clone(), 0));
        }
        // The file enters the list before this call, so that no glance misses it. Without glances,
        // the write would wait until a task is polled.
        if watcher::watch() { left_to } else { LeftTo::Now }
    }

    /// Claims the queue, unless this thread owns it, and takes the writes at its front. Returns
    /// `None` if there is no write, or another thread owns the queue. Adds abandoned writes to
    /// `abandoned`; the caller discards these when it has given up the queue.
    pub(crate) fn take_left(&self, is_claimed: bool, abandoned: &mut Vec<Arc<Slot>>) -> Option<Vec<LeftWrite>> {
        let plain_write = |request: &Request| match request {
            Request::Write(transfer, WriteFlags::NONE) => Some((transfer.position(), transfer.left())),
            _ => None,
        };
        let mut waiting = self.of(QueueKind::Writes).lock();
        if waiting.waiters.is_empty() || (!is_claimed && waiting.busy) {
            return None;
        }
        let mut writes = Vec::with_capacity(waiting.waiters.len());
        while let Some(waiter) = waiting.waiters.pop_front() {
            let slot = match waiter {
                Waiter::Slot(slot) => slot,
                thread => {
                    waiting.waiters.push_front(thread);
                    break;
                }
            };
            match slot.with_wanted(plain_write) {
                Some(Some((offset, length))) => writes.push(LeftWrite { slot, offset, length }),
                Some(None) => {
                    waiting.waiters.push_front(Waiter::Slot(slot));
                    break;
                }
                None => abandoned.push(slot),
            }
        }
        if writes.is_empty() {
            return None;
        }
        waiting.busy = true;
        waiting.left.claims += 1;
        Some(writes)
    }

    /// Puts writes back to the front of the queue, which this thread owns.
    pub(crate) fn put_back(&self, writes: Vec<LeftWrite>) {
        if !writes.is_empty() {
            let mut waiting = self.of(QueueKind::Writes).lock();
            writes.into_iter().rev().for_each(|write| waiting.waiters.push_front(Waiter::Slot(write.slot)));
        }
    }

    /// Whether the queue contains left writes, and no thread was called for them.
    pub(crate) fn has_left(&self) -> bool {
        self.of(QueueKind::Writes).lock().has_left()
    }

    /// Passes left writes to the pool.
    pub(crate) fn hand_over_left(&self) {
        let mut waiting = self.of(QueueKind::Writes).lock();
        // The first write joins the queue again, which calls a pool thread for all.
        let first = if waiting.has_left() { waiting.waiters.pop_front() } else { None };
        drop(waiting);
        let Some(slot) = first.and_then(Waiter::into_slot) else { return };
        // A slot keeps its owner until it ends, and only the owner of the queue ends it.
        if let Some(home) = slot.with(|_, owner| owner.home()) {
            home.take(slot);
        }
    }

    /// Returns true if no task claimed the queue since the last glance, which saw `claims`; updates
    /// `claims`. Returns `None` if no write is left: then glances at the file end.
    pub(crate) fn glance(&self, claims: &mut u64) -> Option<bool> {
        let mut waiting = self.of(QueueKind::Writes).lock();
        let is_same = std::mem::replace(claims, waiting.left.claims) == waiting.left.claims;
        if is_same && !waiting.has_left() {
            waiting.left.is_watched = false;
            return None;
        }
        Some(is_same)
    }
}

impl Waiting {
    fn has_left(&self) -> bool {
        !self.busy && !self.waiters.is_empty()
    }
}

/// Passes the left writes of all files to the pool.
pub(crate) fn hand_over() {
    Watching::of_process().serve();
}

/// The files in whose queues writes may be left, and how often each queue was claimed up to the
/// last glance.
#[derive(Default)]
struct Watching {
    files: Mutex<Vec<(Arc<FileQueues>, u64)>>,
    note: Note,
}

impl Watching {
    fn of_process() -> &'static Arc<Watching> {
        static WATCHING: PerProcess<Arc<Watching>> = PerProcess::new();
        watcher::list_of_process(&WATCHING)
    }

    fn files(&self) -> Vec<Arc<FileQueues>> {
        lock(&self.files).iter().map(|(queues, _)| queues.clone()).collect()
    }
}

impl Watched for Watching {
    fn noticed_by(&self) -> NoticedBy {
        NoticedBy::Thread
    }

    fn note(&self) -> &Note {
        &self.note
    }

    fn serve(&self) {
        self.files().iter().for_each(|queues| queues.hand_over_left());
    }

    fn is_quiet(&self) -> bool {
        !self.files().iter().any(|queues| queues.has_left())
    }

    fn glance(&self) -> Glance {
        // Files leave the list under the lock, and are dropped without it.
        let (mut is_late, mut gone) = (false, Vec::new());
        let mut files = lock(&self.files);
        files.retain_mut(|(queues, claims)| match queues.glance(claims) {
            Some(late) => {
                is_late |= late;
                true
            }
            None => {
                gone.push(queues.clone());
                false
            }
        });
        let is_empty = files.is_empty();
        drop(files);
        match (is_late, is_empty) {
            (true, _) => Glance::Left,
            (false, true) => Glance::Quiet,
            (false, false) => Glance::Busy,
        }
    }
}
