//! One turn at a queue of a file: its first operation, with all that can share the call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::buf::Direction;
use crate::engine::{run, run_for, write_coalesced};
use crate::op::{Done, FileQueues, Outcome, QueueKind, Request, Slot, Waiter, Work};
use crate::stats::Count;
use crate::sys::{SEGMENTS_MAX, WriteFlags};

/// Most bytes of merged writes: enough to make the call's own cost negligible, and not so many that
/// the first write waits long for the last.
const MERGED_BYTES_MAX: usize = 1 << 20;

/// Blocks in the call that it is given, while another pool thread takes this one's place.
pub(super) type GiveWay<'w> = &'w dyn Fn(&dyn Fn());

/// Gives the work back to its slot, and finishes it.
pub(super) fn end(slot: Arc<Slot>, work: Work, outcome: Outcome) {
    slot.put_back(work);
    drop(slot.finish(outcome, Count::Pool));
}

/// Runs the first operation of a file's queue, and those that can share its call. False if the
/// queue was empty, or a thread that waited in it owns it now.
pub(super) fn serve_file_queue(file_queues: &FileQueues, kind: QueueKind, give_way: GiveWay<'_>) -> bool {
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
            // All of them, wherever they stand: each was submitted before this one begins.
            let (syncs, others) = std::mem::take(waiters).into_iter().partition::<VecDeque<_>, _>(is_sync);
            *waiters = others;
            syncs.into_iter().filter_map(Waiter::into_slot).collect()
        }
        Some(Waiter::Slot(_)) => next_writes(waiters),
    };
    drop(waiting);
    let taken = batch.len();
    // Outside of the lock: an operation that ends here may queue more.
    let works: Vec<_> = batch.into_iter().filter_map(|slot| slot.take_work().map(|work| (slot, work))).collect();
    let whole = works.len() == taken;
    let bytes = works.iter().map(|(_, work)| if let Request::Write(rest, _) = &work.request { rest.left() } else { 0 });
    let bytes = bytes.sum::<usize>() as u64;
    file_queues.of(kind).call(bytes, || match syncs {
        true => sync(works, give_way),
        false => write(works, whole, kind, give_way),
    });
    true
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
        let result = write_coalesced(works[0].1.owner.handle(), works.iter().map(|(_, work)| &work.request));
        if let (Ok(bytes), Some(file)) = (result, works[0].1.owner.file()) {
            file.device().answered(Direction::Write, bytes, begun.elapsed().as_nanos() as u64);
        }
        let durable = matches!(&works[0].1.request, Request::Write(_, flags) if flags.contains(WriteFlags::DURABLE));
        // The error may be that of an earlier write, and is reported once: all of them get it.
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

/// Makes one sync for all: each was submitted before it begins, so that it covers each one's
/// writes.
fn sync(works: Vec<(Arc<Slot>, Work)>, give_way: GiveWay<'_>) {
    let Some((_, Work { owner, .. })) = works.first() else { return };
    let data_only = works.iter().all(|(_, work)| matches!(work.request, Request::Sync { data_only: true }));
    let outcome = {
        let _syncing = owner.begin_sync(give_way);
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
