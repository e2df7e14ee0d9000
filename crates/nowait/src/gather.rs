//! Gather: many ranges of one file in one call, into one buffer.
//!
//! Ranges land one after the other in the caller's order: range `i` begins at the sum of the lengths before it. The work
//! has two passes. The first walks the ranges in the caller's order and serves what is cached on the spot, with no queue.
//! The second takes what is left, sorts it by place in the file, merges neighbours into one scattered read each, and
//! keeps a bounded number of reads in flight until the end. A merged read that fails is split again, so that an error belongs
//! to the ranges that it hits and to no other.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::io::Errno;

use crate::buf::{Buf, Erased, Memory, Part, ReadBuffer};
use crate::engine::{owned, read_blocking, read_now};
use crate::error::{BufferError, Error, ErrorKind, Operation as Name, Result};
use crate::file::{File, Inner};
use crate::op::{Batch, Notify, Outcome, Request, Slot, Transfer};
use crate::select::Choice;
use crate::stats::Count;
use crate::sys::{SEGMENTS_MAX, Wait};

/// The most bytes that one request asks for. Larger ranges are split, and run side by side. (A merged read of 6 MB hung
/// a process on Linux 5.15: DataDog/glommio#633.)
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// What a future does in one poll before it lets others run.
const POLL_BYTES_MAX: usize = 1 << 20;
/// A blocking gather of cached data uses more threads from this size on: below it, starting them costs more than they save.
const PARALLEL_BYTES_MIN: usize = 8 << 20;
/// Ranges that must be found cached before more threads are started for the rest.
const PARALLEL_EVIDENCE: usize = 64;
/// Threads at most, the caller's included. More do not copy faster: memory is the limit.
const PARALLEL_THREADS_MAX: usize = 8;

/// A range of a file: offset and length in bytes.
type Extent = (u64, usize);

#[derive(Clone, Copy, Debug)]
struct Options {
    gap: u64,
    amplification: f64,
    depth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { gap: 0, amplification: 2.0, depth: 128 }
    }
}

/// Reads many ranges in one call: `.await` it on any executor, or [`wait`](Gather::wait) for it. Made by [`File::gather`].
///
/// Dropping it half-way is safe.
#[must_use = "a gather does nothing until it is awaited or waited for"]
pub struct Gather<'f, B: ReadBuffer = Buf> {
    file: &'f Inner,
    ranges: Cow<'f, [Extent]>,
    options: Options,
    buffer: Option<B>,
    /// Makes a buffer where none was given.
    make: fn(usize) -> Option<B>,
    work: Option<Work>,
    ready: bool,
}

impl<B: ReadBuffer> Unpin for Gather<'_, B> {}

impl File {
    /// Reads all of `ranges`, each an offset and a length in bytes, into one buffer of the library's.
    ///
    /// They may be unsorted, overlap, repeat, be empty, or lie past the end of the file: a range comes back short when the
    /// file ends inside it, and empty when it ends before. An error of one range leaves the others alone.
    pub fn gather<'f>(&'f self, ranges: impl Into<Cow<'f, [Extent]>>) -> Gather<'f> {
        Gather {
            file: &self.0,
            ranges: ranges.into(),
            options: Options::default(),
            buffer: None,
            make: Buf::uncleared,
            work: None,
            ready: false,
        }
    }

    /// Blocks until all of `ranges` are read into the first bytes of `output`, and tells what did not come in full. Ranges
    /// that are cached cost what `pread` costs; nothing is allocated for them.
    ///
    /// Bytes of `output` that no byte of the file belongs to (past the end, or after an error) are zero afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::BufferTooSmall`] when `output` is shorter than the sum of the lengths, [`ErrorKind::Closed`] after
    /// `close`. Errors of single ranges are in the answer.
    pub fn gather_into(&self, ranges: &[Extent], output: &mut [u8]) -> Result<Exceptions> {
        let file = &*self.0;
        let total = total(file, ranges, output.len())?;
        let output = &mut output[..total];
        let mut found = Found::default();
        serve_cached_blocking(file, ranges, output, &mut found);
        match &found.misses[..] {
            [] => return Ok(found.exceptions),
            // Nothing to do meanwhile: the plain call is the cheapest way to wait.
            [_] if file.instance.policy.forced.is_none() => return Ok(read_last(file, ranges, output, found)),
            _ => {}
        }
        Ok(Part::lend(output, |part| {
            let mut slow = Slow::new(ranges, part, found, Options::default());
            owned::drive(std::future::poll_fn(|context| slow.poll(file, context, usize::MAX, &mut Ignore)));
            slow.finish().1
        }))
    }
}

impl<'f, B: ReadBuffer> Gather<'f, B> {
    /// Ranges that are at most this many bytes apart are read together, the bytes between them included and thrown away.
    /// Default: 0, only what touches or overlaps. On fast devices more rarely pays.
    pub fn gap(mut self, bytes: u64) -> Self {
        self.options.gap = bytes;
        self
    }

    /// A merged read may be at most this many times as long as what is wanted of it. Default: 2.
    pub fn amplification(mut self, times: f64) -> Self {
        self.options.amplification = times.max(1.0);
        self
    }

    /// Reads in flight at most, at least one. Default: 128.
    pub fn depth(mut self, depth: usize) -> Self {
        self.options.depth = depth.max(1);
        self
    }

    /// Reads into `buffer[..]` rather than into one of the library's. It must hold the sum of the lengths.
    pub fn into_buffer<C: ReadBuffer>(self, buffer: C) -> Gather<'f, C> {
        let Gather { file, ranges, options, .. } = self;
        Gather { file, ranges, options, buffer: Some(buffer), make: |_| None, work: None, ready: false }
    }

    /// Hands over each range as it completes, in whatever order that is: its place in the list, and its bytes or its error.
    pub fn each<F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin>(self, take: F) -> GatherEach<'f, F, B> {
        GatherEach { gather: self, take }
    }

    /// Blocks until all ranges are read, needing no executor.
    ///
    /// # Errors
    /// As [`File::gather_into`], with the buffer; errors of single ranges are in the answer.
    pub fn wait(mut self) -> std::result::Result<Gathered<B>, BufferError<B>> {
        self.start()?;
        if let Some(work) = &mut self.work {
            serve_cached_blocking(self.file, &self.ranges, &mut work.output, &mut work.found);
            work.next = self.ranges.len();
        }
        owned::drive(self)
    }

    /// Checks what was asked, and takes the memory for it.
    fn start(&mut self) -> std::result::Result<&mut Work, BufferError<B>> {
        if self.work.is_none() {
            let buffer = self.buffer.take();
            let room = buffer.as_ref().map_or(usize::MAX, |buffer| buffer.as_ref().len());
            let total = total(self.file, &self.ranges, room);
            let no_memory = || self.file.error(Name::Gather, Errno::NOMEM);
            let result = match (total, buffer) {
                (Ok(_), Some(buffer)) => Ok(buffer),
                (Ok(total), None) => (self.make)(total).ok_or((no_memory().detail(format!("{total} bytes")), None)),
                (Err(error), buffer) => Err((error, buffer)),
            };
            let memory = match result {
                Ok(buffer) => buffer.into_memory().0,
                Err((error, buffer)) => {
                    let Some(buffer) = buffer.or_else(|| (self.make)(0)) else { panic!("{}", no_memory()) };
                    return Err(BufferError { error, buffer });
                }
            };
            self.work = Some(Work { output: Part::of(memory), next: 0, start: 0, found: Found::default(), slow: None });
        }
        match &mut self.work {
            Some(work) => Ok(work),
            None => unreachable!("it was made above"),
        }
    }

    fn poll_with(
        &mut self,
        context: &mut Context<'_>,
        take: &mut dyn Take,
    ) -> Poll<std::result::Result<Gathered<B>, BufferError<B>>> {
        assert!(!self.ready, "a future was polled after it was ready");
        if let Err(error) = self.start() {
            self.ready = true;
            return Poll::Ready(Err(error));
        }
        let Some(work) = &mut self.work else { unreachable!("it was started above") };
        let (file, ranges) = (self.file, &*self.ranges);
        if work.slow.is_none() {
            let mut pass = FirstPass { file, found: &mut work.found, take };
            let (count, bytes) =
                pass.run(&ranges[work.next..], work.next, &mut work.output[work.start..], work.start, POLL_BYTES_MAX);
            work.next += count;
            work.start += bytes;
            if work.next < ranges.len() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let output = work.output.split_to(work.output.len());
            let found = std::mem::take(&mut work.found);
            work.slow = Some(Slow::new(ranges, output, found, self.options));
        }
        let Some(slow) = &mut work.slow else { unreachable!("it was made above") };
        std::task::ready!(slow.poll(file, context, POLL_BYTES_MAX, take));
        self.ready = true;
        let Some(Work { slow: Some(slow), output, .. }) = self.work.take() else { unreachable!("it was polled above") };
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

/// A gather that hands over each range as it completes; see [`Gather::each`].
#[must_use = "a gather does nothing until it is awaited or waited for"]
pub struct GatherEach<'f, F, B: ReadBuffer = Buf> {
    gather: Gather<'f, B>,
    take: F,
}

impl<F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin, B: ReadBuffer> GatherEach<'_, F, B> {
    /// Blocks until all ranges were handed over, on this thread.
    ///
    /// # Errors
    /// As [`File::gather_into`]; errors of single ranges go to the taker.
    pub fn wait(self) -> Result<()> {
        owned::drive(self)
    }
}

impl<F: FnMut(usize, std::result::Result<&[u8], &Error>) + Unpin, B: ReadBuffer> Future for GatherEach<'_, F, B> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.gather.poll_with(context, &mut Hand(&mut this.take)).map(|result| Ok(result.map(drop)?))
    }
}

/// The ranges of a gather that did not come in full. Usually there are none.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    short: Vec<(usize, usize)>,
    errors: Vec<Error>,
}

impl Exceptions {
    /// In the order of the list, which `length` relies on.
    fn sorted(mut self) -> Self {
        self.short.sort_unstable();
        self.errors.sort_by_key(Error::range_index);
        self
    }

    /// Every range came in full.
    pub fn is_empty(&self) -> bool {
        self.short.is_empty() && self.errors.is_empty()
    }

    /// Ranges that the file's end cut short: place in the list, and bytes that are there. In the order of the list.
    pub fn short(&self) -> &[(usize, usize)] {
        &self.short
    }

    /// Ranges that failed, each error with its [`range_index`](Error::range_index). In the order of the list.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Bytes that are there of range `index`, of which `length` were asked for.
    ///
    /// # Errors
    /// The range's own.
    pub fn length(&self, index: usize, length: usize) -> std::result::Result<usize, &Error> {
        if let Ok(at) = self.errors.binary_search_by_key(&Some(index), Error::range_index) {
            return Err(&self.errors[at]);
        }
        match self.short.binary_search_by_key(&index, |short| short.0) {
            Ok(at) => Ok(self.short[at].1),
            Err(_) => Ok(length),
        }
    }
}

/// What a gather brought: one buffer, cut back into ranges in the caller's order.
#[derive(Debug)]
pub struct Gathered<B = Buf> {
    ends: Vec<usize>,
    exceptions: Exceptions,
    buffer: B,
}

impl<B: AsRef<[u8]>> Gathered<B> {
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// No ranges were asked for.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Where range `index` lies in the buffer, whether it came in full or not.
    ///
    /// # Panics
    /// When there is no such range.
    pub fn span(&self, index: usize) -> Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start..self.ends[index]
    }

    /// The bytes of range `index`; fewer than asked for when the file ends inside it.
    ///
    /// # Errors
    /// The range's own.
    ///
    /// # Panics
    /// When there is no such range.
    pub fn get(&self, index: usize) -> std::result::Result<&[u8], &Error> {
        let span = self.span(index);
        let length = self.exceptions.length(index, span.len())?;
        Ok(&self.buffer.as_ref()[span.start..span.start + length])
    }

    /// All ranges in the caller's order.
    pub fn iter(&self) -> impl Iterator<Item = std::result::Result<&[u8], &Error>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Ranges that failed, in the order of the list.
    pub fn errors(&self) -> &[Error] {
        self.exceptions.errors()
    }

    /// What did not come in full.
    pub fn exceptions(&self) -> &Exceptions {
        &self.exceptions
    }

    /// The buffer with all ranges one after the other; zero where no byte of the file belongs.
    pub fn into_buffer(self) -> B {
        self.buffer
    }
}

/// The sum of the lengths, when everything about the call as a whole is sound.
fn total(file: &Inner, ranges: &[Extent], room: usize) -> Result<usize> {
    file.check(0, 0).map_err(|errno| file.error(Name::Gather, errno))?;
    let mut total = 0usize;
    for (index, (offset, length)) in ranges.iter().enumerate() {
        total = match total.checked_add(*length) {
            Some(total) if total <= isize::MAX as usize => total,
            _ => {
                let error = file.error(Name::Gather, Errno::OVERFLOW).index(index).range(*offset, *length as u64);
                return Err(error.detail("the lengths add up to more than memory can hold"));
            }
        };
    }
    if total > room {
        let error = Error::new(Name::Gather, ErrorKind::BufferTooSmall).at(&file.path);
        return Err(error.detail(format!("{room} bytes for {total}")));
    }
    Ok(total)
}

/// Reads the one range that the first pass left over, by a plain call.
fn read_last(file: &Inner, ranges: &[Extent], output: &mut [u8], mut found: Found) -> Exceptions {
    for Miss { index, start, done } in found.misses.drain(..) {
        let (offset, length) = ranges[index];
        let rest = &mut output[start + done..start + length];
        let result = file.target().read_blocking(rest, offset + done as u64);
        let counted = if result.is_ok() { Count::Blocking } else { Count::FailedAtOnce };
        file.instance.counters.add(counted);
        rest[*result.as_ref().unwrap_or(&0)..].fill(0);
        match result {
            Ok(n) if n == rest.len() => {}
            Ok(n) => found.exceptions.short.push((index, done + n)),
            Err(errno) => {
                let error = file.error(Name::Gather, errno).index(index).range(offset, length as u64);
                output[start..start + length].fill(0);
                found.exceptions.errors.push(error);
            }
        }
    }
    found.exceptions.sorted()
}

/// Who is handed each range as it completes.
trait Take {
    fn take(&mut self, index: usize, result: std::result::Result<&[u8], &Error>);
}

struct Ignore;

impl Take for Ignore {
    fn take(&mut self, _: usize, _: std::result::Result<&[u8], &Error>) {}
}

struct Hand<'a, F>(&'a mut F);

impl<F: FnMut(usize, std::result::Result<&[u8], &Error>)> Take for Hand<'_, F> {
    fn take(&mut self, index: usize, result: std::result::Result<&[u8], &Error>) {
        (self.0)(index, result)
    }
}

/// A gather under way.
struct Work {
    /// All of it in the first pass, nothing in the second.
    output: Part,
    /// The first pass goes on with this range, which begins at `start`.
    next: usize,
    start: usize,
    found: Found,
    slow: Option<Slow>,
}

/// A range, or what is left of one, that the first pass did not find cached.
struct Miss {
    index: usize,
    /// Where the range begins in the output, and how many of its bytes are there.
    start: usize,
    done: usize,
}

/// What the first pass found.
#[derive(Default)]
struct Found {
    misses: Vec<Miss>,
    exceptions: Exceptions,
}

impl Found {
    fn short(&mut self, index: usize, n: usize) {
        self.exceptions.short.push((index, n));
    }

    fn absorb(&mut self, later: Found) {
        self.misses.extend(later.misses);
        self.exceptions.short.extend(later.exceptions.short);
        self.exceptions.errors.extend(later.exceptions.errors);
    }
}

/// The first pass of a caller that blocks.
fn serve_cached_blocking(file: &Inner, ranges: &[Extent], output: &mut [u8], found: &mut Found) {
    let mut pass = FirstPass { file, found, take: &mut Ignore };
    let parallel = output.len() >= PARALLEL_BYTES_MIN && ranges.len() > 2 * PARALLEL_EVIDENCE;
    if !parallel {
        pass.run(ranges, 0, output, 0, usize::MAX);
        return;
    }
    let start: usize = ranges[..PARALLEL_EVIDENCE].iter().map(|range| range.1).sum();
    pass.run(&ranges[..PARALLEL_EVIDENCE], 0, &mut output[..start], 0, usize::MAX);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(PARALLEL_THREADS_MAX);
    if threads == 1 || !found.misses.is_empty() {
        let mut pass = FirstPass { file, found, take: &mut Ignore };
        pass.run(&ranges[PARALLEL_EVIDENCE..], PARALLEL_EVIDENCE, &mut output[start..], start, usize::MAX);
        return;
    }
    let mut shares: Vec<Found> = (0..threads).map(|_| Found::default()).collect();
    std::thread::scope(|scope| {
        let (mut index, mut start, mut output) = (PARALLEL_EVIDENCE, start, &mut output[start..]);
        let mut here = None;
        for (number, found) in shares.iter_mut().enumerate() {
            let count = (ranges.len() - index).div_ceil(threads - number);
            let share = &ranges[index..index + count];
            let (bytes, rest) = output.split_at_mut(share.iter().map(|range| range.1).sum());
            output = rest;
            let (first, begin) = (index, start);
            index += count;
            start += bytes.len();
            let run = move || {
                FirstPass { file, found, take: &mut Ignore }.run(share, first, bytes, begin, usize::MAX);
            };
            // The last share is the caller's. So is one for which no thread can be had.
            if number + 1 == threads {
                here = Some(run);
            } else {
                scope.spawn(run);
            }
        }
        if let Some(mut run) = here {
            run();
        }
    });
    shares.into_iter().for_each(|share| found.absorb(share));
}

/// Serves what is cached, in the caller's order.
struct FirstPass<'a> {
    file: &'a Inner,
    found: &'a mut Found,
    take: &'a mut dyn Take,
}

/// How one attempt at consecutive bytes ended.
enum Now {
    /// So many bytes are there; more may be, but not without waiting.
    Part(usize),
    /// So many bytes are there, and then the file ends.
    Ended(usize),
}

impl FirstPass<'_> {
    /// Walks `ranges`, of which the first is number `first` and begins at `start`, until `limit` bytes were moved; gives
    /// the number of ranges and of output bytes dealt with.
    fn run(
        &mut self,
        ranges: &[Extent],
        first: usize,
        output: &mut [u8],
        start: usize,
        limit: usize,
    ) -> (usize, usize) {
        let (mut next, mut at) = (0, 0);
        while next < ranges.len() && at < limit {
            let (offset, length) = ranges[next];
            // Neighbours in the file that are neighbours in the list are one read.
            let mut count = 1;
            let mut bytes = length;
            while let Some((after, more)) = ranges.get(next + count) {
                let touches = offset.checked_add(bytes as u64) == Some(*after);
                if !touches || bytes + more > REQUEST_BYTES_MAX {
                    break;
                }
                bytes += more;
                count += 1;
            }
            let run = &mut output[at..at + bytes];
            if self.file.check(offset, bytes).is_err() {
                self.refuse(&ranges[next..next + count], first + next, run);
            } else {
                let now = self.read(offset, run);
                self.settle(&ranges[next..next + count], first + next, run, start + at, now);
            }
            next += count;
            at += bytes;
        }
        (next, at)
    }

    /// Reads consecutive bytes as far as that takes no waiting.
    fn read(&mut self, offset: u64, run: &mut [u8]) -> Now {
        let mut done = 0;
        while done < run.len() {
            let length = (run.len() - done).min(REQUEST_BYTES_MAX);
            let chunk = &mut run[done..done + length];
            match self.read_chunk(offset + done as u64, chunk) {
                Now::Part(n) if n == length => done += n,
                Now::Part(n) => return Now::Part(done + n),
                Now::Ended(n) => return Now::Ended(done + n),
            }
        }
        Now::Part(done)
    }

    fn read_chunk(&mut self, offset: u64, chunk: &mut [u8]) -> Now {
        let Inner { instance, reads, open, .. } = self.file;
        let handle = &open.handle;
        let engine = &*instance.engines().pool;
        let (policy, counters) = (&instance.policy, &instance.counters);
        if reads.choose(policy, chunk.len()) == Choice::Attempt {
            match read_now(engine, handle, chunk, offset, Wait::Never) {
                Ok(n) if n == chunk.len() => {
                    reads.attempt_hit();
                    counters.add(Count::InlineAttempt);
                    return Now::Part(n);
                }
                Ok(n) if n > 0 => {
                    reads.attempt_hit();
                    counters.add(Count::ShortAttempts);
                    return Now::Part(n);
                }
                Err(Errno::OPNOTSUPP) => reads.attempt_refused(),
                // No bytes are never the end of the file here, and an error is the slow path's to report.
                _ => {
                    counters.add(Count::Misses);
                    reads.attempt_missed();
                    return Now::Part(0);
                }
            }
        }
        if reads.choose(policy, chunk.len()) == Choice::Budgeted {
            let begun = Instant::now();
            let result = read_blocking(engine, handle, chunk, offset);
            if reads.budgeted(policy, chunk.len(), begun.elapsed().as_nanos() as u64) {
                counters.add(Count::Stalls);
            }
            if let Ok(n) = result {
                counters.add(Count::InlineCall);
                return if n == chunk.len() { Now::Part(n) } else { Now::Ended(n) };
            }
        }
        Now::Part(0)
    }

    /// Tells what one read means for each of its ranges.
    fn settle(&mut self, ranges: &[Extent], first: usize, run: &mut [u8], start: usize, now: Now) {
        let mut at = 0;
        let (Now::Part(there) | Now::Ended(there)) = now;
        for (number, (_, length)) in ranges.iter().enumerate() {
            let index = first + number;
            let done = there.saturating_sub(at).min(*length);
            let bytes = &mut run[at..at + length];
            if done == *length {
                self.take.take(index, Ok(bytes));
            } else if let Now::Ended(_) = now {
                bytes[done..].fill(0);
                self.found.short(index, done);
                self.take.take(index, Ok(&bytes[..done]));
            } else {
                self.found.misses.push(Miss { index, start: start + at, done });
            }
            at += length;
        }
    }

    fn refuse(&mut self, ranges: &[Extent], first: usize, run: &mut [u8]) {
        run.fill(0);
        for (number, (offset, length)) in ranges.iter().enumerate() {
            if *length == 0 && *offset <= i64::MAX as u64 {
                self.take.take(first + number, Ok(&[]));
                continue;
            }
            let error = self.file.error(Name::Gather, Errno::OVERFLOW);
            let error = error.index(first + number).range(*offset, *length as u64);
            self.take.take(first + number, Err(&error));
            self.found.exceptions.errors.push(error);
        }
    }
}

/// The second pass: what has to wait for the device.
struct Slow {
    options: Options,
    /// What is to be read, by place in the file, from the back.
    pieces: Vec<Piece>,
    /// Each range that missed.
    ranges: Vec<Waiting>,
    in_flight: Vec<Option<Flight>>,
    free: Vec<usize>,
    batch: Arc<Batch>,
    finished: Vec<usize>,
    exceptions: Exceptions,
    /// The end of the output, of no bytes: what is left when all parts are back.
    rest: Part,
}

/// A part of a range that is read by one request.
struct Piece {
    offset: u64,
    part: Part,
    /// Number in `Slow::ranges`.
    waiting: usize,
    /// Place in its range.
    at: usize,
    /// To be read by itself: it was in a merged read that failed.
    alone: bool,
}

/// A range of which pieces are outstanding.
struct Waiting {
    index: usize,
    extent: Extent,
    outstanding: usize,
    /// What is back, in order of place in the range when `outstanding` is zero.
    parts: Vec<(usize, Part)>,
    /// Bytes from the start of the range that are there, if the file went on.
    there: usize,
    error: Option<Errno>,
}

/// A request in flight. The parts that are read into travel with the request; `segments` tells what they are.
struct Flight {
    slot: Submitted,
    offset: u64,
    segments: Segments,
}

/// A slot that nobody wants any more once this is dropped: the gather was dropped half-way.
struct Submitted(Arc<Slot>);

impl Drop for Submitted {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

enum Segments {
    /// One piece, which is the usual case.
    One { waiting: usize, at: usize },
    /// Several, in order of place in the file: the pieces with a part of their own, the gaps between them, and those that lie
    /// in what others read, to be copied from there.
    Merged { read: Vec<Segment>, copied: Vec<Piece> },
}

struct Segment {
    offset: u64,
    /// None: a gap.
    owner: Option<(usize, usize)>,
}

impl Slow {
    fn new(extents: &[Extent], mut output: Part, found: Found, options: Options) -> Slow {
        let mut ranges = Vec::with_capacity(found.misses.len());
        let mut pieces = Vec::with_capacity(found.misses.len());
        let mut position = 0;
        for miss in found.misses {
            let extent = extents[miss.index];
            drop(output.split_to(miss.start - position));
            position = miss.start + extent.1;
            let mut part = output.split_to(extent.1);
            let waiting = ranges.len();
            let mut range =
                Waiting { index: miss.index, extent, outstanding: 0, parts: Vec::new(), there: extent.1, error: None };
            if miss.done > 0 {
                range.parts.push((0, part.split_to(miss.done)));
            }
            let mut at = miss.done;
            while !part.is_empty() {
                let part = part.split_to(part.len().min(REQUEST_BYTES_MAX));
                let length = part.len();
                pieces.push(Piece { offset: extent.0 + at as u64, part, waiting, at, alone: false });
                range.outstanding += 1;
                at += length;
            }
            ranges.push(range);
        }
        drop(output.split_to(output.len()));
        // From the back, since they are taken from there.
        if !pieces.is_sorted_by(|a, b| a.offset >= b.offset) {
            pieces.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.offset));
        }
        let depth = options.depth.min(pieces.len());
        Slow {
            options,
            pieces,
            ranges,
            in_flight: (0..depth).map(|_| None).collect(),
            free: (0..depth).collect(),
            batch: Arc::default(),
            finished: Vec::new(),
            exceptions: found.exceptions,
            rest: output,
        }
    }

    /// Keeps as many reads in flight as may be. Ready when all ranges are settled.
    fn poll(&mut self, file: &Inner, context: &mut Context<'_>, limit: usize, take: &mut dyn Take) -> Poll<()> {
        let mut moved = 0;
        loop {
            while let Some(place) = self.free.pop() {
                if !self.submit(file, place) {
                    self.free.push(place);
                    break;
                }
            }
            if self.free.len() == self.in_flight.len() {
                return Poll::Ready(());
            }
            if moved >= limit {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut finished = std::mem::take(&mut self.finished);
            std::task::ready!(self.batch.poll(context, &mut finished));
            for place in finished.drain(..) {
                moved += self.complete(file, place, take);
            }
            self.finished = finished;
        }
    }

    fn finish(self) -> (Part, Exceptions) {
        (self.rest, self.exceptions.sorted())
    }

    /// Puts the next request on its way. False when there is none.
    fn submit(&mut self, file: &Inner, place: usize) -> bool {
        let Some(piece) = self.pieces.pop() else { return false };
        let offset = piece.offset;
        let (memory, segments) = match self.follows(&piece) {
            true => self.merge(piece),
            false => {
                let segments = Segments::One { waiting: piece.waiting, at: piece.at };
                (Memory::Part(piece.part), segments)
            }
        };
        let request = Request::Read(Transfer::new(memory, offset));
        let slot = file.target().submit(request, Notify::Batch(self.batch.clone(), place));
        self.in_flight[place] = Some(Flight { slot: Submitted(slot), offset, segments });
        true
    }

    /// The next piece is to be read together with this one.
    fn follows(&self, piece: &Piece) -> bool {
        let end = piece.offset + piece.part.len() as u64;
        self.pieces.last().is_some_and(|next| {
            let gap = next.offset.saturating_sub(end);
            let (wanted, total) =
                (piece.part.len() + next.part.len(), piece.part.len() + next.part.len() + gap as usize);
            !piece.alone && !next.alone && gap <= self.options.gap && self.fits(wanted, total)
        })
    }

    fn fits(&self, wanted: usize, total: usize) -> bool {
        total <= REQUEST_BYTES_MAX && total as f64 <= wanted as f64 * self.options.amplification
    }

    /// Builds one scattered read of `first` and those that follow it closely.
    fn merge(&mut self, first: Piece) -> (Memory, Segments) {
        let begin = first.offset;
        let mut end = begin;
        let mut wanted = 0;
        let (mut memory, mut read, mut copied) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(mut piece) = next.take() {
            let overlap = end.saturating_sub(piece.offset).min(piece.part.len() as u64) as usize;
            if overlap > 0 {
                // Its first bytes are read by others already.
                let whole = overlap == piece.part.len();
                let head = piece.part.split_to(overlap);
                copied.push(Piece {
                    offset: piece.offset,
                    part: head,
                    waiting: piece.waiting,
                    at: piece.at,
                    alone: true,
                });
                if whole {
                    next = self.next_mergeable(end, wanted, begin, memory.len());
                    continue;
                }
                self.ranges[piece.waiting].outstanding += 1;
                piece.offset += overlap as u64;
                piece.at += overlap;
            }
            if piece.offset > end {
                memory.push(Memory::Vec(vec![0; (piece.offset - end) as usize]));
                read.push(Segment { offset: end, owner: None });
            }
            wanted += piece.part.len();
            end = piece.offset + piece.part.len() as u64;
            read.push(Segment { offset: piece.offset, owner: Some((piece.waiting, piece.at)) });
            memory.push(Memory::Part(piece.part));
            next = self.next_mergeable(end, wanted, begin, memory.len());
        }
        (Memory::Many(memory), Segments::Merged { read, copied })
    }

    fn next_mergeable(&mut self, end: u64, wanted: usize, begin: u64, segments: usize) -> Option<Piece> {
        let next = self.pieces.last()?;
        let gap = next.offset.saturating_sub(end);
        let new = (next.offset + next.part.len() as u64).saturating_sub(end.max(next.offset)) as usize;
        let total = (end - begin) as usize + gap as usize + new;
        let merges = !next.alone && gap <= self.options.gap && segments + 2 <= SEGMENTS_MAX;
        if merges && self.fits(wanted + new, total) { self.pieces.pop() } else { None }
    }

    /// Deals with one finished request; gives the number of bytes it moved.
    fn complete(&mut self, file: &Inner, place: usize, take: &mut dyn Take) -> usize {
        let Some(flight) = self.in_flight[place].take() else { return 0 };
        let Some((outcome, request)) = flight.slot.0.take() else { unreachable!("it said that it is finished") };
        self.free.push(place);
        let Some(Request::Read(transfer)) = request else { unreachable!("a gather submits reads") };
        let there = flight.offset + transfer.done() as u64;
        let moved = transfer.done();
        match (flight.segments, transfer.into_memory()) {
            (Segments::One { waiting, at }, Memory::Part(part)) => {
                self.settle(file, waiting, at, flight.offset, part, there, outcome.err(), take);
            }
            (Segments::Merged { read, copied }, Memory::Many(memory)) => {
                self.complete_merged(file, read, copied, memory, there, outcome, take);
            }
            _ => unreachable!("memory comes back as it went"),
        }
        moved
    }

    #[allow(clippy::too_many_arguments)]
    fn complete_merged(
        &mut self,
        file: &Inner,
        read: Vec<Segment>,
        mut copied: Vec<Piece>,
        memory: Vec<Memory>,
        there: u64,
        outcome: Outcome,
        take: &mut dyn Take,
    ) {
        let parts = |memory: Memory| match memory {
            Memory::Part(part) => Some(part),
            _ => None,
        };
        if outcome.is_err() {
            // Whose fault it is shows when each is read by itself.
            let read = read.into_iter().zip(memory).filter_map(|(segment, memory)| {
                let ((waiting, at), part) = (segment.owner?, parts(memory)?);
                Some(Piece { offset: segment.offset, part, waiting, at, alone: true })
            });
            self.pieces.extend(read);
            self.pieces.append(&mut copied);
            return;
        }
        for mut piece in copied {
            copy_from(&read, &memory, piece.offset, &mut piece.part);
            self.settle(file, piece.waiting, piece.at, piece.offset, piece.part, there, None, take);
        }
        for (segment, memory) in read.into_iter().zip(memory) {
            if let (Some((waiting, at)), Some(part)) = (segment.owner, parts(memory)) {
                self.settle(file, waiting, at, segment.offset, part, there, None, take);
            }
        }
    }

    /// A piece is back: the file's bytes are there up to offset `there`. Settles its range when it was the last one.
    #[allow(clippy::too_many_arguments)]
    fn settle(
        &mut self,
        file: &Inner,
        waiting: usize,
        at: usize,
        offset: u64,
        mut part: Part,
        there: u64,
        error: Option<Errno>,
        take: &mut dyn Take,
    ) {
        let range = &mut self.ranges[waiting];
        let valid = if error.is_some() { 0 } else { there.saturating_sub(offset).min(part.len() as u64) as usize };
        if valid < part.len() {
            part[valid..].fill(0);
            range.there = range.there.min(at + valid);
        }
        range.error = range.error.or(error);
        range.outstanding -= 1;
        let whole = if range.outstanding == 0 && range.parts.is_empty() {
            part
        } else {
            range.parts.push((at, part));
            if range.outstanding > 0 {
                return;
            }
            let mut parts = std::mem::take(&mut range.parts);
            parts.sort_unstable_by_key(|(at, _)| *at);
            let mut parts = parts.into_iter().map(|(_, part)| part);
            let Some(mut whole) = parts.next() else { unreachable!("one was pushed above") };
            parts.for_each(|next| whole.join(next));
            whole
        };
        if let Some(errno) = range.error {
            let (offset, length) = range.extent;
            let error = file.error(Name::Gather, errno).index(range.index).range(offset, length as u64);
            take.take(range.index, Err(&error));
            self.exceptions.errors.push(error);
        } else {
            if range.there < range.extent.1 {
                self.exceptions.short.push((range.index, range.there));
            }
            take.take(range.index, Ok(&whole[..range.there]));
        }
    }
}

/// Copies the bytes from `offset` on, which were all asked for by `read`, from where they were read to.
fn copy_from(read: &[Segment], memory: &[Memory], mut offset: u64, to: &mut [u8]) {
    let mut done = 0;
    let mut segment = read.partition_point(|segment| segment.offset <= offset).saturating_sub(1);
    while done < to.len() && segment < read.len() {
        let from: &[u8] = match &memory[segment] {
            Memory::Part(part) => part,
            Memory::Vec(gap) => gap,
            _ => &[],
        };
        let skip = (offset - read[segment].offset) as usize;
        let n = from.len().saturating_sub(skip).min(to.len() - done);
        to[done..done + n].copy_from_slice(&from[skip..skip + n]);
        done += n;
        offset += n as u64;
        segment += 1;
    }
}

impl<B: ReadBuffer + fmt::Debug> fmt::Debug for Gather<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("path", &self.file.path)
            .field("ranges", &self.ranges.len())
            .finish_non_exhaustive()
    }
}
