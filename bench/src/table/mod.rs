//! The tables and their declarations.
//!
//! A table is one [`Table`], declared in one file, and its line in [`TABLES`]. It has [`Case`]s. A
//! case has a name, the ways that take part, the length of a round, and a function that creates its
//! state: a [`Bench`], which prepares the inputs of a round, and runs one way once.
//!
//! [`Run`] (`measure/run.rs`) contains the common code: choice of ways, refusals, verification,
//! warm-up, rounds, the order of turns, the control, notes, rows and progress. A figure of only one
//! table is added to the sample of a round ([`Sample::tell`]); a [`Column`] shows it.
//!
//! ```ignore
//! pub static OPENS: Table = Table {
//!     name: "opens",
//!     about: "A file is opened and closed",
//!     title: "opens: a file is opened and closed; operations/s",
//!     file_size: |_| Some(1 << 20),
//!     cases: |options| {
//!         let open = |ways, _: &mut Run<'_>| Ok(Some(Opens { ways, count: 0 }));
//!         vec![Case::new("hot", ways::openers(options.roster), Work::For(options.round_time), open)]
//!     },
//!     ..Table::USUAL
//! };
//!
//! impl Bench for Opens {
//!     fn prepare(&mut self, _: &Place<'_>, _: Stage, operations: usize) -> Result<()> {
//!         self.count = operations;
//!         Ok(())
//!     }
//!
//!     fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
//!         let (way, path) = (self.ways[turn.index], turn.file()?.path());
//!         let outcome = alone(None, |round| way.opens(path, self.count, round));
//!         turn.complete("opens", (self.count as u64, 0), outcome).map(|(sample, ())| sample)
//!     }
//! }
//! ```

pub mod cache;
mod choice;
pub mod columns;
pub mod files;
pub mod load;
pub mod log;
pub mod mixed;
pub mod reads;
pub mod scan;
pub mod writes;

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::load::{Transfers, device_under};
use crate::machine::testfile::{self, TestFile, free_bytes, require_room};
use crate::measure::figure::Figure;
use crate::measure::meter::Sample;
use crate::measure::options::Options;
use crate::measure::pace::{ExactTimers, Pace};
use crate::measure::progress::{Length, Plan, Planned};
pub use crate::measure::run::Run;
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::{Buffer, Reads, Target};
use crate::random::Random;
use crate::report::figures::{mib, micro, short, size_of};
use crate::report::notes::Code;
use crate::report::{Latency, Report, Row};
use crate::sys::{self, PAGE};
use crate::ways::{self, Part, ReadWay, Way};
pub use choice::{asked, by_name, check, known, listed, ranks, to_ask_for};
use columns::*;

/// All tables, in the order of measurement.
pub static TABLES: &[&Table] = &[
    &reads::READS,
    &reads::CACHED,
    &reads::GATHER,
    &mixed::MIXED,
    &load::LOAD,
    &scan::SCAN,
    &files::FILES,
    &writes::WRITES,
    &writes::STALL,
    &log::LOG,
    &log::PIPELINED,
    &log::TASKS,
    &cache::HITS,
    &cache::MISSES,
    &cache::POLICY,
];

/// Declaration of a table.
#[derive(Debug)]
pub struct Table {
    /// Name in rows.
    pub name: &'static str,
    /// Table whose name on the command line selects this one; `None`: its own name.
    pub part_of: Option<&'static str>,
    /// One line of help.
    pub about: &'static str,
    /// Title above its figures.
    pub title: &'static str,
    /// Unit of `compared`, the figure that its cells compare.
    pub unit: &'static str,
    pub compared: fn(&Row) -> f64,
    /// Options of the command that apply to it, besides those for all tables.
    pub takes: &'static [&'static str],
    /// Measured by default if other options are given.
    pub usual: bool,
    /// Measured by `tour`.
    pub toured: bool,
    /// Its speeds rank the ways; false where the rate is given.
    pub ranked: bool,
    /// Reads files in order through the page cache.
    pub in_order: bool,
    /// Default size of the test file; `None` if it needs no test file.
    pub file_size: fn(&Options) -> Option<u64>,
    /// Maximum number of bytes that it writes, and a description.
    pub writes_into: fn(&Options) -> Option<(u64, &'static str)>,
    pub cases: fn(&Options) -> Vec<Case>,
    /// Figures that only this table has, below the speeds.
    pub grids: &'static [Grid],
    /// Figures that the page draws along its axis instead of speed and processor time.
    pub curves: &'static [Curve],
    /// Name of the p99 of its latencies.
    pub latency: &'static str,
    /// First sentence of the verdict.
    pub advice: fn(&Report) -> Option<String>,
    /// Sentences after those that all tables have.
    pub findings: fn(&Report) -> Vec<String>,
}

impl Table {
    /// Values of most tables.
    pub const USUAL: Self = Self {
        name: "",
        part_of: None,
        about: "",
        title: "",
        unit: "ops/s",
        compared: |row| row.ops_per_s,
        takes: &[],
        usual: false,
        toured: false,
        ranked: true,
        in_order: false,
        file_size: |_| None,
        writes_into: |_| None,
        cases: |_| Vec::new(),
        grids: &[],
        curves: &[],
        latency: "p99 latency, µs",
        advice: |_| None,
        findings: |_| Vec::new(),
    };

    /// Returns its name on the command line.
    pub fn asked_as(&self) -> &'static str {
        self.part_of.unwrap_or(self.name)
    }

    /// Returns the names of the ways that take part with these options, each once.
    pub fn ways(&self, options: &Options) -> Vec<&'static str> {
        let mut names = Vec::new();
        for entrant in (self.cases)(options).iter().flat_map(|case| &case.ways) {
            if entrant.refused.is_none() && !names.contains(&entrant.way.name) {
                names.push(entrant.way.name);
            }
        }
        names
    }

    fn planned(&self, options: &Options) -> Planned {
        let cases = wanted(self, options);
        let length = |case: &Case| case.length(options).share(cases.len());
        let of = |case: &Case| (case.entrants(options).filter(|(_, way)| way.refused.is_none()).count(), length(case));
        Planned::of(self.name, &cases.iter().map(of).collect::<Vec<_>>())
    }
}

/// Returns the cases of a table, or only those in `options.cases`.
pub(crate) fn wanted(table: &Table, options: &Options) -> Vec<Case> {
    let mut cases = (table.cases)(options);
    cases.retain(|case| options.cases.is_empty() || options.cases.contains(&case.name));
    cases
}

/// Plans a run of these tables, and estimates its time. `file`: size in bytes of the test file to
/// create.
pub fn plan(tables: &[&'static Table], options: &Options, file: Option<u64>) -> Plan {
    let tables = tables.iter().map(|table| table.planned(options)).collect();
    Plan { file_s: file.map_or(0.0, Plan::writing_s), tables }
}

/// The work of a round.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// The work of a way of average speed in this time, measured by the warm-up. A round of the
    /// slowest way takes at most four times as long.
    For(Duration),
    /// This number of operations, with their estimated time.
    Exactly(usize, Duration),
}

/// Opens a case: creates the state that its rounds share. `None` if it is omitted with a note.
pub(crate) type Open = Box<dyn FnOnce(&mut Run<'_>) -> Result<Option<Box<dyn Bench>>>>;

/// A case of a table: every way does the same work from the same state.
pub struct Case {
    pub name: String,
    pub ways: Vec<Entrant>,
    pub(crate) work: Work,
    pub(crate) phase: Phase,
    beside: Duration,
    pub(crate) open: Open,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("ways", &self.ways).finish_non_exhaustive()
    }
}

/// A way of a case, and the reason if it cannot take part.
#[derive(Debug)]
pub struct Entrant {
    pub way: &'static Way,
    pub refused: Option<String>,
}

impl Case {
    /// Creates a case; `open` gets these ways in the same order.
    pub fn new<W: ?Sized, B: Bench + 'static>(
        name: impl Into<String>,
        ways: Vec<Part<W>>,
        work: Work,
        open: impl FnOnce(Vec<Part<W>>, &mut Run<'_>) -> Result<Option<B>> + 'static,
    ) -> Self {
        let entrants = ways.iter().map(|part| Entrant { way: part.way, refused: None }).collect();
        let open = move |run: &mut Run<'_>| Ok(open(ways, run)?.map(|bench| Box::new(bench) as Box<dyn Bench>));
        let (name, phase, open) = (name.into(), Phase::File, Box::new(open));
        Self { name, ways: entrants, work, phase, beside: BESIDE, open }
    }

    /// Measures it after the removal of the test file, since it writes new files.
    pub fn in_directory(self) -> Self {
        Self { phase: Phase::Directory, ..self }
    }

    /// Sets the time of a turn besides its round.
    pub fn beside(self, beside: Duration) -> Self {
        Self { beside, ..self }
    }

    /// Sets for each way, in order, the reason why it cannot take part in this case.
    pub fn refusing(mut self, why: impl IntoIterator<Item = Option<String>>) -> Self {
        self.ways.iter_mut().zip(why).for_each(|(entrant, why)| entrant.refused = why);
        self
    }

    /// Returns the selected ways, with their index in the case.
    pub(crate) fn entrants(&self, options: &Options) -> impl Iterator<Item = (usize, &Entrant)> {
        self.ways.iter().enumerate().filter(|(_, entrant)| options.chooses(entrant.way.name))
    }

    pub(crate) fn length(&self, options: &Options) -> Length {
        let (round, before) = match self.work {
            Work::For(time) => (time, 2),
            Work::Exactly(_, guess) => (guess, 1),
        };
        Length { round, beside: self.beside, before, rounds: options.rounds, budget: options.budget }
    }
}

/// A case, ready to be measured.
pub trait Bench {
    /// Returns whether the way with this index and name takes part.
    fn takes(&self, _index: usize, _name: &str) -> bool {
        true
    }

    /// Prepares the inputs of the next round, the same for all ways: about `operations` operations.
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()>;

    /// Brings the case into its state, and runs one way once.
    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample>;

    /// Adds notes on the rows of the case to the report.
    fn finish(&mut self, _name: &str, _rows: &[Row], _run: &mut Run<'_>) {}
}

/// The parts of a run, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// With the test file.
    File,
    /// After the removal of the test file, which frees its memory and disk space. New files are
    /// written.
    Directory,
}

impl Phase {
    pub const ALL: [Self; 2] = [Self::File, Self::Directory];
}

/// Time of a turn besides its round in most tables, for making the file cold and comparing bytes.
const BESIDE: Duration = Duration::from_millis(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::figure::Figure;
    use crate::measure::progress::Course;
    use crate::measure::turn::alone;
    use crate::ways::OURS;
    use crate::ways::{Does, LogWay, Roster};
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    /// A table with a bench that records its turns.
    static NOTED: Table = Table {
        name: "noted",
        cases: |options| {
            let refused = |way: &Part<dyn LogWay>| (way.name() == "c").then(|| "it cannot".to_owned());
            let case = |name: &str| {
                let ways = crate::ways::loggers(options.roster);
                let why: Vec<Option<String>> = ways.iter().map(refused).collect();
                let open = |_, _: &mut Run<'_>| Ok(Some(Noting { operations: 0 }));
                Case::new(name, ways, Work::For(options.round_time), open).refusing(why)
            };
            vec![case("first"), case("other")]
        },
        ..Table::USUAL
    };

    struct Noting {
        operations: usize,
    }

    thread_local! {
        static TURNS: RefCell<Vec<(usize, Stage, usize)>> = const { RefCell::new(Vec::new()) };
    }

    impl Bench for Noting {
        fn prepare(&mut self, _: &Place<'_>, _: Stage, operations: usize) -> Result<()> {
            self.operations = operations;
            Ok(())
        }

        fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
            TURNS.with_borrow_mut(|turns| turns.push((turn.index, turn.stage, self.operations)));
            let outcome = alone(None, |round| {
                round.start();
                (0..self.operations).for_each(|_| round.tally.wrote(0));
                round.stop();
                Ok(())
            });
            let (mut sample, ()) = turn.sample(outcome, |error| turn.failed(error))?;
            // Speeds of the ways, by index.
            sample.seconds = self.operations as f64 / [1000.0, 2000.0, 0.0, 100.0][turn.index];
            if let Stage::Timed(round) = turn.stage {
                sample.tell("round", Figure::median(round as f64));
                sample.tell("share", Figure::Ratio(round as f64, 10.0));
                sample.tell("all", Figure::Count(round as u64));
                sample.tell("not", Figure::Ratio(1.0, 0.0));
            }
            Ok(sample)
        }
    }

    struct Idle;

    impl LogWay for Idle {
        fn direct(&self) -> bool {
            false
        }

        fn commits(
            &self,
            _: &crate::measure::work::Commits<'_>,
            _: &mut crate::measure::meter::Round<'_>,
        ) -> std::io::Result<Option<u64>> {
            Ok(None)
        }
    }

    static WAYS: Roster = &[
        &Way::new("a", "", &[Does::Commits(&Idle)]),
        &Way::new(OURS, "", &[Does::Commits(&Idle)]),
        &Way::new("c", "", &[Does::Commits(&Idle)]),
        &Way::new("slow", "", &[Does::Commits(&Idle)]),
        &Way::new("elsewhere", "", &[]),
    ];

    fn measured(options: &Options) -> (Report, Vec<(usize, Stage, usize)>) {
        TURNS.with_borrow_mut(Vec::clear);
        let (mut report, cancel) = (Report::default(), AtomicBool::new(false));
        let mut course = Course::new(plan(&[&NOTED], options, None), indicatif::ProgressBar::hidden());
        let mut run = Run { options, file: None, cancel: &cancel, course: &mut course, report: &mut report };
        run.measure(&[&NOTED], &Phase::ALL).unwrap();
        (report, TURNS.take())
    }

    fn options() -> Options {
        let round_time = Duration::from_secs(10);
        let budget = Duration::from_secs(3600);
        Options { roster: WAYS, rounds: Some(60), round_time, budget, ..Options::new(false, 1) }
    }

    #[test]
    fn ways_take_turns_in_orders_by_seed_and_ours_has_two() {
        let (report, turns) = measured(&options());
        assert_eq!(turns, measured(&options()).1);
        let (first, other) = turns.split_at(turns.len() / 2);
        assert!(first.len() == 3 * 62 + 60 && first != other);
        let of = |round| first.iter().filter(move |(_, stage, _)| *stage == Stage::Timed(round)).map(|turn| turn.0);
        let orders: BTreeSet<Vec<usize>> = (0..60).map(|round| of(round).collect()).collect();
        assert_eq!(orders.len(), 12, "all orders of two others and ours twice");
        assert!(orders.iter().all(|order| order.iter().filter(|&&way| way == 1).count() == 2), "{orders:?}");
        // 256 operations to verify. Then at 400/s, four times the slowest way's speed: a fifth of
        // ten seconds, and all of it.
        let operations: BTreeSet<usize> = first.iter().map(|turn| turn.2).collect();
        assert_eq!(operations, BTreeSet::from([256, 800, 4000]));
        let rows: Vec<_> = report.rows.iter().map(|row| (&*row.case, &*row.way, row.rounds.len())).collect();
        let of = |case| [(case, "a", 60), (case, OURS, 60), (case, "slow", 60)];
        assert_eq!(rows, [of("first"), of("other")].concat());
        assert!(report.controls.iter().all(|control| control.way == OURS && control.again.len() == 60));
        assert!(report.notes.iter().any(|note| note.text.contains("noted: c is left out: it cannot")));
    }

    #[test]
    fn figures_of_rounds_are_summed_up_as_their_kind_says() {
        let (report, _) = measured(&Options { rounds: Some(3), ways: vec!["a".to_owned()], ..options() });
        assert_eq!(report.rows.len(), 2);
        let own = serde_json::to_value(&report.rows[0].own).unwrap();
        assert_eq!(own, serde_json::json!({ "round": 1.0, "share": 0.1, "all": 3 }));
    }

    #[test]
    fn cheap_rounds_are_many_and_cases_can_be_asked_for_by_name() {
        let wish = Options { rounds: None, cases: vec!["other".to_owned()], ..options() };
        let (report, _) = measured(&wish);
        let rounds: Vec<usize> = report.rows.iter().map(|row| row.rounds.len()).collect();
        assert_eq!(rounds, [crate::measure::progress::ROUNDS_MAX; 3]);
        let plan = plan(&[&NOTED], &wish, Some(250_000_000));
        assert_eq!((plan.tables[0].cases, plan.file_s), (1, 1.0));
    }
}
