//! Rings for futures on any executor: any thread may submit, any thread may reap.
//!
//! The engine has a few rings (`queue`). Each thread prefers one of them, so that the short lock
//! around the submission queue is rarely contended. Reaper threads notice completions
//! (`reaper.rs`); in an attached tokio runtime, a task in tokio's reactor does (`tokio.rs`). A
//! queue lives until nothing is in flight, so that dropping the engine does not block. Memory of a
//! request that a dead device never completes is leaked, not freed.

use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::Weak;

use rustix::io::Errno;

use super::known::{self, Key};
use super::queue::{NoticedBy, Queue};
use super::queues::{QUEUES_MAX, Queues};
use super::reaper::Reapers;
use super::{Engine, Refusal, Retry, local, loop_ring, pool};
use crate::op::Slot;
#[cfg(feature = "tokio")]
use crate::op::help::{self, Helped};
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
    #[cfg(feature = "tokio")]
    _loans: Arc<Loans>,
    /// Dropped last: its drop rings the bells, and the reapers look whether others hold the rings.
    reapers: Arc<Reapers>,
}

impl Uring {
    /// Tries to make a first ring, so that a refusal is known at once. A shortage that passes is
    /// returned with the engine, which tries again. (Short of locked memory, libaio is the better
    /// engine for direct I/O.)
    pub(crate) fn new() -> Result<(Uring, Option<Refusal>), Refusal> {
        let reapers: Arc<Reapers> = Arc::default();
        #[cfg(feature = "tokio")]
        let runtimes = super::tokio::Runtimes::default();
        #[cfg(feature = "tokio")]
        let loans = Arc::new(Loans { runtimes: runtimes.clone(), reapers: Arc::downgrade(&reapers) });
        #[cfg(feature = "tokio")]
        help::register(Arc::downgrade(&loans) as Weak<dyn Helped>);
        let engine = Uring {
            number: known::next_engine(),
            reapers,
            queues: Queues::default(),
            queues_max: sys::processors().min(QUEUES_MAX),
            refused: Retry::default(),
            #[cfg(feature = "tokio")]
            runtimes,
            #[cfg(feature = "tokio")]
            _loans: loans,
        };
        match Queue::new(NoticedBy::Reaper, 0) {
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
        if let Some(queue) = may_be_a_runtimes.then(|| self.runtimes.queue(self.number, &self.reapers)).flatten() {
            return Some(queue);
        }
        let queue = known::find_or(Key::common(self.number), || {
            let mine = || self.queues.mine(self.queues_max, |place| Queue::new(NoticedBy::Reaper, place)).ok();
            self.refused.when_due(mine)
        })?;
        self.reapers.adopt(&queue).then_some(queue)
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
            // reaper submits.
            Some(queue) if pool::is_own_thread() => {
                queue.submit(slot, false);
                self.reapers.ring(&*queue);
            }
            Some(queue) => {
                turn::submits_to(&queue);
                queue.submit(slot, true);
            }
            None => pool::hand_on(slot),
        }
    }

    /// Where a reactor notices completions. (A reaper wakes each future on another thread, whatever
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

    fn lend_all(&self) {
        #[cfg(feature = "tokio")]
        self.runtimes.lend(&self.reapers);
        loop_ring::lend_all();
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

/// Rings of runtimes that may be blocked by their tasks.
#[cfg(feature = "tokio")]
struct Loans {
    runtimes: super::tokio::Runtimes,
    reapers: Weak<Reapers>,
}

#[cfg(feature = "tokio")]
impl Helped for Loans {
    /// Calls the reapers, not the helper.
    fn want(&self) -> bool {
        if let Some(reapers) = self.reapers.upgrade() {
            self.runtimes.lend(&reapers);
        }
        false
    }

    /// A runtime may be driven no more, and its operations awaited elsewhere on the same thread: the
    /// reaper takes rings where nothing ends from one glance to the next.
    fn glance(&self) -> bool {
        let Some(reapers) = self.reapers.upgrade() else { return false };
        self.runtimes.lend_left(&reapers)
    }

    fn is_of_a_runtime(&self) -> bool {
        true
    }
}
