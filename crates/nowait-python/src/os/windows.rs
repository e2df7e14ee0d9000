//! Windows: descriptors are numbers of Python's C library, which stand for handles.
//!
//! `unsafe` here: a handle that Python holds open.

use std::fs::File;
use std::io;
use std::os::windows::io::{BorrowedHandle, RawHandle};

use nowait::{Error, ErrorOp};
use pyo3::prelude::*;

const ERROR_INVALID_HANDLE: i32 = 6;

/// Returns None: a descriptor of the file's handle, which is overlapped, could be neither read nor
/// written.
pub(crate) fn descriptor(_file: &nowait::File) -> Option<i32> {
    None
}

/// Opens the file of a descriptor of Python again, by its path. Reads through the same handle would move
/// the position of Python's file.
pub(crate) fn of_descriptor(py: Python<'_>, number: i32) -> nowait::Result<nowait::File> {
    // Only Python's C library knows the handle; this module may use another C library.
    let handle = py.import("msvcrt").and_then(|library| library.call_method1("get_osfhandle", (number,)));
    let handle: isize = match handle.and_then(|handle| handle.extract()) {
        Ok(handle) if handle > 0 => handle,
        _ => return Err(failed(number, io::Error::from_raw_os_error(ERROR_INVALID_HANDLE))),
    };
    py.detach(|| {
        // SAFETY: the handle is used only by this call, which fails if it is not open.
        let duplicate = unsafe { BorrowedHandle::borrow_raw(handle as RawHandle) }.try_clone_to_owned();
        let file = nowait::File::try_from(File::from(duplicate.map_err(|error| failed(number, error))?))?;
        nowait::File::open(file.path()).wait()
    })
}

fn failed(number: i32, error: io::Error) -> Error {
    let error = Error::from_raw_os_error(ErrorOp::Open, error.raw_os_error().unwrap_or(0));
    error.at(format!("descriptor {number}"))
}
