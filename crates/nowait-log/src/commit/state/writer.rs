//! When the log's own thread writes: the thread `nowait-log-writer`, for many waiters.
//!
//! With few waiters, one of them writes, and no thread has to be woken for that. With many, the
//! waiter that writes is one of those whom the last write woke, and competes with them for a
//! processor. So from [`MANY`] waiters on, a thread of the log writes for all. It writes block after
//! block until nothing is pending.

use std::time::{Duration, Instant};

use super::{Pipeline, Submission, Successor};

/// Number of waiters from which the log's own thread writes. Relative to one thread that writes
/// for all by hand, 64 threads reached 0.85 of the commits without this thread, and 0.90 to 0.97
/// with it. With 8 threads it was slower: 0.93 instead of 1.06 (6.18, virtio, ext4).
const MANY: u32 = if cfg!(nowait_log_loom) { 2 } else { 16 };

/// The thread `nowait-log-writer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Not started.
    #[default]
    Absent,
    Idle,
    /// The thread writes the pending blocks, or was woken for that. No other thread submits one.
    /// Its last step was taken at this time.
    Active(Instant),
    /// The thread is overdue; others write, until it takes its next step.
    Stalled,
}

/// Whether the thread lets tasks that it has woken append before it writes.
///
/// Without that, half of the tasks append during each write, and wait for the next one: a record
/// waits for two writes. If the others append within less than the time of a write, one write of all
/// records is faster than two of half of them. 64 tasks made 1.2 times the commits, but 256 tasks,
/// which need longer than a write, 0.8 times. So attempts that fail become rare. If records arrive at
/// a rate, whether earlier ones are durable or not, an attempt would need three quarters of a write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gathers {
    /// Time of the last write.
    write: Duration,
    /// Number of writes until the next attempt.
    skips: u32,
    /// Number of writes that are skipped after an attempt: more after a failure, fewer after a success.
    pub(super) penalty: u32,
}

impl Gathers {
    const PENALTY_MAX: u32 = 256;
    /// Maximum time of an attempt, also if a write took longer.
    const TIME_MAX: Duration = Duration::from_micros(500);

    pub(super) fn wrote(&mut self, time: Duration) {
        self.write = time;
    }
}

/// Next step of the thread.
#[allow(clippy::large_enum_variant)]
pub(crate) enum WriterTurn<F> {
    Write(Submission<F>),
    /// Other threads write from now on.
    PassOn(Successor),
    /// The thread sleeps until it is woken.
    Sleep,
    /// The log is closing: the thread ends.
    End(Successor),
}

impl<F: Clone> Pipeline<F> {
    /// True if the thread would be of use, and must be started.
    pub(crate) fn wants_writer(&self) -> bool {
        self.writer == Writer::Absent && self.has_many() && !self.is_closing
    }

    #[cfg(test)]
    pub(crate) fn has_writer(&self) -> bool {
        self.writer != Writer::Absent
    }

    /// True if there are many waiters. Fewer suffice while the thread writes, since the number
    /// varies. Many records of few waiters do not count: one of these is free to write.
    pub(super) fn has_many(&self) -> bool {
        self.waiters >= if self.is_writer_active() { MANY / 2 } else { MANY }
    }

    /// True while the log's own thread writes.
    pub(super) fn is_writer_active(&self) -> bool {
        matches!(self.writer, Writer::Active(_))
    }

    /// True if a pending block was left to the log's own thread. Not only the oldest: its waiters
    /// are not counted, and earlier blocks may have none.
    pub(super) fn is_left_to_writer(&self) -> bool {
        self.pending().any(|block| block.group.is_served())
    }

    /// Leaves pending blocks to the log's own thread: None if that does not write, otherwise
    /// whether the caller must wake it.
    pub(crate) fn leave_to_writer(&mut self, now: impl Fn() -> Instant) -> Option<bool> {
        match self.writer {
            Writer::Active(_) => Some(false),
            Writer::Idle if self.has_many() => {
                // Otherwise the end of the write in flight chooses the thread.
                let wakes = self.may_submit() && self.has_pending();
                if wakes {
                    self.writer = Writer::Active(now());
                }
                Some(wakes)
            }
            _ => None,
        }
    }

    /// Makes the log's own thread the next writer of pending blocks, if it should write them.
    pub(super) fn engage_writer(&mut self, now: Instant) -> Option<Successor> {
        if self.writer != Writer::Idle || !(self.has_many() || self.is_left_to_writer()) {
            return None;
        }
        self.writer = Writer::Active(now);
        Some(Successor::Writer)
    }

    /// Returns the maximum time for which the log's own thread lets woken tasks append before it
    /// writes; `None` if it writes at once.
    pub(crate) fn gather_time(&mut self) -> Option<Duration> {
        if self.tasks < MANY || self.has_gathered() || self.must_not_gather() {
            return None;
        }
        if self.gathers.skips > 0 {
            self.gathers.skips -= 1;
            return None;
        }
        let time = (self.gathers.write * 5 / 8).min(Gathers::TIME_MAX);
        (!time.is_zero()).then_some(time)
    }

    /// True if most of the woken tasks have appended again.
    fn has_gathered(&self) -> bool {
        self.unsubmitted() >= self.tasks - self.tasks / 8
    }

    /// True if no block may be submitted, the next block takes no more records, or appends wait for
    /// its write.
    fn must_not_gather(&self) -> bool {
        !self.is_writer_active()
            || !self.may_submit()
            || self.is_closing
            || !self.ready.is_empty()
            || self.room_is_wanted()
    }

    /// True if an attempt to gather records has ended before its time.
    pub(crate) fn ends_gathering(&self) -> bool {
        self.has_gathered() || self.must_not_gather()
    }

    /// Records the end of an attempt to gather records of tasks, which took `took` of the allowed
    /// `time`.
    pub(crate) fn gathered(&mut self, took: Duration, time: Duration) {
        let gathers = self.gathers;
        let penalty = match self.has_gathered() && took <= time {
            true => gathers.penalty / 2,
            false if took <= time => gathers.penalty,
            // Another program ran for milliseconds instead of the tasks.
            false if took > 2 * time => Gathers::PENALTY_MAX,
            false => (gathers.penalty * 2).clamp(1, Gathers::PENALTY_MAX),
        };
        // A long attempt takes a small part of the time, also if writes are short.
        let writes = took.as_nanos() / gathers.write.as_nanos().max(1);
        let rests = u32::try_from(writes * 64).unwrap_or(u32::MAX);
        self.gathers.penalty = penalty;
        self.gathers.skips = if took > time { penalty.max(rests) } else { penalty };
    }

    /// Decides the next step of the log's own thread, which calls this in a loop.
    pub(crate) fn serve(&mut self, now: impl Fn() -> Instant) -> WriterTurn<F> {
        let was_active = self.is_writer_active();
        if was_active && (self.has_many() || self.is_left_to_writer()) && !self.is_closing {
            if let Some(submission) = self.submit(false, &now) {
                self.writer = Writer::Active(now());
                return WriterTurn::Write(submission);
            }
        }
        self.writer = if self.is_closing { Writer::Absent } else { Writer::Idle };
        self.tasks = 0;
        let next = if was_active || self.is_closing { self.choose_next(now()) } else { Successor::Nobody };
        match self.writer {
            Writer::Absent => WriterTurn::End(next),
            _ if was_active => WriterTurn::PassOn(next),
            _ => WriterTurn::Sleep,
        }
    }

    /// Lets other threads write, since one of them took a step for the log's own thread.
    pub(super) fn writer_was_rescued(&mut self) {
        if self.is_writer_active() {
            self.writer = Writer::Stalled;
        }
    }

    /// Lets other threads write if the log's own one is overdue; returns the next writer then.
    pub(super) fn replace_writer(&mut self, now: Instant) -> Option<Successor> {
        let Writer::Active(since) = self.writer else { return None };
        let is_overdue = now.saturating_duration_since(since) >= self.patience();
        if !is_overdue || !self.may_submit() || self.pending().next().is_none() {
            return None;
        }
        self.writer = Writer::Stalled;
        Some(self.choose_next(now))
    }
}
