//! A submitted operation, until its completion.
//!
//! An operation is a future of the library. Threads that reap completions poll it. Its waker adds
//! it to its queue's list. A cancellation drops the future; the operation then ends when the
//! library releases the lent memory.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use nowait::{BufferError, BufferResult, Lent, Moved, Started, embed};
use nowait_log::Durable;

use super::list::CompletionQueue;
use crate::border::panicked;
use crate::copy::CopyEnd;
use crate::failure::{Failure, Result};

/// Future of the library that an operation waits for.
pub(super) enum Awaited {
    /// A read or a write.
    Transfer(Started<Moved<Lent>>),
    /// A read or a write of several pieces of memory.
    Vectored(Started<Moved<Vec<Lent>>>),
    Append(Started<BufferResult<Lent>>),
    /// A sync, or another change of a file without data.
    Change(Started<nowait::Result<()>>),
    /// A record of a log.
    Record(Durable),
    /// Several operations, which the library's driver runs.
    Driven(Started<Result<u64>>),
    Copy(CopyEnd),
}

impl Awaited {
    /// Lets the library's driver run a future of several operations, so that their progress does
    /// not depend on the reaping thread.
    pub(super) fn driven(future: impl Future<Output = Result<u64>> + Send + 'static) -> Result<Awaited> {
        embed::start(future).map(Awaited::Driven).map_err(|error| {
            let text = format!("submit: no thread can be started: {error}; raise the limit (ulimit -u)");
            Failure::new(error.raw_os_error().unwrap_or(libc::EAGAIN), text)
        })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
        match self {
            Awaited::Transfer(started) => Pin::new(started).poll(context).map(|moved| match moved {
                Ok((bytes, _memory)) => Ok(bytes as u64),
                Err(BufferError { error, buffer: _memory, .. }) => Err(error.into()),
            }),
            Awaited::Vectored(started) => Pin::new(started).poll(context).map(|moved| match moved {
                Ok((bytes, _memory)) => Ok(bytes as u64),
                Err(BufferError { error, buffer: _memory, .. }) => Err(error.into()),
            }),
            Awaited::Append(started) => Pin::new(started).poll(context).map(|taken| match taken {
                Ok(memory) => Ok(memory.len() as u64),
                Err(BufferError { error, buffer: _memory, .. }) => Err(error.into()),
            }),
            Awaited::Change(started) => Pin::new(started).poll(context).map(|result| Ok(result.map(|()| 0)?)),
            Awaited::Record(durable) => Pin::new(durable).poll(context).map(|result| Ok(result?)),
            // A panic of the future becomes the result of this operation only.
            Awaited::Driven(started) => catch_unwind(AssertUnwindSafe(|| Pin::new(started).poll(context)))
                .unwrap_or_else(|panic| Poll::Ready(Err(panicked(panic)))),
            Awaited::Copy(end) => Pin::new(end).poll(context).map(|result| result.map(|()| 0)),
        }
    }
}

enum Phase {
    New,
    UnderWay(Awaited),
    Ended(Result<u64>),
    /// The operation was cancelled.
    Cancelled,
    Taken,
}

/// A submitted operation.
pub(super) struct QueuedOperation {
    pub(super) queue: Arc<CompletionQueue>,
    /// Slot in the queue, and the slot's generation.
    pub(super) number: u64,
    /// The caller's pointer.
    pub(super) user: usize,
    /// Locked while the work is polled; a poll does not wait.
    state: Mutex<Phase>,
    is_cancelled: AtomicBool,
    /// True if the operation holds no memory of the caller.
    is_returned: AtomicBool,
    /// True if the operation is on the queue's list.
    pub(super) is_listed: AtomicBool,
}

impl QueuedOperation {
    pub(super) fn new(queue: &Arc<CompletionQueue>, number: u64, user: usize) -> Arc<QueuedOperation> {
        Arc::new(QueuedOperation {
            queue: queue.clone(),
            number,
            user,
            state: Mutex::new(Phase::New),
            is_cancelled: AtomicBool::new(false),
            is_returned: AtomicBool::new(true),
            is_listed: AtomicBool::new(false),
        })
    }

    /// Returns a token for memory that is lent for the operation.
    pub(super) fn loan(self: &Arc<Self>) -> LoanToken {
        self.is_returned.store(false, SeqCst);
        LoanToken(self.clone())
    }

    /// Begins to wait for `work`.
    pub(super) fn begin(self: &Arc<Self>, work: Awaited) {
        let mut state = self.state();
        *state = Phase::UnderWay(work);
        let has_ended = self.advance(&mut state);
        drop(state);
        if has_ended {
            CompletionQueue::add(self.clone());
        }
    }

    /// Returns the result if the operation has ended.
    pub(super) fn take(self: &Arc<Self>) -> Option<Result<u64>> {
        let mut state = self.state();
        self.advance(&mut state);
        match std::mem::replace(&mut *state, Phase::Taken) {
            Phase::Ended(result) => Some(result),
            Phase::Cancelled if self.is_returned.load(SeqCst) => {
                let text =
                    "the operation was cancelled; a write, sync or other change may or may not have taken effect";
                Some(Err(Failure::new(libc::ECANCELED, text)))
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Polls the work, which stores its waker or its result. Returns true if it has ended.
    fn advance(self: &Arc<Self>, state: &mut Phase) -> bool {
        let Phase::UnderWay(work) = state else { return false };
        let waker = Waker::from(self.clone());
        let Poll::Ready(result) = work.poll(&mut Context::from_waker(&waker)) else { return false };
        *state = Phase::Ended(result);
        true
    }

    /// Cancels the operation, unless it has ended. In both cases a completion follows.
    pub(super) fn cancel(self: &Arc<Self>) {
        let mut state = self.state();
        // A completed operation keeps its result.
        if self.advance(&mut state) || !matches!(*state, Phase::UnderWay(_)) {
            drop(state);
            return CompletionQueue::add(self.clone());
        }
        let work = std::mem::replace(&mut *state, Phase::Cancelled);
        self.is_cancelled.store(true, SeqCst);
        drop(state);
        drop(work);
        if self.is_returned.load(SeqCst) {
            CompletionQueue::add(self.clone());
        }
    }

    fn state(&self) -> MutexGuard<'_, Phase> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Wake for QueuedOperation {
    fn wake(self: Arc<Self>) {
        CompletionQueue::add(self);
    }
}

/// Token of memory that is lent for an operation; dropped when the library releases the memory.
pub(super) struct LoanToken(Arc<QueuedOperation>);

impl Drop for LoanToken {
    fn drop(&mut self) {
        self.0.is_returned.store(true, SeqCst);
        if self.0.is_cancelled.load(SeqCst) {
            CompletionQueue::add(self.0.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_several_steps_is_the_result_of_that_operation() {
        let queue = CompletionQueue::new().unwrap();
        let operation = QueuedOperation::new(&queue, 1, 0);
        operation.begin(Awaited::driven(async { panic!("on purpose") }).unwrap());
        let result = loop {
            match operation.take() {
                Some(result) => break result,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(result.unwrap_err().errno, libc::ENOTRECOVERABLE);
        assert!(operation.take().is_none());
    }
}
