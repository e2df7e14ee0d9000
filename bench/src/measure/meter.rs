//! The work of a way in a round, and the resulting rows.
//!
//! [`Run`](super::run::Run) lets the ways of a case take turns. In a turn a way first prepares off the clock
//! (threads, rings), and calls [`Round::start`]. It then works, reports every completion to a
//! [`Tally`], and calls [`Round::stop`]. Verification uses the same calls, so the verified code is
//! the timed code. Without verification, the tally computes a checksum of one block in each
//! [`SAMPLED_EVERY`] bytes, on the clock, at equal cost for all ways. These checksums are compared
//! after the clock has stopped.

use std::fmt;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::figure::Figure;
use super::work::Batch;
use crate::machine::load::{Transfers, busy_us};
use crate::report::{Control, Cpu, Latency, Row};
use crate::stats::median;
use crate::sys::{RingWorkers, Runs, Usage};

/// Two significant digits and 32-bit counters, so that the histogram fits into the nearest CPU
/// caches.
pub type Latencies = Histogram<u32>;

/// Duration from which a gap of a thread counts as a stall.
const STALL: Duration = Duration::from_millis(1);

const LONGEST: Duration = Duration::from_secs(100);

pub fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 2).expect("the bounds are constants")
}

/// Number of bytes for which one operation is sampled: one in 256 blocks of 4 KiB, every block of 1
/// MiB. Sampling takes less than a hundredth of the time of the shortest read.
pub const SAMPLED_EVERY: u64 = 1 << 20;
/// Number of bytes that the checksum covers. They are the last ones of the operation, which a short
/// read would miss.
const SAMPLED_BYTES: usize = 4 << 10;
/// Maximum number of checksums of a thread in a round.
const SAMPLES_MAX: usize = 4096;

/// Checksum of bytes that a timed round moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    pub offset: u64,
    pub len: usize,
    pub crc: u32,
}

impl Sampled {
    pub fn of(offset: u64, bytes: &[u8]) -> Sampled {
        let skipped = bytes.len().saturating_sub(SAMPLED_BYTES);
        let bytes = &bytes[skipped..];
        Sampled { offset: offset + skipped as u64, len: bytes.len(), crc: crc32c::crc32c(bytes) }
    }
}

/// Returns whether these bytes equal the file's at this offset.
pub type Check<'a> = dyn Fn(u64, &[u8]) -> bool + Sync + 'a;

/// Completions that one thread noticed.
pub struct Tally<'a> {
    check: Option<&'a Check<'a>>,
    operations: u64,
    bytes: u64,
    /// Offset of the first wrong bytes.
    wrong: Option<u64>,
    latencies: Latencies,
    sampled: Vec<Sampled>,
    /// Total of the gaps longer than [`STALL`].
    stalled: Duration,
}

impl fmt::Debug for Tally<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { operations, bytes, wrong, .. } = self;
        f.debug_struct("Tally")
            .field("operations", operations)
            .field("bytes", bytes)
            .field("wrong", wrong)
            .finish_non_exhaustive()
    }
}

impl<'a> Tally<'a> {
    pub fn new(check: Option<&'a Check<'a>>) -> Self {
        let (latencies, sampled) = (latencies(), Vec::new());
        Self { check, operations: 0, bytes: 0, wrong: None, latencies, sampled, stalled: Duration::ZERO }
    }

    /// Records that a block was read or written. `started` is the time just before its submission,
    /// read once per operation. `now` is read once per harvest of completions. All ways follow this
    /// rule.
    #[inline]
    pub fn block(&mut self, offset: u64, bytes: &[u8], started: Instant, now: Instant) {
        self.operations += 1;
        self.record(bytes.len(), started, now);
        if self.check.is_some() {
            self.verify(offset, bytes);
        } else if self.operations == 1 || self.is_due(bytes.len()) {
            self.sample(offset, bytes);
        }
    }

    /// Records that a task read and timed a block, with its checksum, if any.
    pub fn seen(&mut self, len: usize, sampled: Option<Sampled>, started: Instant, now: Instant) {
        self.operations += 1;
        self.record(len, started, now);
        self.sampled.extend(sampled.filter(|_| self.sampled.len() < SAMPLES_MAX));
    }

    /// Records a complete batch, whose records are in `output` in order. The latency is that of the
    /// batch.
    #[inline]
    pub fn batch(&mut self, batch: Batch<'_>, output: &[u8], started: Instant, now: Instant) {
        let mut rest = output;
        let records = batch.ranges.iter().map(|range| {
            let (record, after) = rest.split_at(range.len as usize);
            rest = after;
            (range.offset, record)
        });
        self.records(batch.ranges.len() as u64, records, batch.bytes, (started, now));
    }

    /// Records a complete batch whose records are in separate buffers, in order.
    #[inline]
    pub fn scattered<'r>(
        &mut self,
        batch: Batch<'_>,
        records: impl Iterator<Item = &'r [u8]>,
        started: Instant,
        now: Instant,
    ) {
        let records = batch.ranges.iter().map(|range| range.offset).zip(records);
        self.records(batch.ranges.len() as u64, records, batch.bytes, (started, now));
    }

    /// Records operations without latencies. Their bytes are [found](Self::found) apart.
    #[inline]
    pub fn count(&mut self, operations: u64, bytes: u64) {
        self.operations += operations;
        self.bytes += bytes;
    }

    /// Records a complete gather as one operation, with its records in order.
    #[inline]
    pub fn gathered<'r>(
        &mut self,
        offsets: &[u64],
        records: impl Iterator<Item = &'r [u8]>,
        bytes: usize,
        moments: (Instant, Instant),
    ) {
        self.records(1, offsets.iter().copied().zip(records), bytes, moments);
    }

    /// Records complete records that were requested together.
    #[inline]
    fn records<'r>(
        &mut self,
        operations: u64,
        mut records: impl Iterator<Item = (u64, &'r [u8])>,
        bytes: usize,
        (started, now): (Instant, Instant),
    ) {
        let is_first = self.operations == 0;
        self.operations += operations;
        self.record(bytes, started, now);
        if self.check.is_some() {
            records.for_each(|(offset, record)| self.verify(offset, record));
        } else if is_first || self.is_due(bytes) {
            // Each sampled gather samples another record.
            let count = records.size_hint().0.max(1);
            let sampled = records.nth((self.bytes / SAMPLED_EVERY) as usize % count);
            sampled.into_iter().for_each(|(offset, record)| self.sample(offset, record));
        }
    }

    /// Records that a writer learned of a durable record. `started` is the time just before the
    /// writer appended it.
    #[inline]
    pub fn committed(&mut self, bytes: usize, started: Instant, now: Instant) {
        self.operations += 1;
        self.record(bytes, started, now);
    }

    /// Records a complete write in a round whose latencies are gaps.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.operations += 1;
        self.bytes += bytes as u64;
    }

    /// Adds the latencies of blocks of this size that tasks have read and timed.
    pub fn read_by_tasks(&mut self, latencies: &Latencies, block: usize) {
        self.operations += latencies.len();
        self.bytes += latencies.len() * block as u64;
        self.latencies += latencies;
    }

    /// Records wrong bytes at this offset, which the caller has compared.
    pub fn is_wrong(&mut self, offset: u64) {
        self.wrong.get_or_insert(offset);
    }

    /// Records a gap of a thread between these two times as a latency.
    #[inline]
    pub fn gap(&mut self, left: Instant, back: Instant) {
        let gap = back - left;
        self.latencies.saturating_record(gap.as_nanos() as u64);
        if gap > STALL {
            self.stalled += gap;
        }
    }

    /// Returns true if this round compares all bytes.
    pub fn verifies(&self) -> bool {
        self.check.is_some()
    }

    #[inline]
    fn record(&mut self, bytes: usize, started: Instant, now: Instant) {
        self.bytes += bytes as u64;
        self.latencies.saturating_record((now - started).as_nanos() as u64);
    }

    /// Compares bytes, if this round does so.
    #[cold]
    pub fn verify(&mut self, offset: u64, bytes: &[u8]) {
        if self.check.is_some_and(|holds| !holds(offset, bytes)) {
            self.wrong.get_or_insert(offset);
        }
    }

    /// Compares the bytes of one operation, or keeps their checksum. For a record that was read back
    /// after the clock stopped, `number` is the record's number in place of an offset.
    pub fn found(&mut self, number: u64, record: &[u8]) {
        if self.check.is_some() {
            self.verify(number, record);
        } else if self.sampled.len() < SAMPLES_MAX {
            self.sampled.push(Sampled { offset: number, len: record.len(), crc: crc32c::crc32c(record) });
        }
    }

    /// Returns whether to sample the operation that moved the last `bytes`.
    #[inline]
    fn is_due(&self, bytes: usize) -> bool {
        self.bytes / SAMPLED_EVERY != (self.bytes - bytes as u64) / SAMPLED_EVERY
    }

    #[cold]
    fn sample(&mut self, offset: u64, bytes: &[u8]) {
        if self.sampled.len() < SAMPLES_MAX {
            self.sampled.push(Sampled::of(offset, bytes));
        }
    }

    pub fn merge(&mut self, other: &Tally<'_>) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.wrong = self.wrong.or(other.wrong);
        self.latencies += &other.latencies;
        self.sampled.extend_from_slice(&other.sampled);
        self.stalled += other.stalled;
    }
}

/// The system's counters at one moment.
#[derive(Debug)]
struct Counters {
    at: Instant,
    process: Usage,
    thread: Usage,
    workers: RingWorkers,
    machine_us: Option<f64>,
    transfers: Option<Transfers>,
}

/// A round of one caller (driving thread) of a way.
#[derive(Debug)]
pub struct Round<'a> {
    pub tally: Tally<'a>,
    /// Barrier of all callers of a round, before the clock starts and after it stopped.
    gate: &'a Barrier,
    meetings: u32,
    began: Instant,
    /// Time of preparation before the clock started.
    prepared: Duration,
    started: Option<Counters>,
    stopped: Option<Counters>,
    inline_fraction: Option<f64>,
    /// Device whose transfers are counted ([`Round::count_transfers`]).
    device: Option<String>,
}

impl<'a> Round<'a> {
    pub fn new(gate: &'a Barrier, check: Option<&'a Check<'a>>) -> Self {
        let (tally, began, prepared) = (Tally::new(check), Instant::now(), Duration::ZERO);
        let (started, stopped, inline_fraction, device) = (None, None, None, None);
        Self { tally, gate, meetings: 0, began, prepared, started, stopped, inline_fraction, device }
    }

    /// Counts the transfers of this device while the clock runs.
    pub fn count_transfers(&mut self, device: Option<&str>) {
        self.device = device.map(str::to_owned);
    }

    fn transfers(&self) -> Option<Transfers> {
        self.device.as_deref().and_then(Transfers::of)
    }

    /// Makes a tally for a thread that the way starts. The way merges it into [`Round::tally`]
    /// after the clock stopped.
    pub fn new_tally(&self) -> Tally<'a> {
        Tally::new(self.tally.check)
    }

    /// Sets the share of operations served on the caller's thread without waiting, if the way knows
    /// it.
    pub fn set_inline_fraction(&mut self, fraction: f64) {
        self.inline_fraction = Some(fraction);
    }

    /// Starts the clock, after all preparation.
    pub fn start(&mut self) {
        self.prepared = self.began.elapsed();
        let workers = RingWorkers::now();
        self.meet();
        let (machine_us, transfers) = (busy_us(), self.transfers());
        let (process, thread) = (Usage::of_process(), Usage::of_this_thread());
        self.started = Some(Counters { at: Instant::now(), process, thread, workers, machine_us, transfers });
    }

    /// Stops the clock after all completions, before any teardown.
    pub fn stop(&mut self) {
        let (at, thread) = (Instant::now(), Usage::of_this_thread());
        self.meet();
        let (process, machine_us) = (Usage::of_process(), busy_us());
        let (workers, transfers) = (RingWorkers::now(), self.transfers());
        self.stopped = Some(Counters { at, process, thread, workers, machine_us, transfers });
    }

    fn meet(&mut self) {
        self.gate.wait();
        self.meetings += 1;
    }
}

impl Drop for Round<'_> {
    /// A caller that fails must not leave the others waiting at the gate.
    fn drop(&mut self) {
        while self.meetings < 2 {
            self.meet();
        }
    }
}

/// The measures of one round, over all its callers.
#[derive(Debug, Clone)]
pub struct Sample {
    pub seconds: f64,
    /// The longest time of a caller before the clock started.
    pub prepared_s: f64,
    pub operations: u64,
    pub bytes: u64,
    pub wrong: Option<u64>,
    pub latencies: Latencies,
    /// Checksums of some blocks, in rounds that do not compare all bytes.
    pub sampled: Vec<Sampled>,
    /// Usage of the whole process, kernel workers included.
    pub usage: Usage,
    /// Processor time of only the driving threads.
    pub caller_us: f64,
    /// Runs of the kernel workers of this process's rings; each run served one request. `None` if
    /// the kernel does not report them.
    pub ring_workers: Option<Runs>,
    /// Busy time of all of the machine's processors, this process's part included, in ticks.
    /// `None` if the kernel does not report it.
    pub machine_us: Option<f64>,
    /// Transfers of the counted device ([`Round::count_transfers`]), those of other programs
    /// included.
    pub transfers: Option<Transfers>,
    /// Share of the time in gaps of more than a millisecond; 0 if no gaps were reported.
    pub stalled_fraction: f64,
    pub inline_fraction: Option<f64>,
    /// Figures that only the round's table reports, by name.
    pub figures: Vec<(&'static str, Figure)>,
}

impl Sample {
    /// Adds a figure of only this table. A name has the same kind in all rounds of a row.
    pub fn tell(&mut self, name: &'static str, figure: Figure) {
        self.figures.push((name, figure));
    }

    /// Combines the callers of a round. `None` if a caller never started or stopped its clock.
    pub fn of(callers: &[Round<'_>]) -> Option<Self> {
        let started: Vec<&Counters> = callers.iter().map(|caller| caller.started.as_ref()).collect::<Option<_>>()?;
        let stopped: Vec<&Counters> = callers.iter().map(|caller| caller.stopped.as_ref()).collect::<Option<_>>()?;
        let first = started.iter().min_by_key(|reading| reading.at)?;
        let last = stopped.iter().max_by_key(|reading| reading.at)?;
        let spent = started.iter().zip(&stopped).map(|(start, stop)| stop.thread.since(&start.thread).cpu_us());

        let mut tally = Tally::new(None);
        callers.iter().for_each(|caller| tally.merge(&caller.tally));
        let inline: Option<Vec<f64>> = callers.iter().map(|caller| caller.inline_fraction).collect();
        let seconds = (last.at - first.at).as_secs_f64();
        let usage = last.process.since(&first.process);
        let prepared = callers.iter().map(|caller| caller.prepared).max()?;
        Some(Self {
            seconds,
            prepared_s: prepared.as_secs_f64(),
            stalled_fraction: (tally.stalled.as_secs_f64() / seconds).min(1.0),
            operations: tally.operations,
            bytes: tally.bytes,
            wrong: tally.wrong,
            latencies: tally.latencies,
            sampled: tally.sampled,
            usage,
            caller_us: spent.sum(),
            ring_workers: last.workers.since(&first.workers),
            machine_us: first.machine_us.zip(last.machine_us).map(|(from, to)| to - from),
            transfers: first.transfers.zip(last.transfers).map(|(before, now)| now.since(before)),
            inline_fraction: inline.map(|all| all.iter().sum::<f64>() / all.len() as f64),
            figures: Vec::new(),
        })
    }

    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

impl Latency {
    pub fn of(all: &Latencies) -> Self {
        Self {
            p50: all.value_at_quantile(0.5),
            p99: all.value_at_quantile(0.99),
            p999: all.value_at_quantile(0.999),
            p9999: (all.len() >= 10_000).then(|| all.value_at_quantile(0.9999)),
            max: all.max(),
        }
    }
}

impl Control {
    pub fn of(table: &str, case: &str, way: &str, first: &[Sample], again: &[Sample]) -> Self {
        let speeds = |samples: &[Sample]| samples.iter().map(Sample::per_second).collect();
        let [table, case, way] = [table, case, way].map(str::to_owned);
        Self { table, case, way, rounds: speeds(first), again: speeds(again) }
    }
}

impl Row {
    /// Sums up the rounds of one way in one case.
    pub fn of(table: &str, case: &str, way: &str, samples: &[Sample]) -> Self {
        let rounds: Vec<f64> = samples.iter().map(Sample::per_second).collect();
        let ops_per_s = median(&rounds);
        let sum = |value: fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>();
        let operations = sum(|sample| sample.operations as f64).max(1.0);
        let (total, caller) = (sum(|sample| sample.usage.cpu_us()), sum(|sample| sample.caller_us));
        let inline: Option<f64> = samples.iter().map(|sample| sample.inline_fraction).sum();
        let punts: Option<f64> = samples.iter().map(|sample| Some(sample.ring_workers?.count as f64)).sum();
        // The clocks differ by up to a tick, and no part may exceed the total.
        let others = (total - caller).max(0.0);
        let in_workers = |sample: &Sample| Some(sample.ring_workers?.time_ns as f64 / 1e3);
        let ring_workers = samples.iter().map(in_workers).sum::<Option<f64>>().map(|spent| spent.min(others));
        let prepared: Vec<f64> = samples.iter().map(|sample| sample.prepared_s * 1e3).collect();
        let machine: Option<f64> = samples.iter().map(|sample| sample.machine_us).sum();
        let mut all = latencies();
        samples.iter().for_each(|sample| all += &sample.latencies);
        Self {
            table: table.to_owned(),
            case: case.to_owned(),
            way: way.to_owned(),
            ops_per_s,
            bytes_per_s: ops_per_s * sum(|sample| sample.bytes as f64) / operations,
            latency_ns: (!all.is_empty()).then(|| Latency::of(&all)),
            cpu_us_per_op: Cpu {
                caller: caller / operations,
                ring_workers: ring_workers.map(|spent| spent / operations),
                pool: (others - ring_workers.unwrap_or(0.0)) / operations,
                total: total / operations,
                system: machine.map(|machine| (machine - total).max(0.0) / operations),
            },
            context_switches_per_op: sum(|sample| sample.usage.switches) / operations,
            punts_per_op: punts.map(|punts| punts / operations),
            inline_fraction: inline.map(|sum| sum / samples.len() as f64),
            prepared_ms: (!prepared.is_empty()).then(|| median(&prepared)),
            rounds,
            own: Figure::sum(samples),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::work::Range;
    use std::thread;

    #[test]
    fn a_caller_that_fails_frees_the_others() {
        let gate = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| drop(Round::new(&gate, None)));
            let mut round = Round::new(&gate, None);
            round.start();
            round.stop();
            assert!(Sample::of(&[round]).is_some());
        });
    }

    #[test]
    fn callers_add_up_and_wrong_bytes_are_noticed() {
        let gate = Barrier::new(1);
        let check = |offset: u64, _: &[u8]| offset != 4096;
        let callers = [0, 4096].map(|offset| {
            let mut round = Round::new(&gate, Some(&check));
            round.start();
            let now = Instant::now();
            round.tally.block(offset, &[0; 100], now, now + Duration::from_micros(50));
            round.stop();
            round
        });
        let sample = Sample::of(&callers).unwrap();
        assert_eq!((sample.operations, sample.bytes, sample.wrong), (2, 200, Some(4096)));
        assert_eq!(sample.latencies.len(), 2);
        assert_eq!(sample.inline_fraction, None);
    }

    #[test]
    fn timed_rounds_keep_checksums_of_some_blocks() {
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, None);
        round.start();
        let (bytes, now) = ([7; 8192], Instant::now());
        for block in 0..2 * SAMPLED_EVERY / 8192 {
            round.tally.block(block * 8192, &bytes, now, now);
        }
        round.stop();
        let sample = Sample::of(&[round]).unwrap();
        let ends = [4096, SAMPLED_EVERY - 4096, 2 * SAMPLED_EVERY - 4096];
        assert_eq!(sample.sampled, ends.map(|offset| Sampled::of(offset, &bytes[..4096])));
        let changed = Sampled::of(0, &[&[7; 4095][..], &[8]].concat());
        assert_ne!(sample.sampled[0].crc, changed.crc);
    }

    #[test]
    fn the_first_batch_is_sampled_however_small() {
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, None);
        round.start();
        let (ranges, now) = ([4096, 0].map(|offset| Range { offset, len: 100 }), Instant::now());
        for _ in 0..3 {
            round.tally.batch(Batch { ranges: &ranges, bytes: 200 }, &[7; 200], now, now);
        }
        round.stop();
        assert_eq!(Sample::of(&[round]).unwrap().sampled, [Sampled::of(4096, &[7; 100])]);
    }

    #[test]
    fn without_a_clock_there_is_no_sample() {
        let gate = Barrier::new(1);
        assert!(Sample::of(&[Round::new(&gate, None)]).is_none());
    }
}
