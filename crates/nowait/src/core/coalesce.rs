//! Writes of a thread that drives many futures, made together.
//!
//! Tasks that write one file from one thread continue each other more often than not, and a call
//! for many pages costs little more than one for a page. So under [`block_on`](crate::block_on) a
//! small write waits for the other futures to have their turn: before the thread would sleep,
//! neighbours are tried inline as one, and what cannot be is submitted as if it had come alone. A
//! file whose writes do not continue each other, or come one at a time, does without for a while
//! (`core/policy.rs`).
//!
//! A collected write has not begun. It enters the order of its file's changes when the call is
//! made; the last check for a dropped future follows. So after `settled`, a write whose future was
//! dropped is in the file, or is never made.
//!
//! The thread may block elsewhere before the end of its turn, even on one of these writes. Then the
//! watcher takes them (`op/watcher`), and the pool makes them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use crate::core::dispatch::Target;
use crate::core::inline::Tried;
use crate::core::instance::Instance;
use crate::engine::{local, write_slots};
use crate::op::outstanding::{Outstanding, Turn};
use crate::op::watcher::{self, Glance, Note, NoticedBy, Watched};
use crate::op::{Leftovers, Notify, OpenFile, Owner, Request, Slot};
use crate::stats::Count;
use crate::sync::lock;
use crate::sys::{PerProcess, WriteFlags};

/// Larger writes gain nothing from being coalesced.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// Most bytes that are coalesced, for tens of microseconds; beyond them the end of the turn is not
/// waited for.
const BYTES_MAX: usize = 256 << 10;
const WRITES_MAX: usize = 256;

#[derive(Default)]
struct Collected {
    files: Vec<OfFile>,
    bytes: usize,
    writes: usize,
    /// Kept for its capacity.
    spare: Vec<Collecting>,
}

struct OfFile {
    instance: Arc<Instance>,
    file: Arc<OpenFile>,
    writes: Vec<Collecting>,
}

struct Collecting {
    offset: u64,
    length: usize,
    slot: Arc<Slot>,
}

/// The writes that a thread has collected.
#[derive(Default)]
struct Turnful {
    collected: Mutex<Collected>,
    /// A watcher found some at its last glance.
    is_seen: AtomicBool,
    note: Note,
}

// A child of `fork` has no part in what its parent's thread has collected.
thread_local!(static COLLECTED: PerProcess<Arc<Turnful>> = const { PerProcess::new() });

impl Turnful {
    fn of_thread() -> Arc<Turnful> {
        let new: Arc<Turnful> = Arc::default();
        let known: Weak<dyn Watched> = Arc::<Turnful>::downgrade(&new);
        watcher::register(known, NoticedBy::Thread);
        new
    }

    fn take(&self) -> Vec<OfFile> {
        let mut collected = lock(&self.collected);
        (collected.bytes, collected.writes) = (0, 0);
        self.is_seen.store(false, SeqCst);
        std::mem::take(&mut collected.files)
    }
}

impl Watched for Turnful {
    fn noticed_by(&self) -> NoticedBy {
        NoticedBy::Thread
    }

    fn note(&self) -> &Note {
        &self.note
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn serve(&self) {
        self.take().into_iter().for_each(OfFile::hand_over);
    }

    fn is_quiet(&self) -> bool {
        lock(&self.collected).files.is_empty()
    }

    fn glance(&self) -> Glance {
        match self.is_quiet() {
            true => Glance::Quiet,
            false if self.is_seen.swap(true, SeqCst) => Glance::Left,
            false => Glance::Busy,
        }
    }
}

/// Whether a request may gain by waiting for the end of this thread's turn.
#[inline]
pub(crate) fn may_gain(target: &Target<'_>, request: &Request) -> bool {
    match (request, target.file) {
        (Request::Write(transfer, WriteFlags::NONE), Some(file)) => {
            (1..=WRITE_BYTES_MAX).contains(&transfer.left())
                && file.direct.is_none()
                && file.handle.descriptor().is_ok()
                && local::is_driving()
                // False on a thread that is ending.
                && COLLECTED.try_with(|_| ()).is_ok()
                && file.writes.collects(&target.instance.policy)
        }
        _ => false,
    }
}

/// Collects a request for which [`may_gain`] is true.
pub(crate) fn collect(target: &Target<'_>, request: Request, notify: Notify) -> Arc<Slot> {
    let (Request::Write(transfer, _), Some(file)) = (&request, target.file) else {
        return target.submit(request, notify, None);
    };
    let (offset, length) = (transfer.position(), transfer.left());
    let slot = Slot::new(request, Owner::File(file.clone()), notify);
    let write = Collecting { offset, length, slot: slot.clone() };
    local::before_sleep(write_collected);
    let is_full = with(|collected| {
        collected.bytes += length;
        collected.writes += 1;
        match collected.files.iter_mut().find(|of| Arc::ptr_eq(&of.file, file)) {
            Some(of) => of.writes.push(write),
            None => {
                let (instance, file) = (target.instance.clone(), file.clone());
                let mut writes = std::mem::take(&mut collected.spare);
                writes.push(write);
                collected.files.push(OfFile { instance, file, writes });
            }
        }
        collected.bytes >= BYTES_MAX || collected.writes >= WRITES_MAX
    });
    // After the write is in the list, or a glance might come too early.
    watcher::watch();
    if is_full {
        write_collected();
    }
    slot
}

fn with<T>(look: impl FnOnce(&mut Collected) -> T) -> T {
    COLLECTED.with(|turn| look(&mut lock(&turn.get(Turnful::of_thread).collected)))
}

/// Makes the writes that this thread has collected. Wakers run with nothing borrowed.
fn write_collected() {
    let files = COLLECTED.with(|turn| turn.get(Turnful::of_thread).take());
    for of in files {
        let spare = of.write();
        with(|collected| collected.spare = spare);
    }
}

impl OfFile {
    /// Gives the writes to an engine: their thread does something else.
    fn hand_over(self) {
        let OfFile { instance, file, writes } = self;
        // Each slot holds the file until it ends.
        drop(file);
        end(&instance, &writes, (Tried::Part(0), None));
    }

    /// Makes the writes, and returns the list, empty.
    fn write(self) -> Vec<Collecting> {
        let OfFile { instance, file, mut writes } = self;
        writes.retain(|write| {
            let abandoned = write.slot.is_abandoned();
            if abandoned {
                write.slot.discard().let_go();
            }
            !abandoned
        });
        // In the order in which they came, unless another makes neighbours of them and changes
        // nothing else.
        if !in_order(writes.iter()) {
            let mut sorted: Vec<&Collecting> = writes.iter().collect();
            sorted.sort_by_key(|write| write.offset);
            if in_order(sorted.into_iter()) {
                writes.sort_by_key(|write| write.offset);
            }
        }
        let mut runs = writes.chunk_by(|one, next| one.end() == next.offset).peekable();
        let queues = file.queues().clone();
        let (mut file, mut calls) = (Some(file), 0);
        while let (Some(run), Some(of)) = (runs.next(), &file) {
            let target = Target { instance: &instance, file: Some(of) };
            let made = make(&target, of, queues.outstanding(), run);
            calls += 1;
            if runs.peek().is_none() {
                of.writes.collected(writes.len(), calls);
                // Each slot holds the file until it ends. The owner of the last one may close the
                // file when it learns of the end.
                file = None;
            }
            end(&instance, run, made);
        }
        if let Some(file) = file {
            // All of them were abandoned.
            file.writes.collected(0, 0);
        }
        writes.clear();
        writes
    }
}

impl Collecting {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }
}

/// Each begins where the one before it ends, or later.
fn in_order<'w>(mut writes: impl Iterator<Item = &'w Collecting>) -> bool {
    let mut end = 0;
    writes.all(|write| {
        let follows = write.offset >= end;
        end = write.end();
        follows
    })
}

/// Makes one call for adjacent writes, on this thread if it should not block. They share one turn.
fn make<'o>(
    target: &Target<'_>,
    file: &OpenFile,
    order: &'o Outstanding,
    run: &[Collecting],
) -> (Tried, Option<Turn<'o>>) {
    let counters = &target.instance.counters;
    let (offset, length) = (run[0].offset, run.iter().map(|write| write.length).sum());
    let slots = || run.iter().map(|write| &*write.slot);
    let call = |wait| write_slots(&file.handle, slots(), offset, wait);
    let (tried, turn) = target.try_write(file, order, offset, length, false, call);
    if matches!(tried, Tried::Hit) {
        counters.add(Count::AttemptTogether);
    }
    if run.len() > 1 {
        counters.add_many(Count::Joined, run.len() as u64);
    }
    (tried, turn)
}

/// Divides the bytes that a call moved among its writes. An engine makes the rest of each write,
/// and returns its error; no other change comes between the call and the rest.
fn end(instance: &Arc<Instance>, run: &[Collecting], (tried, mut turn): (Tried, Option<Turn<'_>>)) {
    let mut moved = match tried {
        Tried::Hit => usize::MAX,
        Tried::Called(result) => result.unwrap_or(0),
        Tried::Part(n) => n,
    };
    let takes_all = |write: &&Collecting| {
        let all = write.length <= moved;
        moved -= if all { write.length } else { 0 };
        all
    };
    let (whole, rest) = run.split_at(run.iter().take_while(takes_all).count());
    for Collecting { slot, .. } in rest {
        let mine = std::mem::take(&mut moved);
        if let Some(leftovers) = (mine > 0).then(|| slot.complete(Ok(mine), Count::InlineTogether)).flatten() {
            leftovers.let_go();
            continue;
        }
        // The submission drops this reference to the file before an engine can end the slot.
        let file_and_change = slot.with(|request, owner| {
            let file = owner.file()?;
            Some((file.clone(), file.change(request)?))
        });
        let Some((file, change)) = file_and_change.flatten() else { continue };
        let engines = instance.engines();
        engines.throttle.submit(slot.clone(), file, &engines.pool, change, turn.as_mut());
    }
    // A waker may block: end the turn first, so that no change waits for this thread.
    drop(turn);
    for Collecting { slot, length, .. } in whole {
        slot.complete(Ok(*length), Count::InlineTogether).into_iter().for_each(Leftovers::let_go);
    }
}
