//! Serves queues whose owner is absent, away or asleep.
//!
//! A watcher is a thread that sleeps in epoll over some queues. It submits what is staged there,
//! settles completions, and calls wakers. It serves a queue without an owner as long as threads
//! submit to it, and the queue of a thread, a runtime or an event loop until nothing is in flight.
//!
//! An owner may compute. It may also wait for a thread whose write waits for a write in the owner's
//! queue. So a caller whose progress may depend on such a queue [asks](ask) for help:
//!
//! * a thread whose write waits for other writes, or submits a write for which others wait
//!   (`core/throttle.rs`);
//! * a thread or task that waits for a file's changes to end, or for its durable writes
//!   (`op/outstanding.rs`);
//! * a future that is polled by another thread than the one that submitted (`op/slot.rs`);
//! * a thread that ends, or returns from its `block_on`, with operations in flight
//!   (`engine/local/mod.rs`).
//!
//! Not every waiter asks: a set of futures that was moved to another thread polls only woken
//! futures. So one watcher serves no queue, and glances at all queues at intervals. It lends a
//! queue to another watcher if its owner has not entered it, or no operation has ended, since the
//! last glance.
//!
//! A submission may sleep, and a user's code may block. So queues with owners have a watcher of
//! their own, and cannot delay queues without an owner. A watcher that is stuck in one queue gets a
//! second thread for the others. A caller or a glance starts it; glances continue while a watcher
//! is awake.
//!
//! If no thread can be started, the asking thread serves the queues once, and asks again at
//! intervals while it sleeps. So does the watcher that glances. A watcher inherits the seccomp filter
//! of the thread that starts it. If that filter refuses io_uring, each queue that the watcher enters is
//! given up, and the pool serves its later requests (`engine/queue/enter.rs` `give_up`).

mod thread;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use self::thread::Watcher;
use crate::sync::lock;
use crate::sync::loomed::AtomicUsize;
use crate::sys::{BorrowedFd, PerProcess};

/// Interval of glances: the time for which an owner with operations in flight may stay out of its
/// queue. A sleeping thread asks again at the same interval, in case the watcher does not run.
const GLANCES: Duration = Duration::from_millis(50);
/// Interval at which a sleeping thread asks again if no thread can be started.
const ALONE: Duration = Duration::from_millis(1);
/// Time after a failed start of a thread until the next try.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// Number of the watcher that only glances. It enters no queue and runs no user's code, unless no
/// other thread can be started.
const GLANCING: usize = 0;
/// Number of the watcher of queues with owners.
const OF_OWNERS: usize = 1;
/// Number of the first watcher of queues without an owner.
const OF_NOBODY: usize = 2;
const WATCHERS: usize = OF_NOBODY + 8;
/// Number of queues without an owner that share a watcher: one thread cannot reap millions of
/// completions a second (docs/scaling.md).
const QUEUES_EACH: usize = 8;

/// Owner of a queue: the party that submits staged entries and reaps completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticedBy {
    /// A thread that drives a future, and sleeps in its ring.
    Thread,
    /// A reactor, or an event loop, which watches the queue's descriptor.
    Reactor,
    /// A watcher.
    Watcher,
}

/// State of a queue at a glance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glance {
    /// No further glance is needed.
    Quiet,
    /// An operation is in flight or in line.
    Busy,
    /// A watcher must serve it: operations were in flight at the last glance, and the owner has not
    /// entered the queue since.
    Left,
}

/// A queue that watchers serve.
pub(crate) trait Watched: Send + Sync {
    fn noticed_by(&self) -> NoticedBy;
    fn note(&self) -> &Note;
    /// Place among the queues of an instance; neighbours have the same watcher.
    fn place(&self) -> usize {
        0
    }
    /// Returns a descriptor that becomes readable (edge-triggered) on each completion. Without one,
    /// the watcher serves the queue at intervals.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Serves the queue as its owner would, without waiting.
    fn serve(&self);
    /// Whether no operation is in flight or in line.
    fn is_quiet(&self) -> bool;
    /// Whether a glance found the owner away, and it has not entered the queue since. A loan then
    /// outlives the operations in flight: the next ones would wait for two more glances.
    fn owner_is_away(&self) -> bool {
        false
    }
    /// Whether operations wait for the owner.
    fn waits_for_owner(&self) -> bool {
        !self.is_quiet()
    }
    /// Checks whether the owner is away, without a system call that may sleep. If no operation
    /// ends, passes the line to the pool.
    fn glance(&self) -> Glance;
}

/// A watcher's own note on a queue.
#[derive(Default)]
pub(crate) struct Note {
    /// One of the constants below.
    how: AtomicU8,
    /// Calls of [`Watched::serve`] that are due: one thread makes all of them.
    due: AtomicUsize,
}

/// The watcher does not serve the queue.
const NOT: u8 = 0;
/// The watcher serves the queue while an operation is in flight, or the owner is
/// [away](Watched::owner_is_away).
const LENT: u8 = 1;
/// The watcher serves the queue while threads may submit to it. The watcher's thread runs.
const ADOPTED: u8 = 2;
/// No thread can find the queue. The watcher serves it until no operation is in flight and no other
/// reference exists.
const LEFT: u8 = 3;

impl Note {
    fn get(&self) -> u8 {
        self.how.load(SeqCst)
    }

    fn set(&self, how: u8) {
        self.how.store(how, SeqCst);
    }

    /// Whether a watcher has the queue.
    pub(crate) fn is_watched(&self) -> bool {
        self.get() != NOT
    }

    /// Whether a watcher serves the queue in the place of its owner.
    pub(crate) fn is_lent(&self) -> bool {
        self.get() == LENT
    }
}

/// All watchers of the process.
struct Watchers {
    all: [Watcher; WATCHERS],
    known: Mutex<Vec<(NoticedBy, Weak<dyn Watched>)>>,
    /// A reactor owns a known queue.
    has_reactors: AtomicBool,
    /// The glancing watcher runs: a queue may have operations in flight, or a watcher is awake.
    glances: AtomicBool,
    /// At the last request for help, or for glances, no thread could be started.
    is_missed: AtomicBool,
}

fn watchers() -> &'static Watchers {
    static WATCHERS: PerProcess<Watchers> = PerProcess::new();
    WATCHERS.get(|| Watchers {
        all: std::array::from_fn(Watcher::new),
        known: Mutex::default(),
        has_reactors: AtomicBool::new(false),
        glances: AtomicBool::new(false),
        is_missed: AtomicBool::new(false),
    })
}

fn of(queue: &dyn Watched) -> &'static Watcher {
    let number = match queue.noticed_by() {
        NoticedBy::Watcher => OF_NOBODY + queue.place() / QUEUES_EACH % (WATCHERS - OF_NOBODY),
        NoticedBy::Thread | NoticedBy::Reactor => OF_OWNERS,
    };
    &watchers().all[number]
}

/// Serves a queue. If another thread serves it now, that thread serves it once more instead.
fn serve(queue: &dyn Watched) {
    let due = &queue.note().due;
    if due.fetch_add(1, SeqCst) > 0 {
        return;
    }
    loop {
        let seen = due.load(SeqCst);
        queue.serve();
        if due.compare_exchange(seen, 0, SeqCst, SeqCst).is_ok() {
            return;
        }
    }
}

/// Makes a queue known, as long as it lives. False while descriptors are short: no watcher could
/// serve it.
pub(crate) fn register(queue: Weak<dyn Watched>, noticed_by: NoticedBy) -> bool {
    let watchers = watchers();
    if noticed_by == NoticedBy::Reactor {
        watchers.has_reactors.store(true, Relaxed);
    }
    let mut known = lock(&watchers.known);
    known.retain(|(_, known)| known.strong_count() > 0);
    known.push((noticed_by, queue));
    drop(known);
    [GLANCING, OF_OWNERS].iter().all(|number| watchers.all[*number].poller().is_some())
}

/// Returns the process's list of work for a watcher. The first call makes and registers it.
pub(crate) fn list_of_process<L: Watched + Default + 'static>(list: &'static PerProcess<Arc<L>>) -> &'static Arc<L> {
    list.get(|| {
        let new: Arc<L> = Arc::default();
        let known: Weak<dyn Watched> = Arc::<L>::downgrade(&new);
        register(known, new.noticed_by());
        new
    })
}

/// Serves a queue from now on, until it is [left](leave). False if no thread can be started.
pub(crate) fn adopt<Q: Watched + 'static>(queue: &Arc<Q>) -> bool {
    if queue.note().get() == ADOPTED {
        return true;
    }
    let watcher = of(&**queue);
    // The thread starts first: once the note is set, other threads rely on it.
    watcher.look() && watcher.add(queue.clone(), ADOPTED) && watcher.look()
}

/// Serves a queue in the place of its owner until nothing is in flight. False if no thread can be
/// started; then the caller, or [`ask`], serves it.
pub(crate) fn lend(queue: Arc<dyn Watched>) -> bool {
    let watcher = of(&*queue);
    watcher.add(queue, LENT);
    watcher.look()
}

/// Serves a queue without owner and submitters until no operation is in flight. If no thread can be
/// started now, [`ask`] or a later thread serves it.
pub(crate) fn leave(queue: Arc<dyn Watched>) {
    let watcher = of(&*queue);
    watcher.add(queue, LEFT);
    watcher.look();
}

/// Ends a loan, if there is one: the owner serves the queue again.
pub(crate) fn take_back(queue: &dyn Watched) {
    let watcher = of(queue);
    let mut list = lock(&watcher.list);
    let is_it = |(_, known): &(u64, Arc<dyn Watched>)| std::ptr::addr_eq(Arc::as_ptr(known), queue);
    if let Some(at) = list.queues.iter().position(is_it).filter(|_| queue.note().is_lent()) {
        watcher.forget(queue);
        let gone = list.queues.swap_remove(at);
        drop(list);
        drop(gone);
    }
}

/// Selects queues by their owners.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The queues of threads.
    Threads,
    /// The queues of reactors.
    Reactors,
    All,
}

/// Asks for help with every queue that has something in flight now. Returns the time after which a
/// sleeping thread must ask again. Call this without any lock held: wakers may run here.
pub(crate) fn ask() -> Duration {
    ask_of(Of::All)
}

/// As [`ask`], for some queues.
pub(crate) fn ask_of(of: Of) -> Duration {
    let watchers = watchers();
    if of == Of::Reactors && !watchers.has_reactors.load(Relaxed) {
        return GLANCES;
    }
    let is_asked = |by: NoticedBy| match of {
        Of::Threads => by == NoticedBy::Thread,
        Of::Reactors => by == NoticedBy::Reactor,
        Of::All => true,
    };
    let known = watchers.known(is_asked);
    let waiting = known.into_iter().filter(|queue| queue.waits_for_owner());
    // `fold` lends each queue; `any` would stop at the first that is refused.
    let alone = waiting.fold(false, |alone, queue| !lend(queue) | alone);
    if alone || of == Of::All {
        watchers.is_missed.store(alone, Relaxed);
    }
    if alone {
        watchers.all[OF_OWNERS].serve(|_| true);
        return ALONE;
    }
    GLANCES
}

/// Notes that a thread could not be started: parked threads ask for help from now on.
pub(crate) fn miss() {
    watchers().is_missed.store(true, Relaxed);
}

/// Returns the time after which a parked thread must ask again, if the last request failed.
#[inline]
pub(crate) fn when_alone() -> Option<Duration> {
    watchers().is_missed.load(Relaxed).then_some(ALONE)
}

/// Starts glances, for an operation whose owner may not return to its queue. Returns false if no
/// thread glances, because descriptors or threads are short: the caller submits what it would leave
/// staged, and parked threads ask for help.
#[inline]
pub(crate) fn watch() -> bool {
    #[cold]
    fn begin() -> bool {
        let begins = begin_glances();
        if !begins {
            miss();
            watchers().all[OF_OWNERS..].iter().for_each(Watcher::call);
        }
        begins
    }
    watchers().glances.load(Relaxed) || begin()
}

/// As [`watch`]. After a failure, running watchers try again at intervals.
fn begin_glances() -> bool {
    if watchers().glances.swap(true, SeqCst) || watchers().all[GLANCING].look() {
        return true;
    }
    watchers().glances.store(false, SeqCst);
    false
}

/// Wakes the watcher of a queue to serve all its queues.
pub(crate) fn look(queue: &dyn Watched) {
    of(queue).look();
}

impl Watchers {
    /// Returns the queues of some owners. The caller drops them with no lock held: each may be the
    /// last reference.
    fn known(&self, is_meant: impl Fn(NoticedBy) -> bool) -> Vec<Arc<dyn Watched>> {
        let known = lock(&self.known);
        known.iter().filter(|(by, _)| is_meant(*by)).filter_map(|(_, queue)| queue.upgrade()).collect()
    }
}

#[cfg(all(test, nowait_loom))]
mod loom_tests {
    use loom::sync::atomic::AtomicU32;

    use super::*;

    /// A queue that shows the model its steps.
    #[derive(Default)]
    struct Modelled {
        note: Note,
        staged: AtomicU32,
        served: AtomicU32,
        /// Threads inside of `serve`.
        inside: AtomicU32,
    }

    impl Watched for Modelled {
        fn noticed_by(&self) -> NoticedBy {
            NoticedBy::Watcher
        }

        fn note(&self) -> &Note {
            &self.note
        }

        fn serve(&self) {
            assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two threads serve the queue");
            self.served.fetch_add(self.staged.swap(0, SeqCst), SeqCst);
            self.inside.fetch_sub(1, SeqCst);
        }

        fn is_quiet(&self) -> bool {
            self.staged.load(SeqCst) == 0
        }

        fn glance(&self) -> Glance {
            Glance::Quiet
        }
    }

    /// Each thread stages an entry and asks for the queue to be served, as callers do that could start
    /// no thread, beside watchers. Whichever thread serves, no entry stays behind, and no two serve at
    /// a time.
    #[test]
    fn an_entry_that_was_staged_before_a_call_is_served() {
        loom::model(|| {
            let queue = Arc::new(Modelled::default());
            let stage_and_serve = |queue: &Modelled| {
                queue.staged.fetch_add(1, SeqCst);
                serve(queue);
            };
            let other = queue.clone();
            let other = loom::thread::spawn(move || stage_and_serve(&other));
            stage_and_serve(&queue);
            other.join().unwrap();
            assert_eq!(queue.served.load(SeqCst), 2);
        });
    }
}
