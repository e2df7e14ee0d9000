//! Names of files, where Python's own functions do less.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::error::OrRaise;

/// Renames a file; replaces another one, even while that is open.
#[pyfunction]
pub(crate) fn rename(py: Python<'_>, source: PathBuf, target: PathBuf) -> PyResult<()> {
    py.detach(|| nowait::fs::rename(source, target).wait()).or_raise(py)
}
