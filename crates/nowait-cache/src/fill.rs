//! One read for all that miss a page.
//!
//! A fill owns its frames and its read. The thread that notices the completion publishes the pages
//! and wakes the waiting tasks.
//!
//! `unsafe` here: memory of frames that is lent to a read, and looked at by the check.

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin as Pinned;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use smallvec::SmallVec;

use nowait::{Error, ErrorKind, ErrorOp, File, Lent, Moved, Started};

use crate::in_flight::{InFlight, OwnsInFlight};
use crate::inode::Inode;
use crate::shared::{Core, Pin};
use crate::sync::{contained, lock};

pub(crate) struct Fill {
    core: Core,
    inode: Arc<Inode>,
    file: File,
    first: u64,
    frames: FrameList,
    is_ahead: AtomicBool,
    /// The check has refused a page that a write may have changed during the read.
    is_torn: AtomicBool,
    /// The result: pages before the end of the file, or the error of the read.
    in_flight: InFlight<Reading, Filled>,
}

/// Pages of a read, or its error.
type Filled = Result<SmallVec<[Result<Pin, Error>; 1]>, Error>;

/// Frames of a fill.
pub(crate) type FrameList = SmallVec<[u32; 1]>;

pub(crate) enum Reading {
    One(Started<Moved<Lent>>),
    /// Into frames that are not adjacent.
    Many(Started<Moved<Vec<Lent>>>),
}

impl Future for Reading {
    /// The number of bytes that were read.
    type Output = Result<usize, Error>;

    fn poll(mut self: Pinned<&mut Self>, context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        match &mut *self {
            Reading::One(read) => Pinned::new(read).poll(context).map(|moved| Ok(moved?.0)),
            Reading::Many(read) => Pinned::new(read).poll(context).map(|moved| Ok(moved?.0)),
        }
    }
}

impl Fill {
    pub(crate) fn new(core: &Core, inode: &Arc<Inode>, file: &File, first: u64, frames: FrameList) -> Arc<Fill> {
        Arc::new(Fill {
            core: core.clone(),
            inode: inode.clone(),
            file: file.clone(),
            first,
            frames,
            is_ahead: AtomicBool::new(false),
            is_torn: AtomicBool::new(false),
            in_flight: InFlight::new(),
        })
    }

    /// Pages of the fill.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.frames.len() as u64
    }

    /// Lends adjacent frames to a read.
    fn lend(&self, frames: &[u32]) -> Lent {
        let length = frames.len() << self.core.page_shift;
        let start = frames.first().map_or(NonNull::dangling(), |frame| self.core.frames.record(*frame).start());
        // SAFETY: the frames are adjacent, and belong to the fill until it has published them, which
        // it does after the read returned its buffer. The arena exists while the owner does.
        unsafe { Lent::from_raw(start, length, self.core.clone()) }
    }

    /// Marks this fill as readahead: no read waits for it. Call it before `begin`.
    pub(crate) fn mark_ahead(&self) {
        self.is_ahead.store(true, Ordering::Relaxed);
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
        self.in_flight.begin(reading);
        self.serve();
    }

    /// Polls the read, and completes the fill when it is done.
    fn serve(self: &Arc<Self>) {
        if let Some(result) = self.in_flight.poll(&Waker::from(self.clone())) {
            self.complete(result);
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
        // Pages that the check refuses. It runs with no lock held.
        let checked = (self.first..).zip(self.valid(bytes));
        let checked = checked.filter(|(_, (_, valid))| *valid > 0);
        let refused = checked.filter_map(|(page, (frame, valid))| Some((page, self.check(page, frame, valid).err()?)));
        let mut refused: HashMap<u64, Error> = refused.collect();
        let (mut pages, mut empty) = (SmallVec::with_capacity(self.frames.len()), Vec::new());
        let mut fills = lock(&self.inode.fills);
        // If it is not in the list, its pages were invalidated.
        let listed = fills.remove(self);
        if !refused.is_empty() && (listed.is_none() || lock(&self.inode.writes).touches(&self.pages())) {
            self.is_torn.store(true, Ordering::Relaxed);
        } else {
            counters.failures.fetch_add(refused.len() as u64, Ordering::Relaxed);
        }
        let mut policy = lock(&self.core.policy);
        let is_wanted = self.core.space.is_wanted();
        for (page, (frame, valid)) in (self.first..).zip(self.valid(bytes)) {
            let refused = refused.remove(&page);
            if valid == 0 || refused.is_some() {
                empty.push(frame);
                pages.extend(refused.map(Err));
                continue;
            }
            let is_doomed = listed.is_none() || !policy.has_room();
            let record = self.core.frames.record(frame);
            record.name(self.inode.number, page, valid as u32);
            if self.is_ahead.load(Ordering::Relaxed) {
                record.word.mark_ahead();
            }
            record.word.publish(is_doomed, is_wanted);
            if !is_doomed {
                policy.filled(frame, page, &self.inode);
                self.inode.pages.set(page, frame);
            }
            pages.push(Ok(Pin::adopt(record)));
        }
        drop(policy);
        drop(fills);
        drop(listed);
        self.core.give_back(&empty);
        self.in_flight.end(error.map_or(Ok(pages), Err));
    }

    /// Returns a page of a fill that is done. `None` if the file ends before it.
    pub(crate) fn page(&self, page: u64) -> Result<Option<Pin>, Error> {
        match self.in_flight.result() {
            Some(Ok(pages)) => {
                let pin = pages.get((page - self.first) as usize).cloned().transpose()?;
                Ok(pin.inspect(|pin| pin.record().word.clear_ahead()))
            }
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }

    /// True if its pages are to be read again, each alone: the read of several pages failed, or the
    /// check has refused a page that was written meanwhile.
    pub(crate) fn must_repeat(&self) -> bool {
        let failed_together = self.frames.len() > 1 && matches!(self.in_flight.result(), Some(Err(_)));
        failed_together || self.is_torn.load(Ordering::Relaxed)
    }
}

impl OwnsInFlight for Fill {
    type Operation = Reading;
    type Result = Filled;

    fn in_flight(&self) -> &InFlight<Reading, Filled> {
        &self.in_flight
    }

    fn core(&self) -> &Core {
        &self.core
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
