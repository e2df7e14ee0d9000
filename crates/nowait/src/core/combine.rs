//! Merges small writes of several tasks.
//!
//! Tasks often write adjacent pages of one file, and a call for many pages costs little more than a
//! call for one. So the first poll of a small write leaves it in the file's queue of writes
//! (`op/queue.rs`). The first task that leaves a write yields. The next of these futures to be
//! polled makes all writes that were left, with one call for neighbours. Its thread makes the calls
//! that should not block, and a pool thread the others. The file's later writes are not left for a
//! while if merging saved few calls (`core/policy.rs`).
//!
//! A left write has its place in the order of the file's changes, and its bytes count as in flight.
//! A pool thread makes all left writes in three cases: another write of the file joins the queue, a
//! caller waits for a change, or no task claims the queue between two glances of a watcher.

use std::sync::Arc;
use std::task::Context;

use crate::core::dispatch::Target;
use crate::core::inline::Tried;
use crate::engine::{local, write_slots};
use crate::op::left::{LeftTo, LeftWrite};
use crate::op::watcher;
use crate::op::{Leftovers, Notify, OpenFile, Owner, QueueKind, Request, Slot};
use crate::stats::Count;
use crate::sys::WriteFlags;

/// Longer writes gain nothing from merging.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// Bytes that one thread writes before it gives up the queue to other writers of the file. They
/// take some tens of microseconds.
const MADE_BYTES_MAX: usize = 512 << 10;

/// Whether a request may gain by waiting for other writes of its file.
#[inline]
pub(crate) fn may_gain(target: &Target<'_>, request: &Request) -> bool {
    match (request, target.file) {
        (Request::Write(transfer, WriteFlags::NONE), Some(file)) => {
            (1..=WRITE_BYTES_MAX).contains(&transfer.left())
                && file.direct.is_none()
                && file.handle.descriptor().is_ok()
                && file.writes.combines(&target.instance.policy, local::is_driving())
        }
        _ => false,
    }
}

/// Leaves a request for which [`may_gain`] is true in the file's queue; the next poll of such a
/// write calls [`make`]. Returns true if the request may already have ended.
pub(crate) fn leave(target: &Target<'_>, request: Request, context: &Context<'_>) -> (Arc<Slot>, bool) {
    let notify = Notify::Waker(context.waker().clone());
    let admitted = target.file.and_then(|file| {
        let change = file.change(&request)?;
        Some((file, change, target.instance.engines().throttle.enter(file, change)?))
    });
    // Without a permit, the write has to wait for earlier changes in any case.
    let Some((file, change, permit)) = admitted else { return (target.submit(request, notify, None), true) };
    let slot = Slot::with_permit(request, Owner::File(file.clone()), notify, Some(permit));
    let queues = file.queues();
    let left_to = queues.leave_write(slot.clone(), change.bytes as usize);
    match left_to {
        // Other tasks run before this one, and may leave writes.
        LeftTo::Itself => context.waker().wake_by_ref(),
        LeftTo::Another => {}
        LeftTo::Now => make(target),
    }
    if queues.outstanding().is_awaited() {
        watcher::ask();
    }
    (slot, left_to == LeftTo::Now)
}

/// Makes the writes that were left in the queue of a file, unless another thread owns it.
pub(crate) fn make(target: &Target<'_>) {
    let Some(file) = target.file else { return };
    let queues = file.queues();
    let (mut ended, mut abandoned) = (Vec::new(), Vec::new());
    let (mut bytes, mut is_claimed) = (0, false);
    while let Some(writes) = queues.take_left(is_claimed, &mut abandoned) {
        is_claimed = true;
        bytes += writes.iter().map(|write| write.length).sum::<usize>();
        let rest = make_all(target, file, writes, &mut ended);
        let is_held_up = !rest.is_empty();
        queues.put_back(rest);
        if is_held_up || bytes >= MADE_BYTES_MAX {
            break;
        }
    }
    if is_claimed {
        target.instance.engines().pool.resume(file, QueueKind::Writes);
    }
    // A waker may block, so the queue is given up before wakers run.
    abandoned.into_iter().for_each(|slot| slot.discard().let_go());
    for (slot, length) in ended {
        slot.complete(Ok(length), Count::InlineTogether).into_iter().for_each(Leftovers::let_go);
    }
}

/// Makes writes, with one call for neighbours. Adds complete writes to `ended`, and returns the
/// others.
fn make_all(
    target: &Target<'_>,
    file: &OpenFile,
    mut writes: Vec<LeftWrite>,
    ended: &mut Vec<(Arc<Slot>, usize)>,
) -> Vec<LeftWrite> {
    // Writes that have begun do not overlap each other, so any order is allowed.
    writes.sort_unstable_by_key(|write| write.offset);
    let (mut moved, mut calls, mut all) = (Vec::with_capacity(writes.len()), 0, true);
    for run in writes.chunk_by(|one, next| one.offset + one.length as u64 == next.offset) {
        // If one call should not be made here, the later ones are not tried either.
        let mut bytes = if all { make_run(target, file, run) } else { 0 };
        calls += 1;
        for write in run {
            let mine = bytes.min(write.length);
            bytes -= mine;
            all &= mine == write.length;
            moved.push(mine);
        }
    }
    file.writes.combined(writes.len(), calls, local::is_driving());
    let mut rest = Vec::new();
    for (write, moved) in writes.into_iter().zip(moved) {
        if moved == write.length {
            ended.push((write.slot, moved));
        } else if moved == 0 {
            rest.push(write);
        } else {
            // A partial write ends only if its future was dropped.
            match write.slot.complete(Ok(moved), Count::InlineTogether) {
                Some(leftovers) => leftovers.let_go(),
                None => rest.push(write),
            }
        }
    }
    rest
}

/// Makes one call for neighbours, on this thread if it should not block. Returns the bytes written.
/// An error belongs to one of the writes: the pool repeats them, and reports it.
fn make_run(target: &Target<'_>, file: &OpenFile, run: &[LeftWrite]) -> usize {
    let counters = &target.instance.counters;
    let (offset, length) = (run[0].offset, run.iter().map(|write| write.length).sum());
    let slots = || run.iter().map(|write| &*write.slot);
    let call = |wait| write_slots(&file.handle, slots(), offset, wait);
    // No turn is needed: each write has had its place in the order since it was left.
    let write = || target.try_write(file, offset, length, false, true, || Some(()), call);
    let (tried, _) = file.queues().of(QueueKind::Writes).call(length as u64, write);
    if run.len() > 1 {
        counters.add_many(Count::Joined, run.len() as u64);
    }
    match tried {
        Tried::Hit => {
            counters.add(Count::AttemptTogether);
            length
        }
        Tried::Part(moved) => moved,
        Tried::Called(result) => result.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::task::Waker;

    use super::*;
    use crate::buf::WriteBuffer;
    use crate::core::instance::Nowait;
    use crate::file::OpenOptions;
    use crate::op::outstanding::{Resume, Span};
    use crate::op::{Change, Transfer};

    /// A line of changes, which notes whether the file's queue of writes is owned when it goes on.
    struct Line {
        file: Arc<OpenFile>,
        found_claimed: AtomicBool,
        resumed: AtomicBool,
    }

    impl Resume for Line {
        fn resume(self: Arc<Self>) {
            self.found_claimed.store(self.file.queues().of(QueueKind::Writes).lock().busy, SeqCst);
            self.resumed.store(true, SeqCst);
        }
    }

    /// Symptom: what the end of an abandoned write let go on ran while this thread owned the file's
    /// queue, in which all other writes of the file waited.
    #[test]
    fn abandoned_writes_end_when_the_queue_was_given_up() {
        let nowait = Nowait::builder().build().unwrap();
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let file = OpenOptions::new().write(true).create(true).open_in(&nowait, &path).wait().unwrap();
        let target = file.target();
        let open = target.file.unwrap();
        let write = |block: u64| {
            let transfer = Transfer::new(vec![1; 4096].into_memory().0, block * 4096);
            leave(&target, Request::Write(transfer, WriteFlags::NONE), &Context::from_waker(Waker::noop())).0
        };
        let slots = [write(0), write(1)];
        slots.iter().for_each(|slot| slot.abandon());
        let line = Arc::new(Line {
            file: open.clone(),
            found_claimed: AtomicBool::new(false),
            resumed: AtomicBool::new(false),
        });
        let change = Change { span: Span::new(4096, 1), bytes: 0, alone: false, durable: false };
        let number = open.outstanding().join(change.span);
        assert!(!open.outstanding().begin(number, &change, |_| true, || line.clone()));
        make(&target);
        assert!(line.resumed.load(SeqCst), "the abandoned write has not ended");
        assert!(!line.found_claimed.load(SeqCst), "the queue is owned");
        open.outstanding().give_up(number, change.span);
    }
}
