//! `nowait copy` of a small tree, once for each system call that it makes: that one fails (`strace`
//! injects the error). Every file is the old one or the new one, whole; what is not copied is told; and
//! an exit code of zero means that all was copied, with its metadata.

mod copying;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use copying::{COPIED, contents, directory, expect, noise, nowait_copy, said};

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
fn files(root: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    // A FIFO would be waited for.
    let fifo = root.join("sub/fifo");
    let hidden = root.parent().unwrap().join("fifo");
    let is_there = fs::symlink_metadata(&fifo).is_ok();
    if is_there {
        fs::rename(&fifo, &hidden).unwrap();
    }
    let mut found = contents(root);
    found.remove(Path::new("link"));
    if is_there {
        fs::rename(&hidden, &fifo).unwrap();
    }
    found
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

#[test]
fn one_failed_call_leaves_whole_files_and_is_told() {
    let dir = directory();
    make(dir.path());
    match Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output() {
        Ok(output) if output.status.success() => {}
        other => return eprintln!("skipped: strace (package strace): {other:?}"),
    }
    let mut faults = 0;
    for options in [&["--sync=file"][..], &["--sync=all", "--cache-neutral", "--reflink=never"]] {
        make(dir.path());
        let (output, trace) = traced(dir.path(), options, None);
        check(dir.path(), &output, "no fault");
        assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
        for call in CALLS {
            let is_made =
                |line: &&str| line.split_once(' ').is_some_and(|(_, rest)| rest.trim_start().starts_with(call));
            let times = trace.lines().filter(is_made).count().min(TIMES_MAX);
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
