//! The ring's descriptor in tokio's own reactor: a task per ring notices completions, and no thread of ours exists.
//!
//! Each runtime has its own rings, at most one per worker. A runtime that is not driven cannot notice anything, and a
//! current-thread runtime may have been merely entered, or the caller may be one of its blocking threads. There a ring is only
//! used by a task on the thread that the runtime was seen to run on: the watching task's own. All else, the root future of
//! such a runtime's `block_on` included, is served by the reaper thread. When a runtime ends, its rings go to the
//! reaper, which sees their last operations through.
//!
//! `unsafe` here: tokio asks for a promise that the descriptor stays open.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::task::AbortHandle;

use super::shared::{Reap, Reaper, SHARDS_MAX, Shard, Shards};
use crate::buf::lock;
use crate::stats::thread_number;

#[derive(Clone, Default)]
pub(super) struct Runtimes(Arc<Mutex<Vec<Runtime>>>);

struct Runtime {
    id: Id,
    shards: Arc<Shards>,
    tasks: Vec<AbortHandle>,
    /// The thread that ran the watching task last; of interest in a current-thread runtime.
    driver: Arc<AtomicUsize>,
    /// The runtime has no I/O driver (`enable_io` was not called): the reaper serves it.
    refused: bool,
}

impl Runtimes {
    /// A ring of the runtime that this thread works for, if that runtime can notice its completions.
    pub(super) fn shard(&self, reaper: &Arc<Reaper>) -> Option<Arc<Shard>> {
        let handle = Handle::try_current().ok()?;
        let single = handle.runtime_flavor() == RuntimeFlavor::CurrentThread;
        if single && tokio::task::try_id().is_none() {
            return None;
        }
        let workers = if single { 1 } else { handle.metrics().num_workers() };
        let id = handle.id();
        let mut runtimes = lock(&self.0);
        let index = match runtimes.iter().position(|runtime| runtime.id == id) {
            Some(index) => index,
            None => {
                runtimes.push(Runtime {
                    id,
                    shards: Arc::default(),
                    tasks: Vec::new(),
                    driver: Arc::new(AtomicUsize::new(usize::MAX)),
                    refused: false,
                });
                runtimes.len() - 1
            }
        };
        let runtime = &mut runtimes[index];
        if runtime.refused {
            return None;
        }
        let driver = runtime.driver.clone();
        let mut made = false;
        let make = || Shard::new().inspect(|_| made = true);
        let shard = runtime.shards.mine(workers.min(SHARDS_MAX), make).ok()?;
        drop(runtimes);
        if made {
            // With nothing locked: a runtime that is ending drops the tasks at once.
            let (runtimes, reaper) = (self.0.clone(), reaper.clone());
            let flusher = Flusher { shard: shard.clone(), _reaper: reaper.clone() };
            let watcher =
                Watcher { shard: shard.clone(), id, runtimes, reaper, driver: driver.clone(), progress: Progress::New };
            let tasks = [handle.spawn(flush(flusher)), handle.spawn(watch(watcher))];
            if let Some(runtime) = lock(&self.0).iter_mut().find(|runtime| runtime.id == id && !runtime.refused) {
                runtime.tasks.extend(tasks.map(|task| task.abort_handle()));
            }
        }
        (!single || driver.load(Ordering::Relaxed) == thread_number()).then_some(shard)
    }

    pub(super) fn all(&self) -> Vec<Arc<Shard>> {
        lock(&self.0).iter().flat_map(|runtime| runtime.shards.all()).collect()
    }

    /// The engine is gone: the tasks end, and the reaper takes what is in flight.
    pub(super) fn close(&self) {
        let runtimes = std::mem::take(&mut *lock(&self.0));
        runtimes.iter().flat_map(|runtime| &runtime.tasks).for_each(AbortHandle::abort);
    }
}

/// A ring while a task watches it. Dropped with the task: by the runtime's end, or the engine's.
struct Watcher {
    shard: Arc<Shard>,
    id: Id,
    runtimes: Arc<Mutex<Vec<Runtime>>>,
    reaper: Arc<Reaper>,
    driver: Arc<AtomicUsize>,
    progress: Progress,
}

/// How far a watching task has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has not run yet. A runtime that ends at once never runs it.
    New,
    Registering,
    Watching,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let (mut tasks, mut runtime) = (Vec::new(), None);
        let mut runtimes = lock(&self.runtimes);
        if let Some(index) = runtimes.iter().position(|runtime| runtime.id == self.id) {
            runtimes[index].shards.remove(&self.shard);
            if self.progress == Progress::Registering {
                runtimes[index].refused = true;
                // A handle of a task keeps its runtime's descriptors open.
                tasks = std::mem::take(&mut runtimes[index].tasks);
            } else if runtimes[index].shards.all().is_empty() {
                runtime = Some(runtimes.swap_remove(index));
            }
        }
        drop(runtimes);
        // With nothing locked, for the same reason.
        drop((tasks, runtime));
        // Without a thread nobody is left to notice completions: slots stay allocated, which is safe, and their futures
        // belong to a runtime that has ended.
        let _ = self.reaper.adopt(&self.shard);
    }
}

async fn watch(mut watcher: Watcher) {
    // Registering panics where the runtime has no I/O driver; the guard then passes the ring to the reaper.
    watcher.progress = Progress::Registering;
    let descriptor = Descriptor(watcher.shard.clone());
    // SAFETY: the descriptor is the ring's, which the `Arc` inside keeps open and the same as long as it lives.
    let Ok(fd) = (unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }) else { return };
    watcher.progress = Progress::Watching;
    loop {
        watcher.driver.store(thread_number(), Ordering::Relaxed);
        let Ok(mut guard) = fd.readable().await else { return };
        // First forget the readiness, then reap: what completes in between is told again (edge-triggered).
        guard.clear_ready();
        watcher.shard.reap(Reap::Surely);
    }
}

/// Submits what is staged when the worker has run everything else: a task that yields goes on when its worker is about to
/// sleep.
async fn flush(flusher: Flusher) {
    loop {
        std::future::poll_fn(|context| flusher.shard.poll_staged(context)).await;
        tokio::task::yield_now().await;
        flusher.shard.flush();
    }
}

/// Dropped with the task that flushes.
struct Flusher {
    shard: Arc<Shard>,
    /// After the ring: whoever drops the last share of the reaper rings its bell.
    _reaper: Arc<Reaper>,
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.shard.end_flushing();
    }
}

struct Descriptor(Arc<Shard>);

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
