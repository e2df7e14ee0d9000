//! The table `load`: operations that arrive by chance, at a rate that doubles until no way keeps
//! up.
//!
//! Arrivals are a Poisson process, drawn by seed for each round, the same for all of its ways.
//! Latency counts from the arrival: one that begins late is slow, and none is left out. At most
//! [`IN_FLIGHT`] operations are at work at a time; further ones wait for their turn, as before a
//! pool. A way that did less than [`KEPT`] of what was offered has no rows at higher rates, where
//! its latencies would tell the length of a round.
//!
//! Reads and gathers are of a file that is cold before each round, and no page of it is read twice
//! in one. Their bytes are compared in the first round of each rate, at that rate, and checksums of
//! some in the others. Records are found again after the first round.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Curve, Grid, LONGEST, Line, P50, P99, P999, cpu, every};
use super::log::fill;
use super::new_file::no_room;
use super::reading::file_size;
use super::{Phase, Run, Table, by_p99, each_once, listed, names, rows, usage};
use crate::error::Result;
use crate::machine::testfile::{self, TestFile};
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Sample};
use crate::measure::options::{Arriving, Options};
use crate::measure::pace::{ExactTimers, Pace};
use crate::measure::turn::{Outcome, Turn, alone};
use crate::measure::work::{Appends, Buffer, Gathers, Reads, Records, Target};
use crate::random::Random;
use crate::report::figures::{share, short};
use crate::report::notes::Code;
use crate::report::{Report, Row};
use crate::sys;
use crate::ways::{self, AppendWay, GatherWay, Part, ReadWay, Roster, WAYS};

pub struct Load {
    pub ways: Roster,
}

pub static LOAD: Load = Load { ways: WAYS };

const IN_FLIGHT: usize = 64;
/// A way keeps a rate if it does this share of what is offered, or more.
pub const KEPT: f64 = 0.95;
/// The last rate where some way keeps all of them.
pub const RATE_MAX: usize = 1 << 20;
/// From one rate to the next.
const FACTOR: usize = 2;
const QUICK_FACTOR: usize = 4;

const BLOCK: usize = 4 << 10;
/// Records of a gather.
const RECORDS: usize = 64;
/// Bytes of a record of the log.
pub(super) const RECORD: usize = 100;
/// Operations that are verified.
const VERIFIED: usize = 128;

impl Arriving {
    /// The first rate.
    fn low(self) -> usize {
        match self {
            Self::Reads => 2000,
            Self::Gather => 100,
            Self::Log => 500,
        }
    }
}

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Arrivals; the row's own speed is what came of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
}

/// Share of the arrivals that the row kept up with.
fn kept(row: &Row) -> Option<f64> {
    Some(row.ops_per_s / row.figures::<Figures>().offered_per_s?)
}

fn keeps(row: &Row) -> bool {
    kept(row).is_some_and(|share| share >= KEPT)
}

pub(super) const OFFERED: Column =
    Column { name: "offered/s", cell: |row| Some(short(row.figures::<Figures>().offered_per_s?)) };
const ACHIEVED: Column = Column { name: "achieved/s", cell: |row| Some(short(row.ops_per_s)) };
pub(super) const SHARE: Column = Column { name: "kept", cell: |row| kept(row).map(share) };
pub(super) const COLUMNS: &[Column] =
    &[OFFERED, ACHIEVED, SHARE, P50, P99, P999, LONGEST, Column { name: "CPU µs", cell: cpu }];

const CURVES: &[Curve] = &[
    Curve {
        name: "p50 latency from arrival, µs",
        value: |row| Some(row.latency_ns?.p50 as f64 / 1e3),
        logarithmic: true,
    },
    Curve {
        name: "p99 latency from arrival, µs",
        value: |row| Some(row.latency_ns?.p99 as f64 / 1e3),
        logarithmic: true,
    },
];

impl Load {
    /// Kinds of operations that are asked for.
    fn asked(options: &Options) -> Vec<Arriving> {
        match (&options.loads[..], options.quick) {
            ([], true) => vec![Arriving::Reads],
            // A file of the user's is only read.
            ([], false) if options.file.is_some() => vec![Arriving::Reads, Arriving::Gather],
            ([], false) => Arriving::ALL.into(),
            (asked, _) => asked.into(),
        }
    }

    fn names(&self, arriving: Arriving) -> Vec<&'static str> {
        match arriving {
            Arriving::Reads => names(&ways::load_readers(self.ways)),
            Arriving::Gather => names(&ways::load_gatherers(self.ways)),
            Arriving::Log => names(&ways::load_appenders(self.ways)),
        }
    }

    fn reads(&self, file: &TestFile, run: &mut Run<'_>) -> Result<()> {
        let (cancel, pages) = (run.cancel, file.size() / BLOCK as u64);
        let ways = run.usable(&ways::load_readers(self.ways));
        let work = |way: Part<dyn ReadWay>, turn: &Turn<'_>, round: &Arrived| {
            file.make_cold()?;
            let offsets = &places(round.seed, pages, round.count)[..];
            let (target, pace) = (Target::of(file), Some(&round.pace));
            let job = Reads { target, block: BLOCK, depth: IN_FLIGHT, offsets, pace, cancel };
            let mut buffer = Buffer::new(BLOCK * IN_FLIGHT);
            let sample = read(file, turn, round, |check| alone(check, |clock| way.reads(&job, buffer.bytes(), clock)))?;
            turn.require("reads", &sample, (round.count as u64, (round.count * BLOCK) as u64))?;
            Ok(sample)
        };
        sweep(self.name(), Arriving::Reads, ways, pages as usize, run, &work)
    }

    fn gathers(&self, file: &TestFile, run: &mut Run<'_>) -> Result<()> {
        let (cancel, pages) = (run.cancel, file.size() / BLOCK as u64);
        let ways = run.usable(&ways::load_gatherers(self.ways));
        let work = |way: Part<dyn GatherWay>, turn: &Turn<'_>, round: &Arrived| {
            file.make_cold()?;
            let offsets = &places(round.seed, pages, round.count * RECORDS)[..];
            let (target, pace) = (Target::of(file), &round.pace);
            let job = Gathers { target, block: BLOCK, records: RECORDS, depth: IN_FLIGHT, offsets, pace, cancel };
            let mut buffer = Buffer::new(job.output_len() * IN_FLIGHT);
            let sample =
                read(file, turn, round, |check| alone(check, |clock| way.gathers(&job, buffer.bytes(), clock)))?;
            turn.require("gathers", &sample, (round.count as u64, (round.count * RECORDS * BLOCK) as u64))?;
            Ok(sample)
        };
        sweep(self.name(), Arriving::Gather, ways, pages as usize / RECORDS, run, &work)
    }

    fn appends(&self, run: &mut Run<'_>) -> Result<()> {
        let (folder, seed) = (run.dir, run.options.seed);
        let ways = run.usable_in(self.name(), &ways::load_appenders(self.ways));
        let work = |way: Part<dyn AppendWay>, turn: &Turn<'_>, round: &Arrived| {
            append(way, turn, round, (folder, seed), "--rates")
        };
        sweep(self.name(), Arriving::Log, ways, RATE_MAX, run, &work)
    }
}

/// `count` of these pages, none of them twice.
fn places(seed: u64, pages: u64, count: usize) -> Vec<u64> {
    let order = Random::new(seed).permutation(pages);
    order.into_iter().take(count).map(|page| page * BLOCK as u64).collect()
}

/// A round that reads from the file, and the checks of its bytes.
fn read(
    file: &TestFile,
    turn: &Turn<'_>,
    round: &Arrived,
    work: impl FnOnce(Option<&Check<'_>>) -> Outcome<()>,
) -> Result<Sample> {
    let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
    let check: Option<&Check<'_>> = if round.verify { Some(&matches) } else { None };
    let (sample, ()) = turn.sample(work(check), |error| turn.failed(error))?;
    turn.require_right(&sample)?;
    turn.require_sampled(&sample, file)?;
    Ok(sample)
}

/// Appends what arrives in one way, and checks its records. `limits`: the option by which it needs
/// less room.
pub(super) fn append(
    way: Part<dyn AppendWay>,
    turn: &Turn<'_>,
    round: &Arrived,
    (folder, seed): (&Path, u64),
    limits: &str,
) -> Result<Sample> {
    let records = Records::new(seed.wrapping_add(round.seed));
    let cancel = turn.cancel;
    let mut file = testfile::create_nameless(folder)?;
    let room = (way.room(RECORD) * round.count) as u64;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => no_room(room, limits, folder, &error.to_string()),
        _ => turn.failed(error),
    };
    fill(&mut file, room, cancel).map_err(failed)?;
    // Else the first direct write to a page would have to drop it.
    if way.direct() {
        sys::drop_cache(&file).map_err(failed)?;
    }
    let (count, pace) = (round.count, &round.pace);
    let job = Appends { file: &file, folder, size: RECORD, depth: IN_FLIGHT, count, pace, records, cancel };
    let holds = |number: u64, record: &[u8]| records.holds(number, record);
    let check: Option<&Check<'_>> = if round.verify { Some(&holds) } else { None };
    let outcome = alone(check, |clock| way.appends(&job, clock));
    let (sample, found) = turn.sample(outcome, failed)?;
    turn.require("records", &sample, (count as u64, (count * RECORD) as u64))?;
    if let Some(number) = sample.wrong {
        return Err(turn.failed(format!("record {number} is not where it should be")));
    }
    if round.verify && found != count {
        return Err(turn.failed(format!("it found {found} of its {count} records")));
    }
    // Now, and not on the clock of whoever comes next.
    discard(&file).map_err(failed)?;
    Ok(sample)
}

fn discard(file: &File) -> io::Result<()> {
    file.set_len(0).and_then(|()| file.sync_all())
}

/// Inputs of a round, the same for all ways.
pub(super) struct Arrived {
    pub(super) pace: Pace,
    pub(super) count: usize,
    pub(super) seed: u64,
    pub(super) verify: bool,
}

/// One way, once.
pub(super) type Work<'a, W> = dyn Fn(Part<W>, &Turn<'_>, &Arrived) -> Result<Sample> + 'a;

/// Measures one rate after the other with the ways that keep them. `most`: operations that a round
/// can have.
fn sweep<W: ?Sized>(
    table: &'static str,
    arriving: Arriving,
    mut ways: Vec<Part<W>>,
    most: usize,
    run: &mut Run<'_>,
    work: &Work<'_, W>,
) -> Result<()> {
    let options = run.options;
    for rate in rates(arriving, options) {
        if ways.is_empty() {
            break;
        }
        let name = format!("{} rate={rate}", arriving.name());
        let count = (rate as f64 * options.load_time.as_secs_f64()) as usize;
        let mut case = Bench {
            table,
            name: &name,
            ways: &ways,
            rate: rate as f64,
            count: count.clamp(1, most.max(1)),
            seed: options.seed.wrapping_add((rate as u64) << 24),
            cancel: run.cancel,
            work,
            arrived: None,
        };
        let timed = run.case(table, &name, &ways, &mut case)?;
        let offered = Figures { offered_per_s: Some(rate as f64) };
        let of_rate: Vec<Row> = rows(table, &name, &ways, &timed).into_iter().map(|row| row.with(offered)).collect();
        let behind: Vec<&str> = of_rate.iter().filter(|row| !keeps(row)).map(|row| row.way.as_str()).collect();
        if !behind.is_empty() {
            let text = format!("{table} {name}: not kept by {}, without rows at higher rates", listed(&behind));
            run.report.note(Code::LoadMissed, text);
        }
        ways.retain(|way| !behind.contains(&way.name()));
        run.report.rows.extend(of_rate);
    }
    Ok(())
}

fn rates(arriving: Arriving, options: &Options) -> Vec<usize> {
    if !options.rates.is_empty() {
        return options.rates.clone();
    }
    let factor = if options.quick { QUICK_FACTOR } else { FACTOR };
    std::iter::successors(Some(arriving.low()), |rate| Some(rate * factor).filter(|rate| *rate <= RATE_MAX)).collect()
}

/// One kind of work at one rate.
pub(super) struct Bench<'a, W: ?Sized + 'static> {
    pub(super) table: &'a str,
    pub(super) name: &'a str,
    pub(super) ways: &'a [Part<W>],
    pub(super) rate: f64,
    /// Operations of a timed round.
    pub(super) count: usize,
    pub(super) seed: u64,
    pub(super) cancel: &'a AtomicBool,
    pub(super) work: &'a Work<'a, W>,
    pub(super) arrived: Option<Arrived>,
}

impl<W: ?Sized> interleave::Case for Bench<'_, W> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn prepare(&mut self, stage: Stage) {
        let verify = stage == Stage::Verify;
        let count = if verify { self.count.min(VERIFIED) } else { self.count };
        let mut random = stage.random(self.seed);
        let pace = Pace::poisson(self.rate, count, &mut random);
        self.arrived = Some(Arrived { pace, count, seed: random.number(), verify });
    }

    fn round(&mut self, way: usize, _: Stage) -> Result<Sample> {
        let way = self.ways[way];
        let turn = Turn { way: way.name(), table: self.table, case: self.name, cancel: self.cancel };
        let arrived = self.arrived.as_ref().ok_or_else(|| turn.failed("its round has no arrivals"))?;
        (self.work)(way, &turn, arrived)
    }
}

impl Table for Load {
    fn name(&self) -> &'static str {
        "load"
    }

    fn about(&self) -> &'static str {
        "Latency of cold reads, gathers and durable appends that arrive by chance, by their rate"
    }

    fn title(&self) -> &'static str {
        "load: reads, gathers and appends that arrive by chance (Poisson), by offered rate; achieved/s"
    }

    fn ranked(&self) -> bool {
        false
    }

    fn toured(&self) -> bool {
        false
    }

    fn ways(&self) -> Vec<&'static str> {
        each_once(Arriving::ALL.into_iter().flat_map(|arriving| self.names(arriving)))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--loads", "--rates"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        let asked = Self::asked(options);
        if options.file.is_some() && asked.contains(&Arriving::Log) {
            return Err(usage("--file is only read; leave log out of --loads"));
        }
        let all: Vec<&str> = asked.iter().flat_map(|&arriving| self.names(arriving)).collect();
        if !all.iter().any(|way| options.chooses(way)) {
            let mut all = all;
            all.sort_unstable();
            all.dedup();
            let text = "none of --ways is in the table load with these --loads; choose among";
            return Err(usage(format!("{text} {}", all.join(", "))));
        }
        Ok(())
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        let reads = Self::asked(options).iter().any(|arriving| *arriving != Arriving::Log);
        reads.then(|| file_size(options))
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        let most = (RATE_MAX * RECORD) as f64 * options.load_time.as_secs_f64();
        let log = Self::asked(options).contains(&Arriving::Log);
        log.then_some((most as u64, "at most; a new one for each round, filled with zeros, without a name"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        let of = |arriving: Arriving| {
            let ways = self.names(arriving).into_iter().filter(|way| options.chooses(way)).count();
            vec![ways; rates(arriving, options).len()]
        };
        Self::asked(options).into_iter().flat_map(of).collect()
    }

    fn round_time(&self, options: &Options) -> Duration {
        options.load_time
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let _exact = ExactTimers::set()?;
        for arriving in Self::asked(run.options) {
            match (phase, arriving) {
                (Phase::File, Arriving::Reads) => self.reads(run.test_file()?, run)?,
                (Phase::File, Arriving::Gather) => self.gathers(run.test_file()?, run)?,
                (Phase::Directory, Arriving::Log) => self.appends(run)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] =
            &[Grid::Rows { name: "from arrival", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[OFFERED, SHARE]
    }

    fn curves(&self) -> &'static [Curve] {
        CURVES
    }

    fn latency(&self) -> &'static str {
        "Latency from arrival"
    }

    fn findings(&self, report: &Report) -> Vec<String> {
        // Of a part of the rates nobody knows whether the highest is the highest that is kept.
        if report.partial.is_some() {
            return Vec::new();
        }
        Arriving::ALL.into_iter().filter_map(|arriving| finding(report, self.name(), arriving)).collect()
    }
}

/// The latencies of one kind of work at the highest rate that every way keeps, and the highest that
/// each keeps.
fn finding(report: &Report, table: &str, arriving: Arriving) -> Option<String> {
    let cases = report.cases(table);
    let begins = format!("{} rate=", arriving.name());
    let cases: Vec<&Vec<&Row>> =
        cases.iter().filter(|(case, _)| case.starts_with(&begins)).map(|(_, rows)| rows).collect();
    let (first, name) = (cases.first()?, arriving.name());
    let rate = |row: &Row| row.figures::<Figures>().offered_per_s.unwrap_or(0.0);
    let all = cases.iter().rev().find(|rows| rows.len() == first.len() && rows.iter().all(|row| keeps(row)));
    let mut text = format!("{table} {name}: ");
    match all {
        Some(rows) => {
            let rate = short(rows.first().map_or(0.0, |row| rate(row)));
            text += &format!("at {rate}/s, the highest rate that all ways keep, p99 from arrival is {}", by_p99(rows));
        }
        None => text += "no rate is kept by all ways",
    }
    let most = |way: &&Row| {
        let rows = cases.iter().flat_map(|rows| rows.iter()).filter(|row| row.way == way.way && keeps(row));
        Some(format!("{} {}", way.way, short(rows.map(|row| rate(row)).reduce(f64::max)?)))
    };
    let highest: Vec<String> = first.iter().filter_map(most).collect();
    if !highest.is_empty() {
        text += &format!("; the highest rate that each keeps is {}", listed(&highest));
    }
    Some(text + ".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Latency;

    fn row(case: &str, way: &str, offered: f64, achieved: f64, p99: u64) -> Row {
        let latency_ns = Some(Latency { p99, ..Latency::default() });
        let (table, case, way) = ("load".to_owned(), case.to_owned(), way.to_owned());
        let row = Row { table, case, way, ops_per_s: achieved, latency_ns, ..Row::default() };
        row.with(Figures { offered_per_s: Some(offered) })
    }

    #[test]
    fn a_finding_is_of_the_highest_rate_that_all_keep() {
        let rows = vec![
            row("reads rate=1000", "threads", 1000.0, 1000.0, 300_000),
            row("reads rate=1000", "nowait", 1000.0, 999.0, 200_000),
            row("reads rate=2000", "threads", 2000.0, 1950.0, 500_000),
            row("reads rate=2000", "nowait", 2000.0, 2000.0, 250_000),
            row("reads rate=4000", "threads", 4000.0, 2500.0, 90_000_000),
            row("reads rate=4000", "nowait", 4000.0, 3990.0, 270_000),
            row("reads rate=8000", "nowait", 8000.0, 5000.0, 80_000_000),
            row("log rate=500", "nowait", 500.0, 100.0, 80_000_000),
        ];
        let report = Report { rows, ..Report::default() };
        assert_eq!(
            LOAD.findings(&report),
            [
                "load reads: at 2.00k/s, the highest rate that all ways keep, p99 from arrival is nowait 250 µs and \
                 threads 500 µs; the highest rate that each keeps is threads 2.00k and nowait 4.00k.",
                "load log: no rate is kept by all ways."
            ]
        );
        let said = crate::report::verdict::sentences(&report).join("\n");
        assert!(!said.contains("quickest") && said.contains("highest rate"), "{said}");
        let partial = Report { partial: Some("interrupted".to_owned()), ..report };
        assert!(LOAD.findings(&partial).is_empty());
    }
}
