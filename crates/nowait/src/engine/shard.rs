//! A ring to which any thread may submit and that any thread may reap, the line before it, and
//! which thread uses which.
//!
//! The short lock around the submission queue is not held across `io_uring_enter`.
//!
//! `unsafe` here: both queues are used through a shared reference, each under its lock, and a
//! slot's pointer travels through the kernel as user data.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicUsize, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, TryLockError};
use std::task::Waker;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::announced::Announced;
use super::places::{Lined, Places};
use super::reaper::Reaped;
use super::uring::{self, Ring, Untaken, Usage};
use super::{Refusal, pool};
use crate::buf::{lock, locking};
use crate::op::help::{self, Helped};
use crate::op::{Backlog, PLACES_MIN, Profile, Slot};
use crate::stats::{Count, thread_number};
use crate::turn::{self, Notice};
use rustix::io::Errno;

/// A slot that the kernel is through with, and its answer.
type Completion = (Arc<Slot>, Result<usize, Errno>);

/// Rings that one instance, or one runtime, makes at most: beyond that, threads share. Each costs
/// a descriptor and, with `DEPTH` entries, 28 KiB of memory that counts as locked.
pub(super) const SHARDS_MAX: usize = 64;

/// A future that submits its next read so soon after it was woken does little else. Then one future
/// is woken at a time: tokio's worker runs it next, and wakes no other worker to share the work.
/// Else each read has an entry, those that have ended wake together, and workers share them.
const POLL_MAX: Duration = Duration::from_micros(15);

/// Threads that submit look at completions so often before the reactor does. (tokio lets a task
/// that was woken by another run next three times in a row; then it wakes another worker.)
const PICKED_MAX: u32 = 2;

/// An entry that ended so soon has not waited for a device: its read had arrived.
const ARRIVED_MAX: Duration = Duration::from_micros(30);
/// Announcements do nothing if so many in a row had not.
const MISSED_MAX: u32 = 64;

/// A ring where nothing has ended for so long is left alone by its runtime or loop.
const LEFT_MIN: Duration = Duration::from_millis(25);

/// One ring and the line before it.
pub(super) struct Shard {
    ring: Ring,
    /// Among the rings of its instance or runtime.
    place: usize,
    line: Mutex<Line>,
    /// Held while completions are read.
    reaping: Mutex<()>,
    quiet: Condvar,
    /// The reaper serves it; if lent, until it is quiet only.
    watched: AtomicBool,
    lent: AtomicBool,
    /// Submits staged entries when its thread has nothing else to run; none under the reaper.
    flusher: Mutex<Flusher>,
    /// Held, for reading, while the kernel may take entries; true once it refuses to be entered.
    dead: RwLock<bool>,
    /// No thread is to find it any more. Set before [`Shards`] gives up its share.
    retired: AtomicBool,
    /// A reactor, or an event loop, notices its completions, and not the reaper.
    pub(super) in_reactor: bool,
    /// The thread that last ran one of its tasks; of interest in a current-thread runtime.
    #[cfg(feature = "tokio")]
    pub(super) driver: AtomicUsize,
}

#[derive(Default)]
enum Flusher {
    #[default]
    Nobody,
    /// Is running, or will, and looks at staged entries then.
    Awake,
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    Asleep(Waker),
}

/// How to reap while another thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reap {
    /// Leave it to that thread: the reactor or reaper comes for later completions.
    IfNobodyDoes,
    /// Wait for that thread: it may have looked just before the completion that we were told of.
    Surely,
}

/// Guards the submission queue, too.
#[derive(Default)]
struct Line {
    /// Taken: in the kernel, or staged.
    places: Places,
    staged: u32,
    /// Staged entries that wait for one more. Grows with each submission since the flusher's last,
    /// as in `local/`.
    held: u32,
    /// Slots' shares, as user data, of entries that the kernel has not taken.
    untaken: Untaken<u64>,
    /// Reads of a file: the first has an entry while there are others, and its end makes one of the
    /// next.
    announced: Announced<Arc<Slot>>,
    /// When futures were last woken, until one of them submits.
    woke: Option<Instant>,
    /// The last one took long to submit: it computes.
    is_slow: bool,
    /// How often in a row threads that submit have looked at completions on the way.
    picked: u32,
    /// The kernel refuses every further call.
    dead: bool,
    /// Operations that had ended at a glance, and when that was; none if nothing was in flight since.
    glanced_at: Option<(u64, Instant)>,
}

impl Shard {
    pub(super) fn new(place: usize) -> Result<Arc<Shard>, Refusal> {
        Shard::noticed_by(false, place)
    }

    /// Makes one whose completions a reactor notices, or the reaper.
    pub(super) fn noticed_by(reactor: bool, place: usize) -> Result<Arc<Shard>, Refusal> {
        let ring = uring::set_up(Usage::Shared)?;
        let shard = Arc::new(Shard {
            ring,
            place,
            line: Mutex::default(),
            reaping: Mutex::new(()),
            quiet: Condvar::new(),
            watched: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            flusher: Mutex::default(),
            dead: RwLock::default(),
            retired: AtomicBool::new(false),
            in_reactor: reactor,
            #[cfg(feature = "tokio")]
            driver: AtomicUsize::new(usize::MAX),
        });
        let known: Arc<dyn Helped> = shard.clone();
        help::register(Arc::downgrade(&known));
        Ok(shard)
    }

    /// False in a child of the process that made it.
    pub(super) fn is_ours(&self) -> bool {
        self.ring.is_ours()
    }

    /// Whether the reaper serves it now.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Acquire)
    }

    /// Whether threads that know it must look for another.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Acquire)
    }

    /// Takes a slot. Unless it `enters` the kernel, the reaper or the caller hands over what is staged.
    pub(super) fn submit(&self, slot: Arc<Slot>, enters: bool) {
        let mut line = lock(&self.line);
        if line.places.in_flight >= self.ring.depth && slot.is_below(PLACES_MIN) {
            drop(line);
            // The operations in all these places may never end.
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
        let Profile { is_long, buffered_read } = slot.profile();
        let share = Arc::as_ptr(&slot) as u64;
        if buffered_read.is_some_and(|(file, is_announced)| line.announced.takes(share, file, is_announced)) {
            return self.leave_announced(line, slot);
        }
        if let Err(slot) = self.push(&mut line, slot) {
            line.announced.ended(share);
            drop(line);
            return pool::hand_on(slot);
        }
        // A runtime's rings, or a loop's, are served by its threads, which may do something else from
        // now on.
        if self.in_reactor {
            help::watch();
        }
        // While the device is busy, an entry waits for others, or until this thread has nothing
        // else to run. That saves system calls, and lets the thread sleep.
        let waits = !is_long && line.staged <= line.held && line.places.in_flight > line.staged;
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

    /// Whether a read of the file at this address may be announced, and left beside the first. That
    /// leaves at once then.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    pub(super) fn takes_announced(&self, file: usize) -> bool {
        let mut line = lock(&self.line);
        // Here, before the call that tells the kernel: a device's doorbell may take long.
        if let Some(woke) = line.woke.take() {
            line.is_slow = woke.elapsed() > POLL_MAX;
        }
        let has_place = line.places.in_flight < self.ring.depth && !line.dead;
        let takes = has_place && !line.is_slow && line.announced.accepts(file);
        let leaves = takes && line.staged > 0 && !line.announced.has_others();
        if leaves {
            line.staged = 0;
        }
        let is_left = line.is_slow && line.announced.has_others();
        drop(line);
        if leaves {
            self.submit_entries();
        }
        if is_left {
            self.enter_announced(|line| line.is_slow);
        }
        takes
    }

    /// Leaves a slot that has a place to come after the first: the kernel was told of its read.
    fn leave_announced(&self, mut line: MutexGuard<'_, Line>, slot: Arc<Slot>) {
        // It begins.
        if line.dead || self.ring.encode(&slot).is_none() {
            line.places.in_flight -= 1;
            drop(line);
            return pool::hand_on(slot);
        }
        line.announced.add(slot);
        let (picks, is_late) = (line.picked < PICKED_MAX, line.announced.is_late());
        drop(line);
        help::watch();
        if is_late {
            self.enter_announced(|line| line.announced.is_late());
        }
        if picks {
            self.reap_some(Reap::IfNobodyDoes);
        }
    }

    /// Makes entries of all reads that were announced, if they are not to wait for their first.
    /// False if there are none.
    fn enter_announced(&self, is_due: impl FnOnce(&Line) -> bool) -> bool {
        let mut line = lock(&self.line);
        if !line.announced.has_others() || !is_due(&line) {
            return line.announced.has_others();
        }
        let mut refused = Vec::new();
        while let Some(slot) = line.announced.pop() {
            refused.extend(self.push(&mut line, slot).err());
        }
        line.staged = 0;
        drop(line);
        refused.into_iter().for_each(pool::hand_on);
        self.submit_entries();
        true
    }

    /// Makes an entry of the oldest announced read: somebody comes for it and those behind it,
    /// whatever the futures do that wake now.
    fn begin_anew(&self, line: &mut Line, refused: &mut Vec<Arc<Slot>>) {
        let is_useless = line.announced.misses(MISSED_MAX);
        while let Some(oldest) = line.announced.pop() {
            if !is_useless {
                oldest.count(Count::Announced);
                line.announced.begin(Arc::as_ptr(&oldest) as u64);
            }
            match self.push(line, oldest) {
                Ok(()) if is_useless => {}
                Ok(()) => return,
                Err(slot) => {
                    line.announced.ended(Arc::as_ptr(&slot) as u64);
                    refused.push(slot);
                }
            }
        }
    }

    /// Calls the flusher, which submits staged entries soon. Returns it, to be woken with nothing
    /// locked.
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

    /// Flushes a last time: the flusher ends.
    #[cfg(feature = "tokio")]
    pub(super) fn end_flushing(&self) {
        let line = lock(&self.line);
        *lock(&self.flusher) = Flusher::Nobody;
        drop(line);
        self.enter();
    }

    /// Stages a slot that has a place (counted in `in_flight`). If the ring cannot serve it, frees
    /// the place and returns the slot, to be handed on with nothing locked.
    fn push(&self, line: &mut Line, slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
        let Some(entry) = self.ring.encode(&slot).filter(|_| !line.dead) else {
            line.places.in_flight -= 1;
            return Err(slot);
        };
        let share = Arc::into_raw(slot) as u64;
        // SAFETY: `line` is the lock of this submission queue. The entry's memory and descriptor
        // belong to the slot, of which the user data is a share that lasts until the completion.
        let (pushed, length) = unsafe {
            let mut queue = self.ring.ring.submission_shared();
            (queue.push(&entry.user_data(share)).is_ok(), queue.len())
        };
        if !pushed {
            // There are as many entries as places, but the kernel frees all entries of a call at
            // its end, and operations that ended before that have been reaped already.
            line.places.in_flight -= 1;
            // SAFETY: the share was made above, and the kernel did not get it.
            return Err(unsafe { Arc::from_raw(share as *const Slot) });
        }
        line.untaken.push(share, length);
        line.staged += 1;
        Ok(())
    }

    /// Whether something is in flight, and whether it has been so, and nothing has ended, for a while:
    /// whoever should notice does not look. Glances may come in quick succession.
    pub(super) fn glance_at_ended(&self) -> (bool, bool) {
        let mut line = lock(&self.line);
        if line.places.is_quiet() {
            line.glanced_at = None;
            return (false, false);
        }
        let ended = line.places.ended;
        match line.glanced_at {
            Some((before, since)) if before == ended => (true, since.elapsed() >= LEFT_MIN),
            _ => {
                line.glanced_at = Some((ended, Instant::now()));
                (true, false)
            }
        }
    }

    /// Submits staged entries, by the flusher, whose thread has nothing else to run.
    #[cfg(feature = "tokio")]
    pub(super) fn flush(&self) {
        lock(&self.line).held = 0;
        self.enter();
    }

    /// Submits staged entries, whichever thread staged them.
    pub(super) fn enter(&self) {
        lock(&self.line).staged = 0;
        self.submit_entries();
        // A read that needed no device is complete by now, and its future wakes at once.
        self.reap(Reap::IfNobodyDoes);
    }

    /// Submits what is staged, if anything is. Completions are left for whoever looks.
    pub(super) fn submit_staged(&self) {
        // A statement of its own, so that the lock is released at its end.
        let is_staged = std::mem::take(&mut lock(&self.line).staged) > 0;
        if is_staged {
            self.submit_entries();
        }
    }

    fn submit_entries(&self) {
        loop {
            locking();
            let dead = self.dead.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            let result = if *dead { Ok(0) } else { self.ring.ring.submit() };
            drop(dead);
            match result {
                Ok(_) => return,
                Err(error) if uring::is_lasting(&error) => return self.give_up(),
                // Interrupted, or short of memory or of room for completions (others reap those):
                // try again.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Hands on every slot that the kernel has not taken, now that it refuses further calls. Later
    /// ones follow.
    fn give_up(&self) {
        // From here no thread enters: the filter may be that of one thread only, and two must not
        // own an entry.
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
        for slot in line.announced.take() {
            line.places.in_flight -= 1;
            slots.push(slot);
        }
        slots.extend(std::iter::from_fn(|| line.places.backlog.pop()));
        let shed = line.places.backlog.take_shed();
        line.staged = 0;
        line.places.tell_if_quiet(&self.quiet);
        drop(line);
        self.discard(shed);
        slots.into_iter().for_each(pool::hand_on);
    }

    /// Settles all available completions, and gives their places to slots in line.
    pub(super) fn reap(&self, how: Reap) {
        while self.reap_some(how) {}
    }

    /// Settles a batch of completions. False: there are none, or another thread is reaping.
    fn reap_some(&self, how: Reap) -> bool {
        let mut batch: [Option<Completion>; 32] = [const { None }; 32];
        let n = match self.collect(how, &mut batch) {
            None | Some(0) => return false,
            Some(n) => n,
        };
        let mut again = 0;
        turn::wakes(n);
        let mut shares = [0; 32];
        for (entry, share) in batch[..n].iter_mut().zip(&mut shares) {
            if let Some((slot, result)) = entry.take() {
                *share = Arc::as_ptr(&slot) as u64;
                if let Some(slot) = pool::settle(slot, result, Count::Ring) {
                    again += 1;
                    // A statement of its own, so that the lock is released at its end.
                    let pushed = self.push(&mut lock(&self.line), slot);
                    pushed.unwrap_or_else(pool::hand_on);
                }
            }
        }
        let mut line = lock(&self.line);
        line.places.in_flight -= (n - again) as u32;
        line.places.ended += n as u64;
        // A slot that was submitted meanwhile may lie where one of these did. If that is the first,
        // another becomes an entry early.
        let first = shares[..n].iter().find_map(|share| line.announced.ended(*share));
        line.picked = if how == Reap::Surely { 0 } else { line.picked + 1 };
        line.woke = Some(Instant::now());
        let begins = line.announced.has_uncollected();
        let mut refused = Vec::new();
        if begins {
            if first.is_some_and(|took| took < ARRIVED_MAX) {
                line.announced.collected();
            }
            self.begin_anew(&mut line, &mut refused);
        }
        self.fill(line, refused);
        // The new first may have ended already. It has its turn after what was woken now: whoever
        // notices completions is told of it.
        !begins || n == batch.len()
    }

    /// Gives free places to slots in line, submits what is staged, and hands on what was `refused`.
    fn fill(&self, mut line: MutexGuard<'_, Line>, mut refused: Vec<Arc<Slot>>) {
        let mut staged = line.staged > 0;
        while line.places.in_flight < self.ring.depth {
            let Some(slot) = line.places.backlog.pop() else { break };
            line.places.in_flight += 1;
            match self.push(&mut line, slot) {
                Ok(()) => staged = true,
                Err(slot) => refused.push(slot),
            }
        }
        let shed = line.places.backlog.take_shed();
        line.places.tell_if_quiet(&self.quiet);
        line.staged = 0;
        drop(line);
        self.discard(shed);
        refused.into_iter().for_each(pool::hand_on);
        // Last, for it may sleep.
        if staged {
            self.submit_entries();
        }
    }

    /// Moves completions into `batch`; none if another thread is reaping.
    fn collect(&self, how: Reap, batch: &mut [Option<Completion>]) -> Option<usize> {
        locking();
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
            // SAFETY: the user data of every entry is a share made in `push`, and the kernel posts
            // one completion for it.
            let slot = unsafe { Arc::from_raw(slot) };
            batch[n] = Some((slot, uring::decode(&entry)));
            n += 1;
        }
        Some(n)
    }

    pub(super) fn drain(&self) {
        // Reaps now and then: the runtime that should notice completions may not be driven now.
        const LOOK_AGAIN: Duration = Duration::from_millis(10);
        // Each of the others would wait for such a look at the one before.
        self.enter_announced(|_| true);
        self.enter();
        let mut line = lock(&self.line);
        line.places.draining += 1;
        while !line.places.is_quiet() {
            let (after, timeout) =
                self.quiet.wait_timeout(line, LOOK_AGAIN).unwrap_or_else(|poisoned| poisoned.into_inner());
            line = after;
            if timeout.timed_out() {
                drop(line);
                self.enter_announced(|_| true);
                self.reap(Reap::Surely);
                line = lock(&self.line);
            }
        }
        line.places.draining -= 1;
    }
}

impl Notice for Shard {
    fn notice(&self) {
        self.submit_staged();
        self.reap_some(Reap::IfNobodyDoes);
    }
}

impl Lined for Shard {
    fn with_line<T>(&self, look: impl FnOnce(&mut Backlog, u64) -> T) -> T {
        lock(&self.line).places.look(&self.quiet, look)
    }
}

impl Helped for Shard {
    fn glance(&self) -> bool {
        // Both, each for its own sake.
        self.relieve_line() | self.enter_announced(|line| line.announced.is_late())
    }
}

impl Reaped for Shard {
    fn reap_surely(&self) {
        self.submit_staged();
        self.reap(Reap::Surely);
    }

    fn is_quiet(&self) -> bool {
        lock(&self.line).places.is_quiet()
    }

    fn place(&self) -> usize {
        self.place
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
    /// Returns this thread's shard. Makes one, for a place, while fewer than `max` exist and each
    /// has a thread; if that fails, existing ones serve.
    pub(super) fn mine(
        &self,
        max: usize,
        make: impl FnOnce(usize) -> Result<Arc<Shard>, Refusal>,
    ) -> Result<Arc<Shard>, Refusal> {
        /// Threads that are remembered; later ones share by number.
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
            match make(members.shards.len()) {
                Ok(shard) => members.shards.push(shard),
                Err(refusal) if members.shards.is_empty() => return Err(refusal),
                Err(_) => {}
            }
        }
        let index = place % members.shards.len();
        Ok(members.shards[index].clone())
    }

    pub(super) fn add(&self, shard: Arc<Shard>) {
        lock(&self.0).shards.push(shard);
    }

    pub(super) fn all(&self) -> Vec<Arc<Shard>> {
        lock(&self.0).shards.clone()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn remove(&self, shard: &Arc<Shard>) {
        shard.retired.store(true, Release);
        lock(&self.0).shards.retain(|known| !Arc::ptr_eq(known, shard));
    }

    /// Has threads that know one of these shards look for another.
    #[cfg(feature = "tokio")]
    pub(super) fn retire(&self) {
        lock(&self.0).shards.iter().for_each(|shard| shard.retired.store(true, Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Memory;
    use crate::direct::Directness;
    use crate::engine::announced::FIRST_MAX;
    use crate::op::{Fallback, Handle, Notify, OpenFile, Owner, Request, Transfer};

    /// The test hands nothing on.
    struct NoPool;
    impl Fallback for NoPool {
        fn take(&self, _: Arc<Slot>) {
            unreachable!("no slot is handed on");
        }
    }

    #[test]
    fn a_place_without_an_entry_gives_the_slot_back() {
        let shard = match Shard::new(0) {
            Ok(shard) => shard,
            Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
        };
        let zeros = Handle::Descriptor(std::fs::File::open("/dev/zero").unwrap().into());
        let file = Arc::new(OpenFile::new(zeros, Directness::NotAsked, Arc::default(), Arc::new(NoPool)));
        let slot = || {
            let request = Request::Read(Transfer::new(Memory::Vec(vec![1; 8]), 0));
            Slot::new(request, Owner::File(file.clone()), Notify::Waker(Waker::noop().clone()))
        };
        let depth = shard.ring.depth;
        let mut line = lock(&shard.line);
        for _ in 0..depth {
            line.places.in_flight += 1;
            assert!(shard.push(&mut line, slot()).is_ok());
        }
        // As when all but the new one were reaped while a thread is still in the call that submits
        // them.
        line.places.in_flight = 1;
        assert!(shard.push(&mut line, slot()).is_err());
        assert_eq!(line.places.in_flight, 0);
        line.places.in_flight = depth;
        drop(line);
        shard.drain();
    }

    /// A ring, and reads of a pipe in it: attempts at them fail, as at what has not arrived.
    struct Piped {
        shard: Arc<Shard>,
        file: Arc<OpenFile>,
        writer: std::os::fd::OwnedFd,
        slots: Vec<Arc<Slot>>,
    }

    impl Piped {
        fn or_skip(reads: usize) -> Option<Piped> {
            let skip = |refusal: &Refusal| eprintln!("skipped: no io_uring ({:?})", refusal.errno);
            let shard = Shard::new(0).inspect_err(skip).ok()?;
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let handle = Handle::Descriptor(reader);
            let file = Arc::new(OpenFile::new(handle, Directness::NotAsked, Arc::default(), Arc::new(NoPool)));
            let mut piped = Piped { shard, file, writer, slots: Vec::new() };
            (0..reads).for_each(|_| piped.read());
            Some(piped)
        }

        fn read(&mut self) {
            let mut transfer = Transfer::new(Memory::Vec(vec![1; 8]), 0);
            transfer.announced = self.shard.takes_announced(Arc::as_ptr(&self.file).addr());
            let notify = Notify::Waker(Waker::noop().clone());
            let slot = Slot::new(Request::Read(transfer), Owner::File(self.file.clone()), notify);
            self.slots.push(slot.clone());
            self.shard.submit(slot, true);
        }

        fn has_others(&self) -> bool {
            lock(&self.shard.line).announced.has_others()
        }

        /// Lets so many reads end.
        fn write(&self, reads: usize) {
            assert_eq!(rustix::io::write(&self.writer, &vec![7; 8 * reads]), Ok(8 * reads));
        }

        fn all_end(self) {
            self.shard.drain();
            assert!(self.slots.iter().all(|slot| slot.take().is_some_and(|(outcome, _)| outcome.is_ok())));
        }
    }

    #[test]
    fn of_many_reads_of_a_file_one_is_in_the_ring() {
        let Some(piped) = Piped::or_skip(20) else { return };
        assert!(piped.has_others());
        assert_eq!(lock(&piped.shard.line).staged, 0, "the first has left");
        piped.write(20);
        piped.all_end();
    }

    /// Symptom: each of up to 64 announced reads took 10 ms of a drain, where no runtime was driven.
    #[test]
    fn a_drain_makes_entries_of_all() {
        let Some(piped) = Piped::or_skip(20) else { return };
        let file = piped.file.clone();
        piped.write(20);
        piped.all_end();
        assert_eq!(file.counters.snapshot().announced, 0, "one was begun when another had ended");
    }

    #[test]
    fn reads_of_futures_that_compute_are_all_in_the_ring() {
        let Some(mut piped) = Piped::or_skip(20) else { return };
        lock(&piped.shard.line).woke = Some(Instant::now());
        std::thread::sleep(POLL_MAX);
        piped.read();
        assert!(!piped.has_others());
        piped.write(21);
        piped.all_end();
    }

    #[test]
    fn a_first_that_hangs_hands_the_others_to_the_ring() {
        let Some(piped) = Piped::or_skip(20) else { return };
        std::thread::sleep(FIRST_MAX + Duration::from_millis(1));
        // As the helper does, whatever the runtime's threads do.
        assert!(piped.shard.glance());
        assert!(!piped.has_others());
        piped.write(20);
        piped.all_end();
    }

    #[test]
    fn announcements_that_do_nothing_are_given_up() {
        let Some(piped) = Piped::or_skip(MISSED_MAX as usize + 20) else { return };
        for ended in 1..=u64::from(MISSED_MAX) {
            std::thread::sleep(2 * ARRIVED_MAX);
            assert!(piped.has_others());
            piped.write(1);
            while lock(&piped.shard.line).places.ended < ended {
                piped.shard.reap(Reap::Surely);
            }
        }
        assert!(!piped.has_others());
        piped.write(20);
        piped.all_end();
    }
}
