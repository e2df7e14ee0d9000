//! Copies of one file within each file system, to it and from it: the same bytes in every way, the
//! way that suits the file system, and nothing left in the page cache where that is asked.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::cold;
use common::mounts::{Kind, Mount};
use nowait_copy::{Event, FailureKind, Options, Reflink, Report, Sparse, SyncPolicy, Way};

const MIB: usize = 1 << 20;

/// Copies anew; returns the way, and why.
fn copy_anew(source: &Path, target: &Path, options: &Options) -> (Way, String) {
    // What is complete is not copied again when a copy is resumed.
    let _ = fs::remove_file(target);
    copy(source, target, options)
}

/// Copies; returns the way, and why.
fn copy(source: &Path, target: &Path, options: &Options) -> (Way, String) {
    let told: Arc<Mutex<Option<(Way, String)>>> = Arc::default();
    let tell = told.clone();
    let options = options.clone().on_event(move |event| {
        if let Event::Copied { way, why, .. } = event {
            *tell.lock().unwrap() = Some((*way, why.to_string()));
        }
    });
    let report = nowait_copy::copy(source, target, &options).unwrap();
    complete(&report);
    told.lock().unwrap().take().expect("the copy is told")
}

fn complete(report: &Report) {
    assert!(report.is_complete(), "{:?}, {:?}", report.failures, report.warnings);
    assert_eq!(report.files, 1);
}

fn ways() -> Vec<(&'static str, Options)> {
    let options = Options::new;
    vec![
        ("default", options()),
        ("no reflink", options().reflink(Reflink::Never)),
        ("cache-neutral", options().reflink(Reflink::Never).cache_neutral(true)),
        ("cache-neutral, short requests", options().reflink(Reflink::Never).cache_neutral(true).block_bytes(16_384)),
        ("verify", options().verify(true)),
        ("verify, cache-neutral", options().reflink(Reflink::Never).cache_neutral(true).verify(true)),
        ("sparse always", options().sparse(Sparse::Always)),
        ("sparse never", options().sparse(Sparse::Never)),
        ("resume", options().reflink(Reflink::Never).resume(true)),
        ("sync", options().sync(SyncPolicy::File)),
        ("sync all", options().sync(SyncPolicy::All)),
        ("dirty", options().reflink(Reflink::Never).dirty_bytes_max(Some(2 * MIB as u64))),
    ]
}

/// Symptom: a file of 4 MiB and more could not be copied from an overlay over squashfs, which takes
/// `O_DIRECT` by fcntl(2), and then fails every call.
#[test]
fn a_layer_without_direct_io_is_copied_from() {
    let (folder, bytes) = (tempfile::tempdir_in("/var/tmp").unwrap(), common::contents(9 * MIB + 123, 3));
    fs::create_dir(folder.path().join("tree")).unwrap();
    fs::write(folder.path().join("tree/file"), &bytes).unwrap();
    let made = Mount::overlay_over_squashfs(&folder.path().join("tree"));
    let Some(mount) = common::mounts::or_skip("an overlay over squashfs", made) else { return };
    let (source, target) = (mount.path().join("file"), folder.path().join("copy"));
    for (what, options) in ways() {
        cold::drop_pages(&source);
        let (way, why) = copy_anew(&source, &target, &options);
        assert!(fs::read(&target).unwrap() == bytes, "{what}, {} ({why})", way.name());
    }
}

/// Source and target within the file system, into it and out of it.
fn places(mount: &Path, elsewhere: &Path) -> [(&'static str, PathBuf, PathBuf); 3] {
    let (inside, outside) = (|name: &str| mount.join(name), |name: &str| elsewhere.join(name));
    [
        ("within", inside("source"), inside("target")),
        ("into", outside("source"), inside("target")),
        ("out of", inside("source"), outside("target")),
    ]
}

fn every_way(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    for (place, source, target) in places(mount.path(), elsewhere.path()) {
        for length in [0, 1, 4096, 65_537, 5 * MIB + 123] {
            let contents = common::contents(length, length as u64);
            fs::write(&source, &contents).unwrap();
            for is_cold in [false, true] {
                for (what, options) in ways() {
                    if is_cold {
                        cold::drop_pages(&source);
                    }
                    let (way, why) = copy_anew(&source, &target, &options);
                    let what = format!("{kind:?}, {place}: {length} bytes, {what}, {} ({why})", way.name());
                    assert!(fs::read(&target).unwrap() == contents, "{what}");
                }
            }
        }
        fs::remove_file(&source).unwrap();
        fs::remove_file(&target).unwrap();
    }
}

mod every_way_gives_the_same_bytes {
    crate::common::mounts::on_every_file_system!(super::every_way);
}

/// Places of the data of a file with holes at both ends, and zeros that were written.
fn file_with_holes(path: &Path) -> Vec<u8> {
    let mut contents = vec![0; 20 * MIB];
    let file = File::create(path).unwrap();
    file.set_len(contents.len() as u64).unwrap();
    for (offset, length) in [(3 * MIB, 2 * MIB), (7 * MIB + 1234, 3000), (12 * MIB, MIB)] {
        contents[offset..offset + length].copy_from_slice(&common::contents(length, offset as u64));
        file.write_all_at(&contents[offset..offset + length], offset as u64).unwrap();
    }
    file.sync_all().unwrap();
    contents
}

fn holes(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    for (place, source, target) in places(mount.path(), elsewhere.path()) {
        let contents = file_with_holes(&source);
        for (what, options) in ways() {
            copy_anew(&source, &target, &options);
            assert!(fs::read(&target).unwrap() == contents, "{kind:?}, {place}: {what}");
            File::open(&target).unwrap().sync_all().unwrap();
            let stored = fs::metadata(&target).unwrap().blocks() * 512;
            let what = format!("{kind:?}, {place}: {what}, {stored} bytes");
            match what.contains("never") {
                true => assert!(stored >= contents.len() as u64, "{what}"),
                // xfs keeps some room behind data.
                false => assert!(stored < 9 * MIB as u64, "{what}"),
            }
        }
    }
}

mod holes_stay_holes {
    crate::common::mounts::on_every_file_system!(super::holes);
}

fn clones(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let shares = matches!(kind, Kind::Xfs | Kind::Btrfs);
    let (source, target) = (mount.path().join("source"), mount.path().join("target"));
    for length in [100, 5 * MIB + 123] {
        let contents = common::contents(length, 7);
        fs::write(&source, &contents).unwrap();
        let (way, why) = copy(&source, &target, &Options::new());
        assert_eq!(way == Way::Clone, shares, "{kind:?}: {} ({why})", way.name());
        let always = Options::new().reflink(Reflink::Always);
        if shares {
            assert_eq!(copy(&source, &target, &always.verify(true)).0, Way::Clone);
            assert_ne!(copy(&source, &target, &Options::new().reflink(Reflink::Never)).0, Way::Clone);
        } else {
            fs::write(&target, "old").unwrap();
            let report = nowait_copy::copy(&source, &target, &always).unwrap();
            assert_eq!(report.failures.len(), 1, "{kind:?}: {report:?}");
            assert_eq!(report.failures[0].kind(), FailureKind::System(nowait::ErrorKind::Unsupported));
            assert_eq!(fs::read(&target).unwrap(), b"old");
            copy(&source, &target, &Options::new());
        }
        assert!(fs::read(&target).unwrap() == contents);
    }
}

mod blocks_are_shared_where_they_can_be {
    crate::common::mounts::on_every_file_system!(super::clones);
}

/// Pages of a file in the page cache; those of uncached writes go when they were written back.
fn stay_cached(path: &Path) -> usize {
    common::eventually(|| cold::cached_pages(path) == 0);
    cold::cached_pages(path)
}

fn neutral(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let (source, target) = (mount.path().join("source"), mount.path().join("target"));
    if cold::is_in_memory(mount.path()) {
        return;
    }
    let neutral = Options::new().reflink(Reflink::Never).cache_neutral(true);
    for length in [5000, 65_536, 300_001, 9 * MIB + 77] {
        let contents = common::contents(length, 3);
        fs::write(&source, &contents).unwrap();
        for (what, options) in [("", neutral.clone()), (", verified", neutral.clone().verify(true))] {
            cold::drop_pages(&source);
            let (way, why) = copy(&source, &target, &options);
            let what = format!("{kind:?}: {length} bytes{what}, {} ({why})", way.name());
            assert_eq!(stay_cached(&source), 0, "{what}, source");
            assert_eq!(stay_cached(&target), 0, "{what}, target");
            assert!(fs::read(&target).unwrap() == contents, "{what}");
        }
    }
}

mod a_neutral_copy_leaves_nothing_cached {
    crate::common::mounts::on_every_file_system!(super::neutral);
}

/// What was cached before stays: to throw it out would not be neutral either.
#[test]
fn a_neutral_copy_of_a_cached_source_leaves_it_cached() {
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    let (source, target) = (mount.path().join("source"), mount.path().join("target"));
    for length in [5000, 9 * MIB] {
        fs::write(&source, common::contents(length, 3)).unwrap();
        File::open(&source).unwrap().sync_all().unwrap();
        copy(&source, &target, &Options::new().cache_neutral(true));
        assert_eq!(cold::cached_pages(&source), length.div_ceil(4096), "{length} bytes");
        assert_eq!(stay_cached(&target), 0, "{length} bytes");
    }
}

#[test]
fn public_types_are_sent_shared_and_formatted() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<(nowait_copy::Failure, nowait_copy::FailureKind, nowait_copy::Operation)>();
    shared::<(nowait_copy::Options, nowait_copy::SyncPolicy, nowait_copy::Sparse, nowait_copy::Reflink)>();
    shared::<(nowait_copy::Update, nowait_copy::Follow, nowait_copy::Way, nowait_copy::Report)>();
    shared::<(nowait_copy::Event<'_>, nowait_copy::Progress, nowait_copy::Started, nowait_copy::Ended)>();
}
