//! Work of the tables `cache` and `cache-policy`: reads of cached pages, and the page numbers that
//! a program reads.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::measure::meter::{Round, Tally};
use crate::measure::work::Target;
use crate::random::Random;
use crate::sys::PAGE;

/// First pages of a file; a way caches all of them.
#[derive(Debug, Clone, Copy)]
pub struct PageSet<'a> {
    pub target: Target<'a>,
    pub pages: u64,
    pub cancel: &'a AtomicBool,
}

impl PageSet<'_> {
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// Iterates over the pages in steps, until an interrupt: the first page of a step, and the page
    /// after its last.
    pub fn steps(&self, length: usize) -> impl Iterator<Item = (u64, u64)> {
        let steps = (0..self.pages).step_by(length).take_while(|_| !self.cancel.load(Ordering::Relaxed));
        steps.map(move |first| (first, self.pages.min(first + length as u64)))
    }
}

/// Number of reads between two looks for an interrupt, and at the bytes.
const CHUNK: u64 = 4096;
const WORD: usize = size_of::<u64>();

/// Returns the eight bytes of a page at an offset in the file, a multiple of eight.
#[inline(always)]
pub fn word_of(page: &[u8], offset: u64) -> Option<u64> {
    let start = (offset % PAGE) as usize;
    Some(u64::from_ne_bytes(page.get(start..start + WORD)?.try_into().ok()?))
}

/// Error of a read whose page is not cached.
#[cold]
pub fn not_cached() -> io::Error {
    io::Error::other("a page of the set is not cached")
}

/// Reads at random places of a [`PageSet`] by one thread. No read has its own latency: the clock
/// would take as long as the read.
#[derive(Debug, Clone, Copy)]
pub struct Hits<'a> {
    pub pages: u64,
    /// Number of bytes of a read.
    pub bytes: usize,
    pub count: u64,
    pub seed: u64,
    pub cancel: &'a AtomicBool,
}

impl Hits<'_> {
    /// Reads eight bytes in each operation. `read` gets their offset in the file, a multiple of
    /// eight.
    // Inlined, so that each way has its own loop.
    #[inline(always)]
    pub fn words(&self, tally: &mut Tally<'_>, mut read: impl FnMut(u64) -> io::Result<u64>) -> io::Result<()> {
        let (mut random, words) = (Random::new(self.seed), self.pages * PAGE / WORD as u64);
        for count in self.chunks(tally.verifies()) {
            let (mut sum, mut last) = (0_u64, (0, 0_u64));
            for _ in 0..count {
                let offset = random.below(words) * WORD as u64;
                last = (offset, read(offset)?);
                sum = sum.wrapping_add(last.1);
            }
            black_box(sum);
            tally.count(count, count * WORD as u64);
            tally.found(last.0, &last.1.to_ne_bytes());
        }
        Ok(())
    }

    /// Copies the first bytes of a page in each operation. `read` gets the offset of the page in
    /// the file.
    #[inline(always)]
    pub fn copies(
        &self,
        buffer: &mut [u8],
        tally: &mut Tally<'_>,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut random, block) = (Random::new(self.seed), &mut buffer[..self.bytes]);
        for count in self.chunks(tally.verifies()) {
            let mut offset = 0;
            for _ in 0..count {
                offset = random.below(self.pages) * PAGE;
                read(offset, block)?;
                black_box(&*block);
            }
            tally.count(count, count * block.len() as u64);
            tally.found(offset, block);
        }
        Ok(())
    }

    /// Iterates over the lengths of the chunks, until an interrupt. In a round that verifies, each
    /// read is a chunk, so that its bytes are compared.
    fn chunks(&self, verifies: bool) -> impl Iterator<Item = u64> {
        let (length, count) = (if verifies { 1 } else { CHUNK }, self.count);
        let chunks = (0..count).step_by(length as usize).map(move |done| length.min(count - done));
        chunks.take_while(|_| !self.cancel.load(Ordering::Relaxed))
    }
}

/// Sequence of page numbers that a program reads.
pub struct Trace<'a> {
    /// Sparse file with all pages. Its reads need no device.
    pub path: &'a Path,
    /// Maximum number of cached pages.
    pub capacity: usize,
    /// Page number of each read, and whether a scan makes it.
    pub reads: &'a [(u32, bool)],
    pub cancel: &'a AtomicBool,
}

impl fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("capacity", &self.capacity).field("reads", &self.reads.len()).finish()
    }
}

/// Reads of a [`Trace`] that count, and how many of them found their page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HitRate {
    pub hits: u64,
    pub reads: u64,
}

impl Trace<'_> {
    /// Replays the reads. `is_hit` gets a page number and whether a scan reads it, brings the page
    /// into the cache, and returns whether it was cached. The first half only fills the cache, and
    /// reads of scans do not count.
    #[inline(always)]
    pub fn replay(
        &self,
        round: &mut Round<'_>,
        mut is_hit: impl FnMut(u64, bool) -> io::Result<bool>,
    ) -> io::Result<HitRate> {
        let mut rate = HitRate::default();
        round.start();
        let (first, second) = self.reads.split_at(self.reads.len() / 2);
        for (half, counts) in [(first, 0), (second, 1)] {
            for chunk in half.chunks(CHUNK as usize) {
                if self.cancel.load(Ordering::Relaxed) {
                    break;
                }
                for &(page, is_scan) in chunk {
                    let hit = is_hit(u64::from(page), is_scan)?;
                    let counts = counts & u64::from(!is_scan);
                    rate.reads += counts;
                    rate.hits += counts & u64::from(hit);
                }
                round.tally.count(chunk.len() as u64, 0);
            }
        }
        round.stop();
        Ok(rate)
    }
}

/// Distribution of the reads of a [`Trace`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Popularity {
    /// Zipf's law with this exponent.
    Zipf(f64),
    /// In order, again and again, over this multiple of the cache's capacity.
    Loop(f64),
}

/// Draws the reads of a trace.
#[derive(Debug)]
pub struct Traces {
    popularity: Popularity,
    pages: u64,
    capacity: u64,
    /// Whether a scan reads new pages, one beside each read in every other block of `pages / 4`
    /// reads.
    scans: bool,
    /// Sums of the weights of the ranks, for [`Popularity::Zipf`].
    weights: Vec<f64>,
}

impl Traces {
    pub fn new(popularity: Popularity, scans: bool, pages: u64, capacity: u64) -> Self {
        let mut sum = 0.0;
        let mut sum_to = |rank: u64, exponent: f64| {
            sum += (rank as f64).powf(-exponent);
            sum
        };
        let weights = match popularity {
            Popularity::Zipf(exponent) => (1..=pages).map(|rank| sum_to(rank, exponent)).collect(),
            Popularity::Loop(_) => Vec::new(),
        };
        Self { popularity, pages, capacity, scans, weights }
    }

    /// Returns the number of pages of the file for this many reads.
    pub fn file_pages(&self, count: usize) -> u64 {
        self.pages + if self.scans { count as u64 } else { 0 }
    }

    /// Draws `count` reads, besides those of scans.
    pub fn draw(&self, mut random: Random, count: usize) -> Vec<(u32, bool)> {
        // Popular pages are spread over the file.
        let places = random.permutation(self.pages);
        let block = (self.pages / 4).max(1) as usize;
        let (mut reads, mut scanned) = (Vec::with_capacity(2 * count), self.pages);
        for number in 0..count {
            let page = match self.popularity {
                Popularity::Zipf(_) => places[self.rank(&mut random)],
                Popularity::Loop(length) => number as u64 % (self.capacity as f64 * length) as u64,
            };
            reads.push((page as u32, false));
            if self.scans && number / block % 2 == 0 {
                reads.push((scanned as u32, true));
                scanned += 1;
            }
        }
        reads
    }

    fn rank(&self, random: &mut Random) -> usize {
        let all = self.weights.last().copied().unwrap_or(1.0);
        let wanted = random.number() as f64 / u64::MAX as f64 * all;
        self.weights.partition_point(|sum| *sum < wanted).min(self.weights.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::turn::alone;

    #[test]
    fn a_round_reads_as_often_as_asked_and_keeps_checksums_of_some() {
        let cancel = AtomicBool::new(false);
        let job = Hits { pages: 3, bytes: 64, count: 2 * CHUNK + 1, seed: 7, cancel: &cancel };
        let (sample, ()) = alone(None, |round| {
            round.start();
            job.words(&mut round.tally, Ok)?;
            job.copies(&mut [0; PAGE as usize], &mut round.tally, |offset, block| {
                assert_eq!((offset % PAGE, block.len()), (0, 64));
                Ok(())
            })?;
            round.stop();
            Ok(())
        })
        .unwrap();
        let sample = sample.unwrap();
        assert_eq!((sample.operations, sample.bytes), (4 * CHUNK + 2, (2 * CHUNK + 1) * (8 + 64)));
        assert_eq!(sample.sampled.len(), 6);
        assert!(sample.sampled.iter().all(|sampled| sampled.offset < 3 * PAGE));
    }

    #[test]
    fn every_read_of_a_verified_round_is_compared() {
        let cancel = AtomicBool::new(false);
        let job = Hits { pages: 3, bytes: 8, count: 100, seed: 7, cancel: &cancel };
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let check = |offset: u64, bytes: &[u8]| {
            seen.fetch_add(1, Ordering::Relaxed);
            bytes == offset.to_ne_bytes()
        };
        let (sample, ()) = alone(Some(&check), |round| {
            round.start();
            job.words(&mut round.tally, Ok)?;
            round.stop();
            Ok(())
        })
        .unwrap();
        assert_eq!((sample.unwrap().wrong, seen.into_inner()), (None, 100));
    }

    #[test]
    fn a_trace_has_its_popular_pages_and_its_scans_have_each_page_once() {
        let traces = Traces::new(Popularity::Zipf(1.0), true, 1000, 100);
        let reads = traces.draw(Random::new(1), 10_000);
        let scans: Vec<u32> = reads.iter().filter(|(_, scan)| *scan).map(|(page, _)| *page).collect();
        assert_eq!(scans, (1000..1000 + scans.len() as u32).collect::<Vec<_>>());
        assert!((4000..6000).contains(&scans.len()) && traces.file_pages(10_000) >= 1000 + scans.len() as u64);
        let mut counts = vec![0; 1000];
        reads.iter().filter(|(_, scan)| !scan).for_each(|(page, _)| counts[*page as usize] += 1);
        counts.sort_unstable();
        // The first rank has 1 / H(1000) of the reads.
        assert!((1200..1500).contains(&counts[999]), "{}", counts[999]);
        let reads = Traces::new(Popularity::Loop(1.1), false, 1000, 100).draw(Random::new(1), 250);
        assert_eq!((reads[109], reads[110], reads[249]), ((109, false), (0, false), (29, false)));
    }

    #[test]
    fn only_point_reads_of_the_second_half_count() {
        let cancel = AtomicBool::new(false);
        let reads = [(1, false), (2, false), (1, false), (9, true), (3, false), (1, false)];
        let trace = Trace { path: Path::new("/"), capacity: 1, reads: &reads, cancel: &cancel };
        let (sample, rate) = alone(None, |round| trace.replay(round, |page, _| Ok(page == 1))).unwrap();
        assert_eq!((sample.unwrap().operations, rate), (6, HitRate { hits: 1, reads: 2 }));
    }
}
