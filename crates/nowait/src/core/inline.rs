//! How one read or write is tried on its caller's thread: an attempt that the kernel promises not to have wait, or a plain call that is
//! expected to be cheap, or neither. The selectors choose; here the calls are made, timed, and counted where they fail.

use std::cell::Cell;
use std::time::Instant;

use rustix::io::Errno;

use crate::core::policy::{Choice, Policy, ReadSelector, WriteSelector};
use crate::core::writeback;
use crate::stats::{Count, Counters};
use crate::sys::Wait;

/// How it ended.
pub(crate) enum Tried {
    /// An attempt moved all of it.
    Hit,
    /// So many bytes are there; the rest is for the slow path.
    Part(usize),
    /// A plain call ran to its end.
    Called(Result<usize, Errno>),
}

/// Counts this thread's attempts.
#[inline]
fn attempt_number() -> u32 {
    thread_local!(static ATTEMPTS: Cell<u32> = const { Cell::new(0) });
    // A thread that is being torn down times each.
    ATTEMPTS.try_with(|attempts| attempts.replace(attempts.get().wrapping_add(1))).unwrap_or(0)
}

/// Moves `length` bytes on this thread if that is not expected to wait, by the way that suits the file. `call` makes one attempt, or,
/// allowed to wait, moves all.
#[inline]
pub(crate) fn climb(
    counters: &Counters,
    mut ladder: impl Ladder,
    length: usize,
    mut call: impl FnMut(Wait) -> Result<usize, Errno>,
) -> Tried {
    let mut choice = ladder.choose();
    if choice == Choice::Attempt {
        let begun = ladder.is_timed(attempt_number()).then(Instant::now);
        let answer = call(Wait::Never);
        let elapsed_ns = begun.map(|begun| begun.elapsed().as_nanos() as u64);
        match answer {
            // Never the end of the file: kernels 5.9 and 5.10 answered with nothing before it (tokio-rs/tokio#3803).
            Ok(n) if n > 0 => {
                ladder.hit(n, elapsed_ns);
                if n == length {
                    return Tried::Hit;
                }
                counters.add(Count::ShortAttempts);
                return Tried::Part(n);
            }
            Err(Errno::OPNOTSUPP) => {
                ladder.refused();
                choice = ladder.choose();
            }
            // Whatever an error is, the slow path reports it.
            answer => {
                if answer == Err(Errno::AGAIN) {
                    ladder.accepted();
                }
                counters.add(Count::Misses);
                choice = ladder.missed();
            }
        }
    }
    if choice != Choice::Budgeted {
        return Tried::Part(0);
    }
    let begun = Instant::now();
    let result = call(Wait::Allowed);
    if ladder.budgeted(begun.elapsed().as_nanos() as u64) {
        counters.add(Count::Stalls);
    }
    Tried::Called(result)
}

/// One operation before a selector: what may be tried inline, and how it went.
pub(crate) trait Ladder {
    fn choose(&mut self) -> Choice;
    /// Whether an attempt should be timed, if it is its thread's `number`th.
    fn is_timed(&self, number: u32) -> bool;
    /// An attempt moved `bytes`, in `elapsed_ns` if it was timed.
    fn hit(&self, bytes: usize, elapsed_ns: Option<u64>);
    /// An attempt was answered with "not now" (EAGAIN), and so is accepted.
    fn accepted(&self);
    /// An attempt moved nothing. What to do instead.
    fn missed(&mut self) -> Choice;
    /// The file does not accept attempts.
    fn refused(&self);
    /// A plain call took so long. True when that was over the budget.
    fn budgeted(&mut self, elapsed_ns: u64) -> bool;
}

/// A read of `length` bytes.
pub(crate) struct ReadLadder<'a> {
    pub(crate) reads: &'a ReadSelector,
    pub(crate) policy: &'a Policy,
    pub(crate) length: usize,
}

impl Ladder for ReadLadder<'_> {
    #[inline]
    fn choose(&mut self) -> Choice {
        self.reads.choose(self.policy, self.length)
    }

    #[inline]
    fn is_timed(&self, number: u32) -> bool {
        self.reads.is_timed(number)
    }

    #[inline]
    fn hit(&self, bytes: usize, elapsed_ns: Option<u64>) {
        self.reads.attempt_hit(bytes, elapsed_ns);
    }

    fn accepted(&self) {
        self.reads.attempt_accepted();
    }

    fn missed(&mut self) -> Choice {
        self.reads.attempt_missed();
        Choice::Slow
    }

    fn refused(&self) {
        self.reads.attempt_refused();
    }

    fn budgeted(&mut self, elapsed_ns: u64) -> bool {
        self.reads.budgeted(self.policy, self.length, elapsed_ns)
    }
}

/// A write of `length` bytes, and what tells whether a plain call is expected not to wait.
pub(crate) struct WriteLadder<'a, C> {
    pub(crate) writes: &'a WriteSelector,
    pub(crate) policy: &'a Policy,
    pub(crate) length: usize,
    /// Half of it may be written first.
    pub(crate) attempts: bool,
    pub(crate) is_cheap: C,
}

impl<C: FnMut() -> bool> Ladder for WriteLadder<'_, C> {
    #[inline]
    fn choose(&mut self) -> Choice {
        self.writes.choose(self.policy, self.length, self.attempts, &mut self.is_cheap)
    }

    fn is_timed(&self, _: u32) -> bool {
        // No device is waited for, and what else may take long is not to be learned from one write.
        false
    }

    fn hit(&self, _: usize, _: Option<u64>) {
        self.writes.attempt_hit();
    }

    fn accepted(&self) {}

    fn missed(&mut self) -> Choice {
        self.writes.attempt_missed();
        self.writes.instead(self.policy, &mut self.is_cheap)
    }

    fn refused(&self) {
        self.writes.attempt_refused();
    }

    #[inline]
    fn budgeted(&mut self, elapsed_ns: u64) -> bool {
        let over = self.writes.budgeted(self.policy, self.length, elapsed_ns);
        if over {
            writeback::slept(elapsed_ns);
        }
        over
    }
}
