//! The threads: when they come and go, what each takes next, and who relieves them when they hang.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::file_queue::{end, serve_file_queue};
use super::{ANNOUNCED, FileQueueRef, Shared, State, THREAD, discard};
use crate::engine::run_for;
use crate::op::watcher::{self, Glance, Note, NoticedBy, Watched};
use crate::op::{STUCK, Slot};
use crate::sync::lock;
use crate::sys::{self, PerProcess};

/// Time without a call after which a thread ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Most threads that come because all others hang. Each has one operation, which may hang, too.
const RELIEFS_MAX: usize = 256;

/// Calls a thread for waiting work, or starts one.
pub(super) fn call(shared: &Arc<Shared>, mut state: MutexGuard<'_, State>) {
    if state.wanted() + state.idle <= state.threads {
        // Enough threads run, or were called. If all of them hang, a relief takes the work.
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

/// Runs `wait`, and lets another thread start meanwhile: the awaited operation may need one.
fn give_way(shared: &Arc<Shared>, wait: &dyn Fn()) {
    let mut state = lock(&shared.state);
    // A relief, or a caller in a thread's place, is not counted.
    let gives = usize::from(ROLE.get() == Role::Thread);
    state.threads -= gives;
    state.load -= THREAD;
    call(shared, state);
    wait();
    let mut state = lock(&shared.state);
    state.threads += gives;
    state.load += THREAD;
}

pub(super) fn wait<'a>(condvar: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condvar.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts a thread. If the system refuses (a limit on threads), existing threads do the work. The
/// start is tried again, in case all of them hang. Without any thread, this thread does the work
/// now.
fn spawn(shared: &Arc<Shared>) {
    let for_thread = shared.clone();
    let started = sys::spawn_service("nowait-pool", move || serve(&for_thread));
    if started.is_err() {
        let mut state = lock(&shared.state);
        state.threads -= 1;
        if state.threads == 0 {
            return drop(serve_queue(shared, state));
        }
        drop(state);
        ShortPools::of_process().add(shared);
    }
}

/// Starts a thread that stands by, or wakes it if the others hang.
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
    let started = sys::spawn_service("nowait-relief", move || relieve(&for_thread));
    state.stands_by = started.is_ok();
    if !state.stands_by {
        ShortPools::of_process().add(shared);
    }
}

/// Watches whether the pool's threads hang. If they do, works in their place for files with few
/// operations under way.
fn relieve(shared: &Arc<Shared>) {
    ROLE.set(Role::Relief);
    let mut state = lock(&shared.state);
    let mut ended = state.ended;
    // Also when the engine is gone: submitted work is done all the same.
    while state.has_work() || state.stuck && !state.closing {
        if std::mem::replace(&mut ended, state.ended) != state.ended {
            state.stuck = false;
        }
        // Before it sleeps: work that came while no thread stood by has woken none.
        let (slot, file_queue) = if state.stuck { state.next_for_relief() } else { (None, None) };
        // Abandoned slots were met on the way.
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
            // Another does. A file's share may be free again, which it does not see in its sleep.
            if state.stuck && state.has_work() {
                shared.relief.notify_one();
            }
            return;
        }
    }
    state.stands_by = false;
}

/// Pools that could not start a thread. A watcher, or a caller that waits, lets them try again.
#[derive(Default)]
struct ShortPools {
    pools: Mutex<Vec<Arc<Shared>>>,
    note: Note,
}

impl ShortPools {
    fn of_process() -> &'static Arc<ShortPools> {
        static SHORT: PerProcess<Arc<ShortPools>> = PerProcess::new();
        watcher::list_of_process(&SHORT)
    }

    fn add(&self, shared: &Arc<Shared>) {
        let mut pools = lock(&self.pools);
        if !pools.iter().any(|known| Arc::ptr_eq(known, shared)) {
            pools.push(shared.clone());
        }
        drop(pools);
        watcher::watch();
        watcher::miss();
    }
}

impl Watched for ShortPools {
    fn noticed_by(&self) -> NoticedBy {
        NoticedBy::Thread
    }

    fn note(&self) -> &Note {
        &self.note
    }

    fn serve(&self) {
        // A separate statement, so that the lock is released at its end.
        let pools = std::mem::take(&mut *lock(&self.pools));
        for shared in pools {
            let state = lock(&shared.state);
            if state.has_work() {
                call(&shared, state);
            }
        }
    }

    fn is_quiet(&self) -> bool {
        lock(&self.pools).is_empty()
    }

    fn glance(&self) -> Glance {
        if self.is_quiet() { Glance::Quiet } else { Glance::Left }
    }
}

/// A thread's role in a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    Thread,
    Relief,
}

thread_local!(static ROLE: Cell<Role> = const { Cell::new(Role::None) });

/// Whether this is a thread of a pool, which may sleep in the kernel for as long as it takes.
pub(crate) fn is_own_thread() -> bool {
    ROLE.get() != Role::None
}

thread_local!(static SERVES: Cell<*const Shared> = const { Cell::new(std::ptr::null()) });

/// Whether this is a thread of this pool that takes more of its queue after its present work.
pub(super) fn takes_next(shared: &Arc<Shared>) -> bool {
    SERVES.get() == Arc::as_ptr(shared)
}

/// Runs queued work; sleeps when there is none, for `IDLE_MAX` at most. Ends when no call came in
/// that time, or when the pool was dropped and its queue is empty.
fn serve(shared: &Arc<Shared>) {
    ROLE.set(Role::Thread);
    SERVES.set(Arc::as_ptr(shared));
    let mut state = lock(&shared.state);
    loop {
        state = serve_queue(shared, state);
        if state.closing {
            break;
        }
        state.idle += 1;
        let not_called = |state: &mut State| state.calls == 0 && !state.closing;
        let (after, timeout) = shared
            .work
            .wait_timeout_while(state, IDLE_MAX, not_called)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
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

/// Runs queued work until there is none.
fn serve_queue<'a>(shared: &'a Arc<Shared>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    loop {
        state = let_one_go(shared, state);
        // In turns, so that neither many written files nor a long queue keeps the other waiting.
        state.queue_first = !state.queue_first;
        let slot = if state.queue_first { state.queue.pop() } else { None };
        let file_queue = if slot.is_none() { state.file_queues.pop_front() } else { None };
        let slot = if slot.is_none() && file_queue.is_none() { state.queue.pop() } else { slot };
        if slot.is_none() && file_queue.is_none() && !state.queue.has_shed() {
            if !state.lets_go() {
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

/// Drops the leftovers of one operation, unless too many threads drop some.
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

/// Discards slots that the queue has shed; then runs a slot of it, or a turn at a file's queue,
/// which may hang.
fn serve_one<'a>(
    shared: &'a Arc<Shared>,
    mut state: MutexGuard<'a, State>,
    slot: Option<Arc<Slot>>,
    file_queue: Option<FileQueueRef>,
) -> MutexGuard<'a, State> {
    let shed = state.queue.take_shed();
    let weight = if slot.as_ref().is_some_and(|slot| slot.is_announced()) { ANNOUNCED } else { THREAD };
    state.begins(weight);
    drop(state);
    let count = shed.len();
    discard(shed);
    let goes_on =
        file_queue.filter(|(file_queues, kind)| serve_file_queue(file_queues, *kind, &|wait| give_way(shared, wait)));
    if let Some(slot) = slot {
        if let Some(mut work) = slot.take_work() {
            let outcome = run_for(&work.owner, &mut work.request);
            end(slot, work, outcome);
        }
    }
    state = lock(&shared.state);
    state.file_queues.extend(goes_on);
    state.queue.discarded(count);
    state.ends(weight);
    state
}
