//! One thread writes for all: the group commit of many engines. A writer puts its record into the
//! open batch and sleeps; the thread takes all that is there, has it on stable storage in one go,
//! and wakes its writers. Meanwhile the next batch fills.
//!
//! `thread-batch`: a write and an `fdatasync(2)` a batch, through the page cache.
//! `thread-batch-direct`: a batch in whole blocks, in one call past the page cache.
//!
//! Writers sleep on a futex that all of their batch share. With 64 of them that is 1.1 context
//! switches a commit; it was 1.3 where the thread unparked each (`Thread::unpark`), and 1.5 with a
//! condition variable, whose sleepers wake only to queue for its mutex.

use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::io::Errno;
use rustix::thread::futex;

use super::commit::{BLOCK, by_writers, find, open_direct, write_durable};
use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Commits};
use crate::ways::{LogWay, Way};

pub(crate) struct ThreadBatch {
    name: &'static str,
    direct: bool,
}

pub(crate) const BUFFERED: ThreadBatch = ThreadBatch { name: "thread-batch", direct: false };
pub(crate) const DIRECT: ThreadBatch = ThreadBatch { name: "thread-batch-direct", direct: true };

impl Way for ThreadBatch {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl LogWay for ThreadBatch {
    fn direct(&self) -> bool {
        self.direct
    }

    fn room(&self, size: usize) -> usize {
        if self.direct { size.next_multiple_of(BLOCK) } else { size }
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let direct = self.direct.then(|| open_direct(job.path)).transpose()?;
        let file = direct.as_ref().unwrap_or(job.file);
        let log = Log::new(job.writers * job.size, self.direct);
        let (places, end) = thread::scope(|scope| {
            let thread = scope.spawn(|| log.write(file));
            let places = by_writers(job, round, || Ok(()), |(), block| log.commit(&block[..job.size]));
            log.close();
            let end = thread.join().expect("the thread of the log does not panic");
            // Its error tells more than those of the writers who learned of it.
            end.and_then(|end| Ok((places?, end)))
        })?;
        find(job, round, &places)?;
        Ok(Some(end))
    }
}

pub(super) struct Log {
    open: Mutex<Batch>,
    /// Rung when the thread sleeps and there is a batch.
    bell: Condvar,
    /// The last batch of an even number that is on stable storage, and of an odd one. Writers of a
    /// batch sleep on one word, so that the thread wakes these and no others, with one call.
    durable: [AtomicU32; 2],
    failed: AtomicBool,
    direct: bool,
}

/// The one that writers add to.
struct Batch {
    number: u32,
    buffer: Buffer,
    len: usize,
    /// Its offset in the file.
    place: u64,
    sleeps: bool,
    closed: bool,
}

impl Log {
    /// `capacity`: a record of each writer, since nobody has two.
    pub(super) fn new(capacity: usize, direct: bool) -> Self {
        let buffer = Buffer::new(capacity.next_multiple_of(BLOCK));
        let open = Batch { number: 1, buffer, len: 0, place: 0, sleeps: false, closed: false };
        let durable = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { open: Mutex::new(open), bell: Condvar::new(), durable, failed: AtomicBool::new(false), direct }
    }

    fn open(&self) -> MutexGuard<'_, Batch> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn commit(&self, record: &[u8]) -> io::Result<u64> {
        let mut open = self.open();
        if open.closed {
            return Err(Self::gone());
        }
        let (number, at) = (open.number, open.len);
        let place = open.place + at as u64;
        open.buffer.bytes()[at..at + record.len()].copy_from_slice(record);
        open.len += record.len();
        let sleeps = mem::take(&mut open.sleeps);
        drop(open);
        if sleeps {
            self.bell.notify_one();
        }
        self.wait(number).map(|()| place)
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

    /// The thread. Gives the end of the log when it is closed.
    pub(super) fn write(&self, file: &File) -> io::Result<u64> {
        let mut spare = Buffer::new(self.open().buffer.bytes().len());
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
            let (number, len, place) = (open.number, mem::take(&mut open.len), open.place);
            let whole = if self.direct { len.next_multiple_of(BLOCK) } else { len };
            open.number += 1;
            open.place += whole as u64;
            drop(open);

            let bytes = &mut spare.bytes()[..whole];
            // Not the records of an older batch.
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
        }
    }

    fn durable(&self, number: u32) {
        let word = &self.durable[number as usize % 2];
        word.store(number, Ordering::Release);
        // Fails for no word that there is.
        let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Nobody waits, or will, for what is not going to be written.
    fn fail(&self) {
        let last = {
            let mut open = self.open();
            open.closed = true;
            open.number
        };
        self.failed.store(true, Ordering::Relaxed);
        self.durable(last);
        self.durable(last.wrapping_sub(1));
    }

    pub(super) fn close(&self) {
        self.open().closed = true;
        self.bell.notify_one();
    }
}
