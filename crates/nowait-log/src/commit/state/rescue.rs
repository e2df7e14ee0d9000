//! Threads that are held up while others wait for them: stopped, without processor time in their
//! cgroup, or with the lowest priority.
//!
//! A thread that writes a block has it alone, and so has the one that tells of its end. Another takes
//! the same steps once they are overdue: it writes the same bytes to the same place, and tells whoever
//! was not told. The first that succeeds counts.

use std::time::{Duration, Instant};

use super::Pipeline;
use super::in_flight::{Rescue, Rewrite};

/// Least and longest time that a write is waited for before another thread writes the block.
const PATIENCE_MIN: Duration = Duration::from_millis(20);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// Patience in times of the slowest write of late: a slow device is not to write everything twice.
const TIMES_SLOWEST: u32 = 4;
/// Part by which a slow write counts less with each that follows.
const FADES_BY: u32 = 16;

/// Threads of a group that look after others, where a maintenance thread does, too: a timer for each
/// of 64 that sleep costs as much as their commit.
const LOOKOUTS: u32 = 2;

impl<F: Clone> Pipeline<F> {
    /// True if a thread that goes to sleep, after `before` others of its group, looks after those that
    /// it waits for.
    pub(crate) fn looks_out(&self, before: u32) -> bool {
        !self.rules.has_maintenance || before < LOOKOUTS
    }

    /// Time that a write is waited for.
    pub(super) fn patience(&self) -> Duration {
        (self.slowest * TIMES_SLOWEST).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// Takes note of the time that a write took.
    pub(super) fn learn(&mut self, took: Duration) {
        self.slowest = took.max(self.slowest - self.slowest / FADES_BY);
    }

    /// True if a thread is telling of the end of a write.
    pub(crate) fn has_untold(&self) -> bool {
        self.ending.iter().any(|(_, ending)| !ending.is_over())
    }

    /// Has later blocks of segment `number` written by another file: a thread that is held up may have
    /// the queue of the old one.
    pub(super) fn exchange_file(&mut self, number: u64, file: F) {
        let later = self.ready.iter_mut().chain(&mut self.open).map(|block| &mut block.live);
        let later = later.chain(std::iter::once(&mut self.current)).filter(|live| live.number == number);
        self.left.extend(later.map(|live| live.exchange_file(file.clone())));
    }

    /// Returns a step that is overdue, if there is one. It is due again if this does not help either,
    /// each time later.
    pub(crate) fn rescue(&mut self, now: Instant) -> Option<Rescue<F>> {
        let patience = self.patience();
        let mut endings = self.ending.iter_mut();
        if let Some((due, ending)) = endings.find(|(due, ending)| *due <= now && !ending.is_over()) {
            *due = now + patience;
            return Some(Rescue::End(ending.clone()));
        }
        let block = self.in_flight.iter_mut().find(|block| block.due <= now && !block.is_completed)?;
        block.rewrites += 1;
        block.due = now + patience * (1 << block.rewrites.min(8));
        // Without bytes it is being sealed: that takes no system call.
        let bytes = block.group.sealed()?;
        Some(Rescue::Rewrite(Rewrite { id: block.id, live: block.live.clone(), offset: block.offset, bytes }))
    }
}
