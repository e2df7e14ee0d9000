//! A cold scan has no thread for each range. Alone in its process, since it counts threads in `/proc`.
#![cfg(all(feature = "object-store-0-14", target_os = "linux"))]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nowait::{Engine, Nowait};
use nowait_object_store::Options;
use nowait_object_store::v0_14::NowaitFileSystem;
use object_store_0_14::ObjectStore;
use object_store_0_14::path::Path;

fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Calls `work` and returns the most threads that were there meanwhile, beyond those before it.
fn threads_of(work: impl FnOnce()) -> usize {
    let (most, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let before = threads() + 1;
    let watch = std::thread::spawn({
        let (most, over) = (most.clone(), over.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(threads(), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
    });
    work();
    over.store(true, Ordering::Relaxed);
    watch.join().unwrap();
    most.load(Ordering::Relaxed).saturating_sub(before)
}

#[test]
fn a_cold_scan_has_no_thread_for_a_range() {
    const SIZE: u64 = 64 << 20;
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(dir.path().join("object"), vec![7; SIZE as usize]).unwrap();
    let ranges: Vec<_> = (0..4000).map(|number| number * 7919 * 4096 % (SIZE - 4096)).map(|at| at..at + 4096).collect();
    // One more stands by while all of the pool are busy.
    let most = 4 + 1;
    for engine in [Engine::Auto, Engine::Pool] {
        let nowait = Nowait::builder().engine(engine.clone()).pool_threads_max(4).build().unwrap();
        let store = NowaitFileSystem::with_prefix(dir.path(), Options::new().instance(&nowait)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let object = Path::from("object");
        let used = threads_of(|| {
            for _ in 0..3 {
                let file = fs::File::open(dir.path().join("object")).unwrap();
                file.sync_all().unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                let answers = runtime.block_on(store.get_ranges(&object, &ranges)).unwrap();
                assert!(answers.iter().all(|answer| answer.len() == 4096 && answer[0] == 7));
            }
        });
        assert!(used <= most, "{engine:?}: {used} threads");
    }
}
