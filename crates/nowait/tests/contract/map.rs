//! Maps: the bytes are the file's, what is announced is in, and nothing that happens to a file
//! crashes whoever populates it.

use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::cold::{cached_pages, drop_pages};
use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, at_most, open, writable};
use crate::promises::maps::*;
use nowait::map::{Map, MapMut, Mechanism, Paging, Populated, Stopped};
use nowait::{Engine, ErrorKind, File, Nowait};

#[test]
fn on_the_root_file_system_and_without_a_ring() {
    let dir = temp_dir();
    works_in(&Nowait::builder().build().unwrap(), dir.path());
    works_in(&Nowait::builder().engine(Engine::Pool).build().unwrap(), dir.path());
}

#[test]
fn what_comes_first_is_announced_first_and_everything_once() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let file = open(&Nowait::builder().build().unwrap(), &path);
    let map = map(&file, 100..).unwrap();
    let seen: Arc<Mutex<Vec<Range<usize>>>> = Arc::default();
    let note = seen.clone();
    let first = [5 << 20..(5 << 20) + 10, 0..1];
    let mut populating = map
        .populate(..)
        .first(first.clone())
        .chunk_bytes(512 << 10)
        .on_chunk(move |chunk| note.lock().unwrap().push(chunk))
        .start()
        .unwrap();
    let mut taken = Vec::new();
    futures::executor::block_on(async {
        while let Some(range) = populating.next_chunk().await.unwrap() {
            assert!(populating.progress().bytes >= range.len() as u64);
            taken.push(range);
        }
    });
    assert_eq!(populating.progress().bytes, populating.progress().of);
    assert_eq!(populating.wait().unwrap().bytes, map.len() as u64);
    let seen = seen.lock().unwrap().clone();
    for (chunk, first) in seen.iter().zip(&first) {
        assert!(chunk.start <= first.start && chunk.end >= first.end, "{chunk:?} for {first:?}");
    }
    for mut list in [seen, taken] {
        list.sort_by_key(|range| range.start);
        assert_eq!((list[0].start, list[list.len() - 1].end), (0, map.len()));
        assert!(list.windows(2).all(|pair| pair[0].end == pair[1].start), "{list:?}");
    }
}

#[test]
fn announced_is_in() {
    let dir = temp_dir();
    let (path, bytes) = sample(dir.path(), 32 << 20);
    let file = open(&Nowait::builder().build().unwrap(), &path);
    let map = map(&file, ..).unwrap();
    let mut populating = map.populate(..).start().unwrap();
    while let Some(range) = nowait::block_on(populating.next_chunk()).unwrap() {
        let faults = major_faults();
        assert!(map[range.clone()] == bytes[range]);
        assert_eq!(major_faults(), faults, "a touch waited for the device");
    }
}

/// Of this thread: the third and the twelfth field of `stat` (`proc_pid_stat(5)`).
fn major_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    after_name.split(' ').nth(9).unwrap().parse().unwrap()
}

/// The chain of chunks stays on its thread: another one would be woken for each, and find nothing.
#[test]
fn chunks_follow_one_another_on_one_thread() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let file = open(&Nowait::builder().build().unwrap(), &path);
    let map = map(&file, ..).unwrap();
    let threads: Arc<Mutex<Vec<std::thread::ThreadId>>> = Arc::default();
    let note = threads.clone();
    let populating = map.populate(..).chunk_bytes(16 * PAGE);
    populating.on_chunk(move |_| note.lock().unwrap().push(std::thread::current().id())).wait().unwrap();
    let threads = threads.lock().unwrap();
    assert_eq!(threads.len(), LENGTH.div_ceil(16 * PAGE));
    assert!(threads.iter().all(|thread| *thread == threads[0]), "{threads:?}");
}

#[test]
fn who_waits_for_the_end_is_woken_then_and_not_before() {
    #[derive(Default)]
    struct Counts(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let map = map(&File::open(&path).wait().unwrap(), ..).unwrap();
    let mut populating = map.populate(..).chunk_bytes(PAGE).start().unwrap();
    let counts = Arc::new(Counts::default());
    let waker = std::task::Waker::from(counts.clone());
    let mut context = std::task::Context::from_waker(&waker);
    let is_pending = std::pin::Pin::new(&mut populating).poll(&mut context).is_pending();
    assert!(is_pending, "too quick to be waited for");
    assert!(crate::common::eventually(|| counts.0.load(std::sync::atomic::Ordering::SeqCst) > 0));
    assert_eq!(populating.progress().bytes, LENGTH as u64);
    assert_eq!(counts.0.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// The survey goes ahead of the chunks, and of what the kernel reads ahead of them: pages that were
/// cached before do not count as read, and those of the read-ahead do.
#[test]
fn what_was_cached_before_is_not_read_and_what_is_read_ahead_is() {
    const LONG: usize = 200 << 20;
    let dir = temp_dir();
    let path = dir.path().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(LONG as u64).unwrap();
    if crate::common::cold::is_in_memory(&path) || !crate::common::has_memory(512 << 20) {
        return eprintln!("skipped: its pages are in memory anyway, or there is too little");
    }
    let file = open(&Nowait::builder().build().unwrap(), &path);
    for first in [None, Some(170 << 20..(170 << 20) + 1)] {
        drop_pages(&path);
        let some = map(&file, ..).unwrap();
        some.advise(.., Paging::Random).unwrap();
        for start in [0, 1 << 20, 66 << 20, 199 << 20] {
            some.populate(start..start + (300 << 10)).wait().unwrap();
        }
        drop(some);
        let cached = cached_pages(&path);
        let wanted = 4 * (300 << 10) / PAGE;
        assert!((wanted..2 * wanted).contains(&cached), "{cached} pages");
        let all = map(&file, ..).unwrap();
        let Populated { bytes, read, stopped, .. } = all.populate(..).first(first.clone()).wait().unwrap();
        let expected = (LONG as u64, (LONG - cached * PAGE) as u64, None);
        assert_eq!((bytes, read, stopped), expected, "first: {first:?}");
    }
}

#[test]
fn a_panic_in_a_callback_ends_nothing() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let map = map(&File::open(&path).wait().unwrap(), ..).unwrap();
    let populated = map.populate(..).on_chunk(|_| panic!("on purpose")).wait().unwrap();
    assert_eq!(populated.bytes, LENGTH as u64);
}

#[test]
fn cancelled_dropped_detached() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let file = open(&Nowait::builder().build().unwrap(), &path);
    let slowly = |map: &Map| map.populate(..).chunk_bytes(PAGE).bytes_per_second_max(8 << 20).start().unwrap();

    let held = map(&file, ..).unwrap();
    held.advise(.., Paging::Random).unwrap();
    let mut populating = slowly(&held);
    nowait::block_on(populating.next_chunk()).unwrap().unwrap();
    populating.cancel();
    let Populated { bytes, stopped, .. } = populating.wait().unwrap();
    assert!(stopped == Some(Stopped::Cancelled) && bytes < LENGTH as u64, "{bytes} {stopped:?}");

    // The map goes first.
    let populating = slowly(&held);
    drop(held);
    assert_eq!(populating.wait().unwrap().stopped, Some(Stopped::MapDropped));

    // Both go, in the middle of it.
    for _ in 0..50 {
        let held = map(&file, ..).unwrap();
        let populating = held.populate(..).chunk_bytes(64 << 10).start().unwrap();
        if std::ptr::addr_of!(populating) as usize % 32 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        drop(held);
        drop(populating);
    }
    let deadline = Instant::now() + at_most(Duration::from_secs(10));
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap());
    while is_mapped() {
        assert!(Instant::now() < deadline, "a mapping was leaked");
        std::thread::sleep(Duration::from_millis(5));
    }

    drop_pages(&path);
    let held = map(&file, ..).unwrap();
    held.populate(..).start().unwrap().detach();
    while cached_pages(&path) < LENGTH.div_ceil(PAGE) {
        assert!(Instant::now() < deadline, "{} pages", cached_pages(&path));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn budgets_are_kept() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    if crate::common::cold::is_in_memory(&path) {
        return eprintln!("skipped: what is cached costs nothing of a budget");
    }
    let file = open(&Nowait::builder().build().unwrap(), &path);
    let map = map(&file, ..).unwrap();
    let stopped = map.populate(..).memory_share_max(0.0).wait().unwrap();
    assert_eq!((stopped.bytes, stopped.stopped), (0, Some(Stopped::Memory)));

    drop_pages(&path);
    let began = Instant::now();
    let rate = 16 << 20;
    // The device may read ahead as far as it likes.
    let populated = map.populate(..4 << 20).bytes_per_second_max(rate).wait().unwrap();
    assert_eq!((populated.bytes, populated.read), (4 << 20, 4 << 20));
    let least = Duration::from_secs_f64((populated.bytes as f64 - (rate / 20) as f64) / rate as f64);
    assert!(began.elapsed() >= least, "{:?} for 4 MiB at 16 MiB a second", began.elapsed());
    // Cached pages cost no bandwidth: they would take weeks.
    let _watchdog = Watchdog::new("cached pages at a byte a second", 60);
    assert_eq!(map.populate(..4 << 20).bytes_per_second_max(1).wait().unwrap().read, 0);
}

#[test]
fn a_chunk_may_be_larger_than_the_map_and_a_rate_less_than_a_page() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let map = map(&File::open(&path).wait().unwrap(), ..).unwrap();
    assert_eq!(map.populate(..).chunk_bytes(usize::MAX).wait().unwrap().bytes, LENGTH as u64);
    // All of it is cached now, and costs nothing of any budget.
    let populated = map.populate(..).bytes_per_second_max(1).memory_share_max(0.0).wait().unwrap();
    assert_eq!((populated.bytes, populated.read, populated.stopped), (LENGTH as u64, 0, None));
}

#[test]
fn whoever_begins_may_hold_what_the_callback_takes() {
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), 64 << 10);
    let map = map(&File::open(&path).wait().unwrap(), ..).unwrap();
    let shared = Arc::new(Mutex::new(0));
    for _ in 0..500 {
        let counter = shared.clone();
        let held = shared.lock().unwrap();
        let populating =
            map.populate(..).chunk_bytes(PAGE).on_chunk(move |_| *counter.lock().unwrap() += 1).start().unwrap();
        drop(held);
        assert_eq!(populating.wait().unwrap().bytes, 64 << 10);
    }
    assert_eq!(*shared.lock().unwrap(), 500 * 16);
}

#[test]
fn a_waker_that_panics_ends_nothing() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let dir = temp_dir();
    let (path, _) = sample(dir.path(), LENGTH);
    let map = map(&File::open(&path).wait().unwrap(), ..).unwrap();
    let waker = std::task::Waker::from(Arc::new(Panics));
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let passes = gate.clone();
    let mut populating = map.populate(..).chunk_bytes(64 << 10).on_chunk(move |_| drop(passes.lock())).start().unwrap();
    let mut context = std::task::Context::from_waker(&waker);
    while let Poll::Ready(chunk) = std::pin::pin!(populating.next_chunk()).poll(&mut context) {
        assert!(chunk.unwrap().is_some(), "it ended though a callback waits");
    }
    drop(held);
    assert_eq!(populating.wait().unwrap().bytes, LENGTH as u64);
}

#[test]
fn many_ranges_first_are_no_long_work() {
    let dir = temp_dir();
    let path = dir.path().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let map = map(&File::open(&path).wait().unwrap(), ..).unwrap();
    let mut random = Rng::new(5);
    let first: Vec<Range<usize>> = (0..400_000).map(|_| random.below(1 << 30)).map(|at| at..at + 1).collect();
    // Work that grows with the square of their number would take minutes.
    let _watchdog = Watchdog::new("many ranges first", 30);
    let populating = map.populate(..).first(first).start().unwrap();
    drop(populating);
}

#[test]
fn bad_input_is_an_error_with_its_place() {
    let dir = temp_dir();
    let nowait = Nowait::builder().build().unwrap();
    let (path, _) = sample(dir.path(), 3 * PAGE);
    let file = open(&nowait, &path);
    let past = map(&file, 5..3 * PAGE as u64 + 1).unwrap_err();
    assert_eq!(past.kind(), ErrorKind::UnexpectedEof);
    let text = past.to_string();
    for part in ["map", path.to_str().unwrap(), "offset 5", "12288 bytes"] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    assert_eq!(map(&file, 1 << 40..).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(map(&file, 3 * PAGE as u64..).unwrap().is_empty());
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = map(&file, 9..3).unwrap_err();
    assert_eq!(backwards.kind(), ErrorKind::InvalidInput);

    let map_of_all = map(&file, ..).unwrap();
    let far = map_of_all.gather(std::iter::once(usize::MAX - 1..usize::MAX)).wait().unwrap_err();
    assert_eq!(far.kind(), ErrorKind::InvalidInput);
    let beyond = map_of_all.gather([0..10, PAGE..4 * PAGE]).wait().unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::InvalidInput);
    assert!(beyond.to_string().contains("12288 bytes"), "{beyond}");
    assert_eq!(map_of_all.populate(2 * PAGE..usize::MAX).wait().unwrap().bytes, PAGE as u64);
    assert_eq!(map_of_all.read_at(&mut [0; 10], usize::MAX).unwrap(), 0);

    let write_only = nowait::OpenOptions::new().write(true).open(&path).wait().unwrap();
    assert_eq!(map(&write_only, ..).unwrap_err().kind(), ErrorKind::PermissionDenied);
    // SAFETY: nobody else knows the file.
    let shared = unsafe { MapMut::shared(&file, ..) }.unwrap_err();
    assert_eq!(shared.kind(), ErrorKind::PermissionDenied, "{shared}");
    file.clone().close().unwrap();
    assert_eq!(map(&file, ..).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(map_of_all.populate(..).start().unwrap_err().kind(), ErrorKind::Closed);

    let empty = dir.path().join("empty");
    std::fs::write(&empty, []).unwrap();
    let nothing = map(&open(&nowait, &empty), ..).unwrap();
    assert!(nothing.is_empty());
    assert_eq!(nothing.populate(..).wait().unwrap().bytes, 0);
    nothing.gather(std::iter::once(0..0)).wait().unwrap();
    nothing.advise(.., Paging::Random).unwrap();
    assert_eq!(nothing.read_at(&mut [0; 10], 0).unwrap(), 0);

    // A file of a size, on a file system without maps.
    let no_maps = File::open("/sys/kernel/mm/transparent_hugepage/enabled").wait();
    match no_maps.map(|file| map(&file, ..)) {
        Ok(mapped) => assert_eq!(mapped.unwrap_err().kind(), ErrorKind::Unsupported),
        Err(error) => eprintln!("skipped: a file that cannot be mapped: {error}"),
    }
    let sim = nowait::sim::Sim::new(1);
    sim.create("/file", vec![7; 100]);
    let simulated = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    assert_eq!(map(&open(&simulated, Path::new("/file")), ..).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_file_that_is_shortened_meanwhile_is_an_error() {
    let dir = temp_dir();
    let nowait = Nowait::builder().build().unwrap();
    for mechanism in [Mechanism::Auto, Mechanism::Read] {
        let (path, bytes) = sample(dir.path(), LENGTH);
        let file = open(&nowait, &path);
        let map = map(&file, ..).unwrap();
        let shorten = path.clone();
        let mut shortened = false;
        let populating = map.populate(..).mechanism(mechanism).chunk_bytes(1 << 20).on_chunk(move |_| {
            if !shortened {
                std::fs::OpenOptions::new().write(true).open(&shorten).unwrap().set_len(3 << 20).unwrap();
                shortened = true;
            }
        });
        let error = populating.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
        assert!(error.to_string().contains("shortened to 3145728 bytes"), "{error}");
        assert_eq!(
            map.gather(std::iter::once(LENGTH - 1..LENGTH)).wait().unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
        let mut buffer = vec![0; 2 << 20];
        assert_eq!(map.read_at(&mut buffer, 2 << 20).unwrap(), 1 << 20);
        assert!(buffer[..1 << 20] == bytes[2 << 20..3 << 20]);
        assert_eq!(map.read_at(&mut buffer, 4 << 20).unwrap(), 0);
    }
}

#[test]
fn writes_stay_or_go_to_the_file() {
    let dir = temp_dir();
    let nowait = Nowait::builder().build().unwrap();
    let (path, mut bytes) = sample(dir.path(), 5 * PAGE);
    let file = writable(&nowait, &path);
    // SAFETY: nobody else knows the file.
    let mut private = unsafe { MapMut::private(&file, 10..) }.unwrap();
    private.populate(..).wait().unwrap();
    private[0] ^= 0xff;
    private.gather([0..1, PAGE..2 * PAGE]).wait().unwrap();
    assert_eq!(private[0], bytes[10] ^ 0xff, "bringing pages in takes nothing back");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    drop(private);
    // SAFETY: nobody else knows the file.
    let mut shared = unsafe { MapMut::shared(&file, 10..) }.unwrap();
    shared.populate(..).wait().unwrap();
    shared[PAGE..PAGE + 3].copy_from_slice(b"new");
    bytes[PAGE + 10..PAGE + 13].copy_from_slice(b"new");
    file.sync_data().wait().unwrap();
    drop_pages(&path);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}
