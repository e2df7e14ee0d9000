//! The loop that measures: verify, warm up, then timed rounds in which the ways take turns.
//!
//! Each round has the ways in another order, drawn by seed, because a shared disk drifts, and
//! because a way leaves caches and queues to the one after it. One way has two turns in each: by how
//! much it differs from itself tells which differences mean nothing.

use std::time::Instant;

use super::meter::Sample;
use super::progress::{Course, Length, ROUNDS_MIN};
use crate::error::Result;
use crate::random::Random;

/// Stage of a case's measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The bytes are compared.
    Verify,
    /// Finds the speeds, from which a case derives the length of its timed rounds.
    WarmUp,
    /// A timed round, by number.
    Timed(usize),
}

impl Stage {
    /// Random numbers of this stage, or of this round, the same for every way.
    pub fn random(self, seed: u64) -> Random {
        let number = match self {
            Self::Verify => 0,
            Self::WarmUp => 1,
            Self::Timed(round) => round as u64 + 2,
        };
        Random::of(seed, number)
    }
}

/// Samples of the timed rounds.
pub struct Rounds {
    /// For each way, one of each round.
    pub ways: Vec<Vec<Sample>>,
    /// Those of the second turns of the way that is compared with itself.
    pub control: Vec<Sample>,
}

/// A case: every way does the same work from the same state.
pub trait Case {
    /// Number of ways that take turns.
    fn ways(&self) -> usize;

    /// Returns whether a warm-up follows the verification. Without one, speeds are those of the
    /// verification, or of no interest.
    fn warms_up(&self) -> bool {
        false
    }

    /// Makes the inputs that all ways of the coming round share.
    fn prepare(&mut self, _stage: Stage) {}

    /// Makes the state of the case, and has one way do its work once.
    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample>;

    /// The second turn of the way that is compared with itself. A case that keeps other figures of
    /// its rounds keeps none of this one.
    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.round(way, stage)
    }

    /// Every way has had its turn; their samples, in the order of the ways.
    fn completed(&mut self, _stage: Stage, _samples: &[Sample]) {}
}

/// Measures a case: as many rounds as its length allows. The way number `control` has two turns in
/// each timed round, as if it were two.
pub fn interleave(
    case: &mut dyn Case,
    control: usize,
    length: &Length,
    orders: &mut Random,
    course: &mut Course,
) -> Result<Rounds> {
    let (ways, began) = (case.ways(), Instant::now());
    let mut timed = Rounds { ways: vec![Vec::new(); ways], control: Vec::new() };
    let before = [Stage::Verify].into_iter().chain(case.warms_up().then_some(Stage::WarmUp));
    let mut rounds = length.rounds.unwrap_or(ROUNDS_MIN);
    course.expect(steps(ways, rounds, case.warms_up()));
    for stage in before.chain((0..).map(Stage::Timed)) {
        if stage == Stage::Timed(rounds) {
            break;
        }
        case.prepare(stage);
        let (is_timed, spent_s) = (matches!(stage, Stage::Timed(_)), began.elapsed().as_secs_f64());
        let mut samples: Vec<Option<Sample>> = vec![None; ways];
        for turn in orders.permutation((ways + usize::from(is_timed)) as u64) {
            match samples.get_mut(turn as usize) {
                Some(sample) => *sample = Some(case.round(turn as usize, stage)?),
                None => timed.control.push(case.round_again(control, stage)?),
            }
            course.step(1);
        }
        let samples: Vec<Sample> = samples.into_iter().flatten().collect();
        case.completed(stage, &samples);
        if is_timed {
            timed.ways.iter_mut().zip(samples).for_each(|(of_way, sample)| of_way.push(sample));
        }
        if stage == Stage::Timed(0) {
            rounds = length.rounds(spent_s, began.elapsed().as_secs_f64() - spent_s);
            course.expect(steps(ways, rounds, case.warms_up()));
        }
    }
    Ok(timed)
}

/// Number of turns of a case of so many ways.
fn steps(ways: usize, rounds: usize, warms_up: bool) -> u64 {
    (ways * (rounds + 1 + usize::from(warms_up)) + rounds) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::meter::Round;
    use crate::measure::progress::Plan;
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::time::Duration;

    struct Told {
        warms_up: bool,
        turns: Vec<(usize, Stage)>,
        /// The number of turns before each second one.
        again: Vec<(usize, Stage)>,
        completed: Vec<(Stage, usize)>,
    }

    impl Case for Told {
        fn ways(&self) -> usize {
            3
        }

        fn warms_up(&self) -> bool {
            self.warms_up
        }

        fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
            self.turns.push((way, stage));
            let gate = Barrier::new(1);
            let mut round = Round::new(&gate, None);
            round.start();
            round.tally.moved_elsewhere(way as u64, 0);
            round.stop();
            Ok(Sample::of(&[round]).unwrap())
        }

        fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
            let sample = self.round(way, stage)?;
            self.turns.pop();
            self.again.push((self.turns.len(), stage));
            Ok(sample)
        }

        fn completed(&mut self, stage: Stage, samples: &[Sample]) {
            assert!(samples.iter().map(|sample| sample.operations).eq(0..3));
            self.completed.push((stage, samples.len()));
        }
    }

    #[test]
    fn every_stage_and_round_draws_numbers_of_its_own_and_the_same_again() {
        let stages = || [Stage::Verify, Stage::WarmUp].into_iter().chain((0..20).map(Stage::Timed));
        let drawn = |seed| stages().map(|stage| stage.random(seed).number()).collect::<Vec<u64>>();
        assert_eq!(drawn(7).into_iter().collect::<BTreeSet<u64>>().len(), 22);
        assert!(drawn(7) == drawn(7) && drawn(7) != drawn(8));
    }

    #[test]
    fn ways_take_turns_in_orders_by_seed() {
        for warms_up in [true, false] {
            let mut case = Told { warms_up, turns: Vec::new(), again: Vec::new(), completed: Vec::new() };
            let length = Length { round: Duration::ZERO, before: 2, rounds: Some(60), budget: Duration::ZERO };
            let mut course = Course::new(Plan::default(), ());
            let timed = interleave(&mut case, 1, &length, &mut Random::new(1), &mut course).unwrap();
            assert_eq!((case.turns.len() + case.again.len()) as u64, steps(3, 60, warms_up));
            assert_eq!(case.completed.len(), 61 + usize::from(warms_up));
            assert!(timed.control.len() == 60 && timed.control.iter().all(|sample| sample.operations == 1));
            let first = |stage| case.turns.iter().position(|turn| *turn == (1, stage)).unwrap();
            assert!(case.again.iter().map(|(_, stage)| *stage).eq((0..60).map(Stage::Timed)));
            let before = case.again.iter().filter(|(at, stage)| *at <= first(*stage)).count();
            assert!((15..45).contains(&before), "{before} of 60 second turns came first");
            let of = |round| case.turns.iter().filter(move |(_, stage)| *stage == Stage::Timed(round));
            let orders: Vec<Vec<usize>> = (0..60).map(|round| of(round).map(|(way, _)| *way).collect()).collect();
            let different: BTreeSet<&Vec<usize>> = orders.iter().collect();
            assert_eq!(different.len(), 6, "all orders of three ways: {orders:?}");
            assert!(orders.iter().all(|order| order.iter().sum::<usize>() == 3 && order.len() == 3), "{orders:?}");
            let of_way = |way: usize| &timed.ways[way];
            assert!(
                (0..3).all(|way| of_way(way).len() == 60 && of_way(way).iter().all(|s| s.operations == way as u64))
            );
        }
    }
}
