//! A bound on the bytes of writes that are on their way, per file and per instance: beyond it a
//! write waits in line, first come first served, and its buffer with it. So memory stays bounded by
//! what callers keep, whatever the device does. Every file may have one write on its way, whatever
//! others hold: a device that never answers stops no other.
//!
//! Writes wait here, too, for earlier ones that they overlap (`op/outstanding.rs`).
//!
//! A place is given on by a completion, never by a poll. Writes of one file are given to their
//! engine by one thread at a time, so that they get there in the order in which they came. What a
//! thread admits for others does not go to its own queue, or its own calls would drive their
//! writes.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::buf::lock;
use crate::engine::{Engine, local, pool};
use crate::op::help;
use crate::op::outstanding::Resume;
use crate::op::{Change, FileQueues, OpenFile, Permit, Room, Slot};
use crate::stats::Count;

/// Abandoned writes are looked for in a line of this length, and again when it has doubled.
const SWEEP_MIN: usize = 64;

pub(crate) struct Throttle {
    per_file: u64,
    per_instance: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    under_way: u64,
    /// The files that have writes in line. Those held up by the file's bound do not hold up others.
    files: VecDeque<Waiting>,
    waiting: usize,
    /// Empty: a line's memory, for the next file that has one.
    spare: VecDeque<Entry>,
    sweep_at: usize,
    /// Files with a thread that is giving a write to its engine; it looks for more before it ends.
    admitting: Vec<Arc<FileQueues>>,
    /// A write was left in line meanwhile: the thread that admits asks for help with what it waits
    /// for.
    asks: bool,
}

struct Waiting {
    file: Arc<OpenFile>,
    entries: VecDeque<Entry>,
}

struct Entry {
    slot: Arc<Slot>,
    engine: Arc<dyn Engine>,
    change: Change,
    /// In the order of the file's changes.
    number: u64,
}

impl Room for Throttle {
    fn give_back(self: Arc<Self>, queues: &FileQueues, change: Change, number: u64) {
        let mut state = lock(&self.state);
        state.under_way -= change.bytes;
        let alone = queues.is_written_alone() && !change.alone;
        queues.set_on_their_way(queues.on_their_way() - change.bytes, alone);
        // One that comes later finds this room, and asks `outstanding` to resume it if it overlaps.
        let is_awaited = state.waiting > 0;
        drop(state);
        queues.outstanding().leave(number, change.durable);
        if is_awaited {
            self.admit(lock(&self.state), None);
        }
    }
}

impl Resume for Throttle {
    fn resume(self: Arc<Self>) {
        self.admit(lock(&self.state), None);
    }
}

impl Throttle {
    pub(crate) fn new(per_file: u64, per_instance: u64) -> Throttle {
        Throttle { per_file, per_instance, state: Mutex::default() }
    }

    /// Gives the slot of a change to `engine`, now or when there is room.
    pub(crate) fn submit(
        self: &Arc<Self>,
        slot: Arc<Slot>,
        file: Arc<OpenFile>,
        engine: Arc<dyn Engine>,
        change: Change,
    ) {
        let mut state = lock(&self.state);
        if !self.fits_now(&state, &file, change) {
            slot.count(Count::Throttled);
        }
        let number = file.outstanding().join(change.span);
        let entry = Entry { slot: slot.clone(), engine, change, number };
        match state.files.iter_mut().find(|waiting| Arc::ptr_eq(&waiting.file, &file)) {
            // The file is given up here, not at the end: by then the slot may have ended.
            Some(waiting) => {
                waiting.entries.push_back(entry);
                drop(file);
            }
            None => {
                let mut entries = std::mem::take(&mut state.spare);
                entries.push_back(entry);
                state.files.push_back(Waiting { file, entries });
            }
        }
        state.waiting += 1;
        let abandoned = state.sweep();
        if !abandoned.is_empty() {
            drop(state);
            for (queues, Entry { slot, number, .. }) in abandoned {
                pool::let_go(slot.discard());
                queues.outstanding().leave(number, false);
            }
            state = lock(&self.state);
        }
        self.admit(state, Some(&slot));
    }

    /// Counts a change as on its way if there is room now, until the permit is dropped: for a write
    /// on its caller's thread.
    pub(crate) fn enter(self: &Arc<Self>, file: &Arc<OpenFile>, change: Change) -> Option<Permit> {
        let mut state = lock(&self.state);
        if !self.fits_now(&state, file, change) {
            return None;
        }
        let number = file.outstanding().join(change.span);
        if !file.outstanding().begin(number, change.span, change.durable, || self.clone()) {
            drop(state);
            file.outstanding().leave(number, false);
            return None;
        }
        let queues = file.queues().clone();
        take_room(&mut state, &queues, change);
        Some(Permit { room: self.clone(), queues, change, number })
    }

    /// Whether a change could be submitted at once.
    pub(crate) fn has_room(&self, file: &OpenFile, change: Change) -> bool {
        self.fits_now(&lock(&self.state), file, change) && !file.outstanding().overlaps(change.span)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let state = lock(&self.state);
        state.under_way == 0 && state.waiting == 0
    }

    /// Whether no other change waits before this one, and there is room.
    fn fits_now(&self, state: &State, file: &OpenFile, change: Change) -> bool {
        // A write that the instance's bound holds up holds up all behind it.
        let is_behind = |waiting: &Waiting| {
            std::ptr::eq(&*waiting.file, file)
                || waiting.entries.front().is_some_and(|entry| {
                    fits_file(self.per_file, &waiting.file, entry.change)
                        && !self.fits_instance(state, &waiting.file, entry.change)
                })
        };
        fits_file(self.per_file, file, change)
            && self.fits_instance(state, file, change)
            && !state.files.iter().any(is_behind)
    }

    fn fits_instance(&self, state: &State, file: &OpenFile, change: Change) -> bool {
        file.on_their_way() == 0 || state.under_way.saturating_add(change.bytes) <= self.per_instance
    }

    /// Gives changes in line to their engines while there is room; `own` is this thread's. With
    /// nothing locked: an engine may finish a slot at once, and so come back here, where it leaves
    /// all to the call that it is in.
    fn admit<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, own: Option<&Arc<Slot>>) {
        thread_local!(static ADMITS: Cell<bool> = const { Cell::new(false) });
        struct Admits;
        impl Drop for Admits {
            fn drop(&mut self) {
                ADMITS.set(false);
            }
        }
        // The thread that admits may leave it in line, and does not know that no help was asked for
        // yet.
        state.asks |= own.is_some();
        if ADMITS.replace(true) {
            return;
        }
        let admits = Admits;
        let mut asks = false;
        while let Some((queues, Entry { slot, engine, change, number })) = self.next(&mut state) {
            state.admitting.push(queues.clone());
            drop(state);
            // Also to an abandoned one: it is discarded later, and the permit with it.
            slot.hold(Permit { room: self.clone(), queues: queues.clone(), change, number });
            if own.is_some_and(|own| Arc::ptr_eq(own, &slot)) {
                engine.submit(slot);
            } else {
                local::elsewhere(|| engine.submit(slot));
            }
            asks |= queues.outstanding().is_awaited();
            state = lock(&self.state);
            state.admitting.retain(|file| !Arc::ptr_eq(file, &queues));
        }
        drop(admits);
        asks |= std::mem::take(&mut state.asks) && state.waiting > 0;
        drop(state);
        if asks {
            // The awaited change may be in the queue of a thread that does something else.
            help::ask();
        }
    }

    /// Takes the next change for which there is room, and counts it. Files take turns. A write that
    /// the instance's bound holds up holds up all behind it, or large writes would never have their
    /// turn; but not those of a file with nothing on its way.
    fn next(self: &Arc<Self>, state: &mut State) -> Option<(Arc<FileQueues>, Entry)> {
        let mut is_full = false;
        for at in 0..state.files.len() {
            let Waiting { file, entries } = &state.files[at];
            let Some(Entry { change, number, .. }) = entries.front() else { continue };
            let (change, number) = (*change, *number);
            if state.admitting.iter().any(|queues| Arc::ptr_eq(queues, file.queues())) {
                continue;
            }
            if is_full && file.on_their_way() > 0 || !fits_file(self.per_file, file, change) {
                continue;
            }
            if !self.fits_instance(state, file, change) {
                is_full = true;
                continue;
            }
            if !file.outstanding().begin(number, change.span, change.durable, || self.clone()) {
                continue;
            }
            let mut waiting = state.files.remove(at)?;
            let entry = waiting.entries.pop_front();
            let queues = waiting.file.queues().clone();
            if !waiting.entries.is_empty() {
                state.files.push_back(waiting);
            } else if waiting.entries.capacity() <= SWEEP_MIN {
                state.spare = waiting.entries;
            }
            state.waiting -= 1;
            take_room(state, &queues, change);
            return Some((queues, entry?));
        }
        None
    }
}

fn take_room(state: &mut State, queues: &FileQueues, change: Change) {
    state.under_way += change.bytes;
    queues.set_on_their_way(queues.on_their_way() + change.bytes, queues.is_written_alone() || change.alone);
}

/// One that is larger than the bound goes alone.
fn fits_file(per_file: u64, file: &OpenFile, change: Change) -> bool {
    let now = file.on_their_way();
    let beside = !change.alone && !file.is_written_alone();
    now == 0 || (beside && now.saturating_add(change.bytes) <= per_file)
}

impl State {
    /// Takes out abandoned writes, often enough that they never outnumber the wanted ones by more
    /// than a constant factor.
    fn sweep(&mut self) -> Vec<(Arc<FileQueues>, Entry)> {
        if self.waiting < self.sweep_at.max(SWEEP_MIN) {
            return Vec::new();
        }
        let mut abandoned = Vec::new();
        for waiting in &mut self.files {
            let (gone, wanted): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut waiting.entries).into_iter().partition(|entry| entry.slot.is_abandoned());
            waiting.entries = wanted;
            abandoned.extend(gone.into_iter().map(|entry| (waiting.file.queues().clone(), entry)));
        }
        self.files.retain(|waiting| !waiting.entries.is_empty());
        self.waiting -= abandoned.len();
        self.sweep_at = self.waiting * 2;
        abandoned
    }
}
