//! A thread's own ring.
//!
//! `unsafe` here: pushing entries, and entering without an argument.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types};
use rustix::io::Errno;

use super::queue::Queue;
use crate::engine::uring::{self, Ring, Untaken, Usage};
use crate::op::Slot;
use crate::stats::Count;

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const GETEVENTS: u32 = 1;

/// A ring, and the user data of entries that the kernel has not taken.
pub(super) struct OwnRing {
    ring: Ring,
    untaken: Untaken<u64>,
}

impl Queue for OwnRing {
    type Entry = io_uring::squeue::Entry;
    const SERVED: Count = Count::Ring;
    const LEAVES_EARLY: bool = true;

    fn set_up(_: &OwnedFd) -> Option<OwnRing> {
        Some(OwnRing { ring: uring::set_up(Usage::Owned).ok()?, untaken: Untaken::default() })
    }

    fn is_ours(&self) -> bool {
        self.ring.is_ours()
    }

    fn depth(&self) -> u32 {
        self.ring.depth
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.ring.ring.as_raw_fd())
    }

    fn encode(&self, slot: &Arc<Slot>) -> Option<Self::Entry> {
        self.ring.encode(slot)
    }

    fn poll(bell: BorrowedFd<'_>) -> Self::Entry {
        opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), libc::POLLIN as u32).build()
    }

    unsafe fn push(&mut self, entry: &Self::Entry, user_data: u64) -> bool {
        let entry = entry.clone().user_data(user_data);
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.ring.submission().push(&entry) }.is_ok();
        if pushed {
            self.untaken.push(user_data, self.ring.ring.submission().len());
        }
        pushed
    }

    fn submit(&mut self) -> bool {
        let staged = self.ring.ring.submission().len() as u32;
        // With GETEVENTS, so that completions which came meanwhile are processed now and not all at
        // the end.
        // SAFETY: no argument is passed; the staged entries keep `push`'s promise.
        let result = unsafe { self.ring.ring.submitter().enter::<()>(staged, 0, GETEVENTS, None) };
        !result.is_err_and(|error| uring::is_lasting(&error))
    }

    fn wait(&mut self, want: usize, patience: Option<Duration>) -> bool {
        let result = match patience {
            None => self.ring.ring.submit_and_wait(want),
            Some(patience) => {
                let timeout = types::Timespec::from(patience);
                self.ring.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        // Interrupted or timed out, or the kernel wants completions reaped first: the caller tries
        // again.
        !result.is_err_and(|error| uring::is_lasting(&error))
    }

    fn reap(&mut self, mut each: impl FnMut(u64, Result<usize, Errno>)) {
        for entry in self.ring.ring.completion() {
            each(entry.user_data(), uring::decode(&entry));
        }
    }

    fn take_back(&mut self) -> VecDeque<u64> {
        let length = self.ring.ring.submission().len();
        self.untaken.take(length)
    }
}
