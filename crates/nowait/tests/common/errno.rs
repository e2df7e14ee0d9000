//! The system's numbers of errors that tests compare, under their POSIX names.

#[cfg(unix)]
mod numbers {
    pub(crate) const EEXIST: i32 = libc::EEXIST;
    pub(crate) const EFBIG: i32 = libc::EFBIG;
    pub(crate) const EIO: i32 = libc::EIO;
    pub(crate) const ENOTDIR: i32 = libc::ENOTDIR;
    pub(crate) const EPERM: i32 = libc::EPERM;
}

/// Names of `winerror.h` in the comments.
#[cfg(windows)]
mod numbers {
    pub(crate) const EEXIST: i32 = 183; // ERROR_ALREADY_EXISTS
    pub(crate) const EIO: i32 = 1117; // ERROR_IO_DEVICE
    pub(crate) const ENOTDIR: i32 = 267; // ERROR_DIRECTORY
}

#[allow(unused_imports)] // Not every test binary compares errors.
pub(crate) use self::numbers::*;
