//! Converts errors of the library to Python exceptions, whose classes are in `nowait/_errors.py`.

use std::path::Path;

use nowait::{Error, ErrorKind, ErrorOp};
use pyo3::prelude::*;

/// Makes an exception of an error: an `OSError` with kind, errno, path, index, offset and length.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let path = error.path().map(Path::as_os_str);
    let place = (error.range_index(), error.offset(), error.length());
    make(py, &format!("{:?}", error.kind()), error.raw_os_error(), &error.to_string(), path, place)
}

/// Makes an exception of a kind that the library lacks, or for another crate's error.
pub(crate) fn make(
    py: Python<'_>,
    kind: &str,
    errno: Option<i32>,
    text: &str,
    path: Option<&std::ffi::OsStr>,
    (index, offset, length): (Option<usize>, Option<u64>, Option<u64>),
) -> PyErr {
    // Not cached: each interpreter has separate classes.
    let made = py
        .import(pyo3::intern!(py, "nowait._errors"))
        .and_then(|errors| errors.getattr(pyo3::intern!(py, "make")))
        .and_then(|make| make.call1((kind, errno, text, path, index, offset, length)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Error for a range that no file can contain, or for an argument that is not a range.
pub(crate) fn bad_range(py: Python<'_>, path: Option<&Path>, index: usize, text: &str) -> PyErr {
    let mut error = Error::new(ErrorOp::Gather, ErrorKind::InvalidInput).with_index(index).with_advice(text);
    if let Some(path) = path {
        error = error.at(path);
    }
    exception(py, &error)
}

/// `?` in functions that raise.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for nowait::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}
