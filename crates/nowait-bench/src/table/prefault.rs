//! The table `prefault`: a cold file that is mapped, and how its pages come to be there: all of them, or rows at random places.
//!
//! Every round begins with a file that was verified to be cold, and with memory at hand. When a populate says that all is there, the file's
//! pages must be in the page cache (`mincore` answers for the file, whichever mapping is asked) and a pass over the map must cause no
//! fault: else it is an error. A way's bytes are compared once for each case, before it is timed.
//!
//! The case of the populate is in the table `stall`, too: what counts there is how long the calling thread was kept from its other
//! work. How long it would have been without any, as long as the middling populate took, is measured in each round: a machine that takes
//! the processor away from its threads does so here, too.

use std::fs::File;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::TestFile;
use crate::measure::meter::{Check, Latencies, Round, Sample, latencies};
use crate::measure::run::Progress;
use crate::measure::work::{Buffer, Populate, Reads, Target};
use crate::random::Random;
use crate::report::notes::Code;
use crate::report::{self, Latency, Report, Row, median};
use crate::sys::{PAGE, faults_of_this_thread};
use crate::ways::map::watch::{idle_gap, touch_all};
use crate::ways::{Mapped, PopulateWay, Populated, RowWay};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// A populate, and rows.
    Prefault,
    /// The gaps of the thread that has a map populated.
    Stall,
}

impl Table {
    pub const ALL: [Self; 2] = [Self::Prefault, Self::Stall];

    pub fn name(self) -> &'static str {
        match self {
            Self::Prefault => "prefault",
            Self::Stall => "stall",
        }
    }
}

/// What to measure.
#[derive(Clone)]
pub struct Plan {
    pub tables: Vec<Table>,
    pub populators: Vec<&'static dyn PopulateWay>,
    pub indexers: Vec<&'static dyn RowWay>,
    /// How many rows a round takes, of those that the file has.
    pub rows: usize,
    pub rounds: usize,
    pub seed: u64,
}

pub const ROWS: usize = 4000;
const POPULATE: &str = "populate";
const ROW: usize = PAGE as usize;
/// Of a way that has a queue.
const ROW_DEPTH: usize = 32;

impl Plan {
    /// Measures. What is complete is in `report`, even after an error or an interrupt.
    pub fn run(
        &self,
        file: &TestFile,
        cancel: &AtomicBool,
        progress: &mut dyn Progress,
        report: &mut Report,
    ) -> Result<()> {
        let mut populators = self.populators.clone();
        populators.retain(|way| report.takes(way.name(), way.refused()));
        let mut indexers = if self.tables.contains(&Table::Prefault) { self.indexers.clone() } else { Vec::new() };
        indexers.retain(|way| report.takes(way.name(), way.refused()));
        progress.begin("mapping", ((populators.len() + indexers.len()) * (self.rounds + 1)) as u64);
        let bench = Bench { plan: self, file, cancel };
        if !populators.is_empty() {
            progress.now(POPULATE);
            match bench.populate(&populators, progress) {
                Ok(rows) => report.rows.extend(rows),
                // The table of stalls has other cases, which need no cold file.
                Err(error) if error.kind() == ErrorKind::NotCold && self.tables == [Table::Stall] => {
                    report.note(Code::CaseLeftOut, format!("stall: {POPULATE} is left out: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        if !indexers.is_empty() {
            let rows = self.rows.min(file.pages() as usize);
            progress.now(&rows_case(rows));
            report.rows.extend(bench.rows(&indexers, rows, progress)?);
        }
        Ok(())
    }
}

fn rows_case(rows: usize) -> String {
    format!("rows={rows}")
}

struct Bench<'a> {
    plan: &'a Plan,
    file: &'a TestFile,
    cancel: &'a AtomicBool,
}

/// What one way gave in all rounds of a populate.
#[derive(Default)]
struct Populates {
    samples: Vec<Sample>,
    first_chunks_ms: Vec<f64>,
    announced: Vec<Latencies>,
    warm: Vec<Latencies>,
}

impl Bench<'_> {
    fn populate(&self, ways: &[&'static dyn PopulateWay], progress: &mut dyn Progress) -> Result<Vec<Row>> {
        let file = File::open(self.file.path()).map_err(|error| Error::io("open", self.file.path(), &error))?;
        for way in ways {
            self.populate_once(*way, &file, 0, true)?;
            progress.step(1);
        }
        let mut all: Vec<Populates> = ways.iter().map(|_| Populates::default()).collect();
        let mut idle_gaps_ms = Vec::new();
        for round in 0..self.plan.rounds {
            let mut seconds = Vec::new();
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                let (sample, populated, warm) = self.populate_once(ways[which], &file, round as u64 + 1, false)?;
                seconds.push(sample.seconds);
                let all = &mut all[which];
                all.samples.push(sample);
                all.first_chunks_ms.push(milliseconds(populated.first_chunk));
                all.announced.push(populated.touches);
                all.warm.push(warm);
                progress.step(1);
            }
            idle_gaps_ms.push(milliseconds(idle_gap(Duration::from_secs_f64(median(&seconds)))));
        }
        let idle_gap_ms = median(&idle_gaps_ms);
        let rows = self.plan.tables.iter().flat_map(|&table| {
            let row = move |(way, all): (&&dyn PopulateWay, &Populates)| all.row(table, way.name(), idle_gap_ms);
            ways.iter().zip(&all).map(row)
        });
        Ok(rows.collect())
    }

    /// One way, once, from a cold file; and a touch of a page in each chunk when all had been touched.
    fn populate_once(
        &self,
        way: &dyn PopulateWay,
        file: &File,
        round: u64,
        verify: bool,
    ) -> Result<(Sample, Populated, Latencies)> {
        let failed = |why: &str| self.failed(way.name(), POPULATE, why);
        self.file.have_memory_at_hand()?;
        self.file.make_cold()?;
        let mut random = self.random(round);
        let (announced, warm) = (self.samples(&mut random), self.samples(&mut random));
        let (path, size, cancel) = (self.file.path(), self.file.size(), self.cancel);
        let job = Populate { file, path, size, samples: &announced, cancel };
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, None);
        let result = way.populate(&job, &mut round);
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        let populated = result.map_err(|error| failed(&error.to_string()))?;
        let sample = Sample::of(&[round]).ok_or_else(|| failed("it did not run its clock"))?;
        let (done, wanted) = ((sample.operations, sample.bytes), (job.pages(), size));
        if done != wanted {
            return Err(failed(&format!("(pages, bytes) are {done:?} instead of {wanted:?}")));
        }
        let touched = populated.touches.len();
        if touched != announced.len() as u64 {
            return Err(failed(&format!("it announced {touched} of {} chunks", announced.len())));
        }
        self.require_present(&*populated.map).map_err(|error| match error {
            Absent::Pages(why) => failed(&why),
            Absent::Unknown(error) => error,
        })?;
        let wrong = if verify { self.first_wrong(&*populated.map) } else { None };
        if let Some(offset) = wrong {
            return Err(failed(&format!("its map is wrong from byte {offset}")));
        }
        let mut touches = latencies();
        touch_all(&*populated.map, warm.into_iter(), &mut touches);
        Ok((sample, populated, touches))
    }

    /// A place in each chunk.
    fn samples(&self, random: &mut Random) -> Vec<u64> {
        let size = self.file.size();
        let starts = (0..size).step_by(Populate::CHUNK as usize);
        starts.map(|start| start + random.below(Populate::CHUNK.min(size - start))).collect()
    }

    /// All but one in a thousand, as where a file is made cold: the kernel may take some away at any time.
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

    fn first_wrong(&self, map: &dyn Mapped) -> Option<u64> {
        let (size, mut chunk) = (self.file.size(), vec![0; Populate::CHUNK as usize]);
        (0..size).step_by(chunk.len()).find(|&offset| {
            let chunk = &mut chunk[..Populate::CHUNK.min(size - offset) as usize];
            map.copy(offset, chunk);
            !self.file.matches(offset, chunk)
        })
    }

    fn rows(&self, ways: &[&'static dyn RowWay], count: usize, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let mut places = self.places(0, count);
        // Where the file ends, and a row may be shorter.
        let last = (self.file.pages() - 1) * PAGE;
        if !places.contains(&last) {
            places[count - 1] = last;
        }
        for way in ways {
            self.rows_once(*way, &places, Some(&matches))?;
            progress.step(1);
        }
        let mut samples = vec![Vec::new(); ways.len()];
        for round in 0..self.plan.rounds {
            let places = self.places(round as u64 + 1, count);
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                samples[which].push(self.rows_once(ways[which], &places, None)?);
                progress.step(1);
            }
        }
        let row = |(way, samples): (&&dyn RowWay, &Vec<Sample>)| {
            Row::of(Table::Prefault.name(), &rows_case(count), way.name(), samples)
        };
        Ok(ways.iter().zip(&samples).map(row).collect())
    }

    /// Each page at most once.
    fn places(&self, round: u64, count: usize) -> Vec<u64> {
        let order = self.random(round).permutation(self.file.pages());
        order.into_iter().take(count).map(|page| page * PAGE).collect()
    }

    /// One way, once, from a cold file.
    fn rows_once(&self, way: &dyn RowWay, offsets: &[u64], check: Option<&Check<'_>>) -> Result<Sample> {
        let failed = |why: &str| self.failed(way.name(), &rows_case(offsets.len()), why);
        self.file.have_memory_at_hand()?;
        self.file.make_cold()?;
        let target = Target::of(self.file);
        let job = Reads { target, block: ROW, depth: ROW_DEPTH, offsets, interval: None, cancel: self.cancel };
        let mut buffer = Buffer::new(ROW * ROW_DEPTH);
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, check);
        let result: io::Result<()> = way.rows(&job, buffer.bytes(), &mut round);
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        result.map_err(|error| failed(&error.to_string()))?;
        let sample = Sample::of(&[round]).ok_or_else(|| failed("it did not run its clock"))?;
        if let Some(offset) = sample.wrong {
            return Err(failed(&format!("it returned wrong bytes for offset {offset}")));
        }
        let bytes = offsets.iter().map(|&offset| job.len_at(offset) as u64).sum();
        let (done, wanted) = ((sample.operations, sample.bytes), (offsets.len() as u64, bytes));
        if done != wanted {
            return Err(failed(&format!("(rows, bytes) are {done:?} instead of {wanted:?}")));
        }
        Ok(sample)
    }

    /// Of this round, the same for every way.
    fn random(&self, round: u64) -> Random {
        Random::new(Random::at(self.plan.seed, round).number())
    }

    fn failed(&self, way: &str, case: &str, why: &str) -> Error {
        let table = self.plan.tables.first().map_or("", |table| table.name());
        Error::new(ErrorKind::Other, format!("{way} failed in {table} {case}: {why}; leave it out with --ways"))
    }
}

enum Absent {
    /// What is missing, in words.
    Pages(String),
    /// It could not be found out.
    Unknown(Error),
}

impl Populates {
    fn row(&self, table: Table, way: &str, idle_gap_ms: f64) -> Row {
        let samples = &self.samples;
        let row = Row::of(table.name(), POPULATE, way, samples);
        if table == Table::Stall {
            return row.with_stalls(samples);
        }
        let median_of = |value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
        let row = row.with_cost(samples);
        Row {
            populate: Some(report::Populate {
                first_chunk_ms: median(&self.first_chunks_ms),
                all_ms: median_of(|sample| sample.seconds * 1e3),
                longest_gap_ms: median_of(|sample| sample.latencies.max() as f64 / 1e6),
                idle_gap_ms,
                announced_touch_ns: Latency::of(&merged(&self.announced)),
                warm_touch_ns: Latency::of(&merged(&self.warm)),
            }),
            ..row
        }
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
