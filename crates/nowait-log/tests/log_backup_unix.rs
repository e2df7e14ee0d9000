//! Backups to links and mount points, and modes of backups. Not on Windows, where links need a privilege, and
//! which has no modes.
#![cfg(unix)]

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use common::mounts::{self, Kind, Mount};
use nowait::ErrorKind;
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, backup};

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 2 };
    Options::new().create(true).segment_bytes(64 << 10).sync(SyncPolicy::Fixed(strategy))
}

/// A link or mount point as a destination is refused before anything is copied, and stays.
#[test]
fn links_and_mount_points_are_refused_and_stay() {
    let dir = mounts::temp_dir();
    let (log, _) = Log::open(dir.path().join("log"), &options()).wait().unwrap();
    let (empty, link) = (dir.path().join("empty"), dir.path().join("link"));
    fs::create_dir(&empty).unwrap();
    symlink(&empty, &link).unwrap();
    assert_eq!(log.backup(&link).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    fs::remove_file(&link).unwrap();
    fs::remove_dir(&empty).unwrap();
    // A broken link is refused, too.
    symlink(&empty, &link).unwrap();
    assert_eq!(log.backup(&link).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    fs::remove_file(&link).unwrap();
    // If the destination cannot be examined, the error is that of the examination.
    symlink(&link, &link).unwrap();
    assert_eq!(log.backup(link.join("copy")).wait().unwrap_err().kind(), ErrorKind::FilesystemLoop);
    fs::remove_file(&link).unwrap();
    if let Some(mount) = Mount::sized_or_skip(Kind::Tmpfs, 16 << 20) {
        assert_eq!(log.backup(mount.path()).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    log.close().wait().unwrap();
}

#[test]
fn a_backup_has_the_modes_of_the_log() {
    let dir = mounts::temp_dir();
    let (path, copy) = (dir.path().join("log"), dir.path().join("copy"));
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    for _ in 0..100 {
        log.append(&[7; 1000]).wait().unwrap().wait().unwrap();
    }
    log.close().wait().unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o640)).unwrap();
    }
    backup(&path, &copy).wait().unwrap();
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o7777, 0o750);
    for entry in fs::read_dir(&copy).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o7777, 0o640, "{entry:?}");
    }
}
