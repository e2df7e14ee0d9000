//! Operations: the request ([`Request`]), its file ([`OpenFile`]), and its life while an engine has
//! it ([`Slot`]).
//!
//! These three know each other: a slot keeps its file open, a file has queues of slots, and both
//! look into requests.

mod backlog;
mod batch;
mod clock;
mod device;
mod file;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod left;
mod leftovers;
pub(crate) mod outstanding;
mod owner;
mod queue;
mod request;
mod slot;
mod transfer;
pub(crate) mod watcher;

pub(crate) use backlog::{Backlog, PLACES_MIN, SHARE, STUCK};
pub(crate) use batch::Batch;
pub(crate) use clock::Held;
#[cfg(feature = "sim")]
pub(crate) use file::in_queues;
pub(crate) use file::{END_UNKNOWN, Fallback, OpenFile, Permit, on_threads};
pub(crate) use leftovers::Leftovers;
pub(crate) use outstanding::Change;
pub(crate) use owner::{Owner, Work};
pub(crate) use queue::{FileQueues, QueueKind, Room, Waiter};
pub(crate) use request::{Call, Done, Handle, OpenDir, Outcome, Owned, PathAt, Request};
pub(crate) use slot::{Callback, Notify, Profile, Slot};
pub(crate) use transfer::{NextStep, Transfer, step};

pub(crate) use crate::buf::Direction;
