//! Copies one file by every way, on the file system of `/var/tmp` and on tmpfs.

mod resumed;
mod simulated;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::ends::{Endpoint, Ends};
use super::extents::Extents;
use super::pass::{Done, Pass, Zeros};
use super::{FileJob, FileOutcome, copy_file, kernel, verify};
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::options::{Options, Reflink, Sparse, SyncPolicy};
use crate::report::Way;
use crate::shared::{Ability, Shared};

const MIB: usize = 1 << 20;

fn folders() -> Vec<TempDir> {
    let mut folders = vec![tempfile::tempdir_in("/var/tmp").unwrap()];
    folders.extend(tempfile::tempdir_in("/dev/shm").ok());
    folders
}

/// Bytes without two equal pages.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 33).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

struct Job<'a> {
    source: &'a Path,
    target: &'a Path,
    is_new: bool,
    target_is_local: bool,
    /// Called after the source was opened, before it is copied.
    meanwhile: &'a dyn Fn(),
    metadata: super::Metadata<'a>,
}

impl<'a> Job<'a> {
    fn new(source: &'a Path, target: &'a Path) -> Self {
        Job {
            source,
            target,
            is_new: false,
            target_is_local: true,
            meanwhile: &|| {},
            metadata: &|_, _| Ok(Vec::new()),
        }
    }

    fn run(&self, shared: &Shared) -> Result<FileOutcome> {
        let source = File::open(self.source).unwrap();
        let stat = rustix::fs::fstat(&source).unwrap();
        (self.meanwhile)();
        let directory = File::open(self.target.parent().unwrap()).unwrap();
        let name = CString::new(self.target.file_name().unwrap().as_bytes()).unwrap();
        let job = FileJob {
            source: source.as_fd(),
            stat: &stat,
            source_path: self.source,
            target_dir: directory.as_fd(),
            target_device: directory.metadata().unwrap().dev(),
            target_is_local: self.target_is_local,
            temporary_name: &|| shared.temporary_name(false),
            target_name: &name,
            target_path: self.target,
            is_new: self.is_new,
            metadata: self.metadata,
        };
        copy_file(&job, shared)
    }
}

fn copy(source: &Path, target: &Path, options: &Options) -> Result<FileOutcome> {
    Job::new(source, target).run(&Shared::new(options.clone()))
}

/// Names in a directory.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn ways() -> Vec<(&'static str, Options)> {
    let options = Options::new;
    vec![
        ("default", options()),
        ("no reflink", options().reflink(Reflink::Never)),
        ("cache-neutral", options().cache_neutral(true)),
        ("cache-neutral, short requests", options().cache_neutral(true).block_bytes(8192).depth(5)),
        ("verify", options().verify(true)),
        ("cache-neutral and verify", options().cache_neutral(true).verify(true)),
        ("sparse always", options().sparse(Sparse::Always)),
        ("sparse never", options().sparse(Sparse::Never).verify(true)),
        ("resume", options().resume(true).reflink(Reflink::Never)),
        ("resume, cache-neutral, verify", options().resume(true).cache_neutral(true).verify(true)),
        ("sync", options().sync(SyncPolicy::File)),
        ("rate", options().bytes_per_second_max(Some(1 << 40))),
        ("dirty", options().dirty_bytes_max(Some(MIB as u64)).block_bytes(65536)),
    ]
}

#[test]
fn every_way_gives_the_same_bytes() {
    for folder in folders() {
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        for length in [0, 1, 4095, 4096, 4097, 65_536, 65_537, MIB, 5 * MIB + 123, 17 * MIB + 1] {
            let contents = bytes(length, length as u64);
            fs::write(&source, &contents).unwrap();
            for (what, options) in ways() {
                let outcome = copy(&source, &target, &options).unwrap();
                let what = format!("{what}, {length} bytes in {}", folder.path().display());
                assert!(fs::read(&target).unwrap() == contents, "{what}");
                assert_eq!(outcome.bytes, length as u64, "{what}");
                assert_eq!(outcome.is_verified, what.contains("verify") || what.contains("never"), "{what}");
                assert!(outcome.warnings.is_empty(), "{what}");
                assert_eq!(names(folder.path()), ["source", "target"], "{what}");
            }
        }
    }
}

#[test]
fn holes_stay_holes_and_zeros_become_holes_where_asked() {
    for folder in folders() {
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        let size = 24 * MIB;
        let mut contents = vec![0; size];
        let file = File::create(&source).unwrap();
        file.set_len(size as u64).unwrap();
        for (offset, length) in [(3 * MIB, MIB), (9 * MIB + 5000, 3000), (20 * MIB, 2 * MIB)] {
            contents[offset..offset + length].copy_from_slice(&bytes(length, offset as u64));
            file.write_all_at(&contents[offset..offset + length], offset as u64).unwrap();
        }
        // Written zeros.
        file.write_all_at(&vec![0; 2 * MIB], 12 * MIB as u64).unwrap();
        file.sync_all().unwrap();
        for (what, options) in ways() {
            copy(&source, &target, &options).unwrap();
            let what = format!("{what} in {}", folder.path().display());
            assert!(fs::read(&target).unwrap() == contents, "{what}");
            let stored = fs::metadata(&target).unwrap().blocks() * 512;
            if what.contains("never") {
                assert!(stored >= size as u64, "{what}: {stored} bytes");
            } else if what.contains("always") {
                assert!(stored <= 7 * MIB as u64 / 2, "{what}: {stored} bytes");
            } else {
                assert!(stored <= 6 * MIB as u64, "{what}: {stored} bytes");
            }
        }
    }
}

/// Symptom: with `--sparse=always`, the copy lacked zeros at the end of a file, and was shorter.
#[test]
fn zeros_at_the_end_are_copied() {
    for folder in folders() {
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        for (data, zeros) in [(1, 8000), (4096, 1), (4097, 4096), (MIB, MIB + 7), (9 * MIB + 1, 3 * MIB + 5000)] {
            let contents = [bytes(data, data as u64), vec![0; zeros]].concat();
            fs::write(&source, &contents).unwrap();
            for (what, options) in ways() {
                for resume in [false, true] {
                    copy(&source, &target, &options.clone().resume(resume)).unwrap();
                    let what = format!("{data} and {zeros}, {what}, resume {resume}, {}", folder.path().display());
                    assert!(fs::read(&target).unwrap() == contents, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_reserved_file_is_copied_as_a_reserved_file() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let file = File::create(&source).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 32 * MIB as u64).unwrap();
    file.write_all_at(&bytes(MIB, 1), 5 * MIB as u64).unwrap();
    file.sync_all().unwrap();
    for (what, options) in [("default", Options::new()), ("neutral", Options::new().cache_neutral(true))] {
        // Allocated space that was read is not reported as a hole while its pages are cached.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let outcome = copy(&source, &target, &options.reflink(Reflink::Never)).unwrap();
        assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{what}");
        assert!(fs::metadata(&target).unwrap().blocks() * 512 >= 32 * MIB as u64, "{what}");
        assert!(outcome.bytes < 2 * MIB as u64, "{what}: what was not written is not read");
    }
}

#[test]
fn the_way_and_its_reason_are_told() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let way = |options: Options| {
        let outcome = copy(&source, &target, &options.reflink(Reflink::Never)).unwrap();
        assert!(!outcome.why.is_empty());
        outcome.way
    };
    fs::write(&source, "").unwrap();
    assert_eq!(way(Options::new()), Way::Empty);
    fs::write(&source, bytes(8 * MIB, 1)).unwrap();
    assert_eq!(way(Options::new()), Way::Plain, "it is in the page cache");
    let file = File::open(&source).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(way(Options::new()), Way::DirectRead, "it is not in the page cache");
    assert_eq!(way(Options::new().cache_neutral(true)), Way::Direct);
}

#[test]
fn a_file_whose_size_is_said_to_be_zero_is_read_to_its_end() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let target = folder.path().join("target");
    for options in [Options::new(), Options::new().cache_neutral(true), Options::new().verify(true)] {
        let outcome = copy(Path::new("/proc/cpuinfo"), &target, &options).unwrap();
        let text = fs::read_to_string(&target).unwrap();
        assert!(text.contains("processor") && text.len() as u64 == outcome.bytes);
    }
}

#[test]
fn a_source_that_changes_is_noticed() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let contents = bytes(6 * MIB, 1);
    let resize = |length: usize| {
        let file = File::options().write(true).open(&source).unwrap();
        file.set_len(length as u64).unwrap();
    };
    for options in [Options::new(), Options::new().cache_neutral(true)] {
        for (length, what) in
            [(MIB + 77, "shorter"), (MIB, "cut at a block"), (0, "empty"), (9 * MIB, "longer"), (6 * MIB, "written to")]
        {
            fs::write(&source, &contents).unwrap();
            let shared = Shared::new(options.clone().reflink(Reflink::Never));
            let meanwhile = || {
                resize(length);
                let file = File::options().write(true).open(&source).unwrap();
                if length > 0 {
                    std::thread::sleep(Duration::from_millis(10));
                    file.write_all_at(&[contents[0]], 0).unwrap();
                }
            };
            let job = Job { meanwhile: &meanwhile, ..Job::new(&source, &target) };
            let outcome = job.run(&shared).unwrap();
            let kinds: Vec<_> = outcome.warnings.iter().map(Failure::kind).collect();
            assert_eq!(kinds, [FailureKind::SourceChanged], "{what}");
            let copied = length.min(contents.len());
            assert!(fs::read(&target).unwrap() == contents[..copied], "{what}");
        }
    }
}

#[test]
fn a_failure_leaves_the_old_file_and_nothing_else() {
    for folder in folders() {
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        for length in [1000, 3 * MIB] {
            fs::write(&source, bytes(length, 1)).unwrap();
            fs::write(&target, "old").unwrap();
            let fails = |_: std::os::fd::BorrowedFd<'_>, _: std::os::fd::BorrowedFd<'_>| {
                Err(Failure::new(Operation::SetOwner, &target, FailureKind::Usage))
            };
            let job = Job { metadata: &fails, ..Job::new(&source, &target) };
            let failure = job.run(&Shared::new(Options::new())).map(|_| ()).unwrap_err();
            assert_eq!(failure.operation(), Operation::SetOwner);
            let cancelled = Shared::new(Options::new());
            let meanwhile = || cancelled.meter.cancel();
            let job = Job { meanwhile: &meanwhile, ..Job::new(&source, &target) };
            assert_eq!(job.run(&cancelled).map(|_| ()).unwrap_err().kind(), FailureKind::Cancelled);
            let job = Job { is_new: true, ..Job::new(&source, &target) };
            let failure = job.run(&Shared::new(Options::new())).map(|_| ()).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::NameCollision);
            assert_eq!(fs::read(&target).unwrap(), b"old");
            assert_eq!(names(folder.path()), ["source", "target"]);
        }
    }
}

#[test]
fn a_directory_of_the_name_is_not_replaced() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&target).unwrap();
    for length in [1000, 3 * MIB] {
        fs::write(&source, bytes(length, 1)).unwrap();
        let failure = copy(&source, &target, &Options::new()).map(|_| ()).unwrap_err();
        assert_eq!(failure.kind(), FailureKind::System(nowait::ErrorKind::IsADirectory));
        assert_eq!((failure.operation(), failure.path()), (Operation::Rename, target.as_path()));
        assert_eq!(names(folder.path()), ["source", "target"]);
    }
}

/// Forces the way: on these file systems other ways are chosen, since their `copy_file_range` is a
/// loop.
#[test]
fn the_kernel_copies_where_it_can_and_else_says_that_it_cannot() {
    let folders = folders();
    let source_path = folders[0].path().join("source");
    let contents = bytes(20 * MIB + 5, 1);
    fs::write(&source_path, &contents).unwrap();
    let source = File::open(&source_path).unwrap();
    let options = Options::new();
    for folder in &folders {
        let path = folder.path().join("target");
        let target = File::create_new(&path).unwrap();
        let shared = Shared::new(options.clone());
        let device = |file: &File| file.metadata().unwrap().dev();
        let ends = Ends {
            source: Endpoint::of_descriptor(&source_path, device(&source), source.as_fd(), &shared.instance),
            target: Endpoint::of_descriptor(&path, device(&target), target.as_fd(), &shared.instance),
        };
        let mut pass = Pass::new(&shared, &ends, Zeros::Write);
        let done = kernel::copy(&mut pass, &Extents::whole(contents.len() as u64)).unwrap();
        let devices = (device(&source), device(&target));
        let is_refused = shared.learned.is_refused(Ability::KernelCopy, devices);
        assert_eq!(is_refused, matches!(done, Done::Refused(_)));
        assert!(!is_refused || devices.0 != devices.1, "within a file system it is there");
        assert!(is_refused || fs::read(&path).unwrap() == contents);
    }
    // A read shows whether the source is shorter than its reported size, or its file system stops
    // early.
    let path = folders[0].path().join("short");
    let target = File::create_new(&path).unwrap();
    let shared = Shared::new(options);
    let ends = Ends {
        source: Endpoint::of_descriptor(&source_path, 0, source.as_fd(), &shared.instance),
        target: Endpoint::of_descriptor(&path, 0, target.as_fd(), &shared.instance),
    };
    let mut pass = Pass::new(&shared, &ends, Zeros::Write);
    assert!(matches!(kernel::copy(&mut pass, &Extents::whole(30 * MIB as u64)).unwrap(), Done::Refused(_)));
    assert_eq!((pass.copied_bytes, pass.source_end), (contents.len() as u64, None));
}

#[test]
fn a_wrong_copy_is_not_given_its_name() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes(3 * MIB + 1, 1)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let shared = Shared::new(Options::new());
    let end = || Endpoint::of_descriptor(&path, 0, file.as_fd(), &shared.instance);
    let ends = Ends { source: end(), target: end() };
    let whole = Extents::whole(3 * MIB as u64 + 1);
    let checks = verify::of_source(&shared, &ends, &whole, MIB as u64).unwrap();
    verify::target(&shared, &ends.target, &checks, 4).unwrap();
    file.write_all_at(&[0], 2 * MIB as u64 + 5).unwrap();
    file.sync_all().unwrap();
    let failure = verify::target(&shared, &ends.target, &checks, 4).unwrap_err();
    assert_eq!((failure.kind(), failure.offset()), (FailureKind::VerificationFailed, Some(2 * MIB as u64)));
    file.set_len(3 * MIB as u64).unwrap();
    let failure = verify::target(&shared, &ends.target, &checks[3..], 4).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VerificationFailed, "a copy that is too short");
}
