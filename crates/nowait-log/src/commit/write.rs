//! Writes of blocks: on this thread, or by the engine with a callback; and what follows when one
//! has ended.

use std::sync::Arc;
use std::task::Waker;

use super::Shared;
use super::block::Sealed;
use super::calls::{self, Call};
use super::group::Waiting;
use super::handover::Told;
use super::state::{Completed, Next, Submission};
use crate::event::Event;
use crate::options::{Durability, Submitter};
use nowait::{Buf, BufferResult, File, Result, Write};

impl Shared {
    fn seal(&self, submission: Submission<File>) -> Sealed<File> {
        let Submission { block, epoch, watermark, .. } = submission;
        block.seal(&self.rules.log_id, epoch, watermark)
    }

    fn write<'s>(&self, sealed: &'s Sealed<File>) -> Write<'s, BufferResult<Arc<Buf>>> {
        let write = sealed.live.file.write_all_at(sealed.bytes.clone(), sealed.offset);
        match self.durability() {
            Durability::Write => write.durable(),
            Durability::WriteAndSync => write,
        }
    }

    fn durability(&self) -> Durability {
        // The kernel reports a failed write-back once: through the page cache, a sync that succeeds
        // beside another proves nothing.
        if self.control.direct { Durability::of(self.control.sync) } else { Durability::WriteAndSync }
    }

    /// Writes a block on this thread, and completes it.
    pub(super) fn write_here(self: &Arc<Self>, submission: Submission<File>) {
        let id = submission.id;
        let sealed = self.seal(submission);
        let write = self.write(&sealed);
        let written = match Submitter::of(self.control.caller) {
            // Submitted while this thread drives a future, so that it goes to the thread's own ring:
            // else it would go to a shared one, whose reaper would have to wake for each block. And
            // waited for, not awaited: where the thread cannot have a ring it may go to that of a
            // runtime which this thread blocks, and `wait` has others notice its end.
            Submitter::Ring if self.dir.instance.has_ring() => nowait::block_on(async { write.submit().wait() }),
            Submitter::Ring | Submitter::Call => write.wait(),
        };
        let mut result = written.map(drop).map_err(|failed| failed.error);
        if result.is_ok() && self.durability() == Durability::WriteAndSync {
            result = sealed.live.file.sync_data().wait();
        }
        self.complete(id, result);
    }

    /// Has the engine write a block. The thread that notices its end completes it, and submits the
    /// next.
    fn write_elsewhere(self: &Arc<Self>, submission: Submission<File>) {
        let id = submission.id;
        let sealed = self.seal(submission);
        let (shared, live) = (self.clone(), sealed.live.clone());
        self.write(&sealed).on_complete(move |written| match written {
            Ok(_) if shared.durability() == Durability::WriteAndSync => {
                let sync = live.file.sync_data();
                sync.on_complete(move |synced| shared.complete(id, synced));
            }
            written => shared.complete(id, written.map(drop).map_err(|failed| failed.error)),
        });
    }

    /// Submits what may be submitted, for waiters that do not write themselves.
    pub(crate) fn carry_all(self: &Arc<Self>) {
        while let Some(submission) = self.submit(true) {
            self.write_elsewhere(submission);
        }
    }

    /// Writes what is pending on this thread; false if there was nothing to write from the start.
    pub(crate) fn write_all_here(self: &Arc<Self>) -> bool {
        let mut any = false;
        while let Some(submission) = self.submit(false) {
            self.write_here(submission);
            any = true;
        }
        any
    }

    fn submit(&self, is_carried: bool) -> Option<Submission<File>> {
        let mut state = self.state();
        if self.is_forked() {
            return None;
        }
        state.submit(is_carried, || self.dir.instance.now())
    }

    /// A block is durable, or has failed.
    fn complete(self: &Arc<Self>, id: u64, result: Result<()>) {
        let failed = result.as_ref().err().cloned();
        let completed = self.handover.complete(id, result, self.dir.instance.now());
        if let Some(error) = failed.filter(|_| !completed.failed.is_empty()) {
            self.tell_event(|| Event::Failed { error });
        }
        self.finish(completed);
    }

    fn finish(self: &Arc<Self>, completed: Completed<File>) {
        if let Next::Carry = completed.next {
            self.carry_all();
        }
        let Told { durable, failed, wakers } = self.handover.end(completed);
        durable.into_iter().for_each(|waiting| self.tell(waiting, Ok));
        failed.into_iter().for_each(|waiting| self.tell(waiting, |lsn| Err(self.why(lsn))));
        self.wake_all(wakers);
    }

    /// Has another waiter write what is pending.
    pub(super) fn pass_on(self: &Arc<Self>, next: Next) {
        match next {
            Next::Nobody => {}
            Next::Leader(group) => group.wake_leader(),
            Next::Carry => self.carry_all(),
        }
    }

    /// Tells futures and callbacks. Nothing is locked.
    fn tell(&self, waiting: Waiting, answer: impl Fn(u64) -> Result<u64>) {
        self.wake_all(waiting.wakers.into_iter().flatten());
        if !waiting.callbacks.is_empty() {
            let calls = waiting.callbacks.into_iter();
            self.calls.add(calls.map(|(lsn, callback)| Call::Durable(callback, answer(lsn))));
            self.serve_calls();
        }
    }

    /// Wakes tasks, with nothing locked: where this thread holds the names, another one does it.
    /// Not that of callbacks: one of them may wait for what a task does when it is woken.
    pub(crate) fn wake_all(&self, wakers: impl IntoIterator<Item = Waker>) {
        let mut wakers = wakers.into_iter().peekable();
        if wakers.peek().is_some() && self.names.is_mine() {
            self.wakes.add(wakers.map(Call::Wake));
            self.serve_calls();
        } else {
            wakers.for_each(calls::wake);
        }
    }

    /// Has callbacks and wakers called by their threads. Where one cannot be started this thread
    /// calls them, once it does not hold the names.
    pub(crate) fn serve_calls(&self) {
        let may_run_here = !self.names.is_mine();
        self.wakes.serve(may_run_here);
        self.calls.serve(may_run_here);
    }
}
