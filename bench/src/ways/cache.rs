//! Ways of the tables `cache`: pages in the memory of the process.
//!
//! * `pread`, `mmap`: the kernel's cache. The map has `MADV_RANDOM`, and its pages are touched
//!   before the first round, so that no access faults.
//! * `nowait-cache`: a lease of a page, by `try_get` where all pages are cached. Its files use
//!   direct I/O, where the file system has it.
//!
//! Where no page is cached, the cache is full before the clock starts, with other pages than those
//! of the round, so that each read evicts a page.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use futures_util::future::join_all;
use nowait::{Nowait, OpenOptions};
use nowait_cache::{Access, Builder, CachedFile, PageCache};

use super::{CACHE, CacheWay, CachedPages, Does, PolicyWay, ReadWay, Way};
use crate::measure::cache::{HitRate, Hits, PageSet, Trace, not_cached, word_of};
use crate::measure::meter::{Round, Tally};
use crate::measure::work::{Gather, Reads, Target};
use crate::sys::{Mapping, PAGE};

pub(crate) struct Preads;

impl CacheWay for Preads {
    fn open(&self, set: &PageSet<'_>) -> io::Result<Box<dyn CachedPages>> {
        Ok(Box::new(set.target.file.try_clone()?))
    }
}

impl CachedPages for File {
    fn words(&self, job: &Hits<'_>, tally: &mut Tally<'_>) -> io::Result<()> {
        let mut word = [0; 8];
        job.words(tally, |offset| {
            self.read_exact_at(&mut word, offset)?;
            Ok(u64::from_ne_bytes(word))
        })
    }

    fn copies(&self, job: &Hits<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
        job.copies(buffer, tally, |offset, block| self.read_exact_at(block, offset))
    }
}

pub(crate) struct Map;

pub(crate) static MMAP: Way = Way::new(
    "mmap",
    "a map of the file with MADV_RANDOM, whose pages the process has touched before",
    &[Does::Hits(&Map), Does::Copies(&Map)],
)
.hue(4);

impl CacheWay for Map {
    fn open(&self, set: &PageSet<'_>) -> io::Result<Box<dyn CachedPages>> {
        let map = Mapping::new(set.target.file, set.bytes())?;
        map.expect_random()?;
        set.steps(1).for_each(|(page, _)| map.copy(page * PAGE, &mut [0]));
        Ok(Box::new(map))
    }
}

impl CachedPages for Mapping {
    fn words(&self, job: &Hits<'_>, tally: &mut Tally<'_>) -> io::Result<()> {
        job.words(tally, |offset| {
            let mut word = [0; 8];
            self.copy(offset, &mut word);
            Ok(u64::from_ne_bytes(word))
        })
    }

    fn copies(&self, job: &Hits<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
        job.copies(buffer, tally, |offset, block| {
            self.copy(offset, block);
            Ok(())
        })
    }
}

pub(crate) struct Leases;

pub(crate) static NOWAIT_CACHE: Way = Way::new(
    CACHE,
    "this library's page cache: a lease of a page; where pages are missing, `get` in as many loops as the depth, or `gather`",
    &[Does::Hits(&Leases), Does::Copies(&Leases), Does::Misses(&Leases), Does::Policies(&Leases)],
);

/// Spare capacity, so that the cache evicts no page of the set.
const SPARE_BYTES: u64 = 16 << 20;
/// Number of pages of a gather that fills a cache.
const FILLED_AT_ONCE: usize = 64;

/// Returns a cache of 4 KiB pages. Reads are random, so it does not read ahead.
fn builder(capacity_bytes: u64) -> Builder {
    PageCache::builder().capacity_bytes(capacity_bytes).page_bytes(PAGE as usize).read_ahead_bytes_max(0)
}

fn open(builder: Builder, path: &Path) -> io::Result<CachedFile> {
    let file = OpenOptions::new().read(true).direct(true).open_in(Nowait::shared(), path).wait()?;
    Ok(builder.build()?.open(&file, Access::Immutable)?)
}

/// Returns the range of a page.
fn page_of(offset: u64) -> Range<u64> {
    let start = offset - offset % PAGE;
    start..start + PAGE
}

impl CacheWay for Leases {
    fn open(&self, set: &PageSet<'_>) -> io::Result<Box<dyn CachedPages>> {
        let file = open(builder(set.bytes() + SPARE_BYTES), set.target.path)?;
        for (first, end) in set.steps(FILLED_AT_ONCE) {
            file.get(first * PAGE..end * PAGE).wait()?;
        }
        Ok(Box::new(file))
    }
}

impl CachedPages for CachedFile {
    fn words(&self, job: &Hits<'_>, tally: &mut Tally<'_>) -> io::Result<()> {
        // Each thread has its own reader, as in a program.
        let file = self.clone();
        job.words(tally, |offset| {
            let lease = file.try_get(page_of(offset)).ok_or_else(not_cached)?;
            word_of(&lease, offset).ok_or_else(not_cached)
        })
    }

    fn copies(&self, job: &Hits<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
        let file = self.clone();
        job.copies(buffer, tally, |offset, block| {
            let lease = file.try_get(offset..offset + block.len() as u64).ok_or_else(not_cached)?;
            block.copy_from_slice(&lease);
            Ok(())
        })
    }
}

/// Maximum number of pages of the cache in rounds of misses.
const PAGES_OF_MISSES: u64 = 4096;

/// Returns the number of pages of the cache in rounds of misses. A round leaves as many pages
/// of the file unread.
pub(crate) fn pages_of_misses(file_bytes: u64) -> u64 {
    PAGES_OF_MISSES.min(file_bytes / PAGE / 4)
}

/// Returns a cache full of pages of the file that the round does not read.
fn full_of_others(target: Target<'_>, offsets: impl Iterator<Item = u64>) -> io::Result<CachedFile> {
    let capacity = pages_of_misses(target.size);
    let file = open(builder(capacity * PAGE), target.path)?;
    let mut is_read = vec![false; target.size.div_ceil(PAGE) as usize];
    offsets.for_each(|offset| is_read[(offset / PAGE) as usize] = true);
    let others = (0..target.size / PAGE).filter(|page| !is_read[*page as usize]).map(|page| page_of(page * PAGE));
    let others: Vec<Range<u64>> = others.take(capacity as usize).collect();
    for ranges in others.chunks(FILLED_AT_ONCE) {
        file.gather(ranges).wait()?;
    }
    if others.len() as u64 == capacity {
        Ok(file)
    } else {
        Err(io::Error::other("the round leaves too few pages to fill the cache"))
    }
}

/// Checks that the round found no page in the cache.
fn require_misses(file: &CachedFile) -> io::Result<()> {
    match file.stats().hits {
        0 => Ok(()),
        hits => Err(io::Error::other(format!("{hits} of the pages were cached"))),
    }
}

impl ReadWay for Leases {
    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = full_of_others(job.target, job.offsets.iter().copied())?;
        round.start();
        let (offsets, tally) = (RefCell::new(job.each_offset()), RefCell::new(&mut round.tally));
        let next = || offsets.borrow_mut().next();
        let loops = (0..job.depth).map(|_| async {
            while let Some(offset) = next() {
                let started = Instant::now();
                let lease = file.get(offset..offset + job.len_at(offset) as u64).await?;
                tally.borrow_mut().block(offset, &lease, started, Instant::now());
            }
            io::Result::Ok(())
        });
        let done: io::Result<()> = nowait::block_on(join_all(loops)).into_iter().collect();
        round.stop();
        done?;
        require_misses(&file)
    }

    fn gather(&self, job: &Gather<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let offsets = job.each_batch().flat_map(|batch| batch.ranges).map(|range| range.offset);
        let file = full_of_others(job.target, offsets)?;
        let ranges = |batch: &[_]| batch.iter().map(range_of).collect::<Vec<_>>();
        let ranges: Vec<_> = job.each_batch().map(|batch| ranges(batch.ranges)).collect();
        round.start();
        for (batch, ranges) in job.each_batch().zip(&ranges) {
            let started = Instant::now();
            let leases = file.gather(ranges).wait()?;
            round.tally.scattered(batch, leases.iter().map(|lease| &lease[..]), started, Instant::now());
        }
        round.stop();
        require_misses(&file)
    }
}

fn range_of(range: &crate::measure::work::Range) -> Range<u64> {
    range.offset..range.offset + u64::from(range.len)
}

impl PolicyWay for Leases {
    fn replay(&self, trace: &Trace<'_>, round: &mut Round<'_>) -> io::Result<HitRate> {
        let points = open(builder(trace.capacity as u64 * PAGE), trace.path)?;
        // Consecutive reads of a page by one reader count once.
        let scan = points.clone();
        trace.replay(round, |page, is_scan| {
            let (reader, word) = (if is_scan { &scan } else { &points }, page * PAGE..page * PAGE + 8);
            if reader.try_get(word.clone()).is_some() {
                return Ok(true);
            }
            reader.get(word).wait()?;
            Ok(false)
        })
    }
}
