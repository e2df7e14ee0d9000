//! Several queues, each of which some threads use, so that the short lock around a submission is
//! rarely contended.

#[cfg(feature = "tokio")]
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Mutex};

use super::QueueRefusal;
use super::queue::Queue;
#[cfg(feature = "tokio")]
use crate::op::watcher;
use crate::stats::thread_number;
use crate::sync::lock;

/// Rings that one instance, or one runtime, makes at most: beyond that, threads share. Each costs
/// a descriptor and, with `DEPTH` entries, 28 KiB of memory that counts as locked.
pub(super) const QUEUES_MAX: usize = 64;

/// The queues of an instance or of a runtime, and which thread uses which.
#[derive(Default)]
pub(super) struct Queues(Mutex<Members>);

#[derive(Default)]
struct Members {
    queues: Vec<Arc<Queue>>,
    /// Threads in order of their first submission; a thread's place decides its queue.
    threads: Vec<usize>,
}

impl Queues {
    /// Returns this thread's queue. Makes one, for a place, while fewer than `max` exist and each
    /// has a thread; if that fails, existing ones serve.
    pub(super) fn mine(
        &self,
        max: usize,
        make: impl FnOnce(usize) -> Result<Arc<Queue>, QueueRefusal>,
    ) -> Result<Arc<Queue>, QueueRefusal> {
        /// Threads that are remembered; later ones share by number.
        const THREADS_MAX: usize = 256;
        let thread = thread_number();
        let mut members = lock(&self.0);
        let place = match members.threads.iter().position(|known| *known == thread) {
            Some(place) => place,
            None if members.threads.len() < THREADS_MAX => {
                members.threads.push(thread);
                members.threads.len() - 1
            }
            None => thread,
        };
        if place >= members.queues.len() && members.queues.len() < max {
            match make(members.queues.len()) {
                Ok(queue) => members.queues.push(queue),
                Err(refusal) if members.queues.is_empty() => return Err(refusal),
                Err(_) => {}
            }
        }
        let index = place % members.queues.len();
        Ok(members.queues[index].clone())
    }

    pub(super) fn add(&self, queue: Arc<Queue>) {
        lock(&self.0).queues.push(queue);
    }

    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        lock(&self.0).queues.clone()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn remove(&self, queue: &Arc<Queue>) {
        queue.retired.store(true, Release);
        lock(&self.0).queues.retain(|known| !Arc::ptr_eq(known, queue));
        watcher::leave(queue.clone());
    }

    /// Marks these queues, so that threads which know one look for another.
    #[cfg(feature = "tokio")]
    pub(super) fn retire(&self) {
        lock(&self.0).queues.iter().for_each(|queue| queue.retired.store(true, Release));
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Nothing submits any more: the operations that could have their instance have ended.
        self.all().iter().for_each(Queue::leave);
    }
}
