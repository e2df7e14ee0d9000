//! Tests of Windows only: a file that no other program may open for writing.
#![cfg(windows)]

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::os::windows::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use common::{eventually, mounts};
use nowait::ErrorKind;
use nowait_log::{Durability, FollowFrom, Followed, Follower, Log, Options, Strategy, Submitter, SyncPolicy, follow};

/// `FILE_SHARE_READ`.
const READERS_ONLY: u32 = 1;

fn next(follower: &mut Follower) -> u64 {
    match follower.next().unwrap() {
        Some(Followed::Record { .. }) => 1,
        None => 0,
        other => panic!("{other:?}"),
    }
}

/// Symptom: `next` failed half a second after the last record. Only a handle that may write can be synced.
#[test]
fn a_follower_that_may_not_sync_waits_for_the_watermark() {
    let dir = mounts::temp_dir();
    let [path, image] = ["log", "image"].map(|name| dir.path().join(name));
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 2 };
    let options = Options::new().create(true).sync(SyncPolicy::Fixed(strategy)).maintenance(false);
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    for record in ["one", "two", "three"] {
        log.append(record.as_bytes()).wait().unwrap().wait().unwrap();
    }
    // As after a crash: no watermark follows the last record.
    fs::create_dir(&image).unwrap();
    let files: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in files.iter().filter(|name| *name != "lock") {
        fs::copy(path.join(name), image.join(name)).unwrap();
    }
    log.close().wait().unwrap();

    let hold = |entry: fs::DirEntry| File::options().read(true).share_mode(READERS_ONLY).open(entry.path()).unwrap();
    let held: Vec<File> = fs::read_dir(&image).unwrap().map(|entry| hold(entry.unwrap())).collect();
    let mut follower = follow(&image, FollowFrom::Lsn(1)).wait().unwrap();
    let (mut found, end) = (0, Instant::now() + Duration::from_secs(2));
    while Instant::now() < end {
        found += next(&mut follower);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(found < 3, "{found} records without a sync");
    assert_eq!(follower.settle().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(held);
    let found = Cell::new(found);
    let follower = RefCell::new(follower);
    assert!(eventually(|| {
        found.set(found.get() + next(&mut follower.borrow_mut()));
        found.get() == 3
    }));
}
