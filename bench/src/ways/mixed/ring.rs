//! io_uring by hand beside tokio: a ring for each worker. A task submits to the ring of the worker
//! that polls it, one read per system call. Cached reads complete in that call. The call also runs
//! the kernel's pending task work of this ring, so the task then takes all completions and wakes
//! their tasks. A task on tokio's reactor watches each ring for completions while its worker is
//! busy.
//!
//! A task yields after each read, as with `plain`, since a read that completes at once awaits
//! nothing. (Flags are those of the tuned ring of other tables: one issuer, COOP_TASKRUN. The file
//! is not registered, because a ring outlives the file of a round.)

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::nowait::Buf;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::oneshot::{Receiver, Sender, channel};
use ::tokio::task::yield_now;
use io_uring::{IoUring, opcode, types};

use crate::ways::drive::{Handle, Kind, Operation};
use crate::ways::ring;

/// Number of entries. The completion queue has twice as many, which exceeds the maximum number of
/// tasks.
const ENTRIES: u32 = 1024;

#[derive(Clone)]
pub(super) struct Queued(pub(super) Arc<File>);

impl Handle for Queued {
    /// Transfers the whole buffer.
    async fn one(&self, operation: Operation, mut buffer: Buf) -> io::Result<Buf> {
        let reads = operation.kind == Kind::Read;
        loop {
            let ring = WorkerRing::of_this_worker()?;
            let (back, result) = match ring.submit(self.0.clone(), reads, buffer, operation.offset)? {
                Submitted::Complete(done) => done,
                Submitted::InFlight(receiver) => receiver.await.map_err(io::Error::other)?,
            };
            buffer = back;
            match usize::try_from(result) {
                Ok(count) if count == buffer.len() => return Ok(buffer),
                Ok(_) if reads => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(_) if result == -libc::EINTR => {}
                Err(_) => return Err(io::Error::from_raw_os_error(-result)),
            }
        }
    }

    async fn give_way(&self) {
        yield_now().await;
    }
}

/// A buffer of a completed transfer, and the result.
type Done = (Buf, i32);

enum Submitted {
    Complete(Done),
    InFlight(Receiver<Done>),
}

/// The ring of one worker, to which only that thread submits. Any thread may take completions.
struct WorkerRing {
    descriptor: RawFd,
    queue: Mutex<Queue>,
}

impl AsRawFd for WorkerRing {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor
    }
}

/// A share of the ring for tokio, which owns the descriptors that it watches.
struct Watched(Arc<WorkerRing>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor
    }
}

impl WorkerRing {
    /// Returns this worker's ring, created on first use. Runtimes and their rings live as long as
    /// the process.
    fn of_this_worker() -> io::Result<Arc<Self>> {
        thread_local!(static RING: OnceCell<Arc<WorkerRing>> = const { OnceCell::new() });
        RING.with(|cell| {
            if let Some(ring) = cell.get() {
                return Ok(ring.clone());
            }
            let ring = ring::tuned_ring(ENTRIES)?;
            let descriptor = ring.as_raw_fd();
            let queue = Mutex::new(Queue { ring, slots: Vec::new(), free: Vec::new() });
            let ring = Arc::new(Self { descriptor, queue });
            // SAFETY: the descriptor belongs to the ring in `queue`, which is never replaced.
            // `Watched` has a share of the ring, so the descriptor stays open as long as it is
            // watched.
            let watched = unsafe { AsyncFd::register_with_interest(Watched(ring.clone()), Interest::READABLE) }?;
            ::tokio::spawn(watch(watched));
            Ok(cell.get_or_init(|| ring).clone())
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a transfer, and notifies the tasks of completed transfers.
    fn submit(&self, file: Arc<File>, reads: bool, buffer: Buf, offset: u64) -> io::Result<Submitted> {
        let mut queue = self.queue();
        let tag = queue.submit(file, reads, buffer, offset)?;
        let (own, others) = queue.take_completions(Some(tag));
        let submitted = own.map(Submitted::Complete).unwrap_or_else(|| {
            let (told, receiver) = channel();
            queue.slots[tag].as_mut().expect("it is in flight").told = Some(told);
            Submitted::InFlight(receiver)
        });
        drop(queue);
        tell(others);
        Ok(submitted)
    }
}

/// Notifies tasks. Ignores tasks that were dropped.
fn tell(complete: Vec<(Sender<Done>, Done)>) {
    complete.into_iter().for_each(|(told, done)| drop(told.send(done)));
}

/// Takes completions when the reactor reports the descriptor as readable.
async fn watch(ring: AsyncFd<Watched>) -> io::Result<()> {
    loop {
        let mut ready = ring.readable().await?;
        let (_, complete) = ring.get_ref().0.queue().take_completions(None);
        tell(complete);
        // Cleared first: a later completion makes the descriptor ready again.
        ready.clear_ready();
    }
}

struct Queue {
    ring: IoUring,
    /// Transfers in flight, by tag.
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
}

/// A transfer in flight, and the memory that the kernel uses.
struct InFlight {
    _file: Arc<File>,
    buffer: Buf,
    told: Option<Sender<Done>>,
}

impl Queue {
    /// Submits a transfer of the whole buffer; returns its tag.
    fn submit(&mut self, file: Arc<File>, reads: bool, mut buffer: Buf, offset: u64) -> io::Result<usize> {
        let (of, at, len) = (types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32);
        let entry = match reads {
            true => opcode::Read::new(of, at, len).offset(offset).build(),
            false => opcode::Write::new(of, at, len).offset(offset).build(),
        };
        let tag = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[tag] = Some(InFlight { _file: file, buffer, told: None });
        // SAFETY: the buffer's memory and the descriptor belong to the slot, which is emptied only
        // after the completion with its tag was taken. Moving the buffer does not move its memory,
        // and no other code refers to that meanwhile. The queue and its slots live as long as the
        // process.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(tag as u64)) };
        if pushed.is_err() {
            self.slots[tag] = None;
            self.free.push(tag);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        while let Err(error) = self.ring.submit() {
            if error.kind() != io::ErrorKind::Interrupted {
                // A later call submits the entry, but no task is notified.
                return Err(error);
            }
        }
        Ok(tag)
    }

    /// Takes completions: that of this transfer, and others with their tasks, which are notified
    /// after the queue was unlocked.
    fn take_completions(&mut self, own: Option<usize>) -> (Option<Done>, Vec<(Sender<Done>, Done)>) {
        let (mut complete, mut others) = (None, Vec::new());
        for entry in self.ring.completion() {
            let tag = entry.user_data() as usize;
            let Some(InFlight { buffer, told, .. }) = self.slots.get_mut(tag).and_then(Option::take) else { continue };
            self.free.push(tag);
            let done = (buffer, entry.result());
            if own == Some(tag) {
                complete = Some(done);
            } else {
                others.extend(told.map(|told| (told, done)));
            }
        }
        (complete, others)
    }
}
