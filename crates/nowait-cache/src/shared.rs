//! State of a cache, shared by its handles and leases.
//!
//! Lock order: the stamp of an inode, its reads in flight, the policy, the queue for frames. Under
//! them the cache runs no user code, and frees only its own memory. Under the stamp it calls
//! `fstat(2)`; for a simulated file it instead takes a lock of the simulator, under which no completion
//! runs. Under the other locks the cache never blocks.
//!
//! `unsafe` here: leases reach the state through a pointer. It is freed after the last handle was
//! dropped and the last lease was returned.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nowait::embed;

use crate::fill::Fill;
use crate::frame::{Frames, Record};
use crate::inode::{Fills, Inode};
use crate::policy::Policy;
use crate::space::{Next, Space};
use crate::stats::Stats;
use crate::sync::lock;
use crate::word::{Doomed, Unpinned, is_ready};

/// Check of a page that was read: the path of the file, the offset and the bytes of the page.
pub(crate) type Check = Box<dyn Fn(&Path, u64, &[u8]) -> Result<(), String> + Send + Sync>;

/// Files that the cache knows.
pub(crate) struct Inodes {
    /// By device and inode.
    pub(crate) known: HashMap<(u64, u64), Arc<Inode>>,
    /// Counters of files that left.
    pub(crate) left: Stats,
    /// Number of known files from which on an opening removes those without handles and pages.
    limit: usize,
}

impl Inodes {
    /// Removes files that neither a handle nor a frame uses, if there are many files.
    pub(crate) fn take_unused(&mut self) -> Vec<Arc<Inode>> {
        if self.known.len() < self.limit {
            return Vec::new();
        }
        let is_unused = |inode: &Arc<Inode>| Arc::strong_count(inode) == 1;
        let unused: Vec<_> = self.known.iter().filter(|(_, inode)| is_unused(inode)).map(|(key, _)| *key).collect();
        let unused: Vec<_> = unused.iter().filter_map(|key| self.known.remove(key)).collect();
        unused.iter().for_each(|inode| self.left.add(&inode.counters));
        self.limit = (self.known.len() * 2).max(64);
        unused
    }
}

pub(crate) struct Shared {
    pub(crate) frames: Frames,
    pub(crate) policy: Mutex<Policy>,
    pub(crate) space: Space,
    pub(crate) inodes: Mutex<Inodes>,
    pub(crate) page_shift: u32,
    pub(crate) wait_max: Duration,
    pub(crate) read_ahead_bytes_max: usize,
    pub(crate) check: Option<Check>,
    /// Fork generation of the process that made the cache. In a forked child the arena reads zeros.
    pub(crate) process: u64,
    /// After the last handle was dropped: frames that are still leased.
    leased: AtomicUsize,
}

/// Handle of the state, in an `Arc`: when it is dropped, the leases own the state.
pub(crate) struct Owner(NonNull<Shared>);

pub(crate) type Core = Arc<Owner>;

// SAFETY: the state is `Sync`, as the bound checks.
unsafe impl Send for Owner where Shared: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Owner where Shared: Send + Sync {}

impl Deref for Owner {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        // SAFETY: freed only after `drop`.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let shared: &Shared = self;
        if shared.process != embed::fork_generation() {
            // The parent's leases may exist here, too: their frames cannot be told apart.
            return;
        }
        let frames = shared.frames.len();
        // One more, so that no lease frees the state during the loop.
        shared.leased.store(frames as usize + 1, Ordering::Relaxed);
        let unleased = (0..frames).filter(|frame| !shared.frames.word(*frame).orphan()).count();
        release(self.0, unleased + 1);
    }
}

/// Ends the leases of a number of frames; frees the state with the last.
fn release(shared: NonNull<Shared>, frames: usize) {
    // SAFETY: the state exists while a frame counts as leased.
    let left = unsafe { shared.as_ref() }.leased.fetch_sub(frames, Ordering::AcqRel) - frames;
    if left == 0 {
        // SAFETY: made by `Box::into_raw`; no handle and no lease is left, and the count reaches zero
        // once.
        drop(unsafe { Box::from_raw(shared.as_ptr()) });
    }
}

impl Owner {
    pub(crate) fn new(shared: Shared) -> Core {
        let shared = NonNull::from(Box::leak(Box::new(shared)));
        // SAFETY: just made.
        for record in unsafe { shared.as_ref() }.frames.records() {
            record.set_cache(shared.as_ptr().cast());
        }
        Arc::new(Owner(shared))
    }

    /// Pins a page if it is cached, and counts a hit. Takes no lock. Returns the state word, too: if
    /// it is not plain, the hit has effects besides.
    #[inline(always)]
    pub(crate) fn pin(&self, inode: &Inode, page: u64) -> Option<(Pin, u64)> {
        let record = self.frames.get(inode.pages.get(page)?)?;
        let word = record.word.pin();
        let pin = Pin(NonNull::from(record));
        if is_ready(word) && record.contains(inode.number, page) {
            return Some((pin, word));
        }
        undo(pin);
        None
    }

    /// Pins a page if it is cached, and counts no hit. Returns a pin also of a frame that contains
    /// another page, and whether it is this page: the removal of a pin may run user code, so it is
    /// dropped without a lock.
    pub(crate) fn pin_uncounted(&self, inode: &Inode, page: u64) -> Option<(Pin, bool)> {
        let record = self.frames.get(inode.pages.get(page)?)?;
        let word = record.word.pin_uncounted();
        let pin = Pin(NonNull::from(record));
        Some((pin, is_ready(word) && record.contains(inode.number, page)))
    }
}

impl Shared {
    pub(crate) fn new(
        frames: Frames,
        page_shift: u32,
        wait_max: Duration,
        read_ahead_bytes_max: usize,
        check: Option<Check>,
    ) -> Option<Shared> {
        Some(Shared {
            policy: Mutex::new(Policy::new(frames.len())?),
            frames,
            space: Space::new(),
            inodes: Mutex::new(Inodes { known: HashMap::new(), left: Stats::default(), limit: 64 }),
            page_shift,
            wait_max,
            read_ahead_bytes_max,
            check,
            process: embed::fork_generation(),
            leased: AtomicUsize::new(0),
        })
    }

    pub(crate) fn page_bytes(&self) -> usize {
        1 << self.page_shift
    }

    /// True in a process that was forked from the one that made the cache.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process != embed::fork_generation()
    }

    /// Returns the memory of frames that were given up to the system.
    pub(crate) fn discard(&self, given_up: &[u32]) {
        for frame in given_up {
            // SAFETY: nothing uses a frame that was given up, until it is retired.
            unsafe { self.frames.arena().discard(*frame) };
        }
        if !given_up.is_empty() {
            let mut policy = lock(&self.policy);
            let free = given_up.iter().filter(|frame| policy.retire(**frame)).count();
            drop(policy);
            (0..free).for_each(|_| self.space.next().wake());
        }
    }

    /// Takes back frames that contain nothing, and wakes one waiting future for each that is free.
    pub(crate) fn give_back(&self, frames: &[u32]) {
        if frames.is_empty() {
            return;
        }
        let mut policy = lock(&self.policy);
        let given_up: Vec<u32> = frames.iter().copied().filter(|frame| !policy.give_back(*frame)).collect();
        drop(policy);
        self.discard(&given_up);
        (given_up.len()..frames.len()).for_each(|_| self.space.next().wake());
    }

    /// Removes the cached pages of a range from the directory, and keeps reads in flight out of it.
    /// Leases of the pages keep their bytes. Returns the frames that are free, for
    /// [`Shared::give_back`].
    pub(crate) fn invalidate(&self, inode: &Inode, first: u64, end: u64) -> Invalidated {
        let mut invalidated = Invalidated::default();
        lock(&inode.writes).mark(first..end);
        let mut fills = lock(&inode.fills);
        invalidated.range(self, inode, &mut fills, first, end);
        drop(fills);
        invalidated
    }
}

/// Removes a pin that found another page.
#[cold]
fn undo(pin: Pin) {
    pin.record().word.undo_hit();
}

/// Pages and reads that were removed from the directory. Dropping them may run user code: call
/// [`Invalidated::finish`] with no lock held.
#[derive(Default)]
#[must_use]
pub(crate) struct Invalidated {
    free: Vec<u32>,
    fills: Vec<Arc<Fill>>,
    pub(crate) pins: Vec<Pin>,
}

impl Invalidated {
    /// Removes the reads in flight and the cached pages of a range. `fills` are the inode's.
    pub(crate) fn range(&mut self, shared: &Shared, inode: &Inode, fills: &mut Fills, first: u64, end: u64) {
        self.reads(fills, first, end);
        self.pages(shared, inode, &mut lock(&shared.policy), first, end);
    }

    /// Keeps the reads in flight of a range out of the directory, and later reads from joining
    /// them. `fills` are the inode's.
    pub(crate) fn reads(&mut self, fills: &mut Fills, first: u64, end: u64) {
        self.fills.extend(fills.take(first, end));
    }

    /// Removes the cached pages of a range from the directory. The inode's fills are locked.
    pub(crate) fn pages(&mut self, shared: &Shared, inode: &Inode, policy: &mut Policy, first: u64, end: u64) {
        let mut from = first;
        while let Some((page, frame)) = inode.pages.next(from, end) {
            from = page + 1;
            inode.pages.clear(page, frame);
            policy.forget(frame);
            let word = shared.frames.word(frame);
            inode.counters.hits.fetch_add(word.take_hits(), Ordering::Relaxed);
            if word.doom() == Doomed::Free {
                self.free.push(frame);
            }
        }
    }

    pub(crate) fn finish(self, shared: &Shared) {
        drop(self.fills);
        drop(self.pins);
        shared.give_back(&self.free);
    }
}

/// Pin of a page: its bytes stay in place. A single pointer, so that it and a lease stay in registers.
pub(crate) struct Pin(NonNull<Record>);

// SAFETY: records and the state are `Sync`, as the bounds check, and exist while the pin does.
unsafe impl Send for Pin where Shared: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Pin where Shared: Send + Sync {}

impl Pin {
    /// Takes over a pin.
    pub(crate) fn adopt(record: &Record) -> Pin {
        Pin(NonNull::from(record))
    }

    /// Returns the record; the caller takes over the pin.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Record> {
        ManuallyDrop::new(self).0
    }

    /// Takes over the pin of [`Pin::into_raw`].
    ///
    /// # Safety
    /// The record is that of a pin, which nothing else takes over.
    #[inline]
    pub(crate) unsafe fn from_raw(record: NonNull<Record>) -> Pin {
        Pin(record)
    }

    #[inline]
    pub(crate) fn record(&self) -> &Record {
        // SAFETY: a pinned frame counts as leased, so the state exists, and the record with it.
        unsafe { self.0.as_ref() }
    }

    /// Length of the page.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.record().valid()
    }

    /// Bytes of the page.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        let record = self.record();
        // SAFETY: the frame is filled up to its length, and nothing changes it while it is pinned. In a
        // forked child it reads zeros.
        unsafe { std::slice::from_raw_parts(record.start().as_ptr(), record.valid()) }
    }
}

impl Clone for Pin {
    #[inline]
    fn clone(&self) -> Pin {
        self.record().word.pin_again();
        Pin(self.0)
    }
}

impl Drop for Pin {
    #[inline(always)]
    fn drop(&mut self) {
        let unpinned = self.record().word.unpin();
        if unpinned != Unpinned::Done {
            let_go(self.0, unpinned);
        }
    }
}

/// Continues the removal of the last pin of a frame.
#[cold]
#[inline(never)]
fn let_go(pinned: NonNull<Record>, mut unpinned: Unpinned) {
    // SAFETY: the pin remains, or was an orphan's: in both cases the frame counts as leased.
    let Some(cache) = NonNull::new(unsafe { pinned.as_ref() }.cache().cast::<Shared>()) else { return };
    // SAFETY: as above.
    if unsafe { cache.as_ref() }.is_forked() {
        // A thread that does not exist here may hold the locks.
        return;
    }
    // Woken after the pin is removed. The state may be freed by then, so `Next` does not refer to it.
    let mut next = Next::NOBODY;
    loop {
        if unpinned == Unpinned::Orphan {
            return release(cache, 1);
        }
        if unpinned == Unpinned::Done {
            return next.wake();
        }
        // SAFETY: the pin remains, so the frame counts as leased.
        let (shared, record) = unsafe { (cache.as_ref(), pinned.as_ref()) };
        match unpinned {
            Unpinned::Wanted if record.word.clear_wanted() => {
                std::mem::replace(&mut next, shared.space.next()).wake();
            }
            Unpinned::Doomed if record.word.try_free() => {
                shared.give_back(&[shared.frames.number(record)]);
            }
            _ => {}
        }
        unpinned = record.word.unpin();
    }
}
