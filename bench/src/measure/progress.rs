//! How long a run takes: estimated before it begins ([`Plan`]), corrected while it goes on ([`Course`]).

use std::time::{Duration, Instant};

/// Plan of a run: its turns, and an estimate of their time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Making the file that is read.
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

/// A test file is written and synced so fast, where nothing else is known.
const BYTES_PER_S: f64 = 250e6;

impl Plan {
    pub fn turns(&self) -> usize {
        self.tables.iter().map(|table| table.turns).sum()
    }

    pub fn seconds(&self) -> f64 {
        self.file_s + self.tables.iter().map(|table| table.seconds).sum::<f64>()
    }

    /// Time to write so many bytes.
    pub fn writing_s(bytes: u64) -> f64 {
        bytes as f64 / BYTES_PER_S
    }
}

impl Planned {
    /// `cases`: the number of ways in each, and its length.
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
    /// The length of a round that nothing shortens, at a middling way's speed.
    pub round: Duration,
    /// Time of a turn beside its round: its state is made, and its bytes are compared.
    pub beside: Duration,
    /// Turns of each way before the timed ones: verification and warm-up.
    pub before: usize,
    /// So many rounds, whatever time they take.
    pub rounds: Option<usize>,
    /// Else as many as fit in this time, which is all cases' together.
    pub budget: Duration,
}

/// The fewest rounds of a case, and the most, where their number is not given.
pub const ROUNDS_MIN: usize = 3;
pub const ROUNDS_MAX: usize = 15;
/// The number for which a round's length is chosen.
const ROUNDS_USUAL: usize = 5;
/// The shortest round.
const ROUND_MIN: Duration = Duration::from_millis(10);

impl Length {
    /// Length of one of this many cases.
    pub fn share(self, cases: usize) -> Self {
        Self { budget: self.budget / cases.max(1) as u32, ..self }
    }

    /// The length of a way's round in a case of so many, at a guess: such that five rounds fit. More that
    /// are asked for take longer, each as long.
    pub fn round_time(&self, ways: usize) -> Duration {
        let turns = ways * (self.before + ROUNDS_USUAL) + ROUNDS_USUAL;
        self.within(self.budget.as_secs_f64() / turns as f64 - self.beside.as_secs_f64())
    }

    /// The same, when so much time is spent, and a turn has taken so much beside its round.
    pub fn fitted(&self, ways: usize, spent_s: f64, beside_s: f64) -> Duration {
        let turns = (ways + 1) * ROUNDS_USUAL;
        self.within((self.budget.as_secs_f64() - spent_s) / turns as f64 - beside_s)
    }

    fn within(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds.max(0.0)).clamp(ROUND_MIN.min(self.round), self.round)
    }

    /// The number of rounds, when so much time is spent and a round of all ways takes so much.
    pub fn rounds(&self, spent_s: f64, round_s: f64) -> usize {
        let fit = (self.budget.as_secs_f64() - spent_s) / round_s.max(1e-9);
        self.rounds.unwrap_or((fit as usize).clamp(ROUNDS_MIN, ROUNDS_MAX))
    }
}

/// The position of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct At<'a> {
    /// `making the test file`, or the table and the case that are measured.
    pub what: &'a str,
    /// Number of the table, from 1; 0 before the first.
    pub table: usize,
    pub tables: usize,
    /// Share of the whole run that is done.
    pub share: f64,
    pub seconds_left: f64,
}

/// Shown the position of a run.
pub trait Progress {
    fn show(&mut self, at: &At<'_>);

    /// Something is about to be printed, or all is done.
    fn hide(&mut self) {}
}

/// Ignores it.
impl Progress for () {
    fn show(&mut self, _: &At<'_>) {}
}

/// A run on its way: what is done, and from that what is left.
pub struct Course {
    progress: Box<dyn Progress>,
    plan: Plan,
    began: Instant,
    tables: Vec<&'static str>,
    what: String,
    /// Planned time of all that is done, but the current part.
    done_s: f64,
    /// Planned time of the current part, its steps, and those that are done.
    part_s: f64,
    steps: u64,
    stepped: u64,
}

/// Share of the plan that counts as measured at the planned pace, when the rest is estimated.
const TRUSTED_SHARE: f64 = 0.1;

impl Course {
    pub fn new(plan: Plan, progress: impl Progress + 'static) -> Self {
        let (progress, began, what) = (Box::new(progress), Instant::now(), String::new());
        Self { progress, plan, began, tables: Vec::new(), what, done_s: 0.0, part_s: 0.0, steps: 1, stepped: 0 }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Parts of this table follow.
    pub fn table(&mut self, name: &'static str) {
        if !self.tables.contains(&name) {
            self.tables.push(name);
        }
    }

    /// A part begins, for which this time is planned; it has so many steps. The one before is done.
    pub fn begin(&mut self, what: &str, planned_s: f64, steps: u64) {
        self.done_s += self.part_s;
        what.clone_into(&mut self.what);
        (self.part_s, self.steps, self.stepped) = (planned_s, steps.max(1), 0);
        self.show();
    }

    /// A case of a table begins.
    pub fn case(&mut self, table: &'static str, case: &str, turns: u64) {
        self.table(table);
        let planned = self.plan.tables.iter().find(|planned| planned.table == table);
        let planned_s = planned.map_or(0.0, |planned| planned.seconds / planned.cases.max(1) as f64);
        self.begin(&format!("{table} {case}"), planned_s, turns);
    }

    /// The current part has so many steps after all.
    pub fn expect(&mut self, steps: u64) {
        self.steps = steps.max(self.stepped).max(1);
    }

    pub fn step(&mut self, steps: u64) {
        self.stepped = (self.stepped + steps).min(self.steps);
        self.show();
    }

    pub fn hide(&mut self) {
        self.progress.hide();
    }

    fn show(&mut self) {
        let planned = self.plan.seconds().max(f64::EPSILON);
        let done = (self.done_s + self.part_s * self.stepped as f64 / self.steps as f64).min(planned);
        let trusted = planned * TRUSTED_SHARE;
        let pace = (self.began.elapsed().as_secs_f64() + trusted) / (done + trusted);
        let (table, tables) = (self.tables.len(), self.plan.tables.len());
        let seconds_left = (planned - done) * pace;
        self.progress.show(&At { what: &self.what, table, tables, share: done / planned, seconds_left });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

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
        struct Seen(Rc<RefCell<Vec<(usize, f64, f64)>>>);
        impl Progress for Seen {
            fn show(&mut self, at: &At<'_>) {
                assert_eq!(at.tables, 2);
                self.0.borrow_mut().push((at.table, at.share, at.seconds_left));
            }
        }
        let planned = |table| Planned { table, cases: 2, turns: 20, seconds: 10.0 };
        let plan = Plan { file_s: 5.0, tables: vec![planned("reads"), planned("gather")] };
        let seen = Rc::new(RefCell::new(Vec::new()));
        let mut course = Course::new(plan, Seen(seen.clone()));
        course.begin("making the test file", 5.0, 1000);
        course.step(1000);
        for table in ["reads", "gather"] {
            for case in ["depth=1", "depth=2"] {
                course.case(table, case, 20);
                course.step(3);
                course.expect(10);
                (0..7).for_each(|_| course.step(1));
            }
        }
        let seen = seen.borrow();
        assert!(seen.windows(2).all(|two| two[0].1 <= two[1].1 && two[0].0 <= two[1].0), "{seen:?}");
        assert_eq!((seen[0].0, seen.last().unwrap().0), (0, 2));
        let (_, share, left) = *seen.last().unwrap();
        assert!((share - 1.0).abs() < 1e-9 && left < 1e-3, "{seen:?}");
        // Far faster than planned, so that little is left long before the end.
        assert!(seen.iter().all(|(_, share, left)| *left <= 25.0 * (1.0 - share) + 0.1), "{seen:?}");
    }
}
