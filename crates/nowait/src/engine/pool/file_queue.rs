//! One turn at a queue of a file: its first operation, with all that can share the call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::buf::Direction;
use crate::engine::{run, run_for, write_coalesced};
use crate::op::{Done, FileQueues, Outcome, Owner, QueueKind, Request, Slot, Waiter, Work};
use crate::stats::Count;
use crate::sys::{Errno, SEGMENTS_MAX, WriteFlags};

/// Most bytes of merged writes: enough to make the call's own cost negligible, and not so many that
/// the first write waits long for the last.
const MERGED_BYTES_MAX: usize = 1 << 20;
/// Most writes that share a sync: the first of them waits for all.
const DURABLE_MAX: usize = 64;

/// Blocks in the call that it is given, while another pool thread takes this one's place.
pub(super) type GiveWay<'w> = &'w dyn Fn(&dyn Fn());

/// Gives the work back to its slot, and finishes it.
pub(super) fn end(slot: Arc<Slot>, work: Work, outcome: Outcome) {
    slot.put_back(work);
    drop(slot.finish(outcome, Count::Pool));
}

/// How one thread makes operations of a file's queue together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    /// By one sync.
    Syncs,
    /// Durable writes: by a call for each, and one sync.
    Durable,
    /// Writes of which each continues the one before it, by one call. Or any other single operation.
    Run,
}

impl Together {
    fn of(request: &Request, owner: &Owner) -> Together {
        match request {
            Request::Sync { .. } => Together::Syncs,
            // A sync also writes the pages of other writes.
            Request::Write(_, WriteFlags::DURABLE)
                if owner.file().is_some_and(|file| file.has_only_durable_writes()) =>
            {
                Together::Durable
            }
            _ => Together::Run,
        }
    }
}

/// Runs the first operation of a file's queue, and those that can share its call. False if the
/// queue was empty, or a thread that waited in it owns it now.
pub(super) fn serve_file_queue(file_queues: &FileQueues, kind: QueueKind, give_way: GiveWay<'_>) -> bool {
    let mut waiting = file_queues.of(kind).lock();
    let waiters = &mut waiting.waiters;
    let first = match waiters.front() {
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
        Some(Waiter::Slot(first)) => first,
    };
    let together = first.with(Together::of).unwrap_or(Together::Run);
    let slots = match together {
        Together::Syncs => take_syncs(waiters),
        Together::Durable => next_durable(waiters),
        Together::Run => next_writes(waiters),
    };
    drop(waiting);
    let taken = slots.len();
    // Outside of the lock: an operation that ends here may queue more.
    let works: Vec<_> = slots.into_iter().filter_map(|slot| slot.take_work().map(|work| (slot, work))).collect();
    let whole = works.len() == taken;
    let bytes = works.iter().map(|(_, work)| if let Request::Write(rest, _) = &work.request { rest.left() } else { 0 });
    let bytes = bytes.sum::<usize>() as u64;
    file_queues.of(kind).call(bytes, || match together {
        Together::Syncs => sync(works, give_way),
        Together::Durable if works.len() > 1 => write_durably(works, kind, give_way),
        Together::Durable | Together::Run => write(works, whole, kind, give_way),
    });
    true
}

/// Takes all syncs, wherever they stand: each was submitted before the call that serves them begins.
fn take_syncs(waiters: &mut VecDeque<Waiter>) -> Vec<Arc<Slot>> {
    let is_sync = |waiter: &Waiter| match waiter {
        Waiter::Slot(slot) => slot.with(Together::of) == Some(Together::Syncs),
        Waiter::Thread(_) => false,
    };
    let (syncs, others) = std::mem::take(waiters).into_iter().partition::<VecDeque<_>, _>(is_sync);
    *waiters = others;
    syncs.into_iter().filter_map(Waiter::into_slot).collect()
}

/// Takes durable writes that may share a sync, wherever they stand.
fn next_durable(waiters: &mut VecDeque<Waiter>) -> Vec<Arc<Slot>> {
    let (mut taken, mut place, mut bytes) = (Vec::new(), 0, 0);
    while taken.len() < DURABLE_MAX && place < waiters.len() {
        let length = |request: &Request, owner: &Owner| match (Together::of(request, owner), request) {
            (Together::Durable, Request::Write(transfer, _)) => Some(transfer.left()),
            _ => None,
        };
        let Some(Waiter::Slot(slot)) = waiters.get(place) else { break };
        let Some(length) = slot.with(length).flatten() else {
            place += 1;
            continue;
        };
        bytes += length;
        if bytes > MERGED_BYTES_MAX && !taken.is_empty() {
            break;
        }
        taken.extend(waiters.remove(place).and_then(Waiter::into_slot));
    }
    taken
}

/// Takes the first write, and those after it that continue it.
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

/// Makes writes, in one call if none was abandoned, so that each continues the one before it. (Or
/// runs the single other operation.)
fn write(mut works: Vec<(Arc<Slot>, Work)>, whole: bool, kind: QueueKind, give_way: GiveWay<'_>) {
    let mut failed = None;
    if whole && works.len() > 1 {
        let begun = Instant::now();
        let flags = if let Request::Write(_, flags) = &works[0].1.request { *flags } else { WriteFlags::NONE };
        let result = write_coalesced(works[0].1.owner.handle(), works.iter().map(|(_, work)| &work.request), flags);
        if let (Ok(bytes), Some(file)) = (result, works[0].1.owner.file()) {
            file.device().answered(Direction::Write, bytes, begun.elapsed().as_nanos() as u64);
        }
        // The error may be that of an earlier write, and is reported once: all of them get it.
        failed = result.err().filter(|_| flags.contains(WriteFlags::DURABLE));
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
        // After a short call or an error each write does its rest itself.
        let outcome = match failed {
            Some(errno) => Err(errno),
            None => {
                let _syncing = (kind == QueueKind::Syncs).then(|| work.owner.begin_sync(give_way));
                run_for(&work.owner, &mut work.request)
            }
        };
        end(slot, work, outcome);
    }
}

/// Makes durable writes, and one sync for all. If a call fails, makes each write again, alone.
fn write_durably(works: Vec<(Arc<Slot>, Work)>, kind: QueueKind, give_way: GiveWay<'_>) {
    let are_written = works.iter().all(|(_, work)| is_written(work));
    if !are_written || sync_once(&works, true, give_way).is_err() {
        return write(works, false, kind, give_way);
    }
    for (slot, mut work) in works {
        work.owner.count(Count::Joined);
        if let Request::Write(transfer, _) = &mut work.request {
            transfer.advance(transfer.left());
        }
        end(slot, work, Ok(Done::Nothing));
    }
}

/// Writes all bytes of a durable write to the page cache. The request does not change.
fn is_written(work: &Work) -> bool {
    let Request::Write(transfer, _) = &work.request else { return false };
    let written = write_coalesced(work.owner.handle(), std::iter::once(&work.request), WriteFlags::NONE);
    written == Ok(transfer.left())
}

/// Makes one sync of the file of these operations.
fn sync_once(works: &[(Arc<Slot>, Work)], data_only: bool, give_way: GiveWay<'_>) -> Result<(), Errno> {
    let Some((_, Work { owner, .. })) = works.first() else { return Ok(()) };
    let _syncing = owner.begin_sync(give_way);
    owner.synced(|| run(owner.handle(), &mut Request::Sync { data_only })).map(drop)
}

/// Makes one sync for all: each was submitted before it begins, so that it covers each one's
/// writes.
fn sync(works: Vec<(Arc<Slot>, Work)>, give_way: GiveWay<'_>) {
    let data_only = works.iter().all(|(_, work)| matches!(work.request, Request::Sync { data_only: true }));
    let outcome = sync_once(&works, data_only, give_way);
    let many = works.len() > 1;
    for (slot, work) in works {
        if many {
            work.owner.count(Count::Joined);
        }
        end(slot, work, outcome.map(|()| Done::Nothing));
    }
}
