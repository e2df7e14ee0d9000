//! A cache whose disk loses power.

mod common;

use nowait_cache::{Access, PageCache};

use common::Random;
use common::seeds::{Seed, Watchdog, seeds};
use common::simulated::{NAME, Run, driven, opened};

#[test]
fn synced_bytes_outlive_a_crash_and_a_new_cache_shows_the_file() {
    let _watchdog = Watchdog::new();
    for seed in seeds(80) {
        let _seed = Seed(seed);
        let mut run = Run::new(seed, 4 << 10);
        let mut random = Random(seed + 1_000_000);
        for step in 0..150 {
            run.step();
            if random.below(30) > 0 && step < 149 {
                continue;
            }
            if random.below(2) == 0 {
                run.settle();
                run.sync();
            }
            let sim = run.sim.crash_at_random(random.below(u64::MAX));
            let contents = sim.contents(NAME).unwrap();
            run.model.check_crashed(&contents).unwrap();
            assert!(contents.len() as u64 >= run.synced_length);
            // With the same number of frames, as the cache that is lost.
            let cache =
                PageCache::builder().capacity_bytes(run.cache.capacity_bytes()).page_bytes(4 << 10).build().unwrap();
            let file = cache.open(&opened(&sim), Access::Exclusive).unwrap();
            assert_eq!(file.size(), contents.len() as u64);
            let page = |at: usize| at..(at + 4096).min(contents.len());
            for range in (0..contents.len()).step_by(4096).map(page) {
                let lease = driven(&sim, file.get(range.start as u64..range.end as u64)).unwrap();
                assert!(lease[..] == contents[range.clone()], "{range:?} of the file after the crash");
            }
            driven(&sim, file.write_all_at(vec![1; 100], contents.len() as u64 / 2)).unwrap();
            assert_eq!(cache.stats().pinned, 0);
        }
        run.finish();
    }
}
