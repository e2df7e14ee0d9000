//! Helpers of the tests of a cache.
#![allow(dead_code)]

#[cfg(feature = "sim")]
pub(crate) mod model;
pub(crate) mod seeds;
#[cfg(feature = "sim")]
pub(crate) mod simulated;

use std::path::Path;
use std::time::{Duration, Instant};

use nowait::File;
use nowait_cache::{Access, Builder, CachedFile, PageCache};

pub(crate) const PAGE: usize = 4096;

/// Bytes of a test file: each differs from its neighbours, and pages differ.
pub(crate) fn contents(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|at| ((at * 31 + at / 4096 * 7 + seed * 13) % 251) as u8).collect()
}

/// Settings for small pages, without readahead.
pub(crate) fn settings(pages: usize) -> Builder {
    PageCache::builder().capacity_bytes((pages * PAGE) as u64).page_bytes(PAGE).read_ahead_bytes_max(0)
}

pub(crate) fn cache(pages: usize) -> PageCache {
    settings(pages).build().unwrap()
}

pub(crate) fn opened(cache: &PageCache, path: &Path) -> CachedFile {
    cache.open(&File::open(path).wait().unwrap(), Access::Revalidate).unwrap()
}

/// Asserts that this number of pages is pinned. The thread that completes a read drops its pins after
/// it has woken the tasks, so the number is compared until it is reached.
#[track_caller]
pub(crate) fn assert_pinned(cache: &PageCache, pages: u64) {
    let began = Instant::now();
    while cache.stats().pinned != pages && began.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    assert_eq!(cache.stats().pinned, pages, "{:?}", cache.stats());
}

/// Processor time in ns of this thread, and of the threads that end waits for a frame.
pub(crate) fn waiting_ns() -> u64 {
    let this = std::fs::read_link("/proc/thread-self").unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
    let ns = tasks.filter_map(|task| {
        // A thread may have ended.
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let time = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let is_waiting = name.trim() == "nowait-cache" || this.file_name() == Some(&task.file_name());
        is_waiting.then(|| time.split(' ').next()?.parse::<u64>().ok()).flatten()
    });
    ns.sum()
}

/// A small generator, so that a seed repeats a run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// Generator with the seed of the environment's `SEED`, or another one; it is printed.
pub(crate) fn seeded() -> Random {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos().into()
    });
    println!("SEED={seed}");
    Random(seed)
}
