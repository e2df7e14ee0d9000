//! Memory of Python objects that is lent to operations.
//!
//! An exporter must neither resize nor free exported memory. So a [`Loan`] holds its export as long
//! as an operation may access the bytes, even if the call that made the loan has ended. The export
//! moves with the memory into the operation, whose last step is the export's destructor.
//!
//! That destructor may run on a thread without a Python thread state. The thread must not wait for
//! one, since the interpreter may be ending. So it leaves the export to the owning interpreter, which
//! releases it later ([`release_pending`]): at a pending call, or at the end of the next call that
//! lends memory or returns bytes. No pending call is made to an interpreter that has begun to end. A
//! subinterpreter gets none either, since pending calls reach only the main interpreter.
//!
//! Other Python threads may read or change the bytes during an operation, as with `readinto` of any
//! file object. The bytes that they read, or that the operation writes then, are unspecified.
//!
//! `unsafe` here: the buffer protocol, and the bytes of a new `bytes` object.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// From this length on, `bytes(n)` makes the object: its memory consists of new pages of the
/// kernel, which are already zero. Clearing it here would block the interpreter, and an event loop,
/// for a millisecond per 10 MB.
const CLEARED_MIN: usize = 64 << 10;

/// One interpreter, and the exports that threads without Python left to it.
struct Interpreter {
    is_main: bool,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    exports: Vec<Export>,
    /// True if a pending call to release the exports was made.
    is_asked: bool,
    /// True if the interpreter has begun to end. Its exit handlers may still run Python.
    is_ending: bool,
}

/// All interpreters so far, by number. No number is used twice.
static INTERPRETERS: Mutex<BTreeMap<i64, &'static Interpreter>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The interpreter that this thread was attached to last.
    static LAST: Cell<Option<(i64, &'static Interpreter)>> = const { Cell::new(None) };
}

impl Interpreter {
    /// Returns the interpreter that this thread is attached to.
    fn current(_attached: Python<'_>) -> &'static Interpreter {
        // SAFETY: the thread is attached to an interpreter, of which the calls read the number.
        let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
        if let Some((_, interpreter)) = LAST.get().filter(|(last, _)| *last == number) {
            return interpreter;
        }
        let mut interpreters = INTERPRETERS.lock().unwrap_or_else(PoisonError::into_inner);
        let interpreter = *interpreters.entry(number).or_insert_with(|| {
            // Leaked, some hundred bytes each: threads of the library may refer to it after its
            // end.
            Box::leak(Box::new(Interpreter { is_main: number == 0, pending: Mutex::default() }))
        });
        LAST.set(Some((number, interpreter)));
        interpreter
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves an export to this interpreter for release. Any thread may call this.
    fn leave(&self, export: Export) {
        let mut pending = self.lock();
        pending.exports.push(export);
        if self.is_main && !pending.is_ending && !pending.is_asked {
            // SAFETY: any thread may call the function while the interpreter exists. The
            // interpreter has not begun to end: `is_ending` is false, and `end` cannot return while
            // this thread holds the lock. The call fails if too many such calls are pending; the
            // next loan tries again.
            pending.is_asked = unsafe { ffi::Py_AddPendingCall(Some(pending_call), ptr::null_mut()) } == 0;
        }
    }
}

/// A view of a Python object's memory, and the interpreter that owns the object. Dropping it does
/// not release the view: see [`Loan`].
pub(super) struct Export(pub(super) Box<ffi::Py_buffer>, &'static Interpreter);

// SAFETY: the fields are plain values. The exporter keeps the memory that they point to until the
// release, for any thread.
unsafe impl Send for Export {}

impl Export {
    pub(super) fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Export> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the thread is attached, and the exporter fills the view. The view is boxed, since
        // an exporter may store its address.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } {
            0 => Ok(Export(view, Interpreter::current(object.py()))),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub(super) fn release(mut self, _attached: Python<'_>) {
        // SAFETY: `PyObject_GetBuffer` filled the view, and this call, which consumes it, releases
        // it once.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) }
    }

    pub(super) fn is_contiguous(&self) -> bool {
        // SAFETY: `PyObject_GetBuffer` filled the view.
        unsafe { ffi::PyBuffer_IsContiguous(&*self.0, b'C' as _) != 0 }
    }

    fn bytes(&self) -> (NonNull<u8>, usize) {
        // An empty buffer may have no address.
        (NonNull::new(self.0.buf.cast()).unwrap_or(NonNull::dangling()), self.0.len.max(0) as usize)
    }
}

/// Owner that keeps lent memory at its address.
enum Owner {
    Export(Export),
    /// A new `bytes` object, not visible to other code yet.
    Bytes(Py<PyBytes>),
    /// A larger loan of which this is a part.
    Whole {
        _loan: Arc<Loan>,
    },
    None,
}

/// Bytes of a Python object, lent to an operation.
pub(crate) struct Loan {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the owner keeps the bytes at their address, for any thread, until it is dropped.
unsafe impl Send for Loan {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Loan {}

impl Loan {
    pub(super) fn of(export: Export) -> Loan {
        let (start, len) = export.bytes();
        Loan { start, len, owner: Owner::Export(export) }
    }

    /// Lends the bytes of a writable, C-contiguous object.
    ///
    /// # Errors
    /// `TypeError` for an object without a buffer; `BufferError` for a buffer that is read-only or
    /// not contiguous.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Loan> {
        let error = match Export::of(object, ffi::PyBUF_WRITABLE | ffi::PyBUF_C_CONTIGUOUS) {
            Ok(export) => return Ok(Loan::of(export)),
            Err(error) => error,
        };
        // Exporters raise different exceptions.
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

    /// Lends the bytes of a C-contiguous object for reading only.
    ///
    /// # Errors
    /// Those of the exporter.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Loan> {
        Ok(Loan::of(Export::of(object, ffi::PyBUF_C_CONTIGUOUS)?))
    }

    /// Lends zeros that [`Loan::into_bytes`] makes a `bytes` object.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn bytes(py: Python<'_>, len: usize) -> PyResult<Loan> {
        if len < CLEARED_MIN {
            let NewBytes { object, start, .. } = NewBytes::new(py, len)?;
            // SAFETY: only this code has the `len` bytes of the new object. They are initialised,
            // as Rust requires.
            unsafe { ptr::write_bytes(start.as_ptr(), 0, len) };
            return Ok(Loan { start, len, owner: Owner::Bytes(object) });
        }
        let object = py.get_type::<PyBytes>().call1((size_of_bytes(len)?,))?.cast_into::<PyBytes>()?;
        Ok(Loan { start: start_of(&object)?, len, owner: Owner::Bytes(object.unbind()) })
    }

    /// As [`Loan::bytes`]; also returns the object, which no other code may see while the loan
    /// exists.
    pub(crate) fn shared_bytes(py: Python<'_>, len: usize) -> PyResult<(Loan, Py<PyBytes>)> {
        let loan = Loan::bytes(py, len)?;
        let Owner::Bytes(object) = &loan.owner else { unreachable!("it was made of an object of bytes") };
        let object = object.clone_ref(py);
        Ok((loan, object))
    }

    /// Makes a `bytes` object of the first `n` bytes; without a copy if these are all bytes.
    pub(crate) fn into_bytes(mut self, py: Python<'_>, n: usize) -> Py<PyBytes> {
        match std::mem::replace(&mut self.owner, Owner::None) {
            Owner::Bytes(object) if n == self.len => {
                release_pending(py);
                object
            }
            owner => {
                self.owner = owner;
                let bytes = PyBytes::new(py, &self.as_ref()[..n.min(self.len)]).unbind();
                self.release(py);
                bytes
            }
        }
    }

    /// Splits the loan into consecutive loans of these lengths. The memory is released when all of
    /// them are dropped.
    ///
    /// # Panics
    /// If the sum of the lengths exceeds the loan.
    pub(crate) fn split(self, lengths: impl Iterator<Item = usize>) -> Vec<Loan> {
        let (whole, mut at) = (Arc::new(self), 0);
        let part = |len: usize| {
            assert!(len <= whole.len - at, "a part of {len} bytes at {at} of {}", whole.len);
            // SAFETY: the address is inside the memory, or at its end. No other part has these
            // bytes, and the bytes of the whole are not accessed.
            let start = unsafe { whole.start.add(at) };
            at += len;
            Loan { start, len, owner: Owner::Whole { _loan: whole.clone() } }
        };
        lengths.map(part).collect()
    }

    /// Releases the memory at once, on a thread attached to Python, without waiting for a pending
    /// call. Also releases pending exports, for which there may be no pending call.
    pub(crate) fn release(mut self, py: Python<'_>) {
        if let Owner::Export(export) = std::mem::replace(&mut self.owner, Owner::None) {
            export.release(py);
        }
        release_pending(py);
    }
}

fn size_of_bytes(len: usize) -> PyResult<ffi::Py_ssize_t> {
    let too_many = |_| PyMemoryError::new_err(format!("{len} bytes exceed what memory can hold"));
    ffi::Py_ssize_t::try_from(len).map_err(too_many)
}

fn start_of(object: &Bound<'_, PyBytes>) -> PyResult<NonNull<u8>> {
    // SAFETY: the object is `bytes`, whose address does not change.
    let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast::<u8>();
    NonNull::new(start).ok_or_else(|| PyErr::fetch(object.py()))
}

/// A new `bytes` object that any thread may fill. No other code sees it yet.
pub(crate) struct NewBytes {
    object: Py<PyBytes>,
    start: NonNull<u8>,
    len: usize,
    filled: usize,
}

// SAFETY: the object keeps its bytes at their address, for any thread.
unsafe impl Send for NewBytes {}

impl NewBytes {
    /// Makes an object of `len` bytes, without touching its pages.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn new(py: Python<'_>, len: usize) -> PyResult<NewBytes> {
        let size = size_of_bytes(len)?;
        // SAFETY: without contents, the call makes an object whose bytes the caller fills.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size))? };
        let object = object.cast_into::<PyBytes>()?;
        Ok(NewBytes { start: start_of(&object)?, object: object.unbind(), len, filled: 0 })
    }

    /// Copies `bytes` into the object, as far as they fit.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        self.filled = bytes.len().min(self.len);
        // SAFETY: only this code has these bytes at `start`, and no other memory overlaps them. An
        // empty object may be shared, but then nothing is written.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr(), self.filled) };
    }

    /// Returns the object, or a shorter one if fewer bytes were filled.
    pub(crate) fn finish(self, py: Python<'_>) -> Py<PyBytes> {
        if self.filled == self.len {
            return self.object;
        }
        // SAFETY: `fill` wrote these bytes at `start`, and no other code has the object yet.
        let filled = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.filled) };
        PyBytes::new(py, filled).unbind()
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the owner keeps `len` bytes at `start`; no content is assumed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Loan {
    /// Only for a loan that is [`writable`](Loan::writable), or for new [`bytes`](Loan::bytes).
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Readable loans are passed only to writes, which use `AsRef`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Owner::Export(export) = std::mem::replace(&mut self.owner, Owner::None) {
            export.1.leave(export);
        }
    }
}

extern "C" fn pending_call(_: *mut c_void) -> c_int {
    // The interpreter runs pending calls on an attached thread.
    let _ = Python::try_attach(release_pending);
    0
}

/// Releases the exports that threads without Python left to this thread's interpreter.
pub(crate) fn release_pending(py: Python<'_>) {
    let mut pending = Interpreter::current(py).lock();
    pending.is_asked = false;
    let exports = std::mem::take(&mut pending.exports);
    drop(pending);
    // A release may run Python code, so the lock is not held.
    exports.into_iter().for_each(|export| export.release(py));
}

/// Records that this interpreter begins to end. Registered with `atexit`.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    Interpreter::current(py).lock().is_ending = true;
    release_pending(py);
}

/// Returns the number of exports left to this interpreter, for tests.
#[pyfunction]
pub(crate) fn pending_releases(py: Python<'_>) -> usize {
    Interpreter::current(py).lock().exports.len()
}

pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the thread is attached; the call only reads the object's type.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}
