//! The loop that measures: verify, warm up, then timed rounds in which the ways take turns.
//!
//! Each round has the ways in another order, drawn by seed, because a shared disk drifts, and
//! because a way leaves caches and queues to the one after it.

use super::meter::Sample;
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

    /// Every way has had its turn; their samples, in the order of the ways.
    fn completed(&mut self, _stage: Stage, _samples: &[Sample]) {}
}

/// Told how far a run is.
pub trait Progress {
    /// A part of the run begins; it has this many steps.
    fn begin(&mut self, what: &str, steps: u64);
    fn step(&mut self, steps: u64);
    /// Names the case that is measured now.
    fn now(&mut self, what: &str);
}

/// Ignores all of it.
impl Progress for () {
    fn begin(&mut self, _: &str, _: u64) {}
    fn step(&mut self, _: u64) {}
    fn now(&mut self, _: &str) {}
}

/// Measures a case. Returns, for each way, a sample of each timed round.
pub fn interleave(
    case: &mut dyn Case,
    rounds: usize,
    orders: &mut Random,
    progress: &mut dyn Progress,
) -> Result<Vec<Vec<Sample>>> {
    let ways = case.ways();
    let mut timed = vec![Vec::with_capacity(rounds); ways];
    let before = [Stage::Verify].into_iter().chain(case.warms_up().then_some(Stage::WarmUp));
    for stage in before.chain((0..rounds).map(Stage::Timed)) {
        case.prepare(stage);
        let mut samples: Vec<Option<Sample>> = vec![None; ways];
        for way in orders.permutation(ways as u64) {
            let way = way as usize;
            samples[way] = Some(case.round(way, stage)?);
            progress.step(1);
        }
        let samples: Vec<Sample> = samples.into_iter().flatten().collect();
        case.completed(stage, &samples);
        if let Stage::Timed(_) = stage {
            timed.iter_mut().zip(samples).for_each(|(of_way, sample)| of_way.push(sample));
        }
    }
    Ok(timed)
}

/// Number of steps of a case of so many ways.
pub fn steps(ways: usize, rounds: usize, warms_up: bool) -> u64 {
    (ways * (rounds + 1 + usize::from(warms_up))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::meter::Round;
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    struct Told {
        warms_up: bool,
        turns: Vec<(usize, Stage)>,
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

        fn completed(&mut self, stage: Stage, samples: &[Sample]) {
            assert!(samples.iter().map(|sample| sample.operations).eq(0..3));
            self.completed.push((stage, samples.len()));
        }
    }

    #[test]
    fn ways_take_turns_in_orders_by_seed() {
        for warms_up in [true, false] {
            let mut case = Told { warms_up, turns: Vec::new(), completed: Vec::new() };
            let timed = interleave(&mut case, 60, &mut Random::new(1), &mut ()).unwrap();
            assert_eq!(case.turns.len() as u64, steps(3, 60, warms_up));
            assert_eq!(case.completed.len(), 61 + usize::from(warms_up));
            let of = |round| case.turns.iter().filter(move |(_, stage)| *stage == Stage::Timed(round));
            let orders: Vec<Vec<usize>> = (0..60).map(|round| of(round).map(|(way, _)| *way).collect()).collect();
            let different: BTreeSet<&Vec<usize>> = orders.iter().collect();
            assert_eq!(different.len(), 6, "all orders of three ways: {orders:?}");
            assert!(orders.iter().all(|order| order.iter().sum::<usize>() == 3 && order.len() == 3), "{orders:?}");
            assert!((0..3).all(|way| timed[way].len() == 60 && timed[way].iter().all(|s| s.operations == way as u64)));
        }
    }
}
