//! Memory-mapped files whose pages are loaded before they are accessed.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nowait::ErrorOp;
use nowait::map::{Populated, Populating, Stopped};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::completions::Completions;
use crate::driver::{Running, spawn, wait};
use crate::error::{OrRaise, bad_range};
use crate::file::{self, File};
use crate::memory::Mapping;

/// Maximum sleep between two checks of populating.
const LOOK: Duration = Duration::from_millis(20);

/// Maps a range of a file; without `length`, to the end of the file.
#[pyfunction]
#[pyo3(signature = (file, offset = 0, length = None))]
pub(crate) fn map_file(file: &Bound<'_, PyAny>, offset: u64, length: Option<u64>) -> PyResult<Mapping> {
    let py = file.py();
    let file = match file.cast::<File>() {
        Ok(file) => file.get().get(py, ErrorOp::Map)?,
        Err(_) => file::source(file)?,
    };
    let mapped = py.detach(|| {
        let end = match length {
            Some(length) => offset.saturating_add(length),
            None => file.size().wait()?.max(offset),
        };
        Mapping::of(&file, offset..end)
    });
    mapped.or_raise(py)
}

/// Ranges and options of populating.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PopulateOptions {
    start: usize,
    stop: usize,
    first: Vec<(usize, usize)>,
    bytes_per_second: Option<u64>,
    memory_share: f64,
    chunk_bytes: usize,
}

fn begin(py: Python<'_>, mapping: &Mapping, how: &PopulateOptions) -> PyResult<Populating> {
    let mut populate = mapping
        .map
        .populate(how.start..how.stop)
        .first(how.first.iter().map(|(start, stop)| *start..*stop))
        .memory_share_max(how.memory_share)
        .chunk_bytes(how.chunk_bytes);
    if let Some(bytes) = how.bytes_per_second {
        populate = populate.bytes_per_second_max(bytes);
    }
    populate.start().or_raise(py)
}

fn object(py: Python<'_>, populated: &Populated) -> PyResult<Py<PyAny>> {
    let object = PyDict::new(py);
    object.set_item("bytes", populated.bytes)?;
    object.set_item("read", populated.read)?;
    let stopped = populated.stopped.map(|stopped| match stopped {
        Stopped::Cancelled => "cancelled",
        Stopped::Memory => "memory",
        _ => "other",
    });
    object.set_item("stopped", stopped)?;
    object.into_py_any(py)
}

/// Loads pages, and blocks until they are resident; calls `progress` with the resident and the
/// total number of bytes.
#[pyfunction]
#[pyo3(signature = (mapping, how, progress = None))]
pub(crate) fn populate(
    mapping: &Bound<'_, Mapping>,
    how: PopulateOptions,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let py = mapping.py();
    let mut populating = begin(py, mapping.get(), &how)?;
    let (mut sleep, mut told) = (Duration::from_micros(50), None);
    loop {
        let ended = match Pin::new(&mut populating).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => Some(ended.or_raise(py)?),
            Poll::Pending => None,
        };
        let now = populating.progress();
        if let (Some(callback), true) = (progress, told != Some(now.bytes)) {
            told = Some(now.bytes);
            callback.call1((now.bytes, now.of))?;
        }
        if let Some(ended) = ended {
            return object(py, &ended);
        }
        // An exception drops the operation, which cancels it.
        py.check_signals()?;
        py.detach(|| std::thread::sleep(sleep));
        sleep = (sleep * 2).min(LOOK);
    }
}

/// Like `populate`, for an event loop.
#[pyfunction]
pub(crate) fn start_populate(
    completions: &Bound<'_, Completions>,
    number: u64,
    mapping: &Bound<'_, Mapping>,
    how: PopulateOptions,
) -> PyResult<Running> {
    let populating = begin(mapping.py(), mapping.get(), &how)?;
    let (to, map) = (completions.get().receiver(number), mapping.get().map.clone());
    spawn(async move {
        let populated = populating.await;
        drop(map);
        to.put(move |py| object(py, &populated.or_raise(py)?));
    })
}

/// Loads the pages of some ranges with many requests in flight, and blocks until they are resident
/// or a signal handler raises.
#[pyfunction]
pub(crate) fn map_gather(mapping: &Bound<'_, Mapping>, ranges: Vec<(usize, usize)>) -> PyResult<()> {
    let (py, mapping) = (mapping.py(), mapping.get());
    let end = |range: &(usize, usize)| range.0.checked_add(range.1).is_none_or(|end| end > mapping.len());
    if let Some(index) = ranges.iter().position(end) {
        let (start, length) = ranges[index];
        let text = format!("{length} bytes from {start} are outside a map of {} bytes", mapping.len());
        return Err(bad_range(py, Some(mapping.map.file().path()), index, &text));
    }
    let ranges: Vec<Range<usize>> = ranges.into_iter().map(|(start, length)| start..start + length).collect();
    let mut started = py.detach(|| mapping.map.gather(ranges).start());
    let gathered = match Pin::new(&mut started).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(gathered) => gathered,
        Poll::Pending => wait(py, started)?,
    };
    gathered.or_raise(py)
}
