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
    /// Allows threads, which hold a share of `held` while they work.
    pub(super) fn lend(&self, held: Arc<DirLock>) {
        lock(&self.0).lock = Some(LentLock::new(held));
    }

    /// Starts a thread that runs `prepare`, which must call [`Preparer::is_done`]. Does nothing
    /// while a thread works, or after [`Preparer::end`].
    pub(super) fn start(&self, prepare: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut spare = lock(&self.0);
        let Some(held) = spare.lock.clone().filter(|_| !spare.is_busy) else { return Ok(()) };
        let run = move || {
            let _held = held;
            prepare();
        };
        let thread = embed::spawn("nowait-log-spare", run)?;
        spare.is_busy = true;
        // The previous thread has ended, or only has to return.
        spare.thread = Some(thread);
        Ok(())
    }

    /// Allows the next thread to start.
    pub(super) fn is_done(&self) {
        lock(&self.0).is_busy = false;
    }

    /// Allows no more threads, since the log is closed. If `waits`, joins the last one.
    pub(super) fn end(&self, waits: bool) {
        let mut spare = lock(&self.0);
        let (held, thread) = (spare.lock.take(), spare.thread.take());
        drop(spare);
        drop(held);
        if let Some(thread) = thread.filter(|thread| waits && thread.thread().id() != std::thread::current().id()) {
            // The thread does not panic; after a panic there would be nothing to do.
            let _ = thread.join();
        }
    }
}
