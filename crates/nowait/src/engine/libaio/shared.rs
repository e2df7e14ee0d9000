//! libaio for futures on any executor, where io_uring is refused: direct I/O without a thread for
//! each operation.
//!
//! One context, to which any thread submits, and the watcher that notices completions by the
//! context's eventfd. Each operation is submitted at once, since any thread may submit and no turn
//! collects several. Nothing is cancelled: the kernel cannot cancel I/O of files.
//!
//! `unsafe` here: a slot's pointer travels through the kernel as user data, and what it owns is
//! lent to the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::sys::{Context, DEPTH, Entry};
use crate::engine::places::{Lined, Places};
use crate::engine::{Engine, Refusal, Retry, pool};
use crate::op::watcher::{self, Glance, Note, NoticedBy, Watched};
use crate::op::{Backlog, PLACES_MIN, Slot};
use crate::stats::Count;
use crate::sync::lock;

pub(crate) struct Aio {
    desk: OnceLock<Arc<Desk>>,
    refused: Retry,
}

/// A context and the line before it.
struct Desk {
    context: Context,
    /// The context adds to it with each completion.
    eventfd: OwnedFd,
    line: Mutex<Places>,
    quiet: Condvar,
    note: Note,
}

/// How a slot that had a place was sent.
#[derive(PartialEq, Eq)]
enum Sent {
    /// It has a place in the kernel.
    Taken,
    /// The pool has it; its place is free.
    HandedOn,
    /// It is first in line again: the kernel has no room until something completes.
    NoRoom,
}

impl Aio {
    /// Tries to make the context, so that a refusal is known at once. A shortage that passes is
    /// returned with the engine, which tries again.
    pub(crate) fn new() -> Result<(Aio, Option<Refusal>), Refusal> {
        let aio = Aio { desk: OnceLock::new(), refused: Retry::default() };
        match Desk::new() {
            Ok(desk) => _ = aio.desk.set(desk),
            Err(refusal) if refusal.passes() => return Ok((aio, Some(refusal))),
            Err(refusal) => return Err(refusal),
        }
        Ok((aio, None))
    }

    /// None while it is refused.
    fn desk(&self) -> Option<&Arc<Desk>> {
        if self.desk.get().is_none() {
            // Another thread may have made one meanwhile.
            let _ = self.desk.set(self.refused.when_due(|| Desk::new().ok())?);
        }
        self.desk.get()
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        if let Some(desk) = self.desk.take().filter(|desk| desk.context.is_ours()) {
            watcher::leave(desk);
        }
    }
}

impl Desk {
    fn new() -> Result<Arc<Desk>, Refusal> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let eventfd = eventfd.map_err(|errno| Refusal { errno, entries: DEPTH })?;
        let context = Context::set_up()?;
        let (line, quiet, note) = (Mutex::default(), Condvar::new(), Note::default());
        let desk = Arc::new(Desk { context, eventfd, line, quiet, note });
        let known: Weak<dyn Watched> = Arc::<Desk>::downgrade(&desk);
        watcher::register(known, NoticedBy::Watcher);
        Ok(desk)
    }
}

impl Engine for Aio {
    fn submit(&self, slot: Arc<Slot>) {
        match self.desk().filter(|desk| watcher::adopt(desk)) {
            Some(desk) => desk.submit(slot),
            None => pool::hand_on(slot),
        }
    }

    fn is_refused(&self) -> bool {
        self.desk().is_none()
    }

    fn drain(&self) {
        let Some(desk) = self.desk.get() else { return };
        let mut line = lock(&desk.line);
        line.draining += 1;
        while !line.is_quiet() {
            line = desk.quiet.wait(line).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        line.draining -= 1;
        drop(line);
    }
}

impl Desk {
    fn submit(&self, slot: Arc<Slot>) {
        // Its submission would sleep for a place in the device's queue.
        let is_excess = slot.profile().is_excess;
        let mut line = lock(&self.line);
        let waits = is_excess || line.in_flight >= DEPTH;
        if waits && (line.in_flight == 0 || slot.is_below(PLACES_MIN)) {
            drop(line);
            // No completion would pass a place on: nothing is in flight, or all of it may hang.
            return pool::hand_on(slot);
        }
        if waits {
            slot.count(Count::Queued);
            line.backlog.push(slot);
            let shed = line.backlog.take_shed();
            drop(line);
            watcher::watch();
            return self.discard(shed);
        }
        line.in_flight += 1;
        drop(line);
        if self.send(slot) == Sent::HandedOn {
            self.fill();
        }
    }

    /// Hands the kernel a slot that has a place (counted in `in_flight`). With nothing locked: it
    /// may sleep in there.
    fn send(&self, slot: Arc<Slot>) -> Sent {
        let Some(entry) = Entry::of(&slot) else {
            self.leave(None);
            pool::hand_on(slot);
            return Sent::HandedOn;
        };
        let share = Arc::into_raw(slot);
        let entry = entry.with(share as u64).telling(&self.eventfd);
        // SAFETY: the entry's memory and descriptor belong to the slot, of which the user data is a
        // share that lasts until the completion; the eventfd outlives the context's last one.
        let result = unsafe { self.context.submit(&mut [entry]) };
        if result == Ok(1) {
            return Sent::Taken;
        }
        // SAFETY: the share was made above, and the kernel did not get it.
        let slot = unsafe { Arc::from_raw(share) };
        // Memory or places are short. With nothing in flight, no completion would give the place
        // on.
        let slot = if result == Err(Errno::AGAIN) { self.leave(Some(slot)) } else { self.leave(None).or(Some(slot)) };
        match slot {
            Some(slot) => {
                // The plain call can do it, or gives the errno that counts.
                pool::hand_on(slot);
                Sent::HandedOn
            }
            None => Sent::NoRoom,
        }
    }

    /// Gives up a place. Puts `again` first in line if something is in flight, whose completion
    /// gives the place on; else returns it.
    fn leave(&self, again: Option<Arc<Slot>>) -> Option<Arc<Slot>> {
        let mut line = lock(&self.line);
        line.in_flight -= 1;
        let again = match again {
            Some(slot) if line.in_flight > 0 => {
                line.backlog.push_front(slot);
                None
            }
            again => again,
        };
        line.tell_if_quiet(&self.quiet);
        again
    }

    /// Gives free places to slots in line.
    fn fill(&self) {
        loop {
            let mut line = lock(&self.line);
            if line.in_flight >= DEPTH {
                return;
            }
            let (next, refused) = line.next();
            let shed = line.backlog.take_shed();
            if next.is_some() {
                line.in_flight += 1;
            } else {
                line.tell_if_quiet(&self.quiet);
            }
            drop(line);
            self.discard(shed);
            refused.into_iter().for_each(pool::hand_on);
            // Last, for it may sleep.
            let sent = next.map(|slot| self.send(slot));
            if matches!(sent, None | Some(Sent::NoRoom)) {
                return;
            }
        }
    }
}

impl Lined for Desk {
    fn with_line<T>(&self, look: impl FnOnce(&mut Backlog, u64) -> T) -> T {
        lock(&self.line).look(&self.quiet, look)
    }
}

impl Watched for Desk {
    fn noticed_by(&self) -> NoticedBy {
        NoticedBy::Watcher
    }

    fn note(&self) -> &Note {
        &self.note
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.eventfd.as_fd())
    }

    fn waits_for_owner(&self) -> bool {
        false
    }

    fn glance(&self) -> Glance {
        if self.relieve_line() { Glance::Busy } else { Glance::Quiet }
    }

    fn serve(&self) {
        // Room for all that can be in flight: the eventfd reports later ones again. An error comes
        // from a filter which came late; the kernel's operations are lost then.
        let mut events = Vec::with_capacity(DEPTH as usize);
        let _ = self.context.collect(&mut events);
        lock(&self.line).ended += events.len() as u64;
        for event in events {
            // SAFETY: the user data of every entry is a share made in `send`, and the kernel posts
            // one event for it.
            let slot = unsafe { Arc::from_raw(event.user_data() as *const Slot) };
            match pool::settle(slot, event.result(), Count::Aio) {
                // With the place that it has.
                Some(again) => drop(self.send(again)),
                None => drop(self.leave(None)),
            }
        }
        self.fill();
    }

    fn is_quiet(&self) -> bool {
        lock(&self.line).is_quiet()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // Nothing is in flight for its last holder. (A filter that came late may have lost some.)
        if self.is_quiet() {
            self.context.retire();
        }
    }
}
