//! Operations in flight that no future owns. A completion wakes all futures that wait.
//!
//! The waker of an operation is the object that owns it. So the thread that notices the completion
//! finishes the operation, even if the future that began it was dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::shared::Core;
use crate::sync::{contained, lock};

/// Operation in flight, its result, and the futures that wait for it.
pub(crate) struct InFlight<O, R> {
    operation: Mutex<Option<O>>,
    /// Number of pending wake-ups. The thread that raises it from zero polls until no new one arrives.
    wakeups: AtomicU32,
    result: OnceLock<R>,
    waiting: Mutex<Waiting>,
}

/// Futures that wait, by place.
#[derive(Default)]
struct Waiting {
    wakers: SmallVec<[Option<Waker>; 1]>,
    /// Places without a waker.
    free: Vec<usize>,
}

/// Object that owns an operation in flight.
pub(crate) trait OwnsInFlight {
    type Operation;
    type Result;

    fn in_flight(&self) -> &InFlight<Self::Operation, Self::Result>;

    fn core(&self) -> &Core;
}

impl<O: Future + Unpin, R> InFlight<O, R> {
    pub(crate) fn new() -> InFlight<O, R> {
        InFlight {
            operation: Mutex::new(None),
            wakeups: AtomicU32::new(0),
            result: OnceLock::new(),
            waiting: Mutex::default(),
        }
    }

    /// Stores an operation that has begun. Call [`InFlight::poll`] next.
    pub(crate) fn begin(&self, operation: O) {
        *lock(&self.operation) = Some(operation);
    }

    /// Polls the operation; returns its output once. One thread polls at a time, and also serves
    /// wake-ups that arrive meanwhile.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<O::Output> {
        if self.wakeups.fetch_add(1, Ordering::AcqRel) > 0 {
            return None;
        }
        let mut context = Context::from_waker(waker);
        loop {
            let seen = self.wakeups.load(Ordering::Acquire);
            let mut guard = lock(&self.operation);
            let operation = guard.as_mut()?;
            if let Poll::Ready(output) = Pin::new(operation).poll(&mut context) {
                let operation = guard.take();
                drop(guard);
                drop(operation);
                // Later wake-ups find the count above zero.
                return Some(output);
            }
            drop(guard);
            if self.wakeups.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return None;
            }
        }
    }
}

impl<O, R> InFlight<O, R> {
    /// Stores the result, and wakes all that wait. Call it once, with no lock held.
    pub(crate) fn end(&self, result: R) {
        let _ = self.result.set(result);
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waker in waiting.wakers.into_iter().flatten() {
            contained(|| waker.wake());
        }
    }

    /// Result of the operation, after its end.
    pub(crate) fn result(&self) -> Option<&R> {
        self.result.get()
    }
}

/// A future's registration with an operation in flight.
pub(crate) struct Joined<T: OwnsInFlight> {
    pub(crate) to: Arc<T>,
    place: Option<usize>,
}

impl<T: OwnsInFlight> Joined<T> {
    pub(crate) fn new(to: Arc<T>) -> Joined<T> {
        Joined { to, place: None }
    }

    /// Returns true if the operation has ended; registers the waker otherwise.
    pub(crate) fn is_done(&mut self, waker: &Waker) -> bool {
        let in_flight = self.to.in_flight();
        if in_flight.result().is_some() {
            return true;
        }
        let waker = waker.clone();
        let mut waiting = lock(&in_flight.waiting);
        // Check again under the lock: the ending thread stores the result before it takes this lock.
        if in_flight.result().is_some() {
            drop(waiting);
            return true;
        }
        let place = *self.place.get_or_insert_with(|| {
            waiting.free.pop().unwrap_or_else(|| {
                waiting.wakers.push(None);
                waiting.wakers.len() - 1
            })
        });
        let old = waiting.wakers[place].replace(waker);
        drop(waiting);
        drop(old);
        false
    }
}

impl<T: OwnsInFlight> Drop for Joined<T> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let in_flight = self.to.in_flight();
        if self.to.core().is_forked() || in_flight.result().is_some() {
            return;
        }
        let mut waiting = lock(&in_flight.waiting);
        let old = waiting.wakers.get_mut(place).and_then(Option::take);
        if old.is_some() {
            waiting.free.push(place);
        }
        drop(waiting);
        drop(old);
    }
}
