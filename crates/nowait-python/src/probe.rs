//! How files are served at a path.

use nowait_probe::{Options, Outcome, Rates, Report, Row};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error::OrRaise;
use crate::file;

/// Finds out how files are served at a path: see `nowait.probe`.
#[pyfunction]
#[pyo3(signature = (path, *, shallow = true, evict = false, requests = 32))]
pub(crate) fn probe<'py>(
    path: &Bound<'py, PyAny>,
    shallow: bool,
    evict: bool,
    requests: u32,
) -> PyResult<Bound<'py, PyDict>> {
    let (py, path) = (path.py(), file::path(path)?);
    let options = Options::new().shallow(shallow).evict(evict).requests(requests);
    let report = py.detach(|| options.run(&path)).or_raise(py)?;
    object(py, &report)
}

fn object<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let object = PyDict::new(py);
    object.set_item("path", report.path.as_os_str())?;
    object.set_item("subject", format!("{:?}", report.subject).to_lowercase())?;

    let ring = PyDict::new(py);
    ring.set_item("available", report.reach.refusal.is_none())?;
    ring.set_item("refusal", report.reach.refusal.as_ref().map(ToString::to_string))?;
    ring.set_item("remedy", &report.reach.remedy)?;
    ring.set_item("operations", report.reach.operations.iter().copied().collect::<std::collections::BTreeMap<_, _>>())?;
    object.set_item("io_uring", ring)?;

    let place = PyDict::new(py);
    place.set_item("file_system", &report.place.file_system)?;
    place.set_item("mount_options", &report.place.mount_options)?;
    place.set_item("device", report.place.device.as_ref().map(|device| &device.name))?;
    let device = report.place.device.as_ref();
    place.set_item("read_ahead_bytes", device.and_then(|device| device.read_ahead_bytes))?;
    place.set_item("scheduler", device.and_then(|device| device.scheduler.clone()))?;
    object.set_item("place", place)?;

    let abilities = PyDict::new(py);
    abilities.set_item("nowait_reads", report.abilities.nowait_reads)?;
    abilities.set_item("nowait_writes", report.abilities.nowait_writes)?;
    abilities.set_item("nowait_direct_reads", report.abilities.nowait_direct_reads)?;
    abilities.set_item("uncached_writes", report.abilities.uncached_writes)?;
    abilities
        .set_item("direct", report.abilities.direct.map(|direct| matches!(direct, nowait::DirectIo::Granted { .. })))?;
    object.set_item("abilities", abilities)?;

    object.set_item("confirmed", report.unconfirmed().is_none())?;
    object.set_item("unconfirmed", report.unconfirmed())?;
    object.set_item(
        "rows",
        rows(py, "scratch", &report.scratch)?.into_iter().chain(rows(py, "file", &report.file)?).collect::<Vec<_>>(),
    )?;
    object.set_item("scratch_error", report.scratch_error.as_ref().map(ToString::to_string))?;
    object.set_item("file_error", report.file_error.as_ref().map(ToString::to_string))?;
    Ok(object)
}

fn rows<'py>(py: Python<'py>, of: &str, rows: &[Row]) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let row = |row: &Row| {
        let object = PyDict::new(py);
        object.set_item("of", of)?;
        object.set_item("request", row.case.name())?;
        outcome(&object, &row.ring)?;
        object.set_item("reason", row.reason.map(|reason| reason.name()))?;
        let served = row.nowait.as_ref();
        for (name, count) in [
            ("nowait_inline", served.map(|served| served.inline)),
            ("nowait_ring", served.map(|served| served.ring)),
            ("nowait_aio", served.map(|served| served.aio)),
            ("nowait_pool", served.map(|served| served.pool)),
        ] {
            object.set_item(name, count)?;
        }
        object.set_item("nowait_median_ns", served.map(|served| served.total_ns.median))?;
        let steps = PyList::empty(py);
        for step in &row.steps {
            let object = PyDict::new(py);
            object.set_item("depth", step.depth)?;
            object.set_item("bytes", step.bytes)?;
            outcome(&object, &step.ring)?;
            steps.append(object)?;
        }
        object.set_item("steps", steps)?;
        Ok(object)
    };
    rows.iter().map(row).collect()
}

/// How a ring served it: a word, and counts where there are any.
fn outcome(object: &Bound<'_, PyDict>, outcome: &Outcome) -> PyResult<()> {
    let py = object.py();
    let (word, rates): (Py<PyAny>, Option<&Rates>) = match outcome {
        Outcome::Seen(rates) => (rates.verdict().way.name().into_py_any(py)?, Some(rates)),
        Outcome::Refused(errno) => (format!("refused (os error {errno})").into_py_any(py)?, None),
        Outcome::NotInState => ("not in that state".into_py_any(py)?, None),
        Outcome::CannotTell(why) => (format!("cannot tell: {why}").into_py_any(py)?, None),
        _ => ("unknown".into_py_any(py)?, None),
    };
    object.set_item("io_uring", word)?;
    object.set_item("requests", rates.map(|rates| rates.requests))?;
    object.set_item("worker", rates.map(|rates| rates.worker))?;
    object.set_item("median_ns", rates.map(|rates| rates.total_ns.median))?;
    Ok(())
}
