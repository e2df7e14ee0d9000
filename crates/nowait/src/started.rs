//! Operations that have begun, and how an engine's answer becomes a caller's result.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::core::dispatch::{OwnTarget, Target};
use crate::driver::{self, Driven};
use crate::engine::local;
use crate::error::{Error, Result};
use crate::op::watcher::{self, Of};
use crate::op::{Callback, Done, Outcome, Owned, Request, Slot};
use crate::turn;

/// An engine's answer, and the request that it answers.
pub(crate) struct Answer<'a> {
    pub(crate) on: Target<'a>,
    pub(crate) outcome: Outcome,
    pub(crate) request: &'a mut Request,
}

/// Turns an answer into what the caller gets.
pub(crate) type Conclude<T> = fn(Answer<'_>) -> T;

/// Concludes a call of std's.
pub(crate) fn called<T: 'static>(Answer { outcome, request, .. }: Answer<'_>) -> Result<T> {
    let Request::Call(call) = request else { unreachable!("a call is answered with itself, not {request:?}") };
    match outcome {
        Ok(Done::Owned(owned)) => {
            let Owned::Value(value) = *owned else { unreachable!("{call:?} is answered with a value") };
            let Ok(value) = value.downcast() else { unreachable!("{call:?} is answered with what it returned") };
            Ok(*value)
        }
        Ok(other) => unreachable!("{call:?} is not answered with {other:?}"),
        Err(errno) => {
            let error = Error::from_errno(call.operation, errno).at(&call.path);
            Err(match &call.to {
                Some(to) => error.with_detail(format!("to {}", to.display())),
                None => error,
            })
        }
    }
}

#[cold]
pub(crate) fn polled_too_often() -> ! {
    panic!("a future was polled after it was ready")
}

/// An operation that has begun.
pub(crate) enum Begun {
    InFlight(InFlight),
    /// Completed at once.
    Ended(Box<(Outcome, Request)>),
    Spent,
}

/// An operation that an engine has.
pub(crate) struct InFlight {
    slot: Arc<Slot>,
    when_dropped: WhenDropped,
}

/// Fate of an operation under way whose `Started` is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenDropped {
    Abandon,
    /// Abandons it, and passes other left writes of the file to the pool.
    HandOver,
    Finish,
    /// Its answer has been taken.
    Nothing,
}

impl Begun {
    pub(crate) fn under_way(slot: Arc<Slot>) -> Begun {
        Begun::InFlight(InFlight { slot, when_dropped: WhenDropped::Abandon })
    }

    /// A write that was left in the file's queue (`core/combine.rs`).
    pub(crate) fn left(slot: Arc<Slot>) -> Begun {
        Begun::InFlight(InFlight { slot, when_dropped: WhenDropped::HandOver })
    }

    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        matches!(self, Begun::InFlight(InFlight { when_dropped: WhenDropped::HandOver, .. }))
    }

    /// Passes a left write to the pool, since no future may be polled.
    pub(crate) fn hand_over(&mut self) {
        if let Begun::InFlight(InFlight { slot, when_dropped: when_dropped @ WhenDropped::HandOver }) = self {
            *when_dropped = WhenDropped::Abandon;
            slot.hand_over_left();
        }
    }

    pub(crate) fn ended(outcome: Outcome, request: Request) -> Begun {
        Begun::Ended(Box::new((outcome, request)))
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Outcome, Request)> {
        if let Begun::InFlight(under_way) = self {
            let answer = ready!(under_way.slot.poll(context));
            turn::runs(1);
            under_way.when_dropped = WhenDropped::Nothing;
            *self = Begun::Spent;
            return Poll::Ready(answer);
        }
        match std::mem::replace(self, Begun::Spent) {
            Begun::Ended(ended) => Poll::Ready(*ended),
            _ => polled_too_often(),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        match self.when_dropped {
            WhenDropped::Abandon => self.slot.abandon(),
            WhenDropped::HandOver => {
                self.slot.abandon();
                self.slot.hand_over_left();
            }
            WhenDropped::Finish => self.slot.detach(),
            WhenDropped::Nothing => {}
        }
    }
}

/// Returns the callback of a slot: it turns the outcome into a result, lets go of the file, and calls
/// `callback`.
pub(crate) fn concludes<T: 'static>(
    on: OwnTarget,
    conclude: Conclude<T>,
    callback: impl FnOnce(T) + Send + 'static,
) -> Callback {
    driver::called_back(move |outcome, mut request| {
        let result = conclude(Answer { on: on.get(), outcome, request: &mut request });
        drop(request);
        // The callback may lead to a close of the file.
        on.let_go();
        callback(result);
    })
}

/// Operation in progress; see [`Operation::start`](crate::Operation::start), [`Gather::start`](crate::Gather::start),
/// [`WriteMany::start`](crate::WriteMany::start) and [`Steps::start`](crate::Steps::start).
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
/// # let file = nowait::File::open(&path).wait()?;
/// // Eight reads in flight at the same time.
/// let reads: Vec<_> = (0..8).map(|page| file.read_range(page * 4096, 4096).start()).collect();
/// for read in reads {
///     assert_eq!(read.wait()?.len(), 4096);
/// }
/// // A thread of the library calls the callback.
/// let (send, receive) = std::sync::mpsc::channel();
/// file.read_range(0, 4096).on_complete(move |page| send.send(page).unwrap());
/// assert_eq!(receive.recv().unwrap()?.len(), 4096);
/// # Ok(())
/// # }
/// ```
///
/// It borrows nothing: store it, send it to other threads, await it anywhere, or
/// [wait](Started::wait) for it. It makes progress without being polled. Until its result is taken
/// it keeps the file open, like a clone of the [`File`](crate::File).
///
/// If dropped, it is abandoned: it may or may not take effect, and its buffer is freed when the
/// kernel is done. An operation of several steps begins no further step. After
/// [`detach`](Started::detach) or [`finish_on_drop`](Started::finish_on_drop) it runs to completion.
#[must_use = "dropping it abandons the operation; call `detach` if the result does not matter"]
pub struct Started<T>(Way<T>);

enum Way<T> {
    Single(Single<T>),
    /// A sequence of steps.
    Driven(Driven<T>),
}

/// An operation of one step: an engine has its slot.
struct Single<T> {
    /// Until the result is taken.
    on: Option<OwnTarget>,
    begun: Begun,
    conclude: Conclude<T>,
}

impl<T> fmt::Debug for Started<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Started");
        if let Way::Single(Single { on: Some(on), .. }) = &self.0 {
            if let Some(file) = on.get().file {
                fields.field("path", &file.path);
            }
        }
        fields.finish_non_exhaustive()
    }
}

impl<T> Started<T> {
    /// An operation of one step.
    pub(crate) fn single(on: Target<'_>, begun: Begun, conclude: Conclude<T>) -> Started<T> {
        Started(Way::Single(Single { on: Some(on.to_owned()), begun, conclude }))
    }

    /// Blocks until the operation has completed; returns the result.
    pub fn wait(self) -> T {
        // A runtime that should notice the completion may be blocked by us.
        if let Way::Single(Single { on: Some(_), .. }) = &self.0 {
            watcher::ask_of(Of::Reactors);
        }
        local::drive(self)
    }

    /// Whether it was served on this thread, when it was started.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.0, Way::Single(Single { begun: Begun::Ended(_), .. }))
    }

    /// Lets the operation run to completion, and drops the result.
    pub fn detach(self) {
        drop(self.finish_on_drop());
    }

    /// Calls `callback` once with the result, on a thread of the library, also if the operation has
    /// completed already; see [`Operation::on_complete`](crate::Operation::on_complete). For an operation of several steps, the
    /// thread is `nowait-driver`. To take a result that is already known on this thread, poll first.
    pub fn on_complete(self, callback: impl FnOnce(T) + Send + 'static)
    where
        T: 'static,
    {
        let Single { on, begun, conclude } = match self.0 {
            Way::Single(single) => single,
            Way::Driven(driven) => return driven.on_complete(callback),
        };
        let Some(on) = on else { polled_too_often() };
        let call = concludes(on, conclude, callback);
        match begun {
            Begun::InFlight(mut under_way) => {
                under_way.when_dropped = WhenDropped::Nothing;
                under_way.slot.call_back(call);
            }
            Begun::Ended(ended) => {
                let (outcome, request) = *ended;
                call(outcome, request);
            }
            Begun::Spent => polled_too_often(),
        }
    }

    /// Lets the operation run to completion even if this `Started` is dropped.
    pub fn finish_on_drop(mut self) -> Self {
        match &mut self.0 {
            Way::Single(Single { begun: Begun::InFlight(under_way), .. }) => {
                under_way.when_dropped = WhenDropped::Finish;
            }
            Way::Single(_) => {}
            Way::Driven(driven) => driven.finish_on_drop(),
        }
        self
    }
}

impl<T> Future for Started<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Single { on, begun, conclude } = match &mut self.0 {
            Way::Single(single) => single,
            Way::Driven(driven) => return driven.poll(context),
        };
        let (outcome, mut request) = ready!(begun.poll(context));
        let Some(on) = on.take() else { polled_too_often() };
        Poll::Ready(conclude(Answer { on: on.get(), outcome, request: &mut request }))
    }
}

/// Operations of several steps.
impl<T: Send + 'static> Started<T> {
    /// Has the driver poll a future to its end; if no thread can be started, this one does.
    pub(crate) fn driven(future: impl Future<Output = T> + Send + 'static) -> Started<T> {
        Started::try_driven(future).unwrap_or_else(|(_, future)| Started::ended(local::drive(future)))
    }

    /// Has the driver poll a future to its end. Returns the future if no thread can be started.
    pub(crate) fn try_driven<F>(future: F) -> std::result::Result<Started<T>, (io::Error, F)>
    where
        F: Future<Output = T> + Send + 'static,
    {
        driver::start(future).map(|driven| Started(Way::Driven(driven)))
    }

    /// An operation that has ended already.
    pub(crate) fn ended(output: T) -> Started<T> {
        Started(Way::Driven(Driven::ended(output)))
    }
}
