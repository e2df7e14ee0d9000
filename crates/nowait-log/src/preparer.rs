//! A thread that prepares one segment and ends, for a log without a maintenance thread.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nowait::embed;

use super::dir::{DirLock, LentLock};
use super::os::lock;

#[derive(Default)]
pub(super) struct Preparer(Mutex<SpareThread>);

#[derive(Default)]
struct SpareThread {
    /// Keeps other writers out of the directory while the thread works.
    lock: Option<LentLock>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Preparer {
    /// Allows threads, which hold `held` while they work.
    pub(super) fn lend(&self, held: Arc<DirLock>) {
        lock(&self.0).lock = Some(LentLock::new(held));
    }

    /// Starts a thread that does `prepare`, which calls [`Preparer::is_done`]. Does nothing while
    /// there is one, or after [`Preparer::end`].
    pub(super) fn start(&self, prepare: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut spare = lock(&self.0);
        let Some(held) = spare.lock.clone().filter(|_| !spare.is_busy) else { return Ok(()) };
        let run = move || {
            let _held = held;
            prepare();
        };
        let thread = embed::spawn("nowait-log-spare", run)?;
        spare.is_busy = true;
        // The thread before has ended, or is about to without touching anything.
        spare.thread = Some(thread);
        Ok(())
    }

    /// Allows the next thread to start.
    pub(super) fn is_done(&self) {
        lock(&self.0).is_busy = false;
    }

    /// Allows no more threads: the log is closed. `waits`: also for the last one to end.
    pub(super) fn end(&self, waits: bool) {
        let mut spare = lock(&self.0);
        let (held, thread) = (spare.lock.take(), spare.thread.take());
        drop(spare);
        drop(held);
        if let Some(thread) = thread.filter(|thread| waits && thread.thread().id() != std::thread::current().id()) {
            // The thread does not panic; if it did, nothing would be left to do.
            let _ = thread.join();
        }
    }
}
