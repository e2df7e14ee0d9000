//! Own threads: for what io_uring would only hand to a worker of its own, and for everything where io_uring is refused.
//!
//! A queue under one lock, and threads that come with work, up to a limit, and go when they have been idle for a while. Threads
//! hold the queue alive, so that dropping an engine waits for nobody.
//!
//! A device or server that does not answer takes threads, and gives none back. When work waits and nothing has ended for a while,
//! other threads come, for what is of files that have little under way: so one that hangs stops no other.
//!
//! An operation that waits for a device wants a thread of its own. A read that was announced to the kernel is under way
//! before any thread takes it, so that one thread collects several: fewer threads sleep and wake for the same depth at the device.
//!
//! Writes through the page cache, and syncs, of one file are done by one thread at a time, in order: the kernel would have others
//! wait for the file's lock. Writes that continue each other become one call; syncs that were asked for while one
//! was under way share the next.
//!
//! What is dropped here may take its time, and may panic: closing a file, unmapping, destructors of
//! users. Threads that notice completions leave it to the common pool ([`let_go`]).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;

use super::{Engine, Helper, run, run_for, write_coalesced};
use crate::buf::lock;
use crate::op::{
    Backlog, Done, Fallback, FileQueues, Leftovers, Outcome, QueueKind, Request, SHARE, STUCK, Slot, Waiter, Work,
    contained, on_threads,
};
use crate::stats::Count;
use crate::sys::{PerProcess, SEGMENTS_MAX, WriteFlags};

/// As many threads as a device usefully has reads in flight; they exist only while there is work for them.
pub(crate) const THREADS_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Wakes the thread that stands by.
    relief: Condvar,
    quiet: Condvar,
    threads_max: usize,
}

/// Threads that came because all others hung. Each has one operation that may hang, too.
const RELIEFS_MAX: usize = 256;

/// The work of one thread, and the parts of it that an operation is.
const THREAD: usize = 8;
const ANNOUNCED: usize = 1;

/// Threads that drop leftovers at a time: a server that does not answer a `close(2)` takes no more.
const LETTING_GO_MAX: usize = 4;

/// What one call writes at most when several writes are merged: enough that the call's own cost is nothing, and not so much that
/// the first of them waits long for the last.
const MERGED_BYTES_MAX: usize = 1 << 20;

/// A line of a file.
type Line = (Arc<FileQueues>, QueueKind);

#[derive(Default)]
struct State {
    queue: Backlog,
    /// Files of which a line has nobody at work.
    file_queues: VecDeque<Line>,
    /// For whom others wait right now: before all else.
    helpers: VecDeque<Helper>,
    /// What ended operations left, to be dropped here.
    leftovers: VecDeque<Leftovers>,
    letting_go: usize,
    /// The queue has its turn before the next line.
    queue_first: bool,
    /// What is running, in parts of a thread.
    load: usize,
    threads: usize,
    /// Threads asleep that nobody has called.
    idle: usize,
    /// Calls that no thread has answered yet.
    calls: usize,
    running: usize,
    /// Counts what threads other than reliefs have come to the end of.
    ended: u64,
    /// A thread stands by: it looks whether anything ends while work waits.
    stands_by: bool,
    /// It has found that nothing does.
    stuck: bool,
    reliefs: usize,
    closing: bool,
}

impl State {
    /// Threads that what is running and in line keeps busy.
    fn wanted(&self) -> usize {
        let announced = self.queue.announced();
        let leftovers = self.leftovers.len().min(LETTING_GO_MAX - self.letting_go);
        let whole = self.helpers.len() + self.file_queues.len() + self.queue.len() - announced + leftovers;
        let line = whole * THREAD + announced * ANNOUNCED;
        (self.load + line).div_ceil(THREAD)
    }

    fn has_work(&self) -> bool {
        self.queue.len() > 0 || !self.file_queues.is_empty() || self.lets_go()
    }

    /// There are leftovers, and not too many threads drop some.
    fn lets_go(&self) -> bool {
        !self.leftovers.is_empty() && self.letting_go < LETTING_GO_MAX
    }

    fn is_quiet(&self) -> bool {
        self.running == 0
            && self.queue.is_quiet()
            && self.file_queues.is_empty()
            && self.helpers.is_empty()
            && self.leftovers.is_empty()
    }

    /// Takes out work that a thread may do while the others hang.
    fn next_for_relief(&mut self) -> (Option<Arc<Slot>>, Option<Line>) {
        // A queue is of a file for which no thread is at work.
        match self.file_queues.pop_front() {
            Some(file_queue) => (None, Some(file_queue)),
            None => (self.queue.pop_below(SHARE, on_threads), None),
        }
    }

    /// Something has begun that takes `weight` of a thread.
    fn begins(&mut self, weight: usize) {
        self.running += 1;
        self.load += weight;
    }

    fn ends(&mut self, weight: usize) {
        self.running -= 1;
        self.load -= weight;
    }
}

impl Pool {
    pub(crate) fn new(threads_max: usize) -> Pool {
        Pool(Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            relief: Condvar::new(),
            quiet: Condvar::new(),
            threads_max: threads_max.max(1),
        }))
    }
}

impl Engine for Pool {
    fn submit(&self, slot: Arc<Slot>) {
        match slot.with(|request, owner| owner.queue(request)).flatten() {
            Some((file_queues, kind)) => {
                if file_queues.of(kind).join(slot) {
                    self.add(|state| state.file_queues.push_back((file_queues, kind)));
                }
            }
            None => self.add(|state| state.queue.push(slot)),
        }
    }

    fn resume(&self, file_queues: &Arc<FileQueues>, kind: QueueKind) {
        if file_queues.of(kind).leave() {
            self.add(|state| state.file_queues.push_back((file_queues.clone(), kind)));
        }
    }

    fn assist(&self, helper: Helper) {
        self.add(|state| {
            // Where so many have not been heard, this one would not be in time.
            if state.helpers.len() < self.0.threads_max {
                state.helpers.push_back(helper);
            }
        });
    }

    fn drain(&self) {
        let mut state = lock(&self.0.state);
        while !state.is_quiet() {
            state = wait(&self.0.quiet, state);
        }
    }
}

impl Pool {
    /// Adds work, and sees to it that a thread comes to it.
    fn add(&self, add: impl FnOnce(&mut State)) {
        let shared = &self.0;
        let mut state = lock(&shared.state);
        add(&mut state);
        let shed = state.queue.take_shed();
        if !shed.is_empty() {
            drop(state);
            let count = shed.len();
            discard(shed);
            state = lock(&shared.state);
            state.queue.discarded(count);
        }
        call(shared, state);
    }
}

/// Sees to it that a thread comes to what is in line.
fn call(shared: &Arc<Shared>, mut state: MutexGuard<'_, State>) {
    if state.wanted() + state.idle <= state.threads {
        // A thread that is at work, or called, comes to it; or none, if they all hang.
        stand_by(shared, &mut state);
    } else if state.idle > 0 {
        state.idle -= 1;
        state.calls += 1;
        drop(state);
        shared.work.notify_one();
    } else if state.threads < shared.threads_max {
        state.threads += 1;
        drop(state);
        spawn(shared);
    } else {
        stand_by(shared, &mut state);
    }
}

/// Waits, on a thread of the pool, for what may be in line for a thread: another comes in its place.
fn give_way(shared: &Arc<Shared>, wait: &dyn Fn()) {
    let mut state = lock(&shared.state);
    // A relief, or a caller in a thread's place, is not one of those that are counted.
    let gives = usize::from(ROLE.get() == Role::Thread);
    state.threads -= gives;
    state.load -= THREAD;
    call(shared, state);
    wait();
    let mut state = lock(&shared.state);
    state.threads += gives;
    state.load += THREAD;
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.0.state).closing = true;
        self.0.work.notify_all();
        self.0.relief.notify_all();
    }
}

fn wait<'a>(condvar: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condvar.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts a thread; where the system refuses (a limit on threads), the work is done by the threads there are, or, when
/// there is none, here and now: late is better than never.
fn spawn(shared: &Arc<Shared>) {
    let for_thread = shared.clone();
    let started = std::thread::Builder::new().name("nowait-pool".into()).spawn(move || serve(&for_thread));
    if started.is_err() {
        let mut state = lock(&shared.state);
        state.threads -= 1;
        if state.threads == 0 {
            drop(serve_queue(shared, state));
        }
    }
}

/// Has a thread stand by, or do what has come while the others hang.
fn stand_by(shared: &Arc<Shared>, state: &mut State) {
    if state.stands_by {
        if state.stuck {
            shared.relief.notify_one();
        }
        return;
    }
    if !state.has_work() || state.reliefs >= RELIEFS_MAX {
        return;
    }
    let for_thread = shared.clone();
    let started = std::thread::Builder::new().name("nowait-relief".into()).spawn(move || relieve(&for_thread));
    state.stands_by = started.is_ok();
}

/// Looks whether the pool's threads hang, and does then, in their place, what is of files that have little under way.
fn relieve(shared: &Arc<Shared>) {
    ROLE.set(Role::Relief);
    let mut state = lock(&shared.state);
    let mut ended = state.ended;
    // Also when the engine is gone: what it was given is done all the same.
    while state.has_work() || state.stuck && !state.closing {
        if std::mem::replace(&mut ended, state.ended) != state.ended {
            state.stuck = false;
        }
        // Before it sleeps: what came while nobody stood by has rung for nobody.
        let (slot, file_queue) = if state.stuck { state.next_for_relief() } else { (None, None) };
        // Those that nobody wants any more were met on the way.
        let ends = slot.is_some() || file_queue.is_some() || state.queue.has_shed();
        if !(ends || state.stuck && state.lets_go()) {
            let (after, timeout) =
                shared.relief.wait_timeout(state, STUCK).unwrap_or_else(|poisoned| poisoned.into_inner());
            state = after;
            if timeout.timed_out() && ended == state.ended && state.has_work() {
                state.stuck = true;
            }
            continue;
        }
        state.stands_by = false;
        state.reliefs += 1;
        stand_by(shared, &mut state);
        state = if ends { serve_one(shared, state, slot, file_queue) } else { let_one_go(shared, state) };
        if state.is_quiet() {
            shared.quiet.notify_all();
        }
        state.reliefs -= 1;
        if std::mem::replace(&mut state.stands_by, true) {
            // Another does. Its file's share may be free again, which it does not see in its sleep.
            if state.stuck && state.has_work() {
                shared.relief.notify_one();
            }
            return;
        }
    }
    state.stands_by = false;
}

/// A thread's part in a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    Thread,
    Relief,
}

thread_local!(static ROLE: Cell<Role> = const { Cell::new(Role::None) });

/// This is a thread of a pool, which may sleep in the kernel for as long as it takes.
pub(crate) fn is_own_thread() -> bool {
    ROLE.get() != Role::None
}

fn serve(shared: &Arc<Shared>) {
    ROLE.set(Role::Thread);
    let mut state = lock(&shared.state);
    loop {
        state = serve_queue(shared, state);
        if state.closing {
            break;
        }
        state.idle += 1;
        let called = |state: &mut State| state.calls == 0 && !state.closing;
        let (after, timeout) =
            shared.work.wait_timeout_while(state, IDLE_MAX, called).unwrap_or_else(|poisoned| poisoned.into_inner());
        state = after;
        if state.calls > 0 {
            state.calls -= 1;
        } else {
            state.idle -= 1;
            if timeout.timed_out() {
                break;
            }
        }
    }
    state.threads -= 1;
}

/// Runs what is queued until nothing is.
fn serve_queue<'a>(shared: &'a Arc<Shared>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    loop {
        if let Some(helper) = state.helpers.pop_front() {
            state.begins(THREAD);
            drop(state);
            // Whoever is helped learns of a panic.
            contained(|| helper());
            drop(helper);
            state = lock(&shared.state);
            state.ends(THREAD);
        }
        state = let_one_go(shared, state);
        // Turn and turn about, so that neither many files that are written nor a long queue keeps the other waiting.
        state.queue_first = !state.queue_first;
        let slot = if state.queue_first { state.queue.pop() } else { None };
        let file_queue = if slot.is_none() { state.file_queues.pop_front() } else { None };
        let slot = if slot.is_none() && file_queue.is_none() { state.queue.pop() } else { slot };
        if slot.is_none() && file_queue.is_none() && !state.queue.has_shed() {
            if state.helpers.is_empty() && !state.lets_go() {
                break;
            }
            continue;
        }
        state = serve_one(shared, state, slot, file_queue);
        state.ended += 1;
    }
    if state.is_quiet() {
        shared.quiet.notify_all();
    }
    state
}

/// Drops what an ended operation left, if there is such a thing and not too many threads do that.
fn let_one_go<'a>(shared: &'a Arc<Shared>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    if !state.lets_go() {
        return state;
    }
    let leftovers = state.leftovers.pop_front();
    state.begins(THREAD);
    state.letting_go += 1;
    drop(state);
    drop(leftovers);
    state = lock(&shared.state);
    state.letting_go -= 1;
    state.ends(THREAD);
    state
}

/// Runs what was taken out of the queue, or what is first in a queue; and ends what the queue has shed.
fn serve_one<'a>(
    shared: &'a Arc<Shared>,
    mut state: MutexGuard<'a, State>,
    slot: Option<Arc<Slot>>,
    file_queue: Option<Line>,
) -> MutexGuard<'a, State> {
    let shed = state.queue.take_shed();
    let weight = if slot.as_ref().is_some_and(|slot| slot.is_announced()) { ANNOUNCED } else { THREAD };
    state.begins(weight);
    drop(state);
    let goes_on = file_queue.filter(|(file_queues, kind)| serve_file_queue(shared, file_queues, *kind));
    if let Some(slot) = slot {
        if let Some(mut work) = slot.take_work() {
            let outcome = run_for(&work.owner, &mut work.request);
            end(slot, work, outcome);
        }
    }
    let count = shed.len();
    shed.into_iter().for_each(|slot| drop(slot.discard()));
    state = lock(&shared.state);
    state.file_queues.extend(goes_on);
    state.queue.discarded(count);
    state.ends(weight);
    state
}

fn end(slot: Arc<Slot>, work: Work, outcome: Outcome) {
    slot.put_back(work);
    drop(slot.finish(outcome, Count::Pool));
}

/// Does what is first in a file's queue, and what can be done together with it. False when nothing was there, or a thread
/// that waited in the queue owns it now.
fn serve_file_queue(shared: &Arc<Shared>, file_queues: &FileQueues, kind: QueueKind) -> bool {
    let mut waiting = file_queues.of(kind).lock();
    let waiters = &mut waiting.waiters;
    let is_sync = |waiter: &Waiter| match waiter {
        Waiter::Slot(slot) => slot.with(|request, _| matches!(request, Request::Sync { .. })) == Some(true),
        Waiter::Thread(_) => false,
    };
    let syncs = waiters.front().is_some_and(is_sync);
    let batch: Vec<_> = match waiters.front() {
        None => {
            waiting.busy = false;
            return false;
        }
        Some(Waiter::Thread(next)) => {
            let next = next.clone();
            waiters.pop_front();
            drop(waiting);
            next.hand_over();
            return false;
        }
        Some(Waiter::Slot(_)) if syncs => {
            // All of them, wherever they stand: each was asked for before this begins.
            let (syncs, others) = std::mem::take(waiters).into_iter().partition::<VecDeque<_>, _>(is_sync);
            *waiters = others;
            syncs.into_iter().filter_map(Waiter::into_slot).collect()
        }
        Some(Waiter::Slot(_)) => next_writes(waiters),
    };
    drop(waiting);
    let taken = batch.len();
    // Outside the lock: what ends here may put more in line.
    let works: Vec<_> = batch.into_iter().filter_map(|slot| slot.take_work().map(|work| (slot, work))).collect();
    let whole = works.len() == taken;
    if syncs {
        sync(shared, works)
    } else {
        write(shared, works, whole, kind)
    }
    true
}

/// Takes the first write, and those after it that go on where it ends.
fn next_writes(waiters: &mut VecDeque<Waiter>) -> Vec<Arc<Slot>> {
    let mut taken = Vec::new();
    let (mut next, mut bytes, mut segments) = (None, 0, 0);
    while let Some(Waiter::Slot(slot)) = waiters.front() {
        let (place, length, count) = slot
            .with(|request, _| match request {
                Request::Write(transfer, flags) => {
                    (Some((transfer.position(), *flags)), transfer.left(), transfer.segments().len())
                }
                _ => (None, 0, 0),
            })
            .unwrap_or((None, 0, 0));
        bytes += length;
        segments += count;
        let goes_on =
            next.is_none_or(|next| place == Some(next)) && bytes <= MERGED_BYTES_MAX && segments <= SEGMENTS_MAX;
        if !taken.is_empty() && !goes_on {
            break;
        }
        taken.extend(waiters.pop_front().and_then(Waiter::into_slot));
        match place {
            Some((position, flags)) if !flags.contains(WriteFlags::APPEND) && !flags.contains(WriteFlags::ATOMIC) => {
                next = Some((position + length as u64, flags));
            }
            _ => break,
        }
    }
    taken
}

/// Writes: as one, if all that was taken out of the line is still wanted, so that each goes on where the one before it ends. (Or does
/// the one thing that is there.)
fn write(shared: &Arc<Shared>, mut works: Vec<(Arc<Slot>, Work)>, whole: bool, kind: QueueKind) {
    let mut failed = None;
    if whole && works.len() > 1 {
        let result = write_coalesced(works[0].1.owner.handle(), works.iter().map(|(_, work)| &work.request));
        let durable = matches!(&works[0].1.request, Request::Write(_, flags) if flags.contains(WriteFlags::DURABLE));
        // It may tell of an earlier write, and does so once: it is everybody's.
        failed = result.err().filter(|_| durable);
        let mut n = result.unwrap_or(0);
        for (_, work) in &mut works {
            work.owner.count(Count::Joined);
            if let Request::Write(transfer, _) = &mut work.request {
                let mine = n.min(transfer.left());
                transfer.advance(mine);
                n -= mine;
            }
        }
    }
    for (slot, mut work) in works {
        // What is left, for a short call or an error, is each one's own.
        let outcome = match failed {
            Some(errno) => Err(errno),
            None => {
                let _syncing = (kind == QueueKind::Syncs).then(|| work.owner.begin_sync(|wait| give_way(shared, wait)));
                run_for(&work.owner, &mut work.request)
            }
        };
        end(slot, work, outcome);
    }
}

/// One sync for all: each was asked for before it begins, so that it covers what each has to.
fn sync(shared: &Arc<Shared>, works: Vec<(Arc<Slot>, Work)>) {
    let Some((_, Work { owner, .. })) = works.first() else { return };
    let data_only = works.iter().all(|(_, work)| matches!(work.request, Request::Sync { data_only: true }));
    let outcome = {
        let _syncing = owner.begin_sync(|wait| give_way(shared, wait));
        owner.synced(|| run(owner.handle(), &mut Request::Sync { data_only })).map(drop)
    };
    let many = works.len() > 1;
    for (slot, work) in works {
        if many {
            work.owner.count(Count::Joined);
        }
        end(slot, work, outcome.map(|()| Done::Nothing));
    }
}

/// The pool of an instance, made on first use in each process. It outlives the instance while open files hold it, and files
/// live on in slots: so those that are handed on later still find it. Each slot in its queue holds it, too, but only until a
/// thread has finished the slot.
pub(crate) struct InstancePool {
    threads_max: usize,
    pool: PerProcess<Arc<Pool>>,
}

impl InstancePool {
    pub(crate) fn new(threads_max: usize) -> InstancePool {
        InstancePool { threads_max, pool: PerProcess::new() }
    }

    pub(crate) fn get(&self) -> &Arc<Pool> {
        self.pool.get(|| Arc::new(Pool::new(self.threads_max)))
    }
}

impl Fallback for InstancePool {
    fn take(&self, slot: Arc<Slot>) {
        self.get().submit(slot);
    }
}

/// The process's common pool, which drops leftovers.
fn common() -> &'static Pool {
    static COMMON: PerProcess<Pool> = PerProcess::new();
    COMMON.get(|| Pool::new(THREADS_MAX))
}

/// Deals with one result of a queue to the kernel, which counts as `served`. Gives the slot back when its rest must go to the
/// kernel again.
pub(crate) fn settle(slot: Arc<Slot>, result: Result<usize, Errno>, served: Count) -> Option<Arc<Slot>> {
    // What the queue cannot do (an opcode, a flag, a file that may not sleep there) a plain call can, or it gives the errno
    // that counts. ECANCELED and EFAULT are also what becomes of a ring's requests whose submitting thread has ended:
    // the kernel would go on with them in that thread (io_req_task_submit in io_uring/io_uring.c, 5.12 to 6.18).
    if let Err(errno @ (Errno::INVAL | Errno::OPNOTSUPP | Errno::AGAIN | Errno::CANCELED | Errno::FAULT)) = result {
        slot.refused(errno);
        hand_on(slot);
        return None;
    }
    match slot.complete(result, served) {
        Some(leftovers) => {
            let_go(leftovers);
            None
        }
        None => Some(slot),
    }
}

/// Drops what an operation left, on a thread of the common pool if that may take long.
pub(crate) fn let_go(leftovers: Leftovers) {
    if leftovers.may_wait() {
        common().add(|state| state.leftovers.push_back(leftovers));
    }
}

/// Ends what a line before a full queue has shed. With nothing locked.
pub(crate) fn discard(shed: Vec<Arc<Slot>>) {
    shed.into_iter().for_each(|slot| let_go(slot.discard()));
}

/// Hands a slot that a queue to the kernel cannot serve to the pool of its file's instance.
pub(crate) fn hand_on(slot: Arc<Slot>) {
    match slot.hand_on() {
        Some(fallback) => fallback.take(slot),
        // Without a file, as no request for such a queue is.
        None => common().submit(slot),
    }
}

/// Waits until the leftovers of ended operations are dropped, of all instances.
pub(crate) fn drain_leftovers() {
    common().drain();
}

#[cfg(all(test, not(nowait_loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_helper_that_panics_costs_no_thread() {
        let pool = Pool::new(20);
        let calls = Arc::new(AtomicU32::new(0));
        for number in 0..20 {
            let calls = calls.clone();
            pool.assist(Arc::new(move || {
                calls.fetch_add(1, Ordering::SeqCst);
                assert!(number % 2 == 0, "on purpose");
            }));
        }
        pool.drain();
        assert_eq!(calls.load(Ordering::SeqCst), 20);
        assert_eq!(Arc::strong_count(&calls), 1);
    }
}
