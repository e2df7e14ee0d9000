//! A watcher's thread, the queues that it serves, and the glances of one of them.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{
    ADOPTED, GLANCES, GLANCING, Glance, LEFT, NOT, OF_OWNERS, RETRY, Watched, begin_glances, lend, serve, watchers,
};
use crate::sync::lock;
use crate::sys::{self, Poller, WriteOnce};

/// Time that an owner has to return before its queue is served.
const GRACE: Duration = Duration::from_micros(500);
/// A watcher without queues ends its thread after this time.
const IDLE: Duration = Duration::from_secs(5);
/// A watcher that has not returned from its queues for this time is stuck.
const STUCK_MS: u64 = 1000;

/// A thread, and the queues that it serves.
#[derive(Default)]
pub(super) struct Watcher {
    /// The thread's name contains it.
    number: usize,
    /// Made with the first queue, and kept.
    poller: WriteOnce<Poller>,
    pub(super) list: Mutex<List>,
    /// The bell was rung, and the thread has not yet served its queues.
    looks: AtomicBool,
    /// When the thread woke, in milliseconds of the process; zero while it sleeps.
    awake_since: AtomicU64,
}

/// Number of all queues that epoll does not watch: they have no descriptor, or epoll refused it
/// (`fs.epoll.max_user_watches`). The watcher serves them at intervals.
const UNWATCHED: u64 = u64::MAX;

#[derive(Default)]
pub(super) struct List {
    /// Each queue with its number in epoll's events.
    pub(super) queues: Vec<(u64, Arc<dyn Watched>)>,
    /// The last number that was given.
    last: u64,
    /// Number of the current thread; a thread with another number ends.
    thread: u64,
    runs: bool,
    /// Earliest time of the next start, after a refused one.
    refused_until: Option<Instant>,
}

/// State of a watcher's queues after it served them.
pub(super) struct Served {
    /// A queue must be served again, although no event or caller may ask for it.
    is_left: bool,
    is_empty: bool,
    /// Number of the thread that runs.
    by: u64,
}

/// Returns milliseconds since the first call, plus one.
fn now_ms() -> u64 {
    static BEGAN: WriteOnce<Instant> = WriteOnce::new();
    1 + BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

impl Watcher {
    pub(super) fn new(number: usize) -> Watcher {
        Watcher { number, ..Watcher::default() }
    }

    /// None while descriptors are short.
    pub(super) fn poller(&self) -> Option<&Poller> {
        if self.poller.get().is_none() {
            let _ = self.poller.set(Poller::new().ok()?);
        }
        self.poller.get()
    }

    /// Adds a queue to the list. Returns false for a queue to be adopted if no thread runs or epoll
    /// refuses it; the caller then serves the operation otherwise.
    pub(super) fn add(&self, queue: Arc<dyn Watched>, how: u8) -> bool {
        let mut list = lock(&self.list);
        if how == ADOPTED && !list.runs {
            return false;
        }
        // The owner may take a lent queue back at the same time; the lock orders the two.
        if queue.note().get() == NOT {
            list.last += 1;
            let is_watched = queue.descriptor().zip(self.poller());
            let is_watched = is_watched.is_some_and(|(descriptor, poller)| poller.add(descriptor, list.last).is_ok());
            if how == ADOPTED && !is_watched {
                return false;
            }
            let number = if is_watched { list.last } else { UNWATCHED };
            list.queues.push((number, queue.clone()));
        }
        let how = how.max(queue.note().get());
        queue.note().set(how);
        true
    }

    /// Removes a queue from epoll; the caller removes it from the list.
    pub(super) fn forget(&self, queue: &dyn Watched) {
        if let (Some(poller), Some(descriptor)) = (self.poller.get(), queue.descriptor()) {
            poller.remove(descriptor);
        }
        queue.note().set(NOT);
    }

    fn is_stuck(&self) -> bool {
        let since = self.awake_since.load(SeqCst);
        since != 0 && now_ms().saturating_sub(since) >= STUCK_MS
    }

    /// Wakes the thread to serve all queues. Starts a thread if none runs, or it is stuck in a
    /// queue. Returns false if no thread runs, or only one that is stuck.
    pub(super) fn look(&'static self) -> bool {
        if self.looks.swap(true, SeqCst) && !self.is_stuck() {
            return true;
        }
        let Some(poller) = self.poller() else {
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
            poller.ring();
        }
        runs && !self.is_stuck()
    }

    /// Wakes the thread, if one runs.
    pub(super) fn call(&self) {
        if let (true, Some(poller)) = (lock(&self.list).runs, self.poller.get()) {
            poller.ring();
        }
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
        let Some(poller) = self.poller.get() else { return };
        let mut events = Vec::with_capacity(64);
        let mut glances = Glances::default();
        let (mut is_left, mut is_empty, mut is_alone) = (false, true, false);
        loop {
            let looks_again = glances.are_due_at.is_some() || is_left || is_alone;
            let timeout = match (looks_again, is_empty) {
                (true, _) => Some(GLANCES),
                (false, true) => Some(IDLE),
                (false, false) => None,
            };
            // The bell is cleared here, before the flag, so that a later call rings again.
            let is_called = poller.wait(timeout, &mut events);
            self.awake_since.store(now_ms(), SeqCst);
            is_alone = self.number != GLANCING && !watchers().glances.load(SeqCst) && !begin_glances();
            let is_woken = is_called || !events.is_empty();
            if self.number == OF_OWNERS && is_woken {
                std::thread::sleep(GRACE);
            }
            if is_called {
                self.looks.store(false, SeqCst);
            }
            // A completion of one queue does not serve all: there may be one for each processor,
            // and serving takes a queue's locks.
            let all = is_called || !is_woken;
            let served = self.serve(|number| all || number == UNWATCHED || events.contains(&number));
            is_left = served.is_left || is_left && !all;
            is_empty = served.is_empty;
            if served.by != thread {
                // This thread was stuck, and another thread has taken its place.
                return;
            }
            if self.number == GLANCING {
                glances.make();
            }
            if !is_woken && is_empty && !looks_again {
                let mut list = lock(&self.list);
                if list.queues.is_empty() && list.thread == thread && !self.looks.load(SeqCst) {
                    list.runs = false;
                    self.awake_since.store(0, SeqCst);
                    return;
                }
            }
            self.awake_since.store(0, SeqCst);
        }
    }

    /// Serves the queues whose numbers are selected, and removes quiet ones from the list.
    pub(super) fn serve(&self, is_served: impl Fn(u64) -> bool) -> Served {
        let of_interest = |(number, queue): &(u64, Arc<dyn Watched>)| is_served(*number).then(|| queue.clone());
        let served: Vec<_> = lock(&self.list).queues.iter().filter_map(of_interest).collect();
        served.iter().for_each(|queue| serve(&**queue));
        drop(served);
        let mut gone = Vec::new();
        let mut is_left = false;
        let mut list = lock(&self.list);
        list.queues.retain(|(number, queue)| {
            let stays = !is_served(*number)
                || !queue.is_quiet()
                || match queue.note().get() {
                    ADOPTED => true,
                    // Another thread that holds a reference may still submit.
                    LEFT => Arc::strong_count(queue) > 1,
                    // Without an event of epoll the thread would look at it again and again.
                    _ => *number != UNWATCHED && queue.owner_is_away(),
                };
            if !stays {
                self.forget(&**queue);
                gone.push(queue.clone());
            }
            is_left |= stays && (*number == UNWATCHED || queue.note().get() == LEFT);
            stays
        });
        let served = Served { is_left, is_empty: list.queues.is_empty(), by: list.thread };
        drop(list);
        // The last reference closes a ring, so no lock is held.
        drop(gone);
        served
    }
}

/// Schedule of glances.
#[derive(Default)]
struct Glances {
    are_due_at: Option<Instant>,
    /// The last glance found nothing in flight. Glances end after two of these: otherwise a queue
    /// that is empty now and then would start them each time.
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
                let serving = &watchers.all[OF_OWNERS..];
                let mut is_quiet = serving.iter().all(|watcher| watcher.awake_since.load(SeqCst) == 0);
                let mut is_alone = false;
                // Each queue needs its own glance, even if an earlier one was busy.
                for queue in watchers.known(|_| true) {
                    let glance = queue.glance();
                    is_quiet &= glance == Glance::Quiet;
                    if glance == Glance::Left {
                        is_alone |= !lend(queue);
                    }
                }
                if is_alone {
                    watchers.all[OF_OWNERS].serve(|_| true);
                }
                serving.iter().filter(|watcher| watcher.is_stuck()).for_each(|watcher| _ = watcher.look());
                let ends = is_quiet && self.was_quiet;
                self.was_quiet = is_quiet && !ends;
                self.are_due_at = (!ends).then_some(now + GLANCES);
                if !ends {
                    watchers.glances.store(true, SeqCst);
                }
            }
            _ => {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Weak;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::MemfdFlags;

    use super::super::take_back;
    use super::super::{Note, NoticedBy, OF_NOBODY, Of, QUEUES_EACH, WATCHERS, adopt, ask_of, leave, of, register};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    fn eventually(otherwise: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{otherwise}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A queue that reports each time that it is served, with something in flight until then.
    struct Told {
        noticed_by: NoticedBy,
        place: usize,
        note: Note,
        /// An eventfd, unless epoll is to refuse it.
        descriptor: OwnedFd,
        in_flight: AtomicUsize,
        tell: Sender<usize>,
        /// Nothing comes, until its other end is dropped.
        sleeps: Option<Mutex<Receiver<()>>>,
        is_left: AtomicBool,
    }

    impl Told {
        fn new(noticed_by: NoticedBy, place: usize, tell: &Sender<usize>) -> Told {
            let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let (note, in_flight, tell) = (Note::default(), AtomicUsize::new(1), tell.clone());
            let is_left = AtomicBool::new(false);
            Told { noticed_by, place, note, descriptor, in_flight, tell, sleeps: None, is_left }
        }

        /// One that sleeps when it is served, until the sender is dropped.
        fn sleeping(noticed_by: NoticedBy, place: usize, tell: &Sender<usize>) -> (Arc<Told>, Sender<()>) {
            let (wake, sleeps) = channel();
            let sleeps = Some(Mutex::new(sleeps));
            (Arc::new(Told { sleeps, ..Told::new(noticed_by, place, tell) }), wake)
        }

        fn complete(&self) {
            rustix::io::write(&self.descriptor, &1u64.to_ne_bytes()).unwrap();
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
            Some(self.descriptor.as_fd())
        }
        fn serve(&self) {
            if let Some(sleeps) = &self.sleeps {
                let _ = lock(sleeps).recv();
            }
            if rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok_and(|n| n > 0) {
                self.in_flight.store(0, SeqCst);
                let _ = self.tell.send(self.place);
            }
        }
        fn is_quiet(&self) -> bool {
            self.in_flight.load(SeqCst) == 0
        }
        fn glance(&self) -> Glance {
            if self.is_left.load(SeqCst) { Glance::Left } else { Glance::Quiet }
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
        assert_eq!(numbers.max(), Some(OF_NOBODY + 2));
        // The last of many begins with the first watcher again; none has that of queues with owners.
        assert_eq!(of(&*new((WATCHERS - OF_NOBODY) * QUEUES_EACH)).number, OF_NOBODY);
        let weak: Vec<_> = queues.iter().map(Arc::downgrade).collect();
        queues.into_iter().for_each(|queue| leave(queue));
        eventually("a watcher keeps a queue", || weak.iter().all(|queue| queue.strong_count() == 0));
    }

    /// Symptom: a ring stayed open, and its thread went on, where another thread held a share of the
    /// ring for the moment in which the watcher looked.
    #[test]
    fn a_queue_that_is_left_goes_whoever_holds_it_meanwhile() {
        let (tell, _told) = channel();
        let queue = Arc::new(Told::new(NoticedBy::Watcher, 4 * QUEUES_EACH, &tell));
        assert!(adopt(&queue));
        queue.in_flight.store(0, SeqCst);
        let watcher = of(&*queue);
        leave(queue.clone());
        eventually("the watcher does not look", || {
            !watcher.looks.load(SeqCst) && watcher.awake_since.load(SeqCst) == 0
        });
        let weak = Arc::downgrade(&queue);
        drop(queue);
        eventually("it is kept", || weak.strong_count() == 0);
        eventually("the thread goes on", || !lock(&watcher.list).runs);
        assert_eq!(watcher.awake_since.load(SeqCst), 0, "a thread that has ended looks stuck");
    }

    /// Symptom: where the thread could not be started after all, the queue was said to be watched from
    /// then on.
    #[test]
    fn a_queue_is_adopted_only_while_a_thread_runs() {
        let queue = Arc::new(Told::new(NoticedBy::Watcher, 7 * QUEUES_EACH, &channel().0));
        assert!(!of(&*queue).add(queue.clone(), ADOPTED));
        assert!(!queue.note.is_watched());
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
        queue.in_flight.store(1, SeqCst);
        assert!(lend(queue.clone()));
        take_back(&*queue);
        assert!(!queue.note.is_watched());
    }

    /// Symptom: a queue that epoll refused, as at `fs.epoll.max_user_watches`, was never served.
    #[test]
    fn a_queue_that_epoll_refuses_is_served() {
        let (tell, told) = channel();
        // Of a regular file, which epoll_ctl(2) refuses.
        let descriptor = rustix::fs::memfd_create("refused", MemfdFlags::CLOEXEC).unwrap();
        let queue = Arc::new(Told { descriptor, ..Told::new(NoticedBy::Thread, 0, &tell) });
        assert!(lend(queue.clone()));
        rustix::io::pwrite(&queue.descriptor, &[1; 8], 0).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
        // A shared one must not wait for a glance at each completion.
        let shared = Arc::new(Told { noticed_by: NoticedBy::Watcher, ..Told::new(NoticedBy::Watcher, 0, &tell) });
        assert!(adopt(&shared));
        leave(shared);
    }

    /// Symptom: where the thread slept in the submission to one queue, or in code of a user, no other
    /// queue of its was served, though another thread asked.
    #[test]
    fn a_watcher_that_is_stuck_in_one_queue_serves_the_others() {
        let (tell, told) = channel();
        let place = 5 * QUEUES_EACH;
        let (stuck, wake) = Told::sleeping(NoticedBy::Watcher, place, &tell);
        let other = Arc::new(Told::new(NoticedBy::Watcher, place + 1, &tell));
        assert!(adopt(&stuck) && adopt(&other));
        eventually("the first is not served", || stuck.note.due.load(SeqCst) > 0);
        // Nothing calls for the watcher: it is missed at a glance.
        other.complete();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(place + 1));
        // The first thread ends, and the second serves both.
        drop(wake);
        stuck.complete();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(place));
        leave(stuck);
        leave(other);
    }

    /// Symptom: where the watcher slept in one queue in the place of its owner, it glanced at no other.
    #[test]
    fn glances_go_on_while_a_watcher_is_stuck() {
        let (tell, told) = channel();
        let (stuck, wake) = Told::sleeping(NoticedBy::Thread, 1, &tell);
        let (other, later) = (Told::new(NoticedBy::Reactor, 2, &tell), Told::new(NoticedBy::Thread, 3, &tell));
        let (other, later) = (Arc::new(other), Arc::new(later));
        for queue in [&other, &later] {
            let known: Weak<dyn Watched> = Arc::<Told>::downgrade(queue);
            assert!(register(known, queue.noticed_by));
            queue.complete();
        }
        assert!(lend(stuck.clone()));
        eventually("it is not served", || stuck.note.due.load(SeqCst) > 0);
        // Nothing asks for help with either.
        other.is_left.store(true, SeqCst);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
        drop(wake);
        stuck.complete();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
        drop(later);
    }

    /// Asks for help when it is dropped, as the destructor of a file may do.
    struct Asks(Told);

    impl Drop for Asks {
        fn drop(&mut self) {
            ask_of(Of::Reactors);
        }
    }

    impl Watched for Asks {
        fn noticed_by(&self) -> NoticedBy {
            self.0.noticed_by
        }
        fn note(&self) -> &Note {
            &self.0.note
        }
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn serve(&self) {}
        fn is_quiet(&self) -> bool {
            true
        }
        fn glance(&self) -> Glance {
            Glance::Quiet
        }
    }

    /// Symptom: the last share of a queue was dropped with the list of all queues locked.
    #[test]
    fn a_queue_is_dropped_with_nothing_locked() {
        let (tell, _told) = channel();
        let (ended, end) = channel();
        let work = move || {
            for _ in 0..2000 {
                let queue = Arc::new(Asks(Told::new(NoticedBy::Thread, 0, &tell)));
                let known: Weak<dyn Watched> = Arc::<Asks>::downgrade(&queue);
                register(known, NoticedBy::Thread);
                let by = std::thread::spawn(|| _ = ask_of(Of::Reactors));
                drop(queue);
                by.join().unwrap();
            }
            ended.send(()).unwrap();
        };
        // So that `ask_of` looks at the list.
        let reactor = Arc::new(Told::new(NoticedBy::Reactor, 0, &channel().0));
        let known: Weak<dyn Watched> = Arc::<Told>::downgrade(&reactor);
        assert!(register(known, NoticedBy::Reactor));
        reactor.in_flight.store(0, SeqCst);
        std::thread::spawn(work);
        assert_eq!(end.recv_timeout(PATIENCE), Ok(()), "threads lock the list of queues twice");
    }
}
