//! Reads integers from Python objects with a buffer.
//!
//! `unsafe` here: an exporter's format, which is a C string, and a copy of elements that are not
//! contiguous.

use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;

use super::lent::{Export, Loan, has_buffer};

/// Kind of a buffer's elements, if they are integers.
#[derive(Clone, Copy)]
pub(crate) struct Integer {
    pub(crate) is_signed: bool,
    pub(crate) bytes: usize,
    /// True if the byte order is not this processor's.
    pub(crate) is_swapped: bool,
}

/// Elements of an object with a buffer.
pub(crate) enum Elements {
    /// Integers in one dimension, in lent memory.
    Integers(Integer, Loan),
    /// Other elements: their `struct` format, and the number of dimensions.
    Others(String, usize),
}

/// Returns the elements of an object; `None` if it has no buffer.
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
    // The elements are not contiguous: a slice with a step, or reversed.
    let (size, mut copy) = (export.0.len, Loan::bytes(object.py(), export.0.len.max(0) as usize)?);
    let to = copy.as_mut().as_mut_ptr().cast();
    // SAFETY: `to` has room for `size` bytes, the size of all elements.
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
