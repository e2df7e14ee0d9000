//! A thread's own context of libaio, where io_uring is refused.
//!
//! `unsafe` here: handing entries to the kernel.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::bell::BELL_WAIT_MAX;
use super::queue::{BELL, Queue};
use crate::engine::libaio::sys as libaio;
use crate::op::Slot;
use crate::stats::Count;
use crate::sys::retry;

/// A context of libaio.
pub(super) struct OwnContext {
    context: libaio::Context,
    /// Entries that the kernel has not taken.
    staged: Vec<libaio::Entry>,
    /// User data of entries that it refused.
    refused: Vec<u64>,
    /// Operations in the kernel: those whose events have not been read.
    in_kernel: usize,
    /// The kernel also polls the bell.
    polling: bool,
    events: Vec<libaio::Event>,
}

impl OwnContext {
    fn take_events(&mut self, want: usize, patience: Option<Duration>) -> Result<(), Errno> {
        let before = self.events.len();
        let result = self.context.wait(want, patience, &mut self.events);
        let (polls, operations) = count(self.events[before..].iter().map(libaio::Event::user_data));
        self.in_kernel -= operations;
        self.polling &= polls == 0;
        result
    }
}

/// Counts polls of the bell, and operations.
fn count(user_data: impl Iterator<Item = u64>) -> (usize, usize) {
    user_data.fold((0, 0), |(polls, operations), user_data| match user_data {
        BELL => (polls + 1, operations),
        _ => (polls, operations + 1),
    })
}

impl Queue for OwnContext {
    type Entry = libaio::Entry;
    const SERVED: Count = Count::Aio;
    const LEAVES_EARLY: bool = false;

    fn set_up(bell: &OwnedFd) -> Option<OwnContext> {
        let context = libaio::Context::set_up().ok()?;
        let (staged, refused) = (Vec::new(), Vec::new());
        let events = Vec::with_capacity(libaio::DEPTH as usize + 1);
        let mut queue = OwnContext { context, staged, refused, in_kernel: 0, polling: false, events };
        // Tried once with a ringing bell: not every kernel lets a context poll.
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        // SAFETY: the entry names no memory, and the descriptor outlives this call, in which the
        // poll completes.
        unsafe { queue.push(&Self::poll(bell.as_fd()), BELL) };
        queue.submit();
        let taken = queue.refused.is_empty() && queue.staged.is_empty();
        let polls = taken && retry(|| queue.take_events(1, Some(BELL_WAIT_MAX))).is_ok() && !queue.polling;
        let _ = rustix::io::read(bell, &mut [0; 8]);
        queue.events.clear();
        polls.then_some(queue)
    }

    fn is_ours(&self) -> bool {
        self.context.is_ours()
    }

    fn depth(&self) -> u32 {
        libaio::DEPTH
    }

    fn encode(&self, slot: &Arc<Slot>) -> Option<Self::Entry> {
        libaio::Entry::of(slot)
    }

    fn poll(bell: BorrowedFd<'_>) -> Self::Entry {
        libaio::Entry::poll(bell)
    }

    unsafe fn push(&mut self, entry: &Self::Entry, user_data: u64) -> bool {
        self.staged.push(entry.with(user_data));
        true
    }

    /// Refused entries are the pool's: its plain call serves them, or gives the errno that counts.
    /// Under a filter that came late so are all, one by one.
    fn submit(&mut self) -> bool {
        let mut done = 0;
        while let Some(entries) = self.staged.get_mut(done..).filter(|entries| !entries.is_empty()) {
            // SAFETY: `push`'s caller vouches for what the entries name.
            match unsafe { self.context.submit(entries) } {
                Ok(taken @ 1..) => {
                    let (polls, operations) = count(entries[..taken].iter().map(libaio::Entry::user_data));
                    done += taken;
                    self.in_kernel += operations;
                    self.polling |= polls > 0;
                }
                // Memory or places are short until something completes.
                Err(Errno::AGAIN) if self.in_kernel > 0 => break,
                _ => {
                    self.refused.push(entries[0].user_data());
                    done += 1;
                }
            }
        }
        self.staged.drain(..done);
        true
    }

    fn wait(&mut self, want: usize, patience: Option<Duration>) -> bool {
        /// How soon entries that the kernel had no room for are tried again. The bell's may be one
        /// of them.
        const AGAIN: Duration = Duration::from_millis(1);
        self.submit();
        let want = if self.refused.is_empty() { want } else { 0 };
        let patience = if self.staged.is_empty() { patience } else { Some(AGAIN) };
        matches!(self.take_events(want, patience), Ok(()) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM))
    }

    fn reap(&mut self, mut each: impl FnMut(u64, Result<usize, Errno>)) {
        self.refused.drain(..).for_each(|user_data| each(user_data, Err(Errno::CANCELED)));
        self.events.drain(..).for_each(|event| each(event.user_data(), event.result()));
    }

    fn take_back(&mut self) -> VecDeque<u64> {
        self.staged.drain(..).map(|entry| entry.user_data()).chain(self.refused.drain(..)).collect()
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        // Leaked while something is in flight: destroying it would wait.
        if self.in_kernel == 0 && !self.polling {
            self.context.retire();
        }
    }
}
