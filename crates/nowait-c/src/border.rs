//! The border between C and Rust: panics, results and C pointers of every entry point.
//!
//! `unsafe` here: pointers of callers. The functions check that a pointer is not NULL and is
//! aligned, and the size of the struct that it points to.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::{MaybeUninit, align_of, size_of};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::failure::{Failure, Result};

/// Runs an entry point that returns a number of bytes or elements.
///
/// A panic becomes an error. The library stays usable: its data are consistent after a panic, and
/// its locks ignore poisoning.
#[inline]
pub(crate) fn count(call: impl FnOnce() -> Result<usize>) -> i64 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(count)) => count as i64,
        Ok(Err(failure)) => failure.report().into(),
        Err(panic) => panicked(panic).report().into(),
    }
}

/// Runs an entry point that returns a count; or -EAGAIN, without a message.
#[inline]
pub(crate) fn attempt(call: impl FnOnce() -> Result<Option<usize>>) -> i64 {
    const AGAIN: usize = -(libc::EAGAIN as isize) as usize;
    count(|| Ok(call()?.unwrap_or(AGAIN)))
}

/// Runs an entry point that returns 0.
#[inline]
pub(crate) fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    count(|| call().map(|()| 0)) as c_int
}

#[cold]
pub(crate) fn panicked(panic: Box<dyn std::any::Any + Send>) -> Failure {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => *text,
        (_, Some(text)) => text,
        _ => "without a text",
    };
    let failure =
        Failure::new(libc::ENOTRECOVERABLE, format!("defect in the library, please report it: panic: {text}"));
    // The payload's destructor could panic again.
    std::mem::forget(panic);
    failure
}

#[cold]
fn bad_pointer(pointer: *const (), name: &str, alignment: usize) -> Failure {
    match pointer.is_null() {
        true => Failure::new(libc::EFAULT, format!("{name} is NULL")),
        false => {
            Failure::new(libc::EFAULT, format!("{name} is {pointer:p}, which is not aligned to {alignment} bytes"))
        }
    }
}

#[inline]
fn check<T>(pointer: *const T, name: &str) -> Result<()> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(bad_pointer(pointer.cast(), name, align_of::<T>()));
    }
    Ok(())
}

#[inline]
fn check_many<T>(pointer: *const T, count: usize, name: &str) -> Result<()> {
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::new(
            libc::EINVAL,
            format!("the length of {name} is {count}, which exceeds the address space"),
        ));
    }
    check(pointer, name)
}

/// Returns the `count` elements at `pointer`. If `count` is 0, ignores the pointer.
///
/// # Safety
/// If `pointer` is aligned and not NULL: `count` elements are valid for reads, and nothing changes
/// them, for `'a`.
#[inline]
pub(crate) unsafe fn many<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_many(pointer, count, name)?;
    // SAFETY: the caller's promise, and the checks above.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Returns elements for writing; otherwise as [`many`].
///
/// # Safety
/// As [`many`]; also valid for writes, and nothing else uses them. Bytes that C has not written
/// count as initialised, since they come from outside of Rust; they are not read.
#[inline]
pub(crate) unsafe fn many_mut<'a, T>(pointer: *mut T, count: usize, name: &str) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_many(pointer, count, name)?;
    // SAFETY: the caller's promise, and the checks above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// Returns the place of an output.
///
/// # Safety
/// If `pointer` is aligned and not NULL: it is valid for writes, and nothing else uses it, for `'a`.
#[inline]
pub(crate) unsafe fn answer<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut MaybeUninit<T>> {
    check(pointer, name)?;
    // SAFETY: the caller's promise, and the checks above.
    Ok(unsafe { &mut *pointer.cast() })
}

/// As [`answer`], for an optional output; None for NULL.
///
/// # Safety
/// As [`answer`].
#[inline]
pub(crate) unsafe fn wanted<'a, T>(pointer: *mut T, name: &str) -> Result<Option<&'a mut MaybeUninit<T>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { answer(pointer, name) }.map(Some)
}

/// Returns the path in a string.
///
/// # Safety
/// If `pointer` is not NULL: it is a string that ends with a zero byte, and nothing changes it, for
/// `'a`.
pub(crate) unsafe fn path<'a>(pointer: *const c_char, name: &str) -> Result<&'a Path> {
    check(pointer, name)?;
    // SAFETY: the caller's promise.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(pointer) }.to_bytes())))
}

/// A struct whose first field is its size in bytes, a `usize`. So the struct can grow: the size
/// shows the version of the header that the caller was built with.
///
/// # Safety
/// `repr(C)`; the first field is that `usize`; all fields are numbers, for which any bytes are
/// valid.
pub(crate) unsafe trait Growing: Copy + Default {
    /// Size in the first version of the interface.
    const FIRST_BYTES: usize;
}

/// Reads a struct of options; returns the defaults for NULL. Fields that an older caller lacks are
/// zero. Additional fields of a newer caller must be zero.
///
/// # Safety
/// If `pointer` is aligned and not NULL: as many bytes are valid for reads as its first field says.
pub(crate) unsafe fn options<T: Growing>(pointer: *const T, name: &str) -> Result<T> {
    let mut options = T::default();
    if pointer.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { size(pointer, name) }?;
    // SAFETY: the caller's promise.
    let given = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), bytes) };
    let known = bytes.min(size_of::<T>());
    if given[known..].iter().any(|byte| *byte != 0) {
        let text =
            format!("{name} has members that this library does not know: it is older than the header; set them to 0");
        return Err(Failure::new(libc::E2BIG, text));
    }
    // SAFETY: both sides have `known` bytes, and any bytes are valid for `T`.
    unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), std::ptr::from_mut(&mut options).cast(), known) };
    Ok(options)
}

/// Fills the fields of an output struct that both sides know, and zeroes the other fields of a
/// newer caller. The first field stays as the caller set it.
///
/// # Safety
/// If `pointer` is aligned and not NULL: as many bytes are valid for reads and writes as its first
/// field says, and nothing else uses them.
pub(crate) unsafe fn fill<T: Growing>(pointer: *mut T, value: &T, name: &str) -> Result<()> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { size(pointer, name) }?;
    let known = bytes.min(size_of::<T>());
    let first = size_of::<usize>();
    // SAFETY: both sides have `known` bytes; the copy omits the first field.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), pointer.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(first), to.add(first), known - first);
        to.add(known).write_bytes(0, bytes - known);
    }
    Ok(())
}

/// Checks that [`fill`] will succeed, before a call that cannot be undone.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn size<T: Growing>(pointer: *const T, name: &str) -> Result<usize> {
    check(pointer, name)?;
    // SAFETY: the caller's promise; the first field is a `usize`.
    let bytes = unsafe { pointer.cast::<usize>().read() };
    // No version of a struct will be larger: a larger size was not set by the caller.
    const BYTES_MAX: usize = 4096;
    if !(T::FIRST_BYTES..=BYTES_MAX).contains(&bytes) {
        let text =
            format!("the member size of {name} is {bytes}; set it to the size of the struct, {}", size_of::<T>());
        return Err(Failure::new(libc::EINVAL, text));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::failure::last_text;

    fn last() -> String {
        // SAFETY: the text of this thread, which makes no other failing call meanwhile.
        unsafe { CStr::from_ptr(last_text()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_ends_at_the_border() {
        assert_eq!(status(|| panic!("on {}", "purpose")), -libc::ENOTRECOVERABLE);
        assert!(last().contains("panic: on purpose"), "{}", last());
        assert_eq!(count(|| std::panic::panic_any(7)), -i64::from(libc::ENOTRECOVERABLE));
        assert!(last().contains("without a text"), "{}", last());
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert_eq!(status(|| std::panic::panic_any(Bomb)), -libc::ENOTRECOVERABLE);
        assert_eq!(status(|| Ok(())), 0);
    }

    #[test]
    fn texts_of_c_have_no_zero_bytes() {
        assert_eq!(status(|| Err(Failure::new(libc::EIO, "a\0b"))), -libc::EIO);
        assert_eq!(last(), "ab");
    }
}
