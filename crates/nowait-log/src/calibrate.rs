//! Measures the fastest way to get a block to stable storage: when a log is made, when it is found on
//! another device, and now and then while it is idle.
//!
//! Nothing predicts it. Where the device has FUA a write with `RWF_DSYNC` is one command, and on
//! some disks that is the slower one; a ring sleeps once for the write and the flush, a system call
//! twice; on copy-on-write file systems more than one write in flight is slower.

use std::time::{Duration, Instant, SystemTime};

use crate::dir::{CALIBRATION, LogDir};
use crate::format::{Control, Measured, PAGE};
use crate::options::{Durability, Strategy, Submitter, WAYS, fastest};
use nowait::{Buf, File, OpenOptions, Result};

/// Time for each strategy in each round. The rounds go through all of them, so that what disturbs
/// the disk for a while disturbs each; the median of all writes counts.
const TIME: Duration = Duration::from_millis(8);
const ROUNDS: usize = 6;
const WRITES_MIN: usize = 4;
const WRITES_MAX: usize = 400;
const FILE_BYTES: u64 = 1 << 20;
/// Factor by which two writes in flight must be faster than one. More are not tried: they bring
/// separate pages to the disk several times as fast, but records share pages, and the more writes
/// are in flight, the fewer records share one.
const GAIN_BY_DEPTH: f64 = 1.2;
/// Factor by which another strategy must be faster than the one in use, so that a measurement that
/// is repeated gives the same answer.
const GAIN_BY_CHANGE: f64 = 1.1;
/// Age from which a measurement is repeated.
const OLD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Puts the fastest strategy in `dir` into `control`, and why. Leaves both as they are, and returns
/// false, when `goes_on` says so in between.
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

/// Device of a directory; 0 where there is none.
pub(crate) fn device(dir: &LogDir) -> u64 {
    dir.descriptor().and_then(|descriptor| rustix::fs::fstat(descriptor).ok()).map_or(0, |stat| stat.st_dev)
}

/// True if the strategy was measured, on another device.
pub(crate) fn is_elsewhere(dir: &LogDir, measured: &Measured) -> bool {
    measured.at != 0 && measured.device != device(dir)
}

/// True if the strategy was measured, long ago.
pub(crate) fn is_old(measured: &Measured) -> bool {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(measured.at));
    let age = at.and_then(|at| SystemTime::now().duration_since(at).ok());
    measured.at != 0 && age.is_some_and(|age| age >= OLD)
}

/// Measures strategies; None when it does not go on.
fn measure(
    file: &File,
    control: &Control,
    has_ring: bool,
    mut goes_on: impl FnMut() -> bool,
) -> Option<(Strategy, [u32; 4])> {
    let mut page_ns = [0; 4];
    if file.descriptor().is_none() {
        // A simulated disk has no time.
        return Some((Strategy { durability: Durability::Write, by: Submitter::Ring, depth: 2 }, page_ns));
    }
    let direct = control.direct;
    // Through the page cache a durable write does the same as a write and a sync, and less is known
    // of its failures.
    let is_possible = |(durability, by): (Durability, Submitter)| {
        (direct || durability != Durability::Write) && (by != Submitter::Ring || (has_ring && direct))
    };
    let ways: Vec<usize> = (0..WAYS.len()).filter(|way| is_possible(WAYS[*way])).collect();
    let mut times: [Vec<u32>; 4] = Default::default();
    for _ in 0..ROUNDS {
        for &way in &ways {
            if !goes_on() {
                return None;
            }
            let (durability, by) = WAYS[way];
            let _ = sample(file, Strategy { durability, by, depth: 1 }, &mut times[way]);
        }
    }
    let mut candidates: Vec<(Strategy, Duration)> = Vec::new();
    for way in ways {
        let (durability, by) = WAYS[way];
        // One that fails has no times.
        if let Some(median) = median(&mut times[way]) {
            page_ns[way] = median;
            candidates.push((Strategy { durability, by, depth: 1 }, Duration::from_nanos(median.into())));
        }
    }
    let Some((mut strategy, mut alone)) = fastest(&candidates) else {
        return Some((Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 }, page_ns));
    };
    let in_use = Strategy { depth: 1, ..Strategy::of(control) };
    let is_used = |candidate: &&(Strategy, Duration)| candidate.0 == in_use;
    if let Some(used) = candidates.iter().find(is_used).filter(|_| control.measured.at != 0) {
        if alone.mul_f64(GAIN_BY_CHANGE) >= used.1 {
            (strategy, alone) = *used;
        }
    }
    // In turns with one in flight, as above.
    let (mut one, two) = (Vec::new(), &mut times[3]);
    for _ in 0..ROUNDS / 2 {
        if !goes_on() {
            return None;
        }
        let _ = sample(file, strategy, &mut one);
        let _ = sample(file, Strategy { depth: 2, ..strategy }, two);
    }
    if let (Some(one), Some(two)) = (median(&mut one), median(two)) {
        // As if it had been measured with the others.
        let share = f64::from(two) / f64::from(one);
        page_ns[3] = (alone.mul_f64(share).as_nanos() as u64).clamp(1, u32::MAX.into()) as u32;
        let gain = if control.measured.at != 0 && control.depth > 1 { 1.0 } else { GAIN_BY_DEPTH };
        if share * gain < 1.0 {
            strategy.depth = 2;
        }
    }
    Some((strategy, page_ns))
}

fn median(times: &mut [u32]) -> Option<u32> {
    let middle = times.len() / 2;
    if times.is_empty() { None } else { Some(*times.select_nth_unstable(middle).1) }
}

/// Measures nanoseconds until a page is durable, per page, with as many in flight as the strategy
/// says.
fn sample(file: &File, strategy: Strategy, times: &mut Vec<u32>) -> Result<()> {
    let started = Instant::now();
    let mut page = 0;
    for writes in 0..WRITES_MAX {
        if writes >= WRITES_MIN && started.elapsed() >= TIME {
            break;
        }
        let depth = u64::from(strategy.depth);
        let places: Vec<u64> = (0..depth).map(|n| (page + n) * PAGE as u64 % FILE_BYTES).collect();
        page += depth;
        let began = Instant::now();
        write(file, strategy, &places)?;
        let each = began.elapsed().as_nanos() / u128::from(depth);
        times.push(u32::try_from(each).unwrap_or(u32::MAX).max(1));
    }
    Ok(())
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
                // As a commit waits (`Shared::write_here`).
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
