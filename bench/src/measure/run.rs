//! A run: measures the cases of its tables. The ways of a case take turns, verified, warmed up and
//! timed.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::meter::Sample;
use super::options::Options;
use super::progress::{Course, Length, ROUNDS_MIN};
use super::turn::{Place, Stage, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::{TestFile, allows_direct};
use crate::random::Random;
use crate::report::notes::Code;
use crate::report::{Control, Report, Row};
use crate::stats::median;
use crate::table::{Bench, Case, Entrant, Phase, Table, Work, wanted};
use crate::ways::OURS;

/// Number of operations of the verification, which also measures a way's speed.
const VERIFIED: usize = 256;
/// Share of a round's time for the warm-up.
const WARM_UP: f64 = 0.2;
/// Maximum duration of the slowest way's round, as a multiple of a round's time.
const SLOWEST: f64 = 4.0;

/// A run: its options, its place, and its report.
#[derive(Debug)]
pub struct Run<'a> {
    pub options: &'a Options,
    pub file: Option<&'a TestFile>,
    pub cancel: &'a AtomicBool,
    pub course: &'a mut Course,
    pub report: &'a mut Report,
}

impl<'a> Run<'a> {
    /// Measures these tables in order, in these phases. Leaves out cases that cannot be cold, with a
    /// note; [`ErrorKind::NotCold`] if no other case was measured. After an error, the report
    /// contains the completed rows.
    pub fn measure(&mut self, tables: &[&'static Table], phases: &[Phase]) -> Result<()> {
        let before = self.report.rows.len();
        let mut not_cold = None;
        for &phase in phases {
            for table in tables {
                let cases = wanted(table, self.options);
                let count = cases.len();
                let here = cases.into_iter().filter(|case| case.phase == phase);
                for case in here {
                    match self.case(table, case, count) {
                        Err(error) if error.kind() == ErrorKind::NotCold => {
                            let text = format!("{}: cases with cold pages are left out: {error}", table.name);
                            self.report.note_once(Code::NotCold, text);
                            not_cold.get_or_insert(error);
                        }
                        measured => measured?,
                    }
                }
            }
        }
        match not_cold {
            Some(error) if self.report.rows.len() == before => Err(error),
            _ => Ok(()),
        }
    }

    /// Measures one of `count` cases.
    fn case(&mut self, table: &'static Table, case: Case, count: usize) -> Result<()> {
        let mut ways: Vec<(usize, &'static str)> = Vec::new();
        for (index, Entrant { way, refused }) in case.entrants(self.options) {
            let by_case = refused.as_ref().map(|why| format!("{}: {} is left out: {why}", table.name, way.name));
            match by_case.or_else(|| (way.refused)().map(|why| format!("{} is left out: {why}", way.name))) {
                Some(text) => self.report.note_once(Code::WayLeftOut, text),
                None => ways.push((index, way.name)),
            }
        }
        if ways.is_empty() {
            return Ok(());
        }
        let length = case.length(self.options).share(count);
        let Some(mut bench) = (case.open)(self)? else { return Ok(()) };
        ways.retain(|(index, name)| bench.takes(*index, name));
        if ways.is_empty() {
            return Ok(());
        }
        let name = &case.name;
        let timed = self.rounds(table, name, &ways, case.work, &length, &mut *bench)?;
        let row = |((_, way), samples): (&(usize, &str), &Vec<Sample>)| Row::of(table.name, name, way, samples);
        let rows: Vec<Row> = ways.iter().zip(&timed).map(row).collect();
        bench.finish(name, &rows, self);
        self.report.rows.extend(rows);
        Ok(())
    }

    /// Verifies the ways, warms them up, and lets them take turns, for as many rounds as the length
    /// allows.
    ///
    /// The order of the ways is drawn by seed for each round, because the speed of a shared disk
    /// drifts, and because a way affects caches and queues for the next one. The library's way, or
    /// otherwise the first one, has two turns in each round: the control.
    fn rounds(
        &mut self,
        table: &'static Table,
        case: &str,
        ways: &[(usize, &'static str)],
        work: Work,
        length: &Length,
        bench: &mut dyn Bench,
    ) -> Result<Vec<Vec<Sample>>> {
        let (began, options, place) = (Instant::now(), self.options, self.place());
        // Each case has another sequence of orders.
        let mut orders = Random::new(options.seed.wrapping_add((self.report.rows.len() as u64) << 32));
        let control = ways.iter().position(|(_, way)| *way == OURS).unwrap_or(0);
        let mut rounds = length.rounds.unwrap_or(ROUNDS_MIN);
        let turns = |rounds: usize| (ways.len() * (length.before + rounds) + rounds) as u64;
        self.course.case(table.name, case, turns(rounds));
        let (mut timed, mut again) = (vec![Vec::new(); ways.len()], Vec::new());
        let mut operations = if let Work::Exactly(all, _) = work { all.min(VERIFIED) } else { VERIFIED };
        let mut on_clock_s = 0.0;
        let before = [Stage::Verify, Stage::WarmUp].into_iter().take(length.before);
        for stage in before.chain((0..).map(Stage::Timed)) {
            if stage == Stage::Timed(rounds) {
                break;
            }
            bench.prepare(&place, stage, operations)?;
            let (is_timed, spent_s) = (matches!(stage, Stage::Timed(_)), began.elapsed().as_secs_f64());
            let mut samples: Vec<Option<Sample>> = vec![None; ways.len()];
            for number in orders.permutation((ways.len() + usize::from(is_timed)) as u64) {
                let number = number as usize;
                let (index, way) = ways[if number < ways.len() { number } else { control }];
                let sample = bench.turn(&Turn { place, index, way, table: table.name, case, stage })?;
                match samples.get_mut(number) {
                    Some(of_way) => *of_way = Some(sample),
                    None => again.push(sample),
                }
                self.course.step(1);
            }
            let samples: Vec<Sample> = samples.into_iter().flatten().collect();
            on_clock_s += samples.iter().map(|sample| sample.seconds).sum::<f64>();
            operations = match (work, stage) {
                (Work::Exactly(all, _), _) => all,
                (Work::For(_), Stage::Timed(_)) => operations,
                (Work::For(_), Stage::Verify) => {
                    operations_in(length.round_time(ways.len()).mul_f64(WARM_UP), &samples).max(VERIFIED / 4)
                }
                (Work::For(_), Stage::WarmUp) => {
                    let spent_s = began.elapsed().as_secs_f64();
                    let beside_s = (spent_s - on_clock_s) / (length.before * ways.len()) as f64;
                    operations_in(length.fitted(ways.len(), spent_s, beside_s), &samples).max(VERIFIED / 4)
                }
            };
            if is_timed {
                timed.iter_mut().zip(samples).for_each(|(of_way, sample): (&mut Vec<Sample>, _)| of_way.push(sample));
            }
            if stage == Stage::Timed(0) {
                rounds = length.rounds(spent_s, began.elapsed().as_secs_f64() - spent_s);
                self.course.expect(turns(rounds));
            }
        }
        let control = Control::of(table.name, case, ways[control].1, &timed[control], &again);
        self.report.controls.push(control);
        Ok(timed)
    }

    pub fn place(&self) -> Place<'a> {
        Place { options: self.options, file: self.file, cancel: self.cancel }
    }

    /// Returns whether this file system supports direct I/O. If not, adds a note, once, that `what`
    /// is left out.
    pub(crate) fn takes_direct(&mut self, path: &Path, what: &str) -> Result<bool> {
        let direct = allows_direct(path).map_err(|error| Error::io("open with O_DIRECT", path, &error))?;
        if !direct {
            self.report.note_once(Code::DirectRefused, format!("{what} left out: this file system refuses O_DIRECT"));
        }
        Ok(direct)
    }
}

/// Returns the number of operations of a way of median speed in this time, by these samples; fewer
/// if a way is far slower.
fn operations_in(time: Duration, samples: &[Sample]) -> usize {
    let speeds: Vec<f64> = samples.iter().map(Sample::per_second).collect();
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    (median(&speeds).min(slowest * SLOWEST) * time.as_secs_f64()) as usize
}
