//! Memory and descriptors of Python objects, lent to operations; memory of the library, lent to
//! Python.
//!
//! `unsafe` here, and in no other file of this crate: the buffer protocol, the bytes of a new
//! `bytes` object, and a descriptor that Python holds open.
//!
//! An exporter must neither resize nor free what it exports. So a [`Loan`] holds its export as long
//! as an operation may touch the bytes, whatever became of the call that made it: the export moves
//! with the memory into the operation, and its destructor is the last thing that happens there. That
//! may be on a thread that has no Python thread state, and must not wait for one: the interpreter may
//! be ending. The export is then left to the interpreter, which gives it up at its next opportunity
//! ([`release_pending`]); once the interpreter has ended, never.
//!
//! Other threads of Python may look at the bytes, or change them, while an operation does, as with
//! `readinto` of any file object. What they see, or what is written then, is unspecified.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nowait::Buf;
use nowait::map::Map;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The interpreter has begun to end: nothing is given back to it from other threads.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Exports whose last use ended on a thread without Python.
static PENDING: Mutex<Vec<Export>> = Mutex::new(Vec::new());
/// The interpreter has been asked to look at `PENDING`.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// A view of a Python object's memory. Not given up when dropped: see [`Loan`].
struct Export(Box<ffi::Py_buffer>);

// SAFETY: the fields are plain values. The memory that they point to is kept by the exporter until
// the release, for any thread.
unsafe impl Send for Export {}

impl Export {
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Export> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the thread is attached, and the view is written by the exporter. It is boxed since
        // an exporter may keep its address.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } {
            0 => Ok(Export(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn release(mut self, _attached: Python<'_>) {
        // SAFETY: filled by `PyObject_GetBuffer`, and released once, since this consumes it.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) }
    }

    fn is_contiguous(&self) -> bool {
        // SAFETY: filled by `PyObject_GetBuffer`.
        unsafe { ffi::PyBuffer_IsContiguous(&*self.0, b'C' as _) != 0 }
    }

    fn bytes(&self) -> (NonNull<u8>, usize) {
        // An empty buffer may have no address.
        (NonNull::new(self.0.buf.cast()).unwrap_or(NonNull::dangling()), self.0.len.max(0) as usize)
    }
}

/// What keeps lent memory where it is.
enum Owner {
    Export(Export),
    /// A `bytes` object that nobody else knows yet.
    Bytes(Py<PyBytes>),
    None,
}

/// Bytes of a Python object, lent to an operation.
pub(crate) struct Loan {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the owner keeps the bytes in their place, for any thread, until it is given up.
unsafe impl Send for Loan {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Loan {}

impl Loan {
    fn of(export: Export) -> Loan {
        let (start, len) = export.bytes();
        Loan { start, len, owner: Owner::Export(export) }
    }

    /// The bytes of a writable, C-contiguous object.
    ///
    /// # Errors
    /// `TypeError` for an object without a buffer, `BufferError` for one that cannot be written to,
    /// or whose bytes do not lie together.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Loan> {
        let error = match Export::of(object, ffi::PyBUF_WRITABLE | ffi::PyBUF_C_CONTIGUOUS) {
            Ok(export) => return Ok(Loan::of(export)),
            Err(error) => error,
        };
        // Exporters differ in their exceptions.
        let Ok(export) = Export::of(object, ffi::PyBUF_FULL_RO) else {
            let name = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "out is a {name}, which has no buffer; give a bytearray, a writable memoryview, or an array"
            )));
        };
        let (is_read_only, is_contiguous) = (export.0.readonly != 0, export.is_contiguous());
        export.release(object.py());
        match (is_read_only, is_contiguous) {
            (true, _) => Err(PyBufferError::new_err("out is read-only; give a writable buffer")),
            (_, false) => Err(PyBufferError::new_err("out is not C-contiguous; give a copy that is")),
            _ => Err(error),
        }
    }

    /// The bytes of a C-contiguous object, to be read only.
    ///
    /// # Errors
    /// Those of the exporter.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Loan> {
        Ok(Loan::of(Export::of(object, ffi::PyBUF_C_CONTIGUOUS)?))
    }

    /// Zeros that become a `bytes` object: [`Loan::into_bytes`].
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn bytes(py: Python<'_>, len: usize) -> PyResult<Loan> {
        let Ok(size) = ffi::Py_ssize_t::try_from(len) else {
            return Err(PyMemoryError::new_err(format!("{len} bytes are more than memory can hold")));
        };
        // SAFETY: without contents, the call makes an object whose bytes the caller is to fill.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size))? };
        let object = object.cast_into::<PyBytes>()?;
        // SAFETY: the object is `bytes`, whose address does not change.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast::<u8>();
        let Some(start) = NonNull::new(start) else { return Err(PyErr::fetch(py)) };
        // SAFETY: `len` bytes of it are ours alone. Rust's memory is initialised at all times.
        unsafe { ptr::write_bytes(start.as_ptr(), 0, len) };
        Ok(Loan { start, len, owner: Owner::Bytes(object.unbind()) })
    }

    /// As [`Loan::bytes`], and the object itself, which is to be shown to nobody while there is the
    /// loan.
    pub(crate) fn shared_bytes(py: Python<'_>, len: usize) -> PyResult<(Loan, Py<PyBytes>)> {
        let loan = Loan::bytes(py, len)?;
        let Owner::Bytes(object) = &loan.owner else { unreachable!("it was made of an object of bytes") };
        let object = object.clone_ref(py);
        Ok((loan, object))
    }

    /// Makes a `bytes` object of the first `n` bytes; without a copy if those are all.
    pub(crate) fn into_bytes(mut self, py: Python<'_>, n: usize) -> Py<PyBytes> {
        match std::mem::replace(&mut self.owner, Owner::None) {
            Owner::Bytes(object) if n == self.len => object,
            owner => {
                self.owner = owner;
                let bytes = PyBytes::new(py, &self.as_ref()[..n.min(self.len)]).unbind();
                self.release(py);
                bytes
            }
        }
    }

    /// Gives the memory back, on a thread that has Python: at once, and not when the interpreter
    /// finds time.
    pub(crate) fn release(mut self, py: Python<'_>) {
        if let Owner::Export(export) = std::mem::replace(&mut self.owner, Owner::None) {
            export.release(py);
        }
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the owner keeps `len` bytes at `start`, of whose contents nothing is assumed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Loan {
    /// Of a loan that is [`writable`](Loan::writable), or of new [`bytes`](Loan::bytes).
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Of loans that are only readable nobody asks for this: `readable` goes to
        // writes, which have `AsRef`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Owner::Export(export) = std::mem::replace(&mut self.owner, Owner::None) else { return };
        if IS_ENDING.load(Ordering::Acquire) {
            return std::mem::forget(export);
        }
        PENDING.lock().unwrap_or_else(PoisonError::into_inner).push(export);
        if !IS_ASKED.swap(true, Ordering::AcqRel) {
            // SAFETY: may be called by any thread while there is an interpreter: it has not begun to
            // end, or `end` would have been called.
            let refused = unsafe { ffi::Py_AddPendingCall(Some(pending_call), ptr::null_mut()) } != 0;
            // The interpreter has too many such calls: the next loan asks again.
            IS_ASKED.fetch_and(!refused, Ordering::AcqRel);
        }
    }
}

extern "C" fn pending_call(_: *mut c_void) -> c_int {
    // The interpreter makes such calls with its thread attached.
    let _ = Python::try_attach(release_pending);
    0
}

/// Gives up what ended on threads without Python.
pub(crate) fn release_pending(py: Python<'_>) {
    IS_ASKED.store(false, Ordering::Release);
    let exports = std::mem::take(&mut *PENDING.lock().unwrap_or_else(PoisonError::into_inner));
    // An exporter's release may run anything.
    exports.into_iter().for_each(|export| export.release(py));
}

/// Says that the interpreter begins to end: registered with `atexit`.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    release_pending(py);
    IS_ENDING.store(true, Ordering::Release);
}

/// Number of exports that wait for the interpreter, for tests.
#[pyfunction]
pub(crate) fn pending_releases() -> usize {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// Kind of a buffer's elements, if they are integers.
#[derive(Clone, Copy)]
pub(crate) struct Integer {
    pub(crate) is_signed: bool,
    pub(crate) bytes: usize,
    /// In the other order than this processor's.
    pub(crate) is_swapped: bool,
}

/// Elements of an object that has a buffer.
pub(crate) enum Elements {
    /// Integers in one dimension, as they lie in memory, which is lent for the call.
    Integers(Integer, Loan),
    /// Others: `struct`'s format of one, and the number of dimensions.
    Others(String, usize),
}

/// Whether an object has a buffer.
pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the thread is attached; the call only looks at the type.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// Looks at the elements of an object; `None` if it has no buffer.
pub(crate) fn elements(object: &Bound<'_, PyAny>) -> PyResult<Option<Elements>> {
    if !has_buffer(object) {
        return Ok(None);
    }
    let export = Export::of(object, ffi::PyBUF_FULL_RO)?;
    let format = match NonNull::new(export.0.format) {
        // SAFETY: the exporter's format is a C string, and lives as long as the export.
        Some(format) => unsafe { std::ffi::CStr::from_ptr(format.as_ptr()) }.to_string_lossy().into_owned(),
        None => "B".to_owned(),
    };
    let (dimensions, bytes) = (export.0.ndim.max(0) as usize, export.0.itemsize.max(0) as usize);
    let Some(integer) = integer(&format, bytes).filter(|_| dimensions == 1) else {
        export.release(object.py());
        return Ok(Some(Elements::Others(format, dimensions)));
    };
    if export.is_contiguous() {
        return Ok(Some(Elements::Integers(integer, Loan::of(export))));
    }
    // Every second one, or from the back.
    let (size, mut copy) = (export.0.len, Loan::bytes(object.py(), export.0.len.max(0) as usize)?);
    let to = copy.as_mut().as_mut_ptr().cast();
    // SAFETY: `to` has room for `size` bytes, those of all elements.
    let failed = unsafe { ffi::PyBuffer_ToContiguous(to, &*export.0, size, b'C' as _) } != 0;
    export.release(object.py());
    if failed { Err(PyErr::fetch(object.py())) } else { Ok(Some(Elements::Integers(integer, copy))) }
}

/// Reads a format of the `struct` module; `None` for anything but one integer.
fn integer(format: &str, bytes: usize) -> Option<Integer> {
    let (order, code) = match format.as_bytes() {
        [code] => (b'@', *code),
        [order, code] => (*order, *code),
        _ => return None,
    };
    let is_swapped = match order {
        b'@' | b'=' => false,
        b'<' => cfg!(target_endian = "big"),
        b'>' | b'!' => cfg!(target_endian = "little"),
        _ => return None,
    };
    let is_signed = match code {
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => true,
        b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => false,
        _ => return None,
    };
    matches!(bytes, 1 | 2 | 4 | 8).then_some(Integer { is_signed, bytes, is_swapped })
}

/// Duplicates a descriptor that Python holds open, so that it may be closed there meanwhile.
pub(crate) fn duplicate(fd: RawFd) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(rustix::io::Errno::BADF.raw_os_error()));
    }
    // SAFETY: it is used for this call only, which refuses one that is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

/// Memory of the library: page-aligned, in huge pages from 64 KiB on, and used again. Its bytes are
/// whatever an earlier use left there.
///
/// Give it as `out` where reads repeat: memory that was used before needs no page faults.
#[pyclass(frozen, module = "nowait")]
pub(crate) struct Buffer {
    /// Only kept: its bytes are Python's, through exports.
    _buf: Buf,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: exports of the memory are made and used as Python's rules say; this has its address only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

#[pymethods]
impl Buffer {
    #[new]
    pub(crate) fn new(size: usize) -> PyResult<Buffer> {
        let Some(mut buf) = Buf::uncleared(size) else {
            return Err(PyMemoryError::new_err(format!("no memory for {size} bytes")));
        };
        let start = NonNull::from(&mut *buf).cast();
        Ok(Buffer { _buf: buf, start, len: size })
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

/// A file in memory, read-only: the memory of `nowait.Map`.
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
