//! Disks that are full, quotas, and devices that lose what they were given.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path as FsPath;

use crate::common::mounts::{self, Kind, Mount, or_skip};
use crate::common::{
    Watchdog, Way, assert_settled, assert_syncs_fail, assert_syncs_succeed, child, cold, contents, create, eventually,
    names, writable, writing_instances,
};
use crate::promises::streams::*;
use nowait::stream::Writer;
use nowait::{ErrorKind, Nowait, Written, fs};

const PAGE: usize = 4096;

#[test]
fn full_disk_tells_how_much_was_written_and_goes_on_when_there_is_room() {
    if !crate::common::has_memory(80 << 20) {
        return;
    }
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let Some(mount) = Mount::sized_or_skip(kind, 24 << 20) else { continue };
        for nowait in writing_instances() {
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
    for nowait in writing_instances() {
        for way in Way::ALL {
            fill_up(&nowait, &child::path(), way, libc::EDQUOT);
        }
    }
}

fn fill_up(nowait: &Nowait, folder: &FsPath, way: Way, errno: i32) {
    let (ballast, path) = (folder.join("ballast"), folder.join("file"));
    // Not while a round is under way.
    mounts::free_what_was_removed(folder);
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

/// A device that is a loop over a file in memory, where there is no room for what is not there yet.
#[test]
fn device_that_cannot_write_back_fails_every_sync_until_that_is_acknowledged() {
    const IMAGE: usize = 32 << 20;
    if !crate::common::has_memory(3 * IMAGE as u64) {
        return;
    }
    let Some(memory) = Mount::sized_or_skip(Kind::Tmpfs, (IMAGE + (4 << 20)) as u64) else { return };
    let image = memory.path().join("image");
    std::fs::write(&image, vec![0; IMAGE]).unwrap();
    let Some(mount) = or_skip("ext4 in memory", Mount::ext4_in(&image, true)) else { return };
    for nowait in writing_instances() {
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
    // Forks of other tests may have the ballast open until they end.
    filler.set_len(0).unwrap();
    std::fs::remove_file(&ballast).unwrap();
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

/// The end of a file whose disk is full is the end of what was written: no space that was reserved
/// ahead, in whole or (ext4) in part, and none for what failed.
/// Removes the file that has filled a disk, and waits until `bytes` can be written there. Forks of
/// other tests may have the file open until they end: so it is cut first.
fn make_room(full: &FsPath, bytes: usize) {
    let folder = full.parent().unwrap();
    // Refused while there is no room for a note of the change.
    let _ = std::fs::File::options().write(true).truncate(true).open(full);
    std::fs::remove_file(full).unwrap();
    let probe = folder.join("probe");
    let has_room = || {
        mounts::free_what_was_removed(folder);
        let written = std::fs::write(&probe, vec![1; bytes]).and_then(|()| std::fs::File::open(&probe)?.sync_all());
        let _ = std::fs::remove_file(&probe);
        written.is_ok()
    };
    assert!(eventually(has_room), "no room for {bytes} bytes after the removal of {full:?}");
    mounts::free_what_was_removed(folder);
}

#[test]
fn a_full_disk_is_an_error_and_leaves_no_tail() {
    let data = Endless(contents(MIB + 8, 4));
    for (kind, bytes) in [(Kind::Ext4, 48 << 20), (Kind::Tmpfs, 24 << 20), (Kind::Btrfs, 160 << 20)] {
        let Some(mount) = Mount::sized_or_skip(kind, bytes) else { continue };
        for nowait in instances() {
            for (round, direct) in [false, true, true].into_iter().enumerate() {
                let _watchdog = Watchdog::new(format!("{kind:?} that is full, direct: {direct}"), 120);
                let path = mount.path().join("file");
                let file = open(&nowait, &path, direct);
                let mut writer = Writer::new(&file, 0);
                let mut pieces = (0..200 * MIB).step_by(100_000).map(|at| data.piece(at, 100_000));
                let mut put = |piece: &[u8]| match round {
                    2 => futures::executor::block_on(writer.put(buffer(piece))).map_err(std::io::Error::from),
                    _ => writer.write_all(piece),
                };
                let error = pieces.find_map(|piece| put(&piece).err());
                // Less than the disk has room for may fail when it gets there.
                assert!(error.is_some(), "{kind:?}, direct: {direct}");
                for _ in 0..2 {
                    assert!(writer.write(b"more").is_err());
                    let error = writer.finish().wait().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    let now = std::fs::File::open(&path).unwrap();
                    let (len, sound) = (now.metadata().unwrap().len() as usize, error.offset().unwrap() as usize);
                    let what = format!("{kind:?}, direct: {direct}, {len} bytes, sound up to {sound}");
                    assert!(sound > 1 << 20 && len >= sound, "{what}");
                    data.assert_is_in(&now, 0..sound, &what);
                    data.assert_is_in(&now, len - 512..len, &what);
                }
                drop((writer, file));
                assert_settled(&nowait);
                make_room(&path, 8 << 20);
            }
        }
    }
}

/// The same for a writer that is dropped while its writes fail, as by an aborted task.
#[test]
fn a_full_disk_leaves_no_tail_of_a_writer_that_is_dropped() {
    let data = Endless(contents(MIB + 8, 4));
    let Some(mount) = Mount::sized_or_skip(Kind::Ext4, 48 << 20) else { return };
    for nowait in instances() {
        let _watchdog = Watchdog::new("a full disk and a writer that is dropped", 120);
        let path = mount.path().join("file");
        let file = open(&nowait, &path, true);
        let mut writer = Writer::new(&file, 0);
        let mut pieces = (0..200 * MIB).step_by(MIB).map(|at| data.piece(at, MIB));
        let failed = pieces.any(|piece| futures::executor::block_on(writer.put(buffer(&piece))).is_err());
        assert!(failed, "the disk is full");
        drop(writer);
        file.settled().wait();
        let now = std::fs::File::open(&path).unwrap();
        let len = now.metadata().unwrap().len() as usize;
        data.assert_is_in(&now, len - 512..len, &format!("{len} bytes"));
        drop(file);
        assert_settled(&nowait);
        make_room(&path, 8 << 20);
    }
}

#[test]
fn child() {
    if child::role().is_some() {
        under_a_quota();
    }
}
