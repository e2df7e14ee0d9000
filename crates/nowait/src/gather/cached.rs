//! The first pass: what is cached is served on the spot, in the caller's order, without a queue.

use std::time::Instant;

use rustix::io::Errno;

use super::{Extent, Found, Ignore, Miss, REQUEST_BYTES_MAX, Take};
use crate::engine::{read_blocking, read_now};
use crate::error::Operation as Name;
use crate::file::Inner;
use crate::select::Choice;
use crate::stats::Count;
use crate::sys::Wait;

/// A blocking gather of cached data uses more threads from this size on: below it, starting them costs more than they save.
const PARALLEL_BYTES_MIN: usize = 8 << 20;
/// Ranges that must be found cached before more threads are started for the rest.
const PARALLEL_EVIDENCE: usize = 64;
/// Threads at most, the caller's included. More do not copy faster: memory is the limit.
const PARALLEL_THREADS_MAX: usize = 8;

/// The first pass of a caller that blocks.
pub(super) fn serve_blocking(file: &Inner, ranges: &[Extent], output: &mut [u8], found: &mut Found) {
    let mut pass = FirstPass { file, found, take: &mut Ignore };
    let parallel = output.len() >= PARALLEL_BYTES_MIN && ranges.len() > 2 * PARALLEL_EVIDENCE;
    if !parallel {
        pass.run(ranges, 0, output, 0, usize::MAX);
        return;
    }
    let start: usize = ranges[..PARALLEL_EVIDENCE].iter().map(|range| range.1).sum();
    pass.run(&ranges[..PARALLEL_EVIDENCE], 0, &mut output[..start], 0, usize::MAX);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(PARALLEL_THREADS_MAX);
    if threads == 1 || !found.misses.is_empty() {
        let mut pass = FirstPass { file, found, take: &mut Ignore };
        pass.run(&ranges[PARALLEL_EVIDENCE..], PARALLEL_EVIDENCE, &mut output[start..], start, usize::MAX);
        return;
    }
    let mut shares: Vec<Found> = (0..threads).map(|_| Found::default()).collect();
    std::thread::scope(|scope| {
        let (mut index, mut start, mut output) = (PARALLEL_EVIDENCE, start, &mut output[start..]);
        let mut here = None;
        for (number, found) in shares.iter_mut().enumerate() {
            let count = (ranges.len() - index).div_ceil(threads - number);
            let share = &ranges[index..index + count];
            let (bytes, rest) = output.split_at_mut(share.iter().map(|range| range.1).sum());
            output = rest;
            let (first, begin) = (index, start);
            index += count;
            start += bytes.len();
            let run = move || {
                FirstPass { file, found, take: &mut Ignore }.run(share, first, bytes, begin, usize::MAX);
            };
            // The last share is the caller's. So is one for which no thread can be had.
            if number + 1 == threads {
                here = Some(run);
            } else {
                scope.spawn(run);
            }
        }
        if let Some(mut run) = here {
            run();
        }
    });
    shares.into_iter().for_each(|share| found.absorb(share));
}

/// Serves what is cached, in the caller's order.
pub(super) struct FirstPass<'a> {
    pub(super) file: &'a Inner,
    pub(super) found: &'a mut Found,
    pub(super) take: &'a mut dyn Take,
}

/// How one attempt at consecutive bytes ended.
enum Now {
    /// So many bytes are there; more may be, but not without waiting.
    Part(usize),
    /// So many bytes are there, and then the file ends.
    Ended(usize),
}

impl FirstPass<'_> {
    /// Walks `ranges`, of which the first is number `first` and begins at `start`, until `limit` bytes were moved; gives
    /// the number of ranges and of output bytes dealt with.
    pub(super) fn run(
        &mut self,
        ranges: &[Extent],
        first: usize,
        output: &mut [u8],
        start: usize,
        limit: usize,
    ) -> (usize, usize) {
        let (mut next, mut at) = (0, 0);
        while next < ranges.len() && at < limit {
            let (offset, length) = ranges[next];
            // Neighbours in the file that are neighbours in the list are one read.
            let mut count = 1;
            let mut bytes = length;
            while let Some((after, more)) = ranges.get(next + count) {
                let touches = offset.checked_add(bytes as u64) == Some(*after);
                if !touches || bytes + more > REQUEST_BYTES_MAX {
                    break;
                }
                bytes += more;
                count += 1;
            }
            let run = &mut output[at..at + bytes];
            if self.file.check(offset, bytes).is_err() {
                self.refuse(&ranges[next..next + count], first + next, run);
            } else {
                let now = self.read(offset, run);
                self.settle(&ranges[next..next + count], first + next, run, start + at, now);
            }
            next += count;
            at += bytes;
        }
        (next, at)
    }

    /// Reads consecutive bytes as far as that takes no waiting.
    fn read(&mut self, offset: u64, run: &mut [u8]) -> Now {
        let mut done = 0;
        while done < run.len() {
            let length = (run.len() - done).min(REQUEST_BYTES_MAX);
            let chunk = &mut run[done..done + length];
            match self.read_chunk(offset + done as u64, chunk) {
                Now::Part(n) if n == length => done += n,
                Now::Part(n) => return Now::Part(done + n),
                Now::Ended(n) => return Now::Ended(done + n),
            }
        }
        Now::Part(done)
    }

    fn read_chunk(&mut self, offset: u64, chunk: &mut [u8]) -> Now {
        let Inner { instance, reads, open, .. } = self.file;
        let handle = &open.handle;
        let engine = &*instance.engines().pool;
        let (policy, counters) = (&instance.policy, &instance.counters);
        if reads.choose(policy, chunk.len()) == Choice::Attempt {
            match read_now(engine, handle, chunk, offset, Wait::Never) {
                Ok(n) if n == chunk.len() => {
                    reads.attempt_hit();
                    counters.add(Count::InlineAttempt);
                    return Now::Part(n);
                }
                Ok(n) if n > 0 => {
                    reads.attempt_hit();
                    counters.add(Count::ShortAttempts);
                    return Now::Part(n);
                }
                Err(Errno::OPNOTSUPP) => reads.attempt_refused(),
                // No bytes are never the end of the file here, and an error is the slow path's to report.
                answer => {
                    if answer == Err(Errno::AGAIN) {
                        reads.attempt_accepted();
                    }
                    counters.add(Count::Misses);
                    reads.attempt_missed();
                    return Now::Part(0);
                }
            }
        }
        if reads.choose(policy, chunk.len()) == Choice::Budgeted {
            let begun = Instant::now();
            let result = read_blocking(engine, handle, chunk, offset);
            if reads.budgeted(policy, chunk.len(), begun.elapsed().as_nanos() as u64) {
                counters.add(Count::Stalls);
            }
            if let Ok(n) = result {
                counters.add(Count::InlineCall);
                return if n == chunk.len() { Now::Part(n) } else { Now::Ended(n) };
            }
        }
        Now::Part(0)
    }

    /// Tells what one read means for each of its ranges.
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

    fn refuse(&mut self, ranges: &[Extent], first: usize, run: &mut [u8]) {
        run.fill(0);
        for (number, (offset, length)) in ranges.iter().enumerate() {
            if *length == 0 && *offset <= i64::MAX as u64 {
                self.take.take(first + number, Ok(&[]));
                continue;
            }
            let error = self.file.error(Name::Gather, Errno::OVERFLOW);
            let error = error.index(first + number).range(*offset, *length as u64);
            self.take.take(first + number, Err(&error));
            self.found.exceptions.errors.push(error);
        }
    }
}
