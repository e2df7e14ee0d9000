//! Reads offsets and lengths from Python objects of many types.

use std::path::Path;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple};

use crate::error::bad_range;
use crate::memory::{Elements, Integer, elements};

/// Offset and length in bytes.
pub(crate) type Extent = (u64, usize);

/// The ranges of a gather.
pub(crate) struct Ranges {
    pub(crate) extents: Vec<Extent>,
    /// Common length of all ranges, if given as one number.
    pub(crate) uniform: Option<usize>,
    /// Sum of the lengths.
    pub(crate) total: usize,
}

impl Ranges {
    /// Reads offsets, and lengths or one length for all. Errors contain `path`.
    ///
    /// # Errors
    /// `TypeError` for an argument that is not an integer; `ValueError` for a mismatch; the
    /// package's `RangeError`, with the index, for a range that no file can have.
    pub(crate) fn new(offsets: &Bound<'_, PyAny>, lengths: &Bound<'_, PyAny>, path: &Path) -> PyResult<Ranges> {
        let py = offsets.py();
        let bad = |index: usize, text: String| bad_range(py, Some(path), index, &text);
        let numbers = |object, what: &str| match integers(object, what)? {
            Ok(numbers) => Ok(numbers),
            Err(Bad { index, value }) => Err(bad(index, format!("the {what} is {value}"))),
        };
        let offsets = numbers(offsets, "offset")?;
        let (extents, uniform) = match one_length(lengths)? {
            Some(Ok(length)) => (offsets.into_iter().map(|offset| (offset, length)).collect(), Some(length)),
            Some(Err(value)) => return Err(bad(0, format!("the length is {value}"))),
            None => {
                let lengths = numbers(lengths, "length")?;
                if lengths.len() != offsets.len() {
                    let (offsets, lengths) = (offsets.len(), lengths.len());
                    return Err(PyValueError::new_err(format!(
                        "{offsets} offsets and {lengths} lengths; give one length for each offset, or one for all"
                    )));
                }
                (offsets.into_iter().zip(lengths.into_iter().map(|length| length as usize)).collect::<Vec<_>>(), None)
            }
        };
        let mut total = 0usize;
        for (index, (offset, length)) in extents.iter().enumerate() {
            let end = offset.checked_add(*length as u64).filter(|end| *end <= i64::MAX as u64);
            if end.is_none() {
                let text = format!("offset {offset} and length {length} end beyond the largest file offset, 2**63 - 1");
                return Err(bad(index, text));
            }
            total = match total.checked_add(*length).filter(|total| *total <= isize::MAX as usize) {
                Some(total) => total,
                None => return Err(bad(index, "the sum of the lengths exceeds what memory can hold".to_owned())),
            };
        }
        Ok(Ranges { extents, uniform, total })
    }
}

/// An invalid offset or length: its position in the list, and its value.
struct Bad {
    index: usize,
    value: String,
}

/// Reads one length for all ranges; `None` if the argument is a list.
fn one_length(object: &Bound<'_, PyAny>) -> PyResult<Option<Result<usize, String>>> {
    // Arrays and tensors of any length have `__index__`, too.
    let is_one = object.is_instance_of::<PyInt>() || (object.hasattr("__index__")? && object.len().is_err());
    if !is_one {
        return Ok(None);
    }
    Ok(Some(integer(object, "length")?.map(|length| length as usize)))
}

/// Reads a list of integers that are not negative.
fn integers(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Result<Vec<u64>, Bad>> {
    match elements(object)? {
        Some(Elements::Integers(kind, memory)) => {
            let numbers = fixed(kind, memory.as_ref());
            memory.release(object.py());
            return Ok(numbers);
        }
        Some(Elements::Others(_, dimensions)) if dimensions != 1 => {
            return Err(PyValueError::new_err(format!("the {what}s have {dimensions} dimensions; give one")));
        }
        // An array of objects, which are read one by one.
        Some(Elements::Others(format, _)) if format == "O" => {}
        Some(Elements::Others(format, _)) => {
            let name = match &*format {
                "?" => "booleans",
                "d" | "f" | "e" | "g" => "floating-point numbers",
                _ => "no integers",
            };
            return Err(PyTypeError::new_err(format!("the {what}s are {name} (format {format:?}); give integers")));
        }
        None if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() => {}
        // A pandas series, a torch tensor or an arrow array.
        None if object.hasattr("__array__")? => return integers(&object.call_method0("__array__")?, what),
        None => {}
    }
    let items = object.try_iter().map_err(|error| match object.get_type().name() {
        Ok(name) if error.is_instance_of::<PyTypeError>(object.py()) => {
            PyTypeError::new_err(format!("the {what}s are of type {name}; give integers: a list, an array"))
        }
        _ => error,
    })?;
    let mut numbers = Vec::with_capacity(object.len().unwrap_or(0));
    for (index, item) in items.enumerate() {
        match integer(&item?, what)? {
            Ok(number) => numbers.push(number),
            Err(value) => return Ok(Err(Bad { index, value })),
        }
    }
    Ok(Ok(numbers))
}

/// Reads one integer; returns its text if it is negative or too large.
fn integer(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Result<u64, String>> {
    if object.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("one {what} is a boolean; give an integer")));
    }
    match object.extract::<u64>() {
        Ok(number) => Ok(Ok(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Ok(Err(object.str()?.to_string())),
        Err(_) => {
            let name = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("one {what} is of type {name}; give an integer")))
        }
    }
}

/// Reads integers directly from memory.
fn fixed(kind: Integer, memory: &[u8]) -> Result<Vec<u64>, Bad> {
    fn read<const N: usize>(memory: &[u8], swapped: bool, value: impl Fn([u8; N]) -> i128) -> Result<Vec<u64>, Bad> {
        let mut numbers = Vec::with_capacity(memory.len() / N);
        for (index, bytes) in memory.chunks_exact(N).enumerate() {
            let mut element = [0; N];
            element.copy_from_slice(bytes);
            if swapped {
                element.reverse();
            }
            let value = value(element);
            match u64::try_from(value) {
                Ok(number) => numbers.push(number),
                Err(_) => return Err(Bad { index, value: value.to_string() }),
            }
        }
        Ok(numbers)
    }
    let swapped = kind.is_swapped;
    match (kind.bytes, kind.is_signed) {
        (8, true) => read(memory, swapped, |bytes| i64::from_ne_bytes(bytes).into()),
        (8, false) => read(memory, swapped, |bytes| u64::from_ne_bytes(bytes).into()),
        (4, true) => read(memory, swapped, |bytes| i32::from_ne_bytes(bytes).into()),
        (4, false) => read(memory, swapped, |bytes| u32::from_ne_bytes(bytes).into()),
        (2, true) => read(memory, swapped, |bytes| i16::from_ne_bytes(bytes).into()),
        (2, false) => read(memory, swapped, |bytes| u16::from_ne_bytes(bytes).into()),
        (_, true) => read(memory, swapped, |bytes| i8::from_ne_bytes(bytes).into()),
        (_, false) => read(memory, swapped, |bytes| u8::from_ne_bytes(bytes).into()),
    }
}
