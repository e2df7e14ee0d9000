//! A thread's queue, shared with a helper: a lock, contended only while one helps, and a note that
//! help is wanted.
//!
//! `unsafe` here: a ring's descriptor is borrowed as long as the ring lives.

use std::ops::{Deref, DerefMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use super::bell::{BELL_WAIT_MAX, Bell};
use super::queue::{Completion, Leaving, Owned, Queue};
use crate::buf::lock;
use crate::engine::pool;
use crate::op::Slot;
use crate::op::help::{self, Helped};
use crate::sys::{PerProcess, fork_generation};

pub(super) enum State<Q: Queue> {
    New,
    /// The kernel refused a queue for this thread; other engines may serve.
    Refused,
    Ready(Arc<Desk<Q>>),
}

/// A thread's queue, shared with a helper.
pub(super) struct Desk<Q: Queue> {
    owned: Mutex<Owned<Q>>,
    /// The process that made it. Outside of the lock, which a child may find taken for good.
    generation: u64,
    /// Readable after a completion.
    descriptor: Option<RawFd>,
    /// Help was asked for, and something may be in flight.
    wanted: AtomicBool,
    /// Completions that were taken out and not settled yet.
    settling: AtomicUsize,
    /// `Owned::turns` at the helper's last glance.
    glanced_at: AtomicU64,
}

/// A locked queue.
pub(super) struct Claim<'d, Q: Queue> {
    pub(super) desk: &'d Desk<Q>,
    owned: Option<MutexGuard<'d, Owned<Q>>>,
}

impl<Q: Queue> Deref for Claim<'_, Q> {
    type Target = Owned<Q>;
    fn deref(&self) -> &Owned<Q> {
        self.owned.as_ref().expect("a claim is given up by its drop")
    }
}

impl<Q: Queue> DerefMut for Claim<'_, Q> {
    fn deref_mut(&mut self) -> &mut Owned<Q> {
        self.owned.as_mut().expect("a claim is given up by its drop")
    }
}

impl<Q: Queue> Drop for Claim<'_, Q> {
    fn drop(&mut self) {
        let Some(mut owned) = self.owned.take() else { return };
        let leaving = owned.take_leaving();
        drop(owned);
        leaving.into_iter().for_each(Leaving::go);
        if self.desk.wanted.load(SeqCst) {
            help::look();
        }
    }
}

impl<Q: Queue> Desk<Q> {
    fn new(bell: Arc<Bell>) -> Option<Arc<Desk<Q>>> {
        let owned = Owned::<Q>::new(bell)?;
        let (descriptor, owned) = (owned.queue.descriptor(), Mutex::new(owned));
        let (wanted, settling, glanced_at) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU64::new(0));
        let desk = Arc::new(Desk { owned, generation: fork_generation(), descriptor, wanted, settling, glanced_at });
        let known: Arc<dyn Helped> = desk.clone();
        help::register(Arc::downgrade(&known));
        Some(desk)
    }

    pub(super) fn is_ours(&self) -> bool {
        self.generation == fork_generation()
    }

    pub(super) fn claim(&self) -> Claim<'_, Q> {
        Claim { desk: self, owned: Some(lock(&self.owned)) }
    }

    /// Settles completions. `again` takes slots that must go to the kernel again.
    pub(super) fn settle(&self, completions: &mut Vec<Completion>, mut again: impl FnMut(Arc<Slot>)) {
        let n = completions.len();
        for (slot, result) in completions.drain(..) {
            if let Some(slot) = pool::settle(slot, result, Q::SERVED) {
                again(slot);
            }
        }
        self.settling.fetch_sub(n, SeqCst);
    }

    /// Leaves the queue to helpers: its thread ends.
    pub(super) fn leave(self: Arc<Self>) {
        let until = Instant::now() + BELL_WAIT_MAX;
        let mut owned = self.claim();
        owned.enter_announced();
        if owned.bell_polled {
            owned.bell.write();
        }
        while owned.bell_polled && !owned.dead {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            owned.enter(1, Some(left));
        }
        owned.submit();
        let mut completions = self.take_completions(&mut owned);
        let is_busy = owned.is_busy();
        drop(owned);
        self.settle(&mut completions, pool::hand_on);
        if is_busy {
            help::keep(self);
        }
    }

    pub(super) fn take_completions(&self, owned: &mut Owned<Q>) -> Vec<Completion> {
        self.settling.fetch_add(owned.completions.len(), SeqCst);
        std::mem::take(&mut owned.completions)
    }
}

impl<Q: Queue> Helped for Desk<Q> {
    fn want(&self) -> bool {
        !self.wanted.swap(true, SeqCst)
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    fn glance(&self) -> bool {
        // Its thread is at work there.
        let Ok(mut owned) = self.owned.try_lock() else { return true };
        owned.relieve_line();
        let leaving = owned.take_leaving();
        let busy = owned.is_busy() || self.settling.load(SeqCst) > 0;
        if busy && self.glanced_at.swap(owned.turns, SeqCst) == owned.turns {
            self.wanted.store(true, SeqCst);
        }
        drop(owned);
        leaving.into_iter().for_each(Leaving::go);
        busy
    }

    fn help(&self) -> help::State {
        let mut owned = match self.owned.try_lock() {
            Ok(owned) => owned,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return help::State::Inside,
        };
        owned.help();
        owned.fill();
        let mut completions = self.take_completions(&mut owned);
        let leaving = owned.take_leaving();
        let state = match (owned.is_busy() || self.settling.load(SeqCst) > 0, completions.is_empty()) {
            (false, _) => {
                self.wanted.store(false, SeqCst);
                help::State::Quiet
            }
            (true, false) => help::State::Progress,
            (true, true) => help::State::Waits,
        };
        drop(owned);
        leaving.into_iter().for_each(Leaving::go);
        // Not staged here: its thread may be asleep in there by now.
        self.settle(&mut completions, pool::hand_on);
        state
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the queue's, and the queue lives as long as `self`.
        self.descriptor.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl<Q: Queue> State<Q> {
    /// Claims the queue, made on first use.
    pub(super) fn make(&mut self, bell: &PerProcess<Arc<Bell>>) -> Option<Claim<'_, Q>> {
        // A child cannot use its parent's.
        if matches!(self, State::New) || matches!(self, State::Ready(desk) if !desk.is_ours()) {
            *self = Desk::new(bell.get(Bell::new).clone()).map_or(State::Refused, State::Ready);
        }
        self.get()
    }

    /// Claims the queue, if there is one.
    pub(super) fn get(&self) -> Option<Claim<'_, Q>> {
        match self {
            State::Ready(desk) if desk.is_ours() => Some(desk.claim()),
            _ => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.get().is_none_or(|owned| owned.in_flight() == 0)
    }
}
