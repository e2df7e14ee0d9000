//! An operation as its caller sees it: await it on any executor, or `.wait()` for it without one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use rustix::io::Errno;

use crate::core::coalesce;
use crate::core::dispatch::Target;
use crate::core::policy::Path;
use crate::engine::local;
use crate::op::{Done, LaneKind, Notify, Outcome, Request, Slot};
use crate::stats::Count;

/// Turns an engine's answer into what the caller gets.
#[doc(hidden)]
pub trait Finish: Unpin {
    type Output;
    #[doc(hidden)]
    fn finish(self, answer: Answer<'_>) -> Self::Output;
}

/// An engine's answer and the request it answers.
#[doc(hidden)]
pub struct Answer<'r> {
    pub(crate) outcome: Outcome,
    pub(crate) request: &'r mut Request,
}

/// A file operation that has not begun: `.await` it on any executor, or [`wait`](Operation::wait) for it.
///
/// It does nothing until then. As a future it first tries to finish on the caller's thread without waiting for a device; what
/// remains goes to io_uring or to a thread. Dropping it, also while it is under way, is safe: the buffer it was given stays
/// with the kernel until the kernel is done, and is then freed. So is leaking it.
#[must_use = "an operation does nothing until it is awaited or waited for"]
pub struct Operation<'f, F> {
    target: Target<'f>,
    state: State,
    finish: Option<F>,
}

enum State {
    New(Request),
    /// Refused before it began. Behind a pointer, so that operations are small: they are moved about.
    Refused(Box<(Errno, Request)>),
    Under(Arc<Slot>, Dropped),
    /// Through, before it was asked for.
    Ended(Box<(Outcome, Request)>),
    Spent,
}

/// What becomes of an operation under way when its future is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dropped {
    IsAbandoned,
    Finishes,
}

impl<'f, F: Finish> Operation<'f, F> {
    pub(crate) fn new(target: Target<'f>, request: Request, finish: F) -> Self {
        Operation { target, state: State::New(request), finish: Some(finish) }
    }

    /// One that fails with `errno` as soon as it is asked to begin.
    pub(crate) fn refused(target: Target<'f>, errno: Errno, request: Request, finish: F) -> Self {
        Operation { target, state: State::Refused(Box::new((errno, request))), finish: Some(finish) }
    }

    /// Runs the operation to its end on this thread, needing no executor. A caller that waits is best served by the plain
    /// system call: it costs the least, cached or not. (Inside [`block_on`](crate::block_on), what other futures have staged
    /// is submitted first.)
    pub fn wait(mut self) -> F::Output {
        let instance = self.target.instance;
        if let State::Under(..) = self.state {
            instance.engines().ring.watch_all();
        }
        let forced = matches!(instance.policy.forced, Some(Path::Ring | Path::Pool));
        match std::mem::replace(&mut self.state, State::Spent) {
            State::New(mut request) if !forced => {
                local::flush();
                let Ok(_permit) = self.target.enter(&request) else {
                    self.state = State::New(request);
                    return local::drive(self);
                };
                let outcome = match (&request, self.target.file) {
                    // A sync that is under way on another thread covers less than this one has to: the next is shared.
                    (Request::Sync { .. }, Some(file)) => {
                        if !file.lanes().of(LaneKind::Syncs).enter() {
                            self.state = State::New(request);
                            return local::drive(self);
                        }
                        self.target.run_in_lane(file, &mut request)
                    }
                    _ => self.target.run_here(&mut request),
                };
                instance.counters.add(if outcome.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
                self.end(outcome, &mut request)
            }
            state => {
                self.state = state;
                local::drive(self)
            }
        }
    }

    /// Begins without being polled.
    pub(crate) fn begun(mut self) -> Self {
        if let State::New(request) = &mut self.state {
            let now = self.target.try_now(request);
            let State::New(request) = std::mem::replace(&mut self.state, State::Spent) else { return self };
            self.state = match now {
                Some(outcome) => State::Ended(Box::new((outcome, request))),
                None => {
                    State::Under(self.target.submit(request, Notify::Waker(Waker::noop().clone())), Dropped::Finishes)
                }
            };
        }
        self
    }

    /// The request, while it has not begun.
    pub(crate) fn request_mut(&mut self) -> Option<&mut Request> {
        match &mut self.state {
            State::New(request) => Some(request),
            State::Refused(refused) => Some(&mut refused.1),
            State::Under(..) | State::Ended(_) | State::Spent => None,
        }
    }

    #[inline]
    fn end(&mut self, outcome: Outcome, request: &mut Request) -> F::Output {
        end(&mut self.finish, outcome, request)
    }
}

#[inline]
fn end<F: Finish>(finish: &mut Option<F>, outcome: Outcome, request: &mut Request) -> F::Output {
    match finish.take() {
        Some(finish) => finish.finish(Answer { outcome, request }),
        None => panic!("a future was polled after it was ready"),
    }
}

impl<F: Finish> Future for Operation<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Operation { target, state, finish, .. } = &mut *self;
        if let State::Under(slot, _) = state {
            let (outcome, mut request) = ready!(slot.poll(context));
            *state = State::Spent;
            return Poll::Ready(end(finish, outcome, &mut request));
        }
        // Tasks that only ever read cached data must let others run now and then.
        #[cfg(feature = "tokio")]
        let budget = ready!(tokio::task::coop::poll_proceed(context));
        // What others are about to write may be written with it.
        let in_company = matches!(state, State::New(request) if coalesce::may_gain(target, request));
        if !in_company && matches!(state, State::New(Request::Write(..))) {
            // What this thread has collected was to be written before.
            local::do_what_is_due();
        }
        let now = match state {
            State::New(_) if in_company => None,
            // Worked on where it lies: a request is large, and this is the path of cached reads.
            State::New(request) => target.try_now(request).map(|outcome| end(finish, outcome, request)),
            State::Refused(refused) => {
                let (errno, request) = &mut **refused;
                target.instance.counters.add(Count::FailedAtOnce);
                Some(end(finish, Err(*errno), request))
            }
            State::Ended(ended) => {
                let (outcome, request) = &mut **ended;
                Some(end(finish, std::mem::replace(outcome, Ok(Done::Nothing)), request))
            }
            State::Under(..) | State::Spent => None,
        };
        if let Some(output) = now {
            #[cfg(feature = "tokio")]
            budget.made_progress();
            *state = State::Spent;
            return Poll::Ready(output);
        }
        let State::New(request) = std::mem::replace(state, State::Spent) else {
            panic!("a future was polled after it was ready");
        };
        let notify = Notify::Waker(context.waker().clone());
        let slot = if in_company { coalesce::collect(target, request, notify) } else { target.submit(request, notify) };
        // It may be complete already: then the answer is worth more than a wake-up.
        if let Some((outcome, mut request)) = slot.take() {
            return Poll::Ready(end(finish, outcome, &mut request));
        }
        *state = State::Under(slot, Dropped::IsAbandoned);
        Poll::Pending
    }
}

impl<F> Drop for Operation<'_, F> {
    fn drop(&mut self) {
        match &self.state {
            State::Under(slot, Dropped::IsAbandoned) => slot.abandon(),
            State::Under(slot, Dropped::Finishes) => slot.detach(),
            State::New(_) | State::Refused(_) | State::Ended(_) | State::Spent => {}
        }
    }
}
