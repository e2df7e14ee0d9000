//! io_uring by hand beside tokio: a ring for each worker. A task submits to the ring of the worker
//! that polls it, one read a system call. What is cached completes in that call. The call has also
//! run what the kernel had to finish for earlier reads of this ring, so all completions are taken
//! then, and their tasks woken. A task of tokio's reactor watches each ring for completions that
//! come while its worker does something else.
//!
//! A task gives way after each read, as with `plain`: a read that completes at once awaits nothing.
//! (Set up as the tuned ring of the other tables: one issuer, COOP_TASKRUN. The file is not
//! registered: a ring outlives the round's file.)

use std::cell::OnceCell;
use std::fs::File;
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ::nowait::Buf;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use io_uring::{IoUring, opcode, types};

use super::{Other, tokio};
use crate::measure::meter::Round;
use crate::measure::mixed::{Mixed, Mixture};
use crate::ways::MixedWay;
use crate::ways::drive::{self, Handle, Kind};
use crate::ways::ring;

/// Twice as many completions find a place: more than there may be tasks.
const ENTRIES: u32 = 1024;

pub(in crate::ways) struct Ring;

impl MixedWay for Ring {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        let file = Queued(Arc::new(job.target.file.try_clone()?));
        tokio::run(&file, Other::of(job, |file, _| Ok(Queued(file.clone())))?, job, round)
    }
}

#[derive(Clone)]
struct Queued(Arc<File>);

impl Handle for Queued {
    /// The whole buffer.
    async fn one(&self, operation: drive::Operation, mut buffer: Buf) -> io::Result<Buf> {
        let (reads, offset) = (operation.kind == Kind::Read, operation.offset);
        loop {
            let operation = Operation { file: self.0.clone(), reads, buffer, offset };
            let (back, result) = Transfer { operation: Some(operation), submitted: None }.await?;
            buffer = back;
            match result {
                Ok(count) if count == buffer.len() => return Ok(buffer),
                Ok(_) if reads => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn give_way(&self) {
        ::tokio::task::yield_now().await;
    }
}

/// Memory that the kernel uses while it works. The slot owns it then.
struct Operation {
    file: Arc<File>,
    reads: bool,
    buffer: Buf,
    offset: u64,
}

/// One transfer. An error means that the ring did not take it.
struct Transfer {
    /// Until it is submitted.
    operation: Option<Operation>,
    /// From then on, until it is complete: where, and its tag.
    submitted: Option<(Arc<WorkerRing>, usize)>,
}

impl Future for Transfer {
    type Output = io::Result<(Buf, io::Result<usize>)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(operation) = self.operation.take() {
            let ring = WorkerRing::of_this_worker()?;
            let tag = ring.submit(operation)?;
            self.submitted = Some((ring, tag));
        }
        let (ring, tag) = self.submitted.as_ref().expect("it is not polled after it was ready");
        let Some(done) = ring.queue().done(*tag, context.waker()) else { return Poll::Pending };
        self.submitted = None;
        Poll::Ready(Ok(done))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some((ring, tag)) = &self.submitted {
            ring.queue().abandon(*tag);
        }
    }
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

/// For tokio, which wants to own what it watches.
struct Watched(Arc<WorkerRing>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor
    }
}

impl WorkerRing {
    /// Made on first use. The runtimes live as long as the process, and so do their rings.
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
            // SAFETY: the descriptor is that of the ring in `queue`, which is replaced by no other
            // and which `Watched` has a share of: it stays open as long as it is watched.
            let watched = unsafe { AsyncFd::register_with_interest(Watched(ring.clone()), Interest::READABLE) }?;
            ::tokio::spawn(watch(watched));
            Ok(cell.get_or_init(|| ring).clone())
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits, and wakes those whose transfers are complete.
    fn submit(&self, operation: Operation) -> io::Result<usize> {
        let mut queue = self.queue();
        let tag = queue.submit(operation)?;
        let woken = queue.take_completions();
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
        Ok(tag)
    }
}

/// Takes completions when the reactor sees any.
async fn watch(ring: AsyncFd<Watched>) -> io::Result<()> {
    loop {
        let mut ready = ring.readable().await?;
        let woken = ring.get_ref().0.queue().take_completions();
        woken.into_iter().for_each(Waker::wake);
        // One that comes from here on makes it ready again.
        ready.clear_ready();
    }
}

struct Queue {
    ring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
}

enum Slot {
    Free,
    /// The kernel has it. Nobody waits for it if the waker is gone and it was abandoned.
    InFlight {
        operation: Operation,
        waker: Option<Waker>,
        abandoned: bool,
    },
    Done {
        buffer: Buf,
        result: i32,
    },
}

impl Queue {
    /// Hands the operation to the kernel; gives its tag.
    fn submit(&mut self, mut operation: Operation) -> io::Result<usize> {
        let file = types::Fd(operation.file.as_raw_fd());
        let (at, len) = (operation.buffer.as_mut_ptr(), operation.buffer.len() as u32);
        let offset = operation.offset;
        let entry = match operation.reads {
            true => opcode::Read::new(file, at, len).offset(offset).build(),
            false => opcode::Write::new(file, at, len).offset(offset).build(),
        };
        let tag = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        });
        let entry = entry.user_data(tag as u64);
        // SAFETY: the buffer's memory and the descriptor belong to the operation, which goes into
        // the slot below whether or not this succeeds, and leaves it only when the completion with
        // its tag was taken. Moving the operation does not move the buffer's memory, and nobody
        // refers to that meanwhile. The queue and its slots live as long as the process.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.free.push(tag);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.slots[tag] = Slot::InFlight { operation, waker: None, abandoned: false };
        while let Err(error) = self.ring.submit() {
            if error.kind() != io::ErrorKind::Interrupted {
                // The entry goes with a later call.
                self.abandon(tag);
                return Err(error);
            }
        }
        Ok(tag)
    }

    /// Takes what is complete; gives the wakers of those who wait for it, to be called when the
    /// queue is not locked.
    fn take_completions(&mut self) -> Vec<Waker> {
        let Self { ring, slots, free } = self;
        let mut woken = Vec::new();
        for entry in ring.completion() {
            let tag = entry.user_data() as usize;
            let Some(slot) = slots.get_mut(tag) else { continue };
            match mem::replace(slot, Slot::Free) {
                Slot::InFlight { abandoned: true, .. } => free.push(tag),
                Slot::InFlight { operation, waker, .. } => {
                    *slot = Slot::Done { buffer: operation.buffer, result: entry.result() };
                    woken.extend(waker);
                }
                other => *slot = other,
            }
        }
        woken
    }

    /// The buffer and the result, if it is complete; else remembers whom to wake.
    fn done(&mut self, tag: usize, waiting: &Waker) -> Option<(Buf, io::Result<usize>)> {
        match mem::replace(&mut self.slots[tag], Slot::Free) {
            Slot::Done { buffer, result } => {
                self.free.push(tag);
                let failed = || io::Error::from_raw_os_error(-result);
                Some((buffer, usize::try_from(result).map_err(|_| failed())))
            }
            Slot::InFlight { operation, abandoned, .. } => {
                self.slots[tag] = Slot::InFlight { operation, waker: Some(waiting.clone()), abandoned };
                None
            }
            Slot::Free => unreachable!("a tag is given back once"),
        }
    }

    /// Nobody waits for it any more.
    fn abandon(&mut self, tag: usize) {
        match &mut self.slots[tag] {
            Slot::InFlight { waker, abandoned, .. } => (*waker, *abandoned) = (None, true),
            done => {
                *done = Slot::Free;
                self.free.push(tag);
            }
        }
    }
}
