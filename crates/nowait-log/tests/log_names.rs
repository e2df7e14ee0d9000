//! Where a log is: its directory under other names, what else lies there, and where one is made.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::child;
use common::{is_lacking_in_wine, mounts};
use nowait::ErrorKind;
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, inspect, read};

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    Options::new().create(true).segment_bytes(16 << 10).sync(SyncPolicy::Fixed(strategy))
}

/// Appends until the log has gone on in other segments several times; gives the last record.
fn append_through_segments(log: &Log) -> u64 {
    let rotations = log.stats().rotations;
    let mut last = 0;
    while log.stats().rotations < rotations + 4 {
        last = log.append(&[1; 3000]).wait().unwrap().wait().unwrap();
    }
    last
}

/// Names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Names were resolved by path whenever a segment was made: acknowledged records went to the
/// directory that had the path by then. A log stays in the directory that it was opened in.
#[test]
fn a_log_stays_where_it_is_when_its_directory_is_renamed() {
    let dir = mounts::temp_dir();
    let (path, moved) = (dir.path().join("journal"), dir.path().join("moved"));
    let (log, recovery) = Log::open(&path, &options()).wait().unwrap();
    assert!(recovery.created);
    log.append(b"before").wait().unwrap().wait().unwrap();
    if let Err(error) = fs::rename(&path, &moved) {
        // Windows refuses the rename while files in the directory are open. Wine 8.0 does while the log lists
        // the directory (ERROR_SHARING_VIOLATION): `FindFirstFileW` does not share removals there.
        let is_sharing_violation = error.raw_os_error() == Some(32);
        assert!(error.kind() == std::io::ErrorKind::PermissionDenied || is_sharing_violation, "{error}");
        append_through_segments(&log);
        return log.close().wait().unwrap();
    }
    // Wine 8.0 renames the directory, but still reports the old path for its handle.
    if is_lacking_in_wine("refusals to rename directories of open files") {
        return;
    }
    fs::create_dir(&path).unwrap();
    let last = append_through_segments(&log);
    let mut reader = log.reader(1);
    for lsn in 1..=last {
        assert_eq!(reader.next().wait().unwrap().unwrap().lsn, lsn);
    }
    log.truncate_suffix(last - 1).wait().unwrap();
    // The lock is that of the directory, wherever it is now.
    assert_eq!(Log::open(&moved, &options()).wait().unwrap_err().kind(), ErrorKind::Locked);
    log.close().wait().unwrap();
    assert!(names(&path).is_empty(), "{:?}", names(&path));
    let found = inspect(&moved).wait().unwrap();
    assert_eq!((found.last_lsn, found.closed, found.damage), (last - 1, true, vec![]));
}

#[test]
fn a_log_stays_where_it_is_when_the_process_goes_elsewhere() {
    let dir = mounts::temp_dir();
    child::play_at("chdir", dir.path());
}

/// Runs in a process of its own, with a working directory of its own.
fn chdir(dir: &Path) {
    for name in ["a", "b"] {
        fs::create_dir(dir.join(name)).unwrap();
        std::env::set_current_dir(dir.join(name)).unwrap();
        Log::open("journal", &options()).wait().unwrap().0.close().wait().unwrap();
    }
    std::env::set_current_dir(dir.join("a")).unwrap();
    let (log, _) = Log::open("journal", &options().create(false)).wait().unwrap();
    log.append(b"before").wait().unwrap().wait().unwrap();
    let (mut reader, _) = read("journal", 1).wait().unwrap();
    std::env::set_current_dir(dir.join("b")).unwrap();
    assert_eq!(reader.next().wait().unwrap().unwrap().bytes, b"before", "a reader stays, too");
    let before = names(&dir.join("b/journal"));
    let last = append_through_segments(&log);
    log.close().wait().unwrap();
    assert_eq!(names(&dir.join("b/journal")), before);
    let found = inspect(dir.join("a/journal")).wait().unwrap();
    assert_eq!((found.last_lsn, found.closed, found.damage), (last, true, vec![]));
    assert_eq!(inspect("journal").wait().unwrap().last_lsn, 0);
}

/// Symptom: after the lock file was removed, a second writer got in. Windows refuses the removal.
#[test]
fn a_lock_file_that_is_removed_lets_nobody_in() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    match fs::remove_file(path.join("lock")) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.raw_os_error(), Some(32), "ERROR_SHARING_VIOLATION: {error}"),
    }
    assert_eq!(Log::open(&path, &options()).wait().unwrap_err().kind(), ErrorKind::Locked);
    log.close().wait().unwrap();
    Log::open(&path, &options()).wait().unwrap().0.close().wait().unwrap();
}

/// Every `*.tmp` in the directory was removed, whatever it was, also where there was no log.
#[test]
fn only_the_logs_own_leftovers_are_removed() {
    let dir = mounts::temp_dir();
    let foreign = ["thesis.tmp", "prepare-it.tmp", "prepare-07.tmp", "prepare-1.tmp.tmp", "xcontrol.tmp", "notes"];
    let own = ["prepare-7.tmp", "control.tmp", "calibrate.tmp"];
    let write = |path: &Path, names: &[&str]| names.iter().for_each(|name| fs::write(path.join(name), b"x").unwrap());
    // No log, and none is to be made: nothing is touched.
    let bare = dir.path().join("bare");
    fs::create_dir(&bare).unwrap();
    write(&bare, &foreign);
    write(&bare, &own);
    let before = names(&bare);
    let error = Log::open(&bare, &options().create(false)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // None is made among other things.
    let error = Log::open(&bare, &options()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("other files, such as notes"), "{error}");
    assert_eq!(names(&bare), before);
    // With a log: its own leftovers go, all else stays.
    let path = dir.path().join("log");
    Log::open(&path, &options()).wait().unwrap().0.close().wait().unwrap();
    write(&path, &foreign);
    write(&path, &own);
    Log::open(&path, &options().create(false)).wait().unwrap().0.close().wait().unwrap();
    let after = names(&path);
    assert!(foreign.iter().all(|name| after.iter().any(|there| there == name)), "{after:?}");
    assert!(!own.iter().any(|name| after.iter().any(|there| there == name)), "{after:?}");
}

/// The mount point of a volume that is not mounted is an empty directory: a new, empty log appeared
/// in it.
#[test]
fn a_log_is_made_only_when_asked_for_and_only_where_nothing_is() {
    let dir = mounts::temp_dir();
    let [missing, empty, fresh, unfinished]: [PathBuf; 4] =
        ["missing", "empty", "fresh", "unfinished"].map(|name| dir.path().join(name));
    for path in [&empty, &fresh, &unfinished] {
        fs::create_dir(path).unwrap();
    }
    // A file system that was just made, and that each system has mounted.
    for name in ["lost+found", ".fseventsd", ".Spotlight-V100", ".Trashes", "$Recycle.Bin", "System Volume Information"]
    {
        fs::create_dir(fresh.join(name)).unwrap();
    }
    fs::write(fresh.join(".DS_Store"), b"view").unwrap();
    fs::write(fresh.join("._control"), b"attributes").unwrap();
    // The making of a log was cut off.
    fs::write(unfinished.join("lock"), b"").unwrap();
    fs::write(unfinished.join("00000000000000000001.seg"), vec![0; 16 << 10]).unwrap();
    fs::write(unfinished.join("control.tmp"), b"half").unwrap();
    for path in [&missing, &empty, &fresh, &unfinished] {
        let error = Log::open(path, &Options::new()).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("mounted"), "{error}");
        assert_eq!(inspect(path).wait().unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(!missing.exists() && names(&empty).is_empty());
    for path in [&missing, &empty, &fresh, &unfinished] {
        let (log, recovery) = Log::open(path, &options()).wait().unwrap();
        assert!(recovery.created, "{}", path.display());
        assert_eq!(log.append(b"first").wait().unwrap().wait().unwrap(), 1);
        log.close().wait().unwrap();
        assert!(!names(path).contains(&"control.tmp".to_owned()));
        let (log, recovery) = Log::open(path, &options()).wait().unwrap();
        assert_eq!((recovery.created, recovery.last_lsn), (false, 1));
        log.close().wait().unwrap();
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("chdir") => chdir(&child::path()),
        Some(other) => unreachable!("{other}"),
    }
}

#[test]
fn public_types_are_sent_shared_and_formatted() {
    use nowait_log::*;
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<(Log, Options, Durability, Scan, Strategy, Submitter, SyncPolicy, Calibration, Retention)>();
    shared::<(Append<'_>, Durable, Room, Ticket, Tickets, SealedBlock, Event, LogStats, Percentiles)>();
    shared::<(Recovery, Damage, Place, Unreadable, Entry<'_>)>();
    shared::<(Reader, Record<'_>, Next<'_>, Tail<'_>, FollowFrom, Followed<'_>, Follower)>();
    shared::<Blocking<Recovery>>();
}
