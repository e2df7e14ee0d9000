//! Announced reads (`engine/announced.rs`) in the queue of one thread.
//!
//! `unsafe` here: reading what was announced, into memory that the slots in the table keep alive.

use std::time::Duration;

use super::{Owned, Queue};
use crate::engine::announced::FIRST_MAX;
use crate::op::{Owner, Request, STUCK, Slot};
use crate::stats::Count;
use crate::sys::{self, Wait};

/// Announcements do nothing, or the device takes one read at a time, if the oldest has not arrived
/// this often in a row.
const MISSED_MAX: u32 = 3;

/// Reads that are collected before their futures run: those make the device's next work. (All at
/// once was a tenth slower at depth 16 to 64, on a virtio disk; 1, 2 and 8 were level.)
const COLLECTED_MAX: usize = 4;

/// Makes a non-blocking attempt at a read that the kernel does not have. Returns how many bytes have
/// arrived, of which the transfer is told later; none if that is not known now.
fn attempt(slot: &Slot) -> Option<usize> {
    let attempt = |request: &Request, owner: &Owner| {
        let Request::Read(transfer) = request else { return None };
        let fd = owner.handle()?.descriptor().ok()?;
        // SAFETY: a transfer's segments are writable and used by one party at a time, now by this
        // queue: its entry is not pushed.
        let result = unsafe { sys::read_at(fd, transfer.segments(), transfer.position(), Wait::Never) };
        result.ok().filter(|n| *n > 0)
    };
    slot.with(attempt)?
}

impl<Q: Queue> Owned<Q> {
    /// Whether a read of the file at this address may be announced, and left to be collected. The
    /// first leaves at once then.
    pub(in super::super) fn takes_announced(&mut self, file: usize) -> bool {
        let takes = self.announced.accepts(file) && !self.free.is_empty();
        if takes && self.staged > 0 && !self.announced.has_others() {
            self.submit();
        }
        takes && !self.dead
    }

    /// Collects reads that have arrived, once the first has ended.
    pub(super) fn collect_announced(&mut self) {
        if self.announced.is_late() {
            return self.enter_announced();
        }
        for _ in 0..COLLECTED_MAX {
            let Some(place) = self.announced.next() else { return };
            let Some(slot) = self.slots[place as usize].take() else { continue };
            let Some(n) = attempt(&slot) else {
                self.slots[place as usize] = Some(slot);
                return self.begin_anew(place);
            };
            slot.count(Count::Announced);
            self.free.push(place);
            self.ended += 1;
            self.completions.push((slot, Ok(n)));
            self.announced.collected();
        }
    }

    /// Whether some may have arrived that were not looked at yet.
    pub(super) fn has_uncollected(&self) -> bool {
        self.announced.has_uncollected()
    }

    /// Makes an entry of the oldest, which has not arrived, and waits for it next.
    fn begin_anew(&mut self, place: u32) {
        if self.announced.misses(MISSED_MAX) {
            self.enter_one(place);
            return self.enter_announced();
        }
        // In this order: a queue that dies forgets it.
        self.announced.begin(u64::from(place));
        self.enter_one(place);
    }

    /// Makes entries of all that were announced.
    pub(in super::super) fn enter_announced(&mut self) {
        while let Some(place) = self.announced.pop() {
            self.enter_one(place);
        }
    }

    fn enter_one(&mut self, place: u32) {
        let entry = self.slots[place as usize].as_ref().and_then(|slot| self.queue.encode(slot));
        match entry.filter(|_| !self.dead) {
            Some(entry) => self.push_entry(&entry, u64::from(place)),
            None => self.hand_on(u64::from(place)),
        }
    }

    /// Tells how long to wait at most: slots in line must not wait for operations that never end,
    /// and announced ones not for their first.
    pub(in super::super) fn patience(&self) -> Option<Duration> {
        match (self.announced.has_others(), self.backlog.len()) {
            (true, _) => Some(FIRST_MAX),
            (false, 1..) => Some(STUCK),
            (false, 0) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Write;
    use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
    use std::sync::Arc;
    use std::task::Waker;

    use rustix::io::Errno;

    use super::*;
    use crate::buf::Memory;
    use crate::direct::Directness;
    use crate::engine::announced::REST;
    use crate::engine::local::bell::Bell;
    use crate::op::{Fallback, Handle, Notify, OpenFile, Owner, Request, Slot, Transfer};

    /// Keeps entries until they are ended by hand.
    #[derive(Default)]
    struct ByHand {
        entries: Vec<u64>,
        ended: Vec<u64>,
    }

    impl Queue for ByHand {
        type Entry = ();
        const SERVED: Count = Count::Ring;
        const LEAVES_EARLY: bool = true;
        fn set_up(_: &OwnedFd) -> Option<ByHand> {
            Some(ByHand::default())
        }
        fn is_ours(&self) -> bool {
            true
        }
        fn depth(&self) -> u32 {
            64
        }
        fn descriptor(&self) -> Option<RawFd> {
            None
        }
        fn encode(&self, _: &Arc<Slot>) -> Option<()> {
            Some(())
        }
        fn poll(_: BorrowedFd<'_>) {}
        unsafe fn push(&mut self, _: &(), user_data: u64) -> bool {
            self.entries.push(user_data);
            true
        }
        fn submit(&mut self) -> bool {
            true
        }
        fn wait(&mut self, _: usize, _: Option<Duration>) -> bool {
            true
        }
        fn reap(&mut self, mut each: impl FnMut(u64, Result<usize, Errno>)) {
            self.ended.drain(..).for_each(|user_data| each(user_data, Ok(8)));
        }
        fn take_back(&mut self) -> VecDeque<u64> {
            VecDeque::new()
        }
    }

    /// The test hands nothing on.
    struct NoPool;
    impl Fallback for NoPool {
        fn take(&self, _: Arc<Slot>) {
            unreachable!("no slot is handed on");
        }
    }

    struct Test {
        owned: Owned<ByHand>,
        file: Arc<OpenFile>,
    }

    impl Test {
        /// With `reads` of a file.
        fn new(file: OwnedFd, reads: usize) -> Test {
            let file = Handle::Descriptor(file);
            let file = Arc::new(OpenFile::new(file, Directness::NotAsked, Arc::default(), Arc::new(NoPool)));
            let mut test = Test { owned: Owned::new(Bell::new()).unwrap(), file };
            (0..reads).for_each(|_| test.read());
            test
        }

        /// Announces a read if the queue asks for that.
        fn read(&mut self) {
            let mut transfer = Transfer::new(Memory::Vec(vec![1; 8]), 0);
            transfer.announced = self.owned.takes_announced(Arc::as_ptr(&self.file).addr());
            let notify = Notify::Waker(Waker::noop().clone());
            self.owned.accept(Slot::new(Request::Read(transfer), Owner::File(self.file.clone()), notify));
        }

        /// Ends the oldest entry, and returns how many reads the queue gives back.
        fn end_one(&mut self) -> usize {
            let oldest = self.owned.queue.entries.remove(0);
            self.owned.queue.ended.push(oldest);
            self.owned.enter(1, None);
            self.owned.completions.drain(..).count()
        }

        fn entries(&self) -> usize {
            self.owned.queue.entries.len()
        }
    }

    fn cached_file() -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8]).unwrap();
        file.into()
    }

    /// Attempts at it fail, as at what has not arrived.
    fn nothing_arrives() -> OwnedFd {
        rustix::pipe::pipe().unwrap().0
    }

    #[test]
    fn what_has_arrived_is_collected_when_the_first_has_ended() {
        let mut test = Test::new(cached_file(), 20);
        assert_eq!(test.entries(), 1);
        test.owned.enter(0, None);
        assert!(test.owned.completions.is_empty(), "the first has not ended");
        assert_eq!(test.owned.in_flight(), 20);
        assert_eq!(test.end_one(), 1 + COLLECTED_MAX);
        // One that comes meanwhile is announced, too.
        test.read();
        assert_eq!(test.entries(), 0);
        let mut left = 20 - COLLECTED_MAX;
        while left > 0 {
            assert!(test.owned.has_uncollected());
            test.owned.enter(1, None);
            let collected = test.owned.completions.drain(..).count();
            assert_eq!(collected, left.min(COLLECTED_MAX));
            left -= collected;
        }
        assert!(!test.owned.is_busy());
        assert_eq!(test.owned.patience(), None);
    }

    #[test]
    fn a_first_that_hangs_hands_the_others_to_the_ring() {
        let mut test = Test::new(nothing_arrives(), 20);
        assert_eq!(test.owned.patience(), Some(FIRST_MAX));
        std::thread::sleep(FIRST_MAX + Duration::from_millis(1));
        test.owned.enter(0, None);
        assert_eq!((test.entries(), test.owned.in_flight()), (20, 20));
        assert_eq!(test.owned.patience(), None);
    }

    #[test]
    fn announcements_that_do_nothing_are_given_up() {
        let mut test = Test::new(nothing_arrives(), 20);
        for ended in 1..MISSED_MAX {
            assert_eq!(test.end_one(), 1);
            assert_eq!((test.entries(), test.owned.in_flight()), (1, 20 - ended as usize));
        }
        assert_eq!(test.end_one(), 1);
        let left = 20 - MISSED_MAX as usize;
        assert_eq!((test.entries(), test.owned.in_flight()), (left, left));
        // All further ones have entries, for a while.
        for _ in 0..REST {
            test.read();
            assert_eq!(test.entries(), left + 1);
            assert_eq!(test.end_one(), 1);
        }
        test.read();
        assert_eq!(test.entries(), left + 1, "the new first");
        test.read();
        assert_eq!(test.entries(), left + 1, "announced again");
    }

    #[test]
    fn a_queue_that_is_left_has_entries_only() {
        let mut test = Test::new(cached_file(), 20);
        test.owned.enter_announced();
        assert_eq!((test.entries(), test.owned.in_flight()), (20, 20));
        (0..20).for_each(|_| assert_eq!(test.end_one(), 1));
        assert!(!test.owned.is_busy());
    }
}
