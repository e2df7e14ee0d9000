//! The tables `cache`, `cache-misses` and `cache-policy`: pages in the memory of the process.
//!
//! In `cache`, threads read at random places of a set of pages, all of which a way caches before the
//! first round: eight bytes of the page in place, or a copy of the start of the page. A read takes
//! tens of nanoseconds, as the clock does, so no read has its own latency.
//!
//! In `cache-misses`, no page is cached, and each read evicts another page. The library's files are
//! the way to compare with. All use direct I/O.
//!
//! In `cache-policy`, a trace of page numbers is replayed, and the second half of its point reads
//! counts. The page cache reads a sparse file; the other caches store numbers.

use std::collections::BTreeMap;

use super::reads::file_size_of_reads;
use super::*;
use crate::measure::cache::{Hits, PageSet, Popularity, Trace, Traces};
use crate::measure::turn::by_callers;
use crate::measure::work::{Gather, Range};
use crate::report::figures::whole_size_of;
use crate::ways::{CacheWay, CachedPages, PolicyWay, pages_of_misses};

pub static HITS: Table = Table {
    name: "cache",
    about: "Pages in the memory of the process: reads of cached pages, misses, and hit rates",
    title: "cache: random cached pages of 4 KiB, 8 bytes in place or a copy of the page's start; reads/s",
    unit: "reads/s",
    file_size: file_size_of_reads,
    cases: hits,
    grids: &[Grid {
        name: "a read",
        is_detail: false,
        columns: &[Column { name: "ns", cell: |row| own(row, "ns_per_read", 1) }],
    }],
    ..Table::USUAL
};

pub static MISSES: Table = Table {
    name: "cache-misses",
    part_of: Some("cache"),
    about: "Random pages that are not cached, each of which evicts another",
    title: "cache-misses: random pages of 4 KiB past the kernel's cache, 32 in flight, into a full cache; pages/s",
    unit: "pages/s",
    file_size: file_size_of_reads,
    cases: misses,
    grids: &[Grid { name: "a page", is_detail: false, columns: &[P50, P99, CPU] }],
    latency: "p99 latency of a read or of a batch, µs",
    ..Table::USUAL
};

pub static POLICY: Table = Table {
    name: "cache-policy",
    part_of: Some("cache"),
    about: "Hit rates of traces of page numbers",
    title: "cache-policy: reads of a trace that find their page, a tenth of the pages being cached; %",
    unit: "% hits",
    compared: |row| row.figure(HIT_RATE).unwrap_or(0.0) * 100.0,
    ranked: false,
    cases: policies,
    grids: &[Grid {
        name: "found",
        is_detail: false,
        columns: &[Column { name: "hits %", cell: |row| Some(format!("{:.1}", row.figure(HIT_RATE)? * 100.0)) }],
    }],
    ..Table::USUAL
};

/// Set that fits into the L3 cache of some machines. The other set is the whole file.
const SMALL_SET: u64 = 16 << 20;
const THREADS: [usize; 2] = [1, 2];
const WORD: usize = 8;
const COPIES: [usize; 3] = [64, 1 << 10, PAGE as usize];
/// Minimum reads per thread in a timed round: 0.6 ms at 9 ns a read.
const FEWEST: u64 = 1 << 16;
/// Share of `MemAvailable` that caches of a set may use.
const MEMORY_SHARE: f64 = 0.8;

/// Caches of a set, by the names of their ways. All cases of the set use them.
type Caches = Rc<RefCell<BTreeMap<&'static str, Rc<dyn CachedPages>>>>;

#[derive(Clone, Copy)]
struct HitShape {
    bytes: usize,
    copies: bool,
    /// Maximum bytes of the set; `None` for the whole file.
    set: Option<u64>,
    threads: usize,
}

impl HitShape {
    fn pages(self, file_bytes: u64) -> u64 {
        self.set.unwrap_or(file_bytes).min(file_bytes) / PAGE
    }
}

fn hits(options: &Options) -> Vec<Case> {
    let file_bytes = options.size.or_else(|| file_size_of_reads(options)).unwrap_or(SMALL_SET);
    let small = (Some(SMALL_SET), size_of(SMALL_SET.min(file_bytes) as usize));
    // The size of a user's file is not known here.
    let whole = (None, if options.file.is_some() { "file".to_owned() } else { size_of(file_bytes as usize) });
    let sets = if options.quick || (options.file.is_none() && file_bytes <= SMALL_SET) {
        vec![small]
    } else {
        vec![small, whole]
    };
    let mut cases = Vec::new();
    for (set, name) in sets {
        let caches = Caches::default();
        for (copies, bytes) in [(false, WORD)].into_iter().chain(COPIES.map(|bytes| (true, bytes))) {
            for threads in THREADS {
                let kind = if copies { "copy" } else { "read" };
                let name = format!("{kind}={} set={name} threads={threads}", size_of(bytes));
                let ways = if copies { ways::copiers(options.roster) } else { ways::hitters(options.roster) };
                let (shape, caches) = (HitShape { bytes, copies, set, threads }, caches.clone());
                let open = move |ways, run: &mut Run<'_>| HitCase::open(ways, shape, &caches, run);
                cases.push(Case::new(name, ways, Work::For(options.round_time), open));
            }
        }
    }
    cases
}

/// One case, ready to be measured.
struct HitCase {
    /// Caches of the ways of the case; `None` if a way does not take part.
    caches: Vec<Option<Rc<dyn CachedPages>>>,
    shape: HitShape,
    /// Reads of each thread, and their seeds.
    count: u64,
    seeds: Vec<u64>,
}

impl HitCase {
    /// Opens the case, and fills the caches that do not exist.
    fn open(
        ways: Vec<Part<dyn CacheWay>>,
        shape: HitShape,
        caches: &Caches,
        run: &mut Run<'_>,
    ) -> Result<Option<Self>> {
        let file = run.place().file()?;
        let (target, pages) = (Target { direct: false, ..Target::of(file) }, shape.pages(file.size()));
        let set = PageSet { target, pages, cancel: run.cancel };
        let takes = |way: &Part<dyn CacheWay>| run.options.chooses(way.name()) && (way.way.refused)().is_none();
        let missing = ways.iter().filter(|way| takes(way) && !caches.borrow().contains_key(way.name())).count();
        let needed = missing as u64 * set.bytes();
        let free = sys::number_of("/proc/meminfo", "MemAvailable:").map(|kib| kib << 10);
        if free.is_some_and(|free| needed as f64 > free as f64 * MEMORY_SHARE) {
            let text = format!("cache: a set is left out: its caches need {}", whole_size_of(needed));
            run.report.note_once(Code::CaseLeftOut, text);
            return Ok(None);
        }
        let open = |way: &Part<dyn CacheWay>| -> Result<Option<Rc<dyn CachedPages>>> {
            if !takes(way) {
                return Ok(None);
            }
            if let Some(cache) = caches.borrow().get(way.name()) {
                return Ok(Some(cache.clone()));
            }
            let opened = way.open(&set);
            if run.place().interrupted() {
                return Err(Error::interrupted());
            }
            let opened = opened.map_err(|error| {
                Error::new(ErrorKind::Other, format!("{} cannot cache a set: {error}; omit it by --ways", way.name()))
            })?;
            let cache: Rc<dyn CachedPages> = opened.into();
            caches.borrow_mut().insert(way.name(), cache.clone());
            Ok(Some(cache))
        };
        let caches = ways.iter().map(open).collect::<Result<_>>()?;
        Ok(Some(Self { caches, shape, count: 0, seeds: Vec::new() }))
    }
}

impl Bench for HitCase {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let (threads, mut random) = (self.shape.threads, stage.random(place.options.seed));
        let least = if stage == Stage::Verify { 1 } else { FEWEST };
        self.count = (operations as u64 / threads as u64).max(least);
        self.seeds = (0..threads).map(|_| random.number()).collect();
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (file, HitShape { bytes, copies, threads, .. }) = (turn.file()?, self.shape);
        let pages = self.shape.pages(file.size());
        file.make_mixed(std::iter::once((0..pages, true)))?;
        let cache = self.caches[turn.index].as_deref();
        let cache = cache.ok_or_else(|| turn.failed("its pages are not cached"))?;
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let (count, seeds, cancel) = (self.count, &self.seeds, turn.cancel);
        let outcome = by_callers(threads, turn.check(&matches), |index, round| {
            let job = Hits { pages, bytes, count, seed: seeds[index], cancel };
            let mut buffer = Buffer::new(PAGE as usize);
            round.start();
            if copies {
                cache.copies(&job, buffer.bytes(), &mut round.tally)?;
            } else {
                cache.words(&job, &mut round.tally)?;
            }
            round.stop();
            Ok(())
        });
        let reads = count * threads as u64;
        let (mut sample, ()) = turn.complete("reads", (reads, reads * bytes as u64), outcome)?;
        sample.tell("ns_per_read", Figure::median(sample.seconds * 1e9 / count as f64));
        turn.require_sampled(&sample, file)?;
        Ok(sample)
    }
}

const IN_FLIGHT: usize = 32;

fn misses(options: &Options) -> Vec<Case> {
    let case = |(name, in_batches): (&str, bool)| {
        let open = move |ways, run: &mut Run<'_>| {
            let file = run.place().file()?;
            let direct = run.takes_direct(file.path(), "cache-misses: pages past the kernel's cache are")?;
            Ok(direct.then(|| MissCase { ways, in_batches, offsets: Vec::new() }))
        };
        Case::new(name, ways::missers(options.roster), Work::For(options.round_time), open).beside(FILLING)
    };
    [("get", false), ("gather", true)].into_iter().map(case).collect()
}

/// Time to fill the cache before a round.
const FILLING: Duration = Duration::from_millis(150);

/// One case, ready to be measured.
struct MissCase {
    ways: Vec<Part<dyn ReadWay>>,
    in_batches: bool,
    offsets: Vec<u64>,
}

impl Bench for MissCase {
    /// Draws whole pages, each at most once, and leaves enough others to fill the cache.
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let size = place.file()?.size();
        let pages = size / PAGE;
        let most = (pages - pages_of_misses(size)) as usize / IN_FLIGHT * IN_FLIGHT;
        let count = operations.next_multiple_of(IN_FLIGHT).max(2 * IN_FLIGHT).min(most);
        let pages = stage.random(place.options.seed).permutation(pages);
        self.offsets = pages.into_iter().take(count).map(|page| page * PAGE).collect();
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (file, way, cancel) = (turn.file()?, self.ways[turn.index], turn.cancel);
        let target = Target { direct: true, ..Target::of(file) };
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let page = PAGE as usize;
        let mut buffer = Buffer::new(page * IN_FLIGHT);
        let outcome = alone(turn.check(&matches), |round| {
            if self.in_batches {
                let ranges: Vec<Range> =
                    self.offsets.iter().map(|&offset| Range { offset, len: page as u32 }).collect();
                return way.gather(&Gather::new(target, &ranges, IN_FLIGHT, cancel), buffer.bytes(), round);
            }
            let offsets = &self.offsets;
            let job = Reads { target, block: page, depth: IN_FLIGHT, offsets, pace: None, cancel };
            way.reads(&job, buffer.bytes(), round)
        });
        let count = self.offsets.len() as u64;
        let (sample, ()) = turn.complete("pages", (count, count * PAGE), outcome)?;
        turn.require_sampled(&sample, file)?;
        Ok(sample)
    }
}

/// Name of the share of the counted reads that found their page.
const HIT_RATE: &str = "hit_rate";
/// Number of pages of a trace, and of its point reads for each page.
const PAGES: u64 = 100_000;
const QUICK_PAGES: u64 = 20_000;
const READS_A_PAGE: u64 = 5;
/// Assumed time of a replay for each read.
const REPLAYED: Duration = Duration::from_micros(1);

fn policies(options: &Options) -> Vec<Case> {
    let pages = if options.quick { QUICK_PAGES } else { PAGES };
    let count = pages * READS_A_PAGE;
    let case = |(name, popularity, scans): (&str, Popularity, bool)| {
        let open = move |ways, run: &mut Run<'_>| {
            let traces = Traces::new(popularity, scans, pages, pages / 10);
            let dir = &run.options.dir;
            let file = testfile::create_nameless(dir)?;
            let bytes = traces.file_pages(count as usize) * PAGE;
            file.set_len(bytes).map_err(|error| Error::io("set the length of a sparse file in", dir, &error))?;
            Ok(Some(PolicyCase { ways, traces, file, capacity: pages as usize / 10, reads: Vec::new() }))
        };
        let work = Work::Exactly(count as usize, REPLAYED * count as u32);
        Case::new(name, ways::policies(options.roster), work, open).in_directory()
    };
    [
        ("zipf=0.8", Popularity::Zipf(0.8), false),
        ("zipf=0.8 scans", Popularity::Zipf(0.8), true),
        ("zipf=1.0 scans", Popularity::Zipf(1.0), true),
        ("loop=1.1", Popularity::Loop(1.1), false),
    ]
    .into_iter()
    .map(case)
    .collect()
}

/// One case, ready to be measured.
struct PolicyCase {
    ways: Vec<Part<dyn PolicyWay>>,
    traces: Traces,
    /// Sparse file of all pages.
    file: File,
    capacity: usize,
    reads: Vec<(u32, bool)>,
}

impl Bench for PolicyCase {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        self.reads = self.traces.draw(stage.random(place.options.seed), operations);
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (path, Self { capacity, reads, .. }) = (sys::path_of(&self.file), &*self);
        let trace = Trace { path: &path, capacity: *capacity, reads, cancel: turn.cancel };
        let outcome = alone(None, |round| self.ways[turn.index].replay(&trace, round));
        let (mut sample, rate) = turn.sample(outcome, |error| turn.failed(error))?;
        turn.require("reads", &sample, (reads.len() as u64, 0))?;
        sample.tell(HIT_RATE, Figure::Ratio(rate.hits as f64, rate.reads as f64));
        Ok(sample)
    }
}
