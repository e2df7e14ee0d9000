//! Many writes as one batch: neighbours are merged, and what is not written inline is submitted
//! together.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::sys::Errno;

use super::{Short, how_much, write_error, written};
use crate::buf::{Erased, Memory, WriteBuffer};
use crate::driver;
use crate::engine::local;
use crate::error::{BufferError, BufferResult, Error};
use crate::file::File;
use crate::op::watcher::{self, Of};
use crate::op::{Batch, Notify, Outcome, Request, Slot, Transfer};
use crate::started::Started;
use crate::stats::Count;
use crate::turn;

/// A merged write is not larger than what one thread writes in one go.
const RUN_BYTES_MAX: usize = 1 << 20;
const RUN_SEGMENTS_MAX: usize = 64;

/// Adjacent writes, made as one.
struct Run {
    /// Place of the first in the caller's list.
    first: usize,
    offset: u64,
    bytes: usize,
    memories: Vec<Memory>,
}

/// Batch of writes; see [`File::write_many`](crate::File::write_many). Await it,
/// [`wait`](WriteMany::wait) for it, or [`start`](WriteMany::start) it. If it is dropped early,
/// writes in flight complete in the background, and the others are not made.
#[must_use = "nothing is written until the future is awaited or started, or `wait` is called"]
pub struct WriteMany<'f, B> {
    file: Cow<'f, File>,
    /// Taken, one after the other, when they are begun.
    runs: Vec<Option<Run>>,
    next: usize,
    slots: Vec<Option<Submitted>>,
    /// Buffers that came back, by run.
    backs: Vec<Option<Vec<Memory>>>,
    outstanding: usize,
    /// One had to be queued, so that none after it may be written before it.
    queues: bool,
    batch: Arc<Batch>,
    finished: Vec<usize>,
    /// The first error, by place in the list.
    error: Option<(usize, Error)>,
    back: fn(Erased) -> B,
}

struct Submitted {
    slot: Arc<Slot>,
    first: usize,
    lengths: Vec<usize>,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Without effect once the result was taken.
        self.slot.abandon();
    }
}

impl<B> fmt::Debug for WriteMany<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteMany")
            .field("path", &self.file.open.path)
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}

impl<B> Unpin for WriteMany<'_, B> {}

impl<'f, B: WriteBuffer> WriteMany<'f, B> {
    pub(super) fn new(file: &'f File, writes: Vec<(u64, B)>) -> WriteMany<'f, B> {
        let mut runs: Vec<Run> = Vec::new();
        let mut next = None;
        for (index, (offset, buffer)) in writes.into_iter().enumerate() {
            let memory = buffer.into_memory().0;
            let length = memory.len();
            let goes_on = next == Some(offset) && file.open.check(offset, length).is_ok();
            match runs.last_mut() {
                Some(run)
                    if goes_on && run.bytes + length <= RUN_BYTES_MAX && run.memories.len() < RUN_SEGMENTS_MAX =>
                {
                    run.bytes += length;
                    run.memories.push(memory);
                }
                _ => runs.push(Run { first: index, offset, bytes: length, memories: vec![memory] }),
            }
            next = offset.checked_add(length as u64);
        }
        WriteMany {
            file: Cow::Borrowed(file),
            next: 0,
            slots: runs.iter().map(|_| None).collect(),
            backs: runs.iter().map(|_| None).collect(),
            runs: runs.into_iter().map(Some).collect(),
            outstanding: 0,
            queues: false,
            batch: Arc::default(),
            finished: Vec::new(),
            error: None,
            back: B::from_memory,
        }
    }

    /// Blocks until all buffers are written.
    ///
    /// # Errors
    /// As [`File::write_many`](crate::File::write_many).
    pub fn wait(mut self) -> BufferResult<Vec<B>> {
        // An attempt is not made either: it may sleep while the file system is frozen.
        self.queues |= local::has_in_flight();
        if self.queues || self.next > 0 || self.file.open.direct.is_some() {
            watcher::ask_of(Of::Reactors);
            return local::drive(self);
        }
        while let Some((number, first, lengths, mut request)) = self.take_next() {
            let checked = self.check(&request);
            let outcome = checked.and_then(|()| self.file.target().run_here(&mut request));
            self.file.instance.counters.add(if outcome.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
            self.settle(number, first, &lengths, outcome, request);
        }
        self.result()
    }

    /// Begins the writes; returns a [`Started`], which borrows nothing and may move to any thread.
    ///
    /// Like a poll, it first tries to write on this thread, for 5 µs at most, and submits the rest.
    /// So the writes precede operations that this thread begins later. They complete also while
    /// this thread blocks. The library's thread `nowait-driver` collects the results; if no thread
    /// can be started, this thread waits for them before `start` returns.
    pub fn start(mut self) -> Started<BufferResult<Vec<B>>> {
        let mut ends = turn::of_call();
        local::elsewhere(|| {
            while self.next < self.runs.len() {
                self.begin_next();
                self.queues |= ends();
            }
        });
        match self.outstanding {
            0 => Started::ended(self.result()),
            _ => Started::driven(self.into_task()),
        }
    }

    /// Submits the writes without an attempt on this thread, and calls `callback` once with the
    /// result, on the library's thread. See [`Operation::on_complete`](crate::Operation::on_complete)
    /// for what it may do.
    pub fn on_complete(mut self, callback: impl FnOnce(BufferResult<Vec<B>>) + Send + 'static) {
        self.queues = true;
        local::elsewhere(|| {
            while self.next < self.runs.len() {
                self.begin_next();
            }
        });
        driver::call_back(self.into_task(), callback);
    }

    /// The future for the driver, which waits for the writes. All of them have begun.
    fn into_task(self) -> impl Future<Output = BufferResult<Vec<B>>> + Send + 'static {
        let WriteMany { file, runs, next, slots, backs, outstanding, queues, batch, finished, error, back } = self;
        // If it was polled: the runtime that should notice completions may not do so.
        watcher::ask_of(Of::Reactors);
        let file = Cow::Owned(file.into_owned());
        let mut many: WriteMany<'static, B> =
            WriteMany { file, runs, next, slots, backs, outstanding, queues, batch, finished, error, back };
        async move {
            let result = (&mut many).await;
            many.file.into_owned().open.let_go();
            result
        }
    }

    /// Begins the next run: writes it here if that should not block, submits it otherwise.
    fn begin_next(&mut self) {
        let Some((number, first, lengths, mut request)) = self.take_next() else { return };
        turn::called(0);
        let file = self.file.clone();
        let now = match self.check(&request) {
            Err(errno) => {
                file.instance.counters.add(Count::FailedAtOnce);
                Ok(Err(errno))
            }
            Ok(()) if self.queues => Err(None),
            Ok(()) => file.target().try_write_now(&mut request),
        };
        match now {
            Ok(outcome) => self.settle(number, first, &lengths, outcome, request),
            Err(mut turn) => {
                let slot = file.target().submit(request, Notify::Batch(self.batch.clone(), number), turn.as_mut());
                self.queues = true;
                self.outstanding += 1;
                self.slots[number] = Some(Submitted { slot, first, lengths });
            }
        }
    }

    fn check(&self, request: &Request) -> std::result::Result<(), Errno> {
        match request {
            Request::Write(transfer, _) => self.file.open.check(transfer.position(), transfer.left()),
            _ => Ok(()),
        }
    }

    /// The next run: its number, the place of its first write, the lengths of its writes, and what
    /// to ask for.
    fn take_next(&mut self) -> Option<(usize, usize, Vec<usize>, Request)> {
        let number = self.next;
        let Run { first, offset, memories, .. } = self.runs.get_mut(number)?.take()?;
        self.next += 1;
        let lengths = memories.iter().map(Memory::len).collect();
        let request = Request::Write(Transfer::new(Memory::Many(memories), offset), self.file.open.write_flags());
        Some((number, first, lengths, request))
    }

    fn settle(&mut self, number: usize, first: usize, lengths: &[usize], outcome: Outcome, mut request: Request) {
        let Request::Write(transfer, flags) = &mut request else { return };
        let ((mut offset, length), done) = (transfer.asked(), transfer.done());
        if let Memory::Many(memories) = transfer.take_memory() {
            self.backs[number] = Some(memories);
        }
        // If a run failed, the error belongs to the first write that is not in the file.
        let errno = outcome.as_ref().err().copied();
        if written(&self.file.open, offset, length, done, *flags, outcome, Short::Error).is_err() {
            let mut left = done;
            // Empty ones are to blame when there is nothing else.
            let last = lengths.len() - 1;
            for (number, length) in lengths.iter().enumerate() {
                if left < *length || number == last {
                    let index = first + number;
                    if self.error.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
                        let error = write_error(&self.file.open, errno, *flags)
                            .with_range(offset, *length as u64)
                            .with_index(index);
                        let there = how_much(&self.file.open, left, *flags, errno);
                        self.error = Some((index, error.written(there)));
                    }
                    return;
                }
                left -= length;
                offset += *length as u64;
            }
        }
    }

    fn result(&mut self) -> BufferResult<Vec<B>> {
        let memories = self.backs.drain(..).flatten().flatten();
        let buffer: Vec<B> = memories.map(|memory| (self.back)(Erased(memory))).collect();
        match self.error.take() {
            None => Ok(buffer),
            Some((_, error)) => Err(BufferError { error, buffer }),
        }
    }
}

impl<B: WriteBuffer> Future for WriteMany<'_, B> {
    type Output = BufferResult<Vec<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        while this.next < this.runs.len() {
            if this.next > 0 && turn::ends(context) {
                return Poll::Pending;
            }
            this.begin_next();
        }
        while this.outstanding > 0 {
            let mut finished = std::mem::take(&mut this.finished);
            let polled = this.batch.poll(context, &mut finished);
            turn::runs(finished.len());
            for number in finished.drain(..) {
                if let Some(submitted) = this.slots[number].take() {
                    if let Some((outcome, request)) = submitted.slot.take() {
                        this.settle(number, submitted.first, &submitted.lengths, outcome, request);
                    }
                    this.outstanding -= 1;
                }
            }
            this.finished = finished;
            ready!(polled);
        }
        Poll::Ready(this.result())
    }
}
