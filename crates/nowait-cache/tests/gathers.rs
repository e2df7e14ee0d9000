//! Gathers and long reads whose task yields in between.

mod common;

use std::fs;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use nowait::block_on;
use nowait_cache::{CachedFile, Lease};

use common::{PAGE, cache, contents, opened};

struct Ignored;

impl Wake for Ignored {
    fn wake(self: Arc<Self>) {}
}

/// A waker with data, as a task has: operations yield to other tasks.
fn waker() -> Waker {
    Waker::from(Arc::new(Ignored))
}

fn page(page: u64) -> Range<u64> {
    pages(page..page + 1)
}

fn pages(range: Range<u64>) -> Range<u64> {
    range.start * PAGE as u64..range.end * PAGE as u64
}

/// A file without zero bytes, opened in a cache of `frames` frames.
fn fresh(pages: usize, frames: usize) -> (tempfile::TempDir, Vec<u8>, CachedFile) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes: Vec<u8> = contents(pages * PAGE, 0).iter().map(|byte| byte | 1).collect();
    fs::write(&path, &bytes).unwrap();
    let file = opened(&cache(frames), &path);
    (dir, bytes, file)
}

/// Indices of the ranges whose leases differ from the file.
fn wrong(ranges: &[Range<u64>], leases: &[Lease], bytes: &[u8]) -> Vec<usize> {
    let is_wrong = |n: &usize| leases[*n][..] != bytes[ranges[*n].start as usize..ranges[*n].end as usize];
    (0..ranges.len()).filter(is_wrong).collect()
}

/// Symptom: if the turn ended at the last part, ranges that bypassed the cache were zeros, and unsorted
/// pages were mistaken for others.
#[test]
fn a_turn_that_ends_at_any_part_leaves_no_range_out() {
    for cached in 1..=12 {
        let (_dir, bytes, file) = fresh(64, 32);
        file.gather(&[page(0), pages(1..12)]).wait().unwrap();
        for first in [vec![pages(20..60)], vec![page(50), page(40), page(30)]] {
            let ranges: Vec<_> = first.into_iter().chain((0..cached).map(page)).collect();
            let leases = file.gather(&ranges).wait().unwrap();
            assert_eq!(wrong(&ranges, &leases, &bytes), [0; 0], "{cached} cached ranges after {:?}", ranges[0]);
        }
    }
}

#[test]
fn random_gathers_agree_with_the_file() {
    let mut random = common::seeded();
    let (_dir, bytes, file) = fresh(256, 64);
    block_on(async {
        for _ in 0..1000 {
            let mut range = |_| {
                let start = random.below(200 * PAGE as u64);
                let length_max = if random.below(10) == 0 { 50 * PAGE } else { 2 * PAGE };
                start..start + random.below(length_max as u64)
            };
            let ranges: Vec<_> = (0..12).map(&mut range).collect();
            let leases = file.gather(&ranges).await.unwrap();
            assert_eq!(wrong(&ranges, &leases, &bytes), [0; 0], "{ranges:?}");
        }
    });
}

/// Symptom: a range longer than half the capacity bypassed the cache, although the cache contained it.
#[test]
fn an_awaited_read_of_cached_pages_reads_nothing() {
    let (_dir, bytes, file) = fresh(64, 64);
    (0..40).for_each(|n| drop(file.get(page(n)).wait().unwrap()));
    let before = file.stats();
    assert!(block_on(file.get(pages(0..40))).unwrap()[..] == bytes[..40 * PAGE]);
    let after = file.stats();
    assert_eq!((after.uncached, after.reads - before.reads, after.hits - before.hits), (0, 0, 40), "{after:?}");
    // The rest of a long range bypasses the cache.
    assert!(block_on(file.get(pages(0..60))).unwrap()[..] == bytes[..60 * PAGE]);
    assert!(file.stats().uncached > 0);
}

/// Symptom: the device was idle while cached pages were copied.
#[test]
fn reads_begin_before_cached_pages_are_copied() {
    let (_dir, _, file) = fresh(2049, 8192);
    file.gather(&[page(0), pages(1..2048)]).wait().unwrap();
    let before = file.stats().reads;
    let ranges = [page(2048), pages(0..2048)];
    let mut gather = pin!(file.gather(&ranges));
    assert!(gather.as_mut().poll(&mut Context::from_waker(&waker())).is_pending());
    assert_eq!(file.stats().reads, before + 1);
}

#[test]
fn pages_that_others_read_meanwhile_are_copied_with_yields() {
    let (_dir, _, file) = fresh(4000, 8192);
    let ranges: Vec<_> = (0..2000).map(|n| page(n * 2)).collect();
    let mut gather = pin!(file.gather(&ranges));
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    assert!(gather.as_mut().poll(&mut context).is_pending());
    file.gather(&[page(0), pages(1..4000)]).wait().unwrap();
    let (mut polls, mut longest) = (0, Duration::ZERO);
    let mut is_ready = false;
    while !is_ready {
        let begun = Instant::now();
        is_ready = gather.as_mut().poll(&mut context).is_ready();
        longest = longest.max(begun.elapsed());
        polls += 1;
    }
    assert!(polls > 100, "{polls} polls for 8 MB, the longest {longest:?}");
}
