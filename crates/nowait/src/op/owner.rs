//! The file that an operation belongs to, and keeps open.

use std::sync::Arc;

use super::file::{Fallback, OpenFile, OperationCount};
use super::leftovers::Home;
use super::outstanding::Syncing;
use super::queue::{FileQueues, QueueKind};
use super::request::{Handle, Outcome, Request};
use crate::stats::{Count, Counters};
use crate::sys::WriteOnce;

/// The file that a slot keeps open; none for an open, and for operations on names.
pub(crate) enum Owner {
    File(Arc<OpenFile>),
    /// With the counters and the pools of its instance.
    Nobody(Arc<Counters>, Arc<dyn Fallback>),
}

impl Owner {
    pub(crate) fn handle(&self) -> Option<&Handle> {
        match self {
            Owner::File(file) => Some(&file.handle),
            Owner::Nobody(..) => None,
        }
    }

    pub(crate) fn file(&self) -> Option<&Arc<OpenFile>> {
        match self {
            Owner::File(file) => Some(file),
            Owner::Nobody(..) => None,
        }
    }

    /// The count of its file's operations under way. Those without a file share one that stays
    /// zero.
    pub(super) fn begun(&self) -> OperationCount {
        match self {
            Owner::File(file) => file.begun.clone(),
            Owner::Nobody(..) => {
                static NOBODY: WriteOnce<OperationCount> = WriteOnce::new();
                NOBODY.get_or_init(OperationCount::default).clone()
            }
        }
    }

    /// The queue of its file in which `request` has its turn.
    pub(crate) fn queue(&self, request: &Request) -> Option<(Arc<FileQueues>, QueueKind)> {
        let file = self.file()?;
        let kind = file.queue(request)?;
        Some((file.queues().clone(), kind))
    }

    /// Makes the file's data durable by `sync`: see [`OpenFile::synced`].
    pub(crate) fn synced(&self, sync: impl FnOnce() -> Outcome) -> Outcome {
        match self {
            Owner::File(file) => file.synced(sync),
            Owner::Nobody(..) => sync(),
        }
    }

    /// See [`OpenFile::begin_sync`].
    pub(crate) fn begin_sync(&self, sleep: impl FnOnce(&dyn Fn())) -> Option<Syncing<'_>> {
        match self {
            Owner::File(file) => file.begin_sync(sleep),
            Owner::Nobody(..) => None,
        }
    }

    pub(crate) fn count(&self, count: Count) {
        self.counters().add(count);
    }

    pub(super) fn counters(&self) -> &Counters {
        match self {
            Owner::File(file) => &file.counters,
            Owner::Nobody(counters, _) => counters,
        }
    }

    /// The pool for what is left of it.
    pub(super) fn home(&self) -> Home {
        match self {
            Owner::File(file) => Home::of(file),
            Owner::Nobody(_, pools) => Home { pools: pools.clone(), device: 0 },
        }
    }

    /// Gives up its share of the file; the file, if that was the last one. Closes nothing.
    pub(super) fn give_up(self) -> Option<Box<OpenFile>> {
        match self {
            Owner::File(file) => Arc::into_inner(file).map(Box::new),
            Owner::Nobody(..) => None,
        }
    }
}

/// A request and what keeps its descriptor open.
pub(crate) struct Work {
    pub(crate) request: Request,
    pub(crate) owner: Owner,
}
