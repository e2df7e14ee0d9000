//! The table `load`: operations that arrive at random times, at a rate that doubles until no way
//! keeps up.
//!
//! Arrivals are a Poisson process, drawn by seed for each round and equal for all its ways. Latency
//! counts from the arrival, so an operation that starts late is slow, and every operation counts.
//! At most [`IN_FLIGHT`] operations are in flight; others wait, as in the queue of a pool. A way
//! that completes less than [`KEPT`] of the offered rate has no rows at higher rates, where its
//! latencies would show the length of a round.
//!
//! Reads and gathers use a file that is cold before each round, and read no page twice in a round.
//! All their bytes are compared in the first round of each rate, checksums of some in the others.
//! Records are read back after the first round.

use clap::ValueEnum;

use super::log::Appending;
use super::reads::file_size_of_reads;
use super::*;
use crate::measure::meter::Round;
use crate::measure::options::{Arriving, RATE_MAX, name};
use crate::measure::work::Gathers;
use crate::report::figures::share;
use crate::ways::{GatherWay, LogWay};

pub static LOAD: Table = Table {
    name: "load",
    about: "Latency of cold reads, gathers and durable appends that arrive at random times, by rate",
    title: "load: reads, gathers and appends that arrive at random times (Poisson), by offered rate; achieved/s",
    takes: &["loads", "rates"],
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
            Column { name: "offered/s", cell: |row| row.figure("offered_per_s").map(short) },
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
        // With some of the rates missing, the highest sustained rate is unknown.
        if report.partial.is_some() {
            return Vec::new();
        }
        Arriving::value_variants().iter().filter_map(|arriving| finding(report, *arriving)).collect()
    },
    ..Table::USUAL
};

/// Maximum number of operations in flight: threads of a pool, tasks, or buffers.
const IN_FLIGHT: usize = 64;
/// A way sustains a rate if it completes at least this share of it.
const KEPT: f64 = 0.95;

const BLOCK: usize = 4 << 10;
/// Number of records in a gather.
const RECORDS: usize = 64;
/// Size of a log record.
const RECORD: usize = 100;

/// Returns the selected kinds of operations.
fn asked(options: &Options) -> Vec<Arriving> {
    match (&options.loads[..], options.quick) {
        ([], true) => vec![Arriving::Reads],
        // A user's file is only read.
        ([], false) if options.file.is_some() => vec![Arriving::Reads, Arriving::Gather],
        ([], false) => Arriving::value_variants().into(),
        (asked, _) => asked.into(),
    }
}

/// Returns the achieved share of the offered rate.
fn kept(row: &Row) -> Option<f64> {
    Some(row.ops_per_s / row.figure("offered_per_s")?)
}

fn keeps(row: &Row) -> bool {
    kept(row).is_some_and(|share| share >= KEPT)
}

/// Returns a case for each rate.
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
            let (exact, inputs) = (ExactTimers::set()?, ArrivalInputs::default());
            Ok(Some(LoadCase { does, rate: rate as f64, behind, inputs, _exact: exact }))
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
struct LoadCase {
    does: Doing,
    rate: f64,
    /// Ways that did not sustain a lower rate.
    behind: Rc<RefCell<Vec<String>>>,
    inputs: ArrivalInputs,
    _exact: ExactTimers,
}

/// Inputs of a round, the same for all ways.
#[derive(Default)]
struct ArrivalInputs {
    pace: Option<Pace>,
    count: usize,
    offsets: Vec<u64>,
    seed: u64,
}

impl Bench for LoadCase {
    fn takes(&self, _: usize, name: &str) -> bool {
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
            // No page occurs twice.
            let pages = place.file()?.size() / BLOCK as u64;
            count = count.clamp(1, (pages as usize / records.max(1)).max(1));
            let order = Random::new(seed).permutation(pages).into_iter();
            offsets = order.take(count * records).map(|page| page * BLOCK as u64).collect();
        }
        let pace = Some(Pace::poisson(self.rate, count, &mut random));
        self.inputs = ArrivalInputs { pace, count, offsets, seed };
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let ArrivalInputs { pace, count, offsets, .. } = &self.inputs;
        let (count, cancel, offsets) = (*count as u64, turn.cancel, &offsets[..]);
        let pace = pace.as_ref().ok_or_else(|| turn.failed("its round has no arrivals"))?;
        let index = turn.index;
        let mut sample = match &self.does {
            Doing::Appends(ways) => {
                let (writers, seed, pace, limits) = (IN_FLIGHT, self.inputs.seed, Some(pace), "--rates");
                let appending = Appending { writers, in_flight: 1, size: RECORD, commits: count, pace, seed, limits };
                appending.by(ways[index], turn)?.0
            }
            Doing::Gathers(ways) => read(turn, (count, offsets), RECORDS, |target, buffer, clock| {
                let job = Gathers { target, block: BLOCK, records: RECORDS, depth: IN_FLIGHT, offsets, pace, cancel };
                ways[index].gathers(&job, buffer, clock)
            })?,
            Doing::Reads(ways) => read(turn, (count, offsets), 1, |target, buffer, clock| {
                let job = Reads { target, block: BLOCK, depth: IN_FLIGHT, offsets, pace: Some(pace), cancel };
                ways[index].reads(&job, buffer, clock)
            })?,
        };
        // The row's own speed is the achieved rate.
        sample.tell("offered_per_s", Figure::median(self.rate));
        Ok(sample)
    }

    fn finish(&mut self, name: &str, rows: &[Row], run: &mut Run<'_>) {
        let behind: Vec<String> = rows.iter().filter(|row| !keeps(row)).map(|row| row.way.clone()).collect();
        if !behind.is_empty() {
            let text = format!("load {name}: {} did not sustain this rate; no rows at higher rates", listed(&behind));
            run.report.note(Code::LoadMissed, text);
        }
        self.behind.borrow_mut().extend(behind);
    }
}

/// Reads these pages of the cold file by one way, `pages` for each operation.
fn read(
    turn: &Turn<'_>,
    (count, offsets): (u64, &[u64]),
    pages: usize,
    work: impl FnOnce(Target<'_>, &mut [u8], &mut Round<'_>) -> io::Result<()>,
) -> Result<Sample> {
    let file = turn.file()?;
    file.make_cold()?;
    let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
    let mut buffer = Buffer::new(pages * BLOCK * IN_FLIGHT);
    let outcome = alone(turn.check(&matches), |clock| work(Target::of(file), buffer.bytes(), clock));
    let (sample, ()) = turn.complete("operations", (count, (offsets.len() * BLOCK) as u64), outcome)?;
    turn.require_sampled(&sample, file)?;
    Ok(sample)
}

/// Reports the latencies of one kind of work at the highest rate that all ways sustain, and the
/// highest rate of each way.
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
            text += &format!("p99 from arrival at {rate}/s, the highest rate that all ways sustain: {}", by_p99(rows));
        }
        None => text += "no rate is sustained by all ways",
    }
    let most = |way: &&Row| {
        let rows = cases.iter().flat_map(|rows| rows.iter()).filter(|row| row.way == way.way && keeps(row));
        Some(format!("{} {}", way.way, short(rows.map(|row| rate(row)).reduce(f64::max)?)))
    };
    let highest: Vec<String> = first.iter().filter_map(most).collect();
    if !highest.is_empty() {
        text += &format!("; highest rate of each: {}", listed(&highest));
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
                "load reads: p99 from arrival at 2.00k/s, the highest rate that all ways sustain: nowait 250 µs and \
                 threads 500 µs; highest rate of each: threads 2.00k and nowait 4.00k.",
                "load log: no rate is sustained by all ways."
            ]
        );
        let said = crate::report::verdict::sentences(&report).join("\n");
        assert!(!said.contains("quickest") && said.contains("highest rate"), "{said}");
        let partial = Report { partial: Some("interrupted".to_owned()), ..report };
        assert!((LOAD.findings)(&partial).is_empty());
    }
}
