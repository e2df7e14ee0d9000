//! A thread's own ring, which a watcher serves while the thread is elsewhere and others wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::sys::{AsFd, BorrowedFd, Errno};

use super::bell::{Bell, DriveWaker, IN_QUEUE};
use crate::engine::queue::{Queue, Reap};
use crate::engine::{QueueRefusal, Retry};
use crate::op::Slot;
use crate::op::watcher::{self, Glance, Note, NoticedBy, Watched};

/// A thread's own ring.
pub(super) struct Own {
    queue: Arc<Queue>,
    bell: Arc<Bell>,
    /// Its thread is in a system call that submits and waits.
    is_inside: AtomicBool,
    /// A watcher serves it while it is lent.
    note: Note,
    /// Counts the thread's visits.
    visits: AtomicU64,
    /// The count at the watcher's last glance.
    glanced_at: AtomicU64,
}

/// A thread's ring, which is made on first use.
pub(super) enum OwnRing {
    New,
    /// The kernel refused a ring for this thread; other engines serve, until then at least.
    Refused(Option<Instant>),
    Ready(Arc<Own>),
}

impl OwnRing {
    /// Returns the ring, if the thread has one that this process made.
    pub(super) fn get(&self) -> Option<&Arc<Own>> {
        match self {
            OwnRing::Ready(own) if own.queue.is_ours() => Some(own),
            _ => None,
        }
    }

    /// Returns the ring, which is made if it is time to try.
    pub(super) fn make(&mut self, bell: impl FnOnce() -> Arc<Bell>) -> Option<&Arc<Own>> {
        let is_due = match self {
            OwnRing::New => true,
            OwnRing::Refused(until) => until.is_some_and(|until| Instant::now() >= until),
            // A child cannot use its parent's.
            OwnRing::Ready(own) => !own.queue.is_ours(),
        };
        if is_due {
            let made = match Own::new(bell()) {
                Ok(own) => OwnRing::Ready(own),
                Err(refusal) if refusal.passes() => OwnRing::Refused(Some(Instant::now() + Retry::AGAIN)),
                Err(_) => OwnRing::Refused(None),
            };
            if let OwnRing::Ready(parents) = std::mem::replace(self, made) {
                std::mem::forget(parents);
            }
        }
        self.get()
    }
}

impl Own {
    fn new(bell: Arc<Bell>) -> Result<Arc<Own>, QueueRefusal> {
        bell.event().ok_or(QueueRefusal { errno: Errno::MFILE, entries: 0 })?;
        let queue = Queue::new(NoticedBy::Thread, 0)?;
        let (is_inside, note) = (AtomicBool::new(false), Note::default());
        let (visits, glanced_at) = (AtomicU64::new(1), AtomicU64::new(0));
        let own = Arc::new(Own { queue, bell, is_inside, note, visits, glanced_at });
        let known: Weak<dyn Watched> = Arc::<Own>::downgrade(&own);
        match watcher::register(known, NoticedBy::Thread) {
            true => Ok(own),
            false => Err(QueueRefusal { errno: Errno::MFILE, entries: 0 }),
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.queue.is_ours()
    }

    /// Stages a slot; returns it if the kernel refuses the ring by now.
    pub(super) fn stage(&self, slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
        if self.queue.is_dead() {
            return Err(slot);
        }
        self.visit(|queue| queue.submit(slot, false));
        Ok(())
    }

    pub(super) fn takes_announced(&self, file: usize) -> bool {
        self.queue.takes_announced(file)
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.queue.in_flight() > 0
    }

    /// Submits what is staged, and settles completions, without waiting.
    pub(super) fn look(&self) {
        self.visit(|queue| {
            if queue.in_flight() > 0 {
                queue.submit_staged();
                self.settle();
            }
        });
    }

    /// Sleeps until something may have changed, unless `notice` has come. False if nothing is in
    /// flight.
    pub(super) fn sleep(&self, notice: &DriveWaker) -> bool {
        self.wait(|| if notice.falls_asleep(IN_QUEUE) { 1 } else { 0 })
    }

    /// Waits for a completion. False if nothing is in flight.
    pub(super) fn drain(&self) -> bool {
        self.wait(|| 1)
    }

    fn wait(&self, want: impl FnOnce() -> usize) -> bool {
        let mut waits = false;
        self.visit(|queue| {
            // In this order: either the thread sees what a watcher has ended, or that the bell has
            // rung, or the watcher sees that the thread is inside.
            self.is_inside.store(true, SeqCst);
            if let (false, Some(event)) = (queue.polls_bell(), self.bell.event()) {
                // Cleared only now: a late ring would end the next sleep early, and no more.
                self.bell.clear();
                queue.poll_bell(event.as_fd());
            }
            let want = want();
            waits = queue.wait(want);
            self.is_inside.store(false, SeqCst);
            self.bell.awake();
            if waits {
                self.settle();
                queue.relieve_own_line();
            }
        });
        waits
    }

    fn settle(&self) {
        self.queue.reap(Reap::Surely);
        self.queue.collect_announced();
    }

    /// Counts a visit of the thread. What it leaves may need help.
    fn visit(&self, visit: impl FnOnce(&Queue)) {
        self.visits.fetch_add(1, SeqCst);
        visit(&self.queue);
        if self.note.is_lent() {
            watcher::look(self);
        }
    }

    /// Wakes the thread, which came while a watcher served the ring: the watcher may have reaped what
    /// the thread sleeps for, and the poll of the bell that was to wake it.
    fn call_back(&self) {
        self.bell.write();
        if let (false, Some(event)) = (self.queue.polls_bell(), self.bell.event()) {
            self.queue.poll_bell(event.as_fd());
            self.queue.submit_staged();
        }
    }

    /// Lets a watcher end what is left: the thread does something else.
    pub(super) fn leave_to_watcher(self: Arc<Self>) {
        if !self.queue.is_quiet() {
            watcher::lend(self);
        }
    }

    /// Leaves the ring to a watcher: its thread ends.
    pub(super) fn leave(self: Arc<Self>) {
        self.queue.enter_announced();
        self.queue.submit_staged();
        self.queue.reap(Reap::Surely);
        self.queue.submit_staged();
        if self.note.is_watched() || !self.queue.is_quiet() {
            watcher::leave(self);
        }
    }
}

impl Watched for Own {
    fn noticed_by(&self) -> NoticedBy {
        NoticedBy::Thread
    }

    fn note(&self) -> &Note {
        &self.note
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.as_fd())
    }

    fn serve(&self) {
        // Its thread looks when it leaves.
        if self.is_inside.load(SeqCst) {
            return;
        }
        self.queue.enter_announced();
        self.queue.submit_staged();
        self.queue.reap(Reap::Surely);
        // The rest of short transfers, and slots that were in line.
        self.queue.submit_staged();
        if self.is_inside.load(SeqCst) {
            self.call_back();
        }
    }

    fn is_quiet(&self) -> bool {
        self.queue.is_quiet()
    }

    fn glance(&self) -> Glance {
        // Its thread waits there.
        if self.is_inside.load(SeqCst) {
            return Glance::Busy;
        }
        self.queue.relieve_line();
        let visits = self.visits.load(SeqCst);
        match self.queue.is_quiet() {
            true => Glance::Quiet,
            false if self.glanced_at.swap(visits, SeqCst) == visits => Glance::Left,
            false => Glance::Busy,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::op::fixture::{file_of_fd, read_of};

    /// Symptom: a thread slept on beside an operation that hung, though its future had been woken: the
    /// watcher had reaped the poll of its bell.
    #[test]
    fn a_watcher_that_reaps_the_poll_of_a_bell_wakes_the_thread_all_the_same() {
        let own = match Own::new(Bell::new()) {
            Ok(own) => own,
            Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
        };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let slot = read_of(&file_of_fd(reader));
        assert!(own.stage(slot.clone()).is_ok());
        own.queue.poll_bell(own.bell.event().unwrap().as_fd());
        own.bell.write();
        // As a watcher does that looked before the thread came.
        own.queue.enter();
        own.queue.reap(Reap::Surely);
        assert!(!own.queue.polls_bell());
        own.is_inside.store(true, SeqCst);
        own.call_back();
        // It returns: the pipe's read does not end.
        own.queue.wait(1);
        own.is_inside.store(false, SeqCst);
        rustix::io::write(&writer, &[7; 8]).unwrap();
        while own.drain() {}
        assert!(slot.take().is_some());
    }
}
