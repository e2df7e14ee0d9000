//! The queue of a thread that blocks: submit and wait in one system call, no other thread, no lock.
//!
//! [`drive`] polls a future on the caller's thread. What the future submits meanwhile is staged in this thread's own ring
//! (COOP_TASKRUN); when nothing is left to poll, one `io_uring_enter` submits what is staged and waits for the
//! first completion. So many operations in flight cost what a hand-written loop costs.
//!
//! Not all of it waits for that call. A submission of many is held back ("plugged", `io_submit_state_start` in
//! io_uring/io_uring.c, 6.18) until its last entry is prepared, and a device that completes its reads in one interrupt has nothing
//! to do meanwhile. So after each wait the first entry leaves alone, and each submission that follows carries twice as many
//! and one more: the device works on one while the next is prepared, and the calls and doorbells are few. On a virtio disk
//! this was level with submissions in pairs, for a tenth less processor time at depth 32 and 128, and a quarter faster than
//! one submission of all at depth 16 and 32.
//!
//! Where io_uring is refused a context of libaio takes its place, for direct I/O: one `io_submit` for all that is staged,
//! `io_getevents` to wait. Nothing leaves early there: it took an eighth more processor time at depth 32, and more often lost than
//! won (docs/measurements/2026-11-21-direct).
//!
//! A queue is made on first use and kept for the thread. Wakers may be called from anywhere: a thread that sleeps in its queue
//! is woken by an eventfd that the queue polls, one that sleeps elsewhere is unparked, one that is awake finds a flag. It can only
//! sleep in one: while it has something in one queue, the other leaves to the shared engines what comes.
//!
//! A thread that computes, or blocks elsewhere, does not see to its queue. Where others wait for what is in it, a helper does
//! that in its place (`op/help.rs`), and so for what is left there when `drive` returns, or the thread ends: operations
//! that were abandoned, or whose futures were moved to another thread. Hence the lock, which is this thread's but for that.
//!
//! `unsafe` here: pushing entries, whose memory the slots in the table keep alive, and a ring's descriptor.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::libaio::sys as libaio;
use super::pool;
use super::uring::{self, Ring, Untaken, Usage};
use crate::buf::lock;
use crate::op::help::{self, Helped};
use crate::op::{Backlog, PLACES_MIN, STUCK, Slot};
use crate::stats::Count;
use crate::sys::{PerProcess, fork_generation, retry};

/// How long a thread waits for a poll of its own bell, which rings.
const BELL_WAIT_MAX: Duration = Duration::from_secs(1);

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const GETEVENTS: u32 = 1;

/// User data of a queue's own poll of the bell. Slots have their index.
const BELL: u64 = u64::MAX;

struct Local {
    /// `drive` calls under way on this thread.
    depth: Cell<u32>,
    ring: RefCell<State<OwnRing>>,
    aio: RefCell<State<OwnContext>>,
    bell: PerProcess<Arc<Bell>>,
    /// What it submits is for queues that no poll of its is needed for.
    elsewhere: Cell<bool>,
    /// To be called before the thread sleeps, or blocks elsewhere.
    due: Cell<Option<fn()>>,
}

enum State<Q: Queue> {
    New,
    /// A queue cannot be had on this thread; others may serve.
    Refused,
    Ready(Arc<Desk<Q>>),
}

/// A thread's queue, where a helper finds it.
struct Desk<Q: Queue> {
    owned: Mutex<Owned<Q>>,
    /// The process that made it; told without the lock, which a child may find taken for good.
    generation: u64,
    /// Readable when something has completed.
    descriptor: Option<RawFd>,
    /// Help was asked for, and something may be in flight.
    wanted: AtomicBool,
    /// Completions that were taken out and are not settled.
    settling: AtomicUsize,
    /// `Owned::turns` at the helper's last glance.
    glanced_at: AtomicU64,
}

/// A locked queue.
struct Claim<'d, Q: Queue> {
    desk: &'d Desk<Q>,
    owned: Option<MutexGuard<'d, Owned<Q>>>,
}

impl<Q: Queue> Deref for Claim<'_, Q> {
    type Target = Owned<Q>;
    fn deref(&self) -> &Owned<Q> {
        self.owned.as_ref().expect("a claim is given up by its drop")
    }
}

impl<Q: Queue> DerefMut for Claim<'_, Q> {
    fn deref_mut(&mut self) -> &mut Owned<Q> {
        self.owned.as_mut().expect("a claim is given up by its drop")
    }
}

impl<Q: Queue> Drop for Claim<'_, Q> {
    fn drop(&mut self) {
        let Some(mut owned) = self.owned.take() else { return };
        let leaving = owned.take_leaving();
        drop(owned);
        leaving.into_iter().for_each(Leaving::go);
        if self.desk.wanted.load(SeqCst) {
            help::look();
        }
    }
}

impl<Q: Queue> Desk<Q> {
    fn new(bell: Arc<Bell>) -> Option<Arc<Desk<Q>>> {
        let owned = Owned::<Q>::new(bell)?;
        let (descriptor, owned) = (owned.queue.descriptor(), Mutex::new(owned));
        let (wanted, settling, glanced_at) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU64::new(0));
        let desk = Arc::new(Desk { owned, generation: fork_generation(), descriptor, wanted, settling, glanced_at });
        let known: Arc<dyn Helped> = desk.clone();
        help::register(Arc::downgrade(&known));
        Some(desk)
    }

    fn is_ours(&self) -> bool {
        self.generation == fork_generation()
    }

    fn claim(&self) -> Claim<'_, Q> {
        Claim { desk: self, owned: Some(lock(&self.owned)) }
    }

    /// Ends what has completed. What must go to the kernel again is given to `again`.
    fn settle(&self, completions: &mut Vec<Completion>, mut again: impl FnMut(Arc<Slot>)) {
        let n = completions.len();
        for (slot, result) in completions.drain(..) {
            if let Some(slot) = pool::settle(slot, result, Q::SERVED) {
                again(slot);
            }
        }
        self.settling.fetch_sub(n, SeqCst);
    }

    /// The thread ends.
    fn leave(self: Arc<Self>) {
        let until = Instant::now() + BELL_WAIT_MAX;
        let mut owned = self.claim();
        if owned.bell_polled {
            owned.bell.write();
        }
        while owned.bell_polled && !owned.dead {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            owned.enter(1, Some(left));
        }
        owned.submit();
        let mut completions = self.take_completions(&mut owned);
        let is_busy = owned.is_busy();
        drop(owned);
        self.settle(&mut completions, pool::hand_on);
        if is_busy {
            help::keep(self);
        }
    }

    fn take_completions(&self, owned: &mut Owned<Q>) -> Vec<Completion> {
        self.settling.fetch_add(owned.completions.len(), SeqCst);
        std::mem::take(&mut owned.completions)
    }
}

impl<Q: Queue> Helped for Desk<Q> {
    fn want(&self) -> bool {
        !self.wanted.swap(true, SeqCst)
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    fn glance(&self) -> bool {
        // At work in there.
        let Ok(mut owned) = self.owned.try_lock() else { return true };
        owned.relieve_line();
        let leaving = owned.take_leaving();
        let busy = owned.is_busy() || self.settling.load(SeqCst) > 0;
        if busy && self.glanced_at.swap(owned.turns, SeqCst) == owned.turns {
            self.wanted.store(true, SeqCst);
        }
        drop(owned);
        leaving.into_iter().for_each(Leaving::go);
        busy
    }

    fn help(&self) -> help::State {
        let mut owned = match self.owned.try_lock() {
            Ok(owned) => owned,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return help::State::Inside,
        };
        owned.reap_as(false, 0, None);
        owned.fill();
        let mut completions = self.take_completions(&mut owned);
        let leaving = owned.take_leaving();
        let state = match (owned.is_busy() || self.settling.load(SeqCst) > 0, completions.is_empty()) {
            (false, _) => {
                self.wanted.store(false, SeqCst);
                help::State::Quiet
            }
            (true, false) => help::State::Progress,
            (true, true) => help::State::Waits,
        };
        drop(owned);
        leaving.into_iter().for_each(Leaving::go);
        // Not staged here: its thread may be asleep in there by now.
        self.settle(&mut completions, pool::hand_on);
        state
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue's, which is open as long as the queue, and that as long as this.
        self.descriptor.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

/// A slot that the kernel is through with, and its answer.
type Completion = (Arc<Slot>, Result<usize, Errno>);

thread_local!(static LOCAL: Local = const {
    Local {
        depth: Cell::new(0),
        ring: RefCell::new(State::New),
        aio: RefCell::new(State::New),
        bell: PerProcess::new(),
        elsewhere: Cell::new(false),
        due: Cell::new(None),
    }
});

/// What a thread submits to and reaps alone.
trait Queue: Sized + Send + 'static {
    type Entry;
    /// How what completes here is counted.
    const SERVED: Count;
    /// The first of many leave early; see the module's text.
    const LEAVES_EARLY: bool;

    /// None when it cannot be had, or cannot poll a bell.
    fn set_up(bell: &OwnedFd) -> Option<Self>;
    /// False in a child of the process that made it.
    fn is_ours(&self) -> bool;
    /// Operations that it takes.
    fn depth(&self) -> u32;
    /// Readable when something has completed, if there is such a descriptor.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
    /// Writes a slot's request down. None: the pool is the better choice.
    fn encode(&self, slot: &Arc<Slot>) -> Option<Self::Entry>;
    fn poll(bell: BorrowedFd<'_>) -> Self::Entry;

    /// Stages an entry. False when what is staged must be submitted first.
    ///
    /// # Safety
    /// What the entry names, memory and descriptor, stays until its completion, or until it is taken back.
    unsafe fn push(&mut self, entry: &Self::Entry, user_data: u64) -> bool;
    /// Submits what is staged without waiting. False when the kernel will not be entered again.
    fn submit(&mut self) -> bool;
    /// Submits what is staged and waits for `want` completions, or until its patience ends, or for less. False as above.
    fn wait(&mut self, want: usize, patience: Option<Duration>) -> bool;
    /// Gives all completions that are there.
    fn reap(&mut self, each: impl FnMut(u64, Result<usize, Errno>));
    /// Takes back what the kernel has not taken and never will.
    fn take_back(&mut self) -> VecDeque<u64>;

    /// This thread's queue of this kind.
    fn mine(local: &Local) -> &RefCell<State<Self>>;
    /// There is nothing in this thread's queue of the other kind.
    fn is_alone(local: &Local) -> bool;
}

struct Owned<Q: Queue> {
    queue: Q,
    /// What the kernel has, by user data. The shares here keep memory and descriptors alive until the completions come.
    slots: Vec<Option<Arc<Slot>>>,
    free: Vec<u32>,
    backlog: Backlog,
    /// Entries staged since the last submission.
    staged: usize,
    /// How many may be before they are submitted; see the module's text.
    submit_at: usize,
    /// The kernel refuses to be entered.
    dead: bool,
    /// How often the thread was in here.
    turns: u64,
    /// Completions so far.
    ended: u64,
    bell: Arc<Bell>,
    bell_polled: bool,
    /// Slots for the pool, once nothing is locked.
    for_pool: Vec<Arc<Slot>>,
    /// Kept between turns for its capacity.
    completions: Vec<Completion>,
}

/// Stages a slot in this thread's ring. Gives it back when this thread does not drive one.
pub(crate) fn stage(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    stage_in::<OwnRing>(slot)
}

/// Stages a slot in this thread's context of libaio. Gives it back when this thread does not drive one.
pub(crate) fn stage_direct(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    stage_in::<OwnContext>(slot)
}

fn stage_in<Q: Queue>(slot: Arc<Slot>) -> Result<(), Arc<Slot>> {
    let mut slot = Some(slot);
    let _ = LOCAL.try_with(|local| {
        if local.depth.get() > 0 && Q::is_alone(local) {
            if let Some(mut owned) = Q::mine(local).borrow_mut().make(&local.bell).filter(|owned| !owned.dead) {
                owned.turns += 1;
                slot.take().into_iter().for_each(|slot| owned.accept(slot));
                help::watch();
            }
        }
    });
    slot.map_or(Ok(()), Err)
}

/// Slots that are not a queue's any more. Either way a user's code may run: with nothing borrowed.
struct Leaving {
    for_pool: Vec<Arc<Slot>>,
    shed: Vec<Arc<Slot>>,
}

impl Leaving {
    fn go(self) {
        self.for_pool.into_iter().for_each(pool::hand_on);
        pool::discard(self.shed);
    }
}

impl<Q: Queue> State<Q> {
    /// The queue, made if there is none.
    fn make(&mut self, bell: &PerProcess<Arc<Bell>>) -> Option<Claim<'_, Q>> {
        // The parent's is of no use to a child.
        if matches!(self, State::New) || matches!(self, State::Ready(desk) if !desk.is_ours()) {
            *self = Desk::new(bell.get(Bell::new).clone()).map_or(State::Refused, State::Ready);
        }
        self.get()
    }

    /// The queue, if there is one.
    fn get(&self) -> Option<Claim<'_, Q>> {
        match self {
            State::Ready(desk) if desk.is_ours() => Some(desk.claim()),
            _ => None,
        }
    }

    fn is_idle(&self) -> bool {
        self.get().is_none_or(|owned| owned.in_flight() == 0)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        fn leave<Q: Queue>(state: &mut State<Q>) {
            if let State::Ready(desk) = std::mem::replace(state, State::Refused) {
                if desk.is_ours() {
                    desk.leave();
                } else {
                    // The parent's.
                    std::mem::forget(desk);
                }
            }
        }
        leave(self.ring.get_mut());
        leave(self.aio.get_mut());
    }
}

impl<Q: Queue> Owned<Q> {
    fn new(bell: Arc<Bell>) -> Option<Owned<Q>> {
        let queue = Q::set_up(bell.descriptor()?)?;
        let depth = queue.depth();
        Some(Owned {
            queue,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: Backlog::default(),
            staged: 0,
            submit_at: 1,
            dead: false,
            turns: 1,
            ended: 0,
            bell,
            bell_polled: false,
            for_pool: Vec::new(),
            completions: Vec::with_capacity(depth as usize),
        })
    }

    /// Takes the slots that leave the queue, to be let go with nothing locked.
    fn take_leaving(&mut self) -> Option<Leaving> {
        if self.for_pool.is_empty() && !self.backlog.has_shed() {
            return None;
        }
        let shed = self.backlog.take_shed();
        self.backlog.discarded(shed.len());
        Some(Leaving { for_pool: std::mem::take(&mut self.for_pool), shed })
    }

    fn accept(&mut self, slot: Arc<Slot>) {
        if self.dead {
            self.for_pool.push(slot);
        } else if self.free.is_empty() && slot.is_below(PLACES_MIN) {
            // What has the places may never end.
            self.for_pool.push(slot);
        } else if self.free.is_empty() {
            slot.count(Count::Queued);
            self.backlog.push(slot);
        } else {
            self.push(slot);
        }
    }

    /// Gives a slot a place and stages its entry. There is a free place.
    fn push(&mut self, slot: Arc<Slot>) {
        let Some(entry) = self.queue.encode(&slot) else { return self.for_pool.push(slot) };
        let Some(place) = self.free.pop() else { return self.backlog.push(slot) };
        // Only now that there is one more: the last ones of a turn are left to the call that waits.
        if Q::LEAVES_EARLY && self.staged >= self.submit_at {
            self.submit();
        }
        if self.dead {
            self.free.push(place);
            return self.for_pool.push(slot);
        }
        self.slots[place as usize] = Some(slot);
        self.push_entry(&entry, u64::from(place));
    }

    fn push_entry(&mut self, entry: &Q::Entry, user_data: u64) {
        // One more entry than places can be staged: the bell's. The queue is flushed when it is full.
        // SAFETY: the entry's memory belongs to a slot that stays in `slots` until its completion (the bell's entry
        // has none), and its descriptor to the slot's handle.
        while !unsafe { self.queue.push(entry, user_data) } {
            self.submit();
            if self.dead {
                return self.hand_on(user_data);
            }
        }
        self.staged += 1;
    }

    /// The pool gets a slot that the kernel never does.
    fn hand_on(&mut self, user_data: u64) {
        if let Some(slot) = self.slots.get_mut(user_data as usize).and_then(Option::take) {
            self.free.push(user_data as u32);
            self.for_pool.push(slot);
        }
    }

    /// The kernel refuses to be entered: what it has not taken goes to the pool, and all that follows.
    fn give_up(&mut self) {
        self.dead = true;
        for user_data in self.queue.take_back() {
            self.hand_on(user_data);
        }
        while let Some(slot) = self.backlog.pop() {
            self.for_pool.push(slot);
        }
    }

    /// Submits what is staged without waiting. What a failed call leaves goes with the next one.
    fn submit(&mut self) {
        if !self.queue.submit() {
            return self.give_up();
        }
        self.staged = 0;
        self.submit_at = (self.submit_at * 2 + 1).min(self.slots.len());
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_busy(&self) -> bool {
        self.in_flight() > 0 || self.backlog.len() > 0
    }

    /// Gives the places that are free to those in line, which came before whatever the woken will submit.
    fn fill(&mut self) {
        while !self.free.is_empty() {
            let Some(slot) = self.backlog.pop() else { break };
            self.push(slot);
        }
    }

    /// Has the pool do what is in line, if nothing ends here.
    fn relieve_line(&mut self) {
        if self.backlog.len() > 0 {
            let stuck = self.backlog.take_stuck(self.ended, Instant::now());
            self.backlog.discarded(stuck.len());
            self.for_pool.extend(stuck);
        }
    }

    fn poll_bell(&mut self) {
        if !self.bell_polled {
            if let Some(fd) = self.bell.descriptor() {
                let entry = Q::poll(fd.as_fd());
                self.push_entry(&entry, BELL);
                self.bell_polled = true;
            }
        }
    }

    /// Submits what is staged, waits for `want` completions, and moves those that are there into `completions`.
    fn enter(&mut self, want: usize, patience: Option<Duration>) {
        self.turns += 1;
        self.reap_as(true, want, patience);
    }

    fn reap_as(&mut self, is_owner: bool, want: usize, patience: Option<Duration>) {
        self.staged = 0;
        self.submit_at = 1;
        if !self.queue.wait(want, patience) {
            self.give_up();
            // What the kernel has is lost with the queue. Do not burn the processor over it.
            std::thread::sleep(Duration::from_millis(1));
        }
        let Owned { queue, slots, free, completions, bell, bell_polled, ended, .. } = self;
        queue.reap(|user_data, result| {
            if user_data == BELL {
                *bell_polled = false;
                // Not by a helper: the thread may be about to look at it, for another queue.
                if is_owner {
                    bell.clear();
                }
            } else if let Some(slot) = slots.get_mut(user_data as usize).and_then(Option::take) {
                free.push(user_data as u32);
                *ended += 1;
                completions.push((slot, result));
            }
        });
    }
}

impl<Q: Queue> Drop for Owned<Q> {
    /// Nothing is in flight, or this is a child's copy.
    fn drop(&mut self) {
        // What the kernel still has must stay allocated for good.
        self.slots.drain(..).flatten().for_each(std::mem::forget);
        if !self.queue.is_ours() {
            // The parent's, and what they hold: its locks.
            std::mem::forget(std::mem::take(&mut self.backlog));
            std::mem::forget(std::mem::take(&mut self.for_pool));
            std::mem::forget(std::mem::take(&mut self.completions));
        }
    }
}

/// A ring, and the user data of the entries that the kernel has not taken.
struct OwnRing {
    ring: Ring,
    untaken: Untaken<u64>,
}

impl Queue for OwnRing {
    type Entry = io_uring::squeue::Entry;
    const SERVED: Count = Count::Ring;
    const LEAVES_EARLY: bool = true;

    fn set_up(_: &OwnedFd) -> Option<OwnRing> {
        Some(OwnRing { ring: uring::set_up(Usage::Owned).ok()?, untaken: Untaken::default() })
    }

    fn is_ours(&self) -> bool {
        self.ring.is_ours()
    }

    fn depth(&self) -> u32 {
        self.ring.depth
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.ring.ring.as_raw_fd())
    }

    fn encode(&self, slot: &Arc<Slot>) -> Option<Self::Entry> {
        self.ring.encode(slot)
    }

    fn poll(bell: BorrowedFd<'_>) -> Self::Entry {
        opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), libc::POLLIN as u32).build()
    }

    unsafe fn push(&mut self, entry: &Self::Entry, user_data: u64) -> bool {
        let entry = entry.clone().user_data(user_data);
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.ring.submission().push(&entry) }.is_ok();
        if pushed {
            self.untaken.push(user_data, self.ring.ring.submission().len());
        }
        pushed
    }

    fn submit(&mut self) -> bool {
        let staged = self.ring.ring.submission().len() as u32;
        // With GETEVENTS, so that completions which came meanwhile are worked on now and not all at the end.
        // SAFETY: no argument is passed, so there is none to be wrong; the staged entries keep `push`'s promise.
        let result = unsafe { self.ring.ring.submitter().enter::<()>(staged, 0, GETEVENTS, None) };
        !result.is_err_and(|error| uring::is_lasting(&error))
    }

    fn wait(&mut self, want: usize, patience: Option<Duration>) -> bool {
        let result = match patience {
            None => self.ring.ring.submit_and_wait(want),
            Some(patience) => {
                let timeout = types::Timespec::from(patience);
                self.ring.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        // Interrupted or timed out, or the kernel wants completions to be reaped first: the caller goes round.
        !result.is_err_and(|error| uring::is_lasting(&error))
    }

    fn reap(&mut self, mut each: impl FnMut(u64, Result<usize, Errno>)) {
        for entry in self.ring.ring.completion() {
            each(entry.user_data(), uring::decode(&entry));
        }
    }

    fn take_back(&mut self) -> VecDeque<u64> {
        let length = self.ring.ring.submission().len();
        self.untaken.take(length)
    }

    fn mine(local: &Local) -> &RefCell<State<Self>> {
        &local.ring
    }

    fn is_alone(local: &Local) -> bool {
        local.aio.borrow().is_idle()
    }
}

/// A context of libaio.
struct OwnContext {
    context: libaio::Context,
    /// What the kernel has not taken.
    staged: Vec<libaio::Entry>,
    /// User data of what it refused.
    refused: Vec<u64>,
    /// Operations that the kernel has: those whose events have not been read.
    in_kernel: usize,
    /// And it polls the bell.
    polling: bool,
    events: Vec<libaio::Event>,
}

impl OwnContext {
    fn take_events(&mut self, want: usize, patience: Option<Duration>) -> Result<(), Errno> {
        let before = self.events.len();
        let result = self.context.wait(want, patience, &mut self.events);
        let (polls, operations) = count(self.events[before..].iter().map(libaio::Event::user_data));
        self.in_kernel -= operations;
        self.polling &= polls == 0;
        result
    }
}

/// How many of these are the bell's, and how many are operations.
fn count(user_data: impl Iterator<Item = u64>) -> (usize, usize) {
    user_data.fold((0, 0), |(polls, operations), user_data| match user_data {
        BELL => (polls + 1, operations),
        _ => (polls, operations + 1),
    })
}

impl Queue for OwnContext {
    type Entry = libaio::Entry;
    const SERVED: Count = Count::Aio;
    const LEAVES_EARLY: bool = false;

    fn set_up(bell: &OwnedFd) -> Option<OwnContext> {
        let context = libaio::Context::set_up().ok()?;
        let (staged, refused) = (Vec::new(), Vec::new());
        let events = Vec::with_capacity(libaio::DEPTH as usize + 1);
        let mut queue = OwnContext { context, staged, refused, in_kernel: 0, polling: false, events };
        // Tried once with a bell that rings: not every kernel lets a context poll.
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        // SAFETY: the entry names no memory, and the descriptor outlives the call, by whose end it has completed.
        unsafe { queue.push(&Self::poll(bell.as_fd()), BELL) };
        queue.submit();
        let taken = queue.refused.is_empty() && queue.staged.is_empty();
        let polls = taken && retry(|| queue.take_events(1, Some(BELL_WAIT_MAX))).is_ok() && !queue.polling;
        let _ = rustix::io::read(bell, &mut [0; 8]);
        queue.events.clear();
        polls.then_some(queue)
    }

    fn is_ours(&self) -> bool {
        self.context.is_ours()
    }

    fn depth(&self) -> u32 {
        libaio::DEPTH
    }

    fn encode(&self, slot: &Arc<Slot>) -> Option<Self::Entry> {
        libaio::Entry::of(slot)
    }

    fn poll(bell: BorrowedFd<'_>) -> Self::Entry {
        libaio::Entry::poll(bell)
    }

    unsafe fn push(&mut self, entry: &Self::Entry, user_data: u64) -> bool {
        self.staged.push(entry.with(user_data));
        true
    }

    /// What is refused is the pool's: its plain call can do it, or gives the errno that counts. So is all, one by one, under a
    /// filter that came late.
    fn submit(&mut self) -> bool {
        let mut done = 0;
        while let Some(entries) = self.staged.get_mut(done..).filter(|entries| !entries.is_empty()) {
            // SAFETY: `push`'s caller vouches for what the entries name.
            match unsafe { self.context.submit(entries) } {
                Ok(taken @ 1..) => {
                    let (polls, operations) = count(entries[..taken].iter().map(libaio::Entry::user_data));
                    done += taken;
                    self.in_kernel += operations;
                    self.polling |= polls > 0;
                }
                // Memory is short, or places are: until something completes.
                Err(Errno::AGAIN) if self.in_kernel > 0 => break,
                _ => {
                    self.refused.push(entries[0].user_data());
                    done += 1;
                }
            }
        }
        self.staged.drain(..done);
        true
    }

    fn wait(&mut self, want: usize, patience: Option<Duration>) -> bool {
        /// How soon what the kernel had no room for is tried again, the bell perhaps.
        const AGAIN: Duration = Duration::from_millis(1);
        self.submit();
        let want = if self.refused.is_empty() { want } else { 0 };
        let patience = if self.staged.is_empty() { patience } else { Some(AGAIN) };
        matches!(self.take_events(want, patience), Ok(()) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM))
    }

    fn reap(&mut self, mut each: impl FnMut(u64, Result<usize, Errno>)) {
        self.refused.drain(..).for_each(|user_data| each(user_data, Err(Errno::CANCELED)));
        self.events.drain(..).for_each(|event| each(event.user_data(), event.result()));
    }

    fn take_back(&mut self) -> VecDeque<u64> {
        self.staged.drain(..).map(|entry| entry.user_data()).chain(self.refused.drain(..)).collect()
    }

    fn mine(local: &Local) -> &RefCell<State<Self>> {
        &local.aio
    }

    fn is_alone(local: &Local) -> bool {
        local.ring.borrow().is_idle()
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        // One that has something in flight is left as it is: to destroy it would be to wait.
        if self.in_kernel == 0 && !self.polling {
            self.context.retire();
        }
    }
}

/// Runs a future to its end on this thread; see the module's text.
pub(crate) fn drive<F: Future>(future: F) -> F::Output {
    // Inside a tokio task its budget may be used up, and tokio wakes whom it turned away when the task ends: after us.
    #[cfg(feature = "tokio")]
    let future = tokio::task::coop::unconstrained(future);
    // Before the future, which is dropped first: what it leaves behind is not wanted any more.
    let driving = Driving::new();
    let mut future = pin!(future);
    let notice = Arc::new(Notice { notified: AtomicBool::new(false), bell: driving.bell.clone() });
    let waker = Waker::from(notice.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        turn(&notice);
        // Reading it, too: what the waker wrote before is seen by the poll that follows.
        notice.notified.swap(false, SeqCst);
    }
}

/// This thread polls a future of somebody who waits.
pub(crate) fn is_driving() -> bool {
    LOCAL.try_with(|local| local.depth.get() > 0).unwrap_or(false)
}

/// Does something as if this thread drove nothing, and worked for no runtime: what is submitted meanwhile is for queues that
/// end it whatever this thread does.
pub(crate) fn elsewhere<T>(something: impl FnOnce() -> T) -> T {
    struct Back(u32, bool);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = LOCAL.try_with(|local| (local.depth.set(self.0), local.elsewhere.set(self.1)));
        }
    }
    let before = LOCAL.try_with(|local| (local.depth.replace(0), local.elsewhere.replace(true)));
    let _back = before.map(|(depth, elsewhere)| Back(depth, elsewhere)).ok();
    something()
}

/// What this thread submits is not for its runtime's rings.
#[cfg(feature = "tokio")]
pub(crate) fn is_elsewhere() -> bool {
    LOCAL.try_with(|local| local.elsewhere.get()).unwrap_or(true)
}

/// Has `work` called, once, before this thread, which drives something, sleeps or blocks elsewhere. There is one kind of such work.
pub(crate) fn before_sleep(work: fn()) {
    let _ = LOCAL.try_with(|local| local.due.set(Some(work)));
}

/// Does what was put off. What is staged goes first: the device works on it meanwhile.
pub(crate) fn do_what_is_due() {
    let Some(work) = LOCAL.try_with(|local| local.due.take()).unwrap_or(None) else { return };
    submit_own::<OwnRing>(|owned| owned.staged > 0);
    submit_own::<OwnContext>(|owned| owned.staged > 0);
    work();
}

/// This thread drives its ring while this lives, which covers a future that panics.
struct Driving {
    bell: Arc<Bell>,
}

impl Driving {
    fn new() -> Driving {
        let bell = LOCAL.try_with(|local| {
            local.depth.set(local.depth.get() + 1);
            local.bell.get(Bell::new).clone()
        });
        Driving { bell: bell.unwrap_or_else(|_| Bell::new()) }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let last = LOCAL.try_with(|local| local.depth.get() == 1).unwrap_or(false);
        if last {
            do_what_is_due();
            leave_to_helper::<OwnRing>();
            leave_to_helper::<OwnContext>();
        }
        let _ = LOCAL.try_with(|local| local.depth.set(local.depth.get() - 1));
    }
}

/// What is left in this thread's queue ends without it.
fn leave_to_helper<Q: Queue>() {
    let _ = LOCAL.try_with(|local| {
        let state = Q::mine(local).borrow();
        if let Some(owned) = state.get().filter(|owned| owned.is_busy()) {
            // Its claim tells the helper when it is given up.
            owned.desk.want();
        }
    });
}

/// The future is pending: waits until something may have changed.
fn turn(notice: &Notice) {
    do_what_is_due();
    if sleep_in::<OwnRing>(notice) || sleep_in::<OwnContext>(notice) {
        return;
    }
    while notice.falls_asleep(PARKED) {
        std::thread::park();
        notice.bell.sleep.store(AWAKE, SeqCst);
    }
}

/// Waits in this thread's queue until something may have changed. False when it has nothing in flight.
fn sleep_in<Q: Queue>(notice: &Notice) -> bool {
    enter::<Q>(|owned| {
        (owned.in_flight() > 0).then(|| {
            owned.poll_bell();
            if notice.falls_asleep(IN_QUEUE) { 1 } else { 0 }
        })
    })
}

/// Waits until nothing is in flight in this thread's queues, abandoned operations included.
pub(crate) fn drain() {
    do_what_is_due();
    while enter::<OwnRing>(|owned| (owned.in_flight() > 0).then_some(1))
        || enter::<OwnContext>(|owned| (owned.in_flight() > 0).then_some(1))
    {}
}

/// Submits everything that is staged on this thread without waiting, before it blocks in another call.
pub(crate) fn flush() {
    do_what_is_due();
    submit_own::<OwnRing>(|_| true);
    submit_own::<OwnContext>(|_| true);
}

fn submit_own<Q: Queue>(needs: impl FnOnce(&Owned<Q>) -> bool) {
    let _ = LOCAL.try_with(|local| {
        if local.depth.get() > 0 {
            if let Ok(state) = Q::mine(local).try_borrow() {
                if let Some(mut owned) = state.get().filter(|owned| needs(owned)) {
                    owned.submit();
                }
            }
        }
    });
}

/// Enters this thread's queue, if there is one and `want` says for how many completions; then settles what has completed.
/// Wakers run when nothing here is borrowed: they may do anything, this included.
fn enter<Q: Queue>(want: impl FnOnce(&mut Owned<Q>) -> Option<usize>) -> bool {
    LOCAL
        .try_with(|local| {
            let (desk, mut completions) = {
                let state = Q::mine(local).borrow();
                let State::Ready(desk) = &*state else { return false };
                let Some(mut owned) = state.get() else { return false };
                let Some(want) = want(&mut owned) else { return false };
                // What is in line is not to wait for what never ends.
                let patience = (owned.backlog.len() > 0).then_some(STUCK);
                owned.enter(want, patience);
                owned.relieve_line();
                owned.bell.sleep.store(AWAKE, SeqCst);
                owned.fill();
                (desk.clone(), desk.take_completions(&mut owned))
            };
            desk.settle(&mut completions, |again| desk.claim().accept(again));
            let mut owned = desk.claim();
            if owned.completions.capacity() == 0 {
                owned.completions = completions;
            }
            true
        })
        .unwrap_or(false)
}

const AWAKE: u8 = 0;
const IN_QUEUE: u8 = 1;
const PARKED: u8 = 2;

/// How a thread is woken, wherever it sleeps. One per thread.
struct Bell {
    sleep: AtomicU8,
    eventfd: Option<OwnedFd>,
    thread: Thread,
}

impl Bell {
    fn new() -> Arc<Bell> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Arc::new(Bell { sleep: AtomicU8::new(AWAKE), eventfd, thread: std::thread::current() })
    }

    fn descriptor(&self) -> Option<&OwnedFd> {
        self.eventfd.as_ref()
    }

    fn ring(&self) {
        match self.sleep.load(SeqCst) {
            IN_QUEUE => self.write(),
            PARKED => self.thread.unpark(),
            _ => {}
        }
    }

    fn write(&self) {
        // The counter is far from full, and a bell that rings already need not ring again.
        let _ = self.descriptor().map(|fd| rustix::io::write(fd, &1u64.to_ne_bytes()));
    }

    fn clear(&self) {
        if let Some(fd) = self.descriptor() {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}

/// The waker of one `drive`.
struct Notice {
    notified: AtomicBool,
    bell: Arc<Bell>,
}

impl Notice {
    /// Announces the sleep, then looks at the flag; a waker sets the flag, then looks for a sleeper. One of them sees the other.
    fn falls_asleep(&self, how: u8) -> bool {
        self.bell.sleep.store(how, SeqCst);
        let sleeps = !self.notified.load(SeqCst);
        if !sleeps {
            self.bell.sleep.store(AWAKE, SeqCst);
        }
        sleeps
    }
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.notified.swap(true, SeqCst) {
            self.bell.ring();
        }
    }
}
