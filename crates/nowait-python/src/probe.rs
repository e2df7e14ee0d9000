//! Reports how files are served at a path.

use nowait_probe::Options;
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::file;

/// Probes how files are served at a path; returns the report as JSON, like the command.
#[pyfunction]
#[pyo3(signature = (path, shallow, evict, requests))]
pub(crate) fn probe_json(path: &Bound<'_, PyAny>, shallow: bool, evict: bool, requests: u32) -> PyResult<String> {
    let (py, path) = (path.py(), file::path(path)?);
    let options = Options::new().shallow(shallow).evict(evict).requests(requests);
    let report = py.detach(|| options.run(&path)).or_raise(py)?;
    Ok(report.to_json().to_string())
}
