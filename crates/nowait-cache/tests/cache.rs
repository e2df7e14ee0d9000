//! A cache beside plain reads of the same file.

mod common;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::join_all;
use nowait::{ErrorKind, block_on};
use nowait_cache::{Access, Lease, PageCache};

use common::{PAGE, Random, assert_pinned, cache, contents, opened, seeded, settings, waiting_ns};

#[test]
fn a_page_is_read_once_and_then_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(10 * PAGE + 100, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = cache(16);
    let file = opened(&cache, &path);
    assert!(file.try_get(0..10).is_none());
    assert_eq!(file.get(5000..5100).wait().unwrap()[..], bytes[5000..5100]);
    let lease = file.try_get(4096..8192).expect("cached");
    assert_eq!((&lease[..], lease.is_copy()), (&bytes[4096..8192], false));
    drop(lease);
    // The last page is short.
    let end = bytes.len() as u64;
    assert_eq!(file.get(end - 50..end).wait().unwrap()[..], bytes[bytes.len() - 50..]);
    assert!(file.try_get(end - 50..end + 1).is_none());
    assert_eq!(file.get(end - 50..end + 1).wait().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    // Several pages: a copy.
    let lease = file.get(100..9000).wait().unwrap();
    assert_eq!((&lease[..], lease.is_copy()), (&bytes[100..9000], true));
    assert_eq!(lease.slice(10..20)[..], bytes[110..120]);
    // Nothing is an empty range, also at the end, and of an empty file.
    assert_eq!(file.get(7..7).wait().unwrap().len(), 0);
    assert_eq!(file.get(end..end).wait().unwrap().len(), 0);
    fs::write(dir.path().join("empty"), "").unwrap();
    let empty = opened(&cache, &dir.path().join("empty"));
    assert_eq!((empty.get(0..0).wait().unwrap().len(), empty.gather(&[0..0, 0..0]).wait().unwrap().len()), (0, 2));
    assert_eq!(empty.get(0..1).wait().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(empty.try_get(0..0).is_none());
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = file.get(9..8).wait();
    assert_eq!(reversed.unwrap_err().kind(), ErrorKind::InvalidInput);
    let stats = cache.stats();
    assert_eq!((stats.joins, stats.failures, stats.evictions), (0, 0, 0), "{stats:?}");
    assert_eq!((stats.misses, stats.cached), (4, 4), "{stats:?}");
    drop(lease);
    assert_pinned(&cache, 0);
    assert_eq!(file.stats().hits, cache.stats().hits);
}

#[test]
fn all_who_miss_a_page_wait_for_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(64 * PAGE, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = cache(64);
    let file = cache
        .open(&nowait::OpenOptions::new().read(true).direct(true).open(&path).wait().unwrap(), Access::Revalidate)
        .unwrap();
    let leases = block_on(join_all((0..100).map(|_| file.get(4096..4196))));
    assert!(leases.iter().all(|lease| lease.as_ref().unwrap()[..] == bytes[4096..4196]));
    assert_eq!(cache.stats().reads, 1, "{:?}", cache.stats());
    // The same from threads with separate handles.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            let file = file.clone();
            let bytes = &bytes;
            scope.spawn(move || assert_eq!(file.get(40_960..41_000).wait().unwrap()[..], bytes[40_960..41_000]));
        }
    });
    assert_eq!(cache.stats().reads, 2, "{:?}", cache.stats());
}

#[test]
fn a_dropped_future_leaves_its_read_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(4 * PAGE, 0)).unwrap();
    let cache = cache(4);
    let file = cache
        .open(&nowait::OpenOptions::new().read(true).direct(true).open(&path).wait().unwrap(), Access::Revalidate)
        .unwrap();
    for page in 0..4 {
        let offset = page * PAGE as u64;
        block_on(async {
            let mut first = Box::pin(file.get(offset..offset + 1));
            let second = file.get(offset..offset + 1);
            assert!(matches!(futures::poll!(&mut first), std::task::Poll::Pending | std::task::Poll::Ready(Ok(_))));
            drop(first);
            second.await.unwrap();
        });
    }
    let stats = cache.stats();
    assert_eq!((stats.reads, stats.cached), (4, 4), "{stats:?}");
}

#[test]
fn leases_outlive_the_cache_and_do_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(8 * PAGE, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = cache(8);
    let file = opened(&cache, &path);
    let lease = file.get(10..20).wait().unwrap();
    let other = lease.clone();
    file.invalidate(0..1);
    assert!(file.try_get(10..20).is_none());
    drop((file, cache, lease));
    assert_eq!(other[..], bytes[10..20]);
    #[cfg(feature = "bytes")]
    {
        let address = other.as_ptr();
        let shared = bytes::Bytes::from(other.clone());
        assert_eq!((shared.as_ptr(), &shared[..]), (address, &bytes[10..20]), "without a copy");
    }
    #[cfg(feature = "stable-deref")]
    {
        fn is_stable(_: &impl stable_deref_trait::StableDeref) {}
        is_stable(&other);
    }
    std::thread::spawn(move || drop(other)).join().unwrap();
}

#[test]
fn a_read_waits_for_a_frame_for_a_limited_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(8 * PAGE, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = settings(2).wait_max(Duration::from_millis(100)).build().unwrap();
    let file = opened(&cache, &path);
    let page = |page: u64| page * PAGE as u64..page * PAGE as u64 + 10;
    let leases: Vec<_> = (0..2).map(|number| file.get(page(number)).wait().unwrap()).collect();
    let (began, before_ns) = (Instant::now(), waiting_ns());
    let error = file.get(page(2)).wait().unwrap_err();
    let busy_ns = waiting_ns().saturating_sub(before_ns);
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("leases pin all frames"), "{error}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(5), "{took:?}");
    assert!(busy_ns < 50_000_000, "the threads are busy for {busy_ns} ns while they wait");
    assert_pinned(&cache, 2);
    // A copy of pages pins nothing, and is in need of a frame, too.
    assert_eq!(file.get(0..3 * PAGE as u64).wait().map(|_| ()).unwrap_or(()), ());
    // Whoever returns a lease calls the next in line.
    let waits = std::thread::spawn({
        let file = file.clone();
        move || file.get(page(5)).wait().unwrap()[..] == contents(8 * PAGE, 0)[5 * PAGE..5 * PAGE + 10]
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(leases);
    assert!(waits.join().unwrap());
    assert_eq!(cache.stats().cached, 2);
}

#[test]
fn new_pages_give_way_if_all_others_are_leased() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(64 * PAGE, 0)).unwrap();
    let cache = cache(20);
    let file = opened(&cache, &path);
    let page = |page: u64| page * PAGE as u64..page * PAGE as u64 + 10;
    let leases: Vec<_> = (0..18).map(|number| file.get(page(number)).wait().unwrap()).collect();
    // Two frames for all others.
    for round in 0..2 {
        (18..64).for_each(|number| assert!(file.get(page(number)).wait().is_ok(), "{round}: {number}"));
    }
    assert_pinned(&cache, 18);
    assert_eq!(cache.stats().cached, 20);
    drop(leases);
}

#[test]
fn a_task_that_is_not_polled_does_not_keep_the_frame_it_was_called_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(8 * PAGE, 0)).unwrap();
    let cache = settings(1).wait_max(Duration::from_secs(60)).build().unwrap();
    let file = opened(&cache, &path);
    let lease = file.get(0..1).wait().unwrap();
    let waker = futures::task::noop_waker();
    let mut context = std::task::Context::from_waker(&waker);
    let mut first = Box::pin(file.get(5000..5001));
    assert!(std::future::Future::poll(first.as_mut(), &mut context).is_pending());
    let began = Instant::now();
    let other = std::thread::spawn({
        let file = file.clone();
        move || file.get(9000..9001).wait().map(drop)
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(lease);
    other.join().unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(block_on(first).unwrap().len(), 1);
}

#[test]
fn a_gather_does_not_join_a_read_that_began_before_an_invalidation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let plain = fs::OpenOptions::new().write(true).read(true).create(true).truncate(true).open(&path).unwrap();
    let cache = cache(64);
    for round in 0..50_u8 {
        plain.write_all_at(&vec![round; 4 * PAGE], 0).unwrap();
        let file = nowait::OpenOptions::new().read(true).direct(true).open(&path).wait().unwrap();
        let file = cache.open(&file, Access::Revalidate).unwrap();
        block_on(async {
            let mut first = Box::pin(file.get(0..4 * PAGE as u64));
            let _ = futures::poll!(&mut first);
            plain.write_all_at(&vec![round + 100; PAGE], 2 * PAGE as u64).unwrap();
            file.invalidate(2 * PAGE as u64..3 * PAGE as u64);
            let pages: Vec<_> = (0..4).map(|page| page * PAGE as u64..(page + 1) * PAGE as u64).collect();
            let gathered = file.gather(&pages).await.unwrap();
            let firsts: Vec<_> = gathered.iter().map(|page| page[0]).collect();
            assert_eq!(firsts, [round, round, round + 100, round]);
            first.await.unwrap();
        });
    }
}

#[test]
fn a_forked_child_reads_nothing_and_takes_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(8 * PAGE, 0)).unwrap();
    let cache = settings(2).wait_max(Duration::from_millis(100)).build().unwrap();
    let file = opened(&cache, &path);
    let lease = file.get(100..200).wait().unwrap();
    let doomed = file.get(5000..5001).wait().unwrap();
    file.invalidate(5000..5001);
    let waker = futures::task::noop_waker();
    let mut context = std::task::Context::from_waker(&waker);
    let mut begun = Box::pin(file.get(9000..9001));
    let _ = std::future::Future::poll(begun.as_mut(), &mut context);
    // A thread that holds the locks for much of the time.
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = (cache.stats(), file.get(20_000..20_001).wait(), file.invalidate(0..u64::MAX));
            }
        });
        for _ in 0..20 {
            // SAFETY: the child makes no call that needs a lock of the parent but those that are
            // tested, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it hangs.
                unsafe { libc::alarm(10) };
                let is_unsupported = |error: nowait::Error| error.kind() == ErrorKind::Unsupported;
                let mut results = vec![
                    file.try_get(100..200).is_none(),
                    file.get(100..200).wait().is_err_and(is_unsupported),
                    file.gather(&[100..200, 0..1]).wait().is_err_and(is_unsupported),
                    file.revalidate().is_err_and(is_unsupported),
                    cache.open(file.file(), Access::Revalidate).is_err_and(is_unsupported),
                    lease[..] == [0; 100],
                    cache.set_capacity_bytes(1) == 0,
                    cache.stats() == nowait_cache::Stats::default(),
                ];
                let poll = std::future::Future::poll(begun.as_mut(), &mut context);
                results.push(matches!(poll, std::task::Poll::Ready(Err(error)) if is_unsupported(error.clone())));
                drop((lease.clone(), doomed.clone()));
                file.invalidate(0..u64::MAX);
                let failed = results.iter().position(|result| !result).map_or(0, |at| at as i32 + 1);
                // SAFETY: without destructors of the parent's objects.
                unsafe { libc::_exit(failed) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            if status != 0 {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "a signal, or the number of the first wrong result in the second byte");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(lease[..], contents(PAGE, 0)[100..200]);
}

#[test]
fn many_tasks_share_few_frames() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = Arc::new(contents(64 * PAGE, 0));
    fs::write(&path, &*bytes).unwrap();
    let cache = PageCache::builder().capacity_bytes(4 * PAGE as u64).page_bytes(PAGE).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let tasks = (0..64).map(|task| {
        let (file, bytes) = (opened(&cache, &path), bytes.clone());
        runtime.spawn(async move {
            let mut random = Random(task);
            for _ in 0..200 {
                let start = random.below(bytes.len() as u64);
                let end = (start + 1 + random.below(3 * PAGE as u64)).min(bytes.len() as u64);
                let lease = file.get(start..end).await.unwrap();
                if random.below(4) == 0 {
                    // Held while others run.
                    tokio::task::yield_now().await;
                }
                assert!(lease[..] == bytes[start as usize..end as usize], "{start}..{end}");
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    let stats = cache.stats();
    assert!(stats.cached <= 4, "{stats:?}");
    assert_pinned(&cache, 0);
}

#[test]
fn a_changed_file_is_noticed_when_it_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(4 * PAGE, 0)).unwrap();
    let cache = cache(8);
    let file = opened(&cache, &path);
    file.get(0..1).wait().unwrap();
    assert!(file.revalidate().unwrap(), "equal times do not exclude a change while the file is so young");
    std::thread::sleep(Duration::from_millis(3100));
    assert!(file.revalidate().unwrap(), "it was young when it was compared last");
    let old = file.get(0..PAGE as u64).wait().unwrap();
    assert!(!file.revalidate().unwrap() && !opened(&cache, &path).revalidate().unwrap());
    assert!(file.try_get(0..1).is_some());
    let new = contents(4 * PAGE, 1);
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&new, 0).unwrap();
    assert_eq!(file.try_get(0..PAGE as u64).unwrap()[..], old[..]);
    assert!(file.revalidate().unwrap());
    assert_eq!(file.get(0..PAGE as u64).wait().unwrap()[..], new[..PAGE]);
    assert_eq!(old[..], contents(4 * PAGE, 0)[..PAGE], "a lease keeps its bytes");
    // Times far in the future are not settled.
    let far = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_modified(far).unwrap();
    assert!(file.revalidate().unwrap() && file.revalidate().unwrap());
    // Shorter: the old size is used until the file is compared.
    let shorter = fs::OpenOptions::new().write(true).open(&path).unwrap();
    shorter.set_len(PAGE as u64 + 10).unwrap();
    let error = file.get(2 * PAGE as u64..2 * PAGE as u64 + 1).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    let error = file.get(PAGE as u64..2 * PAGE as u64).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    // Another handle compares when it is opened. A replaced file is another inode.
    assert_eq!(opened(&cache, &path).size(), PAGE as u64 + 10);
    assert_eq!(file.size(), PAGE as u64 + 10);
    fs::write(dir.path().join("new"), &new).unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    assert_eq!(opened(&cache, &path).get(0..PAGE as u64).wait().unwrap()[..], new[..PAGE]);
}

#[test]
fn each_page_is_checked_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(8 * PAGE + 1, 0)).unwrap();
    let checks = Arc::new(AtomicU64::new(0));
    let seen = checks.clone();
    let bad = path.clone();
    let cache = settings(16).check(move |path, offset, bytes| {
        assert_eq!(path, bad);
        seen.fetch_add(1, Ordering::Relaxed);
        assert!(offset != 5 * PAGE as u64, "page five");
        assert_eq!(bytes.len(), if offset == 8 * PAGE as u64 { 1 } else { PAGE });
        if offset == 3 * PAGE as u64 { Err(String::from("a bad checksum")) } else { Ok(()) }
    });
    let cache = cache.build().unwrap();
    let file = opened(&cache, &path);
    let page = |page: u64| page * PAGE as u64..page * PAGE as u64 + 1;
    for _ in 0..3 {
        file.get(page(0)).wait().unwrap();
        file.get(page(8)).wait().unwrap();
    }
    assert_eq!(checks.load(Ordering::Relaxed), 2);
    for _ in 0..2 {
        let error = file.get(page(3)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("a bad checksum"), "{error}");
    }
    let error = file.get(page(5)).wait().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    assert_eq!((cache.stats().failures, cache.stats().cached), (3, 2));
    // In one read: the others are good.
    let leases = block_on(join_all((2..8).map(|number| file.get(page(number)))));
    let refused: Vec<_> = leases.iter().map(|lease| lease.is_err()).collect();
    assert_eq!(refused, [false, true, false, true, false, false]);
    drop(leases);
    let mut gather = file.gather(&[page(1), page(3), page(6)]);
    let error = block_on(&mut gather).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Damaged, Some(3 * PAGE as u64)));
    // A gather that failed pins nothing, also while it is kept.
    assert_pinned(&cache, 0);
    drop(gather);
}

#[test]
fn the_capacity_can_be_cut_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(32 * PAGE, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = cache(16);
    let file = opened(&cache, &path);
    let page = |page: u64| page * PAGE as u64..(page + 1) * PAGE as u64;
    let leases: Vec<_> = (0..16).map(|number| file.get(page(number)).wait().unwrap()).collect();
    assert_eq!(cache.set_capacity_bytes(4 * PAGE as u64), 4 * PAGE as u64);
    // All are leased.
    assert_pinned(&cache, 16);
    assert_eq!(cache.stats().cached, 4);
    for (number, lease) in leases.iter().enumerate() {
        assert_eq!(lease[..], bytes[number * PAGE..(number + 1) * PAGE]);
    }
    drop(leases);
    (16..24).for_each(|number| {
        assert_eq!(file.get(page(number)).wait().unwrap()[..], bytes[number as usize * PAGE..][..PAGE])
    });
    assert!(cache.stats().cached <= 4, "{:?}", cache.stats());
    assert_eq!(cache.set_capacity_bytes(u64::MAX), 16 * PAGE as u64);
    (0..16).for_each(|number| {
        assert_eq!(file.get(page(number)).wait().unwrap()[..], bytes[number as usize * PAGE..][..PAGE])
    });
    assert_eq!(cache.stats().cached, 16);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let kind =
        |bytes, page| PageCache::builder().capacity_bytes(bytes).page_bytes(page).build().map(drop).unwrap_err().kind();
    for (bytes, page) in [(0, 4096), (4095, 4096), (1 << 20, 0), (1 << 20, 5000), (1 << 20, 2048), (1 << 30, 2 << 20)] {
        assert_eq!(kind(bytes, page), ErrorKind::InvalidInput, "{bytes} {page}");
    }
    assert_eq!(kind(u64::MAX, 4096), ErrorKind::InvalidInput);
    assert_eq!(kind(1 << 50, 1 << 20), ErrorKind::OutOfMemory);
    let endless = PageCache::builder().capacity_bytes(4096).page_bytes(4096).wait_max(Duration::MAX).build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(2 * PAGE, 0)).unwrap();
    let file = opened(&endless, &path);
    let lease = file.get(0..1).wait().unwrap();
    let waits = std::thread::spawn({
        let file = file.clone();
        move || file.get(5000..5001).wait().map(drop)
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(lease);
    waits.join().unwrap().unwrap();
    let written = nowait::OpenOptions::new().write(true).open(&path).wait().unwrap();
    assert_eq!(endless.open(&written, Access::Revalidate).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_file_that_is_read_in_order_is_read_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(512 * PAGE, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = settings(256).read_ahead_bytes_max(64 * PAGE).build().unwrap();
    let file = opened(&cache, &path);
    for row in (0..512 * PAGE as u64).step_by(512) {
        assert_eq!(file.get(row..row + 512).wait().unwrap()[..], bytes[row as usize..][..512]);
    }
    let stats = cache.stats();
    assert!(stats.read_ahead > 500 && stats.reads < 64 && stats.read_bytes == 512 * PAGE as u64, "{stats:?}");
    // Not if it is read in no order.
    let mut random = Random(1);
    file.invalidate(0..u64::MAX);
    for _ in 0..100 {
        let row = random.below(511) * PAGE as u64;
        file.get(row..row + 512).wait().unwrap();
    }
    assert!(cache.stats().read_ahead - stats.read_ahead < 20, "{:?}", cache.stats());
}

/// Long copies yield to other tasks, even if all pages are cached.
#[test]
fn long_copies_yield() {
    struct Calls(AtomicUsize);
    impl std::task::Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = contents(2048 * PAGE, 0);
    fs::write(&path, &bytes).unwrap();
    let cache = cache(8192);
    let file = opened(&cache, &path);
    let whole = std::slice::from_ref(&(0..2048 * PAGE as u64)).to_vec();
    file.gather(&whole).wait().unwrap();
    let calls = Arc::new(Calls(AtomicUsize::new(0)));
    let waker = std::task::Waker::from(calls.clone());
    let mut context = Context::from_waker(&waker);
    let mut yields = |mut read: Pin<&mut dyn Future<Output = Vec<u8>>>| {
        let before = calls.0.load(Ordering::Relaxed);
        loop {
            if let Poll::Ready(copy) = read.as_mut().poll(&mut context) {
                assert!(copy == bytes);
                return calls.0.load(Ordering::Relaxed) - before;
            }
        }
    };
    // 5 µs per turn at 8 bytes per ns: about 40 KiB are copied between yields.
    let gathered = yields(pin!(async { file.gather(&whole).await.unwrap()[0].to_vec() }));
    let got = yields(pin!(async { file.get(whole[0].clone()).await.unwrap().to_vec() }));
    assert!(gathered > 100 && got > 100, "{gathered} and {got} yields for 8 MiB");
}

#[test]
fn unused_readahead_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, contents(4096 * PAGE, 0)).unwrap();
    let cache = settings(64).read_ahead_bytes_max(64 * PAGE).build().unwrap();
    let direct = nowait::OpenOptions::new().read(true).direct(true).open(&path).wait().unwrap();
    let file = cache.open(&direct, Access::Revalidate).unwrap();
    let row = |page: u64| file.get(page * PAGE as u64..page * PAGE as u64 + 10).wait().unwrap();
    // In order: every page read ahead is used, by a hit or by a joining read.
    (0..1000).for_each(|page| drop(row(page)));
    let stats = cache.stats();
    assert!(stats.read_ahead > 500 && stats.joins > 0 && stats.evictions > 900, "{stats:?}");
    // On a slow disk a small cache may evict a page before its turn.
    assert!(stats.read_ahead_unused <= 10, "{stats:?}");
    // Short runs never reach the pages read ahead.
    for run in 0..300 {
        (1100 + run * 10..1100 + run * 10 + 2).for_each(|page| drop(row(page)));
    }
    // Readahead reads 4 pages in each run. Those of the last runs are still cached.
    let unused = cache.stats().read_ahead_unused;
    assert!((1100..=1210).contains(&unused), "{:?}", cache.stats());
    assert_eq!(file.stats().read_ahead_unused, unused);
}

#[test]
fn the_counters_of_a_file_count_its_cached_and_pinned_pages() {
    let dir = tempfile::tempdir().unwrap();
    let cache = settings(16).read_ahead_bytes_max(0).build().unwrap();
    let files = ["one", "other"].map(|name| {
        fs::write(dir.path().join(name), contents(8 * PAGE, 0)).unwrap();
        opened(&cache, &dir.path().join(name))
    });
    let page = |file: usize, page: u64| files[file].get(page * PAGE as u64..(page + 1) * PAGE as u64).wait().unwrap();
    let leases = [page(0, 0), page(0, 1), page(1, 3)];
    drop(page(1, 5));
    assert_pinned(&cache, 3);
    let counts = || [0, 1].map(|file: usize| (files[file].stats().cached, files[file].stats().pinned));
    assert_eq!(counts(), [(2, 2), (2, 1)]);
    // An invalidated page leaves the cache, and stays pinned.
    files[0].invalidate(0..PAGE as u64);
    assert_eq!(counts(), [(1, 2), (2, 1)]);
    drop(leases);
    assert_pinned(&cache, 0);
    assert_eq!(counts(), [(1, 0), (2, 0)]);
}

/// Random reads, invalidations and changes of the file by plain calls, on a cache of a few frames.
#[test]
fn random_operations_agree_with_the_file() {
    let mut random = seeded();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for round in 0..30 {
        let mut bytes = contents(1 + random.below(40 * PAGE as u64) as usize, round);
        fs::write(&path, &bytes).unwrap();
        let cache = cache(4 + random.below(12) as usize);
        let direct = random.below(2) == 0;
        let plain = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let file = nowait::OpenOptions::new().read(true).direct(direct).open(&path).wait().unwrap();
        let mut readers = vec![cache.open(&file, Access::Revalidate).unwrap()];
        // Leases with the bytes that they had when they were made.
        let mut leases: Vec<(Lease, Vec<u8>)> = Vec::new();
        for _ in 0..300 {
            let length = bytes.len() as u64;
            let range = |random: &mut Random| -> Range<u64> {
                let (start, most) = (random.below(length), [10, 4096, 20_000][random.below(3) as usize]);
                start..(start + 1 + random.below(most)).min(length)
            };
            let of = |range: &Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
            let reader = random.below(readers.len() as u64) as usize;
            let reader = &readers[reader];
            match random.below(12) {
                0..=3 => {
                    let range = range(&mut random);
                    let lease = reader.get(range.clone()).wait().unwrap();
                    assert!(lease[..] == of(&range), "round {round}, {range:?}");
                    if random.below(3) == 0 && leases.len() < 3 {
                        leases.push((lease, of(&range)));
                    }
                }
                4..=5 => {
                    let range = range(&mut random);
                    if let Some(lease) = reader.try_get(range.clone()) {
                        assert!(lease[..] == of(&range), "round {round}, {range:?}");
                    }
                }
                6 => {
                    let ranges: Vec<_> = (0..random.below(8)).map(|_| range(&mut random)).collect();
                    let gathered = reader.gather(&ranges).wait().unwrap();
                    for (lease, range) in gathered.iter().zip(&ranges) {
                        assert!(lease[..] == of(range), "round {round}, {range:?} of {ranges:?}");
                    }
                }
                7 => reader.invalidate(range(&mut random)),
                8 => {
                    let range = range(&mut random);
                    for at in range.clone() {
                        bytes[at as usize] = bytes[at as usize].wrapping_add(1);
                    }
                    plain.write_all_at(&bytes[range.start as usize..range.end as usize], range.start).unwrap();
                    reader.invalidate(range);
                }
                9 => {
                    let size = 1 + random.below(40 * PAGE as u64);
                    bytes.resize(size as usize, 0);
                    plain.set_len(size).unwrap();
                    reader.revalidate().unwrap();
                    assert_eq!(reader.size(), size);
                }
                10 => drop(leases.pop()),
                _ if readers.len() < 4 => {
                    let next = if random.below(2) == 0 {
                        reader.clone()
                    } else {
                        cache.open(&file, Access::Revalidate).unwrap()
                    };
                    readers.push(next);
                }
                _ => drop(readers.pop().filter(|_| readers.is_empty()).map(|last| readers.push(last))),
            }
            for (lease, bytes) in &leases {
                assert!(lease[..] == bytes[..], "round {round}: a lease has changed");
            }
        }
        let stats = cache.stats();
        assert!(stats.cached <= 15 && stats.failures == 0, "{stats:?}");
    }
}
