//! Windows only: handles that share nothing, reserved names, long paths, attributes, and the equivalents of
//! links, modes and descriptors.

use std::fs::{self as std_fs, FileTimes};
use std::io::{Seek as _, Write as _};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::files::on_each;
use crate::common::{Watchdog, Way, is_lacking_in_wine, names, open, writable};
use nowait::map::Map;
use nowait::{DirectIo, Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, RangeLock, fs};

/// `FILE_FLAG_BACKUP_SEMANTICS`, which opens directories.
const DIRECTORIES: u32 = 0x0200_0000;

/// Whether std reports the bytes of a copy. Wine 8.0 copies them, but does not call the progress routine of
/// `CopyFileExW`, from which std takes their number.
fn is_copied(copied: u64, bytes: u64) -> bool {
    copied == bytes || copied == 0 && is_lacking_in_wine("progress of copies")
}

fn opens(nowait: &Nowait, way: Way, path: &Path) -> nowait::Result<File> {
    way.run(OpenOptions::new().read(true).write(true).open_in(nowait, path))
}

/// A device has no positions, and a read of it may never end.
#[test]
fn names_of_devices_are_refused() {
    let _watchdog = Watchdog::new("names_of_devices_are_refused", 60);
    on_each(|nowait, way, folder| {
        for device in ["NUL", "nul", r"\\.\NUL"] {
            let error = opens(nowait, way, Path::new(device)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotSeekable, "{error}");
        }
        // The machine may have this port.
        let error = opens(nowait, way, Path::new("COM1")).unwrap_err();
        let refused =
            [ErrorKind::NotFound, ErrorKind::NotSeekable, ErrorKind::PermissionDenied, ErrorKind::ResourceBusy];
        assert!(refused.contains(&error.kind()), "{error}");
        for (name, file, kind) in [
            ("NUL", std_fs::File::open("NUL").unwrap(), ErrorKind::NotSeekable),
            (
                "directory",
                std_fs::File::options().read(true).custom_flags(DIRECTORIES).open(folder).unwrap(),
                ErrorKind::IsADirectory,
            ),
        ] {
            let error = File::from_std(nowait, file, name).unwrap_err();
            assert_eq!((error.kind(), error.operation()), (kind, ErrorOp::Open), "{error}");
        }
    });
}

/// Each name is short enough, but the path is longer than `MAX_PATH`.
#[test]
fn paths_may_be_long() {
    on_each(|nowait, way, folder| {
        let names_of = |path: &Path| way.run(nowait.fs().read_dir_names(path)).unwrap();
        // Plain paths, and verbatim ones.
        for folder in [folder.to_path_buf(), folder.canonicalize().unwrap()] {
            let deep = folder.join("d".repeat(200)).join("e".repeat(200));
            let [file, other, third] = ["file", "other", "third"].map(|name| deep.join(name));
            assert!(file.as_os_str().len() > 400);
            way.run(nowait.fs().create_dir_all(&deep)).unwrap();
            way.run_future(nowait.fs().write_atomic(&file, "contents")).unwrap();
            assert_eq!(way.run_future(nowait.fs().read(&file)).unwrap(), b"contents");
            way.run(nowait.fs().rename_new(&file, &other)).unwrap();
            way.run(nowait.fs().rename(&other, &file)).unwrap();
            assert!(is_copied(way.run(nowait.fs().copy(&file, &third)).unwrap(), 8));
            assert_eq!(way.run(nowait.fs().rename_new(&file, &third)).unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(names_of(&deep), ["file", "third"]);
            way.run(nowait.fs().sync_dir(&deep)).unwrap();
            // Wine 8.0 does not tell the present path of this directory.
            let dir = way.run(fs::Dir::open_in(nowait, &deep)).unwrap();
            way.run(dir.open_file(OpenOptions::new().write(true).create(true), "fourth")).unwrap();
            way.run(dir.sync()).unwrap();
            way.run(dir.rename("fourth", "third")).unwrap();
            assert_eq!(way.run(dir.read_names()).unwrap(), ["file", "third"]);
            drop(dir);
            match file.canonicalize() {
                Ok(path) => {
                    let taken = File::try_from(std_fs::File::open(&file).unwrap()).unwrap();
                    assert_eq!(*taken.path(), path);
                }
                // Wine 8.0 returns `ERROR_MORE_DATA`.
                Err(error) => assert!(error.raw_os_error() == Some(234) && is_lacking_in_wine("long paths of handles")),
            }
            way.run(nowait.fs().remove_dir_all(deep.parent().unwrap())).unwrap();
            assert!(names_of(&folder).is_empty());
        }
    });
}

#[test]
fn a_handle_that_shares_nothing_excludes_others() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "contents").unwrap();
        let alone = std_fs::File::options().read(true).share_mode(0).open(&path).unwrap();
        for error in [
            opens(nowait, way, &path).unwrap_err(),
            way.run_future(nowait.fs().read(&path)).unwrap_err(),
            way.run(nowait.fs().remove_file(&path)).unwrap_err(),
            way.run(nowait.fs().rename(&path, folder.join("new"))).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
            assert!(error.to_string().contains("Resource Monitor"), "{error}");
        }
        drop(alone);
        drop(opens(nowait, way, &path).unwrap());
        way.run(nowait.fs().remove_file(&path)).unwrap();
        assert!(names(folder).is_empty());
    });
}

/// Scanners open files for some milliseconds.
#[test]
fn changes_of_names_wait_for_a_scanner() {
    on_each(|nowait, way, folder| {
        let [path, new] = ["file", "new"].map(|name| folder.join(name));
        let scan = |path: &Path| {
            let alone = std_fs::File::options().read(true).share_mode(0).open(path).unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(alone);
            })
        };
        for scanned in [&path, &new] {
            std_fs::write(&path, "contents").unwrap();
            std_fs::write(&new, "old").unwrap();
            let scanner = scan(scanned);
            way.run(nowait.fs().rename(&path, &new)).unwrap();
            scanner.join().unwrap();
            assert_eq!(std_fs::read(&new).unwrap(), b"contents");
        }
        way.run(nowait.fs().rename(&new, &path)).unwrap();
        let scanner = scan(&path);
        way.run(nowait.fs().rename_new(&path, &new)).unwrap();
        scanner.join().unwrap();
        let scanner = scan(&new);
        way.run(nowait.fs().remove_file(&new)).unwrap();
        scanner.join().unwrap();
        assert!(names(folder).is_empty());
    });
}

/// Some file systems keep the name of a removed file until its last handle is closed, and deny access to it.
#[test]
fn a_removed_file_that_is_still_open_is_not_found() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "contents").unwrap();
        let reader = std_fs::File::open(&path).unwrap();
        std_fs::remove_file(&path).unwrap();
        let opened = way.run(OpenOptions::new().read(true).open_in(nowait, &path)).map(drop);
        for result in [opened, way.run(nowait.fs().remove_file(&path))] {
            match result {
                // Wine 8.0 may open or remove such a file again.
                Ok(()) => assert!(is_lacking_in_wine("refusals to open or remove a removed file")),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            }
        }
        drop(reader);
        std_fs::write(&path, "new").unwrap();
    });
}

/// SMB servers refuse to flush a directory. Under Wine so does Linux, for its /proc.
#[test]
fn a_directory_that_cannot_be_flushed_is_synced() {
    let unflushed = Path::new(r"Z:\proc");
    if !unflushed.join("self").exists() {
        return eprintln!("skipped: no directory here refuses to be flushed");
    }
    on_each(|nowait, way, _| way.run(nowait.fs().sync_dir(unflushed)).unwrap());
}

/// Errors of ReFS, of damaged volumes and of failing devices.
#[test]
fn errors_of_devices_are_told() {
    for code in [23, 323, 483, 1117, 1127, 1392, 1393] {
        assert_eq!(Error::from_raw_os_error(ErrorOp::Read, code).kind(), ErrorKind::Io, "{code}");
    }
}

/// Files are opened so that others may rename and remove them.
#[test]
fn open_files_are_renamed_and_removed() {
    on_each(|nowait, way, folder| {
        let [path, new] = ["file", "new"].map(|name| folder.join(name));
        std_fs::write(&path, "contents").unwrap();
        let file = opens(nowait, way, &path).unwrap();
        way.run(nowait.fs().rename_new(&path, &new)).unwrap();
        assert_eq!(names(folder), ["new"]);
        assert_eq!(*way.run(file.read_range(0, 8)).unwrap(), *b"contents");
        way.run(file.write_all_at("CON", 0)).unwrap();
        assert_eq!(std_fs::read(&new).unwrap(), b"CONtents");
        // As in `promises/names.rs`.
        if is_lacking_in_wine("POSIX semantics of removals") {
            return;
        }
        way.run(nowait.fs().remove_file(&new)).unwrap();
        assert_eq!(*way.run(file.read_range(0, 8)).unwrap(), *b"CONtents");
        way.run(file.write_all_at("con", 0)).unwrap();
        assert_eq!(file.close().unwrap(), nowait::Closed::Now);
        assert!(names(folder).is_empty());
    });
}

#[test]
fn read_only_files_are_read() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "contents").unwrap();
        let mut permissions = std_fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        way.run(nowait.fs().set_permissions(&path, permissions.clone())).unwrap();
        assert!(way.run(nowait.fs().metadata(&path)).unwrap().permissions().readonly());
        match opens(nowait, way, &path) {
            // Wine 8.0 stores the attribute as a mode, which root bypasses.
            Ok(_) => assert!(is_lacking_in_wine("read-only files of root")),
            Err(error) => {
                assert_eq!((error.kind(), error.operation()), (ErrorKind::PermissionDenied, ErrorOp::Open), "{error}");
            }
        }
        let file = open(nowait, &path);
        assert_eq!(*way.run(file.read_range(0, 8)).unwrap(), *b"contents");
        // Only a handle that may write can be flushed.
        match way.run(file.sync_all()) {
            Ok(()) => assert!(is_lacking_in_wine("read-only files of root")),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}"),
        }
        let error = way.run(file.write_all_at("more", 0)).unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("not opened for writing"), "{error}");
        drop(file);
        permissions.set_readonly(false);
        way.run(nowait.fs().set_permissions(&path, permissions)).unwrap();
        let file = writable(nowait, &path);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        way.run(file.set_times(FileTimes::new().set_modified(time))).unwrap();
        assert_eq!(way.run(file.metadata()).unwrap().modified().unwrap(), time);
    });
}

/// Symptom: the temporary file had the attribute, too, and stayed.
#[test]
fn a_read_only_file_is_replaced_or_nothing_is_left_and_it_is_removed() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "old").unwrap();
        let mut permissions = std_fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        std_fs::set_permissions(&path, permissions).unwrap();
        let mut options = fs::AtomicOptions::new();
        let replaced = way.run_future(options.keep_mode_and_owner(true).write_in(nowait, &path, "new"));
        // Windows does not replace such a file.
        let contents = match &replaced {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => "old",
            replaced => {
                assert!(replaced.is_ok() && is_lacking_in_wine("refusals to replace read-only files"), "{replaced:?}");
                "new"
            }
        };
        assert_eq!(std_fs::read_to_string(&path).unwrap(), contents);
        assert_eq!(names(folder), ["file"], "{replaced:?}");
        assert!(std_fs::metadata(&path).unwrap().permissions().readonly());
        way.run(nowait.fs().remove_file(&path)).unwrap();
        assert!(names(folder).is_empty());
    });
}

/// Symptom: each later sync reported that data was lost.
#[test]
fn a_sync_that_cannot_begin_loses_nothing() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "contents").unwrap();
        let file = open(nowait, &path);
        // `FILE_SHARE_READ`: every other open for writing fails.
        let reader = std_fs::File::options().read(true).share_mode(1).open(&path).unwrap();
        let error = way.run(file.sync_all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        drop(reader);
        way.run(file.sync_all()).unwrap();
        file.into_std().unwrap();
    });
}

/// Symptom: the port returned a pointer to the stack of a thread of the library.
#[test]
fn a_completion_port_of_a_handle_learns_of_no_call() {
    use std::ffi::c_void;
    use std::ptr::null_mut;
    unsafe extern "system" {
        fn CreateIoCompletionPort(handle: *mut c_void, port: *mut c_void, key: usize, threads: u32) -> *mut c_void;
        fn GetQueuedCompletionStatus(
            port: *mut c_void,
            bytes: *mut u32,
            key: *mut usize,
            request: *mut *mut c_void,
            timeout_ms: u32,
        ) -> i32;
    }
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "contents").unwrap();
        let file = writable(nowait, &path);
        let (mut bytes, mut key, mut request) = (0, 0, null_mut());
        // SAFETY: the handle is open; the other pointers are to locals. The port is left to the process.
        let port = unsafe { CreateIoCompletionPort(file.as_raw_handle(), null_mut(), 7, 0) };
        assert!(!port.is_null());
        assert_eq!(*way.run(file.read_range(0, 8)).unwrap(), *b"contents");
        way.run(file.write_all_at("CON", 0)).unwrap();
        file.try_lock().unwrap();
        // SAFETY: as above.
        let found = unsafe { GetQueuedCompletionStatus(port, &mut bytes, &mut key, &mut request, 50) };
        assert_eq!((found, request), (0, null_mut()));
    });
}

#[test]
fn directories_and_hard_links_are_made_and_removed() {
    on_each(|nowait, way, folder| {
        let deep = folder.join("a/b/c");
        way.run(nowait.fs().create_dir_all(&deep)).unwrap();
        let [file, hard, copy] = ["file", "hard", "copy"].map(|name| deep.join(name));
        std_fs::write(&file, [9; 300_000]).unwrap();
        way.run(nowait.fs().hard_link(&file, &hard)).unwrap();
        assert!(is_copied(way.run(nowait.fs().copy(&file, &copy)).unwrap(), 300_000));
        assert!(std_fs::read(&copy).unwrap() == [9; 300_000]);
        // A file is not copied to itself, whether by its name or by another one.
        for to in [&file, &hard] {
            let error = way.run(nowait.fs().copy(&file, to)).unwrap_err();
            assert_eq!(error.operation(), ErrorOp::Copy, "{error}");
            assert!(std_fs::read(&file).unwrap() == [9; 300_000], "{error}");
        }
        let entries = way.run(nowait.fs().read_dir(&deep)).unwrap();
        let names: Vec<_> = entries.iter().map(|entry| entry.file_name().to_str().unwrap()).collect();
        assert_eq!(names, ["copy", "file", "hard"]);
        assert_eq!(way.run(entries[1].metadata()).unwrap().len(), 300_000);
        let error = way.run(nowait.fs().remove_dir(&deep)).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::DirectoryNotEmpty, ErrorOp::Remove));
        let error = way.run(nowait.fs().hard_link(&file, &copy)).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::AlreadyExists, ErrorOp::Link));
        way.run(nowait.fs().remove_dir_all(folder.join("a/b"))).unwrap();
        way.run(nowait.fs().remove_dir(folder.join("a"))).unwrap();
        assert!(crate::common::names(folder).is_empty());
        let error = way.run(nowait.fs().metadata(&file)).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, Some(&*file)));
        assert_eq!(way.run(nowait.fs().metadata("a\0b")).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

/// A handle of std is synchronous and has a position; an overlapped one has none.
#[test]
fn handles_come_from_std_and_go_back() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "0123456789").unwrap();
        let std = std_fs::File::options().read(true).write(true).open(&path).unwrap();
        let handle = std.as_raw_handle();
        let file = File::from_std(nowait, std, &path).unwrap();
        assert_eq!((file.as_raw_handle(), file.as_handle().as_raw_handle()), (handle, handle));
        let reads = (0..10).map(|at| file.read_range(at, 1).submit()).collect::<Vec<_>>();
        for (at, read) in reads.into_iter().enumerate() {
            assert_eq!(*way.end(read).unwrap(), *format!("{at}").as_bytes());
        }
        nowait.drain();
        for file in [file, writable(nowait, &path)] {
            let mut std = file.into_std().unwrap();
            // On a handle that came from std, reads at offsets have moved the position.
            std.rewind().unwrap();
            std.write_all(b"ab").unwrap();
            std.write_all(b"cd").unwrap();
            assert_eq!(std_fs::read(&path).unwrap(), b"abcd456789");
            std_fs::write(&path, "0123456789").unwrap();
        }
    });
}

/// Features that Windows lacks are refused, with an error that says so.
#[test]
fn maps_range_locks_and_direct_io_are_refused() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, [7; 10_000]).unwrap();
        let file = writable(nowait, &path);
        // SAFETY: nothing changes the file.
        assert_eq!(unsafe { Map::new(&file, ..) }.unwrap_err().kind(), ErrorKind::Unsupported);
        let refused = file.try_lock_range(RangeLock::Exclusive, 0, 10).unwrap_err();
        assert_eq!(Error::from(refused).kind(), ErrorKind::Unsupported);
        let file = way.run(OpenOptions::new().read(true).direct(true).open_in(nowait, &path)).unwrap();
        assert_eq!(file.direct(), DirectIo::Refused);
        assert_eq!(*way.run(file.read_range(1, 10)).unwrap(), [7; 10]);
    });
}

/// Symptom: the temporary name was a stream, too, of a file that stayed.
#[test]
fn a_stream_is_not_replaced() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file:stream");
        let error = way.run_future(nowait.fs().write_atomic(&path, "contents")).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidInput, Some(&*path)), "{error}");
        assert!(names(folder).is_empty());
    });
}

/// Tests characters that no name may contain.
#[test]
fn names_that_are_none_are_refused() {
    let folder = crate::common::mounts::temp_dir();
    for name in ["a<b", "a>b", "a\"b", "a|b", "a?b", "a*b"] {
        let error = fs::write(folder.path().join(name), "contents").wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidFilename, "{error}");
    }
    assert!(names(folder.path()).is_empty());
}

/// Errors of a full and of a read-only drive. `make platforms-run` mounts both.
#[test]
fn full_and_read_only_drives_are_told() {
    const BYTES: usize = 4 << 20;
    for (variable, kind, std_kind) in [
        ("NOWAIT_TEST_FULL_DRIVE", ErrorKind::NoSpace, std::io::ErrorKind::StorageFull),
        ("NOWAIT_TEST_READ_ONLY_DRIVE", ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::ReadOnlyFilesystem),
    ] {
        let Some(drive) = std::env::var_os(variable) else {
            eprintln!("skipped: {variable} names no drive");
            continue;
        };
        let path = Path::new(&drive).join("file");
        on_each(|nowait, way, _| {
            let write = || {
                let file = way.run(OpenOptions::new().write(true).create(true).open_in(nowait, &path))?;
                way.run(file.write_all_at(vec![1; BYTES], 0)).map_err(Error::from)
            };
            for error in [
                write().map(drop).unwrap_err(),
                way.run_future(nowait.fs().write(&path, vec![1; BYTES])).unwrap_err(),
                way.run_future(nowait.fs().write_atomic(&path, vec![1; BYTES])).unwrap_err(),
            ] {
                // Wine 8.0 denies access to a read-only mount.
                if error.kind() == ErrorKind::PermissionDenied && is_lacking_in_wine("errors of read-only drives") {
                    continue;
                }
                assert_eq!(error.kind(), kind, "{error}");
                assert_eq!(std::io::Error::from(error).kind(), std_kind);
            }
            let _ = std_fs::remove_file(&path);
            assert!(names(drive.as_ref()).is_empty());
        });
    }
}
