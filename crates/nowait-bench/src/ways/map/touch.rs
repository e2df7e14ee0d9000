//! A map as it is usually used: whoever wants a page touches it, and waits there for the disk. With
//! advice given before, or a thread that goes ahead.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::watch::{Populated, TICK, Watch};
use crate::measure::meter::Round;
use crate::measure::work::{Populate, Reads};
use crate::sys::{MapAdvice, Mapping, PAGE};
use crate::ways::read::threads::at_once;
use crate::ways::{PopulateWay, RowWay, Way};

pub(crate) struct Touch;
pub(crate) struct WillNeed;
pub(crate) struct Random;
pub(crate) struct Threads;
pub(crate) struct Thread;

/// The thread could do something else after so many touches: one fault maps as many pages of what
/// is cached (fault_around_bytes).
const BEAT_PAGES: usize = 16;

impl Way for Touch {
    fn name(&self) -> &'static str {
        "touch"
    }
}

impl PopulateWay for Touch {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> io::Result<Populated> {
        let mut watch = Watch::start(job, round);
        let map = Mapping::new(job.file, job.size)?;
        touch_in_order(&map, job, &mut watch);
        Ok(watch.stop(map))
    }
}

impl Way for WillNeed {
    fn name(&self) -> &'static str {
        "willneed"
    }
}

impl PopulateWay for WillNeed {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> io::Result<Populated> {
        let mut watch = Watch::start(job, round);
        let map = Mapping::new(job.file, job.size)?;
        // One call, of which the kernel does no more than `read_ahead_kb` (mm/readahead.c,
        // force_page_cache_ra). In pieces, for all of the file, it took twice as long: what is read
        // by advice lies in single pages.
        map.advise(0..job.size, MapAdvice::WillNeed)?;
        watch.beat();
        touch_in_order(&map, job, &mut watch);
        Ok(watch.stop(map))
    }
}

impl Way for Thread {
    fn name(&self) -> &'static str {
        "thread"
    }
}

impl PopulateWay for Thread {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> io::Result<Populated> {
        let mut watch = Watch::start(job, round);
        let map = Mapping::new(job.file, job.size)?;
        let touched = AtomicU64::new(0);
        thread::scope(|scope| {
            let toucher = scope.spawn(|| {
                for chunk in job.each_chunk() {
                    for page in pages(&chunk) {
                        map.touch(page);
                    }
                    touched.store(chunk.end, Ordering::Release);
                }
            });
            let mut announced = 0;
            loop {
                let last = toucher.is_finished();
                let now = touched.load(Ordering::Acquire);
                if now > announced {
                    watch.announced(&map, announced..now);
                    announced = now;
                }
                watch.beat();
                if last {
                    break;
                }
                thread::sleep(TICK);
            }
        });
        Ok(watch.stop(map))
    }
}

impl RowWay for Touch {
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let map = map(job)?;
        round.start();
        for offset in job.each_offset() {
            take(&map, offset, Instant::now(), job, buffer, round);
        }
        round.stop();
        Ok(())
    }
}

impl Way for Random {
    fn name(&self) -> &'static str {
        "random"
    }
}

impl RowWay for Random {
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let map = map(job)?;
        map.advise(0..job.target.size, MapAdvice::Random)?;
        round.start();
        for offset in job.each_offset() {
            take(&map, offset, Instant::now(), job, buffer, round);
        }
        round.stop();
        Ok(())
    }
}

impl Way for Threads {
    fn name(&self) -> &'static str {
        "random-threads"
    }
}

impl RowWay for Threads {
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let map = map(job)?;
        map.advise(0..job.target.size, MapAdvice::Random)?;
        let next = AtomicUsize::new(0);
        at_once(job.depth, job.block, buffer, round, |block, tally| {
            while let Some(offset) = job.offset(next.fetch_add(1, Ordering::Relaxed)) {
                let (started, row) = (Instant::now(), &mut block[..job.len_at(offset)]);
                map.copy(offset, row);
                tally.block(offset, row, started, Instant::now());
            }
            Ok(())
        })
        .map(drop)
    }
}

impl RowWay for WillNeed {
    /// All announced before the first is taken was a fifth to a third slower.
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let map = map(job)?;
        let mut announced = VecDeque::with_capacity(job.depth);
        let mut offsets = job.each_offset();
        round.start();
        loop {
            while announced.len() < job.depth {
                let Some(offset) = offsets.next() else { break };
                let started = Instant::now();
                map.advise(offset..offset + job.len_at(offset) as u64, MapAdvice::WillNeed)?;
                announced.push_back((offset, started));
            }
            let Some((offset, started)) = announced.pop_front() else { break };
            take(&map, offset, started, job, buffer, round);
        }
        round.stop();
        Ok(())
    }
}

/// With the readahead that is usual.
fn map(job: &Reads<'_>) -> io::Result<Mapping> {
    Mapping::new(&File::open(job.target.path)?, job.target.size)
}

/// Copies a row out of the map.
fn take(map: &Mapping, offset: u64, started: Instant, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) {
    let row = &mut buffer[..job.len_at(offset)];
    map.copy(offset, row);
    round.tally.block(offset, row, started, Instant::now());
}

fn touch_in_order(map: &Mapping, job: &Populate<'_>, watch: &mut Watch<'_, '_>) {
    for chunk in job.each_chunk() {
        for (number, page) in pages(&chunk).enumerate() {
            map.touch(page);
            if number % BEAT_PAGES == 0 {
                watch.beat();
            }
        }
        watch.announced(map, chunk);
    }
}

fn pages(chunk: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    chunk.clone().step_by(PAGE as usize)
}
