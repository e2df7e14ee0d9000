//! One read for all that miss a page.
//!
//! A fill owns its frames, its read and its waiters. It belongs to no future: the fill itself is
//! the read's waker. So the thread that notices the completion publishes the pages and wakes the
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
    /// Pending wake-ups. The thread that raises it from zero polls, and serves those that follow.
    wakeups: AtomicU32,
    /// Pages before the end of the file, or the error of the read.
    done: OnceLock<Result<Vec<Result<Pin, Error>>, Error>>,
    waiting: Mutex<Waiting>,
}

/// Futures that wait, by place.
#[derive(Default)]
struct Waiting {
    wakers: Vec<Option<Waker>>,
    /// Places without a waker.
    free: Vec<usize>,
}

/// A future's registration with a fill.
pub(crate) struct Joined {
    pub(crate) fill: Arc<Fill>,
    place: Option<usize>,
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

    /// True after [`Fill::set_stale`]. Call it with the inode's fills locked.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
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

    /// Polls the read, and completes the fill when it is done. One thread polls at a time, and also
    /// serves wake-ups that arrive meanwhile.
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

    /// Checks a page. The fill owns the frame, whose first bytes were read.
    fn check(&self, page: u64, frame: u32, valid: usize) -> Result<(), Error> {
        let Some(check) = &self.core.check else { return Ok(()) };
        let offset = page << self.core.page_shift;
        // SAFETY: the fill owns the frame until it publishes it, and the first `valid` bytes were read.
        let contents = unsafe { std::slice::from_raw_parts(self.core.frames.record(frame).start().as_ptr(), valid) };
        let refusal = match contained(|| check(self.file.path(), offset, contents)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(refusal)) => refusal,
            None => String::from("the check of the page panicked"),
        };
        let error = Error::new(ErrorOp::Read, ErrorKind::Damaged).at(self.file.path());
        Err(error.with_range(offset, valid as u64).with_detail(refusal))
    }

    fn complete(&self, result: Result<usize, Error>) {
        let counters = &self.inode.counters;
        let (bytes, error) = match result {
            Ok(bytes) => (bytes, None),
            Err(error) => (0, Some(error)),
        };
        counters.filled_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        counters.failures.fetch_add(error.is_some().into(), Ordering::Relaxed);
        let checked: Vec<_> = (self.first..)
            .zip(self.valid(bytes))
            .map(|(page, (frame, valid))| {
                let refused = if valid > 0 { self.check(page, frame, valid).err() } else { None };
                counters.failures.fetch_add(refused.is_some().into(), Ordering::Relaxed);
                (page, frame, valid, refused)
            })
            .collect();
        let (mut pages, mut empty) = (Vec::with_capacity(self.frames.len()), Vec::new());
        let mut removed = Vec::new();
        let mut fills = lock(&self.inode.fills);
        let mut policy = lock(&self.core.policy);
        let is_wanted = self.core.space.is_wanted();
        for (page, frame, valid, refused) in checked {
            if fills.get(&page).is_some_and(|fill| std::ptr::eq(&**fill, self)) {
                removed.extend(fills.remove(&page));
            }
            if valid == 0 || refused.is_some() {
                empty.push(frame);
                pages.extend(refused.map(Err));
                continue;
            }
            let is_doomed = self.is_stale() || !policy.has_room();
            let record = self.core.frames.record(frame);
            record.name(self.inode.number, page, valid as u32);
            record.word.publish(is_doomed, is_wanted);
            if !is_doomed {
                policy.filled(frame, page, &self.inode);
                self.inode.pages.set(page, frame);
            }
            pages.push(Ok(Pin::adopt(record)));
        }
        drop(policy);
        drop(fills);
        drop(removed);
        self.core.give_back(&empty);
        // A fill completes once.
        let _ = self.done.set(error.map_or(Ok(pages), Err));
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waker in waiting.wakers.into_iter().flatten() {
            contained(|| waker.wake());
        }
    }

    /// Returns a page of a fill that is done. `None` if the file ends before it.
    pub(crate) fn page(&self, page: u64) -> Result<Option<Pin>, Error> {
        match self.done.get() {
            Some(Ok(pages)) => pages.get((page - self.first) as usize).cloned().transpose(),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }

    /// True if the read of several pages failed: each may be readable alone.
    pub(crate) fn failed_together(&self) -> bool {
        self.frames.len() > 1 && matches!(self.done.get(), Some(Err(_)))
    }
}

impl Joined {
    pub(crate) fn new(fill: Arc<Fill>) -> Joined {
        Joined { fill, place: None }
    }

    /// Returns true if the fill is done; registers the waker otherwise.
    pub(crate) fn is_done(&mut self, waker: &Waker) -> bool {
        let fill = &self.fill;
        if fill.done.get().is_some() {
            return true;
        }
        let waker = waker.clone();
        let mut waiting = lock(&fill.waiting);
        // Check again under the lock: the completing thread sets `done` before it takes this lock.
        if fill.done.get().is_some() {
            drop(waiting);
            return true;
        }
        let place = *self.place.get_or_insert_with(|| {
            waiting.free.pop().unwrap_or_else(|| {
                waiting.wakers.push(None);
                waiting.wakers.len() - 1
            })
        });
        let old = waiting.wakers[place].replace(waker);
        drop(waiting);
        drop(old);
        false
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if self.fill.core.is_forked() || self.fill.done.get().is_some() {
            return;
        }
        let mut waiting = lock(&self.fill.waiting);
        let old = waiting.wakers.get_mut(place).and_then(Option::take);
        if old.is_some() {
            waiting.free.push(place);
        }
        drop(waiting);
        drop(old);
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
