//! Copies of files and trees.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nowait_copy::{Failure, FailureKind, Options, Progress, Reflink, Report, SyncPolicy, Update};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::completions::{Completions, Receiver};
use crate::error::make;
use crate::file;

/// Maximum sleep between two checks of a copy.
const LOOK: Duration = Duration::from_millis(50);

/// Options of a copy: the keywords of `nowait.copy`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct CopyOptions {
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

impl CopyOptions {
    fn options(self) -> PyResult<Options> {
        let word = |name: &str, word: &str, known: &str| {
            PyValueError::new_err(format!("{name} is {word:?}; give one of {known}"))
        };
        let options = Options::new()
            .sync(match &*self.sync {
                "none" => SyncPolicy::None,
                "file" => SyncPolicy::File,
                "all" => SyncPolicy::All,
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
    how: CopyOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let py = target.py();
    let plan = CopyPlan::new(&sources, target, how, progress.is_some())?;
    let copying = plan.start().map_err(|failure| raised(py, &failure))?;
    let looked = watch(
        &copying,
        |nap| py.detach(|| std::thread::sleep(nap)),
        |now| py.check_signals().and_then(|()| tell(progress, now)),
    );
    if let Err(raised) = looked {
        copying.cancel();
        // Waits until the name refers to the old file or the complete new one.
        let _ = py.detach(|| copying.wait());
        return Err(raised);
    }
    tell(progress, &copying.progress())?;
    let report = py.detach(|| copying.wait()).map_err(|failure| raised(py, &failure))?;
    object(py, &report)
}

/// Sources, target and options of a copy.
struct CopyPlan {
    sources: Vec<PathBuf>,
    target: PathBuf,
    options: Options,
}

impl CopyPlan {
    fn new(
        sources: &[Bound<'_, PyAny>],
        target: &Bound<'_, PyAny>,
        how: CopyOptions,
        tells_progress: bool,
    ) -> PyResult<CopyPlan> {
        let options = how.options()?.count_first(tells_progress);
        let sources = sources.iter().map(file::path).collect::<PyResult<_>>()?;
        Ok(CopyPlan { sources, target: file::path(target)?, options })
    }

    fn start(&self) -> nowait_copy::Result<nowait_copy::Started> {
        nowait_copy::start(&self.sources, &self.target, &self.options)
    }
}

/// Calls the check of a copy until the copy ends or the check fails: at short intervals first, then
/// twenty times a second.
fn watch<E>(
    copying: &nowait_copy::Started,
    sleep: impl Fn(Duration),
    mut look: impl FnMut(&Progress) -> Result<(), E>,
) -> Result<(), E> {
    let mut nap = Duration::from_micros(200);
    while !copying.is_finished() {
        sleep(nap);
        nap = (nap * 2).min(LOOK);
        look(&copying.progress())?;
    }
    Ok(())
}

/// State of a copy that its watching thread reports to the awaiting task.
#[derive(Default)]
struct News {
    progress: Option<Progress>,
    report: Option<nowait_copy::Result<Report>>,
    /// True after the last result.
    has_ended: bool,
    is_cancelled: bool,
    /// Receiver of the loop whose task waits.
    waiting: Option<Receiver>,
}

#[derive(Clone, Default)]
struct SharedNews(Arc<Mutex<News>>);

impl SharedNews {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the shared state of the copy, and wakes the task.
    fn change(&self, change: impl FnOnce(&mut News)) {
        let mut news = self.lock();
        change(&mut news);
        let waiting = news.waiting.take();
        drop(news);
        if let Some(waiting) = waiting {
            waiting.put(|py| Ok(py.None()));
        }
    }
}

/// Records the end of the thread, also after a panic.
struct EndsNews(SharedNews);

impl Drop for EndsNews {
    fn drop(&mut self) {
        self.0.change(|news| news.has_ended = true);
    }
}

/// A copy that a task awaits.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Copying(SharedNews);

#[pymethods]
impl Copying {
    /// Takes the reported state: progress, or at the end the report. `None` if the task must wait
    /// for completion `number`.
    ///
    /// # Errors
    /// The exception of a copy that could not start.
    fn poll<'py>(&self, completions: &Bound<'py, Completions>, number: u64) -> PyResult<Option<Told<'py>>> {
        let py = completions.py();
        let mut news = self.0.lock();
        let (progress, report) = (news.progress.take(), news.report.take());
        if progress.is_none() && report.is_none() {
            if news.has_ended {
                return Err(PyRuntimeError::new_err("the copy has panicked"));
            }
            news.waiting = Some(completions.get().receiver(number));
            return Ok(None);
        }
        drop(news);
        let report = report.transpose().map_err(|failure| raised(py, &failure))?;
        let report = report.map(|report| object(py, &report)).transpose()?;
        Ok(Some((progress.map(|progress| distance(py, &progress)).transpose()?, report)))
    }

    /// Cancels the copy: each file in progress stops within a block, and keeps its old target.
    fn cancel(&self) {
        self.0.lock().is_cancelled = true;
    }
}

type Told<'py> = (Option<Bound<'py, PyDict>>, Option<Bound<'py, PyDict>>);

/// Like `copy`, for a loop: a separate thread starts and watches the copy.
#[pyfunction]
pub(crate) fn start_copy(
    sources: Vec<Bound<'_, PyAny>>,
    target: &Bound<'_, PyAny>,
    tells_progress: bool,
    how: CopyOptions,
) -> PyResult<Copying> {
    let plan = CopyPlan::new(&sources, target, how, tells_progress)?;
    let shared = SharedNews::default();
    let end = EndsNews(shared.clone());
    nowait::embed::spawn("nowait-watch", move || run(&plan, tells_progress, &end.0))
        .map_err(|error| crate::driver::no_thread(&error))?;
    Ok(Copying(shared))
}

fn run(plan: &CopyPlan, tells_progress: bool, shared: &SharedNews) {
    let mut last = None;
    let report = plan.start().and_then(|copying| {
        let watched = watch(&copying, std::thread::sleep, |now| {
            if tells_progress {
                shared.change(|news| news.progress = Some(*now));
            }
            if shared.lock().is_cancelled { Err(()) } else { Ok(()) }
        });
        if watched.is_err() {
            copying.cancel();
        }
        let progress = copying.watcher();
        let report = copying.wait();
        last = tells_progress.then(progress);
        report
    });
    shared.change(|news| (news.progress, news.report) = (last, Some(report)));
}

fn tell(callback: Option<&Bound<'_, PyAny>>, progress: &Progress) -> PyResult<()> {
    let Some(callback) = callback else { return Ok(()) };
    callback.call1((distance(callback.py(), progress)?,)).map(drop)
}

fn distance<'py>(py: Python<'py>, progress: &Progress) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("bytes", progress.bytes)?;
    told.set_item("files", progress.files)?;
    told.set_item("bytes_found", progress.bytes_found)?;
    told.set_item("files_found", progress.files_found)?;
    told.set_item("is_walked", progress.is_walked)?;
    told.set_item("elapsed_s", progress.elapsed.as_secs_f64())?;
    told.set_item("left_s", progress.time_left().map(|left| left.as_secs_f64()))?;
    Ok(told)
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
    object.set_item("resumed_bytes", report.resumed_bytes)?;
    object.set_item("elapsed_s", report.elapsed.as_secs_f64())?;
    for (name, failures) in [("failures", &report.failures), ("warnings", &report.warnings)] {
        object.set_item(name, failures.iter().map(|failure| raised(py, failure).into_value(py)).collect::<Vec<_>>())?;
    }
    Ok(object)
}

/// Returns the exception for a failure.
fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let kind = match failure.kind() {
        FailureKind::System(kind) => format!("{kind:?}"),
        FailureKind::Usage => "InvalidInput".to_owned(),
        other => format!("{other:?}"),
    };
    let path = Some(failure.path().as_os_str());
    make(py, &kind, failure.raw_os_error(), &failure.to_string(), path, (None, failure.offset(), None))
}
