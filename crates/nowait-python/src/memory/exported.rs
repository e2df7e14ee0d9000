//! Memory of the library, lent to Python.
//!
//! `unsafe` here: the exporter's side of the buffer protocol, and a map of a file.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use nowait::Buf;
use nowait::map::Map;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Page-aligned memory of the library, in huge pages from 64 KiB on, and reused after it is freed.
/// Its bytes are whatever an earlier use left there.
///
/// Give it as `out` where reads repeat: memory that was used before needs no page faults.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Buffer {
    /// Kept alive here; Python accesses its bytes through exports.
    _buf: Buf,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: exports of the memory are made and used as Python's rules say; this has its address only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Creates a buffer of zeros. A large buffer uses no memory until it is written to.
    pub(crate) fn zeroed(size: usize) -> PyResult<Buffer> {
        Buffer::of(Buf::try_zeroed(size), size)
    }

    fn of(buf: Option<Buf>, size: usize) -> PyResult<Buffer> {
        let mut buf = buf.ok_or_else(|| PyMemoryError::new_err(format!("no memory for {size} bytes")))?;
        let start = NonNull::from(&mut *buf).cast();
        Ok(Buffer { _buf: buf, start, len: size })
    }
}

#[pymethods]
impl Buffer {
    #[new]
    pub(crate) fn new(size: usize) -> PyResult<Buffer> {
        Buffer::of(Buf::uncleared(size), size)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (start, len) = (this.start.as_ptr().cast(), this.len as ffi::Py_ssize_t);
        // SAFETY: `view` is the consumer's to fill. It gets a reference to this object, which keeps
        // the memory, of which `len` bytes are initialised.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// An object whose buffer is that of another one: the base of `Gathered`, and of Python's `Map`.
#[pyclass(frozen, subclass, module = "nowait")]
pub(crate) struct View {
    object: Py<PyAny>,
}

impl View {
    pub(crate) fn of(object: Py<PyAny>) -> View {
        View { object }
    }
}

#[pymethods]
impl View {
    #[new]
    fn new(object: Py<PyAny>) -> View {
        View { object }
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: `view` is the consumer's to fill, and to release with the object it came from.
        match unsafe { ffi::PyObject_GetBuffer(slf.get().object.as_ptr(), view, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.object)
    }
}

/// A read-only memory map of a file: the memory of `nowait.Map`.
#[pyclass(frozen, subclass, module = "nowait")]
pub(crate) struct Mapping {
    pub(crate) map: Arc<Map>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the map is `Send` and `Sync`; the address is handed out only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn of(file: &nowait::File, range: Range<u64>) -> nowait::Result<Mapping> {
        // SAFETY: the bytes are Python's to look at, through exports, and Python assumes of a buffer
        // that others may change it. Here no slice of them is used: of this one only the address.
        let map = unsafe { Map::new(file, range)? };
        let (start, len) = (NonNull::from(&*map).cast(), map.len());
        Ok(Mapping { map: Arc::new(map), start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[pymethods]
impl Mapping {
    fn __len__(&self) -> usize {
        self.len
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (start, len) = (this.start.as_ptr().cast(), this.len as ffi::Py_ssize_t);
        // SAFETY: `view` is the consumer's to fill. It gets a reference to this object, which keeps
        // the map. Read-only.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
