//! `nowait copy` of a small tree, once for each system call that it makes: that one fails, or is the
//! last before SIGKILL (`strace` injects both). Every file is the old one or the new one, whole. What is
//! not copied is told, and an exit code of zero means that all was copied, with its metadata. What a
//! killed copy left is gone after the next.

mod copying;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use copying::{COPIED, contents, directory, expect, names, noise, nowait_copy, said};

/// Calls that a copy makes for its files. Others are the loader's, the allocator's or the threads'.
const CALLS: [&str; 32] = [
    "openat",
    "openat2",
    "fstat",
    "newfstatat",
    "statx",
    "fstatfs",
    "getdents64",
    "pread64",
    "preadv2",
    "pwrite64",
    "pwritev2",
    "ftruncate",
    "fallocate",
    "lseek",
    "linkat",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdirat",
    "mknodat",
    "symlinkat",
    "readlinkat",
    "fchown",
    "fchownat",
    "fchmod",
    "utimensat",
    "flistxattr",
    "fsync",
    "syncfs",
    "flock",
    "ioctl",
    "fcntl",
];
/// Failures of one call that are tried, the first ones.
const TIMES_MAX: usize = 10;

/// The tree, and what of it is in the target in another version.
const FILES: [(&str, usize, bool); 5] = [
    ("short", 5000, true),
    ("long", 1_200_000, true),
    ("sub/new", 70_000, false),
    ("sub/old", 100, true),
    ("empty", 0, false),
];

/// Makes the tree, with a long file of so many bytes.
fn make_with(dir: &Path, long_bytes: usize) {
    make(dir);
    fs::write(dir.join("source/long"), noise(1, long_bytes)).unwrap();
}

fn make(dir: &Path) {
    let (source, target) = (dir.join("source"), dir.join("target"));
    for root in [&source, &target] {
        let _ = fs::remove_dir_all(root);
        fs::create_dir_all(root.join("sub")).unwrap();
    }
    let years_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_100_000_000);
    for (name, len, is_there) in FILES {
        fs::write(source.join(name), noise(len as u64, len)).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o640)).unwrap();
        File::options().write(true).open(source.join(name)).unwrap().set_modified(years_ago).unwrap();
        if is_there {
            fs::write(target.join(name), format!("old {name}")).unwrap();
        }
    }
    symlink("short", source.join("link")).unwrap();
    expect(0, Command::new("mkfifo").arg(source.join("sub/fifo")));
    for root in ["source/sub", "source"] {
        File::open(dir.join(root)).unwrap().set_modified(years_ago).unwrap();
    }
}

/// Regular files, by their paths.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = contents(root);
    found.retain(|path, _| !path.ends_with("link"));
    found
}

/// Temporary names, and those that `--resume` needs.
fn left_names(target: &Path) -> Vec<String> {
    let all = [target.to_path_buf(), target.join("sub")].into_iter().flat_map(|dir| names(&dir));
    all.filter(|name| name.contains(".nowait-")).collect()
}

/// Copies the tree under `strace`; returns its output, and what it traced.
fn traced(dir: &Path, options: &[&str], fault: Option<&str>) -> (Output, String) {
    let copy = nowait_copy();
    let log = dir.join("trace");
    let mut command = Command::new("timeout");
    command.args(["20", "strace", "-f", "-qq", "-o"]).arg(&log);
    if let Some(fault) = fault {
        command.args(["-e", &format!("inject={fault}")]);
    }
    command.arg(copy.get_program()).args(copy.get_args()).args(options);
    let output = command.args(["--jobs=1", "-T", "source", "target"]).current_dir(dir).output().unwrap();
    (output, String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned())
}

/// Checks what a copy left, in which one call failed.
fn check(dir: &Path, output: &Output, about: &str) {
    let text = said(output);
    let (source, target) = (dir.join("source"), dir.join("target"));
    let code = output.status.code();
    assert!(code.is_some_and(|code| code < 100), "{about}: {text}");
    let (new, now) = (files(&source), files(&target));
    for (path, bytes) in &now {
        let is_left = path.to_string_lossy().contains(".nowait-");
        assert!(!is_left || about.contains("unlinkat"), "{about}: {path:?} was left: {text}");
        let old = format!("old {}", path.display());
        assert!(
            is_left || new.get(path) == Some(bytes) || *bytes == old.as_bytes(),
            "{about}: {path:?} is torn: {text}"
        );
    }
    if code != Some(COPIED) {
        return assert!(output.stderr.starts_with(b"nowait: "), "{about}: {text}");
    }
    assert!(now == new, "{about}: not all was copied, and nothing was said");
    assert!(target.join("link").is_symlink() && fs::symlink_metadata(target.join("sub/fifo")).is_ok(), "{about}");
    let facts = |path: &Path| fs::metadata(path).map(|stat| (stat.mode(), stat.mtime(), stat.uid())).unwrap();
    for (name, ..) in FILES {
        assert_eq!(facts(&target.join(name)), facts(&source.join(name)), "{about}: {name}");
    }
}

/// A copy without a fault, and how often it makes each call.
fn calls(dir: &Path, options: &[&str]) -> Vec<(&'static str, usize)> {
    let (output, trace) = traced(dir, options, None);
    assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
    let times = |call: &'static str| {
        let is_made = |line: &&str| line.split_once(' ').is_some_and(|(_, rest)| rest.trim_start().starts_with(call));
        (call, trace.lines().filter(is_made).count().min(TIMES_MAX))
    };
    CALLS.map(times).to_vec()
}

fn can_inject() -> bool {
    let tried = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: strace (package strace): {tried:?}");
    }
    can
}

#[test]
fn one_failed_call_leaves_whole_files_and_is_told() {
    if !can_inject() {
        return;
    }
    let (dir, mut faults) = (directory(), 0);
    for options in [&["--sync=file"][..], &["--sync=all", "--cache-neutral", "--reflink=never"]] {
        make(dir.path());
        for (call, times) in calls(dir.path(), options) {
            for time in 1..=times {
                make(dir.path());
                let fault = format!("{call}:error=EIO:when={time}");
                let (output, _) = traced(dir.path(), options, Some(&fault));
                // The loader did not find its libraries.
                if output.status.code() != Some(127) {
                    check(dir.path(), &output, &format!("{fault}, {options:?}"));
                    faults += 1;
                }
            }
        }
    }
    assert!(faults > 80, "{faults} faults only");
    eprintln!("{faults} faults");
}

#[test]
fn a_kill_at_any_call_leaves_whole_files_and_nothing_behind_the_next_copy() {
    if !can_inject() {
        return;
    }
    const OVERLAY: rustix::fs::FsWord = 0x794c_7630;
    let (dir, mut kills, mut with_names_left) = (directory(), 0, 0);
    let is_swept = rustix::fs::statfs(dir.path()).unwrap().f_type != OVERLAY;
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for (options, long_bytes) in [(&[][..], 1_200_000), (&["--resume", "--reflink=never"], 9 << 20)] {
        make_with(dir.path(), long_bytes);
        for (call, times) in calls(dir.path(), options) {
            for time in 1..=times {
                make_with(dir.path(), long_bytes);
                let fault = format!("{call}:signal=SIGKILL:when={time}");
                traced(dir.path(), options, Some(&fault));
                let about = format!("{fault}, {options:?}");
                let (new, now) = (files(&source), files(&target));
                for (path, bytes) in now.iter().filter(|(path, _)| !path.to_string_lossy().contains(".nowait-")) {
                    let is_old = *bytes == format!("old {}", path.display()).as_bytes();
                    assert!(is_old || new.get(path) == Some(bytes), "{about}: {path:?} is torn");
                }
                kills += 1;
                with_names_left += usize::from(!left_names(&target).is_empty());
                expect(COPIED, nowait_copy().args(options).args(["-T", "source", "target"]).current_dir(dir.path()));
                assert!(!is_swept || left_names(&target).is_empty(), "{about}: {:?}", left_names(&target));
                assert!(
                    files(&target).iter().filter(|(path, _)| new.contains_key(*path)).eq(&new),
                    "{about}: other bytes"
                );
            }
        }
    }
    assert!(kills > 80 && with_names_left > 5, "{kills} kills, {with_names_left} left names");
    eprintln!("{kills} kills, {with_names_left} left names");
}
