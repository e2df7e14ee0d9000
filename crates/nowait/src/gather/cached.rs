//! The first pass: cached ranges are served on the spot, in the caller's order, without a queue.

use std::time::Instant;

use super::{Extent, Found, Ignore, Miss, REQUEST_BYTES_MAX, TURN_BYTES_MAX, Take};
use crate::core::inline::{Tried, may_sleep};
use crate::core::policy::ReadSelector;
use crate::engine::{Engine, local, read_blocking, read_now};
use crate::error::ErrorOp;
use crate::file::File;
use crate::stats::Count;
use crate::sys::{Errno, WaitMode};

/// A caller that blocks has no turns.
fn never() -> bool {
    false
}

/// The first pass of a caller that blocks.
pub(super) fn serve_blocking(file: &File, ranges: &[Extent], output: &mut [u8], found: &mut Found) {
    FirstPass::blocking(file, found, &mut Ignore).run(ranges, 0, output, 0, never);
}

/// Serves cached ranges, in the caller's order.
pub(super) struct FirstPass<'a> {
    file: &'a File,
    engine: &'a dyn Engine,
    found: &'a mut Found,
    take: &'a mut dyn Take,
    /// Bytes of neighbours that are one read.
    run_bytes_max: usize,
    /// Bytes of one range that are copied here.
    copied_bytes_max: usize,
    /// Reads served by attempts, and by plain calls in trust; counted when the pass ends.
    hits: u64,
    trusted: u64,
    trust: Option<Trust>,
}

/// Plain calls that are trusted to find their data cached, and their time since the last look at
/// the clock.
struct Trust {
    since: Instant,
    calls: u32,
    bytes: usize,
}

impl Trust {
    /// Calls between two looks at the clock. A look costs as much as trust saves in one call.
    const CALLS: u32 = 4;

    fn new() -> Trust {
        Trust { since: Instant::now(), calls: 0, bytes: 0 }
    }

    /// False when the calls took too long.
    fn check(&mut self, reads: &ReadSelector) -> bool {
        if self.calls == 0 {
            return true;
        }
        let now = Instant::now();
        let keeps = reads.keeps_trust(self.bytes, (now - self.since).as_nanos() as u64);
        *self = Trust { since: now, calls: 0, bytes: 0 };
        keeps
    }
}

/// How one attempt at consecutive bytes ended.
enum Now {
    /// So many bytes have arrived; more may exist, but not without waiting.
    Part(usize),
    /// So many bytes have arrived, and then the file ends.
    Ended(usize),
}

impl<'a> FirstPass<'a> {
    pub(super) fn new(file: &'a File, found: &'a mut Found, take: &'a mut dyn Take) -> Self {
        FirstPass {
            file,
            engine: &*file.instance.engines().pool,
            found,
            take,
            run_bytes_max: TURN_BYTES_MAX,
            copied_bytes_max: REQUEST_BYTES_MAX,
            hits: 0,
            trusted: 0,
            trust: None,
        }
    }

    /// One whose caller blocks. It copies nothing while its thread's ring has operations in flight,
    /// since a plain call may sleep.
    pub(super) fn blocking(file: &'a File, found: &'a mut Found, take: &'a mut dyn Take) -> Self {
        let mut pass = FirstPass::new(file, found, take);
        pass.run_bytes_max = REQUEST_BYTES_MAX;
        pass.copied_bytes_max = if local::has_in_flight() { 0 } else { usize::MAX };
        pass.trust = file.open.reads.trusts(&file.instance.policy).then(Trust::new);
        pass
    }

    /// Walks `ranges`, of which the first is number `first` and begins at `start`, until `ends`, which
    /// is asked after each. Returns the number of ranges and of output bytes that are done.
    pub(super) fn run(
        &mut self,
        ranges: &[Extent],
        first: usize,
        output: &mut [u8],
        start: usize,
        mut ends: impl FnMut() -> bool,
    ) -> (usize, usize) {
        let (mut next, mut at) = (0, 0);
        (self.hits, self.trusted) = (0, 0);
        while next < ranges.len() && (next == 0 || !ends()) {
            let (offset, length) = ranges[next];
            // Neighbours in the file that are neighbours in the list are one read.
            let mut count = 1;
            let mut bytes = length;
            while let Some((after, more)) = ranges.get(next + count) {
                let touches = offset.checked_add(bytes as u64) == Some(*after);
                // A range beyond what a file can have stands alone, so that it fails alone.
                if !touches || bytes + more > self.run_bytes_max || self.file.open.check(*after, *more).is_err() {
                    break;
                }
                bytes += more;
                count += 1;
            }
            let run = &mut output[at..at + bytes];
            if let Err(errno) = self.file.open.check(offset, bytes) {
                self.refuse(&ranges[next..next + count], first + next, run, errno);
            } else {
                let now = self.read(offset, run);
                self.settle(&ranges[next..next + count], first + next, run, start + at, now);
            }
            next += count;
            at += bytes;
        }
        self.file.instance.counters.add_many(Count::InlineAttempt, self.hits);
        self.file.instance.counters.add_many(Count::Blocking, self.trusted);
        if let Some(trust) = &mut self.trust {
            trust.check(&self.file.open.reads);
        }
        (next, at)
    }

    /// Reads consecutive bytes as far as that takes no waiting, and of a long range no more than a
    /// poll may copy: the second pass has the rest.
    fn read(&mut self, offset: u64, run: &mut [u8]) -> Now {
        let limit = run.len().min(self.copied_bytes_max);
        let mut done = 0;
        while done < limit {
            let length = (run.len() - done).min(REQUEST_BYTES_MAX);
            match self.read_chunk(offset + done as u64, &mut run[done..done + length]) {
                Now::Part(n) if n == length => done += n,
                Now::Part(n) => return Now::Part(done + n),
                Now::Ended(n) => return Now::Ended(done + n),
            }
        }
        Now::Part(done)
    }

    fn read_chunk(&mut self, offset: u64, chunk: &mut [u8]) -> Now {
        let open = &self.file.open;
        let (engine, handle, reads) = (self.engine, &open.handle, &open.reads);
        if open.direct.is_some() {
            // Nothing is cached, and `RWF_NOWAIT` would wait for the device.
            return Now::Part(0);
        }
        if let Some(trust) = &mut self.trust {
            // Anything but all of it is left to the attempt.
            if read_now(engine, handle, chunk, offset, WaitMode::Allowed) == Ok(chunk.len()) {
                self.trusted += 1;
                trust.calls += 1;
                trust.bytes += chunk.len();
                if trust.calls == Trust::CALLS && !trust.check(reads) {
                    self.trust = None;
                }
                return Now::Part(chunk.len());
            }
        }
        self.attempt_chunk(offset, chunk)
    }

    /// Apart from the plain calls in trust, which are the shortest way.
    #[cold]
    #[inline(never)]
    fn attempt_chunk(&mut self, offset: u64, chunk: &mut [u8]) -> Now {
        let File { instance, open } = self.file;
        let (engine, handle, counters) = (self.engine, &open.handle, &instance.counters);
        let length = chunk.len();
        if may_sleep(open, || offset, length) {
            return Now::Part(0);
        }
        let tried = self.file.target().try_read(length, |wait| match wait {
            WaitMode::Never => read_now(engine, handle, chunk, offset, wait),
            WaitMode::Allowed => read_blocking(engine, open, chunk, offset),
        });
        match tried {
            Tried::Hit => {
                self.hits += 1;
                Now::Part(length)
            }
            Tried::Called(Ok(n)) => {
                counters.add(Count::InlineCall);
                if n == length { Now::Part(n) } else { Now::Ended(n) }
            }
            Tried::Part(n) => Now::Part(n),
            // The slow route reports it.
            Tried::Called(Err(_)) => Now::Part(0),
        }
    }

    /// Divides the result of one read among its ranges.
    fn settle(&mut self, ranges: &[Extent], first: usize, run: &mut [u8], start: usize, now: Now) {
        let mut at = 0;
        let (Now::Part(there) | Now::Ended(there)) = now;
        for (number, (_, length)) in ranges.iter().enumerate() {
            let index = first + number;
            let done = there.saturating_sub(at).min(*length);
            let bytes = &mut run[at..at + length];
            if done == *length {
                self.take.take(index, Ok(bytes));
            } else if let Now::Ended(_) = now {
                bytes[done..].fill(0);
                self.found.short(index, done);
                self.take.take(index, Ok(&bytes[..done]));
            } else {
                self.found.misses.push(Miss { index, start: start + at, done });
            }
            at += length;
        }
    }

    /// Takes ranges that no file can have, or of a file that was closed meanwhile, as failed.
    fn refuse(&mut self, ranges: &[Extent], first: usize, run: &mut [u8], errno: Errno) {
        run.fill(0);
        for (number, (offset, length)) in ranges.iter().enumerate() {
            if *length == 0 && *offset <= i64::MAX as u64 {
                self.take.take(first + number, Ok(&[]));
                continue;
            }
            let error = self.file.open.error(ErrorOp::Gather, errno);
            let error = error.with_index(first + number).with_range(*offset, *length as u64);
            self.take.take(first + number, Err(&error));
            self.found.exceptions.errors.push(error);
        }
    }
}
