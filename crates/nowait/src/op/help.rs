//! Serves the queue of a thread that does something else.
//!
//! A thread submits to its own queue and reaps it; a runtime does so with its rings. Either may
//! compute, or block on a thread whose write waits behind one in that queue. So a caller whose
//! progress may depend on such a queue asks for help: the library's thread `nowait-helper` serves
//! the queue until nothing is in flight there. These callers ask:
//!
//! * a write that has to wait for others, and a thread that submits a write for which others wait
//!   (`core/throttle.rs`);
//! * a thread or task that waits for a file's changes to end, or for its durable writes
//!   (`op/outstanding.rs`);
//! * a future that is polled by another thread than the one that submitted (`op/slot.rs`);
//! * a thread that goes, or returns from its `block_on`, and leaves operations behind
//!   (`engine/local/mod.rs`).
//!
//! The helper also serves, unasked, the queue of a thread that has been elsewhere for a while with
//! operations in flight. Its waiters may be unknown: a set of futures that was moved polls only the
//! futures that were woken. The same holds for a runtime in whose rings nothing ends: it may no
//! longer be driven.
//!
//! If no thread can be started, the asking thread serves the queues once. A thread that sleeps
//! until a change ends, or parks with a future, asks again at intervals ([`ask`]). A request that
//! failed is not remembered.
//!
//! Help covers operations in flight when it is asked for. A locked queue has its thread at work: it
//! needs no help, and the thread calls [`look`] when it leaves.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::sync::lock;
use crate::sys::{self, PerProcess};

/// Time that a queue's thread has to return before help starts.
const GRACE: Duration = Duration::from_micros(500);
/// How soon a queue without a descriptor is looked at again.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// How soon a queue whose thread was at work is looked at again, should the thread not tell.
const SURELY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long a thread with something in flight may stay out of its queue before help comes unasked.
const OUT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Interval at which a sleeping thread asks again, in case the helper's thread does not run.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// The same interval if no thread can be started.
const ALONE: Duration = Duration::from_millis(1);
/// The helper's thread ends after so long without a request.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A queue that may need help.
pub(crate) trait Helped: Send + Sync {
    /// Asks for help. True if the helper has to come; never for a queue that others serve.
    fn want(&self) -> bool {
        false
    }
    /// Whether help is still wanted.
    fn is_wanted(&self) -> bool {
        false
    }
    /// Serves the queue as its thread would, without waiting.
    fn help(&self) -> State {
        State::Quiet
    }
    /// True if an operation is in flight or in line. If the queue's thread has been out since the last
    /// glance, the queue wants help from now on. If nothing ends, its line goes to the pool.
    fn glance(&self) -> bool {
        false
    }
    /// Readable when there is something to do.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// True if a runtime serves the queue, and not a thread.
    fn is_of_a_runtime(&self) -> bool {
        false
    }
}

/// The state that a queue was found in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is in flight: the queue wants no more help.
    Quiet,
    /// The queue's thread is at work in it.
    Inside,
    /// The helper served the queue, or an operation completed.
    Progress,
    /// All operations are in the kernel.
    Waits,
}

#[derive(Default)]
struct Helper {
    members: Mutex<Members>,
    /// Wakes the thread; made with the first one. None if descriptors are short: the thread then
    /// looks at intervals.
    bell: OnceLock<OwnedFd>,
    /// The bell rings, or the thread is about to look.
    looks: AtomicBool,
    /// A queue may have operations in flight, so the thread glances at it at intervals.
    watches: AtomicBool,
    /// At the last request for help, no thread could be started.
    is_missed: AtomicBool,
}

#[derive(Default)]
struct Members {
    known: Vec<Weak<dyn Helped>>,
    /// Queues whose threads have ended, until nothing is in flight there.
    kept: Vec<Arc<dyn Helped>>,
    runs: bool,
}

fn helper() -> &'static Arc<Helper> {
    static HELPER: PerProcess<Arc<Helper>> = PerProcess::new();
    HELPER.get(Arc::default)
}

/// Makes a queue known, as long as it lives.
pub(crate) fn register(queue: Weak<dyn Helped>) {
    let mut members = lock(&helper().members);
    members.known.retain(|known| known.strong_count() > 0);
    members.known.push(queue);
}

/// Keeps a queue whose thread is gone until nothing is in flight there.
pub(crate) fn keep(queue: Arc<dyn Helped>) {
    queue.want();
    lock(&helper().members).kept.push(queue);
    look();
}

/// Selects queues by their owners.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The queues of threads.
    Threads,
    /// Those, and the rings of runtimes.
    All,
}

/// Asks for help with every queue that has something in flight now. Returns the time after which a
/// sleeping thread must ask again. Call this without any lock held: wakers may run here.
pub(crate) fn ask() -> Duration {
    ask_of(Of::All)
}

/// As [`ask`], for the queues of threads, or for all.
pub(crate) fn ask_of(of: Of) -> Duration {
    let members = lock(&helper().members);
    let known: Vec<_> = members.known.iter().filter_map(Weak::upgrade).collect();
    let runs = members.runs;
    drop(members);
    // Ask each queue, without a short cut after the first. A queue that wants help already may have
    // asked when no thread could be started.
    let asked = known.iter().filter(|queue| of == Of::All || !queue.is_of_a_runtime());
    let wanted = asked.fold(false, |wanted, queue| queue.want() | (!runs && queue.is_wanted()) | wanted);
    let alone = wanted && !look();
    if alone || of == Of::All {
        helper().is_missed.store(alone, Relaxed);
    }
    if alone {
        helper().serve();
        return ALONE;
    }
    SLEEP_MAX
}

/// Returns the time after which a parked thread must ask again, if the last request failed.
#[inline]
pub(crate) fn when_alone() -> Option<Duration> {
    helper().is_missed.load(Relaxed).then_some(ALONE)
}

/// Notes that a queue has got something, and its thread may not come back to it.
#[inline]
pub(crate) fn watch() {
    if !helper().watches.load(Relaxed) && !helper().watches.swap(true, SeqCst) {
        look();
    }
}

/// Wakes the helper to serve queues that want help. Returns false if its thread cannot be started.
#[cold]
pub(crate) fn look() -> bool {
    let helper = helper();
    if helper.looks.swap(true, SeqCst) {
        return true;
    }
    let mut members = lock(&helper.members);
    if members.runs {
        drop(members);
        helper.ring();
        return true;
    }
    members.runs = true;
    drop(members);
    let for_thread = helper.clone();
    let started = sys::spawn_service("nowait-helper", move || for_thread.run()).is_ok();
    if !started {
        // Threads are short: the next request tries again.
        lock(&helper.members).runs = false;
        helper.looks.store(false, SeqCst);
    }
    started
}

/// Serves a queue as long as there is something to do.
fn serve(queue: &dyn Helped) -> State {
    loop {
        match queue.help() {
            State::Progress => {}
            state => return state,
        }
    }
}

impl Helper {
    /// Serves the queues that want help on this thread.
    #[cold]
    fn serve(&self) {
        self.wanted().iter().for_each(|queue| _ = serve(&**queue));
    }

    /// None while descriptors are short.
    fn bell(&self) -> Option<&OwnedFd> {
        if self.bell.get().is_none() {
            let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            let _ = self.bell.set(bell);
        }
        self.bell.get()
    }

    fn ring(&self) {
        let _ = self.bell().map(|bell| rustix::io::write(bell, &1u64.to_ne_bytes()));
    }

    fn run(&self) {
        let mut watches = false;
        loop {
            std::thread::sleep(GRACE);
            // In this order: a later request rings again, and no ring is cleared after it was
            // heard.
            let _ = self.bell().map(|bell| rustix::io::read(bell, &mut [0; 8]));
            self.looks.store(false, SeqCst);
            watches = self.glances(watches);
            let mut timeout = if watches { OUT_MAX } else { IDLE };
            let mut wanted = self.wanted();
            let mut states = Vec::with_capacity(wanted.len());
            for queue in &wanted {
                let state = serve(&**queue);
                match (state, queue.descriptor()) {
                    (State::Inside, _) if timeout == IDLE => timeout = SURELY,
                    (State::Waits, None) => timeout = AGAIN,
                    _ => {}
                }
                states.push(state);
            }
            let mut keep = states.iter().map(|state| *state != State::Quiet);
            wanted.retain(|_| keep.next().unwrap_or(false));
            states.retain(|state| *state != State::Quiet);
            if !self.wait(&wanted, &states, timeout) && wanted.is_empty() && !watches {
                let mut members = lock(&self.members);
                if !self.looks.load(SeqCst) {
                    members.runs = false;
                    return;
                }
            }
        }
    }

    /// Glances at all queues; false if none has anything in flight, and this is not the first glance
    /// of a while. (A queue that is empty now and then would call for one each time.)
    fn glances(&self, has_watched: bool) -> bool {
        if !self.watches.swap(false, SeqCst) {
            return false;
        }
        let known: Vec<_> = lock(&self.members).known.iter().filter_map(Weak::upgrade).collect();
        // Each of them, for its own sake.
        let busy = known.iter().fold(false, |busy, queue| queue.glance() | busy);
        let watches = busy || !has_watched;
        if watches {
            self.watches.store(true, SeqCst);
        }
        watches
    }

    /// Returns the queues that want help, and lets go of kept ones that are quiet.
    fn wanted(&self) -> Vec<Arc<dyn Helped>> {
        let mut members = lock(&self.members);
        let mut gone = Vec::new();
        members.kept.retain(|queue| {
            let wanted = queue.is_wanted();
            if !wanted {
                gone.push(queue.clone());
            }
            wanted
        });
        let known = members.known.iter().filter_map(Weak::upgrade);
        let wanted = known.filter(|queue| queue.is_wanted()).collect();
        drop(members);
        // With nothing locked: a ring is closed here.
        drop(gone);
        wanted
    }

    /// Waits until there may be something to do; false after the timeout.
    fn wait(&self, wanted: &[Arc<dyn Helped>], states: &[State], timeout: Timespec) -> bool {
        let waiting = wanted.iter().zip(states).filter(|(_, state)| **state == State::Waits);
        let descriptors = waiting.filter_map(|(queue, _)| queue.descriptor());
        let bell = self.bell().map(|bell| bell.as_fd());
        let timeout = if bell.is_none() { AGAIN } else { timeout };
        let mut fds: Vec<_> =
            bell.into_iter().chain(descriptors).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // Interrupted: it looks, and waits again.
        !matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(0))
    }
}
