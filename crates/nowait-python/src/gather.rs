//! Blocking gathers: many ranges of one file, by one call, into one memory or a list.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use nowait::{Error, ErrorKind, ErrorOp, Exceptions, File};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{OrRaise, exception};
use crate::gathered::{Gathered, Plan};
use crate::memory::{Buffer, Loan, NewBytes, has_buffer, release_pending};
use crate::ranges::{Extent, Ranges};

/// Approximate interval at which a call checks for signals.
const LOOK: Duration = Duration::from_millis(100);
/// Number of ranges and of bytes that are read before the first check for signals, which measures
/// their duration.
const FIRST_RANGES: usize = 1024;
const FIRST_BYTES: usize = 64 << 20;

/// Reads ranges of `file` into `out`, or into new memory. Releases the GIL meanwhile.
pub(crate) fn blocking(
    file: &File,
    offsets: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    partial: bool,
) -> PyResult<Py<Gathered>> {
    let py = offsets.py();
    let ranges = Ranges::new(offsets, lengths, file.path())?;
    // A long range may lie past the end of the file: zeros take no memory until they are touched.
    let is_zeroed = partial && out.is_none() && ranges.total > FIRST_BYTES;
    let (memory, mut loan) = match is_zeroed {
        true => lent(Bound::new(py, Buffer::zeroed(ranges.total)?)?.into_any(), ranges.total)?,
        false => memory(py, out, ranges.total)?,
    };
    let read = read(py, file, &ranges.extents, &mut loan.as_mut()[..ranges.total], !is_zeroed);
    loan.release(py);
    let short = short(py, file.path(), &ranges.extents, read?, partial)?;
    Plan::of(&ranges).finish(&memory, short)
}

/// Reads like `gather`, into a list of `bytes` objects. It copies each range while others are read.
#[pyfunction]
#[pyo3(signature = (file, offsets, lengths, *, partial = false))]
pub(crate) fn gather_list(
    file: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    partial: bool,
) -> PyResult<Vec<Py<PyBytes>>> {
    let (py, file) = (file.py(), crate::file::source(file)?);
    let extents = Ranges::new(offsets, lengths, file.path())?.extents;
    let read = read_each(py, &file, &extents);
    release_pending(py);
    let (objects, incomplete) = read?;
    short(py, file.path(), &extents, incomplete, partial)?;
    Ok(objects)
}

/// Returns lent memory of `total` bytes: the caller's, if given.
pub(crate) fn memory<'py>(
    py: Python<'py>,
    out: Option<&Bound<'py, PyAny>>,
    total: usize,
) -> PyResult<(Bound<'py, PyAny>, Loan)> {
    let memory = match out {
        Some(out) => exporter(out)?,
        None => Bound::new(py, Buffer::new(total)?)?.into_any(),
    };
    lent(memory, total)
}

fn lent(memory: Bound<'_, PyAny>, total: usize) -> PyResult<(Bound<'_, PyAny>, Loan)> {
    let loan = Loan::writable(&memory)?;
    let room = loan.as_ref().len();
    if room < total {
        loan.release(memory.py());
        return Err(PyValueError::new_err(format!("out has {room} bytes; the lengths add up to {total}")));
    }
    Ok((memory, loan))
}

/// Returns the object whose buffer to use: the argument itself, or numpy's array of a tensor
/// without a buffer.
fn exporter<'py>(out: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = out.py();
    if has_buffer(out) || !out.hasattr(pyo3::intern!(py, "__dlpack__"))? {
        return Ok(out.clone());
    }
    py.import(pyo3::intern!(py, "numpy"))?.call_method1(pyo3::intern!(py, "from_dlpack"), (out,))
}

/// Incomplete ranges: index and bytes read of ranges that the end of the file cut short, and
/// errors.
#[derive(Default)]
pub(crate) struct Incomplete {
    pub(crate) short: Vec<(usize, usize)>,
    pub(crate) errors: Vec<Error>,
}

impl Incomplete {
    /// Adds the results of a part of the list that begins with range `first`.
    pub(crate) fn add(&mut self, exceptions: &Exceptions, first: usize) {
        self.short.extend(exceptions.short().iter().map(|(index, n)| (first + index, *n)));
        let numbered = |error: &Error| error.clone().with_index(first + error.range_index().unwrap_or(0));
        self.errors.extend(exceptions.errors().iter().map(numbered));
    }
}

/// Returns the ranges that are short, if they may be.
///
/// # Errors
/// The error of the first range that failed, or is short although `partial` is false.
pub(crate) fn short(
    py: Python<'_>,
    path: &Path,
    extents: &[Extent],
    incomplete: Incomplete,
    partial: bool,
) -> PyResult<Vec<(usize, usize)>> {
    let Incomplete { short, errors } = incomplete;
    let failed = errors.first();
    let (index, n) = match short.first().filter(|_| !partial) {
        Some(first) if failed.is_none_or(|error| Some(first.0) < error.range_index()) => *first,
        _ => return failed.map_or(Ok(short), |error| Err(exception(py, error))),
    };
    Err(exception(py, &too_short(path, index, extents[index], n)))
}

/// Returns the error for a range of which the file contains only `n` bytes.
pub(crate) fn too_short(path: &Path, index: usize, (offset, length): Extent, n: usize) -> Error {
    let error = Error::new(ErrorOp::Gather, ErrorKind::UnexpectedEof).at(path).with_index(index);
    let advice = format!("only {n} bytes are available; partial=True accepts a short range");
    error.with_range(offset, length as u64).with_advice(advice)
}

/// Parts of a list of ranges; the call checks for signals between them.
pub(crate) struct Parts {
    next: usize,
    ranges_max: usize,
    bytes_max: usize,
}

/// Positions of ranges in the list, and their total number of bytes.
pub(crate) struct Part {
    pub(crate) places: Range<usize>,
    pub(crate) bytes: usize,
    /// A single range that takes longer than a part should.
    pub(crate) is_long: bool,
}

impl Parts {
    pub(crate) fn new() -> Parts {
        Parts { next: 0, ranges_max: FIRST_RANGES, bytes_max: FIRST_BYTES }
    }

    /// Returns the next part. Checks for signals first, except before the first part.
    pub(crate) fn next(&mut self, py: Python<'_>, extents: &[Extent]) -> PyResult<Option<Part>> {
        let start = self.next;
        if start == extents.len() {
            return Ok(None);
        }
        if start > 0 {
            py.check_signals()?;
        }
        let (mut end, mut bytes) = (start, 0);
        while end < extents.len()
            && end - start < self.ranges_max
            && (end == start || bytes + extents[end].1 <= self.bytes_max)
        {
            bytes += extents[end].1;
            end += 1;
        }
        self.next = end;
        Ok(Some(Part { places: start..end, bytes, is_long: end - start == 1 && bytes > self.bytes_max }))
    }

    /// Records the duration of a part, and sets the next part to the number of ranges that fill the
    /// interval. The number is at least one, so that the call ends.
    pub(crate) fn took(&mut self, elapsed: Duration) {
        let times = (LOOK.as_secs_f64() / elapsed.as_secs_f64().max(1e-6)).clamp(0.5, 64.0);
        self.ranges_max = ((self.ranges_max as f64 * times) as usize).max(1);
        self.bytes_max = ((self.bytes_max as f64 * times) as usize).max(1 << 20);
    }
}

/// Reads ranges, and checks for signals in between. If `clears`, zeroes the missing bytes of a long
/// range.
fn read(py: Python<'_>, file: &File, extents: &[Extent], mut output: &mut [u8], clears: bool) -> PyResult<Incomplete> {
    let mut incomplete = Incomplete::default();
    let mut parts = Parts::new();
    while let Some(Part { places, bytes, is_long }) = parts.next(py, extents)? {
        let (part, rest) = std::mem::take(&mut output).split_at_mut(bytes);
        output = rest;
        if is_long {
            let done = long(py, file, places.start, extents[places.start], part, &mut incomplete)?;
            if clears {
                part[done..].fill(0);
            }
            continue;
        }
        let began = Instant::now();
        let exceptions = py.detach(|| file.gather_into(&extents[places.clone()], part)).or_raise(py)?;
        incomplete.add(&exceptions, places.start);
        parts.took(began.elapsed());
    }
    Ok(incomplete)
}

/// Reads ranges, each into a separate object, and checks for signals in between.
fn read_each(py: Python<'_>, file: &File, extents: &[Extent]) -> PyResult<(Vec<Py<PyBytes>>, Incomplete)> {
    let mut incomplete = Incomplete::default();
    let mut objects = Vec::with_capacity(extents.len());
    let mut parts = Parts::new();
    while let Some(Part { places, bytes, is_long }) = parts.next(py, extents)? {
        if is_long {
            let mut loan = Loan::bytes(py, bytes)?;
            let done = long(py, file, places.start, extents[places.start], loan.as_mut(), &mut incomplete)?;
            objects.push(loan.into_bytes(py, done));
            continue;
        }
        let (began, extents) = (Instant::now(), &extents[places.clone()]);
        let mut made = extents.iter().map(|extent| NewBytes::new(py, extent.1)).collect::<PyResult<Vec<_>>>()?;
        let Incomplete { short, errors } = &mut incomplete;
        let take = |index: usize, read: Result<&[u8], &Error>| match read {
            Ok(read) => {
                made[index].fill(read);
                if read.len() < extents[index].1 {
                    short.push((places.start + index, read.len()));
                }
            }
            Err(error) => errors.push(error.clone().with_index(places.start + index)),
        };
        py.detach(|| file.gather(extents).each(take).wait()).or_raise(py)?;
        objects.extend(made.into_iter().map(|object| object.finish(py)));
        parts.took(began.elapsed());
    }
    // Both lists are in order of completion.
    incomplete.short.sort_unstable();
    incomplete.errors.sort_by_key(Error::range_index);
    Ok((objects, incomplete))
}

/// Reads one long range piece by piece; returns the number of bytes that the file contains.
pub(crate) fn long(
    py: Python<'_>,
    file: &File,
    index: usize,
    (offset, length): Extent,
    output: &mut [u8],
    incomplete: &mut Incomplete,
) -> PyResult<usize> {
    let mut done = 0;
    for piece in output.chunks_mut(FIRST_BYTES) {
        py.check_signals()?;
        let extent = [(offset + done as u64, piece.len())];
        let exceptions = py.detach(|| file.gather_into(&extent, piece)).or_raise(py)?;
        if let Some(error) = exceptions.errors().first() {
            incomplete.errors.push(error.clone().with_index(index).with_range(offset, length as u64));
            return Ok(done);
        }
        match exceptions.short() {
            [] => done += piece.len(),
            [(_, n), ..] => {
                done += n;
                break;
            }
        }
    }
    if done < length {
        incomplete.short.push((index, done));
    }
    Ok(done)
}

/// Reads `lengths[i]` bytes at `offsets[i]` of a file, for all i, one range after the other.
///
/// `file` is a path, a descriptor, an object with `fileno()`, or a `File`. A `File` is opened once,
/// and remembers how its reads were served. `lengths` is one length for all ranges, or one for each
/// offset. `out` is a writable, C-contiguous buffer of at least the sum of the lengths; the default
/// is new memory.
///
/// A range past the end of the file raises `EndOfFileError`; with `partial`, it is shorter instead.
/// The call releases the GIL.
#[pyfunction]
#[pyo3(signature = (file, offsets, lengths, out = None, *, partial = false))]
pub(crate) fn gather(
    file: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    partial: bool,
) -> PyResult<Py<Gathered>> {
    blocking(&crate::file::source(file)?, offsets, lengths, out, partial)
}
