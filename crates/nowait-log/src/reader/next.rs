//! Futures of a reader: for the next record, if it is durable or once it is.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Reader, Record};
use crate::os::polled_too_often;
use crate::ticket::Durable;
use nowait::Result;

/// Future of [`Reader::next`]. Await it on any executor, or [`wait`](Next::wait) for it. If dropped
/// before it is ready, the reader does not advance.
#[must_use = "nothing is read until the future is awaited, or `wait` is called"]
pub struct Next<'r> {
    pub(super) reader: Option<&'r mut Reader>,
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl<'r> Next<'r> {
    /// Reads the record on this thread.
    ///
    /// # Errors
    /// As [`Reader::next`].
    #[inline]
    pub fn wait(mut self) -> Result<Option<Record<'r>>> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        if reader.load()? { reader.take().map(Some) } else { Ok(None) }
    }
}

impl<'r> Future for Next<'r> {
    type Output = Result<Option<Record<'r>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        match reader.poll_load(context) {
            Poll::Ready(Ok(true)) => Poll::Ready(reader.take_in_turn().map(Some)),
            Poll::Ready(Ok(false)) => Poll::Ready(Ok(None)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.reader = Some(reader);
                Poll::Pending
            }
        }
    }
}

/// Future of [`Reader::tail`]. Await it on any executor, or [`wait`](Tail::wait) for it. If dropped
/// before it is ready, the reader does not advance.
#[must_use = "nothing is read until the future is awaited, or `wait` is called"]
pub struct Tail<'r> {
    pub(super) reader: Option<&'r mut Reader>,
    pub(super) durable: Option<Durable>,
}

impl fmt::Debug for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl<'r> Tail<'r> {
    /// Blocks this thread until the record is durable, and reads it.
    ///
    /// # Errors
    /// As [`Reader::tail`].
    pub fn wait(mut self) -> Result<Record<'r>> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        // Also false after skipping records that a salvage left out.
        while !reader.load()? {
            if let Some(durable) = reader.durable()? {
                durable.wait()?;
            }
        }
        reader.take()
    }

    fn poll_record(&mut self, reader: &mut Reader, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(durable) = &mut self.durable {
                ready!(Pin::new(durable).poll(context))?;
                self.durable = None;
            }
            if ready!(reader.poll_load(context))? {
                return Poll::Ready(Ok(()));
            }
            self.durable = reader.durable()?;
        }
    }
}

impl<'r> Future for Tail<'r> {
    type Output = Result<Record<'r>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        match self.poll_record(reader, context) {
            Poll::Ready(Ok(())) => Poll::Ready(reader.take_in_turn()),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.reader = Some(reader);
                Poll::Pending
            }
        }
    }
}
