//! A queue to the kernel: the slots that a ring has, the line before a full ring, and when entries
//! are submitted.
//!
//! There is one type for all owners. An owner decides who enters the kernel, and who notices
//! completions: a thread that drives a future and sleeps in its ring (`engine/local`), a tokio
//! runtime (`tokio.rs`), an event loop (`loop_ring.rs`), or a watcher. Any thread may submit, reap,
//! and enter the kernel in place of the owner. No lock is held in a system call.
//!
//! Some entries leave early. The kernel holds a submission of many back ("plugged",
//! `io_submit_state_start` in io_uring/io_uring.c, 6.18) until its last entry is prepared; a device
//! that completes its reads in one interrupt idles meanwhile. So the first entry leaves alone, and
//! each later submission carries twice as many and one more: the device works on one while the next
//! is prepared, with few calls and doorbells. On a virtio disk this was level with submissions in
//! pairs, for a tenth less processor time at depth 32 and 128. It was a quarter faster than a single
//! submission at depth 16 and 32.
//!
//! `unsafe` here: both of the ring's queues are used through a shared reference, each under its
//! lock, and a slot's pointer travels through the kernel as user data.

mod announced;
mod enter;
mod line;

use std::mem::ManuallyDrop;
#[cfg(feature = "tokio")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError, Weak};
use std::task::Waker;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Instant;

use crate::sys::{AsFd, BorrowedFd, Errno};

use self::line::Line;
use super::kernel::{self, Kernel, Usage};
use super::{QueueRefusal, pool};
use crate::op::watcher::{self, Glance, Note, NoticedBy, Watched};
use crate::op::{PLACES_MIN, Profile, Slot};
use crate::stats::Count;
use crate::sync::{KernelOrder, lock, locking};
use crate::turn::{self, Notice};

/// A slot that the kernel has finished with, and its result.
type Completion = (Arc<Slot>, Result<usize, Errno>);

/// User data of the poll of a thread's bell. A slot's is its address.
const BELL: u64 = 0;

/// Flag of [`Queue::entered`]: the kernel refuses to be entered.
const DEAD: u32 = 1 << 31;

/// Completions that are settled together.
const BATCH: usize = 32;

/// A ring and the line before it.
pub(super) struct Queue {
    kernel: Box<dyn Kernel>,
    /// Operations in flight that the kernel takes.
    depth: u32,
    /// Place among the rings of its instance or runtime.
    place: usize,
    noticed_by: NoticedBy,
    line: Mutex<Line>,
    /// Held while completions are read.
    reaping: Mutex<()>,
    order: KernelOrder,
    quiet: Condvar,
    note: Note,
    /// Submits staged entries when its thread has nothing else to run; none under a watcher.
    flusher: Mutex<FlushTask>,
    /// Threads in a system call of the ring, and whether it is [`DEAD`].
    entered: AtomicU32,
    /// Slots may be in line, or reads announced. Set, and cleared, by the thread that owns the ring, so
    /// that it need not lock the line to see that there are none.
    has_line: AtomicBool,
    has_announced: AtomicBool,
    /// The ring polls its thread's bell.
    polls_bell: AtomicBool,
    /// No thread is to find it any more. Set before [`Queues`](super::queues::Queues) gives up its
    /// share.
    #[cfg(feature = "tokio")]
    pub(super) retired: AtomicBool,
    /// A glance found that the reactor does not reap, and it has not since.
    pub(super) reactor_is_away: AtomicBool,
    /// The thread that last ran one of its tasks; of interest in a current-thread runtime.
    #[cfg(feature = "tokio")]
    pub(super) driver: AtomicUsize,
}

#[derive(Default)]
enum FlushTask {
    #[default]
    Nobody,
    /// The flusher runs, or was woken, and will look at staged entries.
    Awake,
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    Asleep(Waker),
}

/// How to reap while another thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reap {
    /// Leave it to that thread: the reactor or watcher comes for later completions.
    IfNobodyDoes,
    /// Wait for that thread: it may have looked just before the completion that the caller expects.
    Surely,
}

impl Queue {
    /// Makes one over a ring.
    pub(super) fn new(noticed_by: NoticedBy, place: usize) -> Result<Arc<Queue>, QueueRefusal> {
        let usage = if noticed_by == NoticedBy::Thread { Usage::Owned } else { Usage::Shared };
        Queue::over(kernel::ring(usage)?, noticed_by, place)
    }

    /// Makes one over libaio.
    pub(super) fn libaio(place: usize) -> Result<Arc<Queue>, QueueRefusal> {
        Queue::over(kernel::libaio()?, NoticedBy::Watcher, place)
    }

    fn over(kernel: Box<dyn Kernel>, noticed_by: NoticedBy, place: usize) -> Result<Arc<Queue>, QueueRefusal> {
        let queue = Arc::new(Queue {
            depth: kernel.depth(),
            kernel,
            place,
            noticed_by,
            line: Mutex::default(),
            reaping: Mutex::new(()),
            order: KernelOrder::default(),
            quiet: Condvar::new(),
            note: Note::default(),
            flusher: Mutex::default(),
            entered: AtomicU32::new(0),
            has_line: AtomicBool::new(false),
            has_announced: AtomicBool::new(false),
            polls_bell: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            retired: AtomicBool::new(false),
            reactor_is_away: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            driver: AtomicUsize::new(usize::MAX),
        });
        if noticed_by != NoticedBy::Thread {
            let known: Weak<dyn Watched> = Arc::<Queue>::downgrade(&queue);
            if !watcher::register(known, noticed_by) {
                return Err(QueueRefusal { errno: Errno::MFILE, entries: 0 });
            }
        }
        Ok(queue)
    }

    /// False in a child of the process that made it.
    pub(super) fn is_ours(&self) -> bool {
        self.kernel.is_ours()
    }

    /// Whether a reactor, or an event loop, notices its completions.
    #[cfg(feature = "tokio")]
    pub(super) fn is_in_reactor(&self) -> bool {
        self.noticed_by == NoticedBy::Reactor
    }

    /// Whether threads that know it must look for another.
    pub(super) fn is_retired(&self) -> bool {
        #[cfg(feature = "tokio")]
        return self.retired.load(Acquire);
        #[cfg(not(feature = "tokio"))]
        false
    }

    /// Whether the kernel refuses it by now.
    pub(super) fn is_dead(&self) -> bool {
        self.entered.load(Acquire) & DEAD != 0
    }

    /// Leaves it to a watcher, if that has anything to do: no thread submits to it any more.
    pub(super) fn leave(self: &Arc<Queue>) {
        if self.is_ours() && (self.note.is_watched() || !self.is_quiet()) {
            watcher::leave(self.clone());
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.line().in_flight
    }

    /// Takes a slot. Unless it `enters` the kernel, the owner or the caller submits what is staged.
    pub(super) fn submit(&self, slot: Arc<Slot>, enters: bool) {
        let Profile { is_long, buffered_read, is_excess } = slot.profile();
        let mut line = self.line();
        if self.noticed_by == NoticedBy::Thread && line.staged > line.held {
            // Only now that one more follows: the last entries of a turn are left to the call that
            // waits.
            let staged = line.leaves(self.depth);
            drop(line);
            self.submit_entries(staged);
            line = self.line();
        }
        // Its submission would sleep for a place in the device's queue.
        let waits = is_excess || line.in_flight >= self.depth;
        if waits && (line.in_flight == 0 || slot.is_below(PLACES_MIN)) {
            drop(line);
            // No completion would pass a place on: nothing is in flight, or all of it may hang.
            return pool::hand_on(slot);
        }
        if waits {
            slot.count(Count::Queued);
            line.backlog.push(slot);
            self.has_line.store(true, Relaxed);
            let shed = line.backlog.take_shed();
            drop(line);
            watcher::watch();
            return self.discard(shed);
        }
        line.in_flight += 1;
        let share = Arc::as_ptr(&slot) as u64;
        if buffered_read.is_some_and(|(file, is_announced)| line.announced.takes(share, file, is_announced)) {
            return self.leave_announced(line, slot);
        }
        if let Err(slot) = self.push(&mut line, slot) {
            line.announced.ended(share);
            drop(line);
            return pool::hand_on(slot);
        }
        if self.noticed_by == NoticedBy::Thread {
            // One task may compute for long before the root future is pending.
            let leaving = is_long.then(|| line.leaves(self.depth));
            drop(line);
            if let Some(staged) = leaving {
                self.submit_entries(staged);
            }
            if !watcher::watch() {
                // Nobody else would submit it, or notice that the pool has to make it.
                self.enter();
            }
            return;
        }
        // While the device is busy, an entry waits for others, or until this thread has nothing
        // else to run. That saves system calls, and lets the thread sleep.
        let waits = !is_long && line.staged <= line.held && line.in_flight > line.staged;
        if !waits {
            line.held = (line.held * 2 + 2).min(self.depth);
        }
        let flusher = if waits && enters { self.call_flusher() } else { FlushTask::Nobody };
        drop(line);
        let is_flushed = !matches!(flusher, FlushTask::Nobody);
        // The owner, a runtime's workers or a loop, may be busy elsewhere from now on. With nothing
        // locked: this may start a thread.
        let is_left = self.noticed_by == NoticedBy::Reactor || is_flushed;
        let is_watched = !is_left || watcher::watch();
        if let FlushTask::Asleep(waker) = flusher {
            waker.wake();
        }
        if enters && !is_flushed || !is_watched {
            self.enter();
        }
    }

    /// Calls the flusher, which submits staged entries soon. Returns it, to be woken with nothing
    /// locked.
    fn call_flusher(&self) -> FlushTask {
        let mut flusher = lock(&self.flusher);
        match *flusher {
            FlushTask::Nobody => FlushTask::Nobody,
            FlushTask::Awake | FlushTask::Asleep(_) => std::mem::replace(&mut *flusher, FlushTask::Awake),
        }
    }

    /// Waits until something is staged.
    #[cfg(feature = "tokio")]
    pub(super) fn poll_staged(&self, context: &mut Context<'_>) -> Poll<()> {
        // A waker's clone and drop may run anything: not under a lock.
        let asleep = FlushTask::Asleep(context.waker().clone());
        // In this order, as in `submit`.
        let line = self.line();
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
        let line = self.line();
        *lock(&self.flusher) = FlushTask::Nobody;
        drop(line);
        self.enter();
    }

    /// Stages a slot that has a place (counted in `in_flight`). If the ring cannot serve it, frees
    /// the place and returns the slot, to be handed on with nothing locked.
    fn push(&self, line: &mut Line, slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
        // The share that its user data is, from here on.
        let slot = ManuallyDrop::new(slot);
        self.order.submit();
        // SAFETY: `line` is the lock of this submission queue, and the share lasts until the
        // completion.
        if line.dead || !unsafe { self.kernel.stage(&slot, &mut line.untaken) } {
            // There are as many entries as places, but the kernel frees all entries of a call at
            // its end, and operations that ended before that have been reaped already.
            line.in_flight -= 1;
            return Err(ManuallyDrop::into_inner(slot));
        }
        line.staged += 1;
        Ok(())
    }

    /// Has the ring poll the bell of its thread, until it rings.
    pub(super) fn poll_bell(&self, bell: BorrowedFd<'_>) {
        // Before the entry is there: another thread may submit and reap it at once.
        self.polls_bell.store(true, SeqCst);
        let stage = || {
            let mut line = self.line();
            let line = &mut *line;
            // SAFETY: `line` is the lock of this submission queue.
            let is_staged = !line.dead && unsafe { self.kernel.stage_poll(bell, BELL, &mut line.untaken) };
            line.staged += u32::from(is_staged);
            is_staged
        };
        if stage() {
            return;
        }
        // Slots have all entries.
        self.submit_staged();
        if !stage() {
            self.polls_bell.store(false, SeqCst);
        }
    }

    /// Whether the ring polls the bell.
    pub(super) fn polls_bell(&self) -> bool {
        self.polls_bell.load(SeqCst)
    }

    /// Returns whether something is in flight. The owner does not look if nothing has ended since
    /// the last glance.
    fn glance_at_ended(&self) -> Glance {
        let mut line = self.line();
        if line.is_quiet() {
            line.glanced_at = None;
            return Glance::Quiet;
        }
        let ended = line.ended;
        if line.glanced_at.replace(ended) != Some(ended) {
            return Glance::Busy;
        }
        self.reactor_is_away.store(true, Release);
        Glance::Left
    }

    /// Settles all available completions, and gives their places to slots in line.
    pub(super) fn reap(&self, how: Reap) {
        while self.reap_some(how) {}
    }

    /// Settles a batch of completions. False: there are none, or another thread is reaping.
    fn reap_some(&self, how: Reap) -> bool {
        let mut batch: [Option<Completion>; BATCH] = [const { None }; BATCH];
        let (n, is_full) = match self.collect(how, &mut batch) {
            None | Some((0, _)) => return false,
            Some(found) => found,
        };
        let mut again = 0;
        turn::wakes(n);
        let mut shares = [0; BATCH];
        for (entry, share) in batch[..n].iter_mut().zip(&mut shares) {
            if let Some((slot, result)) = entry.take() {
                *share = Arc::as_ptr(&slot) as u64;
                again += usize::from(self.settle(slot, result));
            }
        }
        let mut line = self.line();
        line.in_flight -= (n - again) as u32;
        line.ended += n as u64;
        // A slot that was submitted meanwhile may lie where one of these did. If that is the first,
        // another becomes an entry early.
        let first = shares[..n].iter().find_map(|share| line.announced.ended(*share));
        line.picked = if how == Reap::Surely { 0 } else { line.picked + 1 };
        let mut refused = Vec::new();
        let mut begins = false;
        if self.noticed_by != NoticedBy::Thread {
            line.woke = Some(Instant::now());
            begins = self.begin_next(&mut line, first, &mut refused);
        }
        self.fill(line, refused);
        // The new first may have ended already. Leave it for the next reap, which the ring's
        // descriptor will trigger. A thread looks again before it sleeps.
        is_full || !begins && self.noticed_by != NoticedBy::Thread && self.kernel.looks_freely()
    }

    /// Settles a slot that the kernel has finished with. True if it keeps its place: the rest of its
    /// transfer goes to the kernel, or the slot was handed on with its place given back.
    fn settle(&self, slot: Arc<Slot>, result: Result<usize, Errno>) -> bool {
        let Some(slot) = pool::settle(slot, result, self.kernel.count()) else { return false };
        // A separate statement, so that the lock is released at its end.
        let pushed = self.push(&mut self.line(), slot);
        pushed.unwrap_or_else(pool::hand_on);
        true
    }

    /// Gives free places to slots in line, submits what is staged, and hands on what was `refused`.
    /// A thread that sleeps in its ring leaves staged entries to that call.
    fn fill(&self, mut line: MutexGuard<'_, Line>, mut refused: Vec<Arc<Slot>>) {
        while line.in_flight < self.depth && line.backlog.len() > 0 {
            let (next, mut excess) = line.next();
            refused.append(&mut excess);
            let Some(slot) = next else { break };
            line.in_flight += 1;
            refused.extend(self.push(&mut line, slot).err());
        }
        let shed = line.backlog.take_shed();
        line.tell_if_quiet(&self.quiet);
        let staged = if self.noticed_by == NoticedBy::Thread { 0 } else { std::mem::take(&mut line.staged) };
        drop(line);
        self.discard(shed);
        refused.into_iter().for_each(pool::hand_on);
        // Last, for it may sleep.
        if staged > 0 {
            self.submit_entries(staged);
        }
    }

    /// Moves completions into `batch`. Returns their number, and whether there may be more; none if
    /// another thread is reaping.
    fn collect(&self, how: Reap, batch: &mut [Option<Completion>]) -> Option<(usize, bool)> {
        locking();
        let _reaping = match (how, self.reaping.try_lock()) {
            (_, Ok(guard)) => guard,
            (_, Err(TryLockError::Poisoned(poisoned))) => poisoned.into_inner(),
            (Reap::IfNobodyDoes, Err(TryLockError::WouldBlock)) => return None,
            (Reap::Surely, Err(TryLockError::WouldBlock)) => lock(&self.reaping),
        };
        let mut n = 0;
        let max = batch.len();
        let mut take = |user_data: u64, result| {
            if user_data == BELL {
                return self.polls_bell.store(false, SeqCst);
            }
            self.order.complete();
            // SAFETY: the user data of every other entry is a share made in `push`, and the kernel
            // posts one completion for it.
            let slot = unsafe { Arc::from_raw(user_data as *const Slot) };
            batch[n] = Some((slot, result));
            n += 1;
        };
        // SAFETY: `reaping` is the lock of this completion queue.
        let looked_at = unsafe { self.kernel.collect(max, &mut take) };
        Some((n, looked_at == max))
    }
}

impl Notice for Queue {
    fn notice(&self) {
        self.submit_staged();
        self.reap_some(Reap::IfNobodyDoes);
    }
}

/// As a queue that no thread owns.
impl Watched for Queue {
    fn noticed_by(&self) -> NoticedBy {
        self.noticed_by
    }

    fn note(&self) -> &Note {
        &self.note
    }

    fn place(&self) -> usize {
        self.place
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn serve(&self) {
        self.enter_late();
        self.submit_staged();
        self.reap(Reap::Surely);
    }

    fn is_quiet(&self) -> bool {
        self.line().is_quiet()
    }

    fn owner_is_away(&self) -> bool {
        self.reactor_is_away.load(Acquire)
    }

    fn waits_for_owner(&self) -> bool {
        match self.noticed_by {
            // A runtime's flusher may not run.
            NoticedBy::Watcher => self.line().staged > 0,
            _ => !self.is_quiet(),
        }
    }

    fn glance(&self) -> Glance {
        let is_busy = self.relieve_line();
        let line = self.line();
        let (is_late, has_others) = (line.announced.is_late(), line.announced.has_others());
        drop(line);
        match self.noticed_by {
            _ if is_late => Glance::Left,
            NoticedBy::Reactor => self.glance_at_ended(),
            NoticedBy::Watcher if self.waits_for_owner() => Glance::Left,
            _ if is_busy || has_others => Glance::Busy,
            _ => Glance::Quiet,
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::op::fixture::{file_of_fd, read_of};

    #[test]
    fn a_place_without_an_entry_gives_the_slot_back() {
        let queue = match Queue::new(NoticedBy::Watcher, 0) {
            Ok(queue) => queue,
            Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
        };
        let file = file_of_fd(std::fs::File::open("/dev/zero").unwrap());
        let slot = || read_of(&file);
        let depth = queue.depth;
        let mut line = lock(&queue.line);
        for _ in 0..depth {
            line.in_flight += 1;
            assert!(queue.push(&mut line, slot()).is_ok());
        }
        // As when all but the new one were reaped while a thread is still in the call that submits
        // them.
        line.in_flight = 1;
        assert!(queue.push(&mut line, slot()).is_err());
        assert_eq!(line.in_flight, 0);
        line.in_flight = depth;
        drop(line);
        queue.drain();
    }

    /// Symptom: no bell woke a thread that slept with as many operations in flight as its ring has
    /// entries.
    #[test]
    fn the_bell_is_polled_though_slots_have_all_entries() {
        let queue = match Queue::new(NoticedBy::Watcher, 0) {
            Ok(queue) => queue,
            Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
        };
        let file = file_of_fd(std::fs::File::open("/dev/zero").unwrap());
        let mut line = lock(&queue.line);
        for _ in 0..queue.depth {
            let slot = read_of(&file);
            line.in_flight += 1;
            assert!(queue.push(&mut line, slot).is_ok());
        }
        drop(line);
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        queue.poll_bell(bell.as_fd());
        assert!(queue.polls_bell());
        queue.drain();
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        queue.reap(Reap::Surely);
        assert!(!queue.polls_bell(), "it has rung");
    }
}
