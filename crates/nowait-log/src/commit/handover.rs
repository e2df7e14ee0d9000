//! The lock around the state, and the hand-over between threads that append, the thread that
//! writes, and those that wait.
//!
//! A thread that waits for its record takes the oldest block, if fewer than `depth` writes are in
//! flight. It writes the block and waits for the device in one call; others fill the next block
//! meanwhile. Then it ends the group of that block, which need not contain its own record, and
//! wakes one thread of a later group to write. For many waiters, the log's own thread writes block
//! after block (`state/writer.rs`). No thread sleeps while it could write, in any order of the
//! steps: the loom tests at the end of this file check that.

use std::sync::atomic;
use std::time::Instant;

use super::group::Group;
use super::state::{Completed, Ending, Pipeline, Rewritten, Submission, Successor, WriterTurn};
use super::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, yield_now};
use super::tail::TailCache;
use nowait::Result;

/// Maximum number of times that a thread yields before it writes.
#[cfg(not(nowait_log_loom))]
const YIELDS_MAX: u32 = 8;
#[cfg(nowait_log_loom)]
const YIELDS_MAX: u32 = 1;

/// Maximum number of times that the log's own thread looks whether tasks have appended, before it
/// writes for them, and the number of its yields between two looks.
const TASK_GATHERS_MAX: u32 = if cfg!(nowait_log_loom) { 1 } else { 1024 };
const TASK_YIELDS: u32 = if cfg!(nowait_log_loom) { 1 } else { 4 };

pub(crate) struct Handover<F> {
    state: Mutex<Pipeline<F>>,
    /// Copy of the state's value, for readers without the lock.
    durable: AtomicU64,
    /// Likewise; `first` is the LSN of the first record.
    epoch: atomic::AtomicU64,
    first: atomic::AtomicU64,
    pub(crate) tail: TailCache,
    /// Wakes the maintenance thread.
    pub(crate) work: Condvar,
    /// Wakes threads whose append needs the next segment.
    pub(crate) room: Condvar,
    /// Wakes the log's own writing thread.
    writer: Condvar,
}

/// State of a thread that waits for a group.
#[derive(Default)]
pub(crate) struct ThreadWaits {
    /// The thread has let others append before its write.
    has_gathered: bool,
    /// The group counts the thread as a sleeper.
    has_slept: bool,
    /// The thread watches for stalled threads, also when it sleeps again.
    pub(super) looks_out: bool,
}

/// Next step of a waiting thread. Not boxed: a box would cost an allocation for each write, and the
/// value is moved only once.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Turn<F> {
    /// The group may have ended: check its fate.
    Again,
    Write(Submission<F>),
    /// The thread's group ended while it gathered: another thread has to write.
    PassOn(Successor),
    /// The thread has nothing to write.
    Sleep {
        /// A write is in flight whose completion this thread would delay by sleeping.
        has_carried: bool,
    },
}

impl<F: Clone> Handover<F> {
    pub(crate) fn new(state: Pipeline<F>, tail_bytes: u64) -> Handover<F> {
        let (durable, epoch) = (AtomicU64::new(state.durable), atomic::AtomicU64::new(state.epoch));
        let first = atomic::AtomicU64::new(state.first_lsn());
        let tail = TailCache::new(tail_bytes);
        let [work, room, writer] = [(); 3].map(|()| Condvar::new());
        Handover { state: Mutex::new(state), durable, epoch, first, tail, work, room, writer }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Pipeline<F>> {
        lock(&self.state)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Epoch of the log. Read it after [`Handover::durable`]: if that value belongs to the log
    /// after a cut, the epoch is that of the cut.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// First record of the log.
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::Relaxed)
    }

    /// Publishes the first record, the epoch and the durable LSN. The state is locked.
    pub(crate) fn publish(&self, state: &Pipeline<F>) {
        self.first.store(state.first_lsn(), Ordering::Relaxed);
        self.epoch.store(state.epoch, Ordering::Release);
        self.durable.store(state.durable, Ordering::Release);
    }

    /// Decides the next step of a thread that waits for `group`.
    ///
    /// Threads that the last write has woken are likely to append again. So if there were several,
    /// a thread that may write lets others run first, once: a write of all their records costs as
    /// much as a write of one, and a record that misses this write waits for two.
    pub(crate) fn turn(&self, group: &Group, waiter: &mut ThreadWaits, now: impl Fn() -> Instant) -> Turn<F> {
        let mut state = self.lock();
        if group.fate().is_some() {
            return Turn::Again;
        }
        let is_appointed = group.accept();
        if is_appointed {
            state.gathering = None;
        }
        match (is_appointed, waiter.has_slept) {
            // A sleeping thread was appointed, and this thread took the appointment: the sleeper
            // counts again.
            (true, false) => drop(group.announce_sleeper()),
            (false, true) => group.retract_sleeper(),
            _ => {}
        }
        waiter.has_slept = false;
        let left = state.leave_to_writer(&now);
        if left.is_none() && state.crowd > 1 && !waiter.has_gathered && !state.is_gathering(&now) && state.may_submit()
        {
            waiter.has_gathered = true;
            state = self.gather(state, &now);
            if group.fate().is_some() {
                // Other threads may sleep because this thread gathered.
                return Turn::PassOn(state.choose_next(now()));
            }
        }
        let submission = if left.is_some() || state.is_gathering(&now) { None } else { state.submit(false, now) };
        match submission {
            Some(submission) => Turn::Write(submission),
            None => {
                let before = group.announce_sleeper();
                waiter.has_slept = true;
                waiter.looks_out |= state.looks_out(before);
                let has_carried = state.has_carried();
                drop(state);
                if left == Some(true) {
                    self.wake_writer();
                }
                Turn::Sleep { has_carried }
            }
        }
    }

    pub(crate) fn wake_writer(&self) {
        self.writer.notify_one();
    }

    /// Decides the next step of the log's own thread; sleeps while there is none.
    pub(crate) fn writer_turn(&self, now: impl Fn() -> Instant) -> WriterTurn<F> {
        let mut state = self.gather_tasks(self.lock(), &now);
        loop {
            match state.serve(&now) {
                WriterTurn::Sleep => state = self.writer.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                turn => return turn,
            }
        }
    }

    /// Lets woken tasks append before the log's own thread writes: see [`Pipeline::gather_time`].
    fn gather_tasks<'s>(
        &'s self,
        mut state: MutexGuard<'s, Pipeline<F>>,
        now: impl Fn() -> Instant,
    ) -> MutexGuard<'s, Pipeline<F>> {
        let Some(time) = state.gather_time() else { return state };
        let began = now();
        let took = || now().saturating_duration_since(began);
        // Also limited in number: a simulated clock may stand still.
        for _ in 0..TASK_GATHERS_MAX {
            if state.ends_gathering() || took() > time {
                break;
            }
            drop(state);
            // Several for each lock, which appends need.
            for _ in 0..TASK_YIELDS {
                yield_now();
            }
            state = self.lock();
        }
        state.gathered(took(), time);
        state
    }

    /// Lets other threads run, until as many records were appended as last time, or after
    /// [`YIELDS_MAX`] turns.
    fn gather<'s>(
        &'s self,
        mut state: MutexGuard<'s, Pipeline<F>>,
        now: impl Fn() -> Instant,
    ) -> MutexGuard<'s, Pipeline<F>> {
        state.gathering = Some(now());
        for _ in 0..YIELDS_MAX {
            drop(state);
            yield_now();
            state = self.lock();
            if state.unsubmitted() >= state.crowd || !state.may_submit() {
                break;
            }
        }
        state.gathering = None;
        state
    }

    /// Records the end of a write; `rewritten` as in [`Pipeline::complete`].
    pub(crate) fn complete(
        &self,
        id: u64,
        result: Result<()>,
        rewritten: Option<Rewritten<F>>,
        now: Instant,
    ) -> Completed<F> {
        let mut state = self.lock();
        let completed = state.complete(id, result, rewritten, now);
        let given_up = self.tail.keep(&completed.blocks, state.durable);
        self.publish(&state);
        if state.appends_wait > 0 {
            self.room.notify_all();
        }
        drop(state);
        drop(given_up);
        completed
    }
}

impl Ending {
    /// Ends groups and wakes their threads. The next leader is woken last, so that other threads
    /// may append before it writes. Blocks for futures and callbacks are submitted before all else,
    /// so that the device is not idle meanwhile.
    pub(crate) fn wake_threads(&self, pass_on: impl Fn(Successor)) {
        let mut next = self.next();
        if let Successor::Carry = next {
            pass_on(std::mem::take(&mut next));
        }
        self.groups.iter().for_each(|(group, fate)| group.end(*fate));
        pass_on(next);
    }
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use super::super::block::Incoming;
    use super::super::state::fixture::{rules, start};
    use super::*;
    use crate::format::FRAME_BYTES;
    use std::sync::Arc;

    /// Symptom: a sleeping thread whose appointment another thread took was no longer counted as a
    /// sleeper, and never appointed again.
    #[test]
    fn a_sleeper_counts_whose_appointment_another_took() {
        let log = Handover::new(Pipeline::new(rules(1), start()), 0);
        let append = || {
            let record = [b"a record".as_slice().into()];
            let appended = log.lock().append(&mut Incoming::Copied(&record), FRAME_BYTES + 8, false, Instant::now);
            appended.ok().expect("room").1
        };
        let _first = append();
        let first = log.lock().submit(false, Instant::now).expect("a block");
        let group = append();
        let mut sleeper = ThreadWaits::default();
        assert!(matches!(log.turn(&group, &mut sleeper, Instant::now), Turn::Sleep { .. }));
        let completed = log.complete(first.id, Ok(()), None, Instant::now());
        assert!(matches!(completed.ending.next(), Successor::Leader(leader) if Arc::ptr_eq(&leader, &group)));
        let mut newcomer = ThreadWaits::default();
        assert!(matches!(log.turn(&append(), &mut newcomer, Instant::now), Turn::Write(_)));
        assert!(matches!(log.turn(&group, &mut sleeper, Instant::now), Turn::Sleep { .. }));
        assert!(group.has_sleepers());
        group.retract_sleeper();
        assert!(!group.has_sleepers());
    }
}

#[cfg(all(test, nowait_log_loom))]
mod loom_tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::task::Waker;
    use std::time::Duration;

    use super::super::block::Incoming;
    use super::super::group::Fate;
    use super::super::state::fixture::{rules, start};
    use super::super::sync::yields;
    use super::*;
    use crate::format::FRAME_BYTES;

    /// A constant: loom repeats each order of the steps, which must take the same course each time.
    fn now() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now)
    }

    fn check(test: impl Fn() + Sync + Send + 'static) {
        // Enough to interrupt each thread between any two of its steps.
        check_with(3, test);
    }

    fn check_with(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(test);
    }

    /// A log whose first segment has its header on disk.
    fn log(depth: usize) -> Arc<Handover<()>> {
        let log = Handover::new(Pipeline::new(rules(depth), start()), 0);
        let group = log.lock().put_watermark(false, false, now).ok().expect("room");
        carry(&log);
        assert_eq!(group.fate(), Some(Fate::Durable));
        Arc::new(log)
    }

    fn append(log: &Handover<()>, record: &[u8]) -> (u64, Arc<Group>) {
        log.lock()
            .append(&mut Incoming::Copied(&[record.into()]), FRAME_BYTES + record.len(), false, now)
            .ok()
            .expect("room")
    }

    /// Waits as a thread of a log does; the disk completes each write at once.
    fn wait(log: &Handover<()>, group: &Group) -> Fate {
        let mut waiter = ThreadWaits::default();
        loop {
            if let Some(fate) = group.fate() {
                return fate;
            }
            if group.is_served() {
                group.sleep(None);
                continue;
            }
            match log.turn(group, &mut waiter, now) {
                Turn::Again => {}
                Turn::Write(submission) => complete(log, submission),
                Turn::PassOn(next) => pass_on(log, next),
                Turn::Sleep { .. } => group.sleep(None),
            }
        }
    }

    /// Completes a write, which took a millisecond.
    fn complete(log: &Handover<()>, submission: Submission<()>) {
        let end = now() + Duration::from_millis(1);
        finish(log, &log.complete(submission.id, Ok(()), None, end).ending);
    }

    fn finish(log: &Handover<()>, ending: &Ending) {
        ending.wake_threads(|next| pass_on(log, next));
        for (group, _) in &ending.groups {
            std::iter::from_fn(|| group.next_waker()).for_each(Waker::wake);
        }
        std::iter::from_fn(|| ending.next_waker()).for_each(Waker::wake);
        ending.set_over();
    }

    fn pass_on(log: &Handover<()>, next: Successor) {
        match next {
            Successor::Nobody => {}
            Successor::Leader(group) => group.wake_leader(),
            Successor::Writer => log.wake_writer(),
            Successor::Carry => carry(log),
        }
    }

    /// Submits blocks for futures and callbacks; the disk completes each write at once.
    fn carry(log: &Handover<()>) {
        let left = log.lock().leave_to_writer(now);
        match left {
            Some(true) => return log.wake_writer(),
            Some(false) => return,
            None => {}
        }
        loop {
            let Some(submission) = log.lock().submit(true, now) else { return };
            complete(log, submission);
        }
    }

    /// Runs the log's own thread until the log is closing.
    fn serve(log: &Handover<()>) {
        loop {
            match log.writer_turn(now) {
                WriterTurn::Write(submission) => complete(log, submission),
                WriterTurn::PassOn(next) => pass_on(log, next),
                WriterTurn::Sleep => {}
                WriterTurn::End(next) => return pass_on(log, next),
            }
        }
    }

    /// The log's own thread begins beside the waiting threads, writes for them or leaves them to
    /// write, and ends.
    #[test]
    fn threads_that_wait_beside_the_logs_own_are_woken() {
        check(|| {
            let log = log(1);
            log.lock().waiters = 2;
            let [writer, other] = [log.clone(), log.clone()];
            let writer = loom::thread::spawn(move || serve(&writer));
            let other = loom::thread::spawn(move || {
                let (_, group) = append(&other, b"a record");
                assert_eq!(wait(&other, &group), Fate::Durable);
            });
            for _ in 0..2 {
                let (_, group) = append(&log, b"another");
                assert_eq!(wait(&log, &group), Fate::Durable);
            }
            other.join().unwrap();
            assert_eq!(log.durable(), 3);
            log.lock().is_closing = true;
            log.wake_writer();
            writer.join().unwrap();
        });
    }

    #[test]
    fn threads_that_wait_are_woken_or_write() {
        for (depth, crowd) in [(1, 0), (1, 2), (2, 0)] {
            check(move || {
                let log = log(depth);
                log.lock().crowd = crowd;
                let threads = [1, 2].map(|_| {
                    let log = log.clone();
                    loom::thread::spawn(move || {
                        let (lsn, group) = append(&log, b"a record");
                        assert_eq!(wait(&log, &group), Fate::Durable);
                        assert!(log.durable() >= lsn);
                    })
                });
                for thread in threads {
                    thread.join().unwrap();
                }
                assert_eq!(log.durable(), 2);
                assert!(log.lock().is_quiet());
            });
        }
    }

    #[test]
    fn a_future_beside_a_thread_is_woken() {
        struct Wakes(AtomicU32);
        impl std::task::Wake for Wakes {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        check(|| {
            let log = log(1);
            let other = log.clone();
            let thread = loom::thread::spawn(move || {
                let (_, group) = append(&other, b"a thread's");
                assert_eq!(wait(&other, &group), Fate::Durable);
            });
            let wakes = Arc::new(Wakes(AtomicU32::new(0)));
            let (_, group) = append(&log, b"a future's");
            let is_pending = group.register(&mut None, &Waker::from(wakes.clone()));
            if is_pending {
                carry(&log);
            }
            thread.join().unwrap();
            assert_eq!(group.fate(), Some(Fate::Durable));
            assert_eq!(wakes.0.load(SeqCst), u32::from(is_pending));
            assert_eq!(log.durable(), 2);
        });
    }

    /// A task that sleeps until it is woken.
    #[derive(Default)]
    struct Task(Mutex<bool>, Condvar);

    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {
            *lock(&self.0) = true;
            self.1.notify_one();
        }
    }

    /// Waits as an awaited ticket does.
    fn wait_as_task(log: &Handover<()>, group: &Group) -> Fate {
        let task = Arc::new(Task::default());
        let mut place = None;
        loop {
            if group.register(&mut place, &Waker::from(task.clone())) && !group.is_served() {
                carry(log);
            }
            if let Some(fate) = group.fate() {
                return fate;
            }
            let mut is_woken = lock(&task.0);
            while !*is_woken {
                is_woken = task.1.wait(is_woken).unwrap();
            }
            *is_woken = false;
        }
    }

    /// The log's own thread wakes tasks and lets them append before it writes: neither tasks nor
    /// the thread sleep while a record is pending.
    #[test]
    fn tasks_that_the_logs_own_thread_gathers_are_woken() {
        // With three preemptions the model would take more than a minute.
        check_with(2, || {
            let log = log(1);
            log.lock().expect_tasks(2);
            let [writer, other] = [log.clone(), log.clone()];
            let writer = loom::thread::spawn(move || serve(&writer));
            let other = loom::thread::spawn(move || {
                let (_, group) = append(&other, b"a record");
                assert_eq!(wait_as_task(&other, &group), Fate::Durable);
            });
            for _ in 0..2 {
                let (_, group) = append(&log, b"another");
                assert_eq!(wait_as_task(&log, &group), Fate::Durable);
            }
            other.join().unwrap();
            assert_eq!(log.durable(), 3);
            log.lock().is_closing = true;
            log.wake_writer();
            writer.join().unwrap();
        });
        // Nothing else yields in this model.
        assert!(yields() > 0, "no order of the steps gathered tasks");
    }

    #[test]
    fn a_failure_is_told_to_all() {
        check(|| {
            let log = log(1);
            let threads = [1, 2].map(|_| {
                let log = log.clone();
                loom::thread::spawn(move || {
                    let appended = log.lock().append(
                        &mut Incoming::Copied(&[b"a record".as_slice().into()]),
                        FRAME_BYTES + 8,
                        false,
                        now,
                    );
                    let Ok((_, group)) = appended else { return };
                    let mut waiter = ThreadWaits::default();
                    while group.fate().is_none() {
                        match log.turn(&group, &mut waiter, now) {
                            Turn::Write(submission) => {
                                let error = nowait::Error::new(nowait::ErrorOp::Write, nowait::ErrorKind::Io);
                                finish(&log, &log.complete(submission.id, Err(error), None, now()).ending);
                            }
                            Turn::Sleep { .. } => group.sleep(None),
                            Turn::Again | Turn::PassOn(_) => {}
                        }
                    }
                    assert_eq!(group.fate(), Some(Fate::Failed));
                })
            });
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(log.lock().poison.is_some());
            assert_eq!(log.durable(), 0);
        });
    }
}
