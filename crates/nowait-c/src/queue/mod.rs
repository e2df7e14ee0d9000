//! Queues: operations are submitted with a caller's pointer (`submit.rs`, `change.rs`), and their
//! completions are reaped in order of arrival.
//!
//! `unsafe` here: entry points, and their callers' pointers.

mod change;
mod list;
mod operation;
mod submit;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::change::*;
use self::list::CompletionQueue;
pub use self::submit::*;
use crate::border::{answer, count, many_mut, status};
use crate::failure::{Failure, Result};
use crate::handle::{HandleKind, Table};

/// Handle of a queue of operations and their completions; 0 means none.
pub type QueueHandle = u64;

/// A completion. The layout is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Value passed to the submission.
    pub user: *mut c_void,
    /// Number of the operation, as its submission returned it.
    pub operation: u64,
    /// A read, write or append returns the number of bytes; a wait on a log returns the last
    /// durable record; other operations return 0. If an operation fails, this is the negative errno
    /// of the blocking call, or -ECANCELED after nowait_cancel.
    pub result: i64,
    /// Index of the first incomplete range of a gather, if the result is negative; otherwise 0.
    pub range_index: u64,
    /// NULL if the result is not negative. Otherwise the error message, as of nowait_error_message;
    /// valid until this thread calls nowait_reap again or ends.
    pub message: *const c_char,
}

static QUEUES: Table<Arc<CompletionQueue>> = Table::new(HandleKind::Queue);

thread_local! {
    /// Messages of the completions that this thread reaped last.
    static TEXTS: RefCell<Vec<CString>> = const { RefCell::new(Vec::new()) };
}

/// Creates a queue with a descriptor. Use one queue for each thread, or one for all threads of a
/// program. Threads: any.
///
/// Returns 0, or a negative errno: -EMFILE, -ENFILE, -ENOMEM.
///
/// # Safety
/// `queue` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_queue_open(queue: *mut QueueHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { answer(queue, "queue") }?;
        queue.write(QUEUES.insert(CompletionQueue::new()?)?);
        Ok(())
    })
}

/// Closes a queue after all its completions were reaped. Threads: any; a thread that waits in
/// nowait_reap returns -EBADF.
///
/// Returns 0, -EBUSY if operations are left, or -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_queue_close(queue: QueueHandle) -> c_int {
    status(|| {
        let used = QUEUES.get(queue)?;
        if !used.is_parents() {
            used.close()?;
        }
        drop(used);
        QUEUES.close(queue).map(drop)
    })
}

/// Returns the queue's descriptor, or -EBADF. The descriptor is for poll(2), epoll(7) and event
/// loops: it is readable (POLLIN) when there may be completions to reap. Do not use it otherwise;
/// it is closed with the queue. Threads: any.
///
/// In a thread that submits, epoll_wait(2) may fail with EINTR although no signal came: the kernel
/// completes a read of io_uring in the thread that submitted it. Call epoll_wait again; poll(2) is
/// restarted by the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_queue_descriptor(queue: QueueHandle) -> c_int {
    count(|| Ok(QUEUES.get(queue)?.descriptor().as_raw_fd() as usize)) as c_int
}

/// Returns the number of operations whose completions were not reaped, or -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_queue_operations(queue: QueueHandle) -> i64 {
    count(|| Ok(QUEUES.get_own(queue)?.len()))
}

/// Cancels an operation. It still has a completion: with -ECANCELED, or with its result if it had
/// already ended. Until then the library may use its memory, because the kernel cannot take a
/// request back from a device. Parts of the operation that have not begun are skipped. A cancelled
/// write may or may not have taken effect.
///
/// Returns 0; -ENOENT if the completion was already reaped, or the queue has no such operation;
/// -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cancel(queue: QueueHandle, operation: u64) -> c_int {
    status(|| {
        let queue = QUEUES.get_own(queue)?;
        let Some(found) = queue.find(operation) else {
            let text = format!("the queue has no operation {operation:#x}: its completion was reaped");
            return Err(Failure::new(libc::ENOENT, text));
        };
        found.cancel();
        Ok(())
    })
}

/// Reaps up to `completions_count` completions. Waits for the first completion for up to
/// `timeout_ms` milliseconds: 0 does not wait, and -1 waits without limit. In an event loop, pass 0
/// when the descriptor is readable. If the call returns `completions_count` completions, there may
/// be more, and the descriptor stays readable.
///
/// Returns the number of completions, 0 after the timeout; or a negative errno: -EINTR if
/// interrupted by a signal; -EBADF, also if the queue is closed meanwhile; -EFAULT; -EINVAL if
/// `completions_count` is 0. Threads: any; each completion goes to one of the threads that reap.
///
/// # Safety
/// `completions` points to `completions_count` elements, and nothing else uses them during the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_reap(
    queue: QueueHandle,
    completions: *mut Completion,
    completions_count: usize,
    timeout_ms: c_int,
) -> c_int {
    let reaped = count(|| {
        let room = completions_count.min(c_int::MAX as usize);
        // SAFETY: the caller's promise.
        let completions = unsafe { many_mut(completions, room, "completions") }?;
        if completions.is_empty() {
            return Err(Failure::new(libc::EINVAL, "completions_count is 0; give room for at least one"));
        }
        let queue = QUEUES.get_own(queue)?;
        let deadline = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            let taken = reap(&queue, completions);
            if taken > 0 || timeout_ms == 0 {
                return Ok(taken);
            }
            // A closed queue has no completions to wait for.
            queue.check_open()?;
            if !sleep(&queue, deadline)? {
                return Ok(0);
            }
        }
    });
    reaped as c_int
}

fn reap(queue: &CompletionQueue, completions: &mut [Completion]) -> usize {
    let mut texts = Vec::new();
    let taken = queue.reap(completions.len(), |at, operation, result| {
        let user = ptr::with_exposed_provenance_mut(operation.user);
        let operation = operation.number;
        completions[at] = match result {
            Ok(result) => Completion { user, operation, result: result as i64, range_index: 0, message: ptr::null() },
            Err(failure) => {
                let (result, range_index) = (-i64::from(failure.errno), failure.range_index as u64);
                let text = failure.into_text();
                let message = text.as_ptr();
                texts.push(text);
                Completion { user, operation, result, range_index, message }
            }
        };
    });
    // At the end of a thread, they are dropped at once.
    drop(TEXTS.try_with(|last| last.replace(texts)));
    taken
}

/// Sleeps until there may be completions; false after the deadline.
fn sleep(queue: &CompletionQueue, deadline: Option<Instant>) -> Result<bool> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let mut events = [PollFd::from_borrowed_fd(queue.descriptor(), PollFlags::IN)];
    match poll(&mut events, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(errno) => Err(Failure::new(errno.raw_os_error(), format!("wait for completions: {errno}"))),
    }
}
