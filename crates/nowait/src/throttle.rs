//! A bound on the bytes of writes that are on their way, per file and per instance: beyond it a writer waits in line, first come
//! first served, and its buffer with it. So memory stays bounded by what callers keep, whatever the device does.
//!
//! A place is given on by a completion, never by a poll.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::buf::lock;
use crate::engine::Engine;
use crate::op::{OpenFile, Slot};
use crate::stats::Count;

pub(crate) struct Throttle {
    per_file: u64,
    per_instance: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    under_way: u64,
    line: VecDeque<Entry>,
}

struct Entry {
    slot: Arc<Slot>,
    file: Arc<OpenFile>,
    engine: Arc<dyn Engine>,
    bytes: u64,
}

/// Bytes that a slot has on their way; given back when it is finished.
struct Permit {
    throttle: Arc<Throttle>,
    file: Arc<OpenFile>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.throttle.state);
        state.under_way -= self.bytes;
        self.file.set_on_their_way(self.file.on_their_way() - self.bytes);
        let free = self.throttle.take_admissible(&mut state);
        drop(state);
        free.into_iter().for_each(|entry| self.throttle.admit(entry));
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
    ) {
        let entry = Entry { slot, file, engine, bytes: bytes as u64 };
        let mut state = lock(&self.state);
        // Nobody overtakes an earlier write of the same file.
        let waits = state.line.iter().any(|other| Arc::ptr_eq(&other.file, &entry.file)) || !self.fits(&state, &entry);
        if waits {
            entry.slot.count(Count::Throttled);
            state.line.push_back(entry);
            return;
        }
        self.charge(&mut state, &entry);
        drop(state);
        self.admit(entry);
    }

    /// Whether `bytes` more could be submitted at once.
    pub(crate) fn has_room(&self, file: &OpenFile, bytes: usize) -> bool {
        let state = lock(&self.state);
        state.line.is_empty()
            && state.under_way + bytes as u64 <= self.per_instance
            && file.on_their_way() + bytes as u64 <= self.per_file
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let state = lock(&self.state);
        state.under_way == 0 && state.line.is_empty()
    }

    /// One that is larger than a bound goes alone.
    fn fits(&self, state: &State, entry: &Entry) -> bool {
        let on_file = entry.file.on_their_way();
        (state.under_way == 0 || state.under_way + entry.bytes <= self.per_instance)
            && (on_file == 0 || on_file + entry.bytes <= self.per_file)
    }

    fn charge(&self, state: &mut State, entry: &Entry) {
        state.under_way += entry.bytes;
        entry.file.set_on_their_way(entry.file.on_their_way() + entry.bytes);
    }

    /// Takes those from the line for which there is room now. A file whose bound is reached does not hold up others.
    fn take_admissible(&self, state: &mut State) -> Vec<Entry> {
        let mut free = Vec::new();
        let mut held_up: Vec<*const OpenFile> = Vec::new();
        let mut at = 0;
        while at < state.line.len() && (state.under_way == 0 || state.under_way < self.per_instance) {
            let entry = &state.line[at];
            if entry.slot.is_abandoned() || (!held_up.contains(&Arc::as_ptr(&entry.file)) && self.fits(state, entry)) {
                if let Some(entry) = state.line.remove(at) {
                    self.charge(state, &entry);
                    free.push(entry);
                }
                continue;
            }
            held_up.push(Arc::as_ptr(&entry.file));
            at += 1;
        }
        free
    }

    /// What was abandoned goes to the engine, too, which discards it, and the permit with it.
    fn admit(self: &Arc<Self>, entry: Entry) {
        let Entry { slot, file, engine, bytes } = entry;
        slot.hold(Box::new(Permit { throttle: self.clone(), file, bytes }));
        engine.submit(slot);
    }
}
