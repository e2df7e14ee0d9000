//! Submission of reads, gathers and waits to a queue. (`change.rs` has the rest.)
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use libc::iovec;
use nowait::{File, Lent, Moved};

use super::list::CompletionQueue;
use super::operation::{Awaited, QueuedOperation};
use super::{QUEUES, QueueHandle};
use crate::border::{many_mut, status, wanted};
use crate::copy::{CopyEnd, CopyHandle};
use crate::failure::Result;
use crate::file::{FILES, FileHandle};
use crate::gather::{Job, Range};
use crate::log::{LOGS, LogHandle};
use crate::vectored::Segments;

/// A read for nowait_submit_reads. The layout is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The file to read.
    pub file: FileHandle,
    /// Destination of the bytes.
    pub buffer: *mut c_void,
    /// Number of bytes.
    pub length: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Returned with the completion.
    pub user: *mut c_void,
    /// Receives the operation's number, for nowait_cancel.
    pub operation: u64,
}

impl CompletionQueue {
    /// Makes an operation, and begins the work that `start` returns. The operation's number is
    /// stored before another thread can reap the completion.
    ///
    /// The callers of all entry points that submit promise that `number` is NULL or points to a
    /// number.
    pub(super) fn submit(
        self: &Arc<Self>,
        user: *mut c_void,
        number: *mut u64,
        start: impl FnOnce(&Arc<QueuedOperation>) -> Result<Awaited>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let number = unsafe { wanted(number, "operation") }?;
        let opened = self.open(user.expose_provenance())?;
        let work = self.batch(|| start(opened.operation()))?;
        if let Some(number) = number {
            number.write(opened.operation().number);
        }
        opened.begin(work);
        Ok(())
    }
}

/// Prepares a read into memory that is lent until the completion is reaped.
fn read<'f>(
    file: &'f File,
    (start, length): (NonNull<u8>, usize),
    offset: u64,
    operation: &Arc<QueuedOperation>,
) -> nowait::Operation<'f, Moved<Lent>> {
    // SAFETY: the caller's promise: the completion is reaped only after the loan was dropped.
    let memory = unsafe { Lent::from_raw(start, length, operation.loan()) };
    file.read_at(memory, offset)
}

/// Starts a read, as nowait_read_at. The call copies cached data at once; otherwise it submits the
/// read. The completion returns `user`. `operation`, unless NULL, receives the operation's number,
/// for nowait_cancel. The file may be closed meanwhile.
///
/// Returns 0 if a completion will follow; or a negative errno if none will: -EBADF, -EFAULT. The
/// completion reports other errors. Threads: any.
///
/// # Safety
/// Until the completion is reaped, `length` bytes at `buffer` are valid for writes and nothing else
/// uses them. `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_read(
    queue: QueueHandle,
    file: FileHandle,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let buffer: &mut [u8] = unsafe { many_mut(buffer.cast(), length, "buffer") }?;
        let start = NonNull::from(buffer).cast();
        let file = FILES.get(file)?;
        QUEUES.get_own(queue)?.submit(user, operation, |operation| {
            Ok(Awaited::Transfer(read(&file, (start, length), offset, operation).start()))
        })
    })
}

/// Starts reads, each as nowait_submit_read. One system call submits all reads that go to the
/// device. Each read has its own completion.
///
/// Returns 0; or a negative errno if none was started: -EBADF, -EFAULT, -EINVAL. Threads: any.
///
/// # Safety
/// As nowait_submit_read, for each; `reads` points to `reads_count` elements, and nothing else uses
/// them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_reads(queue: QueueHandle, reads: *mut Read, reads_count: usize) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let reads = unsafe { many_mut(reads, reads_count, "reads") }?;
        let queue = QUEUES.get_own(queue)?;
        let mut ready = Vec::with_capacity(reads.len());
        for one in &mut *reads {
            // SAFETY: the caller's promise.
            let buffer: &mut [u8] = unsafe { many_mut(one.buffer.cast(), one.length, "the buffer of a read") }?;
            let start = NonNull::from(buffer).cast();
            ready.push((FILES.get(one.file)?, start, queue.open(one.user.expose_provenance())?));
        }
        let submitted = queue.batch_many(ready.len(), || {
            let started = ready.into_iter().zip(reads).map(|((file, start, opened), one)| {
                one.operation = opened.operation().number;
                let read = read(&file, (start, one.length), one.offset, opened.operation());
                (opened, Awaited::Transfer(read.start()))
            });
            started.collect::<Vec<_>>()
        });
        submitted.into_iter().for_each(|(opened, work)| opened.begin(work));
        Ok(())
    })
}

/// Starts a read into several buffers, as nowait_read_vectored_at. See nowait_submit_read for the
/// rest.
///
/// # Safety
/// During the call `buffers` points to `buffers_count` elements. Until the completion is reaped,
/// each element points to as many bytes as its length; these bytes do not overlap, and nothing else
/// uses them. `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_read_vectored(
    queue: QueueHandle,
    file: FileHandle,
    buffers: *const iovec,
    buffers_count: usize,
    offset: u64,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let segments = unsafe { Segments::to_read(buffers, buffers_count) }?;
        let file = FILES.get(file)?;
        QUEUES.get_own(queue)?.submit(user, operation, |operation| {
            // SAFETY: the caller's promise: the completion is reaped only after the loan was dropped.
            let memory = unsafe { segments.lend(Arc::new(operation.loan())) };
            Ok(Awaited::Vectored(file.read_vectored_at(memory, offset).start()))
        })
    })
}

/// Starts a gather, as nowait_gather. See nowait_submit_read for the rest. All ranges share one
/// completion. Its result is 0 if each range is complete. Otherwise it is the errno of the first
/// incomplete range, whose index is `range_index`. A thread of the library drives the gather.
///
/// # Safety
/// Until the completion is reaped, `output` points to `output_bytes` bytes, `results` is NULL or
/// points to `ranges_count` elements, and nothing else uses them. During the call `ranges` points
/// to `ranges_count` ranges. `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_gather(
    queue: QueueHandle,
    file: FileHandle,
    ranges: *const Range,
    ranges_count: usize,
    output: *mut c_void,
    output_bytes: usize,
    results: *mut i64,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let job = unsafe { Job::new(file, (ranges, ranges_count), (output, output_bytes), results) }?;
        let queue = QUEUES.get_own(queue)?;
        queue.submit(user, operation, |operation| Awaited::driven(job.run(operation.loan())))
    })
}

/// Starts to wait until a log's record is durable, as nowait_log_wait. See nowait_submit_read for
/// the rest.
///
/// # Safety
/// `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_log_wait(
    queue: QueueHandle,
    log: LogHandle,
    record: u64,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        let log = LOGS.get(log)?;
        QUEUES.get_own(queue)?.submit(user, operation, |_| Ok(Awaited::Record(log.wait_durable(record))))
    })
}

/// Starts a wait for the end of a copy; nowait_copy_wait then returns the report without
/// blocking. See nowait_submit_read for the rest. nowait_cancel ends the wait, and
/// nowait_copy_cancel ends the copy.
///
/// # Safety
/// `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_copy_wait(
    queue: QueueHandle,
    copy: CopyHandle,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        let end = CopyEnd::of(copy)?;
        QUEUES.get_own(queue)?.submit(user, operation, |_| Ok(Awaited::Copy(end)))
    })
}
