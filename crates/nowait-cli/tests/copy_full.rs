//! `nowait copy` to a file system that becomes full: the old file stays, nothing else stays, and
//! with room again the copy succeeds.
//!
//! `NOWAIT_COPY_FULL_POINTS`: number of amounts of room (50 without it); `NOWAIT_TEST_SEED`: which.

mod copying;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use copying::mounts::{Kind, Mount, free_what_was_removed};
use copying::rng::Rng;
use copying::{COPIED, NOTHING, SOME_NOT, copy, count_from, directory, eventually, expect, names, noise};

const POINTS: usize = 50;
const IMAGE_BYTES: u64 = 64 << 20;
const NEW_BYTES: usize = (24 << 20) + 4321;
const OLD_BYTES: usize = 3 << 20;

fn free_bytes(path: &Path) -> u64 {
    let system = rustix::fs::statvfs(path).unwrap();
    // Root has what is kept back, too.
    system.f_bfree * system.f_frsize
}

/// Waits until the room of removed files is free. A process that has exited may still hold such a
/// file: the kernel takes its ring down later, in a worker.
fn wait_for_room(mount: &Path, bytes: u64) {
    eventually("the room of removed files", || {
        free_what_was_removed(mount);
        (free_bytes(mount) >= bytes).then_some(())
    });
}

/// Takes all room but this.
fn leave(mount: &Path, bytes: u64) {
    let take = free_bytes(mount).saturating_sub(bytes);
    let ballast = File::create(mount.join("ballast")).unwrap();
    let none = rustix::fs::FallocateFlags::empty();
    // Some of it the file system keeps for itself. What a refused call took has to go again.
    let taken = (0..16).any(|tries| {
        ballast.set_len(0).unwrap();
        let take = take.saturating_sub(tries * (256 << 10));
        take == 0 || rustix::fs::fallocate(&ballast, none, 0, take).is_ok()
    });
    assert!(taken, "{take} of {} bytes cannot be taken", free_bytes(mount));
}

fn a_full_file_system_keeps_the_old_file(kind: Kind) {
    let Some(mount) = Mount::sized_or_skip(kind, IMAGE_BYTES) else { return };
    let (dir, mut rng) = (directory(), Rng::for_test());
    let (old, new) = (noise(1, OLD_BYTES), noise(2, NEW_BYTES));
    let (source, target) = (dir.path().join("source"), mount.path().join("target"));
    fs::write(&source, &new).unwrap();
    // A directory that has grown keeps its blocks.
    let empty = free_bytes(mount.path()) - (256 << 10);

    for point in 0..count_from("NOWAIT_COPY_FULL_POINTS", POINTS).div_ceil(2) {
        wait_for_room(mount.path(), empty);
        fs::write(&target, &old).unwrap();
        let room = rng.below(NEW_BYTES - (6 << 20)) as u64;
        let options =
            [&[][..], &["--cache-neutral"], &["--sync=file"], &["--resume"], &["--sparse=always"]][rng.below(5)];
        let about = format!("point {point}: {room} bytes free, {options:?}");
        leave(mount.path(), room);
        let before = fs::metadata(&target).unwrap();
        let told = expect(NOTHING, copy().args(options).args([&source, &target]));
        let line = told.lines().find(|line| line.contains("target")).unwrap_or_else(|| panic!("{about}: {told}"));
        assert!(line.contains("space") && line.contains("room"), "{about}: {line}");

        assert!(fs::read(&target).unwrap() == old, "{about}: the old file is spoilt");
        let after = fs::metadata(&target).unwrap();
        assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()), "{about}: it was touched");
        let left: Vec<String> = names(mount.path());
        let is_known = |name: &String| ["ballast", "lost+found", "target"].contains(&name.as_str());
        let is_kept = |name: &String| options.contains(&"--resume") && name.starts_with('.');
        assert!(left.iter().all(|name| is_known(name) || is_kept(name)), "{about}: {left:?}");

        fs::remove_file(mount.path().join("ballast")).unwrap();
        wait_for_room(mount.path(), NEW_BYTES as u64 + (1 << 20));
        expect(COPIED, copy().args(options).args([&source, &target]));
        assert!(fs::read(&target).unwrap() == new, "{about}: other bytes, with room again");
        let left = names(mount.path());
        assert!(left.iter().all(is_known), "{about}: {left:?}");
        fs::remove_file(&target).unwrap();
    }
}

#[test]
fn ext4() {
    a_full_file_system_keeps_the_old_file(Kind::Ext4);
}

#[test]
fn tmpfs() {
    a_full_file_system_keeps_the_old_file(Kind::Tmpfs);
}

/// Every file of a tree is whole, or missing and named.
#[test]
fn a_tree_that_does_not_fit_loses_whole_files_and_names_them() {
    let Some(mount) = Mount::sized_or_skip(Kind::Ext4, IMAGE_BYTES) else { return };
    let dir = directory();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..100 {
        fs::write(source.join(format!("file {number:02}")), noise(number, 1 << 20)).unwrap();
    }
    let target = mount.path().join("copy");
    let told = expect(SOME_NOT, copy().args([&source, &target]));
    let mut whole = 0;
    for name in names(&source) {
        match fs::read(target.join(&name)) {
            Ok(bytes) => {
                assert!(bytes == fs::read(source.join(&name)).unwrap(), "{name} is not whole");
                whole += 1;
            }
            Err(_) => {
                assert!(told.lines().any(|line| line.contains(&name)), "{name} is missing, and not named: {told}")
            }
        }
    }
    assert!((10..100).contains(&whole), "{whole} files were copied");
    let left = names(&target);
    assert!(left.iter().all(|name| name.starts_with("file ")), "{left:?}");
}

/// A limit of the process, `ulimit -f`, is met as a full disk is.
#[test]
fn a_file_larger_than_the_limit_keeps_the_old_file() {
    let dir = directory();
    fs::write(dir.path().join("source"), noise(1, 8 << 20)).unwrap();
    fs::write(dir.path().join("target"), "old").unwrap();
    let words = copy();
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 1024; exec \"$@\"", "bash"]).arg(words.get_program()).args(words.get_args());
    let told = expect(NOTHING, command.args(["source", "target"]).current_dir(dir.path()));
    assert!(told.contains("target") && told.contains("ulimit -f"), "{told}");
    assert_eq!(fs::read(dir.path().join("target")).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["source", "target"]);
}
