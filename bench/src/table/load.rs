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

use std::cell::RefCell;
use std::rc::Rc;

use clap::ValueEnum;

use super::columns::{CPU, Column, Curve, Grid, LONGEST, P50, P99, P999, by_p99, own_short};
use super::log::{discard, zeros};
use super::reads::file_size_of_reads;
use super::{Bench, Case, Run, Table, Work, listed};
use crate::error::Result;
use crate::machine::testfile;
use crate::measure::figure::Figure;
use crate::measure::meter::{Sample, Sampled};
use crate::measure::options::{Arriving, Options, RATE_MAX, name};
use crate::measure::pace::{ExactTimers, Pace};
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::{Buffer, Commits, Gathers, Reads, Records, Target};
use crate::random::Random;
use crate::report::figures::{share, short};
use crate::report::notes::Code;
use crate::report::{Report, Row};
use crate::sys;
use crate::ways::{self, GatherWay, LogWay, Part, ReadWay};

pub static LOAD: Table = Table {
    name: "load",
    about: "Latency of cold reads, gathers and durable appends that arrive by chance, by their rate",
    title: "load: reads, gathers and appends that arrive by chance (Poisson), by offered rate; achieved/s",
    takes: &["--loads", "--rates"],
    ranked: false,
    file_size: |options| {
        let reads = asked(options).iter().any(|arriving| *arriving != Arriving::Log);
        file_size_of_reads(options).filter(|_| reads)
    },
    writes_into: |options| {
        let most = (RATE_MAX * RECORD) as f64 * options.load_time.as_secs_f64();
        let log = asked(options).contains(&Arriving::Log);
        log.then_some((most as u64, "at most; a new one for each round, filled with zeros, without a name"))
    },
    cases: |options| asked(options).into_iter().flat_map(|arriving| cases(arriving, options)).collect(),
    grids: &[Grid {
        name: "from arrival",
        is_detail: false,
        columns: &[
            Column { name: "offered/s", cell: |row| own_short(row, "offered_per_s") },
            Column { name: "achieved/s", cell: |row| Some(short(row.ops_per_s)) },
            Column { name: "kept", cell: |row| kept(row).map(share) },
            P50,
            P99,
            P999,
            LONGEST,
            CPU,
        ],
    }],
    curves: &[
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
    ],
    findings: |report| {
        // Of a part of the rates nobody knows whether the highest is the highest that is kept.
        if report.partial.is_some() {
            return Vec::new();
        }
        Arriving::value_variants().iter().filter_map(|arriving| finding(report, *arriving)).collect()
    },
    ..Table::USUAL
};

/// Operations that are begun and not complete, at most: threads of a pool, tasks, or buffers.
const IN_FLIGHT: usize = 64;
/// A way keeps a rate if it does this share of what is offered, or more.
const KEPT: f64 = 0.95;

const BLOCK: usize = 4 << 10;
/// Records of a gather.
const RECORDS: usize = 64;
/// Bytes of a record of the log.
const RECORD: usize = 100;

/// Kinds of operations that are asked for.
fn asked(options: &Options) -> Vec<Arriving> {
    match (&options.loads[..], options.quick) {
        ([], true) => vec![Arriving::Reads],
        // A file of the user's is only read.
        ([], false) if options.file.is_some() => vec![Arriving::Reads, Arriving::Gather],
        ([], false) => Arriving::value_variants().into(),
        (asked, _) => asked.into(),
    }
}

/// Share of the arrivals that the row kept up with.
fn kept(row: &Row) -> Option<f64> {
    Some(row.ops_per_s / row.figure("offered_per_s")?)
}

fn keeps(row: &Row) -> bool {
    kept(row).is_some_and(|share| share >= KEPT)
}

/// One rate after the other.
fn cases(arriving: Arriving, options: &Options) -> Vec<Case> {
    let first = match arriving {
        Arriving::Reads => 2000,
        Arriving::Gather => 100,
        Arriving::Log => 500,
    };
    let factor = if options.quick { 4 } else { 2 };
    let doubling = std::iter::successors(Some(first), |rate| Some(rate * factor).filter(|rate| *rate <= RATE_MAX));
    let rates: Vec<usize> = if options.rates.is_empty() { doubling.collect() } else { options.rates.clone() };
    let behind: Rc<RefCell<Vec<String>>> = Rc::default();
    let case = |rate: usize| {
        let name = format!("{} rate={rate}", name(arriving));
        let count = ((rate as f64 * options.load_time.as_secs_f64()) as usize).max(1);
        let work = Work::Exactly(count, options.load_time);
        let behind = behind.clone();
        let arrivals = move |does| {
            let (exact, inputs) = (ExactTimers::set()?, Inputs::default());
            Ok(Some(Arrivals { does, rate: rate as f64, behind, inputs, _exact: exact }))
        };
        let roster = options.roster;
        match arriving {
            Arriving::Reads => {
                Case::new(name, ways::load_readers(roster), work, |ways, _| arrivals(Doing::Reads(ways)))
            }
            Arriving::Gather => {
                Case::new(name, ways::load_gatherers(roster), work, |ways, _| arrivals(Doing::Gathers(ways)))
            }
            Arriving::Log => {
                Case::new(name, ways::load_appenders(roster), work, |ways, _| arrivals(Doing::Appends(ways)))
                    .in_directory()
            }
        }
    };
    rates.into_iter().map(case).collect()
}

enum Doing {
    Reads(Vec<Part<dyn ReadWay>>),
    Gathers(Vec<Part<dyn GatherWay>>),
    Appends(Vec<Part<dyn LogWay>>),
}

/// One kind of work at one rate, ready to be measured.
struct Arrivals {
    does: Doing,
    rate: f64,
    /// Ways that have not kept a lower rate.
    behind: Rc<RefCell<Vec<String>>>,
    inputs: Inputs,
    _exact: ExactTimers,
}

/// Inputs of a round, the same for all ways.
#[derive(Default)]
struct Inputs {
    pace: Option<Pace>,
    count: usize,
    offsets: Vec<u64>,
    seed: u64,
}

impl Arrivals {
    /// Appends what arrives in one way, and checks its records.
    fn append(&self, way: Part<dyn LogWay>, pace: &Pace, turn: &Turn<'_>) -> Result<Sample> {
        let Inputs { count, seed, .. } = self.inputs;
        let (folder, cancel) = (turn.dir(), turn.cancel);
        let records = Records::new(turn.options.seed.wrapping_add(seed));
        let mut file = testfile::create_nameless(folder)?;
        let room = (way.room(RECORD) * count) as u64;
        let failed = |error| turn.failed_or_full(&error, room, "--rates", folder);
        zeros(&mut file, room, cancel).map_err(failed)?;
        // Else the first direct write to a page would have to drop it.
        if way.direct() {
            sys::drop_cache(&file).map_err(failed)?;
        }
        let (path, commits, pace) = (&*sys::path_of(&file), count as u64, Some(pace));
        let (writers, size) = (IN_FLIGHT, RECORD);
        let job = Commits { file: &file, path, folder, writers, in_flight: 1, size, commits, pace, records, cancel };
        let holds = |number: u64, record: &[u8]| records.holds(number, record);
        let outcome = alone(turn.check(&holds), |clock| {
            way.commits(&job, clock)?;
            Ok(clock.tally.found_records())
        });
        let (sample, found) = turn.sample(outcome, failed)?;
        turn.require("records", &sample, (count as u64, (count * RECORD) as u64))?;
        let differs = |found: &&Sampled| found.len != size || found.crc != records.checksum(size, found.offset);
        if let Some(number) = sample.wrong.or_else(|| Some(sample.sampled.iter().find(differs)?.offset)) {
            return Err(turn.failed(format!("record {number} is not where it should be")));
        }
        if !turn.verifies() && room > 0 && sample.sampled.is_empty() {
            return Err(turn.failed("it found none of its records in a timed round".to_owned()));
        }
        if turn.verifies() && found != count {
            return Err(turn.failed(format!("it found {found} of its {count} records")));
        }
        // Now, and not on the clock of whoever comes next.
        discard(&file).map_err(failed)?;
        Ok(sample)
    }
}

impl Bench for Arrivals {
    fn takes(&self, index: usize) -> bool {
        let name = match &self.does {
            Doing::Reads(ways) => ways[index].name(),
            Doing::Gathers(ways) => ways[index].name(),
            Doing::Appends(ways) => ways[index].name(),
        };
        !self.behind.borrow().iter().any(|behind| behind == name)
    }

    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let mut random = stage.random(place.options.seed.wrapping_add((self.rate as u64) << 24));
        let mut count = operations;
        let mut offsets = Vec::new();
        let records = match self.does {
            Doing::Reads(_) => Some(1),
            Doing::Gathers(_) => Some(RECORDS),
            Doing::Appends(_) => None,
        };
        let seed = random.number();
        if let Some(records) = records {
            // None of these pages twice.
            let pages = place.file()?.size() / BLOCK as u64;
            count = count.clamp(1, (pages as usize / records.max(1)).max(1));
            let order = Random::new(seed).permutation(pages).into_iter();
            offsets = order.take(count * records).map(|page| page * BLOCK as u64).collect();
        }
        let pace = Some(Pace::poisson(self.rate, count, &mut random));
        self.inputs = Inputs { pace, count, offsets, seed };
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let Inputs { pace, count, offsets, .. } = &self.inputs;
        let (count, cancel, offsets) = (*count as u64, turn.cancel, &offsets[..]);
        let pace = pace.as_ref().ok_or_else(|| turn.failed("its round has no arrivals"))?;
        let mut sample = if let Doing::Appends(ways) = &self.does {
            self.append(ways[turn.index], pace, turn)?
        } else {
            let file = turn.file()?;
            file.make_cold()?;
            let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
            let (target, check) = (Target::of(file), turn.check(&matches));
            let outcome = match &self.does {
                Doing::Gathers(ways) => {
                    let job =
                        Gathers { target, block: BLOCK, records: RECORDS, depth: IN_FLIGHT, offsets, pace, cancel };
                    let mut buffer = Buffer::new(job.output_len() * IN_FLIGHT);
                    alone(check, |clock| ways[turn.index].gathers(&job, buffer.bytes(), clock))
                }
                Doing::Reads(ways) => {
                    let job = Reads { target, block: BLOCK, depth: IN_FLIGHT, offsets, pace: Some(pace), cancel };
                    let mut buffer = Buffer::new(BLOCK * IN_FLIGHT);
                    alone(check, |clock| ways[turn.index].reads(&job, buffer.bytes(), clock))
                }
                Doing::Appends(_) => unreachable!("these are not of a file that is read"),
            };
            let (sample, ()) = turn.complete("operations", (count, (offsets.len() * BLOCK) as u64), outcome)?;
            turn.require_sampled(&sample, file)?;
            sample
        };
        // The row's own speed is what came of them.
        sample.tell("offered_per_s", Figure::median(self.rate));
        Ok(sample)
    }

    fn finish(&mut self, name: &str, rows: &[Row], run: &mut Run<'_>) {
        let behind: Vec<String> = rows.iter().filter(|row| !keeps(row)).map(|row| row.way.clone()).collect();
        if !behind.is_empty() {
            let text = format!("load {name}: not kept by {}, without rows at higher rates", listed(&behind));
            run.report.note(Code::LoadMissed, text);
        }
        self.behind.borrow_mut().extend(behind);
    }
}

/// The latencies of one kind of work at the highest rate that every way keeps, and the highest that
/// each keeps.
fn finding(report: &Report, arriving: Arriving) -> Option<String> {
    let cases = report.cases("load");
    let begins = format!("{} rate=", name(arriving));
    let cases: Vec<&Vec<&Row>> =
        cases.iter().filter(|(case, _)| case.starts_with(&begins)).map(|(_, rows)| rows).collect();
    let (first, name) = (cases.first()?, name(arriving));
    let rate = |row: &Row| row.figure("offered_per_s").unwrap_or(0.0);
    let all = cases.iter().rev().find(|rows| rows.len() == first.len() && rows.iter().all(|row| keeps(row)));
    let mut text = format!("load {name}: ");
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
        row.with(serde_json::json!({ "offered_per_s": offered }))
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
            (LOAD.findings)(&report),
            [
                "load reads: at 2.00k/s, the highest rate that all ways keep, p99 from arrival is nowait 250 µs and \
                 threads 500 µs; the highest rate that each keeps is threads 2.00k and nowait 4.00k.",
                "load log: no rate is kept by all ways."
            ]
        );
        let said = crate::report::verdict::sentences(&report).join("\n");
        assert!(!said.contains("quickest") && said.contains("highest rate"), "{said}");
        let partial = Report { partial: Some("interrupted".to_owned()), ..report };
        assert!((LOAD.findings)(&partial).is_empty());
    }
}
