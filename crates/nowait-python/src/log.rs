//! The durable log.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use nowait::{Error, ErrorKind};
use nowait_log::{Options, Reader, Recovery, Retention, Scan, Ticket};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::completions::{Completions, Receiver};
use crate::driver::{Running, spawn, wait};
use crate::error::{OrRaise, exception};
use crate::file;
use crate::memory::{Loan, release_pending};

/// Maximum number of records, and of their bytes, that a reader delivers at a time.
const BATCH_RECORDS: usize = 512;
const BATCH_BYTES: usize = 1 << 20;

/// A durable log: see `nowait.Log`.
#[pyclass(frozen, subclass, module = "nowait")]
pub(crate) struct Log {
    /// `None` after it is closed.
    log: Mutex<Option<nowait_log::Log>>,
    recovery: Recovery,
    path: std::path::PathBuf,
}

impl Log {
    fn get(&self, py: Python<'_>) -> PyResult<nowait_log::Log> {
        match &*self.log.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(log) => Ok(log.clone()),
            None => Err(exception(py, &Error::new(nowait_log::APPEND, ErrorKind::Closed).at(&self.path))),
        }
    }
}

/// Appends records as one batch; returns the number of the last.
async fn append(log: nowait_log::Log, records: Vec<bytes::Bytes>, durable: bool) -> nowait::Result<u64> {
    let ticket = match &records[..] {
        [one] => log.append(one).await,
        many => log.append_batch(many.iter().map(|record| &record[..])).await,
    }?;
    // The log has copied the records, so their memory is released.
    drop(records);
    let lsn = ticket.lsn();
    if durable {
        ticket.await?;
    }
    Ok(lsn)
}

/// Records that become durable together.
struct Group {
    lsns: Vec<nowait::Result<u64>>,
    /// Ticket of the last appended record. When it is durable, all records before it are.
    last: Option<Ticket>,
}

impl Group {
    fn add(&mut self, appended: nowait::Result<Ticket>) {
        self.lsns.push(appended.map(|ticket| {
            let lsn = ticket.lsn();
            self.last = Some(ticket);
            lsn
        }));
    }

    /// Delivers the result of each record.
    fn end(self, log: &nowait_log::Log, durable: nowait::Result<u64>, to: Receiver) {
        let durable_lsn = log.durable_lsn();
        to.put(move |py| {
            let object = |lsn: nowait::Result<u64>| match (lsn, &durable) {
                (Err(error), _) => Ok(exception(py, &error).into_value(py).into_any()),
                (Ok(lsn), Err(error)) if lsn > durable_lsn => Ok(exception(py, error).into_value(py).into_any()),
                (Ok(lsn), _) => lsn.into_py_any(py),
            };
            self.lsns.into_iter().map(object).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
        });
    }
}

fn lent(records: &[Bound<'_, PyAny>]) -> PyResult<Vec<bytes::Bytes>> {
    records.iter().map(|record| Ok(bytes::Bytes::from_owner(Loan::readable(record)?))).collect()
}

#[pymethods]
impl Log {
    #[new]
    #[pyo3(signature = (path, *, create = false, segment_bytes = None, retain_bytes = None, salvage = false,
        scan = "all", mode = None))]
    fn new(
        path: &Bound<'_, PyAny>,
        create: bool,
        segment_bytes: Option<u64>,
        retain_bytes: Option<u64>,
        salvage: bool,
        scan: &str,
        mode: Option<u32>,
    ) -> PyResult<Log> {
        let (py, path) = (path.py(), file::path(path)?);
        let scan = match scan {
            "all" => Scan::All,
            "tail" => Scan::Tail,
            other => return Err(PyValueError::new_err(format!("unknown scan {other:?}; give all or tail"))),
        };
        let mut options = Options::new().create(create).salvage(salvage).scan(scan);
        if let Some(bytes) = segment_bytes {
            options = options.segment_bytes(bytes);
        }
        if let Some(bytes) = retain_bytes {
            options = options.retain(Retention::bytes(bytes));
        }
        if let Some(mode) = mode {
            options = options.mode(mode);
        }
        let (log, recovery) = py.detach(|| nowait_log::Log::open(&path, &options).wait()).or_raise(py)?;
        Ok(Log { log: Mutex::new(Some(log)), recovery, path })
    }

    /// Appends records as one batch; returns the number of the last.
    fn append_batch(&self, py: Python<'_>, records: Vec<Bound<'_, PyAny>>, durable: bool) -> PyResult<u64> {
        let (log, records) = (self.get(py)?, lent(&records)?);
        if records.iter().map(|record| record.len()).sum::<usize>() > file::PIECE_BYTES {
            let result = wait(py, append(log, records, durable))?;
            release_pending(py);
            return result.or_raise(py);
        }
        let result = py.detach(|| {
            let append = match &records[..] {
                [one] => log.append(one),
                many => log.append_batch(many.iter().map(|record| &record[..])),
            };
            let ticket = append.wait()?;
            let lsn = ticket.lsn();
            if durable { ticket.wait() } else { Ok(lsn) }
        });
        drop(records);
        release_pending(py);
        result.or_raise(py)
    }

    /// Appends a record without waiting. Returns the record's number, and whether the task must
    /// yield to other tasks of the loop. Returns `None` if the log has no room now.
    fn try_append(
        &self,
        completions: &Bound<'_, Completions>,
        record: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(u64, bool)>> {
        let py = record.py();
        let log = self.get(py)?;
        let (appended, length) = match record.cast_exact::<PyBytes>() {
            Ok(bytes) => (log.try_append(bytes.as_bytes()), bytes.as_bytes().len()),
            Err(_) => {
                let loan = Loan::readable(record)?;
                let (appended, length) = (log.try_append(loan.as_ref()), loan.as_ref().len());
                loan.release(py);
                (appended, length)
            }
        };
        match appended {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            appended => Ok(Some((appended.or_raise(py)?.lsn(), completions.get().charge(length)))),
        }
    }

    /// Appends separate records, and makes them durable together. Completion `number` delivers a
    /// list with the number of each record, or an exception.
    fn start_group(
        &self,
        completions: &Bound<'_, Completions>,
        number: u64,
        records: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let log = self.get(completions.py())?;
        let to = completions.get().receiver(number);
        let mut group = Group { lsns: Vec::with_capacity(records.len()), last: None };
        let mut rest = Vec::new();
        for record in records.iter() {
            let bytes = record.cast::<PyBytes>()?.as_bytes();
            if rest.is_empty() {
                match log.try_append(bytes) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    appended => {
                        group.add(appended);
                        continue;
                    }
                }
            }
            // An earlier record waits for room, and the order must be kept.
            rest.push(bytes::Bytes::copy_from_slice(bytes));
        }
        if rest.is_empty() {
            match group.last.take() {
                Some(ticket) => ticket.on_durable(move |durable| group.end(&log, durable, to)),
                None => group.end(&log, Ok(0), to),
            }
            return Ok(());
        }
        spawn(async move {
            for record in rest {
                group.add(log.append(&record).await);
            }
            let durable = match group.last.take() {
                Some(ticket) => ticket.await,
                None => Ok(0),
            };
            group.end(&log, durable, to);
        })
        .map(drop)
    }

    /// Like `append_batch`, for an event loop.
    fn start_append(
        &self,
        completions: &Bound<'_, Completions>,
        number: u64,
        records: Vec<Bound<'_, PyAny>>,
        durable: bool,
    ) -> PyResult<Running> {
        let (log, records) = (self.get(completions.py())?, lent(&records)?);
        let to = completions.get().receiver(number);
        spawn(async move {
            let appended = append(log, records, durable).await;
            to.put(move |py| appended.or_raise(py)?.into_py_any(py));
        })
    }

    /// Waits until record `lsn` and all earlier records are durable. If the record is not appended
    /// yet, the call waits until another thread appends it or the log is closed.
    fn wait_durable(&self, py: Python<'_>, lsn: u64) -> PyResult<()> {
        let log = self.get(py)?;
        if log.durable_lsn() >= lsn {
            return Ok(());
        }
        py.detach(|| log.wait_durable(lsn.min(log.last_lsn())).wait()).or_raise(py)?;
        if log.durable_lsn() < lsn {
            // The record is not appended yet; another thread may append it.
            wait(py, async move { log.wait_durable(lsn).await }).and_then(|waited| waited.or_raise(py)).map(drop)?;
        }
        Ok(())
    }

    /// Like `wait_durable`, for an event loop.
    fn start_wait_durable(&self, completions: &Bound<'_, Completions>, number: u64, lsn: u64) -> PyResult<Running> {
        let (log, to) = (self.get(completions.py())?, completions.get().receiver(number));
        spawn(async move {
            let waited = log.wait_durable(lsn).await;
            to.put(move |py| waited.map(drop).or_raise(py)?.into_py_any(py));
        })
    }

    /// Last durable record; all earlier records are durable, too. Zero if there is none.
    #[getter]
    fn durable_lsn(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.durable_lsn())
    }

    /// Last appended record; zero if there is none.
    #[getter]
    fn last_lsn(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.last_lsn())
    }

    /// Directory of the log.
    #[getter]
    fn name(&self) -> &OsStr {
        self.path.as_os_str()
    }

    /// True if the log was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Findings of the opening: `first_lsn`, `last_lsn`, `closed` (the last process closed it),
    /// `torn` (a write was cut off), `damaged` (number of unreadable places), `created`,
    /// `segments`, `bytes_read` and `elapsed_s`.
    #[getter]
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        found(py, &self.recovery)
    }

    /// Reads durable records from `lsn` on.
    fn reader(&self, py: Python<'_>, lsn: u64, skip_damage: bool) -> PyResult<LogReader> {
        let log = self.get(py)?;
        let reading = Reading { log, reader: None, next_lsn: lsn, skips_damage: skip_damage, failed: None };
        Ok(LogReader { state: Arc::new(Mutex::new(reading)) })
    }

    /// Removes records before `lsn`, by whole segments.
    fn truncate_prefix(&self, py: Python<'_>, lsn: u64) -> PyResult<()> {
        let log = self.get(py)?;
        py.detach(|| log.truncate_prefix(lsn));
        Ok(())
    }

    /// Removes records after `lsn`; durable when the call returns.
    fn truncate_suffix(&self, py: Python<'_>, lsn: u64) -> PyResult<()> {
        let log = self.get(py)?;
        py.detach(|| log.truncate_suffix(lsn).wait()).or_raise(py)
    }

    /// Copies the log; returns the contents of the copy as `recovery` does.
    fn backup<'py>(&self, py: Python<'py>, destination: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let (log, destination) = (self.get(py)?, file::path(destination)?);
        let copied = wait(py, async move { log.backup(destination).await })?;
        found(py, &copied.or_raise(py)?)
    }

    /// Like `backup`, for an event loop.
    fn start_backup(
        &self,
        completions: &Bound<'_, Completions>,
        number: u64,
        destination: &Bound<'_, PyAny>,
    ) -> PyResult<Running> {
        let (log, destination) = (self.get(completions.py())?, file::path(destination)?);
        let to = completions.get().receiver(number);
        spawn(async move {
            let copied = log.backup(destination).await;
            to.put(move |py| found(py, &copied.or_raise(py)?)?.into_py_any(py));
        })
    }

    /// Writes all appended records, and closes the log.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).take();
        log.map_or(Ok(()), |log| py.detach(|| log.close().wait()).or_raise(py))
    }
}

fn found<'py>(py: Python<'py>, recovery: &Recovery) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("first_lsn", recovery.first_lsn)?;
    found.set_item("last_lsn", recovery.last_lsn)?;
    found.set_item("closed", recovery.closed)?;
    found.set_item("torn", recovery.torn.is_some())?;
    found.set_item("damaged", recovery.damage.len())?;
    found.set_item("created", recovery.created)?;
    found.set_item("segments", recovery.segments)?;
    found.set_item("bytes_read", recovery.bytes_read)?;
    found.set_item("elapsed_s", recovery.elapsed.as_secs_f64())?;
    Ok(found)
}

/// State of a reader. A task of the driver owns it while it waits for records.
struct Reading {
    log: nowait_log::Log,
    reader: Option<Reader>,
    /// LSN from which reading restarts after the task was cancelled.
    next_lsn: u64,
    skips_damage: bool,
    /// Error that followed the records of the last batch.
    failed: Option<Error>,
}

impl Reading {
    fn reader(&mut self) -> Reader {
        self.reader.take().unwrap_or_else(|| {
            let mut reader = self.log.reader(self.next_lsn);
            reader.skip_damage(self.skips_damage);
            reader
        })
    }
}

type Records = Vec<(u64, u8, Vec<u8>)>;

/// Reads records of a log in batches.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct LogReader {
    state: Arc<Mutex<Reading>>,
}

impl LogReader {
    /// Takes the reader at the call, and returns a future that reads some records. Dropping the
    /// future drops the reader.
    fn batch(&self, tail: bool) -> impl Future<Output = nowait::Result<Records>> + Send + 'static {
        let mut reading = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (reader, failed) = (reading.reader(), reading.failed.take());
        drop(reading);
        batch(self.state.clone(), reader, failed, tail)
    }
}

/// Reads durable records. If there are none and `tail` is true, waits for the next ones.
async fn batch(
    state: Arc<Mutex<Reading>>,
    mut reader: Reader,
    failed: Option<Error>,
    tail: bool,
) -> nowait::Result<Records> {
    let mut records = Records::new();
    let read = match failed {
        Some(error) => Err(error),
        None => fill(&mut records, &mut reader, tail).await,
    };
    let mut reading = state.lock().unwrap_or_else(PoisonError::into_inner);
    reading.next_lsn = reader.next_lsn();
    reading.reader = Some(reader);
    match read {
        // The records before an error are returned first.
        Err(error) if !records.is_empty() => reading.failed = Some(error),
        read => read?,
    }
    Ok(records)
}

/// Reads durable records. If there are none and `tail` is set, waits for the next ones.
async fn fill(records: &mut Records, reader: &mut Reader, tail: bool) -> nowait::Result<()> {
    if tail {
        let record = reader.tail().await?;
        records.push((record.lsn, record.kind, record.bytes.to_vec()));
    }
    let mut bytes = 0;
    while records.len() < BATCH_RECORDS && bytes < BATCH_BYTES {
        let record = if records.is_empty() {
            reader.next().await?
        } else {
            // A record that would wait for the device belongs to the next batch.
            let mut next = std::pin::pin!(reader.next());
            match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(record) => record?,
                Poll::Pending => break,
            }
        };
        let Some(record) = record else { break };
        bytes += record.bytes.len();
        records.push((record.lsn, record.kind, record.bytes.to_vec()));
    }
    Ok(())
}

fn objects(py: Python<'_>, records: Records) -> PyResult<Py<PyAny>> {
    let objects = records.into_iter().map(|(lsn, kind, bytes)| (lsn, kind, PyBytes::new(py, &bytes)));
    objects.collect::<Vec<_>>().into_py_any(py)
}

#[pymethods]
impl LogReader {
    /// Reads some records: number, kind, and bytes of each. Returns none at the end; with `tail`,
    /// it waits instead.
    fn read(&self, py: Python<'_>, tail: bool) -> PyResult<Py<PyAny>> {
        let task = self.batch(tail);
        let records = if tail { wait(py, task)? } else { py.detach(|| nowait::block_on(task)) };
        objects(py, records.or_raise(py)?)
    }

    /// Like `read`, for an event loop.
    fn start_read(&self, completions: &Bound<'_, Completions>, number: u64, tail: bool) -> PyResult<Running> {
        let (task, to) = (self.batch(tail), completions.get().receiver(number));
        spawn(async move {
            let records = task.await;
            to.put(move |py| objects(py, records.or_raise(py)?));
        })
    }
}
