//! Copies of files and trees.

use std::path::PathBuf;
use std::time::Duration;

use nowait_copy::{Failure, FailureKind, Options, Reflink, Report, Sync, Update};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::make;
use crate::file;

/// The longest sleep between two looks at a copy.
const LOOK: Duration = Duration::from_millis(50);

/// How to copy: the keywords of `nowait.copy`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct How {
    sync: String,
    reflink: String,
    update: String,
    verify: bool,
    resume: bool,
    cache_neutral: bool,
    dry_run: bool,
    no_target_directory: bool,
    bytes_per_second_max: Option<u64>,
    include: Vec<String>,
    exclude: Vec<String>,
}

impl How {
    fn options(self) -> PyResult<Options> {
        let word = |name: &str, word: &str, known: &str| {
            PyValueError::new_err(format!("{name} is {word:?}; give one of {known}"))
        };
        let options = Options::new()
            .sync(match &*self.sync {
                "none" => Sync::None,
                "file" => Sync::File,
                "all" => Sync::All,
                other => return Err(word("sync", other, "none, file, all")),
            })
            .reflink(match &*self.reflink {
                "auto" => Reflink::Auto,
                "always" => Reflink::Always,
                "never" => Reflink::Never,
                other => return Err(word("reflink", other, "auto, always, never")),
            })
            .update(match &*self.update {
                "all" => Update::All,
                "older" => Update::Older,
                "none" => Update::None,
                other => return Err(word("update", other, "all, older, none")),
            })
            .verify(self.verify)
            .resume(self.resume)
            .cache_neutral(self.cache_neutral)
            .dry_run(self.dry_run)
            .no_target_directory(self.no_target_directory)
            .bytes_per_second_max(self.bytes_per_second_max);
        let options = self.include.into_iter().fold(options, Options::include);
        Ok(self.exclude.into_iter().fold(options, Options::exclude))
    }
}

/// Copies files or trees; returns a report, with the failures as exceptions.
#[pyfunction]
#[pyo3(signature = (sources, target, progress, how))]
pub(crate) fn copy<'py>(
    sources: Vec<Bound<'py, PyAny>>,
    target: &Bound<'py, PyAny>,
    progress: Option<&Bound<'py, PyAny>>,
    how: How,
) -> PyResult<Bound<'py, PyDict>> {
    let py = target.py();
    let options = how.options()?.count_first(progress.is_some());
    let sources = sources.iter().map(file::path).collect::<PyResult<Vec<PathBuf>>>()?;
    let target = file::path(target)?;
    let copying = nowait_copy::start(&sources, &target, &options).map_err(|failure| raised(py, &failure))?;
    let mut sleep = Duration::from_micros(200);
    while !copying.is_finished() {
        py.detach(|| std::thread::sleep(sleep));
        sleep = (sleep * 2).min(LOOK);
        if let Err(raised) = py.check_signals().and_then(|()| tell(progress, &copying.progress())) {
            copying.cancel();
            // The target has the old file or the new one when this returns.
            let _ = py.detach(|| copying.wait());
            return Err(raised);
        }
    }
    tell(progress, &copying.progress())?;
    let report = py.detach(|| copying.wait()).map_err(|failure| raised(py, &failure))?;
    object(py, &report)
}

fn tell(callback: Option<&Bound<'_, PyAny>>, progress: &nowait_copy::Progress) -> PyResult<()> {
    let Some(callback) = callback else { return Ok(()) };
    let told = PyDict::new(callback.py());
    told.set_item("bytes", progress.bytes)?;
    told.set_item("files", progress.files)?;
    told.set_item("bytes_found", progress.bytes_found)?;
    told.set_item("files_found", progress.files_found)?;
    told.set_item("is_walked", progress.is_walked)?;
    told.set_item("elapsed_s", progress.elapsed.as_secs_f64())?;
    told.set_item("left_s", progress.time_left().map(|left| left.as_secs_f64()))?;
    callback.call1((told,)).map(drop)
}

fn object<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let object = PyDict::new(py);
    object.set_item("files", report.files)?;
    object.set_item("directories", report.directories)?;
    object.set_item("nodes", report.nodes)?;
    object.set_item("hard_links", report.hard_links)?;
    object.set_item("bytes", report.bytes)?;
    object.set_item("skipped", report.skipped)?;
    object.set_item("verified", report.verified)?;
    object.set_item("elapsed_s", report.elapsed.as_secs_f64())?;
    for (name, failures) in [("failures", &report.failures), ("warnings", &report.warnings)] {
        object.set_item(name, failures.iter().map(|failure| raised(py, failure).into_value(py)).collect::<Vec<_>>())?;
    }
    Ok(object)
}

/// The exception of a failure.
fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let kind = match failure.kind() {
        FailureKind::System(kind) => format!("{kind:?}"),
        FailureKind::Usage => "InvalidInput".to_owned(),
        other => format!("{other:?}"),
    };
    let path = Some(failure.path().as_os_str());
    make(py, &kind, failure.raw_os_error(), &failure.to_string(), path, (None, failure.offset(), None))
}
