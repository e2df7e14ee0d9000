//! The first pass: cached ranges are served on the spot, in the caller's order, without a queue.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use std::vec;

use rustix::io::Errno;

use super::{Extent, Found, Ignore, Miss, REQUEST_BYTES_MAX, TURN_BYTES_MAX, Take};
use crate::buf::{Part, lock};
use crate::core::inline::Tried;
use crate::core::opened::Opened;
use crate::core::policy::{HelperSelector, ReadSelector};
use crate::engine::{Engine, read_blocking, read_now};
use crate::error::ErrorOp;
use crate::stats::Count;
use crate::sys::{self, Wait};

/// Ranges that must be found cached before others help with the rest. Few: another thread takes
/// long to wake, and the caller continues meanwhile.
const PARALLEL_EVIDENCE: usize = 2;
const PARALLEL_RANGES_MIN: usize = 32;
/// Bytes of a share: a thread that is held up leaves the others to the rest, and the last one is
/// soon through.
const SHARE_BYTES: usize = 32 << 10;
const SHARES_MAX: usize = 256;
/// The wait for shares that others are at begins without sleep: to sleep and to be woken takes
/// longer than a share.
const SPIN: Duration = Duration::from_micros(25);
/// Threads at most, the caller's included. More do not copy faster: memory is the limit.
const PARALLEL_THREADS_MAX: usize = 8;

/// A caller that blocks has no turns.
fn never() -> bool {
    false
}

/// The first pass of a caller that blocks.
pub(super) fn serve_blocking(file: &Arc<Opened>, ranges: &[Extent], output: &mut [u8], found: &mut Found) {
    let mut ignore = Ignore;
    let mut pass = FirstPass::blocking(file, found, &mut ignore);
    let threads = sys::processors().min(PARALLEL_THREADS_MAX);
    // Below that, waking others costs more than they save.
    let is_large = output.len() >= HelperSelector::BYTES_MIN && ranges.len() > PARALLEL_RANGES_MIN;
    if threads == 1 || !is_large {
        pass.run(ranges, 0, output, 0, never);
        return;
    }
    let start: usize = ranges[..PARALLEL_EVIDENCE].iter().map(|range| range.1).sum();
    pass.run(&ranges[..PARALLEL_EVIDENCE], 0, &mut output[..start], 0, never);
    let (helpers, bytes) = (&file.instance.helpers, output.len());
    let helped = found.misses.is_empty() && helpers.helps(bytes);
    let began = Instant::now();
    if helped {
        serve_with_helpers(file, ranges, output, start, threads, found);
    } else {
        let mut pass = FirstPass::blocking(file, found, &mut ignore);
        pass.run(&ranges[PARALLEL_EVIDENCE..], PARALLEL_EVIDENCE, &mut output[start..], start, never);
    }
    // With misses the time is not that of a copy.
    if found.misses.is_empty() {
        helpers.took(bytes, helped, began.elapsed().as_nanos() as u64);
    }
}

/// Serves the ranges after those of the evidence, whose bytes end at `start`, on several threads.
fn serve_with_helpers(
    file: &Arc<Opened>,
    ranges: &[Extent],
    output: &mut [u8],
    start: usize,
    threads: usize,
    found: &mut Found,
) {
    Part::lend(&mut output[start..], |output| {
        let parts = (output.len() / SHARE_BYTES).min(ranges.len() - PARALLEL_EVIDENCE).min(SHARES_MAX);
        let shares = Arc::new(Shares::of(file, ranges, PARALLEL_EVIDENCE, output, start, parts));
        for _ in 1..threads {
            // A helper that comes too late finds nothing, and holds nothing until then.
            let shares = Arc::downgrade(&shares);
            let help = move || shares.upgrade().iter().for_each(|shares| shares.work());
            file.instance.engines().pool.assist(Arc::new(help));
        }
        shares.work();
        shares.wait().for_each(|share| found.absorb(share));
    });
}

/// Ranges that several threads serve together. A free thread takes the next share.
struct Shares {
    left: Mutex<vec::IntoIter<Share>>,
    /// The result of each share, and how many are not through.
    founds: Mutex<(Vec<Option<Found>>, usize)>,
    all: Condvar,
}

struct Share {
    number: usize,
    file: Arc<Opened>,
    ranges: Arc<[Extent]>,
    /// Its ranges, and where in the whole output its own begins.
    mine: Range<usize>,
    begin: usize,
    output: Part,
}

impl Shares {
    /// Divides the ranges after the first `index`; their bytes begin at `begin`.
    fn of(
        file: &Arc<Opened>,
        ranges: &[Extent],
        mut index: usize,
        mut output: Part,
        mut begin: usize,
        parts: usize,
    ) -> Shares {
        let ranges: Arc<[Extent]> = ranges.into();
        let mut shares = Vec::with_capacity(parts);
        for number in 0..parts {
            let end = index + (ranges.len() - index).div_ceil(parts - number);
            let bytes = ranges[index..end].iter().map(|range| range.1).sum();
            let (file, ranges, output) = (file.clone(), ranges.clone(), output.split_to(bytes));
            shares.push(Share { number, file, ranges, mine: index..end, begin, output });
            (index, begin) = (end, begin + bytes);
        }
        let founds = (0..parts).map(|_| None).collect();
        Shares { left: Mutex::new(shares.into_iter()), founds: Mutex::new((founds, parts)), all: Condvar::new() }
    }

    fn work(&self) {
        // Told also when it panics.
        struct Through<'a>(&'a Shares);
        impl Drop for Through<'_> {
            fn drop(&mut self) {
                let mut founds = lock(&self.0.founds);
                founds.1 -= 1;
                if founds.1 == 0 {
                    self.0.all.notify_one();
                }
            }
        }
        let next = || lock(&self.left).next();
        while let Some(share) = next() {
            let _through = Through(self);
            let number = share.number;
            let found = share.serve();
            lock(&self.founds).0[number] = Some(found);
        }
    }

    /// Waits until all shares are through; returns their results, in order.
    fn wait(&self) -> impl Iterator<Item = Found> + use<> {
        let began = Instant::now();
        while lock(&self.founds).1 > 0 && began.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let mut founds = lock(&self.founds);
        while founds.1 > 0 {
            founds = self.all.wait(founds).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        let founds = std::mem::take(&mut founds.0);
        founds.into_iter().map(|found| found.expect("a helper has panicked"))
    }
}

impl Share {
    fn serve(mut self) -> Found {
        let mut found = Found::default();
        let ranges = &self.ranges[self.mine.clone()];
        FirstPass::blocking(&self.file, &mut found, &mut Ignore).run(
            ranges,
            self.mine.start,
            &mut self.output,
            self.begin,
            never,
        );
        found
    }
}

/// Serves cached ranges, in the caller's order.
pub(super) struct FirstPass<'a> {
    file: &'a Opened,
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
    pub(super) fn new(file: &'a Opened, found: &'a mut Found, take: &'a mut dyn Take) -> Self {
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

    /// One whose caller blocks.
    fn blocking(file: &'a Opened, found: &'a mut Found, take: &'a mut dyn Take) -> Self {
        let mut pass = FirstPass::new(file, found, take);
        (pass.run_bytes_max, pass.copied_bytes_max) = (REQUEST_BYTES_MAX, usize::MAX);
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
                if !touches || bytes + more > self.run_bytes_max || self.file.check(*after, *more).is_err() {
                    break;
                }
                bytes += more;
                count += 1;
            }
            let run = &mut output[at..at + bytes];
            if let Err(errno) = self.file.check(offset, bytes) {
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
        let Opened { instance, open, .. } = self.file;
        let (handle, reads) = (&open.handle, &open.reads);
        let engine = self.engine;
        if open.direct.is_some() {
            // Nothing is cached, and `RWF_NOWAIT` would wait for the device.
            return Now::Part(0);
        }
        let counters = &instance.counters;
        if let Some(trust) = &mut self.trust {
            // Anything but all of it is left to the attempt.
            if read_now(engine, handle, chunk, offset, Wait::Allowed) == Ok(chunk.len()) {
                self.trusted += 1;
                trust.calls += 1;
                trust.bytes += chunk.len();
                if trust.calls == Trust::CALLS && !trust.check(reads) {
                    self.trust = None;
                }
                return Now::Part(chunk.len());
            }
        }
        let length = chunk.len();
        let tried = self.file.target().try_read(offset, length, |wait| match wait {
            Wait::Never => read_now(engine, handle, chunk, offset, wait),
            Wait::Allowed => read_blocking(engine, open, chunk, offset),
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
            let error = self.file.error(ErrorOp::Gather, errno);
            let error = error.with_index(first + number).with_range(*offset, *length as u64);
            self.take.take(first + number, Err(&error));
            self.found.exceptions.errors.push(error);
        }
    }
}
