//! Queues for futures on any executor: any thread may submit, any thread may reap.
//!
//! The engine has a few rings (`queue`), or one context of libaio, for direct I/O where io_uring is
//! refused. Each thread prefers one ring, so that the short lock around the submission queue is
//! rarely contended. Watchers notice completions
//! (`op/watcher`); in an attached tokio runtime, a task in tokio's reactor does (`tokio.rs`). A
//! queue lives until nothing is in flight, so that dropping the engine does not block. Memory of a
//! request that a dead device never completes is leaked, not freed.

use std::sync::Arc;

use crate::sys::Errno;

use super::known::{self, Key};
use super::queue::Queue;
use super::queues::{QUEUES_MAX, Queues};
use super::{Engine, QueueRefusal, Retry, local, loop_ring, pool};
use crate::op::Slot;
use crate::op::watcher::{self, NoticedBy};
use crate::sys;
use crate::turn;

/// The engine over queues to the kernel.
pub(crate) struct SharedQueues {
    /// Identifies the engine in each thread's note of its last ring.
    number: u64,
    /// Makes a queue, for a place.
    make: fn(usize) -> Result<Arc<Queue>, QueueRefusal>,
    queues: Queues,
    queues_max: usize,
    /// Whether the queues are rings, or libaio.
    are_rings: bool,
    refused: Retry,
    #[cfg(feature = "tokio")]
    runtimes: super::tokio::Runtimes,
}

impl SharedQueues {
    /// Makes an engine over rings, as [`libaio`](SharedQueues::libaio) does over a context. If
    /// locked memory is short, it returns the refusal: libaio then serves direct I/O better than
    /// the pool.
    pub(crate) fn rings() -> Result<(SharedQueues, Option<QueueRefusal>), QueueRefusal> {
        let make = |place| Queue::new(NoticedBy::Watcher, place);
        SharedQueues::try_first(make, true, |errno| errno != Errno::NOMEM)
    }

    /// Makes the first queue, so that a refusal is known at once. After a shortage that may pass,
    /// it returns the engine with that shortage, and the engine tries again.
    pub(crate) fn libaio() -> Result<(SharedQueues, Option<QueueRefusal>), QueueRefusal> {
        SharedQueues::try_first(Queue::libaio, false, |_| true)
    }

    fn try_first(
        make: fn(usize) -> Result<Arc<Queue>, QueueRefusal>,
        are_rings: bool,
        tries_again: fn(Errno) -> bool,
    ) -> Result<(SharedQueues, Option<QueueRefusal>), QueueRefusal> {
        let engine = SharedQueues {
            number: known::next_engine(),
            make,
            queues: Queues::default(),
            queues_max: if are_rings { sys::processors().min(QUEUES_MAX) } else { 1 },
            are_rings,
            refused: Retry::default(),
            #[cfg(feature = "tokio")]
            runtimes: super::tokio::Runtimes::default(),
        };
        match make(0) {
            Ok(first) => engine.queues.add(first),
            Err(refusal) if refusal.passes() && tries_again(refusal.errno) => return Ok((engine, Some(refusal))),
            Err(refusal) => return Err(refusal),
        }
        Ok((engine, None))
    }

    /// Returns the queue for this thread, or `None` if no party would notice its completions.
    fn queue(&self) -> Option<Arc<Queue>> {
        #[cfg(feature = "tokio")]
        let may_be_a_runtimes = self.are_rings && !local::is_elsewhere() && !pool::is_own_thread();
        #[cfg(feature = "tokio")]
        if let Some(queue) = may_be_a_runtimes.then(|| self.runtimes.queue(self.number)).flatten() {
            return Some(queue);
        }
        let queue = known::find_or(Key::common(self.number), || {
            let mine = || self.queues.mine(self.queues_max, self.make, |_| ()).ok();
            self.refused.when_due(mine)
        })?;
        watcher::adopt(&queue).then_some(queue)
    }
}

impl Engine for SharedQueues {
    fn submit(&self, slot: Arc<Slot>) {
        let mut slot = slot;
        if self.are_rings {
            match local::stage(slot) {
                Ok(()) => return,
                Err(back) => slot = back,
            }
            if let Some(queue) = loop_ring::current().filter(|_| !pool::is_own_thread()) {
                return queue.submit(slot, false);
            }
        }
        match self.queue() {
            // The kernel completes a request in the thread that submitted it, unless that sleeps
            // uninterruptibly. A thread of the pool may, from now on, for another file. So the
            // watcher submits to a ring.
            Some(queue) if self.are_rings && pool::is_own_thread() => {
                queue.submit(slot, false);
                watcher::look(&*queue);
            }
            Some(queue) => {
                turn::submits_to(&queue);
                queue.submit(slot, true);
            }
            None => pool::hand_on(slot),
        }
    }

    /// Where a reactor notices completions. (A watcher wakes each future on another thread, whatever
    /// the ring has.)
    #[cfg(feature = "tokio")]
    fn takes_announced(&self, file: &Arc<crate::op::OpenFile>) -> bool {
        let takes = |queue: Arc<Queue>| queue.is_in_reactor() && queue.takes_announced(Arc::as_ptr(file).addr());
        self.are_rings
            && !local::is_driving()
            && !pool::is_own_thread()
            && loop_ring::current().is_none()
            && self.queue().is_some_and(takes)
    }

    #[cfg(feature = "tokio")]
    fn attach_tokio(&self) -> crate::error::Result<()> {
        self.runtimes.attach()
    }

    #[cfg(feature = "tokio")]
    fn has_unattached_runtime(&self) -> bool {
        self.runtimes.has_unattached()
    }

    fn is_refused(&self) -> bool {
        self.queues.all().is_empty() && self.queue().is_none()
    }

    fn drain(&self) {
        #[cfg(feature = "tokio")]
        self.runtimes.all().iter().for_each(|queue| queue.drain());
        self.queues.all().iter().for_each(|queue| queue.drain());
    }
}

#[cfg(feature = "tokio")]
impl Drop for SharedQueues {
    fn drop(&mut self) {
        self.runtimes.close();
    }
}
