//! Reads that may wait: a range, and many ranges.
//!
//! A range within one page is leased in place. Anything else is copied page by page into a buffer.
//! A task that is polled pins no page while it waits for a frame, so two reads never wait for
//! frames that the other one pins. A task that is not polled pins the pages of the reads that it
//! has joined.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use smallvec::SmallVec;

use nowait::embed::turn;
use nowait::{Buf, Error, ErrorKind, Result, block_on};

use crate::cache::forked;
use crate::file::{CachedFile, Claim};
use crate::fill::Fill;
use crate::in_flight::Joined;
use crate::lease::Lease;
use crate::pages::PAGES_MAX;
use crate::shared::Pin;
use crate::space::{Called, Place};
use crate::sync::lock;

/// Maximum reads in flight of one gather.
const DEPTH: usize = 64;
/// Longest range that `Get` copies in one poll. Copies of longer ranges may yield to other tasks.
const AT_ONCE_BYTES: u64 = 64 << 10;

/// Pages that a future waits for.
#[derive(Default)]
struct Wait {
    joined: SmallVec<[Joined<Fill>; 1]>,
    place: Option<Place>,
    /// A read of several pages failed: each is read alone.
    is_alone: bool,
}

/// Result of a search for a page.
enum Found {
    Page(Pin),
    /// A read in flight: the last of `joined`.
    Reading,
    /// The future is in line for a frame.
    InLine,
}

impl Wait {
    /// Looks for a page, and begins or joins its read. `wanted` pages from it on are needed.
    fn find(&mut self, file: &CachedFile, page: u64, wanted: u64, context: &Context<'_>) -> Result<Found> {
        let counters = &file.inode.counters;
        let wanted = if self.is_alone { 1 } else { wanted.min(file.fill_pages_max()) };
        let (mut deadline, mut is_called, mut is_late) = (None, false, false);
        loop {
            if let Some(place) = &self.place {
                match place.poll(context) {
                    Poll::Pending => return Ok(Found::InLine),
                    // Try once more: a future that was woken earlier may have left its frame unclaimed.
                    Poll::Ready(Called::TimedOut) => is_late = true,
                    Poll::Ready(Called::Again) => {}
                }
                deadline = self.place.take().map(Place::leave);
                is_called = true;
            }
            let claim = file.claim(page, wanted, is_called);
            if is_called && matches!(claim, Claim::Cached(_) | Claim::Joined(_)) {
                // This future needs no frame. Wake the next one.
                file.core.space.next().wake();
            }
            match claim {
                Claim::Cached(pin) => {
                    pin.record().word.clear_ahead();
                    counters.hits.fetch_add(1, Ordering::Relaxed);
                    return Ok(Found::Page(pin));
                }
                Claim::Joined(fill) => {
                    counters.joins.fetch_add(1, Ordering::Relaxed);
                    self.joined.push(Joined::new(fill));
                    // A reader that has caught up with its readahead continues it.
                    file.found(page, page + 1);
                    return Ok(Found::Reading);
                }
                Claim::Began(fill) => {
                    let pages = fill.pages();
                    counters.misses.fetch_add(pages.end - pages.start, Ordering::Relaxed);
                    fill.begin();
                    self.joined.push(Joined::new(fill));
                    if is_called {
                        let policy = lock(&file.core.policy);
                        let next = file.core.space.go_on(|| policy.want_all(&file.core.frames));
                        drop(policy);
                        next.wake();
                    }
                    file.missed(pages.start, pages.end);
                    return Ok(Found::Reading);
                }
                Claim::Full => {}
            }
            let until = *deadline.get_or_insert_with(|| Instant::now() + file.core.wait_max);
            if is_late || Instant::now() > until {
                if is_called {
                    // Pinned frames may be unmarked: the next one looks for itself.
                    file.core.space.next().wake();
                }
                return Err(all_pinned(file, page));
            }
            let policy = lock(&file.core.policy);
            let (place, next) = file.core.space.join(until, is_called, || policy.want_all(&file.core.frames));
            drop(policy);
            next.wake();
            self.place = place;
            let thread = if self.place.is_some() { file.core.space.ensure_thread() } else { Ok(()) };
            if let Err(error) = thread {
                self.place = None;
                let text = format!("no thread can be started that would end a wait: {error}");
                return Err(all_pinned(file, page).with_detail(text));
            }
        }
    }

    /// End of the pages of the read that was joined last.
    fn end(&self) -> u64 {
        self.joined.last().map_or(0, |joined| joined.to.pages().end)
    }
}

fn all_pinned(file: &CachedFile, page: u64) -> Error {
    let start = page << file.core.page_shift;
    file.error(ErrorKind::TimedOut, &(start..start + file.core.page_bytes() as u64)).with_advice(
        "leases pin all frames of the cache; drop leases sooner, copy their bytes, or use a larger capacity",
    )
}

/// Checks a range before it is read.
fn check(file: &CachedFile, range: &Range<u64>) -> Result<()> {
    if range.start > range.end {
        return Err(file.error(ErrorKind::InvalidInput, range).with_advice("the range ends before its start"));
    }
    if range.end > file.size() {
        return Err(beyond_end(file, range));
    }
    Ok(())
}

fn beyond_end(file: &CachedFile, range: &Range<u64>) -> Error {
    file.error(ErrorKind::UnexpectedEof, range)
        .with_advice(format!("the file has {} bytes; call `revalidate` if it has changed", file.size()))
}

/// Read of one range; see [`CachedFile::get`].
#[must_use = "nothing is read until the future is awaited, or `wait` is called"]
pub struct Get<'f> {
    file: &'f CachedFile,
    range: Range<u64>,
    state: State<'f>,
}

enum State<'f> {
    New,
    Page(Wait),
    Copy(Box<Gather<'f>>),
    /// The result, kept for the next poll while the task yields.
    Ready(Option<Result<Lease>>),
}

impl<'f> Get<'f> {
    pub(crate) fn new(file: &'f CachedFile, range: Range<u64>) -> Get<'f> {
        Get { file, range, state: State::New }
    }

    /// Blocks until the range is read; needs no executor.
    ///
    /// # Errors
    /// See [`CachedFile::get`].
    pub fn wait(self) -> Result<Lease> {
        match self.try_now() {
            Some(lease) => Ok(lease),
            None => block_on(self),
        }
    }

    /// Returns the lease if the range is cached, and continues readahead if the range reaches the mark.
    fn try_now(&self) -> Option<Lease> {
        let lease = self.file.try_get(self.range.clone())?;
        let (first, last) = (self.file.split(self.range.start).0, self.file.split(self.range.end.max(1) - 1).0);
        self.file.found(first, last + 1);
        Some(lease)
    }

    /// The lease of a pinned page.
    fn lease(&self, pin: Pin) -> Result<Lease> {
        let (_, start) = self.file.split(self.range.start);
        let length = self.length() as usize;
        if start + length > pin.len() {
            // The file is shorter than it was.
            return Err(beyond_end(self.file, &self.range));
        }
        Ok(Lease::page(pin, start, length))
    }

    fn poll_page(&mut self, context: &Context<'_>) -> Poll<Result<Lease>> {
        let State::Page(wait) = &mut self.state else { return Poll::Pending };
        let (page, _) = self.file.split(self.range.start);
        loop {
            if let Some(mut joined) = wait.joined.pop() {
                if !joined.is_done(context.waker()) {
                    wait.joined.push(joined);
                    return Poll::Pending;
                }
                if joined.to.must_repeat() {
                    wait.is_alone = true;
                    continue;
                }
                return Poll::Ready(match joined.to.page(page)? {
                    Some(pin) => self.lease(pin),
                    None => Err(beyond_end(self.file, &self.range)),
                });
            }
            match wait.find(self.file, page, 1, context)? {
                Found::Page(pin) => return Poll::Ready(self.lease(pin)),
                Found::Reading => {}
                Found::InLine => return Poll::Pending,
            }
        }
    }

    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Future for Get<'_> {
    type Output = Result<Lease>;

    fn poll(mut self: Pinned<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lease>> {
        let this = &mut *self;
        if this.file.core.is_forked() {
            // A thread that does not exist here may hold the locks of a read in flight.
            this.state = State::Ready(None);
            return Poll::Ready(Err(forked(&this.file.file)));
        }
        if let State::Ready(result) = &mut this.state {
            return Poll::Ready(result.take().expect("a future was polled after it was ready"));
        }
        if matches!(this.state, State::New) {
            let is_short = this.range.end.saturating_sub(this.range.start) <= AT_ONCE_BYTES;
            if let Some(lease) = is_short.then(|| this.try_now()).flatten() {
                turn::copied(if lease.is_copy() { lease.len() } else { 0 });
                this.state = State::Ready(Some(Ok(lease)));
                return if turn::ends(context) { Poll::Pending } else { self.poll(context) };
            }
            if let Err(error) = check(this.file, &this.range) {
                this.state = State::Ready(None);
                return Poll::Ready(Err(error));
            }
            if this.range.is_empty() {
                this.state = State::Ready(None);
                return Poll::Ready(Ok(Lease::copy(&Arc::default(), 0..0)));
            }
            let (page, start) = this.file.split(this.range.start);
            let is_page = start + this.length() as usize <= this.file.core.page_bytes();
            this.state = match is_page && page < PAGES_MAX {
                true => State::Page(Wait::default()),
                false => State::Copy(Box::new(Gather::new(this.file, std::slice::from_ref(&this.range)))),
            };
        }
        let result = match &mut this.state {
            State::Copy(gather) => ready!(Pinned::new(&mut **gather).poll(context)).map(|mut leases| leases.remove(0)),
            _ => ready!(this.poll_page(context)),
        };
        this.state = State::Ready(None);
        Poll::Ready(result)
    }
}

nowait::waits! {
    impl [] Get<'_>;
    impl [] Gather<'_>;
}

/// Read of many ranges; see [`CachedFile::gather`].
#[must_use = "nothing is read until the future is awaited, or `wait` is called"]
pub struct Gather<'f> {
    file: &'f CachedFile,
    ranges: Vec<Range<u64>>,
    work: Option<Work<'f>>,
    wait: Wait,
    ready: Option<Vec<Lease>>,
    is_over: bool,
}

struct Work<'f> {
    buffer: Buf,
    /// Parts in pages that were cached at the start; those before `copied` are done.
    cached: Vec<Part>,
    copied: usize,
    /// Parts of `cached` whose page was evicted before the copy.
    late: Vec<Part>,
    /// Parts in pages that were not cached, sorted by page. Those before `begun` are in flight or
    /// copied.
    missing: Vec<Part>,
    begun: usize,
    /// Places in the buffer of the ranges that bypass the cache; `past` reads them.
    uncached: Vec<(Range<usize>, Range<u64>)>,
    past: Option<nowait::Gather<'f>>,
}

/// Part of a page, and its place in the buffer.
#[derive(Clone, Copy)]
struct Part {
    page: u64,
    start: usize,
    length: usize,
    to: usize,
}

impl Part {
    /// The error of a part that the file does not contain any more.
    fn beyond_end(&self, file: &CachedFile) -> Error {
        let offset = (self.page << file.core.page_shift) + self.start as u64;
        beyond_end(file, &(offset..offset + self.length as u64))
    }
}

impl Work<'_> {
    fn copy(&mut self, part: Part, pin: &Pin, file: &CachedFile) -> Result<()> {
        let Part { start, length, to, .. } = part;
        let bytes = pin.bytes().get(start..start + length).ok_or_else(|| part.beyond_end(file))?;
        self.buffer[to..to + length].copy_from_slice(bytes);
        turn::copied(length);
        Ok(())
    }

    /// Copies the parts in the pages of a read that is done.
    fn take(&mut self, fill: &Fill, file: &CachedFile) -> Result<()> {
        let Range { start: first, end } = fill.pages();
        let from = self.missing[..self.begun].partition_point(|part| part.page < first);
        for index in from..self.begun {
            let part = self.missing[index];
            if part.page >= end {
                break;
            }
            let pin = fill.page(part.page)?.ok_or_else(|| part.beyond_end(file))?;
            self.copy(part, &pin, file)?;
        }
        Ok(())
    }

    /// Returns the number of adjacent missing pages that begin at part `from`, limited to `most`.
    fn adjacent(&self, from: usize, most: u64) -> u64 {
        let first = self.missing[from].page;
        let mut last = first;
        for part in &self.missing[from..] {
            if part.page > last + 1 || part.page >= first + most {
                break;
            }
            last = part.page;
        }
        last - first + 1
    }
}

impl<'f> Gather<'f> {
    pub(crate) fn new(file: &'f CachedFile, ranges: &[Range<u64>]) -> Gather<'f> {
        Gather { file, ranges: ranges.to_vec(), work: None, wait: Wait::default(), ready: None, is_over: false }
    }

    /// Blocks until all ranges are read; needs no executor.
    ///
    /// # Errors
    /// See [`CachedFile::gather`].
    pub fn wait(self) -> Result<Vec<Lease>> {
        block_on(self)
    }

    /// Checks the ranges, allocates the buffer, and looks up the pages.
    fn begin(&self) -> Result<Work<'f>> {
        let file = self.file;
        let mut total = 0_usize;
        for range in &self.ranges {
            check(file, range)?;
            let length = usize::try_from(range.end - range.start).ok();
            let sum = length.and_then(|length| total.checked_add(length));
            total = sum.ok_or_else(|| file.error(ErrorKind::OutOfMemory, range))?;
        }
        let buffer = Buf::try_zeroed(total).ok_or_else(|| {
            let whole = self.ranges.first().cloned().unwrap_or(0..0);
            file.error(ErrorKind::OutOfMemory, &whole).with_detail(format!("{total} bytes for a copy"))
        })?;
        let (cached, missing, late, uncached) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut work = Work { buffer, cached, copied: 0, late, missing, begun: 0, uncached, past: None };
        let pages_max = u64::from(file.core.frames.len() / 2).max(1);
        let mut to = 0;
        for range in &self.ranges {
            let pages = (range.end - range.start) >> file.core.page_shift;
            let is_beyond = file.split(range.end).0 >= PAGES_MAX;
            let mut offset = range.start;
            while offset < range.end {
                let (page, start) = file.split(offset);
                let rest = range.end - offset;
                let is_cached = !is_beyond && file.inode.pages.get(page).is_some();
                let is_past = is_beyond || pages > pages_max && !is_cached;
                let length = if is_past { rest } else { rest.min((file.core.page_bytes() - start) as u64) } as usize;
                let part = Part { page, start, length, to };
                match (is_past, is_cached) {
                    (true, _) => work.uncached.push((to..to + length, offset..range.end)),
                    (false, true) => work.cached.push(part),
                    (false, false) => work.missing.push(part),
                }
                to += length;
                offset += length as u64;
            }
        }
        let bytes = work.uncached.iter().map(|(place, _)| place.len() as u64);
        let pages: u64 = bytes.map(|bytes| (bytes >> file.core.page_shift) + 1).sum();
        file.inode.counters.uncached.fetch_add(pages, Ordering::Relaxed);
        if let ([range], None) = (&self.ranges[..], work.uncached.first()) {
            file.found(file.split(range.start).0, file.split(range.end.max(1) - 1).0 + 1);
        }
        work.missing.sort_unstable_by_key(|part| part.page);
        let past: Vec<_> = work.uncached.iter().map(|(place, range)| (range.start, place.len())).collect();
        work.past = (!past.is_empty()).then(|| file.file.gather(past));
        Ok(work)
    }

    /// Copies pages that were cached at the start. Returns false if the task must yield first.
    fn copy_cached(&mut self, context: &mut Context<'_>) -> Result<bool> {
        let Gather { file, work: Some(work), .. } = self else { return Ok(true) };
        while let Some(part) = work.cached.get(work.copied).copied() {
            work.copied += 1;
            match file.pin(part.page) {
                Some(pin) => work.copy(part, &pin, file)?,
                None => work.late.push(part),
            }
            if turn::ends(context) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins reads, and copies the pages that were read or are cached. Returns true when all is done.
    fn advance(&mut self, context: &mut Context<'_>) -> Result<bool> {
        let is_read = self.advance_reads(context)?;
        // Reads are in flight while the cached pages are copied.
        if !self.copy_cached(context)? || !is_read {
            return Ok(false);
        }
        let Some(work) = &mut self.work else { return Ok(true) };
        if work.late.is_empty() {
            return Ok(true);
        }
        (work.missing, work.begun) = (std::mem::take(&mut work.late), 0);
        work.missing.sort_unstable_by_key(|part| part.page);
        self.advance_reads(context)
    }

    /// Begins reads, and copies the pages that were read. Returns true when all reads are done.
    fn advance_reads(&mut self, context: &mut Context<'_>) -> Result<bool> {
        let Gather { file, work: Some(work), wait, .. } = self else { return Ok(true) };
        loop {
            let mut index = 0;
            while index < wait.joined.len() {
                if !wait.joined[index].is_done(context.waker()) {
                    index += 1;
                    continue;
                }
                let joined = wait.joined.swap_remove(index);
                if joined.to.must_repeat() {
                    // Start over page by page; most pages are cached by now.
                    (wait.is_alone, work.begun, index) = (true, 0, 0);
                    wait.joined.clear();
                    continue;
                }
                work.take(&joined.to, file)?;
                if turn::ends(context) {
                    return Ok(false);
                }
            }
            if work.begun == work.missing.len() || wait.joined.len() >= DEPTH {
                break;
            }
            let part = work.missing[work.begun];
            let adjacent = work.adjacent(work.begun, file.fill_pages_max());
            match wait.find(file, part.page, adjacent, context)? {
                Found::Page(pin) => {
                    while work.missing.get(work.begun).is_some_and(|next| next.page == part.page) {
                        work.copy(work.missing[work.begun], &pin, file)?;
                        work.begun += 1;
                    }
                    drop(pin);
                    if turn::ends(context) {
                        return Ok(false);
                    }
                }
                Found::Reading => {
                    let end = wait.end();
                    while work.missing.get(work.begun).is_some_and(|next| next.page < end) {
                        work.begun += 1;
                    }
                }
                Found::InLine => break,
            }
        }
        let mut is_done = work.begun == work.missing.len() && wait.joined.is_empty();
        if let Some(past) = &mut work.past {
            match Pinned::new(past).poll(context) {
                Poll::Pending => is_done = false,
                Poll::Ready(read) => {
                    let read = read.map_err(|error| error.error)?;
                    for (row, (place, range)) in read.iter().zip(&work.uncached) {
                        let row = row.map_err(Error::clone)?;
                        if row.len() < place.len() {
                            return Err(beyond_end(file, range));
                        }
                        work.buffer[place.clone()].copy_from_slice(row);
                    }
                    work.past = None;
                }
            }
        }
        Ok(is_done)
    }
}

impl Future for Gather<'_> {
    type Output = Result<Vec<Lease>>;

    fn poll(mut self: Pinned<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<Lease>>> {
        let this = &mut *self;
        if let Some(leases) = this.ready.take() {
            return Poll::Ready(Ok(leases));
        }
        assert!(!this.is_over, "a future was polled after it was ready");
        if this.file.core.is_forked() {
            this.is_over = true;
            return Poll::Ready(Err(forked(&this.file.file)));
        }
        let advanced = match &this.work {
            Some(_) => Ok(()),
            None => this.begin().map(|work| this.work = Some(work)),
        };
        match advanced.and_then(|()| this.advance(context)) {
            Ok(false) => return Poll::Pending,
            Ok(true) => this.is_over = true,
            Err(error) => {
                // Nothing stays pinned, also if the future is kept.
                (this.is_over, this.wait, this.work) = (true, Wait::default(), None);
                return Poll::Ready(Err(error));
            }
        }
        let Some(work) = this.work.take() else { return Poll::Pending };
        let (buffer, mut to) = (Arc::new(work.buffer), 0);
        let leases = this.ranges.iter().map(|range| {
            let from = to;
            to += (range.end - range.start) as usize;
            Lease::copy(&buffer, from..to)
        });
        let leases = leases.collect();
        if turn::ends(context) {
            this.ready = Some(leases);
            return Poll::Pending;
        }
        Poll::Ready(Ok(leases))
    }
}

impl std::fmt::Debug for Get<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Get").field("path", &self.file.path()).field("range", &self.range).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gather")
            .field("path", &self.file.path())
            .field("ranges", &self.ranges.len())
            .finish_non_exhaustive()
    }
}
