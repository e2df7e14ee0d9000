//! Sequential I/O: [`Reader`] reads ahead and [`Writer`] writes behind. Depth and request size suit
//! the device and do not depend on the sizes of the caller's calls.
//!
//! Both implement the traits of `std::io` for threads: `Read`, `BufRead`, `Seek` and `Write`.
//! Threads and tasks can avoid a copy: [`Reader::chunk`] returns a buffer as it was read, and
//! [`Writer::put`] takes a buffer to write. [`Cursor`] reads and writes at one position.
//! [`AtomicWriter`] replaces a whole file.
//!
//! For tasks, wrap a stream in a view. `TokioIo` implements the traits of tokio, `FuturesIo` those
//! of futures-io, and `Chunks` is a `futures_core::Stream` (features `tokio`, `futures-io`,
//! `stream`). Separate views keep `writer.flush()` unambiguous, whichever traits are in scope.
//!
//! Through the page cache the kernel reads ahead, and a stream only makes larger calls. With direct
//! I/O ([`OpenOptions::direct`](crate::OpenOptions::direct)) only the stream reads ahead.
//!
//! # Memory
//!
//! A [`Reader`] holds one chunk and the read-ahead: up to 512 KiB through the page cache and 2 MiB with
//! direct I/O. [`ahead_bytes_max`](Reader::ahead_bytes_max) limits it. A reader of a range reads ahead
//! as much at once, and not past the range. A reader without an end begins with 64 KiB, which doubles
//! with each chunk. A task does not read ahead while it finds data cached.
//!
//! A [`Writer`] holds the request that it fills and those in flight. Through the page cache
//! requests are 512 KiB, with up to 4 MiB in flight; with direct I/O 1 MiB, with up to 8 MiB.

mod atomic;
mod cursor;
mod reader;
mod views;
mod writer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use atomic::AtomicWriter;
pub use cursor::Cursor;
pub use reader::Reader;
#[cfg(feature = "stream")]
pub use views::Chunks;
#[cfg(feature = "futures-io")]
pub use views::FuturesIo;
#[cfg(feature = "tokio")]
pub use views::TokioIo;
pub use writer::{Put, PutSlice, Writer};

use crate::engine::local;
use crate::file::File;
use crate::op::watcher::{self, Of};

/// Step of a stream: await it, or [`wait`](Step::wait) for it. If dropped before it is ready, the
/// step has no effect or its full effect.
#[must_use = "a step does nothing until it is awaited, or `wait` is called"]
pub struct Step<'s, S, T> {
    stream: &'s mut S,
    poll: fn(&mut S, &mut Context<'_>, Caller) -> Poll<T>,
}

/// A stream over a file.
#[doc(hidden)]
pub trait Stream {
    #[doc(hidden)]
    fn file(&self) -> &File;
}

/// Kind of the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A task, which will poll again.
    Task,
    /// A thread that returns from its call while requests are in flight: they must not be in its
    /// own queue, which only it can reap.
    Thread,
}

impl Caller {
    fn submit<T>(self, submit: impl FnOnce() -> T) -> T {
        match self {
            Caller::Task => submit(),
            Caller::Thread => local::elsewhere(submit),
        }
    }
}

impl<S: fmt::Debug, T> fmt::Debug for Step<'_, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<S: Stream, T> Step<'_, S, T> {
    /// Blocks until the step has completed.
    pub fn wait(self) -> T {
        let Step { stream, poll } = self;
        wait(stream, poll)
    }
}

fn wait<S: Stream, T>(stream: &mut S, poll: fn(&mut S, &mut Context<'_>, Caller) -> Poll<T>) -> T {
    // A runtime that should notice the completions may be blocked by us.
    watcher::ask_of(Of::Reactors);
    local::drive(std::future::poll_fn(|context| poll(stream, context, Caller::Thread)))
}

impl<S, T> Future for Step<'_, S, T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Step { stream, poll } = &mut *self;
        poll(stream, context, Caller::Task)
    }
}
