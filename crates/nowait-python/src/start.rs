//! Starts operations that an event loop awaits. Each operation is first tried on the loop's thread,
//! which takes no longer than a copy from the page cache. A thread of the library notices
//! operations that wait for the device. Gathers go to the driver: many ranges take long even if
//! they are cached.

use nowait::{Error, ErrorOp, Lent, Nowait, Started};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::completions::{Begun, Completions, deliver};
use crate::driver::{Running, spawn};
use crate::error::OrRaise;
use crate::file::{self, File};
use crate::gather::{self, Incomplete};
use crate::gathered::Plan;
use crate::memory::Loan;
use crate::ranges::Ranges;

/// Opens a file; `made` converts the `File` to the result.
#[pyfunction]
#[pyo3(signature = (completions, number, path, mode, direct, permissions))]
pub(crate) fn start_open(
    completions: &Bound<'_, Completions>,
    number: u64,
    path: &Bound<'_, PyAny>,
    mode: String,
    direct: bool,
    permissions: u32,
) -> Begun {
    let path = file::path(path)?;
    let mut options = file::options(&mode, direct)?;
    options.mode(permissions);
    let started = options.open_in(Nowait::shared(), path).start();
    deliver((completions, number), (started, 0), move |py, opened| {
        Py::new(py, File::new(opened.or_raise(py)?, &mode))?.into_py_any(py)
    })
}

/// Starts an operation of an open file. `start` returns it, and the number of bytes that it copies if
/// it ends at once.
fn begin<T: Send + 'static>(
    to: (&Bound<'_, Completions>, u64),
    file: &Bound<'_, File>,
    operation: ErrorOp,
    start: impl FnOnce(nowait::File) -> PyResult<(Started<T>, usize)>,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Begun {
    let started = start(file.get().get(file.py(), operation)?)?;
    deliver(to, started, finish)
}

#[pyfunction]
pub(crate) fn start_read(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, File>,
    offset: u64,
    length: usize,
) -> Begun {
    let py = file.py();
    let opened = file.get().get(py, ErrorOp::Read)?;
    let (loan, bytes) = Loan::shared_bytes(py, length)?;
    let started = opened.read_at(Lent::new(loan), offset).start();
    deliver((completions, number), (started, length), move |py, read| {
        let (n, lent) = read.map_err(Error::from).or_raise(py)?;
        // After this, the bytes no longer change.
        drop(lent);
        if n == length {
            bytes.into_py_any(py)
        } else {
            bytes.bind(py).as_any().get_item(slice(py, n))?.into_py_any(py)
        }
    })
}

fn slice(py: Python<'_>, n: usize) -> Bound<'_, pyo3::types::PySlice> {
    pyo3::types::PySlice::new(py, 0, n as isize, 1)
}

#[pyfunction]
pub(crate) fn start_readinto(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, File>,
    offset: u64,
    buffer: &Bound<'_, PyAny>,
) -> Begun {
    let start = |opened: nowait::File| {
        let loan = Loan::writable(buffer)?;
        let length = loan.as_ref().len();
        Ok((opened.read_at(Lent::new(loan), offset).start(), length))
    };
    begin((completions, number), file, ErrorOp::Read, start, |py, read| {
        let (n, lent) = read.map_err(Error::from).or_raise(py)?;
        drop(lent);
        n.into_py_any(py)
    })
}

/// Writes all of `data` at `offset`, or without `offset` at the end of the file.
#[pyfunction]
pub(crate) fn start_write(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, File>,
    offset: Option<u64>,
    data: &Bound<'_, PyAny>,
    durable: bool,
) -> Begun {
    let py = file.py();
    let opened = file.get().get(py, ErrorOp::Write)?;
    let data = bytes::Bytes::from_owner(Loan::readable(data)?);
    let length = data.len();
    let write = match offset {
        Some(offset) => opened.write_all_at(data, offset),
        None => opened.append(data),
    };
    let started = if durable { write.durable().start() } else { write.start() };
    deliver((completions, number), (started, length), move |py, written| {
        written.map(drop).map_err(Error::from).or_raise(py)?;
        length.into_py_any(py)
    })
}

#[pyfunction]
pub(crate) fn start_sync(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, File>,
    metadata: bool,
) -> Begun {
    let start =
        |opened: nowait::File| Ok((if metadata { opened.sync_all().start() } else { opened.sync_data().start() }, 0));
    begin((completions, number), file, ErrorOp::Sync, start, |py, synced| synced.or_raise(py)?.into_py_any(py))
}

#[pyfunction]
pub(crate) fn start_truncate(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, File>,
    length: u64,
) -> Begun {
    let start = |opened: nowait::File| Ok((opened.set_len(length).start(), 0));
    begin((completions, number), file, ErrorOp::SetLen, start, |py, cut| cut.or_raise(py)?.into_py_any(py))
}

#[pyfunction]
pub(crate) fn start_size(completions: &Bound<'_, Completions>, number: u64, file: &Bound<'_, File>) -> Begun {
    let start = |opened: nowait::File| Ok((opened.size().start(), 0));
    begin((completions, number), file, ErrorOp::Size, start, |py, size| size.or_raise(py)?.into_py_any(py))
}

/// Waits until no cancelled write can reach the file any more.
#[pyfunction]
pub(crate) fn start_settle(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, File>,
) -> PyResult<Running> {
    let opened = file.get().get(file.py(), ErrorOp::Write)?;
    let to = completions.get().receiver(number);
    spawn(async move {
        opened.settled().await;
        drop(opened);
        to.put(|py| Ok(py.None()));
    })
}

/// Closes a file; a pool thread makes the `close(2)` if it may block.
#[pyfunction]
pub(crate) fn start_close(completions: &Bound<'_, Completions>, number: u64, file: &Bound<'_, File>) -> Begun {
    let py = file.py();
    let Some(opened) = file.get().take() else { return Ok(Some((py.None(), false))) };
    let path = opened.path().to_owned();
    let close = nowait::embed::blocking(Nowait::shared(), ErrorOp::Close, path, move |_| opened.close());
    deliver((completions, number), (close.start(), 0), |py, closed| {
        closed.and_then(|closed| closed).or_raise(py)?;
        Ok(py.None())
    })
}

/// Reads ranges on the driver: one completion for all of them.
#[pyfunction]
#[pyo3(signature = (completions, number, file, offsets, lengths, out, partial))]
pub(crate) fn start_gather(
    completions: &Bound<'_, Completions>,
    number: u64,
    file: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    partial: bool,
) -> PyResult<Running> {
    let py = file.py();
    let opened = file::source(file)?;
    let ranges = Ranges::new(offsets, lengths, opened.path())?;
    let (memory, loan) = gather::memory(py, out, ranges.total)?;
    let (memory, to, plan) = (memory.unbind(), completions.get().receiver(number), Plan::of(&ranges));
    spawn(async move {
        let extents = ranges.extents;
        let read = opened.gather(&*extents).into_buffer(Lent::new(loan)).await;
        let read = read.map_err(Error::from).map(|gathered| {
            let mut incomplete = Incomplete::default();
            incomplete.add(gathered.exceptions(), 0);
            (incomplete, gathered.into_buffer())
        });
        to.put(move |py| {
            let (incomplete, lent) = read.or_raise(py)?;
            drop(lent);
            let short = gather::short(py, opened.path(), &extents, incomplete, partial)?;
            plan.finish(memory.bind(py), short)?.into_py_any(py)
        });
    })
}
