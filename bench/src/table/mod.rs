//! The tables. A new one is a file with a [`Table`] in it, and its place in [`TABLES`]; an option
//! of its own is in the list of [`check`], too, as a test sees to.
//!
//! A table says what it is called, which ways it compares and how its figures are shown. It
//! measures its cases one after the other, each a [`Case`]: the work, and the state in which each
//! way finds it. The order of turns is the loop's
//! ([`interleave`]), not the table's.

pub mod cached;
pub mod columns;
pub mod copy;
pub mod files;
pub mod gather;
pub mod load;
pub mod log;
pub mod mixed;
pub mod new_file;
pub mod ranges;
pub mod reading;
pub mod reads;
pub mod readwrite;
pub mod scan;
pub mod stall;
pub mod writes;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::TestFile;
use crate::measure::interleave::{Case, interleave};
use crate::measure::meter::Sample;
use crate::measure::options::Options;
use crate::measure::progress::{Course, Length, Plan, Planned};
use crate::random::Random;
use crate::report::figures::micro;
use crate::report::fio;
use crate::report::{Control, Report, Row, median};
use crate::ways::{OURS, Part};
use columns::{Column, Curve, Grid, PageGrid};

/// Every table, in the order in which they are measured.
pub static TABLES: &[&dyn Table] = &[
    &reads::READS,
    &cached::CACHED,
    &gather::GATHER,
    &mixed::MIXED,
    &load::LOAD,
    &scan::SCAN,
    &files::FILES,
    &ranges::RANGES,
    &copy::COPY,
    &readwrite::READWRITE,
    &writes::WRITES,
    &stall::STALL,
    &log::LOG,
    &log::pipelined::PIPELINED,
    &log::pipelined::TASKS,
];

/// Cases of one kind of work, the ways that do it, and how its figures are shown.
pub trait Table: Sync {
    /// Names it in rows.
    fn name(&self) -> &'static str;

    /// Names it on the command line. Several tables may be asked for as one.
    fn asked_as(&self) -> &'static str {
        self.name()
    }

    /// Describes it in a line of help.
    fn about(&self) -> &'static str;

    /// Describes it above its figures.
    fn title(&self) -> &'static str;

    /// Unit of [`Table::compared`].
    fn unit(&self) -> &'static str {
        "ops/s"
    }

    /// The figure that its cells compare.
    fn compared(&self, row: &Row) -> f64 {
        row.ops_per_s
    }

    /// Names of the ways that take part, in their order.
    fn ways(&self) -> Vec<&'static str>;

    /// Options of the command that concern it, besides those that concern all.
    fn takes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns whether it is measured if no table is named, but `--quick`, `--file`, `--direct`,
    /// `--rate` or `--ways` is given. Without any of these all [toured](Table::toured) ones are.
    fn usual(&self) -> bool {
        false
    }

    /// Returns whether a run without any wish measures it, among all others.
    fn toured(&self) -> bool {
        true
    }

    /// Returns whether its speeds say which way is the quickest. They do not where the rate is given.
    fn ranked(&self) -> bool {
        true
    }

    /// Rejects options that contradict each other, or leave nothing to measure.
    fn check(&self, _options: &Options) -> Result<()> {
        Ok(())
    }

    /// Size of the test file where none is asked for; `None` if the table needs no test file.
    fn file_size(&self, _options: &Options) -> Option<u64> {
        None
    }

    /// The file that a run without a test file writes: its size, and a description.
    fn writes_into(&self, _options: &Options) -> Option<(u64, &'static str)> {
        None
    }

    /// Returns whether it reads files in order through the page cache.
    fn in_order(&self) -> bool {
        false
    }

    /// The number of ways in each of its cases.
    fn case_ways(&self, options: &Options) -> Vec<usize>;

    /// The length of its rounds.
    fn round_time(&self, options: &Options) -> Duration {
        options.round_time
    }

    /// Measures those of its cases that belong to this phase. What is complete is in the report,
    /// even after an error.
    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()>;

    /// Adds the cases that fio can do, too.
    fn fio(&self, _options: &Options, _place: &fio::Place<'_>, _jobs: &mut fio::Jobs) {}

    /// Grids below its speeds in the printed report.
    fn columns(&self) -> &'static [Grid] {
        &[]
    }

    /// A grid of its own on the page.
    fn on_page(&self) -> Option<&'static PageGrid> {
        None
    }

    /// Figures that the page draws along its axis instead of speed and processor time.
    fn curves(&self) -> &'static [Curve] {
        &[]
    }

    /// Columns of its own among all figures on the page.
    fn figures(&self) -> &'static [Column] {
        &[]
    }

    /// Name of its latencies.
    fn latency(&self) -> &'static str {
        "Latency"
    }

    /// A sentence with which the verdict begins.
    fn advice(&self, _report: &Report) -> Option<String> {
        None
    }

    /// Sentences after those that every table has.
    fn findings(&self, _report: &Report) -> Vec<String> {
        Vec::new()
    }
}

/// The parts of a run, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The test file is there.
    File,
    /// The test file is gone, and its memory and its room on the disk are free: new files are
    /// written.
    Directory,
}

impl Phase {
    pub const ALL: [Self; 2] = [Self::File, Self::Directory];
}

/// A run: what was asked for, where, and what came of it.
pub struct Run<'a> {
    pub options: &'a Options,
    /// Names of the tables that were asked for.
    pub asked: Vec<&'static str>,
    pub file: Option<&'a TestFile>,
    pub dir: &'a Path,
    pub cancel: &'a AtomicBool,
    pub course: &'a mut Course,
    pub report: &'a mut Report,
}

impl<'a> Run<'a> {
    /// Measures these tables, in their order, in these phases.
    pub fn measure(&mut self, tables: &[&dyn Table], phases: &[Phase]) -> Result<()> {
        self.asked = tables.iter().map(|table| table.name()).collect();
        for &phase in phases {
            tables.iter().try_for_each(|table| table.measure(phase, self))?;
        }
        Ok(())
    }

    /// Measures the case `name` of `table`. `ways` are those of the case, in its order. Returns, for
    /// each way, a sample of each timed round.
    ///
    /// The library's way, or else the first, is compared with itself.
    fn case<W: ?Sized>(
        &mut self,
        table: &'static str,
        name: &str,
        ways: &[Part<W>],
        case: &mut dyn Case,
    ) -> Result<Vec<Vec<Sample>>> {
        self.course.case(table, name, 1);
        // Another sequence of orders for each case.
        let mut orders = Random::new(self.options.seed.wrapping_add((self.report.rows.len() as u64) << 32));
        let control = ways.iter().position(|way| way.name() == OURS).unwrap_or(0);
        let planned = self.course.plan().tables.iter().find(|planned| planned.table == table);
        let length = length(self.options.round_time, self.options).share(planned.map_or(1, |planned| planned.cases));
        let timed = interleave(case, control, &length, &mut orders, self.course)?;
        if let (Some(way), Some(first)) = (ways.get(control), timed.ways.get(control)) {
            self.report.controls.push(Control::of(table, name, way.name(), first, &timed.control));
        }
        Ok(timed.ways)
    }

    /// Those of `ways` that are chosen and that the system allows. A refusal is noted once.
    fn usable<W: ?Sized>(&mut self, ways: &[Part<W>]) -> Vec<Part<W>> {
        self.usable_as(ways, str::to_owned, |part| (part.way.refused)())
    }

    /// The same for ways that no other table has. The note names the table.
    fn usable_in<W: ?Sized>(&mut self, table: &str, ways: &[Part<W>]) -> Vec<Part<W>> {
        self.usable_as(ways, |way| format!("{table}: {way}"), |part| (part.way.refused)())
    }

    /// The same with a table's own names in notes, and its own refusals.
    fn usable_as<W: ?Sized>(
        &mut self,
        ways: &[Part<W>],
        noted: impl Fn(&str) -> String,
        refused: impl Fn(Part<W>) -> Option<String>,
    ) -> Vec<Part<W>> {
        let mut ways = chosen(ways, self.options);
        ways.retain(|way| self.report.takes(&noted(way.name()), refused(*way)));
        ways
    }

    /// The test file. A table that declares a [`Table::file_size`] has one.
    fn test_file(&self) -> Result<&'a TestFile> {
        self.file.ok_or_else(|| Error::new(ErrorKind::Usage, "this table needs a test file"))
    }
}

/// What a run of these tables does, and how long it takes at a guess. `file`: the bytes of a test file
/// that is to be made.
pub fn plan(tables: &[&dyn Table], options: &Options, file: Option<u64>) -> Plan {
    let of = |table: &&dyn Table| {
        Planned::of(table.name(), &table.case_ways(options), &length(table.round_time(options), options))
    };
    Plan { file_s: file.map_or(0.0, Plan::writing_s), tables: tables.iter().map(of).collect() }
}

fn length(round: Duration, options: &Options) -> Length {
    Length { round, before: 2, rounds: options.rounds, budget: options.budget }
}

pub fn by_name(name: &str) -> Option<&'static dyn Table> {
    TABLES.iter().copied().find(|table| table.name() == name)
}

/// Whether the speeds of this table say which way is the quickest.
pub fn ranks(name: &str) -> bool {
    by_name(name).is_none_or(|table| table.ranked())
}

/// Tables that can be asked for by a name of their own.
pub fn to_ask_for() -> impl Iterator<Item = &'static dyn Table> {
    TABLES.iter().copied().filter(|table| table.name() == table.asked_as())
}

/// Each of these names where it comes first, and only there.
fn each_once(names: impl IntoIterator<Item = &'static str>) -> Vec<&'static str> {
    let mut once = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}

/// Tables that are measured: those named, else the usual ones that the options allow.
pub fn asked(names: &[String], options: &Options) -> Vec<&'static dyn Table> {
    let usual = |table: &dyn Table| {
        let exclusive = given(options).into_iter().filter(|(option, given)| *given && EXCLUSIVE.contains(option));
        table.usual() && exclusive.into_iter().all(|(option, _)| table.takes().contains(&option))
    };
    let named = |table: &dyn Table| names.iter().any(|name| name == table.asked_as());
    if !names.is_empty() {
        return TABLES.iter().copied().filter(|table| named(*table)).collect();
    }
    let usual: Vec<_> = TABLES.iter().copied().filter(|table| usual(*table)).collect();
    let has_ways = |table: &&dyn Table| table.ways().iter().any(|way| options.chooses(way));
    // If none has any of the ways, all are: their checks say so.
    let with_ways: Vec<_> = usual.iter().copied().filter(has_ways).collect();
    if with_ways.is_empty() { usual } else { with_ways }
}

/// Options that are refused beside a table that does not take them. The others are, where no table
/// takes them.
const EXCLUSIVE: [&str; 2] = ["--direct", "--rate"];

/// Every option that some table takes ([`Table::takes`]), and whether it was given.
pub(crate) fn given(options: &Options) -> [(&'static str, bool); 18] {
    [
        ("--direct", options.direct),
        ("--rate", options.rate.is_some()),
        ("--records", !options.records.is_empty()),
        ("--depths", !options.depths.is_empty()),
        ("--stall-size", options.stall_size.is_some()),
        ("--blocks", !options.blocks.is_empty()),
        ("--writers", !options.writers.is_empty()),
        ("--sizes", !options.sizes.is_empty()),
        ("--hot", !options.hot.is_empty()),
        ("--tasks", !options.tasks.is_empty()),
        ("--workers", !options.workers.is_empty()),
        ("--beside", !options.beside.is_empty()),
        ("--loads", !options.loads.is_empty()),
        ("--rates", !options.rates.is_empty()),
        ("--logs", !options.logs.is_empty()),
        ("--in-flight", !options.in_flight.is_empty()),
        ("--copies", !options.copies.is_empty()),
        ("--to", options.to.is_some()),
    ]
}

/// Rejects options of tables that are not asked for, and combinations that a table refuses.
pub fn check(tables: &[&dyn Table], options: &Options) -> Result<()> {
    for (option, given) in given(options) {
        if given
            && EXCLUSIVE.contains(&option)
            && !tables.iter().all(|table| table.takes().contains(&option) || table.name() != table.asked_as())
        {
            let tables = takers(option);
            let the_tables = if tables.len() == 1 { "the table" } else { "the tables" };
            let text = format!("{option} is for {the_tables} {} only; leave it out, or the others", listed(&tables));
            return Err(usage(text));
        }
    }
    let alone = given(options).into_iter().filter(|(option, given)| *given && !EXCLUSIVE.contains(option));
    for (option, _) in alone {
        if !tables.iter().any(|table| table.takes().contains(&option)) {
            let takers = takers(option);
            let (the_tables, name) =
                if takers.len() == 1 { ("the table", "it") } else { ("the tables", "one of them") };
            return Err(usage(format!("{option} is of {the_tables} {}; name {name}", listed(&takers))));
        }
    }
    tables.iter().try_for_each(|table| table.check(options))
}

/// Names of the tables that take an option.
fn takers(option: &str) -> Vec<&'static str> {
    to_ask_for().filter(|table| table.takes().contains(&option)).map(|table| table.name()).collect()
}

/// `a, b and c`
pub(crate) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The ways of a case by their p99, the lowest first: `a 12 µs and b 15 µs`
pub(crate) fn by_p99(rows: &[&Row]) -> String {
    let mut ways: Vec<(u64, &str)> =
        rows.iter().filter_map(|row| Some((row.latency_ns?.p99, row.way.as_str()))).collect();
    ways.sort_unstable();
    listed(&ways.iter().map(|(p99, way)| format!("{way} {} µs", micro(*p99))).collect::<Vec<_>>())
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}

fn chosen<W: ?Sized>(ways: &[Part<W>], options: &Options) -> Vec<Part<W>> {
    ways.iter().copied().filter(|way| options.chooses(way.name())).collect()
}

/// Rejects a choice of ways of which the table has none.
fn require_ways<W: ?Sized>(table: &str, ways: &[Part<W>], options: &Options) -> Result<()> {
    if chosen(ways, options).is_empty() {
        let all = names(ways).join(", ");
        return Err(usage(format!("none of --ways is in the table {table}; choose among {all}")));
    }
    Ok(())
}

/// Operations that a middling way does in this time, at the speeds of these samples.
fn operations_in(time: Duration, samples: &[Sample]) -> usize {
    let speeds: Vec<f64> = samples.iter().map(Sample::per_second).collect();
    (median(&speeds) * time.as_secs_f64()) as usize
}

fn names<W: ?Sized>(ways: &[Part<W>]) -> Vec<&'static str> {
    ways.iter().map(|way| way.name()).collect()
}

/// A row for each way: its name beside its samples of all timed rounds.
fn rows<W: ?Sized>(table: &str, case: &str, ways: &[Part<W>], timed: &[Vec<Sample>]) -> Vec<Row> {
    ways.iter().zip(timed).map(|(way, samples)| Row::of(table, case, way.name(), samples)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that a table takes and `check` does not know would be ignored where no table takes it.
    #[test]
    fn every_option_of_a_table_is_checked_and_every_one_that_is_checked_is_taken() {
        let known = given(&Options::new(true, 1)).map(|(option, _)| option);
        let taken: Vec<&str> = TABLES.iter().flat_map(|table| table.takes()).copied().collect();
        assert!(taken.iter().all(|option| known.contains(option)), "{taken:?}");
        assert!(known.iter().all(|option| taken.contains(option)), "{known:?}");
        assert!(EXCLUSIVE.iter().all(|option| known.contains(option)));
        assert!(given(&Options::new(true, 1)).iter().all(|(_, given)| !given));
    }

    #[test]
    fn every_table_has_a_name_of_its_own_and_can_be_asked_for() {
        for (i, table) in TABLES.iter().enumerate() {
            assert!(TABLES[..i].iter().all(|other| other.name() != table.name()));
            assert!(to_ask_for().any(|asked| asked.name() == table.asked_as()), "{}", table.name());
            assert!(table.title().starts_with(&format!("{}: ", table.name())), "{}", table.name());
            assert!(!table.ways().is_empty() && !table.about().ends_with('.'), "{}", table.name());
        }
        assert_eq!(asked(&[], &Options::new(true, 1)).len(), 3);
        assert_eq!(asked(&["reads".to_owned()], &Options::new(true, 1)).len(), 1);
    }
}
