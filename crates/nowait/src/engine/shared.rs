//! Rings for futures on any executor: any thread may submit, any thread may reap.
//!
//! A few rings ("shards"), each thread using its own by preference, so that the short lock around the submission queue is
//! rarely contended. The lock is not held across `io_uring_enter`. Somebody must notice completions: one small thread, the
//! reaper, that sleeps in epoll over the rings and only wakes wakers; under tokio (feature `tokio`) a task in tokio's own
//! reactor, and no thread. Whoever holds a shard last keeps it until nothing is in flight, so that dropping an engine
//! waits for nobody, and what a dead device never gives back is leaked rather than freed.
//!
//! `unsafe` here: both queues are used through a shared reference, each under its lock, and a slot's pointer travels
//! through the kernel as user data.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "tokio")]
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock, TryLockError};
use std::task::Waker;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

use super::uring::{self, Ring, Untaken, Usage};
use super::{Engine, Refusal, local, pool};
use crate::buf::lock;
use crate::op::help::{self, Helped};
use crate::op::{Backlog, PLACES_MIN, Slot};
use crate::stats::{Count, thread_number};
use crate::sys;

/// A slot that the kernel is through with, and its answer.
type Completion = (Arc<Slot>, Result<usize, Errno>);

/// Rings that one instance makes at most: beyond that, threads share.
pub(super) const SHARDS_MAX: usize = 8;

/// One ring and the line before it.
pub(super) struct Shard {
    ring: Ring,
    line: Mutex<Line>,
    /// Held while completions are read.
    reaping: Mutex<()>,
    quiet: Condvar,
    /// The reaper sees to it, and until it is quiet only.
    watched: AtomicBool,
    lent: AtomicBool,
    /// Whoever submits what is staged when its thread has nothing else to run; nobody under the reaper.
    flusher: Mutex<Flusher>,
    /// Held, for reading, while the kernel may take entries; true once it refuses to be entered.
    dead: RwLock<bool>,
}

#[derive(Default)]
enum Flusher {
    #[default]
    Nobody,
    /// Is running, or will, and looks at what is staged then.
    Awake,
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    Asleep(Waker),
}

/// What to do when another thread is reading completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reap {
    /// Leave it to that thread; whoever is told of completions comes later.
    IfNobodyDoes,
    /// Wait for that thread: it may have looked just before what we were told of.
    Surely,
}

/// Guards the submission queue, too.
#[derive(Default)]
struct Line {
    /// Taken: in the kernel, or staged.
    places: Places,
    staged: u32,
    /// Staged entries that wait for one more. It grows with each submission since the flusher's last, as in `local.rs`.
    held: u32,
    /// The shares that were made into user data, of the entries that the kernel has not taken.
    untaken: Untaken<u64>,
    /// The kernel refuses to be entered.
    dead: bool,
}

impl Shard {
    pub(super) fn new() -> Result<Arc<Shard>, Refusal> {
        let ring = uring::set_up(Usage::Shared)?;
        let shard = Arc::new(Shard {
            ring,
            line: Mutex::default(),
            reaping: Mutex::new(()),
            quiet: Condvar::new(),
            watched: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            flusher: Mutex::default(),
            dead: RwLock::default(),
        });
        let known: Arc<dyn Helped> = shard.clone();
        help::register(Arc::downgrade(&known));
        Ok(shard)
    }

    /// Takes a slot; one that is staged and not handed to the kernel (`enters`) is the reaper's to hand over.
    fn submit(&self, slot: Arc<Slot>, enters: bool) {
        let mut line = lock(&self.line);
        if line.places.in_flight >= self.ring.depth && slot.is_below(PLACES_MIN) {
            drop(line);
            // What has the places may never end.
            return pool::hand_on(slot);
        }
        if line.places.in_flight >= self.ring.depth {
            slot.count(Count::Queued);
            line.places.backlog.push(slot);
            let shed = line.places.backlog.take_shed();
            drop(line);
            help::watch();
            return self.discard(shed);
        }
        line.places.in_flight += 1;
        if let Err(slot) = self.push(&mut line, slot) {
            drop(line);
            return pool::hand_on(slot);
        }
        // While the device has something to do, an entry waits for others, or until this thread has nothing else to run:
        // system calls are saved, and the thread gets to sleep.
        let waits = line.staged <= line.held && line.places.in_flight > line.staged;
        if !waits {
            line.held = (line.held * 2 + 2).min(self.ring.depth);
        }
        let flusher = if waits && enters { self.call_flusher() } else { Flusher::Nobody };
        drop(line);
        if !enters {
            return;
        }
        match flusher {
            Flusher::Nobody => self.enter(),
            Flusher::Awake => {}
            Flusher::Asleep(waker) => waker.wake(),
        }
    }

    /// Notes that somebody will submit what is staged, soon; gives who that is, to be woken when nothing is locked.
    fn call_flusher(&self) -> Flusher {
        let mut flusher = lock(&self.flusher);
        match *flusher {
            Flusher::Nobody => Flusher::Nobody,
            Flusher::Awake | Flusher::Asleep(_) => std::mem::replace(&mut *flusher, Flusher::Awake),
        }
    }

    /// Waits until something is staged.
    #[cfg(feature = "tokio")]
    pub(super) fn poll_staged(&self, context: &mut Context<'_>) -> Poll<()> {
        // A waker's clone and drop may run anything: not under a lock.
        let asleep = Flusher::Asleep(context.waker().clone());
        // In this order, as in `submit`.
        let line = lock(&self.line);
        if line.staged > 0 {
            return Poll::Ready(());
        }
        let old = std::mem::replace(&mut *lock(&self.flusher), asleep);
        drop(line);
        drop(old);
        Poll::Pending
    }

    /// Nobody flushes any more.
    #[cfg(feature = "tokio")]
    pub(super) fn end_flushing(&self) {
        let line = lock(&self.line);
        *lock(&self.flusher) = Flusher::Nobody;
        drop(line);
        self.enter();
    }

    /// Stages a slot that has a place (counted in `in_flight`). Gives it back, and the place is free again, when the ring
    /// cannot do it: it is to be handed on, with nothing locked.
    fn push(&self, line: &mut Line, slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
        let Some(entry) = self.ring.encode(&slot).filter(|_| !line.dead) else {
            line.places.in_flight -= 1;
            return Err(slot);
        };
        let share = Arc::into_raw(slot) as u64;
        // SAFETY: `line` is the lock of this submission queue. The entry's memory and descriptor belong to the slot, of
        // which the user data is a share that lasts until the completion.
        let (pushed, length) = unsafe {
            let mut queue = self.ring.ring.submission_shared();
            (queue.push(&entry.user_data(share)).is_ok(), queue.len())
        };
        if !pushed {
            debug_assert!(false, "there are as many entries as places");
            line.places.in_flight -= 1;
            // SAFETY: the share was made above, and the kernel did not get it.
            return Err(unsafe { Arc::from_raw(share as *const Slot) });
        }
        line.untaken.push(share, length);
        line.staged += 1;
        Ok(())
    }

    /// The flusher's thread has nothing else to run: hands the kernel what is staged.
    #[cfg(feature = "tokio")]
    pub(super) fn flush(&self) {
        lock(&self.line).held = 0;
        self.enter();
    }

    /// Hands the kernel what is staged, by whomever.
    pub(super) fn enter(&self) {
        lock(&self.line).staged = 0;
        self.submit_entries();
        // A read that needed no device is complete by now; its future need not wait to be told.
        self.reap(Reap::IfNobodyDoes);
    }

    fn submit_entries(&self) {
        loop {
            let dead = self.dead.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            let result = if *dead { Ok(0) } else { self.ring.ring.submit() };
            drop(dead);
            match result {
                Ok(_) => return,
                Err(error) if uring::is_lasting(&error) => return self.give_up(),
                // Interrupted, or short of memory or of room for completions (others are reaping those): try again.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// The kernel refuses to be entered: what it has not taken goes to the pool, and all that follows.
    fn give_up(&self) {
        // From here no thread enters: a filter may be that of one thread only, and two must not own an entry.
        *self.dead.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        let mut line = lock(&self.line);
        line.dead = true;
        // SAFETY: `line` is the lock of this submission queue.
        let length = unsafe { self.ring.ring.submission_shared() }.len();
        let mut slots: Vec<Arc<Slot>> = Vec::new();
        for share in line.untaken.take(length) {
            line.places.in_flight -= 1;
            // SAFETY: the share was made in `push`, and the kernel never gets the entry.
            slots.push(unsafe { Arc::from_raw(share as *const Slot) });
        }
        slots.extend(std::iter::from_fn(|| line.places.backlog.pop()));
        let shed = line.places.backlog.take_shed();
        line.staged = 0;
        if line.places.is_quiet() {
            self.quiet.notify_all();
        }
        drop(line);
        self.discard(shed);
        slots.into_iter().for_each(pool::hand_on);
    }

    /// Settles every completion there is and gives the places to those in line.
    pub(super) fn reap(&self, how: Reap) {
        let mut batch: [Option<Completion>; 32] = [const { None }; 32];
        loop {
            let Some(n) = self.collect(how, &mut batch) else { return };
            if n == 0 {
                return;
            }
            let mut again = 0;
            for entry in &mut batch[..n] {
                if let Some((slot, result)) = entry.take() {
                    if let Some(slot) = pool::settle(slot, result, Count::Ring) {
                        again += 1;
                        // A statement of its own, so that the lock is released at its end.
                        let pushed = self.push(&mut lock(&self.line), slot);
                        pushed.unwrap_or_else(pool::hand_on);
                    }
                }
            }
            let mut refused = Vec::new();
            let mut line = lock(&self.line);
            let mut staged = line.staged > 0;
            line.places.in_flight -= (n - again) as u32;
            line.places.ended += n as u64;
            while line.places.in_flight < self.ring.depth {
                let Some(slot) = line.places.backlog.pop() else { break };
                line.places.in_flight += 1;
                match self.push(&mut line, slot) {
                    Ok(()) => staged = true,
                    Err(slot) => refused.push(slot),
                }
            }
            let shed = line.places.backlog.take_shed();
            if line.places.is_quiet() {
                self.quiet.notify_all();
            }
            line.staged = 0;
            drop(line);
            if staged {
                self.submit_entries();
            }
            self.discard(shed);
            refused.into_iter().for_each(pool::hand_on);
        }
    }

    /// Moves completions into `batch`; None when another thread is reaping.
    fn collect(&self, how: Reap, batch: &mut [Option<Completion>]) -> Option<usize> {
        let _reaping = match (how, self.reaping.try_lock()) {
            (_, Ok(guard)) => guard,
            (_, Err(TryLockError::Poisoned(poisoned))) => poisoned.into_inner(),
            (Reap::IfNobodyDoes, Err(TryLockError::WouldBlock)) => return None,
            (Reap::Surely, Err(TryLockError::WouldBlock)) => lock(&self.reaping),
        };
        let mut n = 0;
        // SAFETY: `reaping` is the lock of this completion queue.
        let queue = unsafe { self.ring.ring.completion_shared() };
        for entry in queue.take(batch.len()) {
            let slot = entry.user_data() as *const Slot;
            // SAFETY: the user data of every entry is a share made in `push`, and the kernel posts one completion for it.
            let slot = unsafe { Arc::from_raw(slot) };
            batch[n] = Some((slot, uring::decode(&entry)));
            n += 1;
        }
        Some(n)
    }

    fn drain(&self) {
        // Looking itself now and then: the runtime that should notice completions may not be driven now.
        const LOOK_AGAIN: Duration = Duration::from_millis(10);
        self.enter();
        let mut line = lock(&self.line);
        while !line.places.is_quiet() {
            let (after, timeout) =
                self.quiet.wait_timeout(line, LOOK_AGAIN).unwrap_or_else(|poisoned| poisoned.into_inner());
            line = after;
            if timeout.timed_out() {
                drop(line);
                self.reap(Reap::Surely);
                line = lock(&self.line);
            }
        }
    }
}

impl Lined for Shard {
    fn with_line<T>(&self, look: impl FnOnce(&mut Backlog, u64) -> T) -> T {
        lock(&self.line).places.look(&self.quiet, look)
    }
}

impl Helped for Shard {
    fn glance(&self) -> bool {
        self.relieve_line()
    }
}

impl Reaped for Shard {
    fn reap_surely(&self) {
        // A statement of its own, so that the lock is released at its end.
        let is_staged = std::mem::take(&mut lock(&self.line).staged) > 0;
        if is_staged {
            self.submit_entries();
        }
        self.reap(Reap::Surely);
    }

    fn is_quiet(&self) -> bool {
        lock(&self.line).places.is_quiet()
    }

    fn watched(&self) -> &AtomicBool {
        &self.watched
    }

    fn lent(&self) -> Option<&AtomicBool> {
        Some(&self.lent)
    }
}

impl AsFd for Shard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.ring.as_fd()
    }
}

/// Places in a queue to the kernel, and the slots in line for one.
#[derive(Default)]
pub(super) struct Places {
    /// Taken places.
    pub(super) in_flight: u32,
    pub(super) backlog: Backlog,
    /// Completions so far.
    pub(super) ended: u64,
}

impl Places {
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.backlog.is_quiet()
    }

    /// Serves [`Lined::with_line`]; `quiet` is where others wait for quiet.
    pub(super) fn look<T>(&mut self, quiet: &Condvar, look: impl FnOnce(&mut Backlog, u64) -> T) -> T {
        let value = look(&mut self.backlog, self.ended);
        if self.is_quiet() {
            quiet.notify_all();
        }
        value
    }
}

/// A queue to the kernel with a line before it, both of which all threads share.
pub(super) trait Lined {
    /// Looks at the line, and how many operations have ended in the queue. Whoever waits for quiet is told of it.
    fn with_line<T>(&self, look: impl FnOnce(&mut Backlog, u64) -> T) -> T;

    /// Ends what the line has shed. With nothing locked.
    fn discard(&self, shed: Vec<Arc<Slot>>) {
        if !shed.is_empty() {
            let count = shed.len();
            pool::discard(shed);
            self.with_line(|line, _| line.discarded(count));
        }
    }

    /// Has the pool do what is in line, if nothing ends in the queue. False when nothing is in line.
    fn relieve_line(&self) -> bool {
        let (stuck, shed, is_busy) = self.with_line(|line, ended| {
            let stuck = line.take_stuck(ended, Instant::now());
            (stuck, line.take_shed(), line.len() > 0)
        });
        self.discard(shed);
        let count = stuck.len();
        stuck.into_iter().for_each(pool::hand_on);
        self.with_line(|line, _| line.discarded(count));
        is_busy
    }
}

/// Shards, and which thread uses which.
#[derive(Default)]
pub(super) struct Shards(Mutex<Members>);

#[derive(Default)]
struct Members {
    shards: Vec<Arc<Shard>>,
    /// Threads in order of their first submission; a thread's place decides its shard.
    threads: Vec<usize>,
}

impl Shards {
    /// This thread's shard. `make` is called while fewer than `max` exist and each has a thread already; when it fails, those
    /// that exist serve.
    pub(super) fn mine(
        &self,
        max: usize,
        make: impl FnOnce() -> Result<Arc<Shard>, Refusal>,
    ) -> Result<Arc<Shard>, Refusal> {
        /// Threads that are remembered; those that come later share by number.
        const THREADS_MAX: usize = 256;
        let thread = thread_number();
        let mut members = lock(&self.0);
        let place = match members.threads.iter().position(|known| *known == thread) {
            Some(place) => place,
            None if members.threads.len() < THREADS_MAX => {
                members.threads.push(thread);
                members.threads.len() - 1
            }
            None => thread,
        };
        if place >= members.shards.len() && members.shards.len() < max {
            match make() {
                Ok(shard) => members.shards.push(shard),
                Err(refusal) if members.shards.is_empty() => return Err(refusal),
                Err(_) => {}
            }
        }
        let index = place % members.shards.len();
        Ok(members.shards[index].clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<Shard>> {
        lock(&self.0).shards.clone()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn remove(&self, shard: &Arc<Shard>) {
        lock(&self.0).shards.retain(|known| !Arc::ptr_eq(known, shard));
    }
}

/// The ring engine.
pub(crate) struct Uring {
    shards: Shards,
    shards_max: usize,
    #[cfg(feature = "tokio")]
    runtimes: super::tokio::Runtimes,
    #[cfg(feature = "tokio")]
    _loans: Arc<Loans>,
    /// Dropped last: the bell that its drop rings has the reaper look who else holds the rings.
    reaper: Arc<Reaper>,
}

impl Uring {
    /// Tries to make a first ring, so that a refusal is known at once.
    pub(crate) fn new() -> Result<Uring, Refusal> {
        let reaper: Arc<Reaper> = Arc::default();
        #[cfg(feature = "tokio")]
        let runtimes = super::tokio::Runtimes::default();
        #[cfg(feature = "tokio")]
        let loans = Arc::new(Loans { runtimes: runtimes.clone(), reaper: Arc::downgrade(&reaper) });
        #[cfg(feature = "tokio")]
        help::register(Arc::downgrade(&loans) as Weak<dyn Helped>);
        let engine = Uring {
            reaper,
            shards: Shards::default(),
            shards_max: sys::processors().min(SHARDS_MAX),
            #[cfg(feature = "tokio")]
            runtimes,
            #[cfg(feature = "tokio")]
            _loans: loans,
        };
        let first = Shard::new()?;
        lock(&engine.shards.0).shards.push(first.clone());
        Ok(engine)
    }

    /// The ring for this thread; None when its completions could not be noticed.
    fn shard(&self) -> Option<Arc<Shard>> {
        #[cfg(feature = "tokio")]
        let may_be_a_runtimes = !local::is_elsewhere() && !pool::is_own_thread();
        #[cfg(feature = "tokio")]
        if let Some(shard) = may_be_a_runtimes.then(|| self.runtimes.shard(&self.reaper)).flatten() {
            return Some(shard);
        }
        let shard = self.shards.mine(self.shards_max, Shard::new).ok()?;
        self.reaper.adopt(&shard).then_some(shard)
    }
}

impl Engine for Uring {
    fn submit(&self, slot: Arc<Slot>) {
        let Err(slot) = local::stage(slot) else { return };
        match self.shard() {
            // The kernel completes a request in the thread that submitted it, unless that sleeps in a call that cannot be interrupted:
            // as a thread of the pool may from now on, for another file.
            Some(shard) if pool::is_own_thread() => {
                shard.submit(slot, false);
                self.reaper.ring();
            }
            Some(shard) => shard.submit(slot, true),
            None => pool::hand_on(slot),
        }
    }

    #[cfg(feature = "tokio")]
    fn attach_tokio(&self) -> std::io::Result<()> {
        self.runtimes.attach()
    }

    fn watch_all(&self) {
        #[cfg(feature = "tokio")]
        for shard in self.runtimes.all() {
            let _ = self.reaper.adopt(&shard);
        }
    }

    fn drain(&self) {
        #[cfg(feature = "tokio")]
        self.runtimes.all().iter().for_each(|shard| shard.drain());
        self.shards.all().iter().for_each(|shard| shard.drain());
        pool::drain_leftovers();
    }
}

#[cfg(feature = "tokio")]
impl Drop for Uring {
    fn drop(&mut self) {
        self.runtimes.close();
    }
}

/// What the reaper sees to. Its descriptor is readable, or tells of it again (edge-triggered), when there are completions.
pub(super) trait Reaped: AsFd + Send + Sync {
    /// Settles every completion there is.
    fn reap_surely(&self);
    /// Nothing is in flight or in line.
    fn is_quiet(&self) -> bool;
    /// The reaper sees to it: its own note.
    fn watched(&self) -> &AtomicBool;
    /// It does so until nothing is in flight: its own note.
    fn lent(&self) -> Option<&AtomicBool> {
        None
    }
}

fn is_lent<S: Reaped + ?Sized>(shard: &S) -> bool {
    shard.lent().is_some_and(|lent| lent.load(Ordering::Acquire))
}

/// Rings of runtimes that may be blocked by their tasks.
#[cfg(feature = "tokio")]
struct Loans {
    runtimes: super::tokio::Runtimes,
    reaper: Weak<Reaper>,
}

#[cfg(feature = "tokio")]
impl Helped for Loans {
    /// The reaper comes, and not the helper.
    fn want(&self) -> bool {
        if let Some(reaper) = self.reaper.upgrade() {
            for shard in self.runtimes.all().iter().filter(|shard| !shard.is_quiet()) {
                // What is staged is not in the kernel yet.
                shard.enter();
                reaper.lend(shard);
            }
        }
        false
    }

    fn is_of_a_runtime(&self) -> bool {
        true
    }
}

/// The thread that notices completions for executors that cannot, and what it watches.
#[derive(Default)]
pub(super) struct Reaper {
    watched: Arc<Watched>,
    /// None when there cannot be such a thread.
    watch: OnceLock<Option<Arc<Watch>>>,
}

#[derive(Default)]
struct Watched {
    shards: Mutex<Vec<Arc<dyn Reaped>>>,
    /// The engine is gone: end when nothing is in flight.
    closing: AtomicBool,
}

struct Watch {
    epoll: OwnedFd,
    bell: OwnedFd,
}

impl Reaper {
    /// Sees to a shard's completions from now on. Starts the thread at the first one. False when that cannot be.
    pub(super) fn adopt<S: Reaped + 'static>(&self, shard: &Arc<S>) -> bool {
        shard.watched().load(Ordering::Acquire) && !is_lent(&**shard) || self.watch(shard, false)
    }

    /// Sees to a shard's completions until nothing is in flight.
    #[cfg(feature = "tokio")]
    fn lend(&self, shard: &Arc<Shard>) {
        // One that is lent already may be on its way back: under the lock it is, or stays.
        if !shard.watched.load(Ordering::Acquire) || is_lent(&**shard) {
            self.watch(shard, true);
        }
    }

    /// Has it look at all that it watches.
    fn ring(&self) {
        if let Some(Some(watch)) = self.watch.get() {
            watch.ring();
        }
    }

    fn watch<S: Reaped + 'static>(&self, shard: &Arc<S>, lent: bool) -> bool {
        let mut shards = lock(&self.watched.shards);
        let Some(watch) = self.watch.get_or_init(|| Watch::start(self.watched.clone())) else { return false };
        if !shard.watched().load(Ordering::Acquire) {
            let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
            if epoll::add(&watch.epoll, shard, epoll::EventData::new_u64(0), events).is_err() {
                return false;
            }
            shards.push(shard.clone());
            if let Some(note) = shard.lent() {
                note.store(lent, Ordering::Release);
            }
            shard.watched().store(true, Ordering::Release);
        } else if let (Some(note), false) = (shard.lent(), lent) {
            note.store(false, Ordering::Release);
        }
        drop(shards);
        // For what completed before it was watched.
        watch.ring();
        true
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.watched.closing.store(true, Ordering::SeqCst);
        self.ring();
    }
}

impl Watch {
    fn start(watched: Arc<Watched>) -> Option<Arc<Watch>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN).ok()?;
        let watch = Arc::new(Watch { epoll, bell });
        let for_thread = watch.clone();
        let thread = std::thread::Builder::new().name("nowait-reaper".into());
        thread.spawn(move || for_thread.run(&watched)).ok()?;
        Some(watch)
    }

    fn ring(&self) {
        // The counter is far from full, and a bell that rings already need not ring again.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self, watched: &Watched) {
        /// Looks again, once the engine is gone, at what stays: somebody else may have held it for a moment.
        const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(16);
        let mut again = None;
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), again.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Not documented for a sound descriptor; do not burn the processor should it last.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            let shards = lock(&watched.shards).clone();
            shards.iter().for_each(|shard| shard.reap_surely());
            drop(shards);
            let mut shards = lock(&watched.shards);
            // One that nobody can submit to any more goes when its last operation is through, one that was lent goes back then.
            // With nothing locked: what is in its memory is unmapped.
            let mut gone = Vec::new();
            shards.retain(|shard| {
                let is_quiet = shard.is_quiet();
                let goes_back = is_quiet && is_lent(&**shard) && epoll::delete(&self.epoll, shard).is_ok();
                if goes_back {
                    shard.watched().store(false, Ordering::Release);
                }
                let stays = !goes_back && (Arc::strong_count(shard) > 1 || !is_quiet);
                if !stays {
                    gone.push(shard.clone());
                }
                stays
            });
            let is_closing = watched.closing.load(Ordering::SeqCst);
            let ends = is_closing && shards.is_empty();
            drop(shards);
            drop(gone);
            if ends {
                return;
            }
            again = is_closing.then_some(AGAIN);
        }
    }
}
