//! Measures the fastest way to get a block to stable storage, once, when a log is made.
//!
//! Nothing predicts it. Where the device has FUA a write with `RWF_DSYNC` is one command, and on
//! some disks that is the slower one; a ring sleeps once for the write and the flush, a system call
//! twice; on copy-on-write file systems more than one write in flight is slower.

use std::time::{Duration, Instant};

use crate::dir::{CALIBRATION, LogDir};
use crate::format::PAGE;
use crate::options::{Durability, Strategy, Submitter};
use nowait::{Buf, File, OpenOptions, Result};

/// Time for each strategy in each round, of which the best counts.
const TIME: Duration = Duration::from_millis(12);
const ROUNDS: usize = 4;
const WRITES_MIN: usize = 8;
const WRITES_MAX: usize = 1000;
const FILE_BYTES: u64 = 1 << 20;
/// Factor by which a strategy must be faster than those before it in the list, which cost less
/// processor time.
const GAIN: f64 = 1.1;
/// Factor by which two writes in flight must be faster than one. More are not tried: they bring
/// separate pages to the disk several times as fast, but records share pages, and the more writes
/// are in flight, the fewer records share one.
const GAIN_BY_DEPTH: f64 = 1.2;

/// Returns the fastest strategy in `dir`.
pub(crate) fn choose(dir: &LogDir, direct: bool) -> Result<Strategy> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).direct(direct);
    let file = dir.open_file(&options, CALIBRATION)?;
    let chosen = file
        .write_all_from(&Buf::zeroed(FILE_BYTES as usize), 0)
        .and_then(|()| file.sync_all().wait())
        .and_then(|()| measure(&file, direct, dir.instance.has_ring()));
    drop(file);
    dir.remove_file(CALIBRATION)?;
    chosen
}

fn measure(file: &File, direct: bool, has_ring: bool) -> Result<Strategy> {
    if file.descriptor().is_none() {
        // A simulated disk has no time.
        return Ok(Strategy { durability: Durability::Write, by: Submitter::Ring, depth: 2 });
    }
    let ring = has_ring && direct;
    let ways = [
        (Durability::Write, Submitter::Ring, ring),
        (Durability::Write, Submitter::Call, true),
        (Durability::WriteAndSync, Submitter::Call, true),
    ];
    // Through the page cache a durable write does the same as a write and a sync, and less is known
    // of its failures.
    let ways =
        ways.into_iter().filter(|(durability, _, possible)| *possible && (direct || *durability != Durability::Write));
    let mut rates: Vec<(f64, Strategy)> =
        ways.map(|(durability, by, _)| (0.0, Strategy { durability, by, depth: 1 })).collect();
    for _ in 0..ROUNDS {
        for (best, strategy) in &mut rates {
            // A strategy that fails has a rate of zero.
            *best = rate(file, *strategy, 1).unwrap_or(0.0).max(*best);
        }
    }
    let better = |best: (f64, Strategy), next: (f64, Strategy)| if next.0 > best.0 * GAIN { next } else { best };
    let Some((alone, mut strategy)) = rates.into_iter().reduce(better).filter(|(rate, _)| *rate > 0.0) else {
        return Ok(Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 });
    };
    if rate(file, strategy, 2).is_ok_and(|two| two > alone * GAIN_BY_DEPTH) {
        strategy.depth = 2;
    }
    Ok(strategy)
}

/// Measures durable writes of a page per second, `depth` of them in flight.
fn rate(file: &File, strategy: Strategy, depth: u32) -> Result<f64> {
    let started = Instant::now();
    let (mut writes, mut page) = (0, 0);
    while writes < WRITES_MAX && (writes < WRITES_MIN || started.elapsed() < TIME) {
        let places: Vec<u64> = (0..u64::from(depth)).map(|n| (page + n) * PAGE as u64 % FILE_BYTES).collect();
        page += u64::from(depth);
        write(file, strategy, &places)?;
        writes += places.len();
    }
    Ok(writes as f64 / started.elapsed().as_secs_f64())
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
                written.await?;
            }
            Result::Ok(())
        })?;
    }
    if strategy.durability == Durability::WriteAndSync {
        file.sync_data().wait()?;
    }
    Ok(())
}
