//! Writes where something is in their way: full disks, limits, devices that fail, bounds on what is
//! on its way, processes that are killed. What holds everywhere is in `promises/writes.rs`.

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path as FsPath, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::mounts::{Kind, Mount, or_skip, temp_dir};
use common::rng::Rng;
use common::{
    Sample, Watchdog, Way, assert_settled, child, cold, contents, eventually, open_direct, poll_once, put, writable,
};
use futures::future::join_all;
use nowait::sim::{Faults, Sim};
use nowait::{Buf, BufferError, Engine, Error, ErrorKind, File, Nowait, OpenOptions, Route, Written, fs};

const PAGE: usize = 4096;

/// Instances that write on the caller's thread where they can, and such that never do.
fn instances() -> [Nowait; 3] {
    let pool = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool));
    [Nowait::builder(), Nowait::builder().strict(true), pool].map(|builder| builder.build().unwrap())
}

fn create(nowait: &Nowait, path: &FsPath) -> File {
    OpenOptions::new().read(true).write(true).create(true).open_in(nowait, path).wait().unwrap()
}

// Full disks, quotas and limits.

#[test]
fn full_disk_tells_how_much_was_written_and_goes_on_when_there_is_room() {
    if !common::has_memory(80 << 20) {
        return;
    }
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let Some(mount) = Mount::sized_or_skip(kind, 24 << 20) else { continue };
        for nowait in instances() {
            for way in Way::ALL {
                fill_up(&nowait, mount.path(), way, libc::ENOSPC);
            }
        }
    }
}

#[test]
fn full_quota_is_told_to_a_user_who_is_not_root() {
    let Some(mount) = Mount::or_skip(Kind::Btrfs) else { return };
    let Some(folder) = or_skip("quota on btrfs", mount.folder_with_quota(12 << 20)) else { return };
    child::play_at("quota", &folder);
}

fn under_a_quota() {
    child::become_nobody();
    for nowait in instances() {
        for way in Way::ALL {
            fill_up(&nowait, &child::path(), way, libc::EDQUOT);
        }
    }
}

fn fill_up(nowait: &Nowait, folder: &FsPath, way: Way, errno: i32) {
    let (ballast, path) = (folder.join("ballast"), folder.join("file"));
    // Not while a round is under way.
    common::mounts::free_what_was_removed(folder);
    assert!(eventually(|| std::fs::write(&ballast, vec![1; 4 << 20]).is_ok()));
    let file = create(nowait, &path);
    let mut bytes = Vec::new();
    let data = contents(300_000, 1);
    let error = loop {
        match way.run(file.write_all_at(data.clone(), bytes.len() as u64)) {
            Ok(_) => bytes.extend_from_slice(&data),
            Err(error) => break error,
        }
    };
    assert!(error.buffer == data);
    let error = error.error;
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::NoSpace, Some(errno)), "{error}");
    assert_eq!((error.offset(), error.length()), (Some(bytes.len() as u64), Some(data.len() as u64)));
    let Some(Written::First(n)) = error.bytes_written() else { panic!("{error}") };
    let name = path.display().to_string();
    for part in ["write", &name, &format!("offset {}, length {}", bytes.len(), data.len()), "raise the quota"] {
        assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
    }
    bytes.extend_from_slice(&data[..n as usize]);
    assert!(std::fs::read(&path).unwrap() == bytes, "the first {n} bytes, and nothing after them");

    let error = loop {
        match way.run(file.write_at(data.clone(), bytes.len() as u64)) {
            // (btrfs gives reservations back late.)
            Ok((n, _)) => bytes.extend_from_slice(&data[..n]),
            Err(error) => break error,
        }
    };
    assert_eq!((error.error.kind(), error.error.bytes_written()), (ErrorKind::NoSpace, Some(Written::First(0))));
    assert!(error.buffer == data);

    std::fs::remove_file(&ballast).unwrap();
    let written = eventually(|| way.run(file.write_all_at(data.clone(), bytes.len() as u64)).is_ok());
    assert!(written, "there is room again");
    bytes.extend_from_slice(&data);
    assert!(std::fs::read(&path).unwrap() == bytes);
    way.run(file.sync_all()).unwrap();
    drop(file);
    std::fs::remove_file(path).unwrap();
    assert_settled(nowait);
}

const LIMIT: usize = 100_000;

#[test]
fn file_that_may_not_grow_further_is_too_large() {
    child::play("limit");
    child::play("limit past the cache");
}

fn under_a_limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Some(LIMIT as u64);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let folder = temp_dir();
    for nowait in instances() {
        for way in Way::ALL {
            let path = folder.path().join("file");
            let file = create(&nowait, &path);
            let (half, data) = (LIMIT as u64 / 2, contents(LIMIT, 2));
            let error = way.run(file.write_all_at(data.clone(), half)).unwrap_err();
            assert!(error.buffer == data);
            let error = error.error;
            assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::FileTooLarge, Some(libc::EFBIG)), "{error}");
            assert_eq!(error.bytes_written(), Some(Written::First(half)), "{way:?}: {error}");
            let (n, _) = way.run(file.write_at(data.clone(), half)).unwrap();
            assert_eq!(n as u64, half, "a part is a success where it may be one");
            assert!(std::fs::read(&path).unwrap()[half as usize..] == data[..half as usize]);
            let error = way.run(file.append(data.clone())).unwrap_err().error;
            assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::FileTooLarge, Some(Written::First(0))));
            let error = way.run(file.set_len(2 * LIMIT as u64)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
            // Of those that continue each other, the one that did not get in is to blame.
            let writes: Vec<_> = (0..4).map(|i| (LIMIT as u64 - 250 + i * 100, vec![3; 100])).collect();
            let many = file.write_many(writes);
            let error = if way == Way::Waited { many.wait() } else { way.run_future(many) }.unwrap_err();
            assert_eq!(error.buffer, vec![vec![3; 100]; 4]);
            let error = error.error;
            assert_eq!((error.kind(), error.range_index()), (ErrorKind::FileTooLarge, Some(2)), "{error}");
            assert_eq!((error.offset(), error.bytes_written()), (Some(LIMIT as u64 - 50), Some(Written::First(50))));
            drop(file);
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Symptom: a direct write across the limit failed with EINVAL, since the kernel cuts it there
/// before it checks the length. The file then assumed a larger alignment than the device needs.
fn under_a_limit_past_the_cache() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Some(LIMIT as u64);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let folder = temp_dir();
    let path = folder.path().join("file");
    for engine in [Engine::Auto, Engine::Aio, Engine::Pool] {
        let Ok(nowait) = Nowait::builder().engine(engine.clone()).build() else { continue };
        for way in Way::ALL {
            for (offset, length) in [(0, 204_800), (65_536, 65_536), (98_304, 4096), (5, 150_000), (99_999, 512)] {
                std::fs::write(&path, b"").unwrap();
                let Some(file) = open_direct(&nowait, &path) else { return };
                let (before, data) = (file.direct(), contents(length, 2));
                let mut buffer = Buf::zeroed(length);
                buffer.copy_from_slice(&data);
                let room = LIMIT - offset;
                let what = format!("{engine:?}, {way:?}, {length} at {offset}");
                let error = way.run(file.write_all_at(buffer, offset as u64)).unwrap_err().error;
                assert_eq!(
                    (error.kind(), error.raw_os_error()),
                    (ErrorKind::FileTooLarge, Some(libc::EFBIG)),
                    "{what}"
                );
                assert_eq!(error.bytes_written(), Some(Written::First(room as u64)), "{what}: {error}");
                assert_eq!(file.direct(), before, "{what}: this tells nothing of the device");
                let there = std::fs::read(&path).unwrap();
                assert!(there.len() == LIMIT && there[offset..] == data[..room], "{what}");
                let error = way.run(file.write_all_at(Buf::zeroed(4096), 102_400)).unwrap_err().error;
                assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::FileTooLarge, Some(Written::First(0))));
                let error = file.write_all_from(&data, offset as u64).unwrap_err();
                assert_eq!((error.kind(), file.direct()), (ErrorKind::FileTooLarge, before), "{what}: {error}");
                // Below the limit all is as before.
                way.run(file.write_all_at(Buf::zeroed(4096), 4096)).unwrap();
                assert_settled(&nowait);
            }
        }
    }
}

/// Symptom: a direct stream reserved space beyond the limit, so that SIGXFSZ ended a process all of
/// whose writes fit.
#[test]
fn a_stream_reserves_nothing_beyond_the_limit() {
    child::finish("stream below a limit", child::mortal("stream below a limit"));
}

fn stream_below_a_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const LENGTH: usize = 18 << 20;
    let folder = temp_dir();
    for (n, room) in [0, 1, 4096, 3 << 20, 64 << 20].into_iter().enumerate() {
        let limit = Some((LENGTH + room) as u64);
        setrlimit(Resource::Fsize, Rlimit { current: limit, ..getrlimit(Resource::Fsize) }).unwrap();
        let path = folder.path().join(n.to_string());
        std::fs::write(&path, b"").unwrap();
        let Some(file) = open_direct(Nowait::shared(), &path) else { return };
        let mut writer = nowait::stream::Writer::new(&file, 0);
        for _ in 0..LENGTH >> 20 {
            writer.put(Buf::zeroed(1 << 20)).wait().unwrap();
        }
        writer.finish().wait().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LENGTH as u64);
    }
}

#[test]
fn device_that_is_always_full() {
    for nowait in instances() {
        let file = OpenOptions::new().write(true).open_in(&nowait, "/dev/full").wait().unwrap();
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
    for nowait in instances() {
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
    for nowait in instances() {
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
        let descriptor = format!("/proc/self/fd/{}", file.descriptor().unwrap().as_raw_fd());
        drop(futures::executor::block_on(file.write_all_at(vec![1; 10], 0)).unwrap());
        file.close().unwrap();
        assert!(std::fs::read_link(&descriptor).ok().as_ref() != Some(&path), "still open in round {round}");
    }
}

// Devices that fail.

/// A simulated disk that moves only when told to, or by itself, with an empty file "a" open.
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
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Io, Some(libc::EIO)));
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

/// Every sync of every clone fails, until that is acknowledged.
fn assert_syncs_fail(file: &File, errno: i32) {
    for clone in [file.clone(), file.clone()] {
        for way in Way::ALL {
            for result in [way.run(clone.sync_data()), way.run(clone.sync_all())] {
                let error = result.unwrap_err();
                assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::SyncFailed, Some(errno)), "{way:?}");
                assert!(error.to_string().contains("acknowledge_sync_failure"), "{error}");
            }
        }
    }
}

fn assert_syncs_succeed(file: &File) {
    Way::ALL.into_iter().for_each(|way| way.run(file.sync_data()).unwrap());
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
        assert_syncs_fail(&clone, libc::EIO);
        way.run(file.write_all_at(vec![1; 10], 0)).unwrap();
        assert_syncs_fail(&file, libc::EIO);
        assert_eq!(clone.acknowledge_sync_failure().unwrap().raw_os_error(), Some(libc::EIO));
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
        assert_syncs_fail(&file, libc::EIO);
        assert!(file.acknowledge_sync_failure().is_some());
        assert_syncs_succeed(&file);
    }
}

/// A device that is a loop over a file in memory, where there is no room for what is not there yet.
#[test]
fn device_that_cannot_write_back_fails_every_sync_until_that_is_acknowledged() {
    const IMAGE: usize = 32 << 20;
    if !common::has_memory(3 * IMAGE as u64) {
        return;
    }
    let Some(memory) = Mount::sized_or_skip(Kind::Tmpfs, (IMAGE + (4 << 20)) as u64) else { return };
    let image = memory.path().join("image");
    std::fs::write(&image, vec![0; IMAGE]).unwrap();
    let Some(mount) = or_skip("ext4 in memory", Mount::ext4_in(&image, true)) else { return };
    for nowait in instances() {
        for way in Way::ALL {
            lose_a_write_back(&nowait, mount.path(), &image, way);
        }
    }
}

fn lose_a_write_back(nowait: &Nowait, folder: &FsPath, image: &FsPath, way: Way) {
    let (path, ballast) = (folder.join("file"), image.with_file_name("ballast"));
    let old = contents(1 << 20, 1);
    std::fs::write(&path, &old).unwrap();
    // The file has its blocks, and the journal has them all: only what is written over them finds
    // no room.
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let (file, second) = (writable(nowait, &path), writable(nowait, &path));
    let mut filler = std::fs::File::create(&ballast).unwrap();
    let (mut there, mut seed) = (old, 2);
    // Now and then there is room after all: memory that something else has just given back.
    let (new, error) = loop {
        take_from_image(image, &there);
        while std::io::Write::write(&mut filler, &[1; PAGE]).is_ok() {}
        let new = contents(1 << 20, seed);
        way.run(file.write_all_at(new.clone(), 0)).unwrap();
        match way.run(file.sync_data()) {
            Err(error) => break (new, error),
            Ok(()) => assert!(seed < 6, "the device always finds room"),
        }
        (there, seed) = (new, seed + 1);
    };
    assert_eq!(error.kind(), ErrorKind::SyncFailed);
    // Newer kernels pass on why the loop device failed.
    let errno = error.raw_os_error().unwrap();
    assert!([libc::EIO, libc::ENOSPC].contains(&errno), "{error}");
    assert_syncs_fail(&file, errno);
    assert_syncs_fail(&second, errno);

    // The device is well again. What it lost is lost all the same.
    std::fs::remove_file(&ballast).unwrap();
    drop(filler);
    assert_syncs_fail(&file, errno);
    assert_eq!(file.acknowledge_sync_failure().unwrap().raw_os_error(), Some(errno));
    assert_syncs_fail(&second, errno);
    assert!(second.acknowledge_sync_failure().is_some());
    assert_syncs_succeed(&second);
    way.run(file.write_all_at(new.clone(), 0)).unwrap();
    assert_syncs_succeed(&file);
    cold::drop_pages(&path);
    assert_eq!(cold::cached_pages(&path), 0);
    assert!(std::fs::read(&path).unwrap() == new);
    drop((file, second));
    std::fs::remove_file(&path).unwrap();
    assert_settled(nowait);
}

/// Makes holes of the pages of an image that hold `bytes`, all of which differ.
fn take_from_image(image: &FsPath, bytes: &[u8]) {
    use rustix::fs::{FallocateFlags, fallocate};
    let pages: HashSet<&[u8]> = bytes.chunks(PAGE).collect();
    let now = std::fs::read(image).unwrap();
    let found: Vec<usize> = (0..now.len() / PAGE).filter(|i| pages.contains(&now[i * PAGE..][..PAGE])).collect();
    // More of them where an earlier file with the same bytes lay elsewhere, as on 6.1 now and then.
    assert!(found.len() >= pages.len(), "{} of {}", found.len(), pages.len());
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    found.iter().for_each(|i| fallocate(&file, hole, (i * PAGE) as u64, PAGE as u64).unwrap());
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
fn writers_that_are_dropped_leave_the_line() {
    child::play("dropped in line");
}

fn dropped_in_line() {
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
    // Of another file, up to the instance's bound.
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
fn bytes_on_their_way_are_counted_right_by_many_threads() {
    child::play("counting");
}

/// Threads that write inline and others whose writes are submitted, to one file.
fn counting() {
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

/// An empty file past the page cache; says so where there are none, as on tmpfs before Linux 6.6.
fn direct(nowait: &Nowait, path: &FsPath) -> Option<File> {
    std::fs::write(path, []).unwrap();
    open_direct(nowait, path)
}

fn page_of(byte: u8) -> Buf {
    let mut page = Buf::zeroed(PAGE);
    page.fill(byte);
    page
}

#[test]
fn direct_writes_arrive() {
    let folder = temp_dir();
    for nowait in instances().into_iter().chain(common::aio_instance()) {
        for bound in [PAGE as u64, 1 << 30] {
            let builder = Nowait::builder().write_bytes_max(bound, bound);
            let nowait = if bound == 1 << 30 { nowait.clone() } else { builder.build().unwrap() };
            let Some(file) = direct(&nowait, &folder.path().join("direct")) else { return };
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

#[test]
fn direct_writes_that_are_dropped_hold_up_no_other_in_the_pool() {
    child::play("dropped past the cache: pool");
}

#[test]
fn direct_writes_that_are_dropped_hold_up_no_other_in_libaio() {
    child::play("dropped past the cache: libaio");
}

#[test]
fn direct_writes_that_are_dropped_hold_up_no_other_in_a_ring() {
    child::play("dropped past the cache: ring");
}

#[test]
fn direct_write_left_in_a_threads_ring_holds_up_no_other_thread() {
    let folder = temp_dir();
    let nowait = Nowait::builder().write_bytes_max(1 << 20, 1 << 20).build().unwrap();
    let Some(file) = direct(&nowait, &folder.path().join("direct")) else { return };
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

#[test]
fn file_that_is_synchronous_is_not_written_on_the_callers_thread() {
    let folder = temp_dir();
    for flag in [libc::O_DSYNC, libc::O_SYNC] {
        let nowait = Nowait::builder().build().unwrap();
        let path = folder.path().join("synchronous");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).custom_flags(flag).open_in(&nowait, path).wait().unwrap();
        (0..20).for_each(|i| drop(nowait::block_on(file.write_all_at(vec![1; PAGE], i * PAGE as u64)).unwrap()));
        let stats = nowait.stats();
        assert_eq!((stats.inline, stats.pool), (0, 20), "{stats:?}");
    }
}

/// More than a queue takes, more than may be on their way, and nearly all dropped.
fn dropped_past_the_cache(builder: nowait::Builder) {
    let folder = temp_dir();
    for own in [false, true] {
        let _watchdog = Watchdog::new(format!("dropped past the cache, own: {own}"), 20);
        let bound = 400 * PAGE as u64;
        let nowait = builder.clone().write_bytes_max(bound, bound).build().unwrap();
        let Some(file) = direct(&nowait, &folder.path().join("direct")) else { return };
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

// Flags that a kernel or a file system may not know.

/// A folder on every kind of file system that there is.
fn folders() -> Vec<(Box<dyn std::any::Any>, PathBuf)> {
    let root = temp_dir();
    let path = root.path().to_path_buf();
    let mut folders: Vec<(Box<dyn std::any::Any>, PathBuf)> = vec![(Box::new(root), path)];
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs, Kind::Overlay] {
        let Some(mount) = Mount::or_skip(kind) else { continue };
        let path = mount.path().to_path_buf();
        folders.push((Box::new(mount), path));
    }
    folders
}

/// Whether a plain call with this flag of `pwritev2(2)` is taken.
fn takes(file: &File, page: &[u8], flag: u32) -> bool {
    let flags = rustix::io::ReadWriteFlags::from_bits_retain(flag);
    match rustix::io::pwritev2(file.descriptor().unwrap(), &[std::io::IoSlice::new(page)], 0, flags) {
        Ok(n) => n == page.len(),
        Err(_) => false,
    }
}

/// The file is as it was, the buffer is back, and the error says what to do.
#[track_caller]
fn assert_unsupported(error: BufferError<Buf>, file: &File, old: &[u8], offset: u64, words: [&str; 2]) {
    assert!(error.buffer[..] == *page_of(2), "an error gives the buffer back");
    let error = error.error;
    assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::Unsupported, Some(Written::First(0))), "{error}");
    assert_eq!((error.offset(), error.length()), (Some(offset), Some(PAGE as u64)));
    assert!(matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)), "{error}");
    for part in words.into_iter().chain(["write", "nothing was written", file.path().to_str().unwrap()]) {
        assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
    }
    assert!(std::fs::read(file.path()).unwrap() == old, "nothing was written");
}

const DONTCACHE: u32 = 0x80;
const ATOMIC: u32 = 0x40;

#[test]
fn uncached_writes_leave_the_cache_or_are_refused() {
    for (_mount, folder) in folders() {
        let path = folder.join("uncached");
        let nowait = Nowait::builder().build().unwrap();
        let taken = takes(&create(&nowait, &path), &[1; PAGE], DONTCACHE);
        std::fs::remove_file(&path).unwrap();
        // Where the device's interrupt ends a write-back the kernel leaves the pages in the cache
        // (`folio_end_dropbehind`, mm/filemap.c, 6.18). So not each goes, and perhaps none.
        let goes = taken && is_gone(&nowait, &path, |file| assert!(takes(file, &[2; PAGE], DONTCACHE)));
        for nowait in instances() {
            for way in Way::ALL {
                if taken {
                    let gone = is_gone(&nowait, &path, |file| {
                        assert!(way.run(file.write_all_at(page_of(2), 0).uncached()).unwrap()[..] == *page_of(2));
                    });
                    assert!(gone || !goes, "{folder:?}, {way:?}");
                    continue;
                }
                let file = create(&nowait, &path);
                let write = || file.write_all_at(page_of(2), 0).uncached();
                for write in [write(), write().durable()] {
                    let error = way.run(write).unwrap_err();
                    assert_unsupported(error, &file, &[], 0, ["RWF_DONTCACHE", "without uncached()"]);
                }
                way.run(file.sync_data()).unwrap();
                std::fs::remove_file(&path).unwrap();
            }
            assert_settled(&nowait);
        }
    }
}

/// Whether a page that `write` writes leaves the cache when it is on the device, in one of some new
/// files.
fn is_gone(nowait: &Nowait, path: &FsPath, write: impl Fn(&File)) -> bool {
    (0..20).any(|_| {
        let file = create(nowait, path);
        write(&file);
        file.sync_data().wait().unwrap();
        let gone = (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            cold::cached_pages(path) == 0
        });
        assert!(std::fs::read(path).unwrap() == [2; PAGE]);
        std::fs::remove_file(path).unwrap();
        gone
    })
}

#[test]
fn atomic_writes_are_whole_or_are_refused() {
    let old = contents(4 * PAGE, 1);
    for (_mount, folder) in folders() {
        for nowait in instances() {
            for (way, direct) in Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]) {
                let path = folder.join("atomic");
                let file = if direct { self::direct(&nowait, &path) } else { Some(create(&nowait, &path)) };
                let Some(file) = file else { continue };
                std::fs::write(&path, &old).unwrap();
                std::fs::File::open(&path).unwrap().sync_all().unwrap();
                let mut first = Buf::zeroed(PAGE);
                first.copy_from_slice(&old[..PAGE]);
                let taken = takes(&file, &first, ATOMIC);
                assert!(direct || !taken, "the page cache knows no atomic writes");
                let words = ["RWF_ATOMIC", "without atomic()"];
                let mut now = old.clone();
                match way.run(file.write_all_at(page_of(2), PAGE as u64).atomic()) {
                    Ok(back) => {
                        assert!(taken && back[..] == *page_of(2));
                        now[PAGE..2 * PAGE].fill(2);
                    }
                    Err(error) => {
                        assert!(!taken, "{error}");
                        assert_unsupported(error, &file, &old, PAGE as u64, words);
                    }
                }
                assert!(std::fs::read(&path).unwrap() == now);
                // Not aligned to its own size.
                let error = way.run(file.write_all_at(page_of(2), 512).atomic()).unwrap_err();
                assert_unsupported(error, &file, &now, 512, words);
                way.run(file.sync_data()).unwrap();
                drop(file);
                std::fs::remove_file(&path).unwrap();
            }
            assert_settled(&nowait);
        }
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
    // share.
    assert!(stats.pool == 64 && stats.joined >= 60, "{stats:?}");
    assert_settled(&nowait);
}

#[test]
fn writes_that_continue_each_other_share_calls() {
    let folder = temp_dir();
    let nowait = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)).pool_threads_max(1).build().unwrap();
    let file = create(&nowait, &folder.path().join("file"));
    let data = contents(100 * 1000, 1);
    // The only thread of the pool is held until all are submitted.
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    nowait.fs().metadata(file.path()).on_complete(move |_| {
        begun.send(()).unwrap();
        let _ = released.recv();
    });
    begins.recv().unwrap();
    let writes = data.chunks(1000).zip(0..).map(|(chunk, i)| file.write_all_at(chunk.to_vec(), i * 1000));
    let mut writes = pin!(join_all(writes));
    assert!(poll_once(writes.as_mut()).is_pending());
    release.send(()).unwrap();
    futures::executor::block_on(writes).into_iter().for_each(|write| drop(write.unwrap()));
    assert!(std::fs::read(file.path()).unwrap() == data);
    let stats = nowait.stats();
    // And the open, and what held the thread.
    assert!(stats.pool == 102 && stats.joined > 0, "{stats:?}");
}

/// Alone in a process: what is dirty is sampled by one thread at a time, and others take the
/// cautious answer meanwhile.
#[test]
fn sequential_pages_are_written_inline() {
    // With less, the kernel lets a writer do so much without waiting only now and then.
    if common::has_memory(160 << 20) {
        child::play("inline");
    }
}

fn inline() {
    const WRITES: u64 = 500;
    let folder = temp_dir();
    let on_path = |path: &FsPath| {
        // A machine with other work may take its time; that is not what is tested.
        let nowait = Nowait::builder().stall_budget(Duration::from_secs(10)).build().unwrap();
        let file = create(&nowait, &path.join("file"));
        // Until a plain call of the device has returned soon, threads of the pool make them.
        assert!(common::eventually(|| {
            drop(futures::executor::block_on(file.write_all_at(vec![0; PAGE], 0)).unwrap());
            nowait.stats().inline > 0
        }));
        let before = nowait.stats();
        for i in 0..WRITES {
            drop(futures::executor::block_on(file.write_all_at(vec![i as u8; PAGE], i * PAGE as u64)).unwrap());
        }
        // And once more, over what is cached.
        for i in 0..WRITES {
            drop(nowait::block_on(file.write_all_at(vec![!i as u8; PAGE], i * PAGE as u64)).unwrap());
        }
        let stats = nowait.stats();
        assert_eq!(stats.inline - before.inline, 2 * WRITES, "{path:?}: {stats:?}");
        let right = |(i, page): (usize, &[u8])| page == [!i as u8; PAGE];
        assert!(std::fs::read(file.path()).unwrap().chunks(PAGE).enumerate().all(right));
        stats
    };
    on_path(folder.path());
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        let Some(mount) = Mount::or_skip(kind) else { continue };
        let stats = on_path(mount.path());
        assert!(stats.attempts <= 1, "what refuses attempts is asked once: {stats:?}");
    }
}

// Names.

/// Returns the contents of a folder, by name.
fn names(folder: &FsPath) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn atomic_write_creates_and_replaces() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    for len in [10, 0, 1_000_000] {
        let data = contents(len, len as u64);
        // A reader that was there before keeps what it had.
        let before = std::fs::read(&path).ok().map(|bytes| (std::fs::File::open(&path).unwrap(), bytes));
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
    let missing = folder.path().join("missing/file");
    assert_eq!(
        futures::executor::block_on(fs::write_atomic(missing, vec![1])).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn atomic_write_without_room_leaves_the_old_contents() {
    let Some(mount) = Mount::sized_or_skip(Kind::Tmpfs, 1 << 20) else { return };
    let path = mount.path().join("file");
    std::fs::write(&path, b"old").unwrap();
    for _ in 0..3 {
        let error = futures::executor::block_on(fs::write_atomic(&path, vec![1; 2 << 20])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!((std::fs::read(&path).unwrap(), names(mount.path())), (b"old".to_vec(), vec!["file".to_string()]));
    }
    // The space of what was removed is free when the last thread has let go of it.
    assert!(eventually(|| futures::executor::block_on(fs::write_atomic(&path, vec![1; 500_000])).is_ok()));
    assert_eq!(std::fs::read(&path).unwrap(), vec![1; 500_000]);
}

#[test]
fn atomic_write_into_a_folder_that_takes_none() {
    child::play("read-only folder");
}

fn read_only_folder() {
    use std::os::unix::fs::PermissionsExt;
    if child::is_root() {
        child::become_nobody();
    }
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, b"old").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o500)).unwrap();
    let error = futures::executor::block_on(fs::write_atomic(&path, vec![1; 100])).unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::PermissionDenied, Some(libc::EACCES)));
    assert_eq!((std::fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["file".to_string()]));
    let other = folder.path().join("other");
    for way in Way::ALL {
        assert_eq!(way.run(fs::rename(&path, &other)).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(way.run(fs::remove_file(&path)).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn names_are_changed_and_made_durable() {
    for way in Way::ALL {
        let folder = temp_dir();
        let [first, second, missing] = ["first", "second", "missing"].map(|name| folder.path().join(name));
        std::fs::write(&first, b"1").unwrap();
        std::fs::write(&second, b"2").unwrap();
        let error = way.run(fs::rename_new(&first, &second)).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::AlreadyExists, Some(libc::EEXIST)));
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

// Processes that are killed.

const KILLED: &str = "killed";
const RECORD: u64 = 1000;

fn record(number: u64) -> Vec<u8> {
    contents(RECORD as usize, number)
}

#[test]
fn what_a_killed_process_was_told_is_durable_is_there() {
    for _ in 0..3 {
        let folder = temp_dir();
        let path = folder.path().join("file");
        let mut command = child::command_at(KILLED, &path);
        let mut writer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut synced = 0;
        let mut killed = false;
        for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
            let Some(number) = line.as_deref().unwrap().strip_prefix("synced ").map(|text| text.parse().unwrap())
            else {
                continue;
            };
            synced = number;
            if synced > 500 && !killed {
                writer.kill().unwrap();
                killed = true;
            }
        }
        assert!(!writer.wait().unwrap().success() && synced > 500, "killed after {synced} records");
        let bytes = std::fs::read(&path).unwrap();
        for number in 0..synced {
            let start = (number * RECORD) as usize;
            assert!(bytes[start..start + RECORD as usize] == record(number), "record {number} of {synced}");
        }
    }
}

/// Writes records, many at a time, and tells how many are durable, until it is killed.
fn until_killed() {
    let _watchdog = Watchdog::new(KILLED, 60);
    let file = create(Nowait::shared(), &child::path());
    for number in (0..).step_by(32) {
        let writes = (number..number + 32).map(|number| file.write_all_at(record(number), number * RECORD));
        futures::executor::block_on(async {
            join_all(writes).await.into_iter().for_each(|write| drop(write.unwrap()));
            file.sync_data().await.unwrap();
        });
        println!("synced {}", number + 32);
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("limit") => under_a_limit(),
        Some("limit past the cache") => under_a_limit_past_the_cache(),
        Some("stream below a limit") => stream_below_a_limit(),
        Some("quota") => under_a_quota(),
        Some("dropped in line") => dropped_in_line(),
        Some("counting") => counting(),
        Some("dropped past the cache: pool") => {
            dropped_past_the_cache(Nowait::builder().engine(Engine::Pool).pool_threads_max(1));
        }
        Some("dropped past the cache: libaio") => {
            let Some(_) = common::aio_instance() else { return };
            dropped_past_the_cache(Nowait::builder().engine(Engine::Aio));
        }
        Some("dropped past the cache: ring") => dropped_past_the_cache(Nowait::builder()),
        Some("inline") => inline(),
        Some("read-only folder") => read_only_folder(),
        Some(KILLED) => until_killed(),
        Some(role) => panic!("nobody knows {role:?}"),
    }
}

/// Symptom: under `block_on` a small write waited for the end of the turn, and `drain` for nothing.
#[test]
fn drain_makes_what_waits_for_the_end_of_the_turn() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, b"").unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = writable(&nowait, &path);
    nowait::block_on(async {
        let mut write = Box::pin(file.write_all_at(vec![7; 100], 0));
        assert!(poll_once(write.as_mut()).is_pending(), "it is kept for others to join");
        nowait.drain();
        assert_eq!(nowait.stats().started, nowait.stats().ended());
        assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);
        write.await.unwrap();
    });
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
        nowait::block_on(async {
            let mut waiting: Vec<_> =
                writes.iter().map(|(offset, data)| Some(Box::pin(file.write_all_at(data.clone(), *offset)))).collect();
            for write in &mut waiting {
                if poll_once(write.as_mut().unwrap().as_mut()).is_ready() {
                    // Made at once.
                    *write = None;
                }
            }
            // One that was not made is not made.
            if waiting[dropped].take().is_some() {
                writes[dropped].1.clear();
            }
            for write in waiting.into_iter().flatten() {
                write.await.unwrap();
            }
        });
        if round % 10 == 0 {
            // Of overlapping ones those made at once came first, so that only the whole range is
            // known to be theirs.
            bytes = std::fs::read(&path).unwrap();
            continue;
        }
        writes.iter().for_each(|(offset, data)| put(&mut bytes, *offset, data));
        assert!(std::fs::read(&path).unwrap() == bytes, "round {round}");
    }
    let stats = nowait.stats();
    assert!(stats.joined > 0, "{stats:?}");
    assert_settled(&nowait);
}
