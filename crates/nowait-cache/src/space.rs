//! Queue of futures that wait for a frame while leases pin all of them: FIFO, with deadlines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nowait::embed;

use crate::sync::contained;
use crate::sync::loomed::{Condvar, Mutex, lock};

/// Time that a task has to look for its frame after it was called.
const PATIENCE: Duration = Duration::from_millis(10);

pub(crate) struct Space(Arc<Line>);

struct Line {
    queue: Mutex<Waiters>,
    /// Wakes the thread that ends waits.
    changed: Condvar,
}

#[derive(Default)]
struct Waiters {
    waits: VecDeque<Arc<Waiter>>,
    /// Those that were called, and when, until they look for a frame.
    called: VecDeque<(Instant, Arc<Waiter>)>,
    /// Every pinned frame is marked as wanted.
    is_marked: bool,
    has_thread: bool,
}

struct Waiter {
    deadline: Instant,
    state: Mutex<Call>,
}

enum Call {
    Waiting(Option<Waker>),
    /// A frame may be free.
    Called,
    TimedOut,
}

impl Waiter {
    fn end(&self, state: Call) {
        let before = std::mem::replace(&mut *lock(&self.state), state);
        if let Call::Waiting(Some(waker)) = before {
            contained(|| waker.wake());
        }
    }
}

/// Place of a future in the line.
pub(crate) struct Place {
    line: Arc<Line>,
    wait: Arc<Waiter>,
    process: u64,
}

/// The next in line, to be woken.
pub(crate) struct Next(Option<Arc<Waiter>>);

impl Next {
    pub(crate) const NOBODY: Next = Next(None);

    /// Wakes the future. Call it with no lock held.
    pub(crate) fn wake(self) {
        if let Some(wait) = self.0 {
            wait.end(Call::Called);
        }
    }
}

impl Space {
    pub(crate) fn new() -> Space {
        Space(Arc::new(Line { queue: Mutex::new(Waiters::default()), changed: Condvar::new() }))
    }

    /// True if a future waits: a frame that is pinned now must be marked as wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        let queue = lock(&self.0.queue);
        !(queue.waits.is_empty() && queue.called.is_empty())
    }

    /// Takes the next future out of the line.
    pub(crate) fn next(&self) -> Next {
        self.0.next()
    }

    /// Joins the queue; a future that was woken in vain joins at its head.
    ///
    /// `mark` marks all pinned frames as wanted, and returns true if some frame is not pinned. That
    /// frame goes to the first in the queue. If that is the caller, it gets no place and retries at
    /// once. Otherwise the caller wakes the returned [`Next`]. Call with the policy locked, so that
    /// no frame is published meanwhile; unlock it before [`Space::ensure_thread`] and the wake-up.
    pub(crate) fn join(
        &self,
        deadline: Instant,
        is_called: bool,
        mark: impl FnOnce() -> bool,
    ) -> (Option<Place>, Next) {
        let mut queue = lock(&self.0.queue);
        let is_first = is_called || (queue.waits.is_empty() && queue.called.is_empty());
        let is_free = (!queue.is_marked || queue.waits.is_empty()) && mark();
        queue.is_marked = !is_free;
        if is_free && is_first {
            return (None, Next::NOBODY);
        }
        let next = if is_free { queue.call() } else { None };
        let wait = Arc::new(Waiter { deadline, state: Mutex::new(Call::Waiting(None)) });
        if is_called {
            queue.waits.push_front(wait.clone())
        } else {
            queue.waits.push_back(wait.clone())
        }
        let process = embed::fork_generation();
        (Some(Place { line: self.0.clone(), wait, process }), Next(next))
    }

    /// Continues the queue after a woken future has taken its frame: other frames may be free, and
    /// pinned ones not marked. The policy is locked; see [`Space::join`].
    pub(crate) fn go_on(&self, mark: impl FnOnce() -> bool) -> Next {
        let mut queue = lock(&self.0.queue);
        if queue.is_marked || queue.waits.is_empty() {
            return Next::NOBODY;
        }
        let is_free = mark();
        queue.is_marked = !is_free;
        Next(if is_free { queue.call() } else { None })
    }

    /// Ensures that a thread ends waits at their deadlines.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn ensure_thread(&self) -> std::io::Result<()> {
        let has_thread = std::mem::replace(&mut lock(&self.0.queue).has_thread, true);
        if has_thread {
            self.0.changed.notify_one();
            return Ok(());
        }
        let line = self.0.clone();
        embed::spawn("nowait-cache", move || line.end_waits()).map(drop).inspect_err(|_| {
            let mut queue = lock(&self.0.queue);
            queue.has_thread = false;
            // Others may rely on the thread.
            let waits = std::mem::take(&mut queue.waits);
            drop(queue);
            waits.iter().for_each(|wait| wait.end(Call::TimedOut));
        })
    }
}

impl Waiters {
    /// Takes the first waiter out of the line.
    fn call(&mut self) -> Option<Arc<Waiter>> {
        self.is_marked = false;
        let next = self.waits.pop_front();
        self.called.extend(next.clone().map(|next| (Instant::now(), next)));
        next
    }
}

impl Line {
    fn next(&self) -> Next {
        let next = lock(&self.queue).call();
        if next.is_some() {
            // The thread checks whether the future looks for its frame.
            self.changed.notify_one();
        }
        Next(next)
    }

    /// Removes a waiter; true if it was called.
    fn remove(&self, wait: &Arc<Waiter>) -> bool {
        let mut queue = lock(&self.queue);
        queue.waits.retain(|other| !Arc::ptr_eq(other, wait));
        let before = queue.called.len();
        queue.called.retain(|(_, other)| !Arc::ptr_eq(other, wait));
        queue.called.len() < before
    }

    /// Fails waits at their deadlines. If a woken task is not polled in time, wakes the next one.
    /// Ends when nothing has waited for a second.
    fn end_waits(&self) {
        /// Time for which the thread waits for further waits.
        const IDLE: Duration = Duration::from_secs(1);
        let mut queue = lock(&self.queue);
        let mut is_idle = false;
        loop {
            let now = Instant::now();
            let (late, rest) = queue.waits.drain(..).partition::<VecDeque<_>, _>(|wait| wait.deadline <= now);
            queue.waits = rest;
            let ignored = queue.called.iter().take_while(|(called, _)| *called + PATIENCE <= now).count();
            queue.called.drain(..ignored);
            let next: Vec<_> = (0..ignored).map_while(|_| queue.call()).collect();
            if !late.is_empty() || !next.is_empty() {
                drop(queue);
                late.iter().for_each(|wait| wait.end(Call::TimedOut));
                next.into_iter().for_each(|next| Next(Some(next)).wake());
                queue = lock(&self.queue);
                continue;
            }
            let deadlines = queue.waits.iter().map(|wait| wait.deadline);
            let next = deadlines.chain(queue.called.front().map(|(called, _)| *called + PATIENCE)).min();
            if std::mem::replace(&mut is_idle, next.is_none()) && next.is_none() {
                queue.has_thread = false;
                return;
            }
            let time = next.map_or(IDLE, |next| next.saturating_duration_since(now));
            queue = match self.changed.wait_timeout(queue, time) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// Result of a wait.
pub(crate) enum Called {
    Again,
    TimedOut,
}

impl Place {
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Called> {
        let waker = context.waker().clone();
        let mut state = lock(&self.wait.state);
        let old = match &mut *state {
            Call::Waiting(old) => old.replace(waker),
            Call::Called => return Poll::Ready(Called::Again),
            Call::TimedOut => return Poll::Ready(Called::TimedOut),
        };
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Gives up the place of a future that looks for a frame; returns its deadline.
    pub(crate) fn leave(self) -> Instant {
        *lock(&self.wait.state) = Call::TimedOut;
        self.line.remove(&self.wait);
        self.wait.deadline
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.process != embed::fork_generation() {
            // A thread that does not exist here may hold the locks.
            return;
        }
        let was = std::mem::replace(&mut *lock(&self.wait.state), Call::TimedOut);
        let is_waiting = !matches!(was, Call::TimedOut);
        if is_waiting && self.line.remove(&self.wait) {
            // The frame goes to the next in line.
            self.line.next().wake();
        }
    }
}

#[cfg(all(test, nowait_cache_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::word::{Unpinned, Word};

    /// A cache of one frame, and the steps of a read as `get.rs`, `file.rs` and `shared.rs` take them.
    struct OneFrame {
        word: Word,
        space: Space,
        /// True while the frame contains a page: it is not being filled.
        policy: Mutex<bool>,
    }

    /// A task that sleeps until it is woken.
    struct Task(Mutex<bool>, Condvar);

    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {
            *lock(&self.0) = true;
            self.1.notify_one();
        }
    }

    impl OneFrame {
        /// True if the frame was free or evictable; it is pinned then.
        fn claim(&self, is_called: bool) -> bool {
            let mut is_cached = lock(&self.policy);
            let is_claimed = (is_called || !self.space.is_wanted()) && self.word.try_evict().is_some();
            *is_cached &= !is_claimed;
            is_claimed
        }

        /// `gives_up`: if it was called and finds no frame, as at its deadline.
        fn read(&self, gives_up: bool) {
            let task = Arc::new(Task(Mutex::new(false), Condvar::new()));
            let waker = Waker::from(task.clone());
            let (mut place, mut is_called) = (None::<Place>, false);
            loop {
                if let Some(waits) = &place {
                    let Poll::Ready(Called::Again) = waits.poll(&Context::from_waker(&waker)) else {
                        let mut is_woken = lock(&task.0);
                        while !*is_woken {
                            is_woken = task.1.wait(is_woken).unwrap();
                        }
                        *is_woken = false;
                        continue;
                    };
                    place.take().map(Place::leave);
                    is_called = true;
                }
                if self.claim(is_called) {
                    break;
                }
                if is_called && gives_up {
                    return self.space.next().wake();
                }
                let policy = lock(&self.policy);
                let (waits, next) = self.space.join(now(), is_called, || *policy && !self.word.want());
                drop(policy);
                next.wake();
                place = waits;
            }
            if is_called {
                let policy = lock(&self.policy);
                let next = self.space.go_on(|| *policy && !self.word.want());
                drop(policy);
                next.wake();
            }
            let mut is_cached = lock(&self.policy);
            self.word.publish(false, self.space.is_wanted());
            *is_cached = true;
            drop(is_cached);
            self.let_go();
        }

        /// Removes a pin.
        fn let_go(&self) {
            let mut next = Next::NOBODY;
            while self.word.unpin() == Unpinned::Wanted {
                if self.word.clear_wanted() {
                    std::mem::replace(&mut next, self.space.next()).wake();
                }
            }
            next.wake();
        }
    }

    fn now() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now)
    }

    /// Two reads wait for the frame of a lease, for a hit, and for each other.
    #[test]
    fn reads_that_wait_for_one_frame_are_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let space = Space::new();
            let cache = Arc::new(OneFrame { word: Word::new(), space, policy: Mutex::new(true) });
            cache.word.publish(false, false);
            let readers = [false, true].map(|gives_up| {
                let cache = cache.clone();
                thread::spawn(move || cache.read(gives_up))
            });
            cache.let_go();
            // A hit, or an attempt.
            cache.word.pin();
            cache.let_go();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
