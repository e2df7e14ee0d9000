//! Bringing a map's pages in, chunk after chunk, each a task for the pool that the end of the one
//! before it submits.
//!
//! One chunk at a time, in order: the kernel's own read-ahead keeps the device busy then, and
//! allocates the pages in large pieces, which was the quickest and the cheapest of all ways that
//! were measured (docs/measurements/2026-11-25-maps). Advice ahead of it, or several at a time,
//! break both; a look at each page by the kernel, for guests whose host took their memory, costs
//! more than it is worth.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::SharedMap;
use crate::buf::mapping::{Fault, How, Missing, page_bytes};
use crate::core::available::available_bytes;
use crate::engine::local;
use crate::error::{Error, ErrorOp, Result};
use crate::file::File;
use crate::op::{Done, Outcome, Owned, Request};
use crate::operation::run_in_pool;
use crate::sync::contained;
use crate::sync::lock;

const CHUNK_BYTES: usize = 2 << 20;
/// Share of the memory that is available at the start.
const MEMORY_SHARE: f64 = 0.8;
/// The survey of what is cached goes so far ahead of the chunks, and so far back: farther than a
/// device reads ahead of a fault, or around it, unless its `read_ahead_kb` is above 32768. So pages
/// that populating itself has caused to be read do not count as cached.
const SURVEYED_AHEAD_BYTES: usize = 64 << 20;
/// Pages that a survey looks at together; a multiple of 64.
const SURVEYED_PAGES: usize = 4096;
/// With a bound on the bandwidth a chunk takes no longer than this part of a second, so that no
/// thread sleeps for longer.
const CHUNKS_PER_SECOND: u64 = 20;

/// Method by which pages are populated.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// One call fills page cache and page table (`MADV_POPULATE_READ`, Linux 5.14). Falls back to
    /// [`Mechanism::Read`] if the kernel does not support the call.
    #[default]
    Auto,
    /// Reads fill the page cache, then `process_vm_writev(2)` fills the page table. If that call is
    /// forbidden, pages are only cached, and the first access is a minor fault.
    Read,
}

/// Options for populating a map. [`start`](Populate::start), `.await` or [`wait`](Populate::wait)
/// begins.
///
/// Default: the whole range in order, in chunks of 2 MiB, up to 80 % of the available memory.
#[must_use = "no page is populated until it is started or awaited, or `wait` is called"]
pub struct Populate<'m> {
    map: &'m Arc<SharedMap>,
    range: Range<usize>,
    first: Vec<Range<usize>>,
    chunk_bytes: usize,
    bytes_per_second: Option<u64>,
    memory_share: f64,
    mechanism: Mechanism,
    on_chunk: Mutex<Option<OnChunk>>,
}

impl fmt::Debug for Populate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Populate")
            .field("path", &self.map.file.path())
            .field("range", &self.range)
            .field("chunk_bytes", &self.chunk_bytes)
            .finish_non_exhaustive()
    }
}

type OnChunk = Box<dyn FnMut(Range<usize>) + Send>;

/// Reason why populating stopped early.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// [`Populating::cancel`] was called.
    Cancelled,
    /// The limit of [`Populate::memory_share_max`] was reached.
    Memory,
    /// The map was dropped.
    MapDropped,
}

/// Result of populating.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Populated {
    /// Bytes of the map that were populated, including those that were cached.
    pub bytes: u64,
    /// Populated bytes that were not in the page cache, sampled some tens of MiB ahead. The kernel
    /// reports cached pages only to the file's owner and to processes that may write to it. For
    /// other processes this equals `bytes`.
    pub read: u64,
    /// Reason why populating stopped early, if it did.
    pub stopped: Option<Stopped>,
}

/// Progress of populating.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes populated.
    pub bytes: u64,
    /// Bytes requested.
    pub of: u64,
}

impl<'m> Populate<'m> {
    pub(super) fn new(map: &'m Arc<SharedMap>, range: Range<usize>) -> Populate<'m> {
        Populate {
            map,
            range,
            first: Vec::new(),
            chunk_bytes: CHUNK_BYTES,
            bytes_per_second: None,
            memory_share: MEMORY_SHARE,
            mechanism: Mechanism::Auto,
            on_chunk: Mutex::default(),
        }
    }

    /// Populates these ranges first, in this order. Parts outside the populated range are ignored.
    pub fn first(mut self, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        self.first.extend(ranges);
        self
    }

    /// Sets the size of a chunk, populated and reported at a time. Rounded up to whole pages.
    /// Default: 2 MiB.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes.max(1);
        self
    }

    /// Limits reads from the device to this many bytes per second, at least 80 KiB. Cached bytes do
    /// not count, unless the kernel does not report them (see [`Populated::read`]). The kernel's
    /// read-ahead past the last chunk, a few MiB, is not limited.
    ///
    /// A pool thread sleeps between the chunks, for up to 50 ms at a time.
    pub fn bytes_per_second_max(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// Stops with [`Stopped::Memory`] before it has read more than this fraction of the memory
    /// available at the start. The available memory is that of the system (`MemAvailable`,
    /// `proc_meminfo(5)`) and of the process's memory cgroups (version 2), without swapping. Page
    /// cache of other files counts as available, so populating may evict it. Cached bytes of the
    /// map do not count as read. Default: 0.8.
    pub fn memory_share_max(mut self, share: f64) -> Self {
        self.memory_share = share.clamp(0.0, 1.0);
        self
    }

    /// Sets the method by which pages are populated.
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.mechanism = mechanism;
        self
    }

    /// Calls `callback` with each populated chunk, as a range of the map's bytes. The callback runs
    /// on a pool thread, before the next chunk begins. The callback must not wait for operations of
    /// its instance, since all other pool threads may be busy. If no thread can be started,
    /// [`start`](Populate::start) calls the callback. A panic in the callback is reported, and does
    /// not stop populating.
    pub fn on_chunk(mut self, callback: impl FnMut(Range<usize>) + Send + 'static) -> Self {
        self.on_chunk = Mutex::new(Some(Box::new(callback)));
        self
    }

    /// Begins populating, which continues in the background even if nothing waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after `File::close`.
    pub fn start(self) -> Result<Populating> {
        let map = self.map;
        map.file.open.check(0, 0).map_err(|errno| map.error(ErrorOp::Populate, errno, &self.range))?;
        let memory = available_bytes().map_or(u64::MAX, |bytes| (bytes as f64 * self.memory_share) as u64);
        let page = page_bytes();
        let paced = self.bytes_per_second.map_or(usize::MAX, |rate| (rate / CHUNKS_PER_SECOND) as usize).max(page);
        let work = Arc::new(PopulateWork {
            map: Arc::downgrade(map),
            how: if self.mechanism == Mechanism::Read { How::Read } else { How::Populate },
            chunk_bytes: self.chunk_bytes.min(paced).div_ceil(page).saturating_mul(page),
            bytes_per_second: self.bytes_per_second.map(|rate| rate.max(CHUNKS_PER_SECOND * page as u64)),
            memory,
            of: self.range.len() as u64,
            bytes: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            on_chunk: self.on_chunk,
            state: Mutex::new(PopulateState {
                plan: plan(&self.range, &self.first, |range| map.pages(range)),
                survey: Survey::new(map.pages(self.range.clone())),
                range: self.range,
                next: 0,
                task: PopulateTask::None,
                ended: None,
                read: 0,
                due: Instant::now(),
                announced: VecDeque::new(),
                end: None,
                waker: None,
                awaits_chunk: false,
                again: false,
            }),
        });
        work.advance(false);
        Ok(Populating { work, detached: false })
    }

    /// Blocks until everything is populated.
    ///
    /// # Errors
    /// As [`Populating`]'s.
    pub fn wait(self) -> Result<Populated> {
        self.start()?.wait()
    }
}

impl IntoFuture for Populate<'_> {
    type Output = Result<Populated>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Populated>> + Send>>;

    /// Begins at once.
    fn into_future(self) -> Self::IntoFuture {
        let started = self.start();
        Box::pin(async { started?.await })
    }
}

/// The pages to bring in, in order and each once: those of `first`, then the rest of `range`.
fn plan(
    range: &Range<usize>,
    first: &[Range<usize>],
    pages: impl Fn(Range<usize>) -> Range<usize>,
) -> Vec<Range<usize>> {
    let whole = pages(range.clone());
    let mut plan: Vec<Range<usize>> = Vec::new();
    // In order, and with room between them.
    let mut taken: Vec<Range<usize>> = Vec::new();
    for wanted in first.iter().chain([range]) {
        let wanted = wanted.start.clamp(range.start, range.end)..wanted.end.clamp(range.start, range.end);
        if wanted.start >= wanted.end {
            continue;
        }
        let wanted = pages(wanted);
        let mut wanted = wanted.start.max(whole.start)..wanted.end.min(whole.end);
        let touched = taken.partition_point(|gone| gone.end < wanted.start)
            ..taken.partition_point(|gone| gone.start <= wanted.end);
        let mut start = wanted.start;
        for gone in &taken[touched.clone()] {
            if start < gone.start {
                plan.push(start..gone.start);
            }
            start = start.max(gone.end);
            wanted = wanted.start.min(gone.start)..wanted.end.max(gone.end);
        }
        if start < wanted.end {
            plan.push(start..wanted.end);
        }
        taken.splice(touched, [wanted]);
    }
    plan
}

/// Populating in progress. Await it, [`wait`](Populating::wait) for it, or take its chunks by
/// [`next_chunk`](Populating::next_chunk).
///
/// Dropping it cancels the remaining chunks; [`detach`](Populating::detach) lets it continue.
///
/// # Errors
/// The future fails with [`UnexpectedEof`](crate::ErrorKind::UnexpectedEof) if the file was
/// truncated, [`Io`](crate::ErrorKind::Io) if the device failed, and
/// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if no memory is available. Chunks that were
/// already reported stay populated.
pub struct Populating {
    work: Arc<PopulateWork>,
    detached: bool,
}

struct PopulateWork {
    map: Weak<SharedMap>,
    how: How,
    chunk_bytes: usize,
    bytes_per_second: Option<u64>,
    /// No more is to be read.
    memory: u64,
    of: u64,
    bytes: AtomicU64,
    cancelled: AtomicBool,
    on_chunk: Mutex<Option<OnChunk>>,
    state: Mutex<PopulateState>,
}

struct PopulateState {
    range: Range<usize>,
    /// Pages of the mapping; those before `next`, and before the start of that one, have been asked
    /// for.
    plan: Vec<Range<usize>>,
    next: usize,
    task: PopulateTask,
    /// The answer of a task that has ended, until it is processed.
    ended: Option<Outcome>,
    survey: Survey,
    read: u64,
    /// With a bound on the bandwidth: when the next chunk may begin.
    due: Instant,
    /// Ranges that have come in and were not taken yet; neighbours merged.
    announced: VecDeque<Range<usize>>,
    end: Option<std::result::Result<Populated, Error>>,
    /// Waker of the task that waits for the next chunk, or for the end.
    waker: Option<Waker>,
    awaits_chunk: bool,
    /// A task ended while this very thread was submitting it, which goes on with it.
    again: bool,
}

/// Task of the pool: one chunk after the other, with a survey of pages before the read-ahead of a
/// chunk can come near them.
enum PopulateTask {
    None,
    Survey(Range<usize>),
    Chunk(Range<usize>),
}

/// Pages that were not cached when populating came near them. Those that read-ahead brings in
/// beside a chunk count, too.
///
/// A look at all pages before the first is brought in would have the device idle meanwhile: 10 ms
/// for each GiB.
struct Survey {
    /// All pages.
    range: Range<usize>,
    missing: Missing,
    /// The blocks of [`SURVEYED_PAGES`] that were looked at.
    seen: Vec<bool>,
}

impl Survey {
    fn new(range: Range<usize>) -> Survey {
        let blocks = range.len().div_ceil(Survey::block_bytes());
        Survey { missing: Missing::none(&range), seen: vec![false; blocks], range }
    }

    fn block_bytes() -> usize {
        SURVEYED_PAGES * page_bytes()
    }

    /// Pages to be looked at, in one piece, before `chunk` may be brought in.
    fn due(&self, chunk: &Range<usize>) -> Option<Range<usize>> {
        let (block, Range { start, end }) = (Survey::block_bytes(), self.range.clone());
        let first = (chunk.start - start).saturating_sub(SURVEYED_AHEAD_BYTES) / block;
        let last = (chunk.end - start).saturating_add(SURVEYED_AHEAD_BYTES).div_ceil(block).min(self.seen.len());
        let unseen = first + self.seen[first..last].iter().position(|seen| !seen)?;
        let run = self.seen[unseen..last].iter().take_while(|seen| !**seen).count();
        Some(start + unseen * block..end.min(start.saturating_add((unseen + run) * block)))
    }

    fn note(&mut self, pages: &Range<usize>, missing: Option<&Missing>) {
        let block = Survey::block_bytes();
        missing.into_iter().for_each(|missing| self.missing.put(missing));
        let blocks = (pages.start - self.range.start) / block..(pages.end - self.range.start).div_ceil(block);
        self.seen[blocks].fill(true);
    }
}

thread_local! {
    /// The work whose task this thread is submitting.
    static SUBMITTING: Cell<*const PopulateWork> = const { Cell::new(std::ptr::null()) };
}

impl PopulateWork {
    /// Processes a task that has ended, and submits the next. Called at the start, and at the end
    /// of each task (which the next one `follows`) by a thread of the pool.
    fn advance(self: &Arc<Self>, follows: bool) {
        if SUBMITTING.get() == Arc::as_ptr(self) {
            // No thread can be started, so that the pool works on this one: not in ever deeper
            // calls.
            lock(&self.state).again = true;
            return;
        }
        loop {
            let mut state = lock(&self.state);
            if state.end.is_some() {
                return;
            }
            let map = self.map.upgrade();
            let chunk = match state.ended.take() {
                Some(ended) => self.collect(&mut state, map.as_deref(), ended),
                None if matches!(state.task, PopulateTask::None) => None,
                // The pool has it still.
                None => return,
            };
            let next = self.next(&mut state, map.as_deref());
            let is_awaited = state.end.is_some() || chunk.is_some() && state.awaits_chunk;
            let waker = if is_awaited { state.waker.take() } else { None };
            // Given up before the end is announced: a waiter may close the file then. The last
            // share unmaps the memory and closes the file: not under the lock.
            let last = map.and_then(Arc::into_inner);
            drop(state);
            drop(last);
            self.tell(chunk, waker);
            let Some((file, request)) = next else { return };
            let outer = SUBMITTING.replace(Arc::as_ptr(self));
            let work = self.clone();
            let File { open, instance } = file;
            run_in_pool(open, &instance, request, follows, move |outcome| {
                lock(&work.state).ended = Some(outcome);
                work.advance(true);
            });
            SUBMITTING.set(outer);
            if !std::mem::take(&mut lock(&self.state).again) {
                return;
            }
        }
    }

    /// With nothing locked but the callback.
    fn tell(&self, chunk: Option<Range<usize>>, waker: Option<Waker>) {
        if let (Some(chunk), Some(callback)) = (chunk, &mut *lock(&self.on_chunk)) {
            contained(|| callback(chunk));
        }
        if let Some(waker) = waker {
            contained(|| waker.wake());
        }
    }

    /// Records the end of a task; returns the bytes of the map that it has brought in.
    fn collect(&self, state: &mut PopulateState, map: Option<&SharedMap>, outcome: Outcome) -> Option<Range<usize>> {
        match (std::mem::replace(&mut state.task, PopulateTask::None), outcome) {
            (PopulateTask::Chunk(pages), outcome) => return self.note(state, map, pages, outcome),
            (PopulateTask::Survey(pages), Ok(Done::Owned(owned))) => {
                if let Owned::Faulted(missing) = *owned {
                    state.survey.note(&pages, missing.as_ref());
                }
            }
            (_, Ok(_)) => {}
            (_, Err(errno)) => {
                let range = state.range.clone();
                state.end = map.map(|map| Err(map.not_populated(errno, &range)));
            }
        }
        None
    }

    /// Records the end of a chunk; returns the bytes of the map that it has brought in.
    fn note(
        &self,
        state: &mut PopulateState,
        map: Option<&SharedMap>,
        pages: Range<usize>,
        outcome: Outcome,
    ) -> Option<Range<usize>> {
        let Some(map) = map else {
            self.end(state, Some(Stopped::MapDropped));
            return None;
        };
        let of_map = |page: usize| page.saturating_sub(map.place.lead).clamp(state.range.start, state.range.end);
        let chunk = of_map(pages.start)..of_map(pages.end);
        if let Err(errno) = outcome {
            state.end = Some(Err(map.not_populated(errno, &chunk)));
            return None;
        }
        self.bytes.fetch_add(chunk.len() as u64, Relaxed);
        match state.announced.back_mut() {
            Some(last) if last.end == chunk.start => last.end = chunk.end,
            _ => state.announced.push_back(chunk.clone()),
        }
        Some(chunk)
    }

    /// Returns the next task for the pool; none at the end.
    fn next(&self, state: &mut PopulateState, map: Option<&SharedMap>) -> Option<(File, Request)> {
        if state.end.is_some() {
            return None;
        }
        let Some(left) = state.plan.get(state.next) else {
            self.end(state, None);
            return None;
        };
        let Some(map) = map else {
            self.end(state, Some(Stopped::MapDropped));
            return None;
        };
        let pages = left.start..left.end.min(left.start.saturating_add(self.chunk_bytes));
        if self.cancelled.load(Relaxed) {
            self.end(state, Some(Stopped::Cancelled));
            return None;
        }
        if let Some(due) = state.survey.due(&pages) {
            state.task = PopulateTask::Survey(due.clone());
            return Some(self.request(map, due, None, true));
        }
        let missing = state.survey.missing.bytes(&pages);
        if missing > 0 && state.read.saturating_add(missing) > self.memory {
            self.end(state, Some(Stopped::Memory));
            return None;
        }
        state.plan[state.next].start = pages.end;
        if pages.end == state.plan[state.next].end {
            state.next += 1;
        }
        state.read += missing;
        let begin = self.bytes_per_second.map(|rate| {
            let begin = state.due.max(Instant::now());
            state.due = begin + Duration::from_secs_f64(missing as f64 / rate as f64);
            begin
        });
        state.task = PopulateTask::Chunk(pages.clone());
        Some(self.request(map, pages, begin, false))
    }

    fn request(&self, map: &SharedMap, pages: Range<usize>, begin: Option<Instant>, survey: bool) -> (File, Request) {
        let (ranges, place, how) = (vec![pages], map.place, self.how);
        let fault = Fault { ranges, place, how, scattered: false, begin, survey, beyond: None };
        (map.file.clone(), Request::Fault { mapping: map.mapping.clone(), fault })
    }

    fn end(&self, state: &mut PopulateState, stopped: Option<Stopped>) {
        state.end = Some(Ok(Populated { bytes: self.bytes.load(Relaxed), read: state.read, stopped }));
    }
}

impl Populating {
    /// Returns the progress.
    pub fn progress(&self) -> Progress {
        Progress { bytes: self.work.bytes.load(Relaxed), of: self.work.of }
    }

    /// Stops after the chunk in flight. The result is then [`Stopped::Cancelled`], unless that
    /// chunk was the last.
    pub fn cancel(&self) {
        self.work.cancelled.store(true, Relaxed);
    }

    /// Lets populating continue unobserved, as long as the map exists.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// Returns the next range of the map's bytes that was populated since the last call, with
    /// neighbours merged. Returns `None` at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Populating`]'s; chunks populated before the error are returned first.
    pub async fn next_chunk(&mut self) -> Result<Option<Range<usize>>> {
        poll_fn(|context| {
            self.poll_state(context, true, |state| match (state.announced.pop_front(), &state.end) {
                (Some(range), _) => Some(Ok(Some(range))),
                (None, Some(end)) => Some(end.clone().map(|_| None)),
                (None, None) => None,
            })
        })
        .await
    }

    /// Blocks this thread until populating has ended.
    ///
    /// # Errors
    /// As [`Populating`]'s.
    pub fn wait(self) -> Result<Populated> {
        local::drive(self)
    }

    fn poll_state<T>(
        &self,
        context: &Context<'_>,
        awaits_chunk: bool,
        look: impl FnOnce(&mut PopulateState) -> Option<T>,
    ) -> Poll<T> {
        // A waker's clone and drop may run anything: not under the lock.
        let waker = context.waker().clone();
        let mut state = lock(&self.work.state);
        if let Some(found) = look(&mut state) {
            return Poll::Ready(found);
        }
        let old = state.waker.replace(waker);
        state.awaits_chunk = awaits_chunk;
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Future for Populating {
    type Output = Result<Populated>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Populated>> {
        self.poll_state(context, false, |state| state.end.clone())
    }
}

impl Drop for Populating {
    fn drop(&mut self) {
        if !self.detached {
            self.cancel();
        }
    }
}

impl std::fmt::Debug for Populating {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Populating").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_sees_each_page_once_and_before_a_chunk_can_read_near_it() {
        let page = page_bytes();
        let range = 3 * page..3 * page + (500 << 20) + page;
        let mut survey = Survey::new(range.clone());
        let mut seen: Vec<Range<usize>> = Vec::new();
        // Out of order, as with pages that come first.
        for at in [0, 2, 300, 302, 120, 480, 499, 500] {
            let chunk = range.start + (at << 20)..(range.start + ((at + 2) << 20)).min(range.end);
            while let Some(due) = survey.due(&chunk) {
                assert!(due.start >= range.start && due.start < due.end && due.end <= range.end, "{due:?}");
                assert!(seen.iter().all(|other| other.end <= due.start || due.end <= other.start), "{due:?} again");
                // Found: the first page of each piece.
                let mut missing = Missing::none(&due);
                missing.mark(due.start / page);
                survey.note(&due, Some(&missing));
                seen.push(due);
            }
            let near = chunk.start.saturating_sub(SURVEYED_AHEAD_BYTES).max(range.start)
                ..(chunk.end + SURVEYED_AHEAD_BYTES).min(range.end);
            let mut known = seen.clone();
            known.sort_by_key(|part| part.start);
            let mut reached = near.start;
            known.iter().filter(|part| part.start <= near.start || part.start < near.end).for_each(|part| {
                if part.start <= reached {
                    reached = reached.max(part.end);
                }
            });
            assert!(reached >= near.end, "{chunk:?}: seen up to {reached} of {near:?}");
        }
        assert_eq!(survey.missing.bytes(&range), (seen.len() * page) as u64);
        assert_eq!(Survey::new(0..0).due(&(0..0)), None);
    }

    #[test]
    fn a_plan_has_each_page_once_and_what_comes_first_first() {
        const PAGES: usize = 40;
        let pages = |range: Range<usize>| range.start / 10 * 10..range.end.div_ceil(10) * 10;
        let mut random = 7u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((random >> 33) % n) as usize
        };
        for round in 0..2000 {
            let start = below(200);
            let range = start..start + below(200);
            let first: Vec<Range<usize>> = (0..below(4))
                .map(|_| {
                    let start = below(400);
                    start..start + below(60)
                })
                .collect();
            // Page by page.
            let mut expected = Vec::new();
            for wanted in first.iter().chain([&range]) {
                for page in 0..PAGES {
                    let bytes = page * 10..page * 10 + 10;
                    let touches = |r: &Range<usize>| r.start.max(bytes.start) < r.end.min(bytes.end);
                    let clipped = wanted.start.max(range.start)..wanted.end.min(range.end);
                    if touches(&clipped) && !expected.contains(&page) {
                        expected.push(page);
                    }
                }
            }
            let found: Vec<usize> =
                plan(&range, &first, pages).into_iter().flat_map(|part| part.start / 10..part.end / 10).collect();
            assert_eq!(found, expected, "round {round}: {range:?} with {first:?} first");
        }
    }
}
