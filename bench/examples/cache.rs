//! `nowait-cache` beside the kernel's page cache, maps of files, and general caches.
//!
//! `cargo run --release --example cache -- DIR [hits|misses|policy]`. Makes a file of 1 GiB in DIR
//! and removes it. The ways of a case take turns. A line shows the median of a way's rounds and
//! their spread.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{Ready, join_all, ready};
use futures_util::{StreamExt, TryStreamExt, stream};
use memmap2::{Advice, Mmap};
use nowait::OpenOptions;
use nowait_bench::random::Random;
use nowait_bench::stats::median;
use nowait_cache::{Access, CachedFile, PageCache};

const PAGE: usize = 4096;
const SIZE: u64 = 1 << 30;
const ROUNDS: usize = 7;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Page = Arc<[u8; PAGE]>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: cache DIR [hits|misses|policy]")?;
    let only = arguments.next();
    let wants = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let file = tempfile::NamedTempFile::new_in(&dir)?;
    let (path, mut random) = (file.path(), Random::of(1, 0));
    let mut block = vec![0_u8; 1 << 20];
    for offset in (0..SIZE).step_by(block.len()) {
        block.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.number().to_le_bytes()));
        file.as_file().write_all_at(&block, offset)?;
    }
    file.as_file().sync_all()?;
    if wants("hits") {
        hits(path)?;
    }
    if wants("misses") {
        misses(path)?;
    }
    if wants("policy") {
        policy(Path::new(&dir))?;
    }
    Ok(())
}

/// Prints a case: a line for each way, with the median of its rounds and their spread.
fn print(case: &str, figures: &BTreeMap<&str, Vec<f64>>, unit: &str) {
    println!("{case}");
    for (way, rounds) in figures {
        let middle = median(rounds);
        let (low, high) =
            rounds.iter().fold((f64::MAX, 0_f64), |(low, high), value| (low.min(*value), high.max(*value)));
        println!("  {way:<22} {middle:9.1} {unit} ({:.2}–{:.2})", low / middle, high / middle);
    }
}

fn cached(path: &Path, capacity: u64) -> Result<CachedFile> {
    let cache = PageCache::builder().capacity_bytes(capacity).page_bytes(PAGE).build()?;
    Ok(cache.open(&OpenOptions::new().read(true).direct(true).open(path).wait()?, Access::Immutable)?)
}

/// Ways to see bytes of a cached page.
struct Ways {
    cached: CachedFile,
    plain: File,
    map: Mmap,
    quick: quick_cache::sync::Cache<u64, Page>,
    moka: moka::sync::Cache<u64, Page>,
}

const HITS: [&str; 11] = [
    "lease, 8 bytes",
    "lease, nothing read",
    "mmap, 8 bytes",
    "quick_cache, 8 bytes",
    "moka, 8 bytes",
    "lease, copy 64",
    "pread 64",
    "lease, copy 1024",
    "pread 1024",
    "lease, copy 4096",
    "pread 4096",
];

impl Ways {
    /// Reads random pages of the set; returns nanoseconds of a read.
    fn time(&self, way: &str, pages: u64, seed: u64) -> f64 {
        let length: usize = way.rsplit(' ').next().and_then(|length| length.parse().ok()).unwrap_or(PAGE);
        let cached = self.cached.clone();
        let lease = |offset: u64, length: usize| cached.try_get(offset..offset + length as u64).expect("cached");
        let word = |page: &[u8], at: u64| u64::from(page[(at as usize % PAGE) & !7]);
        let mut buffer = [0_u8; PAGE];
        // A loop for each way: no way pays for the choice.
        match way {
            "lease, 8 bytes" => timed(4_000_000, pages, seed, |offset, at| word(&lease(offset, PAGE), at)),
            "lease, nothing read" => timed(4_000_000, pages, seed, |offset, _| lease(offset, PAGE).len() as u64),
            "mmap, 8 bytes" => {
                timed(4_000_000, pages, seed, |offset, at| word(&self.map[offset as usize..][..PAGE], at))
            }
            "quick_cache, 8 bytes" => timed(4_000_000, pages, seed, |offset, at| {
                word(&self.quick.get(&(offset / PAGE as u64)).expect("cached")[..], at)
            }),
            "moka, 8 bytes" => timed(200_000, pages, seed, |offset, at| {
                word(&self.moka.get(&(offset / PAGE as u64)).expect("cached")[..], at)
            }),
            way if way.starts_with("lease") => timed(4_000_000, pages, seed, |offset, _| {
                buffer[..length].copy_from_slice(&lease(offset, length));
                u64::from(black_box(&buffer)[0])
            }),
            _ => timed(200_000, pages, seed, |offset, _| {
                self.plain.read_exact_at(&mut buffer[..length], offset).expect("the file is there");
                u64::from(black_box(&buffer)[0])
            }),
        }
    }
}

/// Calls `read` with offsets of random pages, and random numbers; returns nanoseconds of a call.
#[inline(always)]
fn timed(count: u32, pages: u64, seed: u64, mut read: impl FnMut(u64, u64) -> u64) -> f64 {
    let (mut random, mut sum) = (Random::of(seed, 1), 0_u64);
    let begun = Instant::now();
    for _ in 0..count {
        let number = random.number();
        sum = sum.wrapping_add(read(number % pages * PAGE as u64, number >> 40));
    }
    black_box(sum);
    begun.elapsed().as_nanos() as f64 / f64::from(count)
}

fn hits(path: &Path) -> Result<()> {
    for (name, size) in [("16 MiB", 16 << 20), ("1 GiB", SIZE)] {
        let pages = size / PAGE as u64;
        let plain = File::open(path)?;
        // SAFETY: the file belongs to this program, and nothing changes it.
        let map = unsafe { Mmap::map(&plain)? };
        map.advise(Advice::Random)?;
        let ways = Ways {
            cached: cached(path, size + (16 << 20))?,
            plain,
            map,
            quick: quick_cache::sync::Cache::new(pages as usize * 2),
            moka: moka::sync::Cache::new(pages * 2),
        };
        for page in 0..pages {
            let lease = ways.cached.get(page * PAGE as u64..(page + 1) * PAGE as u64).wait()?;
            let owned: Page = Arc::new(lease[..].try_into()?);
            ways.quick.insert(page, owned.clone());
            ways.moka.insert(page, Arc::new(*owned));
            black_box(ways.map[(page as usize) * PAGE]);
        }
        for threads in [1_u64, 2] {
            let mut figures = BTreeMap::<&str, Vec<f64>>::new();
            for round in 0..=ROUNDS as u64 {
                for way in HITS {
                    let time = std::thread::scope(|scope| {
                        let one = |thread| {
                            let ways = &ways;
                            scope.spawn(move || ways.time(way, pages, round * 16 + thread))
                        };
                        let all: Vec<_> = (0..threads).map(one).collect();
                        all.into_iter().map(|thread| thread.join().expect("no panic")).fold(0_f64, f64::max)
                    });
                    // The first round warms up.
                    if round > 0 {
                        figures.entry(way).or_default().push(time);
                    }
                }
            }
            print(&format!("hits, {name}, {threads} threads"), &figures, "ns");
        }
        let lease = ways.cached.try_get(0..PAGE as u64).ok_or("not cached")?;
        let mut figures = BTreeMap::<&str, Vec<f64>>::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            (0..1_000_000).for_each(|_| drop(black_box(lease.clone())));
            figures.entry("clone of a lease").or_default().push(begun.elapsed().as_nanos() as f64 / 1e6);
        }
        print(&format!("clone, {name}"), &figures, "ns");
    }
    Ok(())
}

const MISSES: [&str; 5] = [
    "batch: gather of the file",
    "batch: gather of the cache",
    "batch: reads of the cache",
    "in flight: file",
    "in flight: cache",
];

/// The end of a read whose bytes nothing needs.
fn seen<T>(page: T) -> Ready<nowait::Result<()>> {
    black_box(page);
    ready(Ok(()))
}

/// Random pages that are not cached, 32 at a time: in batches, and always in flight.
fn misses(path: &Path) -> Result<()> {
    const BATCHES: usize = 200;
    let file = OpenOptions::new().read(true).direct(true).open(path).wait()?;
    let mut figures = BTreeMap::<&str, Vec<f64>>::new();
    // Full at first, so that each miss evicts a page, and the frames have memory. No page is read twice.
    let [one, other, third] = [cached(path, 16 << 20)?, cached(path, 16 << 20)?, cached(path, 16 << 20)?];
    let pages = Random::of(1, 2).permutation(SIZE / PAGE as u64);
    let (fills, pages) = pages.split_at(4096);
    for page in fills {
        for cache in [&one, &other, &third] {
            cache.get(page * PAGE as u64..(page + 1) * PAGE as u64).wait()?;
        }
    }
    for (round, pages) in pages.chunks(BATCHES * 32).take(ROUNDS + 1).enumerate() {
        let batch = |number: usize| pages[number * 32..(number + 1) * 32].iter().map(|page| page * PAGE as u64);
        for way in MISSES {
            let begun = Instant::now();
            let offsets = pages.iter().map(|page| page * PAGE as u64);
            if way.starts_with("in flight") {
                nowait::block_on(async {
                    // The next read begins when one is done.
                    if way == "in flight: file" {
                        let reads = stream::iter(offsets).map(|offset| file.read_range(offset, PAGE));
                        reads.buffer_unordered(32).try_for_each(seen).await
                    } else {
                        let reads = stream::iter(offsets).map(|offset| third.get(offset..offset + PAGE as u64));
                        reads.buffer_unordered(32).try_for_each(seen).await
                    }
                })?;
                if round > 0 {
                    let per_s = pages.len() as f64 / begun.elapsed().as_secs_f64();
                    figures.entry(way).or_default().push(per_s / 1e3);
                }
                continue;
            }
            for number in 0..BATCHES {
                match way {
                    "batch: gather of the file" => {
                        let ranges: Vec<_> = batch(number).map(|offset| (offset, PAGE)).collect();
                        black_box(nowait::block_on(file.gather(&ranges)).map_err(|error| error.error)?);
                    }
                    "batch: gather of the cache" => {
                        let ranges: Vec<_> = batch(number).map(|offset| offset..offset + PAGE as u64).collect();
                        black_box(nowait::block_on(one.gather(&ranges))?);
                    }
                    _ => {
                        let gets = batch(number).map(|offset| other.get(offset..offset + PAGE as u64));
                        for lease in nowait::block_on(join_all(gets)) {
                            black_box(lease?);
                        }
                    }
                }
            }
            if round > 0 {
                let per_s = (BATCHES * 32) as f64 / begun.elapsed().as_secs_f64();
                figures.entry(way).or_default().push(per_s / 1e3);
            }
        }
    }
    assert_eq!(one.stats().hits, 0, "{:?}", one.stats());
    print("misses, 32 at a time", &figures, "k/s");
    Ok(())
}

/// Zipf-distributed ranks, by binary search in the cumulative weights.
struct Zipf {
    exponent: f64,
    cumulated: Vec<f64>,
}

impl Zipf {
    fn new(count: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf { exponent, cumulated: cumulated.collect() }
    }

    fn next(&self, random: &mut Random) -> usize {
        let all = self.cumulated.last().copied().unwrap_or(1.0);
        let wanted = random.number() as f64 / u64::MAX as f64 * all;
        self.cumulated.partition_point(|sum| *sum < wanted).min(self.cumulated.len() - 1)
    }
}

/// Hit rate of point reads over 400,000 pages, with a tenth cached, with and without scans.
fn policy(dir: &Path) -> Result<()> {
    const PAGES: usize = 400_000;
    const READS: usize = 2_000_000;
    // A sparse file: its reads need no device, so only the policy matters.
    let file = tempfile::NamedTempFile::new_in(dir)?;
    file.as_file().set_len((4 * PAGES * PAGE) as u64)?;
    for (name, exponent, scans) in
        [("zipf 0.8", 0.8, false), ("zipf 0.8 + scan", 0.8, true), ("zipf 1.0 + scan", 1.0, true)]
    {
        let cache =
            PageCache::builder().capacity_bytes((PAGES / 10 * PAGE) as u64).page_bytes(PAGE).read_ahead_bytes_max(0);
        let points = cache.build()?.open(&nowait::File::open(file.path()).wait()?, Access::Immutable)?;
        let scan = points.clone();
        let (zipf, mut random) = (Zipf::new(PAGES, exponent), Random::of(7, 3));
        let places = Random::of(8, 3).permutation(PAGES as u64);
        let (mut hits, mut reads, mut next) = (0, 0, PAGES as u64);
        for number in 0..READS {
            let offset = places[zipf.next(&mut random)] * PAGE as u64;
            let found = points.try_get(offset..offset + 8).is_some();
            if !found {
                points.get(offset..offset + 8).wait()?;
            }
            // The first half fills the cache.
            if number >= READS / 2 {
                (hits, reads) = (hits + u32::from(found), reads + 1);
            }
            // In every other block of 100,000 reads, a scan reads one new page per point read.
            if scans && number / 100_000 % 2 == 0 {
                let offset = next * PAGE as u64;
                scan.get(offset..offset + 8).wait()?;
                next += 1;
            }
        }
        println!(
            "policy, {name}, exponent {}: {:.1} % of the point reads hit",
            zipf.exponent,
            f64::from(hits) * 100.0 / f64::from(reads)
        );
    }
    Ok(())
}
