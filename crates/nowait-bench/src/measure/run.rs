//! Interleaves the ways over the rounds of each case and fills the report.
//!
//! For every case: each way once with its bytes verified, each way once to warm up and to find how many operations
//! fill a round, then the timed rounds, in round r beginning with way r. The state of the page cache is made and
//! verified before each of them.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::TestFile;
use crate::measure::meter::{Check, Round, Sample};
use crate::measure::work::{Buffer, Gather, Range, Reads, Target};
use crate::random::Random;
use crate::report::notes::Code;
use crate::report::{Report, Row, median};
use crate::sys::PAGE;
use crate::table::{self as tables, Case, State, Table, Work};
use crate::ways::Way;

/// What to measure.
#[derive(Clone)]
pub struct Plan {
    pub tables: Vec<Table>,
    pub ways: Vec<&'static dyn Way>,
    pub depths: Vec<usize>,
    pub records: Vec<usize>,
    pub rounds: usize,
    /// What a round should take at a middling way's speed.
    pub round_time: Duration,
    /// Of reads that are to begin in a second; without it, as many as there can be.
    pub rate: Option<u32>,
    pub seed: u64,
}

/// Told how far a run is.
pub trait Progress {
    /// A part of the run begins; it has this many steps.
    fn begin(&mut self, what: &str, steps: u64);
    fn step(&mut self, steps: u64);
    /// What is being done now.
    fn now(&mut self, what: &str);
}

/// Nobody looks.
impl Progress for () {
    fn begin(&mut self, _: &str, _: u64) {}
    fn step(&mut self, _: u64) {}
    fn now(&mut self, _: &str) {}
}

/// How many operations are verified, and how many tell a way's speed.
const VERIFIED: usize = 256;
const WARM_UP_COLD: usize = 512;
const WARM_UP_CACHED: usize = 16 << 10;
/// Records are at most 4 KiB; each lies in a cell of its own, so that no page is read for two of them.
const CELL: u64 = 8 << 10;
const RECORD_LENGTHS: std::ops::RangeInclusive<u64> = 1 << 10..=4 << 10;
/// A gather's round has at least this many batches, where the file is large enough.
const FEWEST_BATCHES: usize = 4;
/// A round at a rate takes as long at least.
const PACED_ROUND: Duration = Duration::from_secs(1);
/// A way that began fewer than this share of what it was to begin has not kept the rate.
const RATE_KEPT: f64 = 0.95;

impl Plan {
    pub fn cases(&self) -> Vec<Case> {
        let cases = |&table| tables::cases(table, &self.depths, &self.records);
        let all = self.tables.iter().flat_map(cases);
        let Some(rate) = self.rate else { return all.collect() };
        let paced =
            |case: &Case| matches!(case.work, Work::Reads { callers: 1, .. }) && case.state != State::HalfCached;
        all.filter(paced).map(|case| Case { name: format!("{} rate={rate}", case.name), ..case }).collect()
    }

    /// Shortens the rounds so that all of them together take about `budget`.
    pub fn fit(&mut self, budget: Duration) {
        let rounds = self.cases().len() * self.ways.len() * self.rounds;
        self.round_time = self.round_time.min(budget / rounds.max(1) as u32);
    }

    /// Measures. What is complete is in `report`, even after an error or an interrupt.
    pub fn run(
        &self,
        file: &TestFile,
        cancel: &AtomicBool,
        progress: &mut dyn Progress,
        report: &mut Report,
    ) -> Result<()> {
        let mut ways = self.ways.clone();
        let unpaced = |way: &dyn Way| {
            (self.rate.is_some() && !way.paced()).then(|| "its reads cannot begin at fixed moments (--rate)".to_owned())
        };
        ways.retain(|way| report.takes(way.name(), way.refused().or_else(|| unpaced(*way))));
        if let (Some(rate), false) = (self.rate, ways.is_empty()) {
            // Of this thread and those that it starts: 50 µs by default, which would be most of a latency.
            let exact = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            exact.map_err(|error| Error::new(ErrorKind::Other, format!("prctl PR_SET_TIMERSLACK: {error}")))?;
            report.note(Code::Rate, format!("{rate} reads a second were to begin, whatever became of those before"));
        }
        let cases = self.cases();
        progress.begin("measuring", (cases.len() * ways.len() * (self.rounds + 2)) as u64);
        for case in &cases {
            progress.now(&format!("{} {}", case.table, case.name));
            let bench = Bench { plan: self, ways: &ways, case, file, cancel, cached_after: Cell::new(0) };
            let rows = match bench.measure(progress) {
                // Only the halves of blocks cannot be dropped: in memory, or where extents are read as a whole.
                Err(error) if error.kind() == ErrorKind::NotCold && case.state == State::HalfCached => {
                    report.note(Code::CaseLeftOut, format!("{} {}: {error}", case.table, case.name));
                    continue;
                }
                measured => measured?,
            };
            if let Some(rate) = self.rate {
                let missed = |row: &&Row| row.ops_per_s < RATE_KEPT * f64::from(rate);
                let missed: Vec<&str> = rows.iter().filter(missed).map(|row| row.way.as_str()).collect();
                if !missed.is_empty() {
                    let text = format!("{} {}: not kept by {}", case.table, case.name, missed.join(", "));
                    report.note(Code::RateMissed, text);
                }
            }
            report.rows.extend(rows);
            let cached = bench.cached_after.get();
            if cached > file.size() / PAGE / 1000 {
                let text = format!(
                    "{} {}: {cached} pages of the file were cached after a direct round",
                    case.table, case.name
                );
                report.note(Code::CachedUnderDirect, text);
            }
        }
        Ok(())
    }
}

/// One case, ready to be measured.
struct Bench<'a> {
    plan: &'a Plan,
    ways: &'a [&'static dyn Way],
    case: &'a Case,
    file: &'a TestFile,
    cancel: &'a AtomicBool,
    /// The most pages that a round past the page cache left in it, or another program did.
    cached_after: Cell<u64>,
}

/// The inputs of one round, the same for every way.
enum Inputs {
    Offsets(Vec<u64>),
    Ranges(Vec<Range>),
}

impl Bench<'_> {
    fn measure(&self, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let sample = self.with_tail(self.inputs(0, VERIFIED));
        for way in self.ways {
            self.round(*way, &sample, Some(&matches))?;
            progress.step(1);
        }
        let operations = self.operations_per_round(progress)?;

        let mut samples = vec![Vec::new(); self.ways.len()];
        for round in 0..self.plan.rounds {
            let inputs = self.inputs(round as u64 + 2, operations);
            for turn in 0..self.ways.len() {
                let which = (round + turn) % self.ways.len();
                samples[which].push(self.round(self.ways[which], &inputs, None)?);
                progress.step(1);
            }
        }
        Ok(self.ways.iter().zip(&samples).map(|(way, samples)| self.row(*way, samples)).collect())
    }

    fn row(&self, way: &dyn Way, samples: &[Sample]) -> Row {
        let row = Row::of(self.case.table, &self.case.name, way.name(), samples);
        if matches!(self.case.work, Work::WholeFile { .. }) { row.with_times(samples) } else { row }
    }

    /// The same for every way: what the middling one does in the time of a round.
    fn operations_per_round(&self, progress: &mut dyn Progress) -> Result<usize> {
        let count = if self.case.state == State::Cached { WARM_UP_CACHED } else { WARM_UP_COLD };
        let inputs = match self.case.work {
            // All of it will be read in any case.
            Work::WholeFile { block, .. } => {
                progress.step(self.ways.len() as u64);
                return Ok(self.blocks(block) as usize);
            }
            _ => self.inputs(1, count),
        };
        if let Some(rate) = self.plan.rate {
            progress.step(self.ways.len() as u64);
            return Ok((f64::from(rate) * self.plan.round_time.max(PACED_ROUND).as_secs_f64()) as usize);
        }
        let mut speeds = Vec::new();
        for way in self.ways {
            speeds.push(self.round(*way, &inputs, None)?.per_second());
            progress.step(1);
        }
        Ok((median(&speeds) * self.plan.round_time.as_secs_f64()) as usize)
    }

    fn blocks(&self, block: usize) -> u64 {
        match self.case.state {
            // A short block at the end has no half of its own.
            State::HalfCached => self.file.size() / block as u64,
            _ => self.file.size().div_ceil(block as u64),
        }
    }

    /// About `operations` random operations. Unless the file is cached, no page is in two of them, and there are no
    /// more than the file has room for.
    fn inputs(&self, round: u64, operations: usize) -> Inputs {
        let mut random = Random::new(Random::at(self.plan.seed, round).number());
        match self.case.work {
            Work::Reads { block, depth, callers } => {
                let count = operations.max(depth * callers * 2);
                Inputs::Offsets(self.places(&mut random, self.blocks(block), block as u64, count))
            }
            Work::WholeFile { block, .. } => {
                Inputs::Offsets(self.places(&mut random, self.blocks(block), block as u64, operations))
            }
            Work::Gather { records } => {
                let batches = (operations / records).max(FEWEST_BATCHES);
                let cells = self.places(&mut random, self.file.size() / CELL, CELL, batches * records);
                let whole = cells.len() - if cells.len() > records { cells.len() % records } else { 0 };
                let record = |cell: u64| {
                    let spread = RECORD_LENGTHS.end() - RECORD_LENGTHS.start() + 1;
                    let len = RECORD_LENGTHS.start() + random.below(spread);
                    Range { offset: cell + random.below(CELL - len + 1), len: len as u32 }
                };
                Inputs::Ranges(cells[..whole].iter().copied().map(record).collect())
            }
        }
    }

    /// `count` of the file's `places`, in random order; each once, or round and round where the file is cached.
    fn places(&self, random: &mut Random, places: u64, size: u64, count: usize) -> Vec<u64> {
        let order = random.permutation(places).into_iter().map(|place| place * size);
        match self.case.state {
            State::Cached => order.cycle().take(count).collect(),
            State::Cold | State::HalfCached => order.take(count).collect(),
        }
    }

    /// Puts the file's very end among the inputs, where a read may be shorter than a block.
    fn with_tail(&self, mut inputs: Inputs) -> Inputs {
        let size = self.file.size();
        match (&mut inputs, self.case.work) {
            (Inputs::Ranges(ranges), _) => {
                if let Some(last) = ranges.last_mut() {
                    last.offset = size - u64::from(last.len);
                }
            }
            (Inputs::Offsets(offsets), Work::Reads { block, .. } | Work::WholeFile { block, .. })
                if self.case.state != State::HalfCached =>
            {
                let tail = (size - 1) / block as u64 * block as u64;
                if !offsets.contains(&tail) {
                    offsets.pop();
                    offsets.push(tail);
                }
            }
            _ => {}
        }
        inputs
    }

    fn make_state(&self, inputs: &Inputs) -> Result<()> {
        match (self.case.state, self.case.work, inputs) {
            (State::Cold, ..) => self.file.make_cold(),
            (State::HalfCached, Work::Reads { block, .. }, Inputs::Offsets(offsets)) => {
                self.file.make_half_cached(offsets, block)
            }
            _ => self.file.make_warm(),
        }
    }

    /// One way, once, from the case's state.
    fn round(&self, way: &dyn Way, inputs: &Inputs, check: Option<&Check<'_>>) -> Result<Sample> {
        self.make_state(inputs)?;
        let failed = |why: String| {
            let (table, case, way) = (self.case.table, &self.case.name, way.name());
            Error::new(ErrorKind::Other, format!("{way} failed in {table} {case}: {why}; leave it out with --ways"))
        };
        let target = Target::of(self.file);
        let result = match (self.case.work, inputs) {
            (Work::Reads { block, depth, callers }, Inputs::Offsets(offsets)) => {
                let interval = self.plan.rate.filter(|_| check.is_none()).map(|rate| Duration::from_secs(1) / rate);
                let job = Reads { target, block, depth, offsets, interval, cancel: self.cancel };
                reads_round(way, job, callers, check)
            }
            (Work::WholeFile { block, depth }, Inputs::Offsets(offsets)) => {
                let job = Reads { target, block, depth, offsets, interval: None, cancel: self.cancel };
                reads_round(way, job, 1, check)
            }
            (Work::Gather { records }, Inputs::Ranges(ranges)) => {
                gather_round(way, &Gather::new(target, ranges, records, self.cancel), check)
            }
            _ => unreachable!("inputs() makes what the work needs"),
        };
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        let sample = result.map_err(|error| failed(error.to_string()))?;
        let sample = sample.ok_or_else(|| failed("it did not run its clock".to_owned()))?;
        if let Some(offset) = sample.wrong {
            return Err(failed(format!("it returned wrong bytes for offset {offset}")));
        }
        let expected = inputs.totals(&self.case.work, target.size);
        if (sample.operations, sample.bytes) != expected {
            let (done, wanted) = ((sample.operations, sample.bytes), expected);
            return Err(failed(format!("(operations, bytes) are {done:?} instead of {wanted:?}")));
        }
        // To check what it read, a file of a user is read through the cache.
        if self.file.is_direct() && check.is_none() {
            self.cached_after.set(self.cached_after.get().max(self.file.cached_pages()?));
        }
        Ok(sample)
    }
}

impl Inputs {
    /// Operations and bytes.
    fn totals(&self, work: &Work, size: u64) -> (u64, u64) {
        match (self, *work) {
            (Self::Ranges(ranges), _) => (ranges.len() as u64, ranges.iter().map(|range| u64::from(range.len)).sum()),
            (Self::Offsets(offsets), Work::Reads { block, .. } | Work::WholeFile { block, .. }) => {
                (offsets.len() as u64, offsets.iter().map(|offset| (size - offset).min(block as u64)).sum())
            }
            (Self::Offsets(_), Work::Gather { .. }) => unreachable!("a gather has ranges"),
        }
    }
}

type Outcome = std::io::Result<Option<Sample>>;

/// The offsets are dealt out to `callers` threads, which start together.
fn reads_round(way: &dyn Way, job: Reads<'_>, callers: usize, check: Option<&Check<'_>>) -> Outcome {
    let gate = Barrier::new(callers);
    let call = |offsets| {
        let job = Reads { offsets, ..job };
        let mut buffer = Buffer::new(job.block * job.depth);
        let mut round = Round::new(&gate, check);
        way.reads(&job, buffer.bytes(), &mut round).map(|()| round)
    };
    if callers == 1 {
        return Ok(Sample::of(&[call(job.offsets)?]));
    }
    let share = job.offsets.len().div_ceil(callers);
    let rounds: std::io::Result<Vec<Round<'_>>> = thread::scope(|scope| {
        let mut shares = job.offsets.chunks(share);
        // As many threads as the gate expects, even where there is too little to deal out.
        let threads: Vec<_> =
            (0..callers).map(|_| shares.next().unwrap_or(&[])).map(|own| scope.spawn(move || call(own))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a way does not panic")).collect()
    });
    Ok(Sample::of(&rounds?))
}

fn gather_round(way: &dyn Way, job: &Gather<'_>, check: Option<&Check<'_>>) -> Outcome {
    let gate = Barrier::new(1);
    let mut output = Buffer::new(job.output_len());
    let mut round = Round::new(&gate, check);
    way.gather(job, output.bytes(), &mut round)?;
    Ok(Sample::of(&[round]))
}
