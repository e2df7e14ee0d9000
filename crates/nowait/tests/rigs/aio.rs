//! libaio: direct I/O where io_uring is refused. What it promises, on every file system that takes
//! direct I/O; what it leaves to others; and what becomes of what is dropped, leaked and left
//! behind.

use std::future::Future;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::mounts::{self, Kind, Mount, temp_dir};
use crate::common::rng::Rng;
use crate::common::{
    Sample, Watchdog, Way, aio_instance, assert_settled, at_most, contents, eventually, is_slow, open_direct,
    pending_after_their_thread, poll_once, put, read_pages_in_every_way,
};
use futures::future::join_all;
use nowait::{Buf, DirectIo, Engine, ErrorKind, File, Nowait, Route};

const PAGE: usize = 4096;

/// A page-aligned buffer.
fn buffer(bytes: &[u8]) -> Buf {
    let mut buffer = Buf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer
}

/// Random transfers against a copy in memory: reads and writes, of one segment and of several,
/// durable or not, also beyond the end.
fn keeps_its_promises(nowait: &Nowait, folder: &FsPath) {
    const PAGES: usize = 64;
    let path = folder.join("direct");
    let mut bytes = contents(PAGES * PAGE - 1000, 1);
    std::fs::write(&path, &bytes).unwrap();
    let Some(file) = crate::common::open_as_direct(nowait, &path) else { return };
    let _watchdog = Watchdog::new("direct transfers", 60);
    let before = nowait.stats();
    let mut rng = Rng::for_test();
    for round in 0..400 {
        let way = Way::ALL[rng.below(3)];
        let (first, pages) = (rng.below(PAGES), 1 + rng.below(4));
        let offset = (first * PAGE) as u64;
        match rng.below(5) {
            0 => {
                let (n, page) = way.run(file.read_at(Buf::zeroed(pages * PAGE), offset)).unwrap();
                assert!(page[..n] == *crate::common::expected(&bytes, offset, pages * PAGE), "round {round}");
            }
            1 => {
                let buffers = (0..pages).map(|_| Buf::zeroed(PAGE)).collect();
                let (n, buffers): (usize, Vec<Buf>) = way.run(file.read_vectored_at(buffers, offset)).unwrap();
                let read: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
                assert!(read[..n] == *crate::common::expected(&bytes, offset, pages * PAGE), "round {round}");
            }
            2 | 3 => {
                let data = contents(pages * PAGE, round);
                let write = file.write_all_at(buffer(&data), offset);
                way.run(if rng.below(4) == 0 { write.durable() } else { write }).unwrap();
                put(&mut bytes, offset, &data);
            }
            _ => {
                let data = contents(pages * PAGE, round);
                let (n, _) =
                    way.run(file.write_vectored_at(data.chunks(PAGE).map(buffer).collect::<Vec<_>>(), offset)).unwrap();
                assert_eq!(n, data.len());
                put(&mut bytes, offset, &data);
            }
        }
    }
    assert_settled(nowait);
    assert!(std::fs::read(&path).unwrap() == bytes);
    let stats = nowait.stats();
    assert_eq!(stats.failed, before.failed, "{stats:?}");
    // On tmpfs there is no direct I/O, whatever open(2) says.
    if file.direct() != DirectIo::Refused {
        let uses_aio = !nowait.has_ring() && crate::common::takes_attempts(&path);
        assert!(!uses_aio || stats.aio > before.aio, "{before:?}, then {stats:?}");
        assert_eq!(stats.inline, before.inline, "{stats:?}");
    }
}

#[test]
fn on_the_root_file_system() {
    let folder = temp_dir();
    let Some(nowait) = aio_instance() else { return };
    keeps_its_promises(&nowait, folder.path());
    assert_eq!(nowait.stats().ring, 0);
    // Whatever the engine, what is promised is the same.
    keeps_its_promises(&Nowait::builder().engine(Engine::Aio).build().unwrap(), folder.path());
    keeps_its_promises(&Nowait::builder().route(Some(Route::Ring)).build().unwrap(), folder.path());
}

fn on(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let Some(nowait) = aio_instance() else { return };
    keeps_its_promises(&nowait, mount.path());
}

mounts::on_every_file_system!(on);

/// An instance, and a sample that is open past the page cache.
fn direct(len: usize) -> Option<(Nowait, Sample, File)> {
    let (nowait, sample) = (aio_instance()?, Sample::new(len));
    let file = open_direct(&nowait, &sample.path)?;
    Some((nowait, sample, file))
}

#[test]
fn each_operation_is_counted() {
    let Some((nowait, sample, file)) = direct(1 << 20) else { return };
    let before = nowait.stats();
    read_pages_in_every_way(&file, &sample, 100);
    assert_settled(&nowait);
    let stats = nowait.stats();
    // Waited for, also: the path is forced. The device may be full of other tests' requests.
    let handed_on = stats.handed_on;
    assert_eq!(stats.aio - before.aio + handed_on, 250, "{stats:?}");
    assert_eq!((stats.pool - before.pool, stats.ring), (handed_on, 0), "{stats:?}");
}

/// libaio would do them from beginning to end inside the submission.
#[test]
fn buffered_transfers_are_the_pools() {
    let Some(nowait) = aio_instance() else { return };
    let sample = Sample::new(1 << 20);
    let file = crate::common::writable(&nowait, &sample.path);
    for way in Way::ALL {
        assert!(*way.run(file.read_range(5000, 6000)).unwrap() == *sample.expected(5000, 6000));
        way.run(file.write_all_at(sample.expected(5000, 6000).to_vec(), 5000)).unwrap();
    }
    let stats = nowait.stats();
    assert!(stats.aio == 0 && stats.pool >= 6, "{stats:?}");
}

/// A device has no room for so many requests at once, and the submission would sleep.
#[test]
fn large_transfers_are_the_pools() {
    let Some((nowait, sample, file)) = direct(8 << 20) else { return };
    for way in Way::ALL {
        assert!(*way.run(file.read_range(1 << 20, 3 << 20)).unwrap() == *sample.expected(1 << 20, 3 << 20));
        way.run(file.write_all_at(buffer(sample.expected(1 << 20, 3 << 20)), 1 << 20)).unwrap();
    }
    assert_eq!(nowait.stats().aio, 0);
    assert_settled(&nowait);
}

#[test]
fn automatic_choice_prefers_the_ring() {
    let nowait = Nowait::builder().build().unwrap();
    if !nowait.has_ring() {
        return eprintln!("skipped: no io_uring");
    }
    let sample = Sample::new(1 << 20);
    // A direct read of a page that is still to be written back has to wait, and is a thread's.
    sample.cool();
    let Some(file) = open_direct(&nowait, &sample.path) else { return };
    read_pages_in_every_way(&file, &sample, 20);
    let stats = nowait.stats();
    if crate::common::takes_attempts(&sample.path) {
        assert!(stats.ring > stats.handed_on && stats.ring + stats.handed_on >= 40, "{stats:?}");
    }
    assert_eq!(stats.aio, 0, "{stats:?}");
    assert!(nowait.aio_refusal().is_none(), "none was asked for");
}

#[test]
fn errors_are_those_of_the_plain_call() {
    let Some((nowait, sample, file)) = direct(1 << 20) else { return };
    let mut options = nowait::OpenOptions::new();
    options.write(true).custom_flags(libc::O_DIRECT);
    let deaf = options.open_in(&nowait, &sample.path).wait().unwrap();
    for way in Way::ALL {
        let error = way.run(deaf.read_at(Buf::zeroed(PAGE), 0)).unwrap_err();
        assert_eq!(error.error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.buffer.len(), PAGE);
    }
    // Refused alone: the others of its submission are not.
    let (bad, good) = nowait::block_on(futures::future::join(
        join_all((0..20).map(|_| deaf.read_at(Buf::zeroed(PAGE), 0))),
        join_all((0..20u64).map(|i| file.read_range(i * 8192, PAGE))),
    ));
    assert!(bad.into_iter().all(|read| read.is_err()));
    for (i, read) in good.into_iter().enumerate() {
        assert!(*read.unwrap() == *sample.expected(i as u64 * 8192, PAGE), "read {i}");
    }
    assert_settled(&nowait);
}

#[test]
fn full_queues_finish_in_full() {
    if !crate::common::has_memory(128 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("full queues of libaio", 60);
    let Some((nowait, sample, file)) = direct(16 << 20) else { return };
    for own in [false, true] {
        let before = nowait.stats();
        let offset = |i: u64| (i * 7919 % 4096) * PAGE as u64;
        let mut rounds = 0;
        // A quick device serves some rounds as they are handed in.
        while nowait.stats().queued == before.queued && rounds < 20 {
            let reads = join_all((0..5000).map(|i| file.read_range(offset(i), PAGE)));
            let results = if own { nowait::block_on(reads) } else { futures::executor::block_on(reads) };
            for (i, result) in results.into_iter().enumerate() {
                assert!(*result.unwrap() == *sample.expected(offset(i as u64), PAGE), "own {own}: read {i}");
            }
            rounds += 1;
            assert_settled(&nowait);
            // The device may be full of other tests' requests.
            let stats = nowait.stats();
            assert_eq!(stats.aio - before.aio + stats.handed_on - before.handed_on, rounds * 5000, "{stats:?}");
        }
        // (An interpreted processor hands them in more slowly than the device serves them.)
        let full = nowait.stats().queued > before.queued;
        assert!(full || is_slow(), "own {own}: {:?}", nowait.stats());
    }
}

/// A thread sleeps in one queue only; what is for the other is noticed all the same.
#[test]
fn a_ring_and_a_context_on_one_thread() {
    let _watchdog = Watchdog::new("a ring and a context on one thread", 60);
    let Some((aio, sample, direct)) = direct(4 << 20) else { return };
    let ring = Nowait::builder().route(Some(Route::Ring)).build().unwrap();
    let buffered = sample.open(&ring);
    for round in 0..50u64 {
        sample.cool();
        let offset = |i: u64| ((i * 7919 + round * 31) % 1024) * PAGE as u64;
        let read = |i: u64| if (i + round) % 2 == 0 { &direct } else { &buffered }.read_range(offset(i), PAGE);
        for (i, read) in nowait::block_on(join_all((0..200).map(read))).into_iter().enumerate() {
            assert!(*read.unwrap() == *sample.expected(offset(i as u64), PAGE), "round {round}: read {i}");
        }
    }
    assert_settled(&aio);
    assert_settled(&ring);
}

/// A thread that sleeps in its context is woken by another.
#[test]
fn foreign_waker_wakes_a_sleeper() {
    let _watchdog = Watchdog::new("a sleeper in a context", 60);
    let Some((nowait, _sample, file)) = direct(4 << 20) else { return };
    for round in 0..200u64 {
        let (send, receive) = futures::channel::oneshot::channel();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 3));
            send.send(round).unwrap();
        });
        let reads = join_all((0..4).map(|i| file.read_range((i * 7 + round) % 1024 * PAGE as u64, PAGE)));
        let (told, reads) = nowait::block_on(futures::future::join(receive, reads));
        assert_eq!(told.unwrap(), round);
        reads.into_iter().for_each(|read| drop(read.unwrap()));
        thread.join().unwrap();
    }
    assert_settled(&nowait);
}

// Dropped, leaked and left behind.

#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    Leak,
}

/// Polls reads of pages once and gives them up.
async fn give_up(file: &File, pages: usize, seed: u64, count: usize, end: End) {
    let mut rng = Rng::new(seed);
    for _ in 0..count {
        let offset = (rng.below(pages) * PAGE) as u64;
        let mut read = Box::pin(file.read_at(Buf::zeroed(PAGE), offset));
        let _ = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        match end {
            End::Drop => drop(read),
            End::Leak => std::mem::forget(read),
        }
    }
}

#[test]
fn memory_of_abandoned_reads_stays_with_the_kernel() {
    let _watchdog = Watchdog::new("abandoned reads of libaio", 60);
    let Some((nowait, _sample, file)) = direct(16 << 20) else { return };
    for round in 0..24 {
        let canaries = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let reads = give_up(&file, 4096, round, 150, [End::Drop, End::Leak][round as usize / 2 % 2]);
                match round % 2 {
                    0 => futures::executor::block_on(reads),
                    _ => nowait::block_on(reads),
                }
                // Freed memory of that size would be given out again here.
                (0..300).map(|_| buffer(&[0x5a; PAGE])).collect::<Vec<_>>()
            });
            thread.join().unwrap()
        });
        assert_settled(&nowait);
        assert!(canaries.iter().all(|canary| canary.iter().all(|byte| *byte == 0x5a)), "round {round}");
    }
    assert!(nowait.stats().cancelled > 0, "{:?}", nowait.stats());
}

#[test]
fn thread_ends_with_abandoned_operations() {
    let _watchdog = Watchdog::new("threads end with abandoned operations", 60);
    let Some((nowait, _sample, file)) = direct(16 << 20) else { return };
    for round in 0..20 {
        let file = file.clone();
        // More than the context takes, so that some wait in line.
        std::thread::spawn(move || nowait::block_on(give_up(&file, 4096, round, 300, End::Drop))).join().unwrap();
    }
    assert_settled(&nowait);
}

/// To destroy a context takes tens of milliseconds: no thread pays for it.
#[test]
fn threads_come_and_go_quickly() {
    let _watchdog = Watchdog::new("threads with contexts come and go", 60);
    let Some((nowait, sample, file)) = direct(1 << 20) else { return };
    let round = |_| {
        let start = Instant::now();
        // More at a time than there are contexts kept for later.
        std::thread::scope(|scope| {
            for i in 0..16u64 {
                let (file, sample) = (&file, &sample);
                scope.spawn(move || {
                    let page = nowait::block_on(file.read_range(i * PAGE as u64, PAGE)).unwrap();
                    assert!(*page == *sample.expected(i * PAGE as u64, PAGE));
                });
            }
        });
        start.elapsed()
    };
    // A busy machine holds up some rounds.
    let fastest = (0..20).map(round).min().unwrap();
    assert_settled(&nowait);
    assert_eq!(nowait.stats().aio, 320);
    assert!(fastest < at_most(Duration::from_millis(250)), "{fastest:?}");
}

#[test]
fn submitting_thread_ends_before_its_reads() {
    let _watchdog = Watchdog::new("the submitting thread ends", 60);
    let Some((nowait, _sample, file)) = direct(16 << 20) else { return };
    for round in 0..40u64 {
        let offset = |i: u64| (i * 7919 + round) % 4096 * PAGE as u64;
        let reads = (0..100).map(|i| Box::pin(file.read_range(offset(i), PAGE))).collect();
        let submitted = pending_after_their_thread(reads);
        futures::executor::block_on(join_all(submitted)).into_iter().for_each(|read| drop(read.unwrap()));
    }
    assert_settled(&nowait);
}

#[test]
fn file_and_instance_dropped_with_work_in_flight() {
    // 20 rounds leak 8 MiB each.
    if !crate::common::has_memory(256 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("instances of libaio dropped", 60);
    let sample = Sample::new(8 << 20);
    for round in 0..60 {
        let Some(nowait) = aio_instance() else { return };
        let Some(file) = open_direct(&nowait, &sample.path) else { return };
        futures::executor::block_on(give_up(&file, 2048, round, 300, [End::Drop, End::Leak][round as usize % 2]));
        let start = Instant::now();
        match round % 3 {
            0 => drop((nowait, file)),
            1 => drop((file, nowait)),
            _ => {
                drop(nowait);
                file.close().unwrap();
            }
        }
        assert!(start.elapsed() < at_most(Duration::from_secs(10)), "dropping waits for nobody");
    }
    let closed = eventually(|| crate::common::descriptors_of(&sample.path) == 0);
    assert!(closed, "{} are open; threads: {}", crate::common::descriptors_of(&sample.path), threads());
}

/// The process's threads, and where each sleeps.
fn threads() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read = |task: &std::fs::DirEntry, name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
    tasks.map(|task| format!("{} in {}; ", read(&task, "comm").trim(), read(&task, "wchan"))).collect()
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics, on purpose");
    }
}

#[test]
fn panicking_wakers_harm_nobody_else() {
    let _watchdog = Watchdog::new("panicking wakers", 60);
    let Some((nowait, sample, file)) = direct(4 << 20) else { return };
    let waker = Waker::from(Arc::new(Panics));
    for round in 0..10u64 {
        let mut reads: Vec<_> = (0..64).map(|i| Box::pin(file.read_range(i * 8192, PAGE))).collect();
        for (i, read) in reads.iter_mut().enumerate() {
            let _ = match i % 8 {
                0 => read.as_mut().poll(&mut Context::from_waker(&waker)),
                _ => poll_once(read.as_mut()),
            };
        }
        read_pages_in_every_way(&file, &sample, 64 + round);
    }
    assert_settled(&nowait);
}

/// Many threads, of both kinds, on one instance.
#[test]
fn many_threads_share_an_instance() {
    let _watchdog = Watchdog::new("many threads share an instance", 60);
    let Some((nowait, sample, file)) = direct(4 << 20) else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|i| {
                scope.spawn({
                    let (file, sample) = (&file, &sample);
                    move || read_pages_in_every_way(file, sample, 300 + i)
                })
            })
            .collect();
        // Somebody drains all the while.
        scope.spawn(|| {
            while !done.load(SeqCst) {
                nowait.drain();
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, SeqCst);
        assert!(results.iter().all(Result::is_ok));
    });
    assert_settled(&nowait);
}
