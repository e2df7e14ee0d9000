//! One read for all that miss a page.
//!
//! A fill owns its frames, its read and those who wait. It belongs to no future: its read has the
//! fill as its waker. So the thread that notices the completion publishes the pages and wakes the
//! waiting tasks, whatever became of the task that began the read.
//!
//! `unsafe` here: memory of frames that is lent to a read, and looked at by the check.

use std::pin::Pin as Pinned;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use nowait::{Error, ErrorKind, ErrorOp, File, Lent, Moved, Started};

use crate::inode::Inode;
use crate::shared::{Core, Pin};
use crate::sync::{contained, lock};

pub(crate) struct Fill {
    core: Core,
    inode: Arc<Inode>,
    file: File,
    first: u64,
    frames: Box<[u32]>,
    /// Set with the inode's fills locked.
    is_stale: AtomicBool,
    reading: Mutex<Option<Reading>>,
    /// Wake-ups that have not been served; a thread that finds more than zero leaves its own to another.
    wakeups: AtomicU32,
    /// Pages that were published, or the error.
    done: OnceLock<Result<Vec<Pin>, Error>>,
    waiting: Mutex<Vec<Waker>>,
}

enum Reading {
    One(Started<Moved<Lent>>),
    /// Into frames that are not adjacent.
    Many(Started<Moved<Vec<Lent>>>),
}

impl Reading {
    /// Returns the number of bytes that were read.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        match self {
            Reading::One(read) => Pinned::new(read).poll(context).map(|moved| Ok(moved?.0)),
            Reading::Many(read) => Pinned::new(read).poll(context).map(|moved| Ok(moved?.0)),
        }
    }
}

impl Fill {
    pub(crate) fn new(core: &Core, inode: &Arc<Inode>, file: &File, first: u64, frames: Box<[u32]>) -> Arc<Fill> {
        Arc::new(Fill {
            core: core.clone(),
            inode: inode.clone(),
            file: file.clone(),
            first,
            frames,
            is_stale: AtomicBool::new(false),
            reading: Mutex::default(),
            wakeups: AtomicU32::new(0),
            done: OnceLock::new(),
            waiting: Mutex::default(),
        })
    }

    /// Pages of the fill: the first, and their number.
    pub(crate) fn pages(&self) -> (u64, usize) {
        (self.first, self.frames.len())
    }

    /// Keeps the pages out of the directory. The inode's fills are locked.
    pub(crate) fn set_stale(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Lends adjacent frames to a read.
    fn lend(&self, frames: &[u32]) -> Lent {
        let length = frames.len() << self.core.page_shift;
        let start = frames.first().map_or(NonNull::dangling(), |frame| self.core.frames.record(*frame).start());
        // SAFETY: the frames are adjacent, and belong to the fill until it has published them, which
        // it does after the read returned its buffer. The arena exists while the owner does.
        unsafe { Lent::from_raw(start, length, self.core.clone()) }
    }

    /// Begins the read. The caller made the fill, and holds no lock.
    pub(crate) fn begin(self: &Arc<Self>) {
        let offset = self.first << self.core.page_shift;
        let is_adjacent = self.frames.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let reading = if is_adjacent {
            Reading::One(self.file.read_at(self.lend(&self.frames), offset).start())
        } else {
            let runs = self.frames.chunk_by(|one, other| one + 1 == *other);
            Reading::Many(
                self.file.read_vectored_at(runs.map(|run| self.lend(run)).collect::<Vec<_>>(), offset).start(),
            )
        };
        self.inode.counters.fills.fetch_add(1, Ordering::Relaxed);
        *lock(&self.reading) = Some(reading);
        self.serve();
    }

    /// Polls the read, and completes the fill when it is done. One thread at a time: wake-ups
    /// meanwhile are served by it.
    fn serve(self: &Arc<Self>) {
        if self.wakeups.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.wakeups.load(Ordering::Acquire);
            let mut reading = lock(&self.reading);
            let Some(read) = reading.as_mut() else { return };
            if let Poll::Ready(result) = read.poll(&mut context) {
                let read = reading.take();
                drop(reading);
                drop(read);
                // Later wake-ups find the count above zero.
                return self.complete(result);
            }
            drop(reading);
            if self.wakeups.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Bytes that were read into each frame.
    fn valid(&self, bytes: usize) -> impl Iterator<Item = (u32, usize)> {
        let page = self.core.page_bytes();
        self.frames.iter().enumerate().map(move |(index, frame)| (*frame, bytes.saturating_sub(index * page).min(page)))
    }

    /// Returns the error of the first page that the check refuses.
    fn check(&self, bytes: usize) -> Result<usize, Error> {
        let Some(check) = &self.core.check else { return Ok(bytes) };
        let page = self.core.page_bytes() as u64;
        for (index, (frame, valid)) in self.valid(bytes).enumerate().filter(|(_, (_, valid))| *valid > 0) {
            let offset = (self.first + index as u64) * page;
            // SAFETY: the fill owns the frame, whose first bytes were read.
            let contents =
                unsafe { std::slice::from_raw_parts(self.core.frames.record(frame).start().as_ptr(), valid) };
            let refusal = match contained(|| check(self.file.path(), offset, contents)) {
                Some(Ok(())) => continue,
                Some(Err(refusal)) => refusal,
                None => String::from("the check of the page panicked"),
            };
            return Err(Error::new(ErrorOp::Read, ErrorKind::Damaged)
                .at(self.file.path())
                .with_range(offset, valid as u64)
                .with_detail(refusal));
        }
        Ok(bytes)
    }

    fn complete(&self, result: Result<usize, Error>) {
        let result = result.and_then(|bytes| self.check(bytes));
        let counters = &self.inode.counters;
        match &result {
            Ok(bytes) => counters.filled_bytes.fetch_add(*bytes as u64, Ordering::Relaxed),
            Err(_) => counters.failures.fetch_add(1, Ordering::Relaxed),
        };
        let (mut pins, mut empty) = (Vec::with_capacity(self.frames.len()), Vec::new());
        let mut removed = Vec::new();
        let mut fills = lock(&self.inode.fills);
        let mut policy = lock(&self.core.policy);
        let is_stale = self.is_stale.load(Ordering::Relaxed);
        let is_wanted = self.core.space.is_wanted();
        for (page, (frame, valid)) in (self.first..).zip(self.valid(result.as_ref().copied().unwrap_or(0))) {
            if fills.get(&page).is_some_and(|fill| std::ptr::eq(&**fill, self)) {
                removed.extend(fills.remove(&page));
            }
            if valid == 0 {
                empty.push(frame);
                continue;
            }
            let record = self.core.frames.record(frame);
            record.name(self.inode.number, page, valid as u32);
            record.word.publish(is_stale, is_wanted);
            if !is_stale {
                policy.filled(frame, page, &self.inode);
                self.inode.pages.set(page, frame);
            }
            pins.push(Pin::adopt(record));
        }
        drop(policy);
        drop(fills);
        drop(removed);
        self.core.give_back(&empty);
        // A fill completes once.
        let _ = self.done.set(result.map(|_| pins));
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waker in waiting {
            contained(|| waker.wake());
        }
    }

    /// Returns true if the fill is done; registers the waker otherwise.
    pub(crate) fn is_done(&self, waker: &Waker) -> bool {
        if self.done.get().is_some() {
            return true;
        }
        let waker = waker.clone();
        let mut waiting = lock(&self.waiting);
        // Again, with the lock that the thread which completes takes afterwards.
        if self.done.get().is_some() {
            drop(waiting);
            return true;
        }
        if !waiting.iter().any(|known| known.will_wake(&waker)) {
            waiting.push(waker);
        }
        false
    }

    /// Returns a page of a fill that is done. `None` if the file ends before it.
    pub(crate) fn page(&self, page: u64) -> Result<Option<Pin>, Error> {
        match self.done.get() {
            Some(Ok(pins)) => Ok(pins.get((page - self.first) as usize).cloned()),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }
}

impl Wake for Fill {
    fn wake(self: Arc<Self>) {
        self.serve();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.serve();
    }
}
