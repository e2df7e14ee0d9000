//! The result of a gather, for Python.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PySlice};

use crate::memory::{Loan, View};
use crate::ranges::Ranges;

/// Result of a gather: the ranges in the caller's order, consecutive in one memory.
///
/// It is a sequence of memoryviews, one for each range, and also a buffer.
/// `numpy.asarray(gathered)` returns all bytes without a copy, as one row for each range if all
/// have the same length.
#[pyclass(frozen, extends = View, sequence, module = "nowait")]
pub(crate) struct Gathered {
    /// All bytes, in one dimension.
    bytes: Py<PyAny>,
    places: Places,
    /// Ranges that the end of the file cut short: bytes read, by index.
    short: Vec<(usize, usize)>,
}

/// Position of each range in the memory.
enum Places {
    Uniform { count: usize, length: usize },
    Ends(Vec<usize>),
}

impl Places {
    fn len(&self) -> usize {
        match self {
            Places::Uniform { count, .. } => *count,
            Places::Ends(ends) => ends.len(),
        }
    }

    /// Returns first byte and length of range `index`.
    fn of(&self, index: usize) -> Option<(usize, usize)> {
        match self {
            Places::Uniform { count, length } => (index < *count).then_some((index * length, *length)),
            Places::Ends(ends) => {
                let end = *ends.get(index)?;
                let start = if index == 0 { 0 } else { ends[index - 1] };
                Some((start, end - start))
            }
        }
    }
}

/// Last step after the read, which needs a Python thread state.
pub(crate) struct Plan {
    places: Places,
    total: usize,
}

impl Plan {
    pub(crate) fn of(ranges: &Ranges) -> Plan {
        let places = match ranges.uniform {
            Some(length) => Places::Uniform { count: ranges.extents.len(), length },
            None => {
                let mut end = 0;
                let ends = ranges.extents.iter().map(|range| {
                    end += range.1;
                    end
                });
                Places::Ends(ends.collect())
            }
        };
        Plan { places, total: ranges.total }
    }

    /// Makes the result from `memory`, whose first bytes are filled.
    pub(crate) fn finish(self, memory: &Bound<'_, PyAny>, short: Vec<(usize, usize)>) -> PyResult<Py<Gathered>> {
        let (py, Plan { places, total }) = (memory.py(), self);
        let bytes = flat(memory, total)?;
        let shaped = match places {
            Places::Uniform { count, length } if total > 0 => bytes.call_method1("cast", ("B", (count, length)))?,
            _ => bytes.clone(),
        };
        let gathered = Gathered { bytes: bytes.unbind(), places, short };
        Py::new(py, PyClassInitializer::from(View::of(shaped.unbind())).add_subclass(gathered))
    }
}

/// Returns the first `total` bytes of a memory, as a memoryview in one dimension.
pub(crate) fn flat<'py>(memory: &Bound<'py, PyAny>, total: usize) -> PyResult<Bound<'py, PyAny>> {
    let py = memory.py();
    if total == 0 {
        // An empty memoryview cannot be cast. A bytearray's memoryview is writable.
        return Ok(PyMemoryView::from(PyByteArray::new(py, b"").as_any())?.into_any());
    }
    part(&PyMemoryView::from(memory)?.call_method1("cast", ("B",))?, 0, total)
}

/// Returns `length` bytes of a memoryview from `start` on.
pub(crate) fn part<'py>(bytes: &Bound<'py, PyAny>, start: usize, length: usize) -> PyResult<Bound<'py, PyAny>> {
    bytes.get_item(PySlice::new(bytes.py(), start as isize, (start + length) as isize, 1))
}

#[pymethods]
impl Gathered {
    fn __len__(&self) -> usize {
        self.places.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let count = self.places.len();
        let number = if index < 0 { index + count as isize } else { index };
        let place = usize::try_from(number).ok().and_then(|number| Some((number, self.places.of(number)?)));
        let Some((number, (start, length))) = place else {
            return Err(PyIndexError::new_err(format!("range {index} of {count}")));
        };
        let length = self.short.binary_search_by_key(&number, |short| short.0).map_or(length, |at| self.short[at].1);
        part(self.bytes.bind(py), start, length)
    }

    /// All bytes, one range after the other. Missing bytes of short ranges are zero.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyAny> {
        self.bytes.clone_ref(py)
    }

    /// Copies each range into a separate `bytes` object.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let lengths = self.lengths();
        let loan = Loan::readable(self.bytes.bind(py))?;
        let all = loan.as_ref();
        let places = lengths.into_iter().enumerate().filter_map(|(index, length)| {
            let (start, _) = self.places.of(index)?;
            Some(PyBytes::new(py, &all[start..start + length]))
        });
        let list = places.collect();
        loan.release(py);
        Ok(list)
    }

    /// Number of bytes read of each range.
    #[getter]
    fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> =
            (0..self.places.len()).filter_map(|index| self.places.of(index)).map(|(_, length)| length).collect();
        for (index, length) in &self.short {
            lengths[*index] = *length;
        }
        lengths
    }

    /// Ranges that the end of the file cut short: index and number of bytes read.
    #[getter]
    fn short(&self) -> Vec<(usize, usize)> {
        self.short.clone()
    }

    fn __repr__(&self) -> String {
        let short = match self.short.len() {
            0 => String::new(),
            short => format!(", {short} of them short"),
        };
        format!("<nowait.Gathered: {} ranges{short}>", self.places.len())
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.bytes)
    }
}
