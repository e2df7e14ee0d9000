//! Interrupted copies that a later run resumes.

use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use super::{Job, MIB, bytes, copy, folders, names};
use crate::error::FailureKind;
use crate::options::{Options, Reflink};
use crate::shared::Shared;

/// Cancels a copy in progress, and checks that the files for `--resume` exist.
fn interrupted(source: &Path, target: &Path, options: &Options) {
    let shared = Shared::new(options.clone().resume(true).reflink(Reflink::Never).bytes_per_second_max(Some(8 << 20)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while shared.meter.progress().bytes < 10 << 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            shared.meter.cancel();
        });
        let failure = Job::new(source, target).run(&shared).map(|_| ()).unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Cancelled);
    });
}

#[test]
fn a_copy_is_resumed_from_what_is_right() {
    for folder in folders() {
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        let contents = bytes(32 * MIB + 5, 3);
        for (what, options) in [
            ("plain", Options::new()),
            ("direct", Options::new().cache_neutral(true)),
            ("verified", Options::new().verify(true)),
        ] {
            fs::write(&source, &contents).unwrap();
            fs::write(&target, "old").unwrap();
            interrupted(&source, &target, &options);
            assert_eq!(fs::read(&target).unwrap(), b"old", "{what}");
            let left = names(folder.path());
            assert!(left[0].starts_with(".target.") && left[0].ends_with(".nowait-journal"), "{left:?}");
            assert!(left[1].starts_with(".target.") && left[1].ends_with(".nowait-part"), "{left:?}");
            // One piece of the journal does not match.
            let part = File::options().write(true).open(folder.path().join(&left[1])).unwrap();
            part.write_all_at(b"spoilt", 2 * MIB as u64 + 9).unwrap();
            let again = Shared::new(options.clone().resume(true).reflink(Reflink::Never));
            let outcome = Job::new(&source, &target).run(&again).unwrap();
            assert!(fs::read(&target).unwrap() == contents, "{what}");
            assert_eq!(outcome.bytes, contents.len() as u64);
            assert!((1..contents.len() as u64).contains(&outcome.resumed_bytes), "{what}: {}", outcome.resumed_bytes);
            assert_eq!(names(folder.path()), ["source", "target"], "{what}");
        }
    }
}

/// Symptom: zeros of the source did not overwrite bytes that were written to the partial file after
/// the interruption.
#[test]
fn nothing_but_what_is_right_stays_in_a_resumed_copy() {
    for folder in folders() {
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        let mut contents = vec![0; 32 * MIB];
        let file = File::create(&source).unwrap();
        file.set_len(contents.len() as u64).unwrap();
        for (range, seed) in [(0..12 * MIB, 1), (30 * MIB..32 * MIB, 2)] {
            contents[range.clone()].copy_from_slice(&bytes(range.len(), seed));
        }
        for range in [0..14 * MIB, 30 * MIB..32 * MIB] {
            file.write_all_at(&contents[range.clone()], range.start as u64).unwrap();
        }
        file.sync_all().unwrap();
        for (what, options) in [("plain", Options::new()), ("direct", Options::new().cache_neutral(true))] {
            interrupted(&source, &target, &options);
            let part = names(folder.path()).into_iter().find(|name| name.ends_with(".nowait-part")).unwrap();
            let part = File::options().write(true).open(folder.path().join(part)).unwrap();
            // In data, in zeros, in a hole.
            for offset in [MIB, 12 * MIB + 9, 20 * MIB + 9, 31 * MIB] {
                part.write_all_at(b"spoilt", offset as u64).unwrap();
            }
            copy(&source, &target, &options.resume(true).reflink(Reflink::Never)).unwrap();
            assert!(fs::read(&target).unwrap() == contents, "{what} in {}", folder.path().display());
            fs::remove_file(&target).unwrap();
        }
    }
}

/// Symptom: the copy contained data that an earlier run had copied from another source.
#[test]
fn a_journal_of_another_source_is_not_believed() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::write(&source, bytes(32 * MIB, 3)).unwrap();
    interrupted(&source, &target, &Options::new());
    std::thread::sleep(Duration::from_millis(10));
    let contents = bytes(32 * MIB, 4);
    fs::write(&source, &contents).unwrap();
    copy(&source, &target, &Options::new().resume(true).reflink(Reflink::Never)).unwrap();
    assert!(fs::read(&target).unwrap() == contents);
    assert_eq!(names(folder.path()), ["source", "target"]);
}

/// Symptom: a second copy of the same file removed the partial file of the first one.
#[test]
fn two_copies_do_not_resume_the_same_part() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let contents = bytes(16 * MIB, 3);
    fs::write(&source, &contents).unwrap();
    let options = Options::new().resume(true).reflink(Reflink::Never).bytes_per_second_max(Some(40 << 20));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| copy(&source, &target, &options).map(|_| ()).unwrap());
        }
    });
    assert!(fs::read(&target).unwrap() == contents);
    assert_eq!(names(folder.path()), ["source", "target"]);
}

/// Symptom: while a complete file got its metadata and was synced, another copy replaced it by its
/// own partial file, which then got the final name.
#[test]
fn a_part_is_its_copy_s_until_it_has_its_name() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let contents = bytes(32 * MIB, 3);
    fs::write(&source, &contents).unwrap();
    let meanwhile = |_: BorrowedFd<'_>, _: BorrowedFd<'_>| {
        fs::write(&source, bytes(32 * MIB, 4)).unwrap();
        interrupted(&source, &target, &Options::new());
        Ok(Vec::new())
    };
    let job = Job { metadata: &meanwhile, ..Job::new(&source, &target) };
    job.run(&Shared::new(Options::new().resume(true).reflink(Reflink::Never))).unwrap();
    assert!(fs::read(&target).unwrap() == contents);
    assert_eq!(names(folder.path()), ["source", "target"]);
}
