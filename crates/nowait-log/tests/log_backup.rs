//! Backups of a log while it is written.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use common::Watchdog;
use common::mounts::{self, Kind, Mount};
use nowait::ErrorKind;
use nowait_log::{Durability, Log, Options, Recovery, Retention, Strategy, Submitter, SyncPolicy, backup, inspect};

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 2 };
    let options = Options::new().create(true).sync(SyncPolicy::Fixed(strategy));
    options.segment_bytes(64 << 10).first_segment_bytes(16 << 10)
}

fn record(lsn: u64) -> Vec<u8> {
    let mut bytes = lsn.to_le_bytes().to_vec();
    bytes.resize(8 + (lsn * 997 % 3000) as usize, lsn as u8);
    bytes
}

/// Opens a copy, and reads all of it: records from the first to the last without a gap, each what
/// its own bytes say.
fn assert_whole(copy: &Path, told: &Recovery) {
    let found = inspect(copy).wait().unwrap();
    assert!(found.damage.is_empty() && found.torn.is_none() && found.unreadable.is_empty(), "{found:?}");
    assert_eq!((found.first_lsn, found.last_lsn), (told.first_lsn, told.last_lsn));
    let (log, recovery) = Log::open(copy, &options().create(false).maintenance(false)).wait().unwrap();
    assert_eq!((recovery.first_lsn, recovery.last_lsn), (told.first_lsn, told.last_lsn));
    let mut reader = log.reader(recovery.first_lsn);
    for lsn in recovery.first_lsn..=recovery.last_lsn {
        let found = reader.next().wait().unwrap().unwrap();
        let count = u64::from_le_bytes(found.bytes[..8].try_into().unwrap());
        assert!(found.lsn == lsn && found.bytes == record(count), "record {lsn}");
    }
    assert!(reader.next().wait().unwrap().is_none());
    assert_eq!(log.append(&record(7)).wait().unwrap().wait().unwrap(), recovery.last_lsn + 1);
    log.close().wait().unwrap();
}

/// Backups by `Log::backup` and by `nowait_log::backup`, beside four writers, while segments end
/// and are used again.
#[test]
fn backups_beside_writers_are_whole() {
    const BACKUPS: u64 = 60;
    let _watchdog = Watchdog::new("backups", 300);
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let options = options().retain(Retention::bytes(600 << 10)).recycle_bytes(200 << 10);
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    log.append(&record(count.fetch_add(1, Relaxed))).wait().unwrap().wait().unwrap();
                }
            });
        }
        // Ends the writers also when an assertion fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stop = Stop(&stop);
        for number in 0..BACKUPS {
            let copy = dir.path().join(format!("copy-{number}"));
            let durable = log.durable_lsn();
            let told = match number % 2 {
                0 => log.backup(&copy).wait(),
                _ => backup(&path, &copy).wait(),
            };
            let told = match told {
                Ok(told) => told,
                // `nowait_log::backup` pins nothing.
                Err(error) if number % 2 == 1 && error.kind() == ErrorKind::WouldBlock => {
                    assert!(!copy.exists());
                    continue;
                }
                Err(error) => panic!("{number}: {error}"),
            };
            assert!(told.last_lsn >= durable, "{number}: {} of {durable}", told.last_lsn);
            // What is still in the log was in it when the backup ended, or came since.
            let first = inspect(&path).wait().map_or(u64::MAX, |found| found.first_lsn);
            assert!(told.first_lsn <= first, "{number}: {} of {first}", told.first_lsn);
            assert_whole(&copy, &told);
            fs::remove_dir_all(&copy).unwrap();
        }
    });
    let stats = log.stats();
    assert!(stats.segments_recycled > 20, "{}", stats.segments_recycled);
    log.close().wait().unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the log");
}

/// After cuts of the end, reopenings and a close, the copy equals the log.
#[test]
fn a_backup_has_epochs_and_cuts() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (mut count, mut number) = (0, 0);
    for _ in 0..6 {
        let (log, _) = Log::open(&path, &options()).wait().unwrap();
        for cut in [0, 3, 40] {
            for _ in 0..50 {
                count += 1;
                log.append(&record(count)).wait().unwrap().wait().unwrap();
            }
            log.truncate_suffix(log.last_lsn() - cut).wait().unwrap();
            number += 1;
            let copy = dir.path().join(format!("copy-{number}"));
            let told = log.backup(&copy).wait().unwrap();
            assert_eq!((told.first_lsn, told.last_lsn), (1, log.durable_lsn()));
            assert_whole(&copy, &told);
        }
        log.close().wait().unwrap();
        number += 1;
        let copy = dir.path().join(format!("copy-{number}"));
        let told = backup(&path, &copy).wait().unwrap();
        assert!(told.closed && inspect(&path).wait().unwrap().closed);
        assert_whole(&copy, &told);
        // A copy is copied as any log.
        let again = dir.path().join(format!("again-{number}"));
        assert_whole(&again, &backup(&copy, &again).wait().unwrap());
    }
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let dir = mounts::temp_dir();
    let (path, copy) = (dir.path().join("log"), dir.path().join("copy"));
    assert_eq!(backup(&path, &copy).wait().unwrap_err().kind(), ErrorKind::NotFound);
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    for lsn in 1..=100 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    fs::write(&copy, b"a file").unwrap();
    assert_eq!(log.backup(&copy).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    let below = log.backup(copy.join("below")).wait().unwrap_err();
    // Below a file, Windows reports NotFound.
    assert!([ErrorKind::NotADirectory, ErrorKind::NotFound].contains(&below.kind()), "{below}");
    assert_eq!(log.backup(&path).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(log.backup("/").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    fs::remove_file(&copy).unwrap();
    // An empty directory is replaced.
    fs::create_dir(&copy).unwrap();
    assert_whole(&copy, &log.backup(&copy).wait().unwrap());
    fs::remove_dir_all(&copy).unwrap();
    let long = dir.path().join("name".repeat(100));
    let long = log.backup(&long).wait().unwrap_err();
    // Windows finds nothing at a name that is too long to be one.
    assert!([ErrorKind::InvalidFilename, ErrorKind::NotFound].contains(&long.kind()), "{long}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    log.close().wait().unwrap();
    // Damage is not copied.
    let hit = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).find_map(|file| {
        let bytes = fs::read(&file).unwrap();
        bytes.windows(8).position(|bytes| bytes == 40_u64.to_le_bytes()).map(|at| (file, bytes, at))
    });
    let (file, mut bytes, _) = hit.unwrap();
    let at = bytes.windows(60).position(|bytes| *bytes == record(40)[..60]).unwrap();
    bytes[at + 20] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(backup(&path, &copy).wait().unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Another directory takes the name of the copy meanwhile.
#[test]
fn a_copy_that_cannot_take_its_name_is_kept() {
    let dir = mounts::temp_dir();
    let [path, copy, taken] = ["log", "copy", "taken"].map(|name| dir.path().join(name));
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    for lsn in 1..=500 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("file"), "contents").unwrap();
    let partial = || {
        let mut paths = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        paths.find(|path| path.to_str().unwrap().ends_with(".partial"))
    };
    // Until the other directory is first.
    let error = loop {
        let is_over = AtomicBool::new(false);
        let copied = std::thread::scope(|scope| {
            scope.spawn(|| {
                while partial().is_none() && !is_over.load(Relaxed) {}
                let _ = fs::rename(&taken, &copy);
            });
            let copied = log.backup(&copy).wait();
            is_over.store(true, Relaxed);
            copied
        });
        match copied {
            Err(error) => break error,
            Ok(_) => fs::remove_dir_all(&copy).unwrap(),
        }
    };
    let kept = partial().unwrap();
    assert!(error.to_string().contains(kept.to_str().unwrap()), "{error}");
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 1);
    assert_eq!(inspect(&kept).wait().unwrap().last_lsn, log.durable_lsn());
    log.close().wait().unwrap();
}

/// Onto another file system, where the kernel may copy nothing, and the copy may find no room.
#[test]
fn a_backup_to_another_file_system() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    for lsn in 1..=300 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    for (kind, bytes) in [(Kind::Tmpfs, 16 << 20), (Kind::Ext4, 16 << 20), (Kind::Tmpfs, 200 << 10)] {
        let Some(mount) = Mount::sized_or_skip(kind, bytes) else { continue };
        let copy = mount.path().join("copy");
        let before = fs::read_dir(mount.path()).unwrap().count();
        match log.backup(&copy).wait() {
            Ok(told) => {
                assert_eq!((told.first_lsn, told.last_lsn), (1, 300));
                assert_whole(&copy, &told);
            }
            Err(error) => {
                assert!(error.kind() == ErrorKind::NoSpace && bytes < 1 << 20, "{kind:?}: {error}");
                assert_eq!(fs::read_dir(mount.path()).unwrap().count(), before);
            }
        }
    }
    log.close().wait().unwrap();
}
