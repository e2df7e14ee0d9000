//! POSIX: the descriptors of Python are those of the system.
//!
//! `unsafe` here: a descriptor that Python holds open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nowait::{Error, ErrorOp};
use pyo3::prelude::*;

/// Returns the descriptor of a file.
pub(crate) fn descriptor(file: &nowait::File) -> Option<i32> {
    Some(file.as_fd().as_raw_fd())
}

/// Opens the file of a descriptor of Python, which Python may then close.
pub(crate) fn of_descriptor(py: Python<'_>, number: i32) -> nowait::Result<nowait::File> {
    py.detach(|| {
        let failed = |error: io::Error| {
            let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
            let error = Error::from_raw_os_error(ErrorOp::Open, error.raw_os_error().unwrap_or(0));
            error.at(format!("{folder}/{number}"))
        };
        nowait::File::try_from(duplicate(number).map_err(failed)?)
    })
}

fn duplicate(number: i32) -> io::Result<File> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: the descriptor is used only by this call, which fails if it is not open.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().map(File::from)
}
