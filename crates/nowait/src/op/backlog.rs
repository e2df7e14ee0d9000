//! Slots that wait for a place in a full queue.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::file::{OperationCount, in_queues, on_threads};
use super::slot::Slot;

/// If a queue to the kernel is full, perhaps of operations that never end, the pool serves files
/// with fewer operations under way than this. Other files wait for a place, which their own
/// completions pass on.
pub(crate) const PLACES_MIN: u32 = 64;

/// If all threads of a pool hang, additional threads serve files with fewer operations under way
/// than this.
pub(crate) const SHARE: u32 = 8;

/// Slots that wait for a place in a full queue. The file with the fewest operations under way is
/// served first, so that no file takes all places; within a file, slots keep their order. Abandoned
/// slots are shed when they are met, and in sweeps: their number stays within a constant factor of
/// the wanted slots.
///
/// The engine discards what is shed ([`Backlog::take_shed`]) once nothing is locked: that may
/// run a user's destructor, and close a file.
#[derive(Default)]
pub(crate) struct Backlog {
    files: HashMap<usize, Queued, BuildHasherDefault<AddressHasher>>,
    /// Files in the order of their turns.
    turns: VecDeque<usize>,
    length: usize,
    announced: usize,
    sweep_at: usize,
    shed: Vec<Arc<Slot>>,
    /// Shed, taken, and not discarded yet.
    leaving: usize,
    /// The queue's count of ended operations when it was last seen to have grown, and the time.
    seen: Option<(u64, Instant)>,
}

/// A queue or pool hangs if work is in line and nothing has ended for this time: a device or server
/// does not answer.
pub(crate) const STUCK: Duration = Duration::from_secs(1);

/// Hashes addresses, which no attacker chooses.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // The golden ratio's bits; the lowest bits of addresses are zero.
        self.0 = (self.0 ^ (address as u64 >> 4)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The slots of one file, or of none.
struct Queued {
    begun: OperationCount,
    /// With each, whether it was announced.
    slots: VecDeque<(Arc<Slot>, bool)>,
}

/// Number of files that are compared to choose the next one.
const TURNS_MAX: usize = 16;

impl Backlog {
    pub(crate) fn push(&mut self, slot: Arc<Slot>) {
        if self.length >= self.sweep_at.max(64) {
            self.sweep();
        }
        self.put(slot, false);
    }

    /// Puts back what was just taken out.
    pub(crate) fn push_front(&mut self, slot: Arc<Slot>) {
        self.put(slot, true);
    }

    fn put(&mut self, slot: Arc<Slot>, first: bool) {
        let announced = slot.is_announced();
        let begun = slot.with(|_, owner| owner.begun()).unwrap_or_default();
        let key = Arc::as_ptr(&begun).addr();
        self.announced += usize::from(announced);
        self.length += 1;
        let queued = self.files.entry(key).or_insert_with(|| {
            if first {
                self.turns.push_front(key);
            } else {
                self.turns.push_back(key);
            }
            Queued { begun, slots: VecDeque::new() }
        });
        if first {
            queued.slots.push_front((slot, announced));
        } else {
            queued.slots.push_back((slot, announced));
        }
    }

    fn sweep(&mut self) {
        let Backlog { files, turns, length, announced, shed, .. } = self;
        for queued in files.values_mut() {
            queued.slots.retain(|(slot, was_announced)| {
                let keep = !slot.is_unwanted();
                if !keep {
                    shed.push(slot.clone());
                    *announced -= usize::from(*was_announced);
                    *length -= 1;
                }
                keep
            });
        }
        files.retain(|_, queued| !queued.slots.is_empty());
        turns.retain(|key| files.contains_key(key));
        self.sweep_at = self.length * 2;
    }

    /// Takes the next slot that is still wanted.
    pub(crate) fn pop(&mut self) -> Option<Arc<Slot>> {
        self.pop_below(u32::MAX, |begun| in_queues(begun) + on_threads(begun))
    }

    /// As [`Backlog::pop`], of files with fewer operations under way than `busy_max`; `of` extracts
    /// the count from [`OperationCount`].
    pub(crate) fn pop_below(&mut self, busy_max: u32, of: impl Fn(u64) -> u32) -> Option<Arc<Slot>> {
        loop {
            let busy = |key: &usize| self.files.get(key).map_or(u32::MAX, |queued| of(queued.begun.load(Relaxed)));
            let turn = if busy_max == u32::MAX && self.turns.len() <= 1 {
                0
            } else {
                let looked_at = if busy_max == u32::MAX { TURNS_MAX } else { usize::MAX };
                let turns = self.turns.iter().take(looked_at).map(busy).enumerate();
                let free = turns.filter(|(_, busy)| *busy < busy_max || busy_max == u32::MAX);
                free.min_by_key(|(_, busy)| *busy)?.0
            };
            let key = *self.turns.get(turn)?;
            let queued = self.files.get_mut(&key)?;
            let next = queued.slots.pop_front();
            if queued.slots.is_empty() {
                self.files.remove(&key);
                self.turns.remove(turn);
            } else if self.turns.len() > 1 {
                self.turns.remove(turn);
                self.turns.push_back(key);
            }
            let Some((slot, announced)) = next else { continue };
            self.length -= 1;
            self.announced -= usize::from(announced);
            if !slot.is_unwanted() {
                return Some(slot);
            }
            self.shed.push(slot);
        }
    }

    /// Takes the whole line, for the pool, if the queue has ended nothing for [`STUCK`]; `ended` is
    /// its count. The caller calls [`Backlog::discarded`] when the pool has it.
    pub(crate) fn take_stuck(&mut self, ended: u64, now: Instant) -> Vec<Arc<Slot>> {
        match self.seen {
            _ if self.length == 0 => self.seen = None,
            Some((before, since)) if before == ended => {
                if now.saturating_duration_since(since) >= STUCK {
                    self.seen = None;
                    let stuck: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
                    self.leaving += stuck.len();
                    return stuck;
                }
            }
            _ => self.seen = Some((ended, now)),
        }
        Vec::new()
    }

    pub(crate) fn has_shed(&self) -> bool {
        !self.shed.is_empty()
    }

    /// Takes shed slots. The caller discards them, with nothing locked, then calls
    /// [`Backlog::discarded`].
    pub(crate) fn take_shed(&mut self) -> Vec<Arc<Slot>> {
        self.leaving += self.shed.len();
        std::mem::take(&mut self.shed)
    }

    pub(crate) fn discarded(&mut self, count: usize) {
        self.leaving -= count;
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is in line, or still to be discarded.
    pub(crate) fn is_quiet(&self) -> bool {
        self.length == 0 && self.shed.is_empty() && self.leaving == 0
    }

    /// How many of them were announced to the kernel.
    pub(crate) fn announced(&self) -> usize {
        self.announced
    }
}

#[cfg(all(test, not(nowait_loom)))]
mod tests {
    use super::*;
    use crate::op::fixture::idle_slot as slot;

    #[test]
    fn backlog_is_first_come_first_served_and_sheds_the_abandoned() {
        let mut backlog = Backlog::default();
        let slots: Vec<_> = (0..1000).map(|_| slot()).collect();
        let mut shed = Vec::new();
        for (i, (slot, _)) in slots.iter().enumerate() {
            backlog.push(slot.clone());
            shed.append(&mut backlog.take_shed());
            if i % 10 != 0 {
                slot.abandon();
            }
        }
        assert!(backlog.len() < 400, "{} kept", backlog.len());
        for (expected, _) in slots.iter().step_by(10) {
            assert!(Arc::ptr_eq(expected, &backlog.pop().unwrap()));
        }
        assert!(backlog.pop().is_none());
        shed.append(&mut backlog.take_shed());
        assert_eq!(shed.len(), 900);
        // A slot ends when its new owner discards it, with no lock held.
        assert!(slots.iter().all(|(_, counters)| counters.snapshot().ended() == 0));
        assert!(!backlog.is_quiet());
        shed.iter().for_each(|slot| drop(slot.discard()));
        backlog.discarded(shed.len());
        assert!(backlog.is_quiet());
        assert_eq!(slots.iter().filter(|(_, counters)| counters.snapshot().cancelled == 1).count(), 900);
    }

    #[test]
    fn what_is_in_line_leaves_a_queue_that_hangs_and_no_other() {
        let mut backlog = Backlog::default();
        let now = Instant::now();
        let just_before = now + STUCK - Duration::from_millis(1);
        backlog.push(slot().0);
        assert_eq!(backlog.take_stuck(7, now).len(), 0);
        assert_eq!(backlog.take_stuck(7, just_before).len(), 0);
        // One has ended.
        assert_eq!(backlog.take_stuck(8, now + STUCK).len(), 0);
        backlog.push(slot().0);
        assert_eq!(backlog.take_stuck(8, now + 2 * STUCK).len(), 2);
        // Later ones have their time.
        assert_eq!(backlog.take_stuck(8, now + 3 * STUCK).len(), 0);
        backlog.push(slot().0);
        assert_eq!(backlog.take_stuck(8, now + 4 * STUCK).len(), 0);
        assert_eq!(backlog.take_stuck(8, now + 5 * STUCK).len(), 1);
    }
}
