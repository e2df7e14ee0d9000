//! Leftovers of ended operations, for a thread that may wait.

use std::sync::Arc;

use super::file::{Fallback, OpenFile};
use super::request::{Done, Outcome, Owned, Request};
use super::slot::Slot;
use super::transfer::Transfer;
use crate::buf::Memory;
use crate::sync::contained;

/// Leftovers of an operation: the last reference to its file, and a result or buffer that no future
/// takes. Dropping them may block (`close(2)`, `munmap(2)`, a user's destructor). So no engine
/// drops them under a lock, or on a thread that notices completions ([`Leftovers::let_go`]). A
/// destructor that panics is contained.
#[must_use]
#[derive(Default)]
pub(crate) struct Leftovers {
    pub(super) file: Option<Box<OpenFile>>,
    pub(super) unwanted: Option<Box<Unwanted>>,
    /// The pool for an unwanted answer.
    pub(super) home: Option<Home>,
}

pub(super) enum Unwanted {
    /// A buffer or a result that no future takes.
    Answer(Request, Outcome),
    /// The future of several steps that were given up, or another value whose drop may wait.
    Steps(Box<dyn Send>),
}

/// The pool of a device in an instance.
pub(crate) struct Home {
    pub(super) pools: Arc<dyn Fallback>,
    pub(super) device: u64,
}

impl Home {
    /// Has the pools take a slot.
    pub(super) fn take(&self, slot: Arc<Slot>) {
        self.pools.take(slot);
    }

    pub(super) fn of(file: &OpenFile) -> Home {
        Home { pools: file.fallback.clone(), device: file.device().number }
    }
}

impl From<OpenFile> for Leftovers {
    fn from(file: OpenFile) -> Leftovers {
        Leftovers { file: Some(Box::new(file)), unwanted: None, home: None }
    }
}

impl From<Box<dyn Send>> for Leftovers {
    fn from(steps: Box<dyn Send>) -> Leftovers {
        Leftovers { file: None, unwanted: Some(Box::new(Unwanted::Steps(steps))), home: None }
    }
}

impl Leftovers {
    /// Drops them, on a thread of their device's pool if that may take long.
    pub(crate) fn let_go(mut self) {
        if self.may_wait() {
            let home = self.home.take().or_else(|| self.file.as_deref().map(Home::of));
            if let Some(home) = home {
                home.pools.let_go(home.device, self);
            }
        }
    }

    /// Whether the drop may take long.
    pub(super) fn may_wait(&self) -> bool {
        /// To unmap so much takes tens of microseconds.
        const MEMORY_BYTES_MAX: usize = 256 << 10;
        let waits = |unwanted: &Unwanted| match unwanted {
            Unwanted::Answer(
                Request::Read(Transfer { memory, .. }) | Request::Write(Transfer { memory, .. }, _),
                _,
            ) => memory.runs_code_of_users() || memory.len() > MEMORY_BYTES_MAX,
            Unwanted::Answer(Request::Fault { .. } | Request::Call(_) | Request::Close(_), _) | Unwanted::Steps(_) => {
                true
            }
            Unwanted::Answer(_, outcome) => {
                matches!(outcome, Ok(Done::Owned(owned)) if matches!(**owned, Owned::Opened(..)))
            }
        };
        self.file.is_some() || self.unwanted.as_deref().is_some_and(waits)
    }
}

impl Drop for Leftovers {
    #[inline]
    fn drop(&mut self) {
        if self.unwanted.is_some() {
            match self.unwanted.take().map(|unwanted| *unwanted) {
                Some(Unwanted::Answer(request, _outcome)) => let_go(request),
                Some(Unwanted::Steps(steps)) => contained(|| drop(steps)),
                None => {}
            }
        }
    }
}

/// Drops a request, and contains the panic of each buffer separately: a second panic during the
/// first would end the process.
pub(super) fn let_go(request: Request) {
    let (Request::Read(mut transfer) | Request::Write(mut transfer, _)) = request else { return };
    match transfer.take_memory() {
        Memory::Many(buffers) => buffers.into_iter().for_each(|buffer| contained(|| drop(buffer))),
        buffer => contained(|| drop(buffer)),
    }
}
