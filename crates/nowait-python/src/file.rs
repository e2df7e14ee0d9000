//! Files: opened by path, or duplicated from Python's open files.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nowait::{Advice, DirectIo, Error, ErrorKind, ErrorOp, Nowait, OpenOptions};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt};

use crate::driver;
use crate::error::{OrRaise, exception};
use crate::gather;
use crate::memory::{self, Loan};
use crate::os;

/// Maximum number of bytes transferred between two checks for signals: about 50 ms of copying, or a
/// second of a slow disk.
pub(crate) const PIECE_BYTES: usize = 64 << 20;

const NO_DESCRIPTOR: &str = "the file has a handle, but no descriptor; open the path again";

/// A file without a cursor: reads and writes take an offset.
#[pyclass(frozen, subclass, module = "nowait")]
pub(crate) struct File {
    /// `None` after it is closed.
    file: Mutex<Option<nowait::File>>,
    path: PathBuf,
    mode: String,
}

impl File {
    pub(crate) fn new(file: nowait::File, mode: &str) -> File {
        File { path: file.path().to_owned(), file: Mutex::new(Some(file)), mode: mode.to_owned() }
    }

    /// Returns the open file.
    ///
    /// # Errors
    /// `ClosedError`.
    pub(crate) fn get(&self, py: Python<'_>, operation: ErrorOp) -> PyResult<nowait::File> {
        match &*self.file.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(file) => Ok(file.clone()),
            None => Err(exception(py, &Error::new(operation, ErrorKind::Closed).at(&self.path))),
        }
    }

    /// Removes and returns the file; this object is then closed.
    pub(crate) fn take(&self) -> Option<nowait::File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns the options of `open(2)` for a mode of Python's `open`.
pub(crate) fn options(mode: &str, direct: bool) -> PyResult<OpenOptions> {
    let mut options = OpenOptions::new();
    options.direct(direct);
    match mode.replace('b', "").as_str() {
        "r" => options.read(true),
        "r+" => options.read(true).write(true),
        "w" => options.write(true).create(true).truncate(true),
        "w+" => options.read(true).write(true).create(true).truncate(true),
        "x" => options.write(true).create_new(true),
        "x+" => options.read(true).write(true).create_new(true),
        "a" => options.append(true).create(true),
        "a+" => options.read(true).append(true).create(true),
        _ => {
            let text = format!("unknown mode {mode:?}; give r, r+, w, w+, x, x+, a or a+");
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(options)
}

/// Converts a path: text, bytes, or an object with `__fspath__`.
pub(crate) fn path(object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let py = object.py();
    let os = py.import(pyo3::intern!(py, "os"))?;
    os.call_method1(pyo3::intern!(py, "fsdecode"), (object,))?.extract()
}

/// An argument that names a file: an open file or a path.
pub(crate) enum Source {
    Open(nowait::File),
    Path(PathBuf),
}

/// Returns the file of an argument: a `File`, a path, a descriptor, or an object with `fileno()`.
/// The caller may close descriptors meanwhile. Does not open paths.
pub(crate) fn to_open(object: &Bound<'_, PyAny>) -> PyResult<Source> {
    let py = object.py();
    if let Ok(file) = object.cast::<File>() {
        return file.get().get(py, ErrorOp::Gather).map(Source::Open);
    }
    if object.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err("the file is a boolean; give a path, a descriptor or a file"));
    }
    if object.is_instance_of::<PyInt>() {
        return of_descriptor(object).map(Source::Open);
    }
    if let Some(fileno) = object.getattr_opt(pyo3::intern!(py, "fileno"))? {
        return of_descriptor(&fileno.call0()?).map(Source::Open);
    }
    path(object).map(Source::Path)
}

/// Like [`to_open`], but also opens a path.
pub(crate) fn source(object: &Bound<'_, PyAny>) -> PyResult<nowait::File> {
    let py = object.py();
    match to_open(object)? {
        Source::Open(file) => Ok(file),
        Source::Path(path) => py.detach(|| nowait::File::open(path).wait()).or_raise(py),
    }
}

fn of_descriptor(object: &Bound<'_, PyAny>) -> PyResult<nowait::File> {
    let (py, number) = (object.py(), object.extract()?);
    os::of_descriptor(py, number).or_raise(py)
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, mode = "r", *, direct = false, permissions = 0o666))]
    fn py_new(path: &Bound<'_, PyAny>, mode: &str, direct: bool, permissions: u32) -> PyResult<File> {
        let (py, path) = (path.py(), self::path(path)?);
        let mut options = options(mode, direct)?;
        options.mode(permissions);
        let file = py.detach(|| options.open_in(Nowait::shared(), path).wait()).or_raise(py)?;
        Ok(File::new(file, mode))
    }

    /// Path by which the file was opened.
    #[getter]
    fn name(&self) -> &OsStr {
        self.path.as_os_str()
    }

    /// Mode in which the file was opened.
    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }

    /// True if the file was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// True if reads and writes bypass the page cache.
    #[getter]
    fn direct(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(matches!(self.get(py, ErrorOp::Metadata)?.direct(), DirectIo::Granted { .. }))
    }

    /// The file's descriptor, which the file still owns. On Windows, where a file has only a handle, raises
    /// `UnsupportedError`.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let file = self.get(py, ErrorOp::Metadata)?;
        let none = || Error::new(ErrorOp::Metadata, ErrorKind::Unsupported).at(&self.path).with_advice(NO_DESCRIPTOR);
        os::descriptor(&file).ok_or_else(none).or_raise(py)
    }

    /// Size in bytes of a file or block device.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.get(py, ErrorOp::Size)?;
        py.detach(|| file.size().wait()).or_raise(py)
    }

    /// Reads up to `length` bytes from `offset`, fewer only at the end of the file.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.get(py, ErrorOp::Read)?;
        let mut loan = Loan::bytes(py, length)?;
        let n = read(py, &file, loan.as_mut(), offset)?;
        Ok(loan.into_bytes(py, n).into_bound(py))
    }

    /// Fills `buffer` from `offset`; returns the number of bytes, which is less only at the end of
    /// the file.
    fn readinto_at(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.get(py, ErrorOp::Read)?;
        let mut loan = Loan::writable(buffer)?;
        let read = read(py, &file, loan.as_mut(), offset);
        loan.release(py);
        read
    }

    /// Writes all of `data` at `offset`. If `durable`, the data is on stable storage when the call
    /// returns.
    #[pyo3(signature = (offset, data, *, durable = false))]
    fn write_at(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>, durable: bool) -> PyResult<usize> {
        let file = self.get(py, ErrorOp::Write)?;
        let data = bytes::Bytes::from_owner(Loan::readable(data)?);
        let written = write(py, &file, &data, offset, durable);
        drop(data);
        memory::release_pending(py);
        written
    }

    /// Writes all of `data` at the current end of the file, by one write. If a signal handler
    /// raises during a long write, the wait ends, and the write continues in the background.
    #[pyo3(signature = (data, *, durable = false))]
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>, durable: bool) -> PyResult<usize> {
        let file = self.get(py, ErrorOp::Write)?;
        let bytes = bytes::Bytes::from_owner(Loan::readable(data)?);
        let length = bytes.len();
        // One call of any duration: after a signal, it continues in the background.
        let appended = if length > PIECE_BYTES {
            driver::wait(py, async move {
                let append = file.append(bytes);
                if durable { append.durable().await } else { append.await }
            })?
        } else {
            py.detach(|| {
                let append = file.append(bytes);
                if durable { append.durable().wait() } else { append.wait() }
            })
        };
        let result = appended.map(|_| length).map_err(Error::from).or_raise(py);
        memory::release_pending(py);
        result
    }

    /// Makes all earlier writes durable; with `metadata`, also attributes such as times.
    #[pyo3(signature = (*, metadata = false))]
    fn sync(&self, py: Python<'_>, metadata: bool) -> PyResult<()> {
        let file = self.get(py, ErrorOp::Sync)?;
        py.detach(|| if metadata { file.sync_all().wait() } else { file.sync_data().wait() }).or_raise(py)
    }

    /// Cuts the file to `length` bytes, or extends it with a hole.
    fn truncate(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        let file = self.get(py, ErrorOp::SetLen)?;
        py.detach(|| file.set_len(length).wait()).or_raise(py)
    }

    /// Advises the page cache about a range; a length of zero means to the end of the file.
    #[pyo3(signature = (advice, offset = 0, length = 0))]
    fn advise(&self, py: Python<'_>, advice: &str, offset: u64, length: u64) -> PyResult<()> {
        let advice = match advice {
            "normal" => Advice::Normal,
            "random" => Advice::Random,
            "sequential" => Advice::Sequential,
            "willneed" => Advice::WillNeed,
            "dontneed" => Advice::DontNeed,
            "noreuse" => Advice::NoReuse,
            other => {
                let known = "normal, random, sequential, willneed, dontneed or noreuse";
                return Err(PyValueError::new_err(format!("unknown advice {other:?}; give {known}")));
            }
        };
        let file = self.get(py, ErrorOp::Advise)?;
        py.detach(|| file.advise(offset, length, advice).wait()).or_raise(py)
    }

    /// Reads ranges: see `nowait.gather`.
    #[pyo3(signature = (offsets, lengths, out = None, *, partial = false))]
    fn gather(
        &self,
        offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        partial: bool,
    ) -> PyResult<Py<crate::gathered::Gathered>> {
        let file = self.get(offsets.py(), ErrorOp::Gather)?;
        gather::blocking(&file, offsets, lengths, out, partial)
    }

    /// Closes the file. Operations in flight finish first, in the background.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.take() {
            Some(file) => py.detach(|| file.close().map(drop)).or_raise(py),
            None => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<nowait.File {:?}, mode {:?}{closed}>", self.path, self.mode)
    }
}

/// Reads until `buffer` is full or the file ends, and checks for signals in between.
fn read(py: Python<'_>, file: &nowait::File, buffer: &mut [u8], offset: u64) -> PyResult<usize> {
    let mut done = 0;
    for piece in buffer.chunks_mut(PIECE_BYTES) {
        if done > 0 {
            py.check_signals()?;
        }
        let length = piece.len();
        let n = py.detach(|| file.read_into(piece, offset.saturating_add(done as u64))).or_raise(py)?;
        done += n;
        if n < length {
            break;
        }
    }
    Ok(done)
}

/// Writes all of `data`, and checks for signals in between.
fn write(py: Python<'_>, file: &nowait::File, data: &bytes::Bytes, offset: u64, durable: bool) -> PyResult<usize> {
    for start in (0..data.len()).step_by(PIECE_BYTES) {
        if start > 0 {
            py.check_signals()?;
        }
        let piece = data.slice(start..data.len().min(start + PIECE_BYTES));
        let written = py.detach(|| {
            let write = file.write_all_at(piece, offset.saturating_add(start as u64));
            if durable { write.durable().wait() } else { write.wait() }
        });
        written.map(drop).map_err(Error::from).or_raise(py)?;
    }
    Ok(data.len())
}
