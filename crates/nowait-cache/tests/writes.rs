//! Writes through a cache, beside the same writes to memory.

mod common;

use std::fs;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use futures::future::join_all;
use nowait::{ErrorKind, block_on};
use nowait_cache::{Access, CachedFile, Lease, PageCache};

use common::{PAGE, Random, assert_pinned, cache, contents, seeded};

fn exclusive(cache: &PageCache, path: &Path, direct: bool) -> CachedFile {
    let file = nowait::OpenOptions::new().read(true).write(true).direct(direct).open(path).wait().unwrap();
    cache.open(&file, Access::Exclusive).unwrap()
}

/// A range in which a page boundary, the whole of a page, and the end of the file are likely.
fn range(random: &mut Random, end: u64) -> Range<u64> {
    let most = [10, 4096, 20_000][random.below(3) as usize];
    let (start, length) = (random.below(end), 1 + random.below(most));
    match random.below(3) {
        0 => {
            let start = start & !(PAGE as u64 - 1);
            start..start + length.next_multiple_of(PAGE as u64)
        }
        _ => start..start + length,
    }
}

#[test]
fn random_writes_agree_with_memory() {
    let mut random = seeded();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for round in 0..40 {
        let mut bytes = contents(1 + random.below(30 * PAGE as u64) as usize, round);
        fs::write(&path, &bytes).unwrap();
        let cache = cache(1 + random.below(16) as usize);
        let file = exclusive(&cache, &path, random.below(2) == 0);
        let mut leases: Vec<(Lease, Vec<u8>)> = Vec::new();
        let mut fill = 0_u8;
        for step in 0..200 {
            let context = format!("round {round}, step {step}");
            match random.below(9) {
                0..=2 => {
                    // Several at once: overlapping writes are made in the order of their start.
                    let count = 1 + random.below(4) * random.below(2);
                    let mut writes = Vec::new();
                    for _ in 0..count {
                        let range = range(&mut random, bytes.len() as u64 + 5000);
                        fill = fill.wrapping_add(1);
                        let (start, end) = (range.start as usize, range.end as usize);
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[start..end].fill(fill);
                        writes.push(file.write_all_at(vec![fill; end - start], range.start));
                    }
                    for written in block_on(join_all(writes)) {
                        written.unwrap();
                    }
                    assert_eq!(file.size(), bytes.len() as u64, "{context}");
                }
                3..=5 => {
                    let range = range(&mut random, bytes.len() as u64);
                    let range = range.start..range.end.min(bytes.len() as u64);
                    let expected = &bytes[range.start as usize..range.end as usize];
                    if random.below(2) == 0 {
                        assert!(file.try_get(range.clone()).is_none_or(|lease| lease[..] == *expected), "{context}");
                    }
                    // Not more leases than frames.
                    let lease = file.get(range.clone()).wait().unwrap();
                    assert!(lease[..] == *expected, "{context}: {range:?}");
                    if random.below(2) == 0 && leases.len() as u64 + 1 < cache.capacity_bytes() / PAGE as u64 {
                        leases.push((lease, expected.to_vec()));
                    }
                }
                6 => {
                    let ranges: Vec<_> = (0..random.below(6))
                        .map(|_| range(&mut random, bytes.len() as u64))
                        .map(|range| range.start..range.end.min(bytes.len() as u64))
                        .collect();
                    for (lease, range) in file.gather(&ranges).wait().unwrap().iter().zip(&ranges) {
                        assert!(lease[..] == bytes[range.start as usize..range.end as usize], "{context}: {range:?}");
                    }
                }
                7 => drop(leases.pop()),
                _ => {
                    let size = 1 + random.below(30 * PAGE as u64);
                    bytes.resize(size as usize, 0);
                    file.file().set_len(size).wait().unwrap();
                    file.revalidate().unwrap();
                    assert_eq!(file.size(), size, "{context}");
                }
            }
            assert!(leases.iter().all(|(lease, bytes)| lease[..] == bytes[..]), "{context}: a lease changed");
        }
        assert!(fs::read(&path).unwrap() == bytes, "round {round}");
        drop(leases);
        assert_pinned(&cache, 0);
        assert!(cache.stats().cached <= cache.capacity_bytes() / PAGE as u64);
    }
}

#[test]
fn a_page_is_changed_in_place_and_a_leased_one_in_another_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(8 * PAGE, 0)).unwrap();
    let cache = cache(4);
    let file = exclusive(&cache, &path, true);
    let before = file.get(0..100).wait().unwrap().to_vec();
    let reads = cache.stats().reads;
    file.write_all_at(b"in place".to_vec(), 10).wait().unwrap();
    let lease = file.try_get(0..100).expect("cached");
    assert_eq!((&lease[..10], &lease[10..18], &lease[18..]), (&before[..10], &b"in place"[..], &before[18..]));
    file.write_all_at(b"elsewhere".to_vec(), 50).wait().unwrap();
    assert_eq!((&lease[10..18], &lease[50..]), (&b"in place"[..], &before[50..]), "a lease keeps its bytes");
    let next = file.try_get(0..100).expect("cached");
    assert_eq!((&next[10..18], &next[50..59], &next[59..]), (&b"in place"[..], &b"elsewhere"[..], &before[59..]));
    // A whole page that is not cached, and a part of one.
    file.write_all_at(vec![9; PAGE], PAGE as u64).wait().unwrap();
    assert_eq!(file.try_get(4096..4100).as_deref(), Some(&[9; 4][..]));
    file.write_all_at(vec![9; PAGE - 1], 2 * PAGE as u64).wait().unwrap();
    assert!(file.try_get(8192..8193).is_none());
    assert_eq!(cache.stats().reads, reads, "nothing was read again");
    // All frames are pinned: the page is dropped.
    let pins = [2, 3].map(|page| file.get(page * 4096..page * 4096 + 1).wait().unwrap());
    file.write_all_at(vec![7; 10], 0).wait().unwrap();
    assert!(file.try_get(0..10).is_none());
    drop((lease, pins));
    assert_eq!(file.get(0..10).wait().unwrap()[..], [7; 10]);
    assert_eq!((cache.stats().writes, cache.stats().written_bytes), (5, 8 + 9 + 4096 + 4095 + 10));
}

#[test]
fn writers_and_readers_of_the_same_pages_see_their_own_writes() {
    const SLOT: u64 = 256;
    let seed = seeded().0;
    let dir = tempfile::tempdir().unwrap();
    for (frames, direct) in [(1, false), (4, true), (64, false), (64, true)] {
        let path = dir.path().join("file");
        fs::write(&path, vec![0; 32 * PAGE]).unwrap();
        let cache = cache(frames);
        let file = exclusive(&cache, &path, direct);
        let is_over = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Readers keep pages leased, and cause evictions.
            for reader in 0..2 {
                let (file, is_over) = (file.clone(), is_over.clone());
                scope.spawn(move || {
                    let mut random = Random(seed + 100 + reader);
                    while !is_over.load(Ordering::Relaxed) {
                        let at = random.below(32 * PAGE as u64 / SLOT) * SLOT;
                        let lease = file.get(at..at + SLOT).wait().unwrap();
                        std::thread::yield_now();
                        drop(lease);
                    }
                });
            }
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let file = file.clone();
                    scope.spawn(move || {
                        let mut random = Random(seed + writer);
                        for step in 0..400 {
                            // Each writer has every fourth slot, so that pages are shared.
                            let slot = random.below(32 * PAGE as u64 / SLOT / 4) * 4 + writer;
                            let (at, bytes) = (slot * SLOT, vec![step as u8; SLOT as usize]);
                            let bytes = file.write_all_at(bytes, at).wait().unwrap();
                            let read = file.get(at..at + SLOT).wait().unwrap();
                            assert!(read[..] == bytes[..], "writer {writer}, step {step}, slot {slot}");
                        }
                    })
                })
                .collect();
            // The readers end also if a writer has failed.
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok));
        });
        let bytes = fs::read(&path).unwrap();
        for page in 0..32 {
            let range = page * PAGE..(page + 1) * PAGE;
            let cached = file.try_get(range.start as u64..range.end as u64);
            assert!(cached.is_none_or(|cached| cached[..] == bytes[range]), "page {page} of {frames} frames");
        }
        assert_pinned(&cache, 0);
    }
}

#[test]
fn writes_that_cannot_be_made_return_the_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(2 * PAGE, 0)).unwrap();
    let cache = cache(4);
    let file = nowait::File::open(&path).wait().unwrap();
    for access in [Access::Immutable, Access::Revalidate] {
        let refused = cache.open(&file, access).unwrap().write_all_at(vec![1; 10], 0).wait().unwrap_err();
        assert_eq!((refused.error.kind(), refused.buffer), (ErrorKind::InvalidInput, vec![1; 10]));
        assert!(refused.error.to_string().contains("Access::Exclusive"), "{}", refused.error);
    }
    // Not open for writing: the page is dropped, since any error may have written a part.
    let file = cache.open(&file, Access::Exclusive).unwrap();
    file.get(0..10).wait().unwrap();
    let refused = file.write_all_at(vec![1; 10], 0).wait().unwrap_err();
    assert_eq!((refused.error.kind(), refused.buffer), (ErrorKind::PermissionDenied, vec![1; 10]));
    assert!(file.try_get(0..10).is_none());
    assert_eq!(file.get(0..10).wait().unwrap()[..], contents(10, 0));
    assert_eq!(cache.stats().writes, 0);
    let appends = nowait::OpenOptions::new().read(true).append(true).open(&path).wait().unwrap();
    assert_eq!(cache.open(&appends, Access::Exclusive).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(cache.open(&appends, Access::Revalidate).is_ok());
    // Nothing, and beyond any file.
    let file = exclusive(&cache, &path, false);
    file.write_all_at(Vec::new(), 7).wait().unwrap();
    assert!(file.write_all_at(vec![1; 10], u64::MAX - 3).wait().is_err());
    assert_eq!(file.size(), 2 * PAGE as u64);
}

#[test]
fn a_dropped_write_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(4 * PAGE, 0)).unwrap();
    let file = exclusive(&cache(4), &path, true);
    file.get(0..10).wait().unwrap();
    let mut write = file.write_all_at(vec![5; PAGE], 0);
    let _ = Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop()));
    drop(write);
    let began = Instant::now();
    while file.get(0..10).wait().unwrap()[..] != [5; 10] {
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    // One that was never polled is not.
    drop(file.write_all_at(vec![6; PAGE], 0));
    assert_eq!(fs::read(&path).unwrap()[..PAGE], [5; PAGE]);
}

#[test]
fn the_access_decides_what_an_opening_compares() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(4 * PAGE, 0)).unwrap();
    let cache = cache(4);
    let open = |access| {
        let file = nowait::OpenOptions::new().read(true).write(true).open(&path).wait().unwrap();
        cache.open(&file, access).unwrap()
    };
    open(Access::Immutable).get(0..10).wait().unwrap();
    assert!(open(Access::Immutable).try_get(0..10).is_some(), "a file of this second is kept");
    assert!(open(Access::Revalidate).try_get(0..10).is_none(), "two changes may have equal times");
    let writer = open(Access::Exclusive);
    writer.write_all_at(vec![1; PAGE], 0).wait().unwrap();
    for access in [Access::Immutable, Access::Revalidate, Access::Exclusive] {
        assert!(open(access).try_get(0..10).is_some(), "{access:?}");
    }
    // Asked for, a comparison is made.
    assert!(writer.revalidate().unwrap() && writer.try_get(0..10).is_none());
    writer.get(0..10).wait().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    writer.write_all_at(vec![2; 10], PAGE as u64).wait().unwrap();
    drop(writer);
    assert!(open(Access::Exclusive).try_get(0..10).is_none(), "no handle vouches for the pages");
}
