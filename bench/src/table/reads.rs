//! The tables `reads`, `cached` and `gather`: random reads of a file, and batches of small records.
//!
//! Before each round the page cache is brought into the state of the case, which is verified. All
//! ways read the same offsets into the same kind of buffer.

use std::ops::RangeInclusive;

use super::*;
use crate::measure::meter::Check;
use crate::measure::turn::{Outcome, by_callers};
use crate::measure::work::{Gather, Range};
use crate::report::axes::{Point, panels};
use crate::report::best;
use crate::ways::PLAIN;

const DEVICE: &[Grid] = &[Grid {
    name: "by the device",
    is_detail: true,
    columns: &[
        Column { name: "reads/op", cell: |row| own(row, "device_reads_per_op", 2) },
        Column { name: "bytes/byte", cell: |row| own(row, "device_bytes_per_byte", 2) },
        Column { name: "in flight", cell: |row| own(row, "device_depth", 1) },
    ],
}];

pub static READS: Table = Table {
    name: "reads",
    about: "Cold random reads of 4 KiB, by depth",
    title: "reads: cold random reads of 4 KiB, operations/s by depth",
    takes: &["depths", "direct"],
    usual: true,
    toured: true,
    file_size: file_size_of_reads,
    cases: |options| {
        let depths = options.or_usual(&options.depths, &[1, 4, 32], &[1, 2, 4, 8, 16, 32, 128]);
        let of = |depth| reading(format!("depth={depth}"), CacheState::Cold, ReadShape { depth, ..PAGES }, options);
        depths.into_iter().map(of).collect()
    },
    grids: DEVICE,
    advice: enough_in_flight,
    ..Table::USUAL
};

pub static CACHED: Table = Table {
    name: "cached",
    about: "Random reads of a file that is fully or half cached",
    title: "cached: random reads of 4 KiB, cached, and of 64 KiB, half cached; operations/s",
    usual: true,
    toured: true,
    file_size: file_size_of_reads,
    cases: |options| {
        let (two, half) = (ReadShape { callers: 2, ..PAGES }, ReadShape { block: HALF_BLOCK, ..PAGES });
        vec![
            reading("threads=1".to_owned(), CacheState::Cached, PAGES, options),
            reading("threads=2".to_owned(), CacheState::Cached, two, options),
            reading("64K,half".to_owned(), CacheState::HalfCached, half, options),
        ]
    },
    advice: cost_of_a_cached_read,
    ..Table::USUAL
};

pub static GATHER: Table = Table {
    name: "gather",
    about: "Batches of small records, cold and cached",
    title: "gather: batches of random records of 1 to 4 KiB, records/s by records in a batch",
    unit: "records/s",
    takes: &["records"],
    usual: true,
    toured: true,
    file_size: file_size_of_reads,
    cases: |options| {
        let full = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096];
        let records = options.or_usual(&options.records, &[1, 8, 64, 512], &full);
        let of = |(state, suffix): (CacheState, &str)| {
            let name = |records| format!("records={records},{suffix}");
            let case = |&records| reading(name(records), state, ReadShape { records, ..PAGES }, options);
            records.iter().map(case).collect::<Vec<_>>()
        };
        [(CacheState::Cold, "cold"), (CacheState::Cached, "cached")].into_iter().flat_map(of).collect()
    },
    grids: DEVICE,
    latency: "p99 latency of a batch, µs",
    ..Table::USUAL
};

/// State of the page cache when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheState {
    Cold,
    Cached,
    /// The first half of each block to read is cached.
    HalfCached,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReadShape {
    block: usize,
    /// Number of reads in flight of each of `callers` threads.
    depth: usize,
    callers: usize,
    /// Number of records in a batch; 0 for blocks.
    records: usize,
}

const BLOCK: usize = 4 << 10;
const HALF_BLOCK: usize = 64 << 10;
const PAGES: ReadShape = ReadShape { block: BLOCK, depth: 1, callers: 1, records: 0 };

const FULL_SIZE: u64 = 1 << 30;
const QUICK_SIZE: u64 = 64 << 20;

/// Distance of records. A record is at most 4 KiB and has a separate cell, so that no page is read
/// for two records.
const CELL: u64 = 8 << 10;
const RECORD_LENGTHS: RangeInclusive<u64> = 1 << 10..=4 << 10;
/// Minimum number of batches in a round of a gather, if the file is large enough.
const FEWEST_BATCHES: usize = 4;
/// Share of the bytes read from the device below which the report contains a note.
const FROM_DEVICE: f64 = 0.95;

pub(super) fn file_size_of_reads(options: &Options) -> Option<u64> {
    Some(if options.quick { QUICK_SIZE } else { FULL_SIZE })
}

fn reading(name: String, state: CacheState, shape: ReadShape, options: &Options) -> Case {
    let mut ways = match (shape.records > 0, options.direct) {
        (true, _) => ways::gatherers(options.roster),
        (false, true) => ways::direct_readers(options.roster),
        (false, false) => ways::readers(options.roster),
    };
    ways.retain(|way| (shape.depth == 1 && shape.records == 0) || !way.one_at_a_time());
    let open = move |ways, run: &mut Run<'_>| {
        let device = run.report.environment.device.clone().filter(|_| state == CacheState::Cold);
        Ok(Some(ReadCase { ways, state, shape, inputs: Inputs::default(), cached_after: 0, device }))
    };
    Case::new(name, ways, Work::For(options.round_time), open)
}

/// One case, ready to be measured.
struct ReadCase {
    ways: Vec<Part<dyn ReadWay>>,
    state: CacheState,
    shape: ReadShape,
    inputs: Inputs,
    /// Maximum number of pages in the page cache after a direct round, left by the round or another
    /// program.
    cached_after: u64,
    /// Name of the device that cold reads reach, if known.
    device: Option<String>,
}

/// Inputs of a round, the same for all ways.
#[derive(Default)]
struct Inputs {
    offsets: Vec<u64>,
    ranges: Vec<Range>,
}

impl ReadCase {
    /// Returns `count` of the file's `places`, in random order: each once, or repeatedly if the
    /// file is cached.
    fn places(&self, random: &mut Random, places: u64, size: u64, count: usize) -> Vec<u64> {
        let order = random.permutation(places).into_iter().map(|place| place * size);
        match self.state {
            CacheState::Cached => order.cycle().take(count).collect(),
            CacheState::Cold | CacheState::HalfCached => order.take(count).collect(),
        }
    }

    /// Draws about `operations` random operations. Unless the file is cached, no page is in two of
    /// them, which bounds their number by the file's size.
    fn inputs(&self, size: u64, mut random: Random, operations: usize) -> Inputs {
        let ReadShape { block, depth, callers, records } = self.shape;
        if records == 0 {
            let block = block as u64;
            // A short last block is not split into halves.
            let blocks = if self.state == CacheState::HalfCached { size / block } else { size.div_ceil(block) };
            let offsets = self.places(&mut random, blocks, block, operations.max(depth * callers * 2));
            return Inputs { offsets, ..Inputs::default() };
        }
        let batches = (operations / records).max(FEWEST_BATCHES);
        let cells = self.places(&mut random, size / CELL, CELL, batches * records);
        let whole = cells.len() - if cells.len() > records { cells.len() % records } else { 0 };
        let record = |cell: u64| {
            let spread = RECORD_LENGTHS.end() - RECORD_LENGTHS.start() + 1;
            let len = RECORD_LENGTHS.start() + random.below(spread);
            Range { offset: cell + random.below(CELL - len + 1), len: len as u32 }
        };
        Inputs { ranges: cells[..whole].iter().copied().map(record).collect(), ..Inputs::default() }
    }

    /// Adds the end of the file to the inputs, where a read may be shorter than a block.
    fn add_tail(&mut self, size: u64) {
        if let Some(last) = self.inputs.ranges.last_mut() {
            last.offset = size - u64::from(last.len);
        }
        let tail = (size - 1) / self.shape.block as u64 * self.shape.block as u64;
        let offsets = &mut self.inputs.offsets;
        if !offsets.is_empty() && self.state != CacheState::HalfCached && !offsets.contains(&tail) {
            offsets.pop();
            offsets.push(tail);
        }
    }

    fn make_state(&self, file: &TestFile) -> Result<()> {
        match self.state {
            CacheState::Cold => file.make_cold(),
            CacheState::HalfCached => file.make_half_cached(&self.inputs.offsets, self.shape.block),
            CacheState::Cached => file.make_warm(),
        }
    }

    /// Runs one way once. Also returns the expected operations and bytes.
    fn once(&self, turn: &Turn<'_>, file: &TestFile, check: Option<&Check<'_>>) -> (Outcome<()>, (u64, u64)) {
        let (way, target, cancel) = (self.ways[turn.index], Target::of(file), turn.cancel);
        let (ReadShape { block, depth, callers, records }, Inputs { offsets, ranges }) = (self.shape, &self.inputs);
        if records > 0 {
            let job = Gather::new(target, ranges, records, cancel);
            let mut output = Buffer::new(job.output_len());
            let wanted = (ranges.len() as u64, ranges.iter().map(|range| u64::from(range.len)).sum());
            return (alone(check, |round| way.gather(&job, output.bytes(), round)), wanted);
        }
        let job = Reads { target, block, depth, offsets, pace: None, cancel };
        let share = offsets.len().div_ceil(callers);
        let outcome = by_callers(callers, check, |index, round| {
            let offsets = offsets.chunks(share).nth(index).unwrap_or(&[]);
            way.reads(&Reads { offsets, ..job }, Buffer::new(block * depth).bytes(), round)
        });
        (outcome, job.totals())
    }
}

impl Bench for ReadCase {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let size = place.file()?.size();
        self.inputs = self.inputs(size, stage.random(place.options.seed), operations);
        if stage == Stage::Verify {
            self.add_tail(size);
        }
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let file = turn.file()?;
        self.make_state(file)?;
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let transfers = || self.device.as_deref().and_then(Transfers::of);
        let before = transfers();
        let (outcome, wanted) = self.once(turn, file, turn.check(&matches));
        let after = transfers();
        let (mut sample, ()) = turn.complete("operations", wanted, outcome)?;
        if let Some((before, after)) = before.zip(after) {
            // The counters include reads of other programs.
            let (device, operations, bytes) = (after.since(before), sample.operations as f64, sample.bytes as f64);
            sample.tell("device_reads_per_op", Figure::Ratio(device.reads as f64, operations));
            sample.tell("device_bytes_per_byte", Figure::Ratio(device.read_bytes as f64, bytes));
            sample.tell("device_depth", Figure::Ratio(device.read_time.as_secs_f64(), sample.seconds));
        }
        // Verification reads a user's file through the cache.
        if file.is_direct() && !turn.verifies() {
            self.cached_after = self.cached_after.max(file.cached_pages()?);
        }
        turn.require_sampled(&sample, file)?;
        Ok(sample)
    }

    fn finish(&mut self, name: &str, rows: &[Row], run: &mut Run<'_>) {
        let Some(table) = rows.first().map(|row| row.table.clone()) else { return };
        let is_elsewhere = |row: &&Row| row.figure("device_bytes_per_byte").is_some_and(|bytes| bytes < FROM_DEVICE);
        let elsewhere: Vec<&str> = rows.iter().filter(is_elsewhere).map(|row| row.way.as_str()).collect();
        if !elsewhere.is_empty() {
            let text = format!("{table} {name}: the device gave less than was read, with {}", listed(&elsewhere));
            run.report.note(Code::NotFromDevice, text);
        }
        if run.file.is_some_and(|file| self.cached_after > file.size() / PAGE / 1000) {
            let pages = self.cached_after;
            let text = format!("{table} {name}: {pages} pages of the file were cached after a direct round");
            run.report.note(Code::CachedUnderDirect, text);
        }
    }
}

/// Share of the best speed from which a depth is sufficient.
const ENOUGH: f64 = 0.95;

/// Reports the smallest sufficient depth for cold reads.
fn enough_in_flight(report: &Report) -> Option<String> {
    let (_, panels) = panels(report, "reads").filter(|(axis, _)| *axis == "depth")?;
    let points = &panels.first()?.points;
    let (first, last) = (points.first()?, points.last()?);
    let speed = |point: &Point<'_>| best(&point.rows);
    let most = points.iter().map(speed).fold(0.0, f64::max);
    let enough = points.iter().find(|point| speed(point) >= ENOUGH * most)?;
    if enough.case == first.case {
        let (given, label) = (short(speed(first)), first.label);
        return Some(format!(
            "More than {label} cold read in flight gains nothing here: depth {label} reaches {given}/s."
        ));
    }
    let way = enough.rows.iter().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))?;
    let more = if enough.case == last.case { " Higher depths were not measured." } else { "" };
    let leanest = enough
        .rows
        .iter()
        .filter(|row| row.ops_per_s >= ENOUGH * way.ops_per_s)
        .min_by(|a, b| a.cpu_us_per_op.total.total_cmp(&b.cpu_us_per_op.total))?;
    Some(format!(
        "For cold reads use depth {}: {} reaches {}/s, {:.1} times the best speed of depth {}.{more} Of the ways within 5 % of it, \
         {} takes the least processor time: {:.0} µs per read.",
        enough.label,
        way.way,
        short(way.ops_per_s),
        way.ops_per_s / speed(first),
        first.label,
        leanest.way,
        leanest.cpu_us_per_op.total,
    ))
}

/// Ratio from which a slower way is named.
const DEARER: f64 = 1.3;

/// Compares the cost of cached reads.
fn cost_of_a_cached_read(report: &Report) -> Option<String> {
    let (_, rows) = report.cases("cached").into_iter().next()?;
    let plain = rows.iter().find(|row| PLAIN.contains(&row.way.as_str()))?;
    let dearer = |row: &&Row| Some((plain.ops_per_s / row.ops_per_s, row.way.clone())).filter(|(x, _)| *x >= DEARER);
    let mut dearer: Vec<(f64, String)> = rows.iter().filter_map(dearer).collect();
    dearer.sort_by(|a, b| b.0.total_cmp(&a.0));
    let each: Vec<String> = dearer.iter().map(|(ratio, way)| format!("{way} {ratio:.1}")).collect();
    let costs = match &each[..] {
        [] => "No other way takes much longer".to_owned(),
        all => format!("In multiples of this time: {}", listed(all)),
    };
    let time = plain.latency_ns.map_or_else(|| "some time".to_owned(), |all| format!("{} µs", micro(all.p50)));
    Some(format!("A cached read by {} takes {time}. {costs}.", plain.way))
}
