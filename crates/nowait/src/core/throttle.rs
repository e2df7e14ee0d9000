//! A bound on the bytes of writes that are on their way, per file and per instance: beyond it a
//! write waits in line, first come first served, and its buffer with it. So memory stays bounded by
//! what callers keep, whatever the device does. Every file may have one write on its way, whatever
//! others hold: a device that never answers stops no other.
//!
//! Writes wait here, too, for earlier ones that they overlap (`op/outstanding.rs`).
//!
//! A place is given on by a completion, never by a poll. Writes of one file get to their engine in
//! the order in which they came: where one's submission returned before another's began, it is
//! there first, or before it in line. What a thread admits for others does not go to its own queue,
//! or its own calls would drive their writes.
//!
//! **Locks.** A write takes the lock of all files only where it has to wait, or another does. While
//! nothing is in line it is admitted under its file's lock alone, and the instance's bytes are one
//! atomic number. No write is forgotten: one that joins the line is counted in `waiting` first, and
//! then looks for room; what gives something back (bytes of the instance; bytes, order or the turn
//! of a file) does that first, and then looks at `waiting`. While a write goes from the line to its
//! engine, others of its file join the line. `loom_tests`.

use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::engine::{Engine, local};
use crate::op::outstanding::{OnTheirWay, Resume, Turn};
use crate::op::watcher;
use crate::op::{Change, FileQueues, OpenFile, Permit, Room, Slot};
use crate::stats::Count;
use crate::sync::loomed::{AtomicU64, AtomicUsize, Mutex, MutexGuard, lock};

/// Abandoned writes are looked for in a line of this length, and again when it has doubled.
const SWEEP_MIN: usize = 64;

pub(crate) struct Throttle {
    per_file: u64,
    per_instance: u64,
    totals: Totals,
    line: Mutex<ThrottleLine>,
}

/// Counts that each write of the instance looks at, in a cache line of their own.
#[repr(align(128))]
#[derive(Default)]
struct Totals {
    /// Bytes of writes on their way.
    under_way: AtomicU64,
    /// Changes in line. Written under its lock.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct ThrottleLine {
    /// The files that have writes in line. Those held up by the file's bound do not hold up others.
    files: VecDeque<FileWrites>,
    /// Empty: a line's memory, for the next file that has one.
    spare: VecDeque<HeldWrite>,
    sweep_at: usize,
    /// A write was left in line meanwhile: the thread that admits asks for help with what it waits
    /// for.
    asks: bool,
}

struct FileWrites {
    file: Arc<OpenFile>,
    entries: VecDeque<HeldWrite>,
}

struct HeldWrite {
    slot: Arc<Slot>,
    engine: Arc<dyn Engine>,
    change: Change,
    /// In the order of the file's changes.
    number: u64,
}

impl Room for Throttle {
    fn give_back(&self, queues: &FileQueues, change: &Change, number: u64) -> bool {
        self.totals.under_way.fetch_sub(change.bytes, SeqCst);
        queues.outstanding().end(number, change);
        self.is_awaited()
    }
}

impl Resume for Throttle {
    fn resume(self: Arc<Self>) {
        if let Some(admits) = Admits::begin(&self) {
            self.admit(admits, lock(&self.line), None);
        }
    }
}

/// This thread gives changes of a throttle to their engines, while this lives.
struct Admits(*const Throttle);

#[cfg(not(nowait_loom))]
thread_local!(static ADMITS: Cell<*const Throttle> = const { Cell::new(ptr::null()) });
#[cfg(nowait_loom)]
loom::thread_local!(static ADMITS: Cell<*const Throttle> = Cell::new(ptr::null()));

impl Admits {
    /// None if this thread does that already. An engine may finish a slot at once, and so come back
    /// here, where it leaves all to the call that it is in.
    fn begin(throttle: &Throttle) -> Option<Admits> {
        let before = ADMITS.with(|admits| admits.replace(throttle));
        (!ptr::eq(before, throttle)).then(|| Admits(before))
    }
}

impl Drop for Admits {
    fn drop(&mut self) {
        ADMITS.with(|admits| admits.set(self.0));
    }
}

impl Throttle {
    pub(crate) fn new(per_file: u64, per_instance: u64) -> Throttle {
        Throttle { per_file, per_instance, totals: Totals::default(), line: Mutex::default() }
    }

    /// Submits the slot of a change to `engine`, now or when there is room. Drops its reference to
    /// the file before the slot can end. If the slot is a part of a change that this thread makes,
    /// `turn` is the turn of that change.
    pub(crate) fn submit(
        self: &Arc<Self>,
        slot: Arc<Slot>,
        file: impl Borrow<Arc<OpenFile>>,
        engine: &Arc<dyn Engine>,
        change: Change,
        turn: Option<&mut Turn<'_>>,
    ) {
        let handed_on = turn.map(|turn| turn.hand_on(change.span));
        let Some(admits) = Admits::begin(self) else {
            // The call that this thread is in admits it.
            return drop(self.join(slot, file, engine, change, handed_on));
        };
        let begun = if handed_on.is_none() { self.begin_now(file.borrow(), &change) } else { None };
        let Some(number) = begun else {
            let line = self.join(slot.clone(), file, engine, change, handed_on);
            return self.admit(admits, line, Some(&slot));
        };
        let queues = file.borrow().queues().clone();
        drop(file);
        slot.hold(self.permit(queues.clone(), change, number));
        engine.submit(slot);
        if queues.outstanding().is_awaited() {
            // The awaited change may be in the queue of a thread that does something else.
            watcher::ask();
        }
        if self.is_awaited() {
            self.admit(admits, lock(&self.line), None);
        }
    }

    /// Whether a change waits in line.
    fn is_awaited(&self) -> bool {
        self.totals.waiting.load(SeqCst) > 0
    }

    /// Admits a change at once if nothing is in line and it need not wait.
    fn begin_now(&self, file: &OpenFile, change: &Change) -> Option<u64> {
        // Under the file's lock: whoever joined the line with an earlier number is seen.
        let fits = |now| !self.is_awaited() && self.fits_file(now, change) && self.take(now, change);
        file.outstanding().begin_now(change, fits)
    }

    fn permit(self: &Arc<Self>, queues: Arc<FileQueues>, change: Change, number: u64) -> Permit {
        Permit::new(queues, change, number, || self.clone())
    }

    /// Puts a change in line. `handed_on` is its number, if it has one already.
    fn join(
        &self,
        slot: Arc<Slot>,
        file: impl Borrow<Arc<OpenFile>>,
        engine: &Arc<dyn Engine>,
        change: Change,
        handed_on: Option<u64>,
    ) -> MutexGuard<'_, ThrottleLine> {
        let mut line = lock(&self.line);
        if !self.fits(file.borrow(), &change) || self.holds_up(&line, file.borrow()) {
            slot.count(Count::Throttled);
        }
        // The thread that admits may leave it in line, and does not know that no help was asked for
        // yet.
        line.asks = true;
        let waiting = self.totals.waiting.fetch_add(1, SeqCst) + 1;
        let number = handed_on.unwrap_or_else(|| file.borrow().outstanding().join(change.span));
        let entry = HeldWrite { slot, engine: engine.clone(), change, number };
        match line.files.iter_mut().find(|waiting| Arc::ptr_eq(&waiting.file, file.borrow())) {
            // Ordered by number, since a change waits for lower numbers.
            Some(FileWrites { entries, .. }) => {
                let at = entries.partition_point(|other| other.number <= number);
                entries.insert(at, entry);
            }
            None => {
                let mut entries = std::mem::take(&mut line.spare);
                entries.push_back(entry);
                line.files.push_back(FileWrites { file: file.borrow().clone(), entries });
            }
        }
        // Given up here, not at the end: by then the slot may have ended.
        drop(file);
        let abandoned = line.sweep(waiting);
        if abandoned.is_empty() {
            return line;
        }
        self.totals.waiting.fetch_sub(abandoned.len(), SeqCst);
        drop(line);
        for (queues, HeldWrite { slot, change, number, .. }) in abandoned {
            slot.discard().let_go();
            queues.outstanding().give_up(number, change.span);
        }
        lock(&self.line)
    }

    /// Counts a change as on its way if there is room now, until the permit is dropped: for a write
    /// on its caller's thread.
    pub(crate) fn enter(self: &Arc<Self>, file: &Arc<OpenFile>, change: Change) -> Option<Permit> {
        let number = self.begin_now(file, &change).or_else(|| {
            if !self.is_awaited() {
                return None;
            }
            // The changes in line may wait for a limit that does not affect this one.
            let line = lock(&self.line);
            let fits = |now| self.fits_file(now, &change) && self.take(now, &change);
            let may = !self.holds_up(&line, file);
            may.then(|| file.outstanding().begin_now(&change, fits)).flatten()
        })?;
        Some(self.permit(file.queues().clone(), change, number))
    }

    /// Whether a change could be submitted at once.
    pub(crate) fn has_room(&self, file: &OpenFile, change: Change) -> bool {
        self.fits(file, &change)
            && !(self.is_awaited() && self.holds_up(&lock(&self.line), file))
            && !file.outstanding().overlaps(change.span)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        // Under the lock: nothing is on its way from the line to its engine.
        let _line = lock(&self.line);
        self.totals.under_way.load(SeqCst) == 0 && !self.is_awaited()
    }

    /// True if a later change of this file must wait behind a change in line. This is a change of the
    /// same file, or one that waits for the instance's bound, which delays all changes behind it.
    fn holds_up(&self, line: &ThrottleLine, file: &OpenFile) -> bool {
        line.files.iter().any(|waiting| {
            ptr::eq(&*waiting.file, file)
                || waiting.entries.front().is_some_and(|HeldWrite { change, .. }| {
                    let now = waiting.file.outstanding().on_their_way();
                    self.fits_file(now, change) && !self.fits_instance(now, change)
                })
        })
    }

    /// Whether there is room for a change.
    fn fits(&self, file: &OpenFile, change: &Change) -> bool {
        let now = file.outstanding().on_their_way();
        self.fits_file(now, change) && self.fits_instance(now, change)
    }

    /// One that is larger than the bound goes alone.
    fn fits_file(&self, now: OnTheirWay, change: &Change) -> bool {
        let beside = !change.alone && !now.alone;
        now.bytes == 0 || (beside && now.bytes.saturating_add(change.bytes) <= self.per_file)
    }

    fn fits_instance(&self, now: OnTheirWay, change: &Change) -> bool {
        let under_way = self.totals.under_way.load(SeqCst);
        now.bytes == 0 || under_way.saturating_add(change.bytes) <= self.per_instance
    }

    /// Takes a change's bytes from the instance's bound, if they fit; the first of a file always.
    fn take(&self, now: OnTheirWay, change: &Change) -> bool {
        let under_way = &self.totals.under_way;
        if now.bytes == 0 {
            under_way.fetch_add(change.bytes, SeqCst);
            return true;
        }
        let more = |bytes: u64| bytes.checked_add(change.bytes).filter(|sum| *sum <= self.per_instance);
        under_way.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Gives changes in line to their engines while there is room; `own` is this thread's. The
    /// engine is called with nothing locked.
    fn admit<'a>(self: &'a Arc<Self>, admits: Admits, mut line: MutexGuard<'a, ThrottleLine>, own: Option<&Arc<Slot>>) {
        let mut asks = false;
        while let Some((queues, HeldWrite { slot, engine, change, number })) = self.next(&mut line) {
            drop(line);
            // An abandoned slot gets a permit, too; both are discarded later.
            slot.hold(self.permit(queues.clone(), change, number));
            if own.is_some_and(|own| Arc::ptr_eq(own, &slot)) {
                engine.submit(slot);
            } else {
                local::elsewhere(|| engine.submit(slot));
            }
            asks |= queues.outstanding().given();
            line = lock(&self.line);
        }
        drop(admits);
        asks |= std::mem::take(&mut line.asks) && self.is_awaited();
        drop(line);
        if asks {
            // The awaited change may be in the queue of a thread that does something else.
            watcher::ask();
        }
    }

    /// Takes the next change for which there is room, and counts it. Files take turns. A write that
    /// the instance's bound holds up holds up all behind it, or large writes would never have their
    /// turn; but not those of a file with nothing on its way.
    fn next(self: &Arc<Self>, line: &mut ThrottleLine) -> Option<(Arc<FileQueues>, HeldWrite)> {
        let mut is_full = false;
        for at in 0..line.files.len() {
            let FileWrites { file, entries } = &line.files[at];
            let Some(HeldWrite { change, number, .. }) = entries.front() else { continue };
            // Asked under the file's lock: what is on its way is what was given back.
            let fits = |now: OnTheirWay| {
                if is_full && now.bytes > 0 || !self.fits_file(now, change) {
                    return false;
                }
                let fits = self.take(now, change);
                is_full |= !fits;
                fits
            };
            if !file.outstanding().begin(*number, change, fits, || self.clone()) {
                continue;
            }
            let mut waiting = line.files.remove(at)?;
            let entry = waiting.entries.pop_front();
            let queues = waiting.file.queues().clone();
            if !waiting.entries.is_empty() {
                line.files.push_back(waiting);
            } else if waiting.entries.capacity() <= SWEEP_MIN {
                line.spare = waiting.entries;
            }
            self.totals.waiting.fetch_sub(1, SeqCst);
            return Some((queues, entry?));
        }
        None
    }
}

impl ThrottleLine {
    /// Takes out abandoned writes, often enough that they never outnumber the wanted ones by more
    /// than a constant factor.
    fn sweep(&mut self, length: usize) -> Vec<(Arc<FileQueues>, HeldWrite)> {
        if length < self.sweep_at.max(SWEEP_MIN) {
            return Vec::new();
        }
        let mut abandoned = Vec::new();
        for waiting in &mut self.files {
            let (gone, wanted): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut waiting.entries).into_iter().partition(|entry| entry.slot.is_abandoned());
            waiting.entries = wanted;
            abandoned.extend(gone.into_iter().map(|entry| (waiting.file.queues().clone(), entry)));
        }
        self.files.retain(|waiting| !waiting.entries.is_empty());
        self.sweep_at = (length - abandoned.len()) * 2;
        abandoned
    }
}

/// Every order in which writers, and completions of their writes, can meet; with at most three
/// switches that no thread asked for.
#[cfg(all(test, nowait_loom))]
mod loom_tests {
    use super::*;
    use crate::op::fixture::{file, slot_of};
    use crate::op::outstanding::Span;
    use crate::op::{Done, Notify};

    /// Keeps what it is given until it is to end.
    #[derive(Default)]
    struct Kept {
        slots: Mutex<VecDeque<Arc<Slot>>>,
        /// The addresses of all that it was given.
        given: Mutex<Vec<usize>>,
    }

    impl Kept {
        fn end_one(&self) -> bool {
            let slot = lock(&self.slots).pop_front();
            slot.map(|slot| drop(slot.finish(Ok(Done::Nothing), Count::Ring))).is_some()
        }

        fn place_of(&self, slot: &Arc<Slot>) -> Option<usize> {
            lock(&self.given).iter().position(|given| *given == Arc::as_ptr(slot).addr())
        }
    }

    impl Engine for Kept {
        fn submit(&self, slot: Arc<Slot>) {
            lock(&self.given).push(Arc::as_ptr(&slot).addr());
            lock(&self.slots).push_back(slot);
        }

        fn drain(&self) {}
    }

    /// Ends what it is given before `submit` returns.
    struct AtOnce;

    impl Engine for AtOnce {
        fn submit(&self, slot: Arc<Slot>) {
            drop(slot.finish(Ok(Done::Nothing), Count::Pool));
        }

        fn drain(&self) {}
    }

    fn model(check: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(check);
    }

    fn change(start: u64) -> Change {
        Change { span: Span::new(start, 10), bytes: 10, alone: false, durable: false }
    }

    /// Two threads submit a write each, of these files, and end what the engine has then; the rest
    /// is ended afterwards.
    fn all_are_made(bounds: (u64, u64), files: [usize; 2], starts: [u64; 2]) {
        model(move || {
            let (throttle, kept) = (Arc::new(Throttle::new(bounds.0, bounds.1)), Arc::new(Kept::default()));
            let all = [file(), file()];
            // This change reaches the instance's bound. It is admitted as the first of its file.
            let before = slot_of(&all[1], Notify::Nobody);
            let engine: Arc<dyn Engine> = kept.clone();
            throttle.submit(before, &all[1], &engine, change(100), None);
            let threads = [0, 1].map(|n| {
                let (throttle, kept, file) = (throttle.clone(), kept.clone(), all[files[n]].clone());
                loom::thread::spawn(move || {
                    let engine: Arc<dyn Engine> = kept.clone();
                    throttle.submit(slot_of(&file, Notify::Nobody), &file, &engine, change(starts[n]), None);
                    kept.end_one();
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            while kept.end_one() {}
            assert_eq!(lock(&kept.given).len(), 3, "a write was left in line");
            assert!(throttle.is_quiet());
        });
    }

    #[test]
    fn no_write_is_left_that_a_files_bound_held_up() {
        all_are_made((10, 100), [1, 1], [0, 10]);
    }

    #[test]
    fn no_write_is_left_that_the_instances_bound_held_up() {
        all_are_made((100, 10), [0, 1], [0, 10]);
    }

    #[test]
    fn no_write_is_left_that_waited_for_another() {
        all_are_made((100, 100), [0, 0], [0, 5]);
    }

    #[test]
    fn no_write_is_left_by_an_engine_that_ends_it_at_once() {
        model(|| {
            let throttle = Arc::new(Throttle::new(10, 10));
            let file = file();
            let threads = [0, 1].map(|n| {
                let (throttle, file) = (throttle.clone(), file.clone());
                loom::thread::spawn(move || {
                    let engine: Arc<dyn Engine> = Arc::new(AtOnce);
                    throttle.submit(slot_of(&file, Notify::Nobody), &file, &engine, change(n * 5), None);
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(throttle.is_quiet());
        });
    }

    /// Symptom: a write for another instance stayed in line, if its thread was giving one of the
    /// first instance to its engine.
    #[test]
    fn no_write_is_left_that_a_callback_submits_within_a_submission() {
        model(|| {
            let throttles = [0, 1].map(|_| Arc::new(Throttle::new(10, 10)));
            for second in throttles.clone() {
                let file = file();
                let call = Box::new(move |_, _| {
                    let file = crate::op::fixture::file();
                    let engine: Arc<dyn Engine> = Arc::new(AtOnce);
                    second.submit(slot_of(&file, Notify::Nobody), &file, &engine, change(0), None);
                });
                let engine: Arc<dyn Engine> = Arc::new(AtOnce);
                throttles[0].submit(slot_of(&file, Notify::Call(call)), &file, &engine, change(0), None);
                assert!(throttles.iter().all(|throttle| throttle.is_quiet()));
            }
        });
    }

    /// A thread makes a part of a write and leaves the rest to an engine, while another thread
    /// submits a write that overlaps both. Symptom: the rest was a new change, and was made after
    /// that write.
    #[test]
    fn nothing_comes_between_a_part_made_here_and_its_rest() {
        for submits_part in [0, 5] {
            model(move || {
                let (throttle, kept) = (Arc::new(Throttle::new(100, 100)), Arc::new(Kept::default()));
                let file = file();
                let other = {
                    let (throttle, kept, file) = (throttle.clone(), kept.clone(), file.clone());
                    loom::thread::spawn(move || {
                        let engine: Arc<dyn Engine> = kept.clone();
                        let slot = slot_of(&file, Notify::Nobody);
                        throttle.submit(slot.clone(), &file, &engine, change(submits_part), None);
                        slot
                    })
                };
                let engine: Arc<dyn Engine> = kept.clone();
                let mut turn = file.outstanding().try_enter(Span::new(0, 10));
                let is_first = turn.is_some();
                let rest = slot_of(&file, Notify::Nobody);
                let change = Change { span: Span::new(5, 5), bytes: 5, ..change(0) };
                throttle.submit(rest.clone(), &file, &engine, change, turn.as_mut());
                drop(turn);
                let other = other.join().unwrap();
                while kept.end_one() {}
                let [rest, other] = [rest, other].map(|slot| kept.place_of(&slot).expect("no write is left in line"));
                assert_eq!(rest < other, is_first);
                assert!(throttle.is_quiet() && !file.outstanding().overlaps(Span::new(0, u64::MAX)));
            });
        }
    }

    /// The first may have to wait for what was there before, and leave the line while the second
    /// comes.
    #[test]
    fn the_engine_gets_a_threads_writes_in_their_order() {
        model(|| {
            let (throttle, kept) = (Arc::new(Throttle::new(20, 100)), Arc::new(Kept::default()));
            let file = file();
            let engine: Arc<dyn Engine> = kept.clone();
            let submit = |change: Change| {
                let slot = slot_of(&file, Notify::Nobody);
                throttle.submit(slot.clone(), &file, &engine, change, None);
                slot
            };
            // When this one ends, both others fit.
            let before = submit(Change { span: Span::new(100, 20), bytes: 20, ..change(0) });
            let other = {
                let kept = kept.clone();
                loom::thread::spawn(move || kept.end_one())
            };
            let slots = [0, 10].map(|start| submit(change(start)));
            other.join().unwrap();
            while kept.end_one() {}
            let [first, second] = slots.map(|slot| kept.place_of(&slot).expect("it was given to the engine"));
            assert!(first < second);
            assert!(throttle.is_quiet());
            drop(before);
        });
    }
}
