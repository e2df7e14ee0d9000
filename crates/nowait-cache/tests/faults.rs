//! A cache on a simulated disk that completes in any order, in parts, late and with errors.

mod common;

use futures::future::{join, join_all};
use nowait::ErrorKind;
use nowait::sim::{Faults, Sim};
use nowait_cache::{Access, CachedFile, PageCache};

use common::model::Model;
use common::seeds::{Seed, Watchdog, seeds};
use common::simulated::{self, NAME, Run, contents, driven, opened};
use common::{PAGE, Random, assert_pinned, cache};

fn run(seeds: std::ops::Range<u64>, page: u64) {
    let _watchdog = Watchdog::new();
    for seed in seeds {
        let _seed = Seed(seed);
        let mut run = Run::new(seed, page);
        for step in 0..200 {
            run.step();
            if step % 80 == 79 {
                run.settle();
            }
        }
        run.finish();
    }
}

#[test]
fn random_operations_with_faults_agree_with_the_file() {
    run(seeds(200), 4 << 10);
}

#[test]
fn random_operations_on_larger_pages_agree_with_the_file() {
    run(seeds(80), 16 << 10);
}

/// A file of these pages, read and written by a cache of 8 frames.
fn disk(pages: usize) -> (Sim, PageCache, CachedFile) {
    let sim = Sim::manual(1);
    sim.create(NAME, contents(pages * PAGE));
    let cache = cache(8);
    let file = cache.open(&opened(&sim), Access::Exclusive).unwrap();
    (sim, cache, file)
}

fn faults(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

#[test]
fn all_who_wait_for_a_read_get_its_error_and_it_is_not_cached() {
    let (sim, cache, file) = disk(4);
    sim.set_faults(faults(|faults| (faults.not_now, faults.read_error) = (1.0, 1.0)));
    let reads = join_all((0..10).map(|at| file.get(at..at + 100)));
    let errors = driven(&sim, reads).into_iter().map(|read| read.unwrap_err().kind());
    assert!(errors.eq([ErrorKind::Io; 10]));
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.joins, stats.reads, stats.failures), (1, 9, 1, 1), "{stats:?}");
    // A read of several pages fails, and so does each of its pages that is read alone.
    let error = driven(&sim, file.get(0..3 * PAGE as u64)).unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Io, Some(libc::EIO)));
    assert_eq!((cache.stats().pinned, cache.stats().cached), (0, 0));
    sim.set_faults(Faults::default());
    assert_eq!(driven(&sim, file.get(0..100)).unwrap()[..], contents(100));
    // Damage of one page is not that of its neighbours.
    sim.spoil(NAME, 2 * PAGE as u64..2 * PAGE as u64 + 1);
    let ranges = [1, 2, 3].map(|page| page * PAGE as u64..page * PAGE as u64 + 10);
    assert_eq!(driven(&sim, file.gather(&ranges)).unwrap_err().kind(), ErrorKind::Io);
    for range in [&ranges[0], &ranges[2]] {
        let expected = &contents(4 * PAGE)[range.start as usize..range.end as usize];
        assert_eq!(driven(&sim, file.get(range.clone())).unwrap()[..], *expected);
    }
    // A read of several pages fails; one that has joined it for a page that is not damaged is repeated.
    file.invalidate(0..u64::MAX);
    let reads = join(file.gather(&ranges), file.get(ranges[0].clone()));
    let (all, one) = driven(&sim, reads);
    assert_eq!(all.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(one.unwrap()[..], contents(2 * PAGE)[PAGE..PAGE + 10]);
    // A write makes it readable.
    driven(&sim, file.write_all_at(vec![7; PAGE], 2 * PAGE as u64)).unwrap();
    assert_eq!(driven(&sim, file.get(ranges[1].clone())).unwrap()[..], [7; 10]);
}

#[test]
fn a_write_that_fails_in_part_returns_the_buffer_and_shows_the_file() {
    for seed in seeds(100) {
        let _seed = Seed(seed);
        let (sim, cache, file) = disk(4);
        driven(&sim, file.get(0..4 * PAGE as u64)).unwrap();
        let lease = driven(&sim, file.get(PAGE as u64..2 * PAGE as u64)).unwrap();
        // A part fits, or some sectors are written.
        let is_full = seed % 2 == 0;
        if is_full {
            sim.set_capacity((4 * PAGE) as u64 + seed * 80);
        } else {
            sim.set_faults(faults(|faults| (faults.not_now, faults.write_error) = (1.0, 1.0)));
        }
        let refused = driven(&sim, file.write_all_at(vec![9; 6 * PAGE], 100)).map(drop).unwrap_err();
        assert_eq!(refused.error.kind(), if is_full { ErrorKind::NoSpace } else { ErrorKind::Io });
        assert!(refused.buffer == [9; 6 * PAGE]);
        sim.set_faults(Faults::default());
        let now = sim.contents(NAME).unwrap();
        assert_eq!(file.size(), now.len() as u64);
        assert!(driven(&sim, file.get(0..now.len() as u64)).unwrap()[..] == now);
        assert!(lease[..] == contents(2 * PAGE)[PAGE..], "a lease has changed");
        assert_eq!((cache.stats().writes, cache.stats().pinned), (0, 1));
    }
}

/// Each thread writes and reads slots of its own, which share pages with those of the others. Some are
/// beyond the end, so that writes extend the file while others compare its size.
#[test]
fn threads_beside_faults_read_their_own_writes() {
    const SLOT: u64 = 700;
    let _watchdog = Watchdog::new();
    for seed in seeds(40) {
        let _seed = Seed(seed);
        let sim = Sim::new(seed);
        sim.create(NAME, vec![0; 10 * PAGE]);
        let (cache, mut random) = (cache(10), Random(seed));
        let file = cache.open(&opened(&sim), Access::Exclusive).unwrap();
        sim.set_faults(simulated::faults(&mut random));
        let slots = 24 * PAGE as u64 / SLOT / 3;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (file, cache) = (file.clone(), &cache);
                scope.spawn(move || {
                    let mut random = Random(seed * 3 + thread);
                    let mut lease = None;
                    let ranges: Vec<_> = (0..slots).map(|slot| (slot * 3 + thread) * SLOT).collect();
                    let mut models: Vec<_> =
                        ranges.iter().map(|_| Model::new(&[0; SLOT as usize], SLOT as usize)).collect();
                    // The file has at least these bytes.
                    let mut length = 10 * PAGE as u64;
                    for step in 0..150 {
                        let slot = random.below(slots) as usize;
                        let (at, model, whole) = (ranges[slot], &mut models[slot], 0..SLOT);
                        match random.below(9) {
                            0..=3 => {
                                let id = model.begin_write(&whole, step as u8 % 63);
                                let written = file.write_all_at(vec![step as u8 % 63; SLOT as usize], at).wait();
                                model.end_write(id, written.is_ok());
                                length = length.max(if written.is_ok() { at + SLOT } else { 0 });
                            }
                            4..=6 if at + SLOT <= length => {
                                let id = model.begin(&whole);
                                match file.get(at..at + SLOT).wait() {
                                    Ok(read) => {
                                        model.end_read(id, &read).unwrap();
                                        lease = (random.below(2) == 0).then_some(read);
                                    }
                                    Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
                                }
                            }
                            7 => file.invalidate(at..at + SLOT),
                            // A frame for each thread's lease, and one more.
                            8 => _ = cache.set_capacity_bytes((4 + random.below(6)) * PAGE as u64),
                            _ => _ = file.revalidate().unwrap(),
                        }
                    }
                    drop(lease);
                });
            }
        });
        sim.set_faults(Faults::default());
        let now = sim.contents(NAME).unwrap();
        assert_eq!(file.size(), now.len() as u64);
        assert!(file.get(0..now.len() as u64).wait().unwrap()[..] == now);
        for page in (0..now.len()).step_by(PAGE) {
            let page = page..(page + PAGE).min(now.len());
            let cached = file.try_get(page.start as u64..page.end as u64);
            assert!(cached.is_none_or(|cached| cached[..] == now[page.clone()]), "{page:?}");
        }
        assert_pinned(&cache, 0);
        assert!(cache.stats().cached * PAGE as u64 <= cache.capacity_bytes());
        cache.set_capacity_bytes(u64::MAX);
        let frames = cache.capacity_bytes().min(now.len() as u64) / PAGE as u64;
        let leases: Vec<_> = (0..frames).map(|page| file.get(page * 4096..page * 4096 + 1).wait()).collect();
        assert!(leases.iter().all(Result::is_ok), "a frame was lost");
    }
}
