//! A ring for an event loop that is not an executor. The loop's thread submits to it, and reaps
//! when the ring's descriptor is readable. No other thread runs for a completion.
//!
//! The loop may be busy or blocked while another thread waits for one of its operations. Then a
//! watcher reaps in its place (`op/watcher`). The loop takes the ring back when it looks again.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use super::queue::{Queue, Reap};
use super::{QueueRefusal, local};
use crate::op::watcher::{self, NoticedBy, Watched};
use crate::sys;
use crate::sys::{AsFd, BorrowedFd};

/// Ring for an event loop that is not a Rust executor: epoll(7), libuv, GLib, asyncio.
///
/// Operations started within [`submit`](LoopRing::submit) go to this ring together. The loop
/// watches the ring's descriptor, which is readable while completions are pending. It then calls
/// [`notice`](LoopRing::notice), which calls the wakers of completed operations. So a completion
/// costs no switch to another thread.
///
/// A waker must also wake the loop, by an eventfd or the loop's own means: buffered writes and
/// syncs complete on another thread.
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
/// # let file = nowait::File::open(&path).wait()?;
/// use nowait::embed::LoopRing;
/// use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
/// use std::future::Future;
/// use std::os::fd::OwnedFd;
/// use std::pin::pin;
/// use std::sync::Arc;
/// use std::task::{Context, Poll, Wake};
///
/// struct Bell(OwnedFd);
///
/// impl Wake for Bell {
///     fn wake(self: Arc<Self>) {
///         rustix::io::write(&self.0, &1u64.to_ne_bytes()).unwrap();
///     }
/// }
///
/// # if let Err(error) = LoopRing::new() { eprintln!("skipped: {error}"); return Ok(()); }
/// let ring = LoopRing::new()?;
/// let bell = Arc::new(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()));
/// let waker = bell.clone().into();
/// let mut page = pin!(ring.submit(|| file.read_range(4096, 4096).start()));
/// let page = loop {
///     if let Poll::Ready(page) = page.as_mut().poll(&mut Context::from_waker(&waker)) {
///         break page?;
///     }
///     poll(&mut [PollFd::new(&ring, PollFlags::IN), PollFd::new(&bell.0, PollFlags::IN)], None).unwrap();
///     _ = rustix::io::read(&bell.0, &mut [0; 8]);
///     ring.notice();
/// };
/// # assert_eq!(page[..], [7; 4096]);
/// # Ok(())
/// # }
/// ```
///
/// If the loop does not call `notice`, a thread of the library reaps completions in its place. That
/// thread starts at once if another operation waits for one of these, otherwise within 0.1 s.
///
/// The type is public since no other interface completes operations on the loop's own thread. Each
/// queue of the C interface has such a ring. Under an executor, futures need none.
///
/// A ring belongs to no instance, and any thread may use it. Its drop does not block: operations in
/// flight complete in the background. In a forked child the ring has no effect, and operations take
/// the usual route.
pub struct LoopRing {
    queue: Arc<Queue>,
}

thread_local! {
    /// The ring that this thread submits to now.
    static CURRENT: RefCell<Option<Arc<Queue>>> = const { RefCell::new(None) };
    /// It submits many operations in one system call.
    static IS_MANY: Cell<bool> = const { Cell::new(false) };
}

impl LoopRing {
    pub(crate) fn set_up() -> Result<LoopRing, QueueRefusal> {
        let queue = Queue::new(NoticedBy::Reactor, 0)?;
        Ok(LoopRing { queue })
    }

    /// Calls `start`, which starts operations on this thread. Operations for io_uring go to this
    /// ring, in one system call at the end.
    ///
    /// Operations with a callback ([`on_complete`](crate::Operation::on_complete)) take the usual
    /// route.
    pub fn submit<T>(&self, start: impl FnOnce() -> T) -> T {
        if !self.queue.is_ours() {
            return start();
        }
        let _entered = Entered::new(&self.queue);
        local::undriven(start)
    }

    /// Calls `start`, which begins many operations on this thread; otherwise as
    /// [`submit`](LoopRing::submit).
    ///
    /// Meanwhile [`Operation::start`](crate::Operation::start) does not attempt a read on this
    /// thread if io_uring should serve the batch at least as fast. The system call that submits the
    /// batch then copies cached data.
    pub fn submit_many<T>(&self, start: impl FnOnce() -> T) -> T {
        if !self.queue.is_ours() {
            return start();
        }
        let _entered = Entered::new(&self.queue);
        let _many = Many(IS_MANY.replace(true));
        local::undriven(start)
    }

    /// Reaps pending completions, and calls the wakers and callbacks of completed operations, on this
    /// thread. Makes a system call only to resubmit the rest of a short transfer.
    pub fn notice(&self) {
        if !self.queue.is_ours() {
            return;
        }
        if self.queue.note().is_lent() {
            watcher::take_back(&*self.queue);
        }
        self.queue.reactor_is_away.store(false, Release);
        sys::calling_back(true, || self.queue.reap(Reap::Surely));
    }
}

/// The ring that this thread submits to now, if that is a loop's.
pub(super) fn current() -> Option<Arc<Queue>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten().filter(|_| !local::is_elsewhere())
}

/// Whether this thread submits many operations to a loop's ring in one system call.
#[inline]
pub(crate) fn submits_many() -> bool {
    IS_MANY.get()
}

/// Puts back what `IS_MANY` was, also after a panic.
struct Many(bool);

impl Drop for Many {
    fn drop(&mut self) {
        IS_MANY.set(self.0);
    }
}

/// A thread's submissions while they go to the ring of a loop.
struct Entered<'r> {
    queue: &'r Arc<Queue>,
    outer: Option<Arc<Queue>>,
}

impl Entered<'_> {
    fn new(queue: &Arc<Queue>) -> Entered<'_> {
        let outer = CURRENT.try_with(|current| current.replace(Some(queue.clone()))).ok().flatten();
        Entered { queue, outer }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let outer = self.outer.take();
        let inner = CURRENT.try_with(|current| current.replace(outer));
        self.queue.submit_staged();
        drop(inner);
    }
}

impl AsFd for LoopRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl std::fmt::Debug for LoopRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoopRing").finish_non_exhaustive()
    }
}

impl Drop for LoopRing {
    fn drop(&mut self) {
        self.queue.leave();
    }
}
