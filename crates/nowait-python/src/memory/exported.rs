//! Memory of the library that is lent to Python.
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
/// Its initial bytes are undefined.
///
/// Pass it as `out` to repeated reads: reused memory causes no page faults.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Buffer {
    /// Keeps the memory alive; Python accesses its bytes through exports.
    _buf: Buf,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: Python's rules govern the use of exports; this type only stores the address.
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
        // SAFETY: the consumer passes `view` to be filled. The view gets a reference to this
        // object, which keeps the memory; its `len` bytes are initialised.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// An object that exports the buffer of another one: the base of `Gathered`, and of Python's `Map`.
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
        // SAFETY: the consumer passes `view` to be filled, and releases it with the object that
        // filled it.
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

// SAFETY: the map is `Send` and `Sync`; the address is only passed on.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn of(file: &nowait::File, range: Range<u64>) -> nowait::Result<Mapping> {
        // SAFETY: only Python accesses the bytes, through exports, and Python allows other writers
        // of a buffer. This code uses only the address of the map, and no slice of its bytes.
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
        // SAFETY: the consumer passes `view` to be filled. The view gets a reference to this
        // object, which keeps the map, and is read-only.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
