//! Vectored reads and writes: one range of a file, several pieces of memory.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ptr::NonNull;

use libc::iovec;
use nowait::Lent;

use crate::border::{count, many, many_mut};
use crate::failure::{Failure, Result};
use crate::file::{BlockingLoan, FILES, FileHandle, WriteFlags};

/// Reads from `offset` on into `buffers`, one after the other. Otherwise it behaves like
/// nowait_read_at with their total length. Any number of buffers is allowed, including empty ones.
/// More than 1,024 buffers, or 2 GiB, take several system calls (readv(2)): a write of the same
/// range may come between them.
///
/// # Safety
/// `buffers` points to `buffers_count` elements, and each points to as many bytes as its length.
/// The buffers do not overlap, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_read_vectored_at(
    file: FileHandle,
    buffers: *const iovec,
    buffers_count: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let segments = unsafe { Segments::to_read(buffers, buffers_count) }?;
        let file = FILES.get(file)?;
        let loan = BlockingLoan::default();
        // SAFETY: the caller's promise, until `loan` is dropped, which waits for the release.
        let memory = unsafe { segments.lend(loan.token()) };
        let read = file.read_vectored_at(memory, offset).wait();
        Ok(read.map_err(|error| error.error)?.0)
    })
}

/// Writes `buffers`, one after the other, at `offset`. Otherwise it behaves like nowait_write_at
/// with their total length. Any number of buffers is allowed. A reader may see the first buffers
/// before the last.
///
/// # Safety
/// `buffers` points to `buffers_count` elements, and each points to as many bytes as its length.
/// Nothing changes these bytes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_write_vectored_at(
    file: FileHandle,
    buffers: *const iovec,
    buffers_count: usize,
    offset: u64,
    flags: u32,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let segments = unsafe { Segments::to_write(buffers, buffers_count) }?;
        let flags = WriteFlags::new(flags)?;
        let file = FILES.get(file)?;
        let loan = BlockingLoan::default();
        // SAFETY: the caller's promise, until `loan` is dropped, which waits for the release.
        let memory = unsafe { segments.lend(loan.token()) };
        let written = flags.on(file.write_vectored_at(memory, offset)).wait();
        Ok(written.map_err(|error| error.error)?.0)
    })
}

/// Checked buffers of a caller.
pub(crate) struct Segments(Vec<(NonNull<u8>, usize)>);

impl Segments {
    /// Checks buffers that are written to.
    ///
    /// # Safety
    /// As nowait_read_vectored_at.
    pub(crate) unsafe fn to_read(buffers: *const iovec, buffers_count: usize) -> Result<Segments> {
        let segment = |buffer: &iovec| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { many_mut::<u8>(buffer.iov_base.cast(), buffer.iov_len, "a buffer") }?;
            Ok((NonNull::from(&mut *bytes).cast(), bytes.len()))
        };
        // SAFETY: the caller's promise.
        unsafe { Segments::checked(buffers, buffers_count, segment) }
    }

    /// Checks buffers that are read from.
    ///
    /// # Safety
    /// As nowait_write_vectored_at.
    pub(crate) unsafe fn to_write(buffers: *const iovec, buffers_count: usize) -> Result<Segments> {
        let segment = |buffer: &iovec| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { many::<u8>(buffer.iov_base.cast(), buffer.iov_len, "a buffer") }?;
            Ok((NonNull::from(bytes).cast(), bytes.len()))
        };
        // SAFETY: the caller's promise.
        unsafe { Segments::checked(buffers, buffers_count, segment) }
    }

    /// # Safety
    /// `buffers` points to `buffers_count` elements.
    unsafe fn checked(
        buffers: *const iovec,
        buffers_count: usize,
        segment: impl Fn(&iovec) -> Result<(NonNull<u8>, usize)>,
    ) -> Result<Segments> {
        // SAFETY: the caller's promise.
        let buffers = unsafe { many(buffers, buffers_count, "buffers") }?;
        let mut segments = Vec::new();
        if segments.try_reserve_exact(buffers.len()).is_err() {
            return Err(Failure::new(libc::ENOMEM, format!("no memory for {} buffers", buffers.len())));
        }
        for buffer in buffers {
            segments.push(segment(buffer)?);
        }
        let sum = segments.iter().try_fold(0_usize, |sum, (_, length)| sum.checked_add(*length));
        match sum {
            Some(sum) if sum <= isize::MAX as usize => Ok(Segments(segments)),
            _ => Err(Failure::new(libc::EINVAL, "the sum of the buffers' lengths exceeds the address space")),
        }
    }

    /// Returns the memory with a token that is dropped when the memory is no longer used.
    ///
    /// # Safety
    /// The promise of the check holds until the last copy of the token is dropped.
    pub(crate) unsafe fn lend<T: Clone + Send + 'static>(self, token: T) -> Vec<Lent> {
        // SAFETY: the caller's promise.
        let lend = |(start, length)| unsafe { Lent::from_raw(start, length, token.clone()) };
        self.0.into_iter().map(lend).collect()
    }
}
