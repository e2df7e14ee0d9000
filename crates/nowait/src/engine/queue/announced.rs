//! Announced reads: buffered reads of one file that share one ring entry. The first read has the
//! entry. `POSIX_FADV_WILLNEED` announces the others, so the kernel reads their pages meanwhile.
//! When the first ends, other reads have arrived, or the oldest of them becomes the first.
//!
//! An entry for each read costs more. The kernel queues each request on its page, and completes it
//! by task work of the submitting thread when the page arrives.
//!
//! A thread that sleeps in its ring collects the others by attempts, a few at a time. Other queues
//! make an entry of the next read, which completes inside its submission if its page has arrived.
//!
//! `unsafe` here: attempts at announced reads, into memory that their slots keep alive.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::{Line, Queue, Reap};
use crate::engine::pool;
use crate::op::watcher::{self, NoticedBy};
use crate::op::{Owner, Request, Slot};
use crate::stats::Count;
use crate::sys::{self, WaitMode};
use crate::turn;

/// A future that submits its next read this soon after its wake-up does little else. Then the queue
/// wakes one future at a time: tokio's worker runs it next, and wakes no other worker. Otherwise
/// each read has an entry, completed reads wake their futures together, and workers share these.
const POLL_MAX: Duration = Duration::from_micros(15);

/// Threads that submit look at completions so often before the reactor does. (tokio lets a task
/// that was woken by another run next three times in a row; then it wakes another worker.)
const PICKED_MAX: u32 = 2;

/// An entry that ended so soon has not waited for a device: its read had arrived.
const ARRIVED_MAX: Duration = Duration::from_micros(30);

/// Limits of consecutive misses, where the oldest read had not arrived when the first ended. At the
/// limit, announcements have no effect or the device serves one read at a time. The first limit
/// applies if the first read waited for the device, the second if it may have ended at once.
const MISSED_MAX: u32 = 3;
const MISSED_SOON_MAX: u32 = 64;

/// Reads that are collected before their futures run: those make the device's next work. (All at
/// once was a tenth slower at depth 16 to 64, on a virtio disk; 1, 2 and 8 were level.)
const COLLECTED_MAX: usize = 4;

/// If the first takes longer than this, the others become entries, too: part of a device may hang.
pub(super) const FIRST_MAX: Duration = Duration::from_millis(10);

/// Reads that become entries where announcements do nothing: some file systems read nothing ahead,
/// and one read would wait for the other there.
pub(super) const REST: u32 = 4096;

/// The first and the others, in the terms of their queue.
pub(super) struct Announced<T> {
    /// The address of their file, which their slots keep open.
    file: usize,
    /// None while others are collected.
    first: Option<First>,
    /// Oldest first.
    others: VecDeque<T>,
    /// Some were collected since the first ended.
    has_any: bool,
    /// How often in a row the oldest had not arrived when the first had ended.
    missed: u32,
    /// Reads that become entries before one is announced again.
    rest: u32,
}

/// The read that the queue waits for before it looks at the others.
struct First {
    /// The user data of its entry.
    user_data: u64,
    since: Instant,
}

impl<T> Default for Announced<T> {
    fn default() -> Self {
        let others = VecDeque::new();
        Announced { file: 0, first: None, others, has_any: false, missed: 0, rest: 0 }
    }
}

impl<T> Announced<T> {
    /// Whether a read of the file at this address may be announced, and needs no entry then.
    pub(super) fn accepts(&self, file: usize) -> bool {
        self.rest == 0 && self.is_waiting() && self.file == file
    }

    /// Takes note of a buffered read of the file at this address. True if it needs no entry for now,
    /// and is to be [added](Announced::add).
    pub(super) fn takes(&mut self, user_data: u64, file: usize, is_announced: bool) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        let is_waiting = self.is_waiting();
        if !is_waiting {
            self.file = file;
            self.begin(user_data);
        }
        is_waiting && self.file == file && is_announced
    }

    pub(super) fn add(&mut self, read: T) {
        self.others.push_back(read);
    }

    fn is_waiting(&self) -> bool {
        self.first.is_some() || !self.others.is_empty()
    }

    /// Whether there are others than the first.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Whether some may have arrived that were not looked at yet.
    pub(super) fn has_uncollected(&self) -> bool {
        self.first.is_none() && self.has_others()
    }

    /// Whether the first takes so long that the others must not wait for it.
    pub(super) fn is_late(&self) -> bool {
        self.has_others() && self.first.as_ref().is_some_and(|first| first.since.elapsed() > FIRST_MAX)
    }

    /// Takes note of the entry that is waited for from now on.
    pub(super) fn begin(&mut self, user_data: u64) {
        self.has_any = false;
        self.first = Some(First { user_data, since: Instant::now() });
    }

    /// Takes note of the end of an entry. Returns how long it took if it is the first.
    pub(super) fn ended(&mut self, user_data: u64) -> Option<Duration> {
        let first = self.first.take_if(|first| first.user_data == user_data)?;
        Some(first.since.elapsed())
    }

    /// Takes the oldest, to make an attempt at it, if the first has ended.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.first.is_some() { None } else { self.others.pop_front() }
    }

    /// Takes note that one has arrived.
    pub(super) fn collected(&mut self) {
        self.has_any = true;
    }

    /// Takes note that the oldest becomes an entry: if none was collected since the first ended, it
    /// has not arrived. True if that was so `max` times in a row: the others become entries, too.
    pub(super) fn misses(&mut self, max: u32) -> bool {
        self.missed = if self.has_any { 0 } else { self.missed + 1 };
        let is_useless = self.missed == max;
        if is_useless {
            (self.missed, self.rest) = (0, REST);
        }
        is_useless
    }

    /// Takes the oldest, to make an entry of it.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.others.pop_front()
    }

    /// Forgets all, and returns those that have no entry.
    pub(super) fn take(&mut self) -> VecDeque<T> {
        std::mem::take(self).others
    }
}

/// Makes a non-blocking attempt at a read that has no entry. Returns the number of bytes that have
/// arrived; the caller adds them to the transfer later. None if that is not known now.
fn attempt(slot: &Slot) -> Option<usize> {
    let attempt = |request: &Request, owner: &Owner| {
        let Request::Read(transfer) = request else { return None };
        let fd = owner.handle()?.descriptor().ok()?;
        // SAFETY: a transfer's segments are writable and used by one party at a time, now by this
        // queue: its entry is not pushed.
        let result = unsafe { sys::read_at(fd, transfer.segments(), transfer.position(), WaitMode::Never) };
        result.ok().filter(|n| *n > 0)
    };
    slot.with(attempt)?
}

impl Queue {
    /// Whether a read of the file at this address may be announced, and left beside the first. The
    /// first leaves at once then.
    pub(in crate::engine) fn takes_announced(&self, file: usize) -> bool {
        let mut line = self.line();
        // Before the announcement, which may ring the device's doorbell and take long.
        if let Some(woke) = line.woke.take() {
            line.is_slow = woke.elapsed() > POLL_MAX;
        }
        let has_place = line.in_flight < self.depth && !line.dead;
        let takes = has_place && !line.is_slow && line.announced.accepts(file);
        let leaves = takes && !line.announced.has_others();
        let leaving = if leaves { std::mem::take(&mut line.staged) } else { 0 };
        let is_left = line.is_slow && line.announced.has_others();
        drop(line);
        if leaving > 0 {
            self.submit_entries(leaving);
        }
        if is_left {
            self.enter_announced_if(|line| line.is_slow);
        }
        takes
    }

    /// Leaves a slot that has a place among the others, behind the first: its read is announced.
    pub(super) fn leave_announced(&self, mut line: MutexGuard<'_, Line>, slot: Arc<Slot>) {
        // It begins.
        if line.dead || !self.kernel.begin(&slot) {
            line.in_flight -= 1;
            drop(line);
            return pool::hand_on(slot);
        }
        line.announced.add(slot);
        self.has_announced.store(true, Relaxed);
        let (picks, is_late) = (line.picked < PICKED_MAX, line.announced.is_late());
        drop(line);
        if !watcher::watch() {
            // No thread would notice that the first is late.
            self.enter_announced();
        }
        if self.noticed_by == NoticedBy::Thread {
            return;
        }
        if is_late {
            self.enter_late();
        }
        if picks {
            self.reap_some(Reap::IfNobodyDoes);
        }
    }

    /// Makes entries of all reads that were announced, if they are not to wait for their first.
    /// False if there are none.
    pub(super) fn enter_announced_if(&self, is_due: impl FnOnce(&Line) -> bool) -> bool {
        let mut line = self.line();
        if !line.announced.has_others() || !is_due(&line) {
            return line.announced.has_others();
        }
        let mut refused = Vec::new();
        while let Some(slot) = line.announced.pop() {
            refused.extend(self.push(&mut line, slot).err());
        }
        let staged = std::mem::take(&mut line.staged);
        drop(line);
        refused.into_iter().for_each(pool::hand_on);
        self.submit_entries(staged);
        true
    }

    /// Makes entries of all reads that were announced.
    pub(in crate::engine) fn enter_announced(&self) {
        self.enter_announced_if(|_| true);
    }

    /// Makes entries of all announced reads if their first takes long. False if there are none.
    pub(in crate::engine) fn enter_late(&self) -> bool {
        self.enter_announced_if(|line| line.announced.is_late())
    }

    /// Begins the next announced read after a batch of completions, of which the first may have been
    /// one, after this time. False if there is none to begin.
    pub(super) fn begin_next(&self, line: &mut Line, first: Option<Duration>, refused: &mut Vec<Arc<Slot>>) -> bool {
        let begins = line.announced.has_uncollected();
        if begins {
            if first.is_some_and(|took| took < ARRIVED_MAX) {
                line.announced.collected();
            }
            let oldest = line.announced.pop();
            self.begin_anew(line, oldest, refused);
        }
        begins
    }

    /// Makes an entry of the oldest announced read: its end is awaited next, whatever the futures do
    /// that wake now.
    fn begin_anew(&self, line: &mut Line, oldest: Option<Arc<Slot>>, refused: &mut Vec<Arc<Slot>>) {
        let is_useless =
            line.announced.misses(if self.noticed_by == NoticedBy::Thread { MISSED_MAX } else { MISSED_SOON_MAX });
        let mut next = oldest;
        while let Some(oldest) = next {
            if !is_useless {
                if self.noticed_by != NoticedBy::Thread {
                    oldest.count(Count::Announced);
                }
                line.announced.begin(Arc::as_ptr(&oldest) as u64);
            }
            match self.push(line, oldest) {
                Ok(()) if is_useless => {}
                Ok(()) => return,
                Err(slot) => {
                    line.announced.ended(Arc::as_ptr(&slot) as u64);
                    refused.push(slot);
                }
            }
            next = line.announced.pop();
        }
    }

    /// Collects reads that have arrived, once the first has ended: for a thread that sleeps in its
    /// ring.
    pub(in crate::engine) fn collect_announced(&self) {
        if !self.has_announced.load(Relaxed) {
            return;
        }
        if !self.enter_late() {
            return self.has_announced.store(false, Relaxed);
        }
        for _ in 0..COLLECTED_MAX {
            let Some(slot) = self.line().announced.next() else { return };
            let Some(n) = attempt(&slot) else {
                let mut refused = Vec::new();
                self.begin_anew(&mut self.line(), Some(slot), &mut refused);
                return refused.into_iter().for_each(pool::hand_on);
            };
            slot.count(Count::Announced);
            turn::wakes(1);
            let again = self.settle(slot, Ok(n));
            let mut line = self.line();
            line.announced.collected();
            line.in_flight -= u32::from(!again);
            line.ended += 1;
            self.fill(line, Vec::new());
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::task::Waker;

    use super::*;
    use crate::buf::Memory;
    use crate::engine::QueueRefusal;
    use crate::op::fixture::file_of_fd;
    use crate::op::watcher::{Glance, Watched};
    use crate::op::{Notify, OpenFile, Owner, Request, Transfer};

    /// A ring, and reads of a pipe in it: attempts at them fail, as at what has not arrived.
    struct Piped {
        queue: Arc<Queue>,
        file: Arc<OpenFile>,
        writer: OwnedFd,
        slots: Vec<Arc<Slot>>,
    }

    impl Piped {
        fn or_skip(reads: usize) -> Option<Piped> {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            Piped::noticed_by(NoticedBy::Watcher, reader, writer, reads)
        }

        fn noticed_by(noticed_by: NoticedBy, reader: OwnedFd, writer: OwnedFd, reads: usize) -> Option<Piped> {
            let skip = |refusal: &QueueRefusal| eprintln!("skipped: no io_uring ({:?})", refusal.errno);
            let queue = Queue::new(noticed_by, 0).inspect_err(skip).ok()?;
            let file = file_of_fd(reader);
            let mut piped = Piped { queue, file, writer, slots: Vec::new() };
            (0..reads).for_each(|_| piped.read());
            Some(piped)
        }

        fn read(&mut self) {
            let mut transfer = Transfer::new(Memory::Vec(vec![1; 8]), 0);
            transfer.announced = self.queue.takes_announced(Arc::as_ptr(&self.file).addr());
            let notify = Notify::Waker(Waker::noop().clone());
            let slot = Slot::new(Request::Read(transfer), Owner::File(self.file.clone()), notify);
            self.slots.push(slot.clone());
            self.queue.submit(slot, true);
        }

        fn has_others(&self) -> bool {
            self.queue.line().announced.has_others()
        }

        /// Lets this number of reads end.
        fn write(&self, reads: usize) {
            assert_eq!(rustix::io::write(&self.writer, &vec![7; 8 * reads]), Ok(8 * reads));
        }

        fn all_end(self) {
            self.queue.drain();
            assert!(self.slots.iter().all(|slot| slot.take().is_some_and(|(outcome, _)| outcome.is_ok())));
        }
    }

    #[test]
    fn of_many_reads_of_a_file_one_is_in_the_ring() {
        let Some(piped) = Piped::or_skip(20) else { return };
        assert!(piped.has_others());
        assert_eq!(piped.queue.line().staged, 0, "the first has left");
        piped.write(20);
        piped.all_end();
    }

    /// Symptom: each of up to 64 announced reads took 10 ms of a drain, where no runtime was driven.
    #[test]
    fn a_drain_makes_entries_of_all() {
        let Some(piped) = Piped::or_skip(20) else { return };
        let file = piped.file.clone();
        piped.write(20);
        piped.all_end();
        assert_eq!(file.counters.snapshot().announced, 0, "one was begun when another had ended");
    }

    #[test]
    fn reads_of_futures_that_compute_are_all_in_the_ring() {
        let Some(mut piped) = Piped::or_skip(20) else { return };
        piped.queue.line().woke = Some(Instant::now());
        std::thread::sleep(POLL_MAX);
        piped.read();
        assert!(!piped.has_others());
        piped.write(21);
        piped.all_end();
    }

    #[test]
    fn a_first_that_hangs_hands_the_others_to_the_ring() {
        let Some(piped) = Piped::or_skip(20) else { return };
        std::thread::sleep(FIRST_MAX + Duration::from_millis(1));
        // As a watcher does, whatever the runtime's threads do. It may have done so by now.
        assert!(piped.queue.glance() == Glance::Left || !piped.has_others());
        piped.queue.serve();
        assert!(!piped.has_others());
        piped.write(20);
        piped.all_end();
    }

    #[test]
    fn announcements_that_do_nothing_are_given_up() {
        let Some(piped) = Piped::or_skip(MISSED_SOON_MAX as usize + 20) else { return };
        let mut first_since = Instant::now();
        for ended in 1..=u64::from(MISSED_SOON_MAX) {
            std::thread::sleep(2 * ARRIVED_MAX);
            let announced = piped.has_others();
            if !announced && first_since.elapsed() > FIRST_MAX {
                // The watcher has already handed the other entries to the ring.
                return eprintln!("skipped: this thread did not run for {FIRST_MAX:?}");
            }
            assert!(announced);
            first_since = Instant::now();
            piped.write(1);
            while piped.queue.line().ended < ended {
                piped.queue.reap(Reap::Surely);
            }
        }
        assert!(!piped.has_others());
        piped.write(20);
        piped.all_end();
    }

    /// Reads of a file in the ring of a thread.
    fn own_or_skip(file: OwnedFd, writer: OwnedFd, reads: usize) -> Option<Piped> {
        Piped::noticed_by(NoticedBy::Thread, file, writer, reads)
    }

    fn cached_file() -> (OwnedFd, OwnedFd) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8]).unwrap();
        (file.try_clone().unwrap().into(), file.into())
    }

    #[test]
    fn a_thread_collects_what_has_arrived_when_the_first_has_ended() {
        let (file, writer) = cached_file();
        let Some(mut own) = own_or_skip(file, writer, 20) else { return };
        own.queue.collect_announced();
        assert_eq!(own.queue.in_flight(), 20, "the first has not ended");
        own.queue.reap(Reap::Surely);
        own.queue.collect_announced();
        let mut left = 20 - 1 - COLLECTED_MAX;
        assert_eq!(own.queue.in_flight() as usize, left);
        // One that comes meanwhile is announced, too.
        own.read();
        left += 1;
        while left > 0 {
            assert!(own.queue.wait(1), "it does not sleep");
            own.queue.reap(Reap::Surely);
            own.queue.collect_announced();
            left -= left.min(COLLECTED_MAX);
            assert_eq!(own.queue.in_flight() as usize, left);
        }
        assert_eq!(own.file.counters.snapshot().announced, 20);
        own.all_end();
    }

    #[test]
    fn a_thread_gives_announcements_up_that_do_nothing() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let Some(mut own) = own_or_skip(reader, writer, 20) else { return };
        for _ in 0..MISSED_MAX {
            assert!(own.has_others());
            own.write(1);
            own.queue.wait(1);
            own.queue.reap(Reap::Surely);
            own.queue.collect_announced();
        }
        assert!(!own.has_others());
        own.read();
        assert!(!own.has_others(), "further ones have entries, for a while");
        own.write(21 - MISSED_MAX as usize);
        own.all_end();
    }

    #[test]
    fn a_queue_that_is_left_has_entries_only() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let Some(own) = own_or_skip(reader, writer, 20) else { return };
        own.queue.enter_announced();
        assert!(!own.has_others());
        own.write(20);
        own.all_end();
    }
}
