//! Measures the fastest way to make a block durable: when a log is created, when it is opened on
//! another device, and once a month while it is idle.
//!
//! The fastest way cannot be predicted. On a device with FUA, a write with `RWF_DSYNC` is one
//! command, which is slower on some disks. A ring sleeps once for the write and the flush, and a
//! system call twice; but the ring's completion needs a kernel worker, which waits on a busy
//! processor. On copy-on-write file systems more than one write in flight is slower.
//!
//! Repeated measurements of a device must agree. So all ways take turns of few writes each, since
//! in long turns a few stalls dominate the times of a way. The lower quartile counts, since other
//! users of the disk and of the processor only add to a time. A gain must appear both in the even
//! rounds and in the odd rounds.

use std::time::{Duration, Instant, SystemTime};

use crate::dir::{CALIBRATION, LogDir};
use crate::format::{Control, Measured, PAGE};
use crate::options::{Durability, Strategy, Submitter, TWO, WAYS};
use crate::os;
use nowait::{Buf, File, OpenOptions, Result};

/// Consecutive writes of one way. The first is not counted: it is slowed down by what the previous
/// way left to the device.
const BURST: usize = 4;
/// Time of the measurement; a slow disk has the fewest rounds.
const TIME: Duration = Duration::from_millis(180);
const ROUNDS_MIN: usize = 10;
const ROUNDS_MAX: usize = 100;
const FILE_BYTES: u64 = 1 << 20;
/// Factor by which a way must be faster than the ones before it, which are simpler.
const GAIN: f64 = 1.1;
/// Factor by which two writes in flight must be faster than one. More are not tried: separate pages
/// become durable several times as fast, but more writes in flight mean fewer records per write.
const GAIN_BY_DEPTH: f64 = 1.2;
/// Factor by which another way must be faster than the one in use.
const GAIN_BY_CHANGE: f64 = 1.1;
/// Age from which a measurement is repeated.
const OLD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Stores the fastest strategy for `dir`, and its measurement, in `control`. If `goes_on` returns
/// false meanwhile, leaves `control` unchanged and returns false.
pub(crate) fn choose(dir: &LogDir, control: &mut Control, goes_on: impl FnMut() -> bool) -> Result<bool> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).direct(control.direct);
    let file = dir.open_file(&options, CALIBRATION)?;
    let measured = file
        .write_all_from(&Buf::zeroed(FILE_BYTES as usize), 0)
        .and_then(|()| file.sync_all().wait())
        .map(|()| measure(&file, control, dir.instance.has_ring(), goes_on));
    drop(file);
    dir.remove_file(CALIBRATION)?;
    let Some((strategy, page_ns)) = measured? else { return Ok(false) };
    (control.sync, control.caller, control.depth) = (strategy.durability.code(), strategy.by.code(), strategy.depth);
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs().max(1));
    control.measured = Measured { at, device: device(dir), page_ns };
    Ok(true)
}

/// Device of a directory; 0 if it has none.
pub(crate) fn device(dir: &LogDir) -> u64 {
    dir.descriptor().map_or(0, os::device_of)
}

/// True if the strategy was measured, on another device.
pub(crate) fn is_elsewhere(dir: &LogDir, measured: &Measured) -> bool {
    measured.at != 0 && measured.device != device(dir)
}

/// True if the strategy was measured, and the measurement is old.
pub(crate) fn is_old(measured: &Measured) -> bool {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(measured.at));
    let age = at.and_then(|at| SystemTime::now().duration_since(at).ok());
    measured.at != 0 && age.is_some_and(|age| age >= OLD)
}

/// Measures strategies; `None` if interrupted.
fn measure(
    file: &File,
    control: &Control,
    has_ring: bool,
    goes_on: impl FnMut() -> bool,
) -> Option<(Strategy, [u32; 4])> {
    if file.descriptor().is_none() {
        // Writes of a simulated disk take no time.
        return Some((Strategy { durability: Durability::Write, by: Submitter::Ring, depth: 2 }, [0; 4]));
    }
    let mut page = 0;
    let write = |strategy: Strategy| {
        let depth = u64::from(strategy.depth);
        let places: Vec<u64> = (0..depth).map(|n| (page + n) * PAGE as u64 % FILE_BYTES).collect();
        page += depth;
        let began = Instant::now();
        write(file, strategy, &places).map(|()| began.elapsed())
    };
    let costs = costs(&candidates(control.direct, has_ring), write, goes_on)?;
    let in_use = (control.measured.at != 0).then(|| Strategy::of(control));
    Some(best(&costs, in_use))
}

/// Strategies to be measured, the simplest first.
fn candidates(direct: bool, has_ring: bool) -> Vec<Strategy> {
    // Through the page cache, a durable write does the same as a write and a sync, and its failures
    // are reported less reliably.
    let is_possible = |strategy: &Strategy| {
        (direct || strategy.durability != Durability::Write) && (strategy.by != Submitter::Ring || (has_ring && direct))
    };
    let alone = WAYS.map(|(durability, by, _)| Strategy { durability, by, depth: 1 });
    // In a log, two threads have two writes in flight. Here one thread has both, in any queue.
    let two = [Durability::Write, Durability::WriteAndSync];
    let two = two.map(|durability| Strategy { durability, by: Submitter::Call, depth: 2 });
    let two = two.into_iter().filter(|_| direct);
    alone.into_iter().chain(two).filter(is_possible).collect()
}

/// Lower quartiles of a strategy's times for a page, in nanoseconds: of all rounds, and of the even
/// and the odd rounds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    all: u32,
    halves: [u32; 2],
}

impl Cost {
    fn of(even: &[u32], odd: &[u32]) -> Option<Cost> {
        Some(Cost { all: quartile([even, odd].concat())?, halves: [quartile(even.into())?, quartile(odd.into())?] })
    }

    /// True if this is faster by the factor in both halves of the rounds.
    fn is_faster(&self, than: &Cost, factor: f64) -> bool {
        self.halves.iter().zip(than.halves).all(|(ours, theirs)| f64::from(*ours) * factor < f64::from(theirs))
    }
}

fn quartile(mut times: Vec<u32>) -> Option<u32> {
    let place = times.len() / 4;
    if times.is_empty() { None } else { Some(*times.select_nth_unstable(place).1) }
}

/// Measures strategies in turns. `write` makes as many pages durable as the strategy has in flight,
/// and returns the time. A strategy that fails is left out. None if `goes_on` returned false.
fn costs(
    candidates: &[Strategy],
    mut write: impl FnMut(Strategy) -> Result<Duration>,
    mut goes_on: impl FnMut() -> bool,
) -> Option<Vec<(Strategy, Cost)>> {
    let mut times: Vec<Option<[Vec<u32>; 2]>> = vec![Some(Default::default()); candidates.len()];
    let mut elapsed = Duration::ZERO;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && elapsed >= TIME {
            break;
        }
        for turn in 0..candidates.len() {
            if !goes_on() {
                return None;
            }
            // Each strategy is the first of a round in turn.
            let at = (round + turn) % candidates.len();
            let Some(halves) = &mut times[at] else { continue };
            let strategy = candidates[at];
            let burst: Result<Vec<Duration>> = (0..BURST).map(|_| write(strategy)).collect();
            let Ok(burst) = burst else {
                times[at] = None;
                continue;
            };
            elapsed += burst.iter().sum::<Duration>();
            let page_ns = |time: &Duration| time.as_nanos() / u128::from(strategy.depth);
            let counted = burst.iter().skip(1).map(page_ns);
            halves[round % 2].extend(counted.map(|page_ns| u32::try_from(page_ns).unwrap_or(u32::MAX).max(1)));
        }
    }
    let cost = |(strategy, halves): (&Strategy, Option<[Vec<u32>; 2]>)| {
        let [even, odd] = halves?;
        Some((*strategy, Cost::of(&even, &odd)?))
    };
    Some(candidates.iter().zip(times).filter_map(cost).collect())
}

/// Returns the fastest strategy, and the times to be recorded. A strategy replaces a simpler one,
/// or the one in use, only if it is clearly faster.
fn best(costs: &[(Strategy, Cost)], in_use: Option<Strategy>) -> (Strategy, [u32; 4]) {
    let mut page_ns = [0; 4];
    for (durability, by, place) in WAYS {
        let alone = Strategy { durability, by, depth: 1 };
        page_ns[place] = costs.iter().find(|(strategy, _)| *strategy == alone).map_or(0, |(_, cost)| cost.all);
    }
    let alone = || costs.iter().filter(|(strategy, _)| strategy.depth == 1).copied();
    let better = |best: (Strategy, Cost), next: (Strategy, Cost)| {
        if next.1.is_faster(&best.1, GAIN) { next } else { best }
    };
    let Some((mut strategy, mut one)) = alone().reduce(better) else {
        // This strategy works everywhere.
        return (Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 }, page_ns);
    };
    let used = in_use.and_then(|used| alone().find(|(tried, _)| *tried == Strategy { depth: 1, ..used }));
    if let Some(used) = used.filter(|used| !one.is_faster(&used.1, GAIN_BY_CHANGE)) {
        (strategy, one) = used;
    }
    let is_two = |tried: &&(Strategy, Cost)| tried.0.depth == 2 && tried.0.durability == strategy.durability;
    if let Some((_, two)) = costs.iter().find(is_two) {
        page_ns[TWO] = two.all;
        let is_deeper = match in_use.is_some_and(|used| used.depth > 1) {
            true => !one.is_faster(two, 1.0),
            false => two.is_faster(&one, GAIN_BY_DEPTH),
        };
        strategy.depth = if is_deeper { 2 } else { 1 };
    }
    (strategy, page_ns)
}

fn write(file: &File, strategy: Strategy, places: &[u64]) -> Result<()> {
    let write = |place: u64| {
        let write = file.write_all_at(Buf::zeroed(PAGE), place);
        match strategy.durability {
            Durability::Write => write.durable(),
            Durability::WriteAndSync => write,
        }
    };
    if strategy.by == Submitter::Call && places.len() == 1 {
        write(places[0]).wait()?;
    } else {
        nowait::block_on(async {
            let begun: Vec<_> = places.iter().map(|&place| write(place).submit()).collect();
            for written in begun {
                // A commit waits in the same way (`Shared::write_here`).
                written.wait()?;
            }
            Result::Ok(())
        })?;
    }
    if strategy.durability == Durability::WriteAndSync {
        file.sync_data().wait()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk and a processor with other users.
    struct Disk {
        random: u64,
        now: Duration,
        /// Period in which others use the disk.
        busy: (Duration, Duration),
        last: Option<Strategy>,
    }

    impl Disk {
        fn new(seed: u64) -> Disk {
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            Disk { random, now: Duration::ZERO, busy: (Duration::ZERO, Duration::ZERO), last: None }
        }

        /// A number from 0 to 1.
        fn random(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 11) as f64 / (1_u64 << 53) as f64
        }

        fn millis(&mut self, most: f64) -> Duration {
            Duration::from_secs_f64(self.random() * most / 1e3)
        }

        /// Takes `true_us` and a few per cent more, or half as much again after another way. Writes
        /// in some periods of 10 ms take three times as long, and one write in ten waits for a
        /// tick.
        fn write(&mut self, strategy: Strategy, true_us: f64) -> Duration {
            let mut us = true_us * (1.0 + 0.1 * self.random());
            if self.last.replace(strategy) != Some(strategy) {
                us *= 1.5;
            }
            if self.now >= self.busy.1 {
                let begin = self.now + self.millis(40.0);
                self.busy = (begin, begin + self.millis(20.0));
            }
            if self.now >= self.busy.0 {
                us *= 3.0;
            }
            let mut took = Duration::from_secs_f64(us / 1e6);
            if self.random() < 0.1 {
                took += self.millis(4.0);
            }
            self.now += took;
            took
        }
    }

    /// Microseconds of a write: by a call, by the ring, and with a sync; then of two in flight,
    /// without and with a sync.
    type Costs = [f64; 5];

    fn cost(costs: Costs, Strategy { durability, by, depth }: Strategy) -> f64 {
        costs[match (durability, by, depth) {
            (Durability::Write, Submitter::Call, 1) => 0,
            (Durability::Write, Submitter::Ring, 1) => 1,
            (Durability::WriteAndSync, _, 1) => 2,
            (Durability::Write, ..) => 3,
            (Durability::WriteAndSync, ..) => 4,
        }]
    }

    fn measured(costs_us: Costs, seed: u64, in_use: Option<Strategy>) -> (Strategy, [u32; 4]) {
        let mut disk = Disk::new(seed);
        let write = |strategy| Ok(disk.write(strategy, cost(costs_us, strategy)));
        best(&costs(&candidates(true, true), write, || true).unwrap(), in_use)
    }

    const CALL: Strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    const RING: Strategy = Strategy { by: Submitter::Ring, ..CALL };
    const SYNC: Strategy = Strategy { durability: Durability::WriteAndSync, ..CALL };

    const fn two(strategy: Strategy) -> Strategy {
        Strategy { depth: 2, ..strategy }
    }

    /// All measurements of a disk agree with each other and with its true costs, whatever its other
    /// load.
    #[test]
    fn every_measurement_of_a_disk_chooses_the_same() {
        let disks: [(&str, Costs, Strategy); 8] = [
            ("a virtual disk", [80.0, 86.0, 80.0, 119.0, 119.0], two(CALL)),
            ("a ring that is a little faster", [80.0, 77.0, 82.0, 160.0, 160.0], CALL),
            ("a ring that saves a sleep", [120.0, 90.0, 125.0, 180.0, 180.0], RING),
            ("a ring that saves one, and a queue", [120.0, 90.0, 125.0, 100.0, 100.0], two(RING)),
            ("slow FUA", [3000.0, 3010.0, 1000.0, 6000.0, 2000.0], SYNC),
            ("copy on write", [200.0, 205.0, 200.0, 450.0, 450.0], CALL),
            ("two that gain little", [80.0, 80.0, 80.0, 148.0, 148.0], CALL),
            ("a slow disk", [8000.0, 8000.0, 8100.0, 16000.0, 16000.0], CALL),
        ];
        for (name, costs, chosen) in disks {
            for seed in 1..=200 {
                let (strategy, page_ns) = measured(costs, seed, None);
                assert_eq!(strategy, chosen, "{name}, seed {seed}: {page_ns:?}");
                let true_us = [costs[1], costs[0], costs[2], cost(costs, two(chosen)) / 2.0];
                for (page_ns, true_us) in page_ns.into_iter().zip(true_us) {
                    let off = f64::from(page_ns) / 1e3 / true_us;
                    assert!((1.0..1.1).contains(&off) || name == "a slow disk", "{name}, seed {seed}: {off}");
                }
            }
        }
    }

    /// The strategy in use stays until another one is clearly faster.
    #[test]
    fn a_measurement_that_is_repeated_keeps_what_is_in_use() {
        let even = [80.0, 78.0, 80.0, 150.0, 150.0];
        for seed in 1..=200 {
            for used in [CALL, RING, SYNC, two(CALL), two(SYNC)] {
                assert_eq!(measured(even, seed, Some(used)).0, used, "seed {seed}");
            }
            assert_eq!(measured([80.0, 100.0, 80.0, 200.0, 200.0], seed, Some(two(RING))).0, CALL, "seed {seed}");
        }
    }

    #[test]
    fn what_fails_is_not_chosen_and_what_is_interrupted_chooses_nothing() {
        let refused = || Err(crate::os::error(nowait::ErrorOp::Write, nowait::ErrorKind::Unsupported, "/".as_ref()));
        let write = |strategy: Strategy| match strategy.durability {
            Durability::Write => refused(),
            Durability::WriteAndSync => Ok(Duration::from_micros(100)),
        };
        let (strategy, page_ns) = best(&costs(&candidates(true, true), write, || true).unwrap(), None);
        assert_eq!((strategy, page_ns), (two(SYNC), [0, 0, 100_000, 50_000]));
        let none = costs(&candidates(true, true), |_| refused(), || true).unwrap();
        assert_eq!(best(&none, None), (SYNC, [0; 4]));
        let mut left = 20;
        let goes_on = || {
            left -= 1;
            left > 0
        };
        assert!(costs(&candidates(true, true), write, goes_on).is_none());
        assert!(candidates(false, true).iter().eq(&[SYNC]) && !candidates(true, false).contains(&RING));
    }
}
