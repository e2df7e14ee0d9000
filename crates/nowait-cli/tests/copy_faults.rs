//! `nowait copy` to and from a file system that fails: at `close(2)`, in the middle of a file, or by
//! storing another byte than it was given. The old file stays, and the fault is told.

mod copying;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use copying::fuse::{Faults, Faulty};
use copying::{COPIED, DIFFERS, NOTHING, SOME_NOT, directory, expect, names, noise, nowait_copy};
use rustix::io::Errno;

const OLD: &[u8] = b"the old file";
/// Short, and long enough to be copied in every way there is, with an end within a block.
const LENGTHS: [usize; 2] = [5000, (9 << 20) + 77];
const WAYS: [&[&str]; 5] = [&[], &["--cache-neutral"], &["--sync=file"], &["--sparse=always"], &["--resume"]];

/// A source on a disk, and a place for its copy where faults are.
struct Place {
    disk: Faulty,
    dir: tempfile::TempDir,
}

impl Place {
    fn or_skip() -> Option<Place> {
        Some(Place { disk: Faulty::or_skip()?, dir: directory() })
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    /// Puts the files there, and copies; returns what was said.
    #[track_caller]
    fn copy(&self, code: i32, options: &[&str], bytes: &[u8], faults: Faults) -> String {
        fs::write(self.source(), bytes).unwrap();
        self.disk.clear();
        self.disk.put("target", OLD);
        self.disk.set(faults);
        let target = self.disk.path().join("target");
        let said = expect(code, nowait_copy().args(options).args([&self.source(), &target]));
        self.disk.set(Faults::default());
        said
    }

    #[track_caller]
    fn keeps_the_old_file(&self, options: &[&str]) {
        assert_eq!(self.disk.bytes("target").as_deref(), Some(OLD), "{options:?}");
        let left = self.disk.names();
        let is_kept = |name: &String| options.contains(&"--resume") && name.contains(".nowait-");
        assert!(left.iter().all(|name| name == "target" || is_kept(name)), "{options:?}: {left:?}");
    }
}

/// Symptom: `close(2)` alone tells that a server has no room; a copy that did not look had replaced
/// the file by one with nothing in it, and said that all was well.
#[test]
fn what_only_close_tells_keeps_the_old_file() {
    let Some(place) = Place::or_skip() else { return };
    for (errno, words) in [(Errno::DQUOT, "quota"), (Errno::NOSPC, "space"), (Errno::IO, "dmesg")] {
        for (options, length) in WAYS.iter().flat_map(|way| LENGTHS.map(|length| (*way, length))) {
            let faults = Faults { flush: Some(errno), ..Faults::default() };
            let said = place.copy(NOTHING, options, &noise(1, length), faults);
            let line = said.lines().find(|line| line.contains("close") && line.contains("target"));
            assert!(line.is_some_and(|line| line.contains(words)), "{options:?}, {length} bytes: {said}");
            place.keeps_the_old_file(options);
        }
    }
}

#[test]
fn an_error_in_the_middle_keeps_the_old_file() {
    let Some(place) = Place::or_skip() else { return };
    let at = 4 << 20;
    let faults = [
        ("write", "quota", Faults { write: Some((at, Errno::DQUOT)), ..Faults::default() }),
        ("write", "dmesg", Faults { write: Some((at, Errno::IO)), ..Faults::default() }),
        ("rename", "", Faults { rename: Some(Errno::IO), ..Faults::default() }),
    ];
    for (operation, words, faults) in faults {
        for options in WAYS {
            let said = place.copy(NOTHING, options, &noise(1, LENGTHS[1]), faults);
            let line = said.lines().find(|line| line.contains(operation) && line.contains("target"));
            let line = line.unwrap_or_else(|| panic!("{options:?}: {said}"));
            assert!(line.contains(words), "{options:?}: {line}");
            assert!(operation != "write" || line.contains("at byte "), "{options:?}: {line}");
            place.keeps_the_old_file(options);
        }
    }
    let faults = Faults { sync: Some(Errno::IO), ..Faults::default() };
    for options in [&["--sync=file"][..], &["--sync=all"], &["--verify"]] {
        let said = place.copy(NOTHING, options, &noise(1, LENGTHS[1]), faults);
        assert!(said.lines().any(|line| line.contains("sync") && line.contains("target")), "{options:?}: {said}");
        place.keeps_the_old_file(options);
    }
}

#[test]
fn a_source_that_cannot_be_read_to_its_end_is_told_and_the_others_copied() {
    let Some(place) = Place::or_skip() else { return };
    let (target, at) = (place.dir.path().join("target"), (5 << 20) + 17);
    for name in ["good", "bad"] {
        place.disk.put(name, &noise(3, LENGTHS[1]));
    }
    place.disk.put("short", b"short");
    for options in [&[][..], &["--cache-neutral"], &["--resume"], &["--verify"]] {
        place.disk.set(Faults { read: Some((at, Errno::IO)), ..Faults::default() });
        fs::create_dir(&target).unwrap();
        for name in ["bad", "short"] {
            fs::write(target.join(name), OLD).unwrap();
        }
        let sources = ["bad", "short"].map(|name| place.disk.path().join(name));
        let said = expect(SOME_NOT, nowait_copy().args(options).args(&sources).arg(&target));
        let line = said.lines().find(|line| line.contains("read") && line.contains("bad")).unwrap_or_default();
        assert!(line.contains("at byte ") && line.contains("dmesg"), "{options:?}: {said}");
        assert_eq!(fs::read(target.join("bad")).unwrap(), OLD, "{options:?}");
        assert_eq!(fs::read(target.join("short")).unwrap(), b"short", "{options:?}");
        let left = names(&target);
        assert!(left.len() == 2 || options == ["--resume"], "{options:?}: {left:?}");

        // The device reads again.
        place.disk.set(Faults::default());
        expect(COPIED, nowait_copy().args(options).args(&sources).arg(&target));
        assert!(fs::read(target.join("bad")).unwrap() == noise(3, LENGTHS[1]), "{options:?}");
        assert_eq!(names(&target), ["bad", "short"], "{options:?}");
        fs::remove_dir_all(&target).unwrap();
    }
}

/// A device that stores something else than it was given, and says nothing.
#[test]
fn verify_finds_what_the_device_stored_wrong() {
    let Some(place) = Place::or_skip() else { return };
    for (options, length) in WAYS.iter().flat_map(|way| LENGTHS.map(|length| (*way, length))) {
        let (bytes, at) = (noise(2, length), length as u64 - 1000);
        let rot = Faults { rot: Some(at), ..Faults::default() };
        let verified = [&["--verify", "--reflink=never"], options].concat();
        let said = place.copy(DIFFERS, &verified, &bytes, rot);
        let line = said.lines().find(|line| line.contains("verify") && line.contains("target")).unwrap_or_default();
        assert!(line.contains("at byte ") && line.contains("check the device"), "{options:?}: {said}");
        assert_eq!(place.disk.names(), ["target"], "{options:?}: a copy that is wrong is not gone on with");
        place.keeps_the_old_file(options);

        // The fault is there: who does not look does not find it.
        place.copy(COPIED, options, &bytes, rot);
        let stored = place.disk.bytes("target").unwrap();
        assert!(stored.len() == length && stored != bytes, "{options:?}");
        place.copy(COPIED, &verified, &bytes, Faults::default());
        assert!(place.disk.bytes("target").unwrap() == bytes, "{options:?}");
    }
}

/// FAT, and many file systems of users.
#[test]
fn a_file_system_without_owners_and_attributes_gets_the_bytes_and_a_warning() {
    let Some(place) = Place::or_skip() else { return };
    let source = place.dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..30 {
        fs::write(source.join(format!("file {number}")), format!("{number}")).unwrap();
        std::os::unix::fs::chown(source.join(format!("file {number}")), Some(1001), Some(1001)).unwrap();
    }
    place.disk.set(Faults { set_owner: Some(Errno::PERM), ..Faults::default() });
    let said = expect(SOME_NOT, nowait_copy().arg("-T").args([&source, place.disk.path()]));
    assert_eq!(place.disk.names().len(), 30, "{said}");
    assert_eq!(place.disk.bytes("file 7").as_deref(), Some(&b"7"[..]));
    let owners = said.lines().filter(|line| line.contains("set owner of") && line.contains("file ")).count();
    assert!((1..=20).contains(&owners), "{owners} warnings of one kind: {said}");
    assert!(said.contains("10 more files"), "{said}");
    assert!(said.contains("30 warnings"), "{said}");
}

/// A server of files without hard links, as `rclone mount` is one.
#[test]
fn names_are_separate_files_where_hard_links_are_refused() {
    let Some(server) = Faulty::or_skip() else { return };
    let dir = directory();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), "file").unwrap();
    symlink("file", dir.path().join("tree/link")).unwrap();
    let copied = |code: i32, target: &str| {
        let target = server.path().join(target);
        let said = expect(code, nowait_copy().args(["-L", "-T", "tree"]).arg(&target).current_dir(dir.path()));
        for name in names(&dir.path().join("tree")) {
            let (source, copy) = (dir.path().join("tree").join(&name), target.join(&name));
            assert_eq!(fs::read(copy).unwrap(), fs::read(source).unwrap(), "{name}: {said}");
        }
        said
    };
    // A symbolic link was no hard link, so none is lost.
    copied(COPIED, "followed");
    fs::hard_link(dir.path().join("tree/file"), dir.path().join("tree/same")).unwrap();
    let said = copied(SOME_NOT, "linked");
    assert!(said.contains("it was copied as a separate file"), "{said}");
}
