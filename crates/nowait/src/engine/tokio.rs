//! Rings of tokio runtimes. A task submits staged entries when its worker has nothing else to run.
//! Completions are noticed by tokio's reactor, which polls the ring's descriptor, or by a watcher.
//!
//! The reactor serves runtimes that were attached
//! ([`Nowait::attach_tokio`](crate::Nowait::attach_tokio)), and a watcher serves all others. tokio
//! reveals a missing I/O driver only by a panic (1.54; tokio-rs/tokio#8361 reports the same for
//! timers). A caught panic still reaches the process's hook, and `panic = "abort"` ends the
//! process. So only an explicit call tests for a driver.
//!
//! Each runtime has its own rings, at most one per worker. A runtime that is not driven notices no
//! completions. A thread in a current-thread runtime may have only entered it, or be one of its
//! blocking threads. So only a task uses the ring of such a runtime, on the thread that last ran
//! the ring's own tasks. Everything else, including the root future of its `block_on`, uses the
//! instance's common rings. When a runtime ends, a watcher serves its rings until their last
//! operations complete.
//!
//! `unsafe` here: tokio requires that the registered descriptor stays open.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::task::AbortHandle;

use super::known::{self, Key};
use super::queue::{Queue, Reap};
use super::queues::{QUEUES_MAX, Queues};
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::op::watcher::{self, NoticedBy};
use crate::stats::thread_number;
use crate::sync::lock;
use crate::sys::{AsFd, Errno, WakeEvent};

#[derive(Clone, Default)]
pub(super) struct Runtimes(Arc<Mutex<Vec<Runtime>>>);

struct Runtime {
    id: Id,
    /// True if the runtime's reactor notices completions of new rings.
    attached: bool,
    queues: Arc<Queues>,
    tasks: Vec<AbortHandle>,
}

impl Runtime {
    /// Selects the reactor or a watcher to notice completions of new rings. Existing rings keep
    /// theirs. Returns the existing rings, to be dropped with nothing locked.
    fn set_attached(&mut self, attached: bool) -> Option<Arc<Queues>> {
        let changed = std::mem::replace(&mut self.attached, attached) != attached;
        changed.then(|| {
            self.queues.retire();
            std::mem::take(&mut self.queues)
        })
    }
}

impl Runtimes {
    /// Lets the current runtime's reactor notice completions until it ends.
    pub(super) fn attach(&self) -> Result<()> {
        let handle = Handle::try_current().map_err(|_| {
            let advice = "this thread is in no tokio runtime; call it in a task, under block_on, or where the runtime \
                          is entered";
            Error::new(ATTACH, ErrorKind::Unsupported).with_advice(advice)
        })?;
        if self.look_at(&handle, |runtime| runtime.attached) {
            return Ok(());
        }
        let bell = WakeEvent::new().map_err(|errno| Error::from_errno(ATTACH, errno))?;
        // With nothing locked: this is where tokio panics if the runtime has no I/O driver, or
        // refuses if it has ended. The panic leaves no state behind: the registration has not begun.
        let registered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the descriptor is owned, and stays open until it is dropped with the
            // registration.
            unsafe { AsyncFd::register_with_interest(bell, Interest::READABLE) }
        }));
        let registered = registered.map_err(|_| {
            let advice = "this tokio runtime was built without an I/O driver; build it with enable_io or enable_all, \
                          or omit attach_tokio, since operations also work without it";
            Error::new(ATTACH, ErrorKind::Unsupported).with_advice(advice)
        })?;
        drop(registered.map_err(|error| not_registered(&error.into()))?);
        drop(self.look_at(&handle, |runtime| runtime.set_attached(true)));
        Ok(())
    }

    /// Passes the state of a runtime to `look`. The state is kept until the runtime ends.
    fn look_at<T>(&self, handle: &Handle, look: impl FnOnce(&mut Runtime) -> T) -> T {
        let id = handle.id();
        let mut runtimes = lock(&self.0);
        if let Some(runtime) = runtimes.iter_mut().find(|runtime| runtime.id == id) {
            return look(runtime);
        }
        let mut runtime = Runtime { id, attached: false, queues: Arc::default(), tasks: Vec::new() };
        let looked = look(&mut runtime);
        runtimes.push(runtime);
        drop(runtimes);
        let known = Known { id, runtimes: self.clone() };
        // With nothing locked: a runtime that has ended drops the task at once.
        let task = handle.spawn(async move {
            let _known = known;
            std::future::pending::<()>().await
        });
        self.keep(id, [task.abort_handle()]);
        looked
    }

    /// Remembers tasks of a runtime, to end them with the engine.
    fn keep(&self, id: Id, tasks: impl IntoIterator<Item = AbortHandle>) {
        // A runtime that has ended is no longer in the list, and has dropped its tasks.
        if let Some(runtime) = lock(&self.0).iter_mut().find(|runtime| runtime.id == id) {
            runtime.tasks.extend(tasks);
        }
    }

    /// Returns a ring of this thread's current runtime, if the ring's completions will be noticed.
    /// `engine` is the number of the engine whose runtimes these are.
    pub(super) fn queue(&self, engine: u64) -> Option<Arc<Queue>> {
        let handle = Handle::try_current().ok()?;
        let single = handle.runtime_flavor() == RuntimeFlavor::CurrentThread;
        if single && tokio::task::try_id().is_none() {
            return None;
        }
        let queue = known::find_or(Key { engine, runtime: Some(handle.id()) }, || self.look_up(&handle))?;
        if !queue.is_in_reactor() && !watcher::adopt(&queue) {
            return None;
        }
        (!single || queue.driver.load(Ordering::Relaxed) == thread_number()).then_some(queue)
    }

    /// Returns this thread's ring of a runtime, and creates it if necessary.
    fn look_up(&self, handle: &Handle) -> Option<Arc<Queue>> {
        let (attached, queues) = self.look_at(handle, |runtime| (runtime.attached, runtime.queues.clone()));
        // A current-thread runtime reports one worker.
        let workers = handle.metrics().num_workers();
        let noticed_by = if attached { NoticedBy::Reactor } else { NoticedBy::Watcher };
        let begin = |queue: &Arc<Queue>| {
            let served = || ServedRing { queue: queue.clone(), queues: queues.clone() };
            let mut tasks = vec![handle.spawn(flush(Flusher(served()))).abort_handle()];
            if attached {
                let reactor = InReactor { served: served(), id: handle.id(), runtimes: self.clone() };
                tasks.push(handle.spawn(notice(reactor)).abort_handle());
            }
            self.keep(handle.id(), tasks);
        };
        queues.mine(workers.min(QUEUES_MAX), |place| Queue::new(noticed_by, place), begin).ok()
    }

    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        lock(&self.0).iter().flat_map(|runtime| runtime.queues.all()).collect()
    }

    /// Returns true if a runtime that is not attached has submitted to a ring.
    pub(super) fn has_unattached(&self) -> bool {
        lock(&self.0).iter().any(|runtime| !runtime.attached && !runtime.queues.all().is_empty())
    }

    /// Ends the tasks when the engine is gone. A watcher takes over operations in flight.
    pub(super) fn close(&self) {
        let runtimes = std::mem::take(&mut *lock(&self.0));
        runtimes.iter().flat_map(|runtime| &runtime.tasks).for_each(AbortHandle::abort);
    }
}

const ATTACH: ErrorOp = ErrorOp::Other("attach_tokio");

/// Converts an error of tokio's reactor: an errno of `epoll_ctl(2)`, or none if the reactor ended.
fn not_registered(error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(errno) if errno == Errno::NOSPC => Error::from_errno(ATTACH, errno).with_advice(
            "this user has the maximum number of epoll watches; raise the limit (sysctl fs.epoll.max_user_watches)",
        ),
        Some(errno) => Error::from_errno(ATTACH, errno),
        None => Error::new(ATTACH, ErrorKind::Unsupported)
            .with_advice(format!("{error}; call it in a runtime that has not ended")),
    }
}

/// Held by a task of a runtime until the runtime ends; its drop removes the runtime's state.
struct Known {
    id: Id,
    runtimes: Runtimes,
}

impl Drop for Known {
    fn drop(&mut self) {
        // A later runtime may reuse the ID.
        let mut runtimes = lock(&self.runtimes.0);
        let index = runtimes.iter().position(|runtime| runtime.id == self.id);
        let ended = index.map(|index| runtimes.swap_remove(index));
        drop(runtimes);
        // With nothing locked: a task's handle may be its last.
        drop(ended);
    }
}

/// Shared by the tasks of a ring.
struct ServedRing {
    queue: Arc<Queue>,
    queues: Arc<Queues>,
}

impl ServedRing {
    /// Retires the ring when its tasks end. Returns false in a forked child, which may drop its
    /// parent's runtime.
    fn ends(&self) -> bool {
        let is_ours = self.queue.is_ours();
        if is_ours {
            self.queues.remove(&self.queue);
        }
        is_ours
    }

    fn runs_here(&self) {
        self.queue.driver.store(thread_number(), Ordering::Relaxed);
    }
}

/// Dropped with the task that notices completions, when the runtime or the engine ends.
struct InReactor {
    served: ServedRing,
    id: Id,
    runtimes: Runtimes,
}

impl Drop for InReactor {
    fn drop(&mut self) {
        self.served.ends();
    }
}

async fn notice(reactor: InReactor) {
    let ServedRing { queue, .. } = &reactor.served;
    // SAFETY: the descriptor is the ring's, which the `Arc` inside keeps open and the same as long
    // as it lives.
    let fd = unsafe { AsyncFd::register_with_interest(Descriptor(queue.clone()), Interest::READABLE) };
    let Ok(fd) = fd else {
        // The runtime has ended, or the user's epoll watches are exhausted. A new ring would
        // fail in the same way, so a watcher serves new rings.
        let mut runtimes = lock(&reactor.runtimes.0);
        let runtime = runtimes.iter_mut().find(|runtime| runtime.id == reactor.id);
        let before = runtime.and_then(|runtime| runtime.set_attached(false));
        drop(runtimes);
        return drop(before);
    };
    loop {
        reactor.served.runs_here();
        let Ok(mut guard) = fd.readable().await else { return };
        // First clear the readiness, then reap: completions in between are reported again
        // (edge-triggered).
        guard.clear_ready();
        queue.reactor_is_away.store(false, Ordering::Release);
        queue.reap(Reap::Surely);
    }
}

/// Submits staged entries when the worker has no other task to run: tokio resumes a yielded task
/// when its worker is about to sleep.
async fn flush(flusher: Flusher) {
    let Flusher(served) = &flusher;
    loop {
        served.runs_here();
        std::future::poll_fn(|context| served.queue.poll_staged(context)).await;
        tokio::task::yield_now().await;
        served.queue.flush();
    }
}

/// Dropped with the task that flushes.
struct Flusher(ServedRing);

impl Drop for Flusher {
    fn drop(&mut self) {
        if self.0.ends() {
            self.0.queue.end_flushing();
        }
    }
}

struct Descriptor(Arc<Queue>);

impl std::os::fd::AsFd for Descriptor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::op::fixture::{file_of_fd, read_of};

    /// Symptom: beside an operation that hung, an entry waited for the flusher of a runtime, whose
    /// worker blocked.
    #[test]
    fn an_entry_whose_flusher_does_not_run_is_submitted() {
        const PATIENCE: Duration = Duration::from_secs(120);
        for noticed_by in [NoticedBy::Watcher, NoticedBy::Reactor] {
            let queue = match Queue::new(noticed_by, 0) {
                Ok(queue) => queue,
                Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
            };
            assert!(noticed_by == NoticedBy::Reactor || watcher::adopt(&queue));
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let hangs = read_of(&file_of_fd(reader));
            queue.submit(hangs.clone(), true);
            assert!(queue.poll_staged(&mut Context::from_waker(Waker::noop())).is_pending());
            // Time for the watcher to sleep again; if it does not, it submits the entry all the same.
            std::thread::sleep(Duration::from_millis(20));
            let slot = read_of(&file_of_fd(std::fs::File::open("/dev/zero").unwrap()));
            queue.submit(slot.clone(), true);
            let begun = Instant::now();
            while slot.take().is_none() {
                assert!(begun.elapsed() < PATIENCE, "it waits for the flusher");
                std::thread::sleep(Duration::from_millis(1));
            }
            rustix::io::write(&writer, &[7; 8]).unwrap();
            queue.drain();
            assert!(hangs.take().is_some());
        }
    }
}
