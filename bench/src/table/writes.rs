//! The tables `writes` and `stall`: a new file grows by writes of 4 KiB through the page cache; and how
//! long a thread keeps its other work waiting while it writes far beyond the kernel's limit of dirty data.
//!
//! A round writes a new file, from its start on. The file has no name, is synced while it is empty,
//! and its pages are given up after the round, outside of the clock, so that no round suffers from
//! the last one's dirty data. A way's bytes are read back and compared once for each case, and some
//! after each timed round.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::columns::{CPU, Column, Grid, LONGEST, MIB, P50, P99, P999};
use super::{Bench, Case, Run, Table, Work};
use crate::error::{Error, Result};
use crate::machine::dirty_limit::{self, Lowered};
use crate::machine::environment::Environment;
use crate::machine::space::{free_bytes, require_room};
use crate::machine::testfile;
use crate::measure::figure::Figure;
use crate::measure::meter::Sample;
use crate::measure::options::Options;
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::{Buffer, Contents, Writes};
use crate::random::Random;
use crate::report::notes::Code;
use crate::report::{Report, Row};
use crate::ways::{self, OURS, Part, WriteWay};

pub static WRITES: Table = Table {
    name: "writes",
    about: "A file grows by writes of 4 KiB, by depth",
    title: "writes: a new file grows by writes of 4 KiB through the page cache, writes/s",
    unit: "writes/s",
    takes: &["--depths"],
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
    about: "Stalls of a thread's other work while it writes beyond the dirty limit",
    title: "stall: writes beyond the limit of dirty data, beside other work; per s",
    unit: "per s",
    takes: &["--stall-size"],
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
/// Blocks of a timed round that are compared.
const SAMPLED: u64 = 8;

const STALL_DEPTH: usize = 16;
const STALL_BYTES_MAX: u64 = 2 << 30;
const STALL_BYTES_QUICK: u64 = 64 << 20;
const LOWERED_LIMIT: u64 = 128 << 20;
const LOWERED_BACKGROUND: u64 = 64 << 20;

/// The most that a round writes.
fn bytes(options: &Options) -> u64 {
    options.size.unwrap_or(if options.quick { 8 << 20 } else { 64 << 20 })
}

fn file_system(options: &Options) -> String {
    Environment::of(&options.dir).filesystem.unwrap_or_else(|| "unknown".to_owned())
}

/// The state of the table of stalls.
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
    let text =
        format!("stall: each round wrote {size} MiB; the kernel made writers wait from {limit} MiB of dirty data on");
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
    /// Blocks of a full round, and of the next.
    most: u64,
    blocks: u64,
    turns: u64,
    /// A round is long, and latencies are gaps. A way may end it early.
    stalls: bool,
    _lowered: Option<Lowered>,
}

impl Growing {
    const NEW: Self = Self { ways: Vec::new(), depth: 1, most: 0, blocks: 0, turns: 0, stalls: false, _lowered: None };

    fn failed(&self, turn: &Turn<'_>, error: &io::Error) -> Error {
        let option = if self.stalls { "--stall-size" } else { "--size" };
        turn.failed_or_full(error, self.blocks * BLOCK as u64, option, turn.dir())
    }

    /// Compares the file's size, and some of the blocks that this turn has written; the last one, too.
    fn sampled_wrong(&self, file: &File, contents: Contents, blocks: u64, seed: u64) -> io::Result<Option<u64>> {
        let (size, wanted) = (file.metadata()?.len(), blocks * BLOCK as u64);
        if size != wanted {
            return Ok(Some(size.min(wanted)));
        }
        let mut random = Random::of(seed, self.turns);
        let mut block = vec![0; BLOCK];
        for number in (0..SAMPLED).map(|_| random.below(blocks)).chain([blocks - 1]) {
            let offset = number * BLOCK as u64;
            file.read_exact_at(&mut block, offset)?;
            if block != contents.block_at(BLOCK, offset) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
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
        // Other bytes for each turn, so that none finds those of the one before.
        self.turns += 1;
        let contents = Contents::new(seed.wrapping_add(self.turns));
        let failed = |error: io::Error| self.failed(turn, &error);
        let file = Arc::new(testfile::create_nameless(turn.dir())?);
        // Also waits for what the round before has left to the journal.
        file.sync_all().map_err(failed)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
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
        let wrong = match turn.verifies() {
            true => first_wrong(&file, contents, written.0),
            false => self.sampled_wrong(&file, contents, written.0, seed),
        };
        if let Some(offset) = wrong.map_err(failed)? {
            return Err(turn.failed(format!("the file is wrong from byte {offset}")));
        }
        // Now, and not on the clock of whoever comes next.
        file.set_len(0).map_err(failed)?;
        if self.stalls {
            sample.tell("stalled_fraction", Figure::Ratio(sample.stalled_fraction, 1.0));
        }
        Ok(sample)
    }
}

/// Compares with the plainest reader there is. `None` if the file has these blocks and no byte
/// more.
pub fn first_wrong(file: &File, contents: Contents, blocks: u64) -> io::Result<Option<u64>> {
    let mut expected = vec![0; BLOCK];
    contents.prepare(&mut expected, BLOCK);
    let mut found = vec![0; BLOCK];
    let (size, wanted) = (file.metadata()?.len(), blocks * BLOCK as u64);
    for offset in (0..size.min(wanted)).step_by(BLOCK) {
        contents.place(&mut expected, offset);
        let read = file.read_at(&mut found, offset)?;
        if found[..read] != expected {
            return Ok(Some(offset));
        }
    }
    Ok((size != wanted).then(|| size.min(wanted)))
}

/// Covers runs in which the kernel had a reason to put the writer to sleep: more was written
/// than may be dirty. (Records of earlier versions also have cases of overwriting in a cgroup.)
fn longest_gaps(report: &Report) -> Vec<String> {
    let environment = &report.environment;
    let sizes = environment.stall_bytes.zip(environment.dirty_limit_bytes);
    let beyond = sizes.is_some_and(|(bytes, limit)| bytes > limit);
    let longest = |row: &&Row| row.latency_ns.map_or(0, |latency| latency.max);
    let sentence = |(case, rows): (&str, Vec<&Row>)| {
        let worst = rows.iter().max_by_key(|row| longest(row))?;
        let least = rows.iter().min_by_key(|row| longest(row))?;
        let ms = |row: &&Row| format!("{:.1} ms", longest(row) as f64 / 1e6);
        let ours = rows.iter().find(|row| row.way == OURS && row.way != least.way && row.way != worst.way);
        let ours = ours.map_or_else(String::new, |row| format!(", by {OURS} {}", ms(row)));
        (worst.way != least.way).then(|| {
            let (worst_ms, least_ms) = (ms(worst), ms(least));
            let (worst, least) = (&worst.way, &least.way);
            format!(
                "stall: a thread that writes by {worst} keeps its other work waiting for up to {worst_ms}, by {least} \
                 {least_ms}{ours} ({case})."
            )
        })
    };
    let cases = report.cases("stall").into_iter();
    cases.filter(|(case, _)| beyond || case.starts_with("overwrite ")).filter_map(sentence).collect()
}
