//! Page cache in user space: `nowait.PageCache`, and files that are read through it.
//!
//! A hit within one page is a lease of the page, made without releasing the GIL. A blocking call
//! that misses polls its read on its own thread, and checks for signals; it may wait for long while
//! leases pin all pages. Reads of event loops run on the driver.

mod lease;

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nowait::embed;
use nowait::{Error, ErrorKind, ErrorOp, OpenOptions};
use nowait_cache::{Access, Stats};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::completions::{Begun, Completions};
use crate::driver::{Running, spawn};
use crate::error::{OrRaise, exception};
use crate::file::{self, Source};
use crate::gather::{self, Incomplete, Part, Parts};
use crate::gathered::{Gathered, Plan};
use crate::ranges::{Extent, Ranges};

pub(crate) use self::lease::Lease;

/// Interval at which a waiting caller checks for signals.
const LOOK: Duration = Duration::from_millis(100);
/// Number of ranges and of bytes that a gather of an event loop reads before the driver polls
/// other tasks: about a millisecond of copying.
const TURN_RANGES: usize = 1024;
const TURN_BYTES: usize = 4 << 20;

/// The cache; `nowait/_cache.py` adds `open` and `stats`.
#[pyclass(frozen, subclass, module = "nowait")]
pub(crate) struct PageCache {
    cache: nowait_cache::PageCache,
}

#[pymethods]
impl PageCache {
    #[new]
    #[pyo3(signature = (capacity_bytes, page_bytes = 16384, *, wait_max_s = 10.0, read_ahead_bytes_max = 262144))]
    fn new(
        py: Python<'_>,
        capacity_bytes: u64,
        page_bytes: usize,
        wait_max_s: f64,
        read_ahead_bytes_max: usize,
    ) -> PyResult<PageCache> {
        let wait_max = Duration::try_from_secs_f64(wait_max_s)
            .map_err(|_| PyValueError::new_err(format!("wait_max_s is {wait_max_s}; give seconds, zero or more")))?;
        let builder = nowait_cache::PageCache::builder()
            .capacity_bytes(capacity_bytes)
            .page_bytes(page_bytes)
            .wait_max(wait_max)
            .read_ahead_bytes_max(read_ahead_bytes_max);
        let cache = py.detach(|| builder.build()).or_raise(py)?;
        Ok(PageCache { cache })
    }

    /// Bytes of a page.
    #[getter]
    fn page_bytes(&self) -> usize {
        self.cache.page_bytes()
    }

    /// Bytes that the cached pages may have.
    #[getter]
    fn capacity_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.cache.capacity_bytes())
    }

    /// Sets the capacity, up to the first one; returns the new capacity, in whole pages.
    fn set_capacity_bytes(&self, py: Python<'_>, capacity_bytes: u64) -> u64 {
        py.detach(|| self.cache.set_capacity_bytes(capacity_bytes))
    }

    /// The counters, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(py, py.detach(|| self.cache.stats()))
    }
}

fn counters(py: Python<'_>, stats: Stats) -> PyResult<Bound<'_, PyDict>> {
    let counters = PyDict::new(py);
    for (name, value) in [
        ("hits", stats.hits),
        ("joins", stats.joins),
        ("misses", stats.misses),
        ("uncached", stats.uncached),
        ("read_ahead", stats.read_ahead),
        ("read_ahead_unused", stats.read_ahead_unused),
        ("reads", stats.reads),
        ("read_bytes", stats.read_bytes),
        ("failures", stats.failures),
        ("evictions", stats.evictions),
        ("cached", stats.cached),
        ("pinned", stats.pinned),
    ] {
        counters.set_item(name, value)?;
    }
    Ok(counters)
}

/// A file that is read through a cache; `nowait/_cache.py` adds the awaitable methods.
#[pyclass(frozen, subclass, module = "nowait")]
pub(crate) struct CachedFile {
    /// One reader, also for the tasks of the driver.
    file: Arc<nowait_cache::CachedFile>,
    page_bytes: u64,
}

impl CachedFile {
    /// # Errors
    /// `RangeError` if no file can contain the range.
    fn range(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Range<u64>> {
        match offset.checked_add(length) {
            Some(end) if end <= i64::MAX as u64 => Ok(offset..end),
            _ => {
                let error = Error::new(ErrorOp::Read, ErrorKind::InvalidRange).at(self.file.path());
                let error = error.with_range(offset, length).with_advice("the range ends beyond 2**63 - 1");
                Err(exception(py, &error))
            }
        }
    }

    /// True if a lease of the range pins one page, and copies nothing.
    fn is_in_page(&self, range: &Range<u64>) -> bool {
        is_in_page(self.page_bytes, range)
    }

    /// Returns the error for the first range that ends beyond the end of the file.
    fn check_ends(&self, py: Python<'_>, extents: &[Extent]) -> PyResult<()> {
        let size = self.file.size();
        let Some(index) = extents.iter().position(|(offset, length)| offset + *length as u64 > size) else {
            return Ok(());
        };
        let (offset, length) = extents[index];
        let error = Error::new(ErrorOp::Gather, ErrorKind::UnexpectedEof).at(self.file.path()).with_index(index);
        let advice = format!("the file has {size} bytes; call `revalidate` if it has changed");
        Err(exception(py, &error.with_range(offset, length as u64).with_advice(advice)))
    }

    /// Reads ranges, and checks for signals in between.
    fn read(&self, py: Python<'_>, extents: &[Extent], mut output: &mut [u8]) -> PyResult<()> {
        let mut parts = Parts::new();
        while let Some(Part { places, bytes, is_long }) = parts.next(py, extents)? {
            let (part, rest) = std::mem::take(&mut output).split_at_mut(bytes);
            output = rest;
            if is_long {
                // Not through the cache, which would evict much for one range.
                let mut incomplete = Incomplete::default();
                let file = self.file.file();
                gather::long(py, file, places.start, extents[places.start], part, &mut incomplete)?;
                gather::short(py, self.file.path(), extents, incomplete, false)?;
                continue;
            }
            let began = Instant::now();
            let missing = py.detach(|| Missing::copying_others(&self.file, self.page_bytes, &extents[places], part));
            if !missing.ranges.is_empty() {
                let leases = wait(py, pin!(self.file.gather(&missing.ranges)))?.or_raise(py)?;
                py.detach(|| missing.fill(&leases, part));
            }
            parts.took(began.elapsed());
        }
        Ok(())
    }
}

/// Wakes a thread that polls a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on this thread until it ends, or a signal handler raises. (`nowait::block_on`
/// cannot be interrupted, and the driver costs two more switches between threads.)
fn wait<F: Future + Send>(py: Python<'_>, mut future: Pin<&mut F>) -> PyResult<F::Output>
where
    F::Output: Send,
{
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let polled = py.detach(|| {
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                embed::notice_by_thread();
                thread::park_timeout(LOOK);
            }
            polled
        });
        match polled {
            Poll::Ready(result) => return Ok(result),
            Poll::Pending => py.check_signals()?,
        }
    }
}

fn is_in_page(page_bytes: u64, range: &Range<u64>) -> bool {
    range.start % page_bytes + (range.end - range.start) <= page_bytes
}

/// Ranges that are not cached, or that lie in several pages, and their places in the output.
#[derive(Default)]
struct Missing {
    ranges: Vec<Range<u64>>,
    places: Vec<usize>,
}

impl Missing {
    /// Copies the cached ranges that lie within a page, and returns the others.
    fn copying_others(
        file: &nowait_cache::CachedFile,
        page_bytes: u64,
        extents: &[Extent],
        output: &mut [u8],
    ) -> Missing {
        let (mut missing, mut at) = (Missing::default(), 0);
        for &(offset, length) in extents.iter().filter(|(_, length)| *length > 0) {
            let range = offset..offset + length as u64;
            let lease = if is_in_page(page_bytes, &range) { file.try_get(range.clone()) } else { None };
            match lease {
                Some(lease) => output[at..at + length].copy_from_slice(&lease),
                None => {
                    missing.ranges.push(range);
                    missing.places.push(at);
                }
            }
            at += length;
        }
        missing
    }

    /// Copies the ranges that were read to their places.
    fn fill(&self, leases: &[nowait_cache::Lease], output: &mut [u8]) {
        for (lease, place) in leases.iter().zip(&self.places) {
            output[*place..place + lease.len()].copy_from_slice(lease);
        }
    }
}

/// Reads ranges on the driver, in turns.
async fn read_in_turns(
    file: &nowait_cache::CachedFile,
    page_bytes: u64,
    mut extents: &[Extent],
    mut output: &mut [u8],
) -> nowait::Result<()> {
    while !extents.is_empty() {
        let mut bytes = 0;
        let fits = |(_, length): &&Extent| {
            bytes += length;
            bytes <= TURN_BYTES
        };
        let count = extents.iter().take(TURN_RANGES).take_while(fits).count().max(1);
        let (some, others) = extents.split_at(count);
        let (part, rest) =
            std::mem::take(&mut output).split_at_mut(some.iter().map(|(_, length)| length).sum::<usize>());
        (extents, output) = (others, rest);
        let missing = Missing::copying_others(file, page_bytes, some, part);
        if !missing.ranges.is_empty() {
            missing.fill(&file.gather(&missing.ranges).await?, part);
        }
        let mut has_yielded = false;
        poll_fn(|context| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
    Ok(())
}

#[pymethods]
impl CachedFile {
    #[new]
    #[pyo3(signature = (cache, file, access = "immutable"))]
    fn new(cache: &Bound<'_, PageCache>, file: &Bound<'_, PyAny>, access: &str) -> PyResult<CachedFile> {
        let access = match access {
            "immutable" => Access::Immutable,
            "revalidate" => Access::Revalidate,
            "exclusive" => Access::Exclusive,
            other => {
                let text = format!("unknown access {other:?}; give immutable, revalidate or exclusive");
                return Err(PyValueError::new_err(text));
            }
        };
        let (py, source, cache) = (cache.py(), file::to_open(file)?, &cache.get().cache);
        let opened = py.detach(|| {
            let file = match source {
                Source::Open(file) => file,
                // So that the kernel does not cache the same pages.
                Source::Path(path) => OpenOptions::new().read(true).direct(true).open(path).wait()?,
            };
            cache.open(&file, access)
        });
        Ok(CachedFile { file: Arc::new(opened.or_raise(py)?), page_bytes: cache.page_bytes() as u64 })
    }

    /// Path of the file.
    #[getter]
    fn name(&self) -> &std::ffi::OsStr {
        self.file.path().as_os_str()
    }

    /// Size in bytes at the last comparison, by `open` or `revalidate`.
    fn size(&self) -> u64 {
        self.file.size()
    }

    /// Returns a lease of `length` bytes from `offset`; reads them if they are not cached.
    fn get(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Lease> {
        if let Some(lease) = self.try_get(py, offset, length)? {
            return Ok(lease);
        }
        let range = self.range(py, offset, length)?;
        Ok(Lease::of(wait(py, pin!(self.file.get(range)))?.or_raise(py)?))
    }

    /// Returns a lease if all bytes are cached; never waits.
    fn try_get(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Option<Lease>> {
        let range = self.range(py, offset, length)?;
        let lease = match self.is_in_page(&range) {
            true => self.file.try_get(range),
            false => py.detach(|| self.file.try_get(range)),
        };
        Ok(lease.map(Lease::of))
    }

    /// Reads ranges like `nowait.gather`: copies cached ones, and reads the others in one batch.
    #[pyo3(signature = (offsets, lengths, out = None))]
    fn gather(
        &self,
        offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Gathered>> {
        let py = offsets.py();
        let ranges = Ranges::new(offsets, lengths, self.file.path())?;
        self.check_ends(py, &ranges.extents)?;
        let (memory, mut loan) = gather::memory(py, out, ranges.total)?;
        let read = self.read(py, &ranges.extents, &mut loan.as_mut()[..ranges.total]);
        loan.release(py);
        read?;
        Plan::of(&ranges).finish(&memory, Vec::new())
    }

    /// Drops the cached pages of a range; without `length`, to the end of the file.
    #[pyo3(signature = (offset = 0, length = None))]
    fn invalidate(&self, py: Python<'_>, offset: u64, length: Option<u64>) {
        let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
        py.detach(|| self.file.invalidate(offset..end));
    }

    /// Compares the file's size and times with those of the last comparison; drops its cached
    /// pages, and returns true, if they differ.
    fn revalidate(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.file.revalidate()).or_raise(py)
    }

    /// The counters of the file, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(py, py.detach(|| self.file.stats()))
    }
}

/// Like `get`, for an event loop. A hit within one page ends at once.
#[pyfunction]
pub(crate) fn start_cached_get(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, CachedFile>,
    offset: u64,
    length: u64,
) -> Begun {
    let (py, cached) = (file.py(), file.get());
    let range = cached.range(py, offset, length)?;
    if cached.is_in_page(&range) {
        if let Some(lease) = cached.file.try_get(range.clone()) {
            return Ok(Some((Lease::of(lease).into_py_any(py)?, completions.get().charge(0))));
        }
    }
    let (file, to) = (cached.file.clone(), completions.get().receiver(number));
    spawn(async move {
        let lease = file.get(range).await;
        to.put(move |py| Lease::of(lease.or_raise(py)?).into_py_any(py));
    })?;
    Ok(None)
}

/// Like `gather`, for an event loop.
#[pyfunction]
#[pyo3(signature = (completions, number, file, offsets, lengths, out))]
pub(crate) fn start_cached_gather(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, CachedFile>,
    offsets: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
) -> PyResult<Running> {
    let (py, cached) = (file.py(), file.get());
    let ranges = Ranges::new(offsets, lengths, cached.file.path())?;
    cached.check_ends(py, &ranges.extents)?;
    let (memory, mut loan) = gather::memory(py, out, ranges.total)?;
    let (memory, to, plan) = (memory.unbind(), completions.get().receiver(number), Plan::of(&ranges));
    let (file, page_bytes) = (cached.file.clone(), cached.page_bytes);
    spawn(async move {
        let read = read_in_turns(&file, page_bytes, &ranges.extents, &mut loan.as_mut()[..ranges.total]).await;
        to.put(move |py| {
            loan.release(py);
            read.or_raise(py)?;
            plan.finish(memory.bind(py), Vec::new())?.into_py_any(py)
        });
    })
}
