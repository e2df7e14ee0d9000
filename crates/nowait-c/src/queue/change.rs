//! Submission of changes to a queue: writes, syncs, sizes, names.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use libc::iovec;
use nowait::{File, Lent};

use super::operation::{Awaited, QueuedOperation};
use super::{QUEUES, QueueHandle};
use crate::border::{many, many_mut, status};
use crate::failure::Result;
use crate::file::{FILES, FileHandle, WriteFlags, syncs_all};
use crate::instance::InstanceHandle;
use crate::names::{NameChange, NameOp, Whole};
use crate::space::{advised, allocation};
use crate::vectored::Segments;

/// A write for nowait_submit_writes. The layout is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest {
    /// The file to write.
    pub file: FileHandle,
    /// Start of the bytes.
    pub buffer: *const c_void,
    /// Number of bytes.
    pub length: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Bitwise OR of NOWAIT_WRITE_... flags, or 0.
    pub flags: u64,
    /// Returned with the completion.
    pub user: *mut c_void,
    /// Receives the operation's number, for nowait_cancel.
    pub operation: u64,
}

/// Prepares a write from memory that is lent until the completion is reaped.
fn write(
    file: &File,
    (start, length): (NonNull<u8>, usize),
    offset: u64,
    flags: WriteFlags,
    operation: &Arc<QueuedOperation>,
) -> Awaited {
    // SAFETY: the caller's promise: the completion is reaped only after the loan was dropped.
    let memory = unsafe { Lent::from_raw(start, length, operation.loan()) };
    Awaited::Transfer(flags.on(file.write_at(memory, offset)).start())
}

/// Starts a write, as nowait_write_at. See nowait_submit_read for the rest. Overlapping writes of
/// one file are made in the order of their submission. -EINVAL for unknown flags.
///
/// # Safety
/// Until the completion is reaped, `length` bytes at `buffer` are valid for reads and nothing
/// changes them. `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_write(
    queue: QueueHandle,
    file: FileHandle,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let buffer: &[u8] = unsafe { many(buffer.cast(), length, "buffer") }?;
        let start = NonNull::from(buffer).cast();
        let flags = WriteFlags::new(flags)?;
        let file = FILES.get(file)?;
        QUEUES
            .get_own(queue)?
            .submit(user, operation, |operation| Ok(write(&file, (start, length), offset, flags, operation)))
    })
}

/// Starts writes in the given order, each as nowait_submit_write. One system call submits all
/// direct writes (O_DIRECT). Each write has its own completion.
///
/// Returns 0; or a negative errno if none was started: -EBADF, -EFAULT, -EINVAL. Threads: any.
///
/// # Safety
/// As nowait_submit_write, for each; `writes` points to `writes_count` elements, and nothing else
/// uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_writes(
    queue: QueueHandle,
    writes: *mut WriteRequest,
    writes_count: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let writes = unsafe { many_mut(writes, writes_count, "writes") }?;
        let queue = QUEUES.get_own(queue)?;
        let mut ready = Vec::with_capacity(writes.len());
        for one in &mut *writes {
            // SAFETY: the caller's promise.
            let buffer: &[u8] = unsafe { many(one.buffer.cast(), one.length, "the buffer of a write") }?;
            let start = NonNull::from(buffer).cast();
            let flags = WriteFlags::new(u32::try_from(one.flags).unwrap_or(u32::MAX))?;
            ready.push((FILES.get(one.file)?, start, flags, queue.open(one.user.expose_provenance())?));
        }
        let submitted = queue.batch(|| {
            let started = ready.into_iter().zip(writes).map(|((file, start, flags, opened), one)| {
                one.operation = opened.operation().number;
                let work = write(&file, (start, one.length), one.offset, flags, opened.operation());
                (opened, work)
            });
            started.collect::<Vec<_>>()
        });
        submitted.into_iter().for_each(|(opened, work)| opened.begin(work));
        Ok(())
    })
}

/// Starts a write of several buffers, as nowait_write_vectored_at. See nowait_submit_write for the
/// rest.
///
/// # Safety
/// During the call `buffers` points to `buffers_count` elements. Until the completion is reaped,
/// each element points to as many bytes as its length, and nothing changes these bytes. `operation`
/// is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_write_vectored(
    queue: QueueHandle,
    file: FileHandle,
    buffers: *const iovec,
    buffers_count: usize,
    offset: u64,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let segments = unsafe { Segments::to_write(buffers, buffers_count) }?;
        let flags = WriteFlags::new(flags)?;
        let file = FILES.get(file)?;
        QUEUES.get_own(queue)?.submit(user, operation, |operation| {
            // SAFETY: the caller's promise: the completion is reaped only after the loan was dropped.
            let memory = unsafe { segments.lend(Arc::new(operation.loan())) };
            Ok(Awaited::Vectored(flags.on(file.write_vectored_at(memory, offset)).start()))
        })
    })
}

/// Starts an append, as nowait_append. See nowait_submit_write for the rest. Appends to one file
/// are made in the order of their submission. Appends and writes at offsets have no order: reap one
/// before submitting the other.
///
/// # Safety
/// As nowait_submit_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_append(
    queue: QueueHandle,
    file: FileHandle,
    buffer: *const c_void,
    length: usize,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let buffer: &[u8] = unsafe { many(buffer.cast(), length, "buffer") }?;
        let start = NonNull::from(buffer).cast();
        let flags = WriteFlags::new(flags)?;
        let file = FILES.get(file)?;
        QUEUES.get_own(queue)?.submit(user, operation, |operation| {
            // SAFETY: the caller's promise: the completion is reaped only after the loan was dropped.
            let memory = unsafe { Lent::from_raw(start, length, operation.loan()) };
            Ok(Awaited::Append(flags.on(file.append(memory)).start()))
        })
    })
}

/// Starts a sync, as nowait_sync. The sync covers the writes whose completions could be reaped
/// before this call. See nowait_submit_read for the rest. -EINVAL for unknown flags.
///
/// # Safety
/// `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_sync(
    queue: QueueHandle,
    file: FileHandle,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        let all = syncs_all(flags)?;
        let file = FILES.get(file)?;
        let sync = |file: &File| if all { file.sync_all().start() } else { file.sync_data().start() };
        QUEUES.get_own(queue)?.submit(user, operation, |_| Ok(Awaited::Change(sync(&file))))
    })
}

/// Starts to cut or extend a file, as nowait_file_set_length. See nowait_submit_read for the rest.
/// The change keeps the order of submission relative to appends, and to writes that reach beyond
/// `length`.
///
/// # Safety
/// `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_set_length(
    queue: QueueHandle,
    file: FileHandle,
    length: u64,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        let file = FILES.get(file)?;
        QUEUES.get_own(queue)?.submit(user, operation, |_| Ok(Awaited::Change(file.set_len(length).start())))
    })
}

/// Starts to reserve, punch or zero a range, as nowait_file_allocate. See nowait_submit_set_length
/// for the rest. -EINVAL if `how` is not known.
///
/// # Safety
/// `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_allocate(
    queue: QueueHandle,
    file: FileHandle,
    how: u32,
    offset: u64,
    length: u64,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        let how = allocation(how)?;
        let file = FILES.get(file)?;
        QUEUES
            .get_own(queue)?
            .submit(user, operation, |_| Ok(Awaited::Change(file.allocate(how, offset, length).start())))
    })
}

/// Starts advice about a range, as nowait_file_advise. See nowait_submit_read for the rest. -EINVAL
/// if `advice` is not known.
///
/// # Safety
/// `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_advise(
    queue: QueueHandle,
    file: FileHandle,
    offset: u64,
    length: u64,
    advice: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        let advice = advised(advice)?;
        let file = FILES.get(file)?;
        let advise = |file: &File| file.advise(offset, length, advice).start();
        QUEUES.get_own(queue)?.submit(user, operation, |_| Ok(Awaited::Change(advise(&file))))
    })
}

/// Starts a rename, as nowait_rename. See nowait_submit_read for the rest. Changes of names have no
/// order: if one depends on another, submit it after reaping the other's completion. The call
/// copies the strings.
///
/// # Safety
/// `from` and `to` are strings; `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_rename(
    queue: QueueHandle,
    instance: InstanceHandle,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| submit_change(queue, unsafe { NameChange::rename(instance, from, to, flags) }, user, operation))
}

/// Starts to remove a file, as nowait_remove_file. See nowait_submit_rename for the rest.
///
/// # Safety
/// `path` is a string; `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_remove_file(
    queue: QueueHandle,
    instance: InstanceHandle,
    path: *const c_char,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        submit_change(queue, unsafe { NameChange::one(NameOp::RemoveFile, instance, path, flags) }, user, operation)
    })
}

/// Starts to create a directory, as nowait_create_dir. See nowait_submit_rename for the rest.
///
/// # Safety
/// As nowait_submit_remove_file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_create_dir(
    queue: QueueHandle,
    instance: InstanceHandle,
    path: *const c_char,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        submit_change(queue, unsafe { NameChange::one(NameOp::CreateDir, instance, path, flags) }, user, operation)
    })
}

/// Starts to remove an empty directory, as nowait_remove_dir. See nowait_submit_rename for the
/// rest.
///
/// # Safety
/// As nowait_submit_remove_file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_remove_dir(
    queue: QueueHandle,
    instance: InstanceHandle,
    path: *const c_char,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        submit_change(queue, unsafe { NameChange::one(NameOp::RemoveDir, instance, path, flags) }, user, operation)
    })
}

/// Starts to make the names in a directory durable, as nowait_sync_dir. The sync covers the changes
/// whose completions could be reaped before this call. See nowait_submit_rename for the rest.
///
/// # Safety
/// As nowait_submit_remove_file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_sync_dir(
    queue: QueueHandle,
    instance: InstanceHandle,
    path: *const c_char,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| submit_change(queue, unsafe { NameChange::sync_dir(instance, path, flags) }, user, operation))
}

/// Starts to replace a file atomically, as nowait_write_atomic. See nowait_submit_rename for the
/// rest. If cancelled before its rename, the operation keeps the old file and removes the temporary
/// one. A thread of the library drives the operation.
///
/// # Safety
/// `path` is a string. Until the completion is reaped, `length` bytes at `buffer` are valid for
/// reads and nothing changes them. `operation` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_submit_write_atomic(
    queue: QueueHandle,
    instance: InstanceHandle,
    path: *const c_char,
    buffer: *const c_void,
    length: usize,
    flags: u32,
    user: *mut c_void,
    operation: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let whole = unsafe { Whole::new(instance, path, (buffer, length), flags) }?;
        let queue = QUEUES.get_own(queue)?;
        queue.submit(user, operation, |operation| Awaited::driven(whole.run(operation.loan())))
    })
}

fn submit_change(queue: QueueHandle, change: Result<NameChange>, user: *mut c_void, operation: *mut u64) -> Result<()> {
    let change = change?;
    QUEUES.get_own(queue)?.submit(user, operation, |_| Awaited::driven(change.run()))
}

const _: () = assert!(size_of::<WriteRequest>() == 56);
