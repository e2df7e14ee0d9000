//! Operations as callers see them: `.await` one on any executor, `.wait()` for it without one, or
//! start it and collect the result later (`started.rs`).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use crate::core::combine;
use crate::core::dispatch::Target;
use crate::core::inline::NotNow;
use crate::core::instance::Instance;
use crate::core::policy::Route;
use crate::driver;
use crate::engine::{local, loop_ring};
use crate::op::watcher::{self, Of};
use crate::op::{Notify, OpenFile, Outcome, Owner, QueueKind, Request, Slot};
use crate::started::{Answer, Begun, Conclude, Started, concludes, polled_too_often};
use crate::stats::Count;
use crate::sys::{Errno, WriteFlags};
use crate::turn;

/// File operation that returns a `T` and has not begun. `.await` it on any executor,
/// [`wait`](Operation::wait) for it, or [`start`](Operation::start) it.
///
/// A polled operation first tries to complete on the polling thread without waiting for the device.
/// Otherwise it goes to io_uring or to a pool thread. Dropping or leaking it is safe at any time:
/// the operation owns its buffer until the kernel is done, and then frees it.
#[must_use = "an operation does nothing until it is awaited or started, or `wait` is called"]
pub struct Operation<'f, T> {
    on: Target<'f>,
    state: Phase,
    /// The answer to a new request that was served at its first poll, whose task had to yield.
    served: Option<Outcome>,
    /// How often the task has given way since.
    gave_way: u8,
    conclude: Conclude<T>,
}

impl<T> fmt::Debug for Operation<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields(f, "Operation")
    }
}

impl<T> Operation<'_, T> {
    fn poll_begun(&mut self, context: &mut Context<'_>) -> Poll<T> {
        let Phase::Begun(begun) = &mut self.state else { polled_too_often() };
        let (outcome, mut request) = ready!(begun.poll(context));
        self.state = Phase::Spent;
        Poll::Ready((self.conclude)(Answer { on: self.on, outcome, request: &mut request }))
    }

    fn fields(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let mut fields = f.debug_struct(name);
        if let Some(file) = self.on.file {
            fields.field("path", &file.path);
        }
        if let Phase::New(Request::Read(transfer) | Request::Write(transfer, _)) = &self.state {
            fields.field("offset", &transfer.position()).field("length", &transfer.left());
        }
        fields.field("has_begun", &matches!(self.state, Phase::Begun(_) | Phase::Spent)).finish_non_exhaustive()
    }
}

enum Phase {
    New(Request),
    /// Refused before it began. Boxed to keep operations small: they are moved often.
    Refused(Box<(Errno, Request)>),
    Begun(Begun),
    Spent,
}

impl<'f, T> Operation<'f, T> {
    #[inline]
    pub(crate) fn new(on: Target<'f>, request: Request, conclude: Conclude<T>) -> Self {
        Operation { on, state: Phase::New(request), served: None, gave_way: 0, conclude }
    }

    /// Makes an operation that fails with `errno` when it begins.
    pub(crate) fn refused(on: Target<'f>, errno: Errno, request: Request, conclude: Conclude<T>) -> Self {
        Operation { on, state: Phase::Refused(Box::new((errno, request))), served: None, gave_way: 0, conclude }
    }

    /// Makes an operation, or one that fails as `checked` did.
    #[inline]
    pub(crate) fn checked(
        on: Target<'f>,
        checked: std::result::Result<(), Errno>,
        request: Request,
        conclude: Conclude<T>,
    ) -> Self {
        match checked {
            Ok(()) => Operation::new(on, request, conclude),
            Err(errno) => Operation::refused(on, errno, request, conclude),
        }
    }

    /// Blocks until the operation has completed; needs no executor. The call makes a plain system
    /// call where possible, which is the cheapest way for a blocking caller. While operations of
    /// futures are in flight in this thread's ring ([`block_on`](crate::block_on)), these complete
    /// only if the thread does not sleep in a plain call: the operation goes to an engine then, as in
    /// [`Operation::submit`].
    pub fn wait(mut self) -> T {
        self.settle();
        let on = self.on;
        if let Phase::Begun(_) = self.state {
            watcher::ask_of(Of::Reactors);
        }
        let forced = matches!(on.instance.policy.forced, Some(Route::Ring | Route::Pool));
        match std::mem::replace(&mut self.state, Phase::Spent) {
            state @ Phase::New(_) if !forced && local::has_in_flight() => {
                self.state = state;
                local::drive(self.submit())
            }
            Phase::New(mut request) if !forced => {
                let Ok(_permit) = on.enter(&request) else {
                    self.state = Phase::New(request);
                    return local::drive(self);
                };
                let outcome = match (&request, on.file) {
                    // A sync that is under way on another thread covers less than this one has to:
                    // the next is shared.
                    (Request::Sync { .. }, Some(file)) => {
                        if !file.queues().of(QueueKind::Syncs).enter() {
                            self.state = Phase::New(request);
                            return local::drive(self);
                        }
                        on.run_in_queue(file, &mut request)
                    }
                    _ => on.run_here(&mut request),
                };
                on.instance.counters.add(if outcome.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
                (self.conclude)(Answer { on: self.on, outcome, request: &mut request })
            }
            state => {
                self.state = state;
                local::drive(self)
            }
        }
    }

    /// Begins the operation; returns a [`Started`], a future that borrows nothing and may move to
    /// any thread.
    ///
    /// Like a poll, it first tries on this thread: cached data is copied before this returns.
    /// [`Operation::submit`] skips that attempt. So does this call for a read in
    /// [`LoopRing::submit_many`](crate::embed::LoopRing::submit_many), if io_uring copies cached data
    /// as fast.
    pub fn start(mut self) -> Started<T> {
        self.settle();
        let on = self.on;
        let Phase::New(request) = &mut self.state else { return self.submit() };
        let now = match request {
            Request::Write(..) => on.try_write_now(request),
            Request::Read(transfer) if loop_ring::submits_many() && on.reads_batches_by_ring(transfer.left()) => {
                Err(None)
            }
            request => on.try_now(request).ok_or(None),
        };
        match now {
            Ok(outcome) => {
                self.served = Some(outcome);
                self.submit()
            }
            Err(turn) => self.submit_rest(turn),
        }
    }

    /// Begins as [`Operation::start`], without an attempt on this thread. Use it for batches, and
    /// for data that is needed later.
    pub fn submit(self) -> Started<T> {
        self.submit_rest(None)
    }

    fn submit_rest(mut self, mut turn: NotNow<'f>) -> Started<T> {
        self.settle();
        let Operation { on, state, conclude, .. } = self;
        let begun = match state {
            Phase::New(request) => {
                let notify = Notify::Waker(Waker::noop().clone());
                Begun::under_way(on.submit(request, notify, turn.as_mut()))
            }
            Phase::Refused(refused) => {
                on.instance.counters.add(Count::FailedAtOnce);
                let (errno, request) = *refused;
                Begun::ended(Err(errno), request)
            }
            Phase::Begun(mut begun) => {
                begun.hand_over();
                begun
            }
            Phase::Spent => Begun::Spent,
        };
        Started::single(on, begun, conclude)
    }

    /// Begins as [`Operation::submit`], and calls `callback` once with the result. The operation
    /// makes progress even if this thread or its runtime blocks.
    ///
    /// A thread of the library calls `callback`: the one that notices the completion, or
    /// `nowait-driver` if another thread notices it, or if the result is known at once (cached data,
    /// a refused operation). `callback` runs neither inside `on_complete` nor inside another
    /// callback, so the caller may hold a lock that `callback` takes, and callbacks may start
    /// operations without end. Callbacks of several operations run in any order, and at the same
    /// time.
    ///
    /// The thread also serves other operations, so `callback` must not block. A panic in `callback`
    /// affects no other operation. If no thread can be started (a limit on threads), this thread
    /// calls `callback` before `on_complete` returns. After a `fork`, only the parent calls it.
    ///
    /// Two calls of the caller's notice completions, and so run callbacks:
    /// [`LoopRing::notice`](crate::embed::LoopRing::notice), and a step of a simulated disk.
    pub fn on_complete(mut self, callback: impl FnOnce(T) + Send + 'static)
    where
        T: 'static,
    {
        self.settle();
        let Operation { on, state, conclude, .. } = self;
        match state {
            Phase::New(request) => {
                let call = concludes(on.to_owned(), conclude, callback);
                // The callback gets the result, so no thread reads the slot.
                drop(local::elsewhere(|| on.submit(request, Notify::Call(call), None)));
            }
            state => Operation { on, state, served: None, gave_way: 0, conclude }.submit().on_complete(callback),
        }
    }

    /// Leaves a write in the file's queue at the first poll, to be merged with those of other
    /// futures.
    fn leave_write(&mut self, context: &mut Context<'_>) -> Poll<T> {
        let Phase::New(request) = std::mem::replace(&mut self.state, Phase::Spent) else { polled_too_often() };
        let (slot, may_have_ended) = combine::leave(&self.on, request, context);
        self.state = Phase::Begun(Begun::left(slot));
        if may_have_ended { self.poll_begun(context) } else { Poll::Pending }
    }

    /// Passes the request to `submit`, at the first poll.
    fn poll_later(&mut self, context: &Context<'_>, submit: impl FnOnce(Request, Notify) -> Arc<Slot>) -> Poll<T> {
        let Phase::New(request) = std::mem::replace(&mut self.state, Phase::Spent) else { polled_too_often() };
        let slot = submit(request, Notify::Waker(context.waker().clone()));
        // The operation may be complete already: return the answer without waiting for a wake-up.
        if let Some((outcome, mut request)) = slot.take() {
            return Poll::Ready((self.conclude)(Answer { on: self.on, outcome, request: &mut request }));
        }
        self.state = Phase::Begun(Begun::under_way(slot));
        Poll::Pending
    }

    /// Makes an operation that was served, and whose task had to yield, one that has ended.
    fn settle(&mut self) {
        if let Some(outcome) = self.served.take() {
            self.state = match std::mem::replace(&mut self.state, Phase::Spent) {
                Phase::New(request) => Phase::Begun(Begun::ended(outcome, request)),
                Phase::Refused(refused) => Phase::Begun(Begun::ended(outcome, refused.1)),
                state => state,
            };
        }
    }
}

impl Phase {
    /// Returns the request, while no engine has it.
    fn request_mut(&mut self) -> Option<&mut Request> {
        match self {
            Phase::New(request) => Some(request),
            Phase::Refused(refused) => Some(&mut refused.1),
            Phase::Begun(_) | Phase::Spent => None,
        }
    }
}

impl<T> Future for Operation<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Operation { on, state, served, gave_way, conclude } = &mut *self;
        let on = *on;
        if let Phase::Begun(begun) = state {
            let is_left = begun.is_left();
            let polled = self.poll_begun(context);
            if !is_left || polled.is_ready() {
                return polled;
            }
            combine::make(&on);
            return if turn::ends(context) { Poll::Pending } else { self.poll_begun(context) };
        }
        if served.is_some() && turn::gives_way(context, gave_way) {
            return Poll::Pending;
        }
        if let (Some(outcome), Some(request)) = (served.take(), state.request_mut()) {
            let output = conclude(Answer { on, outcome, request });
            *state = Phase::Spent;
            return Poll::Ready(output);
        }
        let now = match state {
            Phase::New(request @ Request::Write(..)) => {
                if combine::may_gain(&on, request) {
                    return self.leave_write(context);
                }
                match on.try_write_now(request) {
                    Ok(outcome) => Some((outcome, request)),
                    Err(mut turn) => {
                        let submit = |request, notify| on.submit(request, notify, turn.as_mut());
                        return self.poll_later(context, submit);
                    }
                }
            }
            // Worked on where it lies: a request is large, and this is the path of cached reads.
            Phase::New(request) => on.try_now(request).map(|outcome| (outcome, request)),
            Phase::Refused(refused) => {
                turn::called(0);
                on.instance.counters.add(Count::FailedAtOnce);
                let (errno, request) = &mut **refused;
                Some((Err(*errno), request))
            }
            Phase::Begun(_) | Phase::Spent => None,
        };
        if let Some((outcome, request)) = now {
            // Tasks that only ever read cached data must let others run now and then.
            if turn::ends(context) {
                *served = Some(outcome);
                return Poll::Pending;
            }
            let output = conclude(Answer { on, outcome, request });
            *state = Phase::Spent;
            return Poll::Ready(output);
        }
        self.poll_later(context, |request, notify| on.submit(request, notify, None))
    }
}

/// Runs `request` on a pool thread, and calls `callback` there once the operation has let go of the
/// file. `follows` an operation whose callback calls this, and returns next.
pub(crate) fn run_in_pool(
    file: Arc<OpenFile>,
    instance: &Arc<Instance>,
    request: Request,
    follows: bool,
    callback: impl FnOnce(Outcome) + Send + 'static,
) {
    let call = Notify::Call(driver::called_back(|outcome, request| {
        drop(request);
        callback(outcome);
    }));
    let slot = Slot::new(request, Owner::File(file), call);
    let pool = &instance.engines().pool;
    local::elsewhere(|| if follows { pool.submit_last(slot) } else { pool.submit(slot) });
}

/// Write that has not begun: an [`Operation`] with options for durability and caching.
#[must_use = "a write does nothing until it is awaited or started, or `wait` is called"]
pub struct Write<'f, T>(Operation<'f, T>);

impl<'f, T> Write<'f, T> {
    pub(crate) fn new(operation: Operation<'f, T>) -> Self {
        Write(operation)
    }

    /// Makes the write durable on completion: its bytes, and the metadata needed to read them back,
    /// are on stable storage (`RWF_DSYNC`, Linux 4.7). Compare
    /// [`File::sync_data`](crate::File::sync_data), which covers the whole file.
    ///
    /// Several durable writes in flight through the page cache, appends excepted, share a sync of
    /// the file (`fdatasync`), unless this `File` has made 1 MiB or more of other writes since the
    /// last sync. The shared sync also writes data that other programs changed. If it fails, the
    /// library repeats each write alone.
    ///
    /// The error may come from an earlier write to this file: the kernel reports a failed
    /// write-back once, to the next sync or durable write. After a failure, earlier writes that
    /// were not synced may be lost. Every later sync of this file then fails with
    /// [`ErrorKind::SyncFailed`](crate::ErrorKind::SyncFailed), until
    /// [`File::acknowledge_sync_failure`](crate::File::acknowledge_sync_failure). This also applies
    /// if a shared sync failed and all its writes were repeated successfully: the failure may
    /// concern other writes.
    pub fn durable(self) -> Self {
        self.with_flags(WriteFlags::DURABLE)
    }

    /// Writes through the page cache; the kernel drops most of the pages once they are on the
    /// device (`RWF_DONTCACHE`, Linux 6.14). Fails with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the kernel or the file system
    /// does not support it.
    pub fn uncached(self) -> Self {
        self.with_flags(WriteFlags::UNCACHED)
    }

    /// Writes all or nothing, even across a power failure (`RWF_ATOMIC`, Linux 6.11). Needs direct
    /// I/O, and a size and offset that `statx(2)` allows. Fails with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) otherwise.
    pub fn atomic(self) -> Self {
        self.with_flags(WriteFlags::ATOMIC)
    }

    fn with_flags(mut self, more: WriteFlags) -> Self {
        if let Some(Request::Write(_, flags)) = self.0.state.request_mut() {
            *flags = flags.with(more);
        }
        self
    }

    /// Blocks until the write has completed; see [`Operation::wait`].
    pub fn wait(self) -> T {
        self.0.wait()
    }

    /// Begins the write; see [`Operation::start`].
    pub fn start(self) -> Started<T> {
        self.0.start()
    }

    /// Begins the write without an attempt on this thread; see [`Operation::submit`].
    pub fn submit(self) -> Started<T> {
        self.0.submit()
    }

    /// Begins the write, and calls `callback` once with the result; see [`Operation::on_complete`].
    pub fn on_complete(self, callback: impl FnOnce(T) + Send + 'static)
    where
        T: 'static,
    {
        self.0.on_complete(callback);
    }
}

impl<'f, T> From<Write<'f, T>> for Operation<'f, T> {
    fn from(write: Write<'f, T>) -> Self {
        write.0
    }
}

impl<T> fmt::Debug for Write<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fields(f, "Write")
    }
}

impl<T> Future for Write<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// Several operations in sequence. `.await` them on any executor, [`wait`](Steps::wait) for the
/// last, or [`start`](Steps::start) them.
///
/// The first poll begins the sequence. If dropped early, the sequence stops after the operation in
/// flight. It borrows nothing.
#[must_use = "nothing happens until it is awaited or started, or `wait` is called"]
pub struct Steps<T>(Pin<Box<dyn Future<Output = T> + Send + Sync>>);

impl<T> Steps<T> {
    pub(crate) fn new(steps: impl Future<Output = T> + Send + Sync + 'static) -> Self {
        Steps(Box::pin(steps))
    }

    /// Runs the operations on this thread, as in [`block_on`](crate::block_on).
    pub fn wait(self) -> T {
        local::drive(self)
    }
}

impl<T: Send + 'static> Steps<T> {
    /// Begins the sequence on the library's thread `nowait-driver`; returns a [`Started`]. This
    /// thread makes no attempt.
    ///
    /// If no thread can be started, this thread runs the sequence before `start` returns.
    pub fn start(self) -> Started<T> {
        Started::driven(self.0)
    }

    /// Begins the sequence as [`Steps::start`], and calls `callback` once with the result, on the
    /// library's thread; see [`Operation::on_complete`] for what it may do.
    pub fn on_complete(self, callback: impl FnOnce(T) + Send + 'static) {
        driver::call_back(self.0, callback);
    }
}

impl<T> fmt::Debug for Steps<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

impl<T> Future for Steps<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().poll(context)
    }
}
