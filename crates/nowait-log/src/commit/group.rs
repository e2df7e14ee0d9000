//! Waiters of one block: threads that sleep, futures, and callbacks.

use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::calls::Callback;
use super::sync::{AtomicBool, AtomicU32, Mutex, Ordering, Word, fence, lock};
use crate::os;
use nowait::Buf;

const PENDING: u32 = 0;
/// One of the sleeping threads must write the next block.
const LEAD: u32 = 1;
const DURABLE: u32 = 2;
const FAILED: u32 = 3;

/// Fate of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Durable,
    Failed,
}

/// Waiters for one block to become durable.
pub(crate) struct Group {
    word: Word,
    /// Sleeping threads that are not appointed to lead. Changes with the state locked.
    sleepers: AtomicU32,
    /// Threads that sleep or are about to: if there are none, no wake-up is needed.
    asleep: AtomicU32,
    /// Futures and callbacks: waiters that cannot write the block. Changes with `waiting` locked. A
    /// thread that locks the state after the waiter has locked it sees the change.
    idle: AtomicU32,
    /// The log's own thread writes the block, or passes it on: its waiters only wait. Changes with
    /// the state locked.
    is_served: AtomicBool,
    ended: OnceLock<Instant>,
    waiting: Mutex<Waiting>,
    /// Bytes of the block, from sealing to completion.
    sealed: std::sync::Mutex<Option<Arc<Buf>>>,
}

/// Futures and callbacks to notify once the group has ended.
#[derive(Default)]
struct Waiting {
    wakers: Vec<Option<Waker>>,
    /// Number of wakers that were taken.
    woken: usize,
    callbacks: Vec<(u64, Callback)>,
}

impl Group {
    pub(crate) fn new() -> Arc<Group> {
        Arc::new(Group {
            word: Word::new(PENDING),
            sleepers: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            is_served: AtomicBool::new(false),
            ended: OnceLock::new(),
            waiting: Mutex::default(),
            sealed: std::sync::Mutex::default(),
        })
    }

    /// Stores the bytes of the block while it is in flight.
    pub(crate) fn set_sealed(&self, bytes: Arc<Buf>) {
        *os::lock(&self.sealed) = Some(bytes);
    }

    /// Bytes of the block, from sealing until [`Group::take_sealed`].
    pub(crate) fn sealed(&self) -> Option<Arc<Buf>> {
        os::lock(&self.sealed).clone()
    }

    /// Takes the bytes of the block, when no further write needs them or they have another owner.
    pub(crate) fn take_sealed(&self) -> Option<Arc<Buf>> {
        os::lock(&self.sealed).take()
    }

    /// Fate of the block; None while it is pending.
    pub(crate) fn fate(&self) -> Option<Fate> {
        match self.word.0.load(Ordering::Acquire) {
            DURABLE => Some(Fate::Durable),
            FAILED => Some(Fate::Failed),
            _ => None,
        }
    }

    /// Time since the group ended; zero if it has not.
    pub(crate) fn since_end(&self) -> Duration {
        self.ended.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Counts a thread that is about to sleep; returns the previous number. The state is locked
    /// here and where a leader is chosen, so the choice misses no sleeper.
    pub(crate) fn announce_sleeper(&self) -> u32 {
        self.sleepers.fetch_add(1, Ordering::Relaxed)
    }

    /// Undoes [`Group::announce_sleeper`] for a thread that woke without being appointed. The state
    /// is locked.
    pub(crate) fn retract_sleeper(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Leaves the block to the log's own thread. The state is locked.
    pub(crate) fn serve(&self) {
        self.is_served.store(true, Ordering::Relaxed);
    }

    /// True if the block was left to the log's own thread. A waiter that has appended sees it.
    pub(crate) fn is_served(&self) -> bool {
        self.is_served.load(Ordering::Relaxed)
    }

    /// Number of threads that sleep or are about to.
    pub(crate) fn asleep(&self) -> u32 {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Number of threads that sleep, futures and callbacks.
    pub(crate) fn waiters(&self) -> u32 {
        self.asleep() + self.idle.load(Ordering::Relaxed)
    }

    /// Number of futures and callbacks.
    pub(crate) fn idle_waiters(&self) -> u32 {
        self.idle.load(Ordering::Relaxed)
    }

    /// True while a future or a callback waits.
    pub(crate) fn has_idle_waiters(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > 0
    }

    /// Sleeps until the group ends or one of its threads is to lead, `time` at most. May return
    /// early.
    pub(crate) fn sleep(&self, time: Option<Duration>) {
        // `asleep` is raised before the word is read, and the waker changes the word before it
        // reads `asleep`: so at least one of the two sees the other's change.
        self.asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.word.sleep_while(PENDING, time);
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    /// Appoints one of the sleepers to write the next block; false if one is appointed already. The
    /// state is locked; [`Group::wake_leader`] follows when it is not.
    pub(crate) fn appoint(&self) -> bool {
        let appointed = self.word.0.compare_exchange(PENDING, LEAD, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if appointed {
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        appointed
    }

    /// Takes the appointment, if there is one. The state is locked.
    pub(crate) fn accept(&self) -> bool {
        self.word.0.compare_exchange(LEAD, PENDING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn wake_leader(&self) {
        self.wake(1);
    }

    fn wake(&self, threads: u32) {
        // `asleep` is read after the word was changed: see `sleep`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.word.wake(threads);
        }
    }

    /// Ends the group and wakes its sleeping threads; [`Group::next_waker`] and
    /// [`Group::take_callbacks`] return the other waiters. May be called again, to wake threads
    /// that a stalled first caller has not.
    pub(crate) fn end(&self, fate: Fate) {
        // A group ends once.
        let _ = self.ended.set(Instant::now());
        let word = match fate {
            Fate::Durable => DURABLE,
            Fate::Failed => FAILED,
        };
        let waiting = lock(&self.waiting);
        // A swap, since another thread may accept an appointment at the same time: the end must
        // overwrite the result of that exchange.
        self.word.0.swap(word, Ordering::Release);
        drop(waiting);
        self.wake(u32::MAX >> 1);
    }

    /// Takes the waker of the next future, in order of registration. The group has ended. One at a
    /// time, so that another thread can wake the rest if this thread stalls.
    pub(crate) fn next_waker(&self) -> Option<Waker> {
        let mut waiting = lock(&self.waiting);
        loop {
            let next = waiting.woken;
            let waker = waiting.wakers.get_mut(next)?.take();
            waiting.woken += 1;
            if waker.is_some() {
                return waker;
            }
        }
    }

    /// Takes the callbacks in order of registration. The group has ended.
    pub(crate) fn take_callbacks(&self) -> Vec<(u64, Callback)> {
        std::mem::take(&mut lock(&self.waiting).callbacks)
    }

    /// Registers `waker` at `place`, which the first call assigns; false if the group has ended.
    pub(crate) fn register(&self, place: &mut Option<usize>, waker: &Waker) -> bool {
        // Cloning and dropping a waker runs user code, so no lock is held.
        let waker = waker.clone();
        let mut waiting = lock(&self.waiting);
        if self.fate().is_some() {
            return false;
        }
        let place = *place.get_or_insert_with(|| {
            waiting.wakers.push(None);
            waiting.wakers.len() - 1
        });
        let old = waiting.wakers[place].replace(waker);
        if old.is_none() {
            self.idle.fetch_add(1, Ordering::Relaxed);
        }
        drop(waiting);
        drop(old);
        true
    }

    /// Removes the waker of a dropped future.
    pub(crate) fn unregister(&self, place: usize) {
        let mut waiting = lock(&self.waiting);
        let old = waiting.wakers.get_mut(place).and_then(Option::take);
        if old.is_some() {
            self.idle.fetch_sub(1, Ordering::Relaxed);
        }
        drop(waiting);
        drop(old);
    }

    /// Adds a callback; returns it if the group has ended.
    pub(crate) fn add_callback(&self, lsn: u64, callback: Callback) -> Option<Callback> {
        let mut waiting = lock(&self.waiting);
        if self.fate().is_some() {
            return Some(callback);
        }
        waiting.callbacks.push((lsn, callback));
        self.idle.fetch_add(1, Ordering::Relaxed);
        None
    }
}
