//! Waits for a frame while leases pin all of them: in order of arrival, and for a limited time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nowait::embed;

use crate::sync::{contained, lock};

#[derive(Default)]
pub(crate) struct Space(Arc<Line>);

#[derive(Default)]
struct Line {
    queue: Mutex<Waiters>,
    /// Wakes the thread that ends waits.
    changed: Condvar,
}

#[derive(Default)]
struct Waiters {
    waits: VecDeque<Arc<Waiter>>,
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
    /// True if a future waits: a frame that is pinned now must be marked as wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        !lock(&self.0.queue).waits.is_empty()
    }

    /// Takes the next future out of the line.
    pub(crate) fn next(&self) -> Next {
        self.0.next()
    }

    /// Joins the line, at its head for a future that was called in vain.
    ///
    /// `mark` marks all pinned frames as wanted, and returns false if there is a page that nothing pins. The
    /// first in line takes that: no place is returned to the first, and the [`Next`] is to be woken otherwise.
    /// The policy is locked, so no frame is published meanwhile. Call [`Space::ensure_thread`] when it is not.
    pub(crate) fn join(
        &self,
        deadline: Instant,
        is_called: bool,
        mark: impl FnOnce() -> bool,
    ) -> (Option<Place>, Next) {
        let mut queue = lock(&self.0.queue);
        if !queue.is_marked || queue.waits.is_empty() {
            queue.is_marked = mark();
        }
        if !queue.is_marked && (is_called || queue.waits.is_empty()) {
            return (None, Next::NOBODY);
        }
        let next = if queue.is_marked { None } else { queue.waits.pop_front() };
        let wait = Arc::new(Waiter { deadline, state: Mutex::new(Call::Waiting(None)) });
        if is_called {
            queue.waits.push_front(wait.clone())
        } else {
            queue.waits.push_back(wait.clone())
        }
        (Some(Place { line: self.0.clone(), wait }), Next(next))
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
            lock(&self.0.queue).has_thread = false;
        })
    }
}

impl Line {
    fn next(&self) -> Next {
        let mut queue = lock(&self.queue);
        queue.is_marked = false;
        Next(queue.waits.pop_front())
    }

    /// Ends waits at their deadlines, until there are none.
    fn end_waits(&self) {
        /// Time for which the thread waits for further waits.
        const IDLE: Duration = Duration::from_secs(1);
        let mut queue = lock(&self.queue);
        let mut is_idle = false;
        loop {
            let now = Instant::now();
            let (late, rest) = queue.waits.drain(..).partition::<VecDeque<_>, _>(|wait| wait.deadline <= now);
            queue.waits = rest;
            if !late.is_empty() {
                drop(queue);
                late.iter().for_each(|wait| wait.end(Call::TimedOut));
                queue = lock(&self.queue);
                continue;
            }
            let next = queue.waits.iter().map(|wait| wait.deadline).min();
            if next.is_none() && std::mem::replace(&mut is_idle, next.is_none()) {
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

    /// Gives up the place of a future that was called and found no frame.
    pub(crate) fn leave(self) -> Instant {
        let deadline = self.wait.deadline;
        *lock(&self.wait.state) = Call::TimedOut;
        deadline
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let was = std::mem::replace(&mut *lock(&self.wait.state), Call::TimedOut);
        let was_taken_out = || {
            let waits = &mut lock(&self.line.queue).waits;
            let before = waits.len();
            waits.retain(|wait| !Arc::ptr_eq(wait, &self.wait));
            waits.len() == before
        };
        let is_called = match was {
            Call::Waiting(_) => was_taken_out(),
            Call::Called => true,
            Call::TimedOut => false,
        };
        if is_called {
            // The frame goes to the next in line.
            self.line.next().wake();
        }
    }
}
