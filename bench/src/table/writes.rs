//! The tables `writes` and `stall`. In `writes`, a new file grows by writes of 4 KiB through the
//! page cache. `stall` measures how long other work of a thread waits while the thread writes far
//! beyond the kernel's limit of dirty data.
//!
//! Each round writes a new file from its start. The file has no name, and is synced while it is
//! empty. After the round, off the clock, its pages are dropped, so that no round is slowed by the
//! dirty data of the one before. A way's bytes are read back and compared once for each case, and
//! some of them after each timed round.

use std::os::unix::fs::FileExt;

use super::*;
use crate::machine::dirty_limit::{self, Lowered};
use crate::machine::environment::Environment;
use crate::measure::work::{Contents, Writes};
use crate::ways::WriteWay;

pub static WRITES: Table = Table {
    name: "writes",
    about: "A file grows by writes of 4 KiB, by depth",
    title: "writes: a new file grows by writes of 4 KiB through the page cache, writes/s",
    unit: "writes/s",
    takes: &["depths"],
    toured: true,
    writes_into: |options| Some((bytes(options), "a new one for each round, without a name")),
    cases: |options| {
        let case = |depth: usize| {
            let mut ways = ways::writers(options.roster);
            ways.retain(|way| way.fewest_in_flight() <= depth);
            let open = move |ways, run: &mut Run<'_>| {
                let most = bytes(run.options);
                require_room(most, "--size", &run.options.dir)?;
                Ok(Some(Growing { ways, depth, most: most / BLOCK as u64, ..Growing::NEW }))
            };
            let name = format!("dir={} depth={depth}", file_system(options));
            Case::new(name, ways, Work::For(LONGEST_ROUND), open).in_directory()
        };
        options.or_usual(&options.depths, &[1, 16], &[1, 4, 16, 64]).into_iter().map(case).collect()
    },
    ..Table::USUAL
};

pub static STALL: Table = Table {
    name: "stall",
    about: "How long other work of a thread waits while it writes beyond the dirty limit",
    title: "stall: a thread with other work writes beyond the limit of dirty data; per s",
    unit: "per s",
    takes: &["stall_size"],
    toured: true,
    writes_into: |options| Some((bytes(options), "a new one for each round, without a name")),
    cases: |options| {
        let guess = Duration::from_secs(if options.quick { 1 } else { 5 });
        let (name, work) = (format!("dir={}", file_system(options)), Work::Exactly(usize::MAX, guess));
        vec![Case::new(name, ways::stallers(options.roster), work, stalls).in_directory()]
    },
    grids: &[Grid {
        name: "gaps",
        is_detail: false,
        columns: &[
            MIB,
            P50,
            P99,
            P999,
            LONGEST,
            Column {
                name: "in gaps > 1 ms",
                cell: |row| Some(format!("{:.0} %", row.figure("stalled_fraction")? * 100.0)),
            },
            CPU,
        ],
    }],
    latency: "p99 gap, µs",
    findings: longest_gaps,
    ..Table::USUAL
};

pub const BLOCK: usize = 4 << 10;
const LONGEST_ROUND: Duration = Duration::from_secs(1);
/// Number of blocks of a timed round that are compared.
const SAMPLED: u64 = 8;

const STALL_DEPTH: usize = 16;
const STALL_BYTES_MAX: u64 = 2 << 30;
const STALL_BYTES_QUICK: u64 = 64 << 20;
const LOWERED_LIMIT: u64 = 128 << 20;
const LOWERED_BACKGROUND: u64 = 64 << 20;

/// Returns the maximum number of bytes of a round.
fn bytes(options: &Options) -> u64 {
    options.size.unwrap_or(if options.quick { 8 << 20 } else { 64 << 20 })
}

fn file_system(options: &Options) -> String {
    Environment::of(&options.dir).filesystem.unwrap_or_else(|| "unknown".to_owned())
}

/// Creates the state of the table of stalls.
fn stalls(ways: Vec<Part<dyn WriteWay>>, run: &mut Run<'_>) -> Result<Option<Growing>> {
    let (options, dir) = (run.options, &run.options.dir);
    let lowered = if options.lower_dirty_limit { lowered(run.report) } else { None };
    let limit = dirty_limit::bytes();
    let usual = |free: u64| {
        let wanted = limit.map_or(STALL_BYTES_MAX, |limit| limit.saturating_mul(4));
        (wanted.min(STALL_BYTES_MAX).min(free / 3) / BLOCK as u64).max(1) * BLOCK as u64
    };
    let asked = options.stall_size.or(options.quick.then_some(STALL_BYTES_QUICK));
    let bytes = asked.unwrap_or(usual(free_bytes(dir)?));
    require_room(bytes, "--stall-size", dir)?;
    run.report.environment.dirty_limit_bytes = limit;
    run.report.environment.stall_bytes = Some(bytes);
    let limit = limit.map_or("?".to_owned(), |limit| (limit >> 20).to_string());
    let size = bytes >> 20;
    let text = format!("stall: each round wrote {size} MiB; the kernel blocks writers at {limit} MiB of dirty data");
    run.report.note(Code::StallSize, text);
    Ok(Some(Growing {
        ways,
        depth: STALL_DEPTH,
        most: bytes / BLOCK as u64,
        stalls: true,
        _lowered: lowered,
        ..Growing::NEW
    }))
}

fn lowered(report: &mut Report) -> Option<Lowered> {
    let lowered = Lowered::new(LOWERED_LIMIT, LOWERED_BACKGROUND);
    let note = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => "stall: another run has lowered the limit of dirty data".to_owned(),
        _ => format!("stall: the limit of dirty data could not be lowered: {error}"),
    };
    lowered.map_err(|error| report.note(Code::LimitNotLowered, note(error))).ok()
}

/// One case, ready to be measured.
struct Growing {
    ways: Vec<Part<dyn WriteWay>>,
    depth: usize,
    /// Number of blocks of a full round, and of the next round.
    most: u64,
    blocks: u64,
    turns: u64,
    /// True in the table of stalls: a round is long, latencies are gaps, and a way may end early.
    stalls: bool,
    _lowered: Option<Lowered>,
}

impl Growing {
    const NEW: Self = Self { ways: Vec::new(), depth: 1, most: 0, blocks: 0, turns: 0, stalls: false, _lowered: None };

    fn failed(&self, turn: &Turn<'_>, error: &io::Error) -> Error {
        let option = if self.stalls { "--stall-size" } else { "--size" };
        turn.failed_or_full(error, self.blocks * BLOCK as u64, option, turn.dir())
    }
}

impl Bench for Growing {
    fn prepare(&mut self, _: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let fewest = if stage == Stage::Verify { 4 } else { 1 };
        self.blocks = (operations as u64).saturating_mul(fewest).clamp(1, self.most);
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (way, depth, blocks, seed) = (self.ways[turn.index], self.depth, self.blocks, turn.options.seed);
        // Different bytes for each turn, so that no way finds those of the previous one.
        self.turns += 1;
        let contents = Contents::new(seed.wrapping_add(self.turns));
        let failed = |error: io::Error| self.failed(turn, &error);
        let file = Arc::new(testfile::create_nameless(turn.dir())?);
        // Also waits for journal writes of the previous round.
        file.sync_all().map_err(failed)?;
        let path = sys::path_of(&file);
        let job = Writes { file: &file, path: &path, block: BLOCK, depth, blocks, contents, cancel: turn.cancel };
        let mut buffer = Buffer::new(BLOCK * depth);
        contents.prepare(buffer.bytes(), BLOCK);

        let outcome = alone(None, |round| way.writes(&job, buffer.bytes(), round));
        let (mut sample, ()) = turn.sample(outcome, failed)?;
        let written = (sample.operations, sample.bytes);
        let fewest = if self.stalls { 1 } else { blocks };
        if !(fewest..=blocks).contains(&written.0) || written.1 != written.0 * BLOCK as u64 {
            return Err(turn.failed(format!("(writes, bytes) are {written:?} instead of {blocks} blocks")));
        }
        let mut random = Random::of(seed, self.turns);
        let wrong = match turn.verifies() {
            true => first_wrong(&file, contents, written.0, 0..written.0),
            false => {
                let sampled = (0..SAMPLED).map(|_| random.below(written.0)).chain([written.0 - 1]);
                first_wrong(&file, contents, written.0, sampled)
            }
        };
        if let Some(offset) = wrong.map_err(failed)? {
            return Err(turn.failed(format!("the file is wrong from byte {offset}")));
        }
        // Done here, so that the next way does not pay for it.
        file.set_len(0).map_err(failed)?;
        if self.stalls {
            sample.tell("stalled_fraction", Figure::Ratio(sample.stalled_fraction, 1.0));
        }
        Ok(sample)
    }
}

/// Reads blocks of a file by plain reads and compares them. Returns the offset of the first wrong
/// one, or of a wrong end of the file.
pub fn first_wrong(
    file: &File,
    contents: Contents,
    blocks: u64,
    compared: impl IntoIterator<Item = u64>,
) -> io::Result<Option<u64>> {
    let (size, wanted) = (file.metadata()?.len(), blocks * BLOCK as u64);
    let mut found = vec![0; BLOCK];
    for offset in compared.into_iter().map(|number| number * BLOCK as u64).filter(|offset| *offset < size) {
        let read = file.read_at(&mut found, offset)?;
        if found[..read] != contents.block_at(BLOCK, offset) {
            return Ok(Some(offset));
        }
    }
    Ok((size != wanted).then(|| size.min(wanted)))
}

/// Reports the longest gap of each way, if a round wrote more than the limit of dirty data.
fn longest_gaps(report: &Report) -> Vec<String> {
    let environment = &report.environment;
    if environment.stall_bytes.zip(environment.dirty_limit_bytes).is_none_or(|(bytes, limit)| bytes <= limit) {
        return Vec::new();
    }
    let sentence = |(case, rows): (&str, Vec<&Row>)| {
        let waits = from_worst(&rows, "with", |row| Some(row.latency_ns?.max))?;
        Some(format!("stall: other work of the writing thread waits at most {waits} ({case})."))
    };
    report.cases("stall").into_iter().filter_map(sentence).collect()
}
