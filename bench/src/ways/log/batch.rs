//! Group commit, as in many engines: one thread writes for all writers. A writer puts its record
//! into the open batch and sleeps. The thread takes the whole batch, makes it durable at once, and
//! wakes its writers. Meanwhile the next batch fills.
//!
//! * `thread-batch`: a write and an `fdatasync(2)` per batch, through the page cache.
//! * `thread-batch-direct`: a batch in whole blocks, by one call past the page cache.
//! * `-pipelined`: a writer has several records in flight. It puts each into the open batch, and
//!   waits for the batch of its oldest record. If that is already durable, the wait needs no system
//!   call.
//! * `-tokio`: writers are tasks, each of which the thread wakes by a oneshot channel.
//!
//! All writers of a batch sleep on one futex. With 64 writers this takes 1.1 context switches per
//! commit. `Thread::unpark` for each writer took 1.3, and a condition variable 1.5, since its
//! sleepers wake only to queue for its mutex.

use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::io::Errno;
use rustix::thread::futex;
use tokio::sync::oneshot;

use super::commit::{by_pipelines, find, open_direct, room, write_durable};
use super::tasks::{TOKIO_WORKERS, by_tasks};
use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Commits};
use crate::ways::runtime::with_workers;
use crate::ways::{Does, LogWay, Way};

pub(crate) struct ThreadBatch {
    direct: bool,
    writers: Writers,
}

#[derive(PartialEq)]
enum Writers {
    Threads,
    Pipelined,
    Tasks,
}

const BUFFERED: ThreadBatch = ThreadBatch { direct: false, writers: Writers::Threads };
const DIRECT: ThreadBatch = ThreadBatch { direct: true, writers: Writers::Threads };

pub(crate) static THREAD_BATCH: Way = Way::new(
    "thread-batch",
    "group commit: one thread makes a write and an fdatasync for all records that arrived meanwhile",
    &[Does::Commits(&BUFFERED), Does::Pipelines(&BUFFERED), Does::LoadAppends(&BUFFERED)],
)
.hue(7);

pub(crate) static THREAD_BATCH_DIRECT: Way = Way::new(
    "thread-batch-direct",
    "thread-batch, with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
    &[Does::Commits(&DIRECT), Does::Pipelines(&DIRECT), Does::TaskCommits(&DIRECT)],
)
.hue(3);

pub(crate) static THREAD_BATCH_PIPELINED: Way = Way::new(
    "thread-batch-pipelined",
    "thread-batch, but each writer has several records in flight, and waits for batch numbers",
    &[Does::Pipelines(&ThreadBatch { direct: false, writers: Writers::Pipelined })],
)
.hue(1);

pub(crate) static THREAD_BATCH_DIRECT_PIPELINED: Way = Way::new(
    "thread-batch-direct-pipelined",
    "thread-batch-pipelined, with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
    &[Does::Pipelines(&ThreadBatch { direct: true, writers: Writers::Pipelined })],
)
.hue(2);

pub(crate) static THREAD_BATCH_TOKIO: Way = Way::new(
    "thread-batch-tokio",
    "thread-batch, but its writers are tokio tasks, which it wakes by oneshot channels",
    &[Does::TaskCommits(&ThreadBatch { direct: false, writers: Writers::Tasks })],
)
.hue(1);

pub(crate) static THREAD_BATCH_DIRECT_TOKIO: Way = Way::new(
    "thread-batch-direct-tokio",
    "thread-batch-tokio, with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
    &[Does::TaskCommits(&ThreadBatch { direct: true, writers: Writers::Tasks })],
)
.hue(2);

impl LogWay for ThreadBatch {
    fn direct(&self) -> bool {
        self.direct
    }

    fn pipelines(&self) -> bool {
        self.writers == Writers::Pipelined
    }

    fn room(&self, size: usize) -> usize {
        room(self.direct, size)
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let log = Arc::new(Log::new(job.writers * job.in_flight * job.size, self.direct));
        let direct = self.direct.then(|| open_direct(job.path)).transpose()?;
        let file = direct.as_ref().unwrap_or(job.file);
        let (places, end) = thread::scope(|scope| {
            let thread = scope.spawn(|| log.write(file));
            let append = |(): &mut (), block: &mut [u8]| log.put(&block[..job.size], None);
            let places = match self.writers {
                Writers::Tasks => by_tasks(job, round, &log, Some(with_workers(TOKIO_WORKERS))),
                _ => by_pipelines(job, round, || Ok(()), append, |(number, place)| log.wait(number).map(|()| place)),
            };
            log.close();
            let end = thread.join().expect("the thread of the log does not panic");
            // The thread's error contains more than those of its writers.
            end.and_then(|end| Ok((places?, end)))
        })?;
        find(job, round, &places)?;
        Ok(Some(end))
    }
}

pub(super) struct Log {
    open: Mutex<OpenBatch>,
    /// Wakes the thread when a batch has records.
    bell: Condvar,
    /// The last durable batch with an even number, and the last with an odd one. All writers of a
    /// batch sleep on one word, so that one call wakes exactly these.
    durable: [AtomicU32; 2],
    failed: AtomicBool,
    direct: bool,
}

/// The batch that writers add to.
struct OpenBatch {
    number: u32,
    buffer: Buffer,
    len: usize,
    /// Offset of the batch in the file.
    place: u64,
    /// Tasks that wait for the batch.
    told: Vec<oneshot::Sender<()>>,
    sleeps: bool,
    closed: bool,
}

impl Log {
    /// `capacity` is the maximum number of records in flight, all of which may be in one batch.
    fn new(capacity: usize, direct: bool) -> Self {
        let buffer = Buffer::new(room(true, capacity));
        let open = OpenBatch { number: 1, buffer, len: 0, place: 0, told: Vec::new(), sleeps: false, closed: false };
        let durable = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { open: Mutex::new(open), bell: Condvar::new(), durable, failed: AtomicBool::new(false), direct }
    }

    fn open(&self) -> MutexGuard<'_, OpenBatch> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits a record for a task, which the thread notifies by a channel.
    pub(super) async fn commit_by_channel(&self, record: &[u8]) -> io::Result<u64> {
        let (told, durable) = oneshot::channel();
        let (_, place) = self.put(record, Some(told))?;
        // After a failure the thread drops the sender.
        durable.await.map(|()| place).map_err(|_| Self::gone())
    }

    /// Adds a record to the open batch. Returns the batch's number, and the record's offset.
    fn put(&self, record: &[u8], told: Option<oneshot::Sender<()>>) -> io::Result<(u32, u64)> {
        let mut open = self.open();
        if open.closed {
            return Err(Self::gone());
        }
        let (number, at) = (open.number, open.len);
        let place = open.place + at as u64;
        open.buffer.bytes()[at..at + record.len()].copy_from_slice(record);
        open.len += record.len();
        open.told.extend(told);
        let sleeps = mem::take(&mut open.sleeps);
        drop(open);
        if sleeps {
            self.bell.notify_one();
        }
        Ok((number, place))
    }

    fn wait(&self, number: u32) -> io::Result<()> {
        let word = &self.durable[number as usize % 2];
        loop {
            let last = word.load(Ordering::Acquire);
            if last >= number {
                return if self.failed.load(Ordering::Relaxed) { Err(Self::gone()) } else { Ok(()) };
            }
            match futex::wait(word, futex::Flags::PRIVATE, last, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn gone() -> io::Error {
        io::Error::other("the thread that writes the log has failed")
    }

    /// Runs the thread. Returns the end of the log after the close.
    fn write(&self, file: &File) -> io::Result<u64> {
        let mut spare = Buffer::new(self.open().buffer.bytes().len());
        let mut told = Vec::new();
        loop {
            let mut open = self.open();
            while open.len == 0 {
                if open.closed {
                    return Ok(open.place);
                }
                open.sleeps = true;
                open = self.bell.wait(open).unwrap_or_else(PoisonError::into_inner);
            }
            mem::swap(&mut open.buffer, &mut spare);
            mem::swap(&mut open.told, &mut told);
            let (number, len, place) = (open.number, mem::take(&mut open.len), open.place);
            let whole = room(self.direct, len);
            open.number += 1;
            open.place += whole as u64;
            drop(open);

            let bytes = &mut spare.bytes()[..whole];
            // Zeroes the padding, which contains records of an older batch.
            bytes[len..].fill(0);
            let written = if self.direct {
                write_durable(file, bytes, place)
            } else {
                file.write_all_at(bytes, place).and_then(|()| file.sync_data())
            };
            if let Err(error) = written {
                self.fail();
                return Err(error);
            }
            self.durable(number);
            // Fails if the task no longer waits.
            for task in told.drain(..) {
                let _: Result<(), ()> = task.send(());
            }
        }
    }

    fn durable(&self, number: u32) {
        let word = &self.durable[number as usize % 2];
        word.store(number, Ordering::Release);
        // Fails only for an invalid address.
        let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Wakes all writers after a failure; later ones do not wait.
    fn fail(&self) {
        let last = {
            let mut open = self.open();
            open.closed = true;
            open.told.clear();
            open.number
        };
        self.failed.store(true, Ordering::Relaxed);
        self.durable(last);
        self.durable(last.wrapping_sub(1));
    }

    fn close(&self) {
        self.open().closed = true;
        self.bell.notify_one();
    }
}
