//! Stalled threads for which others wait: stopped, without processor time in their cgroup, or of
//! the lowest priority.
//!
//! One thread writes a block, and one thread notifies the waiters of its end. Once such a step is
//! overdue, another thread takes it, too: it writes the same bytes to the same place, or notifies
//! the remaining waiters. The first success counts.

use std::time::{Duration, Instant};

use super::Pipeline;
use super::in_flight::{Rescue, Rewrite};

/// Minimum and maximum time before another thread writes the block again.
const PATIENCE_MIN: Duration = Duration::from_millis(20);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// Patience as a multiple of the slowest recent write, so that a slow device does not write every
/// block twice.
const TIMES_SLOWEST: u32 = 4;
/// Divisor of the decay of the slowest write's time with each later write.
const FADES_BY: u32 = 16;

/// Number of threads of a group that watch for stalled threads, if a maintenance thread watches,
/// too. Not all: timers for 64 sleeping threads cost as much as their commit.
pub(crate) const LOOKOUTS: u32 = 2;

impl<F: Clone> Pipeline<F> {
    /// True if a thread that goes to sleep after `before` others of its group must watch for
    /// stalled threads.
    pub(crate) fn looks_out(&self, before: u32) -> bool {
        !self.rules.has_maintenance || before < LOOKOUTS
    }

    /// Time after which a write is overdue.
    pub(super) fn patience(&self) -> Duration {
        (self.slowest * TIMES_SLOWEST).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// Records the time of a write.
    pub(super) fn learn(&mut self, took: Duration) {
        self.slowest = took.max(self.slowest - self.slowest / FADES_BY);
    }

    /// True if some waiters may not have been notified of the end of a write.
    pub(crate) fn has_untold(&self) -> bool {
        self.ending.iter().any(|(_, ending)| !ending.is_over())
    }

    /// Makes later blocks of segment `number` use another open file: a stalled thread may hold the
    /// queue of the old one.
    pub(super) fn exchange_file(&mut self, number: u64, file: F) {
        let later = self.ready.iter_mut().chain(&mut self.open).map(|block| &mut block.live);
        let later = later.chain(std::iter::once(&mut self.current)).filter(|live| live.number == number);
        self.left.extend(later.map(|live| live.exchange_file(file.clone())));
    }

    /// Returns an overdue step, if any. The step becomes due again later, in case the caller
    /// stalls, too. Each rewrite of a block doubles the delay.
    pub(crate) fn rescue(&mut self, now: Instant) -> Option<Rescue<F>> {
        let patience = self.patience();
        let mut endings = self.ending.iter_mut();
        if let Some((due, ending)) = endings.find(|(due, ending)| *due <= now && !ending.is_over()) {
            *due = now + patience;
            return Some(Rescue::End(ending.clone()));
        }
        if let Some(next) = self.replace_writer(now) {
            return Some(Rescue::PassOn(next));
        }
        let block = self.in_flight.iter_mut().find(|block| block.due <= now && !block.is_completed)?;
        block.rewrites += 1;
        block.due = now + patience * (1 << block.rewrites.min(8));
        // A block without bytes is being sealed, which makes no system call.
        let bytes = block.group.sealed()?;
        Some(Rescue::Rewrite(Rewrite { id: block.id, live: block.live.clone(), offset: block.offset, bytes }))
    }
}
