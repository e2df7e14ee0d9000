//! Blocks in flight, and the outcome of their writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Instant;

use crate::commit::block::{Block, Live};
use crate::commit::group::{Fate, Group};
use crate::commit::marks::BlockPlace;
use crate::commit::tail::CachedBlock;
use crate::format::PAGE;
use crate::os::lock;
use nowait::{Buf, Error};

/// First failure of a write. No record is acknowledged after it.
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
    pub(crate) id: u64,
    pub(super) live: Live<F>,
    /// Offset of the block in its segment; of the header in a segment's first block.
    pub(super) offset: u64,
    pub(super) first_lsn: u64,
    pub(super) last_lsn: u64,
    pub(super) epoch: u64,
    pub(super) watermark: u64,
    pub(super) bytes: u64,
    /// The block contains its segment's header.
    pub(super) is_first: bool,
    pub(crate) group: Arc<Group>,
    pub(super) is_completed: bool,
    /// No thread waits for the block in a system call.
    pub(super) is_carried: bool,
    pub(super) records: u32,
    pub(super) payload: usize,
    pub(super) opened: Instant,
    pub(super) submitted: Instant,
    /// Number of times that another thread wrote the block again.
    pub(super) rewrites: u32,
    /// Time after which another thread writes the block again.
    pub(super) due: Instant,
}

impl<F> InFlight<F> {
    /// True if the block was written with a segment's header.
    pub(crate) fn begins_segment(&self) -> bool {
        self.is_first
    }

    /// Place of the block, and its end.
    pub(crate) fn place(&self) -> (BlockPlace, u64) {
        let base = if self.is_first { PAGE as u64 } else { 0 };
        let place = BlockPlace { segment: self.live.number, lsn: self.first_lsn, offset: self.offset + base };
        (place, self.offset + self.bytes)
    }

    /// The block for readers in memory; None if it contains no records.
    pub(crate) fn kept(&self) -> Option<CachedBlock> {
        let bytes = self.group.sealed().filter(|_| self.records > 0)?;
        Some(CachedBlock {
            bytes,
            base: if self.is_first { PAGE } else { 0 },
            segment: self.live.number,
            end: self.offset + self.bytes,
            epoch: self.epoch,
            first_lsn: self.first_lsn,
            records: self.records,
        })
    }
}

/// A block to be sealed and written, with no lock held.
pub(crate) struct Submission<F> {
    pub(crate) id: u64,
    pub(crate) block: Block<F>,
    pub(crate) epoch: u64,
    pub(crate) watermark: u64,
    /// Files of segments that the log has left: closed when the submission is sealed, since closing
    /// a file may block.
    pub(crate) _left: Vec<F>,
}

/// The next writer.
#[derive(Default)]
pub(crate) enum Successor {
    #[default]
    Nobody,
    /// A sleeping thread of this group, which was appointed.
    Leader(Arc<Group>),
    /// The log's own thread.
    Writer,
    /// Only futures and callbacks wait: the calling thread submits for them.
    Carry,
}

/// Steps after the end of a write, with no lock held. The thread that noticed the end takes these
/// steps. If it is delayed, another thread takes them, too, so each step may be taken twice.
pub(crate) struct Ending {
    pub(crate) groups: Vec<(Arc<Group>, Fate)>,
    wakers: Mutex<Vec<Waker>>,
    next: Mutex<Successor>,
    is_over: AtomicBool,
}

impl Ending {
    pub(super) fn new(groups: Vec<(Arc<Group>, Fate)>, wakers: Vec<Waker>, next: Successor) -> Ending {
        Ending { groups, wakers: Mutex::new(wakers), next: Mutex::new(next), is_over: AtomicBool::new(false) }
    }

    /// Takes the next writer; later calls return `Nobody`.
    pub(crate) fn next(&self) -> Successor {
        std::mem::take(&mut *lock(&self.next))
    }

    /// Takes the waker of a task that waits for a record or for room.
    pub(crate) fn next_waker(&self) -> Option<Waker> {
        lock(&self.wakers).pop()
    }

    /// Records that all waiters were notified.
    pub(crate) fn set_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// The end of a write.
pub(crate) struct Completed<F> {
    pub(crate) ending: Arc<Ending>,
    /// Blocks that have ended, to be dropped with no lock held.
    pub(crate) blocks: Vec<InFlight<F>>,
    /// Blocks that failed before they were submitted.
    pub(crate) unwritten: Vec<Block<F>>,
    /// This write is the first that failed.
    pub(crate) is_first_failure: bool,
}

/// A step that a thread takes for a stalled one.
pub(crate) enum Rescue<F> {
    /// Some waiters were not notified of the end of a write.
    End(Arc<Ending>),
    /// The log's own thread is overdue: another writer was chosen.
    PassOn(Successor),
    /// The end of a write is overdue.
    Rewrite(Rewrite<F>),
}

/// A block that was written again.
pub(crate) struct Rewritten<F> {
    pub(crate) began: Instant,
    /// File of the block's segment, opened for this.
    pub(crate) file: F,
}

/// A block to be written again, at the same place.
pub(crate) struct Rewrite<F> {
    pub(crate) id: u64,
    /// Prevents the reuse of the segment's file meanwhile.
    pub(crate) live: Live<F>,
    pub(crate) offset: u64,
    pub(crate) bytes: Arc<Buf>,
}
