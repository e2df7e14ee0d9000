//! Serves queues whose owner is absent, away or asleep.
//!
//! A watcher is a thread that sleeps in epoll over some queues. It submits what is staged there,
//! settles completions, and calls wakers. It serves a queue without an owner always. It serves the
//! queue of a thread, a runtime or an event loop while that may be away, until nothing is in flight.
//!
//! An owner may compute, or block on a thread whose write waits behind one in the owner's queue. So
//! a caller whose progress may depend on such a queue [asks](ask) for help:
//!
//! * a write that has to wait for others, and a thread that submits a write for which others wait
//!   (`core/throttle.rs`);
//! * a thread or task that waits for a file's changes to end, or for its durable writes
//!   (`op/outstanding.rs`);
//! * a future that is polled by another thread than the one that submitted (`op/slot.rs`);
//! * a thread that goes, or returns from its `block_on`, and leaves operations behind
//!   (`engine/local/mod.rs`).
//!
//! The owner's waiters may also be unknown: a set of futures that was moved polls only the futures
//! that were woken. So a watcher glances at all queues at intervals, and serves those where the
//! owner has not been, or nothing has ended, since the last glance.
//!
//! Entering another party's queue may sleep, and code of a user may block. So the queues with owners
//! have a watcher apart from those without. A watcher that is stuck in one queue gets a second
//! thread for the others, when it is called or at a glance.
//!
//! If no thread can be started, the asking thread serves the queues once, and asks again at
//! intervals while it sleeps. A thread inherits the seccomp filter of the one that starts it. That
//! is one which has just submitted to a ring, so it may use io_uring itself.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::sync::lock;
use crate::sys::{self, PerProcess};

/// Time that an owner has to return before its queue is served.
const GRACE: Duration = Duration::from_micros(500);
/// Interval of glances: an owner with something in flight may stay out of its queue for so long.
/// Also the interval at which a sleeping thread asks again, in case the watcher does not run.
const GLANCES: Duration = Duration::from_millis(50);
/// Interval at which a sleeping thread asks again if no thread can be started.
const ALONE: Duration = Duration::from_millis(1);
/// A watcher without queues ends its thread after this time.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// A watcher that has not returned from its queues for this time is stuck.
const STUCK_MS: u64 = 1000;
/// How soon a try to start a thread follows one that failed.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// Queues without an owner that share a watcher: one thread cannot reap millions of completions a
/// second (docs/scaling.md).
const QUEUES_EACH: usize = 8;
/// The watcher of queues with owners, and those of queues without.
const WATCHERS: usize = 1 + 8;

/// The party that submits what is staged in a queue, and notices completions: its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticedBy {
    /// A thread that drives a future, and sleeps in its ring.
    Thread,
    /// A reactor, or an event loop, which watches the queue's descriptor.
    Reactor,
    /// A watcher.
    Watcher,
}

/// What a watcher finds at a glance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glance {
    /// No further glance is needed.
    Quiet,
    /// An operation is in flight or in line.
    Busy,
    /// So it was at the last glance, and the owner has not been there since.
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
    /// Readable, or becomes so again (edge-triggered), on each completion.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
    /// Serves the queue as its owner would, without waiting.
    fn serve(&self);
    /// Nothing is in flight or in line.
    fn is_quiet(&self) -> bool;
    /// Whether operations wait for the owner.
    fn waits_for_owner(&self) -> bool {
        !self.is_quiet()
    }
    /// Looks whether the owner is away. Hands the line on if nothing ends.
    fn glance(&self) -> Glance;
}

/// A watcher's own note on a queue.
#[derive(Default)]
pub(crate) struct Note {
    /// How it serves the queue.
    how: AtomicU8,
    /// Calls of [`Watched::serve`] that are due: one thread makes all of them.
    due: AtomicUsize,
}

/// It does not.
const NOT: u8 = 0;
/// Until nothing is in flight.
const LENT: u8 = 1;
/// Until nothing is in flight, and only the watcher has the queue.
const ADOPTED: u8 = 2;

impl Note {
    fn get(&self) -> u8 {
        self.how.load(SeqCst)
    }

    fn set(&self, how: u8) {
        self.how.store(how, SeqCst);
    }

    /// Whether a watcher serves the queue in the place of its owner.
    pub(crate) fn is_lent(&self) -> bool {
        self.get() == LENT
    }
}

/// All watchers of the process.
struct Watchers {
    all: [Watcher; WATCHERS],
    known: Mutex<Vec<Weak<dyn Watched>>>,
    /// Some known queue has a reactor.
    has_reactors: AtomicBool,
    /// A queue may have operations in flight, so the first watcher glances at intervals.
    glances: AtomicBool,
    /// At the last request for help, no thread could be started.
    is_missed: AtomicBool,
}

/// A thread, and the queues that it serves.
#[derive(Default)]
struct Watcher {
    /// The thread's name tells the number.
    number: usize,
    /// Made with the first queue, and kept.
    descriptors: OnceLock<Descriptors>,
    list: Mutex<List>,
    /// The bell rings, or the thread is about to look.
    looks: AtomicBool,
    /// When the thread woke, in milliseconds of the process; zero while it sleeps.
    awake_since: AtomicU64,
}

struct Descriptors {
    epoll: OwnedFd,
    bell: OwnedFd,
}

/// The bell's number; no queue has it.
const BELL: u64 = 0;

#[derive(Default)]
struct List {
    /// By their numbers, with which events name them.
    queues: Vec<(u64, Arc<dyn Watched>)>,
    /// The last number that was given.
    last: u64,
    /// Number of the thread that runs; another ends.
    thread: u64,
    runs: bool,
    /// When a thread may be tried again, after a refusal.
    refused_until: Option<Instant>,
}

/// What a watcher has found when it served its queues.
struct Served {
    /// A queue without submitters is not quiet yet.
    is_left: bool,
    is_empty: bool,
    /// Number of the thread that runs.
    by: u64,
}

fn watchers() -> &'static Watchers {
    static WATCHERS: PerProcess<Watchers> = PerProcess::new();
    WATCHERS.get(|| Watchers {
        all: std::array::from_fn(|number| Watcher { number, ..Watcher::default() }),
        known: Mutex::default(),
        has_reactors: AtomicBool::new(false),
        glances: AtomicBool::new(false),
        is_missed: AtomicBool::new(false),
    })
}

/// The watcher of queues with owners.
fn first() -> &'static Watcher {
    &watchers().all[0]
}

fn of(queue: &dyn Watched) -> &'static Watcher {
    let number = match queue.noticed_by() {
        NoticedBy::Watcher => 1 + queue.place() / QUEUES_EACH % (WATCHERS - 1),
        NoticedBy::Thread | NoticedBy::Reactor => 0,
    };
    &watchers().all[number]
}

/// Serves a queue, unless another thread does: that serves it again then.
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
    known.retain(|known| known.strong_count() > 0);
    known.push(queue);
    drop(known);
    first().descriptors().is_some()
}

/// Serves a queue from now on. False if no thread can be started.
pub(crate) fn adopt<Q: Watched + 'static>(queue: &Arc<Q>) -> bool {
    if queue.note().get() == ADOPTED {
        return true;
    }
    let watcher = of(&**queue);
    // The thread first: from the note on, others rely on it.
    watcher.look() && watcher.add(queue.clone(), ADOPTED) && watcher.look()
}

/// Serves a queue in the place of its owner until nothing is in flight. False if no thread can be
/// started; then [`ask`] serves it.
pub(crate) fn lend(queue: Arc<dyn Watched>) -> bool {
    let watcher = of(&*queue);
    watcher.add(queue, LENT);
    watcher.look()
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
    let is_asked = |queue: &Arc<dyn Watched>| match of {
        Of::Threads => queue.noticed_by() == NoticedBy::Thread,
        Of::Reactors => queue.noticed_by() == NoticedBy::Reactor,
        Of::All => true,
    };
    let known: Vec<_> = lock(&watchers.known).iter().filter_map(Weak::upgrade).filter(is_asked).collect();
    let waiting = known.into_iter().filter(|queue| queue.waits_for_owner());
    // Ask for each queue, without a short cut after the first.
    let alone = waiting.fold(false, |alone, queue| !lend(queue) | alone);
    if alone || of == Of::All {
        watchers.is_missed.store(alone, Relaxed);
    }
    if alone {
        first().serve(|_| true);
        return ALONE;
    }
    GLANCES
}

/// Returns the time after which a parked thread must ask again, if the last request failed.
#[inline]
pub(crate) fn when_alone() -> Option<Duration> {
    watchers().is_missed.load(Relaxed).then_some(ALONE)
}

/// Notes that a queue has got something, and its owner may not come back to it.
#[inline]
pub(crate) fn watch() {
    #[cold]
    fn begin() {
        if !watchers().glances.swap(true, SeqCst) && !first().look() {
            // The next one tries again.
            watchers().glances.store(false, SeqCst);
        }
    }
    if !watchers().glances.load(Relaxed) {
        begin();
    }
}

/// Wakes the watcher of a queue to look at all that it serves.
pub(crate) fn look(queue: &dyn Watched) {
    of(queue).look();
}

/// Wakes all watchers when it is dropped: a queue may now be theirs alone.
pub(crate) struct Rung;

impl Drop for Rung {
    fn drop(&mut self) {
        let has_queues = |watcher: &&Watcher| !lock(&watcher.list).queues.is_empty();
        watchers().all.iter().filter(has_queues).for_each(|watcher| _ = watcher.look());
    }
}

/// Milliseconds of the process, from one.
fn now_ms() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    1 + BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

impl Watcher {
    /// None while descriptors are short.
    fn descriptors(&self) -> Option<&Descriptors> {
        if self.descriptors.get().is_none() {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN).ok()?;
            let _ = self.descriptors.set(Descriptors { epoll, bell });
        }
        self.descriptors.get()
    }

    /// Adds a queue to those that it serves; false if that is refused.
    fn add(&self, queue: Arc<dyn Watched>, how: u8) -> bool {
        let Some(Descriptors { epoll, .. }) = self.descriptors() else { return false };
        let mut list = lock(&self.list);
        // A lent queue may be going back: under the lock that is decided.
        if queue.note().get() == NOT {
            list.last += 1;
            let number = list.last;
            if let Some(descriptor) = queue.descriptor() {
                let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
                if epoll::add(epoll, descriptor, epoll::EventData::new_u64(number), events).is_err() {
                    return false;
                }
            }
            list.queues.push((number, queue.clone()));
        }
        let how = how.max(queue.note().get());
        queue.note().set(how);
        true
    }

    /// Ends the watch of a lent queue, which the caller takes out of the list.
    fn forget(&self, queue: &dyn Watched) {
        if let (Some(Descriptors { epoll, .. }), Some(descriptor)) = (self.descriptors.get(), queue.descriptor()) {
            let _ = epoll::delete(epoll, descriptor);
        }
        queue.note().set(NOT);
    }

    fn is_stuck(&self) -> bool {
        let since = self.awake_since.load(SeqCst);
        since != 0 && now_ms().saturating_sub(since) >= STUCK_MS
    }

    /// Wakes the thread to look at all queues. Starts it if it does not run, or is stuck in one of
    /// them. False if it cannot be started.
    fn look(&'static self) -> bool {
        if self.looks.swap(true, SeqCst) && !self.is_stuck() {
            return true;
        }
        let Some(descriptors) = self.descriptors() else {
            self.looks.store(false, SeqCst);
            return false;
        };
        let mut list = lock(&self.list);
        if !list.runs || self.is_stuck() {
            self.start(&mut list);
        }
        let runs = list.runs;
        if !runs {
            self.looks.store(false, SeqCst);
        }
        drop(list);
        if runs {
            // The counter is far from full, and a ringing bell need not ring again.
            let _ = rustix::io::write(&descriptors.bell, &1u64.to_ne_bytes());
        }
        runs
    }

    /// Starts a thread, with the list locked: no other thread starts one meanwhile.
    #[cold]
    fn start(&'static self, list: &mut List) {
        let now = Instant::now();
        if list.refused_until.is_some_and(|until| now < until) {
            return;
        }
        let thread = list.thread + 1;
        let name = format!("nowait-watch-{}", self.number);
        if sys::spawn_service(&name, move || self.run(thread)).is_ok() {
            (list.thread, list.runs, list.refused_until) = (thread, true, None);
            self.awake_since.store(0, SeqCst);
        } else {
            list.refused_until = Some(now + RETRY);
        }
    }

    fn run(&self, thread: u64) {
        let Some(Descriptors { epoll, bell }) = self.descriptors.get() else { return };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut glances = Glances::default();
        let (mut is_left, mut is_empty) = (false, true);
        loop {
            let timeout = match (glances.are_due_at.is_some() || is_left, is_empty) {
                (true, _) => Some(Timespec { tv_sec: 0, tv_nsec: GLANCES.as_nanos() as _ }),
                (false, true) => Some(IDLE),
                (false, false) => None,
            };
            events.clear();
            match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Not documented for a sound descriptor; do not spin should it last.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            self.awake_since.store(now_ms(), SeqCst);
            let is_first = self.number == 0;
            if is_first && !events.is_empty() {
                std::thread::sleep(GRACE);
            }
            let has_event = |number: u64| events.iter().any(|event| event.data.u64() == number);
            let is_called = has_event(BELL);
            if is_called {
                // In this order: a later call rings again, and no ring is cleared after it was heard.
                let _ = rustix::io::read(bell, &mut [0; 8]);
                self.looks.store(false, SeqCst);
            }
            // Not all of them at each completion of one: there may be as many as processors, and
            // looking at one takes its locks.
            let all = is_called || events.is_empty();
            let served = self.serve(|number| all || has_event(number));
            is_left = served.is_left || is_left && !all;
            is_empty = served.is_empty;
            if served.by != thread {
                // It was stuck, and another one runs now.
                return;
            }
            if is_first {
                glances.make();
            }
            if events.is_empty() && is_empty && glances.are_due_at.is_none() {
                let mut list = lock(&self.list);
                if list.queues.is_empty() && list.thread == thread && !self.looks.load(SeqCst) {
                    list.runs = false;
                    return;
                }
            }
            self.awake_since.store(0, SeqCst);
        }
    }

    /// Serves some of its queues, by their numbers, and lets go of those that are quiet.
    fn serve(&self, is_served: impl Fn(u64) -> bool) -> Served {
        let of_interest = |(number, queue): &(u64, Arc<dyn Watched>)| is_served(*number).then(|| queue.clone());
        let served: Vec<_> = lock(&self.list).queues.iter().filter_map(of_interest).collect();
        served.iter().for_each(|queue| serve(&**queue));
        drop(served);
        let mut gone = Vec::new();
        let mut is_left = false;
        let mut list = lock(&self.list);
        list.queues.retain(|(number, queue)| {
            if !is_served(*number) || !queue.is_quiet() {
                is_left |= Arc::strong_count(queue) == 1;
                return true;
            }
            // Another thread may hold an adopted one for a moment, and submit to it.
            let stays = !queue.note().is_lent() && Arc::strong_count(queue) > 1;
            if !stays {
                self.forget(&**queue);
                gone.push(queue.clone());
            }
            stays
        });
        let served = Served { is_left, is_empty: list.queues.is_empty(), by: list.thread };
        drop(list);
        // With nothing locked: a ring is closed here.
        drop(gone);
        served
    }
}

/// Glances of the first watcher's thread.
#[derive(Default)]
struct Glances {
    are_due_at: Option<Instant>,
    /// The last one found nothing. (A queue that is empty now and then would call for a first one
    /// each time.)
    was_quiet: bool,
}

impl Glances {
    /// Glances at all queues, if that is due.
    fn make(&mut self) {
        let watchers = watchers();
        let now = Instant::now();
        match self.are_due_at {
            None if watchers.glances.load(SeqCst) => self.are_due_at = Some(now + GLANCES),
            Some(due) if now >= due => {
                watchers.glances.store(false, SeqCst);
                let known: Vec<_> = lock(&watchers.known).iter().filter_map(Weak::upgrade).collect();
                let mut is_quiet = true;
                // Each of them, for its own sake.
                for queue in known {
                    let glance = queue.glance();
                    is_quiet &= glance == Glance::Quiet;
                    if glance == Glance::Left {
                        lend(queue);
                    }
                }
                watchers.all.iter().filter(|watcher| watcher.is_stuck()).for_each(|watcher| _ = watcher.look());
                let ends = is_quiet && std::mem::replace(&mut self.was_quiet, is_quiet);
                self.are_due_at = (!ends).then_some(now + GLANCES);
                if !ends {
                    watchers.glances.store(true, SeqCst);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    fn eventually(otherwise: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{otherwise}");
            std::thread::yield_now();
        }
    }

    /// A queue that tells of each time that it is served, and serves itself while it is busy.
    struct Told {
        noticed_by: NoticedBy,
        place: usize,
        note: Note,
        eventfd: OwnedFd,
        in_flight: AtomicUsize,
        tell: Sender<usize>,
        /// Nothing comes, until its other end is dropped.
        sleeps: Option<Mutex<Receiver<()>>>,
    }

    impl Told {
        fn new(noticed_by: NoticedBy, place: usize, tell: &Sender<usize>) -> Told {
            let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let (note, in_flight, tell) = (Note::default(), AtomicUsize::new(1), tell.clone());
            Told { noticed_by, place, note, eventfd, in_flight, tell, sleeps: None }
        }

        fn complete(&self) {
            rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()).unwrap();
        }
    }

    impl Watched for Told {
        fn noticed_by(&self) -> NoticedBy {
            self.noticed_by
        }
        fn note(&self) -> &Note {
            &self.note
        }
        fn place(&self) -> usize {
            self.place
        }
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.eventfd.as_fd())
        }
        fn serve(&self) {
            if let Some(sleeps) = &self.sleeps {
                let _ = lock(sleeps).recv();
            }
            if rustix::io::read(&self.eventfd, &mut [0; 8]).is_ok() {
                self.in_flight.store(0, SeqCst);
                let _ = self.tell.send(self.place);
            }
        }
        fn is_quiet(&self) -> bool {
            self.in_flight.load(SeqCst) == 0
        }
        fn glance(&self) -> Glance {
            Glance::Quiet
        }
    }

    #[test]
    fn each_watcher_has_some_of_the_queues() {
        const QUEUES: usize = 2 * QUEUES_EACH + 1;
        let (tell, told) = channel();
        let new = |place| Arc::new(Told::new(NoticedBy::Watcher, place, &tell));
        let queues: Vec<_> = (0..QUEUES).map(new).collect();
        assert!(queues.iter().all(adopt));
        for queue in &queues {
            queue.complete();
            assert_eq!(told.recv_timeout(PATIENCE), Ok(queue.place));
        }
        let numbers = queues.iter().map(|queue| of(&**queue).number);
        assert_eq!(numbers.max(), Some(3));
        // The last of many begins with the first watcher again; none has that of queues with owners.
        assert_eq!(of(&*new((WATCHERS - 1) * QUEUES_EACH)).number, 1);
        let weak: Vec<_> = queues.iter().map(Arc::downgrade).collect();
        drop(queues);
        drop(Rung);
        eventually("a watcher keeps a queue", || weak.iter().all(|queue| queue.strong_count() == 0));
    }

    /// A lent queue is served until it is quiet, then given back, and may be lent again.
    #[test]
    fn a_lent_queue_goes_back_when_it_is_quiet() {
        let (tell, told) = channel();
        let queue = Arc::new(Told::new(NoticedBy::Reactor, 0, &tell));
        for _ in 0..2 {
            queue.in_flight.store(1, SeqCst);
            assert!(lend(queue.clone()));
            queue.complete();
            assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
            eventually("it is kept", || !queue.note.is_lent() && Arc::strong_count(&queue) == 1);
        }
        assert!(lend(queue.clone()));
        take_back(&*queue);
        assert!(!queue.note.is_lent());
    }

    /// Symptom: where the thread slept in the submission to one queue, or in code of a user, no other
    /// queue of its was served.
    #[test]
    fn a_watcher_that_is_stuck_in_one_queue_serves_the_others() {
        let (tell, told) = channel();
        let (wake, sleeps) = channel();
        let place = 5 * QUEUES_EACH;
        let mut stuck = Told::new(NoticedBy::Watcher, place, &tell);
        stuck.sleeps = Some(Mutex::new(sleeps));
        let (stuck, other) = (Arc::new(stuck), Arc::new(Told::new(NoticedBy::Watcher, place + 1, &tell)));
        assert!(adopt(&stuck) && adopt(&other));
        other.complete();
        eventually("the other queue is not served", || {
            look(&*other);
            told.try_recv() == Ok(place + 1)
        });
        // The first thread ends, and the second serves both.
        drop(wake);
        stuck.complete();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(place));
    }
}
