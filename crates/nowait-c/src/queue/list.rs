//! The operations of a queue, those of them that may have ended, and the event that says so.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::operation::Operation;
use crate::failure::{Failure, Result};

/// The operations of a queue.
pub(super) struct List {
    inner: Mutex<Inner>,
    /// Readable while something is listed, and no thread reaps.
    pub(super) event: OwnedFd,
}

#[derive(Default)]
struct Inner {
    /// Operations that may have ended.
    listed: VecDeque<Arc<Operation>>,
    /// All operations, each in a place of its own.
    places: Vec<Place>,
    vacant: Vec<u32>,
    is_closed: bool,
}

#[derive(Default)]
struct Place {
    generation: u32,
    operation: Option<Arc<Operation>>,
}

impl Place {
    fn is_of(&self, number: u64) -> bool {
        u64::from(self.generation) == number >> 32
    }
}

impl List {
    pub(super) fn new() -> Result<Arc<List>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
            Failure::new(
                errno.raw_os_error(),
                format!("a queue needs a descriptor: {errno}; raise the limit (ulimit -n)"),
            )
        })?;
        Ok(Arc::new(List { inner: Mutex::default(), event }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes an operation, which is under way until [`List::take`] takes it.
    pub(super) fn open(self: &Arc<Self>, user: usize) -> Result<Arc<Operation>> {
        let inner = &mut *self.inner();
        if inner.is_closed {
            return Err(Failure::new(libc::EBADF, "the queue was closed"));
        }
        let place = match inner.vacant.pop() {
            Some(place) => place,
            None => {
                let Ok(place) = u32::try_from(inner.places.len()) else {
                    return Err(Failure::new(libc::EAGAIN, "the queue has 4294967296 operations; reap some"));
                };
                inner.places.push(Place::default());
                place
            }
        };
        let at = &mut inner.places[place as usize];
        // So that no number is 0.
        at.generation = at.generation.checked_add(1).unwrap_or(1);
        let operation = Operation::new(self, u64::from(at.generation) << 32 | u64::from(place), user);
        at.operation = Some(operation.clone());
        Ok(operation)
    }

    /// Finds an operation whose completion was not reaped.
    pub(super) fn find(&self, number: u64) -> Option<Arc<Operation>> {
        let inner = self.inner();
        let place = inner.places.get(number as u32 as usize).filter(|place| place.is_of(number));
        place.and_then(|place| place.operation.clone())
    }

    /// Number of operations whose completion was not reaped.
    pub(super) fn len(&self) -> usize {
        let inner = self.inner();
        inner.places.len() - inner.vacant.len()
    }

    /// Takes no more operations, if it has none.
    pub(super) fn close(&self) -> Result<()> {
        let mut inner = self.inner();
        match inner.places.len() - inner.vacant.len() {
            0 => {
                inner.is_closed = true;
                Ok(())
            }
            left => {
                let text = format!(
                    "the queue has {left} operations whose completions were not reaped; reap them first, or cancel and reap them"
                );
                Err(Failure::new(libc::EBUSY, text))
            }
        }
    }

    /// Lists an operation that may have ended.
    pub(super) fn add(operation: Arc<Operation>) {
        if operation.is_listed.swap(true, SeqCst) {
            return;
        }
        let list = operation.list.clone();
        let is_first = {
            let listed = &mut list.inner().listed;
            listed.push_back(operation);
            listed.len() == 1
        };
        // Else it is set, or a thread that reaps comes to it, or sets it.
        if is_first {
            list.set();
        }
    }

    /// Passes up to `room` completions to `take`; returns how many there were.
    pub(super) fn reap(&self, room: usize, mut take: impl FnMut(usize, &Operation, Result<u64>)) -> usize {
        // First: what is listed from now on sets it again, or is seen below.
        self.clear();
        let _rest = Rest(self);
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

    fn next(&self) -> Option<Arc<Operation>> {
        let operation = self.inner().listed.pop_front()?;
        // Before it is polled: a wake-up from then on lists it again.
        operation.is_listed.store(false, SeqCst);
        Some(operation)
    }

    fn vacate(&self, number: u64) {
        let inner = &mut *self.inner();
        let place = number as u32;
        let at = inner.places.get_mut(place as usize).filter(|at| at.is_of(number));
        if at.and_then(|at| at.operation.take()).is_some() {
            inner.vacant.push(place);
        }
    }

    fn set(&self) {
        // It counts to 2^64 - 2, so that there is always room.
        _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.event, &1_u64.to_ne_bytes()));
    }

    fn clear(&self) {
        let answer = rustix::io::retry_on_intr(|| rustix::io::read(&self.event, &mut [0; 8]));
        debug_assert!(matches!(answer, Ok(8) | Err(Errno::AGAIN)), "{answer:?}");
    }
}

/// Sets the event again for what was not reaped, also after a panic.
struct Rest<'l>(&'l List);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let is_left = !self.0.inner().listed.is_empty();
        if is_left {
            self.0.set();
        }
    }
}
