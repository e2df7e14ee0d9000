//! Duration of a run: estimated before it starts ([`Plan`]), corrected while it runs ([`Course`]).

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

/// Plan of a run: its turns, and an estimate of their time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Time to create the test file.
    pub file_s: f64,
    pub tables: Vec<Planned>,
}

/// A table's part of a [`Plan`].
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub table: &'static str,
    pub cases: usize,
    /// Turns of all ways in all cases, verification, warm-up and controls included.
    pub turns: usize,
    pub seconds: f64,
}

/// Assumed speed of writing and syncing a test file.
const BYTES_PER_S: f64 = 250e6;

impl Plan {
    pub fn turns(&self) -> usize {
        self.tables.iter().map(|table| table.turns).sum()
    }

    pub fn seconds(&self) -> f64 {
        self.file_s + self.tables.iter().map(|table| table.seconds).sum::<f64>()
    }

    /// Returns the estimated time to write and sync `bytes`.
    pub fn writing_s(bytes: u64) -> f64 {
        bytes as f64 / BYTES_PER_S
    }
}

impl Planned {
    /// Plans a table. `cases` contains the number of ways of each case, and its length.
    pub fn of(table: &'static str, cases: &[(usize, Length)]) -> Self {
        let of_case = |&(ways, length): &(usize, Length)| {
            let turn_s = (length.round_time(ways) + length.beside).as_secs_f64();
            let rounds = length.rounds((ways * length.before) as f64 * turn_s, (ways + 1) as f64 * turn_s);
            (ways * (length.before + rounds) + rounds, turn_s)
        };
        let cases: Vec<(usize, f64)> = cases.iter().filter(|(ways, _)| *ways > 0).map(of_case).collect();
        let seconds = cases.iter().map(|(turns, turn_s)| *turns as f64 * turn_s).sum();
        Self { table, cases: cases.len(), turns: cases.iter().map(|(turns, _)| turns).sum(), seconds }
    }
}

/// Rules for the number and the length of a case's rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Length {
    /// Maximum duration of a round, at a way of median speed.
    pub round: Duration,
    /// Time of a turn besides its round, for preparing its state and comparing bytes.
    pub beside: Duration,
    /// Number of turns of each way before the timed ones: verification and warm-up.
    pub before: usize,
    /// Number of rounds, regardless of their time.
    pub rounds: Option<usize>,
    /// Otherwise as many rounds as fit into this time, which all cases share.
    pub budget: Duration,
}

/// Minimum and maximum number of rounds of a case, if the number is not given.
pub const ROUNDS_MIN: usize = 3;
pub const ROUNDS_MAX: usize = 15;
/// Number of rounds for which a round's duration is chosen.
const ROUNDS_USUAL: usize = 5;
/// The shortest round.
const ROUND_MIN: Duration = Duration::from_millis(10);

impl Length {
    /// Returns the length of one of this many cases.
    pub fn share(self, cases: usize) -> Self {
        Self { budget: self.budget / cases.max(1) as u32, ..self }
    }

    /// Returns the estimated length of a round in a case of `ways` ways, such that five rounds fit.
    /// More rounds, if requested, have the same length.
    pub fn round_time(&self, ways: usize) -> Duration {
        let turns = ways * (self.before + ROUNDS_USUAL) + ROUNDS_USUAL;
        self.within(self.budget.as_secs_f64() / turns as f64 - self.beside.as_secs_f64())
    }

    /// As [`Length::round_time`], after `spent_s` were spent, if a turn takes `beside_s` besides
    /// its round.
    pub fn fitted(&self, ways: usize, spent_s: f64, beside_s: f64) -> Duration {
        let turns = (ways + 1) * ROUNDS_USUAL;
        self.within((self.budget.as_secs_f64() - spent_s) / turns as f64 - beside_s)
    }

    fn within(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds.max(0.0)).clamp(ROUND_MIN.min(self.round), self.round)
    }

    /// Returns the number of rounds, after `spent_s` were spent, if a round of all ways takes
    /// `round_s`.
    pub fn rounds(&self, spent_s: f64, round_s: f64) -> usize {
        let fit = (self.budget.as_secs_f64() - spent_s) / round_s.max(1e-9);
        self.rounds.unwrap_or((fit as usize).clamp(ROUNDS_MIN, ROUNDS_MAX))
    }
}

/// Progress of a run, from which the remaining time is estimated.
#[derive(Debug)]
pub struct Course {
    bar: ProgressBar,
    plan: Plan,
    began: Instant,
    tables: Vec<&'static str>,
    what: String,
    /// Planned time of the completed parts.
    done_s: f64,
    /// Planned time of the current part, its number of steps, and the completed steps.
    part_s: f64,
    steps: u64,
    stepped: u64,
}

/// Share of the plan that counts as measured at the planned speed, for the estimate of the rest.
const TRUSTED_SHARE: f64 = 0.1;

/// Length of the bar.
const STEPS: u64 = 1000;

impl Course {
    /// Shows the progress on this bar, which may be hidden.
    pub fn new(plan: Plan, bar: ProgressBar) -> Self {
        bar.set_length(STEPS);
        let (began, what) = (Instant::now(), String::new());
        Self { bar, plan, began, tables: Vec::new(), what, done_s: 0.0, part_s: 0.0, steps: 1, stepped: 0 }
    }

    /// Ends the current part, and begins the next with this planned time and number of steps.
    pub fn begin(&mut self, what: &str, planned_s: f64, steps: u64) {
        self.done_s += self.part_s;
        what.clone_into(&mut self.what);
        (self.part_s, self.steps, self.stepped) = (planned_s, steps.max(1), 0);
        self.show();
    }

    /// Begins a case of a table.
    pub fn case(&mut self, table: &'static str, case: &str, turns: u64) {
        if !self.tables.contains(&table) {
            self.tables.push(table);
        }
        let planned = self.plan.tables.iter().find(|planned| planned.table == table);
        let planned_s = planned.map_or(0.0, |planned| planned.seconds / planned.cases.max(1) as f64);
        self.begin(&format!("{table} {case}"), planned_s, turns);
    }

    /// Corrects the number of steps of the current part.
    pub fn expect(&mut self, steps: u64) {
        self.steps = steps.max(self.stepped).max(1);
    }

    pub fn step(&mut self, steps: u64) {
        self.stepped = (self.stepped + steps).min(self.steps);
        self.show();
    }

    /// Hides the bar before other output.
    pub fn hide(&mut self) {
        self.bar.finish_and_clear();
    }

    fn show(&mut self) {
        let planned = self.plan.seconds().max(f64::EPSILON);
        let done = (self.done_s + self.part_s * self.stepped as f64 / self.steps as f64).min(planned);
        let trusted = planned * TRUSTED_SHARE;
        let pace = (self.began.elapsed().as_secs_f64() + trusted) / (done + trusted);
        let table = match self.tables.len() {
            0 => String::new(),
            table => format!("table {table} of {}, ", self.plan.tables.len()),
        };
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.set_prefix(format!("{table}{:.0} s left", (planned - done) * pace));
        self.bar.set_message(self.what.clone());
        self.bar.set_position((done / planned * STEPS as f64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Length = Length {
        round: Duration::from_millis(300),
        beside: Duration::from_millis(60),
        before: 2,
        rounds: None,
        budget: Duration::from_secs(20),
    };

    fn of(ways: &[usize], length: Length) -> Vec<(usize, Length)> {
        ways.iter().map(|&ways| (ways, length)).collect()
    }

    #[test]
    fn a_plan_fits_its_budget_unless_the_rounds_are_given() {
        for (ways, at_most) in [(vec![11, 11, 10], 20.5), (vec![4], 20.5), (vec![11; 8], 40.0)] {
            let plan = Planned::of("reads", &of(&ways, LENGTH.share(ways.len())));
            assert!(plan.seconds <= at_most && plan.cases == ways.len(), "{plan:?}");
            assert!(plan.turns >= ways.iter().map(|ways| ways * 5 + 3).sum(), "{plan:?}");
        }
        let plan = Planned::of("reads", &of(&[4, 0, 5], Length { rounds: Some(7), ..LENGTH }));
        assert_eq!((plan.cases, plan.turns), (2, 4 * 9 + 7 + 5 * 9 + 7));
        assert!((plan.seconds - plan.turns as f64 * 0.36).abs() < 1e-9);
    }

    #[test]
    fn rounds_are_shorter_where_turns_take_more_than_was_thought() {
        let (guess, ways) = (LENGTH.round_time(20), 20);
        // 20 s for 20 times 7 turns and the control's 5.
        assert!((guess.as_secs_f64() - (20.0 / 145.0 - 0.06)).abs() < 1e-6, "{guess:?}");
        assert_eq!(LENGTH.fitted(ways, 2.0, 0.01), Duration::from_secs_f64(18.0 / 105.0 - 0.01));
        assert_eq!(LENGTH.fitted(ways, 19.0, 0.06), Duration::from_millis(10));
        assert_eq!(LENGTH.fitted(1, 1.0, 0.06), LENGTH.round);
    }

    #[test]
    fn cheap_rounds_are_many_and_dear_ones_are_the_fewest() {
        assert_eq!([LENGTH.rounds(1.0, 1e-3), LENGTH.rounds(1.0, 2.0), LENGTH.rounds(19.0, 5.0)], [15, 9, 3]);
        assert_eq!(Length { rounds: Some(2), ..LENGTH }.rounds(100.0, 100.0), 2);
    }

    #[test]
    fn the_time_left_falls_to_nothing_and_tables_are_counted() {
        let planned = |table| Planned { table, cases: 2, turns: 20, seconds: 10.0 };
        let plan = Plan { file_s: 5.0, tables: vec![planned("reads"), planned("gather")] };
        let bar = ProgressBar::hidden();
        let mut course = Course::new(plan, bar.clone());
        course.begin("making the test file", 5.0, 1000);
        assert_eq!((bar.position(), &*bar.prefix()), (0, "25 s left"));
        course.step(1000);
        assert_eq!(bar.position(), 200);
        let mut last = 200;
        for (number, table) in ["reads", "gather"].into_iter().enumerate() {
            for case in ["depth=1", "depth=2"] {
                course.case(table, case, 20);
                assert!(bar.prefix().starts_with(&format!("table {} of 2, ", number + 1)), "{}", bar.prefix());
                course.step(3);
                course.expect(10);
                (0..7).for_each(|_| course.step(1));
                assert_eq!((bar.position(), bar.message()), (last + 200, format!("{table} {case}")));
                last += 200;
                course.hide();
            }
        }
        // The run is far faster than planned.
        assert_eq!((bar.position(), &*bar.prefix()), (1000, "table 2 of 2, 0 s left"));
    }
}
