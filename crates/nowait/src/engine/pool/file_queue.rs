//! One turn at a queue of a file: what is first in it, with all that can be done in the same call.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::engine::{run, run_for, write_coalesced};
use crate::op::{Done, FileQueues, Outcome, QueueKind, Request, Slot, Waiter, Work};
use crate::stats::Count;
use crate::sys::{SEGMENTS_MAX, WriteFlags};

/// What one call writes at most when several writes are merged: enough that the call's own cost is nothing, and not so much that
/// the first of them waits long for the last.
const MERGED_BYTES_MAX: usize = 1 << 20;

/// Waits, on a thread of a pool, by the call that it is given.
pub(super) type GiveWay<'w> = &'w dyn Fn(&dyn Fn());

pub(super) fn end(slot: Arc<Slot>, work: Work, outcome: Outcome) {
    slot.put_back(work);
    drop(slot.finish(outcome, Count::Pool));
}

/// Does what is first in a file's queue, and what can be done together with it. False when nothing was there, or a thread
/// that waited in the queue owns it now.
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
        sync(works, give_way)
    } else {
        write(works, whole, kind, give_way)
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
fn write(mut works: Vec<(Arc<Slot>, Work)>, whole: bool, kind: QueueKind, give_way: GiveWay<'_>) {
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
                let _syncing = (kind == QueueKind::Syncs).then(|| work.owner.begin_sync(give_way));
                run_for(&work.owner, &mut work.request)
            }
        };
        end(slot, work, outcome);
    }
}

/// One sync for all: each was asked for before it begins, so that it covers what each has to.
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
