//! Cached pages that are lent to Python.
//!
//! `unsafe` here: the exporter's side of the buffer protocol.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// Bytes of a cached file, which stay in place until the lease and its views are released. A
/// read-only buffer: `memoryview(lease)`, `numpy.frombuffer(lease)`.
///
/// A lease of a range within one page pins the page: the cache cannot reuse its memory.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Lease(Mutex<Held>);

struct Held {
    /// `None` after the release.
    lease: Option<nowait_cache::Lease>,
    /// Number of buffers of consumers.
    exports: usize,
}

impl Lease {
    pub(crate) fn of(lease: nowait_cache::Lease) -> Lease {
        Lease(Mutex::new(Held { lease: Some(lease), exports: 0 }))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn lease(&self) -> PyResult<&nowait_cache::Lease> {
        self.lease.as_ref().ok_or_else(|| PyValueError::new_err("the lease was released"))
    }
}

#[pymethods]
impl Lease {
    fn __len__(&self) -> PyResult<usize> {
        self.held().lease().map(|lease| lease.len())
    }

    /// True if the bytes are a copy, which pins no page.
    #[getter]
    fn is_copy(&self) -> PyResult<bool> {
        self.held().lease().map(nowait_cache::Lease::is_copy)
    }

    /// Unpins the page, or frees the copy. Raises `BufferError` while a view of the lease exists.
    fn release(&self) -> PyResult<()> {
        let mut held = self.held();
        if held.exports > 0 {
            let text = format!("the lease has views ({}); release or delete them first", held.exports);
            return Err(PyBufferError::new_err(text));
        }
        let lease = held.lease.take();
        drop(held);
        drop(lease);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn __repr__(&self) -> String {
        match &self.held().lease {
            Some(lease) => format!("<nowait.Lease: {} bytes>", lease.len()),
            None => "<nowait.Lease: released>".to_owned(),
        }
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut held = slf.get().held();
        let lease = held.lease()?;
        let (start, len) = (lease.as_ptr().cast_mut().cast(), lease.len() as ffi::Py_ssize_t);
        // SAFETY: the consumer passes `view` to be filled. The view gets a reference to this
        // object, which keeps the lease while it has exports, and is read-only.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => {
                held.exports += 1;
                Ok(())
            }
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.held().exports -= 1;
    }
}
