//! Windows: descriptors are numbers of Python's C library, which stand for handles.
//!
//! `unsafe` here: a handle that Python holds open.

use std::fs::File;
use std::io;
use std::os::windows::io::{BorrowedHandle, RawHandle};

use pyo3::prelude::*;

const ERROR_INVALID_HANDLE: i32 = 6;

/// Files of the library have handles only: a descriptor for one could be neither read nor written,
/// since the handle is for overlapped I/O.
pub(crate) fn descriptor(_file: &nowait::File) -> Option<i32> {
    None
}

/// Duplicates the handle of a descriptor of Python, which Python may then close.
pub(crate) fn duplicate(py: Python<'_>, number: i32) -> io::Result<File> {
    // Python's C library knows the handle, and this module may have another one.
    let handle = py.import("msvcrt").and_then(|library| library.call_method1("get_osfhandle", (number,)));
    let handle: isize = match handle.and_then(|handle| handle.extract()) {
        Ok(handle) if handle > 0 => handle,
        _ => return Err(io::Error::from_raw_os_error(ERROR_INVALID_HANDLE)),
    };
    // SAFETY: the handle is used only by this call, which fails if it is not open.
    unsafe { BorrowedHandle::borrow_raw(handle as RawHandle) }.try_clone_to_owned().map(File::from)
}

/// Name in errors.
pub(crate) fn name_of_descriptor(number: i32) -> String {
    format!("descriptor {number}")
}
