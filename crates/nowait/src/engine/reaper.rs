//! The thread that notices completions for executors that cannot: it sleeps in epoll over the
//! queues, and only calls wakers. It keeps a queue until nothing is in flight there, so that
//! dropping an engine does not block.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

use super::Retry;
use crate::sync::lock;
use crate::sys;

/// A queue that the reaper serves. Its descriptor is readable, or becomes so again
/// (edge-triggered), on each completion.
pub(super) trait Reaped: AsFd + Send + Sync {
    /// Settles every completion there is.
    fn reap_surely(&self);
    /// Nothing is in flight or in line.
    fn is_quiet(&self) -> bool;
    /// Place among its engine's queues; neighbours have the same thread.
    fn place(&self) -> usize {
        0
    }
    /// The reaper's own note that it serves this queue.
    fn watched(&self) -> &AtomicBool;
    /// The reaper's own note that it does so only until nothing is in flight.
    fn lent(&self) -> Option<&AtomicBool> {
        None
    }
}

fn is_lent<S: Reaped + ?Sized>(queue: &S) -> bool {
    queue.lent().is_some_and(|lent| lent.load(Ordering::Acquire))
}

/// The threads of an engine with many queues, each for some of the queues: one thread cannot reap
/// millions of completions a second.
#[derive(Default)]
pub(super) struct Reapers([Reaper; REAPERS_MAX]);

const REAPERS_MAX: usize = 8;
const QUEUES_EACH: usize = 8;

impl Reapers {
    fn of<S: Reaped + ?Sized>(&self, queue: &S) -> &Reaper {
        &self.0[queue.place() / QUEUES_EACH % REAPERS_MAX]
    }

    /// As [`Reaper::adopt`].
    pub(super) fn adopt<S: Reaped + 'static>(&self, queue: &Arc<S>) -> bool {
        self.of(&**queue).adopt(queue)
    }

    /// As [`Reaper::lend`].
    pub(super) fn lend<S: Reaped + 'static>(&self, queue: &Arc<S>) {
        self.of(&**queue).lend(queue);
    }

    /// As [`Reaper::take_back`].
    pub(super) fn take_back<S: Reaped + ?Sized>(&self, queue: &S) {
        self.of(queue).take_back(queue);
    }

    /// Wakes the thread of this queue to look at all that it has.
    pub(super) fn ring<S: Reaped + ?Sized>(&self, queue: &S) {
        self.of(queue).ring();
    }

    pub(super) fn ring_all(&self) {
        self.0.iter().for_each(Reaper::ring);
    }
}

/// The thread that notices completions for executors that cannot, and the queues that it watches.
#[derive(Default)]
pub(super) struct Reaper {
    watched: Arc<Watched>,
    watch: OnceLock<Arc<Watch>>,
    /// The thread, or its descriptors, were refused.
    refused: Retry,
}

#[derive(Default)]
struct Watched {
    /// By their numbers, with which events name them.
    queues: Mutex<Vec<(u64, Arc<dyn Reaped>)>>,
    /// The last number that was given.
    last: AtomicU64,
    /// The engine is gone: end when nothing is in flight.
    closing: AtomicBool,
}

/// The bell's number; no queue has it.
const BELL: u64 = 0;

struct Watch {
    epoll: OwnedFd,
    bell: OwnedFd,
}

impl Reaper {
    /// Serves a queue's completions from now on; the first one starts the thread. False if that is
    /// refused.
    pub(super) fn adopt<S: Reaped + 'static>(&self, queue: &Arc<S>) -> bool {
        queue.watched().load(Ordering::Acquire) && !is_lent(&**queue) || self.watch(queue, false)
    }

    /// Serves a queue's completions until nothing is in flight.
    fn lend<S: Reaped + 'static>(&self, queue: &Arc<S>) {
        // A lent one may be going back: under the lock that is decided.
        if !queue.watched().load(Ordering::Acquire) || is_lent(&**queue) {
            self.watch(queue, true);
        }
    }

    /// Ends the loan of a queue, if it is lent: its owner reaps again.
    fn take_back<S: Reaped + ?Sized>(&self, queue: &S) {
        let mut queues = lock(&self.watched.queues);
        let Some(watch) = self.watch.get() else { return };
        if !queue.watched().load(Ordering::Acquire) || !is_lent(queue) {
            return;
        }
        let Some(at) = queues.iter().position(|(_, known)| std::ptr::addr_eq(Arc::as_ptr(known), queue)) else {
            return;
        };
        if epoll::delete(&watch.epoll, queue).is_ok() {
            queue.watched().store(false, Ordering::Release);
            let gone = queues.swap_remove(at);
            drop(queues);
            drop(gone);
        }
    }

    /// Wakes it to look at all queues.
    fn ring(&self) {
        if let Some(watch) = self.watch.get() {
            watch.ring();
        }
    }

    fn watch<S: Reaped + 'static>(&self, queue: &Arc<S>, lent: bool) -> bool {
        let mut queues = lock(&self.watched.queues);
        let start = || Watch::start(self.watched.clone());
        let Some(watch) = self.watch.get().or_else(|| {
            // No other thread makes one meanwhile: the queues are locked.
            let watch = self.refused.when_due(start)?;
            Some(self.watch.get_or_init(|| watch))
        }) else {
            return false;
        };
        if !queue.watched().load(Ordering::Acquire) {
            let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let number = self.watched.last.fetch_add(1, Ordering::Relaxed) + 1;
            if epoll::add(&watch.epoll, queue, epoll::EventData::new_u64(number), events).is_err() {
                return false;
            }
            queues.push((number, queue.clone()));
            if let Some(note) = queue.lent() {
                note.store(lent, Ordering::Release);
            }
            queue.watched().store(true, Ordering::Release);
        } else if let (Some(note), false) = (queue.lent(), lent) {
            note.store(false, Ordering::Release);
        }
        drop(queues);
        // For completions from before it was watched.
        watch.ring();
        true
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.watched.closing.store(true, Ordering::SeqCst);
        self.ring();
    }
}

impl Watch {
    fn start(watched: Arc<Watched>) -> Option<Arc<Watch>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN).ok()?;
        let watch = Arc::new(Watch { epoll, bell });
        let for_thread = watch.clone();
        sys::spawn_service("nowait-reaper", move || for_thread.run(&watched)).ok()?;
        Some(watch)
    }

    fn ring(&self) {
        // The counter is far from full, and a ringing bell need not ring again.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self, watched: &Watched) {
        /// Interval at which queues without submitters are looked at: another thread may
        /// hold one for a moment.
        const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut reaped: Vec<Arc<dyn Reaped>> = Vec::new();
        let mut again = None;
        // A queue without submitters is not quiet yet.
        let mut is_left = false;
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), again.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Not documented for a sound descriptor; do not spin should it last.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            let has_event = |number: u64| events.iter().any(|event| event.data.u64() == number);
            if has_event(BELL) {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            // Not all of them at each completion of one: there may be as many as processors, and
            // looking at one takes its locks.
            let all = events.is_empty() || has_event(BELL);
            let is_looked_at = |number: u64| all || has_event(number);
            let of_interest = |(number, _): &&(u64, _)| is_looked_at(*number);
            reaped.extend(lock(&watched.queues).iter().filter(of_interest).map(|(_, queue)| queue.clone()));
            reaped.iter().for_each(|queue| queue.reap_surely());
            reaped.clear();
            let mut queues = lock(&watched.queues);
            // After its last operation a queue that takes no more submissions goes, and a lent one
            // goes back. Dropped with nothing locked: that unmaps its memory.
            let mut gone = Vec::new();
            is_left &= !all;
            queues.retain(|(number, queue)| {
                if !is_looked_at(*number) {
                    return true;
                }
                let is_quiet = queue.is_quiet();
                let goes_back = is_quiet && is_lent(&**queue) && epoll::delete(&self.epoll, queue).is_ok();
                if goes_back {
                    queue.watched().store(false, Ordering::Release);
                }
                let is_shared = Arc::strong_count(queue) > 1;
                let stays = !goes_back && (is_shared || !is_quiet);
                if !stays {
                    gone.push(queue.clone());
                }
                is_left |= stays && !is_shared;
                stays
            });
            let is_closing = watched.closing.load(Ordering::SeqCst);
            let ends = is_closing && queues.is_empty();
            drop(queues);
            drop(gone);
            if ends {
                return;
            }
            again = (is_closing || is_left).then_some(AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    struct Counted {
        place: usize,
        eventfd: OwnedFd,
        watched: AtomicBool,
        reaped: AtomicUsize,
        tell: mpsc::Sender<usize>,
    }

    impl AsFd for Counted {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.eventfd.as_fd()
        }
    }

    impl Reaped for Counted {
        fn reap_surely(&self) {
            if rustix::io::read(&self.eventfd, &mut [0; 8]).is_ok() {
                self.reaped.fetch_add(1, Ordering::SeqCst);
                let _ = self.tell.send(self.place);
            }
        }
        fn is_quiet(&self) -> bool {
            true
        }
        fn place(&self) -> usize {
            self.place
        }
        fn watched(&self) -> &AtomicBool {
            &self.watched
        }
    }

    #[test]
    fn each_thread_has_some_of_the_queues() {
        const QUEUES: usize = 2 * QUEUES_EACH + 1;
        let reapers = Reapers::default();
        let (tell, told) = mpsc::channel();
        let queue = |place| {
            let eventfd = eventfd_of_none();
            let (watched, reaped) = (AtomicBool::new(false), AtomicUsize::new(0));
            Arc::new(Counted { place, eventfd, watched, reaped, tell: tell.clone() })
        };
        let queues: Vec<_> = (0..QUEUES).map(queue).collect();
        assert!(queues.iter().all(|queue| reapers.adopt(queue)));
        let started = reapers.0.iter().filter(|reaper| reaper.watch.get().is_some()).count();
        assert_eq!(started, 3);
        for queue in &queues {
            rustix::io::write(&queue.eventfd, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(queue.place));
        }
        assert!(queues.iter().all(|queue| queue.reaped.load(Ordering::SeqCst) == 1));
        // The last of many rings begins with the first thread again.
        assert!(std::ptr::eq(reapers.of(&*queue(0)), reapers.of(&*queue(REAPERS_MAX * QUEUES_EACH))));
    }

    fn eventfd_of_none() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }
}
