//! Waiting for a record: threads, futures and callbacks.

use std::sync::Arc;
use std::task::Waker;

use super::Shared;
use super::calls::{Call, Callback};
use super::group::{Fate, Group};
use super::handover::{ThreadWaits, Turn};
use super::state::{LOOKOUTS, TICK};
use crate::os::APPEND;
use nowait::{Error, ErrorKind, Result, embed};

impl Shared {
    /// Waits until the block of `group` is durable, and writes blocks meanwhile if no other thread
    /// does.
    pub(crate) fn wait(self: &Arc<Self>, lsn: u64, group: &Group) -> Result<u64> {
        let mut waiter = ThreadWaits::default();
        loop {
            match group.fate() {
                Some(Fate::Durable) => {
                    self.woken.record(group.since_end());
                    return Ok(lsn);
                }
                Some(Fate::Failed) => return Err(self.why(lsn)),
                None if self.is_forked() => return Err(self.forked()),
                None => {}
            }
            if group.is_served() {
                // The group ends without this thread's help.
                waiter.looks_out |= group.asleep() < LOOKOUTS;
                self.sleep(group, &waiter);
                continue;
            }
            match self.handover.turn(group, &mut waiter, || embed::now(&self.dir.instance)) {
                Turn::Again => {}
                Turn::Write(submission) => self.write_here(submission),
                Turn::PassOn(next) => self.pass_on(next),
                Turn::Sleep { has_carried } => {
                    if has_carried {
                        // The thread may block the runtime that should notice the completion.
                        self.watch_all();
                    }
                    self.sleep(group, &waiter);
                }
            }
        }
    }

    fn sleep(self: &Arc<Self>, group: &Group, waiter: &ThreadWaits) {
        group.sleep(waiter.looks_out.then_some(TICK));
        // Also after a signal ended the sleep.
        if waiter.looks_out && group.fate().is_none() {
            self.rescue();
        }
    }

    /// Returns the error of a record whose block failed.
    pub(super) fn why(&self, lsn: u64) -> Error {
        match &self.state().poison {
            Some(poison) => self.failure(poison, lsn),
            None => self.error(APPEND, ErrorKind::Indeterminate, format!("record {lsn} was cut off")),
        }
    }

    /// Returns the result for a record whose group has ended.
    pub(crate) fn answer(&self, lsn: u64, group: &Group) -> Option<Result<u64>> {
        group.fate().map(|fate| self.outcome(lsn, fate))
    }

    /// Returns the result for a record whose block has this fate.
    pub(super) fn outcome(&self, lsn: u64, fate: Fate) -> Result<u64> {
        match fate {
            Fate::Durable => Ok(lsn),
            Fate::Failed => Err(self.why(lsn)),
        }
    }

    /// Calls `callback` when the block of `group` is durable or has failed.
    pub(crate) fn call_back(self: &Arc<Self>, lsn: u64, group: &Group, callback: Callback) {
        if self.is_forked() {
            // The child lacks the thread that runs callbacks.
            return callback(Err(self.forked()));
        }
        match group.add_callback(lsn, callback) {
            None => self.carry_all(),
            Some(callback) => {
                let answer = self.answer(lsn, group).unwrap_or_else(|| Err(self.why(lsn)));
                self.calls.add([Call::Durable(callback, answer)]);
                self.serve_calls();
            }
        }
    }

    /// Wakes `waker` when `lsn` is durable, or the log fails; true if a write is needed for that.
    pub(crate) fn watch(&self, lsn: u64, waker: &Waker) -> Result<bool> {
        if self.is_forked() {
            return Err(self.forked());
        }
        let waker = waker.clone();
        let mut state = self.state();
        if self.durable() >= lsn {
            return Ok(false);
        }
        if let Some(poison) = state.poison.clone() {
            return Err(self.failure(&poison, lsn));
        }
        if state.is_closing && lsn >= state.next_lsn {
            let text = format!("the log was closed before record {lsn} was appended");
            return Err(self.error(APPEND, ErrorKind::Closed, text));
        }
        // A record that is not appended yet needs no write.
        let is_pending = lsn < state.next_lsn;
        let known = state.watch(lsn, waker);
        drop(state);
        drop(known);
        Ok(is_pending)
    }
}
