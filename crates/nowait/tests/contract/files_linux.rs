//! Calls of `std::fs` and `std::fs::File` with features that other systems lack: modes and owners, record
//! locks, descriptors, and files and devices of the kernel.

use std::fs::{self as std_fs, FileTimes, Permissions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use super::files::{conflicts, folder, instances, on_each};
use crate::common::{Watchdog, Way, child};
use nowait::map::Map;
use nowait::stream::Reader;
use nowait::{Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, RangeLock, fs};

#[test]
fn metadata_is_that_of_std() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, [7; 1234]).unwrap();
        std::os::unix::fs::symlink(&path, folder.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join("broken")).unwrap();
        let same = |a: &std_fs::Metadata, b: &std_fs::Metadata| {
            assert_eq!((a.dev(), a.ino(), a.mode(), a.len()), (b.dev(), b.ino(), b.mode(), b.len()));
            assert_eq!(a.modified().unwrap(), b.modified().unwrap());
        };
        for name in ["file", "link", "."] {
            let path = folder.join(name);
            same(&way.run(nowait.fs().metadata(&path)).unwrap(), &std_fs::metadata(&path).unwrap());
        }
        let link = folder.join("link");
        same(&way.run(nowait.fs().symlink_metadata(&link)).unwrap(), &std_fs::symlink_metadata(&link).unwrap());
        let file = way.run(OpenOptions::new().read(true).open_in(nowait, &path)).unwrap();
        same(&way.run(file.metadata()).unwrap(), &std_fs::metadata(&path).unwrap());

        for (name, there) in [("file", true), ("link", true), ("broken", false), ("missing", false)] {
            assert_eq!(way.run(nowait.fs().exists(folder.join(name))).unwrap(), there, "{name}");
        }
        assert_eq!(way.run(nowait.fs().read_link(&link)).unwrap(), path);
        assert_eq!(
            way.run(nowait.fs().canonicalize(folder.join(".").join("link"))).unwrap(),
            path.canonicalize().unwrap()
        );
        let error = way.run(nowait.fs().metadata(folder.join("missing"))).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::NotFound, ErrorOp::Metadata));
        assert_eq!(error.path(), Some(&*folder.join("missing")));
        assert_eq!(way.run(nowait.fs().metadata("a\0b")).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn permissions_and_times_are_set() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "x").unwrap();
        let mode = || std_fs::metadata(&path).unwrap().mode() & 0o777;
        way.run(nowait.fs().set_permissions(&path, Permissions::from_mode(0o640))).unwrap();
        assert_eq!(mode(), 0o640);
        let file = way.run(OpenOptions::new().write(true).open_in(nowait, &path)).unwrap();
        way.run(file.set_permissions(Permissions::from_mode(0o600))).unwrap();
        assert_eq!(mode(), 0o600);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        way.run(file.set_times(FileTimes::new().set_modified(time))).unwrap();
        assert_eq!(std_fs::metadata(&path).unwrap().modified().unwrap(), time);
        let error = way.run(nowait.fs().set_permissions(folder.join("no"), Permissions::from_mode(0o600))).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::NotFound, ErrorOp::SetPermissions));
    });
}

#[test]
fn directories_links_and_copies_are_made_and_removed() {
    on_each(|nowait, way, folder| {
        let deep = folder.join("a/b/c");
        way.run(nowait.fs().create_dir_all(&deep)).unwrap();
        way.run(nowait.fs().create_dir_all(&deep)).unwrap();
        std_fs::write(deep.join("file"), [9; 300_000]).unwrap();
        way.run(nowait.fs().hard_link(deep.join("file"), deep.join("hard"))).unwrap();
        assert_eq!(std_fs::metadata(deep.join("hard")).unwrap().nlink(), 2);
        way.run(nowait.fs().symlink("file", deep.join("soft"))).unwrap();
        assert_eq!(std_fs::read_link(deep.join("soft")).unwrap(), Path::new("file"));
        std_fs::set_permissions(deep.join("file"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(way.run(nowait.fs().copy(deep.join("file"), deep.join("copy"))).unwrap(), 300_000);
        assert!(std_fs::read(deep.join("copy")).unwrap() == [9; 300_000]);
        assert_eq!(std_fs::metadata(deep.join("copy")).unwrap().mode() & 0o777, 0o600);

        let entries = way.run(nowait.fs().read_dir(&deep)).unwrap();
        let names: Vec<_> = entries.iter().map(|entry| entry.file_name().to_str().unwrap()).collect();
        assert_eq!(names, ["copy", "file", "hard", "soft"]);
        assert!(entries[0].file_type().is_file() && entries[3].file_type().is_symlink());
        assert_eq!(entries[1].path(), deep.join("file"));
        let metadata = way.run(entries[1].metadata()).unwrap();
        assert_eq!((metadata.len(), metadata.nlink()), (300_000, 2));
        assert!(way.run(entries[3].metadata()).unwrap().is_symlink(), "a link is not followed");

        let error = way.run(nowait.fs().remove_dir(&deep)).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::DirectoryNotEmpty, ErrorOp::Remove));
        let error = way.run(nowait.fs().hard_link(deep.join("file"), deep.join("soft"))).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::AlreadyExists, ErrorOp::Link));
        assert!(error.to_string().contains(deep.join("soft").to_str().unwrap()), "{error}");
        way.run(nowait.fs().remove_dir_all(folder.join("a/b"))).unwrap();
        way.run(nowait.fs().remove_dir(folder.join("a"))).unwrap();
        assert_eq!(std_fs::read_dir(folder).unwrap().count(), 0);
    });
}

/// Symptom: a copy of a file to itself, by this name or another, emptied it.
#[test]
fn a_file_is_not_copied_to_itself() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, [7; 100_000]).unwrap();
        std_fs::hard_link(&path, folder.join("hard")).unwrap();
        std::os::unix::fs::symlink("file", folder.join("soft")).unwrap();
        for (from, to) in [("file", "file"), ("file", "hard"), ("hard", "file"), ("file", "soft"), ("soft", "hard")] {
            let error = way.run(nowait.fs().copy(folder.join(from), folder.join(to))).unwrap_err();
            assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidInput, ErrorOp::Copy), "{error}");
            for part in [from, to, "one file", "unchanged"] {
                assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
            }
            assert!(std_fs::read(&path).unwrap() == [7; 100_000], "{from} to {to}");
        }
        assert_eq!(way.run(nowait.fs().copy(folder.join("soft"), folder.join("other"))).unwrap(), 100_000);
    });
}

/// Copies files that report a size of zero, to longer targets, and to targets or from sources that
/// are not regular files.
#[test]
fn copies_are_those_of_std() {
    on_each(|nowait, way, folder| {
        let (path, copy) = (folder.join("file"), folder.join("copy"));
        std_fs::write(&path, "short").unwrap();
        std_fs::set_permissions(&path, Permissions::from_mode(0o4751)).unwrap();
        std_fs::write(&copy, [1; 100_000]).unwrap();
        assert_eq!(way.run(nowait.fs().copy(&path, &copy)).unwrap(), 5);
        assert_eq!(std_fs::read(&copy).unwrap(), b"short");
        assert_eq!(std_fs::metadata(&copy).unwrap().mode() & 0o7777, 0o4751);
        assert_eq!(way.run(nowait.fs().copy(&path, "/dev/null")).unwrap(), 5);
        std_fs::write(&path, "").unwrap();
        assert_eq!(way.run(nowait.fs().copy(&path, &copy)).unwrap(), 0);
        assert_eq!(std_fs::read(&copy).unwrap(), b"");
        let length = std_fs::read("/proc/self/limits").unwrap().len() as u64;
        assert_eq!(way.run(nowait.fs().copy("/proc/self/limits", folder.join("limits"))).unwrap(), length);
        assert_eq!(std_fs::read(folder.join("limits")).unwrap().len() as u64, length);

        let fifo = folder.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for (from, kind) in [
            (&*fifo, ErrorKind::InvalidInput),
            (Path::new("/dev/zero"), ErrorKind::InvalidInput),
            (folder, ErrorKind::IsADirectory),
            (&folder.join("missing"), ErrorKind::NotFound),
        ] {
            let error = way.run(nowait.fs().copy(from, folder.join("new"))).unwrap_err();
            assert_eq!((error.kind(), error.operation()), (kind, ErrorOp::Copy), "{error}");
            assert!(!folder.join("new").exists(), "{error}");
        }
    });
}

/// Symptom: the file was "closed".
#[test]
fn a_descriptor_that_is_a_path_alone_is_told() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "some bytes").unwrap();
        let mut options = OpenOptions::new();
        let opened = way.run(options.read(true).custom_flags(libc::O_PATH).open_in(nowait, &path));
        let std = std_fs::File::from(rustix::fs::open(&path, rustix::fs::OFlags::PATH, 0o0.into()).unwrap());
        for error in [opened.unwrap_err(), File::from_std(nowait, std, &path).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            let text = error.to_string();
            assert!(text.contains("O_PATH") && !text.contains("closed"), "{text}");
        }
    });
}

/// Files that say they are empty, and files that are.
#[test]
fn whole_files_are_read_to_their_end() {
    on_each(|nowait, way, folder| {
        let status = way.run_future(nowait.fs().read("/proc/self/limits")).unwrap();
        assert_eq!(status, std_fs::read("/proc/self/limits").unwrap());
        std_fs::write(folder.join("empty"), "").unwrap();
        assert!(way.run_future(nowait.fs().read(folder.join("empty"))).unwrap().is_empty());
        assert_eq!(nowait.fs().read(folder).wait().unwrap_err().kind(), ErrorKind::IsADirectory);
    });
}

#[test]
fn a_replaced_file_keeps_what_it_is_told_to_keep() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        let stat = || {
            let metadata = std_fs::metadata(&path).unwrap();
            (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
        };
        let mut keeps = fs::AtomicOptions::new();
        keeps.keep_mode_and_owner(true);
        // There is none yet.
        way.run_future(keeps.write_in(nowait, &path, "first")).unwrap();
        let new = stat();
        std_fs::write(folder.join("other"), "").unwrap();
        assert_eq!(new.0, std_fs::metadata(folder.join("other")).unwrap().mode() & 0o7777);
        std_fs::remove_file(folder.join("other")).unwrap();

        let (owner, group) = if child::is_root() { (65534, 12345) } else { (new.1, new.2) };
        for durable in [true, false] {
            std::os::unix::fs::chown(&path, Some(owner), Some(group)).unwrap();
            std_fs::set_permissions(&path, Permissions::from_mode(0o2751)).unwrap();
            way.run_future(keeps.durable(durable).write_in(nowait, &path, "second")).unwrap();
            assert_eq!((stat(), std_fs::read(&path).unwrap()), ((0o2751, owner, group), b"second".to_vec()));

            let mut new = way.run_future(keeps.create_in(nowait, &path)).unwrap();
            new.writer().write_all(b"third").unwrap();
            let mode = new.file().metadata().wait().unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600, "nobody else reads it before it has its mode");
            way.run_future(new.commit()).unwrap();
            assert_eq!((stat(), std_fs::read(&path).unwrap()), ((0o2751, owner, group), b"third".to_vec()));
        }
        // By default it is a new file.
        way.run_future(nowait.fs().write_atomic(&path, "fourth")).unwrap();
        assert_eq!(stat(), new);
        // A link is followed: its target is replaced.
        std_fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", folder.join("link")).unwrap();
        way.run_future(keeps.write_in(nowait, folder.join("link"), "fifth")).unwrap();
        let link = std_fs::symlink_metadata(folder.join("link")).unwrap();
        assert_eq!((link.is_file(), link.mode() & 0o777), (true, 0o640));
        assert_eq!(std_fs::read_dir(folder).unwrap().count(), 2, "no temporary file is left");
    });
}

#[test]
fn descriptors_come_from_std_and_go_back() {
    on_each(|nowait, _, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "0123456789").unwrap();
        let file = File::try_from(std_fs::File::open(&path).unwrap()).unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(File::try_from(std_fs::File::open(folder).unwrap()).unwrap_err().kind(), ErrorKind::IsADirectory);

        let file =
            File::from_std(nowait, std_fs::File::options().read(true).write(true).open(&path).unwrap(), &path).unwrap();
        let number = file.as_raw_fd();
        assert_eq!(number, file.as_fd().as_raw_fd());
        let clone = file.clone();
        let file = file.into_std().unwrap_err();
        drop(clone);
        // An operation under way has a share.
        let read = file.read_range(0, 10).submit();
        let (file, kept) = match file.into_std() {
            Err(file) => (read.wait().map(|_| file).unwrap(), true),
            Ok(_) => panic!("the operation lost its file"),
        };
        assert!(kept);
        nowait.drain();
        let mut std = file.into_std().unwrap();
        assert_eq!(std.as_raw_fd(), number);
        std.write_all(b"ab").unwrap();
        assert_eq!(std_fs::read(&path).unwrap(), b"ab23456789");
    });
}

/// A lock of a range belongs to one open. It excludes other opens and record locks, clones share
/// it, and it survives the close of another open of the file.
#[test]
fn locks_of_ranges_exclude_other_opens() {
    for nowait in instances() {
        let folder = folder();
        let path = folder.path().join("file");
        std_fs::write(&path, "some bytes").unwrap();
        let open = || OpenOptions::new().read(true).write(true).open_in(&nowait, &path).wait().unwrap();
        let (first, second) = (open(), open());
        use RangeLock::{Exclusive, Shared};
        // Locks of parts, also beyond the end of the file.
        assert!(first.try_lock_range(Exclusive, 100, 10).is_ok());
        assert!(second.try_lock_range(Exclusive, 110, 1).is_ok() && second.try_lock_range(Shared, 0, 100).is_ok());
        for (offset, length) in [(100, 1), (109, 1), (90, 11), (0, 0), (105, 0)] {
            assert!(conflicts(second.try_lock_range(Shared, offset, length)), "{offset} {length}");
            assert!(second.is_range_locked(Shared, offset, length).unwrap());
        }
        // An open does not conflict with its own locks, and a clone shares them.
        assert!(!first.is_range_locked(Exclusive, 100, 10).unwrap());
        assert!(first.clone().try_lock_range(Shared, 100, 10).is_ok(), "it changes its kind");
        assert!(second.try_lock_range(Shared, 100, 10).is_ok());
        assert!(second.is_range_locked(Exclusive, 100, 10).unwrap());
        assert!(conflicts(first.try_lock_range(Exclusive, 100, 10)));
        // Unlocks a part in the middle.
        second.unlock_range(102, 3).unwrap();
        assert!(first.try_lock_range(Exclusive, 102, 3).is_ok());
        assert!(conflicts(first.try_lock_range(Exclusive, 101, 1)));
        assert!(conflicts(first.try_lock_range(Exclusive, 105, 1)));
        // Closing another open releases no lock of this one.
        open().close().unwrap();
        assert!(conflicts(second.try_lock_range(Shared, 102, 3)));
        let inode = std_fs::metadata(&path).unwrap().ino();
        let locked = |kind: &str| {
            let locks = std_fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains(kind) && line.contains(&format!(":{inode} ")))
        };
        assert!(locked("OFDLCK") && !locked("POSIX"));
        // Record locks of this process conflict, in both directions.
        let third = open();
        let record = std_fs::File::options().read(true).write(true).open(&path).unwrap();
        let lock = |operation| rustix::fs::fcntl_lock(&record, operation);
        assert!(lock(rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err());
        first.close().unwrap();
        second.close().unwrap();
        lock(rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(conflicts(third.try_lock_range(Shared, 7, 1)) && third.is_range_locked(Shared, 7, 1).unwrap());
        drop(record);
        assert!(third.try_lock_range(Exclusive, 0, 0).is_ok());
        assert!(third.try_lock().is_ok(), "one of the whole file is of another sort");
        third.unlock_range(0, 0).unwrap();
        assert!(!locked("OFDLCK"));
    }
}

#[test]
fn locks_of_ranges_are_refused_with_a_reason() {
    let folder = folder();
    let path = folder.path().join("file");
    std_fs::write(&path, "some bytes").unwrap();
    let file = File::open(&path).wait().unwrap();
    let error = Error::from(file.try_lock_range(RangeLock::Exclusive, 3, 4).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let text = error.to_string();
    for part in ["lock", "/file", "offset 3, length 4", "open it for writing"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(file.try_lock_range(RangeLock::Shared, 3, 4).is_ok());
    for (offset, length) in [(u64::MAX, 1), (1, u64::MAX), (1 << 63, 0), (i64::MAX as u64, 1)] {
        let kinds = [
            Error::from(file.try_lock_range(RangeLock::Shared, offset, length).unwrap_err()).kind(),
            file.is_range_locked(RangeLock::Shared, offset, length).unwrap_err().kind(),
            file.unlock_range(offset, length).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidRange; 3], "{offset} {length}");
    }
    file.clone().close().unwrap();
    assert_eq!(file.unlock_range(0, 0).unwrap_err().kind(), ErrorKind::Closed);
}

/// Symptom: `metadata` closed a descriptor of the file, which released the process's record locks on
/// it (fcntl(2)).
#[test]
fn record_locks_of_the_process_stay() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "some bytes").unwrap();
        let file = OpenOptions::new().read(true).write(true).open_in(nowait, &path).wait().unwrap();
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let inode = std_fs::metadata(&path).unwrap().ino();
        let locked = || {
            let locks = std_fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("POSIX") && line.contains(&format!(":{inode} ")))
        };
        assert!(locked());
        way.run(file.metadata()).unwrap();
        way.run(file.set_permissions(Permissions::from_mode(0o600))).unwrap();
        assert!(locked());
    });
}

/// Returns the readable files below `folder` whose contents are stable, with their contents: two
/// reads, as `cat` makes them, agree. Returns none if the folder is missing.
fn steady_files(folder: &Path, depth: u32, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    /// Leaves out files that have no end, are as large as memory, or in which a read is an event.
    const SPECIAL: [&str; 6] = ["mem", "pagemap", "kcore", "kmsg", "clear_refs", "trace_pipe"];
    for entry in std_fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        // Root may open others, too, but the effect of a read is unknown.
        let may_be_read = || entry.metadata().is_ok_and(|about| about.mode() & 0o444 != 0);
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => steady_files(&path, depth - 1, found),
            Ok(kind) if kind.is_file() && may_be_read() && !SPECIAL.iter().any(|special| name == *special) => {
                let again = || cat(&path);
                match (again(), again()) {
                    (Ok(one), Ok(two)) if one == two => found.push((path, one)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// Reads a file by plain calls until one returns nothing. (`std::fs::read` begins with 32 bytes,
/// which is all that it gets of some.)
fn cat(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = std_fs::File::open(path)?;
    let (mut contents, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(contents),
            n => contents.extend_from_slice(&piece[..n]),
        }
    }
}

/// Symptom: reads of 160 of 316 files in /proc and /sys returned only the first byte, without an
/// error. Their size is reported as zero, so the read asked for one byte. A read that does not
/// begin at the start returns nothing there, so the first read must ask for a page.
#[test]
fn files_of_the_kernel_are_read_to_their_end() {
    let _watchdog = Watchdog::new("files of the kernel", 120);
    let mut files = Vec::new();
    // Files of an idle process.
    let sleeper = Sleeper(Command::new("sleep").arg("1000").spawn().unwrap());
    let process = PathBuf::from(format!("/proc/{}", sleeper.0.id()));
    let state = || std_fs::read_to_string(process.join("stat")).unwrap();
    assert!(crate::common::eventually(|| state().contains("(sleep) S ")), "{}", state());
    steady_files(&process, 0, &mut files);
    steady_files(&process.join("fdinfo"), 0, &mut files);
    steady_files(&process.join("attr"), 1, &mut files);
    steady_files("/proc/sys".as_ref(), 4, &mut files);
    for folder in ["/sys/kernel/mm", "/sys/class/net/lo", "/sys/devices/system/cpu", "/sys/fs/cgroup"] {
        steady_files(folder.as_ref(), 2, &mut files);
    }
    for disk in std_fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        steady_files(&disk.path().join("queue"), 0, &mut files);
    }
    assert!(files.len() > 100, "there are {}", files.len());
    let reports_nothing = |path: &Path| std_fs::metadata(path).is_ok_and(|about| about.len() == 0);
    let named: Vec<_> = files.iter().filter(|(path, bytes)| bytes.len() > 1 && reports_nothing(path)).collect();
    assert!(named.len() > 50, "{} of {} have a size of zero and bytes", named.len(), files.len());
    let (mut reads, mut same) = (0, 0);
    for (engine, nowait) in instances().iter().enumerate() {
        // All of them by the first engine, and some by each other.
        for (index, (path, expected)) in
            files.iter().enumerate().filter(|(index, _)| engine == 0 || index % 8 == engine)
        {
            for (how, read) in ways_to_read(nowait, Way::ALL[(index + engine) % 3], path, expected.len()) {
                reads += 1;
                let found = read();
                if found.as_ref().is_ok_and(|found| found == expected) {
                    same += 1;
                    continue;
                }
                // Counters change all the time. The fault is that bytes are missing.
                let length = found.as_ref().map_or(0, Vec::len);
                let in_full = || cat(path).map_or(true, |now| read().is_ok_and(|found| found.len() >= now.len()));
                if length < expected.len() && !(0..100).any(|_| in_full()) {
                    panic!("{path:?}, {how}: {:?} of {} bytes", found.map(|found| found.len()), expected.len());
                }
            }
            let Ok(file) = OpenOptions::new().read(true).open_in(nowait, path).wait() else { continue };
            // SAFETY: a map of bytes that others change is compared with nothing: it must be empty.
            if let Ok(map) = unsafe { Map::new(&file, ..) } {
                assert!(map.len() == expected.len() || !reports_nothing(path), "{path:?}: a map of {}", map.len());
            }
        }
    }
    assert!(same > reads / 10 * 9, "{same} of {reads} reads found the same bytes");
}

/// Ends with its scope.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Read<'a> = Box<dyn Fn() -> std::io::Result<Vec<u8>> + 'a>;

/// Ways to read a file of about `length` bytes.
fn ways_to_read<'a>(nowait: &'a Nowait, way: Way, path: &'a Path, length: usize) -> Vec<(String, Read<'a>)> {
    let open = move || way.run(OpenOptions::new().read(true).open_in(nowait, path));
    let whole = move || match way {
        Way::Waited => Ok(nowait.fs().read(path).wait()?),
        way => Ok(way.run_future(nowait.fs().read(path))?),
    };
    let in_one = move || Ok(way.run(open()?.read_at(Vec::with_capacity(256 << 10), 0))?.1);
    let gathered = move || {
        let (file, ranges) = (open()?, [(0, length + 4096)]);
        let rows = match way {
            Way::Waited => file.gather(ranges).wait()?,
            way => way.run_future(file.gather(ranges))?,
        };
        Ok(rows.get(0).map_err(Clone::clone)?.to_vec())
    };
    let streamed = move || {
        let (mut read, mut reader) = (Vec::new(), Reader::new(&open()?, 0));
        if way == Way::Waited {
            reader.read_to_end(&mut read)?;
            return Ok(read);
        }
        while let Some(chunk) = way.run_future(reader.chunk())? {
            read.extend_from_slice(&chunk);
        }
        Ok(read)
    };
    let named = |what: &str| format!("{way:?}, {what}");
    vec![
        (named("whole"), Box::new(whole)),
        (named("one read"), Box::new(in_one)),
        (named("gathered"), Box::new(gathered)),
        (named("streamed"), Box::new(streamed)),
    ]
}

/// Symptom: a read of a device that reports a size of zero was short if the kernel cut an attempt
/// short. It does so when other threads wait for the processor (`read_iter_zero`,
/// drivers/char/mem.c).
#[test]
fn devices_without_a_size_are_read_in_full() {
    const BYTES: usize = 1 << 20;
    let nowait = Nowait::builder().build().unwrap();
    let file = OpenOptions::new().read(true).open_in(&nowait, "/dev/zero").wait().unwrap();
    let (ended, mut short) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let mut buffer = vec![1; BYTES];
        for way in [Way::Awaited, Way::Driven] {
            for _ in 0..crate::common::rounds(4000) {
                let (n, back) = way.run(file.read_at(buffer, 0)).unwrap();
                short += u64::from(n < BYTES);
                buffer = back;
            }
        }
        ended.store(true, Relaxed);
    });
    assert_eq!(short, 0, "short reads");
    let cut = nowait.stats().short_attempts;
    if cut == 0 {
        eprintln!("skipped: no attempt was cut short");
    }
}
