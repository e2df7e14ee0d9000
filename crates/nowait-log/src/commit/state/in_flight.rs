//! Blocks in flight, and the outcome of their writes.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::commit::block::{Block, Live};
use crate::commit::group::Group;
use nowait::Error;

/// First failure of a write: nothing is acknowledged after it.
#[derive(Clone, Debug)]
pub(crate) struct Poison {
    pub(crate) error: Error,
    /// Records up to this one were submitted, and may be on disk.
    pub(crate) submitted: u64,
}

/// Why the next segment could not be prepared.
#[derive(Clone, Debug)]
pub(crate) struct SpareFailure {
    pub(crate) error: Error,
    pub(crate) at: Instant,
}

/// A block that was submitted.
pub(crate) struct InFlight<F> {
    pub(super) id: u64,
    pub(super) live: Live<F>,
    /// Place of the block in its segment: of the header if there is one.
    pub(super) offset: u64,
    pub(super) first_lsn: u64,
    pub(super) last_lsn: u64,
    pub(super) watermark: u64,
    pub(super) bytes: u64,
    /// It carries a segment's header.
    pub(super) is_first: bool,
    pub(crate) group: Arc<Group>,
    pub(super) is_completed: bool,
    /// No thread waits for it in a system call.
    pub(super) is_carried: bool,
    pub(super) records: u32,
    pub(super) payload: usize,
    pub(super) opened: Instant,
    pub(super) submitted: Instant,
}

/// A block to be sealed and written, with nothing locked.
pub(crate) struct Submission<F> {
    pub(crate) id: u64,
    pub(crate) block: Block<F>,
    pub(crate) epoch: u64,
    pub(crate) watermark: u64,
    /// Files of segments that the log has left: closed when the submission is sealed, since closing
    /// a file may block.
    pub(crate) _left: Vec<F>,
}

/// The next to write.
#[derive(Default)]
pub(crate) enum Next {
    #[default]
    Nobody,
    /// One of the threads that sleep in this group, which was appointed.
    Leader(Arc<Group>),
    /// Futures and callbacks wait alone: the thread at hand submits for them.
    Carry,
}

/// Steps after a write has ended, taken with nothing locked.
pub(crate) struct Completed<F> {
    pub(crate) next: Next,
    pub(crate) durable: Vec<InFlight<F>>,
    pub(crate) failed: Vec<InFlight<F>>,
    /// Blocks that failed before they were submitted.
    pub(crate) unwritten: Vec<Block<F>>,
    pub(crate) wakers: Vec<Waker>,
}

impl<F> Default for Completed<F> {
    fn default() -> Self {
        Completed {
            next: Next::Nobody,
            durable: Vec::new(),
            failed: Vec::new(),
            unwritten: Vec::new(),
            wakers: Vec::new(),
        }
    }
}
