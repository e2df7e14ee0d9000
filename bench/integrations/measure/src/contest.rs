//! A case: several ways do the same work in interleaved rounds, and give the same answer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::turn::alone;
use nowait_bench::random::Random;
use nowait_bench::report::{Control, Cpu, Row};
use nowait_bench::stats::median;
use nowait_bench::{Error, ErrorKind, Result};

use crate::run::Run;

/// What one way does, once.
pub trait Work {
    /// What the work comes to: it has to be the same for all ways of a round.
    type Answer: Hash;

    /// Number of operations of which the work consists.
    fn operations(&self) -> u64 {
        1
    }

    /// Makes the state in which every way finds the work. The clock does not run. `round`: 0 before
    /// the timed rounds, and another number for each of these, the same for all ways of it.
    fn prepare(&mut self, way: usize, round: u64) -> Result<()>;

    /// Does the work; the clock runs. Also returns the bytes that it moved, where it knows.
    fn run(&mut self, way: usize, round: u64) -> Result<(Self::Answer, u64)>;
}

/// A case of a table.
pub struct Contest<'a, W> {
    pub table: &'a str,
    pub case: String,
    pub ways: &'a [&'a str],
    pub work: W,
}

impl<W: Work> Contest<'_, W> {
    /// Measures the case into the run's report. The last way has two turns in each round.
    ///
    /// # Errors
    /// If the work fails, or a way gives another answer than the first of its round.
    pub fn measure(self, run: &mut Run) -> Result<()> {
        run.begin(&format!("{} {}", self.table, self.case))?;
        Contest::measure_all(vec![self], run)
    }

    /// Measures several cases into the run's report, round by round. A round measures every case, in the
    /// order of the list. So state that a way keeps, such as a cache, is shared by all cases.
    ///
    /// # Errors
    /// Those of [`Contest::measure`].
    pub fn measure_all(cases: Vec<Self>, run: &mut Run) -> Result<()> {
        let (first, seed) = (run.report.rows.len() as u64, run.seed());
        let mut all: Vec<_> = (first..).zip(cases).map(|(number, case)| Turns::new(case, number, seed)).collect();
        for round in 0..=run.rounds() {
            if all.len() > 1 {
                run.begin(&format!("round {round} of {}", run.rounds()))?;
            }
            all.iter_mut().try_for_each(|turns| turns.round(round as u64))?;
        }
        all.into_iter().for_each(|turns| turns.report(run));
        Ok(())
    }
}

/// Adds the case `total`: for each way and round, the sum of the times of these cases.
pub fn report_total(table: &str, total: &str, cases: &[String], run: &mut Run) {
    let mut totals: Vec<Row> = Vec::new();
    for row in run.report.rows.iter().filter(|row| row.table == table && cases.contains(&row.case)) {
        let seconds = row.rounds.iter().map(|per_second| 1.0 / per_second);
        match totals.iter_mut().find(|all| all.way == row.way) {
            Some(all) => {
                all.rounds.iter_mut().zip(seconds).for_each(|(all, seconds)| *all += seconds);
                all.cpu_us_per_op.total += row.cpu_us_per_op.total;
            }
            None => totals.push(Row {
                case: total.to_owned(),
                rounds: seconds.collect(),
                cpu_us_per_op: Cpu { total: row.cpu_us_per_op.total, ..Cpu::default() },
                table: row.table.clone(),
                way: row.way.clone(),
                ..Row::default()
            }),
        }
    }
    for all in &mut totals {
        all.rounds.iter_mut().for_each(|seconds| *seconds = 1.0 / *seconds);
        all.ops_per_s = median(&all.rounds);
    }
    run.report.rows.extend(totals);
}

struct Turns<'a, W> {
    table: &'a str,
    case: String,
    ways: &'a [&'a str],
    work: W,
    orders: Random,
    /// Samples of each way, then those of the second turns of the last way.
    timed: Vec<Vec<Sample>>,
    round: u64,
    /// Of this round.
    answer: Option<(usize, u64)>,
}

impl<'a, W: Work> Turns<'a, W> {
    /// `number` differs between the cases of a run.
    fn new(contest: Contest<'a, W>, number: u64, seed: u64) -> Self {
        let Contest { table, case, ways, work } = contest;
        let orders = Random::new(seed.wrapping_add(number << 32));
        let timed = vec![Vec::new(); ways.len() + 1];
        Turns { table, case, ways, work, orders, timed, round: 0, answer: None }
    }

    fn round(&mut self, round: u64) -> Result<()> {
        (self.round, self.answer) = (round, None);
        let control = self.ways.len() - 1;
        // In the timed rounds the last way has a second turn, as if it were another.
        for turn in self.orders.permutation((self.ways.len() + usize::from(round > 0)) as u64) {
            let sample = self.turn(control.min(turn as usize))?;
            if round > 0 {
                self.timed[turn as usize].push(sample);
            }
        }
        Ok(())
    }

    fn report(self, run: &mut Run) {
        let Turns { table, case, ways, timed, .. } = self;
        for (way, samples) in ways.iter().zip(&timed) {
            run.report.rows.push(Row::of(table, &case, way, samples));
        }
        let control = ways.len() - 1;
        run.report.controls.push(Control::of(table, &case, ways[control], &timed[control], &timed[control + 1]));
    }

    fn turn(&mut self, way: usize) -> Result<Sample> {
        self.work.prepare(way, self.round)?;
        let mut failure = None;
        let outcome = alone(None, |round: &mut Round<'_>| {
            round.start();
            let done = self.work.run(way, self.round);
            round.stop();
            let (answer, bytes) = done.map_err(|error| {
                failure = Some(error);
                io::Error::other("the work failed")
            })?;
            let operations = self.work.operations();
            (0..operations).for_each(|_| round.tally.wrote((bytes / operations) as usize));
            let mut hasher = DefaultHasher::new();
            answer.hash(&mut hasher);
            Ok(hasher.finish())
        });
        let name = self.ways[way];
        let (sample, answer) = outcome.map_err(|error| {
            let why = failure.take().map_or(error.to_string(), |failure| failure.to_string());
            Error::new(ErrorKind::Other, format!("{}: {name} failed: {why}", self.name()))
        })?;
        match self.answer {
            Some((first, expected)) if expected != answer => {
                let text = format!("{}: {name} and {} give different answers", self.name(), self.ways[first]);
                return Err(Error::new(ErrorKind::Other, text));
            }
            Some(_) => {}
            None => self.answer = Some((way, answer)),
        }
        sample.ok_or_else(|| Error::new(ErrorKind::Other, format!("{}: {name} did not run its clock", self.name())))
    }

    fn name(&self) -> String {
        format!("{} {}", self.table, self.case)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::run::Options;

    /// Says which way and round it is, and lies for one of them.
    struct Told<'a> {
        turns: &'a mut Vec<(usize, u64)>,
        liar: Option<usize>,
    }

    impl Work for Told<'_> {
        type Answer = (u64, bool);

        fn prepare(&mut self, way: usize, round: u64) -> Result<()> {
            self.turns.push((way, round));
            Ok(())
        }

        fn run(&mut self, way: usize, round: u64) -> Result<((u64, bool), u64)> {
            Ok(((round, self.liar == Some(way)), 0))
        }
    }

    fn told(liar: Option<usize>) -> (Result<()>, Vec<(usize, u64)>, Run) {
        let mut run = Run::new(&Options { rounds: 4, seed: Some(7), ..Options::default() }).unwrap();
        let mut turns = Vec::new();
        let work = Told { turns: &mut turns, liar };
        let measured =
            Contest { table: "table", case: "case".into(), ways: &["stock", "nowait"], work }.measure(&mut run);
        (measured, turns, run)
    }

    #[test]
    fn each_way_has_its_turn_in_each_round_and_the_last_has_two() {
        let (measured, turns, run) = told(None);
        measured.unwrap();
        assert_eq!(turns.len(), 2 + 4 * 3);
        for round in 1..=4 {
            let of_round = turns.iter().filter(|turn| turn.1 == round);
            assert_eq!(of_round.map(|turn| turn.0).sum::<usize>(), 2, "{turns:?}");
        }
        let rows: Vec<_> = run.report.rows.iter().map(|row| (row.way.as_str(), row.rounds.len())).collect();
        assert_eq!(rows, [("stock", 4), ("nowait", 4)]);
        assert_eq!((run.report.controls[0].way.as_str(), run.report.controls[0].again.len()), ("nowait", 4));
    }

    #[test]
    fn another_answer_fails_the_case() {
        let (measured, ..) = told(Some(1));
        let error = measured.unwrap_err().to_string();
        assert!(error.contains("different answers"), "{error}");
    }

    /// Notes the case and the round of each turn.
    struct Noted<'a>(u64, &'a RefCell<Vec<(u64, u64)>>);

    impl Work for Noted<'_> {
        type Answer = ();

        fn prepare(&mut self, _: usize, round: u64) -> Result<()> {
            self.1.borrow_mut().push((round, self.0));
            Ok(())
        }

        fn run(&mut self, _: usize, _: u64) -> Result<((), u64)> {
            Ok(((), 0))
        }
    }

    #[test]
    fn a_round_has_all_cases_and_a_total_is_the_sum_of_a_round() {
        let mut run = Run::new(&Options { rounds: 3, seed: Some(7), ..Options::default() }).unwrap();
        let turns = RefCell::default();
        let names = ["one", "two"].map(str::to_owned);
        let case = |number: usize| Contest {
            table: "table",
            case: names[number].clone(),
            ways: &["stock", "nowait"],
            work: Noted(number as u64, &turns),
        };
        Contest::measure_all(vec![case(0), case(1)], &mut run).unwrap();
        let turns = turns.into_inner();
        assert!(turns.is_sorted(), "{turns:?}");
        assert_eq!(turns.len(), 2 * (2 + 3 * 3));
        report_total("table", "total", &names, &mut run);
        let cases: Vec<_> = run.report.rows.iter().map(|row| (&*row.case, &*row.way)).collect();
        let pairs = [("one", "stock"), ("one", "nowait"), ("two", "stock"), ("two", "nowait")];
        assert_eq!(cases, [&pairs[..], &[("total", "stock"), ("total", "nowait")]].concat());
        let seconds = |row: usize, round: usize| 1.0 / run.report.rows[row].rounds[round];
        for round in 0..3 {
            assert!((seconds(5, round) - seconds(1, round) - seconds(3, round)).abs() < 1e-9);
        }
    }
}
