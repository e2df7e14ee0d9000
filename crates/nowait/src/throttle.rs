//! A bound on the bytes of writes that are on their way, per file and per instance: beyond it a writer waits in line, first come
//! first served, and its buffer with it. So memory stays bounded by what callers keep, whatever the device does.
//!
//! A place is given on by a completion, never by a poll. Writes are given to their engine by one thread at a time, so that
//! those of one file get there in the order in which they came.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::buf::lock;
use crate::engine::{Engine, pool};
use crate::op::{Lanes, OpenFile, Slot};
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
    sweep_at: usize,
    /// A thread is giving writes to their engines.
    admitting: bool,
}

struct Waiting {
    file: Arc<OpenFile>,
    entries: VecDeque<Entry>,
}

struct Entry {
    slot: Arc<Slot>,
    engine: Arc<dyn Engine>,
    bytes: u64,
    /// To be with the file's engine when no other write of the file is.
    alone: bool,
}

/// Bytes that a slot has on their way; given back when it is finished. No share of the file: it
/// outlives the slot's own, and `File::close` would find the file in use.
pub(crate) struct Permit {
    throttle: Arc<Throttle>,
    lanes: Arc<Lanes>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.throttle.state);
        state.under_way -= self.bytes;
        // One that is alone is the last.
        self.lanes.set_on_their_way(self.lanes.on_their_way() - self.bytes, false);
        drop(state);
        self.throttle.admit();
    }
}

impl Throttle {
    pub(crate) fn new(per_file: u64, per_instance: u64) -> Throttle {
        Throttle { per_file, per_instance, state: Mutex::default() }
    }

    /// Gives a slot that writes `bytes` to `engine`, now or when there is room.
    pub(crate) fn submit(
        self: &Arc<Self>,
        slot: Arc<Slot>,
        file: Arc<OpenFile>,
        engine: Arc<dyn Engine>,
        bytes: usize,
        alone: bool,
    ) {
        let entry = Entry { slot, engine, bytes: bytes as u64, alone };
        let mut state = lock(&self.state);
        if !self.fits_now(&state, &file, entry.bytes, alone) {
            entry.slot.count(Count::Throttled);
        }
        match state.files.iter_mut().find(|waiting| Arc::ptr_eq(&waiting.file, &file)) {
            // The file is given up here, not at the end: by then the slot may have ended.
            Some(waiting) => {
                waiting.entries.push_back(entry);
                drop(file);
            }
            None => state.files.push_back(Waiting { file, entries: VecDeque::from([entry]) }),
        }
        state.waiting += 1;
        let abandoned = state.sweep();
        drop(state);
        abandoned.iter().for_each(|entry| pool::let_go(entry.slot.discard()));
        self.admit();
    }

    /// Counts `bytes` as on their way if there is room now, until the permit is dropped: for a write on its caller's thread.
    pub(crate) fn enter(self: &Arc<Self>, file: &Arc<OpenFile>, bytes: usize) -> Option<Permit> {
        let bytes = bytes as u64;
        let mut state = lock(&self.state);
        if !self.fits_now(&state, file, bytes, false) {
            return None;
        }
        state.under_way += bytes;
        let lanes = file.lanes().clone();
        lanes.set_on_their_way(lanes.on_their_way() + bytes, false);
        Some(Permit { throttle: self.clone(), lanes, bytes })
    }

    /// Whether `bytes` more could be submitted at once, beside others or alone.
    pub(crate) fn has_room(&self, file: &OpenFile, bytes: usize, alone: bool) -> bool {
        self.fits_now(&lock(&self.state), file, bytes as u64, alone)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let state = lock(&self.state);
        state.under_way == 0 && state.waiting == 0
    }

    fn fits_now(&self, state: &State, file: &OpenFile, bytes: u64, alone: bool) -> bool {
        state.waiting == 0 && self.fits_file(file, bytes, alone) && self.fits_instance(state, bytes)
    }

    /// One that is larger than a bound goes alone.
    fn fits_file(&self, file: &OpenFile, bytes: u64, alone: bool) -> bool {
        let now = file.on_their_way();
        let beside = !alone && !file.is_written_alone();
        now == 0 || (beside && now.saturating_add(bytes) <= self.per_file)
    }

    fn fits_instance(&self, state: &State, bytes: u64) -> bool {
        state.under_way == 0 || state.under_way.saturating_add(bytes) <= self.per_instance
    }

    /// Gives those in line to their engines for whom there is room. With nothing locked: an engine may finish what it is given,
    /// and so come back here, where it then finds somebody at work.
    fn admit(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.admitting, true) {
            return;
        }
        while let Some((lanes, Entry { slot, engine, bytes, .. })) = self.next(&mut state) {
            drop(state);
            // Also to one that was abandoned: whoever takes it discards it, and the permit with it.
            slot.hold(Box::new(Permit { throttle: self.clone(), lanes, bytes }));
            engine.submit(slot);
            state = lock(&self.state);
        }
        state.admitting = false;
    }

    /// Takes the next for which there is room, and counts its bytes. Files take turns. What the instance's bound holds up holds up
    /// all behind it, or large writes would never have their turn.
    fn next(&self, state: &mut State) -> Option<(Arc<Lanes>, Entry)> {
        for at in 0..state.files.len() {
            let Waiting { file, entries } = &state.files[at];
            let (bytes, alone) = entries.front().map_or((0, false), |entry| (entry.bytes, entry.alone));
            if !self.fits_file(file, bytes, alone) {
                continue;
            }
            if !self.fits_instance(state, bytes) {
                return None;
            }
            let mut waiting = state.files.remove(at)?;
            let entry = waiting.entries.pop_front();
            let lanes = waiting.file.lanes().clone();
            if !waiting.entries.is_empty() {
                state.files.push_back(waiting);
            }
            let entry = entry?;
            state.waiting -= 1;
            state.under_way += bytes;
            lanes.set_on_their_way(lanes.on_their_way() + bytes, alone);
            return Some((lanes, entry));
        }
        None
    }
}

impl State {
    /// Takes out what was abandoned, often enough that it never outnumbers what is still wanted by more than a constant factor.
    fn sweep(&mut self) -> Vec<Entry> {
        if self.waiting < self.sweep_at.max(SWEEP_MIN) {
            return Vec::new();
        }
        let mut abandoned = Vec::new();
        for waiting in &mut self.files {
            let (gone, wanted): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut waiting.entries).into_iter().partition(|entry| entry.slot.is_abandoned());
            waiting.entries = wanted;
            abandoned.extend(gone);
        }
        self.files.retain(|waiting| !waiting.entries.is_empty());
        self.waiting -= abandoned.len();
        self.sweep_at = self.waiting * 2;
        abandoned
    }
}
