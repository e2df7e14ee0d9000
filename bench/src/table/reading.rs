//! Reads of a file: the work of the tables `reads`, `cached` and `gather`.
//!
//! The state of the page cache is made and verified before each round. Every way gets the same
//! offsets, into the same kind of buffer. A warm-up finds how many operations fill a round at the middling way's speed.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::Column;
use super::{Run, Table, chosen, each_once, listed, names, operations_in, rows, usage};
use crate::error::{ErrorKind, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile::TestFile;
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Round, Sample};
use crate::measure::options::Options;
use crate::measure::pace::{ExactTimers, Pace};
use crate::measure::turn::{Outcome, Turn, alone};
use crate::measure::work::{Buffer, Gather, Range, Reads, Target};
use crate::random::Random;
use crate::report::notes::Code;
use crate::report::{Row, fio};
use crate::sys::PAGE;
use crate::ways::{self, Part, ReadWay, Roster};

/// A case: every way does the same work from the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub name: String,
    pub state: State,
    pub work: Work,
}

/// Share of the file in the page cache when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Cold,
    Cached,
    /// The first half of each block that is read.
    HalfCached,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Blocks in random order, `depth` in flight for each of `callers` threads.
    Reads { block: usize, depth: usize, callers: usize },
    /// Batches of `records` random records.
    Gather { records: usize },
}

impl Case {
    fn suited(&self, ways: &[Part<dyn ReadWay>]) -> Vec<Part<dyn ReadWay>> {
        let single = matches!(self.work, Work::Reads { depth: 1, .. });
        ways.iter().copied().filter(|way| single || !way.one_at_a_time()).collect()
    }
}

/// Those that take part in any of these cases, in their order.
fn suited(ways: &[Part<dyn ReadWay>], cases: &[Case]) -> Vec<Part<dyn ReadWay>> {
    ways.iter().copied().filter(|way| cases.iter().any(|case| !case.suited(&[*way]).is_empty())).collect()
}

/// The ways of a table that reads: those of a roster that do its work through the page cache, and
/// past it.
#[derive(Clone, Copy)]
pub struct Readers {
    pub ways: Roster,
    pub through_the_cache: fn(Roster) -> Vec<Part<dyn ReadWay>>,
}

pub const PAGE_BLOCK: usize = 4 << 10;

/// Size of the test file.
pub const FULL_SIZE: u64 = 1 << 30;
pub const QUICK_SIZE: u64 = 64 << 20;

/// Operations that are verified, and that tell a way's speed.
const VERIFIED: usize = 256;
const WARM_UP_COLD: usize = 512;
const WARM_UP_CACHED: usize = 16 << 10;
/// Records are at most 4 KiB. Each lies in a cell of its own, so that no page is read for two of
/// them.
const CELL: u64 = 8 << 10;
const RECORD_LENGTHS: std::ops::RangeInclusive<u64> = 1 << 10..=4 << 10;
/// Batches in a round of a gather, at least, where the file is large enough.
const FEWEST_BATCHES: usize = 4;
/// A round at a rate takes as long at least.
const PACED_ROUND: Duration = Duration::from_secs(1);
/// A way that started fewer than this share of its reads has not kept the rate.
const RATE_KEPT: f64 = 0.95;

impl Readers {
    pub const fn reading(ways: Roster) -> Self {
        Self { ways, through_the_cache: ways::readers }
    }

    pub const fn gathering(ways: Roster) -> Self {
        Self { ways, through_the_cache: ways::gatherers }
    }

    fn of(self, options: &Options) -> Vec<Part<dyn ReadWay>> {
        if options.direct { ways::direct_readers(self.ways) } else { (self.through_the_cache)(self.ways) }
    }

    /// Names of those that take part in any of these cases.
    pub(super) fn names(self, cases: &[Case]) -> Vec<&'static str> {
        let part = |ways: Vec<Part<dyn ReadWay>>| names(&suited(&ways, cases));
        each_once([part((self.through_the_cache)(self.ways)), part(ways::direct_readers(self.ways))].concat())
    }

    pub(super) fn check(self, options: &Options, cases: &[Case]) -> Result<()> {
        let all = &suited(&self.of(options), cases)[..];
        let chosen = chosen(all, options);
        if options.rate.is_some() && !chosen.iter().any(|way| way.paced()) {
            let paced: Vec<_> = all.iter().filter(|way| way.paced()).map(|way| way.name()).collect();
            return Err(usage(format!("none of --ways can be paced; choose among {}", paced.join(", "))));
        }
        if chosen.is_empty() {
            return Err(usage(format!("none of --ways reads; choose among {}", names(all).join(", "))));
        }
        Ok(())
    }

    pub(super) fn case_ways(self, options: &Options, cases: &[Case]) -> Vec<usize> {
        let ways = chosen(&self.of(options), options);
        cases.iter().map(|case| case.suited(&ways).len()).collect()
    }

    pub(super) fn fio(table: &str, options: &Options, cases: &[Case], place: &fio::Place<'_>, jobs: &mut fio::Jobs) {
        let time = options.round_time.max(fio::TIME);
        for case in cases {
            let Work::Reads { block, depth, callers } = case.work else { continue };
            let state = match case.state {
                State::HalfCached => continue,
                State::Cached => fio::State::Cached,
                State::Cold => fio::State::Cold,
            };
            let shape = fio::Shape { state, block, depth, callers };
            jobs.reads(table, &case.name, &place.source, shape, time);
        }
    }

    /// Measures these cases of a table.
    pub(super) fn measure(self, table: &dyn Table, cases: &[Case], run: &mut Run<'_>) -> Result<()> {
        let (file, options) = (run.test_file()?, run.options);
        let unpaced = |way: Part<dyn ReadWay>| {
            let why = || "its reads cannot begin at fixed moments (--rate)".to_owned();
            (options.rate.is_some() && !way.paced()).then(why)
        };
        let refused = |way: Part<dyn ReadWay>| (way.way.refused)().or_else(|| unpaced(way));
        let ways = run.usable_as(&self.of(options), str::to_owned, refused);
        let _exact = options.rate.map(|_| ExactTimers::set()).transpose()?;
        if let (Some(rate), false) = (options.rate, ways.is_empty()) {
            run.report
                .note_once(Code::Rate, format!("{rate} reads a second were to begin, whatever became of those before"));
        }
        let table = table.name();
        let device = run.report.environment.device.clone();
        for case in cases {
            let ways = case.suited(&ways);
            if ways.is_empty() {
                continue;
            }
            let device = device.as_deref().filter(|_| case.state == State::Cold);
            let mut bench = Bench::new(table, &ways, case, file, device, run);
            let name = format!("{table} {}", case.name);
            let timed = match run.case(table, &case.name, &ways, &mut bench) {
                // Only the halves of blocks cannot be dropped: in memory, or where extents are read
                // as a whole.
                Err(error) if error.kind() == ErrorKind::NotCold && case.state == State::HalfCached => {
                    run.report.note(Code::CaseLeftOut, format!("{name}: {error}"));
                    continue;
                }
                timed => timed?,
            };
            let rows = rows(table, &case.name, &ways, &timed);
            let finish = |(row, samples): (Row, &Vec<Sample>)| row.with(DeviceReads::of(samples));
            let rows: Vec<Row> = rows.into_iter().zip(&timed).map(finish).collect();
            let elsewhere = rows.iter().filter(|row| row.figures::<DeviceReads>().is_elsewhere());
            let elsewhere: Vec<&str> = elsewhere.map(|row| row.way.as_str()).collect();
            if !elsewhere.is_empty() {
                let text = format!("{name}: the device gave less than was read, with {}", listed(&elsewhere));
                run.report.note(Code::NotFromDevice, text);
            }
            if let Some(rate) = options.rate {
                let missed = |row: &&Row| row.ops_per_s < RATE_KEPT * f64::from(rate);
                let missed: Vec<&str> = rows.iter().filter(missed).map(|row| row.way.as_str()).collect();
                if !missed.is_empty() {
                    run.report.note(Code::RateMissed, format!("{name}: not kept by {}", missed.join(", ")));
                }
            }
            run.report.rows.extend(rows);
            if bench.cached_after > file.size() / PAGE / 1000 {
                let text = format!("{name}: {} pages of the file were cached after a direct round", bench.cached_after);
                run.report.note(Code::CachedUnderDirect, text);
            }
        }
        Ok(())
    }
}

/// The cases that are asked for. At a rate, those that can be: one caller, and no state that is made
/// for each block.
pub(super) fn asked_for(mut cases: Vec<Case>, options: &Options) -> Vec<Case> {
    cases.retain(|case| options.cases.is_empty() || options.cases.contains(&case.name));
    let Some(rate) = options.rate else { return cases };
    let paced = |case: &Case| matches!(case.work, Work::Reads { callers: 1, .. }) && case.state != State::HalfCached;
    let named = |case: Case| Case { name: format!("{} rate={rate}", case.name), ..case };
    cases.into_iter().filter(paced).map(named).collect()
}

/// Figures of a cold row: what the block device's own counters say of the same rounds. They are the
/// machine's, so that other programs' reads are in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceReads {
    /// Requests for an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_reads_per_op: Option<f64>,
    /// Bytes for a byte that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes_per_byte: Option<f64>,
    /// Mean number in flight: the sum of the requests' times by the rounds' time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_depth: Option<f64>,
}

/// Less than this share of the bytes from the device, and a row is not the device's.
const FROM_DEVICE: f64 = 0.95;

impl DeviceReads {
    fn of(samples: &[Sample]) -> Self {
        let Some(all) = samples.iter().map(|sample| sample.device).collect::<Option<Vec<_>>>() else {
            return Self::default();
        };
        let sum = |value: fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>();
        let of_device = |value: fn(&Transfers) -> f64| all.iter().map(value).sum::<f64>();
        let ratio = |device: f64, of: f64| (of > 0.0).then(|| device / of);
        Self {
            device_reads_per_op: ratio(of_device(|all| all.reads as f64), sum(|sample| sample.operations as f64)),
            device_bytes_per_byte: ratio(of_device(|all| all.read_bytes as f64), sum(|sample| sample.bytes as f64)),
            device_depth: ratio(of_device(|all| all.read_time.as_secs_f64()), sum(|sample| sample.seconds)),
        }
    }

    fn is_elsewhere(&self) -> bool {
        self.device_bytes_per_byte.is_some_and(|bytes| bytes < FROM_DEVICE)
    }
}

/// Columns of the figures of cold rows.
pub(super) const DEVICE_COLUMNS: &[Column] = &[
    Column {
        name: "device reads/op",
        cell: |row| Some(format!("{:.2}", row.figures::<DeviceReads>().device_reads_per_op?)),
    },
    Column { name: "device depth", cell: |row| Some(format!("{:.1}", row.figures::<DeviceReads>().device_depth?)) },
];

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    ways: &'a [Part<dyn ReadWay>],
    case: &'a Case,
    file: &'a TestFile,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Operations of a timed round.
    operations: usize,
    inputs: Inputs,
    /// The most pages that a round past the page cache left in it, or another program did.
    cached_after: u64,
    /// Name of the device that cold reads reach, where it is known.
    device: Option<&'a str>,
}

/// Number of operations where it needs no warm-up, since the rate is given.
fn known_operations(options: &Options) -> Option<usize> {
    let rate = options.rate?;
    Some((f64::from(rate) * options.round_time.max(PACED_ROUND).as_secs_f64()) as usize)
}

fn blocks(case: &Case, file: &TestFile, block: usize) -> u64 {
    match case.state {
        // A short block at the end has no half of its own.
        State::HalfCached => file.size() / block as u64,
        _ => file.size().div_ceil(block as u64),
    }
}

/// The inputs of one round, the same for every way.
enum Inputs {
    Offsets(Vec<u64>),
    Ranges(Vec<Range>),
}

impl interleave::Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn warms_up(&self) -> bool {
        known_operations(self.options).is_none()
    }

    fn prepare(&mut self, stage: Stage) {
        let operations = match (stage, self.case.state) {
            (Stage::Verify, _) => VERIFIED,
            (Stage::WarmUp, State::Cached) => WARM_UP_CACHED,
            (Stage::WarmUp, _) => WARM_UP_COLD,
            (Stage::Timed(_), _) => self.operations,
        };
        self.inputs = self.inputs(stage.random(self.options.seed), operations);
        if stage == Stage::Verify {
            self.add_tail();
        }
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.turn(way, stage)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if stage == Stage::WarmUp {
            self.operations = operations_in(self.options.round_time, samples);
        }
    }
}

impl<'a> Bench<'a> {
    fn new<'r: 'a>(
        table: &'static str,
        ways: &'a [Part<dyn ReadWay>],
        case: &'a Case,
        file: &'a TestFile,
        device: Option<&'a str>,
        run: &Run<'r>,
    ) -> Self {
        let (options, cancel) = (run.options, run.cancel);
        let operations = known_operations(options).unwrap_or(0);
        let inputs = Inputs::default();
        Self { table, ways, case, file, options, cancel, operations, inputs, cached_after: 0, device }
    }

    fn blocks(&self, block: usize) -> u64 {
        blocks(self.case, self.file, block)
    }

    /// About `operations` random operations. Unless the file is cached, no page is in two of them,
    /// and there are no more than the file has room for.
    fn inputs(&self, mut random: Random, operations: usize) -> Inputs {
        match self.case.work {
            Work::Reads { block, depth, callers } => {
                let count = operations.max(depth * callers * 2);
                Inputs::Offsets(self.places(&mut random, self.blocks(block), block as u64, count))
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

    /// `count` of the file's `places`, in random order; each once, or round and round where the
    /// file is cached.
    fn places(&self, random: &mut Random, places: u64, size: u64, count: usize) -> Vec<u64> {
        let order = random.permutation(places).into_iter().map(|place| place * size);
        match self.case.state {
            State::Cached => order.cycle().take(count).collect(),
            State::Cold | State::HalfCached => order.take(count).collect(),
        }
    }

    /// Puts the file's very end among the inputs, where a read may be shorter than a block.
    fn add_tail(&mut self) {
        let size = self.file.size();
        match (&mut self.inputs, self.case.work) {
            (Inputs::Ranges(ranges), _) => {
                if let Some(last) = ranges.last_mut() {
                    last.offset = size - u64::from(last.len);
                }
            }
            (Inputs::Offsets(offsets), Work::Reads { block, .. }) if self.case.state != State::HalfCached => {
                let tail = (size - 1) / block as u64 * block as u64;
                if !offsets.contains(&tail) {
                    offsets.pop();
                    offsets.push(tail);
                }
            }
            _ => {}
        }
    }

    fn make_state(&self) -> Result<()> {
        match (self.case.state, self.case.work, &self.inputs) {
            (State::Cold, ..) => self.file.make_cold(),
            (State::HalfCached, Work::Reads { block, .. }, Inputs::Offsets(offsets)) => {
                self.file.make_half_cached(offsets, block)
            }
            _ => self.file.make_warm(),
        }
    }

    /// One way, once, from the state of the case.
    fn turn(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.make_state()?;
        let file = self.file;
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if stage == Stage::Verify { Some(&matches) } else { None };
        let before = self.device.and_then(Transfers::of);
        let turn = Turn { way: self.ways[way].name(), table: self.table, case: &self.case.name, cancel: self.cancel };
        let mut sample = self.once(self.ways[way], turn, check)?;
        sample.device = before.zip(self.device.and_then(Transfers::of)).map(|(before, after)| after.since(before));
        // To check what it read, a file of a user is read through the cache.
        if self.file.is_direct() && stage != Stage::Verify {
            self.cached_after = self.cached_after.max(self.file.cached_pages()?);
        }
        turn.require_sampled(&sample, self.file)?;
        Ok(sample)
    }

    /// One way, once.
    fn once(&self, way: Part<dyn ReadWay>, turn: Turn<'_>, check: Option<&Check<'_>>) -> Result<Sample> {
        let target = Target::of(self.file);
        let outcome = match (self.case.work, &self.inputs) {
            (Work::Reads { block, depth, callers }, Inputs::Offsets(offsets)) => {
                let rate = self.options.rate.filter(|_| check.is_none());
                let pace = rate.map(|rate| Pace::Every(Duration::from_secs(1) / rate));
                let job = Reads { target, block, depth, offsets, pace: pace.as_ref(), cancel: self.cancel };
                reads_round(way, job, callers, check)
            }
            (Work::Gather { records }, Inputs::Ranges(ranges)) => {
                let job = Gather::new(target, ranges, records, self.cancel);
                let mut output = Buffer::new(job.output_len());
                alone(check, |round| way.gather(&job, output.bytes(), round))
            }
            _ => unreachable!("inputs() makes what the work needs"),
        };
        let wanted = self.inputs.totals(&self.case.work, target.size);
        turn.complete("operations", wanted, outcome).map(|(sample, ())| sample)
    }
}

impl Default for Inputs {
    fn default() -> Self {
        Self::Offsets(Vec::new())
    }
}

impl Inputs {
    /// Operations and bytes.
    fn totals(&self, work: &Work, size: u64) -> (u64, u64) {
        match (self, *work) {
            (Self::Ranges(ranges), _) => (ranges.len() as u64, ranges.iter().map(|range| u64::from(range.len)).sum()),
            (Self::Offsets(offsets), Work::Reads { block, .. }) => {
                (offsets.len() as u64, offsets.iter().map(|offset| (size - offset).min(block as u64)).sum())
            }
            (Self::Offsets(_), Work::Gather { .. }) => unreachable!("a gather has ranges"),
        }
    }
}

/// Deals the offsets out to `callers` threads, which start together.
fn reads_round(way: Part<dyn ReadWay>, job: Reads<'_>, callers: usize, check: Option<&Check<'_>>) -> Outcome<()> {
    let gate = Barrier::new(callers);
    let call = |offsets| {
        let job = Reads { offsets, ..job };
        let mut buffer = Buffer::new(job.block * job.depth);
        let mut round = Round::new(&gate, check);
        way.reads(&job, buffer.bytes(), &mut round).map(|()| round)
    };
    if callers == 1 {
        return Ok((Sample::of(&[call(job.offsets)?]), ()));
    }
    let share = job.offsets.len().div_ceil(callers);
    let rounds: std::io::Result<Vec<Round<'_>>> = thread::scope(|scope| {
        let mut shares = job.offsets.chunks(share);
        // As many threads as the gate expects, even where there is too little to deal out.
        let threads: Vec<_> =
            (0..callers).map(|_| shares.next().unwrap_or(&[])).map(|own| scope.spawn(move || call(own))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a way does not panic")).collect()
    });
    Ok((Sample::of(&rounds?), ()))
}

/// Size of the test file of a table that reads.
pub(super) fn file_size(options: &Options) -> u64 {
    if options.quick { QUICK_SIZE } else { FULL_SIZE }
}

#[cfg(test)]
mod tests {
    use super::super::{cached::Cached, gather::Gather, reads::Reads};
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let options = Options::new(false, 1);
        let of_table = [Reads::cases(&options), Cached::cases(&options), Gather::cases(&options)];
        let all: Vec<(usize, Case)> = of_table
            .into_iter()
            .enumerate()
            .flat_map(|(table, cases)| cases.into_iter().map(move |case| (table, case)))
            .collect();
        assert_eq!(all.len(), 7 + 3 + 24);
        for (i, (table, case)) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|(other, of_other)| (other, &of_other.name) != (table, &case.name)));
        }
    }
}
