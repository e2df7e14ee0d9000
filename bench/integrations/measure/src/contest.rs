//! A case: several ways do the same work in interleaved rounds, and give the same answer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::turn::alone;
use nowait_bench::random::Random;
use nowait_bench::report::{Control, Row};
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
        let Contest { table, case, ways, work } = self;
        run.begin(&format!("{table} {case}"))?;
        let (rounds, seed) = (run.rounds(), run.seed());
        let mut orders = Random::new(seed.wrapping_add((run.report.rows.len() as u64) << 32));
        let mut turns = Turns { ways, name: format!("{table} {case}"), work, round: 0, answer: None };
        let control = ways.len() - 1;
        let mut timed = vec![Vec::new(); ways.len() + 1];
        for round in 0..=rounds {
            (turns.round, turns.answer) = (round as u64, None);
            // In the timed rounds the last way has a second turn, as if it were another.
            for turn in orders.permutation((ways.len() + usize::from(round > 0)) as u64) {
                let sample = turns.turn(control.min(turn as usize))?;
                if round > 0 {
                    timed[turn as usize].push(sample);
                }
            }
        }
        for (way, samples) in ways.iter().zip(&timed) {
            run.report.rows.push(Row::of(table, &case, way, samples));
        }
        run.report.controls.push(Control::of(table, &case, ways[control], &timed[control], &timed[control + 1]));
        Ok(())
    }
}

struct Turns<'a, W> {
    ways: &'a [&'a str],
    name: String,
    work: W,
    round: u64,
    /// Of this round.
    answer: Option<(usize, u64)>,
}

impl<W: Work> Turns<'_, W> {
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
            Error::new(ErrorKind::Other, format!("{}: {name} failed: {why}", self.name))
        })?;
        match self.answer {
            Some((first, expected)) if expected != answer => {
                let text = format!("{}: {name} and {} give different answers", self.name, self.ways[first]);
                return Err(Error::new(ErrorKind::Other, text));
            }
            Some(_) => {}
            None => self.answer = Some((way, answer)),
        }
        sample.ok_or_else(|| Error::new(ErrorKind::Other, format!("{}: {name} did not run its clock", self.name)))
    }
}

#[cfg(test)]
mod tests {
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
}
