//! Writes of blocks, on this thread or by the engine with a callback, and the steps after each
//! write.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::Shared;
use super::block::{Live, Sealed, Times};
use super::calls::{self, Call};
use super::group::{Fate, Group};
use super::state::{Completed, Ending, InFlight, Rescue, Rewrite, Rewritten, Submission, Successor, WriterTurn};
use super::tail::CachedBlock;
use crate::dir::LentLock;
use crate::event::Event;
use crate::options::{Durability, Submitter};
use crate::os::APPEND;
use crate::sealed::SealedBlock;
use nowait::{Buf, BufferResult, ErrorKind, File, Result, Write, embed};

impl Shared {
    fn seal(&self, submission: Submission<File>) -> Sealed<File> {
        let Submission { id, block, epoch, watermark, .. } = submission;
        let (base, first_lsn, records) = (block.base(), block.first_lsn, block.records);
        let time_ms = self.wall_clock_ms();
        // Blocks are submitted in order, soon after they were made.
        let previous_time_ms = match records {
            0 => self.time_ms.load(Relaxed),
            _ => self.time_ms.swap(time_ms, Relaxed),
        };
        let sealed = block.seal(&self.rules.log_id, epoch, watermark, Times { time_ms, previous_time_ms });
        let handed_over = || {
            let bytes = sealed.bytes.clone();
            (records > 0).then_some(SealedBlock { bytes, base, first_lsn, records, epoch, is_durable: false })
        };
        self.hooks.sealed(id, handed_over, !self.holds_names());
        sealed
    }

    fn wall_clock_ms(&self) -> u64 {
        u64::try_from(embed::wall_clock(&self.dir.instance).as_millis()).unwrap_or(u64::MAX)
    }

    fn write<'s>(&self, sealed: &'s Sealed<File>) -> Write<'s, BufferResult<Arc<Buf>>> {
        let write = sealed.live.file.write_all_at(sealed.bytes.clone(), sealed.offset);
        match self.durability() {
            Durability::Write => write.durable(),
            Durability::WriteAndSync => write,
        }
    }

    fn durability(&self) -> Durability {
        // The kernel reports a failed write-back once. So through the page cache, a successful sync
        // proves nothing if another sync runs at the same time.
        if self.control.direct { Durability::of(self.control.sync) } else { Durability::WriteAndSync }
    }

    /// Writes a block on this thread, and completes it.
    pub(super) fn write_here(self: &Arc<Self>, submission: Submission<File>) {
        // Other threads may complete the block and close the log while this thread is stalled.
        let Some(_held) = LentLock::of(&self.dir_lock) else { return self.refuse(&submission) };
        let id = submission.id;
        let sealed = self.seal(submission);
        let write = self.write(&sealed);
        let written = match Submitter::of(self.control.caller) {
            // `block_on` makes the submission use the thread's own ring; on a shared ring, a
            // watcher would wake for each block. `wait`, not `await`: if the thread has no ring,
            // the write may use the ring of a runtime that this thread blocks, and `wait` lets a
            // watcher notice the completion.
            Submitter::Ring if self.dir.instance.has_ring() => nowait::block_on(async { write.submit().wait() }),
            Submitter::Ring | Submitter::Call => write.wait(),
        };
        let result = self.synced(written, &sealed.live.file);
        self.complete(id, result, None);
    }

    /// Syncs the file after a successful write, if the strategy needs that. Blocks.
    fn synced(&self, written: BufferResult<Arc<Buf>>, file: &File) -> Result<()> {
        written.map_err(|failed| failed.error)?;
        match self.durability() {
            Durability::Write => Ok(()),
            Durability::WriteAndSync => file.sync_data().wait(),
        }
    }

    /// Submits a block to the engine. The thread that notices the completion completes the block,
    /// and submits the next.
    fn write_elsewhere(self: &Arc<Self>, submission: Submission<File>) {
        let Some(held) = LentLock::of(&self.dir_lock) else { return self.refuse(&submission) };
        let id = submission.id;
        let sealed = self.seal(submission);
        let (shared, live) = (self.clone(), sealed.live.clone());
        self.write(&sealed).on_complete(move |written| match written {
            Ok(_) if shared.durability() == Durability::WriteAndSync => {
                let sync = live.file.sync_data();
                sync.on_complete(move |synced| {
                    shared.complete(id, synced, None);
                    drop(held);
                });
            }
            written => {
                shared.complete(id, written.map(drop).map_err(|failed| failed.error), None);
                drop(held);
            }
        });
    }

    /// Ends a block that must not be written: the log failed and ended while this thread was
    /// stalled, and another opening may use the segment's file.
    #[cold]
    fn refuse(self: &Arc<Self>, submission: &Submission<File>) {
        let error = self.error(APPEND, ErrorKind::Closed, "the log has ended");
        self.complete(submission.id, Err(error), None);
    }

    /// Writes blocks on the log's own thread, until the log is closing.
    pub(crate) fn serve(self: &Arc<Self>) {
        loop {
            match self.handover.writer_turn(|| embed::now(&self.dir.instance)) {
                WriterTurn::Write(submission) => self.write_here(submission),
                WriterTurn::PassOn(next) => self.pass_on(next),
                WriterTurn::Sleep => {}
                WriterTurn::End(next) => return self.pass_on(next),
            }
        }
    }

    /// Submits pending blocks for futures and callbacks, or leaves them to the log's own thread.
    pub(crate) fn carry_all(self: &Arc<Self>) {
        let now = || embed::now(&self.dir.instance);
        while !self.is_forked() {
            let mut state = self.state();
            let left = state.leave_to_writer(now);
            let submission = if left.is_none() { state.submit(true, now) } else { None };
            drop(state);
            if left == Some(true) {
                self.handover.wake_writer();
            }
            let Some(submission) = submission else { return };
            self.write_elsewhere(submission);
        }
    }

    /// Writes all pending blocks on this thread; false if there were none.
    pub(crate) fn write_all_here(self: &Arc<Self>) -> bool {
        let mut any = false;
        while let Some(submission) = self.submit() {
            self.write_here(submission);
            any = true;
        }
        any
    }

    /// Allows the submission of blocks of an epoch that a cut began.
    pub(crate) fn set_named(self: &Arc<Self>, epoch: u64) {
        let mut state = self.state();
        state.set_named(epoch);
        let next = state.choose_next(embed::now(&self.dir.instance));
        drop(state);
        self.pass_on(next);
    }

    /// Submits a block for this thread to write.
    fn submit(&self) -> Option<Submission<File>> {
        let mut state = self.state();
        if self.is_forked() {
            return None;
        }
        state.submit(false, || embed::now(&self.dir.instance))
    }

    /// Completes a block that is durable or has failed. `rewritten` as in `Pipeline::complete`.
    fn complete(self: &Arc<Self>, id: u64, result: Result<()>, rewritten: Option<Rewritten<File>>) {
        let (failed, is_durable) = (result.as_ref().err().cloned(), result.is_ok());
        let completed = self.handover.complete(id, result, rewritten, embed::now(&self.dir.instance));
        let Completed { ending, blocks, unwritten, is_first_failure } = completed;
        if let Some(error) = failed.filter(|_| is_first_failure) {
            self.tell_event(|| Event::Failed { error });
        }
        // Before wakers run, since a waker may never return: later blocks queue for the hooks
        // behind these.
        for block in blocks.iter().filter(|_| is_durable) {
            let (place, end) = block.place();
            self.marks.add(place, end, self.handover.first());
            self.hooks.durable(block.id, || block.kept().map(CachedBlock::handed_over), !self.holds_names());
        }
        if is_durable && blocks.iter().any(InFlight::begins_segment) {
            // The control file must name the segment.
            self.wake_maintenance(&mut self.state());
        }
        self.finish(&ending);
        // Frees the bytes of the blocks.
        blocks.iter().for_each(|block| drop(block.group.take_sealed()));
        drop((blocks, unwritten));
    }

    /// Notifies all waiters of a completed write.
    fn finish(self: &Arc<Self>, ending: &Ending) {
        ending.wake_threads(|next| self.pass_on(next));
        for (group, fate) in &ending.groups {
            self.tell(group, *fate);
        }
        while let Some(waker) = ending.next_waker() {
            self.wake_all([waker]);
        }
        ending.set_over();
    }

    /// Takes overdue steps of stalled threads: see `state/rescue.rs`.
    pub(crate) fn rescue(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let step = state.rescue(embed::now(&self.dir.instance));
            drop(state);
            match step {
                None => return,
                Some(Rescue::End(ending)) => self.finish(&ending),
                Some(Rescue::PassOn(next)) => self.pass_on(next),
                Some(Rescue::Rewrite(rewrite)) => self.rewrite(rewrite),
            }
        }
    }

    /// Writes a block again, on this thread.
    fn rewrite(self: &Arc<Self>, rewrite: Rewrite<File>) {
        // The log has ended: another opening may use its segments.
        let Some(_held) = LentLock::of(&self.dir_lock) else { return };
        let Rewrite { id, live, offset, bytes } = rewrite;
        let began = embed::now(&self.dir.instance);
        // Uses another open file, since the log's own one serialises overlapping writes. If opening
        // fails, only the stalled thread can end the write.
        let Ok(file) = self.dir.open(live.number, true, self.control.direct) else { return };
        let sealed = Sealed { live: Live::new(live.number, live.bytes, file), bytes, offset };
        let result = self.synced(self.write(&sealed).wait(), &sealed.live.file);
        self.complete(id, result, Some(Rewritten { began, file: sealed.live.file }));
    }

    /// Lets the next writer write pending blocks.
    pub(super) fn pass_on(self: &Arc<Self>, next: Successor) {
        match next {
            Successor::Nobody => {}
            Successor::Leader(group) => group.wake_leader(),
            Successor::Writer => self.handover.wake_writer(),
            Successor::Carry => self.carry_all(),
        }
    }

    /// Notifies futures and callbacks of an ended group. The caller holds no lock.
    fn tell(&self, group: &Group, fate: Fate) {
        while let Some(waker) = group.next_waker() {
            self.wake_all([waker]);
        }
        let callbacks = group.take_callbacks();
        if callbacks.is_empty() {
            return;
        }
        let calls = callbacks.into_iter();
        self.calls.add(calls.map(|(lsn, callback)| Call::Durable(callback, self.outcome(lsn, fate))));
        self.serve_calls();
    }

    /// Wakes tasks. The caller holds no lock but `names`; if it holds that, another thread wakes
    /// the tasks. This is not the thread that runs callbacks, since a callback may wait for one of
    /// the tasks.
    pub(crate) fn wake_all(&self, wakers: impl IntoIterator<Item = Waker>) {
        let mut wakers = wakers.into_iter().peekable();
        if wakers.peek().is_some() && self.holds_names() {
            self.wakes.add(wakers.map(Call::Wake));
            self.serve_calls();
        } else {
            wakers.for_each(calls::wake);
        }
    }

    /// Starts the threads that run callbacks and wakers. If one cannot be started, this thread runs
    /// them, unless it holds `names`.
    pub(crate) fn serve_calls(&self) {
        let may_run_here = !self.holds_names();
        self.wakes.serve(may_run_here);
        self.calls.serve(may_run_here);
    }
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Log, Options, Strategy, SyncPolicy};
    use nowait::sim::Sim;
    use nowait::{Engine, Nowait};

    fn log_on(sim: &Sim) -> Log {
        let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
        let options = Options::new().create(true).instance(&instance).sync(SyncPolicy::Fixed(strategy));
        Log::open("/log", &options.segment_bytes(32 << 10).maintenance(false)).wait().unwrap().0
    }

    /// Symptom: a thread stalled between its decision to write a block again and the write. It then
    /// wrote after the log was closed, into a segment that another opening used.
    #[test]
    fn nothing_is_written_once_more_when_the_log_has_ended() {
        let sim = Sim::new(1);
        let log = log_on(&sim);
        let ticket = log.append(b"x").wait().unwrap();
        let shared = log.0.shared.clone();
        let submission = shared.submit().unwrap();
        let id = submission.id;
        let sealed = shared.seal(submission);
        let step = shared.state().rescue(Instant::now() + Duration::from_secs(60));
        let Some(Rescue::Rewrite(rewrite)) = step else { panic!("nothing is overdue") };
        shared.write(&sealed).wait().unwrap();
        drop(sealed);
        shared.complete(id, Ok(()), None);
        ticket.wait().unwrap();
        log.close().wait().unwrap();
        let writes = Arc::new(AtomicU32::new(0));
        let counted = writes.clone();
        sim.watch(move |_| _ = counted.fetch_add(1, SeqCst));
        shared.rewrite(rewrite);
        assert_eq!(writes.load(SeqCst), 0);
    }
}
