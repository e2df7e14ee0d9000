//! The table `prefault`: a cold file that is mapped, and how its pages come to be there: all of
//! them, or rows at random places.
//!
//! Every round begins with a file that was verified to be cold, and with memory at hand. When a
//! populate says that all is there, the file's pages must be in the page cache (`mincore` answers
//! for the file, whichever mapping is asked) and a pass over the map must cause no fault: else it
//! is an error. A way's bytes are compared once for each case, before it is timed. In the timed rounds
//! checksums of rows are compared, and of a populated map, when the clock has stopped, a page in each
//! chunk.
//!
//! A map is populated by one thread, whichever that is. Of the rows every way has as many under way
//! at a time (requests of a ring, advice, threads that touch) as a gather of `nowait` has; but for
//! `touch` and `random`, programs with one thread, which waits for each row.
//!
//! The case of the populate is in the table `stall`, too: what counts there is how long the calling
//! thread was kept from its other work. How long it would have been without any, as long as the
//! middling populate took, is measured in each round: a machine that takes the processor away from
//! its threads does so here, too.

use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, LONGEST, Line, P50, P99, cpu};
use super::{Phase, Run, Table, chosen, dd, names, reading, rows, stall, usage};
use crate::error::{Error, Result};
use crate::machine::testfile::TestFile;
use crate::measure::interleave::{Case, Stage, steps};
use crate::measure::meter::{Check, Latencies, Sample, latencies};
use crate::measure::options::Options;
use crate::measure::turn::{Turn, alone};
use crate::measure::work;
use crate::measure::work::{Buffer, Reads, Target};
use crate::random::Random;
use crate::report::figures::micro;
use crate::report::{Latency, Row, median};
use crate::sys::{PAGE, faults_of_this_thread};
use crate::ways::map::watch::{idle_gap, touch_all};
use crate::ways::{self, Mapped, PopulateWay, Populated, RowWay};

pub struct Prefault {
    pub populators: &'static [&'static dyn PopulateWay],
    pub indexers: &'static [&'static dyn RowWay],
}

pub static PREFAULT: Prefault = Prefault { populators: ways::populators(), indexers: ways::indexers() };

pub(super) const NAME: &str = "prefault";
pub(super) const POPULATE: &str = "populate";
/// Rows in a round, of those that the file has.
const ROWS: usize = 4000;
const ROW: usize = PAGE as usize;
/// Rows under way: what a map of `nowait` brings in at a time, and has no option for; so it gathers
/// as many, one batch after the other.
const ROW_DEPTH: usize = 128;

/// Figures of this table's rows where a map is populated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Processor time of the whole process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms_per_gib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub populate: Option<Populate>,
}

/// Course of a populate. Times in ms are medians over the rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Populate {
    /// Until the calling thread was told that something can be used.
    pub first_chunk_ms: f64,
    /// Until all could be.
    pub all_ms: f64,
    /// The longest time of a round that the calling thread was kept from its other work.
    pub longest_gap_ms: f64,
    /// The same with nothing beside it, which is what the machine does to any thread: the same of
    /// all ways.
    pub idle_gap_ms: f64,
    /// A touch of a page that had just been announced, over all rounds.
    pub announced_touch_ns: Latency,
    /// A touch of another page, when all had been touched, over all rounds.
    pub warm_touch_ns: Latency,
}

fn populated(row: &Row) -> Option<Populate> {
    row.figures::<Figures>().populate
}

fn cpu_cost(row: &Row) -> Option<String> {
    Some(format!("{:.0}", row.figures::<Figures>().cpu_ms_per_gib?))
}

const CPU_COST: Column = Column { name: "CPU ms/GiB", cell: cpu_cost };

const PAGES: &[Column] = &[
    Column { name: "first ms", cell: |row| Some(format!("{:.1}", populated(row)?.first_chunk_ms)) },
    Column { name: "all ms", cell: |row| Some(format!("{:.0}", populated(row)?.all_ms)) },
    Column {
        // In brackets that of a thread with nothing to do.
        name: "longest gap ms",
        cell: |row| populated(row).map(|all| format!("{:.1} ({:.1})", all.longest_gap_ms, all.idle_gap_ms)),
    },
    Column { name: "touch p99 µs", cell: |row| Some(micro(populated(row)?.announced_touch_ns.p99)) },
    Column { name: "warm p99 µs", cell: |row| Some(micro(populated(row)?.warm_touch_ns.p99)) },
    CPU_COST,
];

const ROW_COLUMNS: &[Column] = &[P50, P99, LONGEST, Column { name: "CPU µs", cell: cpu }];

/// Size of the test file.
pub(super) fn file_size(options: &Options) -> u64 {
    reading::file_size(options)
}

impl Table for Prefault {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "A cold file, mapped: time until all pages are in, and random rows"
    }

    fn title(&self) -> &'static str {
        "prefault: a cold file is mapped: all its pages are to be there, or random rows, 128 at a time; pages/s, rows/s"
    }

    fn unit(&self) -> &'static str {
        "pages or rows/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        [names(self.populators), names(self.indexers)].concat()
    }

    fn check(&self, options: &Options) -> Result<()> {
        if chosen(self.populators, options).is_empty() && chosen(self.indexers, options).is_empty() {
            let all = self.ways().join(", ");
            return Err(usage(format!("none of --ways is in the table {NAME}; choose among {all}")));
        }
        Ok(())
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(file_size(options))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::File {
            return Ok(());
        }
        let populators = run.usable(self.populators);
        let indexers = run.usable(self.indexers);
        if !populators.is_empty() {
            let both = run.asked.contains(&"stall");
            populate(&populators, if both { &[NAME, "stall"] } else { &[NAME] }, run)?;
        }
        if !indexers.is_empty() {
            take_rows(&indexers, run)?;
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[
            Grid::Rows { name: "pages", line: Line::Indented, has: |row| populated(row).is_some(), columns: PAGES },
            Grid::Rows {
                name: "a row",
                line: Line::Indented,
                has: |row| populated(row).is_none(),
                columns: ROW_COLUMNS,
            },
        ];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[CPU_COST]
    }
}

/// Measures the case of the populate once. Each of these tables has its rows.
pub(super) fn populate(ways: &[&'static dyn PopulateWay], tables: &[&str], run: &mut Run<'_>) -> Result<()> {
    let file = run.test_file()?;
    let opened = File::open(file.path()).map_err(|error| Error::io("open", file.path(), &error))?;
    let table = tables.first().copied().unwrap_or(NAME);
    let (seed, cancel, samples) = (run.options.seed, run.cancel, Vec::new());
    let all = ways.iter().map(|_| Populates::default()).collect();
    let mut bench = PopulateCase { table, ways, file, opened, seed, cancel, all, idle_gaps_ms: samples };
    run.progress.begin(table, steps(ways.len(), run.options.rounds, false));
    let timed = run.case(table, POPULATE, ways, &mut bench)?;
    let idle_gap_ms = median(&bench.idle_gaps_ms);
    for table in tables {
        for ((way, samples), all) in ways.iter().zip(&timed).zip(&bench.all) {
            let row = Row::of(table, POPULATE, way.name(), samples);
            let own = *table == NAME;
            let row =
                if own { row.with(all.figures(samples, idle_gap_ms)) } else { row.with(stall::Figures::of(samples)) };
            run.report.rows.push(row);
        }
    }
    Ok(())
}

/// The case in which all pages of a map are brought in.
struct PopulateCase<'a> {
    table: &'a str,
    ways: &'a [&'static dyn PopulateWay],
    file: &'a TestFile,
    opened: File,
    seed: u64,
    cancel: &'a AtomicBool,
    all: Vec<Populates>,
    idle_gaps_ms: Vec<f64>,
}

/// Figures of one way over all timed rounds, besides its samples.
#[derive(Default)]
struct Populates {
    first_chunks_ms: Vec<f64>,
    announced: Vec<Latencies>,
    warm: Vec<Latencies>,
}

impl Case for PopulateCase<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (sample, populated, warm) = self.populate(self.ways[way], stage)?;
        if let Stage::Timed(_) = stage {
            let all = &mut self.all[way];
            all.first_chunks_ms.push(milliseconds(populated.first_chunk));
            all.announced.push(populated.touches);
            all.warm.push(warm);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        Ok(self.populate(self.ways[way], stage)?.0)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if let Stage::Timed(_) = stage {
            let seconds: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
            self.idle_gaps_ms.push(milliseconds(idle_gap(Duration::from_secs_f64(median(&seconds)))));
        }
    }
}

impl PopulateCase<'_> {
    /// One way, once, from a cold file; and a touch of a page in each chunk when all had been
    /// touched.
    fn populate(&self, way: &dyn PopulateWay, stage: Stage) -> Result<(Sample, Populated, Latencies)> {
        let turn = Turn { way: way.name(), table: self.table, case: POPULATE, cancel: self.cancel };
        self.file.have_memory_at_hand()?;
        self.file.make_cold()?;
        let mut random = stage.random(self.seed);
        let (announced, warm) = (self.samples(&mut random), self.samples(&mut random));
        let (file, path, size, cancel) = (&self.opened, self.file.path(), self.file.size(), self.cancel);
        let job = work::Populate { file, path, size, samples: &announced, cancel };
        let outcome = alone(None, |round| way.populate(&job, round));
        let (sample, populated) = turn.complete("pages", (job.pages(), size), outcome)?;
        let touched = populated.touches.len();
        if touched != announced.len() as u64 {
            return Err(turn.failed(format!("it announced {touched} of {} chunks", announced.len())));
        }
        self.require_present(&*populated.map).map_err(|error| match error {
            Absent::Pages(why) => turn.failed(why),
            Absent::Unknown(error) => error,
        })?;
        let mut touches = latencies();
        touch_all(&*populated.map, warm.iter().copied(), &mut touches);
        let chunk = work::Populate::CHUNK;
        let wrong = match stage {
            Stage::Verify => self.first_wrong(&*populated.map, (0..size).step_by(chunk as usize), chunk),
            _ => self.first_wrong(&*populated.map, warm.iter().map(|place| place / PAGE * PAGE), PAGE),
        };
        if let Some(offset) = wrong {
            return Err(turn.failed(format!("its map is wrong from byte {offset}")));
        }
        Ok((sample, populated, touches))
    }

    /// A place in each chunk.
    fn samples(&self, random: &mut Random) -> Vec<u64> {
        let size = self.file.size();
        let starts = (0..size).step_by(work::Populate::CHUNK as usize);
        starts.map(|start| start + random.below(work::Populate::CHUNK.min(size - start))).collect()
    }

    /// All but one in a thousand, as where a file is made cold: the kernel may take some away at
    /// any time.
    fn require_present(&self, map: &dyn Mapped) -> std::result::Result<(), Absent> {
        let pages = self.file.pages();
        let cached = self.file.cached_pages().map_err(Absent::Unknown)?;
        let before = faults_of_this_thread();
        for page in (0..self.file.size()).step_by(PAGE as usize) {
            map.touch(page);
        }
        let faults = faults_of_this_thread() - before;
        let few = pages / 1000;
        if cached + few < pages {
            let missing = pages - cached;
            return Err(Absent::Pages(format!("{missing} of {pages} pages are not there; use a smaller --size")));
        }
        if faults > few {
            return Err(Absent::Pages(format!("touching all its {pages} pages took {faults} faults")));
        }
        Ok(())
    }

    /// The first of these places from which so many bytes, or those up to the end of the file, are
    /// not the file's.
    fn first_wrong(&self, map: &dyn Mapped, mut places: impl Iterator<Item = u64>, len: u64) -> Option<u64> {
        let (size, mut bytes) = (self.file.size(), vec![0; len as usize]);
        places.find(|&offset| {
            let bytes = &mut bytes[..len.min(size - offset) as usize];
            map.copy(offset, bytes);
            !self.file.matches(offset, bytes)
        })
    }
}

enum Absent {
    /// Pages are missing, in words.
    Pages(String),
    /// The page cache could not be examined.
    Unknown(Error),
}

impl Populates {
    fn figures(&self, samples: &[Sample], idle_gap_ms: f64) -> Figures {
        let median_of = |value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
        let populate = Populate {
            first_chunk_ms: median(&self.first_chunks_ms),
            all_ms: median_of(|sample| sample.seconds * 1e3),
            longest_gap_ms: median_of(|sample| sample.latencies.max() as f64 / 1e6),
            idle_gap_ms,
            announced_touch_ns: Latency::of(&merged(&self.announced)),
            warm_touch_ns: Latency::of(&merged(&self.warm)),
        };
        Figures { cpu_ms_per_gib: Some(dd::cpu_ms_per_gib(samples)), populate: Some(populate) }
    }
}

/// Measures the case of the rows.
fn take_rows(ways: &[&'static dyn RowWay], run: &mut Run<'_>) -> Result<()> {
    let file = run.test_file()?;
    let count = run.options.rows.unwrap_or(ROWS).min(file.pages() as usize);
    let (name, seed, cancel) = (format!("rows={count}"), run.options.seed, run.cancel);
    let mut bench = RowCase { ways, name, count, file, seed, cancel, places: Vec::new() };
    let name = bench.name.clone();
    run.progress.begin(NAME, steps(ways.len(), run.options.rounds, false));
    let timed = run.case(NAME, &name, ways, &mut bench)?;
    run.report.rows.extend(rows(NAME, &name, ways, &timed));
    Ok(())
}

/// The case in which rows are taken out of a map.
struct RowCase<'a> {
    ways: &'a [&'static dyn RowWay],
    name: String,
    count: usize,
    file: &'a TestFile,
    seed: u64,
    cancel: &'a AtomicBool,
    /// Offsets of this round's rows, each page at most once.
    places: Vec<u64>,
}

impl Case for RowCase<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn prepare(&mut self, stage: Stage) {
        let order = stage.random(self.seed).permutation(self.file.pages());
        self.places = order.into_iter().take(self.count).map(|page| page * PAGE).collect();
        // Where the file ends, and a row may be shorter.
        let last = (self.file.pages() - 1) * PAGE;
        if stage == Stage::Verify && !self.places.contains(&last) {
            self.places[self.count - 1] = last;
        }
    }

    /// One way, once, from a cold file.
    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (way, offsets) = (self.ways[way], &self.places);
        let turn = Turn { way: way.name(), table: NAME, case: &self.name, cancel: self.cancel };
        self.file.have_memory_at_hand()?;
        self.file.make_cold()?;
        let target = Target::of(self.file);
        let job = Reads { target, block: ROW, depth: ROW_DEPTH, offsets, pace: None, cancel: self.cancel };
        let mut buffer = Buffer::new(ROW * ROW_DEPTH);
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if stage == Stage::Verify { Some(&matches) } else { None };
        let outcome = alone(check, |round| way.rows(&job, buffer.bytes(), round));
        let (sample, ()) = turn.complete("rows", job.totals(), outcome)?;
        turn.require_sampled(&sample, self.file)?;
        Ok(sample)
    }
}

fn merged(rounds: &[Latencies]) -> Latencies {
    let mut all = latencies();
    rounds.iter().for_each(|round| all += round);
    all
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
