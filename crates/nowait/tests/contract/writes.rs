//! Writes: devices that fail, bounds on the bytes in flight, writes past the page cache, merged
//! ones, and names. What holds everywhere is in `promises/writes.rs`.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{
    Sample, Watchdog, Way, assert_settled, assert_syncs_fail, assert_syncs_succeed, contents, create, create_direct,
    descriptors_of, eventually, is_lacking_in_wine, kept_of_dropped, names, page_of, poll_once, put, writable,
    writing_instances,
};
use futures::future::join_all;
use nowait::sim::{Faults, Sim};
use nowait::{Buf, Engine, Error, ErrorKind, File, Nowait, Route, Written, fs};

const PAGE: usize = 4096;

#[cfg(target_os = "linux")]
#[test]
fn device_that_is_always_full() {
    for nowait in writing_instances() {
        let file = nowait::OpenOptions::new().write(true).open_in(&nowait, "/dev/full").wait().unwrap();
        for way in Way::ALL {
            for error in [
                way.run(file.write_at(vec![1; 10], 0)).unwrap_err(),
                way.run(file.write_all_at(vec![1; 10], 5)).unwrap_err(),
            ] {
                assert_eq!((error.error.kind(), error.buffer), (ErrorKind::NoSpace, vec![1; 10]));
                assert_eq!(error.error.bytes_written(), Some(Written::First(0)));
            }
        }
        assert_eq!(file.write_from(&[1], 0).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_settled(&nowait);
    }
}

#[test]
fn file_that_others_cut_is_written_where_it_ended() {
    let folder = temp_dir();
    for nowait in writing_instances() {
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let file = writable(&nowait, &path);
        for (round, way) in (0..).zip(Way::ALL) {
            way.run(file.write_all_at(vec![2; 10], 9_990)).unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(round * 3).unwrap();
            way.run(file.write_all_at(vec![3; 10], 10_000)).unwrap();
            let mut bytes = vec![1; 0];
            bytes.resize(round as usize * 3, if round == 0 { 1 } else { 0 });
            put(&mut bytes, 10_000, &[3; 10]);
            assert!(std::fs::read(&path).unwrap()[round as usize * 3..] == bytes[round as usize * 3..], "{way:?}");
            way.run(file.set_len(0)).unwrap();
            way.run(file.set_len(10_000)).unwrap();
        }
    }
}

#[test]
fn length_of_a_file_opened_for_reading_is_not_changed() {
    let sample = Sample::new(100);
    for nowait in writing_instances() {
        let file = sample.open(&nowait);
        for way in Way::ALL {
            let error = way.run(file.set_len(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert!(error.to_string().contains("not opened for writing"), "{error}");
        }
    }
    assert!(std::fs::read(&sample.path).unwrap() == sample.bytes);
}

#[test]
fn empty_one_of_many_writes_fails_where_one_alone_does() {
    let sample = Sample::new(100);
    let nowait = Nowait::builder().build().unwrap();
    let file = writable(&nowait, &sample.path);
    let many = |offset| file.write_many(vec![(offset, Vec::<u8>::new())]).wait();
    assert!(many(50).is_ok());
    assert_eq!(file.write_at(Vec::new(), u64::MAX).wait().unwrap_err().error.kind(), ErrorKind::InvalidRange);
    let error = many(u64::MAX).unwrap_err().error;
    assert_eq!((error.kind(), error.range_index()), (ErrorKind::InvalidRange, Some(0)));
    file.clone().close().unwrap();
    assert_eq!(many(0).unwrap_err().error.kind(), ErrorKind::Closed);
}

#[test]
fn close_after_the_last_operation_closes() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    let nowait = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)).build().unwrap();
    for round in 0..1000 {
        let file = create(&nowait, &path);
        drop(futures::executor::block_on(file.write_all_at(vec![1; 10], 0)).unwrap());
        file.close().unwrap();
        assert_eq!(descriptors_of(&path), 0, "still open in round {round}");
    }
}

// Devices that fail.

/// A simulated disk with an empty file "a" open.
fn simulated(sim: &Sim, builder: nowait::Builder, set: impl FnOnce(&mut Faults)) -> (Nowait, File) {
    let mut faults = Faults::default();
    set(&mut faults);
    sim.set_faults(faults);
    sim.create("a", []);
    let nowait = builder.engine(Engine::Sim(sim.clone())).build().unwrap();
    let file = writable(&nowait, "a".as_ref());
    (nowait, file)
}

#[test]
fn failed_write_says_that_nobody_knows() {
    let sim = Sim::new(1);
    let (nowait, file) = simulated(&sim, Nowait::builder(), |faults| (faults.not_now, faults.io_error) = (1.0, 1.0));
    for way in Way::ALL {
        let error = way.run(file.write_all_at(vec![7; 100], 30)).unwrap_err();
        assert_eq!(error.buffer, [7; 100]);
        let error = error.error;
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Io, Some(crate::common::errno::EIO)));
        assert_eq!(error.bytes_written(), Some(Written::AtLeast(0)));
        assert_eq!((error.offset(), error.length()), (Some(30), Some(100)));
        assert!(error.to_string().contains("at least"), "{error}");
        assert_eq!(way.run(file.write_at(vec![7; 100], 30)).unwrap_err().error.kind(), ErrorKind::Io);
        let many = file.write_many(vec![(0, vec![1; 10]), (50, vec![2; 10])]);
        let error = if way == Way::Waited { many.wait() } else { way.run_future(many) }.unwrap_err();
        assert_eq!((error.error.kind(), error.error.range_index()), (ErrorKind::Io, Some(0)));
        assert_eq!(error.buffer, [[1; 10], [2; 10]]);
    }
    assert_settled(&nowait);
}

#[test]
fn failed_sync_fails_until_it_is_acknowledged() {
    for way in Way::ALL {
        let sim = Sim::new(2);
        let (_nowait, file) = simulated(&sim, Nowait::builder(), |faults| faults.sync_error = 1.0);
        let clone = file.clone();
        assert_eq!(way.run(file.sync_data()).unwrap_err().kind(), ErrorKind::SyncFailed);
        // The device is sound again. What it lost is lost all the same.
        sim.set_faults(Faults::default());
        assert_syncs_fail(&clone, crate::common::errno::EIO);
        way.run(file.write_all_at(vec![1; 10], 0)).unwrap();
        assert_syncs_fail(&file, crate::common::errno::EIO);
        assert_eq!(clone.acknowledge_sync_failure().unwrap().raw_os_error(), Some(crate::common::errno::EIO));
        assert_syncs_succeed(&file);
        assert!(file.acknowledge_sync_failure().is_none());
    }
}

#[test]
fn failed_durable_write_is_a_failed_sync() {
    for way in Way::ALL {
        let sim = Sim::new(3);
        let (_nowait, file) = simulated(&sim, Nowait::builder(), |faults| faults.io_error = 1.0);
        let error = way.run(file.write_all_at(vec![1; 10], 0).durable()).unwrap_err();
        assert_eq!((error.error.kind(), error.error.bytes_written()), (ErrorKind::Io, Some(Written::AtLeast(0))));
        sim.set_faults(Faults::default());
        assert_syncs_fail(&file, crate::common::errno::EIO);
        assert!(file.acknowledge_sync_failure().is_some());
        assert_syncs_succeed(&file);
    }
}

// Bounds on what is on its way.

/// A disk that moves only when told to, on which all writes are submitted, and at most these bytes
/// at a time.
fn bounded(sim: &Sim, per_file: u64, per_instance: u64) -> (Nowait, File) {
    // Strict: a file that refuses attempts is not written inline. (A forced route would submit the
    // open, too.)
    let builder = Nowait::builder().strict(true).write_bytes_max(per_file, per_instance);
    simulated(sim, builder, |faults| faults.nowait_refused = true)
}

#[test]
fn no_more_bytes_are_on_their_way_than_allowed() {
    let sim = Sim::manual(4);
    for (per_file, per_instance) in [(10_000, 1 << 30), (1 << 30, 10_000)] {
        let (nowait, file) = bounded(&sim, per_file, per_instance);
        let mut writes: Vec<_> = (0..100).map(|i| Box::pin(file.write_all_at(vec![i as u8; 3000], i * 3000))).collect();
        writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_pending()));
        assert_eq!((sim.pending(), nowait.stats().throttled), (3, 97));
        for left in (0..100).rev() {
            assert!(sim.step());
            assert_eq!(sim.pending(), left.min(3));
        }
        writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_ready()));
        assert_settled(&nowait);
        let bytes = file.read_range(0, 300_000).wait().unwrap();
        assert!(bytes.chunks(3000).enumerate().all(|(i, chunk)| chunk == [i as u8; 3000]));
    }
}

#[test]
fn writers_are_served_first_come_first_served() {
    let sim = Sim::manual(5);
    let (_nowait, file) = bounded(&sim, 1000, 1000);
    // The second is larger than the bound, and goes alone.
    let mut writes: Vec<_> =
        (0..50).map(|i| Box::pin(file.write_all_at(vec![1; [900, 5000, 800][i % 3]], 0))).collect();
    writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_pending()));
    while !writes.is_empty() {
        assert_eq!(sim.pending(), 1);
        assert!(sim.step());
        assert!(poll_once(writes.remove(0).as_mut()).is_ready());
        assert!(writes.first_mut().is_none_or(|write| poll_once(write.as_mut()).is_pending()));
    }
}

#[test]
fn a_file_at_its_bound_holds_up_no_other() {
    let sim = Sim::manual(6);
    let (nowait, first) = bounded(&sim, 1000, 1_000_000);
    sim.create("b", []);
    let second = writable(&nowait, "b".as_ref());
    let mut writes: Vec<_> = (0..10).map(|_| Box::pin(first.write_all_at(vec![1; 1000], 0))).collect();
    writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_pending()));
    assert_eq!(sim.pending(), 1);
    let mut write = Box::pin(second.write_all_at(vec![1; 1000], 0));
    assert!(poll_once(write.as_mut()).is_pending());
    assert_eq!(sim.pending(), 2);
    while sim.step() {}
    assert!(poll_once(write.as_mut()).is_ready());
    writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_ready()));
}

#[test]
fn writers_that_are_dropped_do_not_pile_up() {
    let sim = Sim::manual(8);
    let (_nowait, file) = bounded(&sim, 1000, 1000);
    let buffer: Arc<[u8]> = Arc::from(vec![1; 1000]);
    for _ in 0..10_000 {
        assert!(poll_once(Box::pin(file.write_all_at(buffer.clone(), 0)).as_mut()).is_pending());
        let held = Arc::strong_count(&buffer);
        assert!(held < 1000, "{held} buffers are held for nobody");
    }
    while sim.step() {}
}

#[test]
fn write_that_would_wait_is_given_back() {
    let sim = Sim::manual(9);
    let (nowait, file) = bounded(&sim, 1000, 1500);
    let mut first = Box::pin(file.try_write_at(vec![1; 600], 0).unwrap());
    assert!(poll_once(first.as_mut()).is_pending());
    let Err(error) = file.try_write_at(vec![2; 600], 50) else { panic!("there is no room") };
    assert_eq!(error.buffer, [2; 600]);
    let error: Error = error.error;
    assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::WouldBlock, Some(Written::First(0))));
    assert_eq!((error.offset(), error.length()), (Some(50), Some(600)));
    // Another file's writes reach the instance's bound.
    sim.create("b", []);
    let other = writable(&nowait, "b".as_ref());
    let mut second = Box::pin(other.try_write_at(vec![2; 900], 0).unwrap());
    assert!(poll_once(second.as_mut()).is_pending());
    assert!(other.try_write_at(vec![2; 1], 0).is_err());
    while sim.step() {}
    assert!(poll_once(first.as_mut()).is_ready() && poll_once(second.as_mut()).is_ready());
    drop(file.try_write_at(vec![1; 1000], 0).unwrap());
}

#[test]
fn write_larger_than_the_bound_goes_when_nothing_is_on_its_way() {
    let sim = Sim::manual(10);
    let (_nowait, file) = bounded(&sim, 1000, 1000);
    assert!(file.try_write_at(vec![1; 5000], 0).is_ok(), "nothing is on its way");
}

#[test]
fn tried_write_is_under_way_when_it_is_given() {
    let sim = Sim::manual(11);
    let (_nowait, file) = bounded(&sim, 1000, 1000);
    let first = file.try_write_at(vec![1; 1000], 0).unwrap();
    assert!(file.try_write_at(vec![1; 1000], 0).is_err(), "the first has all the room there is");
    drop(first);
}

#[test]
fn order_of_many_writes_is_kept_by_the_bound() {
    let _watchdog = Watchdog::new("order", 60);
    let mut rng = Rng::for_test();
    let folder = temp_dir();
    let builder = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)).write_bytes_max(250, 250);
    let nowait = builder.build().unwrap();
    let file = create(&nowait, &folder.path().join("file"));
    for round in 0..3000 {
        let mut bytes = vec![0; 300];
        file.write_all_from(&bytes, 0).unwrap();
        let writes: Vec<_> =
            (0..40).map(|i| (rng.below(100) as u64, vec![i + 1; 1 + rng.below([20, 200][i as usize % 2])])).collect();
        writes.iter().for_each(|(offset, data)| put(&mut bytes, *offset, data));
        Way::ALL[round % 2 * 2].run_future(file.write_many(writes)).unwrap();
        assert!(*file.read_range(0, 300).wait().unwrap() == bytes[..], "round {round}");
    }
}

// Past the page cache.

#[test]
fn direct_writes_arrive() {
    let folder = temp_dir();
    for nowait in writing_instances().into_iter().chain(crate::common::aio_instance()) {
        for bound in [PAGE as u64, 1 << 30] {
            let builder = Nowait::builder().write_bytes_max(bound, bound);
            let nowait = if bound == 1 << 30 { nowait.clone() } else { builder.build().unwrap() };
            let Some(file) = create_direct(&nowait, &folder.path().join("direct")) else { return };
            for own in [false, true] {
                let writes =
                    join_all((0..600u64).map(|i| file.write_all_at(page_of(i as u8 ^ own as u8), i * PAGE as u64)));
                let results = if own { nowait::block_on(writes) } else { futures::executor::block_on(writes) };
                results.into_iter().for_each(|result| drop(result.unwrap()));
                let bytes = std::fs::read(file.path()).unwrap();
                assert_eq!(bytes.len(), 600 * PAGE);
                let right = |(i, page): (usize, &[u8])| page == [i as u8 ^ own as u8; PAGE];
                assert!(bytes.chunks(PAGE).enumerate().all(right));
            }
            for way in Way::ALL {
                way.run(file.write_all_at(page_of(9), 0).durable()).unwrap();
                assert!(*file.read_range(0, PAGE).wait().unwrap() == *page_of(9));
            }
            assert_settled(&nowait);
        }
    }
}

/// From a queue to the kernel, a work queue would sync it, which waits for a processor beside programs
/// that compute. Of many in flight, the queue makes more.
#[test]
fn lone_durable_direct_write_is_a_threads() {
    let folder = temp_dir();
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = create_direct(&nowait, &folder.path().join("direct")) else { return };
    // Space, so that a ring would not refuse for lack of it.
    file.write_all_at(Buf::zeroed(64 * PAGE), 0).wait().unwrap();
    file.sync_data().wait().unwrap();
    let pool = |write: &dyn Fn(u64)| {
        let before = nowait.stats();
        (0..64).for_each(|i| write(i * PAGE as u64));
        assert_settled(&nowait);
        nowait.stats().pool - before.pool
    };
    let durable = |offset| drop(futures::executor::block_on(file.write_all_at(page_of(1), offset).durable()).unwrap());
    assert_eq!(pool(&durable), 64);
    let (told, hear) = std::sync::mpsc::channel();
    let called_back = |offset| {
        let told = told.clone();
        file.write_all_at(page_of(2), offset).durable().on_complete(move |written| told.send(written.is_ok()).unwrap());
        assert!(hear.recv().unwrap());
    };
    assert_eq!(pool(&called_back), 64);
    if nowait.has_ring() {
        let many = |_| {
            let writes = (0..64).map(|i| file.write_all_at(page_of(3), i * PAGE as u64).durable());
            futures::executor::block_on(join_all(writes)).into_iter().for_each(|written| drop(written.unwrap()));
        };
        assert!(pool(&many) < 64 * 32, "most of them went to the pool");
    }
}

#[test]
fn direct_write_left_in_a_threads_ring_holds_up_no_other_thread() {
    let folder = temp_dir();
    let nowait = Nowait::builder().write_bytes_max(1 << 20, 1 << 20).build().unwrap();
    let Some(file) = create_direct(&nowait, &folder.path().join("direct")) else { return };
    let _watchdog = Watchdog::new("a write left in a ring", 20);
    nowait::block_on(async {
        let mut write = Box::pin(file.write_all_at(Buf::zeroed(1 << 20), 0));
        assert!(poll_once(write.as_mut()).is_pending());
    });
    // This thread's ring has it, and this thread does not go there again.
    std::thread::scope(|scope| {
        scope.spawn(|| futures::executor::block_on(file.write_all_at(page_of(1), 0)).unwrap());
        scope.spawn(|| nowait.drain());
    });
}

#[cfg(target_os = "linux")]
#[test]
fn file_that_is_synchronous_is_not_written_on_the_callers_thread() {
    let folder = temp_dir();
    for flag in [libc::O_DSYNC, libc::O_SYNC] {
        let nowait = Nowait::builder().build().unwrap();
        let path = folder.path().join("synchronous");
        let mut options = nowait::OpenOptions::new();
        let file = options.write(true).create(true).custom_flags(flag).open_in(&nowait, path).wait().unwrap();
        (0..20).for_each(|i| drop(nowait::block_on(file.write_all_at(vec![1; PAGE], i * PAGE as u64)).unwrap()));
        let stats = nowait.stats();
        assert_eq!((stats.inline, stats.pool), (0, 20), "{stats:?}");
    }
}

// Counters.

#[test]
fn syncs_that_are_asked_for_together_share_calls() {
    let folder = temp_dir();
    let nowait = Nowait::builder().engine(Engine::Pool).build().unwrap();
    let file = create(&nowait, &folder.path().join("file"));
    file.write_all_at(contents(1 << 20, 1), 0).wait().unwrap();
    futures::executor::block_on(join_all((0..64).map(|_| file.sync_data()))).into_iter().for_each(|sync| sync.unwrap());
    let stats = nowait.stats();
    // The first goes alone, or with those that came until a thread did; the others wait for it, and
    // share. A busy machine may hold up the thread that asks for them.
    assert!(stats.pool == 64 && stats.joined >= 32, "{stats:?}");
    assert_settled(&nowait);
}

/// Polls a future once, which is pending, while the only thread of the pool is held; then drives it to
/// its end.
fn submitted_at_once<T>(nowait: &Nowait, file: &File, future: impl Future<Output = T>) -> T {
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    nowait.fs().metadata(file.path()).on_complete(move |_| {
        begun.send(()).unwrap();
        let _ = released.recv();
    });
    begins.recv().unwrap();
    let mut future = pin!(future);
    assert!(poll_once(future.as_mut()).is_pending());
    release.send(()).unwrap();
    futures::executor::block_on(future)
}

#[test]
fn writes_that_continue_each_other_share_calls() {
    let folder = temp_dir();
    let nowait = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)).pool_threads_max(1).build().unwrap();
    let file = create(&nowait, &folder.path().join("file"));
    let data = contents(100 * 1000, 1);
    let writes = data.chunks(1000).zip(0..).map(|(chunk, i)| file.write_all_at(chunk.to_vec(), i * 1000));
    submitted_at_once(&nowait, &file, join_all(writes)).into_iter().for_each(|write| drop(write.unwrap()));
    assert!(std::fs::read(file.path()).unwrap() == data);
    let stats = nowait.stats();
    // And the open, and what held the thread.
    assert!(stats.pool == 102 && stats.joined > 0, "{stats:?}");
}

/// A sync of the file also writes the pages of writes that are not durable, for as long as that takes.
#[test]
fn durable_writes_share_a_sync_unless_it_would_write_more() {
    const WRITES: u64 = 16;
    let folder = temp_dir();
    let nowait = Nowait::builder().pool_threads_max(1).build().unwrap();
    let file = create(&nowait, &folder.path().join("file"));
    let joined = |value: u8| {
        let before = nowait.stats().joined;
        // None continues another.
        let writes = (0..WRITES).rev().map(|i| file.write_all_at(vec![value; 1000], i * 5000).durable());
        submitted_at_once(&nowait, &file, join_all(writes)).into_iter().for_each(|write| drop(write.unwrap()));
        let bytes = std::fs::read(file.path()).unwrap();
        assert!((0..WRITES as usize).all(|i| bytes[i * 5000..][..1000] == [value; 1000]));
        nowait.stats().joined - before
    };
    // Where the pool's only thread is held for long, as on a busy machine, others take some of them.
    let shares = |value| eventually(|| joined(value) > WRITES / 2);
    assert!(shares(1));
    assert!(eventually(|| {
        file.write_all_at(vec![7; 10], 1 << 20).wait().unwrap();
        joined(2) > WRITES / 2
    }));
    file.write_all_at(vec![7; 1 << 20], 1 << 20).wait().unwrap();
    assert_eq!(joined(3), 0);
    file.sync_data().wait().unwrap();
    assert!(shares(4));
    // A write that the file system refuses fails alone. (Windows does not refuse this offset.)
    #[cfg(unix)]
    for value in 10..20 {
        let write = |i| file.write_all_at(vec![value; 1000], if i == 7 { 1 << 60 } else { i * 5000 }).durable();
        let written = submitted_at_once(&nowait, &file, join_all((0..WRITES).map(write)));
        for (i, written) in written.into_iter().enumerate() {
            match written {
                Ok(_) => assert_ne!(i, 7),
                Err(error) => assert_eq!((i, error.error.raw_os_error()), (7, Some(crate::common::errno::EFBIG))),
            }
        }
        let bytes = std::fs::read(file.path()).unwrap();
        assert!((0..WRITES as usize).filter(|&i| i != 7).all(|i| bytes[i * 5000..][..1000] == [value; 1000]));
    }
    file.sync_data().wait().unwrap();
    assert_settled(&nowait);
}

// Names.

#[test]
fn atomic_write_creates_and_replaces() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    for len in [10, 0, 1_000_000] {
        let data = contents(len, len as u64);
        // A reader that was there before keeps what it had.
        let keeps_open = len != 10 && !is_lacking_in_wine("POSIX semantics of renames");
        let before = keeps_open.then(|| (std::fs::File::open(&path).unwrap(), std::fs::read(&path).unwrap()));
        futures::executor::block_on(fs::write_atomic(&path, data.clone())).unwrap();
        assert!(std::fs::read(&path).unwrap() == data);
        if let Some((mut file, bytes)) = before {
            let mut still = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut still).unwrap();
            assert!(still == bytes);
        }
        assert_eq!(names(folder.path()), ["file"]);
    }
    let error = futures::executor::block_on(fs::write_atomic("/", vec![1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // Symptom: for /proc, which exists, the advice was to create the directory first.
    for (missing, words) in [
        (folder.path().join("missing/file"), "missing does not exist; create the directory first"),
        #[cfg(target_os = "linux")]
        ("/proc/new".into(), "its directory /proc takes no new files"),
    ] {
        let error = futures::executor::block_on(fs::write_atomic(missing, vec![1])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn names_are_changed_and_made_durable() {
    for way in Way::ALL {
        let folder = temp_dir();
        let [first, second, missing] = ["first", "second", "missing"].map(|name| folder.path().join(name));
        std::fs::write(&first, b"1").unwrap();
        std::fs::write(&second, b"2").unwrap();
        let error = way.run(fs::rename_new(&first, &second)).unwrap_err();
        assert_eq!(
            (error.kind(), error.raw_os_error()),
            (ErrorKind::AlreadyExists, Some(crate::common::errno::EEXIST))
        );
        for part in ["rename", first.to_str().unwrap(), second.to_str().unwrap()] {
            assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
        }
        assert_eq!(names(folder.path()), ["first", "second"]);
        way.run(fs::rename(&first, &second)).unwrap();
        assert_eq!(
            (names(folder.path()), std::fs::read(&second).unwrap()),
            (vec!["second".to_string()], b"1".to_vec())
        );
        way.run(fs::rename_new(&second, &first)).unwrap();
        assert_eq!(names(folder.path()), ["first"]);
        way.run(fs::sync_dir(folder.path())).unwrap();
        way.run(fs::remove_file(&first)).unwrap();
        assert!(names(folder.path()).is_empty());
        for result in [
            way.run(fs::rename(&missing, &first)),
            way.run(fs::rename_new(&missing, &first)),
            way.run(fs::remove_file(&missing)),
            way.run(fs::sync_dir(&missing)),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(missing.to_str().unwrap()), "{error}");
        }
    }
}

/// Polls a small write once, which leaves it for others to join. `makes` must have made it when it
/// returns.
fn a_left_write_is_made_by(makes: impl Fn(&Nowait, &File)) {
    let _watchdog = Watchdog::new("a small write that waits for others", 60);
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, b"").unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = writable(&nowait, &path);
    nowait::block_on(async {
        let mut write = Box::pin(file.write_all_at(vec![7; 100], 0));
        assert!(poll_once(write.as_mut()).is_pending(), "it is kept for others to join");
        makes(&nowait, &file);
        assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);
        write.await.unwrap();
    });
}

/// Symptom: under `block_on` a small write waited for the end of the turn, and `drain` for nothing.
#[test]
fn drain_makes_what_waits_for_the_end_of_the_turn() {
    a_left_write_is_made_by(|nowait, _| {
        nowait.drain();
        assert_eq!(nowait.stats().started, nowait.stats().ended());
    });
}

/// Symptom: `settled` returned while a small write that had been polled waited for its thread.
#[test]
fn settled_waits_for_a_small_write_that_waits_for_others() {
    a_left_write_is_made_by(|_, file| {
        std::thread::scope(|scope| scope.spawn(|| file.settled().wait()).join().unwrap());
    });
}

/// Tasks on two threads write neighbouring pages, each its own; some writes are dropped after a
/// poll: they are made, or not, and touch no other page.
#[cfg(feature = "tokio")]
#[test]
fn neighbours_of_several_threads_are_made_together() {
    const TASKS: usize = 16;
    const ROUNDS: usize = 200;
    let _watchdog = Watchdog::new("neighbours of several threads", 120);
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![0; TASKS * ROUNDS * PAGE]).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = writable(&nowait, &path);
    let seed = Rng::for_test().below(1 << 30) as u64;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let kept: Vec<Vec<bool>> = runtime.block_on(async {
        let tasks = (0..TASKS).map(|task| {
            let (file, mut rng) = (file.clone(), Rng::new(seed + task as u64));
            tokio::spawn(async move {
                let mut kept = Vec::new();
                for round in 0..ROUNDS {
                    let place = round * TASKS + task;
                    let mut write =
                        Box::pin(file.write_all_at(vec![1 + (place % 250) as u8; PAGE], (place * PAGE) as u64));
                    let keeps = rng.below(10) > 0;
                    if keeps {
                        write.await.unwrap();
                    } else {
                        let _ = poll_once(write.as_mut());
                    }
                    kept.push(keeps);
                }
                kept
            })
        });
        let mut all = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            all.push(task.await.unwrap());
        }
        all
    });
    assert!(nowait.stats().joined > 0, "none was made with another");
    file.settled().wait();
    let bytes = std::fs::read(&path).unwrap();
    for (place, page) in bytes.chunks(PAGE).enumerate() {
        let made = vec![1 + (place % 250) as u8; PAGE];
        let is_kept = kept[place % TASKS][place / TASKS];
        assert!(*page == *made || (!is_kept && page.iter().all(|byte| *byte == 0)), "page {place}, seed {seed}");
    }
    drop(runtime);
    assert_settled(&nowait);
}

/// Where a call for several writes fails half-way, each write has its own result.
#[cfg(target_os = "linux")]
#[test]
fn an_error_among_writes_made_together_belongs_to_those_that_it_hits() {
    let memory = rustix::fs::memfd_create("sealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    let memory = std::fs::File::from(memory);
    memory.set_len(8 * PAGE as u64).unwrap();
    // It cannot grow.
    rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::GROW).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = File::from_std(&nowait, memory.try_clone().unwrap(), "/sealed").unwrap();
    for _ in 0..20 {
        let page = |place: usize| file.write_all_at(vec![1 + place as u8; PAGE], (place * PAGE) as u64);
        let results = nowait::block_on(join_all((0..16).map(page)));
        for (place, result) in results.into_iter().enumerate() {
            match result {
                Ok(_) => assert!(place < 8, "page {place}"),
                Err(error) => {
                    assert!(place >= 8, "page {place}: {error}");
                    assert_eq!(error.error.raw_os_error(), Some(crate::common::errno::EPERM));
                    assert_eq!(
                        (error.error.offset(), &*error.buffer),
                        (Some((place * PAGE) as u64), &[1 + place as u8; PAGE][..])
                    );
                }
            }
        }
        let mut bytes = vec![0; 8 * PAGE];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, 0).unwrap();
        assert!(bytes.chunks(PAGE).enumerate().all(|(place, page)| *page == [1 + place as u8; PAGE]));
    }
    assert_settled(&nowait);
}

/// Writes of futures in one turn are made together, in any order, also where they overlap, and
/// where some are dropped.
#[test]
fn writes_of_one_turn_are_made_together() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    let mut bytes = contents(200_000, 1);
    std::fs::write(&path, &bytes).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = writable(&nowait, &path);
    let mut rng = Rng::for_test();
    for round in 0..200 {
        // Apart from each other: neighbours and gaps, shuffled. Every tenth round they overlap, and
        // are made in their order.
        let mut place = 0;
        let mut writes: Vec<(u64, Vec<u8>)> = (0..20)
            .map(|_| {
                place += if rng.below(3) == 0 { rng.below(5000) } else { 0 };
                let length = 1 + rng.below(5000);
                let start = if round % 10 == 0 { rng.below(9000) } else { place };
                place += length;
                (start as u64, contents(length, rng.next()))
            })
            .collect();
        for i in (1..writes.len()).rev() {
            writes.swap(i, rng.below(i + 1));
        }
        let dropped = rng.below(20);
        let mut is_dropped = false;
        nowait::block_on(async {
            let mut waiting: Vec<_> =
                writes.iter().map(|(offset, data)| Some(Box::pin(file.write_all_at(data.clone(), *offset)))).collect();
            for write in &mut waiting {
                if poll_once(write.as_mut().unwrap().as_mut()).is_ready() {
                    // Made at once.
                    *write = None;
                }
            }
            // One that was not made need not be made: the helper makes those of a thread that is held
            // up.
            is_dropped = waiting[dropped].take().is_some();
            for write in waiting.into_iter().flatten() {
                write.await.unwrap();
            }
        });
        if round % 10 == 0 {
            // Overlapping writes that are made at once may come first: only the whole range is known
            // to be theirs.
            bytes = std::fs::read(&path).unwrap();
            continue;
        }
        let now = std::fs::read(&path).unwrap();
        if is_dropped {
            let (offset, data) = &mut writes[dropped];
            let range = *offset as usize..*offset as usize + data.len();
            let (old, now) = (&bytes[range.clone()], &now[range]);
            assert!(kept_of_dropped(old, data, now, *offset, false).is_some(), "round {round}");
            *data = now.to_vec();
        }
        writes.iter().for_each(|(offset, data)| put(&mut bytes, *offset, data));
        assert!(now == bytes, "round {round}");
    }
    let stats = nowait.stats();
    assert!(stats.joined > 0, "{stats:?}");
    assert_settled(&nowait);
}

#[test]
fn writers_that_are_dropped_leave_the_line() {
    let _watchdog = Watchdog::new("dropped in line", 10);
    let sim = Sim::manual(7);
    let (nowait, file) = bounded(&sim, 1000, 1000);
    // Dropped before its turn, while it is under way, and in line behind a dropped one.
    for dropped in [vec![1], vec![0], vec![0, 1], vec![1, 2], vec![0, 2, 3], vec![0, 1, 2, 3]] {
        let mut writes: Vec<_> =
            (0..5).map(|i| Some(Box::pin(file.write_all_at(vec![i; 1000], i as u64 * 1000)))).collect();
        writes.iter_mut().flatten().for_each(|write| assert!(poll_once(write.as_mut()).is_pending()));
        dropped.iter().for_each(|i: &usize| writes[*i] = None);
        while sim.step() {}
        writes.iter_mut().flatten().for_each(|write| assert!(poll_once(write.as_mut()).is_ready(), "{dropped:?}"));
        assert_settled(&nowait);
    }
}

/// Threads that write inline and others whose writes are submitted, to one file.
#[test]
fn bytes_on_their_way_are_counted_right_by_many_threads() {
    let _watchdog = Watchdog::new("counting", 60);
    let folder = temp_dir();
    let nowait = Nowait::builder().inline_bytes_max(1000).build().unwrap();
    let file = create(&nowait, &folder.path().join("file"));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (file, len) = (&file, [100, 1001][thread % 2]);
            scope.spawn(move || {
                let until = std::time::Instant::now() + Duration::from_secs(3);
                while std::time::Instant::now() < until {
                    for i in 0..50 {
                        drop(futures::executor::block_on(file.write_all_at(vec![1; len], i * 4096)).unwrap());
                    }
                }
            });
        }
    });
    assert_settled(&nowait);
}

#[test]
fn direct_writes_that_are_dropped_hold_up_no_other_in_the_pool() {
    dropped_past_the_cache(Nowait::builder().engine(Engine::Pool).pool_threads_max(1));
}

#[test]
fn direct_writes_that_are_dropped_hold_up_no_other_in_libaio() {
    let Some(_) = crate::common::aio_instance() else { return };
    dropped_past_the_cache(Nowait::builder().engine(Engine::Aio));
}

#[test]
fn direct_writes_that_are_dropped_hold_up_no_other_in_a_ring() {
    dropped_past_the_cache(Nowait::builder());
}

/// More than a queue takes, more than may be on their way, and nearly all dropped.
fn dropped_past_the_cache(builder: nowait::Builder) {
    let folder = temp_dir();
    for own in [false, true] {
        let _watchdog = Watchdog::new(format!("dropped past the cache, own: {own}"), 20);
        let bound = 400 * PAGE as u64;
        let nowait = builder.clone().write_bytes_max(bound, bound).build().unwrap();
        let Some(file) = create_direct(&nowait, &folder.path().join("direct")) else { return };
        let task = async {
            for round in 0..5 {
                let mut writes: Vec<_> =
                    (0..600).map(|i| Box::pin(file.write_all_at(page_of(1), i * PAGE as u64))).collect();
                std::future::poll_fn(|context| {
                    for write in &mut writes {
                        let _ = std::future::Future::poll(write.as_mut(), context);
                    }
                    std::task::Poll::Ready(())
                })
                .await;
                drop(writes);
                let last = file.write_all_at(page_of(round), 1000 * PAGE as u64).await.unwrap();
                assert!(file.read_at(Buf::zeroed(PAGE), 1000 * PAGE as u64).await.unwrap().1[..] == last[..]);
            }
        };
        if own {
            nowait::block_on(task)
        } else {
            futures::executor::block_on(task)
        }
        assert_settled(&nowait);
    }
}
