//! Rings for futures on any executor: any thread may submit, any thread may reap.
//!
//! The engine has a few rings (`queue`). Each thread prefers one of them, so that the short lock
//! around the submission queue is rarely contended. Watchers notice completions
//! (`op/watcher`); in an attached tokio runtime, a task in tokio's reactor does (`tokio.rs`). A
//! queue lives until nothing is in flight, so that dropping the engine does not block. Memory of a
//! request that a dead device never completes is leaked, not freed.

use std::sync::Arc;

use rustix::io::Errno;

use super::known::{self, Key};
use super::queue::Queue;
use super::queues::{QUEUES_MAX, Queues};
use super::{Engine, Refusal, Retry, local, loop_ring, pool};
use crate::op::Slot;
use crate::op::watcher::{self, NoticedBy};
use crate::sys;
use crate::turn;

/// The ring engine.
pub(crate) struct Uring {
    /// Names it in what threads know.
    number: u64,
    queues: Queues,
    queues_max: usize,
    refused: Retry,
    #[cfg(feature = "tokio")]
    runtimes: super::tokio::Runtimes,
}

impl Uring {
    /// Tries to make a first ring, so that a refusal is known at once. A shortage that passes is
    /// returned with the engine, which tries again. (Short of locked memory, libaio is the better
    /// engine for direct I/O.)
    pub(crate) fn new() -> Result<(Uring, Option<Refusal>), Refusal> {
        let engine = Uring {
            number: known::next_engine(),
            queues: Queues::default(),
            queues_max: sys::processors().min(QUEUES_MAX),
            refused: Retry::default(),
            #[cfg(feature = "tokio")]
            runtimes: super::tokio::Runtimes::default(),
        };
        match Queue::new(NoticedBy::Watcher, 0) {
            Ok(first) => engine.queues.add(first),
            Err(refusal) if refusal.passes() && refusal.errno != Errno::NOMEM => return Ok((engine, Some(refusal))),
            Err(refusal) => return Err(refusal),
        }
        Ok((engine, None))
    }

    /// The ring for this thread; none if its completions would not be noticed.
    fn queue(&self) -> Option<Arc<Queue>> {
        #[cfg(feature = "tokio")]
        let may_be_a_runtimes = !local::is_elsewhere() && !pool::is_own_thread();
        #[cfg(feature = "tokio")]
        if let Some(queue) = may_be_a_runtimes.then(|| self.runtimes.queue(self.number)).flatten() {
            return Some(queue);
        }
        let queue = known::find_or(Key::common(self.number), || {
            let mine = || self.queues.mine(self.queues_max, |place| Queue::new(NoticedBy::Watcher, place)).ok();
            self.refused.when_due(mine)
        })?;
        watcher::adopt(&queue).then_some(queue)
    }
}

impl Engine for Uring {
    fn submit(&self, slot: Arc<Slot>) {
        let Err(slot) = local::stage(slot) else { return };
        if let Some(queue) = loop_ring::current().filter(|_| !pool::is_own_thread()) {
            return queue.submit(slot, false);
        }
        match self.queue() {
            // The kernel completes a request in the thread that submitted it, unless that sleeps
            // uninterruptibly. A thread of the pool may, from now on, for another file. So the
            // watcher submits.
            Some(queue) if pool::is_own_thread() => {
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
        !local::is_driving()
            && !pool::is_own_thread()
            && loop_ring::current().is_none()
            && self.queue().is_some_and(takes)
    }

    #[cfg(feature = "tokio")]
    fn attach_tokio(&self) -> std::io::Result<()> {
        self.runtimes.attach()
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
impl Drop for Uring {
    fn drop(&mut self) {
        self.runtimes.close();
    }
}
