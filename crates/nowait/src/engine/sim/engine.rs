//! The simulator as an engine: completions in a seeded order, by the simulator's thread or step by
//! step.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use super::Sim;
use super::world::{World, under_way};
use crate::engine::Engine;
use crate::op::{
    FileQueues, Handle, OpenFile, Outcome, Owner, PathAt, QueueKind, Request, SHARE, Slot, Waiter, Work, in_queues,
};
use crate::stats::Count;
use crate::sync::lock;
use crate::sys::{self, Errno, OFlags, WaitMode};

pub(super) struct Disk {
    /// Unique in the process.
    pub(super) number: u64,
    pub(super) world: Mutex<World>,
    pub(super) work: Condvar,
    pub(super) quiet: Condvar,
    pub(super) manual: bool,
    pub(super) began: Instant,
    pub(super) advanced_ns: AtomicU64,
    /// Wall clock when the disk began, in milliseconds since 1970.
    pub(super) clock_ms: AtomicI64,
}

impl Disk {
    /// Ends one operation, and runs its callback, in the order of the simulation.
    pub(super) fn step(&self) -> bool {
        sys::calling_back(true, || self.end_one())
    }

    fn end_one(&self) -> bool {
        let mut world = lock(&self.world);
        let chosen = if world.hung.is_empty() {
            if world.in_flight.is_empty() {
                return false;
            }
            (world.random.next() % world.in_flight.len() as u64) as usize
        } else {
            let may_end = world.may_end();
            if may_end.is_empty() {
                return false;
            }
            may_end[(world.random.next() % may_end.len() as u64) as usize]
        };
        let (number, slot) = world.in_flight.swap_remove(chosen);
        world.settling += 1;
        // Not under the lock: one that was abandoned gives back a permit, which lets others in.
        drop(world);
        let work = slot.take_work();
        // A request that may take a file's report has its turn, beside threads that block.
        let file = work.as_ref().and_then(|work| Some((work.owner.file()?, &work.request)));
        let file = file.filter(|(file, request)| file.queue(request) == Some(QueueKind::Syncs));
        let queue = file.map(|(file, _)| file.queues().clone());
        let waits = queue.as_ref().is_some_and(|queues| !queues.of(QueueKind::Syncs).enter());
        let work = match work {
            Some(work) if waits => {
                slot.put_back(work);
                None
            }
            work => work,
        };
        let mut world = lock(&self.world);
        let mut rest = None;
        let end = work.and_then(|mut work| {
            let Work { request, owner } = &mut work;
            let end = match request {
                Request::Sync { .. } => Some(owner.synced(|| world.other(owner.handle(), request, number))),
                _ => world.call(owner.handle(), request, number),
            };
            match (&end, owner) {
                (None, owner) => rest = under_way(owner.handle(), request),
                // Before any other call to the disk.
                (Some(outcome), Owner::File(file)) => file.note_answer(request, outcome),
                (Some(_), Owner::Nobody(..)) => {}
            }
            slot.put_back(work);
            if end.is_none() {
                world.in_flight.push((number, slot.clone()));
            }
            end
        });
        world.store.set_under_way(number, rest);
        loop {
            let next = match world.in_flight.len() < world.depth {
                true => world.line.pop(),
                false if world.hung.is_empty() => None,
                false => world.line.pop_below(SHARE, in_queues),
            };
            let Some(next) = next else { break };
            world.admit(next);
        }
        let shed = world.line.take_shed();
        drop(world);
        match queue {
            // It waits in the queue, unless that has just become free.
            Some(queues) if waits && !queues.of(QueueKind::Syncs).join(slot.clone()) => {}
            Some(queues) => self.give_up(&queues),
            None => {}
        }
        // Wakers run with nothing locked.
        if let Some(outcome) = end {
            drop(slot.finish(outcome, Count::Ring));
        }
        drop(slot);
        let discarded = discard(shed);
        let mut world = lock(&self.world);
        world.line.discarded(discarded);
        world.settling -= 1;
        if world.in_flight.is_empty() && world.settling == 0 {
            self.quiet.notify_all();
        }
        true
    }

    /// Gives up a file's queue of syncs, which this thread owns. Slots that waited in it are in
    /// flight again.
    fn give_up(&self, queues: &FileQueues) {
        let queue = queues.of(QueueKind::Syncs);
        while queue.leave() {
            let first = queue.lock().waiters.pop_front();
            if let Some(slot) = first.and_then(Waiter::into_slot) {
                self.submit(slot);
            }
        }
    }

    fn submit(&self, slot: Arc<Slot>) {
        let mut world = lock(&self.world);
        if world.has_room_for(&slot) {
            world.admit(slot);
        } else {
            slot.count(Count::Queued);
            world.line.push(slot);
        }
        drop(world);
        self.work.notify_all();
    }

    pub(super) fn serve(&self) {
        loop {
            while self.step() {}
            let mut world = lock(&self.world);
            while world.in_flight.is_empty() || !world.hung.is_empty() && world.may_end().is_empty() {
                if world.engines == 0 {
                    return;
                }
                world = self.work.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }
}

/// Discards slots that the line has shed; returns their number. Called with nothing locked.
fn discard(shed: Vec<Arc<Slot>>) -> usize {
    shed.iter().for_each(|slot| drop(slot.discard()));
    shed.len()
}

pub(super) struct SimEngine(pub(super) Arc<Disk>);

impl SimEngine {
    /// Shows the disk to its watcher, as it is when a call has begun.
    fn look(&self, handle: Option<&Handle>, request: &Request, number: u64) {
        let mut world = lock(&self.0.world);
        let Some(watcher) = world.watcher.clone() else { return };
        world.store.set_under_way(number, under_way(handle, request));
        drop(world);
        watcher(&Sim(self.0.clone()));
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        let mut world = lock(&self.0.world);
        world.engines = world.engines.saturating_sub(1);
        self.0.work.notify_all();
    }
}

impl Engine for SimEngine {
    fn try_now(&self, handle: &Handle, request: &mut Request, wait: WaitMode) -> Result<usize, Errno> {
        let (transfer, flags) = match request {
            Request::Read(transfer) => (transfer, None),
            Request::Write(transfer, flags) => (transfer, Some(*flags)),
            _ => return Err(Errno::INVAL),
        };
        let n = lock(&self.0.world).transfer(Some(handle), transfer, flags, wait)?;
        transfer.advance(n);
        Ok(n)
    }

    /// Opens are completed in the seeded order, as all that is no transfer.
    fn open_now(&self, _path: &PathAt, _flags: OFlags) -> Outcome {
        Err(Errno::AGAIN)
    }

    fn run(&self, handle: Option<&Handle>, request: &mut Request) -> Outcome {
        let number = lock(&self.0.world).store.begin(None);
        loop {
            let changes_nothing = matches!(
                request,
                Request::Read(_)
                    | Request::Size
                    | Request::List(_)
                    | Request::OpenDir(_)
                    | Request::Advise { .. }
                    | Request::Close(_)
            );
            if !changes_nothing {
                self.look(handle, request, number);
            }
            let mut world = lock(&self.0.world);
            while world.hangs(handle) {
                world = self.0.work.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            let end = world.call(handle, request, number);
            world.store.set_under_way(number, None);
            if let Some(outcome) = end {
                return outcome;
            }
        }
    }

    fn submit(&self, slot: Arc<Slot>) {
        self.0.submit(slot);
    }

    fn resume(&self, file: &OpenFile, kind: QueueKind) {
        if kind == QueueKind::Syncs {
            self.0.give_up(file.queues());
        }
    }

    fn drain(&self) {
        if self.0.manual {
            while self.0.step() {}
            return;
        }
        let mut world = lock(&self.0.world);
        while !world.in_flight.is_empty() || world.settling > 0 {
            world = self.0.quiet.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}
