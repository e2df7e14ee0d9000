//! Queues: operations are submitted with a pointer of the caller's, and their completions reaped in
//! the order in which they come.
//!
//! `unsafe` here: entry points, and their callers' pointers.

mod list;
mod operation;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nowait::{File, Lent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::list::List;
use self::operation::{Operation, Work};
use crate::border::{answer, count, many, many_mut, status, wanted};
use crate::failure::{Failure, Result};
use crate::file::{FILES, FileHandle, WriteFlags, syncs_all};
use crate::handle::{Kind, Table};
use crate::log::{LOGS, LogHandle};

/// A queue of operations and their completions. 0 is none.
pub type QueueHandle = u64;

/// A completion. Its layout is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// As it was submitted.
    pub user: *mut c_void,
    /// The number that its submission gave.
    pub operation: u64,
    /// Bytes of a read or write, 0 of a sync, of a wait for a log the last record that is durable
    /// then; or a negative errno, as of the blocking call. -ECANCELED after nowait_cancel.
    pub result: i64,
    /// NULL if the result is not negative. Else the text for people, as nowait_error_message; valid
    /// until this thread calls nowait_reap again, or ends.
    pub message: *const c_char,
}

static QUEUES: Table<Queue> = Table::new(Kind::Queue);

thread_local! {
    /// Texts of the completions that this thread reaped last.
    static TEXTS: RefCell<Vec<CString>> = const { RefCell::new(Vec::new()) };
}

struct Queue {
    list: Arc<List>,
    fork_generation: u64,
}

impl Queue {
    /// Makes an operation, and begins the work that `begin` makes for it.
    fn submit(&self, user: *mut c_void, number: *mut u64, begin: impl FnOnce(&Arc<Operation>) -> Work) -> Result<()> {
        self.check_fork()?;
        // SAFETY: the caller's promise, of all functions that submit.
        let number = unsafe { wanted(number, "operation") }?;
        let operation = self.list.open(user.expose_provenance())?;
        if let Some(number) = number {
            // Before another thread may reap it.
            number.write(operation.number);
        }
        operation.begin(begin(&operation));
        Ok(())
    }

    fn check_fork(&self) -> Result<()> {
        if self.fork_generation == nowait::fork_generation() {
            return Ok(());
        }
        Err(Failure::new(libc::EINVAL, "the queue was made before a fork, and is the parent's; make one in the child"))
    }
}

/// Makes a queue, with a descriptor. A thread usually has one, or a program one for all its threads.
/// Threads: any.
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
        queue.write(QUEUES.insert(Queue { list: List::new()?, fork_generation: nowait::fork_generation() })?);
        Ok(())
    })
}

/// Closes a queue whose completions were all reaped. Threads: any.
///
/// Returns 0, -EBUSY if operations are left, or -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_queue_close(queue: QueueHandle) -> c_int {
    status(|| {
        let used = QUEUES.get(queue)?;
        if used.check_fork().is_ok() {
            used.list.close()?;
        }
        drop(used);
        QUEUES.close(queue).map(drop)
    })
}

/// Returns the queue's descriptor, for poll(2), epoll(7) and event loops: it is readable (POLLIN)
/// when there may be completions to reap. Do nothing else with it; it is closed with the queue. Or
/// -EBADF. Threads: any.
///
/// In a thread that submits, epoll_wait(2) may fail with EINTR although no signal came: the kernel
/// completes a read of io_uring in the thread that submitted it. Call it again; poll(2) does so by
/// itself.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_queue_descriptor(queue: QueueHandle) -> c_int {
    count(|| Ok(QUEUES.get(queue)?.list.event.as_raw_fd() as usize)) as c_int
}

/// Returns the number of operations whose completions were not reaped, or -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_queue_operations(queue: QueueHandle) -> i64 {
    count(|| Ok(QUEUES.get(queue)?.list.len()))
}

/// Starts a read, as nowait_read_at. What is cached is copied at once; else the device has it when
/// this returns. `user` comes back with the completion; `operation`, if it is not NULL, gets the
/// operation's number, for nowait_cancel. The file may be closed meanwhile.
///
/// Returns 0, and one completion will come; or a negative errno, and none will: -EBADF, -EFAULT.
/// Other errors are in the completion. Threads: any.
///
/// # Safety
/// Until the completion is reaped, `length` bytes at `buffer` are valid for writes and nobody else
/// uses them. `operation` is NULL or points to a number.
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
        QUEUES.get(queue)?.submit(user, operation, |operation| {
            // SAFETY: the caller's promise: the completion is not given out before the loan is back.
            let memory = unsafe { Lent::from_raw(start, length, operation.loan()) };
            Work::Transfer(file.read_at(memory, offset).start())
        })
    })
}

/// Starts a write, as nowait_write_at; else as nowait_submit_read. Writes of one file that overlap
/// are made in the order in which they were submitted. -EINVAL if the flags are not known.
///
/// # Safety
/// Until the completion is reaped, `length` bytes at `buffer` are valid for reads and nobody changes
/// them. `operation` is NULL or points to a number.
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
        QUEUES.get(queue)?.submit(user, operation, |operation| {
            // SAFETY: the caller's promise: the completion is not given out before the loan is back.
            let memory = unsafe { Lent::from_raw(start, length, operation.loan()) };
            Work::Transfer(flags.on(file.write_at(memory, offset)).start())
        })
    })
}

/// Starts a sync, as nowait_sync: of the writes whose completions were reaped, or could be, before.
/// Else as nowait_submit_read. -EINVAL if the flags are not known.
///
/// # Safety
/// `operation` is NULL or points to a number.
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
        QUEUES.get(queue)?.submit(user, operation, |_| Work::Sync(sync(&file)))
    })
}

/// Starts to wait until a log's record is durable, as nowait_log_wait; else as nowait_submit_read.
///
/// # Safety
/// `operation` is NULL or points to a number.
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
        QUEUES.get(queue)?.submit(user, operation, |_| Work::Record(log.wait_durable(record)))
    })
}

/// Gives an operation up. Its completion comes all the same, with -ECANCELED or, if it had ended,
/// its result, and the memory is the library's until then: the kernel does not give back what a
/// device works on. What has not begun is left out. A cancelled write may have taken effect or not.
///
/// Returns 0; -ENOENT if the completion was reaped, or there was none; -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_cancel(queue: QueueHandle, operation: u64) -> c_int {
    status(|| {
        let queue = QUEUES.get(queue)?;
        queue.check_fork()?;
        let Some(found) = queue.list.find(operation) else {
            let text = format!("the queue has no operation {operation:#x}: its completion was reaped");
            return Err(Failure::new(libc::ENOENT, text));
        };
        found.cancel();
        Ok(())
    })
}

/// Reaps up to `completions_count` completions. Waits for the first up to `timeout_ms` milliseconds:
/// 0 does not wait, -1 without limit. With an event loop: 0, when the descriptor is readable; if all
/// of `completions_count` came there may be more, and the descriptor is still readable.
///
/// Returns their number, 0 if none came in time; or a negative errno: -EINTR if a signal came first,
/// -EBADF, -EFAULT, -EINVAL if there is no room for one. Threads: any; each completion goes to one of
/// the threads that reap.
///
/// # Safety
/// `completions` points to as many completions, and nobody else uses them during the call.
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
            return Err(Failure::new(libc::EINVAL, "completions_count is 0; give room for one at least"));
        }
        let queue = QUEUES.get(queue)?;
        queue.check_fork()?;
        let deadline = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            let taken = reap(&queue.list, completions);
            if taken > 0 || timeout_ms == 0 || !sleep(&queue.list, deadline)? {
                return Ok(taken);
            }
        }
    });
    reaped as c_int
}

fn reap(list: &List, completions: &mut [Completion]) -> usize {
    let mut texts = Vec::new();
    let taken = list.reap(completions.len(), |at, operation, result| {
        let user = ptr::with_exposed_provenance_mut(operation.user);
        let (result, message) = match result {
            Ok(result) => (result as i64, ptr::null()),
            Err(failure) => {
                let errno = failure.errno;
                let text = failure.into_text();
                let message = text.as_ptr();
                texts.push(text);
                (-i64::from(errno), message)
            }
        };
        completions[at] = Completion { user, operation: operation.number, result, message };
    });
    // At the end of a thread they go at once.
    drop(TEXTS.try_with(|last| last.replace(texts)));
    taken
}

/// Sleeps until there may be completions; false if the time is over.
fn sleep(list: &List, deadline: Option<Instant>) -> Result<bool> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let mut events = [PollFd::from_borrowed_fd(list.event.as_fd(), PollFlags::IN)];
    match poll(&mut events, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(errno) => Err(Failure::new(errno.raw_os_error(), format!("wait for completions: {errno}"))),
    }
}
