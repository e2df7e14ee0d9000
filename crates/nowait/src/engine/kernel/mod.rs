//! The kernel side of a queue: io_uring, or libaio for direct I/O where io_uring is refused.
//!
//! `unsafe` here: what the caller of an unsafe method promises.

#[cfg(target_os = "linux")]
mod libaio;
#[cfg(target_os = "linux")]
mod ring;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::QueueRefusal;
use crate::op::Slot;
use crate::stats::Count;
use crate::sys::{AsFd, BorrowedFd, Errno};

/// The ring's use, which decides the set-up flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Usage {
    /// One thread submits and reaps (COOP_TASKRUN, 5.19), or a watcher in its place.
    Owned,
    /// Any thread may.
    Shared,
}

/// Sets up a ring.
pub(super) fn ring(usage: Usage) -> Result<Box<dyn Kernel>, QueueRefusal> {
    #[cfg(target_os = "linux")]
    return Ok(Box::new(ring::set_up(usage)?));
    #[cfg(not(target_os = "linux"))]
    Err(refused(usage))
}

/// Sets up a context of libaio.
pub(super) fn libaio() -> Result<Box<dyn Kernel>, QueueRefusal> {
    #[cfg(target_os = "linux")]
    return Ok(Box::new(libaio::Libaio::set_up()?));
    #[cfg(not(target_os = "linux"))]
    Err(refused(Usage::Shared))
}

/// Other systems have neither ring nor libaio; the pool serves their operations.
#[cfg(not(target_os = "linux"))]
fn refused(_: Usage) -> QueueRefusal {
    QueueRefusal { errno: Errno::NOSYS, entries: 0 }
}

/// Whether the kernel refuses this ring for good, such as under a seccomp filter that came later.
/// Other errors pass: interruptions, timeouts, shortage of memory or of room for completions.
pub(in crate::engine) fn is_lasting(error: &std::io::Error) -> bool {
    !matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY | Errno::NOMEM))
}

/// Interface of the kernel to a queue. An entry's user data is the address of its slot. The
/// descriptor becomes readable (edge-triggered) on each completion.
pub(super) trait Kernel: AsFd + Send + Sync {
    /// Returns the limit of operations in flight.
    fn depth(&self) -> u32;

    /// False in a child of the process that made it.
    fn is_ours(&self) -> bool;

    /// Returns the counter of its operations.
    fn count(&self) -> Count;

    /// Whether a check for completions needs no system call.
    fn looks_freely(&self) -> bool;

    /// Begins an announced read, which is staged later. False as in [`Kernel::stage`].
    fn begin(&self, _slot: &Arc<Slot>) -> bool {
        false
    }

    /// Stages an entry for a slot, which begins. Returns false if the queue is full, or a thread of
    /// the library should serve the request.
    ///
    /// # Safety
    /// The caller has the lock of the submission queue. Once the entry is staged, the slot lives until
    /// its user data is [collected](Kernel::collect) or [given back](Kernel::take_untaken).
    unsafe fn stage(&self, slot: &Arc<Slot>, untaken: &mut Untaken) -> bool;

    /// Stages a poll of a descriptor. False if there is no room.
    ///
    /// # Safety
    /// The caller has the lock of the submission queue.
    unsafe fn stage_poll(&self, _fd: BorrowedFd<'_>, _user_data: u64, _untaken: &mut Untaken) -> bool {
        false
    }

    /// Submits staged entries, and returns how many the kernel took: it stops at an entry that it
    /// refuses, and where memory is short (`io_submit_sqes`, io_uring/io_uring.c). Waits for `want`
    /// completions, at most for `patience`; it may return earlier.
    fn enter(&self, want: usize, patience: Option<Duration>) -> std::io::Result<usize>;

    /// Passes on the user data and results of at most `max` available completions. Returns their
    /// number.
    ///
    /// # Safety
    /// The caller has the lock of the completion queue.
    unsafe fn collect(&self, max: usize, each: &mut dyn FnMut(u64, Result<usize, Errno>)) -> usize;

    /// Returns the user data of entries that the kernel has not taken: it refuses to be entered.
    ///
    /// # Safety
    /// The caller has the lock of the submission queue, and no thread enters any more.
    unsafe fn take_untaken(&self, _untaken: &mut Untaken) -> Vec<u64> {
        Vec::new()
    }
}

/// User data of pushed entries that the kernel may not have taken, in order. If the kernel refuses
/// to be entered, they are returned to the queue.
#[derive(Default)]
pub(super) struct Untaken(VecDeque<u64>);

impl Untaken {
    /// Notes an entry that was just pushed; the queue now has `length` entries.
    fn push(&mut self, user_data: u64, length: usize) {
        self.0.drain(..(self.0.len() + 1).saturating_sub(length));
        self.0.push_back(user_data);
    }

    /// Returns the entries that the kernel has not taken, `length` in number, and forgets all.
    fn take(&mut self, length: usize) -> Vec<u64> {
        let taken = self.0.len().saturating_sub(length);
        self.0.drain(..).skip(taken).collect()
    }
}
