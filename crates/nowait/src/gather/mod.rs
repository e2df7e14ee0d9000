//! Gather: many ranges of one file in one call, into one buffer.
//!
//! Ranges land one after the other in the caller's order: range `i` begins at the sum of the
//! lengths before it. There are two passes. The first walks the ranges in the caller's order and
//! copies cached ranges inline; a pool thread copies part of a large gather. The second sorts the
//! rest by offset, merges neighbours, and keeps a bounded number of reads in flight to the end: by
//! advice and plain calls if the caller blocks, by queued reads otherwise.

mod ahead;
mod cached;
mod queued;
mod ranges;
mod results;
mod shares;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use crate::sys::Errno;

use self::cached::FirstPass;
use self::queued::Slow;
pub use self::ranges::Ranges;
pub use self::results::{Exceptions, Gathered};
use self::shares::Shares;
use crate::buf::{Buf, Erased, Part, ReadBuffer};
use crate::driver;
use crate::engine::local;
use crate::error::{BufferError, Error, ErrorKind, ErrorOp, Result};
use crate::file::File;
use crate::op::watcher::{self, Of};
use crate::operation::Steps;
use crate::started::Started;
use crate::stats::Count;
use crate::turn;

/// Most bytes of one request. Larger ranges are split and read concurrently. (A
/// merged read of 6 MB hung a process on Linux 5.15: DataDog/glommio#633.)
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The same of a future, which copies them before it lets others run.
const TURN_BYTES_MAX: usize = 128 << 10;
/// Bytes of reads that a future submits in one poll: those that are cached after all are copied
/// then.
const SUBMITTED_BYTES_MAX: usize = 1 << 20;
const POLLED_TOO_OFTEN: &str = "a future was polled after it was ready, or after a panic in it";
/// A range of a file: offset and length in bytes.
type Extent = (u64, usize);

#[derive(Clone, Copy, Debug)]
struct Options {
    gap: u64,
    amplification: f64,
    depth: usize,
}

impl Options {
    /// True if one read of `total` bytes is better than several of the `wanted` bytes in it.
    fn worth_it(&self, wanted: usize, total: usize) -> bool {
        total as f64 <= wanted as f64 * self.amplification
    }
}

impl Default for Options {
    fn default() -> Self {
        Options { gap: 0, amplification: 2.0, depth: 128 }
    }
}

/// Read of many ranges in one call; see [`File::gather`]. `.await` it on any executor,
/// [`wait`](Gather::wait) for it, or [`start`](Gather::start) it.
///
/// It may be dropped at any time; reads in flight then complete in the background.
#[must_use = "a gather does nothing until it is awaited or started, or `wait` is called"]
pub struct Gather<'f, B: ReadBuffer = Buf> {
    file: Cow<'f, File>,
    ranges: Cow<'f, [Extent]>,
    options: Options,
    buffer: Option<B>,
    /// Makes a buffer where none was given.
    make: fn(usize) -> Option<B>,
    work: Option<GatherWork>,
    /// Completed, or being polled: after a panic it cannot continue.
    ready: bool,
}

impl<B: ReadBuffer> Unpin for Gather<'_, B> {}

impl File {
    /// Reads all of `ranges` into one pooled buffer; [`Ranges`] lists the accepted types.
    ///
    /// Ranges may be unsorted, overlap, repeat, be empty, or lie past the end of the file. The
    /// result of a range is short if the file ends inside it, and empty if it ends before. An error
    /// of one range does not affect the others.
    ///
    /// Two threads copy a gather of 384 KiB or more if many earlier reads of the file were cached:
    /// this thread and a pool thread. The pool's part counts as one operation in
    /// [`Stats::pool`](crate::Stats::pool). On a worker of tokio, 128 KiB suffice while another
    /// worker is idle. [`Gather::each`] and [`Gather::start`] copy on one thread.
    pub fn gather<'f>(&'f self, ranges: impl Ranges<'f>) -> Gather<'f> {
        Gather {
            file: Cow::Borrowed(self),
            ranges: ranges.into_extents(),
            options: Options::default(),
            buffer: None,
            make: Buf::uncleared,
            work: None,
            ready: false,
        }
    }

    /// Reads all of `ranges` like [`File::gather`], but fails as a whole. An error in any range, or
    /// the end of the file inside one, fails the whole call.
    ///
    /// # Errors
    /// The error of the first failed range in the list, with its
    /// [`range_index`](Error::range_index); [`ErrorKind::UnexpectedEof`] for a range that the end
    /// of the file cuts short; otherwise as [`File::gather_into`].
    pub fn gather_exact<'f>(&'f self, ranges: impl Ranges<'f>) -> Steps<Result<Gathered>> {
        let (file, ranges) = (self.clone(), ranges.into_extents().into_owned());
        Steps::new(async move {
            let gathered = file.gather(&ranges).await?;
            let short = gathered.exceptions.short.first();
            match gathered.errors().first() {
                Some(error) if short.is_none_or(|short| error.range_index() < Some(short.0)) => Err(error.clone()),
                _ => match short {
                    Some(&(index, n)) => {
                        let (offset, length) = ranges[index];
                        let error = Error::new(ErrorOp::Gather, ErrorKind::UnexpectedEof).at_shared(&file.open.path);
                        let error = error.with_range(offset, length as u64).with_index(index);
                        Err(error.with_detail(format!("only {n} bytes are available")))
                    }
                    None => Ok(gathered),
                },
            }
        })
    }

    /// Blocks until all of `ranges` are read, one after the other, into the start of `output`.
    /// Returns the incomplete ranges. A cached range costs one `pread`, without an allocation.
    ///
    /// Bytes of `output` that were not read, past the end of the file or after an error, are zero
    /// afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::BufferTooSmall`] if `output` is shorter than the sum of the lengths,
    /// [`ErrorKind::Closed`] after `close`. Errors of single ranges are in the result.
    pub fn gather_into(&self, ranges: &[Extent], output: &mut [u8]) -> Result<Exceptions> {
        let file = self;
        let total = total(file, ranges, output.len())?;
        let output = &mut output[..total];
        // A single range that must be waited for in any case is not asked for twice. Its error
        // shows below.
        if let [(offset, length)] = *ranges {
            let plain = file.reads_ahead() && file.open.check(offset, length).is_ok();
            if plain && file.target().read_blocking(output, offset) == Ok(length) {
                file.instance.counters.add(Count::Blocking);
                return Ok(Exceptions::default());
            }
        }
        let mut found = Found::default();
        let is_shared = shares::may_divide(file, total)
            && Part::lend(output, |mut output| match Shares::divide(file, ranges, &mut output) {
                Some(shares) => {
                    shares.copy_all(&mut output, &mut found);
                    true
                }
                None => false,
            });
        if !is_shared {
            cached::serve_blocking(file, ranges, output, &mut found);
        }
        if found.misses.is_empty() {
            return Ok(found.exceptions);
        }
        if file.reads_ahead() {
            return Ok(ahead::read(file, ranges, output, found, Options::default()));
        }
        Ok(Part::lend(output, |part| {
            let mut slow = Slow::new(file, ranges, part, found, Options::default());
            local::drive(std::future::poll_fn(|context| slow.poll(file, context, usize::MAX, &mut Ignore)));
            slow.finish().1
        }))
    }
}

impl<'f, B: ReadBuffer> Gather<'f, B> {
    /// Merges ranges that are at most `bytes` apart. The bytes between them are read and discarded.
    /// Default: 0, which merges only ranges that touch or overlap. On fast devices a larger gap
    /// rarely pays.
    pub fn gap_bytes(mut self, bytes: u64) -> Self {
        self.options.gap = bytes;
        self
    }

    /// Limits the size of a merged read to this multiple of its requested bytes. Default: 2.
    pub fn amplification(mut self, times: f64) -> Self {
        self.options.amplification = times.max(1.0);
        self
    }

    /// Limits the number of reads in flight; at least 1. Default: 128.
    pub fn depth(mut self, depth: usize) -> Self {
        self.options.depth = depth.max(1);
        self
    }

    /// Reads into `buffer` instead of a pooled buffer. Its length must be at least the sum of the
    /// ranges' lengths.
    pub fn into_buffer<C: ReadBuffer>(self, buffer: C) -> Gather<'f, C> {
        let Gather { file, ranges, options, .. } = self;
        Gather { file, ranges, options, buffer: Some(buffer), make: |_| None, work: None, ready: false }
    }

    /// Calls `take` for each range as it completes, in any order, with the range's index and its
    /// bytes or error.
    pub fn each<F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin>(self, take: F) -> GatherEach<'f, F, B> {
        GatherEach { gather: self, take }
    }

    /// Blocks until all ranges are read; needs no executor.
    ///
    /// # Errors
    /// As [`File::gather_into`], with the buffer; errors of single ranges are in the result.
    pub fn wait(mut self) -> std::result::Result<Gathered<B>, BufferError<B>> {
        // A gather that was polled before continues as it began.
        let fresh = self.work.is_none() && !self.ready;
        if fresh {
            self.begin()?;
        }
        if let Some(work) = self.work.as_mut().filter(|_| fresh) {
            // A buffer of the caller's may be longer.
            let total = self.ranges.iter().map(|range| range.1).sum();
            match Shares::divide(&self.file, &self.ranges, &mut work.output) {
                Some(shares) => shares.copy_all(&mut work.output, &mut work.found),
                None => {
                    cached::serve_blocking(&self.file, &self.ranges, &mut work.output[..total], &mut work.found);
                }
            }
            work.next = self.ranges.len();
            // A blocking wait does not count as inline service.
            turn::begin();
            if self.file.reads_ahead() {
                let found = std::mem::take(&mut work.found);
                work.found.exceptions = ahead::read(&self.file, &self.ranges, &mut work.output, found, self.options);
            }
        }
        local::drive(self)
    }

    /// Begins the gather; returns a [`Started`], which borrows nothing and may move to any thread.
    ///
    /// Like a poll, it first copies cached ranges on this thread, for 5 µs at most. The library's
    /// thread `nowait-driver` does the rest, also while this thread blocks. If no thread can be
    /// started, this thread gathers all ranges before `start` returns.
    ///
    /// ```
    /// # fn main() -> nowait::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table.dat");
    /// # std::fs::write(&path, vec![7; 10_000]).unwrap();
    /// # let file = nowait::File::open(&path).wait()?;
    /// // Two gathers at the same time, without an executor.
    /// let [first, second] = [[(0, 16), (8192, 100)], [(4096, 8), (16, 8)]].map(|ranges| file.gather(ranges).start());
    /// assert_eq!(first.wait()?.into_buffer().len() + second.wait()?.into_buffer().len(), 132);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(mut self) -> Started<std::result::Result<Gathered<B>, BufferError<B>>> {
        match self.attempt(&mut Ignore) {
            Some(result) => Started::ended(result),
            None => Started::driven(self.into_task()),
        }
    }

    /// Begins the gather without an attempt on this thread, and calls `callback` once with the
    /// result, on the library's thread. See [`Operation::on_complete`](crate::Operation::on_complete)
    /// for what it may do.
    pub fn on_complete(self, callback: impl FnOnce(std::result::Result<Gathered<B>, BufferError<B>>) + Send + 'static) {
        driver::call_back(self.into_task(), callback);
    }

    /// The future for the driver, which is polled to its end there.
    fn into_task(self) -> impl Future<Output = std::result::Result<Gathered<B>, BufferError<B>>> + Send + 'static {
        let mut gather = self.into_owned();
        async move {
            let result = (&mut gather).await;
            gather.file.into_owned().open.let_go();
            result
        }
    }

    /// Copies cached ranges for a turn's length. Returns the result if that completes the gather.
    fn attempt(&mut self, take: &mut dyn Take) -> Option<std::result::Result<Gathered<B>, BufferError<B>>> {
        assert!(!self.ready, "{POLLED_TOO_OFTEN}");
        self.ready = true;
        let is_through = match self.first_pass(take, turn::of_call()) {
            Ok(is_through) => is_through,
            Err(error) => return Some(Err(error)),
        };
        self.ready = false;
        match &self.work {
            Some(GatherWork { slow: None, found, .. }) if is_through && found.misses.is_empty() => {
                match self.poll_with(&mut Context::from_waker(Waker::noop()), take) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                }
            }
            _ => None,
        }
    }

    /// The same gather, which owns its handle and its list.
    fn into_owned(self) -> Gather<'static, B> {
        let Gather { file, ranges, options, buffer, make, work, ready } = self;
        if work.as_ref().is_some_and(|work| work.slow.is_some()) {
            // It was polled: the runtime that should notice completions may not do so.
            watcher::ask_of(Of::Reactors);
        }
        let (file, ranges) = (Cow::Owned(file.into_owned()), Cow::Owned(ranges.into_owned()));
        Gather { file, ranges, options, buffer, make, work, ready }
    }

    /// Checks the call, and allocates its memory.
    fn begin(&mut self) -> std::result::Result<&mut GatherWork, BufferError<B>> {
        if self.work.is_none() {
            let buffer = self.buffer.take();
            let room = buffer.as_ref().map_or(usize::MAX, |buffer| buffer.as_ref().len());
            let total = total(&self.file, &self.ranges, room);
            let no_memory = || self.file.open.error(ErrorOp::Gather, Errno::NOMEM);
            let result = match (total, buffer) {
                (Ok(_), Some(buffer)) => Ok(buffer),
                (Ok(total), None) => {
                    (self.make)(total).ok_or((no_memory().with_detail(format!("{total} bytes")), None))
                }
                (Err(error), buffer) => Err((error, buffer)),
            };
            let memory = match result {
                Ok(buffer) => buffer.into_memory().0,
                Err((error, buffer)) => {
                    let Some(buffer) = buffer.or_else(|| (self.make)(0)) else { panic!("{}", no_memory()) };
                    return Err(BufferError { error, buffer });
                }
            };
            self.work = Some(GatherWork {
                output: Part::of(memory),
                next: 0,
                start: 0,
                shares: None,
                found: Found::default(),
                slow: None,
            });
        }
        match &mut self.work {
            Some(work) => Ok(work),
            None => unreachable!("it was made above"),
        }
    }

    /// Copies cached ranges, until `ends`. True once all ranges were looked at.
    fn first_pass(
        &mut self,
        take: &mut dyn Take,
        ends: impl FnMut() -> bool,
    ) -> std::result::Result<bool, BufferError<B>> {
        self.begin()?;
        let Some(work) = &mut self.work else { unreachable!("it was begun above") };
        if work.slow.is_none() && work.shares.is_none() {
            let ranges = &self.ranges[work.next..];
            let mut pass = FirstPass::new(&self.file, &mut work.found, take);
            let (count, bytes) = pass.run(ranges, work.next, &mut work.output[work.start..], work.start, ends);
            work.next += count;
            work.start += bytes;
        }
        Ok(work.next == self.ranges.len())
    }

    /// The first pass of a large gather, by two threads. Ready at once for any other.
    fn share(&mut self, take: &dyn Take, context: &mut Context<'_>) -> std::result::Result<Poll<()>, BufferError<B>> {
        if self.work.is_none() {
            self.begin()?;
            let Some(work) = &mut self.work else { unreachable!("it was begun above") };
            if take.is_for_any_thread() {
                work.shares = Shares::divide(&self.file, &self.ranges, &mut work.output);
            }
        }
        let Some(work) = &mut self.work else { unreachable!("it was begun above") };
        if let Some(shares) = &mut work.shares {
            if !shares.copy(|| turn::ends(context)) {
                return Ok(Poll::Pending);
            }
            let (output, found) = (&mut work.output, &mut work.found);
            if shares.poll(context, output, found).is_pending() {
                return Ok(Poll::Pending);
            }
            work.shares = None;
            work.next = self.ranges.len();
        }
        Ok(Poll::Ready(()))
    }

    fn poll_with(
        &mut self,
        context: &mut Context<'_>,
        take: &mut dyn Take,
    ) -> Poll<std::result::Result<Gathered<B>, BufferError<B>>> {
        assert!(!self.ready, "{POLLED_TOO_OFTEN}");
        self.ready = true;
        let poll = self.advance(context, take);
        self.ready = poll.is_ready();
        poll
    }

    fn advance(
        &mut self,
        context: &mut Context<'_>,
        take: &mut dyn Take,
    ) -> Poll<std::result::Result<Gathered<B>, BufferError<B>>> {
        match self.share(take, context) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        match self.first_pass(take, || turn::ends(context)) {
            Ok(true) => {}
            Ok(false) => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        let Some(work) = &mut self.work else { unreachable!("it was begun above") };
        let (file, ranges) = (&*self.file, &*self.ranges);
        if work.slow.is_none() {
            let output = work.output.split_to(work.output.len());
            let found = std::mem::take(&mut work.found);
            work.slow = Some(Slow::new(file, ranges, output, found, self.options));
        }
        let Some(slow) = &mut work.slow else { unreachable!("it was made above") };
        ready!(slow.poll(file, context, SUBMITTED_BYTES_MAX, take));
        let Some(GatherWork { slow: Some(slow), output, .. }) = self.work.take() else {
            unreachable!("it was polled above")
        };
        drop(output);
        let (rest, exceptions) = slow.finish();
        let Some(memory) = rest.into_memory() else { unreachable!("all parts came back with their reads") };
        let mut end = 0;
        let ends = ranges.iter().map(|range| {
            end += range.1;
            end
        });
        Poll::Ready(Ok(Gathered { ends: ends.collect(), exceptions, buffer: B::from_memory(Erased(memory)) }))
    }
}

impl<B: ReadBuffer> Future for Gather<'_, B> {
    type Output = std::result::Result<Gathered<B>, BufferError<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(context, &mut Ignore)
    }
}

/// Gather that calls a function for each range as it completes; see [`Gather::each`].
#[must_use = "a gather does nothing until it is awaited, or `wait` is called"]
pub struct GatherEach<'f, F, B: ReadBuffer = Buf> {
    gather: Gather<'f, B>,
    take: F,
}

impl<F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin, B: ReadBuffer> GatherEach<'_, F, B> {
    /// Blocks until all ranges are complete; calls the function on this thread.
    ///
    /// # Errors
    /// As [`File::gather_into`]; the function receives errors of single ranges.
    pub fn wait(self) -> Result<()> {
        local::drive(self)
    }
}

impl<F, B: ReadBuffer> GatherEach<'_, F, B>
where
    F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin + Send + 'static,
{
    /// Begins the gather, as [`Gather::start`]. This thread calls the function for ranges that it
    /// copies, the library's thread for the others. There it must not block.
    ///
    /// If the function panics on the library's thread, the gather ends: the [`Started`] then panics
    /// with the same payload in `wait` or in a poll, and a callback is not called.
    pub fn start(mut self) -> Started<Result<()>> {
        match self.gather.attempt(&mut Hand(&mut self.take)) {
            Some(result) => Started::ended(result.map(drop).map_err(Error::from)),
            None => Started::driven(self.into_task()),
        }
    }

    /// Begins the gather without an attempt on this thread, and calls `callback` once with the
    /// result, on the library's thread, which calls the function, too. Neither may block; see
    /// [`Operation::on_complete`](crate::Operation::on_complete).
    pub fn on_complete(self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        driver::call_back(self.into_task(), callback);
    }

    /// The future for the driver.
    fn into_task(self) -> impl Future<Output = Result<()>> + Send + 'static {
        let mut each = GatherEach { gather: self.gather.into_owned(), take: self.take };
        async move {
            let result = (&mut each).await;
            each.gather.file.into_owned().open.let_go();
            result
        }
    }
}

impl<F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin, B: ReadBuffer> Future for GatherEach<'_, F, B> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.gather.poll_with(context, &mut Hand(&mut this.take)).map(|result| Ok(result.map(drop)?))
    }
}

/// Returns the sum of the lengths, or why the call as a whole is refused.
fn total(file: &File, ranges: &[Extent], room: usize) -> Result<usize> {
    file.open.check(0, 0).map_err(|errno| file.open.error(ErrorOp::Gather, errno))?;
    let mut total = 0usize;
    for (index, (offset, length)) in ranges.iter().enumerate() {
        total = match total.checked_add(*length) {
            Some(total) if total <= isize::MAX as usize => total,
            _ => {
                let error = file
                    .open
                    .error(ErrorOp::Gather, Errno::OVERFLOW)
                    .with_index(index)
                    .with_range(*offset, *length as u64);
                return Err(error.with_detail("the sum of the lengths exceeds what memory can hold"));
            }
        };
    }
    if total > room {
        let error = Error::new(ErrorOp::Gather, ErrorKind::BufferTooSmall).at_shared(&file.open.path);
        return Err(error.with_detail(format!("it has {room} bytes, and the ranges need {total}")));
    }
    Ok(total)
}

/// Receives each range as it completes.
trait Take {
    fn take(&mut self, index: usize, result: std::result::Result<&[u8], &Error>);
    /// Whether another thread may copy ranges, because no code of the caller receives them.
    fn is_for_any_thread(&self) -> bool {
        false
    }
}

struct Ignore;

impl Take for Ignore {
    fn take(&mut self, _: usize, _: std::result::Result<&[u8], &Error>) {}
    fn is_for_any_thread(&self) -> bool {
        true
    }
}

struct Hand<'a, F>(&'a mut F);

impl<F: FnMut(usize, std::result::Result<&[u8], &Error>)> Take for Hand<'_, F> {
    fn take(&mut self, index: usize, result: std::result::Result<&[u8], &Error>) {
        (self.0)(index, result)
    }
}

/// A gather under way.
struct GatherWork {
    /// Present in the first pass, absent in the second.
    output: Part,
    /// The first pass continues with this range, which begins at `start`.
    next: usize,
    start: usize,
    /// The rest of the first pass, where two threads make it.
    shares: Option<Shares>,
    found: Found,
    slow: Option<Slow>,
}

/// A range, or the rest of one, that the first pass did not find cached.
struct Miss {
    index: usize,
    /// Where the range begins in the output, and how many of its bytes are there.
    start: usize,
    done: usize,
}

/// The result of the first pass.
#[derive(Default)]
struct Found {
    misses: Vec<Miss>,
    exceptions: Exceptions,
}

impl Found {
    /// Adds what was found in later ranges.
    fn absorb(&mut self, later: Found) {
        self.misses.extend(later.misses);
        self.exceptions.short.extend(later.exceptions.short);
        self.exceptions.errors.extend(later.exceptions.errors);
    }

    fn short(&mut self, index: usize, n: usize) {
        self.exceptions.short.push((index, n));
    }
}

impl<B: ReadBuffer> fmt::Debug for Gather<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("path", &self.file.open.path)
            .field("ranges", &self.ranges.len())
            .finish_non_exhaustive()
    }
}

impl<F, B: ReadBuffer> fmt::Debug for GatherEach<'_, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherEach").field("gather", &self.gather).finish_non_exhaustive()
    }
}
